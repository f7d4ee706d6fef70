/* SPDX-License-Identifier: MIT
 *
 * sqlite_store.h: the SQLite driver as other rooms see it. No client header is needed to include it.
 *
 * Invariants: at most one connection of its own per process and file (P26); a handle opened before
 * fork() is dead in the child, which opens its own.
 */
#ifndef SEMEL_STORE_SQLITE_STORE_H
#define SEMEL_STORE_SQLITE_STORE_H

#include "core/store.h"

struct sqlite3;

/* sqlite:/path/to/file.db, sqlite:relative.db or sqlite::memory: (which nothing outlives). */
extern const struct semel_store_ops semel__store_sqlite;

/* A store on the caller's own connection, which stays the caller's: its pragmas, hooks and busy handler are
 * not touched, and closing the store does not close it. Its durability is what the caller's settings give.
 * begin(OWN) is refused inside an open transaction, begin(JOIN) outside of one. options: NULL for the defaults. */
semel_status semel__store_sqlite_wrap(struct semel_store **ret, struct sqlite3 *db,
                                      const struct semel_store_options *options, struct semel_error *err);

/* The witness is asked before a transaction on this connection commits, and called when one has ended. If `may_commit`
 * returns false the COMMIT is a rollback; neither may touch the connection. On a wrapped handle the witness has the
 * connection's commit and rollback hooks until the store is closed; a transaction that it would refuse then stays
 * refused. NULL: no witness. INVALID: another store has the hooks of the connection. */
struct semel_sqlite_witness {
    void *ctx;
    bool (*may_commit)(void *ctx);
    void (*ended)(void *ctx); /* rolled back, or committed */
};
semel_status semel__sqlite_witness(struct semel_store *store, const struct semel_sqlite_witness *witness,
                                   struct semel_error *err);

/* Told of the savepoints of one connection, in a transaction that has called semel__sqlite_watch. Stays where it is. */
struct semel_sqlite_watch {
    void *ctx;
    bool (*saved)(void *ctx, int number);  /* the savepoint of this number, from 0, is set; false: no memory */
    void (*undone)(void *ctx, int number); /* what was done since then; -1: in the whole transaction */
    bool on;                               /* in the open transaction */
    struct sqlite3 *db;                    /* the rest is the driver's */
    struct semel_sqlite_link *link;
};
/* Begins to write. From here to the end of the transaction the watch is told; savepoints that were set before may be
 * undone, too. RETRY, INVALID: as other begins. */
semel_status semel__sqlite_watch(struct semel_sqlite_watch *watch, struct sqlite3 *db, struct semel_error *err);
void semel__sqlite_unwatch(struct semel_sqlite_watch *watch);

/* What a result code means, for handlers' statements as for the driver's. `rc` is what the failed call
 * returned, `doing` names it ("handler"). Writes err and returns its status. The text never has values (P71). */
semel_status semel__sqlite_fail(struct sqlite3 *db, int rc, const char *doing, struct semel_error *err);

/* The version of SQLite in use, and what the daemon's log should say of it at the start (P26). */
int semel__sqlite_version(void);
void semel__sqlite_about(int version, char *out, size_t size);
/* The size of the write-ahead log (P25); SEMEL_NONE: there is none, or the handle is the caller's own. */
int64_t semel__sqlite_wal_bytes(struct semel_store *store);

#endif
