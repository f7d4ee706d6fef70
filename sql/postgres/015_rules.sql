-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the rules: what is to be done with a message, what its row becomes, and how that is written.
--
-- The same decisions as src/core/verdict.c, live.c and settle.c, from the same facts; the table of verdicts stands in
-- src/core/verdict.h. Facts are read after the locks are held, each in a statement of its own, so that at READ
-- COMMITTED they are those of the moment. Above it a decision by an old snapshot fails with 40001: every change of a
-- key's unfinished set changes the row of the key, which is locked first.
--
-- Invariants: a final row has no due time and no lease; a row that left the unfinished set of its key has woken the
-- next one in the same call; the locks of a call are taken in the order key, business key, row.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

CREATE TYPE semel._verdict AS (
    act     text COLLATE "C",                               -- run, ack or later
    why     text COLLATE "C",
    attempt integer,                                        -- run: the number of the attempt that starts; else 0
    becomes text COLLATE "C",                               -- NULL: the row stays as it is; absent: no row is to stay
    due_at  timestamptz,
    class   text COLLATE "C"
);

-- An order key under its lock, as it was before this call.
CREATE TYPE semel._key AS (
    order_key    text COLLATE "C",                          -- NULL: the message has none, or the consumer no order
    last_version bigint,
    skipped      bigint[],                                  -- versions above it that ended without effect, ascending
    head_arrival bigint,                                    -- of the first unfinished row
    head_version bigint,
    open         boolean                                    -- a row of the key is processing or unknown
);

-- ---- facts --------------------------------------------------------------------------------------------------------

-- Locks the key and reads what is known of it. patient = false: NULL order_key when somebody else has it, or when it is
-- none of ours: then the other keys have their turn.
CREATE FUNCTION semel._key(p semel._policy, wanted text, patient boolean) RETURNS semel._key LANGUAGE plpgsql AS $$
DECLARE
    k semel._key;
BEGIN
    IF patient THEN
        LOOP                                                -- again when it is purged between the two
            INSERT INTO semel.order_key (consumer, order_key) VALUES (p.consumer, wanted) ON CONFLICT DO NOTHING;
            SELECT o.order_key, o.last_version, o.skipped INTO k.order_key, k.last_version, k.skipped
            FROM semel.order_key AS o WHERE o.consumer = p.consumer AND o.order_key = wanted COLLATE "C" FOR UPDATE;
            EXIT WHEN FOUND;
        END LOOP;
    ELSE
        SELECT o.order_key, o.last_version, o.skipped INTO k.order_key, k.last_version, k.skipped
        FROM semel.order_key AS o WHERE o.consumer = p.consumer AND o.order_key = wanted COLLATE "C"
        FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN k;
        END IF;
    END IF;
    IF (CASE WHEN k.last_version NOT BETWEEN 0 AND 9223372036854775806 OR k.skipped IS NOT NULL
             THEN NOT semel._versions_fit(k, patient) END) THEN
        k.order_key := NULL;
        RETURN k;
    END IF;
    SELECT i.arrival, i.version INTO k.head_arrival, k.head_version FROM semel._first(p, wanted) AS i;
    k.open := EXISTS (SELECT FROM semel.inbox AS i
                      WHERE i.open_for = p.consumer AND i.order_key = wanted COLLATE "C"
                        AND i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead')
                        AND i.status IN ('processing', 'unknown'));
    RETURN k;
END $$;

