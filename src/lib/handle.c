/* SPDX-License-Identifier: MIT
 *
 * handle.c: a handle and the messages that it has begun: opening and closing, the frame of every call; and the inbox
 * inside the caller's transaction: begin, done, fail.
 *
 * The witness (store/sqlite_store.h) refuses a commit while a begun message has no end (P59), and reports the end of
 * a transaction, so that the list of such messages is cleared with it. On PostgreSQL the database itself refuses the
 * commit (store/pg_store.h), and nobody reports the end of a transaction; nor does anybody on a loose handle. There
 * the next begin notices a stale list by the rows.
 *
 * A begin claims the message under a token, in the caller's transaction, and notes it as pending. Its end is written
 * under that token. A savepoint of the caller's may undo the begin or the end. On SQLite that is reported to the watch
 * (store/sqlite_watch.c), and how many messages have no end is right at once. Which ones these are is found by the
 * next begin, done or fail, by the rows, on every store. A savepoint always undoes the latest writes: stale entries
 * are at the end of the lists `pending` and `ended`, and checking the last one of each is enough to find out.
 *
 * Invariants: every pending message is `processing` in this transaction, as far as the last call knew; a message is in
 * one of the two lists, once; a call that fails leaves both lists and rows as they were. A list keeps the order in
 * which messages were added; semel__held_add never fails after semel__held_room.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/str.h"
#include "lib/handle.h"

#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

#define ARENA_MAX ((size_t)1 << 30)

static const struct semel_store_ops *const drivers[] = {
#ifdef SEMEL_WITH_SQLITE
    &semel__store_sqlite,
#endif
#ifdef SEMEL_WITH_POSTGRES
    &semel__store_postgres,
    &semel__store_postgresql,
#endif
    NULL,
};

/* ---- messages that were begun or claimed ---------------------------------------------------------- */

static struct semel_str keep(char **at, struct semel_str s)
{
    struct semel_str kept = {*at, s.n};
    if (s.n > 0)
        memcpy(*at, s.p, s.n);
    *at += s.n;
    return kept;
}

struct held *semel__held_new(struct semel_str consumer, const struct semel__msg *msg)
{
    struct held *held = semel__calloc(1, sizeof *held + consumer.n + msg->source.n + msg->id.n);
    if (held == NULL)
        return NULL;
    char *at = held->bytes;
    held->consumer = keep(&at, consumer);
    held->source = keep(&at, msg->source);
    held->id = keep(&at, msg->id);
    held->token = SEMEL_NONE;
    return held;
}

bool semel__held_room(struct held_list *list)
{
    if (list->n < list->cap)
        return true;
    size_t cap = list->cap > 0 ? 2 * list->cap : 8;
    struct held **items = semel__realloc(list->items, cap, sizeof(struct held *));
    if (items == NULL)
        return false;
    list->items = items;
    list->cap = cap;
    return true;
}

void semel__held_add(struct held_list *list, struct held *held)
{
    list->items[list->n++] = held;
}

static struct held *held_find(const struct held_list *list, struct semel_str consumer, struct semel_str source,
                              struct semel_str id)
{
    for (size_t i = 0; i < list->n; i++) {
        if (semel__held_is(list->items[i], consumer, source, id))
            return list->items[i];
    }
    return NULL;
}

struct held *semel__held_by_token(const struct held_list *list, int64_t token)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i]->token == token)
            return list->items[i];
    return NULL;
}

/* Removes it from the list and leaves it to the caller. false: it is not in the list. */
static bool take_out(struct held_list *list, const struct held *held)
{
    for (size_t i = 0; i < list->n; i++) {
        if (list->items[i] != held)
            continue;
        memmove(&list->items[i], &list->items[i + 1], (list->n - i - 1) * sizeof(struct held *));
        list->n--;
        return true;
    }
    return false;
}

void semel__held_drop(struct held_list *list, struct held *held)
{
    if (take_out(list, held))
        semel__free(held);
}

/* `to` must have room */
static void held_move(struct held_list *from, struct held_list *to, struct held *held)
{
    if (take_out(from, held))
        semel__held_add(to, held);
}

