/* SPDX-License-Identifier: MIT
 *
 * test_starts.c: starting points of scans: when a number is proven, what a transaction that stays does, and when all
 * of it is forgotten (P1, P70, P105, P106, P108, P109).
 */
#include "core/starts.h"
#include "unit/unit.h"

#define SECOND INT64_C(1000000)
#define SERVER INT64_C(77)

static struct semel_starts starts;

static int setup(void **state)
{
    (void)state;
    semel__starts_init(&starts, 0);
    return 0;
}

static struct semel_relay_holder holder(const char *name)
{
    return (struct semel_relay_holder){.name = semel__str(name), .pid = 7};
}

static void note(int64_t now_us, int64_t seq, const char *a, const char *b)
{
    struct semel_relay_holder holders[2] = {0};
    size_t n = 0;
    if (a != NULL)
        holders[n++] = holder(a);
    if (b != NULL)
        holders[n++] = holder(b);
    semel__starts_note(&starts, now_us, seq, SERVER, holders, n);
}

static int64_t scan(int64_t first)
{
    assert_false(semel__starts_scanned(&starts, 3, first));
    return starts.shards[3].at;
}

/* O5, P1 */
static void number_counts_once_nobody_who_may_have_drawn_it_is_left(void **state)
{
    (void)state;
    note(0, 10, "3/1", NULL);
    assert_int_equal(scan(SEMEL_NONE), SEMEL_STARTS_BOTTOM);
    note(SECOND / 2, 20, "3/1", "4/1");
    assert_int_equal(scan(SEMEL_NONE), SEMEL_STARTS_BOTTOM);
    note(SECOND - 1, 30, "4/1", NULL); /* 3/1 has ended; 4/1 came after the note */
    assert_int_equal(scan(SEMEL_NONE), 10);
}

static void nobody_holds_the_sequence_and_the_number_counts_at_once(void **state)
{
    (void)state;
    note(0, 10, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 10);
}

static void shard_starts_below_its_first_event(void **state)
{
    (void)state;
    note(0, 10, NULL, NULL);
    assert_int_equal(scan(4), 3);
    assert_int_equal(scan(8), 7);
    assert_int_equal(scan(15), 10);
}

/* O7, P70 */
static void holder_that_stays_is_set_apart_and_its_end_takes_all_back(void **state)
{
    const struct semel_relay_holder there = holder("3/1");
    (void)state;
    note(0, 5, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 5);
    note(SECOND, 10, "3/1", NULL);
    note(2 * SECOND, 20, "3/1", NULL);
    assert_int_equal(starts.n_apart, 1);
    assert_int_equal(scan(SEMEL_NONE), 20);
    assert_false(semel__starts_ended(&starts, &there, 1));
    note(3 * SECOND, 30, "3/1", NULL);
    assert_int_equal(scan(SEMEL_NONE), 30);
    assert_true(semel__starts_ended(&starts, NULL, 0));
    assert_int_equal(starts.shards[3].at, 5);
    assert_int_equal(scan(9), 5); /* nothing above is proven again yet */
    note(4 * SECOND, 40, NULL, NULL);
    assert_int_equal(scan(9), 8);
}

/* P108, P109 */
static void another_server_or_sequence_begins_at_the_bottom(void **state)
{
    (void)state;
    note(0, 10, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 10);
    semel__starts_note(&starts, SECOND, 12, SERVER + 1, NULL, 0);
    assert_int_equal(starts.shards[3].at, SEMEL_STARTS_BOTTOM);
    assert_int_equal(scan(SEMEL_NONE), 12);
    semel__starts_note(&starts, 2 * SECOND, 4, SERVER + 1, NULL, 0);
    assert_int_equal(starts.shards[3].at, SEMEL_STARTS_BOTTOM);
    assert_int_equal(scan(SEMEL_NONE), 4);
}

static void all_is_forgotten_every_minute_and_late_events_are_reported(void **state)
{
    (void)state;
    note(0, 10, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 10);
    note(60 * SECOND, 20, "3/1", NULL);
    assert_int_equal(starts.shards[3].at, SEMEL_STARTS_BOTTOM);
    assert_true(semel__starts_scanned(&starts, 3, 6));
    assert_false(semel__starts_scanned(&starts, 3, 6));
    assert_false(semel__starts_scanned(&starts, 4, 11)); /* that shard starts at 0, and has never been higher */
}

static void too_many_holders_prove_nothing(void **state)
{
    static struct semel_relay_holder many[SEMEL_RELAY_HOLDERS_MAX + 1];
    (void)state;
    for (size_t i = 0; i < COUNT(many); i++)
        many[i] = holder("3/1");
    semel__starts_note(&starts, 0, 10, SERVER, many, COUNT(many));
    semel__starts_note(&starts, 5 * SECOND, 20, SERVER, many, COUNT(many));
    assert_int_equal(scan(SEMEL_NONE), SEMEL_STARTS_BOTTOM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(number_counts_once_nobody_who_may_have_drawn_it_is_left, setup),
        cmocka_unit_test_setup(nobody_holds_the_sequence_and_the_number_counts_at_once, setup),
        cmocka_unit_test_setup(shard_starts_below_its_first_event, setup),
        cmocka_unit_test_setup(holder_that_stays_is_set_apart_and_its_end_takes_all_back, setup),
        cmocka_unit_test_setup(another_server_or_sequence_begins_at_the_bottom, setup),
        cmocka_unit_test_setup(all_is_forgotten_every_minute_and_late_events_are_reported, setup),
        cmocka_unit_test_setup(too_many_holders_prove_nothing, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
