/* SPDX-License-Identifier: MIT
 *
 * test_positions.c: what the source thread does when partitions come and go: epochs are raised, positions are read,
 * deliveries are stamped, and what was fenced is told apart from what is merely old.
 */
#include <pthread.h>

#include "base/clock.h"
#include "base/error.h"
#include "daemon/positions.h"
#include "support/mem_store.h"
#include "support/world.h"

struct source {
    struct world *world;
    struct semel_positions *positions;
    enum semel_mem_fault fault; /* of the next operation `op` */
    const char *op;
    int times;
};

static struct source source;

static enum semel_mem_fault on_store(void *ctx, const char *op)
{
    struct source *w = ctx;
    return w->op != NULL && strcmp(op, w->op) == 0 && w->times-- > 0 ? w->fault : SEMEL_MEM_GO;
}

static int up(void **state, const char *driver)
{
    void *world;

    world_driver = world_driver_named(driver);
    world_setup(&world);
    source = (struct source){.world = world};
    if (strcmp(driver, "mem") == 0)
        semel__mem_set_hook(source.world->store, on_store, &source);
    source.positions = semel__positions_new(source.world->store, SEMEL_STR("c"));
    assert_non_null(source.positions);
    *state = &source;
    return 0;
}

static int on_mem(void **state)
{
    return up(state, "mem");
}

static int on_sqlite(void **state)
{
    return up(state, "sqlite");
}

static int down(void **state)
{
    void *world = source.world;

    (void)state;
    semel__alloc_set_hook(NULL, NULL);
    semel__positions_free(source.positions);
    return world_teardown(&world);
}

static struct semel_source_start start_at(const char *topic, int32_t partition, int64_t offset)
{
    return (struct semel_source_start){.topic = semel__str(topic), .partition = partition, .offset = offset};
}

static semel_status assigned(struct source *w, struct semel_source_start *starts, size_t n)
{
    return semel__positions_assigned(w->positions, starts, n, &w->world->err);
}

static int64_t epoch_of(struct source *w, const char *topic, int32_t partition)
{
    struct semel_delivery delivery = {.source = semel__str(topic), .partition = partition, .epoch = 4711};
    semel__positions_stamp(w->positions, &delivery, 1);
    return delivery.epoch;
}

static struct semel_position stored(struct source *w, const char *topic, int32_t partition)
{
    struct semel_position *items = NULL;
    size_t n = 0;
    assert_int_equal(semel_store_positions_list(w->world->store, SEMEL_STR("c"), 99, &w->world->arena, &items, &n,
                                                &w->world->err),
                     SEMEL_OK);
    for (size_t i = 0; i < n; i++)
        if (semel__str_eqz(items[i].source, topic) && items[i].partition == partition)
            return items[i];
    return (struct semel_position){.offset = SEMEL_NONE};
}

/* What a worker or, with `set`, an operator does. */
static bool write_position(struct source *w, int32_t partition, int64_t offset, int64_t epoch, bool set)
{
    struct semel_position item = {.source = SEMEL_STR("t"), .partition = partition, .offset = offset, .epoch = epoch};
    int64_t now_us;
    assert_int_equal(semel_store_begin(w->world->store, SEMEL_TX_OWN, &now_us, &w->world->err), SEMEL_OK);
    assert_int_equal((set ? semel_store_positions_set : semel_store_positions_move)(w->world->store, SEMEL_STR("c"),
                                                                                    &item, 1, now_us, &w->world->err),
                     SEMEL_OK);
    assert_int_equal(semel_store_commit(w->world->store, &w->world->err), SEMEL_OK);
    return !item.fenced;
}

