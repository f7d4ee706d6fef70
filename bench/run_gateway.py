#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The gateway: what a hop through it costs, beside nginx and beside keys that people write (middleware.js).

    bench/run --only gateway [--gateway-rounds N] [--gateway-seconds N] [--gateway-cases NAME,...]
    bench/run --only gateway --gateway-fsync-us N

bench/run starts the database's server and calls this. One server and 32 keep-alive clients (gateway.c), which POST JSON
of 200 bytes with an Idempotency-Key, and get 100 bytes. In turn and several times over:

  direct            the server itself
  nginx             one worker, keep-alive to the server, no log
  unguarded         `semel gateway`, one thread, on a path whose rule is key=off
  replay            the same with a store in PostgreSQL, one completed key per client: every answer comes from the store
  replay-sqlite     the same with a store in SQLite
  guarded-sqlite    a new key per request: two commits each, many requests in one
  guarded-postgres  the same with a store in PostgreSQL
  middleware        a Node application that keeps its keys itself, in the same PostgreSQL; its handler is in the process

All processes stay for all rounds; who has no turn does nothing. Each answer's status and Idempotent-Replayed are
checked, and after each turn that the server was called once per key (not at all for a replay): else there is no result.
With --fsync-us the server's fsync and fdatasync take at least so long (slow_fsync.c); the cases are `unguarded` and
`guarded-postgres` then, and the goals are a rate, and a median of the time that lies above `unguarded`.
A result is the median of the rounds, a ratio the median of the ratios within a round. CPU US is the processor's time of
the process in the middle (of Node in `middleware`) per request; PostgreSQL's is not in it.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import urllib.request

from run_kafka import HERE, Database, Failed, conclude, free_port, machine, ratio, wait_for
from run_relay import fsync_us, known_ratio

CLIENTS = 32
NGINX = """worker_processes 1; daemon off; master_process off; pid {dir}/nginx.pid; error_log {dir}/nginx.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {dir}/1; proxy_temp_path {dir}/2; fastcgi_temp_path {dir}/3; uwsgi_temp_path {dir}/4;
  scgi_temp_path {dir}/5;
  upstream server {{ server 127.0.0.1:{to}; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_next_upstream off;
    }}
  }}
}}
"""
GOALS = (("unguarded", "nginx", 0.75), ("replay", "unguarded", 0.5), ("guarded-postgres", "unguarded", 0.25),
         ("guarded-postgres", "middleware", 4))
CPU_AT_MOST = 1.33  # A10: unguarded by nginx
SLOW_CASES = "unguarded,guarded-postgres"
SLOW_PER_S, SLOW_ABOVE_MS = 3000, 8
NODE_PATHS = [*filter(None, os.environ.get("NODE_PATH", "").split(":")),
              (os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) + "/semel/node/node_modules",
              "/usr/share/nodejs"]


class Process:
    """A program that prints its port, or gets one."""

    def __init__(self, log, *command, port=None, env=None):
        with open(log, "wb") as to:
            self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=to, stderr=to,
                                            env={**os.environ, **(env or {})})
        self.log, self.port = log, port

    def __enter__(self):
        def listens():
            if self.process.poll() is not None:
                raise Failed("it ended: " + self.log.read_text(errors="replace")[-2000:])
            found = re.search(r"^(?:.*port )?(\d+)\b", self.log.read_text())
            self.port = self.port or (found and int(found[1]))
            with socket.socket() as s:
                return self.port is not None and s.connect_ex(("127.0.0.1", self.port)) == 0
        wait_for(listens, f"{self.process.args[0]} listens", 60)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def cpu_us(self):
        """The time of all its threads on a processor."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


class Case:
    """Where a case's clients go, and who counts its calls."""

    def __init__(self, process, counter, path="/charges", replay=False):
        self.process, self.counter, self.path, self.replay = process, counter, path, replay
        self.per_s, self.p50_us, self.p99_us, self.cpu_us = [], [], [], []

    def calls(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.counter.port}/calls", timeout=30) as answer:
            return tuple(map(int, answer.read().split()))

    def expect(self, calls):
        found = self.calls()
        if found != (calls, 0):
            raise Failed(f"the server was called {found[0]} times, {found[1]} of them again, and must be {calls} times")


