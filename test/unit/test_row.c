/* SPDX-License-Identifier: MIT
 *
 * test_row.c: what a database gives back is not believed before it was checked, column by column.
 */
#include "unit/unit.h"

#include "base/error.h"
#include "core/row.h"
#include "core/state.h"

#define NOW INT64_C(1700000000000000)

static char long_text[SEMEL_OUTCOME_MAX + 2];

static struct semel_row good(enum semel_row_status state)
{
    bool leased = state == SEMEL_ROW_PROCESSING;

    memset(long_text, 'x', sizeof long_text);
    return (struct semel_row){
        .source = SEMEL_STR("s"),
        .id = SEMEL_STR("m"),
        .type = SEMEL_STR("t"),
        .arrival = 1,
        .order_key = SEMEL_STR("k"),
        .version = 5,
        .message_time_us = NOW,
        .received_us = NOW,
        .updated_us = NOW,
        .position = SEMEL_STR("0/17"),
        .headers = SEMEL_STR("{}"),
        .payload = SEMEL_STR("\xff\0"),
        .kept = true,
        .progress = {.state = state,
                     .attempts = 2,
                     .attempts_before = 1,
                     .retries = 1,
                     .due_us = state == SEMEL_ROW_FAILED ? NOW : SEMEL_NONE,
                     .processed_us = semel__state_final(state) ? NOW : SEMEL_NONE,
                     .lease_owner = leased ? SEMEL_STR("worker") : (struct semel_str){0},
                     .lease_until_us = leased ? NOW : SEMEL_NONE,
                     .lease_token = leased ? 7 : SEMEL_NONE,
                     .error_text = SEMEL_STR("no answer"),
                     .outcome = SEMEL_STR("{}")},
    };
}

static void assert_damaged(const struct semel_row *row, const char *column)
{
    struct semel_error err = {0};

    assert_int_equal(semel__row_check(row, &err), SEMEL_INVALID);
    assert_int_equal(err.cls, SEMEL_CLASS_BROKEN);
    if (strstr(err.text, column) == NULL)
        fail_msg("\"%s\" does not name %s", err.text, column);
}

static void a_good_row_of_every_status_is_believed(void **state)
{
    struct semel_error err;

    (void)state;
    for (unsigned s = SEMEL_ROW_ABSENT + 1; s < SEMEL_ROW_COUNT; s++) {
        struct semel_row row = good((enum semel_row_status)s);
        if (semel__row_check(&row, &err) != SEMEL_OK)
            fail_msg("%s: %s", semel__row_status_name((enum semel_row_status)s), err.text);
    }
}

static void what_may_be_null_may_be_null(void **state)
{
    struct semel_row row = good(SEMEL_ROW_WAITING);

    (void)state;
    row.source = SEMEL_STR("");
    row.type = row.order_key = row.position = row.headers = row.payload = (struct semel_str){0};
    row.version = row.message_time_us = SEMEL_NONE;
    row.progress.error_text = row.progress.outcome = (struct semel_str){0};
    row.progress.due_us = NOW;
    row.version = 0;
    assert_int_equal(semel__row_check(&row, NULL), SEMEL_OK);
}

static void a_status_that_is_none_is_damage(void **state)
{
    struct semel_row row = good(SEMEL_ROW_FAILED);

    (void)state;
    row.progress.state = SEMEL_ROW_ABSENT;
    assert_damaged(&row, "status");
    row.progress.state = SEMEL_ROW_COUNT;
    assert_damaged(&row, "status");
    row.progress.state = (enum semel_row_status)200;
    assert_damaged(&row, "status");
}

/* Every text: too long, not UTF-8, with a NUL. */
static void a_text_that_is_none_is_damage(void **state)
{
    static const struct {
        const char *column;
        size_t offset, max;
    } texts[] = {
        {"message_id", offsetof(struct semel_row, id), SEMEL_ID_MAX},
        {"source", offsetof(struct semel_row, source), SEMEL_ID_MAX},
        {"type", offsetof(struct semel_row, type), SEMEL_ID_MAX},
        {"order_key", offsetof(struct semel_row, order_key), SEMEL_ID_MAX},
        {"position", offsetof(struct semel_row, position), SEMEL_POSITION_MAX},
        {"traceparent", offsetof(struct semel_row, traceparent), SEMEL_ID_MAX},
        {"error_text", offsetof(struct semel_row, progress.error_text), SEMEL_ERROR_TEXT_MAX},
        {"outcome", offsetof(struct semel_row, progress.outcome), SEMEL_OUTCOME_MAX},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct semel_row row = good(SEMEL_ROW_FAILED);
        struct semel_str *field = (struct semel_str *)(void *)((char *)&row + texts[i].offset);
        *field = (struct semel_str){long_text, texts[i].max};
        assert_int_equal(semel__row_check(&row, NULL), SEMEL_OK);
        field->n++;
        assert_damaged(&row, texts[i].column);
        *field = SEMEL_STR("\xc3(");
        assert_damaged(&row, texts[i].column);
        *field = SEMEL_STR("a\0b");
        assert_damaged(&row, texts[i].column);
    }
}

