-- SPDX-License-Identifier: MIT
--
-- What operators ask of the outbox, and do to its events. Whoever changes an event has locked its shard in an earlier
-- statement, as the relay does (relay.sql). A role that only reads the tables calls the owner's function, which locks,
-- changes, wakes and writes the audit by itself.

-- fragment: shown_names
event_status, seq, shard, event_id, aggregatetype, aggregateid, type, headers, destination, created_at, traceparent,
bytes, payload, attempts, due_at, error_text, alone, relay_token, updated_at, sent_at, held

-- fragment: shown(e)
{e}.seq, {e}.shard, {e}.id::text AS id, {e}.aggregatetype, {e}.aggregateid, {e}.type, {e}.headers, {e}.destination,
{e}.created_at, {e}.traceparent, {e}.payload

-- fragment: all_shown(e)
-- What is read of them, with whether an earlier event of the aggregate stands aside.
{e}.event_status, {e}.seq, {e}.shard::bigint AS shard, {e}.id AS event_id, {e}.aggregatetype, {e}.aggregateid,
{e}.type, {e}.headers, {e}.destination, {e}.created_at, {e}.traceparent,
pg_catalog.octet_length({e}.payload)::bigint AS bytes, CASE WHEN :with_payload THEN {e}.payload END AS payload,
{e}.attempts::bigint AS attempts, {e}.due_at, {e}.error_text, {e}.alone, {e}.relay AS relay_token, {e}.updated_at,
{e}.sent_at, CASE WHEN {e}.event_status <> 'published' THEN {earlier({e})} IS NOT NULL ELSE false END AS held

-- fragment: as_created(o)
'created'::text AS event_status, {shown({o})}, 0 AS attempts, NULL::timestamptz AS due_at, NULL::text AS error_text,
false AS alone, NULL::bigint AS relay, NULL::timestamptz AS updated_at, NULL::timestamptz AS sent_at

-- fragment: as_aside(a)
{a}.status, {shown({a})}, {a}.attempts, {a}.due_at, {a}.error_text, {a}.alone, {a}.relay, {a}.updated_at,
NULL::timestamptz

-- fragment: as_sent(s)
'published'::text, {shown({s})}, 0, NULL::timestamptz, NULL::text, false, NULL::bigint, NULL::timestamptz, {s}.sent_at

-- fragment: these(x)
-- Of one outbox, or of all.
{x}.shard BETWEEN :first_shard AND :last_shard

-- fragment: chosen(x)
AND {x}.seq > :after_seq AND (:aggregatetype IS NULL OR {x}.aggregatetype = :aggregatetype)
AND (:aggregateid IS NULL OR {x}.aggregateid = :aggregateid) AND (:type IS NULL OR {x}.type = :type)
AND (:destination IS NULL OR {x}.destination = :destination)

-- name: event_list
-- By number. A table without an index on seq alone is read shard by shard.
-- gives: {shown_names}
SELECT {all_shown(e)} FROM (
    SELECT {as_created(o)} FROM pg_catalog.generate_series(0, 63) AS n (shard) CROSS JOIN LATERAL (
        SELECT * FROM semel.outbox AS x WHERE x.shard = n.shard {chosen(x)} ORDER BY x.seq LIMIT :limit) AS o
    WHERE pg_catalog.strpos(:statuses, '|created|') > 0
    UNION ALL
    SELECT {as_aside(a)} FROM (
        SELECT g FROM pg_catalog.generate_series(0, 63) AS g UNION ALL SELECT m.shard FROM semel.outbox_mapped AS m
    ) AS n (shard) CROSS JOIN LATERAL (
        SELECT * FROM semel.outbox_aside AS x
        WHERE x.shard = n.shard AND pg_catalog.strpos(:statuses, '|' || x.status || '|') > 0 {chosen(x)}
        ORDER BY x.seq LIMIT :limit) AS a
    UNION ALL
    SELECT {as_sent(s)} FROM (
        SELECT * FROM semel.outbox_sent AS x WHERE true {chosen(x)} ORDER BY x.seq LIMIT :limit) AS s
    WHERE pg_catalog.strpos(:statuses, '|published|') > 0) AS e
ORDER BY e.seq LIMIT :limit

-- name: event_find
-- gives: {shown_names}
SELECT {all_shown(e)} FROM (
    SELECT {as_created(o)} FROM semel.outbox AS o WHERE o.id = :event_uuid::uuid
    UNION ALL
    SELECT {as_aside(a)} FROM semel.outbox_aside AS a WHERE a.id = :event_id
    UNION ALL
    SELECT {as_sent(s)} FROM semel.outbox_sent AS s WHERE s.id = :event_id) AS e
LIMIT 1

-- name: event_first
-- The first event of its aggregate that stands aside.
-- gives: event_id, event_status
SELECT a.id AS event_id, a.status AS event_status FROM semel.outbox_aside AS a
WHERE a.aggregatetype = :aggregatetype AND a.aggregateid = :aggregateid AND a.shard + 0 = :shard ORDER BY a.seq LIMIT 1

-- name: event_behind
-- Those of its aggregate that stand aside behind it.
-- gives: count
SELECT pg_catalog.count(*) AS count FROM (
    SELECT FROM semel.outbox_aside AS a
    WHERE a.aggregatetype = :aggregatetype AND a.aggregateid = :aggregateid AND a.shard = :shard AND a.seq > :seq
    LIMIT :cap) AS b

