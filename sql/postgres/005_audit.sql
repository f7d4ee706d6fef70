-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the audit log.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

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

INSERT INTO semel.schema (version, name) VALUES (5, 'audit');
