/* SPDX-License-Identifier: MIT
 *
 * test_relay_rules.c: what the relay asks of its store, when, and what it does when the store fails.
 */
#include "unit/relay_fake.h"

#include <stdlib.h>

/* ---- the order of calls -------------------------------------------------------------------------- */

#define BEAT "begin expire renew peers shards_read commit"

static void step_asks_the_store_for_what_it_needs_and_for_nothing_else(void **state)
{
    (void)state;
    assert_int_equal(step_of(0), 2);
    assert_string_equal(world.trace, "begin expire join peers shards_read shards_write commit begin visible rollback "
                                     "note read begin sent_purge commit");
    assert_true(semel__relay_idle(relays[0]));
    assert_int_equal(step_of(0), 4);
    assert_string_equal(world.trace, "read");
    put("a0", "a1", "x");
    put("a0", "a2", "x");
    pass(SECOND / 2);
    assert_int_equal(step_of(0), 4); /* there may be more */
    assert_string_equal(world.trace, "read publish begin confirm commit");
    assert_int_equal(sink.timeout_ms, 5000);
    assert_int_equal(world.published_us, SECOND / 2);
    assert_int_equal(world.scanned, 2);
    assert_false(semel__relay_idle(relays[0]));
    assert_string_equal(sink.got, "a1 a2");
    assert_int_equal(left(), 0);
    const int waits[] = {2, 4, 8, 16, 32, 64, 100, 100}; /* twice as long, as long as nothing comes */
    for (size_t i = 0; i < COUNT(waits); i++)
        assert_int_equal(step_of(0), waits[i]);
    assert_true(semel__relay_idle(relays[0]));
    assert_int_equal(world.kept, 0);
    assert_int_equal(counts()->published, 2);
}

static void event_aside_is_started_and_confirmed_under_the_lock_of_its_shard(void **state)
{
    (void)state;
    step_of(0);
    sink.refuse = "a1";
    put("a0", "a1", "x");
    put("a0", "a2", "x");
    put("b0", "b1", "x");
    step_of(0);
    assert_string_equal(world.trace, "read publish begin confirm commit begin lock set_aside commit");
    assert_string_equal(sink.got, "b1");
    assert_string_equal(db.rows[0].status, "failed");
    assert_string_equal(db.rows[0].error, "too large");
    assert_int_equal(db.rows[0].attempts, 1);
    assert_in_range(db.rows[0].due_us, world.now_us + 1000, world.now_us + SECOND);
    assert_int_equal(counts()->refused, 1);
    assert_int_equal(counts()->aside, 1);
    assert_non_null(strstr(world.reported, "event refused a1: too large"));
    assert_int_equal(counts()->retried, 1);
    step_of(0); /* what is behind it follows it */
    assert_string_equal(world.trace, "read begin lock set_aside commit");
    assert_string_equal(db.rows[1].status, "waiting");
    assert_int_equal(db.rows[1].due_us, SEMEL_NONE);
    pass(SECOND);
    step_of(0); /* it is refused from aside */
    assert_string_equal(world.trace, "note read begin lock aside_start commit publish begin lock aside_fail commit");
    assert_int_equal(db.rows[0].attempts, 2);
    assert_in_range(db.rows[0].due_us, world.now_us + 1000, world.now_us + 2 * SECOND);
    pass(2 * SECOND);
    sink.refuse = NULL;
    step_of(0);
    assert_string_equal(world.trace, "note read begin lock aside_start commit publish begin lock confirm_aside commit");
    step_of(0);
    assert_string_equal(sink.got, "b1 a1 a2");
    assert_int_equal(left(), 0);
    assert_int_equal(counts()->dead, 0);
}

static void event_is_dead_after_its_last_attempt(void **state)
{
    (void)state;
    sink.refuse = "a1";
    put("a0", "a1", "x");
    for (int i = 0; i < 3; i++) {
        assert_string_not_equal(db.rows[0].status, "dead");
        step_of(0);
        pass(10 * SECOND);
    }
    assert_string_equal(db.rows[0].status, "dead");
    assert_int_equal(db.rows[0].due_us, SEMEL_NONE);
    assert_int_equal(db.rows[0].attempts, 3);
    assert_int_equal(counts()->dead, 1);
    assert_int_equal(counts()->refused, 3);
    assert_non_null(strstr(world.reported, "event is dead a1: too large"));
}

