# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/: every driver passes the same cases, on a real server that is cut, killed and
restarted.

The consumers are apps/inbox_app.py and apps/inbox_app.js: they do what a line of JSON asks. Each test has a consumer of
its own. test_inbox_python.py, test_inbox_adapters.py and test_inbox_node.py run it, each for its DRIVERS.
"""
import base64
import collections
import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import uuid

import pytest

from middleware import NODE_PATHS, Wire
from pg import free_port
from pgsql import (MIGRATIONS, SOURCE, Database, Shop, absent_standby, ask, committed,  # noqa: F401
                   pg_server, poll, run_file)

LONG = bool(os.environ.get("SEMEL_LONG"))
APPS = pathlib.Path(__file__).parent / "apps"
MODULES = {"psycopg": ["psycopg_pool"], "async": ["psycopg_pool"], "sqlalchemy": ["sqlalchemy", "psycopg2"],
           "django": ["django", "psycopg2"]}
ANSWER_S = 120
RETRY_SOON = '{"retry_first": "1ms", "retry_ceiling": "1ms"}'


def command(driver, tmp_path):
    """How the consumer is started, and its environment. Skips what this machine does not have."""
    if driver != "pg":
        for module in MODULES[driver]:
            pytest.importorskip(module, reason=f"Python has no {module} here: tools/setup languages")
        return [sys.executable, APPS / "inbox_app.py", driver], {"PYTHONPATH": str(SOURCE / "clients/python")}
    return node_command(APPS / "inbox_app.js", tmp_path, "pg")


def node_command(file, tmp_path, *modules):
    if shutil.which("node") is None:
        pytest.skip("there is no node here: apt-get install nodejs")
    for module in modules:
        if not any((pathlib.Path(path) / module).is_dir() for path in NODE_PATHS):
            pytest.skip(f"Node has no module {module} here: tools/setup languages, or npm install and NODE_PATH")
    (tmp_path / "node_modules").mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (tmp_path / "node_modules" / "semel").symlink_to(SOURCE / "clients/node")
    return ["node", file], {"NODE_PATH": ":".join([str(tmp_path / "node_modules"), *NODE_PATHS])}


class Cutter(Wire):
    """A wire that loses one COMMIT: before the server has it, or with the answer."""

    when, deaf = None, frozenset()

    def pump(self, one, other):  # pylint: disable=arguments-differ
        near = any(one is pair[0] for pair in self.pairs)
        with contextlib.suppress(OSError):
            while (piece := one.recv(65536)) and one not in self.deaf:
                if near and self.when and b"COMMIT\0" in piece:
                    when, self.when = self.when, None
                    if when == "before":
                        break
                    self.deaf = self.deaf | {other}  # the server commits, and nobody hears of it
                other.sendall(piece)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class App:
    """A consumer under test."""

    def __init__(self, driver, urls, tmp_path):
        self.driver, self.calls, self.log = driver, tmp_path / "calls", tmp_path / "log"
        self.words, more = command(driver, tmp_path)
        self.env = {**os.environ, **more, "DATABASE_URLS": json.dumps(urls), "CALLS": str(self.calls),
                    "PYTHONFAULTHANDLER": "1"}
        self.eye = None
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*map(str, self.words)], env=self.env, stdin=subprocess.PIPE, text=True,
                                            stdout=subprocess.PIPE, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def ask(self, op, **asked):
        self.process.stdin.write(json.dumps({"op": op, **asked}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        """One that does not come is the end of the process: Python's writes where it stands."""
        late = threading.Timer(ANSWER_S, self.process.send_signal, [signal.SIGABRT])
        late.start()
        line = self.process.stdout.readline()
        late.cancel()
        assert line, self.log.read_text()[-3000:]
        said = json.loads(line)
        return said["is"] if "is" in said else (said["error"], said["text"])


