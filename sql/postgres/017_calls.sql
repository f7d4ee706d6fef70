-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the functions that applications call for one message: begin, done, fail, claim, put, and the
-- ends of a lease. docs/sql-postgres.md describes them.
--
-- What they have in common: they work in the caller's transaction, with the rights of the owner and a fixed search
-- path; they are revoked from PUBLIC. A message id may also be a uuid, which is the same as its text.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- ---- in one transaction with the effect ---------------------------------------------------------------------------

CREATE FUNCTION semel.inbox_begin(
    consumer text, message_id text, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, strict boolean = true)
RETURNS TABLE (act text, why text, attempt integer, outcome jsonb) LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    p semel._policy;
    m semel._message;
    a semel._answer;
    loose boolean := NOT coalesce(strict AND nullif(current_setting('semel.strict', true), '')::boolean, strict, true);
BEGIN
    p := semel._policy_for('inbox_begin', consumer, order_key, version);
    m := semel._message('inbox_begin', p, message_id, source, type, payload, raw, headers, business_key, order_key,
                        version, fingerprint, message_time, delivery);
    a := semel._deliver(p, m, CASE WHEN loose THEN 'claim' ELSE 'begin' END, p.lease, NULL, NULL);
    IF a.token IS NOT NULL AND a.act = 'run' THEN
        PERFORM semel._hold(a.token, CASE WHEN loose THEN 'loose' ELSE 'begun' END, p, m, a.attempt);
    END IF;
    act := a.act;
    why := a.why;
    attempt := a.attempt;
    outcome := CASE WHEN a.outcome IS NOT NULL THEN semel._jsonb(a.outcome) END;
    RETURN NEXT;
END $$;

