/* SPDX-License-Identifier: MIT
 *
 * sql_private.h: private to the files of the handler `sql`.
 *
 *   sql.c         the handler: made, run, freed; the values of a message
 *   sql_text.c    what can be seen of a statement without a database
 *   sql_pg.c      PostgreSQL: described, queued, or asked in sets
 *   sql_array.c   values of many messages as one array of PostgreSQL
 *   sql_sqlite.c  SQLite: prepared, bound, stepped
 */
#ifndef SEMEL_HANDLER_SQL_PRIVATE_H
#define SEMEL_HANDLER_SQL_PRIVATE_H

#include "base/error.h"
#include "base/str.h"
#include "handler/sql.h"

/* ---- sql_text.c ---- */

enum sql_word { SQL_SELECT, SQL_INSERT, SQL_UPDATE, SQL_DELETE, SQL_MERGE, SQL_WITH, SQL_CALL, SQL_WORDS };

struct sql_shape {
    enum sql_word word;
    int n_params;  /* the highest $n */
    uint64_t used; /* bit n-1: $n occurs */
};
/* INVALID, BROKEN: it is not one statement of an allowed kind; the text has the place. */
semel_status semel__sql_scan(struct semel_str text, enum semel_sql_dialect dialect, struct sql_shape *ret,
                             struct semel_error *err);

/* ---- sql.c ---- */

enum sql_field {
    SQL_FIELD_ID,
    SQL_FIELD_SOURCE,
    SQL_FIELD_TYPE,
    SQL_FIELD_ORDER_KEY,
    SQL_FIELD_VERSION,
    SQL_FIELD_TIME,
    SQL_FIELD_POSITION,
    SQL_FIELD_TRACEPARENT,
    SQL_FIELD_DIGEST,
    SQL_FIELD_HEADERS,
    SQL_FIELD_BODY,
    SQL_FIELD_BYTES,
    SQL_FIELD_HEADER, /* those below have a name */
    SQL_FIELD_JSON
};

struct sql_rule {
    enum sql_field field;
    bool optional;
    struct semel_str name; /* of a header; a pointer */
    struct semel_str text; /* as it was written */
};

enum sql_kind { SQL_NULL, SQL_TEXT, SQL_INTEGER, SQL_REAL, SQL_BOOLEAN, SQL_BYTES };

/* `text` is UTF-8 without NUL, also for a number or a boolean, unless the kind is BYTES; borrowed from the message or
 * in the arena, and not NUL-terminated. */
struct sql_value {
    enum sql_kind kind;
    struct semel_str text;
};

/* ---- the handler and its backend ----------- */

struct sql_backend;

struct semel_sql {
    struct semel__handler handler;
    const struct sql_backend *backend;
    void *state; /* the backend's */
    enum semel_sql_mode mode;
    bool ordered;
    const char *text; /* ended by a NUL */
    struct sql_rule rules[SEMEL_SQL_VALUES_MAX];
    size_t n;
    struct semel_arena own;     /* what was copied from the description */
    struct semel_arena scratch; /* lives as long as one statement */
};

/* Where a set reports the messages that it has handled. */
struct sql_names {
    semel_sql_name add;
    void *ctx;
};

struct sql_backend {
    enum semel_sql_dialect dialect;
    /* Lets the database check the statement. Sets `state`, which `done` frees. */
    semel_status (*check)(struct semel_sql *sql, struct semel_store *store, struct semel_error *err);
    void (*done)(struct semel_sql *sql);
    semel_status (*each)(struct semel_sql *sql, struct semel_store *store, const struct sql_value *values,
                         struct semel_error *err);
    /* values: those of the first message, of the second and so on; all messages are of one source. NULL: the backend
     * has no sets. */
    semel_status (*set)(struct semel_sql *sql, struct semel_store *store, struct semel_str source,
                        const struct sql_value *values, size_t n, const struct sql_names *names,
                        struct semel_error *err);
};

extern const struct sql_backend semel__sql_pg, semel__sql_sqlite;

/* ---- sql_array.c ---- */

struct sql_array {
    unsigned type;  /* Oid of an element; 0: not known */
    char delimiter; /* between elements, as text */
    struct semel_buf bytes;
    bool binary;
};
/* The k-th of every `step` values, n in all. false: buf.full tells whether it was too large or memory failed. */
bool semel__sql_array(struct sql_array *array, const struct sql_value *values, size_t step, size_t n);

#endif
