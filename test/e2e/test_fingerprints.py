# SPDX-License-Identifier: MIT
"""spec/fingerprints.json, held against the Python and the Node package, which share no code with C's.

`python3 test/e2e/test_fingerprints.py` writes the digests into the file, after a vector was added.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ.get("SEMEL_SOURCE", pathlib.Path(__file__).parents[2]))
VECTORS = SOURCE / "spec" / "fingerprints.json"
sys.path.insert(0, str(SOURCE / "clients" / "python"))

from semel import fingerprint as python  # noqa: E402
from semel.fingerprint import framed  # noqa: E402


def arguments(vector):
    body = bytes.fromhex(vector["body_hex"]) if "body_hex" in vector else vector["body"].encode()
    headers = [(name.encode(), value.encode()) for name, value in vector["headers"]]
    return (*(vector[name].encode() for name in ("method", "path", "query")), headers, body, vector.get("listed", ()),
            vector.get("ignore", ()))


# A5 P56 P97
def test_vectors_are_what_a_second_implementation_computes():
    vectors = json.loads(VECTORS.read_text())
    assert len({vector["name"] for vector in vectors}) == len(vectors) > 30
    for vector in vectors:
        assert python(*arguments(vector)).hex() == vector["fingerprint"], vector["name"]
        form = vector["form"].encode()
        assert len(form).to_bytes(8, "big") + form in framed(*arguments(vector)), vector["name"]


NODE = """
const { fingerprint } = require(process.argv[1]);
const sent = (text) => Buffer.from(text).toString('latin1');
for (const v of require(process.argv[2])) {
  const body = v.body_hex === undefined ? Buffer.from(v.body) : Buffer.from(v.body_hex, 'hex');
  const headers = v.headers.map(([name, value]) => [sent(name), sent(value)]);
  const got = fingerprint({ ...v, path: sent(v.path), query: sent(v.query), headers, body });
  if (got.toString('hex') !== v.fingerprint) console.log(v.name);
}
"""


# A5 P56 P97
def test_vectors_are_what_node_computes():
    if shutil.which("node") is None:
        pytest.skip("there is no node here: apt-get install nodejs")
    done = subprocess.run(["node", "-e", NODE, SOURCE / "clients/node", VECTORS], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


LONG = r"""
const body = Buffer.from('{"a": "' + 'x'.repeat(1 << 23) + '\\\\", "b": 1.0}');
const headers = [['Content-Type', 'application/json']];
process.stdout.write(require(process.argv[1]).fingerprint({ method: '', path: '', query: '', headers, body }));
"""


# A5: max_body may be raised
def test_string_of_megabytes_is_no_trouble_for_node():
    if shutil.which("node") is None:
        pytest.skip("there is no node here: apt-get install nodejs")
    done = subprocess.run(["node", "-e", LONG, SOURCE / "clients/node"], capture_output=True, check=False)
    body = b'{"b":1,"a":"' + b"x" * (1 << 23) + b'\\\\"}'
    assert done.stdout == python(b"", b"", b"", [(b"content-type", b"application/json")], body), done.stderr


# A5: what is the same, and what is not
def test_vectors_say_which_requests_are_the_same():
    seen = {}
    for vector in json.loads(VECTORS.read_text()):
        same = vector.get("same_as")
        if same is not None:
            assert seen[same] == vector["fingerprint"], vector["name"]
        else:
            assert vector["fingerprint"] not in seen.values(), vector["name"]
        seen[vector["name"]] = vector["fingerprint"]


if __name__ == "__main__":
    text = [{**vector, "fingerprint": python(*arguments(vector)).hex()} for vector in json.loads(VECTORS.read_text())]
    VECTORS.write_text("[\n" + ",\n".join(" " + json.dumps(vector) for vector in text) + "\n]\n")
