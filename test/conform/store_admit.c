/* SPDX-License-Identifier: MIT
 *
 * store_admit.c: the store contract: transactions, admit and fetch.
 */
#include "conform/contract.h"

/* ---- inserting ---------------------------------------------------------------------------------------- */

/* I3 */
static void first_arrival_is_inserted_and_the_second_is_refused_with_the_row_that_is_there(void **state)
{
    struct world *world = *state;
    struct semel_admit first = item_of("m1", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    struct semel_admit second = item_of("m1", SEMEL_ROW_PROCESSING, NULL, SEMEL_NONE);

    begin(world);
    admit(world, &first, 1);
    commit(world);
    assert_true(first.inserted);
    begin(world);
    admit(world, &second, 1);
    assert_false(second.inserted);
    assert_false(second.damaged);
    assert_found_is(&second.found, &first.row);
    commit(world);
    assert_string_equal(all_ids(world), "m1 ");
}

static void row_inserted_by_this_transaction_is_found_by_its_second_admit(void **state)
{
    struct world *world = *state;
    struct semel_admit first = item_of("m1", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    struct semel_admit second = first;

    begin(world);
    admit(world, &first, 1);
    admit(world, &second, 1);
    assert_false(second.inserted);
    assert_found_is(&second.found, &first.row);
    commit(world);
}

/* I4 */
static void found_row_equals_what_was_put_byte_for_byte(void **state)
{
    struct world *world = *state;
    struct semel_admit item = item_of("it's \"m\\1\" \xF0\x9F\x90\x98%_", SEMEL_ROW_FAILED, "k'ey\xC3\xA9", 42);
    struct semel_admit again;
    struct semel_key key = {.key = item.row.order_key};

    item.row.source = SEMEL_STR("topic;--");
    item.row.type = SEMEL_STR("");
    item.row.fp = (struct semel_fp){SEMEL_FP_RAW, 4, {0, 255, 39, 1}};
    item.row.message_time_us = T0 - 1;
    item.row.position = SEMEL_STR("3/17");
    item.row.headers = SEMEL_STR("{\"a\":\"\\u0000\"}");
    item.row.payload = SEMEL_STR("a\0b\xFF\n");
    item.row.traceparent = SEMEL_STR("00-ab-cd-01");
    item.row.kept = true;
    item.row.progress.attempts = 5;
    item.row.progress.attempts_before = 2;
    item.row.progress.retries = 1;
    item.row.progress.alone = true;
    item.row.progress.error_class = SEMEL_CLASS_PERMANENT;
    item.row.progress.error_text = SEMEL_STR("it's 23514 \xE2\x82\xAC");
    item.row.progress.outcome = SEMEL_STR("{\"x\":1}");
    again = item;
    begin(world);
    admit_keyed(world, &item, 1, &key, 1);
    commit(world);
    begin(world);
    admit_keyed(world, &again, 1, &key, 1);
    assert_false(again.inserted);
    assert_row_is(&again.found, &item.row);
    commit(world);
}

static void payload_and_headers_are_stored_only_when_they_are_kept(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("kept", SEMEL_ROW_FAILED, NULL, SEMEL_NONE),
                                  item_of("not", SEMEL_ROW_FAILED, NULL, SEMEL_NONE)};

    items[0].row.payload = items[1].row.payload = SEMEL_STR("p");
    items[0].row.headers = items[1].row.headers = SEMEL_STR("{}");
    items[0].row.position = items[1].row.position = SEMEL_STR("1/1");
    items[0].row.kept = true;
    begin(world);
    admit(world, items, 2);
    commit(world);
    assert_true(fetch(world, "kept")->kept);
    assert_str_is(fetch(world, "kept")->payload, SEMEL_STR("p"));
    assert_str_is(fetch(world, "kept")->headers, SEMEL_STR("{}"));
    assert_false(fetch(world, "not")->kept);
    assert_null(fetch(world, "not")->payload.p);
    assert_null(fetch(world, "not")->headers.p);
    assert_str_is(fetch(world, "not")->position, SEMEL_STR("1/1"));
}

static void empty_payload_that_is_kept_is_not_a_missing_one(void **state)
{
    struct world *world = *state;
    struct semel_admit item = item_of("m", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);

    item.row.payload = SEMEL_STR("");
    item.row.headers = SEMEL_STR("{}");
    item.row.kept = true;
    begin(world);
    admit(world, &item, 1);
    commit(world);
    assert_true(fetch(world, "m")->kept);
    assert_str_is(fetch(world, "m")->payload, SEMEL_STR(""));
}

/* I1 */
static void same_id_of_another_source_or_consumer_is_another_message(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("m", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("m", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE)};
    struct semel_admit other = items[0];
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("d"), .now_us = T0, .items = &other, .n_items = 1};

    items[1].row.source = SEMEL_STR("s2");
    begin(world);
    admit(world, items, 2);
    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    commit(world);
    assert_true(items[0].inserted && items[1].inserted && other.inserted);
    assert_string_equal(all_ids(world), "m m ");
}

