#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the check of semel.access costs a message: the table empty and with 100 lines, in turns on one server.

One client of a role that may only call the functions, by pgbench with prepared statements. The first turn warms up.
What is compared is always two neighbours of one turn, so that a machine that becomes slower counts for both. The role
does not wait for the disk, which takes longer than all calls together and is the same for both.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

CALLS = {
    "atomic": ("inbox_begin, inbox_done", """BEGIN;
SELECT semel.inbox_begin('atomic', :id::text, payload => '{"amount": 7}');
SELECT semel.inbox_done('atomic', :id::text);
COMMIT;
"""),
    "outside": ("inbox_claim, inbox_finish", """
SELECT token FROM semel.inbox_claim('outside', :id::text, payload => '{"amount": 7}') \\gset
SELECT semel.inbox_finish(:token);
"""),
}
LISTED = """INSERT INTO semel.access (consumer, role) SELECT 'c' || i, 'bench_app' FROM generate_series(1, 98) AS i
UNION VALUES ('atomic', 'bench_app'), ('outside', 'bench_app')"""


def run(*args):
    return subprocess.run([str(arg) for arg in args], check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser()
    for name in ("url", "pg", "semel", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=int, default=1)
    args = parser.parse_args()

    def sql(text):
        run(f"{args.pg}/psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", args.url, "-c", text)

    def latency(script):
        told = run(f"{args.pg}/pgbench", "-n", "-M", "prepared", "-T", args.seconds, "-f", script,
                   args.url.replace("postgres@", "bench_app@", 1))
        return float(re.search(r"latency average = ([0-9.]+) ms", told).group(1))

    run(args.semel, "migrate", "--store", args.url)
    sql("CREATE ROLE bench_app LOGIN; ALTER ROLE bench_app SET synchronous_commit = off")
    roles = pathlib.Path(__file__).parent.parent / "sql/postgres/roles.sql"
    run(f"{args.pg}/psql", "-Xq", "-v", "owner=postgres", "-v", "app=bench_app", "-f", roles, "-d", args.url)
    for kind in CALLS:
        sql(f"SELECT semel.consumer('{kind}', '{{\"effect\": \"{kind}\"}}')")
    turns = {kind: [] for kind in CALLS}
    with tempfile.TemporaryDirectory() as folder:
        for kind, (_, text) in CALLS.items():
            pathlib.Path(folder, kind).write_text("\\set id random(1, 9000000000000000000)\n" + text, encoding="utf-8")
        for turn in range(args.rounds + 1):
            for kind in CALLS:
                script = pathlib.Path(folder, kind)
                ms = {}
                for which in ("empty", "listed") if turn % 2 else ("listed", "empty"):
                    sql("TRUNCATE semel.access" if which == "empty" else LISTED)
                    ms[which] = latency(script)
                    sql("TRUNCATE semel.access")
                if turn > 0:
                    turns[kind].append(ms)
    result = {}
    for kind, (calls, _) in CALLS.items():
        ratios = [ms["listed"] / ms["empty"] for ms in turns[kind]]
        result[kind] = {"calls": calls, "turns": turns[kind], "ratio": statistics.median(ratios)}
        empty, listed = (min(ms[which] for ms in turns[kind]) for which in ("empty", "listed"))
        quarters = statistics.quantiles(ratios, n=4)
        print(f"{calls}: at best {empty:.3f} ms with an empty table, {listed:.3f} ms with 100 lines "
              f"({listed / empty:.3f}); ratio of neighbours {statistics.median(ratios):.3f} "
              f"(half of {len(ratios)} turns: {quarters[0]:.3f} to {quarters[2]:.3f})")
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
