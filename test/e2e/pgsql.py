# SPDX-License-Identifier: MIT
"""What the tests of PostgreSQL's SQL functions share: a database that psql has migrated, and short calls."""
import collections
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import subprocess

import pytest

from conftest import poll  # noqa: F401  (for those who import it from here)
from pg import SOURCE, Database, empty_pg, pg_server  # noqa: F401  (fixtures)

psycopg2 = pytest.importorskip("psycopg2", reason="apt-get install python3-psycopg2")

DEADLINE_S = 30
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
MIGRATIONS = sorted(pathlib.Path(os.environ.get("SEMEL_MIGRATIONS", SOURCE / "sql/postgres")).glob("[0-9]*.sql"))


def run_file(database, path, role="postgres", **variables):
    """Runs a file by psql, in one transaction unless it has variables; gives what psql said."""
    named = [word for name, value in variables.items() for word in ("-v", f"{name}={value}")]
    done = subprocess.run(
        ["psql", "-Xq", "-v", "ON_ERROR_STOP=1", *([] if variables else ["-1"]), *named, "-h", "127.0.0.1", "-p",
         str(database.server.port), "-U", role, "-d", database.name, "-f", str(path)],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_psql(database):
    """Semel's tables, as psql makes them from their files, and a table of the application."""
    for path in MIGRATIONS:
        run_file(database, path)
    database.sql("CREATE TABLE public.ledger (message_id text, amount bigint CHECK (amount > 0));")


class Shop(Database):
    """A migrated database with a table of its own."""

    def __init__(self, server, name="shop"):
        super().__init__(server, name, model=by_psql)

    def connect(self, level="READ COMMITTED", role="postgres", autocommit=False):
        db = psycopg2.connect(host="127.0.0.1", port=self.server.port, dbname=self.name, user=role,
                              options="-c statement_timeout=60000")
        db.set_session(isolation_level=level, autocommit=autocommit)
        return db


@pytest.fixture
def shop(pg_server):  # noqa: F811
    return Shop(pg_server)


@pytest.fixture
def db(shop):
    made = shop.connect()
    yield made
    made.close()


def psql(shop, script):
    """What psql does with a script: its exit code, the lines that it prints, and its complaints."""
    done = shop.server.psql(shop.name, script, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def ask(db, sql, *values):
    """All rows of a statement; [] where it has none."""
    with db.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall() if cursor.description else []


def call(db, function, **arguments):
    """A function by named arguments: its rows, as dictionaries."""
    named = ", ".join(f"{name} => %s" for name in arguments)
    with db.cursor() as cursor:
        cursor.execute(f"SELECT * FROM semel.{function}({named})", list(arguments.values()))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row)) for row in cursor.fetchall()]


def begin(db, message_id, consumer="billing", **more):
    return call(db, "inbox_begin", consumer=consumer, message_id=message_id, **more)[0]


def fail(db, message_id, word, consumer="billing", **more):
    return call(db, "inbox_fail", consumer=consumer, message_id=message_id, **{"class": word}, **more)[0]


def handle(db, message_id, amount=1, **more):
    """What a consumer does with a delivery; says what it was told."""
    told = begin(db, message_id, payload=json.dumps({"amount": amount}), **more)
    if told["act"] == "run":
        ask(db, "INSERT INTO ledger VALUES (%s, %s)", message_id, amount)
        ask(db, "SELECT semel.inbox_done('billing', %s)", message_id)
    if told["act"] == "later":
        db.rollback()
    else:
        db.commit()
    return told["act"], told["why"]


def count(db, table="semel.inbox"):
    found = ask(db, f"SELECT count(*) FROM {table}")[0][0]
    db.rollback()
    return found


def refused(db, sql, *values, error=None):
    """The error of a statement, or of the COMMIT where there is none; the transaction is rolled back."""
    with pytest.raises(error or psycopg2.Error) as caught:
        if sql is None:
            db.commit()
        else:
            ask(db, sql, *values)
    db.rollback()
    return caught.value


def committed(db, sql, *values):
    rows = ask(db, sql, *values)
    db.commit()
    return rows


def consumer(db, name, **settings):
    committed(db, "SELECT semel.consumer(%s, %s)", name, json.dumps(settings))


@contextlib.contextmanager
def absent_standby(server):
    """Every COMMIT waits for a standby that does not exist. Gives what ends such a wait, as an administrator would: by
    that function; or all of them, until the future has its result: where something else may commit as well."""
    eye = psycopg2.connect(host="127.0.0.1", port=server.port, dbname="postgres", user="postgres")
    eye.autocommit = True

    def standbys(setting):
        ask(eye, f"ALTER SYSTEM {setting}")
        for _ in range(2):  # where the second one has come, all processes were told of the first one
            before = ask(eye, "SELECT pg_conf_load_time(), pg_reload_conf()")[0][0]
            poll(lambda: ask(eye, "SELECT pg_conf_load_time()")[0][0] > before)  # pylint: disable=cell-var-from-loop
        ask(eye, "CHECKPOINT")  # by the process that tells the others whether to wait, when it has read the setting

    def end(how="pg_cancel_backend", until=None):
        waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'"
        if until is not None:
            poll(lambda: [ask(eye, f"SELECT {how}(pid) {waits}"), until.done()][1])
            return
        (pid, begun, _), *_ = poll(lambda: ask(eye, f"SELECT pid, query_start, {how}(pid) {waits}"))
        poll(lambda: not ask(eye, f"SELECT {waits} AND (pid, query_start) = (%s, %s)", pid, begun))
    standbys("SET synchronous_standby_names = 'none_such'")
    try:
        yield end
    finally:
        standbys("RESET synchronous_standby_names")
        eye.close()


def documentation(name):
    return (pathlib.Path(SOURCE) / "docs" / name).read_text()


# ---- several processes ---------------------------------------------------------------------------------

def deliver(db, message_id, amount):
    """Delivers until the answer is final, as a broker would."""
    while True:
        try:
            told = handle(db, message_id, amount=amount)
        except (psycopg2.errors.SerializationFailure, psycopg2.errors.DeadlockDetected):
            db.rollback()
            continue
        if told[0] != "later":
            return told


def worker(shop, level, seed, ids, queue):
    """Delivers every message twice, in an order of its own; puts how often it was told what."""
    db = shop.connect(level)
    order = ids * 2
    random.Random(seed).shuffle(order)
    told = collections.Counter(deliver(db, message_id, int(message_id[1:])) for message_id in order)
    db.close()
    queue.put(dict(told))


def run_workers(target, shop, level, work):
    """Three processes; what each of them has put into the queue."""
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    children = [fork.Process(target=target, args=(shop, level, seed, work, queue)) for seed in (1, 2, 3)]
    for child in children:
        child.start()
    said = [queue.get(timeout=120) for _ in children]
    for child in children:
        child.join()
        assert child.exitcode == 0
    return said
