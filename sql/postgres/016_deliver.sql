-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the inbox in the caller's transaction: begin, done, fail; claim and put. docs/sql-postgres.md
-- describes them.
--
-- A begin inserts the row as `processing`, under a token, and its end is written under that token; without an order
-- key, as `completed` at once. All in one transaction, nobody else ever sees the row before its end. A message that
-- another transaction holds is `busy` by a try-lock on its id, which every function here takes before it writes a row:
-- an insert would wait for the other's end.
--
-- What was begun is remembered until its end, in settings of the transaction, which savepoints take back by themselves:
--     semel.begun        empty: nothing was begun; `-`: nothing that is not ended is in hand; else the message in hand,
--                        as _in_hand writes it after a letter: p, its payload is in semel.begun_payload; n, it has none
--     semel.begun_for    the consumer of the last row of semel.begun that came or went: for the message of the error
--     semel.begun_more   how many rows the table semel.begun has: where a second message is begun before the end of the
--                        first, and where there is more to remember
-- A message that had a row, or has an order key, is in the table semel.held. The deferred triggers of the inbox, of
-- semel.begun (once for a batch) and of semel.held ask at the COMMIT whether anything is left. That of the inbox goes
-- by `alone`, which is false in a row that is inserted as `completed` here, and NULL in one that others insert: the
-- server reads the condition of a trigger from its text for every statement that inserts, so it has to be short.
-- Settings can be forged: what they say is believed only of rows that this transaction has written.
--
-- Invariants: a begin without its end cannot commit, and an end needs its begin; every row is inserted before it is
-- judged, so that the unique key decides a race, but for final rows, which never change and are read without a lock at
-- READ COMMITTED; the watermark is read after the insert.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- ---- who holds what -----------------------------------------------------------------------------------------------

-- An end that came too late, of an effect in this database: the transaction that made it must not commit.
CREATE FUNCTION semel._late_end(token bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT format('no message is held under token %s: its lease ran out, or it has its end; the effect of this '
                  'transaction must not be committed', token)
$$;

CREATE FUNCTION semel._held_at_commit() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    IF NEW.kind = 'refused' THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = semel._late_end(NEW.token),
            HINT = 'Roll back. Call inbox_finish first and have the effect after it, in one transaction.';
    ELSIF EXISTS (SELECT FROM semel.held AS h WHERE h.token = NEW.token) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'integrity_constraint_violation',
            SCHEMA = 'semel', TABLE = 'held', CONSTRAINT = 'begun_has_its_end',
            MESSAGE = format('message "%s" of consumer "%s" was begun, and is neither done nor failed: '
                             'a begin without its end cannot commit', semel._show(NEW.message_id, 255),
                             semel._show(NEW.consumer, 255)),
            HINT = 'Call semel.inbox_done or semel.inbox_fail in the transaction that began it; under autocommit, open '
                   'one first.';
    END IF;
    RETURN NULL;
END $$;

-- The same for the inbox, once for every row that a begin has inserted, and once for a batch. It has to be quick, so it
-- has neither the rights of the owner nor a search path, and every name in it is qualified. A session that has never
-- begun anything restores rows of others.
CREATE FUNCTION semel._begun_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    part pg_catalog.text[];
    consumer pg_catalog.text;
    message_id pg_catalog.text;
BEGIN
    IF coalesce(pg_catalog.current_setting('semel.begun', true), '-'::pg_catalog.text)
           OPERATOR(pg_catalog.=) '-'::pg_catalog.text
       AND coalesce(pg_catalog.current_setting('semel.begun_more', true), ''::pg_catalog.text)
           OPERATOR(pg_catalog.=) ANY ('{"",0}'::pg_catalog.text[]) THEN
        RETURN NULL;
    END IF;
    part := pg_catalog.regexp_match(pg_catalog.current_setting('semel.begun', true),
                                    '^[np](\d{1,3}) (\d{1,3}) (.*)$'::pg_catalog.text);
    IF part IS NOT NULL THEN                                -- the message in hand; else one that was inserted
        consumer := pg_catalog.convert_from(pg_catalog.substr(
            pg_catalog.convert_to(part[3], 'UTF8'), 1, part[1]::pg_catalog.int4), 'UTF8');
        message_id := pg_catalog.convert_from(pg_catalog.substr(
            pg_catalog.convert_to(part[3], 'UTF8'), 1 OPERATOR(pg_catalog.+) part[1]::pg_catalog.int4
                                                      OPERATOR(pg_catalog.+) part[2]::pg_catalog.int4), 'UTF8');
    ELSIF TG_TABLE_NAME OPERATOR(pg_catalog.=) 'begun'::pg_catalog.name THEN
        consumer := NEW.consumer;
        message_id := NEW.message_id;
    ELSE
        consumer := pg_catalog.current_setting('semel.begun_for', true);
        message_id := CASE WHEN pg_catalog.get_byte(NEW.key, 0) OPERATOR(pg_catalog.=) 0 THEN
            pg_catalog.encode(pg_catalog.substr(NEW.key, 2), 'hex'::pg_catalog.text)::pg_catalog.uuid::pg_catalog.text
            ELSE pg_catalog.convert_from(NEW.key, 'UTF8') END;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'integrity_constraint_violation',
        SCHEMA = 'semel', TABLE = 'record', CONSTRAINT = 'begun_has_its_end',
        MESSAGE = pg_catalog.format('message "%s" of consumer "%s" was begun, and is neither done nor failed: '
            'a begin without its end cannot commit',
            pg_catalog.regexp_replace(message_id, '[^[:print:]]'::pg_catalog.text, '?'::pg_catalog.text,
                                      'g'::pg_catalog.text),
            pg_catalog.regexp_replace(consumer, '[^[:print:]]'::pg_catalog.text, '?'::pg_catalog.text,
                                      'g'::pg_catalog.text)),
        HINT = 'Call semel.inbox_done or semel.inbox_fail in the transaction that began it; under autocommit, open '
               'one first.';
END $$;

CREATE CONSTRAINT TRIGGER begun_has_its_end AFTER INSERT ON semel.held DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.kind IN ('begun', 'refused')) EXECUTE FUNCTION semel._held_at_commit();
CREATE CONSTRAINT TRIGGER begun_has_its_end AFTER INSERT ON semel.begun DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.watched) EXECUTE FUNCTION semel._begun_at_commit();
CREATE CONSTRAINT TRIGGER begun_has_its_end AFTER INSERT ON semel.record DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NOT NEW.alone) EXECUTE FUNCTION semel._begun_at_commit();

