-- SPDX-License-Identifier: MIT
--
-- What kind of server this is, whether it is still the same, and what this role may do there.

-- name: server_check
-- only: a file takes writes or cannot be opened
-- Also safe under the search_path that is to be refused.
-- gives: recovering, read_only, schemas
SELECT pg_catalog.pg_is_in_recovery() AS recovering,
    pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'on'::pg_catalog.text AS read_only,
    pg_catalog.array_to_string(pg_catalog.current_schemas(true), ',') AS schemas

-- name: server_role
-- only: SQLite has no roles
-- A role that reads the tables and may call what operators do.
-- gives: operates
SELECT EXISTS (
    SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'semel' AND c.relname = 'record' AND NOT pg_catalog.has_table_privilege(c.oid, 'UPDATE'))
AND EXISTS (
    SELECT 1 FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE n.nspname = 'semel' AND p.proname = '_operate' AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))
AS operates

-- name: server_durability
-- only: an own connection to SQLite is durable
-- gives: note
SELECT CASE
    WHEN pg_catalog.current_setting('fsync') = 'off' THEN 'fsync is off: a power failure can lose or damage everything'
    WHEN pg_catalog.current_setting('synchronous_commit') = 'off'
    THEN 'synchronous_commit is off: acknowledged work can be lost'
    WHEN pg_catalog.current_setting('synchronous_standby_names') <> '' THEN 'commits wait for a standby' END AS note

-- name: server_rights
-- only: SQLite has no roles
-- What the statements of a consumer, a relay and a gateway need; roles.sql grants a worker more, for operators.
-- gives: role, synchronous_commit, fsync_off, missing, public_writable
SELECT current_user::text AS role, pg_catalog.current_setting('synchronous_commit') AS synchronous_commit,
    pg_catalog.current_setting('fsync') = 'off' AS fsync_off,
    (SELECT pg_catalog.string_agg(w.what || ' on semel.' || n.name, ', ' ORDER BY n.name, w.what)
     FROM (VALUES ('record', 'SELECT,INSERT,UPDATE,DELETE'), ('stream', 'SELECT,INSERT'), ('inbox', 'SELECT'),
                  ('business_key', 'SELECT,INSERT,UPDATE,DELETE'),
                  ('business_want', 'SELECT,INSERT,DELETE'), ('order_key', 'SELECT,INSERT,UPDATE'),
                  ('watermark', 'SELECT,INSERT,UPDATE'), ('consumer', 'SELECT,INSERT,UPDATE'),
                  ('conflict', 'SELECT,INSERT,UPDATE'), ('attempt', 'SELECT,INSERT,DELETE'),
                  ('position', 'SELECT,INSERT,UPDATE'), ('arrival', 'USAGE'), ('_inbox_new', 'EXECUTE'),
                  ('outbox', 'SELECT,DELETE'), ('outbox_aside', 'SELECT,INSERT,UPDATE,DELETE'),
                  ('outbox_sent', 'SELECT,INSERT,DELETE'), ('outbox_seq_seq', 'SELECT,USAGE'),
                  ('outbox_shard', 'SELECT,INSERT,UPDATE'), ('relay', 'SELECT,INSERT,UPDATE,DELETE'),
                  ('idempotency', 'SELECT,INSERT,UPDATE,DELETE')) AS n (name, whats)
     CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.string_to_array(n.whats, ',')) AS w (what)
     LEFT JOIN pg_catalog.pg_class AS c ON c.relname = n.name
         AND c.relnamespace = (SELECT s.oid FROM pg_catalog.pg_namespace AS s WHERE s.nspname = 'semel')
     WHERE (n.name <> 'position' OR :positions) AND (n.name <> 'idempotency' OR :gateways)
     AND (:relays OR n.name <> 'relay' AND n.name NOT LIKE 'outbox%')
     AND NOT coalesce(CASE w.what WHEN 'USAGE' THEN pg_catalog.has_sequence_privilege(c.oid, w.what)
                                  WHEN 'EXECUTE' THEN (
                                      SELECT pg_catalog.has_function_privilege(p.oid, w.what)
                                      FROM pg_catalog.pg_proc AS p WHERE p.proname = n.name AND p.pronamespace = (
                                          SELECT s.oid FROM pg_catalog.pg_namespace AS s WHERE s.nspname = 'semel'))
                                  ELSE pg_catalog.has_table_privilege(c.oid, w.what) END, false)) AS missing,
    (SELECT pg_catalog.has_schema_privilege('public', n.oid, 'CREATE') FROM pg_catalog.pg_namespace AS n
     WHERE n.nspname = 'public') AS public_writable