static void held_clear(struct held_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        semel__free(list->items[i]);
    list->n = 0;
}

void semel__held_done(struct held_list *list)
{
    held_clear(list);
    semel__free(list->items);
    *list = (struct held_list){0};
}

/* ---- opening and closing ------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_SQLITE
static bool may_commit(void *ctx)
{
    return semel_pending(ctx) == 0;
}
#endif

static bool saved(void *ctx, int number)
{
    struct semel *s = ctx;
    size_t n = (size_t)number + 1;
    if (n > s->cap_marks) {
        struct mark *marks = semel__realloc(s->marks, 2 * n, sizeof(struct mark));
        if (marks == NULL)
            return false;
        s->marks = marks;
        s->cap_marks = 2 * n;
    }
    while (s->n_marks < n) /* those outside of it that were set before the first begin, too */
        s->marks[s->n_marks++] = (struct mark){s->open, s->n_deeds};
    s->marks[number] = (struct mark){s->open, s->n_deeds};
    return true;
}

static void undone(void *ctx, int number)
{
    struct semel *s = ctx;
    struct mark back = number >= 0 && (size_t)number < s->n_marks ? s->marks[number] : (struct mark){0};
    for (size_t i = (size_t)number + 1; i < s->n_marks; i++) /* they are gone, but a statement that writes goes on */
        s->marks[i] = back;
    s->open = back.open;
    semel__undo_deeds(s, back.n_deeds);
}

static void ended(void *ctx)
{
    struct semel *s = ctx;
    held_clear(&s->pending);
    held_clear(&s->ended);
    s->refused = s->n_keys = s->open = 0;
    s->n_marks = s->n_deeds = 0;
}

semel_status semel__watch_savepoints(struct semel *s, struct semel_error *err)
{
#ifdef SEMEL_WITH_SQLITE
    if (!s->watch.on) /* nothing was begun; or sqlite3_close, which was refused, has let go of the table */
        s->open = (int)s->pending.n;
    if (!s->loose && strcmp(s->store->ops->name, "sqlite") == 0)
        return semel__sqlite_watch(&s->watch, semel_store_native(s->store), err);
#endif
    (void)s, (void)err;
    return SEMEL_OK;
}

/* The host, for people who read a row; the number behind it makes it unique. */
static void name_owner(struct semel *s)
{
    char host[64] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof host, "host");
    for (char *p = host; *p != '\0'; p++)
        if (*p <= ' ' || *p > '~')
            *p = '?';
    snprintf(s->owner, sizeof s->owner, "%s-%ld-%016llx", host, (long)s->pid,
             (unsigned long long)semel__random_next(&s->rng));
}

static semel_status check_flags(unsigned flags, unsigned allowed, const char *which, struct semel_error *err)
{
    if ((flags & ~allowed) == 0)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "flags 0x%x: only %s are known here", flags, which);
}

/* A handle without its store. */
static semel_status prepare(struct semel **ret, struct semel_error *err)
{
    struct semel *s = semel__calloc(1, sizeof *s);
    if (s == NULL)
        return semel__fail_memory(err);
    if (!semel__random_seed_os(&s->rng)) {
        semel__free(s);
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the system gives no random bytes");
    }
    s->pid = getpid();
    name_owner(s);
    semel__arena_init(&s->arena, ARENA_MAX);
    semel__arena_init(&s->sheet, ARENA_MAX);
    semel__buf_init(&s->known, SEMEL_SETTINGS_MAX);
    *ret = s;
    return SEMEL_OK;
}

/* On failure closes the store again. */
static semel_status finish(struct semel *s, bool loose, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    s->loose = loose;
    s->watch = (struct semel_sqlite_watch){.ctx = s, .saved = saved, .undone = undone};
#ifdef SEMEL_WITH_SQLITE
    struct semel_sqlite_witness witness = {.ctx = s, .may_commit = may_commit, .ended = ended};
    if (!loose && strcmp(s->store->ops->name, "sqlite") == 0)
        status = semel__sqlite_witness(s->store, &witness, err);
#else
    (void)err;
#endif
    if (status == SEMEL_OK) {
        semel__inbox_init(&s->inbox, s->store, &s->policy, &s->handler, &s->rng, semel__str(s->owner));
        semel__house_init(&s->house, s->store, &s->rng, semel__str(s->owner));
    } else
        semel_store_close(s->store);
    return status;
}

