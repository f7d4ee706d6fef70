/* SPDX-License-Identifier: MIT
 *
 * test_batch.c: a batch of deliveries on the happy path and at the door: copies, order, the one transaction, ids and
 * sizes, rows that are there already. What fails is in test_blame.c, what is unknown in test_unknown.c, keys in
 * test_keys.c.
 */
#include "unit/engine.h"

#include <stdlib.h>

#include "base/ids.h"

/* ---- copies ------------------------------------------------------------------------------------------- */

static void copies_of_one_id_are_merged_and_share_its_fate(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "fail"), msg("a", "ok"), msg("b", "fail"), msg("a", "ok")};

    process(e, msgs, COUNT(msgs));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_settled(e, 4, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_FAILED);
    assert_int_equal(effects_of(e, "a"), 1);
    assert_int_equal(row_of(e, "b").progress.attempts, 1);
    assert_int_equal(e->inbox.counts.why[SEMEL_WHY_DUPLICATE], 3);
}

/* The world fails before anything is decided: the copies go back with the first. */
static void copies_go_back_together_when_the_world_fails(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("a", "ok")};

    fail_at(e, "commit", 1, FAULT_WORLD);
    assert_int_equal(try_process(e, msgs, 2), SEMEL_RETRY);
    assert_int_equal(e->settled[0].act, SEMEL_LATER);
    assert_int_equal(e->settled[1].act, SEMEL_LATER);
    assert_int_equal(effects_of(e, NULL), 0);
}

/* I11 */
static void copy_with_another_payload_is_a_conflict_and_kept(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("a", "out"), msg("a", "out"), msg("b", "ok")};

    process(e, msgs, COUNT(msgs));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_CONFLICT, SEMEL_ROW_COMPLETED);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_CONFLICT, SEMEL_ROW_COMPLETED);
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "a"), 1);
    assert_int_equal(conflicts_of(e, "a"), 2);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_CONFLICT], 2);
}

/* I11 */
static void same_id_with_another_payload_later_is_a_conflict_and_kept(void **state)
{
    struct engine *e = *state;

    process_one(e, msg("a", "ok"));
    process_one(e, msg("a", "out"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_CONFLICT, SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "a"), 1);
    assert_int_equal(conflicts_of(e, "a"), 1);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_CONFLICT], 1);
}

/* I11: the one that came again may be the one that is wrong. */
static void redelivered_conflict_is_kept_too(void **state)
{
    struct engine *e = *state;
    struct semel__msg again = msg("a", "out");

    process_one(e, msg("a", "ok"));
    again.delivery = 2;
    process_one(e, again);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_CONFLICT, SEMEL_ROW_COMPLETED);
    assert_int_equal(conflicts_of(e, "a"), 1);
    assert_int_equal(effects_of(e, "a"), 1);
}

/* I1 */
static void same_id_in_two_sources_is_two_messages(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("a", "ok")};

    msgs[1].source = SEMEL_STR("t");
    process(e, msgs, 2);
    assert_int_equal(effects_of(e, "a"), 2);
    e->policy.one_source = true; /* here its ids are unique across sources: one of the two runs */
    msgs[0].id = msgs[1].id = SEMEL_STR("b");
    process(e, msgs, 2);
    assert_int_equal(effects_of(e, "b"), 1);
    assert_int_equal(e->settled[1].why, SEMEL_WHY_DUPLICATE);
}

/* ---- order and transaction ---------------------------------------------------------------------------- */

static void assert_trace(const struct engine *e, const char *expected)
{
    assert_string_equal(e->trace, expected);
}

/* P61: ids descend while keys ascend, so that no other order looks right by chance. */
static void batch_runs_sorted_by_lock_key_and_in_arrival_order_within_a_key(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("f", "ok"), msg("a", "ok"), msg("e", "ok"), msg("b", "ok"), msg("d", "ok")};
    const char *keys[] = {"k2", "k9", "k1", "k2", "k1"};

    for (size_t i = 0; i < COUNT(msgs); i++)
        msgs[i].lock_key = semel__str(keys[i]);
    process(e, msgs, COUNT(msgs));
    assert_trace(e, "begin run:e run:d run:f run:b run:a commit ");
}

