/* SPDX-License-Identifier: MIT
 *
 * test_relay.c: the relay on a real store, with a sink that remembers what it got and can refuse, be down or die.
 * Usage: test_relay [postgres [PATTERN]]; without an argument on SQLite.
 */
#include "relay_rig.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/point.h"
#include "core/headers.h"
#include "ops/ops.h"

#ifdef SEMEL_WITH_POSTGRES
#include <libpq-fe.h>
#endif

/* ---- the tests ----------------------------------------------------------------------------------- */

/* O2, O4, O5, O7, P114 */
static void committed_events_leave_in_order_and_are_deleted(void **state)
{
    (void)state;
    put("a", "a1", NULL);
    put("b", "b1", NULL);
    put("a", "a2", NULL);
    put("a", "a3", NULL);
    steps(3);
    assert_string_equal(got_of(&rig.sink, "a"), "a1 a2 a3");
    assert_string_equal(got_of(&rig.sink, "b"), "b1");
    assert_int_equal(rig.sink.n, 4);
    assert_int_equal(count_in("", "true"), 0);
    for (size_t i = 0; i < rig.sink.n; i++) {
        assert_true(rig.sink.got[i].has_user_header);
        assert_false(rig.sink.got[i].has_foreign_id);
        assert_int_equal(strlen(rig.sink.got[i].id), 36);
        assert_string_equal(rig.sink.got[i].payload, rig.sink.got[i].type);
    }
    assert_int_equal(semel__relay_counts(rig.relay)->published, 4);
    step_of(rig.relay);
    assert_true(semel__relay_idle(rig.relay));
}

/* P69: one unconfirmed request per aggregate, where a sink does not take several whole or not at all. */
static void sink_without_runs_gets_one_event_of_an_aggregate_per_call(void **state)
{
    (void)state;
    rig.sink.ops.capabilities = SEMEL_BROKER_SINK;
    semel__relay_free(rig.relay);
    rig.relay = relay_on(rig.world->store, &rig.sink, "first");
    for (int i = 0; i < 5; i++) {
        char type[8];
        snprintf(type, sizeof type, "a%d", i);
        put("a", type, NULL);
    }
    put("b", "b0", NULL);
    steps(1);
    assert_int_equal(rig.sink.most, 2);
    steps(5);
    assert_int_equal(rig.sink.most, 2);
    assert_string_equal(got_of(&rig.sink, "a"), "a0 a1 a2 a3 a4");
}

/* O3, O5, P8, P113 */
static void refused_event_holds_back_its_aggregate_only_and_ends_dead(void **state)
{
    (void)state;
    rig.sink.refuse = "a1";
    put("a", "a1", NULL);
    put("a", "a2", NULL);
    put("b", "b1", NULL);
    steps(2);
    put("a", "a3", NULL);
    put("b", "b2", NULL);
    for (int i = 0; i < 20; i++) {
        steps(2);
        pass(5 * SECOND);
    }
    assert_string_equal(got_of(&rig.sink, "a"), "");
    assert_string_equal(got_of(&rig.sink, "b"), "b1 b2");
    assert_int_equal(count_in("", "true"), 0);
    assert_int_equal(count_in("_aside", "status = 'dead' AND attempts = 3 AND error_text = 'too large'"), 1);
    assert_int_equal(count_in("_aside", "status = 'waiting' AND attempts = 0 AND due_at IS NULL"), 2);
    assert_int_equal(semel__relay_counts(rig.relay)->dead, 1);
}

static void refused_event_that_is_taken_later_goes_before_its_successors(void **state)
{
    (void)state;
    rig.sink.refuse = "a1";
    put("a", "a1", NULL);
    put("a", "a2", NULL);
    steps(3);
    put("a", "a3", NULL);
    rig.sink.refuse = NULL;
    for (int i = 0; i < 10; i++) {
        steps(2);
        pass(5 * SECOND);
    }
    assert_string_equal(got_of(&rig.sink, "a"), "a1 a2 a3");
    assert_int_equal(count_in("_aside", "true"), 0);
}

/* P63, P111, P112 */
static void destination_that_is_down_holds_back_its_own_events_and_charges_none(void **state)
{
    (void)state;
    put("b", "b0", NULL);
    steps(1);
    rig.sink.down = "lost";
    put("a", "a1", "lost");
    put("a", "a2", "lost");
    put("b", "b1", NULL);
    for (int i = 0; i < 10; i++) {
        steps(3);
        put("b", "more", NULL);
        pass(SECOND);
    }
    assert_string_equal(got_of(&rig.sink, "a"), "");
    assert_int_equal(count_in("", "aggregateid = 'a'"), 0);
    assert_int_equal(count_in("_aside", "aggregateid = 'a' AND status = 'waiting' AND attempts = 0"), 2);
    assert_non_null(strstr(rig.reported, "destination is down: lost: no such topic"));
    rig.sink.down = NULL;
    for (int i = 0; i < 10; i++) {
        steps(3);
        pass(30 * SECOND);
    }
    assert_string_equal(got_of(&rig.sink, "a"), "a1 a2");
    assert_int_equal(count_in("_aside", "true"), 0);
    assert_non_null(strstr(rig.reported, "destination takes events again: lost"));
}

/* P112: whoever hangs takes his time-out from all; so seldom that the others keep nine tenths of the time. */
static void destinations_that_hang_leave_the_others_their_time(void **state)
{
    (void)state;
    struct semel_relay_options options = rig.options;
    options.ceiling_us = 2 * SECOND;
    again_with(options);
    put("b", "b0", NULL);
    steps(1);
    const int64_t from_us = rig.steady_us;
    rig.sink.hangs = "stuck";
    int put_there = 1;
    for (int i = 0; rig.steady_us < from_us + 200 * SECOND; i++) {
        if (i < 30) { /* three of them, of which each is found out by itself */
            char name[16];
            snprintf(name, sizeof name, "stuck%d", i / 10);
            put(name, "e", name);
        }
        put("b", "b", NULL);
        put_there++;
        steps(1);
        pass(SECOND / 2);
    }
    assert_in_range(rig.sink.hung_us, 5 * options.timeout_us, (rig.steady_us - from_us) / 5);
    assert_int_equal(rig.sink.n, put_there);
    assert_int_equal(count_in("_aside", "attempts = 0 AND status = 'waiting'"), 30);
    rig.sink.hangs = NULL;
    for (int i = 0; i < 40; i++) {
        steps(3);
        pass(5 * SECOND);
    }
    assert_int_equal(rig.sink.n, put_there + 30);
}

/* O5, P112: nobody has heard of the good one for a while, and its event stands behind more than a scan reads. */
static void destination_that_is_down_does_not_hide_events_of_one_that_has_worked(void **state)
{
    (void)state;
    if (on_postgres)
        skip(); /* all are of one shard on SQLite */
    struct semel_relay_options options = rig.options;
    options.rows = 20;
    again_with(options);
    put("b", "b0", NULL);
    steps(1);
    pass(60 * SECOND);
    rig.sink.down = "lost";
    for (int i = 0; i < 300; i++) {
        char key[16];
        snprintf(key, sizeof key, "a%d", i);
        put(key, "e", "lost");
    }
    put("b", "b1", NULL);
    for (int i = 0; i < 150 && rig.sink.n < 2; i++) {
        steps(1);
        pass(SECOND);
    }
    assert_string_equal(got_of(&rig.sink, "b"), "b0 b1");
}

