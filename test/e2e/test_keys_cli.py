# SPDX-License-Identifier: MIT
"""`semel keys` on SQLite and PostgreSQL, and /v1/keys: lists, explanations, and what ends a key."""
import json
import sqlite3
import threading
import time
from urllib.parse import quote

import psycopg2
import pytest

from api import ADMIN, READ, Api, same
from conftest import run, run_on_terminal, wait_for
from key_cases import token
from pg import pg, pg_server  # noqa: F401 (fixtures)

DAY_US = 86400 * 10**6
SECRET = "canary-4711"
IMPOSSIBLE = ["", "\x1b[31m", "a" * 256, "t\u00e9l\u00e9phone"]


def row_of(status, scope, key, age_s=60, claimed="outside", **columns):
    """A row; times are seconds since 1970."""
    now = time.time()
    row = {"scope": scope, "key": key, "status": status, "token": token(claimed, age_s, now), "created_at": now - age_s,
           "updated_at": now - age_s, "answer_us": DAY_US, "keep_us": 30 * DAY_US}
    if status in ("processing", "stuck"):
        row.update(status="processing", lease_owner="gw-1", lease_until=now + (60 if status == "processing" else -5))
    elif status == "unknown":
        row.update(cause="timeout")
    else:
        row.update(code=201, headers=json.dumps([["x-secret", SECRET]]), body=SECRET.encode(), completed_at=now - age_s,
                   answer_until=now + 86400, key_until=now + 30 * 86400)
    row.update(columns)
    return row


