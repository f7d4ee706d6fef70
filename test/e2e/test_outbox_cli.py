# SPDX-License-Identifier: MIT
"""`semel outbox` on SQLite and PostgreSQL, and /v1/outbox: lists, explanations, retries and discards."""
import concurrent.futures
import http.server
import json
import random
import sqlite3
import threading
import time
import urllib.error
import urllib.request
import uuid

import psycopg2
import pytest

from api import ADMIN, READ, Api, same
from conftest import run, run_on_terminal, wait_for
from daemon import Daemon
from pg import pg, pg_server  # noqa: F401 (fixtures)

SECOND = 1_000_000
STATUSES = ["created", "waiting", "publishing", "failed", "dead", "published"]
HOSTILE = ["x", "'; DROP TABLE semel_outbox; --", "01890a5d-ac96-774b-bcce-b302099a805", "../../etc/passwd", "%s%n",
           "01890a5d-ac96-774b-bcce-b302099a805g", "01890a5d_ac96_774b_bcce_b302099a8057"]
IMPOSSIBLE = ["", "\x1b[31m", "a" * 5000, "\u202e"]


class Lite:
    """Events in a SQLite store, by plain SQL."""

    def __init__(self, store):
        self.store, self.semel, self.url = store, store.semel, store.url

    def add(self, status, aggregateid, **columns):
        now = time.time_ns() // 1000
        row = {"id": str(uuid.uuid4()), "aggregatetype": "order", "aggregateid": aggregateid, "type": "Paid",
               "payload": b'{"cents": 100}', "headers": "{}", "created_at": now - 60 * SECOND}
        row.update(extra(status))
        if status == "published":
            row["sent_at"] = now
        elif status != "created":
            row.update(status=status, updated_at=now, due_at=now + 3600 * SECOND if status == "failed" else None)
        if status != "created":
            self.seq = getattr(self, "seq", 1000) + 1
            row["seq"] = self.seq
        row.update(columns)
        table = {"created": "semel_outbox", "published": "semel_outbox_sent"}.get(status, "semel_outbox_aside")
        with sqlite3.connect(self.store.path, timeout=20) as db:
            db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                       list(row.values()))
        return row["id"]

    def sql(self, text):
        return [tuple(str(v) if v is not None else "" for v in row) for row in
                self.store.sql(text.replace("semel.", "semel_"))]


def extra(status):
    return {"failed": {"attempts": 2, "error_text": "too large"}, "publishing": {"attempts": 1, "relay": 7},
            "dead": {"attempts": 8, "error_text": "no such topic"}}.get(status, {})


class Post:
    """The same in PostgreSQL."""

    def __init__(self, database):
        self.semel, self.sql, self.url = database.semel, database.sql, database.url

    def add(self, status, aggregateid, **columns):
        row = {"id": str(uuid.uuid4()), "aggregatetype": "order", "aggregateid": aggregateid, "type": "Paid",
               "payload": r'\x7b2263656e7473223a203130307d', "headers": "{}"}
        row.update(extra(status))
        stamps = {"created_at": "now() - interval '1 minute'"}
        if status == "published":
            stamps["sent_at"] = "now()"
        elif status != "created":
            row["status"] = status
            stamps["updated_at"] = "now()"
            if status == "failed":
                stamps["due_at"] = "now() + interval '1 hour'"
        if status != "created":
            stamps["seq"] = "nextval('semel.outbox_seq_seq')"
            stamps["shard"] = "(get_byte(decode(md5('order/' || '%s'), 'hex'), 0) & 63)" % aggregateid
        row.update(columns)
        table = {"created": "outbox", "published": "outbox_sent"}.get(status, "outbox_aside")
        values = ["NULL" if v is None else "'" + str(v).replace("'", "''") + "'" for v in row.values()]
        self.sql(f"INSERT INTO semel.{table} ({', '.join([*row, *stamps])}) "
                 f"VALUES ({', '.join([*values, *stamps.values()])})")
        return row["id"]


@pytest.fixture
def lite(store):
    return Lite(store)


@pytest.fixture(params=["sqlite", "postgres"])
def box(request):
    return Lite(request.getfixturevalue("store")) if request.param == "sqlite" else Post(request.getfixturevalue("pg"))


def status_of(box, id):
    return "".join(s for s, in box.sql(f"SELECT status FROM semel.outbox_event WHERE id = '{id}'"))


