/* SPDX-License-Identifier: MIT
 *
 * test_command.c: what an operator says of one row: retry, discard, resolve, in every state it can be in (I16); the
 * same of several in one transaction; and corrected copies.
 */
#include "unit/engine.h"

struct asked {
    struct semel_command command;
    const char *id;
    int64_t updated_us; /* 0: whatever the row is now */
};

static struct asked order(enum semel_command_kind kind, const char *id)
{
    return (
        struct asked){.command = {.kind = kind, .who = SEMEL_STR("ops@example.com"), .reason = SEMEL_STR("ticket 7")},
                      .id = id};
}

static semel_status give(struct engine *e, struct asked c, struct semel_command_result *ret)
{
    if (c.updated_us == 0)
        return command_row(e, c.id, c.command, ret);
    struct semel_row row = row_of(e, c.id);
    row.updated_us = c.updated_us;
    c.command.row = &row;
    return semel__inbox_command(&e->inbox, &c.command, ret, &e->err);
}

static bool command(struct engine *e, struct asked c, enum semel_row_status *ret_state)
{
    struct semel_command_result result;
    assert_ok(e, give(e, c, &result));
    assert_int_equal(result.done, result.judged == SEMEL_JUDGED_ALLOWED);
    *ret_state = result.state;
    return result.done;
}

static void obeyed(struct engine *e, enum semel_command_kind kind, const char *id, enum semel_row_status becomes)
{
    enum semel_row_status state;
    if (!command(e, order(kind, id), &state))
        fail_msg("%s", e->err.text);
    assert_int_equal(state, becomes);
    assert_int_equal(state_of(e, id), becomes);
}

static void refused(struct engine *e, struct asked c, enum semel_judgement judged, const char *text)
{
    struct semel_command_result result = {.done = true};
    assert_int_equal(give(e, c, &result), SEMEL_INVALID);
    assert_false(result.done);
    assert_int_equal(result.judged, judged);
    assert_string_equal(e->err.text, text);
}

static void work(struct engine *e, size_t expected)
{
    size_t n = 0;
    assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
    assert_int_equal(n, expected);
}

/* ---- every state -------------------------------------------------------------------------------------- */

/* One row in each state, named after it. */
static void fill(struct engine *e)
{
    struct semel__msg no_id = msg("", "ok"), business = msg("prevented", "ok"), claimed = msg("processing", "ok");
    struct semel_lease lease;
    size_t n;

    process_one(e, msg("completed", "ok"));
    process_one(e, msg("failed", "fail"));
    process_one(e, msg("rejected", "reject"));
    process_one(e, msg("dead", "bad"));
    no_id.position = SEMEL_STR("quarantined");
    process_one(e, no_id);
    business.business[0] = SEMEL_STR("pay");
    business.n_business = 1;
    struct semel__msg first = business;
    first.id = SEMEL_STR("first");
    process_one(e, first);
    process_one(e, business);
    assert_ok(e, semel__lease_claim(&e->inbox, &claimed, 1, true, &e->arena, &lease, &n, e->settled, &e->err));
    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    process_one(e, msg("unknown", "maybe"));
    e->policy.effect = SEMEL_EFFECT_ATOMIC;
    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v1", "ok", "k", 1));
    process_one(e, keyed("stale", "ok", "k", 1));
    process_one(e, keyed("waiting", "ok", "k", 5));
    e->policy.order = SEMEL_ORDER_NONE;
}

/* I16: what may be said of which state; what may not is told, and changes nothing. */
static void every_state_has_its_answer(void **state)
{
    struct engine *e = *state;
    static const char *const words[] = {"retry", "discard", "resolve"};
    static const enum semel_row_status becomes[] = {SEMEL_ROW_FAILED, SEMEL_ROW_REJECTED, SEMEL_ROW_COMPLETED};
    char text[100];

    fill(e);
    for (int kind = 0; kind < 3; kind++)
        for (enum semel_row_status s = SEMEL_ROW_PROCESSING; s < SEMEL_ROW_COUNT; s++) {
            const char *id = s == SEMEL_ROW_QUARANTINED ? "position:quarantined" : semel__row_status_name(s);
            bool open = s == SEMEL_ROW_DEAD || s == SEMEL_ROW_QUARANTINED || s == SEMEL_ROW_UNKNOWN;
            bool may = open || (s == SEMEL_ROW_FAILED && kind != SEMEL_COMMAND_RESOLVE) ||
                       (s == SEMEL_ROW_WAITING && kind != SEMEL_COMMAND_RESOLVE); /* by force, through its gap */
            enum semel_row_status after;
            if (state_of(e, id) != s) /* answered before by another word: make it anew */
                continue;
            struct asked c = order((enum semel_command_kind)kind, id);
            c.command.force = true;
            bool done = command(e, c, &after);
            assert_int_equal(done, may);
            assert_int_equal(state_of(e, id), may ? becomes[kind] : s);
            assert_int_equal(after, may ? becomes[kind] : s);
            snprintf(text, sizeof text, "the message is %s: there is nothing to %s", semel__row_status_name(s),
                     words[kind]);
            if (!may)
                assert_string_equal(e->err.text, text);
            if (may && kind == SEMEL_COMMAND_RETRY && s != SEMEL_ROW_FAILED) /* retried: now it is failed */
                obeyed(e, SEMEL_COMMAND_DISCARD, id, SEMEL_ROW_REJECTED);
        }
    assert_false(command(e, order(SEMEL_COMMAND_RETRY, "nobody"), &(enum semel_row_status){0}));
    assert_string_equal(e->err.text, "there is no such message");
}

