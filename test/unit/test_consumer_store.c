/* SPDX-License-Identifier: MIT
 *
 * test_consumer_store.c: a consumer's settings in the store, and how the first message settles the order.
 */
#include "unit/unit.h"

#include "base/error.h"
#include "core/consumer.h"
#include "support/mem_store.h"

#define SECOND INT64_C(1000000)
#define BILLING SEMEL_STR("billing")

/* INVALID, the setup's fault, for the consumer; and the text has both words. */
static void assert_text(const struct semel_error *err, const char *word, const char *other)
{
    assert_int_equal(err->status, SEMEL_INVALID);
    assert_int_equal(err->cls, SEMEL_CLASS_BROKEN);
    if (strstr(err->text, "settings of consumer \"billing\": ") == NULL || strstr(err->text, word) == NULL ||
        strstr(err->text, other) == NULL)
        fail_msg("\"%s\" does not say %s and %s", err->text, word, other);
}

/* ---- the store ------------------------------------------------------------------------------------------ */

struct place {
    struct semel_store *store;
    struct semel_arena arena;
    struct semel_error err;
    int64_t now_us;
};

static int open_place(void **state)
{
    static const struct semel_store_ops *const linked[] = {&semel__store_mem, NULL};
    static struct place place;

    place = (struct place){0};
    semel__arena_init(&place.arena, 1 << 20);
    *state = &place;
    return semel_store_open(&place.store, linked, "mem:", NULL, NULL) == SEMEL_OK ? 0 : -1;
}

static int close_place(void **state)
{
    struct place *place = *state;

    semel_store_rollback(place->store);
    semel_store_close(place->store);
    semel__arena_done(&place->arena);
    return 0;
}

static void begin(struct place *place)
{
    assert_int_equal(semel_store_begin(place->store, SEMEL_TX_OWN, &place->now_us, &place->err), SEMEL_OK);
}

static void commit(struct place *place)
{
    assert_int_equal(semel_store_commit(place->store, &place->err), SEMEL_OK);
}

/* As it is stored, unchecked. */
static void put(struct place *place, const char *settings)
{
    begin(place);
    assert_int_equal(semel_store_consumer_put(place->store, BILLING, semel__str(settings), 1, NULL), SEMEL_OK);
    commit(place);
}

static semel_status set_by(struct place *place, const char *settings, const char *file)
{
    const struct semel_setter by = {.who = SEMEL_STR("ann"), .host = SEMEL_STR("h1"), .file = semel__str(file)};
    struct semel_setting now;

    return semel__consumer_change(place->store, BILLING, semel__str(settings), &by, &place->arena, &now, &place->err);
}

/* All of them, as a route's file says them. */
static void save(struct place *place, const char *settings)
{
    if (set_by(place, settings, "/etc/semel.yaml") != SEMEL_OK)
        fail_msg("%s", place->err.text);
}

/* As a person says what is to change. */
static void change(struct place *place, const char *settings)
{
    if (set_by(place, settings, NULL) != SEMEL_OK)
        fail_msg("%s", place->err.text);
}

static const char *stored(struct place *place)
{
    struct semel_str settings = SEMEL_STR("?");

    assert_int_equal(semel_store_consumer_get(place->store, BILLING, &place->arena, &settings, &place->err), SEMEL_OK);
    return settings.p;
}

static struct semel_policy load(struct place *place, bool *ret_order_said)
{
    struct semel_policy policy;

    if (semel__consumer_load(place->store, BILLING, &place->arena, &policy, ret_order_said, &place->err) != SEMEL_OK)
        fail_msg("%s", place->err.text);
    return policy;
}

/* A3 I24 */
static void what_is_said_is_changed_and_the_rest_stays(void **state)
{
    struct place *place = *state;
    bool said = true;

    assert_null(stored(place));
    assert_int_equal(load(place, &said).retry_max, 8);
    assert_false(said);
    change(place, "{\"retry_max\": 5, \"order\": \"version\"}");
    change(place, "{\"retry_max\": 20}");
    struct semel_policy policy = load(place, &said);
    assert_true(said);
    assert_str(policy.consumer, "billing");
    assert_int_equal(policy.retry_max, 20);
    assert_int_equal(policy.order, SEMEL_ORDER_VERSION);
    change(place, "{\"lease\": \"5s\", \"order\": null}");
    policy = load(place, &said);
    assert_false(said);
    assert_int_equal(policy.retry_max, 20);
    assert_int_equal(policy.lease_us, 5 * SECOND);
    change(place, "{}");
    change(place, NULL);
    change(place, "{\"effect\": null}"); /* it is not there */
    assert_string_equal(stored(place), "{\"retry_max\":20,\"lease\":\"5s\"}");
    change(place, "{\"retry_max\":null,\"lease\":null}");
    assert_string_equal(stored(place), "{}");
}

