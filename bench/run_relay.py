#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""From the outbox to Kafka: the relay of `semel run` against relays that people write (relay.c).

    bench/run --only relay-kafka [--relay-events N] [--relay-rounds N] [--relay-backlog N] [--relay-cases NAME,...]
                                 [--relay-seconds N] [--relay-idle N]

bench/run starts the database's server and calls this. 10,000 aggregates, payloads of 200 bytes, a topic with 12
partitions per case. In turn and several times over, each on a new database and a new topic:

  handwritten       SELECT ... FOR UPDATE SKIP LOCKED LIMIT 100, idempotent produce, flush, UPDATE published_at, COMMIT;
                    of a fifth of the events: it is slow
  handwritten-1000  the same with LIMIT 1000 and DELETE
  polling           `semel run` with one outbox
  polling-backlog   the same with many more unpublished rows behind them
  polling-hot       the same with 10 aggregates
  polling-held      the same while a transaction that has put one event stays open
  debezium          Debezium's outbox router, for the record: where its archives are (tools/jars debezium) and the
                    server logs what it needs; it reads the log while the table is filled

The rate is that at which the topic grows, over the last nine tenths (relay.c). A result is the median of the rounds, a
ratio the median of the ratios within a round. CPU US is the processor's time of `semel run` per event, from its start
on. Then 1,000 events per second are put, one per transaction, by four connections: the time from commit to consumer,
and the processor's time that the relay takes for it, and while there is nothing to do.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

from run_kafka import (Database, Failed, Kafka, PARTITIONS, Skip, archives, conclude, free_port, java, machine, ratio,
                       wait_for)

AGGREGATES, HOT, SHARE, WARM_S, COMMITS, CALM_S = 10000, 10, 5, 3, 200, 60
PLAIN = """CREATE TABLE plain_outbox (id uuid NOT NULL, aggregatetype text NOT NULL, aggregateid text NOT NULL,
type text NOT NULL, payload bytea, seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, published_at timestamptz);
CREATE INDEX ON plain_outbox (seq) WHERE published_at IS NULL;"""
FILL = """INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload)
SELECT gen_random_uuid(), 'order', (i % {aggregates})::text, 'changed', convert_to(repeat('x', 200), 'UTF8')
FROM generate_series(1, {events}) AS i;
VACUUM ANALYZE {table}; CHECKPOINT;"""
# Debezium with its outbox router, as fast as it polls; Kafka Connect, standalone.
WORKER = """bootstrap.servers={kafka}
listeners=http://127.0.0.1:{port}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=io.debezium.converters.BinaryDataConverter
offset.storage.file.filename={dir}/offsets
"""
CONNECTOR = """name=outbox
connector.class=io.debezium.connector.postgresql.PostgresConnector
plugin.name=pgoutput
publication.autocreate.mode=filtered
database.hostname={host}
database.port={port}
database.user=postgres
database.password=none
database.dbname={database}
topic.prefix=semel
table.include.list=semel.outbox
snapshot.mode=no_data
poll.interval.ms=1
transforms=outbox
transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
transforms.outbox.route.topic.replacement={topic}
"""
AT_LEAST = (("polling", "handwritten", 3), ("polling", "handwritten-1000", 1), ("polling-backlog", "polling", 0.7),
            ("polling-hot", "handwritten", 2), ("polling-held", "polling", 0.6))


class Relay:
    """`semel run` with one outbox."""

    def __init__(self, bench, database, topic):
        self.log = bench.tmp / "semel.log"
        file = bench.tmp / "semel.yaml"
        file.write_text(json.dumps({"store": database.url, "admin": {"listen": f"127.0.0.1:{free_port()}"},
                                    "outboxes": {"bench": {"to": {"kafka": bench.kafka.address, "topic": topic}}}}))
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([bench.options.semel.resolve(), "run", file], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self):
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)


