# SPDX-License-Identifier: MIT
"""The relay of a table of the user's, from real databases to a real Apache Kafka and to a webhook: what is committed
arrives, in the order of the mapped column, whatever is killed."""
import collections
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time

import psycopg2
import pytest

from conftest import binary
from daemon import Daemon
from kafka import kafka  # noqa: F401
from pg import pg, pg_server, wait_for  # noqa: F401
from test_run_outbox import LABELS as ALL_LABELS
from test_run_outbox_sinks import ENV, Receiver

LONG = os.environ.get("SEMEL_LONG") is not None
LABELS = [label for label in ALL_LABELS if label != "relay.ahead"]  # a mapped table is not read ahead
PARTITIONS = 4
FORMS = {"delete": {}, "mark": {"mark": "PublishedAt"}, "state": {"mark": "state", "unmarked": "NEW", "marked": "SENT"}}
PENDING = {"delete": "true", "mark": '"PublishedAt" IS NULL', "state": "state = 'NEW'"}


class Shop:
    """An application's own outbox table in PostgreSQL, its topic, and what a plain consumer makes of it."""
    made = 0

    def __init__(self, pg, kafka, form):  # noqa: F811
        Shop.made += 1
        self.pg, self.kafka, self.form, self.topic = pg, kafka, form, f"shop-{Shop.made}"
        kafka.topic(self.topic, PARTITIONS)
        self.db = self.connect()
        self.run('CREATE SCHEMA "Shop"')
        self.run("CREATE TYPE \"Shop\".state AS ENUM ('NEW', 'SENT')")
        self.run('CREATE TABLE "Shop"."order" (pos bigserial UNIQUE, "Id" text PRIMARY KEY DEFAULT '
                 "'evt-' || gen_random_uuid(), who text, what varchar(50), body json, heads jsonb, \"to\" text, "
                 'made timestamptz NOT NULL DEFAULT now(), "PublishedAt" timestamp, '
                 "state \"Shop\".state NOT NULL DEFAULT 'NEW')")
        if form != "delete":
            self.run(f'CREATE INDEX ON "Shop"."order" (pos, "Id") WHERE {PENDING[form]}')

    def connect(self):
        db = psycopg2.connect(self.pg.url)
        db.autocommit = True
        return db

    def run(self, text, *values, db=None):
        with (db or self.db).cursor() as cursor:
            cursor.execute(text, values or None)
            return cursor.fetchall() if cursor.description else None

    def ask(self, text):
        return self.run(text)[0][0]

    def table(self):
        return {"name": "Shop.order", "order": "pos", "id": "Id", "aggregateid": "who", "type": "what",
                "payload": "body", "headers": "heads", "destination": "to", "created_at": "made", **FORMS[self.form]}

    def settings(self, **more):
        to = {"kafka": self.kafka.address, "topic": "{destination}", "topics": [self.topic], **more.pop("to", {})}
        return {"store": self.pg.url, "outboxes": {"shop": {"table": self.table(), "to": to, "lease": "4s",
                                                            "timeout": "2s", **more}}}

    def put(self, who, n, db=None, to=None, pos=None):
        columns, values = "who, what, body, heads, \"to\"", [who, "changed", json.dumps({"n": n}), '{"shop": "x"}',
                                                             to or self.topic]
        if pos is not None:
            columns, values = columns + ", pos", values + [pos]
        self.run(f'INSERT INTO "Shop"."order" ({columns}) VALUES ({", ".join(["%s"] * len(values))})', *values, db=db)

    def left(self):
        return self.ask(f'SELECT (SELECT count(*) FROM "Shop"."order" WHERE {PENDING[self.form]}) + '
                        "(SELECT count(*) FROM semel.outbox_aside)")

    def check(self, committed):
        """Nothing committed is missing, nothing else came, first occurrences are in order. Returns how many again."""
        came, again = collections.defaultdict(list), 0
        for _, key, payload, headers in self.kafka.read(self.topic, PARTITIONS):
            assert headers["id"] == headers["ce_id"] and headers["id"].startswith("evt-") and headers["shop"] == "x"
            assert headers["ce_type"] == "changed" and headers["ce_source"] == "order" and headers["ce_time"], headers
            came[key.decode()].append((headers["id"], json.loads(payload)["n"]))
        assert set(came) == {key for key, numbers in committed.items() if numbers}
        for key, records in came.items():
            first = list(dict.fromkeys(records))
            assert [n for _, n in first] == committed[key], key
            again += len(records) - len(first)
        rows = self.ask('SELECT count(*) FROM "Shop"."order"')
        assert rows == (0 if self.form == "delete" else sum(map(len, committed.values())))
        return again