class Bench:
    def __init__(self, options, tmp, stack):
        self.options, self.tmp, self.stack, self.cases, self.skipped = options, tmp, stack, {}, {}
        server = self.start("server", options.bin / "gateway", "serve")
        self.add("direct", server, server)
        if shutil.which("nginx") is None:
            self.skip("nginx", "nginx is not installed (apt-get install nginx-light)")
        elif self.wanted("nginx"):
            port = free_port()
            (tmp / "nginx.conf").write_text(NGINX.format(dir=tmp, port=port, to=server.port))
            nginx = self.start("nginx", "nginx", "-p", tmp, "-e", tmp / "nginx.log", "-c", tmp / "nginx.conf",
                               port=port)
            self.add("nginx", nginx, server)
        database = stack.enter_context(Database(options.psql, options.url, "gateway"))
        self.database = database
        sqlite, postgres = self.gateway(server, f"sqlite:{tmp}/keys.db"), self.gateway(server, database.url)
        self.add("unguarded", sqlite, server, path="/free")
        self.add("replay", postgres, server, replay=True)
        self.add("replay-sqlite", sqlite, server, replay=True)
        self.add("guarded-sqlite", sqlite, server)
        self.add("guarded-postgres", postgres, server)
        if shutil.which("node") is None or not any((pathlib.Path(path) / "pg").is_dir() for path in NODE_PATHS):
            self.skip("middleware", "no Node with pg (apt-get install nodejs; tools/setup languages)")
        elif self.wanted("middleware"):
            node = self.start("node", "node", HERE / "middleware.js", database.url,
                              env={"NODE_PATH": ":".join(NODE_PATHS), "NODE_ENV": "production"})
            self.add("middleware", node, node)

    def wanted(self, name):
        return not self.options.cases or name in self.options.cases.split(",")

    def start(self, name, *command, **more):
        return self.stack.enter_context(Process(self.tmp / f"{name}.out", *command, **more))

    def gateway(self, server, store):
        semel = self.options.semel.resolve()
        subprocess.run([semel, "migrate", "--store", store], check=True, capture_output=True)
        return self.start(f"semel-{store[:6]}", semel, "gateway", "--listen", "127.0.0.1:0", "--upstream",
                          f"http://127.0.0.1:{server.port}", "--store", store, "--threads", 1,
                          "--caller", "header:X-User-Id", "--caller-from", "127.0.0.1", "--guard", "POST /free key=off")

    def add(self, name, *args, **more):
        if self.wanted(name):
            self.cases[name] = Case(*args, **more)

    def skip(self, name, why):
        if self.wanted(name):
            self.skipped[name] = why
            print(f"{name} is skipped: {why}")

    def load(self, case, ms, clients, key, replayed):
        done = subprocess.run([self.options.bin / "gateway", "load", str(case.process.port), str(clients), str(ms),
                               case.path, key, replayed], capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != 0:
            raise Failed(done.stderr)
        per_s, p50_us, p99_us, sent = map(float, done.stdout.split())
        return per_s, p50_us, p99_us, int(sent)

    def turn(self, name, case, round):
        """One turn of that case. The log of the turn before is not on its bill."""
        self.database.sql("CHECKPOINT;")
        case.calls()
        key = f"{name}-round-{round}-{'.' if case.replay else ''}"
        if case.replay:
            self.load(case, 1, CLIENTS, key, "any")
            case.expect(CLIENTS)
        before = case.process.cpu_us()
        per_s, p50_us, p99_us, sent = self.load(case, round_ms(self.options), CLIENTS, key,
                                                "yes" if case.replay else "no")
        cpu_us = (case.process.cpu_us() - before) / sent
        case.expect(0 if case.replay else sent)
        if per_s == 0:
            raise Failed(f"{name}: no answer within {self.options.seconds} s; this machine needs longer turns")
        for to, value in ((case.per_s, per_s), (case.p50_us, p50_us), (case.p99_us, p99_us), (case.cpu_us, cpu_us)):
            to.append(value)

    def run(self):
        for round in range(1, self.options.rounds + 1):
            for name, case in self.cases.items():
                print(f"round {round} of {self.options.rounds}: {name}", end="", file=sys.stderr, flush=True)
                self.turn(name, case, round)
                print(f"  {case.per_s[-1]:.0f} per s, {case.cpu_us[-1]:.1f} us", file=sys.stderr)


def round_ms(options):
    return max(int(options.seconds * 1000), 1)


def measure(options):
    load, fsyncs_us = [os.getloadavg()[0]], [fsync_us()]
    with contextlib.ExitStack() as stack:
        tmp = stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-bench-",
                                                              dir=os.environ.get("TMPDIR", "/var/tmp")))
        bench = Bench(options, pathlib.Path(tmp), stack)
        bench.run()
    load.append(os.getloadavg()[0])
    fsyncs_us.append(fsync_us())
    rates = {name: case.per_s for name, case in bench.cases.items()}
    cpus = {name: case.cpu_us for name, case in bench.cases.items()}
    cases = [{"name": name, "per_s": round(statistics.median(case.per_s), 1), "lowest_per_s": min(case.per_s),
              "highest_per_s": max(case.per_s), "ratio": known_ratio(rates, name, "unguarded"),
              "p50_ms": round(statistics.median(case.p50_us) / 1000, 3),
              "p99_ms": round(statistics.median(case.p99_us) / 1000, 3),
              "cpu_us": round(statistics.median(case.cpu_us), 1)} for name, case in bench.cases.items()]
    slow = None
    if options.fsync_us > 0 and {"unguarded", "guarded-postgres"} <= rates.keys():
        p50 = {case["name"]: case["p50_ms"] for case in cases}
        slow = {"fsync_us": options.fsync_us, "per_s": statistics.median(rates["guarded-postgres"]),
                "per_s_at_least": SLOW_PER_S, "above_ms_at_most": SLOW_ABOVE_MS,
                "above_ms": round(p50["guarded-postgres"] - p50["unguarded"], 3)}
    ratios = [{"case": a, "by": b, "is": ratio(rates, a, b), "at_least": least} for a, b, least in GOALS
              if a in rates and b in rates and not slow]
    cpu = ratio(cpus, "unguarded", "nginx") if {"unguarded", "nginx"} <= cpus.keys() else None
    return {"bench": "gateway", "clients": CLIENTS, "rounds": options.rounds, "seconds": options.seconds,
            "fsync_us": [round(us, 1) for us in fsyncs_us], "baseline": "unguarded",
            "machine": {**machine(), "load_before": load[0], "load_after": load[1]}, "skipped": bench.skipped,
            "cases": cases, "ratios": ratios, "slow": slow,
            "cpu_ratio": {"case": "unguarded", "by": "nginx", "is": cpu, "at_most": CPU_AT_MOST}}


