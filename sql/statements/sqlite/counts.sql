-- SPDX-License-Identifier: MIT
--
-- How many rows there are, each count up to a cap.

-- name: count_processing
-- gives: count, oldest_at, next_at
SELECT count(*) AS count, min(received_at) AS oldest_at, min(lease_until) AS next_at
FROM (SELECT received_at, lease_until FROM main.semel_inbox WHERE consumer = :consumer AND status = 'processing'
      ORDER BY lease_until LIMIT :cap)

-- name: count_held
-- The rows that are counted are the oldest. The one that is due first may be none of them: then it is looked for among
-- the first that are due at all.
-- gives: count, oldest_at, next_at
SELECT x.count AS count, x.oldest_at AS oldest_at, CASE WHEN x.count >= :cap AND :status IN ('failed', 'waiting') THEN (
    SELECT due_at FROM (
        SELECT due_at, status FROM main.semel_inbox WHERE consumer = :consumer AND due_at IS NOT NULL
        ORDER BY due_at LIMIT :cap)
    WHERE +status = :status LIMIT 1) ELSE x.next_at END AS next_at
FROM (SELECT count(*) AS count, min(received_at) AS oldest_at, min(due_at) AS next_at
      FROM (SELECT received_at, due_at FROM main.semel_inbox WHERE consumer = :consumer AND {held}
            AND status = :status ORDER BY arrival LIMIT :cap)) AS x

-- name: count_final
-- gives: status, count
SELECT status, count(*) AS count
FROM (SELECT status FROM main.semel_inbox WHERE consumer = :consumer
      AND (status = 'completed' OR status = 'rejected' OR status = 'stale' OR status = 'prevented') LIMIT :final_cap)
GROUP BY status

-- name: count_outbox
-- gives: count, oldest_at
SELECT count(*) AS count, min(created_at) AS oldest_at
FROM (SELECT created_at FROM main.semel_outbox WHERE seq > 0 ORDER BY seq LIMIT :cap)
