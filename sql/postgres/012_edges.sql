-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: what the rules of 013 and later need of the tables.
--
-- The files before this one hold tables, those after it functions and the types they pass on. A database that was made
-- before this division has older functions, which are dropped here and defined anew; grants on them go with them, so
-- run roles.sql again.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

DROP TRIGGER IF EXISTS consumer_written ON semel.consumer;
ALTER TABLE semel.consumer DROP COLUMN IF EXISTS policy;
DROP TRIGGER IF EXISTS begun_has_its_end ON semel.held;
DROP TRIGGER IF EXISTS begun_has_its_end ON semel.begun;
DROP TRIGGER IF EXISTS begun_has_its_end ON semel.record;
DROP TRIGGER IF EXISTS timeline_is_noted ON semel.timeline;

DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT p.oid::pg_catalog.regprocedure AS name FROM pg_catalog.pg_proc AS p
               WHERE p.pronamespace = 'semel'::pg_catalog.regnamespace AND p.proname <> '_position_holds' LOOP
        EXECUTE pg_catalog.format('DROP FUNCTION %s', old.name);
    END LOOP;
    FOR old IN SELECT t.oid::pg_catalog.regtype AS name
               FROM pg_catalog.pg_type AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.typrelid
               WHERE t.typnamespace = 'semel'::pg_catalog.regnamespace AND c.relkind = 'c' LOOP
        EXECUTE pg_catalog.format('DROP TYPE %s', old.name);
    END LOOP;
END $$;

-- ---- who may act for whom -----------------------------------------------------------------------------------------

-- Which role may act for which consumer through the functions; `*` is every consumer, and whoever is a member of the
-- role may, too. Empty: everybody who may call the functions acts for every consumer.
CREATE TABLE semel.access (
    consumer text COLLATE "C" NOT NULL,
    role     name NOT NULL,
    PRIMARY KEY (consumer, role)
);

-- ---- tokens and refused ends --------------------------------------------------------------------------------------

-- A fencing token is made of the clock, the effect of its claim and chance (semel._token): a sequence would begin anew
-- in a restored database. Those that are held stay valid.
DROP SEQUENCE IF EXISTS semel.token;

-- Sequences do not follow their tables through a dump of data, a logical switchover or a blue/green deployment.
-- semel._sequences notices and moves them past what is stored; this index tells at next to no cost whether there is a
-- row beyond the sequence, and this table what was noticed.
CREATE INDEX inbox_arrival ON semel.record USING brin (arrival) WITH (autosummarize = on);

CREATE TABLE semel.restart (
    noticed_at timestamptz PRIMARY KEY,
    note       text NOT NULL
);

-- refused: an end that came too late, whose transaction must not commit.
ALTER TABLE semel.held DROP CONSTRAINT held_kind_check;
ALTER TABLE semel.held ADD CONSTRAINT held_kind_check CHECK (kind IN ('begun', 'loose', 'claimed', 'refused'));

-- ---- versions ------------------------------------------------------------------------------------------------------

-- Versions of the key that ended without effect while earlier ones are missing, ascending; nearly always NULL.
ALTER TABLE semel.order_key ADD COLUMN skipped bigint[];

-- ---- business keys ------------------------------------------------------------------------------------------------

-- Business keys that a message wants and does not hold: it is stored and has not started. Its start takes them.
CREATE TABLE semel.business_want (
    consumer     text COLLATE "C" NOT NULL,
    business_key text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,
    message_id   text COLLATE "C" NOT NULL,
    PRIMARY KEY (consumer, business_key, source, message_id)
);

CREATE INDEX business_want_message ON semel.business_want (consumer, source, message_id);

-- ---- settings under stored rows -----------------------------------------------------------------------------------

-- Which route's file set the consumer last, on which machine and when; NULL: none did, or a person has set it since.
ALTER TABLE semel.consumer ADD COLUMN set_by_host text, ADD COLUMN set_by_file text,
    ADD COLUMN set_by_at timestamptz;

-- ---- housekeeping -------------------------------------------------------------------------------------------------

-- The sweep: rows that wait without a due time.
CREATE INDEX inbox_still ON semel.record (open_for, order_key)
    WHERE open_for IS NOT NULL AND coalesce(status, 'completed') = 'waiting' AND due_at IS NULL;
CREATE INDEX conflict_age ON semel.conflict (consumer, last_at);

-- When the key's unfinished set or its version changed last: what says nothing any more is purged by it.
ALTER TABLE semel.order_key ADD COLUMN updated_at timestamptz NOT NULL DEFAULT clock_timestamp();

-- Where housekeeping in steps goes on: the key that the last step of `what` ended with.
CREATE TABLE semel.place (
    consumer text COLLATE "C" NOT NULL,
    what     text COLLATE "C" NOT NULL,                     -- sweep or keys
    place    text COLLATE "C" NOT NULL,
    PRIMARY KEY (consumer, what)
);

-- ---- what exceeds payload_max -------------------------------------------------------------------------------------

-- How many messages above a consumer's payload_max are kept is counted when one more comes, however many are dead.
CREATE INDEX inbox_large ON semel.record (open_for, (octet_length(payload)))
    WHERE open_for IS NOT NULL AND coalesce(status, 'completed') IN ('dead', 'quarantined');

INSERT INTO semel.schema (version, name) VALUES (12, 'edges');
