-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the settings of consumers.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- The settings of a consumer, for C, SQL, command line and daemon; a consumer without a row has the defaults.
CREATE TABLE semel.consumer (
    consumer   text COLLATE "C" PRIMARY KEY,
    settings   jsonb NOT NULL CHECK (jsonb_typeof(settings) = 'object' AND octet_length(settings::text) <= 4096),
    updated_at timestamptz NOT NULL
);

INSERT INTO semel.schema (version, name) VALUES (7, 'consumer');
