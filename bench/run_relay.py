#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""From the outbox to Kafka: the relay of `semel run` against relays that people write (relay.c).

    bench/run --only relay-kafka [--relay-events N] [--relay-rounds N] [--relay-backlog N]

bench/run starts the database's server and calls this. 10,000 aggregates, payloads of 200 bytes, a topic with 12
partitions per case. In turn and several times over, each on a new database and a new topic:

  handwritten       SELECT ... FOR UPDATE SKIP LOCKED LIMIT 100, idempotent produce, flush, UPDATE published_at, COMMIT;
                    of a fifth of the events: it is slow
  handwritten-1000  the same with LIMIT 1000 and DELETE
  polling           `semel run` with one outbox
  polling-backlog   the same with many more unpublished rows behind them
  polling-hot       the same with 10 aggregates
  polling-held      the same while a transaction that has put one event stays open

The rate is that at which the topic grows, over the last nine tenths (relay.c). A result is the median of the rounds, a
ratio the median of the ratios within a round. Then 1,000 events per second are put, one per transaction: the time from
commit to consumer, and the processor's time that the relay takes for it.
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

from run_kafka import Database, Failed, Kafka, PARTITIONS, Skip, free_port, machine, ratio, wait_for

AGGREGATES, HOT, SHARE, LATENCY_S, COMMITS = 10000, 10, 5, 10, 200
PLAIN = """CREATE TABLE plain_outbox (id uuid NOT NULL, aggregatetype text NOT NULL, aggregateid text NOT NULL,
type text NOT NULL, payload bytea, seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, published_at timestamptz);
CREATE INDEX ON plain_outbox (seq) WHERE published_at IS NULL;"""
FILL = """INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload)
SELECT gen_random_uuid(), 'order', (i % {aggregates})::text, 'changed', convert_to(repeat('x', 200), 'UTF8')
FROM generate_series(1, {events}) AS i;
VACUUM ANALYZE {table}; CHECKPOINT;"""
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


