# SPDX-License-Identifier: MIT
"""`semel gateway` in front of Node's http, and of servers that misbehave: bodies, TLS, unix sockets, stops."""
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from certs import Authority
from conftest import run
from gateway import Gateway
from listen import silent_connections

NODE = """
const http = require('http');
let n = 0;
const server = http.createServer((q, s) => {
  n++;
  if (q.url === '/echo') {
    s.writeHead(200, {'content-type': 'application/octet-stream'});
    q.pipe(s);
  } else if (q.url === '/slow') {
    setTimeout(() => s.end('late'), 700);
  } else if (q.url === '/break') {
    s.writeHead(200, {'content-length': 100});
    s.write('half');
    setTimeout(() => s.destroy(), 50);
  } else {
    const names = [];
    for (let i = 0; i < q.rawHeaders.length; i += 2)
      names.push(q.rawHeaders[i].toLowerCase() + '=' + q.rawHeaders[i + 1]);
    q.resume();
    q.on('end', () => s.end(JSON.stringify({n, method: q.method, url: q.url, headers: names})));
  }
});
server.listen(0, '127.0.0.1', () => console.log('port ' + server.address().port));
"""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Raw:
    """An upstream that sends these bytes for every request, by TLS or on a unix socket if it is told to."""

    def __init__(self, answer=OK, tls=None, path=None, close=False):
        self.answer, self.tls, self.close, self.requests, self.connections = answer, tls, close, 0, 0
        self.socket = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(str(path) if path else ("127.0.0.1", 0))
        self.socket.listen(16)
        self.port = None if path else self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            if self.tls:
                client = self.tls.wrap_socket(client, server_side=True)
            self.connections += 1
            while self.one(client):
                pass
        except OSError:
            pass
        client.close()

    def one(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            got = client.recv(65536)
            if not got:
                return False
            head += got
        self.requests += 1
        client.sendall(self.answer)
        return not self.close


@pytest.fixture(name="node")
def fixture_node():
    if shutil.which("node") is None:
        pytest.skip("node is not installed (apt-get install nodejs)")
    with subprocess.Popen(["node", "-e", NODE], stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline().split()[1])
        yield f"http://127.0.0.1:{port}"
        process.kill()


def test_requests_reach_node_and_its_answers_come_back(node):
    with Gateway(node) as gateway:
        status, body, _ = gateway.ask("POST", "/v1/charges?a=1", b"{}", {"X-A": "1", "X_B": "2", "Semel-Token": "3"})
        told = json.loads(body)
        assert (status, told["method"], told["url"]) == (200, "POST", "/v1/charges?a=1")
        assert "x-a=1" in told["headers"] and "x-forwarded-for=127.0.0.1" in told["headers"]
        assert not [name for name in told["headers"] if name.startswith(("x_b", "semel-"))]
        assert gateway.ask("HEAD", "/x")[1] == b""
        assert gateway.ask("GET", "/v1/../admin")[0] == 400
        assert json.loads(gateway.ask("GET", "/")[1])["n"] == 3  # the one that was refused did not get there


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_goes_through_node_and_back_unchanged(node, chunked):
    """By two threads: Node answers while the body still comes, so who does not read stops both."""
    block = os.urandom(1 << 20)
    with Gateway(node) as gateway:
        client = socket.create_connection(("127.0.0.1", gateway.port), timeout=60)
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 20971520"
        version = b"1.1" if chunked else b"1.0"
        client.sendall(b"POST /echo HTTP/" + version + b"\r\nHost: a\r\n" + framing + b"\r\n\r\n")

        def send():
            for _ in range(20):
                client.sendall(b"100000\r\n" + block + b"\r\n" if chunked else block)
            client.sendall(b"0\r\n\r\n" if chunked else b"")
        thread = threading.Thread(target=send)
        thread.start()
        answer = http.client.HTTPResponse(client)
        answer.begin()
        got = answer.read()
        thread.join()
        assert answer.status == 200 and got == block * 20


def test_an_answer_of_node_that_breaks_off_breaks_off(node):
    with Gateway(node) as gateway, pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        gateway.ask("GET", "/break")


def test_a_stop_lets_a_request_end(node):
    with Gateway(node) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        connection.request("GET", "/slow")
        kept = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        assert gateway.ask("GET", "/", connection=kept)[0] == 200  # so the slow one has been accepted, too
        code = []
        thread = threading.Thread(target=lambda: code.append(gateway.stop()))
        thread.start()
        assert connection.getresponse().read() == b"late"
        thread.join()
        assert code == [0]


def test_an_upstream_by_tls_is_checked(tmp_path):
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, authority.issue("server", "IP:127.0.0.1")))
    up = Raw(tls=context)
    url = f"https://127.0.0.1:{up.port}"
    with Gateway(url, "--upstream-ca", authority.file) as gateway:
        for _ in range(3):
            assert gateway.ask("POST", "/", b"x" * 100000)[:2] == (200, b"ok")
    for more, address in ((("--upstream-ca", other.file), url), ((), url),
                          (("--upstream-ca", authority.file), f"https://localhost:{up.port}")):
        requests = up.requests
        with Gateway(address, *more) as gateway:
            status, body, _ = gateway.ask("POST", "/", b"x")
            assert status == 502 and b"(tls)" in body
        assert up.requests == requests  # not a byte of the request got there