static void broker_that_is_down_costs_delay_only(void **state)
{
    (void)state;
    rig.sink.all_down = true;
    for (int i = 0; i < 20; i++)
        put(i % 2 == 0 ? "a" : "b", "e", NULL);
    for (int i = 0; i < 10; i++) {
        steps(2);
        pass(10 * SECOND);
    }
    assert_int_equal(count_in("", "true"), 20);
    assert_int_equal(count_in("_aside", "true"), 0);
    rig.sink.all_down = false;
    for (int i = 0; i < 10; i++) {
        steps(2);
        pass(30 * SECOND);
    }
    assert_int_equal(rig.sink.n, 20);
    assert_int_equal(count_in("", "true"), 0);
}

static void unknown_outcome_is_sent_again_under_the_same_id(void **state)
{
    (void)state;
    rig.sink.unknown = true;
    put("a", "a1", NULL);
    steps(1);
    rig.sink.unknown = false;
    for (int i = 0; i < 5; i++) {
        steps(2);
        pass(10 * SECOND);
    }
    assert_int_equal(rig.sink.n, 2);
    assert_string_equal(rig.sink.got[0].id, rig.sink.got[1].id);
    assert_int_equal(count_in("", "true"), 0);
}

static void event_without_a_place_to_go_is_dead_at_once(void **state)
{
    (void)state;
    put("a", "a1", "nowhere");
    put("a", "a2", NULL);
    put("b", "b1", NULL);
    steps(4);
    assert_string_equal(got_of(&rig.sink, "a"), "");
    assert_string_equal(got_of(&rig.sink, "b"), "b1");
    assert_int_equal(count_in("_aside", "status = 'dead' AND error_text = 'the destination is not on the list'"), 1);
    assert_int_equal(count_in("_aside", "status = 'waiting'"), 1);
}

static void long_queue_of_one_aggregate_does_not_delay_the_others(void **state)
{
    (void)state;
    rig.sink.ops.capabilities = SEMEL_BROKER_SINK;
    semel__relay_free(rig.relay);
    rig.relay = relay_on(rig.world->store, &rig.sink, "first");
    for (int i = 0; i < 150; i++) {
        char type[8];
        snprintf(type, sizeof type, "a%d", i);
        put("a", type, NULL);
    }
    put("b", "b1", NULL);
    steps(1);
    assert_string_equal(got_of(&rig.sink, "b"), "b1");
    assert_true(count_in("_aside", "true") > 0);
    for (int i = 0; i < 400 && count_in("_event", "true") > 0; i++) {
        steps(1);
        pass(SECOND);
    }
    assert_int_equal(rig.sink.n, 151);
    for (int i = 0, k = 0; i < 150; i++, k++) {
        char type[8];
        snprintf(type, sizeof type, "a%d", i);
        k += strcmp(rig.sink.got[k].key, "b") == 0;
        assert_string_equal(rig.sink.got[k].type, type);
    }
}

#define SHARD_OF(name) "(get_byte(decode(md5('order/' || " name "), 'hex'), 0) & 63)"

/* O5, P113: of two aggregates of one shard the first has a run of events that is long compared to what is read. */
static void others_do_not_wait_until_a_long_queue_has_moved_aside(void **state)
{
    char other[24] = "b";
    struct semel_relay_options options = rig.options;
    (void)state;
    if (on_postgres)
        snprintf(other, sizeof other, "b%lld",
                 (long long)world_ask(rig.world, "SELECT min(i) FROM generate_series(1, 10000) AS i "
                                                 "WHERE " SHARD_OF("'b' || i") " = " SHARD_OF("'a'")));
    options.rows = 50;
    rig.sink.ops.capabilities = SEMEL_BROKER_SINK;
    again_with(options);
    for (int i = 0; i < 700; i++) {
        char type[8];
        snprintf(type, sizeof type, "a%d", i);
        put("a", type, NULL);
    }
    put(other, "b1", NULL);
    pass(2 * SECOND);
    for (int i = 0; i < 100 && got_of(&rig.sink, other)[0] == '\0'; i++)
        steps(1);
    assert_string_equal(got_of(&rig.sink, other), "b1");
    assert_true(count_in("", "aggregateid = 'a'") > 300);
    steps(5);
    for (size_t i = 0, k = 0; i < rig.sink.n; i++) {
        char type[8];
        snprintf(type, sizeof type, "a%zu", k);
        k += strcmp(rig.sink.got[i].key, "a") == 0;
        assert_true(strcmp(rig.sink.got[i].key, "a") != 0 || strcmp(rig.sink.got[i].type, type) == 0);
    }
}

/* O6 */
static void relays_share_the_shards_and_give_them_back(void **state)
{
    char why[SEMEL_RELAY_WHY];
    (void)state;
    if (!on_postgres)
        skip();
    rig.other = relay_on(rig.world->other, &rig.other_sink, "second");
    steps(1);
    assert_int_equal(semel__relay_owns(rig.relay, why), 64);
    for (int i = 0; i < 15; i++) {
        step_of(rig.other);
        steps(1);
        pass(SECOND);
    }
    assert_int_equal(semel__relay_owns(rig.relay, why), 32);
    assert_int_equal(semel__relay_owns(rig.other, why), 32);
    for (int i = 0; i < 64; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i);
        put(key, "e", NULL);
    }
    for (int i = 0; i < 3; i++) {
        step_of(rig.other);
        steps(1);
    }
    assert_int_equal(rig.sink.n + rig.other_sink.n, 64);
    assert_true(rig.sink.n > 10 && rig.other_sink.n > 10);
    assert_ok(rig.world, semel__relay_leave(rig.other, &rig.world->err));
    pass(6 * SECOND);
    steps(2);
    assert_int_equal(semel__relay_owns(rig.relay, why), 64);
}

/* P115 */
static void relay_with_other_destinations_waits(void **state)
{
    char why[SEMEL_RELAY_WHY];
    (void)state;
    if (!on_postgres)
        skip();
    steps(1);
    rig.options.destinations = SEMEL_STR("d2");
    rig.other = relay_on(rig.world->other, &rig.other_sink, "second");
    for (int i = 0; i < 15; i++) {
        step_of(rig.other);
        steps(1);
        pass(SECOND);
    }
    assert_int_equal(semel__relay_owns(rig.relay, why), 64);
    assert_int_equal(semel__relay_owns(rig.other, why), 0);
    assert_non_null(strstr(why, "other destinations"));
}

/* A relay whose lease is over is replaced; when it comes back it may repeat, but moves nothing aside. */
static void relay_that_was_stopped_is_replaced_and_fenced(void **state)
{
    char why[SEMEL_RELAY_WHY];
    (void)state;
    if (!on_postgres)
        skip();
    steps(1);
    rig.other = relay_on(rig.world->other, &rig.other_sink, "second");
    pass(16 * SECOND);
    step_of(rig.other);
    assert_int_equal(semel__relay_owns(rig.other, why), 64);
    put("a", "a1", NULL);
    step_of(rig.other);
    assert_string_equal(got_of(&rig.other_sink, "a"), "a1");
    put("a", "a2", NULL);
    steps(1); /* it notices that it was replaced */
    assert_int_equal(semel__relay_owns(rig.relay, why), 0);
    for (int i = 0; i < 15; i++) {
        step_of(rig.other);
        steps(1);
        pass(SECOND);
    }
    assert_int_equal(semel__relay_owns(rig.relay, why) + semel__relay_owns(rig.other, why), 64);
    assert_int_equal(rig.sink.n + rig.other_sink.n, 2);
    assert_int_equal(world_ask(rig.world, "SELECT max(losses) FROM semel.outbox_shard"), 1);
}

