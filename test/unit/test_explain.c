/* SPDX-License-Identifier: MIT
 *
 * test_explain.c: why a message is not running, in words, for every status it can be in (I8); and that what --dry-run
 * promises is what core then does (I16).
 */
#include "unit/engine.h"

#include "ops/explain.h"

#define NOW INT64_C(1700000000000000) /* 2023-11-14T22:13:20Z */
#define SECOND INT64_C(1000000)
#define DAY (86400 * SECOND)

struct scene {
    struct semel_row row, others[4];
    struct semel_policy policy;
    struct semel_history history;
    struct semel_act_line act;
    struct semel_ops_facts facts;
    struct semel_buf why, next;
};

static void set_up(struct scene *s, enum semel_row_status state, enum semel_class cls, const char *text)
{
    *s = (struct scene){
        .history = {.last_version = SEMEL_NONE, .head_version = SEMEL_NONE, .watermark_us = SEMEL_NONE}};
    semel__policy_init(&s->policy, SEMEL_STR("billing"));
    s->row = (struct semel_row){.consumer = SEMEL_STR("billing"),
                                .source = SEMEL_STR(""),
                                .id = SEMEL_STR("pay-17"),
                                .arrival = 10,
                                .version = SEMEL_NONE,
                                .message_time_us = NOW - 60 * SECOND,
                                .received_us = NOW - 50 * SECOND,
                                .updated_us = NOW - 40 * SECOND,
                                .kept = true,
                                .progress = {.state = state,
                                             .attempts = 2,
                                             .due_us = SEMEL_NONE,
                                             .processed_us = SEMEL_NONE,
                                             .lease_until_us = SEMEL_NONE,
                                             .lease_token = SEMEL_NONE,
                                             .error_class = cls,
                                             .error_text = semel__str(text)}};
    s->facts = (struct semel_ops_facts){.row = &s->row, .policy = &s->policy, .history = &s->history, .now_us = NOW};
    semel__buf_init(&s->why, SEMEL_EXPLAIN_MAX);
    semel__buf_init(&s->next, SEMEL_EXPLAIN_MAX);
}

static void by_key(struct scene *s, enum semel_order order, int64_t version)
{
    s->policy.order = order;
    s->row.order_key = SEMEL_STR("order-17");
    s->row.version = version;
}

/* Another unfinished one of the key, at place `i` of the key's order; the row itself comes last. */
static struct semel_row *another(struct scene *s, size_t i, const char *id, enum semel_row_status state)
{
    s->others[i] = s->row;
    s->others[i].id = semel__str(id);
    s->others[i].arrival = 1 + (int64_t)i;
    s->others[i].progress.state = state;
    return &s->others[i];
}

static void explain(struct scene *s)
{
    semel__buf_done(&s->why);
    semel__buf_done(&s->next);
    semel__explain(&s->facts, &s->why, &s->next);
    assert_false(s->why.failed);
    assert_false(s->next.failed);
    semel__buf_add(&s->why, "", 1);
    semel__buf_add(&s->next, "", 1);
}

static void tear_down(struct scene *s)
{
    semel__buf_done(&s->why);
    semel__buf_done(&s->next);
}

static void assert_has(const struct semel_buf *buf, const char *part)
{
    if (strstr(buf->p, part) == NULL)
        fail_msg("no \"%s\" in: %s", part, buf->p);
}

static void assert_lacks(const struct semel_buf *buf, const char *part)
{
    if (strstr(buf->p, part) != NULL)
        fail_msg("\"%s\" in: %s", part, buf->p);
}

/* ---- running, and about to run ------------------------------------------------------------------------ */