/* P61: without an order on the route the order key still serves as the key to sort by. */
static void order_key_of_an_unordered_route_sorts_the_batch(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a", "ok", "k3", SEMEL_NONE), keyed("b", "ok", "k2", SEMEL_NONE),
                                keyed("c", "ok", "k1", SEMEL_NONE)};

    process(e, msgs, COUNT(msgs));
    assert_trace(e, "begin run:c run:b run:a commit ");
}

/* DESIGN, The flow: one transaction a batch and one inbox write a message. */
static void clean_batch_is_one_transaction_and_one_insert_a_message(void **state)
{
    struct engine *e = *state;
    static struct semel__msg msgs[500];
    static char ids[500][8];

    for (size_t i = 0; i < COUNT(msgs); i++) {
        snprintf(ids[i], sizeof ids[i], "m%zu", i);
        msgs[i] = msg(ids[i], "ok");
    }
    process(e, msgs, COUNT(msgs));
    assert_int_equal(e->inbox.counts.transactions, 1);
    assert_int_equal(e->seen.begins, 1);
    assert_int_equal(e->seen.commits, 1);
    assert_int_equal(e->seen.inserted, 500);
    assert_int_equal(e->seen.settles, 0);
    assert_int_equal(effects_of(e, NULL), 500);
    assert_int_equal(e->inbox.counts.done, 500);
    assert_false(row_of(e, "m7").kept);

    forget(e); /* the same again: one transaction, nothing is inserted, nothing runs */
    process(e, msgs, COUNT(msgs));
    assert_int_equal(e->seen.commits, 1);
    assert_int_equal(e->seen.inserted, 0);
    assert_int_equal(e->seen.settles, 0);
    assert_int_equal(effects_of(e, NULL), 500);
    assert_settled(e, 499, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
}

static semel_status (*settle)(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err);
static size_t keys_changed;

static semel_status settle_counted(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err)
{
    keys_changed += batch->n_keys;
    return settle(store, batch, err);
}

/* A key is written when somebody takes a place in its order or leaves it, and not for what happens at that place. */
static void key_changes_with_those_in_its_order_only(void **state)
{
    struct engine *e = *state;
    struct semel_store_ops ops = *e->store->ops;
    const struct semel_store_ops *own = e->store->ops;
    const struct {
        const char *payload;
        size_t keys;
    } cases[] = {{"fail", 1}, {"fail", 0}, {"fail", 0}, {"ok", 1}};
    size_t n;

    settle = ops.settle;
    ops.settle = settle_counted;
    e->store->ops = &ops;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    for (size_t i = 0; i < COUNT(cases); i++) {
        keys_changed = 0;
        e->mended = strcmp(cases[i].payload, "ok") == 0;
        if (i == 0)
            process_one(e, keyed("a", "fail", "k", SEMEL_NONE));
        else
            assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
        assert_int_equal(row_of(e, "a").progress.attempts, i + 1);
        assert_int_equal(keys_changed, cases[i].keys);
        e->now_us += 3600 * SECOND_US;
    }
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    e->store->ops = own;
}

static void batch_beyond_the_bound_is_refused_and_an_empty_one_is_nothing(void **state)
{
    struct engine *e = *state;

    assert_int_equal(semel__inbox_process(&e->inbox, NULL, SEMEL_BATCH_MAX + 1, NULL, &e->err), SEMEL_INVALID);
    assert_string_equal(e->err.text, "a batch of 10001 messages; at most 10000 are allowed");
    assert_ok(e, semel__inbox_process(&e->inbox, NULL, 0, NULL, NULL));
    assert_int_equal(e->seen.begins, 0);
}

static void largest_batch_is_taken(void **state)
{
    struct engine *e = *state;
    static struct semel__msg msgs[SEMEL_BATCH_MAX];
    static struct semel_settled settled[SEMEL_BATCH_MAX];

    for (size_t i = 0; i < SEMEL_BATCH_MAX; i++)
        msgs[i] = msg("a", "ok"); /* copies: it runs once */
    assert_ok(e, semel__inbox_process(&e->inbox, msgs, SEMEL_BATCH_MAX, settled, &e->err));
    assert_int_equal(settled[0].act, SEMEL_ACK);
    assert_int_equal(settled[SEMEL_BATCH_MAX - 1].why, SEMEL_WHY_DUPLICATE);
    assert_int_equal(effects_of(e, "a"), 1);
}

/* I9 */
static void duplicate_is_given_the_outcome_of_the_original(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "out"), msg("a", "out")};

    process(e, msgs, 2);
    assert_str(e->settled[0].outcome, "{\"made\":1}");
    assert_str(e->settled[1].outcome, "{\"made\":1}");
    process_one(e, msgs[0]);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_str(e->settled[0].outcome, "{\"made\":1}");
    msgs[0].delivery = 3; /* and by the one look that sifts what came again */
    process_one(e, msgs[0]);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_str(e->settled[0].outcome, "{\"made\":1}");
    assert_int_equal(effects_of(e, "a"), 1);
}

