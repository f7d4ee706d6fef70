-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: the ground that its SQL functions stand on: clock, texts, the settings of consumers.
--
-- The functions give an application the inbox and the outbox inside its own transaction. They know the rules of the C
-- library and write the same rows; spec/cases.txt holds both to one table. A name that begins with an underscore is
-- internal and granted to nobody, but for what operators do (018) and what the C library inserts (_inbox_new); what
-- applications call is in 017 and 018, and docs/sql-postgres.md describes it.
--
-- Invariants: a refusal has SQLSTATE 22023, names the function and the argument, and says what would be right; what
-- inbox_... refuse they raise themselves, so that the CONTEXT of the error is one line: they ask one that gives
-- what the checks raise as a value, a refusal, which is an SQLSTATE, a space and the text; text is compared by bytes
-- whatever the collation of what the caller passes.
--
-- The planner puts the body of an SQL function in the place of its call only where the declared volatility fits the
-- body: arithmetic with timestamptz and intervals is STABLE. A function that says IMMUTABLE there is parsed and planned
-- anew by every statement.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- The clock of everything here. Leases and due times must move while a transaction is open.
CREATE FUNCTION semel._now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT pg_catalog.clock_timestamp()';

CREATE FUNCTION semel._later(at timestamptz, us bigint) RETURNS timestamptz LANGUAGE sql STABLE
AS $$ SELECT at + us * interval '1 microsecond' $$;

-- The time of a change, after the one before: updated_at never falls, even if the clock does.
CREATE FUNCTION semel._touched(before timestamptz, now timestamptz) RETURNS timestamptz LANGUAGE sql STABLE
AS $$ SELECT CASE WHEN before > now THEN before + interval '1 microsecond' ELSE now END $$;

-- ---- fencing tokens: the layout stands in src/core/token.h ----------------------------------------------------------