static void running_message_names_its_holder_and_what_follows_if_that_one_dies(void **state)
{
    static const struct {
        enum semel_effect effect;
        bool alone;
        int attempts;
        const char *after;
    } cases[] = {
        {SEMEL_EFFECT_OUTSIDE, true, 2, "it becomes unknown"},
        {SEMEL_EFFECT_ATOMIC, false, 2, "without counting the attempt"},
        {SEMEL_EFFECT_ATOMIC, true, 2, "counts as failed, and it is retried"},
        {SEMEL_EFFECT_KEYED, true, 8, "it is dead: that was the last"},
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        set_up(&s, SEMEL_ROW_PROCESSING, SEMEL_CLASS_NONE, NULL);
        s.policy.effect = cases[i].effect;
        s.policy.retry_max = 8;
        s.row.progress.alone = cases[i].alone;
        s.row.progress.attempts = cases[i].attempts;
        s.row.progress.lease_owner = SEMEL_STR("worker-3");
        s.row.progress.lease_until_us = NOW + 40 * SECOND;
        explain(&s);
        assert_has(&s.why, "It is running: worker-3 holds it until 2023-11-14T22:14:00Z (in 40 s)");
        assert_has(&s.next, "Nothing has to be done");
        assert_has(&s.next, cases[i].after);
        s.row.progress.lease_until_us = NOW - 40 * SECOND;
        explain(&s);
        assert_has(&s.why, "the lease of worker-3 ran out at 2023-11-14T22:12:40Z (40 s ago)");
        assert_has(&s.next, "no worker runs: start one");
        assert_has(&s.next, cases[i].after);
        tear_down(&s);
    }
}

static void failed_message_says_which_attempt_failed_and_when_the_next_one_is(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT, "bank is down");
    s.policy.retry_max = 8;
    s.row.progress.due_us = NOW + 180 * SECOND;
    explain(&s);
    assert_has(&s.why, "Attempt 2 of 8 failed (transient: bank is down)");
    assert_has(&s.why, "waits for its next attempt until 2023-11-14T22:16:20Z (in 3 min)");
    assert_has(&s.next, "Nothing has to be done");
    assert_has(&s.next, "semel inbox retry pay-17 --consumer billing --reason");
    s.row.progress.error_class = SEMEL_CLASS_PERMANENT;
    s.policy.permanent_max = 3;
    explain(&s);
    assert_has(&s.why, "Attempt 2 of 3 failed");
    tear_down(&s);
}

static void due_message_that_nobody_takes_asks_for_a_worker(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT, "bank is down");
    s.row.progress.due_us = NOW - SECOND;
    explain(&s);
    assert_has(&s.why, "a worker takes it with its next look");
    s.row.progress.due_us = NOW - 3 * 3600 * SECOND;
    explain(&s);
    assert_has(&s.why, "It is due since 2023-11-14T19:13:20Z (3 h ago), and nobody has taken it");
    assert_has(&s.next, "Start a worker for consumer billing");
    s.row.kept = false;
    explain(&s);
    assert_has(&s.why, "its payload was not kept");
    assert_has(&s.next, "Only its broker can bring it again");
    s.row.kept = true;
    s.row.progress.attempts_before = 2;
    explain(&s);
    assert_has(&s.why, "An operator has had it retried, and it has not run since");
    tear_down(&s);
}

static void sent_message_that_waits_for_its_first_worker_is_due(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_WAITING, SEMEL_CLASS_NONE, NULL);
    s.row.progress.attempts = 0;
    s.row.progress.due_us = NOW - 3 * DAY;
    explain(&s);
    assert_has(&s.why, "It is due since 2023-11-11T22:13:20Z (3 d ago), and nobody has taken it");
    tear_down(&s);
}

/* ---- behind others: I13 ------------------------------------------------------------------------------- */

static void blocked_message_names_the_first_of_its_key_and_what_to_do_with_it(void **state)
{
    static const struct {
        enum semel_row_status state;
        const char *says, *next;
    } heads[] = {
        {SEMEL_ROW_DEAD, "which is dead", "semel inbox discard pay-3 --consumer billing --reason"},
        {SEMEL_ROW_UNKNOWN, "which is unknown", "semel inbox resolve pay-3 --consumer billing --reason"},
        {SEMEL_ROW_FAILED, "which is failed", "due at 2023-11-14T22:13:30Z (in 10 s)"},
        {SEMEL_ROW_PROCESSING, "which is processing", "held by worker-3 until 2023-11-14T22:13:25Z"},
        {SEMEL_ROW_WAITING, "which is waiting", "semel inbox show pay-3 --consumer billing"},
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(heads); i++) {
        set_up(&s, SEMEL_ROW_WAITING, SEMEL_CLASS_BLOCKED, "parked");
        by_key(&s, SEMEL_ORDER_ARRIVAL, SEMEL_NONE);
        struct semel_row *head = another(&s, 0, "pay-3", heads[i].state);
        head->progress.due_us = NOW + 10 * SECOND;
        head->progress.lease_owner = SEMEL_STR("worker-3");
        head->progress.lease_until_us = NOW + 5 * SECOND;
        another(&s, 1, "pay-4", SEMEL_ROW_WAITING);
        s.others[2] = s.row;
        semel__facts_key(&s.facts, s.others, 3, false);
        explain(&s);
        assert_has(&s.why, "because 2 earlier messages of key order-17 are unfinished; the first is pay-3");
        assert_has(&s.why, heads[i].says);
        assert_has(&s.next, heads[i].next);
        s.others[1] = s.row;
        semel__facts_key(&s.facts, s.others, 2, true);
        explain(&s);
        assert_has(&s.why, "because at least 1 earlier message of key order-17 is unfinished: pay-3");
        tear_down(&s);
    }
}

