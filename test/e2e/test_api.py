# SPDX-License-Identifier: MIT
"""The operators' API of `semel run`: what `semel inbox` and `semel consumer` do, over HTTP, with the same JSON."""
import json
import socket
import time
from urllib.parse import quote, urlencode

import pytest

from api import ADMIN, READ, Api, same
from inbox_rows import DAY, add, add_many, audits, now_us, status_of, statuses, wait_for
from listen import TOKEN

@pytest.fixture
def api(store, tmp_path):
    with Api(store, tmp_path, token="${ADMIN_TOKEN}", read_token="${READ_TOKEN}") as made:
        yield made


def fill(store):
    """One message of each status, and some that a terminal or JSON must be spared."""
    for status in ("dead", "failed", "processing", "unknown", "completed", "rejected", "stale", "prevented"):
        add(store, f"is-{status}", status)
    add(store, "waits", "waiting", order_key="k", version=5, error_class="gap", due_at=now_us() + DAY)
    add(store, "old", message_time=now_us() - 400 * DAY)
    add(store, "same", source="eu")
    add(store, "same", source="us")
    add(store, "a/b?c&d e\x1b[1m", type="T\u202e", error_text="quote \" and \\ and \x07")
    add(store, "bytes", payload=b"\x00\xff\x1b")


READS = [
    (["inbox", "ls"], "/v1/inbox", {}),
    (["inbox", "ls", "--dead"], "/v1/inbox", {"dead": "true"}),
    (["inbox", "ls", "--status", "dead,failed", "--consumer", "billing"], "/v1/inbox",
     {"status": "dead,failed", "consumer": "billing"}),
    (["inbox", "ls", "--status", "dead", "--status", "failed"], "/v1/inbox", {"status": ["dead", "failed"]}),
    (["inbox", "ls", "--source", "", "--type", "Paid", "--limit", "3"], "/v1/inbox",
     {"source": "", "type": "Paid", "limit": 3}),
    (["inbox", "ls", "--class", "transient", "--error", "bank", "--older", "10m", "--newer", "2h", "--after", "2"],
     "/v1/inbox", {"class": "transient", "error": "bank", "older": "10m", "newer": "2h", "after": 2}),
    (["inbox", "ls", "--key", "k"], "/v1/inbox", {"key": "k"}),
    (["inbox", "ls", "--consumer", "nobody"], "/v1/inbox", {"consumer": "nobody"}),
    (["inbox", "ls", "--group-by", "error"], "/v1/inbox/groups", {}),
    (["inbox", "ls", "--dead", "--group-by", "error", "--limit", "1"], "/v1/inbox/groups",
     {"dead": "true", "limit": 1}),
    (["consumer", "ls"], "/v1/consumers", {}),
    (["consumer", "show", "billing"], "/v1/consumers/billing", {}),
    (["consumer", "show", "books"], "/v1/consumers/books", {}),
]


# I16
def test_every_read_gives_the_same_json_as_the_command_line(store, api):
    fill(store)
    for words, path, query in READS:
        text = same(lambda: api.semel(*words, "--json").out, lambda: api.get(path, **query))
        assert text.endswith("\n") and json.loads(text) is not None
    for id, source in store.sql("SELECT message_id, source FROM semel_inbox"):
        text = same(lambda: api.semel("inbox", "show", id, "--source", source, "--json").out,
                    lambda: api.get(f"/v1/inbox/billing/{quote(id, safe='')}", source=source))
        assert json.loads(text)["why"]
    assert api.ask("GET", "/v1/inbox/billing/bytes/payload")[2] == b"\x00\xff\x1b"


def pairs(store, id, **columns):
    """The same message twice: for the command line, and for HTTP."""
    for consumer in ("cli", "api"):
        add(store, id, consumer=consumer, **columns)