def test_an_answer_to_the_end_of_tls_needs_a_proper_end(tmp_path):
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, authority.issue("server", "IP:127.0.0.1")))
    up = Raw(b"HTTP/1.1 200 OK\r\n\r\nbody", tls=context, close=True)  # Python closes without close_notify
    with Gateway(f"https://127.0.0.1:{up.port}", "--upstream-ca", authority.file) as gateway:
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            gateway.ask("GET", "/")


def test_clients_by_tls(tmp_path):
    authority = Authority(tmp_path)
    crt, key = authority.issue("gateway", "IP:127.0.0.1")
    up = Raw()
    with Gateway(f"http://127.0.0.1:{up.port}", "--cert", crt, "--key", key) as gateway:
        context = ssl.create_default_context(cafile=str(authority.file))
        for _ in range(2):
            connection = http.client.HTTPSConnection("127.0.0.1", gateway.port, context=context, timeout=60)
            assert gateway.ask("POST", "/", b"x" * 300000, connection=connection)[:2] == (200, b"ok")


def test_unix_sockets_on_both_sides(tmp_path):
    up = Raw(path=tmp_path / "up")
    with Gateway(f"unix:{tmp_path}/up", listen=f"unix:{tmp_path}/gate") as gateway:
        assert gateway.port is None
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(tmp_path / "gate"))
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = b""
        while got := client.recv(65536):
            answer += got
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\nok")
        assert up.requests == 1


def test_an_upstream_that_comes_back_is_used_again():
    up = Raw(close=True)
    with Gateway(f"http://127.0.0.1:{up.port}") as gateway:
        assert gateway.ask("GET", "/")[0] == 200
        up.socket.shutdown(socket.SHUT_RDWR)
        up.socket.close()
        assert gateway.ask("GET", "/")[0] == 502
        again = socket.socket()
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", up.port))
        again.listen(16)
        up.socket = again
        threading.Thread(target=up.accept, daemon=True).start()
        assert gateway.ask("GET", "/")[0] == 200


# P88: two loops share what the process may open, and their links to the server count, too.
def test_idle_connections_leave_room_for_requests():
    up = Raw()
    few = ["sh", "-c", 'ulimit -n 150; exec "$@"', "sh"]
    with Gateway(f"http://127.0.0.1:{up.port}", "--threads", 2, before=few) as gateway:
        with silent_connections(400, gateway.port):
            for _ in range(5):
                assert gateway.ask("GET", "/")[0] == 200
            assert len(os.listdir(f"/proc/{gateway.process.pid}/fd")) < 120


GUARDED = ["--listen", "127.0.0.1:0", "--upstream", "http://a", "--store", "sqlite::memory:"]


@pytest.mark.parametrize("options, told", [
    (["--listen", "127.0.0.1:0"], "--upstream are required"),
    (["--listen", "127.0.0.1:0", "--upstream", "ftp://a"], "it must be http://HOST:PORT"),
    (["--listen", "127.0.0.1:0", "--upstream", "http://a/path"], "it must have no path"),
    (["--listen", "nowhere", "--upstream", "http://a"], "must end in a port"),
    (["--listen", "0.0.0.0:0", "--upstream", "http://a"], "not loopback"),
    (["--listen", "127.0.0.1:0", "--upstream", "http://a", "--trusted", "ten"], "10.0.0.0/8"),
    (["--listen", "127.0.0.1:0", "--upstream", "https://a", "--upstream-ca", "/nonexistent"], "/nonexistent"),
    (["--listen", "127.0.0.1:0", "--upstream", "http://a", "--timeout", "soon"], "soon"),
    (["--listen", "127.0.0.1:0", "--upstream", "http://a", "--guard", "POST /"], "--store"),
    (["--listen", "unix:/tmp/x", "--upstream", "http://a", "--threads", "2"], "unix socket"),
    ([*GUARDED, "--guard", "POST / key=no"], "key=required|optional|off"),
    ([*GUARDED, "--caller", "me"], "header:NAME"),
    ([*GUARDED, "--lease", "35s"], "it must outlast a call"),
    ([*GUARDED, "--lease", "4s", "--timeout", "3s", "--connect", "1s"], "(4.0 s)"),
    ([*GUARDED, "--guard", "POST / settle=60s"], "settle is for a reconcile"),
    ([*GUARDED, "--guard", "POST / reconcile=http://127.0.0.1/{key} settle=59s"], "twice the time-out"),
    ([*GUARDED, "--guard", "POST / reconcile=http://other.example/{key}"], "another host without TLS"),
    ([*GUARDED, "--check", "http://other.example/may"], "another host without TLS"),
])
def test_options_that_cannot_work_are_told(options, told):
    # P95, among others
    result = run("gateway", *options)
    assert result.code == 2 and told in result.err
