/* SPDX-License-Identifier: MIT
 *
 * pg_door.h: what libsemel and the command line need of the PostgreSQL driver besides the contract of a store.
 *
 * A message that is begun in the caller's transaction is held there (the table semel.held) until its end, and a
 * deferred trigger refuses the COMMIT of a transaction that still holds one (P59). The SQL functions hold theirs the
 * same way, so that whichever door began a message, the other may end it.
 */
#ifndef SEMEL_STORE_PG_DOOR_H
#define SEMEL_STORE_PG_DOOR_H

#include "core/store.h"

/* One of ours? Every other function here may be called for these stores only. */
bool semel__pg_is(const struct semel_store *store);

/* Inside the caller's transaction. */
semel_status semel__pg_hold(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                            struct semel_str id, int64_t token, int attempt, struct semel_error *err);
semel_status semel__pg_unhold(struct semel_store *store, int64_t token, struct semel_error *err);
/* An end under this token was refused: the same trigger refuses the COMMIT (P80). */
semel_status semel__pg_hold_back(struct semel_store *store, int64_t token, struct semel_error *err);

/* "PostgreSQL 15.6", and what a person should know of its durability. */
void semel__pg_about(struct semel_store *store, char *out, size_t size);
/* "libpq 15.6". */
void semel__pg_client(char *out, size_t size);

#endif