COMMANDS = [
    ("retry", "fresh", {}, ["--reason", "x"], {"reason": "x"}, 200),
    ("retry", "fresh", {}, ["--reason", "x"], {"reason": "x"}, 409),  # it is to be retried already
    ("retry", "ended", {"status": "completed"}, ["--reason", "x"], {"reason": "x"}, 409),
    ("retry", "aged", {"message_time": 1}, ["--reason", "x"], {"reason": "x"}, 409),
    ("retry", "aged", {}, ["--reason", "x", "--dry-run"], {"dry_run": True, "reason": "x"}, 409),
    ("retry", "aged", {}, ["--reason", "x", "--force"], {"reason": "x", "force": True}, 200),
    ("discard", "fresh", {}, ["--dry-run"], {"dry_run": True}, 200),
    ("discard", "fresh", {}, ["--reason", "never again"], {"reason": "never again"}, 200),
    ("resolve", "maybe", {"status": "unknown"}, ["--reason", "the bank has it", "--outcome", '{"ref": 4711}'],
     {"reason": "the bank has it", "outcome": {"ref": 4711}}, 200),
    ("resolve", "later", {"status": "failed"}, ["--reason", "x"], {"reason": "x"}, 409),
    ("retry", "bare", {"payload": None}, ["--reason", "x"], {"reason": "x"}, 409),
]


# I16
def test_every_command_gives_the_same_json_as_the_command_line(store, api):
    """And does the same."""
    made = set()
    for command, id, columns, words, body, status in COMMANDS:
        if id not in made:
            pairs(store, id, **columns)
            made.add(id)
        told = api.semel("inbox", command, id, "--consumer", "cli", *words, "--json")
        mine = api.post(f"/v1/inbox/api/{id}/{command}", body, status)
        assert told.json == [{**mine, "consumer": "cli"}], (command, id)
        assert (told.code == 0) == (status == 200)
    columns = "message_id, status, attempts, attempts_before, retries, error_class, error_text, outcome, payload"
    rows = [store.sql(f"SELECT {columns} FROM semel_inbox WHERE consumer = ? ORDER BY message_id", consumer)
            for consumer in ("cli", "api")]
    assert rows[0] == rows[1]
    lines = [store.sql("SELECT message_id, what, reason FROM semel_audit WHERE consumer = ? ORDER BY id", consumer)
             for consumer in ("cli", "api")]
    assert lines[0] == lines[1] and len(lines[0]) == 4
    assert {who for who, in store.sql("SELECT who FROM semel_audit WHERE consumer = 'api'")} == {"http@127.0.0.1"}


# I16
def test_a_bulk_command_gives_the_same_json_as_the_command_line(store, api):
    for consumer in ("cli", "api"):
        add_many(store, 7, consumer=consumer)
        add(store, "aged", consumer=consumer, message_time=1)
    dry = [api.semel("inbox", "retry", "--dead", "--consumer", "cli", "--dry-run", "--json").json,
           api.post("/v1/selections", {"command": "retry", "dry_run": True,
                                       "filter": {"dead": True, "consumer": "api"}})]
    for shape in dry:
        assert shape["messages"] == 8
        for group in shape["groups"]:
            group.pop("consumer")
    assert dry[0] == dry[1] and not audits(store)
    told = api.semel("inbox", "retry", "--dead", "--consumer", "cli", "--reason", "x", "--yes", "--no-probe", "--rate",
                     "0", "--json").json
    made = api.post("/v1/selections", {"command": "retry", "reason": "x", "rate": 0, "probe": False, "who": "mara",
                                       "filter": {"status": "dead", "consumer": "api"}}, 201)
    assert set(made) == set(told) and made["messages"] == 8
    mine = api.finished(made["selection"])
    assert {**mine, "selection": 1} == {**told, "selection": 1} and (mine["done"], mine["refused"]) == (7, 1)
    assert mine["selection"] != told["selection"]
    assert {who for who, in store.sql("SELECT who FROM semel_audit WHERE consumer = 'api'")} == {"mara, http@127.0.0.1"}


