-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the inbox and what belongs to it. Needs PostgreSQL 13 or newer; no extension, no superuser.
--
-- Every table is plain and may be read with any tool. Text is compared by bytes (COLLATE "C"); ids are at most 255
-- bytes of UTF-8. Write through Semel only: the rules live in its code and functions, the checks below are the
-- last line. Run the files in the order of their numbers, each in one transaction.

DO $$
BEGIN
    IF current_setting('server_version_num')::integer < 130000 THEN
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
-- Fencing tokens: each is higher than every earlier one.
CREATE SEQUENCE semel.token;

-- One row a message and consumer, kept until it is final and old enough to be purged.
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
    attempts_before integer NOT NULL DEFAULT 0 CHECK (attempts_before >= 0),   -- of these, before the last replay
    replays         integer NOT NULL DEFAULT 0 CHECK (replays >= 0),
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

-- The scheduler: what is due.
CREATE INDEX inbox_due ON semel.inbox (consumer, due_at) WHERE due_at IS NOT NULL;
-- Recovery: whose lease has run out.
CREATE INDEX inbox_lease ON semel.inbox (consumer, lease_until) WHERE status = 'processing';
-- A fencing token names one row.
CREATE UNIQUE INDEX inbox_token ON semel.inbox (lease_token) WHERE lease_token IS NOT NULL;
-- The head of an order key, by arrival and by version; and how many are parked.
CREATE INDEX inbox_order ON semel.inbox (consumer, order_key, arrival)
    WHERE order_key IS NOT NULL AND status IN ('processing', 'failed', 'waiting', 'unknown', 'dead');
CREATE INDEX inbox_version ON semel.inbox (consumer, order_key, version NULLS FIRST, arrival)
    WHERE order_key IS NOT NULL AND status IN ('processing', 'failed', 'waiting', 'unknown', 'dead');
CREATE INDEX inbox_waiting ON semel.inbox (consumer, order_key) WHERE status = 'waiting';
-- Listings of what is not final, by arrival and by status.
CREATE INDEX inbox_open ON semel.inbox (consumer, arrival)
    WHERE status IN ('processing', 'failed', 'waiting', 'unknown', 'dead', 'quarantined');
CREATE INDEX inbox_held ON semel.inbox (consumer, status, arrival)
    WHERE status IN ('failed', 'waiting', 'unknown', 'dead', 'quarantined');
-- Purge: final rows by the time of the event, or by the time of processing where the event has none. To the second, so
-- that many rows share an entry: 8 bytes a row instead of 60.
CREATE INDEX inbox_aged ON semel.inbox (consumer, source, (message_time::timestamptz(0)))
    WHERE message_time IS NOT NULL AND status IN ('completed', 'rejected', 'stale', 'prevented');
CREATE INDEX inbox_timeless ON semel.inbox (consumer, source, (processed_at::timestamptz(0)))
    WHERE message_time IS NULL AND status IN ('completed', 'rejected', 'stale', 'prevented');

-- The same id came again with another fingerprint: the evidence, and how often.
CREATE TABLE semel.conflict (
    consumer    text COLLATE "C" NOT NULL,
    source      text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    count       bigint NOT NULL DEFAULT 1 CHECK (count > 0),
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    type        text,
    position    text,
    headers     text,
    payload     bytea,
    traceparent text,
    PRIMARY KEY (consumer, source, message_id, fingerprint)
);

-- One row a consumer and order key. It is locked before anything of the key is looked at, and changed with every change
-- of the key's unfinished set, so that a transaction with an older snapshot fails instead of deciding by it.
CREATE TABLE semel.order_key (
    consumer     text COLLATE "C" NOT NULL,
    order_key    text COLLATE "C" NOT NULL,
    last_version bigint,                                    -- the highest version that was applied
    changes      bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, order_key)
) WITH (fillfactor = 70);

-- The intent behind a message: a new message id with an old intent is prevented.
CREATE TABLE semel.business_key (
    consumer     text COLLATE "C" NOT NULL,
    business_key text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,                 -- the message that holds it
    message_id   text COLLATE "C" NOT NULL,
    taken_at     timestamptz NOT NULL,
    expires_at   timestamptz,                               -- NULL: never
    PRIMARY KEY (consumer, business_key)
);

CREATE INDEX business_key_holder ON semel.business_key (consumer, source, message_id);
CREATE INDEX business_key_expiry ON semel.business_key (consumer, expires_at) WHERE expires_at IS NOT NULL;

-- One row a failed attempt, and evidence such as a late completion that was refused.
CREATE TABLE semel.attempt (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer    text COLLATE "C" NOT NULL,
    source      text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    attempt     integer NOT NULL,
    at          timestamptz NOT NULL,
    worker      text,
    error_class text,
    error_text  text
);

CREATE INDEX attempt_message ON semel.attempt (consumer, source, message_id);

-- Nothing that was made before the watermark may run: its record may have been purged.
CREATE TABLE semel.watermark (
    consumer   text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    watermark  timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (consumer, source)
);

-- Who did what to which row, and why.
CREATE TABLE semel.audit (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    who        text NOT NULL,
    what       text NOT NULL,
    reason     text NOT NULL,
    consumer   text COLLATE "C",
    source     text COLLATE "C",
    message_id text COLLATE "C"
);

CREATE INDEX audit_message ON semel.audit (consumer, source, message_id);

INSERT INTO semel.schema (version, name) VALUES (1, 'inbox');
