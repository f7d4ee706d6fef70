# SPDX-License-Identifier: MIT
"""Relays that are killed, on every store and under every kind of sink, with events that stand aside and with brokers
that restart: everything that was committed arrives, and first occurrences of an aggregate are in order. No process is
stopped and continued here (test_run_outbox.py does that), so with `in_flight: 1` an aggregate never goes back."""
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
import uuid

import psycopg2
import pytest

from conftest import binary
from daemon import Daemon
from kafka import kafka  # noqa: F401
from pg import pg, pg_server, wait_for  # noqa: F401
from rabbit import rabbit  # noqa: F401
from sqs import sqs  # noqa: F401
from test_run_outbox import LABELS
from test_run_outbox import Outbox as KafkaOutbox
from test_run_outbox import writers
from test_run_outbox_sinks import ENV, KEYS, Outbox, Receiver, settings

LONG = os.environ.get("SEMEL_LONG") is not None
POINTS = [label for label in LABELS if label != "relay.ahead"]  # nothing is read ahead beside events that stand aside
SHORT_LEASE = {"lease": "1500ms", "timeout": "700ms", "retry": {"max": 1000, "first": "50ms", "ceiling": "200ms"}}


class SqliteOutbox(Outbox):
    """The same in a file of SQLite."""

    def connect(self):
        self.db = sqlite3.connect(self.url.removeprefix("sqlite:"), timeout=60, isolation_level=None,
                                  check_same_thread=False)

    def put(self, key, to=None, db=None, lock=True):
        n, id = len(self.put_there[key]), str(uuid.uuid4())
        (db or self.db).execute("INSERT INTO semel_outbox (id, aggregatetype, aggregateid, type, payload, destination) "
                                "VALUES (?, 'order', ?, 'changed', ?, ?)",
                                (id, key, json.dumps({"key": key, "n": n}).encode(), to))
        self.put_there[key].append((id, n))

    def left(self, where="true"):
        return self.db.execute(f"SELECT count(*) FROM semel_outbox_event WHERE {where}").fetchone()[0]


@pytest.fixture
def outbox(pg):  # noqa: F811
    return Outbox(pg.url)


@pytest.fixture(params=["postgres", "sqlite"])
def any_outbox(request, tmp_path):
    if request.param == "postgres":
        return Outbox(request.getfixturevalue("pg").url)
    url = f"sqlite:{tmp_path}/store.db"
    subprocess.run([binary(), "migrate", "--store", url], check=True, capture_output=True)
    return SqliteOutbox(url)


def killed(tmp_path, config, label, visit):
    """A relay that dies there."""
    victim = Daemon(tmp_path, config, ENV, name="victim").start(SEMEL_CRASH_AT=f"{label}:{visit}")
    assert victim.wait() == -signal.SIGKILL, victim.log()[-2000:]


def roll_back(outbox):
    """Puts that must never come."""
    ours, outbox.put_there = outbox.put_there, {key: list(ids) for key, ids in outbox.put_there.items()}
    outbox.db.cursor().execute("BEGIN")
    for key in KEYS:
        outbox.put(key)
    outbox.db.cursor().execute("ROLLBACK")
    outbox.put_there = ours


def check_killed_relays(tmp_path, outbox, config, received):
    """Relays are killed at every label, and while they publish. received: how many have come so far, or None where that
    is not known."""
    for visit, label in enumerate(POINTS * (3 if LONG else 1)):
        outbox.fill()
        roll_back(outbox)
        killed(tmp_path, config, label, visit % 3 + 1)
    daemon = Daemon(tmp_path, config, ENV, name="killed")
    for _ in range(10 if LONG else 2):
        outbox.fill()
        before = outbox.left()
        daemon.start()
        daemon.until(lambda n=before: outbox.left() < n, "it publishes")
        daemon.kill()
    with Daemon(tmp_path, config, ENV, name="last") as last:
        last.ready()
        last.until(lambda: outbox.left() == 0, "all have gone", 120)
    print("again:", outbox.check(received()))


