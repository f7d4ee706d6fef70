# SPDX-License-Identifier: MIT
"""The middleware of clients/: every framework passes the same cases, on a real server that is killed and restarted.

The applications lie in apps/ beside this file. A trigger in the database stops them where a test wants: a `gate` is an
advisory lock that the test holds. test_clients_python.py and test_clients_node.py run it all, each for its FRAMEWORKS.
"""
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest

from pg import free_port
from pgsql import (MIGRATIONS, SOURCE, Database, Shop, absent_standby, committed, pg_server, poll,  # noqa: F401
                   run_file)

HERE = pathlib.Path(__file__).parent / "apps"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "semel/node/node_modules"
NODE_PATHS = [*filter(None, os.environ.get("NODE_PATH", "").split(":")), str(CACHE), "/usr/share/nodejs"]
MODULES = {"fastapi": ["fastapi", "psycopg_pool", "uvicorn"], "django": ["django", "psycopg2"],
           "express": ["express", "pg"], "fastify": ["fastify", "pg"]}
KEY = "7d0f1f2e-8a4b-4c55"
GATE = 4711
CUT = set()  # ends of servers that were cut off


def command(name, file, tmp_path):
    """How an application is started, and its environment. Skips what this machine does not have."""
    if name in ("fastapi", "django"):
        for module in MODULES[name]:
            pytest.importorskip(module, reason=f"Python has no {module} here: tools/setup languages")
        return [sys.executable, file], {"PYTHONPATH": str(SOURCE / "clients/python")}
    if shutil.which("node") is None:
        pytest.skip("there is no node here: apt-get install nodejs")
    for module in MODULES[name]:
        if not any((pathlib.Path(path) / module).is_dir() for path in NODE_PATHS):
            pytest.skip(f"Node has no module {module} here: tools/setup languages, or npm install and NODE_PATH")
    (tmp_path / "node_modules").mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (tmp_path / "node_modules" / "semel").symlink_to(SOURCE / "clients/node")
    return ["node", file], {"NODE_PATH": ":".join([str(tmp_path / "node_modules"), *NODE_PATHS])}


class Wire:
    """A relay between an application and its server, which can be cut on the application's side."""

    def __init__(self, port):
        self.to, self.listener, self.pairs = port, socket.create_server(("127.0.0.1", 0)), []
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                try:
                    far = socket.create_connection(("127.0.0.1", self.to))
                except OSError:
                    near.close()
                    continue
                self.pairs.append((near, far))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=(one, other), daemon=True).start()

    @staticmethod
    def pump(one, other):
        with contextlib.suppress(OSError):
            while piece := one.recv(65536):
                other.sendall(piece)
        for end in (one, other):
            with contextlib.suppress(OSError):
                if end not in CUT:
                    end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """The application loses its connections; the server does not learn of it."""
        for near, far in self.pairs:
            CUT.add(far)
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)
        self.pairs.clear()

    def done(self):
        self.listener.close()


class App:
    """An application under test."""

    def __init__(self, name, url, tmp_path, file=None, **env):
        self.name, self.port, self.log = name, free_port(), tmp_path / "log"
        suffix = "py" if name in ("fastapi", "django") else "js"
        words, more = command(name, file or HERE / f"{name}_app.{suffix}", tmp_path)
        self.words, self.env = [*map(str, words), str(self.port)], {**os.environ, **more, "DATABASE_URL": url, **env}
        self.process = None
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.words, env=self.env, stdout=log, stderr=log)
        poll(self.is_up)

    def is_up(self):
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def send(self, key=KEY, user="alice", path="/act", headers=(), method="POST", body=None, **asked):
        """(status, headers as pairs, body)"""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        link.putrequest(method, path)
        content = json.dumps(asked).encode() if body is None else body
        given = [("Content-Type", "application/json"), ("Content-Length", str(len(content))), *headers]
        given += [("Idempotency-Key", one) for one in ([key] if isinstance(key, str) else key or [])]
        for name, value in given + ([("X-User", user)] if user else []):
            link.putheader(name, value)
        link.endheaders(content)
        answer = link.getresponse()
        try:
            return answer.status, answer.getheaders(), answer.read()
        finally:
            link.close()