-- A key that does not fit is none of ours: somebody else has written it, and no rule may read it. Where others wait for
-- their turn it is a warning.
CREATE FUNCTION semel._versions_fit(k semel._key, strict boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    damage CONSTANT text := 'damaged order key: last_version must be a whole number from 0, and skipped at most 1000 '
                            'versions above it in ascending order';
BEGIN
    IF k.last_version NOT BETWEEN 0 AND 9223372036854775806 OR cardinality(k.skipped) > 1000
       OR k.skipped IS DISTINCT FROM ARRAY(SELECT DISTINCT s.version FROM unnest(k.skipped) AS s (version)
                                           WHERE s.version > coalesce(k.last_version, -1)
                                             AND s.version < 9223372036854775807 ORDER BY s.version) THEN
        IF strict THEN
            RAISE EXCEPTION USING ERRCODE = 'data_corrupted', MESSAGE = damage;
        END IF;
        RAISE WARNING USING MESSAGE = damage;
        RETURN false;
    END IF;
    RETURN true;
END $$;

-- The first unfinished row of a key, waiters left out. A row without a version comes before all that have one.
CREATE FUNCTION semel._first(p semel._policy, wanted text) RETURNS SETOF semel.inbox LANGUAGE plpgsql ROWS 1 AS $$
BEGIN
    IF p.ord = 'version' THEN
        RETURN QUERY SELECT i.* FROM semel.inbox AS i
                     WHERE i.open_for = p.consumer AND i.order_key = wanted COLLATE "C"
                       AND i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead')
                       AND i.error_class IS DISTINCT FROM 'business_duplicate'
                     ORDER BY i.version NULLS FIRST, i.arrival LIMIT 1;
    ELSE
        RETURN QUERY SELECT i.* FROM semel.inbox AS i
                     WHERE i.open_for = p.consumer AND i.order_key = wanted COLLATE "C"
                       AND i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead')
                       AND i.error_class IS DISTINCT FROM 'business_duplicate'
                     ORDER BY i.arrival LIMIT 1;
    END IF;
END $$;

-- Is there no room to park one more? Counted only when one is about to be parked.
CREATE FUNCTION semel._parking_full(p semel._policy, wanted text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT count(*) FROM (SELECT FROM semel.inbox AS i
                                  WHERE i.open_for = p.consumer AND i.order_key = wanted COLLATE "C"
                                    AND i.status = 'waiting' AND i.error_class IS DISTINCT FROM 'business_duplicate'
                                  LIMIT p.parked_key_max) AS k) >= p.parked_key_max
        OR (SELECT count(*) FROM (SELECT FROM semel.inbox AS i
                                  WHERE i.open_for = p.consumer AND i.status = 'waiting'
                                  LIMIT p.parked_consumer_max) AS c) >= p.parked_consumer_max;
END $$;

-- May one more message wait for a business key?
CREATE FUNCTION semel._waiters_full(p semel._policy, wanted text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT count(*) FROM (SELECT FROM semel.business_want AS w
                                  WHERE w.consumer = p.consumer AND w.business_key = wanted COLLATE "C"
                                  LIMIT p.parked_key_max) AS k) >= p.parked_key_max
        OR (SELECT count(*) FROM (SELECT FROM semel.inbox AS i
                                  WHERE i.open_for = p.consumer AND i.status = 'waiting'
                                  LIMIT p.parked_consumer_max) AS c) >= p.parked_consumer_max;
END $$;

-- Is this the message that semel.begun remembers? See 016.
CREATE FUNCTION semel._in_hand(consumer text, source text, message_id text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(substr(current_setting('semel.begun', true), 2) COLLATE "C"
                    = format('%s %s %s%s%s', octet_length(consumer), octet_length(source), consumer, source,
                             message_id),
                    false)
$$;

-- Who stands behind a business key: free, own, busy (an unfinished message) or done (one that is final, or has no row).
-- What was begun in this transaction has not come to its end. One statement: between two, a holder that is rejected
-- would look like one that holds its key and is final.
CREATE FUNCTION semel._intent(p semel._policy, wanted text, of_source text, id text, now timestamptz)
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((
        SELECT CASE WHEN h.source = of_source COLLATE "C" AND h.message_id = id COLLATE "C" THEN 'own'
                    WHEN EXISTS (SELECT FROM semel.inbox AS i
                                 WHERE i.consumer = p.consumer AND i.source = h.source
                                   AND i.key = semel.message_key(h.message_id)
                                   AND i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead'))
                         OR EXISTS (SELECT FROM semel.begun AS b WHERE b.consumer = p.consumer AND b.source = h.source
                                                                   AND b.message_id = h.message_id)
                         OR semel._in_hand(p.consumer, h.source, h.message_id)
                    THEN 'busy' ELSE 'done' END
        FROM semel.business_key AS h
        WHERE h.consumer = p.consumer AND h.business_key = wanted COLLATE "C" AND (h.expires_at > now) IS NOT FALSE),
        'free');
END $$;

-- What exceeds payload_max is kept whole, and waits for a person. Are so many kept that one more is not?
CREATE FUNCTION semel._large_full(p semel._policy) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT count(*) FROM (SELECT FROM semel.inbox AS i
                                  WHERE i.open_for = p.consumer AND i.status IN ('dead', 'quarantined')
                                    AND octet_length(i.payload) > p.payload_max
                                  ORDER BY octet_length(i.payload) DESC LIMIT 100) AS l) >= 100;
END $$;

-- A row that is none of ours: somebody else has written it, and no rule may read it.
CREATE FUNCTION semel._damaged(r semel.inbox) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT r.arrival < 1 OR octet_length(r.message_id) < 1
        OR greatest(octet_length(r.type), octet_length(r.order_key), octet_length(r.lease_owner),
                    octet_length(r.traceparent)) > 255
        OR octet_length(r.position) > 1000 OR octet_length(r.error_text) > 1000 OR octet_length(r.outcome) > 65536
        OR r.attempts NOT BETWEEN 0 AND 1000000 OR (r.status = 'processing' AND r.attempts = 0)
        OR r.attempts_before > r.attempts OR r.retries > 1000000 OR r.version NOT BETWEEN 0 AND 9223372036854775806
        OR octet_length(r.fingerprint) NOT BETWEEN 2 AND 65 OR get_byte(r.fingerprint, 0) NOT IN (99, 106, 114)
        OR CASE WHEN r.status = 'processing' THEN r.lease_until IS NULL OR coalesce(r.lease_owner, '') = ''
                ELSE r.lease_until IS NOT NULL OR r.lease_owner IS NOT NULL END
        OR (r.due_at IS NOT NULL AND r.status NOT IN ('failed', 'waiting'))
        OR (r.status IN ('completed', 'rejected', 'stale', 'prevented')) <> (r.processed_at IS NOT NULL)
$$;

-- ---- verdicts -----------------------------------------------------------------------------------------------------

-- The version that the next one has to follow; NULL: any may be the first, and none was applied.
CREATE FUNCTION semel._last_version(p semel._policy, k semel._key) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    last bigint := coalesce(k.last_version, p.first_version - 1);
BEGIN
    WHILE coalesce(last + 1 = ANY (k.skipped), false) LOOP
        last := last + 1;
    END LOOP;
    RETURN last;
END $$;

-- Is there no room to remember that this version ended without effect?
CREATE FUNCTION semel._skipped_full(p semel._policy, k semel._key, version bigint)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN coalesce(p.ord = 'version' AND cardinality(k.skipped) >= 1000 AND version > semel._last_version(p, k) + 1
                    AND version <> ALL (k.skipped), false);
END $$;

-- The key after a message of this version has become `status` (NULL: it found no room); fresh: it was not there before.
-- The rules stand in src/core/version.h.
CREATE FUNCTION semel._version_moved(p semel._policy, k semel._key, version bigint, status text, fresh boolean)
RETURNS semel._key LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    last bigint := semel._last_version(p, k);
BEGIN
    IF status IN ('completed', 'rejected', 'prevented') THEN
        IF coalesce(version <= last, false) THEN
            NULL;
        ELSIF status = 'completed' OR version = last + 1 THEN
            k.last_version := version;
            IF k.skipped IS NOT NULL THEN
                k.last_version := semel._last_version(p, k);
                k.skipped := nullif(ARRAY(SELECT s.version FROM unnest(k.skipped) AS s (version)
                                          WHERE s.version > k.last_version ORDER BY s.version), '{}');
            END IF;
        ELSIF last IS NOT NULL AND NOT semel._skipped_full(p, k, version) THEN
            k.skipped := ARRAY(SELECT DISTINCT s.version FROM unnest(k.skipped || version) AS s (version)
                               ORDER BY s.version);
        END IF;
    ELSIF fresh AND version = ANY (k.skipped) AND coalesce(status NOT IN ('stale', 'quarantined'), true) THEN
        k.skipped := nullif(array_remove(k.skipped, version), '{}');
    END IF;
    RETURN k;
END $$;

-- Where a version stands in the order of its key.
CREATE FUNCTION semel._place(p semel._policy, k semel._key, others boolean, version bigint)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    last bigint := semel._last_version(p, k);
BEGIN
    IF p.ord = 'arrival' OR version IS NULL THEN            -- stored before the route went by versions: as by arrival
        RETURN CASE WHEN others OR k.open THEN 'blocked' ELSE 'first' END;
    ELSIF k.last_version IS NULL AND version < p.first_version THEN
        RETURN 'below';
    END IF;
    last := coalesce(last, least(k.head_version, version) - 1);         -- any first version: the lowest one there is
    IF version <= last THEN
        RETURN CASE WHEN version < last THEN 'older' ELSE 'same' END;
    ELSIF version = last + 1 THEN
        -- A later version may be at its effect, by policy or by force: one at a time, and none after a later one.
        RETURN CASE WHEN k.open OR (others AND coalesce(k.head_version <= version, true)) THEN 'blocked'
                    ELSE 'first' END;
    END IF;
    -- The timer of a gap does not run while the missing one is stored unfinished, or one before it.
    RETURN CASE WHEN others AND coalesce(k.head_version <= last + 1, true) THEN 'blocked' ELSE 'gap' END;
END $$;

-- For a message without a row (r.status IS NULL), or with one that is waiting, or failed and due. The bound of parked
-- messages is for the caller to see to.
CREATE FUNCTION semel._verdict_place(p semel._policy, k semel._key, r semel.inbox, version bigint, now timestamptz)
RETURNS semel._verdict LANGUAGE plpgsql STABLE AS $$
DECLARE
    -- A waiter that comes back may itself stand before the head.
    others boolean := k.head_arrival IS NOT NULL
                      AND CASE WHEN r.status IS NULL THEN true
                               WHEN p.ord = 'version' AND k.head_version IS DISTINCT FROM r.version
                               THEN coalesce(k.head_version < r.version, k.head_version IS NULL)
                               ELSE k.head_arrival < r.arrival END;
    place text COLLATE "C" := CASE WHEN k.order_key IS NULL THEN 'first' ELSE semel._place(p, k, others, version) END;
    held text COLLATE "C" := CASE WHEN CASE WHEN r.status IS NULL THEN p.keep <> 'never' ELSE r.payload IS NOT NULL END
                                  THEN 'ack' ELSE 'later' END;
    had_turn boolean := coalesce(r.status = 'failed', false);           -- by policy or by force
    timing boolean := coalesce(r.error_class = 'gap' AND r.due_at IS NOT NULL, false);
    v semel._verdict := (held, place, 0, NULL, NULL, NULL);
BEGIN
    IF place = 'gap' AND (had_turn OR (timing AND r.due_at <= now)) THEN
        place := CASE WHEN k.open OR others THEN 'blocked'              -- a stored one is not skipped by a later one
                      WHEN had_turn OR p.on_gap = 'apply' THEN 'first'
                      WHEN p.on_gap = 'dead' THEN 'over' ELSE 'gap' END;
    ELSIF place = 'gap' AND timing THEN
        RETURN v;
    ELSIF place = 'below' AND had_turn THEN
        place := CASE WHEN k.open OR others THEN 'blocked' ELSE 'first' END;
    END IF;
    CASE place
    WHEN 'first' THEN
        v := ('run', CASE WHEN r.attempts > 0 THEN 'retry' ELSE 'new' END, coalesce(r.attempts, 0) + 1, NULL, NULL,
              NULL);
    WHEN 'blocked' THEN
        v.why := 'blocked';
        IF r.status IS DISTINCT FROM 'waiting' OR r.due_at IS NOT NULL THEN
            v.becomes := 'waiting';
            v.class := 'blocked';
        END IF;
    WHEN 'gap' THEN
        v := (held, 'gap', 0, 'waiting', semel._later(now, p.gap_timeout), 'gap');
    WHEN 'over' THEN
        v := ('ack', 'gap', 0, 'dead', NULL, 'gap');
    WHEN 'below' THEN                                       -- it runs only by force
        v := ('ack', 'dead', 0, 'dead', NULL, 'permanent');
    WHEN 'same' THEN
        v := ('ack', 'duplicate', 0, 'stale', NULL, 'stale');
    WHEN 'older' THEN
        v := ('ack', 'stale', 0, 'stale', NULL, 'stale');
    END CASE;
    RETURN v;
END $$;

CREATE FUNCTION semel._waiter(r semel.inbox) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(r.status = 'waiting' AND r.error_class = 'business_duplicate', false)
$$;

-- The same, and what its intent says. A waiter looks again after as long as it has waited so far. Room is for the
-- caller to see to.
CREATE FUNCTION semel._verdict_turn(p semel._policy, k semel._key, r semel.inbox, version bigint, intent text,
                                    now timestamptz)
RETURNS semel._verdict LANGUAGE plpgsql STABLE AS $$
DECLARE
    v semel._verdict;
BEGIN
    IF intent = 'done' AND NOT semel._skipped_full(p, k, version) THEN
        v := ('ack', 'business_duplicate', 0, 'prevented', NULL, 'business_duplicate');
        RETURN v;
    ELSIF k.order_key IS NULL AND r.status IS NULL AND intent <> 'busy' THEN
        v := ('run', 'new', 1, NULL, NULL, NULL);
        RETURN v;
    END IF;
    v := semel._verdict_place(p, k, r, version, now);
    IF intent = 'done' AND v.act = 'run' THEN               -- past a gap: what is done is not done again
        v := (CASE WHEN r.payload IS NOT NULL THEN 'ack' ELSE 'later' END, 'gap', 0, 'waiting',
              semel._later(now, p.gap_timeout), 'gap');
    ELSIF intent = 'busy' AND (v.act = 'run' OR semel._waiter(r)) THEN
        v := (CASE WHEN CASE WHEN r.status IS NULL THEN p.keep <> 'never' ELSE r.payload IS NOT NULL END
                   THEN 'ack' ELSE 'later' END, 'business_duplicate', 0, NULL, NULL, NULL);
        IF NOT semel._waiter(r) OR (r.due_at > now) IS NOT TRUE THEN
            v.becomes := 'waiting';
            v.class := 'business_duplicate';
            v.due_at := now + least(greatest(now - r.received_at, interval '1 second'), interval '10 minutes');
        END IF;
    END IF;
    RETURN v;
END $$;

-- For a row that is there.
CREATE FUNCTION semel._verdict_row(p semel._policy, k semel._key, r semel.inbox, intent text, now timestamptz)
RETURNS semel._verdict LANGUAGE plpgsql STABLE AS $$
DECLARE
    v semel._verdict := ('ack', r.status, 0, NULL, NULL, NULL);
BEGIN
    IF r.status = 'waiting' AND r.error_class IS NULL AND r.due_at > now THEN  -- put for a later time
        v.act := CASE WHEN r.payload IS NOT NULL THEN 'ack' ELSE 'later' END;
        v.why := 'backoff';
        RETURN v;
    ELSIF r.status = 'waiting' OR (r.status = 'failed' AND r.due_at <= now) THEN
        RETURN semel._verdict_turn(p, k, r, r.version, intent, now);
    END IF;
    CASE r.status
    WHEN 'completed', 'rejected' THEN
        v.why := 'duplicate';
    WHEN 'stale', 'dead' THEN
        NULL;
    WHEN 'prevented' THEN
        v.why := 'business_duplicate';
    WHEN 'quarantined' THEN
        v.why := CASE WHEN r.error_class = 'no_id' THEN 'no_id' ELSE 'too_old' END;
    WHEN 'processing' THEN
        v.act := 'later';
        v.why := 'busy';
    WHEN 'unknown', 'failed' THEN
        v.act := CASE WHEN r.payload IS NOT NULL THEN 'ack' ELSE 'later' END;
        v.why := CASE WHEN r.status = 'failed' THEN 'backoff' ELSE 'unknown' END;
    END CASE;
    RETURN v;
END $$;

-- Why the message does not run, in words for the row.
CREATE FUNCTION semel._verdict_text(v semel._verdict) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE v.class
        WHEN 'too_old' THEN 'older than the watermark: its record may have been purged, so it was not run'
        WHEN 'no_id' THEN 'it has no id that can be used'
        WHEN 'business_duplicate' THEN
            CASE WHEN v.becomes = 'waiting' THEN 'another message holds its business key and is unfinished'
                 ELSE 'another message with the same business key came before it' END
        WHEN 'stale' THEN 'its version is not above the last one applied'
        WHEN 'blocked' THEN 'an unfinished message of its key comes before it'
        WHEN 'permanent' THEN 'its version is below the route''s first_version, and nothing of its key was applied '
                              'yet: it was not run'
        WHEN 'gap' THEN CASE WHEN v.becomes = 'dead' THEN 'versions before it did not come in time'
                             ELSE 'versions before it are missing' END END
$$;

-- ---- what a row becomes -------------------------------------------------------------------------------------------

-- In another status, without lease, due time and error.
CREATE FUNCTION semel._moved(r semel.inbox, status text, now timestamptz) RETURNS semel.inbox LANGUAGE plpgsql AS $$
BEGIN
    r.status := status;
    r.updated_at := semel._touched(r.updated_at, now);
    r.due_at := NULL;
    r.processed_at := CASE WHEN r.status IN ('completed', 'rejected', 'stale', 'prevented') THEN now END;
    r.lease_owner := NULL;
    r.lease_until := NULL;
    r.lease_token := NULL;
    r.error_class := NULL;
    r.error_text := NULL;
    RETURN r;
END $$;

-- Who holds a lease, for people who read a row; both names have at most 63 bytes.
CREATE FUNCTION semel._owner() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT session_user || '-' || pg_backend_pid() || '-'
        || coalesce(nullif(current_setting('application_name'), ''), 'sql')
$$;

-- A start under a lease. The last error stays to be seen while the next attempt runs.
CREATE FUNCTION semel._claimed(p semel._policy, r semel.inbox, lease bigint, now timestamptz)
RETURNS semel.inbox LANGUAGE plpgsql AS $$
BEGIN
    IF semel._waiter(r) THEN                                -- it has a place in its order from now on
        r.error_class := NULL;
        r.error_text := NULL;
    END IF;
    r.status := 'processing';
    r.lease_token := semel._token(p.effect, now, r.updated_at);
    r.updated_at := greatest(now, semel._token_time(r.lease_token));
    r.due_at := NULL;
    r.attempts := r.attempts + 1;
    r.alone := true;
    r.lease_owner := semel._owner();
    r.lease_until := semel._later(now, lease);
    RETURN r;
END $$;

-- Exponential with full jitter: uniform between a millisecond and first * 2^(n-1), or the ceiling.
CREATE FUNCTION semel._backoff(p semel._policy, n integer) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT 1000 + floor(random() * (greatest(1000, least(p.retry_ceiling,
                                                         p.retry_first * power(2, least(n - 1, 60)))) - 999))::bigint
$$;

-- The end of an attempt that is counted in r.attempts. Here and for a recovery, what nobody knows goes by the effect
-- that the message was claimed under, whatever the consumer's is now; but it is repeated only by a consumer that still
-- has a key for it. class: NULL, where it is the result's own.
CREATE FUNCTION semel._ended(p semel._policy, r semel.inbox, result text, class text, reason text, outcome text,
                             now timestamptz)
RETURNS semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    used integer := r.attempts - r.attempts_before;
    effect text COLLATE "C" := coalesce(semel._token_effect(r.lease_token), p.effect);
    dead boolean := used >= CASE WHEN result = 'permanent' THEN p.permanent_max ELSE p.retry_max END;
BEGIN
    r := semel._moved(r, CASE WHEN result = 'done' THEN 'completed' WHEN result = 'rejected' THEN 'rejected'
                              WHEN result = 'maybe' AND (effect <> 'keyed' OR p.effect <> 'keyed') THEN 'unknown'
                              WHEN dead THEN 'dead' ELSE 'failed' END, now);
    r.outcome := outcome;
    IF r.status <> 'completed' THEN
        r.error_class := coalesce(class, CASE WHEN result = 'maybe' THEN 'unknown' ELSE result END);
        r.error_text := semel._show(reason, 1000);
    END IF;
    IF r.status = 'failed' THEN
        r.alone := true;
        r.due_at := semel._later(now, semel._backoff(p, used));
    END IF;
    RETURN r;
END $$;

-- Given back before it ran: the attempt does not count.
CREATE FUNCTION semel._released(r semel.inbox, now timestamptz) RETURNS semel.inbox LANGUAGE plpgsql AS $$
BEGIN
    r.attempts := r.attempts - 1;
    r := semel._moved(r, CASE WHEN r.attempts > r.attempts_before THEN 'failed' ELSE 'waiting' END, now);
    r.attempts_before := least(r.attempts_before, r.attempts);
    r.due_at := now;
    r.error_class := 'released';
    r.error_text := 'given back before it ran';
    RETURN r;
END $$;

-- A lease that ran out.
CREATE FUNCTION semel._recovered(p semel._policy, r semel.inbox, now timestamptz)
RETURNS semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    effect text COLLATE "C" := coalesce(semel._token_effect(r.lease_token), p.effect);
BEGIN
    IF effect = 'atomic' AND NOT r.alone THEN
        -- It ran together with others and nobody knows whose fault it was: nobody is charged, each goes on alone.
        r := semel._released(r, now);
        r.alone := true;
        r.error_class := 'lease_expired';
        r.error_text := 'its worker died or stalled while it ran this one together with others; next it runs alone';
        RETURN r;
    END IF;
    RETURN semel._ended(p, r, CASE WHEN effect = 'atomic' OR (effect = 'keyed' AND p.effect = 'keyed') THEN 'transient'
                                   ELSE 'maybe' END, 'lease_expired',
                        'its worker died or stalled: the lease ran out before it reported an end', r.outcome, now);
END $$;

-- How the broker is answered for a message that ran.
CREATE FUNCTION semel._act_for(status text, kept boolean) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN status IN ('completed', 'rejected', 'stale', 'prevented', 'dead', 'quarantined') THEN 'ack'
                WHEN status IN ('failed', 'waiting', 'unknown') AND kept THEN 'ack' ELSE 'later' END
$$;

CREATE FUNCTION semel._stays(p semel._policy, status text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p.keep = 'always'
        OR (p.keep = 'unfinished' AND status NOT IN ('completed', 'rejected', 'stale', 'prevented'))
$$;

-- Does the message bring the payload that its row was stored without? Not for a row that runs, or is final.
CREATE FUNCTION semel._adopts(p semel._policy, m semel._message, r semel.inbox)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT m.payload IS NOT NULL AND r.payload IS NULL AND p.keep <> 'never'
       AND r.status IN ('failed', 'waiting', 'unknown', 'dead', 'quarantined')
$$;

-- ---- writing ------------------------------------------------------------------------------------------------------

CREATE FUNCTION semel._unfinished(status text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(status IN ('processing', 'failed', 'waiting', 'unknown', 'dead'), false)
$$;

-- Does the row have a place in the order of its key?
CREATE FUNCTION semel._in_order(r semel.inbox) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT semel._unfinished(r.status) AND NOT semel._waiter(r)
$$;

-- Locks the business keys that a message holds; false: somebody else has one at this moment, and is not waited for.
CREATE FUNCTION semel._hold_business(r semel.inbox, patient boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    IF patient THEN
        PERFORM FROM semel.business_key AS b
        WHERE b.consumer = r.consumer AND b.source = r.source AND b.message_id = r.message_id
        ORDER BY b.business_key FOR UPDATE;
        RETURN true;
    END IF;
    SELECT count(*) INTO n FROM (SELECT FROM semel.business_key AS b
                                 WHERE b.consumer = r.consumer AND b.source = r.source AND b.message_id = r.message_id
                                 FOR UPDATE SKIP LOCKED) AS h;
    RETURN n = (SELECT count(*) FROM semel.business_key AS b
                WHERE b.consumer = r.consumer AND b.source = r.source AND b.message_id = r.message_id);
END $$;

-- Does a row that was `was` give its business keys back? free: it ended without an effect; one that began and is stale
-- since may have had one where a call may be repeated by its key. wish: it goes back to waiting, and a parked message
-- holds no key; but where an earlier attempt may have had an effect in that way, they stay.
CREATE FUNCTION semel._gives_back(p semel._policy, was semel.inbox, r semel.inbox) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN r.status = 'rejected' OR (r.status IN ('stale', 'prevented') AND was.status IS NOT NULL
                                              AND p.effect <> 'keyed')
                THEN 'free'
                WHEN r.status = 'waiting' AND was.status <> 'waiting' AND (p.effect <> 'keyed' OR r.attempts = 0)
                THEN 'wish' END
$$;

-- The business keys of a message are free, and those that wait for one look at once. wish: it wants them from now on.
CREATE FUNCTION semel._free_business(r semel.inbox, wish boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := semel._now();
BEGIN
    UPDATE semel.record AS t
    SET due_at = now, updated_at = semel._touched(coalesce(t.updated_at, t.received_at), now)
    WHERE t.ctid = ANY (ARRAY(
        SELECT i.ctid FROM semel.business_key AS b
        JOIN semel.business_want AS w ON w.consumer = b.consumer AND w.business_key = b.business_key
        JOIN semel.stream AS s ON s.consumer = w.consumer AND s.source = w.source
        JOIN semel.record AS i ON i.key = semel.message_key(w.message_id) AND i.stream = s.stream
        WHERE b.consumer = r.consumer AND b.source = r.source AND b.message_id = r.message_id
          AND i.status IS NOT DISTINCT FROM 'waiting' AND i.error_class = 'business_duplicate'
        FOR UPDATE OF i SKIP LOCKED));                      -- spelled so, no partial index keeps it from the key
    WITH freed AS (DELETE FROM semel.business_key AS b
                   WHERE b.consumer = r.consumer AND b.source = r.source AND b.message_id = r.message_id
                   RETURNING b.business_key)
    INSERT INTO semel.business_want (consumer, business_key, source, message_id)
    SELECT r.consumer, f.business_key, r.source, r.message_id FROM freed AS f WHERE wish ON CONFLICT DO NOTHING;
END $$;

-- Does the change of a row change the business keys that it holds? They are given back, or begin to expire.
CREATE FUNCTION semel._touches_business(p semel._policy, was semel.inbox, r semel.inbox) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT semel._gives_back(p, was, r) IS NOT NULL OR (p.business_retention IS NOT NULL AND r.processed_at IS NOT NULL)
$$;

-- The business keys and wishes of a row that was `was`; NULL: this call has inserted it. A key does not expire while
-- its holder is unfinished: its time counts from the holder's end.
CREATE FUNCTION semel._business_changed(p semel._policy, was semel.inbox, r semel.inbox) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := CASE WHEN r.processed_at IS NOT NULL
                              THEN semel._later(r.processed_at, p.business_retention) END;
    back text COLLATE "C" := semel._gives_back(p, was, r);
BEGIN
    IF back IS NOT NULL THEN
        PERFORM semel._free_business(r, back = 'wish');
    ELSIF p.business_retention IS NOT NULL THEN             -- a start or a failure changes no key, and locks none
        UPDATE semel.business_key AS b SET expires_at = until
        WHERE b.consumer = r.consumer AND b.source = r.source AND b.message_id = r.message_id
          AND b.expires_at IS DISTINCT FROM until;
    END IF;
    IF was.status IN ('waiting', 'failed', 'unknown', 'dead', 'quarantined')
       AND (r.attempts > was.attempts OR r.processed_at IS NOT NULL) THEN
        DELETE FROM semel.business_want AS w
        WHERE w.consumer = r.consumer AND w.source = r.source AND w.message_id = r.message_id;
    END IF;
END $$;

-- The key after a row of it has changed: its version, its mark, and whoever comes first now. before: NULL, where this
-- call has inserted the row.
CREATE FUNCTION semel._key_changed(p semel._policy, k semel._key, before semel.inbox, r semel.inbox, now timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    was boolean := semel._in_order(before);
    is_now boolean := semel._in_order(r);
    moved semel._key := CASE WHEN p.ord = 'version' AND r.version IS NOT NULL
                             THEN semel._version_moved(p, k, r.version, r.status, before.status IS NULL) ELSE k END;
    advance boolean := moved.last_version IS DISTINCT FROM k.last_version;
    made_way boolean := coalesce(before.status IN ('processing', 'unknown')
                                 AND r.status NOT IN ('processing', 'unknown')
                                 AND k.head_arrival <> r.arrival, false);
    wake boolean := (was AND NOT is_now) OR (advance AND k.head_arrival IS NOT NULL) OR made_way;
    -- By versions, an earlier one may come while a later one is at its effect: who has an older snapshot has to notice.
    opens boolean := p.ord = 'version' AND coalesce(before.status IN ('processing', 'unknown'), false)
                                           IS DISTINCT FROM coalesce(r.status IN ('processing', 'unknown'), false);
    head semel.inbox;
BEGIN
    IF was = is_now AND NOT advance AND NOT wake AND NOT opens
       AND moved.skipped IS NOT DISTINCT FROM k.skipped THEN
        RETURN;
    END IF;
    UPDATE semel.order_key AS o
    SET changes = o.changes + 1, updated_at = now, last_version = moved.last_version, skipped = moved.skipped
    WHERE o.consumer = p.consumer AND o.order_key = k.order_key;
    IF wake THEN
        SELECT * INTO head FROM semel._first(p, k.order_key);
        -- Who has its row without its key (a copy under another key) is not waited for: a tick wakes it later.
        UPDATE semel.record AS i
        SET due_at = now, error_class = 'blocked',
            updated_at = semel._touched(coalesce(i.updated_at, i.received_at), now)
        WHERE i.ctid = (SELECT w.ctid FROM semel.record AS w
                        WHERE w.key = head.key AND w.stream = head.stream AND w.status IS NOT DISTINCT FROM 'waiting'
                          AND (w.error_class IS NOT NULL OR (w.due_at > now) IS NOT TRUE)   -- put for a later time
                        FOR UPDATE SKIP LOCKED);
    END IF;
END $$;

-- The row as it is now, from what it was; m brings a payload that was not kept. One that is stored goes only when the
-- row becomes final, whatever the settings say by then. fresh: this call has inserted it.
CREATE FUNCTION semel._write(p semel._policy, k semel._key, was semel.inbox, r semel.inbox, m semel._message,
                             fresh boolean, ended boolean)
RETURNS semel.inbox LANGUAGE plpgsql AS $$
BEGIN
    IF semel._stays(p, r.status)
       OR (r.status IN ('dead', 'quarantined') AND octet_length(m.payload) > p.payload_max) THEN  -- else nobody has it
        IF was.payload IS NULL AND m.payload IS NOT NULL THEN
            r.payload := m.payload;
            r.headers := m.headers;
            r.fingerprint := coalesce(r.fingerprint, m.fingerprint);
        END IF;
    ELSIF r.processed_at IS NOT NULL THEN
        r.payload := NULL;
        r.headers := NULL;
    END IF;
    r.open_for := CASE WHEN r.status NOT IN ('completed', 'rejected', 'stale', 'prevented') THEN r.consumer END;
    UPDATE semel.record AS i
    SET status = nullif(r.status, 'completed'), open_for = r.open_for, attempts = nullif(r.attempts, 1),
        attempts_before = nullif(r.attempts_before, 0), retries = nullif(r.retries, 0), alone = nullif(r.alone, false),
        due_at = r.due_at, processed_at = nullif(r.processed_at, r.updated_at), lease_owner = r.lease_owner,
        lease_until = r.lease_until, lease_token = r.lease_token, error_class = r.error_class,
        error_text = r.error_text, outcome = r.outcome, updated_at = nullif(r.updated_at, i.received_at),
        headers = r.headers, payload = r.payload, fingerprint = r.fingerprint
    WHERE i.key = was.key AND i.stream = was.stream
      AND i.status IS NOT DISTINCT FROM nullif(was.status, 'completed')
      AND i.lease_token IS NOT DISTINCT FROM was.lease_token;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'an inbox row changed while it was held';
    END IF;
    IF ended THEN
        INSERT INTO semel.attempt (consumer, source, message_id, attempt, at, worker, error_class, error_text)
        VALUES (r.consumer, r.source, r.message_id, r.attempts, r.updated_at, semel._owner(), r.error_class,
                r.error_text);
    END IF;
    IF fresh THEN
        was := NULL;
    END IF;
    PERFORM semel._business_changed(p, was, r);
    IF k.order_key IS NOT NULL THEN
        PERFORM semel._key_changed(p, k, was, r, least(r.updated_at, semel._now()));
    END IF;
    RETURN r;
END $$;

-- Nobody but the owner may call what is made here; roles.sql grants what an application needs.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;

INSERT INTO semel.schema (version, name) VALUES (15, 'rules');
