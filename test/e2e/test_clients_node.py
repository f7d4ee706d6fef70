# SPDX-License-Identifier: MIT
"""The middleware of clients/node."""
import contextlib
import http.client
import json
import socket
import subprocess

import pytest

pytest.register_assert_rewrite("middleware")
from middleware import *  # noqa: E402,F401,F403
from middleware import (KEY, SOURCE, TIMES, WRONG_LISTS, App, assert_times_of_sql, committed, effects,  # noqa: E402
                        header, keys, poll, problem)

FRAMEWORKS = ["express", "fastify"]


# A4
def test_times_are_those_of_sql(db):
    assert_times_of_sql(db)
    script = "console.log(JSON.stringify(process.argv.slice(2).map((key) => require(process.argv[1]).TIME.test(key))))"
    done = subprocess.run(["node", "-e", script, SOURCE / "clients/node/rules.js", *TIMES], capture_output=True,
                          text=True, check=True)
    assert dict(zip(TIMES, json.loads(done.stdout))) == TIMES


# A5: of what is no pointer all bodies would be the same
@pytest.mark.parametrize("wrong", WRONG_LISTS)
def test_lists_that_are_wrong_are_refused_at_the_start(wrong):
    script = """const { Guard } = require(process.argv[1]);
                new Guard({ pool: 1, caller() {}, ...JSON.parse(process.argv[2]) });"""
    command = ["node", "-e", script, SOURCE / "clients/node/rules.js"]
    done = subprocess.run([*command, json.dumps(wrong)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "must be a list of" in done.stderr
    subprocess.run([*command, '{"ignore": ["", "/a~0b/~1", "/"], "listed": ["x-tenant"]}'], check=True)


# A8: as a client of a proxy sends it; both frameworks take it for the path, and so does the rule
def test_target_with_its_host_is_guarded_too(app, db):
    assert problem(app.send(path="http://shop.example/act", key=None)) == (400, "missing")
    assert app.send()[0] == 201
    assert problem(app.send(path="http://shop.example/act")) == (422, "mismatch")
    assert effects(db) == 1


# A8 P80: only the first answer counts; what is sent behind it, or instead of it, does not overtake its COMMIT
@pytest.mark.parametrize("again", ["send", "throw"])
def test_handler_that_goes_on_behind_its_answer_changes_nothing(app, shop, db, again):
    first, replay = app.send(again=again), app.send(again=again)
    assert (first[0], replay[0]) == (201, 201) and first[2] == replay[2] != b""
    assert header(replay, "idempotent-replayed") == ["true"] and (effects(db), keys(db)) == (1, 1)
    committed(db, """CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
                     'BEGIN RAISE EXCEPTION USING ERRCODE = ''23514''; END';
                     CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
                     EXECUTE FUNCTION gate()""")
    assert app.send(key=KEY + "-2", again=again)[0] == 500
    assert (effects(db), keys(db)) == (1, 1) and app.process.poll() is None


# Before 8.22 pg would spoil the next query of any connection, and leave this one without an answer
def test_value_that_pg_cannot_write_fails_its_request_alone(app, db):
    for n in range(3):
        assert app.send(key=f"{KEY}-{n}", deep=20000)[0] == 500
        assert app.send(key=f"{KEY}-{n}")[0] == 201
    assert (effects(db), keys(db)) == (3, 3)


# P103: a handler that never answers does not keep its place in the pool when the server has ended its transaction
def test_lost_connection_of_a_handler_that_never_answers_goes_back_to_the_pool(running, shop, tmp_path, db):
    small = App(running.name, shop.url, tmp_path, POOL="1")
    content = b'{"never": true}'
    try:
        with socket.create_connection(("127.0.0.1", small.port)) as link:
            link.sendall(b"POST /act HTTP/1.1\r\nHost: a\r\nX-User: alice\r\nIdempotency-Key: %s\r\nContent-Type: "
                         b"application/json\r\nContent-Length: %d\r\n\r\n%s" % (KEY.encode(), len(content), content))
            poll(lambda: committed(db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                                       "current_database() AND query LIKE 'INSERT INTO ledger%%' "
                                       "AND state = 'idle in transaction'"))
        assert small.send()[0] == 201 and effects(db) == 1
    finally:
        small.kill()


# P99: what is streamed into the answer does not stop when the client has gone
@pytest.mark.parametrize("left", ["pipe", "pipeline", "file"])
def test_client_that_hangs_up_does_not_stop_a_stream(app, db, left):
    if app.name != "express" and left != "pipe":
        pytest.skip("Fastify is given a stream")
    content = json.dumps({"left": left}).encode()
    with socket.create_connection(("127.0.0.1", app.port)) as link:
        link.sendall(b"POST /act HTTP/1.1\r\nHost: a\r\nX-User: alice\r\nIdempotency-Key: %s\r\nContent-Type: "
                     b"application/json\r\nContent-Length: %d\r\n\r\n%s" % (KEY.encode(), len(content), content))
        poll(lambda: committed(db, "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND "
                                   "state = 'idle in transaction' AND query LIKE 'INSERT INTO ledger%%'"))
    poll(lambda: effects(db) == 1)
    again = app.send(left=left)
    assert (again[0], header(again, "idempotent-replayed")) == (201, ["true"]) and len(again[2]) > 5


# A3: there will be no answer, and nobody waits for the time-out to learn that
def test_stream_that_breaks_rolls_back_at_once(app, db):
    with contextlib.suppress(http.client.HTTPException):
        assert app.send(breaks=True)[0] == 500
    poll(lambda: not committed(db, "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND "
                                   "state LIKE 'idle in transaction%%' AND pid <> pg_backend_pid()"))
    assert app.send()[0] == 201 and (effects(db), keys(db)) == (1, 1)


def test_fastify_answers_of_the_web_are_stored(app, db):
    if app.name != "fastify":
        pytest.skip("Express does not know them")
    for key, web, status in ((KEY, "response", 202), (KEY + "-2", "stream", 201)):
        first, again = app.send(key=key, web=web), app.send(key=key, web=web)
        assert first[0] == again[0] == status and first[2] == again[2] != b""
        assert header(first, "x-part") == header(again, "x-part") and header(again, "idempotent-replayed") == ["true"]
    assert effects(db) == 2


# A3: the page's own length is not that of the whole
def test_express_error_page_behind_a_part_is_sent_whole(app, db):
    if app.name != "express":
        pytest.skip("Fastify has no such call")
    answer = app.send(part=True)
    assert answer[0] == 500 and answer[2].startswith(b"part") and answer[2].endswith(b"</html>\n")
    assert (effects(db), keys(db)) == (0, 0)


# P101: a list of names and values may repeat a name; who waits until it is sent is called back
def test_express_answer_by_a_list_of_headers(app, db):
    if app.name != "express":
        pytest.skip("Fastify has no such call")
    first, again = app.send(list=True), app.send(list=True)
    assert header(first, "x-part") == header(again, "x-part") == ["1", "2"]
    poll(lambda: effects(db) == 2)  # the second row is written when the answer is sent


def test_express_answer_with_a_status_that_is_none_is_an_error_of_its_handler(app, db):
    if app.name != "express":
        pytest.skip("Fastify refuses it itself")
    assert app.send(badly=True)[0] == 500
    assert (effects(db), keys(db)) == (0, 0) and app.process.poll() is None
