/* SPDX-License-Identifier: MIT
 *
 * engine.h: an inbox with everything around it, for tests of the engine: a store that is watched and can be made to
 * fail, a clock that stands still, and a handler that does what the payload says.
 *
 * The payload is a word, and may end in @N: then it counts for attempts up to N, and later ones are `ok`.
 *   ok       the effect                          fail     effect, then transient
 *   out      the effect, with an outcome         bad      effect, then permanent
 *   reject   effect, then rejected               maybe    effect, then maybe
 *   world    effect, then RETRY, ENVIRONMENT     busy     effect, then RETRY, TRANSIENT
 *   broken   effect, then INVALID, BROKEN        closed   the connection is lost
 *   sql:TEXT effect, then TEXT on the database's connection
 * Anything else is `ok`. An effect is a row of the handlers' table, which dies with the transaction; on a route with
 * effects outside it is a note of the engine, which nothing takes back.
 */
#ifndef SEMEL_TEST_ENGINE_H
#define SEMEL_TEST_ENGINE_H

#include "unit/unit.h"

#include "base/error.h"
#include "core/inbox.h"
#include "core/pump.h"
#include "support/mem_store.h"
#include "store/sqlite_store.h"

#define START_US INT64_C(1700000000000000)
#define SECOND_US INT64_C(1000000)
#define BATCH 600

enum fault {
    FAULT_NONE,
    FAULT_CONTENTION, /* RETRY, TRANSIENT */
    FAULT_WORLD,      /* RETRY, ENVIRONMENT */
    FAULT_BROKEN,     /* INVALID, BROKEN */
    FAULT_CLOSED,     /* rolled back, CLOSED until reopen */
    FAULT_UNKNOWN_DONE,
    FAULT_UNKNOWN_LOST,
    FAULT_STALL /* of commit: it succeeds, and a lease goes by before it is answered */
};

/* Which call fails: the `nth` of `op` since it was set (from 1), or with `on` every one from there; of admit only those
 * of more than `above` items. */
struct plan {
    const char *op;
    unsigned nth;
    bool on;
    size_t above;
    enum fault fault;
    unsigned seen;
};

struct seen {
    unsigned begins, commits, rollbacks, admits, fetches, settles, savepoints;
    unsigned impatient;              /* fetches that wait for no lock */
    unsigned frees;                  /* items of fetches whose business keys are locked before the rows */
    size_t items, inserted, changes; /* of admit and settle */
};

/* What a set-based handler does with `odd`. */
enum set_mode { SET_ALL, SET_SKIP, SET_REPEAT, SET_STRANGER };

struct outside {
    char id[64];
    int n;
};

struct engine;

/* What a test does with a database besides the store. The names of Semel's tables are those of SQLite. */
struct engine_tables {
    const char *name; /* "sqlite", "postgres" */
    semel_status (*open)(struct engine *e);
    semel_status (*effect)(struct semel_store *store, struct semel_str id, int attempt, struct semel_error *err);
    semel_status (*handler)(struct semel_store *store, const char *sql, struct semel_error *err);
    int64_t (*number)(struct engine *e, const char *sql); /* the first column of the one row */
    void (*run)(struct engine *e, const char *sql);
    /* The values of $1, $2 ..., in the order in which these first stand in the text; NULL: NULL. */
    void (*put)(struct engine *e, const char *sql, const char *const *values, int n);
};

struct engine {
    int64_t now_us;
    struct semel_clock clock;
    struct semel_mem_db *db;            /* NULL: a database */
    const struct engine_tables *tables; /* then its functions */
    struct semel_store *store;
    struct semel_policy policy;
    struct semel__handler handler;
    struct semel_random rng;
    struct semel_inbox inbox;
    struct semel_error err;
    struct semel_settled settled[BATCH];
    struct semel_arena arena; /* of what a test looks at */
    struct semel_arena keep;  /* of what a test keeps until its end */
    struct plan plan, then;   /* both count */
    const char *sits_on;      /* business keys of one letter that somebody else is taking; NULL: none */
    struct seen seen;
    char trace[16384]; /* "run:ID", "commit", "ack" ... in order, each followed by a blank */
    char alert_text[256];
    enum set_mode set_mode;
    const char *odd;
    unsigned set_calls;
    bool key_repeated; /* a set-based call got two messages of one key */
    struct outside outside[32];
    size_t n_outside;
    bool dead;
    bool mended;                                                    /* every word is `ok` */
    void (*on_run)(struct engine *e, const struct semel__msg *msg); /* called by the handler first; may be NULL */
    char path[64];                                                  /* of a file; "" for :memory: */
};

