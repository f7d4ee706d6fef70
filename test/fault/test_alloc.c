/* SPDX-License-Identifier: MIT
 *
 * test_alloc.c: no memory, at every allocation in turn: ours, SQLite's and OpenSSL's.
 *
 * Each scenario is run with its n-th allocation failing, once alone and once with all that follow, for n = 1, 2, 3
 * ... until a run needs no more than n. Afterwards nothing was acknowledged without its effect or its record, and a
 * second run with memory gives exactly the right effects. ASan and LSan see the rest.
 *
 * The runs of one scenario share a store and differ by their ids; what one leaves open it finishes before the next.
 * SQLite allocates a hundred times where we do once: of the two longest scenarios only some are visited there, all with
 * SEMEL_LONG=1.
 */
#include <openssl/crypto.h>
#include <sqlite3.h>
#include <stdlib.h>

#include "unit/engine.h"

#include "base/digest.h"
#include "core/extract.h"

#define N_MAX 60000
#define HOUR_US (INT64_C(3600) * SECOND_US)

/* ---- allocations -------------------------------------------------------------------------------------- */

static struct {
    unsigned at, seen;
    bool on; /* all from there */
} failing;

static bool permit(void *ctx)
{
    (void)ctx;
    failing.seen++;
    return failing.on ? failing.seen < failing.at : failing.seen != failing.at;
}

static void memory_fails_at(unsigned n, bool on)
{
    failing.at = n;
    failing.seen = 0;
    failing.on = on;
    semel__alloc_set_hook(permit, NULL);
}

static unsigned stride(unsigned step)
{
    return step > 1 && getenv("SEMEL_LONG") == NULL ? step : 1;
}

/* Whether the n-th was reached. */
static bool memory_is_back(void)
{
    semel__alloc_set_hook(NULL, NULL);
    return failing.seen >= failing.at;
}

static sqlite3_mem_methods real_memory;

static void *sqlite_malloc(int size)
{
    return semel__alloc_permitted() ? real_memory.xMalloc(size) : NULL;
}

static void *sqlite_realloc(void *p, int size)
{
    return semel__alloc_permitted() ? real_memory.xRealloc(p, size) : NULL;
}

static void *crypto_malloc(size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return size > 0 && semel__alloc_permitted() ? malloc(size) : NULL;
}

static void *crypto_realloc(void *p, size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return semel__alloc_permitted() ? realloc(p, size) : NULL;
}

static void crypto_free(void *p, const char *file, int line)
{
    (void)file;
    (void)line;
    free(p);
}

static void install(void)
{
    sqlite3_mem_methods memory;
    if (CRYPTO_set_mem_functions(crypto_malloc, crypto_realloc, crypto_free) != 1)
        print_message("OpenSSL has allocated already: its allocations are not made to fail\n");
    if (sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_memory) != SQLITE_OK)
        abort();
    memory = real_memory;
    memory.xMalloc = sqlite_malloc;
    memory.xRealloc = sqlite_realloc;
    unsigned char digest[SEMEL_SHA256];
    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &memory) != SQLITE_OK || !semel__sha256(NULL, 0, digest))
        abort(); /* OpenSSL sets itself up once, and never again when that failed */
}

static int give_back(void **state)
{
    (void)state;
    semel__alloc_set_hook(NULL, NULL);
    return 0;
}

/* ---- a run -------------------------------------------------------------------------------------------- */

#define MSGS 12

/* The messages of one run, with the effects that there must be in the end. */
struct load {
    char ids[MSGS][32], keys[MSGS][32];
    struct semel__msg msgs[MSGS];
    int expected[MSGS];
    size_t n;
    unsigned run;
};

static struct load load;

static struct semel__msg *add(const char *name, const char *payload, int expected)
{
    size_t i = load.n++;
    snprintf(load.ids[i], sizeof load.ids[i], "%s-%u", name, load.run);
    load.msgs[i] = msg(load.ids[i], payload);
    load.expected[i] = expected;
    return &load.msgs[i];
}

