/* SPDX-License-Identifier: MIT
 *
 * pg_queue.c: statements of handlers, sent without waiting for their answers.
 *
 * With the first one the connection goes into pipeline mode and stays there until the queue is ended, by collect or by
 * the next trip of the driver. The server stops at the first statement that fails; who queued it is known by the tag.
 *
 * Invariants: one answer is read for every statement sent, in order; only statements that read or write data are taken.
 * A transaction that ended in the middle of a pipeline would leave the rest of it to commit by itself at the Sync
 * (P58): COMMIT and ROLLBACK are refused here, and a procedure that tries them fails inside a transaction block.
 */
#include <stdio.h>

#include "store/pg.h"

#define SENT_MAX 65536 /* then the answers so far are waited for */
#define FLUSH_EVERY 32 /* the server works while handlers go on */
#define NAME_BYTES 32
#define SQL_MAX (1 << 20)

struct sent {
    size_t tag;
    int prepares; /* which of the kept statements; -1: it is a statement itself */
};

struct pg_queue {
    bool open, restore;
    struct sent *sent;
    size_t n, room, unflushed;
    bool failed; /* to be told by collect */
    size_t tag;
    struct semel_error err;
    /* statements that are kept prepared, by their text */
    char *texts[PG_QUEUED_MAX];
    bool prepared[PG_QUEUED_MAX], asked[PG_QUEUED_MAX];
    size_t n_texts;
};

bool semel__pg_queue_open(const struct pg_store *d)
{
    return d->queue != NULL && d->queue->open;
}

void semel__pg_queue_forget(struct pg_store *d)
{
    struct pg_queue *q = d->queue;
    if (q == NULL)
        return;
    q->open = q->failed = false;
    q->n = q->unflushed = 0;
    memset(q->prepared, 0, sizeof(q->prepared));
    memset(q->asked, 0, sizeof(q->asked));
}

void semel__pg_queue_free(struct pg_store *d)
{
    struct pg_queue *q = d->queue;
    if (q == NULL)
        return;
    for (size_t i = 0; i < q->n_texts; i++)
        semel__free(q->texts[i]);
    semel__free(q->sent);
    semel__free(q);
    d->queue = NULL;
}

/* ---- is it a statement of an allowed kind? ------------------------------------------------------- */

static const char *skip_comment(const char *p)
{
    if (p[0] == '-')
        return p + strcspn(p, "\n");
    int depth = 0; /* they nest */
    for (; *p != '\0'; p++) {
        if (p[0] == '/' && p[1] == '*') {
            depth++;
            p++;
        } else if (p[0] == '*' && p[1] == '/') {
            p++;
            if (--depth == 0)
                return p + 1;
        }
    }
    return p;
}

static bool allowed(const char *sql)
{
    static const char *const words[] = {"select", "insert", "update", "delete", "merge",
                                        "with",   "values", "call",   "do",     "table"};
    const char *p = sql;
    for (;;) {
        p += strspn(p, " \t\r\n\f(");
        if (!(p[0] == '-' && p[1] == '-') && !(p[0] == '/' && p[1] == '*'))
            break;
        p = skip_comment(p);
    }
    size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i]) == n && strncasecmp(p, words[i], n) == 0)
            return true;
    return false;
}

/* ---- sending ------------------------------------------------------------------------------------- */

static bool remember(struct pg_queue *q, size_t tag, int prepares)
{
    if (q->n == q->room) {
        size_t room = q->room > 0 ? 2 * q->room : 256;
        struct sent *sent = semel__realloc(q->sent, room, sizeof(*sent));
        if (sent == NULL)
            return false;
        q->sent = sent;
        q->room = room;
    }
    q->sent[q->n++] = (struct sent){tag, prepares};
    return true;
}

/* Which of the kept statements it is; -1: none, and there is no room for one more. */
static int kept(struct pg_queue *q, const char *sql)
{
    for (size_t i = 0; i < q->n_texts; i++)
        if (strcmp(q->texts[i], sql) == 0)
            return (int)i;
    size_t n = strlen(sql) + 1;
    char *copy = q->n_texts < PG_QUEUED_MAX ? semel__alloc(n) : NULL;
    if (copy == NULL)
        return -1;
    memcpy(copy, sql, n);
    q->texts[q->n_texts] = copy;
    return (int)q->n_texts++;
}

static bool send(struct pg_store *d, const struct semel_pg_statement *s)
{
    struct pg_queue *q = d->queue;
    char name[NAME_BYTES];
    int which = d->wrapped || d->pooler ? -1 : kept(q, s->sql);
    size_t tag = d->sql.store.tag;
    if (which < 0)
        return remember(q, tag, -1) &&
               PQsendQueryParams(d->conn, s->sql, s->n, s->types, s->values, s->lengths, s->formats, 1) != 0;
    snprintf(name, sizeof(name), "semel_handler_%d", which);
    if (!q->prepared[which] && !q->asked[which]) {
        if (!remember(q, tag, which) || PQsendPrepare(d->conn, name, s->sql, s->n, s->types) == 0)
            return false;
        q->asked[which] = true;
    }
    return remember(q, tag, -1) && PQsendQueryPrepared(d->conn, name, s->n, s->values, s->lengths, s->formats, 1) != 0;
}