def show(found):
    print(f"{'CASE':18} {'PER S':>8} {'LOWEST':>8} {'HIGHEST':>8} {'RATIO':>6} {'P50 MS':>7} {'P99 MS':>7} "
          f"{'CPU US':>7}")
    for case in found["cases"]:
        by = "-" if case["ratio"] is None else format(case["ratio"], ".2f")
        print(f"{case['name']:18} {case['per_s']:8.0f} {case['lowest_per_s']:8.0f} {case['highest_per_s']:8.0f} "
              f"{by:>6} {case['p50_ms']:7.2f} {case['p99_ms']:7.2f} {case['cpu_us']:7.1f}")
    print()
    for one in found["ratios"]:
        print(f"{one['case'] + ' / ' + one['by']:40} {one['is']:6.2f}  (at least {one['at_least']})")
    if found["slow"] is not None:
        slow = found["slow"]
        print(f"the server's fsync takes at least {slow['fsync_us']} us")
        print(f"{'guarded-postgres, per s':40} {slow['per_s']:6.0f}  (at least {SLOW_PER_S})")
        print(f"{'its median above unguarded, ms':40} {slow['above_ms']:6.2f}  (at most {SLOW_ABOVE_MS})")
    if found["cpu_ratio"]["is"] is not None:
        print(f"{'processor: unguarded / nginx':40} {found['cpu_ratio']['is']:6.2f}  (at most {CPU_AT_MOST})")
    print(f"a write with fsync takes {found['fsync_us'][0]:.0f} us before and {found['fsync_us'][1]:.0f} us after the "
          f"run; load {found['machine']['load_before']:.1f} before, {found['machine']['load_after']:.1f} after")


def main():
    parser = argparse.ArgumentParser(description="see the head of this file")
    parser.add_argument("--url", required=True, help="the server's URL, with a database that is there")
    parser.add_argument("--semel", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of `gateway`")
    parser.add_argument("--psql", default="psql")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="of a case in a round, after a fifth of it to warm up")
    parser.add_argument("--cases", default="", help="only these, by commas")
    parser.add_argument("--fsync-us", type=int, default=0, help="the server's fsync was slowed down to that")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if options.fsync_us > 0:
        options.cases = options.cases or SLOW_CASES
    return conclude(options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