static struct semel_store_options with_flags(const struct semel_store_options *options, unsigned flags)
{
    struct semel_store_options both = options != NULL ? *options : (struct semel_store_options){0};
    both.create |= (flags & SEMEL_CREATE) != 0;
    both.migrate |= (flags & SEMEL_MIGRATE) != 0;
    return both;
}

semel_status semel__handle_open(struct semel **ret, const char *url, unsigned flags,
                                const struct semel_store_options *options, struct semel_error *err)
{
    struct semel *s = NULL;
    semel__error_clear(err);
    if (ret == NULL || url == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s is NULL", ret == NULL ? "ret" : "url");
    *ret = NULL;
    semel_status status = check_flags(flags, SEMEL_CREATE | SEMEL_MIGRATE, "SEMEL_CREATE and SEMEL_MIGRATE", err);
    if (status == SEMEL_OK)
        status = prepare(&s, err);
    if (status != SEMEL_OK || s == NULL)
        return status;
    struct semel_store_options both = with_flags(options, flags);
    status = semel_store_open(&s->store, drivers, url, &both, err);
    if (status == SEMEL_OK)
        status = finish(s, false, err);
    if (status != SEMEL_OK) {
        semel__free(s);
        return status;
    }
    *ret = s;
    return SEMEL_OK;
}

/* One of the caller's connections. */
struct theirs {
    struct sqlite3 *db;
    struct pg_conn *conn;
};

static semel_status wrap_store(struct semel *s, struct theirs theirs, const struct semel_store_options *options,
                               struct semel_error *err)
{
    const char *missing = theirs.db != NULL ? "SQLite" : "PostgreSQL";
#ifdef SEMEL_WITH_SQLITE
    if (theirs.db != NULL)
        return semel__store_sqlite_wrap(&s->store, theirs.db, options, err);
#endif
#ifdef SEMEL_WITH_POSTGRES
    if (theirs.conn != NULL)
        return semel__store_pg_wrap(&s->store, theirs.conn, options, err);
#endif
    (void)s;
    (void)options;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "this build has no %s", missing);
}

static semel_status wrap(struct semel **ret, struct theirs theirs, unsigned flags,
                         const struct semel_store_options *options, struct semel_error *err)
{
    struct semel *s = NULL;
    *ret = NULL;
    semel_status status = check_flags(flags, SEMEL_MIGRATE | SEMEL_LOOSE, "SEMEL_MIGRATE and SEMEL_LOOSE", err);
    if (status == SEMEL_OK)
        status = prepare(&s, err);
    if (status != SEMEL_OK || s == NULL)
        return status;
    struct semel_store_options both = with_flags(options, flags);
    status = wrap_store(s, theirs, &both, err);
    if (status == SEMEL_OK)
        status = finish(s, (flags & SEMEL_LOOSE) != 0, err);
    if (status != SEMEL_OK) {
        semel__free(s);
        return status;
    }
    *ret = s;
    return SEMEL_OK;
}

