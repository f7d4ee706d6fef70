#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs clang-format, clang-tidy or cppcheck over the C files.

usage: external.py format [--fix] | tidy | cppcheck   [--root DIR] [--build DIR]
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

import common

PARALLEL = min(4, os.cpu_count() or 1)


def tool(name):
    if shutil.which(name) is None:
        sys.exit(f"{name} is not installed; run tools/setup test")
    return name


def clang_format(options):
    files = [str(path.relative_to(options.root)) for path in common.c_files(options.root)]
    style = [tool("clang-format-14"), "--style=file"]
    if options.fix:
        return subprocess.call([*style, "-i", *files], cwd=options.root)
    run = subprocess.run([*style, "--dry-run", "-Werror", *files], cwd=options.root, stderr=subprocess.PIPE,
                         text=True, check=False)
    places = re.findall(r"^(.+?):(\d+):\d+: ", run.stderr, re.MULTILINE)
    for name, line in dict(reversed(places)).items():  # the first place of each file
        print(f"{name}:{line}: not as clang-format writes it; run make format")
    if run.returncode != 0 and not places:
        print(run.stderr, end="")
    return run.returncode


def clang_tidy(options):
    if not (options.build / "compile_commands.json").is_file():
        sys.exit(f"{options.build} has no compile_commands.json; run tools/configure clang")
    tidy = tool("clang-tidy-14")

    def one(path):
        return subprocess.run([tidy, "--quiet", "-p", str(options.build), str(path)], cwd=options.root,
                              capture_output=True, text=True, check=False)

    files = [path for path in common.c_files(options.root, ["src"]) if path.suffix == ".c"]
    code = 0
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        for run in pool.map(one, files):
            if run.returncode != 0:
                print(re.sub(r"^(\.\./)+", "", run.stdout, flags=re.MULTILINE) or run.stderr, end="")
                code = 1
    return code


def cppcheck(options):
    return subprocess.call([tool("cppcheck"), "--enable=warning,portability,performance", "--error-exitcode=1",
                            "--inline-suppr", "--std=c11", "--library=posix", "--library=gnu", "--quiet",
                            f"-j{PARALLEL}", "-Iinclude", "-Isrc", f"-I{options.build / 'src'}", "-DSEMEL_POINTS=1",
                            "src"],
                           cwd=options.root)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("format", "tidy", "cppcheck"))
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", type=pathlib.Path)
    options = parser.parse_args()
    options.build = options.build or options.root / "build" / "clang"
    return {"format": clang_format, "tidy": clang_tidy, "cppcheck": cppcheck}[options.what](options)


sys.exit(1 if main() else 0)