/* O5: of an aggregate the lowest number of both tables goes first, and where the outbox was not read far enough nobody
 * knows which one that is. */
static void event_aside_waits_for_a_lower_number_in_the_outbox(void **state)
{
    (void)state;
    step_of(0);
    put("a0", "a1", "x");
    struct row *aside = put("a0", "a2", "x"), *free = put("b0", "b1", "x");
    aside->aside = free->aside = true;
    aside->due_us = free->due_us = world.now_us;
    SET(aside->status, "waiting");
    SET(free->status, "waiting");
    step_of(0);
    assert_string_equal(world.trace, "read begin lock aside_postpone commit begin lock aside_start commit publish "
                                     "begin lock confirm confirm_aside commit");
    assert_string_equal(sink.got, "b1 a1");
    assert_int_equal(aside->due_us, world.now_us + SECOND);
    pass(SECOND);
    step_of(0);
    assert_string_equal(sink.got, "b1 a1 a2");
    for (int i = 0; i < 300; i++)
        put("a0", "e", "x");
    free = put("a0", "z1", "x");
    free->aside = true;
    free->due_us = world.now_us;
    SET(free->status, "waiting");
    SET(free->key, "other"); /* of the same shard */
    step_of(0);
    assert_int_equal(free->due_us, world.now_us + SECOND);
    pass(SECOND);
    step_of(0);
    step_of(0);
    assert_int_equal(left(), 0);
}

static void begin_failing(int at, semel_status status)
{
    begin_again();
    let_read_ahead();
    options.rows = 20;
    options.attempts_max = 50;
    make_relay(0);
    world.fail_at = at;
    world.fail = status;
    put("a0", "bad", "x");
    put("a0", "a2", "x");
    put("b0", "b1", "lost");
    put("c0", "c1", "nowhere");
    for (int i = 0; i < 40; i++) {
        char type[8];
        snprintf(type, sizeof type, "e%02d", i);
        put("k0", type, "x");
    }
}

/* One step, in which the planned call may fail. true: the step had its status. */
static bool step_failing(void)
{
    int wait_ms;
    const int calls = world.calls;
    world.trace[0] = '\0';
    const semel_status status = semel__relay_step(relays[0], &wait_ms, &trouble);
    const bool was_it = calls < world.fail_at && world.calls >= world.fail_at;
    assert_false(handles[0].base.in_tx);
    assert_null(sink.base.tend);
    if (status != SEMEL_OK)
        assert_true(was_it && status == world.fail);
    if (status == SEMEL_CLOSED)
        semel__relay_forget(relays[0]);
    return status != SEMEL_OK;
}

/* Whichever call of the store fails: the step gives its status, no transaction stays open, and in the end every event
 * has arrived in order, or is dead. */
static void every_call_of_the_store_may_fail(void **state)
{
    static const semel_status statuses[] = {SEMEL_RETRY, SEMEL_CLOSED};
    (void)state;
    for (size_t s = 0; s < COUNT(statuses); s++)
        for (int at = 1, seen = at; at <= seen; at++) {
            bool failed = false;
            begin_failing(at, statuses[s]);
            for (int i = 0; i < 60; i++) {
                sink.down = i > 0 && i <= 20 ? "lost" : NULL;
                sink.refuse = i <= 6 ? "bad" : NULL;
                failed |= step_failing();
                pass(i < 20 ? SECOND : 30 * SECOND);
            }
            seen = world.calls < 120 ? world.calls : 120;
            assert_true(failed || strcmp(world.failed, "rollback") == 0 || strcmp(world.failed, "ahead") == 0 ||
                        strcmp(world.failed, "publish") == 0); /* those cannot fail */
            assert_int_equal(left(), 1);
            assert_string_equal(db.rows[3].status, "dead");
            const char *last = sink.got;
            for (int i = 0; i < 40; i++) {
                last = strstr(last, db.rows[4 + i].type);
                assert_non_null(last);
            }
            assert_non_null(strstr(sink.got, "bad"));
            assert_true(strstr(sink.got, "a2") > strstr(sink.got, "bad"));
            assert_non_null(strstr(sink.got, "b1"));
        }
}

