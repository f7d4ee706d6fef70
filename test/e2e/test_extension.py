# SPDX-License-Identifier: MIT
"""The loadable extension as its users meet it: from the sqlite3 shell, from Python, and beside the command line."""
import collections
import json
import multiprocessing
import random
import re
import sqlite3
import subprocess

import pytest

from conftest import poll

if not hasattr(sqlite3.Connection, "enable_load_extension"):
    pytest.skip("this Python's sqlite3 cannot load extensions", allow_module_level=True)

DEADLINE_S = 30


# ---- helpers -------------------------------------------------------------------------------------------

def connect(path, extension, migrate=False):
    db = sqlite3.connect(path, timeout=DEADLINE_S, isolation_level=None)
    db.enable_load_extension(True)
    db.load_extension(extension)
    if migrate:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("SELECT semel_migrate()")
        db.execute("CREATE TABLE ledger (message_id TEXT, amount INTEGER CHECK (amount > 0))")
    return db


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "shop.db")


@pytest.fixture
def db(path, extension):
    made = connect(path, extension, migrate=True)
    yield made
    made.close()


def call(db, function, **arguments):
    """A table-valued function by named arguments: its rows, as dictionaries."""
    where = " AND ".join(f"{name} = :{name}" for name in arguments)
    cursor = db.execute(f"SELECT * FROM {function} WHERE {where}", arguments)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row)) for row in cursor.fetchall()]


def begin(db, message_id, consumer="billing", **more):
    return call(db, "semel_inbox_begin", consumer=consumer, message_id=message_id, **more)[0]


def handle(db, message_id, amount=1, **more):
    """What a consumer does with a delivery; says what it was told."""
    db.execute("BEGIN IMMEDIATE")
    told = begin(db, message_id, payload=json.dumps({"amount": amount}), **more)
    if told["act"] == "run":
        db.execute("INSERT INTO ledger VALUES (?, ?)", (message_id, amount))
        db.execute("SELECT semel_inbox_done('billing', ?)", (message_id,))
    db.execute("COMMIT" if told["act"] != "later" else "ROLLBACK")
    return told["act"], told["why"]


def count(db, table="semel_inbox"):
    return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def refused(db, sql, *values):
    with pytest.raises(sqlite3.Error) as caught:
        db.execute(sql, values).fetchall()
    return str(caught.value)


def in_transaction(db, sql, *values):
    db.execute("BEGIN IMMEDIATE")
    rows = db.execute(sql, values).fetchall()
    db.execute("COMMIT")
    return rows


