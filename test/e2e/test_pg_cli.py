# SPDX-License-Identifier: MIT
"""The command line on a store in PostgreSQL: migrating, sending, looking, acting; and all that is no store."""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess

import pytest

from conftest import binary, run, wait_for
from inbox_rows import ODD, export_comes_back
from pg import Database, empty_pg, pg, pg_server  # noqa: F401 (fixtures)

FILES = sorted((pathlib.Path(os.environ["SEMEL_SOURCE"]) / "sql" / "postgres").glob("[0-9]*.sql"))
NEWEST = len(FILES)


def objects(database):
    """Everything in the schema semel, and which migrations are recorded."""
    return database.sql("""
        SELECT 'column', table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
        WHERE table_schema = 'semel'
        UNION ALL SELECT 'index', tablename, indexname, indexdef, '', '' FROM pg_indexes WHERE schemaname = 'semel'
        UNION ALL SELECT 'function', p.proname, pg_get_function_identity_arguments(p.oid), md5(p.prosrc), '', ''
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'semel'
        UNION ALL SELECT 'migration', version::text, name, '', '', '' FROM semel.schema ORDER BY 1, 2, 3""")


def pasted(command):
    """Runs a command that the program has suggested, which must be this very program."""
    words = shlex.split(command)
    assert words[0] == binary()
    return run(*words[1:])


# ---- migrate ----


def test_migrate_makes_the_schema_and_says_from_where_to_where(empty_pg):
    first = empty_pg.semel("migrate")
    assert (first.code, first.out, first.err) == (0, f"schema 0 -> {NEWEST}\n", "")
    again = empty_pg.semel("migrate")
    assert (again.code, again.out) == (0, f"schema {NEWEST}: nothing to do\n")
    assert empty_pg.semel("migrate", "--json").json == {"from": NEWEST, "to": NEWEST}


def test_printed_migrations_make_the_same_schema_by_psql(pg, pg_server):
    printed = run("migrate", "--print", "--store-kind", "postgres")
    assert printed.code == 0 and printed.err == ""
    other = Database(pg_server, "by_psql")
    pg_server.psql("by_psql", "BEGIN;\n" + printed.out + "\nCOMMIT;")
    assert objects(other) == objects(pg)
    assert other.semel("migrate").out == f"schema {NEWEST}: nothing to do\n"
    assert other.semel("send", "-c", "billing", "--id", "m1", "x").code == 0


def test_what_is_printed_is_for_the_store_that_is_given():
    of_postgres, of_sqlite = (run("migrate", "--print", "--store-kind", kind).out for kind in ("postgres", "sqlite"))
    url = "postgres://nobody@localhost/none"
    assert run("migrate", "--print", "--store", url).out == of_postgres != of_sqlite
    assert run("migrate", "--print", env={"SEMEL_STORE": url}).out == of_postgres
    assert run("migrate", "--print", "--store", "sqlite:x", env={"SEMEL_STORE": url}).out == of_sqlite
    assert run("migrate", "--print", "--store-kind", "sqlite", env={"SEMEL_STORE": url}).out == of_sqlite
    assert run("migrate", "--print").out == of_sqlite
    assert run("migrate", "--print", "--store", "oracle:x").code == 2


def test_an_older_schema_is_named_and_brought_up_to_date(pg, empty_pg):
    everything = run("migrate", "--print", "--store-kind", "postgres").out
    later = run("migrate", "--print", "--store-kind", "postgres", "--from", 1).out
    assert everything.endswith(later)
    empty_pg.server.psql(empty_pg.name, "BEGIN;\n" + everything[: -len(later)] + "\nCOMMIT;")
    refused = empty_pg.semel("status")
    assert refused.code == 5 and "schema version 1" in refused.err
    assert refused.err.startswith(f"semel: {empty_pg.url}: ")
    assert pasted(refused.err.split("migrate it first: ")[1]).out == f"schema 1 -> {NEWEST}\n"
    assert objects(empty_pg) == objects(pg)


