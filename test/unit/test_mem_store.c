/* SPDX-License-Identifier: MIT
 *
 * test_mem_store.c: what is special to the in-memory store: its faults, its effects, and no memory at any moment.
 * The contract of every store is in test/conform.
 */
#include "base/error.h"
#include "support/mem_store.h"
#include "unit.h"

static const struct semel_store_ops *const linked[] = {&semel__store_mem, NULL};

struct fixture {
    struct semel_mem_db *db;
    struct semel_store *a, *b;
    struct semel_arena arena;
    struct semel_error err;
};

static int setup(void **state)
{
    static struct fixture f;

    f = (struct fixture){0};
    assert_int_equal(semel__mem_db_new(&f.db, NULL), SEMEL_OK);
    assert_int_equal(semel__store_mem_open(&f.a, f.db, NULL, &f.err), SEMEL_OK);
    assert_int_equal(semel__store_mem_open(&f.b, f.db, NULL, &f.err), SEMEL_OK);
    semel__arena_init(&f.arena, 1 << 20);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    semel_store_close(f->a);
    semel_store_close(f->b);
    semel__mem_db_free(f->db);
    semel__arena_done(&f->arena);
    return 0;
}

/* ---- short ways --------------------------------------------------------------------------------------- */

static semel_status begin(struct fixture *f, struct semel_store *store)
{
    int64_t now_us;
    return semel_store_begin(store, SEMEL_TX_OWN, &now_us, &f->err);
}

static struct semel_admit item_of(const char *id)
{
    return (struct semel_admit){.row = {.source = SEMEL_STR("s"),
                                        .id = semel__str(id),
                                        .version = SEMEL_NONE,
                                        .message_time_us = SEMEL_NONE,
                                        .received_us = 1,
                                        .updated_us = 1,
                                        .progress = {.state = SEMEL_ROW_COMPLETED,
                                                     .processed_us = 1,
                                                     .due_us = SEMEL_NONE,
                                                     .lease_until_us = SEMEL_NONE,
                                                     .lease_token = SEMEL_NONE}}};
}

static semel_status admit(struct fixture *f, struct semel_store *store, const char *id)
{
    struct semel_admit item = item_of(id);
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"), .now_us = 1, .items = &item, .n_items = 1};
    return semel_store_admit(store, &batch, &f->arena, &f->err);
}

static size_t rows(const struct fixture *f)
{
    return semel__mem_rows(f->db, NULL, NULL);
}

/* Answers `fault` to the operation `op`, and counts all of them. */
struct plan {
    const char *op;
    enum semel_mem_fault fault;
    size_t calls;
    struct semel_store *break_this;
};

static enum semel_mem_fault plan_hook(void *ctx, const char *op)
{
    struct plan *plan = ctx;

    plan->calls++;
    if (plan->op == NULL || strcmp(op, plan->op) != 0)
        return SEMEL_MEM_GO;
    if (plan->break_this != NULL)
        semel__mem_break(plan->break_this);
    return plan->fault;
}

/* ---- handles ------------------------------------------------------------------------------------------ */

static void url_opens_a_database_of_its_own(void **state)
{
    struct fixture *f = *state;
    struct semel_store *one = NULL, *two = NULL;

    assert_int_equal(semel_store_open(&one, linked, "mem:", NULL, &f->err), SEMEL_OK);
    assert_int_equal(semel_store_open(&two, linked, "mem:", NULL, &f->err), SEMEL_OK);
    assert_int_equal(begin(f, one), SEMEL_OK);
    assert_int_equal(admit(f, one, "m"), SEMEL_OK);
    assert_int_equal(semel_store_commit(one, &f->err), SEMEL_OK);
    assert_int_equal(semel__mem_rows(semel__mem_db_of(one), NULL, NULL), 1);
    assert_int_equal(semel__mem_rows(semel__mem_db_of(two), NULL, NULL), 0);
    semel_store_close(one);
    semel_store_close(two);
    assert_int_equal(semel_store_open(&one, linked, "mem:somewhere", NULL, &f->err), SEMEL_INVALID);
}

static void only_one_handle_writes_at_a_time(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(begin(f, f->a), SEMEL_OK);
    assert_int_equal(begin(f, f->b), SEMEL_RETRY);
    assert_int_equal(f->err.cls, SEMEL_CLASS_TRANSIENT);
    assert_int_equal(admit(f, f->a, "m"), SEMEL_OK);
    assert_int_equal(semel_store_commit(f->a, &f->err), SEMEL_OK);
    assert_int_equal(begin(f, f->b), SEMEL_OK);
    semel_store_rollback(f->b);
}

