# SPDX-License-Identifier: MIT
"""Idempotency keys by PostgreSQL's functions: in one transaction with the effect, and under a lease."""
import collections
import json
import os

import pytest

import key_cases
from pgsql import (LEVELS, ask, call, committed, count, db, pg_server, poll, refused, run_workers,  # noqa: F401
                   shop)

psycopg2 = pytest.importorskip("psycopg2", reason="apt-get install python3-psycopg2")

KEY = "7d0f1f2e-8a4b-4c55"
PAIRS = [["content-type", "application/json"], ["x-part", "1"], ["x-part", "2"]]


def begin(db, key=KEY, scope="alice", **more):
    return call(db, "key_begin", scope=scope, key=key, **more)[0]


def claim(db, key=KEY, scope="alice", **more):
    return call(db, "key_claim", scope=scope, key=key, **more)[0]


def finish(db, token, status=201, headers=PAIRS, body=b'{"id": 1}'):
    return call(db, "key_finish", token=token, status=status, headers=json.dumps(headers),
                body=psycopg2.Binary(body) if body is not None else None)[0]["key_finish"]


def told(answer):
    return answer["act"], answer["why"]


def age(db, **columns):
    """Moves times of all rows."""
    committed(db, "UPDATE semel.idempotency SET " + ", ".join(f"{name} = now() + %s::interval" for name in columns),
              *columns.values())


def row(db, *columns):
    return committed(db, f"SELECT {', '.join(columns)} FROM semel.idempotency")[0]


@pytest.fixture
def two(shop):  # noqa: F811
    """Two sessions; nobody waits longer than half a second for a lock."""
    first, second = shop.connect(), shop.connect()
    for session in first, second:
        committed(session, "SET lock_timeout = '500ms'")
    yield first, second
    first.close()
    second.close()


# ---- one transaction with the effect -------------------------------------------------------------------

# A1 A3 P101
def test_second_request_gets_the_first_answer_and_the_work_is_done_once(db):  # noqa: F811
    for _ in range(2):
        answer = begin(db, fingerprint=b"f")
        if answer["act"] == "run":
            ask(db, "INSERT INTO ledger VALUES ('charge', 5)")
            assert finish(db, answer["token"]) is True
        db.commit()
    assert told(answer) == ("replay", "completed")
    assert (answer["status"], answer["headers"], bytes(answer["body"])) == (201, PAIRS, b'{"id": 1}')
    assert answer["token"] is None
    assert count(db, "ledger") == 1


# A1 A10: no row, no lock, no number
def test_replay_writes_no_wal(db):  # noqa: F811
    finish(db, begin(db)["token"])
    db.commit()
    begin(db)
    assert ask(db, "SELECT pg_current_xact_id_if_assigned()") == [(None,)]
    assert ask(db, "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'") == [(0,)]
    db.commit()


# A3 P38
def test_begin_without_its_end_cannot_commit(shop, db):  # noqa: F811
    begin(db)
    ask(db, "INSERT INTO ledger VALUES ('charge', 5)")
    caught = refused(db, None)
    assert caught.pgcode == "23000" and "begin without its end cannot commit" in str(caught)
    assert count(db, "ledger") == count(db, "semel.idempotency") == 0
    auto = shop.connect(autocommit=True)
    assert refused(auto, "SELECT * FROM semel.key_begin('alice', %s)", KEY).pgcode == "23000"
    auto.close()


# P80
def test_end_that_a_savepoint_took_back_leaves_the_key_begun(db):  # noqa: F811
    token = begin(db)["token"]
    ask(db, "SAVEPOINT s")
    finish(db, token)
    ask(db, "ROLLBACK TO s")
    assert refused(db, None).pgcode == "23000"


# P80
def test_finish_of_a_begin_that_was_rolled_back_is_refused(db):  # noqa: F811
    ask(db, "SAVEPOINT s")
    token = begin(db)["token"]
    ask(db, "ROLLBACK TO s")
    caught = refused(db, "SELECT semel.key_finish(%s, 200)", token)
    assert caught.pgcode == "55000" and "must not be committed" in str(caught)


