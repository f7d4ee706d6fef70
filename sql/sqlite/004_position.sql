-- SPDX-License-Identifier: MIT
--
-- Semel on SQLite: how far a consumer has come in its source, for routes that keep this with the effects.
--
-- A position moves forward; it goes back only together with a new epoch, which fences off everybody who reads under
-- the old one. An epoch is never used again.

CREATE TABLE semel_position (
    consumer    TEXT NOT NULL,
    source      TEXT NOT NULL,                                 -- the topic
    partition   INTEGER NOT NULL CHECK (partition BETWEEN 0 AND 2147483647),
    next_offset INTEGER CHECK (next_offset >= 0),              -- the first that is not taken yet; NULL: none is known
    epoch       INTEGER NOT NULL CHECK (epoch > 0),            -- raised by whoever gets the partition, and by operators
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (consumer, source, partition),
    CHECK (length(CAST(consumer AS BLOB)) BETWEEN 1 AND 255 AND length(CAST(source AS BLOB)) <= 255)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER semel_position_moves_forward BEFORE UPDATE ON semel_position
WHEN NEW.epoch < OLD.epoch OR (NEW.epoch = OLD.epoch AND OLD.next_offset IS NOT NULL
                               AND (NEW.next_offset IS NULL OR NEW.next_offset < OLD.next_offset))
BEGIN
    SELECT RAISE(ABORT, 'a position goes back only with a new epoch');
END;
