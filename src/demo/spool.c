/* SPDX-License-Identifier: MIT
 *
 * spool.c: a broker in one SQLite file, shared by processes. See spool.h.
 *
 * A message is ready (0), taken (1) or acked (2). poll takes with one IMMEDIATE transaction; answers change only
 * messages that this handle still has, under the delivery that the tag names. WAL and synchronous=NORMAL: commits
 * survive the death of any process, though perhaps not a power failure.
 *
 * Invariants: taken_by is NULL unless taken; deliveries only ever grows; a message is never deleted. push writes all or
 * nothing; publish answers for each item, and all of them share one transaction.
 */
#include "demo/spool.h"

#include <stdio.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "base/str.h"

#define BUSY_TIMEOUT_MS 5000
#define VISIBILITY_MS 2000
#define VISIBILITY_MAX_MS (INT64_C(24) * 3600 * 1000)
#define POLL_MAX 1000
#define LOOK_AGAIN_MS 5
#define PAIRS_MAX ((size_t)1 << 20)
#define PARTITIONS 16 /* for items that are published with a key */

static const char schema[] =
    "PRAGMA journal_mode = WAL;"
    "PRAGMA synchronous = NORMAL;"
    "CREATE TABLE IF NOT EXISTS message ("
    "  seq INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, partition INTEGER,"
    "  headers BLOB NOT NULL, properties BLOB NOT NULL, payload BLOB,"
    "  state INTEGER NOT NULL DEFAULT 0, taken_by TEXT, taken_until INTEGER NOT NULL DEFAULT 0,"
    "  deliveries INTEGER NOT NULL DEFAULT 0, not_before INTEGER NOT NULL DEFAULT 0);"
    "CREATE INDEX IF NOT EXISTS message_open ON message (seq) WHERE state < 2;"
    "CREATE INDEX IF NOT EXISTS message_order ON message (source, partition, seq) WHERE state < 2;"
    "CREATE INDEX IF NOT EXISTS message_taken ON message (taken_by) WHERE state = 1;";

struct spool {
    struct semel_broker base;
    sqlite3 *db;             /* NULL: closed until reopen */
    char *path;              /* owned, with `source` behind it */
    struct semel_str source; /* not given: all */
    int64_t visibility_us;
    char name[48]; /* unique to this handle and its present epoch */
};

static const struct semel_broker_ops spool_ops;

static struct spool *self(struct semel_broker *broker)
{
    return (struct spool *)broker;
}

/* ---- SQLite ------------------------------------------------------------------------------------------- */

/* The meaning of SQLite's last error: RETRY for the environment, CLOSED for the rest. */
static semel_status spool_fail(struct spool *spool, const char *doing, struct semel_error *err)
{
    const int code = sqlite3_errcode(spool->db);
    semel_status status = SEMEL_CLOSED;

    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_NOMEM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
        status = SEMEL_RETRY;
        break;
    default:
        break;
    }
    semel__fail(err, status, SEMEL_CLASS_ENVIRONMENT, "spool: %s: %s", doing, sqlite3_errstr(code));
    if (err != NULL)
        err->code = code;
    return status;
}

/* CLOSED when there is no connection. */
static semel_status ready(const struct spool *spool, struct semel_error *err)
{
    if (spool->db == NULL)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "spool: the file is not open");
    return SEMEL_OK;
}

/* A statement; NULL: spool_fail has the reason. */
static sqlite3_stmt *prepare(struct spool *spool, const char *sql)
{
    sqlite3_stmt *stmt = NULL;

    return sqlite3_prepare_v2(spool->db, sql, -1, &stmt, NULL) == SQLITE_OK ? stmt : NULL;
}

/* As a blob; not given: NULL. */
static void bind_bytes(sqlite3_stmt *stmt, int at, struct semel_str s)
{
    if (semel__str_given(s))
        sqlite3_bind_blob64(stmt, at, s.n > 0 ? s.p : "", s.n, SQLITE_STATIC);
}

