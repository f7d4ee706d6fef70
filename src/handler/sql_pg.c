/* SPDX-License-Identifier: MIT
 *
 * sql_pg.c: the handler `sql` on PostgreSQL.
 *
 * We send no parameter types: the server infers them from the statement, and reads a value as it would read a
 * literal. So `VALUES ($1, $2)` needs no casts, and `unnest($1::text[], $2::bigint[])` names its arrays. When the
 * handler is made it asks the server for the types.
 *
 * A statement for one message is queued without waiting (semel__pg_queue). A set returns rows: the first column of
 * each is the id of a message that was handled.
 *
 * Invariants: `bytes` goes only to bytea, so that no other value is read as an escape.
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "handler/sql_private.h"
#include "store/pg_store.h"

#define ARRAY_MAX ((size_t)256 << 20)
#define TYPE_NAME 80

enum { OID_BYTEA = 17, OID_TEXT = 25, OID_VARCHAR = 1043 };

struct state {
    unsigned params[SEMEL_SQL_VALUES_MAX]; /* Oid of each parameter */
    struct sql_array arrays[SEMEL_SQL_VALUES_MAX];
    struct semel_pg_kept kept;
};

/* A type, as the catalogue has it. */
struct type {
    unsigned element; /* 0: it is no array */
    char delimiter;
    char name[TYPE_NAME];
};

/* ---- the check ----------------------------------------------------------------------------------- */

static unsigned number(const PGresult *res, int col)
{
    int64_t n = 0;
    (void)semel__str_int64(semel__str(PQgetvalue(res, 0, col)), &n);
    return n > 0 && n <= UINT32_MAX ? (unsigned)n : 0;
}

static semel_status look_up(struct semel_store *store, unsigned oid, struct type *ret, struct semel_error *err)
{
    char text[16];
    const char *values[] = {text};
    struct semel_pg_statement statement = {
        .sql = "SELECT CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0::oid END, "
               "COALESCE(e.typdelim, ','), pg_catalog.format_type(t.oid, NULL) "
               "FROM pg_catalog.pg_type AS t LEFT JOIN pg_catalog.pg_type AS e ON e.oid = t.typelem "
               "WHERE t.oid = $1::oid",
        .n = 1,
        .values = values,
    };
    struct pg_result *res = NULL;
    snprintf(text, sizeof text, "%u", oid);
    semel_status status = semel__pg_ask(store, &statement, NULL, &res, err);
    *ret = (struct type){.delimiter = ',', .name = "unknown"};
    if (status == SEMEL_OK && PQntuples(res) == 1) {
        ret->element = number(res, 0);
        ret->delimiter = PQgetvalue(res, 0, 1)[0];
        semel__str_show(ret->name, sizeof ret->name, semel__str(PQgetvalue(res, 0, 2)));
    }
    PQclear(res);
    return status;
}

static semel_status check_param(struct semel_sql *sql, struct semel_store *store, size_t i, struct semel_error *err)
{
    struct state *state = sql->state;
    struct type type;
    bool set = sql->mode == SEMEL_SQL_SET, bytes = sql->rules[i].field == SQL_FIELD_BYTES;
    semel_status status = look_up(store, state->params[i], &type, err);
    if (status != SEMEL_OK)
        return status;
    if (set && type.element == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "statement: $%zu is of type %s; in a set each parameter is an array: unnest($%zu::%s[])",
                           i + 1, type.name, i + 1, type.name);
    unsigned one = set ? type.element : state->params[i];
    if (bytes != (one == OID_BYTEA))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "statement: $%zu is of type %s, and its value is %s; %s", i + 1, type.name,
                           bytes ? "bytes" : "text",
                           bytes ? "write $n::bytea (in a set bytea[]), or use body" : "use the rule bytes for bytea");
    state->arrays[i].type = one;
    state->arrays[i].delimiter = type.delimiter;
    return SEMEL_OK;
}

static semel_status check_columns(struct semel_store *store, const struct semel_pg_shape *shape,
                                  struct semel_error *err)
{
    struct type type;
    if (shape->n_columns == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "statement: it returns no rows; a set returns the id of each message that it has handled: "
                           "add RETURNING, with the id as the first column");
    if (shape->first_column == OID_TEXT || shape->first_column == OID_VARCHAR)
        return SEMEL_OK;
    semel_status status = look_up(store, shape->first_column, &type, err);
    if (status != SEMEL_OK)
        return status;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "statement: its first column is of type %s; it must be the message id as it was given, as text",
                       type.name);
}