def pytest_generate_tests(metafunc):
    for name in {"running", "framework"} & set(metafunc.fixturenames):
        metafunc.parametrize(name, metafunc.module.FRAMEWORKS, indirect=name == "running", scope="module")


@pytest.fixture(scope="module")
def running(request, pg_server, tmp_path_factory):  # noqa: F811
    shop = Shop(pg_server, request.param)
    wire = Wire(pg_server.port)
    made = App(request.param, shop.url.replace(str(pg_server.port), str(wire.port)), tmp_path_factory.mktemp("app"))
    made.shop, made.wire = shop, wire
    yield made
    made.kill()
    wire.done()


@pytest.fixture
def shop(running):
    running.shop.sql("DROP FUNCTION IF EXISTS gate CASCADE; TRUNCATE ledger, semel.idempotency;")
    return running.shop


@pytest.fixture
def app(running, shop):
    return running


@pytest.fixture
def db(shop):
    made = shop.connect()
    yield made
    made.close()


def header(answer, name):
    return [value for other, value in answer[1] if other.lower() == name]


def problem(answer):
    assert header(answer, "content-type")[0].startswith("application/problem+json"), answer
    document = json.loads(answer[2])
    assert document["status"] == answer[0] and document["title"] and document["detail"]
    return answer[0], document["type"].removeprefix("urn:semel:idempotency:")


def effects(db):
    return committed(db, "SELECT count(*) FROM ledger")[0][0]


def keys(db):
    return committed(db, "SELECT count(*) FROM semel.idempotency")[0][0]


# ---- the cases ------------------------------------------------------------------------------------------

# A1 A3 P101
def test_retry_gets_the_first_answer_byte_by_byte_and_the_work_is_done_once(app, db):
    parts = ["1"] if app.name == "django" else ["1", "2"]  # its answers have one value per header
    asked = {"body": json.dumps({"headers": [["X-Part", part] for part in parts]}).encode()}
    first = app.send(**asked)
    again = app.send(**asked)
    assert first[0] == again[0] == 201 and first[2] == again[2] != b""
    assert ", ".join(header(first, "x-part")) == ", ".join(header(again, "x-part")) == ", ".join(parts)
    assert header(again, "idempotent-replayed") == ["true"] and not header(first, "idempotent-replayed")
    assert header(again, "content-type") == header(first, "content-type")
    assert effects(db) == 1
    assert app.send(key=f'"{KEY}"', **asked)[2] == first[2]  # quoted


