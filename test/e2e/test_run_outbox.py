# SPDX-License-Identifier: MIT
"""The relay, from a real database to a real Apache Kafka: what is committed arrives, in order, whatever is killed."""
import collections
import io
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import uuid

import psycopg2
import pytest

from conftest import binary
from daemon import Daemon, pause
from kafka import SOURCE, kafka  # noqa: F401
from pg import pg, pg_server, wait_for  # noqa: F401

LONG = os.environ.get("SEMEL_LONG") is not None
PARTITIONS = 4


class Outbox:
    """An outbox in PostgreSQL, its topic, and what a plain consumer makes of it."""
    made = 0

    def __init__(self, pg, kafka):  # noqa: F811
        Outbox.made += 1
        self.pg, self.kafka, self.name = pg, kafka, f"orders-{Outbox.made}"
        kafka.topic(self.name, PARTITIONS)
        self.db = psycopg2.connect(pg.url)
        self.db.autocommit = True

    def settings(self, name="orders", **more):
        to = {"kafka": self.kafka.address, "topic": "{destination}", "topics": [self.name], **more.pop("to", {})}
        return {"store": self.pg.url, "outboxes": {name: {"to": to, "lease": "4s", "timeout": "2s", **more}}}

    def put(self, aggregate, n, db=None, to=None):
        with (db or self.db).cursor() as cursor:
            cursor.execute("SELECT semel.outbox_put('order', %s, 'changed', %s, destination => %s, lock => true)",
                           (aggregate, json.dumps({"n": n}), to or self.name))
            return cursor.fetchone()[0]

    def ask(self, text):
        with self.db.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchone()[0]

    def left(self):
        return self.ask("SELECT (SELECT count(*) FROM semel.outbox) + (SELECT count(*) FROM semel.outbox_aside)")

    def came(self):
        """aggregate: [(id, n)] in the order of the topic."""
        found = collections.defaultdict(list)
        for _, key, payload, headers in self.kafka.read(self.name, PARTITIONS):
            assert headers["id"] == headers["ce_id"] and headers["ce_type"] == "changed", headers
            found[key.decode()].append((headers["id"], json.loads(payload)["n"]))
        return found

    def check(self, committed):
        """Nothing committed is missing, nothing else came, first occurrences of an aggregate are in order. Returns how
        many came again."""
        came, again = self.came(), 0
        assert set(came) == {key for key, numbers in committed.items() if numbers}
        for key, records in came.items():
            first = list(dict.fromkeys(records))
            assert [n for _, n in first] == committed[key], key
            assert len({id for id, _ in first}) == len(first)
            again += len(records) - len(first)
        return again


@pytest.fixture
def outbox(pg, kafka):  # noqa: F811
    return Outbox(pg, kafka)


def test_committed_events_arrive_once_and_in_order_and_rolled_back_ones_never(tmp_path, outbox):
    # O1, O2, O4, O5
    committed = {f"o{i}": [] for i in range(30)}
    with Daemon(tmp_path, outbox.settings()) as daemon:
        daemon.ready()
        other = psycopg2.connect(outbox.pg.url)
        for n in range(300):
            key = f"o{n % 30}"
            outbox.put(key, n)
            committed[key].append(n)
            if n % 10 == 0:
                outbox.put(key, -n - 1, other)
                other.rollback()
        daemon.until(lambda: outbox.left() == 0, "all events are published")
    assert outbox.check(committed) == 0


