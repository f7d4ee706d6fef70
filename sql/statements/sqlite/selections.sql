-- SPDX-License-Identifier: MIT
--
-- Frozen selections.

-- name: selection_make
-- gives: number
INSERT INTO main.semel_selection (command, who, reason, force, made_at) VALUES (:command, :who, :reason, :force, :now)
RETURNING number

-- name: selection_fill
INSERT INTO main.semel_selected (number, place, consumer, source, message_id, updated_at)
VALUES (:number, :place, :consumer, :source, :message_id, :updated_at)

-- name: selection_get
-- gives: command, who, reason, force, made_at, count, done_n, skipped_n, refused_n
SELECT s.command AS command, s.who AS who, s.reason AS reason, s.force AS force, s.made_at AS made_at,
    count(m.place) AS count,
    count(*) FILTER (WHERE m.result = 'done') AS done_n,
    count(*) FILTER (WHERE m.result = 'skipped') AS skipped_n,
    count(*) FILTER (WHERE m.result = 'refused') AS refused_n
FROM main.semel_selection AS s LEFT JOIN main.semel_selected AS m ON m.number = s.number
WHERE s.number = :number GROUP BY s.number

-- name: selection_left
-- The primary key would lead through all that is handled already.
-- gives: place, consumer, source, message_id, updated_at
SELECT place, consumer, source, message_id, updated_at FROM main.semel_selected INDEXED BY semel_selected_left
WHERE number = :number AND result IS NULL ORDER BY place LIMIT :limit

-- name: selection_again
-- Those that were done, and are dead letters again.
-- gives: place, consumer, source, message_id, updated_at
SELECT m.place AS place, m.consumer AS consumer, m.source AS source, m.message_id AS message_id,
    i.updated_at AS updated_at
FROM main.semel_selected AS m
JOIN main.semel_inbox AS i ON i.consumer = m.consumer AND i.source = m.source AND i.message_id = m.message_id
WHERE m.number = :number AND m.place > :place AND m.place < :place_end AND m.result = 'done' AND i.status = 'dead'
ORDER BY m.place LIMIT :limit

-- name: selection_mark
-- The first mark stays.
-- gives: changes
UPDATE main.semel_selected SET result = coalesce(result, :result) WHERE number = :number AND place = :place
