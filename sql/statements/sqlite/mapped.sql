-- SPDX-License-Identifier: MIT
--
-- A table of the user's in place of the outbox (store/mapped.h). What begins with @ stands for quoted names, and for
-- expressions on a row `x` of that table; it is put in when the table was found in the catalog.
--
-- A row is known by its id and its place, the value of the column that orders. Rows are taken in the order of (place,
-- id), compared by bytes; an event aside keeps its place, and its number is in that order within its aggregate.

-- ---- the catalog --------------------------------------------------------------------------------------------------

-- name: table_find
-- gives: schema_name, table_name, table_kind, may_read, may_change
SELECT 'main' AS schema_name, name AS table_name, CASE type WHEN 'table' THEN 'r' ELSE 'v' END AS table_kind,
    1 AS may_read, 1 AS may_change
FROM main.sqlite_master
WHERE name = :table_name AND type IN ('table', 'view') AND coalesce(:schema_name, 'main') = 'main'

-- name: table_columns
-- gives: column_name, type_schema, type_name, type_kind, not_null, collation_schema, collation_name
SELECT c.name AS column_name, NULL AS type_schema, lower(c.type) AS type_name, 'b' AS type_kind,
    c."notnull" OR c.pk > 0 AS not_null, NULL AS collation_schema, NULL AS collation_name
FROM pragma_table_xinfo(:table_name, :schema_name) AS c

-- name: table_unique
-- Do the id and the place of a row name it, and no other one?
-- gives: found
SELECT EXISTS (
    SELECT 1 FROM pragma_index_list(:table_name, :schema_name) AS x
    WHERE x."unique" AND NOT x.partial AND NOT EXISTS (
        SELECT 1 FROM pragma_index_info(x.name, :schema_name) AS k
        WHERE k.name IS NULL OR (k.name <> :id_column AND k.name <> :order_column)))
OR (SELECT sum(c.pk > 0) = 1 AND sum(c.pk > 0 AND upper(c.type) = 'INTEGER'
        AND (c.name = :id_column OR c.name = :order_column)) = 1
    FROM pragma_table_info(:table_name, :schema_name) AS c) AS found

-- name: mapped_plan_by_index
-- none: the planner takes an index whatever the size of the table is

-- name: mapped_plan
-- gives: plan_step, plan_parent, plan_unused, plan
EXPLAIN QUERY PLAN SELECT x.@id FROM @table AS x WHERE @pending ORDER BY {order_of(x)} LIMIT 100

-- name: table_partial
-- only: PostgreSQL's plan says whether an index has a condition
-- gives: column_name
SELECT x.name AS column_name FROM pragma_index_list(:table_name, :schema_name) AS x WHERE x.partial

-- name: mapped_register
INSERT INTO main.semel_outbox_mapped (shard, relation, places, drawn)
SELECT s.next, :relation, :places, s.next << 48
FROM (SELECT coalesce(max(shard), 0) + 64 AS next FROM main.semel_outbox_mapped) AS s
WHERE true ON CONFLICT (relation) DO NOTHING

-- name: mapped_registered
-- gives: shard, places, found
SELECT m.shard AS shard, m.places AS places,
    EXISTS (SELECT 1 FROM main.semel_outbox_aside AS a WHERE a.shard = m.shard) AS found
FROM main.semel_outbox_mapped AS m WHERE m.relation = :relation

-- name: mapped_order
-- The column that orders is another one.
UPDATE main.semel_outbox_mapped SET places = :places WHERE relation = :relation

-- ---- reading ------------------------------------------------------------------------------------------------------

-- fragment: of_table
-- A row of the table as an event.
@id_text AS event_id, @kind AS aggregatetype, @whose AS aggregateid, @type AS type, @payload AS payload,
@headers AS headers, @destination AS destination, @created AS created_at, @place_text AS row_place

-- fragment: order_of(x)
{x}.@place COLLATE BINARY, {x}.@id COLLATE BINARY

-- fragment: is_before(a)
-- Is the event that stands aside before the row?
x.@place COLLATE BINARY >= {a}.place AND (x.@place COLLATE BINARY > {a}.place OR x.@id COLLATE BINARY > {a}.id)

-- fragment: is_behind(a)
x.@place COLLATE BINARY <= {a}.place AND (x.@place COLLATE BINARY < {a}.place OR x.@id COLLATE BINARY < {a}.id)

-- fragment: mapped_size(x)
min(coalesce(length({x}.payload), 0), 67108865) + min(length(CAST({x}.headers AS BLOB)), 67108865)

-- fragment: event_of(e)
{e}.seq AS seq, :first_shard AS shard, {e}.event_id AS event_id, {e}.aggregatetype AS aggregatetype,
{e}.aggregateid AS aggregateid, {e}.type AS type, CASE WHEN {e}.size <= 67108864 THEN {e}.payload END AS payload,
CASE WHEN {e}.size <= 67108864 THEN {e}.headers ELSE '{}' END AS headers, {e}.destination AS destination,
{e}.created_at AS created_at, {e}.size AS bytes, CAST({e}.row_place AS TEXT) AS row_place

-- fragment: mapped_names
seq, shard, event_id, aggregatetype, aggregateid, type, payload, headers, destination, created_at, bytes, row_place

