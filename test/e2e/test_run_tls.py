# SPDX-License-Identifier: MIT
"""Sources by TLS and with credentials, from a real Apache Kafka and a real RabbitMQ: with the right ones effects equal
single delivery; with a wrong one the route says what is wrong and where, loses nothing and stops nobody else, and goes
on when it is mended. No secret is ever shown.
"""
import json
import subprocess

import pytest

from certs import RSA, Authority
from conftest import run
from daemon import Daemon
from kafka import Server as Kafka
from pg import free_port, wait_for
from rabbit import Server as Rabbit

SECRETS = {"SCRAM": "scram-of-the-tests", "PLAIN": "plain-of-the-tests", "AMQP": "amqp-of-the-tests",
           "LATE": "late-of-the-tests", "KEY": "key-of-the-tests", "OLD": "old-of-the-tests"}
MESSAGES = 40
ROUTE = {"values": ["id", "json:/k", "json:/n"], "do": {"sql": "INSERT INTO ledger (id, k, n) VALUES ($1, $2, $3)"}}


class Side:
    """One server, and ways to reach it: `sources` are right; what `mistakes` changes makes one of them wrong, and is
    told with these words."""

    def __init__(self, folder):
        self.authority = Authority(folder)
        self.trust = {"ca_file": str(self.authority.file)}
        self.distrust = {"ca_file": str(Authority(folder, "stranger").file)}
        self.sources, self.mistakes = {}, {}

    def certificate(self, name):
        """With a key that only a password opens."""
        crt, key = self.authority.issue(name, password=SECRETS["KEY"])
        return {**self.trust, "cert_file": str(crt), "key_file": str(key), "key_password": "${KEY}"}

    def wrong(self):
        return {name: {**self.sources[name], **changes} for name, (changes, _) in self.mistakes.items()}

    def good(self):
        return {name: source for name, source in self.sources.items() if name not in self.mistakes}


class KafkaSide(Side):
    question = "kafka"

    def __init__(self, folder):
        super().__init__(folder)
        self.server = Kafka(self.authority, {"app": SECRETS["PLAIN"]})
        self.mend("app", "SCRAM", "SCRAM-SHA-256")
        self.mend("app", "SCRAM")
        self.mend("late", "OLD")
        (folder / "scram").write_text(SECRETS["SCRAM"] + "\n")
        user = {"mechanism": "scram-sha-512", "user": "app", "password_file": str(folder / "scram")}
        late = {"mechanism": "scram-sha-512", "user": "late", "password": "${LATE}"}
        shorter = {"mechanism": "scram-sha-256", "user": "app", "password": "${SCRAM}"}
        plain = {"mechanism": "plain", "user": "app", "password": "${PLAIN}"}
        port = self.server.sasl.split(":")[1]
        for name, sasl in {"scram": user, "shorter": shorter, "plain": plain, "stranger": user, "renamed": plain,
                           "late": late, "bare": None}.items():
            self.sources[name] = {"kafka": self.server.sasl, "tls": self.trust, "sasl": sasl}
        for name in ("bare", "certified"):
            self.sources[name] = {"kafka": self.server.mutual, "tls": self.certificate("robot")}
        for name, source in self.sources.items():
            source.update(topic=name, properties={"reconnect.backoff.max.ms": "500"})
            self.server.topic(name)
        self.mistakes = {
            "stranger": ({"tls": self.distrust}, (f"sasl_ssl://localhost:{port}: certificate refused: "
                                                  "signed by an unknown authority; tls.ca_file must",)),
            "renamed": ({"kafka": f"127.0.0.1:{port}"}, (f"sasl_ssl://127.0.0.1:{port}: certificate refused: "
                                                         "it is for another host name",)),
            "late": ({}, (f"sasl_ssl://localhost:{port}", "invalid credentials", "see sasl.user, sasl.password")),
            "bare": ({"tls": self.trust}, (f"ssl://{self.server.mutual}", "it requires a certificate that it trusts: "
                                           "set tls.cert_file")),
        }

    def mend(self, user="late", secret="LATE", mechanism="SCRAM-SHA-512"):
        self.server.scram(mechanism, user, SECRETS[secret])

    def send(self, name, messages):
        self.server.send(name, [(-1, None, json.dumps(body), {"id": id}) for id, body in messages])


class RabbitSide(Side):
    def __init__(self, folder):
        super().__init__(folder)
        self.server = Rabbit(self.authority, {"app": SECRETS["AMQP"], "late": SECRETS["OLD"], "robot": None})
        (folder / "amqp").write_text(SECRETS["AMQP"])
        user = {"user": "app", "password_file": str(folder / "amqp")}
        port = self.server.tls_url.rsplit(":", 1)[1]
        for name, login in {"known": user, "stranger": user, "renamed": {"user": "app", "password": "${AMQP}"},
                            "late": {"user": "late", "password": "${LATE}"}}.items():
            self.sources[name] = {"amqp": self.server.tls_url, "tls": self.trust, **login}
        for name in ("certified", "nobody"):
            self.sources[name] = {"amqp": self.server.tls_url, "tls": self.certificate("robot")}
        for name, source in self.sources.items():
            source["queue"] = name
            self.server.queue(name)
        self.mistakes = {
            "stranger": ({"tls": self.distrust}, (f"localhost, port {port}, by TLS: certificate refused: "
                                                  "signed by an unknown authority; tls.ca_file must",)),
            "renamed": ({"amqp": f"amqps://127.0.0.1:{port}"}, (f"127.0.0.1, port {port}, by TLS: certificate refused: "
                                                                "it is for another host name",)),
            "late": ({}, (f"logging in as late at localhost, port {port}, by TLS", "ACCESS_REFUSED")),
            "nobody": ({"tls": self.certificate("nobody")}, ("logging in as the certificate says at localhost",
                                                             "ACCESS_REFUSED", "EXTERNAL")),
        }

    def mend(self):
        self.server.password("late", SECRETS["LATE"])

    def send(self, name, messages):
        self.server.send(name, [(id, json.dumps(body), None) for id, body in messages])