/* P43: a decision is about the row that was seen, not about what it has become meanwhile. */
static void command_on_a_row_that_was_touched_since_is_not_obeyed(void **state)
{
    struct engine *e = *state;
    struct asked c = order(SEMEL_COMMAND_DISCARD, "failed");
    enum semel_row_status after;

    process_one(e, msg("failed", "fail"));
    c.updated_us = row_of(e, "failed").updated_us;
    e->now_us += INT64_C(3600) * 1000000;
    work(e, 1); /* it fails once more */
    assert_false(command(e, c, &after));
    assert_string_equal(e->err.text, "the message has changed since it was looked at: look again");
    assert_int_equal(state_of(e, "failed"), SEMEL_ROW_FAILED);
    c.updated_us = row_of(e, "failed").updated_us;
    assert_true(command(e, c, &after));
    assert_int_equal(after, SEMEL_ROW_REJECTED);
}

static void dead_quarantined_and_unknown_may_be_discarded_and_resolved(void **state)
{
    struct engine *e = *state;
    static const char *const open[] = {"dead", "position:quarantined", "unknown"};

    fill(e);
    for (size_t i = 0; i < 3; i++)
        obeyed(e, i == 1 ? SEMEL_COMMAND_RESOLVE : SEMEL_COMMAND_DISCARD, open[i],
               i == 1 ? SEMEL_ROW_COMPLETED : SEMEL_ROW_REJECTED);
    struct semel_row row = row_of(e, "dead");
    assert_int_equal(row.progress.error_class, SEMEL_CLASS_DISCARDED);
    assert_str(row.progress.error_text, "ticket 7");
    assert_false(row.kept);
}

/* ---- retry ------------------------------------------------------------------------------------------- */

/* P41: the same id, the same policy, counted: a budget of 2 again after a retry. */
static void retried_message_keeps_its_id_and_has_a_new_budget_of_attempts(void **state)
{
    struct engine *e = *state;

    e->policy.retry_max = 2;
    process_one(e, msg("a", "fail"));
    e->now_us += 10 * SECOND_US;
    work(e, 1);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_DEAD);
    obeyed(e, SEMEL_COMMAND_RETRY, "a", SEMEL_ROW_FAILED);
    struct semel_row row = row_of(e, "a");
    assert_int_equal(row.progress.attempts, 2);
    assert_int_equal(row.progress.attempts_before, 2);
    assert_int_equal(row.progress.retries, 1);
    assert_int_equal(row.progress.due_us, e->now_us);
    assert_str(row.progress.error_text, "try again");
    work(e, 1);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_FAILED);
    e->now_us += 10 * SECOND_US;
    work(e, 1);
    row = row_of(e, "a");
    assert_int_equal(row.progress.state, SEMEL_ROW_DEAD);
    assert_int_equal(row.progress.attempts, 4);
    assert_int_equal(attempts_of(e, "a"), 4);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 2);
    e->mended = true;
    obeyed(e, SEMEL_COMMAND_RETRY, "a", SEMEL_ROW_FAILED);
    work(e, 1);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "a"), 1);
}

/* T12: of two who say the same, one is told that he was late; and the effect is once. */
static void second_operator_is_told_that_he_was_late(void **state)
{
    struct engine *e = *state;
    enum semel_row_status after;

    process_one(e, msg("a", "bad"));
    e->mended = true;
    obeyed(e, SEMEL_COMMAND_RETRY, "a", SEMEL_ROW_FAILED);
    assert_false(command(e, order(SEMEL_COMMAND_RETRY, "a"), &after)); /* not run yet, and due anyway */
    assert_string_equal(e->err.text, "the message is to be retried already: it has not run since");
    work(e, 1);
    assert_false(command(e, order(SEMEL_COMMAND_RETRY, "a"), &after));
    assert_int_equal(after, SEMEL_ROW_COMPLETED);
    assert_string_equal(e->err.text, "the message is completed: there is nothing to retry");
    assert_int_equal(effects_of(e, "a"), 1);
    assert_int_equal(audits_of(e), 1);
}

static void retry_is_refused_with_its_reason(void **state)
{
    struct engine *e = *state;
    static char long_text[1002];
    struct asked c = order(SEMEL_COMMAND_RETRY, "a");

    process_one(e, msg("a", "bad"));
    c.command.reason = SEMEL_STR("");
    refused(e, c, SEMEL_JUDGED_ALLOWED, "who and reason are required: both go to the audit log");
    c.command.reason = SEMEL_STR("why");
    c.command.who = (struct semel_str){0};
    refused(e, c, SEMEL_JUDGED_ALLOWED, "who and reason are required: both go to the audit log");
    c = order(SEMEL_COMMAND_RETRY, "");
    refused(e, c, SEMEL_JUDGED_ALLOWED, "message id is empty; it must have 1 to 255 bytes");
    memset(long_text, 'x', 1001);
    c = order(SEMEL_COMMAND_RETRY, "a");
    c.command.reason = semel__str(long_text);
    refused(e, c, SEMEL_JUDGED_ALLOWED, "the reason must be UTF-8 text of at most 1000 bytes");
    c.command.reason = (struct semel_str){"\xff", 1};
    refused(e, c, SEMEL_JUDGED_ALLOWED, "the reason must be UTF-8 text of at most 1000 bytes");
    c = order(SEMEL_COMMAND_RETRY, "a");
    c.command.who = (struct semel_str){"\xff", 1};
    refused(e, c, SEMEL_JUDGED_ALLOWED, "who is not UTF-8 text without NUL");
    assert_int_equal(audits_of(e), 0);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_DEAD);
}