class Desk:
    """A consumer of one test, and what is in the database of it."""

    def __init__(self, app, shop, name):
        self.app, self.shop, self.name = app, shop, name

    def sql(self, text):
        """By a connection that stays, because psql takes its time."""
        if self.app.eye is None or self.app.eye.closed:
            self.app.eye = self.shop.connect(autocommit=True)
        return [tuple("" if value is None else str(value) for value in row) for row in ask(self.app.eye, text)]

    def deliver(self, *messages, **asked):
        said = self.app.ask("deliver", consumer=self.name, messages=[
            message if isinstance(message, dict) else {"id": message[0], "body": json.dumps(message[1])}
            for message in messages], **asked)
        return said[0] if isinstance(said, list) and len(messages) == 1 else said

    def ask(self, op, **asked):
        return self.app.ask(op, consumer=self.name, **asked)

    def set(self, settings):
        self.sql(f"SELECT semel.consumer('{self.name}', '{settings}')")

    def books(self):
        return sorted(self.sql("SELECT message_id, amount FROM ledger"))

    def rows(self, columns="message_id, status, attempts"):
        return self.sql(f"SELECT {columns} FROM semel.inbox WHERE consumer = '{self.name}' ORDER BY message_id")

    def shown(self, id):
        done = subprocess.run([os.environ["SEMEL_BIN"], "inbox", "show", id, "--consumer", self.name, "--store",
                               self.shop.url, "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def calls(self):
        return [line.split() for line in self.app.calls.read_text().splitlines()] if self.app.calls.exists() else []


def pytest_generate_tests(metafunc):
    """The dear ones are run for every driver in the long form only: their rules are the same code in all of them."""
    if "running" in metafunc.fixturenames:
        dear = metafunc.definition.name in ("test_storm_of_poison_copies_and_kills_balances",
                                            "test_killed_consumer_leaves_one_effect_and_its_lease_is_recovered",
                                            "test_worker_outlives_a_restart_of_the_server")
        drivers = metafunc.module.DRIVERS[:1] if dear and not LONG else metafunc.module.DRIVERS
        metafunc.parametrize("running", drivers, indirect=True, scope="module")


@pytest.fixture(scope="module")
def running(request, pg_server, tmp_path_factory):  # noqa: F811
    """One server for the module, one database and one process per driver."""
    shop, wire = Shop(pg_server, request.param), Cutter(pg_server.port)
    shop.sql("CREATE SEQUENCE tries; CREATE TABLE account (id int PRIMARY KEY); "
             "CREATE TABLE line (account int REFERENCES account DEFERRABLE INITIALLY DEFERRED, "
             "strict int REFERENCES account); ALTER TABLE ledger ADD tx bigint DEFAULT txid_current(); "
             "GRANT ALL ON ledger TO PUBLIC")
    if not hasattr(pg_server, "others"):
        pg_server.others = Database(pg_server, "no_schema"), Database(pg_server, "old")
        for path in MIGRATIONS[:12]:
            run_file(pg_server.others[1], path)
        pg_server.psql("postgres", "CREATE ROLE nobody_much LOGIN")
    urls = {"default": shop.url.replace(str(pg_server.port), str(wire.port)), "down": f"postgres://postgres@127.0.0.1:"
            f"{free_port()}/shop", "no_schema": pg_server.others[0].url, "old": pg_server.others[1].url,
            "no_rights": pg_server.url(shop.name, "nobody_much"), "narrow": shop.url}
    made = App(request.param, urls, tmp_path_factory.mktemp("app"))
    made.shop, made.wire = shop, wire
    yield made
    made.kill()
    wire.done()


@pytest.fixture
def desk(running, request):
    running.calls.write_text("")
    made = Desk(running, running.shop, f"{request.node.originalname[5:60]}{random.randrange(10 ** 6)}")
    made.sql("TRUNCATE ledger, line; ALTER SEQUENCE tries RESTART; DELETE FROM semel.outbox")
    return made


# ---- deliveries -----------------------------------------------------------------------------------------------------

# I1 I2 I26
def test_message_runs_once_and_its_copy_gets_the_outcome(desk):
    first = desk.deliver(("m1", {"cents": 5, "outcome": {"receipt": 7}, "event": {"paid": 5}}))
    assert (first["act"], first["why"], first["acknowledge"]) == ("run", "new", True)
    again = desk.deliver(("m1", {"cents": 5, "outcome": {"receipt": 7}, "event": {"paid": 5}}))
    assert (again["act"], again["why"], again["outcome"]) == ("ack", "duplicate", {"receipt": 7})
    assert desk.books() == [("m1", "5")] and desk.rows() == [("m1", "completed", "1")]
    assert desk.sql("SELECT aggregatetype, aggregateid, type, convert_from(payload, 'UTF8')::jsonb ->> 'paid', "
                         "headers::jsonb ->> 'from' FROM semel.outbox") == [("payment", "m1", "paid", "5", "test")]


FAILURES = [({"raise": "Permanent"}, "dead"), ({"raise": "Transient"}, "failed"), ({"raise": "Rejected"}, "rejected"),
            ({"raise": "Unknown"}, "unknown"), ({"raise": "KeyError"}, "failed"), ({"raise": "Bad"}, "dead"),
            ({"sql": "SELECT 1/0"}, "dead"), ({"cents": -1}, "dead"), ({"sql": "INSERT INTO line VALUES (NULL, 7)"},
            "failed"), ({"sql": "INSERT INTO line VALUES (7, NULL)"}, "failed"),
            ({"sql": "SET LOCAL statement_timeout = 1; SELECT pg_sleep(9)"}, "failed"), ({"swallow": True}, "failed"),
            ({"sql": "DO $$ BEGIN RAISE EXCEPTION 'no'; END $$"}, "dead"),
            ({"sql": "SELECT (SELECT generate_series(1, 2))"}, "dead"), ({"sql": "SELECT ''::int"}, "dead"),
            ({"sql": "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '44000'; END $$"}, "dead"),
            ({"sql": "SELECT repeat('[', 50000)::jsonb"}, "dead")]  # 21, 22, 44, 54


# I5 I6: the effect and the event are undone, the failure is committed with its payload, the broker may forget it
def test_every_class_of_failure_is_recorded_with_the_payload(desk):
    for n, (asked, status) in enumerate(FAILURES):
        body = {"event": {"never": "sent"}, "text": "no \0 \ud800 such account", **asked}
        said = desk.deliver((f"m{n}", body))
        assert isinstance(said, dict) and (said["status"], said["acknowledge"]) == (status, True), (asked, said)
    assert desk.books() == [] and desk.sql("SELECT count(*) FROM semel.outbox") == [("0",)]
    rows = dict(row[:2] for row in desk.rows("message_id, status || ' ' || attempts || ' ' || (payload IS NOT NULL)"))
    for n, (asked, status) in enumerate(FAILURES):
        assert rows[f"m{n}"] == f"{status} 1 {'false' if status == 'rejected' else 'true'}", asked


# A type that does not fit may be the message's: it stops nobody, and what comes behind it runs
@pytest.mark.parametrize("worker", [False, True])
def test_value_of_a_wrong_type_fails_its_message_alone(desk, worker):
    values = ["true", "[1]", '{"a": 1}', "[[1], [2, 3]]", "5", "[" * 20000 + "]" * 20000]
    bodies = [f'{{"{name}": {value}}}' for name in ("cents", "value") for value in values]
    for n, body in enumerate(bodies):
        if worker:
            desk.ask("put", message={"id": f"m{n}", "body": body})
        else:
            said = desk.deliver({"id": f"m{n}", "body": body})
            assert isinstance(said, dict) and said["acknowledge"], (body[:50], said)
    assert not worker or desk.ask("work_once", batch=20) == len(bodies)
    assert desk.deliver(("next", {}))["act"] == "run"
    rows = dict(desk.rows("message_id, status"))
    assert {"failed", "dead"} & set(rows.values()) and not set(rows.values()) - {"failed", "dead", "completed"}
    assert sorted(id_ for id_, _ in desk.books()) == sorted(id_ for id_ in rows if rows[id_] == "completed")


# P71: the server's DETAIL, and what SQLAlchemy adds, quote rows and parameters
def test_reason_that_is_kept_quotes_no_rows(desk):
    said = desk.deliver(("m1", {"cents": 5, "sql": "INSERT INTO account VALUES (4711), (4711)"}))
    assert said["status"] == "dead"
    (text,), = desk.rows("error_text")
    assert 'unique constraint "account_pkey"' in text and "4711" not in text and "\n" not in text


# P17: no attempt counts
def test_serialization_failures_and_deadlocks_run_the_transaction_again(desk):
    for n, state in enumerate(["40001", "40P01", "40000", "25006"]):
        desk.sql("ALTER SEQUENCE tries RESTART")
        said = desk.deliver((f"m{n}", {"sql": "DO $$ BEGIN IF nextval('tries') < 3 THEN RAISE EXCEPTION USING "
                                              f"ERRCODE = '{state}'; END IF; END $$"}))
        assert (said["act"], said["attempt"]) == ("run", 1), said
    assert desk.books() == [(f"m{n}", "1") for n in range(4)]
    said = desk.deliver(("m4", {"sql": "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$"}),
                        set={"tries": 2})
    assert said[0] == "Unavailable" and len(desk.rows()) == 4


# A wide net, such as permanent=(Exception,), catches neither what is called otherwise nor what only a repeat settles
def test_listed_classes_come_last(desk):
    again = "DO $$ BEGIN IF nextval('tries') < 3 THEN RAISE EXCEPTION USING ERRCODE = '40001'; END IF; END $$"
    asked = [{"raise": "Rejected"}, {"raise": "Transient"}, {"raise": "KeyError"}, {"sql": again}]
    said = [desk.deliver((f"m{n}", one), broad=True)["status"] for n, one in enumerate(asked)]
    assert said == ["rejected", "failed", "dead", None] and desk.books() == [("m3", "1")]


# What a handler raises may have no text at all; one that has is tried again all the same
def test_error_without_a_text_fails_its_message_alone(desk):
    said = desk.deliver(("m1", {}), ("m2", {"raise": "Mute"}), ("m3", {}))
    assert [one["status"] for one in said] == [None, "failed", None], said
    assert desk.books() == [("m1", "1"), ("m3", "1")] and desk.rows("error_text")[1] != ("",)


def test_header_without_a_text_is_kept_as_what_it_is(desk):
    said = desk.deliver({"id": "m1", "body": '{"raise": "Transient"}', "headers": {"a": {"mute": "1"}, "b": "2"}})
    assert isinstance(said, dict) and said["acknowledge"], said
    assert desk.rows("message_id, headers::jsonb ->> 'a' <> '', headers::jsonb ->> 'b'") == [("m1", "True", "2")]


def test_body_that_json_cannot_write_is_a_mistake_of_the_program(desk):
    kind, text = desk.deliver({"id": "m1", "body": {"bigint" if desk.app.driver == "pg" else "mute": "5"}})
    assert kind == "TypeError" and ("the body is no JSON" in text or "not JSON serializable" in text), text
    assert desk.rows() == []


@pytest.mark.parametrize("wrong", [{"tries": 0}, {"tries": -1}])
def test_options_that_are_wrong_are_refused_at_the_start(desk, wrong):
    kind, text = desk.deliver(("m1", {}), set=wrong)
    assert kind in ("ValueError", "TypeError") and "tries" in text and desk.rows() == []


# The program's fault is nobody's attempt
def test_mistakes_of_the_program_are_raised_and_nothing_is_recorded(desk):
    for asked in [{"sql": "SELECT * FROM missing"}, {"sql": "SELECT semel.nothing()"}]:
        assert desk.deliver(("m1", asked))[0] == "Unusable", asked
    assert desk.deliver(("m1", {}), no_handler=True)[0] in ("Unusable", "TypeError")
    if desk.app.driver != "django":  # which forbids it
        for word in ["commit", "rollback"]:
            said = desk.deliver(("m1", {"end": word}))
            assert said[0] in ("Unusable", "ResourceClosedError"), said
    assert desk.rows() == [] and desk.books() == []
    assert desk.deliver(("m1", {}))["act"] == "run"


@pytest.mark.parametrize("batch", [False, True])
def test_rollback_of_psycopg_is_a_failure_and_no_success(desk, batch):
    if desk.app.driver not in ("psycopg", "async"):
        pytest.skip("another driver has no such exception")
    asked = [{"cents": 1}, {"cents": 2, "rolls_back": True}, {"cents": 3}]
    said = desk.deliver(*((f"m{n}", one) for n, one in enumerate(asked)), batch_handler=batch)
    assert [answer["status"] for answer in said] == [None, "failed", None]
    assert desk.books() == [("m0", "1"), ("m2", "3")]
    assert ("m1", "failed") in desk.rows("message_id, status")


def test_copy_of_a_running_message_is_not_acknowledged(desk):
    desk.deliver(("m0", {}))
    other = desk.shop.connect()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT act FROM semel.inbox_begin(%s, 'm1')", (desk.name,))
        said = desk.deliver(("m1", {}))
        assert (said["act"], said["why"], said["acknowledge"]) == ("later", "busy", False)
    finally:
        other.close()


# A time-out, and a pool that is used up, are nobody's mistake: the broker delivers it again
def test_begin_that_cannot_be_made_in_time_is_an_unavailable_store(desk):
    desk.deliver(("m0", {}))
    desk.sql(f"ALTER DATABASE {desk.shop.name} SET statement_timeout = '200ms'")
    desk.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
             f"AND datname = '{desk.shop.name}'")
    desk.sql("BEGIN")
    desk.sql("LOCK TABLE semel.record")
    try:
        said = desk.deliver(("m1", {}), set={"tries": 2})
        assert said[0] == "Unavailable" and "statement timeout" in said[1], said
    finally:
        desk.sql("COMMIT")
        desk.sql(f"ALTER DATABASE {desk.shop.name} RESET statement_timeout")
        desk.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                 f"AND datname = '{desk.shop.name}'")
    assert desk.deliver(("m1", {}))["act"] == "run"


