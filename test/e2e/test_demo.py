# SPDX-License-Identifier: MIT
"""semel demo: its books, made again here; its folder; its processes; its view."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import sqlite3
import struct
import subprocess
import termios
import time

import pytest

from conftest import binary, run, wait_for

SEED = 5  # of its first payments that fail four times none is sent twice: without Semel they are lost
DEADLINE_S = 120


def rows(path, text):
    with sqlite3.connect(path, timeout=20) as db:
        return db.execute(text).fetchall()


def demo(folder, *args, **more):
    return run("demo", "--dir", folder, "--seed", SEED, *args, **more)


@pytest.fixture(scope="module")
def storm(tmp_path_factory):
    """A finished demo: its folder, and what it said."""
    folder = tmp_path_factory.mktemp("storm") / "demo"
    result = demo(folder, "--seconds", 3)
    assert result.code == 0, result
    return folder, result


@pytest.fixture(scope="module")
def without(storm):
    """The same storm without Semel, in the same folder."""
    folder, _ = storm
    result = demo(folder, "--seconds", 3, "--without", "--json")
    assert result.code == 0, result
    return folder, result.json


def workers(folder):
    """The processes that are workers of the demo in this folder, whoever is their parent now."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as line:
                if b"\0demo\0worker\0" in line.read() and os.path.samefile(f"/proc/{name}/cwd", folder):
                    found.append(int(name))
        except OSError:
            pass  # it has ended
    return found


