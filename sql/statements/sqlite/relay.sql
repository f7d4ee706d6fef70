-- SPDX-License-Identifier: MIT
--
-- The relay: its lease and its shard, the events that it reads, and what becomes of them. core/relay.h has the
-- rules. The write lock is held since begin: nothing else is locked.

-- fragment: event_names
seq, shard, event_id, aggregatetype, aggregateid, type, payload, headers, destination, created_at, traceparent, bytes

-- fragment: size
min(coalesce(length(payload), 0), 67108865) + min(length(CAST(headers AS BLOB)), 67108865)

-- fragment: event(e)
{e}.seq AS seq, :shard AS shard, {e}.id AS event_id, {e}.aggregatetype AS aggregatetype, {e}.aggregateid AS aggregateid,
{e}.type AS type, CASE WHEN {e}.size <= 67108864 THEN o.payload END AS payload,
CASE WHEN {e}.size <= 67108864 THEN {e}.headers ELSE '{}' END AS headers, {e}.destination AS destination,
{e}.created_at AS created_at, {e}.traceparent AS traceparent, {e}.size AS bytes

-- fragment: columns_of_event
id, aggregatetype, aggregateid, type, payload, seq, headers, destination, created_at, traceparent

-- ---- leases and shards --------------------------------------------------------------------------------------------

-- name: shard_make
-- Somebody may have emptied the table.
INSERT OR IGNORE INTO main.semel_outbox_shard (shard) VALUES (:first_shard)

-- name: relay_mutex
-- none: begin has the write lock

-- name: relay_expire
DELETE FROM main.semel_relay WHERE lease_until < :now

-- name: relay_join
INSERT INTO main.semel_relay (token, owner, destinations, started_at, lease_until, first_shard)
VALUES (:relay_token, :relay_owner, :destinations, :now, :lease_until, :first_shard)

-- name: relay_renew
-- gives: changes
UPDATE main.semel_relay SET lease_until = :lease_until, down = :error_text WHERE token = :relay_token

-- name: relay_leave
DELETE FROM main.semel_relay WHERE token = :relay_token

-- name: relay_list
-- gives: relay_token, relay_owner, destinations
SELECT token AS relay_token, owner AS relay_owner, destinations FROM main.semel_relay
WHERE first_shard = :first_shard ORDER BY token LIMIT :limit

-- name: shard_list
-- gives: shard, relay_token, losses
SELECT shard, relay AS relay_token, losses FROM main.semel_outbox_shard
WHERE shard BETWEEN :first_shard AND :last_shard ORDER BY shard

-- name: shard_set
-- gives: applied
UPDATE main.semel_outbox_shard SET relay = :relay_token, losses = :losses WHERE shard = :shard

-- name: shard_lock
-- gives: shard, relay_token
SELECT shard, relay AS relay_token FROM main.semel_outbox_shard WHERE shard = :shard

-- ---- numbers ------------------------------------------------------------------------------------------------------

-- name: outbox_last
-- none: a lower number never commits later, and what was deleted is gone: every scan begins at the bottom

-- name: outbox_end
-- The highest number that is committed, in the outbox or aside. Of a mapped table: aside.
-- gives: seq
SELECT max(coalesce((SELECT max(o.seq) FROM main.semel_outbox AS o WHERE :first_shard = 0), 0),
    coalesce((SELECT a.seq FROM main.semel_outbox_aside AS a WHERE a.shard BETWEEN :first_shard AND :last_shard
              ORDER BY a.seq DESC LIMIT 1), 0)) AS seq

-- name: outbox_holders
-- none: see outbox_last

-- name: outbox_draw
-- none: see outbox_last

-- ---- reading ------------------------------------------------------------------------------------------------------

-- name: outbox_read
-- gives: {event_names}, held
SELECT {event(w)}, EXISTS (
        SELECT 1 FROM main.semel_outbox_aside AS a
        WHERE a.aggregatetype = w.aggregatetype AND a.aggregateid = w.aggregateid AND a.seq < w.seq
        AND a.shard = 0) AS held
