# SPDX-License-Identifier: MIT
"""`semel run` itself: starting, stopping, bad input, and a broken route beside a sound one. The source is `listen`."""
import json
import signal

import pytest

import scenes
from conftest import Store, run
from daemon import Daemon, thread_sanitizer
from listen import OTHER_TOKEN, Listen
from listen import event as cloud


@pytest.fixture
def books(store):
    return scenes.Books(store)


@pytest.fixture
def listen():
    return Listen()


def event(n, key="k1"):
    return {"k": key, "n": n}


# ---- starting


def test_a_file_with_a_mistake_starts_nothing(tmp_path):
    file = tmp_path / "semel.yaml"
    file.write_text("store: sqlite:x.db\nroutes:\n  a: {from: {listen: nowhere}, do: {sql: SELECT 1}}\n")
    result = run("run", file)
    assert result.code == 1
    assert f"{file}:3:" in result.err and "^" in result.err


def test_a_store_without_tables_is_refused_with_the_command_that_helps(tmp_path, listen):
    books = Store(tmp_path / "nothing.db")
    books.sql("CREATE TABLE t (a)")
    daemon = Daemon(tmp_path, {"store": books.url, "routes": {"books": {
        "from": listen.settings(), "do": {"sql": "SELECT 1"}}}})
    assert daemon.start().wait() == 5
    assert "migrate" in daemon.log()


def test_an_address_that_is_taken_is_told(tmp_path, books, listen):
    settings = scenes.settings(books, listen)
    with Daemon(tmp_path, settings) as first:
        first.ready()
        second = Daemon(tmp_path, settings, name="second").start()
        assert second.wait() != 0
        assert str(listen.port) in second.log()


# ---- what comes in


def test_a_message_is_answered_after_its_commit(tmp_path, books, listen):
    # I9, I11
    with Daemon(tmp_path, scenes.settings(books, listen)) as daemon:
        daemon.ready()
        assert listen.post(event(1), id="m1")[0] == 202
        assert books.rows() == [("m1", "k1", 1)]
        status, answer = listen.post(event(1), id="m1")
        assert (status, answer["result"]) == (200, "duplicate")
        assert listen.post(event(2), id="m1")[0] == 409
        assert listen.post(event(3), id="m3", token="wrong-token-wrong")[0] == 401
        assert listen.post(event(3), id="m3", token=None)[0] == 401
        assert books.rows() == [("m1", "k1", 1)]
        daemon.until(lambda: daemon.metric("semel_alerts_total", kind="conflict") == 1, "the conflict is counted")


def test_the_id_of_an_event_is_unique_in_its_source_only(tmp_path, books, listen):
    # I1
    def post(source, n):
        cloud = {"specversion": "1.0", "id": "17", "source": source, "type": "t", "data": event(n)}
        return listen.post(cloud, Content_Type="application/cloudevents+json")[0]
    with Daemon(tmp_path, scenes.settings(books, listen)) as daemon:
        daemon.ready()
        assert post("/shop/berlin", 1) == 202
        assert post("/shop/paris", 2) == 202
        assert post("/shop/paris", 2) == 200
        binary = {"ce_specversion": "1.0", "ce_id": "17", "ce_type": "t"}
        assert listen.post(event(2), ce_source="/shop/paris", **binary)[0] == 200
        assert listen.post(event(3), ce_source="/shop/rome", **binary)[0] == 202
        assert listen.post(event(4), id="17")[0] == 202  # without a source of its own: the route's
        assert post("x" * 256, 5) == 422  # no source that can be used, and so no id
        assert [row[2] for row in books.rows()] == [1, 2, 3, 4]


def test_what_no_message_should_be_is_kept_and_stops_nobody(tmp_path, books, listen):
    # I15, M
    with Daemon(tmp_path, scenes.settings(books, listen, payload_max=1000)) as daemon:
        daemon.ready()
        assert listen.post(event(1))[0] == 422  # no id
        assert listen.post(event(1), id="i" * 300)[0] == 422
        status, answer = listen.post(b"this is no JSON", id="bad-json")
        assert status in (202, 422), answer
        assert listen.post(b"", id="empty")[0] in (202, 422)
        assert listen.post(b"\xff\xfe", id="not-utf8")[0] in (202, 422)
        fits = json.dumps({"k": "k1", "n": 7, "fill": ""}).encode()
        fits = fits[:-2] + b"x" * (1000 - len(fits)) + fits[-2:]
        assert len(fits) == 1000
        assert listen.post(fits, id="just-fits")[0] == 202
        assert listen.post(fits[:-2] + b"y" + fits[-2:], id="one-too-many")[0] in (202, 413, 422)
        assert listen.post(event(8), id="many", **{f"x{i}": "1" for i in range(10000)})[0] == 431
        assert listen.post(event(9), id="good")[0] == 202
        assert [row[0] for row in books.rows()] == ["just-fits", "good"]
        states = books.states()
        assert states == {"completed": 2, "quarantined": 2, "dead": 4}, states
        assert daemon.running()


