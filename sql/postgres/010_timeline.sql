-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: was the server promoted?
--
-- A standby that is promoted, and a server that is restored to an earlier moment, begin a new timeline. What their
-- predecessor had committed and they did not get is gone, effect and record alike. Nothing here can bring it back; but
-- it is noticed, recorded and reported.
--
-- Invariants: the newest row is the timeline that was seen last; every row but the first has a line in the audit.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

CREATE TABLE semel.timeline (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    timeline   bigint NOT NULL,                             -- the only column that is given; a trigger knows the others
    former     bigint,                                      -- NULL: the first that was seen
    noticed_at timestamptz NOT NULL,
    kept_until timestamptz,                                 -- the last commit of the former that is here, if known
    note       text                                         -- what is to be told
);

INSERT INTO semel.schema (version, name) VALUES (10, 'timeline');