FROM (SELECT x.*, sum(x.size) OVER (ORDER BY x.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS above
      FROM (SELECT *, {size} AS size FROM main.semel_outbox WHERE seq > :after_seq ORDER BY seq
            LIMIT min(:limit, :most)) AS x) AS w
JOIN main.semel_outbox AS o ON o.seq = w.seq
WHERE coalesce(w.above, 0) < :bytes ORDER BY w.seq

-- name: outbox_read_small
-- none: outbox_read costs as much

-- name: outbox_groups
-- gives: shard, aggregatetype, aggregateid, first_seq, last_seq, count
SELECT 0 AS shard, w.aggregatetype, w.aggregateid, min(w.seq) AS first_seq, max(w.seq) AS last_seq, count(*) AS count
FROM (SELECT x.aggregatetype, x.aggregateid, x.seq FROM main.semel_outbox AS x WHERE x.seq > :after_seq ORDER BY x.seq
      LIMIT :limit) AS w
GROUP BY w.aggregatetype, w.aggregateid ORDER BY first_seq LIMIT :most

-- name: aside_read
-- The first of their aggregates that are due, as many as fit. The window has no order: so nothing is sorted.
-- gives: {event_names}, attempts, alone
SELECT {event(w)}, w.attempts AS attempts, w.alone AS alone
FROM (SELECT x.*, sum(x.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS above
      FROM (SELECT *, {size} AS size FROM main.semel_outbox_aside AS z
            WHERE due_at <= :now AND (status = 'waiting' OR status = 'failed') AND shard = 0 AND NOT EXISTS (
                SELECT 1 FROM main.semel_outbox_aside AS y
                WHERE y.aggregatetype = z.aggregatetype AND y.aggregateid = z.aggregateid AND y.seq < z.seq
                AND y.shard = z.shard)
            ORDER BY due_at, seq LIMIT :limit) AS x) AS w
JOIN main.semel_outbox_aside AS o ON o.seq = w.seq
WHERE coalesce(w.above, 0) < :bytes

-- ---- what becomes of events ---------------------------------------------------------------------------------------

-- name: relay_by_key
-- none: rows are always found by their keys

-- name: outbox_delete
DELETE FROM main.semel_outbox WHERE seq = :seq

-- name: outbox_keep
INSERT INTO main.semel_outbox_sent ({columns_of_event}, sent_at)
SELECT {columns_of_event}, :now FROM main.semel_outbox WHERE seq = :seq

-- name: outbox_set_aside
INSERT INTO main.semel_outbox_aside ({columns_of_event}, status, attempts, due_at, error_text, alone, updated_at)
SELECT {columns_of_event}, :event_status, :attempts, :due_at, :error_text, :alone, :now
FROM main.semel_outbox WHERE seq = :seq

-- name: aside_start
-- A committed start. gives those that are ours now.
-- gives: applied
UPDATE main.semel_outbox_aside
SET status = 'publishing', attempts = attempts + 1, relay = :relay_token, updated_at = :now
WHERE seq = :seq AND (status = 'waiting' OR status = 'failed')

-- name: aside_release
-- What this relay was publishing when it lost its connection: it lives, so that no event is to blame.
UPDATE main.semel_outbox_aside
SET status = 'waiting', attempts = max(attempts - 1, 0), due_at = :now, relay = NULL, updated_at = :now
WHERE status = 'publishing' AND relay = :relay_token

-- name: aside_delete
DELETE FROM main.semel_outbox_aside WHERE seq = :seq

-- name: aside_keep
INSERT INTO main.semel_outbox_sent ({columns_of_event}, sent_at)
SELECT {columns_of_event}, :now FROM main.semel_outbox_aside WHERE seq = :seq

-- name: aside_fail
UPDATE main.semel_outbox_aside
SET status = :event_status, attempts = :attempts, due_at = :due_at, error_text = :error_text, relay = NULL,
    updated_at = :now
WHERE seq = :seq AND status = 'publishing' AND relay = :relay_token

-- name: aside_postpone
UPDATE main.semel_outbox_aside SET due_at = :due_at WHERE seq = :seq AND (status = 'waiting' OR status = 'failed')

-- name: aside_wake
-- The first event of the aggregate is due, if it waits for nothing else.
UPDATE main.semel_outbox_aside SET due_at = :now, updated_at = :now
WHERE seq = (SELECT min(x.seq) FROM main.semel_outbox_aside AS x
             WHERE x.aggregatetype = :aggregatetype AND x.aggregateid = :aggregateid AND x.shard = :shard)
AND status = 'waiting' AND due_at IS NULL

-- name: aside_recover
-- What a relay that is gone was publishing. The start of a single event counts; of several nobody knows which one it
-- was.
UPDATE main.semel_outbox_aside
SET status = CASE WHEN l.attempts >= :cap THEN 'dead' ELSE 'failed' END,
    due_at = CASE WHEN l.attempts >= :cap THEN NULL ELSE :due_at END,
    attempts = l.attempts, alone = 1, error_text = :error_text, relay = NULL, updated_at = :now
FROM (SELECT a.seq AS seq, a.attempts - (SELECT count(*) > 1 FROM main.semel_outbox_aside AS b
                                         WHERE b.status = 'publishing' AND b.relay = a.relay) AS attempts
      FROM main.semel_outbox_aside AS a
      WHERE a.status = 'publishing'
      AND NOT EXISTS (SELECT 1 FROM main.semel_relay AS r WHERE r.token = a.relay)) AS l
WHERE semel_outbox_aside.seq = l.seq

-- name: sent_purge
-- gives: changes
DELETE FROM main.semel_outbox_sent
WHERE seq IN (SELECT seq FROM main.semel_outbox_sent WHERE sent_at < :before ORDER BY sent_at LIMIT :limit)
