/* SPDX-License-Identifier: MIT
 *
 * spool_file.c: what goes into the spool's file: pairs as text, push, publish, requeue, and its statistics.
 *
 * Invariants: push writes all or nothing; publish answers for each item, and all of them share one transaction.
 */
#include "broker/spool_private.h"

#define PAIRS_MAX ((size_t)1 << 20)
#define PARTITIONS 16 /* of what is published with a key */

static struct spool *self(struct semel_broker *broker)
{
    return (struct spool *)broker;
}

/* ---- pairs -------------------------------------------------------------------------------------------- */

static void encode_str(struct semel_buf *buf, struct semel_str s)
{
    semel__buf_addf(buf, "%zu:", s.n);
    if (s.n > 0)
        semel__buf_add(buf, s.p, s.n);
    semel__buf_addz(buf, ",");
}

bool semel__spool_encode(struct semel_buf *buf, const struct semel_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        encode_str(buf, pairs[i].name);
        encode_str(buf, pairs[i].value);
    }
    return !buf->failed;
}

/* Takes one netstring off the front. */
static bool decode_str(struct semel_str *rest, struct semel_str *ret)
{
    const char *colon = rest->n > 0 ? memchr(rest->p, ':', rest->n) : NULL;
    int64_t n;
    size_t used;

    if (colon == NULL || !semel__str_int64((struct semel_str){rest->p, (size_t)(colon - rest->p)}, &n) || n < 0)
        return false;
    used = (size_t)(colon - rest->p) + 1;
    if ((uint64_t)n >= rest->n - used || colon[1 + n] != ',')
        return false;
    *ret = (struct semel_str){colon + 1, (size_t)n};
    rest->p += used + (size_t)n + 1;
    rest->n -= used + (size_t)n + 1;
    return true;
}

