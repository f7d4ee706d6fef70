-- SPDX-License-Identifier: MIT
--
-- Idempotency keys. Nothing here waits for another transaction, but for the row of an own token: whoever inserts a key
-- holds the lock of its name, as the functions of sql/postgres/020_idempotency.sql do, and a row that somebody else is
-- changing is left alone.

-- fragment: idempotency_row
i.scope, i.key, i.status, i.token, i.fingerprint, i.created_at, i.updated_at, i.lease_until, i.lease_owner, i.answer_us,
i.keep_us, i.cause, i.code, i.headers, i.body, i.completed_at, i.answer_until, i.key_until, i.origin, i.rule,
i.traceparent

-- fragment: idempotency_names
scope, key, status, token, fingerprint, created_at, updated_at, lease_until, lease_owner, answer_us, keep_us, cause,
code, headers, body, completed_at, answer_until, key_until, origin, rule, traceparent

-- fragment: durable
-- The COMMIT may be on its way behind the statement: it fails where that would not be durable. A caller's own COMMIT is
-- as durable as the caller wants it: what the key stands for is in there, too.
1 / (:joined OR pg_catalog.current_setting('synchronous_commit') <> 'off')::integer = 1

-- fragment: new_keys
-- Only what has no row that can be seen: an insert would wait for a transaction that changes the row. The look-up is
-- fenced: a plan that was made while the table was small would read all of it for every group, for as long as the
-- connection lives. The rows come in the order of the arrays.
INSERT INTO semel.idempotency (scope, key, status, token, fingerprint, created_at, updated_at, lease_until,
                               lease_owner, answer_us, keep_us, origin, rule, traceparent)
SELECT b.scope, b.key, 'processing', b.token, b.fingerprint, :now, :now, b.lease_until, :lease_owner, b.answer_us,
       b.keep_us, b.origin, b.rule, b.traceparent
FROM :rows AS b
WHERE NOT EXISTS (SELECT FROM semel.idempotency AS i WHERE i.scope = b.scope AND i.key = b.key OFFSET 0)
  AND pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(
          b.key COLLATE "C", pg_catalog.hashtextextended(b.scope COLLATE "C", 1936026993)))
  AND {durable}

-- name: idempotency_put
-- rows: shaped scope key token fingerprint
-- gives: token
{new_keys}
ON CONFLICT (scope, key) DO NOTHING
RETURNING token

-- name: idempotency_put_retried
-- only: an insert of SQLite has nobody beside it
-- rows: shaped scope key token fingerprint
-- gives: token
-- Where the transaction is done again if it fails: a key whose row another transaction has committed since this
-- statement began is a unique violation. Without ON CONFLICT each row is looked up in one index less, and is written in
-- one record of the log instead of two.
{new_keys}
RETURNING token

-- name: idempotency_find
-- gives: n, {idempotency_names}
-- Not the rows that idempotency_put has just inserted: it returned their tokens.
SELECT b.n, {idempotency_row}
FROM :rows AS b CROSS JOIN LATERAL (
    SELECT * FROM semel.idempotency AS r WHERE r.scope = b.scope AND r.key = b.key OFFSET 0) AS i
WHERE i.token <> b.token

-- name: idempotency_retake
-- gives: n
WITH l AS (
    SELECT i.ctid AS place, b.n, b.token, b.fingerprint, b.lease_until, b.answer_us, b.keep_us, b.origin, b.rule,
           b.traceparent
    FROM :rows AS b JOIN semel.idempotency AS i ON i.scope = b.scope AND i.key = b.key
    WHERE i.token = b.lease_token AND i.status = b.was AND i.lease_until IS NOT DISTINCT FROM b.before
    FOR UPDATE OF i SKIP LOCKED)
UPDATE semel.idempotency AS i
SET status = 'processing', token = l.token, fingerprint = l.fingerprint, created_at = :now, updated_at = :now,
    lease_until = l.lease_until, lease_owner = :lease_owner, answer_us = l.answer_us, keep_us = l.keep_us, cause = NULL,
    code = NULL, headers = NULL, body = NULL, completed_at = NULL, answer_until = NULL, key_until = NULL,
    origin = l.origin, rule = l.rule, traceparent = l.traceparent
