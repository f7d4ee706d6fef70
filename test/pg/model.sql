-- SPDX-License-Identifier: MIT
--
-- Run in a database that is complete: its copies can be emptied by `SELECT model.reset()` (see model.h).
-- The functions find only names of pg_catalog: a test may plant hostile ones in `public`.
CREATE SCHEMA model;

CREATE FUNCTION model.print() RETURNS bigint LANGUAGE sql SET search_path = pg_catalog AS $$
  SELECT sum(hashtext(x)::bigint) FROM (
    SELECT concat(relname, relkind, relnatts, relchecks, relrowsecurity, relacl, reloptions, relowner) FROM pg_class
      WHERE oid >= 16384 AND relname !~ '^pg_toast'
    UNION ALL SELECT concat(attrelid, attname, atttypid, attnotnull, attacl) FROM pg_attribute
      WHERE attrelid >= 16384 AND attnum > 0
    UNION ALL SELECT concat(conname, convalidated) FROM pg_constraint WHERE oid >= 16384
    UNION ALL SELECT concat(tgname, tgenabled) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT concat(proname, md5(prosrc), proacl, proowner, proconfig) FROM pg_proc
      WHERE oid >= 16384 AND prosrc NOT LIKE '%planted%'
    UNION ALL SELECT concat(nspname, nspacl, nspowner) FROM pg_namespace WHERE nspname !~ '^pg_(temp|toast)'
    UNION ALL SELECT concat(defaclnamespace, defaclacl) FROM pg_default_acl
    UNION ALL SELECT concat('schema ', version) FROM semel.schema
    UNION ALL SELECT concat(extname, extversion) FROM pg_extension
    UNION ALL SELECT 'setting' FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
      WHERE d.datname = current_database()
    UNION ALL SELECT concat(d.dattablespace, d.datacl, d.datallowconn, d.datconnlimit) FROM pg_database AS d
      WHERE d.datname = current_database()) AS t (x)
$$;

-- Whoever is still connected is sent away first, as by DROP DATABASE: the last words of a worker that was killed must
-- not end up in the next world. A clock of the SQL functions that a test has stopped goes again.
-- 1: empty; 0: it is no copy of the model any more.
CREATE FUNCTION model.reset() RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
  t record;
BEGIN
  LOOP
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend';
    EXIT WHEN NOT FOUND;
    PERFORM pg_sleep(0.002), pg_stat_clear_snapshot();
  END LOOP;
  IF to_regproc('semel._now') IS NULL THEN
    RETURN 0;
  ELSIF pg_get_functiondef('semel._now'::regproc) <> (SELECT clock FROM model.mark) THEN
    EXECUTE (SELECT clock FROM model.mark);
  END IF;
  IF model.print() <> (SELECT print FROM model.mark) THEN
    RETURN 0;
  END IF;
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR t IN
    SELECT c.oid::regclass AS name, c.relkind AS kind
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname IN ('semel', 'public') AND c.relkind IN ('r', 'S')
      AND c.relname NOT IN ('schema', 'timeline', 'timeline_number_seq')
  LOOP
    IF t.kind = 'r' THEN
      EXECUTE format('DELETE FROM %s', t.name);
    ELSE
      PERFORM setval(t.name, (SELECT seqstart FROM pg_sequence WHERE seqrelid = t.name), false);
    END IF;
  END LOOP;
  RETURN 1;
END $$;

CREATE TABLE model.mark AS SELECT model.print() AS print, pg_get_functiondef('semel._now'::regproc) AS clock;
UPDATE model.mark SET print = model.print(); -- now that it is there itself
