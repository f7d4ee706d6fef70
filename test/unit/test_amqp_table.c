/* SPDX-License-Identifier: MIT
 *
 * test_amqp_table.c: headers and properties of a message as text, whatever it holds, and messages from frames that the
 * server may have made up; without a server.
 */
#include <math.h>

#include "broker/amqp_private.h"
#include "unit/unit.h"

struct bench {
    struct semel_arena arena;
    struct semel_delivery d;
};

static int setup(void **state)
{
    struct bench *bench = semel__calloc(1, sizeof *bench);

    semel__arena_init(&bench->arena, 8 << 20);
    *state = bench;
    return 0;
}

static int teardown(void **state)
{
    struct bench *bench = *state;

    semel__arena_done(&bench->arena);
    semel__free(bench);
    return 0;
}

static amqp_table_entry_t text_entry(const char *name, const char *value)
{
    return (amqp_table_entry_t){.key = amqp_cstring_bytes(name),
                                .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(value)}};
}

#define ENTRY(name, the_kind, member, the_value)                                                     \
    {                                                                                                \
        .key = amqp_cstring_bytes(name), .value = {.kind = (the_kind), .value.member = (the_value) } \
    }

static const char *flatten(struct bench *bench, const amqp_table_entry_t *entries, size_t n)
{
    static char text[4096];
    const amqp_table_t table = {.num_entries = (int)n, .entries = (amqp_table_entry_t *)(uintptr_t)entries};
    size_t at = 0;

    assert_true(semel__amqp_headers(&table, &bench->arena, &bench->d));
    text[0] = '\0';
    for (size_t i = 0; i < bench->d.n_headers && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%.*s=%.*s", i > 0 ? " " : "",
                               (int)bench->d.headers[i].name.n, bench->d.headers[i].name.p,
                               (int)bench->d.headers[i].value.n, bench->d.headers[i].value.p);
    return text;
}

static void plain_values_become_their_text(void **state)
{
    const amqp_table_entry_t entries[] = {
        text_entry("s", "it's"),
        ENTRY("t", AMQP_FIELD_KIND_BOOLEAN, boolean, 1),
        ENTRY("f", AMQP_FIELD_KIND_BOOLEAN, boolean, 0),
        ENTRY("i8", AMQP_FIELD_KIND_I8, i8, -128),
        ENTRY("u8", AMQP_FIELD_KIND_U8, u8, 255),
        ENTRY("i16", AMQP_FIELD_KIND_I16, i16, -32768),
        ENTRY("u16", AMQP_FIELD_KIND_U16, u16, 65535),
        ENTRY("i32", AMQP_FIELD_KIND_I32, i32, INT32_MIN),
        ENTRY("u32", AMQP_FIELD_KIND_U32, u32, UINT32_MAX),
        ENTRY("i64", AMQP_FIELD_KIND_I64, i64, INT64_MIN),
        ENTRY("u64", AMQP_FIELD_KIND_U64, u64, UINT64_MAX),
        ENTRY("time", AMQP_FIELD_KIND_TIMESTAMP, u64, 1700000000),
        ENTRY("double", AMQP_FIELD_KIND_F64, f64, 0.5),
        ENTRY("float", AMQP_FIELD_KIND_F32, f32, 1e20F),
    };

    assert_string_equal(flatten(*state, entries, COUNT(entries)),
                        "s=it's t=true f=false i8=-128 u8=255 i16=-32768 u16=65535 i32=-2147483648 u32=4294967295 "
                        "i64=-9223372036854775808 u64=18446744073709551615 time=1700000000 double=0.5 "
                        "float=100000002004087730000");
}

static void decimals_have_their_point(void **state)
{
    const amqp_table_entry_t entries[] = {
        ENTRY("a", AMQP_FIELD_KIND_DECIMAL, decimal, ((amqp_decimal_t){2, 1234})),
        ENTRY("b", AMQP_FIELD_KIND_DECIMAL, decimal, ((amqp_decimal_t){0, 7})),
        ENTRY("c", AMQP_FIELD_KIND_DECIMAL, decimal, ((amqp_decimal_t){3, 7})),
        ENTRY("d", AMQP_FIELD_KIND_DECIMAL, decimal, ((amqp_decimal_t){3, (uint32_t)-1234})),
        ENTRY("e", AMQP_FIELD_KIND_DECIMAL, decimal, ((amqp_decimal_t){4, 1234})),
        ENTRY("f", AMQP_FIELD_KIND_DECIMAL, decimal, ((amqp_decimal_t){10, (uint32_t)INT32_MIN})),
        ENTRY("g", AMQP_FIELD_KIND_DECIMAL, decimal, ((amqp_decimal_t){255, 1})),
    };

    assert_string_equal(flatten(*state, entries, COUNT(entries)),
                        "a=12.34 b=7 c=0.007 d=-1.234 e=0.1234 f=-0.2147483648");
}

