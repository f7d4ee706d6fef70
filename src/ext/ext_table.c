/* SPDX-License-Identifier: MIT
 *
 * ext_table.c: a table-valued function as an eponymous virtual table.
 *
 * Its arguments are hidden columns: f(a, b) and f WHERE x = a AND y = b are the same to SQLite. The call is made by
 * xFilter, and its rows are kept. The price that xBestIndex names is so low that the planner puts the call outermost,
 * where there is one scan; where it cannot, a scan that repeats the one before it is given the same rows again.
 *
 * Invariants: a call is not repeated for the same arguments while its statement runs, which is as long as a cursor
 * lives; an argument is taken from an equation only; one that cannot be known yet (SQLITE_CONSTRAINT makes the planner
 * look for another order) or that is given twice never counts as not given.
 */
#include "ext/ext.h"

SQLITE_EXTENSION_INIT3

#define ROWS_MAX_BYTES (1 << 30)

struct ext_vtab {
    sqlite3_vtab base;
    struct ext *ext;
    const struct ext_table *table;
};

struct ext_cursor {
    sqlite3_vtab_cursor base;
    sqlite3_value *values[EXT_ARGS_MAX]; /* our own copies */
    struct ext_call call;
    size_t at;
    bool called; /* with these values, and it went well */
};

/* ---- rows ---------------------------------------------------------------------------------------- */

bool semel__ext_room(struct ext_call *call, size_t n)
{
    call->cells = semel__arena_alloc(&call->arena, n, (size_t)call->table->n_out * sizeof(*call->cells));
    call->room = call->cells != NULL ? n : 0;
    return call->cells != NULL;
}

struct ext_cell *semel__ext_row(struct ext_call *call)
{
    return call->rows < call->room ? &call->cells[call->rows++ * (size_t)call->table->n_out] : NULL;
}

void semel__ext_put_int(struct ext_cell *cell, int64_t number)
{
    if (number != SEMEL_NONE)
        *cell = (struct ext_cell){.kind = CELL_INT, .number = number};
}

void semel__ext_put(struct ext_call *call, struct ext_cell *cell, struct semel_str bytes, bool blob)
{
    if (!semel__str_given(bytes))
        return;
    cell->kind = blob ? CELL_BLOB : CELL_TEXT;
    if (!semel__arena_copy(&call->arena, bytes, &cell->bytes)) {
        cell->kind = CELL_NULL;
        call->no_memory = true;
    }
}

static void show(sqlite3_context *context, const struct ext_cell *cell)
{
    switch (cell->kind) {
    case CELL_NULL:
        sqlite3_result_null(context);
        return;
    case CELL_INT:
        sqlite3_result_int64(context, cell->number);
        return;
    case CELL_TEXT:
        sqlite3_result_text64(context, cell->bytes.p, cell->bytes.n, SQLITE_TRANSIENT, SQLITE_UTF8);
        return;
    case CELL_BLOB:
        sqlite3_result_blob64(context, cell->bytes.p, cell->bytes.n, SQLITE_TRANSIENT);
        return;
    }
}

/* ---- connecting ---------------------------------------------------------------------------------- */

static int table_connect(sqlite3 *db, void *aux, int argc, const char *const *argv, sqlite3_vtab **ret, char **ret_text)
{
    const struct ext_module *module = aux;
    struct ext_vtab *vtab;
    int rc = sqlite3_declare_vtab(db, module->table->columns);

    (void)argc;
    (void)argv;
    (void)ret_text;
    if (rc == SQLITE_OK)
        rc = sqlite3_vtab_config(db, SQLITE_VTAB_DIRECTONLY);
    if (rc != SQLITE_OK)
        return rc;
    vtab = semel__calloc(1, sizeof(*vtab));
    if (vtab == NULL)
        return SQLITE_NOMEM;
    vtab->ext = module->ext;
    vtab->table = module->table;
    semel__ext_hold(vtab->ext);
    *ret = &vtab->base;
    return SQLITE_OK;
}

static int table_disconnect(sqlite3_vtab *base)
{
    struct ext_vtab *vtab = (struct ext_vtab *)base;

    semel__ext_let_go(vtab->ext);
    semel__free(vtab);
    return SQLITE_OK;
}

