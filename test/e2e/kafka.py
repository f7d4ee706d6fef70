# SPDX-License-Identifier: MIT
"""A private Apache Kafka for end-to-end tests, and sending to it.

What test/kafka/server.h is for C: one process that is broker and controller (KRaft), from the archives of
tools/kafka.list, on free ports of loopback, with a small heap, ended and removed by test/server/leash.sh even when
pytest is killed. Topics, sending and looking go through the program `kafka_tool` (test/kafka/tool.c), on librdkafka.

    from kafka import kafka             # the fixture: one server a module; skips where Java or the archives are missing

    def test_something(kafka):
        kafka.address                   # "127.0.0.1:PORT", for `from: {kafka: ...}`
        kafka.topic("payments", partitions=12, settings={"retention.ms": 3600000})
        kafka.send("payments", [(-1, "key", "payload", {"id": "m1"}), (3, None, None, None)])
        kafka.committed("billing", "payments", 12)     # [5, None, ...]: what the server keeps for the group
        kafka.wait_committed("billing", "payments", [6, 0, ...])
        kafka.kill(); kafka.start()     # as after a crash; stop() and restart() are the peaceful ones
        kafka.freeze(); kafka.thaw()    # it is there, and does not answer

    server = Server(Authority(folder), {"app": "password"})    # besides the plain listener two with TLS, for localhost:
    server.sasl                         # "localhost:PORT", for users: by PLAIN those above, by SCRAM those below
    server.scram("SCRAM-SHA-512", "app", "password")           # the same call changes the password
    server.mutual                       # "localhost:PORT", for who has a certificate of the authority

A start takes three to five seconds, a call of the tool a tenth of one, and it sends tens of thousands of records a
second; so send in bulk.
"""
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

import pytest

from conftest import hexed
from pg import free_port

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
BUILD = pathlib.Path(os.environ["SEMEL_BUILD"]) / "test" / "kafka"
READY_S = 120

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={dir}/data
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
num.network.threads=2
num.io.threads=2
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
background.threads=1
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=2097152
message.max.bytes=10485760
"""

# Behind the others: the last of two settings counts.
TLS_SETTINGS = """\
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{sasl},SSL://127.0.0.1:{mutual},\
CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://localhost:{sasl},SSL://localhost:{mutual}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL
ssl.keystore.type=PEM
ssl.keystore.location={dir}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.ssl.ssl.client.auth=required
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={scram} required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram} required;
"""
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}  # as Kafka counts them


def archives(name):
    """The class path of tools/NAME.list, or None: where tools/jars puts them."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(os.environ.get("SEMEL_JARS") or f"{cache}/semel/jars")
    paths = [folder / line.split()[1] for line in (SOURCE / f"tools/{name}.list").read_text().splitlines() if line]
    return paths if all(path.is_file() for path in paths) else None


