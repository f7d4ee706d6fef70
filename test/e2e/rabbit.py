# SPDX-License-Identifier: MIT
"""A private RabbitMQ for end-to-end tests, and sending to it.

What test/rabbit/server.h is for C: one node with its own epmd, on free ports of loopback, as user rabbitmq when we are
root, ended and removed by test/server/leash.sh even when pytest is killed. Queues, sending and counting go through the
program `rabbit_tool` (test/rabbit/tool.c). Import the fixture `rabbit` (a server a module) by name.

    server = Server(Authority(folder), {"app": "password", "robot": None})      # listens with TLS too, as localhost:
    server.tls_url                      # "amqps://localhost:PORT"
    server.password("app", "another")   # from now on; this takes seconds

A certificate of the authority is a user's who has its common name (EXTERNAL), and nobody needs one.
"""
import contextlib
import json
import os
import pathlib
import pwd
import signal
import subprocess
import tempfile
import time

import pytest

from conftest import hexed
from pg import free_port

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
TOOL = pathlib.Path(os.environ["SEMEL_BUILD"]) / "test" / "rabbit" / "rabbit_tool"
PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"
READY_S = 120

SETTINGS = """\
listeners.tcp.1 = 127.0.0.1:{port}
log.console = true
log.console.level = warning
log.file = false
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.absolute = 1GB
num_acceptors.tcp = 2
"""

TLS_SETTINGS = """\
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {dir}/authority.pem
ssl_options.certfile = {dir}/server.crt
ssl_options.keyfile = {dir}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
load_definitions = {dir}/definitions.json
"""


