# SPDX-License-Identifier: MIT
"""`from: inbox`: messages that applications stored by SQL, that failed in SQL or that `semel send` brought are run by
any handler, with no broker; `not_before`; and the housekeeping of consumers that are no routes."""
import datetime
import json
import signal
import sqlite3
import time
import urllib.error
import urllib.request

import pytest

import scenes
from conftest import run, wait_for
from daemon import Daemon
from listen import OTHER_TOKEN, Other
from pg import free_port, pg_server  # noqa: F401  (a fixture)
from scenes import books  # noqa: F401  (a fixture)

if not hasattr(sqlite3.Connection, "enable_load_extension"):
    pytest.skip("this Python's sqlite3 cannot load extensions", allow_module_level=True)

POINTS = ["take.settled:1", "take.committed:2", "lease.run:1", "batch.settled:1", "batch.committed:1"]
OUTSIDE_POINTS = ["take.committed:1", "finish.begun:1"]


def put(db, consumer, id, payload, order_key=None, not_before=None):
    """By the loadable extension, whose arguments go by their places."""
    db.execute("SELECT act FROM semel_inbox_put(?, ?, '', NULL, ?, NULL, NULL, NULL, ?, NULL, NULL, NULL, NULL, ?)",
               (consumer, id, payload, order_key, not_before)).fetchall()


class Stored(scenes.Source):
    """Messages that a program stores in SQL, with its own connection."""

    def __init__(self, books, extension, keyed=False):  # noqa: F811
        self.books, self.extension, self.keyed = books, extension, keyed

    def settings(self):
        return "inbox"

    def restart(self, how, daemon):
        daemon.signal(how)
        daemon.wait()
        daemon.start()

    def connect(self):
        db = sqlite3.connect(self.books.store.path, timeout=30, isolation_level=None)
        db.enable_load_extension(True)
        db.load_extension(self.extension)
        return db

    def send(self, messages, not_before=None, consumer="books"):
        """All in one transaction. not_before: seconds from now."""
        if self.books.sqlite:
            self.send_sqlite(messages, not_before, consumer)
            return
        values = ", ".join("('%s', '%s', %s)" % (id, json.dumps(body), f"'{body['k']}'" if self.keyed else "NULL")
                           for id, body in messages)
        at = "NULL" if not_before is None else f"now() + interval '{not_before} s'"
        self.books.sql(f"SELECT count(p.act) FROM (VALUES {values}) AS v (id, body, k) CROSS JOIN LATERAL "
                       f"semel.inbox_put('{consumer}', v.id, payload => v.body::jsonb, order_key => v.k, "
                       f"not_before => {at}) AS p;")

    def send_sqlite(self, messages, not_before, consumer):
        at = None if not_before is None else int((time.time() + not_before) * 1e6)
        db = self.connect()
        try:
            db.execute("BEGIN IMMEDIATE")
            for id, body in messages:
                put(db, consumer, id, json.dumps(body), body["k"] if self.keyed else None, at)
            db.execute("COMMIT")
        finally:
            db.close()

    def fail(self, id, body, word, consumer="books"):
        """A program has begun the message, and its handler failed."""
        if not self.books.sqlite:
            self.books.sql(f"SELECT act FROM semel.inbox_fail('{consumer}', '{id}', payload => '{json.dumps(body)}', "
                           f"class => '{word}', reason => 'no answer');")
            return
        db = self.connect()
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute("SELECT act FROM semel_inbox_fail WHERE consumer = ? AND message_id = ? AND payload = ? "
                       "AND class = ? AND reason = ?", (consumer, id, json.dumps(body), word, "no answer")).fetchall()
            db.execute("COMMIT")
        finally:
            db.close()


@pytest.fixture
def source(books, extension):  # noqa: F811
    return Stored(books, extension)


@pytest.fixture
def keyed(books, extension):  # noqa: F811
    return Stored(books, extension, keyed=True)


# ---- who runs retries ---------------------------------------------------------------------------------


# I26 I15 I6
def test_what_init_writes_runs(tmp_path, books, source):  # noqa: F811
    places = {"from: inbox": "from: inbox"}
    scenes.runs_as_init_wrote_it(tmp_path, books, "inbox", places, lambda consumer, items: source.send(
        items, consumer=consumer))


