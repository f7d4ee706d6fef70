-- SPDX-License-Identifier: MIT
--
-- Locks and snapshots. BEGIN, COMMIT and savepoints are texts of the driver (src/store/sqlite.c).

-- name: write_lock
-- only: PostgreSQL locks rows
-- Writes nothing, but has to hold the write lock to find that out.
UPDATE main.semel_counter SET value = value WHERE name = ''

-- name: snapshot
-- only: PostgreSQL has transactions that only read
-- Begun and not ended, it keeps its snapshot.
-- gives: version
SELECT max(version) AS version FROM main.semel_schema
