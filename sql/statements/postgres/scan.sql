-- SPDX-License-Identifier: MIT
--
-- Bounded looks at the inbox.

-- name: parked
-- gives: count
SELECT pg_catalog.count(*) FROM (
    SELECT 1 FROM semel.inbox WHERE consumer = :consumer AND status = 'waiting' LIMIT :limit) AS w

-- name: large
-- The largest first: that is an order which only inbox_large has, so that the table is not read instead.
-- gives: count
SELECT pg_catalog.count(*) FROM (
    SELECT 1 FROM semel.inbox WHERE consumer = :consumer AND status IN ('dead', 'quarantined')
    AND pg_catalog.octet_length(payload) > :payload_max
    ORDER BY pg_catalog.octet_length(payload) DESC LIMIT :limit) AS w
