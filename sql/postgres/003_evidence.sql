-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: what went wrong: conflicts, and attempts that failed.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

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

-- One row per failed attempt, and evidence such as a late completion that was refused.
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

INSERT INTO semel.schema (version, name) VALUES (3, 'evidence');
