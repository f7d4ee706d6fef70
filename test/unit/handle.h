/* SPDX-License-Identifier: MIT
 *
 * handle.h: a handle of libsemel for its tests, with a connection, a clock that stands still, and a table `effect` for
 * the writes of handlers. On SQLite, unless the program has chosen another database.
 */
#ifndef SEMEL_TEST_HANDLE_H
#define SEMEL_TEST_HANDLE_H

#include "unit/unit.h"

#include <sqlite3.h>

#include "base/error.h"
#include "lib/handle.h"

#define START_US INT64_C(1700000000000000)
#define SECOND_US INT64_C(1000000)

struct handle {
    struct semel *s;
    sqlite3 *db;   /* the connection of s; NULL: it is of another database */
    void *theirs;  /* the caller's connection to another database */
    bool wrapped;  /* its connection is ours to close */
    char path[64]; /* "" for :memory: */
    int64_t now_us;
    struct semel_clock clock;
    struct semel_store_options options;
    struct semel_error err;
    struct semel_verdict v;
};

/* Another database, for those tests that are about no peculiarity of SQLite. */
struct handle_db {
    const char *keys;                              /* the table of idempotency keys */
    void (*up)(struct handle *d);                  /* opens or, if it is `wrapped`, wraps; there is a table `effect` */
    void (*down)(struct handle *d);                /* after semel_close */
    int (*run)(struct handle *d, const char *sql); /* 0, or the code of the failure */
    int64_t (*ask)(struct handle *d, const char *sql);
    void (*passed)(struct handle *d, int64_t us); /* for what does not read the clock of the handle */
    bool (*refused)(struct handle *d);            /* COMMIT is, because of what has no end */
};
extern const struct handle_db *handle_db; /* NULL: SQLite */

int handle_own(void **state);     /* semel_open on :memory: */
int handle_file(void **state);    /* semel_open on a file */
int handle_wrapped(void **state); /* semel_wrap_sqlite on :memory: */
int handle_loose(void **state);   /* the same with SEMEL_LOOSE */
int handle_down(void **state);

#define ON_OWN(test) cmocka_unit_test_setup_teardown(test, handle_own, handle_down)
#define ON_FILE(test) cmocka_unit_test_setup_teardown(test, handle_file, handle_down)
#define ON_WRAPPED(test) cmocka_unit_test_setup_teardown(test, handle_wrapped, handle_down)
#define ON_LOOSE(test) cmocka_unit_test_setup_teardown(test, handle_loose, handle_down)
#define ON_BOTH(test)                                               \
    {#test " (own)", test, handle_own, handle_down, NULL},          \
    {                                                               \
#test " (wrapped)", test, handle_wrapped, handle_down, NULL \
    }

struct semel_msg mail(const char *id, const char *payload); /* of consumer "c" */
struct semel_msg keyed(const char *id, const char *order_key, int64_t version);

/* SQL on the connection of the handle, as its owner would. */
int sql_try(struct handle *d, const char *sql); /* the extended result code of the first statement that fails */
void sql(struct handle *d, const char *text);
int64_t sql_int(struct handle *d, const char *text);
void assert_commit_refused(struct handle *d); /* because of what has no end */
int64_t all_keys(struct handle *d);           /* rows of idempotency keys */
void effect(struct handle *d, const char *id);
int64_t effects(struct handle *d, const char *id); /* NULL: of all */
/* The status of the message of consumer "c"; "absent" when there is none. Valid until the next call. */
const char *state_of(struct handle *d, const char *id);

void set(struct handle *d, const char *settings); /* of consumer "c"; unless it says otherwise, its effect is atomic */
void pass(struct handle *d, int64_t us);          /* time passes */

/* begin, and what it answers; the verdict stays in d->v */
void begin(struct handle *d, const struct semel_msg *msg, enum semel_act act, enum semel_why why);
void done(struct handle *d, const struct semel_msg *msg);
/* The whole of it: BEGIN, begin, effect, done, COMMIT. */
void run_once(struct handle *d, const struct semel_msg *msg);

#define assert_fine(d, call)                                                \
    do {                                                                    \
        semel_status status_ = (call);                                      \
        if (status_ != SEMEL_OK)                                            \
            fail_msg("%s: %s", semel__status_name(status_), (d)->err.text); \
    } while (0)

/* Refused, and the text names what is wrong. */
#define assert_refused(d, call, expected, word)                            \
    do {                                                                   \
        assert_int_equal((call), (expected));                              \
        assert_int_equal((d)->err.status, (expected));                     \
        if (strstr((d)->err.text, (word)) == NULL)                         \
            fail_msg("\"%s\" does not say \"%s\"", (d)->err.text, (word)); \
    } while (0)

void assert_verdict(const struct semel_verdict *v, enum semel_act act, enum semel_why why, enum semel_row_status state);

#endif
