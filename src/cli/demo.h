/* SPDX-License-Identifier: MIT
 *
 * demo.h: private to the files of `semel demo`, a storm of payments whose books balance at the end.
 *
 *   demo.c         the command: the storm from beginning to end, what is said
 *   demo_folder.c  where it happens
 *   demo_storm.c   the producer: payments, copies of a third of them, shuffled
 *   demo_fleet.c   the workers as processes: started, killed, replaced, stopped
 *   demo_worker.c  what a worker does: Semel's pump on the broker and the ledger
 *   demo_naive.c   the same without Semel: the consumer that checks, writes and then marks, as written by hand
 *   demo_watch.c   how far it has come: counts for the view, and whether everything is settled
 *   demo_view.c    the live view on a terminal, lines elsewhere
 *   demo_books.c   the books: plain SQL on plain connections, with none of Semel in between
 *
 * Everything happens in one folder, which the command makes its working directory: all names below are relative.
 *
 * Invariants: the payments, their copies and their order follow from the seed alone. No worker outlives the command,
 * however the command ends. Nothing that Semel has written is asked whether an effect is there: the ledger is.
 */
#ifndef SEMEL_CLI_DEMO_H
#define SEMEL_CLI_DEMO_H

#include <sys/types.h>

#include "base/random.h"
#include "cli/cli.h"
#include "core/broker.h"

struct sqlite3;
struct sqlite3_stmt;

#define DEMO_WORKERS_MAX 16
#define DEMO_CONSUMER "payments"
#define DEMO_SOURCE "shop"
#define DEMO_LOG "workers.log"
#define DEMO_ACCOUNTS 100

/* The files of one kind of run; those of the other kind in the same folder are left alone. */
struct demo_files {
    const char *store, *broker, *sent, *books;
};
extern const struct demo_files demo_files_with, demo_files_without;

struct demo_settings {
    int64_t seconds, workers, seed;
    bool without; /* the hand-written consumer instead of Semel */
    const char *dir;
    const struct demo_files *files;
};

/* ---- the folder ------------------------------------------------------------------------------------------ */

/* Makes or takes over the folder, goes into it, locks it and clears what this kind of run will write. An exit code. */
int demo_folder_enter(const struct demo_settings *set, int *ret_lock_fd);
bool demo_folder_here(void); /* the working directory is a demo's */

/* ---- plain SQL (demo_books.c); each failure is said in err, with what SQLite says ------------------------ */

enum demo_mode {
    DEMO_CREATE, /* made when it is not there */
    DEMO_WATCH,  /* reads only; leaves the write-ahead log to others */
    DEMO_READ    /* reads only, when nobody else is there; closing puts the file in order */
};
bool demo_db_open(const char *path, enum demo_mode mode, struct sqlite3 **ret, struct semel_error *err);
void demo_db_close(struct sqlite3 *db);
bool demo_db_exec(struct sqlite3 *db, const char *sql, struct semel_error *err);
/* The first column of the first row; no row or NULL: 0. */
bool demo_db_number(struct sqlite3 *db, const char *sql, int64_t *ret, struct semel_error *err);
bool demo_db_failed(struct sqlite3 *db, const char *doing, struct semel_error *err); /* always false */

/* ---- payments -------------------------------------------------------------------------------------------- */

/* What makes a payment one that nobody can book. */
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

#define DEMO_ID_TEXT 32
#define DEMO_ACCOUNT_TEXT 32
void demo_payment_id(const struct demo_payment *payment, char out[DEMO_ID_TEXT]);
void demo_payment_account(const struct demo_payment *payment, char out[DEMO_ACCOUNT_TEXT]);
/* What a worker finds in a message. INVALID, PERMANENT: it is no payment. */
struct demo_order {
    struct semel_str account;
    int64_t cents;
};
semel_status demo_order_read(struct semel_str payload, struct semel_arena *arena, struct demo_order *ret,
                             struct semel_error *err);
/* How many attempts at this payment meet a fault of the world before one goes through; 0 for most. */
int demo_faults(int64_t seed, struct semel_str id);

/* ---- the producer ---------------------------------------------------------------------------------------- */

