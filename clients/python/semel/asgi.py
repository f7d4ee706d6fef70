# SPDX-License-Identifier: MIT
"""Idempotency keys for ASGI applications (FastAPI, Starlette), with psycopg 3 and its pool.

    app.add_middleware(Idempotency, pool=pool, caller=lambda scope: scope["user"].id)

A guarded handler runs inside one transaction with its key, on the connection that connection(request) gives. Its answer
is stored in that transaction, and the first byte is sent after COMMIT. 2xx, 3xx, 402 and 410 commit; every other answer
and every exception rolls back, and the key is free. A client that hangs up cancels nothing. After a lost COMMIT the key
is read again, never guessed.
"""
from __future__ import annotations

import asyncio
import functools
from typing import Any, Awaitable, Callable, Optional, Union
from urllib.parse import quote

import psycopg
from psycopg.rows import tuple_row

from . import rules
from .links import Waited, log, settled
from .rules import Refusal


def connection(request: Any) -> psycopg.AsyncConnection[Any]:
    """The connection of a guarded request, in its transaction. Its end is the middleware's: never commit it."""
    if "semel" not in request.scope:
        raise RuntimeError("this request has no transaction: make its key required in the middleware's rule")
    return request.scope["semel"]  # type: ignore[no-any-return]


class Idempotency:
    """Its other settings are those of rules.Settings."""

    def __init__(self, app: Callable[..., Awaitable[None]], pool: Any,
                 caller: Callable[[Any], Union[None, str, Awaitable[Optional[str]]]],
                 rule: Callable[[str, str], str] = rules.default_rule, **settings: Any) -> None:
        self.app, self.pool, self.set = app, pool, rules.Settings(caller, rule, **settings)
        self.running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        keys = [value for name, value in scope.get("headers", ()) if name.lower() == b"idempotency-key"]
        if scope["type"] != "http" or not self.set.guards(scope["method"], scope["path"], bool(keys)):
            return await self.app(scope, receive, send)
        task = asyncio.ensure_future(_Request(self, scope, receive, send).guard(keys))
        self.running.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self.running.discard)
        await asyncio.shield(task)


class _Request:
    """One guarded request. Its connection goes back to the pool when the application has returned."""

    def __init__(self, owner: Idempotency, scope: Any, receive: Any, send: Any) -> None:
        self.owner, self.set, self.scope, self.receive, self.send = owner, owner.set, scope, receive, send
        self.conn: Optional[psycopg.AsyncConnection[Any]] = None
        self.sent, self.answered = asyncio.Event(), False
        self.arguments: tuple[Any, ...] = ()
        self.status, self.headers, self.body = 0, [], bytearray()  # type: int, list[Any], bytearray

    async def guard(self, keys: list[bytes]) -> None:
        try:
            key, body = self.set.key_of(keys), await self.read_body()
            if body is None:
                return  # the client is gone, and nothing was begun
            scope = rules.scope_of(await settled(self.set.caller(self.scope)), self.set.anonymous)
            self.arguments = self.set.beginning(scope, key, await self.fingerprint(body))
            row = await self.begin(self.set.wait)
            await (self.run(row[4], body) if row[0] == "run" else self.answer(*rules.replay(row)))
        except Refusal as refusal:
            await self.answer(*refusal.answer)
        finally:
            await self.give_back()

    async def read_body(self) -> Optional[bytes]:
        body, more = bytearray(), True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            self.set.limit(len(body))
        return bytes(body)

    async def fingerprint(self, body: bytes) -> bytes:
        """Of a large body beside the loop: a megabyte of JSON takes a second (P104)."""
        path = self.scope.get("raw_path") or quote(self.scope["path"]).encode()
        print_ = functools.partial(self.set.print, self.scope["method"].encode(), path, self.scope["query_string"],
                                   list(self.scope["headers"]), body)
        if len(body) <= 1 << 15:
            return print_()
        return await asyncio.get_running_loop().run_in_executor(None, print_)

    async def begin(self, wait: float) -> Any:
        """Asks for the key while it is busy, at most for the wait. Holds no connection while it waits."""
        deadline, pauses = asyncio.get_running_loop().time() + wait, rules.pauses()
        while True:
            row: Any = None
            try:
                self.conn = conn = await self.owner.pool.getconn()
                if conn.autocommit:
                    await conn.execute("BEGIN")
                row = await (await conn.cursor(row_factory=tuple_row).execute(rules.BEGIN, self.arguments)).fetchone()
                if row[0] == "run":
                    return row
                await conn.rollback()
            except psycopg.Error as error:
                log.warning("store unavailable: %s", error)
                if not isinstance(error, psycopg.OperationalError):
                    raise rules.not_stored(True) from error
            await self.give_back()
            if row is not None and row[0] != "busy":
                return row
            if asyncio.get_running_loop().time() >= deadline:
                raise rules.refusal_of("busy") if row is not None else rules.not_stored(True)
            await asyncio.sleep(next(pauses))

    async def undo(self) -> None:
        if self.conn is not None:
            try:
                await self.conn.rollback()
            except psycopg.Error:
                await self.conn.close()

    async def give_back(self) -> None:
        await self.undo()
        conn, self.conn = self.conn, None
        if conn is not None:
            await self.owner.pool.putconn(conn)

    async def run(self, token: int, body: bytes) -> None:
        request = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if request:
                return request.pop()
            await self.sent.wait()  # the handler does not learn that its client has gone
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], list(message.get("headers", ()))
            elif message["type"] == "http.response.body" and not self.answered:
                self.body += message.get("body", b"")
                if len(self.body) > self.set.max_answer:
                    await self.undo()
                    await self.answer(*rules.too_long(self.set.max_answer).answer)
                    raise RuntimeError(f"an answer with a key has at most {self.set.max_answer} bytes")
                if not message.get("more_body", False):
                    await self.settle(token)

        own = {name: how for name, how in (self.scope.get("extensions") or {}).items() if name[:5] != "http."}
        self.scope.update(semel=self.conn, extensions=own)  # no server sends a file, or anything else, past us
        await self.owner.app(self.scope, receive, send)
        if not self.answered:
            raise RuntimeError("the application returned without a whole answer")

    async def settle(self, token: int) -> None:
        """The answer is whole: commits or rolls back, then sends. What the handler does behind it is rolled back."""
        assert self.conn is not None
        body = bytes(self.body)
        try:
            if rules.completes(self.status, self.headers):
                await self.conn.execute(rules.FINISH, self.set.ending(token, self.status, self.headers, body))
                try:
                    with rules.durable(Waited(self.conn)):
                        await self.conn.commit()
                except psycopg.OperationalError as error:
                    log.error("COMMIT has no answer: %s; the key is read again", error)
                    return await self.read_again()
            else:
                await self.undo()
            await self.answer(self.status, rules.shown(self.headers), body)
        except psycopg.OperationalError as error:
            log.error("answer not stored: %s; the work is rolled back", error)
            await self.undo()
            await self.answer(*rules.not_stored(True).answer)
        except Refusal as refusal:
            await self.answer(*refusal.answer)

    async def read_again(self) -> None:
        await self.give_back()
        try:
            row = await self.begin(max(self.set.wait, 5))
        except Refusal as error:
            raise rules.not_stored(False) from error
        await self.answer(*rules.replay(row))

    async def answer(self, status: int, headers: Any, body: bytes) -> None:
        self.answered = True
        if not any(name.lower() == b"content-length" for name, _ in headers) and status not in (204, 304):
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})
        self.sent.set()  # not before: a streaming handler that is told of the end cancels what sends
