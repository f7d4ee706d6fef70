# SPDX-License-Identifier: MIT
"""`semel run` from a real Apache Kafka into a real database: whatever breaks, effects equal single delivery."""
import json

import pytest

import scenes
from daemon import Daemon, thread_sanitizer
from kafka import Server, kafka  # noqa: F401
from listen import OTHER_TOKEN, Listen, Other
from pg import pg_server  # noqa: F401
from scenes import books  # noqa: F401


class Topic(scenes.Source):
    """A topic of the server, whose partition is chosen by the key, as producers do."""
    made = 0

    def __init__(self, server, partitions=4):
        Topic.made += 1
        self.server, self.name = server, f"payments-{Topic.made}"
        server.topic(self.name, partitions)

    def settings(self, **more):
        return {"kafka": self.server.address, "topic": self.name, "group": f"books-{self.name}", "first": "earliest",
                "properties": {"session.timeout.ms": "3000", "heartbeat.interval.ms": "300"}, **more}

    def send(self, messages):
        self.server.send(self.name, [(-1, body["k"], json.dumps(body), {"id": id}) for id, body in messages])


@pytest.fixture
def topic(kafka):  # noqa: F811
    return Topic(kafka)


def test_everything_twice_and_shuffled_equals_once(tmp_path, books, topic):
    # I1, I2, I5, I9, T6, T14
    scenes.duplicates(tmp_path, books, topic)


def test_a_poison_message_is_dead_and_the_others_go_on(tmp_path, books, topic):
    # I6, I15, T5
    scenes.poison(tmp_path, books, topic)


def test_a_failing_key_waits_and_keeps_its_order(tmp_path, books, topic):
    # I13, T3
    scenes.order_under_retries(tmp_path, books, topic)


def test_what_init_writes_runs(tmp_path, books, topic):
    def send(_, items):
        topic.server.send(topic.name, [(-1, None, json.dumps(body), {"id": id}) for id, body in items])
    places = {"localhost:9092": topic.server.address, "topic: payments": f"topic: {topic.name}"}
    scenes.runs_as_init_wrote_it(tmp_path, books, "kafka", places, send)


def test_what_the_topic_still_has_is_reported(tmp_path, books, topic):
    scenes.short_on(books, "sqlite")
    scenes.lag(tmp_path, books, topic)


def test_killed_at_labelled_points_nothing_is_lost_or_repeated(tmp_path, books, topic):
    # T1, T7
    scenes.short_on(books, "postgres")
    scenes.crashes(tmp_path, books, topic, scenes.ALL_POINTS if scenes.LONG else scenes.POINTS)


def test_killed_around_its_calls_no_key_is_called_twice(tmp_path, books, topic):
    # E1, E2, T1, T7, T11, P47
    scenes.short_on(books, "postgres")
    scenes.outside_crashes(tmp_path, books, topic, scenes.ALL_OUTSIDE_POINTS if scenes.LONG else scenes.OUTSIDE_POINTS)


def test_killed_around_calls_that_may_be_repeated_they_are_repeated(tmp_path, books, topic):
    # E1, T7
    scenes.short_on(books)
    scenes.outside_crashes(tmp_path, books, topic, ["claim.committed:1", "finish.begun:1"], idempotent=True)


def test_a_handler_outlasts_its_lease_and_is_called_once(tmp_path, books, topic):
    # I7, P39
    scenes.short_on(books, "postgres")
    scenes.outlasts_its_lease(tmp_path, books, topic)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_process_stopped_past_its_lease_is_refused(tmp_path, books, topic, idempotent):
    # I7, P39, T2
    scenes.short_on(books)
    scenes.stopped_past_its_lease(tmp_path, books, topic, idempotent)


def test_a_message_that_kills_its_process_is_counted(tmp_path, books, topic):
    # I6
    scenes.short_on(books, "postgres")
    scenes.a_killer(tmp_path, books, topic, point="lease.run:1")


def test_a_message_that_kills_its_process_is_found_among_others(tmp_path, books, topic):
    # I6, I15
    if books.sqlite:
        pytest.skip("the server tells when the message is at work")
    scenes.a_killer_among_others(tmp_path, books, topic)


def test_the_broker_is_killed_in_the_middle(tmp_path, books, topic):
    # T14
    scenes.short_on(books, "postgres")
    scenes.broker_restart(tmp_path, books, topic)


def test_a_statement_emits_events_with_its_effect(tmp_path, books, topic):
    # I21
    if books.sqlite:
        pytest.skip("the statement calls a function that PostgreSQL has")
    items, bad = scenes.messages(100), [("bad-1", {"k": "k1", "n": -1})]
    topic.send(scenes.twice(items + bad, 5))
    do = {"sql": "WITH sent AS (SELECT semel.outbox_put('account', $2, 'booked', jsonb_build_object('n', $3::int)))"
                 " INSERT INTO ledger (id, k, n) SELECT $1, $2, $3::int FROM sent"}
    with Daemon(tmp_path, scenes.settings(books, topic, do=do)) as daemon:
        scenes.expect_exact(books, items, daemon.ready())
        daemon.until(lambda: books.states().get("dead") == 1, "the bad one is dead")
    events = books.sql("SELECT aggregateid, convert_from(payload, 'UTF8')::jsonb->>'n' FROM semel.outbox")
    assert sorted(events) == sorted((body["k"], str(body["n"])) for _, body in items)  # and none of the bad one


