# SPDX-License-Identifier: MIT
"""`semel run` from SQS (a real ElasticMQ) into a real database: whatever breaks, effects equal single delivery."""
import json

import pytest

import scenes
from daemon import Daemon
from pg import pg_server  # noqa: F401
from scenes import books  # noqa: F401
from sqs import lasting_sqs, sqs  # noqa: F401


class Queue(scenes.Source):
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


def test_everything_twice_and_shuffled_equals_once(tmp_path, books, sqs):  # noqa: F811
    # I1, I2, I5, I9, T6, T14
    scenes.duplicates(tmp_path, books, Queue(sqs))


def test_a_poison_message_is_dead_and_the_others_go_on(tmp_path, books, sqs):  # noqa: F811
    # I6, I15, T5
    scenes.poison(tmp_path, books, Queue(sqs))


def test_a_failing_key_waits_and_keeps_its_order(tmp_path, books, sqs):  # noqa: F811
    # I13, T3
    scenes.short_on(books, "postgres")
    scenes.order_under_retries(tmp_path, books, Queue(sqs, fifo=True))


def test_killed_at_labelled_points_nothing_is_lost_or_repeated(tmp_path, books, sqs):  # noqa: F811
    # T1, T7, P37
    scenes.short_on(books, "postgres")
    scenes.crashes(tmp_path, books, Queue(sqs), scenes.ALL_POINTS if scenes.LONG else scenes.POINTS)


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


def test_what_init_writes_runs(tmp_path, books, sqs):  # noqa: F811
    scenes.short_on(books, "sqlite")
    queue = Queue(sqs)
    soon = "secret_key: ${AWS_SECRET_ACCESS_KEY}"  # a poll that was cut off keeps what it got hidden
    places = {"https://sqs.eu-central-1.amazonaws.com/123456789012/payments": sqs.url(queue.name),
              soon: f"{soon}\n      wait: 1s\n      visibility: 3s"}
    scenes.runs_as_init_wrote_it(tmp_path, books, "sqs", places, lambda _, items: queue.send(items))


def test_what_the_queue_still_has_is_reported(tmp_path, books, sqs):  # noqa: F811
    scenes.short_on(books)
    scenes.lag(tmp_path, books, Queue(sqs))


def test_a_handler_outlasts_its_lease_and_is_called_once(tmp_path, books, sqs):  # noqa: F811
    # I7, P39
    scenes.short_on(books, "postgres")
    scenes.outlasts_its_lease(tmp_path, books, Queue(sqs))


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_process_stopped_past_its_lease_is_refused(tmp_path, books, sqs, idempotent):  # noqa: F811
    # I7, P39, T2
    scenes.short_on(books)
    scenes.stopped_past_its_lease(tmp_path, books, Queue(sqs), idempotent)


def test_killed_around_its_calls_no_key_is_called_twice(tmp_path, books, sqs):  # noqa: F811
    # E1, E2, T1, T7, T11, P47
    scenes.short_on(books)
    scenes.outside_crashes(tmp_path, books, Queue(sqs), scenes.ALL_OUTSIDE_POINTS)


def test_a_message_that_kills_its_process_is_counted(tmp_path, books, sqs):  # noqa: F811
    # I6
    scenes.short_on(books)
    scenes.a_killer(tmp_path, books, Queue(sqs))


def test_the_broker_is_killed_in_the_middle(tmp_path, books, lasting_sqs):  # noqa: F811
    # T14
    scenes.short_on(books, "postgres")
    scenes.broker_restart(tmp_path, books, Queue(lasting_sqs))


def test_three_processes_and_one_is_killed_every_few_seconds(tmp_path, books, sqs):  # noqa: F811
    # T2, T7, T14
    scenes.short_on(books)
    scenes.storm(tmp_path, books, Queue(sqs), kills=8, total=4000)


def test_three_processes_keep_the_order_of_a_fifo_queue_while_one_is_killed(tmp_path, books, sqs):  # noqa: F811
    # I13, T2, T7, T14
    scenes.short_on(books)
    rows = scenes.storm(tmp_path, books, Queue(sqs, fifo=True), order="json:/k", kills=8, total=4000)
    scenes.expect_order(rows)