def test_rolled_back_work_frees_its_key(db):  # noqa: F811
    begin(db)
    db.rollback()
    assert told(begin(db)) == ("run", "new")


def test_released_key_leaves_no_row_and_may_be_used_again(db):  # noqa: F811
    assert call(db, "key_fail", token=begin(db, fingerprint=b"f")["token"], **{"class": "released"}) \
        == [{"key_fail": True}]
    db.commit()
    assert count(db, "semel.idempotency") == 0
    assert told(begin(db, fingerprint=b"corrected")) == ("run", "new")


# P103
def test_second_begin_is_busy_at_once(two):
    first, second = two
    assert told(begin(first)) == ("run", "new")
    assert told(begin(second)) == ("busy", "running")
    assert told(begin(second, scope="bob")) == ("run", "new")  # A4: another caller's key is another key
    assert told(begin(first)) == ("busy", "running")           # in the same transaction, too


# A2: also while nobody else can see the row
def test_other_fingerprint_is_a_mismatch_while_the_first_one_runs(two):
    first, second = two
    begin(first, fingerprint=b"one")
    assert told(begin(second, fingerprint=b"two")) == ("mismatch", "fingerprint")
    assert told(begin(second, fingerprint=b"one")) == ("busy", "running")
    assert told(begin(second)) == ("busy", "running")                           # none is not compared
    assert told(begin(second, fingerprint=b"h" + b"x" * 32)) == ("busy", "running")  # nor one of another kind
    first.rollback()
    assert told(begin(second, fingerprint=b"two")) == ("run", "new")


def test_request_without_a_fingerprint_is_compared_with_none(two):
    first, second = two
    begin(first)
    assert told(begin(second, fingerprint=b"two")) == ("busy", "running")


# A2 P50 P91
def test_other_fingerprint_is_a_mismatch_afterwards(db):  # noqa: F811
    finish(db, begin(db, fingerprint=b"one")["token"])
    assert told(begin(db, fingerprint=b"two")) == ("mismatch", "fingerprint")
    assert told(begin(db)) == ("replay", "completed")
    assert told(begin(db, fingerprint=b"h" + b"x" * 32)) == ("replay", "completed")


# A6
def test_between_the_lifetimes_the_answer_has_no_body_and_then_the_key_is_new(db):  # noqa: F811
    finish(db, begin(db)["token"])
    db.commit()
    assert row(db, "answer_until - completed_at = '24 hours'", "key_until - completed_at = '30 days'") == (True, True)
    age(db, answer_until="-1s")
    answer = begin(db)
    assert told(answer) == ("replay", "no_body")
    assert (answer["status"], answer["headers"], answer["body"]) == (201, PAIRS, None)
    age(db, key_until="-1s")
    answer = begin(db, fingerprint=b"another")
    assert told(answer) == ("run", "new")
    assert finish(db, answer["token"], status=200, headers=[], body=b"") is True
    db.commit()
    assert bytes(begin(db)["body"]) == b""


@pytest.mark.parametrize("level", LEVELS[1:])
def test_replay_above_read_committed_writes_nothing(shop, db, level):  # noqa: F811
    finish(db, begin(db)["token"])
    db.commit()
    strict = shop.connect(level)
    assert told(begin(strict)) == ("replay", "completed")
    assert ask(strict, "SELECT pg_current_xact_id_if_assigned()") == [(None,)]
    strict.commit()
    strict.close()


# I3: the database decides
@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("before", ["new", "claimed"])
def test_key_that_a_snapshot_does_not_show_is_a_serialization_failure(shop, db, level, before):  # noqa: F811
    token = claim(db, effect="keyed", lease="1ms")["token"] if before == "claimed" else None
    db.commit()
    strict = shop.connect(level)
    ask(strict, "SELECT count(*) FROM semel.idempotency")
    token = token or begin(db)["token"]
    assert finish(db, token)
    db.commit()
    if before == "claimed":
        poll(lambda: ask(strict, "SELECT lease_until < clock_timestamp() FROM semel.idempotency")[0][0])
    assert refused(strict, "SELECT * FROM semel.key_begin('alice', %s)", KEY).pgcode == "40001"
    assert told(begin(strict)) == ("replay", "completed")
    strict.close()


