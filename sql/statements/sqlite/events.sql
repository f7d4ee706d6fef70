-- SPDX-License-Identifier: MIT
--
-- What operators ask of the outbox, and do to its events. The write lock is held since begin: nothing else is locked.

-- fragment: shown_names
event_status, seq, shard, event_id, aggregatetype, aggregateid, type, headers, destination, created_at, traceparent,
bytes, payload, attempts, due_at, error_text, alone, relay_token, updated_at, sent_at, held

-- fragment: shown
id, aggregatetype, aggregateid, type, headers, destination, created_at, traceparent, payload

-- fragment: all_shown
-- What is read of them, with whether an earlier event of the aggregate stands aside.
e.event_status AS event_status, e.seq AS seq, e.shard AS shard, e.id AS event_id, e.aggregatetype AS aggregatetype,
e.aggregateid AS aggregateid, e.type AS type, e.headers AS headers, e.destination AS destination,
e.created_at AS created_at, e.traceparent AS traceparent, length(e.payload) AS bytes,
CASE WHEN :with_payload THEN e.payload END AS payload, e.attempts AS attempts, e.due_at AS due_at,
e.error_text AS error_text, e.alone AS alone, e.relay AS relay_token, e.updated_at AS updated_at, e.sent_at AS sent_at,
e.event_status <> 'published' AND EXISTS (
    SELECT 1 FROM main.semel_outbox_aside AS f
    WHERE f.aggregatetype = e.aggregatetype AND f.aggregateid = e.aggregateid AND f.seq < e.seq
    AND f.shard = e.shard) AS held

-- fragment: as_created
'created' AS event_status, seq, 0 AS shard, {shown}, 0 AS attempts, NULL AS due_at, NULL AS error_text, 0 AS alone,
NULL AS relay, NULL AS updated_at, NULL AS sent_at

-- fragment: as_aside
status, seq, shard, {shown}, attempts, due_at, error_text, alone, relay, updated_at, NULL

-- fragment: as_sent
'published', seq, 0, {shown}, 0, NULL, NULL, 0, NULL, NULL, sent_at

-- fragment: these
-- Of one outbox, or of all.
shard BETWEEN :first_shard AND :last_shard

-- fragment: chosen
AND seq > :after_seq AND (:aggregatetype IS NULL OR aggregatetype = :aggregatetype)
AND (:aggregateid IS NULL OR aggregateid = :aggregateid) AND (:type IS NULL OR type = :type)
AND (:destination IS NULL OR destination = :destination)

-- name: event_list
-- gives: {shown_names}
SELECT {all_shown} FROM (
    SELECT * FROM (SELECT {as_created} FROM main.semel_outbox
                   WHERE instr(:statuses, '|created|') > 0 {chosen} ORDER BY seq LIMIT :limit)
    UNION ALL
    SELECT * FROM (SELECT {as_aside} FROM main.semel_outbox_aside
                   WHERE instr(:statuses, '|' || status || '|') > 0 {chosen} ORDER BY seq LIMIT :limit)
    UNION ALL
    SELECT * FROM (SELECT {as_sent} FROM main.semel_outbox_sent
                   WHERE instr(:statuses, '|published|') > 0 {chosen} ORDER BY seq LIMIT :limit)) AS e
ORDER BY e.seq LIMIT :limit

-- name: event_find
-- gives: {shown_names}
SELECT {all_shown} FROM (
    SELECT {as_created} FROM main.semel_outbox WHERE id = :event_id
    UNION ALL
    SELECT {as_aside} FROM main.semel_outbox_aside WHERE id = :event_id
    UNION ALL
    SELECT {as_sent} FROM main.semel_outbox_sent WHERE id = :event_id) AS e
LIMIT 1

-- name: event_first
-- The first event of its aggregate that stands aside.
-- gives: event_id, event_status
SELECT id AS event_id, status AS event_status FROM main.semel_outbox_aside
WHERE aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND shard = :shard ORDER BY seq LIMIT 1

