# SPDX-License-Identifier: MIT
"""Stores as a user meets them: migrating, what is no store, status, and the settings of consumers."""
import json
import os
import shlex
import sqlite3
import subprocess

import pytest

from conftest import Store, binary, run
from inbox_rows import ulid_rows

NEWEST = 6


@pytest.fixture
def nowhere(tmp_path):
    """A store whose file does not exist."""
    return Store(tmp_path / "shop.db")


def schema(path):
    """Every table and index of Semel's, and which migrations are recorded."""
    with sqlite3.connect(path) as db:
        made = db.execute("SELECT type, name, sql FROM sqlite_master WHERE name LIKE 'semel%' ORDER BY name").fetchall()
        return made, db.execute("SELECT version, name FROM semel_schema ORDER BY version").fetchall()


def pasted(command):
    """Runs a command that the program has suggested, which must be this very program."""
    words = shlex.split(command)
    assert words[0] == binary()
    return run(*words[1:])


def files(path):
    return sorted(child.name for child in path.parent.iterdir())


# ---- migrate ----


def test_migrate_makes_the_database_and_says_from_where_to_where(nowhere):
    first = nowhere.semel("migrate")
    assert (first.code, first.out, first.err) == (0, f"schema 0 -> {NEWEST}\n", "")
    again = nowhere.semel("migrate")
    assert (again.code, again.out) == (0, f"schema {NEWEST}: nothing to do\n")
    assert nowhere.semel("migrate", "--json").json == {"from": NEWEST, "to": NEWEST}


def test_only_the_owner_may_read_a_database_and_what_goes_with_it(nowhere):
    # B9
    before = os.umask(0)
    try:
        assert nowhere.semel("migrate").code == 0
        with sqlite3.connect(nowhere.path) as db:  # the mode of the database is that of its companions
            db.execute("CREATE TABLE more (n)")
            names = files(nowhere.path)
            assert {name[len(nowhere.path.name):] for name in names} >= {"", "-wal", "-shm"}
            assert all((nowhere.path.parent / name).stat().st_mode & 0o777 == 0o600 for name in names)
    finally:
        os.umask(before)


def test_migrate_says_the_same_as_json(nowhere):
    assert nowhere.semel("migrate", "--json").json == {"from": 0, "to": NEWEST}


def test_printed_migrations_make_the_same_schema_in_any_tool(store, nowhere):
    printed = run("migrate", "--print")
    assert printed.code == 0 and printed.err == ""
    with sqlite3.connect(nowhere.path, isolation_level=None) as db:
        db.executescript("BEGIN;\n" + printed.out + "\nCOMMIT;")
    assert schema(nowhere.path) == schema(store.path)
    assert nowhere.semel("migrate").out == f"schema {NEWEST}: nothing to do\n"
    assert nowhere.semel("send", "-c", "billing", "--id", "m1", "x").code == 0


def test_an_older_schema_is_named_and_brought_up_to_date(store, nowhere):
    everything = run("migrate", "--print").out
    later = run("migrate", "--print", "--from", 1).out
    assert everything.endswith(later) and later.count("INSERT INTO semel_schema") == NEWEST - 1
    with sqlite3.connect(nowhere.path) as db:
        db.executescript(everything[: -len(later)])
    refused = nowhere.semel("status")
    assert refused.code == 5 and "schema version 1" in refused.err
    assert refused.err.startswith(f"semel: {nowhere.url}: ")
    assert pasted(refused.err.split("migrate it first: ")[1]).out == f"schema 1 -> {NEWEST}\n"
    assert schema(nowhere.path) == schema(store.path)


# A11 P82
def test_ulids_that_are_in_use_stay_so_after_a_migration(nowhere):
    printed = run("migrate", "--print").out
    later = run("migrate", "--print", "--from", 4).out
    with sqlite3.connect(nowhere.path) as db:
        db.executescript(printed[: -len(later)])
        db.execute("INSERT INTO semel_consumer VALUES ('old', '{\"retry_max\":3}', 0)")
        db.executemany("INSERT INTO semel_inbox (consumer, source, message_id, status, message_time, received_at, "
                       "updated_at, processed_at) VALUES (?, ?, ?, 'completed', ?, 0, 0, 0)", ulid_rows())
    assert nowhere.semel("migrate").code == 0
    assert nowhere.sql("SELECT consumer, settings FROM semel_consumer ORDER BY 1") == [
        ("mixed", '{"timed_ids":true}'), ("old", '{"timed_ids":true,"retry_max":3}')]
    assert nowhere.semel("consumer", "show", "old", "--json").json["settings"]["timed_ids"] is True