-- From now on the trigger looks at what this transaction has begun.
CREATE FUNCTION semel._watch() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(current_setting('semel.begun', true), '') = '' THEN
        PERFORM set_config('semel.begun', '-', true);
    END IF;
END $$;

-- So many rows of semel.begun come, or have gone: they are counted before, because the triggers ask at once where
-- constraints are not deferred. The consumer is named where one is left at the COMMIT.
CREATE FUNCTION semel._count_begun(n integer, consumer text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    word text := current_setting('semel.begun_more', true);
BEGIN
    PERFORM set_config('semel.begun_for', consumer, true);
    word := set_config('semel.begun_more', (CASE WHEN word ~ '^[0-9]{1,9}$' THEN word::integer ELSE 0 END + n)::text,
                       true);
END $$;

-- Was this row written by the transaction that sees it? So it is where its writer is still running.
CREATE FUNCTION semel._ours(writer xid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    last bigint := pg_current_xact_id_if_assigned()::text::bigint;
    full_id bigint := (last >> 32 << 32) | writer::text::bigint;
BEGIN
    RETURN coalesce(pg_xact_status((CASE WHEN full_id > last + 1073741824 THEN full_id - 4294967296
                                         ELSE full_id END)::text::xid8) = 'in progress', false);
END $$;

CREATE FUNCTION semel._hold(token bigint, kind text, p semel._policy, m semel._message, attempt integer)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO semel.held VALUES (token, kind, p.consumer, m.source, m.message_id, attempt, semel._now());
END $$;

CREATE FUNCTION semel._lock_name(consumer text, source text, message_id text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT hashtextextended(message_id COLLATE "C", hashtextextended(
        source COLLATE "C", hashtextextended(consumer COLLATE "C", 1936026989)))
$$;

-- How many messages this transaction has tried to lock. inbox_begin does not count its first.
CREATE FUNCTION semel._locks() RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN current_setting('semel.locks', true) ~ '^[0-9]{1,2}$'
                THEN current_setting('semel.locks', true)::integer
                WHEN coalesce(current_setting('semel.begun', true), '') <> '' THEN 1 ELSE 0 END
$$;

-- Until the end of the transaction; false: another one has it. Only the first 32 messages of a transaction are locked:
-- the lock table is the whole cluster's. A copy of a later one waits for its row instead of getting `busy`.
CREATE FUNCTION semel._try_lock(consumer text, source text, message_id text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    n integer := semel._locks();
    said text;
BEGIN
    IF n >= 32 THEN
        RETURN true;
    END IF;
    said := set_config('semel.locks', (n + 1)::text, true);
    RETURN pg_try_advisory_xact_lock(semel._lock_name(consumer, source, message_id));
END $$;

-- The name of a watermark's row, for who makes it.
CREATE FUNCTION semel._watermark_lock(consumer text, source text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT hashtextextended(source COLLATE "C", hashtextextended(consumer COLLATE "C", 1936026992))
$$;

-- ---- a delivery ---------------------------------------------------------------------------------------------------

CREATE TYPE semel._answer AS (
    act     text COLLATE "C",
    why     text COLLATE "C",
    attempt integer,
    outcome text,
    token   bigint,
    status  text COLLATE "C",                               -- of the row; absent: there is none
    due_at  timestamptz
);

-- took: the business key was free, and is this message's now; intent: else who has it. It expires where the message
-- ends in this transaction.
CREATE FUNCTION semel._take_business(p semel._policy, m semel._message, ends boolean, now timestamptz,
                                     OUT intent text, OUT took boolean)
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO semel.business_key AS b (consumer, business_key, source, message_id, taken_at, expires_at)
    VALUES (p.consumer, m.business_key, m.source, m.message_id, now,
            CASE WHEN ends THEN semel._later(now, p.business_retention) END)
    ON CONFLICT (consumer, business_key) DO UPDATE
    SET source = excluded.source, message_id = excluded.message_id, taken_at = excluded.taken_at,
        expires_at = excluded.expires_at
    WHERE b.expires_at <= excluded.taken_at;
    took := FOUND;
    intent := CASE WHEN took THEN 'free' ELSE semel._intent(p, m.business_key, m.source, m.message_id, now) END;
END $$;

-- All business keys that a stored message wants, for its start; false: one is not to be had, or is being taken at the
-- moment, which nobody waits for.
CREATE FUNCTION semel._take_wanted(p semel._policy, r semel.inbox, now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    patience text := current_setting('lock_timeout');
    n bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM semel.business_want AS w
                   WHERE w.consumer = r.consumer AND w.source = r.source AND w.message_id = r.message_id) THEN
        RETURN true;
    END IF;
    PERFORM set_config('lock_timeout', '1', true);
    INSERT INTO semel.business_key AS b (consumer, business_key, source, message_id, taken_at)
    SELECT w.consumer, w.business_key, w.source, w.message_id, now FROM semel.business_want AS w
    WHERE w.consumer = r.consumer AND w.source = r.source AND w.message_id = r.message_id
    ORDER BY w.business_key
    ON CONFLICT (consumer, business_key) DO UPDATE
    SET source = excluded.source, message_id = excluded.message_id, taken_at = excluded.taken_at, expires_at = NULL
    WHERE b.expires_at <= excluded.taken_at
       OR (b.source = excluded.source AND b.message_id = excluded.message_id);
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n < (SELECT count(*) FROM semel.business_want AS w
            WHERE w.consumer = r.consumer AND w.source = r.source AND w.message_id = r.message_id) THEN
        RAISE lock_not_available;                           -- gives back what it has taken
    END IF;
    PERFORM set_config('lock_timeout', patience, true);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- The row, inserted as if the message would run (fresh), or as it was found and locked. NULL: somebody else has it.
-- whole: it is inserted as if it had run.
CREATE FUNCTION semel._admit(p semel._policy, m semel._message, lease bigint, whole boolean, now timestamptz,
                             OUT r semel.inbox, OUT fresh boolean)
LANGUAGE plpgsql AS $$
DECLARE
    kept boolean := p.keep = 'always' OR (p.keep = 'unfinished' AND NOT whole);
    of_stream integer := semel._stream(p.consumer, m.source);
    of_key bytea := semel.message_key(m.message_id);
BEGIN
    fresh := false;
    IF of_stream IS NULL THEN
        RETURN;
    END IF;
    FOR tries IN 1..3 LOOP
        INSERT INTO semel.record (
            arrival, received_at, stream, key, fingerprint, type, status, open_for, message_time, version, lease_until,
            lease_token, alone, order_key, lease_owner, headers, payload)
        SELECT nextval('semel.arrival') * 16384, now, of_stream, of_key, m.fingerprint, m.type, o.status, o.open_for,
               semel._time_beside(of_key, m.message_time), m.version, o.lease_until, o.lease_token,
               NOT whole, m.order_key, o.lease_owner, CASE WHEN kept THEN m.headers END,
               CASE WHEN kept THEN m.payload END
        FROM (SELECT) AS one
        LEFT JOIN (SELECT 'processing', p.consumer, semel._later(now, lease), semel._token(p.effect, now, NULL),
                          semel._owner())
               AS o (status, open_for, lease_until, lease_token, lease_owner) ON NOT whole
        ON CONFLICT ON CONSTRAINT record_pkey DO NOTHING;
        fresh := FOUND;
        IF NOT fresh THEN
            PERFORM FROM semel.record AS i                  -- keys before rows: its end may free what it holds
            JOIN semel.business_key AS b
                ON b.consumer = p.consumer AND b.source = m.source AND b.message_id = m.message_id
            WHERE i.key = of_key AND i.stream = of_stream
              AND (i.status IS NOT DISTINCT FROM 'failed' OR i.status IS NOT DISTINCT FROM 'waiting')
            ORDER BY b.business_key FOR UPDATE OF b;
        END IF;
        r := semel._locked(of_stream, of_key, true);
        EXIT WHEN fresh OR r.arrival IS NOT NULL
                  OR EXISTS (SELECT FROM semel.record AS i WHERE i.key = of_key AND i.stream = of_stream);
    END LOOP;                                               -- it was refused, and purged since: once more
END $$;

-- Read after the insert. Above READ COMMITTED the snapshot may be older than a purge: then the row is locked, and where
-- there is none it is made, which both fail with 40001 when somebody has changed it since. No watermark is younger than
-- the shortest retention.
CREATE FUNCTION semel._too_old(p semel._policy, m semel._message, now timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    mark timestamptz;
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' OR m.message_time > now - interval '1 hour' THEN
        SELECT w.watermark INTO mark FROM semel.watermark AS w WHERE w.consumer = p.consumer AND w.source = m.source;
    ELSE
        PERFORM pg_advisory_xact_lock_shared(semel._watermark_lock(p.consumer, m.source));
        INSERT INTO semel.watermark VALUES (p.consumer, m.source, '-infinity', now) ON CONFLICT DO NOTHING;
        SELECT w.watermark INTO mark FROM semel.watermark AS w WHERE w.consumer = p.consumer AND w.source = m.source
        FOR SHARE;
    END IF;
    RETURN coalesce(m.message_time < mark, false);
END $$;

CREATE FUNCTION semel._verdict_new(p semel._policy, k semel._key, m semel._message, intent text, now timestamptz)
RETURNS semel._verdict LANGUAGE plpgsql AS $$
DECLARE
    v semel._verdict;
    nothing semel.inbox;
BEGIN
    IF (CASE WHEN octet_length(m.payload) > p.payload_max THEN semel._large_full(p) END) THEN
        v := ('later', 'dead', 0, 'absent', NULL, NULL);
    ELSIF m.defect = 'no_id' THEN
        v := ('ack', 'no_id', 0, 'quarantined', NULL, 'no_id');
    ELSIF (CASE WHEN m.message_time IS NOT NULL THEN semel._too_old(p, m, now) END) THEN
        v := ('ack', 'too_old', 0, 'quarantined', NULL, 'too_old');
    ELSIF m.defect IS NOT NULL THEN
        v := ('ack', 'dead', 0, 'dead', NULL, 'permanent');
    ELSE
        v := semel._verdict_turn(p, k, nothing, m.version, intent, now);
        IF v.becomes = 'waiting' THEN
            IF (CASE WHEN v.why = 'business_duplicate'
                     THEN v.act = 'later' OR m.payload IS NULL OR semel._waiters_full(p, m.business_key)
                     ELSE semel._parking_full(p, k.order_key) END) THEN
                v := ('later', v.why, 0, 'absent', NULL, NULL);
            ELSIF m.payload IS NULL THEN                    -- it has its place, and its broker brings it again
                v.act := 'later';
            END IF;
        END IF;
    END IF;
    RETURN v;
END $$;

CREATE FUNCTION semel._verdict_old(p semel._policy, k semel._key, m semel._message, r semel.inbox, intent text,
                                   now timestamptz)
RETURNS semel._verdict LANGUAGE plpgsql AS $$
DECLARE
    v semel._verdict;
BEGIN
    IF semel._adopts(p, m, r) THEN                          -- judged as the row that it becomes by that
        r.payload := m.payload;
    END IF;
    IF semel._damaged(r) THEN
        v := ('later', 'damaged', 0, NULL, NULL, NULL);
    ELSIF r.status = 'completed' AND (semel._in_hand(r.consumer, r.source, r.message_id)
                                      OR EXISTS (SELECT FROM semel.begun AS b
                                                 WHERE b.consumer = r.consumer AND b.source = r.source
                                                   AND b.message_id = r.message_id)) THEN
        v := ('later', 'busy', 0, NULL, NULL, NULL);
    ELSIF semel._conflicts(m.fingerprint, r.fingerprint) THEN
        v := ('ack', 'conflict', 0, NULL, NULL, NULL);
        INSERT INTO semel.conflict AS c (consumer, source, message_id, fingerprint, first_at, last_at, type, headers,
                                         payload)
        VALUES (p.consumer, m.source, m.message_id, m.fingerprint, now, now, m.type,
                CASE WHEN p.keep <> 'never' THEN m.headers END, CASE WHEN p.keep <> 'never' THEN m.payload END)
        ON CONFLICT (consumer, source, message_id, fingerprint) DO UPDATE
        SET count = c.count + 1, last_at = excluded.last_at;
        DELETE FROM semel.conflict AS c WHERE c.ctid = ANY (ARRAY(  -- beyond 100, the one that came longest ago
            SELECT o.ctid FROM semel.conflict AS o
            WHERE o.consumer = p.consumer AND o.source = m.source AND o.message_id = m.message_id
            ORDER BY o.last_at DESC OFFSET 100));
    ELSIF r.status IN ('failed', 'waiting')
          AND ((p.ord <> 'none' AND r.order_key IS DISTINCT FROM m.order_key)
               OR (p.ord = 'version' AND r.version IS DISTINCT FROM m.version)
               OR EXISTS (SELECT FROM semel.business_want AS w
                          WHERE w.consumer = r.consumer AND w.source = r.source AND w.message_id = r.message_id
                            AND w.business_key IS DISTINCT FROM m.business_key)) THEN
        -- Under another key or version than its row has, or without the business keys that it wants: the row keeps its
        -- place, the store runs it.
        v := (CASE WHEN r.payload IS NOT NULL THEN 'ack' ELSE 'later' END,
              CASE WHEN r.status = 'waiting' THEN 'blocked' ELSE 'backoff' END, 0, NULL, NULL, NULL);
    ELSE
        v := semel._verdict_row(p, k, r, intent, now);
    END IF;
    RETURN v;
END $$;

-- It does not run: the row becomes what the verdict says, and the caller gets it.
CREATE FUNCTION semel._apply_verdict(p semel._policy, k semel._key, m semel._message, v semel._verdict, was semel.inbox,
                                     fresh boolean, now timestamptz)
RETURNS semel._answer LANGUAGE plpgsql AS $$
DECLARE
    r semel.inbox := was;
    a semel._answer;
BEGIN
    IF v.becomes = 'absent' THEN
        DELETE FROM semel.record AS i WHERE i.key = was.key AND i.stream = was.stream;
        r.status := NULL;
        PERFORM semel._key_changed(p, k, NULL, r, now);
    ELSIF v.becomes IS NOT NULL THEN
        IF fresh THEN                                       -- it was inserted as if it would run
            r.attempts := 0;
            r.alone := false;
        END IF;
        r := semel._moved(r, v.becomes, now);
        r.due_at := v.due_at;
        r.error_class := v.class;
        r.error_text := coalesce(CASE WHEN fresh THEN m.defect_text END, semel._verdict_text(v));
        r := semel._write(p, k, was, r, m, fresh, false);
    ELSIF v.why NOT IN ('damaged', 'conflict') AND semel._adopts(p, m, was) THEN
        r.updated_at := semel._touched(r.updated_at, now);
        r := semel._write(p, k, was, r, m, false, false);
    END IF;
    a := (v.act, v.why, 0, r.outcome, NULL,
          CASE WHEN v.why = 'damaged' THEN 'absent' ELSE coalesce(r.status, 'absent') END, r.due_at);
    RETURN a;
END $$;

-- It may run: it is claimed, or made to wait until it is taken, or its end is recorded.
CREATE FUNCTION semel._apply_run(p semel._policy, k semel._key, m semel._message, v semel._verdict, was semel.inbox,
                                 fresh boolean, mode text, lease bigint, result text, reason text, now timestamptz)
RETURNS semel._answer LANGUAGE plpgsql AS $$
DECLARE
    r semel.inbox := was;
    nothing semel.inbox;
    a semel._answer;
BEGIN
    IF mode = 'put' AND fresh THEN
        v := ('ack', 'new', 0, 'waiting', now, NULL);
        RETURN semel._apply_verdict(p, k, m, v, was, true, now);
    ELSIF mode = 'put' THEN
        v := ('ack', 'duplicate', 0, NULL, NULL, NULL);
        IF semel._adopts(p, m, was) THEN
            r.updated_at := semel._touched(r.updated_at, now);
            r := semel._write(p, k, was, r, m, false, false);
        END IF;
    ELSIF mode = 'record' THEN
        IF NOT fresh THEN
            r.attempts := r.attempts + 1;
        END IF;
        r := semel._write(p, k, was, semel._ended(p, r, result, NULL, reason, NULL, now), m, fresh, true);
        v.act := semel._act_for(r.status, r.payload IS NOT NULL);
    ELSIF NOT fresh THEN
        r := semel._write(p, k, was, semel._claimed(p, r, lease, now), m, false, false);
    ELSIF r.status = 'completed' THEN
        INSERT INTO semel.begun (consumer, source, message_id, headers, payload)
        VALUES (p.consumer, m.source, m.message_id, CASE WHEN p.keep = 'unfinished' THEN m.headers END,
                CASE WHEN p.keep = 'unfinished' THEN m.payload END);
    ELSIF k.order_key IS NOT NULL THEN
        PERFORM semel._key_changed(p, k, nothing, r, now);
    END IF;
    a := (v.act, v.why, v.attempt, r.outcome, r.lease_token, r.status, r.due_at);
    RETURN a;
END $$;

-- Does a delivery that does not start bring a wish for its business key? Not if its row holds that one, or wishes for
-- others already: a message has few.
CREATE FUNCTION semel._wishes(m semel._message, v semel._verdict, was semel.inbox, fresh boolean, intent text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF m.business_key IS NULL OR was.arrival IS NULL OR v.why IN ('conflict', 'damaged') THEN
        RETURN false;
    END IF;
    RETURN fresh OR (m.defect IS NULL AND intent <> 'own'
                     AND NOT EXISTS (SELECT FROM semel.business_want AS w
                                     WHERE w.consumer = was.consumer AND w.source = was.source
                                       AND w.message_id = was.message_id AND w.business_key <> m.business_key));
END $$;

-- Has this transaction begun it, so that its row is not final yet?
CREATE FUNCTION semel._is_begun(of_consumer text, from_source text, id text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN semel._in_hand(of_consumer, from_source, id)
        OR EXISTS (SELECT FROM semel.begun AS g WHERE g.consumer = of_consumer COLLATE "C"
                          AND g.source = from_source COLLATE "C" AND g.message_id = id COLLATE "C");
END $$;

-- Why a message with a final row does not run; NULL: the rules have to look.
CREATE FUNCTION semel._told(of_stream integer, of_key bytea, print bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    r semel.inbox;
BEGIN
    SELECT i.* INTO r FROM semel.inbox AS i WHERE i.key = of_key AND i.stream = of_stream;
    RETURN CASE WHEN r.processed_at IS NOT NULL AND semel._damaged(r) IS NOT TRUE
                     AND NOT semel._conflicts(print, r.fingerprint) THEN
                CASE r.status WHEN 'stale' THEN 'stale' WHEN 'prevented' THEN 'business_duplicate'
                              ELSE 'duplicate' END END;
END $$;

-- The answer for a message whose row is final; without an act: the rules have to look. Such a row never changes, so it
-- is read without a lock and before anything is drawn or written: only at READ COMMITTED, and where no COMMIT waits for
-- a standby, which one without a write would not do (P16, P90).
CREATE FUNCTION semel._final(p semel._policy, m semel._message) RETURNS semel._answer LANGUAGE plpgsql AS $$
DECLARE
    of_key bytea := semel.message_key(m.message_id);
    of_stream integer;
    ended boolean;
    a semel._answer;
BEGIN
    SELECT s.stream, i.outcome, coalesce(i.status, 'completed'), i.open_for IS NULL
    INTO of_stream, a.outcome, a.status, ended          -- as a condition it would lead to the index of the purge
    FROM semel.stream AS s JOIN semel.record AS i ON i.stream = s.stream
    WHERE s.consumer = p.consumer AND s.source = m.source AND i.key = of_key;
    IF ended AND current_setting('transaction_isolation') || current_setting('synchronous_standby_names')
                 = 'read committed'
       AND (coalesce(current_setting('semel.begun', true), '') = ''
            OR NOT semel._is_begun(p.consumer, m.source, m.message_id)) THEN
        a.why := semel._told(of_stream, of_key, m.fingerprint);
        a.act := CASE WHEN a.why IS NOT NULL THEN 'ack' END;
        a.attempt := 0;
    END IF;
    RETURN a;
END $$;

-- mode: begin, to be ended in this transaction; claim; put, to be run later; record, of a run that has ended with
-- `result`.
CREATE FUNCTION semel._deliver(p semel._policy, m semel._message, mode text, lease bigint, result text, reason text)
RETURNS semel._answer LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := semel._now();
    k semel._key;
    got record;
    v semel._verdict := ('later', 'busy', 0, NULL, NULL, NULL);
    was semel.inbox;
    intent text COLLATE "C" := 'free';
    took boolean := false;
    whole boolean := mode = 'begin' AND m.order_key IS NULL AND m.defect IS NULL;
    fresh boolean := false;
    starts boolean;
    wish boolean;
    a semel._answer := semel._final(p, m);
BEGIN
    IF a.act IS NOT NULL THEN
        RETURN a;
    ELSIF semel._try_lock(p.consumer, m.source, m.message_id) THEN
        IF m.order_key IS NOT NULL THEN
            k := semel._key(p, m.order_key, true);
        END IF;
        IF m.business_key IS NOT NULL AND m.defect IS NULL THEN
            SELECT b.intent, b.took INTO intent, took FROM semel._take_business(p, m, mode = 'begin', now) AS b;
        END IF;
        IF whole THEN
            PERFORM semel._watch();
            PERFORM semel._count_begun(1, p.consumer);
        END IF;
        got := semel._admit(p, m, lease, whole, now);
        was := got.r;
        fresh := got.fresh;
        IF fresh THEN
            -- A key of its own without a row beside it was left by a purge: what it stands for is done.
            v := semel._verdict_new(p, k, m, CASE WHEN intent = 'own' THEN 'done' ELSE intent END, now);
        ELSIF was.arrival IS NOT NULL THEN
            v := semel._verdict_old(p, k, m, was, intent, now);
        END IF;
        IF whole AND (fresh AND v.act = 'run') IS NOT TRUE THEN
            PERFORM semel._count_begun(-1, p.consumer);
        END IF;
    END IF;
    starts := v.act = 'run' AND mode <> 'put';
    wish := NOT starts AND semel._wishes(m, v, was, fresh, intent);
    IF v.act = 'run' THEN
        a := semel._apply_run(p, k, m, v, was, fresh, mode, lease, result, reason, now);
    ELSE
        a := semel._apply_verdict(p, k, m, v, was, fresh, now);
    END IF;
    IF wish AND a.status IN ('failed', 'waiting', 'unknown', 'dead', 'quarantined') THEN
        INSERT INTO semel.business_want (consumer, business_key, source, message_id)
        VALUES (p.consumer, m.business_key, m.source, m.message_id) ON CONFLICT DO NOTHING;
    END IF;
    IF took AND NOT starts THEN
        DELETE FROM semel.business_key AS b             -- it was taken for a message that does not start
        WHERE b.consumer = p.consumer AND b.source = m.source AND b.message_id = m.message_id
          AND b.business_key = m.business_key;
    END IF;
    RETURN a;
END $$;

-- ---- the end of what is held --------------------------------------------------------------------------------------

-- how: done, transient ... as the worker says; released; recovered. NULL: the row is not under this token any more.
-- patience: wait for locks; skip, where somebody else has the row or its key at this moment; ours, of a row that this
-- transaction has written, and nobody else can have. m: brings the payload that was not given before.
CREATE FUNCTION semel._end(p semel._policy, held semel.inbox, how text, reason text, outcome text, patience text,
                           m semel._message = NULL)
RETURNS semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    k semel._key;
    was semel.inbox;
    r semel.inbox;
    now timestamptz;
BEGIN
    IF p.ord <> 'none' AND held.order_key IS NOT NULL THEN
        k := semel._key(p, held.order_key, patience <> 'skip');
        IF k.order_key IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    IF patience = 'wait'
       AND (how IN ('rejected', 'released') OR (how = 'done' AND p.business_retention IS NOT NULL)) THEN
        PERFORM semel._hold_business(held, true);           -- keys before rows
    END IF;
    IF patience = 'ours' THEN
        was := held;
    ELSE
        was := semel._locked(held.stream, held.key, patience = 'skip');
        IF was.lease_token IS DISTINCT FROM held.lease_token THEN
            was := NULL;
        END IF;
    END IF;
    now := semel._now();
    IF was.arrival IS NULL OR (how = 'recovered' AND was.lease_until >= now) THEN
        RETURN NULL;
    END IF;
    IF patience <> 'ours' THEN                              -- a delivery of it is busy from now on
        PERFORM semel._try_lock(was.consumer, was.source, was.message_id);
    END IF;
    r := CASE how WHEN 'released' THEN semel._released(was, now) WHEN 'recovered' THEN semel._recovered(p, was, now)
                  ELSE semel._ended(p, was, how, NULL, reason, outcome, now) END;
    IF patience = 'skip' AND semel._touches_business(p, was, r) AND NOT semel._hold_business(was, false) THEN
        RETURN NULL;
    END IF;
    RETURN semel._write(p, k, was, r, m, false,
                        CASE how WHEN 'done' THEN false WHEN 'released' THEN false
                                 WHEN 'recovered' THEN r.attempts = was.attempts ELSE true END);
END $$;

-- The row of what was begun is completed as it stands; false: it was not begun that way.
CREATE FUNCTION semel._done_begun(of_consumer text, from_source text, id text, said text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF semel._in_hand(of_consumer, from_source, id) THEN
        PERFORM set_config('semel.begun', '-', true);
    ELSE
        DELETE FROM semel.begun AS b
        WHERE b.consumer = of_consumer COLLATE "C" AND b.source = from_source COLLATE "C"
          AND b.message_id = id COLLATE "C";
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        PERFORM semel._count_begun(-1, of_consumer);
    END IF;
    IF said IS NOT NULL THEN
        UPDATE semel.record AS i SET outcome = said FROM semel.stream AS s
        WHERE s.consumer = of_consumer COLLATE "C" AND s.source = from_source COLLATE "C" AND i.stream = s.stream
          AND i.key = semel.message_key(id) AND i.status IS NULL AND semel._ours(i.xmin);
    END IF;
    RETURN true;
END $$;

-- What was begun that way is in hand no more, and is given with its payload; NULL: it was not.
CREATE FUNCTION semel._let_go(of_consumer text, from_source text, id text) RETURNS semel.begun LANGUAGE plpgsql AS $$
DECLARE
    began semel.begun;
BEGIN
    IF semel._in_hand(of_consumer, from_source, id) THEN
        began := (of_consumer, from_source, id, NULL,
                  CASE left(current_setting('semel.begun', true), 1)
                  WHEN 'p' THEN decode(current_setting('semel.begun_payload', true), 'hex') END, NULL);
        PERFORM set_config('semel.begun', '-', true);
    ELSE
        DELETE FROM semel.begun AS b
        WHERE b.consumer = of_consumer COLLATE "C" AND b.source = from_source COLLATE "C"
          AND b.message_id = id COLLATE "C" RETURNING b.* INTO began;
        IF FOUND THEN
            PERFORM semel._count_begun(-1, of_consumer);
        END IF;
    END IF;
    RETURN began;
END $$;

-- The same, of what has failed, with the payload of its begin, else with that of m; NULL: it was not begun that way.
CREATE FUNCTION semel._fail_begun(p semel._policy, m semel._message, id text, how text, reason text)
RETURNS semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    k semel._key;
    r semel.inbox;
    began semel.begun := semel._let_go(p.consumer, m.source, id);
BEGIN
    IF began.message_id IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT i.* INTO r FROM semel.inbox AS i
    WHERE i.consumer = p.consumer AND i.source = m.source AND i.key = semel.message_key(id) AND i.status = 'completed';
    IF NOT FOUND OR NOT EXISTS (SELECT FROM semel.record AS i WHERE i.key = r.key AND i.stream = r.stream
                                                                AND semel._ours(i.xmin)) THEN
        RETURN NULL;
    END IF;
    IF began.payload IS NOT NULL OR semel._conflicts(m.fingerprint, r.fingerprint) THEN
        m.headers := began.headers;
        m.payload := began.payload;
    END IF;
    RETURN semel._write(p, k, r, semel._ended(p, r, how, NULL, reason, NULL, semel._now()), m, false, true);
END $$;

-- Ends what was begun in this transaction, or loosely in another one; NULL: it was not begun. Of m only the source is
-- needed; a payload is taken where the begin had none.
CREATE FUNCTION semel._end_begun(p semel._policy, m semel._message, id text, how text, reason text, outcome text)
RETURNS semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    r semel.inbox;
    began text COLLATE "C";
BEGIN
    IF how <> 'done' THEN
        r := semel._fail_begun(p, m, id, how, reason);
        IF r.arrival IS NOT NULL THEN
            RETURN r;
        END IF;
    END IF;
    SELECT i.* INTO r FROM semel.inbox AS i
    WHERE i.consumer = p.consumer AND i.source = m.source AND i.key = semel.message_key(id)
      AND i.status IS NOT DISTINCT FROM 'processing';       -- by the primary key, whatever the planner knows
    DELETE FROM semel.held AS h WHERE h.token = r.lease_token AND h.kind <> 'claimed' RETURNING h.kind INTO began;
    IF began IS NULL THEN
        RETURN NULL;
    END IF;
    IF semel._conflicts(m.fingerprint, r.fingerprint) THEN
        m.payload := NULL;
    END IF;
    RETURN semel._end(p, r, how, reason, outcome, CASE began WHEN 'begun' THEN 'ours' ELSE 'wait' END, m);
END $$;

-- Nobody but the owner may call what is made here; roles.sql grants what an application needs.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;

INSERT INTO semel.schema (version, name) VALUES (16, 'deliver');