def test_pool_that_is_used_up_is_an_unavailable_store(desk):
    if desk.app.driver == "django":
        pytest.skip("Django has no pool here")
    said = desk.deliver(("m1", {}), db="narrow", hold=True, set={"tries": 2})
    assert said[0] == "Unavailable", said
    assert desk.deliver(("m1", {}), db="narrow")["act"] == "run"


# T7: read again, never guessed
@pytest.mark.parametrize("when", ["before", "after"])
def test_lost_commit_is_read_again(desk, when):
    desk.deliver(("m0", {}))
    desk.app.wire.when = when
    said = desk.deliver(("m1", {"cents": 5, "outcome": {"receipt": 7}}))
    assert said["acknowledge"] and (said["why"], said["outcome"]) == {
        "before": ("new", None), "after": ("duplicate", {"receipt": 7})}[when]
    assert desk.books() == [("m0", "1"), ("m1", "5")] and desk.app.wire.when is None


# P16: the server says COMMIT all the same, with a warning, in its own language. A copy waits as the first one did
def test_commit_that_did_not_wait_for_its_standby_is_not_acknowledged(desk):
    desk.ask("put", message={"id": "w1", "body": "{}"})
    desk.deliver(("m0", {}))
    with concurrent.futures.ThreadPoolExecutor(1) as thread, absent_standby(desk.shop.server) as end:
        for ask in [lambda: desk.deliver(("m1", {"cents": 5})), lambda: desk.deliver(("m1", {"cents": 5})),
                    lambda: desk.deliver(("m2", {}), ("m3", {})), lambda: desk.ask("work_once")]:
            said = thread.submit(ask)
            end(until=said)
            assert said.result()[0] == "Unavailable" and "standby" in said.result()[1], said.result()
    assert desk.books() == [("m0", "1"), ("m1", "5"), ("m2", "1"), ("m3", "1")]
    for id_ in ["m1", "m2", "m3"]:
        said = desk.deliver((id_, {"cents": 5} if id_ == "m1" else {}))
        assert (said["act"], said["why"]) == ("ack", "duplicate")


# P16: psycopg2 tells one warning from another by when it came alone
def test_warnings_of_a_handler_are_no_lost_wait(desk):
    warn = "DO $$ BEGIN RAISE WARNING 'as asked' USING ERRCODE = '01000'; RAISE NOTICE 'and this'; END $$"
    assert [desk.deliver((f"m{n}", {"sql": warn}))["act"] for n in range(60)] == ["run"] * 60


# P16: of a claim that the standby may not have no call is made
def test_claim_that_did_not_wait_for_its_standby_calls_nobody(desk):
    desk.set('{"effect": "outside"}')
    desk.deliver(("m0", {}), effect="outside")
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        with absent_standby(desk.shop.server) as end:
            said = thread.submit(desk.deliver, ("m1", {}), effect="outside")
            end(until=said)
        assert "Unavailable" in said.result() and len(desk.calls()) == 1, (said.result(), desk.calls())


