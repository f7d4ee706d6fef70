#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks docs/requirements.md: each row names tests that exist and that name the requirement.

A row is `| I3 | text | test/unit/test_x.c: test_name, other_name; test/sim/sim.c |`; `-` or `later`, with any
remark behind it, says that there is no proof yet. A test names its requirement in its body, in the comment or
decorator right above it, or on a line that also has the test's name; a file without names must mention it anywhere.
"""
import re

import common

NUMBER = re.compile(r"[A-Z]{1,3}\d+[a-z]?")
OPEN = re.compile(r"-(?:\s.*)?|later\b.*", re.IGNORECASE | re.DOTALL)
FILE = re.compile(r"([\w./-]+/[\w.-]+)(?:\s*:\s*(.+))?", re.DOTALL)


def proofs(cell):
    """(file, test) for each test of the cell; test is None for a whole file; file is None for what is neither."""
    current = None
    for part in re.split(r"[,;]|<br\s*/?>", cell.replace("`", "")):
        part = part.strip()
        match = FILE.fullmatch(part)
        if match is not None:
            current = match[1]
            yield current, match[2]
        elif part:
            yield current, part


def region(text, test):
    """The lines that belong to a test, from its comment to its end; None when there is no such test."""
    lines = text.split("\n")
    head = re.compile(r"^(?:[\w*][\w* ]*\b)?" + re.escape(test) + r"\s*\(")
    for number, line in enumerate(lines):
        if not head.match(line) or line.rstrip().endswith(";"):
            continue
        first, last = number, number + 1
        while first > 0 and re.match(r"\s*(?:/?\*|\*|#|@)", lines[first - 1]):
            first -= 1
        while last < len(lines) and not re.match(r"\}|def |@", lines[last]):
            last += 1
        same_line = [other for other in lines if re.search(rf"\b{re.escape(test)}\b", other)]
        return "\n".join(lines[first:last + 1] + same_line)
    return None


def row_fault(root, number, file, test):
    if file is None:
        return f"{number}: '{test}' stands without a file; write test/...: {test}"
    path = root / file
    if not path.is_file():
        return f"{number}: there is no file {file}; name the test that proves it, or write 'later'"
    text = common.read(path)
    scope = text if test is None else region(text, test)
    if scope is None:
        return f"{number}: {file} has no test {test}; correct the name"
    if not re.search(rf"\b{number}\b", scope):
        return f"{number}: {test or file} in {file} does not name {number}; add /* {number} */ where it is proved"
    return None


def main():
    root = common.parse_root(__doc__)
    report = common.Report(root)
    page = root / "docs" / "requirements.md"
    seen = {}
    lines = common.read(page).split("\n") if page.is_file() else []
    for line, text in enumerate(lines, 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", text.strip().strip("|"))]
        if not text.strip().startswith("|") or NUMBER.fullmatch(cells[0].strip("*` ")) is None:
            continue
        number = cells[0].strip("*` ")
        if number in seen:
            report.add(page, line, f"{number} stands here and in line {seen[number]}; keep one row")
        seen[number] = line
        if len(cells) < 3:
            report.add(page, line, f"{number} has {len(cells)} columns; write | number | text | tests |")
            continue
        if OPEN.fullmatch(cells[-1].strip("` ")):
            continue
        if not cells[-1]:
            report.add(page, line, f"{number} has no tests; name them, or write 'later'")
        for file, test in proofs(cells[-1]):
            fault = row_fault(root, number, file, test)
            if fault is not None:
                report.add(page, line, fault)
    if not seen:
        report.add(page, 1, "no requirement found; write rows | I3 | text | test/...: name |")
    report.exit()


main()
