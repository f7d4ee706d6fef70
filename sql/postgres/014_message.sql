-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: a message as the rules see it: its fields checked, its age and its fingerprint.
--
-- A fingerprint says "the same payload". It carries its kind, and only equal kinds are compared, so that what one
-- client can compute and another cannot makes no false conflict:
--     c...   what the caller gave
--     j...   16 bytes of the SHA-256 of the canonical form of JSON (RFC 8785), as the C library computes it
--     r...   16 bytes of the SHA-256 of the bytes
--     NULL   not compared: there is no payload, or it is jsonb with a number that is not exact as a double

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- ---- ids with a time ----------------------------------------------------------------------------------------------

-- The time inside a UUIDv7, or a ULID where those count, if it lies from 2010 to tomorrow; NULL: the id has none.
CREATE FUNCTION semel._id_time(id text, ulids boolean) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    upper_id text COLLATE "C" := upper(id COLLATE "C");
    ms bigint := 0;
BEGIN
    IF octet_length(id) = 36 AND upper_id ~ '^[0-9A-F]{8}-[0-9A-F]{4}-7[0-9A-F]{3}-[89AB][0-9A-F]{3}-[0-9A-F]{12}$' THEN
        ms := ('x' || substr(upper_id, 1, 8) || substr(upper_id, 10, 4))::bit(48)::bigint;
    ELSIF ulids AND octet_length(id) = 26 AND upper_id ~ '^[0-7][0-9A-HJKMNP-TV-Z]{25}$' THEN
        FOR i IN 1..10 LOOP
            ms := ms * 32 + strpos('0123456789ABCDEFGHJKMNPQRSTVWXYZ', substr(upper_id, i, 1)) - 1;
        END LOOP;
    ELSE
        RETURN NULL;
    END IF;
    IF ms < 1262304000000 OR semel._later('epoch', ms * 1000) > semel._now() + interval '24 hours' THEN
        RETURN NULL;
    END IF;
    RETURN semel._later('epoch', ms * 1000);
END $$;

-- ---- the fingerprint ----------------------------------------------------------------------------------------------

-- The shortest decimal that reads back as the double, whatever the session's settings.
CREATE FUNCTION semel._shortest(value double precision) RETURNS numeric LANGUAGE plpgsql IMMUTABLE
SET extra_float_digits = 1 AS $$
BEGIN
    RETURN trim_scale(value::text::numeric);
END $$;

-- As ECMAScript writes the number; NULL: it does not survive as a double.
CREATE FUNCTION semel._canonical_number(value numeric) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    plain text;
    digits text;
    point integer;                                          -- where it stands, counted from the first digit
BEGIN
    IF value = 0 THEN
        RETURN '0';
    ELSIF abs(value) NOT BETWEEN 5e-324 AND 1.7976931348623157e308
          OR semel._shortest(value::double precision) <> value THEN
        RETURN NULL;
    END IF;
    plain := trim_scale(abs(value))::text;
    digits := ltrim(replace(plain, '.', ''), '0');
    point := CASE WHEN abs(value) >= 1 THEN length(split_part(plain, '.', 1))
                  ELSE length(digits) - length(split_part(plain, '.', 2)) END;
    IF point NOT BETWEEN -5 AND 21 THEN
        digits := rtrim(digits, '0');
        plain := left(digits, 1) || CASE WHEN length(digits) > 1 THEN '.' || substr(digits, 2) ELSE '' END
                 || CASE WHEN point > 0 THEN 'e+' ELSE 'e-' END || abs(point - 1);
    END IF;
    RETURN CASE WHEN value < 0 THEN '-' ELSE '' END || plain;
END $$;