/* ---- ids, sizes, fields ------------------------------------------------------------------------------- */

static enum semel_row_status quarantined_or(struct engine *e, struct semel__msg m, const char *kept_as)
{
    process_one(e, m);
    assert_int_equal(e->settled[0].act, SEMEL_ACK);
    return state_of(e, kept_as);
}

static void bad_ids_are_kept_with_their_reason_and_acknowledged(void **state)
{
    struct engine *e = *state;
    char id[64];
    static char text[257];
    const struct {
        struct semel_str id;
        const char *position, *reason;
    } cases[] = {
        {{"", 0}, "p/0", "message id is empty; it must have 1 to 255 bytes"},
        {{NULL, 0}, "p/1", "message id is empty; it must have 1 to 255 bytes"},
        {{text, 256}, "p/2", "message id has 256 bytes; at most 255 are allowed"},
        {{"a\0b", 3}, "p/3", "message id is not UTF-8 text without NUL"},
        {{"a\xff", 2}, "p/4", "message id is not UTF-8 text without NUL"},
        {{"\xc0\x80", 2}, "p/5", "message id is not UTF-8 text without NUL"},
    };

    memset(text, 'x', 256);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct semel__msg m = msg("", "ok");
        m.id = cases[i].id;
        m.position = semel__str(cases[i].position);
        snprintf(id, sizeof id, "position:%s", cases[i].position);
        assert_int_equal(quarantined_or(e, m, id), SEMEL_ROW_QUARANTINED);
        assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NO_ID, SEMEL_ROW_QUARANTINED);
        struct semel_row row = row_of(e, id);
        assert_str(row.progress.error_text, cases[i].reason);
        assert_str(row.payload, "ok");
    }
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_QUARANTINED], COUNT(cases));
    assert_int_equal(effects_of(e, NULL), 0);
}

