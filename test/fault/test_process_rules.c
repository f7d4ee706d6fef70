/* SPDX-License-Identifier: MIT
 *
 * test_process_rules.c: business keys, versions, order, retention and retry, kept by several processes on SQLite.
 *
 * As in test_process.c the ledger is the judge. Workers that are to compete wait for each other at a barrier.
 */
#include <signal.h>
#include <stdlib.h>

#include "fault/world.h"

#define KEYS 6
#define EACH 8
#define DEAD 20

static void assert_text(struct world *w, const char *sql, const char *expected)
{
    char text[8192];

    world_text(w, sql, text, sizeof text);
    assert_string_equal(text, expected);
}

static struct task intending(const char *intent, const char *account, long long cents)
{
    struct task task = booking(TASK_OK, 0, account, cents);

    snprintf(task.intent, sizeof task.intent, "%s", intent);
    return task;
}

static struct task versioned(const char *account, long long version)
{
    struct task task = booking(TASK_OK, 0, account, 10 + version);

    task.version = version;
    return task;
}

/* Starts them all, lets them go at once, and waits for their ends. */
static void compete(struct world *w, const char *const *args, size_t n)
{
    struct child *children[WORLD_CHILDREN];
    const char *all[20], *names[] = {"name=w0", "name=w1", "name=w2", "name=w3"};
    const char *const seeds[] = {"seed=1", "seed=2", "seed=3", "seed=4"};
    char line[64];
    size_t k = 0;

    while (args[k] != NULL) {
        all[k] = args[k];
        k++;
    }
    for (size_t i = 0; i < n; i++) {
        all[k] = names[i];
        all[k + 1] = seeds[i];
        all[k + 2] = "barrier=1";
        all[k + 3] = NULL;
        children[i] = world_start(w, NULL, all);
        world_hear(children[i], line, sizeof line);
        assert_string_equal(line, "ready");
    }
    for (size_t i = 0; i < n; i++)
        world_say(children[i], "\n");
    for (size_t i = 0; i < n; i++)
        assert_int_equal(world_end(w, children[i]), 0);
}

/* ---- business keys and versions ----------------------------------------------------------------------- */

/* T8 I10 */
static void another_message_id_with_the_same_business_request_is_prevented(void **state)
{
    struct world *w = *state;
    struct task refused = intending("pay-9", "a", 9);

    refused.kind = TASK_REJECT;
    world_send(w, "m-1", intending("pay-1", "a", 5), 1);
    world_send(w, "m-2", intending("pay-2", "a", 6), 1);
    world_run(w, ARGS("business=1"));
    world_send(w, "m-3", intending("pay-1", "a", 5), 0); /* later */
    world_send(w, "m-4", intending("pay-3", "b", 7), 1); /* in one batch with its twin */
    world_send(w, "m-5", intending("pay-3", "b", 7), 0);
    world_send(w, "m-6", refused, 0); /* a rejected one gives its key back */
    world_crash(w, "batch.settled:1", ARGS("business=1"));
    world_run(w, ARGS("business=1"));
    world_send(w, "m-7", intending("pay-9", "a", 9), 1);
    world_run(w, ARGS("business=1"));
    assert_text(
        w, "SELECT message_id, status, error_class FROM semel_inbox WHERE status <> 'completed' ORDER BY message_id",
        "m-3|prevented|business_duplicate\nm-5|prevented|business_duplicate\nm-6|rejected|rejected");
    world_balances(w);
}

/* T9 I12 */
static void versions_are_applied_in_order_and_once_whatever_the_order_in_which_they_come(void **state)
{
    struct world *w = *state;
    struct child *worker;

    world_send(w, "x-3", versioned("x", 3), 1);
    world_send(w, "x-1", versioned("x", 1), 1);
    world_send(w, "x-2", versioned("x", 2), 1);
    world_run(w, ARGS("order=version", "batch=1"));
    world_send(w, "x-2-again", versioned("x", 2), 0); /* another id, an old version */
    world_send(w, "x-3-again", versioned("x", 3), 0); /* another id, the last version */
    world_again(w, 0);
    world_run(w, ARGS("order=version", "batch=1"));
    assert_text(w, "SELECT message_id, status FROM semel_inbox WHERE status <> 'completed' ORDER BY message_id",
                "x-2-again|stale\nx-3-again|stale");
    world_send(w, "x-5", versioned("x", 5), 1); /* with a gap: held until the missing one comes */
    worker = world_start(w, NULL, ARGS("order=version", "until=stop"));
    world_until(
        w, "SELECT count(*) FROM semel_inbox WHERE message_id = 'x-5' AND status = 'waiting' AND error_class = 'gap'");
    world_send(w, "x-4", versioned("x", 4), 1);
    world_until(w, "SELECT count(*) FROM ledger WHERE message_id = 'x-5'");
    kill(worker->pid, SIGTERM);
    assert_int_equal(world_end(w, worker), 0);
    world_run(w, ARGS("order=version"));
    assert_text(w, "SELECT message_id FROM ledger ORDER BY line", "x-1\nx-2\nx-3\nx-4\nx-5");
    world_balances(w);
}

