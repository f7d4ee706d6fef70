# SPDX-License-Identifier: MIT
"""What is no store, or none that will do, as the command line and psql say it: what, and what to do about it."""
import contextlib
import os
import socket
import struct
import subprocess
import threading

import pytest

from conftest import run
from pg import SOURCE, Database, Server, empty_pg, pg, pg_server  # noqa: F401 (fixtures)

FIRST = SOURCE / "sql" / "postgres" / "001_inbox.sql"
COMMANDS = (["status"], ["migrate"], ["consumer", "ls"], ["inbox", "ls"], ["send", "-c", "b", "--id", "m", "x"])


def all_refuse(url, *said, code=5):
    """Every command says the same, in one line."""
    for args in COMMANDS:
        refused = run(*args, "--store", url)
        assert refused.code == code and refused.out == "" and refused.err.count("\n") == 1, refused
        for text in said:
            assert text in refused.err, (text, refused)


# ---- the URL -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("url, said", [
    ("postgres://postgres@no-such-host.invalid/shop?sslmode=verify-full", "is the server up, and the URL right?"),
    ("postgres://postgres@127.0.0.1:1/shop", "port 1 failed: Connection refused; is the server up"),
    ("postgres://postgres@127.0.0.1:99999/shop", 'invalid port number: "99999"'),
    ("postgres://postgres@127.0.0.1:port/shop", "port must be a number"),
    ("postgres:///shop?host=/nowhere", "is the server up"),
    ("postgres://postgres@127.0.0.1:1/shop?sslmode=maybe", 'invalid sslmode value: "maybe"'),
    ("postgres://postgres@127.0.0.1:1/shop?color=red", "parameter 1 behind the ? is none that libpq knows"),
    ("postgres://postgres@127.0.0.1:1/shop?sslmode=disable&color=red", "parameter 2 behind the ? is none"),
    ("postgres://postgres@127.0.0.1:1/shop?sslmode", "must be NAME=VALUE"),
    ("postgres://postgres@127.0.0.1:1/shop?options=-cwork_mem=1MB", "a = in its value %3D"),
    ("postgres://[::1/shop", "it must look like postgres://user@host:5432/database"),
    ("postgres:color=red", "it must look like postgres://user@host:5432/database"),
])
def test_wrong_url_is_told_in_one_line_with_what_would_be_right(url, said):
    all_refuse(url, said, url)


@pytest.mark.parametrize("password", ["s3?cret", "s3@cret", "s3/cret", "s3/c?r=et", "s3&cret", "s3:cret", "s3#cret"])
def test_password_that_is_not_escaped_is_not_printed_either(password):
    for url in (f"postgres://me:{password}@127.0.0.1:1/shop", f"postgres://me:{password}@127.0.0.1:1/shop?color=red"):
        for args in COMMANDS:
            refused = run(*args, "--store", url)
            assert refused.code == 5 and "cret" not in refused.err and "s3" not in refused.err, refused


def test_two_at_signs_are_one_too_many():
    all_refuse("postgres://me:a@b@127.0.0.1:1/shop", "more than one @", "an @ in a password is %40")
    all_refuse("postgres://me:a/b@127.0.0.1:1/shop", "an @ behind a /", "a / in a password is %2F")


def test_missing_database_and_role_are_named_with_what_to_do(pg_server):
    all_refuse(pg_server.url("nowhere"), 'database "nowhere" does not exist', "create the database, or name another")
    all_refuse(pg_server.url("postgres", "stranger"), 'role "stranger" does not exist', "create the role, name another")


def test_wrong_and_missing_passwords_are_told_apart():
    server = Server()
    try:
        server.psql("postgres", "CREATE ROLE guarded LOGIN PASSWORD 'right'; CREATE DATABASE shop OWNER guarded")
        hba = server.data / "pg_hba.conf"
        hba.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        server.psql("postgres", "SELECT pg_reload_conf()")
        url = server.url("shop", "guarded")
        clean = {"PGPASSFILE": "/nonexistent", "PGPASSWORD": ""}
        missing = run("status", "--store", url, env=clean)
        assert missing.code == 5 and "give one: in PGPASSWORD, ~/.pgpass or the URL" in missing.err, missing
        wrong = run("status", "--store", url.replace("guarded@", "guarded:wr0ng@"), env=clean)
        assert wrong.code == 5 and "password authentication failed" in wrong.err, wrong
        assert "give the right password" in wrong.err and "wr0ng" not in wrong.err, wrong
        assert run("migrate", "--store", url, env={**clean, "PGPASSWORD": "right"}).code == 0
    finally:
        server.done()


