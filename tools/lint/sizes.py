#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the length of files, functions and lines."""
import re

import common

FILE_LINES = 1500
FUNCTION_LINES = 60
COLUMNS = 120


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
    report.exit()


main()
