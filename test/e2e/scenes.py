# SPDX-License-Identifier: MIT
"""Scenes that every source must survive on every store: what comes in, what is broken, and what must be in the books.

A source has `settings()` (of `from`), `send(messages)` with messages of (id, payload as a dict), and `restart(how)`.
Books are a table without any constraint on the id, so that an effect that happened twice is seen twice.
"""
import os
import random
import signal

from conftest import Store
from daemon import Daemon, pause
from pg import Database, wait_for

LONG = os.environ.get("SEMEL_LONG") == "1"

ROUTE = {"values": ["id", "json:/k", "json:/n"], "do": {"sql": "INSERT INTO ledger (id, k, n) VALUES ($1, $2, $3)"},
         "retry": {"max": 20, "first": "50ms", "ceiling": "500ms"}, "lease": "2s"}
TABLES = """
CREATE TABLE ledger (seq %s, id text NOT NULL, k text NOT NULL, n integer NOT NULL CHECK (n >= 0));
CREATE TABLE account (k text PRIMARY KEY);
CREATE TABLE entry (seq %s, id text NOT NULL, k text NOT NULL REFERENCES account (k), n integer NOT NULL);
"""


class Books:
    """The effects, on either store."""

    def __init__(self, store):
        self.store, self.sqlite = store, isinstance(store, Store)
        serial = "integer PRIMARY KEY AUTOINCREMENT" if self.sqlite else "bigserial PRIMARY KEY"
        for statement in (TABLES % (serial, serial)).strip().split(";"):
            if statement.strip():
                store.sql(statement + ";")

    @property
    def url(self):
        return self.store.url

    def sql(self, text):
        return [tuple(str(value) for value in row) for row in self.store.sql(text)]

    def rows(self, table="ledger"):
        return [(row[0], row[1], int(row[2])) for row in self.sql(f"SELECT id, k, n FROM {table} ORDER BY seq")]

    def count(self, table="ledger"):
        return int(self.sql(f"SELECT count(*) FROM {table}")[0][0])

    def states(self, consumer="books"):
        table = "semel_inbox" if self.sqlite else "semel.inbox"
        return {row[0]: int(row[1]) for row in self.sql(
            f"SELECT status, count(*) FROM {table} WHERE consumer = '{consumer}' GROUP BY status")}


def messages(n, keys=10, prefix="m"):
    return [(f"{prefix}-{i:06}", {"k": f"k{i % keys}", "n": i}) for i in range(n)]


def twice(items, seed):
    """Every message twice, shuffled; but the first copies of a key keep their order (T14)."""
    rng, lanes, copies, mixed = random.Random(seed), {}, [], []
    for item in items:
        lanes.setdefault(item[1]["k"], []).append(item)
    while lanes or copies:
        if copies and (not lanes or rng.random() < 0.5):
            mixed.append(copies.pop(rng.randrange(len(copies))))
            continue
        key = rng.choice(list(lanes))
        mixed.append(lanes[key].pop(0))
        copies.append(mixed[-1])
        if not lanes[key]:
            del lanes[key]
    return mixed


def settings(books, source, **route):
    made = {key: value for key, value in {**ROUTE, "from": source.settings(), **route}.items() if value is not None}
    return {"store": books.url, "schedule": {"every": "100ms"}, "stop_within": "20s", "routes": {"books": made}}


def expect_exact(books, items, daemon=None, seconds=90):
    """Each of them once, and nothing else; in the order of its key where they were sent so."""
    wanted = {(id, body["k"], body["n"]) for id, body in items}
    def complete():
        return books.count() >= len(wanted)
    if daemon is not None:
        daemon.until(complete, f"{len(wanted)} effects", seconds)
    else:
        wait_for(complete, f"{len(wanted)} effects", seconds)
    rows = books.rows()
    assert len(rows) == len(set(rows)), [row for row in rows if rows.count(row) > 1][:5]
    assert set(rows) == wanted
    return rows


def expect_order(rows):
    """I13"""
    last = {}
    for id, key, n in rows:
        assert n > last.get(key, -1), (id, key, n, last[key])
        last[key] = n


# ---- the scenes ---------------------------------------------------------------------------------------


def duplicates(tmp_path, books, source):
    """T6, T14: everything twice and shuffled equals once."""
    items = messages(600)
    source.send(twice(items, 1))
    with Daemon(tmp_path, settings(books, source)) as daemon:
        daemon.ready()
        expect_exact(books, items, daemon)
        source.send(twice(items[:50], 2))
        daemon.until(lambda: daemon.metric("semel_messages_total", why="duplicate") >= 100, "the copies are counted")
    assert books.count() == len(items)
    assert books.states() == {"completed": len(items)}