/* I16: older than the dedupe retention: refused unless forced. */
static void retry_of_what_is_older_than_the_retention_must_be_forced(void **state)
{
    struct engine *e = *state;
    struct asked c = order(SEMEL_COMMAND_RETRY, "a");
    struct semel__msg m = msg("a", "bad");

    m.message_time_us = e->now_us;
    process_one(e, m);
    e->now_us += e->policy.retention_us + 1;
    refused(
        e, c, SEMEL_JUDGED_TOO_OLD,
        "the message is older than the retention of its duplicates: retrying it may repeat an effect; force it if you "
        "know better");
    assert_int_equal(e->err.cls, SEMEL_CLASS_TOO_OLD);
    c.command.force = true;
    e->mended = true;
    assert_true(command(e, c, &(enum semel_row_status){0}));
    work(e, 1);
    assert_int_equal(effects_of(e, "a"), 1);
}

static void retry_of_what_has_no_id_must_be_forced(void **state)
{
    struct engine *e = *state;
    struct asked c = order(SEMEL_COMMAND_RETRY, "position:p/1");
    struct semel__msg m = msg("", "ok");

    m.position = SEMEL_STR("p/1");
    process_one(e, m);
    refused(e, c, SEMEL_JUDGED_NEVER_FIT,
            "the message has no usable id or field: have it sent again corrected, or force it if the handler can do "
            "without");
    c.command.force = true;
    assert_true(command(e, c, &(enum semel_row_status){0}));
    work(e, 1);
    assert_int_equal(effects_of(e, "position:p/1"), 1);
}

static void retry_without_a_kept_payload_is_refused(void **state)
{
    struct engine *e = *state;

    e->policy.keep = SEMEL_KEEP_NEVER;
    process_one(e, msg("a", "bad"));
    refused(e, order(SEMEL_COMMAND_RETRY, "a"), SEMEL_JUDGED_NOT_KEPT,
            "the payload was not kept: only its broker can bring this message again");
    obeyed(e, SEMEL_COMMAND_DISCARD, "a", SEMEL_ROW_REJECTED);
}

/* ---- keys --------------------------------------------------------------------------------------------- */

/* I13: skipped or called done, its successors are woken. */
static void successors_are_woken(void **state)
{
    struct engine *e = *state;
    static const enum semel_command_kind kinds[] = {SEMEL_COMMAND_DISCARD, SEMEL_COMMAND_RESOLVE};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    for (size_t i = 0; i < 2; i++) {
        const char *first = i == 0 ? "a1" : "b1", *second = i == 0 ? "a2" : "b2", *key = i == 0 ? "a" : "b";
        process_one(e, keyed(first, "bad", key, SEMEL_NONE));
        process_one(e, keyed(second, "ok", key, SEMEL_NONE));
        assert_int_equal(row_of(e, second).progress.due_us, SEMEL_NONE);
        obeyed(e, kinds[i], first, i == 0 ? SEMEL_ROW_REJECTED : SEMEL_ROW_COMPLETED);
        assert_int_equal(row_of(e, second).progress.due_us, e->now_us);
        work(e, 1);
        assert_int_equal(effects_of(e, second), 1);
        assert_int_equal(effects_of(e, first), 0);
    }
}

/* I12: v1 is skipped: it has had its turn, v2 is next, and v1 does not come back. */
static void version_advances_when_its_message_is_discarded(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v1", "bad", "k", 1));
    process_one(e, keyed("v2", "ok", "k", 2));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    obeyed(e, SEMEL_COMMAND_DISCARD, "v1", SEMEL_ROW_REJECTED);
    work(e, 1);
    assert_int_equal(state_of(e, "v2"), SEMEL_ROW_COMPLETED);
    process_one(e, keyed("v1 again", "ok", "k", 1));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_STALE, SEMEL_ROW_STALE);
}

/* A2 P74: v1 is applied, v7 waits and is discarded: v2 to v6 are still to come, and v7 is stepped over. */
static void discard_ahead_of_a_gap_leaves_the_missing_versions_their_turn(void **state)
{
    /* I12 */
    struct engine *e = *state;
    char id[8];

    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v1", "ok", "k", 1));
    process_one(e, keyed("v7", "ok", "k", 7));
    process_one(e, keyed("bogus", "ok", "k", 20261116));
    obeyed(e, SEMEL_COMMAND_DISCARD, "v7", SEMEL_ROW_REJECTED);
    obeyed(e, SEMEL_COMMAND_DISCARD, "bogus", SEMEL_ROW_REJECTED);
    for (int64_t v = 2; v <= 9; v++) {
        snprintf(id, sizeof id, "n%d", (int)v);
        if (v != 7)
            process_one(e, keyed(id, "ok", "k", v));
        if (v != 7)
            assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    }
    process_one(e, keyed("v7 again", "ok", "k", 7));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_STALE, SEMEL_ROW_STALE);
}

