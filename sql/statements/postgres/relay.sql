-- SPDX-License-Identifier: MIT
--
-- The relay: its lease and its shards, the events that it reads, and what becomes of them. core/relay.h has the rules.
--
-- Whoever changes outbox_aside has locked the rows of outbox_shard that it concerns, in their order, in an earlier
-- statement: so each sees what the other one did.

-- fragment: event(most)
w.seq, w.shard::bigint AS shard, w.id::text AS event_id, w.aggregatetype, w.aggregateid, w.type,
CASE WHEN w.size <= {most} THEN w.payload END AS payload,
CASE WHEN w.size <= {most} THEN w.headers ELSE '{}' END AS headers,
w.destination, w.created_at, w.traceparent, w.size::bigint AS bytes

-- fragment: size(x)
least(coalesce(pg_catalog.octet_length({x}.payload), 0), 67108865)
+ least(pg_catalog.octet_length({x}.headers), 67108865)

-- fragment: event_names
seq, shard, event_id, aggregatetype, aggregateid, type, payload, headers, destination, created_at, traceparent, bytes

-- fragment: earlier(e)
-- The event of the same aggregate that stands aside next below; NULL: none. There is an order, and a shard that no
-- index knows, so that only outbox_aside_order serves. Where one aggregate is most of the table, the statistics say
-- that any row is of the aggregate that is asked for: the planner would read them one after the other.
(SELECT h.seq FROM semel.outbox_aside AS h
 WHERE h.aggregatetype = {e}.aggregatetype AND h.aggregateid = {e}.aggregateid AND h.seq < {e}.seq
 AND h.shard + 0 = {e}.shard ORDER BY h.seq DESC LIMIT 1)

-- fragment: columns_of_event
id, aggregatetype, aggregateid, type, payload, seq, shard, headers, destination, created_at, traceparent

-- ---- leases and shards --------------------------------------------------------------------------------------------

-- name: shard_make
-- Somebody may have emptied the table.
INSERT INTO semel.outbox_shard (shard)
SELECT s FROM pg_catalog.generate_series(0, 63) AS s UNION SELECT :first_shard ON CONFLICT DO NOTHING

-- name: relay_mutex
-- One relay at a time looks who is alive.
SELECT s.shard FROM semel.outbox_shard AS s WHERE s.shard = 0 FOR UPDATE

-- name: relay_expire
DELETE FROM semel.relay AS r WHERE r.lease_until < :now

-- name: relay_join
INSERT INTO semel.relay (token, owner, destinations, started_at, lease_until, first_shard)
VALUES (:relay_token, :relay_owner, :destinations, :now, :lease_until, :first_shard)

-- name: relay_renew
-- gives: changes
UPDATE semel.relay AS r SET lease_until = :lease_until, down = :error_text WHERE r.token = :relay_token

-- name: relay_leave
DELETE FROM semel.relay AS r WHERE r.token = :relay_token

-- name: relay_list
-- gives: relay_token, relay_owner, destinations
SELECT r.token AS relay_token, r.owner AS relay_owner, r.destinations
FROM semel.relay AS r WHERE r.first_shard = :first_shard ORDER BY r.token LIMIT :limit

-- name: shard_list
-- gives: shard, relay_token, losses
SELECT s.shard::bigint AS shard, s.relay AS relay_token, s.losses::bigint AS losses FROM semel.outbox_shard AS s
WHERE s.shard BETWEEN :first_shard AND :last_shard ORDER BY s.shard

-- name: shard_set
-- gives: n
UPDATE semel.outbox_shard AS s SET relay = b.relay_token, losses = b.losses::integer
FROM :rows AS b WHERE s.shard = b.shard RETURNING b.n

-- name: shard_lock
-- gives: shard, relay_token
SELECT s.shard::bigint AS shard, s.relay AS relay_token FROM semel.outbox_shard AS s
WHERE s.shard IN (SELECT b.shard FROM :rows AS b) ORDER BY s.shard FOR UPDATE OF s

