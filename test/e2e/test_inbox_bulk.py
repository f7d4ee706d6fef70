# SPDX-License-Identifier: MIT
"""Retry, discard and resolve in bulk: frozen selections, the probe, operators at once, crashes and resumption."""
import json
import os
import pty
import re
import signal
import subprocess

from conftest import binary
from inbox_rows import DAY, DEADLINE_S, add, add_many, audits, now_us, status_of, statuses, wait_for, working


def start(store, *args):
    """A bulk command that runs by itself."""
    return subprocess.Popen([binary(), "inbox", *args, "--store", store.url], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def finish(child):
    out, err = child.communicate(timeout=DEADLINE_S)
    assert child.returncode not in (99, -6, -11), err
    return child.returncode, out, err


def handled(store):
    return store.sql("SELECT count(*) FROM semel_selected WHERE result IS NOT NULL")[0][0]


def selections(store):
    return store.sql("SELECT count(*) FROM semel_selection")[0][0]


def retry(store, *args, **more):
    return store.semel("inbox", "retry", "--dead", "--reason", "ticket 811", "--yes", *args, **more)


# ---- before it begins ----------------------------------------------------------------------------------

def test_a_dry_run_counts_and_writes_nothing(store):
    # I16, P43: the count comes first
    add_many(store, 5)
    add_many(store, 2, prefix="x-", error_text="no such account")
    result = store.semel("inbox", "retry", "--dead", "--consumer", "billing", "--dry-run")
    assert result.code == 0
    assert "7 messages, 2 causes" in result.out and "would retry up to 7 messages" in result.out
    assert "no such account" in result.out
    shape = store.semel("inbox", "retry", "--dead", "--dry-run", "--json").json
    assert shape["dry_run"] is True and shape["command"] == "retry" and shape["messages"] == 7
    assert [(g["count"], g["error_text"]) for g in shape["groups"]] == [(5, "bank is down"), (2, "no such account")]
    assert selections(store) == 0 and statuses(store) == {"dead": 7}


def test_a_selection_that_matches_nothing_is_told(store):
    add(store, "a", "completed")
    assert retry(store).code == 3
    assert retry(store, "--dry-run").code == 3
    assert store.semel("inbox", "retry", "--resume", "7", "--yes").code == 3
    assert selections(store) == 0


def test_without_a_terminal_bulk_needs_yes(store):
    add_many(store, 2)
    result = store.semel("inbox", "retry", "--dead", "--reason", "x")
    assert result.code == 2 and "--yes" in result.err and "downstream" in result.err
    assert statuses(store) == {"dead": 2} and selections(store) == 0


def answer(store, text):
    """The command on a terminal whose user types `text`."""
    ours, theirs = pty.openpty()
    os.write(ours, text)
    child = subprocess.Popen([binary(), "inbox", "retry", "--dead", "--reason", "x", "--no-probe", "--rate", "0",
                              "--store", store.url], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    child.communicate(timeout=DEADLINE_S)
    seen = os.read(ours, 65536)
    os.close(ours)
    return child.returncode, seen


def test_on_a_terminal_it_reminds_and_asks(store):
    # I16: payloads and downstream capacity are asked for first
    add_many(store, 2)
    code, seen = answer(store, b"\n")
    assert code == 1 and b"continue? [y/N]" in seen and b"do the payloads fit" in seen
    assert statuses(store) == {"dead": 2} and selections(store) == 0
    code, seen = answer(store, b"y\n")
    assert code == 0 and statuses(store) == {"failed": 2}


def test_what_cannot_be_meant_is_refused(store):
    add_many(store, 2)
    for args, code, text in (
            (["retry", "--reason", "x", "--yes"], 2, "--dead"),
            (["retry", "--consumer", "billing", "--reason", "x", "--yes"], 2, "--dead"),
            (["retry", "--status", "completed", "--reason", "x", "--yes"], 2, "nothing to retry"),
            (["retry", "--dead", "--yes"], 4, "--reason"),
            (["retry", "--dead", "--reason", "", "--yes"], 2, "--reason"),
            (["retry", "--dead", "--reason", "x", "--yes", "--rate", "-1"], 2, "--rate"),
            (["retry", "--resume", "1", "--dead", "--yes"], 2, "--resume"),
            (["retry", "--resume", "1", "--reason", "x", "--yes"], 2, "--resume"),
            (["resolve", "--dead", "--reason", "x", "--yes", "--outcome", "{}"], 2, "one message")):
        result = store.semel("inbox", *args)
        assert result.code == code and text in result.err, (args, result)
    assert statuses(store) == {"dead": 2} and selections(store) == 0


def test_many_go_in_chunks_and_a_hundred_thousand_are_no_limit(store):
    # I16: one transaction per chunk; the progress has a rate and the time that is left
    many = 100001 if "SEMEL_LONG" in os.environ else 4001
    store.sql(f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many}) "
              "INSERT INTO semel_inbox (consumer, source, message_id, status, received_at, updated_at, payload) "
              "SELECT 'billing', '', 'm' || i, 'dead', 1, 1, x'00' FROM n")
    result = store.semel("inbox", "discard", "--dead", "--reason", "x", "--yes", "--progress")
    assert result.code == 0, result
    assert f"selection 1: 0 of {many} messages are left" in result.out
    assert re.search(rf"^{many} messages in \d+\.\ds, \d+/s$", result.err, re.MULTILINE), result.err
    assert many < 100000 or re.search(r"^\d+ messages, \d+/s, \d+%, \d+s left$", result.err, re.MULTILINE), result.err
    assert statuses(store) == {"rejected": many} and handled(store) == many
    assert store.sql("SELECT count(*) FROM semel_audit WHERE what = 'discard'") == [(many,)]


