/* SPDX-License-Identifier: MIT
 *
 * test_mark.c: positions that are kept with the effects. The source is a journal that is read from the stored
 * positions alone: it keeps nothing by itself, so that what a position has passed by is lost, and what it has not comes
 * again.
 */
#include "unit/engine.h"

#include "core/state.h"

#define PARTITIONS 3
#define RECORDS 64

struct record {
    int32_t partition;
    int64_t offset;
    char id[16], payload[16];
};

static struct journal {
    struct semel_broker broker;
    struct engine *e;
    struct record records[RECORDS];
    size_t n;
    int64_t next[PARTITIONS], epoch[PARTITIONS];
    int64_t back[PARTITIONS]; /* where it goes back to, after `lag` more polls */
    int lag, wait;
    struct semel_pair headers[RECORDS];
    size_t delivered, reopened;
    struct semel_rules rules;
    struct semel_pump pump;
    size_t reported; /* how often fenced was called */
} journal;

/* ---- the source --------------------------------------------------------------------------------------- */

/* What another process does that gets all partitions, or ours when it gets them back. */
static semel_status take_all(struct engine *e, struct semel_position *items)
{
    int64_t now_us;
    semel_status status = semel_store_begin(e->store, SEMEL_TX_OWN, &now_us, &e->err);

    for (int32_t i = 0; i < PARTITIONS; i++)
        items[i] = (struct semel_position){.source = SEMEL_STR("s"), .partition = i};
    if (status != SEMEL_OK)
        return status;
    status = semel_store_positions_acquire(e->store, e->policy.consumer, items, PARTITIONS, now_us, &e->err);
    if (status == SEMEL_OK)
        return semel_store_commit(e->store, &e->err);
    semel_store_rollback(e->store);
    return status;
}

static semel_status assign(struct engine *e)
{
    struct semel_position items[PARTITIONS];
    semel_status status = take_all(e, items);

    for (int i = 0; status == SEMEL_OK && i < PARTITIONS; i++) {
        journal.next[i] = items[i].offset != SEMEL_NONE ? items[i].offset : 0;
        journal.epoch[i] = items[i].epoch;
        journal.back[i] = SEMEL_NONE;
    }
    return status;
}

static semel_status journal_reopen(struct semel_broker *broker, struct semel_error *err)
{
    (void)broker;
    journal.reopened++;
    semel_status status = assign(journal.e);
    *err = journal.e->err;
    return status;
}

static void go_back(void)
{
    if (journal.wait-- > 0)
        return;
    for (int i = 0; i < PARTITIONS; i++) {
        if (journal.back[i] != SEMEL_NONE)
            journal.next[i] = journal.back[i];
        journal.back[i] = SEMEL_NONE;
    }
}

static semel_status journal_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                                 struct semel_delivery **ret, size_t *ret_n, struct semel_error *err)
{
    struct semel_delivery *list = semel__arena_alloc(arena, max, sizeof *list);
    size_t n = 0;

    (void)broker;
    (void)wait_ms;
    if (list == NULL)
        return semel__fail_memory(err);
    note(journal.e, "poll", (struct semel_str){0});
    go_back();
    for (size_t i = 0; i < journal.n && n < max; i++) {
        const struct record *r = &journal.records[i];
        if (r->offset < journal.next[r->partition])
            continue;
        list[n++] = (struct semel_delivery){.tag = i + 1,
                                            .source = SEMEL_STR("s"),
                                            .payload = semel__str(r->payload),
                                            .headers = &journal.headers[i],
                                            .n_headers = 1,
                                            .lane = (uint64_t)r->partition,
                                            .partition = r->partition,
                                            .offset = r->offset,
                                            .epoch = journal.epoch[r->partition]};
        journal.next[r->partition] = r->offset + 1;
    }
    journal.delivered += n;
    *ret = list;
    *ret_n = n;
    return SEMEL_OK;
}

static semel_status journal_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                   struct semel_error *err)
{
    size_t n_acks = 0;

    (void)broker;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        const struct record *r = &journal.records[replies[i].tag - 1];
        int64_t *back = &journal.back[r->partition];
        n_acks += semel__reply_acks(&replies[i]);
        if (!semel__reply_acks(&replies[i]) && (*back == SEMEL_NONE || *back > r->offset))
            *back = r->offset;
    }
    if (n_acks > 0)
        note(journal.e, "ack", (struct semel_str){0});
    if (n_acks == n)
        return SEMEL_OK;
    journal.wait = journal.lag;
    note(journal.e, "later", (struct semel_str){0});
    return SEMEL_OK;
}

