# SPDX-License-Identifier: MIT
"""`semel send`: a message in the inbox, as if its broker had delivered it."""
import json
import pathlib
import re
import signal
import sqlite3
import subprocess
import time

import pytest

from conftest import binary, run, wait_for


def rows(store, columns="message_id"):
    return store.sql(f"SELECT {columns} FROM semel_inbox ORDER BY arrival")


def send(store, *args, consumer="billing", **more):
    return store.semel("send", "--consumer", consumer, *args, **more)


# ---- one message ----


def test_a_message_is_accepted_once_and_a_repeat_is_an_answer(store):  # I3, I9, T6
    first = send(store, "--id", "pay-1", '{"cents": 4200}')
    assert first.code == 0 and first.out.startswith("accepted: "), first
    again = send(store, "--id", "pay-1", '{ "cents":4200 }')
    assert again.code == 0 and again.out.startswith("duplicate: ") and again.err == ""
    assert rows(store, "consumer, source, message_id, status, attempts, CAST(payload AS TEXT)") == [
        ("billing", "", "pay-1", "waiting", 0, '{"cents": 4200}')]


def test_the_same_id_with_another_payload_is_a_conflict(store):  # I11
    send(store, "--id", "pay-1", "one")
    other = send(store, "--id", "pay-1", "two")
    assert other.code == 4 and other.out.startswith("conflict: "), other
    assert rows(store, "CAST(payload AS TEXT)") == [("one",)]
    assert store.sql("SELECT count(*) FROM semel_conflict") == [(1,)]


def test_consumers_and_sources_have_ids_of_their_own(store):  # I1
    assert send(store, "--id", "m", "x").out.startswith("accepted")
    assert send(store, "--id", "m", "--source", "eu", "x").out.startswith("accepted")
    assert send(store, "--id", "m", "x", consumer="mailer").out.startswith("accepted")
    assert len(rows(store)) == 3


def test_every_field_reaches_the_row(store):
    sent = send(store, "--id", "m1", "--source", "eu", "--type", "paid", "--order-key", "o-7", "--version", 1,
                "--business-key", "settle-9", "--header", "a=1", "--header", "b==", "--header", "a=2",
                "--time", "2026-11-15T22:48:07+01:00", "payload")
    assert sent.code == 0, sent
    (row,) = rows(store, "source, type, order_key, version, headers, message_time, CAST(payload AS TEXT)")
    assert row[:4] == ("eu", "paid", "o-7", 1) and row[6] == "payload"
    assert json.loads(row[4]) == {"a": ["1", "2"], "b": "="}
    assert store.sql("SELECT datetime(message_time / 1000000, 'unixepoch') FROM semel_inbox") == [
        ("2026-11-15 21:48:07",)]
    assert store.sql("SELECT count(*) FROM semel_business_want") == [(1,)]


def test_the_same_intent_under_another_id_is_prevented(store):  # I10, T8
    send(store, "--id", "m1", "--business-key", "settle-9", "x")
    held = "INSERT INTO semel_business_key VALUES (?, 'settle-9', '', 'm1', 1, NULL)"  # as its start does
    store.sql(held, store.sql("SELECT consumer FROM semel_inbox")[0][0])
    other = send(store, "--id", "m2", "--business-key", "settle-9", "x", "--json")
    assert other.code == 0 and other.json["result"] == "business_duplicate"
    assert rows(store, "message_id, status") == [("m1", "waiting"), ("m2", "waiting")]
    store.sql("DELETE FROM semel_inbox WHERE message_id = 'm1'")  # done, and purged
    send(store, "--id", "m3", "--business-key", "settle-9", "x")
    assert rows(store, "message_id, status") == [("m2", "waiting"), ("m3", "prevented")]


def test_a_message_behind_its_key_waits_and_is_accepted(store):  # I12, I13
    assert send(store, "--id", "m1", "--order-key", "k", "--version", 1, "x").out.startswith("accepted")
    later = send(store, "--id", "m3", "--order-key", "k", "--version", 3, "x", "--json")
    assert later.code == 0 and later.json["result"] == "accepted" and later.json["status"] == "waiting"


