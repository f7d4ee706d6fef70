/* SPDX-License-Identifier: MIT
 *
 * test_lib_alloc.c: no memory for ourselves, at every allocation in turn, in each function of the library.
 *
 * Each scenario is run with its n-th allocation failing, for n = 1, 2, 3 ... until a run needs fewer. A call that fails
 * says RETRY, leaves the caller's transaction open and what is in it as it was; the same again, with memory, works.
 */
#include "unit/handle.h"

#define NOTHING semel_str(NULL)
#define N_MAX 2000

struct scenario {
    const char *name;
    void (*prepare)(struct handle *d, const char *id);
    semel_status (*run)(struct handle *d, const char *id);
    void (*check)(struct handle *d, const char *id);
    bool joined;
};

/* What the handle keeps for the next call is given up, so that every call needs memory. */
static void chill(struct semel *s)
{
    semel__arena_done(&s->arena);
    semel__arena_done(&s->sheet);
    semel__arena_done(&s->inbox.arena);
    semel__arena_done(&s->inbox.scratch);
    semel__held_done(&s->claims);
    if (s->pending.n == 0)
        semel__held_done(&s->pending);
}

static void fails_everywhere(struct handle *d, const struct scenario *s)
{
    unsigned n = 1, failed = 0;
    for (bool reached = true; reached; n++) {
        struct fail_nth fail;
        char id[32];
        assert_true(n < N_MAX);
        snprintf(id, sizeof id, "%s-%u", s->name, n);
        if (s->joined)
            sql(d, "BEGIN IMMEDIATE");
        if (s->prepare != NULL)
            s->prepare(d, id);
        int64_t before = sql_int(d, "SELECT count(*) FROM semel_inbox");
        int pending = semel_pending(d->s);
        chill(d->s);
        fail_nth_begin(&fail, n);
        semel_status status = s->run(d, id);
        reached = fail_nth_end(&fail);
        if (status != SEMEL_OK) {
            failed++;
            assert_true(reached);
            assert_int_equal(status, SEMEL_RETRY);
            assert_int_equal(sqlite3_get_autocommit(d->db), !s->joined);
            if (s->joined) {
                assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_inbox"), before);
                assert_int_equal(semel_pending(d->s), pending);
            }
            assert_fine(d, s->run(d, id));
        }
        s->check(d, id);
        if (s->joined)
            sql(d, "COMMIT");
    }
    print_message("%s: %u allocations, %u of them fatal to the call\n", s->name, n - 2, failed);
    assert_true(failed > 0);
}

/* ---- in the caller's transaction ----------------------------------------------------------------------- */

static semel_status run_begin(struct handle *d, const char *id)
{
    struct semel_msg m = mail(id, "{\"a\": 1}");
    m.order_key = m.business_key = m.id;
    return semel_inbox_begin(d->s, &m, &d->v, &d->err);
}

static void check_begun(struct handle *d, const char *id)
{
    struct semel_msg m = mail(id, NULL);
    assert_int_equal(d->v.act, SEMEL_RUN);
    assert_int_equal(semel_pending(d->s), 1);
    done(d, &m);
}

static void prepare_begun(struct handle *d, const char *id)
{
    assert_fine(d, run_begin(d, id));
}

static semel_status run_done(struct handle *d, const char *id)
{
    struct semel_msg m = mail(id, NULL);
    return semel_inbox_done(d->s, &m, semel_str("{\"x\":[1]}"), &d->err);
}

static void check_done(struct handle *d, const char *id)
{
    assert_string_equal(state_of(d, id), "completed");
    assert_int_equal(semel_pending(d->s), 0);
}

static semel_status run_fail(struct handle *d, const char *id)
{
    struct semel_msg m = mail(id, "x");
    return semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("no"), &d->v, &d->err);
}

static void check_failed(struct handle *d, const char *id)
{
    assert_string_equal(state_of(d, id), "failed");
    assert_int_equal(semel_pending(d->s), 0);
}

/* ---- in ours ------------------------------------------------------------------------------------------- */

