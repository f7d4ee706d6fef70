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
