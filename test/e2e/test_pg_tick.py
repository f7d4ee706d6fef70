# SPDX-License-Identifier: MIT
"""semel.tick() from many sessions: it waits for no lock, recovers for all before it purges, forgets only what is old by
its end and by its time, and wakes heads that have no due time; and the lock table of the cluster."""
import concurrent.futures
import json
import os
import threading
import uuid

import pytest

from pgsql import (Shop, ask, begin, call, committed, consumer, count, db, handle, pg_server, poll,  # noqa: F401
                   psycopg2, shop)

SESSIONS = 16
CONSUMERS = [f"c{n}" for n in range(10)]


# ---- in step -------------------------------------------------------------------------------------------

def old_rows(database):
    """Rows of three sources of every consumer that a tick has to purge, with a time and without."""
    committed(database, """
        INSERT INTO semel.inbox (arrival, received_at, updated_at, processed_at, message_time, consumer, source,
                                 message_id, status)
        SELECT n, now(), now(), now() - interval '3 hours', CASE WHEN n %% 2 = 0 THEN now() - interval '3 hours' END,
               'c' || n %% 10, 's' || n %% 3, 'old-' || n, 'completed'
        FROM generate_series(1, 3000) AS n""")


def claims(database, round_number):
    """Three leases that run out at once, of every consumer."""
    for name in CONSUMERS:
        for n in range(3):
            call(database, "inbox_claim", consumer=name, message_id=f"m-{round_number}-{n}", payload="{}", lease="1ms",
                 order_key=f"k-{round_number}-{n}")
    database.commit()


def tick_in_step(barrier, database, rounds):
    """What each tick did: a number, or the error that it met."""
    said = []
    for _ in range(rounds):
        barrier.wait(timeout=60)
        try:
            said.append(committed(database, "SELECT semel.tick(100)")[0][0])
        except psycopg2.Error as error:
            database.rollback()
            said.append(str(error))
        barrier.wait(timeout=60)
    return said


def expired(database):
    return committed(database, "SELECT count(*) FROM semel.inbox WHERE status = 'processing' AND lease_until < now()")


# A5 P77
def test_sixteen_sessions_in_step_never_deadlock_and_recover_within_two_periods(shop):  # noqa: F811
    feeder = shop.connect()
    for name in CONSUMERS:
        consumer(feeder, name, effect="outside", order="arrival", retention="1h")
    old_rows(feeder)
    sitter, reader = shop.connect(), shop.connect("REPEATABLE READ")
    ask(reader, "SELECT act FROM semel.inbox_claim('c3', 'r', 's1', payload => '{}', "
                "message_time => now() - interval '2 hours')")
    claims(feeder, 0)
    ask(sitter, "SELECT semel.tick(50)")  # and stays open, with what it has recovered and purged
    sessions = [shop.connect() for _ in range(SESSIONS)]
    for session in sessions:
        committed(session, "SET lock_timeout = '2s'")  # of the server's own: the growth of a table takes one, too
    barrier = threading.Barrier(SESSIONS + 1)
    rounds = 6
    with concurrent.futures.ThreadPoolExecutor(SESSIONS) as pool:
        ticks = [pool.submit(tick_in_step, barrier, session, rounds) for session in sessions]
        for n in range(rounds):
            if n % 2 == 0 and n > 0:
                claims(feeder, n)
            barrier.wait(timeout=60)
            barrier.wait(timeout=60)
            if n % 2 == 1:  # two periods after they ran out
                held = committed(feeder, "SELECT count(*) FROM semel.inbox WHERE status = 'processing' "
                                         "AND lease_until < now() AND message_id LIKE %s", f"m-{n - 1}-%")
                assert n == 1 or held == [(0,)]
        said = [one for tick in ticks for one in tick.result()]
    assert [one for one in said if not isinstance(one, int)] == []
    sitter.commit()
    reader.rollback()
    poll(lambda: committed(feeder, "SELECT semel.tick()") and expired(feeder) == [(0,)])
    poll(lambda: committed(feeder, "SELECT semel.tick()")[0][0] >= 0
         and committed(feeder, "SELECT count(*) FROM semel.inbox WHERE message_id LIKE 'old-%%'") == [(0,)])
    for session in [feeder, sitter, reader, *sessions]:
        session.close()


