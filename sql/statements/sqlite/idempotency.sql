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