def test_relays_to_rabbitmq_are_killed(tmp_path, outbox, rabbit):  # noqa: F811
    # O2, O3, O5, T15
    rabbit.queue("crashes")
    config = settings(outbox, {"amqp": rabbit.url, "routing_key": "crashes"}, **SHORT_LEASE)
    check_killed_relays(tmp_path, outbox, config, lambda: rabbit.take("crashes"))


def test_relays_to_a_fifo_queue_of_sqs_are_killed(tmp_path, outbox, sqs):  # noqa: F811
    # O2, O3, O5, T15
    sqs.queue("crashes.fifo")
    to = {"sqs": sqs.url("crashes.fifo"), "region": "elasticmq", "access_key": "x", "secret_key": "${SINK_SECRET}"}
    check_killed_relays(tmp_path, outbox, settings(outbox, to, **SHORT_LEASE),
                        lambda: [(id, body) for _, id, body in sqs.take("crashes.fifo")])


def test_relays_of_a_database_to_a_webhook_are_killed(tmp_path, any_outbox):
    # O2, O3, O5, T15
    receiver = Receiver()
    to = {"webhook": f"{receiver.url}/hook", "secret": "${SINK_SECRET}", "allow": ["127.0.0.0/8"]}
    check_killed_relays(tmp_path, any_outbox, settings(any_outbox, to, **SHORT_LEASE),
                        lambda: [(id, body) for id, body, _ in receiver.got])
    receiver.server.shutdown()


# ---- with events that stand aside ----


def put_until(outbox, urls, stop):
    """Events for all: of `bad` the receiver breaks at first, `late` goes to what is down at first."""
    while not stop.is_set():
        for key in KEYS + ["bad", "late"]:
            outbox.put(key, urls[key == "late"])
        time.sleep(0.1)


@pytest.mark.parametrize("label", POINTS if LONG else ["relay.started", "relay.published"])
def test_killed_at_each_label_while_events_stand_aside(tmp_path, any_outbox, label):
    # O2, O3, O5, T15, P111, P113
    outbox, putter, receiver = any_outbox, type(any_outbox)(any_outbox.url), Receiver()
    seen, stop = set(), threading.Event()
    receiver.down.add("/late")
    receiver.breaks["bad"] = 500
    urls = [f"{receiver.url}/hook", f"{receiver.url}/late"]
    to = {"webhook": "{destination}", "urls": urls, "secret": "${SINK_SECRET}", "allow": ["127.0.0.0/8"]}
    config = settings(outbox, to, **SHORT_LEASE)
    work = threading.Thread(target=put_until, args=(putter, urls, stop))

    def note():
        seen.update(status for status in ("waiting", "failed", "publishing") if outbox.left(f"status = '{status}'"))

    def kill_at(visits):
        for visit in visits:
            killed(tmp_path, config, label, visit)
            note()
    work.start()
    try:
        with Daemon(tmp_path, config, ENV, name="first") as first:
            first.until(lambda: outbox.left("status = 'failed'") and outbox.left("status = 'waiting'") > 3, "aside")
            note()
            first.kill()
        kill_at((4, 9, 14) if LONG else (6,))
        while label == "relay.started" and "publishing" not in seen:
            kill_at((1,))
        receiver.breaks.clear()
        receiver.down.clear()
        kill_at((1, 2, 3) if LONG else (2,))  # while what stands aside goes
    finally:
        stop.set()
        work.join()
    with Daemon(tmp_path, config, ENV, name="last") as last:
        last.ready()
        last.until(lambda: outbox.left() == 0, "all have gone", 120)
    receiver.server.shutdown()
    print("again:", putter.check([(id, body) for id, body, _ in receiver.got]), sorted(seen))
    assert {"waiting", "failed"} <= seen