-- RFC 8785; NULL: it has no canonical form, or is nested deeper than the C library reads. Members are sorted by bytes,
-- which is the order of UTF-16 but for rare names; _canonical_digest leaves those out. OFFSET 0 keeps the planner from
-- working out each part as often as it is named, which would double the work with every level.
CREATE FUNCTION semel._canonical(value jsonb, depth integer) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    form text;
BEGIN
    IF depth > 64 THEN
        RETURN NULL;
    ELSIF jsonb_typeof(value) = 'object' THEN
        SELECT CASE WHEN count(m.form) = count(*) THEN
                    '{' || coalesce(string_agg(to_jsonb(m.key)::text || ':' || m.form, ',' ORDER BY m.key COLLATE "C"),
                                    '') || '}' END
        INTO form
        FROM (SELECT e.key, semel._canonical_part(e.value, e.value::text, depth) AS form
              FROM jsonb_each(value) AS e OFFSET 0) AS m;
    ELSE
        SELECT CASE WHEN count(m.form) = count(*) THEN
                    '[' || coalesce(string_agg(m.form, ',' ORDER BY m.place), '') || ']' END
        INTO form
        FROM (SELECT e.place, semel._canonical_part(e.value, e.value::text, depth) AS form
              FROM jsonb_array_elements(value) WITH ORDINALITY AS e (value, place) OFFSET 0) AS m;
    END IF;
    RETURN form;
END $$;

-- Plain SQL, so that the planner puts it in the place of the call: most parts stand for themselves.
CREATE FUNCTION semel._canonical_part(value jsonb, as_text text, depth integer)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(value) IN ('object', 'array') THEN semel._canonical(value, depth + 1)
                WHEN jsonb_typeof(value) <> 'number' OR as_text ~ '^(0|-?[1-9][0-9]{0,14})$' THEN as_text
                ELSE semel._canonical_number(as_text::numeric) END
$$;

CREATE FUNCTION semel._canonical_digest(value jsonb) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    form text COLLATE "C" := semel._canonical_part(value, value::text, 0);
BEGIN
    IF octet_length(form) > length(form) AND form ~ '[\U00010000-\U0010ffff]' AND form ~ '[\ue000-\uffff]' THEN
        RETURN NULL;
    END IF;
    RETURN '\x6a'::bytea || substr(sha256(convert_to(form, 'UTF8')), 1, 16);
END $$;

