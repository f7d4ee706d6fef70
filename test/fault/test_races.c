/* SPDX-License-Identifier: MIT
 *
 * test_races.c: four processes on one store that want the same thing at the same time.
 *
 * A racer is a child made by fork() that waits at a barrier, opens its own store and calls the inbox directly, without
 * a broker. What it was told goes to memory that all share; what happened is read from the ledger. A racer ends by its
 * exit status: EXPECT ends it, for cmocka would end the parent.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS, pipe2 */
#include "fault/world.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include "support/world_pg.h"
#include "store/pg_store.h"
#endif

#define RACERS 4
#define IDS 120
#define BATCH 16
#define TRIES 10000

#define EXPECT(condition)                                                           \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

struct told {
    int why[SEMEL_WHY_DAMAGED + 1];
    int done, recovered, lost, finished, claims[IDS];
    atomic_int purged;
};

struct racer {
    struct world *w;
    struct told *board;
    int which;
    struct semel_store *store;
    struct semel_policy policy;
    struct ledger ledger;
    struct semel__handler handler;
    struct semel_inbox inbox;
    struct semel_random rng;
    struct semel_error err;
    char owner[32];
};

typedef void (*race)(struct racer *r);

static struct told *board; /* one for each racer, shared */

/* ---- the field ---------------------------------------------------------------------------------------- */

static void open_racer(struct racer *r)
{
    static const struct semel_store_ops *const stores[] = {
        &semel__store_sqlite,
#ifdef SEMEL_WITH_POSTGRES
        &semel__store_postgres,
#endif
        NULL,
    };
    const struct semel_store_options options = {.create = true, .migrate = true, .lock_timeout_ms = 20000};

    semel__random_seed(&r->rng, (uint64_t)(r->which + 1));
    EXPECT(semel_store_open(&r->store, stores, r->w->store, &options, &r->err) == SEMEL_OK);
    semel__policy_init(&r->policy, SEMEL_STR("books"));
    r->policy.retry_first_us = 1000;
    r->policy.retry_ceiling_us = 2000;
    snprintf(r->owner, sizeof r->owner, "racer-%d", r->which);
    r->ledger = (struct ledger){.dir = r->w->dir,
                                .worker = r->owner,
                                .consumer = r->policy.consumer,
                                .queued = r->which % 2 == 0};
    r->handler = (struct semel__handler){.ctx = &r->ledger, .each = ledger_handle};
    semel__inbox_init(&r->inbox, r->store, &r->policy, &r->handler, &r->rng, semel__str(r->owner));
}

static _Noreturn void be_racer(struct world *w, int which, race run, int ready, int go)
{
    static struct racer r;
    char byte = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120);
    r = (struct racer){.w = w, .board = &board[which], .which = which};
    EXPECT(write(ready, &byte, 1) == 1 && read(go, &byte, 1) == 1);
    open_racer(&r); /* opening is part of the race */
    run(&r);
    r.board->done = (int)r.inbox.counts.done;
    semel__inbox_done(&r.inbox);
    semel_store_close(r.store);
    _exit(0);
}

/* runs[i] is for racer i; all start at once. The world's list of children has them, should the test fail meanwhile. */
static void start_race(struct world *w, const race *runs, size_t n)
{
    int ready[2], go[2], status;
    char bytes[RACERS] = {0};

    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    memset(board, 0, RACERS * sizeof *board);
    fflush(NULL);
    for (size_t i = 0; i < n; i++) {
        w->children[i].pid = fork();
        assert_true(w->children[i].pid >= 0);
        if (w->children[i].pid == 0)
            be_racer(w, (int)i, runs[i], ready[1], go[0]);
        w->children[i].in = w->children[i].out = -1;
    }
    for (size_t i = 0; i < n; i++)
        assert_int_equal(read(ready[0], bytes, 1), 1);
    assert_int_equal(write(go[1], bytes, n), n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(waitpid(w->children[i].pid, &status, 0), w->children[i].pid);
        w->children[i] = (struct child){0};
        assert_int_equal(status, 0);
    }
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(go[i]);
    }
}

