# SPDX-License-Identifier: MIT
"""The alerting rules on a real Prometheus, against running processes.

    with alerts.watching(9464) as watch:                  # or several ports; returns when each was scraped
        ... provoke it ...
        watch.firing("SemelDeadLetters", consumer="billing")    # waits until it fires; returns the alert's labels
        ... mend it ...
        watch.silent("SemelDeadLetters", consumer="billing")    # waits until it does not fire any more

    alerts.firing(9464, "SemelDeadLetters")               # the same in one step, for what is a gauge in the rules

Prometheus is private: its own folder, a free port of loopback, ended and removed by test/server/leash.sh even when
pytest is killed. It needs some five seconds for its first scrape, then scrapes every 400 ms and evaluates every 200 ms:
let a module share one. It takes alerts/semel.rules.yml with these changes, so that a test need not wait for hours:

    for: ANYTHING                      for: 0s
    [15m], [1h], offset 15m ...        `window`, 10s unless said; with `d` for days, 2m
    what `instead` says                by its values, e.g. {"> 900": "> 1"} for SemelOldestUnprocessed

Rules that count (increase, rate) see only what happens after the first scrape: provoke it inside of `watching`. A
process that a test starts later, or again, listens on a port that was named: its admin.listen is a fixed one.
Without Prometheus (apt-get install prometheus; or SEMEL_PROMETHEUS=PROGRAM) the test is skipped, with a reason.
"""
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from pg import free_port

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
RULES = SOURCE / "alerts" / "semel.rules.yml"
WAIT_S = 60
POLL_S = 0.1

SETTINGS = """\
global: {{scrape_interval: 400ms, scrape_timeout: 400ms, evaluation_interval: 200ms}}
rule_files: [{dir}/rules.yml]
scrape_configs:
  - job_name: semel
    static_configs: [{{targets: {targets}}}]
"""


def program(name="prometheus"):
    """Prometheus, or promtool; skips the test when it is not here."""
    found = os.environ.get("SEMEL_" + name.upper()) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (apt-get install prometheus; or SEMEL_{name.upper()}=PROGRAM)")
    return found


def names():
    """Every alert of the rules."""
    return re.findall(r"^ *- alert: (\w+)$", RULES.read_text(), re.MULTILINE)


def impatient(text, window="10s", instead=None):
    """The rules with short durations. A replacement that replaces nothing is a mistake of the test."""
    for old, new in (instead or {}).items():
        assert old in text, f"{RULES.name} has no {old!r} to be replaced"
        text = text.replace(old, new)
    text = re.sub(r"^( *for:).*$", r"\1 0s", text, flags=re.MULTILINE)
    return re.sub(r"(\[|offset )\d+([smhd])", lambda m: m[1] + ("2m" if m[2] == "d" else window), text)


