# SPDX-License-Identifier: MIT
"""The loadable extension and its host: closing, loading twice, versions of SQLite, what is visible."""
import collections
import ctypes
import os
import pathlib
import re
import sqlite3
import subprocess
import sys

import pytest
from test_extension import begin, connect, count, db, handle, path  # pylint: disable=unused-import

HEADER = pathlib.Path("/usr/include/sqlite3ext.h")
SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])


class Native:
    """libsqlite3 itself, for what Python's module hides."""

    def __init__(self):
        self.lib = ctypes.CDLL("libsqlite3.so.0")
        self.lib.sqlite3_errmsg.restype = ctypes.c_char_p

    def open(self, path, extension):
        db = ctypes.c_void_p()
        assert self.lib.sqlite3_open(path.encode(), ctypes.byref(db)) == 0
        assert self.lib.sqlite3_enable_load_extension(db, 1) == 0
        assert self.lib.sqlite3_load_extension(db, extension.encode(), None, None) == 0, self.lib.sqlite3_errmsg(db)
        return db

    def run(self, db, sql):
        return self.lib.sqlite3_exec(db, sql.encode(), None, None, None)


ROUND = """BEGIN IMMEDIATE;
    SELECT * FROM semel_inbox_begin('c', '{0}'); SELECT semel_inbox_done('c', '{0}'); COMMIT;
    SELECT semel_consumer('c');"""


