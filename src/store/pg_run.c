/* SPDX-License-Identifier: MIT
 *
 * pg_run.c: the SQL port's run and flush on PostgreSQL (sql.h).
 *
 * The statements of all runs up to a flush go in one trip; the items of a run are one parameter per column, an array.
 * Where a transaction was begun early (pg_ahead.c), the consumer's settings are on their way already, and the statement
 * that asks for them is not sent again.
 *
 * Invariants: a trip that run() started is ended by flush(); an item's number is the server's `n`, checked.
 */
#include "store/pg.h"

/* ---- parameters ---------------------------------------------------------------------------------- */

static enum pg_kind array_kind(enum sql_kind kind)
{
    switch (kind) {
    case SQL_TEXT:
    case SQL_KEY:
    case SQL_STATUS:
    case SQL_CLASS:
        return PG_TEXTS;
    case SQL_BYTES:
    case SQL_FINGERPRINT:
        return PG_BYTES;
    case SQL_INT:
        return PG_INTS;
    case SQL_TIME:
        return PG_TIMES;
    case SQL_BOOL:
        return PG_BOOLS;
    }
    return PG_TEXTS;
}

static void put_single(struct pg_trip *trip, const struct sql_field *field, const void *item)
{
    unsigned char bytes[1 + SEMEL_FP_MAX];
    enum sql_kind kind = semel__db_kind(field->name);
    struct sql_value value = semel__db_value(field, item, bytes);
    if (value.null)
        semel__pg_null(trip);
    else if (kind == SQL_FINGERPRINT)
        semel__pg_copied(trip, value.text);
    else if (kind == SQL_TIME)
        semel__pg_time(trip, value.number);
    else if (kind == SQL_BOOL)
        semel__pg_bool(trip, value.number != 0);
    else if (kind == SQL_INT)
        semel__pg_int(trip, value.number);
    else
        semel__pg_text(trip, value.text);
}

static void put_array(struct pg_trip *trip, const struct sql_field *field, const struct sql_set *set)
{
    unsigned char bytes[1 + SEMEL_FP_MAX];
    enum sql_kind kind = semel__db_kind(field->name);
    semel__pg_array(trip, array_kind(kind), set->n);
    for (size_t i = 0; i < set->n; i++) {
        struct sql_value value = semel__db_value(field, semel__db_item(set, i), bytes);
        if (kind == SQL_TIME)
            semel__pg_item_time(trip, value.null ? SEMEL_NONE : value.number);
        else if (kind == SQL_BOOL)
            semel__pg_item_bool(trip, value.number != 0);
        else if (kind == SQL_INT)
            semel__pg_item_int(trip, value.null ? SEMEL_NONE : value.number);
        else
            semel__pg_item_text(trip, value.null ? (struct semel_str){0} : value.text);
    }
    semel__pg_array_end(trip);
}

/* Is it the same in all items? Empty is not NULL. */
static bool uniform(const struct sql_field *field, const struct sql_set *set)
{
    unsigned char first_bytes[1 + SEMEL_FP_MAX], bytes[1 + SEMEL_FP_MAX];
    struct sql_value first = semel__db_value(field, semel__db_item(set, 0), first_bytes);
    for (size_t i = 1; i < set->n; i++) {
        struct sql_value value = semel__db_value(field, semel__db_item(set, i), bytes);
        if (value.null != first.null || value.number != first.number || !semel__str_eq(value.text, first.text))
            return false;
    }
    return true;
}

/* A column of rows: pairs. Where all items have the same value it goes once, and the array is NULL. */
static void put_pair(struct pg_trip *trip, const struct sql_field *field, const struct sql_set *set)
{
    bool single = uniform(field, set);
    if (single)
        semel__pg_null(trip);
    else
        put_array(trip, field, set);
    if (single)
        put_single(trip, field, semel__db_item(set, 0));
    else
        semel__pg_null(trip);
}

/* Does the column of parameter i have a single value, too? It stands behind the array. */
static bool paired(const struct sql_statement *statement, size_t i)
{
    return i + 1 < statement->n_params && statement->params[i + 1].source == SQL_SINGLE &&
           statement->params[i + 1].name == statement->params[i].name;
}

static void put_params(struct pg_trip *trip, const struct sql_statement *statement, const struct sql_set *once,
                       const struct sql_set *each)
{
    for (size_t i = 0; i < statement->n_params; i++) {
        const struct sql_param *param = &statement->params[i];
        const struct sql_field *field = semel__db_find(param->source == SQL_ONCE ? once : each, param->name);
        if (field == NULL) {
            trip->status = semel__db_no_value(statement, param->name, &trip->err);
            return;
        }
        if (param->source == SQL_ONCE)
            put_single(trip, field, semel__db_item(once, 0));
        else if (param->source == SQL_SINGLE)
            continue; /* put_pair has it */
        else if (paired(statement, i))
            put_pair(trip, field, each);
        else
            put_array(trip, field, each);
    }
}

