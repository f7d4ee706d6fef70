# SPDX-License-Identifier: MIT
"""What every end-to-end test shares: the program, a fresh store, and a way to run one on the other."""
import errno
import fcntl
import json
import os
import pathlib
import sqlite3
import struct
import subprocess
import termios
import time

import pytest


class Result:
    """What a run of `semel` left behind."""

    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}--- stderr\n{self.err}"


def wait_for(condition, what, seconds=60):
    """Polls until the condition gives something true, and returns it."""
    give_up = time.monotonic() + seconds
    while not (got := condition()):
        assert time.monotonic() < give_up, f"never came true: {what}"
        time.sleep(0.01)
    return got


def file_locked(path):
    """Does somebody have the write lock of SQLite's file, and stand still with it? Then nobody else gets on."""
    db = sqlite3.connect(path, timeout=2, isolation_level=None)
    try:
        db.execute("BEGIN IMMEDIATE")
        return False
    except sqlite3.OperationalError:
        return True
    finally:
        db.close()


def poll(probe):
    """Waits until the probe has something to say."""
    return wait_for(probe, "what was waited for")


def hexed(text):
    """As the tools of test/kafka and test/rabbit read it."""
    if text is None:
        return "-"
    raw = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")
    return "x" + raw.hex()


def binary():
    return os.environ["SEMEL_BIN"]


def run(*args, stdin="", env=None, timeout=120):
    """Runs semel and returns its Result. A sanitizer's finding (exit 99) is never a result to be tested for."""
    full = dict(os.environ)
    full.pop("SEMEL_STORE", None)
    full.update(env or {})
    done = subprocess.run([binary(), *map(str, args)], input=stdin, capture_output=True, text=True, env=full,
                          timeout=timeout, check=False)
    assert done.returncode not in (99, -6, -11), Result(done)
    return Result(done)


def run_on_terminal(*args, columns=200, env=None, timeout=120):
    """Runs semel on a terminal of its own; returns the exit code and every byte that the terminal was sent."""
    full = {**os.environ, "TERM": "xterm-256color", **(env or {})}
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    child = subprocess.Popen([binary(), *map(str, args)], stdin=theirs, stdout=theirs, stderr=theirs, env=full)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError as error:  # the other end is closed
            assert error.errno == errno.EIO
            piece = b""
        if not piece:
            break
        seen += piece
    os.close(ours)
    code = child.wait(timeout)
    assert code not in (99, -6, -11), seen
    return code, seen


class Store:
    """A fresh SQLite store, and plain SQL on it."""

    def __init__(self, path):
        self.path, self.url = path, f"sqlite:{path}"

    def sql(self, text, *values):
        with sqlite3.connect(self.path, timeout=20) as db:
            return db.execute(text, values).fetchall()

    def semel(self, *args, **more):
        return run(*args, "--store", self.url, **more)


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store.db")
    result = made.semel("migrate")
    assert result.code == 0, result
    return made


@pytest.fixture
def extension():
    """The path of the loadable extension, without its suffix."""
    return str(pathlib.Path(os.environ["SEMEL_EXT"]).with_suffix(""))
