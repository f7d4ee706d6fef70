-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: idempotency keys. A request that is repeated under its key gets the first answer again, and its
-- work is done once. docs/idempotency.md describes the rules, docs/sql-postgres.md the functions.
--
-- A key belongs to a caller: the row is named by (scope, key). Everything else that makes a request what it is lies in
-- its fingerprint, so that the same key on another path is a mismatch and never a second run (P91). The statuses are
-- processing, completed and unknown; a key that was released has no row.
--
-- In one transaction with the effect: key_begin inserts the row without a lease, key_finish stores the answer in it. A
-- deferred trigger refuses the COMMIT while the row has no end. Nobody else can see the row before that, so a second
-- begin is told `busy` by a try-lock on the name of the key: an insert would wait for the first one's end (P103). With
-- it the transaction holds a second lock, whose name tells its fingerprint: so a request that differs is a `mismatch`
-- while the first one runs.
-- For effects outside: key_claim inserts the row with a lease, the caller commits, calls, and ends it by the token.
--
-- Invariants: the rules are those of src/core/keys.h, and spec/keys.txt holds both to one table; what is answered from
-- a stored row writes nothing; nothing here waits for another transaction, but for the row of the own token.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- As in 001, the rules of the table are domains and the predicate of an index: the server reads the checks of a table
-- from their text for every statement that writes.
CREATE DOMAIN semel.idempotency_name AS text COLLATE "C" CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN semel.idempotency_status AS text COLLATE "C" CHECK (VALUE IN ('processing', 'completed', 'unknown'));
-- Nothing is of this type: see the index idempotency_unknown.
CREATE DOMAIN semel.idempotency_state AS text COLLATE "C" CONSTRAINT idempotency_state_check CHECK (false);

CREATE TABLE semel.idempotency (
    scope        semel.idempotency_name NOT NULL,           -- the caller
    key          semel.idempotency_name NOT NULL,
    status       semel.idempotency_status NOT NULL,
    token        bigint NOT NULL,                           -- of the last claim (src/core/token.h)
    fingerprint  bytea,                                     -- a letter for the kind, then the digest
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,                      -- when the status was set
    lease_until  timestamptz,                               -- NULL: it ends in the transaction that began it
    lease_owner  text COLLATE "C",
    answer_us    bigint NOT NULL,                           -- how long the answer and the key are kept after completion
    keep_us      bigint NOT NULL,
    cause        text COLLATE "C",                          -- why the outcome is unknown
    code         integer,                                   -- the answer
    headers      text,                                      -- a JSON array of pairs
    body         bytea,                                     -- NULL: not kept
    completed_at timestamptz,
    answer_until timestamptz,
    key_until    timestamptz,
    origin       text COLLATE "C",                          -- of the browser that was answered
    rule         text COLLATE "C",
    traceparent  text,
    PRIMARY KEY (scope, key)
);

ALTER TABLE semel.idempotency SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 500000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 50000);

-- A token names one row that is not completed.
CREATE UNIQUE INDEX idempotency_token ON semel.idempotency (token) WHERE status IN ('processing', 'unknown');
-- Recovery, and the renewal of all leases of an owner.
CREATE INDEX idempotency_lease ON semel.idempotency (lease_until) WHERE status = 'processing';
-- What operators look for. It also keeps the rule for several columns: a completed row has its code and its times, and
-- no other row has all of them. What does not keep it would have to be a value that there is none of (23514).
CREATE INDEX idempotency_unknown ON semel.idempotency (updated_at)
    WHERE ((status = 'completed') <> (completed_at IS NOT NULL AND code IS NOT NULL AND answer_until IS NOT NULL
                                      AND key_until IS NOT NULL)
           AND status::semel.idempotency_state IS NULL) OR status = 'unknown';
-- Purge: bodies, then keys, by the end of their lifetimes. To the second, so that many rows share an entry.
CREATE INDEX idempotency_due
    ON semel.idempotency ((CASE WHEN body IS NULL THEN key_until ELSE answer_until END::timestamptz(0)))
    WHERE status = 'completed';

-- ---- what callers pass --------------------------------------------------------------------------------------------

