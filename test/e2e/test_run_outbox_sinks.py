# SPDX-License-Identifier: MIT
"""The relay to RabbitMQ, SQS and webhooks, behind pgbouncer, with prepared transactions, and as one half of a bridge:
what is committed arrives, first occurrences of an aggregate are in order, and ids stay."""
import base64
import collections
import http.server
import json
import os
import signal
import subprocess
import threading
import time

import psycopg2
import pytest

from daemon import Daemon
from debugger import Debugger
from kafka import kafka  # noqa: F401
from pg import Database, Server, free_port, pg, pg_server, wait_for  # noqa: F401
from rabbit import rabbit  # noqa: F401
from sqs import sqs  # noqa: F401
from test_pg_pooler import SETTINGS as POOLER
from test_pg_pooler import find_pgbouncer

SECRET = "whsec_" + base64.b64encode(b"a secret of twenty-four bytes").decode()
LONG = os.environ.get("SEMEL_LONG") is not None
KEYS = [f"o{i}" for i in range(5)]
EACH = 12


class Outbox:
    """The outbox of a database: {aggregate: [(id, n)]} is what was put."""

    def __init__(self, url):
        self.url, self.put_there = url, collections.defaultdict(list)
        self.connect()

    def connect(self):
        self.db = psycopg2.connect(self.url)
        self.db.autocommit = True

    def put(self, key, to=None, db=None, lock=True):
        n = len(self.put_there[key])
        with (db or self.db).cursor() as cursor:
            cursor.execute("SELECT semel.outbox_put('order', %s, 'changed', %s, destination => %s, lock => %s)",
                           (key, json.dumps({"key": key, "n": n}), to, lock))
            self.put_there[key].append((cursor.fetchone()[0], n))

    def fill(self, to=None, keys=None):
        for _ in range(EACH):
            for key in keys or KEYS:
                self.put(key, to)

    def left(self, where="true"):
        with self.db.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM semel.outbox_event WHERE {where}")
            return cursor.fetchone()[0]

    def check(self, came):
        """came: [(id, payload)] in the order of arrival. Returns how many came again."""
        found = collections.defaultdict(list)
        for id, payload in came:
            body = json.loads(payload)
            found[body["key"]].append((id, body["n"]))
        assert {key: list(dict.fromkeys(records)) for key, records in found.items()} == dict(self.put_there)
        return sum(map(len, found.values())) - sum(map(len, self.put_there.values()))


@pytest.fixture
def outbox(pg):  # noqa: F811
    return Outbox(pg.url)


ENV = {"SINK_SECRET": SECRET}


def settings(outbox, to, **more):
    return {"store": outbox.url, "outboxes": {"orders": {"to": to, "lease": "5s", "timeout": "2s",
                                                         "retry": {"first": "100ms", "ceiling": "500ms"}, **more}}}


def one_destination_is_down(daemon, outbox, good, bad, mend):
    """Events for `bad`, which is not there, wait, uncharged; those for `good` go; all go when it is made."""
    daemon.ready()
    outbox.put("good", good)
    daemon.until(lambda: outbox.left() == 0, "the good one works")
    for _ in range(4):
        outbox.put("bad", bad)
        outbox.put("good", good)
    daemon.until(lambda: outbox.left() == 4, "the events of the good one have gone")
    daemon.until(lambda: outbox.left("status = 'waiting' AND attempts = 0") == 4, "the others stand aside")
    assert daemon.lines("destination is down")
    mend()
    daemon.until(lambda: outbox.left() == 0, "all have gone")


def test_events_arrive_in_rabbitmq(tmp_path, outbox, rabbit):  # noqa: F811
    # O2, O3, O4, O5, P63, P111
    rabbit.queue("good")
    to = {"amqp": rabbit.url, "routing_key": "{destination}", "routing_keys": ["good", "late"]}
    with Daemon(tmp_path, settings(outbox, to), ENV) as daemon:
        outbox.fill("good")
        one_destination_is_down(daemon, outbox, "good", "late", lambda: rabbit.queue("late"))
    assert outbox.check(rabbit.take("good") + rabbit.take("late")) == 0


def test_rabbitmq_is_killed_in_the_middle(tmp_path, outbox, rabbit):  # noqa: F811
    # O2, O3
    rabbit.queue("durable")
    to = {"amqp": rabbit.url, "routing_key": "durable"}
    with Daemon(tmp_path, settings(outbox, to), ENV) as daemon:
        daemon.ready()
        outbox.fill()
        rabbit.kill()
        outbox.fill()
        rabbit.start()
        daemon.until(lambda: outbox.left() == 0, "all have gone", 120)
    print("again:", outbox.check(rabbit.take("durable")))


