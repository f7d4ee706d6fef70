-- SPDX-License-Identifier: MIT
--
-- Bounded looks at the inbox.

-- name: parked
-- gives: count
SELECT pg_catalog.count(*) FROM (
    SELECT 1 FROM semel.inbox WHERE open_for = :consumer AND status = 'waiting' LIMIT :limit) AS w

-- name: large
-- The largest first: that is an order which only inbox_large has, so that the table is not read instead.
-- gives: count
SELECT pg_catalog.count(*) FROM (
    SELECT 1 FROM semel.inbox WHERE open_for = :consumer AND status IN ('dead', 'quarantined')
    AND pg_catalog.octet_length(payload) > :payload_max
    ORDER BY pg_catalog.octet_length(payload) DESC LIMIT :limit) AS w

-- A whole row, as records_scan.c reads it.

-- fragment: row
arrival, consumer, source, message_id, type, status, attempts, attempts_before, retries, alone, fingerprint,
order_key, version, message_time, received_at, updated_at, processed_at, due_at, lease_owner, lease_until,
lease_token, error_class, error_text, outcome, position, traceparent, kept, headers, payload, wants

-- fragment: wishes
FROM semel.business_want AS w WHERE w.consumer = i.consumer AND w.source = i.source AND w.message_id = i.message_id

-- fragment: columns
-- The wishes of a row that does not run, each after its length in three digits. Of more than four, which redeliveries
-- under ever other keys may leave, the first. Nearly every row has none: without the first question each would pay for
-- a sort of nothing, which is most of what it costs to read a row. OFFSET 0: or the planner, to spare the sort, reads
-- all wishes of the consumer by their keys.
i.arrival, i.consumer, i.source, i.message_id, i.type, i.status, i.attempts, i.attempts_before, i.retries,
i.alone, i.fingerprint, i.order_key, i.version, i.message_time, i.received_at, i.updated_at, i.processed_at,
i.due_at, i.lease_owner, i.lease_until, i.lease_token, i.error_class, i.error_text, i.outcome, i.position,
i.traceparent,
i.payload IS NOT NULL AS kept, CASE WHEN :with_payload THEN i.headers END AS headers,
CASE WHEN :with_payload THEN i.payload END AS payload,
CASE WHEN i.status IN ('waiting', 'failed', 'unknown', 'dead', 'quarantined') AND (SELECT true {wishes} LIMIT 1) THEN (
    SELECT pg_catalog.string_agg(pg_catalog.lpad(pg_catalog.octet_length(f.business_key)::text, 3, '0')
                                 || f.business_key, '' ORDER BY f.business_key)
    FROM (SELECT a.business_key FROM (SELECT w.business_key {wishes} OFFSET 0) AS a
          ORDER BY a.business_key LIMIT 4) AS f) END AS wants

-- fragment: in_order(table)
-- Has a place in the order of its key: it does not wait for a business key.
{table}.{unfinished} AND {table}.error_class IS DISTINCT FROM 'business_duplicate'

-- name: scan_due
-- gives: {row}
SELECT {columns} FROM semel.inbox AS i
WHERE i.open_for = :consumer AND i.due_at IS NOT NULL AND i.due_at <= :now
AND (NOT :kept OR i.payload IS NOT NULL) ORDER BY i.due_at, i.arrival LIMIT :limit

-- name: scan_expired
-- gives: {row}
SELECT {columns} FROM semel.inbox AS i
WHERE i.open_for = :consumer AND i.status = 'processing' AND i.lease_until < :now
ORDER BY i.lease_until, i.arrival LIMIT :limit

-- name: scan_token
-- gives: {row}
SELECT {columns} FROM semel.inbox AS i WHERE i.lease_token = :lease_token LIMIT :limit

-- fragment: of_key
SELECT {columns} FROM semel.inbox AS i WHERE i.open_for = :consumer AND i.order_key = :order_key AND {in_order(i)}

-- name: scan_key
-- gives: {row}
{of_key} ORDER BY i.arrival LIMIT :limit

-- name: scan_key_version
-- gives: {row}
{of_key} ORDER BY i.version NULLS FIRST, i.arrival LIMIT :limit

-- name: scan_still
-- gives: {row}
SELECT {columns} FROM semel.inbox AS i
WHERE i.open_for = :consumer AND i.status = 'waiting' AND i.due_at IS NULL AND (:any_key OR i.order_key IS NULL)
AND i.payload IS NOT NULL LIMIT :limit

-- fragment: next_key(after)
SELECT pg_catalog.min(w.order_key) FROM semel.record AS w
WHERE w.open_for = :consumer AND coalesce(w.status, 'completed') = 'waiting' AND w.due_at IS NULL
AND w.order_key > {after}

-- fragment: still_keys(order)
-- One step into the index per key, however many rows it has.
WITH RECURSIVE k (k, n) AS (
    SELECT ({next_key(:order_key)}), 1
    UNION ALL
    SELECT ({next_key(k.k)}), k.n + 1 FROM k WHERE k.k IS NOT NULL AND k.n < :limit)
SELECT {columns} FROM k CROSS JOIN LATERAL (
    SELECT h.* FROM semel.inbox AS h WHERE h.open_for = :consumer AND h.order_key = k.k AND {in_order(h)}
    ORDER BY {order} LIMIT 1) AS i
ORDER BY k.n

-- name: scan_still_keys
-- gives: {row}
{still_keys(h.arrival)}

-- name: scan_still_keys_version
-- gives: {row}
{still_keys(h.version NULLS FIRST, h.arrival)}

-- fragment: of_all
i.arrival > :after_arrival AND (:order_key IS NULL OR i.order_key = :order_key)
AND (:type IS NULL OR i.type = :type)
AND (:statuses IS NULL OR i.status = ANY (pg_catalog.string_to_array(:statuses, '|')))
ORDER BY i.arrival LIMIT :limit

-- name: scan_all
-- gives: {row}
SELECT {columns} FROM semel.inbox AS i WHERE i.consumer = :consumer AND {of_all}

-- fragment: open
status IN ('processing', 'failed', 'waiting', 'unknown', 'dead', 'quarantined')

-- name: scan_open
-- gives: {row}
SELECT {columns} FROM semel.inbox AS i
WHERE i.{open} AND i.open_for = :consumer AND {of_all}
