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

/* One of ours? The functions below may be called for these stores only. */
bool semel__pg_is(const struct semel_store *store);

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
 * dropped. The store's collect reports what is wrong with it, with store->tag of this moment. Until then the native
 * handle is in pipeline mode. INVALID, PERMANENT: not a statement of an allowed kind (P58). */
semel_status semel__pg_queue(struct semel_store *store, const struct semel_pg_statement *statement,
                             struct semel_error *err);

/* Statements of handlers whose answers are wanted. Both functions need an open transaction of the store, end what is
 * queued, and wait no longer than a trip does. */
#define SEMEL_PG_SHAPE_MAX 64

/* A statement that is kept prepared where that is allowed. Zeroed at first; the caller keeps one per statement. */
struct semel_pg_kept {
    const void *conn;
    int backend;
    bool ready;
    char name[40];
};

/* Runs it and gives its answer, as text, to be freed by PQclear. `kept` may be NULL. RETRY, TRANSIENT: what was
 * prepared is gone or does not fit any more, and the next call prepares it anew. Any other failure is the handler's
 * (semel__pg_fail). */
semel_status semel__pg_ask(struct semel_store *store, const struct semel_pg_statement *statement,
                           struct semel_pg_kept *kept, struct pg_result **ret, struct semel_error *err);

/* What a statement takes and gives, as the server understands it, without running it. */
struct semel_pg_shape {
    int n_params; /* `params` has at most SEMEL_PG_SHAPE_MAX of them */
    unsigned params[SEMEL_PG_SHAPE_MAX];
    int n_columns;
    unsigned first_column;
};
/* INVALID, BROKEN: it cannot be prepared; the text says where. The transaction has failed then. */
semel_status semel__pg_describe(struct semel_store *store, const char *sql, struct semel_pg_shape *ret,
                                struct semel_error *err);

/* Whether a connection by this URL, as the environment and a service complete it, could be answered by another server
 * than the intended one: it goes to another host, and no certificate is checked (sslmode). as_asked: an sslmode in the
 * URL itself is accepted, whatever it is. A text that is no URL is not exposed. */
bool semel__pg_exposed(const char *url, bool as_asked);

/* ---- in the caller's transaction ---------------------------------------------------------------- */

/* A message that is begun in the caller's transaction is held there (the table semel.held) until its end, and a
 * deferred trigger refuses the COMMIT of a transaction that still holds one (P59). The SQL functions hold theirs the
 * same way, so that whichever of the two began a message, the other may end it. */
semel_status semel__pg_hold(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                            struct semel_str id, int64_t token, int attempt, struct semel_error *err);
semel_status semel__pg_unhold(struct semel_store *store, int64_t token, struct semel_error *err);
/* An end under this token was refused: the same trigger refuses the COMMIT (P80). */
semel_status semel__pg_hold_back(struct semel_store *store, int64_t token, struct semel_error *err);

/* ---- checks and notes, for people ----------------------------------------------------------- */

/* "PostgreSQL 15.6", and what a person should know of its durability. */
void semel__pg_about(struct semel_store *store, char *out, size_t size);
/* "libpq 15.6". */
void semel__pg_client(char *out, size_t size);

/* Has this role the privileges that a consumer needs, and would its commits be durable? For `semel check`, before
 * anything is tried. Neither function changes anything. */
struct semel_pg_rights {
    char role[128];       /* as which we are connected */
    char missing[512];    /* "DELETE on semel.inbox, USAGE on semel.arrival", possibly cut; "": nothing is */
    bool unsafe;          /* synchronous_commit is off: no transaction will begin (P72) */
    bool fsync_off;       /* a power failure can lose or damage everything */
    bool public_writable; /* everybody may create in the schema public (P85) */
};

/* What the role needs besides. */
struct semel_pg_needs {
    bool positions; /* the place in the source is kept there, too */
    bool relays;    /* it relays the outbox */
    bool gateways;  /* it keeps idempotency keys */
};

/* On an open store of PostgreSQL, outside of a transaction. */
semel_status semel__pg_rights(struct semel_store *store, const struct semel_pg_needs *needs,
                              struct semel_pg_rights *ret, struct semel_error *err);

/* What the numbers of the outbox rest on. */
struct semel_pg_outbox {
    int64_t last, highest; /* the number that was drawn last; that of the table */
    int64_t cache;         /* numbers that a session draws ahead; 1: none */
    bool descends;         /* it counts down, or starts anew at its end */
    bool notifies;         /* a trigger sends notifications */
};
semel_status semel__pg_outbox(struct semel_store *store, struct semel_pg_outbox *ret, struct semel_error *err);

/* The same for a statement of a handler with n parameters: it is planned, which looks at the rights, and not run. An
 * error whose code is SEMEL_PG_DENIED names what the role may not touch; any other says only that it cannot be known (a
 * CALL is not planned). */
semel_status semel__pg_may_run(struct semel_store *store, struct semel_str statement, size_t n,
                               struct semel_error *err);

#define SEMEL_PG_DENIED SEMEL_SQLSTATE('4', '2', '5', '0', '1')

/* ---- notifications of the outbox (sql/postgres/notify.sql) --------------------------------------- */

/* For a store that does nothing else, on a connection of its own. INVALID: it is behind a transaction pooler. */
semel_status semel__pg_listen(struct semel_store *store, struct semel_error *err);
/* *ret: a notification came. CLOSED: the connection is gone. */
semel_status semel__pg_hear(struct semel_store *store, int wait_ms, bool *ret, struct semel_error *err);
/* Sends one. Outside of a transaction. */
semel_status semel__pg_ring(struct semel_store *store, struct semel_error *err);

/* How many round trips this handle has made; for a benchmark. */
int64_t semel__pg_trips(struct semel_store *store);

#endif
