# SPDX-License-Identifier: MIT
"""`semel gateway` as a process, for end-to-end tests."""
import http.client
import json
import os
import re
import signal
import subprocess

from conftest import binary


class Gateway:
    """The program, on a port that it chose. `env` adds to its environment; `before` is a command that starts it."""

    def __init__(self, upstream, *more, listen="127.0.0.1:0", env=None, before=()):
        self.process = subprocess.Popen([*before, binary(), "gateway", "--listen", listen, "--upstream", upstream,
                                         *map(str, more)], stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        line = self.process.stdout.readline()
        found = re.search(r"port (\d+)", line)
        self.port = int(found[1]) if found else None

    def ask(self, method, path, body=None, headers=None, connection=None):
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer

    def pay(self, key, body=b"{}", path="/pay", **headers):
        """A guarded POST: the status, the type of a refusal or None, and whether it was replayed. None: no answer."""
        try:
            status, text, answer = self.ask("POST", path, body, {"Idempotency-Key": key, **headers})
        except (OSError, http.client.HTTPException):
            return None
        problem = answer.getheader("Content-Type") == "application/problem+json"
        word = json.loads(text)["type"].rsplit(":", 1)[1] if problem else None
        return status, word, answer.getheader("Idempotent-Replayed") == "true"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
