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
    assert_int_equal(scan(-4), SEMEL_STARTS_BOTTOM); /* nothing is proven, and nothing comes late */
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
    assert_false(semel__starts_scanned(&starts, 4, 9));
    assert_int_equal(starts.shards[4].at, 5);
    assert_int_equal(scan(9), 5); /* nothing above is proven again yet */
    note(4 * SECOND, 40, NULL, NULL);
    assert_int_equal(scan(9), 8);
}

/* The patience is a second, and there is room for so many who stay. */
static void holder_is_waited_for_a_second_and_set_apart_while_there_is_room(void **state)
{
    static const size_t second[] = {1, 2}; /* beside all but one of those that are apart */
    (void)state;
    note(0, 10, "3/1", NULL);
    note(SECOND - 1, 20, "3/1", NULL);
    assert_int_equal(starts.n_apart, 0);
    note(SECOND, 30, "3/1", NULL);
    assert_int_equal(starts.n_apart, 1);
    assert_int_equal(starts.apart[0].pid, 7);
    assert_int_equal(scan(SEMEL_NONE), 30);
    note(5 * SECOND, 40, "3/1", "3/2"); /* a new note, and its own second */
    note(6 * SECOND - 1, 50, "3/1", "3/2");
    assert_int_equal(starts.n_apart, 1);
    note(6 * SECOND, 60, "3/1", "3/2");
    assert_int_equal(starts.n_apart, 2);
    for (size_t i = 0; i < COUNT(second); i++) {
        static char names[SEMEL_RELAY_HOLDERS_MAX + 1][8];
        static struct semel_relay_holder many[SEMEL_RELAY_HOLDERS_MAX + 1];
        for (size_t k = 0; k < COUNT(many); k++) {
            snprintf(names[k], sizeof names[k], "4/%zu", k);
            many[k] = holder(names[k]);
        }
        semel__starts_init(&starts, 0);
        semel__starts_note(&starts, 0, 10, SERVER, many, SEMEL_RELAY_HOLDERS_MAX - 1);
        semel__starts_note(&starts, SECOND, 20, SERVER, many, SEMEL_RELAY_HOLDERS_MAX - 1);
        assert_int_equal(starts.n_apart, SEMEL_RELAY_HOLDERS_MAX - 1);
        assert_int_equal(scan(SEMEL_NONE), 20);
        struct semel_relay_holder *later = many + SEMEL_RELAY_HOLDERS_MAX - second[i];
        for (size_t k = 0; k < second[i]; k++)
            later[k] = holder(k == 0 ? "5/1" : "5/2");
        semel__starts_note(&starts, 2 * SECOND, 30, SERVER, later, second[i]);
        semel__starts_note(&starts, 3 * SECOND, 40, SERVER, later, second[i]);
        assert_int_equal(starts.n_apart, SEMEL_RELAY_HOLDERS_MAX - (second[i] == 1 ? 0 : 1));
        assert_int_equal(scan(SEMEL_NONE), second[i] == 1 ? 40 : 20);
    }
}

/* P70: of two that were set apart one ends; what was noted before counts no more. */
static void end_of_one_who_was_set_apart_leaves_the_other_and_drops_the_note(void **state)
{
    struct semel_relay_holder there[2] = {holder("3/1"), holder("3/2")};
    (void)state;
    note(0, 5, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 5);
    note(SECOND, 10, "3/1", "3/2");
    note(2 * SECOND, 20, "3/1", "3/2");
    assert_int_equal(starts.n_apart, 2);
    assert_int_equal(scan(SEMEL_NONE), 20);
    const struct semel_relay_holder three[] = {there[0], there[1], holder("4/1")};
    semel__starts_note(&starts, 3 * SECOND, 30, SERVER, three, COUNT(three));
    assert_true(semel__starts_ended(&starts, three + 1, 2));
    assert_int_equal(starts.n_apart, 1);
    assert_int_equal(scan(SEMEL_NONE), 5);
    assert_false(semel__starts_ended(&starts, three + 1, 2));
    semel__starts_note(&starts, 3 * SECOND + 1, 40, SERVER, three + 1, 2);
    note(3 * SECOND + 2, 50, "3/2", "5/1"); /* 4/1 has ended */
    assert_int_equal(scan(SEMEL_NONE), 40);
    assert_true(semel__starts_ended(&starts, NULL, 0));
    assert_int_equal(starts.n_apart, 0);
    assert_int_equal(starts.shards[3].at, 5);
}