/* T9 I12 */
static void a_gap_that_is_never_filled_ends_as_the_route_says(void **state)
{
    struct world *w = *state;

    world_send(w, "x-2", versioned("x", 2), 0);
    world_run(w, ARGS("order=version", "gap_ms=50", "on_gap=dead"));
    assert_text(w, "SELECT status, error_class FROM semel_inbox", "dead|gap");
    assert_true(world_alerted(w, "dead x-2"));
    world_send(w, "y-2", versioned("y", 2), 1);
    world_run(w, ARGS("order=version", "gap_ms=50", "on_gap=apply"));
    world_send(w, "y-1", versioned("y", 1), 0); /* too late: state never goes back */
    world_run(w, ARGS("order=version", "gap_ms=50", "on_gap=apply"));
    assert_text(w, "SELECT status FROM semel_inbox WHERE message_id = 'y-1'", "stale");
    world_balances(w);
}

/* ---- retention ---------------------------------------------------------------------------------------- */

/* T10 I18 P60 */
static void a_message_whose_record_was_purged_is_quarantined_and_does_not_run(void **state)
{
    struct world *w = *state;
    char old[64], young[64], alert[96];

    id_of_age(w, 7200, old);
    id_of_age(w, 60, young);
    world_send(w, old, booking(TASK_OK, 0, "a", 5), 1);
    world_send(w, young, booking(TASK_OK, 0, "a", 6), 1);
    world_run(w, ARGS("retention_s=3600"));
    world_age(w, 7200);
    world_run(w, ARGS("retention_s=3600", "mode=purge"));
    assert_int_equal(world_report(w, "worker", "purged"), 1);
    world_requeue(w);
    world_run(w, ARGS("retention_s=3600"));
    assert_int_equal(world_report(w, "worker", "why.too_old"), 1);
    assert_int_equal(world_report(w, "worker", "why.duplicate"), 1);
    assert_text(w, "SELECT status, error_class FROM semel_inbox ORDER BY status", "completed|-\nquarantined|too_old");
    snprintf(alert, sizeof alert, "quarantined %s", old);
    assert_true(world_alerted(w, alert));
    world_balances(w);
}

/* P73 T10 I10 */
static void a_business_key_outlives_the_record_of_its_message(void **state)
{
    struct world *w = *state;

    world_send(w, "m-1", intending("pay-1", "a", 5), 1);
    world_run(w, ARGS("business=1", "retention_s=3600"));
    world_run(w, ARGS("business=1", "retention_s=3600", "mode=purge", "ahead_s=7200"));
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox"), 0);
    world_send(w, "m-2", intending("pay-1", "a", 5), 0);
    world_again(w, 0); /* its id is forgotten, its intent is not */
    world_run(w, ARGS("business=1", "retention_s=3600", "ahead_s=7200"));
    assert_text(w, "SELECT message_id, status FROM semel_inbox ORDER BY message_id", "m-1|prevented\nm-2|prevented");
    world_balances(w);
}

/* T10 I10 */
static void a_business_key_with_a_retention_expires_and_not_before(void **state)
{
    struct world *w = *state;

    world_send(w, "m-1", intending("pay-1", "a", 5), 1);
    world_run(w, ARGS("business=1", "business_retention_s=7200"));
    world_run(w, ARGS("business=1", "business_retention_s=7200", "mode=purge", "ahead_s=3600"));
    world_send(w, "m-2", intending("pay-1", "a", 5), 0);
    world_run(w, ARGS("business=1", "business_retention_s=7200", "ahead_s=3600"));
    world_send(w, "m-3", intending("pay-1", "a", 5), 1); /* expired, although nobody has purged it */
    world_run(w, ARGS("business=1", "business_retention_s=7200", "ahead_s=10000"));
    assert_text(w, "SELECT message_id, status FROM semel_inbox ORDER BY message_id",
                "m-1|completed\nm-2|prevented\nm-3|completed");
    world_balances(w);
}

/* ---- retry ------------------------------------------------------------------------------------------- */

