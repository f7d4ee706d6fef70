-- SPDX-License-Identifier: MIT
--
-- Semel on SQLite: the outbox. An event is inserted in the transaction that makes it true, and
-- published afterwards by the relay. The first five columns are those of Debezium's outbox router.
--
-- Applications only insert. seq is the order of commits (SQLite has one writer at a time) and is
-- never used twice, not even after the table was emptied: hence AUTOINCREMENT.

CREATE TABLE semel_outbox (
    id            TEXT NOT NULL UNIQUE CHECK (length(id) = 36),   -- a UUID in lower case
    aggregatetype TEXT NOT NULL,
    aggregateid   TEXT NOT NULL,
    type          TEXT NOT NULL,
    payload       BLOB,
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    headers       TEXT NOT NULL DEFAULT '{}',                     -- a JSON object
    destination   TEXT,                                           -- NULL: where the relay's rule says
    created_at    INTEGER NOT NULL,
    traceparent   TEXT
) STRICT;
