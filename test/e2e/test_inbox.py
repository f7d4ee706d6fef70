# SPDX-License-Identifier: MIT
"""`semel inbox ls|show|retry|discard|resolve` on one message at a time, on real files."""
import json
import os
import re
import sqlite3
import subprocess
import time

import pytest

from conftest import binary, run, run_on_terminal
from inbox_rows import DAY, ODD, SECOND, add, add_many, audits, export_comes_back, now_us, status_of

# ---- ls ------------------------------------------------------------------------------------------------


def ids(result):
    assert result.code == 0, result
    return [row["id"] for row in result.json]


def test_ls_shows_what_matches_its_filters(store):
    # I8, I16
    add(store, "a", "dead", type="Paid", order_key="k1", error_text="bank is down")
    add(store, "b", "failed", type="Refunded", order_key="k2", error_class="permanent", error_text="no such account")
    add(store, "c", "completed", consumer="mail", source="orders")
    add(store, "d", "waiting", received_at=now_us() - 3 * DAY, error_class="blocked", error_text="parked")

    def ls(*args):
        return ids(store.semel("inbox", "ls", "--json", *args))

    assert ls() == ["a", "b", "c", "d"]
    assert ls("--dead") == ["a"]
    assert ls("--status", "failed,waiting") == ["b", "d"]
    assert ls("--status", "failed", "--status", "completed", "--dead") == ["a", "b", "c"]
    assert ls("--consumer", "mail") == ["c"]
    assert ls("--source", "orders") == ["c"]
    assert ls("--source", "") == ["a", "b", "d"]
    assert ls("--type", "Refunded") == ["b"]
    assert ls("--key", "k1") == ["a"]
    assert ls("--error", "bank") == ["a"]
    assert ls("--class", "permanent") == ["b"]
    assert ls("--older", "2d") == ["d"]
    assert ls("--newer", "2d") == ["a", "b", "c"]
    assert ls("--dead", "--consumer", "mail") == []


def test_ls_says_everything_to_programs_and_what_matters_to_people(store):
    add(store, "a", "dead", version=3, order_key="k")
    row = store.semel("inbox", "ls", "--json").json[0]
    assert row["id"] == "a" and row["status"] == "dead" and row["version"] == 3 and row["attempts"] == 8
    assert set(row) == {"arrival", "id", "consumer", "source", "type", "status", "attempts", "order_key", "version",
                        "received_at", "updated_at", "due_at", "error_class", "error_text"}
    table = store.semel("inbox", "ls").out
    assert "bank is down" in table and "SOURCE" not in table and "KEY" in table


def test_ls_tells_the_error_before_relative_times_and_marks_what_it_cut(store):
    text = "the bank is down and nobody knows for how long; call the hotline before you retry anything of this account"
    add(store, "a", "failed", error_text=text, received_at=now_us() - 3 * DAY, due_at=now_us() + 7200 * SECOND)
    head, row = store.semel("inbox", "ls").out.splitlines()[:2]  # nothing is cut where it is no terminal
    assert head.index("ERROR") < head.index("RECEIVED") < head.index("DUE")
    assert re.search(rf"{text} +3 d ago +in (2 h|1\d\d min)$", row), row
    code, seen = run_on_terminal("inbox", "ls", "--store", store.url, columns=100, env={"NO_COLOR": "1"})
    line = next(line for line in seen.decode().splitlines() if line.startswith("a "))
    assert code == 0 and len(line) <= 100, line
    assert re.search(r" the bank is d[^…]*… +3 d ago +in ", line), line


def test_ls_cuts_long_ids_on_a_terminal_too_narrow_for_them_and_leaves_a_uuid_whole(store):
    uuid, long = "0190163d-8694-739b-aea5-966c26f8ad90", "order-" + "x" * 200
    add(store, long, "failed", error_text="the bank is down", source="s" * 90, order_key="k" * 90)
    add(store, uuid, "failed", error_text="the bank is down")
    assert long in store.semel("inbox", "ls").out and long in store.semel("inbox", "ls", "--json").out
    _, seen = run_on_terminal("inbox", "ls", "--store", store.url, columns=220, env={"NO_COLOR": "1"})
    head, cut, whole = seen.decode().splitlines()[:3]
    assert max(map(len, (head, cut, whole))) <= 220 and cut.startswith("order-xxx") and cut.count("\u2026") == 4, seen
    assert whole.startswith(uuid + " "), seen
    _, seen = run_on_terminal("inbox", "ls", "--store", store.url, columns=80, env={"NO_COLOR": "1"})
    assert "order-" + "x" * 33 + "\u2026 " in seen.decode() and uuid + " " in seen.decode(), seen


