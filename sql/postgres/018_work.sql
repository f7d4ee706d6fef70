-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: what runs without the daemon: stored work that is due, housekeeping; the outbox, keys of outside
-- calls, the settings. docs/sql-postgres.md describes them.
--
-- Any number of sessions may do this at once: candidates are read without locks, their keys and rows are try-locked,
-- and each is judged anew. Taking and housekeeping wait for nobody.
--
-- Invariants: a message is taken only as the first of its key, and one of each key; the watermark rises before anything
-- is deleted, and both become visible at once.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- ---- stored work --------------------------------------------------------------------------------------------------

-- The first row of the candidate's key that is due: nothing of a key may be left out in between.
CREATE FUNCTION semel._due_of_key(p semel._policy, c semel.inbox, until timestamptz)
RETURNS semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    first semel.inbox;
BEGIN
    SELECT i.* INTO first FROM semel.inbox AS i
    WHERE i.open_for = c.consumer AND i.order_key = c.order_key AND i.payload IS NOT NULL AND i.due_at <= until
      AND i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead')
    ORDER BY CASE WHEN p.ord = 'version' THEN i.version END NULLS FIRST, i.arrival LIMIT 1;
    RETURN first;
END $$;

-- Judges one candidate under lock: it is claimed (ran), changed without running, or left alone; NULL: another session
-- has it. deciding: a message that may run is left alone.
CREATE FUNCTION semel._take_one(p semel._policy, c semel.inbox, lease bigint, deciding boolean, OUT r semel.inbox,
                                OUT ran boolean, OUT changed boolean)
LANGUAGE plpgsql AS $$
DECLARE
    k semel._key;
    v semel._verdict;
    was semel.inbox;
    nothing semel._message;
    intent text COLLATE "C";
    now timestamptz := semel._now();
BEGIN
    ran := false;
    changed := false;
    IF NOT semel._try_lock(c.consumer, c.source, c.message_id) THEN
        RETURN;
    ELSIF p.ord <> 'none' AND c.order_key IS NOT NULL THEN
        k := semel._key(p, c.order_key, false);
        IF k.order_key IS NULL THEN
            RETURN;
        END IF;
    END IF;
    was := semel._locked(c.stream, c.key, true);
    IF was.arrival IS NULL OR (was.due_at <= now) IS NOT TRUE OR semel._damaged(was) THEN
        RETURN;
    END IF;
    SELECT CASE WHEN bool_or(i.said = 'done') THEN 'done' WHEN bool_or(i.said = 'busy') THEN 'busy' ELSE 'free' END
    INTO intent
    FROM (SELECT semel._intent(p, w.business_key, w.source, w.message_id, now) AS said FROM semel.business_want AS w
          WHERE w.consumer = was.consumer AND w.source = was.source AND w.message_id = was.message_id) AS i;
    v := semel._verdict_row(p, k, was, intent, now);
    ran := v.act = 'run' AND was.payload IS NOT NULL AND NOT deciding;
    IF ran THEN
        ran := semel._take_wanted(p, was, now);
    END IF;
    changed := ran OR (v.act <> 'run' AND v.becomes IS NOT NULL);
    IF ran THEN
        r := semel._claimed(p, was, lease, now);
    ELSIF changed THEN
        r := semel._moved(was, v.becomes, now);
        r.due_at := v.due_at;
        r.error_class := v.class;
        r.error_text := semel._verdict_text(v);
    END IF;
    IF changed AND semel._touches_business(p, was, r) AND NOT semel._hold_business(was, false) THEN
        changed := false;
    END IF;
    IF changed THEN
        r := semel._write(p, k, was, r, nothing, false, false);
    END IF;
END $$;

-- Judges rows of one consumer that are due, one after the other; returns those that it claimed.
CREATE FUNCTION semel._take(p semel._policy, most integer, lease bigint)
RETURNS SETOF semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := semel._now();
    c semel.inbox;
    one record;
    keys text[] COLLATE "C" := '{}';
    n integer := 0;
BEGIN
    FOR c IN SELECT i.* FROM semel.inbox AS i
             WHERE i.open_for = p.consumer AND i.due_at IS NOT NULL AND i.due_at <= until AND i.payload IS NOT NULL
             ORDER BY i.due_at, i.arrival LOOP
        IF p.ord <> 'none' AND c.order_key IS NOT NULL THEN
            CONTINUE WHEN c.order_key = ANY (keys);
            keys := keys || c.order_key;
            c := semel._due_of_key(p, c, until);
        END IF;
        one := semel._take_one(p, c, lease, false);
        IF one.ran THEN
            n := n + 1;
            RETURN NEXT one.r;
            EXIT WHEN n = most;
        END IF;
    END LOOP;
END $$;

-- What is wrong with the arguments of inbox_take, else NULL.
CREATE FUNCTION semel._check_take(consumer text, max integer, lease interval) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_lease('inbox_take', lease);
    PERFORM semel._check_given('inbox_take', 'consumer', consumer IS NOT NULL);
    PERFORM semel._check_text('inbox_take', 'consumer', consumer, 1);
    PERFORM semel._check_max('inbox_take', max, 1000);
    PERFORM semel._check_access('inbox_take', consumer);
    PERFORM semel._policy(consumer);
    RETURN NULL;
EXCEPTION WHEN invalid_parameter_value OR insufficient_privilege THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END $$;

