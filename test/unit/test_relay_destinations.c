/* SPDX-License-Identifier: MIT
 *
 * test_relay_destinations.c: destinations that are down, hang or were never tried, and a sink that cannot be used.
 */
#include "unit/relay_fake.h"

static void destination_that_is_down_is_shown_probed_and_comes_back(void **state)
{
    char which[SEMEL_RELAY_WHY];
    struct semel_str name;
    bool is_down;
    (void)state;
    assert_false(semel__relay_destination(relays[0], 0, &name, &is_down));
    put("b0", "b1", "fine");
    step_of(0);
    sink.down = "lost";
    struct row *a1 = put("a0", "a1", "lost"), *a2 = put("a0", "a2", "lost");
    step_of(0);
    assert_int_equal(semel__relay_down(relays[0], which), 1);
    assert_string_equal(which, "lost: no such topic");
    assert_true(semel__relay_destination(relays[0], 0, &name, &is_down));
    assert_true(semel__str_eqz(name, "fine") && !is_down);
    assert_true(semel__relay_destination(relays[0], 1, &name, &is_down));
    assert_true(semel__str_eqz(name, "lost") && is_down);
    assert_false(semel__relay_destination(relays[0], 2, &name, &is_down));
    assert_non_null(strstr(world.reported, "destination is down: lost: no such topic"));
    assert_int_equal(counts()->turns, 1);
    assert_false(a1->aside);
    pass(SECOND); /* the sooner beat shows it to the others */
    step_of(0);
    assert_non_null(strstr(world.trace, "renew"));
    assert_string_equal(db.peers[0].down, "lost: no such topic");
    for (int i = 0; i < 20 && !a1->aside; i++) {
        put("b0", "b", "fine"); /* another destination works: its events stand aside, with what is known of it */
        step_of(0);
        pass(SECOND / 20);
    }
    assert_true(a1->aside && a1->attempts == 0 && a2->attempts == 0);
    assert_string_equal(a1->status, "waiting");
    sink.down = NULL;
    for (int i = 0; i < 40; i++) {
        step_of(0);
        pass(5 * SECOND);
    }
    assert_int_equal(left(), 0);
    assert_true(strstr(sink.got, "a1") < strstr(sink.got, "a2"));
    assert_int_equal(semel__relay_down(relays[0], which), 0);
    assert_string_equal(which, "");
    assert_int_equal(counts()->turns, 2);
    assert_non_null(strstr(world.reported, "destination takes events again: lost"));
    assert_string_equal(db.peers[0].down, "");
}

static void hang(void)
{
    pass(3 * SECOND);
}

/* One that hangs pushes back those that rest already, but none whose time has come: it may have recovered. */
static void destination_that_is_due_stays_due_when_another_hangs(void **state)
{
    (void)state;
    put("b0", "b1", "fine");
    step_of(0);
    sink.down = "lost";
    struct row *discarded = put("a0", "a1", "lost");
    step_of(0);
    discarded->there = false;
    pass(3 * SECOND);
    sink.down = "stuck";
    sink.during = hang;
    put("b0", "b2", "fine");
    put("c0", "c1", "stuck");
    step_of(0);
    sink.during = NULL;
    put("a0", "a2", "lost");
    put("d0", "d1", "stuck");
    step_of(0);
    assert_string_equal(sink.got, "b1 b2 a2");
    pass(20 * SECOND); /* nine times as long as it hung, it rests */
    step_of(0);
    assert_null(strstr(world.trace, "publish"));
    sink.down = NULL;
    pass(40 * SECOND);
    step_of(0);
    assert_non_null(strstr(sink.got, "c1"));
}

static void put_many(size_t n, const char *to)
{
    char key[16];
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "aa%03zu", db.n); /* in one shard */
        put(key, to, to);
    }
}