class Server:
    """A running server; see kafka/server.h."""

    def __init__(self, authority=None, users=None):
        self.java = os.environ.get("SEMEL_JAVA") or shutil.which("java")
        self.jars, self.process = archives("kafka"), None
        if self.java is None:
            pytest.skip("Java is not installed (apt-get install openjdk-17-jre-headless; or SEMEL_JAVA=PROGRAM)")
        if self.jars is None:
            pytest.skip("Apache Kafka's archives are not here (tools/jars kafka; or SEMEL_JARS=FOLDER)")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="semel-kafka-", dir="/tmp"))
        self.leash = subprocess.Popen(["sh", SOURCE / "test/server/leash.sh", self.dir], stdin=subprocess.PIPE,
                                      start_new_session=True)
        (self.dir / "data").mkdir()
        (self.dir / "data/meta.properties").write_text("version=1\ncluster.id=c2VtZWwtdGVzdHMtMDAwMQ\nnode.id=1\n")
        self.port, controller = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        (self.dir / "server.properties").write_text(
            SETTINGS.format(port=self.port, controller=controller, dir=self.dir) +
            (self.guard(authority, users or {}, controller) if authority is not None else ""))
        self.log = open(self.dir / "log", "ab")
        self.start()

    def guard(self, authority, users, controller):
        """The settings of the listeners with TLS."""
        sasl, mutual = free_port(), free_port()
        self.sasl, self.mutual = f"localhost:{sasl}", f"localhost:{mutual}"
        crt, key = authority.issue("kafka", "DNS:localhost")
        (self.dir / "server.pem").write_text(key.read_text() + crt.read_text())
        return TLS_SETTINGS.format(
            port=self.port, controller=controller, sasl=sasl, mutual=mutual, dir=self.dir, authority=authority.file,
            scram=SCRAM_MODULE, users=" ".join(f'user_{name}="{password}"' for name, password in users.items()))

    def scram(self, mechanism, user, password):
        """Makes the user, or changes its password: AlterUserScramCredentials, version 0, by the plain listener. From
        the salted password on the server computes by itself."""
        number, digest = MECHANISMS[mechanism]
        salt, rounds = os.urandom(16), 4096
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, rounds)
        def sized(raw):
            return bytes([len(raw) + 1]) + raw  # a compact string
        head = struct.pack(">hhih", 51, 0, 1, -1) + b"\0"  # the request, its version and number; no client, no tags
        body = b"\1" + b"\2" + sized(user.encode()) + struct.pack(">bi", number, rounds) + sized(salt) + sized(salted)
        request = head + body + b"\0\0"  # no tags
        with socket.create_connection(("127.0.0.1", self.port), READY_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb")
            said = answer.read(*struct.unpack(">i", answer.read(4)))
        code, = struct.unpack(">h", said[4 + 1 + 4 + 1 + len(sized(user.encode())):][:2])  # of the only user
        assert code == 0, said

    def start(self):
        """Starts it, or starts it again on the same ports, and waits until it answers."""
        classes = BUILD / "classes.jsa"  # left by a test in C, or not there
        self.process = subprocess.Popen(
            [self.java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xlog:disable",
             "-Xlog:all=error:stderr", *([f"-XX:SharedArchiveFile={classes}"] if classes.is_file() else []),
             "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", ":".join(map(str, self.jars)), "kafka.Kafka",
             "server.properties"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.dir,
            env={**os.environ, "LC_ALL": "C"})
        (self.dir / "pid").write_text(f"{self.process.pid}\n")
        give_up = time.monotonic() + READY_S
        while self.tool("answers", check=False).returncode != 0:
            assert self.process.poll() is None, (self.dir / "log").read_text(errors="replace")[-4000:]
            assert time.monotonic() < give_up, f"the server in {self.dir} does not answer"

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.send_signal(signal.SIGCONT)
        self.process.wait(READY_S)

    def kill(self):
        self.stop(signal.SIGKILL)

    def restart(self, how=signal.SIGTERM):
        self.stop(how)
        self.start()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def done(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.log.close()
        self.leash.stdin.close()
        self.leash.wait(READY_S)

    def tool(self, *args, stdin="", check=True):
        done = subprocess.run([BUILD / "kafka_tool", self.address, *map(str, args)], input=stdin, capture_output=True,
                              text=True, check=False, timeout=READY_S)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def topic(self, name, partitions=1, settings=None):
        """Returns when each partition has a leader."""
        self.tool("topic", name, partitions, *(word for pair in (settings or {}).items() for word in pair))

    def send(self, topic, messages):
        """Each message is (partition, key, payload, headers): text or bytes, None for no key, a null payload, or no
        headers; headers are a dict or pairs; a partition below 0 is chosen by the key. Returns when the server has all
        of them; the messages of one partition lie there in this order."""
        lines = []
        for partition, key, payload, headers in messages:
            line = f"{partition} {hexed(key)} {hexed(payload)}"
            for name, value in headers.items() if isinstance(headers, dict) else headers or ():
                line += f" {hexed(name)}={hexed(value)}"
            lines.append(line)
        self.tool("send", topic, stdin="\n".join(lines))

    def read(self, topic, partitions=1):
        """Every record of the topic, partition by partition: (partition, key, payload, headers), as bytes; headers
        are a dict of text."""
        def plain(word):
            return None if word == "-" else bytes.fromhex(word[1:])
        records = []
        for line in self.tool("read", topic, partitions).stdout.splitlines():
            partition, _, key, payload, *headers = line.split(" ")
            pairs = (header.split("=") for header in headers)
            records.append((int(partition), plain(key), plain(payload),
                            {plain(name).decode(): plain(value).decode() for name, value in pairs}))
        return records

    def numbers(self, topic, partitions=1):
        """The key and the number `n` at the beginning of the payload of every record, one after the other: of topics
        that are too large for read()."""
        with subprocess.Popen([BUILD / "kafka_tool", self.address, "read", topic, str(partitions)], text=True,
                              stdout=subprocess.PIPE) as process:
            for line in process.stdout:
                _, _, key, payload, _ = line.split(" ", 4)
                number = bytes.fromhex(payload[1:81]).split(b",")[0].removeprefix(b'{"n": ')
                yield bytes.fromhex(key[1:]).decode(), int(number)
        assert process.returncode == 0

    def committed(self, group, topic, partitions=1):
        """What the server keeps for the group, a list by partition; None: nothing."""
        offsets = map(int, self.tool("committed", group, topic, partitions).stdout.split())
        return [offset if offset >= 0 else None for offset in offsets]

    def wait_committed(self, group, topic, wanted, timeout_s=60):
        """Until the group has committed these offsets (None: whatever it has)."""
        give_up = time.monotonic() + timeout_s
        while True:
            has = self.committed(group, topic, len(wanted))
            if all(offset is None or offset == there for offset, there in zip(wanted, has)):
                return
            assert time.monotonic() < give_up, f"{group} has committed {has} of {topic}; {wanted} are wanted"


@pytest.fixture(scope="module")
def kafka():
    server = Server()
    yield server
    server.done()