semel_status semel__handle_wrap(struct semel **ret, struct sqlite3 *db, unsigned flags,
                                const struct semel_store_options *options, struct semel_error *err)
{
    semel__error_clear(err);
    if (ret == NULL || db == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s is NULL", ret == NULL ? "ret" : "db");
    return wrap(ret, (struct theirs){.db = db}, flags, options, err);
}

semel_status semel_wrap_pg(struct semel **ret, struct pg_conn *conn, unsigned flags, struct semel_error *err)
{
    semel__error_clear(err);
    if (ret == NULL || conn == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s is NULL", ret == NULL ? "ret" : "conn");
    return wrap(ret, (struct theirs){.conn = conn}, flags, NULL, err);
}

bool semel__holds_in_store(const struct semel *s)
{
#ifdef SEMEL_WITH_POSTGRES
    return !s->loose && semel__pg_is(s->store);
#else
    (void)s;
    return false;
#endif
}

/* If the database itself refuses to commit a message without an end (PostgreSQL), notes a begun message there too, in
 * the caller's transaction. Otherwise does nothing. */
static semel_status hold_message(struct semel *s, const struct held *held, struct semel_error *err)
{
#ifdef SEMEL_WITH_POSTGRES
    if (semel__holds_in_store(s))
        return semel__pg_hold(s->store, held->consumer, held->source, held->id, held->token, held->attempt, err);
#endif
    (void)s, (void)held, (void)err;
    return SEMEL_OK;
}

static semel_status unhold_message(struct semel *s, const struct held *held, struct semel_error *err)
{
#ifdef SEMEL_WITH_POSTGRES
    if (semel__holds_in_store(s))
        return semel__pg_unhold(s->store, held->token, err);
#endif
    (void)s;
    (void)held;
    (void)err;
    return SEMEL_OK;
}

semel_status semel__hold_back(struct semel *s, int64_t token, struct semel_error *err)
{
#ifdef SEMEL_WITH_POSTGRES
    if (semel__pg_is(s->store))
        return semel__pg_hold_back(s->store, token, err);
#endif
    (void)token, (void)err;
    s->refused++;
    return SEMEL_OK;
}

semel_status semel_open(struct semel **ret, const char *url, unsigned flags, struct semel_error *err)
{
    return semel__handle_open(ret, url, flags, NULL, err);
}

semel_status semel_wrap_sqlite(struct semel **ret, struct sqlite3 *db, unsigned flags, struct semel_error *err)
{
    return semel__handle_wrap(ret, db, flags, NULL, err);
}

void semel_close(struct semel *s)
{
    if (s == NULL || s->inside || s->taking) /* a handler must not close its own handle */
        return;
    semel_store_close(s->store);
#ifdef SEMEL_WITH_SQLITE
    semel__sqlite_unwatch(&s->watch);
#endif
    semel__inbox_done(&s->inbox);
    semel__arena_done(&s->arena);
    semel__arena_done(&s->sheet);
    semel__buf_done(&s->known);
    semel__house_done(&s->house);
    semel__held_done(&s->pending);
    semel__held_done(&s->ended);
    semel__held_done(&s->claims);
    semel__free(s->marks);
    semel__free(s->deeds);
    semel__free(s);
}

void *semel_native(struct semel *s)
{
    return s != NULL ? semel_store_native(s->store) : NULL;
}

int semel_pending(const struct semel *s)
{
    return s != NULL ? (s->watch.on ? s->open : (int)s->pending.n) + s->refused + s->n_keys : 0;
}

void semel_ended(struct semel *s)
{
    if (s != NULL && s->loose)
        ended(s);
}

/* ---- the frame ----------------------------------------------------------------------------------- */

static semel_status check_whose(const struct semel *s, enum semel_whose whose, bool busy, struct semel_error *err)
{
    bool lite = strcmp(s->store->ops->name, "sqlite") == 0;
    if (whose == SEMEL_WHOSE_CALLER && !busy)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "there is no open transaction on this connection: BEGIN%s first", lite ? " IMMEDIATE" : "");
    if (whose == SEMEL_WHOSE_OURS && busy)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "a transaction is open on this connection, and this call makes its own: end yours first");
    return SEMEL_OK;
}

semel_status semel__enter(struct semel *s, enum semel_whose whose, struct semel_error *err)
{
    semel__error_clear(err);
    if (s == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the handle is NULL");
    if (s->pid != getpid())
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "the handle was opened before fork(): the child must open its own");
    s->hint = NULL;
    if (s->broken)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_BROKEN, "the handle is broken: close and reopen it");
    if (s->inside)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "called from inside a handler, where only semel_outbox_put and semel_native may be");
    bool busy = semel_store_busy(s->store);
    semel_status status = check_whose(s, whose, busy, err);
    if (status != SEMEL_OK)
        return status;
    if (!busy)
        ended(s); /* their transaction is over */
    semel__arena_reset(&s->arena);
    semel_store_join(s->store, busy);
    return SEMEL_OK;
}

