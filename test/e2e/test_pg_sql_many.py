# SPDX-License-Identifier: MIT
"""Batches through the SQL functions of PostgreSQL, and duplicates that write nothing."""
import json

import pytest

from pg import pg_server  # noqa: F401  (a fixture)
from pgsql import (LEVELS, ask, begin, call, committed, consumer, count, db, fail, handle, poll, psql,  # noqa: F401
                   psycopg2, refused, shop)

errors = psycopg2.errors


def begin_many(db, *messages, consumer="billing"):  # noqa: F811
    """The answers of a batch: act and why of each."""
    rows = call(db, "inbox_begin_many", consumer=consumer, messages=json.dumps(messages))
    assert [row["ordinal"] for row in rows] == list(range(1, len(messages) + 1))
    return [(row["act"], row["why"]) for row in rows]


def done_many(db, *messages, consumer="billing"):  # noqa: F811
    ask(db, "SELECT semel.inbox_done_many(%s, %s)", consumer, json.dumps(messages))


def one(message_id, **more):
    return {"message_id": message_id, **more}


def xid(db):  # noqa: F811
    """The number of the transaction; None while it has written nothing."""
    return ask(db, "SELECT pg_current_xact_id_if_assigned()::text")[0][0]


# ---- duplicates ----------------------------------------------------------------------------------------

# I25 P90
@pytest.mark.parametrize("more", [{}, {"payload": '{"amount": 1}'}, {"payload": '{ "amount":1 }', "type": "paid"},
                                  {"delivery": 2}, {"headers": '{"h": 1}'}, {"message_time": "2026-01-01 00:00+00"},
                                  {"order_key": "k"}, {"business_key": "b"}, {"strict": False}])
def test_duplicate_writes_nothing_draws_nothing_and_locks_nothing(db, more):
    consumer(db, "billing", order="arrival")
    handle(db, "id-1")
    drawn = ask(db, "SELECT last_value FROM semel.arrival")
    db.rollback()

    def nothing_was_written():
        before = committed(db, "SELECT pg_current_wal_insert_lsn()")
        for _ in range(3):
            told = begin(db, "id-1", **more)
            assert (told["act"], told["why"], told["attempt"], xid(db)) == ("ack", "duplicate", 0, None)
            assert ask(db, "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND (locktype = 'advisory' OR "
                           "mode NOT IN ('AccessShareLock', 'ExclusiveLock'))") == [(0,)]
            db.commit()
        return committed(db, "SELECT pg_current_wal_insert_lsn()") == before

    poll(nothing_was_written)  # the server writes some of its own from time to time
    assert ask(db, "SELECT last_value FROM semel.arrival") == drawn


# I25 P90
@pytest.mark.parametrize("function, more", [
    ("inbox_claim", {}), ("inbox_put", {}), ("inbox_fail", {"class": "unknown"})])
def test_duplicate_for_another_call_than_a_begin_writes_nothing(db, function, more):
    consumer(db, "billing", effect="atomic")
    handle(db, "id-1")
    told = call(db, function, consumer="billing", message_id="id-1", payload='{"amount": 1}', **more)[0]
    assert (told["act"], told["why"], xid(db)) == ("ack", "duplicate", None)


# I25 P90
def test_batch_of_duplicates_writes_nothing(db):
    ids = [one(f"id-{n}", payload={"n": n}) for n in range(50)]
    assert begin_many(db, *ids) == [("run", "new")] * 50
    done_many(db, *[one(m["message_id"]) for m in ids])
    db.commit()
    assert begin_many(db, *ids, *ids) == [("ack", "duplicate")] * 100  # copies, too
    assert xid(db) is None


# P90: an answer without a lock is one for READ COMMITTED alone
@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("more", [{}, {"payload": '{"amount": 1}'}])  # each has a look of its own
def test_duplicate_above_read_committed_locks_its_row(shop, level, more):  # noqa: F811
    db = shop.connect(level)  # noqa: F811
    begin(db, "id-1", **more)
    committed(db, "SELECT semel.inbox_done('billing', 'id-1')")
    assert begin(db, "id-1", **more)["why"] == "duplicate" and xid(db) is not None
    db.rollback()
    assert begin_many(db, one("id-1")) == [("ack", "duplicate")] and xid(db) is not None
    db.close()


