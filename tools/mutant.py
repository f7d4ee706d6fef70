#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a test program that was linked with a mutant: it must fail, and by a failed check.

usage: mutant.py PROGRAM [ARG...]
       mutant.py --of MUTANTS NAME ROOT PROGRAM [ARG...]    one of test/mutant/mutants.txt: its guard must be there
       mutant.py --sql MUTANTS NAME ROOT PYTEST ARG...      the same in SQL: the migrations are in $SEMEL_MIGRATIONS

Passes when the program exits with 1 to 98; pytest, when a test has failed. 0: nobody noticed the missing guard, unless
all tests were skipped: then this is skipped, too (77). A signal or 99 (a sanitizer) is a crash, 126 and 127 mean that
it did not start: neither shows that a check works.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import mutate


def run(argv, env=None):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          check=False, env=env)
    sys.stdout.write(done.stdout[-4000:])
    return done


def judge(code, failed):
    if failed:
        print(f"noticed: exit code {code}")
        return 0
    print("not noticed" if code == 0 else f"crashed or did not run: exit code {code}")
    return 1


def plain(argv):
    done = run(argv)
    if done.returncode == 0 and "[  SKIPPED ]" in done.stdout and "[  PASSED  ] 0 test(s)" in done.stdout:
        return 77
    return judge(done.returncode, 1 <= done.returncode <= 98)


def need_guard(mutant, root):
    if mutate.mutated(mutant, (pathlib.Path(root) / mutant["file"]).read_text(encoding="utf-8")) is None:
        sys.exit(mutate.missing(mutant))


def by_sql(mutant, root, argv):
    with tempfile.TemporaryDirectory(prefix="semel-mutant-") as out:
        mutate.sql(mutant, pathlib.Path(root) / "sql" / "postgres", out)
        done = run(argv, {**os.environ, "SEMEL_MIGRATIONS": out})
    if "skipped" in done.stdout and done.returncode == 0 and "passed" not in done.stdout:
        return 77
    return judge(done.returncode, done.returncode == 1 and re.search(r"\b\d+ failed", done.stdout) is not None)


def main():
    argv = sys.argv[1:]
    if len(argv) > 4 and argv[0] in ("--of", "--sql"):
        mutant = mutate.read(argv[1])[argv[2]]
        print(f"{mutant['name']}: {mutant['breaks']}")
        need_guard(mutant, argv[3])
        sys.exit(by_sql(mutant, argv[3], argv[4:]) if argv[0] == "--sql" else plain(argv[4:]))
    if not argv:
        sys.exit(__doc__)
    sys.exit(plain(argv))


main()
