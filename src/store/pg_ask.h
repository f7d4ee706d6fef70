/* SPDX-License-Identifier: MIT
 *
 * pg_ask.h: statements of handlers whose answers are wanted. For those whose answers are not there is semel__pg_queue.
 *
 * Both functions need an open transaction of the store, end what is queued, and wait no longer than a trip does.
 */
#ifndef SEMEL_STORE_PG_ASK_H
#define SEMEL_STORE_PG_ASK_H

#include "store/pg_store.h"

#define SEMEL_PG_SHAPE_MAX 64

/* A statement that is kept prepared where that is allowed. Zeroed at first; whoever asks keeps one a statement. */
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
    int n_params; /* at most SEMEL_PG_SHAPE_MAX are told */
    unsigned params[SEMEL_PG_SHAPE_MAX];
    int n_columns;
    unsigned first_column;
};
/* INVALID, BROKEN: it cannot be prepared; the text says where. The transaction has failed then. */
semel_status semel__pg_describe(struct semel_store *store, const char *sql, struct semel_pg_shape *ret,
                                struct semel_error *err);

#endif
