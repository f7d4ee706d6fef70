#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the shared library shows to the linker is what the public header marks, no more and no less."""
import re
import subprocess
import sys

NAME = re.compile(r"\bSEMEL_API\b[^;]*?\b(semel_\w+)\s*\(")


def main():
    library, *headers = sys.argv[1:]
    marked = set()
    for header in headers:
        with open(header, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
        marked |= set(NAME.findall(text))
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    shown = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    tools = ("__asan", "__odr_asan", "__gcov", "__start___sancov", "__stop___sancov", "_init", "_fini")
    shown = {name for name in shown if not name.startswith(tools)}
    for name in sorted(marked - shown):
        print(f"{name} is marked SEMEL_API, but {library} does not have it")
    for name in sorted(shown - marked):
        print(f"{name} is visible in {library}, but not marked SEMEL_API")
    if not marked:
        print("no function is marked SEMEL_API at all")
    return 1 if marked != shown or not marked else 0


sys.exit(main())