def test_what_is_too_large_is_kept_whole_a_hundred_times_and_then_stays_with_its_sender(tmp_path, books, listen):
    # B9
    def large(i):
        return listen.post({"k": "k1", "n": i, "fill": "x" * 1000}, id=f"large-{i}")[0]
    with Daemon(tmp_path, scenes.settings(books, listen, payload_max=1000)) as daemon:
        daemon.ready()
        assert [large(i) for i in range(100)] == [422] * 100
        assert large(100) == 503
        assert listen.post(event(1), id="good")[0] == 202
        daemon.until(lambda: daemon.metric("semel_alerts_total", kind="parked_full") >= 1, "the bound is told")
        assert books.store.semel("inbox", "discard", "large-7", "--reason", "not needed", "--yes").code == 0
        assert large(100) == 422 and large(101) == 503
        table = "semel_inbox" if books.sqlite else "semel.inbox"
        sizes = books.sql(f"SELECT min(length(payload)) FROM {table} WHERE status = 'dead'")
        assert int(sizes[0][0]) > 1000
    settings = scenes.settings(books, listen, payload_max=10000)
    with Daemon(tmp_path, settings) as daemon:  # when the route allows it they can be run
        daemon.ready()
        assert books.store.semel("inbox", "retry", "--dead", "--force", "--yes", "--reason", "allowed now").code == 0
        daemon.until(lambda: books.states()["completed"] == 101, "all run")


def test_neither_payloads_nor_tokens_are_in_the_log(tmp_path, books, listen):
    # M, P71
    with Daemon(tmp_path, scenes.settings(books, listen)) as daemon:
        daemon.ready()
        listen.post({"k": "card-4111111111111111", "n": -5}, id="secret")
        listen.post({"k": "card-4111111111111111", "n": "x"}, id="secret2")
        daemon.until(lambda: daemon.lines("a message is dead"), "a line about it")
    assert "4111111111111111" not in daemon.log()
    assert "a-token-of-the-tests" not in daemon.log()
    assert all("time" in line and "level" in line for line in daemon.lines())


# ---- a route beside another


def test_a_broken_route_stops_no_other_and_comes_back_when_it_is_mended(tmp_path, books, listen):
    # P63
    settings = scenes.settings(books, listen, batch=5)
    broken = dict(settings["routes"]["books"], **{
        "from": listen.settings(path="/broken", token="${OTHER_TOKEN}"),
        "do": {"sql": "INSERT INTO missing (id, k, n) VALUES ($1, $2, $3)"}})
    settings["routes"]["broken"] = broken
    with Daemon(tmp_path, settings) as daemon:
        daemon.until(lambda: daemon.lines("cannot start the route; retrying"), "the broken route says so")
        daemon.until(lambda: listen.post(event(1), id="m1")[0] == 202, "the other one runs")
        status, body = daemon.get("/readyz")
        assert status == 503 and "broken" in body
        assert daemon.get("/healthz")[0] == 200
        books.sql("CREATE TABLE missing (id text, k text, n integer)")
        daemon.ready()
        assert listen.post(event(2), path="/broken", token=OTHER_TOKEN, id="m2")[0] == 202
        books.sql("DROP TABLE missing")
        posted = listen.post(event(3), path="/broken", token=OTHER_TOKEN, id="m3", timeout=90)
        assert posted[0] == 503
        assert listen.post(event(4), id="m4")[0] == 202
        assert books.states("broken") == {"completed": 1}  # nothing was drained into dead letters
        books.sql("CREATE TABLE missing (id text, k text, n integer)")
        daemon.until(lambda: listen.post(event(3), path="/broken", token=OTHER_TOKEN, id="m3")[0]
                     in (200, 202), "it goes on")
    assert books.sql("SELECT id FROM missing") == [("m3",)]


BREAKER = {"failures": 3, "first": "100ms", "ceiling": "300ms"}
BATCH = "application/cloudevents-batch+json"
OPENS = "circuit breaker open: the route pauses and probes"


def hide(books):
    books.sql("ALTER TABLE ledger RENAME TO hidden")


def show(books):
    books.sql("ALTER TABLE hidden RENAME TO ledger")


def test_the_workers_of_a_route_have_one_breaker(tmp_path, books, listen):
    # P63, M
    settings = scenes.settings(books, listen, batch=5, workers=4, breaker=BREAKER)
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        listen.send(scenes.messages(20))
        hide(books)
        daemon.until(lambda: listen.post(event(1), id="m1")[0] == 503 and daemon.lines(OPENS), "it pauses")
        for n in range(20):  # a storm, of which each worker would have its share
            assert listen.post([cloud(f"{n}-{i}", event(i)) for i in range(50)], Content_Type=BATCH)[0] == 200
        assert len(daemon.lines(OPENS)) == 1
        assert daemon.metric("semel_breaker_openings_total") == 1
        states = books.states()
        kept = states.pop("waiting", 0)  # a worker claims the first message that it ever has: so it is stored
        assert states == {"completed": 20} and kept <= 4
        show(books)
        daemon.until(lambda: listen.post(event(1), id="m1")[0] in (200, 202), "one message has probed")
        listen.send(scenes.messages(100, start=20))  # by all of them
        daemon.until(lambda: daemon.metric("semel_breaker_state", state="closed") == 1, "the gauge says so")
        assert len(daemon.lines("circuit breaker closed; the route resumes")) == len(daemon.lines(OPENS)) == 1
    assert 121 <= books.count() <= 121 + kept


