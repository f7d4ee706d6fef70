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
def test_copy_of_a_message_in_hand_is_busy_at_once(two):
    first, second = two
    assert begin(first, "id-1")["act"] == "run"
    told = begin(second, "id-1")
    assert (told["act"], told["why"]) == ("later", "busy")


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