static struct semel_str key(const char *name)
{
    size_t i = load.n - 1;
    snprintf(load.keys[i], sizeof load.keys[i], "%s-%u", name, load.run);
    return semel__str(load.keys[i]);
}

static void fill_mixed(void)
{
    struct semel__msg *m;
    add("plain", "out", 1);
    add("plain", "out", 1); /* a copy */
    add("flaky", "fail@1", 1);
    add("refused", "reject", 0);
    m = add("again", "ok", 1);
    m->delivery = 2;
    m = add("b1", "ok", 1);
    m->business[0] = key("pay");
    m->n_business = 1;
    m = add("b2", "ok", 0);
    m->business[0] = load.msgs[load.n - 2].business[0];
    m->n_business = 1;
    m = add("o1", "fail@1", 1);
    m->order_key = key("k");
    m = add("o2", "ok", 1);
    m->order_key = load.msgs[load.n - 2].order_key;
    m = add("p", "ok", 1);
    m->lock_key = SEMEL_STR("lock");
}

static void fill_plain(void)
{
    add("x", "ok", 1);
    add("y", "ok", 1);
    add("z", "fail@1", 1);
}

static void load_begin(unsigned run, void (*fill)(void))
{
    load.n = 0;
    load.run = run;
    fill();
}

/* I5: no effect without its record, no acknowledgement without either. Atomic routes only. */
static void check_acks(struct engine *e)
{
    for (size_t i = 0; i < load.n; i++) {
        enum semel_row_status state = state_of(e, load.ids[i]);
        assert_int_equal(effects_of(e, load.ids[i]), state == SEMEL_ROW_COMPLETED);
        if (e->settled[i].act == SEMEL_ACK)
            assert_int_not_equal(state, SEMEL_ROW_ABSENT);
    }
}

static void renew_inbox(struct engine *e)
{
    struct semel_observer observer = e->inbox.observer;
    semel__inbox_done(&e->inbox);
    semel__inbox_init(&e->inbox, e->store, &e->policy, &e->handler, &e->rng, SEMEL_STR("worker-1"));
    e->inbox.observer = observer;
}

static void tick(struct engine *e)
{
    size_t n;
    e->now_us += e->policy.lease_us + 1;
    assert_ok(e, semel__inbox_recover(&e->inbox, 100, &n, &e->err));
    e->now_us += 20 * SECOND_US;
    for (int i = 0; i < 4; i++)
        assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
}

/* What was not acknowledged comes again; time passes. */
static void finish(struct engine *e)
{
    bool acked[MSGS];
    for (size_t i = 0; i < load.n; i++)
        acked[i] = e->settled[i].act == SEMEL_ACK;
    assert_ok(e, semel_store_reopen(e->store, &e->err));
    renew_inbox(e);
    for (int round = 0; round < 3; round++) {
        tick(e);
        for (size_t i = 0; i < load.n; i++) {
            struct semel__msg m = load.msgs[i];
            if (acked[i])
                continue;
            m.delivery = 2;
            process_one(e, m);
            acked[i] = e->settled[0].act == SEMEL_ACK;
        }
    }
    for (size_t i = 0; i < load.n; i++)
        assert_true(acked[i]);
}

static void check_effects(struct engine *e)
{
    for (size_t i = 0; i < load.n; i++)
        if (effects_of(e, load.ids[i]) != load.expected[i])
            fail_msg("allocation %u%s: %s has %d effects", failing.at, failing.on ? " and on" : "", load.ids[i],
                     (int)effects_of(e, load.ids[i]));
}

static void check_status(semel_status status, const struct semel_error *err)
{
    if (status == SEMEL_OK)
        return;
    if (status != SEMEL_RETRY && status != SEMEL_CLOSED && status != SEMEL_UNKNOWN)
        fail_msg("allocation %u%s: %s, %s: %s", failing.at, failing.on ? " and on" : "", semel__status_name(status),
                 semel__class_name(err->cls), err->text);
}

/* ---- the scenarios ------------------------------------------------------------------------------------ */