static void what_cannot_be_text_is_left_out(void **state)
{
    const amqp_table_entry_t entries[] = {
        ENTRY("void", AMQP_FIELD_KIND_VOID, u8, 0),
        ENTRY("nan", AMQP_FIELD_KIND_F64, f64, NAN),
        ENTRY("infinite", AMQP_FIELD_KIND_F32, f32, INFINITY),
        ENTRY("unknown", '?', u64, 7),
        ENTRY("cloudEvents:time", AMQP_FIELD_KIND_TIMESTAMP, u64, UINT64_MAX),
        text_entry("", "no name"),
        text_entry("here", ""),
    };

    assert_string_equal(flatten(*state, entries, COUNT(entries)), "here=");
}

static void bytes_stay_as_they_are(void **state)
{
    struct bench *bench = *state;
    const amqp_table_entry_t entry = {.key = {.len = 3, .bytes = (void *)(uintptr_t) "a\0b"},
                                      .value = {.kind = AMQP_FIELD_KIND_BYTES,
                                                .value.bytes = {.len = 4, .bytes = (void *)(uintptr_t) "\xFF\0\n'"}}};

    flatten(bench, &entry, 1);
    assert_int_equal(bench->d.n_headers, 1);
    assert_true(semel__str_eq(bench->d.headers[0].name, SEMEL_STR("a\0b")));
    assert_true(semel__str_eq(bench->d.headers[0].value, SEMEL_STR("\xFF\0\n'")));
}

static void headers_of_cloudevents_are_called_as_everywhere(void **state)
{
    const amqp_table_entry_t entries[] = {
        text_entry("cloudEvents:id", "1"),
        text_entry("cloudEvents_type", "Placed"),
        ENTRY("cloudEvents:time", AMQP_FIELD_KIND_TIMESTAMP, u64, 1700000000),
        text_entry("cloudEvents:", "nothing"),
        text_entry("cloudEventsid", "2"),
        text_entry("ce_source", "/shop"),
    };

    assert_string_equal(flatten(*state, entries, COUNT(entries)),
                        "ce_id=1 ce_type=Placed ce_time=2023-11-14T22:13:20.000000Z cloudEvents:=nothing "
                        "cloudEventsid=2 ce_source=/shop");
}

static void nested_values_are_called_by_their_path_and_come_last(void **state)
{
    amqp_table_entry_t death[] = {text_entry("queue", "q"), ENTRY("count", AMQP_FIELD_KIND_I64, i64, 3)};
    amqp_field_value_t deaths[] = {
        {.kind = AMQP_FIELD_KIND_TABLE, .value.table = {.num_entries = 2, .entries = death}},
        {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1},
    };
    const amqp_table_entry_t entries[] = {
        ENTRY("x-death", AMQP_FIELD_KIND_ARRAY, array, ((amqp_array_t){2, deaths})),
        text_entry("id", "1"),
    };

    assert_string_equal(flatten(*state, entries, 2), "id=1 x-death.0.queue=q x-death.0.count=3 x-death.1=true");
}

static void depth_is_bounded(void **state)
{
    static amqp_table_entry_t levels[1000];
    amqp_table_entry_t two[2];

    levels[999] = text_entry("bottom", "x");
    for (size_t i = 999; i > 0; i--)
        levels[i - 1] = (amqp_table_entry_t)ENTRY("t", AMQP_FIELD_KIND_TABLE, table, ((amqp_table_t){1, &levels[i]}));
    two[0] = levels[0];
    two[1] = levels[997]; /* t.t.bottom */
    assert_string_equal(flatten(*state, two, 2), "t.t.bottom=x");
}

static void counts_are_bounded_and_plain_ones_go_first(void **state)
{
    struct bench *bench = *state;
    amqp_field_value_t *many = semel__calloc(50000, sizeof *many);
    amqp_table_entry_t *entries = semel__calloc(5000, sizeof *entries);

    for (size_t i = 0; i < 50000; i++)
        many[i] = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_U8, .value.u8 = 7};
    for (size_t i = 0; i < 5000; i++)
        entries[i] = text_entry("n", "v");
    entries[0] = (amqp_table_entry_t)ENTRY("a", AMQP_FIELD_KIND_ARRAY, array, ((amqp_array_t){50000, many}));
    flatten(bench, entries, 5000);
    assert_int_equal(bench->d.n_headers, 1024 + 128); /* more than core takes: it is said, not hidden */
    assert_str(bench->d.headers[0].name, "n");
    assert_str(bench->d.headers[1024].name, "a.0");
    flatten(bench, entries, 1); /* alone it has no more than it may */
    assert_int_equal(bench->d.n_headers, 128);
    semel__free(many);
    semel__free(entries);
}

