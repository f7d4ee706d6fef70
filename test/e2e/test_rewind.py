# SPDX-License-Identifier: MIT
"""`semel rewind` on both stores: shows positions, and sets them back with a reason, an audit line and a new epoch."""
import os
import pathlib
import subprocess

import pytest

from conftest import binary, run
from pg import Database, pg_server  # noqa: F401 (fixtures)


class Kept:
    """A store with positions in it, and the same plain SQL on both kinds."""

    def __init__(self, store, postgres):
        self.store, self.postgres, self.semel, self.url = store, postgres, store.semel, store.url
        self.sql("DELETE FROM semel.position")
        self.sql("DELETE FROM semel.audit")
        for row in (("billing", "payments", 0, 100, 3), ("billing", "payments", 3, 2000, 1),
                    ("billing", "refunds", 0, None, 2), ("mailer", "payments", 0, 7, 1)):
            self.add(*row)

    def add(self, consumer, source, partition, offset, epoch):
        now = "now()" if self.postgres else "1700000000000000"
        text = "NULL" if offset is None else str(offset)
        self.sql(f"INSERT INTO semel.position VALUES ('{consumer}', '{source}', {partition}, {text}, {epoch}, {now})")

    def sql(self, text):
        if not self.postgres:
            text = text.replace("semel.", "semel_")
        return [tuple("" if value is None else str(value) for value in row) for row in self.store.sql(text)]

    def positions(self, consumer="billing"):
        return self.sql("SELECT source, partition, next_offset, epoch FROM semel.position "
                        f"WHERE consumer = '{consumer}' ORDER BY source, partition")

    def audits(self):
        return self.sql("SELECT who, what, reason, consumer, source FROM semel.audit ORDER BY id")


BEFORE = [("payments", "0", "100", "3"), ("payments", "3", "2000", "1"), ("refunds", "0", "", "2")]


@pytest.fixture(scope="module")
def pg(pg_server):  # noqa: F811
    """One database for all tests of this file: each begins by emptying the two tables that it needs."""
    if run("migrate", "--print", "--store-kind", "postgres").code != 0:
        pytest.skip("this program was built without PostgreSQL")
    made = Database(pg_server, "books")
    assert made.semel("migrate").code == 0
    return made


@pytest.fixture(params=["sqlite", "postgres"])
def kept(request):
    if request.param == "sqlite":
        return Kept(request.getfixturevalue("store"), False)
    return Kept(request.getfixturevalue("pg"), True)


def test_positions_are_listed(kept):
    listed = kept.semel("rewind", "billing", "--json")
    assert listed.code == 0, listed
    assert [(p["source"], p["partition"], p["offset"], p["epoch"]) for p in listed.json] == [
        ("payments", 0, 100, 3), ("payments", 3, 2000, 1), ("refunds", 0, None, 2)]
    assert all(p["updated_at"].endswith("Z") for p in listed.json)
    shown = kept.semel("rewind", "billing", "--source", "payments", "-p", 3)
    assert shown.code == 0 and "2000" in shown.out and "refunds" not in shown.out, shown
    assert kept.positions() == BEFORE and kept.audits() == []


# I23, P42
def test_one_position_is_set_back_with_a_new_epoch_and_an_audit_line(kept):
    done = kept.semel("rewind", "billing", "--source", "payments", "--partition", 3, "--to", 1200, "--reason",
                      "ticket 811", "--yes", "--json", env={"SEMEL_USER": "ann"})
    assert done.code == 0, done
    assert done.json == [{"source": "payments", "partition": 3, "from": 2000, "to": 1200, "result": "done"}]
    assert kept.positions() == [BEFORE[0], ("payments", "3", "1200", "2"), BEFORE[2]]
    assert kept.audits() == [("ann", "rewind: partition 3 from 2000 to 1200", "ticket 811", "billing", "payments")]
    assert kept.positions("mailer") == [("payments", "0", "7", "1")]


def test_all_are_taken_away_so_that_the_route_decides(kept):
    done = kept.semel("rewind", "billing", "--all", "--to", "earliest", "--reason", "rebuild", "--yes")
    assert done.code == 0 and "fenced off" in done.out, done
    assert kept.positions() == [("payments", "0", "", "4"), ("payments", "3", "", "2"), ("refunds", "0", "", "3")]
    assert [what for _, what, *_ in kept.audits()] == [
        "rewind: partition 0 from 100 to none", "rewind: partition 3 from 2000 to none",
        "rewind: partition 0 from none to none"]
    one = kept.semel("rewind", "mailer", "--source", "payments", "--to", "earliest", "--reason", "rebuild", "--yes")
    assert one.code == 0 and kept.positions("mailer") == [("payments", "0", "", "2")]


def test_dry_run_changes_nothing_and_needs_no_reason(kept):
    dry = kept.semel("rewind", "billing", "--source", "payments", "--partition", 0, "--to", 0, "--dry-run", "--json")
    assert dry.code == 0, dry
    assert dry.json == [{"source": "payments", "partition": 0, "from": 100, "to": 0, "result": "would"}]
    shown = kept.semel("rewind", "billing", "--all", "--to", "earliest", "--dry-run")
    assert shown.code == 0 and "nothing was changed" in shown.out
    assert kept.positions() == BEFORE and kept.audits() == []