def test_rows_of_several_consumers_and_kinds_go_together(store):
    # a chunk has rows of one consumer; what is refused holds up no other
    for i in range(30):
        add(store, f"a{i}", consumer="a")
        add(store, f"b{i}", consumer="b", **({"payload": None} if i % 10 == 0 else {}))
    result = retry(store, "--no-probe", "--rate", "0", "--json")
    assert result.code == 1 and (result.json["done"], result.json["refused"]) == (57, 3), result
    assert statuses(store) == {"failed": 57, "dead": 3} and handled(store) == 60
    assert len(audits(store)) == 57


# ---- a run ---------------------------------------------------------------------------------------------

def test_a_run_retries_each_once_under_its_own_id_with_an_audit_line(store, extension):
    # I16, P41
    add_many(store, 12)
    with working(store, extension) as worker:
        result = retry(store, "--consumer", "billing", "--rate", "0", env={"SEMEL_USER": "mara"})
        assert result.code == 0, result
        wait_for(lambda: statuses(store) == {"completed": 12}, "the worker")
    names = [f"pay-{i}" for i in range(1, 13)]
    assert sorted(worker.handled) == sorted(names)
    assert "selection 1: 12 messages" in result.out and "selection 1: 0 of 12 messages are left" in result.out
    assert audits(store) == dict.fromkeys(names, 1)
    assert set(store.sql("SELECT who, what, reason FROM semel_audit")) == {
        ("mara", "retry", "ticket 811"), ("mara", "selection 1: retry of 12 messages", "ticket 811")}
    assert store.sql("SELECT command, who, reason, force FROM semel_selection") == [("retry", "mara", "ticket 811", 0)]


def test_a_selection_is_frozen(store):
    # P43: what comes later is no part of it
    add_many(store, 3)
    assert retry(store, "--wait", "0s").code == 6
    add(store, "late")
    result = store.semel("inbox", "retry", "--resume", "1", "--yes", "--no-probe")
    assert result.code == 0
    assert statuses(store) == {"failed": 3, "dead": 1} and status_of(store, "late") == "dead"