static void failed_message_that_is_due_behind_another_says_so(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT, "bank is down");
    by_key(&s, SEMEL_ORDER_ARRIVAL, SEMEL_NONE);
    s.row.progress.due_us = NOW - DAY;
    another(&s, 0, "pay-3", SEMEL_ROW_DEAD);
    s.others[1] = s.row;
    semel__facts_key(&s.facts, s.others, 2, false);
    explain(&s);
    assert_has(&s.why, "1 earlier message of key order-17 is unfinished: pay-3, which is dead");
    tear_down(&s);
}

static void message_that_waits_for_a_later_one_at_its_effect_names_it(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_WAITING, SEMEL_CLASS_BLOCKED, "parked");
    by_key(&s, SEMEL_ORDER_VERSION, 3);
    s.others[0] = s.row;
    another(&s, 1, "pay-20", SEMEL_ROW_UNKNOWN);
    semel__facts_key(&s.facts, s.others, 2, false);
    explain(&s);
    assert_has(&s.why, "has its turn: pay-20, which is unknown");
    assert_has(&s.next, "semel inbox show pay-20");
    semel__facts_key(&s.facts, s.others, 1, false);
    explain(&s);
    assert_has(&s.why, "none of them is unfinished any more");
    tear_down(&s);
}

/* I12 */
static void message_ahead_of_a_gap_says_what_is_missing_and_what_happens_when_it_does_not_come(void **state)
{
    static const struct {
        enum semel_gap on_gap;
        const char *then;
    } policies[] = {
        {SEMEL_GAP_DEAD, "it is dead-lettered"},
        {SEMEL_GAP_APPLY, "it runs without them"},
        {SEMEL_GAP_ALERT, "an alert is raised and it goes on waiting"},
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(policies); i++) {
        set_up(&s, SEMEL_ROW_WAITING, SEMEL_CLASS_GAP, "versions before it are missing");
        by_key(&s, SEMEL_ORDER_VERSION, 7);
        s.policy.on_gap = policies[i].on_gap;
        s.row.progress.due_us = NOW + 300 * SECOND;
        s.history.last_version = 5;
        explain(&s);
        assert_has(&s.why, "it is version 7 of key order-17, and version 6 is missing. The last one applied is 5.");
        assert_has(&s.why, "It waits for them until 2023-11-14T22:18:20Z (in 5 min); then");
        assert_has(&s.why, policies[i].then);
        assert_has(&s.next, "semel inbox retry pay-17 --consumer billing --force --reason");
        s.history.last_version = 3;
        s.row.progress.due_us = NOW - 300 * SECOND;
        explain(&s);
        assert_has(&s.why, "versions 4 to 6 are missing");
        assert_has(&s.why, "The time for them ended at 2023-11-14T22:08:20Z (5 min ago); with the next look");
        assert_has(&s.next, "Nobody has looked since");
        s.history.last_version = SEMEL_NONE;
        s.policy.first_version = 1;
        explain(&s);
        assert_has(&s.why, "versions 1 to 6 are missing");
        assert_lacks(&s.why, "The last one applied");
        s.policy.first_version = SEMEL_FIRST_VERSION_ANY;
        explain(&s);
        assert_has(&s.why, "versions before it are missing");
        tear_down(&s);
    }
}

/* ---- given up ----------------------------------------------------------------------------------------- */

