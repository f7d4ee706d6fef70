# SPDX-License-Identifier: MIT
"""Idempotency keys for Django, on the database connection that Django has.

    MIDDLEWARE = [..., "semel.django.Idempotency"]
    SEMEL = {"caller": "shop.auth.caller"}          # a function of the request, or its name

A guarded view runs inside transaction.atomic() with its key. Its answer is stored in that transaction, and is sent
after COMMIT. 2xx, 3xx, 402 and 410 commit; every other answer and every exception rolls back; the key is free. After
a lost COMMIT the key is read again, never guessed.
"""
from __future__ import annotations

import logging
import random
import time
import types
from typing import Any, Callable
from urllib.parse import quote

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.http import HttpResponse
from django.utils.module_loading import import_string

from . import rules
from .fingerprint import fingerprint
from .rules import Refusal

log = logging.getLogger("semel")
DEFAULTS = {"caller": None, "rule": rules.default_rule, "anonymous": False, "listed": (), "ignore": (),
            "answer": "24 hours", "keep": "30 days", "wait": 5, "timeout": 60, "max_body": 1 << 20,
            "max_stored": 1 << 20, "max_answer": 1 << 26, "using": "default"}


class Lost(Exception):
    """The connection was lost after the key was begun: the COMMIT may have happened."""


class Idempotency:
    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        given = getattr(settings, "SEMEL", {})
        unknown = sorted(set(given) - set(DEFAULTS))
        if unknown or not given.get("caller"):
            raise ValueError(f"settings.SEMEL: unknown: {unknown}" if unknown else "settings.SEMEL: caller is missing")
        self.get_response, self.set = get_response, types.SimpleNamespace(**{**DEFAULTS, **given})
        for name in ("caller", "rule"):
            if isinstance(getattr(self.set, name), str):
                setattr(self.set, name, import_string(getattr(self.set, name)))

    def __call__(self, request: Any) -> Any:
        key = request.META.get("HTTP_IDEMPOTENCY_KEY")
        how = self.set.rule(request.method, request.path)
        if how == "off" or (how == "optional" and key is None):
            return self.get_response(request)
        try:  # a server joins two headers by a comma
            return self.guard(request, [] if key is None else key.encode("latin-1", "replace").split(b","))
        except Refusal as refusal:
            return answer(refusal.status, refusal.headers, refusal.body)

    def guard(self, request: Any, keys: list[bytes]) -> Any:
        key = rules.key_of(keys)
        rules.limited(int(request.META.get("CONTENT_LENGTH") or 0), self.set.max_body)
        rules.limited(len(request.body), self.set.max_body)
        if len(request.body) < int(request.META.get("CONTENT_LENGTH") or 0):  # Django reads what there is (P93)
            raise Refusal(400, "incomplete", "the body is shorter than its Content-Length")
        scope = rules.scope_of(self.set.caller(request), self.set.anonymous)
        print_ = fingerprint(request.method.encode(), path_of(request), request.META.get("QUERY_STRING", "").encode(),
                             [(name.encode("latin-1"), value.encode("latin-1", "replace"))
                              for name, value in request.headers.items()],
                             request.body, self.set.listed, self.set.ignore)
        arguments = (f"{int(self.set.timeout * 1000)}ms", scope, key, print_, self.set.answer, self.set.keep)
        try:
            row, response = self.ask(arguments, self.set.wait, lambda token: self.run(request, token))
        except Lost as lost:
            log.error("COMMIT has no answer: %s; the key is read again", lost.__cause__)
            row, response = self.read_again(arguments), None
        if response is None and row[0] != "replay":
            raise rules.refusal_of(row[0])
        return response or answer(row[1], rules.replayed(row[2], row[3]), bytes(row[3] or b""))

    def ask(self, arguments: tuple[Any, ...], wait: float, run: Callable[[int], Any]) -> Any:
        """Begins the key until the answer is not busy, at most for the wait. Holds no connection while it waits."""
        deadline, pause = time.monotonic() + wait, 0.02
        while True:
            row: Any = None
            try:
                with transaction.atomic(using=self.set.using, durable=True):
                    row = self.call(rules.BEGIN, arguments)
                    if row[0] == "run":
                        return row, run(row[4])
            except (OperationalError, InterfaceError) as error:
                if row is not None and row[0] == "run":
                    connections[self.set.using].close()
                    raise Lost from error
                log.warning("store unavailable: %s", error)
            except DatabaseError as error:
                if row is not None:
                    raise  # the application's
                log.error("store unavailable: %s", error)
                raise rules.not_stored(True) from error
            if row is not None and row[0] != "busy":
                return row, None
            connections[self.set.using].close()
            if time.monotonic() >= deadline:
                raise rules.refusal_of("busy") if row is not None else rules.not_stored(True)
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, 0.5)

    def call(self, statement: str, arguments: tuple[Any, ...]) -> Any:
        with connections[self.set.using].cursor() as cursor:
            cursor.execute(statement, arguments)
            return cursor.fetchone()

    def run(self, request: Any, token: int) -> Any:
        """In the transaction: the view, whose exceptions Django has made answers, and the end of its key."""
        response = self.get_response(request)
        if response.streaming:
            body = bytearray()
            for chunk in response.streaming_content:
                body += chunk
                if len(body) > self.set.max_answer:
                    raise rules.too_long(self.set.max_answer)
            response.streaming_content = [bytes(body)]
        else:
            body = response.content
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
        if rules.completes(response.status_code, headers):
            kept = bytes(body) if len(body) <= self.set.max_stored else None
            self.call(rules.FINISH, (token, response.status_code, rules.stored(headers), kept))
        else:
            transaction.set_rollback(True, using=self.set.using)
        del response["Semel-Outcome"]
        return response

    def read_again(self, arguments: tuple[Any, ...]) -> Any:
        def undo(_: int) -> None:
            transaction.set_rollback(True, using=self.set.using)
        try:
            row, _ = self.ask(arguments, max(self.set.wait, 5), undo)
        except (Lost, Refusal) as error:
            raise rules.not_stored(False) from error
        if row[0] == "run":
            raise rules.not_stored(True)
        return row


def path_of(request: Any) -> bytes:
    """As it was sent, where the server keeps that."""
    sent = request.META.get("RAW_URI") or request.META.get("REQUEST_URI")
    raw = getattr(request, "scope", {}).get("raw_path")
    return raw or (sent.split("?")[0] if sent else quote(request.path)).encode()


def answer(status: int, headers: Any, body: bytes) -> HttpResponse:
    response = HttpResponse(body, status=status)
    del response["Content-Type"]
    for name, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers):
        # Django keeps a map: a header that is repeated is one list, which means the same (RFC 9110, 5.3).
        response[name] = f"{response[name]}, {value}" if name in response else value
    return response
