# SPDX-License-Identifier: MIT
"""docs/json.md: every command in it is run, in order, on one store, and prints the members that are shown."""
import json
import os
import sqlite3
import subprocess
import types

import inbox_rows
from listen import Other
from test_readme import BUILD, SOURCE, steps

EVENT = "01a1eb5a-0e72-7bf9-b148-fd63cb85d922"
SETTINGS = """store: sqlite:shop.db
routes:
  billing:
    from: inbox
    values: [id, json:/cents]
    do: {sql: "INSERT INTO ledger VALUES ($1, $2)"}
outboxes:
  orders:
    to: {kafka: "k1:9092", topic: orders}
"""
BANK = """store: sqlite:shop.db
routes:
  bank:
    from: inbox
    do: {http: "URL/pay", reconcile: "URL/pay/{id}"}
gateways:
  payments:
    listen: 127.0.0.1:0
    upstream: {url: "URL"}
    caller: {header: X-User, trusted_from: [127.0.0.1]}
    guard: [{match: POST /pay, on_unknown: reconcile, reconcile: "URL/paid/{key}"}]
"""


def open_store(path):
    db = sqlite3.connect(path, isolation_level=None)
    db.enable_load_extension(True)
    db.load_extension(os.environ["SEMEL_EXT"].removesuffix(".so"))
    return db


def lose_key(db, key):
    """A key whose outcome is unknown."""
    for statement in [f"SELECT token FROM semel_key_claim WHERE scope = 'customer-17' AND key = '{key}'",
                      "SELECT semel_key_fail({}, 'unknown', 'reset')"]:
        db.execute("BEGIN IMMEDIATE")
        row = db.execute(statement.format(row[0] if "{}" in statement else "")).fetchone()
        db.execute("COMMIT")


def happen(path):
    """An event, a dead letter, and a key whose outcome is unknown."""
    db = open_store(path)
    db.execute("BEGIN IMMEDIATE")
    db.execute("SELECT semel_outbox_put('order', '4711', 'paid', '{\"cents\": 1200}', NULL, '{}', NULL, ?)", [EVENT])
    db.execute("SELECT act FROM semel_inbox_fail WHERE consumer = 'billing' AND message_id = 'pay-3' AND "
               "payload = '{\"cents\": -5}' AND class = 'permanent' AND reason = 'too little'").fetchall()
    db.execute("COMMIT")
    lose_key(db, "7d0f1f2e-8a4b")
    db.close()


def set_aside(path):
    """The event was refused, and is dead."""
    db = open_store(path)
    db.execute("INSERT INTO semel_outbox_aside (seq, id, aggregatetype, aggregateid, type, payload, headers, "
               "created_at, status, updated_at, attempts, error_text) SELECT seq, id, aggregatetype, aggregateid, "
               "type, payload, headers, created_at, 'dead', created_at, 3, 'too large' FROM semel_outbox")
    db.execute("DELETE FROM semel_outbox")
    db.close()


def lose_message(path):
    """A message whose outcome is unknown, and a position in a topic."""
    inbox_rows.add(types.SimpleNamespace(path=path), "pay-9", "unknown", consumer="bank")
    db = open_store(path)
    db.execute("INSERT INTO semel_position VALUES ('audit', 'payments', 0, 2000, 3, 1700000000000000)")
    db.close()


def lose_keys(path):
    """Two more keys whose outcomes are unknown."""
    db = open_store(path)
    lose_key(db, "0b54c1aa-77f0")
    lose_key(db, "c3b2a190-5e6d")
    db.execute("UPDATE semel_idempotency SET rule = 'POST /pay' WHERE key = '0b54c1aa-77f0'")
    db.close()


BEFORE = {"status --json": happen, "inbox reconcile": lose_message, "outbox retry": set_aside,
          "keys reconcile": lose_keys}


def members(value):
    """What a program may rely on: names and nesting, of a list those of its first element."""
    if isinstance(value, dict):
        return {name: members(one) for name, one in value.items()}
    return [members(one) for one in value[:1]] if isinstance(value, list) else None


def alike(said, shown):
    """A member that is null or an empty list here may be more there."""
    if isinstance(said, dict) and isinstance(shown, dict):
        return said.keys() == shown.keys() and all(alike(said[name], shown[name]) for name in said)
    if isinstance(said, list) and isinstance(shown, list):
        return not said or not shown or alike(said[0], shown[0])
    return said is None or shown is None


def test_commands_print_the_members_that_the_document_shows(tmp_path):
    (tmp_path / "semel.yaml").write_text(SETTINGS)
    done_there = json.dumps({"state": "done", "status": 201, "outcome": {"paid": 1200}}).encode()
    with Other(lambda call: (200, done_there)) as other:
        (tmp_path / "bank.yaml").write_text(BANK.replace("URL", other.url))
        compare(tmp_path)


def compare(tmp_path):
    env = {**os.environ, "SEMEL_STORE": "sqlite:shop.db", "PATH": f"{BUILD}/src/cli:/usr/bin:/bin"}
    done = list(steps((SOURCE / "docs/json.md").read_text(encoding="utf-8")))
    assert len(done) > 20
    for command, shown in done:
        for words, prepare in BEFORE.items():
            if words in command:
                prepare(tmp_path / "shop.db")
        said = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True,
                              timeout=120, check=False)
        assert said.returncode == 0, (command, said.stderr)
        assert alike(members(json.loads(said.stdout)), members(json.loads(shown))), (command, said.stdout)


def test_every_command_with_json_is_in_the_document():
    """Each `semel NOUN [VERB]` that takes --json; those of the benchmarks have a page of their own."""
    text = (SOURCE / "docs/json.md").read_text(encoding="utf-8")
    known = json.loads(subprocess.run([os.environ["SEMEL_BIN"], "help", "--json"], capture_output=True, text=True,
                                      check=True).stdout)["commands"]
    for command in known:
        if any(option["name"] == "json" for option in command["options"]) and not command["group"]:
            name = command["name"]
            assert name.startswith("bench ") or f"semel {name} " in text or f"`semel {name}`" in text, name
