# SPDX-License-Identifier: MIT
"""A delivery, the answer to it, and the classes of failure: what a consumer's own code sees of the inbox."""
from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from datetime import date, datetime, timezone
from typing import Any, Callable, Mapping, Optional, Union
from uuid import UUID

MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(:\d\d)?(\.\d+)?)?"
                    r" ?(?:[Zz]|([+-]\d\d)(?::?(\d\d)(:\d\d)?)?)?", re.ASCII)  # as in ISO 8601, and in a datetime


# Raise one of these four in a handler. The text is kept with the message: no secrets in it.


class Transient(Exception):
    """It may work later: tried again with backoff, at last a dead letter."""


class Permanent(Exception):
    """It never will: a dead letter."""


class Rejected(Exception):
    """The business refuses it. Final, and no dead letter."""


class Unknown(Exception):
    """The effect, outside this database, may have happened: kept for a reconcile or a person."""


KINDS = {"transient": Transient, "permanent": Permanent, "rejected": Rejected, "unknown": Unknown}


class StoreError(Exception):
    """Nothing is settled: acknowledge nothing, and let the broker deliver it again."""


class Unavailable(StoreError):
    """The server is away, or its answer is. The same call may be repeated."""


class Unusable(StoreError):
    """Somebody must fix the schema, the rights, the settings or the program first."""


@dataclasses.dataclass
class Message:
    """`id` is that of the event. `body` is what came: bytes, text, anything that JSON can write, or None, which is a
    record without a value (a tombstone of Kafka). `time` is a datetime or a text of ISO 8601, in UTC where it names no
    zone. An id, key, source or time that cannot be stored makes the message a quarantined one: it is kept, and
    acknowledged. One of another type is a mistake of the program: a TypeError, and nothing is recorded."""

    id: Union[None, str, int, UUID]
    body: Any
    headers: Optional[Mapping[str, Any]] = None
    source: str = ""
    type: Optional[str] = None
    order_key: Union[None, str, int, UUID] = None
    version: Optional[int] = None
    business_key: Union[None, str, int, UUID] = None
    time: Any = None
    fingerprint: Optional[bytes] = None
    attempt: int = 0
    consumer: str = ""
    token: Optional[int] = None

    @property
    def raw(self) -> bytes:
        if self.body is None or isinstance(self.body, (bytes, bytearray, memoryview)):
            return bytes(self.body or b"")
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode("utf-8", "replace")

    @property
    def json(self) -> Any:
        """The body, parsed. What is no JSON is a permanent failure."""
        return converted(json.loads, self.raw, "the payload")

    def key(self, step: str = "effect") -> str:
        """64 hexadecimal digits for the Idempotency-Key of an outside call: semel.step_key, the same for ever. `semel
        inbox show` has that of the step "effect"; who makes several calls names a step for each."""
        parts = [part.encode() for part in (self.consumer, self.source, str(self.id), step)]
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()

    def arguments(self) -> dict[str, Any]:
        """Those of semel.inbox_begin. The body is always given, so that a failure keeps it."""
        names = [text_of(name, getattr(self, name)) for name in ("id", "order_key", "business_key")]
        source, time = text_of("source", self.source) or "", None if self.time is None else moment(self.time)
        headers = {k: clean(v) for key, v in (self.headers or {}).items() if (k := clean(key)) != "semel_tombstone"}
        headers |= {"semel_tombstone": "true"} if self.body is None else {}
        given = {"source": source, "raw": "\\x" + self.raw.hex(), "message_id": names[0], "headers": headers or None,
                 "type": self.type and cut(clean(self.type)), "order_key": names[1], "version": self.version,
                 "business_key": names[2], "message_time": time,  # bytea is hexadecimal, in a parameter and in JSON
                 "fingerprint": None if self.fingerprint is None else "\\x" + self.fingerprint.hex()}
        texts = [text for text in (*names, source or None) if text is not None]
        if time != "" and all(clean(text) == text and 1 <= len(text.encode()) <= 255 for text in texts) and (
                self.version is None or 0 <= self.version < (1 << 63) - 1) and len(json.dumps(headers)) <= 1 << 20:
            return given
        return {"source": cut(clean(source)), "raw": given["raw"], "message_id": None,
                "headers": {"semel_refused_id": clean(names[0])[:255]}}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What became of a delivery. `act`: run (it ran, or failed and that is recorded), ack, later; `why`: as in
    docs/sql-postgres.md. After a failure `status` and `due_at` are those of its record."""

    act: str
    why: str
    attempt: int = 0
    outcome: Any = None
    status: Optional[str] = None
    due_at: Any = None

    @property
    def acknowledge(self) -> bool:
        """False: the broker must deliver it again, after a pause."""
        return self.act != "later"


def converted(way: Callable[[Any], Any], value: Any, what: str) -> Any:
    """To JSON or from it. What cannot be is a permanent failure."""
    try:
        return way(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Permanent(f"{what} is no JSON: {error}") from None


def text_of(name: str, value: Any) -> Optional[str]:
    """An id or key as text."""
    if value is None or (isinstance(value, (str, int, UUID)) and not isinstance(value, bool)):
        return None if value is None else str(value)
    raise TypeError(f"{name} is of type {type(value).__name__}; it must be str, int or UUID (decode bytes first)")


def moment(value: Any) -> str:
    """A time, in UTC; empty where it is none that can be stored."""
    if not isinstance(value, (str, date)):
        raise TypeError(f"time is of type {type(value).__name__}; it must be datetime or str")
    found = MOMENT.fullmatch(value.strip() if isinstance(value, str) else value.isoformat())
    day, clock, second, fraction, hours, minutes, rest = found.groups("") if found else [""] * 7
    try:
        said = datetime.fromisoformat(f"{day}T{clock or '00:00'}{second or ':00'}{fraction or '.':0<7.7}"
                                      f"{hours or '+00'}:{minutes or '00'}{rest}")
        text = said.astimezone(timezone.utc).isoformat()
    except (ValueError, OverflowError):
        return ""
    return text if text <= "9999-12-31T00:00:00+00:00" else ""


def cut(text: str) -> str:
    return text.encode()[:255].decode("utf-8", "ignore")


def clean(value: Any) -> str:
    """As text that PostgreSQL can keep."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
