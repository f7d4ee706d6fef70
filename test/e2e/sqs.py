# SPDX-License-Identifier: MIT
"""A private ElasticMQ (SQS) for end-to-end tests, and talking to it by plain urllib.

What test/sqs/server.h is for C: one process from the archives of tools/sqs.list, on a free port of loopback, with a
small heap and its queues in memory, ended and removed by test/server/leash.sh even when pytest is killed.
Import the fixture `sqs` (a server a module) by name; `lasting_sqs` (a server a test) keeps queues and messages in
files, and has them after restart(), even after SIGKILL.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid

import pytest

from kafka import archives
from pg import free_port

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
READY_S = 120
BATCH = 10

SETTINGS = """\
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
generate-node-address = false
"""
IN_MEMORY = """\
queues-storage { enabled = false }
messages-storage { enabled = false }
"""
# Without WRITE_DELAY=0 the database answers before it has written, and a kill costs what came in the last half second.
IN_FILES = """\
queues-storage { enabled = true, path = "queues.conf" }
messages-storage { enabled = true, driver-class = "org.h2.Driver", uri = "jdbc:h2:./messages;WRITE_DELAY=0"
  username = "", password = "", prune-data-on-init = false }
"""
LOGGING = """\
<configuration><appender name="A" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %level
%msg%n</pattern> </encoder></appender><root level="warn"><appender-ref ref="A"/></root></configuration>
"""


class Server:
    """A running server; see sqs/server.h. `url(queue)` is what a route's `sqs:` wants."""

    def __init__(self, lasting=False):
        self.java = os.environ.get("SEMEL_JAVA") or shutil.which("java")
        self.jars, self.process = archives("sqs"), None
        if self.java is None:
            pytest.skip("Java is not installed (apt-get install openjdk-17-jre-headless; or SEMEL_JAVA=PROGRAM)")
        if self.jars is None:
            pytest.skip("ElasticMQ's archives are not here (tools/jars sqs; or SEMEL_JARS=FOLDER)")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="semel-sqs-", dir="/tmp"))
        self.leash = subprocess.Popen(["sh", SOURCE / "test/server/leash.sh", self.dir], stdin=subprocess.PIPE,
                                      start_new_session=True)
        self.port = free_port()
        (self.dir / "sqs.conf").write_text(SETTINGS.format(port=self.port) + (IN_FILES if lasting else IN_MEMORY))
        (self.dir / "logback.xml").write_text(LOGGING)
        self.log = open(self.dir / "log", "ab")
        self.start()

    def start(self):
        """Starts it, or starts it again on the same port, and waits until it answers."""
        self.process = subprocess.Popen(
            [self.java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
             "-Dconfig.file=sqs.conf", "-Dlogback.configurationFile=logback.xml", "-cp", ":".join(map(str, self.jars)),
             "org.elasticmq.server.Main"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.dir,
            env={**os.environ, "LC_ALL": "C"})
        (self.dir / "pid").write_text(f"{self.process.pid}\n")
        give_up = time.monotonic() + READY_S
        while not self.answers():
            assert self.process.poll() is None, (self.dir / "log").read_text(errors="replace")[-4000:]
            assert time.monotonic() < give_up, f"the server in {self.dir} does not answer"

    def answers(self):
        try:
            self.ask("ListQueues", {})
            return True
        except urllib.error.URLError:
            return False

    def stop(self, how=signal.SIGTERM):
        """What it held is gone, however it is stopped, unless it is lasting."""
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(how)
        self.process.wait(READY_S)

    def restart(self, how=signal.SIGTERM):
        self.stop(how)
        self.start()

    def done(self):
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)
        self.log.close()
        self.leash.stdin.close()
        self.leash.wait(READY_S)

    def ask(self, action, body):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/", json.dumps(body).encode(),
            {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")

    def url(self, queue):
        return f"http://127.0.0.1:{self.port}/000000000000/{queue}"

    def queue(self, name, **attributes):
        """Made; FIFO by its name."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        self.ask("CreateQueue", {"QueueName": name, "Attributes": attributes})
        return self.url(name)

    def send(self, queue, messages):
        """Each message is (group, body, attributes), with None for no group (standard queues) or no attributes. Returns
        when the server has all of them."""
        for at in range(0, len(messages), BATCH):
            entries = []
            for i, (group, body, attributes) in enumerate(messages[at:at + BATCH]):
                entry = {"Id": str(i), "MessageBody": body}
                if attributes:
                    entry["MessageAttributes"] = {name: {"DataType": "String", "StringValue": value}
                                                  for name, value in attributes.items()}
                if group is not None:
                    entry |= {"MessageGroupId": group, "MessageDeduplicationId": str(uuid.uuid4())}
                entries.append(entry)
            answer = self.ask("SendMessageBatch", {"QueueUrl": self.url(queue), "Entries": entries})
            assert not answer.get("Failed"), answer

    def take(self, queue):
        """Every message that is visible, deleted: (group, id, body)."""
        found = []
        while True:
            got = self.ask("ReceiveMessage", {"QueueUrl": self.url(queue), "MaxNumberOfMessages": BATCH,
                                              "MessageAttributeNames": ["All"], "AttributeNames": ["All"]})
            if not got.get("Messages"):
                return found
            for message in got["Messages"]:
                found.append((message["Attributes"].get("MessageGroupId"),
                              message.get("MessageAttributes", {}).get("id", {}).get("StringValue"), message["Body"]))
                self.ask("DeleteMessage", {"QueueUrl": self.url(queue), "ReceiptHandle": message["ReceiptHandle"]})

    def count(self, queue):
        """What the queue holds: (visible, received and not deleted, delayed)."""
        about = self.ask("GetQueueAttributes", {"QueueUrl": self.url(queue), "AttributeNames": ["All"]})["Attributes"]
        return tuple(int(about["ApproximateNumberOfMessages" + kind]) for kind in ("", "NotVisible", "Delayed"))


@pytest.fixture(scope="module")
def sqs():
    server = Server()
    yield server
    server.done()


@pytest.fixture
def lasting_sqs():
    server = Server(lasting=True)
    yield server
    server.done()
