# SPDX-License-Identifier: MIT
"""The consumers in other languages: every message is delivered twice to each of them, in another order; each of them is
killed, and loses its server."""
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from middleware import NODE_PATHS
from pg import pg_server  # noqa: F401  (a fixture)
from pgsql import SOURCE, Shop

LONG = os.environ.get("SEMEL_LONG") == "1"
UNREACHABLE = ["dial tcp", "no such host", "i/o timeout", "Unknown host", "Could not transfer", "Connection refused"]
EXAMPLES = SOURCE / "examples"
JDBC = pathlib.Path("/usr/share/java/postgresql.jar")
GO_PQ = pathlib.Path("/usr/share/gocode/src/github.com/lib/pq")
ANSWER_S = 60


def need(program, package):
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here: apt-get install {package}")


def python(_):
    return [sys.executable, EXAMPLES / "python_consumer.py"]


def node(_):
    need("node", "nodejs")
    if not any((pathlib.Path(path) / "pg").is_dir() for path in NODE_PATHS):
        pytest.skip("Node has no module pg here: apt-get install node-pg, or npm install pg and NODE_PATH")
    return ["node", EXAMPLES / "node_consumer.js"]


def go(tmp_path):
    """Built against Debian's copy of the driver, without a network."""
    need("go", "golang-go")
    if not GO_PQ.is_dir():
        pytest.skip("Go has no lib/pq here: apt-get install golang-github-lib-pq-dev")
    for name in ["main.go", "go.mod"]:
        shutil.copy(EXAMPLES / "go_consumer" / name, tmp_path)
    env = {**os.environ, "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOSUMDB": "off", "GOTOOLCHAIN": "local"}
    for words in [("mod", "edit", f"-replace=github.com/lib/pq={GO_PQ}"), ("build", "-o", "consumer", ".")]:
        done = subprocess.run(["go", *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return [tmp_path / "consumer"]


def fetched(words, folder, what):
    """Builds what needs modules of a registry, in the long form: where there is none, it is skipped."""
    if not LONG:
        pytest.skip("SEMEL_LONG=1 builds it: its modules come from a registry")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode != 0 and any(word in done.stdout + done.stderr for word in UNREACHABLE):
        pytest.skip(f"no registry of {what} modules can be reached from here")
    assert done.returncode == 0, done.stdout + done.stderr


def go_pgx(tmp_path):
    need("go", "golang-go")
    shutil.copytree(EXAMPLES / "go_pgx", tmp_path, dirs_exist_ok=True)
    fetched(["go", "build", "-o", "consumer", "."], tmp_path, "Go")
    return [tmp_path / "consumer"]


def spring(tmp_path):
    need("mvn", "maven")
    need("javac", "default-jdk-headless")
    shutil.copytree(EXAMPLES / "spring", tmp_path, dirs_exist_ok=True)
    fetched(["mvn", "-q", "-B", "package", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"], tmp_path,
            "Java")
    return ["java", "-cp", f"{tmp_path}/target/classes:{tmp_path}/target/lib/*", "Consumer"]


def java(tmp_path):
    need("javac", "default-jdk-headless")
    if not JDBC.exists():
        pytest.skip("Java has no JDBC driver here: apt-get install libpostgresql-jdbc-java")
    subprocess.run(["javac", "-d", tmp_path, EXAMPLES / "java" / "Consumer.java"], check=True)
    return ["java", "-cp", f"{tmp_path}:{JDBC}", "Consumer"]


def deliver(command, env, messages, deliveries):
    """Runs the consumer on these deliveries; what it was told about each."""
    done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True, check=False,
                          input="".join(f"{name} {messages[name]}\n" for name in deliveries), timeout=120)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def environment(shop):
    return {**os.environ, "DATABASE_URL": f"{shop.url}?sslmode=disable", "NODE_PATH": ":".join(NODE_PATHS),
            "JDBC_URL": f"jdbc:postgresql://127.0.0.1:{shop.server.port}/{shop.name}?user=postgres"}


LANGUAGES = [python, node, go, java, go_pgx, spring]


# T6, T14, I2, I3
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_message_delivered_twice_takes_effect_once_and_never_again(pg_server, tmp_path, language):  # noqa: F811
    command = language(tmp_path)
    shop = Shop(pg_server)
    shop.sql("DROP TABLE ledger; CREATE TABLE ledger (account text, cents bigint)")
    messages = {f"evt-{n}": f'{{"account": "a{n % 3}", "cents": {n}}}' for n in range(1, 41)}
    deliveries = [*messages] * 2
    random.Random(4).shuffle(deliveries)
    env = environment(shop)
    seen = set()
    for _ in range(2):
        told = deliver(command, env, messages, deliveries)
        for name, (said, *answer) in zip(deliveries, told):
            assert [said, *answer] == [name, *(["ack", "duplicate"] if name in seen else ["run", "new"])]
            seen.add(name)
        assert len(told) == len(deliveries)
        assert sorted(shop.sql("SELECT account, cents FROM ledger")) == sorted(
            (f"a{n % 3}", str(n)) for n in range(1, 41))
    assert shop.sql("SELECT status, count(*) FROM semel.inbox GROUP BY 1") == [("completed", "40")]
    # A4: the failure of one that is bad is committed, with its payload
    bad = {"evt-bad": '{"account": "a0", "cents": "none"}'}
    assert deliver(command, env, bad, [*bad] * 2) == [["evt-bad", "ack", "new"], ["evt-bad", "ack", "dead"]]
    assert shop.sql("SELECT status, attempts, payload IS NOT NULL FROM semel.inbox WHERE message_id = 'evt-bad'") == [
        ("dead", "1", "t")]
    # P31: what is no JSON is kept as it came, and the consumer goes on
    poison = {"p1": "no JSON", "p2": '{"account": "\\u0000", "cents": 1}', "p3": "", "p4": '{"cents": 1',
              "p5": "nul \0", "p6": "[" * 60000, "p7": "long" * 25000, "good": '{"account": "last", "cents": 1}'}
    assert deliver(command, env, poison, [*poison] * 2) == [
        *([name, *(["run", "new"] if name == "good" else ["ack", "new"])] for name in poison),
        *([name, "ack", "duplicate" if name == "good" else "dead"] for name in poison)]
    assert dict(shop.sql("SELECT message_id, encode(payload, 'hex') FROM semel.inbox WHERE message_id ~ '^p'")) == {
        name: body.encode().hex() for name, body in poison.items() if name != "good"}
    # P31: so is one whose id cannot be stored
    odd = {"": "no id", "k" * 256: "a long id", "n\0": "a NUL in it", "k" * 255: '{"account": "odd", "cents": 1}'}
    assert deliver(command, env, odd, odd) == [
        ["ack", "no_id"], ["k" * 256, "ack", "no_id"], ["n\0", "ack", "no_id"], ["k" * 255, "run", "new"]]
    assert sorted(shop.sql("SELECT convert_from(payload, 'UTF8') FROM semel.inbox WHERE status = 'quarantined'")) == [
        ("a NUL in it",), ("a long id",), ("no id",)]


class Broker:
    """Gives a consumer its lines, a few ahead, and again what is unanswered when it ends; its lines are the answers."""

    AHEAD = 4

    def __init__(self, command, shop, messages, deliveries, chance):
        self.words, self.env = [str(word) for word in command], environment(shop)
        self.server, self.messages, self.left = shop.server, messages, collections.deque(deliveries)
        self.asked, self.told, self.again, self.process = collections.deque(), [], 0, None
        self.chance = chance

    def start(self):
        self.process = subprocess.Popen(self.words, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)

    def ended(self):
        """Its exit code, and its complaint. What it has not answered is to be delivered again."""
        self.process.stdin = None  # it may be broken
        complaint = self.process.communicate(timeout=60)[1]
        code, self.process = self.process.returncode, None
        self.again += len(self.asked)
        self.left.extendleft(reversed(self.asked))
        self.asked.clear()
        return code, complaint.decode()

    def answer(self):
        """One more of its lines; False: it has ended."""
        while self.left and len(self.asked) < self.AHEAD:
            name = self.left.popleft()
            self.asked.append(name)
            try:
                self.process.stdin.write(f"{name} {self.messages[name]}\n".encode())
                self.process.stdin.flush()
            except BrokenPipeError:
                break
        late = threading.Timer(ANSWER_S, self.process.kill)
        late.start()
        line = self.process.stdout.readline().decode()
        late.cancel()
        if not line.endswith("\n"):
            return False
        name, act, why = line.split()
        assert name == self.asked.popleft()
        if act == "later":
            assert why == "busy"  # the server has yet to notice that who is killed is gone
            self.left.append(name)
        else:
            self.told.append((name, act, why))
        return True

    def kill(self):
        time.sleep(self.chance.random() / 40)  # anywhere in the work on the next one
        self.process.kill()
        while self.answer():  # what it had printed counts
            pass
        assert self.ended()[0] == -signal.SIGKILL

    def restart(self):
        """Of the server: an error ends who is at work, and who is started meanwhile, and nothing is acknowledged."""
        self.server.stop(signal.SIGINT)
        while self.answer():
            pass
        code, complaint = self.ended()
        assert code > 0 and complaint, (code, complaint)
        self.start()
        assert not self.answer()
        code, complaint = self.ended()
        assert code > 0 and complaint, (code, complaint)
        self.server.start()


# T1 T6 T14 I2 I26: all that a process and a database can do
@pytest.mark.parametrize("language", LANGUAGES)
def test_books_balance_after_poison_copies_kills_and_a_restart(pg_server, tmp_path, language):  # noqa: F811
    command = language(tmp_path)
    shop = Shop(pg_server)
    shop.sql("""DROP TABLE ledger; CREATE TABLE ledger (account text, cents bigint);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
PERFORM pg_sleep(0.01); RETURN coalesce(NEW, OLD); END $$;
CREATE TRIGGER slow BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION slow();
CREATE TRIGGER slow BEFORE DELETE ON semel.begun FOR EACH ROW EXECUTE FUNCTION slow()""")  # kills before it, and behind
    rounds = 20 if LONG else 6
    good = {f"evt-{n}": json.dumps({"account": f"a{n % 3}", "cents": n}) for n in range(1, 10 * rounds)}
    poison = {"p1": "no JSON", "p2": '{"account": "\\u0000", "cents": 1}', "p3": '{"account": "a0", "cents": "none"}',
              "p4": '{"cents": 1'}
    deliveries = [*good, *poison] * 2
    chance = random.Random(17)
    chance.shuffle(deliveries)
    broker = Broker(command, shop, {**good, **poison}, deliveries, chance)
    accidents = {(n + 1) * len(deliveries) // (rounds + 2): broker.restart if n % 7 == 1 else broker.kill
                 for n in range(rounds + 1)}
    try:
        while broker.left or broker.asked:
            if broker.process is None:
                broker.start()
            assert broker.answer(), broker.ended()
            for at in [at for at in accidents if at <= len(broker.told) and broker.asked]:
                accidents.pop(at)()
                break
        broker.process.stdin.close()
        assert broker.ended() == (0, "")
    finally:
        if broker.process:
            broker.process.kill()
    assert not accidents and broker.again > rounds  # each of them has hit somebody at work
    assert sorted(name for name, _, _ in broker.told) == sorted(deliveries)
    new = [name for name, _, why in broker.told if why == "new"]
    assert len(new) == len(set(new))  # what is told is committed: nobody is told twice
    assert sorted(shop.sql("SELECT account, cents FROM ledger")) == sorted(
        (row["account"], str(row["cents"])) for row in map(json.loads, good.values()))
    rows = shop.sql("SELECT message_id, status, attempts, payload IS NOT NULL FROM semel.inbox")
    assert {row[0]: row[1:] for row in rows} == {**{name: ("completed", "1", "f") for name in good},
                                                 **{name: ("dead", "1", "t") for name in poison}}