/* A2 P74 */
static void retry_of_a_gap_waits_again_and_only_force_runs_past_it(void **state)
{
    /* I12 */
    struct engine *e = *state;
    struct asked force = order(SEMEL_COMMAND_RETRY, "v3");
    enum semel_row_status after;

    force.command.force = true;
    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v1", "ok", "k", 1));
    process_one(e, keyed("v3", "ok", "k", 3));
    e->now_us += e->policy.gap_timeout_us + 1;
    work(e, 0);
    assert_int_equal(state_of(e, "v3"), SEMEL_ROW_DEAD);
    obeyed(e, SEMEL_COMMAND_RETRY, "v3", SEMEL_ROW_WAITING);
    work(e, 0);
    assert_int_equal(state_of(e, "v3"), SEMEL_ROW_WAITING); /* under a new timer */
    e->now_us += e->policy.gap_timeout_us + 1;
    work(e, 0);
    assert_int_equal(state_of(e, "v3"), SEMEL_ROW_DEAD);
    assert_true(command(e, force, &after));
    work(e, 1);
    assert_int_equal(state_of(e, "v3"), SEMEL_ROW_COMPLETED);
    process_one(e, keyed("v2", "ok", "k", 2));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_STALE, SEMEL_ROW_STALE);
}

/* P74 A2: a version that was skipped comes again and finds no room to park: it is to be waited for all the same. */
static void skipped_version_that_finds_no_room_is_waited_for(void **state)
{
    /* I12 */
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v1", "ok", "k", 1));
    process_one(e, keyed("v3", "ok", "k", 3));
    obeyed(e, SEMEL_COMMAND_DISCARD, "v3", SEMEL_ROW_REJECTED);
    e->policy.parked_key_max = 1;
    process_one(e, keyed("v9", "ok", "k", 9));
    process_one(e, keyed("v3 again", "ok", "k", 3));
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_GAP, SEMEL_ROW_ABSENT);
    process_one(e, keyed("v2", "ok", "k", 2));
    process_one(e, keyed("v3 again", "ok", "k", 3));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* A retried head runs before what waits behind it. */
static void retried_head_runs_before_its_successors(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, keyed("a1", "bad", "a", SEMEL_NONE));
    process_one(e, keyed("a2", "ok", "a", SEMEL_NONE));
    obeyed(e, SEMEL_COMMAND_RETRY, "a1", SEMEL_ROW_FAILED);
    e->mended = true;
    work(e, 2);
    assert_true(strstr(e->trace, "run:a1") < strstr(e->trace, "run:a2"));
    assert_int_equal(effects_of(e, NULL), 2);
}

/* I10: released only by `rejected` or discard. */
static void discarded_message_gives_its_business_key_up(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "bad");

    m.business[0] = SEMEL_STR("pay");
    m.n_business = 1;
    process_one(e, m);
    m = msg("b", "ok");
    m.business[0] = SEMEL_STR("pay");
    m.n_business = 1;
    obeyed(e, SEMEL_COMMAND_DISCARD, "a", SEMEL_ROW_REJECTED);
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* ---- audit and world ---------------------------------------------------------------------------------- */

/* P42: the change and its audit line are one transaction. */
static void audit_says_who_did_what_and_why(void **state)
{
    struct engine *e = *state;
    const struct semel_mem_audit *audits;

    process_one(e, msg("a", "bad"));
    obeyed(e, SEMEL_COMMAND_RETRY, "a", SEMEL_ROW_FAILED);
    obeyed(e, SEMEL_COMMAND_DISCARD, "a", SEMEL_ROW_REJECTED);
    assert_int_equal(semel__mem_audits(e->db, &audits), 2);
    assert_str(audits[0].line.what, "retry");
    assert_str(audits[1].line.what, "discard");
    assert_str(audits[0].line.who, "ops@example.com");
    assert_str(audits[0].line.reason, "ticket 7");
    assert_str(audits[0].line.id, "a");
    assert_str(audits[0].line.source, "s");
    assert_str(audits[0].line.consumer, "c");
    assert_int_equal(audits[0].at_us, e->now_us);
}

/* P15, P42: whatever fails on the way, the row and its audit line go together, and nothing is called done. */
static void command_that_fails_on_the_way_changes_nothing(void **state)
{
    struct engine *e = *state;
    static const char *const ops[] = {"begin", "fetch", "settle", "commit"};
    struct semel_command_result result;
    struct asked c = order(SEMEL_COMMAND_RETRY, "a");

    process_one(e, msg("a", "bad"));
    for (size_t i = 0; i < COUNT(ops); i++) {
        forget(e);
        fail_at(e, ops[i], 1, i == 3 ? FAULT_UNKNOWN_LOST : FAULT_WORLD);
        assert_int_not_equal(give(e, c, &result), SEMEL_OK);
        assert_false(result.done);
        if (e->dead)
            assert_ok(e, semel_store_reopen(e->store, &e->err));
        assert_int_equal(state_of(e, "a"), SEMEL_ROW_DEAD);
        assert_int_equal(audits_of(e), 0);
    }
    forget(e);
    obeyed(e, SEMEL_COMMAND_RETRY, "a", SEMEL_ROW_FAILED);
    assert_int_equal(audits_of(e), 1);
}