def test_connection_closes_cleanly_and_leaks_nothing(path, extension):
    native = Native()

    class Mallinfo2(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in
                    "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo2

    def rounds(first, last):
        for i in range(first, last):
            db = native.open(path, extension)
            assert native.run(db, "SELECT semel_migrate();" + ROUND.format(i)) == 0, native.lib.sqlite3_errmsg(db)
            assert native.lib.sqlite3_close(db) == 0, native.lib.sqlite3_errmsg(db)
        return libc.mallinfo2().uordblks

    # malloc's caches and the table grow at first. A leak would be in every hundred; malloc gives no less than 32 bytes.
    used = [rounds(n, n + 100) for n in range(0, 1500, 100)]
    assert min(after - before for before, after in zip(used, used[1:])) < 100 * 32


@pytest.mark.parametrize("use", ["SELECT semel_consumer('c')", "SELECT * FROM semel_inbox_take('c')",
                                 "BEGIN IMMEDIATE; SELECT * FROM semel_inbox_begin('c', 'i')", "SELECT 1"])
def test_connection_closes_whatever_was_used_last(path, extension, use):
    connect(path, extension, migrate=True).close()
    native = Native()
    db = native.open(path, extension)
    native.run(db, use)
    assert native.lib.sqlite3_close(db) == 0, native.lib.sqlite3_errmsg(db)


# P59
def test_begin_without_done_cannot_commit_even_after_a_close_that_was_refused(path, extension):
    connect(path, extension, migrate=True).close()
    native = Native()
    db, stmt = native.open(path, extension), ctypes.c_void_p()
    assert native.run(db, "BEGIN IMMEDIATE; SELECT * FROM semel_inbox_begin('c', 'i');") == 0
    assert native.lib.sqlite3_prepare_v2(db, b"SELECT 1", -1, ctypes.byref(stmt), None) == 0
    assert native.lib.sqlite3_close(db) == 5  # SQLITE_BUSY
    assert native.run(db, "SELECT semel_inbox_done('c', 'i')") == 1
    assert b"ROLLBACK first" in native.lib.sqlite3_errmsg(db)
    assert native.run(db, "COMMIT") & 0xff == 19  # SQLITE_CONSTRAINT
    assert native.run(db, ROUND.format("j")) == 0, native.lib.sqlite3_errmsg(db)
    native.lib.sqlite3_finalize(stmt)
    assert native.lib.sqlite3_close(db) == 0
    rows = sqlite3.connect(path).execute("SELECT message_id, status FROM semel_inbox").fetchall()
    assert rows == [("j", "completed")]


def test_message_that_was_begun_survives_a_second_load(db, extension):
    db.execute("BEGIN IMMEDIATE")
    begin(db, "id-1")
    db.load_extension(extension)
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("COMMIT")
    db.execute("BEGIN IMMEDIATE")
    begin(db, "id-1")
    db.load_extension(extension)
    assert db.execute("SELECT semel_inbox_done('billing', 'id-1')").fetchone() == (1,)
    db.execute("COMMIT")
    assert handle(db, "id-1") == ("ack", "duplicate")


# P59
@pytest.mark.parametrize("mode", ["interrupt", "abort"])
def test_call_that_was_interrupted_leaves_nothing_that_can_commit(db, mode):
    """At every place where SQLite looks whether it is to stop, which then stops the undoing too."""
    ends, steps, stop_at, told = collections.Counter(), 0, 0, None

    def progress():
        nonlocal steps
        steps += 1
        if mode == "interrupt" and steps == stop_at:
            db.interrupt()
        return mode == "abort" and steps >= stop_at

    while told is None:
        stop_at, steps = stop_at + 1, 0
        db.execute("BEGIN IMMEDIATE")
        db.set_progress_handler(progress, 1)
        try:
            told = begin(db, "id-1", business_key="b")
        except sqlite3.OperationalError:
            db.set_progress_handler(None, 0)
            ends["rolled back" if not db.in_transaction else "left" if count(db) else "undone"] += 1
            try:
                db.execute("COMMIT")
            except sqlite3.Error:
                pass
            assert count(db) == 0
        db.set_progress_handler(None, 0)
    assert ends["rolled back"] and ends["left"] and ends["undone"]
    db.execute("ROLLBACK")
    assert handle(db, "id-1") == ("run", "new")


# P59
def test_release_of_the_outermost_savepoint_is_a_commit_and_refused_like_one(db):
    db.execute("SAVEPOINT all_of_it")
    begin(db, "id-1")
    db.execute("INSERT INTO ledger VALUES ('id-1', 1)")
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("RELEASE all_of_it")
    if db.in_transaction:  # as some versions of SQLite have it
        db.execute("ROLLBACK")
    assert (count(db), count(db, "ledger")) == (0, 0)
    db.execute("SAVEPOINT all_of_it")
    begin(db, "id-1")
    assert db.execute("SELECT semel_inbox_done('billing', 'id-1')").fetchone() == (1,)
    db.execute("RELEASE all_of_it")
    assert handle(db, "id-1") == ("ack", "duplicate")


# P59
def test_done_that_a_savepoint_took_back_can_be_done_again_and_must_be(db):
    for again in (False, True):
        db.execute("BEGIN IMMEDIATE")
        begin(db, "id-1")
        db.execute("SAVEPOINT effect")
        db.execute("SELECT semel_inbox_done('billing', 'id-1')").fetchall()
        db.execute("ROLLBACK TO effect")
        db.execute("INSERT INTO ledger VALUES ('id-1', 1)")
        if again:
            assert db.execute("SELECT semel_inbox_done('billing', 'id-1')").fetchone() == (1,)
            db.execute("COMMIT")
        else:
            with pytest.raises(sqlite3.IntegrityError):
                db.execute("COMMIT")
        assert count(db, "ledger") == again
    assert handle(db, "id-1") == ("ack", "duplicate")


def test_last_insert_rowid_is_that_of_the_programs_own_insert(db):
    db.execute("BEGIN IMMEDIATE")
    begin(db, "id-1")
    db.execute("INSERT INTO ledger (rowid, message_id, amount) VALUES (77, 'id-1', 1)")
    db.execute("SELECT semel_outbox_put('account', 'a', 'charged')").fetchall()
    db.execute("SELECT semel_inbox_done('billing', 'id-1')").fetchall()
    assert db.execute("SELECT last_insert_rowid()").fetchone() == (77,)
    db.execute("COMMIT")


def api_members():
    """The host's table of functions, in its order, and the version in which each came."""
    text = HEADER.read_text(encoding="utf-8")
    body = text[text.index("struct sqlite3_api_routines {"):text.index("typedef int (*sqlite3_loadext_entry)")]
    version, members = "3.0.0", []
    for match in re.finditer(r"Version ([\d.]+) and later|\(\*\s*(\w+)\)\s*\(", body):
        if match[1]:
            version = match[1]
        elif not re.match("x[A-Z]", match[2]):  # not the argument of another
            members.append((match[2], tuple(map(int, version.split(".")))))
    return members


needs_header = pytest.mark.skipif(not HEADER.exists(), reason="sqlite3ext.h is not installed")


class Host:
    """A SQLite that says which version it is, and can do nothing else."""

    def __init__(self, number, name):
        names = [member for member, _ in api_members()]
        self.table = (ctypes.c_void_p * len(names))()
        text = ctypes.create_string_buffer(name)
        self.keep = [ctypes.CFUNCTYPE(ctypes.c_int)(lambda: number), text,
                     ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(text)),
                     ctypes.CDLL("libsqlite3.so.0").sqlite3_mprintf]
        for member, function in [("libversion_number", 0), ("libversion", 2), ("mprintf", 3)]:
            self.table[names.index(member)] = ctypes.cast(self.keep[function], ctypes.c_void_p)

    def load(self, extension):
        why = ctypes.c_char_p()
        code = ctypes.CDLL(extension + ".so").sqlite3_semel_init(None, ctypes.byref(why), self.table)
        return code, why.value


@needs_header
def test_host_that_is_too_old_is_told_what_is_needed(extension):
    assert Host(3036000, b"3.36.0").load(extension) == (
        1, b"semel needs SQLite 3.37.0 or newer; this program has 3.36.0")


@needs_header
def test_second_copy_of_sqlite_in_one_process_is_refused(db, extension):
    code, why = Host(3040001, b"3.40.1").load(extension)
    assert code == 1 and b"another copy of SQLite" in why
    assert handle(db, "id-1") == ("run", "new")


@needs_header
def test_nothing_is_called_that_the_oldest_host_does_not_have():
    too_new = {"sqlite3_" + name for name, version in api_members() if version > (3, 37, 0)}
    for file in [*SOURCE.glob("src/store/sqlite*"), *SOURCE.glob("src/ext/*.[ch]")]:
        used = set(re.findall(r"\bsqlite3_\w+", file.read_text(encoding="utf-8")))
        assert not used & too_new, file