-- ---- numbers ------------------------------------------------------------------------------------------------------

-- name: outbox_last
-- The number that was drawn last, read before the locks: whoever has drawn it, or a lower one, holds the sequence.
-- gives: seq, started_at
SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END AS seq,
    pg_catalog.pg_postmaster_start_time() AS started_at
FROM semel.outbox_seq_seq AS s

-- name: outbox_end
-- The highest number that is committed, in the outbox or aside. Of a mapped table: aside.
-- gives: seq
SELECT coalesce(pg_catalog.max(e.seq), 0) AS seq
FROM pg_catalog.generate_series(:first_shard, :last_shard) AS s (shard) CROSS JOIN LATERAL (
    (SELECT o.seq FROM semel.outbox AS o WHERE o.shard = s.shard::smallint ORDER BY o.seq DESC LIMIT 1)
    UNION ALL
    (SELECT a.seq FROM semel.outbox_aside AS a WHERE a.shard = s.shard::smallint ORDER BY a.seq DESC LIMIT 1)) AS e

-- name: outbox_holders
-- A transaction that has drawn a number holds this lock on the sequence until it ends. When others begin to see its
-- commit its name changes here; only that of a prepared one stays until its locks are free. So of these, those are left
-- out whose commit this snapshot sees; a top transaction has a lower xid than what is below it.
-- gives: holder, pid, user, since
WITH locks AS MATERIALIZED (
    SELECT l.locktype, l.virtualtransaction, l.pid,
        pg_catalog.mod(s.xmax - l.transactionid::text::bigint + 6442450944, 4294967296) - 2147483648 AS below
    FROM pg_catalog.pg_locks AS l
    CROSS JOIN (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint AS xmax) AS s
    WHERE l.granted AND ((l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
        AND l.relation = 'semel.outbox_seq_seq'::pg_catalog.regclass::oid
        AND l.database = (
            SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()))
        OR (l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.pid IS NULL)))
SELECT l.virtualtransaction AS holder, l.pid::bigint AS pid, a.usename::text AS user, a.xact_start AS since
FROM locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND (l.pid IS NOT NULL OR NOT coalesce((
    SELECT pg_catalog.pg_visible_in_snapshot(
        (pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint - pg_catalog.max(x.below))
            ::text::pg_catalog.xid8, pg_catalog.pg_current_snapshot())
    FROM locks AS x WHERE x.locktype = 'transactionid' AND x.virtualtransaction = l.virtualtransaction), true))
LIMIT :limit

-- name: outbox_draw
-- Whether the locks can be seen here: the caller draws a number and looks for itself.
-- gives: seq, pid
SELECT pg_catalog.nextval('semel.outbox_seq_seq'::pg_catalog.regclass) AS seq,
    pg_catalog.pg_backend_pid()::bigint AS pid

-- ---- reading ------------------------------------------------------------------------------------------------------

-- fragment: held
CASE WHEN (SELECT EXISTS (SELECT FROM semel.outbox_aside)) THEN {earlier(w)} IS NOT NULL ELSE false END AS held