static void damaged_row_is_refused_and_called_damaged(void **state)
{
    struct engine *e = *state;
    const struct semel_row row = {.source = SEMEL_STR("s"), .id = SEMEL_STR("a"), .version = SEMEL_NONE};
    struct semel_command_result result = {.done = true};
    struct semel_command c = order(SEMEL_COMMAND_DISCARD, "a").command;

    process_one(e, msg("a", "bad"));
    damage(e, "a");
    c.row = &row;
    assert_int_equal(semel__inbox_command(&e->inbox, &c, &result, &e->err), SEMEL_INVALID);
    assert_false(result.done);
    assert_non_null(strstr(e->err.text, "damaged"));
    assert_int_equal(audits_of(e), 0);
}

/* P43: the order key is locked by what the caller has read: a row of another key is not touched. */
static void command_on_a_row_of_another_key_is_not_obeyed(void **state)
{
    struct engine *e = *state;
    const struct semel_row row = {.source = SEMEL_STR("s"), .id = SEMEL_STR("a"), .version = SEMEL_NONE};
    struct semel_command_result result;
    struct semel_command c = order(SEMEL_COMMAND_DISCARD, "a").command;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, keyed("a", "bad", "k", SEMEL_NONE));
    c.row = &row;
    assert_ok(e, semel__inbox_command(&e->inbox, &c, &result, &e->err));
    assert_false(result.done);
    assert_int_equal(result.judged, SEMEL_JUDGED_CHANGED);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_DEAD);
}

/* ---- several in one transaction ----------------------------------------------------------------------- */

#define MANY 3

struct many {
    struct semel_row rows[MANY];
    const struct semel_row *at[MANY];
    struct semel_command_result results[MANY];
    bool fails;
    unsigned also;
};

static void look_at(struct engine *e, struct many *m, const char *const ids[MANY])
{
    for (size_t i = 0; i < MANY; i++) {
        struct semel_row row = row_of(e, ids[i]);
        m->rows[i] = (struct semel_row){.source = SEMEL_STR("s"),
                                        .id = semel__str(ids[i]),
                                        .version = row.version,
                                        .updated_us = row.updated_us};
        if (semel__str_given(row.order_key))
            assert_true(semel__arena_copy(&e->keep, row.order_key, &m->rows[i].order_key));
        m->at[i] = &m->rows[i];
    }
}

static semel_status also(void *ctx, struct semel_error *err)
{
    struct many *m = ctx;
    m->also++;
    return m->fails ? semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no room") : SEMEL_OK;
}

static semel_status give_many(struct engine *e, struct many *m, enum semel_command_kind kind)
{
    struct semel_command c = order(kind, "").command;
    return semel__inbox_commands(&e->inbox, &c, m->at, MANY, also, m, m->results, &e->err);
}

/* I16, P42: one transaction, in which each row has its own answer. */
static void rows_of_one_transaction_are_judged_each_by_itself(void **state)
{
    struct engine *e = *state;
    struct many m = {0};

    process_one(e, msg("b", "bad"));
    process_one(e, msg("a", "bad"));
    process_one(e, msg("done", "ok"));
    look_at(e, &m, (const char *const[]){"b", "done", "a"});
    forget(e);
    assert_ok(e, give_many(e, &m, SEMEL_COMMAND_RETRY));
    assert_int_equal(e->seen.commits, 1);
    assert_int_equal(m.also, 1);
    assert_true(m.results[0].done && m.results[2].done && !m.results[1].done);
    assert_int_equal(m.results[1].judged, SEMEL_JUDGED_WRONG_STATUS);
    assert_int_equal(m.results[1].why.status, SEMEL_OK);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_FAILED);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_FAILED);
    assert_int_equal(audits_of(e), 2);
}

/* What is written with them is one transaction with them: a mark never lies. */
static void rows_of_one_transaction_change_together_with_what_is_written_beside_them(void **state)
{
    struct engine *e = *state;
    struct many m = {.fails = true};

    process_one(e, msg("a", "bad"));
    process_one(e, msg("b", "bad"));
    process_one(e, msg("c", "bad"));
    look_at(e, &m, (const char *const[]){"a", "b", "c"});
    assert_int_equal(give_many(e, &m, SEMEL_COMMAND_DISCARD), SEMEL_RETRY);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_DEAD);
    assert_int_equal(audits_of(e), 0);
    m.fails = false;
    assert_ok(e, give_many(e, &m, SEMEL_COMMAND_DISCARD));
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_REJECTED);
}