def test_newer_tables_are_refused_and_left_alone(pg):
    pg.sql("INSERT INTO semel.schema VALUES (999, 'from_the_future')")
    for args in (["migrate"], ["status"], ["consumer", "ls"], ["send", "-c", "b", "--id", "m", "x"]):
        refused = pg.semel(*args)
        assert refused.code == 5 and "schema version 999" in refused.err and "newer program" in refused.err, refused


def test_a_foreign_database_gets_the_schema_besides_its_own(empty_pg):
    empty_pg.sql("CREATE TABLE orders (id int); INSERT INTO orders VALUES (1)")
    for args in (["status"], ["consumer", "ls"], ["inbox", "ls"], ["send", "-c", "b", "--id", "m", "x"]):
        refused = empty_pg.semel(*args)
        assert refused.code == 5, refused
        said, command = refused.err.split("; to make them: ")
        assert said == f"semel: {empty_pg.url}: no Semel tables here"
    assert empty_pg.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'semel'") == [("0",)]
    assert pasted(command).code == 0
    assert empty_pg.sql("SELECT id FROM orders") == [("1",)]


def test_a_role_that_may_not_create_a_schema_is_told(empty_pg):
    empty_pg.sql("DROP ROLE IF EXISTS nobody; CREATE ROLE nobody LOGIN")
    refused = run("migrate", "--store", empty_pg.server.url(empty_pg.name, "nobody"))
    assert refused.code == 5 and "permission denied" in refused.err, refused


# ---- what is no store ----


@pytest.mark.parametrize("url, code, said", [
    ("postgres://postgres@127.0.0.1:1/shop", 5, "127.0.0.1"),
    ("postgres://postgres@no-such-host.invalid/shop", 5, "no-such-host.invalid"),
    ("postgres:nonsense", 5, "postgres://user@host:5432/database"),
    ("postgres://a@127.0.0.1/b?semel_color=red", 5, "semel_color"),
    ("postgres://a@127.0.0.1/b?semel_pooler=yes", 5, "semel_pooler must be 0 or 1"),
    ("mysql://a@b/c", 2, "a store looks like sqlite:FILE or postgres://"),
])
def test_a_wrong_url_is_told_in_one_line(url, code, said):
    refused = run("status", "--store", url)
    lines = refused.err.splitlines()
    assert refused.code == code and len(lines) == 1 and said in lines[0], refused


