#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks test/mutant/mutants.txt: each guard stands once in its file, and the test that must notice is there. Most
mutants run in the long tests only; without this they would be noticed there to have gone out of date."""
import sys

import common

sys.path.insert(0, str(common.pathlib.Path(__file__).resolve().parents[1]))
import mutate  # noqa: E402


def main():
    root = common.parse_root(__doc__)
    report = common.Report(root)
    path = root / "test" / "mutant" / "mutants.txt"
    tests = "".join(common.read(file) for file in common.walk(root / "test") if file.suffix in (".c", ".py"))
    for name, mutant in (mutate.read(path) if path.exists() else {}).items():
        line = common.read(path).split(f"mutant {name}\n")[0].count("\n") + 1
        guarded = root / mutant["file"]
        if not guarded.exists() or mutate.mutated(mutant, common.read(guarded)) is None:
            report.add(path, line,
                       f"the guard of {name} does not stand once in {mutant['file']}; write it as it is there")
        if f"{mutant['test']}(" not in tests:
            report.add(path, line, f"no test is named {mutant['test']}; name the one that must notice {name}")
    report.exit()


main()