static void position_of_a_message_without_id_is_no_real_id(void **state)
{
    struct engine *e = *state;
    struct semel__msg nameless = msg("", "ok");

    nameless.position = SEMEL_STR("7");
    process_one(e, nameless);
    process_one(e, msg("7", "ok"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

static void message_without_id_and_position_is_kept_under_the_digest_of_its_payload(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("", "ok");

    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NO_ID, SEMEL_ROW_QUARANTINED);
    /* sha256 of "ok" */
    assert_int_equal(state_of(e, "sha256:2689367b205c16ce32ed4200942b8b8b1e262dfc70d9bc9fbc77c49699a4f1df"),
                     SEMEL_ROW_QUARANTINED);
}

static void messages_with_unusable_ids_are_kept_apart(void **state)
{
    struct engine *e = *state;

    process_one(e, msg("\xff", "ok"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NO_ID, SEMEL_ROW_QUARANTINED);
    process_one(e, msg("\xfe", "ok"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NO_ID, SEMEL_ROW_QUARANTINED);
    /* sha256 of the payload and the id */
    assert_int_equal(state_of(e, "sha256:0bf10424c1a31a1c2ae74ff87421d6214c999789b6b16ec601077617be19953e"),
                     SEMEL_ROW_QUARANTINED);
    assert_int_equal(state_of(e, "sha256:e0431d000aac29d1dcb71f8dd620dcc90c409e97221404d6cebb6188dd63614b"),
                     SEMEL_ROW_QUARANTINED);
}

/* Else the id of one source would pass for that of another. */
static void message_whose_source_cannot_be_used_is_kept_and_does_not_run(void **state)
{
    struct engine *e = *state;
    static char source[256];

    for (size_t i = 0; i < 2; i++) {
        struct semel__msg m = msg("a", "ok");
        memset(source, i == 0 ? 'x' : 'y', sizeof source);
        m.source = (struct semel_str){source, sizeof source};
        process_one(e, m);
        assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NO_ID, SEMEL_ROW_QUARANTINED);
    }
    assert_int_equal(effects_of(e, NULL), 0);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_QUARANTINED], 2); /* they are two */
}

/* I18 A11 P82: a route that counts on the age of its messages runs none without. */
static void message_that_must_tell_its_age_and_does_not_is_kept_dead(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("c", "ok"), msg("d", "ok"), msg("e", "ok")};
    const int64_t now_us = 1000 * (e->now_us / 1000), day_us = INT64_C(86400000000);
    struct semel_random rng;
    char ids[2][SEMEL_UUID_TEXT];

    semel__random_seed(&rng, 1);
    semel__uuid7_new(now_us, &rng, ids[0]);
    semel__uuid7_new(now_us + 2 * day_us, &rng, ids[1]);
    e->policy.timed_ids = SEMEL_TIMED_ALL;
    msgs[0].id = semel__str(ids[0]);
    msgs[1].id = semel__str(ids[1]);
    msgs[2].id = SEMEL_STR("00000000000000000000012345");
    msgs[3].envelope_time_us = now_us;
    msgs[4].message_time_us = now_us + 2 * day_us; /* said, not read from an id */
    for (size_t i = 0; i < COUNT(msgs); i++)
        msgs[i].timed = true;
    process(e, msgs, COUNT(msgs));
    for (size_t i = 0; i < COUNT(msgs); i++) {
        const bool bad = i == 1 || i == 2;
        assert_int_equal(e->settled[i].state, bad ? SEMEL_ROW_DEAD : SEMEL_ROW_COMPLETED);
        assert_int_equal(e->settled[i].act, SEMEL_ACK);
    }
}

static void id_of_255_bytes_is_taken(void **state)
{
    struct engine *e = *state;
    static char id[256];

    memset(id, 'x', 255);
    process_one(e, msg(id, "ok"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, id), SEMEL_ROW_COMPLETED);
}

