-- SPDX-License-Identifier: MIT
--
-- Semel on SQLite: the inbox and what belongs to it. Needs SQLite 3.37 (STRICT).
--
-- Every table is plain and may be read with any tool. Times are INTEGER microseconds since
-- 1970-01-01 00:00:00 UTC: datetime(received_at / 1000000, 'unixepoch') shows one.
-- Text is compared by bytes (BINARY), ids are at most 255 bytes of UTF-8.
-- Write through Semel only: the rules live in its code, the checks below are the last line.

-- Which of these files has been applied, and when.
CREATE TABLE semel_schema (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

-- The next number to be drawn. Drawn numbers are never given out twice.
CREATE TABLE semel_counter (
    name  TEXT NOT NULL PRIMARY KEY,            -- arrival: the place of a message
    value INTEGER NOT NULL CHECK (value > 0)
) STRICT, WITHOUT ROWID;

INSERT INTO semel_counter (name, value) VALUES ('arrival', 1), ('token', 1);

-- One row per message and consumer, kept until it is final and old enough to be purged.
CREATE TABLE semel_inbox (
    arrival         INTEGER PRIMARY KEY,        -- the order in which messages came; the rowid
    consumer        TEXT NOT NULL,              -- the route: who is to be affected once
    source          TEXT NOT NULL,              -- the stream that the id belongs to
    message_id      TEXT NOT NULL,
    type            TEXT,
    status          TEXT NOT NULL CHECK (status = 'completed' OR status = 'processing' OR status = 'failed'
                                              OR status = 'waiting' OR status = 'rejected' OR status = 'unknown'
                                              OR status = 'dead' OR status = 'stale' OR status = 'prevented'
                                              OR status = 'quarantined'),
    attempts        INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),         -- committed starts in all
    attempts_before INTEGER NOT NULL DEFAULT 0 CHECK (attempts_before >= 0),  -- of these, before the last retry
    retries         INTEGER NOT NULL DEFAULT 0 CHECK (retries >= 0),
    alone           INTEGER NOT NULL DEFAULT 0 CHECK (alone IN (0, 1)),       -- must run by itself
    fingerprint     BLOB,                       -- a letter for the kind, then the digest
    order_key       TEXT,
    version         INTEGER,
    message_time    INTEGER,                    -- when the event was made, from its id or its attributes
    received_at     INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    processed_at    INTEGER,                    -- when it became final
    due_at          INTEGER,                    -- when the scheduler looks again
    lease_owner     TEXT,
    lease_until     INTEGER,
    lease_token     INTEGER,
    error_class     TEXT,
    error_text      TEXT,
    outcome         TEXT,
    position        TEXT,                       -- where the broker keeps it
    headers         TEXT,                       -- a JSON object; kept as long as the payload
    payload         BLOB,                       -- NULL: not kept
    traceparent     TEXT,
    UNIQUE (consumer, source, message_id),
    CHECK (length(CAST(message_id AS BLOB)) <= 255 AND length(CAST(source AS BLOB)) <= 255),
    CHECK ((status = 'processing') = (lease_token IS NOT NULL))
) STRICT;

-- All further indexes are partial, so that a completed row pays for the key above and for one of
-- the two purge indexes, and for nothing else. The rowid (arrival) is the last column of each.
-- Their conditions are spelled with OR: for a longer list behind IN, SQLite builds a table of it
-- again for every row that is inserted, which costs more than the row itself.

-- The scheduler: rows that are due.
CREATE INDEX semel_inbox_due ON semel_inbox (consumer, due_at) WHERE due_at IS NOT NULL;
-- Recovery: rows whose lease has expired.
CREATE INDEX semel_inbox_lease ON semel_inbox (consumer, lease_until) WHERE status = 'processing';
-- A fencing token names one row.
CREATE UNIQUE INDEX semel_inbox_token ON semel_inbox (lease_token) WHERE lease_token IS NOT NULL;
-- The head of an order key, by arrival and by version.
CREATE INDEX semel_inbox_order ON semel_inbox (consumer, order_key)
    WHERE order_key IS NOT NULL AND (status = 'processing' OR status = 'failed' OR status = 'waiting'
        OR status = 'unknown' OR status = 'dead');