static semel_status begin(struct spool *spool, struct semel_error *err)
{
    if (sqlite3_exec(spool->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK)
        return spool_fail(spool, "begin", err);
    return SEMEL_OK;
}

/* Commits when `status` is OK or FENCED, else rolls back. Returns the overall status. */
static semel_status end(struct spool *spool, semel_status status, struct semel_error *err)
{
    if ((status == SEMEL_OK || status == SEMEL_FENCED) &&
        sqlite3_exec(spool->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        status = spool_fail(spool, "commit", err);
    if (sqlite3_get_autocommit(spool->db) == 0)
        sqlite3_exec(spool->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

/* Changing to WAL needs exclusive access, and SQLite does not wait for that: we do. */
static bool set_up(struct spool *spool)
{
    const int64_t until_us = semel__time_add(semel__now(&semel__clock_real), BUSY_TIMEOUT_MS * 1000);
    int rc;

    while ((rc = sqlite3_exec(spool->db, schema, NULL, NULL, NULL)) == SQLITE_BUSY &&
           semel__now(&semel__clock_real) < until_us)
        sqlite3_sleep(LOOK_AGAIN_MS);
    return rc == SQLITE_OK;
}

static semel_status connect_file(struct spool *spool, struct semel_error *err)
{
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    struct semel_random rng;
    semel_status status;

    if (!semel__random_seed_os(&rng))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "spool: no randomness for a name");
    snprintf(spool->name, sizeof spool->name, "%ld-%016llx", (long)getpid(),
             (unsigned long long)semel__random_next(&rng));
    semel__file_make_private(spool->path);
    if (sqlite3_open_v2(spool->path, &spool->db, flags, NULL) != SQLITE_OK || spool->db == NULL)
        status = spool_fail(spool, "open", err);
    else if (sqlite3_busy_timeout(spool->db, BUSY_TIMEOUT_MS) != SQLITE_OK || !set_up(spool))
        status = spool_fail(spool, "open", err);
    else
        return SEMEL_OK;
    sqlite3_close(spool->db);
    spool->db = NULL;
    return status;
}

/* One NAME=VALUE of the URL. */
static semel_status parse_setting(struct spool *spool, struct semel_str setting, struct semel_error *err)
{
    static const char visibility[] = "visibility_ms=", source[] = "source=";
    const size_t n_visibility = sizeof visibility - 1, n_source = sizeof source - 1;
    int64_t ms;

    if (setting.n > n_source && memcmp(setting.p, source, n_source) == 0) {
        spool->source = (struct semel_str){setting.p + n_source, setting.n - n_source};
        return SEMEL_OK;
    }
    if (setting.n > n_visibility && memcmp(setting.p, visibility, n_visibility) == 0 &&
        semel__str_int64((struct semel_str){setting.p + n_visibility, setting.n - n_visibility}, &ms) && ms > 0 &&
        ms <= VISIBILITY_MAX_MS) {
        spool->visibility_us = ms * 1000;
        return SEMEL_OK;
    }
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "spool: a setting must be visibility_ms=1..86400000 or source=NAME");
}

static semel_status parse_location(struct spool *spool, struct semel_str location, struct semel_error *err)
{
    char *at;

    spool->visibility_us = VISIBILITY_MS * 1000;
    spool->path = semel__alloc(location.n + 1);
    if (spool->path == NULL)
        return semel__fail_memory(err);
    memcpy(spool->path, location.p, location.n);
    spool->path[location.n] = '\0';
    at = strchr(spool->path, '?');
    if (at != NULL)
        *at++ = '\0';
    while (at != NULL && *at != '\0') {
        char *next = strchr(at, '&');
        const size_t n = next != NULL ? (size_t)(next - at) : strlen(at);
        semel_status status = parse_setting(spool, (struct semel_str){at, n}, err);
        if (status != SEMEL_OK)
            return status;
        at += n + (next != NULL);
    }
    if (spool->path[0] == '\0')
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "spool: no path; the URL must be \"spool:/path\"");
    return SEMEL_OK;
}

semel_status semel__spool_open(struct semel_broker **ret, const char *location, struct semel_error *err)
{
    struct spool *spool = semel__calloc(1, sizeof *spool);
    semel_status status;

    if (spool == NULL)
        return semel__fail_memory(err);
    spool->base.ops = &spool_ops;
    status = parse_location(spool, semel__str(location), err);
    if (status == SEMEL_OK)
        status = connect_file(spool, err);
    if (status == SEMEL_OK) {
        *ret = &spool->base;
        return SEMEL_OK;
    }
    semel__free(spool->path);
    semel__free(spool);
    return status;
}

/* Gives back the messages of this handle. If it cannot, the visibility time-out will. */
static void disconnect(struct spool *spool)
{
    sqlite3_stmt *stmt;

    if (spool->db == NULL)
        return;
    stmt = prepare(spool, "UPDATE message SET state = 0, taken_by = NULL WHERE state = 1 AND taken_by = ?1");
    if (stmt != NULL) {
        sqlite3_bind_text(stmt, 1, spool->name, -1, SQLITE_STATIC);
        sqlite3_step(stmt);
        sqlite3_finalize(stmt);
    }
    sqlite3_close(spool->db);
    spool->db = NULL;
}

static void spool_close(struct semel_broker *broker)
{
    disconnect(self(broker));
    semel__free(self(broker)->path);
}

static semel_status spool_reopen(struct semel_broker *broker, struct semel_error *err)
{
    disconnect(self(broker));
    return connect_file(self(broker), err);
}

/* ---- pairs -------------------------------------------------------------------------------------------- */

static void encode_str(struct semel_buf *buf, struct semel_str s)
{
    semel__buf_addf(buf, "%zu:", s.n);
    if (s.n > 0)
        semel__buf_add(buf, s.p, s.n);
    semel__buf_addz(buf, ",");
}

/* Pairs as netstrings, "5:ce_id,3:abc,", which any tool can read. */
static bool encode(struct semel_buf *buf, const struct semel_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        encode_str(buf, pairs[i].name);
        encode_str(buf, pairs[i].value);
    }
    return !buf->failed;
}

/* Reads one netstring from the front. */
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

/* INVALID: malformed. RETRY: no memory. */
static semel_status decode(struct semel_str encoded, struct semel_arena *arena, const struct semel_pair **ret,
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

/* ---- poll --------------------------------------------------------------------------------------------- */

/* A message m is free to be taken; ?1 is now. */
#define M_FREE "((m.state = 0 AND m.not_before <= ?1) OR (m.state = 1 AND m.taken_until <= ?1))"
#define E_FREE "((e.state = 0 AND e.not_before <= ?1) OR (e.state = 1 AND e.taken_until <= ?1))"
#define E_BEFORE_M "e.source = m.source AND e.partition = m.partition AND e.seq < m.seq AND e.state < 2"

static const char select_available[] =
    "SELECT seq, source, headers, properties, payload, deliveries FROM message AS m"
    " WHERE m.state < 2 AND (?2 IS NULL OR m.source = ?2) AND " M_FREE
    " AND (m.partition IS NULL OR NOT EXISTS (SELECT 1 FROM message AS e WHERE " E_BEFORE_M " AND NOT " E_FREE "))"
    " ORDER BY m.seq LIMIT ?3";

static sqlite3_stmt *look_for(struct spool *spool, int64_t now_us, size_t max)
{
    sqlite3_stmt *stmt = prepare(spool, select_available);

    if (stmt == NULL)
        return NULL;
    sqlite3_bind_int64(stmt, 1, now_us);
    if (semel__str_given(spool->source))
        sqlite3_bind_text(stmt, 2, spool->source.p, (int)spool->source.n, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 3, (int64_t)max);
    return stmt;
}

static struct semel_str column(sqlite3_stmt *stmt, int at)
{
    const char *p = sqlite3_column_blob(stmt, at);
    const int n = sqlite3_column_bytes(stmt, at);

    if (sqlite3_column_type(stmt, at) == SQLITE_NULL)
        return (struct semel_str){NULL, 0};
    return (struct semel_str){p != NULL ? p : "", (size_t)n};
}

static semel_status read_delivery(sqlite3_stmt *stmt, struct semel_arena *arena, struct semel_delivery *ret)
{
    const int64_t seq = sqlite3_column_int64(stmt, 0);
    const int64_t deliveries = sqlite3_column_int64(stmt, 5) + 1;
    char position[24];
    semel_status status;

    snprintf(position, sizeof position, "%lld", (long long)seq);
    *ret = (struct semel_delivery){.tag = (uint64_t)seq << 16 | ((uint64_t)deliveries & 0xffff),
                                   .delivery = deliveries < 1000000 ? (int)deliveries : 1000000};
    if (!semel__arena_copy(arena, column(stmt, 1), &ret->source) ||
        !semel__arena_copy(arena, semel__str(position), &ret->position) ||
        !semel__arena_copy(arena, column(stmt, 4), &ret->payload))
        return SEMEL_RETRY;
    status = decode(column(stmt, 2), arena, &ret->headers, &ret->n_headers);
    if (status == SEMEL_OK)
        status = decode(column(stmt, 3), arena, &ret->properties, &ret->n_properties);
    return status;
}

/* Reads available messages; a full arena ends the batch early. */
static semel_status read_batch(struct spool *spool, int64_t now_us, size_t max, struct semel_arena *arena,
                               struct semel_delivery *deliveries, size_t *ret_n, struct semel_error *err)
{
    sqlite3_stmt *stmt = look_for(spool, now_us, max);
    semel_status status = stmt != NULL ? SEMEL_OK : spool_fail(spool, "poll", err);
    int rc = SQLITE_DONE;

    *ret_n = 0;
    while (status == SEMEL_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        status = read_delivery(stmt, arena, &deliveries[*ret_n]);
        if (status == SEMEL_OK)
            ++*ret_n;
    }
    if (status == SEMEL_INVALID)
        status = semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_BROKEN, "spool: a message's headers are damaged");
    else if (status == SEMEL_RETRY)
        status = *ret_n > 0 ? SEMEL_OK : semel__fail_memory(err);
    else if (status == SEMEL_OK && rc != SQLITE_DONE)
        status = spool_fail(spool, "poll", err);
    sqlite3_finalize(stmt);
    return status;
}

static semel_status mark_taken(struct spool *spool, const struct semel_delivery *deliveries, size_t n, int64_t now_us,
                               struct semel_error *err)
{
    sqlite3_stmt *stmt = prepare(spool, "UPDATE message SET state = 1, taken_by = ?1, taken_until = ?2,"
                                        " deliveries = deliveries + 1 WHERE seq = ?3");
    semel_status status = stmt != NULL ? SEMEL_OK : spool_fail(spool, "poll", err);

    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        sqlite3_bind_text(stmt, 1, spool->name, -1, SQLITE_STATIC);
        sqlite3_bind_int64(stmt, 2, semel__time_add(now_us, spool->visibility_us));
        sqlite3_bind_int64(stmt, 3, (int64_t)(deliveries[i].tag >> 16));
        if (sqlite3_step(stmt) != SQLITE_DONE)
            status = spool_fail(spool, "poll", err);
        sqlite3_reset(stmt);
    }
    sqlite3_finalize(stmt);
    return status;
}

