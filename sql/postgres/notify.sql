-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: notifications of the outbox. For psql, by the owner of the schema; not a migration.
--
--     psql -f notify.sql DATABASE
--     psql -c 'DROP TRIGGER outbox_notify ON semel.outbox' DATABASE
--
-- Each statement that inserts events notifies the relays that listen (`notify: true` of an outbox), whoever inserts:
-- semel.outbox_put, an ORM, COPY. What it costs: a transaction that notifies holds a lock of the whole cluster while it
-- commits, so that such commits stand in line; and it cannot be prepared (PREPARE TRANSACTION). Without it relays poll.

\set ON_ERROR_STOP on
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called

CREATE OR REPLACE FUNCTION semel._outbox_notify() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    PERFORM pg_notify('semel_outbox'::text, ''::text);
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION semel._outbox_notify() FROM PUBLIC;

DROP TRIGGER IF EXISTS outbox_notify ON semel.outbox;
CREATE TRIGGER outbox_notify AFTER INSERT ON semel.outbox
FOR EACH STATEMENT EXECUTE FUNCTION semel._outbox_notify();
COMMIT;
