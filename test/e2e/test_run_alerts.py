# SPDX-License-Identifier: MIT
"""Every alert of alerts/semel.rules.yml, provoked in a running `semel run` and seen by a real Prometheus; and silent
when what its runbook says was done.

One process, one PostgreSQL, one Kafka and one Prometheus serve the whole file, so the tests follow each other. What
was seen is kept: the last test names the alerts that nothing provokes. The broker of the route `away` never was there.
"""
import contextlib
import json
import socket
import subprocess

import pytest

import alerts
from daemon import Daemon
from kafka import kafka  # noqa: F401
from listen import Listen, Other
from pg import Database, free_port, pg_server, wait_for  # noqa: F401

TABLES = """
CREATE TABLE ledger (id text NOT NULL, k text NOT NULL, n integer NOT NULL CHECK (n >= 0));
CREATE TABLE account (k text PRIMARY KEY);
CREATE TABLE entry (id text NOT NULL, k text NOT NULL REFERENCES account (k), n integer NOT NULL);
CREATE TABLE fragile (id text NOT NULL, k text NOT NULL, n integer NOT NULL);
CREATE TABLE slow (id text NOT NULL, k text NOT NULL, n integer NOT NULL);
"""
FRAGILE = TABLES.splitlines()[4]
INSTEAD = {"> 900": "> 1", "> 300": "> 8",  # rows are counted every five seconds
           "process_start_time_seconds[15m]": "process_start_time_seconds[1d]"}  # three starts may take a while
FAILING = 5
AWAY = ("SemelSourceDown", "away")


class World:
    """The process, what it talks to, and who watches it."""

    def __init__(self, folder, server, kafka):  # noqa: F811
        self.listen, self.kafka, self.server, self.seen = Listen(), kafka, server, set()
        self.store = Database(server, "alerts")
        assert self.store.semel("migrate").code == 0
        self.store.sql(TABLES)
        self.kafka.topic("slow")
        self.kafka.topic("lost")
        self.other = Other(self.answer)
        outbox = {"to": {"kafka": kafka.address, "topic": "{destination}", "topics": ["missing"]},
                  "retry": {"first": "100ms", "ceiling": "500ms"}}
        self.daemon = Daemon(folder, {"store": self.store.url, "schedule": {"every": "100ms"}, "routes": self.routes(),
                                      "outboxes": {"events": outbox}})

    @staticmethod
    def answer(call):
        if call["headers"]["Semel-Message-Id"] == "nobody-knows":
            return None, b""
        return 422, b"", {"Semel-Outcome": "key-mismatch"}

    def routes(self):
        def route(name, table="ledger", source=None, **more):
            return {"from": source or self.listen.settings(path=f"/{name}"), "values": ["id", "json:/k", "json:/n"],
                    "do": {"sql": f"INSERT INTO {table} (id, k, n) VALUES ($1, $2, $3)"}, **more}
        def topic(name, **more):
            return {"kafka": self.kafka.address, "topic": name, "properties": {"session.timeout.ms": "6000"}, **more}
        return {
            "books": route("books"),
            "entries": route("entries", "entry", retry={"max": 1000, "first": "10ms", "ceiling": "100ms"},
                             breaker={"failures": 10000}),
            "fragile": route("fragile", "fragile", breaker={"failures": 3, "first": "100ms", "ceiling": "300ms"}),
            "versions": route("versions", order="json:/k", version="json:/n", parked={"key": 1},
                              gap={"timeout": "100ms", "then": "alert"}),
            "calls": {"from": self.listen.settings(path="/calls"), "do": {"http": self.other.url}},
            "strict": {"from": self.listen.settings(path="/strict"), "do": {"http": self.other.url}, "unknown_max": 1},
            "slow": route("slow", "slow", topic("slow")),
            "away": route("away", source={"amqp": f"amqp://127.0.0.1:{free_port()}", "queue": "nowhere"}),
            "lost": route("lost", "ledger", topic("lost", offsets="store")),
        }

    def post(self, route, id, n=1, expect=(202,)):
        headers = {} if id is None else {"id": id}
        status, answer = self.listen.post({"k": "k1", "n": n}, path=f"/{route}", **headers)
        assert status in expect, (route, id, status, answer)

    def semel(self, *args):
        result = self.store.semel(*args)
        assert result.code == 0, result

    # ---- what fires

    def firing(self):
        return {(each["alertname"], each.get("consumer")) for each in self.watch.alerts()}

    def fires(self, *wanted):
        """Waits until each (alert, consumer) has fired, not all of them at one time: what is counted once is told for
        ten seconds only."""
        left = set(wanted)
        def none_left():
            left.difference_update(self.firing())
            return not left
        try:
            self.watch.wait(none_left, "not all of the alerts fire")
        except AssertionError as error:
            raise AssertionError(f"{left} did not fire: {error}\n{self.daemon.log()[-4000:]}") from None
        self.seen |= {name for name, _ in wanted}

    def silent(self):
        """Waits until nothing fires any more."""
        self.watch.wait(lambda: self.watch.all_up() and self.firing() <= {AWAY}, "something fires")


