/* SPDX-License-Identifier: MIT
 *
 * test_direct.c: messages that are stored to be run later, ends of runs that the caller made, and gaps that are decided
 * without anybody who runs messages.
 */
#include "unit/engine.h"

static void put(struct engine *e, struct semel__msg m, enum semel_act act, enum semel_why why,
                enum semel_row_status state)
{
    assert_ok(e, semel__inbox_put(&e->inbox, &m, &e->settled[0], &e->err));
    assert_settled(e, 0, act, why, state);
}

static size_t work(struct engine *e)
{
    size_t n = 0;
    assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
    return n;
}

/* ---- put ---------------------------------------------------------------------------------------------- */

static void put_message_waits_and_runs_once(void **state)
{
    struct engine *e = *state;
    put(e, msg("a", "ok"), SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    struct semel_row row = row_of(e, "a");
    assert_int_equal(row.progress.attempts, 0);
    assert_int_equal(row.progress.due_us, e->now_us);
    assert_int_equal(row.progress.error_class, SEMEL_CLASS_NONE);
    assert_true(row.kept);
    put(e, msg("a", "ok"), SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_WAITING);
    assert_int_equal(work(e), 1);
    assert_int_equal(effects_of(e, "a"), 1);
    put(e, msg("a", "ok"), SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_int_equal(work(e), 0);
}

static void put_keeps_its_place_in_the_order_of_its_key(void **state)
{
    /* I13 */
    struct engine *e = *state;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    put(e, keyed("a", "ok", "k", SEMEL_NONE), SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    put(e, keyed("b", "ok", "k", SEMEL_NONE), SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    process_one(e, keyed("c", "ok", "k", SEMEL_NONE));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    forget(e);
    assert_int_equal(work(e), 3);
    assert_non_null(strstr(e->trace, "run:a run:b run:c"));
}

static void put_survives_an_unknown_commit(void **state)
{
    /* P15 */
    static const enum fault faults[] = {FAULT_UNKNOWN_DONE, FAULT_UNKNOWN_LOST};
    struct engine *e = *state;
    for (size_t i = 0; i < COUNT(faults); i++) {
        char id[8];
        snprintf(id, sizeof id, "m%zu", i);
        struct semel__msg m = msg(id, "ok");
        fail_at(e, "commit", 1, faults[i]);
        assert_ok(e, semel__inbox_put(&e->inbox, &m, &e->settled[0], &e->err));
        assert_int_equal(e->settled[0].act, SEMEL_ACK);
        assert_int_equal(state_of(e, id), SEMEL_ROW_WAITING);
    }
    assert_int_equal(work(e), 2);
    assert_int_equal(effects_of(e, NULL), 2);
}

static struct semel__msg bare(const char *id)
{
    struct semel__msg m = msg(id, "ok");
    m.payload = (struct semel_str){0};
    m.fp = (struct semel_fp){0};
    return m;
}

static void put_without_a_payload_is_refused(void **state)
{
    /* A4 P76: nobody would bring it; an empty one is a payload */
    struct engine *e = *state;
    struct semel__msg m = bare("a");
    assert_int_equal(semel__inbox_put(&e->inbox, &m, &e->settled[0], &e->err), SEMEL_INVALID);
    assert_non_null(strstr(e->err.text, "payload"));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_ABSENT);
    m.payload = SEMEL_STR("");
    put(e, m, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_true(row_of(e, "a").kept);
    assert_int_equal(work(e), 1);
}

static void failures_without_payloads_do_not_stand_before_those_with_one(void **state)
{
    /* A4 P76: only their broker can bring them, so that they are due for ever */
    struct engine *e = *state;
    const struct semel_ending failed = {.result = SEMEL_TRANSIENT, .text = SEMEL_STR("no")};
    char ids[BATCH][8];
    for (size_t i = 0; i < 120; i++) {
        snprintf(ids[i], sizeof ids[i], "m%zu", i);
        struct semel__msg m = bare(ids[i]);
        assert_ok(e, semel__inbox_record(&e->inbox, &m, &failed, &e->settled[0], &e->err));
        assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    }
    e->now_us += 20 * SECOND_US;
    struct semel__msg last = msg("z", "ok");
    put(e, last, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_int_equal(work(e), 1);
    assert_int_equal(state_of(e, "z"), SEMEL_ROW_COMPLETED);
}

static void copy_with_a_payload_stands_for_one_without(void **state)
{
    /* A4 P76 */
    struct engine *e = *state;
    const struct semel__msg both[] = {bare("a"), msg("a", "fail@1")};
    assert_ok(e, semel__inbox_process(&e->inbox, both, 2, e->settled, &e->err));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_FAILED);
    assert_true(row_of(e, "a").kept);
}

static void adopted_payload_brings_its_headers_and_the_missing_fingerprint(void **state)
{
    /* A4 P76, I4 */
    struct engine *e = *state;
    const struct semel_ending failed = {.result = SEMEL_TRANSIENT, .text = SEMEL_STR("no")};
    struct semel__msg m = bare("a"), whole = msg("a", "ok"), empty = msg("b", "ok");
    assert_ok(e, semel__inbox_record(&e->inbox, &m, &failed, &e->settled[0], &e->err));
    assert_int_equal(row_of(e, "a").fp.kind, SEMEL_FP_NONE);
    whole.headers = SEMEL_STR("{\"h\":\"1\"}");
    process_one(e, whole);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BACKOFF, SEMEL_ROW_FAILED);
    struct semel_row row = row_of(e, "a");
    assert_true(row.kept && semel__str_eqz(row.payload, "ok") && semel__str_eq(row.headers, whole.headers));
    assert_memory_equal(row.fp.bytes, whole.fp.bytes, whole.fp.n);
    process_one(e, msg("a", "other"));
    assert_int_equal(e->settled[0].why, SEMEL_WHY_CONFLICT);
    m = bare("b");
    assert_ok(e, semel__inbox_record(&e->inbox, &m, &failed, &e->settled[0], &e->err));
    empty.payload = SEMEL_STR("");
    const struct semel__msg both[] = {whole, empty}; /* an empty one beside others stays what it is */
    assert_ok(e, semel__inbox_process(&e->inbox, both, 2, e->settled, &e->err));
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_BACKOFF, SEMEL_ROW_FAILED);
    assert_true(row_of(e, "b").kept && row_of(e, "b").payload.n == 0);
    e->now_us += 20 * SECOND_US;
    assert_int_equal(work(e), 2);
}

static void put_brings_the_payload_that_was_not_kept(void **state)
{
    struct engine *e = *state;
    e->policy.keep = SEMEL_KEEP_NEVER;
    process_one(e, msg("a", "fail@1"));
    assert_false(row_of(e, "a").kept);
    struct semel__msg m = msg("a", "fail@1");
    assert_int_equal(semel__inbox_put(&e->inbox, &m, &e->settled[0], &e->err), SEMEL_INVALID);
    e->policy.keep = SEMEL_KEEP_UNFINISHED;
    e->now_us += 20 * SECOND_US;
    put(e, m, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_FAILED);
    assert_true(row_of(e, "a").kept);
    assert_int_equal(row_of(e, "a").progress.attempts, 1);
    assert_int_equal(work(e), 1);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
}

/* ---- record ------------------------------------------------------------------------------------------- */

static void record(struct engine *e, struct semel__msg m, enum semel_result result)
{
    struct semel_ending ending = {.result = result, .text = SEMEL_STR("said so")};
    assert_ok(e, semel__inbox_record(&e->inbox, &m, &ending, &e->settled[0], &e->err));
}

static void recorded_end_counts_one_attempt(void **state)
{
    /* T3, I14 */
    static const enum semel_row_status ends[] = {[SEMEL_TRANSIENT] = SEMEL_ROW_FAILED,
                                                 [SEMEL_PERMANENT] = SEMEL_ROW_DEAD,
                                                 [SEMEL_REJECTED] = SEMEL_ROW_REJECTED,
                                                 [SEMEL_MAYBE] = SEMEL_ROW_UNKNOWN};
    struct engine *e = *state;
    for (int result = SEMEL_TRANSIENT; result <= SEMEL_MAYBE; result++) {
        char id[8];
        snprintf(id, sizeof id, "m%d", result);
        record(e, msg(id, "ok"), (enum semel_result)result);
        assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, ends[result]);
        assert_int_equal(row_of(e, id).progress.attempts, 1);
        assert_str(row_of(e, id).progress.error_text, "said so");
        assert_int_equal(attempts_of(e, id), 1);
        assert_int_equal(effects_of(e, id), 0);
    }
}

/* An inbox that lives for months forgets what a call needed. */
static void calls_leave_no_memory_behind(void **state)
{
    struct engine *e = *state;
    record(e, msg("a", "ok"), SEMEL_TRANSIENT);
    const size_t used = e->inbox.arena.used;
    for (int i = 0; i < 10; i++)
        record(e, msg("a", "ok"), SEMEL_TRANSIENT);
    assert_int_equal(e->inbox.arena.used, used);
}

static void recorded_end_of_a_row_that_failed_before_counts_the_next_attempt(void **state)
{
    struct engine *e = *state;
    record(e, msg("a", "ok"), SEMEL_TRANSIENT);
    record(e, msg("a", "ok"), SEMEL_TRANSIENT); /* not due: nothing is recorded */
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BACKOFF, SEMEL_ROW_FAILED);
    assert_int_equal(row_of(e, "a").progress.attempts, 1);
    e->now_us += 20 * SECOND_US;
    record(e, msg("a", "ok"), SEMEL_TRANSIENT);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_RETRIED, SEMEL_ROW_FAILED);
    assert_int_equal(row_of(e, "a").progress.attempts, 2);
    assert_int_equal(attempts_of(e, "a"), 2);
    assert_int_equal(effects_of(e, NULL), 0);
}

