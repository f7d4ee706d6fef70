# SPDX-License-Identifier: MIT
"""The SQL functions of PostgreSQL as their users meet them: from psql, and from Python in transactions of its own."""
import collections
import functools
import json
import random
import re
import uuid

import pytest

from pg import pg_server  # noqa: F401  (a fixture)
from pgsql import (LEVELS, ask, begin, call, committed, consumer, count, db, fail, handle, poll, psql,  # noqa: F401
                   psycopg2, refused, run_workers, shop, worker)

errors = psycopg2.errors


@pytest.fixture(params=LEVELS)
def any_db(shop, request):  # noqa: F811
    made = shop.connect(request.param)
    yield made
    made.close()


# ---- psql ----------------------------------------------------------------------------------------------

# I2, I5, T6
def test_message_is_begun_done_and_a_duplicate_in_psql(shop):
    code, out, err = psql(shop, """
        BEGIN;
        SELECT act, why, attempt FROM semel.inbox_begin('billing', 'id-1', payload => '{"amount": 7}');
        INSERT INTO ledger VALUES ('id-1', 7);
        SELECT semel.inbox_done('billing', 'id-1', outcome => '{"paid":true}');
        COMMIT;
        SELECT act, why, outcome FROM semel.inbox_begin('billing', 'id-1', payload => '{"amount":7.0}');
        SELECT count(*) FROM ledger;
        SELECT status, attempts FROM semel.inbox;
        SELECT count(*) FROM semel.held;
        """)
    assert (code, err) == (0, "")
    assert out == ["run|new|1", "", 'ack|duplicate|{"paid": true}', "1", "completed|1", "0"]


# P38, P59
def test_begin_without_done_cannot_commit_in_psql_and_leaves_nothing(shop):
    code, out, err = psql(shop, """
        BEGIN;
        SELECT act FROM semel.inbox_begin('billing', 'id-1');
        INSERT INTO ledger VALUES ('id-1', 1);
        COMMIT;
        """)
    assert (code, out) == (3, ["run"])
    assert "a begin without its end cannot commit" in err and "inbox_done" in err
    assert shop.sql("SELECT (SELECT count(*) FROM semel.inbox), (SELECT count(*) FROM ledger)") == [("0", "0")]


# P59
def test_begin_under_autocommit_is_refused(shop):
    code, out, err = psql(shop, "SELECT act FROM semel.inbox_begin('billing', 'id-1');")
    assert code == 3 and out == [] and "open one first" in err
    assert shop.sql("SELECT count(*) FROM semel.inbox") == [("0",)]


# ---- begin, done, fail ---------------------------------------------------------------------------------

# I3, I9, T6
def test_message_runs_once_and_its_duplicate_gets_the_outcome(any_db):
    assert begin(any_db, "id-1", payload='{"amount": 7}') == {"act": "run", "why": "new", "attempt": 1, "outcome": None}
    ask(any_db, "INSERT INTO ledger VALUES ('id-1', 7)")
    committed(any_db, "SELECT semel.inbox_done('billing', 'id-1', '', '{\"receipt\":7}')")
    told = begin(any_db, "id-1", payload='{ "amount":7 }')
    any_db.commit()
    assert (told["act"], told["why"], told["outcome"]) == ("ack", "duplicate", {"receipt": 7})
    assert committed(any_db, "SELECT message_id, amount FROM ledger") == [("id-1", 7)]


# I11
def test_same_id_with_another_payload_is_a_conflict_and_kept(any_db):
    assert handle(any_db, "id-1", 7) == ("run", "new")
    assert handle(any_db, "id-1", 8) == ("ack", "conflict")
    assert handle(any_db, "id-1", 8) == ("ack", "conflict")
    assert count(any_db, "ledger") == 1
    assert committed(any_db, "SELECT count, convert_from(payload, 'UTF8')::jsonb FROM semel.conflict") == [
        (2, {"amount": 8})]


# I10, T8
def test_same_intent_under_another_id_is_prevented(any_db):
    assert handle(any_db, "id-1", business_key="order-1") == ("run", "new")
    assert handle(any_db, "id-2", business_key="order-1") == ("ack", "business_duplicate")
    assert count(any_db, "ledger") == 1


# P38, P59
def test_begin_without_done_cannot_commit_and_leaves_nothing(any_db):
    begin(any_db, "id-1")
    ask(any_db, "INSERT INTO ledger VALUES ('id-1', 1)")
    error = refused(any_db, None, error=psycopg2.IntegrityError)
    assert error.diag.constraint_name == "begun_has_its_end" and "id-1" in error.diag.message_primary
    assert (count(any_db), count(any_db, "ledger"), count(any_db, "semel.held")) == (0, 0, 0)
    assert handle(any_db, "id-1") == ("run", "new")


# I3: while it has no end, it is nobody's, not even to this transaction
def test_message_that_was_begun_in_this_transaction_is_busy_until_its_end(any_db):
    consumer(any_db, "billing", effect="atomic")
    begin(any_db, "id-1", payload='{"amount": 1}')
    for function in ["inbox_begin", "inbox_claim", "inbox_put"]:
        told = call(any_db, function, consumer="billing", message_id="id-1", payload='{"amount": 2}')[0]
        assert (told["act"], told["why"]) == ("later", "busy")
    committed(any_db, "SELECT semel.inbox_done('billing', 'id-1')")
    assert handle(any_db, "id-1") == ("ack", "duplicate")


# I6, I14: what begin was given is not lost when fail is not given it again
@pytest.mark.parametrize("keep, kept", [("unfinished", True), ("always", True), ("never", False)])
def test_payload_and_headers_of_a_begin_are_kept_when_it_fails(db, keep, kept):
    consumer(db, "billing", keep_payload=keep)
    begin(db, "id-1", payload='{"amount": 7}', headers='{"h": "1"}', type="paid", business_key="b")
    told = fail(db, "id-1", "transient", reason="no answer")
    db.commit()
    assert (told["act"], told["why"], told["status"]) == ("ack" if kept else "later", "new", "failed")
    assert committed(db, "SELECT convert_from(payload, 'UTF8'), headers, type, attempts FROM semel.inbox") == [
        ('{"amount": 7}' if kept else None, '{"h": "1"}' if kept else None, "paid", 1)]
    assert committed(db, "SELECT attempt, error_class, error_text FROM semel.attempt") == [
        (1, "transient", "no answer")]


# I14
def test_payload_of_what_is_done_goes_unless_it_is_always_kept(db):
    for keep, payload in [("unfinished", None), ("never", None), ("always", '{"amount": 1}')]:
        consumer(db, "billing", keep_payload=keep)
        assert handle(db, f"id-{keep}") == ("run", "new")
        assert committed(db, "SELECT convert_from(payload, 'UTF8') FROM semel.inbox WHERE message_id = %s",
                         f"id-{keep}") == [(payload,)]


def test_consumer_of_one_source_has_one_name_for_a_message_whatever_source_is_said(db):
    consumer(db, "billing", one_source=True)
    for message_id, begun, ended in [("a", "s1", "s2"), ("b", "s1", ""), ("c", "", "s2")]:
        assert begin(db, message_id, source=begun)["act"] == "run"
        committed(db, "SELECT semel.inbox_done('billing', %s, %s)", message_id, ended)
    assert committed(db, "SELECT DISTINCT source, status FROM semel.inbox") == [("", "completed")]


# P59
def test_error_that_a_savepoint_swallowed_does_not_leave_a_record_without_its_effect(db):
    begin(db, "id-1")
    ask(db, "SAVEPOINT effect")
    with pytest.raises(psycopg2.IntegrityError):
        ask(db, "INSERT INTO ledger VALUES ('id-1', -1)")
    ask(db, "ROLLBACK TO effect")
    refused(db, None, error=psycopg2.IntegrityError)
    assert (count(db), count(db, "ledger")) == (0, 0)


# P59
def test_done_of_a_begin_that_a_savepoint_took_back_is_refused(db):
    ask(db, "SAVEPOINT message")
    begin(db, "id-1")
    ask(db, "ROLLBACK TO message")
    assert "rolled back" in str(refused(db, "SELECT semel.inbox_done('billing', 'id-1')"))
    assert count(db) == 0