FROM l WHERE i.ctid = l.place
RETURNING l.n

-- name: idempotency_held
-- gives: {idempotency_names}
SELECT {idempotency_row} FROM semel.idempotency AS i WHERE i.token = :token AND i.status IN ('processing', 'unknown')

-- What ends keys finds them by an array of tokens, never by a join: a planner that takes the open keys for few would
-- read all of them, and what vacuum has not taken away, for every group. The tokens ascend, so that the place of one in
-- the array is found by halving.

-- fragment: open_keys
i.token = ANY (:rows.token) AND i.status IN ('processing', 'unknown')

-- fragment: place_of_token
pg_catalog.width_bucket(i.token, :rows.token)

-- name: idempotency_lock_free
-- only: a transaction of SQLite has locked all of them
-- gives: n
-- Those that nobody else has.
SELECT {place_of_token} AS n FROM semel.idempotency AS i WHERE {open_keys} FOR UPDATE SKIP LOCKED

-- name: idempotency_finish
-- gives: n
UPDATE semel.idempotency AS i
SET status = 'completed', updated_at = greatest(i.updated_at, :now), lease_until = NULL, lease_owner = NULL,
    cause = NULL, code = (:rows.code)[{place_of_token}]::integer, headers = (:rows.headers)[{place_of_token}],
    body = (:rows.body)[{place_of_token}], completed_at = :now,
    answer_until = :now + i.answer_us::double precision * interval '1 microsecond',
    key_until = :now + i.keep_us::double precision * interval '1 microsecond'
WHERE {open_keys} AND {durable}
RETURNING {place_of_token} AS n

-- operator: idempotency_finish
SELECT b.n FROM :rows AS b
WHERE semel._operator_key({what}, b.token, b.code::integer, b.headers, b.body, {forced}, {reason})

-- name: idempotency_release
-- gives: n
DELETE FROM semel.idempotency AS i WHERE {open_keys} AND {durable}
RETURNING {place_of_token} AS n

-- operator: idempotency_release
SELECT b.n FROM :rows AS b WHERE semel._operator_key({what}, b.token, NULL, NULL, NULL, {forced}, {reason})

-- name: idempotency_unknown
-- gives: n
UPDATE semel.idempotency AS i
SET status = 'unknown', updated_at = greatest(i.updated_at, :now), lease_until = NULL, lease_owner = NULL,
    cause = coalesce(i.cause, (:rows.cause)[{place_of_token}], 'unknown')
WHERE {open_keys} AND {durable}
RETURNING {place_of_token} AS n

-- name: idempotency_renew
-- gives: n
UPDATE semel.idempotency AS i SET lease_until = (:rows.lease_until)[{place_of_token}]
WHERE {open_keys} AND i.status <> 'unknown' AND i.lease_until IS NOT NULL
RETURNING {place_of_token} AS n

-- name: idempotency_renew_all
-- gives: changes
-- A row that is locked is being ended: nobody else's lease may run out because of it.
UPDATE semel.idempotency SET lease_until = :lease_until
WHERE ctid = ANY (ARRAY(SELECT ctid FROM semel.idempotency
                        WHERE lease_owner = :lease_owner AND status = 'processing' AND lease_until IS NOT NULL
                        FOR UPDATE SKIP LOCKED))

-- fragment: expired(which)
-- The effect that it was claimed under stands in its token; 1 is atomic.
ANY (ARRAY(SELECT ctid FROM semel.idempotency
           WHERE status = 'processing' AND lease_until < :now AND (token >> 10 & 3::bigint) {which}
           ORDER BY lease_until LIMIT :limit FOR UPDATE SKIP LOCKED))

-- name: idempotency_expire_atomic
-- gives: changes
DELETE FROM semel.idempotency WHERE ctid = {expired(= 1)}

-- name: idempotency_expire
-- gives: changes
UPDATE semel.idempotency
SET status = 'unknown', updated_at = greatest(updated_at, :now), lease_until = NULL, cause = 'lease_expired'
WHERE ctid = {expired(<> 1)}

-- fragment: due
-- When the row has to lose its body, or to go.
CASE WHEN body IS NULL THEN key_until ELSE answer_until END