/* A3 I24 */
static void a_file_says_everything(void **state)
{
    struct place *place = *state;
    bool said;

    change(place, "{\"retry_max\": 5}");
    save(place, "{\"lease\": \"5s\"}");
    assert_int_equal(load(place, &said).retry_max, 8);
    assert_string_equal(stored(place), "{\"lease\":\"5s\"}");
    assert_int_equal(set_by(place, "{\"lease\": null}", "/etc/semel.yaml"), SEMEL_INVALID); /* a file has no null */
    assert_text(&place->err, "lease is null", "duration");
    save(place, NULL);
    assert_string_equal(stored(place), "{}");
}

static void what_is_refused_is_not_stored(void **state)
{
    struct place *place = *state;

    change(place, "{\"retry_max\":5}");
    assert_int_equal(set_by(place, "{\"retry_max\":0}", NULL), SEMEL_INVALID);
    assert_text(&place->err, "retry_max is 0", "1 to 1000");
    assert_int_equal(set_by(place, "{\"lease\":\"1s\",\"retry_mx\":null}", NULL), SEMEL_INVALID);
    assert_text(&place->err, "there is no setting \"retry_mx\"", "retry_max");
    assert_int_equal(set_by(place, "{\"retry_ceiling\":\"1ms\"}", NULL), SEMEL_INVALID); /* the two do not fit */
    assert_text(&place->err, "retry_ceiling is 1ms", "retry_first");
    assert_string_equal(stored(place), "{\"retry_max\":5}");
}

/* A3: what cannot be read is mended by naming it; what is not named is not thrown away. */
static void stored_damage_is_mended_by_a_change_of_it(void **state)
{
    struct place *place = *state;

    put(place, "{\"retry_max\":0,\"x\":1,\"lease\":\"5s\"}");
    assert_int_equal(set_by(place, "{\"retry_max\":5}", NULL), SEMEL_INVALID);
    assert_text(&place->err, "stored settings", "there is no setting \"x\"");
    assert_int_equal(set_by(place, "{\"x\":null}", NULL), SEMEL_INVALID);
    assert_text(&place->err, "stored settings", "retry_max is 0");
    change(place, "{\"x\":null,\"retry_max\":null}");
    assert_string_equal(stored(place), "{\"lease\":\"5s\"}");
    put(place, "{");
    change(place, "{\"retry_max\":5}");
    assert_string_equal(stored(place), "{\"retry_max\":5}");
    put(place, "{\"x\":1}");
    save(place, "{\"retry_max\":6}");
    assert_string_equal(stored(place), "{\"retry_max\":6}");
}

static void stored_damage_is_refused_when_it_is_read(void **state)
{
    static const char *const damaged[] = {
        "", "{", "[]", "{\"retry_max\":0}", "{\"retry_max\":\"5\"}", "{\"x\":1}", "{\"retry_first\":\"1d\"}"};
    struct place *place = *state;
    struct semel__msg msg;

    semel__msg_init(&msg);
    msg.order_key = SEMEL_STR("k");
    for (size_t i = 0; i < COUNT(damaged); i++) {
        struct semel_policy policy;
        bool said;
        semel__policy_init(&policy, BILLING);
        put(place, damaged[i]);
        place->err = (struct semel_error){0};
        assert_int_equal(semel__consumer_load(place->store, BILLING, &place->arena, &policy, &said, &place->err),
                         SEMEL_INVALID);
        assert_text(&place->err, "stored settings", ": ");
        begin(place);
        assert_int_equal(semel__consumer_order(place->store, &msg, false, &policy, 1, &place->err), SEMEL_INVALID);
        assert_text(&place->err, "stored settings", ": ");
        assert_int_equal(policy.order, SEMEL_ORDER_NONE);
        commit(place);
        assert_string_equal(stored(place), damaged[i]);
    }
}

/* ---- the order ------------------------------------------------------------------------------------------ */

/* What becomes of the order when a message of this key and version comes, in a transaction that is committed. */
static semel_status settle(struct place *place, const char *key, int64_t version, struct semel_policy *ret)
{
    struct semel__msg msg;
    semel_status status;
    bool said;

    semel__msg_init(&msg);
    msg.order_key = semel__str(key);
    msg.version = version;
    *ret = load(place, &said);
    begin(place);
    status = semel__consumer_order(place->store, &msg, said, ret, place->now_us, &place->err);
    commit(place);
    return status;
}

