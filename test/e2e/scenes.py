# SPDX-License-Identifier: MIT
"""Scenes that every source must survive on every store: what comes in, what is broken, and what must be in the books.

A source has `settings()` (of `from`), `send(messages)` with messages of (id, payload as a dict), `at(process)`, the
source as that process has it, and `restart(how, daemon)`, which ends and starts the broker, or where there is none the
daemon itself. Books are a table without any constraint on the id, so that an effect that happened twice is seen twice;
effects outside the database are counted by `Ledger`, the other side of an `http` handler.
"""
import collections
import json
import os
import random
import re
import signal
import threading
import time

import pytest

from conftest import Store, file_locked, run
from daemon import Daemon, pause
from listen import TOKEN, Other
from pg import Database, free_port, migrated, wait_for

LONG = os.environ.get("SEMEL_LONG") == "1"

ROUTE = {"values": ["id", "json:/k", "json:/n"], "do": {"sql": "INSERT INTO ledger (id, k, n) VALUES ($1, $2, $3)"},
         "retry": {"max": 20, "first": "50ms", "ceiling": "500ms"}, "lease": "2s"}

# Where a process is killed: the label, and at which visit. POINTS is what every run has, ALL_POINTS what the long ones
# have. A crash behind a claim leaves a lease, and those behind it in its chain are about what becomes of that.
POINTS = ["batch.settled:1", "batch.committed:2", "pump.before_ack:1"]
ALL_POINTS = [f"{label}:{visit}" for label in (
    "batch.begun", "batch.admitted", "batch.handled", "batch.settled", "batch.committed", "claim.admitted",
    "claim.committed", "lease.run", "pump.polled", "pump.before_ack", "pump.acked") for visit in (1, 3)] + [
    "batch.halved:1", "single.failed:1", "single.recorded:1", "purge.watermarked:1", "purge.deleted:1",
    ("claim.committed:1", "recover.settled:1", "recover.committed:1", "take.settled:1", "take.committed:1")]
OUTSIDE_POINTS = ["claim.committed:1", "finish.begun:1"]
ALL_OUTSIDE_POINTS = [
    "pump.polled:1", "claim.admitted:1", "pump.before_ack:1", "pump.acked:1", "finish.begun:1", "finish.settled:1",
    "finish.committed:1", "finish.begun:3",
    ("claim.committed:1", "recover.settled:1", "recover.committed:1", "retry.settled:1", "retry.committed:1",
     "take.settled:1", "take.committed:1")]
TABLES = """
CREATE TABLE ledger (seq %s, id text NOT NULL, k text NOT NULL, n integer NOT NULL CHECK (n >= 0));
CREATE TABLE account (k text PRIMARY KEY);
CREATE TABLE entry (seq %s, id text NOT NULL, k text NOT NULL REFERENCES account (k), n integer NOT NULL);
"""