def test_dead_connection_in_a_handler_runs_it_again(desk):
    said = desk.deliver(("m1", {"sql": "SELECT CASE WHEN nextval('tries') < 3 "
                                       "THEN pg_terminate_backend(pg_backend_pid()) END"}))
    assert (said["act"], said["attempt"]) == ("run", 1) and desk.books() == [("m1", "1")]


# I9: one transaction; a failure undoes its own message only
def test_batch_runs_each_message_once_and_blames_only_the_culprit(desk):
    desk.deliver(("m1", {"cents": 1, "outcome": 1}))
    said = desk.deliver(("m1", {"cents": 1, "outcome": 1}), ("m2", {"cents": 2, "outcome": 2}),
                        ("m2", {"cents": 2}), ("m3", {"raise": "Rejected"}), ("m4", {"sql": "SELECT 1/0"}),
                        ("m5", {"cents": 5}))
    assert isinstance(said, list), said
    assert [(one["act"], one["why"], one["status"]) for one in said] == [
        ("ack", "duplicate", None), ("run", "new", None), ("later", "busy", None), ("ack", "new", "rejected"),
        ("ack", "new", "dead"), ("run", "new", None)]
    assert said[0]["outcome"] == 1 and desk.deliver(("m2", {"cents": 2}))["outcome"] == 2
    assert desk.books() == [("m1", "1"), ("m2", "2"), ("m5", "5")]
    assert len(desk.sql("SELECT DISTINCT tx FROM ledger")) == 2
    said = desk.deliver(("m6", {"cents": 6}), ("m7", {"sql": "INSERT INTO line VALUES (7, NULL)"}),
                        ("m8", {"cents": 8}))
    assert [one["status"] for one in said] == [None, "failed", None]  # by a deferred constraint, so alone


# An interrupted batch: it runs again as a whole, and no attempt counts
def test_batch_whose_connection_dies_in_the_middle_runs_again(desk):
    dies = "SELECT CASE WHEN nextval('tries') < 3 THEN pg_terminate_backend(pg_backend_pid()) END"
    said = desk.deliver(("m1", {}), ("m2", {"sql": dies}), ("m3", {"raise": "Rejected"}), ("m4", {}))
    assert [(one["act"], one["attempt"], one["status"]) for one in said] == [
        ("run", 1, None), ("run", 1, None), ("ack", 1, "rejected"), ("run", 1, None)]
    assert desk.books() == [("m1", "1"), ("m2", "1"), ("m4", "1")]
    assert len(desk.sql("SELECT DISTINCT tx FROM ledger")) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_batch_whose_commit_is_lost_is_read_again(desk, when):
    desk.deliver(("m0", {}))
    desk.app.wire.when = when
    said = desk.deliver(*((f"m{n}", {"outcome": n}) for n in range(1, 4)))
    assert [one["why"] for one in said] == [{"before": "new", "after": "duplicate"}[when]] * 3
    assert desk.books() == [(f"m{n}", "1") for n in range(4)] and desk.app.wire.when is None


def test_batch_handler_gets_all_of_them_and_each_alone_when_it_fails(desk):
    said = desk.deliver(*((f"m{n}", {"cents": n}) for n in range(1, 6)), batch_handler=True)
    assert [one["act"] for one in said] == ["run"] * 5
    assert len(desk.sql("SELECT DISTINCT tx FROM ledger")) == 1
    said = desk.deliver(*((f"n{n}", {"cents": n, "raise": n == 2}) for n in range(1, 4)), batch_handler=True)
    assert [one["status"] for one in said] == [None, "dead", None]
    assert len(desk.books()) == 7


def test_batch_goes_by_versions(desk):
    desk.set('{"order": "version", "first_version": "any"}')
    versions = {"v1": 7, "v2": 2 ** 62 + 1}
    said = desk.deliver(*({"id": id_, "body": "{}", "order_key": id_, "version": {"bigint": str(version)}}
                          for id_, version in versions.items()))
    assert isinstance(said, list) and [one["act"] for one in said] == ["run", "run"], said
    assert desk.rows("message_id, version") == [(id_, str(version)) for id_, version in versions.items()]
    said = desk.deliver(*({"id": f"{id_}b", "body": "{}", "order_key": id_, "version": 6} for id_ in versions))
    assert [one["why"] for one in said] == ["stale", "stale"]


BODIES = [b"", b"\xff\x00\xfe", b"null", b"{", b"[" * 5000, b'{"cents": 1, "cents": 2}', b'{"a": "\\u0000"}', b"1e999",
          '{"sch\u00f6n": "\U0001f4b6"}'.encode(), b"x" * 1_100_000]
IDS = [None, "", "x" * 256, "nul\0", "\ud800", 5, str(uuid.UUID(int=5)), "\u00fc" * 127, "'; DROP TABLE ledger --", " ",
       "\\x00", "%s", "$1"]


# P31: whatever comes, the answer is one for the broker, and nothing is lost
def test_odd_ids_and_payloads_are_answered_and_kept(desk):
    for id_ in IDS:
        said = desk.deliver({"id": id_, "body": json.dumps({"cents": 3, "of": repr(id_)}), "type": "t" * 300,
                             "headers": {"nul\0": "\ud800", "n": 5}})
        assert said["acknowledge"], (id_, said)
        storable = id_ not in (None, "", "x" * 256, "nul\0", "\ud800")
        assert (said["act"], said["why"]) == (("run", "new") if storable else ("ack", "no_id")), id_
    assert len(desk.books()) == 8
    assert dict(desk.sql(f"SELECT status, count(*) FROM semel.inbox WHERE consumer = '{desk.name}' GROUP BY 1")) == {
        "completed": "8", "quarantined": "5"}
    for n, body in enumerate(BODIES):
        said = desk.deliver({"id": f"body{n}", "body": {"base64": base64.b64encode(body).decode()}})
        assert said["acknowledge"], (body[:20], said)
    kept = dict(desk.rows("message_id, encode(payload, 'hex')"))
    assert (kept["body0"], kept["body1"], kept["body3"]) == ("", "ff00fe", "7b")
    for version in [-1, 2 ** 63 - 1, 2 ** 70]:
        said = desk.deliver({"id": "v", "body": f"[{version}]", "version": version, "order_key": "k"})
        assert said["why"] == "no_id"
    many = desk.deliver(*({"id": id_, "body": {"base64": base64.b64encode(body).decode()}, "headers": {"a": "\0"}}
                          for id_, body in [(None, b"a"), ("x" * 300, b"b"), ("ok", b'{"cents": 9}'),
                                            ("nul\0", b"\xff")]))
    assert [one["why"] for one in many] == ["no_id", "no_id", "new", "no_id"]


EVENTS = [(None, "none"), ({"base64": "/wD+"}, "ff00fe"), ("text \0", "746578742000"), ("", ""), (5, "35"),
          ([], "5b5d"), ({"base64": base64.b64encode(b"x" * 200_000).decode()}, "78" * 200_000), ({"a": "\0"}, None),
          ("\ud800", None)]
