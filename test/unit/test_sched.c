/* SPDX-License-Identifier: MIT
 *
 * test_sched.c: what happens by itself: retries until the cap, recovery in bounded steps, the sweep of what waits
 * without a due time, purge behind its watermark.
 */
#include "core/house.h"
#include "unit/engine.h"

#define HOUR_US (INT64_C(3600) * SECOND_US)
#define MINUTE_US (60 * SECOND_US)

static size_t work(struct engine *e, size_t max)
{
    size_t n = 0;
    assert_ok(e, semel__inbox_work(&e->inbox, max, &n, &e->err));
    return n;
}

static size_t purge(struct engine *e, size_t max)
{
    size_t n = 0;
    assert_ok(e, semel__inbox_purge(&e->inbox, max, &n, &e->err));
    return n;
}

static size_t sweep(struct engine *e, size_t max)
{
    size_t n = 0;
    assert_ok(e, semel__inbox_sweep(&e->inbox, max, &n, &e->err));
    return n;
}

static struct semel__msg dated(const char *id, const char *payload, int64_t time_us)
{
    struct semel__msg m = msg(id, payload);
    m.message_time_us = time_us;
    return m;
}

/* A caller need not ask why. */
static void failure_is_a_status_where_nobody_asks_for_the_error(void **state)
{
    struct engine *e = *state;
    size_t n;

    fail_at(e, "begin", 1, FAULT_CONTENTION);
    assert_int_equal(semel__inbox_recover(&e->inbox, 10, &n, NULL), SEMEL_RETRY);
    assert_int_equal(semel__inbox_recover(&e->inbox, 10, &n, NULL), SEMEL_OK);
}

/* ---- the sweep ---------------------------------------------------------------------------------------- */

#define KEYS 150

/* One of each key fails and another one waits behind it. From the key `from` on that one has the lower version: by the
 * order of versions, it is the first. */
static void park_pairs(struct engine *e, size_t from)
{
    static char ids[2 * KEYS][8], names[KEYS][8];
    struct semel__msg msgs[2 * KEYS];

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    for (size_t i = 0; i < KEYS; i++) {
        snprintf(ids[2 * i], sizeof ids[0], "a%03zu", i);
        snprintf(ids[2 * i + 1], sizeof ids[0], "b%03zu", i);
        snprintf(names[i], sizeof names[0], "k%03zu", i);
        msgs[2 * i] = keyed(ids[2 * i], "fail", names[i], i < from ? 4 : 5);
        msgs[2 * i + 1] = keyed(ids[2 * i + 1], "ok", names[i], i < from ? 5 : 4);
    }
    process(e, msgs, COUNT(msgs));
    assert_int_equal(state_of(e, "b000"), SEMEL_ROW_WAITING);
    assert_int_equal(row_of(e, "b000").progress.due_us, SEMEL_NONE);
}

/* A3 A5: a hundred keys a call, from where the last one stopped. */
static void sweep_goes_on_where_the_last_one_stopped(void **state)
{
    struct engine *e = *state;

    park_pairs(e, 0);
    assert_int_equal(sweep(e, 1000), 0); /* each has one before it, and waits rightly */
    assert_int_equal(sweep(e, 1000), 0);
    e->policy.order = SEMEL_ORDER_VERSION;
    assert_int_equal(sweep(e, 1000), 100);
    assert_int_equal(row_of(e, "b000").progress.due_us, e->now_us);
    assert_int_equal(row_of(e, "b149").progress.due_us, SEMEL_NONE);
    assert_int_equal(sweep(e, 20), 20);
    assert_int_equal(sweep(e, 1000), 30);
    assert_int_equal(sweep(e, 1000), 0);
    assert_int_equal(row_of(e, "b149").progress.due_us, e->now_us);
    assert_int_equal(row_of(e, "b149").progress.error_class, SEMEL_CLASS_BLOCKED);
}