-- name: mapped_read
-- The first rows, from the bottom. seq is the row's turn in this scan, and nothing else.
-- rows: none
-- gives: {mapped_names}, held
SELECT {event_of(w)}, w.held AS held
FROM (SELECT r.*, sum(r.size) OVER (ORDER BY r.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS above
      FROM (SELECT e.*, {mapped_size(e)} AS size
            FROM (SELECT row_number() OVER (ORDER BY {order_of(x)}) AS seq, {of_table}, EXISTS (
                      SELECT 1 FROM main.semel_outbox_aside AS a
                      WHERE a.aggregatetype = @kind AND a.aggregateid = @whose AND a.shard = :first_shard
                      AND {is_before(a)}) AS held
                  FROM (SELECT * FROM @table AS x WHERE @pending ORDER BY {order_of(x)} LIMIT :limit) AS x) AS e) AS r
     ) AS w
WHERE coalesce(w.above, 0) < :bytes ORDER BY w.seq

-- name: mapped_aside_read
-- The first of their aggregates that are due, with no earlier row in the table.
-- rows: none
-- gives: {mapped_names}, attempts, alone
SELECT {event_of(w)}, w.attempts AS attempts, w.alone AS alone
FROM (SELECT r.*, sum(r.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS above
      FROM (SELECT e.*, e.id AS event_id, e.place AS row_place, {mapped_size(e)} AS size
            FROM main.semel_outbox_aside AS e
            WHERE e.due_at <= :now AND (e.status = 'waiting' OR e.status = 'failed') AND e.shard = :first_shard
            AND NOT EXISTS (
                SELECT 1 FROM main.semel_outbox_aside AS y
                WHERE y.aggregatetype = e.aggregatetype AND y.aggregateid = e.aggregateid AND y.seq < e.seq
                AND y.shard = e.shard)
            AND NOT EXISTS (
                SELECT 1 FROM @table AS x
                WHERE @pending AND @kind = e.aggregatetype AND @whose = e.aggregateid AND {is_behind(e)})
            ORDER BY e.due_at, e.seq LIMIT :limit) AS r) AS w
WHERE coalesce(w.above, 0) < :bytes

-- name: mapped_end
-- The last row that is committed and not published.
-- gives: event_id, row_place
SELECT @id_text AS event_id, CAST(@place_text AS TEXT) AS row_place FROM @table AS x WHERE @pending
ORDER BY x.@place COLLATE BINARY DESC, x.@id COLLATE BINARY DESC LIMIT 1

-- name: mapped_left
-- Is such a row or one before it there?
-- gives: found
SELECT EXISTS (
    SELECT 1 FROM @table AS x WHERE @pending AND x.@place COLLATE BINARY <= :row_place
    AND (x.@place COLLATE BINARY < :row_place OR x.@id COLLATE BINARY <= :event_id)) AS found

-- name: mapped_count
-- gives: count, oldest_at
SELECT count(*) AS count, min(o.created_at) AS oldest_at
FROM (SELECT @created AS created_at FROM @table AS x WHERE @pending ORDER BY {order_of(x)} LIMIT :cap) AS o

-- ---- what becomes of events ---------------------------------------------------------------------------------------

-- fragment: this_row
-- Found by its id. What is no text is compared as the text that was read; a key may be NULL here.
(x.@id = :event_id OR (:event_id = '' AND x.@id IS NULL)) AND CAST(x.@place AS TEXT) IS :row_place AND @pending

-- fragment: last_drawn
(SELECT max(m.drawn, coalesce((SELECT max(z.seq) FROM main.semel_outbox_aside AS z
                               WHERE z.seq < (:first_shard + 64) << 48), 0))
 FROM main.semel_outbox_mapped AS m WHERE m.shard = :first_shard)

-- name: mapped_take
@take WHERE {this_row}

-- name: mapped_set_aside
INSERT INTO main.semel_outbox_aside (id, aggregatetype, aggregateid, type, payload, seq, shard, headers, destination,
    created_at, place, status, attempts, due_at, error_text, alone, updated_at)
SELECT e.event_id, e.aggregatetype, e.aggregateid, e.type, e.payload,
    (SELECT m.drawn FROM main.semel_outbox_mapped AS m WHERE m.shard = :first_shard) + :seq, :first_shard, e.headers,
    e.destination, e.created_at, e.row_place, :event_status, :attempts, :due_at, :error_text, :alone, :now
FROM (SELECT {of_table} FROM @table AS x WHERE {this_row}) AS e

-- name: mapped_renumber
-- An aggregate whose events came in another order than that of their places: one that was inserted late stands before
-- others. Of two neighbours by number one is new.
UPDATE main.semel_outbox_aside SET seq = n.seq
FROM (SELECT o.seq AS old, {last_drawn} + row_number() OVER (ORDER BY o.place, o.id) AS seq
      FROM main.semel_outbox_aside AS o
      WHERE o.aggregatetype = :aggregatetype AND o.aggregateid = :aggregateid AND o.shard = :first_shard AND EXISTS (
          SELECT 1 FROM main.semel_outbox_aside AS a JOIN main.semel_outbox_aside AS p ON p.seq = (
              SELECT max(y.seq) FROM main.semel_outbox_aside AS y
              WHERE y.aggregatetype = a.aggregatetype AND y.aggregateid = a.aggregateid AND y.shard = a.shard
              AND y.seq < a.seq)
          WHERE a.id = :event_id AND a.shard = :first_shard AND a.aggregatetype = :aggregatetype
          AND a.aggregateid = :aggregateid AND p.place >= a.place AND (p.place > a.place OR p.id > a.id))) AS n
WHERE semel_outbox_aside.seq = n.old

-- name: mapped_drawn
-- Numbers that were given are never given again: a relay may still know an event by one.
UPDATE main.semel_outbox_mapped SET drawn = {last_drawn} WHERE shard = :first_shard