/* I12, I13 */
static void the_first_message_with_an_order_key_settles_the_order(void **state)
{
    struct place *place = *state;
    struct semel_policy policy;
    bool said;

    assert_int_equal(settle(place, NULL, 7, &policy), SEMEL_OK);
    assert_int_equal(policy.order, SEMEL_ORDER_NONE);
    assert_null(stored(place));
    assert_int_equal(settle(place, "k", SEMEL_NONE, &policy), SEMEL_OK);
    assert_int_equal(policy.order, SEMEL_ORDER_ARRIVAL);
    assert_string_equal(stored(place), "{\"order\":\"arrival\"}");
    assert_int_equal(load(place, &said).order, SEMEL_ORDER_ARRIVAL);
    assert_true(said);

    save(place, "{}");
    assert_int_equal(settle(place, "k", 7, &policy), SEMEL_OK);
    assert_int_equal(policy.order, SEMEL_ORDER_VERSION);
    assert_string_equal(stored(place), "{\"order\":\"version\"}");
    assert_int_equal(settle(place, "other", 1, &policy), SEMEL_OK);
    assert_int_equal(policy.order, SEMEL_ORDER_VERSION);
}

static void a_settled_order_is_stored_beside_what_was_said_and_nothing_else(void **state)
{
    struct place *place = *state;
    struct semel_policy policy;

    save(place, "{ \"retry_max\" : 5 , \"business_retention\":\"forever\", \"one_source\":true }");
    assert_int_equal(settle(place, "k", 0, &policy), SEMEL_OK);
    assert_int_equal(policy.retry_max, 5);
    assert_true(policy.one_source);
    assert_string_equal(stored(place), "{\"order\":\"version\",\"retry_max\":5,\"business_retention\":\"forever\","
                                       "\"one_source\":true}");
}

static void a_message_that_contradicts_the_order_is_refused(void **state)
{
    struct place *place = *state;
    struct semel_policy policy;

    assert_int_equal(settle(place, "k", SEMEL_NONE, &policy), SEMEL_OK);
    assert_int_equal(settle(place, "k", 7, &policy), SEMEL_INVALID);
    assert_text(&place->err, "order is arrival", "set order to version");
    assert_string_equal(stored(place), "{\"order\":\"arrival\"}");
    assert_int_equal(settle(place, NULL, 7, &policy), SEMEL_OK); /* nothing is ordered by it */
    save(place, "{\"order\":\"arrival\"}");
    assert_int_equal(settle(place, "k", 7, &policy), SEMEL_INVALID);
    /* Bad messages of a good consumer are the inbox's to keep: they must not stop the others. */
    save(place, "{\"order\":\"version\"}");
    assert_int_equal(settle(place, "k", SEMEL_NONE, &policy), SEMEL_OK);
    assert_int_equal(settle(place, NULL, 7, &policy), SEMEL_OK);
    assert_int_equal(policy.order, SEMEL_ORDER_VERSION);
    save(place, "{\"order\":\"none\"}");
    assert_int_equal(settle(place, "k", 7, &policy), SEMEL_OK);
    assert_int_equal(policy.order, SEMEL_ORDER_NONE);
    assert_string_equal(stored(place), "{\"order\":\"none\"}");
}

/* It does not run, and must not hold up those that do. */
static void a_defective_message_contradicts_nothing(void **state)
{
    struct place *place = *state;
    struct semel_policy policy;
    struct semel__msg msg;
    bool said;

    save(place, "{\"order\":\"arrival\"}");
    policy = load(place, &said);
    semel__msg_init(&msg);
    msg.order_key = SEMEL_STR("k");
    msg.version = 7;
    msg.defect = SEMEL_DEFECT_NO_ID;
    assert_int_equal(semel__consumer_order(place->store, &msg, said, &policy, 1, &place->err), SEMEL_OK);
    msg.defect = SEMEL_DEFECT_NONE;
    assert_int_equal(semel__consumer_order(place->store, &msg, said, &policy, 1, &place->err), SEMEL_INVALID);
}

static void an_order_that_the_settings_do_not_allow_is_not_settled(void **state)
{
    struct place *place = *state;
    struct semel_policy policy;

    save(place, "{\"keep_payload\":\"never\"}");
    assert_int_equal(settle(place, "k", SEMEL_NONE, &policy), SEMEL_INVALID);
    assert_text(&place->err, "a message has an order key", "keep_payload is never");
    assert_string_equal(stored(place), "{\"keep_payload\":\"never\"}");
}

