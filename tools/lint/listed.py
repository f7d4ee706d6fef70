#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that the build and the folders agree: a C or SQL file that no meson.build names is never built, a test never
run; a listed name without its file is a mistake too."""
import re

import common

PLACES = (("src", ".c"), ("test", ".c"), ("sql", ".sql"))
# The meson.build of a folder lists names without the ending, and a test's or fuzzer's without its prefix. One of a
# folder above lists paths: 'sqlite/001_inbox'.
PREFIXES = ("", "test_", "fuzz_")
LISTS = re.compile(r"^ *\w+_(?:names|tests|targets|migrations)\s*\+?=\s*(?:files\()?[\[{](.*?)[\]}]",
                   re.MULTILINE | re.DOTALL)
WORD = re.compile(r"'([^'\n]*)'")
# A file that is named with its ending, wherever it stands; meson itself notices when it is not there.
WHOLE = re.compile(r"'([^'\n]*\.(?:c|sql))'")


def listed(meson):
    """(name, line) for each name in a list of this meson.build."""
    text = re.sub(r"#.*", "", common.read(meson))
    for match in LISTS.finditer(text):
        for word in WORD.finditer(match[1]):
            yield word[1], text.count("\n", 0, match.start(1) + word.start()) + 1


def candidates(meson, name, suffix):
    path = meson.parent / name
    return {path.with_name(prefix + path.name + ("" if name.endswith(suffix) else suffix)) for prefix in PREFIXES}


def main():
    root = common.parse_root(__doc__)
    report = common.Report(root)
    for folder, suffix in PLACES:
        files = list(common.walk(root / folder))
        there = {path for path in files if path.suffix == suffix}
        named = set()
        for meson in (path for path in files if path.name == "meson.build"):
            for name, line in listed(meson):
                found = candidates(meson, name, suffix) & there
                named |= found
                if not found:
                    report.add(meson, line, f"lists {name}, but there is no such {suffix} file; remove it")
            named |= {meson.parent / word[1] for word in WHOLE.finditer(common.read(meson))}
        for path in sorted(there - named):
            report.add(path, 1, "no meson.build lists it; add it, or it is never built")
    report.exit()


main()