static const struct semel_broker_ops journal_ops = {
    .name = "journal",
    .capabilities = SEMEL_BROKER_SOURCE | SEMEL_BROKER_ORDERED,
    .reopen = journal_reopen,
    .poll = journal_poll,
    .answer = journal_answer,
};

/* ---- the world ---------------------------------------------------------------------------------------- */

static void start(struct engine *e)
{
    semel__pump_init(&journal.pump, &e->inbox, &journal.broker, &journal.rules);
    journal.pump.doubt = false;
}

/* The process dies and another begins: what it knew is gone, and the positions say where to go on. */
static void crash(struct engine *e)
{
    semel__pump_done(&journal.pump);
    semel__inbox_done(&e->inbox);
    if (e->dead)
        assert_ok(e, semel_store_reopen(e->store, &e->err));
    semel_store_rollback(e->store);
    semel__inbox_init(&e->inbox, e->store, &e->policy, &e->handler, &e->rng, SEMEL_STR("worker-2"));
    assert_ok(e, assign(e));
    start(e);
}

static int up(void **state, int (*engine_up)(void **state))
{
    int rc = engine_up(state);
    struct engine *e = *state;

    journal = (struct journal){.broker = {.ops = &journal_ops}, .e = e};
    start(e);
    assert_ok(e, assign(e));
    forget(e);
    return rc;
}

static int on_mem(void **state)
{
    return up(state, engine_on_mem);
}

static int on_file(void **state)
{
    return up(state, engine_on_file);
}

static int on_postgres(void **state)
{
    return up(state, engine_on_postgres);
}

static int down(void **state)
{
    semel__pump_done(&journal.pump);
    return engine_down(state);
}

static void push(int32_t partition, int64_t offset, const char *id, const char *payload)
{
    struct record *r = &journal.records[journal.n];

    assert_true(journal.n < RECORDS);
    *r = (struct record){.partition = partition, .offset = offset};
    snprintf(r->id, sizeof r->id, "%s", id);
    snprintf(r->payload, sizeof r->payload, "%s", payload);
    journal.headers[journal.n++] = (struct semel_pair){SEMEL_STR("id"), semel__str(r->id)};
}

static semel_status step(struct engine *e)
{
    size_t n;
    return semel__pump_step(&journal.pump, e->now_us, &n, &e->err);
}

static int64_t position(struct engine *e, int32_t partition)
{
    struct semel_position *items = NULL;
    size_t n = 0;

    semel__arena_reset(&e->arena);
    assert_ok(e, semel_store_positions_list(e->store, e->policy.consumer, 100, &e->arena, &items, &n, &e->err));
    for (size_t i = 0; i < n; i++)
        if (items[i].partition == partition)
            return items[i].offset;
    return SEMEL_NONE;
}

static void count_fenced(void *ctx, struct semel_str source, int32_t partition, int64_t epoch)
{
    struct journal *j = ctx;
    assert_str(source, "s");
    assert_int_equal(epoch, j->epoch[partition]);
    j->reported++;
}

/* ---- with the effects --------------------------------------------------------------------------------- */

/* I23 */
static void position_moves_in_the_transaction_of_the_effects(void **state)
{
    struct engine *e = *state;

    push(0, 5, "a", "ok"); /* offsets have gaps */
    push(1, 0, "b", "ok");
    push(0, 20, "c", "ok");
    assert_ok(e, step(e));
    assert_string_equal(e->trace, "poll begin run:a run:b run:c commit ack ");
    assert_int_equal(position(e, 0), 21);
    assert_int_equal(position(e, 1), 1);
    assert_int_equal(position(e, 2), SEMEL_NONE);
}

/* I23: neither without the other. */
static void position_and_effects_are_rolled_back_together(void **state)
{
    struct engine *e = *state;

    push(0, 0, "a", "ok");
    assert_ok(e, step(e));
    push(0, 1, "b", "ok");
    forget(e);
    fail_at(e, "commit", 1, FAULT_WORLD);
    assert_int_equal(step(e), SEMEL_RETRY);
    assert_string_equal(e->trace, "poll begin run:b commit later ");
    assert_int_equal(position(e, 0), 1);
    assert_int_equal(effects_of(e, "b"), 0);
    forget(e);
    assert_ok(e, step(e));
    assert_int_equal(position(e, 0), 2);
    assert_int_equal(effects_of(e, "b"), 1);
}

