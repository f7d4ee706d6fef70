-- SPDX-License-Identifier: MIT
--
-- Events, added in the transaction that makes them true.

-- name: outbox_put
-- gives: changes
INSERT INTO main.semel_outbox (id, aggregatetype, aggregateid, type, payload, headers, destination, created_at,
                               traceparent)
VALUES (:event_id, :aggregatetype, :aggregateid, :type, :payload, coalesce(:headers, '{}'), :destination, :now,
        :traceparent)
ON CONFLICT (id) DO NOTHING

-- name: outbox_lock
-- none: the transaction has the write lock