def test_a_payload_comes_from_a_word_a_file_or_stdin(store, tmp_path):
    (tmp_path / "payload").write_bytes(b"\x00\xff\n")
    send(store, "--id", "word", "@@", "--header", "x=y")  # a file that does not exist
    send(store, "--id", "file", f"@{tmp_path}/payload")
    send(store, "--id", "stdin", "-", stdin="from stdin\n")
    send(store, "--id", "empty", "")
    run("send", "--store", store.url, "-c", "billing", "--id", "dash", "--", "--not-an-option")
    assert rows(store, "message_id, CAST(payload AS BLOB)") == [
        ("file", b"\x00\xff\n"), ("stdin", b"from stdin\n"), ("empty", b""), ("dash", b"--not-an-option")]


def test_what_came_of_it_is_told_as_json(store):
    told = send(store, "--id", "m1", "x", "--json").json
    assert told["result"] == "accepted" and told["why"] == "new" and told["id"] == "m1" and told["text"]
    assert send(store, "--id", "m1", "x", "--json").json["result"] == "duplicate"


@pytest.mark.parametrize("args, code, said", [
    (["x"], 2, "--id is needed"),
    (["--id", "m"], 2, "a payload is needed"),
    (["--id", "m", "x", "y"], 2, "'y' is an unexpected argument"),
    (["--id", "", "x"], 2, "id"),
    (["--id", "i" * 256, "x"], 2, "at most 255"),
    (["--id", "m", "--source", "s" * 256, "x"], 2, "at most 255"),
    (["--id", "m", "--version", "one", "x"], 2, "--version is 'one'"),
    (["--id", "m", "--version", "-1", "x"], 2, "--version is '-1'"),
    (["--id", "m", "--version", 2**63 - 1, "x"], 2, f"it must be a whole number from 0 to {2**63 - 2}"),
    (["--id", "m", "@"], 2, "it must be @FILE"),
    (["--id", "m", "--time", "yesterday", "x"], 2, "--time is 'yesterday'"),
    (["--id", "m", "--time", "2026-11-15T22:48:07", "x"], 2, "with its zone"),
    (["--id", "m", "--header", "novalue", "x"], 2, "--header is 'novalue'; it must be NAME=VALUE"),
    (["--id", "m", "--header", "=v", "x"], 2, "it must be NAME=VALUE"),
    (["--id", "m", "@/nonexistent"], 1, "opening /nonexistent"),
    (["--id", "m", "@/"], 1, "reading /"),
])
def test_what_is_no_message_is_refused_and_stores_nothing(store, args, code, said):
    refused = send(store, *args)
    assert refused.code == code and said in refused.err and refused.err.count("\n") == 1, refused
    assert rows(store) == []


def test_a_consumer_must_be_named(store):
    for args in ([], ["--consumer", ""]):
        refused = store.semel("send", "--id", "m", "x", *args)
        assert refused.code == 2 and "--consumer is needed" in refused.err
    assert send(store, "--id", "m", "x", consumer="c" * 256).code == 2


def test_a_payload_past_the_limit_of_the_consumer_becomes_a_dead_letter_and_is_told(store):  # I15
    store.semel("consumer", "set", "billing", '{"payload_max": 10}')
    for _ in range(2):
        result = send(store, "--id", "m", "12345678901")
        assert result.code == 4 and result.out.startswith("dead: "), result
    assert rows(store, "message_id, status") == [("m", "dead")]
    assert send(store, "--lines", stdin=lines({"id": "n", "payload": "12345678901"})).code == 4


def test_a_consumer_that_keeps_no_payloads_is_sent_nothing(store):
    store.semel("consumer", "set", "billing", '{"keep_payload": "never"}')
    for refused in (send(store, "--id", "m", "x"), send(store, "--lines", stdin=lines({"id": "m", "payload": 1}))):
        assert refused.code == 4 and "keeps no payloads" in refused.err, refused
    assert rows(store) == []


# ---- lines ----


def lines(*objects):
    return "".join((text if isinstance(text, str) else json.dumps(text)) + "\n" for text in objects)