/* A3 A5: a hundred keys that wait rightly hide none behind them. */
static void sweep_finds_a_key_behind_many_that_wait_rightly(void **state)
{
    struct engine *e = *state;

    park_pairs(e, KEYS - 1);
    e->policy.order = SEMEL_ORDER_VERSION;
    assert_int_equal(sweep(e, 1000), 0);
    assert_int_equal(sweep(e, 1000), 1);
    assert_int_equal(row_of(e, "b149").progress.due_us, e->now_us);
}

/* A3 A5: nobody would ever wake what waits behind a dead one, once there is no order any more. */
static void without_an_order_all_that_waits_is_woken(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a", "bad", "k", 1), keyed("b", "ok", "k", 2), keyed("c", "ok", "k", 3)};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process(e, msgs, COUNT(msgs));
    assert_int_equal(state_of(e, "c"), SEMEL_ROW_WAITING);
    assert_int_equal(sweep(e, 10), 0);
    e->policy.order = SEMEL_ORDER_NONE;
    assert_int_equal(sweep(e, 10), 2);
    assert_int_equal(work(e, 10), 2);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "c"), SEMEL_ROW_COMPLETED);
}

/* I12, T9: whoever took the end of a gap's timer away has not let it run out: it starts again. */
static void gap_without_a_timer_gets_a_new_one(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a", "ok", "k", 1), keyed("c", "ok", "k", 3)};

    e->policy.order = SEMEL_ORDER_VERSION;
    process(e, msgs, COUNT(msgs));
    assert_int_equal(row_of(e, "c").progress.error_class, SEMEL_CLASS_GAP);
    sql_run(e, "UPDATE semel_inbox SET due_at = NULL WHERE message_id = 'c'");
    assert_int_equal(sweep(e, 10), 1);
    e->now_us += SECOND_US;
    work(e, 10);
    assert_int_equal(state_of(e, "c"), SEMEL_ROW_WAITING);
    assert_int_equal(row_of(e, "c").progress.error_class, SEMEL_CLASS_GAP);
    assert_int_equal(row_of(e, "c").progress.due_us, e->now_us + e->policy.gap_timeout_us);
}

/* ---- work --------------------------------------------------------------------------------------------- */

/* T5, I6: eight attempts in all, then dead and alerted, and no more. */
static void retries_end_at_the_cap(void **state)
{
    struct engine *e = *state;

    process_one(e, msg("a", "fail"));
    for (int attempt = 2; attempt <= 8; attempt++) {
        assert_int_equal(state_of(e, "a"), SEMEL_ROW_FAILED);
        e->now_us += 600 * SECOND_US;
        assert_int_equal(work(e, 10), 1);
        assert_int_equal(row_of(e, "a").progress.attempts, attempt);
    }
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_DEAD);
    assert_int_equal(attempts_of(e, "a"), 8);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 1);
    e->now_us += 100000 * SECOND_US;
    assert_int_equal(work(e, 10), 0);
    assert_int_equal(effects_of(e, "a"), 0);
    assert_str(row_of(e, "a").payload, "fail");
}

/* T3 */
static void retry_that_succeeds_completes_the_row(void **state)
{
    struct engine *e = *state;

    process_one(e, msg("a", "fail@2"));
    for (int i = 0; i < 2; i++) {
        e->now_us += 10 * SECOND_US;
        assert_int_equal(work(e, 10), 1);
    }
    struct semel_row row = row_of(e, "a");
    assert_int_equal(row.progress.state, SEMEL_ROW_COMPLETED);
    assert_int_equal(row.progress.attempts, 3);
    assert_int_equal(row.progress.error_class, SEMEL_CLASS_NONE);
    assert_false(row.kept);
    assert_int_equal(effects_of(e, "a"), 1);
}

static void work_is_bounded_and_goes_on_at_the_next_call(void **state)
{
    struct engine *e = *state;
    static char ids[7][8];
    struct semel__msg msgs[7];

    for (size_t i = 0; i < 7; i++) {
        snprintf(ids[i], sizeof ids[i], "m%zu", i);
        msgs[i] = msg(ids[i], "fail@1");
    }
    process(e, msgs, 7);
    e->now_us += 10 * SECOND_US;
    assert_int_equal(work(e, 3), 3);
    assert_int_equal(effects_of(e, NULL), 3);
    assert_int_equal(work(e, 3), 3);
    assert_int_equal(work(e, 3), 1);
    assert_int_equal(work(e, 3), 0);
    assert_int_equal(effects_of(e, NULL), 7);
}

