/* SPDX-License-Identifier: MIT
 *
 * test_process.c: crashes, stalls, failures and races of real processes on SQLite. A crash is SIGKILL, a stall SIGSTOP.
 *
 * The ledger and the other side's file are the judges. The rows of the inbox are read only to see what was recorded.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include "fault/world.h"

#define ROUNDS 60

static void assert_text(struct world *w, const char *sql, const char *expected)
{
    char text[4096];

    world_text(w, sql, text, sizeof text);
    assert_string_equal(text, expected);
}

/* Starts workers until one ends in peace; says how many were killed on the way. */
static int deaths_until_peace(struct world *w, const char *const *args)
{
    int deaths = 0, status;

    while ((status = world_end(w, world_start(w, NULL, args))) != 0) {
        assert_true(killed(status));
        assert_true(++deaths < 20);
    }
    return deaths;
}

static void until_there(struct world *w, const char *file)
{
    for (int ms = 0; !world_has(w, file); ms++) {
        assert_true(ms < 20000);
        poll(NULL, 0, 1);
    }
}

static void until_alerted(struct world *w, const char *text)
{
    for (int ms = 0; !world_alerted(w, text); ms++) {
        assert_true(ms < 20000);
        poll(NULL, 0, 1);
    }
}

static void until_delivered(struct world *w, int64_t times)
{
    for (int ms = 0; world_spool(w, "SELECT sum(deliveries) FROM message") < times; ms++) {
        assert_true(ms < 20000);
        poll(NULL, 0, 1);
    }
}

static void until_acknowledged(struct world *w)
{
    for (int ms = 0; world_spool(w, "SELECT count(*) FROM message WHERE state <> 2") > 0; ms++) {
        assert_true(ms < 20000);
        poll(NULL, 0, 1);
    }
}

/* ---- crashes ------------------------------------------------------------------------------------------ */

/* T1 I2 */
static void crash_after_the_business_logic_is_redelivered_and_applied_once(void **state)
{
    struct world *w = *state;

    world_send(w, "m-1", booking(TASK_OK, 0, "a", 7), 1);
    world_crash(w, "batch.handled:1", ARGS("effect=atomic"));
    assert_int_equal(world_count(w, "SELECT (SELECT count(*) FROM ledger) + (SELECT count(*) FROM semel_inbox)"), 0);
    assert_int_equal(world_unacked(w), 1);
    world_run(w, ARGS("effect=atomic"));
    world_balances(w);
    assert_text(w, "SELECT status, attempts FROM semel_inbox", "completed|1");
}

/* T1 E1 */
static void crash_after_an_outside_effect_repeats_it_under_the_same_key(void **state)
{
    struct world *w = *state;
    int64_t calls;

    world_send(w, "m-1", booking(TASK_OK, 0, "a", 7), 1);
    world_crash(w, "finish.begun:1", ARGS("effect=keyed"));
    world_run(w, ARGS("effect=keyed"));
    world_balances_outside(w, &calls);
    assert_int_equal(calls, 2);
    assert_text(w, "SELECT status, attempts FROM semel_inbox", "completed|2");
}

/* T1 E2 I14 */
static void crash_after_an_outside_effect_without_a_key_is_unknown_until_it_is_reconciled(void **state)
{
    struct world *w = *state;
    int64_t calls;

    world_send(w, "m-1", booking(TASK_OK, 0, "a", 7), 1); /* it happened */
    world_crash(w, "finish.begun:1", ARGS("effect=outside"));
    world_send(w, "m-2", booking(TASK_OK, 0, "a", 8), 1); /* it did not */
    world_crash(w, "lease.run:1", ARGS("effect=outside", "ticks=0"));
    world_run(w, ARGS("effect=outside"));
    assert_text(w, "SELECT message_id, status, error_class FROM semel_inbox ORDER BY message_id",
                "m-1|unknown|lease_expired\nm-2|unknown|lease_expired");
    assert_true(world_alerted(w, "unknown m-1"));
    world_run(w, ARGS("effect=outside", "mode=reconcile"));
    assert_text(w, "SELECT message_id, status FROM semel_inbox ORDER BY message_id", "m-1|completed\nm-2|failed");
    world_run(w, ARGS("effect=outside"));
    world_balances_outside(w, &calls);
    assert_int_equal(calls, 2);
    assert_text(w, "SELECT what, message_id FROM semel_audit ORDER BY id", "resolve|m-1\nretry|m-2");
}

