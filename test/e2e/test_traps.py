# SPDX-License-Identifier: MIT
"""What would otherwise be silent: unknown outcomes without their key, a store that needs a person, a label that differs
from place to place, a route that pauses or does not start without a reason."""
import json
import signal
import threading
import urllib.error
import urllib.request

import pytest

import inbox_rows
import scenes
from api import ADMIN, READ
from conftest import run
from daemon import Daemon
from listen import Listen, Other
from pg import free_port, pg, pg_server  # noqa: F401 (fixtures)


@pytest.fixture
def books(store):
    return scenes.Books(store)


@pytest.fixture
def listen():
    return Listen()


@pytest.fixture(params=["sqlite", "postgres"])
def either(request):
    return scenes.Books(request.getfixturevalue("store" if request.param == "sqlite" else "pg"))


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


class Asked:
    """The other side of a route whose only call never ends, so that the daemon itself asks nothing meanwhile."""

    def __init__(self):
        self.known, self.entered, self.leave = {}, threading.Event(), threading.Event()
        self.busy, self.end = threading.Event(), threading.Event()

    def answer(self, call):
        if call["method"] == "POST":
            if call["headers"]["Semel-Message-Id"] == "busy":
                self.busy.set()
                self.end.wait(60)
            return None, b""  # hangs up after it has read the request
        id = call["path"].rsplit("/", 1)[1]
        if id.startswith("slow") and self.busy.is_set():
            self.entered.set()
            self.leave.wait(60)
        return 200, json.dumps({"state": self.known.get(id, "unknown")}).encode()


# E2 I16: the daemon's own questions are kept away, so that every answer is that of the operator's.
def test_operators_reconcile_a_message_over_http_as_by_the_command_line(tmp_path, either, listen):
    there, found = Asked(), {}
    with Other(there.answer) as other:
        do = {"http": other.url + "/charges", "reconcile": other.url + "/charges/{id}", "concurrency": 1,
              "timeout": "60s"}
        settings = scenes.outside(either, listen, do, breaker={"failures": 100})
        settings["routes"]["plain"] = {**settings["routes"]["books"], "from": listen.settings(path="/plain"),
                                       "do": {"http": other.url}}
        daemon = Daemon(tmp_path, settings, env={"ADMIN_TOKEN": ADMIN, "READ_TOKEN": READ})
        daemon.settings["admin"].update(token="${ADMIN_TOKEN}", read_token="${READ_TOKEN}")
        daemon.file.write_text(json.dumps(daemon.settings))

        def ask(path, body=None, token=ADMIN):
            request = urllib.request.Request(f"http://127.0.0.1:{daemon.port}/v1/inbox{path}",
                                             None if body is None else json.dumps(body).encode(),
                                             {"Authorization": f"Bearer {token}"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        def reconcile(id, body=None, **more):
            return ask(f"/books/{id}/reconcile", {} if body is None else body, **more)

        def command(id):
            env = {**daemon.env, "LISTEN_TOKEN": "a-token-of-the-tests"}
            return run("inbox", "reconcile", daemon.file, id, "--json", env=env)

        with daemon:
            daemon.ready()
            post(listen, "m1", "m2", "m3", "slow1", "slow2")
            daemon.until(lambda: either.states() == {"unknown": 5}, "nobody knows")
            post(listen, "busy")
            assert there.busy.wait(60)
            there.known.update(m1="done", m2="done", slow1="not_done")
            # as the command prints it
            status, text = reconcile("m1", {"who": "mara"})
            assert status == 200 and text.replace("m1", "m2") == command("m2").out, text
            assert json.loads(text)["messages"][0]["result"] == "known"
            status, text = reconcile("m3")
            still = command("m3")
            assert (status, still.code) == (502, 1) and text == still.out and json.loads(text)["unknown"] == 1, text
            who = [row[0] for row in either.sql(f"SELECT who FROM {either.table('audit')} ORDER BY id")]
            assert who[-2:] == ["mara, http@127.0.0.1", "reconcile"]
            # what is refused
            status, text = reconcile("m1")
            assert status == 409 and "it is completed" in json.loads(text)["detail"], text
            assert listen.post({"k": "k1", "n": 1}, path="/plain", id="p1")[0] == 202
            daemon.until(lambda: either.states("plain") == {"unknown": 1}, "nobody knows")
            status, text = ask("/plain/p1/reconcile", {})
            assert status == 409 and "its route has no `reconcile`" in json.loads(text)["detail"], text
            if either.sqlite:
                inbox_rows.add(either.store, "g1", "unknown", consumer="gone")
                inbox_rows.add(either.store, "m4", "unknown", consumer="books", source="shop",
                               error_class="lease_expired", updated_at=inbox_rows.now_us())
                status, text = ask("/gone/g1/reconcile", {})
                assert status == 409 and "no route of this process" in json.loads(text)["detail"], text
                status, text = reconcile("m4")
                assert status == 409 and text == command("m4").out and "may still run" in text, text
            assert reconcile("nobody")[0] == 404 and ask("/nobody/m3/reconcile", {})[0] == 404
            assert reconcile("m3", {"reason": "x"})[0] == 400 and reconcile("m3", token=READ)[0] == 403
            # nobody waits for one that is asked, and a stop does not, either
            for id, stops in (("slow1", False), ("slow2", True)):
                asks = threading.Thread(target=lambda: found.update({id: reconcile(id)[0]}))
                there.entered.clear()
                asks.start()
                assert there.entered.wait(60)
                assert json.loads(ask(f"/books/{id}")[1])["status"] == "unknown" and id not in found
                if stops:
                    daemon.signal(signal.SIGTERM)
                    there.end.set()
                else:
                    there.leave.set()
                asks.join(60)
                there.leave.clear()
            assert daemon.wait() == 0 and found == {"slow1": 200, "slow2": 503}
            there.leave.set()
            assert either.states()["completed"] == 2


# E2: what a program does not find, because its input lacks it, it may call not done. By its time it knows who asks.
def test_a_program_that_reconciles_over_http_has_the_payload(tmp_path, books, listen):
    do = {"exec": ["/bin/false"], "timeout": "60s",
          "reconcile": ["/bin/sh", "-c", "test $SEMEL_TIMEOUT_MS = 10000 && exec /bin/cat"]}
    daemon = Daemon(tmp_path, scenes.outside(books, listen, do, breaker={"failures": 100}), env={"ADMIN_TOKEN": ADMIN})
    daemon.settings["admin"].update(token="${ADMIN_TOKEN}")
    daemon.file.write_text(json.dumps(daemon.settings))
    with daemon:
        daemon.ready()
        post(listen, "m1")
        daemon.until(lambda: books.states() == {"unknown": 1}, "nobody knows")
        request = urllib.request.Request(f"http://127.0.0.1:{daemon.port}/v1/inbox/books/m1/reconcile", b"{}",
                                         {"Authorization": f"Bearer {ADMIN}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["known"] == 1
    assert books.store.semel("inbox", "show", "m1", "--json").json["outcome"] == {"k": "k1", "n": 1}


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
