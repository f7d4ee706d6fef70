#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the parts of docs/cli.md and man/semel.1.scd that follow from the tables of the program `semel`.

usage: cli_docs.py SEMEL [--check]

The tables are what `SEMEL help --json` prints. Between a line that begins a part and the one that ends it everything is
generated; the rest of both files is written by hand. --check changes nothing and fails when something would change.
"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def spelled(option):
    letter = f"-{option['letter']}, " if option["letter"] else ""
    return letter + "--" + option["name"], option["value"] or ""


def markdown_commands(tables):
    for command in tables["commands"]:
        yield f"### semel {command['name']}"
        yield ""
        yield command["summary"][0].upper() + command["summary"][1:] + "."
        if command["group"]:
            yield ""
            continue
        yield ""
        yield f"    semel {command['name']} [options] {command['operands']}".rstrip()
        yield ""
        yield "| option | meaning |"
        yield "|---|---|"
        for option in command["options"]:
            name, value = spelled(option)
            meaning = option["help"].replace("|", "\\|")
            what = (name + " " + value).strip().replace("|", "\\|")
            yield f"| `{what}` | {meaning} |"
        yield ""
        if command["help"]:
            yield "```"
            yield from command["help"].split("\n")
            yield "```"
            yield ""


def markdown_exits(tables):
    yield "| code | meaning |"
    yield "|---|---|"
    for row in tables["exit_codes"]:
        yield f"| {row['code']} | {row['text']} |"


def plain(text):
    """Text of scdoc without its markup."""
    return re.sub(r"([\\_*<>#`~])", r"\\\1", text)


def man_commands(tables):
    for command in tables["commands"]:
        yield f"## semel {command['name']}"
        yield ""
        yield plain(command["summary"][0].upper() + command["summary"][1:] + ".")
        yield ""
        if command["group"]:
            continue
        yield f"*semel {command['name']}* [options] {plain(command['operands'])}".rstrip()
        yield ""
        for option in command["options"]:
            name, value = spelled(option)
            yield f"*{name}*" + (f" _{plain(value)}_" if value else "")
            yield "\t" + plain(option["help"])
            yield ""
        if command["help"]:
            yield "```"
            yield from command["help"].split("\n")
            yield "```"
            yield ""


def man_exits(tables):
    for row in tables["exit_codes"]:
        yield f"*{row['code']}*"
        yield "\t" + plain(row["text"])
        yield ""


PARTS = (
    ("docs/cli.md", "<!-- generated: {} -->", "<!-- end -->", {"commands": markdown_commands, "exits": markdown_exits}),
    ("man/semel.1.scd", "; generated: {}", "; end", {"commands": man_commands, "exits": man_exits}),
)


def filled(text, begin, end, parts, tables):
    for name, lines in parts.items():
        first = begin.format(name) + "\n"
        before, found, rest = text.partition(first)
        _, closed, after = rest.partition(end + "\n")
        if not found or not closed:
            sys.exit(f"there is no part between '{first.strip()}' and '{end}'")
        body = "\n".join(lines(tables)).strip("\n")
        text = before + first + "\n" + body + "\n\n" + end + "\n" + after
    return text


def main():
    if len(sys.argv) not in (2, 3) or (len(sys.argv) == 3 and sys.argv[2] != "--check"):
        sys.exit(__doc__)
    run = subprocess.run([sys.argv[1], "help", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    tables = json.loads(run.stdout)
    old = False
    for path, begin, end, parts in PARTS:
        text = (ROOT / path).read_text(encoding="utf-8")
        new = filled(text, begin, end, parts, tables)
        if new != text and len(sys.argv) == 3:
            print(f"{path} is not as the program says; run tools/cli_docs.py {sys.argv[1]}")
            old = True
        elif new != text:
            (ROOT / path).write_text(new, encoding="utf-8")
    return 1 if old else 0


sys.exit(main())