# P59
def test_done_that_a_savepoint_took_back_leaves_the_begin_open(db):
    begin(db, "id-1")
    ask(db, "SAVEPOINT s")
    ask(db, "SELECT semel.inbox_done('billing', 'id-1')")
    ask(db, "ROLLBACK TO s")
    refused(db, None, error=psycopg2.IntegrityError)
    assert count(db) == 0


# P62
def test_forced_constraints_refuse_what_is_begun_and_pass_what_is_done(db):
    begin(db, "id-1")
    refused(db, "SET CONSTRAINTS ALL IMMEDIATE", error=psycopg2.IntegrityError)
    begin(db, "id-1")
    ask(db, "SELECT semel.inbox_done('billing', 'id-1')")
    ask(db, "SET CONSTRAINTS ALL IMMEDIATE")
    db.commit()
    assert committed(db, "SELECT status FROM semel.inbox") == [("completed",)]


def test_done_without_begin_is_refused(db):
    error = refused(db, "SELECT semel.inbox_done('billing', 'id-1')")
    assert "not begun" in str(error) and error.pgcode == "55000"
    handle(db, "id-1")
    assert "not begun" in str(refused(db, "SELECT semel.inbox_done('billing', 'id-1')"))
    consumer(db, "billing", effect="outside")
    told = call(db, "inbox_claim", consumer="billing", message_id="id-2")[0]
    db.commit()
    assert "not begun" in str(refused(db, "SELECT semel.inbox_done('billing', 'id-2')"))
    assert committed(db, "SELECT semel.inbox_finish(%s)", told["token"]) == [(True,)]


# I25
def test_context_of_an_error_is_one_line(shop, db):
    consumer(db, "later", order="arrival", effect="outside")
    committed(db, "INSERT INTO semel.consumer VALUES ('broken', '{\"retry_max\": 0}', now())")
    shop.sql("CREATE ROLE stranger; GRANT USAGE ON SCHEMA semel TO stranger;"
             "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA semel TO stranger;"
             "INSERT INTO semel.access VALUES ('*', 'postgres')")
    try:
        for sql, code in [
                ("SELECT * FROM semel.inbox_begin('', 'i')", "22023"),
                ("SELECT * FROM semel.inbox_begin('c', 'i', version => -1)", "22023"),
                ("SELECT * FROM semel.inbox_begin('c', 'i', payload => '1', raw => 'x')", "22023"),
                ("SELECT * FROM semel.inbox_begin('later', 'i', order_key => 'k', version => 1)", "22023"),
                ("SET ROLE stranger; SELECT * FROM semel.inbox_begin('c', 'i')", "42501"),
                ("SELECT semel.inbox_done('c', 'i')", "55000"),
                ("SELECT semel.inbox_done('c', NULL::text)", "22023"),
                ("SELECT semel.inbox_done('c', 'i', outcome => to_jsonb(repeat('x', 65536)))", "22023"),
                ("SET ROLE stranger; SELECT semel.inbox_done('c', 'i')", "42501"),
                ("SELECT * FROM semel.inbox_fail('c', 'i', class => 'odd')", "22023"),
                ("SELECT * FROM semel.inbox_fail('c', NULL::text, class => 'transient')", "22023"),
                ("SELECT * FROM semel.inbox_claim('c', 'i')", "22023"),
                ("SELECT * FROM semel.inbox_claim('later', 'i', lease => '0s')", "22023"),
                ("SELECT * FROM semel.inbox_put('c', 'i')", "22023"),
                ("SELECT * FROM semel.inbox_put('c', 'i', payload => '1', not_before => 'infinity')", "22023"),
                ("SELECT semel.inbox_renew(0)", "22023"),
                ("SELECT semel.inbox_finish(9, class => 'odd')", "22023"),
                ("SELECT semel.inbox_finish(9)", "55000"),
                ("SELECT semel.inbox_release(-1)", "22023"),
                ("SELECT * FROM semel.inbox_begin_many('c', '[{\"id\": 1}]')", "22023"),
                ("SELECT semel.inbox_done_many('c', '[{\"message_id\": \"i\"}]')", "55000"),
                ("SELECT * FROM semel.inbox_fail_many(NULL, '[]')", "22023"),
                ("SELECT * FROM semel.inbox_fail_many('c', '[{\"message_id\": \"i\"}]')", "22023"),
                ("SELECT semel.inbox_done_many('c', '[{}]')", "22023"),
                *[(f"SELECT * FROM semel.inbox_{call}_many('c', '[{{\"message_id\": \"i\", {more}}}]')", "22023")
                  for call in ("begin", "fail")
                  for more in ('"version": 1.5', '"delivery": 1e10', '"delivery": -1', '"raw": "\\\\xz"',
                               '"message_time": "noon foo"', '"message_time": "infinity"', '"order_key": ""',
                               '"payload": 1, "raw": "x"')],
                ("SELECT * FROM semel.inbox_begin_many('broken', '[{\"message_id\": \"i\"}]')", "22023"),
                *[(f"SELECT * FROM semel.inbox_take({arguments})", "22023")
                  for arguments in ("NULL", "''", "'c', 0", "'c', 1, '0s'", "'broken'")],
                ("SET ROLE stranger; SELECT * FROM semel.inbox_take('c')", "42501"),
                *[(sql % an_id, code) for an_id in ("42", f"'{uuid.uuid4()}'::uuid")
                  for sql, code in [("SELECT * FROM semel.inbox_begin('', %s)", "22023"),
                                    ("SELECT semel.inbox_done('c', %s)", "55000"),
                                    ("SELECT * FROM semel.inbox_fail('c', %s, class => 'odd')", "22023"),
                                    ("SELECT * FROM semel.inbox_claim('c', %s)", "22023"),
                                    ("SELECT * FROM semel.inbox_put('c', %s)", "22023")]]]:
            error = refused(db, sql)
            assert (error.pgcode, len(error.diag.context.splitlines())) == (code, 1), (sql, error.diag.context)
        begin(db, "id-1")
        assert len(refused(db, None).diag.context.splitlines()) == 1
    finally:
        shop.sql("DROP OWNED BY stranger; DROP ROLE stranger")


# I4: the last line, whoever writes
@pytest.mark.parametrize("status, open_for, token, fits", [
    (None, None, None, True), ("rejected", None, None, True), ("stale", None, None, True),
    ("prevented", None, None, True), ("completed", None, None, False), ("odd", None, None, False),
    ("failed", None, None, False), (None, "billing", None, False), ("stale", "billing", None, False),
    ("failed", "billing", None, True), ("waiting", "billing", None, True), ("unknown", "billing", None, True),
    ("dead", "billing", None, True), ("quarantined", "billing", None, True), ("processing", "billing", None, False),
    ("processing", "billing", 7, True), ("failed", "billing", 7, False), ("processing", None, 7, False),
    (None, None, 7, False), (None, "billing", 7, False)])
def test_row_whose_state_does_not_fit_is_refused(db, status, open_for, token, fits):
    row = ("INSERT INTO semel.record (arrival, received_at, stream, key, status, open_for, lease_token) "
           "VALUES (1, now(), 1, 'k', %s, %s, %s)")
    if fits:
        ask(db, row, status, open_for, token)
    else:
        with pytest.raises(psycopg2.errors.CheckViolation) as error:
            ask(db, row, status, open_for, token)
        assert error.value.diag.constraint_name == "record_state_check"
    db.rollback()


@pytest.mark.parametrize("by_setting", [False, True])
def test_loose_begin_commits_without_its_end_and_is_ended_in_another_transaction(db, by_setting):
    if by_setting:
        committed(db, "SET semel.strict = off")
    begin(db, "id-1", **({} if by_setting else {"strict": False}))
    db.commit()
    assert committed(db, "SELECT status FROM semel.inbox") == [("processing",)]
    assert begin(db, "id-1")["why"] == "busy"
    committed(db, "SELECT semel.inbox_done('billing', 'id-1')")
    assert committed(db, "SELECT status, (SELECT count(*) FROM semel.held) FROM semel.inbox") == [("completed", 0)]


# I7, P38
def test_loose_begin_that_never_ends_is_tried_again(db):
    consumer(db, "billing", lease="1ms", retry_first="1ms", retry_ceiling="1ms")
    begin(db, "id-1", strict=False, payload="{}")
    db.commit()
    poll(lambda: committed(db, "SELECT semel.tick()")[0][0])
    assert poll(lambda: committed(db, "SELECT attempt FROM semel.inbox_take('billing')")) == [(2,)]


