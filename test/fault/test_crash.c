/* SPDX-License-Identifier: MIT
 *
 * test_crash.c: a worker is killed at every labelled point of the code, and the books balance all the same.
 *
 * Each workload is run once in calm, which shows how often it comes to which point. Then, for each point, a worker is
 * killed there by SIGKILL, fresh workers finish the work, and the ledger is asked, not Semel: every message had its
 * effect once, none is lost, none doubled, the balances are those of a single delivery, and every delivery is
 * acknowledged. A point that no workload comes to fails the test. With SEMEL_LONG=1 there are at least 20 kills a
 * point, with other seeds and visits, and the worker that cleans up is killed as well.
 */
#include "fault/world.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include "base/point.h"

#define MESSAGES 24
#define ACCOUNTS 4
#define LONG_KILLS 20

struct workload {
    const char *name;
    const char *args[8]; /* of the route: the same for every worker */
    const char *victim;  /* what the one does that is killed */
    void (*prepare)(struct world *w, const struct workload *load, const char *seed);
    void (*finish)(struct world *w, const struct workload *load, const char *seed);
    bool outside;
};

static struct world world;

/* ---- parts of workloads ------------------------------------------------------------------------------- */

/* The arguments of a worker of this workload; valid until the next call. */
static const char *const *args_of(const struct workload *load, const char *more, const char *seed)
{
    static const char *args[12];
    size_t n = 0;

    for (; load->args[n] != NULL; n++)
        args[n] = load->args[n];
    args[n++] = more;
    args[n++] = seed;
    args[n] = NULL;
    return args;
}

static void plan_bookings(struct world *w, bool flaky)
{
    char id[32], account[16];

    for (int i = 0; i < MESSAGES; i++) {
        snprintf(id, sizeof id, "m-%02d", i);
        snprintf(account, sizeof account, "acc-%d", i % ACCOUNTS);
        struct task task = booking(flaky && i % 5 == 1 ? TASK_FLAKY : TASK_OK, 1 + i % 2, account, 100 + i);
        task.version = i / ACCOUNTS + 1;
        world_plan(w, id, task, 1);
    }
}

/* Every message comes twice. */
static void push_twice(struct world *w, bool shuffled)
{
    size_t which[2 * WORLD_SENT];

    for (size_t i = 0; i < 2 * w->n_sent; i++)
        which[i] = i / 2;
    if (shuffled)
        world_shuffle(w, which, 2 * w->n_sent);
    world_push(w, which, 2 * w->n_sent);
}

static void prepare_calm(struct world *w, const struct workload *load, const char *seed)
{
    (void)load;
    (void)seed;
    plan_bookings(w, false);
    push_twice(w, true);
}

static void prepare_poison(struct world *w, const struct workload *load, const char *seed)
{
    (void)load;
    (void)seed;
    plan_bookings(w, true);
    push_twice(w, true);
}

static void prepare_ordered(struct world *w, const struct workload *load, const char *seed)
{
    (void)load;
    (void)seed;
    w->partitioned = true;
    plan_bookings(w, true);
    push_twice(w, false);
}

/* A process has died with all of it in hand: everything comes again, and may be what killed it. */
static void prepare_again(struct world *w, const struct workload *load, const char *seed)
{
    prepare_poison(w, load, seed);
    world_crash(w, "batch.settled:1", args_of(load, "batch=100", seed));
}

/* Two processes have died: the second held a lease. */
static void prepare_stuck_alone(struct world *w, const struct workload *load, const char *seed)
{
    prepare_again(w, load, seed);
    world_crash(w, "lease.run:1", args_of(load, "batch=100", seed));
}

static void prepare_stuck(struct world *w, const struct workload *load, const char *seed)
{
    prepare_calm(w, load, seed);
    world_crash(w, "lease.run:1", args_of(load, "batch=8", seed));
}