@pytest.fixture(scope="module", params=[KafkaSide, RabbitSide], ids=["kafka", "rabbitmq"])
def side(request, tmp_path_factory):
    made = request.param(tmp_path_factory.mktemp("side"))
    yield made
    made.server.done()


@pytest.fixture
def books(store):
    store.sql("CREATE TABLE ledger (id text NOT NULL, k text NOT NULL, n integer NOT NULL)")
    return store


def settings(books, sources):
    return {"store": books.url, "schedule": {"every": "100ms"},
            "routes": {name: {**ROUTE, "from": source} for name, source in sources.items()}}


def messages(name):
    return [(f"{name}-{i}", {"k": name, "n": i}) for i in range(MESSAGES)]


def effects(books, name):
    return sorted(books.sql("SELECT id, n FROM ledger WHERE k = ?", name))


def expect_exact(books, daemon, name):
    """Each once, though each was sent twice."""
    wanted = sorted((id, body["n"]) for id, body in messages(name))
    daemon.until(lambda: len(effects(books, name)) >= MESSAGES, f"the effects of {name}")
    assert effects(books, name) == wanted


def expect_no_secret(*texts):
    for text in texts:
        assert not [name for name, secret in SECRETS.items() if secret in text]


def says(daemon, name, words):
    """The route has told its mistake in the log."""
    told = [line for line in daemon.lines("cannot poll the source; retrying") if line["consumer"] == name]
    return any(line["level"] == "error" and all(word in line["error"] for word in words) for line in told)


# ---- check, before anybody reads ----


def check(folder, books, sources):
    """The answers of `semel check --online` to the routes' sources: {route: (result, text)}."""
    file = folder / "semel.yaml"
    file.write_text(json.dumps(settings(books, sources)))
    result = run("check", file, "--online", "--json", env=SECRETS)
    expect_no_secret(result.out, result.err, run("check", file, env=SECRETS).out)
    failed = any(answer["result"] == "failed" for answer in result.json["online"])
    assert result.code == (1 if failed else 0), result
    return {answer["route"]: (answer["result"], answer["text"]) for answer in result.json["online"]
            if answer["question"].split()[0] in ("kafka", "queue", "topic")}


def test_check_tells_mistakes_of_tls_and_credentials_and_passes_what_is_right(tmp_path, books, side):
    found = check(tmp_path, books, {**side.good(), **side.wrong()})
    assert {name for name, (result, _) in found.items() if result == "ok"} == set(side.good())
    for name, (_, words) in side.mistakes.items():
        assert found[name][0] == "failed" and all(word in found[name][1] for word in words), found[name]
    found = check(tmp_path, books, side.good())
    assert set(found) == set(side.good())


# ---- run ----


def test_routes_flow_by_tls_and_one_that_is_wrong_says_so_until_it_is_mended(tmp_path, books, side):
    # I1, T7
    for name in side.sources:
        side.send(name, messages(name) * 2)
    with Daemon(tmp_path, settings(books, {**side.wrong(), **side.good()}), env=SECRETS) as daemon:
        for name, (_, words) in side.mistakes.items():
            daemon.until(lambda name=name, words=words: says(daemon, name, words), f"{name} says what is wrong")
        for name in side.good():
            expect_exact(books, daemon, name)
        status, why = daemon.get("/readyz")
        assert status == 503 and not [name for name in side.good() if f"route {name}:" in why], why
        for name, (_, words) in side.mistakes.items():
            assert f"route {name}: the source is not connected: " in why and words[0] in why, why
            assert effects(books, name) == []
        side.mend()
        expect_exact(books, daemon, "late")
        daemon.until(lambda: "route late:" not in daemon.get("/readyz")[1], "late is ready")
        expect_no_secret(*(daemon.get(path)[1] for path in ("/readyz", "/metrics", "/v1/routes")))
    expect_no_secret(daemon.log())
    with Daemon(tmp_path, settings(books, side.sources), env=SECRETS, name="mended") as daemon:
        daemon.ready()
        for name in side.sources:
            expect_exact(books, daemon, name)
    expect_no_secret(daemon.log())


# ---- what TLS must be ----


def test_tls_before_1_2_is_refused(tmp_path, books):
    """A server that has no other, and keys for which no signature is needed."""
    authority, port = Authority(tmp_path), free_port()
    crt, key = authority.issue("server", "DNS:localhost", kind=RSA)
    weak = ["-tls1_1", "-cipher", "AES256-SHA:@SECLEVEL=0"]
    server = subprocess.Popen(["openssl", "s_server", "-accept", f"127.0.0.1:{port}", *weak, "-cert", crt, "-key", key],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: "ACCEPT" in server.stdout.readline(), "the server listens", 10)
        tls = {"ca_file": str(authority.file)}
        found = check(tmp_path, books, {"rabbit": {"amqp": f"amqps://localhost:{port}", "queue": "q", "tls": tls},
                                        "kafka": {"kafka": f"localhost:{port}", "topic": "t", "tls": tls}})
        subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *weak], input="", text=True, check=True,
                       capture_output=True, timeout=60)
    finally:
        server.kill()
        spoken, _ = server.communicate()
    for result, text in found.values():
        assert result == "failed" and "SSL handshake failed" in text, text
    assert spoken.count("CIPHER is AES256-SHA") == 1, spoken  # with who asked for nothing better
