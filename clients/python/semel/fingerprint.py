# SPDX-License-Identifier: MIT
"""What makes an HTTP request the same as another one: docs/idempotency.md has the format.

spec/fingerprints.json has the vectors.
The C library and the Node package compute the same bytes. Everything is bytes, because headers and bodies are.
"""
from __future__ import annotations

import decimal
import hashlib
import json
import re
import urllib.parse
from typing import Any, Iterable, Sequence

Headers = Sequence[tuple[bytes, bytes]]
DEPTH = 64
INDEX = re.compile("0|[1-9][0-9]*")
POINTER = re.compile("(?:/(?:[^~/]|~[01])*)*")


class _Raw(ValueError):
    """The body is not what its media type promises: its bytes count as they are."""


def _count(n: int) -> bytes:
    return n.to_bytes(8, "big")


def _field(value: bytes) -> bytes:
    return _count(len(value)) + value


def _pairs(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    return _count(len(pairs)) + b"".join(_field(name) + _field(value) for name, value in pairs)


# ---- JSON: RFC 8785 ----

def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _Raw("a repeated member")
    return members


def _number(text: str) -> decimal.Decimal:
    shortest, exact = decimal.Decimal(repr(float(text))), decimal.Decimal(text)
    if not shortest.is_finite() or shortest != exact:
        raise _Raw("a number that is not exact as a double")
    return shortest


def _constant(word: str) -> Any:
    raise _Raw(word)


def _write_number(value: decimal.Decimal) -> str:
    """As ECMAScript writes it."""
    sign, places, exponent = value.as_tuple()
    written = "".join(map(str, places)).lstrip("0")
    digits, point = written.rstrip("0"), len(written) + int(exponent)
    if not digits:
        return "0"
    if len(digits) <= point <= 21:
        text = digits + "0" * (point - len(digits))
    elif 0 < point <= 21:
        text = digits[:point] + "." + digits[point:]
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        text = digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + f"e{point - 1:+d}"
    return "-" + text if sign else text


def _write(value: Any, depth: int = 0) -> str:
    if isinstance(value, decimal.Decimal):
        return _write_number(value)
    if isinstance(value, (dict, list)) and depth == DEPTH:
        raise _Raw("too deeply nested")
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: str(name).encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(_write(name) + ":" + _write(value[name], depth + 1) for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_write(element, depth + 1) for element in value) + "]"
    if isinstance(value, str) and "\0" in value:
        raise _Raw("a NUL in a string")
    return json.dumps(value, ensure_ascii=False)


def _ignore(value: Any, pointer: str) -> Any:
    """The value without what the pointer names: a member goes, an element becomes null."""
    above: Any = None
    at: Any = None
    root = value
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        above, at = value, token
        if isinstance(value, list) and INDEX.fullmatch(token) and len(token) < 10 and int(token) < len(value):
            at = int(token)
        elif not isinstance(value, dict) or token not in value:
            return root
        value = value[at]
    if isinstance(above, dict):
        del above[at]
    elif isinstance(above, list):
        above[at] = None
    return root if above is not None else None


def _json(body: bytes, ignore: Iterable[str]) -> bytes:
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_float=_number, parse_int=_number,
                           parse_constant=_constant)
        form = _write(value).encode("utf-8")
    except (RecursionError, ArithmeticError) as error:
        raise _Raw("too deep, or a number out of range") from error
    for pointer in ignore:
        value = _ignore(value, pointer)
        form = _write(value).encode("utf-8")
    return _field(b"json") + _field(form)


# ---- forms and parts ----

def _form(body: bytes) -> bytes:
    pairs = []
    for pair in filter(None, body.split(b"&")):
        if re.search(rb"%(?![0-9A-Fa-f]{2})", pair):
            raise _Raw("a percent sign without two digits")
        name, _, value = (urllib.parse.unquote_to_bytes(part) for part in pair.replace(b"+", b" ").partition(b"="))
        pairs.append((name, value))
    pairs.sort(key=lambda pair: pair[0])
    return _field(b"form") + _pairs(pairs)