/* The first attempt was the last one allowed: what failed is dead. */
static void prepare_dead(struct world *w, const struct workload *load, const char *seed)
{
    plan_bookings(w, false);
    for (size_t i = 0; i < w->n_sent; i += 3) {
        w->sent[i].task.kind = TASK_FLAKY;
        w->sent[i].task.n = 1;
    }
    push_twice(w, true);
    world_run(w, args_of(load, "batch=8", seed));
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox WHERE status = 'dead'"), MESSAGES / 3);
}

/* Completed, and older than the retention. */
static void prepare_old(struct world *w, const struct workload *load, const char *seed)
{
    char id[64];

    for (int i = 0; i < MESSAGES; i++) {
        id_of_age(w, 7200, id);
        world_plan(w, id, booking(TASK_OK, 0, i % 2 == 0 ? "acc-0" : "acc-1", 100 + i), 1);
    }
    push_twice(w, true);
    world_run(w, args_of(load, "batch=8", seed));
    world_age(w, 7200);
}

static void finish_run(struct world *w, const struct workload *load, const char *seed)
{
    world_run(w, args_of(load, "batch=8", seed));
}

/* What may have happened is asked for before it is done again. */
static void finish_outside(struct world *w, const struct workload *load, const char *seed)
{
    world_run(w, args_of(load, "batch=8", seed));
    world_run(w, args_of(load, "mode=reconcile", seed));
    world_run(w, args_of(load, "batch=8", seed));
}

static void finish_retry(struct world *w, const struct workload *load, const char *seed)
{
    world_run(w, args_of(load, "mode=retry", seed));
    world_run(w, args_of(load, "batch=8", seed));
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_audit"), MESSAGES / 3);
}

/* After the purge everything comes again, and none of it runs. */
static void finish_purge(struct world *w, const struct workload *load, const char *seed)
{
    world_run(w, args_of(load, "mode=purge", seed));
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox"), 0);
    world_requeue(w);
    world_run(w, args_of(load, "batch=8", seed));
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox WHERE status = 'quarantined'"), MESSAGES);
}

static const struct workload workloads[] = {
    {"batch", {"effect=atomic"}, "batch=8", prepare_calm, finish_run, false},
    {"poison", {"effect=atomic"}, "batch=8", prepare_poison, finish_run, false},
    {"keyed", {"effect=keyed"}, "batch=8", prepare_poison, finish_run, true},
    {"stuck", {"effect=keyed"}, "batch=8", prepare_stuck, finish_run, true},
    {"retry", {"effect=atomic", "retry_max=1"}, "mode=retry", prepare_dead, finish_retry, false},
    {"purge", {"effect=atomic", "retention_s=3600"}, "mode=purge", prepare_old, finish_purge, false},
    {"again", {"effect=atomic"}, "batch=8", prepare_again, finish_run, false},
    {"alone", {"effect=atomic"}, "batch=8", prepare_stuck_alone, finish_run, false},
    {"arrival", {"effect=atomic", "order=arrival"}, "batch=8", prepare_ordered, finish_run, false},
    {"keyed arrival", {"effect=keyed", "order=arrival"}, "batch=8", prepare_ordered, finish_run, true},
    {"version", {"effect=atomic", "order=version"}, "batch=8", prepare_poison, finish_run, false},
    {"outside", {"effect=outside"}, "batch=8", prepare_poison, finish_outside, true},
};

/* ---- one kill ----------------------------------------------------------------------------------------- */

static unsigned long visits[COUNT(workloads)][SEMEL_POINT_COUNT]; /* in calm */
static unsigned kills[SEMEL_POINT_COUNT];

/* The relay (test/e2e/test_run_outbox.py) and the gateway (test/e2e/test_gateway_keys.py) have matrices of their own:
 * no workload of the inbox comes there. */
static bool is_of_the_inbox(int point)
{
    static const char *const others[] = {"relay.", "keys.", "guard."};
    for (size_t i = 0; i < COUNT(others); i++)
        if (strncmp(semel__point_name((enum semel_point)point), others[i], strlen(others[i])) == 0)
            return false;
    return true;
}