CREATE FUNCTION semel._fingerprint(payload jsonb, bytes bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    inner_bytes bytea := btrim(bytes, '\x20090a0d');
    found bytea;
BEGIN
    IF payload IS NOT NULL THEN
        RETURN semel._canonical_digest(payload);
    ELSIF octet_length(inner_bytes) > 0
          AND (get_byte(inner_bytes, 0) IN (34, 45, 91, 102, 110, 116, 123)     -- "-[fnt{
               OR get_byte(inner_bytes, 0) BETWEEN 48 AND 57) THEN
        BEGIN
            found := semel._canonical_digest(semel._jsonb(convert_from(bytes, 'UTF8')));
        EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
            found := NULL;                                  -- not JSON: compared by its bytes
        END;
    END IF;
    RETURN coalesce(found, '\x72'::bytea || substr(sha256(bytes), 1, 16));
END $$;

-- Both are there, of one kind, and differ.
CREATE FUNCTION semel._conflicts(a bytea, b bytea) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(a <> b AND get_byte(a, 0) = get_byte(b, 0), false) $$;

-- ---- messages -----------------------------------------------------------------------------------------------------

CREATE TYPE semel._message AS (
    source       text COLLATE "C",
    message_id   text COLLATE "C",
    type         text COLLATE "C",
    payload      bytea,                                     -- NULL: none was given; empty is content
    headers      text,
    business_key text COLLATE "C",
    order_key    text COLLATE "C",
    version      bigint,
    fingerprint  bytea,
    message_time timestamptz,
    defect       text COLLATE "C",                          -- no_id, field or size; NULL: it may run
    defect_text  text
);

-- What the caller has passed, and no other message would put right.
CREATE FUNCTION semel._check_message(
    who text, message_id text, source text, type text, twice boolean, bytes bytea, headers jsonb, business_key text,
    version bigint, fingerprint bytea, message_time timestamptz, delivery integer)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_text(who, 'message_id', message_id, 1);
    PERFORM semel._check_text(who, 'source', source, 0);
    PERFORM semel._check_text(who, 'type', type, 0);
    PERFORM semel._check_text(who, 'business_key', business_key, 1);
    IF twice THEN
        PERFORM semel._refuse(format('%s: payload and raw are both given; give one of them', who));
    ELSIF octet_length(bytes) > 67108864 THEN
        PERFORM semel._refuse(format('%s: payload has %s bytes; at most 67108864 are allowed', who,
                                     octet_length(bytes)));
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        PERFORM semel._refuse(format('%s: headers must be a JSON object', who));
    ELSIF octet_length(headers::text) > 1048576 THEN
        PERFORM semel._refuse(format('%s: headers have %s bytes; at most 1048576 are allowed', who,
                                     octet_length(headers::text)));
    ELSIF version NOT BETWEEN 0 AND 9223372036854775806 THEN
        PERFORM semel._refuse(format('%s: version is %s; it must be a whole number from 0 to 2^63-2', who, version));
    ELSIF octet_length(fingerprint) NOT BETWEEN 1 AND 63 THEN
        PERFORM semel._refuse(format('%s: fingerprint has %s bytes; it must have 1 to 63', who,
                                     octet_length(fingerprint)));
    ELSIF message_time NOT BETWEEN '0001-01-01 00:00+00' AND '9999-12-31 00:00+00' THEN
        PERFORM semel._refuse(format('%s: message_time must lie in the years 1 to 9999', who));
    ELSIF delivery < 0 THEN
        PERFORM semel._refuse(format('%s: delivery is %s; it must be 1 for the first, more for the next ones', who,
                                     delivery));
    END IF;
END $$;

-- What is wrong with the message itself: it is kept, with the reason, and never runs.
CREATE FUNCTION semel._defect(p semel._policy, m semel._message) RETURNS semel._message LANGUAGE plpgsql AS $$
BEGIN
    IF m.message_id IS NULL THEN
        m.message_id := 'sha256:' || encode(sha256(coalesce(m.payload, '')), 'hex');
        m.defect := 'no_id';
        m.defect_text := 'message id is empty; it must have 1 to 255 bytes';
    ELSIF p.ord = 'version' AND m.order_key IS NULL THEN
        m.defect := 'field';
        m.defect_text := 'the route goes by versions, and the message has no order key';
    ELSIF p.ord = 'version' AND m.version IS NULL THEN
        m.defect := 'field';
        m.defect_text := 'the route goes by versions, and the message has none; it must be a whole number from 0';
    ELSIF octet_length(m.payload) > p.payload_max THEN
        m.defect := 'size';
        m.defect_text := format('the payload has %s bytes; the route allows %s', octet_length(m.payload),
                                p.payload_max);
    END IF;
    RETURN m;
END $$;

-- The settings that hold for a call.
CREATE FUNCTION semel._policy_for(who text, consumer text, order_key text, version bigint)
RETURNS semel._policy LANGUAGE plpgsql AS $$
DECLARE
    p semel._policy;
BEGIN
    IF consumer IS NULL OR least(octet_length(consumer), octet_length(order_key)) < 1
       OR greatest(octet_length(consumer), octet_length(order_key)) > 255 THEN
        PERFORM semel._check_given(who, 'consumer', consumer IS NOT NULL);
        PERFORM semel._check_text(who, 'consumer', consumer, 1);
        PERFORM semel._check_text(who, 'order_key', order_key, 1);
    END IF;
    PERFORM semel._check_access(who, consumer);
    p := semel._policy(consumer);
    IF order_key IS NOT NULL AND NOT p.order_said THEN
        p := semel._policy_settle(p, version IS NOT NULL);
    END IF;
    RETURN p;
END $$;

-- The arguments of a call as a message. They are checked one by one only where there is something to say about them.
CREATE FUNCTION semel._message(
    who text, p semel._policy, message_id text, source text, type text, payload jsonb, raw bytea, headers jsonb,
    business_key text, order_key text, version bigint, fingerprint bytea, message_time timestamptz, delivery integer)
RETURNS semel._message LANGUAGE plpgsql AS $$
DECLARE
    bytes bytea := coalesce(raw, convert_to(payload::text, 'UTF8'));
    m semel._message;
BEGIN
    IF octet_length(message_id) NOT BETWEEN 1 AND 255 OR octet_length(business_key) NOT BETWEEN 1 AND 255
       OR greatest(octet_length(source), octet_length(type)) > 255 OR (payload IS NOT NULL AND raw IS NOT NULL)
       OR octet_length(bytes) > 67108864 OR headers IS NOT NULL OR version IS NOT NULL OR fingerprint IS NOT NULL
       OR message_time IS NOT NULL OR delivery IS NOT NULL THEN
        PERFORM semel._check_message(who, message_id, source, type, payload IS NOT NULL AND raw IS NOT NULL, bytes,
                                     headers, business_key, version, fingerprint, message_time, delivery);
    END IF;
    m := (CASE WHEN p.one_source THEN '' ELSE coalesce(source, '') END, message_id, type, bytes,
          CASE WHEN bytes = '' THEN headers ELSE headers - 'semel_tombstone' END::text, business_key,
          CASE WHEN p.ord <> 'none' THEN order_key END, version,
          CASE WHEN fingerprint IS NOT NULL THEN '\x63'::bytea || fingerprint
               WHEN octet_length(bytes) <= p.payload_max THEN semel._fingerprint(payload, bytes) END,
          CASE WHEN message_time IS NOT NULL THEN message_time
               WHEN p.timed_ids <> 'false' AND octet_length(message_id) IN (26, 36)
               THEN semel._id_time(message_id, p.timed_ids <> 'uuidv7') END, NULL, NULL);
    IF message_id IS NULL OR p.ord = 'version' OR octet_length(bytes) > p.payload_max THEN
        m := semel._defect(p, m);
    END IF;
    IF p.ord = 'arrival' AND order_key IS NOT NULL AND version IS NOT NULL AND m.defect IS NULL THEN
        PERFORM semel._bad_settings('settings', p.consumer, 'order is arrival, and a message has a version; give none, '
            'or set order to version (and first_version to any where keys begin later)');
    END IF;
    RETURN m;
END $$;

-- The arguments of a call as policy and message, or what is wrong with them. The subtransaction of the handler writes
-- nothing, but for the first message with an order key (_policy_settle).
CREATE FUNCTION semel._given(
    who text, consumer text, message_id text, source text, type text, payload jsonb, raw bytea, headers jsonb,
    business_key text, order_key text, version bigint, fingerprint bytea, message_time timestamptz, delivery integer,
    class text = 'transient', lease interval = NULL,
    OUT p semel._policy, OUT m semel._message, OUT refusal text)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM semel._check_class(who, class, false);
    PERFORM semel._check_lease(who, lease);
    IF who = 'inbox_fail' THEN
        PERFORM semel._check_given(who, 'message_id', message_id IS NOT NULL);
    END IF;
    p := semel._policy_for(who, consumer, order_key, version);
    m := semel._message(who, p, message_id, source, type, payload, raw, headers, business_key, order_key, version,
                        fingerprint, message_time, delivery);
EXCEPTION WHEN invalid_parameter_value OR insufficient_privilege THEN
    refusal := SQLSTATE || ' ' || SQLERRM;
END $$;

-- Nobody but the owner may call what is made here; roles.sql grants what an application needs.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;

INSERT INTO semel.schema (version, name) VALUES (14, 'message');