/* T7 */
static void crash_before_the_commit_leaves_nothing_and_after_it_only_an_acknowledgement_to_send(void **state)
{
    static const struct {
        const char *at;
        int64_t booked;
    } crashes[] = {{"batch.settled:1", 0}, {"batch.committed:1", 1}, {"pump.before_ack:1", 1}};
    struct world *w = *state;
    char id[16];

    for (size_t i = 0; i < COUNT(crashes); i++) {
        const int64_t before = world_count(w, "SELECT count(*) FROM ledger");
        snprintf(id, sizeof id, "m-%zu", i);
        world_send(w, id, booking(TASK_OK, 0, "a", 7), 1);
        world_crash(w, crashes[i].at, ARGS("effect=atomic"));
        assert_int_equal(world_count(w, "SELECT count(*) FROM ledger") - before, crashes[i].booked);
        assert_int_equal(world_unacked(w), 1);
        world_run(w, ARGS("effect=atomic"));
        assert_int_equal(world_report(w, "worker", "why.duplicate"), crashes[i].booked);
        world_balances(w);
    }
}

/* ---- the same message --------------------------------------------------------------------------------- */

/* Gives one message after the other to both at once; says how often both ran, and how often the loser was told so. */
static void race_deliveries(struct world *w, const char *effect, int *ret_both, int *ret_told)
{
    const char *const args[] = {effect, "mode=deliver", "lease_ms=60000", NULL}; /* however slow the machine is */
    struct child *a = world_start(w, NULL, args), *b = world_start(w, NULL, args);
    char line[512], payload[TASK_TEXT], answers[2][256];

    *ret_both = *ret_told = 0;
    for (int i = 0; i < ROUNDS; i++) {
        char id[32];
        snprintf(id, sizeof id, "%s-%d", effect + strlen("effect="), i);
        const struct task task = booking(TASK_OK, 0, i % 2 == 0 ? "a" : "b", i);
        task_write(&w->sent[world_plan(w, id, task, 1)].task, payload);
        snprintf(line, sizeof line, "%s %s\n", id, payload);
        world_say(i % 2 == 0 ? a : b, line);
        world_say(i % 2 == 0 ? b : a, line);
        world_hear(a, answers[0], sizeof answers[0]);
        world_hear(b, answers[1], sizeof answers[1]);
        int ran = 0;
        for (int k = 0; k < 2; k++) {
            const bool new = strcmp(answers[k], "new completed") == 0;
            const bool told = strcmp(answers[k], "duplicate completed") == 0 ||
                              strcmp(answers[k], "busy processing") == 0;
            ran += new;
            *ret_told += told;
            if (!new && !told)
                print_error("%s: worker %d answers '%s'\n", id, k, answers[k]);
        }
        *ret_both += ran != 1;
    }
    assert_int_equal(world_end(w, a), 0);
    assert_int_equal(world_end(w, b), 0);
}

/* T2 I3 */
static void two_workers_with_the_same_message_have_one_effect_and_the_other_is_told(void **state)
{
    struct world *w = *state;
    int both, told;

    world_push(w, NULL, 0);
    race_deliveries(w, "effect=atomic", &both, &told);
    assert_int_equal(both, 0);
    assert_int_equal(told, ROUNDS);
    world_balances(w);
}

/* T2 I3 */
static void two_workers_with_the_same_outside_message_make_one_call(void **state)
{
    struct world *w = *state;
    int64_t calls;
    int both, told;

    world_push(w, NULL, 0);
    race_deliveries(w, "effect=keyed", &both, &told);
    assert_int_equal(both, 0);
    assert_int_equal(told, ROUNDS);
    world_balances_outside(w, &calls);
    assert_int_equal(calls, ROUNDS);
}