# A6 A9 P78
def test_business_keys_of_what_never_started_become_wishes_by_a_migration(nowhere):
    printed, later = (run("migrate", "--print", "--from", n).out for n in (0, 4))
    rows = [(status, attempts) for status in ("waiting", "quarantined", "dead", "failed") for attempts in (0, 1)]
    rows += [("completed", 1), ("unknown", 1), ("rejected", 0), ("prevented", 0)]
    with sqlite3.connect(nowhere.path) as db:
        db.executescript(printed[: -len(later)])
        for status, attempts in rows:
            id_ = f"{status}-{attempts}"
            db.execute("INSERT INTO semel_inbox (consumer, source, message_id, status, attempts, received_at, "
                       "updated_at, processed_at) VALUES ('c', 's', ?, ?, ?, 0, 0, 0)", (id_, status, attempts))
            db.execute("INSERT INTO semel_business_key (consumer, business_key, source, message_id, taken_at, "
                       "expires_at) VALUES ('c', ?, 's', ?, 0, 9)", (f"key of {id_}", id_))
        db.execute("INSERT INTO semel_business_key (consumer, business_key, source, message_id, taken_at, "
                   "expires_at) VALUES ('c', 'purged', 's', 'gone', 0, 9)")
    assert nowhere.semel("migrate").code == 0
    wants = ["dead-0", "failed-0", "quarantined-0", "waiting-0"]
    assert nowhere.sql("SELECT consumer, business_key, source, message_id FROM semel_business_want ORDER BY 4") == [
        ("c", f"key of {id_}", "s", id_) for id_ in wants]
    # The others keep theirs, and those that are unfinished for as long as they are.
    kept = dict(nowhere.sql("SELECT message_id, expires_at FROM semel_business_key"))
    ids = {f"{status}-{attempts}" for status, attempts in rows}
    assert kept.keys() == ids - set(wants) | {"gone"}
    assert {id_ for id_, expires in kept.items() if expires is None} == {
        "waiting-1", "dead-1", "failed-1", "unknown-1"}


@pytest.mark.parametrize("args, said", [
    (["--print", "--from", NEWEST + 1], f"it must be a whole number from 0 to {NEWEST}"),
    (["--print", "--from", "x"], "it must be a whole number"),
    (["--print", "--store-kind", "oracle"], "it must be sqlite"),
    (["--print", "--json"], "--print prints SQL, not JSON"),
    (["--from", 1, "--store", "sqlite:x"], "go with --print"),
])
def test_migrate_refuses_what_does_not_fit_together(args, said):
    result = run("migrate", *args)
    assert result.code == 2 and said in result.err and result.out == ""


def test_nothing_is_left_to_print_after_the_last_migration():
    assert run("migrate", "--print", "--from", NEWEST, "--store-kind", "sqlite").out == ""


# ---- what is no store ----


def test_a_foreign_database_gets_the_tables_besides_its_own(nowhere):
    nowhere.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, cents INTEGER)")
    nowhere.sql("INSERT INTO orders VALUES (1, 4200)")
    before = nowhere.path.read_bytes()
    for args in (["status"], ["consumer", "ls"], ["inbox", "ls"], ["send", "-c", "b", "--id", "m", "x"]):
        refused = nowhere.semel(*args)
        assert refused.code == 5, refused
        said, command = refused.err.split("; to make them: ")
        assert said == f"semel: {nowhere.url}: no Semel tables here"
    assert nowhere.path.read_bytes() == before
    assert pasted(command).code == 0
    assert nowhere.semel("status").code == 0
    assert nowhere.sql("SELECT * FROM orders") == [(1, 4200)]


def test_a_missing_database_is_not_made_by_looking_at_it(nowhere):
    for args in (["status"], ["consumer", "ls"], ["consumer", "set", "b", "{}"], ["inbox", "ls"],
                 ["send", "-c", "b", "--id", "m", "x"]):
        refused = nowhere.semel(*args)
        assert refused.code == 5 and "there is no database" in refused.err, refused
    assert files(nowhere.path) == []
    assert pasted(refused.err.split("; to make one: ")[1]).code == 0
    assert nowhere.semel("status").code == 0