/* A call that finds nothing keeps no memory either. */
static void work_that_finds_nothing_uses_its_memory_again(void **state)
{
    struct engine *e = *state;

    process_one(e, msg("a", "fail"));
    for (size_t i = 0, used = 0; i < 4; i++) {
        assert_int_equal(work(e, 10), 0);
        if (i > 1)
            assert_int_equal(e->inbox.scratch.used, used);
        used = e->inbox.scratch.used;
    }
}

/* P63: stored retries do not drain into dead letters either. */
static void broken_handler_stops_the_work(void **state)
{
    struct engine *e = *state;
    static char ids[5][8];
    struct semel__msg msgs[5];
    size_t n;

    e->policy.retry_max = 2;
    for (size_t i = 0; i < 5; i++) {
        snprintf(ids[i], sizeof ids[i], "m%zu", i);
        msgs[i] = msg(ids[i], "fail");
    }
    process(e, msgs, 5);
    e->now_us += 10 * SECOND_US;
    e->inbox.failures = 0;
    e->inbox.failures_max = 3;
    assert_int_equal(semel__inbox_work(&e->inbox, 10, &n, &e->err), SEMEL_RETRY);
    assert_int_equal(e->err.cls, SEMEL_CLASS_ENVIRONMENT);
    size_t dead = 0;
    for (size_t i = 0; i < 5; i++) {
        struct semel_row row = row_of(e, ids[i]);
        dead += row.progress.state == SEMEL_ROW_DEAD;
        assert_int_equal(row.progress.attempts, row.progress.state == SEMEL_ROW_DEAD ? 2 : 1);
    }
    assert_int_equal(dead, 3);
}

static void damaged_row_is_left_alone_by_the_scheduler(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "fail@1"), msg("b", "fail@1")};

    process(e, msgs, 2);
    damage(e, "a");
    e->now_us += 10 * SECOND_US;
    assert_int_equal(work(e, 10), 1);
    assert_int_equal(effects_of(e, "a"), 0);
    assert_int_equal(effects_of(e, "b"), 1);
}

/* I15: damage in what a listing does not read shows only under the lock; the row is first in line, and stays there. */
static void row_with_a_damaged_payload_does_not_hold_up_the_others(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "fail@1"), msg("b", "fail@1"), msg("c", "fail@1")};

    process(e, msgs, 3);
    sql_run(e, "UPDATE semel_inbox SET due_at = 1, headers = CAST(x'ff' AS TEXT) WHERE message_id IN ('a', 'b')");
    e->now_us += 10 * SECOND_US;
    assert_int_equal(work(e, 10), 1);
    assert_int_equal(effects_of(e, "a"), 0);
    assert_int_equal(effects_of(e, "c"), 1);
}

/* A start is counted before it is leased: a row that says otherwise is not ours, and nothing is given back for it. */
static void leased_row_without_a_start_is_damaged(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "ok");
    struct semel_lease lease;
    size_t n;

    assert_ok(e, semel__lease_claim(&e->inbox, &m, 1, false, &e->arena, &lease, &n, e->settled, &e->err));
    sql_run(e, "UPDATE semel_inbox SET attempts = 0");
    e->now_us += e->policy.lease_us + 1;
    assert_ok(e, semel__inbox_recover(&e->inbox, 10, &n, &e->err));
    assert_int_equal(n, 0);
    process_one(e, m);
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_DAMAGED, SEMEL_ROW_ABSENT);
    assert_int_equal(effects_of(e, "a"), 0);
}

