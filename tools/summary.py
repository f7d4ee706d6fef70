#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sums the results of test runs; the last line is 'N passed, N failed', and ', N skipped' if any.

usage: summary.py LOG.json...   each line of a log is a JSON object with "name" and "result", as meson writes it, and
perhaps "stdout". A test that was skipped within a program that passed counts as skipped, too, and is named.
Exits with 1 when a test failed, when none passed, or when a log cannot be read.
"""
import json
import pathlib
import re
import sys

PASSED = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP"}
CMOCKA = re.compile(r"^\[  SKIPPED \] (\w+)$", re.MULTILINE)
PYTEST = re.compile(r"^SKIPPED \[(\d+)\] (.*)$", re.MULTILINE)


def results(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        yield entry["name"], entry["result"], entry.get("stdout") or ""


def skipped_within(output):
    """What a program left out: (how many, which)."""
    for name in sorted(set(CMOCKA.findall(output))):
        yield 1, name
    for count, which in PYTEST.findall(output):
        yield int(count), which


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for path in map(pathlib.Path, sys.argv[1:]):
        for name, result, output in results(path):
            outcome = "passed" if result in PASSED else "skipped" if result in SKIPPED else "failed"
            counts[outcome] += 1
            if outcome != "passed":
                print(f"{outcome}: {path.stem}: {name} ({result})")
            if outcome == "passed":
                for count, which in skipped_within(output):
                    counts["skipped"] += count
                    print(f"skipped: {path.stem}: {name}: {which}")
    line = f"{counts['passed']} passed, {counts['failed']} failed"
    if counts["skipped"]:
        line += f", {counts['skipped']} skipped"
    print(line)
    return 1 if counts["failed"] or not counts["passed"] else 0


sys.exit(main())