/* An event that kills its relay each time is counted, alone, and ends dead; the others arrive. */
static void event_that_kills_its_relay_ends_dead(void **state)
{
    char why[SEMEL_RELAY_WHY];
    (void)state;
    if (!on_postgres)
        skip();
    steps(1);
    assert_ok(rig.world, semel__relay_leave(rig.relay, &rig.world->err));
    world_sql(rig.world, "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload) "
                         "SELECT gen_random_uuid(), 'order', 'k' || i, 'e', 'e' FROM generate_series(1, 20) AS i");
    world_sql(rig.world, "UPDATE semel.outbox_shard SET relay = 4711, losses = 1"); /* the second relay to die */
    rig.options.attempts_max = 2;
    semel__relay_free(rig.relay);
    rig.relay = relay_on(rig.world->store, &rig.sink, "third");
    steps(1); /* the shards were lost twice: all of them stand aside now, each to be sent alone */
    assert_int_equal(count_in("_aside", "alone"), 20);
    rig.sink.most = 0;
    steps(5);
    assert_int_equal(rig.sink.most, 1);
    /* The process dies while it publishes one of them: */
    world_sql(rig.world, "UPDATE semel.outbox_aside SET status = 'publishing', relay = 4712, attempts = attempts + 1 "
                         "WHERE seq = (SELECT max(seq) FROM semel.outbox_aside)");
    pass(6 * SECOND);
    steps(1);
    assert_int_equal(count_in("_aside", "attempts = 1 AND alone AND status = 'failed'"), 1);
    world_sql(rig.world, "UPDATE semel.outbox_aside SET status = 'publishing', relay = 4713, attempts = attempts + 1 "
                         "WHERE attempts = 1");
    pass(6 * SECOND);
    for (int i = 0; i < 30; i++)
        steps(1);
    assert_int_equal(count_in("_aside", "status = 'dead' AND attempts = 2"), 1);
    assert_int_equal(rig.sink.n, 19);
    assert_int_equal(semel__relay_owns(rig.relay, why), 64);
}

/* Of several that were published together nobody knows which one it was: none is charged, each goes on alone. */
static void events_that_lost_their_relay_together_are_not_charged(void **state)
{
    (void)state;
    struct semel_relay_options options = rig.options;
    options.attempts_max = 2; /* who was charged would be dead */
    again_with(options);
    rig.sink.refuse = "e";
    put("a", "e", NULL);
    put("b", "e", NULL);
    steps(2);
    assert_int_equal(count_in("_aside", "attempts = 1"), 2);
    world_sql(rig.world, on_postgres ? "UPDATE semel.outbox_aside SET status = 'publishing', relay = 5, attempts = 2"
                                     : "UPDATE semel_outbox_aside SET status = 'publishing', relay = 5, attempts = 2");
    pass(6 * SECOND);
    rig.sink.refuse = NULL;
    rig.sink.most = 0;
    step_of(rig.relay);
    assert_int_equal(rig.sink.n, 1);
    steps(3);
    assert_int_equal(rig.sink.most, 1);
    assert_int_equal(rig.sink.n, 2);
    assert_int_equal(count_in("_aside", "true"), 0);
}

/* O7 */
static void confirmed_events_are_kept_where_that_is_wanted(void **state)
{
    (void)state;
    rig.options.keep_us = 60 * SECOND;
    semel__relay_free(rig.relay);
    rig.relay = relay_on(rig.world->store, &rig.sink, "first");
    put("a", "a1", NULL);
    steps(2);
    assert_int_equal(count_in("", "true"), 0);
    assert_int_equal(count_in("_sent", "aggregateid = 'a'"), 1);
    assert_int_equal(count_in("_event", "status = 'published'"), 1);
    for (int i = 0; i < 5; i++) {
        pass(61 * SECOND);
        steps(1);
    }
    assert_int_equal(count_in("_sent", "true"), 0);
}

#define FORGED "{\"Id\": \"not-the-id\", \"CE_type\": \"no\", \"shop\": 5}"
static void payload_that_is_null_is_a_tombstone(void **state)
{
    (void)state;
    world_sql(rig.world,
              on_postgres
                  ? "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, headers) VALUES "
                    "('01890a5d-ac96-774b-bcce-b302099a8057', 'order', 'a', 'gone', '" FORGED "')"
                  : "INSERT INTO semel_outbox (id, aggregatetype, aggregateid, type, created_at, headers) VALUES "
                    "('01890a5d-ac96-774b-bcce-b302099a8057', 'order', 'a', 'gone', 1, '" FORGED "')");
    steps(1);
    assert_int_equal(rig.sink.n, 1);
    assert_true(rig.sink.got[0].tombstone);
    assert_true(rig.sink.got[0].has_user_header);
    assert_false(rig.sink.got[0].has_foreign_id); /* P114: in a row that was inserted plainly, too */
    assert_string_equal(rig.sink.got[0].type, "gone");
    assert_string_equal(rig.sink.got[0].id, "01890a5d-ac96-774b-bcce-b302099a8057");
}

/* ---- what must not go wrong ------------------------------------------------------------------------ */

/* An event for another destination waits for those before it, and those behind it wait for it. */
static void events_of_an_aggregate_keep_their_order_across_destinations(void **state)
{
    (void)state;
    put("a", "a1", "x");
    put("a", "a2", "y");
    put("a", "a3", "x");
    put("a", "a4", "x");
    steps(5);
    assert_string_equal(got_of(&rig.sink, "a"), "a1 a2 a3 a4");
}

/* What was set aside because it had to wait does not overtake an earlier event that was refused. */
static void event_aside_waits_for_an_earlier_one_that_is_aside(void **state)
{
    (void)state;
    struct semel_relay_options options = rig.options;
    options.attempts_max = 20;
    rig.sink.ops.capabilities = SEMEL_BROKER_SINK;
    again_with(options);
    rig.sink.refuse = "a0";
    for (int i = 0; i < 150; i++) {
        char type[8];
        snprintf(type, sizeof type, "a%d", i);
        put("a", type, NULL);
    }
    for (int i = 0; i < 4; i++) {
        steps(3);
        pass(SECOND / 2);
    }
    assert_int_equal(rig.sink.n, 0);
    rig.sink.refuse = NULL;
    for (int i = 0; i < 400 && count_in("_event", "true") > 0; i++) {
        steps(1);
        pass(SECOND);
    }
    assert_int_equal(rig.sink.n, 150);
    for (int i = 0; i < 150; i++) {
        char type[8];
        snprintf(type, sizeof type, "a%d", i);
        assert_string_equal(rig.sink.got[i].type, type);
    }
}

/* Memory is bounded by bytes: over all shards, from the outbox and from aside. */
static void bytes_of_a_step_are_bounded_over_all_shards(void **state)
{
    (void)state;
    struct semel_relay_options options = rig.options;
    options.bytes = 80;
    options.attempts_max = 20;
    again_with(options);
    rig.sink.all_down = true;
    for (int i = 0; i < 40; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i);
        put(key, "e", NULL);
        put(key, "f", NULL);
    }
    rig.sink.all_down = false;
    rig.sink.refuse = "e";
    steps(60);
    assert_in_range(rig.sink.most, 2, 8);
    assert_int_equal(rig.sink.n, 0);
    assert_int_equal(count_in("", "true"), 0);
    rig.sink.refuse = NULL;
    for (int i = 0; i < 100 && count_in("_event", "true") > 0; i++) {
        steps(1);
        pass(SECOND);
    }
    assert_in_range(rig.sink.most, 2, 8);
    assert_int_equal(rig.sink.n, 80);
    assert_string_equal(got_of(&rig.sink, "k7"), "e f");
}

