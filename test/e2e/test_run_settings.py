# SPDX-License-Identifier: MIT
"""Settings under stored rows, as `semel run` meets them (A3, I24, P75): a route that what is stored speaks against
waits and keeps house, the others run; of two files the one that is not as stored pauses."""
import json
import shlex
import threading

import pytest

import scenes
from conftest import run
from daemon import Daemon
from listen import Listen, Other
from pg import pg_server, wait_for  # noqa: F401
from scenes import books  # noqa: F401

HELD = "route held: its settings are not those that are stored"


def event(n, key="k1"):
    return {"k": key, "n": n}


def state(books, id):
    return books.sql(f"SELECT status FROM {books.table('inbox')} WHERE message_id = '{id}'")[0][0]


def expired(books, id):
    """A claim that somebody took and did not end."""
    past = "1000000" if books.sqlite else "now() - interval '1 hour'"
    now, payload = ("1", "x'78'") if books.sqlite else ("now()", "'x'")
    books.store.sql(f"INSERT INTO {books.table('inbox')} (arrival, consumer, source, message_id, status, attempts, "
                    "received_at, updated_at, lease_owner, lease_until, lease_token, payload) VALUES "
                    f"(777, 'books', '', '{id}', 'processing', 1, {now}, {now}, 'w', {past}, 77, {payload})")


def audit(books):
    return books.sql(f"SELECT what, reason FROM {books.table('audit')} WHERE consumer = 'books' ORDER BY id")


def held_in(daemon, consumer="books"):
    routes = json.loads(daemon.get("/v1/routes")[1])["routes"]
    return [route["held"] for route in routes if route["name"] == consumer][0]


def test_a_refused_route_waits_and_keeps_house_while_the_others_run(tmp_path, books):
    # A3 I24 P75
    store, listen, other = books.store, Listen(), Listen()
    store.semel("consumer", "set", "books", '{"order": "arrival", "effect": "outside"}')
    for n in (1, 2):
        assert store.semel("send", "-c", "books", "--id", f"w{n}", "-k", "k", "x").code == 0
    expired(books, "stuck")
    settings = scenes.settings(books, listen)  # no order, and the effect is in the database
    settings["routes"]["others"] = {**settings["routes"]["books"], "from": other.settings()}
    with Daemon(tmp_path, settings) as daemon:
        daemon.until(lambda: daemon.lines(HELD), "it is held")
        daemon.until(lambda: daemon.lines("ready, but for routes that are held"), "the others run")
        wait_for(lambda: other.post(event(1), id="m1")[0] == 202, "the other route runs")
        assert listen.post(event(1), id="m1")[0] == 503
        status, text = daemon.get("/readyz")
        assert status == 503 and "route books: its settings are not those that are stored" in text, text
        assert "order cannot go from arrival to none" in text and ": 2;" in text and "others" not in text, text
        assert held_in(daemon) and not held_in(daemon, "others")
        assert daemon.metric("semel_route_held", consumer="books") == 1
        # Under the stored effect nobody knows what became of it; under the file's it would have been repeated.
        daemon.until(lambda: state(books, "stuck") == "unknown", "the old lease has ended")
        assert [state(books, f"w{n}") for n in (1, 2)] == ["waiting", "waiting"]  # and nothing ran
        # The very command that it told.
        line = daemon.lines(HELD)[-1]
        words = shlex.split(line["to_force"])
        assert words[:4] == ["semel", "consumer", "set", "books"] and "--force" in words, line
        assert json.loads(words[4]) == {"effect": "atomic", "order": "none", "retry_max": 20, "retry_first": "50ms",
                                        "retry_ceiling": "500ms", "lease": "2s"}
        words[words.index("...")] = "ticket 811"
        words[words.index("--store") + 1] = books.url
        assert run(*words[1:]).code == 0
        daemon.until(lambda: daemon.lines("route resumes: its settings are stored"), "it goes on")
        daemon.ready()
        assert listen.post(event(2), id="m2")[0] == 202
        assert daemon.metric("semel_route_held", consumer="books") == 0
    assert audit(books)[-1][1] == "ticket 811" and "forced past 2" in audit(books)[-1][0], audit(books)