def test_ls_pages_without_gaps_and_says_how_to_get_the_next_page(store):
    # P44
    add_many(store, 7)
    seen, command = [], ["inbox", "ls", "--dead", "--consumer", "billing", "--limit", "3", "--json"]
    while command:
        result = store.semel(*command)
        seen += ids(result)
        if len(seen) == 3:
            add(store, "late", "completed")
        more = re.search(r"there are more: semel (.*)", result.err)
        command = more[1].replace(f"--store={store.url}", "").split() + ["--json"] if more else None
    assert seen == [f"pay-{i}" for i in range(1, 8)]


def test_ls_groups_by_error(store):
    # I16: grouped by cause
    add_many(store, 3)
    add_many(store, 5, prefix="x-", error_text="no such account")
    groups = store.semel("inbox", "ls", "--group-by", "error", "--dead", "--json").json
    assert [(g["count"], g["error_text"], g["status"], g["example"]) for g in groups] == [
        (5, "no such account", "dead", "x-1"), (3, "bank is down", "dead", "pay-1")]
    assert set(groups[0]) == {"count", "consumer", "status", "error_class", "error_text", "oldest", "newest", "example"}
    assert "no such account" in store.semel("inbox", "ls", "--group-by", "error").out


def test_wrong_filters_are_refused_with_what_would_be_right(store):
    for args, text in ((["--status", "deed"], "processing, completed"), (["--class", "odd"], "transient, permanent"),
                       (["--older", "yesterday"], "duration"), (["--limit", "0"], "1 to 10000"),
                       (["--group-by", "type"], "it must be error"), (["--after", "x"], "whole number")):
        result = store.semel("inbox", "ls", *args)
        assert result.code == 2 and text in result.err, result