/* ---- leases and shards --------------------------------------------------------------------------- */

static void shares_differ_by_one_shard_at_most(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 3; n++) {
        const size_t shares[3][3] = {{64, 0, 0}, {32, 32, 0}, {22, 21, 21}};
        if (n > 1)
            make_relay(n - 1);
        for (int i = 0; i < 12; i++) {
            for (size_t k = 0; k < n; k++)
                step_of(k);
            pass(SECOND);
        }
        for (size_t k = 0; k < n; k++)
            assert_int_equal(owned_by(k), shares[n - 1][k]);
    }
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        assert_int_equal(db.shards[i].losses, 0);
    assert_int_equal(semel__relay_leave(relays[0], &trouble), SEMEL_OK);
    assert_int_equal(owned_by(0), 0);
    assert_int_equal(db.n_peers, 2);
    world.trace[0] = '\0';
    assert_int_equal(semel__relay_leave(relays[0], &trouble), SEMEL_OK);
    assert_string_equal(world.trace, ""); /* it has left already */
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        assert_int_equal(db.shards[i].losses, 0);
    for (int i = 0; i < 12; i++) {
        step_of(1);
        step_of(2);
        pass(SECOND);
    }
    assert_int_equal(owned_by(1), 32);
    assert_int_equal(owned_by(2), 32);
}

/* P115. The oldest relay says where events go. */
static void relay_with_other_destinations_owns_nothing_and_reports_why_once(void **state)
{
    char why[SEMEL_RELAY_WHY];
    (void)state;
    step_of(0);
    options.destinations = SEMEL_STR("d2");
    make_relay(1);
    options.destinations = SEMEL_STR("d1");
    make_relay(2);
    for (int i = 0; i < 12; i++) {
        step_of(0);
        step_of(1);
        step_of(2);
        pass(SECOND);
    }
    assert_int_equal(semel__relay_owns(relays[1], why), 0);
    assert_string_equal(why, "relay first publishes this outbox to other destinations");
    assert_int_equal(semel__relay_owns(relays[0], why), 32);
    assert_string_equal(why, "");
    assert_int_equal(owned_by(2), 32);
    const char *told = strstr(world.reported, "relay waits: relay first");
    assert_non_null(told);
    assert_null(strstr(told + 1, "relay waits"));
}

/* The lease is renewed after a third of it, and sooner while shards of others are due. */
static void lease_is_renewed_in_time(void **state)
{
    (void)state;
    step_of(0);
    pass(5 * SECOND - 1);
    step_of(0);
    assert_null(strstr(world.trace, "renew"));
    pass(1);
    step_of(0);
    assert_non_null(strstr(world.trace, BEAT));
    assert_null(strstr(world.trace, "join"));
    assert_int_equal(db.peers[0].until_us, world.now_us + 15 * SECOND);
    make_relay(1);
    step_of(1); /* everything is the first one's */
    assert_int_equal(owned_by(1), 0);
    pass(SECOND - 1);
    step_of(1);
    assert_string_equal(world.trace, "");
    pass(1);
    step_of(1);
    assert_non_null(strstr(world.trace, "renew"));
    /* A call must end before the lease does. */
    options.timeout_us = 10 * SECOND;
    make_relay(2);
    step_of(2);
    pass(5 * SECOND - 1);
    step_of(2);
    assert_non_null(strstr(world.trace, "renew")); /* it waits for shards */
}