static void recovery_is_bounded_and_oldest_first(void **state)
{
    struct engine *e = *state;
    struct semel_lease lease;
    size_t n;
    static const char *const ids[] = {"a", "b", "c"};

    for (size_t i = 0; i < 3; i++) {
        struct semel__msg m = msg(ids[i], "ok");
        assert_ok(e, semel__lease_claim(&e->inbox, &m, 1, true, &e->arena, &lease, &n, e->settled, &e->err));
        e->now_us += SECOND_US;
    }
    e->now_us += e->policy.lease_us;
    assert_ok(e, semel__inbox_recover(&e->inbox, 2, &n, &e->err));
    assert_int_equal(n, 2);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_FAILED);
    assert_int_equal(state_of(e, "c"), SEMEL_ROW_PROCESSING);
    assert_ok(e, semel__inbox_recover(&e->inbox, 2, &n, &e->err));
    assert_int_equal(n, 1);
    assert_int_equal(e->inbox.counts.recovered, 3);
}

/* ---- purge -------------------------------------------------------------------------------------------- */

/* I18, T10, P60: what was purged is not run again when it comes back; it is quarantined. */
static void purged_message_that_comes_back_is_too_old(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = dated("a", "ok", e->now_us - HOUR_US);

    e->policy.retention_us = 2 * HOUR_US;
    process_one(e, m);
    assert_int_equal(purge(e, 100), 0); /* younger than the retention */
    e->now_us += 2 * HOUR_US + MINUTE_US;
    assert_int_equal(purge(e, 100), 1);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_ABSENT);
    assert_int_equal(e->inbox.counts.purged, 1);
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_TOO_OLD, SEMEL_ROW_QUARANTINED);
    assert_int_equal(effects_of(e, "a"), 1);
    assert_str(row_of(e, "a").payload, "ok");
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_QUARANTINED], 1);
    m.delivery = 2; /* nor behind a claim */
    m.id = SEMEL_STR("b");
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_TOO_OLD, SEMEL_ROW_QUARANTINED);
    assert_int_equal(effects_of(e, "b"), 0);
}

/* P60: the watermark is committed before anything is deleted. Transactions: the time, watermark, delete. */
static void watermark_stands_even_when_the_delete_fails(void **state)
{
    struct engine *e = *state;
    size_t n;

    e->policy.retention_us = HOUR_US;
    process_one(e, dated("a", "ok", e->now_us));
    e->now_us += 2 * HOUR_US;
    forget(e);
    fail_at(e, "begin", 3, FAULT_WORLD);
    assert_int_equal(semel__inbox_purge(&e->inbox, 100, &n, &e->err), SEMEL_RETRY);
    assert_string_equal(e->trace, "begin rollback begin commit begin ");
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    process_one(e, dated("b", "ok", e->now_us - 2 * HOUR_US));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_TOO_OLD, SEMEL_ROW_QUARANTINED);
}

/* I18, A11: by the end and by the time of the event, down to the minute; unfinished rows never. */
static void purge_takes_old_final_rows_only(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {dated("old", "ok", e->now_us - HOUR_US),
                                dated("young", "ok", e->now_us + HOUR_US),
                                msg("timeless", "ok"),
                                dated("rejected", "reject", e->now_us - HOUR_US),
                                dated("failed", "fail", e->now_us - HOUR_US),
                                dated("dead", "bad", e->now_us - HOUR_US)};

    e->policy.retention_us = HOUR_US;
    process(e, msgs, COUNT(msgs));
    e->now_us += SECOND_US;
    assert_int_equal(purge(e, 100), 0); /* however old the messages are: they ended just now */
    e->now_us += HOUR_US + MINUTE_US;
    assert_int_equal(purge(e, 100), 3);
    assert_int_equal(state_of(e, "old"), SEMEL_ROW_ABSENT);
    assert_int_equal(state_of(e, "rejected"), SEMEL_ROW_ABSENT);
    assert_int_equal(state_of(e, "timeless"), SEMEL_ROW_ABSENT);
    assert_int_equal(state_of(e, "failed"), SEMEL_ROW_FAILED);
    assert_int_equal(state_of(e, "young"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "dead"), SEMEL_ROW_DEAD);
    assert_int_equal(attempts_of(e, "rejected"), 0); /* with their attempts */
    assert_int_equal(attempts_of(e, "dead"), 1);
}