-- name: outbox_read
-- The first rows of each shard above its starting point; of all of them, shard by shard, as many as fit. Whether an
-- earlier event stands aside is of the same snapshot: moving aside is one statement.
-- gives: n, {event_names}, held
SELECT w.n, {event(67108864)}, {held}
FROM (
    SELECT r.*, pg_catalog.sum(r.size)
        OVER (ORDER BY r.n, r.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS above
    FROM (
        SELECT b.n, o.*, {size(o)} AS size FROM :rows AS b CROSS JOIN LATERAL (
            SELECT * FROM semel.outbox AS x WHERE x.shard = b.shard AND x.seq > b.after_seq
            ORDER BY x.seq LIMIT :limit) AS o) AS r) AS w
WHERE coalesce(w.above, 0) < :bytes
ORDER BY w.n, w.seq LIMIT :most

-- name: outbox_read_small
-- The same where no event has more than :cap bytes, and all that may come fit. Summing up the bytes of the rows before
-- each row takes four times as long as reading them. An event with more comes without its payload: then all are read
-- again by outbox_read.
-- gives: n, {event_names}, held
SELECT w.n, {event(:cap)}, {held}
FROM (
    SELECT b.n, o.*, {size(o)} AS size FROM :rows AS b CROSS JOIN LATERAL (
        SELECT * FROM semel.outbox AS x WHERE x.shard = b.shard AND x.seq > b.after_seq
        ORDER BY x.seq LIMIT :limit) AS o) AS w
ORDER BY w.n, w.seq LIMIT :most

-- name: outbox_groups
-- Whose the next events of each shard are: its first aggregates, by their first events.
-- gives: n, shard, aggregatetype, aggregateid, first_seq, last_seq, count
SELECT b.n, b.shard::bigint AS shard, g.aggregatetype, g.aggregateid, g.first_seq, g.last_seq, g.count
FROM :rows AS b CROSS JOIN LATERAL (
    SELECT w.aggregatetype, w.aggregateid, pg_catalog.min(w.seq) AS first_seq, pg_catalog.max(w.seq) AS last_seq,
        pg_catalog.count(*) AS count
    FROM (
        SELECT x.aggregatetype, x.aggregateid, x.seq FROM semel.outbox AS x
        WHERE x.shard = b.shard AND x.seq > b.after_seq ORDER BY x.seq LIMIT :limit) AS w
    GROUP BY w.aggregatetype, w.aggregateid ORDER BY 3 LIMIT :most) AS g
ORDER BY b.n, g.first_seq

-- name: aside_read
-- The first of their aggregates that are due, as many as fit.
-- gives: n, {event_names}, attempts, alone
SELECT w.n, {event(67108864)}, w.attempts::bigint AS attempts, w.alone
FROM (
    SELECT r.*, pg_catalog.sum(r.size)
        OVER (ORDER BY r.due_at, r.shard, r.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS above
    FROM (
        SELECT b.n, e.*, {size(e)} AS size FROM :rows AS b CROSS JOIN LATERAL (
            SELECT * FROM semel.outbox_aside AS x WHERE x.shard = b.shard AND x.due_at <= :now
            AND x.status IN ('waiting', 'failed') AND {earlier(x)} IS NULL
            ORDER BY x.due_at LIMIT :limit / 8 + 1) AS e
        ORDER BY e.due_at, e.shard, e.seq LIMIT :limit) AS r) AS w
WHERE coalesce(w.above, 0) < :bytes
ORDER BY w.due_at, w.shard, w.seq

-- ---- what becomes of events ---------------------------------------------------------------------------------------

-- name: relay_by_key
-- Rows are found by their keys, each for itself. The planner would rather read the whole table once, and is wrong as
-- soon as there is a backlog: a plan that was made before it is kept. Until the transaction ends.
SELECT pg_catalog.set_config('enable_hashjoin', 'off', true), pg_catalog.set_config('enable_mergejoin', 'off', true),
    pg_catalog.set_config('enable_seqscan', 'off', true)

-- name: outbox_delete
DELETE FROM semel.outbox AS o USING :rows AS b WHERE o.shard = b.shard AND o.seq = b.seq

-- name: outbox_keep
WITH gone AS (DELETE FROM semel.outbox AS o USING :rows AS b WHERE o.shard = b.shard AND o.seq = b.seq RETURNING o.*)
INSERT INTO semel.outbox_sent ({columns_of_event}, sent_at)
SELECT {columns_of_event}, :now FROM gone

-- name: outbox_set_aside
WITH gone AS (
    DELETE FROM semel.outbox AS o USING :rows AS b WHERE o.shard = b.shard AND o.seq = b.seq
    RETURNING o.*, b.event_status, b.attempts, b.due_at, b.error_text, b.alone)
INSERT INTO semel.outbox_aside ({columns_of_event}, status, attempts, due_at, error_text, alone, updated_at)
SELECT {columns_of_event}, event_status, attempts::integer, due_at, error_text, alone, :now FROM gone

-- name: aside_start
-- A committed start. gives those that are ours now.
-- gives: n
UPDATE semel.outbox_aside AS a
SET status = 'publishing', attempts = a.attempts + 1, relay = :relay_token, updated_at = :now
FROM :rows AS b
WHERE a.shard = b.shard AND a.seq = b.seq AND a.status IN ('waiting', 'failed')
RETURNING b.n

-- name: aside_release
-- What this relay was publishing when it lost its connection: it lives, so that no event is to blame.
UPDATE semel.outbox_aside AS a
SET status = 'waiting', attempts = greatest(a.attempts - 1, 0), due_at = :now, relay = NULL, updated_at = :now
WHERE a.status = 'publishing' AND a.relay = :relay_token

-- name: aside_delete
DELETE FROM semel.outbox_aside AS a USING :rows AS b WHERE a.shard = b.shard AND a.seq = b.seq

-- name: aside_keep
WITH gone AS (
    DELETE FROM semel.outbox_aside AS a USING :rows AS b WHERE a.shard = b.shard AND a.seq = b.seq RETURNING a.*)
INSERT INTO semel.outbox_sent ({columns_of_event}, sent_at)
SELECT {columns_of_event}, :now FROM gone

-- name: aside_fail
UPDATE semel.outbox_aside AS a
SET status = b.event_status, attempts = b.attempts::integer, due_at = b.due_at, error_text = b.error_text, relay = NULL,
    updated_at = :now
FROM :rows AS b
WHERE a.shard = b.shard AND a.seq = b.seq AND a.status = 'publishing' AND a.relay = :relay_token

-- name: aside_postpone
UPDATE semel.outbox_aside AS a SET due_at = b.due_at FROM :rows AS b
WHERE a.shard = b.shard AND a.seq = b.seq AND a.status IN ('waiting', 'failed')

-- name: aside_wake
-- The first event of each of these aggregates is due, if it waits for nothing else. It is found as in `earlier`.
UPDATE semel.outbox_aside AS a SET due_at = :now, updated_at = :now
FROM (SELECT DISTINCT b.shard, b.aggregatetype, b.aggregateid FROM :rows AS b) AS k
CROSS JOIN LATERAL (SELECT x.shard, x.seq FROM semel.outbox_aside AS x
    WHERE x.aggregatetype = k.aggregatetype AND x.aggregateid = k.aggregateid AND x.shard + 0 = k.shard
    ORDER BY x.seq LIMIT 1) AS f
WHERE a.shard = f.shard AND a.seq = f.seq AND a.status = 'waiting' AND a.due_at IS NULL

-- name: aside_recover
-- What a relay that is gone was publishing. The start of a single event counts; of several nobody knows which one it
-- was.
WITH lost AS (
    SELECT a.shard, a.seq, a.attempts - (pg_catalog.count(*) OVER (PARTITION BY a.relay) > 1)::integer AS attempts
    FROM semel.outbox_aside AS a
    WHERE a.status = 'publishing' AND NOT EXISTS (SELECT FROM semel.relay AS r WHERE r.token = a.relay))
UPDATE semel.outbox_aside AS a
SET status = CASE WHEN l.attempts >= :cap THEN 'dead' ELSE 'failed' END,
    due_at = CASE WHEN l.attempts >= :cap THEN NULL ELSE :due_at END,
    attempts = l.attempts, alone = true, error_text = :error_text, relay = NULL, updated_at = :now
FROM lost AS l WHERE a.shard = l.shard AND a.seq = l.seq

-- name: sent_purge
-- gives: changes
DELETE FROM semel.outbox_sent AS s
WHERE s.ctid IN (SELECT x.ctid FROM semel.outbox_sent AS x WHERE x.sent_at < :before ORDER BY x.sent_at LIMIT :limit)
