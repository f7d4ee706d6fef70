/* SPDX-License-Identifier: MIT
 *
 * semel_ext.c: the loadable extension of SQLite: the one handle of a connection, table-valued functions, scalar
 * functions, and the entry point.
 *
 * The handle is made at first use, for the tables need not be there when the extension is loaded. It keeps prepared
 * statements, and sqlite3_close() refuses a connection that has any; but it disconnects virtual tables before it looks.
 * So the handle lives only while one of our table-valued functions is connected: making it connects one, and it is
 * closed when the last one is let go of.
 *
 * Invariants
 *  - The engine is reached through semel/semel.h alone; SQLite through the table of functions that the host gave
 *    (sqlite3ext.h), and only through those that SQLite 3.37 has.
 *  - Nothing writes outside a transaction of the caller's, but semel_migrate(). No call is made twice for one scan.
 *  - handle != NULL implies held > 0.
 *  - A begin without its end cannot commit, not even where a program tries to close its connection half way, is refused
 *    for a statement of its own, and goes on: from then until the rollback `orphaned` refuses the commit.
 *  - The struct lives as long as one function or module of it is registered.
 */
#include <limits.h>
#include <sqlite3ext.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "ext/args.h"
#include "ext/batch.h"
#include "semel/semel.h"

SQLITE_EXTENSION_INIT1

#define EXT_ARGS_MAX 16
#define EXT_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

#define SQLITE_NEEDED 3037000 /* STRICT tables, sqlite3_changes64 */
#define EXT_TABLES_MAX 9

struct ext;
struct ext_table;
struct ext_call;

struct ext_cell {
    enum { CELL_NULL, CELL_INT, CELL_TEXT, CELL_BLOB } kind;
    int64_t number;
    struct semel_str bytes;
};

/* One call: its arguments, and the rows that it answers with. */
struct ext_call {
    struct ext *ext;
    const struct ext_table *table;
    struct ext_args args;
    struct semel_arena arena; /* of the rows */
    struct ext_cell *cells;
    size_t rows, room;
    bool no_memory;
};

struct ext_table {
    const char *name;
    const char *columns; /* as declared: first what it gives, then the hidden arguments in the order of `args` */
    const char *const *args;
    int n_out, n_args;
    unsigned required; /* one bit an argument */
    bool many;         /* may answer with more than one row */
    semel_status (*run)(struct ext_call *call, struct semel_error *err);
};

/* `aux` of each module, with which it is registered. */
struct ext_module {
    struct ext *ext;
    const struct ext_table *table;
};

struct ext_function {
    const char *name;
    int min, max; /* arguments */
    int flags;
    void (*run)(sqlite3_context *context, int n, sqlite3_value **values);
};

/* ==== the connection's state ===================================================================== */

struct ext {
    sqlite3 *db;
    struct semel *handle;
    int held;      /* connected table-valued functions */
    int refs;      /* registrations */
    bool orphaned; /* the handle was closed while a message that was begun had no end */
    struct ext_module modules[EXT_TABLES_MAX];
};

/* ---- the handle ---------------------------------------------------------------------------------- */

static int refuse_commit(void *ctx)
{
    return ((const struct ext *)ctx)->orphaned; /* 1 makes the commit a rollback */
}

static void rolled_back(void *ctx)
{
    ((struct ext *)ctx)->orphaned = false;
}

static void close_handle(struct ext *ext)
{
    if (ext->handle == NULL)
        return;
    ext->orphaned = semel_pending(ext->handle) > 0;
    semel_close(ext->handle);
    ext->handle = NULL;
    if (ext->orphaned) {
        sqlite3_commit_hook(ext->db, refuse_commit, ext);
        sqlite3_rollback_hook(ext->db, rolled_back, ext);
    }
}

/* Counts connected table-valued functions: after the last one the handle is closed. */
static void ext_hold(struct ext *ext)
{
    ext->held++;
}

static void ext_let_go(struct ext *ext)
{
    if (--ext->held == 0)
        close_handle(ext);
}

/* Preparing a statement on a table-valued function connects it, and it stays connected. */
static semel_status connect_one(struct ext *ext, struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = ext->held > 0 ? SQLITE_OK
                           : sqlite3_prepare_v2(ext->db, "SELECT token FROM semel_inbox_take", -1, &stmt, NULL);
    sqlite3_finalize(stmt);
    if (ext->held > 0)
        return SEMEL_OK;
    if (rc == SQLITE_NOMEM)
        return semel__fail_memory(err);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "semel_inbox_take cannot be used here (an authorizer, or a table of that name)");
}

static semel_status open_handle(struct ext *ext, unsigned flags, struct semel_error *err)
{
    struct semel_error why = {0};
    semel_status status = connect_one(ext, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_wrap_sqlite(&ext->handle, ext->db, flags, &why);
    if (status == SEMEL_OK)
        return status;
    ext->handle = NULL;
    if (strstr(why.text, "migrate it first") != NULL)
        return semel__fail(err, status, why.cls,
                           "the tables of semel are missing or old: run SELECT semel_migrate() or semel migrate first");
    *err = why;
    return status;
}

/* The handle, made when there is none yet. INVALID: the tables are not there, and how to get them. */
static semel_status ext_handle(struct ext *ext, struct semel **ret, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (ext->orphaned)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "a message was begun before the connection was to be closed: ROLLBACK first");
    if (ext->handle == NULL)
        status = open_handle(ext, 0, err);
    *ret = ext->handle;
    return status;
}

/* The engine works behind savepoints, and SQLite sets none while a statement writes. */
static bool in_the_middle_of_a_write(sqlite3 *db)
{
    for (sqlite3_stmt *stmt = sqlite3_next_stmt(db, NULL); stmt != NULL; stmt = sqlite3_next_stmt(db, stmt))
        if (sqlite3_stmt_busy(stmt) && !sqlite3_stmt_readonly(stmt))
            return true;
    return false;
}

/* INVALID outside a transaction, or while another statement is in the middle of writing. `who` asks. */
static semel_status ext_writable(struct ext *ext, const char *who, struct semel_error *err)
{
    if (sqlite3_get_autocommit(ext->db) != 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s: open a transaction first: BEGIN IMMEDIATE",
                           who);
    if (in_the_middle_of_a_write(ext->db))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "%s: another statement is in the middle of writing; call it in a SELECT of its own", who);
    return SEMEL_OK;
}

