# SPDX-License-Identifier: MIT
"""The middleware of clients/python."""
import asyncio
import contextlib

import pytest

pytest.register_assert_rewrite("middleware")
from middleware import *  # noqa: E402,F401,F403
from middleware import KEY, SOURCE, Shop  # noqa: E402

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
