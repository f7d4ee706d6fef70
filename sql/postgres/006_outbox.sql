-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the outbox. An event is inserted in the transaction that makes it true, and published afterwards
-- by the relay. The first five columns are those of Debezium's outbox router. Applications only insert.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

CREATE TABLE semel.outbox (
    id            uuid NOT NULL UNIQUE,
    aggregatetype text COLLATE "C" NOT NULL,
    aggregateid   text COLLATE "C" NOT NULL,
    type          text COLLATE "C" NOT NULL,
    payload       bytea,
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    headers       text NOT NULL DEFAULT '{}',               -- a JSON object
    destination   text,                                     -- NULL: where the relay's rule says
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    traceparent   text
);

INSERT INTO semel.schema (version, name) VALUES (6, 'outbox');