static int table_fail(sqlite3_vtab *base, const char *text, int code)
{
    sqlite3_free(base->zErrMsg);
    base->zErrMsg = sqlite3_mprintf("%s", text);
    return code;
}

/* ---- planning ------------------------------------------------------------------------------------ */

/* Which constraint gives each argument; -1: none does. SQLITE_ERROR: two do. */
static int find_arguments(const struct ext_vtab *vtab, const sqlite3_index_info *info, int at[EXT_ARGS_MAX],
                          const char **ret_twice)
{
    const struct ext_table *table = vtab->table;

    for (int i = 0; i < EXT_ARGS_MAX; i++)
        at[i] = -1;
    for (int i = 0; i < info->nConstraint; i++) {
        int arg = info->aConstraint[i].iColumn - table->n_out;
        if (info->aConstraint[i].op != SQLITE_INDEX_CONSTRAINT_EQ || arg < 0 || arg >= table->n_args)
            continue;
        if (!info->aConstraint[i].usable)
            return SQLITE_CONSTRAINT;
        if (at[arg] >= 0) {
            *ret_twice = table->args[arg];
            return SQLITE_ERROR;
        }
        at[arg] = i;
    }
    return SQLITE_OK;
}

static int table_plan(sqlite3_vtab *base, sqlite3_index_info *info)
{
    const struct ext_vtab *vtab = (const struct ext_vtab *)base;
    int at[EXT_ARGS_MAX], n = 0;
    const char *twice = NULL;
    int rc = find_arguments(vtab, info, at, &twice);

    if (twice != NULL) {
        sqlite3_free(base->zErrMsg);
        base->zErrMsg = sqlite3_mprintf("%s: %s is given twice", vtab->table->name, twice);
    }
    if (rc != SQLITE_OK)
        return rc;
    for (int i = 0; i < vtab->table->n_args; i++)
        if (at[i] >= 0) {
            info->aConstraintUsage[at[i]].argvIndex = ++n;
            info->aConstraintUsage[at[i]].omit = 1;
            info->idxNum |= 1 << i;
        }
    info->estimatedCost = 1;
    info->estimatedRows = vtab->table->many ? 10 : 1;
    info->idxFlags = vtab->table->many ? 0 : SQLITE_INDEX_SCAN_UNIQUE;
    return SQLITE_OK;
}

/* ---- scanning ------------------------------------------------------------------------------------ */

static int table_open(sqlite3_vtab *base, sqlite3_vtab_cursor **ret)
{
    struct ext_cursor *cursor = semel__calloc(1, sizeof(*cursor));

    (void)base;
    if (cursor == NULL)
        return SQLITE_NOMEM;
    semel__arena_init(&cursor->call.arena, ROWS_MAX_BYTES);
    *ret = &cursor->base;
    return SQLITE_OK;
}

static void forget(struct ext_cursor *cursor)
{
    for (int i = 0; i < EXT_ARGS_MAX; i++) {
        sqlite3_value_free(cursor->values[i]);
        cursor->values[i] = NULL;
    }
    semel__arena_reset(&cursor->call.arena);
    cursor->call.rows = cursor->call.room = cursor->at = 0;
    cursor->call.no_memory = cursor->called = false;
}

static bool same_value(sqlite3_value *a, sqlite3_value *b)
{
    int type = sqlite3_value_type(a);
    const void *p, *q;

    if (type != sqlite3_value_type(b))
        return false;
    if (type == SQLITE_NULL)
        return true;
    if (type == SQLITE_INTEGER)
        return sqlite3_value_int64(a) == sqlite3_value_int64(b);
    p = sqlite3_value_blob(a); /* of a number: its digits */
    q = sqlite3_value_blob(b);
    return sqlite3_value_bytes(a) == sqlite3_value_bytes(b) &&
           (sqlite3_value_bytes(a) == 0 ||
            (p != NULL && q != NULL && memcmp(p, q, (size_t)sqlite3_value_bytes(a)) == 0));
}

