# SPDX-License-Identifier: MIT
"""A storm: gateways are killed, stopped past their lease and ended at any moment, while clients repeat their requests
until they have an answer, in front of a server that refuses, hangs, acts after its 503 and breaks its answers off. What
no labelled point names happens here, too."""
import collections
import http.client
import http.server
import json
import os
import random
import signal
import threading
import time

import pytest

from conftest import run, wait_for
from gateway import Gateway
from pg import Database, free_port, pg_server  # noqa: F401  (a fixture)

BLOWS = 40 if os.environ.get("SEMEL_LONG") == "1" else 6
SEED = int(os.environ.get("SEMEL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
LEASE_S = 2
BRIEFLY = ["--anonymous", "--threads", "2", "--timeout", "1s", "--connect", "500ms", "--lease", f"{LEASE_S}s"]
REPEATS = (409, 422, 502, 503, 504)


class Server:
    """`done[key]`: how often the work of a key was done; everything but a 422 does it."""

    def __init__(self, chance):
        done = self.done = collections.Counter()
        lock = self.lock = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                key = self.headers["Idempotency-Key"]
                with lock:
                    mood, body = chance.random(), key.encode() * chance.choice([1, 1, 1, 5000])
                if mood < 0.1:
                    return self.answer(422, b"")
                if mood < 0.15:  # it acts when everybody has given up
                    threading.Timer(chance.random() * LEASE_S, self.act, [key]).start()
                    return self.answer(503, b"")
                self.act(key)
                if mood < 0.2:
                    return self.answer(201, body, len(body) + 1)
                if mood < 0.3:
                    time.sleep(chance.random() * LEASE_S)
                return self.answer(201, body)

            @staticmethod
            def act(key):
                with lock:
                    done[key] += 1

            def answer(self, status, body, length=None):
                self.close_connection = length is not None
                self.send_response(status)
                self.send_header("Content-Length", str(length or len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Threads(http.server.ThreadingHTTPServer):
            request_queue_size = 512

            def handle_error(self, *_):
                pass

        self.server = Threads(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Clients(threading.Thread):
    """One of many, each with keys of its own and those of its neighbour."""

    keys, lock, over = collections.Counter(), threading.Lock(), threading.Event()

    def __init__(self, ports, seed):
        super().__init__()
        self.ports, self.chance, self.got, self.odd = ports, random.Random(seed), {}, []

    def run(self):
        while not self.over.is_set():
            with self.lock:
                self.keys["asked"] += 1
                key = f"storm-{self.keys['asked'] // 3:08}"
            for _ in range(12):
                if self.over.is_set() or self.once(key):
                    break

    def once(self, key):
        """Is it over?"""
        link = http.client.HTTPConnection("127.0.0.1", self.chance.choice(self.ports),
                                          timeout=self.chance.choice([0.05, 5, 5, 5]))  # some hang up
        try:
            link.request("POST", "/pay", key, {"Idempotency-Key": key})
            answer = link.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            link.close()
        problem = answer.getheader("Content-Type") == "application/problem+json"
        word = json.loads(text)["type"].rsplit(":", 1)[1] if problem else None
        if answer.status == 201:
            self.got.setdefault(key, set()).add(text)
        elif answer.status not in REPEATS or word == "mismatch":
            self.odd.append((key, answer.status, text))
        return answer.status == 201 or word == "unknown"


def strike(chance, start, gateways, i):
    """One blow to one of the gateways."""
    process, blow = gateways[i].process, chance.random()
    if blow < 0.3:
        process.send_signal(signal.SIGSTOP)
        time.sleep(chance.random() * 2 * LEASE_S)
        process.send_signal(signal.SIGCONT)
        return
    if blow < 0.5:
        assert gateways[i].stop() == 0
    gateways[i].__exit__()
    gateways[i] = start(i)


# A1 A3 A7 P47 P92 P93
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_in_a_storm_no_work_is_done_twice_and_no_answer_is_lost(store, request, tmp_path):
    print(f"SEMEL_SEED={SEED}")
    chance, url = random.Random(SEED), f"sqlite:{tmp_path}/keys.db"
    if store == "postgres":
        url = Database(request.getfixturevalue("pg_server"), "storm").url
    assert run("migrate", "--store", url).code == 0
    server, ports = Server(random.Random(SEED)), [free_port() for _ in range(2 if store == "postgres" else 1)]

    def start(i):
        return Gateway(server.url, "--store", url, *BRIEFLY, listen=f"127.0.0.1:{ports[i]}")
    gateways = [start(i) for i in range(len(ports))]
    Clients.over.clear()
    clients = [Clients(ports, SEED + i) for i in range(24)]
    for client in clients:
        client.start()
    for _ in range(BLOWS):
        enough = Clients.keys["asked"] + chance.randrange(10, 80)
        wait_for(lambda enough=enough: Clients.keys["asked"] >= enough, "clients get on")
        strike(chance, start, gateways, chance.randrange(len(gateways)))
    Clients.over.set()
    for client in clients:
        client.join()
    for i, gateway in enumerate(gateways):
        assert gateway.stop() == 0
        gateway.__exit__()
    time.sleep(LEASE_S)  # for those who act late
    assert [odd for client in clients for odd in client.odd] == []
    got = collections.defaultdict(set)
    for client in clients:
        for key, texts in client.got.items():
            got[key] |= texts
    assert len(got) > BLOWS and {key: len(texts) for key, texts in got.items() if len(texts) != 1} == {}
    assert {key: n for key, n in server.done.items() if n > 1} == {}
    assert [key for key in got if server.done[key] != 1] == []
