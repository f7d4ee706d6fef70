-- SPDX-License-Identifier: MIT
--
-- How long things are kept.

-- fragment: final
(status = 'completed' OR status = 'rejected' OR status = 'stale' OR status = 'prevented')

-- name: source_list
-- One step into the index per source, however many rows it has.
-- gives: source
WITH RECURSIVE s (source) AS (
    SELECT min(source) FROM main.semel_inbox WHERE consumer = :consumer
    UNION ALL
    SELECT (SELECT min(i.source) FROM main.semel_inbox AS i WHERE i.consumer = :consumer AND i.source > s.source)
    FROM s WHERE s.source IS NOT NULL)
SELECT source FROM s WHERE source IS NOT NULL

-- name: watermark_make
-- none: watermark_raise makes it, too

-- name: watermark_raise
INSERT INTO main.semel_watermark (consumer, source, watermark, updated_at) VALUES (:consumer, :source, :watermark, :now)
ON CONFLICT (consumer, source) DO UPDATE SET watermark = excluded.watermark, updated_at = excluded.updated_at
WHERE watermark < excluded.watermark

-- name: watermark_raised
-- gives: watermark
SELECT watermark FROM main.semel_watermark
WHERE consumer = :consumer AND source = :source AND watermark >= :watermark

-- fragment: ended
(SELECT arrival, message_id, message_time FROM main.semel_inbox
 WHERE consumer = :consumer AND source = :source AND {final} AND processed_at < :before
 ORDER BY processed_at, arrival LIMIT :looks)

-- fragment: aged(before)
-- By their end; the time of the message is looked at in the row.
FROM {ended}
WHERE message_time IS NULL OR message_time < {before} LIMIT :limit

-- fragment: below_watermark
min(:before, ifnull((SELECT watermark FROM main.semel_watermark WHERE consumer = :consumer AND source = :source),
                    -9223372036854775807))

-- name: aged
-- Counts how far it looked only where it did not find enough.
-- gives: count, message_time, looked
SELECT count(*) AS count, max(message_time) AS message_time,
CASE WHEN count(*) < :limit THEN (SELECT count(*) FROM {ended}) END AS looked
FROM (SELECT message_time {aged(:before)})

-- name: purge_attempts
-- It chooses the same rows as purge, because nothing changes between them.
DELETE FROM main.semel_attempt WHERE consumer = :consumer AND source = :source
AND message_id IN (SELECT message_id {aged({below_watermark})})

-- name: purge
-- gives: changes
DELETE FROM main.semel_inbox WHERE arrival IN (SELECT arrival {aged({below_watermark})})

-- name: purge_conflicts
DELETE FROM main.semel_conflict WHERE rowid IN (
    SELECT rowid FROM main.semel_conflict WHERE consumer = :consumer AND last_at < :before
    ORDER BY last_at LIMIT :limit)

-- name: purge_keys_end
-- gives: order_key, count
SELECT max(order_key) AS order_key, count(*) AS count FROM (
    SELECT order_key FROM main.semel_order_key WHERE consumer = :consumer AND order_key > :after_key
    ORDER BY order_key LIMIT 10 * :limit)

-- name: purge_keys
DELETE FROM main.semel_order_key
WHERE consumer = :consumer AND order_key > :after_key AND order_key <= :last_key
AND last_version IS NULL AND skipped IS NULL AND updated_at < :before
AND NOT EXISTS (SELECT 1 FROM main.semel_inbox AS i
                WHERE i.consumer = :consumer AND i.order_key = semel_order_key.order_key AND {unfinished})

-- name: purge_business
-- gives: changes
DELETE FROM main.semel_business_key WHERE consumer = :consumer AND business_key IN (
    SELECT business_key FROM main.semel_business_key WHERE consumer = :consumer AND expires_at <= :now
    ORDER BY expires_at LIMIT :limit)