def test_backend_that_is_killed_between_begin_and_commit_frees_its_key(shop, two):  # noqa: F811
    first, second = two
    begin(first)
    ask(first, "INSERT INTO ledger VALUES ('charge', 5)")
    os.kill(first.info.backend_pid, 9)  # the server restarts, as after a crash

    def again():
        fresh = shop.connect()
        try:
            answer = begin(fresh)
            return told(answer), count(fresh, "ledger")
        finally:
            fresh.close()
    assert poll(lambda: attempt(again)) == (("run", "new"), 0)


def attempt(what):
    try:
        return what()
    except psycopg2.OperationalError:
        return None


# ---- races ---------------------------------------------------------------------------------------------

def racer(shop, level, seed, keys, queue):  # noqa: F811
    """Sends every request until it has an answer; puts how often it was told what."""
    db = shop.connect(level)
    heard = collections.Counter()
    for key in keys:
        while True:
            try:
                answer = begin(db, key=key, fingerprint=b"same")
                heard[answer["act"]] += 1
                if answer["act"] == "run":
                    ask(db, "INSERT INTO ledger VALUES (%s, 1)", key)
                    finish(db, answer["token"])
                db.commit()
            except psycopg2.errors.SerializationFailure:
                db.rollback()
                continue
            if answer["act"] != "busy":
                break
    db.close()
    queue.put(dict(heard))


# A1 I3: the long form has ten thousand of them
@pytest.mark.parametrize("level", LEVELS)
def test_of_three_sessions_that_race_for_a_key_one_runs(shop, db, level):  # noqa: F811
    n = 10000 if os.environ.get("SEMEL_LONG") else 150
    said = run_workers(racer, shop, level, [f"key-{i:06}" for i in range(n)])
    heard = sum((collections.Counter(one) for one in said), collections.Counter())
    assert heard["run"] == n or level != "READ COMMITTED"
    assert heard["replay"] == 2 * n and heard["mismatch"] == heard["unknown"] == 0
    assert count(db, "ledger") == n
    assert ask(db, "SELECT count(DISTINCT message_id) FROM ledger") == [(n,)]


# ---- effects outside -----------------------------------------------------------------------------------

# A7
def test_claim_is_seen_by_others_and_ends_by_its_token(two):
    first, second = two
    token = claim(first, fingerprint=b"one")["token"]
    first.commit()
    assert told(claim(second, fingerprint=b"one")) == ("busy", "running")
    assert told(claim(second, fingerprint=b"two")) == ("mismatch", "fingerprint")
    assert ask(second, "SELECT semel.key_renew(%s, '5min')", token) == [(True,)]
    assert finish(second, token) is True
    second.commit()
    assert told(claim(first)) == ("replay", "completed")
    assert finish(first, token) is False                                       # it has its answer
    assert ask(first, "SELECT semel.key_renew(%s)", token) == [(False,)]


# A7 P47
def test_outcome_of_a_claim_whose_holder_died_is_unknown_until_its_answer_comes(db):  # noqa: F811
    token = claim(db, fingerprint=b"one")["token"]
    db.commit()
    age(db, lease_until="-1s")
    assert told(claim(db, fingerprint=b"one")) == ("unknown", "lease_expired")
    assert told(claim(db, fingerprint=b"two")) == ("mismatch", "fingerprint")
    assert committed(db, "SELECT semel.tick()") == [(1,)]
    assert row(db, "status", "cause", "key_until") == ("unknown", "lease_expired", None)
    assert told(begin(db)) == ("unknown", "lease_expired")
    assert ask(db, "SELECT semel.key_renew(%s)", token) == [(False,)]
    assert finish(db, token) is True
    db.commit()
    assert told(claim(db)) == ("replay", "completed")


