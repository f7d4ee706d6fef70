# SPDX-License-Identifier: MIT
"""`semel outbox` on SQLite and PostgreSQL: lists, explanations, retries and discards, as people and programs use them."""
import json
import sqlite3
import time
import uuid

import pytest

from api import READ, Api, same
from conftest import run_on_terminal
from pg import pg, pg_server  # noqa: F401 (fixtures)

SECOND = 1_000_000
STATUSES = ["created", "waiting", "publishing", "failed", "dead", "published"]
HOSTILE = ["", "x", "'; DROP TABLE semel_outbox; --", "01890a5d-ac96-774b-bcce-b302099a805", "../../etc/passwd", "%s%n",
           "01890a5d-ac96-774b-bcce-b302099a805g", "01890a5d_ac96_774b_bcce_b302099a8057", "\x1b[31m", "a" * 5000, "\u202e"]


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
        self.database, self.semel, self.sql, self.url = database, database.semel, database.sql, database.server.url(database.name)

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
                      (publishing, ["neither retried nor discarded"]), (published, ["It was published", "nothing to do"])):
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
        done = act(box, command, *HOSTILE)
        assert done.code == 2 and done.err.count("is no event id") == len(HOSTILE) and "\x1b" not in done.err, done
    done = box.semel("outbox", "show", HOSTILE[2])
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
        code, seen = run_on_terminal("outbox", *args, "--store", lite.url)
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
                             {"status": "failed,created"}), (["--aside", "--limit", "2"], {"aside": "true", "limit": 2}),
                             (["--destination", "mail"], {"destination": "mail"}), (["--after", "1001"], {"after": 1001})):
            assert json.loads(same(lambda: api.semel("outbox", "ls", *words, "--json").out,
                                   lambda: api.get("/v1/outbox", **query))) is not None
        for id in ids:
            same(lambda: api.semel("outbox", "show", id, "--json").out, lambda: api.get(f"/v1/outbox/{id}"))
        for id in ids:
            for command in ("retry", "discard"):
                dry = api.semel("outbox", command, id, "--dry-run", "--json").json[0]
                assert dry == api.post(f"/v1/outbox/{id}/{command}", {"dry_run": True}, 200 if dry["code"] == "allowed" else 409)


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
        api.post("/v1/outbox/not-an-id/discard", {"reason": "x"}, 400)
        api.post(f"/v1/outbox/{publishing}/discard", {"reason": "x"}, 409)
        api.post(f"/v1/outbox/{behind}/retry", {"reason": "x"}, 409)
        api.get("/v1/outbox", expect=400, status="deda")
        api.get("/v1/outbox/not-an-id", expect=400)
        api.get(f"/v1/outbox/{uuid.uuid4()}", expect=404)
        told = api.post(f"/v1/outbox/{dead}/retry", {"reason": "over http", "who": "mara"})
        assert told["result"] == "done" and told["status"] == "waiting", told
        assert api.post(f"/v1/outbox/{dead}/discard", {"reason": "over http"})["status"] is None
        status, headers, body = api.ask("GET", "/v1/outbox?limit=1")
        assert "after=" in headers["Link"] and len(json.loads(body)) == 1 and status == 200
    assert [(line[1], line[3]) for line in audit(box)] == [("outbox retry", dead), ("outbox discard", dead)]
    assert audit(box)[0][0].startswith("mara, http@127.0.0.1")
