-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the functions that applications call for one message: begin, done, fail, claim, put, and the
-- ends of a lease. docs/sql-postgres.md describes them.
--
-- What they have in common: they work in the caller's transaction, with the rights of the owner and a fixed search
-- path; they are revoked from PUBLIC. A message id may also be a uuid or a bigint, which is the same as
-- its text.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- ---- in one transaction with the effect ---------------------------------------------------------------------------

-- By all the rules. Without an act: the outcome is the refusal.
CREATE FUNCTION semel._begin(
    consumer text, message_id text, source text, type text, payload jsonb, raw bytea, headers jsonb, business_key text,
    order_key text, version bigint, fingerprint bytea, message_time timestamptz, delivery integer, strict boolean)
RETURNS semel._answer LANGUAGE plpgsql AS $$
DECLARE
    loose boolean := NOT coalesce(strict AND nullif(current_setting('semel.strict', true), '')::boolean, strict, true);
    given record := semel._given('inbox_begin', consumer, message_id, source, type, payload, raw, headers, business_key,
                                 order_key, version, fingerprint, message_time, delivery);
    p semel._policy := given.p;
    m semel._message := given.m;
    a semel._answer;
BEGIN
    IF given.refusal IS NOT NULL THEN
        a.outcome := given.refusal;
        RETURN a;
    END IF;
    a := semel._deliver(p, m, CASE WHEN loose THEN 'claim' ELSE 'begin' END, p.lease, NULL, NULL);
    IF a.token IS NOT NULL AND a.act = 'run' THEN
        PERFORM semel._hold(a.token, CASE WHEN loose THEN 'loose' ELSE 'begun' END, p, m, a.attempt);
    END IF;
    RETURN a;
END $$;

