-- SPDX-License-Identifier: MIT
--
-- What rows and keys become, and the evidence. Every row is locked since admit or fetch, so that the order of updates
-- cannot deadlock.

-- name: locks_impatient
-- Statements up to locks_patient wait for no lock: they end with contention.
SELECT pg_catalog.set_config('semel.patience', pg_catalog.current_setting('lock_timeout'), true),
    pg_catalog.set_config('lock_timeout', '20', true)

-- name: locks_patient
SELECT pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('semel.patience'), true)

-- fragment: bump(row)
-- A clock that stepped back must not hide the change.
CASE WHEN coalesce({row}.updated_at, {row}.received_at) > :now
     THEN coalesce({row}.updated_at, {row}.received_at) + interval '1 microsecond' ELSE :now END

-- name: settle_waiters
-- Rows that wait for a business key of these messages become due. A row that somebody else has becomes due later by
-- itself.
UPDATE semel.record AS t SET due_at = :now, updated_at = {bump(t)}
WHERE t.ctid = ANY (ARRAY(
    SELECT i.ctid FROM :rows AS b
    JOIN semel.business_key AS k
        ON k.consumer = :consumer AND k.source = b.source AND k.message_id = b.message_id AND b.release
    JOIN semel.business_want AS w ON w.consumer = k.consumer AND w.business_key = k.business_key
    CROSS JOIN LATERAL (
        SELECT ctid FROM semel.record WHERE key = {key_of(w.message_id)} AND stream = {stream(w.source)}
        AND status IS NOT DISTINCT FROM 'waiting' AND error_class = 'business_duplicate'
        FOR UPDATE SKIP LOCKED) AS i))

-- name: settle_wish
-- What a message holds it wishes for from now on.
INSERT INTO semel.business_want (consumer, business_key, source, message_id)
SELECT k.consumer, k.business_key, k.source, k.message_id FROM :rows AS b
JOIN semel.business_key AS k ON k.consumer = :consumer AND k.source = b.source AND k.message_id = b.message_id
WHERE b.release AND b.wish ON CONFLICT DO NOTHING

-- fragment: released
released AS (
    DELETE FROM semel.business_key AS k USING done
    WHERE done.release AND k.consumer = :consumer AND k.source = done.source AND k.message_id = done.message_id)

-- name: settle_update
-- A change that does not apply has no side effects, so its attempt and the release of its business keys are parts of
-- this statement. OFFSET 0 and IS TRUE: each row is looked up once, by its key. Else, as long as the table is small,
-- the planner joins every row of it with every row of the batch, and looks each pair up.
-- rows: pairs record_key
-- gives: n
WITH done AS (
    UPDATE semel.record AS t
    SET status = nullif(b.status, 'completed'), attempts = nullif(b.attempts, 1),
        open_for = CASE WHEN NOT b.status IN ('completed', 'rejected', 'stale', 'prevented') THEN :consumer END,
        attempts_before = nullif(b.attempts_before, 0), retries = nullif(b.retries, 0), alone = nullif(b.alone, false),
        due_at = b.due_at, processed_at = nullif(b.processed_at, b.updated_at), lease_owner = b.lease_owner,
        lease_until = b.lease_until, lease_token = b.lease_token, updated_at = nullif(b.updated_at, t.received_at),
        error_class = b.error_class, error_text = b.error_text, outcome = b.outcome,
        headers = CASE WHEN b.touch THEN b.headers ELSE t.headers END,
        payload = CASE WHEN b.touch THEN b.payload ELSE t.payload END,
        fingerprint = coalesce(t.fingerprint, b.fingerprint)
    FROM (SELECT b.*, i.ctid AS place FROM :rows AS b
          CROSS JOIN LATERAL (SELECT ctid FROM semel.record WHERE {this_row} OFFSET 0) AS i OFFSET 0) AS b
    WHERE t.ctid = place AND NOT b.remove
    AND (coalesce(t.status, 'completed') = b.was) IS TRUE AND (b.token IS NULL OR t.lease_token = b.token)
    RETURNING b.n, b.source, b.message_id, b.attempts, t.error_class, t.error_text, b.log, b.release),
logged AS (
    INSERT INTO semel.attempt (consumer, source, message_id, attempt, at, worker, error_class, error_text)
    SELECT :consumer, done.source, done.message_id, done.attempts, :now, :worker, done.error_class, done.error_text
    FROM done WHERE done.log ORDER BY done.n),
{released}
SELECT n FROM done

-- name: settle_remove
-- rows: pairs record_key
-- gives: n
WITH done AS (
    DELETE FROM semel.record AS t
    USING :rows AS b CROSS JOIN LATERAL (SELECT ctid FROM semel.record WHERE {this_row} OFFSET 0) AS i
    WHERE t.ctid = i.ctid AND b.remove
    AND (coalesce(t.status, 'completed') = b.was) IS TRUE
    RETURNING b.n, b.source, b.message_id, b.release),
{released}
SELECT n FROM done

-- name: settle_attempt
-- none: settle_update does it

-- name: settle_release
-- none: settle_update and settle_remove do it