struct scenario {
    const char *name;
    void (*prepare)(struct engine *e, unsigned run);
    semel_status (*run)(struct engine *e); /* with failing memory */
    void (*check)(struct engine *e);       /* right after it, and to the end */
    unsigned step;                         /* on SQLite */
};

/* A mixed batch: copies, a failure, order, business keys, one that came again. */
static void prepare_batch(struct engine *e, unsigned run)
{
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    load_begin(run, fill_mixed);
}

static semel_status run_batch(struct engine *e)
{
    return semel__inbox_process(&e->inbox, load.msgs, load.n, e->settled, &e->err);
}

static void check_batch(struct engine *e)
{
    check_acks(e);
    finish(e);
    check_effects(e);
}

/* The leased path: a claim that is kept, renewed, given back or run. */
static void prepare_leased(struct engine *e, unsigned run)
{
    (void)e;
    load_begin(run, fill_plain);
}

static semel_status run_leased(struct engine *e)
{
    struct semel_lease leases[MSGS];
    size_t n = 0;
    semel__arena_reset(&e->keep);
    semel_status status = semel__lease_claim(&e->inbox, load.msgs, load.n, true, &e->keep, leases, &n, e->settled,
                                             &e->err);
    if (status == SEMEL_OK)
        status = semel__lease_renew(&e->inbox, leases, n, &e->err);
    if (status == SEMEL_OK && n > 1)
        status = semel__lease_release(&e->inbox, leases, 1, &e->err);
    return status == SEMEL_OK && n > 1 ? semel__lease_run(&e->inbox, leases + 1, n - 1, &e->err) : status;
}

/* Outside: nobody can take an effect back; so it happens at most once, and what is not known is called unknown. */
static void prepare_outside(struct engine *e, unsigned run)
{
    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    e->n_outside = 0;
    load_begin(run, fill_plain);
    load.n = 2; /* the flaky one would run twice by rights */
}

static void check_outside(struct engine *e)
{
    finish(e);
    for (size_t i = 0; i < load.n; i++) {
        enum semel_row_status state = state_of(e, load.ids[i]);
        int64_t n = effects_of(e, load.ids[i]);
        assert_true(state == SEMEL_ROW_COMPLETED ? n == 1 : state == SEMEL_ROW_UNKNOWN && n <= 1);
    }
}

/* Leases that ran out, and work that is due. */
static void prepare_work(struct engine *e, unsigned run)
{
    struct semel_lease leases[MSGS];
    size_t n = 0;
    load_begin(run, fill_plain);
    semel__arena_reset(&e->keep);
    assert_ok(e, semel__lease_claim(&e->inbox, load.msgs, 1, false, &e->keep, leases, &n, e->settled, &e->err));
    process(e, load.msgs + 1, 2);
    for (size_t i = 0; i < load.n; i++)
        e->settled[i].act = SEMEL_ACK;
    e->now_us += e->policy.lease_us + 20 * SECOND_US;
}

static semel_status run_work(struct engine *e)
{
    size_t n = 0;
    semel_status status = semel__inbox_recover(&e->inbox, 100, &n, &e->err);
    return status == SEMEL_OK ? semel__inbox_work(&e->inbox, 100, &n, &e->err) : status;
}

/* Purge: the watermark first; nothing that was purged runs again. */
static void prepare_purge(struct engine *e, unsigned run)
{
    e->policy.retention_us = HOUR_US;
    load_begin(run, fill_plain);
    for (size_t i = 0; i < load.n; i++)
        load.msgs[i].message_time_us = e->now_us;
    process(e, load.msgs, load.n);
    tick(e);
    e->now_us += 2 * HOUR_US;
}

static semel_status run_purge(struct engine *e)
{
    size_t n = 0;
    return semel__inbox_purge(&e->inbox, 100, &n, &e->err);
}

static void check_purge(struct engine *e)
{
    size_t n;
    assert_ok(e, semel_store_reopen(e->store, &e->err));
    process(e, load.msgs, load.n);
    assert_ok(e, semel__inbox_purge(&e->inbox, 100, &n, &e->err));
    check_effects(e);
}

