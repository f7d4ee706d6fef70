# SPDX-License-Identifier: MIT
"""What would otherwise be silent: unknown outcomes without their key, a store that needs a person, a label that differs
from place to place, a route that pauses or does not start without a reason."""
import json

import pytest

import scenes
from conftest import run
from daemon import Daemon
from listen import Listen, Other
from pg import free_port


@pytest.fixture
def books(store):
    return scenes.Books(store)


@pytest.fixture
def listen():
    return Listen()


def post(listen, *ids):
    for id in ids:
        assert listen.post({"k": "k1", "n": 1}, id=id)[0] == 202, id


# ---- unknown outcomes


# E1 E2 T11
def test_an_unknown_outcome_shows_its_key_everywhere_and_is_asked_for_now(tmp_path, books, listen):
    known = {}

    def answer(call):
        if call["method"] == "GET":
            return 200, json.dumps({"state": known.get(call["headers"]["Idempotency-Key"], "unknown")}).encode()
        return None, b""  # hangs up after it has read the request

    def reconcile(*args):
        return run("inbox", "reconcile", daemon.file, *args, env={"LISTEN_TOKEN": "a-token-of-the-tests"})

    with Other(answer) as other:
        do = {"http": other.url + "/charges", "reconcile": other.url + "/charges/{key}"}
        daemon = Daemon(tmp_path, scenes.outside(books, listen, do, breaker={"failures": 100}))
        with daemon:
            daemon.ready()
            post(listen, "m1", "m2", "m3")
            daemon.until(lambda: books.states() == {"unknown": 3}, "nobody knows")
            keys = {line["id"]: line["idempotency_key"] for line in daemon.lines("nobody knows whether a message had "
                                                                                 "its effect")}
        assert keys == {id: other.of(id)[0]["headers"]["Idempotency-Key"] for id in ("m1", "m2", "m3")}
        for id, key in keys.items():
            assert books.store.semel("inbox", "show", id, "--json").json["idempotency_key"] == key
            shown = books.store.semel("inbox", "show", id).out
            assert f"its Idempotency-Key is {key}" in shown and shown.count(key) == 2, shown
        posts = len(other.calls)
        still = reconcile()
        assert still.code == 1 and "3 asked for: 0 known, 3 unknown" in still.out, still
        known[keys["m1"]], known[keys["m2"]] = "done", "not_done"
        asked = reconcile("m1", "m2", "--json")
        assert asked.code == 0 and (asked.json["found"], asked.json["known"]) == (2, 2), asked
        assert books.states() == {"completed": 1, "failed": 1, "unknown": 1}
        assert all(call["method"] == "GET" for call in other.calls[posts:])  # it only asks
        assert reconcile("nobody").code == 3 and reconcile("--consumer", "other").code == 2
    assert reconcile("m3").code == 1  # nobody answers: it stays unknown


# ---- status


def test_status_warns_of_what_nobody_handles_and_exits_with_1_on_request(store):
    for id in ("due", "held", "odd", "fine"):
        store.semel("send", "-c", "billing", "--id", id, "x")
    assert store.semel("status", "--check").code == 0
    store.sql("UPDATE semel_inbox SET due_at = due_at - 120000000 WHERE message_id = 'due'")
    told = store.semel("status", "--check", "--json")
    assert told.code == 1 and told.json["overdue_since"] is not None and told.json["quarantined"] == 0, told
    assert "no worker runs for this consumer" in store.semel("status").out
    store.sql("UPDATE semel_inbox SET due_at = due_at + 120000000 WHERE message_id = 'due'")
    store.sql("UPDATE semel_inbox SET status = 'processing', attempts = 1, lease_owner = 'gone', lease_token = 7, "
              "lease_until = received_at - 60000000, due_at = NULL WHERE message_id = 'held'")
    store.sql("UPDATE semel_inbox SET status = 'quarantined', error_class = 'no_id', due_at = NULL "
              "WHERE message_id = 'odd'")
    told = store.semel("status", "--check", "--json")
    assert told.code == 1 and told.json["leases_expired_since"] is not None and told.json["quarantined"] == 1, told
    said = store.semel("status").out
    assert "1 message in quarantine" in said and "leases of billing ran out" in said, said
    assert store.semel("tick").code == 0
    assert store.semel("status", "--json").json["leases_expired_since"] is None
    nobody = store.semel("status", "--check", "--admin", f"127.0.0.1:{free_port()}")
    assert nobody.code == 1 and "no daemon answers at" in nobody.out, nobody