# I16
def test_a_payload_is_corrected_as_by_the_command_line(store, api):
    pairs(store, "wrong")
    refused = api.post("/v1/inbox/api/wrong/retry", {"reason": "x", "payload": None}, 400)
    assert "payload is null" in refused["detail"]
    told = api.semel("inbox", "retry", "wrong", "--consumer", "cli", "--reason", "x", "--payload", '{"a": 1}', "--json")
    mine = api.post("/v1/inbox/api/wrong/retry", {"reason": "x", "payload": {"a": 1}})
    assert told.json == [{**mine, "consumer": "cli"}] and mine["copy"] == "wrong~1", mine
    rows = [store.sql("SELECT message_id, status, payload FROM semel_inbox WHERE consumer = ? ORDER BY message_id",
                      consumer) for consumer in ("cli", "api")]
    assert [row[:2] for row in rows[0]] == [("wrong", "rejected"), ("wrong~1", "waiting")]
    assert [row[:2] for row in rows[1]] == [row[:2] for row in rows[0]]
    assert [json.loads(row[1][2]) for row in rows] == [{"a": 1}] * 2


def test_settings_of_a_consumer_are_changed_as_by_the_command_line(store, api):
    told = api.semel("consumer", "set", "one", '{"retry_max": 3}', "--json").json
    mine = api.send("PATCH", "/v1/consumers/two/settings?" + urlencode({"reason": "ticket 7"}), {"retry_max": 3})
    assert {**mine, "consumer": "one"} == told and mine["settings"]["retry_max"] == 3
    assert store.sql("SELECT who, reason FROM semel_audit WHERE consumer = 'two'") == [("http@127.0.0.1", "ticket 7")]
    assert "retry_max" in api.send("PATCH", "/v1/consumers/two/settings", {"retry_max": 0}, 400)["detail"]
    assert "books" in api.get("/v1/consumers")
    refused = api.send("PATCH", "/v1/consumers/books/settings", {"retry_max": 3}, 409)  # its file sets it
    assert "force" in refused["detail"]
    api.send("PATCH", "/v1/consumers/books/settings?force=true", {"retry_max": 3}, 400)


# A3 P75
def test_versions_over_keys_that_exist_have_a_note(api):
    assert "note" not in api.send("PATCH", "/v1/consumers/orders/settings", {"order": "arrival"})
    assert api.semel("send", "-c", "orders", "--id", "a", "--order-key", "k", "x").code == 0
    now = api.send("PATCH", "/v1/consumers/orders/settings", {"order": "version"})
    assert now["note"] == 'order keys exist already: is first_version "any" right for them?', now
    assert "note" not in api.send("PATCH", "/v1/consumers/orders/settings", {"first_version": "any"})


def test_pages_follow_each_other(store, api):
    add_many(store, 25)
    seen, path = [], "/v1/inbox?status=dead&limit=10&error=bank%20is"
    while path is not None:
        status, headers, body = api.ask("GET", path, token=READ)
        assert status == 200
        seen += [row["id"] for row in json.loads(body)]
        link = headers.get("Link")
        path = link[1:link.index(">")] if link else None
    assert seen == [f"pay-{n + 1}" for n in range(25)]
    for n in range(3):
        api.semel("consumer", "set", f"c{n}", "{\"retry_max\": 2}")
    status, headers, body = api.ask("GET", "/v1/consumers?limit=2")
    assert len(json.loads(body)) == 2 and "after=" in headers["Link"]


# I16
def test_a_selection_is_stopped_and_resumed(store, api):
    add_many(store, 200)
    made = api.post("/v1/selections", {"command": "discard", "reason": "x", "rate": 20, "filter": {"dead": True}}, 201)
    path = f"/v1/selections/{made['selection']}"
    wait_for(lambda: json.loads(api.get(path))["done"] >= 2, "the first messages")
    assert "already" in api.post(path + "/resume", {}, 409)["detail"]
    stopped = api.post(path + "/stop", {})
    assert stopped["stopped"] == "interrupted" and not stopped["running"] and stopped["left"] > 0
    left = stopped["left"]
    assert json.loads(api.get(path))["left"] == left  # nothing more happens
    api.post(path + "/resume", {"rate": 0}, 202)
    ended = api.finished(made["selection"])
    assert (ended["done"], ended["left"], ended["stopped"], ended["resume"]) == (200, 0, None, None)
    assert audits(store) == {f"pay-{n + 1}": 1 for n in range(200)}