static void race_all(struct world *w, race run)
{
    const race runs[] = {run, run, run, run};

    start_race(w, runs, RACERS);
}

static int reported_in_all(enum semel_why why)
{
    int n = 0;

    for (int i = 0; i < RACERS; i++)
        n += board[i].why[why];
    return n;
}

/* ---- deliveries --------------------------------------------------------------------------------------- */

struct post {
    char payload[TASK_TEXT];
    struct semel__msg msg;
};

static void fill_post(struct world *w, size_t which, struct post *post)
{
    const struct sent *sent = &w->sent[which];

    task_write(&sent->task, post->payload);
    semel__msg_init(&post->msg);
    post->msg.source = SEMEL_STR("orders");
    post->msg.id = semel__str(sent->id);
    post->msg.payload = semel__str(post->payload);
    post->msg.lock_key = semel__str(sent->task.account);
    post->msg.delivery = 1;
    if (semel__fp_compute(post->msg.payload, &post->msg.fp, NULL) != SEMEL_OK)
        _exit(1);
}

static int64_t made_us; /* the time of all messages of the race with a purge: a copy has the time of its message */

/* Delivers these until each is acknowledged, as a broker would. */
static void deliver(struct racer *r, const size_t *which, size_t n)
{
    static struct post posts[BATCH];
    struct semel__msg msgs[BATCH];
    struct semel_settled settled[BATCH];
    size_t left = n;

    for (size_t i = 0; i < n; i++) {
        fill_post(r->w, which[i], &posts[i]);
        if (r->policy.business_retention_us != SEMEL_NONE) {
            posts[i].msg.business[0] = semel__str(r->w->sent[which[i]].task.intent);
            posts[i].msg.n_business = 1;
        }
        if (r->policy.retention_us == SEMEL_HORIZON_MIN_US) /* made two hours ago */
            posts[i].msg.message_time_us = made_us;
        msgs[i] = posts[i].msg;
    }
    for (int tries = 0; left > 0; tries++) {
        size_t kept = 0;
        EXPECT(tries < TRIES);
        EXPECT(semel__inbox_process(&r->inbox, msgs, left, settled, &r->err) == SEMEL_OK);
        for (size_t i = 0; i < left; i++) {
            r->board->why[settled[i].why]++;
            if (settled[i].act == SEMEL_LATER)
                msgs[kept++] = msgs[i];
        }
        left = kept;
        if (left > 0)
            poll(NULL, 0, 2);
    }
}

/* All that is planned, shuffled, in batches of any size. */
static void deliver_shuffled(struct racer *r, size_t first, size_t n)
{
    size_t which[WORLD_SENT];

    for (size_t i = 0; i < n; i++)
        which[i] = first + i;
    for (size_t i = n; i > 1; i--) {
        const size_t j = (size_t)semel__random_below(&r->rng, i), swap = which[j];
        which[j] = which[i - 1];
        which[i - 1] = swap;
    }
    for (size_t at = 0; at < n;) {
        size_t size = 1 + (size_t)semel__random_below(&r->rng, BATCH);
        size = size < n - at ? size : n - at;
        deliver(r, which + at, size);
        at += size;
    }
}

static void plan_ids(struct world *w, const char *prefix, enum task_kind kind, size_t n)
{
    char id[32], account[16];

    for (size_t i = 0; i < n; i++) {
        snprintf(id, sizeof id, "%s-%03zu", prefix, i);
        snprintf(account, sizeof account, "acc-%zu", i % 5);
        struct task task = booking(kind, 1, account, (long long)i + 1);
        snprintf(task.intent, sizeof task.intent, "intent-%03zu", i);
        world_plan(w, id, task, 1);
    }
    world_push(w, NULL, 0); /* there is a spool, with nothing in it */
}

static void run_overlap(struct racer *r)
{
    deliver_shuffled(r, 0, IDS);
}

/* I3 P14 P61 */
static void overlapping_shuffled_batches_of_the_same_ids_run_each_once(void **state)
{
    struct world *w = *state;

    plan_ids(w, "m", TASK_OK, IDS);
    race_all(w, run_overlap);
    world_balances(w);
    assert_int_equal(reported_in_all(SEMEL_WHY_NEW), IDS);
    assert_int_equal(reported_in_all(SEMEL_WHY_DUPLICATE), (RACERS - 1) * IDS);
    assert_int_equal(board[0].done + board[1].done + board[2].done + board[3].done, IDS);
}

