# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/python."""
import json
import shutil
import signal
import socket
import subprocess

import pytest

pytest.register_assert_rewrite("inbox_cases")
from inbox_cases import *  # noqa: E402,F401,F403
from inbox_cases import SOURCE, App, Wire, absent_standby, poll  # noqa: E402

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


# What nobody can give back while the store is away is no reason to go on, either. The call may have happened
@pytest.mark.parametrize("away", [False, True])
def test_interrupt_of_a_worker_ends_the_program_and_releases_the_rest(desk, tmp_path, away):
    desk.set('{"effect": "outside"}')
    for id_ in ("m0", "m1"):
        desk.ask("put", message={"id": id_, "body": json.dumps({"sleep": 60})})
    wire = Wire(desk.shop.server.port)
    url = desk.shop.url.replace(str(desk.shop.server.port), str(wire.port))
    other = App(desk.app.driver, {"narrow": url}, tmp_path)
    try:
        other.process.stdin.write(json.dumps({"op": "work_once", "consumer": desk.name, "effect": "outside",
                                              "db": "narrow"}) + "\n")
        other.process.stdin.flush()
        poll(other.calls.exists)
        if away:
            wire.listener.shutdown(socket.SHUT_RDWR)
            wire.cut()
        other.process.send_signal(signal.SIGINT)
        said, _ = other.process.communicate(timeout=60)
        assert (said, other.process.returncode) == ("", -signal.SIGINT), other.log.read_text()
        assert ("not given back" in other.log.read_text()) == away
        assert desk.rows("message_id, lease_token IS NOT NULL") == [("m0", "True"), ("m1", str(away))]
    finally:
        other.kill()
        wire.done()
