# SPDX-License-Identifier: MIT
"""The operators' API of a daemon, and the command line on the same store, to compare both."""
import http.client
import json
from urllib.parse import urlencode

from conftest import run
from daemon import Daemon
from inbox_rows import wait_for
from listen import Listen

ADMIN, READ = "the-token-of-operators", "the-token-of-onlookers"


class Api:
    """A daemon on the store, and requests to it."""

    def __init__(self, store, folder, **admin):
        self.store = store
        self.daemon = Daemon(folder, {
            "store": store.url,
            "routes": {"books": {"from": Listen().settings(), "do": {"sql": "SELECT 1"}}}},
            env={"ADMIN_TOKEN": ADMIN, "READ_TOKEN": READ})
        self.daemon.settings["admin"].update(admin)
        self.daemon.file.write_text(json.dumps(self.daemon.settings))

    def __enter__(self):
        self.daemon.__enter__()
        self.daemon.ready()
        return self

    def __exit__(self, *how):
        self.daemon.__exit__(*how)

    def ask(self, method, path, body=None, token=ADMIN, **headers):
        """(status, headers, body as bytes)"""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            names["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=60)
        try:
            connection.request(method, path, body=data, headers=names)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path, expect=200, **query):
        status, _, body = self.ask("GET", path + ("?" + urlencode(query, doseq=True) if query else ""))
        assert status == expect, (path, status, body)
        return body.decode()

    def send(self, method, path, body, expect=200):
        status, _, text = self.ask(method, path, body)
        assert status == expect, (path, body, status, text)
        return json.loads(text)

    def post(self, path, body, expect=200):
        return self.send("POST", path, body, expect)

    def semel(self, *args):
        """The command line on the same store; the store is not named, and so is in no suggested command."""
        return run(*args, env={"SEMEL_STORE": self.store.url, "SEMEL_USER": "mara"})

    def finished(self, number):
        wait_for(lambda: not json.loads(self.get(f"/v1/selections/{number}"))["running"], "the end of the selection")
        return json.loads(self.get(f"/v1/selections/{number}"))


def same(read, write, tries=5):
    """Both give the same text; ages are told in seconds, so it is tried again."""
    for left in range(tries, 0, -1):
        a, b = read(), write()
        if a == b or left == 1:
            assert a == b
            return a
