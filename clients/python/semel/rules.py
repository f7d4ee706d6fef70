# SPDX-License-Identifier: MIT
"""What every middleware shares: settings, and the rules: which key, which answer is kept, what a refusal looks like."""
from __future__ import annotations

import dataclasses
import json
import random
import re
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Iterator, Optional, Sequence

from .fingerprint import fingerprint, pointers
from .links import log
from .message import Unavailable

Pairs = Sequence[tuple[bytes, bytes]]
Answer = tuple[int, Pairs, bytes]

# The idle time-out ends a transaction whose handler never comes back: its key is free again then.
BEGIN = """SELECT k.act, k.status, k.headers::text, k.body, k.token,
       pg_catalog.set_config('idle_in_transaction_session_timeout'::text, %s::text, true)
FROM semel.key_begin(%s::text, %s::text, %s::bytea, %s::interval, %s::interval) AS k"""
FINISH = "SELECT semel.key_finish(%s::bigint, %s::integer, %s::jsonb, %s::bytea)"

# What belongs to one connection, one moment, one client or one trace is neither stored nor replayed. The list is that
# of spec/replay-headers.txt, to which the gateway is held, too.
DROPPED = """
    connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade
    http2-settings content-length alt-svc via set-cookie set-cookie2 access-control-* date age retry-after ratelimit*
    x-ratelimit* x-rate-limit* traceparent tracestate traceresponse b3 x-b3-* x-datadog-* x-request-id x-correlation-id
    x-trace-id x-amzn-trace-id x-cloud-trace-context server-timing idempotent-replayed semel-*""".split()
IS_DROPPED = re.compile("|".join(DROPPED).replace("*", ".*").encode(), re.IGNORECASE)
OUTCOME = b"semel-outcome"
STORABLE = re.compile("[^\0\ud800-\udfff]*")
# A key within its quotes. With them and its escapes it has at most 257 characters, as at the gateway.
QUOTED = re.compile(rb'"((?:[^"\\]|\\["\\])*)"')

# A key that is a time and nothing else, as semel._idempotency_check sees it: since 1970, or as ISO 8601 writes it.
TIME = re.compile(r"[12]\d{9}(\d{3}){0,3}|[12]\d{3}-?[01]\d-?[0-3]\d"
                  r"([T ]?[0-2]\d:?[0-5]\d(:?[0-6]\d([.,]\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?", re.ASCII)


class Refusal(Exception):
    """An answer of the middleware itself: a problem document (RFC 9457) with a stable type."""

    def __init__(self, status: int, name: str, detail: str, retry_after: Optional[int] = None) -> None:
        super().__init__(detail)
        body = json.dumps({"type": f"urn:semel:idempotency:{name}", "title": TITLES[name], "status": status,
                           "detail": detail}).encode()
        headers = [(b"content-type", b"application/problem+json")]
        if retry_after is not None:
            headers.append((b"retry-after", str(retry_after).encode()))
        self.answer: Answer = (status, headers, body)


TITLES = {
    "missing": "The Idempotency-Key header is missing",
    "malformed": "The Idempotency-Key header is malformed",
    "incomplete": "The request is not complete",
    "anonymous": "The caller is not known",
    "caller": "The name of the caller cannot be stored",
    "too-large": "The request is too large",
    "mismatch": "The key was used for another request",
    "running": "A request with this key is running",
    "unknown": "The outcome of the first request is unknown",
    "not-stored": "The answer could not be stored",
}


def default_rule(method: str, path: str) -> str:
    """required, optional, or off."""
    return "optional" if method in ("POST", "PATCH") else "off"


@dataclasses.dataclass
class Settings:
    """docs/idempotency.md has the table. Times are seconds, sizes are bytes."""

    caller: Callable[[Any], Any]
    rule: Callable[[str, str], str] = default_rule
    anonymous: bool = False
    listed: Sequence[str] = ()
    ignore: Sequence[str] = ()
    answer: str = "24 hours"
    keep: str = "30 days"
    wait: float = 5
    timeout: float = 60
    max_body: int = 1 << 20
    max_stored: int = 1 << 20
    max_answer: int = 1 << 26
    warned: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        if not callable(self.caller):
            raise TypeError("caller must be a function of the request")
        if isinstance(self.listed, str):
            raise ValueError("listed must be a list of names of headers")
        pointers(self.ignore)

    def guards(self, method: str, path: str, has_key: bool) -> bool:
        how = self.rule(method, path)
        return how != "off" and (has_key or how != "optional")

    def key_of(self, values: Sequence[bytes]) -> str:
        """Of all keys that are times the first one is warned of."""
        key = key_of(values)
        if not self.warned and TIME.fullmatch(key):
            self.warned = True
            log.warning('Idempotency-Key "%s" is a time and nothing else: two requests of one moment would share it; '
                        "clients must send a UUID", key)
        return key

    def limit(self, size: int) -> None:
        if size > self.max_body:
            raise Refusal(413, "too-large", f"a request with a key has at most {self.max_body} bytes")

    def print(self, method: bytes, path: bytes, query: bytes, headers: Pairs, body: bytes) -> bytes:
        return fingerprint(method, path, query, headers, body, self.listed, self.ignore)

    def beginning(self, scope: str, key: str, print_: bytes) -> tuple[Any, ...]:
        """The arguments of BEGIN."""
        return f"{int(self.timeout * 1000)}ms", scope, key, print_, self.answer, self.keep

    def ending(self, token: int, status: int, headers: Pairs, body: bytes) -> tuple[Any, ...]:
        """The arguments of FINISH. A body that is too large to be kept was sent once."""
        return token, status, stored(headers), body if len(body) <= self.max_stored else None