def audit(box):
    return box.sql("SELECT who, what, reason, message_id FROM semel.audit WHERE what LIKE 'outbox %' ORDER BY id")


def act(box, command, *args, reason="because"):
    return box.semel("outbox", command, *args, *(["--reason", reason] if reason is not None else []),
                     env={"SEMEL_USER": "mara"})


# ---- ls ----


def test_ls_lists_by_status_aggregate_type_and_destination_and_by_pages(box):
    ids = {status: box.add(status, f"a-{status}") for status in STATUSES}
    other = box.add("dead", "b", type="Sent", destination="mail", aggregatetype="mail")
    listed = lambda *args: [row["id"] for row in box.semel("outbox", "ls", *args, "--json").json]
    assert sorted(listed()) == sorted([*(ids[s] for s in STATUSES if s != "published"), other])
    for status in STATUSES:
        assert listed("--status", status)[0] == ids[status]
    assert set(listed("--dead")) == {ids["dead"], other}
    assert set(listed("--aside")) == {ids["waiting"], ids["publishing"], ids["failed"], ids["dead"], other}
    assert set(listed("-s", "failed,created")) == {ids["failed"], ids["created"]}
    assert listed("--type", "Sent") == listed("--destination", "mail") == listed("--aggregatetype", "mail") == [other]
    assert listed("--aggregateid", "a-dead", "--dead") == [ids["dead"]]
    assert listed("--type", "Nothing") == []
    rows, pages, after = listed(), [], []
    while True:
        page = box.semel("outbox", "ls", "--limit", 2, *after, "--json")
        pages += [row["id"] for row in page.json]
        if "there are more" not in page.err:
            break
        after = ["--after", page.json[-1]["seq"]]
        assert f"--limit 2 --after {page.json[-1]['seq']}" in page.err
    assert pages == rows
    text = box.semel("outbox", "ls").out
    assert "no such topic" in text and ids["dead"] in text and "AGGREGATEID" in text


def test_ls_refuses_what_would_match_nothing_by_mistake(lite):
    for args, why in ((["--status", "deda"], "it must be one of created"), (["--limit", "0"], "from 1 to 10000"),
                      (["--after", "x"], "must be the seq"), (["--frob"], "--frob")):
        done = lite.semel("outbox", "ls", *args)
        assert done.code == 2 and why in done.err, done
    assert lite.semel("outbox", "ls").out == "no events\n"


# ---- show ----


def test_show_says_why_an_event_is_not_going_and_what_to_paste(box):
    dead = box.add("dead", "a")
    behind = box.add("waiting", "a")
    created = box.add("created", "c")
    failed = box.add("failed", "f")
    publishing = box.add("publishing", "p")
    published = box.add("published", "q")
    for id, words in ((dead, ["dead after 8 attempts: no such topic", f"semel outbox retry {dead} --reason",
                              f"semel outbox discard {dead} --reason", "1 event of its aggregate waits behind it"]),
                      (behind, [f"stands aside and is dead: {dead}", f"semel outbox show {dead}"]),
                      (created, ["It is in the outbox", "No relay publishes its shard", "semel relay FILE"]),
                      (failed, ["refused, after 2 attempts: too large", f"semel outbox retry {failed}"]),
                      (publishing, ["neither retried nor discarded"]),
                      (published, ["It was published", "nothing to do"])):
        done = box.semel("outbox", "show", id)
        assert done.code == 0 and all(word in done.out for word in words), (done, words)
        row = box.semel("outbox", "show", id, "--json").json
        assert row["id"] == id and row["payload"] == '{"cents": 100}' and row["why"] and row["audit"] == []
    assert box.semel("outbox", "show", behind, "--json").json["behind_id"] == dead
    assert box.semel("outbox", "show", dead, "--payload").out == '{"cents": 100}'
    assert box.semel("outbox", "show", dead.upper()).code == 0


def test_hostile_and_unknown_ids_are_refused_and_change_nothing(box):
    box.add("dead", "a")
    for command in ("retry", "discard"):
        done = act(box, command, *IMPOSSIBLE)
        assert done.code == 2 and done.err.count("is no event id") == len(IMPOSSIBLE) and "\x1b" not in done.err, done
        for id in HOSTILE:  # a mapped table may have any of them
            assert act(box, command, id).code == 3, id
    done = box.semel("outbox", "show", IMPOSSIBLE[1])
    assert done.code == 2 and "is no event id" in done.err, done
    unknown = str(uuid.uuid4())
    for args in (["show"], ["retry", "--reason", "x"], ["discard", "--reason", "x"]):
        done = box.semel("outbox", *args, unknown)
        assert done.code == 3 and unknown in done.err, done
    assert box.sql("SELECT count(*) FROM semel.outbox_aside") == [("1",)] and audit(box) == []