/* Whatever a plain INSERT has put: it is dead, or goes, and holds nobody up. */
static void event_that_is_too_large_is_dead_and_the_rest_goes_on(void **state)
{
    (void)state;
    put("a", "a1", NULL);
    world_sql(rig.world, on_postgres
                             ? "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload) VALUES "
                               "(gen_random_uuid(), 'order', 'huge', 'h', convert_to(repeat('x', 67108865), 'UTF8'))"
                             : "INSERT INTO semel_outbox (id, aggregatetype, aggregateid, type, payload, created_at) "
                               "VALUES ('01890a5d-ac96-774b-bcce-b302099a8057', 'order', 'huge', 'h', "
                               "zeroblob(67108865), 0)");
    if (on_postgres)
        world_sql(rig.world, "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, created_at) VALUES "
                             "(gen_random_uuid(), 'order', 'end', 'e', 'infinity')");
    put("b", "b1", NULL);
    put("huge", "h2", NULL);
    steps(4);
    assert_string_equal(got_of(&rig.sink, "a"), "a1");
    assert_string_equal(got_of(&rig.sink, "b"), "b1");
    assert_string_equal(got_of(&rig.sink, "end"), on_postgres ? "e" : "");
    assert_int_equal(count_in("_aside", "status = 'dead' AND error_text = 'the event has more than 64 MB'"), 1);
    assert_int_equal(count_in("_aside", "status = 'waiting'"), 1);
}

#define TRACE "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static void insert_with_headers(const char *aggregate, const char *headers, const char *traceparent)
{
    char text[1024];
    snprintf(text, sizeof text,
             "INSERT INTO semel%coutbox (id, aggregatetype, aggregateid, type, headers, traceparent, created_at) "
             "VALUES ('01890a5d-ac96-774b-bcce-b302099a80%02zx', 'order', '%s', 'e', '%s', %s, %s)",
             on_postgres ? '.' : '_', strlen(headers) % 256, aggregate, headers, traceparent,
             on_postgres ? "now()" : "0");
    world_sql(rig.world, text);
}

/* P114: a plain INSERT has headers that outbox_put refuses: they are left out, in any case, and the others go. */
static void headers_that_put_would_refuse_are_left_out_of_a_plain_insert(void **state)
{
    (void)state;
    insert_with_headers("a",
                        "{\"id\": \"x\", \"Id\": \"x\", \"ce_id\": \"x\", \"CE_TYPE\": \"x\", \"ce-id\": \"x\", "
                        "\"ce_new\": \"x\", \"traceparent\": \"x\", \"TraceParent\": \"x\", \"webhook-id\": \"x\", "
                        "\"Webhook-Signature\": \"x\", \"shop\": \"x\", \"identity\": \"y\", \"cents\": 7}",
                        "'" TRACE "'");
    insert_with_headers("b", "{\"traceparent\": \"x\"}", "NULL");
    insert_with_headers("c", "{}", "NULL");
    put("a", "a2", NULL);
    steps(4);
    assert_string_equal(got_of(&rig.sink, "a"), "e a2");
    assert_int_equal(rig.sink.n, 4);
    for (size_t i = 0; i < rig.sink.n; i++) {
        const struct got *got = &rig.sink.got[i];
        const bool traced = strcmp(got->key, "a") == 0 && strcmp(got->type, "e") == 0;
        assert_string_equal(got->ce_id, got->id);
        assert_false(got->has_foreign_id);
        assert_string_equal(got->traceparent, traced ? TRACE : "");
        assert_int_equal(got->own, traced ? 7 : 6);
        assert_int_equal(got->headers - got->own, traced ? 3 : strcmp(got->type, "a2") == 0);
    }
    assert_int_equal(count_in("_event", "true"), 0);
}

/* An application with ids of its own puts an event again while the first one stands aside. */
static void id_that_was_put_again_holds_nobody_up(void **state)
{
    (void)state;
    rig.sink.refuse = "a1";
    put("a", "a1", NULL);
    steps(2);
    world_sql(rig.world, on_postgres ? "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type) "
                                       "SELECT id::uuid, aggregatetype, aggregateid, type FROM semel.outbox_aside"
                                     : "INSERT INTO semel_outbox (id, aggregatetype, aggregateid, type, created_at) "
                                       "SELECT id, aggregatetype, aggregateid, type, 0 FROM semel_outbox_aside");
    put("b", "b1", NULL);
    steps(3);
    assert_string_equal(got_of(&rig.sink, "b"), "b1");
    rig.sink.refuse = NULL;
    for (int i = 0; i < 5; i++) {
        steps(2);
        pass(5 * SECOND);
    }
    assert_int_equal(rig.sink.n, 3);
    assert_int_equal(count_in("_event", "true"), 0);
}

/* A relay that calms a shard touches no shard that it has not locked: another relay may have it by now. */
static void relay_takes_no_shard_back_when_it_sets_events_aside(void **state)
{
    (void)state;
    if (!on_postgres)
        skip();
    steps(1);
    assert_ok(rig.world, semel__relay_leave(rig.relay, &rig.world->err));
    world_sql(rig.world, "UPDATE semel.outbox_shard SET relay = 4711, losses = 1");
    pass(SECOND);
    steps(1);
    put("a", "a1", NULL);
    world_sql(rig.world, "UPDATE semel.outbox_shard SET relay = 99 WHERE shard <> (SELECT shard FROM semel.outbox)");
    steps(1);
    assert_int_equal(world_ask(rig.world, "SELECT count(*) FROM semel.outbox_shard WHERE relay = 99 AND losses = 2"),
                     63);
    assert_int_equal(world_ask(rig.world, "SELECT count(*) FROM semel.outbox_shard WHERE losses = 0"), 1);
}

/* A relay that was replaced without knowing may repeat, and moves nothing. */
static void relay_that_lost_its_shards_sets_nothing_aside(void **state)
{
    (void)state;
    if (!on_postgres)
        skip();
    steps(1);
    put("a", "a1", NULL);
    world_sql(rig.world, "UPDATE semel.outbox_shard SET relay = 99");
    rig.sink.refuse = "a1";
    steps(1);
    assert_int_equal(count_in("", "true"), 1);
    assert_int_equal(count_in("_aside", "true"), 0);
}

/* A relay that lost its connection while it published an event lives: the event did not kill it. */
static void event_in_hand_is_not_charged_when_the_connection_is_lost(void **state)
{
    (void)state;
    rig.sink.refuse = "a1";
    put("a", "a1", NULL);
    steps(2);
    world_sql(rig.world, on_postgres ? "UPDATE semel.outbox_aside SET status = 'publishing', attempts = 3, "
                                       "relay = (SELECT token FROM semel.relay)"
                                     : "UPDATE semel_outbox_aside SET status = 'publishing', attempts = 3, "
                                       "relay = (SELECT token FROM semel_relay)");
    semel__relay_forget(rig.relay);
    rig.sink.all_down = true;
    steps(1);
    assert_int_equal(count_in("_aside", "status = 'waiting' AND attempts = 2"), 1);
    rig.sink.all_down = false;
    rig.sink.refuse = NULL;
    for (int i = 0; i < 5; i++) {
        steps(1);
        pass(5 * SECOND);
    }
    assert_int_equal(rig.sink.n, 1);
}

static size_t occurrences(const char *text, const char *of)
{
    size_t n = 0;
    for (const char *at = strstr(text, of); at != NULL; at = strstr(at + 1, of))
        n++;
    return n;
}

