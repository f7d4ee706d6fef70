-- SPDX-License-Identifier: MIT
--
-- Frozen selections.

-- name: selection_make
-- none: selection_fill does it

-- name: selection_fill
-- Whole or not at all.
-- gives: number
WITH made AS (
    INSERT INTO semel.selection (command, who, reason, force, made_at)
    VALUES (:command, :who, :reason, :force, :now) RETURNING number),
put AS (
    INSERT INTO semel.selected (number, place, consumer, source, message_id, updated_at)
    SELECT made.number, b.n, b.consumer, b.source, b.message_id, b.updated_at FROM :rows AS b CROSS JOIN made)
SELECT number FROM made

-- operator: selection_fill
SELECT semel._operator_select(:command, :reason, :force, pg_catalog.array_agg(b.consumer ORDER BY b.n),
    pg_catalog.array_agg(b.source ORDER BY b.n), pg_catalog.array_agg(b.message_id ORDER BY b.n),
    pg_catalog.array_agg(b.updated_at ORDER BY b.n)) AS number
FROM :rows AS b

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

-- name: selection_again
-- Those that were done, and are dead letters again.
-- gives: place, consumer, source, message_id, updated_at
SELECT m.place, m.consumer, m.source, m.message_id, i.updated_at
FROM semel.selected AS m
JOIN semel.inbox AS i ON i.consumer = m.consumer AND i.source = m.source AND i.key = semel.message_key(m.message_id)
WHERE m.number = :number AND m.place > :place AND m.place < :place_end AND m.result = 'done' AND i.status = 'dead'
ORDER BY m.place LIMIT :limit

-- name: selection_mark
-- The first mark stays.
-- gives: changes
UPDATE semel.selected SET result = coalesce(result, :result) WHERE number = :number AND place = :place

-- operator: selection_mark
SELECT semel._operator_mark(:number, :place, :result)