/* I18: what ended a retention ago stays until the minute is over in which it ended. */
static void purge_cuts_at_the_full_minute(void **state)
{
    struct engine *e = *state;
    const int64_t into_us = e->now_us % MINUTE_US;

    assert_true(into_us > SECOND_US);
    e->policy.retention_us = HOUR_US;
    process_one(e, msg("a", "ok"));
    e->now_us += HOUR_US + MINUTE_US - into_us - 1;
    assert_int_equal(purge(e, 100), 0);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    e->now_us += 1;
    assert_int_equal(purge(e, 100), 1);
}

/* A11 I18: a new consumer of an old topic runs everything, a slow partition too: the watermark never passes what was
 * really purged. */
static void slow_partition_of_an_old_topic_runs_everything(void **state)
{
    struct engine *e = *state;
    int64_t old_us = e->now_us - 1000 * HOUR_US;

    e->policy.retention_us = HOUR_US;
    process_one(e, dated("fast-1", "ok", old_us + HOUR_US));
    process_one(e, dated("fast-2", "ok", old_us + 2 * HOUR_US));
    e->now_us += MINUTE_US;
    assert_int_equal(purge(e, 100), 0);
    process_one(e, dated("slow-1", "ok", old_us));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    e->now_us += HOUR_US + MINUTE_US;
    assert_int_equal(purge(e, 100), 3);
    process_one(e, dated("copy", "ok", old_us + 2 * HOUR_US));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_TOO_OLD, SEMEL_ROW_QUARANTINED);
    process_one(e, dated("next", "ok", old_us + 2 * HOUR_US + 1)); /* nothing as young as this was purged */
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* A11: at most ten times as many rows are looked at as may be deleted; and no watermark moves for what then stays. */
static void purge_looks_at_ten_times_as_many_rows_as_it_may_delete(void **state)
{
    struct engine *e = *state;
    static char ids[42][8];
    struct semel__msg msgs[42];
    int64_t old_us = e->now_us;

    e->policy.retention_us = HOUR_US;
    for (size_t i = 0; i < 42; i++) {
        snprintf(ids[i], sizeof ids[i], "m%02zu", i);
        msgs[i] = dated(ids[i], "ok", i < 40 ? e->now_us + 1000 * HOUR_US : old_us);
    }
    process(e, msgs, 40);
    e->now_us += MINUTE_US;
    process(e, msgs + 40, 2);
    e->now_us += 2 * HOUR_US;
    if (e->db == NULL) { /* in memory there is no index to look along */
        assert_int_equal(purge(e, 3), 0);
        process_one(e, dated("before", "ok", old_us));
        assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    }
    assert_int_equal(purge(e, 5), 2);
    assert_int_equal(state_of(e, "m41"), SEMEL_ROW_ABSENT);
    process_one(e, dated("behind", "ok", old_us));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_TOO_OLD, SEMEL_ROW_QUARANTINED);
}

/* A11: that bound is for all sources of a consumer together. */
static void purge_looks_at_no_more_rows_where_there_are_more_sources(void **state)
{
    struct engine *e = *state;
    static char ids[44][8];
    struct semel__msg msgs[44];
    int64_t old_us = e->now_us;

    e->policy.retention_us = HOUR_US;
    for (size_t i = 0; i < 44; i++) {
        snprintf(ids[i], sizeof ids[i], "m%02zu", i);
        msgs[i] = dated(ids[i], "ok", i < 40 ? e->now_us + 1000 * HOUR_US : old_us);
        msgs[i].source = i % 2 == 0 ? SEMEL_STR("even") : SEMEL_STR("odd");
    }
    process(e, msgs, 40);
    e->now_us += MINUTE_US;
    process(e, msgs + 40, 4);
    e->now_us += 2 * HOUR_US;
    assert_int_equal(purge(e, 3), 2); /* 22 rows of one source, and no look is left for the other one */
    assert_int_equal(purge(e, 100), 2);
}