static void headers_beyond_their_limit_are_damage(void **state)
{
    struct semel_row row = good(SEMEL_ROW_FAILED);
    char *text = semel__alloc(SEMEL_HEADERS_MAX + 1);

    (void)state;
    assert_non_null(text);
    memset(text, ' ', SEMEL_HEADERS_MAX + 1);
    row.headers = (struct semel_str){text, SEMEL_HEADERS_MAX};
    assert_int_equal(semel__row_check(&row, NULL), SEMEL_OK);
    row.headers.n++;
    assert_damaged(&row, "headers");
    row.headers = SEMEL_STR("\xff");
    assert_damaged(&row, "headers");
    semel__free(text);
}

static void an_empty_id_is_damage(void **state)
{
    struct semel_row row = good(SEMEL_ROW_FAILED);

    (void)state;
    row.id = SEMEL_STR("");
    assert_damaged(&row, "message_id");
    row.id = (struct semel_str){0};
    assert_damaged(&row, "message_id");
}

static void a_payload_beyond_the_hard_limit_is_damage(void **state)
{
    struct semel_row row = good(SEMEL_ROW_FAILED);

    (void)state;
    row.payload = (struct semel_str){long_text, (size_t)SEMEL_PAYLOAD_HARD_MAX + 1}; /* its bytes are not read */
    assert_damaged(&row, "payload");
    row.payload.n--;
    assert_int_equal(semel__row_check(&row, NULL), SEMEL_OK);
}

static void a_number_out_of_range_is_damage(void **state)
{
    struct semel_row row = good(SEMEL_ROW_FAILED);
    const struct semel_row fine = row;

    (void)state;
    row.arrival = 0;
    assert_damaged(&row, "arrival");
    row.arrival = SEMEL_NONE;
    assert_damaged(&row, "arrival");
    row = fine;
    row.progress.attempts = -1;
    assert_damaged(&row, "attempts");
    row.progress.attempts = 1000001;
    assert_damaged(&row, "attempts");
    row = fine;
    row.progress.attempts_before = -1;
    assert_damaged(&row, "attempts_before");
    row.progress.attempts_before = 3; /* more than there are */
    assert_damaged(&row, "attempts_before");
    row = fine;
    row.progress.retries = -1;
    assert_damaged(&row, "retries");
    row.progress.retries = 1000001;
    assert_damaged(&row, "retries");
    row = fine;
    row.version = -7;
    assert_damaged(&row, "version");
    row.version = INT64_MAX; /* nothing comes after it */
    assert_damaged(&row, "version");
    row = fine;
    row.received_us = SEMEL_NONE;
    assert_damaged(&row, "received_at");
    row = fine;
    row.updated_us = SEMEL_NONE;
    assert_damaged(&row, "updated_at");
}

/* I7: without owner, token and time nobody could end the lease. */
static void a_running_row_has_its_whole_lease(void **state)
{
    struct semel_row row = good(SEMEL_ROW_PROCESSING);
    const struct semel_row fine = row;

    (void)state;
    row.progress.lease_token = SEMEL_NONE;
    assert_damaged(&row, "lease");
    row = fine;
    row.progress.lease_until_us = SEMEL_NONE;
    assert_damaged(&row, "lease");
    row = fine;
    row.progress.lease_owner = (struct semel_str){0};
    assert_damaged(&row, "lease");
    row.progress.lease_owner = SEMEL_STR("");
    assert_damaged(&row, "lease");
    row.progress.lease_owner = SEMEL_STR("\xff");
    assert_damaged(&row, "lease_owner");
    row.progress.lease_owner = (struct semel_str){long_text, SEMEL_ID_MAX + 1};
    assert_damaged(&row, "lease_owner");
}

static void no_other_row_has_any_of_it(void **state)
{
    (void)state;
    for (unsigned s = SEMEL_ROW_ABSENT + 1; s < SEMEL_ROW_COUNT; s++) {
        struct semel_row row = good((enum semel_row_status)s);
        const struct semel_row fine = row;
        if (s == SEMEL_ROW_PROCESSING)
            continue;
        row.progress.lease_token = 7;
        assert_damaged(&row, "lease");
        row = fine;
        row.progress.lease_until_us = NOW;
        assert_damaged(&row, "lease");
        row = fine;
        row.progress.lease_owner = SEMEL_STR("worker");
        assert_damaged(&row, "lease");
    }
}