static void ids_are_compared_by_bytes(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("A", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("a ", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("\xC3\xA4", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE)};

    begin(world);
    admit(world, items, 4);
    commit(world);
    for (size_t i = 0; i < 4; i++)
        assert_true(items[i].inserted);
}

/* P66 */
static void arrivals_follow_the_places_and_ascend_across_batches(void **state)
{
    struct world *world = *state;
    struct semel_admit first[] = {item_of("a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("b", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("c", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE)};
    struct semel_admit second[] = {item_of("a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                   item_of("d", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE)};

    first[0].place = 2;
    first[1].place = 0;
    first[2].place = 1;
    second[0].place = 0;
    second[1].place = 1;
    begin(world);
    admit(world, first, 3);
    commit(world);
    assert_true(first[1].row.arrival < first[2].row.arrival);
    assert_true(first[2].row.arrival < first[0].row.arrival);
    begin(world);
    admit(world, second, 2);
    commit(world);
    assert_false(second[0].inserted);
    assert_true(second[1].row.arrival > first[0].row.arrival);
    assert_string_equal(all_ids(world), "b c a d ");
}

static void arrivals_ascend_after_a_rollback_too(void **state)
{
    struct world *world = *state;
    struct semel_admit item = item_of("b", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    int64_t arrival;

    put(world, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    arrival = fetch(world, "a")->arrival;
    begin(world);
    admit(world, &item, 1);
    semel_store_rollback(world->store);
    put(world, "c", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    assert_true(fetch(world, "c")->arrival > arrival);
}

static void a_claim_keeps_the_token_that_it_was_given(void **state)
{
    struct world *world = *state;
    struct semel_admit item = item_of("a", SEMEL_ROW_PROCESSING, NULL, SEMEL_NONE);

    item.row.progress.lease_token = INT64_MAX;
    begin(world);
    admit(world, &item, 1);
    commit(world);
    assert_true(item.inserted);
    assert_int_equal(fetch(world, "a")->progress.lease_token, INT64_MAX);
}

/* A7: two claims of one moment may draw one token. The other message is tried again, and draws another. */
static void a_token_that_another_message_has_is_contention(void **state)
{
    struct world *world = *state;
    struct semel_admit item = item_of("b", SEMEL_ROW_PROCESSING, NULL, SEMEL_NONE);
    struct semel_change change = change_of("c", SEMEL_ROW_FAILED, SEMEL_ROW_PROCESSING);
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"), .now_us = T0, .items = &item, .n_items = 1};
    struct semel_settle_batch changes = {
        .consumer = SEMEL_STR("c"), .worker = SEMEL_STR("worker-1"), .now_us = T0, .changes = &change, .n_changes = 1};

    if (strcmp(world->store->ops->name, "mem") == 0)
        return; /* it has no index of tokens: one inbox never gives the same twice */
    put(world, "a", SEMEL_ROW_PROCESSING, NULL, SEMEL_NONE);
    put(world, "c", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    item.row.progress.lease_token = change.progress.lease_token = fetch(world, "a")->progress.lease_token;
    change.updated_us = T0;
    begin(world);
    assert_int_equal(semel_store_admit(world->store, &batch, &world->arena, &world->err), SEMEL_RETRY);
    assert_int_equal(world->err.cls, SEMEL_CLASS_TRANSIENT);
    semel_store_rollback(world->store);
    begin(world);
    assert_int_equal(semel_store_settle(world->store, &changes, &world->err), SEMEL_RETRY);
    assert_int_equal(world->err.cls, SEMEL_CLASS_TRANSIENT);
    semel_store_rollback(world->store);
}

/* ---- the facts of keys -------------------------------------------------------------------------------- */

static void assert_facts(struct semel_key key, int64_t last_version, int64_t head_arrival, int64_t head_version,
                         int64_t parked)
{
    assert_int_equal(key.last_version, last_version);
    assert_int_equal(key.head_arrival, head_arrival);
    assert_int_equal(key.head_version, head_version);
    assert_int_equal(key.parked, parked);
}

/* I13 */
static void facts_of_a_key_are_those_of_its_unfinished_rows(void **state)
{
    struct world *world = *state;

    assert_facts(facts(world, "k", false), SEMEL_NONE, SEMEL_NONE, SEMEL_NONE, 0);
    put(world, "a", SEMEL_ROW_COMPLETED, "k", 1);
    put(world, "b", SEMEL_ROW_FAILED, "k", 9);
    put(world, "c", SEMEL_ROW_WAITING, "k", 3);
    put(world, "d", SEMEL_ROW_WAITING, "k", 5);
    put(world, "e", SEMEL_ROW_WAITING, "other", 1);
    put(world, "f", SEMEL_ROW_QUARANTINED, "k", 0);
    assert_facts(facts(world, "k", false), SEMEL_NONE, fetch(world, "b")->arrival, 9, 2);
    assert_facts(facts(world, "k", true), SEMEL_NONE, fetch(world, "c")->arrival, 3, 2);
    assert_true(move(world, "b", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED));
    assert_facts(facts(world, "k", false), SEMEL_NONE, fetch(world, "c")->arrival, 3, 2);
    assert_true(move(world, "c", SEMEL_ROW_WAITING, SEMEL_ROW_DEAD));
    assert_facts(facts(world, "k", false), SEMEL_NONE, fetch(world, "c")->arrival, 3, 1);
    assert_true(move(world, "c", SEMEL_ROW_DEAD, SEMEL_ROW_REJECTED));
    assert_true(move(world, "d", SEMEL_ROW_WAITING, SEMEL_ROW_STALE));
    assert_facts(facts(world, "k", false), SEMEL_NONE, SEMEL_NONE, SEMEL_NONE, 0);
    assert_facts(facts(world, "k", true), SEMEL_NONE, SEMEL_NONE, SEMEL_NONE, 0);
}

static void every_unfinished_status_holds_its_key(void **state)
{
    struct world *world = *state;
    static const enum semel_row_status holds[] = {SEMEL_ROW_PROCESSING, SEMEL_ROW_FAILED, SEMEL_ROW_WAITING,
                                                  SEMEL_ROW_UNKNOWN, SEMEL_ROW_DEAD};
    static const enum semel_row_status frees[] = {SEMEL_ROW_COMPLETED, SEMEL_ROW_REJECTED, SEMEL_ROW_STALE,
                                                  SEMEL_ROW_PREVENTED, SEMEL_ROW_QUARANTINED};

    for (size_t i = 0; i < COUNT(holds); i++) {
        char id[] = {'h', (char)('0' + i), '\0'};
        put(world, id, holds[i], id, SEMEL_NONE);
        assert_facts(facts(world, id, false), SEMEL_NONE, fetch(world, id)->arrival, SEMEL_NONE,
                     holds[i] == SEMEL_ROW_WAITING);
    }
    for (size_t i = 0; i < COUNT(frees); i++) {
        char id[] = {'f', (char)('0' + i), '\0'};
        put(world, id, frees[i], id, SEMEL_NONE);
        assert_facts(facts(world, id, false), SEMEL_NONE, SEMEL_NONE, SEMEL_NONE, 0);
    }
}

static void facts_do_not_count_rows_that_this_transaction_inserted(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("a", SEMEL_ROW_WAITING, "k", 1), item_of("b", SEMEL_ROW_WAITING, "k", 2)};
    struct semel_key key = {.key = SEMEL_STR("k")};

    items[1].place = 1;
    begin(world);
    admit_keyed(world, items, 2, &key, 1);
    assert_facts(key, SEMEL_NONE, SEMEL_NONE, SEMEL_NONE, 0);
    commit(world);
    assert_facts(facts(world, "k", false), SEMEL_NONE, items[0].row.arrival, 1, 2);
}

static void facts_do_not_count_rows_of_an_earlier_admit_in_this_transaction(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("a", SEMEL_ROW_WAITING, "k", 1), item_of("b", SEMEL_ROW_WAITING, "k", 2)};
    struct semel_key key = {.key = SEMEL_STR("k")};

    begin(world);
    admit_keyed(world, &items[0], 1, &key, 1);
    admit_keyed(world, &items[1], 1, &key, 1);
    assert_facts(key, SEMEL_NONE, SEMEL_NONE, SEMEL_NONE, 0);
    commit(world);
    assert_facts(facts(world, "k", false), SEMEL_NONE, items[0].row.arrival, 1, 2);
}

static void facts_of_one_consumer_are_not_those_of_another(void **state)
{
    struct world *world = *state;
    struct semel_key key = {.key = SEMEL_STR("k")};
    struct semel_fetch_batch batch = {.consumer = SEMEL_STR("d"), .keys = &key, .n_keys = 1};

    put(world, "a", SEMEL_ROW_WAITING, "k", 4);
    begin(world);
    assert_ok(world, semel_store_fetch(world->store, &batch, &world->arena, &world->err));
    semel_store_rollback(world->store);
    assert_facts(key, SEMEL_NONE, SEMEL_NONE, SEMEL_NONE, 0);
}

static void parked_rows_of_the_route_are_counted_up_to_a_bound(void **state)
{
    struct world *world = *state;
    int64_t n = 0;

    put(world, "a", SEMEL_ROW_WAITING, "k1", SEMEL_NONE);
    put(world, "b", SEMEL_ROW_WAITING, "k2", SEMEL_NONE);
    put(world, "c", SEMEL_ROW_FAILED, "k2", SEMEL_NONE);
    put(world, "d", SEMEL_ROW_WAITING, "k2", SEMEL_NONE);
    begin(world);
    assert_ok(world, semel_store_parked(world->store, SEMEL_STR("c"), 100, &n, &world->err));
    assert_int_equal(n, 3);
    assert_ok(world, semel_store_parked(world->store, SEMEL_STR("c"), 2, &n, &world->err));
    assert_int_equal(n, 2);
    assert_ok(world, semel_store_parked(world->store, SEMEL_STR("nobody"), 2, &n, &world->err));
    assert_int_equal(n, 0);
    commit(world);
}

static void put_payload(struct world *world, const char *id, enum semel_row_status state, const char *payload)
{
    struct semel_admit item = item_of(id, state, NULL, SEMEL_NONE);

    item.row.payload = text(payload);
    item.row.kept = true;
    begin(world);
    admit_keyed(world, &item, 1, NULL, 0);
    commit(world);
}

/* B9 */
static void large_rows_that_nobody_runs_are_counted_up_to_a_bound(void **state)
{
    struct world *world = *state;
    int64_t n = 0;

    put_payload(world, "a", SEMEL_ROW_DEAD, "12345");
    put_payload(world, "b", SEMEL_ROW_QUARANTINED, "12345");
    put_payload(world, "c", SEMEL_ROW_FAILED, "12345");
    put_payload(world, "d", SEMEL_ROW_DEAD, "123456");
    put(world, "e", SEMEL_ROW_DEAD, NULL, SEMEL_NONE);
    begin(world);
    assert_ok(world, semel_store_large(world->store, SEMEL_STR("c"), 4, 100, &n, &world->err));
    assert_int_equal(n, 3);
    assert_ok(world, semel_store_large(world->store, SEMEL_STR("c"), 4, 2, &n, &world->err));
    assert_int_equal(n, 2);
    assert_ok(world, semel_store_large(world->store, SEMEL_STR("c"), 5, 100, &n, &world->err));
    assert_int_equal(n, 1);
    assert_ok(world, semel_store_large(world->store, SEMEL_STR("nobody"), 0, 2, &n, &world->err));
    assert_int_equal(n, 0);
    commit(world);
}

/* ---- business keys ------------------------------------------------------------------------------------ */

/* Takes one key for message `id` in a transaction of its own. */
static struct semel_business take(struct world *world, const char *consumer, const char *key, const char *id,
                                  int64_t expires_us)
{
    struct semel_business business = {.key = text(key),
                                      .source = SEMEL_STR("s"),
                                      .id = text(id),
                                      .expires_us = expires_us};
    struct semel_admit_batch batch = {.consumer = text(consumer),
                                      .now_us = world->now_us,
                                      .business = &business,
                                      .n_business = 1};

    begin(world);
    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    commit(world);
    return business;
}

/* I10 */
static void business_key_is_held_by_the_first_message_that_takes_it(void **state)
{
    struct world *world = *state;
    struct semel_business first = take(world, "c", "b'1", "m1", SEMEL_NONE);
    struct semel_business second = take(world, "c", "b'1", "m2", SEMEL_NONE);
    struct semel_business again = take(world, "c", "b'1", "m1", SEMEL_NONE);
    struct semel_business elsewhere = take(world, "d", "b'1", "m3", SEMEL_NONE);

    assert_true(first.inserted && !first.taken);
    assert_true(second.taken && !second.inserted);
    assert_str_is(second.held_source, SEMEL_STR("s"));
    assert_str_is(second.held_id, SEMEL_STR("m1"));
    assert_true(!again.taken && !again.inserted);
    assert_true(elsewhere.inserted && !elsewhere.taken);
}

static void expired_business_key_does_not_hold(void **state)
{
    struct world *world = *state;

    assert_true(take(world, "c", "b", "m1", T0 + SECOND).inserted);
    assert_true(take(world, "c", "b", "m2", T0 + SECOND).taken);
    world->now_us = T0 + 2 * SECOND;
    assert_true(take(world, "c", "b", "m2", T0 + 3 * SECOND).inserted);
    assert_str_is(take(world, "c", "b", "m3", SEMEL_NONE).held_id, SEMEL_STR("m2"));
}

static void business_key_of_a_rolled_back_transaction_is_free(void **state)
{
    struct world *world = *state;
    struct semel_business business = {.key = SEMEL_STR("b"),
                                      .source = SEMEL_STR("s"),
                                      .id = SEMEL_STR("m1"),
                                      .expires_us = SEMEL_NONE};
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"), .now_us = T0, .business = &business, .n_business = 1};

    begin(world);
    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    semel_store_rollback(world->store);
    assert_true(take(world, "c", "b", "m2", SEMEL_NONE).inserted);
}

/* ---- watermarks and damage ---------------------------------------------------------------------------- */

static void raise_to(struct world *world, const char *source, int64_t watermark_us)
{
    assert_ok(world, semel_store_watermark(world->store, SEMEL_STR("c"), text(source), watermark_us, &world->err));
}

/* P60, I18 */
static void watermark_is_read_with_every_arrival_whether_it_was_inserted_or_not(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("b", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE)};

    items[2].row.source = SEMEL_STR("s2");
    put(world, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    begin(world);
    raise_to(world, "s", T0 - 5);
    commit(world);
    begin(world);
    admit(world, items, 3);
    commit(world);
    assert_false(items[0].inserted);
    assert_int_equal(items[0].watermark_us, T0 - 5);
    assert_true(items[1].inserted);
    assert_int_equal(items[1].watermark_us, T0 - 5);
    assert_int_equal(items[2].watermark_us, SEMEL_NONE);
}

static void watermark_is_raised_and_never_lowered(void **state)
{
    struct world *world = *state;
    struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);

    begin(world);
    raise_to(world, "s", 100);
    raise_to(world, "s", 50);
    admit(world, &item, 1);
    assert_int_equal(item.watermark_us, 100);
    raise_to(world, "s", 101);
    admit(world, &item, 1);
    assert_int_equal(item.watermark_us, 101);
    commit(world);
}

static void damaged_row_is_reported_and_spares_its_neighbours(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("b", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE)};
    struct semel_fetched fetched = {.source = SEMEL_STR("s"), .id = SEMEL_STR("a")};
    struct semel_fetch_batch batch = {.consumer = SEMEL_STR("c"), .items = &fetched, .n_items = 1};

    put(world, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    assert_true(world->driver->damage(world, "s", "a"));
    begin(world);
    admit(world, items, 2);
    assert_ok(world, semel_store_fetch(world->store, &batch, &world->arena, &world->err));
    commit(world);
    assert_true(!items[0].inserted && items[0].damaged);
    assert_true(items[0].damage.text[0] != '\0');
    assert_true(items[1].inserted && !items[1].damaged);
    assert_true(fetched.present && fetched.damaged);
    assert_true(fetched.damage.text[0] != '\0');
}

static void fetch_reads_what_is_there_and_says_what_is_not(void **state)
{
    struct world *world = *state;
    struct semel_fetched items[] = {{.source = SEMEL_STR("s"), .id = SEMEL_STR("a")},
                                    {.source = SEMEL_STR("s"), .id = SEMEL_STR("b")},
                                    {.source = SEMEL_STR("s2"), .id = SEMEL_STR("a")}};
    struct semel_fetch_batch batch = {.consumer = SEMEL_STR("c"), .items = items, .n_items = 3};

    put(world, "b", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    begin(world);
    assert_ok(world, semel_store_fetch(world->store, &batch, &world->arena, &world->err));
    commit(world);
    assert_false(items[0].present);
    assert_true(items[1].present && !items[1].damaged);
    assert_int_equal(items[1].row.progress.state, SEMEL_ROW_FAILED);
    assert_false(items[2].present);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

const struct CMUnitTest admit_tests[] = {
    TEST(first_arrival_is_inserted_and_the_second_is_refused_with_the_row_that_is_there),
    TEST(row_inserted_by_this_transaction_is_found_by_its_second_admit),
    TEST(found_row_equals_what_was_put_byte_for_byte),
    TEST(payload_and_headers_are_stored_only_when_they_are_kept),
    TEST(empty_payload_that_is_kept_is_not_a_missing_one),
    TEST(same_id_of_another_source_or_consumer_is_another_message),
    TEST(ids_are_compared_by_bytes),
    TEST(arrivals_follow_the_places_and_ascend_across_batches),
    TEST(arrivals_ascend_after_a_rollback_too),
    TEST(a_claim_keeps_the_token_that_it_was_given),
    TEST(a_token_that_another_message_has_is_contention),
    TEST(facts_of_a_key_are_those_of_its_unfinished_rows),
    TEST(every_unfinished_status_holds_its_key),
    TEST(facts_do_not_count_rows_that_this_transaction_inserted),
    TEST(facts_do_not_count_rows_of_an_earlier_admit_in_this_transaction),
    TEST(facts_of_one_consumer_are_not_those_of_another),
    TEST(parked_rows_of_the_route_are_counted_up_to_a_bound),
    TEST(large_rows_that_nobody_runs_are_counted_up_to_a_bound),
    TEST(business_key_is_held_by_the_first_message_that_takes_it),
    TEST(expired_business_key_does_not_hold),
    TEST(business_key_of_a_rolled_back_transaction_is_free),
    TEST(watermark_is_read_with_every_arrival_whether_it_was_inserted_or_not),
    TEST(watermark_is_raised_and_never_lowered),
    TEST(damaged_row_is_reported_and_spares_its_neighbours),
    TEST(fetch_reads_what_is_there_and_says_what_is_not),
    {.name = NULL},
};
