#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles the named statements (sql/statements) into C: ids, texts, the order of parameters, result columns.

usage: compile_sql.py OUT.h DIALECT=OUT.c... NAMES FILE.sql...   (a file's dialect is the name of its folder)

A file has blocks. Lines that begin with "--" and are no header are comments.

    -- name: position_move        a statement; every dialect has the same names, but for `only`
    -- gives: n                   its result columns, in order; {row} is a fragment
    -- rows: pairs message_id     how the items come (below)
    -- table: semel.inbox         what it reads, for errors, where that is not the first table that the text names
    -- none: the reason           instead of a text: this database needs no such step
    -- only: the reason           beside a text: no other database has a statement of that name
    -- operator: position_set     what a role that only reads the tables runs instead of the statement of that name
    -- fragment: aged(before)     text that others use as {aged(:before)}; in it {before} is the argument

A word that begins with @ stands for names of a mapped table, and is put in at run time (store/records_mapped.c); the
statement is a template then, and is marked `maps`.

A parameter is :name, and sql/statements/names gives each name its kind. PostgreSQL reads the items from `:rows AS b`:
b.name is the item's value, b.n its number from 1; or without a join, as `:rows.name`, which is the array of all values.
`:row.name` right behind that is the one value of a column that is the same in all items; the array is NULL then.
`rows: arrays` (the default) unnests an array per column. `pairs`
adds a single value per column, for a column that is the same in all items; the columns that are named behind the word
are always arrays. `shaped`: the driver writes the text, by which columns are NULL, the same, or different. SQLite runs
the statement once per item, so that :name is its value; with `rows: none` only once, and it reads no item. With `rows:
many inbox_drawn` an insert of one row of parameters is also compiled for MANY items at once; where not all of them were
applied, the statement of that name gives a row for each that was.
"""
import pathlib
import re
import sys

KINDS = {"text": "text", "key": "text", "status": "text", "class": "text", "bytes": "bytea", "fingerprint": "bytea",
         "id": "bytea", "int": "bigint", "time": "timestamptz", "bool": "boolean"}
MANY = 8
SYMBOLS = {"postgres": "semel__pg_statements", "sqlite": "semel__sqlite_statements"}
BLOCK = re.compile(r"^-- (name|operator|fragment): (\w+)(?:\((\w+)\))?$", re.MULTILINE)
HEADER = re.compile(r"^-- (gives|rows|table|none|only): (.+)$", re.MULTILINE)
FRAGMENT = re.compile(r"\{(\w+)(?:\(([^{}]*)\))?\}")
# What could be taken for a parameter and is none: strings, quoted names, casts.
TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|::|:([a-z_]+)")
VALUES = re.compile(r"^(INSERT INTO .* VALUES )(\((?:\?\d+(?:, )?)+\))")
TABLE = re.compile(r"\b(?:FROM|INTO|UPDATE)\s+(?:main\.)?(semel[._]\w+)")
ROWS = re.compile(r":rows AS (\w+)")
COLUMN = re.compile(r":row(s?)\.([a-z_]+)")


class Fault(Exception):
    pass


def read_names(path):
    names = {}
    for line in path.read_text(encoding="ascii").splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in KINDS:
            raise Fault(f"{path}: \"{line}\" must be a name and one of: {' '.join(KINDS)}")
        if words[0] in names:
            raise Fault(f"{path}: {words[0]} is there twice")
        names[words[0]] = words[1]
    return names


class Dialect:
    """The statements of one database, as they are written."""

    def __init__(self, name, paths):
        self.name, self.fragments, self.used = name, {}, set()
        self.statements, self.operators = {}, {}
        for path in paths:
            self.read(path)
        for statement in self.operators:
            if statement not in self.statements:
                raise Fault(f"{name}: operator: {statement} is no statement")

    def read(self, path):
        text = path.read_text(encoding="ascii")
        starts = list(BLOCK.finditer(text))
        for match, end in zip(starts, [m.start() for m in starts[1:]] + [len(text)]):
            kind, name, argument = match.groups()
            body = text[match.end():end]
            headers = dict(HEADER.findall(body))
            lines = (line.strip() for line in body.splitlines() if not line.startswith("--"))
            sql = " ".join(line for line in lines if line)
            where = {"name": self.statements, "operator": self.operators, "fragment": self.fragments}[kind]
            if name in where:
                raise Fault(f"{path}: {name} is there twice")
            if kind == "name" and (sql == "") != ("none" in headers):
                raise Fault(f"{path}: {name} must have either a text or \"-- none: why\"")
            where[name] = (argument, sql) if kind == "fragment" else (headers, sql)

    def expand(self, name, text):
        def one(match):
            if match[1] not in self.fragments:
                raise Fault(f"{self.name}: {name}: there is no fragment {match[1]}")
            self.used.add(match[1])
            argument, body = self.fragments[match[1]]
            if (argument is None) != (match[2] is None):
                raise Fault(f"{self.name}: {name}: {match[0]}: with an argument or without?")
            return body if argument is None else body.replace("{" + argument + "}", match[2])
        while FRAGMENT.search(text):
            text = FRAGMENT.sub(one, text)
        return text


class Statement:
    """One statement as C: the text with numbered parameters, and the tables that go with it."""

    def __init__(self, dialect, name, headers, text, names):
        self.where = f"{dialect.name}: {name}"
        self.name, self.names, self.headers = name, names, headers
        self.params, self.shaped, self.alias, self.always = [], [], None, []
        text = dialect.expand(name, text)
        self.table = headers.get("table") or (TABLE.search(text) or [None, "?"])[1]
        gives = dialect.expand(name, headers.get("gives", ""))
        self.gives = [column.strip() for column in gives.split(",") if column.strip()]
        for column in self.gives:
            self.kind(column)
        if {"applied", "changes"} & set(self.gives) and len(self.gives) > 1:
            raise Fault(f"{self.where}: applied or changes must be alone")
        self.text = self.postgres(text) if dialect.name == "postgres" else self.numbered(text, "?{}")

    def many(self):
        match = VALUES.match(self.text)
        if match is None:
            raise Fault(f"{self.where}: rows: many needs INSERT INTO ... VALUES with a row of parameters")
        rows = [re.sub(r"\d+", lambda n, k=k: str(int(n[0]) + k * len(self.params)), match[2]) for k in range(MANY)]
        return match[1] + ", ".join(rows) + self.text[match.end():]

    def kind(self, name):
        if name not in self.names:
            raise Fault(f"{self.where}: {name} is not in sql/statements/names")
        return self.names[name]

    def param(self, source, name):
        if (source, name) not in self.params:
            self.params.append((source, name))
        return self.params.index((source, name)) + 1

    def numbered(self, text, form):
        def one(match):
            if match[1] in (None, "row", "rows"):
                return match[0]
            kind = self.kind(match[1])
            return form.format(self.param("ONCE", match[1]), KINDS[kind])
        return TOKEN.sub(one, text)

    def postgres(self, text):
        text = self.numbered(text, "${}::{}")
        text = COLUMN.sub(lambda match: self.array(match[2]) if match[1] else self.single(match[2]), text)
        rows = ROWS.search(text)
        if rows is None:
            return text
        alias = rows[1]
        mode, *self.always = self.headers.get("rows", "arrays").split()
        columns = []
        for column in re.findall(rf"\b{alias}\.([a-z_]+)\b", text):
            if column != "n" and column not in columns:
                self.kind(column)
                columns.append(column)
        if set(self.always) - set(columns) or (mode == "pairs" and not self.always):
            raise Fault(f"{self.where}: rows: {mode} must name columns that are always arrays")
        if mode == "shaped":
            self.alias = alias
            self.shaped = self.always + [column for column in columns if column not in self.always]
            return text
        source = {"arrays": self.arrays, "pairs": self.pairs}.get(mode)
        if source is None:
            raise Fault(f"{self.where}: rows: {mode} must be arrays, pairs or shaped")
        return text[:rows.start()] + source(alias, columns) + text[rows.end():]

    def array(self, column):
        return f"${self.param('ARRAY', column)}::{KINDS[self.kind(column)]}[]"

    def single(self, column):
        return f"${self.param('SINGLE', column)}::{KINDS[self.kind(column)]}"

    def unnest(self, arrays, alias, columns):
        # With several arguments it is no function, and has no schema.
        schema = "pg_catalog." if len(arrays) == 1 else ""
        return f"{schema}unnest({', '.join(arrays)}) WITH ORDINALITY AS {alias} ({', '.join(columns)}, n)"

    def arrays(self, alias, columns):
        return self.unnest([self.array(column) for column in columns], alias, columns)

    def pairs(self, alias, columns):
        arrays, values = [], []
        for column in columns:
            arrays.append(self.array(column))
            if column in self.always:
                values.append(f"u.{column}")
                continue
            values.append(f"coalesce(u.{column}, {self.single(column)}) AS {column}")
        return f"(SELECT u.n, {', '.join(values)} FROM {self.unnest(arrays, 'u', columns)}) AS {alias}"

    def c(self, operator):
        params = ", ".join(f"{{SQL_{source}, SQL_NAME_{name}}}" for source, name in self.params)
        gives = ", ".join(f"SQL_NAME_{name}" for name in self.gives)
        shaped = ", ".join(f"SQL_NAME_{name}" for name in self.shaped)
        out = [f".sql = {{\"semel_{self.name}\", {literal(self.text)}}}", f".table = \"{self.table}\""]
        if params:
            out.append(f".params = (const struct sql_param[]){{{params}}}, .n_params = {len(self.params)}")
        if gives:
            out.append(f".gives = (const uint16_t[]){{{gives}}}, .n_gives = {len(self.gives)}")
        mode, *which = self.headers.get("rows", "").split() or [""]
        if mode == "none":
            out.append(".alone = true")
        if mode == "many":
            out.append(f".many = {{\"semel_{self.name}_many\", {literal(self.many())}}}, .n_many = {MANY}, "
                       f".which = SQL_{which[0]}")
        if "@" in self.text:
            out.append(".maps = true")
        if shaped:
            out.append(f".shaped = (const uint16_t[]){{{shaped}}}, .n_shaped = {len(self.shaped)}, "
                       f".n_always = {len(self.always)}, .alias = \"{self.alias}\"")
        if operator is not None:
            out.append(f".by_operator = &(const struct sql_statement){{{operator.c(None)}}}")
        return ",\n     ".join(out)


def literal(text):
    """One line as C string literals of readable length."""
    parts = re.findall(r".{1,100}(?:\s+|$)|\S+", text)
    return "\n      ".join('"' + p.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") + '"' for p in parts)


def write(dialect, ids, names, path):
    rows, used = [], set()
    for name in ids:
        headers, text = dialect.statements.get(name, ({}, ""))
        if not text:
            continue
        statement = Statement(dialect, name, headers, text, names)
        operator = None
        if name in dialect.operators:
            operator = Statement(dialect, name, headers, dialect.operators[name][1], names)
            operator.name = "operator_" + name
        for one in (statement, operator):
            if one is not None:
                used |= {name for _, name in one.params} | set(one.gives) | set(one.shaped)
        rows.append(f"    [SQL_{name}] =\n    {{{statement.c(operator)}}},\n")
    unused = set(dialect.fragments) - dialect.used
    if unused:
        raise Fault(f"{dialect.name}: nobody uses the fragments {' '.join(sorted(unused))}")
    path.write_text("/* SPDX-License-Identifier: MIT\n *\n * Generated by tools/compile_sql.py: do not edit. */\n"
                    f'#include "store/sql.h"\n\nconst struct sql_statement {SYMBOLS[dialect.name]}[SQL_COUNT] = {{\n'
                    + "".join(rows) + "};\n", encoding="ascii")
    return used


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    outputs = dict(word.split("=") for word in sys.argv[2:] if "=" in word)
    names_path, *files = [pathlib.Path(word) for word in sys.argv[2:] if "=" not in word]
    names = read_names(names_path)
    dialects = [Dialect(name, [path for path in files if path.parent.name == name]) for name in outputs]
    ids = sorted(set().union(*(dialect.statements for dialect in dialects)))
    used = {"n", "applied", "changes"}
    for name in ids:
        has = [dialect.statements[name][0] for dialect in dialects if name in dialect.statements]
        if len(has) != (1 if "only" in has[0] else len(dialects)):
            raise Fault(f"{name} must be in every dialect, or in one with \"-- only: why\"")
    for dialect in dialects:
        used |= write(dialect, ids, names, pathlib.Path(outputs[dialect.name]))
    if set(names) - used:
        raise Fault(f"{names_path}: nobody uses {' '.join(sorted(set(names) - used))}")
    maps = [f"#define SQL_NAME_MAP(X){''.join(f' X({name}, {kind.upper()})' for name, kind in names.items())}\n",
            f"#define SQL_STATEMENT_MAP(X){''.join(f' X({name})' for name in ids)}\n"]
    pathlib.Path(sys.argv[1]).write_text("/* SPDX-License-Identifier: MIT\n *\n * Generated by tools/compile_sql.py: "
                                         "do not edit. */\n#ifndef SEMEL_STORE_SQL_STATEMENTS_H\n"
                                         "#define SEMEL_STORE_SQL_STATEMENTS_H\n\n" + "".join(maps) + "\n#endif\n",
                                         encoding="ascii")


try:
    main()
except Fault as fault:
    sys.exit(f"compile_sql: {fault}")
