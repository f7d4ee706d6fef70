-- SPDX-License-Identifier: MIT
--
-- Events, added in the transaction that makes them true.

-- name: outbox_put
-- gives: changes
INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, headers, destination, created_at, traceparent)
VALUES (:event_id::uuid, :aggregatetype, :aggregateid, :type, :payload, coalesce(:headers, '{}'), :destination, :now,
        :traceparent)
ON CONFLICT (id) DO NOTHING