def test_a_foreign_database_is_refused(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE customers (name TEXT)")
    for command in (["ls"], ["show", "a"], ["retry", "a", "--reason", "x"],
                    ["retry", "--dead", "--reason", "x", "--yes"]):
        assert run("inbox", *command, "--store", f"sqlite:{path}").code == 5
        assert run("inbox", *command, "--store", f"sqlite:{tmp_path}/missing.db").code == 5
    assert not (tmp_path / "missing.db").exists()


# ---- show ----------------------------------------------------------------------------------------------

def test_show_explains_a_dead_message_and_names_the_command(store):
    # I8
    add(store, "pay-1", headers='{"a":"b"}', traceparent="00-1", position="p:1")
    store.sql("INSERT INTO semel_attempt (consumer, source, message_id, attempt, at, worker, error_class, error_text) "
              "VALUES ('billing', '', 'pay-1', 8, 1700000000000000, 'w-7', 'transient', 'time-out')")
    result = store.semel("inbox", "show", "pay-1")
    assert result.code == 0
    assert "It is dead: attempt 8 of 8 failed (transient: bank is down)" in result.out
    assert "semel inbox retry pay-1 --consumer billing --reason" in result.out
    assert "w-7  transient: time-out" in result.out and '{"cents": 100}' in result.out
    shown = store.semel("inbox", "show", "pay-1", "--json").json
    assert shown["status"] == "dead" and shown["payload"] == '{"cents": 100}' and shown["headers"] == {"a": "b"}
    assert shown["failures"][0]["worker"] == "w-7" and shown["why"].startswith("It is dead")
    assert "semel inbox retry" in shown["next"]


def test_show_names_the_first_of_the_key_that_holds_it_up(store):
    # I8, I13
    store.semel("consumer", "set", "billing", '{"order":"arrival"}')
    add(store, "pay-3", "dead", order_key="order-17")
    add(store, "pay-4", "waiting", order_key="order-17", attempts=0, error_class="blocked")
    add(store, "pay-5", "waiting", order_key="order-17", attempts=0, error_class="blocked")
    result = store.semel("inbox", "show", "pay-5")
    assert "because 2 earlier messages of key order-17 are unfinished; the first is pay-3, which is dead" in result.out
    assert "semel inbox retry pay-3 --consumer billing --reason" in result.out
    assert "2 later messages of key order-17 wait behind it" in store.semel("inbox", "show", "pay-3").out


def test_show_says_which_version_is_missing(store):
    # I12
    store.semel("consumer", "set", "billing", '{"order":"version","on_gap":"apply"}')
    store.sql("INSERT INTO semel_order_key (consumer, order_key, last_version) VALUES ('billing', 'order-9', 3)")
    add(store, "v6", "waiting", order_key="order-9", version=6, attempts=0, error_class="gap",
        due_at=now_us() + 300 * SECOND)
    result = store.semel("inbox", "show", "v6")
    assert "versions 4 to 5 are missing. The last one applied is 3." in result.out
    assert "then it runs without them" in result.out and "--force" in result.out


# I10, A6 P78
def test_show_and_discard_name_those_who_wait_for_a_business_key(store):
    add(store, "pay-1", "dead")
    add(store, "pay-99", "dead")  # has a key that nobody wants
    store.sql("INSERT INTO semel_business_key VALUES ('billing', 'inv-1', '', 'pay-1', 1, NULL)")
    store.sql("INSERT INTO semel_business_key VALUES ('billing', 'inv-2', '', 'pay-99', 1, NULL)")
    for i in range(2, 14):
        add(store, f"pay-{i}", "waiting", attempts=0, source="eu" if i == 3 else "", error_class="business_duplicate",
            due_at=now_us() + 60 * SECOND)
        store.sql("INSERT INTO semel_business_want VALUES ('billing', 'inv-1', ?, ?)", "eu" if i == 3 else "",
                  f"pay-{i}")
    add(store, "late", "quarantined", error_class="too_old")  # wants it too, and waits for nothing
    store.sql("INSERT INTO semel_business_want VALUES ('billing', 'inv-1', '', 'late')")

    named = "pay-2, pay-3 (source eu), pay-4, pay-5, pay-6, pay-7, pay-8, pay-9, pay-10, pay-11 and 2 more"
    assert f"waiters       {named}\n" in store.semel("inbox", "show", "pay-1").out
    holder = store.semel("inbox", "show", "pay-1", "--json").json
    assert holder["business_keys"] == ["inv-1"] and holder["wanted_keys"] == [] and holder["holders"] == []
    assert len(holder["waiters"]) == 10 and holder["waiters_count"] == 12
    assert holder["waiters"][1] == {"id": "pay-3", "source": "eu", "business_key": "inv-1", "status": "waiting"}

    shown = store.semel("inbox", "show", "pay-2")
    assert "wanted key    inv-1\n" in shown.out and "waiters too   pay-3 (source eu), pay-4" in shown.out
    assert "It is not running because pay-1, which is dead, has its business key inv-1." in shown.out
    assert "semel inbox show pay-1 --consumer billing" in shown.out
    waiter = store.semel("inbox", "show", "pay-2", "--json").json
    assert waiter["wanted_keys"] == ["inv-1"] and waiter["waiters_count"] == 11
    assert waiter["holders"] == [{"id": "pay-1", "source": "", "business_key": "inv-1", "status": "dead"}]

    dry = store.semel("inbox", "discard", "pay-1", "--dry-run")
    assert f"never run; due then, because they wait for its business key: {named}\n" in dry.out
    done = store.semel("inbox", "discard", "pay-1", "-r", "test data", "--json")
    assert done.json[0]["text"].endswith(f"never run; due then, because they wait for its business key: {named}")
    assert store.sql("SELECT count(*) FROM semel_inbox WHERE status = 'waiting' AND due_at <= ?", now_us()) == [(12,)]
    assert "due then" not in store.semel("inbox", "discard", "pay-99", "-r", "test data").out
    assert "What came of that one decides" not in store.semel("inbox", "show", "pay-99").out


def test_show_knows_every_status(store):
    words = {"processing": "holds it until", "completed": "It is completed", "failed": "waits for its next attempt",
             "waiting": "none of them is unfinished", "rejected": "handler rejected it",
             "unknown": "may have had its effect", "dead": "It is dead", "stale": "had been applied",
             "prevented": "same business key", "quarantined": "came too late"}
    for status, text in words.items():
        more = {"stale": {"version": 2, "order_key": "k"}, "quarantined": {"error_class": "too_old"},
                "rejected": {"error_class": "rejected", "error_text": "closed"}}.get(status, {})
        add(store, status, status, **more)
        result = store.semel("inbox", "show", status)
        assert result.code == 0 and text in result.out, result


def test_an_ambiguous_id_is_told_apart(store):
    add(store, "a", consumer="billing", source="orders")
    add(store, "a", consumer="mail", source="x y")
    result = store.semel("inbox", "show", "a")
    assert result.code == 2
    assert "--consumer billing --source orders" in result.err and "--consumer mail --source 'x y'" in result.err
    assert store.semel("inbox", "show", "a", "--consumer", "mail").code == 0
    assert store.semel("inbox", "retry", "a", "--reason", "x").code == 2
    assert status_of(store, "a") == "dead"


def test_an_unknown_id_is_told_and_one_that_may_have_been_purged_too(store):
    # I18
    result = store.semel("inbox", "show", "nobody")
    assert result.code == 3 and "there is no message 'nobody'" in result.err
    assert store.semel("inbox", "retry", "nobody", "--reason", "x").code == 3
    add(store, "a", "completed", source="orders")
    store.sql("INSERT INTO semel_watermark VALUES ('billing', 'orders', ?, 0)", now_us())
    old = f"{time.time_ns() // 10**6 - 10**9:012x}"
    result = store.semel("inbox", "show", f"{old[:8]}-{old[8:]}-7000-8000-000000000000")
    assert result.code == 3 and "has been purged" in result.err, result


def test_a_row_that_cannot_be_read_is_said_to_be_damaged(store):
    add(store, "a", attempts_before=50)
    result = store.semel("inbox", "show", "a", "--consumer", "billing")
    assert result.code == 1 and "attempts_before must be 0 to attempts" in result.err, result
    assert store.semel("inbox", "show", "a").code == 1
    assert store.semel("inbox", "retry", "a", "--reason", "x").code == 1
    assert "1 row cannot be read" in store.semel("inbox", "ls").err


# ---- hostile bytes -------------------------------------------------------------------------------------

EVIL = "evil\x1b]0;owned\x07\x1b[2J\x9b31m"


def test_control_characters_of_messages_never_reach_the_terminal(store):
    add(store, EVIL, type=EVIL, source=EVIL, order_key=EVIL, error_text=EVIL, payload=EVIL.encode(), outcome=None,
        headers=json.dumps({"x": 1}), position=EVIL)
    for command in (["ls"], ["ls", "--group-by", "error"], ["show", EVIL], ["retry", EVIL, "--dry-run"],
                    ["retry", "--dead", "--dry-run"], ["retry", EVIL, "--reason", "x"], ["show", EVIL],
                    ["show", EVIL + "?"]):
        code, seen = run_on_terminal("inbox", *command, "--store", store.url, env={"NO_COLOR": "1"})
        assert code in (0, 3) and b"evil" in seen
        assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]", seen), seen
        result = store.semel("inbox", *command, "--json")
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.out + result.err)


