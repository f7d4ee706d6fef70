/* SPDX-License-Identifier: MIT
 *
 * store_position.c: the store contract: positions of sources, and the epochs that fence them.
 */
#include "conform/contract.h"

static struct semel_position at(const char *source, int32_t partition, int64_t offset, int64_t epoch)
{
    return (struct semel_position){.source = text(source), .partition = partition, .offset = offset, .epoch = epoch};
}

/* In the open transaction. */
static struct semel_position take_now(struct world *world, const char *source, int32_t partition)
{
    struct semel_position item = at(source, partition, 4711, 4711);

    assert_ok(world, semel_store_positions_acquire(world->store, text("c"), &item, 1, world->now_us, &world->err));
    return item;
}

static bool move_now(struct world *world, const char *source, int32_t partition, int64_t offset, int64_t epoch)
{
    struct semel_position item = at(source, partition, offset, epoch);

    assert_ok(world, semel_store_positions_move(world->store, text("c"), &item, 1, world->now_us, &world->err));
    return !item.fenced;
}

/* Each in a transaction of its own. */
static struct semel_position take(struct world *world, const char *source, int32_t partition)
{
    struct semel_position item;

    begin(world);
    item = take_now(world, source, partition);
    commit(world);
    return item;
}

static bool moved(struct world *world, const char *source, int32_t partition, int64_t offset, int64_t epoch)
{
    bool applied;

    begin(world);
    applied = move_now(world, source, partition, offset, epoch);
    commit(world);
    return applied;
}

static int64_t set(struct world *world, const char *source, int32_t partition, int64_t offset)
{
    struct semel_position item = at(source, partition, offset, 4711);

    begin(world);
    assert_ok(world, semel_store_positions_set(world->store, text("c"), &item, 1, world->now_us, &world->err));
    commit(world);
    assert_int_equal(item.offset, offset);
    return item.epoch;
}

/* "SOURCE/PARTITION@OFFSET#EPOCH " of each that the handle sees; an offset that is not stored is "-". */
static const char *listed(struct world *world, struct semel_store *store, const char *consumer, size_t max)
{
    struct semel_position *items = NULL;
    char *line = semel__arena_alloc(&world->arena, 4096, 1);
    size_t n = 4711, used = 0;

    assert_non_null(line);
    assert_ok(world, semel_store_positions_list(store, text(consumer), max, &world->arena, &items, &n, &world->err));
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++) {
        char offset[24] = "-";
        if (items[i].offset != SEMEL_NONE)
            snprintf(offset, sizeof offset, "%lld", (long long)items[i].offset);
        used += (size_t)snprintf(line + used, 4096 - used, "%.*s/%d@%s#%lld ", (int)items[i].source.n,
                                 items[i].source.p, items[i].partition, offset, (long long)items[i].epoch);
    }
    return line;
}

static const char *all(struct world *world)
{
    return listed(world, world->store, "c", 100);
}

/* ---- taking ------------------------------------------------------------------------------------------- */

static void every_take_raises_the_epoch_and_tells_the_position(void **state)
{
    struct world *world = *state;
    struct semel_position item = take(world, "t", 0);

    assert_int_equal(item.epoch, 1);
    assert_int_equal(item.offset, SEMEL_NONE);
    assert_true(moved(world, "t", 0, 17, 1));
    item = take(world, "t", 0);
    assert_int_equal(item.epoch, 2);
    assert_int_equal(item.offset, 17);
    item = take(world, "t", 1);
    assert_int_equal(item.epoch, 1);
    assert_int_equal(item.offset, SEMEL_NONE);
    assert_string_equal(all(world), "t/0@17#2 t/1@-#1 ");
}

static void many_partitions_are_taken_and_moved_at_once(void **state)
{
    struct world *world = *state;
    struct semel_position items[300];

    for (int round = 1; round <= 2; round++) {
        for (int32_t i = 0; i < 300; i++)
            items[i] = at(i < 150 ? "a" : "b", i % 150, SEMEL_NONE, 0);
        begin(world);
        assert_ok(world, semel_store_positions_acquire(world->store, text("c"), items, 300, T0, &world->err));
        for (int32_t i = 0; i < 300; i++) {
            assert_int_equal(items[i].epoch, round);
            assert_int_equal(items[i].offset, round == 1 ? SEMEL_NONE : 1000 + i);
            items[i].offset = 1000 + i;
            items[i].fenced = true;
        }
        items[7].epoch = 99;
        items[8].offset = SEMEL_NONE;
        assert_ok(world, semel_store_positions_move(world->store, text("c"), items, 300, T0, &world->err));
        for (int32_t i = 0; i < 300; i++)
            assert_int_equal(items[i].fenced, i == 7);
        items[7].epoch = round;
        items[8].offset = 1008;
        assert_ok(world, semel_store_positions_move(world->store, text("c"), items + 7, 2, T0, &world->err));
        commit(world);
    }
}

static void positions_belong_to_a_consumer_and_are_listed_in_order(void **state)
{
    struct world *world = *state;
    struct semel_position item = at("t", 3, 5, 0);

    take(world, "t", 10);
    take(world, "t", 9);
    take(world, "T", 0);
    take(world, "\xc3\xa9", 0);
    take(world, "", 2147483647);
    begin(world);
    assert_ok(world, semel_store_positions_set(world->store, text("d"), &item, 1, T0, &world->err));
    commit(world);
    assert_string_equal(all(world), "/2147483647@-#1 T/0@-#1 t/9@-#1 t/10@-#1 \xc3\xa9/0@-#1 ");
    assert_string_equal(listed(world, world->store, "c", 2), "/2147483647@-#1 T/0@-#1 ");
    assert_string_equal(listed(world, world->store, "d", 9), "t/3@5#1 ");
    assert_string_equal(listed(world, world->store, "nobody", 9), "");
}