semel_status semel__leave(struct semel *s, semel_status status, struct semel_error *err)
{
    bool left_open = s->store->in_tx;
    if (left_open) {
        semel_store_rollback(s->store);
        s->broken = true;
    }
    semel_store_join(s->store, false);
    return left_open ? semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_BROKEN,
                                   "an internal transaction was left open: close and reopen the handle")
                     : status;
}

semel_status semel__commit(struct semel *s, struct semel_error *err)
{
    semel_status status = semel_store_commit(s->store, err);
    if (status == SEMEL_UNKNOWN) {
        struct semel_error ignored;
        (void)semel_store_reopen(s->store, &ignored); /* if that fails, the next call reports it */
    }
    return status;
}

/* ---- the consumer of the call -------------------------------------------------------------------- */

static struct semel_str consumer_of(const struct semel *s)
{
    return (struct semel_str){s->consumer, strlen(s->consumer)};
}

static semel_status set_consumer(struct semel *s, struct semel_str consumer, struct semel_error *err)
{
    semel_status status = semel__check_str("consumer", consumer, err);
    if (status == SEMEL_OK)
        status = semel__id_check("consumer", consumer, 1, err);
    if (status != SEMEL_OK)
        return status;
    if (!semel__str_eqz(consumer, s->consumer)) /* the failures of one consumer say nothing about another one */
        s->inbox.wary = s->inbox.wary_deferred = 0;
    memcpy(s->consumer, consumer.p, consumer.n);
    s->consumer[consumer.n] = '\0';
    return SEMEL_OK;
}

semel_status semel__use_consumer(struct semel *s, struct semel_str consumer, struct semel_error *err)
{
    semel_status status = set_consumer(s, consumer, err);
    if (status != SEMEL_OK)
        return status;
    return semel__consumer_load(s->store, consumer_of(s), &s->arena, &s->policy, &s->order_said, err);
}

/* Without memory nothing is remembered, and the next batch reads the settings first. */
static void remember(struct semel *s, struct semel_str settings)
{
    s->known.n = 0;
    bool kept = semel__str_given(settings) && settings.n <= s->known.max &&
                semel__buf_add(&s->known, settings.p, settings.n);
    snprintf(s->known_consumer, sizeof s->known_consumer, "%s", kept ? s->consumer : "");
}

static semel_status use_settings(struct semel *s, struct semel_str settings, struct semel_error *err)
{
    return semel__consumer_use(consumer_of(s), settings, &s->policy, &s->order_said, err);
}

semel_status semel__use_consumer_early(struct semel *s, struct semel_str consumer, bool *ret_assumed,
                                       struct semel_error *err)
{
    semel_status status = set_consumer(s, consumer, err);
    if (status != SEMEL_OK)
        return status;
    semel_store_begin_early(s->store, consumer_of(s));
    *ret_assumed = strcmp(s->known_consumer, s->consumer) == 0;
    if (*ret_assumed)
        return use_settings(s, semel__buf_str(&s->known), err);
    bool same;
    return semel__consumer_same(s, &same, err);
}

semel_status semel__consumer_same(struct semel *s, bool *ret_same, struct semel_error *err)
{
    struct semel_str settings = {0};
    semel_status status = semel_store_consumer_get(s->store, consumer_of(s), &s->arena, &settings, err);
    if (status != SEMEL_OK)
        return status;
    settings = semel__str_given(settings) ? settings : SEMEL_STR("{}");
    *ret_same = strcmp(s->known_consumer, s->consumer) == 0 && semel__str_eq(settings, semel__buf_str(&s->known));
    if (*ret_same)
        return SEMEL_OK;
    status = use_settings(s, settings, err);
    remember(s, status == SEMEL_OK ? settings : (struct semel_str){0});
    return status;
}

