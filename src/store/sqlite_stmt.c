/* SPDX-License-Identifier: MIT
 *
 * sqlite_stmt.c: every statement of the driver, and how they are run.
 *
 * What it is: the text of each statement in one table; a cache of prepared statements, filled on first use
 * and emptied on closing; binding and stepping with one place for errors.
 *
 * Invariants: the text is constant; every table is main's, whatever a caller's connection has in temp; the conditions
 * on status are spelled exactly as in the partial indexes of sql/sqlite/001_inbox.sql, or SQLite would not use them
 * (test_sqlite_store asks for every plan). Bound memory is borrowed (SQLITE_STATIC) and forgotten when the statement is
 * reset.
 */
#include "store/sqlite.h"

#define UNFINISHED \
    "(status = 'processing' OR status = 'failed' OR status = 'waiting' OR status = 'unknown' OR status = 'dead')"
/* Has a place in the order of its key: it does not wait for a business key. */
#define IN_ORDER UNFINISHED " AND error_class IS NOT 'business_duplicate'"
#define OPEN                                                                                                      \
    "(status = 'processing' OR status = 'failed' OR status = 'waiting' OR status = 'unknown' OR status = 'dead' " \
    "OR status = 'quarantined')"
#define FINAL "(status = 'completed' OR status = 'rejected' OR status = 'stale' OR status = 'prevented')"

/* The wishes of a row that does not run, each after its length in three digits. Of more than four, which redeliveries
 * under ever other keys may leave, the first. */
#define WANTS                                                                                                      \
    "CASE WHEN " OPEN " AND status <> 'processing' THEN (SELECT "                                                  \
    "group_concat(printf('%03d', length(CAST(k AS BLOB))) || k, '') FROM (SELECT w.business_key AS k FROM "        \
    "main.semel_business_want AS w WHERE w.consumer = semel_inbox.consumer AND w.source = semel_inbox.source AND " \
    "w.message_id = semel_inbox.message_id ORDER BY k LIMIT 4)) END "
/* ?1 says whether headers and payload are wanted. */
#define X(name) #name ", "
#define SELECT_ROW                                                                                     \
    "SELECT " SQLITE_ROW_MAP(                                                                          \
        X) "payload IS NOT NULL, CASE WHEN ?1 THEN headers END, CASE WHEN ?1 THEN payload END, " WANTS \
           "FROM main.semel_inbox "

/* Rows of a key that were there before this transaction drew its first arrival, ?3. */
#define EARLIER "consumer = ?1 AND order_key = ?2 AND arrival < ?3 "

static const char *const texts[Q_COUNT] = {
    [Q_BEGIN] = "BEGIN IMMEDIATE",
    [Q_COMMIT] = "COMMIT",
    [Q_ROLLBACK] = "ROLLBACK",
    [Q_SAVEPOINT] = "SAVEPOINT semel_one",
    [Q_RELEASE] = "RELEASE semel_one",
    [Q_ROLLBACK_TO] = "ROLLBACK TO semel_one",
    /* Writes nothing, but has to hold the write lock to find that out. */
    [Q_LOCK] = "UPDATE main.semel_counter SET value = value WHERE name = ''",
    [Q_DRAW] = "UPDATE main.semel_counter SET value = value + ?2 WHERE name = ?1 RETURNING value - ?2",

    [Q_KEY_PUT] = "INSERT INTO main.semel_order_key (consumer, order_key, updated_at) VALUES (?1, ?2, ?3) "
                  "ON CONFLICT (consumer, order_key) DO NOTHING",
    [Q_KEY_FACTS] = "SELECT k.last_version, "
                    "(SELECT count(*) FROM (SELECT 1 FROM main.semel_inbox WHERE " EARLIER
                    "AND status = 'waiting' AND error_class IS NOT 'business_duplicate' LIMIT 100000)), "
                    "EXISTS (SELECT 1 FROM main.semel_inbox WHERE " EARLIER "AND " UNFINISHED
                    " AND status IN ('processing', 'unknown')), " /* the first condition is the index's own */
                    "k.skipped FROM main.semel_order_key AS k WHERE k.consumer = ?1 AND k.order_key = ?2",
    [Q_HEAD_ARRIVAL] = "SELECT arrival, version FROM main.semel_inbox WHERE " EARLIER "AND " IN_ORDER
                       " ORDER BY arrival LIMIT 1",
    /* The plus: the index by version gives this order, the one by arrival would have to be sorted. */
    [Q_HEAD_VERSION] = "SELECT arrival, version FROM main.semel_inbox WHERE consumer = ?1 AND order_key = ?2 "
                       "AND +arrival < ?3 AND " IN_ORDER " ORDER BY version, arrival LIMIT 1",
    [Q_BUSINESS_TAKE] =
        "INSERT INTO main.semel_business_key (consumer, business_key, source, message_id, taken_at, expires_at) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (consumer, business_key) DO UPDATE SET "
        "source = excluded.source, message_id = excluded.message_id, taken_at = excluded.taken_at, "
        "expires_at = excluded.expires_at WHERE expires_at <= ?5",
    [Q_BUSINESS_HOLDER] = "SELECT source, message_id, EXISTS (SELECT 1 FROM main.semel_inbox AS i WHERE "
                          "i.consumer = ?1 AND i.source = k.source AND i.message_id = k.message_id AND " UNFINISHED
                          "), (SELECT count(*) FROM (SELECT 1 FROM main.semel_business_want WHERE consumer = ?1 "
                          "AND business_key = ?2 LIMIT 100000)) "
                          "FROM main.semel_business_key AS k WHERE consumer = ?1 AND business_key = ?2",
    /* Only the key may clash: an arrival or a token that is there already is damage, and an error. */
    [Q_INSERT] =
        "INSERT INTO main.semel_inbox (consumer, source, message_id, type, status, attempts, attempts_before, retries, "
        "alone, fingerprint, order_key, version, message_time, received_at, updated_at, processed_at, due_at, "
        "lease_owner, lease_until, lease_token, error_class, error_text, outcome, position, headers, payload, "
        "traceparent, arrival) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, "
        "?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28) "
        "ON CONFLICT (consumer, source, message_id) DO NOTHING",
    [Q_FETCH] = SELECT_ROW "WHERE consumer = ?2 AND source = ?3 AND message_id = ?4",
    [Q_WATERMARK_GET] = "SELECT watermark FROM main.semel_watermark WHERE consumer = ?1 AND source = ?2",
    [Q_PIN] = "SELECT max(version) FROM main.semel_schema",
};
#undef X