def test_lines_are_stored_one_by_one_with_a_sum(store):
    text = lines({"id": "a", "payload": {"x": [1, 2]}}, {"id": "b", "payload": "text"},
                 {"id": "a", "payload": {"x": [1, 2]}}, "", {"id": "c", "payload": None})
    result = send(store, "--lines", stdin=text)
    assert result.code == 0 and result.err == "", result
    assert result.out == "5 lines: 3 accepted, 1 duplicate, 0 refused, 0 bad\n"
    assert rows(store, "message_id, CAST(payload AS TEXT)") == [("a", '{"x": [1, 2]}'), ("b", "text"), ("c", "null")]
    one = send(store, "--lines", stdin=text.splitlines()[0])
    assert one.out == "1 line: 0 accepted, 1 duplicate, 0 refused, 0 bad\n"
    again = send(store, "--lines", "--json", stdin=text)
    assert again.json == {"lines": 5, "accepted": 0, "duplicates": 4, "refused": 0, "bad": 0}


# I15
def test_a_bad_line_is_named_and_the_others_go_on(store):
    text = lines({"id": "a", "payload": 1}, "nonsense", {"payload": 1}, {"id": "b"}, {"id": 7, "payload": 1},
                 {"id": "c", "payload": 1, "colour": "red"}, "[1]", {"id": "d" * 300, "payload": 1},
                 {"id": "e", "payload": 1, "version": 2**63 - 1}, {"id": "f", "payload": 1, "time": "noon"},
                 {"id": "g", "payload": 1, "headers": []}, '{"id": "h", "payload": 1, "id": "h"}',
                 {"id": "i", "payload": 1}, {"id": "i", "payload": 2}) + '{"id": "last", "payload": 1}'
    result = send(store, "--lines", stdin=text)
    assert result.code == 1, result
    assert result.out == "15 lines: 3 accepted, 0 duplicates, 1 refused, 11 bad\n"
    complaints = result.err.splitlines()
    assert [int(line.split(":")[1].split()[1]) for line in complaints] == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14]
    assert 'no member "colour"' in complaints[4] and "conflict" in complaints[11]
    assert rows(store) == [("a",), ("i",), ("last",)]


def test_a_line_says_everything_that_an_option_says(store):
    line = {"id": "m1", "source": "eu", "type": "paid", "order_key": "o\"-7\\", "version": 1, "business_key": "b",
            "headers": {"a": "}\","}, "time": "2026-11-15T22:48:07Z", "payload": {"a": "\\\"]}", "b": [{}, []]}}
    result = send(store, "--lines", "--type", "other",
                  stdin=lines(line, {"id": "m2", "order_key": "k", "version": 1, "payload": ""}))
    assert result.code == 0, result
    found = rows(store, "message_id, source, type, order_key, version, headers, CAST(payload AS TEXT)")
    assert found[0][:5] == ("m1", "eu", "paid", "o\"-7\\", 1)
    assert json.loads(found[0][5]) == line["headers"] and json.loads(found[0][6]) == line["payload"]
    assert found[1][:4] == ("m2", "", "other", "k") and found[1][6] == ""


def test_lines_take_ids_and_payloads_from_stdin_only(store):
    assert send(store, "--lines", "--id", "m", stdin="").code == 2
    assert send(store, "--lines", "x", stdin="").code == 2
    assert send(store, "--lines", stdin="").out == "0 lines: 0 accepted, 0 duplicates, 0 refused, 0 bad\n"


def test_a_long_line_is_read_whole(store):
    payload = "x" * 1000000
    result = send(store, "--lines", stdin=lines({"id": "long", "payload": payload}, {"id": "next", "payload": "y"}))
    assert result.out.startswith("2 lines: 2 accepted")
    assert rows(store, "length(payload)") == [(len(payload),), (1,)]


def test_a_store_that_fails_stops_the_lines_and_says_where(store):
    store.sql("CREATE TRIGGER full BEFORE INSERT ON semel_inbox WHEN NEW.message_id = 'b' "
              "BEGIN SELECT RAISE(ABORT, 'no more'); END")
    text = lines(*({"id": name, "payload": 1} for name in "abc"))
    result = send(store, "--lines", stdin=text)
    assert result.code == 5 and "stopped at line 2" in result.err, result
    assert rows(store) == [("a",)]
    store.sql("DROP TRIGGER full")
    assert send(store, "--lines", stdin=text).out == "3 lines: 2 accepted, 1 duplicate, 0 refused, 0 bad\n"