# A5 P77
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_tick_waits_for_nobody(shop, level):  # noqa: F811
    holder, ticker = shop.connect(level), shop.connect()
    committed(ticker, "SET lock_timeout = '1ms'")
    consumer(ticker, "billing", effect="outside", order="arrival", retention="1h")
    for name in ("a", "b"):
        call(ticker, "inbox_claim", consumer="billing", message_id=name, payload="{}", lease="1ms", order_key=name)
    ticker.commit()
    committed(ticker, """INSERT INTO semel.inbox (arrival, received_at, updated_at, processed_at, message_time,
                                                  consumer,
                         source, message_id, status) VALUES (1, now(), now(), now() - interval '3 hours',
                         now() - interval '3 hours', 'billing', '', 'old', 'completed')""")
    # It holds an order key, the row behind another one, and the name of a watermark that is not there yet.
    ask(holder, "SELECT act FROM semel.inbox_claim('billing', 'c', payload => '{}', order_key => 'a', "
                "message_time => now() - interval '2 hours')")
    assert committed(ticker, "SELECT semel.tick()") == [(2 if level == "READ COMMITTED" else 1,)]
    assert committed(ticker, "SELECT message_id, status FROM semel.inbox WHERE message_id IN ('a', 'b') "
                             "ORDER BY 1") == [
        ("a", "processing"), ("b", "unknown")]
    holder.commit()
    assert committed(ticker, "SELECT semel.tick()") == [(1 if level == "READ COMMITTED" else 2,)]
    holder.close()
    ticker.close()


# A5: what is recovered first must not starve behind what is purged
def test_every_consumer_has_its_turn_when_max_is_small(shop, db):  # noqa: F811
    for name in CONSUMERS:
        consumer(db, name, effect="outside", retention="1h")
    old_rows(db)
    for name in CONSUMERS:
        call(db, "inbox_claim", consumer=name, message_id="m", payload="{}", lease="1ms")
    db.commit()
    assert committed(db, "SELECT semel.tick(10)") == [(10,)]
    assert expired(db) == [(0,)]


# A5: the same where what is before it in the order of names never comes to an end
def test_no_consumer_starves_behind_one_that_has_much_to_purge(shop, db):  # noqa: F811
    for name, n in (("a", 3000), ("z", 1)):
        consumer(db, name, retention="1h")
        committed(db, """INSERT INTO semel.inbox (arrival, received_at, updated_at, processed_at, consumer, source,
                                                  message_id, status)
                         SELECT n, now(), now(), now() - interval '3 hours', %s, '', 'm' || n, 'completed'
                         FROM generate_series(1, %s) AS n""", name, n)
    for _ in range(100):  # by chance alone each of them begins every second time
        assert committed(db, "SELECT semel.tick(5)") == [(5,)]
        if committed(db, "SELECT count(*) FROM semel.inbox WHERE consumer = 'z'") == [(0,)]:
            return
    raise AssertionError("z had no turn")


# ---- the sweep -----------------------------------------------------------------------------------------

def waiting(database, n_keys):
    """The first of each key waits without a due time."""
    committed(database, """
        INSERT INTO semel.order_key (consumer, order_key) SELECT 'billing', 'k' || n FROM generate_series(1, %s) AS n;
        INSERT INTO semel.inbox (arrival, received_at, updated_at, consumer, source, message_id, status, order_key,
                                 error_class, payload)
        SELECT n, now(), now(), 'billing', '', 'm' || n, 'waiting', 'k' || n, 'blocked', ''
        FROM generate_series(1, %s) AS n""", n_keys, n_keys)


# A3 A5
def test_sweep_takes_a_hundred_keys_a_tick_from_where_the_last_one_stopped(shop, db):  # noqa: F811
    consumer(db, "billing", order="arrival")
    waiting(db, 250)
    committed(db, "UPDATE semel.inbox SET payload = NULL")  # none of them can be woken yet
    assert committed(db, "SELECT semel.tick()") == [(0,)]
    committed(db, "UPDATE semel.inbox SET payload = ''")
    assert [committed(db, "SELECT semel.tick()")[0][0] for _ in range(4)] == [100, 100, 50, 0]


# A5: a session that sits in its transaction stops no sweep
def test_sweep_goes_on_beside_a_session_that_sits_in_its_transaction(shop, db):  # noqa: F811
    other = shop.connect()
    committed(other, "SET lock_timeout = '1ms'")
    consumer(db, "billing", order="arrival")
    waiting(db, 30)
    assert ask(db, "SELECT semel.tick(10)") == [(10,)]
    assert committed(other, "SELECT semel.tick()") == [(20,)]
    db.commit()
    other.close()