static void recorded_end_of_a_finished_message_changes_nothing(void **state)
{
    struct engine *e = *state;
    process_one(e, msg("a", "ok"));
    record(e, msg("a", "ok"), SEMEL_PERMANENT);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_int_equal(attempts_of(e, "a"), 0);
}

/* ---- gaps --------------------------------------------------------------------------------------------- */

static size_t gaps(struct engine *e, size_t max)
{
    size_t n = 77;
    assert_ok(e, semel__inbox_gaps(&e->inbox, max, &n, &e->err));
    return n;
}

static void park_gaps(struct engine *e, enum semel_gap on_gap)
{
    e->policy.order = SEMEL_ORDER_VERSION;
    e->policy.on_gap = on_gap;
    const struct semel__msg msgs[] = {keyed("a3", "ok", "a", 3), keyed("a4", "ok", "a", 4), keyed("b2", "ok", "b", 2)};
    process(e, msgs, COUNT(msgs));
    for (size_t i = 0; i < COUNT(msgs); i++)
        assert_settled(e, i, SEMEL_ACK, SEMEL_WHY_GAP, SEMEL_ROW_WAITING);
    assert_int_equal(gaps(e, 100), 0);
    e->now_us += e->policy.gap_timeout_us + 1;
}

static void gap_that_timed_out_is_dead_without_a_handler(void **state)
{
    /* I12, T9 */
    struct engine *e = *state;
    park_gaps(e, SEMEL_GAP_DEAD);
    forget(e);
    assert_int_equal(gaps(e, 1), 1);
    assert_int_equal(gaps(e, 100), 2);
    assert_int_equal(gaps(e, 100), 0);
    assert_int_equal(state_of(e, "a3"), SEMEL_ROW_DEAD);
    assert_int_equal(state_of(e, "b2"), SEMEL_ROW_DEAD);
    assert_int_equal(row_of(e, "a4").progress.error_class, SEMEL_CLASS_BLOCKED); /* behind the dead one */
    assert_null(strstr(e->trace, "run:"));
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 2);
}