def test_the_payload_is_written_as_it_is_but_not_to_a_terminal_that_would_obey_it(store):
    add(store, "text", payload="grüße\n".encode())
    add(store, "evil", payload=EVIL.encode())
    add(store, "none", payload=None)
    assert store.semel("inbox", "show", "evil", "--payload").out == EVIL
    code, seen = run_on_terminal("inbox", "show", "evil", "--payload", "--store", store.url)
    assert code == 4 and b"\x1b" not in seen and b"send it to a file" in seen
    code, seen = run_on_terminal("inbox", "show", "text", "--payload", "--store", store.url)
    assert code == 0 and "grüße".encode() in seen
    assert store.semel("inbox", "show", "none", "--payload").code == 4
    assert store.semel("inbox", "show", "text", "--payload", "--json").code == 2


# ---- one by one ----------------------------------------------------------------------------------------

def test_a_retry_keeps_the_id_and_writes_an_audit_line(store):
    # I16, P41, P42
    add(store, "pay-1")
    result = store.semel("inbox", "retry", "pay-1", "--reason", "bank is back", env={"SEMEL_USER": "mara"})
    assert result.code == 0 and "pay-1 will be retried" in result.out
    row = store.sql("SELECT message_id, status, attempts, attempts_before, retries, due_at <= updated_at, arrival "
                    "FROM semel_inbox")
    assert row == [("pay-1", "failed", 8, 8, 1, 1, 1)]
    assert store.sql("SELECT who, what, reason, message_id FROM semel_audit") == [
        ("mara", "retry", "bank is back", "pay-1")]
    assert "mara  retry: bank is back" in store.semel("inbox", "show", "pay-1").out


def test_the_name_in_the_audit_is_the_login_where_no_other_is_given(store):
    add(store, "a")
    assert store.semel("inbox", "discard", "a", "--reason", "x", env={"SEMEL_USER": ""}).code == 0
    assert re.fullmatch(r"[^@]+@[^@]+", store.sql("SELECT who FROM semel_audit")[0][0])
    assert store.semel("inbox", "discard", "a", "--reason", "x", env={"SEMEL_USER": "m" * 300}).code == 2


def test_discard_and_resolve_end_a_message(store):
    add(store, "a")
    add(store, "b", "unknown")
    assert store.semel("inbox", "discard", "a", "--reason", "test data").code == 0
    assert store.semel("inbox", "resolve", "b", "--reason", "bank has it", "--outcome", '{"ref": 7}').code == 0
    assert store.sql("SELECT status, error_class FROM semel_inbox WHERE message_id = 'a'") == [
        ("rejected", "discarded")]
    assert store.sql("SELECT status, outcome FROM semel_inbox WHERE message_id = 'b'") == [("completed", '{"ref": 7}')]
    assert "it was discarded by" in store.semel("inbox", "show", "a").out
    assert "it was resolved by" in store.semel("inbox", "show", "b").out
    assert store.semel("inbox", "resolve", "b", "--reason", "x", "--outcome", "{").code == 2


def test_what_is_finished_cannot_be_retried(store):
    for status in ("completed", "rejected", "stale", "prevented", "processing"):
        add(store, status, status)
        result = store.semel("inbox", "retry", status, "--reason", "x", "--force")
        assert result.code == 4 and f"is {status}: there is nothing to retry" in result.err
        assert status_of(store, status) == status
    assert audits(store) == {}