static void run_overlap_outside(struct racer *r)
{
    r->policy.effect = SEMEL_EFFECT_KEYED;
    r->ledger.outside = true;
    deliver_shuffled(r, 0, IDS);
}

/* I3 */
static void overlapping_batches_of_outside_effects_make_one_call_each(void **state)
{
    struct world *w = *state;
    int64_t calls;

    plan_ids(w, "m", TASK_OK, IDS);
    race_all(w, run_overlap_outside);
    world_balances_outside(w, &calls);
    assert_int_equal(calls, IDS);
    assert_int_equal(reported_in_all(SEMEL_WHY_NEW), IDS);
    assert_int_equal(reported_in_all(SEMEL_WHY_DUPLICATE), (RACERS - 1) * IDS);
}

static void run_business(struct racer *r)
{
    r->policy.business_retention_us = INT64_C(3600) * 1000000;
    deliver_shuffled(r, (size_t)r->which * IDS, IDS);
}

/* T8 I10 P68 */
static void of_several_ids_with_one_business_key_one_runs(void **state)
{
    static const char *const prefixes[RACERS] = {"a", "b", "c", "d"};
    struct world *w = *state;

    for (size_t i = 0; i < RACERS; i++)
        plan_ids(w, prefixes[i], TASK_OK, IDS);
    race_all(w, run_business);
    assert_int_equal(world_count(w, "SELECT count(*) FROM ledger"), IDS);
    assert_int_equal(world_count(w, "SELECT count(DISTINCT cents) FROM ledger"), IDS);
    assert_int_equal(world_count(w, "SELECT sum(balance) FROM accounts"), IDS * (IDS + 1) / 2);
    assert_int_equal(reported_in_all(SEMEL_WHY_BUSINESS), (RACERS - 1) * IDS);
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox WHERE status = 'prevented'"), (RACERS - 1) * IDS);
}

/* ---- leases ------------------------------------------------------------------------------------------- */

static size_t number_of(const struct semel__msg *msg)
{
    return (size_t)strtoul(msg->id.p + 2, NULL, 10);
}

static void run_take(struct racer *r)
{
    struct semel_lease leases[7];
    struct semel_arena arena;
    size_t n = 1;

    semel__arena_init(&arena, 1 << 24);
    r->policy.effect = SEMEL_EFFECT_KEYED;
    for (int idle = 0; idle < 50; idle = n == 0 ? idle + 1 : 0) {
        EXPECT(semel__lease_take(&r->inbox, COUNT(leases), &arena, leases, &n, &r->err) == SEMEL_OK);
        for (size_t i = 0; i < n; i++)
            r->board->claims[number_of(&leases[i].msg)]++;
        if (n == 0)
            poll(NULL, 0, 1);
    }
    semel__arena_done(&arena);
}

static void run_fail_all(struct racer *r)
{
    r->policy.effect = SEMEL_EFFECT_KEYED;
    r->ledger.outside = true;
    deliver_shuffled(r, 0, IDS);
}

/* I6 P6 P67 */
static void stored_work_that_is_due_is_claimed_by_one_taker(void **state)
{
    const race prepare[] = {run_fail_all};
    struct world *w = *state;

    plan_ids(w, "m", TASK_FLAKY, IDS);
    start_race(w, prepare, 1);
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox WHERE status = 'failed'"), IDS);
    race_all(w, run_take);
    for (size_t i = 0; i < IDS; i++)
        assert_int_equal(board[0].claims[i] + board[1].claims[i] + board[2].claims[i] + board[3].claims[i], 1);
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox WHERE status = 'processing' AND attempts = 2"),
                     IDS);
    assert_int_equal(world_count(w, "SELECT count(DISTINCT lease_token) FROM semel_inbox"), IDS);
}

#define GROUP 6
#define LEASE_MS 20

