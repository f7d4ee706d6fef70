-- SPDX-License-Identifier: MIT
--
-- Order keys and business keys. The transaction has the write lock of the database, so that nothing else is locked.

-- name: key_put
INSERT INTO main.semel_order_key (consumer, order_key, updated_at) VALUES (:consumer, :order_key, :now)
ON CONFLICT (consumer, order_key) DO NOTHING

-- name: key_lock
-- none: the transaction has the write lock

-- name: key_lock_free
-- none: the transaction has the write lock

-- fragment: of_key_of_others(arrival)
-- This transaction's own arrivals are the highest.
consumer = :consumer AND order_key = :order_key AND {arrival} < :first_arrival

-- name: key_facts
-- The first condition of `open` is the index's own. The plus: the index by version gives that order, the one by arrival
-- would have to be sorted.
-- gives: last_version, skipped, parked, open, head_arrival, head_version
SELECT k.last_version, k.skipped,
    (SELECT count(*) FROM (
        SELECT 1 FROM main.semel_inbox WHERE {of_key_of_others(arrival)} AND status = 'waiting'
        AND error_class IS NOT 'business_duplicate' LIMIT 100000)) AS parked,
    EXISTS (SELECT 1 FROM main.semel_inbox WHERE {of_key_of_others(arrival)} AND {unfinished}
            AND status IN ('processing', 'unknown')) AS open,
    h.arrival AS head_arrival, h.version AS head_version
FROM (SELECT 1) LEFT JOIN main.semel_order_key AS k ON k.consumer = :consumer AND k.order_key = :order_key
LEFT JOIN main.semel_inbox AS h ON h.arrival = CASE WHEN :by_version THEN
    (SELECT arrival FROM main.semel_inbox WHERE {of_key_of_others(+arrival)} AND {in_order}
     ORDER BY version, arrival LIMIT 1) ELSE
    (SELECT arrival FROM main.semel_inbox WHERE {of_key_of_others(arrival)} AND {in_order}
     ORDER BY arrival LIMIT 1) END

-- name: business_take
-- gives: applied
INSERT INTO main.semel_business_key (consumer, business_key, source, message_id, taken_at, expires_at)
VALUES (:consumer, :business_key, :source, :message_id, :now, :expires_at)
ON CONFLICT (consumer, business_key) DO UPDATE SET source = excluded.source, message_id = excluded.message_id,
    taken_at = excluded.taken_at, expires_at = excluded.expires_at
WHERE expires_at <= :now

-- fragment: other
(k.source <> :source OR k.message_id <> :message_id)

-- name: business_holders
-- gives: source, message_id, unfinished, wanted
SELECT k.source, k.message_id,
    {other} AND EXISTS (
        SELECT 1 FROM main.semel_inbox AS i WHERE i.consumer = :consumer AND i.source = k.source
        AND i.message_id = k.message_id AND {unfinished}) AS unfinished,
    CASE WHEN {other} THEN (
        SELECT count(*) FROM (
            SELECT 1 FROM main.semel_business_want WHERE consumer = :consumer AND business_key = :business_key
            LIMIT 100000)) ELSE 0 END AS wanted
FROM main.semel_business_key AS k WHERE k.consumer = :consumer AND k.business_key = :business_key

-- name: business_lock
-- none: the transaction has the write lock