static void closing_a_handle_rolls_back_and_lets_others_write(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(begin(f, f->a), SEMEL_OK);
    assert_int_equal(admit(f, f->a, "m"), SEMEL_OK);
    semel_store_close(f->a);
    f->a = NULL;
    assert_int_equal(rows(f), 0);
    assert_int_equal(begin(f, f->b), SEMEL_OK);
    semel_store_rollback(f->b);
}

/* ---- faults ------------------------------------------------------------------------------------------- */

static void asked_for_retry_does_nothing(void **state)
{
    struct fixture *f = *state;
    struct plan plan = {.op = "admit", .fault = SEMEL_MEM_RETRY};

    semel__mem_set_hook(f->a, plan_hook, &plan);
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    assert_int_equal(admit(f, f->a, "m"), SEMEL_RETRY);
    assert_int_equal(f->err.cls, SEMEL_CLASS_ENVIRONMENT);
    assert_int_equal(rows(f), 0);
    semel_store_rollback(f->a);
    assert_int_equal(plan.calls, 3);
}

static void commit_that_is_to_be_retried_is_rolled_back(void **state)
{
    struct fixture *f = *state;
    struct plan plan = {.op = "commit", .fault = SEMEL_MEM_RETRY};

    semel__mem_set_hook(f->a, plan_hook, &plan);
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    assert_int_equal(admit(f, f->a, "m"), SEMEL_OK);
    assert_int_equal(semel_store_commit(f->a, &f->err), SEMEL_RETRY);
    assert_int_equal(rows(f), 0);
    plan.op = NULL;
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    semel_store_rollback(f->a);
}

static void lost_connection_rolls_back_and_stays_closed_until_reopen(void **state)
{
    struct fixture *f = *state;
    struct plan plan = {.op = "settle", .fault = SEMEL_MEM_CLOSE};
    struct semel_settle_batch batch = {.consumer = SEMEL_STR("c"), .now_us = 1};

    semel__mem_set_hook(f->a, plan_hook, &plan);
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    assert_int_equal(admit(f, f->a, "m"), SEMEL_OK);
    assert_int_equal(semel_store_settle(f->a, &batch, &f->err), SEMEL_CLOSED);
    assert_int_equal(rows(f), 0);
    assert_int_equal(begin(f, f->b), SEMEL_OK); /* nothing is locked any more */
    semel_store_rollback(f->b);
    assert_int_equal(admit(f, f->a, "m"), SEMEL_CLOSED);
    assert_int_equal(semel_store_commit(f->a, &f->err), SEMEL_CLOSED);
    assert_int_equal(begin(f, f->a), SEMEL_CLOSED);
    assert_int_equal(semel_store_reopen(f->a, &f->err), SEMEL_OK);
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    semel_store_rollback(f->a);
}

static void reopening_can_fail_and_be_tried_again(void **state)
{
    struct fixture *f = *state;
    struct plan plan = {.op = "reopen", .fault = SEMEL_MEM_RETRY};

    semel__mem_set_hook(f->a, plan_hook, &plan);
    assert_int_equal(semel_store_reopen(f->a, &f->err), SEMEL_RETRY);
    assert_int_equal(begin(f, f->a), SEMEL_CLOSED);
    plan.op = NULL;
    assert_int_equal(semel_store_reopen(f->a, &f->err), SEMEL_OK);
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    semel_store_rollback(f->a);
}

/* P15 */
static void unknown_commit_is_applied_or_lost_and_the_answer_is_the_same(void **state)
{
    struct fixture *f = *state;
    struct plan plan = {.op = "commit"};

    semel__mem_set_hook(f->a, plan_hook, &plan);
    for (size_t done = 0; done < 2; done++) {
        plan.fault = done == 1 ? SEMEL_MEM_UNKNOWN_DONE : SEMEL_MEM_UNKNOWN_LOST;
        assert_int_equal(begin(f, f->a), SEMEL_OK);
        assert_int_equal(admit(f, f->a, "m"), SEMEL_OK);
        assert_int_equal(semel_store_commit(f->a, &f->err), SEMEL_UNKNOWN);
        assert_int_equal(rows(f), done);
        assert_int_equal(begin(f, f->a), SEMEL_CLOSED);
        assert_int_equal(semel_store_reopen(f->a, &f->err), SEMEL_OK);
    }
}

/* P64 */
static void broken_transaction_is_rolled_back_from_outside(void **state)
{
    struct fixture *f = *state;

    semel__mem_break(f->a); /* not in a transaction: nothing happens */
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    assert_int_equal(admit(f, f->a, "m"), SEMEL_OK);
    semel__mem_break(f->a);
    assert_int_equal(rows(f), 0);
    assert_int_equal(begin(f, f->b), SEMEL_OK);
    assert_int_equal(semel_store_commit(f->a, &f->err), SEMEL_CLOSED);
    assert_int_equal(admit(f, f->b, "m"), SEMEL_OK);
    assert_int_equal(semel_store_commit(f->b, &f->err), SEMEL_OK);
    assert_int_equal(rows(f), 1);
}

