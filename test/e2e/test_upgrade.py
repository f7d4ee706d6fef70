# SPDX-License-Identifier: MIT
"""Programs and schemas that are not of one version: what docs/upgrading.md promises. A schema one migration older or
newer than the program stands for the release before and the one after."""
import os
import pathlib
import re
import sqlite3
import subprocess

import pytest

from conftest import Store, run
from daemon import Daemon
from listen import Listen
from pg import empty_pg, pg, pg_server  # noqa: F401 (fixtures)

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
FILES = sorted((SOURCE / "sql" / "postgres").glob("[0-9]*.sql"))
LEDGER = "CREATE TABLE ledger (payment text)"


def settings(store, listen):
    route = {"from": listen.settings(), "timed_ids": False, "values": ["id"],
             "do": {"sql": "INSERT INTO ledger VALUES ($1)"}}
    return {"store": store.url, "routes": {"billing": route}}


def post(listen, id):
    return listen.post({}, ce_id=id, ce_source="shop", ce_specversion="1.0", ce_type="paid")[0]


def one_older(kind):
    """The SQL of a schema without its last migration, and the version that is missing."""
    newest = len(list((SOURCE / "sql" / kind).glob("[0-9]*.sql")))
    everything, last = (run("migrate", "--print", "--store-kind", kind, "--from", n).out for n in (0, newest - 1))
    return everything[: -len(last)], newest


@pytest.fixture(params=["sqlite", "postgres"])
def older(request, tmp_path):
    """A store one migration behind, and the version that the program needs."""
    made, newest = one_older(request.param)
    if request.param == "sqlite":
        store = Store(tmp_path / "shop.db")
        with sqlite3.connect(store.path) as db:
            db.executescript(made + LEDGER)
    else:
        store = request.getfixturevalue("empty_pg")
        store.sql(f"BEGIN;\n{made}\nCOMMIT;\nRESET search_path;\n{LEDGER};")
    return store, newest


def test_a_program_on_a_schema_one_migration_older_ends_and_names_the_command(tmp_path, older):
    store, newest = older
    listen = Listen()
    daemon = Daemon(tmp_path, settings(store, listen)).start()
    assert daemon.wait() == 5
    assert f"schema version {newest - 1}, this program needs {newest}: migrate it first" in daemon.log()
    assert store.semel("migrate").out == f"schema {newest - 1} -> {newest}\n"
    with daemon:
        daemon.ready()
        assert post(listen, "pay-1") == 202


def test_a_running_program_serves_a_newer_schema_until_it_reconnects(tmp_path, pg):
    newer = (f"the database has schema version {len(FILES) + 1}, this program knows versions up to {len(FILES)}: use a "
             f"newer program")
    listen = Listen()
    pg.sql(LEDGER)
    with Daemon(tmp_path, settings(pg, listen)) as daemon:
        daemon.ready()
        pg.sql(f"INSERT INTO semel.schema VALUES ({len(FILES) + 1}, 'next')")
        assert post(listen, "pay-1") == 202

        # It does not end, takes nothing, and reports why, whenever it has tried and while it waits.
        pg.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
               " AND pid <> pg_backend_pid()")
        daemon.until(lambda: newer in daemon.log(), "it reports the newer schema")
        reasons = [daemon.get("/readyz")[1]]
        def tried():
            reasons.append(daemon.get("/readyz")[1])
            return [line["error"] for line in daemon.lines("cannot reach the store; retrying")]
        daemon.until(lambda: tried().count(newer) > 2, "it has tried again")
        assert all(newer in reason for reason in reasons), reasons
        assert set(tried()[tried().index(newer):]) == {newer}
        assert post(listen, "pay-2") == 503 and daemon.get("/readyz")[0] == 503

        # Applications that call the functions are of no version.
        pg.sql("BEGIN; SELECT act FROM semel.inbox_begin('mailer', 'm-1', payload => '{}');"
               " SELECT semel.inbox_done('mailer', 'm-1'); COMMIT")

    again = Daemon(tmp_path, settings(pg, listen), name="again").start()
    assert again.wait() == 5 and newer in again.log()
    assert pg.sql("SELECT payment FROM ledger") == [("pay-1",)]


# ---- the locks of the migrations


MODES = {"ShareLock": "SHARE", "ShareRowExclusiveLock": "SHARE ROW EXCLUSIVE",
         "AccessExclusiveLock": "ACCESS EXCLUSIVE"}  # from weak to strong


def documented_locks():
    """{number: {table: mode}} of the table in docs/upgrading.md."""
    text = (SOURCE / "docs" / "upgrading.md").read_text(encoding="utf-8")
    told = {}
    for number, cell in re.findall(r"^\| (\d+) `\w+` \| (.*?) \|", text, re.MULTILINE):
        told[int(number)] = {table: part.split("` ")[-1] for part in cell.split("; ")
                             for table in re.findall(r"`(\w+)`", part)}
    return told


def taken_locks(database, file):
    """Runs a migration; of each table that was there before, the strongest lock that keeps writers out."""
    rows = database.sql(f"""
        BEGIN;
        CREATE TEMPORARY TABLE before ON COMMIT DROP AS SELECT oid FROM pg_class;
        {file.read_text(encoding="utf-8")}
        SELECT c.relname, l.mode FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'semel' AND c.relkind IN ('r', 'v') AND c.relname <> 'schema' AND l.pid = pg_backend_pid()
          AND c.oid IN (SELECT oid FROM pg_temp.before);
        COMMIT""")
    order = list(MODES)
    kept = sorted((row for row in rows if row[1] in MODES), key=lambda row: order.index(row[1]))
    return {table: MODES[mode] for table, mode in kept}


def test_each_migration_takes_the_locks_that_are_documented(empty_pg):
    taken = {number: taken_locks(empty_pg, file) for number, file in enumerate(FILES, 1)}
    assert {number: locks for number, locks in taken.items() if locks} == documented_locks()


def test_a_migration_that_waits_for_a_lock_gives_up_and_has_changed_nothing(pg):
    last = FILES[-1].stem
    pg.sql(f"DELETE FROM semel.schema WHERE version = {len(FILES)}")
    holder = subprocess.Popen(["psql", "-XAtq", pg.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    holder.stdin.write("BEGIN; LOCK TABLE semel.schema IN EXCLUSIVE MODE; SELECT pg_backend_pid();\n")
    holder.stdin.flush()
    pid = holder.stdout.readline().strip()
    refused = pg.semel("migrate")
    assert refused.code == 5 and "lock timeout" in refused.err, refused
    assert f"migration {len(FILES)} ({last.split('_', 1)[1]}) changed nothing" in refused.err, refused
    holders = pg.sql(refused.err.split("; who holds locks: ")[1])
    assert [row[0] for row in holders if row[3] == "semel.schema"] == [pid]
    holder.communicate("ROLLBACK;\n")
    assert pg.sql("SELECT max(version) FROM semel.schema") == [(str(len(FILES) - 1),)]
