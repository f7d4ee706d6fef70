#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a test program that was linked with a mutant: it must fail, and by a failed check.

usage: mutant.py PROGRAM [ARG...]
Passes when the program exits with 1 to 98. 0: nobody noticed the missing guard. A signal or 99 (a sanitizer) is a
crash, 126 and 127 mean that it did not start: neither shows that a check works.
"""
import subprocess
import sys

run = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                     check=False)
sys.stdout.write(run.stdout[-4000:])
if 1 <= run.returncode <= 98:
    print(f"noticed: exit code {run.returncode}")
    sys.exit(0)
print("not noticed" if run.returncode == 0 else f"crashed or did not run: exit code {run.returncode}")
sys.exit(1)