CREATE FUNCTION semel.inbox_take(consumer text, max integer = 1, lease interval = NULL)
RETURNS TABLE (token bigint, message_id text, source text, type text, payload jsonb, raw bytea, headers jsonb,
               order_key text, version bigint, attempt integer, lease_until timestamptz, traceparent text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    refusal text := semel._check_take(consumer, max, lease);
    p semel._policy;
    m semel._message;
    r semel.inbox;
BEGIN
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = left(refusal, 5), MESSAGE = substr(refusal, 7);
    END IF;
    p := semel._policy(consumer);
    FOR r IN SELECT * FROM semel._take(p, max, coalesce(semel._check_lease('inbox_take', lease), p.lease)) LOOP
        m.source := r.source;
        m.message_id := r.message_id;
        PERFORM semel._hold(r.lease_token, 'claimed', p, m, r.attempts);
        RETURN QUERY SELECT r.lease_token, r.message_id, r.source, r.type, semel._payload_json(r.payload), r.payload,
                            semel._jsonb(r.headers), r.order_key, r.version, r.attempts, r.lease_until, r.traceparent;
    END LOOP;
END $$;

-- NULL: the bytes are no JSON.
CREATE FUNCTION semel._payload_json(bytes bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN semel._jsonb(convert_from(bytes, 'UTF8'));
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;

-- ---- housekeeping -------------------------------------------------------------------------------------------------
-- Any number of sessions tick at once, each in a transaction that may stay open: so a tick waits for no lock. Rows,
-- order keys and watermarks that another session has are left for the next time (SKIP LOCKED); only the purge of a
-- consumer, and the place of its sweep, belong to one session at a time, by a try-lock.

-- Ends attempts whose lease has expired; returns how many.
CREATE FUNCTION semel._recover(p semel._policy, most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    c semel.inbox;
    r semel.inbox;
    n bigint := 0;
BEGIN
    FOR c IN SELECT i.* FROM semel.inbox AS i
             WHERE i.open_for = p.consumer AND i.status = 'processing' AND i.lease_until < semel._now()
             ORDER BY i.lease_until, i.arrival LOOP
        EXIT WHEN n >= most;
        r := semel._end(p, c, 'recovered', NULL, NULL, 'skip');
        n := n + CASE WHEN r.arrival IS NOT NULL THEN 1 ELSE 0 END;
    END LOOP;
    RETURN n;
END $$;

-- Ends messages that waited for a gap until its time-out and will not run, and those whose business key is done;
-- returns how many.
CREATE FUNCTION semel._gaps(p semel._policy, most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := semel._now();
    c semel.inbox;
    one record;
    keys text[] COLLATE "C" := '{}';
    n bigint := 0;
BEGIN
    FOR c IN SELECT i.* FROM semel.inbox AS i
             WHERE i.open_for = p.consumer AND i.due_at IS NOT NULL AND i.due_at <= until AND i.status = 'waiting'
               AND i.error_class IN ('gap', 'business_duplicate')
             ORDER BY i.order_key, i.version, i.arrival LIMIT most LOOP
        IF c.error_class = 'gap' THEN
            CONTINUE WHEN c.order_key = ANY (keys);
            keys := keys || c.order_key;
        END IF;
        one := semel._take_one(p, c, p.lease, true);
        n := n + CASE WHEN one.changed THEN 1 ELSE 0 END;
    END LOOP;
    RETURN n;
END $$;

-- A place in the keys of a consumer at which `what` (sweep, keys) goes on, and whether this session may move it: until
-- its transaction ends, nobody else does.
CREATE FUNCTION semel._place_of(p semel._policy, of_what text, OUT at text, OUT mine boolean) LANGUAGE plpgsql AS $$
BEGIN
    mine := pg_try_advisory_xact_lock(hashtextextended(of_what, hashtextextended(p.consumer, 1936026991)));
    SELECT l.place INTO at FROM semel.place AS l WHERE l.consumer = p.consumer AND l.what = of_what COLLATE "C";
    at := coalesce(at, '');
END $$;

CREATE FUNCTION semel._place_move(p semel._policy, of_what text, at text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO semel.place AS l (consumer, what, place) VALUES (p.consumer, of_what, at)
    ON CONFLICT (consumer, what) DO UPDATE SET place = excluded.place WHERE l.place <> excluded.place
$$;

-- Makes rows due, by their places, which are locked; returns how many.
CREATE FUNCTION semel._wake(places tid[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := semel._now();
BEGIN
    UPDATE semel.record AS i
    SET due_at = now, error_class = 'blocked', updated_at = semel._touched(coalesce(i.updated_at, i.received_at), now)
    WHERE i.ctid = ANY (places);
    RETURN cardinality(places);
END $$;

-- Wakes the first message of a key if it waits without a due time, for whatever reason; a message behind another one
-- has to wait. Where the consumer keeps no order, each message is a first one.
CREATE FUNCTION semel._wake_head(p semel._policy, wanted text, most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    k semel._key;
BEGIN
    IF p.ord <> 'none' AND NOT EXISTS (SELECT FROM semel._first(p, wanted) AS i
                                       WHERE i.status = 'waiting' AND i.due_at IS NULL) THEN
        RETURN 0;
    ELSIF p.ord <> 'none' THEN
        k := semel._key(p, wanted, false);
        IF k.order_key IS NULL THEN
            RETURN 0;
        END IF;
    END IF;
    RETURN semel._wake(ARRAY(
        SELECT w.ctid FROM semel.record AS w
        WHERE w.open_for = p.consumer AND w.order_key = wanted COLLATE "C"
          AND coalesce(w.status, 'completed') = 'waiting' AND w.due_at IS NULL AND w.payload IS NOT NULL
          AND w.error_class IS DISTINCT FROM 'business_duplicate'
          AND (p.ord = 'none' OR w.arrival = k.head_arrival)
        LIMIT most FOR UPDATE SKIP LOCKED));
END $$;

-- Sweeps a hundred keys, from where the last sweep stopped, beginning anew after the last key; returns how many rows it
-- woke.
CREATE FUNCTION semel._sweep(p semel._policy, most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    start record;
    at text COLLATE "C";
    next text COLLATE "C";
    around boolean := false;
    n bigint := semel._wake(ARRAY(
        SELECT w.ctid FROM semel.record AS w
        WHERE w.open_for = p.consumer AND w.order_key IS NULL AND coalesce(w.status, 'completed') = 'waiting'
          AND w.due_at IS NULL
          AND w.payload IS NOT NULL AND w.error_class IS DISTINCT FROM 'business_duplicate'
        LIMIT least(most, 100) FOR UPDATE SKIP LOCKED));
BEGIN
    SELECT * INTO start FROM semel._place_of(p, 'sweep');
    at := start.at;
    FOR i IN 1..100 LOOP
        SELECT min(w.order_key) INTO next FROM semel.record AS w
        WHERE w.open_for = p.consumer AND coalesce(w.status, 'completed') = 'waiting' AND w.due_at IS NULL
          AND w.order_key > at;
        IF next IS NULL AND NOT around THEN
            around := true;
            SELECT min(w.order_key) INTO next FROM semel.record AS w
            WHERE w.open_for = p.consumer AND coalesce(w.status, 'completed') = 'waiting' AND w.due_at IS NULL
          AND w.order_key IS NOT NULL;
        END IF;
        EXIT WHEN n >= most OR next IS NULL OR (around AND next > start.at);
        at := next;
        n := n + semel._wake_head(p, at, most - n);
    END LOOP;
    IF start.mine AND at <> start.at THEN
        PERFORM semel._place_move(p, 'sweep', at);
    END IF;
    RETURN n;
END $$;

-- Deletes rows, by their places, which are locked, and their attempts; returns how many rows.
CREATE FUNCTION semel._delete(p semel._policy, of_source text, places tid[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    gone text[] COLLATE "C";
BEGIN
    gone := ARRAY(SELECT i.message_id FROM semel.record AS r
                  JOIN semel.inbox AS i ON i.key = r.key AND i.stream = r.stream WHERE r.ctid = ANY (places));
    DELETE FROM semel.record AS i WHERE i.ctid = ANY (places);
    DELETE FROM semel.attempt AS a
    WHERE a.consumer = p.consumer AND a.source = of_source COLLATE "C" AND a.message_id = ANY (gone);
    RETURN cardinality(gone);
END $$;

-- Locks the watermark of a source, or makes one that stops no message; false: another session has it now. A session
-- that makes the row holds the lock of its name, which deliveries share, so that no insert here waits for another one.
CREATE FUNCTION semel._watermark_held(p semel._policy, of_source text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM semel.watermark AS w WHERE w.consumer = p.consumer AND w.source = of_source COLLATE "C"
    FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        RETURN true;
    ELSIF NOT pg_try_advisory_xact_lock(semel._watermark_lock(p.consumer, of_source)) THEN
        RETURN false;
    END IF;
    INSERT INTO semel.watermark VALUES (p.consumer, of_source, '-infinity', semel._now()) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Deletes final rows whose end and whose message are older than the cut. The watermark rises to the youngest row that
-- is deleted; if there is none, nothing is written.
CREATE FUNCTION semel._purge_source(p semel._policy, of_source text, cut timestamptz, most bigint, looks bigint,
                                    OUT gone bigint, OUT looked bigint)
LANGUAGE plpgsql AS $$
DECLARE
    of_stream integer;
    places tid[];
    latest timestamptz;
    timed boolean;
BEGIN
    gone := 0;
    SELECT s.stream INTO of_stream FROM semel.stream AS s
    WHERE s.consumer = p.consumer AND s.source = of_source COLLATE "C";
    SELECT array_agg(s.ctid) FILTER (WHERE s.made IS NULL OR s.made < cut), count(*), bool_or(s.made < cut)
    INTO places, looked, timed
    FROM (SELECT i.ctid, semel._time_made(i.key, i.message_time) AS made FROM semel.record AS i
          WHERE i.stream = of_stream AND coalesce(i.processed_at, i.updated_at, i.received_at) < cut
            AND i.open_for IS NULL
            AND coalesce(i.processed_at, i.updated_at, i.received_at)::timestamptz(0) <= cut::timestamptz(0)
          ORDER BY coalesce(i.processed_at, i.updated_at, i.received_at)::timestamptz(0) LIMIT looks) AS s;
    IF places IS NULL THEN
        RETURN;
    ELSIF timed AND NOT semel._watermark_held(p, of_source) THEN
        RETURN;
    END IF;
    SELECT array_agg(s.ctid), max(s.made) INTO places, latest
    FROM (SELECT i.ctid, semel._time_made(i.key, i.message_time) AS made FROM semel.record AS i
          WHERE i.ctid = ANY (places[1:most]) AND i.stream = of_stream
            AND coalesce(i.processed_at, i.updated_at, i.received_at) < cut AND i.open_for IS NULL
            AND coalesce(semel._time_made(i.key, i.message_time) < cut, true)
          FOR UPDATE SKIP LOCKED) AS s;
    UPDATE semel.watermark AS w SET watermark = latest + interval '1 microsecond', updated_at = semel._now()
    WHERE w.consumer = p.consumer AND w.source = of_source COLLATE "C" AND w.watermark <= latest;
    gone := semel._delete(p, of_source, places);
END $$;

-- Deletes order keys that carry no fact: they have no last version and no unfinished message, and have not changed for
-- as long as messages are remembered. A last version is kept for ever: it tells old from new.
CREATE FUNCTION semel._purge_keys(p semel._policy, cut timestamptz, most bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    start record;
    seen text[] COLLATE "C";
BEGIN
    SELECT * INTO start FROM semel._place_of(p, 'keys');
    seen := ARRAY(SELECT o.order_key FROM semel.order_key AS o WHERE o.consumer = p.consumer AND o.order_key > start.at
                  ORDER BY o.order_key LIMIT most);
    -- A change of the key's unfinished set moves updated_at, which the lock looks at again.
    DELETE FROM semel.order_key AS o WHERE o.ctid = ANY (ARRAY(
        SELECT k.ctid FROM semel.order_key AS k
        WHERE k.consumer = p.consumer AND k.order_key = ANY (seen) AND k.last_version IS NULL AND k.skipped IS NULL
          AND k.updated_at < cut
          AND NOT EXISTS (SELECT FROM semel.inbox AS i
                          WHERE i.open_for = p.consumer AND i.order_key = k.order_key
                            AND i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead'))
        FOR UPDATE SKIP LOCKED));
    IF start.mine THEN
        PERFORM semel._place_move(p, 'keys', CASE WHEN cardinality(seen) = most THEN seen[most] ELSE '' END);
    END IF;
END $$;

CREATE FUNCTION semel._purge(p semel._policy, most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    cut timestamptz := to_timestamp(floor(extract(epoch FROM semel._later(semel._now(), -p.retention)) / 60) * 60);
    sources text[] COLLATE "C" := ARRAY(SELECT s FROM semel._sources(p) AS s);
    first integer := floor(random() * cardinality(sources))::integer;
    looks bigint := 10 * most;
    one record;
    n bigint := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('purge', hashtextextended(p.consumer, 1936026991))) THEN
        RETURN 0;
    END IF;
    FOR i IN 1..cardinality(sources) LOOP
        EXIT WHEN n >= most OR looks < 1;
        SELECT * INTO one FROM semel._purge_source(p, sources[(first + i - 1) % cardinality(sources) + 1], cut,
                                                   most - n, looks);
        n := n + one.gone;
        looks := looks - one.looked;
    END LOOP;
    DELETE FROM semel.business_key AS b
    WHERE b.consumer = p.consumer
      AND b.business_key IN (SELECT e.business_key FROM semel.business_key AS e
                             WHERE e.consumer = p.consumer AND e.expires_at <= semel._now()
                             ORDER BY e.expires_at LIMIT most FOR UPDATE SKIP LOCKED);
    DELETE FROM semel.conflict AS c WHERE c.ctid = ANY (ARRAY(
        SELECT o.ctid FROM semel.conflict AS o WHERE o.consumer = p.consumer AND o.last_at < cut
        ORDER BY o.last_at LIMIT most FOR UPDATE SKIP LOCKED));
    PERFORM semel._purge_keys(p, cut, 10 * most);
    RETURN n;
END $$;

-- The sources of a consumer, and the consumers that have had a message or have a setting.
CREATE FUNCTION semel._sources(p semel._policy) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT s.source FROM semel.stream AS s WHERE s.consumer = p.consumer ORDER BY s.source
$$;

CREATE FUNCTION semel._consumers() RETURNS SETOF text LANGUAGE sql AS $$
    SELECT s.consumer FROM semel.stream AS s UNION SELECT c.consumer FROM semel.consumer AS c ORDER BY 1
$$;

-- The settings of all consumers, beginning with a random one, so that a busy consumer does not keep the others from
-- their turn; bad: what is wrong with the first whose settings cannot be read.
CREATE FUNCTION semel._policies(OUT all_of semel._policy[], OUT bad text) LANGUAGE plpgsql AS $$
DECLARE
    name text;
    n integer;
BEGIN
    all_of := '{}';
    FOR name IN SELECT c.name FROM semel._consumers() AS c (name) LOOP
        BEGIN
            all_of := all_of || semel._policy(name);
        EXCEPTION WHEN invalid_parameter_value THEN         -- raised at the end, after the others had their turn
            bad := coalesce(bad, SQLERRM);
        END;
    END LOOP;
    n := floor(random() * cardinality(all_of))::integer;
    all_of := all_of[n + 1:] || all_of[:n];
END $$;

CREATE FUNCTION semel.tick(max integer = 1000) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    p semel._policy;
    policies record;
    restarted text;
    promoted text;
    keys bigint;
    n bigint := 0;
BEGIN
    PERFORM semel._check_max('tick', max, 1000000);
    INSERT INTO semel.restart (note) VALUES ('') RETURNING note INTO restarted;
    promoted := semel._timeline();                          -- after it: the timeline has a sequence, too
    IF restarted IS NOT NULL THEN
        RAISE WARNING USING MESSAGE = 'tick: ' || restarted;
    END IF;
    IF promoted IS NOT NULL THEN
        RAISE WARNING USING MESSAGE = 'tick: ' || promoted;
    END IF;
    SELECT * INTO policies FROM semel._policies();
    FOREACH p IN ARRAY policies.all_of LOOP                 -- what holds up messages comes first, for all of them
        n := n + semel._recover(p, max - n);
    END LOOP;
    keys := semel._idempotency_tick(max);                   -- 020; they have a bound of their own
    FOREACH p IN ARRAY policies.all_of LOOP
        n := n + semel._gaps(p, max - n);
        n := n + semel._sweep(p, max - n);
    END LOOP;
    FOREACH p IN ARRAY policies.all_of LOOP
        EXIT WHEN n >= max;
        n := n + semel._purge(p, max - n);
    END LOOP;
    DELETE FROM semel.held AS h
    WHERE h.token IN (SELECT o.token FROM semel.held AS o ORDER BY o.token LIMIT 100 FOR UPDATE SKIP LOCKED)
      AND h.at < semel._now() - interval '7 days'
      AND NOT EXISTS (SELECT FROM semel.inbox AS i WHERE i.lease_token = h.token);
    IF policies.bad IS NOT NULL THEN
        RAISE WARNING USING MESSAGE = 'tick: ' || policies.bad;
    END IF;
    RETURN n + keys;
END $$;

-- ---- the outbox ---------------------------------------------------------------------------------------------------

-- A UUID of version 7.
CREATE FUNCTION semel._uuid7() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
            || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid
$$;

-- Refuses a transaction that takes too many locks: each is a place in the lock table of the whole cluster (P83). A
-- setting of the transaction counts its calls; after 1000 calls the locks that it really holds are counted.
CREATE FUNCTION semel._outbox_lock_room() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    n integer := coalesce(nullif(current_setting('semel.outbox_locks', true), ''), '0')::integer;
BEGIN
    IF n >= 1000 THEN
        SELECT count(*) INTO n FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid();
        IF n >= 1000 THEN
            PERFORM semel._refuse('outbox_put: lock => true for more than 1000 aggregates in one transaction; commit '
                                  'more often, or lock the rows of the aggregates yourself');
        END IF;
    END IF;
    PERFORM set_config('semel.outbox_locks', (n + 1)::text, true);
END $$;

CREATE FUNCTION semel.outbox_put(
    aggregatetype text, aggregateid text, type text, payload jsonb = NULL, raw bytea = NULL, headers jsonb = '{}',
    destination text = NULL, id uuid = NULL, lock boolean = false)
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    made uuid := coalesce(id, semel._uuid7());
BEGIN
    PERFORM semel._check_given('outbox_put', 'aggregatetype', aggregatetype IS NOT NULL);
    PERFORM semel._check_given('outbox_put', 'aggregateid', aggregateid IS NOT NULL);
    PERFORM semel._check_given('outbox_put', 'type', type IS NOT NULL);
    PERFORM semel._check_text('outbox_put', 'aggregatetype', aggregatetype, 1);
    PERFORM semel._check_text('outbox_put', 'aggregateid', aggregateid, 1);
    PERFORM semel._check_text('outbox_put', 'type', type, 1);
    PERFORM semel._check_text('outbox_put', 'destination', destination, 1);
    IF payload IS NOT NULL AND raw IS NOT NULL THEN
        PERFORM semel._refuse('outbox_put: payload and raw are both given; give one of them');
    ELSIF jsonb_typeof(headers) <> 'object' OR octet_length(headers::text) > 1048576 THEN
        PERFORM semel._refuse('outbox_put: headers must be a JSON object of at most 1048576 bytes');
    ELSIF octet_length(raw) > 67108864 THEN
        PERFORM semel._refuse(format('outbox_put: raw has %s bytes; at most 67108864 are allowed', octet_length(raw)));
    ELSIF EXISTS (SELECT FROM jsonb_object_keys(headers) AS k
                  WHERE lower(k) IN ('id', 'traceparent') OR left(lower(k), 3) IN ('ce_', 'ce-')
                  OR left(lower(k), 8) = 'webhook-') THEN
        PERFORM semel._refuse('outbox_put: headers named id, traceparent, ce_*, ce-* and webhook-* are written by '
                              'Semel; leave them out');
    END IF;
    IF lock THEN                                            -- before seq is drawn: then it is the order of commits
        PERFORM semel._outbox_lock_room();
        PERFORM pg_advisory_xact_lock(hashtextextended(aggregateid COLLATE "C",
                                                       hashtextextended(aggregatetype COLLATE "C", 1936026990)));
    END IF;
    INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, headers, destination, created_at)
    VALUES (made, outbox_put.aggregatetype, outbox_put.aggregateid, outbox_put.type,
            coalesce(raw, convert_to(outbox_put.payload::text, 'UTF8')), coalesce(outbox_put.headers, '{}')::text,
            outbox_put.destination, semel._now())
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'unique_violation',
            MESSAGE = format('outbox_put: an event with the id %s is there already', made);
    END IF;
    RETURN made;
END $$;

-- ---- keys and settings --------------------------------------------------------------------------------------------

-- SHA-256 over the parts, each after its length: the same for ever and on every machine.
CREATE FUNCTION semel.step_key(consumer text, message_id text, step text, source text = '') RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    part text;
    bytes bytea := '';
BEGIN
    PERFORM semel._check_given('step_key', 'consumer', consumer IS NOT NULL);
    PERFORM semel._check_given('step_key', 'message_id', message_id IS NOT NULL);
    PERFORM semel._check_given('step_key', 'step', step IS NOT NULL);
    PERFORM semel._check_text('step_key', 'consumer', consumer, 1);
    PERFORM semel._check_text('step_key', 'message_id', message_id, 1);
    PERFORM semel._check_text('step_key', 'step', step, 1);
    PERFORM semel._check_text('step_key', 'source', source, 0);
    FOREACH part IN ARRAY ARRAY[consumer, coalesce(source, ''), message_id, step] LOOP
        bytes := bytes || int8send(octet_length(convert_to(part, 'UTF8'))::bigint) || convert_to(part, 'UTF8');
    END LOOP;
    RETURN encode(sha256(bytes), 'hex');
END $$;

CREATE FUNCTION semel.step_key(consumer text, message_id uuid, step text, source text = '') RETURNS text
LANGUAGE sql STABLE AS $$ SELECT semel.step_key(consumer, message_id::text, step, source) $$;

-- All settings of the consumer, defaults included.
CREATE FUNCTION semel.consumer(consumer text) RETURNS jsonb LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    PERFORM semel._check_given('consumer', 'consumer', consumer IS NOT NULL);
    PERFORM semel._check_text('consumer', 'consumer', consumer, 1);
    PERFORM semel._check_access('consumer', consumer);
    RETURN semel._policy_json(semel._policy(consumer));
END $$;

-- ---- settings under stored rows -----------------------------------------------------------------------------------

-- How many rows a change would reinterpret; counting stops at 10,001. By an index, never by all rows.
CREATE FUNCTION semel._affected(who text, what text, below bigint = NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT integer := 10001;
    n bigint;
BEGIN
    IF what = 'ordered' THEN
        SELECT count(*) INTO n FROM (
            SELECT FROM semel.inbox AS i WHERE i.open_for = who COLLATE "C" AND i.order_key IS NOT NULL
                   AND i.status IN ('processing', 'failed', 'waiting') LIMIT most) AS r;
    ELSIF what = 'versioned' THEN
        SELECT count(*) INTO n FROM (
            SELECT FROM semel.inbox AS i WHERE i.open_for = who COLLATE "C" AND i.order_key IS NOT NULL
                   AND i.version IS NOT NULL AND i.status IN ('unknown', 'dead') LIMIT most) AS r;
    ELSIF what = 'below' THEN
        SELECT count(*) INTO n FROM (
            SELECT FROM semel.inbox AS i WHERE i.open_for = who COLLATE "C" AND i.order_key IS NOT NULL
                   AND i.status IN ('failed', 'waiting') AND i.version < below
                   AND NOT EXISTS (SELECT FROM semel.order_key AS k
                                   WHERE k.consumer = i.open_for AND k.order_key = i.order_key
                                         AND k.last_version IS NOT NULL) LIMIT most) AS r;
    ELSIF what = 'doubted' THEN
        SELECT count(*) INTO n FROM (
            SELECT FROM semel.inbox AS i
            WHERE i.open_for = who COLLATE "C" AND i.status IN ('failed', 'waiting') AND i.attempts > 0
                   AND (i.status = 'waiting' OR i.attempts > 1
                        OR i.error_class IN ('unknown', 'lease_expired', 'released')) LIMIT most) AS r;
    ELSIF what IN ('sourced', 'sourceless') THEN
        SELECT count(*) INTO n FROM (
            SELECT FROM semel.stream AS s CROSS JOIN LATERAL (
                (SELECT FROM semel.record AS r WHERE r.stream = s.stream AND r.open_for IS NULL
                 ORDER BY coalesce(r.processed_at, r.updated_at, r.received_at)::timestamptz(0) LIMIT most)
                UNION ALL
                (SELECT FROM semel.record AS r WHERE r.stream = s.stream AND r.open_for = s.consumer
                    AND coalesce(r.status, 'completed')
                        IN ('processing', 'failed', 'waiting', 'unknown', 'dead', 'quarantined')
                 ORDER BY r.arrival LIMIT most)) AS i
            WHERE s.consumer = who COLLATE "C" AND (s.source = '') = (what = 'sourceless') LIMIT most) AS r;
    ELSIF what = 'keys' THEN
        SELECT count(*) INTO n FROM (
            SELECT FROM semel.order_key AS k WHERE k.consumer = who COLLATE "C" LIMIT most) AS r;
    ELSE
        SELECT count(*) INTO n FROM (
            SELECT FROM semel.watermark AS w WHERE w.consumer = who COLLATE "C" LIMIT most) AS r;
    END IF;
    RETURN n;
END $$;

CREATE FUNCTION semel._settings_refuse(text text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = text,
        HINT = 'To do it all the same: semel consumer set CONSUMER JSON --force --reason TEXT';
END $$;

-- A change from f to t that would make stored rows mean something else is refused with their number. The same table as
-- in src/core/consumer.c, but for the lines about routes. Returns 0; if forced, the number of rows of the first line
-- that has any.
CREATE FUNCTION semel._settings_judge(f semel._policy, t semel._policy, force boolean) RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    elsewhere CONSTANT text := 'use another consumer, or stop its processes and force it';
    rule record;
    n bigint;
BEGIN
    FOR rule IN
        SELECT * FROM (VALUES
            ('order', f.ord::text, t.ord::text,
             (f.ord <> 'none' AND t.ord = 'none') OR (f.ord = 'version' AND t.ord = 'arrival'), 'ordered',
             'messages with an order key that wait, failed or run', 'let them end first'),
            ('order', f.ord::text, t.ord::text, f.ord = 'version' AND t.ord <> 'version', 'versioned',
             'messages with a version that are dead or of unknown outcome', 'resolve, retry or discard them first'),
            ('first_version', coalesce(f.first_version::text, 'any'), coalesce(t.first_version::text, 'any'),
             t.ord = 'version' AND t.first_version > coalesce(f.first_version, -1), 'below',
             'messages below it that wait or failed, of keys without a last version', 'let them end first'),
            ('effect', f.effect, t.effect, f.effect = 'keyed' AND t.effect <> 'keyed', 'doubted',
             'messages that may have had their effect and are to be repeated', 'let them end first'),
            ('one_source', 'false', 'true', t.one_source AND NOT f.one_source, 'sourced',
             'records with a source, which would be forgotten', elsewhere),
            ('one_source', 'true', 'false', f.one_source AND NOT t.one_source, 'sourceless',
             'records without a source, which would be forgotten', elsewhere),
            ('timed_ids', f.timed_ids, t.timed_ids, f.timed_ids <> t.timed_ids AND f.timed_ids <> 'false'
             AND t.timed_ids IN ('uuidv7', 'false'), 'watermarks',
             'sources of which records were purged, whose copies only the time in their ids tells from new messages',
             'leave it as it is')
        ) AS r (member, was, becomes, applies, affected, which, todo) WHERE r.applies LOOP
        n := semel._affected(t.consumer, rule.affected, t.first_version);
        IF n > 0 AND force THEN
            RETURN n;
        ELSIF n > 0 THEN
            PERFORM semel._settings_refuse(format('consumer "%s": %s cannot go from %s to %s; %s: %s; %s',
                semel._show(t.consumer, 40), rule.member, rule.was, rule.becomes, rule.which,
                CASE WHEN n > 10000 THEN 'more than 10000' ELSE n::text END, rule.todo));
        END IF;
    END LOOP;
    RETURN 0;
END $$;

-- The stored settings with the change applied: null removes a setting.
CREATE FUNCTION semel._settings_merge(who text, stored jsonb, change jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    wrong text;
    damaged jsonb;
BEGIN
    IF jsonb_typeof(change) <> 'object' THEN
        PERFORM semel._policy_read('settings', who, change);
    END IF;
    SELECT jsonb_build_object(s.key, s.value) INTO damaged
    FROM jsonb_each(stored) AS s LEFT JOIN semel._members() AS m ON m.name = s.key
    WHERE NOT change ? s.key
          AND semel._member_value(m.kind, m.words, m.low, m.high, m.absent, s.value) IS NULL LIMIT 1;
    IF FOUND THEN                                           -- a change that names it fixes it; no other one removes it
        PERFORM semel._policy_read('stored settings', who, damaged);
    END IF;
    SELECT c.key INTO wrong FROM jsonb_each(change) AS c
    WHERE jsonb_typeof(c.value) = 'null' AND NOT stored ? c.key
          AND NOT EXISTS (SELECT FROM semel._members() AS m WHERE m.name = c.key) LIMIT 1;
    IF FOUND THEN
        PERFORM semel._bad_settings('settings', who, format(
            'there is no setting "%s"; docs/settings-consumer.md lists them', semel._show(wrong, 40)));
    END IF;
    RETURN (SELECT coalesce(jsonb_object_agg(s.key, s.value), '{}') FROM jsonb_each(stored || change) AS s
            WHERE jsonb_typeof(s.value) <> 'null');
END $$;

-- The change that leads from the old settings to the new ones; NULL: there is none.
CREATE FUNCTION semel._settings_diff(was jsonb, becomes jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_object_agg(k.key, coalesce(becomes -> k.key, 'null'))
    FROM jsonb_object_keys(was || becomes) AS k (key) LEFT JOIN semel._members() AS m ON m.name = k.key
    WHERE was ? k.key <> becomes ? k.key
          OR semel._member_value(m.kind, m.words, m.low, m.high, m.absent, was -> k.key)
             IS DISTINCT FROM semel._member_value(m.kind, m.words, m.low, m.high, m.absent, becomes -> k.key)
$$;

-- The settings under which rows were stored, as far as they can be read.
CREATE FUNCTION semel._policy_known(who text, settings jsonb) RETURNS semel._policy LANGUAGE plpgsql AS $$
DECLARE
    p semel._policy;
BEGIN
    p := semel._policy_read('stored settings', who, (
        SELECT coalesce(jsonb_object_agg(s.key, s.value), '{}')
        FROM jsonb_each(settings) AS s JOIN semel._members() AS m ON m.name = s.key
        WHERE m.name IN ('effect', 'order', 'first_version', 'one_source', 'timed_ids')
              AND semel._member_value(m.kind, m.words, m.low, m.high, m.absent, s.value) IS NOT NULL));
    RETURN p;
END $$;

-- Under the lock of the consumer's row: judges the change, makes it, and writes its line of the audit. force: makes it
-- although stored rows or a route's file speak against it; from then on no file sets the consumer. whole: `change` has
-- all settings that are to be stored, not only those that change.
CREATE FUNCTION semel._settings_change(who text, change jsonb, whole boolean = false, force boolean = false,
                                       reason text = '')
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    stored semel.consumer;
    becomes jsonb;
    diff jsonb;
    p semel._policy;
    was semel._policy;
    past bigint;
BEGIN
    INSERT INTO semel.consumer AS c (consumer, settings, updated_at) VALUES (who, '{}', semel._now())
    ON CONFLICT (consumer) DO NOTHING;
    SELECT c.* INTO stored FROM semel.consumer AS c WHERE c.consumer = who COLLATE "C" FOR UPDATE;
    becomes := CASE WHEN whole THEN change ELSE semel._settings_merge(who, stored.settings, change) END;
    p := semel._policy_read('settings', who, becomes);
    diff := semel._settings_diff(stored.settings, becomes);
    IF diff IS NULL AND NOT (force AND stored.set_by_file IS NOT NULL) THEN
        RETURN;
    ELSIF stored.set_by_file IS NOT NULL AND NOT force THEN
        PERFORM semel._settings_refuse(format('consumer "%s" is set by the file %s on %s: change it there',
            semel._show(who, 40), semel._show(stored.set_by_file, 96), semel._show(stored.set_by_host, 64)));
    END IF;
    was := semel._policy_known(who, stored.settings);
    past := semel._settings_judge(was, p, force);
    IF p.ord = 'version' AND p.first_version IS NOT NULL AND (was.ord <> 'version' OR was.first_version IS DISTINCT FROM
       p.first_version) AND semel._affected(who, 'keys') > 0 THEN
        RAISE NOTICE 'order keys exist already: is first_version "any" right for them?';
    END IF;
    UPDATE semel.consumer AS c
    SET settings = becomes, updated_at = semel._now(), set_by_host = NULL, set_by_file = NULL, set_by_at = NULL
    WHERE c.consumer = who COLLATE "C";
    INSERT INTO semel.audit (at, who, what, reason, consumer)
    VALUES (semel._now(), session_user, format('set %s%s', coalesce(diff, '{}'), CASE WHEN past > 0
            THEN ', forced past ' || past WHEN force THEN ', forced' ELSE '' END), reason, _settings_change.who);
END $$;

-- The same, after it has changed the given settings: null removes one, {} changes nothing. It refuses a change that
-- stored rows or a route's file speak against. roles.sql does not grant this to applications.
CREATE FUNCTION semel.consumer(consumer text, settings jsonb) RETURNS jsonb LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    PERFORM semel._check_given('consumer', 'consumer', consumer.consumer IS NOT NULL);
    PERFORM semel._check_text('consumer', 'consumer', consumer.consumer, 1);
    IF consumer.settings IS NOT NULL THEN
        PERFORM semel._settings_change(consumer.consumer, consumer.settings);
    END IF;
    RETURN semel._policy_json(semel._policy(consumer.consumer));
END $$;

-- The same for `semel consumer set` by an operator. settings: all that are to be stored; NULL: those that are.
CREATE FUNCTION semel._operator_consumer(of_consumer text, settings jsonb, force boolean, reason text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    PERFORM semel._check_text('consumer', 'consumer', of_consumer, 1);
    IF octet_length(coalesce(reason, '')) NOT BETWEEN force::integer AND 1000 THEN
        PERFORM semel._refuse('a reason of 1 to 1000 bytes is required (goes to the audit log)');
    END IF;
    PERFORM semel._settings_change(of_consumer, coalesce(settings, '{}'), settings IS NOT NULL, force, reason);
END $$;

-- ---- what operators do --------------------------------------------------------------------------------------------

-- For the command line, under a role that only reads the tables (roles.sql): retry, discard, resolve, rewind. The
-- program judges, under the locks that it takes by these functions; they make only changes that a command may make, and
-- write the line of the audit. Its author is the role that logged in, whatever the program reports.
--
-- Invariants: no change without its line and its reason; an id never changes; a payload stays, or is removed whole.

CREATE FUNCTION semel._operator_reason(reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(coalesce(reason, '')) NOT BETWEEN 1 AND 1000 THEN
        PERFORM semel._refuse('a reason of 1 to 1000 bytes is required (goes to the audit log)');
    END IF;
END $$;

CREATE FUNCTION semel._operator_line(what text, reason text, of_consumer text, of_source text, id text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._operator_reason(reason);
    INSERT INTO semel.audit (at, who, what, reason, consumer, source, message_id)
    VALUES (semel._now(), session_user, what, reason, of_consumer, of_source, id);
END $$;

-- Locks order keys, in ascending order, and inserts those that are missing.
CREATE FUNCTION semel._operator_keys(of_consumer text, keys text[]) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    wanted text COLLATE "C";
BEGIN
    FOR wanted IN SELECT DISTINCT k.k COLLATE "C" FROM unnest(keys) AS k (k) ORDER BY 1 LOOP
        LOOP                                                -- again when it is purged between the two
            INSERT INTO semel.order_key (consumer, order_key) VALUES (of_consumer, wanted) ON CONFLICT DO NOTHING;
            PERFORM FROM semel.order_key AS o WHERE o.consumer = of_consumer COLLATE "C" AND o.order_key = wanted
            FOR UPDATE;
            EXIT WHEN FOUND;
        END LOOP;
    END LOOP;
END $$;

CREATE FUNCTION semel._operator_rows(of_consumer text, sources text[], ids text[]) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    FOR place IN 1..cardinality(ids) LOOP
        PERFORM FROM semel.stream AS s JOIN semel.record AS i ON i.stream = s.stream
        WHERE s.consumer = of_consumer COLLATE "C" AND s.source = sources[place] COLLATE "C"
          AND i.key = semel.message_key(ids[place]) FOR UPDATE OF i;
    END LOOP;
END $$;

-- Locks the business keys of messages; callers do so after order keys and before rows, as everywhere.
CREATE FUNCTION semel._operator_business(of_consumer text, sources text[], ids text[]) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    PERFORM FROM unnest(sources, ids) AS m (source, id)
    JOIN semel.business_key AS b ON b.consumer = of_consumer COLLATE "C" AND b.source = m.source COLLATE "C"
                                AND b.message_id = m.id COLLATE "C"
    ORDER BY b.business_key FOR UPDATE OF b;
END $$;

-- An operator resolves a message that never started: it takes the business keys that it wants, except those that others
-- hold. It does not wait for a transaction that is taking one.
CREATE FUNCTION semel._operator_takes(r semel.inbox, now timestamptz) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '20ms' AS $$
BEGIN
    INSERT INTO semel.business_key AS b (consumer, business_key, source, message_id, taken_at)
    SELECT w.consumer, w.business_key, w.source, w.message_id, now FROM semel.business_want AS w
    WHERE w.consumer = r.consumer AND w.source = r.source AND w.message_id = r.message_id
    ORDER BY w.business_key
    ON CONFLICT (consumer, business_key) DO UPDATE
    SET source = excluded.source, message_id = excluded.message_id, taken_at = excluded.taken_at, expires_at = NULL
    WHERE b.expires_at <= excluded.taken_at;
END $$;

-- May a command give the row this status? completed: resolve; rejected: discard; failed, waiting: retry.
CREATE FUNCTION semel._operator_may(r semel.inbox, becomes text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE becomes WHEN 'completed' THEN r.status IN ('dead', 'quarantined', 'unknown')
                        WHEN 'rejected' THEN r.status IN ('dead', 'quarantined', 'unknown', 'failed', 'waiting')
                        WHEN 'failed' THEN (r.status IN ('dead', 'quarantined', 'unknown', 'failed')
                                            OR (r.status = 'waiting' AND r.error_class = 'gap'))
                                           AND r.payload IS NOT NULL
                        WHEN 'waiting' THEN r.status = 'dead' AND r.error_class = 'gap' AND r.payload IS NOT NULL
                        ELSE false END
$$;

CREATE FUNCTION semel._operated(before semel.inbox, becomes text, said text, reason text, now timestamptz)
RETURNS semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    r semel.inbox := semel._moved(before, becomes, now);
BEGIN
    IF becomes = 'completed' THEN
        r.outcome := coalesce(said, before.outcome);
    ELSIF becomes = 'rejected' THEN
        r.error_class := 'discarded';
        r.error_text := semel._show(reason, 1000);
    ELSE
        r.error_class := CASE becomes WHEN 'failed' THEN before.error_class ELSE 'blocked' END;
        r.error_text := CASE becomes WHEN 'failed' THEN before.error_text
                                     ELSE 'an operator has its place in the order judged again' END;
        r.attempts_before := before.attempts;
        r.retries := before.retries + 1;
        r.alone := before.alone OR becomes = 'failed';
        r.due_at := now;
    END IF;
    RETURN r;
END $$;

-- Refuses what would break the order of the key, as src/core/command.c does: a discard that could not be remembered,
-- and a resolve while another message is at its effect and an earlier one is unfinished.
CREATE FUNCTION semel._operator_order(p semel._policy, k semel._key, r semel.inbox, becomes text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF becomes = 'rejected' AND semel._skipped_full(p, k, r.version) THEN
        PERFORM semel._refuse(format('1000 versions of the same key were discarded already while version %s is missing',
                                     semel._last_version(p, k) + 1));
    ELSIF becomes = 'completed' AND p.ord = 'version' AND k.open AND r.version IS NOT NULL AND r.status <> 'unknown'
          AND k.head_arrival <> r.arrival AND coalesce(k.head_version < r.version, true) THEN
        PERFORM semel._refuse(format('%s of the same key is stored and unfinished: end that one first',
                                     coalesce('version ' || k.head_version, 'a message without a version')));
    END IF;
END $$;

-- false: the row is not as it was judged.
CREATE FUNCTION semel._operate(of_consumer text, of_source text, id text, was text, becomes text, said text,
                               reason text)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    p semel._policy := semel._policy(of_consumer);
    k semel._key;
    before semel.inbox;
    r semel.inbox;
    nothing semel._message;
BEGIN
    SELECT i.* INTO r FROM semel.inbox AS i
    WHERE i.consumer = of_consumer COLLATE "C" AND i.source = of_source COLLATE "C" AND i.key = semel.message_key(id);
    IF p.ord <> 'none' AND r.order_key IS NOT NULL THEN
        k := semel._key(p, r.order_key, true);
    END IF;
    before := semel._locked(r.stream, r.key, false);
    IF before.status IS DISTINCT FROM was COLLATE "C" OR semel._damaged(before) THEN
        RETURN false;
    ELSIF semel._operator_may(before, becomes) IS NOT TRUE THEN
        PERFORM semel._refuse(format('a message that is %s does not become %s by a command', was, becomes));
    ELSIF octet_length(said) > 65536 THEN
        PERFORM semel._refuse('the outcome has more than 65536 bytes');
    END IF;
    PERFORM semel._operator_order(p, k, before, becomes);
    PERFORM semel._operator_line(CASE becomes WHEN 'completed' THEN 'resolve' WHEN 'rejected' THEN 'discard'
                                              ELSE 'retry' END, reason, of_consumer, of_source, id);
    IF becomes = 'completed' THEN
        PERFORM semel._operator_takes(before, semel._now());
    END IF;
    PERFORM semel._write(p, k, before, semel._operated(before, becomes, said, reason, semel._now()), nothing, false,
                         false);
    RETURN true;
END $$;

-- Rejects the message in favour of its copy: it keeps its payload, its version stays open for the copy, and messages
-- that wait for its business keys are not woken. Returns its business keys.
CREATE FUNCTION semel._operator_supersede(p semel._policy, k semel._key, before semel.inbox, reason text)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    keeps semel._policy := p;
    elsewhere semel._key;
    r semel.inbox := semel._operated(before, 'rejected', NULL, reason, semel._now());
    business text[];
BEGIN
    PERFORM semel._hold_business(before, true);
    WITH held AS (DELETE FROM semel.business_key AS b
                  WHERE b.consumer = before.consumer AND b.source = before.source AND b.message_id = before.message_id
                  RETURNING b.business_key),
    wanted AS (DELETE FROM semel.business_want AS w
               WHERE w.consumer = before.consumer AND w.source = before.source AND w.message_id = before.message_id
               RETURNING w.business_key)
    SELECT array_agg(a.business_key ORDER BY a.business_key) INTO business
    FROM (SELECT * FROM held UNION SELECT * FROM wanted) AS a;
    keeps.keep := 'always';
    r := semel._write(keeps, elsewhere, before, r, NULL, false, false);
    IF k.order_key IS NOT NULL THEN
        r.version := NULL;
        PERFORM semel._key_changed(p, k, before, r, semel._now());
    END IF;
    RETURN business;
END $$;

-- Refuses corrections that the program never allows, because a role can call these functions without it.
CREATE FUNCTION semel._operator_correctable(p semel._policy, before semel.inbox, content bytea) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (before.status IN ('dead', 'quarantined', 'failed')) IS NOT TRUE THEN
        PERFORM semel._refuse(format('a message that is %s is not corrected', before.status));
    ELSIF p.keep = 'never' THEN
        PERFORM semel._refuse('the consumer keeps no payloads (keep_payload): what is stored could never be run');
    ELSIF content IS NULL OR octet_length(content) > p.payload_max THEN
        PERFORM semel._refuse(format('a payload of at most %s bytes is required (payload_max)', p.payload_max));
    ELSIF octet_length(before.message_id) > 253 THEN
        PERFORM semel._refuse('its id is too long to be followed by ~1: at most 253 bytes');
    END IF;
END $$;

-- For `semel inbox retry --payload`: stores a copy of the message that differs only in its payload, under the id of the
-- message and ~1, and rejects the message. false: the row is not as it was judged.
CREATE FUNCTION semel._operator_correct(of_consumer text, of_source text, id text, was text, content bytea,
                                        forced boolean, reason text)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    p semel._policy := semel._policy(of_consumer);
    k semel._key;
    r semel.inbox;
    m semel._message;
    a semel._answer;
    business text[];
BEGIN
    SELECT i.* INTO r FROM semel.inbox AS i
    WHERE i.consumer = of_consumer COLLATE "C" AND i.source = of_source COLLATE "C" AND i.key = semel.message_key(id);
    IF r.order_key IS NOT NULL AND NOT p.order_said THEN
        p := semel._policy_settle(p, r.version IS NOT NULL);
    END IF;
    IF p.ord <> 'none' AND r.order_key IS NOT NULL THEN
        k := semel._key(p, r.order_key, true);
    END IF;
    r := semel._locked(r.stream, r.key, false);
    IF r.status IS DISTINCT FROM was COLLATE "C" OR semel._damaged(r) THEN
        RETURN false;
    END IF;
    PERFORM semel._operator_correctable(p, r, content);
    m := (r.source, r.message_id || '~1', r.type, content,
          CASE WHEN content <> '' AND strpos(r.headers, 'semel_tombstone') > 0
               THEN (r.headers::jsonb - 'semel_tombstone')::text ELSE r.headers END, NULL,
          CASE WHEN p.ord <> 'none' THEN r.order_key END, r.version,
          CASE WHEN r.fingerprint IS NOT NULL THEN semel._fingerprint(NULL, content) END, NULL, NULL, NULL);
    IF NOT semel._try_lock(p.consumer, m.source, m.message_id)
       OR EXISTS (SELECT FROM semel.record AS i WHERE i.stream = r.stream AND i.key = semel.message_key(m.message_id))
    THEN
        PERFORM semel._refuse('there is a message with the id of the corrected copy already');
    END IF;
    PERFORM semel._operator_reason(reason);
    PERFORM semel._operator_line('correct', semel._show(format('as %s: %s', m.message_id, reason), 1000), of_consumer,
                                 of_source, id);
    business := semel._operator_supersede(p, k, r, format('corrected as %s: %s', m.message_id, reason));
    IF forced IS NOT TRUE AND p.ord = 'arrival' AND EXISTS (SELECT FROM semel._first(p, k.order_key)) THEN
        PERFORM semel._refuse('others of its order key would run before the corrected copy; force it if their order '
                              'does not matter');
    END IF;
    m.business_key := business[1];
    a := semel._deliver(p, m, 'put', p.lease, NULL, NULL);
    IF (a.act = 'ack' AND a.status = 'waiting' AND a.why <> 'duplicate') IS NOT TRUE THEN
        PERFORM semel._refuse(format('the corrected copy could not run: it would be %s', a.status));
    END IF;
    INSERT INTO semel.business_want (consumer, business_key, source, message_id)
    SELECT of_consumer, b.b, m.source, m.message_id FROM unnest(business) AS b (b) ON CONFLICT DO NOTHING;
    UPDATE semel.record AS i SET traceparent = r.traceparent
    WHERE i.stream = r.stream AND i.key = semel.message_key(m.message_id) AND r.traceparent IS NOT NULL;
    PERFORM semel._operator_line('correction', semel._show(format('of %s: %s', id, reason), 1000), of_consumer,
                                 m.source, m.message_id);
    RETURN true;
END $$;

CREATE FUNCTION semel._operator_rewind(of_consumer text, sources text[], partitions integer[], offsets bigint[],
                                       reason text)
RETURNS SETOF semel.position LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    old semel.position;
    made semel.position;
BEGIN
    FOR place IN 1..cardinality(sources) LOOP
        SELECT o.* INTO old FROM semel.position AS o
        WHERE o.consumer = of_consumer COLLATE "C" AND o.source = sources[place] COLLATE "C"
          AND o.partition = partitions[place] FOR UPDATE;
        INSERT INTO semel.position AS o (consumer, source, partition, next_offset, epoch, updated_at)
        VALUES (of_consumer, sources[place], partitions[place], offsets[place], 1, semel._now())
        ON CONFLICT (consumer, source, partition) DO UPDATE
        SET next_offset = excluded.next_offset, epoch = o.epoch + 1, updated_at = excluded.updated_at
        RETURNING o.* INTO made;
        PERFORM semel._operator_line(format('rewind: partition %s from %s to %s', partitions[place],
                                            coalesce(old.next_offset::text, 'none'),
                                            coalesce(offsets[place]::text, 'none')),
                                     reason, of_consumer, sources[place], NULL);
        RETURN NEXT made;
    END LOOP;
END $$;

-- Makes a frozen selection of messages, empty, and returns its number; _operator_select puts messages into it.
CREATE FUNCTION semel._operator_selection(command text, reason text, force boolean)
RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
    INSERT INTO semel.selection (command, who, reason, force, made_at)
    VALUES (command, session_user, reason, force, semel._now()) RETURNING number
$$;

-- Writes one line of the audit per call.
CREATE FUNCTION semel._operator_select(of_selection bigint, places bigint[], consumers text[], sources text[],
                                       ids text[], touched timestamptz[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    s semel.selection;
BEGIN
    SELECT o.* INTO s FROM semel.selection AS o WHERE o.number = of_selection AND o.who = session_user;
    IF NOT FOUND THEN
        PERFORM semel._refuse(format('selection %s is not one of %s', of_selection, session_user));
    END IF;
    INSERT INTO semel.selected (number, place, consumer, source, message_id, updated_at)
    SELECT s.number, c.place, c.consumer, c.source, c.id, c.touched
    FROM unnest(places, consumers, sources, ids, touched) AS c (place, consumer, source, id, touched);
    PERFORM semel._operator_line(format('selection %s: %s of %s messages', s.number, s.command, cardinality(ids)),
                                 s.reason, NULL, NULL, NULL);
END $$;

CREATE FUNCTION semel._operator_mark(of_selection bigint, at_place bigint, said text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    RETURN QUERY UPDATE semel.selected AS s SET result = coalesce(s.result, said)
                 WHERE s.number = of_selection AND s.place = at_place RETURNING s.place;
END $$;

-- ---- who may call -------------------------------------------------------------------------------------------------

-- Only the owner may call these functions; roles.sql grants what an application needs.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;

-- Only the owner may make a column or a function of a type of ours: he could not change the type otherwise.
DO $$
DECLARE
    ours regtype;
BEGIN
    FOR ours IN SELECT t.oid FROM pg_type AS t WHERE t.typnamespace = 'semel'::regnamespace AND t.typelem = 0 LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', ours);
    END LOOP;
END $$;

INSERT INTO semel.schema (version, name) VALUES (18, 'work');