/* ---- running ------------------------------------------------------------------------------------- */

static struct pg_exec *exec_of(struct sql *db)
{
    return &((struct pg_store *)db)->exec;
}

static void pg_start(struct sql *db)
{
    struct pg_exec *e = exec_of(db);
    e->n = 0;
    e->started = false;
}

static bool asked_early(const struct pg_store *d, const struct sql_statement *statement, const struct sql_set *once)
{
    if (statement != &semel__pg_statements[SQL_consumer_get])
        return false;
    const struct sql_field *consumer = semel__db_find(once, SQL_NAME_consumer);
    return semel__pg_ahead_asked(d, semel__db_value(consumer, semel__db_item(once, 0), NULL).text);
}

static void pg_run(struct sql *db, const struct sql_statement *statement, const struct sql_set *once,
                   const struct sql_set *each, sql_reader read, void *ctx)
{
    struct pg_store *d = (struct pg_store *)db;
    struct pg_exec *e = &d->exec;
    struct pg_reading reading = {.statement = statement, .read = read, .ctx = ctx, .n = each != NULL ? each->n : 1};
    if (!e->started && e->n == 0 && asked_early(d, statement, once)) {
        reading.early = true;
        e->readings[e->n++] = reading;
        return;
    }
    if (!e->started)
        semel__pg_start(&e->trip, d, db->doing);
    e->started = true;
    if (e->trip.status != SEMEL_OK)
        return;
    put_params(&e->trip, statement, once, each);
    reading.at = semel__pg_add(&e->trip, &statement->sql);
    if (e->trip.status == SEMEL_OK)
        e->readings[e->n++] = reading;
}

/* ---- results ------------------------------------------------------------------------------------- */

static enum sql_cell pg_cell(const struct sql_row *row, int column, enum sql_kind kind, struct sql_value *ret)
{
    const PGresult *res = row->result;
    *ret = (struct sql_value){.null = PQgetisnull(res, row->row, column) != 0};
    if (ret->null)
        return SQL_CELL_OK;
    if (kind == SQL_BOOL)
        ret->number = semel__pg_get_bool(res, row->row, column);
    else if (kind == SQL_TIME)
        ret->number = semel__pg_get_time(res, row->row, column);
    else if (kind == SQL_INT)
        ret->number = semel__pg_get_int(res, row->row, column);
    else
        ret->text = semel__pg_get_text(res, row->row, column);
    return SQL_CELL_OK;
}

static semel_status read_rows(struct pg_store *d, const struct pg_reading *reading, PGresult *res,
                              struct semel_error *err)
{
    const struct sql_statement *statement = reading->statement;
    struct sql_row row = {.db = &d->sql, .statement = statement, .result = res};
    semel_status status = SEMEL_OK;
    if (reading->read == NULL)
        return SEMEL_OK;
    if (statement->n_gives > 0 && statement->gives[0] == SQL_NAME_changes) {
        row.changes = (int64_t)semel__pg_affected(res);
        return reading->read(reading->ctx, 0, &row, err);
    }
    bool numbered = statement->n_gives > 0 && statement->gives[0] == SQL_NAME_n;
    for (; status == SEMEL_OK && row.row < PQntuples(res); row.row++) {
        int64_t item = numbered ? semel__pg_get_int(res, row.row, 0) - 1 : 0;
        if (item < 0 || (uint64_t)item >= reading->n)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: a row of no item", statement->sql.name);
        status = reading->read(reading->ctx, (size_t)item, &row, err);
    }
    return status;
}

static semel_status pg_flush(struct sql *db, struct semel_error *err)
{
    struct pg_store *d = (struct pg_store *)db;
    struct pg_exec *e = &d->exec;
    struct semel_error why;
    semel_status status = SEMEL_OK;
    if (e->started)
        status = semel__pg_run(&e->trip, &why);
    for (size_t i = 0; status == SEMEL_OK && i < e->n; i++) {
        PGresult *res = NULL;
        if (e->readings[i].early)
            status = semel__pg_ahead_settings(d, &res, &why);
        else
            res = e->trip.results[e->readings[i].at];
        if (status == SEMEL_OK)
            status = read_rows(d, &e->readings[i], res, &why);
    }
    if (e->started)
        semel__pg_end(&e->trip);
    e->started = false;
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    return status;
}

/* Behind a pooler nobody else notices that the server is another one. */
static semel_status pg_server_same(struct sql *db, struct semel_error *err)
{
    return semel__pg_timeline((struct pg_store *)db, err);
}

const struct sql_driver semel__pg_driver = {
    .statements = semel__pg_statements,
    .start = pg_start,
    .run = pg_run,
    .flush = pg_flush,
    .server_same = pg_server_same,
    .snapshot = semel__pg_snapshot,
    .snapshot_end = semel__pg_snapshot_end,
    .cell = pg_cell,
};