static void relay_whose_lease_is_over_joins_under_a_new_token_and_gives_up_the_old_one(void **state)
{
    (void)state;
    step_of(0);
    const int64_t token = db.peers[0].token;
    sink.refuse = "a1";
    put("a0", "a1", "x");
    step_of(0);
    SET(db.rows[0].status, "publishing");
    db.rows[0].relay = token;
    db.rows[0].attempts = 2;
    pass(5 * SECOND);
    delete_peer(0);
    world.fail_at = 0;
    step_of(0);
    assert_non_null(strstr(world.trace, "begin expire renew shards_read shards_write leave join peers shards_read "
                                        "shards_write commit"));
    assert_int_equal(db.n_peers, 1);
    assert_int_not_equal(db.peers[0].token, token);
    assert_int_equal(owned_by(0), 64);
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++) {
        assert_int_equal(db.shards[i].token, db.peers[0].token);
        assert_int_equal(db.shards[i].losses, 0);
    }
}

/* A shard that two relays died with: each of its events goes alone, from aside. */
static void shard_that_relays_died_with_is_handled_with_care(void **state)
{
    (void)state;
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        db.shards[i].token = 4711;
    struct row *first = put("a0", "a1", "x"), *second = put("a0", "a2", "x"), *other = put("b0", "b1", "x");
    db.shards[first->shard].losses = 1;
    step_of(0);
    assert_int_equal(db.shards[first->shard].losses, 0); /* what could have killed stands aside now */
    assert_int_equal(db.shards[other->shard].losses, 0); /* it has made progress */
    assert_int_equal(db.shards[3].losses, 1);
    assert_string_equal(sink.got, "b1");
    assert_true(first->aside && first->alone && second->aside && second->alone);
    assert_int_equal(first->due_us, world.now_us);
    assert_int_equal(second->due_us, SEMEL_NONE);
    assert_string_equal(first->status, "waiting");
    put("c0", "c1", "x");
    assert_int_equal(step_of(0), 0);
    assert_int_equal(sink.n, 1); /* alone */
    assert_string_equal(sink.got, "b1 a1");
    step_of(0);
    assert_int_equal(sink.n, 1);
    step_of(0);
    assert_string_equal(sink.got, "b1 a1 a2 c1");
    assert_int_equal(left(), 0);
    put("a0", "a3", "x");
    step_of(0); /* the losses of this shard are forgotten already, not only in the store */
    assert_string_equal(world.trace, "read publish begin confirm commit");
}

/* ---- starting points ----------------------------------------------------------------------------- */

static int64_t start_of(const char *key)
{
    return world.scan_starts[(key[0] * 7 + key[1]) % SEMEL_RELAY_SHARDS];
}

static void starting_points_are_proven_about_once_per_second(void **state)
{
    (void)state;
    put("a0", "a1", "x");
    step_of(0);
    assert_int_equal(start_of("a0"), SEMEL_STARTS_BOTTOM);
    step_of(0);
    assert_int_equal(start_of("a0"), 0); /* right below the first event that the scan saw */
    assert_int_equal(start_of("b0"), 1);
    world.seq = 50;
    pass(SECOND - 1);
    step_of(0);
    assert_string_equal(world.trace, "read");
    pass(1);
    step_of(0);
    assert_string_equal(world.trace, "note read");
    step_of(0);
    assert_int_equal(start_of("b0"), 50);
    world.holders[0] = (struct semel_relay_holder){.name = SEMEL_STR("3/1"), .pid = 77};
    world.n_holders = 1;
    assert_int_equal(semel__relay_held_by(relays[0]), SEMEL_NONE);
    for (int i = 0; i < 3; i++) {
        pass(SECOND);
        step_of(0);
        assert_int_equal(world.scan.holders_max > 0, i > 0);
    }
    assert_int_equal(semel__relay_held_by(relays[0]), 77);
    world.seq = 60;
    pass(SECOND);
    step_of(0);
    step_of(0);
    assert_int_equal(start_of("b0"), 60);
    world.seq = 55; /* what the holder drew */
    put("b0", "b1", "x");
    world.seq = 60;
    world.n_holders = 0;
    step_of(0);
    assert_string_equal(world.trace, "read read publish begin confirm commit");
    assert_string_equal(sink.got, "a1 b1");
    assert_int_equal(counts()->rescans, 1);
    assert_int_equal(semel__relay_held_by(relays[0]), SEMEL_NONE);
    assert_string_equal(world.reported, "");
}

