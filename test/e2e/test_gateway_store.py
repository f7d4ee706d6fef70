# SPDX-License-Identifier: MIT
"""`semel gateway` while its store hangs, or has no room: what is guarded waits or is 503, everything else goes on, and
nothing is lost or done twice (P48, A2)."""
import os
import signal
import sqlite3
import subprocess
import threading

import pytest

from conftest import wait_for
from gateway import Gateway
from pg import Database, pg_server  # noqa: F401  (a fixture)
from test_gateway_keys import fixture_file_store, fixture_till  # noqa: F401  (fixtures)

HELD = "held-key-00001"


def later(answers, ask):
    """Asks in a thread; the answer is added to the list."""
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    return thread


def unguarded(gateway):
    """Requests of each kind, on connections of their own."""
    assert gateway.ask("GET", "/")[0] == 200
    assert gateway.ask("POST", "/pay", b"x" * 100000)[0] == 201  # without a key
    assert gateway.ask("POST", "/off", b"{}", {"Idempotency-Key": HELD})[0] == 201


def others_go_on(till, store, hang, go_on):
    """What hangs ends only when go_on() was called, so that whoever waits for it is never answered here."""
    with Gateway(till.url, "--store", store, "--anonymous", "--guard", "POST /off key=off") as gateway:
        assert gateway.pay("key-00000001")[0] == 201
        hang()
        answers, before = [], till.of(HELD)
        waiting = [later(answers, lambda: gateway.pay(HELD)), later(answers, lambda: gateway.pay("key-00000001"))]
        try:
            for _ in range(50):
                unguarded(gateway)
            assert till.of(HELD) - before == 50  # by the rule without guard alone
            assert all(answer[:2] == (503, "not-stored") for answer in answers), answers
        finally:
            go_on()
        for thread in waiting:
            thread.join()
        wait_for(lambda: gateway.pay(HELD)[0] == 201, "the store is back")
        assert gateway.pay(HELD) == (201, None, True) and gateway.pay("key-00000001") == (201, None, True)
        assert till.of(HELD) - before == 51 and till.of("key-00000001") == 1
        assert gateway.stop() == 0


def test_unguarded_requests_go_on_while_postgres_stands_still(till, pg_server):  # noqa: F811
    """A10: its processes are stopped: whatever loop waited for them would answer nobody."""
    shop = Database(pg_server, "stands")
    assert shop.semel("migrate").code == 0
    stopped = []

    def hang():
        stopped.extend(int(pid) for pid, in shop.sql(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)

    def go_on():
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    others_go_on(till, shop.url, hang, go_on)
    assert stopped


def test_unguarded_requests_go_on_while_another_process_has_the_file(till, file_store):  # noqa: F811
    """A10"""
    other = sqlite3.connect(file_store.removeprefix("sqlite:"), isolation_level=None, check_same_thread=False)
    others_go_on(till, file_store, lambda: other.execute("BEGIN IMMEDIATE"), lambda: other.execute("ROLLBACK"))
    other.close()


# ---- no room ----------------------------------------------------------------------------------------------------

def fill(path):
    """Until there is no room for a byte more."""
    with open(path, "wb", buffering=0) as ballast:
        for size in (65536, 512, 1):
            try:
                while ballast.write(b"x" * size) == size:
                    pass
            except OSError:
                pass


def is_full(till, gateway, ballast):
    """A store that has room, then none, then room again."""
    answers, release, keys = [], threading.Event(), ["key-00000001", HELD]
    till.work = lambda request, _: request.headers["Idempotency-Key"] == HELD and release.wait(60)
    assert gateway.pay("key-00000001") == (201, None, False)
    held = later(answers, lambda: gateway.pay(HELD))
    wait_for(lambda: till.of(HELD) == 1, "the call runs")
    fill(ballast)
    while True:  # what is allocated already has some room left
        keys.append(f"full-{len(keys):0240}")
        assert len(keys) < 20000
        status, word, _ = gateway.pay(keys[-1])
        assert (status, word) in ((201, None), (503, "not-stored"))
        if status == 503 and till.of(keys[-1]) == 0:
            break
    loose = f"loose{0:0240}"
    for _ in range(2):  # by a rule that lets them pass unguarded
        assert gateway.pay(loose, path="/loose") == (201, None, False)
    assert till.of(loose) == 2
    till.paid = b"paid" * 100000
    release.set()
    held.join()
    assert answers[0][:2] == (503, "not-stored")  # it was done, and its answer is kept
    assert gateway.pay("key-00000001") == (201, None, True)  # a replay needs no room
    assert gateway.ask("GET", "/")[0] == 200
    os.remove(ballast)
    for key in keys:
        wait_for(lambda key=key: gateway.pay(key)[0] == 201, f"{key} has its answer")
        assert gateway.pay(key) == (201, None, True)
    assert {key: till.of(key) for key in keys} == dict.fromkeys(keys, 1)
    assert gateway.stop() == 0


LOOSE = ["--anonymous", "--guard", "POST /loose when_down=pass"]


def mounts(*command):
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted here: it needs root")


def test_file_on_a_full_disk_is_503_and_loses_nothing(till, tmp_path):  # noqa: F811
    """A2, P48"""
    mounts("unshare", "-m", "mount", "-t", "tmpfs", "none", tmp_path)
    small = ["unshare", "-m", "--propagation", "private", "sh", "-ec",
             'mount -t tmpfs -o size=4m none "$0"; "$1" migrate --store "sqlite:$0/keys.db" >&2; exec "$@"', tmp_path]
    with Gateway(till.url, "--store", f"sqlite:{tmp_path}/keys.db", *LOOSE, before=small) as gateway:
        is_full(till, gateway, f"/proc/{gateway.process.pid}/root{tmp_path}/ballast")


def test_tables_on_a_full_disk_are_503_and_lose_nothing(till, pg_server):  # noqa: F811
    """A2, P48"""
    small = pg_server.dir / "small"
    small.mkdir()
    mounts("mount", "-t", "tmpfs", "-o", "size=40m,mode=0700", "none", small)
    try:
        os.chown(small, pg_server.owner.get("user", -1), pg_server.owner.get("group", -1))
        shop = Database(pg_server, "full")
        pg_server.psql("postgres", f"CREATE TABLESPACE small LOCATION '{small}'")
        pg_server.psql("postgres", 'ALTER DATABASE "full" SET TABLESPACE small')
        assert shop.semel("migrate").code == 0
        with Gateway(till.url, "--store", shop.url, *LOOSE) as gateway:
            is_full(till, gateway, small / "ballast")
        pg_server.psql("postgres", 'DROP DATABASE "full" WITH (FORCE)')
        pg_server.psql("postgres", "DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "-l", small], check=False)