ABOUT = [("k", "k"), (5, "5"), ({"bigint": str(2 ** 70)}, str(2 ** 70)), ("'; DROP TABLE ledger --",) * 2, (" ", " "),
         ("%s", "%s"), ("$1", "$1"), ("\u00fc" * 127,) * 2]
BAD_ABOUT = [None, "", "nul\0", "\ud800", "x" * 256, True, ["a"], {"base64": base64.b64encode(b"acct-1").decode()}]


# I26: an event leaves as it was given, about what it was given, or its message fails and is kept
def test_odd_events_leave_as_they_are_or_fail_their_message(desk):
    for n, (body, raw) in enumerate(EVENTS):
        said = desk.deliver((f"m{n}", {"event": body}))
        assert isinstance(said, dict) and said["act"] == "run", (body, said)
        (kept,), = desk.sql("DELETE FROM semel.outbox RETURNING coalesce(encode(payload, 'hex'), 'none')")
        assert raw in (None, kept), body
    desk.sql("TRUNCATE ledger")
    for n, (about, text) in enumerate(ABOUT):
        assert desk.deliver((f"a{n}", {"event": {}, "about": about}))["act"] == "run", about
        assert desk.sql("DELETE FROM semel.outbox RETURNING aggregateid") == [(text,)]
    assert len(desk.books()) == len(ABOUT)
    for n, about in enumerate(BAD_ABOUT):
        said = desk.deliver((f"b{n}", {"event": {}, "about": about}))
        assert isinstance(said, dict) and said["status"] in ("dead", "failed"), (about, said)
    assert len(desk.books()) == len(ABOUT) and desk.sql("SELECT count(*) FROM semel.outbox") == [("0",)]
    assert not desk.sql(f"SELECT 1 FROM semel.inbox WHERE consumer = '{desk.name}' AND message_id ~ '^b' "
                        "AND payload IS NULL")


TIMES = {"2026-03-01T10:00:00": "10:00:00", "2026-03-01 10:00:00.25+02:00": "08:00:00.25", "2026-03-01": "00:00:00",
         "2026-03-01T10:00Z": "10:00:00", "2026-03-01T00:00:00.123456789+0000": "00:00:00.123456"}
BAD_TIMES = ["", "soon", "nul \0", "2026-02-30T00:00:00Z", "2026-13-01", "2026-03-01T25:00:00Z", "0000-01-01", "now",
             "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+02:00", "2026-03-01T00:00:00+99:00", "\ud800"]


# P31: what a message says of its time and its source stops nobody
def test_odd_times_and_sources_are_quarantined(desk):
    desk.sql(f"ALTER DATABASE {desk.shop.name} SET timezone = 'Asia/Tokyo'")
    desk.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
             f"AND datname = '{desk.shop.name}'")
    try:
        for n, text in enumerate(TIMES):
            said = desk.deliver({"id": f"t{n}", "body": "{}", "time": text})
            assert isinstance(said, dict) and said["act"] == "run", (text, said)
        assert [row[0] for row in desk.rows("(message_time AT TIME ZONE 'UTC')::time::text")] == [*TIMES.values()]
        later = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)).isoformat()[:19]
        for n, given in enumerate([later, later + "Z", {"moment": later}]):
            said = desk.ask("put", message={"id": f"u{n}", "body": "{}", "time": given}, not_before=given)
            assert isinstance(said, dict) and said["act"] == "ack", (given, said)
        assert {row[0] for row in desk.rows("to_char(due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS')")} == {
            "", later}
        for given in ["soon", 5, True, "infinity"]:
            assert isinstance(desk.ask("put", message={"id": "w", "body": "{}"}, not_before=given), tuple), given
    finally:
        desk.sql(f"ALTER DATABASE {desk.shop.name} RESET timezone")
    odd = [{"time": text} for text in BAD_TIMES] + [{"source": text} for text in ["nul \0", "x" * 256, "\ud800"]]
    for n, fields in enumerate(odd):
        said = desk.deliver({"id": f"m{n}", "body": f'{{"n": {n}}}', **fields})
        assert isinstance(said, dict) and (said["act"], said["why"]) == ("ack", "no_id"), (fields, said)
    said = desk.deliver({"id": "o1", "body": "[1]", "time": "soon"}, {"id": "o2", "body": "{}"},
                        {"id": "o3", "body": "[3]", "source": "\0"})
    assert isinstance(said, list) and [one["why"] for one in said] == ["no_id", "new", "no_id"], said
    assert desk.ask("put", message={"id": "p1", "body": "[4]", "time": "soon"})["why"] == "no_id"
    assert desk.deliver({"id": "q1", "body": "{}", "time": 5})[0] == "TypeError"
    assert len(desk.books()) == len(TIMES) + 1


# Bytes that were no UTF-8, and numbers that JavaScript has rounded: two ids became one text, and one message is lost
@pytest.mark.parametrize("member", ["id", "order_key", "business_key"])
def test_id_or_key_that_may_have_been_another_one_is_quarantined(desk, member):
    odd = ["\ufffd", "a\ufffdb"] + [2 ** 53, 2 ** 53 + 2, 1e300] * (desk.app.driver == "pg")
    for n, name in enumerate(odd):
        said = desk.deliver({"id": "m1", "body": f"[{n}]", "type": "t", "headers": {"a": "b"}, member: name})
        assert isinstance(said, dict) and (said["act"], said["why"]) == ("ack", "no_id"), (name, said)
    assert desk.books() == [] and {row[1:] for row in desk.rows("message_id, type, headers::jsonb ->> 'a'")} == {
        ("t", "b")}


@pytest.mark.parametrize("version", [True, "5", 5.0, [5]])
def test_version_of_a_wrong_type_is_an_error_of_the_program(desk, version):
    said = desk.deliver({"id": "m1", "body": "{}", "order_key": "k", "version": version})
    if desk.app.driver == "pg" and not isinstance(version, (bool, list)):
        assert said["why"] != "no_id"  # JavaScript has one type of numbers, and pg gives a bigint as text
    else:
        assert said[0] == "TypeError" and "version" in said[1] and desk.rows() == []


NAMES = [("k", "k"), (42, "42"), ({"bigint": str(2 ** 70)}, str(2 ** 70)),
         ({"uuid": str(uuid.UUID(int=7))}, str(uuid.UUID(int=7)))]


# A number is no reason to set a message aside: it runs under its text
def test_ids_and_keys_that_are_no_text_become_text(desk):
    for n, (name, text) in enumerate(NAMES):
        said = desk.deliver({"id": name, "body": "{}", "order_key": name, "business_key": name})
        assert (said["act"], said["why"]) == ("run", "new"), (name, said)
        assert (text, text) in desk.rows("message_id, order_key"), name
        said = desk.deliver({"id": f"m{n}", "body": "{}", "business_key": text})
        assert said["why"] == "business_duplicate", name
    assert len(desk.books()) == len(NAMES)