def shell(path, extension, script):
    done = subprocess.run(["sqlite3", "-batch", "-cmd", f".load {extension}", path], input=script,
                          capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done.returncode, done.stdout.split("\n")[:-1], done.stderr


# ---- the shell -----------------------------------------------------------------------------------------

# I2, I5, T6
def test_message_is_begun_done_and_a_duplicate_in_the_shell(path, extension):
    code, out, err = shell(path, extension, """
        SELECT semel_version();
        SELECT semel_migrate() > 0;
        CREATE TABLE ledger (message_id TEXT);
        BEGIN IMMEDIATE;
        SELECT act, why, attempt FROM semel_inbox_begin('billing', 'id-1');
        INSERT INTO ledger VALUES ('id-1');
        SELECT semel_inbox_done('billing', 'id-1', '', '{"paid":true}');
        COMMIT;
        BEGIN IMMEDIATE;
        SELECT act, why, outcome FROM semel_inbox_begin('billing', 'id-1');
        COMMIT;
        SELECT count(*) FROM ledger;
        SELECT status, attempts FROM semel_inbox;
        """)
    assert (code, err) == (0, "")
    assert out[1:] == ["1", "run|new|1", "1", 'ack|duplicate|{"paid":true}', "1", "completed|1"]


# P59
def test_begin_without_done_cannot_commit_in_the_shell_and_leaves_nothing(path, extension):
    code, out, err = shell(path, extension, """
        SELECT semel_migrate() > 0;
        CREATE TABLE ledger (message_id TEXT);
        BEGIN IMMEDIATE;
        SELECT act FROM semel_inbox_begin('billing', 'id-1');
        INSERT INTO ledger VALUES ('id-1');
        COMMIT;
        SELECT count(*) FROM semel_inbox;
        SELECT count(*) FROM ledger;
        """)
    assert code == 1 and "constraint failed" in err
    assert out == ["1", "run", "0", "0"]


def test_shell_that_ends_in_the_middle_of_a_transaction_leaves_nothing(path, extension):
    code, out, _ = shell(path, extension, """
        SELECT semel_migrate() > 0;
        BEGIN IMMEDIATE;
        SELECT act FROM semel_inbox_begin('billing', 'id-1');
        """)
    assert (code, out) == (0, ["1", "run"])
    assert shell(path, extension, "SELECT count(*) FROM semel_inbox;")[1] == ["0"]


# ---- begin, done, fail ---------------------------------------------------------------------------------

# I3, I9, T6
def test_message_runs_once_and_its_duplicate_gets_the_outcome(db):
    db.execute("BEGIN IMMEDIATE")
    assert begin(db, "id-1", payload='{"amount": 7}') == {"act": "run", "why": "new", "attempt": 1, "outcome": None}
    db.execute("INSERT INTO ledger VALUES ('id-1', 7)")
    db.execute("SELECT semel_inbox_done('billing', 'id-1', '', '{\"receipt\":7}')")
    db.execute("COMMIT")
    db.execute("BEGIN IMMEDIATE")
    # A5: white space makes no conflict
    told = begin(db, "id-1", payload='{ "amount":7 }')
    db.execute("COMMIT")
    assert (told["act"], told["why"], told["outcome"]) == ("ack", "duplicate", '{"receipt":7}')
    assert db.execute("SELECT message_id, amount FROM ledger").fetchall() == [("id-1", 7)]


# I11
def test_same_id_with_another_payload_is_a_conflict_and_kept(db):
    assert handle(db, "id-1", 7) == ("run", "new")
    assert handle(db, "id-1", 8) == ("ack", "conflict")
    assert (count(db, "ledger"), count(db, "semel_conflict")) == (1, 1)


# I10, T8
def test_same_intent_under_another_id_is_prevented(db):
    assert handle(db, "id-1", business_key="order-1") == ("run", "new")
    assert handle(db, "id-2", business_key="order-1") == ("ack", "business_duplicate")
    assert count(db, "ledger") == 1


# P59
def test_begin_without_done_cannot_commit_and_leaves_nothing(db):
    db.execute("BEGIN IMMEDIATE")
    begin(db, "id-1")
    db.execute("INSERT INTO ledger VALUES ('id-1', 1)")
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("COMMIT")
    assert (db.in_transaction, count(db), count(db, "ledger")) == (False, 0, 0)
    assert handle(db, "id-1") == ("run", "new")


# P59
def test_error_that_a_savepoint_swallowed_does_not_leave_a_record_without_its_effect(db):
    db.execute("BEGIN IMMEDIATE")
    begin(db, "id-1")
    db.execute("SAVEPOINT effect")
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("INSERT INTO ledger VALUES ('id-1', -1)")
    db.execute("ROLLBACK TO effect")
    db.execute("RELEASE effect")
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("COMMIT")
    assert (count(db), count(db, "ledger")) == (0, 0)


# P59
def test_done_of_a_begin_that_a_savepoint_took_back_is_refused(db):
    db.execute("BEGIN IMMEDIATE")
    db.execute("SAVEPOINT message")
    begin(db, "id-1")
    db.execute("ROLLBACK TO message")
    assert "rolled back" in refused(db, "SELECT semel_inbox_done('billing', 'id-1')")
    db.execute("INSERT INTO ledger VALUES ('other', 1)")
    db.execute("COMMIT")
    assert (count(db), count(db, "ledger")) == (0, 1)


@pytest.mark.parametrize("end", ["SELECT semel_inbox_done('billing', 'id-1')",
                                 "SELECT semel_inbox_done_many('billing', '[{\"message_id\": \"id-1\"}]')",
                                 "SELECT * FROM semel_inbox_fail WHERE consumer = 'billing' AND message_id = 'id-1' "
                                 "AND class = 'transient'"])
def test_end_that_a_savepoint_took_back_leaves_the_begin_open(db, end):  # P59
    for again in (False, True):
        db.execute("SAVEPOINT outermost")
        begin(db, "id-1")
        begin(db, "id-2")
        db.execute("INSERT INTO ledger VALUES ('id-1', 1)")
        db.execute("SELECT semel_inbox_done('billing', 'id-2')").fetchall()
        db.execute("SAVEPOINT s")
        db.execute("SAVEPOINT inner")
        db.execute(end).fetchall()
        db.execute("RELEASE inner")
        db.execute("ROLLBACK TO s")
        if again:
            db.execute(end).fetchall()
            db.execute("COMMIT")
        else:
            with pytest.raises(sqlite3.IntegrityError):
                db.execute("COMMIT")
        assert (count(db), count(db, "ledger")) == (2 * again, again)


# P58
def test_statement_that_ends_the_transaction_takes_the_begin_with_it(db):
    db.execute("CREATE UNIQUE INDEX once ON ledger (message_id)")
    db.execute("INSERT INTO ledger VALUES ('id-1', 1)")
    db.execute("BEGIN IMMEDIATE")
    begin(db, "id-1")
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("INSERT OR ROLLBACK INTO ledger VALUES ('id-1', 1)")
    assert "open a transaction first" in refused(db, "SELECT semel_inbox_done('billing', 'id-1')")
    assert (db.in_transaction, count(db)) == (False, 0)


def test_done_without_begin_is_refused(db):
    db.execute("BEGIN IMMEDIATE")
    assert "not begun" in refused(db, "SELECT semel_inbox_done('billing', 'id-1')")
    db.execute("COMMIT")
    assert count(db) == 0


def many(db, function, *messages):
    return call(db, f"semel_inbox_{function}_many", consumer="billing", messages=json.dumps(messages))


# I2 I25
def test_batch_gives_the_answers_of_one_call_after_the_other(db):
    messages = [{"message_id": "a"}, {"message_id": "a"}, {"message_id": None},
                {"message_id": "b", "source": "s", "payload": {"b": [1, "x"]}},
                {"message_id": 7, "headers": {"h": "1"}, "type": "paid", "delivery": 2},
                {"message_id": "c", "raw": "caf\u00e9", "business_key": "i"},
                {"message_id": "d", "payload": {}, "business_key": "i", "fingerprint": "f"},
                {"message_id": "e", "message_time": "2026-01-01T00:00:00Z"}]
    db.execute("BEGIN IMMEDIATE")
    told = many(db, "begin", *messages)
    db.execute("ROLLBACK")
    db.execute("BEGIN IMMEDIATE")
    for n, message in enumerate(messages):
        given = {key: json.dumps(value) if key in ("payload", "headers") else value for key, value in message.items()}
        single = begin(db, given.pop("message_id"), **given)
        assert {key: told[n][key] for key in single} == single
        assert (told[n]["ordinal"], told[n]["source"]) == (n + 1, message.get("source", ""))
    db.execute("ROLLBACK")
    assert {row["why"] for row in told} == {"new", "busy", "no_id", "business_duplicate"}


def test_version_of_a_batch_may_be_text(db):
    for version in (5, 2 ** 63 - 2):
        for given in (version, str(version)):
            db.execute("BEGIN IMMEDIATE")
            many(db, "begin", {"message_id": "a", "order_key": "k", "version": given})
            assert db.execute("SELECT version FROM semel_inbox").fetchall() == [(version,)]
            db.execute("ROLLBACK")


# I25 P59
def test_batch_is_ended_by_a_batch_and_cannot_commit_without(db):
    db.execute("BEGIN IMMEDIATE")
    many(db, "begin", {"message_id": "a"}, {"message_id": "b", "payload": {"b": 1}}, {"message_id": "c"})
    assert [(row["ordinal"], row["act"], row["status"]) for row in many(
        db, "fail", {"message_id": "b", "class": "transient", "reason": "no"})] == [(1, "ack", "failed")]
    db.execute("SELECT semel_inbox_done_many('billing', '[{\"message_id\": \"a\"}]')").fetchall()
    refused(db, "COMMIT")
    assert count(db) == 0
    db.execute("BEGIN IMMEDIATE")
    assert [row["act"] for row in many(db, "begin", {"message_id": "a"}, {"message_id": "c"})] == ["run", "run"]
    ids = [{"message_id": "a", "outcome": {"x": 1}}, {"message_id": "c"}]
    assert db.execute("SELECT semel_inbox_done_many('billing', ?)", (json.dumps(ids),)).fetchall() == [(1,)]
    db.execute("COMMIT")
    db.execute("BEGIN IMMEDIATE")
    assert [(row["why"], row["outcome"]) for row in many(db, "begin", {"message_id": "a"}, {"message_id": "c"})] == [
        ("duplicate", '{"x": 1}'), ("duplicate", None)]
    db.execute("COMMIT")


@pytest.mark.parametrize("messages, text", [
    ("{}", "messages must be a JSON array of objects"), ("1", "must be a JSON array"), ("[", "must be JSON"),
    ("[1]", "message 1: it must be an object"), ('[{"message_id": "a"}, null]', "message 2: it must be an object"),
    ('[{"id": "a"}]', 'message 1 has a member "id", which is none'),
    ('[{"message_id": {}}]', "message_id must be text"),
    *((json.dumps([{"message_id": "a", "version": wrong}]), "message 1: version must be a whole number")
      for wrong in ["x", "", "1.5", "-1", " 1", '"1"', str(2 ** 63)]),
    ('[{"message_id": "a", "delivery": "1"}]', "delivery must be a whole number"),
    ('[{"message_id": "a", "version": 1.5}]', "version must be a whole number"),
    ('[{"message_id": "a", "headers": []}]', "headers must be a JSON object"),
    ('[{"message_id": "a", "message_time": "someday"}]', "message_time must be a time with its zone"),
    ('[{"message_id": "a", "payload": 1, "raw": "1"}]', "give one of them"),
    ('[{"message_id": "a", "outcome": 1}]', 'has a member "outcome"'), (None, "messages is missing"),
    (json.dumps([{"message_id": str(n)} for n in range(10001)]), "messages has 10001 elements; at most 10000"),
], ids=lambda value: str(value)[:40])
def test_bad_batch_is_refused_and_leaves_nothing(db, messages, text):
    db.execute("BEGIN IMMEDIATE")
    assert text in refused(db, "SELECT * FROM semel_inbox_begin_many('billing', ?)", messages)
    db.execute("COMMIT")
    assert count(db) == 0


def test_bad_end_of_a_batch_is_refused(db):
    db.execute("BEGIN IMMEDIATE")
    assert "not begun" in refused(db, "SELECT semel_inbox_done_many('billing', '[{\"message_id\": \"a\"}]')")
    assert "message 1: message_id is missing" in refused(db, "SELECT semel_inbox_done_many('billing', '[{}]')")
    assert "class must be transient" in refused(
        db, "SELECT * FROM semel_inbox_fail_many('billing', '[{\"message_id\": \"a\", \"class\": \"done\"}]')")
    db.execute("COMMIT")
    assert "open a transaction first" in refused(db, "SELECT semel_inbox_done_many('billing', '[]')")


# I6, I14, T3
@pytest.mark.parametrize("begin_is_rolled_back", [False, True])
def test_failed_message_is_kept_and_retried_through_take_and_finish(db, begin_is_rolled_back):
    in_transaction(db, "SELECT semel_consumer('billing', '{\"retry_first\": \"1ms\", \"retry_ceiling\": \"1ms\"}')")
    db.execute("BEGIN IMMEDIATE")
    assert begin(db, "id-1", payload='{"amount":3}')["act"] == "run"
    if begin_is_rolled_back:
        db.execute("ROLLBACK")
        db.execute("BEGIN IMMEDIATE")
    told = call(db, "semel_inbox_fail", consumer="billing", message_id="id-1", payload='{"amount":3}',
                **{"class": "transient", "reason": "no answer"})[0]
    db.execute("COMMIT")
    assert (told["act"], told["status"]) == ("ack", "failed") and told["due_at"] > 0
    assert db.execute("SELECT status, attempts, error_class, error_text FROM semel_inbox").fetchall() == [
        ("failed", 1, "transient", "no answer")]
    token, payload, attempt = poll(lambda: in_transaction(
        db, "SELECT token, payload, attempt FROM semel_inbox_take('billing', 5, '60s')"))[0]
    assert (payload, attempt) == ('{"amount":3}', 2)
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO ledger VALUES ('id-1', ?)", (json.loads(payload)["amount"],))
    assert db.execute("SELECT semel_inbox_finish(?)", (token,)).fetchone() == (1,)
    db.execute("COMMIT")
    assert db.execute("SELECT status, attempts FROM semel_inbox").fetchall() == [("completed", 2)]
    assert db.execute("SELECT * FROM ledger").fetchall() == [("id-1", 3)]


# I14
@pytest.mark.parametrize("word, status", [("permanent", "dead"), ("rejected", "rejected"), ("unknown", "unknown"),
                                          ("maybe", "unknown")])
def test_class_of_a_failure_decides_what_becomes_of_it(db, word, status):
    db.execute("BEGIN IMMEDIATE")
    begin(db, "id-1", payload="{}")
    told = call(db, "semel_inbox_fail", consumer="billing", message_id="id-1", payload="{}", **{"class": word})[0]
    db.execute("COMMIT")
    assert (told["act"], told["status"], told["due_at"]) == ("ack", status, None)
    assert db.execute("SELECT status FROM semel_inbox").fetchall() == [(status,)]


# ---- whose transaction ---------------------------------------------------------------------------------

WRITING = ["SELECT * FROM semel_inbox_begin('c', 'i')", "SELECT * FROM semel_inbox_put('c', 'i')",
           "SELECT * FROM semel_inbox_claim('c', 'i')", "SELECT * FROM semel_inbox_take('c')",
           "SELECT * FROM semel_inbox_fail('c', 'i') WHERE class = 'transient'",
           "SELECT semel_inbox_done('c', 'i')", "SELECT semel_inbox_renew(1)", "SELECT semel_inbox_finish(1)",
           "SELECT semel_inbox_release(1)", "SELECT semel_tick()", "SELECT semel_outbox_put('a', 'b', 'c')",
           "SELECT semel_consumer('c', '{}')"]


@pytest.mark.parametrize("sql", WRITING)
def test_writing_outside_a_transaction_is_refused(db, sql):
    assert "open a transaction first: BEGIN IMMEDIATE" in refused(db, sql)
    assert (count(db), count(db, "semel_consumer"), count(db, "semel_outbox")) == (0, 0, 0)


def test_writing_in_the_middle_of_another_write_is_refused(db):
    db.execute("BEGIN IMMEDIATE")
    text = refused(db, "INSERT INTO ledger SELECT semel_outbox_put('a', 'b', 'c'), 1")
    assert "SELECT of its own" in text
    assert db.execute("SELECT length(semel_outbox_put('a', 'b', 'c'))").fetchone() == (36,)
    db.execute("ROLLBACK")


def test_before_the_tables_are_there_the_error_says_how_to_get_them(path, extension):
    db = connect(path, extension)
    db.execute("BEGIN IMMEDIATE")
    hint = "run SELECT semel_migrate() or semel migrate first"
    assert hint in refused(db, "SELECT * FROM semel_inbox_begin('c', 'i')")
    assert hint in refused(db, "SELECT semel_tick()")
    assert "a transaction is open" in refused(db, "SELECT semel_migrate()")
    db.execute("COMMIT")
    first = db.execute("SELECT semel_migrate()").fetchone()[0]
    assert first == db.execute("SELECT max(version) FROM semel_schema").fetchone()[0] > 0
    assert db.execute("SELECT semel_migrate()").fetchone() == (first,)
    db.close()


def test_contention_is_told_as_busy(db, path, extension):
    other = connect(path, extension)
    other.execute("PRAGMA busy_timeout = 0")
    other.execute("BEGIN")
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        other.execute("SELECT * FROM semel_inbox_begin('c', 'i')").fetchall()
    assert getattr(caught.value, "sqlite_errorcode", 5) & 0xff == 5 and "locked" in str(caught.value)
    other.close()


# ---- arguments -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("sql, text", [
    ("SELECT * FROM semel_inbox_begin", "semel_inbox_begin: consumer is missing"),
    ("SELECT * FROM semel_inbox_begin('c')", "semel_inbox_begin: message_id is missing"),
    ("SELECT * FROM semel_inbox_begin(NULL, 'i')", "consumer is missing"),
    ("SELECT * FROM semel_inbox_fail('c', 'i')", "semel_inbox_fail: class is missing"),
    ("SELECT * FROM semel_inbox_take", "semel_inbox_take: consumer is missing"),
    ("SELECT semel_inbox_done('c', NULL)", "semel_inbox_done: message_id is missing"),
    ("SELECT semel_inbox_finish(NULL)", "semel_inbox_finish: token is missing"),
    ("SELECT semel_outbox_put('a', NULL, 'c')", "semel_outbox_put: aggregateid is missing"),
    ("SELECT semel_step_key('c', 'i', NULL)", "semel_step_key: step is missing"),
    ("SELECT * FROM semel_inbox_begin('c', 'i') WHERE message_id = 'j'", "message_id is given twice"),
    ("SELECT * FROM semel_inbox_begin('c', 'i') WHERE payload = '{'", "payload must be JSON"),
    ("SELECT * FROM semel_inbox_begin('c', 'i') WHERE payload = x'7b7d'", "bytes are passed as raw"),
    ("SELECT * FROM semel_inbox_begin('c', 'i') WHERE payload = '1' AND raw = x'31'", "give one of them"),
    ("SELECT * FROM semel_inbox_begin('c', 'i') WHERE headers = '[]'", "JSON object"),
    ("SELECT * FROM semel_inbox_begin('c', 'i') WHERE version = 1.5", "a whole number"),
    ("SELECT * FROM semel_inbox_begin('c', 'i') WHERE version = -1", "from 0 to"),
    ("SELECT * FROM semel_inbox_begin('c', 'i') WHERE message_time = 'yesterday'",
     "a time with its zone"),
    ("SELECT * FROM semel_inbox_begin('c', 'i') WHERE message_time = -1", "microseconds"),
    ("SELECT * FROM semel_inbox_claim('c', 'i') WHERE lease = 'soon'", "such as '60s'"),
    ("SELECT * FROM semel_inbox_claim('c', 'i') WHERE lease = -1", "such as '60s'"),
    ("SELECT * FROM semel_inbox_claim('c', 'i') WHERE lease = 9e99", "such as '60s'"),
    ("SELECT * FROM semel_inbox_fail('c', 'i') WHERE class = 'done'", "class must be"),
    ("SELECT * FROM semel_inbox_fail('c', 'i') WHERE class = 'odd'", "class must be"),
    ("SELECT * FROM semel_inbox_take('c', 0)", "max must be from 1 to 1000"),
    ("SELECT semel_inbox_finish(1, 'well')", "class must be done"),
    ("SELECT semel_inbox_finish(1, 'done', 'well')", "outcome must be JSON"),
    ("SELECT semel_inbox_finish('one')", "token must be a whole number"),
    ("SELECT semel_inbox_renew(1, x'00')", "lease must be a duration"),
    ("SELECT semel_tick(0)", "max must be from 1"),
    ("SELECT semel_consumer('c', NULL)", "settings is missing"),
    ("SELECT semel_consumer('c', '{\"retries\":1}')", "retries"),
    ("SELECT semel_outbox_put('a', 'b', 'c', '{}', NULL, '{}', NULL, 'not-a-uuid')", "UUID"),
    *((f"SELECT semel_outbox_put('a', 'b', 'c', '{{}}', NULL, '{{\"{name}\": \"1\"}}')", "are written by Semel")
      for name in ("id", "traceparent", "TraceParent", "ce_id", "ce-type", "webhook-id")),
    ("SELECT semel_inbox_done('c')", "wrong number of arguments"),
])
def test_bad_argument_is_named_and_changes_nothing(db, sql, text):
    db.execute("BEGIN IMMEDIATE")
    assert text in refused(db, sql)
    assert db.in_transaction
    db.execute("COMMIT")
    assert (count(db), count(db, "semel_consumer"), count(db, "semel_outbox")) == (0, 0, 0)


