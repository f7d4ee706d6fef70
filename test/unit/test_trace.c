/* SPDX-License-Identifier: MIT
 *
 * test_trace.c: a traceparent is continued when it is one, and never otherwise.
 */
#include "base/trace.h"
#include "unit.h"

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define SPAN "b7ad6b7169203331"

static void a_traceparent_survives_reading_and_writing(void **state)
{
    (void)state;
    static const char *const texts[] = {"00-" TRACE "-" SPAN "-01", "00-" TRACE "-" SPAN "-00",
                                        "00-00000000000000000000000000000001-0000000000000001-01"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct semel_trace trace;
        char out[SEMEL_TRACE_TEXT];
        assert_true(semel__trace_parse(semel__str(texts[i]), &trace));
        semel__trace_format(&trace, out);
        assert_string_equal(out, texts[i]);
    }
}

static void the_ids_are_the_bytes_of_the_text(void **state)
{
    (void)state;
    struct semel_trace trace;
    assert_true(semel__trace_parse(SEMEL_STR("00-" TRACE "-" SPAN "-01"), &trace));
    static const unsigned char span[] = {0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31};
    assert_memory_equal(trace.span_id, span, sizeof(span));
    assert_int_equal(trace.trace_id[0], 0x0a);
    assert_int_equal(trace.trace_id[15], 0x9c);
    assert_int_equal(trace.flags, SEMEL_TRACE_SAMPLED);
}

/* A later version is read as far as version 00 goes, and goes on as version 00 with the flags that it knows. */
static void a_later_version_is_continued_as_version_00(void **state)
{
    (void)state;
    static const char *const texts[] = {"01-" TRACE "-" SPAN "-ff", "cc-" TRACE "-" SPAN "-01-what-the-future-brings",
                                        "fe-" TRACE "-" SPAN "-03-"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct semel_trace trace;
        char out[SEMEL_TRACE_TEXT];
        assert_true(semel__trace_parse(semel__str(texts[i]), &trace));
        semel__trace_format(&trace, out);
        assert_string_equal(out, "00-" TRACE "-" SPAN "-01");
    }
}

static void what_is_not_a_traceparent_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "00",
        "00-" TRACE "-" SPAN "-0",                         /* cut */
        "00-" TRACE "-" SPAN "-01-",                       /* version 00 ends with its flags */
        "00-" TRACE "-" SPAN "-01-more",                   /* the same */
        "cc-" TRACE "-" SPAN "-01.more",                   /* a later version goes on with a dash */
        "ff-" TRACE "-" SPAN "-01",                        /* version ff is forbidden */
        "0-" TRACE "-" SPAN "-01 ",                        /* shifted */
        "00-00000000000000000000000000000000-" SPAN "-01", /* no trace */
        "00-" TRACE "-0000000000000000-01",                /* no span */
        "00-0AF7651916CD43DD8448EB211C80319C-" SPAN "-01", /* upper case */
        "00-0af7651916cd43dd8448eb211c80319g-" SPAN "-01", /* not a digit */
        "00_" TRACE "-" SPAN "-01",                        /* not a dash */
        "00-" TRACE "_" SPAN "-01",
        "00-" TRACE "-" SPAN "_01",
        "0x-" TRACE "-" SPAN "-01",
        "00-" TRACE "-" SPAN "-0x",
        " 00-" TRACE "-" SPAN "-01",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct semel_trace trace = {.flags = 77};
        assert_false(semel__trace_parse(semel__str(texts[i]), &trace));
        assert_int_equal(trace.flags, 77);
    }
    struct semel_trace trace;
    assert_false(semel__trace_parse((struct semel_str){NULL, 0}, &trace));
}

static void an_endless_header_of_a_later_version_is_refused(void **state)
{
    (void)state;
    char text[SEMEL_TRACE_MAX + 1];
    struct semel_trace trace;
    memset(text, 'x', sizeof(text));
    memcpy(text, "01-" TRACE "-" SPAN "-01-", 56);
    assert_true(semel__trace_parse((struct semel_str){text, SEMEL_TRACE_MAX}, &trace));
    assert_false(semel__trace_parse((struct semel_str){text, SEMEL_TRACE_MAX + 1}, &trace));
}

static void a_child_keeps_the_trace_under_a_span_of_its_own(void **state)
{
    (void)state;
    struct semel_random rng;
    struct semel_trace parent;
    semel__random_seed(&rng, 1);
    assert_true(semel__trace_parse(SEMEL_STR("00-" TRACE "-" SPAN "-01"), &parent));
    struct semel_trace one = semel__trace_child(&parent, &rng), two = semel__trace_child(&parent, &rng);
    assert_memory_equal(one.trace_id, parent.trace_id, sizeof(one.trace_id));
    assert_int_equal(one.flags, parent.flags);
    assert_memory_not_equal(one.span_id, parent.span_id, sizeof(one.span_id));
    assert_memory_not_equal(one.span_id, two.span_id, sizeof(one.span_id));
}

static void a_new_trace_can_be_read_back(void **state)
{
    (void)state;
    struct semel_random rng;
    char out[SEMEL_TRACE_TEXT];
    semel__random_seed(&rng, 2);
    struct semel_trace trace = semel__trace_new(&rng, 0xFF), back;
    semel__trace_format(&trace, out);
    assert_true(semel__trace_parse(semel__str(out), &back));
    assert_memory_equal(&trace, &back, sizeof(trace));
    assert_int_equal(back.flags, SEMEL_TRACE_SAMPLED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_traceparent_survives_reading_and_writing),
        cmocka_unit_test(the_ids_are_the_bytes_of_the_text),
        cmocka_unit_test(a_later_version_is_continued_as_version_00),
        cmocka_unit_test(what_is_not_a_traceparent_is_refused),
        cmocka_unit_test(an_endless_header_of_a_later_version_is_refused),
        cmocka_unit_test(a_child_keeps_the_trace_under_a_span_of_its_own),
        cmocka_unit_test(a_new_trace_can_be_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
