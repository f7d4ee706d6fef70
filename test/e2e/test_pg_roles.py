# SPDX-License-Identifier: MIT
"""Who may do what on PostgreSQL: the roles of roles.sql, which role acts for which consumer, and planted functions."""
import os
import pathlib
import re

from pg import empty_pg, pg, pg_server  # noqa: F401 (fixtures)

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
FILES = sorted((SOURCE / "sql" / "postgres").glob("[0-9]*.sql"))
PLANT = (SOURCE / "test" / "pg" / "plant.sql").read_text()

# Syntax that looks like a call, and our own names: of columns, common tables and types.
SYNTAX = set("""
    all and any array as between bigint bit by cast check coalesce collate conflict constraint cursor exists filter from
    greatest if in index insert integer into interval join key lateral least materialized not nullif numeric on operator
    or order over overlay position primary references select set some table timestamptz trigger type unique using values
    varchar when where with row returns setof then else and returning trim extract char
    """.split())


def statements(text):
    """The string literals of C that hold SQL, each with those that follow it."""
    joined = re.sub(r'"\s*\\?\s*\n\s*"', "", text)
    return [m.group(1) for m in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', joined)]


def calls(sql):
    """What is called without a schema; `unnest` of several arrays is syntax, which names pg_catalog by itself."""
    sql = re.sub(r"'(?:[^']|'')*'", "''", sql)
    for m in re.finditer(r"(?<![\w.$%])([a-z_][a-z_0-9]*)\s?\(", sql):
        if m.group(1) in SYNTAX or re.search(r"(\bAS|\bINTO( semel\.\w+)?( AS \w+)?|[,)]|\bRECURSIVE) $", sql[:m.start()]):
            continue
        yield m.group(1), sql[m.start():m.start() + 60]


# B3 P85
def test_every_function_that_a_statement_of_the_driver_calls_is_named_with_its_schema():
    seen = 0
    for path in [*sorted((SOURCE / "src" / "store").glob("pg*.[ch]")), SOURCE / "src" / "handler" / "sql_pg.c"]:
        for text in statements(path.read_text()):
            if not re.search(r"\b(SELECT|INSERT INTO|UPDATE semel|DELETE FROM|FROM|CASE WHEN)\b", text):
                continue
            seen += 1
            for name, where in calls(text):
                several = name == "unnest" and (re.match(r"unnest\((\$\d+::\w+\[\]( COLLATE \\\"C\\\")?, )", where)
                                                or where.count("(") > where.count(")"))
                assert several, f"{path.name}: {name} has no schema: {where}"
    assert seen > 80


# B3 P85
def test_what_is_planted_covers_what_the_functions_call(empty_pg):
    planted = re.search(r"names text\[\] := '\{(.*?)\}'", PLANT, re.S).group(1).replace("\n", " ").split(",")
    called = set()
    for path in FILES:
        text = re.sub(r"--.*", "", path.read_text())
        called |= set(re.findall(r"(?<![\w.])(?:pg_catalog\.)?([a-z][a-z_0-9]*)\(", text))
    built_in = empty_pg.sql("SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace")
    called &= {name for name, in built_in} - SYNTAX
    assert len(called) > 40 and sorted(called - {name.strip() for name in planted}) == []


# B3 P85
def test_nothing_that_is_planted_in_public_is_called_by_migrations_functions_and_commands(empty_pg):
    empty_pg.server.psql(empty_pg.name, PLANT)
    assert empty_pg.semel("migrate").code == 0
    assert empty_pg.semel("consumer", "set", "c", '{"effect": "keyed", "order": "arrival"}').code == 0
    for i in (1, 2):
        assert empty_pg.semel("send", "-c", "c", "--id", f"m{i}", "--order-key", "k", "{}").code == 0
    empty_pg.sql("""
        BEGIN; SELECT semel.inbox_begin('b', 'x', payload => '{"a": [1, 2.5e10]}', order_key => 'k', version => 1);
        SELECT semel.inbox_done('b', 'x'); SELECT semel.outbox_put('a', 'b', 'c', '{}', lock => true);
        SELECT semel.step_key('b', 'x', 's'), semel.consumer('b'); COMMIT;
        SELECT semel.inbox_fail('d', 'y', payload => '[]', class => 'permanent', reason => 'no');
        SELECT semel.inbox_finish(token, 'permanent') FROM semel.inbox_take('c', 10, '60s');
        SELECT semel.tick();""")
    for args in (["status"], ["status", "--json"], ["inbox", "ls"], ["inbox", "ls", "--dead"], ["consumer", "ls"],
                 ["inbox", "show", "y", "-c", "d"], ["inbox", "retry", "y", "-c", "d", "--reason", "r"],
                 ["inbox", "discard", "--dead", "-c", "c", "--reason", "r", "--yes"], ["migrate"]):
        done = empty_pg.semel(*args)
        assert done.code in (0, 1) and "planted" not in done.err, (args, done)
    assert empty_pg.sql("SELECT is_called FROM public.planted") == [("f",)]


# B9
def test_no_migration_leaves_a_function_to_everybody_for_a_moment(empty_pg):
    for path in FILES:
        empty_pg.server.psql(empty_pg.name, "BEGIN;\n" + path.read_text() + "\nCOMMIT;")
        everybody = empty_pg.sql("""
            SELECT p.oid::regprocedure FROM pg_proc AS p WHERE p.pronamespace = 'semel'::regnamespace
              AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) AS a WHERE a.grantee = 0))""")
        assert everybody == [], path.name