static void check(struct world *w, const struct workload *load)
{
    int64_t calls = 0;

    if (!load->outside)
        world_balances(w);
    else
        world_balances_outside(w, &calls);
    assert_int_equal(world_count(w,
                                 "SELECT count(*) FROM semel_inbox WHERE status NOT IN ('completed', 'quarantined')"),
                     0);
    /* Without a key the other side could not tell: there must be no second call at all. */
    if (strcmp(load->args[0], "effect=outside") == 0)
        assert_int_equal(calls, MESSAGES);
}

static void run_calm(size_t at)
{
    const struct workload *load = &workloads[at];
    char what[64];

    world_open(&world, 1);
    load->prepare(&world, load, "seed=1");
    world_run(&world, args_of(load, load->victim, "seed=1"));
    for (int point = 0; point < SEMEL_POINT_COUNT; point++) {
        snprintf(what, sizeof what, "at.%s", semel__point_name((enum semel_point)point));
        visits[at][point] = (unsigned long)world_report(&world, "worker", what);
    }
    load->finish(&world, load, "seed=1");
    check(&world, load);
    world_close(&world);
}

/* Whoever cleans up may die too, wherever he is. */
static void crash_again(const struct workload *load, const char *seed)
{
    const size_t at = (size_t)(load - workloads);
    const enum semel_point point = (enum semel_point)semel__random_below(&world.rng, SEMEL_POINT_COUNT);
    char order[96];

    if (visits[at][point] == 0)
        return;
    snprintf(order, sizeof order, "SEMEL_CRASH_AT=%s:%d", semel__point_name(point),
             1 + (int)semel__random_below(&world.rng, 3));
    kills[point] += killed(world_end(&world, world_start(&world, order, args_of(load, load->victim, seed))));
}

static bool run_kill(size_t at, enum semel_point point, unsigned long visit, unsigned seed, bool twice)
{
    const struct workload *load = &workloads[at];
    char order[96], seed_text[32];
    int status;

    print_message("[ %s, %s:%lu, seed %u ]\n", load->name, semel__point_name(point), visit, seed);
    snprintf(seed_text, sizeof seed_text, "seed=%u", seed);
    snprintf(order, sizeof order, "SEMEL_CRASH_AT=%s:%lu", semel__point_name(point), visit);
    world_open(&world, seed);
    load->prepare(&world, load, seed_text);
    status = world_end(&world, world_start(&world, order, args_of(load, load->victim, seed_text)));
    assert_true(status == 0 || killed(status));
    if (twice)
        crash_again(load, seed_text);
    load->finish(&world, load, seed_text);
    check(&world, load);
    world_close(&world);
    kills[point] += killed(status);
    return killed(status);
}

/* The workloads that come to the point, first to last. */
static size_t list_loads(enum semel_point point, size_t ret[COUNT(workloads)])
{
    size_t n = 0;

    for (size_t i = 0; i < COUNT(workloads); i++)
        if (visits[i][point] > 0)
            ret[n++] = i;
    return n;
}

static void kill_twice(enum semel_point point, const size_t *loads, size_t n)
{
    const size_t last = loads[n - 1];
    size_t first = 0;

    /* One may have come to the point by chance, when the machine was slow, and not come there again. */
    while (first < n && !run_kill(loads[first], point, 1, 1, false))
        first++;
    assert_true(first < n);
    if (books_on_postgres(world.store)) /* the second is for the long run: everything there takes four times as long */
        return;
    if (visits[last][point] > 1)
        run_kill(last, point, 2, 2, false);
    else if (last != loads[first])
        run_kill(last, point, 1, 2, false);
}

static void kill_often(enum semel_point point, const size_t *loads, size_t n)
{
    const unsigned before = kills[point];
    struct semel_random rng;

    semel__random_seed(&rng, (uint64_t)point);
    for (unsigned round = 0; round < 4 * n || kills[point] - before < LONG_KILLS; round++) {
        const size_t at = loads[round % n];
        const unsigned long visit = 1 + (unsigned long)semel__random_below(&rng, visits[at][point]);
        assert_true(round < 10 * LONG_KILLS);
        if (!run_kill(at, point, visit, 10 + round, round % 2 == 1))
            run_kill(at, point, 1, 10 + round, false);
    }
}