/* More destinations than the relay can tell apart in a step: nobody is taken for another one. */
static void many_destinations_are_told_apart(void **state)
{
    (void)state;
    rig.sink.down = "d0";
    for (int i = 0; i < 300; i++) {
        char name[8];
        snprintf(name, sizeof name, "d%d", i);
        put(name, "e", name);
    }
    char text[800], far[301];
    memset(far, 'x', sizeof far - 1);
    far[sizeof far - 1] = '\0';
    snprintf(text, sizeof text,
             "INSERT INTO %s (id, aggregatetype, aggregateid, type, destination, created_at) "
             "VALUES ('01890a5d-ac96-774b-bcce-b302099a8057', 'order', 'far', 'e', '%s', %s)",
             on_postgres ? "semel.outbox" : "semel_outbox", far, on_postgres ? "now()" : "0");
    world_sql(rig.world, text);
    steps(10);
    assert_int_equal(rig.sink.n, 300);
    assert_int_equal(occurrences(rig.reported, "destination is down"), 1);
    assert_non_null(strstr(rig.reported, "destination is down: d0: no such topic"));
}

/* Whatever the window is: who waits in it does not hide the others of its shard. */
static void long_queue_delays_nobody_when_the_window_is_narrow(void **state)
{
    (void)state;
    if (on_postgres)
        skip(); /* they are of one shard on SQLite, whatever they are called */
    struct semel_relay_options options = rig.options;
    options.rows = 30;
    rig.sink.ops.capabilities = SEMEL_BROKER_SINK;
    again_with(options);
    rig.sink.all_down = true;
    for (int i = 0; i < 60; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i);
        put(key, "e", NULL);
    }
    for (int i = 0; i < 10; i++) {
        steps(1);
        pass(10 * SECOND);
    }
    rig.sink.all_down = false;
    pass(60 * SECOND);
    steps(15);
    assert_int_equal(count_in("", "true"), 0);
    for (int i = 0; i < 120; i++)
        put("a", "a", NULL);
    put("b", "b1", NULL);
    steps(40);
    assert_string_equal(got_of(&rig.sink, "b"), "b1");
}

static void nothing_is_read_again_and_again_while_nothing_can_go(void **state)
{
    (void)state;
    rig.sink.all_down = true;
    for (int i = 0; i < 20; i++)
        put("a", "e", NULL);
    steps(1);
    const uint64_t scans = semel__relay_counts(rig.relay)->scans;
    step_of(rig.relay);
    assert_false(semel__relay_idle(rig.relay));
    steps(100);
    assert_in_range(semel__relay_counts(rig.relay)->scans - scans, 1, 10);
}

static void let_time_pass(void *ctx, enum semel_point point)
{
    (void)ctx;
    if (point == SEMEL_AT_RELAY_STARTED)
        pass(20 * SECOND);
}

/* The lease is over when the starts are committed at last: nothing goes, and nothing is charged. */
static void nothing_is_sent_once_the_lease_is_over(void **state)
{
    (void)state;
#ifdef SEMEL_POINTS
    rig.sink.refuse = "a1";
    put("a", "a1", NULL);
    steps(1);
    assert_int_equal(count_in("_aside", "attempts = 1"), 1);
    put("b", "b1", NULL);
    pass(5 * SECOND);
    rig.sink.refuse = NULL;
    size_t calls = rig.sink.calls;
    semel__point_set_hook(let_time_pass, NULL);
    step_of(rig.relay);
    semel__point_set_hook(NULL, NULL);
    assert_int_equal(rig.sink.calls, calls);
    assert_int_equal(count_in("_aside", "status = 'waiting' AND attempts = 1"), 1);
    pass(5 * SECOND);
    steps(3);
    assert_int_equal(rig.sink.n, 2);
    assert_int_equal(count_in("_event", "true"), 0);
#else
    (void)let_time_pass;
    skip();
#endif
}

/* ---- operators ----------------------------------------------------------------------------------- */

static struct semel_event_answer answered;

/* One command, on a connection of its own. */
static enum semel_event_judgement command_on(enum semel_command_kind kind, const char *id, bool dry)
{
    const struct semel_instruction given = {.kind = kind, .reason = SEMEL_STR("because")};
    struct semel_arena arena;
    struct semel_ops ops;
    semel__arena_init(&arena, 1 << 20);
    assert_ok(rig.world, semel__ops_init(&ops, rig.world->other, &arena, SEMEL_STR("mara"), &rig.world->err));
    assert_ok(rig.world, semel__ops_event_command(&ops, &given, semel__str(id), dry, &answered, &rig.world->err));
    semel__ops_done(&ops);
    semel__arena_done(&arena);
    return answered.judged;
}

static enum semel_event_judgement retry(const char *id)
{
    return command_on(SEMEL_COMMAND_RETRY, id, false);
}

static enum semel_event_judgement discard(const char *id)
{
    return command_on(SEMEL_COMMAND_DISCARD, id, false);
}

/* The events of a status, by their numbers. */
static size_t events_of(unsigned statuses, char ids[][40], size_t max)
{
    const struct semel_event_filter filter = {.statuses = statuses};
    struct semel_event_row *rows;
    struct semel_arena arena;
    size_t n = 0;
    semel__arena_init(&arena, 16 << 20);
    assert_ok(rig.world,
              semel_query_events(rig.world->other, &filter, SEMEL_NONE, max, &arena, &rows, &n, &rig.world->err));
    for (size_t i = 0; i < n; i++)
        snprintf(ids[i], 40, "%.*s", (int)rows[i].id.n, rows[i].id.p);
    semel__arena_done(&arena);
    return n;
}

static int64_t audits(const char *what)
{
    char text[200];
    snprintf(text, sizeof text, "SELECT count(*) FROM semel%caudit WHERE what = '%s' AND reason = 'because'",
             on_postgres ? '.' : '_', what);
    return world_ask(rig.world, text);
}

#define IS(status) (1u << SEMEL_EVENT_##status)

/* Two of an aggregate, the first of which is dead, and one of another. */
static void make_dead(char dead[40], char behind[40])
{
    char ids[4][40];
    put("a", "bad", NULL);
    put("a", "a2", NULL);
    rig.sink.refuse = "bad";
    for (int i = 0; i < 12; i++) {
        steps(2);
        pass(60 * SECOND);
    }
    assert_int_equal(events_of(IS(DEAD), ids, 4), 1);
    memcpy(dead, ids[0], 40);
    assert_int_equal(events_of(IS(WAITING), ids, 4), 1);
    memcpy(behind, ids[0], 40);
}

/* O6 */
static void dead_event_that_is_retried_goes_under_its_id_and_the_next_follows(void **state)
{
    char dead[40], behind[40];
    (void)state;
    make_dead(dead, behind);
    assert_int_equal(command_on(SEMEL_COMMAND_RETRY, dead, true), SEMEL_EVENT_ALLOWED);
    assert_int_equal(answered.kind, SEMEL_WOULD);
    assert_int_equal(retry(behind), SEMEL_EVENT_BEHIND);
    assert_int_equal(count_in("_aside", "status = 'dead'"), 1);
    assert_int_equal(audits("outbox retry"), 0);
    rig.sink.refuse = NULL;
    assert_int_equal(retry(dead), SEMEL_EVENT_ALLOWED);
    assert_string_equal(answered.status, "waiting");
    assert_int_equal(count_in("_aside", "status = 'waiting' AND attempts = 0 AND due_at IS NOT NULL"), 1);
    steps(6);
    assert_string_equal(got_of(&rig.sink, "a"), "bad a2");
    assert_string_equal(rig.sink.got[0].id, dead);
    assert_int_equal(audits("outbox retry"), 1);
    assert_int_equal(retry(dead), SEMEL_EVENT_NO_SUCH);
}

