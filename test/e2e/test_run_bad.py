# SPDX-License-Identifier: MIT
"""Messages that no producer should send, from every source, by one `semel run`: each is kept with its reason, or was
refused to whoever sent it; none stops its route, or the one beside it."""
import concurrent.futures
import json

import pytest

import kafka
import rabbit
import sqs
from conftest import Store
from daemon import Daemon
from listen import OTHER_TOKEN, Listen
from scenes import Books

LIMIT = 1000
ROUTE = {"values": ["id", "json:/k", "json:/n"], "do": {"sql": "INSERT INTO ledger (id, k, n) VALUES ($1, $2, $3)"},
         "id": "header:id", "order": "json:/k", "payload_max": LIMIT}


def body(key, size=None):
    """A right payload, of so many bytes."""
    text = json.dumps({"k": key, "n": 1, "fill": ""})
    return text if size is None else text[:-2] + "x" * (size - len(text)) + text[-2:]


NO_JSON = "the payload is not JSON: JSON: "
# (the id, bytes where it is no text; the payload; how many headers besides; where it ends; what is said of it)
BAD = [
    (None, body("k1"), 0, "quarantined", "there is no header \"id\""),
    ("", body("k2"), 0, "quarantined", "the id is empty; it must have 1 to 255 bytes"),
    ("i" * 256, body("k3"), 0, "quarantined", "the id has 256 bytes; at most 255 are allowed"),
    ("j" * 256, body("k3"), 0, "quarantined", "the id has 256 bytes; at most 255 are allowed"),  # is another message
    (b"\xff\xfe", body("k4"), 0, "quarantined", "the id is not UTF-8 text without NUL"),
    ("no-json", "this is no JSON", 0, "dead", NO_JSON + "not a value at byte 0"),
    ("no-text", b"\xff\xfe\x00", 0, "dead", NO_JSON + "not a value at byte 0"),
    ("no-key", '{"n": 1}', 0, "dead", "json:/k is missing; it must be a string or a whole number"),
    ("deep", "[" * LIMIT, 0, "dead", NO_JSON + "too deeply nested at byte 64"),
    ("no-bytes", "", 0, "dead", NO_JSON + "a missing value at byte 0"),
    ("too-large", body("k5", LIMIT + 1), 0, "dead", "the payload has 1001 bytes; the route allows 1000"),
    ("many-headers", body("k6"), 10000, "dead", "headers: there are "),
]
GOOD = [("just-fits", body("k7", LIMIT), 0), ("plain", body("k7"), 0)]


class Topic:
    """Kafka takes everything."""
    refused, route = (), "kafka"

    def __init__(self, server):
        self.server, self.sent = server, 0
        server.topic("bad")

    def settings(self):
        return {"kafka": self.server.address, "topic": "bad", "group": "bad", "first": "earliest"}

    def send(self, id, payload, headers):
        self.server.send("bad", [(0, None, payload, {**({} if id is None else {"id": id}), **headers})])
        self.sent += 1

    def left(self):
        return self.sent - (self.server.committed("bad", "bad")[0] or 0)


class Queue:
    """RabbitMQ takes everything."""
    refused, route = (), "amqp"

    def __init__(self, server):
        self.server = server
        server.queue("bad")

    def settings(self):
        return {"amqp": self.server.url, "queue": "bad"}

    def send(self, id, payload, headers):
        self.server.send("bad", [(None, payload, {**({} if id is None else {"id": id}), **headers})])

    def left(self):
        return self.server.length("bad")


class Sqs:
    """SQS has JSON for everything, no empty bodies, and ten attributes at most."""
    refused, route = ("", b"\xff\xfe", "no-text", "no-bytes", "many-headers"), "sqs"

    def __init__(self, server):
        self.server = server
        server.queue("bad")

    def settings(self):
        return {"sqs": self.server.url("bad"), "region": "x", "access_key": "x", "secret_key": "${OTHER_TOKEN}",
                "wait": "1s"}

    def send(self, id, payload, headers):
        self.server.send("bad", [(None, payload, {**({} if id is None else {"id": id}), **headers})])

    def left(self):
        return sum(self.server.count("bad"))


class Door(Listen):
    """Who posts is told at once what has become of it."""
    refused, route = ("many-headers",), "listen"

    def send(self, id, payload, headers):
        raw = payload if isinstance(payload, bytes) else payload.encode()
        status, answer = self.post(raw, **({} if id is None else {"id": id}), **headers)
        assert status == 202 or status == 422 and answer["result"] == "kept", (status, answer)

    def left(self):
        return 0


class Bench:
    def __init__(self, folder, sources):
        store = Store(folder / "books.db")
        assert store.semel("migrate").code == 0
        self.books, self.sources, self.beside = Books(store), {source.route: source for source in sources}, Listen()
        routes = {name: {**ROUTE, "from": source.settings()} for name, source in self.sources.items()}
        routes["beside"] = {**ROUTE, "from": self.beside.settings(token="${OTHER_TOKEN}")}
        self.daemon = Daemon(folder, {"store": store.url, "schedule": {"every": "100ms"}, "routes": routes})

    def kept(self, route):
        return self.books.sql("SELECT error_text, status, payload IS NOT NULL FROM semel_inbox"
                              f" WHERE consumer = '{route}' AND status <> 'completed' ORDER BY arrival")


@pytest.fixture(scope="module")
def servers():
    """Kafka, RabbitMQ and ElasticMQ, started side by side."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        starting = [pool.submit(module.Server) for module in (kafka, rabbit, sqs)]
    try:
        yield [server.result() for server in starting]
    finally:
        for server in starting:
            if server.exception() is None:
                server.result().done()


@pytest.fixture(scope="module")
def bench(tmp_path_factory, servers):
    broker, queues, hosted = servers
    made = Bench(tmp_path_factory.mktemp("bad"), [Topic(broker), Queue(queues), Sqs(hosted), Door()])
    with made.daemon as daemon:
        daemon.ready()
        yield made


@pytest.mark.parametrize("route", ["kafka", "amqp", "sqs", "listen"])
def test_what_no_message_should_be_is_kept_with_its_reason_and_stops_nobody(bench, route):
    # I15, T5, M
    source, daemon, wanted = bench.sources[route], bench.daemon, []
    for id, payload, headers, state, text in BAD:
        more = {f"h{i:04}": "1" for i in range(headers)}
        if id in source.refused:
            with pytest.raises((AssertionError, TypeError)):  # whoever sends it is told
                source.send(id, payload, more)
        else:
            source.send(id, payload, more)
            wanted.append((text, state))
    for id, payload, _ in GOOD:
        source.send(id, payload, {})
    daemon.until(lambda: bench.books.states(route).get("completed") == len(GOOD), "the good ones are done")
    daemon.until(lambda: source.left() == 0, "all are acknowledged")
    kept = bench.kept(route)
    assert len(kept) == len(wanted), kept
    for text, wanted_state in wanted:  # in any order: two batches may have brought them
        found = [row for row in kept if text in row[0] and (row[1], row[2]) == (wanted_state, "1")]
        assert found, (text, wanted_state, kept)
        kept.remove(found[0])
    assert bench.beside.post({"k": "k1", "n": 1}, token=OTHER_TOKEN, id=route)[0] == 202
    assert daemon.get("/readyz")[0] == 200
