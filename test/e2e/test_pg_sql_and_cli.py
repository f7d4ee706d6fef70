# SPDX-License-Identifier: MIT
"""PostgreSQL through its SQL functions and through the command line: each sees what the other has done."""
import re

from pg import pg_server  # noqa: F401  (a fixture)
from pgsql import (Database, ask, call, committed, consumer, db, documentation, fail, handle, psql, shop)  # noqa: F401


# ---- SQL and command line -----------------------------------------------------------------------------------

# I3, I11
def test_message_begun_in_sql_is_a_duplicate_for_the_command_and_the_other_way_round(shop, db):
    assert handle(db, "sql-1") == ("run", "new")
    result = shop.semel("send", "--consumer", "billing", "--id", "sql-1", '{"amount": 1}', "--json")
    assert (result.code, result.json["why"], result.json["status"]) == (0, "duplicate", "completed"), result
    result = shop.semel("send", "--consumer", "billing", "--id", "sql-1", '{"amount": 2}', "--json")
    assert result.json["why"] == "conflict", result
    result = shop.semel("send", "--consumer", "billing", "--id", "cli-1", '{"amount": 5}')
    assert result.code == 0, result
    assert call(db, "inbox_put", consumer="billing", message_id="cli-1", payload='{"amount":5}') == [
        {"act": "ack", "why": "duplicate"}]
    assert call(db, "inbox_put", consumer="billing", message_id="cli-1", payload='{"amount":6}') == [
        {"act": "ack", "why": "conflict"}]
    token, payload = ask(db, "SELECT token, payload FROM semel.inbox_take('billing', 9)")[0]
    db.commit()
    assert payload == {"amount": 5}
    assert committed(db, "SELECT semel.inbox_finish(%s)", token) == [(True,)]
    assert handle(db, "cli-1", 5) == ("ack", "duplicate")


# I16
def test_dead_letter_of_sql_is_retried_by_the_command_and_runs_again_in_sql(shop, db):
    fail(db, "id-1", "permanent", payload='{"amount": 4}', reason="no such account")
    db.commit()
    result = shop.semel("inbox", "ls", "--dead", "--json")
    assert result.code == 0 and "id-1" in result.out, result
    result = shop.semel("inbox", "retry", "--consumer", "billing", "id-1", "--reason", "the account is there")
    assert result.code == 0, result
    token, payload, attempt = committed(db, "SELECT token, payload, attempt FROM semel.inbox_take('billing')")[0]
    assert (payload, attempt) == ({"amount": 4}, 2)
    assert committed(db, "SELECT semel.inbox_finish(%s)", token) == [(True,)]
    assert committed(db, "SELECT status, retries FROM semel.inbox") == [("completed", 1)]


def test_settings_that_one_of_them_stores_the_other_reads(shop, db):
    result = shop.semel("consumer", "set", "billing", '{"retry_max": 1, "order": "arrival"}')
    assert result.code == 0, result
    assert ask(db, "SELECT semel.consumer('billing')")[0][0]["retry_max"] == 1
    fail(db, "id-1", "transient", payload="{}")
    db.commit()
    assert committed(db, "SELECT status FROM semel.inbox") == [("dead",)]
    consumer(db, "billing", retry_max=7, retention="90d", business_retention="forever", first_version="any")
    result = shop.semel("consumer", "show", "billing", "--json")
    assert result.code == 0 and '"retry_max":7' in result.out.replace(" ", ""), result


CATALOG = """
    SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'semel'::regnamespace
    UNION ALL SELECT format('%s %s %s', c.oid::regclass, c.relpersistence, c.reloptions) FROM pg_class AS c
              WHERE c.relnamespace = 'semel'::regnamespace
    UNION ALL SELECT format('%s %s %s %s', c.oid::regclass, a.attname, a.atttypid::regtype, a.attnotnull)
              FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
              WHERE c.relnamespace = 'semel'::regnamespace
    UNION ALL SELECT pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
              WHERE c.relnamespace = 'semel'::regnamespace
    UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'semel'::regnamespace
    UNION ALL SELECT pg_get_triggerdef(t.oid) FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
              WHERE c.relnamespace = 'semel'::regnamespace AND NOT t.tgisinternal
    UNION ALL SELECT format('%s %s', version, name) FROM semel.schema
    ORDER BY 1"""


def test_psql_and_the_command_make_the_same_schema(shop):
    other = Database(shop.server, "migrated")
    result = other.semel("migrate")
    assert result.code == 0, result
    ours = shop.sql(CATALOG)
    assert len(ours) > 500 and ours == other.sql(CATALOG)


# ---- docs/sql-postgres.md ------------------------------------------------------------------------------

def test_page_prints_what_it_shows(shop):
    script, = re.findall(r"^```sql\n(.*?)^```$", documentation("sql-postgres.md"), re.MULTILINE | re.DOTALL)
    shown = [line[3:].strip() for line in script.splitlines() if line.startswith("-->")]
    code, out, err = psql(shop, "DROP TABLE ledger;" + script)
    assert (code, err) == (0, "")
    assert len(shown) > 10 and out == shown


def test_page_describes_every_function_with_its_arguments(db):
    page = re.sub(r"\s+", " ", documentation("sql-postgres.md"))
    for name, arguments in ask(db, "SELECT proname, pg_get_function_arguments(oid) FROM pg_proc WHERE pronamespace = "
                                   "'semel'::regnamespace AND left(proname, 1) <> '_'"):
        assert f"semel.{name}" in page or f" {name}" in page
        for argument in re.findall(r"(?:^|, )(\w+) ", arguments):
            assert argument in page, (name, argument)