static void payload_beyond_the_routes_limit_is_kept_dead(void **state)
{
    struct engine *e = *state;

    e->policy.payload_max = 4;
    process_one(e, msg("a", "12345"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
    struct semel_row row = row_of(e, "a");
    assert_str(row.progress.error_text, "the payload has 5 bytes; the route allows 4");
    assert_str(row.payload, "12345");
    assert_int_equal(row.progress.attempts, 0);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 1);
    process_one(e, msg("b", "1234"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* B9: a batch of one more than are kept, and what comes when one of them was discarded. */
static void past_a_hundred_payloads_beyond_the_limit_the_source_pauses(void **state)
{
    struct engine *e = *state;
    enum { N = SEMEL_LARGE_MAX + 1 };
    static struct semel__msg msgs[N + 1];
    static char ids[N][8];

    e->policy.payload_max = 4;
    for (size_t i = 0; i < N; i++) {
        snprintf(ids[i], sizeof ids[i], "m%03zu", i);
        msgs[i] = msg(ids[i], "12345");
    }
    msgs[N] = msg("small", "1234");
    process(e, msgs, N + 1);
    for (size_t i = 0; i < SEMEL_LARGE_MAX; i++)
        assert_settled(e, i, SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
    assert_settled(e, SEMEL_LARGE_MAX, SEMEL_LATER, SEMEL_WHY_DEAD, SEMEL_ROW_ABSENT);
    assert_settled(e, N, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, ids[N - 1]), SEMEL_ROW_ABSENT);
    assert_str(row_of(e, ids[0]).payload, "12345");
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_PARKED_FULL], 1);
    e->policy.payload_max = 5; /* what the route allows now is not counted */
    process_one(e, msg("larger", "123456"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
    process_one(e, msgs[N - 1]);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

static void only_what_is_too_large_counts_toward_the_hundred(void **state)
{
    struct engine *e = *state;
    enum { N = SEMEL_LARGE_MAX + 2 };
    static struct semel__msg msgs[N];
    static char ids[N][8];

    e->policy.payload_max = 4;
    for (size_t i = 0; i < N; i++) {
        snprintf(ids[i], sizeof ids[i], "m%03zu", i);
        msgs[i] = msg(ids[i], i == 0 || i == N - 1 ? "12345" : "1234");
    }
    process(e, msgs, N);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, N - 1, SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
}

/* I4 B9: it is acknowledged, so somebody has to have it. */
static void what_is_too_large_is_kept_where_payloads_never_are(void **state)
{
    struct engine *e = *state;

    e->policy.payload_max = 4;
    e->policy.keep = SEMEL_KEEP_NEVER;
    process_one(e, msg("large", "12345"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
    assert_true(row_of(e, "large").kept);
    assert_str(row_of(e, "large").payload, "12345");
    e->policy.permanent_max = 1;
    process_one(e, msg("bad", "bad"));
    assert_false(row_of(e, "bad").kept);
}

/* I13 B9: what follows it by arrival stays with the source as well. */
static void what_stays_with_its_source_is_not_overtaken_in_its_batch(void **state)
{
    struct engine *e = *state;
    static struct semel__msg msgs[SEMEL_LARGE_MAX + 4];
    static char ids[SEMEL_LARGE_MAX][8];
    const size_t n = SEMEL_LARGE_MAX;

    e->policy.payload_max = 4;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    for (size_t i = 0; i < n; i++) {
        snprintf(ids[i], sizeof ids[i], "m%03zu", i);
        msgs[i] = msg(ids[i], "12345");
        msgs[i].order_key = semel__str(ids[i]);
    }
    msgs[n] = msg("k-1", "1");
    msgs[n + 1] = msg("k-2", "12345");
    msgs[n + 2] = msg("k-3", "3");
    msgs[n + 3] = msg("l-1", "1");
    for (size_t i = 0; i < 3; i++)
        msgs[n + i].order_key = SEMEL_STR("k");
    msgs[n + 3].order_key = SEMEL_STR("l");
    process(e, msgs, n);
    process(e, msgs + n, 4);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 1, SEMEL_LATER, SEMEL_WHY_DEAD, SEMEL_ROW_ABSENT);
    assert_settled(e, 2, SEMEL_LATER, SEMEL_WHY_BLOCKED, SEMEL_ROW_ABSENT);
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "k-3"), SEMEL_ROW_ABSENT);
}

static void what_is_too_large_is_not_called_unreadable(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "12345");

    e->policy.payload_max = 4;
    m.defect = SEMEL_DEFECT_FIELD;
    m.defect_text = SEMEL_STR("order key: the payload is not JSON");
    process_one(e, m);
    assert_str(row_of(e, "a").progress.error_text, "the payload has 5 bytes; the route allows 4");
}

/* More than a row can hold: 64 MiB and one byte. */
static void giant_stays_with_its_broker_and_hinders_nobody(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("giant", "ok"), msg("b", "ok")};
    const size_t n = (size_t)SEMEL_PAYLOAD_HARD_MAX + 1;
    char *bytes = calloc(1, n);

    assert_non_null(bytes);
    msgs[1].payload = (struct semel_str){bytes, n};
    process(e, msgs, 3);
    free(bytes);
    assert_settled(e, 1, SEMEL_LATER, SEMEL_WHY_DEAD, SEMEL_ROW_ABSENT);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "giant"), SEMEL_ROW_ABSENT);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 1);
}

static struct semel__msg intending(const char *id, const char *payload, const char *business)
{
    struct semel__msg m = msg(id, payload);
    m.business[0] = semel__str(business);
    m.n_business = 1;
    return m;
}