-- A plain message that was begun is older than the watermark: it is taken back, for the rules to judge.
CREATE FUNCTION semel._taken_back(of_consumer text, from_source text, id text, event_time timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    p semel._policy;
    m semel._message;
BEGIN
    p.consumer := of_consumer;
    m.source := from_source;
    m.message_time := event_time;
    IF NOT semel._too_old(p, m, semel._now()) THEN
        RETURN false;
    END IF;
    DELETE FROM semel.record AS i USING semel.stream AS s
    WHERE s.consumer = of_consumer COLLATE "C" AND s.source = from_source COLLATE "C" AND i.stream = s.stream
      AND i.key = semel.message_key(id);
    RETURN true;
END $$;

-- A plain message (no keys, no version, no headers: most are) is judged by one look at all that is stored, and by its
-- insert; where these give no answer, the rules (_begin) are asked. The first message of a transaction, if an id
-- without a time is all that was given, has a look of its own, which needs to know less of the settings, and goes on to
-- the other where it gives no answer. What the looks find:
--     fresh    no row: the message is locked (mine; false: another transaction has it; NULL: another message is in
--              hand), remembered as the one in hand, and inserted
--     told     a row that was completed at the first attempt; but for its type, outcome and fingerprint (the first look
--              gives no answer where there is one) it has nothing that could be damaged
--     final    any final row
-- and nothing where the consumer's settings, or semel.access, are for the rules to read. A final row is read without a
-- lock, and nothing is written then: only at READ COMMITTED, and where no COMMIT waits for a standby, which one without
-- a write would not do (P16, P90). In each transaction the expressions of a function are made ready anew, those of a
-- query each time, and every call of a function in them costs as much as reading a column ten times: so the common
-- path has few, what only some messages need is in a branch of its own, and the look fills in the common answers. It
-- has no EXISTS, because a query with one is walked through each time, and OFFSET 0 keeps the columns out of the joins.
-- ROWS 1 is more than an estimate: with more of them a join over a list with repeated ids puts a Memoize above the call
-- (PostgreSQL 14 and newer, volatile or not), and the copies of an id get the first one's answer: run, twice.
CREATE FUNCTION semel.inbox_begin(
    consumer text, message_id text, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, strict boolean = true)
RETURNS TABLE (act text, why text, attempt integer, outcome jsonb) LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    hard boolean;                                           -- NULL: an id is all that was given; true: not plain
    dated boolean;                                          -- the id may have a time
    bytes bytea;
    print bytea;
    of_key bytea;
    of_stream integer;
    stored bytea;
    said text;
    typed text;
    mark text;                                              -- p: the payload is remembered, too
    kept text;
    timed text;
    most integer;
    fresh boolean;
    told boolean;
    final boolean;
    mine boolean;
    event_time timestamptz;
BEGIN
    IF strict AND num_nonnulls(order_key, business_key, version, headers, message_time, type, payload, raw, fingerprint,
                               delivery) = 0
       AND octet_length(message_id) BETWEEN 1 AND 255 AND octet_length(message_id) NOT IN (26, 36)
       AND coalesce(current_setting('semel.begun', true), '')
           || coalesce(current_setting('semel.strict', true), '') = '' THEN
        of_key := convert_to(message_id, 'UTF8');
        SELECT s.stream, i.arrival IS NULL, i.told INTO of_stream, fresh, told
        FROM semel.stream AS s
        LEFT JOIN LATERAL (
            SELECT r.arrival, num_nonnulls(r.status, r.open_for, r.due_at, r.version, r.lease_until, r.lease_token,
                                           r.attempts, r.attempts_before, r.retries, r.order_key, r.lease_owner,
                                           r.error_text, r.position, r.traceparent, r.fingerprint, r.outcome,
                                           r.type) = 0 AND r.arrival > 0 AS told
            FROM semel.record AS r WHERE r.key = of_key AND r.stream = s.stream OFFSET 0) AS i ON true
        WHERE s.consumer = inbox_begin.consumer COLLATE "C" AND s.source = inbox_begin.source COLLATE "C"
          AND (SELECT c.policy IS NULL OR (c.policy).one_source OR (c.policy).ord = 'version'
               FROM semel.consumer AS c WHERE c.consumer = inbox_begin.consumer COLLATE "C") IS NOT TRUE
          AND ((SELECT true FROM semel.access LIMIT 1) IS NULL OR semel._may_act(s.consumer));
        IF fresh THEN
            IF pg_try_advisory_xact_lock(semel._lock_name(consumer, source, message_id))
               AND set_config('semel.begun', format('n%s %s %s%s%s', octet_length(consumer), octet_length(source),
                                                    consumer, source, message_id), true) <> '' THEN
                INSERT INTO semel.record (arrival, received_at, stream, key, alone)
                VALUES (nextval('semel.arrival'::regclass) * 16384, semel._now(), of_stream, of_key, false)
                ON CONFLICT ON CONSTRAINT record_pkey DO NOTHING;
                IF FOUND THEN
                    act := 'run';
                    why := 'new';
                    attempt := 1;
                    RETURN NEXT;
                    RETURN;
                END IF;
                said := set_config('semel.begun', '-', true);
            END IF;
        ELSIF told AND current_setting('transaction_isolation') || current_setting('synchronous_standby_names')
                       = 'read committed' THEN
            act := 'ack';
            why := 'duplicate';
            attempt := 0;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    IF strict IS NOT TRUE OR num_nonnulls(order_key, business_key, version, headers, message_time, type, payload, raw,
                                          fingerprint, delivery) > 0 THEN
        hard := strict IS NOT TRUE OR num_nonnulls(order_key, business_key, version, headers, message_time) > 0
                OR coalesce(octet_length(type), 0) > 255 OR num_nonnulls(payload, raw) > 1
                OR coalesce(octet_length(fingerprint), 1) NOT BETWEEN 1 AND 63 OR coalesce(delivery, 0) < 0;
        IF NOT hard THEN
            bytes := coalesce(raw, convert_to(payload::text, 'UTF8'));
            print := CASE WHEN fingerprint IS NOT NULL THEN '\x63'::bytea || fingerprint
                          WHEN octet_length(bytes) <= 1048576 THEN semel._fingerprint(payload, bytes) END;
        END IF;
    END IF;
    IF octet_length(message_id) IN (26, 36) THEN
        dated := octet_length(message_id) = 26 OR substr(message_id, 15, 1) = '7';
        of_key := semel.message_key(message_id);
    ELSIF message_id <> '' AND octet_length(message_id) < 256 THEN
        of_key := convert_to(message_id, 'UTF8');
    END IF;
    IF hard IS NOT TRUE AND of_key IS NOT NULL THEN
        SELECT s.stream, i.fingerprint, i.outcome, i.type, (c.policy).payload_max,
               coalesce((c.policy).keep, (semel._policy_default()).keep),
               coalesce((c.policy).timed_ids, (semel._policy_default()).timed_ids),
               i.arrival IS NULL, i.final, i.told,
               CASE WHEN i.arrival IS NULL THEN 'run' ELSE 'ack' END,
               CASE WHEN i.arrival IS NULL THEN 'new' ELSE 'duplicate' END,
               CASE WHEN i.arrival IS NULL THEN 1 ELSE 0 END
        INTO of_stream, stored, said, typed, most, kept, timed, fresh, final, told, act, why, attempt
        FROM semel.stream AS s
        LEFT JOIN LATERAL (
            SELECT r.arrival, r.fingerprint, r.outcome, r.type, r.open_for IS NULL AS final,
                   num_nonnulls(r.status, r.open_for, r.due_at, r.version, r.lease_until, r.lease_token, r.attempts,
                                r.attempts_before, r.retries, r.order_key, r.lease_owner, r.error_text, r.position,
                                r.traceparent) = 0 AND r.arrival > 0 AS told
            FROM semel.record AS r WHERE r.key = of_key AND r.stream = s.stream OFFSET 0) AS i ON true
        LEFT JOIN semel.consumer AS c ON c.consumer = inbox_begin.consumer COLLATE "C"
        LEFT JOIN (SELECT true AS listed FROM semel.access LIMIT 1) AS a ON true
        WHERE s.consumer = inbox_begin.consumer COLLATE "C" AND s.source = inbox_begin.source COLLATE "C"
          AND (c.consumer IS NULL OR NOT (c.policy IS NULL OR (c.policy).one_source OR (c.policy).ord = 'version'))
          AND (a.listed IS NULL OR semel._may_act(s.consumer));
        IF bytes IS NOT NULL THEN
            IF octet_length(bytes) > least(most, 1048576) THEN
                fresh := NULL;
                final := NULL;
            ELSIF kept = 'unfinished' THEN
                mark := 'p';
                IF octet_length(bytes) > 2000 THEN          -- too much for a setting
                    fresh := NULL;
                END IF;
            END IF;
        END IF;
        IF fresh THEN
            IF coalesce(current_setting('semel.begun', true), '')
               || coalesce(current_setting('semel.strict', true), '') = '' THEN     -- the first: it is not counted
                mine := pg_try_advisory_xact_lock(semel._lock_name(consumer, source, message_id));
            ELSIF coalesce(current_setting('semel.begun', true), '') IN ('', '-')
                  AND coalesce(current_setting('semel.strict', true), '') IN ('', 'on', 'true') THEN
                mine := semel._try_lock(consumer, source, message_id);
            END IF;
            IF mine THEN
                said := set_config('semel.begun', format('%s%s %s %s%s%s', coalesce(mark, 'n'), octet_length(consumer),
                                                         octet_length(source), consumer, source, message_id), true);
                IF mark IS NOT NULL THEN
                    said := set_config('semel.begun_payload', encode(bytes, 'hex'), true);
                END IF;
                event_time := CASE WHEN dated AND timed <> 'false' THEN
                                   semel._id_time(message_id, timed <> 'uuidv7') END;
                INSERT INTO semel.record (arrival, received_at, stream, key, fingerprint, type, message_time, alone,
                                          payload)
                VALUES (nextval('semel.arrival'::regclass) * 16384, semel._now(), of_stream, of_key, print,
                        inbox_begin.type, semel._time_beside(of_key, event_time), false,
                        CASE WHEN kept = 'always' THEN bytes END)
                ON CONFLICT ON CONSTRAINT record_pkey DO NOTHING;
                IF NOT FOUND THEN
                    mine := set_config('semel.begun', '-', true) IS NULL;
                ELSIF event_time IS NOT NULL THEN
                    mine := CASE WHEN semel._taken_back(consumer, source, message_id, event_time)
                                 THEN set_config('semel.begun', '-', true) IS NULL ELSE true END;
                END IF;
                IF mine THEN
                    RETURN NEXT;
                    RETURN;
                END IF;
            ELSIF NOT mine THEN
                act := 'later';
                why := 'busy';
                attempt := 0;
                RETURN NEXT;
                RETURN;
            END IF;
        ELSIF final THEN
            IF told IS NOT TRUE OR stored IS NOT NULL OR said IS NOT NULL OR typed IS NOT NULL THEN
                why := CASE WHEN semel._conflicts(print, stored) THEN NULL
                            WHEN told AND coalesce(octet_length(typed), 0) <= 255
                                 AND coalesce(octet_length(said), 0) <= 65536
                                 AND (stored IS NULL OR (octet_length(stored) = 17
                                                         AND get_byte(stored, 0) IN (99, 106, 114))) THEN 'duplicate'
                            ELSE semel._told(of_stream, of_key, print) END;
                IF said IS NOT NULL THEN
                    outcome := semel._jsonb(said);
                END IF;
            END IF;
            IF why IS NULL THEN
                NULL;
            ELSIF current_setting('transaction_isolation') || current_setting('synchronous_standby_names')
                  || coalesce(current_setting('semel.begun', true), '') = 'read committed' THEN
                RETURN NEXT;
                RETURN;
            ELSIF current_setting('transaction_isolation') = 'read committed'
                  AND current_setting('synchronous_standby_names') = ''
                  AND NOT semel._is_begun(consumer, source, message_id) THEN
                RETURN NEXT;
                RETURN;
            END IF;
        END IF;
    END IF;
    SELECT a.act, a.why, a.attempt, a.outcome INTO act, why, attempt, said
    FROM semel._begin(consumer, message_id, source, type, payload, raw, headers, business_key, order_key, version,
                      fingerprint, message_time, delivery, strict) AS a;
    IF act IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(said, 5), MESSAGE = substr(said, 7);
    END IF;
    outcome := CASE WHEN said IS NOT NULL THEN semel._jsonb(said) END;
    RETURN NEXT;
END $$;

-- What is wrong with the arguments of an end, else NULL.
CREATE FUNCTION semel._check_done(consumer text, message_id text, outcome jsonb) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_outcome('inbox_done', outcome);
    PERFORM semel._check_given('inbox_done', 'consumer', consumer IS NOT NULL);
    PERFORM semel._check_given('inbox_done', 'message_id', message_id IS NOT NULL);
    PERFORM semel._check_access('inbox_done', consumer);
    PERFORM semel._policy(consumer);
    RETURN NULL;
EXCEPTION WHEN invalid_parameter_value OR insufficient_privilege THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END $$;

-- What is not done by inbox_done itself; gives the refusal, else NULL.
CREATE FUNCTION semel._done(consumer text, message_id text, source text, outcome jsonb) RETURNS text LANGUAGE plpgsql
AS $$
DECLARE
    said text := outcome::text;
    refusal text;
    from_source text := coalesce(source, '');
    p semel._policy;
    m semel._message;
    r semel.inbox;
BEGIN
    IF (octet_length(said) > 65536) IS NOT TRUE AND semel._done_begun(consumer, from_source, message_id, said) THEN
        RETURN NULL;
    END IF;
    refusal := semel._check_done(consumer, message_id, outcome);
    IF refusal IS NOT NULL THEN
        RETURN refusal;
    END IF;
    p := semel._policy(consumer);
    IF p.one_source THEN
        from_source := '';
    END IF;
    IF p.one_source AND semel._done_begun(consumer, from_source, message_id, said) THEN
        RETURN NULL;
    END IF;
    m.source := from_source;
    r := semel._end_begun(p, m, message_id, 'done', NULL, said);
    RETURN CASE WHEN r.arrival IS NULL THEN
                '55000 inbox_done: the message was not begun in this transaction, or its begin was rolled back' END;
END $$;

CREATE FUNCTION semel.inbox_done(consumer text, message_id text, source text = '', outcome jsonb = NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    refusal text;
BEGIN
    IF outcome IS NOT NULL OR NOT semel._in_hand(consumer, source, message_id)
       OR set_config('semel.begun', '-', true) <> '-' THEN
        refusal := semel._done(consumer, message_id, source, outcome);
        IF refusal IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = left(refusal, 5), MESSAGE = substr(refusal, 7);
        END IF;
    END IF;
END $$;

-- Without an act: the outcome is the refusal; with it: the hint.
CREATE FUNCTION semel._fail(
    consumer text, message_id text, source text, type text, payload jsonb, raw bytea, headers jsonb, business_key text,
    order_key text, version bigint, fingerprint bytea, message_time timestamptz, delivery integer, class text,
    reason text)
RETURNS semel._answer LANGUAGE plpgsql AS $$
DECLARE
    given record := semel._given('inbox_fail', consumer, message_id, source, type, payload, raw, headers, business_key,
                                 order_key, version, fingerprint, message_time, delivery, class);
    p semel._policy := given.p;
    m semel._message := given.m;
    result text;
    r semel.inbox;
    a semel._answer;
BEGIN
    IF given.refusal IS NOT NULL THEN
        a.outcome := given.refusal;
        RETURN a;
    END IF;
    result := semel._check_class('inbox_fail', class, false);
    r := semel._end_begun(p, m, message_id, result, reason, NULL);
    IF r.arrival IS NULL THEN
        a := semel._deliver(p, m, 'record', p.lease, result, reason);
    ELSE
        a := (semel._act_for(r.status, r.payload IS NOT NULL), CASE WHEN r.attempts > 1 THEN 'retry' ELSE 'new' END,
              r.attempts, NULL, NULL, r.status, r.due_at);
    END IF;
    a.outcome := CASE WHEN a.act = 'later' AND a.status IN ('failed', 'waiting', 'unknown') THEN
        'its payload is not stored, because none was given or keep_payload is never: the broker has to bring the '
        'message again' END;
    RETURN a;
END $$;

CREATE FUNCTION semel.inbox_fail(
    consumer text, message_id text, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, class text = NULL,
    reason text = NULL)
RETURNS TABLE (act text, due_at timestamptz, why text, status text, hint text) LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    SELECT a.act, a.due_at, a.why, a.status, a.outcome INTO act, due_at, why, status, hint
    FROM semel._fail(consumer, message_id, source, type, payload, raw, headers, business_key, order_key, version,
                     fingerprint, message_time, delivery, class, reason) AS a;
    IF act IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(hint, 5), MESSAGE = substr(hint, 7);
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
    given record := semel._given('inbox_claim', consumer, message_id, source, type, payload, raw, headers, business_key,
                                 order_key, version, fingerprint, message_time, delivery, lease => lease);
    p semel._policy := given.p;
    m semel._message := given.m;
    a semel._answer;
BEGIN
    IF given.refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(given.refusal, 5), MESSAGE = substr(given.refusal, 7);
    ELSIF NOT p.effect_said THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format(
            'consumer "%s" has not said where its effect is: set effect to outside, to keyed (outside, safe to repeat '
            'under its step key) or to atomic (in this database) before claiming', semel._show(consumer, 63));
    END IF;
    a := semel._deliver(p, m, 'claim', coalesce(semel._check_lease('inbox_claim', lease), p.lease), NULL, NULL);
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

-- What cannot be put, else NULL. A time that is far away is a mistake in its unit, and the message would wait for it
-- without a word.
CREATE FUNCTION semel._check_put(not_before timestamptz, p semel._policy, m semel._message) RETURNS text
LANGUAGE sql VOLATILE AS $$
    SELECT '22023 inbox_put: ' || CASE
        WHEN not_before = 'infinity' OR not_before < '1970-01-01 00:00+00'
             OR not_before > semel._now() + interval '3653 days'
        THEN format('not_before is %s; it must be a time from 1970 on, at most ten years ahead', not_before)
        WHEN p.keep = 'never'
        THEN 'the consumer keeps no payloads (keep_payload): what is stored could never be run'
        WHEN m.payload IS NULL
        THEN 'payload or raw is needed, which may be empty: nobody would bring it later' END
$$;

-- The row that this call has inserted waits for its time alone, without a class: the verdict comes then.
CREATE FUNCTION semel._postpone(p semel._policy, m semel._message, until timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE semel.record AS i SET due_at = until, error_class = NULL, error_text = NULL FROM semel.stream AS s
    WHERE s.consumer = p.consumer AND s.source = m.source AND i.stream = s.stream
      AND i.key = semel.message_key(m.message_id) AND i.status IS NOT DISTINCT FROM 'waiting';
END $$;

CREATE FUNCTION semel.inbox_put(
    consumer text, message_id text, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, not_before timestamptz = NULL)
RETURNS TABLE (act text, why text) LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    given record := semel._given('inbox_put', consumer, message_id, source, type, payload, raw, headers, business_key,
                                 order_key, version, fingerprint, message_time, delivery);
    p semel._policy := given.p;
    m semel._message := given.m;
    refusal text := coalesce(given.refusal, semel._check_put(not_before, p, m));
    a semel._answer;
    fresh boolean := false;
BEGIN
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(refusal, 5), MESSAGE = substr(refusal, 7);
    END IF;
    IF not_before > semel._now() THEN                       -- else no lock is drawn beside that of the delivery
        fresh := semel._try_lock(p.consumer, m.source, m.message_id)
                 AND NOT EXISTS (SELECT FROM semel.inbox AS i WHERE i.consumer = p.consumer AND i.source = m.source
                                                                AND i.key = semel.message_key(m.message_id));
    END IF;
    a := semel._deliver(p, m, 'put', p.lease, NULL, NULL);
    IF fresh AND a.status = 'waiting' THEN
        PERFORM semel._postpone(p, m, not_before);
    END IF;
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

-- What is wrong with the arguments of a call by token, else NULL.
CREATE FUNCTION semel._check_held(who text, token bigint, lease interval, class text, outcome jsonb) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_lease(who, lease);
    PERFORM semel._check_class(who, class, true);
    PERFORM semel._check_outcome(who, outcome);
    PERFORM semel._check_token(who, token);
    RETURN NULL;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
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
           'refused under a stale token: the late worker reported ' || result
    FROM gone AS g JOIN semel.inbox AS i ON i.consumer = g.consumer AND i.source = g.source
                                        AND i.key = semel.message_key(g.message_id);
END $$;

CREATE FUNCTION semel.inbox_renew(token bigint, lease interval = NULL) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    refusal text := semel._check_held('inbox_renew', token, lease, 'done', NULL);
    lease_us bigint;
    r semel.inbox;
    now timestamptz;
BEGIN
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(refusal, 5), MESSAGE = substr(refusal, 7);
    END IF;
    r := semel._by_token(token);
    lease_us := coalesce(semel._check_lease('inbox_renew', lease), (semel._policy(r.consumer)).lease);
    now := semel._now();
    UPDATE semel.record AS i
    SET lease_until = semel._later(now, lease_us),
        updated_at = semel._touched(coalesce(i.updated_at, i.received_at), now)
    WHERE i.key = r.key AND i.stream = r.stream AND i.lease_token = r.lease_token;
    RETURN FOUND;
END $$;

CREATE FUNCTION semel.inbox_finish(token bigint, class text = 'done', outcome jsonb = NULL, reason text = NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    refusal text := semel._check_held('inbox_finish', token, NULL, coalesce(class, 'done'), outcome);
    result text;
    r semel.inbox;
BEGIN
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(refusal, 5), MESSAGE = substr(refusal, 7);
    END IF;
    result := semel._check_class('inbox_finish', coalesce(class, 'done'), true);
    r := semel._by_token(token);
    IF r.arrival IS NOT NULL THEN
        r := semel._end(semel._policy(r.consumer), r, result, reason, outcome::text, 'wait');
    END IF;
    IF r.arrival IS NULL THEN
        IF result = 'done' AND semel._is_atomic(token) THEN
            RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = semel._late_end(token),
                HINT = 'Roll back. Call inbox_finish first and have the effect after it, in one transaction.';
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
    refusal text := semel._check_held('inbox_release', token, NULL, 'done', NULL);
    r semel.inbox;
BEGIN
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(refusal, 5), MESSAGE = substr(refusal, 7);
    END IF;
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

-- ---- batches ------------------------------------------------------------------------------------------------------

-- Each message is judged as if the functions above were called for it, one after the other. What is plain is begun by
-- one insert for all (sorted by the key, P14), and ended by one delete; for the others the functions above are called.

-- What a member of a message may be; null is "not given".
CREATE FUNCTION semel._many_members(who text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT '{"message_id": ["string", "number"], "source": ["string"]}'::jsonb
        || CASE who WHEN 'inbox_done_many' THEN '{"outcome": ["object", "array", "string", "number", "boolean"]}'::jsonb
                    ELSE '{"type": ["string"], "payload": ["object", "array", "string", "number", "boolean"],
                           "raw": ["string"], "headers": ["object"], "business_key": ["string"],
                           "order_key": ["string"], "version": ["number", "string"], "fingerprint": ["string"],
                           "message_time": ["string"], "delivery": ["number"]}'::jsonb END
        || CASE who WHEN 'inbox_fail_many' THEN '{"class": ["string"], "reason": ["string"]}'::jsonb
                    ELSE '{}'::jsonb END
$$;

-- What is refused of one message of a batch, in words that say which.
CREATE FUNCTION semel._refused_of_many(who text, place bigint, refusal text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT format('%s: message %s: %s', who, place, regexp_replace(substr(refusal, 7), '^inbox_[a-z]+: ', ''))
$$;

-- What is wrong with the arguments of a batch, else NULL.
CREATE FUNCTION semel._check_many(who text, consumer text, messages jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    members jsonb := semel._many_members(who);
    plain text[] := CASE who WHEN 'inbox_done_many' THEN '{message_id,source,outcome}'
                             ELSE '{message_id,source,type,payload}' END;
    bad record;
BEGIN
    PERFORM semel._check_given(who, 'consumer', consumer IS NOT NULL);
    PERFORM semel._check_text(who, 'consumer', consumer, 1);
    PERFORM semel._check_given(who, 'messages', messages IS NOT NULL);
    PERFORM semel._check_access(who, consumer);
    PERFORM semel._policy(consumer);
    IF jsonb_typeof(messages) <> 'array' THEN
        PERFORM semel._refuse(format('%s: messages is %s; it must be a JSON array of objects such as '
                                     '[{"message_id": "evt-1"}]', who, semel._json_shown(messages)));
    ELSIF jsonb_array_length(messages) > 10000 THEN
        PERFORM semel._refuse(format('%s: messages has %s elements; at most 10000 are allowed', who,
                                     jsonb_array_length(messages)));
    END IF;
    -- Most have no other members than these, and a look into each costs three times as much.
    IF NOT EXISTS (SELECT FROM jsonb_array_elements(messages) AS e (value)
                   WHERE CASE WHEN jsonb_typeof(e.value) = 'object'
                              THEN e.value - plain <> '{}' OR jsonb_typeof(e.value -> 'source') <> 'string'
                                   OR (jsonb_typeof(e.value -> 'message_id') IN ('string', 'number')) IS NOT TRUE
                                   OR jsonb_typeof(e.value -> 'type') <> 'string'
                              ELSE true END) THEN
        RETURN NULL;
    END IF;
    SELECT e.place, e.value INTO bad FROM jsonb_array_elements(messages) WITH ORDINALITY AS e (value, place)
    WHERE jsonb_typeof(e.value) <> 'object' LIMIT 1;
    IF FOUND THEN
        PERFORM semel._refuse(format('%s: message %s is %s; it must be an object such as {"message_id": "evt-1"}', who,
                                     bad.place, semel._json_shown(bad.value)));
    END IF;
    SELECT e.place, m.key, m.value, members -> m.key AS kinds INTO bad
    FROM jsonb_array_elements(messages) WITH ORDINALITY AS e (value, place) CROSS JOIN LATERAL jsonb_each(e.value) AS m
    WHERE jsonb_typeof(m.value) <> 'null' AND ((members -> m.key ? jsonb_typeof(m.value)) IS NOT TRUE
          OR (m.key = 'version'
              AND (m.value #>> '{}' !~ '^[0-9]{1,19}$'
                   OR lpad(m.value #>> '{}', 19, '0') COLLATE "C" > '9223372036854775806'))) LIMIT 1;
    IF FOUND AND bad.kinds IS NULL THEN
        PERFORM semel._refuse(format('%s: message %s has a member "%s"; the members are %s', who, bad.place,
            semel._show(bad.key, 40),
            (SELECT string_agg(k.k, ', ' ORDER BY k.k) FROM jsonb_object_keys(members) AS k (k))));
    ELSIF FOUND AND bad.kinds ? jsonb_typeof(bad.value) THEN
        PERFORM semel._refuse(format('%s: message %s: %s is %s; it must be a whole number from 0 to 2^63-2', who,
                                     bad.place, bad.key, semel._json_shown(bad.value)));
    ELSIF FOUND THEN
        PERFORM semel._refuse(format('%s: message %s: %s is %s; it must be of type %s', who, bad.place, bad.key,
            semel._json_shown(bad.value),
            (SELECT string_agg(k.k, ' or ') FROM jsonb_array_elements_text(bad.kinds) AS k (k))));
    END IF;
    BEGIN
        PERFORM count(*) FROM jsonb_to_recordset(messages) AS m (raw bytea, fingerprint bytea,
                                                                 message_time timestamptz, delivery integer);
    EXCEPTION WHEN data_exception THEN
        PERFORM semel._refuse(format('%s: messages: %s', who, SQLERRM));
    END;
    RETURN NULL;
EXCEPTION WHEN invalid_parameter_value OR insufficient_privilege THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END $$;

CREATE TYPE semel._one AS (
    ordinal      integer,
    message_id   text COLLATE "C",
    source       text COLLATE "C",
    type         text COLLATE "C",
    payload      jsonb,
    raw          bytea,
    headers      jsonb,
    business_key text COLLATE "C",
    order_key    text COLLATE "C",
    version      bigint,
    fingerprint  bytea,
    message_time timestamptz,
    delivery     integer,
    bytes        bytea,                                     -- from here on: of what may be plain
    print        bytea,
    event_time   timestamptz,
    plain        boolean,                                   -- the rules need not look, if it has no row
    copy         boolean                                    -- one with the same id comes before it
);

-- The messages of a batch.
CREATE FUNCTION semel._many(p semel._policy, messages jsonb) RETURNS semel._one[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT (o.ordinal, o.message_id, o.source, o.type, o.payload, o.raw, o.headers, o.business_key, o.order_key,
                o.version, o.fingerprint, o.message_time, o.delivery, o.bytes,
                CASE WHEN NOT o.plain THEN NULL WHEN o.fingerprint IS NOT NULL THEN '\x63'::bytea || o.fingerprint
                     WHEN o.bytes IS NOT NULL THEN semel._fingerprint(o.payload, o.bytes) END,
                CASE WHEN o.plain AND octet_length(o.message_id) IN (26, 36) AND p.timed_ids <> 'false'
                     THEN semel._id_time(o.message_id, p.timed_ids <> 'uuidv7') END, o.plain, o.copy)::semel._one
        FROM (SELECT b.*,
                     b.order_key IS NULL AND b.business_key IS NULL AND b.version IS NULL AND b.headers IS NULL
                     AND b.message_time IS NULL AND p.ord <> 'version' AND NOT p.one_source
                     AND coalesce(octet_length(b.message_id) BETWEEN 1 AND 255, false)
                     AND greatest(octet_length(b.source), octet_length(b.type)) <= 255
                     AND num_nonnulls(b.payload, b.raw) < 2 AND coalesce(octet_length(b.bytes), 0) <= p.payload_max
                     AND coalesce(octet_length(b.fingerprint), 1) BETWEEN 1 AND 63 AND coalesce(b.delivery, 0) >= 0
                     AS plain,
                     row_number() OVER (PARTITION BY b.source, b.message_id ORDER BY b.ordinal) > 1 AS copy
              FROM (SELECT e.ordinal::integer AS ordinal, e.message_id COLLATE "C" AS message_id,
                           coalesce(e.source, '') COLLATE "C" AS source, e.type, e.payload, e.raw, e.headers,
                           e.business_key, e.order_key, e.version, e.fingerprint, e.message_time, e.delivery,
                           coalesce(e.raw, convert_to(e.payload::text, 'UTF8')) AS bytes
                    FROM ROWS FROM (jsonb_to_recordset(messages) AS (
                        message_id text, source text, type text, payload jsonb, raw bytea, headers jsonb,
                        business_key text, order_key text, version bigint, fingerprint bytea,
                        message_time timestamptz, delivery integer)) WITH ORDINALITY AS e (
                        message_id, source, type, payload, raw, headers, business_key, order_key, version, fingerprint,
                        message_time, delivery, ordinal)) AS b) AS o
        ORDER BY o.ordinal);
END $$;

-- One look at the plain messages: the ordinals of those without a row (fresh; no copies); and of those with a final
-- row, by their ordinals, why they do not run, and their outcomes, else NULL. As in inbox_begin: without a lock, and
-- not where that would not do.
CREATE FUNCTION semel._look_many(p semel._policy, ms semel._one[], OUT fresh integer[], OUT whys text[],
                                 OUT outcomes text[])
LANGUAGE plpgsql AS $$
DECLARE
    final integer[];
    f record;
BEGIN
    whys := array_fill(NULL::text, ARRAY[cardinality(ms)]);
    outcomes := whys;
    SELECT coalesce(array_agg(o.ordinal ORDER BY o.ordinal) FILTER (WHERE i.arrival IS NULL AND NOT o.copy), '{}'),
           array_agg(o.ordinal) FILTER (WHERE i.arrival IS NOT NULL AND i.open_for IS NULL)
    INTO fresh, final
    FROM unnest(ms) AS o JOIN semel.stream AS s ON s.consumer = p.consumer AND s.source = o.source
    LEFT JOIN LATERAL (SELECT r.arrival, r.open_for FROM semel.record AS r
                       WHERE r.key = semel.message_key(o.message_id) AND r.stream = s.stream OFFSET 0) AS i ON true
    WHERE o.plain;
    IF final IS NULL OR current_setting('transaction_isolation') <> 'read committed'
       OR current_setting('synchronous_standby_names') <> '' THEN
        RETURN;
    END IF;
    FOR f IN SELECT o.ordinal, i.status, i.outcome
             FROM unnest(ms) AS o CROSS JOIN LATERAL (
                 SELECT r.* FROM semel.inbox AS r
                 WHERE r.consumer = p.consumer AND r.source = o.source AND r.key = semel.message_key(o.message_id)
                 OFFSET 0) AS i
             WHERE o.plain AND i.processed_at IS NOT NULL AND NOT semel._conflicts(o.print, i.fingerprint)
               AND semel._damaged(i::semel.inbox) IS NOT TRUE
               AND (coalesce(current_setting('semel.begun', true), '') = ''
                    OR NOT semel._is_begun(i.consumer, i.source, i.message_id)) LOOP
        whys[f.ordinal] := CASE f.status WHEN 'stale' THEN 'stale' WHEN 'prevented' THEN 'business_duplicate'
                                         ELSE 'duplicate' END;
        outcomes[f.ordinal] := f.outcome;
    END LOOP;
END $$;

-- Locks as many of these messages as may be locked (_try_lock), by one statement; those that another transaction has.
CREATE FUNCTION semel._try_locks(p semel._policy, ms semel._one[]) RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    n integer := semel._locks();
BEGIN
    IF n >= 32 THEN
        RETURN '{}';
    END IF;
    PERFORM set_config('semel.locks', least(32, n + cardinality(ms))::text, true);
    RETURN ARRAY(
        SELECT t.ordinal
        FROM (SELECT o.ordinal,
                     pg_try_advisory_xact_lock(semel._lock_name(p.consumer, o.source, o.message_id)) AS locked
              FROM unnest(ms[1:32 - n]) AS o OFFSET 0) AS t
        WHERE NOT t.locked);
END $$;

-- Those of these ordinals; in most batches all.
CREATE FUNCTION semel._only(ms semel._one[], ordinals integer[]) RETURNS semel._one[] LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(ordinals) = cardinality(ms) THEN
        RETURN ms;
    END IF;
    RETURN ARRAY(SELECT o::semel._one FROM unnest(ms) AS o WHERE o.ordinal = ANY (ordinals) ORDER BY o.ordinal);
END $$;

-- Begins what is plain and has no row (fresh): new or busy, beside what is known; NULL: the rules have to look.
CREATE FUNCTION semel._begin_plain(p semel._policy, ms semel._one[], fresh integer[], known text[]) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    whys text[] := known;
    made integer[];
    draw bigint;
    now timestamptz := semel._now();
    one integer;
    dated record;
    m semel._message;
BEGIN
    IF fresh = '{}' THEN
        RETURN whys;
    END IF;
    ms := semel._only(ms, fresh);
    FOREACH one IN ARRAY semel._try_locks(p, ms) LOOP
        whys[one] := 'busy';
        fresh := array_remove(fresh, one);
    END LOOP;
    ms := semel._only(ms, fresh);
    draw := nextval('semel.arrival'::regclass) * 16384;
    WITH inserted AS (
        INSERT INTO semel.record (arrival, received_at, stream, key, fingerprint, type, message_time, payload)
        SELECT draw + o.ordinal, now, s.stream, o.key, o.print, o.type, semel._time_beside(o.key, o.event_time),
               CASE WHEN p.keep = 'always' THEN o.bytes END
        FROM (SELECT u.*, semel.message_key(u.message_id) AS key FROM unnest(ms) AS u OFFSET 0) AS o
        JOIN semel.stream AS s ON s.consumer = p.consumer AND s.source = o.source
        ORDER BY o.source, o.message_id
        ON CONFLICT ON CONSTRAINT record_pkey DO NOTHING
        RETURNING arrival)
    SELECT coalesce(array_agg((i.arrival - draw)::integer), '{}') INTO made FROM inserted AS i;
    FOR dated IN SELECT o.* FROM unnest(ms) AS o WHERE o.event_time IS NOT NULL AND o.ordinal = ANY (made) LOOP
        m.source := dated.source;
        m.message_time := dated.event_time;
        IF semel._too_old(p, m, now) THEN                   -- taken back, for the rules to judge
            DELETE FROM semel.record AS i USING semel.stream AS s
            WHERE s.consumer = p.consumer AND s.source = m.source AND i.stream = s.stream
              AND i.key = semel.message_key(dated.message_id);
            made := array_remove(made, dated.ordinal);
        END IF;
    END LOOP;
    PERFORM semel._watch();                                 -- now: one row of semel.begun is watched for all of these
    PERFORM semel._count_begun(cardinality(made), p.consumer);
    INSERT INTO semel.begun (consumer, source, message_id, payload, watched)
    SELECT p.consumer, o.source, o.message_id, CASE WHEN p.keep = 'unfinished' THEN o.bytes END, o.ordinal = made[1]
    FROM unnest(semel._only(ms, made)) AS o;
    FOREACH one IN ARRAY made LOOP
        whys[one] := 'new';
    END LOOP;
    RETURN whys;
END $$;

CREATE FUNCTION semel.inbox_begin_many(consumer text, messages jsonb)
RETURNS TABLE (ordinal integer, message_id text, source text, act text, why text, attempt integer, outcome jsonb)
LANGUAGE plpgsql ROWS 100 SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    p semel._policy;
    m semel._one;
    ms semel._one[];
    fresh integer[];
    whys text[];
    outcomes text[];
    said text;
    loose boolean := NOT coalesce(nullif(current_setting('semel.strict', true), '')::boolean, true);
    refusal text := semel._check_many('inbox_begin_many', consumer, messages);
BEGIN
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(refusal, 5), MESSAGE = substr(refusal, 7);
    END IF;
    p := semel._policy(consumer);
    ms := semel._many(p, messages);
    IF NOT loose AND cardinality(ms) > 0 THEN
        PERFORM semel._stream(p.consumer, s.source)
        FROM (SELECT DISTINCT o.source FROM unnest(ms) AS o WHERE o.plain ORDER BY o.source) AS s;
        SELECT l.fresh, l.whys, l.outcomes INTO fresh, whys, outcomes FROM semel._look_many(p, ms) AS l;
        whys := semel._begin_plain(p, ms, fresh, whys);
        IF array_position(whys, NULL) IS NULL THEN          -- as below, and three times as fast
            RETURN QUERY
            SELECT l.ordinal, l.message_id, l.source,
                   CASE l.why WHEN 'new' THEN 'run' WHEN 'busy' THEN 'later' ELSE 'ack' END, l.why,
                   CASE l.why WHEN 'new' THEN 1 ELSE 0 END,
                   CASE WHEN l.outcome IS NOT NULL THEN semel._jsonb(l.outcome) END
            FROM ROWS FROM (unnest(ms), unnest(whys), unnest(outcomes))
                 AS l (ordinal, message_id, source, type, payload, raw, headers, business_key, order_key, version,
                       fingerprint, message_time, delivery, bytes, print, event_time, plain, copy, why, outcome)
            ORDER BY l.ordinal;
            RETURN;
        END IF;
    END IF;
    FOREACH m IN ARRAY ms LOOP
        IF whys[m.ordinal] IS NOT NULL THEN
            why := whys[m.ordinal];
            act := CASE why WHEN 'new' THEN 'run' WHEN 'busy' THEN 'later' ELSE 'ack' END;
            attempt := CASE why WHEN 'new' THEN 1 ELSE 0 END;
            outcome := CASE WHEN outcomes[m.ordinal] IS NOT NULL THEN semel._jsonb(outcomes[m.ordinal]) END;
        ELSE
            SELECT b.act, b.why, b.attempt, b.outcome INTO act, why, attempt, said
            FROM semel._begin(consumer, m.message_id, m.source, m.type, m.payload, m.raw, m.headers, m.business_key,
                              m.order_key, m.version, m.fingerprint, m.message_time, m.delivery, true) AS b;
            IF act IS NULL THEN
                RAISE EXCEPTION USING ERRCODE = left(said, 5),
                    MESSAGE = semel._refused_of_many('inbox_begin_many', m.ordinal, said);
            END IF;
            outcome := CASE WHEN said IS NOT NULL THEN semel._jsonb(said) END;
        END IF;
        ordinal := m.ordinal;
        message_id := m.message_id;
        source := m.source;
        RETURN NEXT;
    END LOOP;
END $$;

CREATE FUNCTION semel.inbox_done_many(consumer text, messages jsonb) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    ended bigint[];
    places tid[];
    m record;
    refusal text := semel._check_many('inbox_done_many', consumer, messages);
BEGIN
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(refusal, 5), MESSAGE = substr(refusal, 7);
    END IF;
    SELECT coalesce(array_agg(o.ordinal), '{}'), array_agg(o.place) INTO ended, places
    FROM (SELECT DISTINCT ON (b.place) b.place, e.ordinal
          FROM ROWS FROM (jsonb_to_recordset(messages) AS (message_id text, source text, outcome jsonb))
               WITH ORDINALITY AS e (message_id, source, outcome, ordinal)
          CROSS JOIN LATERAL (SELECT g.ctid AS place FROM semel.begun AS g
                              WHERE g.consumer = inbox_done_many.consumer COLLATE "C"
                                AND g.source = coalesce(e.source, '') COLLATE "C"
                                AND g.message_id = e.message_id COLLATE "C" OFFSET 0) AS b
          WHERE e.outcome IS NULL ORDER BY b.place, e.ordinal) AS o;
    IF places IS NOT NULL THEN
        DELETE FROM semel.begun AS b WHERE b.ctid = ANY (places);
        PERFORM semel._count_begun(-cardinality(places), consumer);
    END IF;
    FOR m IN SELECT e.ordinal, e.message_id, e.source, e.outcome
             FROM ROWS FROM (jsonb_to_recordset(messages) AS (message_id text, source text, outcome jsonb))
                  WITH ORDINALITY AS e (message_id, source, outcome, ordinal)
             WHERE cardinality(ended) < jsonb_array_length(messages) AND e.ordinal <> ALL (ended)
             ORDER BY e.ordinal LOOP
        refusal := semel._done(consumer, m.message_id, m.source, m.outcome);
        IF refusal IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = left(refusal, 5),
                MESSAGE = semel._refused_of_many('inbox_done_many', m.ordinal, refusal);
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION semel.inbox_fail_many(consumer text, messages jsonb)
RETURNS TABLE (ordinal integer, message_id text, source text, act text, due_at timestamptz, why text, status text,
               hint text)
LANGUAGE plpgsql ROWS 100 SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    refusal text := semel._check_many('inbox_fail_many', consumer, messages);
BEGIN
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(refusal, 5), MESSAGE = substr(refusal, 7);
    END IF;
    FOR ordinal, message_id, source, act, due_at, why, status, hint IN
        SELECT e.ordinal::integer, e.message_id, coalesce(e.source, ''), f.act, f.due_at, f.why, f.status, f.outcome
        FROM ROWS FROM (jsonb_to_recordset(messages) AS (
            message_id text, source text, type text, payload jsonb, raw bytea, headers jsonb, business_key text,
            order_key text, version bigint, fingerprint bytea, message_time timestamptz, delivery integer, class text,
            reason text)) WITH ORDINALITY AS e (
            message_id, source, type, payload, raw, headers, business_key, order_key, version, fingerprint,
            message_time, delivery, class, reason, ordinal)
        CROSS JOIN LATERAL semel._fail(inbox_fail_many.consumer, e.message_id, coalesce(e.source, ''), e.type,
            e.payload, e.raw, e.headers, e.business_key, e.order_key, e.version, e.fingerprint, e.message_time,
            e.delivery, e.class, e.reason) AS f LOOP
        IF act IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = left(hint, 5),
                MESSAGE = semel._refused_of_many('inbox_fail_many', ordinal, hint);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- ---- the same for a uuid ------------------------------------------------------------------------------------------

-- The planner puts the function for text in the place of these, so that they cost nothing, and the CONTEXT of an error
-- stays one line. It does so with a set only where that is said to be STABLE, which binds only the statement itself: it
-- is a SELECT. All names are qualified: they are looked up in the search path of the caller.
CREATE FUNCTION semel.inbox_begin(
    consumer text, message_id uuid, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, strict boolean = true)
RETURNS TABLE (act text, why text, attempt integer, outcome jsonb) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT * FROM semel.inbox_begin(consumer, message_id::pg_catalog.text, source, type, payload, raw, headers,
                                    business_key, order_key, version, fingerprint, message_time, delivery, strict)
$$;

CREATE FUNCTION semel.inbox_done(consumer text, message_id uuid, source text = '', outcome jsonb = NULL)
RETURNS void LANGUAGE sql AS $$
    SELECT semel.inbox_done(consumer, message_id::pg_catalog.text, source, outcome)
$$;

CREATE FUNCTION semel.inbox_fail(
    consumer text, message_id uuid, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, class text = NULL,
    reason text = NULL)
RETURNS TABLE (act text, due_at timestamptz, why text, status text, hint text) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT * FROM semel.inbox_fail(consumer, message_id::pg_catalog.text, source, type, payload, raw, headers,
                                   business_key, order_key, version, fingerprint, message_time, delivery, class, reason)
$$;

CREATE FUNCTION semel.inbox_claim(
    consumer text, message_id uuid, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, lease interval = NULL)
RETURNS TABLE (act text, why text, attempt integer, outcome jsonb, token bigint) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT * FROM semel.inbox_claim(consumer, message_id::pg_catalog.text, source, type, payload, raw, headers,
                                    business_key, order_key, version, fingerprint, message_time, delivery, lease)
$$;

CREATE FUNCTION semel.inbox_put(
    consumer text, message_id uuid, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, not_before timestamptz = NULL)
RETURNS TABLE (act text, why text) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT * FROM semel.inbox_put(consumer, message_id::pg_catalog.text, source, type, payload, raw, headers,
                                  business_key, order_key, version, fingerprint, message_time, delivery, not_before)
$$;

-- ---- the same for a bigint -----------------------------------------------------------------------------------------

CREATE FUNCTION semel.inbox_begin(
    consumer text, message_id bigint, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, strict boolean = true)
RETURNS TABLE (act text, why text, attempt integer, outcome jsonb) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT * FROM semel.inbox_begin(consumer, message_id::pg_catalog.text, source, type, payload, raw, headers,
                                    business_key, order_key, version, fingerprint, message_time, delivery, strict)
$$;

CREATE FUNCTION semel.inbox_done(consumer text, message_id bigint, source text = '', outcome jsonb = NULL)
RETURNS void LANGUAGE sql AS $$
    SELECT semel.inbox_done(consumer, message_id::pg_catalog.text, source, outcome)
$$;

CREATE FUNCTION semel.inbox_fail(
    consumer text, message_id bigint, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, class text = NULL,
    reason text = NULL)
RETURNS TABLE (act text, due_at timestamptz, why text, status text, hint text) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT * FROM semel.inbox_fail(consumer, message_id::pg_catalog.text, source, type, payload, raw, headers,
                                   business_key, order_key, version, fingerprint, message_time, delivery, class, reason)
$$;

CREATE FUNCTION semel.inbox_claim(
    consumer text, message_id bigint, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, lease interval = NULL)
RETURNS TABLE (act text, why text, attempt integer, outcome jsonb, token bigint) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT * FROM semel.inbox_claim(consumer, message_id::pg_catalog.text, source, type, payload, raw, headers,
                                    business_key, order_key, version, fingerprint, message_time, delivery, lease)
$$;

CREATE FUNCTION semel.inbox_put(
    consumer text, message_id bigint, source text = '', type text = NULL, payload jsonb = NULL, raw bytea = NULL,
    headers jsonb = NULL, business_key text = NULL, order_key text = NULL, version bigint = NULL,
    fingerprint bytea = NULL, message_time timestamptz = NULL, delivery integer = NULL, not_before timestamptz = NULL)
RETURNS TABLE (act text, why text) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT * FROM semel.inbox_put(consumer, message_id::pg_catalog.text, source, type, payload, raw, headers,
                                  business_key, order_key, version, fingerprint, message_time, delivery, not_before)
$$;

-- Nobody but the owner may call what is made here; roles.sql grants what an application needs.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;

INSERT INTO semel.schema (version, name) VALUES (17, 'calls');