semel_status semel__spool_decode(struct semel_str encoded, struct semel_arena *arena, const struct semel_pair **ret,
                                 size_t *ret_n)
{
    struct semel_str rest = encoded, name, value;
    struct semel_pair *pairs;
    size_t n = 0;

    for (; rest.n > 0; n++)
        if (!decode_str(&rest, &name) || !decode_str(&rest, &value))
            return SEMEL_INVALID;
    pairs = semel__arena_alloc(arena, n, sizeof *pairs);
    if (pairs == NULL)
        return SEMEL_RETRY;
    rest = encoded;
    for (size_t i = 0; i < n; i++) {
        decode_str(&rest, &name);
        decode_str(&rest, &value);
        if (!semel__arena_copy(arena, name, &pairs[i].name) || !semel__arena_copy(arena, value, &pairs[i].value))
            return SEMEL_RETRY;
    }
    *ret = pairs;
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- push --------------------------------------------------------------------------------------------- */

static sqlite3_stmt *prepare_insert(struct spool *spool)
{
    return semel__spool_prepare(spool, "INSERT INTO message (source, partition, headers, properties, payload)"
                                       " VALUES (?1, ?2, ?3, ?4, ?5)");
}

static semel_status insert(struct spool *spool, sqlite3_stmt *stmt, const struct semel_spool_push *push,
                           const struct semel_pair *more, struct semel_error *err)
{
    struct semel_buf headers, properties;
    semel_status status = SEMEL_OK;

    semel__buf_init(&headers, PAIRS_MAX);
    semel__buf_init(&properties, PAIRS_MAX);
    if (!semel__spool_encode(&headers, push->headers, push->n_headers) ||
        !semel__spool_encode(&headers, more, more != NULL ? 1 : 0) ||
        !semel__spool_encode(&properties, push->properties, push->n_properties)) {
        status = semel__fail_memory(err);
    } else {
        sqlite3_bind_text(stmt, 1, push->source.n > 0 ? push->source.p : "", (int)push->source.n, SQLITE_STATIC);
        if (push->partition >= 0)
            sqlite3_bind_int64(stmt, 2, push->partition);
        semel__spool_bind(stmt, 3, semel__buf_str(&headers));
        semel__spool_bind(stmt, 4, semel__buf_str(&properties));
        semel__spool_bind(stmt, 5, push->payload);
        if (sqlite3_step(stmt) != SQLITE_DONE)
            status = semel__spool_fail(spool, "push", err);
        sqlite3_reset(stmt);
        sqlite3_clear_bindings(stmt);
    }
    semel__buf_done(&headers);
    semel__buf_done(&properties);
    return status;
}

semel_status semel__spool_push(struct semel_broker *broker, const struct semel_spool_push *messages, size_t n,
                               int64_t *ret_first_seq, struct semel_error *err)
{
    struct spool *spool = self(broker);
    semel_status status = semel__spool_ready(spool, err);
    sqlite3_stmt *stmt;

    if (status == SEMEL_OK)
        status = semel__spool_begin(spool, err);
    if (status != SEMEL_OK)
        return status;
    stmt = prepare_insert(spool);
    if (stmt == NULL)
        status = semel__spool_fail(spool, "push", err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = insert(spool, stmt, &messages[i], NULL, err);
    sqlite3_finalize(stmt);
    status = semel__spool_end(spool, status, err);
    if (status == SEMEL_OK && ret_first_seq != NULL)
        *ret_first_seq = sqlite3_last_insert_rowid(spool->db) - (int64_t)n + 1;
    return status;
}

/* ---- publish ------------------------------------------------------------------------------------------ */

static int64_t partition_of(struct semel_str key)
{
    uint32_t hash = 2166136261u;

    for (size_t i = 0; i < key.n; i++)
        hash = (hash ^ (unsigned char)key.p[i]) * 16777619u;
    return semel__str_given(key) ? (int64_t)(hash % PARTITIONS) : -1;
}

static bool has_id(const struct semel_publish *item)
{
    for (size_t i = 0; i < item->n_headers; i++)
        if (semel__str_eqz(item->headers[i].name, "id"))
            return true;
    return !semel__str_given(item->id);
}

semel_status semel__spool_publish(struct semel_broker *broker, struct semel_publish *items, size_t n,
                                  struct semel_error *err)
{
    struct spool *spool = self(broker);
    semel_status status = semel__spool_ready(spool, err);
    sqlite3_stmt *stmt = NULL;

    for (size_t i = 0; i < n; i++)
        items[i].status = SEMEL_RETRY; /* certainly not sent, until the commit */
    if (status == SEMEL_OK)
        status = semel__spool_begin(spool, err);
    if (status != SEMEL_OK)
        return status;
    stmt = prepare_insert(spool);
    if (stmt == NULL)
        status = semel__spool_fail(spool, "publish", err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        const struct semel_pair id = {SEMEL_STR("id"), items[i].id};
        const struct semel_spool_push push = {.source = items[i].destination,
                                              .partition = partition_of(items[i].key),
                                              .payload = items[i].payload,
                                              .headers = items[i].headers,
                                              .n_headers = items[i].n_headers};
        status = insert(spool, stmt, &push, has_id(&items[i]) ? NULL : &id, err);
    }
    sqlite3_finalize(stmt);
    status = semel__spool_end(spool, status, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        items[i].status = SEMEL_OK;
    return status;
}

/* ---- for tests and the demo --------------------------------------------------------------------------- */

semel_status semel__spool_stats(struct semel_broker *broker, size_t *ret_ready, size_t *ret_taken, size_t *ret_acked,
                                struct semel_error *err)
{
    struct spool *spool = self(broker);
    semel_status status = semel__spool_ready(spool, err);
    sqlite3_stmt *stmt;

    if (status != SEMEL_OK)
        return status;
    stmt = semel__spool_prepare(spool, "SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1),"
                                       " count(*) FILTER (WHERE state = 2) FROM message");
    if (stmt == NULL || sqlite3_step(stmt) != SQLITE_ROW) {
        status = semel__spool_fail(spool, "stats", err);
    } else {
        *ret_ready = (size_t)sqlite3_column_int64(stmt, 0);
        *ret_taken = (size_t)sqlite3_column_int64(stmt, 1);
        *ret_acked = (size_t)sqlite3_column_int64(stmt, 2);
    }
    sqlite3_finalize(stmt);
    return status;
}

semel_status semel__spool_requeue(struct semel_broker *broker, int64_t seq, struct semel_error *err)
{
    struct spool *spool = self(broker);
    semel_status status = semel__spool_ready(spool, err);
    sqlite3_stmt *stmt;

    if (status != SEMEL_OK)
        return status;
    stmt = semel__spool_prepare(spool, "UPDATE message SET state = 0, not_before = 0 WHERE seq = ?1 AND state = 2");
    if (stmt != NULL)
        sqlite3_bind_int64(stmt, 1, seq);
    if (stmt == NULL || sqlite3_step(stmt) != SQLITE_DONE)
        status = semel__spool_fail(spool, "requeue", err);
    else if (sqlite3_changes(spool->db) == 0)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "spool: message %lld is not an acknowledged one", (long long)seq);
    sqlite3_finalize(stmt);
    return status;
}
