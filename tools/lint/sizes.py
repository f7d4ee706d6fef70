#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the length of files, functions and lines, and the size of the inbox and outbox of the clients."""
import re

import common

FILE_LINES = 1500
FUNCTION_LINES = 60
COLUMNS = 120
# Lines of code, so many and no more: without comments, docstrings, blank lines and declarations of types in files of
# their own. The adapters and the middleware of idempotency keys, one file for each framework, are counted apart.
CLIENTS = (("clients/node", 399, ("driver.js", "index.js", "inbox.js", "message.js")),
           ("clients/python/semel", 399, ("inbox.py", "links.py", "message.py")))


def code_lines(text):
    lines = re.sub(r'^ *"""[\s\S]*?"""$', "", text, flags=re.MULTILINE).splitlines()
    return sum(1 for line in lines if line.strip() and not line.strip().startswith(("#", "//")))


def functions(code):
    """(name, line of the opening brace, lines from brace to brace): both braces stand in column 0."""
    lines = code.split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start is not None:
            head = " ".join(lines[max(0, start - 6):start - 1])
            names = re.findall(r"(\w+)\s*\(", head.rpartition(";")[2].rpartition("}")[2])
            yield names[0] if names else "?", start, number - start + 1
            start = None


def main():
    root = common.parse_root(__doc__)
    report = common.Report(root)
    for path in common.code_files(root):
        text = common.read(path)
        lines = text.splitlines()
        if len(lines) > FILE_LINES:
            report.add(path, len(lines), f"file of {len(lines)} lines: are there two stories in it?")
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS:
                report.add(path, number, f"line of {len(line)} columns; at most {COLUMNS}: break it")
        if path.suffix == ".c" or path.suffix == ".h":
            for name, number, length in functions(common.Source(text).code):
                if length > FUNCTION_LINES:
                    report.add(path, number, f"{name}() has {length} lines; at most {FUNCTION_LINES}: split it")
    for folder, most, names in CLIENTS:
        there = [root / folder / name for name in names if (root / folder / name).exists()]
        count = sum(code_lines(common.read(path)) for path in there)
        if count > most:
            report.add(there[-1], 1, f"{folder} has {count} lines of code; at most {most}")
    report.exit()


main()
