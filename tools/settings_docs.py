#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the tables of docs/settings.md from the table of the settings in the program `semel`.

usage: settings_docs.py SEMEL [--check]

The table is what `SEMEL init --json` prints. Between a line that begins a part and the one that ends it everything is
generated; the rest of the page is written by hand. --check changes nothing and fails when something would change.
"""
import json
import pathlib
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "settings.md"
ROUTE, OUTBOX, GATEWAY = "routes.NAME.", "outboxes.NAME.", "gateways.NAME."


def cell(text):
    return text.replace("|", "\\|")


def default(setting):
    if setting["required"]:
        return "required"
    if setting["default"] is None:
        return ""
    return setting["default"] if setting["computed"] else f"`{setting['default']}`"


def rows(settings, cut):
    yield "| setting | value | default | what it says |"
    yield "|---|---|---|---|"
    for setting in settings:
        name = setting["path"][len(cut):]
        also = f", or `{name.split('.')[-1]}_file`" if setting["secret"] else ""
        yield f"| `{name}`{also} | {cell(setting['type'])} | {cell(default(setting))} | {cell(setting['help'])} |"


def part(name, settings):
    """The settings of a part, and what all their paths begin with."""
    if name == "file":
        return [s for s in settings if not s["path"].startswith((ROUTE, OUTBOX, GATEWAY))], ""
    if name == "route":
        return [s for s in settings if s["path"].startswith(ROUTE) and s["choice"] is None], ROUTE
    if name == "outbox":
        return [s for s in settings if s["path"].startswith(OUTBOX) and s["choice"] is None], OUTBOX
    if name == "gateway":
        return [s for s in settings if s["path"].startswith(GATEWAY)], GATEWAY
    group, choice = name.split()
    cut = f"{OUTBOX if group == 'to' else ROUTE}{group}."
    return [s for s in settings if s["path"].startswith(cut) and s["choice"] == choice], cut


def names(settings):
    choices = dict.fromkeys((s["path"].split(".")[2], s["choice"]) for s in settings if s["choice"])
    return ["file", "route", "outbox", "gateway", *(" ".join(choice) for choice in choices)]


def pieces(tables):
    """Each part's name and lines."""
    settings = tables["settings"]
    for name in names(settings):
        yield name, list(rows(*part(name, settings)))
    if tables["kafka_properties"]:  # none where the program was built without Kafka
        yield "kafka properties", ["- `" + "`, `".join(tables["kafka_properties"]) + "`"]


def filled(text, tables):
    for name, lines in pieces(tables):
        first, end = f"<!-- generated: {name} -->\n", "<!-- end -->\n"
        before, found, rest = text.partition(first)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            sys.exit(f"docs/settings.md has no part between '{first.strip()}' and '{end.strip()}'")
        text = before + first + "\n" + "\n".join(lines) + "\n\n" + end + after
    return text


def main():
    if len(sys.argv) not in (2, 3) or (len(sys.argv) == 3 and sys.argv[2] != "--check"):
        sys.exit(__doc__)
    run = subprocess.run([sys.argv[1], "init", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    text = PAGE.read_text(encoding="utf-8")
    new = filled(text, json.loads(run.stdout))
    if new == text:
        return 0
    if len(sys.argv) == 3:
        print(f"docs/settings.md is not as the program says; run tools/settings_docs.py {sys.argv[1]}")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


sys.exit(main())