semel_status semel__use_order(struct semel *s, const struct semel__msg *msg, struct semel_error *err)
{
    int64_t now_us = 0;
    if (!semel__str_given(msg->order_key))
        return SEMEL_OK;
    if (s->order_said) /* then nothing is written */
        return semel__consumer_order(s->store, msg, true, &s->policy, now_us, err);
    semel_status status = semel_store_begin(s->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__consumer_order(s->store, msg, false, &s->policy, now_us, err);
    if (status != SEMEL_OK) {
        semel_store_rollback(s->store);
        return status;
    }
    status = semel__commit(s, err);
    if (status == SEMEL_UNKNOWN) /* deciding it again gives the same */
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                           "whether the consumer's order was stored is unknown: repeat the call");
    s->order_said = status == SEMEL_OK;
    return status;
}

/* ==== the inbox inside the caller's transaction: begin, done, fail ================================ */

/* The row of a begun message, as long as it has no end; *ret_row is NULL when there is none. */
static semel_status row_of(struct semel *s, const struct held *held, struct semel_row **ret_row,
                           struct semel_error *err)
{
    struct semel_row *rows;
    size_t n, damaged;
    struct semel_scan scan = {.kind = SEMEL_SCAN_TOKEN, .token = held->token, .max = 1};
    *ret_row = NULL;
    semel_status status = semel_store_scan(s->store, &scan, &s->arena, &rows, &n, &damaged, err);
    if (status == SEMEL_OK && n == 1 && semel__held_is(held, rows[0].consumer, rows[0].source, rows[0].id))
        *ret_row = &rows[0];
    return status;
}

/* Its end was undone: it is pending again, at its place in the order of begins. */
static void put_back(struct semel *s, struct held *held)
{
    struct held **items = s->pending.items;
    held_move(&s->ended, &s->pending, held);
    for (size_t i = s->pending.n - 1; i > 0 && items[i] == held && items[i - 1]->number > held->number; i--) {
        items[i] = items[i - 1];
        items[i - 1] = held;
    }
}

static semel_status restore_begun(struct semel *s, struct semel_error *err)
{
    while (s->ended.n > 0) {
        struct held *last = s->ended.items[s->ended.n - 1];
        struct semel_row *row;
        semel_status status = row_of(s, last, &row, err);
        if (status != SEMEL_OK || row == NULL)
            return status;
        if (!semel__held_room(&s->pending))
            return semel__fail_memory(err);
        put_back(s, last);
    }
    return SEMEL_OK;
}

/* Handles what a savepoint of the caller's has undone since the last call: drops undone begins; messages whose end was
 * undone are pending again. */
static semel_status handle_undone(struct semel *s, struct semel_error *err)
{
    while (s->pending.n > 0) {
        struct held *last = s->pending.items[s->pending.n - 1];
        struct semel_row *row;
        semel_status status = row_of(s, last, &row, err);
        if (status != SEMEL_OK)
            return status;
        if (row != NULL)
            break;
        semel__held_drop(&s->pending, last);
    }
    return restore_begun(s, err);
}

/* ---- begin --------------------------------------------------------------------------------------- */

static semel_status make_room(struct semel *s, struct semel_error *err)
{
    if (s->loose && s->pending.n == SEMEL_PENDING_MAX) /* committed without their ends; their leases will expire */
        semel__held_drop(&s->pending, s->pending.items[0]);
    if (s->pending.n == SEMEL_PENDING_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "%d messages were begun in this transaction and have no end: done or fail first",
                           SEMEL_PENDING_MAX);
    return semel__held_room(&s->pending) ? semel__watch_savepoints(s, err) : semel__fail_memory(err);
}