def test_a_retry_in_bulk_tries_the_first_one_alone(store, api):
    add_many(store, 3)
    made = api.post("/v1/selections", {"command": "retry", "reason": "x", "wait": "300ms",
                                       "filter": {"dead": True}}, 201)
    ended = api.finished(made["selection"])
    assert (ended["stopped"], ended["done"], ended["left"]) == ("no_worker", 1, 2)
    assert ended["resume"] == f"semel inbox retry --resume {made['selection']}"
    assert api.semel("inbox", "retry", "--resume", str(made["selection"]), "--yes", "--no-probe").code == 0
    assert json.loads(api.get(f"/v1/selections/{made['selection']}"))["left"] == 0


# ---- who may what --------------------------------------------------------------------------------------

WRITES = [("POST", "/v1/inbox/billing/pay-1/retry"), ("POST", "/v1/inbox/billing/pay-1/discard"),
          ("POST", "/v1/inbox/billing/pay-1/resolve"), ("POST", "/v1/selections"),
          ("POST", "/v1/selections/1/resume"), ("POST", "/v1/selections/1/stop"),
          ("PATCH", "/v1/consumers/billing/settings")]


def test_the_token_for_reading_changes_nothing_and_nobody_reads_without_one(store, api):
    add_many(store, 1)
    for path in ("/v1/inbox", "/v1/inbox/groups", "/v1/inbox/billing/pay-1", "/v1/inbox/billing/pay-1/payload",
                 "/v1/consumers", "/v1/consumers/billing"):
        assert api.ask("GET", path, token=READ)[0] == 200
        assert api.ask("HEAD", path, token=READ)[2] == b""
        for token in (None, TOKEN, ADMIN + "x", ""):
            assert api.ask("GET", path, token=token)[0] == 401, (path, token)
    for method, path in WRITES:
        body = {"reason": "x"}
        assert api.ask(method, path, body, token=READ)[0] == 403, path
        assert api.ask(method, path, body, token=None)[0] == 401, path
    assert api.ask("GET", "/v1/inbox", Host="evil.example")[0] == 421
    assert statuses(store) == {"dead": 1} and not audits(store)
    assert ADMIN not in api.daemon.log() and READ not in api.daemon.log()


def test_without_tokens_the_api_is_closed(store, tmp_path):
    add_many(store, 1)
    with Api(store, tmp_path) as api:
        for token in (None, "", ADMIN):
            assert api.ask("GET", "/v1/inbox", token=token)[0] == 401
            for method, path in WRITES:
                assert api.ask(method, path, {"reason": "x"}, token=token)[0] == 401
        assert api.daemon.get("/v1/routes")[0] == 200
    assert not audits(store)


def test_with_the_token_for_reading_alone_nothing_is_changed(store, tmp_path):
    add_many(store, 1)
    with Api(store, tmp_path, read_token="${READ_TOKEN}") as api:
        assert api.ask("GET", "/v1/inbox", token=READ)[0] == 200
        for method, path in WRITES:
            assert api.ask(method, path, {"reason": "x"}, token=READ)[0] == 403
    assert not audits(store)


# ---- bad requests --------------------------------------------------------------------------------------

