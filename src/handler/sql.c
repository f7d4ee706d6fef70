/* SPDX-License-Identifier: MIT
 *
 * sql.c: the handler `sql`: made from a description, run by core, freed. The contract stands in sql.h.
 *
 * A set goes to the database as one statement a source: the ids that come back are those of one source. Which messages
 * are together in a call, and that each is named exactly once, is core's to see to (core/run.c).
 *
 * Invariants: everything that a run needs is checked when the handler is made; a run allocates from the scratch arena
 * only, which is empty at its beginning; without an open transaction nothing is run.
 */
#include "base/mem.h"
#include "handler/sql_private.h"
#include "store/pg_door.h"

#define OWN_MAX (4u << 20)
#define SCRATCH_MAX ((size_t)1 << 30)

/* ---- descriptions -------------------------------------------------------------------------------- */

static semel_status check_counts(const struct sql_shape *shape, const struct semel_sql_desc *desc,
                                 struct semel_error *err)
{
    char shown[64];
    if ((size_t)shape->n_params > desc->n_values)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "statement: $%d is used, and there are %zu values; give one for each parameter",
                           shape->n_params, desc->n_values);
    for (size_t i = 0; i < desc->n_values; i++)
        if ((shape->used >> i & 1) == 0) {
            semel__str_show(shown, sizeof shown, desc->values[i]);
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "values: the statement has no $%zu for the value \"%s\"; use it, or leave it out", i + 1,
                               shown);
        }
    return SEMEL_OK;
}

static semel_status parse_rules(const struct semel_sql_desc *desc, struct sql_rule *rules, struct semel_error *err)
{
    char text[sizeof err->text];
    for (size_t i = 0; i < desc->n_values; i++) {
        struct semel_error why;
        if (semel__sql_rule_parse(desc->values[i], &rules[i], &why) == SEMEL_OK)
            continue;
        memcpy(text, why.text, sizeof text);
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "values, $%zu: %s", i + 1, text);
    }
    return SEMEL_OK;
}

/* What a set has to bring along, besides what only the server can tell. */
static semel_status check_set(const struct sql_shape *shape, const struct semel_sql_desc *desc,
                              enum semel_sql_dialect dialect, const struct sql_rule *rules, struct semel_error *err)
{
    bool id = false;
    if (dialect == SEMEL_SQL_SQLITE)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "mode: sets need PostgreSQL; on SQLite choose `each`, which waits for no answer either");
    if (shape->word == SQL_CALL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "statement: CALL returns no rows, and a set returns the id of each message that it has "
                           "handled; write SELECT ... FROM a function, or choose `each`");
    for (size_t i = 0; i < desc->n_values; i++)
        id = id || rules[i].field == SQL_FIELD_ID;
    if (!id)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "values: `id` is not among them; a set returns the id of each message that it has handled");
    return SEMEL_OK;
}

static semel_status check(const struct semel_sql_desc *desc, enum semel_sql_dialect dialect, struct sql_rule *rules,
                          struct semel_error *err)
{
    struct sql_shape shape;
    if (desc->n_values > SEMEL_SQL_VALUES_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "values: there are %zu; at most %d are allowed",
                           desc->n_values, SEMEL_SQL_VALUES_MAX);
    semel_status status = semel__sql_scan(desc->statement, dialect, &shape, err);
    if (status == SEMEL_OK)
        status = parse_rules(desc, rules, err);
    if (status == SEMEL_OK)
        status = check_counts(&shape, desc, err);
    if (status == SEMEL_OK && desc->mode == SEMEL_SQL_SET)
        status = check_set(&shape, desc, dialect, rules, err);
    return status;
}

semel_status semel__sql_check(const struct semel_sql_desc *desc, enum semel_sql_dialect dialect,
                              struct semel_error *err)
{
    struct sql_rule rules[SEMEL_SQL_VALUES_MAX];
    return check(desc, dialect, rules, err);
}

/* ---- runs ---------------------------------------------------------------------------------------- */

static semel_status want_transaction(const struct semel_store *store, struct semel_error *err)
{
    if (store->in_tx)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "the handler sql needs a consumer whose effect is atomic: it writes in the inbox's transaction");
}

static semel_status run_each(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                             struct semel__reply *reply, struct semel_error *err)
{
    struct semel_sql *sql = ctx;
    struct sql_value values[SEMEL_SQL_VALUES_MAX];
    (void)attempt;
    (void)reply;
    semel__arena_reset(&sql->scratch);
    semel_status status = want_transaction(store, err);
    if (status == SEMEL_OK)
        status = semel__sql_values(sql->rules, sql->n, msg, &sql->scratch, values, err);
    return status == SEMEL_OK ? sql->backend->each(sql, store, values, err) : status;
}

/* Core calls `each` of a set-based handler only for effects outside, which SQL has none of. */
static semel_status refuse_each(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                                struct semel__reply *reply, struct semel_error *err)
{
    (void)ctx;
    (void)store;
    (void)msg;
    (void)attempt;
    (void)reply;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "a set-based handler needs a consumer whose effect is atomic");
}

/* Items of one key are neighbours. */
static bool key_repeated(const struct semel__msg *const *msgs, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (semel__str_given(msgs[i]->order_key) && semel__str_eq(msgs[i]->order_key, msgs[i - 1]->order_key))
            return true;
    return false;
}

