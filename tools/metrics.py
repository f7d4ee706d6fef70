#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints how large the rooms are, and how far their functions are known.

usage: tools/metrics.py [--list]   --list: also the functions that only siblings, or only their own room, use

A function is exported when it is defined in a .c file of src/ and not static. Siblings are the files of a room whose
names begin with the same word (pg_admit.c, pg_tx.c). Public functions (include/semel) count as used elsewhere.
"""
import collections
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lint"))
import common  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
APART = ("demo", "bench")  # rooms that are no product: their lines are summed by themselves
WORD = re.compile(r"\b[A-Za-z_]\w*\b")
HEAD = re.compile(r"^(?!static\b|typedef\b|struct \w+ \{|extern\b|#|\s|\}|/)[\w\s\*]*?\b(\w+)\(", re.MULTILINE)


def family(path):
    return path.parent.name, re.split(r"[_.]", path.name)[0]


def defined(code):
    """The functions that this text defines for others: a head in column 0, an opening brace in column 0 behind it."""
    for match in HEAD.finditer(code):
        rest = code[match.end():]
        brace, semicolon = rest.find("\n{"), rest.find(";")
        if brace >= 0 and (semicolon < 0 or brace < semicolon):
            yield match[1]


def main():
    lines, files = collections.Counter(), collections.Counter()
    words, homes = {}, {}
    for path in common.walk(ROOT / "src"):
        if path.suffix not in (".c", ".h"):
            continue
        text = common.read(path)
        lines[path.parent.name] += text.count("\n")
        files[path.parent.name] += 1
        code = common.Source(text).code
        if path.suffix == ".c":
            words[path] = set(WORD.findall(code))
            for name in defined(code):
                homes[name] = path
    public = set()
    for path in common.walk(ROOT / "include"):
        lines["include"] += common.read(path).count("\n")
        files["include"] += 1
        public |= set(WORD.findall(common.read(path)))
    users = collections.defaultdict(set)
    for path, there in words.items():
        for name in there & homes.keys():
            users[name].add(path)
    sibling, room, nobody = [], [], []
    for name, home in homes.items():
        others = users[name] - {home}
        if name in public or name == "main":
            continue
        if not others:
            nobody.append(name)
        elif all(family(path) == family(home) for path in others):
            sibling.append(name)
        elif all(path.parent == home.parent for path in others):
            room.append(name)
    for name in sorted(lines):
        print(f"{name:<10}{lines[name]:>8} lines{files[name]:>6} files")
    product = sum(n for name, n in lines.items() if name not in APART)
    print(f"{'product':<10}{product:>8} lines; with {' and '.join(APART)} {sum(lines.values())}")
    print(f"exported functions: {len(homes)}; used by siblings only: {len(sibling)}; by siblings or their own room "
          f"only: {len(sibling) + len(room)}; by no file of src but their own: {len(nobody)}")
    by_family = collections.Counter("/".join(family(homes[name])) for name in sibling)
    print("siblings only: " + ", ".join(f"{name} {n}" for name, n in by_family.most_common(12)))
    if sys.argv[1:] == ["--list"]:
        for title, names in (("siblings", sibling), ("room", room), ("nobody", nobody)):
            for name in sorted(names):
                print(f"{title:<10}{homes[name].relative_to(ROOT)}: {name}")


main()
