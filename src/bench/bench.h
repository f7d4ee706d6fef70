/* SPDX-License-Identifier: MIT
 *
 * bench.h: private to the room of `semel bench`.
 *
 *   bench.c         the command and `inbox`: options, the store, figures of the machine, the table and the JSON
 *   msg.c           the messages, also those of the programs in bench/
 *   inbox_sqlite.c  `inbox` on SQLite: the statements, the cases, the rounds and their results
 *   inbox_pg.c      `inbox` on PostgreSQL; pg.h is what `growth` uses of it
 *   growth.c        `growth`: see growth.h
 *   sql.c           `sql`: the SQL functions of PostgreSQL
 *
 * A lane is one case with one kind of ids. Every lane has tables and a consumer of its own, so that none uses rows of
 * another; on SQLite all of them share the connection, and so its settings.
 */
#ifndef SEMEL_BENCH_BENCH_H
#define SEMEL_BENCH_BENCH_H

#include <semel/semel.h>
#include <signal.h>

#include "base/ids.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/str.h"
#include "core/msg.h"

#define BENCH_PAYLOAD 200
#define BENCH_ACCOUNTS 10000
#define BENCH_FIRST_ACCOUNT 10000 /* all numbers have five digits, all amounts six: payloads are alike to the byte */
#define BENCH_SOURCE "bench"
#define BENCH_TYPE "payment"

enum bench_ids { BENCH_ORDERED, BENCH_RANDOM, BENCH_IDS };
extern const char *const bench_ids_names[BENCH_IDS];

struct cli_command;

struct bench_msg {
    char id[SEMEL_UUID_TEXT];
    char payload[BENCH_PAYLOAD + 1];
    /* Facts that the inbox computes itself and the limit gets for free. */
    int64_t time_us; /* SEMEL_NONE: the id has none */
    size_t place;    /* in order of arrival within its batch */
    struct semel_fp fp;
};

/* The content of the payload; at fixed places, so that reading it costs every case the same, almost nothing. */
struct bench_effect {
    int account, amount;
    bool poison;
};
struct bench_effect bench_effect(struct semel_str payload);
#define BENCH_POISON_AMOUNT 100000

/* A sequence of messages. */
struct bench_stream {
    enum bench_ids ids;
    bool poison; /* one in a hundred cannot be handled */
    struct semel_random rng;
    int64_t first_us; /* the time in the first id */
};
/* A name for tables and consumers, from the case and the kind of its ids: letters, digits and '_'. */
void bench_name(char *out, size_t size, const char *name, enum bench_ids ids);
/* The next messages get times that have just passed. */
void bench_stream_from(struct bench_stream *stream, size_t messages);
/* The message i of a round; `place` is its place within its batch. */
semel_status bench_msg_make(struct bench_stream *stream, size_t i, size_t place, struct bench_msg *msg,
                            struct semel_error *err);
void bench_msgs_sort(struct bench_msg *msgs, size_t n); /* by id */

/* ---- bench.c ---- */

#define BENCH_IN_USE "the store is in use, and a benchmark would fill it; name a new one"
/* From now on SIGINT and SIGTERM only set the returned flag, which stops the benchmark. */
const volatile sig_atomic_t *bench_watch_signals(void);
/* 0, or the exit code after cli_fail has reported the error. */
int bench_save(const char *path, struct semel_str text);

/* ---- growth.c ---- */

extern const struct cli_command bench_growth_command;

/* ---- sql.c ---- */

extern const struct cli_command bench_sql_command;

/* HAND_SETS: a handwritten inbox over whole batches. BLIND: the limit, if a duplicate could not come. */
enum bench_work {
    BENCH_HANDWRITTEN,
    BENCH_HAND_SETS,
    BENCH_LEDGER,
    BENCH_SETS,
    BENCH_LIMIT,
    BENCH_BLIND,
    BENCH_UPDATES
};
/* ---- inbox_sqlite.c: an int is a result code of SQLite, SQLITE_OK (0) when all is well ---- */

/* Does the inbox have rows, or has a benchmark run here before? */
int bench_sql_used(struct semel *s, bool *ret_used);

struct bench_options {
    int64_t messages, rounds, batch;
    int64_t connections;               /* a server: at most */
    const char *cases;                 /* names with commas between; NULL: all */
    const volatile sig_atomic_t *stop; /* not 0: the user has interrupted */
    void (*progress)(void *ctx, int64_t round, const char *name, const char *ids);
    void *ctx;
};

struct bench_case {
    const char *name, *ids;
    int connections;
    double per_s, p50_ms, p99_ms, rss_mb;
    double trips, wal_bytes; /* on a server: per message */
};
#define BENCH_CASES_MAX 64

struct bench_result {
    const char *name;
    bool server; /* cases on several connections, with round trips and WAL */
    double commit_us;
    struct bench_case cases[BENCH_CASES_MAX];
    size_t n;
    double rss_start_mb, rss_end_mb;
    bool stopped;
};
/* OK and !stopped: all cases have been measured and their books balance. */
semel_status bench_inbox(struct semel *s, const struct bench_options *options, struct bench_result *ret,
                         struct semel_error *err);
bool bench_wanted(const struct bench_options *options, const char *name); /* is it among the cases? */

/* ---- inbox_pg.c ---- */

bool bench_pg_url(const char *url);
/* As bench_inbox, on databases that a process of its own can connect to. *ret_opened: the store could be opened;
 * *ret_used: it is in use, and was left alone. */
semel_status bench_pg(const char *url, const struct bench_options *options, struct bench_result *ret, bool *ret_opened,
                      bool *ret_used, struct semel_error *err);

/* ---- bench.c: figures of the machine ---- */

double bench_rss_mb(void); /* 0: unknown */

/* The value below which `share` of the n values lie; sorts them. */
double bench_percentile(double *values, size_t n, double share);

#endif