@pytest.mark.parametrize("label", POINTS if LONG else ["relay.started", "relay.published"])
def test_killed_at_each_label_while_events_wait_for_a_missing_topic(tmp_path, pg, kafka, label):  # noqa: F811
    # O2, O3, O5, T15, P111: on Kafka, where several events of an aggregate travel together
    outbox, committed = KafkaOutbox(pg, kafka), {f"o{i}": [] for i in range(5)}
    late, waiting = f"{outbox.name}-late", []
    config = outbox.settings(to={"topics": [outbox.name, late]}, **SHORT_LEASE)

    def fill():
        for _ in range(20):
            for key, numbers in committed.items():
                outbox.put(key, len(numbers))
                numbers.append(len(numbers))
            outbox.put("late", len(waiting), to=late)
            waiting.append(len(waiting))
    fill()
    with Daemon(tmp_path, config, name="first") as first:
        first.until(lambda: outbox.left() == len(waiting), "the others have gone")
        first.until(lambda: outbox.ask("SELECT count(*) FROM semel.outbox_aside WHERE status = 'waiting'") > 0, "aside")
        first.ready()  # it leaves: after two relays that died each event would go alone
    fill()
    killed(tmp_path, config, label, 1)
    kafka.topic(late, 4)
    fill()
    with outbox.db.cursor() as cursor:  # what came behind them could go at once, if it were not held
        cursor.execute("UPDATE semel.outbox_aside SET due_at = now() + interval '6s' WHERE due_at IS NOT NULL")
    killed(tmp_path, config, label, 1)
    with Daemon(tmp_path, config, name="last") as last:
        last.ready()
        last.until(lambda: outbox.left() == 0, "all have gone", 120)
    print("again:", outbox.check(committed))
    came = [json.loads(payload)["n"] for _, _, payload, _ in kafka.read(late, 4)]
    assert list(dict.fromkeys(came)) == waiting


# ---- one in flight: never back ----


def backwards(outbox):
    """What a plain consumer sees of each aggregate that comes after a higher number of it: [(aggregate, before, n)]."""
    found = []
    for key, records in outbox.came().items():
        numbers = [n for _, n in records]
        found += [(key, before, n) for before, n in zip(numbers, numbers[1:]) if n < before]
    return found


def kill_join_and_leave(rng, daemons):
    """One thing that happens to a relay."""
    daemon = rng.choice(daemons)
    if not daemon.running():
        label = rng.choice(POINTS + ["relay.published"] * 3)  # there, what was published comes again
        daemon.start(**({"SEMEL_CRASH_AT": f"{label}:{rng.randrange(1, 6)}"} if rng.random() < 0.7 else {}))
        wait_for(lambda: not daemon.running() or daemon.get("/readyz")[0] == 200, "up, or dead again")
    elif rng.random() < 0.5:
        daemon.kill()
    elif daemon.get("/readyz")[0] == 200:  # before that, SIGTERM ends it at once
        daemon.signal(signal.SIGTERM)
        daemon.wait()
    time.sleep(2 * rng.random())


def restart_broker(broker, stop):
    """It is stopped and killed in turn while the writers write."""
    for how in [signal.SIGTERM, signal.SIGKILL] * (5 if LONG else 1):
        if not stop.is_set():
            broker.restart(how)


@pytest.mark.parametrize("seed", range(5 if LONG else 1))
def test_with_one_in_flight_an_aggregate_never_goes_back(tmp_path, pg, kafka, seed):  # noqa: F811
    # O2, O3, O5, O6, T15
    outbox, rng, committed, stop = KafkaOutbox(pg, kafka), random.Random(seed), {}, threading.Event()
    config = outbox.settings(in_flight=1, retry={"first": "100ms", "ceiling": "500ms"})
    daemons = [Daemon(tmp_path, config, name=f"relay{i}") for i in range(3)]
    bursts, db = {f"b{i}": [] for i in range(10)}, psycopg2.connect(pg.url)

    def burst():
        """Several events of each of these aggregates at once, so that one stands behind another."""
        for key, numbers in bursts.items():
            for _ in range(5):
                outbox.put(key, len(numbers), db)
                numbers.append(len(numbers))
        db.commit()
    burst()
    for daemon in daemons:
        daemon.start(SEMEL_CRASH_AT="relay.published:1")
    threads = [threading.Thread(target=writers, args=(outbox, committed, stop, 1500 if LONG else 200)),
               threading.Thread(target=restart_broker, args=(kafka, stop))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        kill_join_and_leave(rng, daemons)
        burst()
    for daemon in daemons:
        if daemon.running():
            daemon.kill()
    with Daemon(tmp_path, config, name="last") as last:
        last.ready()
        last.until(lambda: outbox.left() == 0, "all events are published", 120)
    print("published again:", outbox.check({**committed, **bursts}))
    assert backwards(outbox) == []
