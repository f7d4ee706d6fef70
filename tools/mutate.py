#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mutants by text: a guard of a source file, and what stands in its place (test/mutant/mutants.txt).

usage: mutate.py list MUTANTS               one line per mutant: NAME FILE PROGRAM TEST LENGTH
       mutate.py apply MUTANTS NAME FILE OUT    FILE with the guard replaced
       mutate.py sql MUTANTS NAME FOLDER OUT    the migrations of FOLDER, copied to the folder OUT, one of them mutated
       mutate.py statements MUTANTS NAME OUT COMPILER NAMES FILE.sql...    the statements (tools/compile_sql.py) of the
                                            mutant's database as C, one file of them mutated
       mutate.py defined SYMBOL FOLDER...   the C files of the folders that have the symbol, for mutants by #ifdef

A mutant, up to the next one:

    mutant NAME           lower case
    breaks WHAT           for people
    in FILE               from the top of the checkout
    by PROGRAM TEST       who must notice; `by long PROGRAM TEST`: in the long run only
    <<<<
    the guard, as it stands there once
    ====
    what is there instead
    >>>>

When the guard is not there, `apply` writes the file as it is and says so, so that the build goes on; the mutant is
then not noticed, and tools/mutant.py says why.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SHAPE = re.compile(r"mutant (?P<name>[a-z0-9_]+)\nbreaks (?P<breaks>[^\n]+)\nin (?P<file>\S+)\n"
                   r"by (?P<long>long )?(?P<program>\w+) (?P<test>\w+)\n"
                   r"<<<<\n(?P<guard>.*?)\n====\n(?P<instead>.*?)\n?>>>>\n", re.DOTALL)
BETWEEN = re.compile(r"(?:#[^\n]*\n|\n)*")


def read(path):
    """The mutants of the file by their names."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    mutants, at = {}, BETWEEN.match(text).end()
    while at < len(text):
        match = SHAPE.match(text, at)
        if match is None or match["name"] in mutants:
            sys.exit(f"{path}: no mutant, or one of that name again: {text[at:at + 60]!r}")
        mutants[match["name"]] = match.groupdict()
        at = BETWEEN.match(text, match.end()).end()
    return mutants


def mutated(mutant, text):
    """The text with the guard replaced; None: it is not there, or more than once."""
    if text.count(mutant["guard"]) != 1:
        return None
    return text.replace(mutant["guard"], mutant["instead"])


def missing(mutant):
    return f"the guard of the mutant {mutant['name']} does not stand once in {mutant['file']}: see mutants.txt"


def apply(mutant, source, out):
    text = pathlib.Path(source).read_text(encoding="utf-8")
    changed = mutated(mutant, text)
    if changed is None:
        print(missing(mutant), file=sys.stderr)
    line = f'#line 1 "{source}"\n' if source.endswith(".c") else ""
    pathlib.Path(out).write_text(line + (changed or text), encoding="utf-8")


def sql(mutant, folder, out):
    """False: the guard is not there."""
    name = pathlib.Path(mutant["file"]).name
    for path in pathlib.Path(folder).glob("[0-9]*.sql"):
        shutil.copy(path, out)
    changed = mutated(mutant, (pathlib.Path(folder) / name).read_text(encoding="utf-8"))
    if changed is not None:
        (pathlib.Path(out) / name).write_text(changed, encoding="utf-8")
    return changed is not None


def statements(mutant, out, compiler, names, files):
    """As `apply`: a guard that is not there leaves the statements as they are."""
    dialect = pathlib.Path(mutant["file"]).parent.name
    with tempfile.TemporaryDirectory(prefix="semel-mutant-") as folder:
        copies, outputs = [], {}
        for path in map(pathlib.Path, files):
            copy = pathlib.Path(folder, path.parent.name, path.name)
            copy.parent.mkdir(exist_ok=True)
            if path.match(mutant["file"]):
                apply(mutant, str(path), copy)
            else:
                shutil.copy(path, copy)
            copies.append(copy)
            outputs[copy.parent.name] = out if copy.parent.name == dialect else copy.parent.with_suffix(".c")
        pairs = [f"{name}={output}" for name, output in outputs.items()]
        subprocess.run([sys.executable, compiler, pathlib.Path(folder, "ids.h"), *pairs, names, *copies], check=True)


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "list":
        for name, mutant in read(sys.argv[2]).items():
            print(name, mutant["file"], mutant["program"], mutant["test"], "long" if mutant["long"] else "short")
    elif len(sys.argv) == 6 and sys.argv[1] == "apply":
        apply(read(sys.argv[2])[sys.argv[3]], sys.argv[4], sys.argv[5])
    elif len(sys.argv) == 6 and sys.argv[1] == "sql":
        sys.exit(0 if sql(read(sys.argv[2])[sys.argv[3]], sys.argv[4], sys.argv[5]) else 1)
    elif len(sys.argv) >= 8 and sys.argv[1] == "statements":
        statements(read(sys.argv[2])[sys.argv[3]], *sys.argv[4:7], sys.argv[7:])
    elif len(sys.argv) >= 4 and sys.argv[1] == "defined":
        word = re.compile(rf"\b{re.escape(sys.argv[2])}\b")
        for path in sorted(path for folder in sys.argv[3:] for path in pathlib.Path(folder).rglob("*.c")):
            if word.search(path.read_text(encoding="utf-8")):
                print(path)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