/* O6 */
static void dead_event_that_is_discarded_frees_its_aggregate(void **state)
{
    char dead[40], behind[40];
    (void)state;
    make_dead(dead, behind);
    assert_int_equal(discard(dead), SEMEL_EVENT_ALLOWED);
    assert_null(answered.status);
    assert_int_equal(discard(dead), SEMEL_EVENT_NO_SUCH);
    steps(6);
    assert_string_equal(got_of(&rig.sink, "a"), "a2");
    assert_int_equal(audits("outbox discard"), 1);
    assert_int_equal(count_in("_aside", "true") + count_in("", "true"), 0);
}

static void event_that_was_not_read_yet_is_discarded_and_not_retried(void **state)
{
    char ids[2][40];
    (void)state;
    put("a", "a1", NULL);
    assert_int_equal(events_of(IS(CREATED), ids, 2), 1);
    assert_int_equal(retry(ids[0]), SEMEL_EVENT_NOT_ASIDE);
    assert_int_equal(discard(ids[0]), SEMEL_EVENT_ALLOWED);
    steps(3);
    assert_int_equal(rig.sink.n, 0);
    assert_int_equal(discard("01890a5d-ac96-774b-bcce-b302099a8057"), SEMEL_EVENT_NO_SUCH);
}

static char watched[40];
static enum semel_event_judgement met[2];

static void meet_publishing(void)
{
    met[0] = retry(watched);
    met[1] = discard(watched);
}

static void event_that_is_being_published_is_left_alone(void **state)
{
    char behind[40];
    (void)state;
    make_dead(watched, behind);
    rig.sink.refuse = NULL;
    assert_int_equal(retry(watched), SEMEL_EVENT_ALLOWED);
    rig.sink.during = meet_publishing;
    step_of(rig.relay);
    rig.sink.during = NULL;
    assert_int_equal(met[0], SEMEL_EVENT_IS_PUBLISHING);
    assert_int_equal(met[1], SEMEL_EVENT_IS_PUBLISHING);
    steps(6);
    assert_string_equal(got_of(&rig.sink, "a"), "bad a2");
    assert_int_equal(audits("outbox discard"), 0);
}

static void published_event_is_shown_where_it_is_kept_and_left_alone(void **state)
{
    char ids[2][40];
    (void)state;
    semel__relay_free(rig.relay);
    rig.options.keep_us = 3600 * SECOND;
    rig.relay = relay_on(rig.world->store, &rig.sink, "keeps");
    put("a", "a1", NULL);
    steps(3);
    assert_int_equal(events_of(IS(PUBLISHED), ids, 2), 1);
    assert_int_equal(retry(ids[0]), SEMEL_EVENT_WAS_PUBLISHED);
    assert_int_equal(discard(ids[0]), SEMEL_EVENT_WAS_PUBLISHED);
}

/* Operators act at random, also while the relay publishes. What stands aside is discarded or published, never both. */
static struct {
    char ids[4000][40];
    size_t n;
    int turns;
} thrown;

static bool was_thrown(const char *id)
{
    for (size_t i = 0; i < thrown.n; i++)
        if (strcmp(thrown.ids[i], id) == 0)
            return true;
    return false;
}

static void meddle(void)
{
    static char ids[64][40];
    const size_t n = events_of(IS(WAITING) | IS(PUBLISHING) | IS(FAILED) | IS(DEAD), ids, 64);
    for (int i = 0; n > 0 && i < 3; i++) {
        const char *id = ids[semel__random_below(&rig.rng, n)];
        if (semel__random_chance(&rig.rng, 500))
            (void)retry(id);
        else if (discard(id) == SEMEL_EVENT_ALLOWED)
            memcpy(thrown.ids[thrown.n++], id, 40);
    }
    thrown.turns++;
}

static void operators_beside_a_working_relay_keep_the_books(void **state)
{
    enum { EVENTS = 240, AGGREGATES = 12 };
    char key[24];
    size_t first = 0;
    (void)state;
    memset(&thrown, 0, sizeof thrown);
    rig.sink.during = meddle;
    for (int i = 0; i < EVENTS; i++) {
        snprintf(key, sizeof key, "k%d", i % AGGREGATES);
        put(key, i % 7 == 0 ? "bad" : "good", i % 5 == 0 ? "slow" : NULL);
        rig.sink.refuse = i % 40 < 30 ? "bad" : NULL;
        rig.sink.down = i % 60 < 30 ? "slow" : NULL;
        if (i % 4 == 0) {
            steps(2);
            meddle();
            pass(SECOND);
        }
    }
    rig.sink.refuse = rig.sink.down = NULL;
    rig.sink.during = NULL;
    for (int i = 0; i < 400 && count_in("_aside", "true") + count_in("", "true") > 0; i++) {
        static char dead[64][40];
        for (size_t n = events_of(IS(DEAD), dead, 64); n > 0; n--)
            assert_int_equal(retry(dead[n - 1]), SEMEL_EVENT_ALLOWED);
        steps(2);
        pass(10 * SECOND);
    }
    assert_int_equal(count_in("_aside", "true") + count_in("", "true"), 0);
    for (size_t i = 0; i < rig.sink.n; i++) {
        bool again = false;
        for (size_t k = 0; k < i; k++)
            again |= strcmp(rig.sink.got[k].id, rig.sink.got[i].id) == 0;
        assert_false(was_thrown(rig.sink.got[i].id));
        first += !again;
    }
    assert_true(thrown.n > 5 && thrown.turns > 20);
    assert_int_equal(first + thrown.n, EVENTS);
    assert_int_equal(audits("outbox discard"), (int64_t)thrown.n);
}

/* ---- numbers that commit late -------------------------------------------------------------------- */

#ifdef SEMEL_WITH_POSTGRES
/* O5, O7, P1, P2, P3: in every form in which a number can be drawn before its transaction ends. */
static void lower_number_that_commits_later_is_published(void **state)
{
    static const char *const draws[] = {
        "SELECT semel.outbox_put('order', 'late', 'e1', '1')",
        "SELECT pg_catalog.nextval('semel.outbox_seq_seq')",
        "SAVEPOINT s; SELECT semel.outbox_put('order', 'late', 'never', '1'); ROLLBACK TO s",
    };
    (void)state;
    if (!on_postgres)
        skip();
    for (size_t i = 0; i < COUNT(draws); i++) {
        PGconn *late = session(), *busy = session();
        rig.sink.n = 0;
        sql(late, "BEGIN");
        sql(late, draws[i]);
        for (int k = 0; k < 8; k++) { /* more than a second: the transaction is set apart */
            put_by(busy, "busy", "b");
            steps(2);
            pass(SECOND / 2);
        }
        assert_int_equal(rig.sink.n, 8);
        assert_int_not_equal(semel__relay_held_by(rig.relay), SEMEL_NONE);
        if (i > 0) {
            char text[200];
            snprintf(text, sizeof text,
                     "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, seq) OVERRIDING SYSTEM VALUE "
                     "VALUES (gen_random_uuid(), 'order', 'late', 'e1', %s)",
                     i == 1 ? "pg_catalog.currval('semel.outbox_seq_seq')" : "DEFAULT");
            sql(late, text);
        }
        sql(late, "COMMIT");
        put_by(busy, "late", "e2");
        steps(3);
        assert_string_equal(got_of(&rig.sink, "late"), "e1 e2");
        assert_int_equal(count_in("", "true"), 0);
        PQfinish(late);
        PQfinish(busy);
    }
}