/* Ends each group of leases at about the time at which they run out. */
static void run_slow_finisher(struct racer *r)
{
    static struct post posts[GROUP];
    struct semel__msg msgs[GROUP];
    struct semel_lease leases[GROUP];
    struct semel_settled settled[GROUP];
    const struct semel_ending endings[GROUP] = {{.result = SEMEL_DONE}};
    struct semel_arena arena;
    size_t n;

    semel__arena_init(&arena, 1 << 24);
    r->policy.effect = SEMEL_EFFECT_KEYED;
    r->policy.lease_us = LEASE_MS * 1000;
    for (size_t at = 0; at < IDS; at += GROUP) {
        for (size_t i = 0; i < GROUP; i++) {
            fill_post(r->w, at + i, &posts[i]);
            msgs[i] = posts[i].msg;
        }
        EXPECT(semel__lease_claim(&r->inbox, msgs, GROUP, true, &arena, leases, &n, settled, &r->err) == SEMEL_OK);
        EXPECT(n == GROUP);
        poll(NULL, 0, LEASE_MS - 10 + (int)semel__random_below(&r->rng, 24));
        EXPECT(semel__lease_finish(&r->inbox, leases, endings, n, &r->err) == SEMEL_OK);
        for (size_t i = 0; i < n; i++) {
            r->board->lost += leases[i].lost;
            r->board->finished += !leases[i].lost;
        }
    }
    semel__arena_done(&arena);
    world_touch(r->w, "finished");
}

static void run_recover(struct racer *r)
{
    r->policy.effect = SEMEL_EFFECT_KEYED;
    r->policy.lease_us = LEASE_MS * 1000;
    for (bool last = false; !last;) {
        size_t n;
        last = world_has(r->w, "finished");
        EXPECT(semel__inbox_recover(&r->inbox, 3, &n, &r->err) == SEMEL_OK);
        r->board->recovered += (int)n;
        poll(NULL, 0, 1);
    }
}

/* Takes what was recovered, and ends it in good time. */
static void run_taker(struct racer *r)
{
    const struct semel_ending endings[GROUP] = {{.result = SEMEL_DONE}};
    struct semel_lease leases[GROUP];
    struct semel_arena arena;
    size_t n;

    semel__arena_init(&arena, 1 << 24);
    r->policy.effect = SEMEL_EFFECT_KEYED;
    for (int idle = 0; !world_has(r->w, "finished") || idle < 100; idle++) {
        EXPECT(semel__lease_take(&r->inbox, GROUP, &arena, leases, &n, &r->err) == SEMEL_OK);
        poll(NULL, 0, 8); /* the former owner may come back now */
        EXPECT(semel__lease_finish(&r->inbox, leases, endings, n, &r->err) == SEMEL_OK);
        for (size_t i = 0; i < n; i++) {
            EXPECT(!leases[i].lost);
            r->board->finished++;
            idle = 0;
        }
    }
    semel__arena_done(&arena);
}

/* I7 P39 */
static void a_lease_is_ended_by_its_slow_worker_or_by_its_successor_but_never_by_both(void **state)
{
    const race runs[] = {run_slow_finisher, run_recover, run_recover, run_taker};
    struct world *w = *state;

    plan_ids(w, "m", TASK_OK, IDS);
    start_race(w, runs, RACERS);
    print_message("finished %d, refused %d\n", board[0].finished, board[0].lost);
    assert_int_equal(board[0].finished + board[0].lost, IDS);
    assert_int_equal(board[0].lost, board[1].recovered + board[2].recovered);
    assert_int_equal(board[0].lost, board[3].finished);
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox WHERE status = 'completed'"), IDS);
    assert_int_equal(world_count(w, "SELECT sum(attempts) FROM semel_inbox"), IDS + board[0].lost);
    assert_int_equal(
        world_count(w, "SELECT count(*) FROM semel_attempt WHERE error_text LIKE 'refused under a stale token%'"),
        board[0].lost);
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_attempt"), 2 * board[0].lost);
}

/* ---- purge -------------------------------------------------------------------------------------------- */

