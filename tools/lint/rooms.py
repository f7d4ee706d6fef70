#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks who includes whom: a room knows the rooms above it and none below."""
import fnmatch
import re

import common

# From the top down. A room may include itself and what stands above it, unless NARROW says less.
ROOMS = ("base", "core", "store", "net", "broker", "lib", "ext", "handler", "conf", "ops", "gateway", "admin", "daemon",
         "cli", "demo", "bench")

# What of core a driver may see: the interfaces, not the rules.
CORE_INTERFACES = ("core/store.h", "core/broker.h", "core/row.h", "core/msg.h", "core/state.h", "core/policy.h",
                   "core/version.h", "core/destination.h", "core/relay.h", "core/keys.h")

# Rooms that know less than everything above them, as patterns of headers.
NARROW = {
    "store": ("base/*",) + CORE_INTERFACES,
    "broker": ("base/*", "net/curl.h") + CORE_INTERFACES,
    "lib": ("base/*", "core/*", "store/*"),
    "ext": ("base/*", "lib/*"),
    "net": ("base/*",),
    "gateway": ("base/*", "core/*", "net/*"),
    "ops": ("base/*", "core/*", "store/query.h"),
}

# Headers of client libraries, and the only files that may include them.
CLIENTS = {
    "openssl/*": ("src/base/*", "src/net/*", "src/broker/amqp_link.c", "src/broker/tls_why.c"),
    "uv.h": "src/net/*",
    "llhttp.h": "src/net/*",
    "libfyaml.h": "src/conf/read.c",
    "libpq-fe.h": ("src/store/pg*", "src/handler/sql_pg.c", "src/bench/*", "bench/*"),
    "sqlite3.h": ("src/store/sqlite*", "src/handler/sql_sqlite.c", "src/demo/*", "src/bench/*"),
    "librdkafka/*": ("src/broker/kafka*", "bench/*"),
    "amqp.h": "src/broker/amqp*",
    "amqp_*.h": "src/broker/amqp*",
    "rabbitmq-c/*": "src/broker/amqp*",
    "curl/*": "src/net/curl.h",
    "sqlite3ext.h": ("src/store/sqlite*", "src/ext/*"),
}

# What a public header may include besides semel/*.h.
PUBLIC = ("stdbool.h", "stddef.h", "stdint.h")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def allowed(room):
    if room in NARROW:
        return NARROW[room] + (room + "/*", "semel/*")
    return tuple(above + "/*" for above in ROOMS[:ROOMS.index(room) + 1]) + ("semel/*",)


def matches(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def fault(where, quoted, name):
    """What is wrong with this include, or None."""
    if name.endswith(".c"):
        return f"includes {name}; link with it instead"
    if where.startswith(("test/", "examples/")):
        return None
    for header, home in CLIENTS.items():
        homes = (home,) if isinstance(home, str) else home
        if fnmatch.fnmatch(name, header) and not matches(where, homes):
            return f"includes {name}; only {' and '.join(homes)} may"
    if where.startswith("include/"):
        if not matches(name, PUBLIC + ("semel/*",)):
            return f"a public header includes {name}; it may include {', '.join(PUBLIC)} and semel/*"
        return None
    if not where.startswith("src/") or not quoted:
        return None
    if "/" not in name:
        return f'includes "{name}"; name the room: "room/{name}"'
    room = where.split("/")[1]
    if room not in ROOMS:
        return f"room {room} is unknown; add it to ROOMS in tools/lint/rooms.py"
    if not matches(name, allowed(room)):
        return f"{room} includes {name}; it may include {', '.join(allowed(room))}"
    return None


def main():
    root = common.parse_root(__doc__)
    report = common.Report(root)
    for path in common.c_files(root):
        plain = common.Source(common.read(path)).plain
        for match in INCLUDE.finditer(plain):
            text = fault(path.relative_to(root).as_posix(), match[1] == '"', match[2])
            if text is not None:
                report.add(path, plain.count("\n", 0, match.start(1)) + 1, text)
    report.exit()


main()