static void make_dead(struct world *w)
{
    char id[16];

    for (int i = 0; i < DEAD; i++) {
        snprintf(id, sizeof id, "m-%02d", i);
        world_send(w, id, booking(TASK_FLAKY, 1, i % 2 == 0 ? "a" : "b", i), 1);
    }
    world_run(w, ARGS("retry_max=1", "breaker=100"));
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox WHERE status = 'dead'"), DEAD);
}

/* Both are told to retry each dead letter at the same time; says how often exactly one of them was told "done". */
static int retry_by_two(struct world *w, int *ret_done)
{
    struct child *a = world_start(w, NULL, ARGS("mode=command", "name=ann")),
                 *b = world_start(w, NULL, ARGS("mode=command", "name=bob"));
    char line[80], one[256], two[256];
    int single = 0;

    *ret_done = 0;
    for (size_t i = 0; i < w->n_sent; i++) {
        snprintf(line, sizeof line, "%s\n", w->sent[i].id);
        world_say(i % 2 == 0 ? a : b, line);
        world_say(i % 2 == 0 ? b : a, line);
        world_hear(a, one, sizeof one);
        world_hear(b, two, sizeof two);
        const int done = (strncmp(one, "done", 4) == 0) + (strncmp(two, "done", 4) == 0);
        *ret_done += done;
        single += done == 1;
    }
    assert_int_equal(world_end(w, a), 0);
    assert_int_equal(world_end(w, b), 0);
    return single;
}

/* T12 I16 P41 */
static void of_two_who_retry_a_dead_letter_at_once_one_is_told_and_it_runs_once(void **state)
{
    struct world *w = *state;
    int done;

    make_dead(w);
    assert_int_equal(retry_by_two(w, &done), DEAD);
    assert_int_equal(
        world_count(w, "SELECT count(*) FROM semel_audit WHERE what = 'retry' AND reason = 'asked by a test'"), DEAD);
    assert_text(w, "SELECT DISTINCT status, attempts, retries FROM semel_inbox", "failed|1|1");
    compete(w, ARGS("retry_max=1"), 2);
    assert_text(w, "SELECT DISTINCT status, attempts, retries FROM semel_inbox", "completed|2|1");
    world_balances(w);
}

/* T12 I16 */
static void a_dead_letter_that_is_retried_twice_has_one_effect(void **state)
{
    struct world *w = *state;
    int done;

    make_dead(w);
    for (int round = 0; round < 2; round++) {
        world_run(w, ARGS("mode=retry"));
        world_run(w, ARGS("retry_max=1"));
        world_balances(w);
    }
    assert_int_equal(retry_by_two(w, &done), 0);
    assert_int_equal(done, 0); /* it is done: there is nothing to retry */
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_audit"), DEAD);
    world_balances(w);
}

/* T12 I16 P41 */
static void a_retry_that_fails_again_is_dead_again_and_counted(void **state)
{
    struct world *w = *state;

    world_send(w, "m-1", booking(TASK_FLAKY, 3, "a", 5), 1);
    world_run(w, ARGS("retry_max=2"));
    assert_text(w, "SELECT status, attempts, retries FROM semel_inbox", "dead|2|0");
    world_run(w, ARGS("mode=retry"));
    world_crash(w, "take.committed:1", ARGS("retry_max=2", "name=victim")); /* counts as its third attempt */
    world_run(w, ARGS("retry_max=2"));
    assert_text(w, "SELECT status, attempts, retries FROM semel_inbox", "completed|4|1");
    world_balances(w);
}

/* ---- everything twice, shuffled, and several workers --------------------------------------------------- */

static void plan_keys(struct world *w, bool flaky)
{
    char id[32], account[16];

    for (int i = 0; i < KEYS * EACH; i++) {
        snprintf(account, sizeof account, "key-%d", i % KEYS);
        snprintf(id, sizeof id, "%s-%d", account, i / KEYS + 1);
        struct task task = versioned(account, i / KEYS + 1);
        task.cents = 7 * i + 1;
        task.kind = flaky && i % 7 == 3 ? TASK_FLAKY : TASK_OK;
        task.n = 1;
        world_plan(w, id, task, 1);
    }
}

static void push_all(struct world *w, size_t copies, bool shuffled)
{
    size_t which[4 * KEYS * EACH];

    for (size_t i = 0; i < copies * w->n_sent; i++)
        which[i] = i / copies;
    if (shuffled)
        world_shuffle(w, which, copies * w->n_sent);
    world_push(w, which, copies * w->n_sent);
}

