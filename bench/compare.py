#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two builds of Semel side by side: how fast is the new one, measured against the old one in the same minutes?

    bench/run --against OLD_SEMEL [--only sqlite,postgres,kafka] [--rounds N] [--messages N] [--kafka-messages N]

bench/run starts the database's server and calls this. The cases, `bench inbox` with ordered and with random ids:

  sqlite, postgres  `semel bench inbox`: each, sets, duplicates, poison; a process, and a store of its own, per run
  kafka             `semel run` from Kafka into PostgreSQL, as in run_kafka.py: semel and semel-sets

Rounds are interleaved: in a round both builds run a case one after the other, and who begins changes from round to
round. The result of a case is the median over the rounds of new / old. Memory is the largest of the rounds: of `bench
inbox` the high-water mark of its largest process, of `semel run` its largest anonymous memory. What else the machine
does hits both builds of a round alike, unless it comes and goes within seconds: build nothing meanwhile.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from run_kafka import PARTITIONS, Bench, Failed, Kafka, Skip, conclude, machine

CASES = ("each", "sets", "duplicates", "poison")
BUILDS = ("new", "old")
LOOK_S, GOAL = 0.05, 0.97

# The planner knows nothing of a new database. Autovacuum would tell it after a minute, in the middle of some run.
ENOUGH = 500
ANALYZE = """DO $$ BEGIN IF to_regclass('semel.record') IS NOT NULL THEN ANALYZE semel.record; END IF; END $$;
SELECT coalesce((SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass('semel.record')), 0);"""