static void only_failed_and_waiting_rows_are_due(void **state)
{
    (void)state;
    for (unsigned s = SEMEL_ROW_ABSENT + 1; s < SEMEL_ROW_COUNT; s++) {
        struct semel_row row = good((enum semel_row_status)s);
        row.progress.due_us = NOW;
        if (s == SEMEL_ROW_FAILED || s == SEMEL_ROW_WAITING)
            assert_int_equal(semel__row_check(&row, NULL), SEMEL_OK);
        else
            assert_damaged(&row, "due_at");
    }
}

static void final_rows_alone_have_a_time_of_processing(void **state)
{
    (void)state;
    for (unsigned s = SEMEL_ROW_ABSENT + 1; s < SEMEL_ROW_COUNT; s++) {
        struct semel_row row = good((enum semel_row_status)s);
        row.progress.processed_us = semel__state_final(row.progress.state) ? SEMEL_NONE : NOW;
        assert_damaged(&row, "processed_at");
    }
}

/* ---- ids ---------------------------------------------------------------------------------------------- */

static void an_id_is_utf8_of_at_most_255_bytes(void **state)
{
    struct semel_error err;

    (void)state;
    memset(long_text, 'x', sizeof long_text);
    assert_int_equal(semel__id_check("key", SEMEL_STR("\xe2\x82\xac 1"), 1, &err), SEMEL_OK);
    assert_int_equal(semel__id_check("key", (struct semel_str){long_text, 255}, 1, &err), SEMEL_OK);
    assert_int_equal(semel__id_check("key", (struct semel_str){long_text, 256}, 1, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "key has 256 bytes"));
    assert_int_equal(semel__id_check("key", SEMEL_STR(""), 1, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "key is empty"));
    assert_int_equal(semel__id_check("key", (struct semel_str){0}, 1, &err), SEMEL_INVALID);
    assert_int_equal(semel__id_check("key", SEMEL_STR(""), 0, &err), SEMEL_OK);
    assert_int_equal(semel__id_check("key", SEMEL_STR("a\0"), 1, &err), SEMEL_INVALID);
    assert_int_equal(semel__id_check("key", SEMEL_STR("\xed\xa0\x80"), 1, &err), SEMEL_INVALID); /* a surrogate */
    assert_int_equal(err.cls, SEMEL_CLASS_PERMANENT);
}

/* P71: an error text never quotes data. */
static void a_bad_id_is_not_quoted(void **state)
{
    struct semel_error err;

    (void)state;
    assert_int_equal(semel__id_check("key", SEMEL_STR("4111-1111\xff"), 1, &err), SEMEL_INVALID);
    assert_null(strstr(err.text, "4111"));
}

static void the_message_of_a_row_is_what_arrived(void **state)
{
    struct semel_row row = good(SEMEL_ROW_FAILED);
    struct semel__msg msg;

    (void)state;
    row.traceparent = SEMEL_STR("00-1-2-01");
    row.fp = (struct semel_fp){.kind = SEMEL_FP_RAW, .n = 2, .bytes = "ab"};
    semel__row_msg(&row, &msg);
    assert_str(msg.source, "s");
    assert_str(msg.id, "m");
    assert_str(msg.type, "t");
    assert_str(msg.order_key, "k");
    assert_str(msg.position, "0/17");
    assert_str(msg.headers, "{}");
    assert_str(msg.traceparent, "00-1-2-01");
    assert_int_equal(msg.payload.n, 2);
    assert_int_equal(msg.version, 5);
    assert_int_equal(msg.message_time_us, NOW);
    assert_memory_equal(&msg.fp, &row.fp, sizeof msg.fp);
    assert_int_equal(msg.defect, SEMEL_DEFECT_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_row_of_every_status_is_believed),
        cmocka_unit_test(what_may_be_null_may_be_null),
        cmocka_unit_test(a_status_that_is_none_is_damage),
        cmocka_unit_test(a_text_that_is_none_is_damage),
        cmocka_unit_test(headers_beyond_their_limit_are_damage),
        cmocka_unit_test(an_empty_id_is_damage),
        cmocka_unit_test(a_payload_beyond_the_hard_limit_is_damage),
        cmocka_unit_test(a_number_out_of_range_is_damage),
        cmocka_unit_test(a_running_row_has_its_whole_lease),
        cmocka_unit_test(no_other_row_has_any_of_it),
        cmocka_unit_test(only_failed_and_waiting_rows_are_due),
        cmocka_unit_test(final_rows_alone_have_a_time_of_processing),
        cmocka_unit_test(an_id_is_utf8_of_at_most_255_bytes),
        cmocka_unit_test(a_bad_id_is_not_quoted),
        cmocka_unit_test(the_message_of_a_row_is_what_arrived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