/* I23 */
static void reading_resumes_from_the_stored_position(void **state)
{
    struct source *w = *state;
    struct semel_source_start starts[] = {start_at("t", 1, SEMEL_NONE), start_at("t", 0, SEMEL_NONE)};

    assert_int_equal(assigned(w, starts, 2), SEMEL_OK);
    assert_int_equal(starts[0].offset, SEMEL_NONE); /* none is known: `first` decides */
    assert_int_equal(epoch_of(w, "t", 0), 1);
    assert_true(write_position(w, 0, 42, 1, false));
    starts[1].offset = 7; /* whatever Kafka has */
    assert_int_equal(assigned(w, starts, 2), SEMEL_OK);
    assert_int_equal(starts[0].offset, SEMEL_NONE);
    assert_int_equal(starts[1].offset, 42);
    assert_int_equal(epoch_of(w, "t", 0), 2);
    assert_int_equal(epoch_of(w, "t", 1), 2);
    assert_int_equal(epoch_of(w, "u", 1), 0);
    assert_false(write_position(w, 0, 43, 1, false)); /* P27 */
}

/* A route that begins to keep its positions goes on where its group has come to. */
static void first_assignment_adopts_what_kafka_has(void **state)
{
    struct source *w = *state;
    struct semel_source_start start = start_at("t", 0, 100);

    assert_int_equal(assigned(w, &start, 1), SEMEL_OK);
    assert_int_equal(start.offset, 100);
    assert_int_equal(stored(w, "t", 0).offset, 100);
    start.offset = 5;
    assert_int_equal(assigned(w, &start, 1), SEMEL_OK);
    assert_int_equal(start.offset, 100);
    write_position(w, 0, SEMEL_NONE, 0, true); /* semel rewind --to earliest */
    start.offset = 100;
    assert_int_equal(assigned(w, &start, 1), SEMEL_OK);
    assert_int_equal(start.offset, SEMEL_NONE);
}

static void partitions_come_and_go(void **state)
{
    struct source *w = *state;
    struct semel_source_start starts[6];

    for (int32_t i = 0; i < 6; i++)
        starts[i] = start_at(i % 2 == 0 ? "u" : "t", 5 - i, SEMEL_NONE);
    assert_int_equal(assigned(w, starts, 3), SEMEL_OK);
    assert_int_equal(assigned(w, starts + 3, 3), SEMEL_OK);
    for (int i = 0; i < 6; i++)
        assert_int_equal(epoch_of(w, i % 2 == 0 ? "u" : "t", 5 - i), 1);
    semel__positions_revoked(w->positions, starts + 1, 2, true);
    assert_int_equal(epoch_of(w, "t", 4), 0);
    assert_int_equal(epoch_of(w, "u", 3), 0);
    assert_int_equal(epoch_of(w, "u", 5), 1);
    semel__positions_revoked(w->positions, starts, 6, false); /* also those that are gone already */
    assert_int_equal(epoch_of(w, "u", 5), 0);
    assert_int_equal(assigned(w, starts, 6), SEMEL_OK);
    assert_int_equal(epoch_of(w, "t", 4), 2);
    assert_int_equal(assigned(w, NULL, 0), SEMEL_OK);
}

static void only_our_own_epoch_that_was_refused_is_news(void **state)
{
    struct source *w = *state;
    struct semel_source_start start = start_at("t", 0, SEMEL_NONE);

    assert_int_equal(assigned(w, &start, 1), SEMEL_OK);
    assert_int_equal(assigned(w, &start, 1), SEMEL_OK);
    semel__positions_fenced(w->positions, SEMEL_STR("t"), 0, 1); /* a delivery that was on its way */
    semel__positions_fenced(w->positions, SEMEL_STR("t"), 1, 2);
    semel__positions_fenced(w->positions, SEMEL_STR("u"), 0, 2);
    assert_false(semel__positions_stale(w->positions));
    semel__positions_fenced(w->positions, SEMEL_STR("t"), 0, 2);
    assert_true(semel__positions_stale(w->positions));
    assert_false(semel__positions_stale(w->positions));
}