# I6, I14, T3
@pytest.mark.parametrize("begin_is_rolled_back", [False, True])
def test_failed_message_is_kept_and_retried_through_take_and_finish(any_db, begin_is_rolled_back):
    db = any_db  # noqa: F811
    consumer(db, "billing", retry_first="1ms", retry_ceiling="1ms")
    assert begin(db, "id-1", payload='{"amount":3}')["act"] == "run"
    if begin_is_rolled_back:
        db.rollback()
    told = fail(db, "id-1", "transient", payload='{"amount":3}', reason="no\x1b answer")
    db.commit()
    assert (told["act"], told["status"]) == ("ack", "failed") and told["due_at"] is not None
    assert committed(db, "SELECT status, attempts, error_class, error_text FROM semel.inbox") == [
        ("failed", 1, "transient", "no? answer")]
    token, payload, attempt = poll(lambda: committed(
        db, "SELECT token, payload, attempt FROM semel.inbox_take('billing', 5, '60s')"))[0]
    assert (payload, attempt) == ({"amount": 3}, 2)
    ask(db, "INSERT INTO ledger VALUES ('id-1', %s)", payload["amount"])
    assert committed(db, "SELECT semel.inbox_finish(%s)", token) == [(True,)]
    assert committed(db, "SELECT status, attempts, payload FROM semel.inbox") == [("completed", 2, None)]
    assert committed(db, "SELECT * FROM ledger") == [("id-1", 3)]


# I14
@pytest.mark.parametrize("word, status", [("permanent", "dead"), ("rejected", "rejected"), ("unknown", "unknown"),
                                          ("maybe", "unknown")])
def test_class_of_a_failure_decides_what_becomes_of_it(db, word, status):
    begin(db, "id-1", payload="{}")
    told = fail(db, "id-1", word, payload="{}")
    db.commit()
    assert (told["act"], told["status"], told["due_at"]) == ("ack", status, None)
    assert committed(db, "SELECT status FROM semel.inbox") == [(status,)]


# ---- several sessions ----------------------------------------------------------------------------------

# I3, T2
def test_message_that_another_transaction_holds_is_busy_and_nobody_waits(shop, any_db):
    consumer(any_db, "billing", effect="atomic")
    other = shop.connect()
    begin(other, "id-1")
    told = begin(any_db, "id-1")
    assert (told["act"], told["why"]) == ("later", "busy")
    any_db.rollback()
    for function in ["inbox_claim", "inbox_put"]:
        told = call(any_db, function, consumer="billing", message_id="id-1", payload="{}")[0]
        assert (told["act"], told["why"]) == ("later", "busy")
        any_db.rollback()
    assert (fail(any_db, "id-1", "transient")["why"]) == "busy"
    any_db.rollback()
    ask(other, "SELECT semel.inbox_done('billing', 'id-1')")
    other.commit()
    other.close()
    assert handle(any_db, "id-1") == ("ack", "duplicate")


# I3
def test_retry_that_another_transaction_holds_is_busy(shop, db):
    consumer(db, "billing", retry_first="1ms", retry_ceiling="1ms")
    fail(db, "id-1", "transient", payload='{"amount": 1}')
    db.commit()
    other = shop.connect()
    token = poll(lambda: ask(other, "SELECT token FROM semel.inbox_take('billing')"))[0][0]
    assert begin(db, "id-1")["why"] == "busy"
    assert ask(db, "SELECT * FROM semel.inbox_take('billing')") == []
    db.rollback()
    ask(other, "SELECT semel.inbox_finish(%s)", token)
    other.commit()
    other.close()
    assert handle(db, "id-1") == ("ack", "duplicate")


# I3, P12, P13
@pytest.mark.parametrize("level", LEVELS)
def test_message_that_was_done_after_the_snapshot_is_a_duplicate_or_a_reason_to_retry(shop, level):
    db = shop.connect(level)  # noqa: F811
    ask(db, "SELECT count(*) FROM ledger")
    assert handle(shop.connect(), "id-1") == ("run", "new")
    if level == "READ COMMITTED":
        assert handle(db, "id-1") == ("ack", "duplicate")
    else:
        with pytest.raises(errors.SerializationFailure):
            begin(db, "id-1")
        db.rollback()
        assert handle(db, "id-1") == ("ack", "duplicate")
    db.close()


# I13, P65
@pytest.mark.parametrize("level", LEVELS)
def test_successor_of_a_message_that_failed_after_the_snapshot_does_not_run(shop, level):
    db = shop.connect(level)  # noqa: F811
    other = shop.connect()
    consumer(other, "billing", order="arrival")
    assert handle(other, "a0", order_key="a") == ("run", "new")
    ask(db, "SELECT count(*) FROM ledger")
    fail(other, "a1", "transient", order_key="a", payload="{}")
    other.commit()
    if level != "READ COMMITTED":
        with pytest.raises(errors.SerializationFailure):
            begin(db, "a2", order_key="a")
        db.rollback()
    assert handle(db, "a2", order_key="a") == ("ack", "blocked")
    db.close()
    other.close()


# I18, P60
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("purged_before, seen", [(False, False), (True, False), (True, True)])
def test_message_that_was_purged_after_the_snapshot_does_not_run_again(shop, level, purged_before, seen):
    db, other = shop.connect(level), shop.connect()  # noqa: F811
    consumer(other, "billing", retention="1h")
    old = "2020-01-01 00:00+00"
    if purged_before:
        committed(other, "INSERT INTO semel.watermark VALUES ('billing', '', '2000-01-01', now())")
    if not seen:  # it came and went behind the snapshot: only the watermark knows of it
        assert handle(other, "id-0") == ("run", "new")
        ask(db, "SELECT count(*) FROM ledger")
    assert handle(other, "id-1", message_time=old) == ("run", "new")
    committed(other, "UPDATE semel.inbox SET processed_at = now() - interval '2 hours' WHERE message_id = 'id-1'")
    if seen:
        ask(db, "SELECT count(*) FROM ledger")
    assert committed(other, "SELECT semel.tick()") == [(1,)]
    assert committed(other, "SELECT count(*) FROM semel.inbox WHERE message_id = 'id-1'") == [(0,)]
    if level != "READ COMMITTED":
        with pytest.raises(errors.SerializationFailure):
            begin(db, "id-1", message_time=old, payload="{}")
        db.rollback()
    assert handle(db, "id-1", message_time=old) == ("ack", "too_old")
    assert committed(other, "SELECT count(*) FROM ledger WHERE message_id = 'id-1'") == [(1,)]
    db.close()
    other.close()


# T2, T14, I3
@pytest.mark.parametrize("level", LEVELS)
def test_every_message_twice_and_shuffled_by_three_processes_gives_the_ledger_of_a_single_delivery(shop, level):
    ids = [f"m{n}" for n in range(1, 81)]
    told = collections.Counter()
    for one in run_workers(worker, shop, level, ids):
        told.update(one)
    assert told == {("run", "new"): len(ids), ("ack", "duplicate"): 5 * len(ids)}
    db = shop.connect()  # noqa: F811
    assert sorted(committed(db, "SELECT * FROM ledger")) == sorted((i, int(i[1:])) for i in ids)
    assert committed(db, "SELECT status, count(*) FROM semel.inbox GROUP BY 1") == [("completed", len(ids))]
    db.close()


def apply(db, key, version):  # noqa: F811
    ask(db, "INSERT INTO applied (key, version) VALUES (%s, %s)", key, version)


def retried(db, step):  # noqa: F811
    """A transaction, as often as the server wants it."""
    while True:
        try:
            done = step()
            db.commit()
            return done
        except (errors.SerializationFailure, errors.DeadlockDetected):
            db.rollback()


def deliver_version(db, random_, key, version):  # noqa: F811
    message_id, more = f"{key}-{version}", {"order_key": key, "version": version, "payload": json.dumps([key, version])}

    def step():
        told = begin(db, message_id, **more)
        if told["act"] == "run" and random_.random() < 0.2:
            db.rollback()
            fail(db, message_id, "transient", **more)
        elif told["act"] == "run":
            apply(db, key, version)
            ask(db, "SELECT semel.inbox_done('billing', %s)", message_id)
        return told["act"]

    while retried(db, step) == "later":
        pass


