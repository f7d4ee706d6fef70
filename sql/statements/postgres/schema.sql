-- SPDX-License-Identifier: MIT
--
-- Which migrations were applied.

-- name: schema_there
-- gives: count
SELECT pg_catalog.count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'semel' AND c.relname = 'schema'

-- name: schema_newest
-- table: semel.schema
-- gives: version
SELECT coalesce(pg_catalog.max(version), 0) AS version FROM semel.schema

-- name: schema_lock
-- One migration at a time, by a number that spells "semel". Nothing else has to be found while it runs (P85).
SELECT pg_catalog.pg_advisory_xact_lock(495622907244),
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)

-- name: schema_record
INSERT INTO semel.schema (version, name) VALUES (:version::integer, :migration) ON CONFLICT (version) DO NOTHING
