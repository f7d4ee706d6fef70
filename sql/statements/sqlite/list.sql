-- SPDX-License-Identifier: MIT
--
-- What operators ask of the inbox as a whole: lists, groups, and selections that are made. records_list.c chooses the
-- way to the rows and gives the walks: a consumer each, with a source or a status where the way needs one.

-- fragment: matching
-- What is NULL matches all. One term for the planner: by many it would expect so few rows that it sorts them.
CASE WHEN (:about_source IS NULL OR source = :about_source) AND (:message_id IS NULL OR message_id = :message_id)
AND (:type IS NULL OR type = :type) AND (:order_key IS NULL OR order_key = :order_key)
AND (:statuses IS NULL OR instr(:statuses, '|' || status || '|') > 0)
AND (:shown_class IS NULL OR error_class = :shown_class)
AND (:contains IS NULL OR instr(CAST(error_text AS BLOB), :contains) > 0)
AND (:received_before IS NULL OR received_at < :received_before)
AND (:received_after IS NULL OR received_at > :received_after) THEN 1 END

-- The ways.

-- fragment: way_key
{unfinished} AND consumer = :consumer AND order_key = :order_key

-- fragment: way_held
{held} AND consumer = :consumer AND status = :status

-- fragment: way_open
{open} AND consumer = :consumer

-- fragment: way_all
(:consumer IS NULL OR consumer = :consumer)

-- fragment: next_place(column)
SELECT k.{column} FROM main.semel_inbox AS k WHERE (k.consumer, k.source) > (p.consumer, p.source)
ORDER BY k.consumer, k.source LIMIT 1

-- fragment: places
-- One step into the index per source. What is joined SQLite may want to read as a whole, for a Bloom filter.
places (consumer, source) AS (
    SELECT coalesce(:consumer, ''), ''
    UNION ALL
    SELECT ({next_place(consumer)}), ({next_place(source)}) FROM places AS p
    WHERE p.consumer = :consumer OR (:consumer IS NULL AND p.consumer IS NOT NULL))

-- fragment: a_place
(consumer = :consumer OR (:consumer IS NULL AND consumer IS NOT NULL))

-- name: place_list
-- Each source of a consumer, or of all; first the empty one.
-- gives: consumer, source
WITH RECURSIVE {places} SELECT consumer, source FROM places WHERE {a_place} LIMIT :limit

-- fragment: window(way)
-- Up to where a walk looks at :window rows; nothing where there are not that many.
SELECT arrival FROM main.semel_inbox WHERE {way} AND arrival > :after_arrival ORDER BY arrival LIMIT 1 OFFSET :window

-- name: window_key
-- gives: arrival
{window({way_key})}

-- name: window_held
-- gives: arrival
{window({way_held})}

-- name: window_open
-- gives: arrival
{window({way_open})}

-- name: window_all
-- gives: arrival
{window({way_all})}

-- fragment: found(way)
FROM main.semel_inbox AS i WHERE {way} AND {matching} AND arrival > :after_arrival
AND arrival <= :until_arrival ORDER BY arrival LIMIT :limit

-- fragment: listed(way)
SELECT {columns} {found({way})}

-- name: list_id
-- gives: {row}
SELECT {columns} FROM main.semel_inbox AS i
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND {matching}
AND +arrival > :after_arrival AND +arrival <= :until_arrival

-- name: list_key
-- gives: {row}
{listed({way_key})}

-- name: list_held
-- gives: {row}
{listed({way_held})}

-- name: list_open
-- gives: {row}
{listed({way_open})}

-- name: list_all
-- gives: {row}
{listed({way_all})}

-- name: names_all
-- gives: arrival, consumer, source, message_id
SELECT arrival, consumer, source, message_id {found({way_all})}

-- fragment: group
consumer, status, shown_class, error_text, count, first_at, last_at, source, message_id, capped

-- fragment: grouped(way)
-- The oldest of a group is its example. One row without a group where there is none.
SELECT g.consumer AS consumer, g.status AS status, g.error_class AS shown_class, g.error_text AS error_text,
    g.count AS count, g.first_at AS first_at, g.last_at AS last_at, e.source AS source, e.message_id AS message_id,
    EXISTS (SELECT 1 FROM {way} LIMIT 1 OFFSET :cap) AS capped
FROM (SELECT 1) AS one
LEFT JOIN (
    SELECT consumer, status, error_class, error_text, count(*) AS count, min(received_at) AS first_at,
        max(received_at) AS last_at, min(arrival) AS arrival
    FROM (SELECT i.arrival, i.received_at, i.consumer, i.source, i.message_id, i.status, i.type, i.order_key,
              i.error_class, i.error_text FROM {way} LIMIT :cap)
    WHERE {matching}
    GROUP BY consumer, status, error_class, error_text ORDER BY count(*) DESC, min(arrival) LIMIT :limit) AS g
LEFT JOIN main.semel_inbox AS e ON e.arrival = g.arrival ORDER BY g.count DESC, g.arrival

-- fragment: names
names (name) AS (
    SELECT coalesce(:consumer, (SELECT min(n.consumer) FROM main.semel_inbox AS n))
    UNION ALL
    SELECT (SELECT min(n.consumer) FROM main.semel_inbox AS n WHERE n.consumer > names.name)
    FROM names WHERE names.name IS NOT NULL AND :consumer IS NULL)

-- name: group_id
-- rows: none
-- gives: {group}
WITH RECURSIVE {places}
{grouped(main.semel_inbox AS i WHERE i.arrival IN (
    SELECT (SELECT m.arrival FROM main.semel_inbox AS m
            WHERE m.consumer = p.consumer AND m.source = p.source AND m.message_id = :message_id)
    FROM places AS p))}

-- name: group_key
-- rows: none
-- gives: {group}
WITH RECURSIVE {names}
{grouped(main.semel_inbox AS i INDEXED BY semel_inbox_order
    WHERE {unfinished} AND i.order_key = :order_key AND i.consumer IN (SELECT name FROM names))}

-- name: group_held
-- rows: none
-- gives: {group}
WITH RECURSIVE {names},
statuses (s) AS (VALUES ('failed'), ('waiting'), ('unknown'), ('dead'), ('quarantined'))
{grouped(main.semel_inbox AS i INDEXED BY semel_inbox_held
    WHERE {held} AND i.consumer IN (SELECT name FROM names)
    AND i.status IN (SELECT s FROM statuses WHERE instr(:statuses, '|' || s || '|') > 0))}

-- name: group_open
-- rows: none
-- gives: {group}
WITH RECURSIVE {names}
{grouped(main.semel_inbox AS i INDEXED BY semel_inbox_open
    WHERE {open} AND i.consumer IN (SELECT name FROM names))}

-- name: group_all
-- gives: {group}
{grouped(main.semel_inbox AS i WHERE {way_all} AND arrival > :after_arrival)}