static semel_status enter(struct pg_store *d, struct semel_error *err)
{
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (d->queue == NULL && (d->queue = semel__calloc(1, sizeof(*d->queue))) == NULL)
        return semel__fail_memory(err);
    struct pg_queue *q = d->queue;
    if (q->open)
        return SEMEL_OK;
    q->restore = PQisnonblocking(d->conn) == 0;
    if ((q->restore && PQsetnonblocking(d->conn, 1) != 0) || PQenterPipelineMode(d->conn) == 0)
        return semel__pg_own_fail(d, NULL, "queue", err);
    q->open = true;
    q->n = q->unflushed = 0;
    d->undone = false;
    return SEMEL_OK;
}

static semel_status queue(struct pg_store *d, const struct semel_pg_statement *statement, struct semel_error *err)
{
    if (!send(d, statement)) {
        d->broken = true; /* what was sent and what was remembered may differ */
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "queue: the statement could not be sent");
    }
    if (++d->queue->unflushed >= FLUSH_EVERY) {
        d->queue->unflushed = 0;
        if (PQflush(d->conn) < 0) {
            d->broken = true;
            return semel__pg_lost(d->conn, "queue", err);
        }
    }
    return SEMEL_OK;
}

semel_status semel__pg_queue_ours(struct pg_store *d, const struct sql_text *const *texts, size_t n,
                                  struct semel_error *err)
{
    semel_status status = semel__pg_usable(d, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        const struct semel_pg_statement statement = {.sql = texts[i]->text};
        status = queue(d, &statement, err);
    }
    return status;
}

semel_status semel__pg_queue(struct semel_store *store, const struct semel_pg_statement *statement,
                             struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    if (!d->begun && !d->joined)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "queue: there is no open transaction");
    if (strnlen(statement->sql, SQL_MAX) == SQL_MAX || !allowed(statement->sql))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "queue: a handler's statement must be one of SELECT, INSERT, UPDATE, DELETE, MERGE, WITH, "
                           "VALUES, CALL, DO");
    semel_status status = SEMEL_OK;
    if (semel__pg_queue_open(d) && d->queue->n >= SENT_MAX)
        status = semel__pg_queue_end(d, err);
    if (status == SEMEL_OK)
        status = enter(d, err);
    if (status != SEMEL_OK)
        return status;
    return queue(d, statement, err);
}

/* ---- receiving ----------------------------------------------------------------------------------- */

static void note_failure(struct pg_queue *q, size_t tag, const struct semel_error *err)
{
    if (q->failed)
        return;
    q->failed = true;
    q->tag = tag;
    q->err = *err;
}

static void take(struct pg_store *d, const struct sent *sent, const PGresult *result)
{
    struct pg_queue *q = d->queue;
    struct semel_error err;
    bool ok = semel__pg_succeeded(result);
    if (sent->prepares >= 0) {
        q->prepared[sent->prepares] = ok;
        q->asked[sent->prepares] = false;
    }
    if (ok || PQresultStatus(result) == PGRES_PIPELINE_ABORTED)
        return;
    if (semel__pg_fail(d->conn, result, "handler", &err) == SEMEL_CLOSED)
        d->broken = true;
    note_failure(q, sent->tag, &err);
}

semel_status semel__pg_queue_end(struct pg_store *d, struct semel_error *err)
{
    struct pg_queue *q = d->queue;
    struct semel_error why;
    semel_status status = SEMEL_OK;
    size_t tag = d->sql.store.tag;
    if (PQpipelineSync(d->conn) == 0) {
        d->broken = true;
        status = semel__pg_lost(d->conn, "queue", &why);
    }
    for (size_t i = 0; status == SEMEL_OK && i < q->n; i++) {
        PGresult *result = NULL;
        tag = q->sent[i].tag;
        status = semel__pg_answer(d, "handler", &result, &why);
        if (status == SEMEL_OK)
            take(d, &q->sent[i], result);
        PQclear(result);
    }
    if (status == SEMEL_OK)
        status = semel__pg_synced(d, "handler", &why);
    if (status != SEMEL_OK)
        note_failure(q, tag, &why);
    d->trips++;
    q->open = false;
    q->n = 0;
    if (q->restore && PQstatus(d->conn) == CONNECTION_OK)
        PQsetnonblocking(d->conn, 0);
    if (q->failed && err != NULL)
        *err = q->err;
    return q->failed ? q->err.status : SEMEL_OK;
}

semel_status semel__pg_collect(struct semel_store *store, size_t *ret_tag, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_queue *q = d->queue;
    if (q == NULL || (!q->open && !q->failed))
        return SEMEL_OK;
    semel_status status = q->open && !d->broken ? semel__pg_queue_end(d, NULL) : q->err.status;
    if (q->open) /* broken meanwhile */
        return semel__pg_usable(d, err);
    if (!q->failed)
        return status;
    q->failed = false;
    *ret_tag = q->tag;
    if (err != NULL)
        *err = q->err;
    return q->err.status;
}

/* The transaction is given up: what is queued still has to be answered, but nobody asks for it. */
void semel__pg_queue_drop(struct pg_store *d)
{
    if (semel__pg_queue_open(d) && !d->broken)
        (void)semel__pg_queue_end(d, NULL);
    if (d->queue != NULL)
        d->queue->failed = false;
}
