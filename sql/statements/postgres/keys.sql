-- SPDX-License-Identifier: MIT
--
-- Order keys and business keys: how they are locked, and what is known of them. Rows are visited in the order of the
-- items, which is sorted.

-- name: key_put
-- An order key is a row, which is made where it is missing.
INSERT INTO semel.order_key (consumer, order_key) SELECT :consumer, b.order_key FROM :rows AS b ORDER BY b.n
ON CONFLICT (consumer, order_key) DO NOTHING

-- operator: key_put
SELECT semel._operator_keys(:consumer, (SELECT pg_catalog.array_agg(b.order_key ORDER BY b.n) FROM :rows AS b))

-- fragment: key(how)
SELECT b.n, o.last_version, nullif(pg_catalog.array_to_string(o.skipped, ',', 'NULL'), '') AS skipped
FROM :rows AS b CROSS JOIN LATERAL (
    SELECT last_version, skipped FROM semel.order_key WHERE consumer = :consumer AND order_key = b.order_key
    {how}) AS o
ORDER BY b.n

-- name: key_lock
-- gives: n, last_version, skipped
{key(FOR UPDATE)}

-- operator: key_lock
-- key_put has locked them already.
{key(OFFSET 0)}

-- name: key_lock_free
-- gives: n, last_version, skipped
{key(FOR UPDATE SKIP LOCKED)}

-- fragment: of_key_of_others(table)
-- What this transaction inserted is known by the numbers that it drew, not by their size: another one may have drawn a
-- higher one and committed earlier.
{table}.open_for = :consumer AND {table}.order_key = b.order_key
AND NOT ({table}.arrival / 16384 = ANY ((SELECT :draws::bigint[])::bigint[]))

-- name: key_facts
-- A statement of its own, behind the lock: its snapshot is younger (P65). Above READ COMMITTED the snapshot is older,
-- but there the lock fails with 40001 if the key has changed since, as every change of its unfinished set changes the
-- key's row.
-- gives: n, parked, open, head_arrival, head_version
SELECT b.n,
    (SELECT pg_catalog.count(*) FROM (
        SELECT 1 FROM semel.inbox AS w WHERE {of_key_of_others(w)} AND w.status = 'waiting'
        AND w.error_class IS DISTINCT FROM 'business_duplicate' LIMIT 100000) AS p) AS parked,
    EXISTS (SELECT 1 FROM semel.inbox AS o WHERE {of_key_of_others(o)} AND o.{unfinished}
            AND o.status IN ('processing', 'unknown')) AS open,
    h.arrival AS head_arrival, h.version AS head_version
FROM :rows AS b LEFT JOIN LATERAL (
    (SELECT a.arrival, a.version FROM semel.inbox AS a
     WHERE {of_key_of_others(a)} AND {in_order(a)} AND NOT b.by_version ORDER BY a.arrival LIMIT 1)
    UNION ALL
    (SELECT v.arrival, v.version FROM semel.inbox AS v
     WHERE {of_key_of_others(v)} AND {in_order(v)} AND b.by_version
     ORDER BY v.version NULLS FIRST, v.arrival LIMIT 1)) AS h ON true
ORDER BY b.n

-- name: business_take
-- gives: n
WITH i AS (SELECT b.n, b.business_key, b.source, b.message_id, b.expires_at FROM :rows AS b),
put AS (
    INSERT INTO semel.business_key AS t (consumer, business_key, source, message_id, taken_at, expires_at)
    SELECT :consumer, i.business_key, i.source, i.message_id, :now, i.expires_at FROM i ORDER BY i.n
    ON CONFLICT (consumer, business_key) DO UPDATE SET source = excluded.source, message_id = excluded.message_id,
        taken_at = excluded.taken_at, expires_at = excluded.expires_at
    WHERE t.expires_at <= excluded.taken_at
    RETURNING t.business_key)
SELECT i.n FROM put JOIN i ON i.business_key = put.business_key

-- operator: business_take
-- Which ones are free: nothing is taken before the change itself.
SELECT b.n FROM :rows AS b WHERE NOT EXISTS (
    SELECT 1 FROM semel.business_key AS t WHERE t.consumer = :consumer AND t.business_key = b.business_key
    AND (t.expires_at > :now) IS NOT FALSE)

-- name: business_holders
-- gives: n, source, message_id, unfinished, wanted
SELECT b.n, h.source, h.message_id,
    h.other AND EXISTS (
        SELECT 1 FROM (SELECT status FROM semel.record WHERE key = {key_of(h.message_id)}
                       AND stream = {stream(h.source)} OFFSET 0) AS i WHERE i.{unfinished}) AS unfinished,
    CASE WHEN h.other THEN (
        SELECT pg_catalog.count(*) FROM (
            SELECT 1 FROM semel.business_want AS w WHERE w.consumer = :consumer AND w.business_key = b.business_key
            LIMIT 100000) AS c) ELSE 0 END AS wanted
FROM :rows AS b CROSS JOIN LATERAL (
    SELECT t.source, t.message_id, t.source <> b.source OR t.message_id <> b.message_id AS other
    FROM semel.business_key AS t WHERE t.consumer = :consumer AND t.business_key = b.business_key OFFSET 0) AS h
ORDER BY b.n

-- name: business_lock
-- The keys that messages hold, before the rows of these messages: the order of locks.
SELECT k.business_key FROM :rows AS b
JOIN semel.business_key AS k ON k.consumer = :consumer AND k.source = b.source AND k.message_id = b.message_id
ORDER BY k.business_key FOR UPDATE OF k

-- operator: business_lock
SELECT semel._operator_business(:consumer, pg_catalog.array_agg(b.source ORDER BY b.n),
                                pg_catalog.array_agg(b.message_id ORDER BY b.n))
FROM :rows AS b