static void partition_twice_in_one_assignment_is_refused(void **state)
{
    struct source *w = *state;
    struct semel_source_start starts[] = {start_at("t", 0, 1), start_at("t", 0, 2), start_at("t", -1, 2)};

    assert_int_equal(assigned(w, starts, 2), SEMEL_INVALID);
    assert_int_equal(assigned(w, starts + 2, 1), SEMEL_INVALID);
    assert_int_equal(epoch_of(w, "t", 0), 0);
}

static void lost_connection_is_opened_anew(void **state)
{
    static const enum semel_mem_fault faults[] = {SEMEL_MEM_CLOSE, SEMEL_MEM_UNKNOWN_DONE, SEMEL_MEM_UNKNOWN_LOST};
    struct source *w = *state;
    struct semel_source_start start = start_at("t", 0, SEMEL_NONE);

    for (size_t i = 0; i < COUNT(faults); i++) {
        w->op = "commit";
        w->fault = faults[i];
        w->times = 2;
        assert_int_equal(assigned(w, &start, 1), SEMEL_OK);
        assert_int_equal(epoch_of(w, "t", 0), stored(w, "t", 0).epoch);
    }
    w->times = 99; /* it does not come back: nothing is delivered under an epoch that nobody knows */
    assert_int_equal(assigned(w, &start, 1), SEMEL_CLOSED);
    assert_int_equal(epoch_of(w, "t", 0), 0);
    w->fault = SEMEL_MEM_RETRY;
    assert_int_equal(assigned(w, &start, 1), SEMEL_RETRY);
    w->op = NULL;
    assert_int_equal(assigned(w, &start, 1), SEMEL_OK);
}

static void lack_of_memory_takes_nothing_half(void **state)
{
    struct source *w = *state;
    struct semel_source_start starts[] = {start_at("t", 0, 1), start_at("u", 0, 2)};
    struct fail_nth fail;
    bool reached = true;

    for (unsigned at = 1; reached; at++) {
        fail_nth_begin(&fail, at);
        semel_status status = assigned(w, starts, 2);
        reached = fail_nth_end(&fail);
        assert_int_equal(status == SEMEL_OK, !reached);
        assert_int_equal(epoch_of(w, "t", 0) != 0, !reached);
        assert_int_equal(epoch_of(w, "u", 0) != 0, !reached);
    }
}

/* A worker tells while the source thread changes the list. */
static void *tell(void *arg)
{
    struct source *w = arg;
    for (int i = 0; i < 2000; i++)
        semel__positions_fenced(w->positions, SEMEL_STR("t"), i % 8, 1);
    return NULL;
}

static void workers_tell_while_partitions_come_and_go(void **state)
{
    struct source *w = *state;
    struct semel_source_start starts[8];
    pthread_t thread;

    for (int32_t i = 0; i < 8; i++)
        starts[i] = start_at("t", i, SEMEL_NONE);
    assert_int_equal(assigned(w, starts, 8), SEMEL_OK);
    assert_int_equal(pthread_create(&thread, NULL, tell, w), 0);
    for (int i = 0; i < 50; i++) {
        semel__positions_revoked(w->positions, starts, 8, false);
        assert_int_equal(assigned(w, starts, 8), SEMEL_OK);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)semel__positions_stale(w->positions);
    semel__positions_fenced(w->positions, SEMEL_STR("t"), 3, 51);
    assert_true(semel__positions_stale(w->positions));
}

#define ON_BOTH(f) cmocka_unit_test_setup_teardown(f, on_mem, down), cmocka_unit_test_setup_teardown(f, on_sqlite, down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(reading_resumes_from_the_stored_position),
        ON_BOTH(first_assignment_adopts_what_kafka_has),
        ON_BOTH(partitions_come_and_go),
        ON_BOTH(only_our_own_epoch_that_was_refused_is_news),
        ON_BOTH(partition_twice_in_one_assignment_is_refused),
        cmocka_unit_test_setup_teardown(lost_connection_is_opened_anew, on_mem, down),
        cmocka_unit_test_setup_teardown(lack_of_memory_takes_nothing_half, on_mem, down),
        ON_BOTH(workers_tell_while_partitions_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
