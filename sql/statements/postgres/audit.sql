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
SELECT :now, b.who, b.what, b.reason, b.consumer, b.about_source, b.message_id FROM :rows AS b ORDER BY b.n

-- operator: audit_put
-- The lines have the same reason.
SELECT pg_catalog.set_config('semel.reason', b.reason, true),
    pg_catalog.set_config('semel.forced', b.forced::text, true), pg_catalog.set_config('semel.what', b.what, true)
FROM :rows AS b LIMIT 1