int engine_on_mem(void **state);
int engine_on_sqlite(void **state); /* :memory: */
int engine_on_file(void **state);   /* a file, which outlives its connection */
int engine_on_postgres(void **state);
int engine_down(void **state);

/* For main: `PROGRAM postgres` runs the tests on PostgreSQL, and PROGRAM those on all the others, so that a machine
 * without a server skips the first and runs the second. */
void engine_stores(int argc, char **argv);

/* The same without cmocka's state: NULL when memory ran out on the way. */
void engine_init(struct engine *e);
semel_status engine_open(struct engine *e, const char *kind); /* "mem", "sqlite", "file" or "postgres" */
void engine_close(struct engine *e);

/* On every store: in memory, SQLite, PostgreSQL. ON_TABLES: on the two with tables. */
#define ON_EACH(test) ON_MEM(test), ON_SQLITE(test), ON_POSTGRES(test)
#define ON_TABLES(test) ON_FILE(test), ON_POSTGRES(test)
#define ON_MEM(test) ON(test, "mem", engine_on_mem, engine_down)
#define ON_SQLITE(test) ON(test, "sqlite", engine_on_sqlite, engine_down)
#define ON_FILE(test) ON(test, "file", engine_on_file, engine_down)
#define ON_POSTGRES(test) ON(test, "postgres", engine_on_postgres, engine_down)
/* clang-format off */
#define ON(test, kind, up, down) {#test " (" kind ")", test, up, down, NULL}
/* clang-format on */

/* ---- messages ----------------------------------------------------------------------------------------- */

struct semel__msg msg(const char *id, const char *payload); /* source "s", with a fingerprint */
struct semel__msg keyed(const char *id, const char *payload, const char *order_key, int64_t version);

/* Processes and asserts OK. The acts are in e->settled. */
void process(struct engine *e, const struct semel__msg *msgs, size_t n);
void process_one(struct engine *e, struct semel__msg m);
semel_status try_process(struct engine *e, const struct semel__msg *msgs, size_t n);

#define assert_ok(e, call)                                                  \
    do {                                                                    \
        semel_status status_ = (call);                                      \
        if (status_ != SEMEL_OK)                                            \
            fail_msg("%s: %s", semel__status_name(status_), (e)->err.text); \
    } while (0)

/* ---- what is there ------------------------------------------------------------------------------------ */

/* The committed row of source "s"; its state is ABSENT when there is none. Strings live until the next look. */
struct semel_row row_of(struct engine *e, const char *id);
enum semel_row_status state_of(struct engine *e, const char *id);
/* As an operator does it: the row is read, then the command is given to whatever it has become. */
semel_status command_row(struct engine *e, const char *id, struct semel_command command,
                         struct semel_command_result *ret);
int64_t effects_of(struct engine *e, const char *id); /* NULL: of all */
int64_t attempts_of(struct engine *e, const char *id);
int64_t conflicts_of(struct engine *e, const char *id);
int64_t audits_of(struct engine *e);
int64_t sql_int(struct engine *e, const char *sql); /* the first column of the one row */
void sql_run(struct engine *e, const char *sql);
bool is_postgres(const struct engine *e);
/* Where the two do not speak the same SQL. */
void sql_either(struct engine *e, const char *sqlite, const char *postgres);
void damage(struct engine *e, const char *id);

void note(struct engine *e, const char *word, struct semel_str id);
void forget(struct engine *e); /* clears the trace and what was seen */
void fail_at(struct engine *e, const char *op, unsigned nth, enum fault fault);

semel_status engine_handle_set(void *ctx, struct semel_store *store, const struct semel__msg *const *msgs, size_t n,
                               struct semel_set *set, struct semel_error *err);

void assert_settled(const struct engine *e, size_t i, enum semel_act act, enum semel_why why,
                    enum semel_row_status state);

#endif
