-- SPDX-License-Identifier: MIT
--
-- Frozen selections, once they are written down.

-- name: selection_get
-- gives: command, who, reason, force, made_at, count, done_n, skipped_n, refused_n
SELECT s.command, s.who, s.reason, s.force, s.made_at, t.count, t.done_n, t.skipped_n, t.refused_n
FROM semel.selection AS s
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS count,
        pg_catalog.count(*) FILTER (WHERE m.result = 'done') AS done_n,
        pg_catalog.count(*) FILTER (WHERE m.result = 'skipped') AS skipped_n,
        pg_catalog.count(*) FILTER (WHERE m.result = 'refused') AS refused_n
    FROM semel.selected AS m WHERE m.number = s.number) AS t
WHERE s.number = :number

-- name: selection_left
-- gives: place, consumer, source, message_id, updated_at
SELECT place, consumer, source, message_id, updated_at FROM semel.selected
WHERE number = :number AND result IS NULL ORDER BY place LIMIT :limit

-- name: selection_mark
-- The first mark stays.
-- gives: changes
UPDATE semel.selected SET result = coalesce(result, :result) WHERE number = :number AND place = :place

-- operator: selection_mark
SELECT semel._operator_mark(:number, :place, :result)
