-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: what operators do to idempotency keys.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- For a role that only reads the tables: locks the row of a key, so that it is judged as it is.
CREATE FUNCTION semel._operator_key_lock(in_scope text, of_key text) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    PERFORM FROM semel.idempotency AS i WHERE i.scope = in_scope COLLATE "C" AND i.key = of_key COLLATE "C"
    FOR UPDATE;
    RETURN FOUND;
END $$;

-- Ends the key that is held under the token: with an answer (status), or without one (NULL), and then it is released.
-- Writes the audit. false: it has its answer, or another request has it. A lease that is alive is refused, unless it is
-- forced.
CREATE FUNCTION semel._operator_key(what text, of_token bigint, status integer, headers text, body bytea,
                                    forced boolean, reason text)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    r semel.idempotency;
BEGIN
    IF (what COLLATE "C" IN ('keys resolve', 'keys discard')) IS NOT TRUE THEN
        PERFORM semel._refuse('a key is resolved or discarded');
    END IF;
    SELECT i.* INTO r FROM semel.idempotency AS i
    WHERE i.token = of_token AND i.status IN ('processing', 'unknown') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF r.status = 'processing' AND coalesce(r.lease_until >= semel._now(), true) AND forced IS NOT TRUE THEN
        PERFORM semel._refuse('the request of this key is running: its lease is alive; force ends it all the same');
    ELSIF status IS NULL THEN
        PERFORM semel.key_fail(of_token, 'released');
    ELSE
        PERFORM semel.key_finish(of_token, status, headers::jsonb, body);
    END IF;
    PERFORM semel._operator_line(what, reason, NULL, r.scope, r.key);
    RETURN true;
END $$;

-- Nobody but the owner; roles.sql grants them to operators.
REVOKE ALL ON FUNCTION semel._operator_key_lock(text, text),
    semel._operator_key(text, bigint, integer, text, bytea, boolean, text) FROM PUBLIC;

INSERT INTO semel.schema (version, name) VALUES (21, 'key_operators');