static void name_that_grows_too_long_is_left_out(void **state)
{
    static char name[256];
    amqp_table_entry_t levels[3];

    memset(name, 'n', 255);
    levels[2] = text_entry(name, "x");
    levels[1] = (amqp_table_entry_t)ENTRY(name, AMQP_FIELD_KIND_TABLE, table, ((amqp_table_t){1, &levels[2]}));
    levels[0] = (amqp_table_entry_t)ENTRY(name, AMQP_FIELD_KIND_TABLE, table, ((amqp_table_t){1, &levels[1]}));
    flatten(*state, levels, 1);
    assert_int_equal(((struct bench *)*state)->d.n_headers, 1);
    assert_int_equal(((struct bench *)*state)->d.headers[0].name.n, 3 * 255 + 2);
}

/* ---- properties --------------------------------------------------------------------------------------- */

static void properties_that_are_given_are_told(void **state)
{
    struct bench *bench = *state;
    const amqp_basic_properties_t properties = {._flags = AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_TIMESTAMP_FLAG |
                                                          AMQP_BASIC_TYPE_FLAG,
                                                .message_id = amqp_cstring_bytes("e-1"),
                                                .timestamp = 1700000000,
                                                .app_id = amqp_cstring_bytes("not given")};
    static const char *const expected[][2] = {{"message_id", "e-1"},
                                              {"type", ""},
                                              {"timestamp", "2023-11-14T22:13:20.000000Z"},
                                              {"routing_key", "k"},
                                              {"exchange", ""}};

    assert_true(semel__amqp_properties(&properties, SEMEL_STR("k"), SEMEL_STR(""), &bench->arena, &bench->d));
    assert_int_equal(bench->d.n_properties, COUNT(expected));
    for (size_t i = 0; i < COUNT(expected); i++) {
        assert_str(bench->d.properties[i].name, expected[i][0]);
        assert_str(bench->d.properties[i].value, expected[i][1]);
    }
}

static void deliveries_are_counted_as_the_queue_says(void **state)
{
    amqp_table_entry_t entry = ENTRY("x-delivery-count", AMQP_FIELD_KIND_I64, i64, 4);
    amqp_basic_properties_t properties = {.headers = {.num_entries = 1, .entries = &entry}};

    (void)state;
    assert_int_equal(semel__amqp_delivery_count(&properties), 2); /* the headers are not given */
    properties._flags = AMQP_BASIC_HEADERS_FLAG;
    assert_int_equal(semel__amqp_delivery_count(&properties), 5);
    entry.value.value.i64 = INT64_MAX;
    assert_int_equal(semel__amqp_delivery_count(&properties), 1000000);
    entry.value.value.i64 = -3;
    assert_int_equal(semel__amqp_delivery_count(&properties), 2);
    entry.value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes("9")};
    assert_int_equal(semel__amqp_delivery_count(&properties), 2);
}

/* ---- frames ------------------------------------------------------------------------------------------- */

static amqp_frame_t header_frame(const amqp_basic_properties_t *properties, uint64_t size)
{
    amqp_frame_t frame = {.frame_type = AMQP_FRAME_HEADER};

    frame.payload.properties.class_id = AMQP_BASIC_CLASS;
    frame.payload.properties.body_size = size;
    frame.payload.properties.decoded = (void *)(uintptr_t)properties;
    return frame;
}

static amqp_frame_t body_frame(const char *text)
{
    amqp_frame_t frame = {.frame_type = AMQP_FRAME_BODY};

    frame.payload.body_fragment = amqp_cstring_bytes(text);
    return frame;
}

static void message_is_made_of_its_pieces(void **state)
{
    struct bench *bench = *state;
    const amqp_basic_properties_t properties = {0};
    const amqp_basic_deliver_t deliver = {.delivery_tag = 1, .routing_key = amqp_cstring_bytes("k")};
    const amqp_frame_t frames[] = {header_frame(&properties, 5), body_frame("ab"), body_frame(""), body_frame("cde")};
    struct amqp_build build;

    semel__amqp_build_init(&build);
    assert_int_equal(semel__amqp_build_deliver(&build, &deliver, NULL), SEMEL_OK);
    for (size_t i = 0; i < COUNT(frames); i++) {
        assert_int_not_equal(build.stage, AMQP_STAGE_WHOLE);
        assert_int_equal(semel__amqp_build_content(&build, &frames[i], NULL), SEMEL_OK);
    }
    assert_int_equal(build.stage, AMQP_STAGE_WHOLE);
    assert_true(semel__amqp_build_copy(&build, &bench->arena, &bench->d));
    assert_str(bench->d.payload, "abcde");
    assert_int_equal(bench->d.delivery, 1);
    semel__amqp_build_done(&build);
}