/* On and on, and once more when all that was done before the race has been purged. */
static void run_deliver_old(struct racer *r)
{
    bool purged = false;

    r->policy.retention_us = SEMEL_HORIZON_MIN_US;
    for (int round = 0; round < 4 || !purged; round++) {
        EXPECT(round < TRIES);
        purged = board[2].purged + board[3].purged >= IDS / 2;
        deliver_shuffled(r, 0, IDS);
    }
    world_touch(r->w, r->which == 0 ? "finished-0" : "finished-1");
}

static void run_purge(struct racer *r)
{
    size_t n = 0;

    r->policy.retention_us = SEMEL_HORIZON_MIN_US;
    for (bool last = false; !last || n > 0;) {
        last = world_has(r->w, "finished-0") && world_has(r->w, "finished-1");
        EXPECT(semel__inbox_purge(&r->inbox, 5, &n, &r->err) == SEMEL_OK);
        r->board->purged += (int)n;
        poll(NULL, 0, 1);
    }
}

static void run_deliver_half(struct racer *r)
{
    r->policy.retention_us = SEMEL_HORIZON_MIN_US;
    deliver_shuffled(r, 0, IDS / 2);
}

/* P60 I18 */
static void purge_and_deliveries_of_the_same_old_ids_never_run_one_twice(void **state)
{
    const race prepare[] = {run_deliver_half}, runs[] = {run_deliver_old, run_deliver_old, run_purge, run_purge};
    struct world *w = *state;

    made_us = semel__now(&semel__clock_real) - 2 * SEMEL_HORIZON_MIN_US;
    plan_ids(w, "m", TASK_OK, IDS);
    start_race(w, prepare, 1); /* half of them are done before, the others meet the purge when they are new */
    world_age(w, 7200);
    start_race(w, runs, RACERS);
    assert_int_equal(world_count(w, "SELECT count(*) - count(DISTINCT message_id) FROM ledger"), 0);
    assert_int_equal(world_count(w, "SELECT count(*) FROM ledger WHERE message_id < 'm-060'"), IDS / 2);
    /* What did not run is kept: nothing is lost. */
    assert_int_equal(
        world_count(w, "SELECT count(*) FROM (SELECT message_id FROM ledger UNION SELECT message_id FROM semel_inbox"
                       " WHERE status = 'quarantined') AS kept"),
        IDS);
    assert_true(board[2].purged + board[3].purged >= IDS / 2);
    assert_true(reported_in_all(SEMEL_WHY_TOO_OLD) > 0);
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static void run_nothing(struct racer *r)
{
    (void)r;
}

static void make_empty(struct world *w, int round)
{
#ifdef SEMEL_WITH_POSTGRES
    if (world_server.process.pid != 0) {
        char url[PG_SERVER_TEXT];
        pg_server_database(&world_server, "empty");
        snprintf(w->store, sizeof w->store, "%s", pg_server_url(&world_server, "empty", url));
        return;
    }
#endif
    snprintf(w->store, sizeof w->store, "sqlite:%s/new-%d.db", w->dir, round);
}

/* P23 */
static void an_empty_store_that_several_open_at_once_is_made_once(void **state)
{
    struct world *w = *state;

    for (int round = 0; round < 10; round++) {
        make_empty(w, round);
        race_all(w, run_nothing);
        assert_int_equal(world_count(w, books_on_postgres(w->store)
                                            ? "SELECT count(*) = max(version) FROM semel.schema"
                                            : "SELECT count(*) = max(version) FROM semel_schema"),
                         1);
    }
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
    const struct CMUnitTest tests[] = {
        TEST(overlapping_shuffled_batches_of_the_same_ids_run_each_once),
        TEST(overlapping_batches_of_outside_effects_make_one_call_each),
        TEST(of_several_ids_with_one_business_key_one_runs),
        TEST(stored_work_that_is_due_is_claimed_by_one_taker),
        TEST(a_lease_is_ended_by_its_slow_worker_or_by_its_successor_but_never_by_both),
        TEST(purge_and_deliveries_of_the_same_old_ids_never_run_one_twice),
        TEST(an_empty_store_that_several_open_at_once_is_made_once),
    };

    board = mmap(NULL, RACERS * sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 1;
    return world_group(argc, argv, tests, COUNT(tests));
}