# P16: a COMMIT that writes nothing would not wait for the standby
def test_duplicate_is_locked_where_commits_wait_for_a_standby(shop):  # noqa: F811
    db = shop.connect(autocommit=True)  # noqa: F811
    ask(db, "SET synchronous_commit = local")
    ask(db, "BEGIN; SELECT * FROM semel.inbox_begin('billing', 'id-1'); SELECT semel.inbox_done('billing', 'id-1'); "
            "COMMIT")
    ask(db, "ALTER SYSTEM SET synchronous_standby_names = 'none_such'")
    try:
        ask(db, "SELECT pg_reload_conf()")
        poll(lambda: ask(db, "SHOW synchronous_standby_names") == [("none_such",)])
        for more in [{}, {"type": "paid"}]:
            ask(db, "BEGIN")
            assert begin(db, "id-1", **more)["why"] == "duplicate" and xid(db) is not None
            ask(db, "ROLLBACK")
    finally:
        ask(db, "ALTER SYSTEM RESET synchronous_standby_names")
        ask(db, "SELECT pg_reload_conf()")
        db.close()


# I3: while it has no end, it is nobody's
def test_message_in_hand_is_busy_and_an_earlier_one_of_the_transaction_is_a_duplicate_when_it_is_done(db):
    begin(db, "id-1")
    assert begin(db, "id-1")["why"] == "busy"
    assert begin(db, "id-2")["act"] == "run"
    assert (begin(db, "id-1")["why"], begin(db, "id-2")["why"]) == ("busy", "busy")
    ask(db, "SELECT semel.inbox_done('billing', 'id-1')")
    assert (begin(db, "id-1")["why"], begin(db, "id-2")["why"]) == ("duplicate", "busy")
    refused(db, None, error=psycopg2.IntegrityError)
    assert count(db) == 0


# P59: whatever a session does to its settings, what has no end does not commit
@pytest.mark.parametrize("sql", ["RESET ALL", "RESET semel.begun", "SET LOCAL semel.begun = ''",
                                 "SET LOCAL semel.begun = 'nonsense'"])
def test_settings_that_are_lost_do_not_let_a_begin_commit_without_its_end(db, sql):
    begin(db, "id-1")
    ask(db, sql)
    refused(db, None, error=psycopg2.IntegrityError)
    assert count(db) == 0


# P59: where constraints are not deferred, a begin that would have to wait for its end is refused
@pytest.mark.parametrize("more", [{}, {"payload": {"amount": 1}}, {"business_key": "b"}, {"order_key": "k"}])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("seen", [False, True])
def test_begin_behind_forced_constraints_does_not_commit_without_its_end(db, more, many, seen):
    consumer(db, "billing", order="arrival")
    if seen:
        handle(db, "id-0")
    ask(db, "SET CONSTRAINTS ALL IMMEDIATE")
    with pytest.raises(psycopg2.IntegrityError):
        if many:
            begin_many(db, one("id-1", **more))
        else:
            begin(db, "id-1", **{name: json.dumps(v) if name == "payload" else v for name, v in more.items()})
        db.commit()
    db.rollback()
    assert count(db) == seen


# P59: only a begin has to be ended: who restores rows of a dump has begun nothing
def test_rows_that_were_begun_are_restored_by_a_session_that_begins_nothing(db):
    handle(db, "id-1")
    db.rollback()
    with psycopg2.connect(db.dsn) as other, other.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE kept AS SELECT * FROM semel.record; DELETE FROM semel.record; "
                       "INSERT INTO semel.record SELECT * FROM kept")
    other.close()
    assert begin(db, "id-1")["why"] == "duplicate"


# P86: what a setting says is believed only of rows of this transaction
def test_forged_setting_changes_no_row_of_another_transaction(db):
    begin(db, "id-1", payload='{"amount": 1}')
    committed(db, "SELECT semel.inbox_done('billing', 'id-1', outcome => '1')")
    ask(db, "SELECT set_config('semel.begun', 'n7 0 billingid-1', true)")
    ask(db, "SELECT semel.inbox_done('billing', 'id-1', outcome => '2')")
    db.commit()
    ask(db, "SELECT set_config('semel.begun', 'n7 0 billingid-1', true)")
    assert fail(db, "id-1", "permanent")["why"] == "duplicate"
    db.commit()
    assert committed(db, "SELECT status, outcome FROM semel.inbox") == [("completed", "1")]


# I6, I14: what a setting can hold, and what it cannot
@pytest.mark.parametrize("size", [0, 1, 2000, 2001, 100000])
def test_payload_in_hand_is_kept_when_the_message_fails_whatever_its_size(db, size):
    raw = bytes(i % 256 for i in range(size))
    begin(db, "id-1", raw=psycopg2.Binary(raw))
    ask(db, "SAVEPOINT effect; ROLLBACK TO effect")
    assert fail(db, "id-1", "transient")["act"] == "ack"
    db.commit()
    assert bytes(committed(db, "SELECT payload FROM semel.inbox")[0][0]) == raw


