-- SPDX-License-Identifier: MIT
--
-- Rows of the inbox whose keys are known: inserted, locked, read. The order of the items is the order of locks.

-- name: draw_arrival
-- none: the insert draws a number

-- name: inbox_insert
-- What is there already is refused. A plain insert would cost the server less, and would leave an error in its log for
-- every duplicate (I3), but in a function (inbox_new). An arrival says which item it belongs to, by its place in the
-- batch.
-- Nothing here could give the rows another order than that of the arrays (no join, no sort); if it did, the worst would
-- be a deadlock, which is retried.
-- A completed row says little more than its key: what NULL stands for is in sql/postgres/001_inbox.sql. The client has
-- put it in place of the values (lean_status ...): for the server that is a test less per column and row.
-- rows: shaped place record_key fingerprint
-- gives: arrival
WITH drawn AS MATERIALIZED (SELECT pg_catalog.nextval('semel.arrival'::pg_catalog.regclass) AS v)
INSERT INTO semel.record (stream, open_for, arrival, key, fingerprint, type, status, attempts, attempts_before, retries,
    alone, order_key, version, message_time, received_at, updated_at, processed_at, due_at, lease_owner, lease_until,
    lease_token, error_class, error_text, outcome, position, headers, payload, traceparent)
SELECT {stream(b.source)}, CASE WHEN NOT b.lean_status IN ('rejected', 'stale', 'prevented') THEN :consumer END,
    (SELECT v FROM drawn) * 16384 + b.place, b.record_key, b.fingerprint, b.type, b.lean_status, b.lean_attempts,
    b.lean_attempts_before, b.lean_retries, b.lean_alone, b.order_key, b.version, b.time_beside, b.received_at,
    b.lean_updated_at, b.lean_processed_at, b.due_at, b.lease_owner, b.lease_until, b.lease_token, b.error_class,
    b.error_text, b.outcome, b.position, b.headers, b.payload, b.traceparent
FROM :rows AS b
ON CONFLICT (key, stream) DO NOTHING RETURNING arrival

-- name: inbox_new
-- Rows of one source that are completed and, as far as anybody knows, new. No arrival: one of them is there already,
-- and nothing was inserted.
-- table: semel.record
-- gives: arrival, watermark
SELECT o.arrival, o.watermark FROM semel._inbox_new(:consumer, :source, :now, :rows.place, :rows.record_key,
    :rows.fingerprint, :rows.type, :row.type, :rows.order_key, :row.order_key, :rows.version, :row.version,
    :rows.time_beside, :row.time_beside, :rows.position, :row.position, :rows.traceparent, :row.traceparent) AS o

-- name: stream_put
-- Streams that are new. Whoever makes the same one at this moment is waited for.
INSERT INTO semel.stream (consumer, source) SELECT :consumer, b.source FROM :rows AS b
WHERE NOT EXISTS (SELECT FROM semel.stream AS s WHERE s.consumer = :consumer AND s.source = b.source)
ORDER BY b.n ON CONFLICT (consumer, source) DO NOTHING

-- A row that its full key names must be found by the primary key. Where the table was never analysed, the planner takes
-- any partial index that a condition on `status` or `open_for` allows for better, and reads all rows of a stream. So
-- such a condition stands outside of the look-up, or is spelled in another way than in the indexes.

-- fragment: stream(source)
(SELECT s.stream FROM semel.stream AS s WHERE s.consumer = :consumer AND s.source = {source})

-- fragment: key_of(id)
-- The key of an id that comes from a table: as semel.message_key, which a worker may not call. No backslash is in any
-- statement: what it means depends on a setting of the role or the caller, standard_conforming_strings.
CASE WHEN {id} LIKE '________-____-____-____-____________'
     AND pg_catalog.translate({id}, '0123456789abcdef', '') = '----'
     THEN pg_catalog.decode('00', 'hex') || pg_catalog.uuid_send({id}::uuid)
     ELSE pg_catalog.convert_to({id}, 'UTF8') END

