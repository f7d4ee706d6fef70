#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks for calls and spellings that this project does without."""
import fnmatch
import re

import common

EVERYWHERE = ("*",)
SOURCE = ("src/*", "include/*")

# Calls: names, where they are banned, the files that may, and what is right.
CALLS = (
    ("strcpy strcat strncpy strncat stpcpy sprintf vsprintf gets", EVERYWHERE, (),
     "use semel_buf (base/str.h) or snprintf"),
    ("strtok", EVERYWHERE, (), "walk a struct semel_str"),
    ("atoi atol atoll atof strtod strtof", SOURCE, ("src/base/*",), "use semel__str_int64"),
    ("atoi atol atoll atof", ("test/*", "bench/*", "examples/*"), (), "use strtol and check its end"),
    ("alloca", EVERYWHERE, (), "use an arena (base/mem.h)"),
    ("malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf", SOURCE, ("src/base/mem.c",),
     "use semel__alloc and its kin (base/mem.h)"),
    ("rand srand random srandom drand48 rand_r", EVERYWHERE, (), "pass a struct semel_random (base/random.h)"),
    ("getrandom getentropy", SOURCE, ("src/base/random.c",), "pass a struct semel_random (base/random.h)"),
    ("time localtime gmtime ctime asctime", EVERYWHERE, (), "pass a struct semel_clock (base/clock.h)"),
    ("clock_gettime gettimeofday", SOURCE, ("src/base/clock.c", "src/base/wait.c"),
     "pass a struct semel_clock (base/clock.h)"),
    ("setjmp longjmp sigsetjmp siglongjmp", SOURCE, (), "return a status"),
    ("sleep usleep nanosleep clock_nanosleep", EVERYWHERE, ("bench/slow_fsync.c",), "wait for the condition itself"),
    ("system popen", EVERYWHERE, (), "use posix_spawn or execve with an argument vector"),
)

SPDX = "SPDX-License-Identifier: MIT"
TYPEDEF = re.compile(r"\btypedef\s+(?:const\s+)?(?:struct|union)\b[^;{]*[;{]")


def calls(report, path, where, code):
    for names, banned, exempt, right in CALLS:
        if not any(fnmatch.fnmatch(where, p) for p in banned) or any(fnmatch.fnmatch(where, p) for p in exempt):
            continue
        # Not a member: ops->free(x) and clock.time(x) are somebody else's functions.
        for match in re.finditer(r"(?<![\w.])(?<!->)(" + "|".join(names.split()) + r")\s*\(", code):
            report.add(path, code.count("\n", 0, match.start()) + 1, f"{match[1]}() is banned; {right}")


def c_file(report, path, where, text):
    source = common.Source(text)
    calls(report, path, where, source.code)
    for line in source.line_comments:
        report.add(path, line, "// comment; write /* ... */")
    for match in TYPEDEF.finditer(source.code):
        if "(*" not in match[0]:  # a callback may be a typedef, whatever it returns
            report.add(path, source.code.count("\n", 0, match.start()) + 1, "typedef of a struct; write struct tag")


def layout(report, path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line and path.name != "Makefile":
            report.add(path, number, "tab; indent with blanks")
        if line != line.rstrip():
            report.add(path, number, "trailing blank; remove it")
    if not text.endswith("\n"):
        report.add(path, text.count("\n") + 1, "no newline at the end of the file; add one")
    if SPDX not in "\n".join(text.split("\n", 3)[:3]):
        report.add(path, 1, f"no licence line; begin with {SPDX}")


def main():
    root = common.parse_root(__doc__)
    report = common.Report(root)
    for path in common.code_files(root):
        text = common.read(path)
        layout(report, path, text)
        if path.suffix in (".c", ".h"):
            c_file(report, path, path.relative_to(root).as_posix(), text)
    report.exit()


main()
