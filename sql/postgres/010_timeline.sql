-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: was the server promoted?
--
-- A standby that is promoted, and a server that is restored to an earlier moment, begin a new timeline. What their
-- predecessor had committed and they did not get is gone, effect and record alike. Nothing here can bring it back; but
-- it is noticed, kept and told.
--
-- Invariants: the newest row is the timeline that was seen last; every row but the first has a line in the audit.

CREATE TABLE semel.timeline (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    timeline   bigint NOT NULL,                             -- the only column that is given; a trigger knows the others
    former     bigint,                                      -- NULL: the first that was seen
    noticed_at timestamptz NOT NULL,
    kept_until timestamptz,                                 -- the last commit of the former that is here, if known
    note       text                                         -- what is to be told
);

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
    IF now_on IS DISTINCT FROM (SELECT t.timeline FROM semel.timeline AS t ORDER BY t.number DESC LIMIT 1) THEN
        INSERT INTO semel.timeline (timeline) VALUES (now_on) RETURNING note INTO told;
    END IF;
    RETURN told;
END $$;

REVOKE ALL ON FUNCTION semel._timeline_note(), semel._timeline() FROM PUBLIC;

DO $$ BEGIN PERFORM semel._timeline(); END $$;

INSERT INTO semel.schema (version, name) VALUES (10, 'timeline');