def test_a_route_that_pauses_refuses_at_once_and_takes_nothing(tmp_path, books, listen):
    # P63
    settings = scenes.settings(books, listen, breaker={"failures": 3, "first": "30s", "ceiling": "30s"})
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        assert listen.post(event(0), id="first")[0] == 202
        hide(books)
        daemon.until(lambda: listen.post(event(0), id="m0")[0] == 503 and daemon.lines(OPENS), "it pauses")
        for n in range(40):  # nobody would wait for them all, half a minute each
            assert listen.post(event(n), id=f"m{n}")[0] == 503
        status, answers = listen.post([cloud("b1", event(1)), cloud("b2", event(2))], Content_Type=BATCH)
        assert status == 200 and [answer["code"] for answer in answers] == [503, 503]
        assert daemon.metric("semel_ingest_waiting") == 0
        assert books.states() == {"completed": 1}


def test_retries_from_the_store_are_failures_of_their_class(tmp_path, books, listen):
    # M
    settings = scenes.settings(books, listen, retry={"max": 3, "first": "50ms", "ceiling": "100ms"},
                               do={"sql": "INSERT INTO entry (id, k, n) VALUES ($1, $2, $3)"})  # there is no account
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        assert listen.post(event(1), id="m1")[0] == 202
        daemon.until(lambda: books.states() == {"dead": 1}, "it is given up")
        daemon.until(lambda: daemon.metric("semel_attempts_total", result="failed") == 3, "its runs are counted")
        assert daemon.metric("semel_failures_total", **{"class": "transient"}) == 3
        assert daemon.metric("semel_failures_total") == 3


# ---- stopping


def slow(tmp_path, seconds):
    """An exec handler that leaves a mark when it begins and one when it is done."""
    if thread_sanitizer():
        pytest.skip("an exec handler under the thread sanitizer")
    script = tmp_path / "slow.sh"
    script.write_text(f"#!/bin/sh\ncat >/dev/null\ntouch {tmp_path}/begun\nsleep {seconds}\ntouch {tmp_path}/done\n")
    script.chmod(0o755)
    return {"exec": [str(script)], "timeout": "120s"}


def begin(tmp_path, daemon, listen):
    daemon.ready()
    assert listen.post(event(1), id="m1")[0] == 202
    daemon.until((tmp_path / "begun").exists, "the handler runs")


def test_a_stop_waits_for_what_runs(tmp_path, books, listen):
    with Daemon(tmp_path, scenes.settings(books, listen, do=slow(tmp_path, 1), values=None)) as daemon:
        begin(tmp_path, daemon, listen)
        daemon.stop()
        assert (tmp_path / "done").exists()
        assert books.states() == {"completed": 1}


def test_what_does_not_end_in_time_is_given_up_and_unknown(tmp_path, books, listen):
    # I14, E2
    settings = scenes.settings(books, listen, do=slow(tmp_path, 60), values=None)
    with Daemon(tmp_path, {**settings, "stop_within": "2s"}) as daemon:
        begin(tmp_path, daemon, listen)
        daemon.stop()
        assert not (tmp_path / "done").exists()
        assert books.states() == {"unknown": 1}


def test_a_second_signal_stops_at_once_and_nothing_is_lost(tmp_path, books, listen):
    # I7, T4
    settings = scenes.settings(books, listen, do=dict(slow(tmp_path, 60), idempotent=True), values=None, lease="1s")
    daemon = Daemon(tmp_path, settings)
    with daemon:
        begin(tmp_path, daemon, listen)
        daemon.signal(signal.SIGTERM)
        daemon.until(lambda: daemon.lines("stopping"), "it is stopping")
        daemon.stop(expect=128 + signal.SIGTERM)
    assert books.states() == {"processing": 1}
    (tmp_path / "slow.sh").write_text("#!/bin/sh\ncat >/dev/null\n")
    with daemon:
        daemon.until(lambda: books.states() == {"completed": 1}, "recovered, retried and done")


def test_a_clean_stop_gives_back_what_was_not_begun(tmp_path, books, listen):
    items = scenes.messages(200)
    with Daemon(tmp_path, scenes.settings(books, listen, batch=5)) as daemon:
        daemon.ready()
        listen.send(items)
        daemon.stop()
    assert books.count() == 200