-- name: server_outbox
-- only: SQLite draws from a table, and notifies nobody
-- What the order and the numbers of the outbox rest on, and whether a trigger notifies (notify.sql).
-- gives: seq, highest, cache, descends, notifies
SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END AS seq,
    coalesce((SELECT l.seq FROM semel.outbox_last AS l), 0) AS highest, q.seqcache AS cache,
    q.seqincrement < 0 OR q.seqcycle AS descends,
    EXISTS (SELECT FROM pg_catalog.pg_trigger AS t
            WHERE t.tgrelid = 'semel.outbox'::pg_catalog.regclass::oid AND t.tgname = 'outbox_notify'
            AND t.tgenabled <> 'D')
    AS notifies
FROM semel.outbox_seq_seq AS s, pg_catalog.pg_sequence AS q
WHERE q.seqrelid = 'semel.outbox_seq_seq'::pg_catalog.regclass::oid

-- name: outbox_listen
-- only: SQLite notifies nobody
LISTEN semel_outbox

-- name: outbox_ring
-- only: SQLite notifies nobody
SELECT pg_catalog.pg_notify('semel_outbox'::text, ''::text)

-- fragment: now_on
('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::bigint

-- fragment: lately
pg_catalog.clock_timestamp() - interval '7 days'

-- name: timeline_read
-- only: SQLite has no standby
-- gives: timeline, last_timeline, note, may_note, recent
SELECT n.timeline, last.timeline AS last_timeline, last.note,
    pg_catalog.has_table_privilege('semel.timeline', 'INSERT') AS may_note, last.noticed_at > {lately} AS recent
FROM (SELECT {now_on} AS timeline) AS n
LEFT JOIN (SELECT * FROM semel.timeline ORDER BY number DESC LIMIT 1) AS last ON true

-- name: timeline_hurry
-- only: SQLite has no standby
-- The note waits for no standby.
SELECT pg_catalog.set_config('synchronous_commit', 'local', true)

-- name: timeline_note
-- only: SQLite has no standby
INSERT INTO semel.timeline (timeline) SELECT {now_on}

-- name: restart_may
-- only: SQLite draws from a table
-- gives: may_note
SELECT pg_catalog.has_table_privilege('semel.restart'::text, 'INSERT'::text) AS may_note

-- name: restart_put
-- only: SQLite draws from a table
-- Its trigger moves sequences that began anew past what is stored.
INSERT INTO semel.restart (note) VALUES ('')

-- name: restart_read
-- only: SQLite draws from a table
-- gives: note
SELECT r.note FROM semel.restart AS r WHERE r.noticed_at > {lately} ORDER BY r.noticed_at DESC LIMIT 1

-- Messages that the caller's transaction has begun. On SQLite a commit hook asks the handle for them.

-- name: held_put
-- only: SQLite has a commit hook
INSERT INTO semel.held (token, kind, consumer, source, message_id, attempt, at)
VALUES (:token, 'begun', :consumer, :source, :message_id, :attempt, pg_catalog.clock_timestamp())

-- name: held_drop
-- only: SQLite has a commit hook
DELETE FROM semel.held WHERE token = :token AND kind <> 'claimed'

-- name: held_forget
-- only: SQLite has a commit hook
DELETE FROM semel.held WHERE token = :token

-- name: held_refuse
-- only: SQLite has a commit hook
INSERT INTO semel.held (token, kind, consumer, source, message_id, attempt, at)
VALUES (:token, 'refused', '', '', '', 0, pg_catalog.clock_timestamp())