@pytest.mark.parametrize("function", ["inbox_begin", "inbox_claim", "inbox_put"])
def test_id_may_be_a_bigint(db, function):
    consumer(db, "billing", effect="atomic")
    payload = ", payload => '{}'"
    assert ask(db, f"SELECT why FROM semel.{function}('billing', 42::bigint{payload})") == [("new",)]
    if function == "inbox_begin":
        ask(db, "SELECT semel.inbox_done('billing', 42)")
    db.commit()
    assert ask(db, "SELECT message_id FROM semel.inbox") == [("42",)]
    ask(db, "SELECT * FROM semel.inbox_fail('billing', 43, class => 'transient')")


# ---- batches -------------------------------------------------------------------------------------------

# I2 I3 I25
@pytest.mark.parametrize("level", LEVELS)
def test_batch_is_begun_done_and_a_batch_of_duplicates(shop, level):  # noqa: F811
    db = shop.connect(level)  # noqa: F811
    ids = [one(f"id-{n}", source="s", payload={"n": n}) for n in range(100)]
    assert begin_many(db, *ids) == [("run", "new")] * 100
    ask(db, "INSERT INTO ledger SELECT 'x', 1 FROM generate_series(1, 100)")
    done_many(db, *[one(m["message_id"], source="s", **({"outcome": {"n": n}} if n % 2 else {}))
                    for n, m in enumerate(ids)])
    db.commit()
    told = call(db, "inbox_begin_many", consumer="billing", messages=json.dumps(ids))
    assert {(row["act"], row["why"], row["source"]) for row in told} == {("ack", "duplicate", "s")}
    assert [row["outcome"] for row in told] == [{"n": n} if n % 2 else None for n in range(100)]
    db.commit()
    assert (count(db), count(db, "semel.begun"), count(db, "semel.held")) == (100, 0, 0)
    db.close()


# I25: the rules are the same, whatever else is in the batch
def test_batch_gives_the_answers_of_one_call_after_the_other(db):
    late = dict(retry_first="1h", retry_ceiling="1h")  # what failed stays in its backoff however long the calls take
    consumer(db, "billing", order="version", first_version=1, **late)
    consumer(db, "mail", order="arrival", retention="1h", **late)
    committed(db, "INSERT INTO semel.watermark VALUES ('mail', '', now() - interval '1 day', now())")
    for name, more in [("billing", dict(order_key="k", version=0)), ("mail", dict(order_key="k"))]:
        fail(db, f"{name}-failed", "transient", consumer=name, payload="{}", **more)
        db.commit()
    begin(db, "done", consumer="mail", payload='{"a": 1}')
    ask(db, "SELECT semel.inbox_done('mail', 'done', outcome => '7')")
    db.commit()
    batches = {
        "mail": [one("a"), one("a"), one("b", payload={"b": 1}), one("b", payload={"b": 2}), one(None),
                 one("c", order_key="k", payload={}), one("d", order_key="l"), one("e", order_key="l", payload={}),
                 one("f", business_key="i"), one("g", business_key="i", payload={}), one("done", payload={"a": 1}),
                 one("done", payload={"a": 2}), one("mail-failed", order_key="k", payload={}),
                 one("old", message_time="2001-01-01 00:00+00"), one("large", raw="\\x" + "00" * 2000000),
                 one("0190163d-8694-739b-aea5-966c26f8ad91"), one("h", headers={"h": 1}), one("i", delivery=3),
                 one(17, fingerprint="\\x01")],
        "billing": [one("v1", order_key="o", version=1), one("v3", order_key="o", version=3, payload={}),
                    one("none"), one("v1b", order_key="o", version=1, payload={})],
    }
    seen = set()
    for name, batch in batches.items():
        many = begin_many(db, *batch, consumer=name)
        db.rollback()
        single = []
        for m in batch:
            m = {key: json.dumps(value) if key in ("payload", "headers") else value for key, value in m.items()}
            if isinstance(m["message_id"], int):
                m["message_id"] = str(m["message_id"])
            told = call(db, "inbox_begin", consumer=name, **m)[0]
            single.append((told["act"], told["why"]))
        db.rollback()
        assert many == single
        seen |= {why for _, why in many}
    assert seen >= {"new", "busy", "no_id", "blocked", "duplicate", "conflict", "business_duplicate", "too_old", "dead"}


# P59
def test_batch_without_its_done_cannot_commit(db):
    begin_many(db, *[one(f"id-{n}") for n in range(3)])
    done_many(db, one("id-0"), one("id-2"))
    ask(db, "INSERT INTO ledger VALUES ('id-0', 1)")
    error = refused(db, None, error=psycopg2.IntegrityError)
    assert error.diag.constraint_name == "begun_has_its_end"
    assert (count(db), count(db, "ledger")) == (0, 0)