def test_terminal_gets_nothing_that_it_might_obey(lite):
    id = lite.add("dead", "a\x1b[31m", error_text="\x1b]0;x\x07", headers='{"x": "\\u001b[1m"}', type="T\u202e",
                  payload=b"\x1b[2J")
    for args in (["ls"], ["show", id]):
        code, seen = run_on_terminal("outbox", *args, "--store", lite.url, env={"NO_COLOR": "1"})
        assert code == 0 and b"\x1b[31m" not in seen and b"\x1b]0" not in seen and b"\x1b[2J" not in seen, seen
        assert "\u202e".encode() not in seen
    code, seen = run_on_terminal("outbox", "show", id, "--payload", "--store", lite.url)
    assert code == 4 and b"\x1b[2J" not in seen


# ---- retry and discard ----


def test_retry_makes_an_event_due_under_its_id_and_is_audited(box):
    dead, failed, waiting = box.add("dead", "a"), box.add("failed", "b"), box.add("waiting", "c")
    done = act(box, "retry", dead, failed, waiting)
    assert done.code == 0 and done.out.count("it is due at once") == 3, done
    assert box.sql("SELECT count(*) FROM semel.outbox_aside WHERE status = 'waiting' AND attempts = 0 "
                   "AND due_at IS NOT NULL") == [("3",)]
    assert audit(box) == [(who(box), "outbox retry", "because", id) for id in (dead, failed, waiting)]
    shown = box.semel("outbox", "show", dead, "--json").json
    assert [line["what"] for line in shown["audit"]] == ["outbox retry"]


def who(box):
    return audit(box)[0][0] if audit(box) else None


def test_retry_of_what_waits_behind_another_is_refused(box):
    dead, behind = box.add("dead", "a"), box.add("waiting", "a")
    done = act(box, "retry", behind)
    assert done.code == 4 and "waits for an earlier event" in done.err, done
    assert status_of(box, dead) == "dead" and audit(box) == []
    created = box.add("created", "z")
    assert "goes in its turn" in act(box, "retry", created).err


def test_discard_removes_an_event_and_wakes_the_next_of_its_aggregate(box):
    dead, behind, created = box.add("dead", "a"), box.add("waiting", "a"), box.add("created", "c")
    assert act(box, "discard", dead).code == 0
    assert status_of(box, dead) == "" and status_of(box, behind) == "waiting"
    assert box.sql(f"SELECT count(*) FROM semel.outbox_aside WHERE id = '{behind}' AND due_at IS NOT NULL") == [("1",)]
    done = act(box, "discard", created)
    assert done.code == 0 and "may still have published it" in done.out and status_of(box, created) == "", done
    assert [line[1:] for line in audit(box)] == [("outbox discard", "because", dead),
                                                ("outbox discard", "because", created)]
    gone = box.semel("outbox", "show", dead)
    assert gone.code == 3 and "outbox discard: because" in gone.err, gone
    assert act(box, "discard", dead).code == 3


def test_event_that_is_being_published_is_neither_retried_nor_discarded(box):
    id, done = box.add("publishing", "p"), box.add("published", "q")
    for command in ("retry", "discard"):
        said = act(box, command, id)
        assert said.code == 4 and "a relay is publishing it" in said.err, said
        said = act(box, command, done)
        assert said.code == 4 and "it was published" in said.err, said
    assert status_of(box, id) == "publishing" and audit(box) == []


def test_reason_is_required_and_a_dry_run_changes_nothing(box):
    dead = box.add("dead", "a")
    for command in ("retry", "discard"):
        done = act(box, command, dead, reason=None)
        assert done.code == 4 and "reason" in done.err, done
        assert act(box, command, dead, reason="").code in (2, 4)
        done = act(box, command, dead, "--dry-run", "--json", reason=None)
        assert done.code == 0 and done.json[0]["result"] == "would" and done.json[0]["code"] == "allowed", done
    assert status_of(box, dead) == "dead" and audit(box) == []