/* The versions of one key that are discarded together are all remembered. */
static void versions_discarded_together_are_passed_over_together(void **state)
{
    struct engine *e = *state;
    struct many m = {0};

    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v1", "bad", "k", 1));
    process_one(e, keyed("v2", "ok", "k", 2));
    process_one(e, keyed("v3", "ok", "k", 3));
    process_one(e, keyed("v4", "ok", "k", 4));
    look_at(e, &m, (const char *const[]){"v1", "v2", "v3"});
    assert_ok(e, give_many(e, &m, SEMEL_COMMAND_DISCARD));
    assert_true(m.results[0].done && m.results[1].done && m.results[2].done);
    work(e, 1);
    assert_int_equal(state_of(e, "v4"), SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, NULL), 1);
}

/* I16: each discard wakes the next of the key, which then was not touched by anybody else: it must not escape. */
static void discard_includes_what_an_earlier_one_has_woken(void **state)
{
    struct engine *e = *state;
    struct many m = {0};
    struct semel_command c = order(SEMEL_COMMAND_DISCARD, "").command;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, keyed("a", "bad", "k", SEMEL_NONE));
    process_one(e, keyed("b", "ok", "k", SEMEL_NONE));
    process_one(e, keyed("c", "ok", "k", SEMEL_NONE));
    look_at(e, &m, (const char *const[]){"a", "b", "c"});
    for (size_t i = 0; i < MANY; i++) {
        e->now_us += SECOND_US;
        assert_ok(e, semel__inbox_commands(&e->inbox, &c, &m.at[i], 1, NULL, NULL, &m.results[i], &e->err));
        assert_true(m.results[i].done);
    }
    work(e, 0);
    assert_int_equal(effects_of(e, NULL), 0);
}

/* ---- corrected copies --------------------------------------------------------------------------------- */

static semel_status correct(struct engine *e, const char *id, const char *payload, bool force,
                            struct semel_command_result *ret, char ret_id[SEMEL_ID_MAX + 1])
{
    struct semel_row row = row_of(e, id);
    struct semel_correction c = {.command = order(SEMEL_COMMAND_CORRECT, id).command, .payload = semel__str(payload)};
    semel_status status;

    c.command.row = &row;
    c.command.force = force;
    status = semel__inbox_correct(&e->inbox, &c, ret, &e->err);
    memcpy(ret_id, c.id, sizeof c.id);
    return status;
}

static void corrected(struct engine *e, const char *id, const char *payload, const char *copy)
{
    struct semel_command_result result;
    char made[SEMEL_ID_MAX + 1];
    assert_ok(e, correct(e, id, payload, false, &result, made));
    if (!result.done)
        fail_msg("%s", e->err.text);
    assert_string_equal(made, copy);
    assert_int_equal(state_of(e, id), SEMEL_ROW_REJECTED);
    assert_int_equal(state_of(e, copy), SEMEL_ROW_WAITING);
}

/* P41: a payload never changes; each of the two names the other. */
static void corrected_copy_runs_and_the_message_keeps_its_payload(void **state)
{
    struct engine *e = *state;
    struct semel_row row;

    process_one(e, msg("a", "bad"));
    corrected(e, "a", "ok", "a~1");
    row = row_of(e, "a");
    assert_str(row.payload, "bad");
    assert_str(row.progress.error_text, "corrected as a~1: ticket 7");
    assert_int_equal(row.progress.error_class, SEMEL_CLASS_DISCARDED);
    assert_int_equal(audits_of(e), 2);
    work(e, 1);
    assert_int_equal(state_of(e, "a~1"), SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "a~1"), 1);
    process_one(e, msg("a", "bad")); /* its broker brings it again */
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_REJECTED);
}

/* No broker brings the copy, or can bring it again. */
static void corrected_copy_has_neither_position_nor_time_of_its_message(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "bad");

    m.position = SEMEL_STR("p/1");
    m.message_time_us = START_US - SECOND_US;
    process_one(e, m);
    corrected(e, "a", "ok", "a~1");
    assert_str(row_of(e, "a").position, "p/1");
    assert_int_equal(row_of(e, "a~1").position.n, 0);
    assert_int_equal(row_of(e, "a~1").message_time_us, SEMEL_NONE);
}

static void copy_that_dies_is_corrected_again(void **state)
{
    struct engine *e = *state;

    process_one(e, msg("a", "bad"));
    corrected(e, "a", "bad", "a~1");
    work(e, 1);
    assert_int_equal(state_of(e, "a~1"), SEMEL_ROW_DEAD);
    corrected(e, "a~1", "ok", "a~1~1");
    work(e, 1);
    assert_int_equal(state_of(e, "a~1~1"), SEMEL_ROW_COMPLETED);
}

/* I1: "a~6" may be the next message of a producer whose ids look like this, and must not meet the copy's row. */
static void number_in_an_id_is_never_counted_up(void **state)
{
    struct engine *e = *state;

    process_one(e, msg("a~5", "bad"));
    corrected(e, "a~5", "ok", "a~5~1");
    process_one(e, msg("a~6", "ok"));
    assert_int_equal(state_of(e, "a~6"), SEMEL_ROW_COMPLETED);
}

/* E1: the copy has another id, and so another key for its call: an effect that may be there would be doubled. */
static void keyed_effect_that_was_tried_is_corrected_only_by_force(void **state)
{
    struct engine *e = *state;
    struct semel_command_result result;
    char made[SEMEL_ID_MAX + 1];

    process_one(e, msg("a", "bad"));
    e->policy.effect = SEMEL_EFFECT_KEYED;
    assert_int_equal(correct(e, "a", "ok", false, &result, made), SEMEL_INVALID);
    assert_int_equal(result.judged, SEMEL_JUDGED_MAY_BE_DONE);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_DEAD);
    assert_ok(e, correct(e, "a", "ok", true, &result, made));
    assert_true(result.done);
}

