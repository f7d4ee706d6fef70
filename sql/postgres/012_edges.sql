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
DROP TRIGGER IF EXISTS begun_has_its_end ON semel.inbox;
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
CREATE INDEX inbox_arrival ON semel.inbox USING brin (arrival) WITH (autosummarize = on);

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

-- Keys were taken by an arrival before: those of messages that never started become wishes. And a key does not expire
-- while its holder is unfinished.
INSERT INTO semel.business_want (consumer, business_key, source, message_id)
SELECT b.consumer, b.business_key, b.source, b.message_id
FROM semel.business_key AS b JOIN semel.inbox AS i USING (consumer, source, message_id)
WHERE i.attempts = 0 AND i.status IN ('waiting', 'quarantined', 'dead', 'failed');
DELETE FROM semel.business_key AS b USING semel.business_want AS w
WHERE w.consumer = b.consumer AND w.business_key = b.business_key;
UPDATE semel.business_key AS b SET expires_at = NULL FROM semel.inbox AS i
WHERE b.expires_at IS NOT NULL AND i.consumer = b.consumer AND i.source = b.source AND i.message_id = b.message_id
  AND i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead');

-- ---- settings under stored rows -----------------------------------------------------------------------------------

-- Which route's file set the consumer last, on which machine and when; NULL: none did, or a person has set it since.
ALTER TABLE semel.consumer ADD COLUMN set_by_host text, ADD COLUMN set_by_file text,
    ADD COLUMN set_by_at timestamptz;

-- ULIDs were recognised unasked before. Where they are among the newest messages of a source that had a time, they stay
-- so: without it, copies of what was purged would run again. By the index of what a purge takes, a hundred rows each.
WITH RECURSIVE place AS (
    (SELECT i.consumer, i.source FROM semel.inbox AS i
     WHERE i.message_time IS NOT NULL AND i.status IN ('completed', 'rejected', 'stale', 'prevented')
     ORDER BY i.consumer, i.source, i.message_time::timestamptz(0) LIMIT 1)
    UNION ALL
    SELECT n.consumer, n.source
    FROM place AS p CROSS JOIN LATERAL (
        SELECT i.consumer, i.source FROM semel.inbox AS i
        WHERE (i.consumer, i.source) > (p.consumer, p.source)
              AND i.message_time IS NOT NULL AND i.status IN ('completed', 'rejected', 'stale', 'prevented')
        ORDER BY i.consumer, i.source, i.message_time::timestamptz(0) LIMIT 1) AS n
), newest AS (
    SELECT p.consumer, pg_catalog.upper(n.message_id) COLLATE "C" AS id, n.message_time
    FROM place AS p CROSS JOIN LATERAL (
        SELECT i.message_id, i.message_time FROM semel.inbox AS i
        WHERE i.consumer = p.consumer AND i.source = p.source
              AND i.message_time::timestamptz(0) < pg_catalog.now() + interval '1 day'
              AND i.message_time IS NOT NULL AND i.status IN ('completed', 'rejected', 'stale', 'prevented')
        ORDER BY i.message_time::timestamptz(0) DESC LIMIT 100) AS n
), ulids AS (
    SELECT DISTINCT n.consumer
    FROM newest AS n CROSS JOIN LATERAL (
        SELECT pg_catalog.sum((pg_catalog.strpos('0123456789ABCDEFGHJKMNPQRSTVWXYZ',
                                                 pg_catalog.substr(n.id, d.place, 1)) - 1)::bigint
                              << 5 * (10 - d.place)) AS ms
        FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10)) AS d (place)) AS t
    WHERE n.id ~ '^[0-7][0-9A-HJKMNP-TV-Z]{25}$' AND t.ms >= 1262304000000
          AND n.message_time = timestamptz 'epoch' + t.ms::bigint * interval '1 millisecond'
)
INSERT INTO semel.consumer AS c (consumer, settings, updated_at)
SELECT u.consumer, '{"timed_ids": true}', pg_catalog.now() FROM ulids AS u
ON CONFLICT (consumer) DO UPDATE SET settings = c.settings || excluded.settings, updated_at = excluded.updated_at;

-- ---- housekeeping -------------------------------------------------------------------------------------------------

-- Purge: final rows by their end, to the second, so that many rows share an entry. The time of the event is looked at
-- in the row.
DROP INDEX IF EXISTS semel.inbox_aged, semel.inbox_timeless;
CREATE INDEX inbox_final ON semel.inbox (consumer, source, (processed_at::timestamptz(0)))
    WHERE status IN ('completed', 'rejected', 'stale', 'prevented');
-- The sweep: rows that wait without a due time.
CREATE INDEX inbox_still ON semel.inbox (consumer, order_key) WHERE status = 'waiting' AND due_at IS NULL;
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
CREATE INDEX inbox_large ON semel.inbox (consumer, (octet_length(payload))) WHERE status IN ('dead', 'quarantined');

INSERT INTO semel.schema (version, name) VALUES (12, 'edges');
