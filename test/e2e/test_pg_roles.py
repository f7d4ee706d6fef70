# SPDX-License-Identifier: MIT
"""Who may do what on PostgreSQL: the roles of roles.sql, which role acts for which consumer, and planted functions."""
import collections
import json
import os
import pathlib
import re

import psycopg2
import pytest

from conftest import run
from pg import Database, empty_pg, pg, pg_server  # noqa: F401 (fixtures)

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


def blocks(text):
    """The named statements and fragments of a file, without what names a fragment."""
    text = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [re.sub(r"\s+", " ", re.sub(r"\{\w+\(", "{(", block)) for block in text.split("\n\n")]


def calls(sql):
    """What is called without a schema; `unnest` of several arrays is syntax, which names pg_catalog by itself."""
    sql = re.sub(r"'(?:[^']|'')*'", "''", sql)
    for m in re.finditer(r"(?<![\w.$%])([a-z_][a-z_0-9]*)\s?\(", sql):
        names = re.search(r"(\bAS|\bINTO( semel\.\w+)?( AS \w+)?|[,)]|\bRECURSIVE) $", sql[:m.start()])
        if m.group(1) in SYNTAX or names:
            continue
        yield m.group(1), sql[m.start():m.start() + 60]


# B3 P85
def test_every_function_that_a_statement_of_the_driver_calls_is_named_with_its_schema():
    seen = 0
    written = SOURCE / "sql" / "statements" / "postgres"
    for path in [*sorted((SOURCE / "src" / "store").glob("pg*.[ch]")), SOURCE / "src" / "handler" / "sql_pg.c",
                 *sorted(written.glob("*.sql"))]:
        text = path.read_text()
        for text in blocks(text) if path.parent == written else statements(text):
            if not re.search(r"\b(SELECT|INSERT INTO|UPDATE semel|DELETE FROM|FROM|CASE WHEN)\b", text):
                continue
            seen += 1
            for name, where in calls(text):
                several = name == "unnest" and (re.match(r"unnest\((\$\d+::\w+\[\]( COLLATE \\\"C\\\")?, )", where)
                                                or where.count("(") > where.count(")"))
                assert several, f"{path.name}: {name} has no schema: {where}"
    assert seen > 80


