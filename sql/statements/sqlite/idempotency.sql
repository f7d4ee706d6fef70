-- SPDX-License-Identifier: MIT
--
-- Idempotency keys.

-- fragment: idempotency_row
scope, key, status, token, fingerprint, created_at, updated_at, lease_until, lease_owner, answer_us, keep_us, cause,
code, headers, body, completed_at, answer_until, key_until, origin, rule, traceparent

-- name: idempotency_put
INSERT INTO main.semel_idempotency (scope, key, status, token, fingerprint, created_at, updated_at, lease_until,
                                    lease_owner, answer_us, keep_us, origin, rule, traceparent)
VALUES (:scope, :key, 'processing', :token, :fingerprint, :now, :now, :lease_until, :lease_owner, :answer_us, :keep_us,
        :origin, :rule, :traceparent)
ON CONFLICT (scope, key) DO NOTHING

-- name: idempotency_find
-- gives: {idempotency_row}
SELECT {idempotency_row} FROM main.semel_idempotency WHERE scope = :scope AND key = :key

-- name: idempotency_retake
-- gives: applied
UPDATE main.semel_idempotency
SET status = 'processing', token = :token, fingerprint = :fingerprint, created_at = :now, updated_at = :now,
    lease_until = :lease_until, lease_owner = :lease_owner, answer_us = :answer_us, keep_us = :keep_us, cause = NULL,
    code = NULL, headers = NULL, body = NULL, completed_at = NULL, answer_until = NULL, key_until = NULL,
    origin = :origin, rule = :rule, traceparent = :traceparent
WHERE scope = :scope AND key = :key AND token = :lease_token AND status = :was AND lease_until IS :before

-- name: idempotency_held
-- gives: {idempotency_row}
SELECT {idempotency_row} FROM main.semel_idempotency
WHERE token = :token AND status IN ('processing', 'unknown')

-- name: idempotency_finish
-- gives: applied
UPDATE main.semel_idempotency
SET status = 'completed', updated_at = max(updated_at, :now), lease_until = NULL, lease_owner = NULL, cause = NULL,
    code = :code, headers = :headers, body = :body, completed_at = :now, answer_until = :now + answer_us,
    key_until = :now + keep_us
WHERE token = :token AND status IN ('processing', 'unknown')

-- name: idempotency_release
-- gives: applied
DELETE FROM main.semel_idempotency WHERE token = :token AND status IN ('processing', 'unknown')

-- name: idempotency_unknown
-- gives: applied
UPDATE main.semel_idempotency
SET status = 'unknown', updated_at = max(updated_at, :now), lease_until = NULL, lease_owner = NULL,
    cause = coalesce(cause, :cause, 'unknown')
WHERE token = :token AND status IN ('processing', 'unknown')

-- name: idempotency_renew
-- gives: applied
UPDATE main.semel_idempotency SET lease_until = :lease_until
WHERE token = :token AND status = 'processing' AND lease_until IS NOT NULL

-- name: idempotency_renew_all
-- gives: changes
UPDATE main.semel_idempotency SET lease_until = :lease_until
WHERE lease_owner = :lease_owner AND status = 'processing' AND lease_until IS NOT NULL

-- fragment: expired(which)
-- The effect that it was claimed under stands in its token; 1 is atomic.
(SELECT rowid FROM main.semel_idempotency
 WHERE status = 'processing' AND lease_until < :now AND (token >> 10 & 3) {which} ORDER BY lease_until LIMIT :limit)

-- name: idempotency_expire_atomic
-- gives: changes
DELETE FROM main.semel_idempotency WHERE rowid IN {expired(= 1)}

-- name: idempotency_expire
-- gives: changes
UPDATE main.semel_idempotency
SET status = 'unknown', updated_at = max(updated_at, :now), lease_until = NULL, cause = 'lease_expired'
WHERE rowid IN {expired(<> 1)}

-- name: idempotency_forget_body
-- gives: changes
UPDATE main.semel_idempotency SET body = NULL
WHERE rowid IN (SELECT rowid FROM main.semel_idempotency WHERE body IS NOT NULL AND answer_until <= :now
                ORDER BY answer_until LIMIT :limit)

-- name: idempotency_forget_key
-- gives: changes
DELETE FROM main.semel_idempotency
WHERE rowid IN (SELECT rowid FROM main.semel_idempotency WHERE status = 'completed' AND key_until <= :now
                ORDER BY key_until LIMIT :limit)

-- fragment: idempotency_shown_names
scope, key, status, token, fingerprint, created_at, updated_at, lease_until, lease_owner, answer_us, keep_us, cause,
code, headers, bytes, body, completed_at, answer_until, key_until, origin, rule, traceparent

-- fragment: idempotency_shown
-- What operators read: the answer itself only where it is asked for.
scope, key, status, token, fingerprint, created_at, updated_at, lease_until, lease_owner, answer_us, keep_us, cause,
code, CASE WHEN :with_payload THEN headers END AS headers, length(body) AS bytes,
CASE WHEN :with_payload THEN body END AS body, completed_at, answer_until, key_until, origin, rule, traceparent

-- name: idempotency_list
-- Keys without an answer, by their tokens: in the order of their claims.
-- gives: {idempotency_shown_names}
SELECT {idempotency_shown} FROM main.semel_idempotency
WHERE status IN ('processing', 'unknown') AND instr(:statuses, '|' || status || '|') > 0
  AND token > :token AND (:scope IS NULL OR scope = :scope) AND (:before IS NULL OR updated_at < :before)
  AND (:lease_until IS NULL OR lease_until < :lease_until)
ORDER BY token LIMIT :limit

-- name: idempotency_list_completed
-- Of one caller, by key.
-- gives: {idempotency_shown_names}
SELECT {idempotency_shown} FROM main.semel_idempotency
WHERE scope = :scope AND key > :after_key AND +status = 'completed' ORDER BY key LIMIT :limit

-- name: idempotency_show
-- gives: {idempotency_shown_names}
SELECT {idempotency_shown} FROM main.semel_idempotency WHERE scope = :scope AND key = :key

-- name: idempotency_lock
-- none: begin has the write lock

-- name: idempotency_acts
-- What operators did to it, newest first.
-- gives: at, who, what, reason
SELECT at, who, what, reason FROM main.semel_audit
WHERE consumer IS NULL AND source = :scope AND message_id = :key ORDER BY id DESC LIMIT :limit

-- name: idempotency_count
-- Each up to a cap; the oldest: whose lease ran out first.
-- gives: running_n, stuck_n, oldest_at
SELECT (SELECT count(*) FROM (
            SELECT 1 FROM main.semel_idempotency WHERE status = 'processing' LIMIT :cap)) AS running_n,
    count(*) AS stuck_n, min(lease_until) AS oldest_at
FROM (SELECT lease_until FROM main.semel_idempotency
      WHERE status = 'processing' AND lease_until < :now ORDER BY lease_until LIMIT :cap)

-- name: idempotency_causes
-- Of those whose outcome is unknown, the oldest up to a cap.
-- gives: cause, count, oldest_at
SELECT cause, count(*) AS count, min(updated_at) AS oldest_at
FROM (SELECT cause, updated_at FROM main.semel_idempotency WHERE status = 'unknown' ORDER BY updated_at LIMIT :cap)
GROUP BY cause ORDER BY 2 DESC, 1