static void gap_that_is_only_alerted_waits_on(void **state)
{
    struct engine *e = *state;
    park_gaps(e, SEMEL_GAP_ALERT);
    assert_int_equal(gaps(e, 100), 2);
    assert_int_equal(state_of(e, "a3"), SEMEL_ROW_WAITING);
    assert_true(row_of(e, "a3").progress.due_us > e->now_us);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_GAP], 2);
}

static void gap_that_may_run_is_left_to_who_runs_it(void **state)
{
    struct engine *e = *state;
    park_gaps(e, SEMEL_GAP_APPLY);
    forget(e);
    assert_int_equal(gaps(e, 100), 0);
    assert_int_equal(effects_of(e, NULL), 0);
    assert_int_equal(state_of(e, "a3"), SEMEL_ROW_WAITING);
    assert_int_equal(work(e), 3);
    assert_int_equal(effects_of(e, NULL), 3);
}

static void gaps_are_found_behind_many_retries(void **state)
{
    struct engine *e = *state;
    e->policy.order = SEMEL_ORDER_VERSION;
    for (int i = 0; i < 50; i++) {
        char id[8];
        snprintf(id, sizeof id, "f%d", i);
        process_one(e, keyed(id, "fail", id, 1));
    }
    process_one(e, keyed("g", "ok", "g", 5));
    e->now_us += e->policy.gap_timeout_us + 1;
    assert_int_equal(gaps(e, 1), 1);
    assert_int_equal(state_of(e, "g"), SEMEL_ROW_DEAD);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(put_message_waits_and_runs_once),
        ON_EACH(calls_leave_no_memory_behind),
        ON_EACH(put_keeps_its_place_in_the_order_of_its_key),
        ON_EACH(put_survives_an_unknown_commit),
        ON_EACH(put_brings_the_payload_that_was_not_kept),
        ON_EACH(put_without_a_payload_is_refused),
        ON_EACH(failures_without_payloads_do_not_stand_before_those_with_one),
        ON_EACH(copy_with_a_payload_stands_for_one_without),
        ON_EACH(adopted_payload_brings_its_headers_and_the_missing_fingerprint),
        ON_EACH(recorded_end_counts_one_attempt),
        ON_EACH(recorded_end_of_a_row_that_failed_before_counts_the_next_attempt),
        ON_EACH(recorded_end_of_a_finished_message_changes_nothing),
        ON_EACH(gap_that_timed_out_is_dead_without_a_handler),
        ON_EACH(gap_that_is_only_alerted_waits_on),
        ON_EACH(gap_that_may_run_is_left_to_who_runs_it),
        ON_EACH(gaps_are_found_behind_many_retries),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
