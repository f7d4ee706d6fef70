-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the selections of operators.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- A frozen selection: what a bulk command was given to do, to which rows, by whom and why.
CREATE TABLE semel.selection (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    command text NOT NULL,                                  -- retry, discard or resolve
    who     text NOT NULL,
    reason  text NOT NULL,
    force   boolean NOT NULL DEFAULT false,
    made_at timestamptz NOT NULL
);

CREATE TABLE semel.selected (
    number     bigint NOT NULL REFERENCES semel.selection,
    place      bigint NOT NULL,                             -- from 1, oldest message first
    consumer   text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    updated_at timestamptz NOT NULL,                        -- of the row when it was chosen; a change since then shows
    result     text CHECK (result IN ('done', 'skipped', 'refused')),   -- NULL: not handled yet
    PRIMARY KEY (number, place)
);

CREATE INDEX selected_left ON semel.selected (number, place) WHERE result IS NULL;

INSERT INTO semel.schema (version, name) VALUES (8, 'selection');