/* Are there messages? Asked without the write lock, so that idle handles do not queue for it. */
static bool worth_trying(struct spool *spool, int64_t now_us)
{
    sqlite3_stmt *stmt = look_for(spool, now_us, 1);
    const bool worth = stmt == NULL || sqlite3_step(stmt) != SQLITE_DONE;

    sqlite3_finalize(stmt);
    return worth;
}

static semel_status take(struct spool *spool, size_t max, struct semel_arena *arena, struct semel_delivery *deliveries,
                         size_t *ret_n, struct semel_error *err)
{
    const int64_t now_us = semel__now(&semel__clock_real);
    semel_status status;

    *ret_n = 0;
    if (!worth_trying(spool, now_us))
        return SEMEL_OK;
    status = begin(spool, err);
    if (status != SEMEL_OK)
        return status;
    status = read_batch(spool, now_us, max, arena, deliveries, ret_n, err);
    if (status == SEMEL_OK)
        status = mark_taken(spool, deliveries, *ret_n, now_us, err);
    return end(spool, status, err);
}

static semel_status spool_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                               struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    const int64_t until_us = semel__time_add(semel__now(&semel__clock_real), (int64_t)wait_ms * 1000);
    semel_status status = ready(self(broker), err);
    struct semel_delivery *deliveries;
    size_t n = 0;

    if (status != SEMEL_OK)
        return status;
    if (max > POLL_MAX)
        max = POLL_MAX;
    deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    if (deliveries == NULL)
        return semel__fail_memory(err);
    while ((status = take(self(broker), max, arena, deliveries, &n, err)) == SEMEL_OK && n == 0 &&
           semel__now(&semel__clock_real) < until_us)
        sqlite3_sleep(LOOK_AGAIN_MS);
    if (status != SEMEL_OK)
        return status;
    *ret_deliveries = deliveries;
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- answers ------------------------------------------------------------------------------------ */