/* I14, E2 */
static void unknown_message_asks_to_find_out_first(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_UNKNOWN, SEMEL_CLASS_LEASE, "its worker died");
    explain(&s);
    assert_has(&s.why, "attempt 2 may have had its effect (lease_expired: its worker died)");
    assert_has(&s.next, "If it did:\n    semel inbox resolve pay-17");
    assert_has(&s.next, "If it certainly did not:\n    semel inbox retry pay-17 --consumer billing --reason");
    tear_down(&s);
}

/* E1: whose effect a program of its own runs may name steps that nobody knows here. */
static void key_of_an_unknown_message_names_its_step_unless_a_file_sets_the_consumer(void **state)
{
    struct scene s;
    char key[SEMEL_STEP_KEY_TEXT];

    (void)state;
    for (int by_file = 0; by_file < 2; by_file++) {
        set_up(&s, SEMEL_ROW_UNKNOWN, SEMEL_CLASS_LEASE, "its worker died");
        s.policy.effect = SEMEL_EFFECT_OUTSIDE;
        s.facts.by_file = by_file == 1;
        explain(&s);
        assert_true(semel__facts_idempotency_key(&s.facts, key));
        assert_has(&s.next, key);
        assert_int_equal(strstr(s.next.p, "semel.step_key(consumer, message_id, step, source)") == NULL, by_file);
        tear_down(&s);
    }
}

static void dead_message_says_why_and_what_a_retry_does(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_DEAD, SEMEL_CLASS_TRANSIENT, "bank is down");
    s.policy.retry_max = 8;
    s.row.progress.attempts = 11;
    s.row.progress.attempts_before = 3;
    explain(&s);
    assert_has(&s.why, "It is dead: attempt 8 of 8 failed (transient: bank is down)");
    assert_has(&s.next, "it keeps its id and gets up to 8 attempts more:\n    semel inbox retry pay-17");
    assert_lacks(&s.next, "--force");
    assert_has(&s.next, "semel inbox discard pay-17");
    assert_has(&s.next, "semel inbox resolve pay-17");
    s.row.progress.error_class = SEMEL_CLASS_GAP;
    explain(&s);
    assert_has(&s.why, "versions before it did not come in time");
    s.row.progress.attempts = s.row.progress.attempts_before = 0;
    s.row.progress.error_class = SEMEL_CLASS_PERMANENT;
    explain(&s);
    assert_has(&s.why, "it has no usable id or field (permanent: bank is down)");
    assert_has(&s.next, "Have it sent again");
    assert_has(&s.next, "--force --reason");
    s.row.kept = false;
    explain(&s);
    assert_has(&s.next, "it cannot be retried");
    assert_lacks(&s.next, "semel inbox retry");
    tear_down(&s);
}

/* I16: the figure is said before somebody forces it. */
static void dead_message_older_than_the_retention_needs_force_and_says_how_old_it_is(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_DEAD, SEMEL_CLASS_TRANSIENT, "bank is down");
    s.policy.retention_us = 45 * DAY;
    s.row.message_time_us = NOW - 60 * DAY;
    explain(&s);
    assert_has(&s.next, "it was made at 2023-09-15T22:13:20Z (60 d ago), and the retention is 45d");
    assert_has(&s.next, "semel inbox retry pay-17 --consumer billing --force");
    s.row.message_time_us = SEMEL_NONE;
    s.row.received_us = NOW - 50 * DAY;
    explain(&s);
    assert_has(&s.next, "it was received at 2023-09-25T22:13:20Z (50 d ago)");
    tear_down(&s);
}

static void dead_message_tells_who_waits_behind_it(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT, "no such account");
    by_key(&s, SEMEL_ORDER_ARRIVAL, SEMEL_NONE);
    s.others[0] = s.row;
    another(&s, 1, "pay-18", SEMEL_ROW_WAITING);
    another(&s, 2, "pay-19", SEMEL_ROW_WAITING);
    semel__facts_key(&s.facts, s.others, 3, false);
    explain(&s);
    assert_has(&s.why, "2 later messages of key order-17 wait behind it");
    tear_down(&s);
}

