-- SPDX-License-Identifier: MIT
--
-- Semel on SQLite: the outbox. An application inserts an event in the transaction that makes it true; the relay
-- publishes it afterwards. The first five columns are those of Debezium's outbox router.
--
-- Applications only insert. seq is the order of commits (SQLite has one writer at a time) and is
-- never used twice, not even after the table was emptied: hence AUTOINCREMENT. So one shard is enough, number 0.
--
-- An event is in one of three tables: semel_outbox until it is confirmed, semel_outbox_aside while it cannot go now,
-- semel_outbox_sent for as long as confirmed events are kept.

CREATE TABLE semel_outbox (
    id            TEXT NOT NULL UNIQUE CHECK (length(id) = 36),   -- a UUID in lower case
    aggregatetype TEXT NOT NULL,
    aggregateid   TEXT NOT NULL,
    type          TEXT NOT NULL,
    payload       BLOB,                                           -- NULL: a tombstone
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    headers       TEXT NOT NULL DEFAULT '{}',                     -- a JSON object
    destination   TEXT,                                           -- NULL: where the relay's rule says
    created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)),
    traceparent   TEXT
) STRICT;

-- Whole events that cannot go now. Only the first event of an aggregate has a due time; it is looked for by that.
-- Events of a mapped table (semel_outbox_mapped) stand here under a number that Semel draws, in the order of their
-- places.
CREATE TABLE semel_outbox_aside (
    id            TEXT NOT NULL,                                  -- not unique: it may have been put again meanwhile
    aggregatetype TEXT NOT NULL,
    aggregateid   TEXT NOT NULL,
    type          TEXT NOT NULL,
    payload       BLOB,
    seq           INTEGER PRIMARY KEY,
    headers       TEXT NOT NULL,
    destination   TEXT,
    created_at    INTEGER,                                        -- NULL: a mapped table without such a column
    traceparent   TEXT,
    status        TEXT NOT NULL
                  CHECK (status = 'waiting' OR status = 'publishing' OR status = 'failed' OR status = 'dead'),
    attempts      INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),   -- committed starts
    due_at        INTEGER,                                        -- NULL: not the first of its aggregate, or dead
    error_text    TEXT,
    alone         INTEGER NOT NULL DEFAULT 0,                     -- it may have killed its relay: sent by itself
    relay         INTEGER,                                        -- publishing: the token of the relay that does it
    updated_at    INTEGER NOT NULL,
    shard         INTEGER NOT NULL DEFAULT 0,                     -- 0, or that of a mapped table
    place         ANY                                             -- of a mapped table: what its order rests on
) STRICT;
CREATE INDEX semel_outbox_aside_id ON semel_outbox_aside (id);
CREATE INDEX semel_outbox_aside_order ON semel_outbox_aside (aggregatetype, aggregateid, seq);
CREATE INDEX semel_outbox_aside_held ON semel_outbox_aside (relay) WHERE status = 'publishing';
CREATE INDEX semel_outbox_aside_due ON semel_outbox_aside (due_at) WHERE due_at IS NOT NULL;

-- Confirmed events, where the relay keeps them.
CREATE TABLE semel_outbox_sent (
    id            TEXT NOT NULL,
    aggregatetype TEXT NOT NULL,
    aggregateid   TEXT NOT NULL,
    type          TEXT NOT NULL,
    payload       BLOB,
    seq           INTEGER PRIMARY KEY,
    headers       TEXT NOT NULL,
    destination   TEXT,
    created_at    INTEGER NOT NULL,
    traceparent   TEXT,
    sent_at       INTEGER NOT NULL
) STRICT;
CREATE INDEX semel_outbox_sent_id ON semel_outbox_sent (id);
CREATE INDEX semel_outbox_sent_at ON semel_outbox_sent (sent_at);

-- Tables of the user's that are relayed in place of semel_outbox. Each has a shard of its own, a multiple of 64, and
-- numbers of its own from shard << 48 on.
CREATE TABLE semel_outbox_mapped (
    shard    INTEGER PRIMARY KEY CHECK (shard >= 64 AND shard % 64 = 0),
    relation TEXT NOT NULL UNIQUE,                                -- schema and table, quoted
    places   TEXT NOT NULL,                                       -- the column that orders
    drawn    INTEGER NOT NULL                                     -- the last number that was given to an event aside
) STRICT;

-- The relays that are alive. A relay whose lease has run out is deleted by any other one.
CREATE TABLE semel_relay (
    token        INTEGER PRIMARY KEY CHECK (token > 0),
    owner        TEXT NOT NULL,
    destinations TEXT NOT NULL,                                   -- digest of its settings: who differs never shares
    started_at   INTEGER NOT NULL,
    lease_until  INTEGER NOT NULL,
    first_shard  INTEGER NOT NULL,                                -- 0, or that of a mapped table
    down         TEXT                                             -- a destination that takes nothing, and why
) STRICT;

CREATE TABLE semel_outbox_shard (
    shard  INTEGER PRIMARY KEY CHECK (shard % 64 = 0),
    relay  INTEGER,                                               -- a token; NULL: nobody
    losses INTEGER NOT NULL DEFAULT 0                             -- relays that died with it, without progress
) STRICT;
INSERT INTO semel_outbox_shard (shard) VALUES (0);

CREATE VIEW semel_outbox_event AS
    SELECT 'created' AS status, id, aggregatetype, aggregateid, type, seq, 0 AS shard, destination, created_at, headers,
           payload, traceparent, 0 AS attempts, NULL AS due_at, NULL AS error_text, NULL AS sent_at
    FROM semel_outbox
    UNION ALL
    SELECT status, id, aggregatetype, aggregateid, type, seq, shard, destination, created_at, headers, payload,
           traceparent, attempts, due_at, error_text, NULL
    FROM semel_outbox_aside
    UNION ALL
    SELECT 'published', id, aggregatetype, aggregateid, type, seq, 0, destination, created_at, headers, payload,
           traceparent, 0, NULL, NULL, sent_at
    FROM semel_outbox_sent;