@pytest.mark.parametrize("message_id", ["it's", '"', "a\nb\r\t", "'; DROP TABLE semel_inbox; --", "%s?1:x", "x" * 255,
                                        "é" * 127, "\x01\x7f", " "])
def test_odd_id_is_an_id_like_any_other(db, message_id):
    assert handle(db, message_id) == ("run", "new")
    assert handle(db, message_id) == ("ack", "duplicate")
    assert db.execute("SELECT message_id FROM ledger").fetchall() == [(message_id,)]
    assert db.execute("SELECT message_id FROM semel_inbox").fetchall() == [(message_id,)]


@pytest.mark.parametrize("message_id, text", [("a\0b", "NUL"), ("x" * 256, "255"), (b"\xff\xfe", "BLOB"),
                                              ("", "message_id"), (1.5, "text")])
def test_hostile_id_is_refused_and_changes_nothing(db, message_id, text):
    db.execute("BEGIN IMMEDIATE")
    for sql in ["SELECT * FROM semel_inbox_begin('c', ?)", "SELECT * FROM semel_inbox_put('c', ?)",
                "SELECT * FROM semel_inbox_claim('c', ?)", "SELECT semel_inbox_done('c', ?)"]:
        assert refused(db, sql, message_id)
    assert text in refused(db, "SELECT * FROM semel_inbox_begin('c', ?)", message_id) or text == "message_id"
    db.execute("COMMIT")
    assert count(db) == 0