static void unknown_commit_moves_once(void **state)
{
    struct engine *e = *state;

    for (int i = 0; i < 2; i++) {
        char id[] = {'a', (char)('0' + i), '\0'};
        push(0, i, id, "ok");
        fail_at(e, "commit", 1, i == 0 ? FAULT_UNKNOWN_DONE : FAULT_UNKNOWN_LOST);
        assert_ok(e, step(e));
        assert_int_equal(effects_of(e, id), 1);
        assert_int_equal(position(e, 0), i + 1);
    }
}

/* What comes from elsewhere has no position here. */
static void delivery_without_an_epoch_moves_nothing(void **state)
{
    struct engine *e = *state;

    memset(journal.epoch, 0, sizeof journal.epoch);
    push(0, 7, "a", "ok");
    assert_ok(e, step(e));
    assert_int_equal(effects_of(e, "a"), 1);
    assert_int_equal(position(e, 0), SEMEL_NONE);
}

/* ---- behind the effects ------------------------------------------------------------------------------- */

static void cut_batch_moves_when_all_of_it_is_recorded(void **state)
{
    struct engine *e = *state;

    push(0, 0, "a", "ok");
    push(0, 1, "b", "bad"); /* dead-lettered, which is a record too */
    push(0, 2, "c", "ok");
    assert_ok(e, step(e));
    assert_true(e->seen.begins > 2);
    assert_int_equal(effects_of(e, NULL), 2);
    assert_int_equal(state_of(e, "b") == SEMEL_ROW_ABSENT, false);
    assert_int_equal(position(e, 0), 3);
}

static void claimed_message_moves_the_position_when_it_has_ended(void **state)
{
    struct engine *e = *state;

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    push(0, 0, "a", "ok");
    push(0, 1, "b", "ok");
    assert_ok(e, step(e));
    assert_int_equal(effects_of(e, "b"), 1);
    assert_int_equal(position(e, 0), 2);
}

/* What was given back is not passed by, also not by a batch that was on its way already. */
static void position_stays_before_what_was_given_back(void **state)
{
    struct engine *e = *state;

    e->policy.keep = SEMEL_KEEP_NEVER; /* what fails stays with the source */
    e->policy.permanent_max = 9;
    journal.lag = 1;
    journal.pump.batch_max = 4;
    push(0, 10, "a", "ok");
    push(0, 11, "b", "bad@1");
    push(1, 3, "other", "ok");
    push(0, 12, "c", "ok");
    push(0, 13, "d", "ok");
    push(1, 4, "more", "ok");
    assert_ok(e, step(e));
    assert_int_equal(position(e, 0), 11);
    assert_int_equal(position(e, 1), 4);
    assert_ok(e, step(e)); /* d and more, before the source has gone back */
    assert_int_equal(effects_of(e, "d"), 1);
    assert_int_equal(position(e, 0), 11);
    assert_int_equal(position(e, 1), 5);
    e->now_us += 3600 * SECOND_US;
    assert_ok(e, step(e));
    assert_int_equal(effects_of(e, NULL), 6);
    assert_int_equal(position(e, 0), 14);
}

static void given_back_message_that_is_gone_from_its_source_is_passed_by(void **state)
{
    struct engine *e = *state;

    e->policy.keep = SEMEL_KEEP_NEVER;
    e->policy.permanent_max = 9;
    push(0, 10, "a", "ok");
    push(0, 11, "b", "bad");
    push(0, 12, "c", "ok");
    assert_ok(e, step(e));
    assert_int_equal(position(e, 0), 11);
    journal.records[1].partition = 2; /* compacted away; the source goes back to 11, and finds 12 */
    journal.back[0] = 11;
    assert_ok(e, step(e));
    assert_int_equal(position(e, 0), 11); /* nobody can tell it from one that is still to come */
    assert_ok(e, assign(e));
    assert_ok(e, step(e));
    assert_int_equal(position(e, 0), 13);
}

/* ---- fenced ------------------------------------------------------------------------------------------- */

/* P27: the partition went to somebody else while the worker was away: what it does now does not happen. */
static void zombie_does_nothing_and_is_told(void **state)
{
    struct engine *e = *state;
    struct semel_position theirs[PARTITIONS];

    journal.pump.position_updates.fenced = count_fenced;
    journal.pump.position_updates.fenced_ctx = &journal;
    push(0, 0, "a", "ok");
    push(1, 0, "b", "ok");
    push(1, 1, "c", "bad"); /* the whole is cut, and its pieces are fenced as well */
    assert_ok(e, take_all(e, theirs));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(step(e), SEMEL_FENCED);
        assert_int_equal(journal.reported, 2 * (i + 1));
        assert_int_equal(effects_of(e, NULL), 0);
        assert_int_equal(state_of(e, "a"), SEMEL_ROW_ABSENT);
        assert_int_equal(position(e, 0), SEMEL_NONE);
        assert_int_equal(journal.reopened, 0);
        journal.n = 2; /* without the one that is to blame: one transaction */
    }
}