-- name: event_behind
-- Those of its aggregate that stand aside behind it.
-- gives: count
SELECT count(*) AS count FROM (
    SELECT 1 FROM main.semel_outbox_aside
    WHERE aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND shard = :shard AND seq > :seq LIMIT :cap)

-- name: event_owner
-- gives: relay_owner, lease_until
SELECT r.owner AS relay_owner, r.lease_until AS lease_until
FROM main.semel_outbox_shard AS s JOIN main.semel_relay AS r ON r.token = s.relay WHERE s.shard = :shard

-- name: event_acts
-- The latest, newest first.
-- gives: at, who, what, reason
SELECT at, who, what, reason FROM main.semel_audit
WHERE consumer IS NULL AND source IS NULL AND message_id = :event_id ORDER BY id DESC LIMIT :limit

-- name: event_lock
-- none: begin has the write lock

-- name: event_retry
-- The first of its aggregate is due now; another one waits for its turn.
-- gives: event_id
UPDATE main.semel_outbox_aside AS a
SET status = 'waiting', attempts = 0, updated_at = :now, relay = NULL,
    due_at = CASE WHEN EXISTS (
        SELECT 1 FROM main.semel_outbox_aside AS f
        WHERE f.aggregatetype = a.aggregatetype AND f.aggregateid = a.aggregateid AND f.seq < a.seq
        AND f.shard = a.shard) THEN NULL
    ELSE :now END
WHERE a.id = :event_id AND (a.status = 'waiting' OR a.status = 'failed' OR a.status = 'dead')
RETURNING id AS event_id

-- name: event_discard
-- Aside; the others are event_remove's.
-- gives: event_id
DELETE FROM main.semel_outbox_aside
WHERE id = :event_id AND (status = 'waiting' OR status = 'failed' OR status = 'dead')
RETURNING id AS event_id

-- name: event_remove
-- gives: event_id
DELETE FROM main.semel_outbox WHERE id = :event_id RETURNING id AS event_id

-- name: event_wake
-- The first event of the aggregate is due, if it waits for nothing else.
UPDATE main.semel_outbox_aside SET due_at = :now, updated_at = :now
WHERE seq = (SELECT min(x.seq) FROM main.semel_outbox_aside AS x
             WHERE x.aggregatetype = :aggregatetype AND x.aggregateid = :aggregateid AND x.shard = :shard)
AND status = 'waiting' AND due_at IS NULL

-- name: event_counts
-- Of those that stand aside, by status, each up to a cap.
-- gives: event_status, count, oldest_at
SELECT status AS event_status, count(*) AS count, min(created_at) AS oldest_at
FROM (SELECT status, created_at FROM main.semel_outbox_aside WHERE {these} LIMIT :cap) GROUP BY status

-- name: event_longest
-- The aggregate with the most events aside, among the first that are looked at.
-- gives: aggregatetype, aggregateid, count
SELECT aggregatetype, aggregateid, count(*) AS count
FROM (SELECT aggregatetype, aggregateid FROM main.semel_outbox_aside WHERE {these} LIMIT :cap)
GROUP BY aggregatetype, aggregateid ORDER BY 3 DESC, 1, 2 LIMIT 1

-- name: event_down
-- Destinations that make events wait, as far as the events name them.
-- gives: destination, error_text, count
SELECT destination, error_text, count(*) AS count
FROM (SELECT destination, error_text FROM main.semel_outbox_aside
      WHERE due_at IS NOT NULL AND error_text IS NOT NULL AND +status = 'waiting' AND {these} LIMIT :cap)
GROUP BY destination, error_text ORDER BY 3 DESC LIMIT :limit

-- name: relay_down
-- A relay that is alive and cannot publish somewhere.
-- gives: relay_owner, error_text
SELECT owner AS relay_owner, down AS error_text FROM main.semel_relay
WHERE down IS NOT NULL AND lease_until > :now AND first_shard BETWEEN :first_shard AND :last_shard
ORDER BY token LIMIT :limit

-- name: event_holder
-- none: a writer has the lock until it ends, and nobody draws a number beside it