/* T6 I9 */
static void the_same_message_again_later_is_acknowledged_and_dropped(void **state)
{
    struct world *w = *state;

    world_send(w, "m-1", booking(TASK_OK, 0, "a", 7), 1);
    world_run(w, ARGS("effect=atomic"));
    world_again(w, 0); /* sent once more by the producer */
    world_run(w, ARGS("effect=atomic"));
    assert_int_equal(world_report(w, "worker", "why.duplicate"), 1);
    world_requeue(w); /* delivered once more by the broker */
    world_run(w, ARGS("effect=atomic"));
    assert_int_equal(world_report(w, "worker", "why.duplicate"), 2);
    assert_int_equal(world_report(w, "worker", "done"), 0);
    world_balances(w);
}

/* ---- failures ----------------------------------------------------------------------------------------- */

#define SLOW "retry_first_ms=60000", "retry_ceiling_ms=600000"

/* T3 I4 I6 */
static void failing_business_logic_is_recorded_and_counted_on_the_next_attempt(void **state)
{
    static const char seen[] =
        "SELECT status, attempts, error_class, error_text, CASE WHEN due_at > updated_at THEN 1 ELSE 0 END,"
        " (SELECT count(*) FROM semel_attempt) FROM semel_inbox";
    struct world *w = *state;

    world_send(w, "m-1", booking(TASK_FLAKY, 2, "a", 7), 1);
    world_run(w, ARGS(SLOW, "ticks=0", "until=spool"));
    assert_text(w, seen, "failed|1|transient|the teller is out|1|1");
    assert_int_equal(world_count(w, "SELECT count(*) FROM ledger"), 0);
    assert_int_equal(world_unacked(w), 0); /* kept by the store now */
    world_run(w, ARGS(SLOW, "steps=0", "loops=1", "ahead_s=120"));
    assert_text(w, seen, "failed|2|transient|the teller is out|1|2");
    world_run(w, ARGS(SLOW, "steps=0", "loops=1", "ahead_s=900"));
    assert_text(w, "SELECT status, attempts, error_class, payload FROM semel_inbox", "completed|3|-|-");
    world_balances(w);
}

/* T5 I6 I15 */
static void past_the_retry_cap_a_message_is_dead_and_alerted_and_runs_no_more(void **state)
{
    struct world *w = *state;

    world_send(w, "m-1", booking(TASK_FLAKY, 99, "a", 7), 0);
    world_send(w, "m-2", booking(TASK_OK, 0, "a", 8), 1);
    world_send(w, "m-3", booking(TASK_BAD, 99, "a", 9), 0);
    world_run(w, ARGS("retry_max=3"));
    assert_text(
        w, "SELECT message_id, status, attempts, error_class, error_text, due_at FROM semel_inbox ORDER BY message_id",
        "m-1|dead|3|transient|the teller is out|-\nm-2|completed|1|-|-|-\n"
        "m-3|dead|1|permanent|there is no such account|-");
    assert_true(world_alerted(w, "dead m-1 the teller is out"));
    assert_true(world_alerted(w, "dead m-3"));
    world_requeue(w);
    world_again(w, 0);
    world_run(w, ARGS("retry_max=3", "ahead_s=100000", "batch=1"));
    assert_int_equal(world_report(w, "worker", "why.dead"), 3);
    assert_int_equal(world_count(w, "SELECT attempts FROM semel_inbox WHERE message_id = 'm-1'"), 3);
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_attempt WHERE message_id = 'm-1'"), 3);
    world_balances(w);
}

static void send_a_killer(struct world *w, int n)
{
    world_send(w, "m-1", booking(TASK_OK, 0, "a", 1), 1);
    world_send(w, "killer", booking(TASK_DIE, n, "a", 5), n < 3 ? 1 : 0);
    world_send(w, "m-2", booking(TASK_OK, 0, "b", 2), 1);
    world_send(w, "m-3", booking(TASK_OK, 0, "c", 3), 1);
}

