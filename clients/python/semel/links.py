# SPDX-License-Identifier: MIT
"""How the rules of inbox.py reach a database: a link is one call of an inbox, one transaction at a time.

Its methods are coroutines for every driver. Where the driver is a plain one they never wait, so that now() runs them
without an event loop: there is one set of rules for psycopg 3, plain and async, and for the drivers of adapters.py.
The log and Waited are the middleware's, too.
"""
import asyncio
import logging
import threading
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, AsyncContextManager, AsyncIterator, Callable, Coroutine, Optional, TypeVar

from .message import Unavailable

T = TypeVar("T")
log = logging.getLogger("semel")


async def settled(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


def now(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise TypeError("a handler or pool is asynchronous: use AsyncInbox")


class Waited:
    """Around COMMIT: one that did not wait for its standby says so in a warning alone, and does not count (P16). What
    ends the program or its task, such as KeyboardInterrupt, may have ended that wait, and stays what it is."""

    def __init__(self, conn: Any) -> None:
        self.conn, self.early = conn, False

    def hear(self, one: Any) -> None:
        self.early |= one.source_function == "SyncRepWaitForLSN"

    def __enter__(self) -> None:
        self.conn.add_notice_handler(self.hear)

    def __exit__(self, _: Any, error: Optional[BaseException], trace: Any) -> None:
        self.conn.remove_notice_handler(self.hear)
        if self.early and isinstance(error, (Exception, type(None))):
            raise Unavailable("COMMIT did not wait for its synchronous standby, which may not have it") from error


class Link:
    """psycopg 3: `db` is a psycopg_pool.ConnectionPool or AsyncConnectionPool, and a handler is given the connection.
    `quiet` is an event that ends waits: asyncio's where the pool is. `tx` may be a transaction of the caller's."""

    def __init__(self, db: Any, quiet: Any = None, loop: bool = False, tx: Any = None) -> None:
        self.db, self.loop, self.tx = db, loop, tx
        self.quiet: Any = quiet or (asyncio.Event() if loop else threading.Event())

    @asynccontextmanager
    async def within(self, context: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            yield await stack.enter_async_context(context) if self.loop else stack.enter_context(context)
            return
        raise RuntimeError("the handler has raised psycopg.Rollback")  # which ends a transaction without a word

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.within(self.db.connection()) as self.tx:
            try:
                with Waited(self.tx):
                    async with self.within(self.tx.transaction()):
                        yield
            finally:
                await settled(self.db.check() if self.tx.closed else None)  # the others are likely to be as dead

    def savepoint(self) -> AsyncContextManager[Any]:
        return self.within(self.tx.transaction())

    async def run(self, statement: str, values: Any = None) -> list[Any]:
        cursor = await settled(self.tx.cursor(row_factory=lambda _: tuple).execute(statement, values))
        return list(await settled(cursor.fetchall())) if cursor.description else []

    async def wait(self, seconds: float) -> bool:
        """True: it is over."""
        with suppress(asyncio.TimeoutError):
            await (asyncio.wait_for(self.quiet.wait(), seconds) if self.loop else settled(self.quiet.wait(seconds)))
        return bool(self.quiet.is_set())

    @asynccontextmanager
    async def beside(self, work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> AsyncIterator[None]:
        """Runs a heartbeat, on a connection of its own, while the block runs."""
        other = type(self)(self.db, loop=self.loop)
        job, loop = work(other, *given), self.loop
        running: Any = asyncio.ensure_future(job) if loop else threading.Thread(target=now, args=[job], daemon=True)
        await settled(None if loop else running.start())
        try:
            yield
        finally:
            other.quiet.set()
            await settled(running if loop else running.join())
