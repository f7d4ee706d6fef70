# SPDX-License-Identifier: MIT
"""Gateways of `semel run`, by its settings file: guarded requests on both stores, metrics, operators, stops."""
import http.client
import http.server
import json
import os
import threading
import urllib.error
import urllib.request

import pytest

from conftest import wait_for
from daemon import Daemon
from listen import silent_connections
from pg import free_port, pg, pg_server  # noqa: F401 (fixtures)


TOKEN = "the-token-of-operators"


class Upstream:
    """A server that counts its calls: /charges does its work, /hang closes without an answer, /slow waits for leave,
    /refuse answers 400."""

    def __init__(self):
        self.calls, self.leave, self.entered = [], threading.Event(), threading.Event()
        self.cookie, self.heads = None, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.calls.append((self.path, self.headers["Idempotency-Key"], body))
                outer.heads.append(str(self.headers))
                if self.path.startswith("/hang"):
                    self.close_connection = True
                    self.connection.close()
                    return
                if self.path == "/slow":
                    outer.entered.set()
                    outer.leave.wait(60)
                answer = json.dumps({"call": len(outer.calls)}).encode()
                self.send_response(400 if self.path.startswith("/refuse") else 201)
                if outer.cookie:
                    self.send_header("Set-Cookie", outer.cookie)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self):  # a reconcile: done, but what has `not` in its key; a check: whatever it is
                if "wait" in self.path:
                    outer.entered.set()
                    outer.leave.wait(60)
                state = {"state": "not_done"} if "not" in self.path else {"state": "done", "status": 201,
                                                                          "outcome": {"found": True}}
                answer = json.dumps(state).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.leave.set()
        self.server.shutdown()
        self.server.server_close()