/* Whoever cannot be remembered cannot be waited for, and what was noted with them proves nothing. */
static void holder_without_a_usable_name_proves_nothing(void **state)
{
    char name[50];
    (void)state;
    memset(name, '3', sizeof name);
    for (size_t n = 0; n < sizeof name; n += 49) {
        const struct semel_relay_holder odd = {.name = {name, n}, .pid = 7};
        const struct semel_relay_holder both[] = {holder("3/1"), odd};
        semel__starts_init(&starts, 0);
        semel__starts_note(&starts, 0, 10, SERVER, &odd, 1);
        assert_int_equal(scan(SEMEL_NONE), SEMEL_STARTS_BOTTOM);
        semel__starts_note(&starts, 2 * SECOND, 20, SERVER, both, COUNT(both));
        semel__starts_note(&starts, 4 * SECOND, 30, SERVER, both, COUNT(both));
        assert_int_equal(scan(SEMEL_NONE), SEMEL_STARTS_BOTTOM);
        note(5 * SECOND, 40, "3/2", NULL); /* and nobody waits for 3/1 */
        note(5 * SECOND + 1, 50, "3/1", NULL);
        assert_int_equal(scan(SEMEL_NONE), 40);
    }
    const struct semel_relay_holder longest = {.name = {name, 48}, .pid = 7};
    semel__starts_init(&starts, 0);
    semel__starts_note(&starts, 0, 10, SERVER, &longest, 1);
    note(1, 20, "3/1", NULL);
    assert_int_equal(scan(SEMEL_NONE), 10);
}

/* P108, P109 */
static void another_server_or_sequence_begins_at_the_bottom(void **state)
{
    (void)state;
    note(0, 10, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 10);
    assert_false(semel__starts_note(&starts, SECOND, 12, SERVER + 1, NULL, 0));
    assert_int_equal(starts.shards[3].at, SEMEL_STARTS_BOTTOM);
    assert_int_equal(scan(SEMEL_NONE), 12);
    assert_true(semel__starts_note(&starts, 2 * SECOND, 4, SERVER + 1, NULL, 0)); /* it was set back */
    assert_int_equal(starts.shards[3].at, SEMEL_STARTS_BOTTOM);
    assert_int_equal(scan(2), 1); /* it is not late: that was another server, or another sequence */
    assert_false(semel__starts_note(&starts, 3 * SECOND, 4, SERVER + 1, NULL, 0));
    assert_int_equal(starts.shards[3].at, 1); /* the same */
    semel__starts_forget(&starts, 3 * SECOND);
    semel__starts_note(&starts, 3 * SECOND, 4, SERVER + 1, NULL, 0);
    assert_true(semel__starts_scanned(&starts, 3, 1)); /* and that one is late */
    semel__starts_note(&starts, 4 * SECOND, 9, SERVER, NULL, 0);
    assert_int_equal(scan(1), 0);
}

/* A number that was noted, and is not proven yet, is of the old sequence, too; and nothing is reported twice. */
static void sequence_that_is_set_back_is_reported_once(void **state)
{
    struct semel_relay_holder many[SEMEL_RELAY_HOLDERS_MAX + 1] = {0};
    (void)state;
    note(0, 10, NULL, NULL);
    note(SECOND, 20, "3/1", NULL);
    assert_true(semel__starts_note(&starts, SECOND + 1, 15, SERVER, many, COUNT(many)));
    assert_int_equal(starts.floor, SEMEL_STARTS_BOTTOM);
    assert_false(semel__starts_note(&starts, 2 * SECOND, 15, SERVER, many, COUNT(many)));
    note(3 * SECOND, 16, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 16);
}