@pytest.fixture(params=["delete", "mark"])
def shop(pg, kafka, request):  # noqa: F811
    return Shop(pg, kafka, request.param)


@pytest.fixture
def states(pg, kafka):  # noqa: F811
    return Shop(pg, kafka, "state")


def write(shop, committed, stop, count):
    """Writers that hold an aggregate's lock while they insert; some roll back."""
    shop.run("CREATE TABLE public.orders (id text PRIMARY KEY, n integer NOT NULL)")
    shop.run("INSERT INTO public.orders SELECT 'o' || i, 0 FROM generate_series(0, 9) AS i")

    def one(seed):
        rng, db = random.Random(seed), psycopg2.connect(shop.pg.url)
        for _ in range(count):
            key = f"o{rng.randrange(10)}"
            n = shop.run("UPDATE public.orders SET n = n + 1 WHERE id = %s RETURNING n - 1", key, db=db)[0][0]
            shop.put(key, n, db)
            if rng.random() < 0.1:
                time.sleep(rng.random() / 20)
            db.rollback() if rng.random() < 0.1 else db.commit()
        db.close()
    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    committed.update({key: list(range(n)) for key, n in shop.run("SELECT id, n FROM public.orders")})
    stop.set()


def test_two_relays_of_which_one_is_killed_again_and_again(tmp_path, shop):
    # O2, O3, O5, O6, T15
    rng, committed, stop = random.Random(7), {}, threading.Event()
    daemons = [Daemon(tmp_path, shop.settings(), name=f"relay{i}").start() for i in range(2)]
    work = threading.Thread(target=write, args=(shop, committed, stop, 600 if LONG else 150))
    work.start()
    while not stop.is_set():
        daemon = rng.choice(daemons)
        time.sleep(rng.random() / 2)
        daemon.kill()
        crash = {"SEMEL_CRASH_AT": f"{rng.choice(LABELS)}:{rng.randrange(1, 4)}"}
        daemon.start(**(crash if rng.random() < 0.5 else {}))
    work.join()
    for daemon in daemons:
        daemon.kill()
    with Daemon(tmp_path, shop.settings(), name="last") as daemon:
        daemon.ready()
        daemon.until(lambda: shop.left() == 0, "all events are published")
    print("published again:", shop.check(committed))
    assert shop.ask("SELECT count(*) FROM semel.outbox_mapped") == 1


@pytest.mark.parametrize("label", LABELS if LONG else LABELS[::3])
def test_killed_at_each_label_the_relay_loses_nothing(tmp_path, states, label):
    # O2, O3, T15
    committed = {f"o{i}": list(range(10)) for i in range(3)}
    for n in range(10):
        for key in committed:
            states.put(key, n)
    victim = Daemon(tmp_path, states.settings(), name="victim").start(SEMEL_CRASH_AT=f"{label}:1")
    assert victim.wait() == -signal.SIGKILL, victim.log()[-2000:]
    with Daemon(tmp_path, states.settings(), name="next") as daemon:
        daemon.ready()
        daemon.until(lambda: states.left() == 0, "all events are published")
    assert (states.check(committed) > 0) == (label == "relay.published")


def test_one_relay_works_and_the_other_waits_says_so_and_takes_over(tmp_path, shop):
    # O6
    with Daemon(tmp_path, shop.settings(), name="one") as one, Daemon(tmp_path, shop.settings(), name="two") as two:
        wait_for(lambda: "a mapped table has one relay" in one.get("/readyz")[1] + two.get("/readyz")[1], "one waits")
        first, second = (one, two) if two.get("/readyz")[0] == 503 else (two, one)
        first.ready()
        assert second.get("/readyz")[0] == 503 and second.lines("relay waits")
        shop.put("a", 0)
        first.until(lambda: shop.left() == 0, "the first publishes")
        first.kill()
        shop.put("a", 1)
        second.until(lambda: shop.left() == 0, "the second takes over")
        second.ready()
        first.start()
        first.until(lambda: first.get("/readyz")[0] == 503, "now the first waits")
        shop.put("a", 2, pos=0)  # a lower number, later
        second.until(lambda: shop.left() == 0, "it is published")
    assert shop.check({"a": [0, 1, 2]}) == 0


