-- SPDX-License-Identifier: MIT
--
-- The settings of consumers, and which consumers there are.

-- name: consumer_get
-- gives: consumer, settings
SELECT consumer, settings FROM main.semel_consumer WHERE consumer = :consumer

-- name: consumer_put
INSERT INTO main.semel_consumer (consumer, settings, updated_at) VALUES (:consumer, :settings, :now)
ON CONFLICT (consumer) DO UPDATE SET settings = excluded.settings, updated_at = excluded.updated_at

-- name: consumer_make
-- none: the transaction has the write lock

-- name: consumer_lock
-- none: the transaction has the write lock

-- name: consumer_read
-- gives: consumer, settings, set_by_host, set_by_file, set_by_at
SELECT consumer, settings, set_by_host, set_by_file, set_by_at FROM main.semel_consumer WHERE consumer = :consumer

-- name: consumer_mark
UPDATE main.semel_consumer SET set_by_host = :set_by_host, set_by_file = :set_by_file, set_by_at = :set_by_at
WHERE consumer = :consumer

-- name: consumer_list
-- One step into each index per name; :after_consumer itself comes first and is left out.
-- gives: consumer
WITH RECURSIVE c (consumer) AS (
    SELECT :after_consumer
    UNION ALL
    SELECT (SELECT min(n) FROM (
        SELECT min(i.consumer) AS n FROM main.semel_inbox AS i WHERE i.consumer > c.consumer
        UNION ALL
        SELECT min(s.consumer) FROM main.semel_consumer AS s WHERE s.consumer > c.consumer))
    FROM c WHERE c.consumer IS NOT NULL)
SELECT consumer FROM c WHERE consumer > :after_consumer LIMIT :limit

-- What a change of settings may reinterpret.

-- fragment: affected(which)
SELECT count(*) AS count FROM (SELECT 1 FROM main.semel_inbox AS i WHERE consumer = :consumer {which} LIMIT :limit)

-- fragment: unfinished
-- Conditions on status are spelled as in the partial indexes (sql/sqlite/001_inbox.sql), or SQLite does not use them.
(status = 'processing' OR status = 'failed' OR status = 'waiting' OR status = 'unknown' OR status = 'dead')

-- fragment: held
status <> 'completed' AND status <> 'processing' AND status <> 'rejected' AND status <> 'stale'
AND status <> 'prevented'

-- name: affected_ordered
-- gives: count
{affected(AND order_key IS NOT NULL AND {unfinished} AND status <> 'unknown' AND status <> 'dead')}

-- name: affected_versioned
-- gives: count
{affected(AND order_key IS NOT NULL AND version IS NOT NULL AND {unfinished}
    AND (status = 'unknown' OR status = 'dead'))}

-- name: affected_below
-- gives: count
{affected(AND order_key IS NOT NULL AND {unfinished} AND status <> 'unknown' AND status <> 'dead'
    AND status <> 'processing' AND version < :version
    AND (SELECT k.last_version FROM main.semel_order_key AS k
         WHERE k.consumer = i.consumer AND k.order_key = i.order_key) IS NULL)}

-- name: affected_doubted
-- gives: count
{affected(AND {held} AND (status = 'failed' OR status = 'waiting') AND attempts > 0
    AND (status = 'waiting' OR attempts > 1 OR error_class IN ('unknown', 'lease_expired', 'released')))}

-- name: affected_sourced
-- gives: count
{affected(AND source > '')}

-- name: affected_sourceless
-- gives: count
{affected(AND source = '')}

-- name: affected_any
-- gives: count
{affected()}

-- name: affected_keys
-- gives: count
SELECT count(*) AS count FROM (SELECT 1 FROM main.semel_order_key WHERE consumer = :consumer LIMIT :limit)

-- name: affected_watermarks
-- gives: count
SELECT count(*) AS count FROM (SELECT 1 FROM main.semel_watermark WHERE consumer = :consumer LIMIT :limit)