CREATE FUNCTION semel.inbox_done(consumer text, message_id text, source text = '', outcome jsonb = NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    said text := semel._check_outcome('inbox_done', outcome);
    from_source text := coalesce(source, '');
    p semel._policy;
    m semel._message;
    r semel.inbox;
BEGIN
    IF semel._done_begun(consumer, from_source, message_id, said) THEN
        RETURN;
    END IF;
    PERFORM semel._check_given('inbox_done', 'consumer', consumer IS NOT NULL);
    PERFORM semel._check_given('inbox_done', 'message_id', message_id IS NOT NULL);
    PERFORM semel._check_access('inbox_done', consumer);
    p := semel._policy(consumer);
    IF p.one_source THEN
        from_source := '';
    END IF;
    IF p.one_source AND semel._done_begun(consumer, from_source, message_id, said) THEN
        RETURN;
    END IF;
    m.source := from_source;
    r := semel._end_begun(p, m, message_id, 'done', NULL, said);
    IF r.arrival IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'inbox_done: the message was not begun in this transaction, or its begin was rolled back';
    END IF;
END $$;

CREATE FUNCTION semel.inbox_fail(
    consumer text, message_id text, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, class text = NULL,
    reason text = NULL)
RETURNS TABLE (act text, due_at timestamptz, why text, status text, hint text) LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    result text := semel._check_class('inbox_fail', class, false);
    p semel._policy;
    m semel._message;
    r semel.inbox;
    a semel._answer;
BEGIN
    PERFORM semel._check_given('inbox_fail', 'message_id', message_id IS NOT NULL);
    p := semel._policy_for('inbox_fail', consumer, order_key, version);
    m := semel._message('inbox_fail', p, message_id, source, type, payload, raw, headers, business_key, order_key,
                        version, fingerprint, message_time, delivery);
    r := semel._end_begun(p, m, message_id, result, reason, NULL);
    IF r.arrival IS NULL THEN
        a := semel._deliver(p, m, 'record', p.lease, result, reason);
    ELSE
        a := (semel._act_for(r.status, r.payload IS NOT NULL), CASE WHEN r.attempts > 1 THEN 'retry' ELSE 'new' END,
              r.attempts, NULL, NULL, r.status, r.due_at);
    END IF;
    act := a.act;
    due_at := a.due_at;
    why := a.why;
    status := a.status;
    IF a.act = 'later' AND a.status IN ('failed', 'waiting', 'unknown') THEN
        hint := 'its payload is not stored, because none was given or keep_payload is never: the broker has to bring '
                'the message again';
    END IF;
    RETURN NEXT;
END $$;

-- ---- for effects outside, and for later ---------------------------------------------------------------------------

CREATE FUNCTION semel.inbox_claim(
    consumer text, message_id text, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, lease interval = NULL)
RETURNS TABLE (act text, why text, attempt integer, outcome jsonb, token bigint) LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    lease_us bigint := semel._check_lease('inbox_claim', lease);
    p semel._policy;
    m semel._message;
    a semel._answer;
BEGIN
    p := semel._policy_for('inbox_claim', consumer, order_key, version);
    m := semel._message('inbox_claim', p, message_id, source, type, payload, raw, headers, business_key, order_key,
                        version, fingerprint, message_time, delivery);
    IF NOT p.effect_said THEN
        PERFORM semel._refuse(format('consumer "%s" has not said where its effect is: set effect to outside, to keyed '
                                     '(outside, safe to repeat under its step key) or to atomic (in this database) '
                                     'before claiming', semel._show(consumer, 63)));
    END IF;
    a := semel._deliver(p, m, 'claim', coalesce(lease_us, p.lease), NULL, NULL);
    IF a.act = 'run' THEN
        PERFORM semel._hold(a.token, 'claimed', p, m, a.attempt);
    END IF;
    act := a.act;
    why := a.why;
    attempt := a.attempt;
    outcome := CASE WHEN a.outcome IS NOT NULL THEN semel._jsonb(a.outcome) END;
    token := CASE WHEN a.act = 'run' THEN a.token END;
    RETURN NEXT;
END $$;

CREATE FUNCTION semel.inbox_put(
    consumer text, message_id text, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL)
RETURNS TABLE (act text, why text) LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    p semel._policy;
    m semel._message;
    a semel._answer;
BEGIN
    p := semel._policy_for('inbox_put', consumer, order_key, version);
    m := semel._message('inbox_put', p, message_id, source, type, payload, raw, headers, business_key, order_key,
                        version, fingerprint, message_time, delivery);
    IF p.keep = 'never' THEN
        PERFORM semel._refuse('inbox_put: the consumer keeps no payloads (keep_payload): what is stored could never '
                              'be run');
    ELSIF m.payload IS NULL THEN
        PERFORM semel._refuse('inbox_put: payload or raw is needed, which may be empty: nobody would bring it later');
    END IF;
    a := semel._deliver(p, m, 'put', p.lease, NULL, NULL);
    act := a.act;
    why := a.why;
    RETURN NEXT;
END $$;

-- ---- by token -----------------------------------------------------------------------------------------------------

CREATE FUNCTION semel._check_token(who text, token bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_given(who, 'token', token IS NOT NULL);
    IF token < 1 THEN
        PERFORM semel._refuse(format('%s: token is %s; tokens are numbers from 1', who, token));
    ELSIF token > 9007199254740992 AND token & 127 = 0 THEN
        PERFORM semel._refuse(format('%s: token is %s, which the client has rounded: a double holds 53 bits, so keep '
                                     'tokens in 64-bit integers or in strings', who, token));
    END IF;
END $$;

-- The token of a consumer for which the caller may not act is an unknown one.
CREATE FUNCTION semel._by_token(wanted bigint) RETURNS semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    r semel.inbox;
BEGIN
    SELECT i.* INTO r FROM semel.inbox AS i WHERE i.lease_token = wanted;
    RETURN CASE WHEN semel._may_act(r.consumer) THEN r END;
END $$;

-- Is what this token was given for in the caller's own transaction? What says nothing of its effect may be.
CREATE FUNCTION semel._is_atomic(stale bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(semel._token_effect(stale),
                    (SELECT (semel._policy(h.consumer)).effect FROM semel.held AS h WHERE h.token = stale), 'atomic')
           = 'atomic'
$$;

-- A late end is refused, and what it said is kept for the reconcile.
CREATE FUNCTION semel._keep_evidence(stale bigint, result text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (DELETE FROM semel.held AS h WHERE h.token = stale AND h.kind = 'claimed'
                                                          AND semel._may_act(h.consumer) RETURNING h.*)
    INSERT INTO semel.attempt (consumer, source, message_id, attempt, at, worker, error_class, error_text)
    SELECT g.consumer, g.source, g.message_id, g.attempt, semel._now(), semel._owner(), 'lease_expired',
           'refused under a stale token: the late worker said ' || result
    FROM gone AS g JOIN semel.inbox AS i USING (consumer, source, message_id);
END $$;

CREATE FUNCTION semel.inbox_renew(token bigint, lease interval = NULL) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    lease_us bigint := semel._check_lease('inbox_renew', lease);
    r semel.inbox;
    now timestamptz;
BEGIN
    PERFORM semel._check_token('inbox_renew', token);
    r := semel._by_token(token);
    lease_us := coalesce(lease_us, (semel._policy(r.consumer)).lease);
    now := semel._now();
    UPDATE semel.inbox AS i
    SET lease_until = semel._later(now, lease_us), updated_at = semel._touched(i.updated_at, now)
    WHERE i.consumer = r.consumer AND i.source = r.source AND i.message_id = r.message_id
      AND i.lease_token = r.lease_token;
    RETURN FOUND;
END $$;

CREATE FUNCTION semel.inbox_finish(token bigint, class text = 'done', outcome jsonb = NULL, reason text = NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    result text := semel._check_class('inbox_finish', coalesce(class, 'done'), true);
    said text := semel._check_outcome('inbox_finish', outcome);
    r semel.inbox;
BEGIN
    PERFORM semel._check_token('inbox_finish', token);
    r := semel._by_token(token);
    IF r.arrival IS NOT NULL THEN
        r := semel._end(semel._policy(r.consumer), r, result, reason, said, 'wait');
    END IF;
    IF r.arrival IS NULL THEN
        IF result = 'done' AND semel._is_atomic(token) THEN
            PERFORM semel._refuse_end(token);
        END IF;
        PERFORM semel._keep_evidence(token, result);
        RETURN false;
    END IF;
    DELETE FROM semel.held AS h WHERE h.token = inbox_finish.token;
    RETURN true;
END $$;

CREATE FUNCTION semel.inbox_release(token bigint) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    r semel.inbox;
BEGIN
    PERFORM semel._check_token('inbox_release', token);
    r := semel._by_token(token);
    IF r.arrival IS NOT NULL THEN
        r := semel._end(semel._policy(r.consumer), r, 'released', NULL, NULL, 'wait');
    END IF;
    IF r.arrival IS NULL THEN
        RETURN false;
    END IF;
    DELETE FROM semel.held AS h WHERE h.token = inbox_release.token;
    RETURN true;
END $$;

-- ---- the same for a uuid ------------------------------------------------------------------------------------------

CREATE FUNCTION semel.inbox_begin(
    consumer text, message_id uuid, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, strict boolean = true)
RETURNS TABLE (act text, why text, attempt integer, outcome jsonb) LANGUAGE plpgsql ROWS 1 AS $$
BEGIN
    RETURN QUERY SELECT * FROM semel.inbox_begin(consumer, message_id::text, source, type, payload, raw, headers,
                                                 business_key, order_key, version, fingerprint, message_time, delivery,
                                                 strict);
END $$;

CREATE FUNCTION semel.inbox_done(consumer text, message_id uuid, source text = '', outcome jsonb = NULL)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel.inbox_done(consumer, message_id::text, source, outcome);
END $$;

CREATE FUNCTION semel.inbox_fail(
    consumer text, message_id uuid, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, class text = NULL,
    reason text = NULL)
RETURNS TABLE (act text, due_at timestamptz, why text, status text, hint text) LANGUAGE plpgsql ROWS 1 AS $$
BEGIN
    RETURN QUERY SELECT * FROM semel.inbox_fail(consumer, message_id::text, source, type, payload, raw, headers,
                                                business_key, order_key, version, fingerprint, message_time, delivery,
                                                class, reason);
END $$;

CREATE FUNCTION semel.inbox_claim(
    consumer text, message_id uuid, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, lease interval = NULL)
RETURNS TABLE (act text, why text, attempt integer, outcome jsonb, token bigint) LANGUAGE plpgsql ROWS 1 AS $$
BEGIN
    RETURN QUERY SELECT * FROM semel.inbox_claim(consumer, message_id::text, source, type, payload, raw, headers,
                                                 business_key, order_key, version, fingerprint, message_time, delivery,
                                                 lease);
END $$;

CREATE FUNCTION semel.inbox_put(
    consumer text, message_id uuid, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL)
RETURNS TABLE (act text, why text) LANGUAGE plpgsql ROWS 1 AS $$
BEGIN
    RETURN QUERY SELECT * FROM semel.inbox_put(consumer, message_id::text, source, type, payload, raw, headers,
                                               business_key, order_key, version, fingerprint, message_time, delivery);
END $$;

-- Nobody but the owner may call what is made here; roles.sql grants what an application needs.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;

INSERT INTO semel.schema (version, name) VALUES (17, 'calls');
