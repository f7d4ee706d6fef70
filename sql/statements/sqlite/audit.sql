-- SPDX-License-Identifier: MIT
--
-- What people did.

-- name: audit_put
INSERT INTO main.semel_audit (at, who, what, reason, consumer, source, message_id)
VALUES (:now, :who, :what, :reason, :consumer, :about_source, :message_id)
