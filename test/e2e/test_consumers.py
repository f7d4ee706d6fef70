# SPDX-License-Identifier: MIT
"""The consumers of examples/consumers: poison, copies, kills, a restart of the database; and their books balance.

One PostgreSQL, one RabbitMQ and one Kafka for all of them; a database, and a queue or a topic, for each.
"""
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import wait_for
from inbox_cases import node_command
from kafka import kafka  # noqa: F401  (a fixture)
from pgsql import SOURCE, Shop, ask, pg_server  # noqa: F401  (a fixture)
from rabbit import rabbit  # noqa: F401  (a fixture)

LONG = os.environ.get("SEMEL_LONG") == "1"
pytestmark = pytest.mark.skipif(not LONG, reason="SEMEL_LONG=1 runs it")  # two brokers and four runtimes
PATIENCE_S = 300  # a group of Kafka waits for a killed member until its session is over, and killed workers have leases
EXAMPLES = SOURCE / "examples/consumers"
MODULES = {"rabbitmq_consumer.py": ["pika"], "kafka_consumer.py": ["confluent_kafka"],
           "rabbitmq_consumer.js": ["amqplib"], "kafka_consumer.js": ["kafkajs"]}
POISON = [(b"\xff\x00", "dead"), (b"", "dead"), (b"{}", "dead"), (b"null", "dead"), (b"[" * 2000, "dead"),
          (b'{"account": "a", "cents": -5}', "dead"), (b'{"account": "a", "cents": "much"}', "dead"),
          (b'{"account": "closed", "cents": 1}', "rejected")]
# Payments to the account `late` fail until the table `open` has a row: then the consumer's retries book them.
GATE = """CREATE TABLE open (); CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
IF NEW.account = 'late' AND NOT EXISTS (SELECT FROM open) THEN RAISE EXCEPTION USING ERRCODE = '23503'; END IF;
RETURN NEW; END $$; CREATE TRIGGER gate BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION gate();
SELECT semel.consumer('billing', '{"retry_first": "1s", "retry_ceiling": "1s", "retry_max": 1000}')"""