/* T5 I6 I15 */
static void a_message_that_kills_its_process_is_counted_and_ends_dead(void **state)
{
    struct world *w = *state;

    send_a_killer(w, 99);
    /* One death that nobody can count, for it was in the middle of a batch; one among those that came again, for which
     * nobody is charged; then three attempts. */
    assert_int_equal(deaths_until_peace(w, ARGS("retry_max=3")), 5);
    assert_text(w, "SELECT status, attempts, error_class FROM semel_inbox WHERE message_id = 'killer'",
                "dead|3|lease_expired");
    assert_true(world_alerted(w, "dead killer"));
    assert_int_equal(world_count(w, "SELECT max(attempts) FROM semel_inbox WHERE message_id <> 'killer'"), 1);
    world_balances(w);
}

/* T5 T1 */
static void a_message_that_killed_its_process_once_is_applied_once_in_the_end(void **state)
{
    struct world *w = *state;

    send_a_killer(w, 1);
    assert_int_equal(deaths_until_peace(w, ARGS("retry_max=3")), 3);
    assert_text(w, "SELECT status, attempts FROM semel_inbox WHERE message_id = 'killer'", "completed|2");
    world_balances(w);
}

/* ---- leases ------------------------------------------------------------------------------------------- */

/* T4 I7 */
static void a_row_stuck_in_processing_is_recovered_and_then_completed(void **state)
{
    struct world *w = *state;

    world_send(w, "m-1", booking(TASK_OK, 0, "a", 7), 1);
    world_crash(w, "lease.run:1", ARGS("effect=keyed", "name=victim"));
    assert_text(w, "SELECT status, attempts, substr(lease_owner, 1, 7) FROM semel_inbox", "processing|1|victim-");
    world_run(w, ARGS("effect=keyed", "name=heir"));
    assert_int_equal(world_report(w, "heir", "recovered"), 1);
    assert_text(w, "SELECT status, attempts, lease_owner FROM semel_inbox", "completed|2|-");
    assert_text(w, "SELECT attempt, error_class FROM semel_attempt", "1|lease_expired");
    world_balances_outside(w, NULL);
}

/* T4 I7 P39 */
static void a_stopped_worker_that_comes_back_is_fenced_and_the_key_makes_it_one_effect(void **state)
{
    struct world *w = *state;
    struct child *slow;
    int64_t calls;

    world_send(w, "m-1", booking(TASK_OK, 0, "a", 7), 1);
    slow = world_start(w, "SEMEL_STOP_AT=lease.run:1", ARGS("effect=keyed", "name=slow"));
    world_stopped(w, slow);
    world_run(w, ARGS("effect=keyed", "name=heir"));
    assert_text(w, "SELECT status, attempts FROM semel_inbox", "completed|2");
    kill(slow->pid, SIGCONT);
    assert_int_equal(world_end(w, slow), 0);
    assert_int_equal(world_report(w, "slow", "fenced"), 1);
    assert_int_equal(world_report(w, "slow", "done"), 0);
    world_balances_outside(w, &calls);
    assert_int_equal(calls, 2); /* the late one, under the same key */
    assert_text(w, "SELECT status, attempts FROM semel_inbox", "completed|2");
    assert_text(w, "SELECT error_class, error_text FROM semel_attempt ORDER BY id DESC LIMIT 1",
                "lease_expired|refused under a stale token: the late worker reported done");
}

/* T4 I7 */
static void a_stopped_worker_that_comes_back_does_not_run_what_another_has_done_in_the_database(void **state)
{
    struct world *w = *state;
    struct child *slow;

    world_send(w, "m-1", booking(TASK_OK, 0, "a", 7), 1);
    world_crash(w, "batch.handled:1", ARGS("effect=atomic")); /* now it runs behind a claim */
    slow = world_start(w, "SEMEL_STOP_AT=lease.run:1", ARGS("effect=atomic", "name=slow"));
    world_stopped(w, slow);
    world_run(w, ARGS("effect=atomic", "name=heir"));
    kill(slow->pid, SIGCONT);
    assert_int_equal(world_end(w, slow), 0);
    assert_int_equal(world_report(w, "slow", "fenced"), 1);
    assert_text(w, "SELECT worker FROM ledger", "heir");
    world_balances(w);
}