class Watch:
    """A running Prometheus."""

    def __init__(self, ports, window, instead):
        self.targets = [f"127.0.0.1:{port}" for port in ports]
        prometheus = program()
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="semel-prometheus-", dir="/tmp"))
        self.leash = subprocess.Popen(["sh", SOURCE / "test/server/leash.sh", self.dir], stdin=subprocess.PIPE,
                                      start_new_session=True)
        (self.dir / "rules.yml").write_text(impatient(RULES.read_text(), window, instead))
        (self.dir / "prometheus.yml").write_text(SETTINGS.format(dir=self.dir, targets=json.dumps(self.targets)))
        self.url = f"http://127.0.0.1:{free_port()}"
        with open(self.dir / "log", "ab") as log:
            self.process = subprocess.Popen(
                [prometheus, f"--config.file={self.dir}/prometheus.yml", f"--storage.tsdb.path={self.dir}/data",
                 f"--web.listen-address={self.url.removeprefix('http://')}", "--log.level=warn"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir, env={**os.environ, "GOMAXPROCS": "1"})
        (self.dir / "pid").write_text(f"{self.process.pid}\n")

    def done(self):
        self.process.kill()
        self.process.wait(WAIT_S)
        self.leash.stdin.close()
        self.leash.wait(WAIT_S)

    def ask(self, what, **query):
        """The data of an answer of its API; None: it does not answer yet."""
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                return json.load(answer)["data"]
        except OSError as error:
            assert self.process.poll() is None, (self.dir / "log").read_text(errors="replace")[-4000:]
            if isinstance(error, urllib.error.HTTPError) and error.code != 503:
                raise AssertionError(f"{url}: {error.read().decode(errors='replace')}") from error
            return None

    def query(self, expression):
        """What an expression gives now: a list of (labels, value)."""
        data = self.ask("query", query=expression)
        return [(each["metric"], float(each["value"][1])) for each in data["result"]] if data else []

    def alerts(self):
        """The labels of every alert that fires."""
        data = self.ask("alerts")
        return [each["labels"] for each in data["alerts"] if each["state"] == "firing"] if data else []

    def wait(self, condition, what, seconds=WAIT_S):
        give_up = time.monotonic() + seconds
        while True:
            found = condition()
            if found:
                return found
            assert time.monotonic() < give_up, f"{what}; firing are {self.alerts()}\n{self.state()}"
            time.sleep(POLL_S)

    def state(self):
        """For a failed test: the targets, and all that they tell of themselves."""
        ours = self.query('{__name__=~"semel_.*|up|process_start_time_seconds", le=""}')
        return "\n".join(sorted(f"{labels} {value}" for labels, value in ours))

    def scraped(self):
        """Waits until every target was scraped and the rules evaluated since."""
        self.wait(self.all_up, f"not all of {self.targets} were scraped")
        then = time.time()
        self.wait(lambda: self.evaluated(then), "the rules were not evaluated")

    def all_up(self):
        return [value for _, value in self.query("up")] == [1] * len(self.targets)

    def evaluated(self, then):
        """Whether every group was evaluated after this moment."""
        data = self.ask("rules")
        return data and all(stamp(group["lastEvaluation"]) > then for group in data["groups"])

    def firing(self, name, seconds=WAIT_S, **labels):
        """Waits until an alert of this name with these labels fires; returns all of its labels."""
        known(name)
        return self.wait(lambda: self.matching(name, labels), f"{name} {labels} does not fire", seconds)[0]

    def silent(self, name, seconds=WAIT_S, **labels):
        """Waits until none fires, of targets that all answer: what was not scraped proves nothing."""
        known(name)
        self.wait(lambda: self.all_up() and not self.matching(name, labels), f"{name} {labels} fires", seconds)

    def matching(self, name, labels):
        wanted = {"alertname": name, **labels}.items()
        return [each for each in self.alerts() if wanted <= each.items()]


def known(name):
    assert name in names(), f"{RULES.name} has no alert {name}"


def stamp(text):
    """Seconds since 1970 of a time such as 2026-11-16T05:10:11.123456789Z; 0 for a group that never was evaluated."""
    match = re.match(r"(\d+-\d+-\d+T\d+:\d+:\d+)(\.\d+)?(Z|[+-]\d+:\d+)$", text)
    assert match, text
    if text.startswith("0001"):
        return 0.0
    zone = "+00:00" if match[3] == "Z" else match[3]
    return datetime.datetime.fromisoformat(match[1] + zone).timestamp() + float(match[2] or 0)


@contextlib.contextmanager
def watching(*ports, window="10s", instead=None):
    """A Prometheus that has scraped what listens on these ports, and evaluated the rules."""
    watch = Watch(ports, window, instead)
    try:
        watch.scraped()
        yield watch
    finally:
        watch.done()


def firing(port, name, window="10s", instead=None, seconds=WAIT_S, **labels):
    """Whether the alert fires for the process on this port: waits until it does."""
    with watching(port, window=window, instead=instead) as watch:
        return watch.firing(name, seconds, **labels)