static void assert_ran(struct engine *e, const char *first, const char *second)
{
    const char *a = strstr(e->trace, first), *b = strstr(e->trace, second);
    if (a == NULL || b == NULL || a > b)
        fail_msg("%s", e->trace);
}

/* I14: by version the copy has the message's place, before those that waited for it. */
static void corrected_copy_takes_the_place_of_its_version(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v1", "bad", "k", 1));
    process_one(e, keyed("v2", "ok", "k", 2));
    assert_int_equal(state_of(e, "v2"), SEMEL_ROW_WAITING);
    corrected(e, "v1", "ok", "v1~1");
    forget(e);
    work(e, 2);
    assert_ran(e, "run:v1~1 ", "run:v2 ");
}

/* Message "a" of a key by arrival is corrected only by force, and nothing changes before. */
static void assert_needs_force(struct engine *e)
{
    struct semel_command_result result;
    char made[SEMEL_ID_MAX + 1];
    assert_int_equal(correct(e, "a", "ok", false, &result, made), SEMEL_INVALID);
    assert_int_equal(result.judged, SEMEL_JUDGED_WAITERS_BEHIND);
    assert_false(result.done);
    assert_int_equal(result.state, SEMEL_ROW_DEAD);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_DEAD);
    assert_int_equal(state_of(e, "a~1"), SEMEL_ROW_ABSENT);
    assert_ok(e, correct(e, "a", "ok", true, &result, made));
    assert_true(result.done);
}

/* I13: by arrival the copy comes last, which somebody has to want. */
static void correction_before_those_that_wait_must_be_forced(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, keyed("a", "bad", "k", SEMEL_NONE));
    process_one(e, keyed("b", "ok", "k", SEMEL_NONE));
    assert_needs_force(e);
    forget(e);
    work(e, 2);
    assert_ran(e, "run:b ", "run:a~1 ");
}

/* I13: a dead one behind the message does not wait, and would still come before the copy. */
static void correction_before_a_dead_one_of_its_key_must_be_forced(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, keyed("a", "bad", "k", SEMEL_NONE));
    e->policy.payload_max = 4;
    process_one(e, keyed("b", "too long", "k", SEMEL_NONE)); /* dead on arrival */
    e->policy.payload_max = 1000;
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_DEAD);
    assert_needs_force(e);
}

/* What has ended, runs, waits or may have had its effect is no dead letter; and a payload has its bounds. */
static void correction_that_cannot_be_is_refused_and_changes_nothing(void **state)
{
    struct engine *e = *state;
    static const char *const ids[] = {"completed", "rejected", "processing", "unknown",
                                      "waiting",   "stale",    "prevented"};
    struct semel_command_result result;
    char made[SEMEL_ID_MAX + 1];

    fill(e);
    for (size_t i = 0; i < COUNT(ids); i++) {
        assert_ok(e, correct(e, ids[i], "ok", true, &result, made));
        assert_false(result.done);
        assert_int_equal(result.judged, SEMEL_JUDGED_WRONG_STATUS);
    }
    e->policy.payload_max = 4;
    assert_int_equal(correct(e, "dead", "too long", false, &result, made), SEMEL_INVALID);
    assert_non_null(strstr(e->err.text, "payload_max"));
    e->policy.payload_max = 1000;
    process_one(e, msg("dead~1", "ok")); /* somebody has the name */
    assert_int_equal(correct(e, "dead", "ok", false, &result, made), SEMEL_INVALID);
    assert_false(result.done);
    assert_int_equal(result.judged, SEMEL_JUDGED_COPY_REFUSED);
    assert_int_equal(result.state, SEMEL_ROW_DEAD);
    assert_int_equal(state_of(e, "dead"), SEMEL_ROW_DEAD);
    assert_int_equal(audits_of(e), 0);
}

/* The copy wants what the message held: of two with one business key still only one has its effect (A6). */
static void corrected_copy_has_the_business_key_of_its_message(void **state)
{
    struct engine *e = *state;
    const struct semel_str held = SEMEL_STR("pay");
    struct semel__msg m = msg("a", "bad");
    struct semel_command_result result;

    m.business[0] = held;
    m.n_business = 1;
    process_one(e, m);
    struct semel_row row = row_of(e, "a");
    struct semel_correction c = {.command = order(SEMEL_COMMAND_CORRECT, "a").command,
                                 .payload = SEMEL_STR("ok"),
                                 .business = &held,
                                 .n_business = 1};
    c.command.row = &row;
    assert_ok(e, semel__inbox_correct(&e->inbox, &c, &result, &e->err));
    assert_true(result.done);
    work(e, 1);
    assert_int_equal(state_of(e, "a~1"), SEMEL_ROW_COMPLETED);
    m = msg("b", "ok");
    m.business[0] = held;
    m.n_business = 1;
    process_one(e, m);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_PREVENTED);
}