def take_versions(db, random_):  # noqa: F811
    taken = retried(db, lambda: ask(db, "SELECT token, payload FROM semel.inbox_take('billing', 5)"))

    def step(token, payload):
        if random_.random() < 0.1:
            return ask(db, "SELECT semel.inbox_finish(%s, 'transient')", token)
        apply(db, *payload)
        return ask(db, "SELECT semel.inbox_finish(%s)", token)

    for token, payload in taken:
        assert retried(db, lambda: step(token, payload)) == [(True,)]  # pylint: disable=cell-var-from-loop


def ordered_worker(shop, level, seed, versions, queue):  # noqa: F811
    db, random_ = shop.connect(level), random.Random(seed)  # noqa: F811
    order = versions * 2
    random_.shuffle(order)
    for key, version in order:
        deliver_version(db, random_, key, version)
        take_versions(db, random_)
    poll(lambda: take_versions(db, random_) or retried(db, lambda: ask(
        db, "SELECT count(*) FROM semel.inbox WHERE status NOT IN ('completed', 'stale')"))[0][0] == 0)
    db.close()
    queue.put(seed)


# I12, I13, T9, T14, P65, P67
@pytest.mark.parametrize("level", LEVELS)
def test_versions_shuffled_failing_and_twice_are_applied_once_and_in_order(shop, level):
    db = shop.connect()  # noqa: F811
    committed(db, "CREATE TABLE applied (place bigserial, key text, version bigint)")
    consumer(db, "billing", order="version", retry_max=1000, retry_first="1ms", retry_ceiling="1ms", gap_timeout="1h")
    versions = [(key, version) for key in "abc" for version in range(1, 13)]
    run_workers(ordered_worker, shop, level, versions)
    assert committed(db, "SELECT key, array_agg(version ORDER BY place) FROM applied GROUP BY 1 ORDER BY 1") == [
        (key, list(range(1, 13))) for key in "abc"]
    assert committed(db, "SELECT status, count(*) FROM semel.inbox GROUP BY 1") == [("completed", len(versions))]
    db.close()


# ---- order, leases, the outbox -------------------------------------------------------------------------

# I13
def test_failed_message_holds_back_its_key_and_no_other(any_db):
    db = any_db  # noqa: F811
    consumer(db, "billing", order="arrival", retry_first="1ms")
    begin(db, "a1", order_key="a", payload="1")
    fail(db, "a1", "transient", order_key="a", payload="1")
    db.commit()
    assert handle(db, "a2", order_key="a") == ("ack", "blocked")
    assert handle(db, "b1", order_key="b") == ("run", "new")
    taken = []
    while len(taken) < 2:
        for token, message_id in committed(db, "SELECT token, message_id FROM semel.inbox_take('billing', 9)"):
            taken.append(message_id)
            assert committed(db, "SELECT semel.inbox_finish(%s)", token) == [(True,)]
    assert taken == ["a1", "a2"]


# I12
def test_first_message_with_an_order_key_settles_the_order(db):
    assert handle(db, "v1", order_key="k", version=1) == ("run", "new")
    assert committed(db, "SELECT settings FROM semel.consumer") == [({"order": "version"},)]
    assert handle(db, "v3", order_key="k", version=3) == ("ack", "gap")
    assert handle(db, "v1b", order_key="k", version=1) == ("ack", "duplicate")
    assert handle(db, "v2", order_key="k", version=2) == ("run", "new")
    assert committed(db, "SELECT message_id FROM semel.inbox_take('billing', 9)") == [("v3",)]
    consumer(db, "mail", order="arrival")
    text = str(refused(db, "SELECT * FROM semel.inbox_begin('mail', 'm1', order_key => 'k', version => 1)"))
    assert 'consumer "mail": order is arrival, and a message has a version' in text


# I7, T4
def test_lease_that_ran_out_is_recovered_and_its_former_owner_is_fenced(db):
    consumer(db, "mail", effect="keyed", retry_first="1ms")
    told = call(db, "inbox_claim", consumer="mail", message_id="id-1", payload="{}", lease="1ms")[0]
    db.commit()
    assert (told["act"], told["why"], told["attempt"]) == ("run", "new", 1)
    poll(lambda: committed(db, "SELECT semel.tick()")[0][0])
    assert committed(db, "SELECT status FROM semel.inbox") == [("failed",)]
    for sql in ["SELECT semel.inbox_renew(%s, '5m')", "SELECT semel.inbox_finish(%s)", "SELECT semel.inbox_finish(%s)",
                "SELECT semel.inbox_release(%s)"]:
        assert committed(db, sql, told["token"]) == [(False,)]
    assert committed(db, "SELECT error_text FROM semel.attempt ORDER BY id") == [
        ("its worker died or stalled: the lease ran out before it reported an end",),
        ("refused under a stale token: the late worker reported done",)]
    token = poll(lambda: committed(db, "SELECT token FROM semel.inbox_take('mail')"))[0][0]
    assert committed(db, "SELECT semel.inbox_renew(%s, '5m')", token) == [(True,)]
    assert committed(db, "SELECT semel.inbox_release(%s)", token) == [(True,)]
    token = poll(lambda: committed(db, "SELECT token FROM semel.inbox_take('mail')"))[0][0]
    assert committed(db, "SELECT semel.inbox_finish(%s, 'done', '{\"sent\":1}')", token) == [(True,)]
    assert committed(db, "SELECT status, outcome::jsonb FROM semel.inbox") == [("completed", {"sent": 1})]
    assert count(db, "semel.held") == 0


# A7 P79: the clock, a counter, the effect, chance; what a client made a double of is an error that says so
@pytest.mark.parametrize("bits, effect", [(1, "atomic"), (2, "outside"), (3, "keyed")])
def test_token_holds_the_clock_and_the_effect_of_its_claim(db, bits, effect):
    consumer(db, "mail", effect=effect)
    claim = "SELECT token FROM semel.inbox_claim('mail', %s, payload => '{}')"
    tokens = [committed(db, claim, f"id-{i}")[0][0] for i in range(300)]
    assert len(set(tokens)) == 300
    now = committed(db, "SELECT (extract(epoch FROM now()) * 1000)::bigint")[0][0]
    for token in tokens:
        assert token > 2**53 and token % 128 != 0 and token >> 10 & 3 == bits
        assert abs((token >> 22) * 1.024 + 1577836800000 - now) < 60000
    assert len({token & 1023 for token in tokens}) > 100
    error = refused(db, "SELECT semel.inbox_finish(%s)", int(float(tokens[0])))
    assert error.pgcode == "22023" and "which the client has rounded" in error.diag.message_primary
    assert committed(db, "SELECT semel.inbox_finish(%s)", tokens[0]) == [(True,)]


# A7: a row that somebody else has written gets a token all the same, one of ours
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "9999-01-01", "1970-01-01"])
def test_row_of_a_moment_that_cannot_be_gets_a_token(db, moment):
    token = committed(db, "SELECT semel._token('keyed', semel._now(), %s)", moment)[0][0]
    assert 2 ** 53 < token < 2 ** 63 and token >> 10 & 3 == 3 and token & 127 != 0


# A7 P79
def test_tokens_of_a_message_rise_although_the_clock_steps_back(db):
    consumer(db, "mail", effect="outside")
    tokens = [committed(db, "SELECT token FROM semel.inbox_claim('mail', 'id-1', payload => '{}')")[0][0]]
    for days in range(1, 5):
        committed(db, "CREATE OR REPLACE FUNCTION semel._now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
                      f"$$ SELECT pg_catalog.clock_timestamp() - interval '{days} days' $$")
        before = committed(db, "SELECT updated_at FROM semel.inbox")
        assert committed(db, "SELECT semel.inbox_release(%s)", tokens[-1]) == [(True,)]
        assert committed(db, "SELECT updated_at FROM semel.inbox") > before
        tokens.append(committed(db, "SELECT token FROM semel.inbox_claim('mail', 'id-1', payload => '{}')")[0][0])
    assert tokens == sorted(set(tokens))