class Debezium:
    """Kafka Connect with Debezium on the outbox of that database, as soon as it reads the log."""

    def __init__(self, bench, database, topic):
        where = urllib.parse.urlsplit(database.url)
        self.database, self.tmp = database, bench.tmp / topic
        self.tmp.mkdir()
        (self.tmp / "worker").write_text(WORKER.format(kafka=bench.kafka.address, port=free_port(), dir=self.tmp))
        (self.tmp / "connector").write_text(CONNECTOR.format(host=where.hostname, port=where.port, topic=topic,
                                                             database=database.name))
        with open(self.tmp / "log", "wb") as log:
            self.process = subprocess.Popen(
                [java(), "-Xmx512m", "-cp", ":".join(map(str, archives("debezium"))),
                 "org.apache.kafka.connect.cli.ConnectStandalone", self.tmp / "worker", self.tmp / "connector"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def reads(self):
        if self.process.poll() is not None:
            raise Failed("Debezium ended:\n" + (self.tmp / "log").read_text(errors="replace")[-2000:])
        return self.database.ask("SELECT count(*) FROM pg_replication_slots WHERE active;") == 1

    def __enter__(self):
        wait_for(self.reads, "Debezium reads the log of the database")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not self.database.ask("SELECT count(*) FROM pg_replication_slots WHERE active;"), "it is gone")
        self.database.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots;")


class Bench:
    def __init__(self, options, kafka, tmp):
        self.options, self.kafka, self.tmp, self.made, self.memory_mb = options, kafka, tmp, 0, 0
        self.templates, self.cpu_us, self.calm_us = {}, {}, fsync_us()

    def tool(self, *args):
        return [self.options.bin / "relay", *map(str, args)]

    def migrate(self, database):
        subprocess.run([self.options.semel, "migrate", "--store", database.url], check=True, capture_output=True)

    def template(self, table, events, aggregates=AGGREGATES):
        """A database with so many events, which is filled once; each round gets a copy."""
        key = (table, events, aggregates)
        if key not in self.templates:
            made = Database(self.options.psql, self.options.url, f"full_{len(self.templates)}").__enter__()
            if table == "plain_outbox":
                made.sql(PLAIN)
            else:
                self.migrate(made)
            if events > 0:
                made.sql(FILL.format(table=table, aggregates=aggregates, events=events))
            self.templates[key] = made.name
        return self.templates[key]

    def place(self, *filled):
        """A new database, a copy of that template, and a new topic."""
        self.made += 1
        topic = f"bench-{self.made}"
        subprocess.run(self.tool("topic", self.kafka.address, topic, PARTITIONS), check=True)
        template = self.template(*filled) if filled else "template1"
        return Database(self.options.psql, self.options.url, f"relay_{self.made}", template), topic

    def calm(self):
        """Waits until the disk has forgotten the copy of the database, which is larger in some cases than in others."""
        give_up = time.monotonic() + CALM_S
        while (now_us := fsync_us()) > 1.5 * self.calm_us and time.monotonic() < give_up:
            time.sleep(0.5)
        self.calm_us = min(self.calm_us, now_us)

    def watch(self, topic, events, process):
        done = subprocess.run(self.tool("watch", self.kafka.address, topic, PARTITIONS, events), capture_output=True,
                              text=True, check=False, timeout=900)
        if done.returncode != 0 or process.poll() not in (None, 0):
            raise Failed(done.stderr or "the relay ended")
        return float(done.stdout)

    def handwritten(self, how="update", limit=100, share=SHARE):
        events = max(self.options.events // share, 1000)
        database, topic = self.place("plain_outbox", events)
        with database:
            self.calm()
            process = subprocess.Popen(self.tool(how, limit, self.kafka.address, topic, database.url, events))
            rate = self.watch(topic, events, process)
            if process.wait(60) != 0:
                raise Failed("the handwritten relay failed")
            return rate

    def handwritten_1000(self):
        return self.handwritten("delete", 1000, 1)

    def polling(self, aggregates=AGGREGATES, behind=0, held=False):
        events = self.options.events + behind
        database, topic = self.place("semel.outbox", 0 if held else events, aggregates)
        with database:
            holder = None
            if held:
                holder = subprocess.Popen([self.options.psql, "-XAtq", "-d", database.url], stdin=subprocess.PIPE,
                                          stdout=subprocess.DEVNULL, text=True)
                holder.stdin.write("BEGIN; SELECT semel.outbox_put('order', 'held', 'e', '1');\n")
                holder.stdin.flush()
                idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction';"
                wait_for(lambda: database.ask(idle) > 0, "the transaction is open")
                database.sql(FILL.format(table="semel.outbox", aggregates=aggregates, events=events))
            self.calm()
            with Relay(self, database, topic) as relay:
                rate = self.watch(topic, self.options.events, relay.process)
                self.memory_mb = max(self.memory_mb, relay.memory_mb())
                self.cpu_us.setdefault(None, []).append(relay.cpu_s() * 1e6 / self.options.events)
            if holder is not None:
                holder.stdin.close()
                holder.wait()
            return rate

    def debezium(self):
        database, topic = self.place("semel.outbox", 0)
        with database, Debezium(self, database, topic) as debezium:
            database.sql(FILL.format(table="semel.outbox", aggregates=AGGREGATES, events=self.options.events))
            return self.watch(topic, self.options.events, debezium.process)

    def rates(self):
        cases = {"handwritten": self.handwritten, "handwritten-1000": self.handwritten_1000, "polling": self.polling,
                 "polling-backlog": lambda: self.polling(behind=self.options.backlog),
                 "polling-hot": lambda: self.polling(HOT), "polling-held": lambda: self.polling(held=True)}
        if archives("debezium") is not None and self.logical():
            cases["debezium"] = self.debezium
        else:
            print("without debezium: tools/jars debezium fetches it", file=sys.stderr)
        rates = {name: [] for name in cases if not self.options.cases or name in self.options.cases.split(",")}
        for round in range(1, self.options.rounds + 1):
            for name in rates:
                print(f"round {round} of {self.options.rounds}: {name}", end="", file=sys.stderr, flush=True)
                rates[name].append(cases[name]())
                print(f"  {rates[name][-1]:.0f} per s", file=sys.stderr)
                self.cpu_us.setdefault(name, []).extend(self.cpu_us.pop(None, []))
        return rates

    def latency(self):
        database, topic = self.place("semel.outbox", 0)
        with database:
            with Relay(self, database, topic) as relay:
                time.sleep(WARM_S)
                before, since = relay.cpu_s(), time.monotonic()
                time.sleep(self.options.idle)
                idle = (relay.cpu_s() - before) / (time.monotonic() - since)
                before, since = relay.cpu_s(), time.monotonic()
                done = subprocess.run(
                    self.tool("latency", self.kafka.address, topic, PARTITIONS, database.url, self.options.seconds),
                    capture_output=True, text=True, check=True, timeout=300)
                busy = (relay.cpu_s() - before) / (time.monotonic() - since)
        per_s, p50, p99, put_p50, put_p99 = map(float, done.stdout.split())
        return {"per_s": per_s, "p50_ms": p50, "p99_ms": p99, "from_put_p50_ms": put_p50, "from_put_p99_ms": put_p99,
                "cpu_percent": round(100 * busy, 1), "idle_cpu_percent": round(100 * idle, 2)}

    def logical(self):
        return Database(self.options.psql, self.options.url, "").sql("SHOW wal_level;", self.options.url) == "logical"

    def commit_us(self):
        database, _ = self.place()
        with database:
            database.sql("CREATE TABLE t (n integer);")
            began = time.monotonic()
            database.sql("INSERT INTO t VALUES (1);\n" * COMMITS)
            return (time.monotonic() - began) * 1e6 / COMMITS


def fsync_us():
    """The median of what it takes to write a page of the log to the disk that the servers use."""
    took = []
    with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR", "/var/tmp"), buffering=0) as file:
        for _ in range(COMMITS):
            began = time.monotonic()
            file.write(bytes(8192))
            os.fdatasync(file.fileno())
            took.append(time.monotonic() - began)
    return statistics.median(took) * 1e6


def measure(options):
    load = [os.getloadavg()[0]]
    kafka = Kafka(options.bin / "fill")
    try:
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as tmp:
            bench = Bench(options, kafka, pathlib.Path(tmp))
            commits_us, fsyncs_us = [bench.commit_us()], [fsync_us()]
            rates = bench.rates()
            latency = bench.latency() if options.seconds > 0 else None
            commits_us.append(bench.commit_us())
            fsyncs_us.append(fsync_us())
            load.append(os.getloadavg()[0])
    finally:
        kafka.done()
    cases = [{"name": name, "per_s": round(statistics.median(got), 1), "lowest_per_s": round(min(got), 1),
              "highest_per_s": round(max(got), 1), "ratio": known_ratio(rates, name, "handwritten"),
              "relay_cpu_us": round(statistics.median(bench.cpu_us[name]), 2) if bench.cpu_us.get(name) else None}
             for name, got in rates.items()]
    return {"bench": "relay-kafka", "commit_us": [round(us, 1) for us in commits_us],
            "fsync_us": [round(us, 1) for us in fsyncs_us], "events": options.events, "rounds": options.rounds,
            "backlog": options.backlog, "payload_bytes": 200, "aggregates": AGGREGATES,
            "partitions": PARTITIONS,
            "baseline": "handwritten", "machine": {**machine(), "load_before": load[0], "load_after": load[1]},
            "cases": cases, "rss_anon_mb": round(bench.memory_mb, 1), "latency": latency,
            "ratios": [{"case": a, "by": b, "is": known_ratio(rates, a, b), "at_least": least}
                       for a, b, least in AT_LEAST if a in rates and b in rates]}


def known_ratio(rates, a, b):
    return ratio(rates, a, b) if b in rates else None


def show(found):
    def cell(value, form):
        return "-" if value is None else format(value, form)
    print(f"{'CASE':18} {'PER S':>8} {'LOWEST':>8} {'HIGHEST':>8} {'RATIO':>6} {'CPU US':>7}")
    for case in found["cases"]:
        print(f"{case['name']:18} {case['per_s']:8.0f} {case['lowest_per_s']:8.0f} {case['highest_per_s']:8.0f} "
              f"{cell(case['ratio'], '.2f'):>6} {cell(case['relay_cpu_us'], '.1f'):>7}")
    print()
    for one in found["ratios"]:
        print(f"{one['case'] + ' / ' + one['by']:40} {one['is']:6.2f}  (at least {one['at_least']})")
    one = found["latency"]
    if one is not None:
        print(f"at {one['per_s']:.0f} events per s: p50 {one['p50_ms']:.1f} ms, p99 {one['p99_ms']:.1f} ms from commit "
              f"to consumer (from before the put: {one['from_put_p50_ms']:.1f}, {one['from_put_p99_ms']:.1f}), "
              f"{one['cpu_percent']:.1f} % of a core; idle {one['idle_cpu_percent']:.2f} %")
    print(f"at most {found['rss_anon_mb']:.1f} MB of anonymous memory; a commit takes "
          f"{found['commit_us'][0]:.0f} us before and {found['commit_us'][1]:.0f} us after the run, a write with fsync "
          f"{found['fsync_us'][0]:.0f} and {found['fsync_us'][1]:.0f} us; load "
          f"{found['machine']['load_before']:.1f} before, {found['machine']['load_after']:.1f} after")


def main():
    parser = argparse.ArgumentParser(description="see the head of this file")
    parser.add_argument("--url", required=True, help="the server's URL, with a database that is there")
    parser.add_argument("--semel", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of `relay` and `fill`")
    parser.add_argument("--psql", default="psql")
    parser.add_argument("--events", type=int, default=300000)
    parser.add_argument("--backlog", type=int, default=2000000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="only these, by commas")
    parser.add_argument("--seconds", type=int, default=20, help="of the latency; 0: it is left out")
    parser.add_argument("--idle", type=int, default=20, help="seconds over which an idle relay is watched")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    return conclude(options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
