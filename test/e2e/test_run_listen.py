# SPDX-License-Identifier: MIT
"""`semel run` that is posted to, into a real database: whatever breaks, effects equal single delivery.

There is no broker: who delivers again is the producer, who posts until he is answered (listen.Posts).
"""
import http.client
import json
import pathlib
import signal
import ssl
import threading

import pytest

import scenes
from certs import Authority
from daemon import Daemon
from listen import Listen, Other, Posts
from pg import free_port, pg_server  # noqa: F401
from scenes import books  # noqa: F401


@pytest.fixture
def posts():
    made = Posts()
    yield made
    made.close()


@pytest.fixture
def three():
    """Producers for three processes."""
    made = Posts(3)
    yield made
    made.close()


def test_everything_twice_and_shuffled_equals_once(tmp_path, books, posts):
    # I1, I2, I5, I9, T6, T14
    scenes.duplicates(tmp_path, books, posts)
    assert {told[1:] for told in posts.told} == {(202, "accepted"), (200, "duplicate")}


def test_what_init_writes_runs(tmp_path, books):
    listen = Listen()
    def send(consumer, items):
        for id, body in items:
            assert listen.post(body, f"/{consumer}", Ce_Id=id)[0] == 202
    scenes.runs_as_init_wrote_it(tmp_path, books, "listen", {"127.0.0.1:8090": f"127.0.0.1:{listen.port}"}, send)


def test_a_poison_message_is_dead_and_the_others_go_on(tmp_path, books, posts):
    # I6, I15, T5
    scenes.poison(tmp_path, books, posts)


def test_a_failing_key_waits_and_keeps_its_order(tmp_path, books, posts):
    # I13, T3
    scenes.order_under_retries(tmp_path, books, posts)


def test_killed_at_labelled_points_nothing_is_lost_or_repeated(tmp_path, books, posts):
    # T1, T7
    scenes.short_on(books, "postgres")
    # Only the first batch of a process is in doubt, and that is one claim.
    beyond = {"claim.admitted:3", "claim.committed:3", "lease.run:3"}
    points = [point for point in scenes.ALL_POINTS if point not in beyond] if scenes.LONG else scenes.POINTS
    scenes.crashes(tmp_path, books, posts, points)
    assert posts.unanswered > 0


@pytest.mark.parametrize("point, status", [
    ("claim.admitted:1", (202, "accepted")), ("claim.committed:1", (200, "duplicate")),
    ("batch.committed:1", (200, "duplicate"))])
def test_who_was_not_answered_posts_again_and_is_told_what_it_is(tmp_path, books, posts, point, status):
    scenes.short_on(books, "sqlite")
    # I9, T7: before a commit it is new still; behind one it is ours, and done when the lease of the dead one is over.
    daemon = Daemon(tmp_path, scenes.settings(books, posts))
    posts.send([("m-1", {"k": "k1", "n": 1})])
    daemon.start(SEMEL_CRASH_AT=point)
    daemon.wait()
    with daemon:
        daemon.ready()
        posts.wait_answered()
        assert posts.answers("m-1") == [status]
        daemon.until(lambda: books.states() == {"completed": 1}, "it is done")
    assert posts.unanswered == 1
    assert books.rows() == [("m-1", "k1", 1)]


def test_killed_around_its_calls_no_key_is_called_twice(tmp_path, books, posts):
    # E1, E2, T1, T7, T11, P47
    scenes.short_on(books, "sqlite")
    scenes.outside_crashes(tmp_path, books, posts, scenes.ALL_OUTSIDE_POINTS if scenes.LONG else scenes.OUTSIDE_POINTS)


def test_killed_around_calls_that_may_be_repeated_they_are_repeated(tmp_path, books, posts):
    # E1, T7
    scenes.short_on(books, "sqlite")
    scenes.outside_crashes(tmp_path, books, posts, ["claim.committed:1", "finish.begun:1"], idempotent=True)


def test_a_message_that_kills_its_process_is_counted(tmp_path, books, posts):
    # I6
    scenes.short_on(books, "sqlite")
    scenes.a_killer(tmp_path, books, posts)