# A8 P80: also where the row is gone; a savepoint before both takes back both
def test_late_done_of_an_effect_in_this_database_is_an_error_and_nothing_commits(db):
    consumer(db, "mail", effect="atomic")
    token = committed(db, "SELECT token FROM semel.inbox_claim('mail', 'id-1', payload => '{}', lease => '1ms')")[0][0]
    poll(lambda: committed(db, "SELECT semel.tick()")[0][0])
    for _ in range(2):
        assert committed(db, "SELECT semel.inbox_finish(%s, 'transient')", token) == [(False,)]
        ask(db, "INSERT INTO ledger VALUES ('id-1', 7)")
        error = refused(db, "SELECT semel.inbox_finish(%s)", token, error=psycopg2.Error)
        assert error.pgcode == "55000" and "must not be committed" in error.diag.message_primary
        assert count(db, "ledger") == 0
        committed(db, "DELETE FROM semel.inbox")


# A7 P79: sequences do not follow their tables through a logical switchover or a dump of the data
def test_sequences_that_began_anew_are_moved_past_what_is_stored(db, shop):
    consumer(db, "billing", order="arrival")
    for i in range(40):
        handle(db, f"old-{i}", order_key="k")
    begin(db, "id-1", order_key="k")
    committed(db, "SELECT * FROM semel.inbox_fail('billing', 'id-1', order_key => 'k', payload => '{}', "
                  "class => 'transient')")
    sequences = [row[0] for row in committed(db, "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S' "
                                                 "AND relnamespace = 'semel'::regnamespace")]
    stored = committed(db, "SELECT max(arrival) FROM semel.inbox")[0][0]
    for sequence in sequences:
        committed(db, f"ALTER SEQUENCE {sequence} RESTART")
    committed(db, "SELECT semel.tick()")
    assert any("without its sequences (arrival, attempt" in notice for notice in db.notices)
    assert committed(db, "SELECT count(*) FROM semel.restart") == [(1,)]
    begin(db, "id-2", order_key="k", payload="{}")
    db.commit()
    assert committed(db, "SELECT arrival > %s FROM semel.inbox WHERE message_id = 'id-2'", stored) == [(True,)]
    assert committed(db, "SELECT count(*) - count(DISTINCT arrival) FROM semel.inbox") == [(0,)]
    committed(db, "SELECT * FROM semel.inbox_fail('billing', 'id-9', payload => '{}', class => 'transient')")
    places = committed(db, "SELECT last_value FROM semel.arrival")
    committed(db, "SELECT semel.tick()")  # and it is noticed once
    assert committed(db, "SELECT last_value FROM semel.arrival") == places
    assert committed(db, "SELECT count(*) FROM semel.restart") == [(1,)]


# I7, T4
def test_claim_is_refused_until_its_consumer_has_said_where_the_effect_is(db):
    claim = "SELECT act, why FROM semel.inbox_claim('mail', 'id-1', payload => '{}')"
    for settings in ({}, {"retry_max": 3}):
        consumer(db, "mail", **settings)
        error = refused(db, claim)
        assert error.pgcode == "22023" and error.diag.message_primary == (
            'consumer "mail" has not said where its effect is: set effect to outside, to keyed (outside, safe to '
            'repeat under its step key) or to atomic (in this database) before claiming')
        assert count(db) == 0
    for effect in ("atomic", "keyed", "outside"):
        consumer(db, "mail", effect=effect)
        assert ask(db, claim) == [("run", "new")]
        db.rollback()


def test_claim_that_was_rolled_back_was_never_made(db):
    consumer(db, "c", effect="outside")
    told = call(db, "inbox_claim", consumer="c", message_id="id-1", payload="{}")[0]
    db.rollback()
    assert committed(db, "SELECT semel.inbox_finish(%s)", told["token"]) == [(False,)]
    assert count(db) == 0


def test_work_is_taken_and_finished_in_one_statement_or_in_a_loop(db):
    for message_id in "abcd":
        assert call(db, "inbox_put", consumer="c", message_id=message_id, payload="1") == [{"act": "ack", "why": "new"}]
    db.commit()
    sql = "SELECT semel.inbox_finish(token) FROM semel.inbox_take('c', 2)"
    assert committed(db, sql) == [(True,), (True,)]
    for token, in ask(db, "SELECT token FROM semel.inbox_take('c', 9)"):
        assert ask(db, "SELECT semel.inbox_finish(%s)", token) == [(True,)]
    db.commit()
    assert committed(db, "SELECT status, count(*) FROM semel.inbox GROUP BY 1") == [("completed", 4)]


def test_payload_comes_back_as_json_where_it_is_json_and_as_bytes_always(db):
    call(db, "inbox_put", consumer="c", message_id="j", payload='{"n":1}', type="t", source="s", headers='{"h":"1"}')
    call(db, "inbox_put", consumer="c", message_id="r", raw=b"\x00\xff")
    db.commit()
    taken = {row["message_id"]: row for row in call(db, "inbox_take", consumer="c", max=9, lease="30s")}
    db.commit()
    assert (taken["j"]["payload"], taken["j"]["type"], taken["j"]["source"]) == ({"n": 1}, "t", "s")
    assert (taken["j"]["headers"], bytes(taken["j"]["raw"])) == ({"h": "1"}, b'{"n": 1}')
    assert (taken["r"]["payload"], bytes(taken["r"]["raw"])) == (None, b"\x00\xff")
    assert taken["j"]["attempt"] == 1 and taken["j"]["lease_until"] is not None


# O1, O4, I21
def test_event_leaves_only_if_its_transaction_commits(db):
    event = dict(aggregatetype="order", aggregateid="o-1", type="placed", payload='{"n":1}', headers='{"h":"1"}',
                 destination="orders", lock=True)
    call(db, "outbox_put", **event)
    db.rollback()
    assert count(db, "semel.outbox") == 0
    event_id = call(db, "outbox_put", **event)[0]["outbox_put"]
    db.commit()
    assert uuid.UUID(event_id).version == 7
    assert committed(db, "SELECT id, aggregatetype, aggregateid, type, convert_from(payload, 'UTF8'), destination, "
                         "headers FROM semel.outbox") == [
        (event_id, "order", "o-1", "placed", '{"n": 1}', "orders", '{"h": "1"}')]
    own = "018f0000-0000-7000-8000-000000000001"
    put = "SELECT semel.outbox_put('a', 'b', 'c', raw => '\\x00', id => %s)"
    assert committed(db, put, own) == [(own,)]
    assert "is there already" in str(refused(db, put, own, error=errors.UniqueViolation))


# O4
@pytest.mark.parametrize("name", ["id", "traceparent", "TraceParent", "ce_id", "ce-type", "CE-Type", "webhook-id"])
def test_headers_that_semel_writes_are_refused(db, name):
    put = "SELECT semel.outbox_put('a', 'b', 'c', headers => jsonb_build_object(%s::text, 'x'))"
    assert "are written by Semel" in str(refused(db, put, name))
    assert committed(db, put, f"x-{name}") != [] and count(db, "semel.outbox") == 1


# O5
def test_writers_of_one_aggregate_that_lock_it_put_their_events_in_the_order_of_their_commits(shop, db):
    other = shop.connect()
    put = "SELECT semel.outbox_put('order', 'o-1', %s, lock => true)"
    ask(db, put, "first")
    refused(other, "SET lock_timeout = '50ms'; " + put, "second", error=errors.LockNotAvailable)
    ask(other, "SELECT semel.outbox_put('order', 'o-2', 'another', lock => true)")
    other.commit()
    db.commit()
    committed(other, put, "second")
    assert committed(db, "SELECT type FROM semel.outbox WHERE aggregateid = 'o-1' ORDER BY seq") == [
        ("first",), ("second",)]
    other.close()


# I18
def test_tick_purges_what_is_old_and_quarantines_what_comes_after_it(db):
    consumer(db, "billing", retention="1h")
    new = "now"
    assert handle(db, "old", message_time="2020-01-01 00:00+00") == ("run", "new")
    assert handle(db, "new", message_time=new) == ("run", "new")
    assert committed(db, "SELECT semel.tick()") == [(0,)]
    committed(db, "UPDATE semel.inbox SET processed_at = now() - interval '2 hours'")
    assert committed(db, "SELECT semel.tick()") == [(1,)]
    assert committed(db, "SELECT message_id FROM semel.inbox") == [("new",)]
    assert handle(db, "old", message_time="2020-01-01 00:00+00") == ("ack", "too_old")
    assert count(db, "ledger") == 2


