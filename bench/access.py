#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the check of semel.access costs a message: the table empty and with 100 lines, in turns on one server.

One session of a role that may only call the functions, by prepared statements. What counts is the time that its server
process was on a processor, as Linux tells it: what else the machine does, and the disk, have little part in it. The
first turn warms up; what is compared is always two neighbours of one turn.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess

CALLS = {
    "atomic": ("inbox_begin, inbox_done", """
PREPARE a(text) AS SELECT act FROM semel.inbox_begin('atomic', $1, payload => '{"amount": 7}');
PREPARE b(text) AS SELECT semel.inbox_done('atomic', $1);
""", "BEGIN;\nEXECUTE a('%s');\nEXECUTE b('%s');\nCOMMIT;\n"),
    "outside": ("inbox_claim, inbox_finish", """
PREPARE a(text) AS SELECT token FROM semel.inbox_claim('outside', $1, payload => '{"amount": 7}');
PREPARE b(bigint) AS SELECT semel.inbox_finish($1);
""", "EXECUTE a('%s') \\gset\nEXECUTE b(:token); -- %s\n"),
}
LISTED = """INSERT INTO semel.access (consumer, role) SELECT 'c' || i, 'bench_app' FROM generate_series(1, 98) AS i
UNION VALUES ('atomic', 'bench_app'), ('outside', 'bench_app')"""


def run(*args):
    return subprocess.run([str(arg) for arg in args], check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser()
    for name in ("url", "pg", "semel", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=200)
    args = parser.parse_args()

    def sql(text):
        run(f"{args.pg}/psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", args.url, "-c", text)

    def cost(kind):
        _, prepare, text = CALLS[kind]
        with subprocess.Popen([f"{args.pg}/psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d",
                               args.url.replace("postgres@", "bench_app@", 1)], text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as psql:
            def say(text):
                psql.stdin.write(text + "SELECT 'said ' || pg_backend_pid();\n")
                psql.stdin.flush()
                while not (line := psql.stdout.readline()).startswith("said "):
                    if line == "":
                        raise SystemExit("access.py: the session has ended")
                return line.split()[1]
            spent = pathlib.Path("/proc", say(prepare), "schedstat")
            ids = [f"{random.getrandbits(63)}" for _ in range(args.messages)]
            before = int(spent.read_text(encoding="ascii").split()[0])
            say("".join(text % (id, id) for id in ids))
            after = int(spent.read_text(encoding="ascii").split()[0])
            psql.stdin.close()
            return (after - before) / 1e6 / args.messages

    run(args.semel, "migrate", "--store", args.url)
    sql("CREATE ROLE bench_app LOGIN; ALTER ROLE bench_app SET synchronous_commit = off")
    roles = pathlib.Path(__file__).parent.parent / "sql/postgres/roles.sql"
    run(f"{args.pg}/psql", "-Xq", "-v", "owner=postgres", "-v", "app=bench_app", "-f", roles, "-d", args.url)
    for kind in CALLS:
        sql(f"SELECT semel.consumer('{kind}', '{{\"effect\": \"{kind}\"}}')")
    turns = {kind: [] for kind in CALLS}
    for turn in range(args.rounds + 1):
        for kind, measured in turns.items():
            ms = {}
            for which in ("empty", "listed") if turn % 2 else ("listed", "empty"):
                if which == "listed":
                    sql(LISTED)
                ms[which] = cost(kind)
                sql("TRUNCATE semel.access")
            if turn > 0:
                measured.append(ms)
    result = {}
    for kind, (calls, _, _) in CALLS.items():
        ratios = [ms["listed"] / ms["empty"] for ms in turns[kind]]
        result[kind] = {"calls": calls, "turns": turns[kind], "ratio": statistics.median(ratios)}
        empty, listed = (statistics.median(ms[which] for ms in turns[kind]) for which in ("empty", "listed"))
        quarters = statistics.quantiles(ratios, n=4)
        print(f"{calls}: {empty:.3f} ms of a processor with an empty table, {listed:.3f} ms with 100 lines; ratio "
              f"{statistics.median(ratios):.3f} (half of {len(ratios)} turns: {quarters[0]:.3f} to {quarters[2]:.3f})")
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