-- name: settle_command
-- For a role that only reads the tables: the owner's function makes the change and writes the audit line, keys and
-- business keys.
-- gives: n
WITH r AS MATERIALIZED (SELECT {reason} AS reason)
SELECT b.n FROM :rows AS b CROSS JOIN r CROSS JOIN LATERAL (
    SELECT semel._operate(:consumer, b.source, b.message_id, b.was, b.status, b.outcome, r.reason) AS done,
        pg_catalog.set_config('semel.reason', '', true)) AS c
WHERE c.done

-- name: settle_correct
-- only: SQLite has no roles
-- The whole move, for such a role.
-- gives: done
SELECT semel._operator_correct(:consumer, :source, :message_id, :was, :payload, :force, :reason) AS done

-- name: settle_drop
DELETE FROM semel.business_key AS k USING :rows AS b
WHERE k.consumer = :consumer AND k.business_key = b.business_key AND k.source = b.source
AND k.message_id = b.message_id

-- name: settle_grant
DELETE FROM semel.business_want AS w USING :rows AS b
WHERE w.consumer = :consumer AND w.source = b.source AND w.message_id = b.message_id

-- name: settle_want
INSERT INTO semel.business_want (consumer, business_key, source, message_id)
SELECT :consumer, b.business_key, b.source, b.message_id FROM :rows AS b ON CONFLICT DO NOTHING

-- name: settle_hold
UPDATE semel.business_key AS k SET expires_at = b.expires_at FROM :rows AS b
WHERE k.consumer = :consumer AND k.source = b.source AND k.message_id = b.message_id
AND k.expires_at IS DISTINCT FROM b.expires_at

-- name: settle_conflict
-- One INSERT cannot meet a row twice, so equal conflicts of the batch are counted first.
INSERT INTO semel.conflict AS c (consumer, source, message_id, fingerprint, count, first_at, last_at, type,
    position, headers, payload, traceparent)
SELECT DISTINCT ON (b.source COLLATE "C", b.message_id COLLATE "C", b.fingerprint) :consumer, b.source, b.message_id,
    b.fingerprint, pg_catalog.count(*) OVER (PARTITION BY b.source, b.message_id, b.fingerprint), :now, :now, b.type,
    b.position, b.headers, b.payload, b.traceparent
FROM :rows AS b ORDER BY b.source COLLATE "C", b.message_id COLLATE "C", b.fingerprint
ON CONFLICT (consumer, source, message_id, fingerprint) DO UPDATE
SET count = c.count + excluded.count, last_at = excluded.last_at

-- name: settle_conflict_bound
DELETE FROM semel.conflict WHERE ctid = ANY (ARRAY(
    SELECT o.ctid FROM (SELECT DISTINCT b.source, b.message_id FROM :rows AS b) AS m
    CROSS JOIN LATERAL (
        SELECT ctid FROM semel.conflict
        WHERE consumer = :consumer AND source = m.source AND message_id = m.message_id
        ORDER BY last_at DESC OFFSET :limit) AS o))

-- name: settle_note
INSERT INTO semel.attempt (consumer, source, message_id, attempt, at, worker, error_class, error_text)
SELECT :consumer, b.source, b.message_id, b.attempt, :now, :worker, b.error_class, b.error_text
FROM :rows AS b ORDER BY b.n

-- name: settle_key
-- Every change of a key's unfinished set changes its row: a transaction with an older snapshot has to notice.
INSERT INTO semel.order_key AS o (consumer, order_key, last_version, changes, updated_at)
SELECT :consumer, b.order_key, b.last_version, 1, :now FROM :rows AS b ORDER BY b.n
ON CONFLICT (consumer, order_key) DO UPDATE
SET last_version = greatest(o.last_version, excluded.last_version), changes = o.changes + 1, updated_at = :now

-- name: settle_skip
UPDATE semel.order_key AS o SET skipped = pg_catalog.string_to_array(b.skipped, ',')::bigint[]
FROM :rows AS b WHERE o.consumer = :consumer AND o.order_key = b.order_key

-- fragment: woken(first)
-- Whoever has the row without its key (a copy under another key) is not waited for: a sweep wakes it later. One that
-- was put for a later time has no class, and keeps it.
UPDATE semel.record AS u SET due_at = :now, error_class = 'blocked', updated_at = {bump(u)}
WHERE u.ctid = ANY (ARRAY(
    SELECT t.ctid FROM :rows AS b
    CROSS JOIN LATERAL (
        SELECT i.stream, i.key FROM semel.inbox AS i
        WHERE i.open_for = :consumer AND i.order_key = b.order_key AND {in_order(i)} AND b.wake AND {first}
        LIMIT 1) AS h
    CROSS JOIN LATERAL (
        SELECT ctid FROM semel.record WHERE key = h.key AND stream = h.stream
        AND status IS NOT DISTINCT FROM 'waiting' AND (error_class IS NOT NULL OR (due_at > :now) IS NOT TRUE)
        FOR UPDATE SKIP LOCKED) AS t))

-- name: settle_wake
{woken(NOT b.by_version ORDER BY i.arrival)}

-- name: settle_wake_version
{woken(b.by_version ORDER BY i.version NULLS FIRST, i.arrival)}
