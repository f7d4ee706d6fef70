-- SPDX-License-Identifier: MIT
--
-- What rows and keys become, and the evidence.

-- name: locks_impatient
-- none: the transaction has the write lock

-- name: locks_patient
-- none: the transaction has the write lock

-- fragment: bump
-- A clock that stepped back must not hide the change.
CASE WHEN updated_at > :now THEN updated_at + 1 ELSE :now END

-- name: settle_waiters
-- Rows that wait for a business key of this message become due.
UPDATE main.semel_inbox SET due_at = :now, updated_at = {bump}
WHERE :release AND status = 'waiting' AND error_class = 'business_duplicate' AND arrival IN (
    SELECT i.arrival FROM main.semel_business_key AS k
    JOIN main.semel_business_want AS w ON w.consumer = k.consumer AND w.business_key = k.business_key
    JOIN main.semel_inbox AS i ON i.consumer = w.consumer AND i.source = w.source AND i.message_id = w.message_id
    WHERE k.consumer = :consumer AND k.source = :source AND k.message_id = :message_id)

-- name: settle_wish
-- What a message holds it wishes for from now on.
INSERT INTO main.semel_business_want (consumer, source, message_id, business_key)
SELECT consumer, source, message_id, business_key FROM main.semel_business_key
WHERE :release AND :wish AND {this} ON CONFLICT DO NOTHING

-- name: settle_update
-- gives: applied
UPDATE main.semel_inbox
SET status = :status, attempts = :attempts, attempts_before = :attempts_before, retries = :retries, alone = :alone,
    due_at = :due_at, processed_at = :processed_at, lease_owner = :lease_owner, lease_until = :lease_until,
    lease_token = :lease_token, updated_at = :updated_at, error_class = :error_class, error_text = :error_text,
    outcome = :outcome, headers = CASE WHEN :touch THEN :headers ELSE headers END,
    payload = CASE WHEN :touch THEN :payload ELSE payload END, fingerprint = coalesce(fingerprint, :fingerprint)
WHERE {this} AND NOT :remove AND status = :was AND (:token IS NULL OR lease_token = :token)

-- name: settle_remove
-- gives: applied
DELETE FROM main.semel_inbox WHERE {this} AND :remove AND status = :was

-- fragment: attempt(number)
INSERT INTO main.semel_attempt (consumer, source, message_id, attempt, at, worker, error_class, error_text)
SELECT :consumer, :source, :message_id, {number}, :now, :worker, :error_class, :error_text

-- name: settle_attempt
{attempt(:attempts)} WHERE :done AND :log

-- name: settle_release
DELETE FROM main.semel_business_key WHERE :done AND :release AND {this}

-- name: settle_command
-- none: there are no roles

-- name: settle_drop
DELETE FROM main.semel_business_key WHERE {this} AND business_key = :business_key

-- name: settle_grant
DELETE FROM main.semel_business_want WHERE {this}

-- name: settle_want
INSERT INTO main.semel_business_want (consumer, source, message_id, business_key)
VALUES (:consumer, :source, :message_id, :business_key) ON CONFLICT DO NOTHING

-- name: settle_hold
UPDATE main.semel_business_key SET expires_at = :expires_at WHERE {this}

-- name: settle_conflict
INSERT INTO main.semel_conflict (consumer, source, message_id, fingerprint, first_at, last_at, type, position, headers,
    payload, traceparent)
VALUES (:consumer, :source, :message_id, :fingerprint, :now, :now, :type, :position, :headers, :payload, :traceparent)
ON CONFLICT (consumer, source, message_id, fingerprint) DO UPDATE SET count = count + 1, last_at = excluded.last_at

-- name: settle_conflict_bound
DELETE FROM main.semel_conflict WHERE rowid IN (
    SELECT rowid FROM main.semel_conflict WHERE {this} ORDER BY last_at DESC, rowid DESC LIMIT -1 OFFSET :limit)

-- name: settle_note
{attempt(:attempt)}

-- name: settle_key
INSERT INTO main.semel_order_key AS o (consumer, order_key, last_version, updated_at)
VALUES (:consumer, :order_key, :last_version, :now)
ON CONFLICT (consumer, order_key) DO UPDATE SET updated_at = excluded.updated_at,
last_version = CASE WHEN o.last_version IS NULL OR o.last_version < excluded.last_version THEN excluded.last_version
               ELSE o.last_version END

-- name: settle_skip
INSERT INTO main.semel_order_key (consumer, order_key, skipped) VALUES (:consumer, :order_key, :skipped)
ON CONFLICT (consumer, order_key) DO UPDATE SET skipped = excluded.skipped

-- fragment: woken(first)
-- One that was put for a later time has no class, and keeps it.
UPDATE main.semel_inbox SET due_at = :now, updated_at = {bump}, error_class = 'blocked'
WHERE status = 'waiting' AND (error_class IS NOT NULL OR due_at IS NULL OR due_at <= :now) AND arrival = (
    SELECT arrival FROM main.semel_inbox
    WHERE consumer = :consumer AND order_key = :order_key AND {in_order} AND :wake AND {first} LIMIT 1)

-- name: settle_wake
{woken(NOT :by_version ORDER BY arrival)}

-- name: settle_wake_version
{woken(:by_version ORDER BY version, arrival)}