def test_reported_unknown_says_why(db):  # noqa: F811
    token = claim(db)["token"]
    assert ask(db, "SELECT semel.key_fail(%s, 'unknown', 'timeout')", token) == [(True,)]
    db.commit()
    assert told(claim(db)) == ("unknown", "timeout")
    assert ask(db, "SELECT semel.key_fail(%s, 'unknown', 'reset')", token) == [(True,)]
    assert told(claim(db)) == ("unknown", "timeout")
    assert ask(db, "SELECT semel.key_fail(%s, 'released')", token) == [(True,)]  # a late refusal under the last token
    assert told(claim(db)) == ("run", "new")


# A7: what is safe to repeat under its key is repeated, under a new token
@pytest.mark.parametrize("ended", ["lease", "tick", "unknown"])
def test_keyed_claim_runs_again(db, ended):  # noqa: F811
    token = claim(db, effect="keyed")["token"]
    db.commit()
    if ended == "unknown":
        committed(db, "SELECT semel.key_fail(%s, 'unknown')", token)
    else:
        age(db, lease_until="-1s")
    if ended == "tick":
        committed(db, "SELECT semel.tick()")
    again = claim(db, effect="keyed")
    assert told(again) == ("run", "retry") and again["token"] > token
    assert finish(db, token) is False
    assert finish(db, again["token"]) is True


# A9 P96
def test_atomic_claim_lets_one_transaction_commit(two):
    first, second = two
    token = claim(first, effect="atomic")["token"]
    first.commit()
    ask(first, "INSERT INTO ledger VALUES ('one', 1)")
    assert finish(first, token)
    first.commit()
    ask(second, "INSERT INTO ledger VALUES ('doubled by a mesh', 1)")
    assert refused(second, "SELECT semel.key_finish(%s, 200)", token).pgcode == "55000"
    assert count(second, "ledger") == 1


# A9
def test_expired_atomic_claim_runs_again_and_the_late_one_cannot_commit(two):
    first, second = two
    token = claim(first, effect="atomic")["token"]
    first.commit()
    age(first, lease_until="-1s")
    again = claim(second, effect="atomic")
    assert told(again) == ("run", "retry")
    second.commit()
    assert refused(first, "SELECT semel.key_finish(%s, 200)", token).pgcode == "55000"
    age(first, lease_until="-1s")
    assert committed(first, "SELECT semel.tick()") == [(1,)]
    assert count(first, "semel.idempotency") == 0
    assert refused(second, "SELECT semel.key_finish(%s, 200)", again["token"]).pgcode == "55000"


# A9: whoever is about to finish holds the row
def test_claim_does_not_wait_for_a_transaction_that_finishes_the_key(two):
    first, second = two
    token = claim(first, effect="atomic")["token"]
    first.commit()
    age(first, lease_until="-1s")
    assert finish(first, token)
    assert told(claim(second)) == ("busy", "running")
    second.rollback()
    assert committed(second, "SELECT semel.tick()") == [(0,)]
    first.commit()
    assert told(claim(second)) == ("replay", "completed")


# ---- housekeeping --------------------------------------------------------------------------------------

# A6
def test_tick_takes_bodies_and_then_keys_and_leaves_what_has_no_end(db):  # noqa: F811
    for key in ("answer-old", "key-old-1", "young-one"):
        finish(db, begin(db, key=key)["token"])
    claim(db, key="claimed-1")
    ask(db, "SELECT semel.key_fail(%s, 'unknown')", claim(db, key="unknown-1")["token"])
    ask(db, "UPDATE semel.idempotency SET answer_until = now() - interval '1s' WHERE key LIKE '%%old%%'")
    ask(db, "UPDATE semel.idempotency SET key_until = now() - interval '1s' WHERE key = 'key-old-1'")
    ask(db, "UPDATE semel.idempotency SET created_at = now() - interval '9 years', updated_at = created_at "
            "WHERE status <> 'completed'")
    db.commit()
    poll(lambda: committed(db, "SELECT semel.tick()") == [(0,)])
    assert committed(db, "SELECT key, status, body IS NOT NULL FROM semel.idempotency ORDER BY key") == [
        ("answer-old", "completed", False), ("claimed-1", "processing", False), ("unknown-1", "unknown", False),
        ("young-one", "completed", True)]