# B3 P85
def test_no_statement_of_the_driver_is_parsed_to_something_that_is_planted(empty_pg):
    """An operator is found by its types: the parser itself says which one it took. A mapped table's columns may be of
    type varchar, which has no operators of its own."""
    of_table = {"id": "id", "place": "place", "table": "app.event", "pending": "true", "id_text": "x.id::text",
                "place_text": "x.place::text", "kind": "'k'::text", "whose": "x.whose::text", "type": "'t'::text",
                "payload": "NULL::bytea", "headers": "'{}'::text", "destination": "NULL::text",
                "created": "NULL::timestamptz", "id_type": "varchar", "place_type": "varchar",
                "take": "DELETE FROM app.event AS x USING"}
    empty_pg.server.psql(empty_pg.name, PLANT)
    empty_pg.sql("CREATE SCHEMA app; CREATE TABLE app.event (id varchar, place varchar, whose varchar)")
    assert empty_pg.semel("migrate").code == 0
    compiled = (pathlib.Path(os.environ["SEMEL_BUILD"]) / "src" / "store" / "postgres_statements.c").read_text()
    texts = dict(re.findall(r'\{"(semel_[a-z_0-9]+)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\}', compiled))
    db = psycopg2.connect(empty_pg.url)
    db.autocommit = True
    db.notices = collections.deque()
    with db.cursor() as cursor:
        cursor.execute("SELECT oid::bigint FROM pg_catalog.pg_operator WHERE oprnamespace = 'public'::regnamespace "
                       "UNION ALL SELECT oid::bigint FROM pg_catalog.pg_proc "
                       "WHERE pronamespace = 'public'::regnamespace")
        planted = {str(oid) for oid, in cursor}
        assert len(planted) > 5000
        cursor.execute("SET debug_print_parse = on; SET debug_pretty_print = off; SET client_min_messages = log")
        parsed, left_out = 0, []
        for name, literals in texts.items():
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).encode().decode("unicode_escape")
            text = re.sub(r"@(\w+)", lambda m: of_table[m.group(1)], text)
            if re.search(r"(?<!:):rows|^(EXPLAIN|LISTEN)", text):  # the text of the insert is made by the driver
                continue
            db.notices.clear()
            try:
                cursor.execute(f"PREPARE {name} AS {text}")
            except psycopg2.Error as error:
                left_out.append(f"{name}: {error}")
                continue
            tree = "".join(db.notices)
            called = set(re.findall(r":(?:opno|opfuncid|funcid) (\d+)", tree)) & planted
            assert ":commandType" in tree and not called, (name, called)
            parsed += 1
    db.close()
    assert parsed > 200 and not left_out, left_out


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
        BEGIN; SELECT semel.inbox_begin('p', 'x', payload => '{}'); SELECT semel.inbox_done('p', 'x');
        SELECT semel.inbox_begin_many('p', '[{"message_id": "y", "payload": {}}, {"message_id": "x"}]');
        SELECT semel.inbox_done_many('p', '[{"message_id": "y"}]');
        SELECT semel.inbox_fail_many('p', '[{"message_id": "z", "class": "transient"}]'); COMMIT;
        BEGIN; SELECT semel.key_finish(b.token, 200, '[["a", "b"]]', 'x')
        FROM semel.key_begin('a', 'key-00001', 'f') AS b; COMMIT;
        SELECT semel.key_begin('a', 'key-00001', 'f'), semel.key_outcome(200);
        SELECT semel.key_renew(c.token), semel.key_fail(c.token, 'unknown', 'x')
        FROM semel.key_claim('a', '2026-11-17') AS c;
        SELECT semel.inbox_begin('p', 'x', payload => '{}');
        SELECT semel.inbox_fail('d', 'y', payload => '[]', class => 'permanent', reason => 'no');
        SELECT semel.inbox_finish(token, 'permanent') FROM semel.inbox_take('c', 10, '60s');
        SELECT semel.tick();""")
    for args in (["status"], ["status", "--json"], ["inbox", "ls"], ["inbox", "ls", "--dead"], ["consumer", "ls"],
                 ["inbox", "show", "y", "-c", "d"], ["inbox", "retry", "y", "-c", "d", "--reason", "r"],
                 ["inbox", "discard", "--dead", "-c", "c", "--reason", "r", "--yes"], ["migrate"]):
        done = empty_pg.semel(*args)
        assert done.code in (0, 1) and "planted" not in done.err, (args, done)
    assert empty_pg.sql("SELECT is_called FROM public.planted") == [("f",)]


# B3 P85: whatever the search_path of who runs them
def test_nothing_that_is_planted_in_public_is_called_by_migrations_that_psql_runs(empty_pg):
    empty_pg.server.psql(empty_pg.name, PLANT)
    for path in FILES:
        done = empty_pg.server.psql(empty_pg.name, "BEGIN;\n" + path.read_text() + "\nCOMMIT;\nSHOW search_path;")
        assert '"$user", public' in done.stdout, path.name
    empty_pg.sql("SELECT semel.inbox_fail('d', 'y', payload => '[]', class => 'permanent'); SELECT semel.tick(); "
                 "BEGIN; SELECT semel.inbox_begin('p', 'x'); SELECT semel.inbox_done('p', 'x'); COMMIT;")
    assert empty_pg.sql("SELECT is_called FROM public.planted") == [("f",)]


# B3 P85: outside a transaction a file could not set its search_path
def test_a_migration_outside_a_transaction_is_refused_before_it_makes_a_thing(empty_pg):
    for path in FILES[:3]:
        done = empty_pg.server.psql(empty_pg.name, path.read_text(), check=False)
        assert done.returncode != 0 and "transaction" in done.stderr, (path.name, done)
        assert empty_pg.sql("SELECT coalesce(max(version), 0) FROM semel.schema"
                            if path != FILES[0] else "SELECT count(*) FROM pg_namespace WHERE nspname = 'semel'")[0] \
            == (str(FILES.index(path)),)
        empty_pg.server.psql(empty_pg.name, "BEGIN;\n" + path.read_text() + "\nCOMMIT;")


# B9
def test_types_are_for_the_owner_alone(empty_pg):
    assert empty_pg.semel("migrate").code == 0
    assert empty_pg.sql("""
        SELECT t.oid::regtype FROM pg_type AS t WHERE t.typnamespace = 'semel'::regnamespace AND t.typelem = 0
          AND (t.typacl IS NULL OR EXISTS (SELECT FROM aclexplode(t.typacl) AS a WHERE a.grantee = 0))""") == []


# B3 P85: who runs it may create roles, and perhaps everything
def test_nothing_that_is_planted_in_public_is_called_by_the_file_of_the_roles(empty_pg):
    assert empty_pg.semel("migrate").code == 0
    empty_pg.server.psql(empty_pg.name, PLANT)
    roles = (SOURCE / "sql" / "postgres" / "roles.sql").read_text()
    done = empty_pg.server.psql(empty_pg.name, "\\set owner postgres\n\\set app postgres\n\\set operator postgres\n"
                                + roles + "\nSHOW search_path;", check=False)
    assert done.returncode == 0 and '"$user", public' in done.stdout, done
    assert empty_pg.sql("SELECT is_called FROM public.planted") == [("f",)]


# B9
def test_no_migration_leaves_a_function_to_everybody_for_a_moment(empty_pg):
    for path in FILES:
        empty_pg.server.psql(empty_pg.name, "BEGIN;\n" + path.read_text() + "\nCOMMIT;")
        everybody = empty_pg.sql("""
            SELECT p.oid::regprocedure FROM pg_proc AS p WHERE p.pronamespace = 'semel'::regnamespace
              AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) AS a WHERE a.grantee = 0))""")
        assert everybody == [], path.name


# ---- which role acts for which consumer ----


def owned(database):
    """Migrated by its owner; two applications that log in; roles.sql applied."""
    roles = (SOURCE / "sql" / "postgres" / "roles.sql").read_text()
    setup = "\\set owner its_owner\n\\set app semel_app\n\\set operator semel_operator\n" + roles
    files = "".join(f"BEGIN;\n{path.read_text()}\nCOMMIT;\n" for path in FILES)
    database.server.psql(database.name, "".join(f"CREATE ROLE {role} LOGIN;" for role in (
        "its_owner", "shop", "mill", "ops")) + setup + "\nSET ROLE its_owner;\n" + files + "RESET ROLE;\n" + setup +
        "\nGRANT semel_app TO shop, mill; GRANT semel_operator TO ops;")


@pytest.fixture
def shops(pg_server):  # noqa: F811
    made = Database(pg_server, "shops", model=owned)
    yield made
    made.sql("REVOKE shop FROM mill; REVOKE semel_app FROM ops;")


def refused(shops, text, role):
    """What the server said of it."""
    done = shops.server.psql(shops.name, "\\set VERBOSITY verbose\n" + text, check=False, role=role)
    assert done.returncode != 0, done.stdout
    return done.stderr


CALLS = [
    "SELECT semel.inbox_begin('billing', 'm2')", "SELECT semel.inbox_done('billing', 'm1')",
    "SELECT semel.inbox_fail('billing', 'm2', class => 'permanent')", "SELECT semel.inbox_claim('billing', 'm2')",
    "SELECT semel.inbox_put('billing', 'm2', payload => '{}')", "SELECT semel.inbox_take('billing')",
    "SELECT semel.consumer('billing')",
    "SELECT semel.inbox_begin('billing', 'f1f2f3f4-0000-4000-8000-000000000000'::uuid)",
]


# B2 P86 I27
def test_role_acts_only_for_the_consumers_that_are_listed_for_it(shops):
    shops.sql("SELECT semel.consumer('billing', '{\"effect\": \"outside\"}'), semel.consumer('mail', '{\"effect\": "
              "\"outside\"}');")
    assert shops.sql("SELECT act FROM semel.inbox_put('billing', 'm1', payload => '{}')", role="mill") == [("ack",)]
    shops.sql("INSERT INTO semel.access (role, consumer) VALUES ('shop', 'billing'), ('mill', 'mail')")
    for text in CALLS:
        told = refused(shops, text, "mill")
        assert "42501" in told and 'role "mill" may not act for consumer "billing"' in told, told
    (token, payload), = shops.sql("SELECT token, payload FROM semel.inbox_take('billing', 10)", role="shop")
    assert payload == "{}"
    for text in (f"semel.inbox_renew({token})", f"semel.inbox_release({token})",
                 f"semel.inbox_finish({token}, 'transient')"):
        assert shops.sql(f"SELECT {text}", role="mill") == [("f",)]
    assert shops.sql("SELECT count(*) FROM semel.attempt") == [("0",)]
    assert shops.sql(f"SELECT semel.inbox_renew({token}), semel.inbox_finish({token})", role="shop") == [("t", "t")]
    assert shops.sql("SELECT act FROM semel.inbox_put('mail', 'm1', payload => '{}')", role="mill") == [("ack",)]
    assert shops.sql("SELECT semel.tick() >= 0", role="mill") == [("t",)]


# B2 P86 I27
def test_membership_counts_and_a_role_that_is_set_counts_alone(shops):
    shops.sql("INSERT INTO semel.access (role, consumer) VALUES ('shop', 'billing'), ('gone', '*'), ('ops', '*')")
    put = "SELECT act FROM semel.inbox_put('billing', 'm1', payload => '{}')"
    assert "may not act" in refused(shops, put, "mill")
    shops.sql("GRANT shop TO mill")
    assert shops.sql(put, role="mill") == [("ack",)]
    assert shops.sql("SET ROLE shop; " + put, role="mill") == [("ack",)]
    told = refused(shops, "SET ROLE semel_app; " + put, "mill")
    assert 'role "semel_app" may not act for consumer "billing"' in told, told
    shops.sql("GRANT semel_app TO ops")
    assert shops.sql("SELECT act FROM semel.inbox_put('any', 'm1', payload => '{}')", role="ops") == [("ack",)]


# B2 P86 I27
def test_application_does_not_write_settings(shops):
    told = refused(shops, "SELECT semel.consumer('billing', '{\"retention\": \"1h\"}')", "shop")
    assert "permission denied for function consumer" in told
    assert shops.sql("SELECT semel.consumer('billing') ->> 'retention'", role="shop") == [("45d",)]
    told = refused(shops, "INSERT INTO semel.access VALUES ('*', 'shop')", "shop")
    assert "permission denied for table access" in told


# ---- what operators do ----


@pytest.fixture
def letters(shops):
    """Dead letters d1 to d4, an unknown one and a failed one, each by the functions; and how `ops` runs a command."""
    shops.sql("SELECT semel.consumer('billing', '{\"effect\": \"outside\", \"order\": \"arrival\"}');"
              "SELECT semel.consumer('mail', '{\"effect\": \"outside\"}');")
    for i in (1, 2, 3, 4):
        shops.sql(f"SELECT semel.inbox_fail('billing', 'd{i}', payload => '{{\"n\": {i}}}', order_key => 'k{i}', "
                  f"business_key => 'b{i}', class => 'permanent', reason => 'no')", role="shop")
    shops.sql("SELECT semel.inbox_put('billing', 'w1', payload => '{}', order_key => 'k1')", role="shop")
    shops.sql("SELECT semel.inbox_fail('mail', 'u1', payload => '{}', class => 'unknown')", role="shop")
    shops.sql("SELECT semel.inbox_fail('mail', 'f1', payload => '{}', class => 'transient')", role="shop")
    shops.as_ops = lambda *args: run(*args, "--store", shops.server.url(shops.name, "ops"),
                                     env={"SEMEL_USER": "somebody else"})
    return shops


def row(shops, id):
    found, = shops.sql(f"SELECT status, retries, payload IS NOT NULL FROM semel.inbox WHERE message_id = '{id}'")
    return found


def audit(shops):
    return shops.sql("SELECT who, what, reason, message_id FROM semel.audit WHERE what <> 'timeline' "
                     "AND what NOT LIKE 'set %' ORDER BY id")


# B4 I27
def test_operator_gives_commands_and_the_audit_names_its_login(letters):
    for args in (["retry", "d1", "-c", "billing"], ["discard", "d2", "-c", "billing"],
                 ["resolve", "u1", "-c", "mail", "--outcome", '{"paid": 1}'], ["discard", "f1", "-c", "mail"]):
        done = letters.as_ops("inbox", *args, "--reason", "because")
        assert done.code == 0, (args, done)
    assert row(letters, "d1") == ("failed", "1", "t")
    assert row(letters, "d2") == ("rejected", "0", "f")
    assert row(letters, "u1") == ("completed", "0", "f")
    assert row(letters, "f1") == ("rejected", "0", "f")
    assert letters.sql("SELECT outcome FROM semel.inbox WHERE message_id = 'u1'") == [('{"paid":1}',)] or \
        letters.sql("SELECT outcome FROM semel.inbox WHERE message_id = 'u1'") == [('{"paid": 1}',)]
    assert letters.sql("SELECT business_key FROM semel.business_key WHERE message_id = 'd2'") == []
    assert audit(letters) == [("ops", "retry", "because", "d1"), ("ops", "discard", "because", "d2"),
                              ("ops", "resolve", "because", "u1"), ("ops", "discard", "because", "f1")]
    again = letters.as_ops("inbox", "retry", "d2", "-c", "billing", "--reason", "because")
    assert again.code == 4 and len(audit(letters)) == 4, again


# B4 I27
def test_operator_discards_the_first_of_a_key_and_the_next_is_woken(letters):
    assert letters.as_ops("inbox", "discard", "d1", "-c", "billing", "--reason", "x").code == 0
    woken = letters.sql("SELECT status, due_at IS NOT NULL FROM semel.inbox WHERE message_id = 'w1'")
    assert woken == [("waiting", "t")]


# B4 I27
def test_operator_gives_commands_about_many_and_rewinds(letters):
    done = letters.as_ops("inbox", "retry", "--dead", "-c", "billing", "--reason", "many", "--yes", "--no-probe")
    assert done.code == 0, done
    assert [row(letters, f"d{i}")[0] for i in (1, 2, 3, 4)] == ["failed"] * 4
    lines = audit(letters)
    assert lines[0] == ("ops", "selection 1: retry of 4 messages", "many", "")
    assert [line[3] for line in lines[1:]] == ["d1", "d2", "d3", "d4"]
    assert letters.sql("SELECT who, command, reason FROM semel.selection") == [("ops", "retry", "many")]
    assert letters.sql("SELECT count(*) FROM semel.selected WHERE result = 'done'") == [("4",)]
    letters.sql("INSERT INTO semel.position VALUES ('billing', 'payments', 0, 7, 3, now())")
    done = letters.as_ops("rewind", "billing", "--source", "payments", "-p", 0, "--to", 2, "--reason", "again", "-y")
    assert done.code == 0, done
    assert letters.sql("SELECT next_offset, epoch FROM semel.position") == [("2", "4")]
    assert audit(letters)[-1] == ("ops", "rewind: partition 0 from 7 to 2", "again", "")


def message(shops, id):
    found, = shops.sql("SELECT status, payload, type, headers, order_key, traceparent, error_text, due_at IS NOT NULL, "
                       f"message_time, attempts FROM semel.inbox WHERE message_id = '{id}'")
    return found


CORRECT = "SELECT semel._operator_correct('{}', '', '{}', '{}', '{}', {}, '{}')"


# B4 I27 P41
def test_operator_corrects_a_payload_by_the_owners_function(letters, tmp_path):
    letters.sql("UPDATE semel.inbox SET headers = '{\"a\":\"b\"}', type = 'Paid', traceparent = 'tp', "
                "message_time = now() - interval '1 hour' WHERE message_id = 'd2'")
    letters.sql("INSERT INTO semel.business_key (consumer, business_key, source, message_id, taken_at) "
                "VALUES ('billing', 'b2x', '', 'd2', now())")
    letters.sql("SELECT semel.inbox_put('mail', 'empty', payload => '{}'), "
                "semel.inbox_put('mail', 'gone', raw => '', "
                "headers => '{\"semel_tombstone\": \"true\", \"a\": \"b\"}')",
                role="shop")
    letters.sql("UPDATE semel.inbox SET status = 'dead', due_at = NULL, error_class = 'transient', error_text = 'x', "
                "attempts = 1 WHERE message_id IN ('empty', 'gone')")
    raw = tmp_path / "raw"
    raw.write_bytes(b"\x00\xff{")
    done = letters.as_ops("inbox", "retry", "d2", "-c", "billing", "--payload", f"@{raw}", "--reason", "wrong currency",
                          "--json")
    assert done.code == 0 and [(a["result"], a["copy"], a["status"]) for a in done.json] == [
        ("done", "d2~1", "rejected")], done
    assert message(letters, "d2")[:8] == ("rejected", "\\x7b226e223a20327d", "Paid", '{"a":"b"}', "k2", "tp",
                                          "corrected as d2~1: wrong currency", "f")
    assert message(letters, "d2~1") == ("waiting", "\\x00ff7b", "Paid", '{"a":"b"}', "k2", "tp", "", "t", "", "0")
    assert audit(letters) == [("ops", "correct", "as d2~1: wrong currency", "d2"),
                              ("ops", "correction", "of d2: wrong currency", "d2~1")]
    wants = letters.sql("SELECT business_key, message_id FROM semel.business_want WHERE business_key LIKE 'b2%' "
                        "ORDER BY 1")
    assert wants == [("b2", "d2~1"), ("b2x", "d2~1")]
    assert letters.sql("SELECT business_key FROM semel.business_key WHERE business_key LIKE 'b2%'") == []
    again = letters.as_ops("inbox", "retry", "d2", "-c", "billing", "--payload", "{}", "--reason", "x")
    assert again.code == 4 and "is rejected: there is nothing to correct" in again.err
    empty = letters.as_ops("inbox", "retry", "empty", "-c", "mail", "--payload", "", "--reason", "x")
    assert empty.code == 0 and message(letters, "empty~1")[:2] == ("waiting", "\\x"), empty
    assert letters.as_ops("inbox", "retry", "gone", "-c", "mail", "--payload", "1", "--reason", "x").code == 0
    assert message(letters, "gone~1")[3] == '{"a": "b"}'  # it is no tombstone any more

    taken = letters.sql("SELECT message_id, raw FROM semel.inbox_take('billing', 9)", role="shop")
    assert taken == [("d2~1", "\\x00ff7b")]
    token, = letters.sql("SELECT lease_token FROM semel.inbox WHERE message_id = 'd2~1'")
    letters.sql(f"SELECT semel.inbox_finish({token[0]}, 'permanent', reason => 'still wrong')", role="shop")
    file = tmp_path / "lines"
    file.write_text(json.dumps({"id": "d2~1", "payload": "1"}) + "\n" + json.dumps({"id": "d3", "payload": "2"}))
    done = letters.as_ops("inbox", "retry", "-c", "billing", "--payloads", f"@{file}", "--reason", "x")
    assert done.code == 0 and "2 corrected" in done.out, done
    assert [message(letters, id)[:2] for id in ("d2~1~1", "d3~1")] == [("waiting", "\\x31"), ("waiting", "\\x32")]


# B4 I27 P41
def test_operator_corrects_only_what_the_program_corrects(letters):
    behind = letters.as_ops("inbox", "retry", "d1", "-c", "billing", "--payload", "{}", "--reason", "x")
    assert behind.code == 4 and "would run before the corrected copy" in behind.err, behind
    unknown = letters.as_ops("inbox", "retry", "u1", "-c", "mail", "--payload", "{}", "--reason", "x")
    assert unknown.code == 4 and "is unknown: there is nothing to correct" in unknown.err, unknown
    letters.sql("SELECT semel.inbox_put('billing', 'd4~1', payload => '{\"theirs\": 1}')", role="shop")
    before = letters.sql("SELECT * FROM semel.inbox ORDER BY arrival")
    taken = letters.as_ops("inbox", "retry", "d4", "-c", "billing", "--payload", "{}", "--reason", "x")
    assert taken.code == 4 and "there is a message with the id of the corrected copy already" in taken.err, taken
    long = letters.as_ops("inbox", "retry", "d2", "-c", "billing", "--payload", "x" * 2000, "--reason", "y" * 1001)
    assert long.code != 0 and "reason" in long.err, long
    assert letters.sql("SELECT * FROM semel.inbox ORDER BY arrival") == before and audit(letters) == []
    forced = letters.as_ops("inbox", "retry", "d1", "-c", "billing", "--payload", "{}", "--reason", "x", "--force")
    assert forced.code == 0, forced
    assert letters.sql("SELECT status, due_at <= now() FROM semel.inbox WHERE message_id = 'w1'") == [("waiting", "t")]
    blocked = letters.sql("SELECT status, error_class FROM semel.inbox WHERE message_id = 'd1~1'")
    assert blocked == [("waiting", "blocked")]


# B4 I27 P41: what the function does not do, whoever calls it and with whatever
def test_the_function_that_corrects_writes_nothing_else(letters):
    letters.sql("SELECT semel.inbox_put('mail', 'done', payload => '{}')", role="shop")
    letters.sql("UPDATE semel.inbox SET status = 'completed', due_at = NULL, processed_at = now(), attempts = 1 "
                "WHERE message_id = 'done'")
    letters.sql("SELECT semel.inbox_put('mail', 'fresh', payload => '{}')", role="shop")
    letters.sql("SELECT semel.consumer('none', '{\"effect\": \"outside\"}')")
    letters.sql("SELECT semel.inbox_fail('none', 'n1', payload => '{}', class => 'permanent')", role="shop")
    letters.sql("SELECT semel.consumer('none', '{\"effect\": \"atomic\", \"keep_payload\": \"never\"}')")
    letters.sql("SELECT semel.consumer('mail', '{\"payload_max\": 1000}')")
    long = "l" * 254
    letters.sql(f"SELECT semel.inbox_fail('mail', '{long}', payload => '{{}}', class => 'permanent')", role="shop")
    before = letters.sql("SELECT * FROM semel.inbox ORDER BY arrival")
    good = CORRECT.format("billing", "d2", "dead", "\\x00", "true", "x")
    for role in ("shop", "mill"):
        assert "42501" in refused(letters, good, role), role
    letters.sql("GRANT USAGE ON SCHEMA semel TO mill; GRANT SELECT ON ALL TABLES IN SCHEMA semel TO mill")
    assert "42501" in refused(letters, good, "mill")  # who only reads
    for args, text in ((("mail", "u1", "unknown", "\\x00", "true", "x"), "that is unknown is not corrected"),
                       (("mail", "done", "completed", "\\x00", "true", "x"), "that is completed is not corrected"),
                       (("mail", "fresh", "waiting", "\\x00", "true", "x"), "that is waiting is not corrected"),
                       (("none", "n1", "dead", "\\x00", "true", "x"), "keeps no payloads"),
                       (("mail", "f1", "failed", "\\x" + 1001 * "00", "true", "x"), "at most 1000 bytes"),
                       (("mail", long, "dead", "\\x00", "true", "x"), "too long to be followed by ~1"),
                       (("billing", "d1", "dead", "\\x00", "false", "x"), "others of its order key would run"),
                       (("billing", "d2", "dead", "\\x00", "true", ""), "a reason of 1 to 1000 bytes"),
                       (("billing", "d2", "dead", "\\x00", "true", 1001 * "x"), "a reason of 1 to 1000 bytes")):
        told = refused(letters, CORRECT.format(*args), "ops")
        assert "22023" in told and text in told, (args, told)
    for args in (("billing", "d2", "failed"), ("mail", "d2", "dead"), ("nobody", "d2", "dead"),
                 ("billing", "d9", "dead")):
        assert letters.sql(CORRECT.format(*args, "\\x00", "true", "x"), role="ops") == [("f",)], args
    assert letters.sql("SELECT * FROM semel.inbox ORDER BY arrival") == before and audit(letters) == []
    nothing = CORRECT.format("billing", "d2", "dead", "x", "true", "x").replace("'x'", "NULL", 1)
    assert "22023" in refused(letters, nothing, "ops")
    assert letters.sql(good, role="ops") == [("t",)]
    others = letters.sql("SELECT * FROM semel.inbox WHERE message_id NOT LIKE 'd2%' ORDER BY arrival")
    assert others == [row for row in before if "d2" not in row]


# B4 I27 P41 P74
def test_a_copy_by_an_operator_takes_the_place_of_its_message(letters):
    letters.sql("SELECT semel.consumer('v', "
                "'{\"effect\": \"outside\", \"order\": \"version\", \"first_version\": 1}')")
    for version in (1, 2):
        letters.sql(f"SELECT semel.inbox_put('v', 'v{version}', payload => '{{}}', order_key => 'k', "
                    f"version => {version}, business_key => 'bv')")
    letters.sql("UPDATE semel.inbox SET status = 'dead', due_at = NULL, attempts = 1, error_class = 'transient', "
                "error_text = 'x' WHERE message_id = 'v1'")
    done = letters.as_ops("inbox", "retry", "v1", "-c", "v", "--payload", "1", "--reason", "x")
    assert done.code == 0, done
    assert letters.sql("SELECT version, last_version FROM semel.inbox JOIN semel.order_key USING (consumer, order_key) "
                       "WHERE message_id = 'v1~1'") in ([("1", "")], [("1", "0")])
    for id in ("v1~1", "v2"):
        (got, token), = letters.sql("SELECT message_id, token FROM semel.inbox_take('v', 1)")
        assert got == id
        letters.sql(f"SELECT semel.inbox_finish({token})")
        if id == "v1~1":
            letters.sql("UPDATE semel.inbox SET due_at = now() WHERE message_id = 'v2'")
            letters.sql("DELETE FROM semel.business_key")
    assert letters.sql("SELECT last_version FROM semel.order_key WHERE consumer = 'v'") == [("2",)]


# B4 I27 P78
def test_operator_meets_business_keys_as_everybody_does(letters):
    put = "SELECT semel.inbox_put('mail', '{}', payload => '{{}}', business_key => '{}')"
    letters.sql("SELECT semel.inbox_fail('mail', 'm1', payload => '{}', business_key => 'bm', class => 'permanent', "
                "reason => 'no')", role="shop")
    for id, key in (("m2", "bm"), ("m3", "bm"), ("m4", "free")):
        letters.sql(put.format(id, key), role="shop")
    letters.sql("UPDATE semel.inbox SET status = 'dead', due_at = NULL, error_class = 'transient', error_text = 'x' "
                "WHERE message_id IN ('m3', 'm4')")
    wants = "SELECT message_id FROM semel.business_want ORDER BY 1"
    keys = "SELECT business_key, message_id FROM semel.business_key WHERE consumer = 'mail' ORDER BY 1"
    assert letters.sql(wants) == [("m2",), ("m3",), ("m4",)] and letters.sql(keys) == [("bm", "m1")]

    taken = letters.as_ops("inbox", "retry", "m3", "-c", "mail", "--reason", "x")
    assert taken.code != 0 and "has its business key" in taken.err and row(letters, "m3")[0] == "dead", taken
    done = letters.as_ops("inbox", "retry", "m4", "-c", "mail", "--reason", "x")
    assert done.code == 0 and row(letters, "m4") == ("failed", "1", "t"), done
    assert letters.sql(wants) == [("m2",), ("m3",), ("m4",)] and letters.sql(keys) == [("bm", "m1")]

    letters.sql("UPDATE semel.inbox SET due_at = now() + interval '1 hour' WHERE message_id = 'm2'")
    assert letters.as_ops("inbox", "discard", "m1", "-c", "mail", "--reason", "x").code == 0
    assert letters.sql(keys) == []
    assert letters.sql("SELECT due_at <= now() FROM semel.inbox WHERE message_id = 'm2'") == [("t",)]
    assert letters.as_ops("inbox", "resolve", "m3", "-c", "mail", "--reason", "x").code == 0
    assert row(letters, "m3")[0] == "completed"
    assert letters.sql(keys) == [("bm", "m3")] and letters.sql(wants) == [("m2",), ("m4",)]


# B4 I27
def test_operator_cannot_write_by_hand_what_no_command_writes(letters):
    for text in ("UPDATE semel.inbox SET payload = 'x'", "UPDATE semel.inbox SET message_id = 'x'",
                 "INSERT INTO semel.audit (at, who, what, reason) VALUES (now(), 'boss', 'discard', 'x')",
                 "DELETE FROM semel.inbox", "UPDATE semel.audit SET who = 'boss'", "SELECT FROM semel.inbox FOR UPDATE",
                 "INSERT INTO semel.selection (command, who, reason, made_at) VALUES ('retry', 'boss', 'x', now())",
                 "DELETE FROM semel.business_key", "DELETE FROM semel.business_want",
                 "UPDATE semel.position SET epoch = 9",
                 "SELECT semel._operator_line('a', 'b', 'c', 'd', 'e')", "SELECT semel.tick()"):
        assert "42501" in refused(letters, text, "ops"), text
    judged = "SELECT semel._operate('billing', '', 'd1', 'dead', {}, NULL, {})"
    assert "a reason of 1 to 1000 bytes is required" in refused(letters, judged.format("'rejected'", "''"), "ops")
    for status in ("processing", "stale", "prevented", "quarantined", "dead"):
        assert "22023" in refused(letters, judged.format(f"'{status}'", "'x'"), "ops")
    assert letters.sql("SELECT semel._operate('billing', '', 'd1', 'failed', 'rejected', NULL, 'x')",
                       role="ops") == [("f",)]
    assert letters.sql("SELECT semel._operate('billing', '', 'none', 'dead', 'rejected', NULL, 'x')",
                       role="ops") == [("f",)]
    assert audit(letters) == [] and row(letters, "d1") == ("dead", "0", "t")
    put = "SELECT act FROM semel.inbox_put('mail', 'p1', payload => '{}')"  # it waits, and has no class
    assert letters.sql(put, role="shop") == [("ack",)]
    assert "22023" in refused(letters, "SELECT semel._operate('mail', '', 'p1', 'waiting', 'failed', NULL, 'x')", "ops")
    sent = letters.as_ops("send", "-c", "billing", "--id", "new", "{}")
    assert sent.code != 0 and letters.sql("SELECT count(*) FROM semel.inbox WHERE message_id = 'new'") == [("0",)], sent


def an_event(shops, aggregate, status):
    """An event that stands aside, as the relay leaves it."""
    (id,), = shops.sql(
        "INSERT INTO semel.outbox_aside (id, aggregatetype, aggregateid, type, seq, shard, headers, created_at, "
        f"status, attempts, updated_at) SELECT gen_random_uuid(), 'order', '{aggregate}', 'Paid', "
        f"nextval('semel.outbox_seq_seq'), get_byte(decode(md5('order/{aggregate}'), 'hex'), 0) & 63, '{{}}', "
        f"now(), '{status}', 3, now() RETURNING id")
    return id


# B4 I27
def test_operator_retries_and_discards_events_by_the_owners_function(letters):
    dead, behind, other = (an_event(letters, *of) for of in (("a", "dead"), ("a", "waiting"), ("b", "dead")))
    busy = an_event(letters, "c", "publishing")
    listed = letters.as_ops("outbox", "ls", "--aside", "--json").json
    assert [row["id"] for row in listed] == [dead, behind, other, busy]
    for args, code in ((["retry", other], 0), (["discard", dead], 0), (["retry", behind], 0), (["discard", busy], 4),
                       (["retry", busy], 4), (["retry", dead], 3)):
        done = letters.as_ops("outbox", *args, "--reason", "because")
        assert done.code == code, (args, done)
    assert letters.sql("SELECT count(*) FROM semel.outbox_aside WHERE status = 'waiting' AND attempts = 0 "
                       "AND due_at IS NOT NULL") == [("2",)]
    assert audit(letters) == [("ops", "outbox retry", "because", other), ("ops", "outbox discard", "because", dead),
                              ("ops", "outbox retry", "because", behind)]
    letters.sql("SELECT semel.outbox_put('order', 'd', 'Paid', '{}')", role="shop")
    (created,), = letters.sql("SELECT id FROM semel.outbox")
    assert letters.as_ops("outbox", "discard", created, "--reason", "because").code == 0
    assert letters.sql("SELECT count(*) FROM semel.outbox") == [("0",)] and len(audit(letters)) == 4
    for text in ("DELETE FROM semel.outbox_aside", "UPDATE semel.outbox_aside SET status = 'dead'",
                 "SELECT FROM semel.outbox_shard FOR UPDATE", "DELETE FROM semel.outbox"):
        assert "42501" in refused(letters, text, "ops"), text
    call = "SELECT semel._operator_outbox('{}', '{}', '{}')"
    assert "42501" in refused(letters, call.format("discard", other, "x"), "shop")
    assert "a reason of 1 to 1000 bytes" in refused(letters, call.format("discard", other, ""), "ops")
    assert "22023" in refused(letters, call.format("publish", other, "x"), "ops")
    assert letters.sql(call.format("discard", busy, "x"), role="ops") == [("f",)]
    assert len(audit(letters)) == 4


# B4 A7 I27
def test_operator_resolves_and_discards_keys_by_the_owners_functions(letters):
    for n, effect in ((1, "outside"), (2, "outside"), (3, "keyed"), (4, "outside")):
        letters.sql(f"SELECT semel.key_claim('alice', 'key-0000{n}', effect => '{effect}')", role="shop")
    letters.sql("SELECT semel.key_fail(token, 'unknown', 'timeout') FROM semel.idempotency WHERE key <> 'key-00004'")
    assert [row["cause"] for row in letters.as_ops("keys", "ls", "--unknown", "--json").json] == ["timeout"] * 3
    for args, code in ((["resolve", "alice", "key-00001", "--code", "201", "--body", "{}"], 0),
                       (["resolve", "alice", "key-00002", "--not-done"], 0), (["discard", "alice", "key-00003"], 0),
                       (["discard", "alice", "key-00001"], 4), (["discard", "alice", "key-00004"], 4),
                       (["discard", "alice", "key-00003"], 3)):
        done = letters.as_ops("keys", *args, "--reason", "because")
        assert done.code == code, (args, done)
    keys = "SELECT key, status, code, body FROM semel.idempotency ORDER BY key"
    assert letters.sql(keys) == [("key-00001", "completed", "201", "\\x7b7d"), ("key-00004", "processing", "", "")]
    assert audit(letters) == [("ops", "keys resolve", "because", "key-00001"),
                              ("ops", "keys resolve", "because", "key-00002"),
                              ("ops", "keys discard", "because", "key-00003")]
    (held,), = letters.sql("SELECT token FROM semel.idempotency WHERE key = 'key-00004'")
    for text in ("DELETE FROM semel.idempotency", "UPDATE semel.idempotency SET code = 200",
                 "SELECT FROM semel.idempotency FOR UPDATE", f"SELECT semel.key_finish({held}, 200)"):
        assert "42501" in refused(letters, text, "ops"), text
    call = f"SELECT semel._operator_key('{{}}', {held}, NULL, NULL, NULL, {{}}, '{{}}')"
    assert "42501" in refused(letters, call.format("keys discard", "true", "x"), "shop")
    assert "a reason of 1 to 1000 bytes" in refused(letters, call.format("keys discard", "true", ""), "ops")
    assert "22023" in refused(letters, call.format("keys forge", "true", "x"), "ops")
    assert "its lease is alive" in refused(letters, call.format("keys discard", "false", "x"), "ops")
    assert letters.as_ops("keys", "discard", "alice", "key-00004", "--force", "--reason", "x").code == 0
    assert len(letters.sql(keys)) == 1 and len(audit(letters)) == 4


def settings_of(shops, consumer):
    return json.loads(shops.sql(f"SELECT settings FROM semel.consumer WHERE consumer = '{consumer}'")[0][0])


# B4 A3 I27
def test_operator_changes_settings_and_the_audit_names_its_login(letters):
    lines = "SELECT who, what, reason FROM semel.audit WHERE what LIKE 'set %' AND who = 'ops' ORDER BY id"
    done = letters.as_ops("consumer", "set", "billing", '{"retry_max": 20, "lease": "90s"}')
    assert done.code == 0 and settings_of(letters, "billing") == {"effect": "outside", "order": "arrival",
                                                                  "retry_max": 20, "lease": "90s"}, done
    assert letters.as_ops("consumer", "set", "billing", '{"retry_max": null}').code == 0
    assert settings_of(letters, "billing") == {"effect": "outside", "order": "arrival", "lease": "90s"}
    assert letters.as_ops("consumer", "set", "billing", '{"lease": "90s"}').code == 0  # changes nothing
    assert [line[0] for line in letters.sql(lines)] == ["ops", "ops"]
    assert json.loads(letters.sql(lines)[1][1][4:]) == {"retry_max": None}

    refused_ = letters.as_ops("consumer", "set", "billing", '{"order": "none"}')
    assert refused_.code != 0 and "order cannot go from arrival to none" in refused_.err, refused_
    unsaid = "SELECT semel._operator_consumer('billing', '{\"order\": \"none\"}', true, '')"
    assert "a reason of 1 to 1000 bytes is required" in refused(letters, unsaid, "ops")
    by_hand = "SELECT semel._operator_consumer('billing', '{\"effect\": \"outside\", \"order\": \"none\"}', false, 'x')"
    assert "order cannot go from arrival to none" in refused(letters, by_hand, "ops")
    assert len(letters.sql(lines)) == 2 and settings_of(letters, "billing")["order"] == "arrival"
    forced = letters.as_ops("consumer", "set", "billing", '{"order": "none"}', "--force", "--reason", "I know")
    assert forced.code == 0 and settings_of(letters, "billing")["order"] == "none", forced
    assert letters.sql(lines)[2] == ("ops", 'set {"order": "none"}, forced past 1', "I know")

    letters.sql("UPDATE semel.consumer SET set_by_host = 'h', set_by_file = '/f.yml', set_by_at = now() "
                "WHERE consumer = 'mail'")
    marked = letters.as_ops("consumer", "set", "mail", '{"retry_max": 9}')
    assert marked.code != 0 and "is set by the file /f.yml on h" in marked.err
    forced = letters.as_ops("consumer", "set", "mail", '{"retry_max": 9}', "--force", "--reason", "the host is gone")
    assert forced.code == 0 and settings_of(letters, "mail") == {"effect": "outside", "retry_max": 9}, forced
    assert letters.sql("SELECT set_by_file FROM semel.consumer WHERE consumer = 'mail'") == [("",)]
    assert letters.sql(lines)[3] == ("ops", 'set {"retry_max": 9}, forced', "the host is gone")
    for text in ("UPDATE semel.consumer SET settings = '{}'", "DELETE FROM semel.consumer",
                 "SELECT semel._settings_change('mail', '{}')"):
        assert "42501" in refused(letters, text, "ops"), text
    assert letters.sql("SELECT semel.consumer('mail', '{\"retry_max\": 8}') ->> 'retry_max'", role="ops") == [("8",)]
    assert letters.sql(lines)[4][:2] == ("ops", 'set {"retry_max": 8}')


# P74, B4 A2 I27: what the program refuses the function refuses too
def test_operator_meets_the_order_of_versions_as_everybody_does(letters):
    letters.sql("SELECT semel.consumer('v', '{\"effect\": \"outside\", \"order\": \"version\"}')")
    for version, status in ((2, "unknown"), (5, "dead")):
        letters.sql(f"SELECT semel.inbox_put('v', 'v{version}', payload => '{{}}', order_key => 'k', "
                    f"version => {version})")
        letters.sql(f"UPDATE semel.inbox SET status = '{status}', due_at = NULL, attempts = 1, "
                    f"error_class = 'transient', error_text = 'x' WHERE message_id = 'v{version}'")
    by_hand = "SELECT semel._operate('v', '', 'v5', 'dead', {}, NULL, 'x')"
    said = letters.as_ops("inbox", "resolve", "v5", "-c", "v", "--reason", "x")
    assert said.code != 0 and "version 2 of the same key is stored and unfinished" in said.err, said
    told = refused(letters, by_hand.format("'completed'"), "ops")
    assert "version 2 of the same key is stored and unfinished" in told
    letters.sql("UPDATE semel.order_key SET skipped = ARRAY(SELECT generate_series(100, 1099)) WHERE consumer = 'v'")
    said = letters.as_ops("inbox", "discard", "v5", "-c", "v", "--reason", "x")
    assert said.code != 0 and "1000 versions of the same key were discarded already" in said.err, said
    assert "1000 versions of the same key" in refused(letters, by_hand.format("'rejected'"), "ops")
    assert row(letters, "v5")[0] == "dead" and audit(letters) == []
