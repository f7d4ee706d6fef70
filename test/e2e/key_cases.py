# SPDX-License-Identifier: MIT
"""spec/keys.txt for the doors that are called by SQL: reads the cases, and checks what a row has become."""
import os
import pathlib
import re

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PRINTS = {"A": b"A" * 32, "B": b"B" * 32, "H": b"h" + b"H" * 32, "none": None}
STORED = {"A": b"c" + b"A" * 32, "B": b"c" + b"B" * 32, "H": b"h" + b"H" * 32, "none": None}
EFFECTS = {"atomic": 1, "outside": 2, "keyed": 3}


def words(column):
    """{NAME: VALUE}; a word without a value is None."""
    return {name: value if equals else None for name, equals, value in (w.partition("=") for w in column.split())}


def cases():
    """(name, given, what happens, its words, verdict, becomes)"""
    for line in (SOURCE / "spec" / "keys.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, given, when, verdict, becomes = (column.strip() for column in line.split("|"))
            yield name, words(given), when.split()[0], words(when), verdict, becomes


def seconds(text):
    """From now on; None: none."""
    if text == "none":
        return None
    return 0 if text == "now" else int(text[:-1]) * SECONDS[text[-1]]


def token(claimed, age_s, now_s):
    """A token that was issued so many seconds ago."""
    return int((now_s - age_s - 1577836800) * 1e6 / 1024) << 22 | EFFECTS[claimed] << 10 | 5


def given_row(given, now_s):
    """The columns of the row; times are seconds since 1970."""
    status = given["row"]
    row = {"scope": "alice", "key": "key-00001", "status": status, "answer_us": 86400 * 10**6,
           "keep_us": 30 * 86400 * 10**6, "token": token(given.get("claimed", "outside"), 3600, now_s),
           "fingerprint": STORED[given.get("fp", "A")], "created_at": now_s - 3600, "updated_at": now_s - 3600,
           "lease_until": None, "cause": None, "code": None, "headers": None, "body": None, "completed_at": None,
           "answer_until": None, "key_until": None}
    if status == "processing":
        row["lease_until"] = now_s + seconds(given.get("lease", "+60s"))
    elif status == "unknown":
        row["cause"] = given.get("cause", "timeout")
    else:
        row.update(code=201, headers="[]", completed_at=now_s - 3600, body=b"x" if given.get("body") != "no" else None,
                   answer_until=now_s + seconds(given.get("answer", "+24h")),
                   key_until=now_s + seconds(given.get("key", "+30d")))
    return row


def check(name, becomes, before, after, now_s):
    """`after`: the row as given_row has it, or None."""
    said = words(becomes)
    if becomes in ("unchanged", "absent"):
        assert after == (before if becomes == "unchanged" else None), name
        return
    assert after is not None and after["status"] == becomes.split()[0], name
    for word in ("lease", "answer", "key"):
        if word in said:
            got = after[{"lease": "lease_until", "answer": "answer_until", "key": "key_until"}[word]]
            wanted = seconds(said[word])
            assert got is None if wanted is None else abs(got - now_s - wanted) < 30, (name, word)
    if "token" in said and before is not None:
        assert (after["token"] == before["token"]) == (said["token"] == "same"), name
        assert after["token"] >= before["token"], name
    if "cause" in said:
        assert (after["cause"] or "none") == said["cause"], name
    if "body" in said:
        assert (after["body"] is not None) == (said["body"] == "yes"), name
    if "fp" in said:
        assert after["fingerprint"] == STORED[said["fp"]], name


def names():
    listed = [case[0] for case in cases()]
    assert len(listed) == len(set(listed)) > 60 and all(re.fullmatch("[a-z0-9_]+", name) for name in listed)
    return listed
