/* SPDX-License-Identifier: MIT
 *
 * sql.h: the handler `sql`: one statement of the user's own, run inside the transaction of the inbox.
 *
 * Two forms, chosen per route. EACH: one statement per message, with $1, $2 ... taken from the message. SET: one
 * statement for many messages, in which each $n is an array to unnest, and which returns the id of every message that
 * it has handled: core rolls back and splits when an id is missing, repeated or unknown (P57), and on an ordered
 * route gives each key at most once per statement. SET needs PostgreSQL.
 *
 * A value is taken by a rule:
 *   id, source, type, order_key, version, time, position, traceparent    fields of the message
 *   digest          SHA-256 of the payload, in hexadecimal
 *   header:NAME     a header; `headers` is all of them, as a JSON object
 *   json:/POINTER   from the payload: a string without its quotes, anything else as JSON has it
 *   body            the payload as text; `bytes` is the same as bytes (bytea, BLOB)
 * A value that is not there, or is null in JSON, fails its message permanently; with `optional:` before the rule it is
 * NULL. Values are never put into the statement's text.
 *
 * Invariants: the statement is exactly one, and begins with SELECT, INSERT, UPDATE, DELETE, MERGE, WITH or CALL, so
 * that none ends the transaction (P58); errors in a description are reported when the handler is made, as far as the
 * database can know them. A handler belongs to the thread of its store.
 */
#ifndef SEMEL_HANDLER_SQL_H
#define SEMEL_HANDLER_SQL_H

#include "core/inbox.h"

#define SEMEL_SQL_TEXT_MAX 65536 /* bytes of a statement */
#define SEMEL_SQL_VALUES_MAX 64

enum semel_sql_mode { SEMEL_SQL_EACH, SEMEL_SQL_SET };
enum semel_sql_dialect { SEMEL_SQL_POSTGRES, SEMEL_SQL_SQLITE };

struct semel_sql_desc {
    struct semel_str statement;
    enum semel_sql_mode mode;
    const struct semel_str *values; /* rules; the first is $1 */
    size_t n_values;
    bool ordered; /* the route keeps the order of keys: two messages of one key are never in one statement */
};

struct semel_sql;

/* One rule of `values`, the i-th from 0, by itself. */
semel_status semel__sql_check_value(struct semel_str rule, size_t i, struct semel_error *err);
/* The checks that need no database. INVALID, BROKEN has what is wrong, where, and what would be right. */
semel_status semel__sql_check(const struct semel_sql_desc *desc, enum semel_sql_dialect dialect,
                              struct semel_error *err);

/* Copies the description. The store, which must have no transaction open, prepares and describes the statement and does
 * not run it. INVALID, BROKEN: the description is wrong, or the store has no SQL. Other statuses are failures of the
 * environment. */
semel_status semel__sql_handler_new(struct semel_sql **ret, const struct semel_sql_desc *desc,
                                    struct semel_store *store, struct semel_error *err);
/* After the last call of its handler; before or after the store is closed. */
void semel__sql_handler_free(struct semel_sql *sql);
/* For semel__inbox_init; lives as long as `sql`. Any store of the same kind and database may run it. */
const struct semel__handler *semel__sql_handler(const struct semel_sql *sql);
/* Runs a set as its handler does, for callers that count the ids themselves: inside an open transaction. */
typedef void (*semel_sql_name)(void *ctx, struct semel_str source, struct semel_str id);
semel_status semel__sql_run_set(struct semel_sql *sql, struct semel_store *store, const struct semel__msg *const *msgs,
                                size_t n, semel_sql_name name, void *ctx, struct semel_error *err);

#endif