def test_a_second_retry_is_told_that_the_first_one_was_faster(store):
    # T12
    add(store, "a")
    assert store.semel("inbox", "retry", "a", "--reason", "x").code == 0
    result = store.semel("inbox", "retry", "a", "--reason", "x")
    assert result.code == 4 and "is to be retried already" in result.err
    assert audits(store) == {"a": 1}


def test_what_is_older_than_the_retention_is_refused_unless_forced(store):
    # I16
    add(store, "old", message_time=now_us() - 400 * DAY)
    result = store.semel("inbox", "retry", "old", "--reason", "x")
    assert result.code == 4 and "older than the retention" in result.err
    assert re.search(r"it was made at 20\d\d-.* \(400 d ago\), and the retention is \d+d", result.err), result
    assert "would be refused" in store.semel("inbox", "retry", "old", "--dry-run").err
    assert "(400 d ago)" in store.semel("inbox", "show", "old").out
    assert store.semel("inbox", "retry", "old", "--reason", "x", "--force").code == 0
    assert audits(store) == {"old": 1}


def test_what_kept_no_payload_is_refused(store):
    add(store, "a", payload=None)
    result = store.semel("inbox", "retry", "a", "--reason", "x", "--force")
    assert result.code == 4 and "payload was not kept" in result.err


def test_a_command_without_a_reason_is_refused(store):
    add(store, "a")
    for word in ("retry", "discard", "resolve"):
        result = store.semel("inbox", word, "a")
        assert result.code == 4 and "--reason" in result.err
    assert status_of(store, "a") == "dead" and audits(store) == {}


def test_several_ids_are_done_one_by_one_and_each_is_told(store):
    add(store, "a")
    add(store, "b", "completed")
    result = store.semel("inbox", "retry", "a", "b", "nobody", "--reason", "x", "--json")
    assert result.code == 1
    assert [(t["id"], t["result"], t["code"], t["status"]) for t in result.json] == [
        ("a", "done", "allowed", "failed"), ("b", "skipped", "wrong_status", "completed")]
    assert set(result.json[0]) == {"id", "consumer", "source", "result", "code", "status", "text"}
    assert "there is no message 'nobody'" in result.err
    assert audits(store) == {"a": 1}


def test_a_dry_run_says_what_would_happen_and_changes_nothing(store):
    add(store, "a")
    add(store, "b", "completed")
    before = store.sql("SELECT * FROM semel_inbox")
    result = store.semel("inbox", "retry", "a", "--dry-run")
    assert result.code == 0 and "a is dead: it would be due at once" in result.out
    assert store.semel("inbox", "discard", "a", "--dry-run").code == 0
    result = store.semel("inbox", "retry", "b", "--dry-run", "--json")
    assert result.code == 4 and result.json[0]["result"] == "would not"
    assert store.sql("SELECT * FROM semel_inbox") == before and audits(store) == {}


def test_a_gap_can_be_forced(store):
    # I12
    store.semel("consumer", "set", "billing", '{"order":"version"}')
    store.sql("INSERT INTO semel_order_key (consumer, order_key, last_version) VALUES ('billing', 'k', 3)")
    add(store, "v6", "waiting", order_key="k", version=6, attempts=0, error_class="gap", due_at=now_us() + DAY)
    assert store.semel("inbox", "retry", "v6", "--reason", "x").code == 4
    would = store.semel("inbox", "retry", "v6", "--dry-run", "--force")
    assert would.code == 0 and "stale once it has run: versions 4 to 5" in would.out
    done = store.semel("inbox", "retry", "v6", "--reason", "x", "--force")
    assert done.code == 0 and "stale once it has run: versions 4 to 5" in done.out
    assert status_of(store, "v6") == "failed"


def test_a_version_is_discarded_ahead_of_a_gap_and_what_died_of_one_waits_again(store):
    # A2 P74
    store.semel("consumer", "set", "billing", '{"order":"version"}')
    store.sql("INSERT INTO semel_order_key (consumer, order_key, last_version) VALUES ('billing', 'k', 3)")
    add(store, "v5", "waiting", order_key="k", version=5, attempts=0, error_class="gap", due_at=now_us() + DAY)
    add(store, "v7", "dead", order_key="k", version=7, attempts=0, error_class="gap")
    assert "still waited for: version 4" in store.semel("inbox", "discard", "v5", "--dry-run").out
    assert store.semel("inbox", "discard", "v5", "--reason", "x").code == 0
    assert store.sql("SELECT last_version, skipped FROM semel_order_key") == [(3, "5")]
    assert "versions 4, 6 will be stale then" in store.semel("inbox", "show", "v7").out
    assert "wait anew for versions 4, 6" in store.semel("inbox", "retry", "v7", "--dry-run").out
    again = store.semel("inbox", "retry", "v7", "--reason", "x")
    assert again.code == 0 and "is judged again" in again.out
    assert status_of(store, "v7") == "waiting"
    store.sql("UPDATE semel_order_key SET skipped = '9,5'")
    damaged = store.semel("inbox", "discard", "v7", "--reason", "x")
    assert damaged.code != 0 and "damaged order key" in damaged.err