def test_copy_and_plain_inserts_are_published(tmp_path, outbox):
    # O1
    with outbox.db.cursor() as cursor:
        cursor.execute("INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, destination) "
                       "SELECT gen_random_uuid(), 'order', 'o', 'changed', "
                       "convert_to('{\"n\": ' || i || '}', 'UTF8'), %s "
                       "FROM generate_series(0, 99) AS i", (outbox.name,))
        rows = "".join(f"{uuid.uuid4()}\torder\to\tchanged\t{{\"n\": {n}}}\t{outbox.name}\n" for n in range(100, 200))
        cursor.copy_expert("COPY semel.outbox (id, aggregatetype, aggregateid, type, payload, destination) FROM STDIN",
                           io.StringIO(rows))
    file = settings_file(tmp_path, outbox.settings())
    done = subprocess.run([binary(), "relay", file, "--once"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and "published 200, left 0, aside 0" in done.stdout, done
    assert outbox.check({"o": list(range(200))}) == 0


def settings_file(folder, settings):
    path = folder / "once.yaml"
    path.write_text(json.dumps(settings))
    return path


def test_once_reports_what_is_left(tmp_path, outbox):
    outbox.put("a", 1)
    outbox.put("b", 1, to="not-on-the-list")
    for aggregate in (("order", ""), ("", "c")):  # as an ORM may insert it
        with outbox.db.cursor() as cursor:
            cursor.execute("INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload) "
                           "VALUES (gen_random_uuid(), %s, %s, 'changed', '{}')", aggregate)
    file = settings_file(tmp_path, outbox.settings())
    done = subprocess.run([binary(), "relay", file, "--once"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "published 1, left 0, aside 3" in done.stdout, done
    assert "events are left" in done.stderr and "event is dead" in done.stderr, done.stderr
    assert outbox.ask("SELECT status || ': ' || error_text FROM semel.outbox_event WHERE aggregateid = 'b'"
                      ).startswith("dead: ")
    assert outbox.ask("SELECT count(*) FROM semel.outbox_event WHERE status = 'dead' "
                      "AND error_text LIKE '%the event has no aggregate%'") == 2


def writers(outbox, committed, stop, count):
    """Writers that hold an aggregate's lock while they insert; some of them roll back, some take their time."""
    def write(seed):
        rng, db = random.Random(seed), psycopg2.connect(outbox.pg.url)
        for _ in range(count):
            key = f"o{rng.randrange(20)}"
            with db.cursor() as cursor:
                cursor.execute("SELECT n FROM public.orders WHERE id = %s FOR UPDATE", (key,))
                n = cursor.fetchone()[0]
                cursor.execute("UPDATE public.orders SET n = n + 1 WHERE id = %s", (key,))
            outbox.put(key, n, db)
            if rng.random() < 0.05:
                time.sleep(rng.random() / 10)
            if rng.random() < 0.1:
                db.rollback()
                continue
            db.commit()
        db.close()
    with outbox.db.cursor() as cursor:
        cursor.execute("CREATE TABLE public.orders (id text PRIMARY KEY, n integer NOT NULL)")
        cursor.execute("INSERT INTO public.orders SELECT 'o' || i, 0 FROM generate_series(0, 19) AS i")
    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with outbox.db.cursor() as cursor:
        cursor.execute("SELECT id, n FROM public.orders")
        committed.update({key: list(range(n)) for key, n in cursor.fetchall()})
    stop.set()


@pytest.mark.parametrize("relays", [1, 2, 3, 4] if LONG else [1, 3])
def test_relays_that_are_killed_and_stopped_lose_nothing_and_keep_the_order(tmp_path, outbox, relays):
    # O2, O3, O5, O6, T15
    rng, committed, stop = random.Random(relays), {}, threading.Event()
    daemons = [Daemon(tmp_path, outbox.settings(), name=f"relay{i}").start() for i in range(relays)]
    work = threading.Thread(target=writers, args=(outbox, committed, stop, 1500 if LONG else 250))
    work.start()
    points = ["relay.read", "relay.started", "relay.published", "relay.confirmed"]
    while not stop.is_set():
        daemon = rng.choice(daemons)
        time.sleep(rng.random() / 2)
        if rng.random() < 0.3:
            daemon.signal(signal.SIGSTOP)
            time.sleep(rng.random())
            daemon.signal(signal.SIGCONT)
            continue
        daemon.kill()
        crash = {"SEMEL_CRASH_AT": f"{rng.choice(points)}:{rng.randrange(1, 5)}"}
        daemon.start(**(crash if rng.random() < 0.5 else {}))
        wait_for(lambda d=daemon: d.process.poll() is not None or d.get("/readyz")[0] == 200, "up, or dead again")
    work.join()
    for daemon in daemons:
        if daemon.running():
            daemon.kill()
    with Daemon(tmp_path, outbox.settings(), name="last") as daemon:
        daemon.ready()  # before that, SIGTERM ends it at once
        daemon.until(lambda: outbox.left() == 0, "all events are published", 120)
    print("published again:", outbox.check(committed))


def test_a_relay_that_is_stopped_past_its_lease_and_goes_on_disorders_nothing(tmp_path, outbox):
    # O5, O6
    owned = "SELECT count(*) FROM semel.outbox_shard AS s JOIN semel.relay AS r ON r.token = s.relay"
    committed = {f"o{i}": list(range(30)) for i in range(20)}

    def put(numbers):
        for n in numbers:
            for key in committed:
                outbox.put(key, n)
    with Daemon(tmp_path, outbox.settings(batch=20), name="one") as one:
        one.ready()
        put(range(10))
        one.signal(signal.SIGSTOP)
        with Daemon(tmp_path, outbox.settings(batch=20), name="two") as two:
            two.until(lambda: outbox.ask(owned) == 64 and outbox.ask("SELECT count(*) FROM semel.relay") == 1,
                      "the other one has taken over")
            put(range(10, 20))
            one.signal(signal.SIGCONT)
            put(range(20, 30))
            two.until(lambda: outbox.left() == 0, "all events are published", 120)
    print("published again:", outbox.check(committed))


@pytest.mark.parametrize("where", ["another", "the same"])
def test_a_long_transaction_that_puts_nothing_holds_nothing_up(tmp_path, outbox, where):
    # O7, P4, P70: it holds back xmin, on which nothing rests
    holder = psycopg2.connect(outbox.pg.server.url("postgres") if where == "another" else outbox.pg.url)
    with Daemon(tmp_path, outbox.settings()) as daemon:
        daemon.ready()
        with holder.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")
        for n in range(20):
            outbox.put("a", n)
        daemon.until(lambda: outbox.left() == 0, "all events are published")
        assert json.loads(daemon.get("/v1/routes")[1])["outboxes"][0]["held_by_pid"] is None
    holder.close()
    assert outbox.check({"a": list(range(20))}) == 0


LABELS = re.findall(r'"(relay\.[a-z_]+)"', (SOURCE / "src/base/point.h").read_text())


@pytest.mark.parametrize("visit", [1, 2, 3] if LONG else [1])
@pytest.mark.parametrize("label", LABELS)
def test_killed_at_each_label_the_relay_loses_nothing(tmp_path, outbox, label, visit):
    # O2, O3, T15
    committed = {f"o{i}": list(range(20)) for i in range(5)}
    for n in range(20):
        for key in committed:
            outbox.put(key, n)
    more = {"in_flight": 1} if visit > 1 else {}  # so that there are several calls
    settings = outbox.settings(**({"batch": 10} if label == "relay.ahead" else more))
    victim = Daemon(tmp_path, settings, name="victim").start(SEMEL_CRASH_AT=f"{label}:{visit}")
    assert victim.wait() == -signal.SIGKILL, victim.log()[-2000:]
    with Daemon(tmp_path, settings, name="next") as daemon:
        daemon.ready()
        daemon.until(lambda: outbox.left() == 0, "all events are published")
    again = outbox.check(committed)
    assert (again > 0) == (label in ("relay.published", "relay.ahead")), again


def test_shards_are_shared_and_given_back_at_once(tmp_path, outbox):
    # O6
    owned = "SELECT count(*) FROM semel.outbox_shard AS s JOIN semel.relay AS r ON r.token = s.relay"
    with Daemon(tmp_path, outbox.settings(), name="one") as one:
        one.ready()
        with Daemon(tmp_path, outbox.settings(), name="two") as two:
            spread = "SELECT min(n) FROM (SELECT count(*) AS n FROM semel.outbox_shard GROUP BY relay) AS s"
            two.until(lambda: outbox.ask(spread) == 32 and outbox.ask("SELECT count(*) FROM semel.relay") == 2,
                      "both have their half")
        assert outbox.ask("SELECT count(*) FROM semel.relay") == 1
        one.until(lambda: outbox.ask(owned) == 64, "the first has all of them again")
    assert outbox.ask("SELECT count(*) FROM semel.relay") == 0
    assert outbox.ask("SELECT count(*) FROM semel.outbox_shard WHERE relay IS NOT NULL OR losses > 0") == 0


def test_a_relay_with_other_destinations_waits(tmp_path, outbox):
    # P115
    here = outbox.settings(to={"kafka": "${KAFKA}"})
    with Daemon(tmp_path, here, {"KAFKA": outbox.kafka.address}, name="one") as one:
        one.ready()
        for name, other, kafka in (("topics", outbox.settings(to={"topics": [outbox.name, "another"]}), ""),
                                   ("broker", here, "127.0.0.1:1")):  # the same file, another broker
            with Daemon(tmp_path, other, {"KAFKA": kafka}, name=name) as two:
                two.until(lambda: two.lines("relay waits"), "the second waits")
                assert two.get("/readyz")[0] == 503 and "other destinations" in two.get("/readyz")[1]
                outbox.put("a", 1)
                one.until(lambda: outbox.left() == 0, "the first publishes")
        with Daemon(tmp_path, outbox.settings(), name="same") as same:  # written out
            same.ready()


def test_a_topic_that_is_missing_holds_back_its_own_events_only(tmp_path, outbox):
    # O5, P63, P111, P112
    settings = outbox.settings(to={"topics": [outbox.name, f"{outbox.name}-late"]},
                               retry={"first": "100ms", "ceiling": "500ms"})
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        outbox.put("good", 0)
        daemon.until(lambda: outbox.left() == 0, "the good topic works")
        for n in range(5):
            outbox.put("bad", n, to=f"{outbox.name}-late")
            outbox.put("good", n + 1)
        daemon.until(lambda: outbox.left() == 5, "the events of the good topic are published")
        daemon.until(lambda: outbox.ask("SELECT count(*) FROM semel.outbox_aside WHERE status = 'waiting'") == 5,
                     "the others stand aside")
        assert outbox.ask("SELECT max(attempts) FROM semel.outbox_aside") == 0
        assert daemon.lines("destination is down")
        outbox.kafka.topic(f"{outbox.name}-late", PARTITIONS)
        daemon.until(lambda: outbox.left() == 0, "all are published")
    late = [json.loads(payload)["n"] for _, _, payload, _ in outbox.kafka.read(f"{outbox.name}-late", PARTITIONS)]
    assert list(dict.fromkeys(late)) == [0, 1, 2, 3, 4]


def test_a_broker_that_is_down_costs_delay_only(tmp_path, outbox):
    # O2, P63
    committed = {f"o{i}": list(range(10)) for i in range(10)}
    with Daemon(tmp_path, outbox.settings(retry={"first": "100ms", "ceiling": "1s"})) as daemon:
        daemon.ready()
        outbox.kafka.stop()
        for n in range(10):
            for key in committed:
                outbox.put(key, n)
        time.sleep(3)
        assert outbox.ask("SELECT count(*) FROM semel.outbox") == 100
        outbox.kafka.start()
        daemon.until(lambda: outbox.left() == 0, "all events are published", 120)
    outbox.check(committed)


def test_the_broker_is_killed_under_a_working_relay_and_nothing_is_lost(tmp_path, outbox):
    # O2, O3, O5: it starts again on its data; a producer that it half remembers disorders nothing
    committed, stop = {}, threading.Event()

    def published():
        return daemon.metric("semel_outbox_results_total", outbox="orders", result="published")
    with Daemon(tmp_path, outbox.settings(retry={"first": "100ms", "ceiling": "500ms"})) as daemon:
        daemon.ready()
        work = threading.Thread(target=writers, args=(outbox, committed, stop, 2000 if LONG else 250))
        work.start()
        for _ in range(4 if LONG else 2):
            before = published()
            daemon.until(lambda: published() > before, "it publishes")
            outbox.kafka.kill()
            outbox.put("last", len(committed.setdefault("last", [])))
            committed["last"].append(len(committed["last"]))
            outbox.kafka.start()
        work.join()
        daemon.until(lambda: outbox.left() == 0, "all events are published", 120)
    print("published again:", outbox.check(committed))


def test_an_event_that_the_broker_refuses_ends_dead_and_its_neighbours_arrive(tmp_path, outbox):
    # O3, O5, P69, P110, P113
    small = f"{outbox.name}-small"
    outbox.kafka.topic(small, 1, {"max.message.bytes": 2000})
    with outbox.db.cursor() as cursor:
        cursor.execute("INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, destination) "
                       "SELECT gen_random_uuid(), 'order', CASE WHEN i < 300 THEN 'poison' ELSE 'o' || i %% 7 END, "
                       "'changed', "
                       "CASE WHEN i = 0 THEN convert_to(repeat('x', 5000), 'UTF8') "
                       "ELSE convert_to('{\"n\": ' || i || '}', 'UTF8') END, %s FROM generate_series(0, 399) AS i",
                       (small,))
    settings = outbox.settings(to={"topics": [small]}, retry={"max": 3, "first": "50ms", "ceiling": "100ms"})
    with Daemon(tmp_path, settings) as daemon:
        daemon.until(lambda: outbox.ask("SELECT count(*) FROM semel.outbox_aside WHERE status = 'dead'") == 1,
                     "it is dead")
        daemon.until(lambda: outbox.left() == 300, "the other aggregates are published")
        assert outbox.ask("SELECT count(*) FROM semel.outbox_aside WHERE status = 'waiting' AND attempts = 0") == 299
    came = collections.defaultdict(list)
    for _, key, payload, _ in outbox.kafka.read(small, 1):
        came[key.decode()].append(json.loads(payload)["n"])
    assert came == {f"o{k}": [i for i in range(300, 400) if i % 7 == k] for k in range(7)}


def test_the_server_of_the_database_restarts(tmp_path, outbox):
    # O2, P108, P109
    with Daemon(tmp_path, outbox.settings()) as daemon:
        daemon.ready()
        outbox.put("a", 0)
        daemon.until(lambda: outbox.left() == 0, "the first is published")
        outbox.db.close()
        outbox.pg.server.stop()
        outbox.pg.server.start()
        outbox.db = psycopg2.connect(outbox.pg.url)
        outbox.db.autocommit = True
        outbox.put("a", 1)
        daemon.until(lambda: outbox.left() == 0, "the second is published")
    outbox.check({"a": [0, 1]})


def test_the_relay_of_an_sqlite_file(tmp_path, kafka):  # noqa: F811
    # O2, O5
    import sqlite3
    kafka.topic("sqlite-orders", PARTITIONS)
    store = f"sqlite:{tmp_path}/store.db"
    subprocess.run([binary(), "migrate", "--store", store], check=True, capture_output=True)
    db = sqlite3.connect(tmp_path / "store.db")
    for n in range(100):
        db.execute("INSERT INTO semel_outbox (id, aggregatetype, aggregateid, type, payload) "
                   "VALUES (?, 'order', ?, 'changed', ?)",
                   (f"00000000-0000-7000-8000-{n:012x}", f"o{n % 5}", json.dumps({"n": n}).encode()))
    db.commit()
    oldest, youngest = db.execute("SELECT min(created_at), max(created_at) FROM semel_outbox").fetchone()
    assert abs(time.time() - oldest / 1e6) < 60 and youngest >= oldest  # microseconds
    db.close()
    settings = {"store": store, "outboxes": {"orders": {"to": {"kafka": kafka.address, "topic": "sqlite-orders"}}}}
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        daemon.until(lambda: len(kafka.read("sqlite-orders", PARTITIONS)) == 100, "all are published")
    came = collections.defaultdict(list)
    for _, key, payload, headers in kafka.read("sqlite-orders", PARTITIONS):
        came[key.decode()].append(json.loads(payload)["n"])
        assert headers["ce_time"][:4] >= "2026", headers
    assert came == {f"o{k}": [n for n in range(100) if n % 5 == k] for k in range(5)}


# ---- many events of one aggregate ----

WAITING = 200_000 if LONG else 2_000
SHARD = "(get_byte(decode(md5('order/' || {}), 'hex'), 0) & 63)"


def put_waiting(outbox, first_bytes):
    """An aggregate `hot` with very many events, of which the first has so many bytes; the names of others of its
    shard."""
    with outbox.db.cursor() as cursor:
        cursor.execute("INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, destination) "
                       "SELECT gen_random_uuid(), 'order', 'hot', 'changed', convert_to("
                       "'{\"n\": ' || i || ', \"x\": \"' || repeat('x', CASE i WHEN 0 THEN %s ELSE 1 END) || '\"}', "
                       "'UTF8'), %s FROM generate_series(0, %s) AS i", (first_bytes, outbox.name, WAITING - 1))
        cursor.execute("SELECT 'o' || i FROM generate_series(1, 10000) AS i WHERE " + SHARD.format("'o' || i") + " = " +
                       SHARD.format("'hot'") + " LIMIT 20")
        return [name for name, in cursor.fetchall()]


def check_neighbours(daemon, outbox, names, at_least):
    """Those of the shard that come behind `hot` pass it while it waits."""
    def waits():
        return outbox.ask("SELECT count(*) FROM semel.outbox_event WHERE aggregateid = 'hot'")

    def passed():
        pause(0.1)  # who counts all the time keeps the server from the rest
        return outbox.ask("SELECT count(*) FROM semel.outbox_event WHERE aggregateid <> 'hot'") == 0

    def pass_by():
        began = time.monotonic()
        for name in names:
            outbox.put(name, 0)
        daemon.until(passed, "the others of the shard are published", 600)
        return time.monotonic() - began
    first, then = pass_by(), sorted(pass_by() for _ in range(5))
    print(f"{WAITING} events of one aggregate: others of its shard after {first:.2f} s, then {then} s; {waits()} wait")
    assert waits() >= at_least


def test_an_aggregate_with_very_many_events_behind_a_refused_one_does_not_delay_its_shard(tmp_path, outbox):
    # O5, P69, P113
    outbox.kafka.topic(f"{outbox.name}-small", PARTITIONS, {"max.message.bytes": 2000})
    outbox.name = f"{outbox.name}-small"
    names = put_waiting(outbox, 5000)
    with Daemon(tmp_path, outbox.settings(retry={"first": "1h", "ceiling": "1h"})) as daemon:
        check_neighbours(daemon, outbox, names, WAITING)
    came = outbox.came()
    assert set(came) == set(names)


def test_an_aggregate_with_very_many_events_does_not_delay_its_shard_where_one_goes_at_a_time(tmp_path, outbox):
    # O5, P69, P113
    names = put_waiting(outbox, 1)
    with Daemon(tmp_path, outbox.settings(in_flight=1)) as daemon:
        check_neighbours(daemon, outbox, names, WAITING // 2)
        daemon.ready()
    hot = [n for _, n in dict.fromkeys(outbox.came()["hot"])]
    assert hot == list(range(len(hot)))


# ---- notifications ----


def notified(daemon):
    return daemon.metric("semel_outbox_notified_total", outbox="orders")


def listening(daemon):
    return json.loads(daemon.get("/v1/routes")[1])["outboxes"][0]["listening"]


def pace(daemon, outbox, n):
    """Puts n events, one at a time, to a relay that has come to rest; the seconds from each put to its confirmation."""
    for i in range(n):
        outbox.put("paced", i)
        daemon.until(lambda: outbox.left() == 0, "it is published")
        time.sleep(0.3)
    with outbox.db.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM sent_at - created_at)::float8 FROM semel.outbox_sent "
                       "WHERE aggregateid = 'paced' ORDER BY seq DESC LIMIT %s", (n,))
        return sorted(seconds for seconds, in cursor.fetchall())


def test_a_relay_that_listens_is_woken_and_loses_nothing_with_its_connection_or_the_server(tmp_path, outbox):
    # P9
    outbox.pg.server.psql(outbox.pg.name, (SOURCE / "sql/postgres/notify.sql").read_text())
    with Daemon(tmp_path, outbox.settings(notify=True, keep="1h")) as daemon:
        daemon.ready()
        daemon.until(lambda: listening(daemon), "it listens")

        def is_woken(what):
            """A notification that finds the relay at work changes nothing: so one of several tries must."""
            before = notified(daemon)
            daemon.until(lambda: pace(daemon, outbox, 1) and notified(daemon) > before, what)
        is_woken("a put wakes the relay")
        print("woken:", pace(daemon, outbox, 5))
        # The connection that listens dies: polling goes on, and it listens again.
        ended = outbox.ask("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                           "WHERE datname = current_database() AND query ILIKE '%LISTEN semel_outbox%' "
                           "AND pid <> pg_backend_pid()")
        assert ended == 1
        daemon.until(lambda: daemon.lines("cannot listen for notifications; the relay polls"), "it says so")
        outbox.put("a", 0)
        daemon.until(lambda: outbox.left() == 0, "an event comes all the same")
        daemon.until(lambda: listening(daemon), "it listens again")
        is_woken("a put wakes it again")
        # The server restarts.
        outbox.db.close()
        outbox.pg.server.stop()
        outbox.pg.server.start()
        outbox.db = psycopg2.connect(outbox.pg.url)
        outbox.db.autocommit = True
        outbox.put("a", 1)
        daemon.until(lambda: outbox.left() == 0, "an event comes after the restart")
        daemon.until(lambda: listening(daemon), "it listens after the restart")
        is_woken("a put wakes it after the restart")
    assert [n for _, n in outbox.came()["a"]] == [0, 1]


def test_a_relay_that_listens_and_is_never_notified_polls(tmp_path, outbox):
    # P9
    with Daemon(tmp_path, outbox.settings(notify=True, keep="1h")) as daemon:
        daemon.ready()
        daemon.until(lambda: listening(daemon), "it listens")
        before = notified(daemon)
        pace(daemon, outbox, 3)
        assert notified(daemon) == before


@pytest.mark.skipif(not LONG, reason="SEMEL_LONG=1 compares times")
def test_notifications_are_faster_than_polling(tmp_path, outbox):
    # P9
    medians = {}
    outbox.pg.server.psql(outbox.pg.name, (SOURCE / "sql/postgres/notify.sql").read_text())
    for notify in (False, True):
        with Daemon(tmp_path, outbox.settings(notify=notify, keep="1h"), name=f"notify{notify}") as daemon:
            daemon.ready()
            daemon.until(lambda: listening(daemon) in (None, True), "it is ready")
            medians[notify] = pace(daemon, outbox, 21)[10]
    print("medians in seconds:", medians)
    assert medians[True] < medians[False]


# ---- what operators see ----


def test_status_and_metrics_name_the_destination_that_is_down_and_times_are_counted(tmp_path, outbox):
    # O7, P111
    missing = f"{outbox.name}-missing"
    settings = outbox.settings(to={"topics": [outbox.name, missing]}, retry={"first": "100ms", "ceiling": "500ms"})
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()

        def status():
            return outbox.pg.semel("status", "--json").json["outbox"]
        assert status()["relay_down"] is None
        outbox.put("bad", 0, to=missing)  # the only one: nothing works, and it stays where it is
        daemon.until(lambda: status()["relay_down"] is not None, "the status names it")
        assert status()["relay_down"].startswith(f"{missing}: ") and status()["relay"].endswith(str(daemon.process.pid))
        assert f"cannot publish to {missing}: " in outbox.pg.semel("status").out
        assert daemon.metric("semel_outbox_destination_down", outbox="orders", destination=missing) == 1
        assert daemon.metric("semel_outbox_destinations_down", outbox="orders") == 1
        daemon.until(lambda: daemon.metric("semel_outbox_results_total", outbox="orders", result="retried") > 0,
                     "retries are counted")
        assert daemon.metric("semel_outbox_publish_seconds_count", outbox="orders") == 0
        outbox.kafka.topic(missing, PARTITIONS)
        daemon.until(lambda: outbox.left() == 0, "it is published")
        daemon.until(lambda: status()["relay_down"] is None, "nothing is down")
        assert daemon.metric("semel_outbox_destination_down", outbox="orders", destination=missing) == 0
        outbox.put("good", 0)
        daemon.until(lambda: daemon.metric("semel_outbox_publish_seconds_count", outbox="orders") == 2, "both counted")
        assert daemon.metric("semel_outbox_publish_seconds_bucket", outbox="orders", le="0.001") == 0
        assert daemon.metric("semel_outbox_publish_seconds_bucket", outbox="orders", le="86400") == 2
        took = daemon.metric("semel_outbox_publish_seconds_sum", outbox="orders")
        assert 0.1 < took < 120, took


def test_metrics_show_the_transaction_that_stays_open_and_the_longest_aggregate(tmp_path, outbox):
    # O7, P116
    missing = f"{outbox.name}-missing"
    settings = outbox.settings(to={"topics": [outbox.name, missing]}, retry={"first": "100ms", "ceiling": "500ms"})
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        outbox.put("good", 0)
        daemon.until(lambda: outbox.left() == 0, "one destination works")
        for n in range(4):
            outbox.put("long", n, to=missing)
        outbox.put("good", 1)
        writer = psycopg2.connect(outbox.pg.url)
        outbox.put("held", 0, writer)
        pid = writer.info.backend_pid
        daemon.until(lambda: daemon.metric("semel_outbox_holder_pid", outbox="orders") == pid, "the writer is shown")
        daemon.until(lambda: daemon.metric("semel_outbox_holder_age_seconds", outbox="orders") > 0, "with its age")
        daemon.until(lambda: json.loads(daemon.get("/v1/routes")[1])["outboxes"][0]["held_by_pid"] == pid,
                     "and named as the one that is waited for")
        daemon.until(lambda: daemon.metric("semel_outbox_longest_aggregate_events", outbox="orders") == 4,
                     "the longest aggregate is counted")
        writer.commit()
        daemon.until(lambda: daemon.metric("semel_outbox_holder_pid", outbox="orders") == 0, "the writer has ended")
        writer.close()
