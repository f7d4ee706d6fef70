-- SPDX-License-Identifier: MIT
--
-- What a transaction begins and ends with. BEGIN, COMMIT, the guard and savepoints are texts of the driver
-- (src/store/pg_tx.c).

-- fragment: limit(name)
-- What the role or the database has set to less than a minute stays.
CASE WHEN pg_catalog.current_setting('{name}')::interval BETWEEN '1 ms' AND '1 min'
    THEN pg_catalog.current_setting('{name}') ELSE '1min' END

-- name: begin_settings
-- only: SQLite has settings per connection
-- gives: now, synchronous_commit, standby, lock_timeout, statement_timeout, idle_timeout
SELECT pg_catalog.clock_timestamp() AS now, pg_catalog.current_setting('synchronous_commit') AS synchronous_commit,
    pg_catalog.current_setting('synchronous_standby_names') <> '' AS standby,
    pg_catalog.set_config('lock_timeout', :lock_timeout, true) AS lock_timeout,
    pg_catalog.set_config('statement_timeout', {limit(statement_timeout)}, true) AS statement_timeout,
    pg_catalog.set_config('idle_in_transaction_session_timeout', {limit(idle_in_transaction_session_timeout)}, true)
        AS idle_timeout

-- name: begin_once
-- only: SQLite has settings per connection
-- The same for a transaction whose COMMIT is sent along: its statements fail where that would not be durable. What it
-- sets is for this transaction alone, or for the session. The few statements of such transactions find their rows by
-- keys, however many there are, so that they need not be planned anew.
-- gives: now, standby, lock_timeout, statement_timeout, idle_timeout, plan_mode
SELECT pg_catalog.clock_timestamp() AS now, pg_catalog.current_setting('synchronous_standby_names') <> '' AS standby,
    pg_catalog.set_config('lock_timeout', :lock_timeout, :is_local) AS lock_timeout,
    pg_catalog.set_config('statement_timeout', {limit(statement_timeout)}, :is_local) AS statement_timeout,
    pg_catalog.set_config('idle_in_transaction_session_timeout', {limit(idle_in_transaction_session_timeout)},
        :is_local) AS idle_timeout,
    pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', :is_local) AS plan_mode

-- name: begin_joined
-- only: SQLite has one isolation level
-- gives: now, isolation, standby
SELECT pg_catalog.clock_timestamp() AS now, pg_catalog.current_setting('transaction_isolation') AS isolation,
    pg_catalog.current_setting('synchronous_standby_names') <> '' AS standby

-- name: guard_check
-- only: SQLite has an authorizer and hooks
-- gives: count
SELECT pg_catalog.count(*) FROM pg_catalog.pg_cursors WHERE name = 'semel_guard'

-- name: commit_durable
-- only: a handler cannot change SQLite's settings
-- Fails when the COMMIT behind it would not be durable.
SELECT 1 / (pg_catalog.current_setting('synchronous_commit') <> 'off')::integer

-- name: trip_limits
-- only: SQLite has a busy time-out
-- For what runs outside a transaction of ours. Compiling what operators ask would take longer than answering it.
SELECT pg_catalog.set_config('statement_timeout', '60000', true), pg_catalog.set_config('lock_timeout', '5000', true),
    pg_catalog.set_config('jit', 'off', true)