def test_ids_and_filters_do_not_go_together(store):
    add(store, "a")
    for args in (["a", "--dead"], ["a", "--resume", "1"], ["a", "--type", "x"], ["a", "--rate", "5"]):
        result = store.semel("inbox", "retry", *args, "--reason", "x")
        assert result.code == 2 and "ids or filters" in result.err, result
    assert status_of(store, "a") == "dead"


# ---- commands to paste ----------------------------------------------------------------------------------


# A11
@pytest.mark.parametrize("id", [
    "two\nlines", "ends with a newline\n", "zero\u200bwidth", "\u202ereversed", "tab\tand bell\a", "it's", "-x", "--",
    "-\u200b",
    "$(touch hacked)\u200b", "`touch hacked`", "back\\slash\\n\u200b", "'\n'", "m\u00fcller \u65e5\u672c",
    "\u200b" * 85, "!!\x01",
])
def test_a_command_that_show_prints_names_the_very_id_when_it_is_pasted(store, tmp_path, id):
    add(store, id, "dead", consumer="bill\u200bing", source="a\nb")
    add(store, id.replace("\u200b", "?").replace("\n", "?") + "?", "dead")     # what it looks like is another one
    shown = run("inbox", "show", "--consumer", "bill\u200bing", "--store", store.url, "--", id)
    assert shown.code == 0, shown
    command, = re.findall(r"semel (inbox retry .*)", shown.out)
    assert command.isprintable()
    pasted = subprocess.run(["bash", "-c", f'"{binary()}" {command.replace("REASON", "r")}'], cwd=tmp_path,
                            capture_output=True, text=True, check=False)
    assert pasted.returncode == 0, (command, pasted)
    assert not os.path.exists(tmp_path / "hacked")
    assert store.sql("SELECT message_id FROM semel_inbox WHERE status = 'failed'") == [(id,)]


def test_what_is_exported_can_be_sent_again(store):
    lines = [{"id": f"m{i}", "source": "eu", "type": "paid", "order_key": f"k{i % 3}", "headers": {"trace": "7"},
              "time": "2026-11-15T22:48:07Z", "payload": text}
             for i, text in enumerate(["{\"a\": 1}", "two\nlines", "", "\u202e\U0001f600 \x1b[31m", "x" * 100000] * 30)]
    sent = store.semel("send", "-c", "billing", "--lines", stdin="".join(json.dumps(line) + "\n" for line in lines))
    assert sent.code == 0, sent
    exported = store.semel("inbox", "export", "-c", "billing")
    assert exported.code == 0 and exported.out.count("\n") == len(lines) and "\x1b" not in exported.out, exported.err
    again = store.semel("send", "-c", "copy", "--lines", stdin=exported.out)
    assert again.out.startswith(f"{len(lines)} lines: {len(lines)} accepted"), again
    columns = "message_id, source, type, order_key, version, message_time, headers, payload"
    first, second = (store.sql(f"SELECT {columns} FROM semel_inbox WHERE consumer = ? ORDER BY arrival", consumer)
                     for consumer in ("billing", "copy"))
    assert first == second and len(first) == len(lines)


def test_a_payload_of_any_bytes_is_exported_and_sent_again(store, tmp_path):
    rows = export_comes_back(store.semel, lambda text: store.sql(text.replace("inbox", "semel_inbox")), tmp_path)
    assert rows.pop("gone") == (b"", '{"semel_tombstone": "true"}')
    assert {id: payload for id, (payload, _) in rows.items()} == ODD


def test_a_payload_of_many_escapes_is_exported_in_a_line_that_send_takes(store, tmp_path):
    payload = b"\x01" * (15 << 20)  # JSON's escapes make 90 MiB of it
    (tmp_path / "payload").write_bytes(payload)
    for consumer in ("billing", "copy"):
        assert store.semel("consumer", "set", consumer, '{"payload_max": 67108864}', "--reason", "x").code == 0
    assert store.semel("send", "-c", "billing", "--id", "ctl", f"@{tmp_path}/payload").code == 0
    exported = store.semel("inbox", "export", "-c", "billing")
    assert exported.code == 0 and "payload_base64" in exported.out, exported.err
    again = store.semel("send", "-c", "copy", "--lines", stdin=exported.out)
    assert again.out.startswith("1 line: 1 accepted"), again
    assert store.sql("SELECT payload FROM semel_inbox WHERE consumer = 'copy'") == [(payload,)]