def test_tick_tells_of_settings_that_cannot_be_read_after_the_others_had_their_turn(db):
    committed(db, "INSERT INTO semel.consumer (consumer, settings, updated_at) VALUES ('bad', '{\"x\":1}', now())")
    consumer(db, "billing", effect="outside")
    call(db, "inbox_claim", consumer="billing", message_id="id-1", payload="{}", lease="1ms")
    db.commit()
    poll(lambda: committed(db, "SELECT semel.tick()")[0][0])
    assert re.search('stored settings of consumer "bad": there is no setting "x"', "".join(db.notices))


# ---- ids -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("message_id", ["it's", '"', "a\nb\r\t", "'; DROP TABLE semel.inbox; --", "%s$1:x", "x" * 255,
                                        "é" * 127, "\x01\x7f", " ", "\\", "$$"])
def test_odd_id_is_an_id_like_any_other(db, message_id):
    assert handle(db, message_id) == ("run", "new")
    assert handle(db, message_id) == ("ack", "duplicate")
    assert committed(db, "SELECT message_id FROM ledger") == [(message_id,)]
    assert committed(db, "SELECT message_id FROM semel.inbox") == [(message_id,)]


def test_message_without_an_id_is_quarantined_and_never_runs(db):
    assert handle(db, None) == ("ack", "no_id")
    assert committed(db, "SELECT status, message_id ~ '^sha256:[0-9a-f]{64}$' FROM semel.inbox") == [
        ("quarantined", True)]
    assert count(db, "ledger") == 0


# A9 P78
def test_message_without_an_id_remembers_its_business_key_and_takes_it_when_it_starts(shop, db):  # noqa: F811
    def retry():
        id_ = committed(db, "SELECT message_id FROM semel.inbox WHERE error_class = 'no_id'")[0][0]
        return shop.semel("inbox", "retry", id_, "-c", "billing", "--force", "--reason", "it is payment 7")

    keys = "SELECT business_key, message_id ~ '^sha256:' FROM semel.business_key"
    wants = "SELECT business_key FROM semel.business_want WHERE message_id ~ '^sha256:'"
    assert handle(db, None, business_key="inv-7") == ("ack", "no_id")
    assert committed(db, wants) == [("inv-7",)] and committed(db, keys) == []
    begin(db, "id-1", payload="{}", business_key="inv-7")
    fail(db, "id-1", "permanent", payload="{}", business_key="inv-7")
    db.commit()
    said = retry()
    assert said.code != 0 and "has its business key" in said.err, said
    assert committed(db, "SELECT status FROM semel.inbox WHERE message_id ~ '^sha256:'") == [("quarantined",)]
    assert shop.semel("inbox", "discard", "id-1", "-c", "billing", "--reason", "x").code == 0
    assert committed(db, keys) == []
    said = retry()
    assert said.code == 0, said
    assert committed(db, wants) == [("inv-7",)] and committed(db, keys) == []  # its start takes it
    taken = call(db, "inbox_take", consumer="billing")
    db.commit()
    assert len(taken) == 1 and committed(db, keys) == [("inv-7", True)] and committed(db, wants) == []
    assert handle(db, "id-2", business_key="inv-7") == ("ack", "business_duplicate")


# A4 P76, I4
@pytest.mark.parametrize("order", ["none", "arrival"])
def test_failure_without_a_payload_is_left_to_the_broker_which_brings_it(db, order):
    consumer(db, "billing", order=order, retry_first="1h", retry_ceiling="1h")
    key = {"order_key": "k"} if order != "none" else {}
    begin(db, "id-1", **key)
    told = fail(db, "id-1", "transient", **key)
    db.commit()
    assert (told["act"], told["status"]) == ("later", "failed") and "payload" in told["hint"]
    assert committed(db, "SELECT attempts, payload, fingerprint FROM semel.inbox") == [(1, None, None)]
    told = begin(db, "id-1", payload="[1]", headers='{"h": "1"}', **key)
    db.commit()
    assert (told["act"], told["why"]) == ("ack", "backoff")
    assert committed(db, "SELECT attempts, payload, headers, fingerprint IS NOT NULL FROM semel.inbox")[0][0] == 1
    rows = committed(db, "SELECT convert_from(payload, 'UTF8'), headers, fingerprint IS NOT NULL FROM semel.inbox")
    assert rows == [("[1]", '{"h": "1"}', True)]
    assert begin(db, "id-1", payload="[2]", **key)["why"] == "conflict"


@pytest.mark.parametrize("order", ["none", "arrival"])
def test_failure_takes_the_payload_of_its_begin_else_its_own(db, order):
    consumer(db, "billing", order=order)
    begin(db, "id-1", payload='{"n": 1}', **({"order_key": "a"} if order != "none" else {}))
    begin(db, "id-2", **({"order_key": "b"} if order != "none" else {}))
    assert fail(db, "id-1", "transient", **({"order_key": "a"} if order != "none" else {}))["act"] == "ack"
    told = fail(db, "id-2", "transient", payload='{"n": 2}', **({"order_key": "b"} if order != "none" else {}))
    assert told["act"] == "ack" and told["hint"] is None
    db.commit()
    rows = committed(db, "SELECT convert_from(payload, 'UTF8'), fingerprint IS NOT NULL FROM semel.inbox "
                         "ORDER BY arrival")
    assert rows == [('{"n": 1}', True), ('{"n": 2}', True)]


def test_put_without_a_payload_is_refused_and_an_empty_one_is_kept(db):
    with pytest.raises(errors.InvalidParameterValue, match="payload or raw is needed"):
        call(db, "inbox_put", consumer="billing", message_id="id-1")
    db.rollback()
    assert call(db, "inbox_put", consumer="billing", message_id="id-2", raw=b"")[0]["why"] == "new"
    taken = call(db, "inbox_take", consumer="billing")
    assert [(row["message_id"], bytes(row["raw"])) for row in taken] == [("id-2", b"")]
    db.commit()


# A11 P82
@pytest.mark.parametrize("payload, raw, other", [
    ('"x"', ' "x" ', '"y"'), ("1", "1.0", "2"), ("100", "\n1e2", "-100"), ("null", "null\t", "false"),
    ('"A"', r'"\u0041"', '"B"')])
def test_json_is_one_payload_whichever_way_it_is_passed(db, payload, raw, other):
    consumer(db, "billing", keep_payload="never")
    begin(db, "id-1", payload=payload)
    ask(db, "SELECT semel.inbox_done('billing', 'id-1')")
    db.commit()
    assert begin(db, "id-1", raw=raw.encode())["why"] == "duplicate"
    assert begin(db, "id-1", raw=other.encode())["why"] == "conflict"
    assert begin(db, "id-1", payload=other)["why"] == "conflict"
    db.rollback()


# A4
def test_tombstone_is_said_by_a_header_that_goes_with_an_empty_payload_only(db):
    for message_id, raw in [("id-1", b""), ("id-2", b"x")]:
        call(db, "inbox_put", consumer="billing", message_id=message_id, raw=raw,
             headers='{"h": "1", "semel_tombstone": "true"}')
    taken = call(db, "inbox_take", consumer="billing", max=2)
    assert [row["headers"] for row in sorted(taken, key=lambda row: row["message_id"])] == [
        {"h": "1", "semel_tombstone": "true"}, {"h": "1"}]
    db.commit()


# A3 A4, I4
def test_what_is_stored_is_taken_whatever_the_setting_says(db):
    call(db, "inbox_put", consumer="billing", message_id="id-1", payload="{}")
    consumer(db, "billing", keep_payload="never")
    taken = call(db, "inbox_take", consumer="billing")
    assert [row["message_id"] for row in taken] == ["id-1"]
    assert ask(db, "SELECT semel.inbox_finish(%s, 'transient')", taken[0]["token"]) == [(True,)]
    db.commit()
    assert committed(db, "SELECT status, payload IS NOT NULL FROM semel.inbox") == [("failed", True)]