@pytest.mark.parametrize("url, refuses", [
    ("postgres://postgres@no-such-host.invalid/shop", True),
    ("postgres:host=no-such-host.invalid dbname=shop", True),
    ("postgres://postgres@no-such-host.invalid/shop?sslmode=require", False),  # asked for
    ("postgres:host=no-such-host.invalid dbname=shop sslmode=disable", False),
    ("postgres://postgres@no-such-host.invalid/shop?sslmode=verify-full&sslrootcert=/dev/null", False),
    ("postgres://postgres@127.0.0.1:1/shop", False),
])
def test_a_store_that_anybody_could_pretend_to_be_is_refused_unless_its_url_asks_for_it(url, refuses):
    # B8
    for command in (["status"], ["migrate"], ["send", "-c", "b", "--id", "m", "{}"],
                    ["gateway", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1"]):
        refused = run(*command, "--store", url)
        assert refused.code == 5 and refused.err.count("\n") == 1, refused
        assert ("a fake server could take the password; add sslmode=verify-full" in refused.err) == refuses, refused
        reached = "translate host name" in refused.err
        assert reached == ("invalid" in url and not refuses), refused


@pytest.mark.parametrize("url", [
    "postgres://me:s3cret@127.0.0.1:1/shop", "postgres://127.0.0.1:1/shop?user=me&password=s3cret",
    "postgres:host=127.0.0.1 port=1 user=me password=s3cret dbname=shop",
    "postgres://me@127.0.0.1:1/shop?passwrd=s3cret", "postgres:host=127.0.0.1 user=me passwd = s3cret",  # B9
    "postgres://me@127.0.0.1:1/shop?sslmode=disable&PWD=s3cret", "postgres:pasword='s3cret'",
    "postgres:host=127.0.0.1 port=1 user=me password='s3 s3cret' dbname=shop", "mysql://me:s3cret@127.0.0.1/shop",
    # what ends a value in one form of libpq's does not in the other
    "postgres:host=127.0.0.1 port=1 password=a&s3cret", r"postgres:host=127.0.0.1 port=1 password='a\'s3cret'",
    r"postgres:host=127.0.0.1 port=1 password=a\ s3cret", "postgres:host=127.0.0.1 port=1\npassword\t=s3cret",
    "postgres:host='127.0.0.1'port='1'password=s3cret", "postgres://127.0.0.1:1/shop?password=a s3cret",
    "postgres://127.0.0.1:1/shop?%70assword=s3cret", "postgres://127.0.0.1:1/shop?oauth_client_secret=s3cret",
    "postgres://me@cloud:s3cret@127.0.0.1:1/shop",
    "postgre:host=127.0.0.1 password=s3cret", "password=s3cret host=127.0.0.1", "postgres//me:s3cret@127.0.0.1/shop",
])
def test_a_password_is_never_printed(url):
    for args in (["status"], ["migrate"], ["send", "-c", "b", "--id", "m", "x"]):
        refused = run(*args, "--store", url)
        assert refused.code in (2, 5) and "s3cret" not in refused.err + refused.out, refused


def test_a_password_is_not_in_a_command_to_be_pasted_either(empty_pg):
    secret = empty_pg.url.replace("postgres@", "postgres:s3cret@")
    for args in (["status"], ["send", "-c", "b", "--id", "m", "x"]):
        refused = run(*args, "--store", secret)
        assert refused.code == 5 and "migrate --store" in refused.err and "s3cret" not in refused.err, refused
    assert run("migrate", "--store", secret).code == 0
    assert run("send", "-c", "b", "--id", "m", "x", "--store", secret).code == 0
    empty_pg.sql("UPDATE semel.inbox SET status = 'dead', due_at = NULL, error_class = 'permanent'")
    told = run("status", "--store", secret)
    assert told.code == 0 and "inbox ls --dead --store" in told.out and "s3cret" not in told.out, told
    assert run("send", "-c", "b", "--id", "n", "x", "--store", secret).code == 0
    for args in (["inbox", "show", "m"], ["inbox", "ls", "--limit", "1"],
                 ["inbox", "retry", "--dead", "--reason", "x", "--yes", "--json"]):
        told = run(*args, "--store", secret)
        assert ("--store" in told.out + told.err or "--json" in args) and "s3cret" not in told.out + told.err, told


# ---- working on it ----


def test_the_short_scheme_and_the_long_one_are_the_same(pg):
    assert pg.semel("send", "-c", "billing", "--id", "m1", "x").code == 0
    long = "postgresql" + pg.url[len("postgres"):]
    assert run("inbox", "ls", "--json", "--store", long).out == pg.semel("inbox", "ls", "--json").out


# I5
def test_a_message_is_sent_once_and_shown(pg):
    first = pg.semel("send", "-c", "billing", "--id", "it's \"m\"; --", '{"cents": 4200}', "--json")
    again = pg.semel("send", "-c", "billing", "--id", "it's \"m\"; --", '{"cents": 4200}', "--json")
    assert first.code == 0 and first.json["why"] == "new", first
    assert again.code == 0 and again.json["why"] != "new", again
    assert pg.sql("SELECT count(*) FROM semel.inbox") == [("1",)]
    shown = pg.semel("inbox", "show", "-c", "billing", "it's \"m\"; --", "--json")
    assert shown.code == 0, shown
    assert "4200" in shown.out


def test_payloads_that_are_no_text_are_kept_byte_for_byte(pg, tmp_path):
    blob = tmp_path / "blob"
    blob.write_bytes(bytes(range(256)))
    assert pg.semel("send", "-c", "billing", "--id", "raw", f"@{blob}").code == 0
    assert pg.sql("SELECT encode(payload, 'hex') FROM semel.inbox") == [(bytes(range(256)).hex(),)]


def test_many_messages_are_sent_by_lines(pg):
    lines = "".join(json.dumps({"id": f"m{i}", "payload": {"n": i}}) + "\n" for i in range(500))
    result = pg.semel("send", "-c", "billing", "--lines", stdin=lines)
    assert result.code == 0, result
    assert pg.sql("SELECT count(*), count(DISTINCT message_id) FROM semel.inbox") == [("500", "500")]


def test_a_bad_line_is_named_and_the_others_go_on(pg):
    lines = ['{"id": "m1", "payload": 1}', "nonsense", '{"id": "m1", "payload": 1}', '{"id": "m1", "payload": 2}',
             '{"payload": 3}', '{"id": "m2", "payload": "x"}']
    result = pg.semel("send", "-c", "billing", "--lines", stdin="\n".join(lines))
    assert result.out == "6 lines: 2 accepted, 1 duplicate, 1 refused, 2 bad\n", result
    assert result.code == 1
    assert [line.split(":")[1] for line in result.err.splitlines()] == [" line 2", " line 4", " line 5"], result
    assert pg.sql("SELECT message_id FROM semel.inbox ORDER BY 1") == [("m1",), ("m2",)]


def test_a_store_that_fails_stops_the_lines_and_what_was_counted_is_there(pg):
    pg.sql("CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
           "$$ BEGIN RAISE disk_full; END $$; CREATE TRIGGER full_disk BEFORE INSERT ON semel.record FOR EACH ROW "
           "WHEN (NEW.key = 'm7') EXECUTE FUNCTION full_disk()")
    lines = "".join(json.dumps({"id": f"m{i}", "payload": i}) + "\n" for i in range(1, 11))
    result = pg.semel("send", "-c", "billing", "--lines", stdin=lines)
    assert result.code == 5 and "stopped at line 7" in result.err, result
    assert result.out == "6 lines: 6 accepted, 0 duplicates, 0 refused, 0 bad\n"
    pg.sql("DROP TRIGGER full_disk ON semel.record")
    again = pg.semel("send", "-c", "billing", "--lines", stdin=lines)
    assert again.code == 0 and again.out == "10 lines: 4 accepted, 6 duplicates, 0 refused, 0 bad\n", again


def commits(pg):
    """Transactions that have written rows of the inbox."""
    return int(pg.sql("SELECT count(DISTINCT xmin::text) FROM semel.record")[0][0])


def test_lines_are_committed_in_batches(pg, tmp_path):
    lines = "".join(json.dumps({"id": f"m{i}", "payload": {"n": i}}) + "\n" for i in range(5000))
    (tmp_path / "lines").write_text(lines)
    with open(tmp_path / "lines", encoding="utf-8") as stdin:
        done = subprocess.run([binary(), "send", "-c", "billing", "--lines", "--store", pg.url], stdin=stdin,
                              capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "5000 lines: 5000 accepted, 0 duplicates, 0 refused, 0 bad\n", done.stderr
    assert commits(pg) <= 6, commits(pg)  # the number of the stream is one of its own
    again = pg.semel("send", "-c", "billing", "--lines", stdin=lines + lines[:100])
    assert "0 accepted, 500" in again.out, again


def test_lines_of_one_id_and_of_one_key_are_answered_as_one_by_one(pg):
    lines = [{"id": "a", "payload": 1}, {"id": "b", "payload": 1, "order_key": "k"}, {"id": "a", "payload": 1},
             {"id": "a", "payload": 2}, {"id": "c" * 300, "payload": 1}, {"id": "d", "payload": 1, "order_key": "k"},
             {"id": "a", "source": "other", "payload": 1}]
    result = pg.semel("send", "-c", "billing", "--lines", stdin="\n".join(json.dumps(line) for line in lines))
    assert result.out == "7 lines: 4 accepted, 1 duplicate, 1 refused, 1 bad\n", result
    assert [line.split(": ")[1] for line in result.err.splitlines()] == ["line 4", "line 5"]
    assert pg.sql("SELECT message_id FROM semel.inbox WHERE order_key = 'k' ORDER BY arrival") == [("b",), ("d",)]


def test_interrupted_lines_are_stored_up_to_a_batch_and_can_be_sent_again(pg):
    with subprocess.Popen([binary(), "send", "--lines", "-c", "billing", "--store", pg.url], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        child.stdin.write("".join(json.dumps({"id": f"m{i}", "payload": i}) + "\n" for i in range(1500)))
        child.stdin.flush()
        wait_for(lambda: pg.sql("SELECT count(*) FROM semel.inbox") == [("1500",)], "all are stored")
        child.send_signal(signal.SIGINT)
        child.wait(60)  # before its input ends, which would end it, too
        out, err = child.communicate()
    assert child.returncode == 130 and out == "1500 lines: 1500 accepted, 0 duplicates, 0 refused, 0 bad\n", (out, err)
    assert "interrupted at line 1501; send the same again" in err


def test_a_server_that_goes_away_stops_the_lines_and_says_where(pg):
    with subprocess.Popen([binary(), "send", "--lines", "-c", "billing", "--store", pg.url], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        child.stdin.write("".join(json.dumps({"id": f"m{i}", "payload": i}) + "\n" for i in range(100)))
        child.stdin.flush()
        wait_for(lambda: pg.sql("SELECT count(*) FROM semel.inbox") == [("100",)], "all are stored")
        pg.sql("ALTER TABLE semel.record RENAME TO elsewhere")
        out, err = child.communicate(json.dumps({"id": "m100", "payload": 1}) + "\n", timeout=60)
    assert child.returncode == 5 and "stopped at line 101" in err, err
    assert out.startswith("100 lines: 100 accepted"), out


def test_lines_are_written_once(pg):
    later = {"not_before": "2031-01-01T00:00:00Z"}
    lines = "".join(json.dumps({"id": f"m{i}", "payload": i, **(later if i % 2 else {})}) + "\n" for i in range(2500))
    assert pg.semel("send", "--lines", "-c", "billing", stdin=lines).code == 0
    def written():
        return pg.sql("SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = 'record'")
    wait_for(lambda: written()[0][0] == "2500", "the server has counted them")
    assert written() == [("2500", "0", "0")]
    assert pg.sql("SELECT status, attempts, lease_token IS NULL, due_at <= now(), count(*) FROM semel.inbox "
                  "GROUP BY 1, 2, 3, 4 ORDER BY 4") == [("waiting", "0", "t", "f", "1250"),
                                                        ("waiting", "0", "t", "t", "1250")]


def test_the_progress_of_many_lines_is_on_the_terminal(pg, tmp_path):
    file = tmp_path / "lines"
    file.write_text("".join(json.dumps({"id": f"m{i}", "payload": i}) + "\n" for i in range(20000)))
    ours, theirs = os.openpty()
    command = [binary(), "send", "--lines", "-c", "b", "--store", pg.url]
    with open(file) as stdin, subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=theirs,
                                               text=True) as child:
        os.close(theirs)
        out, _ = child.communicate(timeout=120)
    assert out.startswith("20000 lines: 20000 accepted"), out
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    assert re.search(r"\r\d+ lines, \d+/s, \d+%, \d+s left", seen), seen
    assert re.search(r"\r20000 lines in \d+\.\ds, \d+/s", seen), seen
    again = subprocess.run(command + ["--progress"], stdin=open(file), capture_output=True, text=True, timeout=120)
    assert re.search(r"^20000 lines in \d+\.\ds, \d+/s$", again.stderr, re.MULTILINE), again



def test_status_shows_consumers_the_server_and_what_needs_a_person(pg):
    pg.semel("send", "-c", "billing", "--id", "m1", "x")
    pg.sql("UPDATE semel.inbox SET status = 'dead', due_at = NULL, error_class = 'permanent', error_text = 'no'")
    told = pg.semel("status")
    assert told.code == 0 and "PostgreSQL" in told.out and f"schema {NEWEST}" in told.out, told
    assert "warning: 1 dead letter;" in told.out
    data = pg.semel("status", "--json").json
    assert data["schema"] == NEWEST and data["dead"] == 1 and data["consumers"][0]["consumer"] == "billing"
    assert data["postgres"].startswith("PostgreSQL")


# A7 P79
def test_status_tells_of_sequences_that_began_anew(pg):
    for id_ in ("m1", "m2"):
        pg.semel("send", "-c", "billing", "--id", id_, "x")
    told = "without its sequences"
    assert told not in pg.semel("status").out and told not in pg.semel("status", "--json").json["postgres"]
    pg.sql("ALTER SEQUENCE semel.arrival RESTART")  # as a dump of the data alone leaves it
    assert pg.semel("send", "-c", "billing", "--id", "m3", "x").code == 0
    assert pg.sql("SELECT message_id FROM semel.inbox ORDER BY arrival") == [("m1",), ("m2",), ("m3",)]
    assert pg.sql("SELECT count(*) - count(DISTINCT arrival) FROM semel.inbox") == [("0",)]
    assert f"{told} (arrival" in pg.semel("status").out
    assert f"{told} (arrival" in pg.semel("status", "--json").json["postgres"]
    pg.sql("UPDATE semel.restart SET noticed_at = noticed_at - interval '1 year'")  # it is told for a while only
    assert told not in pg.semel("status").out


def test_settings_of_consumers_are_kept_and_refused_alike(pg):
    assert pg.semel("consumer", "set", "billing", '{"retry_max": 3}').code == 0
    assert json.loads(pg.sql("SELECT settings FROM semel.consumer")[0][0]) == {"retry_max": 3}
    assert '"retry_max"' in pg.semel("consumer", "show", "billing", "--json").out
    refused = pg.semel("consumer", "set", "billing", '{"retry_max": 0}')
    assert refused.code != 0 and "retry_max" in refused.err


# I16, P43
def test_dead_letters_are_listed_grouped_and_retried_with_a_reason(pg):
    for i in range(3):
        pg.semel("send", "-c", "billing", "--id", f"m{i}", "x")
    pg.sql("UPDATE semel.inbox SET status = 'dead', due_at = NULL, attempts = 1, error_class = 'permanent',"
           " error_text = 'no account'")
    listed = pg.semel("inbox", "ls", "--dead", "--json")
    assert listed.code == 0 and listed.out.count('"m') == 3, listed
    one = pg.semel("inbox", "retry", "-c", "billing", "m1", "--reason", "ticket 7")
    assert one.code == 0, one
    assert pg.sql("SELECT status, retries FROM semel.inbox WHERE message_id = 'm1'") == [("failed", "1")]
    assert pg.sql("SELECT what, reason FROM semel.audit") == [("retry", "ticket 7")]
    rest = pg.semel("inbox", "discard", "--dead", "--reason", "ticket 8", "--yes")
    assert rest.code == 0, rest
    assert pg.sql("SELECT count(*) FROM semel.inbox WHERE status = 'rejected'") == [("2",)]
    assert pg.sql("SELECT count(*) FROM semel.selected WHERE result = 'done'") == [("2",)]


# I10, A6 P78
def test_show_and_discard_name_those_who_wait_for_a_business_key(pg):
    pg.sql("SELECT semel.inbox_fail('billing', 'pay-1', payload => '{}', business_key => 'inv-1', "
           "class => 'permanent', reason => 'no')")
    for i in range(2, 14):
        pg.sql(f"SELECT semel.inbox_put('billing', 'pay-{i}', payload => '{{}}', business_key => 'inv-1', "
               f"source => '{'eu' if i == 3 else ''}')")
    named = "pay-2, pay-3 (source eu), pay-4, pay-5, pay-6, pay-7, pay-8, pay-9, pay-10, pay-11 and 2 more"
    assert f"waiters       {named}\n" in pg.semel("inbox", "show", "pay-1").out
    holder = pg.semel("inbox", "show", "pay-1", "--json").json
    assert holder["business_keys"] == ["inv-1"] and holder["waiters_count"] == 12 and len(holder["waiters"]) == 10
    assert holder["waiters"][1] == {"id": "pay-3", "source": "eu", "business_key": "inv-1", "status": "waiting"}
    shown = pg.semel("inbox", "show", "pay-2")
    assert "It is not running because pay-1, which is dead, has its business key inv-1." in shown.out, shown
    waiter = pg.semel("inbox", "show", "pay-2", "--json").json
    assert waiter["wanted_keys"] == ["inv-1"] and waiter["waiters_count"] == 11
    assert waiter["holders"] == [{"id": "pay-1", "source": "", "business_key": "inv-1", "status": "dead"}]
    done = pg.semel("inbox", "discard", "pay-1", "-r", "test data")
    assert f"never run; due then, because they wait for its business key: {named}\n" in done.out, done
    assert pg.sql("SELECT count(*) FROM semel.inbox WHERE status = 'waiting' AND due_at <= now()") == [("12",)]
    assert "holders" in pg.semel("inbox", "show", "pay-2", "--json").out


def counted(pg, wanted):  # noqa: F811
    """How many transactions there are meanwhile, and rows that are found by their keys: no autovacuum adds to these.
    Those of a session are counted when it has ended."""
    count = ("SELECT d.xact_commit, i.idx_tup_fetch FROM pg_stat_database AS d, pg_stat_user_indexes AS i"
             " WHERE d.datname = current_database() AND i.indexrelid = 'semel.record_pkey'::regclass")
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    before = pg.sql(count)[0]
    wanted()
    wait_for(lambda: pg.sql(others) == [("0",)], "the session has ended")
    return [int(after) - int(was) for after, was in zip(pg.sql(count)[0], before)]


def test_small_messages_are_exported_in_long_pages_and_only_while_somebody_reads(pg):  # noqa: F811
    pg.sql("SELECT count(p.act) FROM generate_series(1, 20000) AS i,"
           " LATERAL semel.inbox_put('billing', 'm-' || i, payload => to_jsonb(repeat('x', 600))) AS p")
    exported = []

    def some():
        with subprocess.Popen([binary(), "inbox", "export", "-c", "billing", "--store", pg.url],
                              stdout=subprocess.PIPE) as export:
            export.stdout.readline()
            export.stdout.close()
            assert export.wait() == 0

    def everything():
        exported.extend(pg.semel("inbox", "export", "-c", "billing").out.splitlines())

    transactions, whole = counted(pg, everything)
    assert [json.loads(line)["id"] for line in exported] == [f"m-{i}" for i in range(1, 20001)]
    assert transactions < 100  # 400 pages of 50 would be more
    part = counted(pg, some)[1]
    assert 20000 <= whole and 2 * part < whole, (part, whole)


def test_a_payload_of_any_bytes_is_exported_and_sent_again(pg, tmp_path):  # noqa: F811
    rows = export_comes_back(pg.semel, lambda text: pg.sql(text.replace("inbox", "semel.inbox")), tmp_path)
    assert rows.pop("gone") == ("\\x", '{"semel_tombstone": "true"}')
    assert {id: bytes.fromhex(payload[2:]) for id, (payload, _) in rows.items()} == ODD