/* Claims the message; if it may run, it is pending from now on. */
static semel_status claim(struct semel *s, const struct semel__msg *msg, struct semel_verdict *ret,
                          struct semel_error *err)
{
    struct semel_lease lease;
    struct semel_settled settled;
    size_t n = 0;
    struct held *held = semel__held_new(s->policy.consumer, msg);
    if (held == NULL)
        return semel__fail_memory(err);
    semel_status status = semel__lease_claim(&s->inbox, msg, 1, true, &s->arena, &lease, &n, &settled, err);
    if (status != SEMEL_OK || n == 0) {
        semel__free(held);
        semel__show_settled(&settled, ret);
        return status;
    }
    held->token = lease.progress.lease_token;
    held->number = ++s->begins;
    held->attempt = lease.progress.attempts;
    status = hold_message(s, held, err);
    if (status != SEMEL_OK) { /* the transaction has failed, and the claim with it */
        semel__free(held);
        return status;
    }
    struct held *before = held_find(&s->ended, held->consumer, held->source, held->id);
    if (before != NULL) /* that begin was undone as well */
        semel__held_drop(&s->ended, before);
    semel__held_add(&s->pending, held);
    s->open++;
    semel__show_lease(&lease, ret);
    ret->token = ret->lease_until_us = SEMEL_NONE; /* they are internal to the transaction */
    return SEMEL_OK;
}

static semel_status begin(struct semel *s, const struct semel_msg *msg, struct semel_verdict *ret,
                          struct semel_error *err)
{
    struct semel__msg m;
    if (ret == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "ret is NULL");
    semel_status status = semel__parse_consumer(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__parse_msg(s, msg, true, &m, err);
    if (status == SEMEL_OK)
        status = handle_undone(s, err);
    if (status == SEMEL_OK)
        status = make_room(s, err);
    if (status == SEMEL_OK)
        status = semel__use_order(s, &m, err);
    return status == SEMEL_OK ? claim(s, &m, ret, err) : status;
}

semel_status semel_inbox_begin(struct semel *s, const struct semel_msg *msg, struct semel_verdict *ret,
                               struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_CALLER, err);
    return status == SEMEL_OK ? semel__leave(s, begin(s, msg, ret, err), err) : status;
}

/* ---- the end of a begun message ------------------------------------------------------------------ */

/* The pending message of this name, and its row. *ret_held is NULL when it is not pending, or no longer. */
static semel_status find(struct semel *s, const struct semel__msg *name, struct held **ret_held,
                         struct semel_row **ret_row, struct semel_error *err)
{
    *ret_held = NULL;
    semel_status status = handle_undone(s, err);
    if (status == SEMEL_OK && (!semel__held_room(&s->ended) || !semel__held_room(&s->pending)))
        status = semel__fail_memory(err); /* now, because a written end must fit into the list */
    if (status != SEMEL_OK)
        return status;
    struct held *pending = held_find(&s->pending, s->policy.consumer, name->source, name->id);
    struct held *held = pending != NULL ? pending : held_find(&s->ended, s->policy.consumer, name->source, name->id);
    if (held == NULL)
        return SEMEL_OK;
    status = row_of(s, held, ret_row, err);
    if (status != SEMEL_OK)
        return status;
    if (*ret_row == NULL && pending != NULL)
        semel__held_drop(&s->pending, pending);
    else if (*ret_row != NULL && pending == NULL)
        put_back(s, held);
    *ret_held = *ret_row != NULL ? held : NULL;
    return SEMEL_OK;
}

/* Remembers a message whose end was written, for a while. */
static void note_end(struct semel *s, struct held *held)
{
    if (s->ended.n == SEMEL_ENDED_MAX)
        semel__held_drop(&s->ended, s->ended.items[0]);
    held_move(&s->pending, &s->ended, held);
    s->open--;
}

/* Adds the payload that the begin did not have, if there is one. */
static void add_payload(const struct semel_row *row, const struct semel__msg *brought, struct semel__msg *msg)
{
    if (row->kept || brought == NULL || semel__fp_differs(&row->fp, &brought->fp))
        return;
    msg->payload = brought->payload;
    msg->headers = brought->headers;
    msg->fp = brought->fp;
}

