# SPDX-License-Identifier: MIT
"""Idempotency keys by the loadable extension of SQLite."""
import sqlite3
import time

import pytest

import key_cases
from test_extension import call, db, path  # noqa: F401  (fixtures)

TIMES = ("created_at", "updated_at", "lease_until", "completed_at", "answer_until", "key_until")
KEY = "key-00001"


def begin(db, **more):  # noqa: F811
    return call(db, "semel_key_begin", scope="alice", key=KEY, **more)[0]


def told(answer):
    return f"{answer['act']} {answer['why']}"


def plant(db, row):  # noqa: F811
    values = [int(value * 1e6) if name in TIMES and value is not None else value for name, value in row.items()]
    db.execute(f"INSERT INTO semel_idempotency ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", values)


def stored(db):  # noqa: F811
    names = list(key_cases.given_row({"row": "processing"}, 0))
    row = db.execute(f"SELECT {', '.join(names)} FROM semel_idempotency").fetchone()
    return {name: value / 1e6 if name in TIMES and value is not None else value
            for name, value in zip(names, row)} if row else None


def happen(db, event, words, row):  # noqa: F811
    """What the caller is told."""
    if event in ("begin", "claim"):
        more = {"effect": words["effect"]} if "effect" in words else {}
        return told(call(db, f"semel_key_{event}", scope="alice", key=KEY,
                         fingerprint=key_cases.PRINTS[words.get("fp", "A")], **more)[0])
    if event == "tick":
        return "done" if db.execute("SELECT semel_tick()").fetchone()[0] else "nothing"
    token = row["token"] - (0 if words["token"] == "own" else 1 << 22)
    sql = {"finish": "semel_key_finish(?, 201, '[]', x'78')", "release": "semel_key_fail(?, 'released')",
           "unknown": "semel_key_fail(?, 'unknown', 'reset')", "renew": "semel_key_renew(?)"}[event]
    try:
        return "done" if db.execute(f"SELECT {sql}", (token,)).fetchone()[0] else "fenced"
    except sqlite3.Error as error:
        assert "must not be committed" in str(error)
        return "refused"


# A1 A2 A3 A6 A7 A8 A9 P47 P80
def test_every_case_comes_out_as_the_table_says(db):  # noqa: F811
    for name, given, event, words, verdict, becomes in key_cases.cases():
        db.execute("DELETE FROM semel_idempotency")
        now_s, row = time.time(), None
        if "row" in given:
            plant(db, key_cases.given_row(given, now_s))
            row = stored(db)
        db.execute("BEGIN IMMEDIATE")
        assert happen(db, event, words, row) == verdict, name
        if event == "begin":  # on SQLite it has a lease, for nobody sees it before its end
            becomes = becomes.replace(" lease=none", "")
        key_cases.check(name, becomes, row, stored(db), now_s)
        db.execute("ROLLBACK")


# A3 P38
def test_begin_without_its_end_cannot_commit(db):  # noqa: F811
    db.execute("BEGIN IMMEDIATE")
    token = begin(db)["token"]
    db.execute("INSERT INTO ledger VALUES ('charge', 5)")
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("COMMIT")
    assert db.execute("SELECT count(*) FROM ledger").fetchone() == (0,)
    db.execute("BEGIN IMMEDIATE")
    token = begin(db)["token"]
    db.execute("SELECT semel_key_finish(?, 200, '[[\"a\", \"b\"]]', x'00ff')", (token,))
    db.execute("COMMIT")
    db.execute("BEGIN")
    answer = begin(db)
    assert (answer["act"], answer["status"], answer["headers"], answer["body"]) == (
        "replay", 200, '[["a", "b"]]', b"\x00\xff")
    db.execute("COMMIT")


# P59 P80
def test_end_that_a_savepoint_took_back_leaves_the_key_begun(db):  # noqa: F811
    for again in (False, True):
        db.execute("BEGIN IMMEDIATE")
        token = begin(db)["token"]
        db.execute("INSERT INTO ledger VALUES ('charge', 5)")
        db.execute("SAVEPOINT s")
        db.execute("SELECT semel_key_finish(?, 200)", (token,)).fetchall()
        db.execute("ROLLBACK TO s")
        if again:
            assert db.execute("SELECT semel_key_finish(?, 200)", (token,)).fetchone() == (1,)
            db.execute("COMMIT")
        else:
            with pytest.raises(sqlite3.IntegrityError):
                db.execute("COMMIT")
        assert db.execute("SELECT count(*) FROM ledger").fetchone() == (again,)
    assert db.execute("SELECT status FROM semel_idempotency").fetchall() == [("completed",)]


# A1 A10
def test_replay_writes_nothing(db, path):  # noqa: F811
    db.execute("BEGIN IMMEDIATE")
    db.execute("SELECT semel_key_finish(?, 200)", (begin(db)["token"],))
    db.execute("COMMIT")
    other = sqlite3.connect(path)
    before = other.execute("PRAGMA data_version").fetchone()
    db.execute("BEGIN")
    assert begin(db)["act"] == "replay"
    db.execute("COMMIT")
    assert other.execute("PRAGMA data_version").fetchone() == before
    other.close()


@pytest.mark.parametrize("sql, text", [
    ("SELECT * FROM semel_key_begin('a', '1234567')", "key has 7 characters"),
    ("SELECT * FROM semel_key_begin('a', 'key-00001', NULL, 5)", "answer"),
    ("SELECT * FROM semel_key_claim('a', 'key-00001', NULL, NULL, NULL, '60s', 'both')", "effect must be"),
    ("SELECT semel_key_finish(1, 99)", "status"), ("SELECT semel_key_finish(1, 200, '{}')", "pairs"),
    ("SELECT semel_key_fail(1, 'done')", "class must be released or unknown"),
    ("SELECT semel_key_renew('x')", "token")])
def test_bad_arguments_are_refused(db, sql, text):  # noqa: F811
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.Error, match=text):
        db.execute(sql).fetchall()
    db.execute("ROLLBACK")
