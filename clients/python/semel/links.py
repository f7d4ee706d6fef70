# SPDX-License-Identifier: MIT
"""How the rules of inbox.py reach a database: a link is one call of an inbox, one transaction at a time.

Its methods are coroutines for every driver. Where the driver is a plain one they never wait, so that now() runs them
without an event loop: there is one set of rules for psycopg 3, plain and async, for SQLAlchemy's sessions and Django.
"""
from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import Any, Callable, Coroutine


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def now(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise TypeError("a handler or pool is asynchronous: use AsyncInbox")


class Link:
    """psycopg 3: `db` is a psycopg_pool.ConnectionPool or AsyncConnectionPool, and a handler is given the connection.
    `quiet` is an event that ends waits: asyncio's where the pool is."""

    def __init__(self, db: Any, quiet: Any = None, loop: bool = False) -> None:
        self.db, self.loop, self.tx, self.beat = db, loop, None, None  # type: Any, bool, Any, Any
        self.quiet: Any = quiet or (asyncio.Event() if loop else threading.Event())

    async def begin(self) -> None:
        self.tx = await settled(self.db.getconn())
        if self.tx.autocommit:
            await self.run("BEGIN")

    async def run(self, statement: str, values: Any = None) -> list[Any]:
        from psycopg.rows import tuple_row
        cursor = self.tx.cursor(row_factory=tuple_row)
        await settled(cursor.execute(statement, values))
        return list(await settled(cursor.fetchall())) if cursor.description else []

    async def savepoint(self) -> None:
        await self.run("SAVEPOINT semel")

    async def release(self) -> None:
        await self.run("RELEASE SAVEPOINT semel")

    async def undo(self) -> None:
        await self.run("ROLLBACK TO SAVEPOINT semel")

    async def commit(self) -> None:
        await settled(self.tx.commit())
        await self.give_back()

    async def rollback(self) -> None:
        if self.tx is not None:
            try:
                await settled(self.tx.rollback())
            except Exception:  # pylint: disable=broad-except
                await settled(self.tx.close())
            await self.give_back()

    async def give_back(self) -> None:
        conn, self.tx = self.tx, None
        broken = conn.closed
        await settled(self.db.putconn(conn))
        if broken:
            await settled(self.db.check())  # the others are likely to be as dead

    async def on(self, tx: Any, statement: str, values: Any) -> list[Any]:
        """One statement in a transaction that is the caller's."""
        self.tx = tx
        return await self.run(statement, values)

    async def closing(self, work: Callable[..., Coroutine[Any, Any, Any]], *given: Any) -> Any:
        try:
            return await work(self, *given)
        finally:
            await self.still()
            await self.rollback()

    async def sleep(self, seconds: float) -> None:
        if self.loop:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    async def wait(self, seconds: float) -> bool:
        """True: it is over."""
        if not self.loop:
            return bool(self.quiet.wait(seconds))
        try:
            return bool(await asyncio.wait_for(self.quiet.wait(), seconds))
        except asyncio.TimeoutError:
            return False

    async def start(self, work: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        """Runs a heartbeat beside us, on a connection of its own, until still()."""
        other = type(self)(self.db, loop=self.loop)
        if self.loop:
            self.beat = (other, asyncio.ensure_future(other.closing(work)))
        else:
            self.beat = (other, threading.Thread(target=lambda: now(other.closing(work)), daemon=True))
            self.beat[1].start()

    async def still(self) -> None:
        if self.beat is not None:
            (other, running), self.beat = self.beat, None
            other.quiet.set()
            await settled(running if self.loop else running.join())


class SQLAlchemy(Link):
    """Inbox("billing", sessionmaker(engine), link=SQLAlchemy): a handler is given the Session."""

    nested: Any = None

    async def begin(self) -> None:
        self.tx = self.db()

    async def run(self, statement: str, values: Any = None) -> list[Any]:
        result = self.tx.connection().exec_driver_sql(statement, values)
        return [tuple(row) for row in result] if result.returns_rows else []

    async def savepoint(self) -> None:
        self.nested = self.tx.begin_nested()

    async def release(self) -> None:
        self.nested.commit()  # which flushes what the handler has added

    async def undo(self) -> None:
        self.nested.rollback()

    async def commit(self) -> None:
        self.tx.commit()
        await self.rollback()

    async def rollback(self) -> None:
        session, self.tx = self.tx, None
        if session is not None:
            session.close()


class Django(Link):
    """Inbox("billing", "default", link=Django): `db` is an alias of DATABASES. A handler is given its connection, and
    may use models as well."""

    def __init__(self, db: Any, quiet: Any = None, loop: bool = False) -> None:
        super().__init__(db, quiet, loop)
        self.blocks: list[Any] = []

    def enter(self, durable: bool) -> None:
        from django.db import transaction  # type: ignore[import]
        block = transaction.atomic(using=self.db, durable=durable)
        block.__enter__()
        self.blocks.append(block)

    async def begin(self) -> None:
        from django.db import connections
        self.tx = connections[self.db]
        self.tx.close_if_unusable_or_obsolete()
        self.enter(True)

    async def run(self, statement: str, values: Any = None) -> list[Any]:
        with self.tx.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall()) if cursor.description else []

    async def savepoint(self) -> None:
        self.enter(False)

    async def release(self) -> None:
        if self.tx.needs_rollback:  # atomic() would roll back without a word
            raise RuntimeError("the handler has marked its transaction for a rollback, and returned")
        await self.commit()

    async def undo(self) -> None:
        if len(self.blocks) > 1:  # else it is undone: atomic() does that itself when it cannot release
            self.leave()

    def leave(self) -> None:
        self.blocks.pop().__exit__(RuntimeError, RuntimeError(), None)

    async def commit(self) -> None:
        self.blocks.pop().__exit__(None, None, None)

    async def rollback(self) -> None:
        try:
            while self.blocks:
                self.leave()
        except Exception:  # pylint: disable=broad-except
            self.tx.close()