class Consumer:
    """A running example."""

    def __init__(self, name, shop, place, tmp_path, broker):
        self.log = tmp_path / "log"
        if name.endswith(".py"):
            for module in [*MODULES[name], "psycopg_pool"]:
                pytest.importorskip(module, reason=f"Python has no {module} here: tools/setup languages")
            words, more = [sys.executable, EXAMPLES / name], {"PYTHONPATH": str(SOURCE / "clients/python")}
        else:
            shutil.copy(EXAMPLES / name, tmp_path)
            words, more = node_command(tmp_path / name, tmp_path, "pg", *MODULES[name])
        self.words, self.process = [*map(str, words), place], None
        self.env = {**os.environ, **more, "DATABASE_URL": shop.url, "GROUP": place, "KAFKA": f"127.0.0.1:{broker.port}",
                    "AMQP_URL": f"amqp://guest:guest@127.0.0.1:{broker.port}"}

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.words, env=self.env, stdout=log, stderr=log)

    def stop(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.wait(60)


class Eye:
    """Looks into the database by a connection that outlives restarts."""

    def __init__(self, shop):
        self.shop, self.db = shop, None

    def __call__(self, text):
        if self.db is None or self.db.closed:
            self.db = self.shop.connect(autocommit=True)
        return ask(self.db, text)

    def restart(self):
        self.db.close()
        self.shop.server.stop(signal.SIGINT)
        self.shop.server.start()


@pytest.fixture
def broker(request, name):
    return request.getfixturevalue("rabbit" if "rabbitmq" in name else "kafka")


def settled(consumer, broker, place):
    """Is nothing left, neither in the queue nor with the consumer? What it had is in the queue when it is gone."""
    wait_for(lambda: broker.length(place) == 0, "the queue is empty", PATIENCE_S)
    consumer.stop(signal.SIGTERM)
    left = broker.take(place)
    broker.send(place, [(id_ or None, body, None) for id_, body in left])
    consumer.start()
    return not left


def traffic(n, seed):
    """What is to be booked, what becomes of the rest, and the deliveries: each one twice, in disorder."""
    chance, booked, becomes, sent = random.Random(seed), {}, {}, []
    for at in range(n):
        account = chance.choice(["a", "b", "late"])
        booked[f"good{at}"] = (account, at + 1)
        sent.append((f"good{at}", json.dumps({"account": account, "cents": at + 1}).encode()))
    for at, (body, status) in enumerate(POISON):
        becomes[f"bad{at}"] = status
        sent.append((f"bad{at}", body))
    sent = sent * 2 + [(None, b'{"account": "a", "cents": 77}'), ("x" * 255, b'{"account": "b", "cents": 5}'),
                       (b"\xff", b'{"account": "a", "cents": 78}'), (b"\xfe", b'{"account": "a", "cents": 79}')]
    booked["x" * 255] = ("b", 5)
    chance.shuffle(sent)
    return booked, becomes, sent


# T1 T6 T14 I26: all that a broker, a process and a database can do
@pytest.mark.parametrize("name", MODULES)
def test_example_survives_poison_copies_kills_and_a_restart(name, pg_server, broker, tmp_path):  # noqa: F811
    place = name.replace(".", "_").replace("consumer", "queue")
    shop = Shop(pg_server, place)
    eye = Eye(shop)
    consumer = Consumer(name, shop, place, tmp_path, broker)
    eye("DROP TABLE ledger;" + (EXAMPLES / "schema.sql").read_text() + GATE)
    booked, becomes, sent = traffic(400, name)
    if "rabbitmq" in name:
        broker.queue(place)
        broker.send(place, [(id_, body, None) for id_, body in sent])
    else:
        broker.topic(place, partitions=2)
        broker.send(place, [(at % 2, None, body, {"id": id_} if id_ else None) for at, (id_, body) in enumerate(sent)])
    consumer.start()
    try:
        for most in [10] + [len(booked) // 2] * 9:
            wait_for(lambda: eye("SELECT count(*) FROM semel.inbox")[0][0] >= most, f"{most} have come", PATIENCE_S)
            consumer.stop()
            consumer.start()
        eye.restart()
        eye("INSERT INTO open DEFAULT VALUES")
        wait_for(lambda: eye("SELECT count(*) FROM ledger")[0][0] == len(booked) and eye(
            "SELECT count(*) FROM semel.inbox WHERE status IN ('failed', 'processing', 'waiting')")[0][0] == 0,
                 "all is booked", PATIENCE_S)
        if "rabbitmq" in name:
            broker.restart()
            wait_for(lambda: settled(consumer, broker, place), "the queue is empty", PATIENCE_S)
        else:
            broker.wait_committed(place, place, [(len(sent) + 1) // 2, len(sent) // 2], PATIENCE_S)
        assert consumer.process.poll() is None, consumer.log.read_text()[-3000:]
    except AssertionError:
        print(consumer.log.read_text()[-5000:])
        raise
    finally:
        consumer.stop()
    lines = eye("SELECT message_id, account, cents FROM ledger")
    assert {id_: (account, cents) for id_, account, cents in lines} == booked and len(lines) == len(booked)
    events = eye("SELECT aggregateid, convert_from(payload, 'UTF8')::jsonb ->> 'cents' FROM semel.outbox")
    assert sorted(events) == sorted((account, str(cents)) for account, cents in booked.values())
    statuses = dict(eye("SELECT message_id, status FROM semel.inbox"))
    assert {id_: statuses[id_] for id_ in becomes} == becomes
    assert [status for id_, status in statuses.items() if id_.startswith("sha256:")] == ["quarantined"] * 3
    assert eye("SELECT count(*) FROM semel.inbox WHERE status = 'dead' AND payload IS NULL")[0][0] == 0


def connections(port):
    """Those of clients to this port of the machine."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        return sum(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01" for line in table)


# A channel that the broker closes takes its connection with it
@pytest.mark.parametrize("name", ["rabbitmq_consumer.js"])
def test_example_waits_for_its_queue_on_one_connection(name, pg_server, broker, tmp_path):  # noqa: F811
    shop = Shop(pg_server, "late_queue")
    eye = Eye(shop)
    eye("DROP TABLE ledger;" + (EXAMPLES / "schema.sql").read_text())
    consumer = Consumer(name, shop, "late_queue", tmp_path, broker)
    consumer.start()
    try:
        wait_for(lambda: consumer.log.read_text().count("broker unavailable") >= 4, "the consumer has tried", 60)
        wait_for(lambda: connections(broker.port) <= 1, "the connections are closed", 10)
        broker.queue("late_queue")
        broker.send("late_queue", [("m1", b'{"account": "a", "cents": 5}', None)])
        wait_for(lambda: eye("SELECT cents FROM ledger") == [(5,)], "it is booked", 60)
    finally:
        consumer.stop()


@pytest.mark.parametrize("name", ["kafka_consumer.py"])
def test_example_says_what_it_waits_for(name, pg_server, broker, tmp_path):  # noqa: F811
    consumer = Consumer(name, Shop(pg_server, "late_topic"), "no_such_topic", tmp_path, broker)
    consumer.start()
    try:
        wait_for(lambda: "no_such_topic" in consumer.log.read_text(), "it names the topic", 60)
        assert consumer.process.poll() is None
    finally:
        consumer.stop()


# What nobody can record ends the process, and names what to do
@pytest.mark.parametrize("name", MODULES)
def test_example_without_a_schema_ends_with_its_name(name, pg_server, tmp_path, broker):  # noqa: F811
    shop = Shop(pg_server, "bare")
    place = "nothing_" + name.replace(".", "_")
    if "kafka" in name:
        broker.topic(place)
    consumer = Consumer(name, shop, place, tmp_path, broker)
    Eye(shop)("DROP SCHEMA semel CASCADE")
    consumer.start()
    with contextlib.suppress(subprocess.TimeoutExpired):
        assert consumer.process.wait(60) == 1
    assert "semel migrate" in consumer.log.read_text()
