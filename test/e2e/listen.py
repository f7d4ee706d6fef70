# SPDX-License-Identifier: MIT
"""Sending to a `listen` route as producers do, and a server that plays the other side of an `http` handler.

`Listen` is one address, and posts once. `Posts` is the source of scenes: producers that post until they are answered.
"""
import collections
import contextlib
import http.client
import http.server
import json
import resource
import socket
import threading
import urllib.error
import urllib.request
import zlib

from pg import free_port

TOKEN, OTHER_TOKEN = "a-token-of-the-tests", "another-token-of-the-tests"  # LISTEN_TOKEN, OTHER_TOKEN of the daemon


class Listen:
    """The source of a route: an address of its own."""

    def __init__(self):
        self.port = free_port()

    def settings(self, **more):
        return {"listen": f"127.0.0.1:{self.port}", "path": "/books", "token": "${LISTEN_TOKEN}", "source": "shop",
                **more}

    def post(self, body, path="/books", token=TOKEN, timeout=60, **headers):
        """(status, the answer as JSON or text)."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers.setdefault("Content_Type", "application/json")
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            names["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=names, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")

    def send(self, messages):
        """All of them, as CloudEvents in batches; what is not taken is sent again."""
        left = [event(id, body) for id, body in messages]
        while left:
            status, answers = self.post(left[:200], Content_Type="application/cloudevents-batch+json")
            assert status == 200, (status, answers)
            left = [sent for sent, answer in zip(left[:200], answers) if answer["code"] == 503] + left[200:]


def event(id, body):
    return {"specversion": "1.0", "id": id, "source": "shop", "type": "t", "data": body}


class Posts:
    """Producers of a route that several processes have, each at an address of its own. What is sent waits until
    somebody answers: it is posted to one address after the other, and posted again when the connection is refused or
    lost, when no answer comes, or when the answer says later. Of a key one message is under way at a time, so that its
    order is kept. `told` has every answer as (id, code, status); `unanswered` counts posts that nobody answered after
    they had been sent."""

    PATIENCE_S, PACE_S, BATCH = 5, 0.02, 200

    def __init__(self, processes=1):
        self.endpoints = [Listen() for _ in range(processes)]
        self.lanes = [collections.defaultdict(collections.deque) for _ in self.endpoints]  # by key, for each producer
        self.changed, self.closed, self.told, self.unanswered = threading.Condition(), False, [], 0
        self.threads = [threading.Thread(target=self.produce, args=(i,)) for i in range(processes)]
        for thread in self.threads:
            thread.start()

    def at(self, process):
        return self.endpoints[process]

    def settings(self):
        return self.endpoints[0].settings()

    def restart(self, how, daemon):
        """There is no broker: the process that is posted to is ended, and started again."""
        daemon.signal(how)
        daemon.wait()
        daemon.start()

    def send(self, messages):
        with self.changed:
            for id, body in messages:
                lane = self.lanes[zlib.crc32(body["k"].encode()) % len(self.lanes)]
                lane[body["k"]].append(event(id, body))
            self.changed.notify_all()

    def answers(self, id):
        with self.changed:
            return [told[1:] for told in self.told if told[0] == id]

    def wait_answered(self, seconds=60):
        with self.changed:
            assert self.changed.wait_for(lambda: not any(map(any, map(dict.values, self.lanes))), seconds), self.lanes

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()

    def produce(self, number):
        """The life of one producer."""
        lane, turn = self.lanes[number], number
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or any(lane.values()))
                if self.closed:
                    return
                batch = [queue[0] for queue in lane.values() if queue][:self.BATCH]
            answers = self.post(self.endpoints[turn % len(self.endpoints)], batch)
            turn += 1
            with self.changed:
                for sent, answer in zip(batch, answers or []):
                    if answer["code"] != 503:
                        lane[sent["data"]["k"]].popleft()
                        self.told.append((sent["id"], answer["code"], answer["result"]))
                self.changed.notify_all()
                if answers is None:
                    self.changed.wait_for(lambda: self.closed, self.PACE_S)

    def post(self, endpoint, batch):
        """The answer of each, or None: nobody answered, or not now."""
        try:
            status, answers = endpoint.post(batch, timeout=self.PATIENCE_S,
                                        Content_Type="application/cloudevents-batch+json")
        except urllib.error.URLError:  # not even a connection
            return None
        except (OSError, http.client.HTTPException):
            with self.changed:
                self.unanswered += 1
            return None
        assert status in (200, 503), (status, answers)
        return answers if status == 200 else None


class Other:
    """The other side: answers as `answer(call)` says, and remembers every call. call: method, path, headers, body."""

    def __init__(self, answer):
        self.calls, self.lock = [], threading.Lock()
        other = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self):
                try:
                    super().handle()
                except ConnectionError:  # who called was killed
                    pass

            def serve(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                call = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}
                with other.lock:
                    other.calls.append(call)
                status, text, headers = (*answer(call), {})[:3]
                if status is None:  # hangs up without a word
                    self.close_connection = True
                    return
                try:
                    self.send_response(status)
                    for name, value in {"Content-Length": str(len(text)), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(text)
                except OSError:
                    self.close_connection = True

            do_GET = do_POST = serve

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()

    def of(self, id):
        with self.lock:
            return [call for call in self.calls if call["headers"].get("Semel-Message-Id") == id]


@contextlib.contextmanager
def silent_connections(n, *ports):
    """So many connections to each port that send nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sockets = []
    try:
        for port in ports:
            sockets += [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(n)]
        yield
    finally:
        for each in sockets:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
