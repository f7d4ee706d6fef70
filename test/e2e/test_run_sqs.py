# SPDX-License-Identifier: MIT
"""`semel run` from SQS (a real ElasticMQ) into a real database: whatever breaks, effects equal single delivery."""
import json

import pytest

import scenes
from daemon import Daemon
from pg import pg_server  # noqa: F401
from sqs import sqs  # noqa: F401

POINTS = ["batch.settled:1", "batch.committed:2", "pump.before_ack:1"]
ALL_POINTS = [f"{point}:{visit}" for point in (
    "batch.begun", "batch.admitted", "batch.handled", "batch.settled", "batch.committed", "claim.admitted",
    "claim.committed", "lease.run", "pump.polled", "pump.before_ack", "pump.acked") for visit in (1, 3)]


class Queue:
    """A queue of the server. In a FIFO queue the key is the message group."""
    made = 0

    def __init__(self, server, fifo=False):
        Queue.made += 1
        self.server, self.fifo = server, fifo
        self.name = f"payments-{Queue.made}" + (".fifo" if fifo else "")
        server.queue(self.name, **({"FifoQueue": "true"} if fifo else {}))

    def settings(self):
        return {"sqs": self.server.url(self.name), "region": "eu-central-1", "access_key": "test",
                "secret_key": "${OTHER_TOKEN}", "visibility": "3s", "wait": "1s"}

    def send(self, messages):
        self.server.send(self.name, [(body["k"] if self.fifo else None, json.dumps(body), {"id": id})
                                     for id, body in messages])


@pytest.fixture(params=["postgres", "sqlite"])
def books(request, tmp_path):
    return scenes.databases(request, tmp_path)


def only_long(books):
    if books.sqlite and not scenes.LONG:
        pytest.skip("SEMEL_LONG=1 runs it on SQLite too")


def test_everything_twice_and_shuffled_equals_once(tmp_path, books, sqs):  # noqa: F811
    # I1, I2, I5, I9, T6, T14
    scenes.duplicates(tmp_path, books, Queue(sqs))


def test_a_poison_message_is_dead_and_the_others_go_on(tmp_path, books, sqs):  # noqa: F811
    # I6, I15, T5
    scenes.poison(tmp_path, books, Queue(sqs))


def test_a_failing_key_waits_and_keeps_its_order(tmp_path, books, sqs):  # noqa: F811
    # I13, T3
    only_long(books)
    scenes.order_under_retries(tmp_path, books, Queue(sqs, fifo=True))


def test_killed_at_labelled_points_nothing_is_lost_or_repeated(tmp_path, books, sqs):  # noqa: F811
    # T1, T7, P37
    only_long(books)
    scenes.crashes(tmp_path, books, Queue(sqs), ALL_POINTS if scenes.LONG else POINTS)


def test_a_slow_handler_keeps_its_messages_hidden(tmp_path, books, sqs):  # noqa: F811
    # P37
    if books.sqlite:
        pytest.skip("the handler waits in the database, which SQLite cannot")
    queue, items = Queue(sqs), scenes.messages(3)
    queue.send(items)
    do = {"sql": "INSERT INTO ledger (id, k, n) SELECT $1, $2, $3 FROM pg_sleep(2)"}
    with Daemon(tmp_path, scenes.settings(books, queue, do=do)) as daemon:
        scenes.expect_exact(books, items, daemon.ready())
        daemon.until(lambda: sum(sqs.count(queue.name)) == 0, "all were deleted")
        assert daemon.metric("semel_messages_total", why="duplicate") == 0  # none came again meanwhile