/* A6 P78: what waits for a business key takes room of the consumer, from the next one in its batch too. */
static void waiters_of_a_batch_count_for_the_consumer(void **state)
{
    struct engine *e = *state;
    struct semel__msg holders[] = {intending("a1", "fail", "a"), intending("b1", "fail", "b")};
    struct semel__msg waiters[] = {intending("a2", "ok", "a"), intending("b2", "ok", "b")};

    e->policy.parked_consumer_max = 1;
    process(e, holders, COUNT(holders));
    process(e, waiters, COUNT(waiters));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_WAITING);
    assert_settled(e, 1, SEMEL_LATER, SEMEL_WHY_BUSINESS, SEMEL_ROW_ABSENT);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_PARKED_FULL], 1);
    process_one(e, waiters[1]); /* and from one that comes later */
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_BUSINESS, SEMEL_ROW_ABSENT);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_PARKED_FULL], 2);
}

static void unfit_keys_are_kept_dead_and_unfit_extras_are_dropped(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "ok");

    m.business[0] = (struct semel_str){"\xff", 1};
    m.n_business = 1;
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
    assert_str(row_of(e, "a").progress.error_text, "business key is not UTF-8 text without NUL");

    m = msg("k", "ok");
    m.order_key = (struct semel_str){"\xff", 1};
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
    assert_str(row_of(e, "k").progress.error_text, "order key is not UTF-8 text without NUL");

    m = msg("b", "ok");
    m.type = m.traceparent = m.headers = m.position = (struct semel_str){"\xff", 1};
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    struct semel_row row = row_of(e, "b");
    assert_null(row.type.p);
    assert_null(row.traceparent.p);
    assert_null(row.position.p);
}

static void giant_is_not_overtaken_in_its_batch(void **state) /* B9 I13 */
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("giant", "ok"), msg("b", "ok"), msg("c", "ok")};
    const size_t n = (size_t)SEMEL_PAYLOAD_HARD_MAX + 1;
    char *bytes = calloc(1, n);

    assert_non_null(bytes);
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    for (size_t i = 0; i < 4; i++)
        msgs[i].order_key = i < 3 ? SEMEL_STR("k") : SEMEL_STR("l");
    msgs[1].payload = (struct semel_str){bytes, n};
    process(e, msgs, 4);
    free(bytes);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 2, SEMEL_LATER, SEMEL_WHY_BLOCKED, SEMEL_ROW_ABSENT);
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_ABSENT);
}

/* ---- rows that are there ------------------------------------------------------------------------------ */

static void damaged_row_is_later_with_an_alert_and_the_others_go_on(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("c", "ok")};

    process_one(e, msgs[1]);
    damage(e, "b");
    process(e, msgs, 3);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 1, SEMEL_LATER, SEMEL_WHY_DAMAGED, SEMEL_ROW_ABSENT);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DAMAGED], 1);
    assert_non_null(strstr(e->alert_text, " must be "));
    assert_int_equal(effects_of(e, "b"), 1);
    msgs[1].delivery = 2; /* nor behind a claim */
    process_one(e, msgs[1]);
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_DAMAGED, SEMEL_ROW_ABSENT);
    assert_int_equal(effects_of(e, "b"), 1);
}

static void payload_that_is_never_kept_stays_with_the_broker_until_it_is_done(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "fail@1");

    e->policy.keep = SEMEL_KEEP_NEVER;
    process_one(e, m);
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_false(row_of(e, "a").kept);
    process_one(e, m);
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_BACKOFF, SEMEL_ROW_FAILED);
    size_t n;
    e->now_us += 10 * SECOND_US;
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err)); /* the store has nothing to run */
    assert_int_equal(n, 0);
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_RETRIED, SEMEL_ROW_COMPLETED);
    assert_int_equal(row_of(e, "a").progress.attempts, 2);
    assert_int_equal(effects_of(e, "a"), 1);
}