# Acknowledged and never run is what nobody would notice
@pytest.mark.parametrize("member", ["id", "order_key", "business_key"])
def test_id_or_key_of_a_wrong_type_is_an_error_of_the_program(desk, member):
    for wrong in [{"base64": base64.b64encode(b"acct-1").decode()}, True, ["a"], {"a": "b"}]:
        bad = {"id": "m1", "body": "{}", member: wrong}
        for kind, text in [desk.deliver(bad), desk.deliver({"id": "m2", "body": "{}"}, bad), desk.ask(
                "put", message=bad)]:
            assert kind == "TypeError" and member.split("_")[0] in text and "; it must be " in text, (wrong, text)
    assert desk.books() == [] and desk.rows() == []
    assert desk.deliver(("m1", {}))["act"] == "run"


# The inbox keeps no value and an empty one apart by this header, whoever sends it
def test_only_a_body_that_is_none_makes_a_record_without_a_value(desk):
    sent = [{"id": "none", "body": None}, {"id": "text", "body": "", "headers": {"semel_tombstone": "true"}}]
    if desk.app.driver != "pg":  # names of headers are text in JavaScript
        sent.append({"id": "bytes", "body": "", "header_of_bytes": "semel_tombstone"})
    desk.deliver(*sent)
    for message in sent:
        desk.ask("put", message={**message, "id": message["id"] + "2"})
    marked = desk.sql("SELECT message_id FROM semel.inbox WHERE strpos(headers::text, 'tombstone') > 0 "
                      f"AND consumer = '{desk.name}' ORDER BY message_id")
    assert marked == [("none",), ("none2",)] and len(desk.rows()) == 2 * len(sent)


# ---- the worker -----------------------------------------------------------------------------------------------------

# I26: what failed is run again without a broker
def test_worker_runs_what_failed_and_what_was_put(desk):
    desk.set(RETRY_SOON)
    asked = {"sql": "DO $$ BEGIN IF nextval('tries') < 4 THEN RAISE EXCEPTION USING ERRCODE = '23503'; END IF; END $$"}
    assert desk.deliver(("m1", asked))["status"] == "failed"
    assert desk.ask("put", message={"id": "m2", "body": '{"cents": 2}'})["act"] == "ack"
    desk.ask("put", message={"id": "m3", "body": '{"cents": 3}'}, rollback=True)
    desk.ask("put", message={"id": "m4", "body": None})
    desk.ask("put", message={"id": "m5", "body": '{"sql": "SELECT 1/0"}', "type": "t", "headers": {"a": "b"}})
    assert desk.ask("work") is None
    poll(lambda: desk.rows("message_id, status") == [("m1", "completed"), ("m2", "completed"), ("m4", "dead"),
                                                      ("m5", "dead")])
    desk.ask("stop")
    assert desk.books() == [("m1", "1"), ("m2", "2")]
    assert dict(desk.rows("message_id, attempts"))["m1"] == "4"


# T9: the row is held while it runs, and a lease that is short matters to nobody
def test_worker_holds_what_it_runs_and_renews_what_waits(desk):
    desk.set(RETRY_SOON)
    for n in range(3):
        desk.ask("put", message={"id": f"m{n}", "body": '{"cents": 1, "sleep": 0.3}'})
    assert desk.ask("work_once", set={"lease": 0.25}) == 3
    assert desk.books() == [("m0", "1"), ("m1", "1"), ("m2", "1")]
    assert {row[1:] for row in desk.rows()} == {("completed", "1")}


# An interrupted batch: what did not run goes back, and no attempt counts
def test_worker_that_cannot_go_on_releases_the_rest(desk):
    for n in range(3):
        desk.ask("put", message={"id": f"m{n}", "body": json.dumps({"sql": "SELECT * FROM missing"})})
    assert desk.ask("work_once")[0] == "Unusable"
    assert not desk.sql(f"SELECT 1 FROM semel.inbox WHERE consumer = '{desk.name}' AND lease_token IS NOT NULL")
    desk.sql("CREATE TABLE missing ()")
    try:
        poll(lambda: desk.ask("work_once") == 0 and len(desk.books()) == 3)
    finally:
        desk.sql("DROP TABLE missing")
    assert {row[1:] for row in desk.rows()} == {("completed", "1")}


# T9: what runs in its transaction would hold up its heartbeat, and a call outside loses its lease without one
@pytest.mark.parametrize("effect, body, held", [("atomic", '{"sql": "SELECT pg_sleep(3)"}', "m1"),
                                                ("outside", '{"sleep": 3}', "m0")])
def test_worker_renews_the_leases_that_it_needs_while_it_runs(desk, effect, body, held):
    desk.set(json.dumps({"effect": effect}))
    for id_ in ("m0", "m1"):
        desk.ask("put", message={"id": id_, "body": body if id_ == "m0" else "{}"})
    desk.ask("work", effect=effect, set={"lease": 0.3})
    seen = set()

    def ends():
        ran, lease = desk.sql(f"""SELECT a.status = 'completed', b.lease_until FROM semel.inbox AS a, semel.inbox AS b
            WHERE (a.consumer, a.message_id, b.consumer, b.message_id) = ('{desk.name}', 'm0', '{desk.name}', '{held}')
            """)[0]
        seen.update({lease} - {""})
        return ran == "True" or len(seen) > 3
    poll(ends)
    desk.ask("stop")
    assert len(seen) > 3, seen


# The one that was taken first runs first
def test_worker_that_is_stopped_ends_its_message_and_releases_the_rest(desk):
    ids = [f"m{n}" for n in range(10)]
    for id_ in ids:
        desk.ask("put", message={"id": id_, "body": '{"sql": "SELECT pg_sleep(0.5)"}'})
    desk.ask("work", **{"with": {"batch": 10}})
    poll(desk.books)
    desk.ask("stop")
    done = [id_ for id_, _ in desk.books()]
    assert done == ids[:len(done)] and len(done) < len(ids)
    assert desk.rows("message_id, status = 'completed', attempts, lease_token") == [
        (id_, str(id_ in done), str(int(id_ in done)), "") for id_ in ids]


# An effect without its record: it is rolled back, whatever has become of the token
def test_message_whose_handler_has_ended_its_lease_is_not_done(desk):
    desk.set('{"effect": "outside"}')
    ends = f"SELECT semel.inbox_finish(lease_token) FROM semel.inbox WHERE consumer = '{desk.name}'"
    desk.ask("put", message={"id": "m1", "body": json.dumps({"sql": ends})})
    kind, text = desk.ask("work_once")
    assert kind == "Unusable" and "the lease was lost" in text
    assert desk.books() == [] and desk.rows("message_id, status, lease_token") == [("m1", "waiting", "")]


@pytest.mark.parametrize("when", ["before", "after"])
def test_worker_that_loses_a_commit_does_the_work_once(desk, when):
    for n in range(2):
        desk.ask("put", message={"id": f"m{n}", "body": '{"cents": 1}'})
    for _ in range(2):  # of the take, and of the work
        desk.app.wire.when = when
        poll(lambda: desk.ask("work_once", batch=1))
    poll(lambda: desk.ask("work_once") == 0 and {row[1] for row in desk.rows()} == {"completed"})
    assert desk.books() == [("m0", "1"), ("m1", "1")]