def test_bulk_counts_first_and_asks(box):
    paid = [box.add("dead", f"a{i}") for i in range(5)]
    sent = box.add("dead", "z", type="Sent")
    done = act(box, "retry", "--dead", "--type", "Paid")
    assert done.code != 0 and "5 events match" in done.out and audit(box) == [], done  # nobody to ask
    done = act(box, "retry", "--dead", "--type", "Paid", "--dry-run", "--json", reason=None)
    assert [row["id"] for row in done.json] == paid and audit(box) == []
    done = act(box, "retry", "--dead", "--type", "Paid", "--yes")
    assert done.code == 0 and len(audit(box)) == 5, done
    assert status_of(box, sent) == "dead" and {status_of(box, id) for id in paid} == {"waiting"}
    assert act(box, "retry", "--dead", "--type", "Paid", "--yes").code == 3
    assert act(box, "discard", "--dead", "--destination", "nowhere", "--yes").code == 3
    assert act(box, "discard", "--type", "Sent", "--yes").code == 2  # which status is not said
    assert act(box, "discard", sent, "--dead").code == 2
    assert act(box, "discard", "--dead", "--yes").code == 0 and status_of(box, sent) == ""


# ---- over HTTP ----


# I16
def test_http_gives_the_same_json_as_the_command_line(store, tmp_path):
    box = Lite(store)
    ids = [box.add(status, f"a-{status}") for status in STATUSES]
    box.add("dead", "x y&z", type="T\x1b[1m", destination="mail")
    with Api(store, tmp_path, token="${ADMIN_TOKEN}", read_token="${READ_TOKEN}") as api:
        for words, query in (([], {}), (["--dead"], {"dead": "true"}), (["--status", "failed,created"],
                             {"status": "failed,created"}), (["--destination", "mail"], {"destination": "mail"}),
                             (["--aside", "--limit", "2", "--after", "1001"],
                              {"aside": "true", "limit": 2, "after": 1001})):
            assert json.loads(same(lambda: api.semel("outbox", "ls", *words, "--json").out,
                                   lambda: api.get("/v1/outbox", **query))) is not None
        for id in ids:
            same(lambda: api.semel("outbox", "show", id, "--json").out, lambda: api.get(f"/v1/outbox/{id}"))
        for id in ids:
            for command in ("retry", "discard"):
                dry = api.semel("outbox", command, id, "--dry-run", "--json").json[0]
                code = 200 if dry["code"] == "allowed" else 409
                assert dry == api.post(f"/v1/outbox/{id}/{command}", {"dry_run": True}, code)


def test_http_commands_need_the_admin_token_and_a_reason_and_are_audited(store, tmp_path):
    box = Lite(store)
    dead, behind, publishing = box.add("dead", "a"), box.add("waiting", "a"), box.add("publishing", "p")
    with Api(store, tmp_path, token="${ADMIN_TOKEN}", read_token="${READ_TOKEN}") as api:
        assert api.ask("GET", "/v1/outbox", token=READ)[0] == 200
        assert api.ask("POST", f"/v1/outbox/{dead}/discard", {"reason": "x"}, token=READ)[0] == 403
        assert api.ask("GET", "/v1/outbox", token=None)[0] == 401
        api.post(f"/v1/outbox/{dead}/retry", {}, 400)
        api.post(f"/v1/outbox/{dead}/retry", {"reason": "x", "dryrun": True}, 400)
        api.post(f"/v1/outbox/{uuid.uuid4()}/retry", {"reason": "x"}, 404)
        api.post("/v1/outbox/not-an-id/discard", {"reason": "x"}, 404)
        api.post(f"/v1/outbox/{publishing}/discard", {"reason": "x"}, 409)
        api.post(f"/v1/outbox/{behind}/retry", {"reason": "x"}, 409)
        api.get("/v1/outbox", expect=400, status="deda")
        api.get("/v1/outbox/not-an-id", expect=404)
        api.get(f"/v1/outbox/{uuid.uuid4()}", expect=404)
        told = api.post(f"/v1/outbox/{dead}/retry", {"reason": "over http", "who": "mara"})
        assert told["result"] == "done" and told["status"] == "waiting", told
        assert api.post(f"/v1/outbox/{dead}/discard", {"reason": "over http"})["status"] is None
        status, headers, body = api.ask("GET", "/v1/outbox?limit=1")
        assert "after=" in headers["Link"] and len(json.loads(body)) == 1 and status == 200
    assert [(line[1], line[3]) for line in audit(box)] == [("outbox retry", dead), ("outbox discard", dead)]
    assert audit(box)[0][0].startswith("mara, http@127.0.0.1")


