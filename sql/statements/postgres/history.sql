-- SPDX-License-Identifier: MIT
--
-- What else is known of one message.

-- fragment: this
consumer = :consumer AND source = :source AND message_id = :message_id

-- name: history_tries
-- gives: attempt, at, worker, shown_class, error_text
SELECT attempt, at, worker, error_class AS shown_class, error_text FROM semel.attempt WHERE {this}
ORDER BY id DESC LIMIT :limit

-- name: history_acts
-- gives: at, who, what, reason
SELECT at, who, what, reason FROM semel.audit WHERE {this} ORDER BY id DESC LIMIT :limit

-- name: history_conflicts
-- gives: digest, count, first_at, last_at
SELECT fingerprint AS digest, count, first_at, last_at FROM semel.conflict WHERE {this}
ORDER BY fingerprint LIMIT :limit

-- name: history_business
-- gives: business_key
SELECT business_key FROM semel.business_key WHERE {this} ORDER BY business_key LIMIT :limit

-- name: history_rivals
-- gives: business_key, source, message_id, status, holds
WITH k AS (SELECT business_key FROM semel.business_key WHERE {this}
           UNION SELECT business_key FROM semel.business_want WHERE {this})
SELECT pg_catalog.min(r.business_key) AS business_key, r.source, r.message_id, i.status, r.holds
FROM (SELECT h.business_key, h.source, h.message_id, true AS holds
      FROM k JOIN semel.business_key AS h ON h.consumer = :consumer AND h.business_key = k.business_key
      UNION ALL
      SELECT w.business_key, w.source, w.message_id, false
      FROM k JOIN semel.business_want AS w ON w.consumer = :consumer AND w.business_key = k.business_key) AS r
LEFT JOIN semel.inbox AS i ON i.consumer = :consumer AND i.source = r.source AND i.key = {key_of(r.message_id)}
WHERE (r.source, r.message_id) <> (:source, :message_id)
AND (r.holds OR (i.status = 'waiting' AND i.error_class = 'business_duplicate'))
GROUP BY r.holds, i.arrival, r.source, r.message_id, i.status
ORDER BY r.holds DESC, i.arrival, r.source, r.message_id LIMIT :limit

-- fragment: place(order)
-- One row: the watermark, the versions of the key, and who comes first in it. A wish for a business key has no place.
SELECT (SELECT watermark FROM semel.watermark WHERE consumer = :consumer AND source = :source) AS watermark,
    k.last_version, nullif(pg_catalog.array_to_string(k.skipped, ',', 'NULL'), '') AS skipped,
    h.source AS head_source, h.message_id AS head_id, h.status AS head_status, h.version AS head_version
FROM (SELECT 1) AS one
LEFT JOIN semel.order_key AS k ON k.consumer = :consumer AND k.order_key = :order_key
LEFT JOIN LATERAL (
    SELECT i.source, i.message_id, i.status, i.version FROM semel.inbox AS i
    WHERE i.open_for = :consumer AND i.order_key = :order_key
    AND i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead')
    AND i.error_class IS DISTINCT FROM 'business_duplicate'
    ORDER BY {order} LIMIT 1) AS h ON true

-- name: history_place
-- gives: watermark, last_version, skipped, head_source, head_id, head_status, head_version
{place(i.arrival)}

-- name: history_place_version
-- gives: watermark, last_version, skipped, head_source, head_id, head_status, head_version
{place(i.version NULLS FIRST, i.arrival)}