static void every_scan_starts_at_the_bottom_where_transactions_are_not_visible(void **state)
{
    (void)state;
    world.hidden = true;
    world.seq = 50;
    for (int i = 0; i < 3; i++) {
        step_of(0);
        pass(SECOND);
        assert_int_equal(start_of("a0"), SEMEL_STARTS_BOTTOM);
        assert_int_equal(strstr(world.trace, "visible") != NULL, i == 0);
        assert_null(strstr(world.trace, "note"));
    }
    assert_non_null(strstr(world.reported, "pg_locks does not show transactions here"));
    world.hidden = false;
    semel__relay_forget(relays[0]); /* it is asked again on another connection */
    step_of(0);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
}

static void event_below_a_proven_starting_point_is_published_and_reported(void **state)
{
    (void)state;
    world.seq = 50;
    step_of(0);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
    world.seq = 6;
    put("a0", "low", "x");
    put("a0", "next", "x");
    world.seq = 51;
    step_of(0);
    assert_string_equal(sink.got, "");
    pass(60 * SECOND);
    step_of(0);
    assert_string_equal(sink.got, "low next");
    assert_non_null(strstr(world.reported, "event below a proven starting point: its transaction did not draw its "
                                           "number low: "));
}

/* A relay that took a shard from another one scans it from the bottom. */
static void shard_that_was_anothers_is_scanned_from_the_bottom(void **state)
{
    (void)state;
    world.seq = 50;
    step_of(0);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
    assert_int_equal(semel__relay_leave(relays[0], &trouble), SEMEL_OK);
    step_of(0);
    assert_int_equal(start_of("a0"), SEMEL_STARTS_BOTTOM);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        db.shards[i].token = i < 32 ? SEMEL_NONE : db.peers[0].token; /* somebody had them for a moment */
    pass(5 * SECOND);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
}

/* ---- windows ------------------------------------------------------------------------------------- */

static void rows_per_shard_follow_what_comes(void **state)
{
    (void)state;
    for (int i = 0; i < 600; i++) /* of one shard */
        put("a0", "e", "x");
    step_of(0);
    assert_int_equal(world.scan.limit, 256);
    assert_int_equal(world.scan.most, 600);
    assert_int_equal(world.scan.bytes, 1 << 20);
    assert_int_equal(world.scan.n_events, 256);
    assert_int_equal(world.scan.aside_max, 500);
    assert_int_equal(left(), 344);
    assert_int_equal(step_of(0), 0);         /* there is more */
    assert_int_equal(world.scan.limit, 300); /* the window was full: 256 * 300 / 256 */
    assert_int_equal(left(), 44);
    assert_int_equal(step_of(0), 4);
    assert_int_equal(left(), 0);
}

static void more_rows_than_wanted_narrow_the_window_and_few_widen_it(void **state)
{
    (void)state;
    options.rows = 40;
    make_relay(1); /* beside the first, which does nothing */
    for (int i = 0; i < 5; i++) {
        char key[3] = {(char)('a' + i), '0', '\0'};
        for (int k = 0; k < 60; k++)
            put(key, "e", "x");
    }
    step_of(1);
    assert_int_equal(world.scan.limit, 256);
    assert_int_equal(world.scan.n_events, 80); /* twice what is wanted */
    step_of(1);
    assert_int_equal(world.scan.limit, 128);
    step_of(1);
    assert_int_equal(world.scan.limit, 64);
    step_of(1);
    assert_int_equal(world.scan.limit, 32);
    assert_int_equal(world.scan.n_events, 52);
    step_of(1);
    assert_int_equal(world.scan.limit, 24);
    assert_int_equal(left(), 0);
    for (int i = 0; i < 6; i++) {
        char key[3] = {(char)('a' + i), '0', '\0'};
        for (int k = 0; k < 20; k++)
            put(key, "e", "x");
    }
    step_of(1);
    assert_int_equal(world.scan.limit, 24); /* nothing was full, or wanted to be */
    step_of(1);
    assert_int_equal(world.scan.limit, 16); /* and not below that */
    assert_int_equal(left(), 8);
    step_of(1);
    assert_int_equal(world.scan.limit, 20); /* some were full: 16 * 40 / 32 */
    for (int i = 0; i < 20; i++)
        put("a0", "e", "x");
    step_of(1);
    assert_int_equal(world.scan.limit, 20); /* of 8 rows none was full */
    for (int i = 0; i < 40; i++)
        put("a0", "e", "x");
    step_of(1);
    assert_int_equal(world.scan.limit, 40); /* full, and not more than half of what is wanted: twice as many */
    step_of(1);
    assert_int_equal(world.scan.limit, 40); /* that is wide enough */
}

