# SPDX-License-Identifier: MIT
"""Sending to a `listen` route as producers do, and a server that plays the other side of an `http` handler."""
import http.server
import json
import threading
import urllib.error
import urllib.request

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
        left = [{"specversion": "1.0", "id": id, "source": "shop", "type": "t", "data": body} for id, body in messages]
        while left:
            status, answers = self.post(left[:200], Content_Type="application/cloudevents-batch+json")
            assert status == 200, (status, answers)
            left = [event for event, answer in zip(left[:200], answers) if answer["code"] == 503] + left[200:]


class Other:
    """The other side: answers as `answer(call)` says, and remembers every call. call: method, path, headers, body."""

    def __init__(self, answer):
        self.calls, self.lock = [], threading.Lock()
        other = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

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
