-- SPDX-License-Identifier: MIT
--
-- A table of the user's in place of the outbox (store/mapped.h). What begins with @ stands for quoted names, and for
-- expressions on a row `x` of that table; it is put in when the table was found in the catalog.
--
-- A row is known by its id and its place, the value of the column that orders. Rows are taken in the order of (place,
-- id); an event aside keeps its place as text, and its number is in that order within its aggregate. Operators on these
-- columns are named with their schema: one of varchar in `public` would match better than that of text (P85).

-- ---- the catalog --------------------------------------------------------------------------------------------------

-- name: table_find
-- gives: schema_name, table_name, table_kind, may_read, may_change
SELECT n.nspname::text AS schema_name, c.relname::text AS table_name, c.relkind::text AS table_kind,
    pg_catalog.has_table_privilege(c.oid, 'SELECT') AS may_read,
    pg_catalog.has_table_privilege(c.oid, CASE WHEN :column_name IS NULL THEN 'DELETE' ELSE 'UPDATE' END)
    OR EXISTS (SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = :column_name
        AND pg_catalog.has_column_privilege(c.oid, a.attnum, 'UPDATE')) AS may_change
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = :table_name AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
AND CASE WHEN :schema_name IS NULL THEN pg_catalog.pg_table_is_visible(c.oid) ELSE n.nspname = :schema_name END
LIMIT 1

-- name: table_columns
-- The type of a domain is that of its values.
-- gives: column_name, type_schema, type_name, type_kind, not_null, collation_schema, collation_name
SELECT a.attname::text AS column_name, s.nspname::text AS type_schema, t.typname::text AS type_name,
    t.typtype::text AS type_kind, a.attnotnull AS not_null, cn.nspname::text AS collation_schema,
    co.collname::text AS collation_name
FROM pg_catalog.pg_attribute AS a
JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type AS d ON d.oid = a.atttypid
JOIN pg_catalog.pg_type AS t ON t.oid = CASE WHEN d.typtype = 'd' THEN d.typbasetype ELSE d.oid END
JOIN pg_catalog.pg_namespace AS s ON s.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_collation AS co ON co.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace AS cn ON cn.oid = co.collnamespace
WHERE n.nspname = :schema_name AND c.relname = :table_name AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum

-- name: table_unique
-- Do the id and the place of a row name it, and no other one?
-- gives: found
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = :schema_name AND c.relname = :table_name AND i.indisunique AND i.indisvalid
    AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS (
        SELECT FROM pg_catalog.unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (attnum, n)
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE k.n <= i.indnkeyatts AND a.attname NOT IN (:id_column, :order_column))) AS found

-- name: mapped_plan_by_index
-- In a transaction that is rolled back: what the table's indexes can do, whatever its size is now.
-- gives: found
SELECT pg_catalog.set_config('enable_seqscan', 'off', true) || pg_catalog.set_config('enable_sort', 'off', true)
    || pg_catalog.set_config('enable_bitmapscan', 'off', true) IS NOT NULL AS found

-- name: mapped_plan
-- gives: plan
EXPLAIN (COSTS off) SELECT x.@id FROM @table AS x WHERE @pending ORDER BY x.@place, x.@id LIMIT 100

-- name: mapped_register
-- Under the lock of relay_mutex.
INSERT INTO semel.outbox_mapped (shard, relation, places, drawn)
SELECT s.next::smallint, :relation, :places, s.next::bigint << 48
FROM (SELECT coalesce(pg_catalog.max(m.shard), 0) + 64 AS next FROM semel.outbox_mapped AS m) AS s
ON CONFLICT (relation) DO NOTHING

-- name: mapped_registered
-- gives: shard, places, found
SELECT m.shard::bigint AS shard, m.places,
    EXISTS (SELECT FROM semel.outbox_aside AS a WHERE a.shard = m.shard) AS found
FROM semel.outbox_mapped AS m WHERE m.relation = :relation

-- name: mapped_order
-- The column that orders is another one.
UPDATE semel.outbox_mapped AS m SET places = :places WHERE m.relation = :relation

-- ---- reading ------------------------------------------------------------------------------------------------------

