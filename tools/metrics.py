#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints how large the rooms are, how far their functions are known, and how many places a small change touches.

usage: tools/metrics.py [--list] [--check] [--tighten] [--root FOLDER]
  --list     also the functions and places that were counted
  --check    only what is above its limit; the exit code is 1 then
  --tighten  lowers the limits of this file to what was counted, but never below their goals

Lines are those of .c and .h files; those of the product are also shown by what they are for (CAPABILITIES).
A function is exported when it is defined in a .c file of src/ and not static.
Siblings are the files of a room whose names begin with the same word (pg_run.c, pg_tx.c). Public functions
(include/semel) count as used elsewhere. A function is exported for nobody when only its own file names it: make it
static or remove it. Places are those which name an existing example of the same kind: of a store operation the lines
that declare, forward or implement it, not its callers; of a source the files besides its own; of a setting the lines
that declare or list it, not those that read it.
"""
import argparse
import collections
import fnmatch
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lint"))
import common  # noqa: E402

# What is counted: (the limit, which rises only with a new capability, and the goal, set before the relay was there).
LIMITS = {
    "lines of the product": (94347, 55500),
    "lines with demo and bench": (101158, 62000),
    "lines of the PostgreSQL driver": (3591, 3400),
    "lines of the SQLite driver": (1559, 1400),
    "lines of port and records": (7187, 2500),
    "functions used by siblings only": (150, 150),
    "functions used by their own room only": (550, 550),
    "functions exported for nobody": (0, 0),
    "places of a store operation": (8, 8),
    "places of a source": (5, 5),
    "places of a setting": (7, 7),
}

# What the product's files are for: the first pattern that matches counts. A file is for what most of it is for, so the
# inbox has more than its own: the settings, the daemon and the drivers of brokers serve the relay, too.
CAPABILITIES = {
    "idempotency keys and gateway": (
        "gateway/*", "core/keys.?", "lib/keys.c", "store/records_idempotency.c", "ops/keys.c", "cli/keys.c",
        "cli/gateway.c", "conf/gateway.c", "daemon/gateway.c", "admin/reconcile.?", "net/upstream.?", "net/side.?",
        "net/loop.h"),
    "relay, sinks and events": (
        "core/relay*", "core/starts.?", "core/destination.?", "store/records_relay.c", "store/records_events.c",
        "store/records_mapped.c", "store/mapped.h", "broker/kafka_sink.c", "ops/outbox.c", "cli/outbox.c",
        "daemon/outbox.c"),
    "webhooks and signatures": ("broker/webhook.?", "base/signature.?"),
    "inbox": (
        "semel/*", "base/*", "core/*", "store/*", "broker/*", "lib/*", "ext/*", "net/*", "handler/*", "conf/*", "ops/*",
        "admin/*", "daemon/*", "cli/*"),
}

ENTRIES = ("main", "sqlite3_semel_init")  # called from outside
APART = ("demo", "bench")  # rooms that are no product: their lines are summed by themselves
WORD = re.compile(r"\b[A-Za-z_]\w*\b")
PASTE = re.compile(r"\b([a-z]\w*)##")
HEAD = re.compile(r"^(?!static\b|typedef\b|struct \w+ \{|extern\b|#|\s|\}|/)[\w\s\*]*?\b(\w+)\(", re.MULTILINE)

# kind: (an example, what names it, files that do not count)
EXAMPLES = {
    "a store operation": ("positions_move", r"(?<!semel_store_)\bpositions?_move\b|\bsemel__\w*positions_move\b"
                          r"|^semel_status semel_store_positions_move", ()),
    "a source": ("sqs", r"(?i)\bsqs\b|\bsemel__sqs\w*|WITH_SQS", ("src/broker/sqs*",)),
    "a setting": ("permanent_max", r"(?<!->)(?<!\w\.)\bpermanent_max\b", ()),
}


def family(path):
    return path.parent.name, re.split(r"[_.]", path.name)[0]


def defined(code):
    """The functions that this text defines for others: a head in column 0, an opening brace in column 0 behind it."""
    for match in HEAD.finditer(code):
        brace, semicolon = code.find("\n{", match.end()), code.find(";", match.end())
        if brace >= 0 and (semicolon < 0 or brace < semicolon):
            yield match[1]


class Count:
    def __init__(self, root):
        self.root, self.lines, self.files = root, collections.Counter(), collections.Counter()
        self.groups, self.capabilities, self.strangers = collections.Counter(), collections.Counter(), []
        self.words, self.homes, self.headers, self.pastes = {}, {}, collections.Counter(), set()
        self.read_sources()
        self.read_users()
        self.read_places()

    def read_sources(self):
        public = []
        for path in common.c_files(self.root, ("src", "include")):
            text = common.read(path)
            room = path.parent.name if path.parent.parent.name == "src" else "include"
            self.lines[room] += text.count("\n")
            self.files[room] += 1
            if room not in APART:
                self.count_capability(path, text.count("\n"))
            if room == "store":
                self.groups[path.name[:2] if path.name.startswith("pg") else
                            "sqlite" if path.name.startswith("sqlite") else "shared"] += text.count("\n")
            code = common.Source(text).code
            if room == "include":
                public.append(code)
            if path.suffix == ".h":
                self.headers.update(WORD.findall(code))
                self.pastes |= set(PASTE.findall(code))
            else:
                self.words[path] = set(WORD.findall(code))
                for name in defined(code):
                    self.homes[name] = path
        self.public = set(WORD.findall("\n".join(public)))

    def count_capability(self, path, lines):
        name = f"{path.parent.name}/{path.name}"
        for capability, patterns in CAPABILITIES.items():
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                self.capabilities[capability] += lines
                return
        self.strangers.append(path)

    def read_users(self):
        tested = set()
        for path in common.c_files(self.root, ("test", "bench", "examples")):
            tested |= set(WORD.findall(common.Source(common.read(path)).code))
        for name, times in self.headers.items():
            if times > 1:  # a declaration, and a table made by a macro
                tested.add(name)
        for name in self.homes:  # a macro pastes it: semel__record_##op
            tested |= {name for prefix in self.pastes if name.startswith(prefix) and name[len(prefix):] in self.headers}
        users = collections.defaultdict(set)
        for path, there in self.words.items():
            for name in there & self.homes.keys():
                users[name].add(path)
        self.sibling, self.room, self.nobody = [], [], []
        for name, home in self.homes.items():
            others = users[name] - {home}
            if name in self.public or name in ENTRIES:
                continue
            if not others:
                self.nobody += [name] if name not in tested else []
            elif all(family(path) == family(home) for path in others):
                self.sibling.append(name)
            elif all(path.parent == home.parent for path in others):
                self.room.append(name)

    def read_places(self):
        self.places = {kind: [] for kind in EXAMPLES}
        for path in [*common.walk(self.root / "src"), *common.walk(self.root / "sql"),
                     self.root / "meson_options.txt"]:
            if not path.is_file():
                continue
            name, text = path.relative_to(self.root).as_posix(), common.read(path)
            text = common.Source(text).plain if path.suffix in (".c", ".h") else text
            for kind, (_, pattern, apart) in EXAMPLES.items():
                if any(fnmatch.fnmatch(name, one) for one in apart):
                    continue
                places = [f"{name}:{number}" for number, line in enumerate(text.split("\n"), 1)
                          if re.search(pattern, line)]
                self.places[kind] += places[:1] if kind == "a source" else places

    def values(self):
        product = sum(n for name, n in self.lines.items() if name not in APART)
        found = (product, sum(self.lines.values()), self.groups["pg"], self.groups["sqlite"], self.groups["shared"],
                 len(self.sibling), len(self.sibling) + len(self.room), len(self.nobody),
                 *(len(self.places[kind]) for kind in EXAMPLES))
        return dict(zip(LIMITS, found))


def show(count, listed):
    for name in sorted(count.lines):
        print(f"{name:<10}{count.lines[name]:>8} lines{count.files[name]:>6} files")
    print(f"{'store':<10}" + ", ".join(f"{name} {n}" for name, n in sorted(count.groups.items())))
    for name in CAPABILITIES:
        print(f"for       {count.capabilities[name]:>6} lines: {name}")
    by_family = collections.Counter("/".join(family(count.homes[name])) for name in count.sibling)
    print("siblings  " + ", ".join(f"{name} {n}" for name, n in by_family.most_common(12)))
    print(f"exported  {len(count.homes)} functions\n")
    print(f"{'':<42}{'now':>8}{'limit':>8}{'goal':>8}")
    for name, value in count.values().items():
        print(f"{name:<42}{value:>8}{LIMITS[name][0]:>8}{LIMITS[name][1]:>8}")
    if not listed:
        return
    for title, names in (("siblings", count.sibling), ("room", count.room), ("nobody", count.nobody)):
        for name in sorted(names):
            print(f"{title:<10}{count.homes[name].relative_to(count.root)}: {name}")
    for kind, places in count.places.items():
        for place in places:
            print(f"{kind}: {place}")


def check(count):
    """What is above its limit; and examples that are gone, of which nothing can be learned."""
    for name, value in count.values().items():
        limit, goal = LIMITS[name]
        if value > limit:
            yield f"tools/metrics.py:1: {name}: {value}, at most {limit} (goal: {goal}); see tools/metrics.py --list"
    for path in count.strangers:
        yield f"{path.relative_to(count.root)}:1: what is it for? no pattern of CAPABILITIES in metrics.py has it"
    for kind, (example, _, _) in EXAMPLES.items():
        if not count.places[kind]:
            yield f"tools/metrics.py:1: nothing names {example}, the example of {kind}: choose another one"


def tighten(count):
    file = pathlib.Path(__file__)
    text = file.read_text(encoding="utf-8")
    for name, value in count.values().items():
        limit, goal = LIMITS[name]
        text = text.replace(f'"{name}": ({limit}, {goal}),', f'"{name}": ({min(limit, max(value, goal))}, {goal}),')
    file.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="see the head of this file")
    for name in ("list", "check", "tighten"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    options = parser.parse_args()
    count = Count(options.root)
    if options.tighten:
        tighten(count)
    if not options.check:
        show(count, options.list)
        return 0
    findings = list(check(count))
    print(*findings, sep="\n", end="\n" if findings else "")
    return 1 if findings else 0


sys.exit(main())
