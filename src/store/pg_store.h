/* SPDX-License-Identifier: MIT
 *
 * pg_store.h: the PostgreSQL driver as other rooms see it. No client header is needed to include it: PGconn is
 * `struct pg_conn`, PGresult is `struct pg_result`.
 *
 * A URL is libpq's own, postgres://user@host:5432/database?sslmode=verify-full, or its keywords after the scheme,
 * postgres:host=/run/postgresql dbname=shop. Passwords, TLS and services are as libpq does them. One more parameter is
 * ours and is taken out before libpq sees it:
 *   semel_pooler=1   the server is reached through a transaction pooler: no named statements, no session state (P17)
 *
 * Invariants: a handle opened before fork() is dead in the child, which opens its own; no wait is without an end.
 */
#ifndef SEMEL_STORE_PG_STORE_H
#define SEMEL_STORE_PG_STORE_H

#include "core/store.h"

struct pg_conn;
struct pg_result;

/* The same driver under the two schemes that libpq knows. */
extern const struct semel_store_ops semel__store_postgres, semel__store_postgresql;

/* A store on the caller's own connection, which stays the caller's: closing the store does not close it, and nothing of
 * its session is changed. It must be idle or in a transaction, not in pipeline mode and with no result left to be read.
 * begin(OWN) is refused inside an open transaction, begin(JOIN) outside of one; a joined one may have any isolation
 * level, and the caller's time-outs hold in it. Its notices go to the caller, so that here a COMMIT whose wait for a
 * standby was cancelled (P16) is not noticed. options: NULL for the defaults. */
semel_status semel__store_pg_wrap(struct semel_store **ret, struct pg_conn *conn,
                                  const struct semel_store_options *options, struct semel_error *err);

/* A SQLSTATE as a number, as err->code has it. */
#define SEMEL_SQLSTATE(a, b, c, d, e)                                                    \
    ((((a) - '0') & 0x3F) + ((((b) - '0') & 0x3F) << 6) + ((((c) - '0') & 0x3F) << 12) + \
     ((((d) - '0') & 0x3F) << 18) + ((((e) - '0') & 0x3F) << 24))

/* What a failed statement of a handler means. `result` may be NULL (none was to be had). Writes err and returns its
 * status. The text has the SQLSTATE, the primary message and the constraint, and never a value (P71). */
semel_status semel__pg_fail(struct pg_conn *conn, const struct pg_result *result, const char *doing,
                            struct semel_error *err);

/* A statement of a handler and its parameters, as for PQexecParams; each array may be NULL. */
struct semel_pg_statement {
    /* One that reads or writes data: SELECT, INSERT, UPDATE, DELETE, MERGE, WITH, VALUES, TABLE, CALL or DO. */
    const char *sql;
    int n;                     /* parameters */
    const unsigned *types;     /* Oid */
    const char *const *values; /* NULL: null */
    const int *lengths, *formats;
};

/* Sends it without waiting for the answer; a text that comes again is prepared only once. Rows that it returns are
 * dropped. What is wrong with it is told by the store's collect, with store->tag of this moment. Until then the native
 * handle is in pipeline mode. INVALID, PERMANENT: not a statement of an allowed kind (P58). */
semel_status semel__pg_queue(struct semel_store *store, const struct semel_pg_statement *statement,
                             struct semel_error *err);

/* Whether a connection by this URL, as the environment and a service complete it, could be answered by another server
 * than the one that is meant: it goes to another host, and no certificate is checked (sslmode). What is no URL is not.
 */
bool semel__pg_exposed(const char *url);
/* The same, but that is not asked for: the URL itself has no sslmode. */
bool semel__pg_exposed_unasked(const char *url);

/* How many round trips this handle has made; for a benchmark. */
int64_t semel__pg_trips(struct semel_store *store);

#endif