def key_of(values: Sequence[bytes]) -> str:
    """The key, bare or quoted (a string of RFC 8941). What begins with a quote and is no such string is malformed."""
    if not values:
        raise Refusal(400, "missing", "send an Idempotency-Key, for example a UUID, and repeat it with each retry")
    key = values[0].strip(b" \t")
    if key.startswith(b'"'):
        quoted = QUOTED.fullmatch(key)
        key = re.sub(rb"\\(.)", rb"\1", quoted[1]) if quoted and len(key) <= 257 else b""
    if len(values) > 1 or not re.fullmatch(rb"[ -~]{8,255}", key):
        raise Refusal(400, "malformed", "send one Idempotency-Key of 8 to 255 characters of printable ASCII")
    return key.decode()


def scope_of(caller: Optional[str], anonymous: bool) -> str:
    """An empty name, as of a header without a value, is nobody's."""
    if caller not in (None, ""):
        scope = f"caller:{caller}"
        if not STORABLE.fullmatch(scope) or len(scope.encode()) > 255:
            raise Refusal(403, "caller", "a caller has a name of at most 248 bytes of UTF-8, without NUL")
        return scope
    if not anonymous:
        raise Refusal(401, "anonymous", "a key belongs to a caller, and this request has none")
    return "anonymous"


def completes(status: int, headers: Pairs) -> bool:
    """Is the answer final, so that the work commits with it? Its own header Semel-Outcome counts before its status."""
    for name, value in headers:
        word = value.strip(b" \t").lower()
        if name.lower() == OUTCOME and word in (b"completed", b"released", b"unknown"):
            return word == b"completed"
    return 200 <= status < 400 or status in (402, 410)


def shown(headers: Pairs) -> list[tuple[bytes, bytes]]:
    """What a client sees of the handler's headers."""
    return [pair for pair in headers if pair[0].lower() != OUTCOME]


def stored(headers: Pairs) -> str:
    """As an array of pairs: a map would lose headers that are repeated."""
    return json.dumps([[name.decode("latin-1").lower(), value.decode("latin-1")] for name, value in headers
                       if not IS_DROPPED.fullmatch(name)])


def replayed(headers: str, body: Optional[bytes]) -> list[tuple[bytes, bytes]]:
    """A body that is not kept any more has no encoding either. The gateway stores names as they were sent."""
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(headers)]
    return [pair for pair in pairs if body is not None or pair[0] != b"content-encoding"] + [
        (b"idempotent-replayed", b"true")]


def replay(row: Any) -> Answer:
    """The answer that is stored in a row of BEGIN."""
    if row[0] != "replay":
        raise refusal_of(row[0])
    return row[1], replayed(row[2], row[3]), bytes(row[3] or b"")


def pauses() -> Iterator[float]:
    """Seconds, before a key is asked for again."""
    pause = 0.02
    while True:
        yield pause * random.uniform(0.5, 1)
        pause = min(pause * 2, 0.5)


def refusal_of(act: str) -> Refusal:
    if act == "mismatch":
        return Refusal(422, "mismatch", "use a new key for a new request, and the same one only for retries")
    if act == "busy":
        return Refusal(409, "running", "repeat the request later, with the same key", retry_after=1)
    if act == "run":  # of a key that is read again: the COMMIT that was lost did not happen
        return not_stored(True)
    return Refusal(409, "unknown", "it must be reconciled before this request can be repeated")


def not_stored(certain: bool) -> Refusal:
    return Refusal(503, "not-stored", "nothing was done; repeat the request with the same key" if certain else
                   "it is not known yet whether the work was done; repeat the request with the same key", retry_after=1)


@contextmanager
def durable(commit: ContextManager[None]) -> Iterator[None]:
    """Around a COMMIT that did not wait for its standby. What a repetition reads then may still be lost."""
    try:
        with commit:
            yield
    except Unavailable as error:
        log.error("%s", error)
        raise not_stored(False) from error


def too_long(most: int) -> Refusal:
    return Refusal(503, "not-stored", f"the answer has more than {most} bytes; nothing was done")
