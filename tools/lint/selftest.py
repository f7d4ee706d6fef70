#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Shows that every lint check can fail: each is run on a small good project, which must pass, and then with one
fault after the other, each of which must be reported."""
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
HEAD = "/* SPDX-License-Identifier: MIT */\n"

GOOD = {
    "src/base/mem.c": HEAD + '#include "base/mem.h"\n\n#include <stdlib.h>\n\n'
                      "void semel__free(void *p)\n{\n    free(p);\n}\n",
    "src/base/mem.h": HEAD + "#ifndef M\n#define M\nvoid semel__free(void *p);\n#endif\n",
    "src/base/meson.build": "# SPDX-License-Identifier: MIT\nbase_names = ['mem']\n",
    "src/core/note.c": HEAD + '/* malloc(1) and "core/x.c" in a comment */\n'
                       'const char *const semel__note = "free(p) // \\"";\n'
                       'const char *const semel__examples = "positions_move sqs permanent_max";\n',
    "src/core/meson.build": "# SPDX-License-Identifier: MIT\ncore_names = ['note']\n",
    "test/unit/test_mem.c": HEAD + "/* I1 */\nstatic void free_accepts_null(void **state)\n"
                            "{\n    semel__free(*state);\n}\n",
    "test/unit/meson.build": "# SPDX-License-Identifier: MIT\nunit_tests = [\n  'mem',\n]\n",
    "docs/requirements.md": "| # | what | proof |\n|---|---|---|\n"
                            "| I1 | a | test/unit/test_mem.c: free_accepts_null |\n| I2 | b | later |\n",
    "sql/meson.build": "# SPDX-License-Identifier: MIT\nsqlite_migrations = ['sqlite/001_inbox.sql']\n",
    "sql/sqlite/001_inbox.sql": "-- SPDX-License-Identifier: MIT\n",
    "sql/released/0.1.0.sums": hashlib.sha256(b"-- SPDX-License-Identifier: MIT\n").hexdigest()
                               + "  sql/sqlite/001_inbox.sql\n",
}


MUTANT = ("mutant no_check\nbreaks all\nin src/base/mem.c\nby mem nobody_notices\n"
          "<<<<\nif (checked)\n====\nif (true)\n>>>>\n")


def c(body):
    return HEAD + body


# check, file, its text, what the report must say
BAD = [
    ("rooms", "src/base/x.c", c('#include "core/row.h"\n'), "src/base/x.c:2: base includes core/row.h"),
    ("rooms", "src/core/x.c", c('#include "store/sqlite.h"\n'), "core includes store/sqlite.h"),
    ("rooms", "src/store/x.c", c('#include "core/inbox.h"\n'), "store includes core/inbox.h"),
    ("rooms", "src/store/mem.c", c("#include <sqlite3.h>\n"), "only src/store/sqlite* and"),
    ("rooms", "src/core/x.c", c("#include <openssl/evp.h>\n"), "only src/base/* and"),
    ("rooms", "src/core/x.c", c('#include "row.h"\n'), "name the room"),
    ("rooms", "src/attic/x.c", c('#include "base/mem.h"\n'), "room attic is unknown"),
    ("rooms", "include/semel/x.h", c("#include <stdio.h>\n"), "a public header includes stdio.h"),
    ("rooms", "test/unit/x.c", c('#include "base/mem.c"\n'), "link with it instead"),
    ("banned", "src/core/x.c", c("void f(char *p)\n{\n    strcpy(p, p);\n}\n"), "src/core/x.c:4: strcpy() is banned"),
    ("banned", "src/core/x.c", c("int f(void)\n{\n    return atoi(\"1\");\n}\n"), "atoi() is banned"),
    ("banned", "src/core/x.c", c("void f(void *p)\n{\n    free(p);\n}\n"), "free() is banned"),
    ("banned", "src/core/x.c", c("long f(void)\n{\n    return time(0);\n}\n"), "time() is banned"),
    ("banned", "test/unit/x.c", c("void f(void)\n{\n    usleep(1);\n}\n"), "usleep() is banned"),
    ("banned", "test/unit/x.c", c("void f(void)\n{\n    system(\"ls\");\n}\n"), "system() is banned"),
    ("banned", "src/core/x.c", c("int x; // one\n"), "// comment"),
    ("banned", "src/core/x.c", c("typedef struct x {\n    int a;\n} x;\n"), "typedef of a struct"),
    ("banned", "src/core/x.c", c("\tint x;\n"), "tab"),
    ("banned", "src/core/x.c", c("int x; \n"), "trailing blank"),
    ("banned", "src/core/x.c", c("int x;"), "no newline"),
    ("banned", "src/core/x.c", "int x;\n", "no licence line"),
    ("banned", "tools/x", "#!/bin/sh\ntrue\n", "no licence line"),
    ("sizes", "src/core/x.c", c("int x;\n" * 1500), "file of 1501 lines"),
    ("sizes", "src/core/x.c", c("int f(int a)\n{\n" + "    a++;\n" * 59 + "}\n"), "f() has 61 lines"),
    ("sizes", "src/core/x.c", c("int " + "x" * 117 + ";\n"), "line of 122 columns"),
    ("sizes", "clients/node/inbox.js", "let x; // one\n" * 400, "clients/node has 400 lines of code; at most 399"),
    ("metrics", "src/core/x.c", c("int x;\n" * 99999), "lines of the product: 1000"),
    ("metrics", "src/store/pg_x.c", c("int x;\n" * 9999), "lines of the PostgreSQL driver: 10000, at most "),
    ("metrics", "src/core/x.c", c("".join(f"int f{i}(void)\n{{\n    return 1;\n}}\n" for i in range(99))),
     "functions exported for nobody: 99"),
    ("metrics", "src/core/x.h", c("int positions_move;\n" * 50), "places of a store operation: 51"),
    ("metrics", "src/attic/x.c", c("int x;\n"), "what is it for?"),
    ("metrics", "src/core/note.c", c("int x;\n"), "nothing names sqs"),
    ("listed", "src/core/x.c", c("int x;\n"), "no meson.build lists it"),
    ("listed", "test/unit/meson.build", "unit_tests = ['mem', 'gone']\n", "lists gone"),
    ("mutants", "test/mutant/mutants.txt", MUTANT, "the guard of no_check does not stand once"),
    ("mutants", "test/mutant/mutants.txt", MUTANT, "no test is named nobody_notices"),
    ("requirements", "docs/requirements.md", "nothing\n", "no requirement found"),
    ("requirements", "docs/requirements.md", "| I1 | a | |\n", "I1 has no tests"),
    ("requirements", "docs/requirements.md", "| I1 | a | - |\n| I1 | a | - |\n", "keep one row"),
    ("requirements", "docs/requirements.md", "| I1 | a | test/unit/none.c: x |\n", "no file test/unit/none.c"),
    ("requirements", "docs/requirements.md", "| I1 | a | test/unit/test_mem.c: x |\n", "has no test x"),
    ("requirements", "docs/requirements.md", "| I2 | a | test/unit/test_mem.c: free_accepts_null |\n",
     "does not name I2"),
    ("documented", "include/semel/x.h", c("SEMEL_API int semel_open(int *ret);\n"), "semel_open is not in"),
    ("documented", "man/libsemel.3.scd", "*int semel_gone(void)*\n", "no function semel_gone"),
    ("documented", "docs/x.md", "see [here](gone.md)\n", "links to gone.md"),
    ("documented", "docs/x.md", "see [here](requirements.md#gone)\n", "no such heading"),
    ("documented", "docs/runbooks/x.md", "The log has `nobody ever says this`.\n", "quotes `nobody ever says this`"),
    ("documented", "docs/x.md", "open `core/gone.c`\n", "sends readers to core/gone.c"),
    ("documented", "docs/x.md", "open `core/note.c` `gone`\n", "sends readers to gone in core/note.c"),
    ("released", "sql/sqlite/001_inbox.sql", "SELECT 1;\n", "was released with 0.1.0: add the next number instead"),
    ("released", "sql/released/0.1.0.sums", "00  sql/sqlite/000_gone.sql\n", "sql/sqlite/000_gone.sql was released"),
    ("format", "src/core/x.c", c("int  x;\n"), "src/core/x.c"),
    ("tidy", "src/core/x.c", c("int f(int a);\nint f(int a)\n{\n    int *p = 0;\n    return *p + a;\n}\n"),
     "null pointer"),
    ("cppcheck", "src/core/x.c", c("int f(void)\n{\n    int a[2] = {0};\n    return a[2];\n}\n"), "out of bounds"),
]

EXTERNAL = ("format", "tidy", "cppcheck")


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def project(root, files):
    write(root, GOOD)
    write(root, files)
    for name in (".clang-format", ".clang-tidy"):
        shutil.copy(TOP / name, root)
    commands = [{"directory": str(root), "file": str(path), "command": f"clang-14 -Isrc -Iinclude -c {path}"}
                for path in root.glob("src/*/*.c")]
    write(root, {"build/clang/compile_commands.json": json.dumps(commands)})


def check(name, root):
    script = (["external.py", name] if name in EXTERNAL else
              ["../metrics.py", "--check"] if name == "metrics" else [name + ".py"])
    run = subprocess.run([sys.executable, str(HERE / script[0]), *script[1:], "--root", str(root)],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return run.returncode, run.stdout


def main():
    faults = 0
    cases = [(name, {}, 0, "") for name in dict.fromkeys(bad[0] for bad in BAD)]
    cases += [(name, {file: text}, 1, said) for name, file, text, said in BAD]
    for name, files, code, said in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            project(root, files)
            got, output = check(name, root)
        if got != code or said not in output:
            faults += 1
            print(f"{name} on {', '.join(files) or 'the good project'}: expected exit {code} and '{said}', "
                  f"got exit {got}:\n{output}")
    print(f"{len(cases) - faults} of {len(cases)} cases as expected")
    return 1 if faults else 0


sys.exit(main())
