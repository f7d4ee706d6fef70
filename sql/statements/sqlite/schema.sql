-- SPDX-License-Identifier: MIT
--
-- Which migrations were applied.

-- name: schema_there
-- gives: count
SELECT count(*) AS count FROM main.sqlite_schema WHERE type = 'table' AND name = 'semel_schema'

-- name: schema_newest
-- table: semel_schema
-- gives: version
SELECT coalesce(max(version), 0) AS version FROM main.semel_schema

-- name: schema_lock
-- none: the transaction has the write lock

-- name: schema_record
INSERT INTO main.semel_schema (version, name, applied_at) VALUES (:version, :migration, :now)
