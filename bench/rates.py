#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How fast operators' commands go through many messages, each beside the same work written by hand in SQL, in turns on
one server with what PostgreSQL ships as its settings.

    send      semel send --lines: lines per second, one commit per 1,000
    retry     semel inbox retry, discard and resolve of a selection: messages per second, one commit per 500, each with
    discard   its line of the audit and its place in the selection
    resolve

By hand, psql reads a file: `insert` is one INSERT of 1,000 rows per commit into a table with a primary key, `copy` the
same rows by COPY, `update` an UPDATE of 500 rows by their ids and an INSERT of 500 audit lines per commit. They know
nothing of copies, keys, order or selections. Time is that of the whole process. A turn is each case once; the first
warms up.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from run_relay import fsync_us

LINES, ROWS = 1000, 500  # per commit, as the program's
GOALS = {"send": 20000, "retry": 5000, "discard": 5000, "resolve": 5000}
BASES = {"send": "insert", "retry": "update", "discard": "update", "resolve": "update"}
TABLES = """
CREATE TABLE plain (id text PRIMARY KEY, payload bytea, status text, received_at timestamptz DEFAULT now());
CREATE TABLE plain_audit (id bigserial PRIMARY KEY, at timestamptz, who text, what text, reason text, message_id text);
"""
DEAD = ("UPDATE semel.inbox SET status = 'dead', due_at = NULL, attempts = 1, error_class = 'transient', "
        "error_text = 'the bank is down' WHERE consumer = 'bench'")


def payload(i):
    return f'{{"cents": {i}, "currency": "EUR", "account": "DE{i:020d}"}}'


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder

    def psql(self, *args):
        subprocess.run([self.options.psql, "-Xq", "-v", "ON_ERROR_STOP=1", "-d", self.options.url, *args], check=True,
                       stdout=subprocess.DEVNULL)

    def semel(self, *args, stdin=None):
        subprocess.run([self.options.semel, *args, "--store", self.options.url], check=True, stdin=stdin,
                       stdout=subprocess.DEVNULL)

    def timed(self, run, n):
        self.psql("-c", "CHECKPOINT")
        before = time.monotonic()
        run()
        return n / (time.monotonic() - before)

    def write(self):
        """The same lines for the program and for psql."""
        n, rows = self.options.lines, range(self.options.lines)
        with open(self.folder / "lines", "w", encoding="ascii") as out:
            out.writelines(json.dumps({"id": f"pay-{i}", "payload": payload(i)}) + "\n" for i in rows)
        with open(self.folder / "insert", "w", encoding="ascii") as out:
            for at in range(0, n, LINES):
                out.write("INSERT INTO plain (id, payload, status) VALUES "
                          + ", ".join(f"('pay-{i}', '{payload(i)}', 'waiting')" for i in rows[at:at + LINES])
                          + " ON CONFLICT DO NOTHING;\n")
        with open(self.folder / "copy", "w", encoding="ascii") as out:
            for at in range(0, n, LINES):
                out.write("COPY plain (id, payload, status) FROM stdin;\n"
                          + "".join(f"pay-{i}\t{payload(i)}\twaiting\n" for i in rows[at:at + LINES]) + "\\.\n")
        with open(self.folder / "update", "w", encoding="ascii") as out:
            for at in range(0, self.options.messages, ROWS):
                ids = "ARRAY[" + ", ".join(f"'pay-{i}'" for i in range(at, min(at + ROWS, self.options.messages))) + "]"
                out.write(f"BEGIN;\nUPDATE plain SET status = 'failed' WHERE id = ANY ({ids}) AND status = 'dead';\n"
                          "INSERT INTO plain_audit (at, who, what, reason, message_id) "
                          f"SELECT now(), 'ann', 'retry', 'ticket 811', unnest({ids});\nCOMMIT;\n")

    def empty(self):
        self.psql("-c", "TRUNCATE plain, plain_audit, semel.record, semel.selected, semel.audit, semel.selection")

    def send(self, n):
        with subprocess.Popen(["head", "-n", str(n), str(self.folder / "lines")], stdout=subprocess.PIPE) as head:
            self.semel("send", "--consumer", "bench", "--lines", stdin=head.stdout)

    def turn(self, order):
        """Messages or lines per second, by case."""
        rates = {}
        for case in order:
            self.empty()
            if case == "send":
                rates[case] = self.timed(lambda: self.send(self.options.lines), self.options.lines)
            elif case in ("insert", "copy"):
                rates[case] = self.timed(lambda of=case: self.psql("-f", str(self.folder / of)), self.options.lines)
            elif case == "update":
                self.psql("-c", "INSERT INTO plain SELECT 'pay-' || i, 'x', 'dead', now() "
                                f"FROM generate_series(0, {self.options.messages - 1}) AS i", "-c", "ANALYZE plain")
                rates[case] = self.timed(lambda: self.psql("-f", str(self.folder / "update")), self.options.messages)
            else:
                self.send(self.options.messages)
                self.psql("-c", DEAD, "-c", "VACUUM ANALYZE semel.record")
                args = ["inbox", case, "--dead", "--consumer", "bench", "--reason", "ticket 811", "--yes"]
                args += ["--rate", "0", "--no-probe"] if case == "retry" else []
                rates[case] = self.timed(lambda of=args: self.semel(*of), self.options.messages)
        return rates


def main():
    parser = argparse.ArgumentParser()
    for name in ("url", "psql", "semel", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--lines", type=int, default=200000)
    parser.add_argument("--messages", type=int, default=50000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases = ["insert", "send", "copy", "update", *list(GOALS)[1:]]
    turns, fsyncs_us, load = [], [fsync_us()], [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, pathlib.Path(folder))
        bench.semel("migrate")
        bench.psql("-c", TABLES)
        bench.semel("consumer", "set", "bench", '{"effect": "outside"}')
        bench.write()
        for turn in range(options.rounds + 1):
            turns.append(bench.turn(cases if turn % 2 else cases[::-1]))
    load.append(os.getloadavg()[0])
    fsyncs_us.append(fsync_us())
    turns = turns[1:]
    found = {"load": load, "fsync_us": [round(us, 1) for us in fsyncs_us], "lines": options.lines,
             "messages": options.messages, "turns": turns, "cases": {}}
    print(f"{'case':8} {'per second':>11} {'goal':>7} {'by hand':>9} {'ratio':>6}  lowest and highest of {len(turns)}")
    for case in cases:
        found["cases"][case] = {"per_s": round(statistics.median(turn[case] for turn in turns))}
        line = f"{case:8} {found['cases'][case]['per_s']:11,}"
        if case in GOALS:
            ratios = [turn[case] / turn[BASES[case]] for turn in turns]
            found["cases"][case] |= {"goal_per_s": GOALS[case], "baseline": BASES[case],
                                     "ratio": round(statistics.median(ratios), 3)}
            line += (f" {GOALS[case]:7,} {BASES[case]:>9} {statistics.median(ratios):6.2f}  {min(ratios):.2f} to "
                     f"{max(ratios):.2f}")
        print(line)
    print(f"a write with fsync takes {fsyncs_us[0]:.0f} us before and {fsyncs_us[1]:.0f} us after the "
          f"run; load {load[0]:.1f} and {load[1]:.1f} on {os.cpu_count()} processors")
    pathlib.Path(options.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