# P63
def test_an_open_breaker_is_reported_with_its_reason(tmp_path, books, listen):
    do = {"http": f"http://127.0.0.1:{free_port()}/"}
    with Daemon(tmp_path, scenes.outside(books, listen, do, breaker={"failures": 1, "first": "1m"})) as daemon:
        daemon.ready()
        listen.post({"k": "k1", "n": 1}, id="m1")
        daemon.until(lambda: daemon.lines("circuit breaker open: the route pauses and probes"), "it pauses")
        line = daemon.lines("circuit breaker open: the route pauses and probes")[0]
        assert "refused" in line["why"].lower() or "connect" in line["why"].lower(), line
        said = books.store.semel("status", "--check", "--admin", f"127.0.0.1:{daemon.port}")
        assert said.code == 1 and "the circuit breaker of route books is open" in said.out, said
        assert "LAG" not in said.out, said  # a route that listens has no source that could tell
        told = books.store.semel("status", "--json", "--admin", f"127.0.0.1:{daemon.port}").json
        assert not [one for one in told["sources"] if one["lag"] is not None], told


def test_readyz_gives_the_reason_of_a_route_that_cannot_start(tmp_path, books, listen):
    settings = scenes.settings(books, listen, do={"sql": "INSERT INTO missing (id, k, n) VALUES ($1, $2, $3)"})
    with Daemon(tmp_path, settings) as daemon:
        daemon.until(lambda: "missing" in daemon.get("/readyz")[1], "the table that is missing is named")
        assert daemon.get("/readyz")[0] == 503


# ---- the label

OUTSIDE = {"do": {"http": "http://127.0.0.1:1/"}, "values": None}


@pytest.mark.parametrize("more, label", [({}, "ATOMIC for 45 days"), ({"timed_ids": True}, "ATOMIC"),
                                         ({"keep": {"completed": "60d"}}, "ATOMIC for 60 days"),
                                         ({"keep": {"completed": "1000h"}}, "ATOMIC for 1000 hours"),
                                         (OUTSIDE, "GUARDED for 45 days"), ({**OUTSIDE, "timed_ids": True}, "GUARDED")])
def test_the_label_of_a_route_is_the_same_everywhere(tmp_path, books, listen, more, label):
    with Daemon(tmp_path, scenes.settings(books, listen, **more)) as daemon:
        daemon.ready()
        checked = run("check", daemon.file, "--json", env={"LISTEN_TOKEN": "a-token-of-the-tests"})
        assert checked.json["routes"][0]["guarantee"] == label
        assert daemon.lines("route starts")[0]["guarantee"] == label
        assert f'guarantee="{label}"' in daemon.get("/metrics")[1]
        assert json.loads(daemon.get("/v1/routes")[1])["routes"][0]["guarantee"] == label
        assert books.store.semel("consumer", "show", "books", "--json").json["guarantee"] == label
        told = books.store.semel("status", "--json").json["consumers"]
        assert [one["guarantee"] for one in told] == [label]


@pytest.mark.parametrize("finishes, label", [(False, "GUARDED"), (True, "ATOMIC")])
def test_the_label_of_a_gateway_is_the_same_everywhere(tmp_path, store, finishes, label):
    gateway = {"listen": f"127.0.0.1:{free_port()}", "upstream": {"url": "http://127.0.0.1:1", "finishes": finishes},
               "caller": {"header": "X-User", "trusted_from": ["127.0.0.1"]}, "guard": [{"match": "POST /{rest*}"}]}
    with Daemon(tmp_path, {"store": store.url, "gateways": {"payments": gateway}}) as daemon:
        daemon.ready()
        assert run("check", daemon.file, "--json").json["gateways"][0]["guarantee"] == label
        assert run("check", daemon.file).out.startswith(f"payments: gateway, {label} (")
        assert daemon.lines("gateway starts")[0]["guarantee"] == label
        assert f'semel_gateway_info{{gateway="payments",guarantee="{label}"}} 1' in daemon.get("/metrics")[1]
        assert json.loads(daemon.get("/v1/routes")[1])["gateways"][0]["guarantee"] == label