static void handle_broken_while_its_hook_runs_answers_closed(void **state)
{
    struct fixture *f = *state;
    struct plan plan = {.op = "commit", .break_this = f->a};

    semel__mem_set_hook(f->a, plan_hook, &plan);
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    assert_int_equal(admit(f, f->a, "m"), SEMEL_OK);
    assert_int_equal(semel_store_commit(f->a, &f->err), SEMEL_CLOSED);
    assert_int_equal(rows(f), 0);
}

/* ---- effects ------------------------------------------------------------------------------------------ */

/* I2 */
static void effects_live_and_die_with_their_transaction(void **state)
{
    struct fixture *f = *state;
    const struct semel_mem_effect *effects = NULL;

    assert_int_equal(semel__mem_effect_add(f->a, SEMEL_STR("k"), SEMEL_STR("v"), &f->err), SEMEL_INVALID);
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    assert_int_equal(semel__mem_effect_add(f->a, SEMEL_STR("k"), SEMEL_STR("lost"), &f->err), SEMEL_OK);
    semel_store_rollback(f->a);
    assert_int_equal(semel__mem_effects(f->db, NULL), 0);
    assert_int_equal(begin(f, f->a), SEMEL_OK);
    assert_int_equal(semel__mem_effect_add(f->a, SEMEL_STR("k"), SEMEL_STR("v\0w"), &f->err), SEMEL_OK);
    assert_int_equal(semel_store_savepoint(f->a, &f->err), SEMEL_OK);
    assert_int_equal(semel__mem_effect_add(f->a, SEMEL_STR("k"), SEMEL_STR("undone"), &f->err), SEMEL_OK);
    assert_int_equal(semel_store_rollback_to(f->a, &f->err), SEMEL_OK);
    assert_int_equal(semel_store_commit(f->a, &f->err), SEMEL_OK);
    assert_int_equal(semel__mem_effects(f->db, &effects), 1);
    assert_int_equal(effects[0].value.n, 3);
    assert_memory_equal(effects[0].value.p, "v\0w", 3);
}

/* ---- many rows, no memory ----------------------------------------------------------------------------- */

static void many_rows_are_found_again(void **state)
{
    struct fixture *f = *state;
    struct semel_admit *items = semel__calloc(2000, sizeof *items);
    char(*ids)[16] = semel__calloc(2000, sizeof *ids);
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"), .now_us = 1, .items = items, .n_items = 2000};

    for (size_t i = 0; i < 2000; i++) {
        snprintf(ids[i], sizeof ids[i], "m%06zu", i);
        items[i] = item_of(ids[i]);
        items[i].place = 1999 - i;
    }
    for (size_t round = 0; round < 3; round++) { /* the first is rolled back */
        assert_int_equal(begin(f, f->a), SEMEL_OK);
        assert_int_equal(semel_store_admit(f->a, &batch, &f->arena, &f->err), SEMEL_OK);
        for (size_t i = 0; i < 2000; i++)
            assert_int_equal(items[i].inserted, round < 2);
        if (round == 0)
            semel_store_rollback(f->a);
        else
            assert_int_equal(semel_store_commit(f->a, &f->err), SEMEL_OK);
        assert_int_equal(rows(f), round == 0 ? 0 : 2000);
    }
    semel__free(items);
    semel__free(ids);
}

/* One of everything that the inbox has; the first status that is not OK. */
static semel_status admit_and_settle(struct semel_store *store, struct semel_arena *arena, struct semel_error *err)
{
    struct semel_admit item = item_of("m");
    struct semel_business business = {.key = SEMEL_STR("b"),
                                      .source = SEMEL_STR("s"),
                                      .id = SEMEL_STR("m"),
                                      .expires_us = SEMEL_NONE};
    struct semel_key key = {.key = SEMEL_STR("k")};
    struct semel_admit_batch in = {.consumer = SEMEL_STR("c"),
                                   .now_us = 1,
                                   .keys = &key,
                                   .n_keys = 1,
                                   .business = &business,
                                   .n_business = 1,
                                   .items = &item,
                                   .n_items = 1};
    struct semel_change change = {.source = SEMEL_STR("s"),
                                  .id = SEMEL_STR("m"),
                                  .from = SEMEL_ROW_COMPLETED,
                                  .fresh = true,
                                  .token = SEMEL_NONE,
                                  .progress = item.row.progress,
                                  .log_attempt = true,
                                  .release_business = true};
    struct semel_key_change key_change = {.key = SEMEL_STR("k"), .last_version = 3, .wake = true};
    struct semel__msg msg;
    const struct semel__msg *conflict = &msg;
    struct semel_settle_batch out = {.consumer = SEMEL_STR("c"),
                                     .now_us = 1,
                                     .changes = &change,
                                     .n_changes = 1,
                                     .keys = &key_change,
                                     .n_keys = 1,
                                     .conflicts = &conflict,
                                     .n_conflicts = 1};
    semel_status status = semel_store_admit(store, &in, arena, err);

    semel__msg_init(&msg);
    msg.source = SEMEL_STR("s");
    msg.id = SEMEL_STR("m");
    return status == SEMEL_OK ? semel_store_settle(store, &out, err) : status;
}

