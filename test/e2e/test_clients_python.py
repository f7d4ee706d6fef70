# SPDX-License-Identifier: MIT
"""The middleware of clients/python."""
import asyncio
import contextlib
import os
import subprocess
import sys
import threading

import pytest

pytest.register_assert_rewrite("middleware")
from middleware import *  # noqa: E402,F401,F403
from middleware import KEY, SOURCE, TIMES, WRONG_LISTS, Shop, assert_times_of_sql  # noqa: E402

FRAMEWORKS = ["fastapi", "django"]


# P99: servers that cancel the application's task, and report the disconnect to whoever asks
def test_cancelled_task_goes_on_to_its_commit(pg_server, monkeypatch):  # noqa: F811
    psycopg_pool = pytest.importorskip("psycopg_pool", reason="Python has no psycopg_pool here: tools/setup languages")
    monkeypatch.syspath_prepend(SOURCE / "clients/python")
    from semel.asgi import Idempotency
    shop = Shop(pg_server, "cancelled")
    gone, sent = [{"type": "http.disconnect"}] * 9, []

    async def handler(scope, receive, send):
        assert (await receive())["body"] == b"{}"
        await scope["semel"].execute("INSERT INTO ledger VALUES ('charge', 1)")
        begun.set()
        with contextlib.suppress(asyncio.TimeoutError):  # who watches for a disconnect sees none
            sent.append(await asyncio.wait_for(receive(), 0.3))
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def main():
        nonlocal begun
        begun = asyncio.Event()
        inbound = [{"type": "http.request", "body": b"{}"}, *gone]

        async def receive():
            return inbound.pop(0)

        async def send(message):
            sent.append(message.get("status") or message["body"])
        async with psycopg_pool.AsyncConnectionPool(shop.url) as pool:
            guarded = Idempotency(handler, pool, caller=lambda scope: "alice")
            scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"",
                     "headers": [(b"idempotency-key", KEY.encode())]}
            task = asyncio.ensure_future(guarded(scope, receive, send))
            await begun.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await asyncio.gather(*guarded.running)
    begun = None
    asyncio.run(main())
    assert sent == [201, b"done"]
    assert shop.sql("SELECT status FROM semel.idempotency") == [("completed",)]
    assert shop.sql("SELECT count(*) FROM ledger") == [("1",)]


# A4
def test_times_are_those_of_sql(db, monkeypatch):
    monkeypatch.syspath_prepend(SOURCE / "clients/python")
    from semel import rules
    assert_times_of_sql(db)
    assert {key: bool(rules.TIME.fullmatch(key)) for key in TIMES} == TIMES


def asked_twice(shop, monkeypatch, body=b"{}", **kwargs):
    """Two requests under one key, over a pool whose connections are made with kwargs: what was sent, and the threads
    that took fingerprints."""
    psycopg_pool = pytest.importorskip("psycopg_pool", reason="Python has no psycopg_pool here: tools/setup languages")
    monkeypatch.syspath_prepend(SOURCE / "clients/python")
    from semel.asgi import Idempotency
    sent, threads = [], []

    async def handler(scope, receive, send):
        assert scope["extensions"] == {"tls": {}}  # a server that sends a file by itself would send it past us
        assert (await receive())["body"] == body
        await scope["semel"].execute("INSERT INTO ledger VALUES ('charge', 1)")
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message.get("status") or message["body"])

    async def main():
        async with psycopg_pool.AsyncConnectionPool(shop.url, kwargs=kwargs) as pool:
            guarded = Idempotency(handler, pool, caller=lambda scope: "alice")
            print_ = guarded.set.print
            guarded.set.print = lambda *given: threads.append(threading.current_thread()) or print_(*given)
            for _ in range(2):
                await guarded({"type": "http", "method": "POST", "path": "/", "query_string": b"",
                               "headers": [(b"idempotency-key", KEY.encode())],
                               "extensions": {"tls": {}, "http.response.pathsend": {}}}, receive, send)
    asyncio.run(main())
    return sent, threads


# A8: rows as dictionaries, and autocommit, are settings of a pool that many applications have
@pytest.mark.parametrize("setting", ["row_factory", "autocommit"])
def test_settings_of_the_pool_change_nothing(pg_server, monkeypatch, setting):  # noqa: F811
    rows = pytest.importorskip("psycopg.rows", reason="Python has no psycopg here: tools/setup languages")
    shop = Shop(pg_server, setting)
    given = {"row_factory": rows.dict_row, "autocommit": True}[setting]
    assert asked_twice(shop, monkeypatch, **{setting: given})[0] == [201, b"done"] * 2
    assert shop.sql("SELECT count(*) FROM ledger") == [("1",)]


@pytest.mark.parametrize("given", [{}, {"caller": "shop.auth"}, {"caller": len, "waite": 1},
                                   *({"caller": len, **wrong} for wrong in WRONG_LISTS)])
def test_settings_that_are_wrong_are_refused_at_the_start(monkeypatch, given):
    monkeypatch.syspath_prepend(SOURCE / "clients/python")
    from semel.rules import Settings
    with pytest.raises((TypeError, ValueError), match="caller|waite|ignore must be|listed must be"):
        Settings(**given)
    Settings(len, ignore=["", "/a~0b/~1", "/"], listed=["x-tenant"])


# A5: of what is no pointer all bodies would be the same
def test_fingerprint_refuses_what_is_no_pointer(monkeypatch):
    monkeypatch.syspath_prepend(SOURCE / "clients/python")
    from semel import fingerprint
    with pytest.raises(ValueError, match="sent_at"):
        fingerprint(b"POST", b"/", b"", [(b"content-type", b"application/json")], b"{}", ignore=["sent_at"])


STREAMS = """
import django
from django.conf import settings
settings.configure(SEMEL={"caller": len})
django.setup()
from django.http import StreamingHttpResponse
from semel.django import Idempotency

async def pieces():
    yield b"a"
    yield b"b"

made = Idempotency(lambda request: StreamingHttpResponse(pieces()))
made.call = lambda statement, arguments: print(arguments[1], arguments[3])
print(list(made.run(None, 7).streaming_content))
"""


# A3: Django has them since 4.2
def test_answer_of_an_asynchronous_iterator_is_stored_by_django():
    pytest.importorskip("django", minversion="4.2", reason="this Django has no asynchronous streams")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", STREAMS], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": f"{SOURCE / 'clients/python'}:{':'.join(sys.path)}"})
    assert done.stdout == "200 b'ab'\n[b'ab']\n"


@pytest.mark.parametrize("name", ["asgi.py", "django.py"])
def test_each_middleware_has_less_than_200_lines(name):
    assert len((SOURCE / "clients/python/semel" / name).read_text().splitlines()) < 200


# P104: the loop serves others while a large body is digested
@pytest.mark.parametrize("size", [10, 40000])
def test_fingerprint_of_a_large_body_is_taken_beside_the_loop(pg_server, monkeypatch, size):  # noqa: F811
    sent, threads = asked_twice(Shop(pg_server, f"body{size}"), monkeypatch, b"x" * size)
    assert sent == [201, b"done"] * 2
    assert [one is threading.main_thread() for one in threads] == [size < 1 << 15] * 2