RETRY = "/v1/inbox/billing/pay-1/retry"
BAD = [
    ("POST", RETRY, None, 400), ("POST", RETRY, {}, 400), ("POST", RETRY, {"reason": ""}, 400),
    ("POST", RETRY, {"reason": None}, 400), ("POST", RETRY, {"reason": ["x"]}, 400),
    ("POST", RETRY, {"reason": "x" * 1001}, 400), ("POST", RETRY, {"reason": "x", "dryrun": True}, 400),
    ("POST", RETRY, {"reason": "x", "dry_run": "true"}, 400), ("POST", RETRY, {"reason": "x", "force": 1}, 400),
    ("POST", RETRY, {"reason": "x", "outcome": {}}, 400), ("POST", RETRY, b'{"reason":"x","reason":"y"}', 400),
    ("POST", RETRY, b'{"r\\u0065ason":"x"}', 400), ("POST", RETRY, b'["reason"]', 400), ("POST", RETRY, b'"x"', 400),
    ("POST", RETRY, b'{"reason":"x"', 400), ("POST", RETRY, b"\xff\xfe", 400), ("POST", RETRY, b"[" * 1000, 400),
    ("POST", RETRY, b'{"reason":"a\\u0000b"}', 400), ("POST", RETRY, b'{"reason":"\\ud800"}', 400),
    ("POST", RETRY, {"reason": "x", "who": "w" * 101}, 400), ("POST", RETRY, {"reason": "x", "who": ""}, 400),
    ("POST", RETRY, b" " * 300_000, 413), ("POST", RETRY + "?surce=", {"reason": "x"}, 400),
    ("POST", RETRY + "?source=&source=", {"reason": "x"}, 400), ("POST", RETRY + "?source=%ff", {"reason": "x"}, 404),
    ("POST", "/v1/inbox/billing/pay-1/resolve", {"reason": "x", "force": True}, 400),
    ("POST", "/v1/inbox/billing/nobody/retry", {"reason": "x"}, 404),
    ("POST", "/v1/inbox/billing/" + "x" * 256 + "/retry", {"reason": "x"}, 400),
    ("POST", "/v1/inbox/billing/%00/retry", {"reason": "x"}, 400), ("POST", "/v1/inbox", {}, 405),
    ("GET", RETRY, None, 405), ("DELETE", "/v1/inbox/billing/pay-1", None, 405),
    ("PUT", "/v1/consumers/billing", {}, 405),
    ("GET", "/v1/inbox?status=lost", None, 400), ("GET", "/v1/inbox?status=", None, 400),
    ("GET", "/v1/inbox?status=dead,,failed", None, 400), ("GET", "/v1/inbox?limit=0", None, 400),
    ("GET", "/v1/inbox?limit=10001", None, 400), ("GET", "/v1/inbox?limit=99999999999999999999", None, 400),
    ("GET", "/v1/inbox?limit=1&limit=2", None, 400), ("GET", "/v1/inbox?after=-1", None, 400),
    ("GET", "/v1/inbox?class=odd", None, 400), ("GET", "/v1/inbox?older=soon", None, 400),
    ("GET", "/v1/inbox?dead=maybe", None, 400), ("GET", "/v1/inbox?colour=red", None, 400),
    ("GET", "/v1/inbox/groups?after=7", None, 400), ("GET", "/v1/inbox/billing/nobody", None, 404),
    ("GET", "/v1/inbox/billing/pay-1/payload?x=1", None, 400), ("GET", "/v1/inbox/billing", None, 404),
    ("GET", "/v1/selections/0", None, 404), ("GET", "/v1/selections/x", None, 404),
    ("GET", "/v1/selections/9", None, 404),
    ("GET", "/v1/selections/9223372036854775808", None, 404), ("POST", "/v1/selections/9/resume", {}, 404),
    ("POST", "/v1/selections/9/stop", {}, 404), ("POST", "/v1/selections", {}, 400),
    ("POST", "/v1/selections", {"command": "delete", "reason": "x", "filter": {"dead": True}}, 400),
    ("POST", "/v1/selections", {"command": "retry", "reason": "x"}, 400),
    ("POST", "/v1/selections", {"command": "retry", "reason": "x", "filter": []}, 400),
    ("POST", "/v1/selections", {"command": "retry", "reason": "x", "filter": {"status": 7}}, 400),
    ("POST", "/v1/selections", {"command": "retry", "reason": "x", "filter": {"status": "completed"}}, 400),
    ("POST", "/v1/selections", {"command": "retry", "reason": "x", "filter": {"dead": True, "limit": "5"}}, 400),
    ("POST", "/v1/selections", {"command": "retry", "filter": {"dead": True}}, 400),
    ("POST", "/v1/selections", {"command": "retry", "reason": "x", "filter": {"dead": True}, "rate": -1}, 400),
    ("POST", "/v1/selections", {"command": "retry", "reason": "x", "filter": {"dead": True}, "rate": 1.5}, 400),
    ("POST", "/v1/selections", {"command": "retry", "reason": "x", "filter": {"dead": True}, "wait": "x"}, 400),
    ("POST", "/v1/selections", {"command": "discard", "reason": "x", "force": True, "filter": {"dead": True}}, 400),
    ("POST", "/v1/selections", {"command": "retry", "reason": "x", "filter": {"dead": True, "consumer": "none"}}, 404),
    ("GET", "/v1/consumers?limit=x", None, 400), ("GET", "/v1/consumers/nobody", None, 404),
    ("GET", "/v1/consumers/%00", None, 400), ("GET", "/v1/consumers/" + "c" * 300, None, 400),
    ("PATCH", "/v1/consumers/billing/settings", {"colour": "red"}, 400),
    ("PATCH", "/v1/consumers/billing/settings", b"x", 400),
    ("PATCH", "/v1/consumers/billing/settings?force=yes", {}, 400),
    ("PATCH", "/v1/consumers/billing/settings?colour=red", {}, 400),
]


