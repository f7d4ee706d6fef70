-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: what transactions and workers hold at the moment.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- What was begun, until its end, and what was claimed, so that a late end leaves evidence. Rows of `begun` are never
-- committed. Unlogged: after a crash the former have been rolled back, and the latter lose their evidence only.
CREATE UNLOGGED TABLE semel.held (
    token      bigint PRIMARY KEY,
    kind       text COLLATE "C" NOT NULL CHECK (kind IN ('begun', 'loose', 'claimed')),
    consumer   text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    attempt    integer NOT NULL,
    at         timestamptz NOT NULL
);

ALTER TABLE semel.held SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

-- The same for a message that had no row and has no order key: its row is inserted as `completed` at once, which nobody
-- else can see before the COMMIT, and only a failure or an outcome writes it again. The payload is kept here for the
-- former. No row of this table is ever committed; how many there are is counted in the setting semel.begun_more. A
-- plain message that is begun alone is remembered in the setting semel.begun, and needs no row here (016).
CREATE UNLOGGED TABLE semel.begun (
    consumer   text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    headers    text,
    payload    bytea,
    watched    boolean,                                     -- at the COMMIT, for all of its batch
    PRIMARY KEY (consumer, source, message_id)
);

ALTER TABLE semel.begun SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

INSERT INTO semel.schema (version, name) VALUES (9, 'held');