/* Runs `sql` for each reply that acknowledges, or for each that gives back: ?1 seq, ?2 deliveries, ?3 this handle, ?4
 * not before. *ret_untouched: those without effect. */
static semel_status for_each(struct spool *spool, const char *sql, const struct semel_reply *replies, size_t n,
                             bool acks, size_t *ret_untouched, struct semel_error *err)
{
    sqlite3_stmt *stmt = prepare(spool, sql);
    const int64_t now_us = semel__now(&semel__clock_real);
    semel_status status = stmt != NULL ? SEMEL_OK : spool_fail(spool, "settling", err);

    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        if (semel__reply_acks(&replies[i]) != acks)
            continue;
        sqlite3_bind_int64(stmt, 1, (int64_t)(replies[i].tag >> 16));
        sqlite3_bind_int64(stmt, 2, (int64_t)(replies[i].tag & 0xffff));
        sqlite3_bind_text(stmt, 3, spool->name, -1, SQLITE_STATIC);
        if (sqlite3_bind_parameter_count(stmt) > 3)
            sqlite3_bind_int64(stmt, 4, semel__time_add(now_us, (int64_t)replies[i].delay_ms * 1000));
        if (sqlite3_step(stmt) != SQLITE_DONE)
            status = spool_fail(spool, "settling", err);
        else if (sqlite3_changes(spool->db) == 0)
            ++*ret_untouched;
        sqlite3_reset(stmt);
    }
    sqlite3_finalize(stmt);
    return status;
}