-- fragment: overdue
-- The first of both kinds: what waits of one kind is never read in search of the other.
ANY (ARRAY(SELECT ctid FROM semel.idempotency
           WHERE status = 'completed' AND {due} <= :now AND {due}::timestamptz(0) <= :now::timestamptz(0)
           ORDER BY {due}::timestamptz(0) LIMIT :limit FOR UPDATE SKIP LOCKED))

-- name: idempotency_forget_body
-- gives: changes
UPDATE semel.idempotency SET body = NULL WHERE ctid = {overdue} AND body IS NOT NULL

-- name: idempotency_forget_key
-- gives: changes
DELETE FROM semel.idempotency WHERE ctid = {overdue} AND body IS NULL

-- fragment: idempotency_shown_names
scope, key, status, token, fingerprint, created_at, updated_at, lease_until, lease_owner, answer_us, keep_us, cause,
code, headers, bytes, body, completed_at, answer_until, key_until, origin, rule, traceparent

-- fragment: idempotency_shown
-- What operators read: the answer itself only where it is asked for.
i.scope, i.key, i.status, i.token, i.fingerprint, i.created_at, i.updated_at, i.lease_until, i.lease_owner, i.answer_us,
i.keep_us, i.cause, i.code, CASE WHEN :with_payload THEN i.headers END AS headers,
pg_catalog.octet_length(i.body)::bigint AS bytes, CASE WHEN :with_payload THEN i.body END AS body, i.completed_at,
i.answer_until, i.key_until, i.origin, i.rule, i.traceparent

-- name: idempotency_list
-- Keys without an answer, by their tokens: in the order of their claims.
-- gives: {idempotency_shown_names}
SELECT {idempotency_shown} FROM semel.idempotency AS i
WHERE i.status IN ('processing', 'unknown') AND pg_catalog.strpos(:statuses, '|' || i.status || '|') > 0
  AND i.token > :token AND (:scope IS NULL OR i.scope = :scope) AND (:before IS NULL OR i.updated_at < :before)
  AND (:lease_until IS NULL OR i.lease_until < :lease_until)
ORDER BY i.token LIMIT :limit

-- name: idempotency_list_completed
-- Of one caller, by key.
-- gives: {idempotency_shown_names}
SELECT {idempotency_shown} FROM semel.idempotency AS i
WHERE i.scope = :scope AND i.key > :after_key AND i.status = 'completed' ORDER BY i.key LIMIT :limit

-- name: idempotency_show
-- gives: {idempotency_shown_names}
SELECT {idempotency_shown} FROM semel.idempotency AS i WHERE i.scope = :scope AND i.key = :key

-- name: idempotency_lock
SELECT i.token FROM semel.idempotency AS i WHERE i.scope = :scope AND i.key = :key FOR UPDATE

-- operator: idempotency_lock
SELECT semel._operator_key_lock(:scope, :key)

-- name: idempotency_acts
-- What operators did to it, newest first.
-- gives: at, who, what, reason
SELECT a.at, a.who, a.what, a.reason FROM semel.audit AS a
WHERE a.consumer IS NULL AND a.source = :scope AND a.message_id = :key ORDER BY a.id DESC LIMIT :limit

-- name: idempotency_count
-- Each up to a cap; the oldest: whose lease ran out first.
-- gives: running_n, stuck_n, oldest_at
SELECT (SELECT pg_catalog.count(*) FROM (
            SELECT FROM semel.idempotency AS i WHERE i.status = 'processing' LIMIT :cap) AS r) AS running_n,
    pg_catalog.count(*) AS stuck_n, pg_catalog.min(s.lease_until) AS oldest_at
FROM (SELECT i.lease_until FROM semel.idempotency AS i
      WHERE i.status = 'processing' AND i.lease_until < :now ORDER BY i.lease_until LIMIT :cap) AS s

-- name: idempotency_causes
-- Of those whose outcome is unknown, the oldest up to a cap.
-- gives: cause, count, oldest_at
SELECT u.cause, pg_catalog.count(*) AS count, pg_catalog.min(u.updated_at) AS oldest_at
FROM (SELECT i.cause, i.updated_at FROM semel.idempotency AS i
      WHERE i.status = 'unknown' ORDER BY i.updated_at LIMIT :cap) AS u
GROUP BY u.cause ORDER BY 2 DESC, 1