@pytest.fixture(scope="module")
def world(tmp_path_factory, pg_server, kafka):  # noqa: F811
    made = World(tmp_path_factory.mktemp("alerts"), pg_server, kafka)
    with made.other, made.daemon:
        with alerts.watching(made.daemon.port, instead=INSTEAD) as made.watch:
            yield made


# ---- messages ---------------------------------------------------------------------------------------------


def test_nothing_fires_of_routes_that_are_well(world):  # M
    world.silent()
    world.post("books", "good")
    world.fires(AWAY)


def dead(world):
    world.post("books", "dead", -1, (202, 422))


def unknown(world):
    world.post("calls", "nobody-knows")
    world.post("strict", "nobody-knows")


def quarantined(world):
    world.post("books", None, 1, (422,))


def conflict(world):
    world.post("books", "twice")
    world.post("books", "twice", 2, (409,))


def damaged(world):
    world.post("books", "damaged")
    world.store.sql("UPDATE semel.inbox SET version = -7, error_class = 'strange' WHERE message_id = 'damaged';")
    world.post("books", "damaged", 1, (503,))


def key_refused(world):
    world.post("calls", "refused")


def gap_and_parked(world):
    world.post("versions", "second", 2)
    world.post("versions", "third", 3, (503,))  # parked.key is 1


def retries(world):
    for i in range(FAILING):
        world.post("entries", f"no-account-{i}")


def duplicates(world):
    """A jump is seen by who has counted before."""
    copies = [("copied", {"k": "k1", "n": 1})]
    world.listen.send(copies * 2)
    world.watch.wait(lambda: world.watch.query('semel_messages_total{why="duplicate", type="t"}'), "none is counted")
    world.listen.send(copies * 200)


def breaker(world):
    world.store.sql("DROP TABLE fragile;")
    world.post("fragile", "nowhere", 1, (202, 503))


def probe(world, id):
    """Only a message that succeeds closes a breaker."""
    def taken():
        return world.listen.post({"k": "k1", "n": 1}, path="/fragile", id=id)[0] in (200, 202)
    wait_for(taken, "the route goes on")


def test_every_alert_about_messages_fires(world):
    # M, I12, E2, I15
    for provoke in (dead, unknown, quarantined, retries, breaker, duplicates, conflict, damaged, key_refused,
                    gap_and_parked):
        provoke(world)
    world.fires(("SemelDeadLetters", "books"), ("SemelUnknownOutcomes", "calls"), ("SemelUnknownFull", "strict"),
                ("SemelQuarantined", "books"),
                ("SemelConflicts", "books"), ("SemelDamagedRows", "books"), ("SemelKeysRefused", "calls"),
                ("SemelVersionGap", "versions"), ("SemelParkedFull", "versions"), ("SemelRetriesRising", "entries"),
                ("SemelOldestUnprocessed", "entries"), ("SemelDuplicatesJump", "books"),
                ("SemelBreakerOpen", "fragile"))


def test_they_fall_silent_when_their_runbooks_were_followed(world):  # M
    world.semel("inbox", "discard", "--status", "dead,quarantined", "--reason", "a drill", "--yes")
    for consumer in ("calls", "strict"):
        world.semel("inbox", "resolve", "nobody-knows", "--consumer", consumer, "--reason", "it was done")
    world.store.sql("UPDATE semel.inbox SET version = NULL, error_class = NULL WHERE message_id = 'damaged';")
    world.store.sql("INSERT INTO account VALUES ('k1');")
    world.store.sql(FRAGILE)
    probe(world, "nowhere")
    world.post("versions", "first", 1)
    world.silent()
    assert int(world.store.sql("SELECT count(*) FROM entry;")[0][0]) == FAILING


def test_a_route_whose_settings_are_not_those_that_are_stored_is_told(world):
    # A3, I24, P75
    world.semel("consumer", "set", "fragile", '{"order": "arrival"}', "--force", "--reason", "a drill")
    world.fires(("SemelRouteHeld", "fragile"))
    world.semel("consumer", "set", "fragile", '{"order": "none"}')
    world.silent()
    probe(world, "after the drill")