# ---- beside a working relay ----


class Receiver:
    """A place for webhooks, which refuses events of the type `bad` while it is told to."""

    def __init__(self):
        self.got, self.refuse, self.arrived = [], True, lambda event: None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                refused = outer.refuse and body["bad"]
                if not refused:
                    outer.got.append((self.headers["webhook-id"], body["key"], body["n"]))
                    outer.arrived(body)
                self.send_response(422 if refused else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def settings(self, url, **more):
        to = {"webhook": f"http://127.0.0.1:{self.server.server_port}/", "allow": ["127.0.0.1"],
              "secret": "${HOOK_SECRET}"}
        retry = {"max": 2, "first": "50ms", "ceiling": "100ms"}
        orders = {"to": to, "lease": "8s", "timeout": "4s", "retry": retry, **more}
        return {"store": url, "outboxes": {"orders": orders}}


class Operators:
    """Retry and discard what stands aside, at random, over HTTP, until they are told to stop."""

    def __init__(self, port):
        self.port, self.thrown, self.retried, self.stop = port, [], 0, False
        self.threads = [threading.Thread(target=self.work, args=(seed,)) for seed in range(2)]

    def ask(self, method, path, body=None):
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                       data=None if body is None else json.dumps(body).encode(),
                                       headers={"Authorization": f"Bearer {ADMIN}"})
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def work(self, seed):
        chance = random.Random(seed)
        while not self.stop:
            status, rows = self.ask("GET", "/v1/outbox?aside=true&limit=50")
            for row in chance.sample(rows, min(4, len(rows))) if status == 200 else []:
                command = chance.choice(["retry", "retry", "discard"])
                status, told = self.ask("POST", f"/v1/outbox/{row['id']}/{command}", {"reason": "chaos"})
                assert status in (200, 404, 409, 503), told
                if status == 200 and command == "discard":
                    self.thrown.append(row["id"])
                self.retried += status == 200 and command == "retry"

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *how):
        self.stop = True
        for thread in self.threads:
            thread.join()