def poison(tmp_path, books, source):
    """I15, T5: one message that no table takes, and the others go on."""
    items = messages(200)
    bad = [("bad-1", {"k": "k1", "n": -1})]
    source.send(items[:100] + bad + items[100:])
    with Daemon(tmp_path, settings(books, source)) as daemon:
        expect_exact(books, items, daemon.ready())
        daemon.until(lambda: books.states().get("dead") == 1, "the bad one is dead")
        daemon.until(lambda: daemon.metric("semel_alerts_total", kind="dead") == 1, "the alert is counted")
        assert [line["id"] for line in daemon.lines("a message is dead")] == ["bad-1"]


def crashes(tmp_path, books, source, points):
    """T1, T7: killed at labelled points, again and again."""
    items = messages(40 * (len(points) + 1))
    daemon = Daemon(tmp_path, settings(books, source, batch=20))
    for i, point in enumerate(points):
        source.send(twice(items[40 * i:40 * (i + 1)], i))
        daemon.start(SEMEL_CRASH_AT=point)
        assert daemon.wait() == -signal.SIGKILL, point
    source.send(items[40 * len(points):])
    with daemon:
        rows = expect_exact(books, items, daemon.ready())
    return rows


def order_under_retries(tmp_path, books, source):
    """I13, T3: a message of a key that fails holds back its followers, and nobody else's."""
    books.sql("INSERT INTO account VALUES %s" % ", ".join(f"('k{i}')" for i in range(10) if i != 3))
    items = messages(300)
    source.send(items)
    route = {"order": "json:/k", "do": {"sql": "INSERT INTO entry (id, k, n) VALUES ($1, $2, $3)"},
             "retry": {"max": 1000, "first": "10ms", "ceiling": "100ms"}}
    with Daemon(tmp_path, settings(books, source, **route)) as daemon:
        daemon.ready()
        daemon.until(lambda: books.count("entry") == 270, "all keys but one are done")
        daemon.until(lambda: books.states().get("failed") == 1 and books.states().get("waiting") == 29, "k3 waits")
        books.sql("INSERT INTO account VALUES ('k3')")
        daemon.until(lambda: books.count("entry") == 300, "k3 is done, too")
    rows = books.rows("entry")
    assert {row[0] for row in rows} == {id for id, _ in items}
    expect_order(rows)


def a_killer(tmp_path, books, source):
    """I6: a message of which every process dies is counted, and is dead in the end; the others are done."""
    items = messages(30)
    source.send(items)
    retry = {"max": 3, "first": "1ms", "ceiling": "1ms"}
    daemon = Daemon(tmp_path, settings(books, source, lease="200ms", retry=retry))
    for _ in range(20):
        daemon.start(SEMEL_CRASH_AT="lease.run:1")
        assert daemon.wait() == -signal.SIGKILL
        if books.states().get("dead"):
            break
    assert books.states().get("dead") == 1, books.states()
    with daemon:
        daemon.until(lambda: books.states() == {"dead": 1, "completed": 29}, "the others are done")


def broker_restart(tmp_path, books, source):
    """The broker is killed in the middle, and comes back."""
    items = messages(400)
    source.send(twice(items[:200], 3))
    with Daemon(tmp_path, settings(books, source, batch=10)) as daemon:
        daemon.ready()
        daemon.until(lambda: books.count() >= 50, "some are done")
        source.restart(signal.SIGKILL)
        source.send(twice(items[200:], 4))
        expect_exact(books, items, daemon, 120)


def storm(tmp_path, books, source, processes=3, kills=4, total=3000, every_s=2.0, **route):
    """T14, T7: several processes, one of them killed every few seconds; the books are exact."""
    items = messages(total, keys=50)
    mixed, daemons = twice(items, 7), []
    for i in range(processes):
        daemons.append(Daemon(tmp_path, settings(books, source, batch=25, **route), name=f"semel{i}"))
        daemons[-1].start()
    try:
        for i in range(kills):
            source.send(mixed[len(mixed) * i // kills:len(mixed) * (i + 1) // kills])
            pause(every_s)
            victim = daemons[i % processes]
            victim.kill()
            victim.start()
        rows = expect_exact(books, items, daemons[0], 180)
    finally:
        for daemon in daemons:
            if daemon.running():
                daemon.stop()
    for daemon in daemons:
        assert "Sanitizer" not in daemon.log(), daemon.log()[-4000:]
    return rows


def databases(request, tmp_path):
    """Books on the store that the parameter names."""
    if request.param == "postgres":
        server = request.getfixturevalue("pg_server")
        store = Database(server, "books")
    else:
        store = Store(tmp_path / "books.db")
    result = store.semel("migrate")
    assert result.code == 0, result
    return Books(store)