class Bench:
    def __init__(self, options, kafka, tmp):
        self.options, self.kafka, self.tmp, self.made, self.memory_mb = options, kafka, tmp, 0, 0

    def tool(self, *args):
        return [self.options.bin / "relay", *map(str, args)]

    def place(self):
        """A new database and a new topic."""
        self.made += 1
        topic = f"bench-{self.made}"
        subprocess.run(self.tool("topic", self.kafka.address, topic, PARTITIONS), check=True)
        return Database(self.options.psql, self.options.url, f"relay_{self.made}"), topic

    def watch(self, topic, events, process):
        done = subprocess.run(self.tool("watch", self.kafka.address, topic, PARTITIONS, events), capture_output=True,
                              text=True, check=False, timeout=900)
        if done.returncode != 0 or process.poll() not in (None, 0):
            raise Failed(done.stderr or "the relay ended")
        return float(done.stdout)

    def handwritten(self, how="update", limit=100, share=SHARE):
        events = max(self.options.events // share, 1000)
        database, topic = self.place()
        with database:
            database.sql(PLAIN + FILL.format(table="plain_outbox", aggregates=AGGREGATES, events=events))
            process = subprocess.Popen(self.tool(how, limit, self.kafka.address, topic, database.url, events))
            rate = self.watch(topic, events, process)
            if process.wait(60) != 0:
                raise Failed("the handwritten relay failed")
            return rate

    def handwritten_1000(self):
        return self.handwritten("delete", 1000, 1)

    def polling(self, aggregates=AGGREGATES, behind=0, held=False):
        database, topic = self.place()
        with database:
            subprocess.run([self.options.semel, "migrate", "--store", database.url], check=True, capture_output=True)
            holder = None
            if held:
                holder = subprocess.Popen([self.options.psql, "-XAtq", "-d", database.url], stdin=subprocess.PIPE,
                                          text=True)
                holder.stdin.write("BEGIN; SELECT semel.outbox_put('order', 'held', 'e', '1');\n")
                holder.stdin.flush()
                idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction';"
                wait_for(lambda: database.ask(idle) > 0, "the transaction is open")
            database.sql(FILL.format(table="semel.outbox", aggregates=aggregates, events=self.options.events + behind))
            with Relay(self, database, topic) as relay:
                rate = self.watch(topic, self.options.events, relay.process)
                self.memory_mb = max(self.memory_mb, relay.memory_mb())
            if holder is not None:
                holder.stdin.close()
                holder.wait()
            return rate

    def rates(self):
        cases = {"handwritten": self.handwritten, "handwritten-1000": self.handwritten_1000, "polling": self.polling,
                 "polling-backlog": lambda: self.polling(behind=self.options.backlog),
                 "polling-hot": lambda: self.polling(HOT), "polling-held": lambda: self.polling(held=True)}
        rates = {name: [] for name in cases}
        for round in range(1, self.options.rounds + 1):
            for name, case in cases.items():
                print(f"round {round} of {self.options.rounds}: {name}", end="", file=sys.stderr, flush=True)
                rates[name].append(case())
                print(f"  {rates[name][-1]:.0f} per s", file=sys.stderr)
        return rates

    def latency(self):
        database, topic = self.place()
        with database:
            subprocess.run([self.options.semel, "migrate", "--store", database.url], check=True, capture_output=True)
            with Relay(self, database, topic) as relay:
                time.sleep(3)
                before, since = relay.cpu_s(), time.monotonic()
                time.sleep(5)
                idle = (relay.cpu_s() - before) / (time.monotonic() - since)
                before, since = relay.cpu_s(), time.monotonic()
                done = subprocess.run(
                    self.tool("latency", self.kafka.address, topic, PARTITIONS, database.url, LATENCY_S),
                    capture_output=True, text=True, check=True, timeout=300)
                busy = (relay.cpu_s() - before) / (time.monotonic() - since)
        p50, p99 = map(float, done.stdout.split())
        return {"per_s": 1000, "p50_ms": p50, "p99_ms": p99, "cpu_percent": round(100 * busy, 1),
                "idle_cpu_percent": round(100 * idle, 2)}

    def commit_us(self):
        database, _ = self.place()
        with database:
            database.sql("CREATE TABLE t (n integer);")
            began = time.monotonic()
            database.sql("INSERT INTO t VALUES (1);\n" * COMMITS)
            return (time.monotonic() - began) * 1e6 / COMMITS


def measure(options):
    load = [os.getloadavg()[0]]
    kafka = Kafka(options.bin / "fill")
    try:
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as tmp:
            bench = Bench(options, kafka, pathlib.Path(tmp))
            commit_us, rates, latency = bench.commit_us(), bench.rates(), bench.latency()
            load.append(os.getloadavg()[0])
    finally:
        kafka.done()
    cases = [{"name": name, "per_s": round(statistics.median(got), 1), "lowest_per_s": round(min(got), 1),
              "highest_per_s": round(max(got), 1), "ratio": ratio(rates, name, "handwritten")}
             for name, got in rates.items()]
    return {"bench": "relay-kafka", "commit_us": round(commit_us, 1), "events": options.events,
            "rounds": options.rounds, "backlog": options.backlog, "payload_bytes": 200, "aggregates": AGGREGATES,
            "partitions": PARTITIONS,
            "baseline": "handwritten", "machine": {**machine(), "load_before": load[0], "load_after": load[1]},
            "cases": cases, "rss_anon_mb": round(bench.memory_mb, 1), "latency": latency,
            "ratios": [{"case": a, "by": b, "is": ratio(rates, a, b), "at_least": least} for a, b, least in AT_LEAST]}


def show(found):
    print(f"{'CASE':18} {'PER S':>8} {'LOWEST':>8} {'HIGHEST':>8} {'RATIO':>6}")
    for case in found["cases"]:
        print(f"{case['name']:18} {case['per_s']:8.0f} {case['lowest_per_s']:8.0f} {case['highest_per_s']:8.0f} "
              f"{case['ratio']:6.2f}")
    print()
    for one in found["ratios"]:
        print(f"{one['case'] + ' / ' + one['by']:40} {one['is']:6.2f}  (at least {one['at_least']})")
    one = found["latency"]
    print(f"at {one['per_s']} events per s: p50 {one['p50_ms']:.1f} ms, p99 {one['p99_ms']:.1f} ms from commit to "
          f"consumer, {one['cpu_percent']:.1f} % of a core; idle {one['idle_cpu_percent']:.2f} %")
    print(f"at most {found['rss_anon_mb']:.1f} MB of anonymous memory; a commit takes {found['commit_us']:.0f} us here")


def main():
    parser = argparse.ArgumentParser(description="see the head of this file")
    parser.add_argument("--url", required=True, help="the server's URL, with a database that is there")
    parser.add_argument("--semel", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of `relay` and `fill`")
    parser.add_argument("--psql", default="psql")
    parser.add_argument("--events", type=int, default=300000)
    parser.add_argument("--backlog", type=int, default=2000000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        found = measure(options)
    except Skip as why:
        print(f"skipped: {why}")
        return 77
    except (Failed, subprocess.SubprocessError) as why:
        print(f"run_relay.py: {why}", file=sys.stderr)
        return 1
    show(found)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
