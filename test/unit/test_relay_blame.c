/* SPDX-License-Identifier: MIT
 *
 * test_relay_blame.c: a destination answers some events with an error of its own, which says neither that the event is
 * refused nor that the destination is down. Who is to blame shows in what else it takes.
 * Usage: test_relay_blame [postgres]; without an argument on SQLite.
 */
#include "relay_rig.h"

/* O3, O6: what the destination fails at, while it takes others, is charged, and nobody waits for it. */
static void event_at_which_its_destination_breaks_holds_back_its_aggregate_only_and_ends_dead(void **state)
{
    int put_there = 0;
    (void)state;
    struct semel_relay_options options = rig.options;
    options.attempts_max = 3;
    again_with(options);
    rig.sink.breaks = "p";
    put("a", "p", NULL);
    put("a", "a2", NULL);
    for (int i = 0; i < 40; i++) {
        put("b", "b", NULL);
        put_there++;
        steps(3);
        assert_int_equal(rig.sink.n, put_there);
        pass(3 * SECOND);
    }
    assert_in_range(rig.sink.broken, 3, 4);
    assert_int_equal(count_in("_aside", "status = 'dead' AND attempts = 3 AND error_text = 'HTTP 500'"), 1);
    assert_int_equal(count_in("_aside", "status = 'waiting'"), 1);
    assert_null(strstr(rig.reported, "destination is down"));
}

/* Alone in the outbox it is charged once, backs off, and keeps nothing waiting that comes later. */
static void event_at_which_its_destination_breaks_does_not_make_it_down(void **state)
{
    (void)state;
    put("b", "b1", NULL);
    steps(1);
    rig.sink.breaks = "p";
    put("a", "p", NULL);
    for (int i = 0; i < 100; i++) {
        steps(2);
        pass(SECOND);
    }
    assert_in_range(rig.sink.broken, 3, 25);
    assert_int_equal(count_in("_aside", "status = 'failed' AND attempts = 1") +
                         count_in("_aside", "status = 'waiting' AND attempts = 1"),
                     1);
    put("b", "b2", NULL);
    steps(1);
    assert_string_equal(got_of(&rig.sink, "b"), "b1 b2");
    assert_null(strstr(rig.reported, "destination is down"));
}

/* P63: an error for everything is the destination's; the first event to meet it is all that may be charged. */
static void destination_that_breaks_at_everything_is_down_and_charges_none(void **state)
{
    char name[16];
    (void)state;
    put("z", "first", NULL);
    steps(1);
    rig.sink.breaks = "e";
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "k%d", i);
        put(name, "e", NULL);
        steps(2);
        pass(5 * SECOND);
    }
    assert_int_equal(count_in("_aside", "attempts > 1"), 0);
    assert_in_range(count_in("_aside", "attempts = 1"), 0, 1);
    assert_int_equal(count_in("_aside", "status = 'dead'"), 0);
    assert_non_null(strstr(rig.reported, "destination is down: orders: HTTP 500"));
    rig.sink.breaks = NULL;
    for (int i = 0; i < 20; i++) {
        steps(3);
        pass(30 * SECOND);
    }
    assert_int_equal(rig.sink.n, 51);
    assert_non_null(strstr(rig.reported, "destination takes events again: orders"));
}

/* The lowest event would be the probe again and again. */
static void probe_at_which_the_destination_breaks_gives_way_to_the_next(void **state)
{
    char name[16];
    (void)state;
    rig.sink.all_down = true;
    put("a", "p", NULL);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "k%d", i);
        put(name, "e", NULL);
    }
    steps(2);
    rig.sink.all_down = false;
    rig.sink.breaks = "p";
    for (int i = 0; i < 10; i++) {
        steps(3);
        pass(30 * SECOND);
    }
    assert_int_equal(rig.sink.n, 20);
    assert_int_equal(count_in("_aside", "true"), 1);
}

int main(int argc, char **argv)
{
#define ON(test) cmocka_unit_test_setup_teardown(test, up, down)
    const struct CMUnitTest tests[] = {
        ON(event_at_which_its_destination_breaks_holds_back_its_aggregate_only_and_ends_dead),
        ON(event_at_which_its_destination_breaks_does_not_make_it_down),
        ON(destination_that_breaks_at_everything_is_down_and_charges_none),
        ON(probe_at_which_the_destination_breaks_gives_way_to_the_next),
    };
    on_postgres = argc > 1 && strcmp(argv[1], "postgres") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
