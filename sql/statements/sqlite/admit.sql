-- SPDX-License-Identifier: MIT
--
-- Rows of the inbox whose keys are known: inserted and read. The transaction has the write lock of the database, so
-- that no row is locked.

-- name: draw_arrival
-- Once per batch.
-- gives: arrival
UPDATE main.semel_counter SET value = value + :count WHERE name = 'arrival' RETURNING value - :count AS arrival

-- name: inbox_new
-- none: refusing a row that is there costs nothing here

-- name: stream_put
-- none: the table has consumer and source in words

-- name: inbox_insert
-- Only the key may clash: an arrival or a token that is there already is damage, and an error.
-- gives: applied
-- rows: many inbox_drawn
INSERT INTO main.semel_inbox (consumer, arrival, message_id, fingerprint, source, type, status, attempts,
    attempts_before, retries, alone, order_key, version, message_time, received_at, updated_at, processed_at, due_at,
    lease_owner, lease_until, lease_token, error_class, error_text, outcome, position, headers, payload, traceparent)
VALUES (:consumer, :arrival, :message_id, :fingerprint, :source, :type, :status, :attempts,
    :attempts_before, :retries, :alone, :order_key, :version, :message_time, :received_at, :updated_at, :processed_at,
    :due_at, :lease_owner, :lease_until, :lease_token, :error_class, :error_text, :outcome, :position, :headers,
    :payload, :traceparent)
ON CONFLICT (consumer, source, message_id) DO NOTHING

-- name: inbox_drawn
-- Was the row inserted? Nobody else has its arrival.
-- gives: count
SELECT 1 AS count FROM main.semel_inbox WHERE arrival = :arrival

-- fragment: final_row
arrival, status, attempts, attempts_before, retries, alone, fingerprint, type, order_key, version, message_time,
received_at, updated_at, processed_at, due_at, lease_owner, lease_until, lease_token, error_class, error_text, outcome,
position, traceparent, kept, headers, payload

-- name: inbox_final
-- Without the payload, unless it is damaged: the caller must see that.
-- table: semel_inbox
-- gives: {final_row}
SELECT arrival, status, attempts, attempts_before, retries, alone, fingerprint, type, order_key, version, message_time,
    received_at, updated_at, processed_at, due_at, lease_owner, lease_until, lease_token, error_class, error_text,
    outcome, position, traceparent, payload IS NOT NULL AS kept, headers,
    CASE WHEN typeof(payload) <> 'blob' THEN payload END AS payload
FROM main.semel_inbox WHERE {this} AND {final}

-- name: inbox_lock_open
-- none: the transaction has the write lock

-- name: inbox_lock
-- none: the transaction has the write lock

-- name: inbox_lock_free
-- none: the transaction has the write lock

-- name: inbox_read
-- table: semel_inbox
-- gives: {row}
SELECT {columns} FROM main.semel_inbox AS i
WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: watermark_lock
-- none: the transaction has the write lock

-- name: watermark_put
-- none: the transaction has the write lock

-- name: watermark_read
-- gives: watermark
SELECT watermark FROM main.semel_watermark WHERE consumer = :consumer AND source = :source

-- name: watermark_share
-- none: no transaction reads an old snapshot and writes