# A1 A10
def test_replay_writes_nothing(app, db):
    def replays_leave_it():  # but for what the server does by itself
        before = committed(db, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        assert all(header(app.send(), "idempotent-replayed") == ["true"] for _ in range(20))
        return committed(db, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text") == before
    assert app.send()[0] == 201
    poll(replays_leave_it)


# P52 P101
def test_what_belongs_to_one_moment_or_one_client_is_not_stored(app, db):
    given = [["Set-Cookie", "session=secret"], ["Age", "3"], ["X-RateLimit-Remaining", "7"], ["traceparent", "00-1"],
             ["X-Request-Id", "r1"], ["Access-Control-Allow-Origin", "https://shop.example"]]
    first = app.send(headers=[], body=json.dumps({"headers": given}).encode())
    again = app.send(headers=[], body=json.dumps({"headers": given}).encode())
    for name, value in given:
        assert header(first, name.lower()) == [value] and header(again, name.lower()) == [], name
    assert "secret" not in committed(db, "SELECT headers FROM semel.idempotency")[0][0]


# P101: a row that another door has stored may have names in any case, and repeat them
def test_repeated_headers_of_a_stored_answer_are_all_sent(app, db):
    assert app.send()[0] == 201
    committed(db, "UPDATE semel.idempotency SET headers = %s, body = NULL",
              json.dumps([["x-part", "1"], ["Content-Encoding", "gzip"], ["X-Part", "2"]]))
    again = app.send()
    assert ", ".join(header(again, "x-part")) == "1, 2"
    assert (again[0], again[2], header(again, "content-encoding")) == (201, b"", [])


# A2: by status
@pytest.mark.parametrize("status", [200, 303, 402, 410])
def test_final_answers_commit_with_the_work(app, db, status):
    assert app.send(status=status)[0] == app.send(status=status)[0] == status
    assert (effects(db), keys(db)) == (1, 1)


# A8: the answer's own word counts before its status, and clients do not see it
@pytest.mark.parametrize("status, word, kept", [(500, "completed", 1), (404, " Completed", 1), (201, "released", 0),
                                                (200, "unknown", 0), (201, "nonsense", 1), (409, "nonsense", 0)])
def test_semel_outcome_of_an_answer_decides(app, db, status, word, kept):
    asked = {"body": json.dumps({"status": status, "headers": [["Semel-Outcome", word]]}).encode()}
    first = app.send(**asked)
    assert first[0] == status and not header(first, "semel-outcome")
    assert (effects(db), keys(db)) == (kept, kept)
    again = app.send(**asked)
    assert again[0] == status and not header(again, "semel-outcome")
    assert bool(header(again, "idempotent-replayed")) == bool(kept) and effects(db) == kept


# P49 P102
@pytest.mark.parametrize("asked", [{"status": 400}, {"status": 404}, {"status": 429}, {"status": 500}, {"raise": True}])
def test_other_answers_and_exceptions_roll_back_and_free_the_key(app, db, asked):
    assert app.send(**asked)[0] == asked.get("status", 500)
    assert (effects(db), keys(db)) == (0, 0)
    assert app.send(corrected=True)[0] == 201
    assert effects(db) == 1


# A2 A4 A5 P46 P50 P91
def test_same_key_with_another_request_is_422_and_of_another_caller_another_key(app, db):
    assert app.send(body=b'{"size": 1, "status": 201}')[0] == 201
    assert header(app.send(body=b'{ "status":201.0, "size" : 1 }'), "idempotent-replayed") == ["true"]
    assert problem(app.send(body=b'{"size": 2, "status": 201}')) == (422, "mismatch")
    assert problem(app.send(path="/act?again=1", body=b'{"size": 1, "status": 201}')) == (422, "mismatch")
    assert effects(db) == 1
    assert not header(app.send(user="bob"), "idempotent-replayed")
    assert effects(db) == 2


# P91: Express runs all of them in one handler
@pytest.mark.parametrize("path", ["/act/", "/ACT", "/%61ct"])
def test_another_spelling_of_a_path_is_no_second_run(app, db, path):
    assert app.send()[0] == 201
    other = app.send(path=path)
    assert other[0] in (404, 307, 422) or header(other, "idempotent-replayed") == ["true"]
    assert effects(db) == 1


# A2 A4
def test_bad_keys_and_unknown_callers_are_refused(app, db):
    assert problem(app.send(key=None)) == (400, "missing")
    for bad in ["", "k", "k" * 7, "k" * 256, "caf\u00e9-caf\u00e9", [KEY, KEY + "2"], '"', '"1234567"', '"12345678',
                '"1234"5678"', '"1234567\\a"', '"12345678\\"', '"' + '\\"' * 128 + '"']:
        assert problem(app.send(key=bad)) == (400, "malformed"), bad
    assert problem(app.send(user=None)) == problem(app.send(user=None, headers=[("X-User", "")])) == (401, "anonymous")
    assert problem(app.send(user="u" * 249)) == problem(app.send(user="u" * 300)) == (403, "caller")
    assert (effects(db), keys(db)) == (0, 0)
    assert app.send(user="u" * 248)[0] == 201
    for good in ["k" * 8, "k" * 255, '"' + "q" * 255 + '"', '1234"5678"', r'"a\"b\\c 12"']:
        assert app.send(key=good)[0] == 201, good
    assert committed(db, "SELECT count(*) FROM semel.idempotency WHERE key = %s", r'a"b\c 12') == [(1,)]


TIMES = {"1763398800": 1, "1763398800123": 1, "1763398800123456": 1, "1763398800123456789": 1, "17633988001": 0,
         "9763398800": 0, "20261117": 1, "2026-11-17": 1, "2026-11-17T17:00:00Z": 1, "2026-11-17 17:00:00.5+01:00": 1,
         "20261117T170000.123": 1, "2026-11-17T17:0": 0, "2026-41-17": 0, "order 2026-11-17": 0, KEY: 0}


# A4: all doors warn of it
def test_key_that_is_a_time_is_warned_of_once(app, db):
    def warnings():
        return app.log.read_text().count("is a time and nothing else")
    before = warnings()
    for key, is_time in sorted(TIMES.items(), key=lambda item: item[1]):
        assert app.send(key=key)[0] == 201
        assert is_time or warnings() == before, key
    assert warnings() == before + 1


WRONG_LISTS = [{"ignore": ["sent_at"]}, {"ignore": ["/a", "/b~2"]}, {"ignore": ["/a~"]}, {"ignore": "/sent_at"},
               {"listed": "x-tenant"}]


def assert_times_of_sql(db):
    """That the table is what SQL warns of."""
    for key, is_time in TIMES.items():
        del db.notices[:]
        committed(db, "SELECT semel._idempotency_check('test', 'caller', %s)", key)
        assert len(db.notices) == is_time, key


# P51
def test_bodies_and_answers_have_bounds(app, db):
    assert problem(app.send(body=b'{"a": "' + b"x" * (1 << 20) + b'"}')) == (413, "too-large")
    first = app.send(size=200_000)
    again = app.send(size=200_000)  # sent whole once, and not kept
    assert len(first[2]) > 200_000 and (again[0], again[2]) == (201, b"")
    assert effects(db) == 1
    assert problem(app.send(key=KEY + "-3", size=2_000_000, stream=True)) == (503, "not-stored")
    assert (effects(db), keys(db)) == (1, 1)


def test_streamed_answers_are_stored(app, db):
    first, again = app.send(stream=True, size=50_000), app.send(stream=True, size=50_000)
    assert first[0] == again[0] == 201 and first[2] == again[2] != b"" and effects(db) == 1


def test_requests_share_a_connection(app, db):
    link = http.client.HTTPConnection("127.0.0.1", app.port, timeout=60)
    bodies = []
    for body in [b"{}", b"{}", b""]:
        link.request("POST", "/act", body, {"Idempotency-Key": KEY, "X-User": "alice",
                                            "Content-Type": "application/json"})
        answer = link.getresponse()
        bodies.append((answer.status, answer.read()))
    link.close()
    assert bodies[0] == bodies[1] and bodies[0][0] == 201
    assert bodies[2][0] == (400 if app.name == "fastify" else 422)  # which parses first
    assert effects(db) == 1


# The second one has no socket until the first one is answered
def test_requests_are_sent_without_waiting_for_answers(app, db):
    with socket.create_connection(("127.0.0.1", app.port)) as link:
        for key, sleep in ((KEY, 0), (KEY + "-2", 0.5)):
            content = b'{"sleep": %.1f}' % sleep
            link.sendall(b"POST /act HTTP/1.1\r\nHost: a\r\nX-User: alice\r\nIdempotency-Key: %s\r\nContent-Type: "
                         b"application/json\r\nContent-Length: %d\r\n\r\n%s" % (key.encode(), len(content), content))
        link.settimeout(60)
        got = b""
        while got.count(b" 201 Created\r\n") < (1 if app.name == "django" else 2):  # which closes behind each answer
            got += link.recv(65536) or pytest.fail(f"closed: {got}")
    poll(lambda: effects(db) == got.count(b" 201 Created\r\n"))


# A2 P103: the wait is bounded, and a mismatch is told before it
def test_key_that_stays_busy_is_409_with_retry_after(running, shop, tmp_path):
    hasty = App(running.name, shop.url, tmp_path, WAIT="0.2")
    other = shop.connect()
    try:
        assert hasty.send()[0] == 201  # the application is warm
        print_ = committed(other, "DELETE FROM semel.idempotency RETURNING fingerprint")[0][0]
        with other.cursor() as cursor:
            cursor.execute("SELECT act FROM semel.key_begin('caller:alice', %s, %s)", (KEY, bytes(print_)))
            assert cursor.fetchone() == ("run",)
        answer = hasty.send()
        assert problem(answer) == (409, "running") and header(answer, "retry-after") == ["1"]
        assert problem(hasty.send(size=1)) == (422, "mismatch")
    finally:
        other.close()
        hasty.kill()


# A2: of a key that was claimed for an effect outside, and whose outcome nobody knows
def test_unknown_outcome_is_409_with_its_own_type(app, db):
    committed(db, "SELECT semel.key_fail(token, 'unknown') FROM semel.key_claim('caller:alice', %s)", KEY)
    assert problem(app.send()) == (409, "unknown")
    assert effects(db) == 0


# ---- together, and under kills ----------------------------------------------------------------------------

# A1 P103
def test_of_200_requests_with_one_key_one_runs(app, db):
    with concurrent.futures.ThreadPoolExecutor(200) as threads:
        answers = list(threads.map(lambda _: app.send(sleep=0.3), range(200)))
    assert collections.Counter(answer[0] for answer in answers) == {201: 200}
    assert len({answer[2] for answer in answers}) == 1
    assert sum(not header(answer, "idempotent-replayed") for answer in answers) == 1
    assert effects(db) == 1


@contextlib.contextmanager
def gate(shop, when):
    """Stops applications in key_finish (when: finish), or in COMMIT. Gives what waits until one is there."""
    held = shop.connect()
    on = {"finish": "TRIGGER gate BEFORE UPDATE ON semel.idempotency FOR EACH ROW",
          "commit": "CONSTRAINT TRIGGER gate AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"}[when]
    committed(held, f"""CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
                        'BEGIN PERFORM pg_advisory_xact_lock({GATE}); RETURN NEW; END';
                        CREATE {on} EXECUTE FUNCTION gate(); SELECT pg_advisory_lock({GATE})""")

    def waiting():
        return [row[0] for row in committed(held, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' "
                                            "AND NOT granted AND objid = %s", GATE)]
    try:
        yield lambda: poll(waiting)[0]
    finally:
        with contextlib.suppress(Exception):
            held.close()


def in_background(app, **asked):
    pool = concurrent.futures.ThreadPoolExecutor(1)
    return pool.submit(app.send, **asked)


# P48 T1: the process dies between handler and COMMIT; T7: and while COMMIT is under way
@pytest.mark.parametrize("when", ["finish", "commit"])
def test_kill_of_the_application_leaves_one_effect(app, shop, db, when):
    with gate(shop, when) as wait:
        lost = in_background(app)
        wait()
        app.kill()
        assert isinstance(lost.exception(), (OSError, http.client.HTTPException))
    app.start()
    committed(db, "DROP FUNCTION gate CASCADE")
    assert app.send()[0] == 201  # the first one's answer, or a first run
    assert (effects(db), keys(db)) == (1, 1)
    assert header(app.send(), "idempotent-replayed") == ["true"]


# The backend dies before COMMIT: certainly nothing was done. In COMMIT: the key is read again
@pytest.mark.parametrize("when", ["finish", "commit"])
def test_kill_of_the_backend_is_503_and_the_retry_runs(app, shop, db, when):
    with gate(shop, when) as wait:
        answer = in_background(app)
        committed(db, "SELECT pg_terminate_backend(%s)", wait())
        assert problem(answer.result()) == (503, "not-stored")
    assert (effects(db), keys(db)) == (0, 0)
    assert app.send()[0] == 201 and effects(db) == 1


# COMMIT is under way, and its answer will never come
def test_lost_answer_of_a_commit_is_read_again(app, shop, db):
    with gate(shop, "commit") as wait:
        answer = in_background(app)
        wait()
        app.wire.cut()
    status, _, body = answer.result()
    assert status == 201
    again = app.send()
    assert (again[0], again[2], header(again, "idempotent-replayed")) == (201, body, ["true"])
    assert (effects(db), keys(db)) == (1, 1)


# P16: COMMIT was answered, and the standby may not have it; nor what a repetition would read now
@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_commit_that_did_not_wait_for_its_standby_is_503(app, shop, db, how):
    assert app.send(key=KEY + "-0")[0] == 201
    with absent_standby(shop.server) as end:
        answer = in_background(app)
        end(how)
        assert problem(answer.result()) == (503, "not-stored") and b"not known yet" in answer.result()[2]
        assert header(answer.result(), "retry-after") == ["1"] and "did not wait" in app.log.read_text()
    assert header(app.send(), "idempotent-replayed") == ["true"] and (effects(db), keys(db)) == (2, 2)


# P99
def test_client_that_hangs_up_cancels_neither_handler_nor_commit(app, db):
    content = json.dumps({"sleep": 0.5}).encode()
    with socket.create_connection(("127.0.0.1", app.port)) as link:
        link.sendall(b"POST /act HTTP/1.1\r\nHost: a\r\nX-User: alice\r\nIdempotency-Key: %s\r\nContent-Type: "
                     b"application/json\r\nContent-Length: %d\r\n\r\n%s" % (KEY.encode(), len(content), content))
        poll(lambda: committed(db, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"))
    poll(lambda: effects(db) == 1)
    assert keys(db) == 1
    assert header(app.send(sleep=0.5), "idempotent-replayed") == ["true"]


def test_half_a_body_begins_nothing(app, db):
    with socket.create_connection(("127.0.0.1", app.port)) as link:
        link.sendall(b"POST /act HTTP/1.1\r\nHost: a\r\nX-User: alice\r\nIdempotency-Key: %s\r\nContent-Type: "
                     b"application/json\r\nContent-Length: 100\r\n\r\n{" % KEY.encode())
    assert app.send()[0] == 201 and effects(db) == 1


BAD = {"down": "store unavailable", "no_schema": 'schema "semel" does not exist', "old": "key_begin",
       "no_rights": "permission denied for schema semel"}


# A8: where the store is away, or will not do, the log has the reason, no handler runs, and the key is free
@pytest.mark.parametrize("bad", BAD)
def test_store_that_will_not_do_is_503_and_nothing_is_done(running, shop, tmp_path, db, bad):
    server, wire = shop.server, Wire(shop.server.port)
    if bad in ("no_schema", "old"):
        other = Database(server, f"{bad}_{running.name}")
        for path in MIGRATIONS[:12] if bad == "old" else []:
            run_file(other, path)
        other.sql("CREATE TABLE ledger (message_id text, amount int)")
    server.psql("postgres", "CREATE ROLE stranger LOGIN", check=False)
    url = {"down": shop.url.replace(str(server.port), str(wire.port)), "no_rights": server.url(shop.name, "stranger")}
    small = App(running.name, url.get(bad) or other.url, tmp_path, WAIT="0.3", POOL_TIMEOUT="0.3")
    wire.listener.shutdown(socket.SHUT_RDWR)  # it goes away when the application has started
    wire.done()
    wire.cut()
    try:
        answer = small.send()
        assert problem(answer) == (503, "not-stored") and b"nothing was done" in answer[2]
        assert header(answer, "retry-after") == ["1"] and BAD[bad] in small.log.read_text()
        assert small.process.poll() is None and not (url.get(bad) is None and other.sql("SELECT 1 FROM ledger"))
    finally:
        small.kill()
    assert (effects(db), keys(db)) == (0, 0)
    assert running.send()[0] == 201 and effects(db) == 1


def test_restart_of_the_server_in_the_middle_leaves_one_effect(app, shop, db):
    with gate(shop, "commit") as wait:
        answer = in_background(app)
        wait()
        shop.server.stop(signal.SIGINT)
        shop.server.start()
        # The server ends the session that holds the gate, and the one that commits, in any order.
        got = answer.result()
        assert got[0] == 201 or problem(got) == (503, "not-stored")
    fresh = shop.connect()
    committed(fresh, "DROP FUNCTION gate CASCADE")
    assert app.send()[0] == 201
    assert (effects(fresh), keys(fresh)) == (1, 1)
    fresh.close()


# ---- the examples -----------------------------------------------------------------------------------------

# A8
def test_example_charges_once(framework, pg_server, tmp_path):  # noqa: F811
    shop = Shop(pg_server, "payments")
    shop.sql((SOURCE / "examples/payments/schema.sql").read_text())
    suffix = "py" if framework in ("fastapi", "django") else "js"
    made = App(framework, shop.url, tmp_path, SOURCE / f"examples/payments/{framework}_payments.{suffix}")
    try:
        ada = {"path": "/charges", "headers": [("Authorization", "Bearer secret-of-ada")]}
        assert made.send(cents=0, **ada)[0] == 422
        first, again = made.send(cents=500, **ada), made.send(cents=500, **ada)
        assert (first[0], json.loads(first[2])["cents"]) == (201, 500) and again[2] == first[2]
        assert problem(made.send(cents=501, **ada)) == (422, "mismatch")
        assert problem(made.send(cents=500, path="/charges")) == (401, "anonymous")
    finally:
        made.kill()
    assert shop.sql("SELECT customer, cents FROM charge") == [("ada", "500")]