static void frames_that_do_not_fit_end_the_connection(void **state)
{
    const amqp_basic_properties_t properties = {0};
    const amqp_basic_deliver_t deliver = {.delivery_tag = 1}, zero = {0}, far = {.delivery_tag = UINT64_MAX};
    const amqp_frame_t header = header_frame(&properties, 3), large = header_frame(&properties, UINT64_MAX),
                       body = body_frame("abcd");
    struct amqp_build build;

    (void)state;
    semel__amqp_build_init(&build);
    assert_int_not_equal(semel__amqp_build_content(&build, &header, NULL), SEMEL_OK); /* of no delivery */
    assert_int_not_equal(semel__amqp_build_content(&build, &body, NULL), SEMEL_OK);
    assert_int_not_equal(semel__amqp_build_deliver(&build, &zero, NULL), SEMEL_OK);
    assert_int_not_equal(semel__amqp_build_deliver(&build, &far, NULL), SEMEL_OK);
    assert_int_equal(semel__amqp_build_deliver(&build, &deliver, NULL), SEMEL_OK);
    assert_int_not_equal(semel__amqp_build_deliver(&build, &deliver, NULL), SEMEL_OK); /* in the middle of another */
    assert_int_not_equal(semel__amqp_build_content(&build, &body, NULL), SEMEL_OK);    /* before its header */
    assert_int_not_equal(semel__amqp_build_content(&build, &large, NULL), SEMEL_OK);
    assert_int_equal(semel__amqp_build_content(&build, &header, NULL), SEMEL_OK);
    assert_int_not_equal(semel__amqp_build_content(&build, &header, NULL), SEMEL_OK);
    assert_int_not_equal(semel__amqp_build_content(&build, &body, NULL), SEMEL_OK); /* more than was said */
    semel__amqp_build_drop(&build);
    assert_int_not_equal(semel__amqp_build_deliver(&build, &deliver, NULL), SEMEL_OK); /* the number came before */
    semel__amqp_build_done(&build);
}

static bool build_one(struct bench *bench, struct amqp_build *build, uint64_t number)
{
    amqp_table_entry_t entry = text_entry("id", "1");
    const amqp_basic_properties_t properties = {._flags = AMQP_BASIC_HEADERS_FLAG,
                                                .headers = {.num_entries = 1, .entries = &entry}};
    const amqp_basic_deliver_t deliver = {.delivery_tag = number};
    const amqp_frame_t header = header_frame(&properties, 5000);

    return semel__amqp_build_deliver(build, &deliver, NULL) == SEMEL_OK &&
           semel__amqp_build_content(build, &header, NULL) == SEMEL_OK &&
           semel__amqp_build_copy(build, &bench->arena, &bench->d);
}

static void each_failing_allocation_is_a_status(void **state)
{
    struct bench *bench = *state;
    struct fail_nth fail;
    unsigned at = 1;

    for (bool reached = true; reached; at++) {
        struct amqp_build build;
        bool built;
        semel__amqp_build_init(&build);
        semel__arena_done(&bench->arena);
        fail_nth_begin(&fail, at);
        built = build_one(bench, &build, 1);
        reached = fail_nth_end(&fail);
        assert_int_equal(built, !reached);
        semel__amqp_build_done(&build);
    }
    assert_true(at > 3);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(plain_values_become_their_text),
        TEST(decimals_have_their_point),
        TEST(what_cannot_be_text_is_left_out),
        TEST(bytes_stay_as_they_are),
        TEST(headers_of_cloudevents_are_called_as_everywhere),
        TEST(nested_values_are_called_by_their_path_and_come_last),
        TEST(depth_is_bounded),
        TEST(counts_are_bounded_and_plain_ones_go_first),
        TEST(name_that_grows_too_long_is_left_out),
        TEST(properties_that_are_given_are_told),
        TEST(deliveries_are_counted_as_the_queue_says),
        TEST(message_is_made_of_its_pieces),
        TEST(frames_that_do_not_fit_end_the_connection),
        TEST(each_failing_allocation_is_a_status),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