CREATE INDEX semel_inbox_version ON semel_inbox (consumer, order_key, version)
    WHERE order_key IS NOT NULL AND (status = 'processing' OR status = 'failed' OR status = 'waiting'
        OR status = 'unknown' OR status = 'dead');
-- How many are parked, by key and by route.
CREATE INDEX semel_inbox_waiting ON semel_inbox (consumer, order_key) WHERE status = 'waiting';
-- Listings of rows that are not final.
CREATE INDEX semel_inbox_open ON semel_inbox (consumer)
    WHERE (status = 'processing' OR status = 'failed' OR status = 'waiting' OR status = 'unknown' OR status = 'dead'
        OR status = 'quarantined');
-- Purge: final rows by the time of the event, or by the time of processing where the event has none.
CREATE INDEX semel_inbox_aged ON semel_inbox (consumer, source, message_time)
    WHERE message_time IS NOT NULL AND (status = 'completed' OR status = 'rejected' OR status = 'stale'
        OR status = 'prevented');
CREATE INDEX semel_inbox_timeless ON semel_inbox (consumer, source, processed_at)
    WHERE message_time IS NULL AND (status = 'completed' OR status = 'rejected' OR status = 'stale'
        OR status = 'prevented');

-- The same id came again with another fingerprint: the evidence, and how often.
CREATE TABLE semel_conflict (
    consumer    TEXT NOT NULL,
    source      TEXT NOT NULL,
    message_id  TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    count       INTEGER NOT NULL DEFAULT 1 CHECK (count > 0),
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    type        TEXT,
    position    TEXT,
    headers     TEXT,
    payload     BLOB,
    traceparent TEXT,
    UNIQUE (consumer, source, message_id, fingerprint)
) STRICT;

-- One row per consumer and order key, with the highest version that was applied.
CREATE TABLE semel_order_key (
    consumer     TEXT NOT NULL,
    order_key    TEXT NOT NULL,
    last_version INTEGER,
    updated_at   INTEGER NOT NULL DEFAULT 0,    -- when its unfinished set or its version changed last
    PRIMARY KEY (consumer, order_key)
) STRICT, WITHOUT ROWID;

-- The intent behind a message: a new message id with an old intent is prevented.
CREATE TABLE semel_business_key (
    consumer     TEXT NOT NULL,
    business_key TEXT NOT NULL,
    source       TEXT NOT NULL,                 -- the message that holds it
    message_id   TEXT NOT NULL,
    taken_at     INTEGER NOT NULL,
    expires_at   INTEGER,                       -- NULL: never
    PRIMARY KEY (consumer, business_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX semel_business_key_holder ON semel_business_key (consumer, source, message_id);
CREATE INDEX semel_business_key_expiry ON semel_business_key (consumer, expires_at) WHERE expires_at IS NOT NULL;

-- One row per failed attempt, and evidence such as a late completion that was refused.
CREATE TABLE semel_attempt (
    id          INTEGER PRIMARY KEY,
    consumer    TEXT NOT NULL,
    source      TEXT NOT NULL,
    message_id  TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    worker      TEXT,
    error_class TEXT,
    error_text  TEXT
) STRICT;

CREATE INDEX semel_attempt_message ON semel_attempt (consumer, source, message_id);

-- Nothing that was made before the watermark may run: its record may have been purged.
CREATE TABLE semel_watermark (
    consumer   TEXT NOT NULL,
    source     TEXT NOT NULL,
    watermark  INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (consumer, source)
) STRICT, WITHOUT ROWID;

-- Who did what to which row, and why.
CREATE TABLE semel_audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    who        TEXT NOT NULL,
    what       TEXT NOT NULL,
    reason     TEXT NOT NULL,
    consumer   TEXT,
    source     TEXT,
    message_id TEXT
) STRICT;