def test_of_two_files_the_one_that_is_not_as_stored_pauses(tmp_path, books):
    # A3 I24 P75
    scenes.short_on(books, "postgres")
    first, second = Listen(), Listen()
    with Daemon(tmp_path, scenes.settings(books, first, order="json:/k"), name="one") as one:
        one.ready()
        assert first.post(event(1), id="m1")[0] == 202
        with Daemon(tmp_path, scenes.settings(books, second), name="two") as two:
            two.ready()
            assert second.post(event(2), id="m2")[0] == 202
            one.until(lambda: one.lines(HELD), "the first pauses")
            assert "order is arrival in the route's file, and none is stored" in one.get("/readyz")[1]
            one.until(lambda: first.post(event(3), id="m3")[0] == 503, "it takes nothing")
            assert two.get("/readyz")[0] == 200
            put = books.store.semel("consumer", "set", "books", '{"retry_max": 3}')
            assert put.code == 4 and str(two.file) in put.err, put
        one.stop()
        one.start()  # the file of the one that starts counts again
        one.ready()
        assert first.post(event(3), id="m3")[0] == 202
        put = books.store.semel("consumer", "set", "books", '{"order": "none"}', "--force", "--reason", "a test")
        assert put.code == 0, put
        one.until(lambda: len(one.lines(HELD)) >= 2, "it pauses")
        assert books.store.semel("consumer", "set", "books", '{"order": "arrival"}').code == 0
        one.ready()
        assert first.post(event(4), id="m4")[0] == 202
    assert [row[0] for row in books.rows()] == ["m1", "m2", "m3", "m4"]


def test_a_route_that_begins_to_go_by_versions_is_told_that_keys_exist(tmp_path, books):
    # A3 I24 P75
    listen = Listen()
    def hints(daemon):
        return [line["hint"] for line in daemon.lines("the route's settings are stored")]
    with Daemon(tmp_path, scenes.settings(books, listen, order="json:/k"), name="one") as daemon:
        daemon.ready()
        assert hints(daemon) == [""] and listen.post(event(7), id="m1")[0] == 202
    with Daemon(tmp_path, scenes.settings(books, listen, order="json:/k", version="json:/n"), name="two") as daemon:
        daemon.ready()
        assert hints(daemon) == ['order keys exist already: is first_version "any" right for them?']


@pytest.mark.parametrize("answer, becomes", [((200, b""), "completed"), ((None, b""), "failed")])
def test_a_call_that_is_under_way_when_a_route_pauses_has_its_end_recorded(tmp_path, books, answer, becomes):
    # A3 I24 P75: under the effect that it was claimed by, which was keyed: nobody knows, so it is to be repeated
    called, go = threading.Event(), threading.Event()
    def slow(call):
        called.set()
        assert go.wait(60)
        return answer
    listen, other = Listen(), Other(slow)
    with other, Daemon(tmp_path, scenes.outside(books, listen, {"http": other.url, "idempotent": True},
                                                lease="60s")) as daemon:
        daemon.ready()
        sender = threading.Thread(target=listen.post, args=(event(1),), kwargs={"id": "m1"})
        sender.start()
        assert called.wait(60)
        put = books.store.semel("consumer", "set", "books", '{"effect": "outside"}', "--force", "--reason", "a test")
        assert put.code == 0, put
        daemon.until(lambda: daemon.lines(HELD), "it pauses while the call is under way")
        assert state(books, "m1") == "processing"
        go.set()
        daemon.until(lambda: state(books, "m1") == becomes, "the end of the call is recorded")
        sender.join(60)
        daemon.until(lambda: listen.post(event(2), id="m2")[0] == 503, "it takes nothing")
        assert len(other.calls) == 1 and held_in(daemon)


def test_route_pauses_while_another_effect_is_stored_and_goes_on_after(tmp_path, books):
    # A3 I24 P75
    scenes.short_on(books, "sqlite")
    listen, other = Listen(), Other(lambda call: (200, b""))
    with other, Daemon(tmp_path, scenes.outside(books, listen, {"http": other.url, "idempotent": True})) as daemon:
        daemon.ready()
        assert listen.post(event(1), id="m1")[0] == 202
        put = books.store.semel("consumer", "set", "books", '{"effect": "outside"}', "--force", "--reason", "a test")
        assert put.code == 0, put
        daemon.until(lambda: daemon.lines(HELD), "it pauses")
        assert "effect is keyed in the route's file, and outside is stored" in daemon.get("/readyz")[1]
        daemon.until(lambda: listen.post(event(2), id="m2")[0] == 503, "it takes nothing")
        put = books.store.semel("consumer", "set", "books", '{"effect": "keyed"}')
        assert put.code == 0, put
        daemon.ready()
        assert listen.post(event(2), id="m2")[0] == 202
