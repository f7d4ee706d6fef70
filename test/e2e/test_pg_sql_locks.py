# SPDX-License-Identifier: MIT
"""Who waits for whom in PostgreSQL's SQL functions: two sessions, and a lock that is held."""
import concurrent.futures

import pytest

from pgsql import ask, begin, call, committed, consumer, fail, pg_server, poll, shop  # noqa: F401  (fixtures)

psycopg2 = pytest.importorskip("psycopg2", reason="apt-get install python3-psycopg2")


@pytest.fixture
def two(shop):  # noqa: F811
    """Two sessions; the second waits for a lock for half a second at most."""
    first, second = shop.connect(), shop.connect()
    ask(second, "SET lock_timeout = '500ms'")
    second.commit()
    yield first, second
    first.close()
    second.close()


# P65
def test_message_is_judged_after_whoever_holds_its_key(two):
    first, second = two
    consumer(first, "billing", order="arrival")
    begin(first, "id-0", order_key="k")
    call(first, "inbox_done", consumer="billing", message_id="id-0")
    first.commit()
    begin(first, "id-1", order_key="k", payload="{}")
    ask(second, "SET lock_timeout = 0")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        told = pool.submit(begin, second, "id-2", order_key="k", payload="{}")
        poll(lambda: ask(first, "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s "
                                "AND pg_stat_clear_snapshot() IS NOT NULL", second.info.backend_pid))
        fail(first, "id-1", "transient", order_key="k", payload="{}")
        first.commit()
        assert (told.result()["act"], told.result()["why"]) == ("ack", "blocked")
    second.commit()


# T2
@pytest.mark.parametrize("stream_is_new", [True, False])
@pytest.mark.parametrize("more", [{}, {"type": "paid"}])
def test_copy_of_a_message_in_hand_is_busy_at_once(two, stream_is_new, more):
    first, second = two
    if not stream_is_new:
        begin(first, "id-0")
        call(first, "inbox_done", consumer="billing", message_id="id-0")
        first.commit()
    assert begin(first, "id-1", **more)["act"] == "run"
    told = begin(second, "id-1", **more)
    assert (told["act"], told["why"]) == ("later", "busy")


# I1: the first message of a stream makes its number; another transaction neither waits for that nor makes a second one
def test_first_messages_of_a_stream_in_two_transactions_make_one_number(two):
    first, second = two
    assert begin(first, "id-1", source="new")["act"] == "run"
    told = begin(second, "id-2", source="new")
    assert (told["act"], told["why"]) == ("later", "busy")
    assert begin(second, "id-2", source="other")["act"] == "run"
    first.rollback()  # and leaves nothing behind
    assert ask(second, "SELECT source FROM semel.stream") == [("other",)]
    assert begin(second, "id-3", source="new")["act"] == "run"
    ask(second, "SAVEPOINT s")
    assert begin(second, "id-3", source="third")["act"] == "run"
    ask(second, "ROLLBACK TO s")
    assert begin(second, "id-3", source="third")["act"] == "run"
    for source, message in [("other", "id-2"), ("new", "id-3"), ("third", "id-3")]:
        call(second, "inbox_done", consumer="billing", message_id=message, source=source)
    second.commit()
    assert begin(first, "id-3", source="third")["why"] == "duplicate"
    assert committed(first, "SELECT source, count(*) FROM semel.stream GROUP BY 1 ORDER BY 1") == [
        ("new", 1), ("other", 1), ("third", 1)]


# P60: what the C library inserts as new (test_pg_batch.c); the copy waits for the row of the first run to go
def test_message_that_is_purged_while_its_copy_is_inserted_comes_with_the_watermark(two):
    first, second = two
    for message in ["id-1", "id-2"]:
        begin(first, message)
        call(first, "inbox_done", consumer="billing", message_id=message)
    first.commit()
    ask(second, "SET lock_timeout = 0")
    inserted = ("SELECT arrival > 0, watermark = '2026-01-01Z' FROM semel._inbox_new('billing', '', now(), '{1}', "
                "ARRAY[semel.message_key(%s)], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "
                "NULL)")
    assert ask(second, inserted, "id-2") == [(None, None)]
    ask(first, "INSERT INTO semel.watermark VALUES ('billing', '', '2026-01-01Z', now())")
    ask(first, "DELETE FROM semel.inbox WHERE message_id = 'id-1'")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        told = pool.submit(ask, second, inserted, "id-1")
        poll(lambda: ask(first, "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s "
                                "AND pg_stat_clear_snapshot() IS NOT NULL", second.info.backend_pid))
        first.commit()
        assert told.result() == [(True, True)]
    second.commit()
    assert ask(first, "SELECT message_id FROM semel.inbox ORDER BY 1") == [("id-1",), ("id-2",)]