static void copy_in(PGconn *conn, const char *row)
{
    PGresult *result = PQexec(conn, "COPY semel.outbox (id, aggregatetype, aggregateid, type) FROM STDIN");
    assert_int_equal(PQresultStatus(result), PGRES_COPY_IN);
    PQclear(result);
    assert_int_equal(PQputCopyData(conn, row, (int)strlen(row)), 1);
    assert_int_equal(PQputCopyEnd(conn, NULL), 1);
    while ((result = PQgetResult(conn)) != NULL) {
        assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
        PQclear(result);
    }
}

/* Others put and are published, for so long that a transaction that stays is set apart. */
static void pass_by(PGconn *busy)
{
    const size_t before = rig.sink.n;
    for (int i = 0; i < 8; i++) {
        put_by(busy, "busy", "b");
        steps(2);
        pass(SECOND / 2);
    }
    assert_int_equal(rig.sink.n - before, 8);
    assert_int_not_equal(semel__relay_held_by(rig.relay), SEMEL_NONE);
}

/* O5, P1, P107: by COPY, and by an INSERT that waits in a trigger when it has drawn its number and has no xid yet. */
static void number_that_is_drawn_by_copy_or_long_before_its_row_is_published(void **state)
{
    (void)state;
    if (!on_postgres)
        skip();
    PGconn *late = session(), *busy = session(), *gate = session();
    char text[200];
    sql(late, "BEGIN");
    copy_in(late, "01890a5d-ac96-774b-bcce-b302099a8057\torder\tcopied\te1\n");
    pass_by(busy);
    sql(late, "COMMIT");
    put_by(busy, "copied", "e2");
    steps(3);
    assert_string_equal(got_of(&rig.sink, "copied"), "e1 e2");
    sql(busy, "CREATE FUNCTION public.pause() RETURNS trigger LANGUAGE plpgsql AS "
              "'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END'; "
              "CREATE TRIGGER pause BEFORE INSERT ON semel.outbox FOR EACH ROW WHEN (NEW.type = 'slow') "
              "EXECUTE FUNCTION public.pause()");
    sql(gate, "SELECT pg_advisory_lock(4711)");
    put_by(busy, "busy", "b"); /* the server logs numbers ahead, so that the next one needs no xid */
    steps(2);
    assert_int_equal(PQsendQuery(late, "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type) "
                                       "VALUES (gen_random_uuid(), 'order', 'waits', 'slow')"),
                     1);
    snprintf(text, sizeof text, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %d", PQbackendPID(late));
    while (world_ask(rig.world, text) == 0)
        assert_int_equal(PQstatus(late), CONNECTION_OK);
    snprintf(text, sizeof text, "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND pid = %d",
             PQbackendPID(late));
    assert_int_equal(world_ask(rig.world, text), 0);
    pass_by(busy);
    sql(gate, "SELECT pg_advisory_unlock(4711)");
    for (PGresult *result; (result = PQgetResult(late)) != NULL; PQclear(result))
        assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
    put_by(busy, "waits", "e2");
    steps(3);
    assert_string_equal(got_of(&rig.sink, "waits"), "slow e2");
    assert_int_equal(count_in("", "true"), 0);
    PQfinish(late);
    PQfinish(busy);
    PQfinish(gate);
}

#ifdef SEMEL_POINTS
static PGconn *enders[2];

static void end_one(void *ctx, enum semel_point point)
{
    (void)ctx;
    for (size_t i = 0; point == SEMEL_AT_RELAY_READ && i < COUNT(enders); i++)
        if (enders[i] != NULL) {
            sql(enders[i], "COMMIT");
            PQfinish(enders[i]);
            enders[i] = NULL;
            return;
        }
}
#endif

/* P70. Writers that were set apart end one after the other, each while the relay scans: a scan that came to nothing
 * proves nothing about what is there. */
static void scan_that_came_to_nothing_proves_nothing(void **state)
{
    (void)state;
    if (!on_postgres)
        skip();
#ifdef SEMEL_POINTS
    PGconn *first = session();
    rig.sink.down = "lost";
    put("a", "a1", "lost"); /* stays in the outbox, below what is proven next */
    steps(2);
    pass(2 * SECOND);
    steps(2);
    pass(2 * SECOND);
    steps(2);
    sql(first, "BEGIN");
    put_by(first, "w", "w1");
    for (size_t i = 0; i < COUNT(enders); i++) {
        enders[i] = session();
        sql(enders[i], "BEGIN");
        put_by(enders[i], "w", "w2");
    }
    for (int i = 0; i < 6; i++) {
        steps(1);
        pass(SECOND);
    }
    assert_int_not_equal(semel__relay_held_by(rig.relay), SEMEL_NONE);
    assert_int_equal(count_in("", "aggregateid = 'a'"), 1);
    sql(first, "COMMIT");
    semel__point_set_hook(end_one, NULL);
    step_of(rig.relay);
    semel__point_set_hook(NULL, NULL);
    assert_null(enders[1]);
    rig.sink.down = NULL;
    put("a", "a2", NULL);
    for (int i = 0; i < 5; i++) {
        pass(2 * SECOND);
        steps(2);
    }
    assert_string_equal(got_of(&rig.sink, "a"), "a1 a2");
    PQfinish(first);
#else
    skip();
#endif
}

static void first_event_of_a_new_table_is_published(void **state)
{
    (void)state;
    if (!on_postgres)
        skip();
    PGconn *conn = session();
    steps(5); /* P106: last_value is 1 before 1 was drawn */
    pass(2 * SECOND);
    steps(5);
    put_by(conn, "a", "a1");
    steps(2);
    assert_string_equal(got_of(&rig.sink, "a"), "a1");
    PQfinish(conn);
}

/* A number that no transaction drew (COPY with seq) delays an event, and never loses it. */
static void number_that_nobody_drew_is_published_within_two_minutes(void **state)
{
    (void)state;
    if (!on_postgres)
        skip();
    PGconn *conn = session();
    put_by(conn, "a", "a1");
    steps(3);
    pass(2 * SECOND);
    steps(3);
    sql(conn, "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, seq) OVERRIDING SYSTEM VALUE "
              "VALUES (gen_random_uuid(), 'order', 'z', 'low', -7)");
    steps(3);
    assert_string_equal(got_of(&rig.sink, "z"), "");
    for (int i = 0; i < 12; i++) {
        pass(10 * SECOND);
        steps(2);
    }
    assert_string_equal(got_of(&rig.sink, "z"), "low");
    assert_non_null(strstr(rig.reported, "did not draw its number"));
    PQfinish(conn);
}

/* P3, P108: a session that has numbers in stock, and a sequence that begins again. */
static void numbers_from_stock_or_from_the_beginning_are_published_within_two_minutes(void **state)
{
    (void)state;
    if (!on_postgres)
        skip();
    PGconn *stocked = session(), *busy = session();
    sql(busy, "ALTER SEQUENCE semel.outbox_seq_seq CACHE 20");
    put_by(stocked, "a", "a1");
    for (int i = 0; i < 4; i++) {
        put_by(busy, "b", "b");
        steps(2);
        pass(2 * SECOND);
    }
    put_by(stocked, "z", "low");
    steps(2);
    assert_string_equal(got_of(&rig.sink, "z"), "");
    for (int i = 0; i < 12; i++) {
        pass(10 * SECOND);
        steps(2);
    }
    assert_string_equal(got_of(&rig.sink, "z"), "low");
    assert_non_null(strstr(rig.reported, "did not draw its number"));
    rig.reported[0] = '\0';
    sql(busy, "ALTER SEQUENCE semel.outbox_seq_seq CACHE 1 RESTART WITH 1");
    put_by(busy, "y", "again");
    for (int i = 0; i < 12; i++) {
        pass(10 * SECOND);
        steps(2);
    }
    assert_string_equal(got_of(&rig.sink, "y"), "again");
    assert_non_null(strstr(rig.reported, "the sequence of the outbox was set back"));
    assert_int_equal(count_in("", "true"), 0);
    PQfinish(stocked);
    PQfinish(busy);
}

/* P113: one aggregate is all that stands aside, and the statistics say so. Those of its shard that come now are looked
 * for there, and each is looked for by itself. */
static void statistics_of_what_stands_aside_make_no_statement_read_it_all(void **state)
{
    static const char *const read_rows =
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'semel.outbox_aside'::regclass";
    static const char *const scans =
        "SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relid = 'semel.outbox_aside'::regclass";
    (void)state;
    if (!on_postgres)
        skip();
    PGconn *conn = session();
    sql(conn,
        "INSERT INTO semel.outbox_aside (id, aggregatetype, aggregateid, type, seq, shard, headers, created_at, "
        "status, updated_at) SELECT 'e' || i, 'order', 'a', 'x', -i, " SHARD_OF(
            "'a'") ", '{}', now(), "
                   "CASE WHEN i < 20000 THEN 'waiting' ELSE 'dead' END, now() FROM generate_series(1, 20000) AS i");
    sql(conn, "ANALYZE semel.outbox_aside");
    const int64_t before = world_ask(rig.world, read_rows);
    sql(conn,
        "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, headers) SELECT gen_random_uuid(), 'order', "
        "'b' || i, 'x', '{}' FROM generate_series(1, 10000) AS i "
        "WHERE " SHARD_OF("'b' || i") " = " SHARD_OF("'a'") " LIMIT 20");
    sql(conn, "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, headers) "
              "VALUES (gen_random_uuid(), 'order', 'a', 'x', '{}')"); /* it moves aside */
    sql(conn, "INSERT INTO semel.outbox_aside (id, aggregatetype, aggregateid, type, seq, shard, headers, created_at, "
              "status, updated_at) SELECT 'd', 'order', aggregateid, 'x', 0, shard, '{}', now(), 'dead', now() "
              "FROM semel.outbox WHERE aggregateid <> 'a' LIMIT 1"); /* and one of these, too */
    steps(5);
    assert_int_equal(rig.sink.n, 19);
    assert_int_equal(count_in("", "true"), 0);
    const int64_t sofar = world_ask(rig.world, scans); /* a server tells with a delay what it has counted */
    for (int i = 0; i < 600 && world_ask(rig.world, scans) == sofar; i++) {
        sql(conn, "SELECT pg_sleep(0.1)");
        steps(1);
    }
    assert_in_range(world_ask(rig.world, read_rows) - before, 1, 2000);
    PQfinish(conn);
}

/* Writers that serialise by a lock: whatever commits when, first occurrences are in the order of their commits. */
static void writers_under_a_lock_leave_in_the_order_of_their_commits(void **state)
{
    (void)state;
    if (!on_postgres)
        skip();
    PGconn *holder = session(), *next = session();
    sql(holder, "BEGIN");
    sql(holder, "SELECT semel.outbox_put('order', 'a', 'e1', '1', lock => true)");
    const int others = getenv("SEMEL_LONG") != NULL ? 10000 : 300;
    for (int i = 0; i < others; i++) {
        put("other", "o", NULL);
        if (i % 20 == 0) {
            steps(1);
            pass(SECOND / 2);
        }
    }
    steps(10);
    assert_int_equal(rig.sink.n, others);
    sql(holder, "COMMIT");
    sql(next, "SELECT semel.outbox_put('order', 'a', 'e2', '1', lock => true)");
    steps(3);
    assert_string_equal(got_of(&rig.sink, "a"), "e1 e2");
    PQfinish(holder);
    PQfinish(next);
}
#endif

int main(int argc, char **argv)
{
#define ON(test) cmocka_unit_test_setup_teardown(test, up, down)
    const struct CMUnitTest tests[] = {
        ON(committed_events_leave_in_order_and_are_deleted),
        ON(sink_without_runs_gets_one_event_of_an_aggregate_per_call),
        ON(refused_event_holds_back_its_aggregate_only_and_ends_dead),
        ON(refused_event_that_is_taken_later_goes_before_its_successors),
        ON(destination_that_is_down_holds_back_its_own_events_and_charges_none),
        ON(destinations_that_hang_leave_the_others_their_time),
        ON(destination_that_is_down_does_not_hide_events_of_one_that_has_worked),
        ON(broker_that_is_down_costs_delay_only),
        ON(unknown_outcome_is_sent_again_under_the_same_id),
        ON(event_without_a_place_to_go_is_dead_at_once),
        ON(long_queue_of_one_aggregate_does_not_delay_the_others),
        ON(others_do_not_wait_until_a_long_queue_has_moved_aside),
        ON(relays_share_the_shards_and_give_them_back),
        ON(relay_with_other_destinations_waits),
        ON(relay_that_was_stopped_is_replaced_and_fenced),
        ON(event_that_kills_its_relay_ends_dead),
        ON(events_that_lost_their_relay_together_are_not_charged),
        ON(confirmed_events_are_kept_where_that_is_wanted),
        ON(payload_that_is_null_is_a_tombstone),
        ON(events_of_an_aggregate_keep_their_order_across_destinations),
        ON(event_aside_waits_for_an_earlier_one_that_is_aside),
        ON(bytes_of_a_step_are_bounded_over_all_shards),
        ON(event_that_is_too_large_is_dead_and_the_rest_goes_on),
        ON(headers_that_put_would_refuse_are_left_out_of_a_plain_insert),
        ON(id_that_was_put_again_holds_nobody_up),
        ON(relay_takes_no_shard_back_when_it_sets_events_aside),
        ON(relay_that_lost_its_shards_sets_nothing_aside),
        ON(event_in_hand_is_not_charged_when_the_connection_is_lost),
        ON(many_destinations_are_told_apart),
        ON(long_queue_delays_nobody_when_the_window_is_narrow),
        ON(nothing_is_read_again_and_again_while_nothing_can_go),
        ON(nothing_is_sent_once_the_lease_is_over),
        ON(dead_event_that_is_retried_goes_under_its_id_and_the_next_follows),
        ON(dead_event_that_is_discarded_frees_its_aggregate),
        ON(event_that_was_not_read_yet_is_discarded_and_not_retried),
        ON(event_that_is_being_published_is_left_alone),
        ON(published_event_is_shown_where_it_is_kept_and_left_alone),
        ON(operators_beside_a_working_relay_keep_the_books),
#ifdef SEMEL_WITH_POSTGRES
        ON(lower_number_that_commits_later_is_published),
        ON(number_that_is_drawn_by_copy_or_long_before_its_row_is_published),
        ON(numbers_from_stock_or_from_the_beginning_are_published_within_two_minutes),
        ON(scan_that_came_to_nothing_proves_nothing),
        ON(first_event_of_a_new_table_is_published),
        ON(number_that_nobody_drew_is_published_within_two_minutes),
        ON(writers_under_a_lock_leave_in_the_order_of_their_commits),
        ON(statistics_of_what_stands_aside_make_no_statement_read_it_all),
#endif
    };
    on_postgres = argc > 1 && strcmp(argv[1], "postgres") == 0;
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
