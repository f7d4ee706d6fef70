# SPDX-License-Identifier: MIT
"""`semel run` from a real RabbitMQ into a real database: whatever breaks, effects equal single delivery."""
import json

import pytest

import scenes
from daemon import Daemon
from pg import pg_server  # noqa: F401
from rabbit import rabbit  # noqa: F401
from scenes import books  # noqa: F401


class Queue(scenes.Source):
    """A queue of the server; ordered where it has a single active consumer."""
    made, user = 0, ""

    def __init__(self, server, kind="classic", single_active=False):
        Queue.made += 1
        self.server, self.name, self.single_active = server, f"payments-{Queue.made}", single_active
        server.queue(self.name, kind, single_active)

    def settings(self):
        return {"amqp": f"amqp://{self.user}127.0.0.1:{self.server.port}", "queue": self.name, "prefetch": 300,
                "single_active": self.single_active, "heartbeat": "2s"}

    def send(self, messages):
        self.server.send(self.name, [(id, json.dumps(body), None) for id, body in messages])


@pytest.fixture
def queue(rabbit):  # noqa: F811
    return Queue(rabbit)


def test_everything_twice_and_shuffled_equals_once(tmp_path, books, queue):
    # I1, I2, I5, I9, T6, T14
    scenes.duplicates(tmp_path, books, queue)


def test_a_poison_message_is_dead_and_the_others_go_on(tmp_path, books, queue):
    # I6, I15, T5
    scenes.poison(tmp_path, books, queue)


def test_a_failing_key_waits_and_keeps_its_order(tmp_path, books, rabbit):  # noqa: F811
    # I13, T3
    scenes.order_under_retries(tmp_path, books, Queue(rabbit, "quorum", single_active=True))


def test_killed_at_labelled_points_nothing_is_lost_or_repeated(tmp_path, books, queue):
    # T1, T7, P30
    scenes.short_on(books, "postgres")
    scenes.crashes(tmp_path, books, queue, scenes.ALL_POINTS if scenes.LONG else scenes.POINTS)


def test_the_broker_is_killed_in_the_middle(tmp_path, books, queue):
    # T14, P31
    scenes.short_on(books, "postgres")
    scenes.broker_restart(tmp_path, books, queue)


def test_the_broker_of_a_quorum_queue_is_killed_in_the_middle(tmp_path, books, rabbit):  # noqa: F811
    # T14, P31
    scenes.short_on(books)
    queue = Queue(rabbit, "quorum")
    rabbit.restart()  # see Server.queue
    scenes.broker_restart(tmp_path, books, queue)


def test_three_processes_and_one_is_killed_every_few_seconds(tmp_path, books, rabbit):  # noqa: F811
    # T2, T7, T14, P67
    scenes.short_on(books, "postgres")
    size = {"kills": 12, "total": 20000} if scenes.LONG else {"kills": 3, "total": 2000, "every_s": 1.0}
    scenes.storm(tmp_path, books, Queue(rabbit), order="json:/k", **size)  # keys meet in several processes


def test_a_handler_outlasts_its_lease_and_is_called_once(tmp_path, books, queue):
    # I7, P39
    scenes.short_on(books, "postgres")
    scenes.outlasts_its_lease(tmp_path, books, queue)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_process_stopped_past_its_lease_is_refused(tmp_path, books, queue, idempotent):
    # I7, P39, T2
    scenes.short_on(books)
    scenes.stopped_past_its_lease(tmp_path, books, queue, idempotent)


def test_what_init_writes_runs(tmp_path, books, queue):
    places = {"amqp://localhost:5672/": f"amqp://127.0.0.1:{queue.server.port}",
              "queue: payments": f"queue: {queue.name}"}
    scenes.runs_as_init_wrote_it(tmp_path, books, "rabbitmq", places, lambda _, items: queue.send(items))


def test_what_the_queue_still_has_is_reported(tmp_path, books, queue):
    scenes.short_on(books)
    scenes.lag(tmp_path, books, queue)


def drain_in_two_parts(tmp_path, books, queue, between):
    """Gives what the server has refused."""
    items = scenes.messages(100)
    queue.send(items[:50])
    with Daemon(tmp_path, scenes.settings(books, queue), {"PASSWORD": "narrow"}) as daemon:
        daemon.ready()
        daemon.metric("semel_source_lag_messages")
        scenes.expect_exact(books, items[:50], daemon)
        between(daemon)
        queue.send(items[50:])
        scenes.expect_exact(books, items, daemon)
    assert queue.server.length(queue.name) == 0
    return [line for line in daemon.lines() if "NOT_ALLOWED" in str(line)]


# P31: the question how much the queue has needs a second channel
def test_a_user_who_may_have_one_channel_drains_his_queue(tmp_path, books, queue):
    scenes.short_on(books, "sqlite")
    file = queue.server.dir / "narrow.json"
    file.write_text(json.dumps({
        "users": [{"name": "narrow", "password": "narrow", "tags": "", "limits": {"max-channels": 1}}],
        "permissions": [{"user": "narrow", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}]}))
    queue.user = "narrow:${PASSWORD}@"
    with queue.server.with_settings(f"load_definitions = {file}\n"):
        refused = drain_in_two_parts(tmp_path, books, queue, lambda daemon: daemon.until(
            lambda: "NOT_ALLOWED" in daemon.log(), "the server refuses the second channel"))
    assert len(refused) == 1, refused


def test_a_server_that_allows_one_channel_is_not_asked_for_another(tmp_path, books, queue):
    scenes.short_on(books, "sqlite")
    with queue.server.with_settings("channel_max = 1\n"):
        assert drain_in_two_parts(tmp_path, books, queue, lambda daemon: None) == []


def test_killed_around_its_calls_no_key_is_called_twice(tmp_path, books, queue):
    # E1, E2, T1, T7, T11, P47
    scenes.short_on(books)
    scenes.outside_crashes(tmp_path, books, queue, scenes.ALL_OUTSIDE_POINTS)


def test_a_message_that_kills_its_process_is_counted(tmp_path, books, queue):
    # I6
    scenes.short_on(books, "postgres")
    scenes.a_killer(tmp_path, books, queue)


def test_three_processes_keep_the_order_of_a_single_active_consumer(tmp_path, books, rabbit):  # noqa: F811
    # I13, T2, T7, T14
    scenes.short_on(books)
    queue = Queue(rabbit, "quorum", single_active=True)
    rows = scenes.storm(tmp_path, books, queue, order="json:/k", kills=8, total=6000)
    scenes.expect_order(rows)
