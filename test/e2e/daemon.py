# SPDX-License-Identifier: MIT
"""`semel run` as tests use it: a process with settings of its own, its log, its metrics, and ways to end it.

    with Daemon(tmp_path, settings) as daemon:     # a dict; `admin` and `log` are added
        daemon.ready()
        ...
        daemon.kill()                              # SIGKILL; daemon.start() begins anew with the same settings

A sanitizer's finding in the process fails the test when the daemon is left.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

from conftest import binary
from pg import free_port, wait_for

PATIENCE_S = 60


class Daemon:
    def __init__(self, folder, settings, env=None, name="semel", before=(), **process):
        """before: a command that starts the program; process: for Popen."""
        self.before, self.how = before, process
        self.folder, self.port, self.process, self.ended = pathlib.Path(folder), free_port(), None, []
        self.log_path, self.env = self.folder / f"{name}.log", env or {}
        self.file = self.folder / f"{name}.yaml"
        self.settings = {"admin": {"listen": f"127.0.0.1:{self.port}"}, "log": {"format": "json", "level": "debug"},
                         **settings}
        self.file.write_text(json.dumps(self.settings))  # JSON is YAML

    def start(self, **env):
        tokens = {"LISTEN_TOKEN": "a-token-of-the-tests", "OTHER_TOKEN": "another-token-of-the-tests"}
        full = {**os.environ, **tokens, **self.env, **env}
        full.pop("SEMEL_STORE", None)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([*self.before, binary(), "run", self.file], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env=full, **self.how)
        return self

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, value, trace):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.stop() if kind is None else self.kill()
        text = self.log()
        assert "Sanitizer" not in text and "runtime error" not in text, text[-6000:]

    # ---- ends

    def wait(self, seconds=PATIENCE_S):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end:\n{self.log()[-4000:]}") from None

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self, expect=0):
        self.signal(signal.SIGTERM)
        code = self.wait()
        assert code == expect, f"exit {code}\n{self.log()[-4000:]}"

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def running(self):
        return self.process.poll() is None

    # ---- looks

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def lines(self, text=None):
        """The log's objects, or those with this sentence."""
        found = []
        for line in self.log().splitlines():
            if line.startswith("{"):
                found.append(json.loads(line))
        return [line for line in found if text is None or line["text"] == text]

    def get(self, path):
        """(status, body); status 0: nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def ready(self, seconds=PATIENCE_S):
        def answers():
            assert self.running(), self.log()[-4000:]
            return self.get("/readyz")[0] == 200
        try:
            wait_for(answers, "ready", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.get('/readyz')}\n{self.log()[-4000:]}") from None
        return self

    def metric(self, name, **labels):
        """The sum of all series of the family that have these labels."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match is None or match[1] != name:
                continue
            has = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            if all(has.get(key) == str(value) for key, value in labels.items()):
                total += float(match[3])
        return total

    def until(self, condition, what, seconds=PATIENCE_S):
        """Waits for the condition, while the process lives."""
        def holds():
            assert self.running(), f"ended before: {what}\n{self.log()[-4000:]}"
            return condition()
        try:
            return wait_for(holds, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from None


def thread_sanitizer():
    """It does not see through the clone(2) of the exec handler, and calls everything after it a race."""
    return b"libtsan.so" in pathlib.Path(binary()).read_bytes()


def pause(seconds):
    """Between the kills of a storm: a pace, not a condition."""
    time.sleep(seconds)
