-- SPDX-License-Identifier: MIT
--
-- What an attacker who may create in `public` plants there: functions and operators that match what our statements call
-- better than those of pg_catalog do, wherever a statement leaves a name or a type open (P85). Whoever calls one of
-- them fails, and the sequence public.planted remembers it, whatever is rolled back.
--
-- `names` is what our statements and functions call; test_pg_roles.py holds it against the sources.

CREATE SEQUENCE public.planted;

DO $$
DECLARE
    names text[] := '{array_agg,array_append,array_length,array_position,array_remove,array_to_string,bit_length,btrim,
        cardinality,clock_timestamp,convert_from,convert_to,count,current_schemas,current_setting,encode,decode,floor,
        format,format_type,gen_random_uuid,get_byte,greatest,has_any_column_privilege,has_function_privilege,
        has_schema_privilege,has_sequence_privilege,has_table_privilege,hashtextextended,int8send,jsonb_agg,
        jsonb_array_elements,jsonb_build_object,jsonb_each,jsonb_object_agg,jsonb_strip_nulls,jsonb_typeof,left,length,
        lower,lpad,ltrim,max,min,nextval,now,octet_length,pg_advisory_xact_lock,pg_backend_pid,
        pg_current_wal_insert_lsn,pg_has_role,pg_is_in_recovery,pg_last_xact_replay_timestamp,
        pg_try_advisory_xact_lock,pg_walfile_name,position,power,quote_ident,random,regexp_match,regexp_replace,
        replace,right,row_number,rtrim,set_config,setval,sha256,split_part,string_agg,string_to_array,strpos,substr,
        substring,sum,to_char,to_hex,to_jsonb,to_regclass,to_timestamp,trim_scale,trunc,unnest,upper,abs,bool_or,
        jsonb_object_keys,pg_advisory_xact_lock_shared,num_nonnulls,num_nulls,pg_xact_status,
        pg_current_xact_id_if_assigned,jsonb_to_recordset,jsonb_array_length,jsonb_array_elements_text,array_fill,
        generate_series,md5,pg_advisory_unlock,pg_try_advisory_lock,current_database,translate,uuid_send}';
    types text[] := '{text,varchar,name,integer,bigint,numeric,boolean,timestamptz,interval,bytea,jsonb,uuid,oid,
        regclass,pg_lsn,text[],bigint[],integer[],boolean[],bytea[],timestamptz[]}';
    few text[] := '{text,varchar,integer,bigint,boolean,oid}';
    fewest text[] := '{text,integer,boolean}';
    compared text[] := '{text,varchar,name,smallint,integer,bigint,numeric,double precision,boolean,timestamptz,
        interval,bytea,jsonb,uuid,oid,regclass,"\"char\"",text[],bigint[]}';
    signs text[] := '{=,<>,<,>,<=,>=,+,-,*,/,%,||,~,?,"#>>",->>,->,&,|,<<,>>}';
    one record;
    body constant text := 'BEGIN PERFORM pg_catalog.nextval(''public.planted''::pg_catalog.regclass); '
                          'RAISE EXCEPTION ''planted: % was called'', %L; END';
BEGIN
    FOR one IN
        SELECT n.name, pg_catalog.concat_ws(', ', a.t, b.t, c.t) AS args
        FROM pg_catalog.unnest(names) AS n (name)
             CROSS JOIN LATERAL (
                 SELECT x.t FROM pg_catalog.unnest(types) AS x (t) WHERE true) AS a (t)
             CROSS JOIN LATERAL (SELECT NULL::text UNION ALL SELECT x.t FROM pg_catalog.unnest(few) AS x (t)
                                 WHERE a.t = ANY (few)) AS b (t)
             CROSS JOIN LATERAL (SELECT NULL::text UNION ALL SELECT x.t FROM pg_catalog.unnest(fewest) AS x (t)
                                 WHERE a.t = ANY (fewest) AND b.t = ANY (fewest)) AS c (t)
    LOOP
        EXECUTE pg_catalog.format('CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE plpgsql AS %L', one.name,
                                  one.args, pg_catalog.replace(body, '%L', pg_catalog.quote_literal(one.name)));
    END LOOP;
    FOR one IN SELECT l.t AS l, r.t AS r FROM pg_catalog.unnest(compared) AS l (t),
                                              pg_catalog.unnest(compared) AS r (t) LOOP
        EXECUTE pg_catalog.format('CREATE FUNCTION public.planted_operator(%s, %s) RETURNS boolean LANGUAGE plpgsql '
                                  'AS %L',
                                  one.l, one.r, pg_catalog.replace(body, '%L', pg_catalog.quote_literal(
                                      'an operator of ' || one.l || ' and ' || one.r)));
    END LOOP;
    FOR one IN SELECT s.s, l.t AS l, r.t AS r
               FROM pg_catalog.unnest(signs) AS s (s), pg_catalog.unnest(compared) AS l (t),
                    pg_catalog.unnest(compared) AS r (t)
               WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_operator AS o
                                 WHERE o.oprname = s.s AND o.oprleft = l.t::regtype AND o.oprright = r.t::regtype
                                   AND o.oprnamespace = 'pg_catalog'::regnamespace) LOOP
        EXECUTE pg_catalog.format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, '
                                  'FUNCTION = public.planted_operator)', one.s, one.l, one.r);
    END LOOP;
END $$;
