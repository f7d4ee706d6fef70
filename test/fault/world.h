/* SPDX-License-Identifier: MIT
 *
 * world.h: what the process tests stand on: a private folder, messages that were sent, workers as real processes, and
 * books that are checked without asking Semel.
 *
 * The path of the worker program is argv[1] of the test, else SEMEL_TEST_WORKER; argv[2] is the store, `sqlite` unless
 * it is given, or `postgres`: then one private server serves all worlds of the program. No connection to the databases
 * stays open in the test itself, so the death of the last worker is the death of the last user of the file. Waiting is
 * for a condition, with a deadline after which the test fails; children are killed by their pid when the world ends.
 */
#ifndef SEMEL_TEST_WORLD_H
#define SEMEL_TEST_WORLD_H

#include <sys/types.h>

#include "base/random.h"
#include "fault/books.h"
#include "fault/ledger.h"
#include "unit/unit.h"

#define WORLD_CHILDREN 8
#define WORLD_SENT 600

struct child {
    pid_t pid;   /* 0: there is none */
    int in, out; /* its stdin and stdout */
};

/* A message, and how many effects the books must have of it in the end. */
struct sent {
    char id[64];
    struct task task;
    int effects;
};

struct world {
    char dir[64], store[BOOKS_URL], spool[96]; /* the store's URL, the spool's path */
    bool partitioned;                          /* messages of one account are kept in order by the broker */
    struct child children[WORLD_CHILDREN];
    struct sent sent[WORLD_SENT];
    size_t n_sent;
    struct semel_random rng;
};

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

int world_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n);  /* takes the worker's path, runs */
int world_group(int argc, char **argv, const struct CMUnitTest *tests, size_t n); /* the same, without a worker */
int world_setup(void **state);                                                    /* *state is a struct world */
int world_teardown(void **state);
void world_open(struct world *w, uint64_t seed);
void world_close(struct world *w);

/* ---- messages ---- */

size_t world_plan(struct world *w, const char *id, struct task task, int effects); /* known, not yet sent */
void world_push(struct world *w, const size_t *which, size_t n);
void world_send(struct world *w, const char *id, struct task task, int effects); /* both */
void world_again(struct world *w, size_t which);                                 /* once more, under a new position */
void world_requeue(struct world *w);                                             /* everything comes once more */
void world_shuffle(struct world *w, size_t *which, size_t n);
struct task booking(enum task_kind kind, int n, const char *account, long long cents);
void id_of_age(struct world *w, int64_t age_s, char out[64]); /* a UUIDv7 that was made so long ago */

/* ---- workers ---- */

/* `order` is "SEMEL_CRASH_AT=label:N" or NULL. */
struct child *world_start(struct world *w, const char *order, const char *const *args);
int world_end(struct world *w, struct child *child);      /* its wait status */
void world_stopped(struct world *w, struct child *child); /* waits until it has been stopped by SIGSTOP */
void world_run(struct world *w, const char *const *args); /* to its end, in peace */
void world_crash(struct world *w, const char *at, const char *const *args); /* dies there by SIGKILL */
bool killed(int status);
void world_reap(struct world *w); /* kills what still runs; world_close does it */
void world_say(struct child *child, const char *text);
void world_hear(struct child *child, char *line, size_t size); /* one line, without its end */
long world_report(struct world *w, const char *name, const char *what);
bool world_alerted(struct world *w, const char *text); /* is this the beginning of a line of the alerts? */
void world_touch(struct world *w, const char *file);
bool world_has(struct world *w, const char *file);

/* ---- books ---- */

void world_sql(struct world *w, const char *sql);      /* on the store */
void world_age(struct world *w, int seconds);          /* as if what is final had ended so long before */
int64_t world_count(struct world *w, const char *sql); /* the one number it gives */
void world_text(struct world *w, const char *sql, char *out, size_t size); /* all rows, columns with | between them */
void world_until(struct world *w, const char *sql);    /* waits until it gives something else than 0 */
int64_t world_spool(struct world *w, const char *sql); /* the same of the spool's file */
int64_t world_unacked(struct world *w);
/* Every message has its number of effects, in its account and to its amount; nothing else is in the books; every
 * delivery was acknowledged. Outside: an effect is a key; `ret_calls` (may be NULL) is how many lines there are. */
void world_balances(struct world *w);
void world_balances_outside(struct world *w, int64_t *ret_calls);

#endif