def definitions(users):
    """These, and the one whom `rabbit_tool` is; None: no password opens it."""
    return json.dumps({
        "vhosts": [{"name": "/"}],
        "users": [{"name": name, "tags": "", **({"password": password} if password else {"password_hash": ""})}
                  for name, password in {"guest": "guest", **users}.items()],
        "permissions": [{"user": name, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
                        for name in ("guest", *users)]})


def server_user():
    """Who runs the server, as Popen wants it; nothing when that is ourselves."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam("rabbitmq")
    except KeyError:
        pytest.skip("RabbitMQ does not run as root, and there is no user rabbitmq")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Server:
    """A running server; see rabbit/server.h."""

    def __init__(self, authority=None, users=None):
        self.process = self.epmd = None
        if not os.access(PROGRAM, os.X_OK):
            pytest.skip("RabbitMQ is not installed (apt-get install rabbitmq-server)")
        self.user = server_user()
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="semel-rabbit-", dir="/tmp"))
        self.leash = subprocess.Popen(["sh", SOURCE / "test/server/leash.sh", self.dir], stdin=subprocess.PIPE,
                                      start_new_session=True)
        self.dir.chmod(0o755)
        self.port, self.epmd_port, dist = free_port(), free_port(), free_port()
        self.url = f"amqp://127.0.0.1:{self.port}"
        tls = self.guard(authority, users or {}) if authority is not None else ""
        (self.dir / "rabbitmq.conf").write_text(SETTINGS.format(port=self.port) + tls)
        (self.dir / "enabled_plugins").write_text("[rabbitmq_auth_mechanism_ssl].\n" if tls else "[].\n")
        if self.user:
            os.chown(self.dir, self.user["user"], self.user["group"])
        self.env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
            "HOME": str(self.dir), "RABBITMQ_NODENAME": f"semel{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": f"{self.dir}/data", "RABBITMQ_LOG_BASE": f"{self.dir}/logs",
            "RABBITMQ_CONFIG_FILE": f"{self.dir}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{self.dir}/enabled_plugins",
            "RABBITMQ_PID_FILE": f"{self.dir}/node.pid", "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
            "RUNNING_UNDER_SYSTEMD": "true",  # no shell in between: the pid is the server's own
            "RABBITMQ_DIST_PORT": str(dist), "ERL_EPMD_PORT": str(self.epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_FLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        self.log = open(self.dir / "log", "ab")
        self.epmd = self.launch(["epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1"], "epmd.pid")
        self.start()

    def guard(self, authority, users):
        """The settings of the listener with TLS, and the files that they name."""
        port = free_port()
        self.tls_url = f"amqps://localhost:{port}"
        crt, key = authority.issue("rabbit", "DNS:localhost")
        for name, text in {"authority.pem": authority.file.read_text(), "server.crt": crt.read_text(),
                           "server.key": key.read_text(), "definitions.json": definitions(users)}.items():
            (self.dir / name).write_text(text)
            if self.user:
                os.chown(self.dir / name, self.user["user"], self.user["group"])
        return TLS_SETTINGS.format(port=port, dir=self.dir)

    def password(self, user, password):
        """rabbitmqctl, which is slow."""
        done = subprocess.run(["/usr/lib/rabbitmq/bin/rabbitmqctl", "change_password", user, password], cwd=self.dir,
                              env=self.env, capture_output=True, text=True, check=False, timeout=READY_S, **self.user)
        assert done.returncode == 0, done.stdout + done.stderr

    def launch(self, argv, pid_file):
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.dir,
                                   env=self.env, start_new_session=True, **self.user)
        (self.dir / pid_file).write_text(f"{process.pid}\n")
        return process

    def start(self):
        """Starts it, or starts it again on the same ports, and waits until it answers."""
        self.process = self.launch([PROGRAM], "pid")
        give_up = time.monotonic() + READY_S
        while self.tool("answers", check=False).returncode != 0:
            assert self.process.poll() is None, (self.dir / "log").read_text(errors="replace")[-4000:]
            assert time.monotonic() < give_up, f"the server in {self.dir} does not answer"
            time.sleep(0.05)

    def stop(self, how=signal.SIGTERM):
        """SIGKILL: as after a crash."""
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(how)
        self.process.wait(READY_S)

    def kill(self):
        self.stop(signal.SIGKILL)

    def restart(self, how=signal.SIGTERM):
        self.stop(how)
        self.start()

    @contextlib.contextmanager
    def with_settings(self, more):
        """Restarts it with more lines in its rabbitmq.conf, and afterwards without them."""
        file = self.dir / "rabbitmq.conf"
        before = file.read_text()
        try:
            file.write_text(before + more)
            self.restart()
            yield
        finally:
            file.write_text(before)
            self.restart()

    def done(self):
        for process in (self.process, self.epmd):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(READY_S)
        self.log.close()
        self.leash.stdin.close()
        self.leash.wait(READY_S)

    def tool(self, *args, stdin="", check=True):
        done = subprocess.run([TOOL, str(self.port), *map(str, args)], input=stdin, capture_output=True, text=True,
                              check=False, timeout=READY_S)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def queue(self, name, kind="classic", single_active=False):
        """Durable. A quorum queue is gone after a kill (3.10.8) until its name has reached the disk, which takes
        seconds or a peaceful restart."""
        self.tool("queue", name, kind, *(["single"] if single_active else []))

    def delete(self, name):
        self.tool("delete", name)

    def send(self, queue, messages):
        """Each message is (id, payload, headers), with None for no id or no headers. Returns when the server has all
        of them."""
        lines = []
        for identity, payload, headers in messages:
            fields = [hexed(identity), hexed(payload)]
            fields += [f"{hexed(name)}={hexed(value)}" for name, value in (headers or {}).items()]
            lines.append(" ".join(fields) + "\n")
        self.tool("send", queue, stdin="".join(lines))

    def take(self, queue):
        """Every message that is ready, taken off the queue: (id, payload as bytes)."""
        words = (line.split(" ") for line in self.tool("take", queue).stdout.splitlines())
        return [(bytes.fromhex(id[1:]).decode("utf-8", "surrogateescape"), bytes.fromhex(payload[1:]))
                for id, payload in words]

    def length(self, queue):
        """How many messages are ready, those with consumers not counted; None: no such queue."""
        n = int(self.tool("length", queue).stdout)
        return n if n >= 0 else None


@pytest.fixture(scope="module")
def rabbit():
    server = Server()
    yield server
    server.done()
