-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: how far back messages may run.

-- Nothing that was made before the watermark may run: its record may have been purged.
CREATE TABLE semel.watermark (
    consumer   text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    watermark  timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (consumer, source)
);

INSERT INTO semel.schema (version, name) VALUES (4, 'watermark');
