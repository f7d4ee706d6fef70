-- SPDX-License-Identifier: MIT
--
-- Positions of sources.

-- name: position_take
-- gives: epoch, next_offset
INSERT INTO main.semel_position (consumer, source, partition, epoch, updated_at)
VALUES (:consumer, :source, :partition, 1, :now)
ON CONFLICT (consumer, source, partition) DO UPDATE SET epoch = epoch + 1, updated_at = excluded.updated_at
RETURNING epoch, next_offset

-- name: position_set
-- gives: epoch, next_offset
INSERT INTO main.semel_position (consumer, source, partition, next_offset, epoch, updated_at)
VALUES (:consumer, :source, :partition, :next_offset, 1, :now)
ON CONFLICT (consumer, source, partition) DO UPDATE
SET next_offset = excluded.next_offset, epoch = epoch + 1, updated_at = excluded.updated_at
RETURNING epoch, next_offset

-- name: position_lock
-- none: the transaction has the write lock

-- name: position_move
-- Without an offset it only asks whether the epoch holds.
-- gives: applied
UPDATE main.semel_position
SET next_offset = coalesce(max(next_offset, :next_offset), :next_offset, next_offset), updated_at = :now
WHERE consumer = :consumer AND source = :source AND partition = :partition AND epoch = :epoch

-- name: position_list
-- gives: consumer, source, partition, next_offset, epoch, updated_at
SELECT consumer, source, partition, next_offset, epoch, updated_at FROM main.semel_position
WHERE consumer = :consumer ORDER BY source, partition LIMIT :limit