def test_events_arrive_in_a_fifo_queue_of_sqs(tmp_path, outbox, sqs):  # noqa: F811
    # O2, O3, O4, O5, P63, P111
    sqs.queue("good.fifo")
    to = {"sqs": sqs.url("good.fifo"), "queue": "{destination}", "queues": ["good.fifo", "late.fifo"],
          "region": "elasticmq", "access_key": "x", "secret_key": "${SINK_SECRET}"}
    with Daemon(tmp_path, settings(outbox, to), ENV) as daemon:
        outbox.fill("good.fifo")
        one_destination_is_down(daemon, outbox, "good.fifo", "late.fifo", lambda: sqs.queue("late.fifo"))
    came = sqs.take("good.fifo") + sqs.take("late.fifo")
    assert all(group == json.loads(body)["key"] for group, _, body in came)
    assert outbox.check([(id, body) for _, id, body in came]) == 0


class Receiver:
    """A receiver of webhooks. `down`: paths that answer 503; `stuck`: those that take a request and do not answer
    while they are in it; `hung` counts such requests. `breaks`: the code by which it answers the events of a key;
    `broken` counts these."""

    def __init__(self):
        self.got, self.down, self.stuck, self.hung, self.breaks, self.broken = [], set(), set(), 0, {}, 0
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if len(body) < int(self.headers["Content-Length"]):
                    return  # who sent it was killed
                receiver.hung += self.path in receiver.stuck
                while self.path in receiver.stuck:
                    time.sleep(0.05)
                code = 503 if self.path in receiver.down else 200
                if receiver.breaks:
                    code = receiver.breaks.get(json.loads(body)["key"], code)
                    receiver.broken += code in receiver.breaks.values()
                if code == 200:
                    receiver.got.append((self.headers["webhook-id"], body.decode(), dict(self.headers)))
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def test_events_arrive_at_a_webhook(tmp_path, outbox):
    # O2, O3, O4, O5, P63, P111
    receiver = Receiver()
    receiver.down.add("/late")
    urls = [f"{receiver.url}/good", f"{receiver.url}/late"]
    to = {"webhook": "{destination}", "urls": urls, "secret": "${SINK_SECRET}", "allow": ["127.0.0.0/8"]}
    with Daemon(tmp_path, settings(outbox, to), ENV) as daemon:
        outbox.fill(urls[0])
        one_destination_is_down(daemon, outbox, *urls, receiver.down.clear)
    receiver.server.shutdown()
    assert outbox.check([(id, body) for id, body, _ in receiver.got]) == 0
    for id, _, headers in receiver.got:
        assert headers["Idempotency-Key"].strip('"') == id and headers["webhook-signature"].startswith("v1,"), headers


@pytest.mark.parametrize("code", [500, 409])
def test_an_event_at_which_a_webhook_breaks_ends_dead_and_keeps_nobody_waiting(tmp_path, pg, outbox,  # noqa: F811
                                                                               code):
    # O3, O6, P63
    receiver = Receiver()
    receiver.breaks["poison"] = code
    to = {"webhook": f"{receiver.url}/hook", "secret": "${SINK_SECRET}", "allow": ["127.0.0.0/8"]}
    retry = {"max": 3, "first": "20ms", "ceiling": "50ms"}
    with Daemon(tmp_path, settings(outbox, to, retry=retry), ENV) as daemon:
        daemon.ready()
        outbox.put("poison")
        for n in range(50):  # others come, one after the other, until it is dead
            outbox.put("good")
            daemon.until(lambda n=n: len(receiver.got) == n + 1, "the good one goes")
            if outbox.left("status = 'dead'") == 1:
                break
        assert outbox.left() == outbox.left("status = 'dead' AND attempts = 3") == 1
        assert not daemon.lines("destination is down")
        assert receiver.broken >= 3
        receiver.breaks.clear()
        assert pg.semel("outbox", "retry", outbox.put_there["poison"][0][0], "--reason", "fixed").code == 0
        daemon.until(lambda: outbox.left() == 0, "all have gone")
    receiver.server.shutdown()
    assert outbox.check([(id, body) for id, body, _ in receiver.got]) == 0


ROUNDS, MANY = (3, 6000) if LONG else (1, 300)