# P59
def test_savepoint_takes_a_batch_or_its_done_back(db):
    ask(db, "SAVEPOINT s")
    begin_many(db, one("id-1"), one("id-2"))
    ask(db, "ROLLBACK TO s")
    assert "rolled back" in str(refused(db, "SELECT semel.inbox_done_many('billing', '[{\"message_id\": \"id-1\"}]')"))
    begin_many(db, one("id-1"), one("id-2"))
    ask(db, "SAVEPOINT s")
    done_many(db, one("id-1"), one("id-2"))
    ask(db, "ROLLBACK TO s")
    refused(db, None, error=psycopg2.IntegrityError)
    begin_many(db, one("id-1"), one("id-2"))
    ask(db, "SAVEPOINT s")
    done_many(db, one("id-1"), one("id-2"))
    ask(db, "RELEASE s")
    db.commit()
    assert count(db) == 2


def test_batch_is_ended_one_by_one_and_single_begins_by_a_batch(db):
    begin_many(db, one("a"), one("b"), one("c", payload={"c": 1}))
    begin(db, "d")
    ask(db, "SELECT semel.inbox_done('billing', 'a')")
    told = call(db, "inbox_fail_many", consumer="billing", messages=json.dumps(
        [one("c", **{"class": "transient"}), one("e", **{"class": "rejected", "reason": "no"})]))
    assert [(row["ordinal"], row["message_id"], row["act"], row["status"]) for row in told] == [
        (1, "c", "ack", "failed"), (2, "e", "ack", "rejected")]
    done_many(db, one("d"), one("b", outcome=1))
    db.commit()
    assert committed(db, "SELECT message_id, status, outcome, convert_from(payload, 'UTF8') FROM semel.inbox "
                         "ORDER BY message_id") == [
        ("a", "completed", None, None), ("b", "completed", "1", None), ("c", "failed", None, '{"c": 1}'),
        ("d", "completed", None, None), ("e", "rejected", None, None)]


def test_done_of_a_copy_or_of_a_stranger_is_refused(db):
    begin_many(db, one("a"))
    error = refused(db, "SELECT semel.inbox_done_many('billing', %s)", json.dumps([one("a"), one("a")]))
    assert error.pgcode == "55000" and "message 2: the message was not begun" in str(error)
    begin_many(db, one("a"))
    assert refused(db, "SELECT semel.inbox_done_many('mail', %s)", json.dumps([one("a")])).pgcode == "55000"


# I3, T2
def test_message_of_a_batch_that_another_transaction_holds_is_busy(shop, db):  # noqa: F811
    other = shop.connect()
    assert handle(other, "id-9") == ("run", "new")  # the stream has its number
    begin(other, "id-1")
    assert begin_many(db, one("id-0"), one("id-1"), one("id-2")) == [
        ("run", "new"), ("later", "busy"), ("run", "new")]
    other.close()


# P12 P13
@pytest.mark.parametrize("level", LEVELS)
def test_batch_after_an_older_snapshot(shop, level):  # noqa: F811
    db = shop.connect(level)  # noqa: F811
    ask(db, "SELECT count(*) FROM ledger")
    assert handle(shop.connect(), "id-1") == ("run", "new")
    if level == "READ COMMITTED":
        assert begin_many(db, one("id-0"), one("id-1")) == [("run", "new"), ("ack", "duplicate")]
    else:
        with pytest.raises(errors.SerializationFailure):
            begin_many(db, one("id-0"), one("id-1"))
    db.close()


# P83
def test_batch_locks_no_more_than_a_few_names(db):
    begin_many(db, *[one(f"id-{n}") for n in range(3000)])
    # 32 messages, and the stream that is new
    assert ask(db, "SELECT count(*) <= 33 FROM pg_locks WHERE locktype = 'advisory'") == [(True,)]


# A number of JavaScript does not hold them all
def test_version_may_be_text(db):
    consumer(db, "billing", order="version", first_version="any")
    for version in (5, 2 ** 63 - 2):
        for given in (version, str(version)):
            assert begin_many(db, one("a", order_key="k", version=given), one("b", order_key="l", version=given)) == [
                ("run", "new"), ("run", "new")]
            assert ask(db, "SELECT version FROM semel.inbox") == [(version,), (version,)]
            db.rollback()