/* *ret has the answer for the broker. brought: NULL, or the message as passed with its end. */
static semel_status end(struct semel *s, struct held *held, const struct semel_row *row,
                        const struct semel__msg *brought, const struct semel_ending *ending, struct semel_verdict *ret,
                        struct semel_error *err)
{
    struct semel_lease lease = {.progress = row->progress, .arrival = row->arrival};
    semel__row_msg(row, &lease.msg);
    add_payload(row, brought, &lease.msg);
    semel_status status = semel__lease_finish(&s->inbox, &lease, ending, 1, err);
    if (status == SEMEL_OK && lease.lost)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the message was changed by somebody else");
    if (status == SEMEL_OK)
        status = unhold_message(s, held, err);
    if (status != SEMEL_OK)
        return status;
    note_end(s, held);
    bool kept = row->kept ||
                (semel__str_given(lease.msg.payload) && semel__payload_stays(&s->policy, lease.progress.state));
    struct semel_settled settled = {.act = semel__act_for(lease.progress.state, kept),
                                    .why = lease.progress.attempts > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW,
                                    .state = lease.progress.state,
                                    .attempt = lease.progress.attempts,
                                    .due_us = lease.progress.due_us,
                                    .cls = lease.progress.error_class};
    semel__show_settled(&settled, ret);
    return SEMEL_OK;
}

static semel_status done(struct semel *s, const struct semel_msg *msg, struct semel_str outcome,
                         struct semel_error *err)
{
    struct semel__msg name;
    struct held *held = NULL;
    struct semel_row *row = NULL;
    struct semel_ending ending = {.result = SEMEL_DONE, .outcome = outcome};
    struct semel_verdict verdict;
    semel_status status = semel__parse_consumer(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__parse_name(s, msg, &name, err);
    if (status == SEMEL_OK)
        status = semel__check_json("outcome", outcome, SEMEL_OUTCOME_MAX, false, err);
    if (status == SEMEL_OK)
        status = find(s, &name, &held, &row, err);
    if (status != SEMEL_OK)
        return status;
    if (held == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the message was not begun in this transaction, or its begin was rolled back");
    return end(s, held, row, NULL, &ending, &verdict, err);
}

semel_status semel_inbox_done(struct semel *s, const struct semel_msg *msg, struct semel_str outcome,
                              struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_CALLER, err);
    return status == SEMEL_OK ? semel__leave(s, done(s, msg, outcome, err), err) : status;
}

/* ---- fail ---------------------------------------------------------------------------------------- */

/* The begin is gone: records the attempt and its end at once. */
static semel_status record(struct semel *s, const struct semel__msg *msg, const struct semel_ending *ending,
                           struct semel_verdict *ret, struct semel_error *err)
{
    struct semel_settled settled;
    semel_status status = semel__use_order(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__inbox_record(&s->inbox, msg, ending, &settled, err);
    if (status == SEMEL_OK)
        semel__show_settled(&settled, ret);
    return status;
}

static semel_status fail(struct semel *s, const struct semel_msg *msg, enum semel_result result,
                         struct semel_str reason, struct semel_verdict *ret, struct semel_error *err)
{
    struct semel__msg m;
    struct held *held = NULL;
    struct semel_row *row = NULL;
    struct semel_ending ending = {.result = result};
    semel_status status = semel__parse_consumer(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__parse_name(s, msg, &m, err);
    if (status == SEMEL_OK)
        status = semel__parse_msg(s, msg, true, &m, err);
    if (status == SEMEL_OK)
        status = semel__check_result(result, false, err);
    if (status == SEMEL_OK)
        status = semel__check_str("reason", reason, err);
    if (status == SEMEL_OK && !semel__clean_text(&s->arena, reason, &ending.text))
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        status = find(s, &m, &held, &row, err);
    if (status != SEMEL_OK)
        return status;
    return held != NULL ? end(s, held, row, &m, &ending, ret, err) : record(s, &m, &ending, ret, err);
}

semel_status semel_inbox_fail(struct semel *s, const struct semel_msg *msg, enum semel_result result,
                              struct semel_str reason, struct semel_verdict *ret, struct semel_error *err)
{
    struct semel_verdict unwanted;
    semel_status status = semel__enter(s, SEMEL_WHOSE_CALLER, err);
    if (status != SEMEL_OK)
        return status;
    return semel__leave(s, fail(s, msg, result, reason, ret != NULL ? ret : &unwanted, err), err);
}