def test_text_that_is_not_utf8_is_refused(db):
    db.execute("BEGIN IMMEDIATE")
    assert "UTF-8" in refused(db, "SELECT * FROM semel_inbox_begin('c', CAST(x'ff' AS TEXT))")
    assert "NUL" in refused(db, "SELECT * FROM semel_inbox_take(CAST(x'630063' AS TEXT))")
    db.execute("COMMIT")
    assert count(db) == 0


def test_message_without_an_id_is_quarantined_and_never_runs(db):
    assert handle(db, None) == ("ack", "no_id")
    assert db.execute("SELECT status FROM semel_inbox").fetchall() == [("quarantined",)]
    assert count(db, "ledger") == 0


# A9 P78
def test_message_without_an_id_remembers_its_business_key(db):
    assert handle(db, None, business_key="inv-7") == ("ack", "no_id")
    assert db.execute("SELECT business_key, message_id LIKE 'sha256:%' FROM semel_business_want").fetchall() == [
        ("inv-7", 1)]
    assert count(db, "semel_business_key") == 0


def test_number_is_the_id_of_its_digits(db):
    assert handle(db, 42) == ("run", "new")
    assert handle(db, "42") == ("ack", "duplicate")


def test_payload_comes_back_as_text_where_it_is_json_and_as_bytes_where_it_is_not(db):
    db.execute("BEGIN IMMEDIATE")
    assert call(db, "semel_inbox_put", consumer="c", message_id="j", payload='{"n":1}', type="t", source="s",
                headers='{"h":"1"}') == [{"act": "ack", "why": "new"}]
    assert call(db, "semel_inbox_put", consumer="c", message_id="r", raw=b"\x00\xff") == [{"act": "ack", "why": "new"}]
    taken = {row["message_id"]: row for row in call(db, "semel_inbox_take", consumer="c", max=9, lease=30)}
    db.execute("COMMIT")
    assert (taken["j"]["payload"], taken["j"]["type"], taken["j"]["source"]) == ('{"n":1}', "t", "s")
    assert json.loads(taken["j"]["headers"]) == {"h": "1"}
    assert taken["r"]["payload"] == b"\x00\xff"
    assert taken["j"]["attempt"] == 1 and taken["j"]["lease_until"] > 0