-- fragment: of_table
-- A row of the table as an event.
@id_text AS event_id, @kind AS aggregatetype, @whose AS aggregateid, @type AS type, @payload AS payload,
@headers AS headers, @destination AS destination, @created AS created_at, @place_text AS row_place

-- fragment: place_of(a)
-- Places of other tables are of other types.
CASE WHEN {a}.shard = :first_shard THEN {a}.place::@place_type END

-- fragment: id_of(a)
CASE WHEN {a}.shard = :first_shard THEN {a}.id::@id_type END

-- fragment: event_of(e)
{e}.seq, :first_shard AS shard, {e}.event_id, {e}.aggregatetype, {e}.aggregateid, {e}.type,
CASE WHEN {e}.size <= 67108864 THEN {e}.payload END AS payload,
CASE WHEN {e}.size <= 67108864 THEN {e}.headers ELSE '{}' END AS headers,
{e}.destination, {e}.created_at, {e}.size::bigint AS bytes, {e}.row_place

-- fragment: mapped_names
seq, shard, event_id, aggregatetype, aggregateid, type, payload, headers, destination, created_at, bytes, row_place

-- name: mapped_read
-- The first rows, from the bottom. seq is the row's turn in this scan, and nothing else.
-- gives: {mapped_names}, held
SELECT {event_of(w)}, w.held
FROM (
    SELECT r.*, pg_catalog.sum(r.size) OVER (ORDER BY r.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS above
    FROM (
        SELECT e.*, {size(e)} AS size FROM (
            SELECT pg_catalog.row_number() OVER (ORDER BY x.@place, x.@id) AS seq, {of_table},
                CASE WHEN (SELECT EXISTS (SELECT FROM semel.outbox_aside AS s WHERE s.shard = :first_shard))
                THEN (
                    SELECT a.seq FROM semel.outbox_aside AS a
                    WHERE a.shard + 0 = :first_shard AND a.aggregatetype = @kind AND a.aggregateid = @whose
                    AND {place_of(a)} OPERATOR(pg_catalog.<=) x.@place
                    AND ({place_of(a)} OPERATOR(pg_catalog.<) x.@place OR {id_of(a)} OPERATOR(pg_catalog.<) x.@id)
                    ORDER BY a.seq LIMIT 1) IS NOT NULL
                ELSE false END AS held
            FROM (SELECT * FROM @table AS x WHERE @pending ORDER BY x.@place, x.@id LIMIT :limit) AS x) AS e) AS r) AS w
WHERE coalesce(w.above, 0) < :bytes
ORDER BY w.seq

-- name: mapped_aside_read
-- The first of their aggregates that are due, with no earlier row in the table.
-- gives: {mapped_names}, attempts, alone
SELECT {event_of(w)}, w.attempts::bigint AS attempts, w.alone
FROM (
    SELECT r.*, pg_catalog.sum(r.size)
        OVER (ORDER BY r.due_at, r.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS above
    FROM (
        SELECT e.*, e.id AS event_id, e.place AS row_place, {size(e)} AS size FROM semel.outbox_aside AS e
        WHERE e.shard = :first_shard AND e.due_at <= :now AND e.status IN ('waiting', 'failed') AND {earlier(e)} IS NULL
        AND NOT EXISTS (
            SELECT FROM @table AS x WHERE @pending AND @kind = e.aggregatetype AND @whose = e.aggregateid
            AND x.@place OPERATOR(pg_catalog.<=) {place_of(e)}
            AND (x.@place OPERATOR(pg_catalog.<) {place_of(e)} OR x.@id OPERATOR(pg_catalog.<) {id_of(e)}))
        ORDER BY e.due_at, e.seq LIMIT :limit) AS r) AS w
WHERE coalesce(w.above, 0) < :bytes
ORDER BY w.due_at, w.seq

-- name: mapped_end
-- The last row that is committed and not published.
-- gives: event_id, row_place
SELECT @id_text AS event_id, @place_text AS row_place FROM @table AS x WHERE @pending
ORDER BY x.@place DESC, x.@id DESC LIMIT 1

-- name: mapped_left
-- Is such a row or one before it there?
-- gives: found
SELECT EXISTS (
    SELECT FROM @table AS x WHERE @pending AND x.@place OPERATOR(pg_catalog.<=) :row_place::@place_type
    AND (x.@place OPERATOR(pg_catalog.<) :row_place::@place_type
         OR x.@id OPERATOR(pg_catalog.<=) :event_id::@id_type)) AS found

-- name: mapped_count
-- gives: count, oldest_at
SELECT pg_catalog.count(*) AS count, pg_catalog.min(o.created_at) AS oldest_at FROM (
    SELECT @created AS created_at FROM @table AS x WHERE @pending ORDER BY x.@place, x.@id LIMIT :cap) AS o

-- ---- what becomes of events ---------------------------------------------------------------------------------------

-- fragment: these_rows
:rows AS b WHERE x.@id OPERATOR(pg_catalog.=) b.event_id::@id_type
AND x.@place OPERATOR(pg_catalog.=) b.row_place::@place_type AND @pending

-- name: mapped_take
@take {these_rows}

-- name: mapped_set_aside
-- An id or an aggregate that is too long for an index is cut, in a way that makes the relay refuse it again.
WITH gone AS (
    @take {these_rows}
    RETURNING {of_table}, b.seq, b.event_status, b.attempts, b.due_at, b.error_text, b.alone),
cut AS (
    SELECT g.*, pg_catalog.octet_length(g.aggregatetype) + pg_catalog.octet_length(g.aggregateid) > 2000 AS cuts
    FROM gone AS g)
INSERT INTO semel.outbox_aside (id, aggregatetype, aggregateid, type, payload, seq, shard, headers, destination,
    created_at, place, status, attempts, due_at, error_text, alone, updated_at)
SELECT pg_catalog.left(c.event_id, 256), CASE WHEN c.cuts THEN '' ELSE c.aggregatetype END,
    CASE WHEN c.cuts THEN pg_catalog.left(c.aggregateid, 250) ELSE c.aggregateid END, c.type, c.payload,
    m.drawn + c.seq, m.shard, c.headers, c.destination, c.created_at, c.row_place, c.event_status,
    c.attempts::integer, c.due_at, c.error_text, c.alone, :now
FROM cut AS c CROSS JOIN semel.outbox_mapped AS m WHERE m.shard = :first_shard

-- name: mapped_renumber
-- An aggregate whose events came in another order than that of their places: one that was inserted late stands before
-- others. Of two neighbours by number one is new.
WITH late AS (
    SELECT DISTINCT a.aggregatetype, a.aggregateid
    FROM :rows AS b JOIN semel.outbox_aside AS a ON a.id = b.event_id AND a.shard = :first_shard
    CROSS JOIN LATERAL (
        SELECT y.* FROM semel.outbox_aside AS y
        WHERE y.aggregatetype = a.aggregatetype AND y.aggregateid = a.aggregateid AND y.seq < a.seq
        AND y.shard + 0 = :first_shard ORDER BY y.seq DESC LIMIT 1) AS p
    WHERE {place_of(p)} OPERATOR(pg_catalog.>=) {place_of(a)}
    AND ({place_of(p)} OPERATOR(pg_catalog.>) {place_of(a)} OR {id_of(p)} OPERATOR(pg_catalog.>) {id_of(a)}))
UPDATE semel.outbox_aside AS a SET seq = n.seq
FROM (
    SELECT o.seq AS old, m.drawn + pg_catalog.row_number()
        OVER (ORDER BY o.aggregatetype, o.aggregateid, {place_of(o)}, {id_of(o)}) AS seq
    FROM semel.outbox_aside AS o JOIN late AS l ON l.aggregatetype = o.aggregatetype AND l.aggregateid = o.aggregateid
    CROSS JOIN semel.outbox_mapped AS m WHERE o.shard = :first_shard AND m.shard = :first_shard) AS n
WHERE a.shard = :first_shard AND a.seq = n.old

-- name: mapped_drawn
-- Numbers that were given are never given again: a relay may still know an event by one.
UPDATE semel.outbox_mapped AS m SET drawn = greatest(m.drawn, a.seq)
FROM (SELECT pg_catalog.max(x.seq) AS seq FROM semel.outbox_aside AS x WHERE x.shard = :first_shard) AS a
WHERE m.shard = :first_shard