-- name: event_owner
-- gives: relay_owner, lease_until
SELECT r.owner AS relay_owner, r.lease_until FROM semel.outbox_shard AS s JOIN semel.relay AS r ON r.token = s.relay
WHERE s.shard = :shard

-- name: event_acts
-- The latest, newest first.
-- gives: at, who, what, reason
SELECT a.at, a.who, a.what, a.reason FROM semel.audit AS a
WHERE a.consumer IS NULL AND a.source IS NULL AND a.message_id = :event_id ORDER BY a.id DESC LIMIT :limit

-- name: event_lock
SELECT s.shard FROM semel.outbox_shard AS s WHERE s.shard = :shard FOR UPDATE

-- operator: event_lock
SELECT semel._operator_outbox('lock', :event_id, NULL)

-- name: event_retry
-- The first of its aggregate is due now; another one waits for its turn.
-- gives: event_id
UPDATE semel.outbox_aside AS a
SET status = 'waiting', attempts = 0, updated_at = :now, relay = NULL,
    due_at = CASE WHEN {earlier(a)} IS NULL THEN :now END
WHERE a.id = :event_id AND a.status IN ('waiting', 'failed', 'dead')
RETURNING a.id AS event_id

-- operator: event_retry
SELECT :event_id AS event_id FROM (SELECT semel._operator_outbox('retry', :event_id, {reason}) AS done) AS o
WHERE o.done

-- name: event_discard
-- gives: event_id
WITH aside AS (
    DELETE FROM semel.outbox_aside AS a WHERE a.id = :event_id AND a.status IN ('waiting', 'failed', 'dead')
    RETURNING a.id),
created AS (DELETE FROM semel.outbox AS o WHERE o.id = :event_uuid::uuid RETURNING o.id::text)
SELECT x.id AS event_id FROM (SELECT id FROM aside UNION ALL SELECT id FROM created) AS x

-- operator: event_discard
SELECT :event_id AS event_id FROM (SELECT semel._operator_outbox('discard', :event_id, {reason}) AS done) AS o
WHERE o.done

-- name: event_remove
-- none: event_discard deletes from both tables

-- name: event_wake
-- The first event of the aggregate is due, if it waits for nothing else.
UPDATE semel.outbox_aside AS a SET due_at = :now, updated_at = :now
WHERE (a.shard, a.seq) = (
    SELECT x.shard, x.seq FROM semel.outbox_aside AS x
    WHERE x.aggregatetype = :aggregatetype AND x.aggregateid = :aggregateid AND x.shard + 0 = :shard
    ORDER BY x.seq LIMIT 1)
AND a.status = 'waiting' AND a.due_at IS NULL

-- operator: event_wake
-- The owner's function has done it.
SELECT 1

-- name: event_counts
-- Of those that stand aside, by status, each up to a cap. The oldest is the first by its number.
-- gives: event_status, count, oldest_at
SELECT k.status AS event_status, x.count, x.oldest_at
FROM (VALUES ('waiting'), ('publishing'), ('failed'), ('dead')) AS k (status) CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS count, pg_catalog.min(a.created_at) AS oldest_at
    FROM (SELECT i.created_at FROM semel.outbox_aside AS i
          WHERE i.status = k.status AND {these(i)} LIMIT :cap) AS a) AS x

-- name: event_longest
-- The aggregate with the most events aside, among the first that are looked at.
-- gives: aggregatetype, aggregateid, count
SELECT a.aggregatetype, a.aggregateid, pg_catalog.count(*) AS count
FROM (SELECT x.aggregatetype, x.aggregateid FROM semel.outbox_aside AS x
      WHERE {these(x)} LIMIT :cap) AS a
GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 1

-- name: event_down
-- Destinations that make events wait, as far as the events name them.
-- gives: destination, error_text, count
SELECT a.destination, a.error_text, pg_catalog.count(*) AS count
FROM (SELECT x.destination, x.error_text FROM semel.outbox_aside AS x
      WHERE x.status = 'waiting' AND x.due_at IS NOT NULL AND x.error_text IS NOT NULL AND {these(x)} LIMIT :cap) AS a
GROUP BY 1, 2 ORDER BY 3 DESC LIMIT :limit

-- name: relay_down
-- A relay that is alive and cannot publish somewhere.
-- gives: relay_owner, error_text
SELECT r.owner AS relay_owner, r.down AS error_text FROM semel.relay AS r
WHERE r.down IS NOT NULL AND r.lease_until > :now AND r.first_shard BETWEEN :first_shard AND :last_shard
ORDER BY r.token LIMIT :limit

-- name: event_holder
-- The transaction that has drawn a number and is open for longest. Another role's times and texts are shown to a member
-- of pg_read_all_stats only. A prepared one has no process: it is found by the lock on its own number.
-- gives: pid, user, since, query, gid, shown
SELECT l.pid::bigint AS pid, coalesce(a.usename, p.owner)::text AS user, coalesce(a.xact_start, p.prepared) AS since,
    a.query, p.gid,
    pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') OR pg_catalog.pg_has_role(a.usesysid, 'USAGE') AS shown
FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN LATERAL (
    SELECT t.gid, t.owner, t.prepared
    FROM pg_catalog.pg_locks AS x JOIN pg_catalog.pg_prepared_xacts AS t ON t.transaction = x.transactionid
    WHERE x.locktype = 'transactionid' AND x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
    LIMIT 1) AS p ON l.pid IS NULL
WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
AND l.relation = 'semel.outbox_seq_seq'::pg_catalog.regclass::oid
AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
ORDER BY coalesce(a.xact_start, p.prepared) NULLS LAST, l.pid LIMIT 1
