-- SPDX-License-Identifier: MIT
--
-- Frozen selections.

-- name: selection_make
-- gives: number
INSERT INTO semel.selection (command, who, reason, force, made_at) VALUES (:command, :who, :reason, :force, :now)
RETURNING number

-- operator: selection_make
SELECT semel._operator_selection(:command, :reason, :force) AS number

-- name: selection_fill
INSERT INTO semel.selected (number, place, consumer, source, message_id, updated_at)
SELECT :number, b.place, b.consumer, b.source, b.message_id, b.updated_at FROM :rows AS b

-- operator: selection_fill
SELECT semel._operator_select(:number, pg_catalog.array_agg(b.place ORDER BY b.n),
    pg_catalog.array_agg(b.consumer ORDER BY b.n), pg_catalog.array_agg(b.source ORDER BY b.n),
    pg_catalog.array_agg(b.message_id ORDER BY b.n), pg_catalog.array_agg(b.updated_at ORDER BY b.n))
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
UPDATE semel.selected AS s SET result = coalesce(s.result, b.result) FROM :rows AS b
WHERE s.number = :number AND s.place = b.place

-- operator: selection_mark
SELECT m FROM :rows AS b CROSS JOIN LATERAL semel._operator_mark(:number, b.place, b.result) AS m