@pytest.mark.skipif("SEMEL_LONG" not in os.environ, reason="SEMEL_LONG=1 runs it: 600 MB")
def test_payloads_that_do_not_fit_into_memory_together_are_exported(store, tmp_path):
    for i in range(60):
        assert store.semel("send", "-c", "billing", "--id", f"m{i}", "x").code == 0
    store.sql("UPDATE semel_inbox SET payload = zeroblob(62914560) WHERE message_id IN "
              "('m10', 'm11', 'm12', 'm13', 'm14', 'm15', 'm16', 'm17', 'm18', 'm59')")
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([binary(), "inbox", "export", "-c", "billing", "--store", store.url], stdout=out, check=True)
    with open(tmp_path / "out", encoding="ascii") as lines:
        assert [re.match('{"id":"(.*?)"', line)[1] for line in lines] == [f"m{i}" for i in range(60)]


def test_what_cannot_be_exported_is_named_and_the_others_are(store):
    for id, payload in (("text", "x"), ("none", "y"), ("other", "z")):
        assert store.semel("send", "-c", "billing", "--id", id, payload).code == 0
    store.sql("UPDATE semel_inbox SET payload = NULL WHERE message_id = 'none'")
    result = store.semel("inbox", "export", "-c", "billing")
    assert result.code == 1 and [json.loads(line)["id"] for line in result.out.splitlines()] == ["text", "other"]
    assert "none: its payload is not kept" in result.err
    nothing = store.semel("inbox", "export", "-c", "billing", "--type", "nothing")
    assert (nothing.code, nothing.out) == (3, "") and "nothing matches: no message was exported" in nothing.err
    assert store.semel("inbox", "export").code == 2


@pytest.mark.parametrize("line, text", [
    ({"payload_base64": "/w="}, "payload_base64 must be a string of base64"),
    ({"payload_base64": "_w=="}, "payload_base64 must be a string of base64"),
    ({"payload_base64": "/w==\n"}, "payload_base64 must be a string of base64"),
    ({"payload_base64": 7}, "payload_base64 must be a string of base64"),
    ({"payload_base64": None}, "payload_base64 must be a string of base64"),
    ({"payload_base64": "/w==", "payload": "x"}, "payload and payload_base64 are both there"),
    ({}, ""),
])
def test_a_line_whose_payload_is_no_base64_is_named(store, line, text):
    add(store, "pay-1")
    file = json.dumps({"id": "pay-1"} | line)
    sent = store.semel("send", "-c", "mail", "--lines", stdin=file)
    assert sent.code == 1 and "line 1: " + text in sent.err and "payload" in sent.err, sent
    corrected = store.semel("inbox", "retry", "-c", "billing", "--payloads", "-", "--reason", "x", stdin=file)
    assert corrected.code == 1 and "line 1: " + text in corrected.err and "payload" in corrected.err, corrected
    assert store.sql("SELECT count(*) FROM semel_inbox") == [(1,)]


def test_a_payload_is_corrected_by_a_line_in_base64(store):
    add(store, "pay-1")
    line = json.dumps({"id": "pay-1", "payload_base64": "/wA="})
    assert store.semel("inbox", "retry", "-c", "billing", "--payloads", "-", "--reason", "x", stdin=line).code == 0
    assert store.sql("SELECT payload FROM semel_inbox WHERE message_id = 'pay-1~1'") == [(b"\xff\x00",)]


def test_show_suggests_a_correction_where_the_message_is_at_fault(store):
    add(store, "pay-1", error_class="permanent", error_text="no such currency", order_key="k")
    add(store, "pay-2")
    hint = "If its payload is wrong, to run a corrected copy instead:\n    "
    told = store.semel("inbox", "show", "pay-1").out
    assert hint in told and "inbox retry pay-1 --consumer billing --payload @FILE --reason" in told, told
    assert hint not in store.semel("inbox", "show", "pay-2").out  # the bank was down
    add(store, "pay-3", "waiting", order_key="k", error_class="blocked", error_text="parked")
    assert hint not in store.semel("inbox", "show", "pay-1").out  # it would overtake its message


# ---- corrected copies ----------------------------------------------------------------------------------

def test_a_dead_letter_is_corrected_by_a_copy_and_kept(store, tmp_path):
    # P41: the payload of a message never changes
    add(store, "pay-1", headers='{"ce_type":"Paid"}', order_key="k", error_text="wrong currency")
    fixed = tmp_path / "fixed.json"
    fixed.write_text('{"cents": 200}')
    command = ["inbox", "retry", "pay-1", "--payload", f"@{fixed}", "--reason", "ticket 9"]
    dry = store.semel(*command, "--dry-run")
    assert dry.code == 0 and "a copy with the new payload would be due at once" in dry.out
    done = store.semel(*command, "--json")
    assert done.code == 0, done
    assert [(a["id"], a["result"], a["copy"], a["status"]) for a in done.json] == [
        ("pay-1", "done", "pay-1~1", "rejected")]
    assert store.sql("SELECT status, payload, error_class, error_text FROM semel_inbox WHERE message_id = 'pay-1'") == [
        ("rejected", b'{"cents": 100}', "discarded", "corrected as pay-1~1: ticket 9")]
    assert store.sql("SELECT status, payload, type, headers, order_key, attempts FROM semel_inbox "
                     "WHERE message_id = 'pay-1~1'") == [
        ("waiting", b'{"cents": 200}', "Paid", '{"ce_type":"Paid"}', "k", 0)]
    assert store.sql("SELECT message_id, what, reason FROM semel_audit ORDER BY message_id") == [
        ("pay-1", "correct", "as pay-1~1: ticket 9"), ("pay-1~1", "correction", "of pay-1: ticket 9")]
    shown = store.semel("inbox", "show", "pay-1~1").out
    assert "correction: of pay-1: ticket 9" in shown
    again = store.semel(*command)
    assert again.code == 4 and "is rejected: there is nothing to correct" in again.err