@pytest.fixture
def start():
    """Starts a demo and waits for its workers."""
    started = []

    def start_one(folder):
        process = subprocess.Popen([binary(), "demo", "--dir", folder, "--seconds", "600"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        started.append(process)
        wait_for(lambda: len(workers(folder)) == 3 or process.poll() is not None, "no workers")
        assert process.poll() is None, process.communicate()
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


# ---- the books ----------------------------------------------------------------------------------------------


def test_the_books_balance_when_they_are_made_again_by_other_hands(storm):
    # I2, I5, I15, T1, T7, T14
    folder, result = storm
    assert result.out.splitlines()[-1] == "lost 0, doubled 0"
    sent = {i: (account, cents, poison)
            for i, account, cents, poison in rows(folder / "sent.db", "SELECT id, account, cents, poison FROM payment")}
    ledger = rows(folder / "demo.db", "SELECT payment_id, account, cents FROM ledger")
    booked = {i: (account, cents) for i, account, cents in ledger}
    assert len(ledger) == len(booked), "doubled"
    assert booked == {i: (account, cents) for i, (account, cents, poison) in sent.items() if poison is None}
    totals = {}
    for _, account, cents in ledger:
        totals[account] = totals.get(account, 0) + cents
    accounts = dict(rows(folder / "demo.db", "SELECT id, cents FROM account"))
    assert accounts == {account: totals.get(account, 0) for account in accounts}


def test_what_nobody_can_book_is_dead_lettered_and_nothing_else_is(storm):
    # I6, I14, I15, T5
    folder, _ = storm
    poison = dict(rows(folder / "sent.db", "SELECT id, poison FROM payment WHERE poison IS NOT NULL"))
    assert set(poison.values()) == {"an unknown account", "an amount of zero", "a payload that is not JSON"}
    status = dict(rows(folder / "demo.db", "SELECT message_id, status FROM semel_inbox"))
    assert {i for i, s in status.items() if s == "dead"} == set(poison)
    assert {s for i, s in status.items() if i not in poison} == {"completed"}


def test_it_was_a_storm(storm):
    folder, result = storm
    sent = rows(folder / "sent.db", "SELECT count(*) FROM payment")[0][0]
    messages, delivered, least = rows(folder / "broker.db",
                                      "SELECT count(*), sum(deliveries), min(deliveries) FROM message")[0]
    assert sent > 100 and least >= 1
    assert 0.2 * sent < messages - sent < 0.5 * sent, "about a third are copies"
    order = [int(re.search(rb"pay-(\d+)", headers)[1])
             for headers, in rows(folder / "broker.db", "SELECT headers FROM message ORDER BY seq")]
    assert sum(a > b for a, b in zip(order, order[1:])) > sent / 4, "shuffled"
    again = rows(folder / "demo.db", "SELECT count(*) FROM semel_inbox WHERE attempts > 1 AND status = 'completed'")
    assert again[0][0] > 0
    table = dict(re.findall(r"^([a-z-]+(?: [a-z]+)*) +(\d+) ", result.out, re.MULTILINE))
    assert int(table["sent"]) == sent and int(table["delivered"]) == delivered
    assert int(table["duplicates suppressed"]) == delivered - sent
    assert int(table["worker kills"]) > 0 and int(table["retried"]) > 0


def test_the_query_that_is_printed_can_be_run_by_anybody(storm):
    folder, result = storm
    text = (folder / "books.sql").read_text()
    attach, query = text.split("\n", 1)
    assert attach == "ATTACH 'sent.db' AS sent;"
    assert all("    " + line in result.out.splitlines() for line in query.splitlines())
    with sqlite3.connect(folder / "demo.db") as db:
        db.execute("ATTACH ? AS sent", (str(folder / "sent.db"),))
        cursor = db.execute(query)
        books = dict(zip([column[0] for column in cursor.description], cursor.fetchone()))
    assert books["sent"] > 0
    assert (books["lost"], books["doubled"], books["wrong"], books["strays"], books["unbalanced"]) == (0, 0, 0, 0, 0)
    assert books["needless"] == 0 and books["dead"] == books["poison"] > 0


def test_the_query_finds_what_is_lost_doubled_and_wrong(storm, tmp_path):
    folder, _ = storm
    for name in ("demo.db", "sent.db"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    query = (folder / "books.sql").read_text().split("\n", 1)[1]
    with sqlite3.connect(tmp_path / "demo.db") as db:
        db.execute("ATTACH ? AS sent", (str(tmp_path / "sent.db"),))
        ids = [i for i, in db.execute("SELECT payment_id FROM ledger ORDER BY line LIMIT 4")]
        db.execute("DELETE FROM ledger WHERE payment_id IN (?, ?)", (ids[0], ids[3]))
        db.execute("UPDATE semel_inbox SET status = 'dead' WHERE message_id = ?", ids[3:])
        db.execute("INSERT INTO ledger (payment_id, account, cents) SELECT payment_id, account, cents FROM ledger"
                   " WHERE payment_id = ?", ids[1:2])
        db.execute("UPDATE ledger SET cents = cents + 1 WHERE payment_id = ?", ids[2:3])
        db.execute("INSERT INTO ledger (payment_id, account, cents) VALUES ('never-sent', 'acc-000', 1)")
        cursor = db.execute(query)
        books = dict(zip([column[0] for column in cursor.description], cursor.fetchone()))
    assert (books["lost"], books["doubled"], books["wrong"], books["strays"], books["needless"]) == (1, 1, 1, 1, 1)
    assert books["unbalanced"] > 0


def test_the_folder_can_be_looked_at_with_the_other_commands(storm):
    # I8, I16
    folder, result = storm
    url = f"sqlite:{folder / 'demo.db'}"
    assert f"status --store {url}" in result.out and f"inbox ls --dead --store {url}" in result.out
    shown = re.search(r"inbox show (\S+) --store", result.out)[1]
    status = run("status", "--store", url)
    assert status.code == 0 and "payments" in status.out, status
    listed = run("inbox", "ls", "--dead", "--store", url)
    assert listed.code == 0 and shown in listed.out, listed
    one = run("inbox", "show", shown, "--store", url)
    assert one.code == 0 and "It is dead" in one.out, one


# ---- without Semel ------------------------------------------------------------------------------------------


def test_without_semel_the_same_storm_loses_and_doubles(without):
    folder, books = without
    assert books["consumer"] == "hand-written"
    sent = dict(rows(folder / "without-sent.db", "SELECT id, poison FROM payment"))
    booked = dict(rows(folder / "without.db", "SELECT payment_id, count(*) FROM ledger GROUP BY 1"))
    lost = [i for i, poison in sent.items() if poison is None and i not in booked]
    assert books["lost"] == len(lost)
    assert books["doubled"] == len([i for i, n in booked.items() if n > 1])
    assert books["lost"] + books["doubled"] > 0 and not books["balanced"] and books["killed"] > 0
    assert rows(folder / "without.db", "SELECT count(*) FROM processed")[0][0] > 0


def test_the_same_seed_sends_the_same_payments(without):
    folder, _ = without
    text = "SELECT id, account, cents, poison FROM payment ORDER BY id"
    one, other = rows(folder / "sent.db", text), rows(folder / "without-sent.db", text)
    n = min(len(one), len(other))
    assert n > 100 and one[:n] == other[:n]
    first = "SELECT headers FROM message ORDER BY seq LIMIT 100"
    ids = [[re.search(rb"pay-\d+", h)[0] for h, in rows(folder / name, first)]
           for name in ("broker.db", "without-broker.db")]
    assert ids[0] == ids[1], "in the same order"


def test_a_run_without_semel_leaves_the_other_run_alone(without):
    folder, _ = without
    assert rows(folder / "demo.db", "SELECT count(*) FROM ledger")[0][0] > 0


# ---- faces --------------------------------------------------------------------------------------------------


def test_what_is_no_terminal_gets_plain_lines(storm):
    _, result = storm
    lines = [line for line in result.out.splitlines() if line.startswith("storm, ")]
    assert lines and all(re.match(r"storm, \d+ of 3 s: sent [\d,]+, delivered ", line) for line in lines)
    assert "\x1b" not in result.out and "\r" not in result.out and result.err == ""


def test_json_is_one_object_and_nothing_else(tmp_path):
    result = demo(tmp_path / "demo", "--seconds", 2, "--json")
    assert result.code == 0 and result.err == "" and result.out.count("\n") == 1, result
    books = json.loads(result.out)
    assert books["balanced"] and books["lost"] == books["doubled"] == 0 and books["seed"] == SEED
    assert books["sent"] == books["effects"] + books["dead"] and books["delivered"] > books["sent"]


def test_on_a_terminal_the_view_is_drawn_over_and_the_terminal_left_clean(tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
    before = termios.tcgetattr(theirs)
    with subprocess.Popen([binary(), "demo", "--dir", tmp_path / "demo", "--seconds", "2"], stdout=theirs,
                          stderr=subprocess.STDOUT, env={**os.environ, "TERM": "xterm"}) as process:
        out = b""
        end = time.monotonic() + DEADLINE_S
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < end
            if select.select([ours], [], [], 0.05)[0]:
                out += os.read(ours, 65536)
        assert process.returncode == 0, out
    assert termios.tcgetattr(theirs) == before
    os.close(theirs)
    os.close(ours)
    text = out.decode()
    sequences = set(re.findall(r"\x1b(?:\[[0-9;?]*[A-Za-z]|.)", text))
    assert sequences == {"\x1b[8A", "\x1b[2K", "\x1b[1m", "\x1b[0m"}, "moves up, clears lines, has bold heads"
    assert text.count("\x1b[8A") >= 1 and text.count("\x1b[2K") == 8 * (text.count("\x1b[8A") + 1)
    assert all(len(line) < 60 for line in re.findall(r"\x1b\[2K([^\r\n]*)", text))
    assert text.replace("\r", "").endswith("\nlost 0, doubled 0\n")


def test_what_is_wrong_on_the_command_line_is_said(tmp_path):
    for args in (["--seconds", "1"], ["--seconds", "601"], ["--workers", "0"], ["--workers", "17"], ["--seed", "-1"],
                 ["--seed", "x"], ["folder"], ["worker", "with", "1"]):
        result = run("demo", "--dir", tmp_path / "demo", *args)
        assert result.code == 2 and result.err.startswith("semel: ") and result.out == "", result
    assert not (tmp_path / "demo").exists()
    assert "--dir is ''" in run("demo", "--dir", "").err


# ---- the folder ---------------------------------------------------------------------------------------------


def test_a_folder_that_no_demo_has_made_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "demo.db").write_text("mine")
    result = demo(tmp_path)
    assert result.code == 4 and "no demo has made it" in result.err, result
    assert os.listdir(tmp_path) == ["demo.db"] and (tmp_path / "demo.db").read_text() == "mine"
    result = demo(tmp_path / "demo.db")
    assert result.code == 4 and "is not a folder" in result.err, result
    result = demo(tmp_path / "no" / "such")
    assert result.code == 1 and "cannot be made" in result.err, result


def test_no_symlink_is_followed(tmp_path):
    # B9
    precious, elsewhere, here = tmp_path / "precious", tmp_path / "elsewhere", tmp_path / "here"
    precious.write_text("mine")
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    result = demo(tmp_path / "link")
    assert result.code == 4 and "is not a folder" in result.err and not os.listdir(elsewhere), result
    here.mkdir()
    (here / ".semel-demo").touch(0o600)
    for name in ("workers.log", "demo.db", "demo.db-wal", "demo.db-journal", "broker.db", "sent.db", "books.sql"):
        (here / name).symlink_to(precious)
    result = demo(here, "--seconds", "2", "--workers", "1")
    assert result.code == 0 and precious.read_text() == "mine", result
    assert not [file for file in here.iterdir() if file.is_symlink()]
    for file in here.iterdir():  # and others cannot read them
        assert file.stat().st_mode & 0o077 == 0, file


def test_a_worker_is_not_started_by_hand(tmp_path):
    for kind in ("with", "without"):
        done = subprocess.run([binary(), "demo", "worker", kind, "1", "1"], cwd=tmp_path, capture_output=True,
                              text=True, check=False)
        assert done.returncode == 4 and os.listdir(tmp_path) == [], done


# ---- processes ----------------------------------------------------------------------------------------------


def test_an_earlier_demo_is_replaced_but_not_one_that_runs(tmp_path, start):
    folder = tmp_path / "demo"
    process = start(folder)
    result = demo(folder)
    assert result.code == 4 and "another demo is running" in result.err, result
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    (folder / "notes.txt").write_text("mine")
    result = demo(folder, "--seconds", 2, "--json")
    assert result.code == 0 and result.json["sent"] == rows(folder / "sent.db", "SELECT count(*) FROM payment")[0][0]
    assert (folder / "notes.txt").read_text() == "mine"


def test_ctrl_c_ends_the_workers_and_says_so(tmp_path, start):
    folder = tmp_path / "demo"
    process = start(folder)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130 and "interrupted" in err and "workers were killed" in err
    assert workers(folder) == []


def test_no_worker_outlives_a_demo_that_is_killed(tmp_path, start):
    folder = tmp_path / "demo"
    process = start(folder)
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_for(lambda: workers(folder) == [], "a worker is left behind")


def test_a_worker_that_dies_by_itself_is_not_overlooked(tmp_path, start):
    folder = tmp_path / "demo"
    process = start(folder)

    def hit():
        for pid in workers(folder)[:1]:
            try:
                os.kill(pid, signal.SIGUSR1)
            except ProcessLookupError:
                pass  # the demo was faster
        return process.poll() is not None

    wait_for(hit, "it went on")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1 and f"died by itself, of signal {int(signal.SIGUSR1)}" in err, err
    assert workers(folder) == []