def _boundary(content_type: bytes) -> bytes:
    for parameter in content_type.split(b";")[1:]:
        name, equals, value = parameter.partition(b"=")
        if equals and name.strip(b" \t").lower() == b"boundary":
            value = value.strip(b" \t")
            if len(value) >= 2 and value[:1] == value[-1:] == b'"':
                value = value[1:-1]
            if 0 < len(value) <= 70 and not re.search(rb'["\\]', value):
                return value
            break
    raise _Raw("no boundary")


def _part(part: bytes) -> tuple[bytes, bytes]:
    """What it is sorted by among the others, and the part."""
    headers, key, at = [], b"", 2  # the place is counted: what is left is not copied for each header
    if not part.startswith(b"\r\n"):
        raise _Raw("something behind a boundary")
    while at < len(part) and not part.startswith(b"\r", at):
        end = part.find(b"\r\n", at)
        name, colon, value = part[at:end].partition(b":")
        if end < 0 or not (colon and name):
            raise _Raw("a header without its end")
        headers.append((name.lower(), value.strip(b" \t")))
        key = headers[-1][1] if headers[-1][0] == b"content-disposition" else key
        at = end + 2
    if not part.startswith(b"\r\n", at):
        raise _Raw("a part without a body")
    return key, _pairs(sorted(headers, key=lambda header: header[0])) + _field(part[at + 2:])


def _multipart(media: bytes, content_type: bytes, body: bytes) -> bytes:
    first, *pieces = (b"\r\n" + body).split(b"\r\n--" + _boundary(content_type))
    if first or len(pieces) < 2 or pieces[-1] not in (b"--", b"--\r\n"):
        raise _Raw("not delimited")
    parts = [_part(piece) for piece in pieces[:-1]]
    if media == b"multipart/form-data":
        parts.sort(key=lambda part: part[0])
    return _field(b"multipart") + _count(len(parts)) + b"".join(part for _, part in parts)


def _payload(media: bytes, content_type: bytes, encoding: bytes, body: bytes, ignore: Iterable[str]) -> bytes:
    if encoding.lower() not in (b"", b"identity"):
        raise _Raw("encoded")
    if media == b"application/json" or (media.endswith(b"+json") and len(media) > 5):
        return _json(body, ignore)
    if media == b"application/x-www-form-urlencoded":
        return _form(body)
    if media.startswith(b"multipart/"):
        return _multipart(media, content_type, body)
    raise _Raw("no form of its own")


def pointers(given: Iterable[str]) -> Sequence[str]:
    """What is no pointer would be taken for the whole document, and all requests for one."""
    found = [given] if isinstance(given, str) else list(given)
    for pointer in found:
        if isinstance(given, str) or not POINTER.fullmatch(pointer):
            raise ValueError(f"ignore must be a list of JSON pointers such as /sent_at: {pointer!r}")
    return found


def framed(method: bytes, path: bytes, query: bytes, headers: Headers, body: bytes,
           listed: Iterable[str] = (), ignore: Iterable[str] = ()) -> bytes:
    """The bytes that are digested."""
    ignore = pointers(ignore)
    pairs = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    first = dict(reversed(pairs))
    content_type = first.get(b"content-type", b"")
    media = content_type.split(b";")[0].strip(b" \t").lower()
    names = sorted({name.encode().lower() for name in listed})
    out = b"".join(map(_field, (b"semel-http-1", method, path, query, media))) + _count(len(names))
    for name in names:
        values = [value for other, value in pairs if other == name]
        out += _field(name) + _count(len(values)) + b"".join(map(_field, values))
    try:
        return out + _payload(media, content_type, first.get(b"content-encoding", b""), body, ignore)
    except ValueError:  # _Raw, or text that is not UTF-8
        return out + _field(b"raw") + _field(body)


def fingerprint(method: bytes, path: bytes, query: bytes, headers: Headers, body: bytes,
                listed: Iterable[str] = (), ignore: Iterable[str] = ()) -> bytes:
    """33 bytes for semel.key_begin. listed: names of headers that count; ignore: JSON pointers to what does not."""
    return b"h" + hashlib.sha256(framed(method, path, query, headers, body, listed, ignore)).digest()