# A4 P76
def test_no_payload_and_an_empty_one_are_two_things(db):
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="payload is needed"):
        call(db, "semel_inbox_put", consumer="c", message_id="i")
    assert call(db, "semel_inbox_put", consumer="c", message_id="e", raw=b"") == [{"act": "ack", "why": "new"}]
    assert call(db, "semel_inbox_begin", consumer="c", message_id="n")[0]["act"] == "run"
    told = call(db, "semel_inbox_fail", consumer="c", message_id="n", **{"class": "transient"})[0]
    assert (told["act"], told["status"]) == ("later", "failed") and "payload" in told["hint"]
    db.execute("COMMIT")
    taken = in_transaction(db, "SELECT message_id, payload FROM semel_inbox_take('c', 10)")
    assert taken == [("e", b"")]


def test_time_may_be_microseconds_or_text(db):
    db.execute("BEGIN IMMEDIATE")
    for message_id, when in [("a", 1763235480000000), ("b", "2025-11-15T19:38:00Z")]:
        call(db, "semel_inbox_put", consumer="c", message_id=message_id, payload="1", message_time=when)
    db.execute("COMMIT")
    assert db.execute("SELECT DISTINCT message_time FROM semel_inbox").fetchall() == [(1763235480000000,)]


@pytest.mark.parametrize("schema, use", [
    ("CREATE VIEW v AS SELECT semel_tick() AS n", "SELECT * FROM v"),
    ("CREATE VIEW v AS SELECT act FROM semel_inbox_begin('c', 'i')", "SELECT * FROM v"),
    ("CREATE TRIGGER t AFTER INSERT ON ledger BEGIN SELECT semel_outbox_put('a', 'b', 'c'); END",
     "INSERT INTO ledger VALUES ('x', 1)"),
])
def test_schema_cannot_call_it(db, schema, use):
    db.execute(schema)
    db.execute("BEGIN IMMEDIATE")
    assert "unsafe use" in refused(db, use)
    db.execute("ROLLBACK")