static semel_status schema_version(struct ext *ext, int64_t *ret, struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(ext->db, "SELECT max(version) FROM main.semel_schema", -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    *ret = rc == SQLITE_ROW ? sqlite3_column_int64(stmt, 0) : 0;
    sqlite3_finalize(stmt);
    if (rc == SQLITE_ROW)
        return SEMEL_OK;
    semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "semel_migrate: the version cannot be read: %s",
                sqlite3_errstr(rc));
    if (err != NULL)
        err->code = rc;
    return SEMEL_RETRY;
}

/* Brings the tables up to date, outside a transaction only. */
static semel_status ext_migrate(struct ext *ext, int64_t *ret_version, struct semel_error *err)
{
    semel_status status;
    if (sqlite3_get_autocommit(ext->db) == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "semel_migrate: a transaction is open; migrate outside of one");
    close_handle(ext);
    status = open_handle(ext, SEMEL_MIGRATE, err);
    return status == SEMEL_OK ? schema_version(ext, ret_version, err) : status;
}

/* The result code for SQLite: contention is SQLITE_BUSY, lack of memory SQLITE_NOMEM, a wrong call SQLITE_ERROR. */
static int code_of(const struct semel_error *err)
{
    int code = err->code & 0xff;
    if (err->status != SEMEL_RETRY)
        return SQLITE_ERROR;
    if (err->code == SQLITE_IOERR_NOMEM || (code == SQLITE_OK && strcmp(err->text, "out of memory") == 0))
        return SQLITE_NOMEM;
    return code == SQLITE_OK || code == SQLITE_LOCKED ? SQLITE_BUSY : code;
}

/* ---- registering --------------------------------------------------------------------------------- */

/* ==== table-valued functions ========================================================================
 *
 * A table-valued function as an eponymous virtual table.
 *
 * Its arguments are hidden columns: f(a, b) and f WHERE x = a AND y = b are the same to SQLite. The call is made by
 * xFilter, and its rows are kept. The price that xBestIndex names is so low that the planner puts the call outermost,
 * where there is one scan; where it cannot, a scan that repeats the one before it is given the same rows again.
 *
 * Invariants: a call is not repeated for the same arguments while its statement runs, which is as long as a cursor
 * lives; an argument is taken from an equation only; one that cannot be known yet (SQLITE_CONSTRAINT makes the planner
 * look for another order) or that is given twice never counts as not given.
 */

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

/* Makes room for n rows. false: no memory. */
static bool make_room(struct ext_call *call, size_t n)
{
    call->cells = semel__arena_alloc(&call->arena, n, (size_t)call->table->n_out * sizeof(*call->cells));
    call->room = call->cells != NULL ? n : 0;
    return call->cells != NULL;
}

/* The next row, to be filled from column 0 on; NULL: there is no room. */
static struct ext_cell *next_row(struct ext_call *call)
{
    return call->rows < call->room ? &call->cells[call->rows++ * (size_t)call->table->n_out] : NULL;
}

/* SEMEL_NONE: NULL */
static void put_int(struct ext_cell *cell, int64_t number)
{
    if (number != SEMEL_NONE)
        *cell = (struct ext_cell){.kind = CELL_INT, .number = number};
}

/* Copied to the call's arena; not given: NULL. Lack of memory is noted in the call. */
static void put_bytes(struct ext_call *call, struct ext_cell *cell, struct semel_str bytes, bool blob)
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
    ext_hold(vtab->ext);
    *ret = &vtab->base;
    return SQLITE_OK;
}

