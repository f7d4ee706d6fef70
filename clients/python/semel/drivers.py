# SPDX-License-Identifier: MIT
"""What an inbox and a middleware share: their log, and what drivers say of an error and of COMMIT."""
from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from .message import StoreError, Unavailable

log = logging.getLogger("semel")
NOT_WAITED = "COMMIT did not wait for its synchronous standby, which may not have it"


def cause_of(error: Any) -> Any:
    """Of an error of SQLAlchemy or Django that of the driver: None, if there was none. Any other one is its own."""
    while type(error).__module__.startswith("django.db"):
        error = error.__cause__
    return getattr(error, "orig", error)


@contextmanager
def logged(what: str) -> Iterator[None]:
    """Around what may fail: what ended the work before it, such as KeyboardInterrupt, stays what it is."""
    try:
        yield
    except StoreError as error:
        log.warning("%s: %s", what, error)


@contextmanager
def believed(lost: Callable[[], bool], end: Callable[..., None], *given: Any) -> Iterator[None]:
    """Around COMMIT, and `end` behind it: Unavailable, where it did not wait. What ends the program or its task, such
    as KeyboardInterrupt, may have ended that wait, and stays what it is."""
    try:
        try:
            yield
        finally:
            end(*given)
    except Exception as error:
        if lost():
            raise Unavailable(NOT_WAITED) from error
        raise
    if lost():
        raise Unavailable(NOT_WAITED)


@contextmanager
def waited(conn: Any) -> Iterator[None]:
    """Around COMMIT: one that did not wait for its standby says so in a warning alone, and does not count (P16)."""
    said: list[Any] = []

    def hear(one: Any) -> None:
        if one.source_function == "SyncRepWaitForLSN":
            said.append(one)
    conn.add_notice_handler(hear)
    with believed(lambda: bool(said), conn.remove_notice_handler, hear):
        yield


@contextmanager
def heard(conn: Any) -> Iterator[Callable[[], None]]:
    """As waited(), also with psycopg2. That keeps of a warning the text alone, in the language of the server, so each
    one counts, until what is given is called."""
    kept, said = getattr(conn, "notices", None), []  # type: Any, list[str]

    def stop() -> None:
        if kept is not None and conn.notices is said:
            conn.notices = kept
    if hasattr(conn, "add_notice_handler"):
        with waited(conn):
            yield stop
        return
    if kept is not None:
        conn.notices = said
    with believed(lambda: not all(re.match("DEBUG|LOG|INFO|NOTICE", one) for one in said), stop):
        yield stop