def test_a_command_that_is_suggested_can_be_pasted(tmp_path):
    odd = Store(tmp_path / "it's; a $(shop) of ours.db")
    refused = odd.semel("status")
    assert refused.code == 5 and refused.err.count("\n") == 1, refused
    command = refused.err.split("; to make one: ")[1]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and odd.path.exists(), done
    # What the environment says need not be repeated.
    bare = run("status", env={"SEMEL_STORE": f"sqlite:{tmp_path}/none.db"})
    assert bare.err.endswith("; to make one: " + shlex.quote(binary()) + " migrate\n"), bare
    assert pasted(odd.semel("status", "-c", "nobody").err.split("for all of them: ")[1]).code == 0


@pytest.mark.parametrize("content", [b"this is no database\n" * 100, b"SQLite format 3\0" + b"\xff" * 4080],
                         ids=["text", "header"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(nowhere, content):
    nowhere.path.write_bytes(content)
    for args in (["migrate"], ["status"], ["send", "-c", "b", "--id", "m", "x"]):
        refused = nowhere.semel(*args)
        assert refused.code == 5 and refused.err.startswith(f"semel: {nowhere.url}: "), refused
    assert nowhere.path.read_bytes() == content


def test_newer_tables_are_refused_and_left_alone(store):
    store.sql("INSERT INTO semel_schema VALUES (999, 'from_the_future', 1)")
    before = schema(store.path)
    for args in (["migrate"], ["status"], ["consumer", "ls"], ["send", "-c", "b", "--id", "m", "x"]):
        refused = store.semel(*args)
        assert refused.code == 5 and "schema version 999" in refused.err and "newer program" in refused.err, refused
        assert "semel migrate" not in refused.err
    assert schema(store.path) == before and store.sql("SELECT count(*) FROM semel_inbox") == [(0,)]


def test_a_directory_and_a_path_through_a_file_are_refused(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for path, said in ((tmp_path, "not a regular file"), (tmp_path / "file" / "shop.db", "Not a directory"),
                       (tmp_path / "missing" / "shop.db", "its folder is missing"), ("/" + "x" * 300, "too long")):
        refused = run("migrate", "--store", f"sqlite:{path}")
        assert refused.code == 5 and refused.err.count("\n") == 1 and said in refused.err, refused


@pytest.mark.parametrize("url, said", [
    (None, "no store is given"),
    ("", "no store is given"),
    ("shop.db", "--store is 'shop.db'; a store looks like sqlite:FILE"),
    ("oracle:shop", "--store is 'oracle:shop'; a store looks like sqlite:FILE"),
    ("sqlite:", "--store is 'sqlite:'; a store looks like sqlite:FILE"),
])
def test_a_store_must_be_given_as_one(url, said):
    result = run("status", *([] if url is None else ["--store", url]))
    assert result.code == 2 and said in result.err
    if url == "":
        assert run("status", env={"SEMEL_STORE": "shop.db"}).err.startswith("semel: SEMEL_STORE is 'shop.db'")


def test_the_environment_may_name_the_store_and_the_option_wins(store, nowhere):
    assert run("status", env={"SEMEL_STORE": store.url}).code == 0
    assert run("status", "--store", nowhere.url, env={"SEMEL_STORE": store.url}).code == 5


def test_a_relative_path_is_one_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("migrate", "--store", "sqlite:here.db").code == 0
    assert (tmp_path / "here.db").exists()


# ---- status ----


def test_status_of_an_empty_store_says_so(store):
    result = store.semel("status")
    assert result.code == 0
    assert f"schema {NEWEST}" in result.out and "SQLite 3." in result.out
    assert "outbox  0 events" in result.out and "there are no consumers yet" in result.out


def test_status_counts_by_consumer_and_state(store):
    for i in range(3):
        store.semel("send", "-c", "billing", "--id", f"m{i}", "x")
    store.semel("send", "-c", "mailer", "--id", "m0", "x")
    store.semel("consumer", "set", "mailer", '{"effect": "keyed"}')
    store.semel("consumer", "set", "idle", "{}")
    store.sql("UPDATE semel_inbox SET status = 'completed', processed_at = updated_at, due_at = NULL "
              "WHERE message_id = 'm2'")
    store.sql("INSERT INTO semel_outbox (id, aggregatetype, aggregateid, type, payload, created_at) "
              "VALUES ('6a1c1f6e-0000-7000-8000-000000000001', 'order', '1', 'placed', x'00', 1)")
    told = store.semel("status", "--json").json
    assert told["schema"] == NEWEST and told["dead"] == told["unknown"] == told["damaged"] == 0
    outbox = {"events": 1, "at_least": False, "oldest": "1970-01-01T00:00:00.000001Z", "dead": 0, "failed": 0}
    assert told["outbox"].items() >= outbox.items()
    assert "outbox  1 event, the oldest " in store.semel("status").out
    assert [(c["consumer"], c["guarantee"]) for c in told["consumers"]] == [
        ("billing", "ATOMIC for 45 days"), ("idle", "ATOMIC for 45 days"), ("mailer", "GUARDED for 45 days")]
    states = {c["consumer"]: {s["status"]: s for s in c["statuses"]} for c in told["consumers"]}
    assert {name: {state: s["messages"] for state, s in of.items()} for name, of in states.items()} == {
        "billing": {"waiting": 2, "completed": 1}, "idle": {}, "mailer": {"waiting": 1}}
    assert states["billing"]["waiting"]["oldest"] is not None and states["billing"]["waiting"]["next"] is not None
    lines = [line.split() for line in store.semel("status").out.splitlines()]
    assert ["billing", "ATOMIC", "for", "45", "days", "waiting", "2"] in [line[:7] for line in lines]
    assert ["idle", "ATOMIC", "for", "45", "days", "0"] in lines
    assert "warning" not in store.semel("status").out


def test_status_shows_one_consumer_or_says_that_there_is_none(store):
    for name in ("billing", "mailer"):
        store.semel("send", "-c", name, "--id", "m0", "x")
    assert [c["consumer"] for c in store.semel("status", "-c", "mailer", "--json").json["consumers"]] == ["mailer"]
    result = store.semel("status", "--consumer", "nobody")
    assert result.code == 3 and "consumer 'nobody' has no messages" in result.err and result.out == ""


# I16
def test_status_warns_of_what_needs_a_person_with_a_command_that_works(store):
    for i in range(4):
        store.semel("send", "-c", "billing", "--id", f"m{i}", "x")
    store.sql("UPDATE semel_inbox SET status = 'dead', due_at = NULL, error_class = 'permanent', attempts = 1 "
              "WHERE message_id IN ('m0', 'm1')")
    store.sql("UPDATE semel_inbox SET status = 'unknown', due_at = NULL, error_class = 'unknown', attempts = 1 "
              "WHERE message_id = 'm2'")
    store.sql("UPDATE semel_inbox SET fingerprint = x'7a00' WHERE message_id = 'm3'")
    told = store.semel("status", "--json").json
    assert (told["dead"], told["unknown"], told["damaged"]) == (2, 1, 1)
    warnings = [line for line in store.semel("status").out.splitlines() if line.startswith("warning: ")]
    assert [line.split()[1] for line in warnings] == ["2", "1", "1"]
    assert told["warnings"] == [line[len("warning: "):].rsplit("; ", 1)[0] for line in warnings]
    assert store.semel("status", "--check").code == store.semel("status", "--check", "--json").code == 1
    for warning in warnings:
        shown = pasted(warning.split("; ")[1])
        assert shown.code == 0, (warning, shown)


# ---- consumers ----


def test_settings_are_stored_shown_and_listed(store):
    put = store.semel("consumer", "set", "billing", '{"retry_max": 3, "effect": "keyed"}')
    assert put.code == 0 and put.out.startswith("billing: GUARDED for 45 days, "), put
    shown = store.semel("consumer", "show", "billing")
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["billing:", "GUARDED", "for", "45", "days"]
    assert ["retry_max", "3", "8"] in [line[:3] for line in lines]
    assert ["effect", "keyed", "atomic"] in [line[:3] for line in lines]
    assert ["one_source", "false", "false"] in [line[:3] for line in lines]
    told = store.semel("consumer", "show", "billing", "--json").json
    assert told["guarantee"] == "GUARDED for 45 days" and told["settings"]["retry_max"] == 3
    assert len(told["settings"]) == len(lines) - 2
    assert store.semel("consumer", "ls", "--json").json == [
        {"consumer": "billing", "guarantee": "GUARDED for 45 days", "settings": {"effect": "keyed", "retry_max": 3}}]


def test_what_is_shown_can_be_set_again(store):
    store.semel("consumer", "set", "billing", '{"retry_max": 3, "retention": "90d", "one_source": true}')
    told = store.semel("consumer", "show", "billing", "--json").out
    first = store.semel("consumer", "show", "billing", "--json").json["settings"]
    assert '"one_source":true' in told
    again = store.semel("consumer", "set", "copy", "-", stdin=json.dumps(first))
    assert again.code == 0, again
    assert store.semel("consumer", "show", "copy", "--json").json["settings"] == first


# A3 I24 P75
def test_settings_may_come_from_a_file_and_change_what_they_say(store, tmp_path):
    (tmp_path / "settings.json").write_text('{"lease": "5m"}', encoding="utf-8")
    store.semel("consumer", "set", "billing", '{"retry_max": 3}')
    told = store.semel("consumer", "set", "billing", f"@{tmp_path}/settings.json", "--json").json
    assert told["settings"]["lease"] == "5m"
    assert store.semel("consumer", "show", "billing", "--json").json["settings"]["retry_max"] == 3
    assert store.semel("consumer", "set", "billing", "@/nonexistent").code == 1
    (tmp_path / "settings.json").write_text('{\n\t"lease": "6m", "retry_max": null\n}\n', encoding="utf-8")
    put = store.semel("consumer", "set", "billing", f"@{tmp_path}/settings.json")
    assert put.out == 'billing: ATOMIC for 45 days, {"retry_max": null, "lease": "6m"}\n'
    assert store.semel("consumer", "ls").out.splitlines()[1].endswith('{"lease":"6m"}')
    assert store.semel("consumer", "set", "billing", "{}").out == "billing: ATOMIC for 45 days, nothing changed\n"


# A3 I24 P75
def test_what_stored_messages_speak_against_is_refused_unless_it_is_forced(store):
    store.semel("consumer", "set", "orders", '{"order": "arrival", "effect": "outside"}')
    for name in ("a", "b", "c"):
        store.semel("send", "-c", "orders", "--id", name, "--order-key", "k", "x")
    assert store.semel("consumer", "set", "orders", '{"retry_max": 20}').code == 0  # and the order is not forgotten
    for change in ('{"order": "none"}', '{"order": null}'):
        put = store.semel("consumer", "set", "orders", change)
        assert put.code == 4 and "order cannot go from arrival to none" in put.err and ": 3;" in put.err, put
        assert "--force --reason" in put.err and str(store.path) in put.err, put
    assert store.semel("consumer", "show", "orders", "--json").json["settings"]["order"] == "arrival"
    put = store.semel("consumer", "set", "orders", '{"order": "none"}', "--force")
    assert put.code == 4 and "--reason" in put.err
    put = store.semel("consumer", "set", "orders", '{"order": "none"}', "--force", "--reason", "ticket 811")
    assert put.code == 0 and put.out == 'orders: GUARDED for 45 days, {"order": "none"}\n', put
    with sqlite3.connect(store.path) as db:
        lines = db.execute("SELECT what, reason FROM semel_audit WHERE consumer = 'orders' ORDER BY id").fetchall()
    assert lines == [('set {"effect": "outside", "order": "arrival"}', ""), ('set {"retry_max": 20}', ""),
                     ('set {"order": "none"}, forced past 3', "ticket 811")]


# A11 I24 P82
def test_ids_keep_their_time_where_records_were_purged_unless_it_is_forced(store):
    put = store.semel("consumer", "set", "orders", '{"timed_ids": true}')
    assert put.code == 0 and put.out == 'orders: ATOMIC, {"timed_ids": true}\n', put
    store.sql("INSERT INTO semel_watermark (consumer, source, watermark, updated_at) VALUES ('orders', 's', 1, 1)")
    put = store.semel("consumer", "set", "orders", '{"timed_ids": null}')
    assert put.code == 4 and "timed_ids cannot go from true to uuidv7" in put.err and ": 1;" in put.err, put
    put = store.semel("consumer", "set", "orders", '{"timed_ids": null}', "--force", "--reason", "ticket 811")
    shown = store.semel("consumer", "show", "orders", "--json").json
    assert put.code == 0 and shown["settings"]["timed_ids"] == "uuidv7"
    put = store.semel("consumer", "set", "orders", '{"timed_ids": "yes"}')
    assert put.code == 2 and "it must be one of uuidv7|false|true|ulid" in put.err, put


# A3 P75: "keys exist: first_version any?"
def test_versions_over_keys_that_exist_make_think_of_the_first_version(store):
    store.semel("consumer", "set", "orders", '{"order": "arrival"}')
    store.semel("send", "-c", "orders", "--id", "a", "--order-key", "k", "x")
    put = store.semel("consumer", "set", "orders", '{"order": "version"}')
    assert put.code == 0 and 'note: order keys exist already: is first_version "any" right for them?' in put.out, put
    put = store.semel("consumer", "set", "orders", '{"first_version": "any"}')
    assert put.code == 0 and "note:" not in put.out, put
    put = store.semel("consumer", "set", "orders", '{"first_version": 1}', "--json")
    assert put.json["note"] == 'order keys exist already: is first_version "any" right for them?', put
    assert "note" not in store.semel("consumer", "show", "orders", "--json").json


# A3 I24 P75
def test_what_a_routes_file_sets_is_changed_there(store):
    store.semel("consumer", "set", "orders", "{}")
    store.sql("UPDATE semel_consumer SET set_by_host = 'h1', set_by_file = '/etc/semel.yaml', set_by_at = 1")
    put = store.semel("consumer", "set", "orders", '{"retry_max": 3}')
    assert put.code == 4 and "set by the file /etc/semel.yaml on h1: change it there" in put.err, put
    assert store.semel("consumer", "set", "orders", "{}").code == 0
    assert "set by /etc/semel.yaml on h1, 1970-01-01T" in store.semel("consumer", "show", "orders").out
    assert store.semel("consumer", "show", "orders", "--json").json["set_by_file"] == "/etc/semel.yaml"
    assert store.semel("consumer", "set", "orders", '{"retry_max": 3}', "--force", "--reason", "now").code == 0
    assert "set_by_file" not in store.semel("consumer", "show", "orders", "--json").json


@pytest.mark.parametrize("settings, said", [
    ('{"retry_mx": 3}', "retry_max"),
    ('{"retry_max": 0}', "retry_max"),
    ('{"retry_max": "3"}', "retry_max"),
    ("[]", "object"),
    ("{", "JSON"),
    ("{}" + " " * 5000, "too large"),
])
def test_bad_settings_are_refused_and_change_nothing(store, settings, said):
    store.semel("consumer", "set", "billing", '{"retry_max": 5}')
    refused = store.semel("consumer", "set", "billing", settings)
    assert refused.code == 2 and said in refused.err, refused
    assert store.semel("consumer", "show", "billing", "--json").json["settings"]["retry_max"] == 5


def test_an_unknown_consumer_is_told_to_be_one(store):
    shown = store.semel("consumer", "show", "nobody")
    assert shown.code == 3 and "neither messages nor settings" in shown.err
    assert store.semel("consumer", "show", "").code == 3
    store.semel("send", "-c", "somebody", "--id", "m1", "x")
    assert store.semel("consumer", "show", "somebody").code == 0
    listed = store.semel("consumer", "ls").out.splitlines()[1].split()
    assert listed == ["somebody", "ATOMIC", "for", "45", "days", "{}"]


def test_damaged_settings_are_named_and_do_not_hide_the_others(store):
    store.semel("consumer", "set", "billing", "{}")
    store.semel("consumer", "set", "mailer", "{}")
    store.sql("UPDATE semel_consumer SET settings = 'not json' WHERE consumer = 'billing'")
    told = {row["consumer"]: row for row in store.semel("consumer", "ls", "--json").json}
    assert told["billing"] == {"consumer": "billing", "guarantee": "DAMAGED", "settings": "not json"}
    assert told["mailer"]["guarantee"] == "ATOMIC for 45 days"
    assert store.semel("status").code == 0
    shown = store.semel("consumer", "show", "billing")
    assert shown.code == 5 and "billing" in shown.err
    # It is not the message's fault, nor that of each line.
    for sent in (store.semel("send", "-c", "billing", "--id", "m", "x"),
                 store.semel("send", "-c", "billing", "--lines", stdin='{"id": "m", "payload": 1}\n' * 2)):
        assert sent.code == 5 and sent.out == "" and sent.err.count("\n") == 1 and "settings" in sent.err, sent


def test_there_may_be_more_consumers_than_a_page_holds(store):
    rows = [(f"c{i:04}", 1) for i in range(1203)]
    with sqlite3.connect(store.path) as db:
        db.executemany("INSERT INTO semel_consumer (consumer, settings, updated_at) VALUES (?, '{}', ?)", rows)
    listed = store.semel("consumer", "ls", "--json").json
    assert [row["consumer"] for row in listed] == [name for name, _ in rows]
    assert "only the first 1000 consumers are shown" in store.semel("status").out
