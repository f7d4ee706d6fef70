-- SPDX-License-Identifier: MIT
--
-- Semel on SQLite: what the rules at the edges need: after the retention, after settings changed, after a discard.


-- A fencing token is made of the clock, the effect of its claim and chance (src/core/token.h): a counter would begin
-- anew in a restored file. Those that are held stay valid.
DELETE FROM semel_counter WHERE name = 'token';

-- Versions of the key that ended without effect while earlier ones are missing: ascending, with commas in between.
ALTER TABLE semel_order_key ADD COLUMN skipped TEXT;

-- Business keys that a message wants and does not hold: it is stored and has not started. Its start takes them.
CREATE TABLE semel_business_want (
    consumer     TEXT NOT NULL,
    business_key TEXT NOT NULL,
    source       TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    PRIMARY KEY (consumer, business_key, source, message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX semel_business_want_message ON semel_business_want (consumer, source, message_id);

-- Keys were taken by an arrival before: those of messages that never started become wishes. And a key does not expire
-- while its holder is unfinished.
INSERT INTO semel_business_want (consumer, business_key, source, message_id)
SELECT b.consumer, b.business_key, b.source, b.message_id
FROM semel_business_key AS b JOIN semel_inbox AS i USING (consumer, source, message_id)
WHERE i.attempts = 0 AND (i.status = 'waiting' OR i.status = 'quarantined' OR i.status = 'dead' OR i.status = 'failed');
DELETE FROM semel_business_key
WHERE EXISTS (SELECT 1 FROM semel_business_want AS w
              WHERE w.consumer = semel_business_key.consumer AND w.business_key = semel_business_key.business_key);
UPDATE semel_business_key SET expires_at = NULL
WHERE expires_at IS NOT NULL
  AND EXISTS (SELECT 1 FROM semel_inbox AS i
              WHERE i.consumer = semel_business_key.consumer AND i.source = semel_business_key.source
                AND i.message_id = semel_business_key.message_id
                AND (i.status = 'processing' OR i.status = 'failed' OR i.status = 'waiting' OR i.status = 'unknown'
                     OR i.status = 'dead'));

-- ---- settings under stored rows -----------------------------------------------------------------------------------

-- Which route's file set the consumer last, on which machine and when; NULL: none did, or a person has set it since.
ALTER TABLE semel_consumer ADD COLUMN set_by_host TEXT;
ALTER TABLE semel_consumer ADD COLUMN set_by_file TEXT;
ALTER TABLE semel_consumer ADD COLUMN set_by_at INTEGER;

-- ULIDs were recognised unasked before. Where they are among the newest messages of a source that had a time, they stay
-- so: without it, copies of what was purged would run again. By the index of what a purge takes, a hundred rows each.
WITH RECURSIVE place (consumer, source) AS (
    SELECT i.consumer, i.source FROM semel_inbox AS i WHERE i.arrival = (
        SELECT n.arrival FROM semel_inbox AS n
        WHERE n.message_time IS NOT NULL AND (n.status = 'completed' OR n.status = 'rejected' OR n.status = 'stale'
              OR n.status = 'prevented')
        ORDER BY n.consumer, n.source LIMIT 1)
    UNION ALL
    SELECT i.consumer, i.source FROM place AS p JOIN semel_inbox AS i ON i.arrival = coalesce(
        (SELECT n.arrival FROM semel_inbox AS n
         WHERE n.consumer = p.consumer AND n.source > p.source
           AND n.message_time IS NOT NULL AND (n.status = 'completed' OR n.status = 'rejected' OR n.status = 'stale'
               OR n.status = 'prevented')
         ORDER BY n.source LIMIT 1),
        (SELECT n.arrival FROM semel_inbox AS n
         WHERE n.consumer > p.consumer
           AND n.message_time IS NOT NULL AND (n.status = 'completed' OR n.status = 'rejected' OR n.status = 'stale'
               OR n.status = 'prevented')
         ORDER BY n.consumer, n.source LIMIT 1))
), digit (n) AS (
    VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10)
)
INSERT INTO semel_consumer (consumer, settings, updated_at)
SELECT DISTINCT p.consumer, '{"timed_ids":true}', CAST(strftime('%s', 'now') AS INTEGER) * 1000000
FROM place AS p
WHERE EXISTS (
    SELECT 1 FROM (SELECT upper(i.message_id) AS id, i.message_time FROM semel_inbox AS i
                   WHERE i.consumer = p.consumer AND i.source = p.source
                     AND i.message_time < (CAST(strftime('%s', 'now') AS INTEGER) + 86400) * 1000000
                     AND i.message_time IS NOT NULL AND (i.status = 'completed' OR i.status = 'rejected'
                         OR i.status = 'stale' OR i.status = 'prevented')
                   ORDER BY i.message_time DESC LIMIT 100) AS t
    WHERE length(t.id) = 26 AND t.id GLOB '[0-7]*' AND t.id NOT GLOB '*[^0-9A-HJKMNP-TV-Z]*'
      AND t.message_time >= 1262304000000000
      AND t.message_time = 1000 * (SELECT sum((instr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', substr(t.id, d.n, 1)) - 1)
                                              << (5 * (10 - d.n))) FROM digit AS d))
ON CONFLICT (consumer) DO UPDATE
SET settings = CASE settings WHEN '{}' THEN excluded.settings ELSE '{"timed_ids":true,' || substr(settings, 2) END,
    updated_at = excluded.updated_at
WHERE settings = '{}' OR (settings GLOB '{"*' AND length(settings) < 4000);

-- ---- housekeeping --------------------------------------------------------------------------------

-- Purge: final rows by their end; the time of the event is looked at in the row.
DROP INDEX semel_inbox_aged;
DROP INDEX semel_inbox_timeless;
CREATE INDEX semel_inbox_final ON semel_inbox (consumer, source, processed_at)
    WHERE (status = 'completed' OR status = 'rejected' OR status = 'stale' OR status = 'prevented');
-- The sweep: rows that wait without a due time.
CREATE INDEX semel_inbox_still ON semel_inbox (consumer, order_key) WHERE status = 'waiting' AND due_at IS NULL;
CREATE INDEX semel_conflict_age ON semel_conflict (consumer, last_at);