class World:
    def __init__(self, folder, store, server, **more):
        self.store, self.port = store, free_port()
        guard = [{"match": "POST /charges", "key": "required"}, {"match": "POST /{rest*}", "wait": "1s"}]
        gateway = {"listen": f"127.0.0.1:{self.port}", "upstream": {"url": server.url, "timeout": "20s"},
                   "caller": {"header": "X-User", "trusted_from": ["127.0.0.1"]}, "guard": guard, **more}
        self.daemon = Daemon(folder, {"store": store.url, "gateways": {"payments": gateway}},
                             env={"ADMIN_TOKEN": TOKEN})

    def operated(self):
        """The same with a token for operators."""
        self.daemon.settings["admin"]["token"] = "${ADMIN_TOKEN}"
        self.daemon.file.write_text(json.dumps(self.daemon.settings))
        return self

    def ask(self, path, body=None):
        """The operators' API: the status, and the text."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.daemon.port}{path}",
                                         None if body is None else json.dumps(body).encode(),
                                         {"Authorization": f"Bearer {TOKEN}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path, key=None, body=b"{}", caller="alice", **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {}),
                   **({"X-User": caller} if caller else {}), **more}
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()


@pytest.fixture
def upstream():
    with Upstream() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request):
    return request.getfixturevalue("store" if request.param == "sqlite" else "pg")


# A1 A2 A4 A8 M
def test_request_is_done_once_and_operators_see_its_key(shop, upstream, tmp_path):
    world = World(tmp_path, shop, upstream, threads=2)
    with world.daemon as daemon:
        daemon.ready()
        first, again = world.post("/charges", "key-00001"), world.post("/charges", "key-00001")
        assert first[0] == again[0] == 201 and first[1] == again[1] and len(upstream.calls) == 1
        assert again[2]["Idempotent-Replayed"] == "true" and first[2]["Idempotent-Replayed"] is None
        assert world.post("/charges", "key-00001", b"{\"cents\": 2}")[0] == 422
        assert world.post("/charges")[0] == 400
        assert world.post("/charges", "key-00001", caller=None)[0] == 401
        assert world.post("/charges", "key-00001", caller="bob")[0] == 201 and len(upstream.calls) == 2
        assert world.post("/hang", "key-00002")[0] >= 500
        refused = world.post("/hang", "key-00002")
        assert refused[0] == 409 and b"urn:semel:idempotency:unknown" in refused[1] and len(upstream.calls) == 3
        (unknown,) = shop.semel("keys", "ls", "--unknown", "--json").json
        assert (unknown["scope"], unknown["key"]) == ("alice", "key-00002") and unknown["cause"], unknown
        done = shop.semel("keys", "resolve", "alice", "key-00002", "--code", "201", "--body", "{}", "--reason", "found")
        assert done.code == 0, done
        assert world.post("/hang", "key-00002")[:2] == (201, b"{}") and len(upstream.calls) == 3
        (listed,) = json.loads(daemon.get("/v1/routes")[1])["gateways"]
        assert listed["up"] and listed["guarantee"] == "GUARDED" and listed["replayed"] == 2, listed

        def counted(result):
            return daemon.metric("semel_gateway_requests_total", gateway="payments", result=result)
        daemon.until(lambda: counted("replayed") == 2, "what was replayed is counted")
        assert counted("completed") == 2
        for result in ("mismatch", "missing", "anonymous", "unknown_outcome", "unknown"):
            assert counted(result) == 1, result
        assert daemon.metric("semel_gateway_unknown_total", gateway="payments", cause=unknown["cause"]) == 1
        daemon.stop()
    assert shop.semel("keys", "ls", "--json").json == []


# A7 P48
def test_stop_waits_for_a_call_and_stores_its_answer(store, upstream, tmp_path):
    world = World(tmp_path, store, upstream)
    got = []
    with world.daemon as daemon:
        daemon.ready()
        asking = threading.Thread(target=lambda: got.append(world.post("/slow", "key-00001")))
        asking.start()
        assert upstream.entered.wait(60)
        daemon.signal(15)
        wait_for(lambda: daemon.lines("stopping"), "it stops")
        upstream.leave.set()
        assert daemon.wait() == 0
        asking.join(60)
    assert got[0][0] == 201, got
    (row,) = store.semel("keys", "ls", "--status", "completed", "--scope", "alice", "--json").json
    assert row["code"] == 201


# A7
def test_key_of_a_process_that_was_killed_becomes_unknown(store, upstream, tmp_path):
    world = World(tmp_path, store, upstream, lease="2s", upstream={"url": upstream.url, "timeout": "1s",
                                                                  "connect": "500ms"})
    with world.daemon as daemon:
        daemon.ready()
        asking = threading.Thread(target=lambda: pytest.raises(OSError, world.post, "/slow", "key-00001"))
        asking.start()
        assert upstream.entered.wait(60)
        daemon.kill()
        asking.join(60)
        (held,) = store.semel("keys", "ls", "--json").json
        assert held["status"] in ("processing", "unknown")
        daemon.start()
        daemon.ready()
        daemon.until(lambda: daemon.metric("semel_idempotency_keys", status="unknown") == 1, "its lease runs out")
        daemon.stop()


# A7 P95
def test_reconcile_asks_now_and_believes_not_done_only_when_the_first_call_has_settled(store, upstream, tmp_path):
    guard = [{"match": "POST /hang/on", "on_unknown": "reconcile", "reconcile": f"{upstream.url}/not-known/{{key}}"},
             {"match": "POST /hang", "on_unknown": "reconcile", "reconcile": f"{upstream.url}/by-key/{{key}}",
              "settle": "1h"}]  # the other rule's name begins like this one's, and its URL is never asked
    world = World(tmp_path, store, upstream, guard=guard)
    with world.daemon as daemon:
        daemon.ready()
        for key in ("key-00001", "key-not-1"):
            assert world.post("/hang", key)[0] >= 500
        daemon.stop()
    reason = ["--reason", "asked"]

    def reconcile(key, *more):
        return store.semel("keys", "reconcile", "alice", key, *more)
    assert reconcile("key-00001", *reason).code == 2  # no settings
    assert reconcile("key-00001", "--settings", world.daemon.file).code in (2, 4)  # no reason
    settings = ["--settings", world.daemon.file, *reason]
    done = reconcile("key-00001", *settings)
    assert done.code == 0 and "gets this answer" in done.out, done
    assert store.semel("keys", "show", "alice", "key-00001", "--body").out == '{"found":true}'
    early = reconcile("key-not-1", *settings)
    assert early.code == 4 and "may still be running" in early.err, early
    store.sql("UPDATE semel_idempotency SET updated_at = updated_at - 3600 * 1000000 WHERE key = 'key-not-1'")
    late = reconcile("key-not-1", *settings)
    assert late.code == 0 and store.semel("keys", "ls", "--json").json == [], late
    assert reconcile("key-00001", *settings).code == 4 and reconcile("key-not-1", *settings).code == 3
    assert [row[0] for row in store.sql("SELECT what FROM semel_audit ORDER BY id")] == ["keys resolve"] * 2


# A7 P95
def test_operators_reconcile_over_http_as_by_the_command_line(shop, upstream, tmp_path):
    guard = [{"match": "POST /hang", "on_unknown": "reconcile", "reconcile": f"{upstream.url}/by-key/{{key}}",
              "settle": "1h"}]
    world = World(tmp_path, shop, upstream, guard=guard).operated()
    with world.daemon as daemon:
        daemon.ready()
        for key in ("key-00001", "key-not-1"):
            assert world.post("/hang", key)[0] >= 500
        assert world.post("/other", "key-00002")[0] == 201

        def reconcile(key, **body):
            status, text = world.ask(f"/v1/keys/alice/{key}/reconcile", body)
            return status, json.loads(text)
        assert reconcile("key-00001")[0] == 400 and reconcile("key-00001", reason="x", force=True)[0] == 400
        status, told = reconcile("key-00001", reason="asked", who="mara")
        assert status == 200 and told["status"] == "completed" and told["key"] == "key-00001", told
        assert world.ask("/v1/keys/alice/key-00001/body") == (200, '{"found":true}')
        status, told = reconcile("key-not-1", reason="asked")
        assert status == 409 and "may still be running" in told["detail"], told
        assert reconcile("key-00001", reason="again")[0] == 409 and reconcile("key-nobody", reason="x")[0] == 404
        assert reconcile("key-00002", reason="x")[0] == 409
        assert world.post("/hang", "key-00001")[:2] == (201, b'{"found":true}')
        daemon.stop()


# A7: the other side takes its time, and nobody else waits for it; a stop does not, either.
def test_reconcile_over_http_keeps_no_other_call_waiting(shop, upstream, tmp_path):
    guard = [{"match": "POST /hang", "on_unknown": "reconcile", "reconcile": f"{upstream.url}/by-key/{{key}}"}]
    world = World(tmp_path, shop, upstream, guard=guard).operated()
    found = {}
    with world.daemon as daemon:
        daemon.ready()

        def reconcile(key):
            found[key] = world.ask(f"/v1/keys/alice/{key}/reconcile", {"reason": "asked"})[0]
        for key, stops in (("key-wait-1", False), ("key-wait-2", True)):
            assert world.post("/hang", key)[0] >= 500
            upstream.entered.clear()
            asks = threading.Thread(target=reconcile, args=(key,))
            asks.start()
            assert upstream.entered.wait(60)
            status, text = world.ask(f"/v1/keys/alice/{key}")
            assert status == 200 and json.loads(text)["status"] == "unknown"
            assert world.ask(f"/v1/keys/alice/{key}/discard", {"reason": ""})[0] == 400
            assert key not in found  # it still asks
            if stops:
                daemon.stop()
            else:
                upstream.leave.set()
            asks.join(60)
            upstream.leave.clear()
        assert found == {"key-wait-1": 200, "key-wait-2": 503}


SECRETS = {"X-Api-Key": "sk_live_canary_of_the_api_key", "Authorization": "Bearer canary_of_authorization",
           "Cookie": "session=canary_of_a_cookie", "X-Listed": "canary_of_a_listed_header"}
BODY, QUERY, COOKIE = "canary_of_a_body", "canary_of_a_query", "canary_of_an_answer"
CANARIES = [*(value.rsplit(" ")[-1].rsplit("=")[-1] for value in SECRETS.values()), BODY, QUERY, COOKIE]


def dump(shop, folder):
    """Everything that the store has, as it lies there."""
    if not hasattr(shop, "server"):
        return b"".join(path.read_bytes() for path in folder.glob("**/*.db*"))
    tables = shop.sql("SELECT format('SELECT t::text FROM %s AS t', c.oid::regclass) FROM pg_class AS c"
                      " WHERE c.relnamespace = 'semel'::regnamespace AND c.relkind = 'r'")
    return "\n".join(shop.server.psql(shop.name, statement).stdout for (statement,) in tables).encode()


# P55 P71: what clients and servers keep secret goes through, and stays nowhere.
def test_secrets_of_clients_are_in_no_log_metric_list_or_row(shop, upstream, tmp_path):
    guard = [{"match": "POST /charges", "key": "required", "headers": ["X-Listed"]},
             {"match": "POST /hang", "on_unknown": "reconcile", "reconcile": f"{upstream.url}/by-key/{{key}}"},
             {"match": "POST /small", "body_max": 8}, {"match": "POST /{rest*}"}]
    world = World(tmp_path, shop, upstream, guard=guard,
                  caller={"api_key": "X-Api-Key", "check": f"{upstream.url}/check"}).operated()
    upstream.cookie, shown = f"session={COOKIE}", []

    def post(path, key, body=BODY, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=60)
        connection.request("POST", f"{path}?token={QUERY}", json.dumps({"card": body}),
                           {"Content-Type": "application/json", "Idempotency-Key": key, **SECRETS, **headers})
        answer = connection.getresponse()
        text = answer.read().decode()
        shown.append(text)
        if answer.status >= 400 or answer.getheader("Idempotent-Replayed"):
            shown.append(str(answer.headers) if not path.startswith("/refuse") else "")
        connection.close()
        return answer.status
    with world.daemon as daemon:
        daemon.ready()
        assert [post("/charges", "key-00001") for _ in range(2)] == [201, 201]
        assert post("/charges", "key-00001", BODY + "2") == 422
        assert post("/charges", "short") == 400
        assert post("/charges", "key-00001", **{"X-Api-Key": ""}) == 401
        assert post("/refuse", "key-00002") == 400
        assert post("/hang", "key-00003") >= 500
        assert post("/hang", "key-not-3") >= 500 and post("/hang", "key-not-3") == 409
        assert post("/small", "key-00004") == 413
        assert post("/hang", "key-00003") == 201  # reconciled
        assert any(all(secret in head for secret in SECRETS.values()) for head in upstream.heads), "it did go through"
        rows = [*shop.semel("keys", "ls", "--json").json]
        scope = rows[0]["scope"]
        assert scope.startswith("semel:key:")
        for path in ("/metrics", "/v1/keys", f"/v1/keys?scope={scope}&status=completed", "/v1/routes", "/readyz",
                     f"/v1/keys/{scope}/key-00001", f"/v1/keys/{scope}/key-not-3"):
            status, text = world.ask(path)
            assert status == 200, path
            shown.append(text)
        for words in (["keys", "show", scope, "key-00001"], ["keys", "show", scope, "key-not-3", "--json"]):
            told = shop.semel(*words)
            assert told.code == 0, told
            shown.append(told.out + told.err)
        found = dump(shop, tmp_path)  # with what is in the log of writes
        daemon.stop()
    found += dump(shop, tmp_path)
    assert b"key-00001" in found, "keys are found there"
    shown.append(daemon.log())
    for canary in CANARIES:
        assert not any(canary in text for text in shown), canary
        assert canary.encode() not in found and canary.encode().hex().encode() not in found, canary


def terminate(pg):
    pg.server.psql("postgres", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{pg.name}'")


@pytest.mark.parametrize("spoil, mend", [
    ("ALTER DATABASE {name} SET default_transaction_read_only = on", "ALTER DATABASE {name} RESET ALL"),
    ("DELETE FROM semel.schema WHERE version = (SELECT max(version) FROM semel.schema)",
     "INSERT INTO semel.schema (version, name) SELECT max(version) + 1, 'again' FROM semel.schema")])
def test_read_only_store_and_old_schema_are_503_and_nothing_passes(spoil, mend, pg, upstream, tmp_path):  # noqa: F811
    # P48: a store that cannot take a key lets nothing through
    def change(text):  # by a session that may write, whatever the database says
        pg.server.psql(pg.name, f"SET default_transaction_read_only = off; {text.format(name=pg.name)};")
        terminate(pg)
    world = World(tmp_path, pg, upstream)
    with world.daemon as daemon:
        daemon.ready()
        assert world.post("/charges", "key-00001")[0] == 201
        change(spoil)
        for key in ("key-00001", "key-00002", "key-00003"):  # a stored answer is not replayed either
            status, text, _ = world.post("/charges", key)
            assert status == 503 and json.loads(text)["type"] == "urn:semel:idempotency:not-stored", text
        assert len(upstream.calls) == 1
        assert world.post("/other")[0] == 201 and len(upstream.calls) == 2  # it has no key: never guarded
        daemon.until(lambda: daemon.get("/readyz")[0] == 503, "it is not ready")
        assert "it has no store: " in daemon.get("/readyz")[1]
        change(mend)
        wait_for(lambda: world.post("/charges", "key-00002")[0] == 201, "the store is back")
        assert world.post("/charges", "key-00001")[2]["Idempotent-Replayed"] == "true" and len(upstream.calls) == 3
        daemon.stop()


def test_port_in_use_and_rule_that_cannot_be_used_end_the_start(store, upstream, tmp_path):
    world = World(tmp_path, store, upstream)
    with world.daemon as daemon:
        daemon.ready()
        (tmp_path / "other").mkdir()
        other = Daemon(tmp_path / "other", {**world.daemon.settings, "admin": {"listen": f"127.0.0.1:{free_port()}"}})
        with other:
            assert other.wait() != 0 and str(world.port) in other.log()
        daemon.stop()


# P88: clients that connect and send nothing give way; two loops share what the gateways may use.
def test_idle_connections_stop_neither_guarded_requests_nor_health(store, upstream, tmp_path):
    world = World(tmp_path, store, upstream, threads=2)
    world.daemon.before = ["sh", "-c", 'ulimit -Sn 150; ulimit -Hn 300; exec "$@"', "sh"]
    with world.daemon as daemon:
        daemon.ready()
        with silent_connections(500, world.port):
            assert daemon.get("/healthz")[0] == 200
            for key in ("key-00001", "key-00002", "key-00001"):
                assert world.post("/charges", key)[0] == 201
            assert len(os.listdir(f"/proc/{daemon.process.pid}/fd")) < 150
        assert len(upstream.calls) == 2
        daemon.stop()


KEY = {"Idempotency-Key": "key-00001"}
RULES = {  # a rule: two requests (path, headers, body), the second one's status, its calls, and whether it has a body
    "outcomes": ({"match": "POST /refuse", "outcomes": {"400": "completed"}},
                 [("/refuse", KEY, b"{}")] * 2, 400, 1, True),
    "key_header": ({"match": "POST /a", "key_header": "X-Key"}, [("/a", {"X-Key": "key-00001"}, b"{}")] * 2,
                   201, 1, True),
    "key_pointer": ({"match": "POST /a", "key_pointer": "/id"}, [("/a", {}, b'{"id": "key-00001"}')] * 2, 201, 1, True),
    "store_body": ({"match": "POST /a", "store_body": False}, [("/a", KEY, b"{}")] * 2, 201, 1, False),
    "ignore": ({"match": "POST /a", "ignore": ["/at"]}, [("/a", KEY, b'{"at": 1}'), ("/a", KEY, b'{"at": 2}')],
               201, 1, True),
    "headers": ({"match": "POST /a", "headers": ["X-Shop"]},
                [("/a", {**KEY, "X-Shop": "1"}, b"{}"), ("/a", {**KEY, "X-Shop": "2"}, b"{}")], 422, 1, True),
    "key_scope": ({"match": "POST /{which}", "key_scope": "endpoint"}, [("/a", KEY, b"{}"), ("/b", KEY, b"{}")],
                  201, 2, True),
}


@pytest.mark.parametrize("name", RULES)
def test_setting_of_a_rule_reaches_its_gateway(name, store, upstream, tmp_path):
    rule, (first, second), status, calls, has_body = RULES[name]
    world = World(tmp_path, store, upstream, guard=[rule])
    with world.daemon as daemon:
        daemon.ready()
        world.post(first[0], body=first[2], **first[1])
        again = world.post(second[0], body=second[2], **second[1])
        assert again[0] == status and len(upstream.calls) == calls, again
        assert (again[2]["Idempotent-Replayed"] == "true") == (calls == 1 and status != 422)
        assert (again[1] != b"") == has_body
        daemon.stop()