const char *semel__sqlite_sql(enum sqlite_q q)
{
    return q < Q_COUNT ? texts[q] : NULL;
}

void semel__sqlite_start(struct sqlite_run *run, struct sqlite_store *d, enum sqlite_q q, const char *doing)
{
    *run = (struct sqlite_run){.d = d, .stmt = d->stmts[q], .rc = SQLITE_OK, .doing = doing};
    if (run->stmt != NULL)
        return;
    run->rc = sqlite3_prepare_v3(d->db, texts[q], -1, SQLITE_PREPARE_PERSISTENT, &run->stmt, NULL);
    d->stmts[q] = run->stmt;
}

/* What is not bound is NULL: a statement is new, or its bindings were cleared when it was reset. */
void semel__sqlite_text(struct sqlite_run *run, int i, struct semel_str s)
{
    if (run->rc == SQLITE_OK && semel__str_given(s))
        run->rc = sqlite3_bind_text64(run->stmt, i, s.p, s.n, SQLITE_STATIC, SQLITE_UTF8);
}

void semel__sqlite_blob(struct sqlite_run *run, int i, struct semel_str s)
{
    if (run->rc == SQLITE_OK && semel__str_given(s))
        run->rc = sqlite3_bind_blob64(run->stmt, i, s.p, s.n, SQLITE_STATIC);
}

void semel__sqlite_int(struct sqlite_run *run, int i, int64_t v)
{
    if (run->rc == SQLITE_OK && v != SEMEL_NONE)
        run->rc = sqlite3_bind_int64(run->stmt, i, v);
}

void semel__sqlite_end(struct sqlite_run *run)
{
    if (run->stmt == NULL)
        return;
    sqlite3_reset(run->stmt);
    sqlite3_clear_bindings(run->stmt);
    run->stmt = NULL;
}

semel_status semel__sqlite_step(struct sqlite_run *run, bool *ret_row, struct semel_error *err)
{
    int rc = run->rc != SQLITE_OK ? run->rc : sqlite3_step(run->stmt);
    if (rc == SQLITE_ROW) {
        *ret_row = true;
        return SEMEL_OK;
    }
    /* The message must be read before the reset. */
    semel_status status = rc == SQLITE_DONE ? SEMEL_OK : semel__sqlite_own_fail(run->d, rc, run->doing, err);
    semel__sqlite_end(run);
    *ret_row = false;
    return status;
}

semel_status semel__sqlite_exec(struct sqlite_run *run, size_t *ret_changes, struct semel_error *err)
{
    bool row = false;
    semel_status status = semel__sqlite_step(run, &row, err);
    while (status == SEMEL_OK && row)
        status = semel__sqlite_step(run, &row, err);
    if (status == SEMEL_OK && ret_changes != NULL)
        *ret_changes = (size_t)sqlite3_changes64(run->d->db);
    return status;
}

void semel__sqlite_finalize(struct sqlite_store *d)
{
    for (size_t i = 0; i < Q_COUNT; i++) {
        sqlite3_finalize(d->stmts[i]);
        d->stmts[i] = NULL;
    }
    for (size_t i = 0; i < SQL_COUNT; i++) {
        sqlite3_finalize(d->kept[i]);
        d->kept[i] = NULL;
    }
}