/* T4 I7 P39 */
static void a_late_end_is_refused_while_the_next_worker_still_runs(void **state)
{
    struct world *w = *state;
    struct child *slow, *heir;
    int64_t calls;

    world_send(w, "m-1", booking(TASK_GATE, 0, "a", 7), 1);
    world_touch(w, "gate.m-1.slow.go");
    slow = world_start(w, "SEMEL_STOP_AT=lease.run:1", ARGS("effect=keyed", "name=slow"));
    world_stopped(w, slow);
    heir = world_start(w, NULL, ARGS("effect=keyed", "name=heir", "lease_ms=60000"));
    until_there(w, "gate.m-1.heir.in");
    kill(slow->pid, SIGCONT);
    world_until(w, "SELECT count(*) FROM semel_attempt WHERE error_text LIKE 'refused under a stale token%'");
    assert_text(w, "SELECT status, attempts, substr(lease_owner, 1, 5) FROM semel_inbox", "processing|2|heir-");
    world_touch(w, "gate.m-1.heir.go");
    assert_int_equal(world_end(w, heir), 0);
    assert_int_equal(world_end(w, slow), 0);
    assert_int_equal(world_report(w, "slow", "done"), 0);
    assert_int_equal(world_report(w, "heir", "done"), 1);
    world_balances_outside(w, &calls);
    assert_int_equal(calls, 2);
}

/* T4 I7 P39 */
static void of_two_stopped_workers_only_the_last_owner_runs_it_in_the_database(void **state)
{
    struct world *w = *state;
    struct child *slow, *heir;

    world_send(w, "m-1", booking(TASK_OK, 0, "a", 7), 1);
    world_crash(w, "batch.handled:1", ARGS("effect=atomic"));
    slow = world_start(w, "SEMEL_STOP_AT=lease.run:1", ARGS("effect=atomic", "name=slow"));
    world_stopped(w, slow);
    heir = world_start(w, "SEMEL_STOP_AT=lease.run:1", ARGS("effect=atomic", "name=heir", "lease_ms=60000"));
    world_stopped(w, heir);
    kill(slow->pid, SIGCONT);
    world_until(w, "SELECT status = 'processing' AND lease_owner LIKE 'heir-%' FROM semel_inbox");
    until_acknowledged(w); /* slow has gone on, and leaves it to heir, who has claimed it */
    assert_int_equal(world_count(w, "SELECT count(*) FROM ledger"), 0);
    kill(heir->pid, SIGCONT);
    assert_int_equal(world_end(w, heir), 0);
    assert_int_equal(world_end(w, slow), 0);
    assert_int_equal(world_report(w, "slow", "fenced"), 1);
    assert_text(w, "SELECT worker FROM ledger", "heir");
    world_balances(w);
}

/* ---- transactions ------------------------------------------------------------------------------------- */

/* A writer that has no patience at all is let in. */
static void assert_nobody_waits(struct world *w)
{
    struct books *books = books_open(w->store);

    if (books_on_postgres(w->store))
        books_run(books, "SET lock_timeout = '1ms'; BEGIN; LOCK TABLE semel.inbox, semel.order_key, ledger; COMMIT");
    else
        books_run(books, "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE; CREATE TABLE other (x); COMMIT");
    books_close(books);
}

/* P22 */
static void no_transaction_is_held_while_an_outside_handler_waits(void **state)
{
    struct world *w = *state;
    struct child *waiting;

    world_send(w, "m-1", booking(TASK_GATE, 0, "a", 7), 1);
    waiting = world_start(w, NULL, ARGS("effect=keyed", "lease_ms=60000", "visibility_ms=60000", "name=waiting"));
    until_there(w, "gate.m-1.waiting.in");
    assert_nobody_waits(w);
    world_send(w, "m-2", booking(TASK_OK, 0, "a", 8), 1);
    world_run(w, ARGS("effect=keyed", "lease_ms=60000", "name=other", "until=spool", "batch=1", "visibility_ms=60000",
                      "loops=1"));
    assert_int_equal(world_report(w, "other", "done"), 1);
    world_touch(w, "gate.m-1.waiting.go");
    assert_int_equal(world_end(w, waiting), 0);
    assert_int_equal(world_report(w, "waiting", "recovered"), 0);
    world_balances_outside(w, NULL);
}