/* An operator set it back, and nobody else has the partition: the source is opened anew, and begins there. */
static void rewound_position_is_read_from(void **state)
{
    struct engine *e = *state;
    struct semel_position back = {.source = SEMEL_STR("s"), .offset = 1};
    int64_t now_us;

    for (int i = 0; i < 4; i++) {
        char id[] = {'a', (char)('0' + i), '\0'};
        push(0, i, id, "ok");
    }
    assert_ok(e, step(e));
    assert_int_equal(position(e, 0), 4);
    assert_ok(e, semel_store_begin(e->store, SEMEL_TX_OWN, &now_us, &e->err));
    assert_ok(e, semel_store_positions_set(e->store, SEMEL_STR("c"), &back, 1, now_us, &e->err));
    assert_ok(e, semel_store_commit(e->store, &e->err));
    push(0, 4, "b", "ok");
    assert_int_equal(step(e), SEMEL_FENCED);
    assert_int_equal(position(e, 0), 1);
    journal.delivered = 0;
    assert_ok(e, step(e));
    assert_int_equal(journal.reopened, 1);
    assert_int_equal(journal.delivered, 4); /* the three that were rewound over are duplicates */
    assert_int_equal(effects_of(e, NULL), 5);
    assert_int_equal(position(e, 0), 5);
}

/* What was read before a rewind must not undo it, although the partition is ours again. */
static void delivery_of_an_older_epoch_moves_nothing(void **state)
{
    struct engine *e = *state;

    push(0, 8, "a", "ok");
    int64_t old = journal.epoch[0];
    assert_ok(e, assign(e));
    assert_ok(e, step(e));
    assert_int_equal(position(e, 0), 9);
    push(0, 50, "b", "ok");
    journal.epoch[0] = old;
    assert_int_equal(step(e), SEMEL_FENCED);
    assert_int_equal(effects_of(e, "b"), 0);
    assert_int_equal(position(e, 0), 9);
}

/* ---- never ahead -------------------------------------------------------------------------------------- */

static void assert_never_ahead(struct engine *e)
{
    if (e->dead)
        assert_ok(e, semel_store_reopen(e->store, &e->err));
    for (int32_t p = 0; p < PARTITIONS; p++) {
        int64_t at = position(e, p);
        for (size_t i = 0; at != SEMEL_NONE && i < journal.n; i++)
            if (journal.records[i].partition == p && journal.records[i].offset < at)
                assert_int_not_equal(state_of(e, journal.records[i].id), SEMEL_ROW_ABSENT);
    }
}

static void lack_of_memory_never_puts_a_position_ahead(void **state)
{
    struct engine *e = *state;
    struct fail_nth fail;
    bool reached = true;

    for (unsigned at = 1; reached; at++) {
        semel__pump_done(&journal.pump); /* so that it has to allocate */
        start(e);
        assert_ok(e, assign(e));
        for (int i = 0; journal.n < 20 && i < 2; i++) {
            char id[8];
            snprintf(id, sizeof id, "m%zu", journal.n);
            push(i, (int64_t)journal.n, id, "ok");
        }
        fail_nth_begin(&fail, at);
        (void)step(e);
        reached = fail_nth_end(&fail);
        assert_never_ahead(e);
        e->now_us += 100 * SECOND_US;
    }
    crash(e);
    assert_ok(e, step(e));
    assert_int_equal(effects_of(e, NULL), (int64_t)journal.n);
}

/* Whichever allocation fails: the source is reopened if need be, and positions move again. */
static void position_moves_again_after_a_lack_of_memory(void **state)
{
    struct engine *e = *state;
    struct fail_nth fail;
    bool reached = true;

    for (unsigned at = 1; reached; at++) {
        char id[16];
        snprintf(id, sizeof id, "m%u", at);
        semel__pump_done(&journal.pump);
        start(e);
        assert_ok(e, assign(e));
        journal.n = 0;
        push(0, at, id, "ok");
        fail_nth_begin(&fail, at);
        (void)step(e);
        reached = fail_nth_end(&fail);
        for (int i = 0; i < 10 && position(e, 0) != at + 1; i++) {
            e->now_us += 100 * SECOND_US;
            (void)step(e);
        }
        assert_int_equal(position(e, 0), at + 1);
        assert_int_equal(effects_of(e, id), 1);
    }
}