def test_tick_waits_for_nobody(two):
    first, second = two
    finish(first, begin(first)["token"])
    claim(first, key="claimed-1")
    first.commit()
    age(first, answer_until="-2s", key_until="-1s", lease_until="-1s")
    ask(first, "SELECT * FROM semel.idempotency FOR UPDATE")
    assert committed(second, "SELECT semel.tick()") == [(0,)]
    first.commit()
    assert committed(second, "SELECT semel.tick(1)") == [(1,)]


# What is due of one kind is found behind any number of the other, and nothing else is touched.
def test_tick_finds_its_rows_by_indexes_and_takes_both_kinds(db):  # noqa: F811
    for i in range(6):
        finish(db, begin(db, key=f"finished-{i}")["token"])
    ask(db, "UPDATE semel.idempotency SET answer_until = now() - interval '2s' WHERE key < 'finished-4'")
    ask(db, "UPDATE semel.idempotency SET body = NULL, key_until = now() - interval '1s' WHERE key < 'finished-2'")
    db.commit()
    assert [committed(db, "SELECT semel.tick(1)")[0][0] for _ in range(5)] == [1, 1, 1, 1, 0]
    assert committed(db, "SELECT key, body IS NOT NULL FROM semel.idempotency ORDER BY key") == [
        ("finished-2", False), ("finished-3", False), ("finished-4", True), ("finished-5", True)]


@pytest.mark.parametrize("condition, index", [
    ("status = 'unknown' ORDER BY updated_at", "idempotency_unknown"),
    ("status = 'processing' AND lease_until < now() ORDER BY lease_until", "idempotency_lease"),
    ("status = 'completed' AND CASE WHEN body IS NULL THEN key_until ELSE answer_until END::timestamptz(0) <= now() "
     "ORDER BY CASE WHEN body IS NULL THEN key_until ELSE answer_until END::timestamptz(0)", "idempotency_due"),
    ("token = 1 AND status IN ('processing', 'unknown')", "idempotency_token")])
def test_rows_in_question_are_found_by_their_index(db, condition, index):  # noqa: F811
    ask(db, "SET LOCAL enable_seqscan = off")
    ask(db, "SET LOCAL enable_sort = off")
    plan = ask(db, f"EXPLAIN SELECT FROM semel.idempotency WHERE {condition}")
    assert f" {index} " in plan[0][0] + " ", plan
    db.rollback()


# The last line, whoever writes.
@pytest.mark.parametrize("columns, rule", [
    ({"status": "odd"}, "idempotency_status_check"), ({"scope": ""}, "idempotency_name_check"),
    ({"key": "k" * 256}, "idempotency_name_check"), ({"status": "completed"}, "idempotency_state_check"),
    ({"status": "completed", "code": 201, "completed_at": "now", "answer_until": "now"}, "idempotency_state_check"),
    ({"code": 201, "completed_at": "now", "answer_until": "now", "key_until": "now"}, "idempotency_state_check"),
    ({"status": "unknown", "code": 201, "completed_at": "now", "answer_until": "now", "key_until": "now"},
     "idempotency_state_check"),
    ({}, None), ({"status": "unknown"}, None), ({"code": 201}, None),
    ({"status": "completed", "code": 201, "completed_at": "now", "answer_until": "now", "key_until": "now"}, None)])