/* The plan is the cursor's statement's own, so the same arguments are given each time. */
static bool is_repeat(const struct ext_cursor *cursor, int n_args, int argc, sqlite3_value **argv)
{
    int n = 0;

    for (int i = 0; cursor->called && i < n_args; i++)
        if (cursor->values[i] != NULL && (n >= argc || !same_value(cursor->values[i], argv[n++])))
            return false;
    return cursor->called && n == argc;
}

static int table_close(sqlite3_vtab_cursor *base)
{
    struct ext_cursor *cursor = (struct ext_cursor *)base;

    forget(cursor);
    semel__arena_done(&cursor->call.arena);
    semel__free(cursor);
    return SQLITE_OK;
}

static semel_status call(struct ext_cursor *cursor, unsigned given, struct semel_error *err)
{
    struct ext_call *c = &cursor->call;
    semel_status status = SEMEL_OK;

    for (int i = 0; status == SEMEL_OK && i < c->table->n_args; i++)
        if ((c->table->required & ~given & 1U << i) != 0)
            status = semel__ext_missing(&c->args, i, err);
    if (status == SEMEL_OK)
        status = semel__ext_writable(c->ext, c->table->name, err);
    if (status == SEMEL_OK)
        status = c->table->run(c, err);
    return status == SEMEL_OK && c->no_memory ? semel__fail_memory(err) : status;
}

static int table_filter(sqlite3_vtab_cursor *base, int plan, const char *text, int argc, sqlite3_value **argv)
{
    struct ext_cursor *cursor = (struct ext_cursor *)base;
    const struct ext_vtab *vtab = (const struct ext_vtab *)base->pVtab;
    struct semel_error err = {0};

    (void)text;
    if (is_repeat(cursor, vtab->table->n_args, argc, argv)) {
        cursor->at = 0;
        return SQLITE_OK;
    }
    forget(cursor);
    for (int i = 0, n = 0; i < vtab->table->n_args; i++) {
        if ((plan & 1 << i) == 0 || n >= argc)
            continue;
        cursor->values[i] = sqlite3_value_dup(argv[n++]);
        if (cursor->values[i] == NULL)
            return SQLITE_NOMEM;
    }
    cursor->call.ext = vtab->ext;
    cursor->call.table = vtab->table;
    cursor->call.args = (struct ext_args){vtab->table->name, vtab->table->args, cursor->values, vtab->table->n_args};
    cursor->called = call(cursor, (unsigned)plan, &err) == SEMEL_OK;
    if (cursor->called)
        return SQLITE_OK;
    cursor->call.rows = 0;
    return table_fail(base->pVtab, err.text, semel__ext_code(&err));
}

static int table_next(sqlite3_vtab_cursor *base)
{
    ((struct ext_cursor *)base)->at++;
    return SQLITE_OK;
}

static int table_eof(sqlite3_vtab_cursor *base)
{
    const struct ext_cursor *cursor = (const struct ext_cursor *)base;

    return cursor->at >= cursor->call.rows;
}

static int table_column(sqlite3_vtab_cursor *base, sqlite3_context *context, int i)
{
    const struct ext_cursor *cursor = (const struct ext_cursor *)base;
    int n_out = cursor->call.table->n_out;

    if (i < n_out)
        show(context, &cursor->call.cells[cursor->at * (size_t)n_out + (size_t)i]);
    else if (cursor->values[i - n_out] != NULL)
        sqlite3_result_value(context, cursor->values[i - n_out]);
    return SQLITE_OK;
}

static int table_rowid(sqlite3_vtab_cursor *base, sqlite3_int64 *ret)
{
    *ret = (sqlite3_int64)((const struct ext_cursor *)base)->at + 1;
    return SQLITE_OK;
}

const sqlite3_module semel__ext_table_module = {
    /* no xCreate: CREATE VIRTUAL TABLE is refused */
    .xConnect = table_connect, .xBestIndex = table_plan, .xDisconnect = table_disconnect,
    .xOpen = table_open,       .xClose = table_close,    .xFilter = table_filter,
    .xNext = table_next,       .xEof = table_eof,        .xColumn = table_column,
    .xRowid = table_rowid,
};
