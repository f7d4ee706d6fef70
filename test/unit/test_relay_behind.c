/* SPDX-License-Identifier: MIT
 *
 * test_relay_behind.c: events that stand behind a run of very many events of few aggregates, in their shard (O5, P113).
 */
#include "unit/relay_fake.h"

#include <ctype.h>
#include <stdlib.h>

/* One event of an aggregate at a time, or runs; about so many rows per step. */
static void begin(bool one_by_one, size_t rows)
{
    begin_again();
    options.rows = rows;
    options.one_by_one = one_by_one;
    make_relay(0);
    for (int i = 0; i < 3; i++, pass(SECOND)) /* it is known who holds the sequence */
        step_of(0);
}

/* Of the aggregates aa<name>, all in one shard, so many events in turn: their types are the names and numbers. */
static void put_run(size_t n, const char *const *names, size_t n_names)
{
    char key[16], type[16];
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "aa%s", names[i % n_names]);
        snprintf(type, sizeof type, "%s%03zu", names[i % n_names], i);
        put(key, type, "x");
    }
}
#define PUT_RUN(n, ...) put_run(n, (const char *const[]){__VA_ARGS__}, COUNT(((const char *const[]){__VA_ARGS__})))

/* How many events of the aggregate are still in the outbox. */
static size_t in_outbox(const char *key)
{
    size_t n = 0;
    for (const struct row *row = db.rows; row < db.rows + db.n; row++)
        n += row->there && !row->aside && strcmp(row->key, key) == 0;
    return n;
}

/* Every 50 ms a step, until the sink has got what is named: how many steps, at most `max`. */
static size_t steps_until(const char *got, size_t max)
{
    size_t i = 0;
    for (; i < max && strstr(sink.got, got) == NULL; i++) {
        step_of(0);
        pass(SECOND / 20);
    }
    return i;
}

/* What came of the aggregate whose types have the initial, in order. Returns how many. */
static size_t assert_in_order(char initial)
{
    size_t n = 0;
    long last = -1;
    for (const char *p = sink.got; *p != '\0'; p++) {
        if (*p != initial || (p > sink.got && p[-1] != ' ') || !isdigit((unsigned char)p[1]))
            continue;
        const long number = strtol(p + 1, NULL, 10);
        assert_true(number > last);
        last = number;
        n++;
    }
    return n;
}

/* O5, P113 */
static void others_do_not_wait_until_a_run_has_moved_aside(void **state)
{
    (void)state;
    begin(true, 40);
    PUT_RUN(600, "h");
    put("aax", "x1", "x");
    assert_in_range(steps_until("x1", 60), 1, 59);
    assert_true(in_outbox("aah") > 200);
    put("aax", "x2", "x");
    put("aay", "y1", "x");
    assert_in_range(steps_until("y1", 10), 1, 9); /* the end of the run is known */
    assert_in_range(steps_until("x2", 10), 0, 9);
    assert_true(in_outbox("aah") > 100);
    for (int i = 0; i < 3000 && left() > 0; i++, pass(SECOND / 20)) {
        if (strlen(sink.got) > sizeof sink.got / 2) {
            (void)assert_in_order('h');
            memmove(sink.got, sink.got + 3000, strlen(sink.got + 3000) + 1);
        }
        step_of(0);
    }
    assert_int_equal(left(), 0);
    (void)assert_in_order('h');
    assert_int_equal(counts()->published, 603);
}

/* O5, P113 */
static void others_pass_a_run_behind_a_refused_event(void **state)
{
    (void)state;
    begin(false, 40);
    options.attempts_max = 50;
    sink.refuse = "h000";
    PUT_RUN(600, "h");
    put("aax", "x1", "x");
    assert_in_range(steps_until("x1", 60), 1, 59);
    assert_true(in_outbox("aah") > 200);
    assert_string_equal(sink.got, "x1");
}

static void others_pass_runs_of_several_aggregates(void **state)
{
    (void)state;
    begin(true, 40);
    PUT_RUN(600, "g", "h", "k");
    put("aax", "x1", "x");
    assert_in_range(steps_until("x1", 60), 1, 59);
    assert_true(in_outbox("aah") > 100);
    for (int i = 0; i < 200; i++, pass(SECOND / 20))
        step_of(0);
    assert_true(assert_in_order('g') > 10 && assert_in_order('h') > 10 && assert_in_order('k') > 10);
}