/* A6: who waited for the key has the same wrong payload: the correction comes first. */
static void corrected_copy_runs_before_those_that_wait_for_its_business_key(void **state)
{
    struct engine *e = *state;
    const struct semel_str held = SEMEL_STR("pay");
    struct semel__msg a = msg("a", "bad"), b = msg("b", "ok");
    struct semel_command_result result;

    a.business[0] = b.business[0] = held;
    a.n_business = b.n_business = 1;
    process_one(e, a);
    process_one(e, b);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_WAITING);
    struct semel_row row = row_of(e, "a");
    struct semel_correction c = {.command = order(SEMEL_COMMAND_CORRECT, "a").command,
                                 .payload = SEMEL_STR("ok"),
                                 .business = &held,
                                 .n_business = 1};
    c.command.row = &row;
    assert_ok(e, semel__inbox_correct(&e->inbox, &c, &result, &e->err));
    assert_true(result.done);
    work(e, 1);
    assert_int_equal(state_of(e, "a~1"), SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "b"), 0);
}

/* P15: both rows and both lines, or none of them; after an unknown commit the rows tell. */
static void correction_that_fails_on_the_way_is_done_once_or_not_at_all(void **state)
{
    struct engine *e = *state;
    static const char *const ops[] = {"begin", "fetch", "settle", "admit"};
    struct semel_command_result result;
    char made[SEMEL_ID_MAX + 1];

    process_one(e, msg("a", "bad"));
    for (size_t i = 0; i < COUNT(ops); i++) {
        forget(e);
        fail_at(e, ops[i], 1, FAULT_WORLD);
        assert_int_not_equal(correct(e, "a", "ok", false, &result, made), SEMEL_OK);
        assert_false(result.done);
        assert_int_equal(state_of(e, "a"), SEMEL_ROW_DEAD);
        assert_int_equal(state_of(e, "a~1"), SEMEL_ROW_ABSENT);
        assert_int_equal(audits_of(e), 0);
    }
    forget(e);
    fail_at(e, "commit", 1, FAULT_UNKNOWN_DONE);
    assert_ok(e, correct(e, "a", "ok", false, &result, made));
    assert_true(result.done);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_REJECTED);
    assert_int_equal(state_of(e, "a~1"), SEMEL_ROW_WAITING);
    assert_int_equal(audits_of(e), 2);
    process_one(e, msg("b", "bad"));
    forget(e);
    fail_at(e, "commit", 1, FAULT_UNKNOWN_LOST);
    assert_ok(e, correct(e, "b", "ok", false, &result, made));
    assert_true(result.done);
    assert_int_equal(audits_of(e), 4);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(every_state_has_its_answer),
        ON_EACH(command_on_a_row_that_was_touched_since_is_not_obeyed),
        ON_EACH(command_on_a_row_of_another_key_is_not_obeyed),
        ON_EACH(dead_quarantined_and_unknown_may_be_discarded_and_resolved),
        ON_EACH(retried_message_keeps_its_id_and_has_a_new_budget_of_attempts),
        ON_EACH(second_operator_is_told_that_he_was_late),
        ON_EACH(retry_is_refused_with_its_reason),
        ON_EACH(retry_of_what_is_older_than_the_retention_must_be_forced),
        ON_EACH(retry_of_what_has_no_id_must_be_forced),
        ON_EACH(retry_without_a_kept_payload_is_refused),
        ON_EACH(successors_are_woken),
        ON_EACH(version_advances_when_its_message_is_discarded),
        ON_EACH(discard_ahead_of_a_gap_leaves_the_missing_versions_their_turn),
        ON_EACH(retry_of_a_gap_waits_again_and_only_force_runs_past_it),
        ON_EACH(skipped_version_that_finds_no_room_is_waited_for),
        ON_EACH(retried_head_runs_before_its_successors),
        ON_EACH(discarded_message_gives_its_business_key_up),
        ON_MEM(audit_says_who_did_what_and_why),
        ON_EACH(command_that_fails_on_the_way_changes_nothing),
        ON_EACH(damaged_row_is_refused_and_called_damaged),
        ON_EACH(rows_of_one_transaction_are_judged_each_by_itself),
        ON_EACH(rows_of_one_transaction_change_together_with_what_is_written_beside_them),
        ON_EACH(versions_discarded_together_are_passed_over_together),
        ON_EACH(corrected_copy_runs_and_the_message_keeps_its_payload),
        ON_EACH(discard_includes_what_an_earlier_one_has_woken),
        ON_EACH(corrected_copy_has_neither_position_nor_time_of_its_message),
        ON_EACH(copy_that_dies_is_corrected_again),
        ON_EACH(number_in_an_id_is_never_counted_up),
        ON_EACH(keyed_effect_that_was_tried_is_corrected_only_by_force),
        ON_EACH(correction_before_a_dead_one_of_its_key_must_be_forced),
        ON_EACH(corrected_copy_runs_before_those_that_wait_for_its_business_key),
        ON_EACH(corrected_copy_takes_the_place_of_its_version),
        ON_EACH(correction_before_those_that_wait_must_be_forced),
        ON_EACH(correction_that_cannot_be_is_refused_and_changes_nothing),
        ON_EACH(corrected_copy_has_the_business_key_of_its_message),
        ON_EACH(correction_that_fails_on_the_way_is_done_once_or_not_at_all),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
