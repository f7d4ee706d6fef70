# SPDX-License-Identifier: MIT
"""The relay's memory, while a transaction with very many events is relayed, and while a broker is down as they come.
A sanitizer has a memory of its own, so that what is asserted there is less exact; `make test-long` runs this file with
a release build, too."""
import os
import pathlib
import re

import pytest

from conftest import binary
from daemon import Daemon
from kafka import kafka  # noqa: F401
from pg import pg, pg_server  # noqa: F401
from test_run_outbox import PARTITIONS, Outbox

LONG = os.environ.get("SEMEL_LONG") is not None

# How many, and how large each is: small ones in the long form; in the short one fewer than are read at a time, and
# together three times what the relay may have.
MANY, LARGE = (1_000_000, 200) if LONG else (3_000, 64_000)
SANITIZED = re.search(rb"lib[at]san\.so", pathlib.Path(binary()).read_bytes()) is not None
MEMORY_MB = 128 if SANITIZED else 64  # red zones, shadows, freed memory that is not used again yet


@pytest.fixture
def outbox(pg, kafka):  # noqa: F811
    return Outbox(pg, kafka)


class Relay(Daemon):
    """With what it had at most since it was ready. Without a sanitizer all that is resident counts; with one, which has
    its own memory beside the program's, what came since then."""

    def __init__(self, folder, settings):
        super().__init__(folder, settings,
                         {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"})
        self.at_first_mb = 0

    def peak_mb(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1]) / 1024

    def ready(self, seconds=60):
        super().ready(seconds)
        self.at_first_mb = self.peak_mb() if SANITIZED else 0
        return self

    def check_memory(self, what):
        needed_mb = self.peak_mb() - self.at_first_mb
        print(f"{what}: at most {needed_mb:.1f} MB{f', beside {self.at_first_mb:.1f} MB' if SANITIZED else ''}")
        assert needed_mb < MEMORY_MB


def put_many(outbox, many, aggregates=1000, each=None):
    """Events 0 to many - 1 of so many aggregates in turn, in one transaction, or in several of `each` events."""
    for first in range(0, many, each or many):
        with outbox.db.cursor() as cursor:
            cursor.execute("INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, destination) "
                           "SELECT gen_random_uuid(), 'order', 'm' || i %% %s, 'changed', "
                           "convert_to('{\"n\": ' || i || ', \"x\": \"' || repeat('x', %s) || '\"}', 'UTF8'), %s "
                           "FROM generate_series(%s, %s) AS i",
                           (aggregates, LARGE, outbox.name, first, min(first + (each or many), many) - 1))


def check_many(outbox, many, aggregates=1000):
    """All came, each aggregate in order."""
    last, again = {}, 0
    for key, n in outbox.kafka.numbers(outbox.name, PARTITIONS) if LONG else ():  # the others take long to print
        if n > last.get(key, -1):
            assert n == last.get(key, int(key[1:]) - aggregates) + aggregates, (key, n)
            last[key] = n
        else:
            again += 1
    assert not LONG or sum(n // aggregates + 1 for n in last.values()) == many
    print("published again:", again)


def test_a_transaction_with_very_many_events_needs_little_memory(tmp_path, outbox):
    # O2, O5
    with Relay(tmp_path, outbox.settings()) as daemon:
        daemon.ready()
        put_many(outbox, MANY)
        daemon.until(lambda: outbox.left() == 0, "all are published", 1200)
        daemon.check_memory(f"{MANY} events of one transaction")
    check_many(outbox, MANY)


def test_a_broker_that_is_down_while_very_many_events_arrive_costs_little_memory(tmp_path, outbox):
    # O2, P63
    with Relay(tmp_path, outbox.settings(retry={"first": "100ms", "ceiling": "1s"})) as daemon:
        daemon.ready()
        put_many(outbox, 1)
        daemon.until(lambda: outbox.left() == 0, "the first is published")
        outbox.kafka.stop()
        put_many(outbox, MANY, each=MANY // 20)
        daemon.until(lambda: daemon.lines("destination is down") or daemon.lines("cannot publish"), "it is noticed")
        failed = daemon.metric("semel_outbox_results_total", outbox="orders", result="retried")
        daemon.until(lambda: daemon.metric("semel_outbox_results_total", outbox="orders", result="retried") > failed,
                     "it is tried again while all are there")
        assert outbox.ask("SELECT count(*) FROM semel.outbox") == MANY
        daemon.check_memory(f"{MANY} events that wait for a broker")
        outbox.kafka.start()
        daemon.until(lambda: outbox.left() == 0, "all are published", 1200)
        daemon.check_memory("and after they were published")
    check_many(outbox, MANY)
