-- SPDX-License-Identifier: MIT
--
-- What people did. An operator's role only reads the tables: the function that makes the change writes the line, and
-- the reason is kept until then, in the transaction.

-- fragment: reason
pg_catalog.current_setting('semel.reason', true)

-- fragment: forced
coalesce(pg_catalog.current_setting('semel.forced', true) = 'true', false)

-- fragment: what
pg_catalog.current_setting('semel.what', true)

-- name: audit_put
INSERT INTO semel.audit (at, who, what, reason, consumer, source, message_id)
VALUES (:now, :who, :what, :reason, :consumer, :about_source, :message_id)

-- operator: audit_put
SELECT pg_catalog.set_config('semel.reason', :reason, true), pg_catalog.set_config('semel.forced', :forced::text, true),
    pg_catalog.set_config('semel.what', :what, true)
