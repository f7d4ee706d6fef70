-- SPDX-License-Identifier: MIT
--
-- What operators ask of the inbox as a whole: lists, groups, and selections that are made. records_list.c chooses the
-- way to the rows and gives the walks: a consumer each, with a source or a status where the way needs one.

-- fragment: matching
-- What is NULL matches all.
AND i.arrival > :after_arrival AND (:about_source IS NULL OR i.source = :about_source)
AND (:message_id IS NULL OR i.message_id = :message_id) AND (:type IS NULL OR i.type = :type)
AND (:order_key IS NULL OR i.order_key = :order_key) AND (:shown_class IS NULL OR i.error_class = :shown_class)
AND (:contains IS NULL OR position(:contains IN pg_catalog.convert_to(i.error_text, 'UTF8')) > 0)
AND (:received_before IS NULL OR i.received_at < :received_before)
AND (:received_after IS NULL OR i.received_at > :received_after)

-- fragment: in_status
-- Apart from `matching`: where the way goes by statuses already, the planner would take the rows for much rarer than
-- they are.
AND (:statuses IS NULL OR i.status = ANY (pg_catalog.string_to_array(:statuses, '|')))

-- fragment: first
ORDER BY i.arrival LIMIT :limit

-- The ways: rows `i` of the inbox; `which` narrows, orders and limits.

-- fragment: way_id(which)
:rows AS b CROSS JOIN LATERAL (
    SELECT i.* FROM semel.inbox AS i
    WHERE i.consumer = b.consumer AND i.source = b.source AND i.key = {key_of(b.message_id)} {which}) AS i

-- fragment: way_key(which)
:rows AS b CROSS JOIN LATERAL (
    SELECT i.* FROM semel.inbox AS i
    WHERE i.open_for = b.consumer AND i.{unfinished} AND i.order_key = :order_key {which}) AS i

-- fragment: way_held(which)
:rows AS b CROSS JOIN LATERAL (
    SELECT i.* FROM semel.inbox AS i
    WHERE i.open_for = b.consumer AND i.status = b.status
    AND i.status IN ('failed', 'waiting', 'unknown', 'dead', 'quarantined') {which}) AS i

-- fragment: way_open(which)
:rows AS b CROSS JOIN LATERAL (
    SELECT i.* FROM semel.inbox AS i
    WHERE i.open_for = b.consumer
    AND i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead', 'quarantined') {which}) AS i

-- fragment: way_all(which)
(SELECT i.* FROM semel.inbox AS i WHERE (:consumer IS NULL OR i.consumer = :consumer) {which}) AS i

-- name: place_list
-- Each source of a consumer, or of all; first the empty one.
-- gives: consumer, source
SELECT x.consumer, x.source FROM (
    SELECT coalesce(:consumer COLLATE "C", '') AS consumer, ''::text COLLATE "C" AS source
    UNION
    SELECT s.consumer, s.source FROM semel.stream AS s WHERE :consumer IS NULL OR s.consumer = :consumer) AS x
ORDER BY x.consumer, x.source LIMIT :limit

-- name: window_key
-- none: the server merges the walks, and keeps no log back for them

-- name: window_held
-- none: as above

-- name: window_open
-- none: as above

-- name: window_all
-- none: as above

-- fragment: listed(way)
SELECT {columns} FROM {way} {first}

-- name: list_id
-- gives: {row}
{listed({way_id({matching} {in_status} AND i.arrival <= :until_arrival {first})})}

-- name: list_key
-- gives: {row}
{listed({way_key({matching} {in_status} {first})})}

-- name: list_held
-- gives: {row}
{listed({way_held({matching} {first})})}

-- name: list_open
-- gives: {row}
{listed({way_open({matching} {in_status} {first})})}

-- name: list_all
-- gives: {row}
{listed({way_all({matching} {in_status} {first})})}

-- name: names_all
-- Nothing wide is sorted. The window is found by inbox_arrival, as far as rows still lie in the order of their arrival.
-- gives: arrival, consumer, source, message_id
SELECT i.arrival, i.consumer, i.source, i.message_id FROM semel.inbox AS i
WHERE (:consumer IS NULL OR i.consumer = :consumer) AND i.arrival <= :until_arrival {matching} {in_status} {first}

-- fragment: group
consumer, status, shown_class, error_text, count, first_at, last_at, source, message_id, capped

-- fragment: grouped(way)
-- One row more is looked at than may be, to know whether there is one. The oldest of a group is its example. One row
-- without a group where there is none.
WITH looked AS MATERIALIZED (
    SELECT i.arrival, i.received_at, i.consumer, i.source, i.message_id, i.status, i.type, i.order_key, i.error_class,
        i.error_text, pg_catalog.row_number() OVER () AS k
    FROM {way} LIMIT :cap + 1),
grouped AS (
    SELECT i.consumer, i.status, i.error_class, i.error_text, pg_catalog.count(*) AS count,
        pg_catalog.min(i.received_at) AS first_at, pg_catalog.max(i.received_at) AS last_at,
        pg_catalog.min(i.arrival) AS arrival
    FROM looked AS i WHERE i.k <= :cap {matching} {in_status}
    GROUP BY 1, 2, 3, 4 ORDER BY pg_catalog.count(*) DESC, pg_catalog.min(i.arrival) LIMIT :limit)
SELECT g.consumer, g.status, g.error_class AS shown_class, g.error_text, g.count, g.first_at, g.last_at, e.source,
    e.message_id, t.count > :cap AS capped
FROM (SELECT pg_catalog.count(*) AS count FROM looked) AS t
LEFT JOIN grouped AS g ON true LEFT JOIN looked AS e ON e.arrival = g.arrival ORDER BY g.count DESC, g.arrival

-- name: group_id
-- gives: {group}
{grouped({way_id(LIMIT :cap + 1)})}

-- name: group_key
-- gives: {group}
{grouped({way_key(LIMIT :cap + 1)})}

-- name: group_held
-- gives: {group}
{grouped({way_held(LIMIT :cap + 1)})}

-- name: group_open
-- gives: {group}
{grouped({way_open(LIMIT :cap + 1)})}

-- name: group_all
-- gives: {group}
{grouped({way_all(LIMIT :cap + 1)})}