/* I18 */
static void quarantined_message_says_why_it_was_not_run(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_QUARANTINED, SEMEL_CLASS_TOO_OLD, "older than the watermark");
    s.history.watermark_us = NOW - 45 * DAY;
    s.row.message_time_us = NOW - 60 * DAY;
    explain(&s);
    assert_has(&s.why, "it came too late: it was made at 2023-09-15T22:13:20Z");
    assert_has(&s.why, "nothing made before 2023-09-30T22:13:20Z (45 d ago) may run");
    assert_has(&s.next, "semel inbox retry pay-17 --consumer billing --force");
    s.row.progress.error_class = SEMEL_CLASS_NO_ID;
    s.row.kept = false;
    explain(&s);
    assert_has(&s.why, "without an id that can be used");
    assert_has(&s.next, "it cannot be retried");
    assert_lacks(&s.next, "semel inbox retry");
    tear_down(&s);
}

/* ---- finished ----------------------------------------------------------------------------------------- */

static void finished_message_says_what_came_of_it_and_that_nothing_is_to_be_done(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_COMPLETED, SEMEL_CLASS_NONE, NULL);
    s.row.progress.processed_us = NOW - 30 * SECOND;
    explain(&s);
    assert_string_equal(s.why.p, "It is completed, since 2023-11-14T22:12:50Z (30 s ago), with attempt 2.");
    assert_string_equal(s.next.p, "There is nothing to do.");
    s.row.progress.outcome = SEMEL_STR("{}");
    s.act = (struct semel_act_line){NOW - 20 * SECOND, SEMEL_STR("ops@x"), SEMEL_STR("resolve"),
                                    SEMEL_STR("bank has it")};
    s.history.acts = &s.act;
    s.history.n_acts = 1;
    explain(&s);
    assert_string_equal(s.why.p,
                        "It is completed: it was resolved by ops@x at 2023-11-14T22:13:00Z (20 s ago), because: "
                        "bank has it; its outcome is kept.");
    s.row.progress.state = SEMEL_ROW_REJECTED;
    s.row.progress.error_class = SEMEL_CLASS_REJECTED;
    s.row.progress.error_text = SEMEL_STR("account closed");
    explain(&s);
    assert_has(&s.why, "its handler rejected it at 2023-11-14T22:12:50Z (30 s ago) (rejected: account closed)");
    s.row.progress.error_class = SEMEL_CLASS_DISCARDED;
    explain(&s);
    assert_has(&s.why, "it was discarded, because: account closed.");
    s.act.what = SEMEL_STR("discard");
    explain(&s);
    assert_has(&s.why, "it was discarded by ops@x at 2023-11-14T22:13:00Z (20 s ago), because: bank has it.");
    s.row.progress.state = SEMEL_ROW_PREVENTED;
    explain(&s);
    assert_has(&s.why, "another message with the same business key came before it");
    s.row.progress.state = SEMEL_ROW_STALE;
    by_key(&s, SEMEL_ORDER_VERSION, 4);
    explain(&s);
    assert_has(&s.why, "it is version 4 of key order-17, and that one or a later one had been applied");
    s.history.last_version = 6;
    explain(&s);
    assert_has(&s.why, "version 6 has been applied already");
    assert_string_equal(s.next.p, "There is nothing to do.");
    tear_down(&s);
}

/* I8: no status and no class leaves the reader without a word. */
static void every_status_with_every_class_has_words(void **state)
{
    struct scene s;

    (void)state;
    for (enum semel_row_status st = SEMEL_ROW_PROCESSING; st < SEMEL_ROW_COUNT; st++)
        for (enum semel_class cls = SEMEL_CLASS_NONE; cls <= SEMEL_CLASS_DISCARDED; cls++) {
            set_up(&s, st, cls, NULL);
            explain(&s);
            assert_true(s.why.n > 20 && s.next.n > 20);
            tear_down(&s);
        }
}

static void damaged_row_says_what_is_wrong_with_it(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_DEAD, SEMEL_CLASS_NONE, NULL);
    semel__explain_damaged(SEMEL_STR("damaged inbox row: attempts must be 0 to 1000000"), &s.why, &s.next);
    semel__buf_add(&s.why, "", 1);
    semel__buf_add(&s.next, "", 1);
    assert_has(&s.why, "attempts must be 0 to 1000000");
    assert_has(&s.next, "Do not delete it");
    tear_down(&s);
}

/* ---- hostile bytes ------------------------------------------------------------------------------------ */