/* ---- the test ----------------------------------------------------------------------------------------- */

/* T1 T7 */
static void death_at_any_point_leaves_every_effect_done_once(void **state)
{
    const bool at_length = getenv("SEMEL_LONG") != NULL;
    size_t loads[COUNT(workloads)];
    bool complete = true;

    (void)state;
    for (size_t i = 0; i < COUNT(workloads); i++)
        run_calm(i);
    for (int point = 0; point < SEMEL_POINT_COUNT; point++) {
        const size_t n = list_loads((enum semel_point)point, loads);
        if (!is_of_the_inbox(point))
            continue;
        if (n == 0)
            print_error("no workload comes to %s\n", semel__point_name((enum semel_point)point));
        else if (at_length)
            kill_often((enum semel_point)point, loads, n);
        else
            kill_twice((enum semel_point)point, loads, n);
    }
    for (int point = 0; point < SEMEL_POINT_COUNT; point++) {
        if (!is_of_the_inbox(point))
            continue;
        print_message("%-20s killed %u times\n", semel__point_name((enum semel_point)point), kills[point]);
        complete = complete && kills[point] > 0;
    }
    assert_true(complete);
}

/* ---- any moment --------------------------------------------------------------------------------------- */

#define STORM 300
#define STORM_WORKERS 3

static void plan_storm(struct world *w)
{
    char id[32], account[16];

    for (int i = 0; i < STORM; i++) {
        snprintf(id, sizeof id, "m-%03d", i);
        snprintf(account, sizeof account, "acc-%d", i % 7);
        struct task task = booking(i % 11 == 3 ? TASK_FLAKY : TASK_OK, 1, account, 100 + i);
        task.version = i / 7 + 1;
        world_plan(w, id, task, 1);
    }
    push_twice(w, true);
}

/* Kills one of the workers at any moment and starts another, so many times; then lets them finish. */
static void storm(const char *const *args, unsigned n_kills, uint64_t seed)
{
    struct child *workers[STORM_WORKERS];
    unsigned hit = 0;

    world_open(&world, seed);
    plan_storm(&world);
    for (size_t i = 0; i < STORM_WORKERS; i++)
        workers[i] = world_start(&world, NULL, args);
    for (unsigned i = 0; i < n_kills; i++) {
        struct child **victim = &workers[semel__random_below(&world.rng, STORM_WORKERS)];
        poll(NULL, 0, 1 + (int)semel__random_below(&world.rng, 60));
        kill((*victim)->pid, SIGKILL);
        hit += killed(world_end(&world, *victim));
        *victim = world_start(&world, NULL, args);
    }
    for (size_t i = 0; i < STORM_WORKERS; i++)
        assert_int_equal(world_end(&world, workers[i]), 0);
    print_message("[ %s %s: %u workers killed ]\n", args[0], args[1], hit);
    assert_true(hit > 0);
}

/* T1 T7 T14 */
static void workers_killed_at_any_moment_by_others_leave_the_books_balanced(void **state)
{
    static const char inversions[] = "SELECT count(*) FROM ledger AS a, ledger AS b WHERE a.account = b.account"
                                     " AND a.line < b.line AND a.version > b.version";
    const unsigned n = getenv("SEMEL_LONG") != NULL ? 300 : 15;

    (void)state;
    storm(ARGS("effect=atomic", "order=none"), n, 1);
    world_balances(&world);
    world_close(&world);
    storm(ARGS("effect=atomic", "order=version"), n, 2);
    world_balances(&world);
    assert_int_equal(world_count(&world, inversions), 0);
    world_close(&world);
    storm(ARGS("effect=keyed", "order=none"), n, 3);
    world_balances_outside(&world, NULL);
    world_close(&world);
}

static int close_world(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(death_at_any_point_leaves_every_effect_done_once, close_world),
        cmocka_unit_test_teardown(workers_killed_at_any_moment_by_others_leave_the_books_balanced, close_world),
    };

    return world_main(argc, argv, tests, COUNT(tests));
}
