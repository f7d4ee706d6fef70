-- SPDX-License-Identifier: MIT
--
-- Semel on PostgreSQL: how far a consumer has come in its source, for routes that keep this with the effects.
--
-- Invariants: a position moves forward; it goes back only together with a new epoch, which fences off everybody who
-- reads under the old one. An epoch is never used again.

SET LOCAL search_path = pg_catalog, pg_temp;                -- what somebody has created in `public` is not called
LOCK TABLE semel.schema IN SHARE ROW EXCLUSIVE MODE;        -- one at a time; refused outside a transaction

CREATE TABLE semel.position (
    consumer    text COLLATE "C" NOT NULL,
    source      text COLLATE "C" NOT NULL,                  -- the topic
    partition   integer NOT NULL CHECK (partition >= 0),
    next_offset bigint CHECK (next_offset >= 0),            -- the first that is not taken yet; NULL: none is known
    epoch       bigint NOT NULL CHECK (epoch > 0),          -- raised by whoever gets the partition, and by operators
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (consumer, source, partition),
    CHECK (octet_length(consumer) BETWEEN 1 AND 255 AND octet_length(source) <= 255)
);

CREATE FUNCTION semel._position_holds() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, semel, pg_temp AS $$
BEGIN
    IF NEW.epoch < OLD.epoch OR (NEW.epoch = OLD.epoch AND OLD.next_offset IS NOT NULL
                                 AND (NEW.next_offset IS NULL OR NEW.next_offset < OLD.next_offset)) THEN
        RAISE EXCEPTION 'a position goes back only with a new epoch' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER position_moves_forward BEFORE UPDATE ON semel.position
FOR EACH ROW EXECUTE FUNCTION semel._position_holds();

REVOKE ALL ON FUNCTION semel._position_holds() FROM PUBLIC;

INSERT INTO semel.schema (version, name) VALUES (11, 'position');