# I3, P39
def test_former_owner_ends_nothing_that_has_been_taken_again(two):
    db, _ = two
    consumer(db, "mail", effect="keyed", retry_first="1ms")
    former = call(db, "inbox_claim", consumer="mail", message_id="id-1", payload="{}", lease="1ms")[0]["token"]
    db.commit()
    poll(lambda: committed(db, "SELECT semel.tick()")[0][0])
    token = poll(lambda: committed(db, "SELECT token FROM semel.inbox_take('mail', 1, '5m')"))[0][0]
    for function in ["inbox_renew", "inbox_finish", "inbox_release"]:
        assert committed(db, f"SELECT semel.{function}(%s)", former) == [(False,)]
    assert committed(db, "SELECT status, lease_token FROM semel.inbox") == [("processing", token)]
    assert committed(db, "SELECT semel.inbox_finish(%s)", token) == [(True,)]


def waits(db, session):
    """Does the session wait for a lock?"""
    return poll(lambda: ask(db, "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s "
                                "AND pg_stat_clear_snapshot() IS NOT NULL", session.info.backend_pid))


def holder_and_waiter(db, **settings):
    """id-1 has the business key `pay` and runs; id-2 waits for it, and is due: the token of id-1."""
    consumer(db, "mail", effect="keyed", **settings)
    token = call(db, "inbox_claim", consumer="mail", message_id="id-1", payload="{}", business_key="pay")[0]["token"]
    told = call(db, "inbox_claim", consumer="mail", message_id="id-2", payload="{}", business_key="pay")[0]
    assert (told["act"], told["why"]) == ("ack", "business_duplicate")
    committed(db, "UPDATE semel.inbox SET due_at = now() WHERE message_id = 'id-2'")
    return token


# A6 P78: the key and the row of its holder are read at one moment
def test_waiter_runs_when_its_holder_is_rejected_while_it_looks(shop, two):  # noqa: F811
    first, second = two
    token = holder_and_waiter(first)
    ask(second, "SET lock_timeout = 0")
    lock = shop.connect()
    ask(lock, "LOCK TABLE semel.begun IN ACCESS EXCLUSIVE MODE")  # who looks for a holder stops here
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        took = pool.submit(committed, second, "SELECT message_id FROM semel.inbox_take('mail')")
        waits(first, second)
        first.commit()
        assert committed(first, "SELECT semel.inbox_finish(%s, 'rejected')", token) == [(True,)]
        lock.commit()
        assert took.result() == [("id-2",)]
    lock.close()


# A5 A6: a key whose holder goes on is not touched, and whoever sits on it is not waited for
def test_tick_and_take_wait_for_no_business_key(shop, two):  # noqa: F811
    first, second = two
    holder_and_waiter(first, business_retention="1d", retry_first="1ms", retry_ceiling="1ms")
    committed(first, "UPDATE semel.inbox SET lease_until = now() - interval '1s' WHERE message_id = 'id-1'")
    sitter = shop.connect()
    assert begin(sitter, "id-3", consumer="mail", payload="{}", business_key="pay")["why"] == "business_duplicate"
    assert poll(lambda: committed(second, "SELECT semel.tick()")[0][0])
    assert poll(lambda: committed(second, "SELECT message_id FROM semel.inbox_take('mail')")) == [("id-1",)]
    sitter.close()