/* A11: a last version tells old from new for ever; nothing of the others is said by a key. */
static void order_keys_that_say_nothing_are_purged(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a", "ok", "done", 1), keyed("b", "fail", "open", 1),
                                keyed("x", "fail@1", "changed", 1)};
    static const char *const age[] = {"UPDATE semel_order_key SET updated_at = 1",
                                      "UPDATE semel.order_key SET updated_at = updated_at - interval '100 years'"};
    const char *count = is_postgres(e) ? "SELECT count(*) FROM semel.order_key"
                                       : "SELECT count(*) FROM semel_order_key";
    const char *left = is_postgres(e) ? "SELECT count(*) FROM semel.order_key WHERE order_key IN ('done', 'changed')"
                                      : "SELECT count(*) FROM semel_order_key WHERE order_key IN ('done', 'changed')";
    size_t n;

    e->policy.retention_us = HOUR_US;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process(e, msgs, COUNT(msgs));
    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("c", "ok", "version", 1));
    sql_either(e,
               "INSERT INTO semel_order_key (consumer, order_key, skipped) SELECT consumer, 'skipped', '7' FROM "
               "semel_order_key WHERE order_key = 'done'",
               "INSERT INTO semel.order_key (consumer, order_key, skipped) SELECT consumer, 'skipped', '{7}' FROM "
               "semel.order_key WHERE order_key = 'done'");
    purge(e, 100);
    assert_int_equal(sql_int(e, count), 5); /* a new one says nothing yet, and stays for the retention */
    sql_either(e, age[0], age[1]);
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    sql_either(e, "UPDATE semel_inbox SET due_at = 1 WHERE message_id = 'x'",
               "UPDATE semel.inbox SET due_at = '2000-01-01 00:00+00' WHERE message_id = 'x'");
    assert_ok(e, semel__inbox_work(&e->inbox, 1, &n, &e->err));
    assert_int_equal(state_of(e, "x"), SEMEL_ROW_COMPLETED);
    purge(e, 100);
    assert_int_equal(sql_int(e, left), 1); /* that of x has changed since */
    sql_either(e, age[0], age[1]);
    purge(e, 100);
    assert_int_equal(sql_int(e, count), 3);
    assert_int_equal(sql_int(e, left), 0);
}

static void purge_is_bounded(void **state)
{
    struct engine *e = *state;
    static char ids[5][8];
    struct semel__msg msgs[5];

    e->policy.retention_us = HOUR_US;
    for (size_t i = 0; i < 5; i++) {
        snprintf(ids[i], sizeof ids[i], "m%zu", i);
        msgs[i] = dated(ids[i], "ok", e->now_us);
    }
    process(e, msgs, 5);
    e->now_us += 2 * HOUR_US;
    assert_int_equal(purge(e, 2), 2);
    assert_int_equal(purge(e, 2), 2);
    assert_int_equal(purge(e, 2), 1);
    assert_int_equal(purge(e, 2), 0);
}

/* I10: business keys have a retention of their own, and by default live for ever. */
static void expired_business_keys_are_purged_and_others_stay(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};

    msgs[0].business[0] = SEMEL_STR("for ever");
    msgs[1].business[0] = SEMEL_STR("an hour");
    msgs[0].n_business = msgs[1].n_business = 1;
    process_one(e, msgs[0]);
    e->policy.business_retention_us = HOUR_US;
    process_one(e, msgs[1]);
    assert_int_equal(semel__mem_business_count(e->db), 2);
    e->now_us += HOUR_US;
    purge(e, 100);
    assert_int_equal(semel__mem_business_count(e->db), 1);
    e->now_us += 100 * e->policy.retention_us;
    purge(e, 100); /* the row is gone, the intent is not */
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_ABSENT);
    assert_int_equal(semel__mem_business_count(e->db), 1);
    msgs[0].id = SEMEL_STR("new id");
    process_one(e, msgs[0]);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_PREVENTED);
}