# ---- what is forgotten ---------------------------------------------------------------------------------

def age(database, message_id, processed):
    committed(database, "UPDATE semel.inbox SET processed_at = now() - %s::interval WHERE message_id = %s", processed,
              message_id)


# A11 I18
def test_new_consumer_of_an_old_topic_runs_everything_slow_partitions_too(db):  # noqa: F811
    consumer(db, "billing", retention="1h")
    assert handle(db, "fast", message_time="2020-01-02 00:00+00") == ("run", "new")
    assert committed(db, "SELECT semel.tick()") == [(0,)]
    assert count(db, "semel.watermark") == 0
    assert handle(db, "slow", message_time="2020-01-01 00:00+00") == ("run", "new")
    age(db, "fast", "2 hours")
    assert committed(db, "SELECT semel.tick()") == [(1,)]
    assert committed(db, "SELECT watermark = '2020-01-02 00:00:00.000001+00' FROM semel.watermark") == [(True,)]
    assert handle(db, "fast", message_time="2020-01-02 00:00+00") == ("ack", "too_old")
    assert handle(db, "next", message_time="2020-01-02 00:00:00.000001+00") == ("run", "new")


# A11
def test_purge_looks_at_ten_times_as_many_rows_as_it_may_delete(db):  # noqa: F811
    consumer(db, "billing", retention="1h")
    committed(db, """
        INSERT INTO semel.inbox (arrival, received_at, updated_at, processed_at, message_time, consumer, source,
                                 message_id, status)
        SELECT n, now(), now(), now() - interval '3 hours' + n * interval '1 second',
               CASE WHEN n <= 40 THEN now() + interval '1 day' END, 'billing', '', 'm' || n, 'completed'
        FROM generate_series(1, 60) AS n""")
    assert committed(db, "SELECT semel.tick(3)") == [(0,)]  # thirty, and all of them are of tomorrow
    assert committed(db, "SELECT semel.tick(5)") == [(5,)]


# A11
def test_conflicts_go_by_age_and_a_hundred_of_a_message_are_kept(db):  # noqa: F811
    consumer(db, "billing", retention="1h")
    assert handle(db, "a", 1) == ("run", "new")
    for amount in range(2, 107):
        assert handle(db, "a", amount) == ("ack", "conflict")
    assert count(db, "semel.conflict") == 100
    assert committed(db, "SELECT min(convert_from(payload, 'UTF8')::jsonb ->> 'amount') FROM semel.conflict "
                         "WHERE convert_from(payload, 'UTF8')::jsonb ->> 'amount' IN ('2', '6', '7')") == [("7",)]
    committed(db, "UPDATE semel.conflict SET last_at = now() - interval '2 hours' "
                  "WHERE (convert_from(payload, 'UTF8')::jsonb ->> 'amount')::int < 50")
    committed(db, "SELECT semel.tick()")
    assert count(db, "semel.conflict") == 57


# A11: a last version tells old from new for ever
def test_order_keys_that_say_nothing_are_forgotten(db):  # noqa: F811
    consumer(db, "billing", retention="1h", order="arrival")
    for message_id, key in [("a", "done"), ("b", "young")]:
        begin(db, message_id, order_key=key)
        call(db, "inbox_done", consumer="billing", message_id=message_id)
        db.commit()
    begin(db, "c", order_key="open", payload="{}")
    call(db, "inbox_fail", consumer="billing", message_id="c", order_key="open", payload="{}", **{"class": "permanent"})
    db.commit()
    committed(db, "INSERT INTO semel.order_key (consumer, order_key, last_version) VALUES ('billing', 'version', 7)")
    committed(db, "UPDATE semel.order_key SET updated_at = now() - interval '2 hours' WHERE order_key <> 'young'")
    committed(db, "SELECT semel.tick()")
    assert committed(db, "SELECT order_key FROM semel.order_key ORDER BY 1") == [("open",), ("version",), ("young",)]