#define DEMO_SEND_MAX 64 /* payments a call */
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
/* Makes n payments (at most DEMO_SEND_MAX), writes them down, and pushes what the shuffling lets go. */
bool demo_storm_send(struct demo_storm *storm, size_t n, struct semel_error *err);
/* Pushes what is still held back. */
bool demo_storm_flush(struct demo_storm *storm, struct semel_error *err);

/* ---- the workers ----------------------------------------------------------------------------------------- */

struct demo_fleet {
    const struct demo_settings *set;
    pid_t pids[DEMO_WORKERS_MAX]; /* 0: none */
    int n, log_fd;
    int64_t started, killed;
};

bool demo_fleet_open(struct demo_fleet *fleet, const struct demo_settings *set, struct semel_error *err);
bool demo_fleet_start(struct demo_fleet *fleet, struct semel_error *err); /* fills the free places */
/* SIGKILL; its place is free then. false: it had ended by itself before. */
bool demo_fleet_kill(struct demo_fleet *fleet, int i, struct semel_error *err);
int demo_fleet_alive(const struct demo_fleet *fleet);
bool demo_fleet_check(struct demo_fleet *fleet, struct semel_error *err); /* false: one has ended by itself */
bool demo_fleet_stop(struct demo_fleet *fleet, struct semel_error *err);  /* SIGTERM; false: one did not end well */
void demo_fleet_close(struct demo_fleet *fleet);                          /* kills what is left and waits for it */

/* The bodies of a worker process; both return its exit status, and end in peace on SIGTERM. */
int demo_worker_run(int64_t seed, int64_t number);
int demo_naive_run(int64_t seed, int64_t number);
void demo_worker_listen(void); /* for SIGTERM */
bool demo_worker_told(void);   /* it has come */
semel_status demo_broker_open(struct semel_broker **ret, const char *file, struct semel_error *err);

/* The stores before the first worker starts: tables, accounts, and Semel's settings of the consumer. */
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
    int64_t floor, below_floor; /* messages up to `floor` are acknowledged, and were delivered so often in all */
};

bool demo_watch_open(struct demo_watch *watch, const struct demo_settings *set, struct semel_error *err);
void demo_watch_close(struct demo_watch *watch);
bool demo_watch_backlog(struct demo_watch *watch, int64_t *ret, struct semel_error *err);
/* Fills what the databases know. */
bool demo_watch_look(struct demo_watch *watch, struct demo_figures *figures, struct semel_error *err);

struct demo_view {
    bool silent, redraw;
    int lines; /* drawn before, to be drawn over */
    int64_t next_us;
};

void demo_view_init(struct demo_view *view, const struct cli *cli, int64_t now_us);
bool demo_view_due(const struct demo_view *view, int64_t now_us);
/* `phase` is what is going on, `part_s` how long of `whole_s` (0: open end). */
void demo_view_show(struct demo_view *view, const struct demo_figures *figures, const char *phase, int64_t part_s,
                    int64_t whole_s, int64_t now_us);
#define DEMO_NUMBER_TEXT 32
void demo_number(int64_t value, char out[DEMO_NUMBER_TEXT]); /* 12,031 */

/* ---- the books ------------------------------------------------------------------------------------------- */

struct demo_books {
    int64_t sent, poison, delivered, effects, suppressed, retried, dead, given_up, killed;
    int64_t lost, doubled;
    int64_t wrong;      /* in the ledger, but with another amount or account, or although dead-lettered */
    int64_t needless;   /* dead-lettered, but no poison */
    int64_t strays;     /* lines of the ledger that nobody has sent */
    int64_t unbalanced; /* accounts that are not the sum of their lines */
    char dead_id[64];   /* one of the dead, for trying things out; empty: none */
};

const char *demo_books_query(bool without);
/* Reads everything and writes the query to its file. */
bool demo_books_make(const struct demo_settings *set, struct demo_books *books, struct semel_error *err);
bool demo_books_balance(const struct demo_books *books);
int demo_books_print(struct cli *cli, const struct demo_settings *set, const struct demo_books *books);

#endif