def test_what_cannot_be_meant_is_refused_and_changes_nothing(store, api):
    add_many(store, 1)
    for method, path, body, expect in BAD:
        status, headers, text = api.ask(method, path, body)
        assert status == expect, (method, path, body, status, text)
        assert headers["Content-Type"] == "application/problem+json" and json.loads(text)["detail"]
    assert statuses(store) == {"dead": 1} and not audits(store)
    assert store.sql("SELECT count(*) FROM semel_selection") == [(0,)]
    assert api.daemon.running()


def test_an_id_of_several_sources_is_told_apart(store, api):
    add(store, "same", source="eu")
    add(store, "same", source="us")
    assert "?source=" in api.post("/v1/inbox/billing/same/discard", {"reason": "x"}, 409)["detail"]
    api.post("/v1/inbox/billing/same/discard?source=us", {"reason": "x"})
    assert store.sql("SELECT source, status FROM semel_inbox ORDER BY source") == [("eu", "dead"), ("us", "rejected")]


def test_a_request_that_ends_early_or_hangs_up_leaves_the_api_alone(store, api):
    add_many(store, 1)
    head = f"POST {RETRY} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: 100\r\n\r\n"
    for cut in (10, len(head), len(head) + 5):
        with socket.create_connection(("127.0.0.1", api.daemon.port)) as peer:
            peer.sendall((head + '{"reason":"x"}')[:cut].encode())
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", api.daemon.port)) as peer:
            peer.sendall(f"GET /v1/inbox HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\n\r\n".encode())
    assert len(json.loads(api.get("/v1/inbox"))) == 1 and status_of(store, "pay-1") == "dead"


# P42
def test_a_stop_ends_a_bulk_command_between_two_messages(store, tmp_path):
    add_many(store, 50)
    with Api(store, tmp_path, token="${ADMIN_TOKEN}") as api:
        made = api.post("/v1/selections", {"command": "discard", "reason": "x", "rate": 10,
                                           "filter": {"dead": True}}, 201)
        wait_for(lambda: audits(store), "the first message")
        started = time.monotonic()
        api.daemon.stop()
        assert time.monotonic() - started < 20
        assert 0 < len(audits(store)) < 50
    assert api.semel("inbox", "discard", "--resume", str(made["selection"]), "--yes", "--rate", "0").code == 0
    assert set(audits(store).values()) == {1} and len(audits(store)) == 50