def test_the_json_of_a_run_says_what_became_of_each_group(store):
    add_many(store, 2)
    add(store, "old", message_time=now_us() - 400 * DAY)
    result = retry(store, "--no-probe", "--rate", "0", "--json")
    assert result.code == 1
    shape = result.json
    assert {k: shape[k] for k in ("selection", "command", "messages", "done", "skipped", "refused", "left", "stopped",
                                  "cause", "resume")} == {
        "selection": 1, "command": "retry", "messages": 3, "done": 2, "skipped": 0, "refused": 1, "left": 0,
        "stopped": None, "cause": None, "resume": None}
    assert [(r["result"], r["count"], r["example"]) for r in shape["results"]] == [("done", 2, "pay-1"),
                                                                                   ("refused", 1, "old")]


def test_discard_and_resolve_work_in_bulk_without_a_probe(store):
    add_many(store, 3)
    add_many(store, 2, prefix="m-", consumer="mail")
    result = store.semel("inbox", "discard", "--dead", "--consumer", "mail", "--reason", "test data", "--yes")
    assert result.code == 0, result
    result = store.semel("inbox", "resolve", "--dead", "--reason", "made by hand", "--yes", "--rate", "0")
    assert result.code == 0, result
    assert statuses(store) == {"rejected": 2, "completed": 3}
    assert store.sql("SELECT what, count(*) FROM semel_audit WHERE message_id IS NOT NULL GROUP BY what") == [
        ("discard", 2), ("resolve", 3)]
    assert store.sql("SELECT what FROM semel_audit WHERE message_id IS NULL ORDER BY id") == [
        ("selection 1: discard of 2 messages",), ("selection 2: resolve of 3 messages",)]  # B4


def test_what_is_too_old_is_refused_counted_and_listed_unless_forced(store):
    # I16
    add_many(store, 1)
    add(store, "old-1", message_time=now_us() - 400 * DAY)
    add(store, "old-2", message_time=now_us() - 500 * DAY)
    result = retry(store, "--no-probe", "--rate", "0")
    assert result.code == 1
    assert re.search(r"old-1 .*refused: .*older than the retention.*400 d ago", result.err), result
    assert re.search(r"old-2 .*refused: .*500 d ago", result.err), result
    assert re.search(r"refused +2 old-1", result.out), result
    assert statuses(store) == {"failed": 1, "dead": 2}
    assert retry(store, "--no-probe").code == 4
    assert retry(store, "--no-probe", "--force").code == 0
    assert statuses(store) == {"failed": 3}
    assert store.sql("SELECT force FROM semel_selection ORDER BY number") == [(0,), (0,), (1,)]


# ---- does it help? -------------------------------------------------------------------------------------

def test_it_stops_after_the_first_when_the_cause_is_still_there(store, extension):
    # I16: stopping when the cause is still there
    add_many(store, 10)
    down = [True]
    with working(store, extension, lambda message_id: "transient" if down[0] else "done"):
        result = retry(store)
        assert result.code == 6 and "the cause is still there: transient: still down" in result.err
        assert f"to go on: semel inbox retry --resume 1 --store {store.url}" in result.err
        assert audits(store) == {"pay-1": 1} and statuses(store)["dead"] == 9
        shape = store.semel("inbox", "retry", "--resume", "1", "--yes", "--json")
        assert shape.code == 6 and shape.json["stopped"] == "cause" and shape.json["left"] == 8
        down[0] = False
        assert store.semel("inbox", "retry", "--resume", "1", "--yes", "--rate", "0").code == 0
        wait_for(lambda: statuses(store).get("completed", 0) >= 8, "the worker")
    assert audits(store) == {f"pay-{i}": 1 for i in range(1, 11)}


def test_a_probe_that_died_again_is_retried_when_its_selection_is_resumed(store, extension):
    # I16: success is not reported while the message of the failed probe is a dead letter
    add_many(store, 5)
    down = [True]
    with working(store, extension, lambda message_id: "permanent" if down[0] else "done"):
        result = retry(store)
        assert result.code == 6 and "the cause is still there" in result.err, result
        assert status_of(store, "pay-1") == "dead" and "--resume 1" in result.err
        again = store.semel("inbox", "retry", "--resume", "1", "--yes")  # another one dies in vain
        assert again.code == 6 and status_of(store, "pay-2") == "dead", again
        down[0] = False
        result = store.semel("inbox", "retry", "--resume", "1", "--yes", "--rate", "0")
        assert result.code == 0, result
        wait_for(lambda: statuses(store) == {"completed": 5}, "all of them, and the two probes")
    assert audits(store) == {"pay-1": 2, "pay-2": 2, "pay-3": 1, "pay-4": 1, "pay-5": 1}
    assert store.semel("inbox", "retry", "--resume", "1", "--yes").code == 0
    assert audits(store)["pay-1"] == 2  # a copy of the command changes nothing