def test_an_event_that_kafka_refuses_holds_back_its_aggregate_only(tmp_path, shop):
    # O3, O5, P69: e1 with e2..e100 behind it, among others
    small = f"{shop.topic}-small"
    shop.kafka.topic(small, 1, {"max.message.bytes": 2000})
    shop.run('INSERT INTO "Shop"."order" (who, what, body, heads, "to") SELECT CASE WHEN i < 100 THEN \'poison\' ELSE '
             "'o' || i %% 7 END, 'changed', CASE WHEN i = 0 THEN to_json(repeat('x', 5000)) ELSE "
             "json_build_object('n', i) END, '{}', %s FROM generate_series(0, 199) AS i", small)
    settings = shop.settings(to={"topics": [small]}, retry={"max": 3, "first": "50ms", "ceiling": "100ms"})
    status = lambda: dict(shop.run("SELECT status, count(*) FROM semel.outbox_aside GROUP BY status"))  # noqa: E731
    with Daemon(tmp_path, settings) as daemon:
        daemon.until(lambda: status() == {"dead": 1, "waiting": 99}, "it is dead, and those behind it wait")
        came = collections.defaultdict(list)
        daemon.until(lambda: len(shop.kafka.read(small, 1)) == 100, "the others are published")
        for _, key, payload, _ in shop.kafka.read(small, 1):
            came[key.decode()].append(json.loads(payload)["n"])
        assert came == {f"o{k}": [i for i in range(100, 200) if i % 7 == k] for k in range(7)}
        dead = shop.ask("SELECT id FROM semel.outbox_aside WHERE status = 'dead'")
        semel = lambda *args: subprocess.run(  # noqa: E731
            [binary(), *args, "--store", shop.pg.url], capture_output=True, text=True, check=False, timeout=60)
        assert dead in semel("outbox", "ls", "--dead").stdout
        assert "99 events of its aggregate wait behind it" in semel("outbox", "show", dead).stdout
        assert "1 dead" in semel("status").stdout or '"dead":1' in semel("status", "--json").stdout
        daemon.until(lambda: daemon.metric("semel_outbox_events", outbox="shop", status="dead") == 1, "the metric", 90)
        assert semel("outbox", "discard", dead, "--reason", "too large").returncode == 0
        daemon.until(lambda: shop.left() == 0, "those behind it have gone")
    rest = [json.loads(payload)["n"] for _, key, payload, _ in shop.kafka.read(small, 1) if key == b"poison"]
    assert list(dict.fromkeys(rest)) == list(range(1, 100))
    assert shop.ask("SELECT count(*) FROM semel.audit WHERE message_id LIKE 'evt-%%'") == 1


def test_kafka_is_down_for_a_while(tmp_path, states):
    # O2, P63
    committed = {f"o{i}": list(range(10)) for i in range(5)}
    with Daemon(tmp_path, states.settings(retry={"first": "100ms", "ceiling": "1s"})) as daemon:
        daemon.ready()
        states.kafka.stop()
        for n in range(10):
            for key in committed:
                states.put(key, n)
        time.sleep(2)
        assert states.left() == 50
        states.kafka.start()
        daemon.until(lambda: states.left() == 0, "all events are published", 120)
    states.check(committed)