/* One of everything else. */
static semel_status write_and_look(struct semel_store *store, struct semel_arena *arena, struct semel_error *err)
{
    const struct semel__event event = {.aggregatetype = SEMEL_STR("o"),
                                       .aggregateid = SEMEL_STR("1"),
                                       .type = SEMEL_STR("t")};
    const struct semel_audit line = {.who = SEMEL_STR("me")};
    const struct semel_scan scan = {.kind = SEMEL_SCAN_ALL, .consumer = SEMEL_STR("c"), .max = 10};
    struct semel_row *found;
    struct semel_str *sources;
    size_t n, damaged;
    char id[37];
    semel_status status = semel_store_watermark(store, SEMEL_STR("c"), SEMEL_STR("s"), 9, err);

    if (status == SEMEL_OK)
        status = semel_store_outbox_put(store, &event, 1, id, err);
    if (status == SEMEL_OK)
        status = semel_store_audit(store, &line, 1, 1, err);
    if (status == SEMEL_OK)
        status = semel__mem_effect_add(store, SEMEL_STR("k"), SEMEL_STR("v"), err);
    if (status == SEMEL_OK)
        status = semel_store_scan(store, &scan, arena, &found, &n, &damaged, err);
    if (status == SEMEL_OK)
        status = semel_store_sources(store, SEMEL_STR("c"), arena, &sources, &n, err);
    if (status == SEMEL_OK)
        status = semel_store_purge(store, SEMEL_STR("c"), SEMEL_STR("s"), 5, 9, 90, &n, err);
    return status;
}

static void failed_allocation_is_retry_and_leaves_nothing_behind(void **state)
{
    struct fixture *f = *state;
    struct fail_nth fail;
    bool reached = true;

    for (unsigned at = 1; reached; at++) {
        struct semel_mem_db *db = NULL;
        struct semel_store *store = NULL;
        struct semel_arena arena;
        int64_t now_us;
        semel_status status;
        semel__arena_init(&arena, 1 << 20);
        fail_nth_begin(&fail, at);
        status = semel__mem_db_new(&db, NULL);
        if (status == SEMEL_OK)
            status = semel__store_mem_open(&store, db, NULL, &f->err);
        if (status == SEMEL_OK && semel_store_begin(store, SEMEL_TX_OWN, &now_us, &f->err) == SEMEL_OK) {
            status = admit_and_settle(store, &arena, &f->err);
            if (status == SEMEL_OK)
                status = write_and_look(store, &arena, &f->err);
            semel_store_rollback(store);
            assert_int_equal(semel__mem_rows(db, NULL, NULL), 0);
            assert_int_equal(semel__mem_business_count(db), 0);
            assert_int_equal(semel__mem_attempts(db, NULL, NULL), 0);
            assert_int_equal(semel__mem_events(db, NULL, NULL), 0);
            assert_int_equal(semel__mem_watermark(db, SEMEL_STR("c"), SEMEL_STR("s")), SEMEL_NONE);
        }
        reached = fail_nth_end(&fail);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        semel_store_close(store);
        semel__mem_db_free(db);
        semel__arena_done(&arena);
    }
    assert_true(fail.seen > 20);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(url_opens_a_database_of_its_own),
        TEST(only_one_handle_writes_at_a_time),
        TEST(closing_a_handle_rolls_back_and_lets_others_write),
        TEST(asked_for_retry_does_nothing),
        TEST(commit_that_is_to_be_retried_is_rolled_back),
        TEST(lost_connection_rolls_back_and_stays_closed_until_reopen),
        TEST(reopening_can_fail_and_be_tried_again),
        TEST(unknown_commit_is_applied_or_lost_and_the_answer_is_the_same),
        TEST(broken_transaction_is_rolled_back_from_outside),
        TEST(handle_broken_while_its_hook_runs_answers_closed),
        TEST(effects_live_and_die_with_their_transaction),
        TEST(many_rows_are_found_again),
        TEST(failed_allocation_is_retry_and_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