static void all_is_forgotten_every_minute_and_late_events_are_reported(void **state)
{
    (void)state;
    note(0, 10, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 10);
    note(60 * SECOND - 1, 15, "3/1", NULL);
    assert_int_equal(starts.shards[3].at, 10);
    note(60 * SECOND, 20, "3/1", NULL);
    assert_int_equal(starts.shards[3].at, SEMEL_STARTS_BOTTOM);
    assert_true(semel__starts_scanned(&starts, 3, 6));
    assert_int_equal(scan(6), SEMEL_STARTS_BOTTOM);       /* 3/1 is waited for, from now on */
    assert_false(semel__starts_scanned(&starts, 4, -11)); /* that shard has never been higher */
    note(61 * SECOND, 30, "3/1", NULL);
    assert_int_equal(starts.n_apart, 1);
    assert_int_equal(scan(SEMEL_NONE), 30);
    note(119 * SECOND, 40, "3/1", NULL);
    assert_int_equal(starts.shards[3].at, 30);
    note(120 * SECOND, 50, "3/1", NULL);
    assert_int_equal(starts.n_apart, 0);
    assert_false(semel__starts_ended(&starts, NULL, 0));
    semel__starts_forget(&starts, 121 * SECOND); /* before a scan: what it was is not forgotten */
    assert_true(semel__starts_scanned(&starts, 3, 30));
    note(121 * SECOND, 50, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 50);
    semel__starts_forget(&starts, 122 * SECOND);
    assert_false(semel__starts_scanned(&starts, 3, 51));
}

/* A shard that was somebody else's is scanned from the bottom, and the others go on. */
static void shard_that_was_somebody_elses_begins_at_the_bottom(void **state)
{
    (void)state;
    note(0, 10, NULL, NULL);
    assert_int_equal(scan(SEMEL_NONE), 10);
    assert_false(semel__starts_scanned(&starts, 4, SEMEL_NONE));
    note(SECOND, 10, "3/1", NULL);
    note(2 * SECOND, 20, "3/1", NULL);
    semel__starts_reset(&starts, 3);
    assert_int_equal(starts.shards[3].at, SEMEL_STARTS_BOTTOM);
    assert_int_equal(starts.shards[4].at, 10);
    assert_int_equal(scan(SEMEL_NONE), 20);
    assert_true(semel__starts_ended(&starts, NULL, 0));
    assert_int_equal(starts.shards[3].at, SEMEL_STARTS_BOTTOM);
    assert_int_equal(starts.shards[4].at, 10);
    semel__starts_forget(&starts, 3 * SECOND);
    semel__starts_reset(&starts, 4);
    assert_false(semel__starts_scanned(&starts, 4, 5));
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
    note(6 * SECOND, 30, "3/1", NULL);
    semel__starts_note(&starts, 6 * SECOND + 1, 40, SERVER, many, COUNT(many)); /* the note is dropped */
    note(8 * SECOND, 50, "3/1", NULL);
    assert_int_equal(starts.n_apart, 0);
    assert_int_equal(scan(SEMEL_NONE), SEMEL_STARTS_BOTTOM);
    semel__starts_note(&starts, 9 * SECOND, 60, SERVER, many, COUNT(many) - 1);
    assert_int_equal(starts.n_apart, 1);
    assert_int_equal(scan(SEMEL_NONE), 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(number_counts_once_nobody_who_may_have_drawn_it_is_left, setup),
        cmocka_unit_test_setup(nobody_holds_the_sequence_and_the_number_counts_at_once, setup),
        cmocka_unit_test_setup(shard_starts_below_its_first_event, setup),
        cmocka_unit_test_setup(holder_that_stays_is_set_apart_and_its_end_takes_all_back, setup),
        cmocka_unit_test_setup(holder_is_waited_for_a_second_and_set_apart_while_there_is_room, setup),
        cmocka_unit_test_setup(end_of_one_who_was_set_apart_leaves_the_other_and_drops_the_note, setup),
        cmocka_unit_test_setup(holder_without_a_usable_name_proves_nothing, setup),
        cmocka_unit_test_setup(another_server_or_sequence_begins_at_the_bottom, setup),
        cmocka_unit_test_setup(sequence_that_is_set_back_is_reported_once, setup),
        cmocka_unit_test_setup(all_is_forgotten_every_minute_and_late_events_are_reported, setup),
        cmocka_unit_test_setup(shard_that_was_somebody_elses_begins_at_the_bottom, setup),
        cmocka_unit_test_setup(too_many_holders_prove_nothing, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