# A11
def test_order_key_that_goes_while_it_is_wanted_is_made_again(shop, db):  # noqa: F811
    other = shop.connect()
    consumer(db, "billing", retention="1h", order="arrival")
    committed(db, "INSERT INTO semel.order_key (consumer, order_key, updated_at) "
                  "VALUES ('billing', 'k', now() - interval '2 hours')")
    ask(db, "SELECT semel.tick()")
    assert ask(db, "SELECT count(*) FROM semel.order_key") == [(0,)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        told = pool.submit(begin, other, "a", order_key="k")
        poll(lambda: ask(db, "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s "
                             "AND pg_stat_clear_snapshot() IS NOT NULL", other.info.backend_pid))
        db.commit()
        assert told.result()["act"] == "run"
    call(other, "inbox_done", consumer="billing", message_id="a")
    other.commit()
    assert count(db, "semel.order_key") == 1
    other.close()


# ---- the lock table ------------------------------------------------------------------------------------

LONG = pytest.mark.skipif(os.environ.get("SEMEL_LONG") != "1", reason="SEMEL_LONG=1 runs it")


# A2 A5: a key that somebody else has written stops nobody but its own messages
def test_damaged_order_key_stops_neither_tick_nor_take(shop, db):  # noqa: F811
    for name, key in (("a", "bad"), ("a", "good"), ("b", "good")):
        consumer(db, name, effect="keyed", order="version", retry_first="1ms", retry_ceiling="1ms")
        call(db, "inbox_claim", consumer=name, message_id=f"m-{key}", payload="{}", order_key=key, version=1,
             lease="1ms")
        db.commit()
    committed(db, "UPDATE semel.order_key SET skipped = '{5,5}' WHERE order_key = 'bad'")
    poll(lambda: committed(db, "SELECT semel.tick()") and committed(
        db, "SELECT count(*) FROM semel.inbox WHERE status = 'failed'") == [(2,)])
    assert any("damaged order key" in notice for notice in db.notices)
    committed(db, "UPDATE semel.inbox SET status = 'failed', due_at = now() - interval '1h', lease_until = NULL, "
                  "lease_owner = NULL, lease_token = NULL WHERE message_id = 'm-bad'")
    assert poll(lambda: committed(db, "SELECT message_id FROM semel.inbox_take('a')")) == [("m-good",)]
    with pytest.raises(psycopg2.errors.DataCorrupted):
        call(db, "inbox_claim", consumer="a", message_id="m-2", payload="{}", order_key="bad", version=2)


# A11 P83
@pytest.mark.parametrize("n", [40, pytest.param(15000, marks=LONG)])
def test_transaction_of_many_messages_leaves_the_lock_table_to_the_others(shop, db, n):  # noqa: F811
    other = shop.connect()
    consumer(db, "billing", effect="atomic")
    committed(db, "INSERT INTO semel.stream (consumer, source) VALUES ('billing', '')")  # else all are busy by that
    ask(db, "DO $$ BEGIN FOR n IN 1..%s LOOP PERFORM semel.inbox_put('billing', 'm' || n, payload => '{}'); "
            "END LOOP; END $$", n)
    assert ask(db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0][0] <= 32
    assert begin(other, "m32")["why"] == "busy"  # one of the first is told at once, a later one is waited for
    other.rollback()
    committed(other, "SET lock_timeout = '50ms'")
    with pytest.raises(psycopg2.errors.LockNotAvailable):
        begin(other, "m33")
    other.rollback()
    db.commit()
    assert count(db) == n
    other.close()


# ---- the cut -------------------------------------------------------------------------------------------

def stop_clock(database, at):
    committed(database, "CREATE OR REPLACE FUNCTION semel._now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
                        f"$$ SELECT '{at}'::timestamptz $$")


# A11 I18
def test_purge_cuts_at_the_full_minute(db):  # noqa: F811
    consumer(db, "billing", retention="1h")
    stop_clock(db, "2026-03-01 10:30:20+00")
    handle(db, "a")
    call(db, "inbox_begin", consumer="billing", message_id="b", payload="{}",
         message_time="2026-03-01 10:30:20+00")
    ask(db, "SELECT semel.inbox_done('billing', 'b')")
    db.commit()
    for at, left in (("11:30:59.999999", 2), ("11:31:00", 0)):
        stop_clock(db, f"2026-03-01 {at}+00")
        committed(db, "SELECT semel.tick()")
        assert count(db) == left, at
    assert committed(db, "SELECT watermark = '2026-03-01 10:30:20.000001+00' FROM semel.watermark") == [(True,)]