/* Half a second at a time; how many steps until the sink has got what is named, at most `max`. */
static size_t steps_until(const char *got, size_t max)
{
    size_t i = 0;
    for (; i < max && strstr(sink.got, got) == NULL; i++) {
        step_of(0);
        pass(SECOND / 2);
    }
    return i;
}

static void assert_destination(size_t i, const char *expected, bool expected_down)
{
    struct semel_str name;
    bool is_down;
    assert_true(semel__relay_destination(relays[0], i, &name, &is_down));
    assert_str(name, expected);
    assert_int_equal(is_down, expected_down);
}

/* There is no room for more: of one that is down the relay remembers when to try it again. */
static void one_that_works_is_forgotten_before_one_that_is_down(void **state)
{
    struct semel_str name;
    bool is_down;
    size_t n = 0;
    (void)state;
    sink.down = "d000";
    for (bool fresh = true; fresh; pass(6 * SECOND)) {
        char to[16];
        snprintf(to, sizeof to, "d%03zu", n);
        struct row *row = put("a0", "e", to);
        step_of(0);
        row->there = false;
        fresh = semel__relay_destination(relays[0], n, &name, &is_down);
        n += fresh;
    }
    assert_int_equal(n, 256);
    assert_destination(0, "d000", true);
    assert_destination(1, "d256", false); /* d001 had not worked for longest */
    assert_destination(2, "d002", false);
}

/* O3, P112: events of one that is down fill the window of their shard; those of another one, which nobody has tried
 * yet, stand far behind them. */
static void destination_that_was_never_tried_is_found_behind_one_that_is_down(void **state)
{
    (void)state;
    begin_again();
    options.rows = 20;
    make_relay(0);
    sink.down = "d1";
    put_many(400, "d1");
    put_many(1, "d2");
    assert_in_range(steps_until("d2", 60), 1, 59);
    assert_int_equal(counts()->aside, 400);
    assert_null(strstr(sink.got, "d1"));
}

/* Another one worked, long ago, and has no events: nothing moves aside for it, and what is behind is looked at once. */
static void outage_moves_nothing_aside_where_nothing_else_could_go(void **state)
{
    (void)state;
    begin_again();
    options.rows = 20;
    make_relay(0);
    put_many(1, "d2");
    assert_in_range(steps_until("d2", 5), 1, 4);
    pass(20 * SECOND);
    sink.down = "d1";
    put_many(400, "d1");
    for (int i = 0; i < 100; i++) {
        step_of(0);
        pass(SECOND / 2);
    }
    assert_int_equal(counts()->aside, 0);
    assert_int_equal(left(), 400);
    pass(SECOND); /* nothing is due, and the end was reached: a read, and a look for what is new */
    for (int i = 0; i == 0 || strstr(world.trace, "publish") != NULL; i++, pass(SECOND / 2))
        step_of(0);
    assert_non_null(strstr(world.trace, "note read read"));
    assert_null(strstr(world.trace, "read read read"));
    put_many(1, "d2");
    sink.got[0] = '\0';
    assert_in_range(steps_until("d2", 60), 1, 59);
}

/* One that an earlier event of its aggregate holds back could not go either. */
static void event_that_is_held_back_makes_nobody_move_aside(void **state)
{
    (void)state;
    begin_again();
    options.rows = 20;
    make_relay(0);
    struct row *dead = put("aa999", "dead", "d2");
    dead->aside = true;
    dead->due_us = SEMEL_NONE;
    SET(dead->status, "dead");
    sink.down = "d1";
    put_many(400, "d1");
    put("aa999", "d2", "d2");
    assert_int_equal(steps_until("d2", 60), 60);
    assert_int_equal(counts()->aside, 0);
}

/* Both are down, and only one of them is seen: the other one is tried again nevertheless. */
static void destination_that_recovers_behind_one_that_is_down_is_tried(void **state)
{
    (void)state;
    begin_again();
    options.rows = 20;
    make_relay(0);
    sink.down = "d2";
    put_many(1, "d2");
    step_of(0);
    db.rows[0].there = false;
    sink.down = "d1";
    sink.down_too = "d2";
    put_many(400, "d1");
    put_many(1, "d2");
    for (int i = 0; i < 100; i++, pass(SECOND / 2))
        step_of(0);
    assert_string_equal(sink.got, "");
    sink.down_too = NULL;
    assert_in_range(steps_until("d2", 300), 1, 299);
    assert_null(strstr(sink.got, "d1"));
}