class Source:
    """A broker's: every process reads the same."""

    def at(self, process):
        return self

    def restart(self, how, daemon):
        self.server.restart(how)


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

    def table(self, name):
        return f"semel_{name}" if self.sqlite else f"semel.{name}"

    def states(self, consumer="books"):
        return {row[0]: int(row[1]) for row in self.sql(
            f"SELECT status, count(*) FROM {self.table('inbox')} WHERE consumer = '{consumer}' GROUP BY status")}

    def put_old(self, id):
        """A record that a purge takes: its message was made and ended long ago."""
        if self.sqlite:
            self.sql("UPDATE semel_counter SET value = value + 1 WHERE name = 'arrival'")
            arrival = "(SELECT value - 1 FROM semel_counter WHERE name = 'arrival')"
            at = str(int((time.time() - 60 * 86400) * 1e6))
        else:
            arrival, at = "nextval('semel.arrival') * 16384", "now() - interval '60 days'"
        self.sql(f"INSERT INTO {self.table('inbox')} (arrival, consumer, source, message_id, status, attempts, "
                 "message_time, received_at, updated_at, processed_at) "
                 f"VALUES ({arrival}, 'books', 'past', '{id}', 'completed', 1, {at}, {at}, {at}, {at})")

    def locked(self):
        """Does somebody stand still in a transaction, with the write lock of the file or with locks on rows?"""
        if self.sqlite:
            return file_locked(self.store.path)
        return self.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                        " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL")[0][0] not in ("0", 0)

    def lease(self, id):
        """Until when the message is held, in seconds, and under which token; None: it is not."""
        until = "lease_until / 1e6" if self.sqlite else "extract(epoch FROM lease_until)"
        rows = self.sql(f"SELECT {until}, lease_token FROM {self.table('inbox')} WHERE message_id = '{id}'"
                        " AND status = 'processing'")
        return (float(rows[0][0]), rows[0][1]) if rows else None

    def deadlocks(self):
        """How many the server has broken up; when all have gone, it has counted all."""
        return 0 if self.sqlite else int(self.sql(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")[0][0])

    def attempts(self, id):
        """What is told of its attempts: (class, text) of each that was recorded."""
        return self.sql(f"SELECT coalesce(error_class, ''), coalesce(error_text, '') FROM {self.table('attempt')}"
                        f" WHERE message_id = '{id}' ORDER BY id")


class Ledger:
    """The other side of an `http` handler: POST has an effect under its key, GET /KEY says whether it had. `slow(call)`
    may hold up the answer to a POST."""

    def __init__(self, slow=None):
        self.slow, self.lock, self.calls = slow, threading.Lock(), collections.defaultdict(list)  # ids, by key
        self.other = Other(self.answer)

    def __enter__(self):
        self.other.__enter__()
        return self

    def __exit__(self, *args):
        self.other.__exit__(*args)

    def answer(self, call):
        if call["method"] == "GET":
            with self.lock:
                state = "done" if call["path"].rsplit("/", 1)[1] in self.calls else "not_done"
            return 200, json.dumps({"state": state}).encode()
        with self.lock:
            self.calls[call["headers"]["Idempotency-Key"]].append(call["headers"]["Semel-Message-Id"])
        if self.slow is not None:
            self.slow(call)
        return 200, b""

    def handler(self, **more):
        return {"http": self.other.url + "/effects", "reconcile": self.other.url + "/effects/{key}", **more}

    def of(self, id):
        """The calls of a message, each by its key."""
        with self.lock:
            return [key for key, ids in self.calls.items() for one in ids if one == id]


def short_on(books, *stores):
    """Without SEMEL_LONG=1 a scene runs on these stores only."""
    if not LONG and ("sqlite" if books.sqlite else "postgres") not in stores:
        pytest.skip("SEMEL_LONG=1 runs it")


def messages(n, keys=10, start=0):
    return [(f"m-{i:06}", {"k": f"k{i % keys}", "n": i}) for i in range(start, start + n)]


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
    schedule = {"every": "100ms", "purge": "1s"}
    return {"store": books.url, "schedule": schedule, "stop_within": "20s", "routes": {"books": made}}


def outside(books, source, do, **route):
    """Settings of a route whose effects are outside the database."""
    return settings(books, source, do=do, values=None, **route)


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


def runs_as_init_wrote_it(tmp_path, books, kind, places, send):
    """What `semel init` writes for this kind of source runs with every handler when its places are those of the test,
    and no message with an id is put into quarantine. send(consumer, messages) sends them as producers do."""
    short_on(books, "sqlite")
    books.sql("DROP TABLE ledger")
    books.sql("CREATE TABLE ledger (order_id text, cents integer)")
    with Other(lambda call: (200, b"")) as other:
        for handler in ("sql", "http", "exec", "pull"):
            secrets = {"SEMEL_TOKEN": TOKEN, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            daemon = Daemon(tmp_path, {}, secrets, name=handler)
            text = run("init", "--from", kind, "--do", handler).out
            for place, here in {"sqlite:semel.db": books.url, "127.0.0.1:9464": f"127.0.0.1:{daemon.port}",
                                "example:": f"{handler}:", **places}.items():
                assert place in text, text
                text = text.replace(place, here)
            daemon.file.write_text(text.replace("http://localhost:8000/payments", other.url)
                                   .replace("127.0.0.1:8091", f"127.0.0.1:{free_port()}"))
            with daemon:
                daemon.ready()
                send(handler, [(f"{handler}-{n}", {"order_id": f"o{n}", "cents": n}) for n in range(5)])
                ends = {"completed"} if handler != "pull" else {"processing", "failed", "waiting"}  # nobody pulls
                daemon.until(lambda: sum(books.states(handler).get(end, 0) for end in ends) >= 5, "five have come")
            assert set(books.states(handler)) <= ends, daemon.log()[-3000:]
    assert books.count() >= 5


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


def dies_at(daemon, point, done):
    """Started, and killed at the point. False: the work was done without going there, and it was killed afterwards."""
    daemon.start(SEMEL_CRASH_AT=point)
    wait_for(lambda: not daemon.running() or done(), f"{point}, or all is done", 90)
    try:
        wait_for(lambda: not daemon.running(), point, 5)  # it may be there yet, behind the last effect
    except AssertionError:
        daemon.kill()
        return False
    assert daemon.wait() == -signal.SIGKILL, daemon.log()[-4000:]
    return True


def crash_all(daemon, points, work, done):
    """At each of the points, or chains of them, with new work each time. Who died before may have left too little
    undone to go there: then the point, or its chain, is tried again."""
    def at(point):
        work()
        return dies_at(daemon, point, done)
    for chain in points:
        for _ in range(4):
            if all(map(at, [chain] if isinstance(chain, str) else chain)):
                break
        else:
            raise AssertionError(f"never visited: {chain}\n{daemon.log()[-4000:]}")


def crashes(tmp_path, books, source, points):
    """T1, T7: killed at labelled points, again and again, with one message a time that fails for good."""
    items, bad = [], []
    def work():
        new = messages(40, start=len(items))
        bad.append((f"bad-{len(bad)}", {"k": "k1", "n": -1}))
        items.extend(new)
        books.put_old(f"old-{len(bad)}")
        source.send(twice(new, len(bad)) + bad[-1:])
    def done():
        return books.states() == {"completed": len(items), "dead": len(bad)}  # and the old one is purged
    daemon = Daemon(tmp_path, settings(books, source, batch=20))
    crash_all(daemon, points, work, done)
    work()
    with daemon:
        rows = expect_exact(books, items, daemon.ready())
        daemon.until(done, "and the bad ones are dead")
    return rows


def outside_crashes(tmp_path, books, source, points, idempotent=False):
    """T1, T11, E1, E2: killed at labelled points around calls. One whose end nobody has told is unknown until the other
    side was asked, so that no key is called twice; unless the handler says that this does no harm."""
    items = []
    def work():
        new = messages(10, start=len(items))
        items.extend(new)
        source.send(twice(new, len(items)))
    def done():
        return books.states() == {"completed": len(items)}
    with Ledger() as ledger:
        do = ledger.handler(timeout="1s", concurrency=4, idempotent=idempotent)
        daemon = Daemon(tmp_path, outside(books, source, do, lease="500ms", batch=10))
        crash_all(daemon, points, work, done)
        work()
        with daemon:
            daemon.until(done, "all are done", 90)
    keys = {id: ledger.of(id) for id, _ in items}
    assert all(len(set(calls)) == 1 for calls in keys.values()), keys  # the key is the same whoever calls
    assert len({calls[0] for calls in keys.values()}) == len(items)
    again = [id for id, calls in keys.items() if len(calls) > 1]
    assert bool(again) == idempotent, again
    known = books.sql(f"SELECT count(*) FROM {books.table('audit')} WHERE who = 'reconcile'")
    assert (int(known[0][0]) > 0) != idempotent, known


def order_under_retries(tmp_path, books, source, order="json:/k"):
    """I13, T3: a message of a key that fails holds back its followers, and nobody else's."""
    books.sql("INSERT INTO account VALUES %s" % ", ".join(f"('k{i}')" for i in range(10) if i != 3))
    items = messages(300)
    source.send(items)
    route = {"order": order, "do": {"sql": "INSERT INTO entry (id, k, n) VALUES ($1, $2, $3)"},
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


def a_killer(tmp_path, books, source, point="batch.handled:1"):
    """I6: a message of which every process dies is counted, and is dead in the end; the others are done."""
    items = messages(30)
    source.send(items[:1])
    retry = {"max": 3, "first": "1ms", "ceiling": "1ms"}
    daemon = Daemon(tmp_path, settings(books, source, lease="200ms", retry=retry))
    deaths = 0
    while not books.states().get("dead"):
        daemon.start(SEMEL_CRASH_AT=point)
        wait_for(lambda: not daemon.running() or books.states().get("dead"), "it dies, or the message does")
        deaths += not daemon.running()
        assert deaths < 20, books.states()
    daemon.kill()
    assert deaths >= 3
    source.send(items[1:])
    with daemon:
        daemon.until(lambda: books.states() == {"dead": 1, "completed": 29}, "the others are done")
    assert books.count() == 29


TRAP = """CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
IF NEW.id = '%s' THEN PERFORM pg_sleep(50); END IF; RETURN NEW; END $$;
CREATE TRIGGER trap BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION trap()"""


def a_killer_among_others(tmp_path, books, source):
    """I6, I15: the process dies whenever it handles one of them. It is found, and the others are neither charged nor
    lost. On PostgreSQL, which tells when the one is at work."""
    items = messages(30)
    killer, deaths = items[17][0], 0
    books.sql(TRAP % killer)
    source.send(items)
    asleep = "FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    retry = {"max": 3, "first": "1ms", "ceiling": "1ms"}
    daemon = Daemon(tmp_path, settings(books, source, lease="500ms", retry=retry))
    while True:
        daemon.start()
        wait_for(lambda: books.sql("SELECT pid " + asleep) or books.states().get("dead"), "it is at work, or dead")
        if books.states().get("dead"):
            break
        daemon.kill()
        books.sql("SELECT pg_terminate_backend(pid) " + asleep)
        deaths += 1
        assert deaths < 10, books.states()
    daemon.until(lambda: books.states() == {"dead": 1, "completed": 29}, "the others are done")
    daemon.stop()
    assert 4 <= deaths <= 5  # perhaps one that nobody can count, one together with others, and three alone
    assert {row[0] for row in books.rows()} == {id for id, _ in items} - {killer} and books.count() == 29
    told = books.sql(f"SELECT (message_id = '{killer}')::integer, min(attempts), max(attempts) FROM semel.inbox"
                     " GROUP BY 1 ORDER BY 1")
    assert told == [("0", "1", "1"), ("1", "3", "3")], told


def broker_restart(tmp_path, books, source):
    """The broker is killed in the middle, and comes back."""
    items = messages(400)
    source.send(twice(items[:200], 3))
    with Daemon(tmp_path, settings(books, source, batch=10)) as daemon:
        daemon.ready()
        daemon.until(lambda: books.count() >= 50, "some are done")
        source.restart(signal.SIGKILL, daemon)
        source.send(twice(items[200:], 4))
        expect_exact(books, items, daemon, 120)


def storm(tmp_path, books, source, processes=3, kills=4, total=3000, every_s=2.0, **route):
    """T14, T7, P67: several processes, one of them killed every few seconds; the books are exact, and nobody waited
    for the other in a circle."""
    items = messages(total, keys=50)
    mixed, daemons = twice(items, 7), []
    for i in range(processes):
        daemons.append(Daemon(tmp_path, settings(books, source.at(i), batch=25, **route), name=f"semel{i}"))
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
    assert books.deadlocks() == 0
    return rows


# ---- handlers that outlast their lease


def outlasts_its_lease(tmp_path, books, source):
    """I7, P39: calls that take several leases keep their claims, whatever comes meanwhile: one call each."""
    items, held = messages(3), {}
    def slow(call):
        id = call["headers"]["Semel-Message-Id"]
        first, token = books.lease(id)
        def renewed():
            until, now = books.lease(id)
            assert now == token, (id, now, token)
            return until > first + 2  # the lease is one second: two more went by
        wait_for(renewed, "renewed for as long as the call takes")
        held[id] = token
    with Ledger(slow) as ledger:
        with Daemon(tmp_path, outside(books, source, ledger.handler(timeout="60s"), lease="1s")) as daemon:
            daemon.ready()
            source.send(items)
            daemon.until(lambda: all(ledger.of(id) for id, _ in items), "all are called")
            source.send(items)  # copies, while the first ones are under way
            daemon.until(lambda: books.states() == {"completed": 3}, "done under their first claims")
            def copies():
                return sum(daemon.metric("semel_messages_total", why=why) for why in ("busy", "duplicate"))
            daemon.until(lambda: copies() >= 3, "the copies were looked at")
            assert not daemon.lines("lease expired during call; result will be refused")
    assert sorted(held) == [id for id, _ in items]  # no call ended otherwise
    assert all(len(ledger.of(id)) == 1 for id, _ in items), ledger.calls


def lag(tmp_path, books, source):
    """What the source still has is known soon after the start, while nothing is finished, and gone at the end."""
    items, go_on = messages(40), threading.Event()
    source.send(items)
    with Ledger(lambda call: go_on.wait(60)) as ledger:
        with Daemon(tmp_path, outside(books, source, ledger.handler(timeout="60s"))) as daemon:
            daemon.ready()
            daemon.until(lambda: 0 < daemon.metric("semel_source_lag_messages") <= len(items), "the lag is known")
            told = books.store.semel("status", "--json", "--admin", f"127.0.0.1:{daemon.port}").json["sources"]
            assert [(one["consumer"], one["daemon"]) for one in told] == [("books", f"127.0.0.1:{daemon.port}")], told
            assert 0 < told[0]["lag"] <= len(items), told
            said = books.store.semel("status", "--admin", f"127.0.0.1:{daemon.port}").out
            assert re.search(rf"^ROUTE +LAG +DAEMON *\nbooks +\d+ +127.0.0.1:{daemon.port}$", said, re.MULTILINE), said
            go_on.set()
            daemon.until(lambda: books.states() == {"completed": len(items)}, "all are done")
            if LONG:  # it is asked for every 15 or 30 s
                daemon.until(lambda: daemon.metric("semel_source_lag_messages") == 0, "the lag is gone", 60)


def stale(books, id):
    return [text for _, text in books.attempts(id) if "stale token" in text]


def stopped_past_its_lease(tmp_path, books, source, idempotent=False):
    """I7, P39, T2: a process that stands still past its lease is overtaken. What it says then is refused, and kept."""
    (id, body), gate, lock, seen = ("m-1", {"k": "k1", "n": 1}), threading.Event(), threading.Lock(), []
    def slow(call):
        with lock:
            seen.append(call)
            first = len(seen) == 1
        assert not first or gate.wait(120)
    with Ledger(slow) as ledger:
        do = {"http": ledger.handler()["http"], "timeout": "120s", "idempotent": idempotent}
        late, other = [Daemon(tmp_path, outside(books, source.at(i), do, lease="1s"), name=f"semel{i}") for i in (0, 1)]
        source.send([(id, body)])
        with late:
            late.until(lambda: ledger.of(id), "it calls")
            with other:
                other.ready()
                late.signal(signal.SIGSTOP)
                while books.locked():  # it stood in the middle of a transaction, where nobody else can write
                    late.signal(signal.SIGCONT)
                    pause(0.01)
                    late.signal(signal.SIGSTOP)
                wanted = {"completed": 1} if idempotent else {"unknown": 1}
                other.until(lambda: books.states() == wanted, "the other one finds the lease expired")
                gate.set()
                late.signal(signal.SIGCONT)
                late.until(lambda: stale(books, id), "its word is refused")
                assert stale(books, id) == ["refused under a stale token: the late worker reported done"]
                assert books.states() == wanted
    assert len(ledger.of(id)) == (2 if idempotent else 1) and len(set(ledger.of(id))) == 1


@pytest.fixture(params=["postgres", "sqlite"])
def books(request, tmp_path):
    """On each store."""
    if request.param == "postgres":
        return Books(Database(request.getfixturevalue("pg_server"), "books", model=migrated))
    store = Store(tmp_path / "books.db")
    migrated(store)
    return Books(store)