def test_the_process_is_killed_in_the_middle(tmp_path, books, posts):
    # T14
    scenes.short_on(books, "postgres")
    scenes.broker_restart(tmp_path, books, posts)


def test_a_handler_outlasts_its_lease_and_is_called_once(tmp_path, books, posts):
    # I7, P39
    scenes.short_on(books, "sqlite")
    scenes.outlasts_its_lease(tmp_path, books, posts)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_process_stopped_past_its_lease_is_refused(tmp_path, books, three, idempotent):
    # I7, P39, T2
    scenes.short_on(books, "sqlite" if idempotent else "postgres")
    scenes.stopped_past_its_lease(tmp_path, books, three, idempotent)


def test_three_processes_and_one_is_killed_every_few_seconds(tmp_path, books, three):
    # T2, T7, T14
    scenes.short_on(books, "postgres")
    size = {"kills": 12, "total": 20000} if scenes.LONG else {"kills": 3, "total": 2000, "every_s": 1.0}
    rows = scenes.storm(tmp_path, books, three, order="json:/k", **size)
    scenes.expect_order(rows)


def test_a_token_that_was_not_read_again_is_not_said_to_be(tmp_path, books):
    # B9
    scenes.short_on(books, "sqlite")
    endpoint, secret = Listen(), tmp_path / "token"
    secret.write_text("the-first-token-of-it")
    source = endpoint.settings(token_file=str(secret))
    del source["token"]
    with Daemon(tmp_path, {"store": books.url, "routes": {"r": {"from": source, "do": {"exec": ["/bin/true"]},
                                                                "horizon": {"broker": "1d"}}}}) as daemon:
        daemon.ready()
        good = daemon.file.read_text()
        secret.write_text("the-second-token-of-it")
        daemon.file.write_text(good.replace('"horizon"', '"horizno"'))
        daemon.signal(signal.SIGHUP)
        failed = "reload failed; old certificates, tokens and secrets stay in use"
        told, = daemon.until(lambda: daemon.lines(failed), "it is told")
        assert told["level"] == "error" and "every token stays as it was" in told["error"]
        assert endpoint.post({}, token="the-second-token-of-it")[0] == 401
        daemon.file.write_text(good)
        daemon.signal(signal.SIGHUP)
        daemon.until(lambda: daemon.lines("reloaded certificates, tokens and secrets"), "it is read")
        assert endpoint.post({}, token="the-first-token-of-it")[0] == 401
        assert endpoint.post({}, token="the-second-token-of-it")[0] != 401


def test_a_reload_renews_all_or_nothing(tmp_path, books):
    # B9
    scenes.short_on(books, "sqlite")
    authority, endpoint, gateway, token = Authority(tmp_path), Listen(), free_port(), tmp_path / "token"
    ports = {"route": endpoint.port, "gateway": gateway}

    def issue():
        made = {name: authority.issue(name, "IP:127.0.0.1") for name in ports}
        return {name: tuple(map(str, files)) for name, files in made.items()}

    def served():
        return {name: ssl.get_server_certificate(("127.0.0.1", port)) for name, port in ports.items()}

    def knows(text):
        trust = ssl.create_default_context(cafile=authority.file)
        connection = http.client.HTTPSConnection("127.0.0.1", endpoint.port, timeout=60, context=trust)
        connection.request("POST", "/books", b"{}", {"Authorization": f"Bearer {text}"})
        status = connection.getresponse().status
        connection.close()
        return status != 401

    def reload(text, times=1):
        daemon.signal(signal.SIGHUP)
        return daemon.until(lambda: daemon.lines(text)[times - 1:], "it is told")[-1]

    files = issue()
    tls = {name: {"cert_file": crt, "key_file": key} for name, (crt, key) in files.items()}
    token.write_text("the-first-token-of-it")
    source = endpoint.settings(token_file=str(token), tls=tls["route"])
    del source["token"]
    daemon = Daemon(tmp_path, {
        "store": books.url,
        "routes": {"r": {"from": source, "do": {"exec": ["/bin/true"]}, "horizon": {"broker": "1d"}}},
        "gateways": {"g": {"listen": f"127.0.0.1:{gateway}", "tls": tls["gateway"], "guard": [{"match": "POST /"}],
                           "upstream": {"url": "http://127.0.0.1:1"},
                           "caller": {"header": "X-User", "trusted_from": ["127.0.0.1"]}}}})
    failed = "reload failed; old certificates, tokens and secrets stay in use"
    with daemon:
        daemon.until(lambda: daemon.get("/healthz")[0] == 200, "it runs")
        old, good = served(), daemon.file.read_text()
        issue()
        daemon.file.write_text(good.replace('"horizon"', '"horizno"'))
        assert "every token stays as it was" in reload(failed)["error"] and served() == old
        daemon.file.write_text(good)
        crt = pathlib.Path(files["gateway"][0])
        renewed = crt.read_text()
        crt.write_text("nothing")
        token.write_text("the-second-token-of-it")
        assert str(crt) in reload(failed, 2)["error"] and served() == old
        assert knows("the-first-token-of-it") and not knows("the-second-token-of-it")
        crt.write_text(renewed)
        reload("reloaded certificates, tokens and secrets")
        assert all(now != old[name] for name, now in served().items())
        assert knows("the-second-token-of-it") and not knows("the-first-token-of-it")


