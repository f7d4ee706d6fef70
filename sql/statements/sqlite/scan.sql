-- SPDX-License-Identifier: MIT
--
-- Bounded looks at the inbox.

-- name: parked
-- gives: count
SELECT count(*) AS count FROM (
    SELECT 1 FROM main.semel_inbox WHERE consumer = :consumer AND status = 'waiting' LIMIT :limit)

-- name: large
-- gives: count
SELECT count(*) AS count FROM (
    SELECT 1 FROM main.semel_inbox WHERE {held} AND consumer = :consumer AND status IN ('dead', 'quarantined')
    AND length(payload) > :payload_max LIMIT :limit)

-- A whole row, as records_scan.c reads it.

-- fragment: row
arrival, consumer, source, message_id, type, status, attempts, attempts_before, retries, alone, fingerprint,
order_key, version, message_time, received_at, updated_at, processed_at, due_at, lease_owner, lease_until,
lease_token, error_class, error_text, outcome, position, traceparent, kept, headers, payload, wants

-- fragment: open
(status = 'processing' OR status = 'failed' OR status = 'waiting' OR status = 'unknown' OR status = 'dead'
 OR status = 'quarantined')

-- fragment: columns
-- The wishes of a row that does not run, each after its length in three digits. Of more than four, which redeliveries
-- under ever other keys may leave, the first.
i.arrival, i.consumer, i.source, i.message_id, i.type, i.status, i.attempts, i.attempts_before, i.retries,
i.alone, i.fingerprint, i.order_key, i.version, i.message_time, i.received_at, i.updated_at, i.processed_at,
i.due_at, i.lease_owner, i.lease_until, i.lease_token, i.error_class, i.error_text, i.outcome, i.position,
i.traceparent,
i.payload IS NOT NULL AS kept, CASE WHEN :with_payload OR typeof(i.headers) <> 'text' THEN i.headers END AS headers,
CASE WHEN :with_payload OR typeof(i.payload) <> 'blob' THEN i.payload END AS payload,
CASE WHEN {open} AND status <> 'processing' THEN (
    SELECT group_concat(printf('%03d', length(CAST(k AS BLOB))) || k, '')
    FROM (SELECT w.business_key AS k FROM main.semel_business_want AS w
          WHERE w.consumer = i.consumer AND w.source = i.source AND w.message_id = i.message_id
          ORDER BY k LIMIT 4)) END AS wants

-- fragment: in_order
-- Has a place in the order of its key: it does not wait for a business key.
{unfinished} AND error_class IS NOT 'business_duplicate'

-- name: scan_due
-- gives: {row}
SELECT {columns} FROM main.semel_inbox AS i
WHERE consumer = :consumer AND due_at IS NOT NULL AND due_at <= :now AND (NOT :kept OR i.payload IS NOT NULL)
ORDER BY due_at, arrival LIMIT :limit

-- name: scan_expired
-- gives: {row}
SELECT {columns} FROM main.semel_inbox AS i
WHERE consumer = :consumer AND status = 'processing' AND lease_until < :now ORDER BY lease_until, arrival LIMIT :limit

-- name: scan_token
-- gives: {row}
SELECT {columns} FROM main.semel_inbox AS i WHERE lease_token = :lease_token LIMIT :limit

-- fragment: of_key
SELECT {columns} FROM main.semel_inbox AS i WHERE consumer = :consumer AND order_key = :order_key AND {in_order}

-- name: scan_key
-- gives: {row}
{of_key} ORDER BY arrival LIMIT :limit

-- name: scan_key_version
-- gives: {row}
{of_key} ORDER BY version, arrival LIMIT :limit

-- fragment: still
consumer = :consumer AND status = 'waiting' AND due_at IS NULL

-- name: scan_still
-- gives: {row}
SELECT {columns} FROM main.semel_inbox AS i
WHERE {still} AND (:any_key OR order_key IS NULL) AND i.payload IS NOT NULL LIMIT :limit

-- fragment: next_key(after)
SELECT min(order_key) FROM main.semel_inbox WHERE {still} AND order_key > {after}

-- fragment: still_keys(order)
-- One step into the index per key, however many rows it has.
WITH RECURSIVE k (k, n) AS (
    SELECT ({next_key(:order_key)}), 1
    UNION ALL
    SELECT ({next_key(k.k)}), k.n + 1 FROM k WHERE k.k IS NOT NULL AND k.n < :limit)
SELECT {columns} FROM main.semel_inbox AS i WHERE arrival IN (
    SELECT (SELECT arrival FROM main.semel_inbox WHERE consumer = :consumer AND order_key = k.k AND {in_order}
            ORDER BY {order} LIMIT 1) FROM k)
ORDER BY i.order_key

-- name: scan_still_keys
-- gives: {row}
{still_keys(arrival)}

-- name: scan_still_keys_version
-- gives: {row}
{still_keys(version, arrival)}

-- fragment: of_all
arrival > :after_arrival AND (:order_key IS NULL OR order_key = :order_key) AND (:type IS NULL OR type = :type)
AND (:statuses IS NULL OR instr(:statuses, '|' || status || '|') > 0) ORDER BY arrival LIMIT :limit

-- name: scan_all
-- The plus keeps SQLite from collecting all rows of the consumer to sort them: they lie in this order already.
-- gives: {row}
SELECT {columns} FROM main.semel_inbox AS i WHERE +consumer = :consumer AND {of_all}

-- name: scan_open
-- gives: {row}
SELECT {columns} FROM main.semel_inbox AS i WHERE {open} AND consumer = :consumer AND {of_all}