def test_a_poison_message_is_dead_and_the_others_go_on(tmp_path, books, source):  # noqa: F811
    scenes.poison(tmp_path, books, source)


# I26 T1 T7
def test_killed_at_labelled_points_every_effect_happens_once(tmp_path, books, source):  # noqa: F811
    scenes.crashes(tmp_path, books, source, POINTS[::1 if scenes.LONG else 2])


# I26 T1 E1 E2
def test_killed_around_calls_no_key_is_called_twice(tmp_path, books, source):  # noqa: F811
    scenes.short_on(books, "postgres")
    scenes.outside_crashes(tmp_path, books, source, OUTSIDE_POINTS)


# I26 I13 T3
def test_a_failure_holds_back_its_key_and_nobody_elses(tmp_path, books, keyed):  # noqa: F811
    scenes.order_under_retries(tmp_path, books, keyed, order="stored")


# I26 I13 T7: on SQLite one process at a time has the file
def test_two_processes_share_the_work_in_order_while_one_is_killed(tmp_path, books, keyed):  # noqa: F811
    items = scenes.messages(400, keys=20)
    settings = scenes.settings(books, keyed, order="stored", batch=10, workers=2)
    first, second = (Daemon(tmp_path, settings, name=name) for name in ("first", "second"))
    keyed.send(items[:200])
    with first, second:
        wait_for(lambda: books.count() >= 50, "some are done")
        first.kill()
        keyed.send(items[200:])
        first.start()
        rows = scenes.expect_exact(books, items, second)
        scenes.expect_order(rows)
        second.until(lambda: books.states() == {"completed": 400}, "all have their end")


# I26 I6
def test_what_failed_in_sql_is_retried_by_the_route(tmp_path, books, source):  # noqa: F811
    source.fail("m1", {"k": "k1", "n": 1}, "transient")
    assert books.states() == {"failed": 1}
    with Daemon(tmp_path, scenes.settings(books, source)) as daemon:
        daemon.until(lambda: books.states() == {"completed": 1}, "it is run")
    assert books.rows() == [("m1", "k1", 1)]
    assert books.sql(f"SELECT attempts FROM {books.table('inbox')}") == [("2",)]


# I26 E1 I6: put by SQL and by the command, called by http with its own key until it succeeds, dead past the cap
def test_an_http_handler_calls_what_is_stored_and_retries_with_backoff(tmp_path, books, source):  # noqa: F811
    with Other(lambda call: (429 if call["headers"]["Semel-Message-Id"] == "bad" or
                             call["headers"]["Semel-Attempt"] == "1" else 200, b"")) as other:
        settings = scenes.outside(books, source, {"http": other.url},
                                  retry={"max": 3, "first": "20ms", "ceiling": "50ms"})
        with Daemon(tmp_path, settings) as daemon:
            daemon.ready()
            source.send([("put", {"k": "k1", "n": 1}), ("bad", {"k": "k1", "n": 2})])
            result = books.store.semel("send", "--consumer", "books", "--id", "sent", '{"k": "k1", "n": 3}')
            assert result.code == 0, result
            daemon.until(lambda: books.states() == {"completed": 2, "dead": 1}, "each has its end")
        assert [len(other.of(id)) for id in ("put", "sent", "bad")] == [2, 2, 3]
        for id in ("put", "sent", "bad"):
            assert len({call["headers"]["Idempotency-Key"] for call in other.of(id)}) == 1