/* A command: the row and its audit line, or neither. */
static struct {
    int64_t audits;
    bool done;
} said;

static void prepare_command(struct engine *e, unsigned run)
{
    load_begin(run, fill_plain);
    load.n = 1;
    load.msgs[0].payload = SEMEL_STR("bad@1");
    process(e, load.msgs, 1);
    said.audits = audits_of(e);
}

static semel_status run_command(struct engine *e)
{
    const struct semel_row row = {.source = SEMEL_STR("s"), .id = load.msgs[0].id, .version = SEMEL_NONE};
    struct semel_command c = {.kind = SEMEL_COMMAND_RETRY,
                              .row = &row,
                              .who = SEMEL_STR("ops"),
                              .reason = SEMEL_STR("why")};
    struct semel_command_result result;
    semel_status status = semel__inbox_command(&e->inbox, &c, &result, &e->err);
    said.done = result.done;
    return status;
}

static void check_command(struct engine *e)
{
    assert_ok(e, semel_store_reopen(e->store, &e->err));
    bool retried = state_of(e, load.ids[0]) == SEMEL_ROW_FAILED;
    assert_int_equal(audits_of(e) - said.audits, retried);
    assert_true(retried || !said.done);
    if (!retried)
        assert_ok(e, run_command(e));
    finish(e);
    check_effects(e);
}

/* ---- the loop ----------------------------------------------------------------------------------------- */

static unsigned run_to_the_end(const struct scenario *s, struct engine *e, bool on, unsigned *run)
{
    unsigned n = 1, step = stride(e->db == NULL ? s->step : 1);
    for (bool reached = true; reached; n += step) {
        assert_true(n < N_MAX);
        forget(e);
        s->prepare(e, ++*run);
        renew_inbox(e);
        memory_fails_at(n, on);
        semel_status status = s->run(e);
        reached = memory_is_back();
        check_status(status, &e->err);
        if (!reached)
            assert_ok(e, status);
        e->dead = false;
        s->check(e);
    }
    return failing.seen;
}

static void fails_everywhere(void **state, const struct scenario *s)
{
    struct engine *e = *state;
    unsigned run = 0, once = run_to_the_end(s, e, false, &run);
    unsigned from = run_to_the_end(s, e, true, &run);
    print_message("%s: %u allocations, %u when all from there on failed\n", s->name, once, from);
    assert_true(once > 0);
}

static void batch_survives_every_failed_allocation(void **state)
{
    fails_everywhere(state, &(struct scenario){"batch", prepare_batch, run_batch, check_batch, 3});
}

static void leases_survive_every_failed_allocation(void **state)
{
    fails_everywhere(state, &(struct scenario){"leases", prepare_leased, run_leased, check_batch, 1});
}

static void effects_outside_survive_every_failed_allocation(void **state)
{
    fails_everywhere(state, &(struct scenario){"outside", prepare_outside, run_batch, check_outside, 1});
}

static void scheduler_survives_every_failed_allocation(void **state)
{
    fails_everywhere(state, &(struct scenario){"work", prepare_work, run_work, check_batch, 1});
}

static void purge_survives_every_failed_allocation(void **state)
{
    fails_everywhere(state, &(struct scenario){"purge", prepare_purge, run_purge, check_purge, 1});
}

static void command_survives_every_failed_allocation(void **state)
{
    fails_everywhere(state, &(struct scenario){"command", prepare_command, run_command, check_command, 1});
}

/* ---- without an engine -------------------------------------------------------------------------------- */

/* A database: opened, made where it is not there yet, and one message processed with no statement prepared yet. */
static semel_status open_and_process(const char *kind, const struct semel__msg *m, enum semel_act *ret_act)
{
    static struct engine e;
    engine_init(&e);
    semel_status status = engine_open(&e, kind);
    *ret_act = SEMEL_LATER;
    if (status == SEMEL_OK)
        status = semel__inbox_process(&e.inbox, m, 1, e.settled, &e.err);
    if (status == SEMEL_OK)
        *ret_act = e.settled[0].act;
    semel_status seen = status;
    check_status(seen, &e.err);
    engine_close(&e);
    return status;
}

