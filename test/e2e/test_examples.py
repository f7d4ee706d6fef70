# SPDX-License-Identifier: MIT
"""The example programs, run twice: the first time everything happens, the second time nothing does."""
import os
import pathlib
import sqlite3
import subprocess

EXAMPLES = pathlib.Path(os.environ["SEMEL_BUILD"]) / "examples"


def run(name, *args, stdin=""):
    done = subprocess.run([EXAMPLES / name, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0 and done.stderr == "", f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_batch_consumer_books_each_payment_once(tmp_path):
    # I2, I9, T6, T14
    db = tmp_path / "billing.db"
    accounts = "account alice has 1325 cents\naccount bob has 300 cents\n"
    assert run("batch_consumer", db) == (
        "pay-1: ack, new, completed\n"
        "pay-2: ack, new, completed\n"
        "pay-1: ack, duplicate, completed\n"
        "pay-3: ack, new, completed\n"
        "pay-4: ack, new, rejected\n" + accounts)
    assert run("batch_consumer", db) == (
        "pay-1: ack, duplicate, completed\n"
        "pay-2: ack, duplicate, completed\n"
        "pay-1: ack, duplicate, completed\n"
        "pay-3: ack, duplicate, completed\n"
        "pay-4: ack, duplicate, rejected\n" + accounts)


def test_batch_consumer_takes_payments_from_a_pipe(tmp_path):
    # I15: the one that cannot be read does not stall the others
    db = tmp_path / "billing.db"
    assert run("batch_consumer", db, stdin="a carol 5\nb nonsense\nc carol 6\n") == (
        "a: ack, new, completed\n"
        "b: ack, new, dead\n"
        "c: ack, new, completed\n"
        "account carol has 11 cents\n")


def test_outside_effect_sends_nothing_twice(tmp_path):
    # E1, I14, T11
    db, remote = tmp_path / "mailer.db", tmp_path / "remote.txt"
    assert run("outside_effect", db, remote) == (
        "mail-1: run, new, sent\n"
        "mail-2: run, new, sent without an answer\n"
        "mail-1: ack, duplicate, first answer {\"sent\":true}\n")
    sent = remote.read_text()
    assert [line.split(" ", 1)[1] for line in sent.splitlines()] == ["welcome, Ann", "your invoice"]
    assert run("outside_effect", db, remote) == (
        "mail-1: ack, duplicate, first answer {\"sent\":true}\n"
        "mail-2: ack, unknown, the other side has it: semel inbox resolve or retry\n"
        "mail-1: ack, duplicate, first answer {\"sent\":true}\n")
    assert remote.read_text() == sent


def test_three_lines_count_each_order_once(tmp_path):
    # I2, I3, T6
    db = tmp_path / "shop.db"
    sold = "sold 1 coffee\nsold 1 tea\n"
    assert run("three_lines", db) == (
        "order-1: run, new\n"
        "order-2: run, new\n"
        "order-1: ack, duplicate\n" + sold)
    assert run("three_lines", db) == (
        "order-1: ack, duplicate\n"
        "order-2: ack, duplicate\n"
        "order-1: ack, duplicate\n" + sold)
    with sqlite3.connect(db) as look:
        assert look.execute("SELECT count(*) FROM semel_inbox WHERE status = 'completed'").fetchone() == (2,)


def test_examples_say_how_they_are_used():
    for name in ("batch_consumer", "outside_effect", "three_lines"):
        done = subprocess.run([EXAMPLES / name], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2 and done.stderr.startswith(f"usage: {name} FILE.db"), done