def test_what_died_again_is_retried_by_who_resumes_whatever_its_consumer(store):
    # I16: a selection is marked in its own order, so that a resume finds what an earlier run has retried in vain
    for i in range(1, 4):
        add(store, f"pay-{i}")
        add(store, f"mail-{i}", consumer="mail")
    assert retry(store, "--no-probe", "--rate", "0").code == 0
    order = [row[0] for row in store.sql("SELECT message_id FROM semel_audit WHERE what = 'retry' ORDER BY id")]
    assert order == [f"{name}-{i}" for i in range(1, 4) for name in ("pay", "mail")]


def test_it_stops_when_no_worker_takes_the_first(store):
    add_many(store, 4)
    result = retry(store, "--wait", "100ms")
    assert result.code == 6 and "no worker seems to run" in result.err and "--no-probe" in result.err
    assert statuses(store) == {"failed": 1, "dead": 3}
    assert store.semel("inbox", "retry", "--resume", "1", "--yes", "--no-probe", "--rate", "0").code == 0
    assert statuses(store) == {"failed": 4}


def test_it_stops_when_most_of_those_that_went_on_fail_again(store, extension):
    # I16: the first one may have been lucky
    add_many(store, 200)
    with working(store, extension, lambda message_id: "done" if message_id == "pay-1" else "transient"):
        result = retry(store, "--rate", "20", "--json")
    assert result.code == 6 and result.json["stopped"] == "cause"
    assert "most of the last that ran have failed again" in result.err
    assert 0 < result.json["left"] < 199
    assert result.json["done"] + result.json["left"] == 200 == len(audits(store)) + statuses(store)["dead"]


def test_a_first_one_that_is_parked_proves_nothing_and_the_next_is_tried(store, extension):
    # I13
    store.semel("consumer", "set", "billing", '{"order":"arrival"}')
    add(store, "head", "dead", order_key="k", type="Opened")
    add(store, "behind", "dead", order_key="k")
    add(store, "bad")
    add(store, "rest")
    with working(store, extension, lambda message_id: "transient"):
        result = retry(store, "--type", "Paid")
    assert result.code == 6 and "the cause is still there" in result.err, result
    assert audits(store) == {"behind": 1, "bad": 1}
    assert status_of(store, "behind") == "waiting" and status_of(store, "rest") == "dead"


# ---- interrupted, killed, resumed ----------------------------------------------------------------------

def interrupt(store, how):
    add_many(store, 100)
    child = start(store, "retry", "--dead", "--reason", "x", "--yes", "--no-probe", "--rate", "20")
    wait_for(lambda: handled(store) >= 3, "the first messages")
    child.send_signal(how)
    return finish(child)


def assert_resumed_once(store):
    """The rest is done, and nothing twice: neither a command nor a place of the selection."""
    result = store.semel("inbox", "retry", "--resume", "1", "--yes", "--no-probe", "--rate", "0")
    assert result.code == 0, result
    assert statuses(store) == {"failed": 100}
    assert audits(store) == {f"pay-{i}": 1 for i in range(1, 101)}
    assert handled(store) == 100
    assert store.semel("inbox", "retry", "--resume", "1", "--yes").code == 0
    assert audits(store) == {f"pay-{i}": 1 for i in range(1, 101)}
    return result


def test_ctrl_c_stops_between_two_messages_and_the_rest_can_be_resumed(store):
    code, out, err = interrupt(store, signal.SIGINT)
    assert code == 130 and "to go on: semel inbox retry --resume 1" in err
    left = int(re.search(r"selection 1: (\d+) of 100 messages are left", out)[1])
    assert 0 < left < 100 and statuses(store) == {"failed": 100 - left, "dead": left}
    assert handled(store) == len(audits(store)) == 100 - left
    result = assert_resumed_once(store)
    assert "skipped" not in result.out