class Lite:
    """Keys in a SQLite store, by plain SQL."""

    def __init__(self, store):
        self.store, self.semel, self.url = store, store.semel, store.url

    def add(self, *args, **columns):
        row = row_of(*args, **columns)
        stamps = {name: int(row[name] * 10**6) for name in row if name.endswith(("_at", "_until")) and row[name]}
        row.update(stamps)
        with sqlite3.connect(self.store.path, timeout=20) as db:
            db.execute(f"INSERT INTO semel_idempotency ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                       list(row.values()))

    def sql(self, text):
        return [tuple(str(v) if v is not None else "" for v in row) for row in
                self.store.sql(text.replace("semel.", "semel_"))]


class Post:
    """The same in PostgreSQL."""

    def __init__(self, database):
        self.semel, self.sql, self.url = database.semel, database.sql, database.url

    def add(self, *args, **columns):
        row = row_of(*args, **columns)
        values = [f"to_timestamp({row[name]})" if name.endswith(("_at", "_until")) else "%s" for name in row]
        with psycopg2.connect(self.url) as db, db.cursor() as cursor:
            cursor.execute(f"INSERT INTO semel.idempotency ({', '.join(row)}) VALUES ({', '.join(values)})",
                           [row[name] for name in row if not name.endswith(("_at", "_until"))])
        db.close()


@pytest.fixture
def lite(store):
    return Lite(store)


@pytest.fixture(params=["sqlite", "postgres"])
def box(request):
    return Lite(request.getfixturevalue("store")) if request.param == "sqlite" else Post(request.getfixturevalue("pg"))


def key_row(box, key):
    return box.sql(f"SELECT status, code, headers FROM semel.idempotency WHERE key = '{key}'")


def audit(box):
    return box.sql("SELECT who, what, reason, source, message_id FROM semel.audit WHERE what LIKE 'keys %' ORDER BY id")


def act(box, command, *args, reason="because"):
    return box.semel("keys", command, *args, *(["--reason", reason] if reason is not None else []),
                     env={"SEMEL_USER": "mara"})


def fill(box):
    box.add("unknown", "alice", "key-unknown", age_s=4000)
    box.add("stuck", "alice", "key-stuck", age_s=3000)
    box.add("processing", "bob", "key-running", age_s=2000)
    box.add("unknown", "bob", "key-young", age_s=10, cause="reset")
    box.add("completed", "alice", "key-done", age_s=5000)
    box.add("completed", "alice", "key-done-2", age_s=5000)


# ---- ls ----


# A7 P44
def test_ls_lists_keys_by_status_caller_and_age_and_by_pages(box):
    fill(box)

    def keys(*words):
        return [row["key"] for row in box.semel("keys", "ls", *words, "--json").json]

    assert keys() == ["key-unknown", "key-stuck", "key-running", "key-young"]
    assert keys("--unknown") == keys("--status", "unknown") == ["key-unknown", "key-young"]
    assert keys("--stuck") == ["key-stuck"]
    assert keys("--status", "processing") == ["key-stuck", "key-running"]
    assert keys("--scope", "bob") == ["key-running", "key-young"]
    assert keys("--older", "15m") == ["key-unknown", "key-stuck", "key-running"]
    assert keys("--status", "completed", "--scope", "alice") == ["key-done", "key-done-2"]
    assert keys("--scope", "nobody") == []
    for words in ([], ["--status", "completed", "--scope", "alice"]):
        seen, args = [], ["keys", "ls", *words, "--limit", "1", "--json"]
        while args:
            page = run(*args, env={"SEMEL_STORE": box.url})
            seen += [row["key"] for row in page.json]
            args = page.err.split("semel ", 1)[1].split() + ["--json"] if "there are more" in page.err else None
        assert seen == keys(*words)
    shown = box.semel("keys", "ls").out
    assert "SCOPE" in shown and "gw-1" in shown and "timeout" in shown and SECRET not in shown


def test_ls_refuses_what_would_match_nothing_by_mistake_or_read_everything(lite):
    for words, right in ((["--status", "dead"], "processing, unknown"), (["--status", "completed"], "scope"),
                         (["--status", "completed,unknown"], "stands alone"), (["--older", "soon"], "duration"),
                         (["--status", "completed", "--scope", "a", "--older", "1h"], "stands alone"),
                         (["--limit", "0"], "from 1 to 10000"), (["--after", "x"], "token")):
        told = lite.semel("keys", "ls", *words)
        assert told.code == 2 and right in told.err, (words, told)


# P44
def test_ls_reads_keys_without_an_answer_through_an_index(pg):  # noqa: F811
    pg.sql("INSERT INTO semel.idempotency (scope, key, status, token, created_at, updated_at, answer_us, keep_us, "
           "code, headers, completed_at, answer_until, key_until) SELECT 'alice', 'key-' || n, 'completed', n, now(), "
           "now(), 1, 1, 200, '[]', now(), now(), now() FROM generate_series(1, 20000) AS n; "
           "ANALYZE semel.idempotency")

    def read():
        (n,), = pg.sql("SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'idempotency'")
        return int(n)
    before = read()
    Post(pg).add("unknown", "alice", "key-unknown")
    assert [row["key"] for row in pg.semel("keys", "ls", "--json").json] == ["key-unknown"]
    assert pg.semel("status", "--json").json["keys"]["unknown"] == 1
    wait_for(lambda: read() > before, "the statistics of sessions that have ended")
    assert read() - before < 100


# ---- show ----


def test_show_says_what_a_request_gets_and_what_to_paste(box):
    fill(box)
    box.add("stuck", "alice", "key-atomic", claimed="atomic")
    for scope, key, words in (("alice", "key-unknown", ["timeout", "409", "semel keys resolve alice key-unknown --code",
                                                        "--not-done"]),
                              ("alice", "key-stuck", ["lease ran out", "--not-done"]),
                              ("alice", "key-atomic", ["can not be committed any more", "nothing to do"]),
                              ("bob", "key-running", ["running since", "gw-1", "nothing to do"]),
                              ("alice", "key-done", ["answered with 201", "with its body", "nothing to do"])):
        shown = box.semel("keys", "show", scope, key)
        assert shown.code == 0, shown
        for word in words:
            assert word in shown.out, (word, shown)
    missing = box.semel("keys", "show", "bob", "key-unknown")
    assert missing.code == 3 and "has no key" in missing.err


# P101
def test_show_prints_nothing_of_a_stored_answer_unless_it_is_asked_for(box):
    fill(box)
    for words in ([], ["--json"]):
        shown = box.semel("keys", "show", "alice", "key-done", *words)
        assert shown.code == 0 and SECRET not in shown.out + shown.err, shown
    assert box.semel("keys", "show", "alice", "key-done", "--json").json["body_bytes"] == len(SECRET)
    with_headers = box.semel("keys", "show", "alice", "key-done", "--headers", "--json")
    assert with_headers.json["headers"] == [["x-secret", SECRET]] and with_headers.out.count(SECRET) == 1
    assert box.semel("keys", "show", "alice", "key-done", "--body").out == SECRET
    assert box.semel("keys", "show", "alice", "key-unknown", "--body").code == 4
    assert box.semel("keys", "show", "alice", "key-done", "--body", "--json").code == 2


def test_hostile_names_are_refused_or_not_found_and_change_nothing(box):
    fill(box)
    before = box.sql("SELECT * FROM semel.idempotency ORDER BY key")
    for word in IMPOSSIBLE:
        assert box.semel("keys", "show", "alice", word).code == 2, word
        assert act(box, "discard", "alice", word).code == 2, word
    for word in ("'; DROP TABLE semel_idempotency; --", "../../etc/passwd", "%s%n", "key-%"):
        assert box.semel("keys", "show", "alice", word).code == 3, word
        assert act(box, "discard", word, "key-unknown").code == 3, word
        assert act(box, "resolve", "alice", word, "--not-done").code == 3, word
    assert box.sql("SELECT * FROM semel.idempotency ORDER BY key") == before and audit(box) == []


def test_terminal_gets_nothing_that_it_might_obey(lite):
    lite.add("unknown", "ali\x1b[31mce", "key-unknown", cause="\x1b]0;title\x07", rule="\u202e")
    for words in (["ls"], ["show", "ali\x1b[31mce", "key-unknown"]):
        code, seen = run_on_terminal("keys", *words, env={"SEMEL_STORE": lite.url})
        assert code == 0 and b"\x1b[31m" not in seen and b"\x07" not in seen and "\u202e".encode() not in seen, seen


# ---- resolve, discard ----


# A7 P47
def test_resolve_ends_an_unknown_key_with_an_answer_and_is_audited(box):
    fill(box)
    done = act(box, "resolve", "alice", "key-unknown", "--code", "201", "--headers", '[["a", "b"]]', "--body",
               '{"charge": 1}')
    assert done.code == 0 and "gets this answer" in done.out, done
    assert key_row(box, "key-unknown")[0][:2] == ("completed", "201")
    assert box.semel("keys", "show", "alice", "key-unknown", "--body").out == '{"charge": 1}'
    shown = box.semel("keys", "show", "alice", "key-unknown", "--json", "--headers").json
    assert shown["headers"] == [["a", "b"]] and shown["audit"][0]["who"].startswith("mara")
    assert shown["key_until"] > shown["answer_until"] > shown["completed_at"]
    again = act(box, "resolve", "alice", "key-unknown", "--not-done")
    assert again.code == 4 and "never changes" in again.err, again
    bodyless = act(box, "resolve", "bob", "key-young", "--code", "204")
    assert bodyless.code == 0 and box.semel("keys", "show", "bob", "key-young", "--json").json["body_bytes"] is None
    assert [line[1:] for line in audit(box)] == [("keys resolve", "because", "alice", "key-unknown"),
                                                 ("keys resolve", "because", "bob", "key-young")]


def test_not_done_and_discard_release_a_key(box):
    fill(box)
    assert act(box, "resolve", "alice", "key-unknown", "--not-done").code == 0
    assert act(box, "discard", "alice", "key-stuck").code == 0
    assert key_row(box, "key-unknown") == key_row(box, "key-stuck") == []
    gone = box.semel("keys", "show", "alice", "key-unknown")
    assert gone.code == 3 and "keys resolve: because" in gone.err
    assert act(box, "discard", "alice", "key-unknown").code == 3
    refused = act(box, "discard", "alice", "key-done")
    assert refused.code == 4 and "has its answer" in refused.err
    assert [line[1] for line in audit(box)] == ["keys resolve", "keys discard"]


def test_running_key_is_refused_unless_forced(box):
    fill(box)
    for args in (("resolve", "bob", "key-running", "--code", "200"), ("resolve", "bob", "key-running", "--not-done"),
                 ("discard", "bob", "key-running")):
        refused = act(box, *args)
        assert refused.code == 4 and "--force" in refused.err, refused
    assert key_row(box, "key-running")[0][0] == "processing" and audit(box) == []
    assert act(box, "discard", "bob", "key-running", "--force").code == 0
    assert key_row(box, "key-running") == [] and len(audit(box)) == 1


def test_reason_is_required_and_a_dry_run_changes_nothing(box):
    fill(box)
    before = box.sql("SELECT * FROM semel.idempotency ORDER BY key")
    assert act(box, "discard", "alice", "key-unknown", reason=None).code in (2, 4)
    assert act(box, "discard", "alice", "key-unknown", "--dry-run", reason=None).code == 0
    assert act(box, "resolve", "bob", "key-running", "--not-done", "--dry-run", reason=None).code == 4
    for args in (["--code", "99"], ["--code", "600"], [], ["--not-done", "--code", "200"],
                 ["--not-done", "--body", "x"], ["--code", "200", "--headers", "{}"], ["--body", "x"]):
        assert act(box, "resolve", "alice", "key-unknown", *args).code == 2, args
    assert box.sql("SELECT * FROM semel.idempotency ORDER BY key") == before and audit(box) == []


# P80
def test_whoever_ran_a_request_that_was_resolved_can_not_end_it_again(pg):  # noqa: F811
    (claimed,), = pg.sql("SELECT token FROM semel.key_claim('alice', 'key-00001', effect => 'atomic')")
    assert act(Post(pg), "resolve", "alice", "key-00001", "--not-done", "--force").code == 0
    with psycopg2.connect(pg.url) as db, db.cursor() as cursor, pytest.raises(psycopg2.Error, match="no key is held"):
        cursor.execute("SELECT semel.key_finish(%s, 201)", (int(claimed),))
    db.close()


def test_command_waits_for_a_request_that_is_ending_and_then_looks_again(pg):  # noqa: F811
    (claimed,), = pg.sql("SELECT token FROM semel.key_claim('alice', 'key-00001')")
    pg.sql("UPDATE semel.idempotency SET lease_until = now() - interval '1 minute'")
    told = []
    with psycopg2.connect(pg.url) as db, db.cursor() as cursor:
        cursor.execute("SELECT semel.key_finish(%s, 201)", (int(claimed),))
        waiting = threading.Thread(target=lambda: told.append(act(Post(pg), "discard", "alice", "key-00001")))
        waiting.start()
        wait_for(lambda: pg.sql("SELECT 1 FROM pg_locks WHERE NOT granted"), "the command waits")
    db.close()
    waiting.join(60)
    assert told[0].code == 4 and "has its answer" in told[0].err, told


# ---- status ----


def test_status_shows_keys_that_need_a_person(box):
    assert "\nkeys" not in box.semel("status").out
    fill(box)
    shown = box.semel("status").out
    assert "2 running, 1 of them stuck; 2 unknown" in shown and "1 because of timeout" in shown
    assert "warning: 2 idempotency keys whose outcome is unknown" in shown and "keys ls --unknown" in shown
    keys = box.semel("status", "--json").json["keys"]
    assert (keys["processing"], keys["stuck"], keys["unknown"]) == (2, 1, 2)
    assert {c["cause"]: c["keys"] for c in keys["causes"]} == {"timeout": 1, "reset": 1}


# ---- over HTTP ----


def test_http_gives_the_same_json_as_the_command_line(store, tmp_path):
    box = Lite(store)
    fill(box)
    box.add("unknown", "a/b c", "key?%2f#1", cause="x\x1b[1m")
    with Api(store, tmp_path, token="${ADMIN_TOKEN}", read_token="${READ_TOKEN}") as api:
        for words, query in (([], {}), (["--unknown"], {"unknown": "true"}), (["--stuck"], {"stuck": "true"}),
                             (["--older", "15m", "--scope", "alice"], {"older": "15m", "scope": "alice"}),
                             (["--status", "completed", "--scope", "alice", "--limit", "1"],
                              {"status": "completed", "scope": "alice", "limit": 1})):
            assert json.loads(same(lambda: api.semel("keys", "ls", *words, "--json").out,
                                   lambda: api.get("/v1/keys", **query))) is not None
        for scope, key in (("alice", "key-unknown"), ("alice", "key-stuck"), ("bob", "key-running"),
                           ("alice", "key-done"), ("a/b c", "key?%2f#1")):
            path = f"/v1/keys/{quote(scope, safe='')}/{quote(key, safe='')}"
            same(lambda: api.semel("keys", "show", scope, key, "--json").out, lambda: api.get(path))
            for command in ("resolve", "discard"):
                args = ["--code", "200"] if command == "resolve" else []
                dry = api.semel("keys", command, scope, key, *args, "--dry-run", "--json").json
                code = 200 if dry["code"] == "allowed" else 409
                body = {"dry_run": True, **({"code": 200} if args else {})}
                assert dry == api.post(f"{path}/{command}", body, code)
        assert SECRET not in api.get("/v1/keys/alice/key-done")
        assert SECRET in api.get("/v1/keys/alice/key-done", headers="true")
        assert api.get("/v1/keys/alice/key-done/body") == SECRET
        api.get("/v1/keys/alice/key-unknown/body", expect=404)


def test_http_commands_need_the_admin_token_and_a_reason_and_are_audited(store, tmp_path):
    box = Lite(store)
    fill(box)
    with Api(store, tmp_path, token="${ADMIN_TOKEN}", read_token="${READ_TOKEN}") as api:
        assert api.ask("GET", "/v1/keys", token=READ)[0] == 200
        assert api.ask("POST", "/v1/keys/alice/key-unknown/discard", {"reason": "x"}, token=READ)[0] == 403
        assert api.ask("GET", "/v1/keys", token=None)[0] == 401
        api.post("/v1/keys/alice/key-unknown/resolve", {"code": 201}, 400)
        api.post("/v1/keys/alice/key-unknown/resolve", {"code": 42, "reason": "x"}, 400)
        api.post("/v1/keys/alice/key-unknown/resolve", {"reason": "x"}, 400)
        api.post("/v1/keys/alice/key-unknown/discard", {"reason": "x", "code": 201}, 400)
        api.post("/v1/keys/alice/none/discard", {"reason": "x"}, 404)
        api.post("/v1/keys/bob/key-running/discard", {"reason": "x"}, 409)
        api.get("/v1/keys", expect=400, status="deda")
        api.get("/v1/keys/alice/none", expect=404)
        status, headers, body = api.ask("GET", "/v1/keys?limit=1", token=ADMIN)
        assert "after=" in headers["Link"] and len(json.loads(body)) == 1 and status == 200
        told = api.post("/v1/keys/alice/key-unknown/resolve",
                        {"reason": "over http", "who": "mara", "code": 201, "headers": [["a", "b"]], "body": "{}"})
        assert told["result"] == "done" and told["status"] == "completed", told
        assert api.post("/v1/keys/bob/key-young/resolve", {"reason": "r", "not_done": True})["status"] is None
        assert api.post("/v1/keys/bob/key-running/discard", {"reason": "r", "force": True})["result"] == "done"
    assert [line[1:] for line in audit(box)] == [("keys resolve", "over http", "alice", "key-unknown"),
                                                 ("keys resolve", "r", "bob", "key-young"),
                                                 ("keys discard", "r", "bob", "key-running")]
    assert audit(box)[0][0].startswith("mara, http@127.0.0.1")