def test_a_destination_that_hangs_leaves_the_others_their_throughput(tmp_path, outbox):
    # O5, P63, P112: it takes requests and never answers them
    receiver = Receiver()
    good, stuck = urls = [f"{receiver.url}/good", f"{receiver.url}/stuck"]
    to = {"webhook": "{destination}", "urls": urls, "secret": "${SINK_SECRET}", "allow": ["127.0.0.0/8"]}
    with Daemon(tmp_path, settings(outbox, to, timeout="500ms"), ENV) as daemon:
        def published():
            return daemon.metric("semel_outbox_results_total", outbox="orders", result="published")

        def rate():
            """Per second, of events for the good one; by the relay's own count."""
            before, began = published(), time.monotonic()
            with outbox.db.cursor() as cursor:
                cursor.execute("SELECT count(semel.outbox_put('order', 'g' || i, 'changed', '{}', destination => %s)) "
                               "FROM generate_series(1, %s) AS i", (good, MANY))
            daemon.until(lambda: published() == before + MANY, "those of the good one have gone", 600)
            return MANY / (time.monotonic() - began)
        daemon.ready()
        ratios = []
        for _ in range(ROUNDS):
            alone, hung = rate(), receiver.hung
            receiver.stuck.add("/stuck")
            outbox.fill(stuck)
            daemon.until(lambda: daemon.metric("semel_outbox_destinations_down", outbox="orders") == 1, "it hangs")
            ratios.append(rate() / alone)
            assert receiver.hung > hung and not any(json.loads(body) for _, body, _ in receiver.got[-MANY:])
            daemon.until(lambda: outbox.left("status = 'waiting' AND attempts = 0") == len(KEYS) * EACH,
                         "its own events stand aside, and none is charged")
            receiver.stuck.clear()
            daemon.until(lambda: outbox.left() == 0, "all have gone")
    print("beside one that hangs, as a part of the throughput alone:", ratios)
    assert not LONG or sorted(ratios)[ROUNDS // 2] >= 0.8
    outbox.check([(id, body) for id, body, _ in receiver.got if json.loads(body)])


def test_the_relay_behind_pgbouncer_while_the_server_restarts(tmp_path, outbox, kafka):  # noqa: F811
    # O2, P17, P108
    program, server, port = find_pgbouncer(), None, free_port()
    if program is None:
        pytest.skip("pgbouncer is not installed (apt-get install pgbouncer)")
    server = Server()
    try:
        database = Database(server, "pooled")
        assert database.semel("migrate").code == 0
        file = server.dir / "relay.ini"
        file.write_text(POOLER.format(server=server.port, port=port, size=2))
        child = subprocess.Popen([program, file], stdin=subprocess.DEVNULL, stdout=server.log, stderr=server.log,
                                 cwd="/", **server.owner)
        kafka.topic("pooled", 4)
        pooled = Outbox(database.url)
        behind = settings(pooled, {"kafka": kafka.address, "topic": "pooled"})
        behind["store"] = f"postgres://postgres@127.0.0.1:{port}/pooled?semel_pooler=1"
        with Daemon(tmp_path, behind) as daemon:
            daemon.ready()
            pooled.fill()
            daemon.until(lambda: pooled.left() == 0, "the first have gone")
            pooled.fill()
            server.stop()
            server.start()
            pooled.connect()
            pooled.fill()
            daemon.until(lambda: pooled.left() == 0, "all have gone", 120)
        print("again:", pooled.check([(headers["id"], payload) for _, _, payload, headers in kafka.read("pooled", 4)]))
        child.kill()
        child.wait()
    finally:
        server.done()


def test_a_prepared_transaction_that_outlives_the_server(tmp_path, outbox, kafka):  # noqa: F811
    # O2, O5, P2, P108: it has drawn its numbers, and is committed after others and after a restart
    server = Server("max_prepared_transactions=5")
    try:
        database = Database(server, "prepared")
        assert database.semel("migrate").code == 0
        kafka.topic("prepared", 4)
        slow = Outbox(database.url)
        other = psycopg2.connect(database.url)
        for _ in range(3):
            slow.put("late", db=other)
        with other.cursor() as cursor:
            cursor.execute("PREPARE TRANSACTION 'late'")
        other.close()
        with Daemon(tmp_path, settings(slow, {"kafka": kafka.address, "topic": "prepared"})) as daemon:
            daemon.ready()
            give_up = time.monotonic() + 4  # long enough to be set apart
            while time.monotonic() < give_up:
                slow.put("busy")
                time.sleep(0.05)
            daemon.until(lambda: slow.left() == 0, "the others have gone")
            daemon.until(lambda: "prepared transaction 'late' of postgres, prepared " in database.semel("status").out,
                         "it is named")
            seen = database.semel("status", "--json").json["outbox"]
            assert (seen["holder_gid"], seen["holder_user"], seen["holder_pid"]) == ("late", "postgres", None), seen
            assert seen["holder_since"] is not None and seen["holder_missing_grant"] is None, seen
            daemon.until(lambda: daemon.metric("semel_outbox_holder_age_seconds", outbox="orders") > 0,
                         "its age is shown", 90)
            server.stop()
            server.start()
            slow.connect()
            slow.put("busy")
            daemon.until(lambda: slow.left() == 0, "the one after the restart has gone")
            time.sleep(3)
            with slow.db.cursor() as cursor:
                cursor.execute("COMMIT PREPARED 'late'")
            slow.put("late")
            daemon.until(lambda: slow.left() == 0, "all have gone")
        slow.check([(headers["id"], payload) for _, _, payload, headers in kafka.read("prepared", 4)])
    finally:
        server.done()


def test_a_prepared_transaction_is_seen_before_its_locks_are_free(tmp_path, kafka):  # noqa: F811
    # O5, P1, P105: the next writer has the row while the prepared one still holds the sequence
    server = Server("max_prepared_transactions=5")
    try:
        database = Database(server, "prepared")
        assert database.semel("migrate").code == 0
        kafka.topic("seen", 4)
        slow, writer, ender = Outbox(database.url), psycopg2.connect(database.url), Outbox(database.url).db
        database.sql("CREATE TABLE account (n integer); INSERT INTO account VALUES (0);")

        def book(db):
            with db.cursor() as cursor:
                cursor.execute("UPDATE account SET n = n + 1")
            slow.put("late", db=db, lock=False)
        with Daemon(tmp_path, settings(slow, {"kafka": kafka.address, "topic": "seen"})) as daemon:
            daemon.ready()
            book(writer)

            def is_set_apart():
                slow.put("busy")
                held_by = json.loads(daemon.get("/v1/routes")[1])["outboxes"][0]["held_by_pid"]
                return held_by == writer.info.backend_pid
            daemon.until(is_set_apart, "it is set apart")
            with writer.cursor() as cursor:
                cursor.execute("PREPARE TRANSACTION 'late'")
            writer.close()
            debugger = Debugger(ender.info.backend_pid, "lock_twophase_postcommit")
            commit = threading.Thread(target=lambda: ender.cursor().execute("COMMIT PREPARED 'late'"))
            commit.start()
            try:
                debugger.wait()
                book(slow.db)
                daemon.until(lambda: slow.left("aggregateid = 'late'") < 2, "one of both is published")
            finally:
                debugger.end()
                commit.join()
            daemon.until(lambda: slow.left() == 0, "all have gone", 120)
        slow.check([(headers["id"], payload) for _, _, payload, headers in kafka.read("seen", 4)])
    finally:
        server.done()


def test_a_bridge_from_kafka_to_kafka_equals_single_delivery(tmp_path, outbox, kafka):  # noqa: F811
    # I21, O2, O3, T15: duplicates come in, the process is killed on both sides, and the books and what goes out agree
    kafka.topic("in", 4)
    kafka.topic("out", 4)
    with outbox.db.cursor() as cursor:
        cursor.execute("CREATE TABLE ledger (id text NOT NULL, k text NOT NULL, n integer NOT NULL)")
        cursor.execute("""CREATE FUNCTION book(id text, k text, n integer) RETURNS void LANGUAGE sql AS $$
            INSERT INTO ledger VALUES (id, k, n);
            SELECT semel.outbox_put('account', k, 'booked', jsonb_build_object('of', id, 'k', k, 'n', n)); $$""")
    bridge = settings(outbox, {"kafka": kafka.address, "topic": "out"})
    bridge["routes"] = {"in": {"from": {"kafka": kafka.address, "topic": "in", "group": "bridge"}, "order": "json:/k",
                               "values": ["id", "json:/k", "json:/n"], "do": {"sql": "SELECT book($1, $2, $3)"}}}
    messages = [(-1, f"k{n % 7}", json.dumps({"k": f"k{n % 7}", "n": n}), {"id": f"m{n}"}) for n in range(140)]
    kafka.send("in", messages[:70])
    for label in ("batch.committed:1", "relay.published:1", "pump.before_ack:1"):
        victim = Daemon(tmp_path, bridge, name=label.replace(":", "-")).start(SEMEL_CRASH_AT=label)
        assert victim.wait() == -signal.SIGKILL, victim.log()[-2000:]
        kafka.send("in", messages[:70])
    with Daemon(tmp_path, bridge) as daemon:
        kafka.send("in", messages[70:])
        kafka.send("in", messages)

        def booked():
            with outbox.db.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM ledger")
                return cursor.fetchone()[0]
        daemon.until(lambda: booked() >= 140 and outbox.left() == 0, "all is booked and published", 120)
    assert booked() == 140
    out = collections.defaultdict(dict)
    for _, key, payload, headers in kafka.read("out", 4):
        body = json.loads(payload)
        out[key.decode()].setdefault(headers["id"], body["n"])
    assert {key: list(ids.values()) for key, ids in out.items()} == {
        f"k{k}": [n for n in range(140) if n % 7 == k] for k in range(7)}