/* A1 P73: a message without a time comes again after its record was purged; its own key stops it. */
static void purged_message_is_stopped_by_its_own_business_key(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("pay-1", "ok");

    m.business[0] = SEMEL_STR("inv-1");
    m.n_business = 1;
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    e->now_us += 2 * e->policy.retention_us;
    assert_int_equal(purge(e, 100), 1);
    assert_int_equal(state_of(e, "pay-1"), SEMEL_ROW_ABSENT);
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_PREVENTED);
    assert_int_equal(effects_of(e, "pay-1"), 1);
    process_one(e, m); /* the key stays its own, and the row says it from now on */
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_PREVENTED);
    assert_int_equal(effects_of(e, "pay-1"), 1);
}

/* The watermark is one per source: another stream is not affected. */
static void watermark_counts_for_its_source_only(void **state)
{
    struct engine *e = *state;
    struct semel__msg other = dated("b", "ok", e->now_us);

    e->policy.retention_us = HOUR_US;
    process_one(e, dated("a", "ok", e->now_us));
    e->now_us += 2 * HOUR_US;
    purge(e, 100);
    other.source = SEMEL_STR("t");
    process_one(e, other);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* ---- a round of the house ------------------------------------------------------------------------------ */

static void round_of_the_house_counts_what_it_did_itself(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "ok");
    struct semel_house house;
    struct semel_house_round round = {.max = 10};
    struct semel_lease lease;
    size_t n;

    assert_ok(e, semel__lease_claim(&e->inbox, &m, 1, true, &e->arena, &lease, &n, e->settled, &e->err));
    e->now_us += e->policy.lease_us + 1;
    semel__house_init(&house, e->store, &e->rng, SEMEL_STR("test"));
    for (size_t i = 0, used = 0; i < 64; i++) {
        assert_ok(e, semel__house_round(&house, &round, &e->err));
        assert_int_equal(round.consumers, 1);
        assert_int_equal(round.done[SEMEL_HOUSE_RECOVERED], i == 0);
        assert_int_equal(round.n, i == 0);
        assert_int_equal(round.damage.status, SEMEL_OK);
        if (i > 2)
            assert_int_equal(house.arena.used, used); /* the memory of a round lives as long as the round */
        used = house.arena.used;
    }
    round.max = 0;
    assert_int_equal(semel__house_round(&house, &round, &e->err), SEMEL_INVALID);
    assert_string_equal(e->err.text, "max is 0; it must be 1 or more");
    semel__house_done(&house);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(failure_is_a_status_where_nobody_asks_for_the_error),
        ON_EACH(sweep_goes_on_where_the_last_one_stopped),
        ON_EACH(sweep_finds_a_key_behind_many_that_wait_rightly),
        ON_EACH(without_an_order_all_that_waits_is_woken),
        ON_SQLITE(gap_without_a_timer_gets_a_new_one),
        ON_EACH(retries_end_at_the_cap),
        ON_EACH(retry_that_succeeds_completes_the_row),
        ON_EACH(work_is_bounded_and_goes_on_at_the_next_call),
        ON_EACH(work_that_finds_nothing_uses_its_memory_again),
        ON_EACH(broken_handler_stops_the_work),
        ON_EACH(damaged_row_is_left_alone_by_the_scheduler),
        ON_SQLITE(row_with_a_damaged_payload_does_not_hold_up_the_others),
        ON_SQLITE(leased_row_without_a_start_is_damaged),
        ON_EACH(recovery_is_bounded_and_oldest_first),
        ON_EACH(purged_message_that_comes_back_is_too_old),
        ON_EACH(watermark_stands_even_when_the_delete_fails),
        ON_EACH(purge_takes_old_final_rows_only),
        ON_EACH(purge_cuts_at_the_full_minute),
        ON_EACH(slow_partition_of_an_old_topic_runs_everything),
        ON_EACH(purge_is_bounded),
        ON_EACH(purge_looks_at_ten_times_as_many_rows_as_it_may_delete),
        ON_TABLES(purge_looks_at_no_more_rows_where_there_are_more_sources),
        ON_TABLES(order_keys_that_say_nothing_are_purged),
        ON_MEM(expired_business_keys_are_purged_and_others_stay),
        ON_EACH(purged_message_is_stopped_by_its_own_business_key),
        ON_EACH(watermark_counts_for_its_source_only),
        ON_EACH(round_of_the_house_counts_what_it_did_itself),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