-- Units of 1.024 ms since 2020.
CREATE FUNCTION semel._token_clock(at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN at > timestamptz '2020-01-02 00:00:00+00'
                THEN ((extract(epoch FROM least(at, timestamptz '2090-01-01 00:00:00+00')) - 1577836800)
                      * 1000000)::bigint >> 10
                ELSE 262144 END
$$;

-- updated: of the row; NULL: it has none yet. The counter is the microsecond; no two rows of a session have the same.
CREATE FUNCTION semel._token(effect text, now timestamptz, updated timestamptz)
RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (greatest(semel._token_clock(now), semel._token_clock(updated) + 1) << 22)
         | (((extract(epoch FROM clock_timestamp()) * 1000000)::bigint & 1023) << 12)
         | (array_position('{atomic,outside,keyed}', effect)::bigint << 10)
         | ((r.bits & 7) << 7) | (1 + (r.bits >> 3) % 127)
    FROM (SELECT ('x' || right(gen_random_uuid()::text, 8))::bit(32)::bigint AS bits) AS r
$$;

-- The moment of its clock.
CREATE FUNCTION semel._token_time(token bigint) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT timestamptz '2020-01-01 00:00:00+00' + (token >> 22 << 10) * interval '1 microsecond'
$$;

-- The effect that a message was claimed under; NULL: the token does not say it.
CREATE FUNCTION semel._token_effect(token bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN token >= 1099511627776 THEN ('{atomic,outside,keyed}'::text[])[token >> 10 & 3] END
$$;

-- ---- texts --------------------------------------------------------------------------------------------------------

CREATE FUNCTION semel._refuse(text text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = text;
END $$;

-- At most so many bytes, without cutting a character.
CREATE FUNCTION semel._cut(text text, most integer) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    rest text := left(text, most);
BEGIN
    WHILE octet_length(rest) > most LOOP
        rest := left(rest, -greatest(1, (octet_length(rest) - most) / 4));
    END LOOP;
    RETURN rest;
END $$;

-- Foreign text for people: what a terminal might obey, and what hides or reorders its neighbours, becomes a `?`.
CREATE FUNCTION semel._show(text text, most integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT semel._cut(regexp_replace(text COLLATE "C",
        '[\u0001-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb'
        '\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]', '?', 'g'), most)
$$;

-- An id, a key, a source or a name. NULL is for the caller to judge.
CREATE FUNCTION semel._check_text(who text, what text, value text, low integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(value) < low THEN
        PERFORM semel._refuse(format('%s: %s is empty; it must have 1 to 255 bytes', who, what));
    ELSIF octet_length(value) > 255 THEN
        PERFORM semel._refuse(format('%s: %s has %s bytes; at most 255 are allowed', who, what, octet_length(value)));
    END IF;
END $$;

CREATE FUNCTION semel._check_given(who text, what text, given boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT given THEN
        PERFORM semel._refuse(format('%s: %s is missing', who, what));
    END IF;
END $$;

-- ---- streams and keys: the form of semel.record --------------------------------------------------------------------

-- A message id as semel.record keeps it; the same as semel__id_key in src/base/ids.c.
CREATE FUNCTION semel.message_key(message_id text) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN message_id COLLATE "C" OPERATOR(pg_catalog.~~) '________-____-____-____-____________'
                     AND pg_catalog.translate(message_id, '0123456789abcdef', '') COLLATE "C"
                         OPERATOR(pg_catalog.=) '----'
                THEN '\x00'::bytea OPERATOR(pg_catalog.||) pg_catalog.uuid_send(message_id::uuid)
                ELSE pg_catalog.convert_to(message_id, 'UTF8') END
$$;

-- What is stored of the time of a message, beside its key.
CREATE FUNCTION semel._time_beside(key bytea, message_time timestamptz) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN get_byte(key, 0) <> 0 OR get_byte(key, 7) >> 4 <> 7 OR get_byte(key, 9) >> 6 <> 2
                THEN message_time
                WHEN message_time IS NULL THEN '-infinity'
                ELSE nullif(message_time, timestamptz 'epoch'
                            + ('x' || encode(substr(key, 2, 6), 'hex'))::bit(48)::bigint * interval '1 millisecond')
                END
$$;

-- And back: the time of a message, as the view semel.inbox has it.
CREATE FUNCTION semel._time_made(key bytea, message_time timestamptz) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN message_time IS NOT NULL THEN nullif(message_time, '-infinity')
                WHEN get_byte(key, 0) = 0 AND get_byte(key, 7) >> 4 = 7 AND get_byte(key, 9) >> 6 = 2
                THEN timestamptz 'epoch' + ('x' || encode(substr(key, 2, 6), 'hex'))::bit(48)::bigint
                                           * interval '1 millisecond' END
$$;

-- The number of a stream, which is made where it is missing. NULL: another transaction is making it at this moment, and
-- nobody waits for its end.
CREATE FUNCTION semel._stream(of_consumer text, of_source text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    found_one integer;
BEGIN
    SELECT s.stream INTO found_one FROM semel.stream AS s
    WHERE s.consumer = of_consumer COLLATE "C" AND s.source = of_source COLLATE "C";
    IF found_one IS NULL AND pg_try_advisory_xact_lock(hashtextextended(
           of_source COLLATE "C", hashtextextended(of_consumer COLLATE "C", 1936026993))) THEN
        INSERT INTO semel.stream (consumer, source) VALUES (of_consumer, of_source) ON CONFLICT DO NOTHING;
        SELECT s.stream INTO found_one FROM semel.stream AS s
        WHERE s.consumer = of_consumer COLLATE "C" AND s.source = of_source COLLATE "C";
    END IF;
    RETURN found_one;
END $$;

-- What the C library inserts of a batch of one source whose messages are likely to be new: rows that are completed and
-- say little more than that. Where one of them is there already nothing is inserted, and the arrival is NULL. A plain
-- insert costs the server two thirds of one with ON CONFLICT, which writes every row in two steps. The subtransaction
-- makes a value of what the primary key refuses: the transaction goes on, and the server's log has no line of it (I3).
-- An array whose items are all the same is NULL, and that value stands behind it.
-- The watermark is read by a later statement than the insert (P60).
CREATE FUNCTION semel._inbox_new(of_consumer text, of_source text, now timestamptz, places bigint[], keys bytea[],
    fingerprints bytea[], types text[], type text, order_keys text[], order_key text, versions bigint[],
    version bigint, times timestamptz[], message_time timestamptz, positions text[], "position" text,
    traceparents text[], traceparent text, OUT arrival bigint, OUT watermark timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    of_stream integer := (SELECT s.stream FROM semel.stream AS s
                          WHERE s.consumer = of_consumer COLLATE "C" AND s.source = of_source COLLATE "C");
    drawn bigint := nextval('semel.arrival'::regclass) * 16384;
BEGIN
    IF of_stream IS NULL THEN                               -- whoever makes the same one at this moment is waited for
        INSERT INTO semel.stream (consumer, source) VALUES (of_consumer, of_source)
        ON CONFLICT ON CONSTRAINT stream_consumer_source_key DO NOTHING;
        of_stream := (SELECT s.stream FROM semel.stream AS s
                      WHERE s.consumer = of_consumer COLLATE "C" AND s.source = of_source COLLATE "C");
    END IF;
    BEGIN
        IF coalesce(types, order_keys, positions, traceparents) IS NULL AND versions IS NULL AND times IS NULL THEN
            INSERT INTO semel.record (arrival, received_at, stream, key, fingerprint, type, message_time, version,
                                      order_key, "position", traceparent)
            SELECT drawn + b.place, now, of_stream, b.key, b.fingerprint, type, message_time, version, order_key,
                "position", traceparent
            FROM unnest(places, keys, fingerprints) AS b (place, key, fingerprint);
        ELSE
            INSERT INTO semel.record (arrival, received_at, stream, key, fingerprint, type, message_time, version,
                                      order_key, "position", traceparent)
            SELECT drawn + b.place, now, of_stream, b.key, b.fingerprint, coalesce(b.type, type),
                coalesce(b.message_time, message_time), coalesce(b.version, version),
                coalesce(b.order_key, order_key), coalesce(b."position", "position"),
                coalesce(b.traceparent, traceparent)
            FROM unnest(places, keys, fingerprints, types, times, versions, order_keys, positions, traceparents)
                AS b (place, key, fingerprint, type, message_time, version, order_key, "position", traceparent);
        END IF;
    EXCEPTION WHEN unique_violation THEN
        RETURN;
    END;
    arrival := drawn;
    watermark := (SELECT w.watermark FROM semel.watermark AS w
                  WHERE w.consumer = of_consumer COLLATE "C" AND w.source = of_source COLLATE "C"
                    AND w.watermark > '-infinity');
END $$;

-- A row under its lock, as it is then; NULL: it is gone, or skip and somebody else has it. FOR UPDATE of the view would
-- lock its stream, too.
CREATE FUNCTION semel._locked(of_stream integer, of_key bytea, skip boolean) RETURNS semel.inbox LANGUAGE plpgsql AS $$
DECLARE
    r semel.inbox;
BEGIN
    IF skip THEN
        PERFORM FROM semel.record AS i WHERE i.key = of_key AND i.stream = of_stream FOR UPDATE SKIP LOCKED;
    ELSE
        PERFORM FROM semel.record AS i WHERE i.key = of_key AND i.stream = of_stream FOR UPDATE;
    END IF;
    IF FOUND THEN
        SELECT i.* INTO r FROM semel.inbox AS i WHERE i.key = of_key AND i.stream = of_stream;
    END IF;
    RETURN r;
END $$;

-- What the owner of the schema writes into the view, for tests and repairs. Semel itself writes the table.
CREATE FUNCTION semel._inbox_written() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    made semel.record;
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM semel.record AS i WHERE i.key = OLD.key AND i.stream = OLD.stream;
        RETURN CASE WHEN FOUND THEN OLD END;
    END IF;
    NEW.stream := (SELECT s.stream FROM semel.stream AS s WHERE s.consumer = NEW.consumer AND s.source = NEW.source);
    IF NEW.stream IS NULL THEN
        INSERT INTO semel.stream AS s (consumer, source) VALUES (NEW.consumer, NEW.source)
        RETURNING s.stream INTO NEW.stream;
    END IF;
    NEW.key := semel.message_key(NEW.message_id);
    NEW.open_for := CASE WHEN NEW.status NOT IN ('completed', 'rejected', 'stale', 'prevented') THEN NEW.consumer END;
    made := (NEW.arrival, NEW.received_at, NEW.stream, NEW.key, NEW.fingerprint, NEW.type,
             nullif(NEW.status, 'completed'), NEW.open_for, NEW.updated_at, NEW.processed_at, NEW.due_at,
             semel._time_beside(NEW.key, NEW.message_time), NEW.version, NEW.lease_until, NEW.lease_token,
             nullif(NEW.attempts, 1), NEW.attempts_before, NEW.retries, nullif(NEW.alone, false), NEW.order_key,
             NEW.lease_owner, NEW.error_class, NEW.error_text, NEW.outcome, NEW.position, NEW.headers, NEW.payload,
             NEW.traceparent);
    IF TG_OP = 'INSERT' THEN
        INSERT INTO semel.record VALUES (made.*);
    ELSE
        UPDATE semel.record AS i
        SET (arrival, received_at, stream, key, fingerprint, type, status, open_for, updated_at, processed_at, due_at,
             message_time, version, lease_until, lease_token, attempts, attempts_before, retries, alone, order_key,
             lease_owner, error_class, error_text, outcome, position, headers, payload, traceparent)
            = (SELECT made.*)
        WHERE i.key = OLD.key AND i.stream = OLD.stream;
        RETURN CASE WHEN FOUND THEN NEW END;
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER inbox_written INSTEAD OF INSERT OR UPDATE OR DELETE ON semel.inbox
FOR EACH ROW EXECUTE FUNCTION semel._inbox_written();

ALTER VIEW semel.inbox ALTER COLUMN attempts SET DEFAULT 0;
ALTER VIEW semel.inbox ALTER COLUMN attempts_before SET DEFAULT 0;
ALTER VIEW semel.inbox ALTER COLUMN retries SET DEFAULT 0;
ALTER VIEW semel.inbox ALTER COLUMN alone SET DEFAULT false;

-- ---- who may act for whom -----------------------------------------------------------------------------------------

-- The role that is SET, else the one that logged in: inside of these functions current_user is their owner.
CREATE FUNCTION semel._actor() RETURNS name LANGUAGE sql STABLE AS $$
    SELECT CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role')::name END
$$;

-- By semel.access. In plpgsql, whose plan for the empty table is kept.
CREATE FUNCTION semel._may_act(for_consumer text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM semel.access) THEN
        RETURN true;
    END IF;
    RETURN EXISTS (SELECT FROM semel.access AS a JOIN pg_roles AS r ON r.rolname = a.role
                   WHERE a.consumer IN (for_consumer COLLATE "C", '*')
                     AND pg_has_role(semel._actor(), r.oid, 'MEMBER'));
END $$;

CREATE FUNCTION semel._check_access(who text, for_consumer text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT semel._may_act(for_consumer) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('%s: role "%s" may not act for consumer "%s"; the table semel.access lists which role may',
                             who, semel._actor(), semel._show(for_consumer, 255));
    END IF;
END $$;

-- In microseconds; NULL where it is not given: the consumer's own.
CREATE FUNCTION semel._check_lease(who text, lease interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    seconds numeric := extract(epoch FROM lease);
BEGIN
    IF seconds < 0.001 OR seconds > 86400 THEN
        PERFORM semel._refuse(format('%s: lease must be from 1ms to 1 day, such as ''60s''', who));
    END IF;
    RETURN (seconds * 1000000)::bigint;
END $$;

CREATE FUNCTION semel._check_max(who text, most integer, bound integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_given(who, 'max', most IS NOT NULL);
    IF most NOT BETWEEN 1 AND bound THEN
        PERFORM semel._refuse(format('%s: max must be from 1 to %s', who, bound));
    END IF;
END $$;

-- What a worker says of its run; maybe is the same as unknown.
CREATE FUNCTION semel._check_class(who text, class text, may_be_done boolean) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_given(who, 'class', class IS NOT NULL);
    IF class COLLATE "C" IN ('transient', 'permanent', 'rejected') OR (may_be_done AND class COLLATE "C" = 'done') THEN
        RETURN class;
    ELSIF class COLLATE "C" IN ('unknown', 'maybe') THEN
        RETURN 'maybe';
    END IF;
    PERFORM semel._refuse(format('%s: class must be %stransient, permanent, rejected or unknown', who,
                                 CASE WHEN may_be_done THEN 'done, ' ELSE '' END));
END $$;

CREATE FUNCTION semel._check_outcome(who text, outcome jsonb) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(outcome::text) > 65536 THEN
        PERFORM semel._refuse(format('%s: outcome has %s bytes; at most 65536 are allowed', who,
                                     octet_length(outcome::text)));
    END IF;
    RETURN outcome::text;
END $$;

-- Does the JSON have a number that jsonb writes out in thousands of digits, such as 1e131000? A few of them in a small
-- payload would cost minutes and gigabytes. No double has such an exponent.
CREATE FUNCTION semel._huge(text text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT text ~ '[0-9][eE][+-]?([4-9][0-9]{2}|[0-9]{4})'
       AND regexp_replace(text, '"(?:[^"\\]|\\.)*"', '', 'g') ~ '[0-9][eE][+-]?([4-9][0-9]{2}|[0-9]{4})'
$$;

-- Text that another client may have written; NULL where it is no JSON that this server can hold.
CREATE FUNCTION semel._jsonb(text text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN NOT semel._huge(text) THEN text::jsonb END;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;

-- ---- the settings of a consumer -----------------------------------------------------------------------------------

-- Times in microseconds. A first_version that is NULL is `any`, a business_retention that is NULL is `forever`.
CREATE TYPE semel._policy AS (
    consumer            text COLLATE "C",
    effect              text COLLATE "C",
    ord                 text COLLATE "C",                   -- none, arrival or version
    first_version       bigint,
    on_gap              text COLLATE "C",
    gap_timeout         bigint,
    retry_max           integer,
    permanent_max       integer,
    retry_first         bigint,
    retry_ceiling       bigint,
    lease               bigint,
    parked_key_max      integer,
    parked_consumer_max integer,
    keep                text COLLATE "C",
    payload_max         integer,
    retention           bigint,
    business_retention  bigint,
    timed_ids           text COLLATE "C",                   -- uuidv7, true, false or ulid
    one_source          boolean,
    effect_said         boolean,
    order_said          boolean
);

-- What settings there are, in the order of the type above; src/core/consumer.c has the same table.
CREATE FUNCTION semel._members(OUT place integer, OUT name text, OUT kind text, OUT words text[], OUT low bigint,
                               OUT high bigint, OUT absent text, OUT value text)
RETURNS SETOF record LANGUAGE sql IMMUTABLE ROWS 17 AS $$
    VALUES (1, 'effect', 'word', '{atomic,outside,keyed}'::text[], NULL::bigint, NULL::bigint, NULL, 'atomic'),
           (2, 'order', 'word', '{none,arrival,version}', NULL, NULL, NULL, 'none'),
           (3, 'first_version', 'count', NULL, 0, 9223372036854775807, 'any', '1'),
           (4, 'on_gap', 'word', '{dead,apply,alert}', NULL, NULL, NULL, 'dead'),
           (5, 'gap_timeout', 'time', NULL, 1000, 2592000000000, NULL, '300000000'),
           (6, 'retry_max', 'count', NULL, 1, 1000, NULL, '8'),
           (7, 'permanent_max', 'count', NULL, 1, 1000, NULL, '1'),
           (8, 'retry_first', 'time', NULL, 1000, 86400000000, NULL, '1000000'),
           (9, 'retry_ceiling', 'time', NULL, 1000, 2592000000000, NULL, '600000000'),
           (10, 'lease', 'time', NULL, 1000, 86400000000, NULL, '60000000'),
           (11, 'parked_key_max', 'count', NULL, 1, 100000, NULL, '1000'),
           (12, 'parked_consumer_max', 'count', NULL, 1, 1000000, NULL, '100000'),
           (13, 'keep_payload', 'word', '{unfinished,always,never}', NULL, NULL, NULL, 'unfinished'),
           (14, 'payload_max', 'count', NULL, 1, 67108864, NULL, '1048576'),
           (15, 'retention', 'time', NULL, 3600000000, 3153600000000000, NULL, '3888000000000'),
           (16, 'business_retention', 'time', NULL, 1000, 3153600000000000, 'forever', NULL),
           (17, 'timed_ids', 'word', '{uuidv7,false,true,ulid}', NULL, NULL, NULL, 'uuidv7'),
           (18, 'one_source', 'flag', NULL, NULL, NULL, NULL, 'false')
$$;

-- A whole number and a unit; NULL: it is no duration, or too long.
CREATE FUNCTION semel._duration(text text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN us <= 9223372036854775807 THEN us::bigint END
    FROM (SELECT m[1]::numeric * CASE m[2] WHEN 'us' THEN 1 WHEN 'ms' THEN 1000 WHEN 's' THEN 1000000
                                           WHEN 'm' THEN 60000000 WHEN 'h' THEN 3600000000 ELSE 86400000000 END AS us
          FROM regexp_match(text COLLATE "C", '^([0-9]{1,19})(us|ms|s|m|h|d)$') AS m) AS d
$$;

-- The shortest exact form.
CREATE FUNCTION semel._duration_text(us bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN us = 0 THEN '0s'
                WHEN us % 86400000000 = 0 THEN us / 86400000000 || 'd'
                WHEN us % 3600000000 = 0 THEN us / 3600000000 || 'h'
                WHEN us % 60000000 = 0 THEN us / 60000000 || 'm' WHEN us % 1000000 = 0 THEN us / 1000000 || 's'
                WHEN us % 1000 = 0 THEN us / 1000 || 'ms' ELSE us || 'us' END
$$;

-- One value as it is stored in the policy, or the word for none; NULL: it does not fit.
CREATE FUNCTION semel._member_value(kind text, words text[], low bigint, high bigint, absent text, given jsonb)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    is_text boolean := jsonb_typeof(given) = 'string';
    said text COLLATE "C" := given #>> '{}';
    number numeric;
BEGIN
    IF kind = 'flag' THEN
        RETURN CASE WHEN jsonb_typeof(given) = 'boolean' THEN said END;
    ELSIF kind = 'word' THEN
        RETURN CASE WHEN said = ANY (words)
                         AND jsonb_typeof(given) = CASE WHEN said IN ('true', 'false') THEN 'boolean'
                                                        ELSE 'string' END THEN said END;
    ELSIF is_text AND said = absent THEN
        RETURN absent;
    ELSIF kind = 'time' AND is_text THEN
        number := semel._duration(said);
    ELSIF kind = 'count' AND jsonb_typeof(given) = 'number' AND said ~ '^-?[0-9]+$' THEN
        number := said::numeric;
    END IF;
    RETURN CASE WHEN number BETWEEN low AND high THEN number::text END;
END $$;

-- What would be right: "one of atomic|outside|keyed", "a whole number, 1 to 1000".
CREATE FUNCTION semel._member_range(kind text, words text[], low bigint, high bigint, absent text)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE kind WHEN 'flag' THEN 'true|false' WHEN 'word' THEN 'one of ' || array_to_string(words, '|')
                     WHEN 'time' THEN format('a duration such as "90s", %s to %s', semel._duration_text(low),
                                             semel._duration_text(high))
                     ELSE 'a whole number, ' || low || CASE WHEN high = 9223372036854775807 THEN ' or more'
                                                            ELSE ' to ' || high END END
           || coalesce(', or ' || absent, '')
$$;

CREATE FUNCTION semel._json_shown(given jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE jsonb_typeof(given) WHEN 'array' THEN 'a list' WHEN 'object' THEN 'an object'
                                    WHEN 'string' THEN format('"%s%s"', semel._show(said, 40),
                                                              CASE WHEN octet_length(said) > 40 THEN '...' END)
                                    ELSE semel._cut(said, 40) END
    FROM (SELECT coalesce(given #>> '{}', 'null') AS said) AS s
$$;

CREATE FUNCTION semel._bad_settings(what text, consumer text, why text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._refuse(format('%s of consumer "%s": %s', what, semel._show(consumer, 40), why));
END $$;

-- What one setting says of another.
CREATE FUNCTION semel._policy_check(what text, p semel._policy) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p.retry_ceiling < p.retry_first THEN
        PERFORM semel._bad_settings(what, p.consumer, format(
            'retry_ceiling is %s; it must be at least retry_first, which is %s', semel._duration_text(p.retry_ceiling),
            semel._duration_text(p.retry_first)));
    ELSIF p.keep = 'never' AND p.ord <> 'none' THEN
        PERFORM semel._bad_settings(what, p.consumer, 'keep_payload is never; it must be unfinished or always where '
                                                      'an order is kept: messages wait in the store');
    ELSIF p.keep = 'never' AND p.effect <> 'atomic' THEN
        PERFORM semel._bad_settings(what, p.consumer, 'keep_payload is never; it must be unfinished or always unless '
                                                      'the effect is atomic: retries need it');
    END IF;
END $$;

CREATE FUNCTION semel._policy_read(what text, who text, settings jsonb)
RETURNS semel._policy LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v text[];
    p semel._policy;
    said record;
BEGIN
    IF jsonb_typeof(settings) <> 'object' THEN
        PERFORM semel._bad_settings(what, who, format('what was given is %s; it must be a JSON object such as '
                                                      '{"retry_max": 5}', semel._json_shown(settings)));
    ELSIF octet_length(settings::text) > 4096 THEN
        PERFORM semel._bad_settings(what, who, format('they have %s bytes; at most 4096 are allowed',
                                                      octet_length(settings::text)));
    END IF;
    SELECT array_agg(m.value ORDER BY m.place) INTO v FROM semel._members() AS m;
    FOR said IN SELECT s.key, s.value AS given, m.*,
                       semel._member_value(m.kind, m.words, m.low, m.high, m.absent, s.value) AS got
                FROM jsonb_each(settings) AS s LEFT JOIN semel._members() AS m ON m.name = s.key LOOP
        IF said.name IS NULL THEN
            PERFORM semel._bad_settings(what, who, format(
                'there is no setting "%s"; docs/settings-consumer.md lists them', semel._show(said.key, 40)));
        ELSIF said.got IS NULL THEN
            PERFORM semel._bad_settings(what, who, format(
                '%s is %s; it must be %s', said.name, semel._json_shown(said.given),
                semel._member_range(said.kind, said.words, said.low, said.high, said.absent)));
        END IF;
        v[said.place] := nullif(said.got, said.absent);
    END LOOP;
    p := (who, v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15], v[16],
          v[17], v[18], settings ? 'effect', settings ? 'order');
    PERFORM semel._policy_check(what, p);
    RETURN p;
END $$;

-- A constant, which the planner works out once a session. A migration that changes a default touches every consumer.
CREATE FUNCTION semel._policy_default() RETURNS semel._policy LANGUAGE sql IMMUTABLE
AS $$ SELECT semel._policy_read('settings', '', '{}') $$;

-- The settings as they were read when they were written, so that reading them again costs nothing; NULL where they
-- could not be read: an error names them to whoever needs them.
ALTER TABLE semel.consumer ADD COLUMN policy semel._policy;

CREATE FUNCTION semel._consumer_written() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    NEW.policy := semel._policy_read('settings', NEW.consumer, NEW.settings);
    RETURN NEW;
EXCEPTION WHEN invalid_parameter_value THEN
    NEW.policy := NULL;
    RETURN NEW;
END $$;

CREATE TRIGGER consumer_written BEFORE INSERT OR UPDATE ON semel.consumer
FOR EACH ROW EXECUTE FUNCTION semel._consumer_written();

UPDATE semel.consumer SET settings = settings;

CREATE FUNCTION semel._policy(who text) RETURNS semel._policy LANGUAGE plpgsql AS $$
DECLARE
    p semel._policy;
    stored record;
BEGIN
    SELECT c.policy, c.settings INTO stored FROM semel.consumer AS c WHERE c.consumer = who COLLATE "C";
    IF NOT FOUND THEN
        p := semel._policy_default();
        p.consumer := who;
    ELSIF stored.policy IS NULL THEN
        p := semel._policy_read('stored settings', who, stored.settings);
    ELSE
        p := stored.policy;
    END IF;
    RETURN p;
END $$;

-- All members, defaults included.
CREATE FUNCTION semel._policy_json(p semel._policy) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'effect', p.effect, 'order', p.ord, 'first_version', coalesce(to_jsonb(p.first_version), '"any"'),
        'on_gap', p.on_gap, 'gap_timeout', semel._duration_text(p.gap_timeout), 'retry_max', p.retry_max,
        'permanent_max', p.permanent_max, 'retry_first', semel._duration_text(p.retry_first),
        'retry_ceiling', semel._duration_text(p.retry_ceiling), 'lease', semel._duration_text(p.lease),
        'parked_key_max', p.parked_key_max, 'parked_consumer_max', p.parked_consumer_max, 'keep_payload', p.keep,
        'payload_max', p.payload_max, 'retention', semel._duration_text(p.retention),
        'business_retention', coalesce(semel._duration_text(p.business_retention), 'forever'),
        'timed_ids', CASE WHEN p.timed_ids IN ('true', 'false') THEN p.timed_ids::jsonb ELSE to_jsonb(p.timed_ids) END,
        'one_source', p.one_source)
$$;

-- Where the order is not said, the first message with an order key settles it, and that is stored beside what was said.
CREATE FUNCTION semel._policy_settle(p semel._policy, versioned boolean) RETURNS semel._policy LANGUAGE plpgsql AS $$
DECLARE
    settled text COLLATE "C" := CASE WHEN versioned THEN 'version' ELSE 'arrival' END;
BEGIN
    IF NOT p.order_said THEN
        p.ord := settled;
        PERFORM semel._policy_check('a message has an order key; settings', p);
        INSERT INTO semel.consumer AS c VALUES (p.consumer, jsonb_build_object('order', settled), semel._now())
        ON CONFLICT (consumer) DO UPDATE
        SET settings = c.settings || excluded.settings, updated_at = excluded.updated_at
        WHERE NOT c.settings ? 'order';
        p := semel._policy(p.consumer);
    END IF;
    RETURN p;
END $$;

-- ---- was the server promoted? -------------------------------------------------------------------------------------

CREATE FUNCTION semel._timeline_note() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    last semel.timeline;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('semel.timeline', 0));   -- one notices, the others find it noticed
    SELECT t.* INTO last FROM semel.timeline AS t ORDER BY t.number DESC LIMIT 1;
    IF last.timeline = NEW.timeline THEN
        RETURN NULL;
    END IF;
    NEW.former := last.timeline;
    NEW.noticed_at := semel._now();
    NEW.kept_until := NULL;
    NEW.note := NULL;
    IF NEW.former IS NOT NULL THEN
        NEW.kept_until := pg_last_xact_replay_timestamp();
        NEW.note := format('the server was promoted or restored (timeline %s to %s): anything committed %s lost',
            NEW.former, NEW.timeline,
            coalesce('after ' || to_char(NEW.kept_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || ' UTC is',
                     'shortly before may be'));
        INSERT INTO semel.audit (at, who, what, reason) VALUES (NEW.noticed_at, session_user, 'timeline', NEW.note);
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER timeline_is_noted BEFORE INSERT ON semel.timeline
FOR EACH ROW EXECUTE FUNCTION semel._timeline_note();

-- What nobody had noticed so far; NULL: nothing new, or the server keeps its log to itself.
CREATE FUNCTION semel._timeline() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    now_on bigint;
    told text;
BEGIN
    BEGIN
        now_on := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    EXCEPTION WHEN undefined_function OR insufficient_privilege OR feature_not_supported OR
                   object_not_in_prerequisite_state THEN
        RETURN NULL;
    END;
    IF now_on IS DISTINCT FROM (SELECT t.timeline FROM semel.timeline AS t ORDER BY t.number DESC LIMIT 1)
       AND pg_try_advisory_xact_lock(hashtextextended('semel.timeline', 0)) THEN      -- else somebody else notices it
        INSERT INTO semel.timeline (timeline) VALUES (now_on) RETURNING note INTO told;
    END IF;
    RETURN told;
END $$;

-- ---- do the sequences stand behind what is stored? ----------------------------------------------------------------

-- In one statement each: what the snapshot shows was drawn before the sequence is read. A number beyond the sequence of
-- the arrivals, and not below the bound; NULL: there is none.
CREATE FUNCTION semel._arrival_beyond(bound bigint) RETURNS bigint LANGUAGE sql STABLE
SET enable_seqscan = off SET jit = off AS $$
    SELECT i.arrival FROM semel.record AS i
    WHERE i.arrival >= greatest(bound, (SELECT (q.last_value + CASE WHEN q.is_called THEN 1 ELSE 0 END) * 16384
                                         FROM semel.arrival AS q)) LIMIT 1
$$;

CREATE FUNCTION semel._identity_beyond(tab text, col text, seq regclass) RETURNS bigint LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    top bigint;
BEGIN
    EXECUTE format('SELECT max(t.%1$I) FROM semel.%2$I AS t HAVING max(t.%1$I) > (SELECT q.last_value - '
                   'CASE WHEN q.is_called THEN 0 ELSE 1 END FROM %3$s AS q)', col, tab, seq) INTO top;
    RETURN top;
END $$;

-- Past the highest arrival, by a sixty-fourth at most; seen: one that is beyond the sequence.
CREATE FUNCTION semel._arrival_past(seen bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    low bigint := seen;
    high bigint := seen + 16384;
BEGIN
    LOOP
        seen := semel._arrival_beyond(high);
        EXIT WHEN seen IS NULL;
        low := seen;
        high := 2 * seen;
    END LOOP;
    WHILE high - low > low / 64 + 16384 LOOP
        seen := semel._arrival_beyond(low + (high - low) / 2);
        IF seen IS NULL THEN
            high := low + (high - low) / 2;
        ELSE
            low := seen;
        END IF;
    END LOOP;
    RETURN high;
END $$;

-- Moves what began anew past what is stored, and never back; what was noticed, else NULL. Of several sessions one does.
CREATE FUNCTION semel._sequences() RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    key bigint := hashtextextended('semel.sequences', 0);
    s record;
    top bigint := semel._arrival_beyond(0);
    moved text[] := '{}';
    told text;
BEGIN
    IF top IS NOT NULL AND pg_try_advisory_xact_lock(key) AND semel._arrival_beyond(0) IS NOT NULL THEN
        PERFORM setval('semel.arrival'::regclass, semel._arrival_past(top) / 16384 + 1);
        moved := moved || 'arrival'::text;
    END IF;
    FOR s IN SELECT v.tab, v.col, v.source, ('semel.' || v.tab || '_' || v.col || '_seq')::regclass AS seq
             FROM (VALUES ('attempt', 'id', 'attempt'), ('audit', 'id', 'audit'), ('outbox', 'seq', 'outbox_last'),
                          ('selection', 'number', 'selection'), ('stream', 'stream', 'stream'),
                          ('timeline', 'number', 'timeline'))
                  AS v (tab, col, source) LOOP
        top := semel._identity_beyond(s.source, s.col, s.seq);
        IF top IS NOT NULL AND pg_try_advisory_xact_lock(key)
           AND semel._identity_beyond(s.source, s.col, s.seq) IS NOT NULL THEN
            PERFORM setval(s.seq, top);
            moved := moved || s.tab;
        END IF;
    END LOOP;
    IF moved <> '{}' THEN
        told := format('the database was restored or switched over without its sequences (%s): they were moved past '
                       'what is stored', array_to_string(moved, ', '));
        INSERT INTO semel.audit (at, who, what, reason) VALUES (semel._now(), session_user, 'sequences', told);
    END IF;
    RETURN told;
END $$;

-- Who inserts a row has looked; it stays only where something was noticed. So a worker needs no right to the function.
CREATE FUNCTION semel._restart_note() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    NEW.note := semel._sequences();
    NEW.noticed_at := semel._now();
    RETURN CASE WHEN NEW.note IS NOT NULL THEN NEW END;
END $$;

CREATE TRIGGER restart_is_noted BEFORE INSERT ON semel.restart
FOR EACH ROW EXECUTE FUNCTION semel._restart_note();

-- Nobody but the owner may call what is made here; roles.sql grants what an application needs.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;

DO $$
BEGIN
    INSERT INTO semel.restart (note) VALUES ('');
    PERFORM semel._timeline();
END $$;

INSERT INTO semel.schema (version, name) VALUES (13, 'ground');