# ---- strangers --------------------------------------------------------------------------------------------


def test_wrong_tokens_and_too_many_connections_are_told(world):
    # B5, B9, P88
    for _ in range(30):
        assert world.listen.post({}, token="wrong-token-wrong")[0] == 401
    sockets = [socket.create_connection(("127.0.0.1", world.daemon.port)) for _ in range(300)]
    world.fires(("SemelTokensRefused", None), ("SemelConnectionsFull", None))
    for each in sockets:
        each.close()
    world.silent()


# ---- the world --------------------------------------------------------------------------------------------


def to_topic(world, name, ids):
    world.kafka.send(name, [(0, "k1", json.dumps({"k": "k1", "n": 1}), {"id": id}) for id in ids])


def test_a_partition_that_is_not_read_on_is_told(world):
    # M, I23
    to_topic(world, "lost", ["t1", "t2"])
    world.daemon.until(lambda: world.daemon.metric("semel_messages_total", consumer="lost") == 2, "both are read")
    partition = ["rewind", "lost", "--source", "lost", "--partition", "0", "--yes"]
    world.semel(*partition, "--to", "1000000", "--force", "--reason", "a slip")
    world.fires(("SemelPartitionsStopped", "lost"))
    world.semel(*partition, "--to", "earliest", "--reason", "mended")
    world.daemon.until(lambda: world.daemon.metric("semel_source_partitions_stopped", consumer="lost") == 0, "read on")


@contextlib.contextmanager
def locked(store, table):
    """Nobody writes to the table meanwhile."""
    session = subprocess.Popen(["psql", "-XAtq", store.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        session.stdin.write(f"BEGIN;\nLOCK TABLE {table};\nSELECT 'locked';\n")
        session.stdin.flush()
        assert session.stdout.readline() == "locked\n"
        yield
    finally:
        session.communicate()


def test_a_route_that_cannot_keep_up_is_told(world):  # M
    with locked(world.store, "slow"):
        to_topic(world, "slow", [f"s{i}" for i in range(1500)])
        world.fires(("SemelLagRising", "slow"))
    world.daemon.until(lambda: world.store.sql("SELECT count(*) FROM slow;") == [("1500",)], "all are done")


def test_events_that_cannot_go_are_told(world):
    # M, O3, O7
    put = ("INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, destination, created_at) "
           "VALUES (gen_random_uuid(), 'order', '{0}', 'paid', '1', '{0}', now() - interval '1 hour');")
    world.store.sql(put.format("nowhere"))  # it is not on the list
    world.store.sql(put.format("missing"))  # a topic that is not there
    world.fires(("SemelOutboxDead", None), ("SemelOutboxBacklog", None), ("SemelOutboxDestinationDown", None))
    world.semel("outbox", "discard", "--dead", "--reason", "a drill", "--yes")
    world.kafka.topic("missing")
    world.silent()


def test_keys_whose_outcome_is_unknown_are_told(world):
    # M, A7
    world.store.sql("SELECT semel.key_claim('alice', 'key-00001', lease => interval '1 second');")
    wait_for(lambda: world.daemon.metric("semel_idempotency_keys", status="unknown") == 1, "its lease runs out")
    assert world.daemon.metric("semel_idempotency_unknown_keys", cause="lease_expired") == 1
    world.fires(("SemelIdempotencyUnknown", None))
    world.semel("keys", "resolve", "alice", "key-00001", "--code", "201", "--reason", "a drill")
    world.silent()


def test_a_store_that_is_away_is_told(world):  # M
    world.server.stop()
    world.fires(("SemelStoreDown", "books"), ("SemelRowsNotCounted", "books"))
    world.server.start()
    probe(world, "after-the-outage")  # three failures of the store open this breaker too
    world.silent()


def starts(world):
    """How many starts Prometheus has seen."""
    found = world.watch.query("changes(process_start_time_seconds[5m])")
    return found[0][1] if found else 0


def test_a_process_that_is_gone_and_one_that_is_killed_again_and_again_are_told(world):  # M
    world.daemon.kill()
    world.fires(("SemelNotScraped", None))
    for i in range(3):
        if i > 0:
            world.daemon.kill()
        world.daemon.start()
        world.watch.wait(lambda: starts(world) == i + 1, "the start is not seen")  # noqa: B023
    world.fires(("SemelRestarts", None))
    world.watch.silent("SemelNotScraped")


def test_every_alert_was_provoked(world):  # M
    assert world.seen == set(alerts.names())
