# SPDX-License-Identifier: MIT
"""An inbox and an outbox on a database connection that an application has: SQLAlchemy's sessions, and Django's."""
from __future__ import annotations

import re
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, AsyncIterator, Callable, Coroutine, Iterator

from .links import Link, Waited
from .message import Unusable


class Notices:
    """Those of psycopg2, as psycopg 3 hands them on. It keeps of a warning the text alone, in the language of the
    server, so each one counts."""

    source_function = "SyncRepWaitForLSN"  # as far as anybody can tell

    def __init__(self, conn: Any) -> None:
        self.conn, self.kept = conn, getattr(conn, "notices", None)

    def add_notice_handler(self, hear: Callable[[Any], None]) -> None:
        self.hear = hear
        if self.kept is not None:
            self.conn.notices = self

    def append(self, text: str) -> None:
        if not re.match("DEBUG|LOG|INFO|NOTICE", text):
            self.hear(self)

    def remove_notice_handler(self, _: Any = None) -> None:
        if self.kept is not None and self.conn.notices is self:
            self.conn.notices = self.kept


@contextmanager
def heard(conn: Any) -> Iterator[Callable[[], None]]:
    """As Waited, also with psycopg2: until what is given is called."""
    notices = Notices(conn)
    with Waited(conn if hasattr(conn, "add_notice_handler") else notices):
        yield notices.remove_notice_handler


@contextmanager
def atomic(alias: str) -> Iterator[None]:
    """Django's, for a whole transaction. What the application has for behind its COMMIT is done in any case."""
    from django.db import connections, transaction
    with ExitStack() as behind, transaction.atomic(using=alias, durable=True):
        stops: list[Callable[[], None]] = []
        transaction.on_commit(lambda: stops[0](), using=alias)  # the first of those
        yield
        stops.append(behind.enter_context(heard(connections[alias].connection)))


class InterfaceError(Exception):
    """No connection is to be had; named as drivers name it."""


class SQLAlchemy(Link):
    """Inbox("billing", sessionmaker(engine), link=SQLAlchemy): a handler is given the Session."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        from sqlalchemy import event
        with ExitStack() as behind, self.db.begin() as self.tx:
            yield
            stop = behind.enter_context(heard(self.tx.connection().connection.dbapi_connection))
            event.listen(self.tx, "after_commit", lambda _: stop())  # before the pool gives it to somebody else

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        with self.tx.begin_nested() as nested:  # its end flushes what the handler has added
            yield
            if self.tx.get_nested_transaction() is not nested:
                raise Unusable("a handler never ends its transaction; nothing was recorded")

    async def run(self, statement: str, values: Any = None) -> list[Any]:
        from sqlalchemy.exc import TimeoutError as Timeout
        try:
            result = self.tx.connection().exec_driver_sql(statement, values)
        except Timeout as error:  # of the pool, which SQLAlchemy counts among no errors of a database
            raise InterfaceError(str(error)) from error
        return [tuple(row) for row in result] if result.returns_rows else []


class Django(Link):
    """Inbox("billing", "default", link=Django): `db` is an alias of DATABASES. A handler is given its connection, and
    may use models as well."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        from django.db import connections
        self.tx = connections[self.db]
        self.tx.close_if_unusable_or_obsolete()
        with atomic(self.db):
            yield

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        from django.db import transaction
        with transaction.atomic(using=self.db):
            yield
            if self.tx.needs_rollback:  # atomic() would roll back without a word
                raise RuntimeError("the handler has marked its transaction for a rollback, and returned")

    @asynccontextmanager
    async def beside(self, work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> AsyncIterator[None]:
        from django.db import connections

        async def closing(link: Django, *more: Any) -> None:  # a connection is its thread's, and outlives it
            try:
                await work(link, *more)
            finally:
                connections[link.db].close()
        async with super().beside(closing, *given):
            yield

    async def run(self, statement: str, values: Any = None) -> list[Any]:
        with self.tx.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall()) if cursor.description else []
