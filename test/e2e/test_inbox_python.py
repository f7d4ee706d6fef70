# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/python."""
import json
import shutil
import signal
import subprocess

import pytest

pytest.register_assert_rewrite("inbox_cases")
from inbox_cases import *  # noqa: E402,F401,F403
from inbox_cases import SOURCE, App, absent_standby  # noqa: E402

DRIVERS = ["psycopg", "async"]


def test_types_are_right():
    """As mypy sees the package, with the settings of its pyproject.toml."""
    if shutil.which("mypy") is None:
        pytest.skip("there is no mypy here: apt-get install mypy")
    pytest.importorskip("psycopg", reason="Python has no psycopg here: tools/setup languages")
    done = subprocess.run(["mypy", "--no-incremental", "--cache-dir=/dev/null", "semel"], capture_output=True,
                          text=True, check=False, cwd=SOURCE / "clients/python")
    assert done.returncode == 0, done.stdout


# P16: psycopg cancels what an interrupted program waits for, and that is no reason to go on
def test_interrupt_while_commit_waits_for_its_standby_ends_the_program(desk, tmp_path):
    other = App(desk.app.driver, {"default": desk.shop.url}, tmp_path)
    other.ask("deliver", consumer=desk.name, messages=[{"id": "m0", "body": "{}"}])
    try:
        with absent_standby(desk.shop.server) as found:
            other.process.stdin.write(json.dumps({"op": "deliver", "consumer": desk.name, "messages": [
                {"id": "m1", "body": "{}"}]}) + "\n")
            other.process.stdin.flush()
            found("pg_blocking_pids")
            other.process.send_signal(signal.SIGINT)
            said, _ = other.process.communicate(timeout=60)
        assert (said, other.process.returncode) == ("", -signal.SIGINT), other.log.read_text()
    finally:
        other.kill()
