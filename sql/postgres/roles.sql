-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: who may do what. For psql, by somebody who may create roles; not a migration.
--
--     psql -v owner=semel_owner -v app=shop -v operator=shop_ops -f roles.sql DATABASE
--
--   owner     has the schema and migrates it. Run the migrations as this role: SET ROLE semel_owner.
--   app       calls the functions, and touches no table. While the table semel.access is empty, it acts for every
--             consumer, and whoever may call the functions must trust all others who may. To make a boundary of it,
--             list there which role may act for which consumer: INSERT INTO semel.access VALUES ('billing', 'shop').
--             It reads settings and does not write them.
--   operator  reads everything, and retries, discards, resolves, rewinds and changes settings through the command line:
--             by functions that change a row only as these commands may, and write who did it (the role that logged in)
--             into the audit. semel.consumer(text, jsonb) is its to call.
--             It cannot make a record, nor take one away (but an event of the outbox and an idempotency key without an
--             answer, by discarding it), nor change an id or a payload; a corrected copy has another payload than its
--             message, which is rejected and stays. Give each person a login of their own.
--   worker    (only where -v worker=NAME is given) the C library and the daemon, which write the tables themselves,
--             and call semel._inbox_new. They cannot change the schema.
--
-- Roles that are there already are used as they are, and need not be able to log in: grant them to those who do. Run it
-- before the migrations, which makes the roles, and after them, which grants; any number of times.

\set ON_ERROR_STOP on
\if :{?owner}
\else
    \set owner semel_owner
\endif
\if :{?app}
\else
    \set app semel_app
\endif
\if :{?operator}
\else
    \set operator semel_operator
\endif
\if :{?worker}
\else
    \set worker ''
\endif

-- What somebody has created in `public` is not called.
SET search_path = pg_catalog, pg_temp;

-- ---- the roles ----------------------------------------------------------------------------------------------------

SELECT format('CREATE ROLE %I NOLOGIN', r.name)
FROM (VALUES (:'owner'), (:'app'), (:'operator'), (nullif(:'worker', ''))) AS r (name)
WHERE r.name IS NOT NULL AND NOT EXISTS (SELECT FROM pg_roles AS p WHERE p.rolname = r.name)
\gexec

SELECT format('GRANT CREATE ON DATABASE %I TO %I', current_database(), :'owner')
\gexec

-- ---- the grants ---------------------------------------------------------------------------------------------------

SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'semel') AS migrated, :'worker' <> '' AS with_worker
\gset
\if :migrated
    BEGIN;
    REVOKE ALL ON SCHEMA semel FROM PUBLIC;
    REVOKE ALL ON ALL TABLES IN SCHEMA semel FROM PUBLIC;
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;

    -- The application: what has no underscore before its name, but for the writing of settings.
    GRANT USAGE ON SCHEMA semel TO :"app";
    SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, :'app')
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE n.nspname = 'semel' AND left(p.proname, 1) <> '_' AND p.oid <> 'semel.consumer(text, jsonb)'::regprocedure
    \gexec
    REVOKE ALL ON FUNCTION semel.consumer(text, jsonb) FROM :"app";

    -- The operator: `semel inbox ls, show, retry, discard, resolve`, `semel outbox ls, show, retry, discard`,
    -- `semel keys ls, show, resolve, discard, reconcile`, `semel status`, `semel rewind` and `semel consumer`.
    GRANT USAGE ON SCHEMA semel TO :"operator";
    GRANT SELECT ON ALL TABLES IN SCHEMA semel TO :"operator";
    REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA semel FROM :"operator";
    GRANT EXECUTE ON FUNCTION
        semel._operator_keys(text, text[]), semel._operator_rows(text, text[], text[]),
        semel._operator_business(text, text[], text[]), semel._operate(text, text, text, text, text, text, text),
        semel._operator_correct(text, text, text, text, bytea, boolean, text),
        semel._operator_rewind(text, text[], integer[], bigint[], text),
        semel._operator_selection(text, text, boolean),
        semel._operator_select(bigint, bigint[], text[], text[], text[], timestamptz[]),
        semel._operator_mark(bigint, bigint, text), semel._operator_consumer(text, jsonb, boolean, text),
        semel._operator_outbox(text, text, text), semel._operator_key_lock(text, text),
        semel._operator_key(text, bigint, integer, text, bytea, boolean, text), semel.consumer(text),
        semel.consumer(text, jsonb), semel.message_key(text) TO :"operator";

    \if :with_worker
        GRANT USAGE ON SCHEMA semel TO :"worker";
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA semel TO :"worker";
        REVOKE INSERT, UPDATE, DELETE ON semel.schema, semel.access, semel.inbox FROM :"worker";
        REVOKE UPDATE, DELETE ON semel.stream FROM :"worker";
        REVOKE UPDATE, DELETE ON semel.audit FROM :"worker";
        GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA semel TO :"worker"; -- a relay reads how far numbers are drawn
        GRANT EXECUTE ON FUNCTION semel._inbox_new TO :"worker"; -- it acts with the rights of the caller
    \endif
    COMMIT;
    \echo the roles are there, and have their rights
\else
    \echo the roles are there; migrate now, then run this file again
\endif
RESET search_path;