/* One statement for the messages of the first one's source, in their order; the others are moved to the front. */
static semel_status run_source(struct semel_sql *sql, struct semel_store *store, const struct semel__msg **msgs,
                               size_t *n, const struct sql_names *names, struct semel_error *err)
{
    struct semel_str source = msgs[0]->source;
    size_t taken = 0, left = 0;
    struct sql_value *values = semel__arena_alloc(&sql->scratch, *n * sql->n, sizeof *values);
    semel_status status = values != NULL ? SEMEL_OK : semel__fail_memory(err);
    for (size_t i = 0; status == SEMEL_OK && i < *n; i++) {
        if (semel__str_eq(msgs[i]->source, source))
            status = semel__sql_values(sql->rules, sql->n, msgs[i], &sql->scratch, values + taken++ * sql->n, err);
        else
            msgs[left++] = msgs[i];
    }
    *n = left;
    return status == SEMEL_OK ? sql->backend->set(sql, store, source, values, taken, names, err) : status;
}

semel_status semel__sql_run_set(struct semel_sql *sql, struct semel_store *store, const struct semel__msg *const *msgs,
                                size_t n, semel_sql_name name, void *ctx, struct semel_error *err)
{
    const struct sql_names names = {name, ctx};
    semel__arena_reset(&sql->scratch);
    semel_status status = want_transaction(store, err);
    if (status == SEMEL_OK && sql->ordered && key_repeated(msgs, n))
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "two messages of one key were in one set");
    if (status != SEMEL_OK)
        return status;
    const struct semel__msg **left = semel__arena_alloc(&sql->scratch, n, sizeof *left);
    if (left == NULL)
        return semel__fail_memory(err);
    memcpy(left, msgs, n * sizeof *left);
    while (status == SEMEL_OK && n > 0)
        status = run_source(sql, store, left, &n, &names, err);
    return status;
}

static void add_to_set(void *ctx, struct semel_str source, struct semel_str id)
{
    semel__set_add(ctx, source, id);
}

static semel_status run_set(void *ctx, struct semel_store *store, const struct semel__msg *const *msgs, size_t n,
                            struct semel_set *set, struct semel_error *err)
{
    return semel__sql_run_set(ctx, store, msgs, n, add_to_set, set, err);
}

/* ---- its life ------------------------------------------------------------------------------------ */

static const struct sql_backend *backend_of(const struct semel_store *store)
{
#ifdef SEMEL_WITH_POSTGRES
    if (semel__pg_is(store))
        return &semel__sql_pg;
#endif
#ifdef SEMEL_WITH_SQLITE
    if (strcmp(store->ops->name, "sqlite") == 0)
        return &semel__sql_sqlite;
#endif
    return NULL;
}

/* Rules are parsed anew, so that they borrow from our copies. */
static semel_status copy(struct semel_sql *sql, const struct semel_sql_desc *desc, struct semel_error *err)
{
    struct semel_str text;
    bool copied = semel__arena_copy(&sql->own, desc->statement, &text);
    semel_status status = SEMEL_OK;
    for (size_t i = 0; copied && status == SEMEL_OK && i < desc->n_values; i++) {
        struct semel_str rule;
        copied = semel__arena_copy(&sql->own, desc->values[i], &rule);
        if (copied)
            status = semel__sql_rule_parse(rule, &sql->rules[i], err);
    }
    if (!copied)
        return semel__fail_memory(err);
    sql->text = text.p;
    sql->n = desc->n_values;
    return status;
}

static semel_status fill(struct semel_sql *sql, const struct semel_sql_desc *desc, struct semel_store *store,
                         struct semel_error *err)
{
    bool set = desc->mode == SEMEL_SQL_SET;
    semel_status status = check(desc, sql->backend->dialect, sql->rules, err);
    if (status == SEMEL_OK)
        status = copy(sql, desc, err);
    if (status != SEMEL_OK)
        return status;
    sql->mode = desc->mode;
    sql->ordered = desc->ordered;
    sql->handler = (struct semel__handler){.ctx = sql,
                                           .each = set ? refuse_each : run_each,
                                           .set = set ? run_set : NULL};
    return sql->backend->check(sql, store, err);
}

semel_status semel__sql_handler_new(struct semel_sql **ret, const struct semel_sql_desc *desc,
                                    struct semel_store *store, struct semel_error *err)
{
    const struct sql_backend *backend = backend_of(store);
    if (backend == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store %s has no SQL: the handler sql needs PostgreSQL or SQLite", store->ops->name);
    struct semel_sql *sql = semel__calloc(1, sizeof *sql);
    if (sql == NULL)
        return semel__fail_memory(err);
    sql->backend = backend;
    semel__arena_init(&sql->own, OWN_MAX);
    semel__arena_init(&sql->scratch, SCRATCH_MAX);
    semel_status status = fill(sql, desc, store, err);
    if (status == SEMEL_OK)
        *ret = sql;
    else
        semel__sql_handler_free(sql);
    return status;
}

void semel__sql_handler_free(struct semel_sql *sql)
{
    if (sql == NULL)
        return;
    sql->backend->done(sql);
    semel__arena_done(&sql->own);
    semel__arena_done(&sql->scratch);
    semel__free(sql);
}

const struct semel__handler *semel__sql_handler(const struct semel_sql *sql)
{
    return &sql->handler;
}