# I3: a join over a list with repeated ids calls begin for each line of it, whatever the planner knows of the list
@pytest.mark.parametrize("form", ["text", "uuid", "bigint"])
def test_repeated_ids_of_a_join_are_begun_once(db, form):
    ids = {"text": "'id-' || i %% 10", "uuid": "lpad((i %% 10)::text, 32, '0')::uuid", "bigint": "(i %% 10)::bigint"}
    committed(db, f"CREATE TABLE list AS SELECT {ids[form]} AS id FROM generate_series(1, 5000) AS i")
    committed(db, "ANALYZE list")
    acts = ask(db, "SELECT b.act, count(*) FROM list CROSS JOIN LATERAL semel.inbox_begin('billing', list.id) AS b"
                   " GROUP BY b.act")
    db.rollback()
    assert dict(acts)["run"] == 10


# I3: what the planner remembers of a subquery is no begin, and has no end
def test_answer_that_is_remembered_for_a_copy_cannot_be_ended(db):
    committed(db, "CREATE TABLE list AS SELECT 'id-' || i %% 10 AS id FROM generate_series(1, 5000) AS i")
    committed(db, "ANALYZE list")
    ran = [row[0] for row in ask(
        db, "SELECT list.id FROM list CROSS JOIN LATERAL "
            "(SELECT act FROM semel.inbox_begin('billing', list.id) OFFSET 0) AS b WHERE b.act = 'run'")]
    assert len(set(ran)) == 10
    if len(ran) > 10:                                       # from PostgreSQL 14 on
        error = refused(db, "SELECT semel.inbox_done('billing', id) FROM unnest(%s) AS l (id)", ran)
        assert error.pgcode == "55000" and count(db) == 0


def test_uuid_is_the_id_of_its_text(db):
    consumer(db, "billing", effect="atomic")
    key = "018F0000-0000-7000-8000-00000000000A"
    sql = "SELECT act, why FROM semel.inbox_begin('billing', %s::uuid)"
    assert ask(db, sql, key) == [("run", "new")]
    committed(db, "SELECT semel.inbox_done('billing', %s::uuid)", key)
    assert committed(db, sql, key) == [("ack", "duplicate")]
    assert handle(db, key.lower()) == ("ack", "duplicate")
    assert committed(db, "SELECT message_id, message_time FROM semel.inbox")[0][0] == key.lower()
    for function in ["inbox_claim", "inbox_put"]:
        assert ask(db, f"SELECT act, why FROM semel.{function}('billing', %s::uuid, raw => '')", key) == [
            ("ack", "duplicate")]
    assert ask(db, "SELECT why FROM semel.inbox_fail('billing', %s::uuid, class => 'transient')", key) == [
        ("duplicate",)]
    assert ask(db, "SELECT semel.step_key('c', %s::uuid, 's') = semel.step_key('c', %s, 's')", key, key.lower()) == [
        (True,)]
    db.rollback()


# A11 P82
def test_age_of_a_message_is_in_its_id_where_the_consumer_says_so(db):
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    ulid_ms = functools.reduce(lambda ms, c: ms * 32 + digits.index(c), "01HW000000", 0)
    uuid_ms = 0x018f00000000
    for n, (said, known) in enumerate([(None, (uuid_ms, None)), ("uuidv7", (uuid_ms, None)), (False, (None, None)),
                                       (True, (uuid_ms, ulid_ms)), ("ulid", (uuid_ms, ulid_ms))]):
        consumer(db, f"c{n}", timed_ids=said)
        assert committed(db, "SELECT semel.consumer(%s) -> 'timed_ids'", f"c{n}") == [(said if n else "uuidv7",)]
        for message_id in ["018f0000-0000-7000-8000-000000000001", "01HW0000000000000000000ZZZ",
                           "018f0000-0000-4000-8000-000000000001", "01HW0000000000000000000OZZ",
                           "00000000000000000000012345", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
                           "0125e72e-77ff-7000-8000-000000000001", "ffffffff-0000-7000-8000-000000000001"]:
            committed(db, "SELECT * FROM semel.inbox_put(%s, %s, raw => '')", f"c{n}", message_id)
        assert committed(db, "SELECT extract(epoch FROM message_time) * 1000 FROM semel.inbox WHERE consumer = %s "
                             "ORDER BY arrival", f"c{n}") == [(known[0],), (known[1],)] + 6 * [(None,)], said
    assert "uuidv7|false|true|ulid" in str(refused(db, "SELECT semel.consumer('c', '{\"timed_ids\": \"true\"}')"))


# ---- settings under stored rows ------------------------------------------------------------------------

def row(db, message_id, status, order_key=None, version=None, error_class=None, source=""):
    """As some client has stored it."""
    lease = 1000 + count(db) if status == "processing" else None
    committed(db, "INSERT INTO semel.inbox (arrival, consumer, source, message_id, status, order_key, version, "
                  "error_class, lease_token, lease_until, received_at, updated_at) "
                  "VALUES (nextval('semel.arrival'), 'c', %s, %s, %s, %s, %s, %s, %s, now(), now(), now())",
              source, message_id, status, order_key, version, error_class, lease)


def not_set(db, words, **settings):
    text = str(refused(db, "SELECT semel.consumer('c', %s)", json.dumps(settings),
                       error=errors.ObjectNotInPrerequisiteState))
    assert words in text and "--force --reason" in text, text


def settings_of(db):
    return committed(db, "SELECT settings FROM semel.consumer WHERE consumer = 'c'")[0][0]


# A3 I24 P75
def test_settings_merge_null_takes_one_away_and_each_change_has_its_audit_line(db):
    consumer(db, "c", order="version", effect="outside")
    consumer(db, "c", retry_max=20)
    consumer(db, "c")
    consumer(db, "c", retry_max=20, lease=None)
    assert settings_of(db) == {"order": "version", "effect": "outside", "retry_max": 20}
    consumer(db, "c", retry_max=None, lease="60s")
    consumer(db, "c", lease="1m")  # as it is
    assert settings_of(db) == {"order": "version", "effect": "outside", "lease": "60s"}
    assert committed(db, "SELECT who, what, reason FROM semel.audit WHERE consumer = 'c' ORDER BY id") == [
        ("postgres", 'set {"order": "version", "effect": "outside"}', ""), ("postgres", 'set {"retry_max": 20}', ""),
        ("postgres", 'set {"lease": "60s", "retry_max": null}', "")]
    assert "retry_ceiling" in str(refused(db, "SELECT semel.consumer('c', '{\"retry_ceiling\": \"1ms\"}')"))
    assert 'no setting "retries"' in str(refused(db, "SELECT semel.consumer('c', '{\"retries\": null}')"))


# A3 I24 P75
def test_order_is_kept_while_messages_of_keys_have_no_end(db):
    consumer(db, "c", order="version")
    row(db, "done", "completed", "k", 1)
    row(db, "dead", "dead", "k", None)
    consumer(db, "c", order="none")
    consumer(db, "c", order="version")
    row(db, "late", "dead", "k", 2)
    not_set(db, "messages with a version that are dead or of unknown outcome: 1; resolve", order="arrival")
    for n, status in enumerate(("waiting", "failed", "processing")):
        row(db, status, status, f"k{n}", 3)
    not_set(db, "order cannot go from version to none; messages with an order key that wait, failed or run: 3;",
            order="none")
    not_set(db, "order cannot go from version to arrival", order="arrival")
    not_set(db, "order cannot go from version to none", order=None)
    consumer(db, "c", retry_max=20)
    assert settings_of(db) == {"order": "version", "retry_max": 20}


# A3 I24 P75
def test_first_version_is_not_raised_over_messages_that_wait(db):
    consumer(db, "c", order="version")
    row(db, "a", "waiting", "k", 4)
    row(db, "b", "failed", "l", 4)
    consumer(db, "c", first_version=4)
    not_set(db, "first_version cannot go from 4 to 5; messages below it that wait or failed", first_version=5)
    committed(db, "INSERT INTO semel.order_key (consumer, order_key, last_version) VALUES ('c', 'k', 3)")
    not_set(db, "last version: 1;", first_version=5)
    consumer(db, "c", first_version="any")
    not_set(db, "from any to 5", first_version=5)
    db.notices.clear()
    consumer(db, "c", first_version=2)
    assert any('is first_version "any" right' in notice for notice in db.notices), db.notices


