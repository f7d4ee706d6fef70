-- SPDX-License-Identifier: MIT
--
-- What else is known of one message.

-- fragment: this
consumer = :consumer AND source = :source AND message_id = :message_id

-- name: history_tries
-- gives: attempt, at, worker, shown_class, error_text
SELECT attempt, at, worker, error_class AS shown_class, error_text FROM main.semel_attempt WHERE {this}
ORDER BY id DESC LIMIT :limit

-- name: history_acts
-- gives: at, who, what, reason
SELECT at, who, what, reason FROM main.semel_audit WHERE {this} ORDER BY id DESC LIMIT :limit

-- name: history_conflicts
-- gives: digest, count, first_at, last_at
SELECT fingerprint AS digest, count, first_at, last_at FROM main.semel_conflict WHERE {this}
ORDER BY fingerprint LIMIT :limit

-- name: history_business
-- gives: business_key
SELECT business_key FROM main.semel_business_key WHERE {this} ORDER BY business_key LIMIT :limit

-- name: history_rivals
-- gives: business_key, source, message_id, status, holds
WITH k AS (SELECT business_key FROM main.semel_business_key WHERE {this}
           UNION SELECT business_key FROM main.semel_business_want WHERE {this})
SELECT min(r.business_key) AS business_key, r.source AS source, r.message_id AS message_id, i.status AS status,
    NOT r.waits AS holds
FROM (SELECT h.business_key, h.source, h.message_id, 0 AS waits
      FROM k JOIN main.semel_business_key AS h ON h.consumer = :consumer AND h.business_key = k.business_key
      UNION ALL
      SELECT w.business_key, w.source, w.message_id, 1
      FROM k JOIN main.semel_business_want AS w ON w.consumer = :consumer AND w.business_key = k.business_key) AS r
LEFT JOIN main.semel_inbox AS i ON i.consumer = :consumer AND i.source = r.source AND i.message_id = r.message_id
WHERE (r.source, r.message_id) <> (:source, :message_id)
AND (NOT r.waits OR (i.status = 'waiting' AND i.error_class = 'business_duplicate'))
GROUP BY r.waits, i.arrival, r.source, r.message_id ORDER BY r.waits, i.arrival, r.source, r.message_id LIMIT :limit

-- fragment: place(order)
-- One row: the watermark, the versions of the key, and who comes first in it. A wish for a business key has no place.
SELECT (SELECT watermark FROM main.semel_watermark WHERE consumer = :consumer AND source = :source) AS watermark,
    k.last_version AS last_version, k.skipped AS skipped,
    h.source AS head_source, h.message_id AS head_id, h.status AS head_status, h.version AS head_version
FROM (SELECT 1) AS one
LEFT JOIN main.semel_order_key AS k ON k.consumer = :consumer AND k.order_key = :order_key
LEFT JOIN (
    SELECT source, message_id, status, version FROM main.semel_inbox
    WHERE consumer = :consumer AND order_key = :order_key AND {unfinished}
    AND error_class IS NOT 'business_duplicate'
    ORDER BY {order} LIMIT 1) AS h

-- name: history_place
-- gives: watermark, last_version, skipped, head_source, head_id, head_status, head_version
{place(arrival)}

-- name: history_place_version
-- gives: watermark, last_version, skipped, head_source, head_id, head_status, head_version
{place(version, arrival)}
