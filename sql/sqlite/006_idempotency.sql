-- SPDX-License-Identifier: MIT
--
-- Semel on SQLite: idempotency keys. A row is named by its caller (scope) and the caller's key; docs/idempotency.md has
-- the rules. Times are microseconds since 1970.

CREATE TABLE semel_idempotency (
    scope        TEXT NOT NULL,                                -- the caller
    key          TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('processing', 'completed', 'unknown')),
    token        INTEGER NOT NULL,                             -- of the last claim (src/core/token.h)
    fingerprint  BLOB,                                         -- a letter for the kind, then the digest
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,                             -- when the status was set
    lease_until  INTEGER,                                      -- NULL: it ends in the transaction that began it
    lease_owner  TEXT,
    answer_us    INTEGER NOT NULL,                             -- how long answer and key are kept after completion
    keep_us      INTEGER NOT NULL,
    cause        TEXT,                                         -- why the outcome is unknown
    code         INTEGER,                                      -- the answer
    headers      TEXT,                                         -- a JSON array of pairs
    body         BLOB,                                         -- NULL: not kept
    completed_at INTEGER,
    answer_until INTEGER,
    key_until    INTEGER,
    origin       TEXT,                                         -- of the browser that was answered
    rule         TEXT,
    traceparent  TEXT,
    PRIMARY KEY (scope, key),
    CHECK (length(CAST(scope AS BLOB)) BETWEEN 1 AND 255 AND length(CAST(key AS BLOB)) BETWEEN 1 AND 255),
    CHECK ((status = 'completed') = (completed_at IS NOT NULL AND code IS NOT NULL AND answer_until IS NOT NULL
                                     AND key_until IS NOT NULL))
) STRICT;

-- A token names one row that is not completed.
CREATE UNIQUE INDEX semel_idempotency_token ON semel_idempotency (token) WHERE status IN ('processing', 'unknown');
CREATE INDEX semel_idempotency_lease ON semel_idempotency (lease_until) WHERE status = 'processing';
CREATE INDEX semel_idempotency_unknown ON semel_idempotency (updated_at) WHERE status = 'unknown';
CREATE INDEX semel_idempotency_answer ON semel_idempotency (answer_until) WHERE body IS NOT NULL;
CREATE INDEX semel_idempotency_key ON semel_idempotency (key_until) WHERE status = 'completed';