def pull_all(daemon, pull, n):
    """Takes and settles that many messages; {id: what the puller was given}."""
    taken = {}
    while len(taken) < n:
        for one in daemon.until(lambda: pull.post(b"", "/work/take", OTHER_TOKEN)[1], "a message to pull", 90):
            assert pull.post({"token": one["token"], "result": "done"}, "/work/settle", OTHER_TOKEN)[0] == 200
            taken[one["id"]] = one
    return taken


def test_a_tombstone_is_content_and_handlers_can_tell_it(tmp_path, books, topic):
    # A4, P76, I4
    if thread_sanitizer():
        pytest.skip("an exec handler under the thread sanitizer")
    calls = tmp_path / "calls"
    program = tmp_path / "handler.sh"
    program.write_text(f'#!/bin/sh\n[ "$SEMEL_ATTEMPT" = 1 ] && exit 75\n'
                       f'echo "$SEMEL_MESSAGE_ID ${{SEMEL_TOMBSTONE:-none}} $(wc -c)" >>{calls}\n')
    program.chmod(0o755)
    statement = {"sql": "INSERT INTO ledger (id, k, n) VALUES ($1, coalesce($2, 'none'), length($3))"}
    with Other(lambda call: (200, b"")) as other:
        made = scenes.settings(books, topic, do=statement, values=["id", "optional:header:semel_tombstone", "body"])
        pull = Listen()
        others = {"http": {"http": other.url}, "exec": {"exec": [str(program)]},
                  "pull": {"pull": f"127.0.0.1:{pull.port}", "path": "/work", "token": "${OTHER_TOKEN}"}}
        made["routes"] |= {name: {**scenes.outside(books, topic, do)["routes"]["books"],
                                  "from": topic.settings(group=f"{name}-{topic.name}")}
                           for name, do in others.items()}
        topic.server.send(topic.name, [(0, "k", None, {"id": "stone"}), (0, "k", "", {"id": "empty"}),
                                       (0, "k", "", {"id": "forged", "Semel_Tombstone": "true"})])
        with Daemon(tmp_path, made) as daemon:
            daemon.ready()
            pulled = pull_all(daemon, pull, 3)
            daemon.until(lambda: all(books.states(name) == {"completed": 3} for name in ["books", *others]),
                         "three messages on four routes", 90)
        told = {call["headers"]["Semel-Message-Id"]: (call["headers"].get("Semel-Tombstone"), call["body"])
                for call in other.calls}
    assert sorted(books.rows()) == [("empty", "none", 0), ("forged", "none", 0), ("stone", "true", 0)]
    assert told == {"stone": ("true", b""), "empty": (None, b""), "forged": (None, b"")}
    assert sorted(calls.read_text().split("\n"))[1:] == ["empty none 0", "forged none 0", "stone true 0"]
    assert {id: (one["headers"].get("semel_tombstone"), one["payload_base64"]) for id, one in pulled.items()} == {
        "stone": ("true", ""), "empty": (None, ""), "forged": (None, "")}


def test_three_processes_and_one_is_killed_every_few_seconds(tmp_path, books, kafka):  # noqa: F811
    # T2, T7, T14, P27, P39, P67
    scenes.short_on(books, "postgres")
    topic = Topic(kafka, 12)
    size = {"kills": 12, "total": 20000} if scenes.LONG else {"kills": 3, "total": 3000}
    rows = scenes.storm(tmp_path, books, topic, order="json:/k", **size)
    scenes.expect_order(rows)


# ---- positions in the store


def group(topic):
    return f"books-{topic.name}"


def test_a_position_in_the_store_is_resumed_from_and_can_be_set_back(tmp_path, books, topic):
    # I23
    topic.settings = lambda more=topic.settings: more(offsets="store")
    items = scenes.messages(300)
    topic.send(items[:200])
    daemon = Daemon(tmp_path, scenes.settings(books, topic))
    with daemon:
        scenes.expect_exact(books, items[:200], daemon.ready())
        daemon.until(lambda: positions(books) == 200, "the positions are behind the last one")
    topic.send(items[200:])
    with daemon:
        scenes.expect_exact(books, items, daemon.ready())
        daemon.until(lambda: positions(books) == 300, "moved on")
        before = daemon.metric("semel_messages_total", why="duplicate")
        assert before == 0  # nothing was read again
        result = books.store.semel("rewind", "books", "--all", "--to", "earliest", "--reason", "a drill", "--yes")
        assert result.code == 0, result
        daemon.until(lambda: daemon.metric("semel_messages_total", why="duplicate") >= 300, "all is read again")
        daemon.until(lambda: positions(books) == 300, "and behind the last one again")
    scenes.expect_exact(books, items)


def positions(books):
    return sum(item["offset"] or 0 for item in books.store.semel("rewind", "books", "--json").json)


def test_killed_with_positions_in_the_store_the_books_are_exact(tmp_path, books, topic):
    # I23, T7
    scenes.short_on(books, "postgres")
    topic.settings = lambda more=topic.settings: more(offsets="store")
    points = ["batch.settled:2", "batch.committed:1", "pump.before_ack:2"]
    scenes.crashes(tmp_path, books, topic, points)
