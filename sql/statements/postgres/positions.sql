-- SPDX-License-Identifier: MIT
--
-- Positions of sources. Rows are locked in the order of the items, which every caller keeps.

-- fragment: raised
-- What stands behind the INSERT of `put`: the row of each item.
RETURNING p.source, p.partition, p.epoch, p.next_offset)
SELECT i.n, put.epoch, put.next_offset FROM put JOIN i ON i.source = put.source AND i.partition = put.partition

-- name: position_take
-- gives: n, epoch, next_offset
WITH i AS (SELECT b.n, b.source, b.partition::integer AS partition FROM :rows AS b),
put AS (
    INSERT INTO semel.position AS p (consumer, source, partition, epoch, updated_at)
    SELECT :consumer, i.source, i.partition, 1, :now FROM i ORDER BY i.n
    ON CONFLICT (consumer, source, partition) DO UPDATE SET epoch = p.epoch + 1, updated_at = excluded.updated_at
    {raised}

-- name: position_set
-- gives: n, epoch, next_offset
WITH i AS (SELECT b.n, b.source, b.partition::integer AS partition, b.next_offset FROM :rows AS b),
put AS (
    INSERT INTO semel.position AS p (consumer, source, partition, next_offset, epoch, updated_at)
    SELECT :consumer, i.source, i.partition, i.next_offset, 1, :now FROM i ORDER BY i.n
    ON CONFLICT (consumer, source, partition) DO UPDATE
    SET next_offset = excluded.next_offset, epoch = p.epoch + 1, updated_at = excluded.updated_at
    {raised}

-- operator: position_set
WITH i AS (SELECT b.n, b.source, b.partition::integer AS partition, b.next_offset FROM :rows AS b)
SELECT i.n, r.epoch, r.next_offset
FROM (SELECT pg_catalog.array_agg(i.source ORDER BY i.n) AS sources,
             pg_catalog.array_agg(i.partition ORDER BY i.n) AS partitions,
             pg_catalog.array_agg(i.next_offset ORDER BY i.n) AS offsets FROM i) AS a
CROSS JOIN LATERAL semel._operator_rewind(:consumer, a.sources, a.partitions, a.offsets, {reason}) AS r
JOIN i ON i.source = r.source AND i.partition = r.partition

-- name: position_lock
-- An UPDATE alone would lock in the order of its plan.
SELECT p.epoch FROM semel.position AS p JOIN :rows AS b ON p.source = b.source AND p.partition = b.partition
WHERE p.consumer = :consumer ORDER BY p.source, p.partition FOR UPDATE OF p

-- name: position_move
-- Without an offset it only asks whether the epoch holds.
-- gives: n
UPDATE semel.position AS p SET next_offset = greatest(p.next_offset, b.next_offset), updated_at = :now
FROM :rows AS b
WHERE p.consumer = :consumer AND p.source = b.source AND p.partition = b.partition AND p.epoch = b.epoch
RETURNING b.n

-- name: position_list
-- gives: consumer, source, partition, next_offset, epoch, updated_at
SELECT consumer, source, partition, next_offset, epoch, updated_at FROM semel.position
WHERE consumer = :consumer ORDER BY source, partition LIMIT :limit