/* A11: what cannot be shown is named by its bytes, so that the command is about this id and no other. */
static void suggested_commands_are_quoted_and_control_characters_are_not_passed_on(void **state)
{
    struct scene s;

    (void)state;
    set_up(&s, SEMEL_ROW_DEAD, SEMEL_CLASS_TRANSIENT, "red \x1b[31m text\r\n");
    s.row.id = SEMEL_STR("a'b; rm -rf \x1b]0;x\x07 $(id)");
    s.row.source = SEMEL_STR("two words");
    s.facts.store = "sqlite:/tmp/my shop.db";
    explain(&s);
    assert_has(&s.next, "semel inbox retry $'a\\047b\\073 rm -rf \\033\\1350\\073x\\007 \\044\\050id\\051' "
                        "--consumer billing --source 'two words' --reason \"...\" --store 'sqlite:/tmp/my shop.db'");
    s.row.id = SEMEL_STR("a'b; rm -rf $(id)");
    explain(&s);
    assert_has(&s.next, "semel inbox retry 'a'\\''b; rm -rf $(id)' --consumer billing");
    for (size_t i = 0; i + 1 < s.why.n; i++)
        assert_true((unsigned char)s.why.p[i] >= 0x20);
    s.row.id = SEMEL_STR("--force");
    s.row.source = SEMEL_STR("");
    s.facts.store = NULL;
    explain(&s);
    assert_has(&s.next, "semel inbox retry --consumer billing --reason \"...\" -- --force");
    tear_down(&s);
}

static void lack_of_memory_marks_the_buffers_and_breaks_nothing(void **state)
{
    struct fail_nth fail;
    struct scene s;
    bool met = true;

    (void)state;
    for (unsigned at = 1; met; at++) {
        set_up(&s, SEMEL_ROW_DEAD, SEMEL_CLASS_TRANSIENT, "bank is down");
        fail_nth_begin(&fail, at);
        semel__explain(&s.facts, &s.why, &s.next);
        met = fail_nth_end(&fail);
        assert_int_equal(s.why.failed || s.next.failed, met);
        tear_down(&s);
    }
}

/* ---- what would happen -------------------------------------------------------------------------------- */

/* One row in each state, and some of each that core treats apart. */
static void fill(struct engine *e)
{
    struct semel__msg no_id = msg("", "ok"), first = msg("first", "ok"), claimed = msg("processing", "ok");
    struct semel__msg old = msg("old", "bad"), bare = msg("bare", "bad");
    struct semel_lease lease;
    size_t n;

    process_one(e, msg("completed", "ok"));
    process_one(e, msg("failed", "fail"));
    process_one(e, msg("rejected", "reject"));
    process_one(e, msg("dead", "bad"));
    old.message_time_us = e->now_us - e->policy.retention_us - SECOND;
    process_one(e, old);
    no_id.position = SEMEL_STR("quarantined");
    process_one(e, no_id);
    first.business[0] = SEMEL_STR("pay");
    first.n_business = 1;
    process_one(e, first);
    first.id = SEMEL_STR("prevented");
    process_one(e, first);
    assert_ok(e, semel__lease_claim(&e->inbox, &claimed, 1, true, &e->arena, &lease, &n, e->settled, &e->err));
    e->policy.keep = SEMEL_KEEP_NEVER;
    process_one(e, bare);
    e->policy.keep = SEMEL_KEEP_UNFINISHED;
    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    process_one(e, msg("unknown", "maybe"));
    e->policy.effect = SEMEL_EFFECT_ATOMIC;
    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v1", "ok", "k", 1));
    process_one(e, keyed("stale", "ok", "k", 1));
    process_one(e, keyed("gap", "ok", "k", 5));
    process_one(e, keyed("w1", "bad", "w", 1));
    process_one(e, keyed("blocked", "ok", "w", 2));
}

/* What the command line would look up: the facts of a row and of its key. */
static enum semel_judgement ask(struct engine *e, const char *id, enum semel_command_kind kind, bool force)
{
    struct semel_history history = {.last_version = SEMEL_NONE, .watermark_us = SEMEL_NONE};
    struct semel_row row = row_of(e, id), *rows = NULL;
    struct semel_ops_facts facts = {.row = &row, .policy = &e->policy, .history = &history, .now_us = e->now_us};
    struct semel_buf text;
    size_t n = 0, damaged;
    if (semel__str_given(row.order_key)) {
        struct semel_scan scan = {.kind = SEMEL_SCAN_KEY,
                                  .consumer = e->policy.consumer,
                                  .order_key = row.order_key,
                                  .by_version = true,
                                  .max = 100};
        assert_ok(e, semel_store_scan(e->store, &scan, &e->keep, &rows, &n, &damaged, &e->err));
        semel__facts_key(&facts, rows, n, false);
    }
    semel__buf_init(&text, 1000);
    enum semel_judgement would = semel__explain_would(&facts, kind, force, &text);
    assert_true(text.n > 10);
    semel__buf_done(&text);
    return would;
}

