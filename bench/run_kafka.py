#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""From Kafka to PostgreSQL: `semel run` against consumers that people write (handwritten.c).

    bench/run --only run-kafka-postgres [--kafka-messages N] [--kafka-rounds N]

bench/run starts the database's server and calls this. A private Kafka server gets one topic with 12 partitions, filled
with JSON of 200 bytes, a UUIDv7 in the header `id`, and a key. Then, in turn and several times over, each on a new
database and in a new group:

  handwritten       two threads, one transaction per message, of the first tenth of the messages: it is slow
  handwritten-sets  two threads, one transaction per poll: the ids by one statement, the effects of new ones by another
  semel             `semel run` with one route, two workers, and the same effect by the handler `sql`, one statement per
                    message
  semel-sets        the same with one statement per batch
  each              `semel bench inbox --cases each` on two connections: the same inbox and handler without a broker

How the rate is taken: all inboxes have the database's clock in each row, of the moment when its transaction handled
it. The rate is that of the last nine tenths: the number of rows from the moment on when a tenth was done and before the
last such moment, by the time between the two. So connecting, joining the group, warming up and stopping count for
nobody, and the transaction that was last is left out. `from_start_per_s` is the same over all of them; `semel run`
handles its first batch a message at a time, because what killed the process before may be among them. A result is the
median of the rounds, a ratio the median of the ratios within a round. The effects are counted after each round: if one
is missing or was done twice there is no result.

Memory and idleness: one process with 10 routes, one worker each as by default, which all read another topic with a
quarter of the messages, in groups of their own. While they work, anonymous memory is looked at every 50 ms and the
largest is told; when all is done, the time on the processor over 20 seconds.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent
PARTITIONS, WORKERS, ROUTES, SHARE, ROUTES_SHARE = 12, 2, 10, 10, 4
WARM_S, IDLE_S, LOOK_S, ASK_S, PATIENCE_S = 3, 20, 0.05, 0.5, 600

LEDGER = """CREATE TABLE {name} (entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL,
account integer NOT NULL, amount integer NOT NULL);"""
INBOX = """CREATE TABLE handwritten_inbox (message_id text COLLATE "C" PRIMARY KEY,
processed_at timestamptz NOT NULL);"""
EFFECT = {"sql": "INSERT INTO {name} (message_id, account, amount) VALUES ($1::text, $2::integer, $3::integer)"}
EFFECTS = {"sql": """INSERT INTO {name} (message_id, account, amount)
SELECT * FROM unnest($1::text[], $2::integer[], $3::integer[]) RETURNING message_id""", "set": True}
RATE = """WITH t AS (SELECT max(processed_at) AS last, min(processed_at) AS start, (SELECT processed_at FROM {table}
ORDER BY processed_at OFFSET (SELECT count(*) / 10 FROM {table}) LIMIT 1) AS warm FROM {table})
SELECT count(*) FILTER (WHERE processed_at >= warm) / extract(epoch FROM last - warm),
count(*) / extract(epoch FROM last - start) FROM {table}, t WHERE processed_at < last GROUP BY warm, last, start;"""

# As Kafka ships it, but small, alone, and with no wait for members that there are none of.
SERVER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={dir}/data
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=1000
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
"""


class Skip(Exception):
    """This benchmark cannot be run here, and why."""


class Failed(Exception):
    """There is no result, and why."""


def wait_for(condition, what, seconds=PATIENCE_S):
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise Failed(f"never came true: {what}")
        time.sleep(LOOK_S)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def java():
    return os.environ.get("SEMEL_JAVA") or shutil.which("java")


def archives(name):
    """The class path of tools/NAME.list; None: not all of them are here."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(os.environ.get("SEMEL_JARS") or f"{cache}/semel/jars")
    jars = [folder / line.split()[1] for line in (SOURCE / f"tools/{name}.list").read_text().splitlines() if line]
    return jars if all(jar.is_file() for jar in jars) else None