def test_a_tombstone_that_is_corrected_is_none_any_more(store):
    add(store, "gone", payload=b"", headers='{"a":"b","semel_tombstone":"true"}')
    add(store, "still", payload=b"", headers='{"a":"b","semel_tombstone":"true"}')
    for id, payload in (("gone", "1"), ("still", "")):
        assert store.semel("inbox", "retry", id, "--payload", payload, "--reason", "x").code == 0
    assert store.sql("SELECT message_id, headers FROM semel_inbox WHERE message_id LIKE '%~1' ORDER BY 1") == [
        ("gone~1", '{"a":"b"}'), ("still~1", '{"a":"b","semel_tombstone":"true"}')]
    line = json.dumps({"id": "forged", "payload": "1", "headers": {"semel_tombstone": "true", "a": "b"}})
    assert store.semel("send", "-c", "billing", "--lines", stdin=line).code == 0
    assert store.sql("SELECT headers FROM semel_inbox WHERE message_id = 'forged'") == [('{"a":"b"}',)]


@pytest.mark.parametrize("args, code, text", [
    (["pay-1", "pay-2", "--payload", "{}"], 2, "--payload belongs to one message"),
    (["--dead", "--payload", "{}", "--yes"], 2, "--payload belongs to one message"),
    (["pay-1", "--payloads", "-"], 2, "give ids or --payloads"),
    (["--payloads", "lines.jsonl", "--consumer", "billing"], 2, "it must be @FILE"),
    (["--payloads", "@/no/such/file", "--consumer", "billing"], 1, "opening /no/such/file"),
    (["--payloads", "-"], 2, "--consumer is needed"),
    (["pay-1", "--payload", "@/no/such/file"], 1, "opening /no/such/file"),
    (["none", "--payload", "{}"], 3, "there is no message 'none'"),
    (["done", "--payload", "{}"], 4, "is completed: there is nothing to correct"),
    (["unknown", "--payload", "{}"], 4, "is unknown: there is nothing to correct"),
])
def test_a_correction_that_cannot_be_meant_is_refused(store, args, code, text):
    add(store, "pay-1")
    add(store, "pay-2")
    add(store, "done", "completed")
    add(store, "unknown", "unknown")
    before = store.sql("SELECT * FROM semel_inbox")
    result = store.semel("inbox", "retry", *args, "--reason", "x", stdin="")
    assert result.code == code and text in result.err, result
    assert store.sql("SELECT * FROM semel_inbox") == before


def test_a_group_of_dead_letters_is_corrected_by_lines(store, tmp_path):
    add_many(store, 5)
    exported = store.semel("inbox", "export", "--consumer", "billing", "--dead").out
    lines = [json.loads(line) for line in exported.split("\n") if line]
    for line in lines:
        line["payload"] = {"cents": int(line["id"].split("-")[1])}
    file = tmp_path / "fixed.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines[:3]) + "\n\nno json\n"
                    + json.dumps({"id": "nobody", "payload": ""}) + "\n" + json.dumps(lines[3]) + "\n"
                    + json.dumps({"id": "pay-5", "payload": None}))
    command = ["inbox", "retry", "--consumer", "billing", "--payloads", f"@{file}", "--reason", "ticket 9"]
    result = store.semel(*command)
    assert result.code == 1 and "8 lines: 4 corrected, 0 refused, 3 bad" in result.out, result
    assert "line 8: " in result.err and "not null" in result.err
    assert "line 5: " in result.err and "line 6: there is no such message" in result.err
    assert dict(store.sql("SELECT message_id, payload FROM semel_inbox WHERE message_id LIKE '%~1'")) == {
        f"pay-{i}~1": b'{"cents": %d}' % i for i in range(1, 5)}
    again = store.semel(*command, "--json")
    assert again.code == 4 and again.json == {"lines": 8, "corrected": 0, "refused": 4, "bad": 3}
    assert store.sql("SELECT count(*) FROM semel_inbox") == [(9,)]
