# SPDX-License-Identifier: MIT
"""A consumer in Python with psycopg2: a delivery is a line of standard input, `ID PAYLOAD`. See examples/README.md."""
import os
import sys

import psycopg2

db = psycopg2.connect(os.environ["DATABASE_URL"])
for line in sys.stdin.buffer:
    said, _, payload = line.rstrip(b"\n").partition(b" ")  # the payload stays bytes: what is no JSON is kept, too
    name = said.decode("utf-8", "replace")
    # Without an id that can be stored the message is quarantined: kept for a person, and acknowledged.
    message_id = name if 1 <= len(name.encode()) <= 255 and "\0" not in name else None
    try:
        with db, db.cursor() as tx:  # one transaction for the record and the effect
            tx.execute("SELECT act, why FROM semel.inbox_begin('billing', %s, raw => %s)", (message_id, payload))
            act, why = tx.fetchone()
            if act == "run":
                tx.execute("INSERT INTO ledger SELECT e->>'account', (e->>'cents')::int "
                           "FROM (SELECT convert_from(%s, 'UTF8')::jsonb) AS m (e)", (payload,))
                tx.execute("SELECT semel.inbox_done('billing', %s)", (message_id,))
    except psycopg2.Error as error:
        if (error.pgcode or "")[:2] not in ("22", "23", "54"):
            raise
        # The message's fault: bad data, a violated constraint, too deep. Its effect is rolled back.
        with db, db.cursor() as tx:  # committed whatever the answer is: a rollback would count no attempt
            tx.execute("SELECT act, why FROM semel.inbox_fail('billing', %s, raw => %s, class => 'permanent', "
                       "reason => %s)", (message_id, payload, error.diag.message_primary))
            act, why = tx.fetchone()
    # It is committed; run and ack: acknowledge it now, later: let the broker bring it again.
    print(name, act, why, flush=True)