/* P1: it was not there yet when the relay looked. */
static void lower_number_behind_one_that_is_down_is_found_later(void **state)
{
    (void)state;
    begin_again();
    options.rows = 20;
    make_relay(0);
    sink.down = "d1";
    put_many(200, "d1");
    put_many(1, "d2");
    put_many(200, "d1");
    db.rows[200].there = false;
    for (int i = 0; i < 200; i++, pass(SECOND / 2))
        step_of(0);
    db.rows[200].there = true;
    assert_in_range(steps_until("d2", 700), 100, 699);
}

/* The sink as a whole fails: the relay waits longer each time, and tells why, once. */
static void sink_that_cannot_be_used_is_left_alone_for_a_while(void **state)
{
    char which[SEMEL_RELAY_WHY];
    (void)state;
    put("a0", "a1", "x");
    sink.status = SEMEL_RETRY;
    const int wait_ms = step_of(0);
    assert_in_range(wait_ms, 1, 51);
    assert_int_equal(sink.calls, 1);
    step_of(0);
    assert_int_equal(sink.calls, 1);
    assert_string_equal(world.trace, "");
    assert_int_equal(semel__relay_down(relays[0], which), 1);
    assert_string_equal(which, "no broker");
    assert_string_equal(world.reported, "cannot publish: no broker\n");
    assert_int_equal(counts()->turns, 1);
    assert_int_equal(sink.reopened, 0);
    sink.status = SEMEL_CLOSED;
    for (int i = 0; i < 12; i++) {
        assert_in_range(step_of(0), 0, 5001);
        pass(5 * SECOND + 1);
    }
    assert_in_range(sink.calls, 8, 14);
    assert_int_equal(sink.reopened, sink.calls - 1);
    assert_string_equal(world.reported, "cannot publish: no broker\n");
    assert_int_equal(db.rows[0].attempts, 0);
    sink.status = SEMEL_OK;
    step_of(0);
    assert_int_equal(left(), 0);
    assert_int_equal(semel__relay_down(relays[0], which), 0);
    assert_int_equal(counts()->turns, 2);
}

static void event_whose_destination_cannot_be_told_now_stops_the_step_and_nothing_else(void **state)
{
    int wait_ms;
    (void)state;
    struct row *row = put("a0", "a1", "broken");
    put("b0", "b1", "x");
    assert_int_equal(semel__relay_step(relays[0], &wait_ms, &trouble), SEMEL_RETRY);
    assert_string_equal(trouble.text, "cannot tell");
    assert_false(row->aside);
    assert_int_equal(counts()->dead, 0);
    SET(row->to, "x");
    step_of(0);
    assert_int_equal(left(), 0);
}

int main(void)
{
#define ON(test) cmocka_unit_test_setup_teardown(test, up, down)
    const struct CMUnitTest tests[] = {
        ON(destination_that_is_down_is_shown_probed_and_comes_back),
        ON(destination_that_is_due_stays_due_when_another_hangs),
        ON(one_that_works_is_forgotten_before_one_that_is_down),
        ON(destination_that_was_never_tried_is_found_behind_one_that_is_down),
        ON(outage_moves_nothing_aside_where_nothing_else_could_go),
        ON(event_that_is_held_back_makes_nobody_move_aside),
        ON(destination_that_recovers_behind_one_that_is_down_is_tried),
        ON(lower_number_behind_one_that_is_down_is_found_later),
        ON(sink_that_cannot_be_used_is_left_alone_for_a_while),
        ON(event_whose_destination_cannot_be_told_now_stops_the_step_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
