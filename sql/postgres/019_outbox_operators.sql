-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: what operators do to the events of an outbox.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

-- Published events are listed by their number.
CREATE INDEX outbox_sent_seq ON semel.outbox_sent (seq);

-- For a role that only reads the tables. `lock` locks the event's shard, as the relay does before it changes what
-- stands aside; the others do so as well, look again, change the event, wake the next one of its aggregate and write
-- the audit. false: there is no event that this can be done to.
CREATE FUNCTION semel._operator_outbox(command text, of_event text, reason text)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, semel, pg_temp AS $$
DECLARE
    of_shard smallint;
    kind text COLLATE "C";
    whose text COLLATE "C";
    now timestamptz := semel._now();
    put uuid := CASE WHEN of_event ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN of_event::uuid END;
BEGIN
    SELECT e.shard INTO of_shard FROM (SELECT o.shard FROM semel.outbox AS o WHERE o.id = put
                                    UNION ALL
                                    SELECT a.shard FROM semel.outbox_aside AS a WHERE a.id = of_event) AS e;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM semel.outbox_shard AS s WHERE s.shard = of_shard FOR UPDATE;
    IF command = 'lock' THEN
        RETURN true;
    ELSIF command = 'retry' THEN
        UPDATE semel.outbox_aside AS a
        SET status = 'waiting', attempts = 0, updated_at = now, relay = NULL,
            due_at = CASE WHEN EXISTS (
                SELECT FROM semel.outbox_aside AS f
                WHERE f.aggregatetype = a.aggregatetype AND f.aggregateid = a.aggregateid AND f.seq < a.seq
                AND f.shard = a.shard) THEN NULL
            ELSE now END
        WHERE a.id = of_event AND a.status IN ('waiting', 'failed', 'dead')
        RETURNING a.aggregatetype, a.aggregateid INTO kind, whose;
    ELSIF command = 'discard' THEN
        DELETE FROM semel.outbox_aside AS a WHERE a.id = of_event AND a.status IN ('waiting', 'failed', 'dead')
        RETURNING a.aggregatetype, a.aggregateid INTO kind, whose;
        IF NOT FOUND THEN
            DELETE FROM semel.outbox AS o WHERE o.id = put
            RETURNING o.aggregatetype, o.aggregateid INTO kind, whose;
        END IF;
    ELSE
        PERFORM semel._refuse('an event is retried or discarded');
    END IF;
    IF kind IS NULL THEN
        RETURN false;
    END IF;
    UPDATE semel.outbox_aside AS a SET due_at = now, updated_at = now
    WHERE (a.shard, a.seq) = (
        SELECT x.shard, x.seq FROM semel.outbox_aside AS x
        WHERE x.aggregatetype = kind AND x.aggregateid = whose AND x.shard = of_shard ORDER BY x.seq LIMIT 1)
    AND a.status = 'waiting' AND a.due_at IS NULL;
    PERFORM semel._operator_line('outbox ' || command, reason, NULL, NULL, of_event);
    RETURN true;
END $$;

-- Nobody but the owner; roles.sql grants it to operators.
REVOKE ALL ON FUNCTION semel._operator_outbox(text, text, text) FROM PUBLIC;

INSERT INTO semel.schema (version, name) VALUES (19, 'outbox_operators');