# A3 I24 P75
def test_a_keyed_effect_and_the_sources_are_kept_while_rows_depend_on_them(db):
    consumer(db, "c", effect="keyed")
    row(db, "a", "failed", error_class="transient")
    committed(db, "UPDATE semel.inbox SET attempts = 1")
    consumer(db, "c", effect="outside")
    consumer(db, "c", effect="keyed")
    row(db, "b", "failed", error_class="lease_expired")
    row(db, "d", "failed", error_class="unknown")
    committed(db, "UPDATE semel.inbox SET attempts = 1")
    not_set(db, "effect cannot go from keyed to outside; messages that may have had their effect and are to be "
                "repeated: 2;", effect="outside")
    not_set(db, "from keyed to atomic", effect=None)
    row(db, "e", "waiting", error_class="blocked")
    not_set(db, "repeated: 2;", effect="outside")
    committed(db, "UPDATE semel.inbox SET attempts = 1 WHERE message_id = 'e'")  # it was tried, and waits again
    not_set(db, "repeated: 3;", effect="outside")
    committed(db, "DELETE FROM semel.inbox WHERE message_id = 'e'")
    consumer(db, "c", one_source=True)
    not_set(db, "one_source cannot go from true to false; records without a source, which would be forgotten: 3;",
            one_source=False)
    committed(db, "UPDATE semel.inbox SET source = 's'")
    consumer(db, "c", one_source=None)
    not_set(db, "one_source cannot go from false to true", one_source=True)
    consumer(db, "c", keep_payload="always")


# A3 P75
def test_question_about_the_first_version_is_asked_only_where_order_keys_exist(db):
    def asked(**settings):
        db.notices.clear()
        consumer(db, "c", **settings)
        return any('order keys exist already: is first_version "any" right for them?' in said for said in db.notices)

    assert not asked(order="version")  # no key exists
    consumer(db, "c", order="none")
    committed(db, "INSERT INTO semel.order_key (consumer, order_key, last_version) VALUES ('other', 'k', 3)")
    assert not asked(order="version")  # nor one of this consumer
    consumer(db, "c", order="none")
    committed(db, "INSERT INTO semel.order_key (consumer, order_key) VALUES ('c', 'k')")
    assert not asked(order="arrival") and asked(order="version")
    assert not asked(retry_max=3) and not asked(order="version")  # nothing of it changes
    assert not asked(first_version="any") and asked(first_version=2)
    consumer(db, "c", order="none", first_version=None)
    assert not asked(order="version", first_version="any")


# A6 P78
def test_waiters_for_a_business_key_count_for_the_consumer(db):
    consumer(db, "billing", parked_consumer_max=1, order="arrival", retry_first="1h", retry_ceiling="1h")
    for id_, key in (("a1", "a"), ("b1", "b")):
        begin(db, id_, payload="{}", business_key=key, order_key=key)
        assert fail(db, id_, "transient", payload="{}", business_key=key, order_key=key)["act"] == "ack"
        db.commit()
    assert handle(db, "a2", business_key="a", order_key="x") == ("ack", "business_duplicate")
    assert committed(db, "SELECT status FROM semel.inbox WHERE message_id = 'a2'") == [("waiting",)]
    assert handle(db, "b2", business_key="b", order_key="y") == ("later", "business_duplicate")
    assert handle(db, "b3", order_key="b") == ("later", "blocked")
    assert count(db) == 3
    consumer(db, "billing", parked_consumer_max=3)
    assert handle(db, "b2", business_key="b", order_key="y") == ("ack", "business_duplicate")
    assert handle(db, "b3", order_key="b") == ("ack", "blocked")
    assert count(db) == 5


# A6: counted from the end of its holder
def test_business_key_does_not_expire_before_its_holder_has_ended(shop, db):  # noqa: F811
    consumer(db, "billing", business_retention="1h", retry_first="1ms", retry_ceiling="1ms")

    def expires():
        return committed(db, "SELECT expires_at IS NULL, expires_at > now() + interval '59 min', "
                             "expires_at < now() + interval '61 min' FROM semel.business_key")
    assert begin(db, "a", consumer="billing", payload="{}", business_key="pay")["act"] == "run"
    call(db, "inbox_fail", consumer="billing", message_id="a", payload="{}", **{"class": "transient"})
    db.commit()
    assert expires() == [(True, None, None)]
    told = begin(db, "b", consumer="billing", payload="{}", business_key="pay")
    assert (told["act"], told["why"]) == ("ack", "business_duplicate")
    db.commit()
    token = poll(lambda: committed(db, "SELECT token FROM semel.inbox_take('billing') WHERE message_id = 'a'"))[0][0]
    assert committed(db, "SELECT semel.inbox_finish(%s)", token) == [(True,)]
    assert expires() == [(False, True, True)]
    told = begin(db, "c", consumer="billing", payload="{}", business_key="pay")
    assert (told["act"], told["why"]) == ("ack", "business_duplicate")
    db.commit()
    committed(db, "UPDATE semel.business_key SET expires_at = now() - interval '1s'")
    told = begin(db, "d", consumer="billing", payload="{}", business_key="pay")
    assert (told["act"], told["why"]) == ("run", "new")
    db.rollback()


# A11 I24 P82
def test_ids_keep_their_time_where_records_were_purged(db):
    consumer(db, "c", timed_ids=True)
    consumer(db, "c", timed_ids=False)
    consumer(db, "c", timed_ids=None)
    committed(db, "INSERT INTO semel.watermark VALUES ('c', 's', now(), now()), ('c', 't', now(), now())")
    not_set(db, "timed_ids cannot go from uuidv7 to false; sources of which records were purged", timed_ids=False)
    consumer(db, "c", timed_ids="ulid")
    consumer(db, "c", timed_ids=True)
    consumer(db, "c", timed_ids="ulid")
    not_set(db, "from ulid to uuidv7", timed_ids="uuidv7")
    consumer(db, "c", timed_ids=True)
    not_set(db, "new messages: 2; leave it as it is", timed_ids=None)
    not_set(db, "from true to false", timed_ids=False)
    assert settings_of(db) == {"timed_ids": True}


# A3 I24 P75
def test_more_than_ten_thousand_rows_are_not_counted(db):
    consumer(db, "c", order="arrival")
    committed(db, "INSERT INTO semel.inbox (arrival, consumer, source, message_id, status, order_key, received_at, "
                  "updated_at) SELECT i, 'c', '', i, 'waiting', 'k', now(), now() FROM generate_series(1, 10500) AS i")
    not_set(db, ": more than 10000;", order="none")


# A3 I24 P75
def test_what_a_routes_file_sets_is_changed_there(db):
    consumer(db, "c", effect="outside")
    committed(db, "UPDATE semel.consumer SET set_by_host = 'h1', set_by_file = '/etc/semel.yaml', set_by_at = now()")
    not_set(db, 'consumer "c" is set by the file /etc/semel.yaml on h1: change it there', retry_max=3)
    consumer(db, "c", effect="outside")
    consumer(db, "c")


# A3 I24 P75
def test_two_changes_of_a_consumer_wait_for_each_other_and_none_is_lost(shop, db):
    other = shop.connect()
    for existing in (False, True):
        name = f"new-{existing}"
        if existing:
            consumer(db, name, effect="outside")
        ask(db, "SELECT semel.consumer(%s, '{\"retry_max\": 3}')", name)
        with other.cursor() as cursor:
            cursor.execute("SET lock_timeout = '200ms'")
        assert "lock timeout" in str(refused(other, "SELECT semel.consumer(%s, '{\"lease\": \"5s\"}')", name))
        db.commit()
        consumer(other, name, lease="5s")
        shown = committed(db, "SELECT semel.consumer(%s)", name)[0][0]
        assert (shown["retry_max"], shown["lease"]) == (3, "5s")
    other.close()


# I4, B9
def test_what_is_too_large_is_kept_where_payloads_never_are(db):
    consumer(db, "billing", payload_max=10, keep_payload="never")
    told = begin(db, "large", payload='{"fill": "0123456789"}')
    assert (told["act"], told["why"]) == ("ack", "dead")
    assert ask(db, "SELECT status, convert_from(payload, 'UTF8')::jsonb FROM semel.inbox WHERE message_id = 'large'") \
        == [("dead", {"fill": "0123456789"})]