/* ---- reading ahead ------------------------------------------------------------------------------- */

static void begin_ahead(size_t rows)
{
    begin_again();
    let_read_ahead();
    options.rows = rows;
    make_relay(0);
    for (int i = 0; i < 300; i++) {
        char type[8];
        snprintf(type, sizeof type, "e%03d", i);
        put("a0", type, "x");
    }
}

static void assert_all_came_once(void)
{
    char text[8192] = "";
    for (int i = 0; i < 300; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%se%03d", i > 0 ? " " : "", i);
    assert_string_equal(sink.got, text);
    assert_int_equal(left(), 0);
}

static void backlog_is_read_ahead_and_deleted_behind(void **state)
{
    (void)state;
    begin_ahead(20);
    assert_int_equal(step_of(0), 0);
    assert_non_null(strstr(world.trace, "read publish begin confirm commit begin sent_purge commit"));
    step_of(0);
    assert_string_equal(world.trace, "read ahead publish ahead_end");
    const size_t before_it = left();
    assert_int_equal(step_of(0), 0);
    assert_string_equal(world.trace, "ahead publish ahead_end");
    assert_true(left() < before_it);
    assert_int_equal(world.tends, 2);
    for (int i = 0; i < 30; i++)
        step_of(0);
    assert_string_equal(world.trace, "read");
    assert_all_came_once();
    assert_in_range(counts()->ahead, 5, 30);
    assert_int_equal(counts()->published, 300);
    assert_int_equal(world.tends, counts()->ahead);
}

/* What was confirmed is deleted before the shards can be anybody else's. */
static void what_was_confirmed_is_deleted_before_the_lease_ends_or_is_renewed(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        begin_ahead(20);
        step_of(0);
        step_of(0);
        assert_string_equal(world.trace, "read ahead publish ahead_end");
        const size_t before_it = left();
        world.trace[0] = '\0';
        if (i == 0)
            assert_int_equal(semel__relay_leave(relays[0], &trouble), SEMEL_OK);
        else if (i == 1)
            pass(5 * SECOND);
        else
            semel__relay_forget(relays[0]);
        if (i > 0)
            step_of(0);
        assert_memory_equal(world.trace, "begin confirm commit begin expire", 33);
        assert_true(left() < before_it);
        for (int k = 0; k < 40; k++)
            step_of(0);
        assert_string_equal(world.trace, "read");
        assert_all_came_once();
    }
}

/* Where something is refused, large, put off, or could appear below, nothing is read ahead. */
static void nothing_is_read_ahead_where_something_could_come_before_it(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        begin_ahead(20);
        if (i == 0)
            world.large = true;
        else if (i == 1)
            sink.later = "e299";
        else if (i == 2)
            world.seq = 10; /* nothing above it is proven */
        else if (i == 3)
            world.no_ahead = true;
        else if (i == 4)
            world.hidden = true;
        else
            db.shards[db.rows[0].shard] = (struct semel_relay_shard){db.rows[0].shard, 4711, 0};
        for (int k = 0; k < 4; k++)
            step_of(0);
        if (i == 0 || i == 2 || i == 4)
            assert_null(strstr(world.trace, "ahead"));
        for (int k = 0; k < 60; k++) {
            step_of(0);
            pass(k < 20 ? 1000 : SECOND);
            sink.later = NULL;
            world.seq = 300;
        }
        assert_all_came_once();
        if (i == 0 || i == 3 || i == 4)
            assert_int_equal(counts()->ahead, 0);
    }
}

