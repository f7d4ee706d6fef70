#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that no migration changes once it was released: a database that has it would never see the change.

sql/released/VERSION.sums has the SHA-256 of each migration of a release, as sha256sum writes it. `--write` makes that
file for the version of meson.build, as long as that has no tag.
"""
import hashlib
import pathlib
import re
import subprocess
import sys

import common

MIGRATIONS = ("sql/postgres/[0-9]*.sql", "sql/sqlite/[0-9]*.sql")


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(root, report):
    for sums in sorted((root / "sql/released").glob("*.sums")):
        for number, line in enumerate(common.read(sums).splitlines(), 1):
            wanted, _, name = line.partition("  ")
            path = root / name
            if not name or not path.is_file():
                report.add(sums, number, f"{name or line} was released with {sums.stem}, and is gone; bring it back")
            elif digest(path) != wanted:
                report.add(path, 1, f"was released with {sums.stem}: add the next number instead (as long as "
                                    f"{sums.stem} has no tag: tools/lint/released.py --write)")


def write(root):
    version = re.search(r"version: '([^']+)'", common.read(root / "meson.build"))[1]
    if subprocess.run(["git", "-C", root, "tag", "-l", f"v{version}"], capture_output=True, check=True).stdout:
        sys.exit(f"{version} was released: its migrations stay as they are; add the next number instead")
    file = root / "sql/released" / f"{version}.sums"
    file.parent.mkdir(exist_ok=True)
    paths = sorted(path for pattern in MIGRATIONS for path in root.glob(pattern))
    file.write_text("".join(f"{digest(path)}  {path.relative_to(root)}\n" for path in paths), encoding="utf-8")


def main():
    if "--write" in sys.argv[1:]:
        write(pathlib.Path(__file__).resolve().parents[2])
        return
    root = common.parse_root(__doc__)
    report = common.Report(root)
    check(root, report)
    report.exit()


main()
