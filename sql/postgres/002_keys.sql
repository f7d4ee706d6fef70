-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the keys of messages: their order, and the intent behind them.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- One row per consumer and order key. It is locked before the rows of the key are read, and changed with every change
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

INSERT INTO semel.schema (version, name) VALUES (2, 'keys');