def test_row_whose_columns_do_not_fit_is_refused(db, columns, rule):  # noqa: F811
    columns = {"scope": "alice", "key": KEY, "status": "processing", "token": 1, "created_at": "now",
               "updated_at": "now", "lease_until": "infinity", "answer_us": 0, "keep_us": 0, **columns}
    insert = (f"INSERT INTO semel.idempotency ({', '.join(columns)}) "
              f"VALUES ({', '.join(['%s'] * len(columns))})", *columns.values())
    if rule is None:
        ask(db, *insert)
    else:
        with pytest.raises(psycopg2.errors.CheckViolation) as error:
            ask(db, *insert)
        assert error.value.diag.constraint_name == rule
    db.rollback()


# ---- the table of cases --------------------------------------------------------------------------------

TIMES = ("created_at", "updated_at", "lease_until", "completed_at", "answer_until", "key_until")


def plant(db, row):
    columns = ", ".join(row)
    values = ", ".join("to_timestamp(%s)" if name in TIMES else "%s" for name in row)
    committed(db, f"INSERT INTO semel.idempotency ({columns}) VALUES ({values})", *row.values())


def stored(db):
    """The row as it was planted, or None; in the transaction that is open."""
    names = list(key_cases.given_row({"row": "processing"}, 0))
    columns = ", ".join(f"extract(epoch FROM {name})::float8" if name in TIMES else name for name in names)
    rows = ask(db, f"SELECT {columns} FROM semel.idempotency")
    return {name: bytes(value) if isinstance(value, memoryview) else value
            for name, value in zip(names, rows[0])} if rows else None


def happen(db, event, words, row):
    """What the caller is told."""
    if event in ("begin", "claim"):
        more = {"effect": words["effect"]} if "effect" in words else {}
        return " ".join(told({"begin": begin, "claim": claim}[event](
            db, key="key-00001", fingerprint=key_cases.PRINTS[words.get("fp", "A")], **more)))
    if event == "tick":
        return "done" if ask(db, "SELECT semel.tick()")[0][0] else "nothing"
    token = row["token"] - (0 if words["token"] == "own" else 1 << 22)
    sql = {"finish": "key_finish(%s, 201, '[]', 'x')", "release": "key_fail(%s, 'released')",
           "unknown": "key_fail(%s, 'unknown', 'reset')", "renew": "key_renew(%s)"}[event]
    try:
        return "done" if ask(db, f"SELECT semel.{sql}", token)[0][0] else "fenced"
    except psycopg2.errors.ObjectNotInPrerequisiteState:
        db.rollback()
        return "refused"


# A1 A2 A3 A6 A7 A9 P47 P80
def test_every_case_comes_out_as_the_table_says(db):  # noqa: F811
    assert key_cases.names()
    for name, given, event, words, verdict, becomes in key_cases.cases():
        committed(db, "DELETE FROM semel.idempotency")
        now_s = float(committed(db, "SELECT extract(epoch FROM date_trunc('milliseconds', clock_timestamp()))")[0][0])
        row = None
        if "row" in given:
            plant(db, key_cases.given_row(given, now_s))
            row = stored(db)
        assert happen(db, event, words, row) == verdict, name
        key_cases.check(name, becomes, row, stored(db), now_s)
        db.rollback()


# ---- bad input -----------------------------------------------------------------------------------------

BAD_KEYS = [
    ("", "key has 0 characters; it must have 8 to 255"), ("1", "key has 1 characters"), ("1234567", "key has 7 char"),
    ("k" * 256, "key has 256 characters"), ("line\nbreak", "not printable ASCII"), ("del\x7fete-it", "not printable"),
    ("schlüssel", "not printable ASCII"), (None, "key is missing")]


@pytest.mark.parametrize("function", ["key_begin", "key_claim"])
def test_bad_keys_are_refused(db, function):  # noqa: F811
    for key, text in BAD_KEYS:
        caught = refused(db, f"SELECT * FROM semel.{function}('alice', %s)", key)
        assert caught.pgcode == "22023" and text in str(caught)