def test_role_without_rights_is_told_where_they_come_from(pg):
    pg.sql("DROP ROLE IF EXISTS nobody; CREATE ROLE nobody LOGIN")
    all_refuse(pg.server.url(pg.name, "nobody"), "permission denied for schema semel", "sql/postgres/roles.sql")


# ---- the database --------------------------------------------------------------------------------------

def psql_file(database, path):
    return subprocess.run(
        ["psql", "-Xq1", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(database.server.port), "-U", "postgres",
         "-d", database.name, "-f", str(path)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_database_in_another_encoding_is_refused_before_anything_is_made(pg_server, encoding):
    other = Database(pg_server, "other")
    pg_server.psql("postgres", f"DROP DATABASE other; CREATE DATABASE other ENCODING '{encoding}' LOCALE 'C' "
                               "TEMPLATE template0;")
    all_refuse(other.url, f"server_encoding is {encoding}", "ENCODING 'UTF8'")
    by_psql = psql_file(other, FIRST)
    assert by_psql.returncode == 3 and f"the database is in {encoding}; Semel needs one in UTF8" in by_psql.stderr
    assert "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0" in by_psql.stderr
    # as a migration tool may run it: statement by statement
    pg_server.psql("other", FIRST.read_text(), check=False)
    assert other.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'semel'") == [("0",)]


def test_read_only_database_and_role_are_told_what_to_set(pg):
    pg.sql("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN SUPERUSER; "
           "ALTER ROLE reader SET default_transaction_read_only = on")
    all_refuse(pg.server.url(pg.name, "reader"), "read-only", "set default_transaction_read_only to off")
    pg.sql(f"ALTER DATABASE {pg.name} SET default_transaction_read_only = on")
    all_refuse(pg.url, "read-only", "set default_transaction_read_only to off")


def test_standby_is_refused_and_the_primary_is_found_among_all_hosts():
    primary, standby = Server(), None
    try:
        primary.psql("postgres", "CREATE DATABASE shop")
        assert run("migrate", "--store", primary.url("shop")).code == 0
        standby = primary.standby()
        all_refuse(standby.url("shop"), "in recovery", "connect to the primary", "target_session_attrs=read-write")
        read = standby.psql("shop", "SELECT * FROM semel.inbox_begin('c', 'i')", check=False)
        assert read.returncode != 0 and ("read-only transaction" in read.stderr or "during recovery" in read.stderr)
        hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
        both = f"postgres://postgres@{hosts}/shop?target_session_attrs=read-write"
        assert run("send", "-c", "b", "--id", "m", "x", "--store", both).code == 0
    finally:
        for server in (standby, primary):
            if server is not None:
                server.done()


# ---- the server ----------------------------------------------------------------------------------------

def message(kind, body):
    return kind + struct.pack("!I", len(body) + 4) + body


def old_server(listener, version):
    """Lets everybody in, says what version it is, and answers nothing else."""
    status = b"".join(message(b"S", name + b"\0" + value + b"\0") for name, value in (
        (b"server_version", version.encode()), (b"server_encoding", b"UTF8"), (b"client_encoding", b"UTF8")))
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError, struct.error):
                while struct.unpack("!II", client.recv(8))[1] in (80877103, 80877104):  # SSL or GSSAPI?
                    client.sendall(b"N")
                client.sendall(message(b"R", struct.pack("!I", 0)) + status + message(b"K", bytes(8)) +
                               message(b"Z", b"I"))
                while client.recv(4096):
                    pass


# There is no server as old as that for Debian: a stand-in says the words of its greeting.
@pytest.mark.parametrize("version", ["9.6.24", "12.22"])
def test_server_that_is_too_old_is_refused_with_its_version(version):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=old_server, args=(listener, version), daemon=True).start()
        all_refuse(f"postgres://postgres@127.0.0.1:{listener.getsockname()[1]}/shop",
                   f"the server is PostgreSQL {version}; 13 or newer is needed", "upgrade it")
        listener.shutdown(socket.SHUT_RDWR)


def test_server_that_is_really_too_old_is_refused_by_the_command_and_by_the_first_file(monkeypatch):
    folder = os.environ.get("SEMEL_PG_OLD_BIN")
    if folder is None:
        pytest.skip("no old server: SEMEL_PG_OLD_BIN=FOLDER names the programs of a PostgreSQL before 13")
    monkeypatch.setenv("SEMEL_PG_BIN", folder)
    server = Server()
    try:
        server.psql("postgres", "CREATE DATABASE shop")
        all_refuse(server.url("shop"), "13 or newer is needed")
        refused = server.psql("shop", FIRST.read_text(), check=False)
        assert "Semel needs 13 or newer" in refused.stderr, refused
    finally:
        server.done()