# ---- effects outside ------------------------------------------------------------------------------------------------

# I8 I14
def test_outside_effect_runs_under_a_lease_and_its_key(desk):
    assert desk.deliver(("m1", {}), effect="outside")[0] == "Unusable"  # the consumer has not set its effect
    desk.set('{"effect": "outside"}')
    said = desk.deliver(("m1", {"outcome": {"sent": 1}}), effect="outside")
    assert (said["act"], said["acknowledge"]) == ("run", True)
    assert desk.deliver(("m1", {"outcome": {"sent": 1}}), effect="outside")["outcome"] == {"sent": 1}
    key = desk.sql(f"SELECT semel.step_key('{desk.name}', 'm1', 'effect')")[0][0]
    assert desk.calls() == [["m1", key, "1"]]
    assert [one["act"] for one in desk.deliver(("o1", {}), ("m1", {}), ("o2", {}), effect="outside")] == [
        "run", "ack", "run"]
    for n, (word, status) in enumerate([("KeyError", "unknown"), ("Transient", "failed"), ("Bad", "dead"),
                                        ("Rejected", "rejected")]):
        desk.deliver((f"n{n}", {"raise": word}), effect="outside")
        assert desk.rows()[n + 1][:2] == (f"n{n}", status)


# E1: who asks the other side by the key that `show` has finds the call
def test_key_that_show_has_is_the_one_that_was_sent(desk):
    desk.set('{"effect": "outside"}')
    desk.deliver({"id": "m1", "body": '{"raise": "KeyError"}', "source": "orders"}, effect="outside")
    (_, sent, _), = desk.calls()
    shown = desk.shown("m1")
    assert (shown["status"], shown["idempotency_key"]) == ("unknown", sent)
    # No route's file sets it: its program may have steps of its own.
    step = re.search(r"(semel\.step_key)\(consumer, message_id, step, source\)", shown["next"])
    assert desk.sql(f"SELECT {step[1]}('{desk.name}', 'm1', 'effect', 'orders')") == [(sent,)]


# A message that was claimed for one consumer, and is handed on, is another one's own
def test_message_that_is_handed_on_is_run_by_the_other_consumer(desk):
    desk.set('{"effect": "outside"}')
    desk.deliver(("m1", {"hand_on": f"{desk.name}2"}), effect="outside")
    desk.ask("put", message={"id": "m2", "body": json.dumps({"hand_on": f"{desk.name}2"})})
    assert desk.ask("work_once", effect="outside") == 1
    assert desk.books() == [("m1", "1"), ("m2", "1")] and len(desk.calls()) == 2
    assert desk.rows() == [("m1", "completed", "1"), ("m2", "completed", "1")]
    assert desk.sql(f"SELECT message_id, status FROM semel.inbox WHERE consumer = '{desk.name}2' ORDER BY 1") == [
        ("m1", "completed"), ("m2", "completed")]


# I15: the heartbeat
def test_outside_effect_that_takes_longer_than_its_lease_keeps_it(desk):
    desk.set('{"effect": "outside"}')
    assert desk.deliver(("m1", {"sleep": 0.8}), effect="outside", set={"lease": 0.3})["act"] == "run"
    assert desk.rows() == [("m1", "completed", "1")] and len(desk.calls()) == 1


