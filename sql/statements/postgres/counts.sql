-- SPDX-License-Identifier: MIT
--
-- How many rows there are, each count up to a cap.

-- name: count_processing
-- gives: n, count, oldest_at, next_at
SELECT b.n, x.count, x.oldest_at, x.next_at FROM :rows AS b CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS count, pg_catalog.min(r.received_at) AS oldest_at,
        pg_catalog.min(r.lease_until) AS next_at
    FROM (SELECT i.received_at, i.lease_until FROM semel.inbox AS i
          WHERE i.open_for = b.consumer AND i.status = 'processing' ORDER BY i.lease_until LIMIT :cap) AS r) AS x

-- name: count_held
-- The rows that are counted are the oldest. The one that is due first may be none of them: then it is looked for among
-- the first that are due at all.
-- gives: n, count, oldest_at, next_at
SELECT b.n, x.count, x.oldest_at, CASE WHEN x.count >= :cap AND b.status IN ('failed', 'waiting') THEN (
    SELECT d.due_at FROM (
        SELECT i.due_at, i.status FROM semel.inbox AS i WHERE i.open_for = b.consumer AND i.due_at IS NOT NULL
        ORDER BY i.due_at LIMIT :cap) AS d
    WHERE d.status = b.status ORDER BY d.due_at LIMIT 1) ELSE x.next_at END AS next_at
FROM :rows AS b CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS count, pg_catalog.min(r.received_at) AS oldest_at, pg_catalog.min(r.due_at) AS next_at
    FROM (SELECT i.received_at, i.due_at FROM semel.inbox AS i
          WHERE i.open_for = b.consumer AND i.status = b.status
          AND i.status IN ('failed', 'waiting', 'unknown', 'dead', 'quarantined')
          ORDER BY i.arrival LIMIT :cap) AS r) AS x

-- name: count_final
-- gives: n, status, count
SELECT b.n, x.status, x.count FROM :rows AS b CROSS JOIN LATERAL (
    SELECT r.status, pg_catalog.count(*) AS count
    FROM (SELECT coalesce(i.status, 'completed') AS status
          FROM semel.stream AS s CROSS JOIN LATERAL (
              SELECT status FROM semel.record WHERE stream = s.stream AND open_for IS NULL
              ORDER BY {end(record)}::timestamptz(0) LIMIT :final_cap) AS i
          WHERE s.consumer = b.consumer LIMIT :final_cap) AS r
    GROUP BY r.status) AS x

-- name: count_outbox
-- The oldest is the first of a shard, as far as numbers are drawn in the order of time.
-- gives: count, oldest_at
SELECT (SELECT pg_catalog.count(*) FROM (SELECT FROM semel.outbox LIMIT :cap) AS o) AS count,
    (SELECT pg_catalog.min(f.created_at) FROM pg_catalog.generate_series(0, 63) AS s CROSS JOIN LATERAL (
        SELECT o.created_at FROM semel.outbox AS o WHERE o.shard = s ORDER BY o.seq LIMIT 1) AS f) AS oldest_at