def test_without_a_reason_or_a_yes_nothing_is_set(kept):
    there = ("rewind", "billing", "--source", "payments", "--partition", 0, "--to", 5)
    silent = kept.semel(*there, "--yes")
    assert silent.code == 4 and "--reason" in silent.err, silent
    unasked = kept.semel(*there, "--reason", "x")
    assert unasked.code == 2 and "--yes" in unasked.err, unasked
    assert kept.semel(*there, "--reason", "", "--yes").code == 2
    assert kept.positions() == BEFORE and kept.audits() == []


def test_forward_goes_only_by_force(kept):
    """What lies between is never read."""
    ahead = ("rewind", "billing", "--source", "payments", "--partition", 0, "--to", 101, "--reason", "x", "--yes")
    refused = kept.semel(*ahead)
    assert refused.code == 4 and "is at 100" in refused.err and "--force" in refused.err, refused
    unknown = kept.semel("rewind", "billing", "--source", "payments", "-p", 9, "--to", 0, "--reason", "x", "-y")
    assert unknown.code == 4 and "no position is stored" in unknown.err, unknown
    assert kept.positions() == BEFORE and kept.audits() == []
    assert kept.semel(*ahead, "--force").code == 0
    assert kept.positions()[0] == ("payments", "0", "101", "4")
    seeded = kept.semel("rewind", "new", "--source", "payments", "--partition", 9, "--to", 0, "--reason", "x", "-y",
                        "--force")
    assert seeded.code == 0 and kept.positions("new") == [("payments", "9", "0", "1")]


def test_what_is_not_there_is_exit_code_3(kept):
    for words in (["nobody"], ["billing", "--source", "other"], ["billing", "--source", "payments", "-p", 77],
                  ["nobody", "--all", "--to", "earliest", "--reason", "x", "--yes"]):
        missing = kept.semel("rewind", *words)
        assert missing.code == 3 and "no position of" in missing.err, missing
    assert kept.audits() == []


@pytest.mark.parametrize("words, says", [
    (["--to", "5"], "say which"),
    (["--all", "--to", "5"], "one partition"),
    (["--source", "payments", "--to", "5"], "one partition"),
    (["--all", "--source", "payments", "--to", "earliest"], "neither --source"),
    (["--source", "payments", "-p", "0", "--to", "-1"], "whole number from 0"),
    (["--source", "payments", "-p", "0", "--to", "9223372036854775807"], "whole number from 0"),
    (["--source", "payments", "-p", "0", "--to", "latest"], "earliest"),
    (["--source", "payments", "-p", "-1", "--to", "1"], "partition"),
    (["--source", "payments", "-p", "2147483648", "--to", "1"], "partition"),
    (["--source", "x" * 256, "-p", "0", "--to", "1"], "source"),
    (["--all"], "--to"),
    (["--yes"], "--to"),
])
def test_wrong_command_lines_are_refused_before_the_store_is_opened(words, says):
    wrong = run("rewind", "billing", *words, "--reason", "x", "--store", "sqlite:/nowhere/at/all.db")
    assert wrong.code == 2 and says in wrong.err, wrong


@pytest.mark.parametrize("word, code, says", [(b"n\n", 1, b"nothing was done"), (b"y\n", 0, b"fenced off")])
def test_it_asks_on_a_terminal(store, word, code, says):
    kept = Kept(store, False)
    ours, theirs = os.openpty()
    os.write(ours, word)
    done = subprocess.run([binary(), "rewind", "billing", "--all", "--to", "earliest", "--reason", "x", "--store",
                           kept.url], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False)
    os.close(theirs)
    seen = os.read(ours, 4096) + done.stdout
    os.close(ours)
    assert done.returncode == code and b"set 3 positions? [y/N]" in seen and says in seen, seen
    assert (kept.positions() == BEFORE) == (code != 0)


def test_damaged_row_is_told_and_left_alone(store):
    kept = Kept(store, False)
    kept.sql("CREATE TABLE t AS SELECT * FROM semel.position")
    kept.sql("DROP TABLE semel.position")
    kept.sql("ALTER TABLE t RENAME TO semel.position")
    kept.sql("UPDATE semel.position SET next_offset = -5 WHERE partition = 3")
    told = kept.semel("rewind", "billing")
    assert told.code != 0 and "damaged row in semel_position" in told.err and "next_offset" in told.err, told


def test_operator_may_rewind_and_the_application_may_not(pg, pg_server):
    kept = Kept(pg, True)
    roles = pathlib.Path(os.environ["SEMEL_SOURCE"]) / "sql" / "postgres" / "roles.sql"
    pg_server.psql(pg.name, roles.read_text(encoding="utf-8"))
    pg_server.psql(pg.name, "CREATE ROLE ops LOGIN IN ROLE semel_operator; CREATE ROLE shop LOGIN IN ROLE semel_app;")
    url = pg.url.replace("postgres@", "ops@")
    assert url != pg.url
    done = run("rewind", "billing", "--source", "payments", "-p", 0, "--to", 1, "--reason", "x", "-y", "--store", url)
    assert done.code == 0 and kept.positions()[0] == ("payments", "0", "1", "4"), done
    denied = run("rewind", "billing", "--store", pg.url.replace("postgres@", "shop@"))
    assert denied.code == 5 and "permission denied" in denied.err, denied


def test_position_cannot_be_moved_back_by_hand(pg, pg_server):
    """The last line: the table itself."""
    kept = Kept(pg, True)
    refused = pg_server.psql(pg.name, "UPDATE semel.position SET next_offset = 1 WHERE partition = 3", check=False)
    assert "goes back only with a new epoch" in refused.stderr, refused
    assert kept.positions() == BEFORE