/* I21 */
static void a_handler_that_emits_has_its_rows_rolled_back_with_it_and_one_row_for_each_message(void **state)
{
    struct world *w = *state;
    char id[16];

    for (int i = 0; i < 12; i++) {
        snprintf(id, sizeof id, "m-%02d", i);
        world_send(w, id, booking(TASK_EMIT, i % 3 == 0 ? 2 : 0, i % 2 == 0 ? "a" : "b", i), 1);
    }
    world_crash(w, "batch.settled:1", ARGS("batch=12"));
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_outbox"), 0);
    world_run(w, ARGS("batch=12"));
    assert_int_equal(world_report(w, "worker", "failed"), 8);
    assert_text(w, "SELECT count(*), count(DISTINCT aggregateid), count(DISTINCT id) FROM semel_outbox", "12|12|12");
    world_balances(w);
}

/* P63 I6 */
static void a_missing_table_opens_the_breaker_and_charges_no_message(void **state)
{
    struct world *w = *state;
    struct child *worker;
    char id[16];

    for (int i = 0; i < 15; i++) {
        snprintf(id, sizeof id, "m-%02d", i);
        world_send(w, id, booking(TASK_MISSING, 0, "a", i), 1);
    }
    worker = world_start(w, NULL, ARGS("retry_max=2", "until=stop"));
    until_alerted(w, "breaker 1 broken");
    until_delivered(w, 20); /* probes go on */
    assert_int_equal(world_count(w, "SELECT (SELECT count(*) FROM ledger) + (SELECT count(*) FROM semel_attempt)"), 0);
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox WHERE status IN ('failed', 'dead')"), 0);
    world_sql(w, "CREATE TABLE missing (a TEXT, b TEXT, c BIGINT, d BIGINT, e INTEGER, f TEXT)");
    world_until(w, "SELECT count(*) = 15 FROM ledger");
    kill(worker->pid, SIGTERM);
    assert_int_equal(world_end(w, worker), 0);
    world_run(w, ARGS("retry_max=2")); /* what was acknowledged late */
    assert_text(w, "SELECT DISTINCT status, attempts, error_class FROM semel_inbox", "completed|1|-");
    assert_false(world_alerted(w, "dead"));
    world_balances(w);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
    const struct CMUnitTest tests[] = {
        TEST(crash_after_the_business_logic_is_redelivered_and_applied_once),
        TEST(crash_after_an_outside_effect_repeats_it_under_the_same_key),
        TEST(crash_after_an_outside_effect_without_a_key_is_unknown_until_it_is_reconciled),
        TEST(crash_before_the_commit_leaves_nothing_and_after_it_only_an_acknowledgement_to_send),
        TEST(two_workers_with_the_same_message_have_one_effect_and_the_other_is_told),
        TEST(two_workers_with_the_same_outside_message_make_one_call),
        TEST(the_same_message_again_later_is_acknowledged_and_dropped),
        TEST(failing_business_logic_is_recorded_and_counted_on_the_next_attempt),
        TEST(past_the_retry_cap_a_message_is_dead_and_alerted_and_runs_no_more),
        TEST(a_message_that_kills_its_process_is_counted_and_ends_dead),
        TEST(a_message_that_killed_its_process_once_is_applied_once_in_the_end),
        TEST(a_row_stuck_in_processing_is_recovered_and_then_completed),
        TEST(a_stopped_worker_that_comes_back_is_fenced_and_the_key_makes_it_one_effect),
        TEST(a_stopped_worker_that_comes_back_does_not_run_what_another_has_done_in_the_database),
        TEST(a_late_end_is_refused_while_the_next_worker_still_runs),
        TEST(of_two_stopped_workers_only_the_last_owner_runs_it_in_the_database),
        TEST(no_transaction_is_held_while_an_outside_handler_waits),
        TEST(a_handler_that_emits_has_its_rows_rolled_back_with_it_and_one_row_for_each_message),
        TEST(a_missing_table_opens_the_breaker_and_charges_no_message),
    };

    return world_main(argc, argv, tests, COUNT(tests));
}