static void open_everywhere(const char *kind, unsigned step)
{
    struct semel__msg m = msg("a", "ok");
    for (int on = 0; on < 2; on++) {
        unsigned n = 1;
        for (bool reached = true; reached; n += stride(step)) {
            enum semel_act act;
            memory_fails_at(n, on != 0);
            semel_status status = open_and_process(kind, &m, &act);
            reached = memory_is_back();
            assert_true(n < N_MAX);
            assert_int_equal(act == SEMEL_ACK, status == SEMEL_OK);
            if (!reached)
                assert_int_equal(status, SEMEL_OK);
        }
        print_message("open %s: %u allocations\n", kind, failing.seen);
    }
}

static void opening_survives_every_failed_allocation(void **state)
{
    (void)state;
    open_everywhere("mem", 1);
    open_everywhere("sqlite", 13);
}

static void connecting_survives_every_failed_allocation(void **state)
{
    (void)state;
    open_everywhere("postgres", 1);
}

/* extract.h: the call fails only for lack of memory, and lack of memory never looks like a defect. */
static void extraction_survives_every_failed_allocation(void **state)
{
    const struct semel_pair headers[] = {{SEMEL_STR("ce_type"), SEMEL_STR("t")}, {SEMEL_STR("x"), {"\xff", 1}}};
    const struct semel_delivery d = {
        .source = SEMEL_STR("s"),
        .payload = SEMEL_STR("{\"id\":\"m1\",\"k\":{\"a\":[1,\"two\"]},\"v\":7,\"at\":\"2026-11-15T19:38:00Z\"}"),
        .headers = headers,
        .n_headers = 2};
    const struct semel_rules rules = {.id = {SEMEL_RULE_JSON, SEMEL_STR("/id")},
                                      .order = {SEMEL_RULE_JSON, SEMEL_STR("/k/a/1")},
                                      .lock = {SEMEL_RULE_DIGEST, {0}},
                                      .version = {SEMEL_RULE_JSON, SEMEL_STR("/v")},
                                      .time = {SEMEL_RULE_JSON, SEMEL_STR("/at")},
                                      .business = {{SEMEL_RULE_JSON, SEMEL_STR("/id")},
                                                   {SEMEL_RULE_JSON, SEMEL_STR("/v")}},
                                      .n_business = 2};
    (void)state;
    for (int on = 0; on < 2; on++) {
        unsigned n = 1;
        for (bool reached = true; reached; n++) {
            struct semel_arena arena;
            struct semel__msg m;
            struct semel_error err;
            semel__arena_init(&arena, 1 << 20);
            memory_fails_at(n, on != 0);
            semel_status status = semel__extract(&rules, &d, 1 << 20, &arena, &m, &err);
            reached = memory_is_back();
            assert_true(status == SEMEL_OK || (reached && status == SEMEL_RETRY));
            if (status == SEMEL_OK) {
                assert_int_equal(m.defect, SEMEL_DEFECT_NONE);
                assert_str(m.id, "m1");
                assert_str(m.order_key, "two");
                assert_int_equal(m.version, 7);
                assert_int_equal(m.fp.kind, SEMEL_FP_JSON);
            }
            semel__arena_done(&arena);
        }
        print_message("extract: %u allocations\n", failing.seen);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(extraction_survives_every_failed_allocation, give_back),
        cmocka_unit_test_teardown(opening_survives_every_failed_allocation, give_back),
        ON_POSTGRES(connecting_survives_every_failed_allocation),
        ON_EACH(batch_survives_every_failed_allocation),
        ON_EACH(leases_survive_every_failed_allocation),
        ON_EACH(effects_outside_survive_every_failed_allocation),
        ON_EACH(scheduler_survives_every_failed_allocation),
        ON_EACH(purge_survives_every_failed_allocation),
        ON_EACH(command_survives_every_failed_allocation),
    };
    install();
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