/* ---- moving ------------------------------------------------------------------------------------------- */

/* I23 */
static void position_moves_forward_only(void **state)
{
    struct world *world = *state;

    take(world, "t", 0);
    assert_true(moved(world, "t", 0, 0, 1));
    assert_string_equal(all(world), "t/0@0#1 ");
    assert_true(moved(world, "t", 0, 100, 1));
    assert_true(moved(world, "t", 0, 99, 1)); /* not fenced, and not moved either */
    assert_string_equal(all(world), "t/0@100#1 ");
    assert_true(moved(world, "t", 0, 100, 1));
    assert_true(moved(world, "t", 0, INT64_MAX, 1));
    assert_int_equal(take(world, "t", 0).offset, INT64_MAX);
}

/* P27 */
static void move_under_another_epoch_is_fenced_and_changes_nothing(void **state)
{
    struct world *world = *state;

    assert_false(moved(world, "t", 0, 5, 1)); /* nobody has taken it */
    take(world, "t", 0);
    assert_true(moved(world, "t", 0, 5, 1));
    take(world, "t", 0);
    assert_false(moved(world, "t", 0, 9, 1));
    assert_false(moved(world, "t", 0, 9, 3));
    assert_false(moved(world, "t", 1, 9, 1));
    assert_false(moved(world, "T", 0, 9, 2));
    assert_string_equal(all(world), "t/0@5#2 ");
}

static void move_without_an_offset_only_asks(void **state)
{
    struct world *world = *state;

    take(world, "t", 0);
    assert_true(moved(world, "t", 0, SEMEL_NONE, 1));
    assert_string_equal(all(world), "t/0@-#1 ");
    assert_true(moved(world, "t", 0, 8, 1));
    assert_true(moved(world, "t", 0, SEMEL_NONE, 1));
    assert_false(moved(world, "t", 0, SEMEL_NONE, 2));
    assert_string_equal(all(world), "t/0@8#1 ");
}

/* I23: with the effect, or not at all. */
static void move_is_a_part_of_the_transaction(void **state)
{
    struct world *world = *state;

    take(world, "t", 0);
    assert_true(moved(world, "t", 0, 5, 1));
    begin(world);
    assert_true(move_now(world, "t", 0, 9, 1));
    take_now(world, "u", 0);
    assert_string_equal(all(world), "t/0@9#1 u/0@-#1 ");
    if (world->other != NULL)
        assert_string_equal(listed(world, world->other, "c", 9), "t/0@5#1 ");
    semel_store_rollback(world->store);
    assert_string_equal(all(world), "t/0@5#1 ");

    begin(world);
    assert_true(move_now(world, "t", 0, 6, 1));
    assert_ok(world, semel_store_savepoint(world->store, &world->err));
    assert_true(move_now(world, "t", 0, 7, 1));
    take_now(world, "t", 0);
    assert_ok(world, semel_store_rollback_to(world->store, &world->err));
    commit(world);
    assert_string_equal(all(world), "t/0@6#1 ");
    if (world->other != NULL)
        assert_string_equal(listed(world, world->other, "c", 9), "t/0@6#1 ");
}

/* ---- the operator ------------------------------------------------------------------------------------- */

static void operator_sets_back_and_fences_whoever_runs(void **state)
{
    struct world *world = *state;

    take(world, "t", 0);
    assert_true(moved(world, "t", 0, 50, 1));
    assert_int_equal(set(world, "t", 0, 10), 2);
    assert_string_equal(all(world), "t/0@10#2 ");
    assert_false(moved(world, "t", 0, 51, 1));
    assert_int_equal(take(world, "t", 0).offset, 10);
    assert_true(moved(world, "t", 0, 11, 3));
    assert_string_equal(all(world), "t/0@11#3 ");
}

static void position_that_is_taken_away_keeps_its_epoch(void **state)
{
    struct world *world = *state;
    struct semel_position item;

    take(world, "t", 0);
    assert_true(moved(world, "t", 0, 50, 1));
    assert_int_equal(set(world, "t", 0, SEMEL_NONE), 2);
    assert_string_equal(all(world), "t/0@-#2 ");
    item = take(world, "t", 0);
    assert_int_equal(item.offset, SEMEL_NONE);
    assert_int_equal(item.epoch, 3); /* never 1 again: a worker of then would not be fenced */
    assert_true(moved(world, "t", 0, 0, 3));
    assert_string_equal(all(world), "t/0@0#3 ");
}

static void operator_sets_a_position_that_was_never_taken(void **state)
{
    struct world *world = *state;

    assert_int_equal(set(world, "it's \"t\"; --", 4, 7), 1);
    assert_string_equal(all(world), "it's \"t\"; --/4@7#1 ");
    assert_int_equal(take(world, "it's \"t\"; --", 4).offset, 7);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

const struct CMUnitTest position_tests[] = {
    TEST(every_take_raises_the_epoch_and_tells_the_position),
    TEST(many_partitions_are_taken_and_moved_at_once),
    TEST(positions_belong_to_a_consumer_and_are_listed_in_order),
    TEST(position_moves_forward_only),
    TEST(move_under_another_epoch_is_fenced_and_changes_nothing),
    TEST(move_without_an_offset_only_asks),
    TEST(move_is_a_part_of_the_transaction),
    TEST(operator_sets_back_and_fences_whoever_runs),
    TEST(position_that_is_taken_away_keeps_its_epoch),
    TEST(operator_sets_a_position_that_was_never_taken),
    {.name = NULL},
};