@pytest.mark.parametrize("source", [
    "semel_inbox_take('c', 1), three", "three, semel_inbox_take('c', 1)", "three CROSS JOIN semel_inbox_take('c', 1)",
    "three LEFT JOIN semel_inbox_take('c', 1)", "three, (SELECT * FROM semel_inbox_take('c', 1) ORDER BY token)"])
def test_call_is_made_once_wherever_it_stands(db, source):
    db.execute("CREATE TABLE three AS SELECT value FROM json_each('[1,2,3]')")
    db.execute("BEGIN IMMEDIATE")
    for message_id in "abcde":
        call(db, "semel_inbox_put", consumer="c", message_id=message_id, payload="1")
    rows = db.execute(f"SELECT message_id FROM {source} ORDER BY value").fetchall()
    assert len(rows) == 3 and len(set(rows)) == 1
    assert db.execute("SELECT count(*) FROM semel_inbox WHERE status = 'processing'").fetchone() == (1,)
    db.execute("COMMIT")


def test_work_is_taken_and_finished_in_one_statement_or_in_a_loop(db):
    db.execute("BEGIN IMMEDIATE")
    for message_id in "abcd":
        call(db, "semel_inbox_put", consumer="c", message_id=message_id, payload="1")
    assert db.execute("SELECT semel_inbox_finish(token) FROM semel_inbox_take('c', 2)").fetchall() == [(1,), (1,)]
    for token, in db.execute("SELECT token FROM semel_inbox_take('c', 2)"):
        assert db.execute("SELECT semel_inbox_finish(?)", (token,)).fetchone() == (1,)
    db.execute("COMMIT")
    assert db.execute("SELECT status, count(*) FROM semel_inbox").fetchall() == [("completed", 4)]