#define STILL_OURS " WHERE seq = ?1 AND state = 1 AND (deliveries & 65535) = ?2 AND taken_by = ?3"

/* First gives back all named messages, then those that this handle still has behind one of them in its partition. */
static semel_status spool_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                 struct semel_error *err)
{
    static const char ack[] = "UPDATE message SET state = 2, taken_by = NULL" STILL_OURS;
    static const char back[] = "UPDATE message SET state = 0, taken_by = NULL, not_before = ?4" STILL_OURS;
    static const char followers[] =
        "UPDATE message AS f SET state = 0, taken_by = NULL WHERE f.state = 1 AND f.taken_by = ?3 AND ?2 = ?2"
        " AND EXISTS (SELECT 1 FROM message AS e WHERE e.seq = ?1 AND e.state = 0 AND e.source = f.source"
        " AND e.partition = f.partition AND e.seq < f.seq)";
    struct spool *spool = self(broker);
    semel_status status = ready(spool, err);
    size_t n_fenced = 0, unused = 0;

    if (status == SEMEL_OK)
        status = begin(spool, err);
    if (status != SEMEL_OK)
        return status;
    status = for_each(spool, ack, replies, n, true, &n_fenced, err);
    if (status == SEMEL_OK)
        status = for_each(spool, back, replies, n, false, &n_fenced, err);
    if (status == SEMEL_OK)
        status = for_each(spool, followers, replies, n, false, &unused, err);
    if (status == SEMEL_OK)
        status = semel__broker_fenced("spool", n_fenced, n, err);
    return end(spool, status, err);
}

/* ---- push --------------------------------------------------------------------------------------------- */

static sqlite3_stmt *prepare_insert(struct spool *spool)
{
    return prepare(spool, "INSERT INTO message (source, partition, headers, properties, payload)"
                          " VALUES (?1, ?2, ?3, ?4, ?5)");
}

static bool encode_published(struct semel_buf *headers, const struct semel_publish *item)
{
    struct semel_pair pair;
    bool ok = true;

    for (size_t i = 0; ok && i <= item->n_headers; i++)
        if (semel__publish_header(item, i, &pair))
            ok = encode(headers, &pair, 1);
    return ok;
}