# O6 M
def test_operators_beside_a_working_relay_keep_the_books_and_metrics_tell_of_it(pg, tmp_path):  # noqa: F811
    receiver, events = Receiver(), 150
    daemon = Daemon(tmp_path, receiver.settings(pg.server.url(pg.name)),
                    env={"ADMIN_TOKEN": ADMIN, "HOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
    daemon.settings["admin"]["token"] = "${ADMIN_TOKEN}"
    daemon.file.write_text(json.dumps(daemon.settings))
    left = lambda: pg.sql("SELECT (SELECT count(*) FROM semel.outbox) + (SELECT count(*) FROM semel.outbox_aside)")
    with daemon:
        daemon.ready()
        with Operators(daemon.port) as operators:
            for n in range(0, events, 10):
                pg.sql("SELECT semel.outbox_put('order', 'k' || n % 10, 'Paid', "
                       "jsonb_build_object('key', 'k' || n % 10, 'n', n, 'bad', n % 4 = 0)) "
                       f"FROM generate_series({n}, {n + 9}) AS n")
            wait_for(lambda: len(operators.thrown) > 5 and operators.retried > 5, "operators do something")
            receiver.refuse = False
            wait_for(lambda: left() == [("0",)], "all events are published or discarded", 120)
        published = daemon.metric("semel_outbox_results_total", outbox="orders", result="published")
        assert daemon.metric("semel_outbox_relay_up", outbox="orders") == 1
        assert daemon.metric("semel_outbox_relay_shards", outbox="orders") == 64
        daemon.until(lambda: daemon.metric("semel_outbox_events", outbox="orders", status="dead") == 0, "it is counted")
    got = {id for id, _, _ in receiver.got}
    assert not got & set(operators.thrown) and len(got) + len(operators.thrown) == events
    assert pg.sql("SELECT count(*) FROM semel.audit WHERE what = 'outbox discard' AND reason = 'chaos'") == \
        [(str(len(operators.thrown)),)]
    for key in {key for _, key, _ in receiver.got}:
        first = list(dict.fromkeys(n for _, of, n in receiver.got if of == key))
        assert first == sorted(first), key
    assert published >= len(got)


# O6
def test_an_event_that_is_on_its_way_is_not_discarded(pg, tmp_path):  # noqa: F811
    receiver, answer, box = Receiver(), threading.Event(), Post(pg)
    settings = receiver.settings(pg.url, lease="3m", timeout="90s")
    settings["outboxes"]["orders"]["to"]["timeout"] = "80s"
    with Daemon(tmp_path, settings, env={"HOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}) as daemon:
        daemon.ready()
        (id,), = pg.sql("SELECT semel.outbox_put('order', 'k', 'Paid', '{\"key\": \"k\", \"n\": 0, \"bad\": true}')")
        daemon.until(lambda: status_of(box, id) == "dead", "it is refused, and dead")
        receiver.refuse, receiver.arrived = False, lambda _: answer.wait(60)
        assert act(box, "retry", id).code == 0
        daemon.until(lambda: len(receiver.got) == 1, "it arrives, and its answer is held back")
        assert status_of(box, id) == "publishing"
        for command in ("discard", "retry"):
            done = act(box, command, id)
            assert done.code == 4 and "a relay is publishing it" in done.err, done
        answer.set()
        daemon.until(lambda: status_of(box, id) == "", "it is published")
    receiver.server.shutdown()
    assert [(line[1], line[3]) for line in audit(box)] == [("outbox retry", id)] and len(receiver.got) == 1


# P116
def test_status_names_dead_events_and_the_transaction_that_stays_open(pg):  # noqa: F811
    box = Post(pg)
    box.add("dead", "a")
    box.add("waiting", "a")
    pg.server.psql("postgres", "DROP ROLE IF EXISTS onlooker; CREATE ROLE onlooker LOGIN;")
    pg.sql("GRANT USAGE ON SCHEMA semel TO onlooker; GRANT SELECT ON ALL TABLES IN SCHEMA semel TO onlooker;")
    writer = psycopg2.connect(pg.server.url(pg.name))
    try:
        with writer.cursor() as cursor:
            cursor.execute("SELECT semel.outbox_put('order', 'b', 'Paid', '{}') /* stays */")
        seen = pg.semel("status", "--json").json["outbox"]
        assert (seen["dead"], seen["waiting"], seen["longest_events"]) == (1, 1, 2)
        assert seen["holder_pid"] == writer.info.backend_pid and "stays" in seen["holder_query"]
        assert seen["holder_since"] is not None and seen["holder_missing_grant"] is None
        hidden = run("status", "--store", pg.server.url(pg.name, "onlooker"), "--json").json["outbox"]
        assert hidden["holder_pid"] == writer.info.backend_pid and hidden["holder_user"] == "postgres"
        assert hidden["holder_query"] is None and hidden["holder_missing_grant"] == "pg_read_all_stats"
        text = run("status", "--store", pg.server.url(pg.name, "onlooker")).out
        assert f"pid {writer.info.backend_pid}, user postgres" in text and "GRANT pg_read_all_stats" in text, text
        assert "1 dead event," in text and "the longest aggregate: order a, 2 events aside" in text
    finally:
        writer.close()
        pg.sql("DROP OWNED BY onlooker")
        pg.server.psql("postgres", "DROP ROLE onlooker")


def test_command_waits_for_the_lock_of_the_shard_and_then_looks_again(pg):  # noqa: F811
    box = Post(pg)
    id = box.add("dead", "a")
    relay = psycopg2.connect(pg.url)
    with relay.cursor() as cursor, concurrent.futures.ThreadPoolExecutor() as pool:
        cursor.execute("SELECT FROM semel.outbox_shard ORDER BY shard FOR UPDATE")
        asked = pool.submit(act, box, "discard", id)
        wait_for(lambda: pg.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") != [("0",)] or asked.done(),
                 "the command waits")
        assert not asked.done()
        cursor.execute(f"UPDATE semel.outbox_aside SET status = 'publishing', relay = 7 WHERE id = '{id}'")
        relay.commit()
        done = asked.result()
    relay.close()
    assert done.code == 4 and "a relay is publishing it" in done.err and status_of(box, id) == "publishing", done


# ---- relay --once ----


class Source:
    """Events {key, n} in the own outbox or in a table of the user's."""

    def __init__(self, box, mapped):
        self.box, self.mapped, self.n, self.lock = box, mapped, 0, threading.Lock()
        self.db = self.connect()
        if mapped:
            self.db.cursor().execute("CREATE TABLE events (pos BIGINT NOT NULL, id TEXT NOT NULL PRIMARY KEY, "
                                     "who TEXT, body TEXT)")
            self.db.cursor().execute("CREATE INDEX events_pos ON events (pos, id)")

    def connect(self):
        if isinstance(self.box, Lite):
            return sqlite3.connect(self.box.store.path, isolation_level=None, timeout=60, check_same_thread=False)
        db = psycopg2.connect(self.box.url)
        db.autocommit = True
        return db

    def put(self, key):
        body = json.dumps({"key": key, "n": self.n, "bad": False})
        lite, id = isinstance(self.box, Lite), str(uuid.uuid4())
        if self.mapped:
            text, row = "INSERT INTO events (pos, id, who, body) VALUES (?, ?, ?, ?)", (self.n, id, key, body)
        else:
            text = ("INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, created_at) "
                    f"VALUES (?, 'order', ?, 'Paid', ?, {time.time_ns() // 1000 if lite else 'now()'})")
            row = (id, key, body.encode())
        text = text.replace("semel.", "semel_") if lite else text.replace("?", "%s")
        self.db.cursor().execute(text, row)
        self.n += 1

    def settings(self, receiver, tmp_path):
        table = {"name": "events", "order": "pos", "id": "id", "aggregateid": "who", "payload": "body"}
        file = tmp_path / "once.yaml"
        file.write_text(json.dumps(receiver.settings(self.box.url, **({"table": table} if self.mapped else {}))))
        return file

    def go_on(self, _):
        with self.lock:
            self.put(f"w{self.n % 300}")


def relay_once(file):
    return run("relay", file, "--once", env={"HOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, timeout=60)


@pytest.mark.parametrize("mapped", [False, True], ids=["own", "mapped"])
def test_once_ends_while_a_writer_goes_on_and_has_published_what_was_there(box, tmp_path, mapped):
    # O2: each event that arrives brings another one, so that the outbox is never empty
    receiver, source = Receiver(), Source(box, mapped)
    receiver.arrived = source.go_on
    for n in range(40):
        source.put(f"k{n % 20}")
    done = relay_once(source.settings(receiver, tmp_path))
    receiver.server.shutdown()
    assert done.code == 1 and "events are left: they came after the start" in done.err and source.n >= 80, done
    assert set(range(40)) <= {n for _, _, n in receiver.got}


def test_once_publishes_all_of_an_aggregate_although_the_sink_takes_one_at_a_time(box, tmp_path):
    # O2, O5: what the relay sets aside for a second is waited for
    receiver, source = Receiver(), Source(box, False)
    for _ in range(130):
        source.put("k")
    done = relay_once(source.settings(receiver, tmp_path))
    receiver.server.shutdown()
    assert done.code == 0 and "published 130, left 0, aside 0" in done.out, done
    assert [n for _, _, n in receiver.got] == list(range(130))


HOOK = {"HOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}


def test_once_waits_for_the_lease_of_a_relay_that_was_killed(box, tmp_path):
    # O2
    receiver, source = Receiver(), Source(box, False)
    victim = Daemon(tmp_path, receiver.settings(box.url), HOOK, name="victim").start()
    victim.ready()
    victim.kill()
    source.put("a")
    source.put("b")
    done = relay_once(source.settings(receiver, tmp_path))
    receiver.server.shutdown()
    assert done.code == 0 and "published 2, left 0, aside 0" in done.out, done
    assert sorted(n for _, _, n in receiver.got) == [0, 1]


def test_once_names_the_destination_that_is_down_and_the_relay_that_has_the_shards(box, tmp_path):
    receiver, source = Receiver(), Source(box, False)
    receiver.server.shutdown()
    receiver.server.server_close()
    for n in range(20):
        source.put(f"k{n}")
    file = source.settings(receiver, tmp_path)
    done = relay_once(file)
    assert done.code == 1 and "published 0, left 20, aside 0" in done.out, done
    assert f"events are left: cannot publish to http://127.0.0.1:{receiver.server.server_port}/: " in done.err, done
    with Daemon(tmp_path, receiver.settings(box.url), HOOK, name="other") as other:
        other.ready()
        done = relay_once(file)
        assert done.code == 1 and f":{other.process.pid} has their shards, and has not published them" in done.err, done