/* O5: what was read and is not sent yet goes before anything that is read behind it. */
static void event_that_waits_for_its_turn_is_not_overtaken_by_what_is_read_ahead(void **state)
{
    (void)state;
    begin_ahead(20);
    SET(db.rows[50].to, "y"); /* one destination of an aggregate at a time */
    for (int i = 0; i < 400; i++, pass(SECOND))
        step_of(0);
    assert_all_came_once();
}

/* P1: a number below them may have been committed meanwhile. */
static void after_eight_scans_ahead_one_begins_at_the_starting_points(void **state)
{
    size_t most = 0, in_a_row = 0;
    (void)state;
    begin_ahead(10);
    for (int i = 0; i < 60; i++) {
        step_of(0);
        in_a_row = strstr(world.trace, "read") == NULL ? in_a_row + 1 : 0;
        most = in_a_row > most ? in_a_row : most;
    }
    assert_int_equal(most, 8);
    assert_all_came_once();
}

/* ---- the purge ----------------------------------------------------------------------------------- */

static void kept_events_are_purged_once_per_minute_or_until_none_are_left(void **state)
{
    (void)state;
    options.keep_us = 3600 * SECOND;
    make_relay(1);
    put("a0", "a1", "x");
    world.purges = 10000;
    step_of(1);
    assert_int_equal(world.purge_before_us, world.now_us - 3600 * SECOND);
    assert_int_equal(world.kept, 1);
    pass(SECOND - 1);
    step_of(1);
    assert_null(strstr(world.trace, "sent_purge"));
    pass(1);
    world.purges = 9999;
    step_of(1);
    assert_non_null(strstr(world.trace, "sent_purge"));
    pass(60 * SECOND - 1);
    step_of(1);
    assert_null(strstr(world.trace, "sent_purge"));
    pass(1);
    step_of(1);
    assert_non_null(strstr(world.trace, "sent_purge"));
}

int main(void)
{
#define ON(test) cmocka_unit_test_setup_teardown(test, up, down)
    const struct CMUnitTest tests[] = {
        ON(step_asks_the_store_for_what_it_needs_and_for_nothing_else),
        ON(event_aside_is_started_and_confirmed_under_the_lock_of_its_shard),
        ON(event_is_dead_after_its_last_attempt),
        ON(event_aside_waits_for_a_lower_number_in_the_outbox),
        ON(every_call_of_the_store_may_fail),
        ON(shares_differ_by_one_shard_at_most),
        ON(relay_with_other_destinations_owns_nothing_and_reports_why_once),
        ON(lease_is_renewed_in_time),
        ON(relay_whose_lease_is_over_joins_under_a_new_token_and_gives_up_the_old_one),
        ON(shard_that_relays_died_with_is_handled_with_care),
        ON(starting_points_are_proven_about_once_per_second),
        ON(every_scan_starts_at_the_bottom_where_transactions_are_not_visible),
        ON(event_below_a_proven_starting_point_is_published_and_reported),
        ON(shard_that_was_anothers_is_scanned_from_the_bottom),
        ON(rows_per_shard_follow_what_comes),
        ON(more_rows_than_wanted_narrow_the_window_and_few_widen_it),
        ON(backlog_is_read_ahead_and_deleted_behind),
        ON(what_was_confirmed_is_deleted_before_the_lease_ends_or_is_renewed),
        ON(nothing_is_read_ahead_where_something_could_come_before_it),
        ON(event_that_waits_for_its_turn_is_not_overtaken_by_what_is_read_ahead),
        ON(after_eight_scans_ahead_one_begins_at_the_starting_points),
        ON(kept_events_are_purged_once_per_minute_or_until_none_are_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