class Kafka:
    """A private server, ended and removed by test/server/leash.sh even when this process is killed."""

    def __init__(self, fill):
        self.fill, self.process = fill, None
        jars = archives("kafka")
        if java() is None:
            raise Skip("no Java (apt-get install openjdk-17-jre-headless; or SEMEL_JAVA=PROGRAM)")
        if jars is None:
            raise Skip("no Apache Kafka (tools/jars kafka; or SEMEL_JARS=FOLDER)")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="semel-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")))
        self.leash = subprocess.Popen(["sh", SOURCE / "test/server/leash.sh", self.dir], stdin=subprocess.PIPE,
                                      start_new_session=True)
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        (self.dir / "data").mkdir()
        (self.dir / "data/meta.properties").write_text("version=1\ncluster.id=c2VtZWwtYmVuY2gtMDAwMQ\nnode.id=1\n")
        (self.dir / "server.properties").write_text(SERVER.format(port=port, controller=free_port(), dir=self.dir))
        with open(self.dir / "log", "wb") as log:
            self.process = subprocess.Popen(
                [java(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",  # it does not live to be worth more
                 "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", ":".join(map(str, jars)), "kafka.Kafka",
                 "server.properties"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir)
        (self.dir / "pid").write_text(f"{self.process.pid}\n")
        wait_for(self.answers, "Kafka answers", 120)

    def answers(self):
        if self.process.poll() is not None:
            raise Failed("Kafka ended:\n" + (self.dir / "log").read_text(errors="replace")[-2000:])
        return subprocess.run([self.fill, self.address], stderr=subprocess.DEVNULL, check=False).returncode == 0

    def done(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.leash.stdin.close()
        self.leash.wait()


class Database:
    """A new database of the server. It goes when it is left, so that the disk and the next one have peace."""

    def __init__(self, psql, url, name, template="template1"):
        self.psql, self.server, self.name, self.template = psql, url, name, template
        self.url, self.session = url.rpartition("/")[0] + "/" + name, None

    def ask(self, text):
        """A number, by a session that stays: a new one each time takes a noticeable part of a core."""
        if self.session is None:
            self.session = subprocess.Popen([self.psql, "-XAtq", "-d", self.url], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, text=True, bufsize=1)
        self.session.stdin.write(text + "\n")
        self.session.stdin.flush()
        line = self.session.stdout.readline()
        if not line:
            raise Failed(f"psql ended at: {text}")
        return int(line)

    def sql(self, text, url=None):
        done = subprocess.run([self.psql, "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url or self.url], input=text,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(done.stderr)
        return done.stdout.strip()

    def __enter__(self):
        # From version 15 on every page would otherwise be logged. Older servers copy files anyway.
        by = " STRATEGY FILE_COPY" if int(self.sql("SHOW server_version_num;", self.server)) >= 150000 else ""
        self.sql(f"CREATE DATABASE {self.name} TEMPLATE {self.template}{by};", self.server)
        self.sql("CHECKPOINT;")
        return self

    def __exit__(self, *_):
        if self.session is not None:
            self.session.stdin.close()
            self.session.wait()
        self.sql(f"DROP DATABASE {self.name} WITH (FORCE);", self.server)

    def expect(self, table, messages):
        found = self.sql(f"SELECT count(*), count(DISTINCT message_id) FROM {table};")
        if found != f"{messages}|{messages}":
            raise Failed(f"the books do not balance: {table} has {found} effects and ids, and must have {messages}")


class Semel:
    """`semel run` with one route per ledger."""

    def __init__(self, bench, database, ledgers, topic="bench", workers=WORKERS, effect=EFFECT):
        self.database, self.ledgers = database, ledgers
        bench.semel("migrate", "--store", database.url)
        for name in ledgers:
            database.sql(LEDGER.format(name=name))
        routes = {name: {
            "from": {"kafka": bench.kafka.address, "topic": topic, "group": f"{database.name}-{name}",
                     "first": "earliest"},
            "id": "header:id", "timed_ids": True, "values": ["id", "json:/account", "json:/amount"],
            "do": {**effect, "sql": effect["sql"].format(name=name)}, "workers": workers} for name in ledgers}
        self.port = free_port()
        self.log = bench.tmp / "semel.log"
        file = bench.tmp / "semel.yaml"
        file.write_text(json.dumps({"store": database.url, "admin": {"listen": f"127.0.0.1:{self.port}"},
                                    "routes": routes}))  # JSON is YAML
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([bench.program, "run", file], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)

    def look(self):
        """Anonymous memory in MB, and seconds on the processor."""
        if self.process.poll() is not None:
            raise Failed("semel run ended:\n" + self.log.read_text(errors="replace")[-2000:])
        folder = pathlib.Path(f"/proc/{self.process.pid}")
        lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return int(lines["RssAnon"].split()[0]) / 1024, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def work(self, messages):
        """Until every ledger has all messages; the largest memory meanwhile."""
        self.peak, next_look = 0, 0
        given = ", ".join(f"coalesce(pg_sequence_last_value(pg_get_serial_sequence('{name}', 'entry')::regclass), 0)"
                          for name in self.ledgers)

        def complete():
            nonlocal next_look
            self.peak = max(self.peak, self.look()[0])
            if time.monotonic() < next_look:
                return False
            next_look = time.monotonic() + ASK_S
            # Counting is left until it may be over: it takes time from those who work.
            return self.database.ask(f"SELECT least({given});") >= messages and all(
                self.database.ask(f"SELECT count(*) FROM {name};") >= messages for name in self.ledgers)
        wait_for(complete, "all messages are handled")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            raise Failed("semel run did not end well:\n" + self.log.read_text(errors="replace")[-2000:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Bench:
    def __init__(self, options, kafka, tmp):
        self.options, self.kafka, self.tmp = options, kafka, tmp
        self.program = options.semel.resolve()
        self.databases, self.commit_us, self.whole, self.peak_mb = 0, [], {}, 0

    def database(self, prefix=""):
        self.databases += 1
        return Database(self.options.psql, self.options.url, f"{prefix}bench_{self.databases}")

    def semel(self, *args):
        done = subprocess.run([self.program, *map(str, args)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(done.stderr)
        return done.stdout

    def rate(self, database, name, table):
        steady, whole = map(float, database.sql(RATE.format(table=table)).split("|"))
        self.whole.setdefault(name, []).append(whole)
        return steady

    # ---- the cases: messages a second

    def handwritten(self, name="handwritten", how="each", share=SHARE):
        messages = max(self.options.messages // share, 1)
        with self.database() as database:
            database.sql(INBOX + LEDGER.format(name="ledger"))
            done = subprocess.run(
                [self.options.bin / "handwritten", how, self.kafka.address, "bench", database.name, database.url,
                 str(messages)], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            if done.returncode != 0:
                raise Failed(done.stderr)
            database.expect("ledger", int(done.stdout))
            return self.rate(database, name, "handwritten_inbox")

    def handwritten_sets(self):
        return self.handwritten("handwritten-sets", "sets", 1)

    def run(self, name="semel", effect=EFFECT, prefix=""):
        with self.database(prefix) as database, Semel(self, database, ["ledger"], effect=effect) as daemon:
            daemon.work(self.options.messages)
            daemon.stop()
            self.peak_mb = daemon.peak
            database.expect("ledger", self.options.messages)
            return self.rate(database, name, "semel.inbox")

    def run_sets(self, prefix=""):
        return self.run("semel-sets", EFFECTS, prefix)

    def each(self):
        with self.database() as database:
            out = json.loads(self.semel("bench", "inbox", "--cases", "each", "--connections", WORKERS, "--messages",
                                        self.options.messages, "--rounds", 1, "--json", "--store",
                                        database.url))
        self.commit_us.append(out["commit_us"])
        return next(case["per_s"] for case in out["cases"]
                    if case["ids"] == "ordered" and case["connections"] == WORKERS)

    def rates(self):
        cases = {"handwritten": self.handwritten, "handwritten-sets": self.handwritten_sets, "semel": self.run,
                 "semel-sets": self.run_sets, "each": self.each}
        rates = {name: [] for name in cases}
        for round in range(1, self.options.rounds + 1):
            for name, case in cases.items():
                print(f"round {round} of {self.options.rounds}: {name}", end="", file=sys.stderr, flush=True)
                rates[name].append(case())
                print(f"  {rates[name][-1]:.0f} per s", file=sys.stderr)
        return rates

    # ---- many routes

    def routes(self):
        messages = max(self.options.messages // ROUTES_SHARE, 1)
        ledgers = [f"ledger_{i}" for i in range(1, ROUTES + 1)]
        with self.database() as database, Semel(self, database, ledgers, "routes", 1) as daemon:
            began = time.monotonic()
            daemon.work(messages)
            took = time.monotonic() - began
            time.sleep(WARM_S)  # until the last offsets are committed
            before, since = daemon.look()[1], time.monotonic()
            time.sleep(self.options.idle)
            idle_mb, after = daemon.look()
            idle = (after - before) / (time.monotonic() - since)
            daemon.stop()
            for name in ledgers:
                database.expect(name, messages)
            return {"routes": ROUTES, "workers": 1, "messages": messages * ROUTES,
                    "per_s": round(messages * ROUTES / took, 1), "rss_anon_mb": round(daemon.peak, 1),
                    "rss_anon_idle_mb": round(idle_mb, 1), "idle_s": self.options.idle,
                    "idle_cpu_percent": round(100 * idle, 2)}


RATIOS = (
    ("semel_by_handwritten", "semel", "handwritten", "what batches save"),
    ("semel_by_handwritten_sets", "semel", "handwritten-sets", "what the record costs"),
    ("semel_sets_by_handwritten_sets", "semel-sets", "handwritten-sets", "the same, with one statement per batch"),
    ("semel_by_each", "semel", "each", "what the way from the broker leaves"),
)


def ratio(rates, a, b):
    return round(statistics.median(x / y for x, y in zip(rates[a], rates[b])), 3)


def machine():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {"system": f"{platform.system()} {platform.release()}", "processor": model, "cores": os.cpu_count()}


def result(bench, rates, routes, load):
    options, commit_us = bench.options, bench.commit_us
    cases = [{"name": name, "ids": "ordered", "connections": WORKERS, "per_s": round(statistics.median(got), 1),
              "lowest_per_s": round(min(got), 1), "highest_per_s": round(max(got), 1),
              "from_start_per_s": round(statistics.median(bench.whole.get(name, got)), 1),
              "ratio": ratio(rates, name, "handwritten")} for name, got in rates.items()]
    return {"bench": "run-kafka-postgres", "commit_us": statistics.median(commit_us), "messages": options.messages,
            "rounds": options.rounds, "payload_bytes": 200, "partitions": PARTITIONS, "workers": WORKERS, "batch": 500,
            "baseline": "handwritten", "machine": {**machine(), "load_before": load[0], "load_after": load[1]},
            "cases": cases, **{key: ratio(rates, a, b) for key, a, b, _ in RATIOS}, "many_routes": routes}


def show(found):
    print(f"{'CASE':16} {'PER S':>8} {'LOWEST':>8} {'HIGHEST':>8} {'RATIO':>6}")
    for case in found["cases"]:
        print(f"{case['name']:16} {case['per_s']:8.0f} {case['lowest_per_s']:8.0f} {case['highest_per_s']:8.0f} "
              f"{case['ratio']:6.2f}")
    many = found["many_routes"]
    print()
    for key, a, b, what in RATIOS:
        print(f"{f'{a} / {b}: {what}':70} {found[key]:6.2f}")
    print(f"{many['routes']} routes at full speed: {many['per_s']:.0f} per s, at most {many['rss_anon_mb']:.1f} MB of "
          "anonymous memory")
    print(f"{many['routes']} routes with nothing to do: {many['idle_cpu_percent']:.2f} % of a core, "
          f"{many['rss_anon_idle_mb']:.1f} MB")
    print(f"a commit takes {found['commit_us']:.0f} us here (median)")


def measure(options):
    load = [os.getloadavg()[0]]
    kafka = Kafka(options.bin / "fill")
    try:
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as tmp:
            print(f"filling the topic with {options.messages} messages", file=sys.stderr)
            for topic, messages in (("bench", options.messages), ("routes", max(options.messages // ROUTES_SHARE, 1))):
                subprocess.run([options.bin / "fill", kafka.address, topic, str(PARTITIONS), str(messages)],
                               check=True)
            bench = Bench(options, kafka, pathlib.Path(tmp))
            rates = bench.rates()
            print(f"{ROUTES} routes", file=sys.stderr)
            routes = bench.routes()
            load.append(os.getloadavg()[0])
            return result(bench, rates, routes, load)
    finally:
        kafka.done()


def conclude(options, measured, shown):
    """Measures, shows and writes what was found to options.out; returns the exit code. 77: it was skipped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        found = measured(options)
    except Skip as why:
        print(f"skipped: {why}")
        return 77
    except (Failed, OSError, subprocess.SubprocessError) as why:
        print(f"{pathlib.Path(sys.argv[0]).name}: {why}", file=sys.stderr)
        return 1
    shown(found)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def main():
    parser = argparse.ArgumentParser(description="see the head of this file")
    parser.add_argument("--url", required=True, help="the server's URL, with a database that is there")
    parser.add_argument("--semel", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of `handwritten` and `fill`")
    parser.add_argument("--psql", default="psql")
    parser.add_argument("--messages", type=int, default=200000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=IDLE_S)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    return conclude(options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