/* I16: the dry run and the command are of one mind, about every row and every word. */
static void what_a_dry_run_promises_is_what_core_does(void **state)
{
    static const char *const ids[] = {"completed", "failed",    "rejected",
                                      "dead",      "old",       "position:quarantined",
                                      "first",     "prevented", "processing",
                                      "bare",      "unknown",   "v1",
                                      "stale",     "gap",       "w1",
                                      "blocked"};
    struct engine *e = *state;

    fill(e);
    for (enum semel_command_kind kind = SEMEL_COMMAND_RETRY; kind <= SEMEL_COMMAND_RESOLVE; kind++)
        for (int force = 0; force < 2; force++)
            for (size_t i = 0; i < COUNT(ids); i++) {
                enum semel_judgement would = ask(e, ids[i], kind, force == 1);
                const struct semel_row row = row_of(e, ids[i]);
                struct semel_command_result did;
                struct semel_command c = {.kind = kind,
                                          .row = &row,
                                          .who = SEMEL_STR("ops"),
                                          .reason = SEMEL_STR("test"),
                                          .force = force == 1};
                fail_at(e, "commit", 1,
                        FAULT_WORLD); /* it is decided, and not done: the next word finds the same row */
                semel_status status = semel__inbox_command(&e->inbox, &c, &did, &e->err);
                assert_false(did.done);
                if (would != did.judged)
                    fail_msg("%s, kind %d, force %d: said %s, core %s (%s)", ids[i], kind, force,
                             semel__judgement_name(would), semel__judgement_name(did.judged), e->err.text);
                semel_status expected = would == SEMEL_JUDGED_ALLOWED     ? SEMEL_RETRY
                                        : semel__judgement_refuses(would) ? SEMEL_INVALID
                                                                          : SEMEL_OK;
                assert_int_equal(status, expected);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(running_message_names_its_holder_and_what_follows_if_that_one_dies),
        cmocka_unit_test(failed_message_says_which_attempt_failed_and_when_the_next_one_is),
        cmocka_unit_test(due_message_that_nobody_takes_asks_for_a_worker),
        cmocka_unit_test(sent_message_that_waits_for_its_first_worker_is_due),
        cmocka_unit_test(blocked_message_names_the_first_of_its_key_and_what_to_do_with_it),
        cmocka_unit_test(failed_message_that_is_due_behind_another_says_so),
        cmocka_unit_test(message_that_waits_for_a_later_one_at_its_effect_names_it),
        cmocka_unit_test(message_ahead_of_a_gap_says_what_is_missing_and_what_happens_when_it_does_not_come),
        cmocka_unit_test(unknown_message_asks_to_find_out_first),
        cmocka_unit_test(key_of_an_unknown_message_names_its_step_unless_a_file_sets_the_consumer),
        cmocka_unit_test(dead_message_says_why_and_what_a_retry_does),
        cmocka_unit_test(dead_message_older_than_the_retention_needs_force_and_says_how_old_it_is),
        cmocka_unit_test(dead_message_tells_who_waits_behind_it),
        cmocka_unit_test(quarantined_message_says_why_it_was_not_run),
        cmocka_unit_test(finished_message_says_what_came_of_it_and_that_nothing_is_to_be_done),
        cmocka_unit_test(every_status_with_every_class_has_words),
        cmocka_unit_test(damaged_row_says_what_is_wrong_with_it),
        cmocka_unit_test(suggested_commands_are_quoted_and_control_characters_are_not_passed_on),
        cmocka_unit_test(lack_of_memory_marks_the_buffers_and_breaks_nothing),
        ON_MEM(what_a_dry_run_promises_is_what_core_does),
    };
    return cmocka_run_group_tests_name("explain", tests, NULL, NULL);
}