def test_tables_that_cannot_be_relayed_are_refused_at_the_start_and_by_check(tmp_path, shop):
    settings = shop.settings()
    for column, value, words in (("payload", "nope", "no column nope, which `payload` names"),
                                 ("order", "heads", "`order` must be one of"),
                                 ("id", "who", "column who of"),
                                 ("name", "shop.order", "there is no table shop.order"),
                                 ("name", "semel.outbox", "is Semel's own")):
        table = {**shop.table(), column: value}
        bad = {**settings, "outboxes": {"shop": {**settings["outboxes"]["shop"], "table": table}}}
        file = tmp_path / "bad.yaml"
        file.write_text(json.dumps(bad))
        done = subprocess.run([binary(), "check", file, "--online"], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "failed   outbox shop: table: " in done.stdout and words in done.stdout, done
        done = subprocess.run([binary(), "relay", file, "--once"], capture_output=True, text=True, check=False)
        assert done.returncode != 0 and words in done.stderr, done
    with Daemon(tmp_path, bad) as daemon:
        daemon.until(lambda: words in daemon.get("/readyz")[1], "the daemon says why")
    file.write_text(json.dumps(settings))
    done = subprocess.run([binary(), "check", file, "--online"], capture_output=True, text=True, check=False)
    assert "its order rests on pos (int8)" in done.stdout, done
    assert "the column pos of Shop.order, then Id" in done.stdout and "warning  outbox shop: index" not in done.stdout


@pytest.mark.parametrize("form", ["delete", "mark"])
def test_a_table_of_an_sqlite_file_to_a_webhook(tmp_path, form):
    # O2, O3, O5, P63: one of two destinations is down; the relay is killed in between; a lower number comes late
    receiver, store = Receiver(), f"sqlite:{tmp_path}/store.db"
    receiver.down.add("/late")
    good, late = f"{receiver.url}/good", f"{receiver.url}/late"
    subprocess.run([binary(), "migrate", "--store", store], check=True, capture_output=True)
    db = sqlite3.connect(tmp_path / "store.db", isolation_level=None, timeout=20)
    db.execute('CREATE TABLE "Order" (pos INTEGER NOT NULL, id TEXT PRIMARY KEY, who TEXT, body TEXT, "to" TEXT, '
               'sent TEXT)')
    if form == "mark":
        db.execute('CREATE INDEX pending ON "Order" (pos, id) WHERE sent IS NULL')
    table = {"name": "Order", "order": "pos", "id": "id", "aggregateid": "who", "payload": "body", "destination": "to"}
    table.update({"mark": "sent"} if form == "mark" else {})
    to = {"webhook": "{destination}", "urls": [good, late], "secret": "${SINK_SECRET}", "allow": ["127.0.0.0/8"]}
    settings = {"store": store, "outboxes": {"shop": {"table": table, "to": to, "lease": "3s", "timeout": "1s",
                                                      "retry": {"first": "100ms", "ceiling": "500ms"}}}}

    def put(who, n, to, pos):
        db.execute('INSERT INTO "Order" VALUES (?, ?, ?, ?, ?, NULL)',
                   (pos, f"{who}-{n}", who, json.dumps({"key": who, "n": n}), to))

    pending = 'SELECT count(*) FROM "Order"' + (" WHERE sent IS NULL" if form == "mark" else "")
    left = lambda: db.execute(f"SELECT ({pending}), (SELECT count(*) FROM semel_outbox_aside)").fetchone()  # noqa: E731
    for n in range(10):
        put("good", n, good, 10 + n)
    victim = Daemon(tmp_path, settings, ENV, name="victim").start(SEMEL_CRASH_AT="relay.published:3")
    assert victim.wait() == -signal.SIGKILL, victim.log()[-6000:]
    with Daemon(tmp_path, settings, ENV) as daemon:
        daemon.until(lambda: left() == (0, 0), "the good ones are published")
        for n in range(4):
            put("late", n, late, 100 + n)
            put("good", 10 + n, good, 200 + n)
        daemon.until(lambda: left() == (0, 4), "the others stand aside")
        put("good", 14, good, 1)
        daemon.until(lambda: left() == (0, 4), "a lower number is published")
        receiver.down.clear()
        daemon.until(lambda: left() == (0, 0), "all have gone")
    receiver.server.shutdown()
    came = collections.defaultdict(list)
    for id, body, headers in receiver.got:
        came[json.loads(body)["key"]].append(id)
        assert not [name for name in headers if name.lower() in ("ce_time", "ce-time")], headers  # no such column
        assert [name for name in headers if name.lower() in ("ce_type", "ce-type")], headers
    assert list(dict.fromkeys(came["good"])) == [f"good-{n}" for n in range(15)]
    assert list(dict.fromkeys(came["late"])) == [f"late-{n}" for n in range(4)]
    assert db.execute('SELECT count(*) FROM "Order"').fetchone()[0] == (19 if form == "mark" else 0)
