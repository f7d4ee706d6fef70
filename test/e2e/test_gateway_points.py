# SPDX-License-Identifier: MIT
"""`semel gateway` held at each labelled point, while one of those who take part is killed, or stopped past the lease:
the gateway, the server behind it, the store, the client. A gateway that is killed there: test_gateway_keys.py (A7)."""
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from conftest import wait_for
from gateway import Gateway
from pg import Database, free_port, pg_server  # noqa: F401  (a fixture)

LONG = os.environ.get("SEMEL_LONG") == "1"
LEASE_S = 5
BRIEFLY = ["--lease", f"{LEASE_S}s", "--timeout", "3s", "--connect", "1s"]
KEY = "key-00000001"
BEFORE_CALL = ["keys.written:1", "keys.committed:1", "guard.claimed:1"]
AFTER_CALL = ["guard.answered:1", "keys.written:2", "keys.committed:2", "guard.stored:1"]
POINTS = [*BEFORE_CALL, "guard.called:1", *AFTER_CALL]

SHOP = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with open(sys.argv[2], "a") as done:
            done.write(self.headers["Idempotency-Key"] + "\\n")
        self.send_response(201)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"paid")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("up", flush=True)
server.serve_forever()
"""


class Shop:
    """The server behind the gateway, a process that may die: what it has done is in a file."""

    def __init__(self, folder):
        self.port, self.file, self.process = free_port(), pathlib.Path(folder, "done"), None
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, "-c", SHOP, str(self.port), self.file], stdout=subprocess.PIPE,
                                        text=True)
        assert self.process.stdout.readline() == "up\n"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def done(self):
        return len(self.file.read_text().splitlines()) if self.file.exists() else 0


class Client:
    """One request on a connection of its own."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.sendall(f"POST /pay HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: {KEY}\r\n"
                            "Content-Length: 2\r\n\r\n{}".encode())

    def status(self):
        return int(self.socket.makefile("rb").readline().split()[1])

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@pytest.fixture(name="shop")
def fixture_shop(tmp_path):
    made = Shop(tmp_path)
    yield made
    made.kill()


@pytest.fixture(name="migrated", scope="module")
def fixture_migrated(pg_server):  # noqa: F811
    made = Database(pg_server, "points")
    assert made.semel("migrate").code == 0
    return made


@pytest.fixture(name="pg")
def fixture_pg(migrated):
    migrated.sql("DELETE FROM semel.idempotency")
    return migrated


def process_state(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


def go_on(gateway):
    gateway.process.send_signal(signal.SIGCONT)


def settled(gateway):
    """The answer to the same request again, once the key runs nowhere: PostgreSQL ends a transaction that stands still
    after a minute."""
    def once():
        answer = gateway.pay(KEY)
        return answer if answer[1] not in ("running", "not-stored") else None
    return wait_for(once, "the key is settled", 150)


# ---- what happens while the gateway is held ----

def gateway_stopped(gateway, shop, pg, client):
    """Another process finds the key, and has it, or finds it unknown when the lease has run out."""
    began = time.monotonic()
    with Gateway(shop.url, "--store", pg.url, "--anonymous", *BRIEFLY) as awake:
        found = settled(awake)
        time.sleep(max(0, began + LEASE_S + 1 - time.monotonic()))
        nothing_sent = found[0] == 409 and shop.done() == 0
        go_on(gateway)
        assert client.status() in ((503, 504) if nothing_sent else (201,))  # 504: the time for its connection is over


def upstream_killed(gateway, shop, _, client):
    shop.kill()
    go_on(gateway)
    assert client.status() in (201, 502)
    shop.start()


def upstream_stopped(gateway, shop, _, client):
    """It takes its time: what it was sent it does afterwards."""
    before = shop.done()
    shop.process.send_signal(signal.SIGSTOP)
    go_on(gateway)
    status = client.status()
    shop.process.send_signal(signal.SIGCONT)
    if before == 0:
        assert status == 504
        wait_for(lambda: shop.done() == 1, "it acts late")


def store_killed(gateway, _, pg, client):
    pg.server.stop(signal.SIGQUIT)
    go_on(gateway)
    try:
        assert client.status() in (201, 503)
    finally:
        pg.server.start()


def store_stopped(gateway, _, pg, client):
    first = pg.server.process.pid
    pids = [first, *(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == first)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    go_on(gateway)
    time.sleep(LEASE_S + 1)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert client.status() in (201, 503)


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return int(stat.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def client_killed(gateway, _, __, client):
    client.reset()
    go_on(gateway)


def client_stopped(gateway, _, __, client):
    """It reads nothing until another one has the answer."""
    go_on(gateway)
    settled(gateway)
    assert client.status() == 201


PARTIES = [gateway_stopped, upstream_killed, upstream_stopped, store_killed, store_stopped, client_killed,
           client_stopped]
QUICK = [(gateway_stopped, "guard.called:1"), (upstream_stopped, "guard.claimed:1"), (store_killed, "keys.written:2"),
         (client_killed, "keys.committed:1")]


def may_end(party, point):
    """How the key may end. Where nobody can know, it is unknown; everywhere else the client has its work done."""
    if party == upstream_stopped and point not in AFTER_CALL:
        return [(409, "unknown")]
    if party == upstream_killed and point == "guard.called:1":
        return [(201, None), (409, "unknown")]  # its connection was on its way
    return [(201, None)]


# A7, P47, P48, P98, P99, T1
@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("point", POINTS)
def test_whoever_fails_at_a_point_the_work_is_done_once(shop, pg, party, point):
    if not LONG and (party, point) not in QUICK:
        pytest.skip("SEMEL_LONG=1 runs it")
    lease = ["--lease", "60s"] if party == store_killed else BRIEFLY  # it may take a while to come back
    with Gateway(shop.url, "--store", pg.url, "--anonymous", *lease, env={"SEMEL_STOP_AT": point}) as gateway:
        client = Client(gateway.port)
        wait_for(lambda: process_state(gateway.process.pid) in "tT", "it is held")
        party(gateway, shop, pg, client)
        answer = settled(gateway)
        assert answer[:2] in may_end(party, point)
        assert gateway.pay(KEY) == (*answer[:2], answer[0] == 201)
        assert shop.done() == 1 or (answer[0] == 409 and shop.done() == 0)
        assert gateway.stop() == 0