/* I5 */
static void repeat_is_decided_by_the_row(void **state)
{
    struct engine *e = *state;
    const char *words[] = {"ok", "bad", "reject", "fail"};
    const enum semel_why whys[] = {SEMEL_WHY_DUPLICATE, SEMEL_WHY_DEAD, SEMEL_WHY_DUPLICATE, SEMEL_WHY_BACKOFF};
    const enum semel_row_status states[] = {SEMEL_ROW_COMPLETED, SEMEL_ROW_DEAD, SEMEL_ROW_REJECTED, SEMEL_ROW_FAILED};

    for (int delivery = 1; delivery <= 2; delivery++)
        for (size_t i = 0; i < COUNT(words); i++) {
            struct semel__msg m = msg(words[i], words[i]);
            process_one(e, m);
            m.delivery = delivery;
            process_one(e, m);
            assert_settled(e, 0, SEMEL_ACK, whys[i], states[i]);
            assert_int_equal(row_of(e, words[i]).progress.attempts, 1);
        }
    assert_int_equal(effects_of(e, NULL), 1);
}

static void kept_always_keeps_the_payload_of_what_is_done(void **state)
{
    struct engine *e = *state;

    e->policy.keep = SEMEL_KEEP_ALWAYS;
    process_one(e, msg("a", "ok"));
    assert_str(row_of(e, "a").payload, "ok");
    e->policy.keep = SEMEL_KEEP_UNFINISHED;
    process_one(e, msg("b", "fail"));
    assert_str(row_of(e, "b").payload, "fail");
    process_one(e, msg("c", "ok"));
    assert_null(row_of(e, "c").payload.p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(copies_of_one_id_are_merged_and_share_its_fate),
        ON_EACH(copies_go_back_together_when_the_world_fails),
        ON_EACH(copy_with_another_payload_is_a_conflict_and_kept),
        ON_EACH(same_id_with_another_payload_later_is_a_conflict_and_kept),
        ON_EACH(redelivered_conflict_is_kept_too),
        ON_EACH(same_id_in_two_sources_is_two_messages),
        ON_EACH(batch_runs_sorted_by_lock_key_and_in_arrival_order_within_a_key),
        ON_MEM(order_key_of_an_unordered_route_sorts_the_batch),
        ON_EACH(clean_batch_is_one_transaction_and_one_insert_a_message),
        ON_EACH(key_changes_with_those_in_its_order_only),
        ON_MEM(batch_beyond_the_bound_is_refused_and_an_empty_one_is_nothing),
        ON_MEM(largest_batch_is_taken),
        ON_EACH(duplicate_is_given_the_outcome_of_the_original),
        ON_EACH(bad_ids_are_kept_with_their_reason_and_acknowledged),
        ON_EACH(position_of_a_message_without_id_is_no_real_id),
        ON_EACH(message_without_id_and_position_is_kept_under_the_digest_of_its_payload),
        ON_EACH(messages_with_unusable_ids_are_kept_apart),
        ON_EACH(message_whose_source_cannot_be_used_is_kept_and_does_not_run),
        ON_EACH(message_that_must_tell_its_age_and_does_not_is_kept_dead),
        ON_EACH(id_of_255_bytes_is_taken),
        ON_EACH(payload_beyond_the_routes_limit_is_kept_dead),
        ON_EACH(past_a_hundred_payloads_beyond_the_limit_the_source_pauses),
        ON_EACH(only_what_is_too_large_counts_toward_the_hundred),
        ON_EACH(what_is_too_large_is_kept_where_payloads_never_are),
        ON_EACH(what_stays_with_its_source_is_not_overtaken_in_its_batch),
        ON_EACH(what_is_too_large_is_not_called_unreadable),
        ON_EACH(giant_stays_with_its_broker_and_hinders_nobody),
        ON_EACH(giant_is_not_overtaken_in_its_batch),
        ON_EACH(waiters_of_a_batch_count_for_the_consumer),
        ON_EACH(unfit_keys_are_kept_dead_and_unfit_extras_are_dropped),
        ON_EACH(damaged_row_is_later_with_an_alert_and_the_others_go_on),
        ON_EACH(payload_that_is_never_kept_stays_with_the_broker_until_it_is_done),
        ON_EACH(repeat_is_decided_by_the_row),
        ON_EACH(kept_always_keeps_the_payload_of_what_is_done),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