def test_server_that_is_no_postgres_does_not_hold_up_the_command():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def greet():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client, contextlib.suppress(OSError):
                        client.recv(4096)
                        client.sendall(b"220 mail.example.org ESMTP\r\n")
        threading.Thread(target=greet, daemon=True).start()
        refused = run("status", "--store", f"postgres://postgres@127.0.0.1:{listener.getsockname()[1]}/shop")
        assert refused.code == 5 and refused.err.count("\n") == 1 and "is the server up" in refused.err, refused
        listener.shutdown(socket.SHUT_RDWR)


# ---- the schema ----------------------------------------------------------------------------------------

def test_schema_of_somebody_else_is_left_alone(empty_pg):
    empty_pg.sql("CREATE SCHEMA semel; CREATE TABLE semel.inbox (id int); INSERT INTO semel.inbox VALUES (7)")
    refused = empty_pg.semel("migrate")
    assert refused.code == 5 and "already exists" in refused.err, refused
    assert empty_pg.sql("SELECT id FROM semel.inbox") == [("7",)]
    assert empty_pg.sql("SELECT count(*) FROM pg_class AS c WHERE c.relnamespace = 'semel'::regnamespace") == [("1",)]


def test_first_file_run_twice_says_that_it_is_there(pg):
    again = psql_file(pg, FIRST)
    assert again.returncode == 3 and 'schema "semel" already exists' in again.stderr, again


# ---- ids, keys and payloads ----------------------------------------------------------------------------

ODD = ["it's", '"quoted"', "a;b", "'; DROP TABLE semel.inbox; --", "tab\tnew\nline\r", "\x01\x1b[31m\x7f", "x" * 255,
       "é" * 127 + "x", "%s $1 :x ? \\", "$$", " ", "‮", "\u2028"]


@pytest.mark.parametrize("odd", ODD)
def test_odd_id_source_and_consumer_are_stored_shown_and_found(pg, odd):
    sent = pg.semel("send", "-c", odd, "--source", odd, "--id", odd, "{}", "--json")
    assert sent.code == 0 and sent.json["why"] == "new", sent
    assert pg.semel("send", "-c", odd, "--source", odd, "--id", odd, "{}", "--json").json["why"] == "duplicate"
    assert pg.sql("SELECT encode(convert_to(consumer || source || message_id, 'UTF8'), 'hex') FROM semel.inbox") == [
        ((odd * 3).encode().hex(),)]
    listed = pg.semel("inbox", "ls")
    assert listed.code == 0 and not set("\x01\x1b\x7f\r\t‮\u2028") & set(listed.out), listed
    shown = pg.semel("inbox", "show", "-c", odd, "--source", odd, odd, "--json")
    assert shown.code == 0 and shown.json["id"] == odd, shown


@pytest.mark.parametrize("args, said", [
    (["-c", "b", "--id", "x" * 256], "id has 256 bytes; at most 255 are allowed"),
    (["-c", "b", "--id", "é" * 128], "id has 256 bytes; at most 255 are allowed"),
    (["-c", "b", "--id", ""], "id is empty; it must have 1 to 255 bytes"),
    (["-c", "x" * 256, "--id", "m"], "consumer has 256 bytes; at most 255 are allowed"),
    (["-c", "b", "--id", "m", "--source", "x" * 256], "source has 256 bytes; at most 255 are allowed"),
    (["-c", "b", "--id", b"\xff"], "id is not UTF-8 text without NUL"),
    (["-c", b"\xff", "--id", "m"], "consumer is not UTF-8 text without NUL"),
])
def test_id_that_cannot_be_one_is_named(pg, args, said):
    refused = run("send", *(os.fsdecode(word) for word in args), "x", "--store", pg.url)
    assert refused.code == 2 and said in refused.err, refused
    assert pg.sql("SELECT count(*) FROM semel.inbox") == [("0",)]


@pytest.mark.parametrize("line, said", [
    (b'{"id": "a\\u0000b", "payload": 1}', "NUL"),
    (b'{"id": "a\xff", "payload": 1}', "line 1"),
    (b'{"id": 7, "payload": 1}', "line 1"),
    (b"\xff\xfe", "line 1"),
    (b"[]", "line 1"),
])
def test_line_that_is_no_message_is_named_by_its_number(pg, tmp_path, line, said):
    lines = tmp_path / "lines"
    lines.write_bytes(line + b'\n{"id": "good", "payload": {}}\n')
    with open(lines, encoding="utf-8", errors="surrogateescape") as text:
        refused = subprocess.run([os.environ["SEMEL_BIN"], "send", "-c", "b", "--lines", "--store", pg.url],
                                 stdin=text, capture_output=True, check=False)
    assert refused.returncode == 1 and said in refused.stderr.decode(errors="replace"), refused
    assert pg.sql("SELECT message_id FROM semel.inbox") == [("good",)]