/* One fate: faults, zombies, rewinds and crashes; what is not finished is finished at the end. */
static void random_fate(struct engine *e, uint64_t seed)
{
    static const char *const words[] = {"ok", "ok", "ok", "ok", "fail@1", "fail@2", "bad@1", "reject"};
    static const char *const ops[] = {"begin", "commit", "admit", "settle"};
    static const enum fault faults[] = {FAULT_CONTENTION, FAULT_WORLD, FAULT_CLOSED, FAULT_UNKNOWN_DONE,
                                        FAULT_UNKNOWN_LOST};
    struct semel_random rng;
    struct semel_position items[PARTITIONS];
    int64_t offset = 0;

    semel__random_seed(&rng, seed);
    e->policy.keep = semel__random_below(&rng, 2) == 0 ? SEMEL_KEEP_NEVER : SEMEL_KEEP_UNFINISHED;
    e->policy.permanent_max = e->policy.retry_max = 99;
    journal.pump.batch_max = 5;
    for (int i = 0; i < 60; i++) {
        char id[16];
        size_t op = semel__random_below(&rng, 4);
        snprintf(id, sizeof id, "%d", i);
        offset += 1 + (int64_t)semel__random_below(&rng, 3);
        push((int32_t)semel__random_below(&rng, PARTITIONS), offset, id, words[semel__random_below(&rng, 8)]);
        journal.lag = (int)semel__random_below(&rng, 3);
        forget(e);
        if (semel__random_below(&rng, 3) == 0) /* only a commit can be unknown */
            fail_at(e, ops[op], 1 + (unsigned)semel__random_below(&rng, 3),
                    faults[semel__random_below(&rng, op == 1 ? 5 : 3)]);
        (void)step(e);
        forget(e);
        assert_never_ahead(e);
        if (semel__random_below(&rng, 10) == 0)
            assert_ok(e, take_all(e, items));
        if (semel__random_below(&rng, 10) == 0)
            crash(e);
        e->now_us += 100 * SECOND_US;
    }
    forget(e);
    crash(e);
    for (int i = 0; i < 40; i++) {
        size_t n;
        (void)step(e);
        (void)semel__pump_tick(&journal.pump, e->now_us, &n, &e->err);
        e->now_us += 3600 * SECOND_US;
    }
    for (size_t i = 0; i < journal.n; i++)
        if (effects_of(e, journal.records[i].id) != (strcmp(journal.records[i].payload, "reject") != 0))
            fail_msg("seed %llu: message %s (%s) of partition %d, offset %lld: %s, %lld effects, position %lld",
                     (unsigned long long)seed, journal.records[i].id, journal.records[i].payload,
                     journal.records[i].partition, (long long)journal.records[i].offset,
                     semel__row_status_name(state_of(e, journal.records[i].id)),
                     (long long)effects_of(e, journal.records[i].id),
                     (long long)position(e, journal.records[i].partition));
}

/* I23, P27: a hundred fates in memory, a few in a database. */
static void nothing_is_lost_and_nothing_is_twice(void **state)
{
    struct engine *e = *state;
    const int fates = e->db != NULL ? 100 : 3;
    int (*again)(void **state) = e->db != NULL ? on_mem : is_postgres(e) ? on_postgres : on_file;

    for (int seed = 1; seed <= fates; seed++) {
        random_fate(*state, (uint64_t)seed);
        if (seed < fates) {
            down(state);
            assert_int_equal(again(state), 0);
        }
    }
}

/* clang-format off */
#define ON_JOURNALS(test) ON(test, "mem", on_mem, down), ON(test, "file", on_file, down), \
                          ON(test, "postgres", on_postgres, down)
/* clang-format on */

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_JOURNALS(position_moves_in_the_transaction_of_the_effects),
        ON_JOURNALS(position_and_effects_are_rolled_back_together),
        ON_JOURNALS(unknown_commit_moves_once),
        ON_JOURNALS(delivery_without_an_epoch_moves_nothing),
        ON_JOURNALS(cut_batch_moves_when_all_of_it_is_recorded),
        ON_JOURNALS(claimed_message_moves_the_position_when_it_has_ended),
        ON_JOURNALS(position_stays_before_what_was_given_back),
        ON_JOURNALS(given_back_message_that_is_gone_from_its_source_is_passed_by),
        ON_JOURNALS(zombie_does_nothing_and_is_told),
        ON_JOURNALS(rewound_position_is_read_from),
        ON_JOURNALS(delivery_of_an_older_epoch_moves_nothing),
        ON_JOURNALS(lack_of_memory_never_puts_a_position_ahead),
        ON_JOURNALS(position_moves_again_after_a_lack_of_memory),
        ON_JOURNALS(nothing_is_lost_and_nothing_is_twice),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