def test_sigterm_is_no_different(store):
    code, _, err = interrupt(store, signal.SIGTERM)
    assert code == 130 and "--resume 1" in err
    assert_resumed_once(store)


def test_a_crash_in_the_middle_loses_nothing_and_repeats_nothing(store):
    # P42
    code, _, _ = interrupt(store, signal.SIGKILL)
    assert code == -9 and 0 < statuses(store)["dead"] < 100
    assert_resumed_once(store)


def test_a_crash_between_the_command_and_its_mark_repeats_nothing(store):
    # P42: the row has changed since it was chosen, and is skipped
    code, _, _ = interrupt(store, signal.SIGINT)
    assert code == 130
    store.sql("UPDATE semel_selected SET result = NULL WHERE place = 2")
    result = assert_resumed_once(store)
    assert re.search(r"skipped +1 pay-2 +already handled", result.out), result


# ---- two operators -------------------------------------------------------------------------------------

def both(children):
    """What each of two has done, skipped and refused."""
    ends = [finish(child) for child in children]
    assert [code for code, _, _ in ends] == [0, 0], ends
    return [json.loads(out) for _, out, _ in ends]


def test_two_operators_with_overlapping_selections_share_the_work(store):
    # T12, I16: each row is done by one of them, the other is told
    add_many(store, 60)
    command = ["retry", "--dead", "--reason", "x", "--yes", "--no-probe", "--json", "--rate"]
    first = start(store, *command, "10")
    wait_for(lambda: handled(store) >= 3, "the first operator")
    second = start(store, *command, "0")
    a, b = both([first, second])
    assert a["messages"] == 60 and 0 < b["messages"] < 60
    assert a["done"] > 0 and b["done"] > 0 and a["done"] + b["done"] == 60
    assert a["skipped"] + b["skipped"] == b["messages"] and a["refused"] == b["refused"] == 0
    assert audits(store) == {f"pay-{i}": 1 for i in range(1, 61)}
    assert statuses(store) == {"failed": 60}


def test_two_who_resume_the_same_selection_share_the_work(store):
    # T12
    add_many(store, 60)
    assert retry(store, "--wait", "0s").code == 6
    command = ["retry", "--resume", "1", "--yes", "--no-probe", "--rate", "40", "--json"]
    a, b = both([start(store, *command), start(store, *command)])
    assert a["done"] + b["done"] == 59
    assert audits(store) == {f"pay-{i}": 1 for i in range(1, 61)}
    assert statuses(store) == {"failed": 60} and handled(store) == 60


def test_what_another_did_meanwhile_is_left_alone(store):
    # P43: a row that has changed since it was chosen, also one that is dead again
    add_many(store, 4)
    assert retry(store, "--wait", "0s").code == 6
    assert store.semel("inbox", "discard", "pay-3", "--reason", "test data").code == 0
    store.sql("UPDATE semel_inbox SET updated_at = updated_at + 1, attempts = 16 WHERE message_id = 'pay-4'")
    result = store.semel("inbox", "retry", "--resume", "1", "--yes", "--no-probe")
    assert result.code == 0 and "pay-3 (billing) skipped: already handled" in result.err
    assert "pay-4 (billing) skipped: already handled" in result.err
    assert status_of(store, "pay-3") == "rejected" and status_of(store, "pay-4") == "dead"
    assert audits(store) == {"pay-1": 1, "pay-2": 1, "pay-3": 1}


def test_a_selection_is_resumed_by_its_own_word(store):
    add_many(store, 3)
    assert retry(store, "--wait", "0s").code == 6
    result = store.semel("inbox", "discard", "--resume", "1", "--yes")
    assert result.code == 2 and "semel inbox retry --resume 1" in result.err
    result = store.semel("inbox", "retry", "--resume", "1", "--dry-run")
    assert result.code == 0 and "would retry up to 2 messages" in result.out
    assert statuses(store) == {"failed": 1, "dead": 2}