# Every statement calls the clock by its full name, and no schema may be searched before pg_catalog.
SKEW = """
SET allow_system_table_mods = on;
ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO true_clock;
CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS $$SELECT pg_catalog.true_clock() + interval '1 hour'$$;
"""


def test_leases_and_retries_go_by_the_clock_of_the_database(tmp_path, books, posts):
    # P45
    if books.sqlite:
        pytest.skip("SQLite has the clock of its machine")
    books.sql(SKEW)
    calls, gate = [], threading.Event()
    def answer(call):
        calls.append(call)
        return (429, b"") if len(calls) == 1 else (200, b"") if gate.wait(60) else (500, b"")
    with Other(answer) as other:
        with Daemon(tmp_path, scenes.outside(books, posts, {"http": other.url})) as daemon:
            posts.send([("m1", {"k": "k1", "n": 1})])
            daemon.until(lambda: len(calls) == 2, "it is tried again, though that is an hour ahead of this machine")
            ahead = books.sql("SELECT lease_until > pg_catalog.true_clock() + interval '50 minutes',"
                              " received_at > pg_catalog.true_clock() + interval '50 minutes' FROM semel.inbox")
            assert ahead == [("t", "t")]
            gate.set()
            daemon.until(lambda: books.states() == {"completed": 1}, "done")


def test_nobody_asks_about_a_call_that_may_run_still(tmp_path, books):
    # E2, T11, P45, P47
    if books.sqlite:
        pytest.skip("SQLite has the clock of its machine")
    books.sql(SKEW)
    endpoints, gate, asked, sent = [Listen(), Listen()], threading.Event(), [], []
    def answer(call):
        if call["method"] == "GET":
            asked.append(call["path"].rsplit("/", 1)[1])
            return 200, json.dumps({"state": "not_done" if asked[-1] == "runs" else "unknown"}).encode()
        sent.append(call["headers"]["Semel-Message-Id"])
        return (200, b"") if sent[-1] == "runs" and gate.wait(120) else (None, b"")
    with Other(answer) as other:
        do = {"http": other.url + "/charges", "reconcile": other.url + "/charges/{id}", "timeout": "120s"}
        first, second = [Daemon(tmp_path, scenes.outside(books, endpoint, do, lease="1s"), name=f"semel{i}")
                         for i, endpoint in enumerate(endpoints)]
        with first:
            first.ready()
            assert endpoints[0].post({"k": "k1", "n": 1}, id="runs")[0] == 202
            first.until(lambda: sent, "it calls")
            first.signal(signal.SIGSTOP)
            with second:
                second.ready()
                second.until(lambda: books.states() == {"unknown": 1}, "the lease of who stands still runs out")
                assert endpoints[1].post({"k": "k2", "n": 2}, id="lost")[0] == 202
                second.until(lambda: asked.count("lost") >= 3, "what is over is asked for, again and again")
                assert "runs" not in asked and sent.count("runs") == 1  # "not done" would say nothing yet
                gate.set()
                first.signal(signal.SIGCONT)