def test_heartbeats_leave_no_connections_behind(desk):
    desk.set('{"effect": "outside"}')
    for n in range(12):
        assert desk.deliver((f"m{n}", {"sleep": 0.3}), effect="outside", set={"lease": 0.3})["act"] == "run"
    (there,), = desk.sql(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{desk.shop.name}'")
    assert int(there) <= 10  # of the pools of this module, and of the test itself


# E1: where ids are unique across sources, the source is no part of the key, from the first attempt on
def test_keyed_effect_has_one_key_whatever_its_source(desk):
    desk.set('{"effect": "keyed", "one_source": true, "retry_first": "1ms", "retry_ceiling": "1ms", "retry_max": 3}')
    desk.deliver({"id": "m1", "body": '{"raise": "KeyError"}', "source": "orders"}, effect="keyed")
    poll(lambda: desk.ask("work_once", effect="keyed") == 0 and desk.rows()[0][1] == "dead")
    assert len(desk.calls()) > 1
    assert {call[1] for call in desk.calls()} == {desk.shown("m1")["idempotency_key"]}


ODD = [{"outcome": "nul \0"}, {"outcome": "\ud800"}, {"odd": "long"}, {"odd": "nan"}, {"odd": "loop"}]


# I5: an effect that is rolled back: the message's fault, and nobody else's
def test_outcome_that_cannot_be_stored_is_a_permanent_failure(desk):
    for n, asked in enumerate(ODD):
        said = desk.deliver((f"m{n}", asked))
        assert isinstance(said, dict) and said["status"] == "dead", (asked, said)
        desk.ask("put", message={"id": f"n{n}", "body": json.dumps(asked)})
    assert desk.ask("work_once") == len(ODD)
    said = desk.deliver(*((f"o{n}", asked) for n, asked in enumerate(ODD)), ("p", {}))
    assert [one["status"] for one in said] == ["dead"] * len(ODD) + [None]
    assert desk.books() == [("p", "1")] and {row[1] for row in desk.rows()[:-1]} == {"dead"}


# I8: an effect that has happened is done, whatever it said
@pytest.mark.parametrize("effect", ["outside", "keyed"])
def test_effect_outside_is_done_though_its_outcome_cannot_be_stored(desk, effect):
    desk.set(f'{{"effect": "{effect}"}}')
    for n, asked in enumerate(ODD):
        said = desk.deliver((f"m{n}", asked), effect=effect)
        assert isinstance(said, dict) and said["act"] == "run", (asked, said)
        said = desk.deliver((f"m{n}", asked), effect=effect)
        assert (said["act"], said["why"], said["outcome"]) == ("ack", "duplicate", None), (asked, said)
        desk.ask("put", message={"id": f"n{n}", "body": json.dumps(asked)})
    assert desk.ask("work_once", effect=effect) == len(ODD)
    assert {row[1:] for row in desk.rows()} == {("completed", "1")} and len(desk.calls()) == 2 * len(ODD)
    assert desk.app.log.read_text().count(f"{desk.name}: m0 is done, and its outcome cannot be stored") == 1


def test_keyed_effect_that_fails_is_repeated_under_the_same_key(desk):
    desk.set('{"effect": "keyed", "retry_first": "1ms", "retry_ceiling": "1ms", "retry_max": 3}')
    desk.deliver(("m1", {"raise": "KeyError"}), effect="keyed")
    poll(lambda: desk.ask("work_once", effect="keyed") == 0 and desk.rows()[0][1] == "dead")
    assert [call[2] for call in desk.calls()] == ["1", "2", "3"] and len({call[1] for call in desk.calls()}) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_claim_whose_commit_is_lost_is_read_again(desk, when):
    desk.set('{"effect": "outside"}')
    desk.deliver(("m0", {}), effect="outside")
    desk.app.wire.when = when
    assert desk.deliver(("m1", {}), effect="outside")["act"] == "run"
    assert [row[1] for row in desk.rows()] == ["completed"] * 2 and len(desk.calls()) == 2


# There is no lease to renew where nothing is to be run
@pytest.mark.parametrize("when", ["before", "after"])
def test_claim_of_a_copy_whose_commit_is_lost_is_asked_again(desk, when):
    desk.set('{"effect": "outside"}')
    desk.deliver(("m0", {"outcome": 7}), effect="outside")
    desk.app.wire.when = when
    said = desk.deliver(("m0", {"outcome": 7}), effect="outside")
    assert isinstance(said, dict) and (said["act"], said["why"], said["outcome"]) == ("ack", "duplicate", 7), said
    assert desk.app.wire.when is None and len(desk.calls()) == 1


# ---- kills and bad servers ------------------------------------------------------------------------------------------

def test_killed_consumer_leaves_one_effect_and_its_lease_is_recovered(desk):
    desk.set(RETRY_SOON)
    desk.sql("CREATE TABLE gate ()")
    desk.ask("put", message={"id": "w1", "body": json.dumps({"sql": "LOCK TABLE gate"})})
    held = desk.shop.connect()
    committed(held, "SELECT 1")
    for asked in [{"op": "deliver", "messages": [{"id": f"m{n}", "body": json.dumps(
            {"sql": "LOCK TABLE gate"})} for n in range(3)]}, {"op": "work_once", "set": {"lease": 0.2}}]:
        with held.cursor() as cursor:
            cursor.execute("LOCK TABLE gate")
        desk.app.process.stdin.write(json.dumps({"consumer": desk.name, **asked}) + "\n")
        desk.app.process.stdin.flush()
        poll(lambda: desk.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'gate'::regclass"))
        desk.app.kill()
        held.rollback()
        desk.app.start()
        poll(lambda: not desk.sql("SELECT 1 FROM pg_locks WHERE relation = 'gate'::regclass"))
        assert all(row[0][0] != "m" or row[1] == "completed" for row in desk.rows())
        desk.deliver(*((f"m{n}", {"sql": "LOCK TABLE gate"}) for n in range(3)))
    held.close()
    desk.ask("work")
    poll(lambda: {row[1] for row in desk.rows()} == {"completed"})
    desk.ask("stop")
    desk.sql("DROP TABLE gate")
    assert desk.books() == [("m0", "1"), ("m1", "1"), ("m2", "1"), ("w1", "1")]


BAD = {"down": ("Unavailable", ""), "no_schema": ("Unusable", "semel migrate"), "old": ("Unusable", "semel migrate"),
       "no_rights": ("Unusable", "roles.sql")}


def test_bad_servers_are_told_apart_and_named(desk):
    one, two = {"id": "m1", "body": "{}"}, {"id": "m2", "body": "{}"}
    for alias, (kind, hint) in BAD.items():
        for asked in [{"op": "deliver", "messages": [one]}, {"op": "deliver", "messages": [one, two]},
                      {"op": "deliver", "messages": [one], "effect": "outside"}, {"op": "work_once"}]:
            said = desk.app.ask(**{"consumer": desk.name, "db": alias, "set": {"tries": 2}, **asked})
            assert said[0] == kind and hint in said[1], (alias, said)
        said = desk.app.ask("put", consumer=desk.name, db=alias, message=one)  # in the program's own transaction
        assert isinstance(said, tuple), (alias, said)
    assert desk.rows() == [] and desk.books() == [] and desk.calls() == []
    desk.sql("INSERT INTO semel.access VALUES ('another', 'nobody_much'); GRANT USAGE ON SCHEMA semel TO nobody_much;"
             "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA semel TO nobody_much")
    try:
        said = desk.deliver(("m1", {}), db="no_rights")
        assert said[0] == "Unusable" and desk.name in said[1] and "semel.access" in said[1]
    finally:
        desk.sql("DELETE FROM semel.access; REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM nobody_much; "
                 "REVOKE USAGE ON SCHEMA semel FROM nobody_much")


def test_worker_outlives_a_restart_of_the_server(desk):
    desk.ask("put", message={"id": "m1", "body": "{}"})
    desk.app.eye.close()
    desk.shop.server.stop(signal.SIGINT)
    desk.ask("work", set={"tries": 1})
    poll(lambda: f"{desk.name}: store unavailable: " in desk.app.log.read_text())
    desk.shop.server.start()
    poll(lambda: desk.rows() == [("m1", "completed", "1")])
    desk.ask("stop")
    assert desk.books() == [("m1", "1")]


# T1 T6 I26: poison, copies, kills and a restart of the server; the books balance
def test_storm_of_poison_copies_and_kills_balances(desk):
    desk.set('{"retry_first": "1ms", "retry_ceiling": "5ms", "retry_max": 3}')
    rounds, most = (20, 400) if LONG else (2, 60)
    chance = random.Random(17)
    bodies = {f"m{n}": chance.choice([{"cents": n + 1}] * 6 + [{"raise": "Permanent"}, {"raise": "KeyError"},
                                                              {"cents": -1}, {"raise": "Rejected"}])
              for n in range(most)}
    unsettled = collections.Counter({id_: 2 for id_ in bodies})
    kills = rounds
    while unsettled:
        batch = chance.choices([*unsettled.elements()], k=chance.choice([1, 1, 7]))
        if kills and chance.random() < 0.2:
            kills -= 1
            if kills % 2:
                threading.Timer(chance.random() / 20, desk.app.process.kill).start()
            else:
                desk.app.eye.close()
                desk.shop.server.stop(signal.SIGINT)
                desk.shop.server.start()
        try:
            said = desk.app.ask("deliver", consumer=desk.name, messages=[
                {"id": id_, "body": json.dumps(bodies[id_])} for id_ in batch])
        except (AssertionError, OSError):
            desk.app.kill()
            desk.app.start()
            continue
        if isinstance(said, tuple):
            assert said[0] == "Unavailable", said
            continue
        for id_, one in zip(batch, said):
            if one["acknowledge"] and unsettled[id_] > 0:
                unsettled[id_] -= 1
        unsettled = +unsettled
    if desk.app.process.poll() is not None:
        desk.app.kill()
        desk.app.start()
    poll(lambda: desk.ask("work_once", batch=100) == 0 and not desk.sql(
        f"SELECT 1 FROM semel.inbox WHERE consumer = '{desk.name}' AND status IN ('failed', 'processing')"))
    good = {id_: str(body["cents"]) for id_, body in bodies.items() if body.get("cents", 0) > 0}
    assert dict(desk.books()) == good and len(desk.books()) == len(good)
    wanted = {id_: "completed" if id_ in good else "rejected" if body.get("raise") == "Rejected" else "dead"
              for id_, body in bodies.items()}
    assert dict(desk.rows("message_id, status")) == wanted
