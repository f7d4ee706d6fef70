-- SPDX-License-Identifier: MIT
--
-- The settings of consumers, and which consumers there are.

-- name: consumer_get
-- gives: consumer, settings
SELECT consumer, settings::text FROM semel.consumer WHERE consumer = :consumer

-- name: consumer_put
INSERT INTO semel.consumer (consumer, settings, updated_at) VALUES (:consumer, :settings::jsonb, :now)
ON CONFLICT (consumer) DO UPDATE SET settings = excluded.settings, updated_at = excluded.updated_at

-- operator: consumer_put
SELECT semel._operator_consumer(:consumer, :settings::jsonb, {forced}, {reason})

-- name: consumer_make
-- What is not there cannot be locked.
INSERT INTO semel.consumer (consumer, settings, updated_at)
VALUES (:consumer, '{}'::jsonb, pg_catalog.clock_timestamp()) ON CONFLICT (consumer) DO NOTHING

-- name: consumer_lock
SELECT consumer FROM semel.consumer WHERE consumer = :consumer FOR UPDATE

-- name: consumer_read
-- gives: consumer, settings, set_by_host, set_by_file, set_by_at
SELECT consumer, settings::text, set_by_host, set_by_file, set_by_at FROM semel.consumer WHERE consumer = :consumer

-- name: consumer_mark
UPDATE semel.consumer SET set_by_host = :set_by_host, set_by_file = :set_by_file, set_by_at = :set_by_at
WHERE consumer = :consumer

-- operator: consumer_mark
-- No file has set the consumer any more; its settings stay.
SELECT semel._operator_consumer(:consumer, NULL, {forced}, {reason})

-- name: consumer_list
-- One step into each index per name; :after_consumer itself comes first and is left out, and so is a name that has
-- neither settings nor a row. What is ordered there is read by its index: the planner would read the table to find one
-- row of many.
-- gives: consumer
WITH RECURSIVE c (consumer) AS (
    SELECT :after_consumer COLLATE "C"
    UNION ALL
    SELECT least((SELECT i.consumer FROM semel.stream AS i WHERE i.consumer > c.consumer ORDER BY i.consumer LIMIT 1),
                 (SELECT s.consumer FROM semel.consumer AS s WHERE s.consumer > c.consumer
                  ORDER BY s.consumer LIMIT 1))
    FROM c WHERE c.consumer IS NOT NULL)
SELECT consumer FROM c WHERE consumer > :after_consumer
AND (SELECT coalesce(
    (SELECT true FROM semel.consumer AS s WHERE s.consumer = c.consumer),
    (SELECT true FROM semel.record AS r WHERE r.open_for = c.consumer AND coalesce(r.status, 'completed')
     IN ('processing', 'failed', 'waiting', 'unknown', 'dead', 'quarantined') ORDER BY r.arrival LIMIT 1),
    (SELECT true FROM semel.stream AS i CROSS JOIN LATERAL (
         SELECT 1 FROM semel.record AS r WHERE r.stream = i.stream AND r.open_for IS NULL
         ORDER BY {end(r)}::timestamptz(0) LIMIT 1) AS one
     WHERE i.consumer = c.consumer LIMIT 1))) LIMIT :limit

-- What a change of settings may reinterpret.

-- fragment: affected(which)
SELECT pg_catalog.count(*) FROM (
    SELECT 1 FROM semel.inbox AS i WHERE i.open_for = :consumer {which} LIMIT :limit) AS r

-- fragment: affected_of(which)
SELECT pg_catalog.count(*) FROM (
    SELECT 1 FROM semel.stream AS s CROSS JOIN LATERAL (
        (SELECT 1 FROM semel.record AS r WHERE r.stream = s.stream AND r.open_for IS NULL
         ORDER BY {end(r)}::timestamptz(0) LIMIT :limit)
        UNION ALL
        (SELECT 1 FROM semel.record AS r WHERE r.stream = s.stream AND r.open_for = :consumer
         AND coalesce(r.status, 'completed') IN ('processing', 'failed', 'waiting', 'unknown', 'dead', 'quarantined')
         ORDER BY r.arrival LIMIT :limit)) AS i
    WHERE s.consumer = :consumer {which} LIMIT :limit) AS r

-- name: affected_ordered
-- gives: count
{affected(AND i.order_key IS NOT NULL AND i.status IN ('processing', 'failed', 'waiting'))}

-- name: affected_versioned
-- gives: count
{affected(AND i.order_key IS NOT NULL AND i.version IS NOT NULL AND i.status IN ('unknown', 'dead'))}

-- name: affected_below
-- gives: count
{affected(AND i.order_key IS NOT NULL AND i.status IN ('failed', 'waiting') AND i.version < :version
    AND NOT EXISTS (SELECT 1 FROM semel.order_key AS k WHERE k.consumer = i.open_for AND k.order_key = i.order_key
                    AND k.last_version IS NOT NULL))}

-- name: affected_doubted
-- gives: count
{affected(AND i.status IN ('failed', 'waiting') AND i.attempts > 0
    AND (i.status = 'waiting' OR i.attempts > 1 OR i.error_class IN ('unknown', 'lease_expired', 'released')))}

-- name: affected_sourced
-- gives: count
{affected_of(AND s.source > '')}

-- name: affected_sourceless
-- gives: count
{affected_of(AND s.source = '')}

-- name: affected_any
-- gives: count
{affected_of()}

-- name: affected_keys
-- gives: count
SELECT pg_catalog.count(*) FROM (SELECT 1 FROM semel.order_key WHERE consumer = :consumer LIMIT :limit) AS r

-- name: affected_watermarks
-- gives: count
SELECT pg_catalog.count(*) FROM (SELECT 1 FROM semel.watermark WHERE consumer = :consumer LIMIT :limit) AS r
