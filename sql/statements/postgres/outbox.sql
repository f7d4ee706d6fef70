-- SPDX-License-Identifier: MIT
--
-- Events, added in the transaction that makes them true.

-- name: outbox_put
-- gives: changes
INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, headers, destination, created_at, traceparent)
VALUES (:event_id::uuid, :aggregatetype, :aggregateid, :type, :payload, coalesce(:headers, '{}'), :destination, :now,
        :traceparent)
ON CONFLICT (id) DO NOTHING

-- name: outbox_lock
-- gives: changes
-- What semel.outbox_put(..., lock => true) does before it draws a number (sql/postgres/018_work.sql), with the same
-- count and the same name of the lock; a role that works on the tables may not call that function's helpers. No row:
-- there is no room for another lock.
SELECT pg_catalog.set_config('semel.outbox_locks', (h.n + 1)::text, true),
       pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(
           :aggregateid COLLATE "C", pg_catalog.hashtextextended(:aggregatetype COLLATE "C", 1936026990)))
FROM (SELECT CASE WHEN c.n < 1000 THEN c.n
                  ELSE (SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks AS l
                        WHERE l.locktype = 'advisory' AND l.pid = pg_catalog.pg_backend_pid()) END AS n
      FROM (SELECT coalesce(nullif(pg_catalog.current_setting('semel.outbox_locks', true), ''), '0')::bigint AS n)
           AS c OFFSET 0) AS h
WHERE h.n < 1000