-- fragment: this_row
key = b.record_key AND stream = {stream(b.source)}

-- name: inbox_drawn
-- none: the insert returns the rows

-- fragment: final_row
arrival, status, attempts, attempts_before, retries, alone, fingerprint, received_at, updated_at, processed_at,
error_class, error_text, outcome, kept

-- name: inbox_final
-- A final row never changes: it is read without a lock, which would be a write per duplicate, and without what nobody
-- asks of it.
-- table: semel.inbox
-- gives: n, {final_row}
SELECT b.n, i.arrival, coalesce(i.status, 'completed') AS status, coalesce(i.attempts, 1) AS attempts,
    coalesce(i.attempts_before, 0) AS attempts_before, coalesce(i.retries, 0) AS retries,
    coalesce(i.alone, false) AS alone, i.fingerprint, i.received_at,
    coalesce(i.updated_at, i.received_at) AS updated_at,
    coalesce(i.processed_at, i.updated_at, i.received_at) AS processed_at, i.error_class, i.error_text, i.outcome,
    i.payload IS NOT NULL AS kept
FROM :rows AS b CROSS JOIN LATERAL (SELECT * FROM semel.record WHERE {this_row} OFFSET 0) AS i
WHERE i.open_for IS NULL

-- fragment: row_lock(how)
SELECT b.n FROM :rows AS b CROSS JOIN LATERAL (SELECT arrival FROM semel.record WHERE {this_row} {how}) AS i
ORDER BY b.n

-- name: inbox_lock_open
-- gives: n
{row_lock(AND coalesce(open_for, '') <> '' FOR UPDATE)}

-- name: inbox_lock
-- gives: n
{row_lock(FOR UPDATE)}

-- operator: inbox_lock
WITH i AS (SELECT b.n, b.source, b.message_id FROM :rows AS b),
locked AS MATERIALIZED (
    SELECT semel._operator_rows(:consumer, pg_catalog.array_agg(i.source ORDER BY i.n),
                                pg_catalog.array_agg(i.message_id ORDER BY i.n)) FROM i)
SELECT i.n FROM i CROSS JOIN locked

-- name: inbox_lock_free
-- gives: n
{row_lock(FOR UPDATE SKIP LOCKED)}

-- name: inbox_read
-- A statement of its own, behind the lock: its snapshot is younger.
-- table: semel.inbox
-- gives: n, {row}
SELECT b.n, {columns}
FROM :rows AS b CROSS JOIN LATERAL (SELECT * FROM semel.inbox WHERE {this_row} OFFSET 0) AS i
ORDER BY b.n

-- Watermarks are read after the insert (P60). Above READ COMMITTED a watermark that was raised after our snapshot has
-- to be noticed: watermark_put and watermark_share fail with 40001 then. The lock is there so that a purge, which waits
-- for nobody, does not insert while we do.

-- name: watermark_lock
SELECT pg_catalog.pg_advisory_xact_lock_shared(
    pg_catalog.hashtextextended(b.source COLLATE "C", pg_catalog.hashtextextended(:consumer COLLATE "C", 1936026992)))
FROM :rows AS b ORDER BY b.n

-- name: watermark_put
INSERT INTO semel.watermark (consumer, source, watermark, updated_at)
SELECT :consumer, b.source, '-infinity', :now FROM :rows AS b ORDER BY b.n
ON CONFLICT (consumer, source) DO NOTHING

-- fragment: watermark(how)
SELECT b.n, w.watermark FROM :rows AS b CROSS JOIN LATERAL (
    SELECT watermark FROM semel.watermark WHERE consumer = :consumer AND source = b.source OFFSET 0 {how}) AS w
WHERE w.watermark > '-infinity' ORDER BY b.n

-- name: watermark_read
-- gives: n, watermark
{watermark()}

-- name: watermark_share
-- gives: n, watermark
{watermark(FOR SHARE)}
