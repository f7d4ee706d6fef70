/* SPDX-License-Identifier: MIT
 *
 * test_lib_races.c: two handles, each with a connection and a thread of its own, get the same messages at the same
 * time.
 */
#include "unit/handle.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define N 200

struct racer {
    const char *path;
    bool batches; /* semel_inbox_process; else begin and done */
    int ran;
    char failed[300];
    pthread_t thread;
};

static bool run_sql(sqlite3 *db, const char *text)
{
    return sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK;
}

static semel_status book(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                         struct semel_reply *reply, struct semel_error *err)
{
    char text[80];
    (void)ctx;
    (void)attempt;
    (void)reply;
    snprintf(text, sizeof text, "INSERT INTO effect VALUES ('%.*s')", (int)msg->id.n, msg->id.p);
    int rc = sqlite3_exec(semel_native(s), text, NULL, NULL, NULL);
    return rc == SQLITE_OK ? SEMEL_OK : semel_fail_sqlite(s, rc, err);
}

/* true: it may be acknowledged. */
static bool by_hand(struct racer *r, struct semel *s, sqlite3 *db, const struct semel_msg *m)
{
    struct semel_verdict v;
    struct semel_error err;
    if (!run_sql(db, "BEGIN IMMEDIATE"))
        return false;
    semel_status status = semel_inbox_begin(s, m, &v, &err);
    if (status == SEMEL_OK && v.act == SEMEL_RUN) {
        status = book(NULL, s, m, 1, NULL, &err);
        if (status == SEMEL_OK)
            status = semel_inbox_done(s, m, semel_str(NULL), &err);
    }
    if (status == SEMEL_OK && run_sql(db, v.act == SEMEL_LATER ? "ROLLBACK" : "COMMIT")) {
        r->ran += v.act == SEMEL_RUN;
        return v.act != SEMEL_LATER;
    }
    if (status != SEMEL_OK && status != SEMEL_RETRY)
        snprintf(r->failed, sizeof r->failed, "%s", err.text);
    run_sql(db, "ROLLBACK");
    return false;
}

static bool by_batch(struct racer *r, struct semel *s, const struct semel_msg *m)
{
    struct semel_verdict v;
    struct semel_error err;
    semel_status status = semel_inbox_process(s, m, 1, book, NULL, &v, &err);
    if (status != SEMEL_OK && status != SEMEL_RETRY)
        snprintf(r->failed, sizeof r->failed, "%s", err.text);
    r->ran += status == SEMEL_OK && v.why == SEMEL_WHY_NEW;
    return status == SEMEL_OK && v.act == SEMEL_ACK;
}

static void race(struct racer *r, struct semel *s, sqlite3 *db)
{
    char id[16];
    for (int i = 0; i < N && r->failed[0] == '\0'; i++) {
        snprintf(id, sizeof id, "m%d", i);
        struct semel_msg m = mail(id, "x");
        bool acked = false;
        for (int tries = 0; !acked && tries < 1000 && r->failed[0] == '\0'; tries++)
            acked = r->batches ? by_batch(r, s, &m) : by_hand(r, s, db, &m);
        if (!acked && r->failed[0] == '\0')
            snprintf(r->failed, sizeof r->failed, "%s was never acknowledged", id);
    }
}

static void *run(void *ctx)
{
    struct racer *r = ctx;
    struct semel *s = NULL;
    struct semel_error err;
    sqlite3 *db = NULL;
    if (sqlite3_open(r->path, &db) == SQLITE_OK && sqlite3_busy_timeout(db, 20000) == SQLITE_OK &&
        semel_wrap_sqlite(&s, db, 0, &err) == SEMEL_OK)
        race(r, s, db);
    else
        snprintf(r->failed, sizeof r->failed, "cannot open");
    semel_close(s);
    if (sqlite3_close(db) != SQLITE_OK)
        snprintf(r->failed, sizeof r->failed, "something was left open");
    return NULL;
}

static void same_messages_at_two_handles_take_effect_once(void **state)
{
    /* I3, T2 */
    struct handle *d = *state;
    for (int mode = 0; mode < 3; mode++) { /* by hand twice, one of each, batches twice */
        struct racer racers[2] = {{.path = d->path, .batches = mode == 2}, {.path = d->path, .batches = mode >= 1}};
        sql(d, "DELETE FROM semel_inbox; DELETE FROM effect");
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&racers[i].thread, NULL, run, &racers[i]), 0);
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(pthread_join(racers[i].thread, NULL), 0);
        for (size_t i = 0; i < 2; i++)
            assert_string_equal(racers[i].failed, "");
        assert_int_equal(racers[0].ran + racers[1].ran, N);
        assert_int_equal(effects(d, NULL), N);
        assert_int_equal(sql_int(d, "SELECT count(DISTINCT id) FROM effect"), N);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_FILE(same_messages_at_two_handles_take_effect_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
