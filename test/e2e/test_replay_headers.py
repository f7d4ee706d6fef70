# SPDX-License-Identifier: MIT
"""spec/replay-headers.txt, held against the Python and the Node package, which share no list with the gateway."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ.get("SEMEL_SOURCE", pathlib.Path(__file__).parents[2]))
LINES = (SOURCE / "spec" / "replay-headers.txt").read_text().splitlines()
RULES = [line.split() for line in LINES if line and not line.startswith("#")]
sys.path.insert(0, str(SOURCE / "clients" / "python"))

from semel import rules  # noqa: E402


def headers():
    """Names of headers, and whether they are kept: those of the rules, and their neighbours."""
    for word, name in RULES:
        start = name.rstrip("*")
        for same in [start, start.title(), start + "more" if start != name else start.upper()]:
            yield same, word == "keep"
        yield (start + "more" if start == name else start[:-1]), True


# P52 P101
def test_python_stores_the_headers_of_the_list():
    kept = {name for name, _ in json.loads(rules.stored([(name.encode(), b"1") for name, _ in headers()]))}
    assert [name for name, keep in headers() if (name.lower() in kept) != keep] == []
    assert sorted(rules.DROPPED) == sorted(name for word, name in RULES if word != "keep")


NODE = """
const { DROPPED, stored } = require(`${process.argv[1]}/rules.js`);
const names = JSON.parse(process.argv[2]);
console.log(JSON.stringify([stored(names.map((name) => [name, '1'])).map(([name]) => name), [...DROPPED].sort()]));
"""


# P52 P101
def test_node_stores_the_headers_of_the_list():
    if shutil.which("node") is None:
        pytest.skip("there is no node here: apt-get install nodejs")
    done = subprocess.run(["node", "-e", NODE, SOURCE / "clients/node", json.dumps([name for name, _ in headers()])],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[name for name, keep in headers() if keep],
                                       sorted(name for word, name in RULES if word != "keep")]