-- The same check as semel__key_check in src/core/keys.c.
CREATE FUNCTION semel._idempotency_check(who text, scope text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_given(who, 'scope', scope IS NOT NULL);
    PERFORM semel._check_text(who, 'scope', scope, 1);
    PERFORM semel._check_given(who, 'key', key IS NOT NULL);
    IF key COLLATE "C" !~ '^[ -~]*$' THEN
        PERFORM semel._refuse(format('%s: key has a character that is not printable ASCII', who));
    ELSIF length(key) NOT BETWEEN 8 AND 255 THEN
        PERFORM semel._refuse(format('%s: key has %s characters; it must have 8 to 255', who, length(key)));
    ELSIF key COLLATE "C" ~ ('^([12][0-9]{9}([0-9]{3}){0,3}|[12][0-9]{3}-?[01][0-9]-?[0-3][0-9]'
                             '([T ]?[0-2][0-9]:?[0-5][0-9](:?[0-6][0-9]([.,][0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?)$')
    THEN
        RAISE WARNING USING MESSAGE = format('%s: key "%s" is a time and nothing else: two requests of one moment '
                                             'would share it; use a UUID', who, key);
    END IF;
END $$;

-- In microseconds; the answer for a day at least, the key as long as the answer at least.
CREATE FUNCTION semel._idempotency_lifetimes(who text, answer interval, keep interval, OUT answer_us bigint,
                                             OUT keep_us bigint)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_given(who, 'answer', answer IS NOT NULL);
    PERFORM semel._check_given(who, 'keep', keep IS NOT NULL);
    IF answer < interval '24 hours' OR keep > interval '3650 days' THEN
        PERFORM semel._refuse(format('%s: answer must be at least 24 hours, and keep at most 3650 days', who));
    ELSIF keep < answer THEN
        PERFORM semel._refuse(format('%s: keep must be at least as long as answer: a key outlives its answer', who));
    END IF;
    answer_us := (extract(epoch FROM answer) * 1000000)::bigint;
    keep_us := (extract(epoch FROM keep) * 1000000)::bigint;
END $$;

-- With its kind: h, the fingerprint of an HTTP request as docs/idempotency.md defines it, which is 33 bytes that begin
-- with this letter; c, any other bytes of the caller's.
CREATE FUNCTION semel._idempotency_print(who text, fingerprint bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF octet_length(fingerprint) NOT BETWEEN 1 AND 63 THEN
        PERFORM semel._refuse(format('%s: fingerprint has %s bytes; it must have 1 to 63', who,
                                     octet_length(fingerprint)));
    END IF;
    RETURN CASE WHEN octet_length(fingerprint) = 33 AND get_byte(fingerprint, 0) = 104 THEN fingerprint
                ELSE '\x63'::bytea || fingerprint END;
END $$;

-- A JSON array of pairs: a map would lose headers that are repeated.
CREATE FUNCTION semel._idempotency_headers(who text, headers jsonb) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(headers) <> 'array' OR EXISTS (
           SELECT FROM jsonb_array_elements(headers) AS h (pair)
           WHERE jsonb_typeof(h.pair) <> 'array' OR jsonb_array_length(h.pair) <> 2
              OR jsonb_typeof(h.pair -> 0) <> 'string' OR jsonb_typeof(h.pair -> 1) <> 'string') THEN
        PERFORM semel._refuse(format('%s: headers must be a JSON array of pairs such as '
                                     '[["content-type", "application/json"]]', who));
    ELSIF octet_length(headers::text) > 65536 THEN
        PERFORM semel._refuse(format('%s: headers have %s bytes; at most 65536 are allowed', who,
                                     octet_length(headers::text)));
    END IF;
    RETURN coalesce(headers, '[]')::text;
END $$;

-- ---- the rules ----------------------------------------------------------------------------------------------------

-- What becomes of a key by the status of the answer, where neither a rule nor the answer itself says otherwise: 5xx is
-- unknown, because a handler may run on behind it (P92); a refusal frees the key for the corrected request (P102).
CREATE FUNCTION semel.key_outcome(status integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN status BETWEEN 200 AND 399 OR status IN (402, 410) THEN 'completed'
                WHEN status BETWEEN 400 AND 499 THEN 'released' ELSE 'unknown' END
$$;

-- What a request is told by the row of its key; run: it may run, if it gets the row. The same as semel__key_judge in
-- src/core/keys.c.
CREATE FUNCTION semel._idempotency_judge(r semel.idempotency, print bytea, now timestamptz, OUT act text, OUT why text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    effect text;
BEGIN
    IF r.status IS NULL OR (r.status = 'completed' AND r.key_until <= now) THEN
        act := 'run';
        why := 'new';
    ELSIF semel._conflicts(print, r.fingerprint) THEN
        act := 'mismatch';
        why := 'fingerprint';
    ELSIF r.status = 'completed' THEN
        act := 'replay';
        why := CASE WHEN r.body IS NULL OR r.answer_until <= now THEN 'no_body' ELSE 'completed' END;
    ELSIF r.status = 'processing' AND (r.lease_until IS NULL OR r.lease_until >= now) THEN
        act := 'busy';
        why := 'running';
    ELSE
        effect := semel._token_effect(r.token);
        IF effect = 'keyed' OR (effect = 'atomic' AND r.status = 'processing') THEN
            act := 'run';                                   -- safe to repeat, or the former run cannot commit any more
            why := 'retry';
        ELSE
            act := 'unknown';
            why := CASE r.status WHEN 'unknown' THEN coalesce(r.cause, 'unknown') ELSE 'lease_expired' END;
        END IF;
    END IF;
END $$;

-- ---- begin and claim ----------------------------------------------------------------------------------------------

-- A begin without its end: the answer to a repeated request would be lost, and its work done again.
CREATE FUNCTION semel._idempotency_at_commit() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM semel.idempotency AS i
               WHERE i.token = NEW.token AND i.status = 'processing' AND i.lease_until IS NULL) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'integrity_constraint_violation',
            SCHEMA = 'semel', TABLE = 'idempotency', CONSTRAINT = 'begun_has_its_end',
            MESSAGE = format('key "%s" was begun, and is neither finished nor failed: a begin without its end cannot '
                             'commit', NEW.key),
            HINT = 'Call semel.key_finish or semel.key_fail in the transaction that began it; under autocommit, open '
                   'one first.';
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER begun_has_its_end AFTER INSERT OR UPDATE OF created_at ON semel.idempotency
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.lease_until IS NULL)
EXECUTE FUNCTION semel._idempotency_at_commit();

-- The C library takes the same lock (sql/statements/postgres/idempotency.sql).
CREATE FUNCTION semel._idempotency_lock(scope text, key text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended(key COLLATE "C", hashtextextended(scope COLLATE "C", 1936026993))
$$;

-- The second lock of a transaction that has begun a key is (place, mark): the place is half of the name above, the mark
-- tells the fingerprint, and its last bit the kind.
CREATE FUNCTION semel._idempotency_mark(print bytea) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT ((hashtextextended(encode(print, 'hex') COLLATE "C", 0) >> 32)::integer & -2) | (get_byte(print, 0) & 1)
$$;

-- Of a key that another transaction holds: is its fingerprint another one of the same kind? An equal one is asked for
-- first, by a try-lock, and costs nothing. The locks of a transaction that ends go one by one: where the second one is
-- gone, nothing is compared.
CREATE FUNCTION semel._idempotency_differs(name bigint, print bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    place integer := (name >> 32)::integer;
    mark integer := semel._idempotency_mark(print);
BEGIN
    IF print IS NULL OR NOT pg_try_advisory_lock(place, mark) THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_unlock(place, mark);
    RETURN EXISTS (
        SELECT FROM pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
          AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
          AND l.classid::bigint = place::bigint & 4294967295 AND l.objid::bigint <> mark::bigint & 4294967295
          AND l.objid::bigint & 1 = mark & 1);
END $$;

-- Takes the key's locks until the end of the transaction; false: another one has it. They are few: the lock table is
-- the whole cluster's (P83).
CREATE FUNCTION semel._idempotency_try_lock(who text, name bigint, print bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    said text := current_setting('semel.key_locks', true);
    n integer := CASE WHEN said ~ '^[0-9]{1,3}$' THEN said::integer ELSE 0 END;
BEGIN
    IF n >= 100 THEN
        PERFORM semel._refuse(format('%s: more than 100 keys in one transaction; commit more often', who));
    ELSIF NOT pg_try_advisory_xact_lock(name) THEN
        RETURN false;
    ELSIF print IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock_shared((name >> 32)::integer, semel._idempotency_mark(print));
    END IF;
    PERFORM set_config('semel.key_locks', (n + 1)::text, true);
    RETURN true;
END $$;

-- The key's row becomes ours, whatever it was; r: as it was, or nothing. NULL: somebody else has got hold of it.
CREATE FUNCTION semel._idempotency_take(r semel.idempotency, scope text, key text, print bytea, effect text,
                                        lease_us bigint, answer_us bigint, keep_us bigint)
RETURNS semel.idempotency LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := semel._now();
    mine semel.idempotency;
BEGIN
    mine.scope := scope;
    mine.key := key;
    mine.status := 'processing';
    mine.token := semel._token(effect, now, semel._token_time(r.token));
    mine.fingerprint := print;
    mine.created_at := now;
    mine.updated_at := semel._touched(r.updated_at, now);
    mine.lease_until := semel._later(now, lease_us);
    mine.lease_owner := semel._owner();
    mine.answer_us := answer_us;
    mine.keep_us := keep_us;
    IF r.status IS NULL THEN
        INSERT INTO semel.idempotency SELECT (mine).* ON CONFLICT ON CONSTRAINT idempotency_pkey DO NOTHING;
        RETURN CASE WHEN FOUND THEN mine END;
    END IF;
    UPDATE semel.idempotency AS i
    SET (status, token, fingerprint, created_at, updated_at, lease_until, lease_owner, answer_us, keep_us, cause, code,
         headers, body, completed_at, answer_until, key_until, origin, rule, traceparent)
        = (mine.status, mine.token, mine.fingerprint, mine.created_at, mine.updated_at, mine.lease_until,
           mine.lease_owner, mine.answer_us, mine.keep_us, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
    WHERE i.scope = r.scope AND i.key = r.key;
    RETURN mine;
END $$;

-- lease_us NULL: it ends in this transaction. What is stored is judged without a lock; what may run takes the key's
-- lock, then the row. A row that another transaction is changing is busy. Above READ COMMITTED a row that the snapshot
-- does not show, or not as it is, is SQLSTATE 40001.
CREATE FUNCTION semel._idempotency_enter(who text, in_scope text, of_key text, print bytea, effect text,
                                         lease_us bigint, answer_us bigint, keep_us bigint,
                                         OUT act text, OUT why text, OUT r semel.idempotency)
LANGUAGE plpgsql AS $$
DECLARE
    name bigint;
BEGIN
    FOR tries IN 1..3 LOOP
        SELECT i.* INTO r FROM semel.idempotency AS i
        WHERE i.scope = in_scope COLLATE "C" AND i.key = of_key COLLATE "C";
        SELECT j.act, j.why INTO act, why FROM semel._idempotency_judge(r, print, semel._now()) AS j;
        EXIT WHEN act <> 'run';
        IF name IS NULL THEN
            name := semel._idempotency_lock(in_scope, of_key);
            IF NOT semel._idempotency_try_lock(who, name, print) THEN
                act := CASE WHEN semel._idempotency_differs(name, print) THEN 'mismatch' ELSE 'busy' END;
                why := CASE act WHEN 'busy' THEN 'running' ELSE 'fingerprint' END;
                EXIT;
            END IF;
        END IF;
        IF r.status IS NOT NULL THEN
            PERFORM FROM semel.idempotency AS i
            WHERE i.scope = r.scope AND i.key = r.key AND i.token = r.token AND i.status = r.status
              AND i.updated_at = r.updated_at AND i.lease_until IS NOT DISTINCT FROM r.lease_until
            FOR UPDATE SKIP LOCKED;
        END IF;
        IF r.status IS NULL OR FOUND THEN
            r := semel._idempotency_take(r, in_scope, of_key, print, effect, lease_us, answer_us, keep_us);
            EXIT WHEN r.status IS NOT NULL;
        END IF;
        act := 'busy';                                      -- it has changed since it was read: once more
        why := 'running';
    END LOOP;
END $$;

-- What a caller is given of it.
CREATE FUNCTION semel._idempotency_told(verdict text, reason text, r semel.idempotency, OUT act text, OUT why text,
                                        OUT status integer, OUT headers jsonb, OUT body bytea, OUT token bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    act := verdict;
    why := reason;
    IF act = 'run' THEN
        token := r.token;
    ELSIF act = 'replay' THEN
        status := r.code;
        headers := r.headers::jsonb;
        body := CASE why WHEN 'completed' THEN r.body END;
    END IF;
END $$;

CREATE FUNCTION semel.key_begin(scope text, key text, fingerprint bytea = NULL, answer interval = '24 hours',
                                keep interval = '30 days')
RETURNS TABLE (act text, why text, status integer, headers jsonb, body bytea, token bigint) LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    l record;
BEGIN
    PERFORM semel._idempotency_check('key_begin', scope, key);
    l := semel._idempotency_lifetimes('key_begin', answer, keep);
    RETURN QUERY SELECT t.*
                 FROM semel._idempotency_enter(
                     'key_begin', scope, key, semel._idempotency_print('key_begin', fingerprint), 'atomic', NULL,
                     l.answer_us, l.keep_us) AS e
                 CROSS JOIN LATERAL semel._idempotency_told(e.act, e.why, e.r) AS t;
END $$;

-- effect: outside; keyed, where the work is safe to repeat under the key; atomic, where whoever does it finishes the
-- key by its token, in the transaction of the effect.
CREATE FUNCTION semel.key_claim(scope text, key text, fingerprint bytea = NULL, answer interval = '24 hours',
                                keep interval = '30 days', lease interval = '60 seconds', effect text = 'outside')
RETURNS TABLE (act text, why text, status integer, headers jsonb, body bytea, token bigint) LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    l record;
BEGIN
    PERFORM semel._idempotency_check('key_claim', scope, key);
    l := semel._idempotency_lifetimes('key_claim', answer, keep);
    PERFORM semel._check_given('key_claim', 'lease', lease IS NOT NULL);
    IF (effect COLLATE "C" IN ('atomic', 'outside', 'keyed')) IS NOT TRUE THEN
        PERFORM semel._refuse('key_claim: effect must be outside, keyed or atomic');
    END IF;
    RETURN QUERY SELECT t.*
                 FROM semel._idempotency_enter(
                     'key_claim', scope, key, semel._idempotency_print('key_claim', fingerprint), effect,
                     semel._check_lease('key_claim', lease), l.answer_us, l.keep_us) AS e
                 CROSS JOIN LATERAL semel._idempotency_told(e.act, e.why, e.r) AS t;
END $$;

-- ---- by token -----------------------------------------------------------------------------------------------------

CREATE FUNCTION semel.key_renew(token bigint, lease interval = '60 seconds') RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    lease_us bigint := semel._check_lease('key_renew', lease);
BEGIN
    PERFORM semel._check_token('key_renew', token);
    PERFORM semel._check_given('key_renew', 'lease', lease IS NOT NULL);
    UPDATE semel.idempotency AS i SET lease_until = semel._later(semel._now(), lease_us)
    WHERE i.token = key_renew.token AND i.status = 'processing' AND i.lease_until IS NOT NULL;
    RETURN FOUND;
END $$;

-- Also of a key whose outcome was unknown meanwhile: a late answer under its last token ends that.
CREATE FUNCTION semel.key_finish(token bigint, status integer, headers jsonb = '[]', body bytea = NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    pairs text := semel._idempotency_headers('key_finish', headers);
    now timestamptz := semel._now();
BEGIN
    PERFORM semel._check_token('key_finish', token);
    PERFORM semel._check_given('key_finish', 'status', status IS NOT NULL);
    IF status NOT BETWEEN 200 AND 599 THEN
        PERFORM semel._refuse(format('key_finish: status is %s; it must be from 200 to 599', status));
    ELSIF octet_length(body) > 67108864 THEN
        PERFORM semel._refuse(format('key_finish: body has %s bytes; at most 67108864 are allowed',
                                     octet_length(body)));
    END IF;
    UPDATE semel.idempotency AS i
    SET status = 'completed', updated_at = semel._touched(i.updated_at, now), lease_until = NULL, lease_owner = NULL,
        cause = NULL, code = key_finish.status, headers = pairs, body = key_finish.body, completed_at = now,
        answer_until = semel._later(now, i.answer_us), key_until = semel._later(now, i.keep_us)
    WHERE i.token = key_finish.token AND i.status IN ('processing', 'unknown');
    IF NOT FOUND AND coalesce(semel._token_effect(token), 'atomic') = 'atomic' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('no key is held under token %s: its lease ran out and another request has it, or it has '
                             'its answer; the effect of this transaction must not be committed', token),
            HINT = 'Roll back. The request is repeated by its key.';
    END IF;
    RETURN FOUND;
END $$;

-- class: released, nothing was done and the key may be used again; unknown, and why.
CREATE FUNCTION semel.key_fail(token bigint, class text, cause text = NULL) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    PERFORM semel._check_token('key_fail', token);
    PERFORM semel._check_given('key_fail', 'class', class IS NOT NULL);
    IF class COLLATE "C" = 'released' THEN
        DELETE FROM semel.idempotency AS i WHERE i.token = key_fail.token AND i.status IN ('processing', 'unknown');
    ELSIF class COLLATE "C" = 'unknown' THEN
        UPDATE semel.idempotency AS i
        SET status = 'unknown', updated_at = semel._touched(i.updated_at, semel._now()), lease_until = NULL,
            lease_owner = NULL, cause = coalesce(i.cause, semel._show(key_fail.cause, 255), 'unknown')
        WHERE i.token = key_fail.token AND i.status IN ('processing', 'unknown');
    ELSE
        PERFORM semel._refuse('key_fail: class must be released or unknown');
    END IF;
    RETURN FOUND;
END $$;

-- ---- housekeeping -------------------------------------------------------------------------------------------------

-- Leases that ran out: what could not commit any more is released, the others are unknown. Then bodies and keys whose
-- lifetime is over; processing and unknown keys have none. Waits for no lock. tick (018) calls it.
CREATE FUNCTION semel._idempotency_tick(most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := semel._now();
    n bigint := 0;
    done bigint;
    places tid[] := ARRAY(SELECT i.ctid FROM semel.idempotency AS i
                          WHERE i.status = 'processing' AND i.lease_until < now
                          ORDER BY i.lease_until LIMIT most FOR UPDATE SKIP LOCKED);
BEGIN
    DELETE FROM semel.idempotency AS i
    WHERE i.ctid = ANY (places) AND semel._token_effect(i.token) IS NOT DISTINCT FROM 'atomic';
    UPDATE semel.idempotency AS i
    SET status = 'unknown', updated_at = semel._touched(i.updated_at, now), lease_until = NULL,
        cause = 'lease_expired'
    WHERE i.ctid = ANY (places);
    n := cardinality(places);
    FOR kind IN 1..2 LOOP                                   -- bodies, then keys
        places := ARRAY(SELECT i.ctid FROM semel.idempotency AS i
                        WHERE i.status = 'completed'
                          AND CASE WHEN i.body IS NULL THEN i.key_until ELSE i.answer_until END <= now
                          AND CASE WHEN i.body IS NULL THEN i.key_until ELSE i.answer_until END::timestamptz(0)
                              <= now::timestamptz(0)
                        ORDER BY CASE WHEN i.body IS NULL THEN i.key_until ELSE i.answer_until END::timestamptz(0)
                        LIMIT greatest(most - n, 0) FOR UPDATE SKIP LOCKED);
        IF kind = 1 THEN
            UPDATE semel.idempotency AS i SET body = NULL WHERE i.ctid = ANY (places) AND i.body IS NOT NULL;
        ELSE
            DELETE FROM semel.idempotency AS i WHERE i.ctid = ANY (places) AND i.body IS NULL;
        END IF;
        GET DIAGNOSTICS done = ROW_COUNT;
        n := n + done;
    END LOOP;
    RETURN n;
END $$;

-- Nobody but the owner may call what is made here; roles.sql grants what an application needs.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;
REVOKE ALL ON TYPE semel.idempotency, semel.idempotency_name, semel.idempotency_status, semel.idempotency_state
    FROM PUBLIC;

INSERT INTO semel.schema (version, name) VALUES (20, 'idempotency');
