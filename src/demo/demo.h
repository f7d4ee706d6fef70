/* SPDX-License-Identifier: MIT
 *
 * demo.h: private to the room of `semel demo`, a storm of payments whose books balance at the end.
 *
 *   demo.c    the command: the storm from beginning to end, its folder, the workers as processes, the live view
 *   storm.c   the producer: payments, copies of a third of them, shuffled
 *   spool.c   the broker: one SQLite file that the processes share
 *   worker.c  a worker: Semel's pump on the broker and the ledger
 *   naive.c   the same without Semel: a handwritten consumer that checks, writes and then marks
 *   books.c   plain SQL without Semel: how far the storm has come, and the books at its end
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
#define DEMO_ACCOUNTS 100

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

/* ---- plain SQL (books.c); err has each failure, with SQLite's message ------------------------------- */

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

/* What makes a payment impossible to book. */
#define DEMO_POISON_MAP(X)           \
    X(NONE, "")                      \
    X(ACCOUNT, "an unknown account") \
    X(AMOUNT, "an amount of zero")   \
    X(TEXT, "a payload that is not JSON")

enum demo_poison {
#define X(name, text) DEMO_POISON_##name,
    DEMO_POISON_MAP(X)
#undef X
};

struct demo_payment {
    int64_t n, made_us, cents;
    int account;
    enum demo_poison poison;
};

/* The content of a message. INVALID, PERMANENT: it is no payment. */
struct demo_order {
    struct semel_str account;
    int64_t cents;
};
semel_status demo_order_read(struct semel_str payload, struct semel_arena *arena, struct demo_order *ret,
                             struct semel_error *err);
/* How many attempts of this payment meet a fault of the environment before one succeeds; 0 for most. */
int demo_faults(int64_t seed, struct semel_str id);

/* ---- the producer ---------------------------------------------------------------------------------------- */

#define DEMO_SEND_MAX 64 /* payments per call */
#define DEMO_NEAR 64     /* how far messages are shuffled */
#define DEMO_FAR 512     /* how many copies are held back for much later */

struct demo_storm {
    struct sqlite3 *sent;
    struct sqlite3_stmt *note;
    struct semel_broker *broker;
    struct semel_random rng;
    int64_t n, pushed; /* payments, and messages with their copies */
    struct demo_payment near[DEMO_NEAR], far[DEMO_FAR], out[2 * DEMO_SEND_MAX];
    size_t n_near, n_far, n_out;
};

bool demo_storm_open(struct demo_storm *storm, const struct demo_settings *set, struct semel_error *err);
void demo_storm_close(struct demo_storm *storm);
/* Makes n payments (at most DEMO_SEND_MAX), records them, and pushes those that the shuffling releases. */
bool demo_storm_send(struct demo_storm *storm, size_t n, struct semel_error *err);
/* Pushes those that are still held back. */
bool demo_storm_flush(struct demo_storm *storm, struct semel_error *err);

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

/* ---- how far it has come --------------------------------------------------------------------------------- */

struct demo_figures {
    int64_t sent, delivered, effects, suppressed, retried, dead, in_broker, unsettled;
    int64_t alive, killed, per_s; /* per_s: deliveries */
};

struct demo_watch {
    struct sqlite3 *store, *broker;
    bool without;
    int64_t floor, below_floor; /* messages up to `floor` are acknowledged, and how often they were delivered in all */
};

bool demo_watch_open(struct demo_watch *watch, const struct demo_settings *set, struct semel_error *err);
void demo_watch_close(struct demo_watch *watch);
bool demo_watch_backlog(struct demo_watch *watch, int64_t *ret, struct semel_error *err);
/* Reads the figures from the databases. */
bool demo_watch_look(struct demo_watch *watch, struct demo_figures *figures, struct semel_error *err);

/* ---- the books ------------------------------------------------------------------------------------------- */

struct demo_books {
    int64_t sent, poison, delivered, effects, suppressed, retried, dead, given_up, killed;
    int64_t lost, doubled;
    int64_t wrong;      /* in the ledger, but with another amount or account, or although it is a dead letter */
    int64_t needless;   /* dead letters that are not poison */
    int64_t strays;     /* ledger lines without a payment */
    int64_t unbalanced; /* accounts that are not the sum of their lines */
    char dead_id[64];   /* one of the dead letters, for trying commands; empty: none */
};

const char *demo_books_query(bool without);
/* Reads everything and writes the query to its file. */
bool demo_books_make(const struct demo_settings *set, struct demo_books *books, struct semel_error *err);
bool demo_books_balance(const struct demo_books *books);
int demo_books_print(struct cli *cli, const struct demo_settings *set, const struct demo_books *books);

#endif