# I26
def test_a_program_and_a_worker_that_pulls_get_what_is_stored(tmp_path, books, source):  # noqa: F811
    scenes.short_on(books, "sqlite")
    out, port = tmp_path / "out", free_port()
    script = f"cat >> {out}; echo >> {out}"
    settings = scenes.outside(books, source, {"exec": ["/bin/sh", "-c", script]})
    settings["routes"]["pulled"] = {"from": "inbox", "lease": "2s",
                                    "do": {"pull": f"127.0.0.1:{port}", "token": "${OTHER_TOKEN}"}}

    def pull(path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/pulled/{path}", method="POST",
                                         data=json.dumps(body).encode() if body is not None else b"",
                                         headers={"Authorization": f"Bearer {OTHER_TOKEN}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        source.send([("x1", {"k": "k1", "n": 1})])
        daemon.until(lambda: books.states() == {"completed": 1}, "the program has run")
        assert json.loads(out.read_text()) == {"k": "k1", "n": 1}
        source.send([("p1", {"k": "k1", "n": 2})], consumer="pulled")
        taken = pull("take?max=5&wait=20s")
        assert [one["id"] for one in taken] == ["p1"], taken
        pull("settle", {"token": taken[0]["token"], "result": "done"})
        daemon.until(lambda: books.states("pulled") == {"completed": 1}, "the worker has settled it")


# ---- not before --------------------------------------------------------------------------------------


# I26
def test_a_message_for_later_runs_then_and_its_key_waits_behind_it(tmp_path, books, keyed):  # noqa: F811
    with Daemon(tmp_path, scenes.settings(books, keyed, order="stored")) as daemon:
        daemon.ready()
        began = time.time()
        keyed.send([("later", {"k": "k1", "n": 1})], not_before=3)
        keyed.send([("behind", {"k": "k1", "n": 2}), ("other", {"k": "k2", "n": 3})])
        keyed.send([("later", {"k": "k1", "n": 1})])  # a copy changes nothing
        daemon.until(lambda: ("other", "k2", 3) in books.rows(), "another key goes on")
        if time.time() < began + 2.5:
            assert books.rows() == [("other", "k2", 3)]
        daemon.until(lambda: books.count() == 3, "its time has come")
        assert time.time() >= began + 3
        assert [row[0] for row in books.rows()] == ["other", "later", "behind"]


# I26: the wake of its key does not bring it forward
def test_a_message_for_later_behind_another_one_keeps_its_time(tmp_path, books, keyed):  # noqa: F811
    keyed.send([("first", {"k": "k1", "n": 1})])
    began = time.time()
    keyed.send([("later", {"k": "k1", "n": 2})], not_before=3)
    with Daemon(tmp_path, scenes.settings(books, keyed, order="stored")) as daemon:
        daemon.until(lambda: books.count() >= 1, "the first one runs")
        daemon.until(lambda: books.count() == 2, "its time has come")
        assert time.time() >= began + 3
        assert [row[0] for row in books.rows()] == ["first", "later"]


BAD_PG = {"'infinity'": "at most ten years ahead", "'-infinity'": "at most ten years ahead",
          "now() + interval '11 years'": "at most ten years ahead", "'1969-12-31 23:59:59+00'": "1970"}
BAD_SQLITE = {int((time.time() + 11 * 366 * 86400) * 1e6): "ten years ahead", "infinity": "not_before must be",
              -1: "not_before must be", 1.5: "not_before must be", 2 ** 63 - 1: "ten years ahead", b"x": "not_before"}


# I26
def test_a_time_that_cannot_be_meant_is_refused_and_stores_nothing(books, source):  # noqa: F811
    if not books.sqlite:
        for value, why in BAD_PG.items():
            done = books.store.server.psql(books.store.name, "SELECT semel.inbox_put('books', 'm', payload => '{}', "
                                           f"not_before => {value})", check=False)
            assert done.returncode != 0 and why in done.stderr and "not_before" in done.stderr, (value, done)
        books.sql("SELECT act FROM semel.inbox_put('books', 'now', payload => '{}', not_before => NULL);")
        books.sql("SELECT act FROM semel.inbox_put('books', 'past', payload => '{}', not_before => '2020-01-01');")
        due = books.sql("SELECT message_id FROM semel.inbox WHERE due_at <= now() ORDER BY 1")
    else:
        db = source.connect()
        db.execute("BEGIN IMMEDIATE")
        for value, why in BAD_SQLITE.items():
            with pytest.raises(sqlite3.Error, match=why):
                put(db, "books", "m", "{}", not_before=value)
        for id, value in (("now", None), ("past", 0)):
            put(db, "books", id, "{}", not_before=value)
        db.execute("COMMIT")
        due = db.execute("SELECT message_id FROM semel_inbox WHERE due_at <= ? ORDER BY 1",
                         (int(time.time() * 1e6),)).fetchall()
        db.close()
    assert due == [("now",), ("past",)]
    assert books.states() == {"waiting": 2}


# I26
def test_the_command_sends_for_later(books):  # noqa: F811
    later = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    def send(*args, **more):
        return books.store.semel("send", "--consumer", "books", *args, **more)
    assert send("--id", "m1", "--not-before", later, "{}").code == 0
    lines = json.dumps({"id": "m2", "payload": {}, "not_before": later}) + "\n"
    assert send("--lines", stdin=lines).code == 0
    rows = {row["id"]: row["due_at"] for row in books.store.semel("inbox", "ls", "--json").json}
    assert {due[:19] for due in rows.values()} == {later[:19]} and set(rows) == {"m1", "m2"}
    assert "does not run before" in books.store.semel("inbox", "show", "m1", "--consumer", "books").out
    for wrong in ("tomorrow", "infinity", "9999-01-01T00:00:00Z"):
        result = send("--id", "m3", "--not-before", wrong, "{}")
        assert result.code == 2 and "not" in result.err and "before" in result.err, result
    assert send("--lines", stdin='{"id": "m4", "payload": {}, "not_before": 5}').code == 1


# ---- consumers that are no routes --------------------------------------------------------------------


def claim(books, source, id, consumer="program"):  # noqa: F811
    """A lease of one millisecond that nobody ends."""
    if books.sqlite:
        db = source.connect()
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"SELECT semel_consumer('{consumer}', '{{\"effect\": \"outside\"}}')").fetchall()
        db.execute("SELECT act FROM semel_inbox_claim WHERE consumer = ? AND message_id = ? AND payload = '{}' AND "
                   "lease = '1ms'", (consumer, id)).fetchall()
        db.execute("COMMIT")
        db.close()
        return
    books.sql(f"SELECT semel.consumer('{consumer}', '{{\"effect\": \"outside\"}}');")
    books.sql(f"SELECT act FROM semel.inbox_claim('{consumer}', '{id}', payload => '{{}}', lease => '1ms');")


# I26 P77
def test_the_daemon_keeps_house_for_programs_unless_it_is_told_not_to(tmp_path, books, source):  # noqa: F811
    settings = scenes.settings(books, source)
    settings["schedule"]["others"] = False
    claim(books, source, "m1")
    with Daemon(tmp_path, settings, name="not") as daemon:
        daemon.ready()
        source.send([("x", {"k": "k1", "n": 1})])
        daemon.until(lambda: books.states() == {"completed": 1}, "its own route goes on")
        assert books.states("program") == {"processing": 1}
    del settings["schedule"]["others"]
    with Daemon(tmp_path, settings) as daemon:
        daemon.until(lambda: books.states("program") == {"unknown": 1}, "the lease is ended")
        claim(books, source, "m2")
        daemon.until(lambda: books.states("program") == {"unknown": 2}, "and the next one")
        daemon.until(lambda: daemon.lines("housekeeping of other consumers"), "it is logged")


# ---- settings ----------------------------------------------------------------------------------------


# I26
def test_check_tells_what_the_order_and_the_guarantee_rest_on(tmp_path, books):  # noqa: F811
    scenes.short_on(books, "sqlite")
    file = tmp_path / "semel.yaml"
    def check(route):
        file.write_text(json.dumps({"store": books.url, "routes": {"books": {
            "values": ["json:/n"], "do": {"sql": "INSERT INTO ledger (n) VALUES ($1)"}, **route}}}))
        return run("check", file, env={"LISTEN_TOKEN": "a-token-of-the-tests"})
    said = check({"from": "inbox", "order": "stored"})
    assert said.code == 0 and "from inbox" in said.out, said
    assert "the order in which messages of a key were stored" in said.out and "there is no broker" in said.out
    assert "no order is asked for" in check({"from": {"inbox": "stored"}}).out
    for route, why in (({"from": "inbox", "order": "json:/k"}, "write `order: stored`"),
                       ({"from": "inbox", "id": "header:id"}, "leave it out"),
                       ({"from": "inbox", "keep": {"payload": "never"}}, "keep.payload"),
                       ({"from": "inbox", "version": "stored"}, "order"),
                       ({"from": "inboxes"}, "which kind"), ({"from": {"inbox": "all"}}, "stored"),
                       ({"from": {"listen": "127.0.0.1:0", "token": "${LISTEN_TOKEN}"}, "order": "stored"},
                        "from: inbox")):
        said = check(route)
        assert said.code != 0 and why in said.err, (route, said)


# I26: the daemon starts without any broker and stops as told
def test_signals_stop_the_route(tmp_path, books, source):  # noqa: F811
    scenes.short_on(books, "sqlite")
    with Daemon(tmp_path, scenes.settings(books, source, workers=3)) as daemon:
        daemon.ready()
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
