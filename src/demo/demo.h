/* SPDX-License-Identifier: MIT
 *
 * demo.h: private to the room of `semel demo`, a storm of payments whose books balance at the end.
 *
 *   demo.c    the command: the producer, its folder, the workers as processes, the live view, the books
 *   spool.c   the broker: one SQLite file that the processes share
 *   worker.c  a worker: Semel's pump on the broker and the ledger
 *   naive.c   the same without Semel: a handwritten consumer that checks, writes and then marks
 *
 * Everything happens in one folder, which the command makes its working directory: all names below are relative.
 *
 * Invariants: the payments, their copies and their order follow from the seed alone. No worker outlives the command,
 * however the command ends. The books never ask Semel's own tables whether an effect happened: they read the ledger.
 */
#ifndef SEMEL_DEMO_DEMO_H
#define SEMEL_DEMO_DEMO_H

#include <sys/types.h>

#include "base/random.h"
#include "cli/cli.h"
#include "core/broker.h"

struct sqlite3;
struct sqlite3_stmt;

#define DEMO_CONSUMER "payments"
#define DEMO_SOURCE "shop"

/* The files of one kind of run; those of the other kind in the same folder are left alone. */
struct demo_files {
    const char *store, *broker, *sent, *books;
};
extern const struct demo_files demo_files_with, demo_files_without;

struct demo_settings {
    int64_t seconds, workers, seed;
    bool without; /* use the handwritten consumer instead of Semel */
    const char *dir;
    const struct demo_files *files;
};

/* ---- plain SQL; err has each failure, with SQLite's message ------------------------------- */

enum demo_mode {
    DEMO_CREATE, /* created when missing */
    DEMO_WATCH,  /* reads only; leaves the write-ahead log to others */
    DEMO_READ    /* reads only, when nobody else has it open; closing checkpoints the file */
};
bool demo_db_open(const char *path, enum demo_mode mode, struct sqlite3 **ret, struct semel_error *err);
void demo_db_close(struct sqlite3 *db);
bool demo_db_exec(struct sqlite3 *db, const char *sql, struct semel_error *err);
bool demo_db_failed(struct sqlite3 *db, const char *doing, struct semel_error *err); /* always false */

/* ---- payments -------------------------------------------------------------------------------------------- */

/* The content of a message. INVALID, PERMANENT: it is no payment. */
struct demo_order {
    struct semel_str account;
    int64_t cents;
};
semel_status demo_order_read(struct semel_str payload, struct semel_arena *arena, struct demo_order *ret,
                             struct semel_error *err);
/* How many attempts of this payment meet a fault of the environment before one succeeds; 0 for most. */
int demo_faults(int64_t seed, struct semel_str id);

/* ---- a worker ----------------------------------------------------------------------------------------- */

/* The main functions of a worker process; both return its exit status, and end cleanly on SIGTERM. */
int demo_worker_run(int64_t seed, int64_t number);
int demo_naive_run(int64_t seed, int64_t number);
void demo_worker_listen(void);   /* for SIGTERM */
bool demo_worker_stopping(void); /* it was received */
semel_status demo_broker_open(struct semel_broker **ret, const char *file, struct semel_error *err);

/* Prepares the stores before the first worker starts: tables, accounts, and the consumer's settings. */
extern const char demo_business_schema[];
bool demo_worker_prepare(struct semel_error *err);
bool demo_naive_prepare(struct semel_error *err);

#endif