static semel_status insert(struct spool *spool, sqlite3_stmt *stmt, const struct semel_spool_push *push,
                           const struct semel_publish *item, struct semel_error *err)
{
    struct semel_buf headers, properties;
    semel_status status = SEMEL_OK;

    semel__buf_init(&headers, PAIRS_MAX);
    semel__buf_init(&properties, PAIRS_MAX);
    if (!encode(&headers, push->headers, push->n_headers) || (item != NULL && !encode_published(&headers, item)) ||
        !encode(&properties, push->properties, push->n_properties)) {
        status = semel__fail_memory(err);
    } else {
        sqlite3_bind_text(stmt, 1, push->source.n > 0 ? push->source.p : "", (int)push->source.n, SQLITE_STATIC);
        if (push->partition >= 0)
            sqlite3_bind_int64(stmt, 2, push->partition);
        bind_bytes(stmt, 3, semel__buf_str(&headers));
        bind_bytes(stmt, 4, semel__buf_str(&properties));
        bind_bytes(stmt, 5, push->payload);
        if (sqlite3_step(stmt) != SQLITE_DONE)
            status = spool_fail(spool, "push", err);
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
    semel_status status = ready(spool, err);
    sqlite3_stmt *stmt;

    if (status == SEMEL_OK)
        status = begin(spool, err);
    if (status != SEMEL_OK)
        return status;
    stmt = prepare_insert(spool);
    if (stmt == NULL)
        status = spool_fail(spool, "push", err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = insert(spool, stmt, &messages[i], NULL, err);
    sqlite3_finalize(stmt);
    status = end(spool, status, err);
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

static semel_status spool_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                  struct semel_error *err)
{
    struct spool *spool = self(broker);
    semel_status status = ready(spool, err);
    sqlite3_stmt *stmt = NULL;

    (void)timeout_ms; /* only the lock of the file makes it wait */
    if (status == SEMEL_OK)
        status = begin(spool, err);
    if (status != SEMEL_OK)
        return status;
    stmt = prepare_insert(spool);
    if (stmt == NULL)
        status = spool_fail(spool, "publish", err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        const struct semel_spool_push push = {.source = items[i].destination,
                                              .partition = partition_of(items[i].key),
                                              .payload = items[i].payload};
        status = insert(spool, stmt, &push, &items[i], err);
    }
    sqlite3_finalize(stmt);
    status = end(spool, status, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        items[i].status = SEMEL_OK;
    return status;
}

/* ---- for tests and the demo --------------------------------------------------------------------------- */

semel_status semel__spool_stats(struct semel_broker *broker, size_t *ret_ready, size_t *ret_taken, size_t *ret_acked,
                                struct semel_error *err)
{
    struct spool *spool = self(broker);
    semel_status status = ready(spool, err);
    sqlite3_stmt *stmt;

    if (status != SEMEL_OK)
        return status;
    stmt = prepare(spool, "SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1),"
                          " count(*) FILTER (WHERE state = 2) FROM message");
    if (stmt == NULL || sqlite3_step(stmt) != SQLITE_ROW) {
        status = spool_fail(spool, "stats", err);
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
    semel_status status = ready(spool, err);
    sqlite3_stmt *stmt;

    if (status != SEMEL_OK)
        return status;
    stmt = prepare(spool, "UPDATE message SET state = 0, not_before = 0 WHERE seq = ?1 AND state = 2");
    if (stmt != NULL)
        sqlite3_bind_int64(stmt, 1, seq);
    if (stmt == NULL || sqlite3_step(stmt) != SQLITE_DONE)
        status = spool_fail(spool, "requeue", err);
    else if (sqlite3_changes(spool->db) == 0)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "spool: message %lld is not an acknowledged one", (long long)seq);
    sqlite3_finalize(stmt);
    return status;
}

static const struct semel_broker_ops spool_ops = {
    .name = "spool",
    .capabilities = SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | SEMEL_BROKER_ORDERED,
    .close = spool_close,
    .reopen = spool_reopen,
    .poll = spool_poll,
    .answer = spool_answer,
    .publish = spool_publish,
};
