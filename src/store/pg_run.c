/* SPDX-License-Identifier: MIT
 *
 * pg_run.c: the SQL port's run and flush on PostgreSQL (sql.h).
 *
 * The statements of all runs up to a flush go in one trip; the items of a run are one parameter per column, an array.
 * The text of a statement with `rows: shaped` depends on the items: a column that is NULL in all of them has no
 * parameter, one that is the same in all is a single value, and only what differs is an array; most batches have four
 * or five. Each such text is prepared under its own name, the first PG_SHAPES_MAX that a connection meets; the others
 * have no name.
 *
 * Where a transaction was begun early (pg_ahead.c), the consumer's settings are on their way already, and the statement
 * that asks for them is not sent again.
 *
 * Invariants: a trip that run() started is ended by flush(); an item's number is the server's `n`, checked. A text that
 * is written here consists of words of the compiled statement only, every value is bound.
 */
#include <inttypes.h>
#include <stdio.h>

#include "store/migrations.h"
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

/* Empty is not NULL. */
static bool same(const struct sql_value *a, const struct sql_value *b)
{
    return a->null == b->null && a->number == b->number && semel__str_eq(a->text, b->text);
}

/* Is it the same in all items? */
static bool uniform(const struct sql_field *field, const struct sql_set *set)
{
    unsigned char first_bytes[1 + SEMEL_FP_MAX], bytes[1 + SEMEL_FP_MAX];
    struct sql_value first = semel__db_value(field, semel__db_item(set, 0), first_bytes);
    for (size_t i = 1; i < set->n; i++) {
        struct sql_value value = semel__db_value(field, semel__db_item(set, i), bytes);
        if (!same(&first, &value))
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

/* ---- statements by the shape of their items ------------------------------------------------------ */

#define TEXT_MAX 8192

struct pg_shape {
    const struct sql_statement *statement;
    uint64_t key;
    char name[48];
    char *text;
    struct sql_text sql;
};

/* Item by item, so that each is looked at once: they are large. Returns whether all columns have a field. */
static bool measure(struct pg_spread *spread, const struct sql_statement *statement, const struct sql_set *each,
                    const struct sql_field *fields[PG_SHAPED_MAX])
{
    struct sql_value first[PG_SHAPED_MAX];
    unsigned char bytes[1 + SEMEL_FP_MAX];
    size_t open[PG_SHAPED_MAX], n_open = 0; /* columns that were the same so far */
    for (size_t c = 0; c < statement->n_shaped; c++) {
        fields[c] = semel__db_find(each, statement->shaped[c]);
        if (fields[c] == NULL)
            return false;
        spread->of[c] = PG_EACH;
        if (c < statement->n_always)
            continue;
        first[c] = semel__db_value(fields[c], semel__db_item(each, 0), bytes);
        spread->of[c] = first[c].null ? PG_NULL : PG_SAME;
        open[n_open++] = c;
    }
    for (size_t i = 1; i < each->n && n_open > 0; i++) {
        const void *item = semel__db_item(each, i);
        for (size_t k = 0; k < n_open;) {
            struct sql_value value = semel__db_value(fields[open[k]], item, bytes);
            if (same(&first[open[k]], &value)) {
                k++;
                continue;
            }
            spread->of[open[k]] = PG_EACH;
            open[k] = open[--n_open];
        }
    }
    return true;
}

static const char *type_of(uint16_t name)
{
    static const char *const types[] = {[PG_TEXTS] = "text",
                                        [PG_BYTES] = "bytea",
                                        [PG_INTS] = "bigint",
                                        [PG_TIMES] = "timestamptz",
                                        [PG_BOOLS] = "boolean"};
    return types[array_kind(semel__db_kind(name))];
}

/* (SELECT u.id, $3::text AS source, NULL::text AS type FROM unnest($2::text[]) AS u (id)) AS b */
static void put_rows(struct semel_buf *out, const struct sql_statement *statement, const struct pg_spread *spread)
{
    size_t parameter = statement->n_params + 1;
    const char *comma = "";
    semel__buf_addz(out, "(SELECT ");
    for (size_t c = 0; c < statement->n_shaped; c++) {
        const char *name = semel__db_name(statement->shaped[c]);
        if (spread->of[c] == PG_EACH)
            semel__buf_addf(out, "%su.%s", comma, name);
        else if (spread->of[c] == PG_SAME)
            semel__buf_addf(out, "%s$%zu::%s AS %s", comma, parameter, type_of(statement->shaped[c]), name);
        else
            semel__buf_addf(out, "%sNULL::%s AS %s", comma, type_of(statement->shaped[c]), name);
        parameter += spread->of[c] != PG_NULL;
        comma = ", ";
    }
    semel__buf_addz(out, " FROM unnest(");
    parameter = statement->n_params + 1;
    comma = "";
    for (size_t c = 0; c < statement->n_shaped; c++) {
        if (spread->of[c] == PG_EACH)
            semel__buf_addf(out, "%s$%zu::%s[]", comma, parameter, type_of(statement->shaped[c]));
        parameter += spread->of[c] != PG_NULL;
        comma = ", "; /* the first column is always an array */
    }
    comma = ") AS u (";
    for (size_t c = 0; c < statement->n_shaped; c++) {
        if (spread->of[c] == PG_EACH)
            semel__buf_addf(out, "%s%s", comma, semel__db_name(statement->shaped[c]));
        comma = ", ";
    }
    semel__buf_addf(out, ")) AS %s", statement->alias);
}

char *semel__pg_shaped(const struct sql_statement *statement, const struct pg_spread *spread)
{
    const char *rows = strstr(statement->sql.text, ":rows AS ");
    struct semel_buf out;
    semel__buf_init(&out, TEXT_MAX);
    semel__buf_add(&out, statement->sql.text, (size_t)(rows - statement->sql.text));
    put_rows(&out, statement, spread);
    semel__buf_add(&out, rows + strlen(":rows AS ") + strlen(statement->alias),
                   strlen(rows) - strlen(":rows AS ") - strlen(statement->alias) + 1);
    if (!out.failed)
        return out.p;
    semel__buf_done(&out);
    return NULL;
}

static struct pg_shape *find_shape(const struct pg_store *d, const struct sql_statement *statement, uint64_t key)
{
    for (size_t i = 0; i < d->n_shapes; i++)
        if (d->shapes[i].key == key && d->shapes[i].statement == statement)
            return &d->shapes[i];
    return NULL;
}

/* NULL: no room, or no memory. */
static struct pg_shape *keep_shape(struct pg_store *d, const struct sql_statement *statement, uint64_t key, char *text)
{
    if (d->shapes == NULL)
        d->shapes = semel__calloc(PG_SHAPES_MAX, sizeof(*d->shapes));
    if (d->shapes == NULL || d->n_shapes == PG_SHAPES_MAX)
        return NULL;
    struct pg_shape *shape = &d->shapes[d->n_shapes++];
    *shape = (struct pg_shape){.statement = statement, .key = key, .text = text, .sql = {shape->name, text}};
    snprintf(shape->name, sizeof(shape->name), "%s_%" PRIx64, statement->sql.name, key);
    return shape;
}

void semel__pg_shapes_free(struct pg_store *d)
{
    for (size_t i = 0; i < d->n_shapes; i++)
        semel__free(d->shapes[i].text);
    semel__free(d->shapes);
    d->shapes = NULL;
    d->n_shapes = 0;
}

/* Behind the parameters of put_params. Returns the index of the result. */
static size_t add_shaped(struct pg_trip *trip, const struct sql_statement *statement, const struct sql_set *each)
{
    struct pg_spread spread;
    const struct sql_field *fields[PG_SHAPED_MAX];
    uint64_t key = 0;
    if (statement->n_shaped > PG_SHAPED_MAX || !measure(&spread, statement, each, fields)) {
        trip->status = semel__db_no_value(statement, statement->shaped[0], &trip->err);
        return 0;
    }
    for (size_t c = 0; c < statement->n_shaped; c++) {
        key = key << 2 | (uint64_t)spread.of[c];
        if (spread.of[c] == PG_EACH)
            put_array(trip, fields[c], each);
        else if (spread.of[c] == PG_SAME)
            put_single(trip, fields[c], semel__db_item(each, 0));
    }
    struct pg_shape *kept = find_shape(trip->d, statement, key);
    char *text = kept == NULL ? semel__pg_shaped(statement, &spread) : NULL;
    if (kept == NULL && text == NULL) {
        trip->status = semel__fail_memory(&trip->err);
        return 0;
    }
    if (kept == NULL)
        kept = keep_shape(trip->d, statement, key, text);
    if (kept != NULL)
        return semel__pg_add(trip, &kept->sql);
    const struct sql_text nameless = {NULL, text};
    size_t index = semel__pg_add(trip, &nameless);
    semel__free(text);
    return index;
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
    if (statement->n_shaped > 0 && e->trip.status == SEMEL_OK)
        reading.at = add_shaped(&e->trip, statement, each);
    else
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

/* Several statements in one text, which pipeline mode does not have. */
static semel_status pg_script(struct sql *db, const char *sql, struct semel_error *err)
{
    struct pg_store *d = (struct pg_store *)db;
    static const char doing[] = "migrating";
    semel_status status = SEMEL_OK;
    if (PQsendQuery(d->conn, sql) == 0)
        return semel__pg_own_fail(d, NULL, doing, err);
    for (;;) {
        struct semel_error why;
        semel_status waited = semel__pg_wait(d, doing, &why);
        PGresult *result = waited == SEMEL_OK ? PQgetResult(d->conn) : NULL;
        if (waited != SEMEL_OK && err != NULL)
            *err = why;
        if (result == NULL)
            return waited != SEMEL_OK ? waited : status;
        if (status == SEMEL_OK && !semel__pg_succeeded(result))
            status = semel__pg_own_fail(d, result, doing, err);
        PQclear(result);
    }
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
    .script = pg_script,
    .folder = "postgres",
    .migrations = semel__pg_migrations,
    .n_migrations = &semel__pg_migrations_n,
};
