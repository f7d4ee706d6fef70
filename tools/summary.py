#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sums the results of test runs; the last line is 'N passed, N failed', and ', N skipped' if any.

usage: summary.py LOG.json...   each line of a log is a JSON object with "name" and "result", as meson writes it
Exits with 1 when a test failed, when none passed, or when a log cannot be read.
"""
import json
import pathlib
import sys

PASSED = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP"}


def results(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        yield entry["name"], entry["result"]


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for path in map(pathlib.Path, sys.argv[1:]):
        for name, result in results(path):
            outcome = "passed" if result in PASSED else "skipped" if result in SKIPPED else "failed"
            counts[outcome] += 1
            if outcome != "passed":
                print(f"{outcome}: {path.stem}: {name} ({result})")
    line = f"{counts['passed']} passed, {counts['failed']} failed"
    if counts["skipped"]:
        line += f", {counts['skipped']} skipped"
    print(line)
    return 1 if counts["failed"] or not counts["passed"] else 0


sys.exit(main())