@pytest.mark.parametrize("messages, text", [
    ("null", "messages is null; it must be a JSON array"), ('{"message_id": "a"}', "messages is an object"),
    ('"a"', 'messages is "a"'), ("[1]", "message 1 is 1; it must be an object"),
    ('[{"message_id": "a"}, null]', "message 2 is null"), ('[["a"]]', "message 1 is a list"),
    ('[{"id": "a"}]', 'message 1 has a member "id"; the members are business_key'),
    ('[{"message_id": {}}]', "message 1: message_id is an object; it must be of type string or number"),
    ('[{"message_id": "a", "version": []}]', "message 1: version is a list; it must be of type number or string"),
    *((json.dumps([{"message_id": "a"}, {"message_id": "b", "version": wrong}]),
       f'message 2: version is "{wrong}"; it must be a whole number from 0 to 2^63-2')
      for wrong in ["x", "", "1.5", "-1", "+1", " 1", "1e3", str(2 ** 63 - 1), str(10 ** 19)]),
    *((json.dumps([one("a"), one("b", version=wrong)]), f"message 2: version is {wrong}; it must be a whole number")
      for wrong in [1.5, -1, 2 ** 63 - 1]),
    ('[{"message_id": "a", "source": 1}]', "source is 1; it must be of type string"),
    ('[{"message_id": "a", "delivery": 1.5}]', 'inbox_begin_many: messages: invalid input syntax for type integer: "1'),
    ('[{"message_id": "a", "raw": "\\\\xz"}]', "inbox_begin_many: messages: invalid hexadecimal digit"),
    ('[{"message_id": "a", "message_time": "someday"}]', "inbox_begin_many: messages: invalid input syntax for type"),
    ('[{"message_id": "a"}, {"message_id": "b", "order_key": ""}]',
     "inbox_begin_many: message 2: order_key is empty; it must have 1 to 255 bytes"),
    ('[{"message_id": "a", "strict": false}]', 'has a member "strict"'),
    ('[{"message_id": ""}]', "message_id is empty"), ('[{"message_id": "%s"}]' % ("x" * 256), "has 256 bytes"),
    ('[{"message_id": "a", "payload": 1, "raw": "1"}]', "give one of them"),
])
def test_bad_batch_is_refused_with_what_would_be_right(db, messages, text):
    error = refused(db, "SELECT * FROM semel.inbox_begin_many('billing', %s)", messages)
    assert text in error.diag.message_primary and error.pgcode == "22023"
    assert count(db) == 0


def test_batch_has_at_most_ten_thousand_messages(db):
    messages = json.dumps([one(str(n)) for n in range(10001)])
    for function in ["inbox_begin_many", "inbox_done_many", "inbox_fail_many"]:
        error = refused(db, f"SELECT semel.{function}('billing', %s)", messages)
        assert f"{function}: messages has 10001 elements; at most 10000 are allowed" in str(error)


def test_batch_may_be_empty_or_missing(db):
    for function in ["inbox_begin_many", "inbox_done_many", "inbox_fail_many"]:
        assert len(ask(db, f"SELECT * FROM semel.{function}('billing', '[]')")) == (function == "inbox_done_many")
        assert f"{function}: messages is missing" in str(refused(db, f"SELECT semel.{function}('billing', NULL)"))
        assert f"{function}: consumer is missing" in str(refused(db, f"SELECT semel.{function}(NULL, '[]')"))


# P86
def test_batch_needs_the_right_to_act_for_its_consumer(shop, db):  # noqa: F811
    committed(db, "DROP ROLE IF EXISTS many_app; CREATE ROLE many_app LOGIN; GRANT USAGE ON SCHEMA semel TO many_app; "
                  "GRANT EXECUTE ON FUNCTION semel.inbox_begin_many(text, jsonb), semel.inbox_done_many(text, jsonb), "
                  "semel.inbox_fail_many(text, jsonb), semel.inbox_begin(text, text, text, text, jsonb, bytea, jsonb, "
                  "text, text, bigint, bytea, timestamptz, integer, boolean) TO many_app; "
                  "INSERT INTO semel.access VALUES ('billing', 'many_app')")
    app = shop.connect(role="many_app")
    assert begin_many(app, one("a")) == [("run", "new")]
    done_many(app, one("a"))
    app.commit()
    for function in ["inbox_begin_many", "inbox_done_many", "inbox_fail_many"]:
        assert refused(app, f"SELECT semel.{function}('mail', '[]')").pgcode == "42501"
    assert refused(app, "SELECT semel.inbox_begin('mail', 'a')").pgcode == "42501"
    begin(app, "b")
    refused(app, None, error=psycopg2.IntegrityError)
    app.close()
    committed(db, "DROP OWNED BY many_app; DROP ROLE many_app")