def high_water_mb(pid):
    """Of the largest among a process and its children; 0: it has ended."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    mark = next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0)
    return max([mark, *map(high_water_mb, children)])


class Inbox:
    """`semel bench inbox`, one case at a time."""

    def __init__(self, kind, options, programs, tmp):
        self.kind, self.options, self.tmp = kind, options, tmp
        self.builds = {name: Bench(argparse.Namespace(psql=options.psql, url=options.url, semel=program), None, tmp)
                       for name, program in programs.items()}
        self.cases = CASES

    def measure(self, build, case):
        """{ids: messages per second}, and MB."""
        if self.kind == "postgres":
            with self.builds[build].database(f"{build}_") as database:
                return self.run(build, case, database.url, lambda: database.ask(ANALYZE) > ENOUGH)
        with tempfile.TemporaryDirectory(dir=self.tmp) as folder:
            return self.run(build, case, f"sqlite:{folder}/bench.db")

    def run(self, build, case, url, ready=lambda: True):
        """`ready` is called every now and then, until it is true."""
        peak, done = 0, False
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(
                [self.builds[build].program, "bench", "inbox", "--cases", case, "--connections", "1", "--rounds", "1",
                 "--messages", str(self.options.messages), "--json", "--store", url],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            try:
                while process.poll() is None:
                    peak, done = max(peak, high_water_mb(process.pid)), done or ready()
                    time.sleep(LOOK_S)
            finally:
                process.kill()
                process.wait()
            out.seek(0)
            err.seek(0)
            if process.returncode != 0:
                raise Failed(f"{build}: {self.kind} {case}: {err.read()}")
            found = json.load(out)
        return {one["ids"]: one["per_s"] for one in found["cases"] if one["name"] == case}, peak


class Run:
    """`semel run` from Kafka."""

    def __init__(self, options, programs, tmp):
        fill, messages = options.bin / "fill", str(options.kafka_messages)
        self.kind, self.kafka = "kafka", Kafka(fill)
        subprocess.run([fill, self.kafka.address, "bench", str(PARTITIONS), messages], check=True)
        self.builds = {name: Bench(argparse.Namespace(psql=options.psql, url=options.url, semel=program,
                                                      messages=options.kafka_messages), self.kafka, tmp)
                       for name, program in programs.items()}
        self.cases = ("semel", "semel-sets")

    def measure(self, build, case):
        bench = self.builds[build]
        per_s = bench.run(prefix=f"{build}_") if case == "semel" else bench.run_sets(prefix=f"{build}_")
        return {"ordered": per_s}, bench.peak_mb


def rounds(options, parts):
    """{(part, case): {build: [({ids: per second}, MB), one per round]}}"""
    found = {}
    for number in range(1, options.rounds + 1):
        for part in parts:
            for case in part.cases:
                for build in BUILDS if number % 2 else reversed(BUILDS):
                    got = part.measure(build, case)
                    found.setdefault((part.kind, case), {name: [] for name in BUILDS})[build].append(got)
                    print(f"round {number} of {options.rounds}: {part.kind} {case}, {build}: "
                          + ", ".join(f"{per_s:.0f} per s ({ids})" for ids, per_s in got[0].items())
                          + f", {got[1]:.1f} MB", file=sys.stderr, flush=True)
    return found


def result(options, found, load):
    cases = []
    for (part, case), builds in found.items():
        for ids in builds["new"][0][0]:
            rates = {name: [per_s[ids] for per_s, _ in got] for name, got in builds.items()}
            ratios = [new / old for new, old in zip(rates["new"], rates["old"])]
            cases.append({"name": f"{part} {case}", "ids": ids, "ratio": round(statistics.median(ratios), 3),
                          "ratios": [round(ratio, 3) for ratio in ratios],
                          **{f"{name}_per_s": round(statistics.median(rates[name]), 1) for name in BUILDS},
                          **{f"{name}_mb": round(max(mb for _, mb in builds[name]), 1) for name in BUILDS}})
    return {"bench": "compare", "new": str(options.new), "old": str(options.old), "rounds": options.rounds,
            "messages": options.messages, "kafka_messages": options.kafka_messages,
            "machine": {**machine(), "load_before": load, "load_after": os.getloadavg()[0]}, "cases": cases}


def show(found):
    print(f"{'CASE':22} {'IDS':8} {'NEW PER S':>10} {'OLD PER S':>10} {'NEW / OLD':>9} {'LOWEST':>7} {'HIGHEST':>7} "
          f"{'NEW MB':>7} {'OLD MB':>7}")
    for case in found["cases"]:
        print(f"{case['name']:22} {case['ids']:8} {case['new_per_s']:10.0f} {case['old_per_s']:10.0f} "
              f"{case['ratio']:9.3f} {min(case['ratios']):7.3f} {max(case['ratios']):7.3f} {case['new_mb']:7.1f} "
              f"{case['old_mb']:7.1f}")
    slow = [f"{case['name']} {case['ids']}" for case in found["cases"] if case["ratio"] < GOAL]
    large = [f"{case['name']} {case['ids']}" for case in found["cases"] if case["new_mb"] > case["old_mb"]]
    print(f"\nmedian of new / old below {GOAL}: {', '.join(slow) or 'none'}")
    print(f"more memory than before: {', '.join(large) or 'none'}")


def measure(options, tmp):
    programs = {"new": options.new, "old": options.old}
    wanted = options.only.split(",") if options.only else ["sqlite", "postgres", "kafka"]
    parts, load = [], os.getloadavg()[0]
    try:
        for name in wanted:
            try:
                if name != "sqlite" and not options.url:
                    raise Skip("no PostgreSQL server")
                parts.append(Run(options, programs, tmp) if name == "kafka" else
                             Inbox(name, options, programs, tmp))
            except Skip as why:
                print(f"{name}: skipped: {why}")
        return result(options, rounds(options, parts), load)
    finally:
        for part in parts:
            if part.kind == "kafka":
                part.kafka.done()


def main():
    parser = argparse.ArgumentParser(description="see the head of this file")
    parser.add_argument("--new", type=pathlib.Path, required=True)
    parser.add_argument("--old", type=pathlib.Path, required=True)
    parser.add_argument("--url", default="", help="the server's URL, with a database that is there; none: no server")
    parser.add_argument("--psql", default="psql")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of `fill`")
    parser.add_argument("--tmp", type=pathlib.Path, required=True, help="a folder on the disk to be measured")
    parser.add_argument("--only", default="", help="of sqlite, postgres, kafka")
    parser.add_argument("--messages", type=int, default=50000)
    parser.add_argument("--kafka-messages", type=int, default=200000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if not set(options.only.split(",")) <= {"", "sqlite", "postgres", "kafka"}:
        parser.error("--only: of sqlite, postgres, kafka")
    return conclude(options, lambda given: measure(given, given.tmp.resolve()), show)


if __name__ == "__main__":
    sys.exit(main())
