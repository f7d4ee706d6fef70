# SPDX-License-Identifier: MIT
"""The SQL functions behind pgbouncer in transaction mode: several clients share one connection of the server, and a
client meets another one in every transaction (P17)."""
import collections
import os
import shutil
import subprocess

import pytest

from pg import free_port, pg_server, wait_for  # noqa: F401  (a fixture)
from pgsql import (LEVELS, Shop, ask, begin, call, committed, consumer, count, fail, handle, poll, psycopg2, refused,
                   run_workers, worker)

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 100
server_round_robin = 1
server_reset_query =
"""


def find_pgbouncer():
    return shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


class PooledShop(Shop):
    """A shop whose connections come out of a pool."""

    pooler_port = None

    def connect(self, level="READ COMMITTED", role="postgres", autocommit=False):
        made = psycopg2.connect(host="127.0.0.1", port=self.pooler_port, dbname=self.name, user=role)
        made.set_session(isolation_level=level, autocommit=autocommit)
        return made


@pytest.fixture(params=[1, 2])
def pooled(pg_server, request):  # noqa: F811
    program = find_pgbouncer()
    if program is None:
        pytest.skip("pgbouncer is not installed (apt-get install pgbouncer)")
    shop = PooledShop(pg_server)
    shop.pooler_port = free_port()
    settings = pg_server.dir / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(server=pg_server.port, port=shop.pooler_port, size=request.param))
    child = subprocess.Popen([program, settings], stdin=subprocess.DEVNULL, stdout=pg_server.log, stderr=pg_server.log,
                             cwd="/", **pg_server.owner)

    def answers():
        assert child.poll() is None, "pgbouncer ended; see the log of the server"
        try:
            shop.connect().close()
            return True
        except psycopg2.OperationalError:
            return False

    try:
        wait_for(answers, "pgbouncer answers")
        yield shop
    finally:
        child.kill()
        child.wait()


# I2, I3, I9, P17
@pytest.mark.parametrize("level", LEVELS)
def test_two_clients_on_shared_connections_do_every_message_once(pooled, level):
    one, other = pooled.connect(level), pooled.connect(level)
    for n in range(6):
        db = (one, other)[n % 2]
        assert handle(db, f"id-{n}") == ("run", "new")
        assert handle((one, other)[(n + 1) % 2], f"id-{n}") == ("ack", "duplicate")
    assert (count(one), count(one, "ledger"), count(one, "semel.held"), count(one, "semel.begun")) == (6, 6, 0, 0)
    one.close()
    other.close()


# T2, T14, I3, P17
@pytest.mark.parametrize("level", LEVELS)
def test_every_message_twice_by_three_processes_through_the_pool(pooled, level):
    ids = [f"m{n}" for n in range(1, 31)]
    told = collections.Counter()
    for one in run_workers(worker, pooled, level, ids):
        told.update(one)
    assert told == {("run", "new"): len(ids), ("ack", "duplicate"): 5 * len(ids)}
    db = pooled.connect()
    assert sorted(committed(db, "SELECT * FROM ledger")) == sorted((i, int(i[1:])) for i in ids)
    db.close()


# P38, P59
def test_begin_without_its_end_cannot_commit_and_the_next_client_is_not_told(pooled):
    one, other = pooled.connect(), pooled.connect()
    begin(one, "id-1")
    refused(one, None, error=psycopg2.IntegrityError)
    assert handle(other, "id-1") == ("run", "new")
    one.close()
    other.close()


# P38
def test_begin_under_autocommit_is_refused_unless_it_is_not_strict(pooled):
    db = pooled.connect(autocommit=True)
    with pytest.raises(psycopg2.IntegrityError, match="open one first"):
        begin(db, "id-1")
    assert ask(db, "SELECT count(*) FROM semel.inbox") == [(0,)]
    assert begin(db, "id-1", strict=False)["act"] == "run"
    assert begin(db, "id-1", strict=False)["why"] == "busy"
    ask(db, "SELECT semel.inbox_done('billing', 'id-1')")
    assert ask(db, "SELECT status FROM semel.inbox") == [("completed",)]
    db.close()


# P17
def test_loose_by_set_local_ends_with_the_transaction(pooled):
    one, other = pooled.connect(), pooled.connect()
    ask(one, "SET LOCAL semel.strict = off")
    begin(one, "id-1")
    one.commit()
    begin(other, "id-2")
    refused(other, None, error=psycopg2.IntegrityError)
    one.close()
    other.close()


# I7, I14, P17
def test_claims_and_stored_work_go_from_client_to_client(pooled):
    one, other = pooled.connect(), pooled.connect()
    consumer(one, "mail", effect="keyed", retry_first="1ms", retry_ceiling="1ms")
    token = call(one, "inbox_claim", consumer="mail", message_id="id-1", payload="{}")[0]["token"]
    one.commit()
    assert committed(other, "SELECT semel.inbox_renew(%s, '5m')", token) == [(True,)]
    assert committed(one, "SELECT semel.inbox_finish(%s, 'transient')", token) == [(True,)]
    token, = poll(lambda: committed(other, "SELECT token FROM semel.inbox_take('mail')"))[0]
    assert committed(one, "SELECT semel.inbox_finish(%s)", token) == [(True,)]
    assert fail(other, "id-2", "rejected", consumer="mail")["status"] == "rejected"
    other.commit()
    assert committed(one, "SELECT semel.tick()") == [(0,)]
    one.close()
    other.close()