def test_good_keys_are_taken_and_those_that_are_only_a_time_are_warned_of(db):  # noqa: F811
    for key in ["12345678", "k" * 255, 'quoted "key" ~']:
        assert told(begin(db, key=key)) == ("run", "new") and not db.notices
    for key in ["1731850000", "1731850000123", "1731850000123456789", "2026-11-17", "20261117T133733Z",
                "2026-11-17T13:37:33.123+01:00", "2026-11-17 13:37"]:
        assert told(begin(db, key=key)) == ("run", "new")
        assert "is a time and nothing else" in db.notices.pop()


BAD_ARGUMENTS = [
    ("semel.key_begin(NULL, 'key-00001')", "scope is missing"),
    ("semel.key_begin('', 'key-00001')", "scope is empty"),
    ("semel.key_begin(repeat('s', 256), 'key-00001')", "scope has 256 bytes"),
    ("semel.key_begin('a', 'key-00001', '')", "fingerprint has 0 bytes"),
    ("semel.key_begin('a', 'key-00001', decode(repeat('00', 64), 'hex'))", "fingerprint has 64 bytes"),
    ("semel.key_begin('a', 'key-00001', answer => '23h')", "answer must be at least 24 hours"),
    ("semel.key_begin('a', 'key-00001', answer => '3d', keep => '2d')", "keep must be at least as long as answer"),
    ("semel.key_begin('a', 'key-00001', keep => '4000 days')", "keep at most 3650 days"),
    ("semel.key_begin('a', 'key-00001', keep => NULL)", "keep is missing"),
    ("semel.key_claim('a', 'key-00001', lease => '0s')", "lease must be from 1ms to 1 day"),
    ("semel.key_claim('a', 'key-00001', lease => NULL)", "lease is missing"),
    ("semel.key_claim('a', 'key-00001', effect => 'both')", "effect must be outside, keyed or atomic"),
    ("semel.key_claim('a', 'key-00001', effect => NULL)", "effect must be outside, keyed or atomic"),
    ("semel.key_finish(NULL, 200)", "token is missing"), ("semel.key_finish(0, 200)", "tokens are numbers from 1"),
    ("semel.key_finish(9107199254740992 & ~127, 200)", "which the client has rounded"),
    ("semel.key_finish(1, 99)", "status is 99"), ("semel.key_finish(1, 600)", "status is 600"),
    ("semel.key_finish(1, NULL)", "status is missing"),
    ("""semel.key_finish(1, 200, '{"a": "b"}')""", "headers must be a JSON array of pairs"),
    ("""semel.key_finish(1, 200, '[["a"]]')""", "headers must be a JSON array of pairs"),
    ("""semel.key_finish(1, 200, '[["a", 1]]')""", "headers must be a JSON array of pairs"),
    ("""semel.key_finish(1, 200, jsonb_build_array(jsonb_build_array('a', repeat('x', 70000))))""", "at most 65536"),
    ("semel.key_fail(1, 'done')", "class must be released or unknown"), ("semel.key_fail(1, NULL)", "class is missing"),
    ("semel.key_renew(1, '2 days')", "lease must be from"), ("semel.key_renew(NULL)", "token is missing")]


def test_bad_arguments_are_refused(db):  # noqa: F811
    for sql, text in BAD_ARGUMENTS:
        caught = refused(db, f"SELECT * FROM {sql}")
        assert caught.pgcode == "22023" and text in str(caught)


# P83
def test_keys_of_one_transaction_are_bounded(db):  # noqa: F811
    for i in range(100):
        begin(db, key=f"key-{i:05}")
    assert "more than 100 keys" in str(refused(db, "SELECT * FROM semel.key_begin('alice', 'key-00100')"))


# P49 P92 P102
def test_outcome_by_status(db):  # noqa: F811
    outcomes = {200: "completed", 204: "completed", 302: "completed", 402: "completed", 410: "completed",
                400: "released", 401: "released", 409: "released", 429: "released", 499: "released",
                500: "unknown", 503: "unknown", 599: "unknown", 100: "unknown", 600: "unknown", None: "unknown"}
    for status, word in outcomes.items():
        assert ask(db, "SELECT semel.key_outcome(%s)", status) == [(word,)], status
