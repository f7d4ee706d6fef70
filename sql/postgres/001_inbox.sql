-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the inbox. Needs PostgreSQL 13 or newer; no extension, no superuser.
--
-- Every table is plain and may be read with any tool. Text is compared by bytes (COLLATE "C"); ids are at most 255
-- bytes of UTF-8. Write through Semel only: the rules live in its code and functions, the checks below are the
-- last line. Run the files in the order of their numbers, each in one transaction.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called

DO $$
BEGIN
    IF pg_catalog.current_setting('search_path'::text) OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp'::text THEN
        RAISE EXCEPTION USING ERRCODE = 'no_active_sql_transaction',
            MESSAGE = 'this file has to run in one transaction, so that it finds nothing in the schema public',
            HINT = 'psql -v ON_ERROR_STOP=1 -1 -f FILE';
    ELSIF current_setting('server_version_num')::integer < 130000 THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
            MESSAGE = format('the server is PostgreSQL %s; Semel needs 13 or newer', current_setting('server_version'));
    ELSIF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
            MESSAGE = format('the database is in %s; Semel needs one in UTF8', current_setting('server_encoding')),
            HINT = 'CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE template0';
    END IF;
END $$;

CREATE SCHEMA semel;

-- Which of these files has been applied, and when: each ends with its own line.
CREATE TABLE semel.schema (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A batch draws one number; a message's arrival is that number times 16384, plus its place in the batch.
CREATE SEQUENCE semel.arrival;
-- Fencing tokens, until 012.
CREATE SEQUENCE semel.token;

-- One row per message and consumer, kept until it is final and old enough to be purged.
CREATE TABLE semel.inbox (
    arrival         bigint NOT NULL,
    received_at     timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    processed_at    timestamptz,                            -- when it became final
    due_at          timestamptz,                            -- when the scheduler looks again
    message_time    timestamptz,                            -- when the event was made, from its id or its attributes
    version         bigint,
    lease_until     timestamptz,
    lease_token     bigint,
    attempts        integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),          -- committed starts in all
    attempts_before integer NOT NULL DEFAULT 0 CHECK (attempts_before >= 0),   -- of these, before the last retry
    retries         integer NOT NULL DEFAULT 0 CHECK (retries >= 0),
    alone           boolean NOT NULL DEFAULT false,                            -- must run by itself
    consumer        text COLLATE "C" NOT NULL,              -- the route: who is to be affected once
    source          text COLLATE "C" NOT NULL,              -- the stream that the id belongs to
    message_id      text COLLATE "C" NOT NULL,
    status          text COLLATE "C" NOT NULL
                    CHECK (status IN ('processing', 'completed', 'failed', 'waiting', 'rejected', 'unknown', 'dead',
                                      'stale', 'prevented', 'quarantined')),
    type            text COLLATE "C",
    fingerprint     bytea,                                  -- a letter for the kind, then the digest
    order_key       text COLLATE "C",
    lease_owner     text COLLATE "C",
    error_class     text COLLATE "C",
    error_text      text,
    outcome         text,                                   -- JSON
    position        text,                                   -- where the broker keeps it
    headers         text,                                   -- a JSON object; kept as long as the payload
    payload         bytea,                                  -- NULL: not kept
    traceparent     text,
    PRIMARY KEY (consumer, source, message_id),
    CHECK (octet_length(message_id) <= 255 AND octet_length(source) <= 255),
    CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CHECK ((status = 'processing') = (lease_token IS NOT NULL))
);

-- Inserts at one end and deletes at the other are the normal life of this table. What purge leaves is vacuumed when it
-- is 2 % of the table, not 20 %; not by numbers alone, because every vacuum reads all of the indexes. What was inserted
-- is vacuumed by numbers: that reads the new pages only.
ALTER TABLE semel.inbox SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 500000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 50000);

-- All further indexes are partial, so that a completed row pays for the key above and for one of the two purge indexes,
-- and for nothing else.

-- The scheduler: rows that are due.
CREATE INDEX inbox_due ON semel.inbox (consumer, due_at) WHERE due_at IS NOT NULL;
-- Recovery: rows whose lease has expired.
CREATE INDEX inbox_lease ON semel.inbox (consumer, lease_until) WHERE status = 'processing';
-- A fencing token names one row.
CREATE UNIQUE INDEX inbox_token ON semel.inbox (lease_token) WHERE lease_token IS NOT NULL;
-- The head of an order key, by arrival and by version; and how many are parked.
CREATE INDEX inbox_order ON semel.inbox (consumer, order_key, arrival)
    WHERE order_key IS NOT NULL AND status IN ('processing', 'failed', 'waiting', 'unknown', 'dead');
CREATE INDEX inbox_version ON semel.inbox (consumer, order_key, version NULLS FIRST, arrival)
    WHERE order_key IS NOT NULL AND status IN ('processing', 'failed', 'waiting', 'unknown', 'dead');
CREATE INDEX inbox_waiting ON semel.inbox (consumer, order_key) WHERE status = 'waiting';
-- Listings of rows that are not final, by arrival and by status.
CREATE INDEX inbox_open ON semel.inbox (consumer, arrival)
    WHERE status IN ('processing', 'failed', 'waiting', 'unknown', 'dead', 'quarantined');
CREATE INDEX inbox_held ON semel.inbox (consumer, status, arrival)
    WHERE status IN ('failed', 'waiting', 'unknown', 'dead', 'quarantined');
-- Purge: final rows by the time of the event, or by the time of processing where the event has none. To the second, so
-- that many rows share an entry: 8 bytes per row instead of 60.
CREATE INDEX inbox_aged ON semel.inbox (consumer, source, (message_time::timestamptz(0)))
    WHERE message_time IS NOT NULL AND status IN ('completed', 'rejected', 'stale', 'prevented');
CREATE INDEX inbox_timeless ON semel.inbox (consumer, source, (processed_at::timestamptz(0)))
    WHERE message_time IS NULL AND status IN ('completed', 'rejected', 'stale', 'prevented');

INSERT INTO semel.schema (version, name) VALUES (1, 'inbox');