static semel_status check_shape(struct semel_sql *sql, struct semel_store *store, struct semel_error *err)
{
    struct state *state = sql->state;
    struct semel_pg_shape shape = {0};
    semel_status status = semel__pg_describe(store, sql->text, &shape, err);
    if (status != SEMEL_OK)
        return status;
    if (shape.n_params != (int)sql->n)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "statement: the server finds %d parameters in it, and there are %zu values", shape.n_params,
                           sql->n);
    for (size_t i = 0; status == SEMEL_OK && i < sql->n; i++) {
        state->params[i] = shape.params[i];
        status = check_param(sql, store, i, err);
    }
    if (status == SEMEL_OK && sql->mode == SEMEL_SQL_SET)
        status = check_columns(store, &shape, err);
    return status;
}

static semel_status pg_check(struct semel_sql *sql, struct semel_store *store, struct semel_error *err)
{
    int64_t now_us;
    struct state *state = semel__calloc(1, sizeof *state);
    if (state == NULL)
        return semel__fail_memory(err);
    sql->state = state;
    for (size_t i = 0; i < SEMEL_SQL_VALUES_MAX; i++)
        semel__buf_init(&state->arrays[i].bytes, ARRAY_MAX);
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_guard(store, true, err); /* as around every handler: we own the connection now */
    if (status == SEMEL_OK)
        status = check_shape(sql, store, err);
    semel_store_rollback(store);
    return status;
}

static void pg_done(struct semel_sql *sql)
{
    struct state *state = sql->state;
    for (size_t i = 0; state != NULL && i < SEMEL_SQL_VALUES_MAX; i++)
        semel__buf_done(&state->arrays[i].bytes);
    semel__free(state);
}

/* ---- one message --------------------------------------------------------------------------------- */

static semel_status pg_each(struct semel_sql *sql, struct semel_store *store, const struct sql_value *values,
                            struct semel_error *err)
{
    const char *texts[SEMEL_SQL_VALUES_MAX];
    int lengths[SEMEL_SQL_VALUES_MAX], formats[SEMEL_SQL_VALUES_MAX];
    struct semel_pg_statement statement = {
        .sql = sql->text, .n = (int)sql->n, .values = texts, .lengths = lengths, .formats = formats};
    for (size_t i = 0; i < sql->n; i++) {
        struct semel_str text = values[i].text;
        bool bytes = values[i].kind == SQL_BYTES;
        if (!bytes && !semel__arena_copy(&sql->scratch, text, &text)) /* libpq needs a NUL behind it */
            return semel__fail_memory(err);
        texts[i] = text.p; /* NULL: not given */
        lengths[i] = (int)text.n;
        formats[i] = bytes;
    }
    return semel__pg_queue(store, &statement, err);
}

/* ---- a set --------------------------------------------------------------------------------------- */

static semel_status fill(struct semel_sql *sql, const struct sql_value *values, size_t n, struct semel_error *err)
{
    struct state *state = sql->state;
    for (size_t i = 0; i < sql->n; i++) {
        struct sql_array *array = &state->arrays[i];
        if (semel__sql_array(array, values + i, sql->n, n))
            continue;
        if (!array->bytes.full)
            return semel__fail_memory(err);
        return semel__fail(err, n > 1 ? SEMEL_RETRY : SEMEL_INVALID,
                           n > 1 ? SEMEL_CLASS_TRANSIENT : SEMEL_CLASS_PERMANENT,
                           "value $%zu: %zu messages are too large for one statement", i + 1, n);
    }
    return SEMEL_OK;
}

static semel_status pg_set(struct semel_sql *sql, struct semel_store *store, struct semel_str source,
                           const struct sql_value *values, size_t n, const struct sql_names *names,
                           struct semel_error *err)
{
    struct state *state = sql->state;
    const char *texts[SEMEL_SQL_VALUES_MAX];
    int lengths[SEMEL_SQL_VALUES_MAX], formats[SEMEL_SQL_VALUES_MAX];
    struct semel_pg_statement statement = {
        .sql = sql->text, .n = (int)sql->n, .values = texts, .lengths = lengths, .formats = formats};
    struct pg_result *res = NULL;
    semel_status status = fill(sql, values, n, err);
    if (status != SEMEL_OK)
        return status;
    for (size_t i = 0; i < sql->n; i++) {
        texts[i] = state->arrays[i].bytes.p;
        lengths[i] = (int)state->arrays[i].bytes.n;
        formats[i] = state->arrays[i].binary;
    }
    status = semel__pg_ask(store, &statement, &state->kept, &res, err);
    for (int row = 0; status == SEMEL_OK && row < PQntuples(res); row++) {
        struct semel_str id = {0};
        if (!PQgetisnull(res, row, 0))
            id = (struct semel_str){PQgetvalue(res, row, 0), (size_t)PQgetlength(res, row, 0)};
        names->add(names->ctx, source, id);
    }
    PQclear(res);
    return status;
}

const struct sql_backend semel__sql_pg = {
    .dialect = SEMEL_SQL_POSTGRES,
    .check = pg_check,
    .done = pg_done,
    .each = pg_each,
    .set = pg_set,
};
