# SPDX-License-Identifier: MIT
"""A delivery, the answer to it, and the classes of failure: what a consumer's own code sees of the inbox."""
import dataclasses
import hashlib
import json
import re
from datetime import date, datetime, timezone
from typing import Any, Callable, Mapping, Optional, Tuple, Union
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
    zone. An id, key, source, version or time that cannot be stored makes the message a quarantined one: it is kept, and
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
        parts = [part.encode() for part in (self.consumer, self.source or "", str(self.id), step)]
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()

    def arguments(self) -> dict[str, Any]:
        """Those of semel.inbox_begin. The body is always given, so that a failure keeps it. What holds U+FFFD was no
        UTF-8: another id may have become the same text."""
        names = [text_of(name, getattr(self, name)) for name in ("id", "order_key", "business_key")]
        source, time = text_of("source", self.source, (str,)) or "", moment("time", self.time)
        headers = {k: clean(v) for key, v in (self.headers or {}).items() if (k := clean(key)) != "semel_tombstone"}
        headers |= {"semel_tombstone": "true"} if self.body is None else {}
        given = {"source": source, "raw": "\\x" + self.raw.hex(), "message_id": names[0], "headers": headers or None,
                 "type": self.type and clean(self.type, 255), "version": text_of("version", self.version, (int,)),
                 "order_key": names[1], "business_key": names[2], "message_time": time or None,  # bytea is hexadecimal,
                 "fingerprint": None if self.fingerprint is None else "\\x" + self.fingerprint.hex()}  # also in JSON
        texts, size = [one for one in (*names, source or None) if one is not None], len(json.dumps(headers))
        if (time or self.time is None) and 0 <= (self.version or 0) < 2 ** 63 - 1 and size <= 1 << 20 and all(
                re.fullmatch("[^\0\ud800-\udfff\ufffd]+", one) and len(one.encode()) < 256 for one in texts):
            return given
        return {"source": clean(source, 255), "raw": given["raw"], "message_id": None, "type": given["type"],
                "headers": {**(headers if size < 1 << 19 else {}), "semel_refused_id": clean(names[0])[:255]}}


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


def text_of(name: str, value: Any, kinds: Tuple[type, ...] = (str, int, UUID)) -> Optional[str]:
    """As text: an id or key, or what must be of these kinds."""
    if value is None or (isinstance(value, kinds) and not isinstance(value, bool)):
        return None if value is None else str(value)
    raise TypeError(f"{name} is of type {type(value).__name__}; it must be {' or '.join(k.__name__ for k in kinds)}")


def moment(name: str, value: Any) -> str:
    """A time, in UTC; empty where it is none, or none that can be stored."""
    found = MOMENT.fullmatch((text_of(name, value, (datetime, date, str)) or "").strip())
    day, clock, second, fraction, hours, minutes, rest = found.groups("") if found else [""] * 7
    try:
        at = f"{day}T{clock or '00:00'}{second or ':00'}{fraction or '.':0<7.7}{hours or '+00'}:{minutes or '00'}{rest}"
        text = datetime.fromisoformat(at).astimezone(timezone.utc).isoformat()
    except (ValueError, OverflowError):
        return ""
    return text if text <= "9999-12-31T00:00:00+00:00" else ""


def clean(value: Any, most: Optional[int] = None) -> str:
    """As text that PostgreSQL can keep, and so many bytes at most."""
    try:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    except Exception:  # pylint: disable=broad-except
        text = type(value).__name__  # all that is to be had, as of an error whose __str__ raises
    return text.replace("\0", "\ufffd").encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
