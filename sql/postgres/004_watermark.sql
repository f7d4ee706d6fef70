-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: how far back messages may run.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- Nothing that was made before the watermark may run: its record may have been purged.
CREATE TABLE semel.watermark (
    consumer   text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    watermark  timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (consumer, source)
);

INSERT INTO semel.schema (version, name) VALUES (4, 'watermark');
