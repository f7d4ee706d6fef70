-- SPDX-License-Identifier: MIT
--
-- Semel on SQLite: the settings of consumers, and the selections of operators.

-- The settings of a consumer, for C, SQL, command line and daemon; a consumer without a row has the defaults.
CREATE TABLE semel_consumer (
    consumer   TEXT NOT NULL PRIMARY KEY,
    settings   TEXT NOT NULL CHECK (length(CAST(settings AS BLOB)) <= 4096),   -- a JSON object
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A frozen selection: what a bulk command was given to do, to which rows, by whom and why.
CREATE TABLE semel_selection (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    command TEXT NOT NULL,                      -- retry, discard or resolve
    who     TEXT NOT NULL,
    reason  TEXT NOT NULL,
    force   INTEGER NOT NULL DEFAULT 0 CHECK (force IN (0, 1)),
    made_at INTEGER NOT NULL
) STRICT;

CREATE TABLE semel_selected (
    number     INTEGER NOT NULL,
    place      INTEGER NOT NULL,                -- from 1, oldest message first
    consumer   TEXT NOT NULL,
    source     TEXT NOT NULL,
    message_id TEXT NOT NULL,
    updated_at INTEGER NOT NULL,                -- of the row when it was chosen: it must not have changed since
    result     TEXT CHECK (result IN ('done', 'skipped', 'refused')),   -- NULL: not handled yet
    PRIMARY KEY (number, place)
) STRICT, WITHOUT ROWID;

CREATE INDEX semel_selected_left ON semel_selected (number, place) WHERE result IS NULL;

-- Counts and lists of one state, oldest first. The condition is spelled so that a completed row fails it at once.
CREATE INDEX semel_inbox_held ON semel_inbox (consumer, status)
    WHERE status <> 'completed' AND status <> 'processing' AND status <> 'rejected' AND status <> 'stale'
          AND status <> 'prevented';
-- What was done to a message.
CREATE INDEX semel_audit_message ON semel_audit (consumer, source, message_id);