static const char the_state[] = "SELECT account, balance, chain FROM accounts ORDER BY account";
static const char the_lines[] = "SELECT account, version, message_id, cents FROM ledger ORDER BY account, version";
static const char inversions[] =
    "SELECT count(*) FROM ledger AS a, ledger AS b WHERE a.account = b.account AND a.line < b.line"
    " AND a.version > b.version";

static struct world single; /* a second world, beside that of the test */

/* What a single delivery of each, in order and by one worker, makes of it. */
static void single_delivery(const char *const *args, char lines[8192], char accounts[1024])
{
    world_open(&single, 7);
    single.partitioned = true;
    plan_keys(&single, false);
    push_all(&single, 1, false);
    world_run(&single, args);
    world_balances(&single);
    world_text(&single, the_lines, lines, 8192);
    world_text(&single, the_state, accounts, 1024);
    world_close(&single);
}

static int close_both(void **state)
{
    world_close(&single);
    return world_teardown(state);
}

/* T14 I12 I13 */
static void every_event_twice_and_shuffled_gives_the_state_of_a_single_delivery(void **state)
{
    struct world *w = *state;
    char lines[8192], accounts[1024];

    single_delivery(ARGS("order=version"), lines, accounts);
    plan_keys(w, true);
    push_all(w, 2, true);
    compete(w, ARGS("order=version", "visibility_ms=2000", "lease_ms=2000"), 3);
    assert_text(w, the_lines, lines);
    assert_text(w, the_state, accounts);
    assert_int_equal(world_count(w, inversions), 0);
    world_balances(w);
}

/* T14 I13 */
static void every_event_twice_on_several_workers_keeps_the_order_of_each_key(void **state)
{
    struct world *w = *state;
    char lines[8192], accounts[1024];

    single_delivery(ARGS("order=arrival"), lines, accounts);
    w->partitioned = true;
    plan_keys(w, true);
    push_all(w, 2, false);
    compete(w, ARGS("order=arrival", "batch=5"), 4); /* with the short time-outs: deliveries cross over too */
    assert_text(w, the_lines, lines);
    assert_text(w, the_state, accounts);
    assert_int_equal(world_count(w, inversions), 0);
    world_balances(w);
}

/* T14 P61 */
static void every_event_twice_without_any_order_balances(void **state)
{
    struct world *w = *state;
    long ran = 0;

    plan_keys(w, true);
    push_all(w, 4, true);
    compete(w, ARGS("order=none", "batch=16", "visibility_ms=2000"), 4);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        ran += world_report(w, name, "done");
    }
    assert_int_equal(ran, KEYS * EACH);
    world_balances(w);
}

/* T14 I13 */
static void order_of_each_key_holds_for_outside_effects_on_several_workers(void **state)
{
    struct world *w = *state;
    char path[128], line[512], account[32];
    int last[KEYS] = {0}, key, version;
    FILE *f;

    w->partitioned = true;
    plan_keys(w, true);
    push_all(w, 2, false);
    compete(w, ARGS("effect=keyed", "order=arrival", "batch=5", "lease_ms=5000"), 4);
    world_balances_outside(w, NULL);
    snprintf(path, sizeof path, "%s/effects", w->dir);
    f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        assert_int_equal(sscanf(line, "%*s key-%d-%d %31s", &key, &version, account), 3);
        assert_int_equal(version, last[key] + 1);
        last[key] = version;
    }
    fclose(f);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, close_both)
    const struct CMUnitTest tests[] = {
        TEST(another_message_id_with_the_same_business_request_is_prevented),
        TEST(versions_are_applied_in_order_and_once_whatever_the_order_in_which_they_come),
        TEST(a_gap_that_is_never_filled_ends_as_the_route_says),
        TEST(a_message_whose_record_was_purged_is_quarantined_and_does_not_run),
        TEST(a_business_key_outlives_the_record_of_its_message),
        TEST(a_business_key_with_a_retention_expires_and_not_before),
        TEST(of_two_who_retry_a_dead_letter_at_once_one_is_told_and_it_runs_once),
        TEST(a_dead_letter_that_is_retried_twice_has_one_effect),
        TEST(a_retry_that_fails_again_is_dead_again_and_counted),
        TEST(every_event_twice_and_shuffled_gives_the_state_of_a_single_delivery),
        TEST(every_event_twice_on_several_workers_keeps_the_order_of_each_key),
        TEST(every_event_twice_without_any_order_balances),
        TEST(order_of_each_key_holds_for_outside_effects_on_several_workers),
    };

    return world_main(argc, argv, tests, COUNT(tests));
}
