# SPDX-License-Identifier: MIT
"""Idempotency keys for Django, on the database connection that Django has.

    MIDDLEWARE = [..., "semel.django.Idempotency"]
    SEMEL = {"caller": "shop.auth.caller"}          # a function of the request, or its name

A guarded view runs inside transaction.atomic() with its key. Its answer is stored in that transaction, and is sent
after COMMIT. 2xx, 3xx, 402 and 410 commit; every other answer and every exception rolls back; the key is free. After
a lost COMMIT the key is read again, never guessed.
"""
from __future__ import annotations

import time
from typing import Any, Callable, Optional
from urllib.parse import quote

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.http import HttpResponse
from django.utils.module_loading import import_string

from . import rules
from .adapters import atomic
from .links import log
from .rules import Refusal

class Lost(Exception):
    """The connection was lost after the key was begun: the COMMIT may have happened."""


class Idempotency:
    """settings.SEMEL has those of rules.Settings, and `using`, the database."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        given: dict[str, Any] = {"using": "default", **getattr(settings, "SEMEL", {})}
        for name in ("caller", "rule"):
            if isinstance(given.get(name), str):
                given[name] = import_string(given[name])
        self.get_response, self.using = get_response, given.pop("using")
        try:
            self.set = rules.Settings(**given)
        except (TypeError, ValueError) as error:
            raise ValueError(f"settings.SEMEL: {error}") from None

    def __call__(self, request: Any) -> Any:
        key = request.META.get("HTTP_IDEMPOTENCY_KEY")
        if not self.set.guards(request.method, request.path, key is not None):
            return self.get_response(request)
        try:  # a server joins two headers by a comma
            return self.guard(request, [] if key is None else key.encode("latin-1", "replace").split(b","))
        except Refusal as refusal:
            return answer(*refusal.answer)

    def guard(self, request: Any, keys: list[bytes]) -> Any:
        key = self.set.key_of(keys)
        length = int(request.META.get("CONTENT_LENGTH") or 0)
        self.set.limit(length)
        self.set.limit(len(request.body))
        if len(request.body) < length:  # Django reads what there is (P93)
            raise Refusal(400, "incomplete", "the body is shorter than its Content-Length")
        scope = rules.scope_of(self.set.caller(request), self.set.anonymous)
        headers = [(name.encode("latin-1"), value.encode("latin-1", "replace"))
                   for name, value in request.headers.items()]
        query = request.META.get("QUERY_STRING", "").encode()
        print_ = self.set.print(request.method.encode(), path_of(request), query, headers, request.body)
        arguments = self.set.beginning(scope, key, print_)
        try:
            row, response = self.ask(arguments, self.set.wait, lambda token: self.run(request, token))
        except Lost as lost:
            log.error("COMMIT has no answer: %s; the key is read again", lost.__cause__)
            row, response = self.read_again(arguments), None
        return answer(*rules.replay(row)) if response is None else response

    def ask(self, arguments: tuple[Any, ...], wait: float, run: Callable[[int], Any]) -> Any:
        """Begins the key until the answer is not busy, at most for the wait. Holds no connection while it waits."""
        deadline, pauses = time.monotonic() + wait, rules.pauses()
        while True:
            row: Any = None
            try:
                with rules.durable(atomic(self.using)):
                    row = self.call(rules.BEGIN, arguments)
                    if row[0] == "run":
                        return row, run(row[4])
            except (OperationalError, InterfaceError) as error:
                if row is not None and row[0] == "run":
                    connections[self.using].close()
                    raise Lost from error
                log.warning("store unavailable: %s", error)
            except DatabaseError as error:
                if row is not None:
                    raise  # the application's
                log.error("store unavailable: %s", error)
                raise rules.not_stored(True) from error
            if row is not None and row[0] != "busy":
                return row, None
            connections[self.using].close()
            if time.monotonic() >= deadline:
                raise rules.refusal_of("busy") if row is not None else rules.not_stored(True)
            time.sleep(next(pauses))

    def call(self, statement: str, arguments: tuple[Any, ...]) -> Any:
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement, arguments)
            return cursor.fetchone()

    def run(self, request: Any, token: int) -> Any:
        """In the transaction: the view, whose exceptions Django has made answers, and the end of its key."""
        response = self.get_response(request)
        if response.streaming:
            body = bytearray()
            for chunk in response:  # also of an asynchronous iterator
                body += chunk
                if len(body) > self.set.max_answer:
                    raise rules.too_long(self.set.max_answer)
            response.streaming_content = [bytes(body)]
        else:
            body = response.content
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
        if rules.completes(response.status_code, headers):
            self.call(rules.FINISH, self.set.ending(token, response.status_code, headers, bytes(body)))
        else:
            transaction.set_rollback(True, using=self.using)
        del response["Semel-Outcome"]
        return response

    def read_again(self, arguments: tuple[Any, ...]) -> Any:
        def undo(_: int) -> None:
            transaction.set_rollback(True, using=self.using)
        try:
            return self.ask(arguments, max(self.set.wait, 5), undo)[0]
        except (Lost, Refusal) as error:
            raise rules.not_stored(False) from error


def path_of(request: Any) -> bytes:
    """As it was sent, where the server keeps that."""
    sent = request.META.get("RAW_URI") or request.META.get("REQUEST_URI")
    raw: Optional[bytes] = getattr(request, "scope", {}).get("raw_path")
    return raw or (sent.split("?")[0] if sent else quote(request.path)).encode()


def answer(status: int, headers: Any, body: bytes) -> HttpResponse:
    response = HttpResponse(body, status=status)
    del response["Content-Type"]
    for name, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers):
        # Django keeps a map: a header that is repeated is one list, which means the same (RFC 9110, 5.3).
        response[name] = f"{response[name]}, {value}" if name in response else value
    return response