/* Too many aggregates to be remembered: nothing is stepped over, and everything goes in order. */
static void runs_of_many_aggregates_move_aside(void **state)
{
    (void)state;
    begin(true, 40);
    PUT_RUN(300, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t");
    put("aax", "x1", "x");
    assert_in_range(steps_until("x1", 200), 1, 199);
    for (int i = 0; i < 200 && left() > 0; i++, pass(SECOND / 20))
        step_of(0);
    assert_int_equal(left(), 0);
    assert_int_equal(assert_in_order('a'), 15);
}

/* O5: behind two runs stands one more of the second, of which nothing was read yet, and nothing stands aside. */
static void event_of_the_run_behind_it_waits_for_the_run(void **state)
{
    (void)state;
    begin(true, 40);
    PUT_RUN(300, "g");
    PUT_RUN(200, "h");
    put("aax", "x1", "x");
    put("aah", "h998", "x");
    assert_in_range(steps_until("x1", 60), 1, 59);
    assert_true(in_outbox("aag") > 100);
    assert_null(strstr(sink.got, "h998"));
    assert_in_range(steps_until("h", 60), 1, 59);
    (void)assert_in_order('h');
}

/* O5: one that stands aside behind the run goes from there, too; one of the run does not. */
static void event_aside_behind_a_run_goes(void **state)
{
    (void)state;
    begin(true, 40);
    PUT_RUN(400, "g");
    PUT_RUN(200, "h");
    struct row *x = put("aax", "x1", "x"), *h = put("aah", "h998", "x");
    x->aside = h->aside = true;
    SET(x->status, "waiting");
    SET(h->status, "waiting");
    x->due_us = h->due_us = world.now_us;
    put("aay", "y1", "x");
    for (int i = 0; i < 60 && strstr(sink.got, "x1") == NULL; i++, pass(SECOND))
        step_of(0);
    assert_non_null(strstr(sink.got, "x1"));
    assert_true(in_outbox("aag") > 100);
    assert_null(strstr(sink.got, "h998"));
}

/* ---- lower numbers that commit later ------------------------------------------------------------- */

static struct row *late;

static void hold_late(size_t before, size_t after)
{
    PUT_RUN(before, "h");
    late = put("aax", "x001", "x");
    late->there = false;
    PUT_RUN(after, "h");
    world.holders[0] = (struct semel_relay_holder){.name = SEMEL_STR("3/17"), .pid = 17};
    world.n_holders = 1;
}

static void commit_late(void)
{
    if (late->there)
        return;
    late->there = true;
    world.n_holders = 0;
    put("aax", "x002", "x");
}

static void commit_between_scans(void)
{
    if (strstr(world.trace, "read") != NULL) /* in this step, already */
        commit_late();
}

static void assert_late_came_first(void)
{
    for (int i = 0; i < 400 && strstr(sink.got, "x002") == NULL; i++, pass(SECOND / 20))
        step_of(0);
    assert_int_equal(assert_in_order('x'), 2);
}

/* P1: nobody has proven that nothing can appear within the run. */
static void number_that_is_not_committed_yet_is_not_stepped_over(void **state)
{
    (void)state;
    begin(true, 40);
    hold_late(300, 300);
    for (int i = 0; i < 4; i++, pass(SECOND / 20))
        step_of(0);
    commit_late();
    pass(SECOND);
    assert_late_came_first();
}

/* P1: its transaction stays, and is set apart; what is known of the run ends with it. */
static void number_of_a_holder_set_apart_is_not_overtaken_from_behind_a_run(void **state)
{
    (void)state;
    begin(true, 40);
    hold_late(300, 250);
    for (int i = 0; i < 400 && counts()->behind == 0; i++, pass(SECOND))
        step_of(0);
    assert_true(counts()->behind > 0);
    commit_late();
    assert_late_came_first();
}

/* P109: what was seen over another connection proves nothing. */
static void what_is_known_of_a_run_is_forgotten_with_the_connection(void **state)
{
    (void)state;
    begin(true, 40);
    hold_late(300, 250);
    world.n_holders = 0;
    for (int i = 0; i < 400 && counts()->behind == 0; i++, pass(SECOND))
        step_of(0);
    assert_true(counts()->behind > 0);
    commit_late();
    semel__relay_forget(relays[0]);
    assert_late_came_first();
}

static void number_that_commits_between_the_scans_is_not_overtaken(void **state)
{
    (void)state;
    begin(true, 40);
    hold_late(300, 250);
    for (int i = 0; i < 400 && counts()->behind == 0; i++, pass(SECOND))
        step_of(0);
    assert_true(counts()->behind > 0);
    world.at_read = commit_between_scans;
    assert_late_came_first();
}

static void run_is_not_stepped_over_where_nothing_can_be_proven(void **state)
{
    (void)state;
    begin_again();
    world.hidden = true;
    options.rows = 40;
    options.one_by_one = true;
    make_relay(0);
    PUT_RUN(600, "h");
    put("aax", "x1", "x");
    assert_in_range(steps_until("x1", 200), 1, 199);
    assert_int_equal(counts()->behind, 0);
}

int main(void)
{
#define ON(test) cmocka_unit_test_setup_teardown(test, up, down)
    const struct CMUnitTest tests[] = {
        ON(others_do_not_wait_until_a_run_has_moved_aside),
        ON(others_pass_a_run_behind_a_refused_event),
        ON(others_pass_runs_of_several_aggregates),
        ON(runs_of_many_aggregates_move_aside),
        ON(event_of_the_run_behind_it_waits_for_the_run),
        ON(event_aside_behind_a_run_goes),
        ON(number_that_is_not_committed_yet_is_not_stepped_over),
        ON(number_of_a_holder_set_apart_is_not_overtaken_from_behind_a_run),
        ON(what_is_known_of_a_run_is_forgotten_with_the_connection),
        ON(number_that_commits_between_the_scans_is_not_overtaken),
        ON(run_is_not_stepped_over_where_nothing_can_be_proven),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