static semel_status handle(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                           struct semel_reply *reply, struct semel_error *err)
{
    char text[80];
    (void)ctx;
    snprintf(text, sizeof text, "INSERT INTO effect VALUES ('%.*s')", (int)msg->id.n, msg->id.p);
    int rc = sqlite3_exec(semel_native(s), text, NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return semel_fail_sqlite(s, rc, err);
    if (semel__str_eqz(msg->payload, "fail once") && attempt == 1)
        return semel_fail(err, SEMEL_CLASS_TRANSIENT, "no");
    semel_status status = semel_reply_set(reply, SEMEL_DONE, semel_str("so"), semel_str("1"));
    return status == SEMEL_RETRY ? semel_fail(err, SEMEL_CLASS_ENVIRONMENT, "no memory") : status;
}

static semel_status run_process(struct handle *d, const char *id)
{
    char other[40];
    struct semel_verdict out[3];
    snprintf(other, sizeof other, "%s-b", id);
    struct semel_msg msgs[] = {mail(id, "x"), mail(other, "fail once"), mail(id, "x")};
    return semel_inbox_process(d->s, msgs, COUNT(msgs), handle, NULL, out, &d->err);
}

static void check_process(struct handle *d, const char *id)
{
    char other[40];
    size_t n;
    snprintf(other, sizeof other, "%s-b", id);
    assert_string_equal(state_of(d, id), "completed");
    assert_int_equal(effects(d, id), 1);
    pass(d, 100 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    pass(d, 100 * SECOND_US);
    assert_fine(d, semel_inbox_work(d->s, "c", 10, handle, NULL, &n, &d->err));
    assert_string_equal(state_of(d, other), "completed");
    assert_int_equal(effects(d, other), 1);
}

static semel_status handle_set(void *ctx, struct semel *s, const struct semel_msg *msgs, size_t n,
                               struct semel_named *named, struct semel_error *err)
{
    (void)ctx;
    for (size_t i = 0; i < n; i++) {
        char text[80];
        snprintf(text, sizeof text, "INSERT INTO effect VALUES ('%.*s')", (int)msgs[i].id.n, msgs[i].id.p);
        int rc = sqlite3_exec(semel_native(s), text, NULL, NULL, NULL);
        if (rc != SQLITE_OK)
            return semel_fail_sqlite(s, rc, err);
        semel_named_add(named, msgs[i].source, msgs[i].id);
    }
    return SEMEL_OK;
}

static semel_status run_set(struct handle *d, const char *id)
{
    struct semel_verdict out;
    struct semel_msg m = mail(id, "x");
    return semel_inbox_process_set(d->s, &m, 1, handle_set, NULL, &out, &d->err);
}

static void check_set(struct handle *d, const char *id)
{
    assert_string_equal(state_of(d, id), "completed");
    assert_int_equal(effects(d, id), 1);
}

static semel_status run_put(struct handle *d, const char *id)
{
    struct semel_msg m = mail(id, "x");
    return semel_inbox_put(d->s, &m, &d->v, &d->err);
}

static void check_put(struct handle *d, const char *id)
{
    assert_string_equal(state_of(d, id), "waiting");
}

static void begin_survives_every_failed_allocation(void **state)
{
    fails_everywhere(*state, &(struct scenario){"begin", NULL, run_begin, check_begun, true});
}

static void done_survives_every_failed_allocation(void **state)
{
    fails_everywhere(*state, &(struct scenario){"done", prepare_begun, run_done, check_done, true});
}

static void fail_survives_every_failed_allocation(void **state)
{
    fails_everywhere(*state, &(struct scenario){"fail", NULL, run_fail, check_failed, true});
}

static void fail_of_the_begun_survives_every_failed_allocation(void **state)
{
    fails_everywhere(*state, &(struct scenario){"fail-begun", prepare_begun, run_fail, check_failed, true});
}

static void process_survives_every_failed_allocation(void **state)
{
    fails_everywhere(*state, &(struct scenario){"process", NULL, run_process, check_process, false});
}

static void process_set_survives_every_failed_allocation(void **state)
{
    fails_everywhere(*state, &(struct scenario){"set", NULL, run_set, check_set, false});
}

static void put_survives_every_failed_allocation(void **state)
{
    fails_everywhere(*state, &(struct scenario){"put", NULL, run_put, check_put, false});
    fails_everywhere(*state, &(struct scenario){"put-joined", NULL, run_put, check_put, true});
}

/* ---- by token ------------------------------------------------------------------------------------------ */

static void ignore(void *ctx, const struct semel_msg *msg, const struct semel_verdict *v)
{
    (void)ctx;
    (void)msg;
    (void)v;
}

/* One of everything; whatever was claimed on the way and lost runs out by itself. */
static semel_status run_leased(struct handle *d, const char *id)
{
    struct semel_msg m = mail(id, "x");
    struct semel_str settings;
    size_t n;
    semel_status status = semel_inbox_claim(d->s, &m, 0, &d->v, &d->err);
    int64_t token = d->v.token;
    if (status == SEMEL_OK && d->v.act == SEMEL_RUN) {
        status = semel_inbox_renew(d->s, token, 0, &d->err);
        if (status == SEMEL_OK)
            status = semel_inbox_finish(d->s, token, SEMEL_TRANSIENT, NOTHING, semel_str("no"), &d->err);
    }
    pass(d, 100 * SECOND_US);
    if (status == SEMEL_OK)
        status = semel_tick(d->s, 100, &n, &d->err);
    pass(d, 100 * SECOND_US);
    if (status == SEMEL_OK)
        status = semel_inbox_take(d->s, "c", 10, 0, ignore, NULL, &n, &d->err);
    return status == SEMEL_OK ? semel_consumer_get(d->s, "c", &settings, &d->err) : status;
}

static void check_leased(struct handle *d, const char *id)
{
    size_t n;
    pass(d, 100 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    pass(d, 1000 * SECOND_US);
    assert_fine(d, semel_inbox_work(d->s, "c", 10, handle, NULL, &n, &d->err));
    assert_string_equal(state_of(d, id), "completed");
}

static void leases_survive_every_failed_allocation(void **state)
{
    fails_everywhere(*state, &(struct scenario){"leased", NULL, run_leased, check_leased, false});
}

static void opening_survives_every_failed_allocation(void **state)
{
    unsigned n = 1;
    (void)state;
    for (bool reached = true; reached; n++) {
        struct fail_nth fail;
        struct semel *s = NULL;
        struct semel_error err;
        fail_nth_begin(&fail, n);
        semel_status status = semel_open(&s, "sqlite::memory:", SEMEL_MIGRATE, &err);
        reached = fail_nth_end(&fail);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        assert_int_equal(s == NULL, reached);
        semel_close(s);
    }
    assert_true(n > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_survives_every_failed_allocation),
        ON_BOTH(begin_survives_every_failed_allocation),
        ON_BOTH(done_survives_every_failed_allocation),
        ON_OWN(fail_survives_every_failed_allocation),
        ON_OWN(fail_of_the_begun_survives_every_failed_allocation),
        ON_OWN(process_survives_every_failed_allocation),
        ON_OWN(process_set_survives_every_failed_allocation),
        ON_OWN(put_survives_every_failed_allocation),
        ON_OWN(leases_survive_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
