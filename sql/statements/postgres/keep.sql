-- SPDX-License-Identifier: MIT
--
-- How long things are kept. Nothing here waits for a lock: what somebody has is left for the next time.

-- fragment: unfinished
-- Conditions on status are spelled as in the partial indexes (sql/postgres/001_inbox.sql).
status IN ('processing', 'failed', 'waiting', 'unknown', 'dead')

-- fragment: this_mark
consumer = :consumer AND source = :source

-- name: source_list
-- gives: source
SELECT source FROM semel.stream WHERE consumer = :consumer ORDER BY source

-- name: watermark_make
-- Whoever makes a row holds the lock of its name, shared by deliveries (watermark_lock), so that no insert waits here.
INSERT INTO semel.watermark (consumer, source, watermark, updated_at)
SELECT :consumer, :source, :watermark, coalesce(:now, pg_catalog.clock_timestamp())
WHERE NOT EXISTS (SELECT FROM semel.watermark WHERE {this_mark})
AND pg_catalog.pg_try_advisory_xact_lock(
    pg_catalog.hashtextextended(:source COLLATE "C", pg_catalog.hashtextextended(:consumer COLLATE "C", 1936026992)))
ON CONFLICT (consumer, source) DO NOTHING

-- name: watermark_raise
UPDATE semel.watermark SET watermark = :watermark, updated_at = coalesce(:now, pg_catalog.clock_timestamp())
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM semel.watermark WHERE {this_mark} AND watermark < :watermark FOR UPDATE SKIP LOCKED))

-- name: watermark_raised
-- gives: watermark
SELECT watermark FROM semel.watermark WHERE {this_mark} AND watermark >= :watermark

-- fragment: end(row)
coalesce({row}.processed_at, {row}.updated_at, {row}.received_at)

-- fragment: ended
-- The oldest are found by an index, to the second, and then to the microsecond by the row.
(SELECT ctid, CASE WHEN message_time IS NOT NULL THEN nullif(message_time, '-infinity')
                   WHEN pg_catalog.get_byte(key, 0) = 0 AND pg_catalog.get_byte(key, 7) >> 4 = 7
                        AND pg_catalog.get_byte(key, 9) >> 6 = 2
                   THEN timestamptz 'epoch'
                        + ('x' || pg_catalog.encode(pg_catalog.substr(key, 2, 6), 'hex'))::bit(48)::bigint::float8
                          * interval '1 millisecond' END AS message_time
 FROM semel.record WHERE stream = {stream(:source)} AND open_for IS NULL
 AND {end(record)}::timestamptz(0) <= :before::timestamptz(0) AND {end(record)} < :before
 ORDER BY {end(record)}::timestamptz(0) LIMIT :looks) AS s

-- fragment: aged(before)
-- The time of the message is looked at in the row.
{ended}
WHERE message_time IS NULL OR message_time < {before} LIMIT :limit

-- fragment: id(key)
CASE WHEN pg_catalog.get_byte({key}, 0) = 0 THEN pg_catalog.encode(pg_catalog.substr({key}, 2), 'hex')::uuid::text
     ELSE pg_catalog.convert_from({key}, 'UTF8') END

-- fragment: below_watermark
least(:before, coalesce((SELECT watermark FROM semel.watermark WHERE {this_mark}), '-infinity'::timestamptz))

-- name: aged
-- Counts how far it looked only where it did not find enough.
-- gives: count, message_time, looked
SELECT pg_catalog.count(*), pg_catalog.max(message_time) AS message_time,
CASE WHEN pg_catalog.count(*) < :limit THEN (SELECT pg_catalog.count(*) FROM {ended}) END AS looked
FROM (SELECT message_time FROM {aged(:before)}) AS a

-- name: purge_attempts
-- none: a part of purge

-- name: purge
-- They are deleted by the places at which they were locked, so that no plan can begin to read the table; a row that
-- moved meanwhile is left for the next time.
-- gives: count
WITH gone AS (
    DELETE FROM semel.record WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM semel.record
        WHERE ctid = ANY (ARRAY(SELECT ctid FROM {aged({below_watermark})}))
        AND stream IS NOT DISTINCT FROM {stream(:source)} AND coalesce(open_for, '') = ''
        FOR UPDATE SKIP LOCKED)) RETURNING {id(key)} AS message_id),
tries AS (
    DELETE FROM semel.attempt WHERE id = ANY (ARRAY(
        SELECT a.id FROM gone AS g CROSS JOIN LATERAL (
            SELECT id FROM semel.attempt WHERE {this_mark} AND message_id = g.message_id OFFSET 0) AS a)))
SELECT pg_catalog.count(*) FROM gone

-- name: purge_conflicts
DELETE FROM semel.conflict WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM semel.conflict WHERE consumer = :consumer AND last_at < :before
    ORDER BY last_at LIMIT :limit FOR UPDATE SKIP LOCKED))

-- name: purge_keys_end
-- gives: order_key, count
SELECT pg_catalog.max(order_key) AS order_key, pg_catalog.count(*) FROM (
    SELECT order_key FROM semel.order_key WHERE consumer = :consumer AND order_key > :after_key
    ORDER BY order_key LIMIT 10 * :limit) AS k

-- name: purge_keys
-- A change of the key's unfinished set moves updated_at, which the lock looks at again.
DELETE FROM semel.order_key WHERE ctid = ANY (ARRAY(
    SELECT k.ctid FROM semel.order_key AS k
    WHERE k.consumer = :consumer AND k.order_key > :after_key AND k.order_key <= :last_key
    AND k.last_version IS NULL AND k.skipped IS NULL AND k.updated_at < :before
    AND NOT EXISTS (SELECT FROM semel.inbox AS i
                    WHERE i.open_for = :consumer AND i.order_key = k.order_key AND i.{unfinished})
    FOR UPDATE SKIP LOCKED))

-- name: purge_business
-- gives: changes
DELETE FROM semel.business_key WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM semel.business_key WHERE consumer = :consumer AND expires_at IS NOT NULL AND expires_at <= :now
    ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED))
