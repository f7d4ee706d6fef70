-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the outbox. An application inserts an event in the transaction that makes it true; the relay
-- publishes it afterwards. The first five columns are those of Debezium's outbox router. Applications only insert.
--
-- An event is in one of three tables: `outbox` until it is confirmed, `outbox_aside` while it cannot go now,
-- `outbox_sent` for as long as confirmed events are kept. The view outbox_event shows all of them with their status.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- The events of an aggregate are in one shard, for ever. There is no index on seq alone: the planner would take it, and
-- walk dead rows.
CREATE TABLE semel.outbox (
    id            uuid NOT NULL UNIQUE,
    aggregatetype text COLLATE "C" NOT NULL,
    aggregateid   text COLLATE "C" NOT NULL,
    type          text COLLATE "C" NOT NULL,
    payload       bytea,                                    -- NULL: a tombstone
    seq           bigint GENERATED ALWAYS AS IDENTITY,      -- CACHE 1: the relay's order rests on it
    shard         smallint NOT NULL GENERATED ALWAYS AS
                  (get_byte(decode(md5(aggregatetype || '/' || aggregateid), 'hex'), 0) & 63) STORED,
    headers       text NOT NULL DEFAULT '{}',               -- a JSON object
    destination   text,                                     -- NULL: where the relay's rule says
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    traceparent   text,
    PRIMARY KEY (shard, seq),
    CONSTRAINT outbox_aggregate_is_too_long CHECK (octet_length(aggregatetype) + octet_length(aggregateid) <= 2000)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Whole events that cannot go now. Only the first event of an aggregate has a due time; it is looked for by that.
-- Events of a mapped table (outbox_mapped) stand here under a number that Semel draws, in the order of their places.
CREATE TABLE semel.outbox_aside (
    id            text COLLATE "C" NOT NULL,                -- not unique: it may have been put again meanwhile
    aggregatetype text COLLATE "C" NOT NULL,
    aggregateid   text COLLATE "C" NOT NULL,
    type          text COLLATE "C" NOT NULL,
    payload       bytea,
    seq           bigint NOT NULL,
    shard         smallint NOT NULL,
    headers       text NOT NULL,
    destination   text,
    created_at    timestamptz,                              -- NULL: a mapped table without such a column
    traceparent   text,
    status        text NOT NULL CHECK (status IN ('waiting', 'publishing', 'failed', 'dead')),
    attempts      integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),     -- committed starts
    due_at        timestamptz,                              -- NULL: not the first of its aggregate, or dead
    error_text    text,
    alone         boolean NOT NULL DEFAULT false,           -- it may have killed its relay: sent by itself
    relay         bigint,                                   -- publishing: the token of the relay that does it
    updated_at    timestamptz NOT NULL,
    place         text COLLATE "C",                         -- of a mapped table: the value of the column that orders
    PRIMARY KEY (shard, seq)
);
CREATE INDEX outbox_aside_id ON semel.outbox_aside (id);
CREATE INDEX outbox_aside_order ON semel.outbox_aside (aggregatetype, aggregateid, seq);
CREATE INDEX outbox_aside_due ON semel.outbox_aside (shard, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_aside_held ON semel.outbox_aside (status, seq) WHERE status IN ('publishing', 'dead');

-- Confirmed events, where the relay keeps them.
CREATE TABLE semel.outbox_sent (
    id            text COLLATE "C" NOT NULL,
    aggregatetype text COLLATE "C" NOT NULL,
    aggregateid   text COLLATE "C" NOT NULL,
    type          text COLLATE "C" NOT NULL,
    payload       bytea,
    seq           bigint NOT NULL,
    shard         smallint NOT NULL,
    headers       text NOT NULL,
    destination   text,
    created_at    timestamptz NOT NULL,
    traceparent   text,
    sent_at       timestamptz NOT NULL
);
CREATE INDEX outbox_sent_id ON semel.outbox_sent (id);
CREATE INDEX outbox_sent_at ON semel.outbox_sent (sent_at);

-- Tables of the user's that are relayed in place of `outbox`. Each has a shard of its own, a multiple of 64.
CREATE TABLE semel.outbox_mapped (
    shard    smallint PRIMARY KEY CHECK (shard >= 64 AND shard % 64 = 0),
    relation text COLLATE "C" NOT NULL UNIQUE,              -- schema and table, quoted
    places   text COLLATE "C" NOT NULL,                     -- the column that orders and its type: outbox_aside.place
    drawn    bigint NOT NULL                                -- the last number that was given to an event aside
);

-- The relays that are alive. A relay whose lease has run out is deleted by any other one.
CREATE TABLE semel.relay (
    token        bigint PRIMARY KEY CHECK (token > 0),
    owner        text NOT NULL,
    destinations text NOT NULL,                             -- digest of its settings: relays that differ never share
    started_at   timestamptz NOT NULL,
    lease_until  timestamptz NOT NULL,
    first_shard  smallint NOT NULL,                         -- of those that it shares: 0, or that of a mapped table
    down         text                                       -- a destination that takes nothing, and why; NULL: none
);

-- Who publishes which shard; rewritten only at a hand-over.
CREATE TABLE semel.outbox_shard (
    shard  smallint PRIMARY KEY CHECK (shard BETWEEN 0 AND 63 OR shard > 0 AND shard % 64 = 0),
    relay  bigint,                                          -- a token; NULL: nobody
    losses integer NOT NULL DEFAULT 0                       -- relays that died with it, without progress in between
);
INSERT INTO semel.outbox_shard (shard) SELECT s FROM generate_series(0, 63) AS s;

CREATE VIEW semel.outbox_event AS
    SELECT 'created' AS status, id::text COLLATE "C" AS id, aggregatetype, aggregateid, type, seq, shard, destination,
           created_at, headers, payload, traceparent, 0 AS attempts, NULL::timestamptz AS due_at,
           NULL::text AS error_text, NULL::timestamptz AS sent_at
    FROM semel.outbox
    UNION ALL
    SELECT status, id, aggregatetype, aggregateid, type, seq, shard, destination, created_at, headers, payload,
           traceparent, attempts, due_at, error_text, NULL
    FROM semel.outbox_aside
    UNION ALL
    SELECT 'published', id, aggregatetype, aggregateid, type, seq, shard, destination, created_at, headers, payload,
           traceparent, 0, NULL, NULL, sent_at
    FROM semel.outbox_sent;

-- The highest number that is stored, by the index of each shard.
CREATE VIEW semel.outbox_last AS
    SELECT max(greatest(o.seq, a.seq)) AS seq
    FROM generate_series(0, 63) AS s (shard)
    LEFT JOIN LATERAL (SELECT seq FROM semel.outbox WHERE shard = s.shard ORDER BY seq DESC LIMIT 1) AS o ON true
    LEFT JOIN LATERAL (SELECT seq FROM semel.outbox_aside WHERE shard = s.shard ORDER BY seq DESC LIMIT 1) AS a ON true;

INSERT INTO semel.schema (version, name) VALUES (6, 'outbox');