# A5 A6: nor for one that would expire because its holder was overtaken
def test_tick_and_take_wait_for_no_business_key_of_what_is_stale(shop, two):  # noqa: F811
    first, second = two
    consumer(first, "mail", effect="keyed", order="version", business_retention="1d", retry_first="1ms",
             retry_ceiling="1ms")
    token = call(first, "inbox_claim", consumer="mail", message_id="id-1", payload="{}", business_key="pay",
                 order_key="k", version=1)[0]["token"]
    assert committed(first, "SELECT semel.inbox_finish(%s, 'transient')", token) == [(True,)]
    committed(first, "UPDATE semel.order_key SET last_version = 5")
    committed(first, "UPDATE semel.inbox SET due_at = now() - interval '1s'")
    sitter = shop.connect()
    assert begin(sitter, "id-3", consumer="mail", payload="{}", business_key="pay", order_key="o",
                 version=1)["why"] == "business_duplicate"
    assert committed(second, "SELECT message_id FROM semel.inbox_take('mail')") == []
    assert committed(second, "SELECT semel.tick()")
    assert committed(second, "SELECT status FROM semel.inbox WHERE message_id = 'id-1'") == [("failed",)]
    sitter.close()
    assert poll(lambda: committed(second, "SELECT message_id FROM semel.inbox_take('mail')") == [] and
                committed(second, "SELECT 1 FROM semel.inbox WHERE message_id = 'id-1' AND status = 'stale'"))


# A6: business keys before rows, also where the end has them expire
@pytest.mark.parametrize("word", ["done", "rejected"])
def test_end_waits_for_a_business_key_before_it_holds_its_row(shop, two, word):  # noqa: F811
    first, second = two
    token = holder_and_waiter(first, business_retention="1d")
    ask(second, "SET lock_timeout = 0")
    sitter = shop.connect()
    begin(sitter, "id-3", consumer="mail", payload="{}", business_key="pay")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ended = pool.submit(committed, second, "SELECT semel.inbox_finish(%s, %s)", token, word)
        waits(first, second)
        assert ask(first, "SELECT message_id FROM semel.inbox WHERE message_id = 'id-1' FOR UPDATE NOWAIT")
        first.rollback()
        sitter.rollback()
        assert ended.result() == [(True,)]
    sitter.close()


# A6: the same for a redelivery that does not name the key which its row holds
def test_a_redelivery_waits_for_the_business_key_of_its_row_before_it_holds_the_row(shop, two):  # noqa: F811
    first, second = two
    token = holder_and_waiter(first, retry_first="1ms", retry_ceiling="1ms")
    assert committed(first, "SELECT semel.inbox_finish(%s, 'transient')", token) == [(True,)]
    committed(first, "UPDATE semel.inbox SET due_at = now() - interval '1s' WHERE message_id = 'id-1'")
    ask(second, "SET lock_timeout = 0")
    sitter = shop.connect()
    begin(sitter, "id-3", consumer="mail", payload="{}", business_key="pay")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ended = pool.submit(committed, second, "SELECT act FROM semel.inbox_fail('mail', 'id-1', payload => '{}', "
                                               "class => 'rejected')")
        waits(first, second)
        assert ask(first, "SELECT message_id FROM semel.inbox WHERE message_id = 'id-1' FOR UPDATE NOWAIT")
        first.rollback()
        sitter.close()
        assert ended.result() == [("ack",)]
    assert committed(first, "SELECT status FROM semel.inbox WHERE message_id = 'id-1'") == [("rejected",)]


# P65: whether a later version is at its effect is a fact of the key
def test_older_snapshot_does_not_run_beside_a_later_version(shop, two):  # noqa: F811
    first, _ = two
    consumer(first, "stock", order="version", effect="outside")
    committed(first, """
        INSERT INTO semel.inbox (arrival, received_at, updated_at, due_at, version, retries, consumer, source,
                                 message_id, status, order_key, payload)
        VALUES (nextval('semel.arrival') * 16384, now(), now(), now(), 7, 1, 'stock', '', 'v7', 'failed', 'k', '{}')""")
    committed(first, "INSERT INTO semel.order_key (consumer, order_key, last_version) VALUES ('stock', 'k', 4)")
    older = shop.connect("REPEATABLE READ")
    ask(older, "SELECT count(*) FROM semel.inbox")
    assert committed(first, "SELECT message_id FROM semel.inbox_take('stock')") == [("v7",)]
    with pytest.raises(psycopg2.errors.SerializationFailure):
        call(older, "inbox_claim", consumer="stock", message_id="v5", order_key="k", version=5, payload="{}")
    older.close()