# ---- order, leases, the outbox -------------------------------------------------------------------------

# I13
def test_failed_message_holds_back_its_key_and_no_other(db):
    in_transaction(db, "SELECT semel_consumer('billing', '{\"order\": \"arrival\", \"retry_first\": \"1ms\"}')")
    db.execute("BEGIN IMMEDIATE")
    begin(db, "a1", order_key="a", payload="1")
    call(db, "semel_inbox_fail", consumer="billing", message_id="a1", order_key="a", payload="1",
         **{"class": "transient"})
    db.execute("COMMIT")
    assert handle(db, "a2", order_key="a") == ("ack", "blocked")
    assert handle(db, "b1", order_key="b") == ("run", "new")
    taken = []
    while len(taken) < 2:
        for token, message_id in in_transaction(db, "SELECT token, message_id FROM semel_inbox_take('billing', 9)"):
            taken.append(message_id)
            assert in_transaction(db, "SELECT semel_inbox_finish(?)", token) == [(1,)]
    assert taken == ["a1", "a2"]


# I7, T4
def test_lease_that_ran_out_is_recovered_and_its_former_owner_is_fenced(db):
    in_transaction(db, "SELECT semel_consumer('mail', '{\"effect\": \"keyed\", \"retry_first\": \"1ms\"}')")
    db.execute("BEGIN IMMEDIATE")
    told = call(db, "semel_inbox_claim", consumer="mail", message_id="id-1", payload="{}", lease="1ms")[0]
    db.execute("COMMIT")
    assert (told["act"], told["why"], told["attempt"]) == ("run", "new", 1)
    poll(lambda: in_transaction(db, "SELECT semel_tick()")[0][0])
    assert db.execute("SELECT status FROM semel_inbox").fetchall() == [("failed",)]
    for sql in ["SELECT semel_inbox_renew(?, '5m')", "SELECT semel_inbox_finish(?)", "SELECT semel_inbox_release(?)"]:
        assert in_transaction(db, sql, told["token"]) == [(0,)]
    assert count(db, "semel_attempt") == 2  # the lease that ran out, and the late word as evidence
    token = poll(lambda: in_transaction(db, "SELECT token FROM semel_inbox_take('mail')"))[0][0]
    assert in_transaction(db, "SELECT semel_inbox_renew(?, '5m')", token) == [(1,)]
    assert in_transaction(db, "SELECT semel_inbox_release(?)", token) == [(1,)]
    token = poll(lambda: in_transaction(db, "SELECT token FROM semel_inbox_take('mail')"))[0][0]
    assert in_transaction(db, "SELECT semel_inbox_finish(?, 'done', '{\"sent\":1}')", token) == [(1,)]
    assert db.execute("SELECT status, outcome FROM semel_inbox").fetchall() == [("completed", '{"sent":1}')]


# A8 P80: until ROLLBACK; a savepoint does not swallow it
def test_late_done_of_an_effect_in_this_database_is_an_error_and_nothing_commits(db):
    in_transaction(db, "SELECT semel_consumer('mail', '{\"effect\": \"atomic\"}')")
    db.execute("BEGIN IMMEDIATE")
    token = call(db, "semel_inbox_claim", consumer="mail", message_id="id-1", payload="{}", lease="1ms")[0]["token"]
    db.execute("COMMIT")
    poll(lambda: in_transaction(db, "SELECT semel_tick()")[0][0])
    for gone in (False, True):
        assert in_transaction(db, "SELECT semel_inbox_finish(?, 'transient')", token) == [(0,)]
        db.execute("BEGIN IMMEDIATE")
        db.execute("CREATE TABLE effect (id)")
        db.execute("SAVEPOINT mine")
        with pytest.raises(sqlite3.OperationalError, match="must not be committed"):
            db.execute("SELECT semel_inbox_finish(?)", (token,)).fetchall()
        db.execute("ROLLBACK TO mine")
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("COMMIT")
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'effect'").fetchall() == [(0,)]
        in_transaction(db, "DELETE FROM semel_inbox")
    rounded = int(float(token))
    if rounded > 2**59:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="rounded"):
            db.execute("SELECT semel_inbox_finish(?)", (rounded,)).fetchall()
        db.execute("ROLLBACK")


def test_claim_that_was_rolled_back_was_never_made(db):
    in_transaction(db, "SELECT semel_consumer('c', '{\"effect\": \"outside\"}')")
    db.execute("BEGIN IMMEDIATE")
    told = call(db, "semel_inbox_claim", consumer="c", message_id="id-1", payload="{}")[0]
    db.execute("ROLLBACK")
    assert in_transaction(db, "SELECT semel_inbox_finish(?)", told["token"]) == [(0,)]
    assert count(db) == 0


# O1, O4, I21
def test_event_leaves_only_if_its_transaction_commits(db):
    put = "SELECT semel_outbox_put('order', 'o-1', 'placed', '{\"n\":1}', NULL, '{\"h\":\"1\"}', 'orders')"
    db.execute("BEGIN IMMEDIATE")
    db.execute(put).fetchall()
    db.execute("ROLLBACK")
    assert count(db, "semel_outbox") == 0
    (event_id,), = in_transaction(db, put)
    assert db.execute("SELECT id, aggregatetype, aggregateid, type, CAST(payload AS TEXT), destination "
                      "FROM semel_outbox").fetchall() == [
        (event_id, "order", "o-1", "placed", '{"n":1}', "orders")]
    own = "018f0000-0000-7000-8000-000000000001"
    assert in_transaction(db, "SELECT semel_outbox_put('a', 'b', 'c', NULL, x'00', NULL, NULL, ?)", own) == [(own,)]