LISTEN = """
import ctypes, sys
lib = ctypes.CDLL("libsqlite3.so.0")
lib.sqlite3_errmsg.restype = ctypes.c_char_p
lines = []
log = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(lambda _, code, line: lines.append(line))
assert lib.sqlite3_config(16, log, None) == 0  # SQLITE_CONFIG_LOG
db = ctypes.c_void_p()
assert lib.sqlite3_open(b":memory:", ctypes.byref(db)) == 0
assert lib.sqlite3_enable_load_extension(db, 1) == 0
assert lib.sqlite3_load_extension(db, sys.argv[1].encode(), None, None) == 0
for sql in sys.argv[2:]:
    lines.clear()
    assert lib.sqlite3_exec(db, sql.encode(), None, None, None) == 0, lib.sqlite3_errmsg(db)
    print([line.decode() for line in lines if line.startswith(b"semel")])
"""


# A3 P75: SQLite has no NOTICE; its error log is where a host learns such things.
def test_versions_over_keys_that_exist_leave_a_line_in_the_log_of_sqlite(extension):
    steps = ["SELECT semel_migrate(); BEGIN IMMEDIATE; SELECT semel_consumer('o', '{\"order\": \"arrival\"}');"
             "SELECT * FROM semel_inbox_put('o', 'a') WHERE payload = '{}' AND order_key = 'k'; COMMIT;",
             "BEGIN IMMEDIATE; SELECT semel_consumer('o', '{\"order\": \"version\"}'); COMMIT;",
             "SELECT semel_consumer('o');",
             "BEGIN IMMEDIATE; SELECT semel_consumer('o', '{\"first_version\": \"any\"}'); COMMIT;"]
    done = subprocess.run([sys.executable, "-c", LISTEN, extension, *steps], capture_output=True, text=True, timeout=60,
                          check=False)
    note = ['semel_consumer: order keys exist already: is first_version "any" right for them?']
    assert (done.returncode, done.stdout.splitlines()) == (0, [str(x) for x in ([], note, [], [])]), done


# A4: as PostgreSQL's functions warn
def test_key_that_is_a_time_leaves_a_line_in_the_log_of_sqlite(extension):
    steps = ["SELECT semel_migrate(); BEGIN IMMEDIATE; SELECT * FROM semel_key_begin('s', '1763398800'); ROLLBACK",
             "BEGIN IMMEDIATE; SELECT * FROM semel_key_begin('s', 'order 1763398800'); ROLLBACK",
             "BEGIN IMMEDIATE; SELECT * FROM semel_key_claim('s', '2026-11-17'); COMMIT"]
    done = subprocess.run([sys.executable, "-c", LISTEN, extension, *steps], capture_output=True, text=True, timeout=60,
                          check=False)
    lines = [[f'{who}: key "{key}" is a time and nothing else: requests of one moment would share it; use a UUID']
             for who, key in (("semel_key_begin", "1763398800"), ("semel_key_claim", "2026-11-17"))]
    assert (done.returncode, done.stdout.splitlines()) == (0, [str(x) for x in (lines[0], [], lines[1])]), done


def test_one_symbol_is_visible_and_no_sqlite_is_brought_along(extension):
    defined = subprocess.run(["nm", "-D", "--defined-only", extension + ".so"], capture_output=True, text=True,
                             check=True).stdout
    assert [line.split()[-1] for line in defined.splitlines()] == ["sqlite3_semel_init"]
    needed = subprocess.run(["readelf", "-d", extension + ".so"], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"NEEDED.*\[(.*)\]", needed)
    assert libraries and not any("sqlite" in name or "san" in name for name in libraries)


# ---- docs/sql.md ---------------------------------------------------------------------------------------

def manual(language, tmp_path, extension):
    """The one example of that language, and the folder that it wants to run in."""
    os.symlink(extension + ".so", tmp_path / "semel.so")
    text = (SOURCE / "docs" / "sql.md").read_text(encoding="utf-8")
    block, = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names = set(re.findall(r'"(semel_\w+)"', "".join(
        file.read_text(encoding="utf-8") for file in SOURCE.glob("src/ext/*.c"))))
    # Idempotency keys have examples of their own (docs/idempotency.md).
    missing = {name for name in names
               if name + "(" not in text or (name not in block and not name.startswith("semel_key_"))}
    assert len(names) == 23 and not missing
    return block


def test_shell_session_of_the_manual_prints_what_it_says(tmp_path, extension):
    block = manual("sql", tmp_path, extension)
    done = subprocess.run(["sqlite3", "-batch", "shop.db"], input=block, capture_output=True, text=True, cwd=tmp_path,
                          timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == re.findall(r"^--> (.*)$", block, re.MULTILINE)


def test_program_of_the_manual_runs(tmp_path, extension):
    block = manual("python", tmp_path, extension)
    done = subprocess.run([sys.executable, "-"], input=block, capture_output=True, text=True, cwd=tmp_path, timeout=60,
                          check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines()[0] == "[('evt-1', 'completed'), ('evt-2', 'dead')]"