/* Two workers read the defaults; then an operator and the other worker were quicker. */
static void what_others_stored_in_the_meantime_is_taken_over_not_overwritten(void **state)
{
    struct place *place = *state;
    struct semel_policy policy = load(place, NULL);
    struct semel__msg msg;

    semel__msg_init(&msg);
    msg.order_key = SEMEL_STR("k");
    msg.version = 7;
    save(place, "{\"retry_max\":3}");
    begin(place);
    assert_int_equal(semel__consumer_order(place->store, &msg, false, &policy, 1, &place->err), SEMEL_OK);
    assert_int_equal(policy.retry_max, 3);
    assert_string_equal(stored(place), "{\"order\":\"version\",\"retry_max\":3}");
    semel_store_rollback(place->store);
    assert_string_equal(stored(place), "{\"retry_max\":3}"); /* it was a part of the transaction */

    save(place, "{\"order\":\"arrival\"}");
    begin(place);
    assert_int_equal(semel__consumer_order(place->store, &msg, false, &policy, 1, &place->err), SEMEL_INVALID);
    msg.version = SEMEL_NONE;
    assert_int_equal(semel__consumer_order(place->store, &msg, false, &policy, 1, &place->err), SEMEL_OK);
    assert_int_equal(policy.order, SEMEL_ORDER_ARRIVAL);
    assert_int_equal(policy.retry_max, 8);
    commit(place);
}

static semel_status read_save_load_settle(struct place *place)
{
    struct semel_str settings = SEMEL_STR("{\"lease\":\"5s\",\"effect\":\"outside\"}");
    struct semel_policy policy;
    struct semel__msg msg;
    bool said;
    const struct semel_setter by = {.who = SEMEL_STR("ann")};
    struct semel_setting now;
    semel_status status = semel__consumer_set(place->store, BILLING, settings, &by, 1, &place->arena, &now,
                                              &place->err);

    semel__msg_init(&msg);
    msg.order_key = SEMEL_STR("k");
    if (status == SEMEL_OK)
        status = semel__consumer_load(place->store, BILLING, &place->arena, &policy, &said, &place->err);
    if (status == SEMEL_OK)
        status = semel__consumer_order(place->store, &msg, said, &policy, 1, &place->err);
    return status;
}

static void without_memory_it_may_be_tried_again(void **state)
{
    struct place *place = *state;
    struct fail_nth fail;
    bool reached = true;

    for (unsigned at = 1; reached; at++) {
        semel_status status;
        semel__arena_done(&place->arena);
        semel__arena_init(&place->arena, 1 << 20);
        begin(place);
        fail_nth_begin(&fail, at);
        status = read_save_load_settle(place);
        reached = fail_nth_end(&fail);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        if (reached)
            assert_int_equal(place->err.cls, SEMEL_CLASS_ENVIRONMENT);
        else
            assert_string_equal(stored(place), "{\"effect\":\"outside\",\"order\":\"arrival\",\"lease\":\"5s\"}");
        semel_store_rollback(place->store);
        assert_null(stored(place));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_said_is_changed_and_the_rest_stays, open_place, close_place),
        cmocka_unit_test_setup_teardown(a_file_says_everything, open_place, close_place),
        cmocka_unit_test_setup_teardown(stored_damage_is_mended_by_a_change_of_it, open_place, close_place),
        cmocka_unit_test_setup_teardown(what_is_refused_is_not_stored, open_place, close_place),
        cmocka_unit_test_setup_teardown(stored_damage_is_refused_when_it_is_read, open_place, close_place),
        cmocka_unit_test_setup_teardown(the_first_message_with_an_order_key_settles_the_order, open_place, close_place),
        cmocka_unit_test_setup_teardown(a_settled_order_is_stored_beside_what_was_said_and_nothing_else, open_place,
                                        close_place),
        cmocka_unit_test_setup_teardown(a_message_that_contradicts_the_order_is_refused, open_place, close_place),
        cmocka_unit_test_setup_teardown(a_defective_message_contradicts_nothing, open_place, close_place),
        cmocka_unit_test_setup_teardown(an_order_that_the_settings_do_not_allow_is_not_settled, open_place,
                                        close_place),
        cmocka_unit_test_setup_teardown(what_others_stored_in_the_meantime_is_taken_over_not_overwritten, open_place,
                                        close_place),
        cmocka_unit_test_setup_teardown(without_memory_it_may_be_tried_again, open_place, close_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
