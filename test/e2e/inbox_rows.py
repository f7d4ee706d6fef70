# SPDX-License-Identifier: MIT
"""Rows for tests of `semel inbox`, written by plain SQL; a worker that handles what is due through the extension."""
import contextlib
import json
import sqlite3
import threading
import time

from conftest import wait_for  # noqa: F401  (for those who import it from here)

SECOND = 1_000_000
DAY = 86400 * SECOND
DEADLINE_S = 60


def now_us():
    return time.time_ns() // 1000


def ulid(at_us, n=0):
    digits, ms, text = "0123456789ABCDEFGHJKMNPQRSTVWXYZ", at_us // 1000, ""
    for _ in range(10):
        ms, text = ms // 32, digits[ms % 32] + text
    return f"{text}{n:016}"


def ulid_rows():
    """Rows of before A11: consumer, source, id and time. ULIDs are among the newest of the consumers mixed and old."""
    now = now_us() // 1000 * 1000
    uuid = f"{now // 1000 >> 16:08x}-{now // 1000 & 0xFFFF:04x}-7000-8000-00000000000"
    return ([("mixed", "s", f"{uuid}{n}", now) for n in range(3)] + [("mixed", "t", ulid(now - SECOND), now - SECOND)]
            + [("old", "s", ulid(now).lower(), now), ("uuids", "s", uuid + "0", now),
               ("numbers", "s", f"{12345:026}", 0), ("said", "s", ulid(now), now - DAY),
               ("future", "s", ulid(now + 2 * DAY), now + 2 * DAY)]
            + [("long ago", "s", f"id-{n}", now - n) for n in range(100)]
            + [("long ago", "s", ulid(now - DAY), now - DAY)])


def add(store, message_id, status="dead", **columns):
    """One row, with what its status needs."""
    now = now_us()
    row = {"consumer": "billing", "source": "", "message_id": message_id, "type": "Paid", "status": status,
           "attempts": 8, "received_at": now - 3600 * SECOND, "updated_at": now - 1800 * SECOND,
           "payload": b'{"cents": 100}'}
    if status in ("dead", "failed", "unknown"):
        row.update(error_class="transient", error_text="bank is down")
    if status == "failed":
        row.update(attempts=1, due_at=now + 3600 * SECOND)
    if status == "processing":
        row.update(attempts=1, lease_owner="worker-1", lease_until=now + 60 * SECOND, lease_token=1)
    if status in ("completed", "rejected", "stale", "prevented"):
        row.update(processed_at=now - 1800 * SECOND, payload=None)
    row.update(columns)
    with sqlite3.connect(store.path, timeout=20) as db:
        db.execute(f"INSERT INTO semel_inbox ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                   list(row.values()))
        db.execute("UPDATE semel_counter SET value = (SELECT max(arrival) + 1 FROM semel_inbox) WHERE name = 'arrival'")


def add_many(store, n, prefix="pay-", **columns):
    """Dead ones, in one transaction."""
    now = now_us()
    with sqlite3.connect(store.path, timeout=20) as db:
        for i in range(n):
            db.execute("INSERT INTO semel_inbox (consumer, source, message_id, type, status, attempts, received_at, "
                       "updated_at, error_class, error_text, payload) "
                       "VALUES (?, '', ?, 'Paid', 'dead', 8, ?, ?, 'transient', ?, ?)",
                       (columns.get("consumer", "billing"), f"{prefix}{i + 1}", now - 3600 * SECOND,
                        now - 1800 * SECOND, columns.get("error_text", "bank is down"), b"{}"))
        db.execute("UPDATE semel_counter SET value = (SELECT max(arrival) + 1 FROM semel_inbox) WHERE name = 'arrival'")


def status_of(store, message_id):
    return store.sql("SELECT status FROM semel_inbox WHERE message_id = ?", message_id)[0][0]


def statuses(store):
    return dict(store.sql("SELECT status, count(*) FROM semel_inbox GROUP BY status"))


def audits(store):
    """How often each message was the subject of a command."""
    return dict(store.sql("SELECT message_id, count(*) FROM semel_audit WHERE message_id IS NOT NULL "
                          "GROUP BY message_id"))


class Worker(threading.Thread):
    """Takes what is due for a consumer and ends it as `decide` says: 'done' or a class of failure."""

    def __init__(self, store, extension, decide, consumer="billing"):
        super().__init__(daemon=True)
        self.store, self.extension, self.decide, self.consumer = store, extension, decide, consumer
        self.stop, self.handled, self.trouble = threading.Event(), [], None

    def run(self):
        try:
            self.work()
        except Exception as trouble:  # told to the test, which would otherwise wait for a worker that is gone
            self.trouble = trouble

    def work(self):
        db = sqlite3.connect(self.store.path, timeout=20, isolation_level=None)
        db.enable_load_extension(True)
        db.load_extension(self.extension)
        while not self.stop.is_set():
            taken = self.commit(db, "SELECT token, message_id FROM semel_inbox_take WHERE consumer = ? AND max = 1",
                                self.consumer)
            for token, message_id in taken:
                result = self.decide(message_id)
                self.commit(db, "SELECT semel_inbox_finish(?, ?, NULL, ?)", token, result,
                            None if result == "done" else "still down")
                self.handled.append(message_id)
            if not taken:
                self.stop.wait(0.02)
        db.close()

    @staticmethod
    def commit(db, text, *values):
        db.execute("BEGIN IMMEDIATE")
        rows = db.execute(text, values).fetchall()
        db.execute("COMMIT")
        return rows


@contextlib.contextmanager
def working(store, extension, decide=lambda message_id: "done", consumer="billing"):
    worker = Worker(store, extension, decide, consumer)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop.set()
        worker.join(DEADLINE_S)
        if worker.trouble is not None:
            raise worker.trouble


ODD = {"bytes": bytes(range(256)), "nul": b"a\x00b", "broken": b"{\"a\": \xc3}", "surrogate": b"\xed\xa0\x80",
       "empty": b"", "text": "\u20ac \u202e\U0001f600\n".encode(), "json": b"{ \"a\" : 1.0 }",
       "one": b"\xff", "two": b"\xff\xfe", "base64": b"/w==", "large": bytes(range(256)) * 3000}


def export_comes_back(semel, sql, folder):
    """Payloads of every kind, and a tombstone, are exported, and sent to another consumer byte for byte."""
    for id, payload in ODD.items():
        (folder / "payload").write_bytes(payload)
        assert semel("send", "-c", "billing", "--id", id, f"@{folder}/payload").code == 0
    gone = {"id": "gone", "payload": "", "headers": {"semel_tombstone": "true"}}
    assert semel("send", "-c", "billing", "--lines", stdin=json.dumps(gone)).code == 0
    exported = semel("inbox", "export", "-c", "billing")
    lines = [json.loads(line) for line in exported.out.splitlines()]
    assert exported.code == 0 and [line["id"] for line in lines] == [*ODD, "gone"], exported.err
    binary = {line["id"] for line in lines if "payload_base64" in line}
    assert binary == {"bytes", "nul", "broken", "surrogate", "one", "two", "large"}
    again = semel("send", "-c", "copy", "--lines", stdin=exported.out)
    assert again.code == 0 and again.out.startswith(f"{len(lines)} lines: {len(lines)} accepted"), again
    rows = {consumer: sql(f"SELECT message_id, payload, headers FROM inbox WHERE consumer = '{consumer}' "
                          "ORDER BY arrival") for consumer in ("billing", "copy")}
    assert rows["billing"] == rows["copy"]
    return {row[0]: row[1:] for row in rows["copy"]}
