/* SPDX-License-Identifier: MIT
 *
 * ext.h: private to the files of the loadable extension.
 *
 *   semel_ext.c  the entry point; the one handle of a connection, made at first use and closed in time
 *   ext_args.c   SQL values as arguments, hostile until read
 *   ext_table.c  what all table-valued functions share: the eponymous virtual table
 *   ext_inbox.c  the table-valued functions: begin, fail, claim, put, take
 *   ext_func.c   the scalar functions
 *
 * Invariants: the engine is reached through semel/semel.h alone; SQLite through the table of functions that the host
 * gave (sqlite3ext.h), and only through those that SQLite 3.37 has. Nothing writes outside a transaction of the
 * caller's, but semel_migrate(). No call is made twice for one scan.
 */
#ifndef SEMEL_EXT_EXT_H
#define SEMEL_EXT_EXT_H

#include <sqlite3ext.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/str.h"
#include "semel/semel.h"

#define EXT_ARGS_MAX 16
#define EXT_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

struct ext;

/* ---- semel_ext.c: the connection's state ---- */

/* INVALID outside a transaction, or while another statement is in the middle of writing. `who` asks. */
semel_status semel__ext_writable(struct ext *ext, const char *who, struct semel_error *err);
/* The handle, made when there is none yet. INVALID: the tables are not there, and how to get them. */
semel_status semel__ext_handle(struct ext *ext, struct semel **ret, struct semel_error *err);
/* Brings the tables up to date, outside a transaction only. */
semel_status semel__ext_migrate(struct ext *ext, int64_t *ret_version, struct semel_error *err);
/* A table-valued function was connected, or disconnected: after the last one the handle is closed. */
void semel__ext_hold(struct ext *ext);
void semel__ext_let_go(struct ext *ext);
sqlite3 *semel__ext_db(const struct ext *ext);
/* What SQLite is to be told: contention is SQLITE_BUSY, lack of memory SQLITE_NOMEM, a wrong call SQLITE_ERROR. */
int semel__ext_code(const struct semel_error *err);

/* ---- ext_args.c: arguments ---- */

/* Arguments by position. A value that is NULL, or a pointer that is NULL, is "not given". */
struct ext_args {
    const char *who; /* the function, for errors */
    const char *const *names;
    sqlite3_value *const *values;
    int n; /* what lies beyond is not given */
};

semel_status semel__ext_missing(const struct ext_args *args, int i, struct semel_error *err);
/* Text; a whole number counts as its digits. The bytes live as long as the value. */
semel_status semel__ext_text(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err);
/* The same, required, and without NUL in it. */
semel_status semel__ext_name(const struct ext_args *args, int i, const char **ret, struct semel_error *err);
/* Text that is one JSON value. */
semel_status semel__ext_json(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err);
/* Any bytes: a BLOB, or the bytes of a text. */
semel_status semel__ext_bytes(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err);
/* At most one of the two: JSON text at i, any bytes at i + 1. */
semel_status semel__ext_payload(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err);
/* A whole number within bounds; `otherwise` where it is not given. */
semel_status semel__ext_int(const struct ext_args *args, int i, int64_t min, int64_t max, int64_t otherwise,
                            int64_t *ret, struct semel_error *err);
semel_status semel__ext_token(const struct ext_args *args, int i, int64_t *ret, struct semel_error *err);
/* '90s' or a number of seconds; 0 where it is not given: the consumer's own. */
semel_status semel__ext_lease_ms(const struct ext_args *args, int i, int64_t *ret_ms, struct semel_error *err);
/* Microseconds, or RFC 3339 text. */
semel_status semel__ext_time(const struct ext_args *args, int i, int64_t *ret_us, struct semel_error *err);
/* done, transient, permanent, rejected, unknown (or maybe). `otherwise` where it is not given. */
semel_status semel__ext_class(const struct ext_args *args, int i, enum semel_result otherwise, enum semel_result *ret,
                              struct semel_error *err);
semel_status semel__ext_is_json(struct semel_str text, bool *ret); /* RETRY: no memory */

/* ---- ext_table.c: table-valued functions ---- */

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

/* Makes room for n rows. false: no memory. */
bool semel__ext_room(struct ext_call *call, size_t n);
/* The next row, to be filled from column 0 on; NULL: there is no room. */
struct ext_cell *semel__ext_row(struct ext_call *call);
void semel__ext_put_int(struct ext_cell *cell, int64_t number); /* SEMEL_NONE: NULL */
/* Copied to the call's arena; not given: NULL. Lack of memory is noted in the call. */
void semel__ext_put(struct ext_call *call, struct ext_cell *cell, struct semel_str bytes, bool blob);

/* What the modules are registered with: `aux` of each. */
struct ext_module {
    struct ext *ext;
    const struct ext_table *table;
};
extern const sqlite3_module semel__ext_table_module;

/* ---- ext_inbox.c and ext_func.c: what there is ---- */

extern const struct ext_table semel__ext_tables[];
extern const int semel__ext_n_tables;
#define EXT_TABLES_MAX 5

struct ext_function {
    const char *name;
    int min, max; /* arguments */
    int flags;
    void (*run)(sqlite3_context *context, int n, sqlite3_value **values);
};
extern const struct ext_function semel__ext_functions[];
extern const int semel__ext_n_functions;

#endif