static int table_disconnect(sqlite3_vtab *base)
{
    struct ext_vtab *vtab = (struct ext_vtab *)base;
    ext_let_go(vtab->ext);
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
            status = ext_arg_missing(&c->args, i, err);
    if (status == SEMEL_OK)
        status = ext_writable(c->ext, c->table->name, err);
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
    return table_fail(base->pVtab, err.text, code_of(&err));
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

static const sqlite3_module table_module = {
    /* no xCreate: CREATE VIRTUAL TABLE is refused */
    .xConnect = table_connect, .xBestIndex = table_plan, .xDisconnect = table_disconnect,
    .xOpen = table_open,       .xClose = table_close,    .xFilter = table_filter,
    .xNext = table_next,       .xEof = table_eof,        .xColumn = table_column,
    .xRowid = table_rowid,
};

/* ==== the inbox =====================================================================================
 *
 * The table-valued functions: semel_inbox_begin, _fail, _claim, _put and _take; _begin_many and _fail_many.
 *
 * Invariants: the declared columns, the names of the arguments and the enumerations below have one order, which is that
 * of the SQL surface. A payload comes back as text where it is JSON, else as a BLOB.
 */

#define TAKE_MAX 1000

/* ---- messages ------------------------------------------------------------------------------------ */

enum {
    ARG_CONSUMER,
    ARG_MESSAGE_ID,
    ARG_SOURCE,
    ARG_TYPE,
    ARG_PAYLOAD,
    ARG_RAW,
    ARG_HEADERS,
    ARG_BUSINESS_KEY,
    ARG_ORDER_KEY,
    ARG_VERSION,
    ARG_FINGERPRINT,
    ARG_MESSAGE_TIME,
    ARG_DELIVERY,
    ARG_MORE, /* fail: class, reason; claim: lease; put: not_before */
};

#define MSG_NAMES                                                                                                    \
    "consumer", "message_id", "source", "type", "payload", "raw", "headers", "business_key", "order_key", "version", \
        "fingerprint", "message_time", "delivery"
#define MSG_COLUMNS                                                                                \
    "consumer HIDDEN, message_id HIDDEN, source HIDDEN, type HIDDEN, payload HIDDEN, raw HIDDEN, " \
    "headers HIDDEN, business_key HIDDEN, order_key HIDDEN, version HIDDEN, fingerprint HIDDEN, "  \
    "message_time HIDDEN, delivery HIDDEN"

static semel_status read_texts(const struct ext_args *args, struct semel_msg *msg, struct semel_error *err)
{
    struct {
        int arg;
        struct semel_str *into;
    } const texts[] = {
        {ARG_CONSUMER, &msg->consumer},   {ARG_MESSAGE_ID, &msg->id},   {ARG_SOURCE, &msg->source},
        {ARG_TYPE, &msg->type},           {ARG_HEADERS, &msg->headers}, {ARG_BUSINESS_KEY, &msg->business_key},
        {ARG_ORDER_KEY, &msg->order_key},
    };
    semel_status status = SEMEL_OK;
    for (int i = 0; status == SEMEL_OK && i < EXT_COUNT(texts); i++)
        status = ext_arg_text(args, texts[i].arg, texts[i].into, err);
    if (status == SEMEL_OK && !semel__str_given(msg->consumer))
        status = ext_arg_missing(args, ARG_CONSUMER, err);
    return status;
}

static semel_status read_msg(const struct ext_args *args, struct semel_msg *msg, struct semel_error *err)
{
    int64_t delivery = 0;
    semel_status status;
    semel_msg_init(msg);
    status = read_texts(args, msg, err);
    if (status == SEMEL_OK)
        status = ext_arg_payload(args, ARG_PAYLOAD, &msg->payload, err);
    if (status == SEMEL_OK)
        status = ext_arg_bytes(args, ARG_FINGERPRINT, &msg->fingerprint, err);
    if (status == SEMEL_OK)
        status = ext_arg_int(args, ARG_VERSION, 0, INT64_MAX, SEMEL_NONE, &msg->version, err);
    if (status == SEMEL_OK)
        status = ext_arg_time(args, ARG_MESSAGE_TIME, &msg->message_time_us, err);
    if (status == SEMEL_OK)
        status = ext_arg_int(args, ARG_DELIVERY, 0, INT_MAX, 0, &delivery, err);
    msg->delivery = (int)delivery;
    return status;
}

/* ---- one message, one row ------------------------------------------------------------------------ */

enum { OUT_ACT, OUT_WHY, OUT_ATTEMPT, OUT_OUTCOME, OUT_TOKEN };

static struct ext_cell *answer_row(struct ext_call *call, const struct semel_verdict *verdict)
{
    struct ext_cell *row = make_room(call, 1) ? next_row(call) : NULL;
    if (row == NULL) {
        call->no_memory = true;
        return NULL;
    }
    put_bytes(call, &row[OUT_ACT], semel_str(semel_act_name(verdict->act)), false);
    return row;
}

static void answer_why(struct ext_call *call, const struct semel_verdict *verdict)
{
    struct ext_cell *row = answer_row(call, verdict);
    if (row == NULL)
        return;
    put_bytes(call, &row[OUT_WHY], semel_str(semel_why_name(verdict->why)), false);
    if (call->table->n_out <= OUT_OUTCOME)
        return;
    put_int(&row[OUT_ATTEMPT], verdict->attempt);
    put_bytes(call, &row[OUT_OUTCOME], verdict->outcome, false);
    if (call->table->n_out > OUT_TOKEN && verdict->act == SEMEL_RUN)
        put_int(&row[OUT_TOKEN], verdict->token);
}

static semel_status open_call(struct ext_call *call, struct semel **ret_s, struct semel_msg *ret_msg,
                              struct semel_verdict *ret_verdict, struct semel_error *err)
{
    semel_status status = read_msg(&call->args, ret_msg, err);
    semel_verdict_init(ret_verdict);
    return status == SEMEL_OK ? ext_handle(call->ext, ret_s, err) : status;
}

static semel_status run_begin(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_verdict verdict;
    semel_status status = open_call(call, &s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        status = semel_inbox_begin(s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        answer_why(call, &verdict);
    return status;
}

static semel_status run_put(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_verdict verdict;
    semel_status status = open_call(call, &s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        status = ext_arg_time(&call->args, ARG_MORE, &msg.not_before_us, err);
    if (status == SEMEL_OK)
        status = semel_inbox_put(s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        answer_why(call, &verdict);
    return status;
}

static semel_status run_claim(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_verdict verdict;
    int64_t lease_ms = 0;
    semel_status status = ext_arg_lease_ms(&call->args, ARG_MORE, &lease_ms, err);
    if (status == SEMEL_OK)
        status = open_call(call, &s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        status = semel_inbox_claim(s, &msg, lease_ms, &verdict, err);
    if (status == SEMEL_OK)
        answer_why(call, &verdict);
    return status;
}

enum { FAIL_ACT, FAIL_DUE_AT, FAIL_WHY, FAIL_STATUS, FAIL_HINT };

static semel_status run_fail(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_verdict verdict;
    struct semel_str reason = {0};
    struct ext_cell *row;
    enum semel_result result = SEMEL_DONE;
    semel_status status = ext_arg_class(&call->args, ARG_MORE, SEMEL_DONE, &result, err);
    if (status == SEMEL_OK && result == SEMEL_DONE)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "semel_inbox_fail: class must be transient, permanent, rejected or unknown");
    if (status == SEMEL_OK)
        status = ext_arg_text(&call->args, ARG_MORE + 1, &reason, err);
    if (status == SEMEL_OK)
        status = open_call(call, &s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        status = semel_inbox_fail(s, &msg, result, reason, &verdict, err);
    row = status == SEMEL_OK ? answer_row(call, &verdict) : NULL;
    if (row == NULL)
        return status;
    put_int(&row[FAIL_DUE_AT], verdict.due_us);
    put_bytes(call, &row[FAIL_WHY], semel_str(semel_why_name(verdict.why)), false);
    put_bytes(call, &row[FAIL_STATUS], semel_str(semel_row_status_name(verdict.status)), false);
    put_bytes(call, &row[FAIL_HINT], verdict.hint, false);
    return status;
}

/* ---- stored work --------------------------------------------------------------------------------- */

enum { TAKE_CONSUMER, TAKE_COUNT, TAKE_LEASE };

/* Notes in the call what cannot be copied; run_take then undoes the claims. */
static void taken(void *ctx, const struct semel_msg *msg, const struct semel_verdict *verdict)
{
    struct ext_call *call = ctx;
    struct ext_cell *row = next_row(call);
    bool json = false;
    if (row == NULL || ext_is_json(msg->payload, &json) != SEMEL_OK) {
        call->no_memory = true;
        return;
    }
    put_int(row++, verdict->token);
    put_bytes(call, row++, msg->id, false);
    put_bytes(call, row++, msg->source, false);
    put_bytes(call, row++, msg->type, false);
    put_bytes(call, row++, msg->payload, !json);
    put_bytes(call, row++, msg->headers, false);
    put_bytes(call, row++, msg->order_key, false);
    put_int(row++, msg->version);
    put_int(row++, verdict->attempt);
    put_int(row++, verdict->lease_until_us);
    put_bytes(call, row, msg->traceparent, false);
}

/* A claim that was not returned would keep its message until the lease expires. */
static semel_status take(struct ext_call *call, struct semel *s, const char *consumer, size_t max, int64_t lease_ms,
                         struct semel_error *err)
{
    sqlite3 *db = call->ext->db;
    size_t n = 0;
    semel_status status;
    if (sqlite3_exec(db, "SAVEPOINT semel_take", NULL, NULL, NULL) != SQLITE_OK)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "semel_inbox_take: no savepoint could be set");
    status = semel_inbox_take(s, consumer, max, lease_ms, taken, call, &n, err);
    if (status == SEMEL_OK && call->no_memory)
        status = semel__fail_memory(err);
    if (status != SEMEL_OK)
        sqlite3_exec(db, "ROLLBACK TO semel_take", NULL, NULL, NULL);
    sqlite3_exec(db, "RELEASE semel_take", NULL, NULL, NULL);
    return status;
}

static semel_status run_take(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    const char *consumer = NULL;
    int64_t max = 0, lease_ms = 0;
    semel_status status = ext_arg_name(&call->args, TAKE_CONSUMER, &consumer, err);
    if (status == SEMEL_OK)
        status = ext_arg_int(&call->args, TAKE_COUNT, 1, TAKE_MAX, 1, &max, err);
    if (status == SEMEL_OK)
        status = ext_arg_lease_ms(&call->args, TAKE_LEASE, &lease_ms, err);
    if (status == SEMEL_OK)
        status = ext_handle(call->ext, &s, err);
    if (status == SEMEL_OK && !make_room(call, (size_t)max))
        status = semel__fail_memory(err);
    return status == SEMEL_OK ? take(call, s, consumer, (size_t)max, lease_ms, err) : status;
}

/* ---- batches -------------------------------------------------------------------------------------
 *
 * Messages as a JSON array of objects, whose members have the names of the arguments above. All of them are read before
 * the first is begun, so that a mistake in one of them leaves nothing behind. There are no round trips to be saved in
 * SQLite: each message is judged by the same call as one alone. */

enum { MANY_CONSUMER, MANY_MESSAGES };

/* All messages of the call. */
static semel_status read_batch(const struct ext_args *args, struct ext_batch *batch, struct semel_error *err)
{
    struct semel_str consumer = {0}, list = {0};
    semel_status status = ext_arg_text(args, MANY_CONSUMER, &consumer, err);
    if (status == SEMEL_OK)
        status = ext_arg_json(args, MANY_MESSAGES, &list, err);
    if (status == SEMEL_OK && (!semel__str_given(consumer) || !semel__str_given(list)))
        status = ext_arg_missing(args, semel__str_given(consumer) ? MANY_MESSAGES : MANY_CONSUMER, err);
    return status == SEMEL_OK ? semel__ext_batch_read(batch, consumer, list, err) : status;
}

/* The row of the message i, with its first three columns; NULL: no memory. */
static struct ext_cell *many_row(struct ext_call *call, const struct ext_one *one, size_t i)
{
    struct ext_cell *row = next_row(call);
    if (row == NULL)
        return NULL;
    put_int(&row[0], (int64_t)i + 1);
    put_bytes(call, &row[1], one->msg.id, false);
    put_bytes(call, &row[2], semel__str_given(one->msg.source) ? one->msg.source : semel_str(""), false);
    return row;
}

static semel_status open_many(struct ext_call *call, struct ext_batch *batch, struct semel **ret_s,
                              struct semel_error *err)
{
    semel_status status = read_batch(&call->args, batch, err);
    if (status == SEMEL_OK)
        status = ext_handle(call->ext, ret_s, err);
    if (status == SEMEL_OK && !make_room(call, batch->n + 1))
        status = semel__fail_memory(err);
    return status;
}

static semel_status run_begin_many(struct ext_call *call, struct semel_error *err)
{
    struct ext_batch batch = {.who = call->args.who, .arena = &call->arena, .call = EXT_FOR_BEGIN};
    struct semel *s = NULL;
    semel_status status = open_many(call, &batch, &s, err);
    for (size_t i = 0; status == SEMEL_OK && i < batch.n; i++) {
        struct semel_verdict verdict;
        semel_verdict_init(&verdict);
        status = semel_inbox_begin(s, &batch.all[i].msg, &verdict, err);
        struct ext_cell *row = status == SEMEL_OK ? many_row(call, &batch.all[i], i) : NULL;
        if (row == NULL)
            continue;
        put_bytes(call, &row[3], semel_str(semel_act_name(verdict.act)), false);
        put_bytes(call, &row[4], semel_str(semel_why_name(verdict.why)), false);
        put_int(&row[5], verdict.attempt);
        put_bytes(call, &row[6], verdict.outcome, false);
    }
    return status;
}

static semel_status run_fail_many(struct ext_call *call, struct semel_error *err)
{
    struct ext_batch batch = {.who = call->args.who, .arena = &call->arena, .call = EXT_FOR_FAIL};
    struct semel *s = NULL;
    enum semel_result result = SEMEL_MAYBE;
    semel_status status = open_many(call, &batch, &s, err);
    for (size_t i = 0; status == SEMEL_OK && i < batch.n; i++)
        status = semel__ext_batch_result(&batch, i, &result, err);
    for (size_t i = 0; status == SEMEL_OK && i < batch.n; i++) {
        struct semel_verdict verdict;
        semel_verdict_init(&verdict);
        (void)semel__ext_batch_result(&batch, i, &result, NULL);
        status = semel_inbox_fail(s, &batch.all[i].msg, result, batch.all[i].reason, &verdict, err);
        struct ext_cell *row = status == SEMEL_OK ? many_row(call, &batch.all[i], i) : NULL;
        if (row == NULL)
            continue;
        put_bytes(call, &row[3], semel_str(semel_act_name(verdict.act)), false);
        put_int(&row[4], verdict.due_us);
        put_bytes(call, &row[5], semel_str(semel_why_name(verdict.why)), false);
        put_bytes(call, &row[6], semel_str(semel_row_status_name(verdict.status)), false);
        put_bytes(call, &row[7], verdict.hint, false);
    }
    return status;
}

/* ---- what there is ------------------------------------------------------------------------------- */

static const char *const many_args[] = {"consumer", "messages"};
static const char *const msg_args[] = {MSG_NAMES};
static const char *const fail_args[] = {MSG_NAMES, "class", "reason"};
static const char *const put_args[] = {MSG_NAMES, "not_before"};
static const char *const claim_args[] = {MSG_NAMES, "lease"};
static const char *const take_args[] = {"consumer", "max", "lease"};

_Static_assert(EXT_COUNT(msg_args) == ARG_MORE && EXT_COUNT(fail_args) <= EXT_ARGS_MAX, "as enumerated");

#define REQUIRED(arg) (1U << (arg))
#define REQUIRED_MSG (REQUIRED(ARG_CONSUMER) | REQUIRED(ARG_MESSAGE_ID))

/* ---- idempotency keys ---------------------------------------------------------------------------- */

enum { KEY_LEASE = EXT_REQUEST_ARGS, KEY_EFFECT };
enum { KEY_ACT, KEY_WHY, KEY_STATUS, KEY_HEADERS, KEY_BODY, KEY_TOKEN, KEY_OUT };
static const char *const key_args[] = {"scope", "key", "fingerprint", "answer", "keep", "lease", "effect"};
#define KEY_COLUMNS                                                                                               \
    "(act, why, status, headers, body, token, scope HIDDEN, key HIDDEN, fingerprint HIDDEN, answer HIDDEN, keep " \
    "HIDDEN"
#define KEY_LEASE_MS 60000

static void answer_key(struct ext_call *call, struct semel_str key, const struct semel_key_verdict *verdict)
{
    struct ext_cell *row = make_room(call, 1) ? next_row(call) : NULL;
    if (verdict->key_is_time)
        sqlite3_log(SQLITE_WARNING,
                    "%s: key \"%.*s\" is a time and nothing else: requests of one moment would share it; use a UUID",
                    call->args.who, (int)key.n, key.p);
    call->no_memory = row == NULL;
    if (row == NULL)
        return;
    put_bytes(call, &row[KEY_ACT], semel_str(semel_key_act_name(verdict->act)), false);
    put_bytes(call, &row[KEY_WHY], verdict->why, false);
    put_int(&row[KEY_STATUS], verdict->act == SEMEL_KEY_REPLAY ? verdict->status : SEMEL_NONE);
    put_bytes(call, &row[KEY_HEADERS], verdict->headers, false);
    put_bytes(call, &row[KEY_BODY], verdict->body, true);
    put_int(&row[KEY_TOKEN], verdict->token);
}

static semel_status run_key(struct ext_call *call, bool claim, struct semel_error *err)
{
    struct semel *s = NULL;
    struct semel_key_request request;
    struct semel_key_verdict verdict;
    enum semel_key_effect effect = SEMEL_KEY_OUTSIDE; /* a begin is given neither */
    int64_t lease_ms = 0;
    semel_status status = ext_arg_request(&call->args, &request, err);
    if (status == SEMEL_OK)
        status = ext_arg_lease_ms(&call->args, KEY_LEASE, &lease_ms, err);
    if (status == SEMEL_OK)
        status = ext_arg_effect(&call->args, KEY_EFFECT, &effect, err);
    if (status == SEMEL_OK)
        status = ext_handle(call->ext, &s, err);
    if (status == SEMEL_OK)
        status = claim ? semel_key_claim(s, &request, effect, lease_ms > 0 ? lease_ms : KEY_LEASE_MS, &verdict, err)
                       : semel_key_begin(s, &request, &verdict, err);
    if (status == SEMEL_OK)
        answer_key(call, request.key, &verdict);
    return status;
}

static semel_status run_key_begin(struct ext_call *call, struct semel_error *err)
{
    return run_key(call, false, err);
}

static semel_status run_key_claim(struct ext_call *call, struct semel_error *err)
{
    return run_key(call, true, err);
}

static const struct ext_table tables[] = {
    {
        .name = "semel_key_begin",
        .columns = "CREATE TABLE semel_key_begin " KEY_COLUMNS ")",
        .args = key_args,
        .n_out = KEY_OUT,
        .n_args = KEY_LEASE,
        .required = REQUIRED(0) | REQUIRED(1),
        .run = run_key_begin,
    },
    {
        .name = "semel_key_claim",
        .columns = "CREATE TABLE semel_key_claim " KEY_COLUMNS ", lease HIDDEN, effect HIDDEN)",
        .args = key_args,
        .n_out = KEY_OUT,
        .n_args = EXT_COUNT(key_args),
        .required = REQUIRED(0) | REQUIRED(1),
        .run = run_key_claim,
    },
    {
        .name = "semel_inbox_begin",
        .columns = "CREATE TABLE semel_inbox_begin (act, why, attempt, outcome, " MSG_COLUMNS ")",
        .args = msg_args,
        .n_out = 4,
        .n_args = EXT_COUNT(msg_args),
        .required = REQUIRED_MSG,
        .run = run_begin,
    },
    {
        .name = "semel_inbox_fail",
        .columns = "CREATE TABLE semel_inbox_fail (act, due_at, why, status, hint, " MSG_COLUMNS
                   ", class HIDDEN, reason HIDDEN)",
        .args = fail_args,
        .n_out = 5,
        .n_args = EXT_COUNT(fail_args),
        .required = REQUIRED_MSG | REQUIRED(ARG_MORE),
        .run = run_fail,
    },
    {
        .name = "semel_inbox_claim",
        .columns = "CREATE TABLE semel_inbox_claim (act, why, attempt, outcome, token, " MSG_COLUMNS ", lease HIDDEN)",
        .args = claim_args,
        .n_out = 5,
        .n_args = EXT_COUNT(claim_args),
        .required = REQUIRED_MSG,
        .run = run_claim,
    },
    {
        .name = "semel_inbox_put",
        .columns = "CREATE TABLE semel_inbox_put (act, why, " MSG_COLUMNS ", not_before HIDDEN)",
        .args = put_args,
        .n_out = 2,
        .n_args = EXT_COUNT(put_args),
        .required = REQUIRED_MSG,
        .run = run_put,
    },
    {
        .name = "semel_inbox_take",
        .columns = "CREATE TABLE semel_inbox_take (token, message_id, source, type, payload, headers, order_key, "
                   "version, attempt, lease_until, traceparent, consumer HIDDEN, max HIDDEN, lease HIDDEN)",
        .args = take_args,
        .n_out = 11,
        .n_args = EXT_COUNT(take_args),
        .required = REQUIRED(TAKE_CONSUMER),
        .many = true,
        .run = run_take,
    },
    {
        .name = "semel_inbox_begin_many",
        .columns = "CREATE TABLE semel_inbox_begin_many (ordinal, message_id, source, act, why, attempt, outcome, "
                   "consumer HIDDEN, messages HIDDEN)",
        .args = many_args,
        .n_out = 7,
        .n_args = EXT_COUNT(many_args),
        .required = REQUIRED(MANY_CONSUMER) | REQUIRED(MANY_MESSAGES),
        .many = true,
        .run = run_begin_many,
    },
    {
        .name = "semel_inbox_fail_many",
        .columns = "CREATE TABLE semel_inbox_fail_many (ordinal, message_id, source, act, due_at, why, status, hint, "
                   "consumer HIDDEN, messages HIDDEN)",
        .args = many_args,
        .n_out = 8,
        .n_args = EXT_COUNT(many_args),
        .required = REQUIRED(MANY_CONSUMER) | REQUIRED(MANY_MESSAGES),
        .many = true,
        .run = run_fail_many,
    },
};
static const int n_tables = EXT_COUNT(tables);
_Static_assert(EXT_COUNT(tables) <= EXT_TABLES_MAX, "room for each");

/* ==== scalar functions ==============================================================================
 *
 * The scalar functions: the ends of messages and leases, the tick, the outbox, keys, settings.
 *
 * Invariants: a fenced call answers 0 and is no error; every other failure is one, with the text of the library.
 */

#define TICK_MAX 1000000
#define TICK_DEFAULT 1000

static void report(sqlite3_context *context, const struct semel_error *err)
{
    sqlite3_result_error(context, err->text, -1);
    sqlite3_result_error_code(context, code_of(err)); /* keeps the text */
}

static void answer(sqlite3_context *context, semel_status status, const struct semel_error *err)
{
    if (status == SEMEL_OK || status == SEMEL_FENCED)
        sqlite3_result_int(context, status == SEMEL_OK);
    else
        report(context, err);
}

/* For what writes: the handle, in a transaction. */
static semel_status enter(sqlite3_context *context, const struct ext_args *args, struct semel **ret,
                          struct semel_error *err)
{
    struct ext *ext = sqlite3_user_data(context);
    semel_status status = ext_writable(ext, args->who, err);
    return status == SEMEL_OK ? ext_handle(ext, ret, err) : status;
}

/* ---- the ends of a message ----------------------------------------------------------------------- */

static void inbox_done(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"consumer", "message_id", "source", "outcome"};
    const struct ext_args args = {"semel_inbox_done", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_str outcome = {0};
    semel_status status = enter(context, &args, &s, &err);
    semel_msg_init(&msg);
    if (status == SEMEL_OK)
        status = ext_arg_text(&args, 0, &msg.consumer, &err);
    if (status == SEMEL_OK)
        status = ext_arg_text(&args, 1, &msg.id, &err);
    if (status == SEMEL_OK)
        status = ext_arg_text(&args, 2, &msg.source, &err);
    if (status == SEMEL_OK)
        status = ext_arg_json(&args, 3, &outcome, &err);
    for (int i = 0; status == SEMEL_OK && i < 2; i++)
        if (!semel__str_given(i == 0 ? msg.consumer : msg.id))
            status = ext_arg_missing(&args, i, &err);
    if (status == SEMEL_OK)
        status = semel_inbox_done(s, &msg, outcome, &err);
    answer(context, status, &err);
}

static void inbox_done_many(sqlite3_context *context, int n, sqlite3_value **values)
{
    const struct ext_args args = {"semel_inbox_done_many", many_args, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    struct semel_arena arena;
    struct ext_batch batch = {.who = args.who, .arena = &arena, .call = EXT_FOR_DONE};
    semel__arena_init(&arena, JSON_MAX);
    semel_status status = enter(context, &args, &s, &err);
    if (status == SEMEL_OK)
        status = read_batch(&args, &batch, &err);
    for (size_t i = 0; status == SEMEL_OK && i < batch.n; i++)
        status = semel_inbox_done(s, &batch.all[i].msg, batch.all[i].outcome, &err);
    answer(context, status, &err);
    semel__arena_done(&arena);
}

/* ---- the ends of a lease ------------------------------------------------------------------------- */

/* Renews the lease of a message or of an idempotency key; usual_ms: where the caller names no lease. */
static void renew(sqlite3_context *context, const char *name, int n, sqlite3_value **values, int64_t usual_ms,
                  semel_status (*extend)(struct semel *, int64_t, int64_t, struct semel_error *))
{
    static const char *const names[] = {"token", "lease"};
    const struct ext_args args = {name, names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    int64_t token = 0, lease_ms = 0;
    semel_status status = enter(context, &args, &s, &err);
    if (status == SEMEL_OK)
        status = ext_arg_token(&args, 0, &token, &err);
    if (status == SEMEL_OK)
        status = ext_arg_lease_ms(&args, 1, &lease_ms, &err);
    if (status == SEMEL_OK)
        status = extend(s, token, lease_ms > 0 ? lease_ms : usual_ms, &err);
    answer(context, status, &err);
}

static void inbox_renew(sqlite3_context *context, int n, sqlite3_value **values)
{
    renew(context, "semel_inbox_renew", n, values, 0, semel_inbox_renew);
}

static void inbox_finish(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"token", "class", "outcome", "reason"};
    const struct ext_args args = {"semel_inbox_finish", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    struct semel_str outcome = {0}, reason = {0};
    enum semel_result result = SEMEL_DONE;
    int64_t token = 0;
    semel_status status = enter(context, &args, &s, &err);
    if (status == SEMEL_OK)
        status = ext_arg_token(&args, 0, &token, &err);
    if (status == SEMEL_OK)
        status = ext_arg_class(&args, 1, SEMEL_DONE, &result, &err);
    if (status == SEMEL_OK)
        status = ext_arg_json(&args, 2, &outcome, &err);
    if (status == SEMEL_OK)
        status = ext_arg_text(&args, 3, &reason, &err);
    if (status != SEMEL_OK) {
        report(context, &err);
        return;
    }
    const int pending = semel_pending(s);
    status = semel_inbox_finish(s, token, result, outcome, reason, &err);
    if (status == SEMEL_FENCED && semel_pending(s) > pending)
        report(context, &err); /* its effect is in this transaction, which cannot commit any more */
    else
        answer(context, status, &err);
}

static void inbox_release(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"token"};
    const struct ext_args args = {"semel_inbox_release", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    int64_t token = 0;
    semel_status status = enter(context, &args, &s, &err);
    if (status == SEMEL_OK)
        status = ext_arg_token(&args, 0, &token, &err);
    if (status == SEMEL_OK)
        status = semel_inbox_release(s, token, &err);
    answer(context, status, &err);
}

static void tick(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"max"};
    const struct ext_args args = {"semel_tick", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    int64_t max = 0;
    size_t touched = 0;
    semel_status status = enter(context, &args, &s, &err);
    if (status == SEMEL_OK)
        status = ext_arg_int(&args, 0, 1, TICK_MAX, TICK_DEFAULT, &max, &err);
    if (status == SEMEL_OK)
        status = semel_tick(s, (size_t)max, &touched, &err);
    if (status == SEMEL_OK)
        sqlite3_result_int64(context, (sqlite3_int64)touched);
    else
        report(context, &err);
}

/* ---- the outbox, keys ---------------------------------------------------------------------------- */

static semel_status read_event(const struct ext_args *args, struct semel_event *event, struct semel_error *err)
{
    struct {
        int arg;
        bool required;
        struct semel_str *into;
    } const texts[] = {
        {0, true, &event->aggregatetype}, {1, true, &event->aggregateid},  {2, true, &event->type},
        {5, false, &event->headers},      {6, false, &event->destination}, {7, false, &event->id},
    };
    semel_status status = SEMEL_OK;
    semel_event_init(event);
    for (int i = 0; status == SEMEL_OK && i < EXT_COUNT(texts); i++) {
        status = ext_arg_text(args, texts[i].arg, texts[i].into, err);
        if (status == SEMEL_OK && texts[i].required && !semel__str_given(*texts[i].into))
            status = ext_arg_missing(args, texts[i].arg, err);
    }
    return status == SEMEL_OK ? ext_arg_payload(args, 3, &event->payload, err) : status;
}

static void outbox_put(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"aggregatetype", "aggregateid", "type",        "payload",
                                        "raw",           "headers",     "destination", "id"};
    const struct ext_args args = {"semel_outbox_put", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    struct semel_event event;
    char id[SEMEL_EVENT_ID_SIZE];
    semel_status status = enter(context, &args, &s, &err);
    if (status == SEMEL_OK)
        status = read_event(&args, &event, &err);
    if (status == SEMEL_OK)
        status = semel_outbox_put(s, &event, id, &err);
    if (status == SEMEL_OK)
        sqlite3_result_text(context, id, -1, SQLITE_TRANSIENT);
    else
        report(context, &err);
}

static void step_key(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"consumer", "message_id", "step", "source"};
    const struct ext_args args = {"semel_step_key", names, values, n};
    struct semel_error err = {0};
    struct semel_msg msg;
    const char *step = NULL;
    char key[SEMEL_STEP_KEY_SIZE];
    semel_status status;
    semel_msg_init(&msg);
    status = ext_arg_text(&args, 0, &msg.consumer, &err);
    if (status == SEMEL_OK)
        status = ext_arg_text(&args, 1, &msg.id, &err);
    if (status == SEMEL_OK)
        status = ext_arg_name(&args, 2, &step, &err);
    if (status == SEMEL_OK)
        status = ext_arg_text(&args, 3, &msg.source, &err);
    for (int i = 0; status == SEMEL_OK && i < 2; i++)
        if (!semel__str_given(i == 0 ? msg.consumer : msg.id))
            status = ext_arg_missing(&args, i, &err);
    if (status == SEMEL_OK)
        status = semel_step_key(&msg, step, key, &err);
    if (status == SEMEL_OK)
        sqlite3_result_text(context, key, -1, SQLITE_TRANSIENT);
    else
        report(context, &err);
}

/* ---- settings, tables, version ------------------------------------------------------------------- */

static void consumer(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"consumer", "settings"};
    const struct ext_args args = {"semel_consumer", names, values, n};
    struct semel_error err = {0};
    struct ext *ext = sqlite3_user_data(context);
    struct semel *s = NULL;
    const char *name = NULL, *settings = NULL;
    struct semel_str now = {0};
    semel_status status = ext_arg_name(&args, 0, &name, &err);
    if (status == SEMEL_OK && n == 2)
        status = ext_arg_name(&args, 1, &settings, &err);
    if (status == SEMEL_OK && n == 2)
        status = ext_writable(ext, args.who, &err);
    if (status == SEMEL_OK)
        status = ext_handle(ext, &s, &err);
    if (status == SEMEL_OK && n == 2)
        status = semel_consumer_set(s, name, settings, &err);
    if (status == SEMEL_OK && semel_hint(s) != NULL)
        sqlite3_log(SQLITE_NOTICE, "semel_consumer: %s", semel_hint(s));
    if (status == SEMEL_OK)
        status = semel_consumer_get(s, name, &now, &err);
    if (status == SEMEL_OK)
        sqlite3_result_text64(context, now.p, now.n, SQLITE_TRANSIENT, SQLITE_UTF8);
    else
        report(context, &err);
}

static void migrate(sqlite3_context *context, int n, sqlite3_value **values)
{
    struct semel_error err = {0};
    int64_t version = 0;
    (void)n;
    (void)values;
    if (ext_migrate(sqlite3_user_data(context), &version, &err) == SEMEL_OK)
        sqlite3_result_int64(context, version);
    else
        report(context, &err);
}

static void version_of_semel(sqlite3_context *context, int n, sqlite3_value **values)
{
    (void)n;
    (void)values;
    sqlite3_result_text(context, semel_version(), -1, SQLITE_STATIC);
}

/* ---- idempotency keys ---------------------------------------------------------------------------- */

static void key_renew(sqlite3_context *context, int n, sqlite3_value **values)
{
    renew(context, "semel_key_renew", n, values, KEY_LEASE_MS, semel_key_renew);
}

static void key_finish(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"token", "status", "headers", "body"};
    const struct ext_args args = {"semel_key_finish", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    struct semel_str headers = {0}, body = {0};
    int64_t token = 0, code = 0;
    semel_status status = enter(context, &args, &s, &err);
    if (status == SEMEL_OK)
        status = ext_arg_token(&args, 0, &token, &err);
    if (status == SEMEL_OK)
        status = ext_arg_int(&args, 1, 200, 599, 0, &code, &err);
    if (status == SEMEL_OK)
        status = ext_arg_json(&args, 2, &headers, &err);
    if (status == SEMEL_OK)
        status = ext_arg_bytes(&args, 3, &body, &err);
    if (status != SEMEL_OK) {
        report(context, &err);
        return;
    }
    const int pending = semel_pending(s);
    status = semel_key_finish(s, token, (int)code, headers, body, &err);
    if (status == SEMEL_FENCED && semel_pending(s) > pending)
        report(context, &err); /* its effect is in this transaction, which cannot commit any more */
    else
        answer(context, status, &err);
}

static void key_fail(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"token", "class", "cause"};
    const struct ext_args args = {"semel_key_fail", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    struct semel_str class = {0}, cause = {0};
    int64_t token = 0;
    semel_status status = enter(context, &args, &s, &err);
    if (status == SEMEL_OK)
        status = ext_arg_token(&args, 0, &token, &err);
    if (status == SEMEL_OK)
        status = ext_arg_text(&args, 1, &class, &err);
    if (status == SEMEL_OK)
        status = ext_arg_text(&args, 2, &cause, &err);
    bool unknown = semel__str_eqz(class, "unknown");
    if (status == SEMEL_OK && !unknown && !semel__str_eqz(class, "released"))
        status = semel__fail(&err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: class must be released or unknown",
                             args.who);
    if (status == SEMEL_OK)
        status = semel_key_fail(s, token, unknown ? SEMEL_KEY_END_UNKNOWN : SEMEL_KEY_END_RELEASED, cause, &err);
    answer(context, status, &err);
}

static const struct ext_function functions[] = {
    {"semel_key_renew", 1, 2, 0, key_renew},
    {"semel_key_finish", 2, 4, 0, key_finish},
    {"semel_key_fail", 2, 3, 0, key_fail},
    {"semel_inbox_done", 2, 4, 0, inbox_done},
    {"semel_inbox_done_many", 2, 2, 0, inbox_done_many},
    {"semel_inbox_renew", 1, 2, 0, inbox_renew},
    {"semel_inbox_finish", 1, 4, 0, inbox_finish},
    {"semel_inbox_release", 1, 1, 0, inbox_release},
    {"semel_tick", 0, 1, 0, tick},
    {"semel_outbox_put", 3, 8, 0, outbox_put},
    {"semel_step_key", 3, 4, SQLITE_DETERMINISTIC, step_key},
    {"semel_consumer", 1, 2, 0, consumer},
    {"semel_migrate", 0, 0, 0, migrate},
    {"semel_version", 0, 0, SQLITE_DETERMINISTIC, version_of_semel},
};
static const int n_functions = EXT_COUNT(functions);

/* ==== the entry point ============================================================================ */

static void unref(struct ext *ext)
{
    if (--ext->refs == 0)
        semel__free(ext);
}

static void function_gone(void *aux)
{
    unref(aux);
}

static void module_gone(void *aux)
{
    unref(((struct ext_module *)aux)->ext);
}

static int add_functions(struct ext *ext)
{
    int rc = SQLITE_OK;
    for (int i = 0; rc == SQLITE_OK && i < n_functions; i++) {
        const struct ext_function *f = &functions[i];
        for (int n = f->min; rc == SQLITE_OK && n <= f->max; n++) {
            ext->refs++;
            rc = sqlite3_create_function_v2(ext->db, f->name, n, SQLITE_UTF8 | SQLITE_DIRECTONLY | f->flags, ext,
                                            f->run, NULL, NULL, function_gone);
        }
    }
    return rc;
}

static int add_tables(struct ext *ext)
{
    int rc = SQLITE_OK;
    for (int i = 0; rc == SQLITE_OK && i < n_tables; i++) {
        ext->modules[i] = (struct ext_module){ext, &tables[i]};
        ext->refs++;
        rc = sqlite3_create_module_v2(ext->db, tables[i].name, &table_module, &ext->modules[i], module_gone);
    }
    return rc;
}

static bool is_loaded(sqlite3 *db)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, "SELECT semel_version()", -1, &stmt, NULL);
    sqlite3_finalize(stmt);
    return rc == SQLITE_OK;
}

static int add_all(sqlite3 *db)
{
    struct ext *ext = semel__calloc(1, sizeof(*ext));
    int rc;
    if (ext == NULL)
        return SQLITE_NOMEM;
    ext->db = db;
    ext->refs = 1;
    rc = add_functions(ext);
    if (rc == SQLITE_OK)
        rc = add_tables(ext);
    unref(ext);
    return rc;
}

__attribute__((visibility("default"))) int sqlite3_semel_init(sqlite3 *db, char **ret_text,
                                                              const sqlite3_api_routines *api);

int sqlite3_semel_init(sqlite3 *db, char **ret_text, const sqlite3_api_routines *api)
{
    if (api->libversion_number() < SQLITE_NEEDED) {
        *ret_text = api->mprintf("semel needs SQLite 3.37.0 or newer; this program has %s", api->libversion());
        return SQLITE_ERROR;
    }
    /* connections of the other SQLite would get this one's functions */
    if (sqlite3_api != NULL && sqlite3_api != api) {
        *ret_text = api->mprintf("semel is loaded into another copy of SQLite in this process already");
        return SQLITE_ERROR;
    }
    SQLITE_EXTENSION_INIT2(api);
    return is_loaded(db) ? SQLITE_OK : add_all(db); /* a begun message must not lose its handle */
}