# E1
def test_step_key_is_the_same_everywhere_and_needs_no_transaction(db, extension):
    bare = connect(":memory:", extension)  # without tables
    ask = "SELECT semel_step_key('billing', 'id-1', 'charge'), semel_step_key('billing', 'id-1', 'charge', 's')"
    keys = db.execute(ask).fetchone()
    assert keys == bare.execute(ask).fetchone()
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys) and keys[0] != keys[1]
    bare.close()


def test_settings_of_a_consumer_are_shown_with_their_defaults(db):
    assert json.loads(db.execute("SELECT semel_consumer('billing')").fetchone()[0])["retry_max"] == 8
    shown = json.loads(in_transaction(db, "SELECT semel_consumer('billing', '{\"retry_max\": 3}')")[0][0])
    assert shown["retry_max"] == 3 and shown["order"] == "none"
    assert json.loads(db.execute("SELECT semel_consumer('billing')").fetchone()[0]) == shown


# ---- several processes ---------------------------------------------------------------------------------

def worker(path, extension, seed, ids, queue):
    db = connect(path, extension)
    order = ids * 2
    random.Random(seed).shuffle(order)
    told = collections.Counter(handle(db, message_id, amount=int(message_id[1:])) for message_id in order)
    db.close()
    queue.put(dict(told))


# T2, T14, I3
def test_every_message_twice_and_shuffled_by_two_processes_gives_the_ledger_of_a_single_delivery(db, path, extension):
    ids = [f"m{n}" for n in range(1, 151)]
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    children = [fork.Process(target=worker, args=(path, extension, seed, ids, queue)) for seed in (1, 2)]
    for child in children:
        child.start()
    told = collections.Counter()
    for _ in children:
        told.update(queue.get(timeout=120))
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert told == {("run", "new"): len(ids), ("ack", "duplicate"): 3 * len(ids)}
    assert sorted(db.execute("SELECT * FROM ledger").fetchall()) == sorted((i, int(i[1:])) for i in ids)
    assert db.execute("SELECT status, count(*) FROM semel_inbox").fetchall() == [("completed", len(ids))]


# I3
def test_message_begun_in_sql_is_a_duplicate_for_the_command_and_the_other_way_round(store, extension):
    db = connect(store.path, extension)
    db.execute("CREATE TABLE ledger (message_id TEXT, amount INTEGER)")
    assert handle(db, "sql-1") == ("run", "new")
    result = store.semel("send", "--consumer", "billing", "--id", "sql-1", '{"amount": 1}', "--json")
    assert (result.code, result.json["why"], result.json["status"]) == (0, "duplicate", "completed"), result
    result = store.semel("send", "--consumer", "billing", "--id", "cli-1", '{"amount": 5}')
    assert result.code == 0, result
    db.execute("BEGIN IMMEDIATE")
    assert call(db, "semel_inbox_put", consumer="billing", message_id="cli-1", payload='{"amount":5}') == [
        {"act": "ack", "why": "duplicate"}]
    token, payload = db.execute("SELECT token, payload FROM semel_inbox_take('billing', 9)").fetchall()[0]
    db.execute("COMMIT")
    assert json.loads(payload) == {"amount": 5}
    assert in_transaction(db, "SELECT semel_inbox_finish(?)", token) == [(1,)]
    assert handle(db, "cli-1", 5) == ("ack", "duplicate")
    db.close()


# A3 I24 P75
def test_settings_merge_and_what_stored_rows_speak_against_is_refused(db):
    def put(settings):
        return in_transaction(db, "SELECT semel_consumer('billing', ?)", json.dumps(settings))

    def not_put(settings, words):
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.Error, match=re.escape(words)):
            db.execute("SELECT semel_consumer('billing', ?)", (json.dumps(settings),))
        db.execute("ROLLBACK")

    put({"order": "arrival", "retry_max": 3})
    put({"lease": "5s"})
    put({})
    put({"retry_max": None})
    assert json.loads(db.execute("SELECT settings FROM semel_consumer").fetchone()[0]) == {
        "order": "arrival", "lease": "5s"}
    db.execute("INSERT INTO semel_inbox (arrival, consumer, source, message_id, status, order_key, received_at, "
               "updated_at) VALUES (1, 'billing', '', 'm', 'waiting', 'k', 1, 1)")
    not_put({"order": "none"}, "order cannot go from arrival to none; messages with an order key that wait, failed or "
                               "run: 1;")
    put({"order": "version"})
    assert db.execute("SELECT count(*) FROM semel_audit").fetchone() == (4,)
    put({"timed_ids": True})  # A11 P82
    db.execute("INSERT INTO semel_watermark (consumer, source, watermark, updated_at) VALUES ('billing', 's', 1, 1)")
    not_put({"timed_ids": None}, "timed_ids cannot go from true to uuidv7; sources of which records were purged")
    not_put({"timed_ids": False}, "new messages: 1; leave it as it is")
    db.execute("UPDATE semel_consumer SET set_by_host = 'h1', set_by_file = '/etc/semel.yaml', set_by_at = 1")
    not_put({"retry_max": 5}, "is set by the file /etc/semel.yaml on h1: change it there")