def test_a_failure_in_the_middle_of_many_lines_keeps_those_before_it(store):
    store.sql("CREATE TRIGGER full BEFORE INSERT ON semel_inbox WHEN NEW.message_id = '249' "
              "BEGIN SELECT RAISE(ABORT, 'no more'); END")
    text = lines(*({"id": str(i), "payload": 1} for i in range(1, 601)))
    result = send(store, "--lines", stdin=text)
    assert result.code == 5 and "stopped at line 249" in result.err, result
    assert result.out == "248 lines: 248 accepted, 0 duplicates, 0 refused, 0 bad\n"
    assert rows(store) == [(str(i),) for i in range(1, 249)]
    store.sql("DROP TRIGGER full")
    assert send(store, "--lines", stdin=text).out == "600 lines: 352 accepted, 248 duplicates, 0 refused, 0 bad\n"


def test_what_could_not_be_committed_is_not_counted(store):
    store.sql("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    store.sql("CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
    store.sql("CREATE TRIGGER late AFTER INSERT ON semel_inbox WHEN NEW.message_id = 'c' "
              "BEGIN INSERT INTO child VALUES (1); END")
    text = lines(*({"id": name, "payload": 1} for name in "abcd"))
    result = send(store, "--lines", stdin=text)
    stopped = int(result.err.split("stopped at line ")[1].split(";")[0])
    assert result.code in (4, 5) and stopped <= 3, result
    assert rows(store) == [(name,) for name in "abcd"[: stopped - 1]]
    assert f" {stopped - 1} accepted" in result.out
    store.sql("DROP TRIGGER late")
    assert f" {5 - stopped} accepted, {stopped - 1} duplicates" in send(store, "--lines", stdin=text).out


def test_what_is_refused_was_kept_when_it_is_told(store):  # I11
    text = lines({"id": "a", "payload": 1}, {"id": "a", "payload": 2}, {"id": "b", "payload": 1}, "nonsense")
    result = send(store, "--lines", stdin=text)
    assert result.code == 1 and result.out == "4 lines: 2 accepted, 0 duplicates, 1 refused, 1 bad\n", result
    assert store.sql("SELECT count(*) FROM semel_conflict") == [(1,)] and rows(store) == [("a",), ("b",)]


def test_lines_are_stored_and_no_lock_is_held_while_more_are_waited_for(store):
    with subprocess.Popen([binary(), "send", "--lines", "-c", "billing", "--store", store.url], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as child:
        for n in range(3):
            child.stdin.write(lines({"id": f"m{n}", "payload": 1}))
            child.stdin.flush()
            deadline = time.monotonic() + 60
            while len(rows(store)) < n + 1:
                assert time.monotonic() < deadline, "it was not stored"
            with sqlite3.connect(store.path, timeout=20, isolation_level=None) as db:
                db.execute("BEGIN IMMEDIATE")
                db.execute("COMMIT")
        child.stdin.close()
        assert child.stdout.read() == "3 lines: 3 accepted, 0 duplicates, 0 refused, 0 bad\n"


def keeps_signals(child):
    blocked = re.search(r"^SigBlk:\s*(\w+)$", pathlib.Path(f"/proc/{child.pid}/status").read_text(), re.MULTILINE)
    return int(blocked[1], 16) & 1 << signal.SIGINT - 1


def test_a_signal_ends_the_sending_of_a_file_between_two_batches(store, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("".join(f'{{"id": "m-{i}", "payload": 1}}\n' for i in range(20000)))
    with open(lines, encoding="ascii") as file, sqlite3.connect(store.path, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")  # its first batch waits
        child = subprocess.Popen([binary(), "send", "-c", "billing", "--lines", "--store", store.url], stdin=file,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: keeps_signals(child), "it keeps signals")
        child.send_signal(signal.SIGINT)
        writer.execute("ROLLBACK")
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "interrupted at line" in err, (out, err)
    stored = len(rows(store))
    assert stored < 20000 and f" {stored} accepted" in out, (stored, out)
