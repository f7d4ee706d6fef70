/* SPDX-License-Identifier: MIT
 *
 * test_consumer.c: a consumer's settings: what is read, refused and written; test_consumer_store.c has
 * the store.
 *
 * `test_consumer --print` prints the table of docs/settings-consumer.md, which is compared with that page.
 */
#include "unit/unit.h"

#include "base/error.h"
#include "core/consumer.h"

#define SECOND INT64_C(1000000)
#define HOUR (3600 * SECOND)
#define DAY (24 * HOUR)
#define BILLING SEMEL_STR("billing")

/* ---- helpers ------------------------------------------------------------------------------------------- */

static struct semel_policy read_ok(const char *settings)
{
    struct semel_policy policy;
    struct semel_error err = {0};

    if (semel__policy_read(BILLING, semel__str(settings), &policy, NULL, &err) != SEMEL_OK)
        fail_msg("%.200s: %s", settings, err.text);
    return policy;
}

/* INVALID, the setup's fault, for the consumer; and the text has both words. */
static void assert_text(const struct semel_error *err, const char *word, const char *other)
{
    assert_int_equal(err->status, SEMEL_INVALID);
    assert_int_equal(err->cls, SEMEL_CLASS_BROKEN);
    if (strstr(err->text, "settings of consumer \"billing\": ") == NULL || strstr(err->text, word) == NULL ||
        strstr(err->text, other) == NULL)
        fail_msg("\"%s\" does not say %s and %s", err->text, word, other);
}

static void assert_refused_n(struct semel_str settings, const char *word, const char *other)
{
    struct semel_policy policy = {.retry_max = 4711};
    struct semel_error err = {0};
    bool said = true;

    if (semel__policy_read(BILLING, settings, &policy, &said, &err) != SEMEL_INVALID)
        fail_msg("%.*s was not refused", (int)(settings.n < 200 ? settings.n : 200), settings.p);
    assert_text(&err, word, other);
    assert_int_equal(policy.retry_max, 4711); /* written only on success */
    assert_true(said);
    assert_int_equal(semel__policy_read(BILLING, settings, &policy, NULL, NULL), SEMEL_INVALID);
}

static void assert_refused(const char *settings, const char *word, const char *other)
{
    assert_refused_n(semel__str(settings), word, other);
}

/* As text, which lives until the next call. */
static const char *written(const struct semel_policy *policy)
{
    static char text[SEMEL_SETTINGS_MAX];
    struct semel_buf buf;

    semel__buf_init(&buf, sizeof text - 1);
    semel__policy_write(policy, &buf);
    assert_false(buf.failed);
    memcpy(text, buf.p, buf.n);
    text[buf.n] = '\0';
    semel__buf_done(&buf);
    return text;
}

/* ---- every member --------------------------------------------------------------------------------------- */

#define WRONG_KINDS "null", "[]", "[1]", "{}", "{\"a\":1}"
#define NO_NUMBER WRONG_KINDS, "true", "false", "1.5", "1e2", "5.0", "\"5\"", "\"\"", "99999999999999999999", "-1"
#define NO_DURATION                                                                                              \
    WRONG_KINDS, "true", "60", "-60", "\"\"", "\"60\"", "\"s\"", "\"-60s\"", "\"+60s\"", "\"60 s\"", "\" 60s\"", \
        "\"60s \"", "\"60S\"", "\"60sec\"", "\"1.5h\"", "\"1h30m\"", "\"1w\"", "\"0x3cs\"",                      \
        "\"99999999999999999999s\"", "\"106751992d\"", "\"0s\"", "\"0us\"", "\"60s\\u00a0\"", "\"\\uff16s\""
#define NO_WORD WRONG_KINDS, "0", "1", "true", "\"\"", "\"Atomic\"", "\"none \"", "\"nothing\""

/* Values as JSON; those that are good stand there as they are written back. */
static const struct {
    const char *name;
    const char *with; /* what else must be said, for this member to have its whole range */
    const char *good[4], *bad[36];
} values[] = {
    {"effect", "", {"\"atomic\"", "\"outside\"", "\"keyed\""}, {NO_WORD}},
    {"order", "", {"\"none\"", "\"arrival\"", "\"version\""}, {NO_WORD, "\"any\""}},
    {"first_version", "", {"0", "9223372036854775807", "\"any\""}, {NO_NUMBER, "\"none\"", "9223372036854775808"}},
    {"on_gap", "", {"\"dead\"", "\"apply\"", "\"alert\""}, {NO_WORD}},
    {"gap_timeout", "", {"\"1ms\"", "\"30d\""}, {NO_DURATION, "\"999us\"", "\"2592000001ms\""}},
    {"retry_max", "", {"1", "1000"}, {NO_NUMBER, "0", "1001"}},
    {"permanent_max", "", {"1", "1000"}, {NO_NUMBER, "0", "1001"}},
    {"retry_first", "\"retry_ceiling\":\"30d\",", {"\"1ms\"", "\"1d\""}, {NO_DURATION, "\"999us\"", "\"86400001ms\""}},
    {"retry_ceiling", "\"retry_first\":\"1ms\",", {"\"1ms\"", "\"30d\""}, {NO_DURATION, "\"999us\"", "\"31d\""}},
    {"lease", "", {"\"1ms\"", "\"1d\""}, {NO_DURATION, "\"999us\"", "\"25h\""}},
    {"parked_key_max", "", {"1", "100000"}, {NO_NUMBER, "0", "100001"}},
    {"parked_consumer_max", "", {"1", "1000000"}, {NO_NUMBER, "0", "1000001"}},
    {"keep_payload", "", {"\"unfinished\"", "\"always\"", "\"never\""}, {NO_WORD}},
    {"payload_max", "", {"1", "67108864"}, {NO_NUMBER, "0", "67108865"}},
    {"retention", "", {"\"1h\"", "\"36500d\""}, {NO_DURATION, "\"3599s\"", "\"36501d\"", "\"forever\""}},
    {"business_retention",
     "",
     {"\"1ms\"", "\"36500d\"", "\"forever\""},
     {NO_DURATION, "\"999us\"", "\"36501d\"", "\"ever\""}},
    {"timed_ids",
     "",
     {"\"uuidv7\"", "false", "true", "\"ulid\""},
     {"\"\"", "\"true\"", "\"false\"", "\"ULID\"", "0", "1", "1.5", "null", "[]", "{}"}},
    {"one_source", "", {"true", "false"}, {WRONG_KINDS, "0", "1", "\"true\"", "\"\"", "1.5"}},
};

static const char *settings_of(size_t i, const char *value)
{
    static char text[400];

    snprintf(text, sizeof text, "{%s\"%s\": %s}", values[i].with, values[i].name, value);
    return text;
}

static void every_value_of_a_member_is_read_and_written_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(values); i++)
        for (size_t k = 0; k < COUNT(values[i].good) && values[i].good[k] != NULL; k++) {
            struct semel_policy policy = read_ok(settings_of(i, values[i].good[k]));
            char expected[100], first[SEMEL_SETTINGS_MAX];
            snprintf(expected, sizeof expected, "\"%s\":%s", values[i].name, values[i].good[k]);
            snprintf(first, sizeof first, "%s", written(&policy));
            if (strstr(first, expected) == NULL)
                fail_msg("%s is not in %s", expected, first);
            policy = read_ok(first);
            assert_string_equal(written(&policy), first);
        }
}

static void a_wrong_kind_and_a_value_out_of_range_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(values); i++)
        for (size_t k = 0; k < COUNT(values[i].bad) && values[i].bad[k] != NULL; k++) {
            char is[64];
            snprintf(is, sizeof is, ": %s is ", values[i].name);
            assert_refused(settings_of(i, values[i].bad[k]), is, "; it must be ");
        }
}

struct listed {
    size_t n;
    bool seen[COUNT(values)];
};

static void list_member(void *ctx, const char *name, const char *kind, const char *value, const char *help)
{
    struct listed *listed = ctx;

    assert_true(strlen(kind) > 0 && strlen(value) > 0 && strlen(help) > 0);
    for (size_t i = 0; i < COUNT(values); i++)
        if (strcmp(values[i].name, name) == 0)
            listed->seen[i] = true;
    listed->n++;
}

/* Or the two tests above would be silent about a new one. */
static void every_member_is_tried_here(void **state)
{
    struct listed listed = {0};

    (void)state;
    semel__policy_members(list_member, &listed);
    assert_int_equal(listed.n, COUNT(values));
    for (size_t i = 0; i < COUNT(values); i++)
        assert_true(listed.seen[i]);
}

/* What the table allows the check allows too, or the tests above would fail; here the check refuses the same. */
static void the_bounds_of_the_table_are_those_of_the_check(void **state)
{
    static const struct {
        size_t offset;
        int64_t low, high;
    } fields[] = {
        {offsetof(struct semel_policy, gap_timeout_us), 1000, 30 * DAY},
        {offsetof(struct semel_policy, retry_first_us), 1000, DAY},
        {offsetof(struct semel_policy, retry_ceiling_us), SECOND, 30 * DAY},
        {offsetof(struct semel_policy, lease_us), 1000, DAY},
        {offsetof(struct semel_policy, parked_key_max), 1, 100000},
        {offsetof(struct semel_policy, parked_consumer_max), 1, 1000000},
        {offsetof(struct semel_policy, payload_max), 1, 64 << 20},
        {offsetof(struct semel_policy, retention_us), HOUR, 36500 * DAY},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(fields); i++) {
        const int64_t outside[] = {fields[i].low - 1, fields[i].high + 1};
        for (size_t k = 0; k < COUNT(outside); k++) {
            struct semel_policy policy = read_ok("{\"retry_ceiling\":\"30d\"}");
            memcpy((char *)&policy + fields[i].offset, &outside[k], sizeof outside[k]);
            assert_int_equal(semel__policy_check(&policy, NULL), SEMEL_INVALID);
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------------------ */

static void what_is_not_said_has_the_default(void **state)
{
    static const char *const empty[] = {NULL, "{}", " {\n\t} \r\n"};
    struct semel_policy defaults, policy;
    bool said;

    (void)state;
    semel__policy_init(&defaults, BILLING);
    for (size_t i = 0; i < COUNT(empty); i++) {
        char text[SEMEL_SETTINGS_MAX];
        said = true;
        assert_int_equal(semel__policy_read(BILLING, semel__str(empty[i]), &policy, &said, NULL), SEMEL_OK);
        assert_false(said);
        assert_str(policy.consumer, "billing");
        snprintf(text, sizeof text, "%s", written(&policy));
        assert_string_equal(written(&defaults), text);
    }
    policy = read_ok("{\"retention\": \"90d\", \"retry_max\": 5}");
    assert_int_equal(policy.retry_max, 5);
    assert_int_equal(policy.retention_us, 90 * DAY);
    assert_int_equal(policy.lease_us, defaults.lease_us);
    assert_int_equal(semel__policy_read(BILLING, SEMEL_STR("{\"order\":\"none\"}"), &policy, &said, NULL), SEMEL_OK);
    assert_true(said);
}

static void the_defaults_are_written_as_people_would(void **state)
{
    const struct semel_policy policy = read_ok("{}");

    (void)state;
    assert_string_equal(
        written(&policy),
        "{\"effect\":\"atomic\",\"order\":\"none\",\"first_version\":1,\"on_gap\":\"dead\",\"gap_timeout\":\"5m\","
        "\"retry_max\":8,\"permanent_max\":1,\"retry_first\":\"1s\",\"retry_ceiling\":\"10m\",\"lease\":\"1m\","
        "\"parked_key_max\":1000,\"parked_consumer_max\":100000,\"keep_payload\":\"unfinished\","
        "\"payload_max\":1048576,\"retention\":\"45d\",\"business_retention\":\"forever\","
        "\"timed_ids\":\"uuidv7\",\"one_source\":false}");
}

static void what_is_no_object_is_refused(void **state)
{
    (void)state;
    assert_refused("[]", "a list", "a JSON object");
    assert_refused("[{\"retry_max\":5}]", "a list", "a JSON object");
    assert_refused("\"retry_max\"", "\"retry_max\"", "a JSON object");
    assert_refused("5", "is 5", "a JSON object");
    assert_refused("null", "null", "a JSON object");
    assert_refused("true", "true", "a JSON object");
    /* 40 bytes are shown as they are; more are cut, and the cut is seen. */
    assert_refused("\"1234567890123456789012345678901234567890\"", "67890\"", "a JSON object");
    assert_refused("\"12345678901234567890123456789012345678901\"", "67890...\"", "a JSON object");
    assert_refused("", "JSON", "byte 0");
    assert_refused("retry_max=5", "JSON", "byte 0");
    assert_refused("{\"retry_max\":5", "JSON", "byte 14");
    assert_refused("{\"retry_max\":5}}", "JSON", "byte 15");
    assert_refused("{'retry_max':5}", "JSON", "byte 1");
    assert_refused("{\"retry_max\":05}", "JSON", "number");
    assert_refused("{\"retry_max\":\xff}", "JSON", "byte 13");
    assert_refused_n(SEMEL_STR("{\"retry_max\":5}\0"), "JSON", "byte 15");
}

static void a_duplicate_member_is_refused(void **state)
{
    (void)state;
    assert_refused("{\"retry_max\":5,\"retry_max\":5}", "duplicate member", "byte 15");
    assert_refused("{\"lease\":\"1s\",\"retry_max\":5,\"l\\u0065ase\":\"2s\"}", "duplicate member", "byte 28");
}

static void settings_of_more_than_4096_bytes_are_refused(void **state)
{
    static char text[SEMEL_SETTINGS_MAX + 1];
    struct semel_policy policy;

    (void)state;
    memset(text, ' ', sizeof text);
    memcpy(text, "{}", 2);
    assert_int_equal(semel__policy_read(BILLING, (struct semel_str){text, 4096}, &policy, NULL, NULL), SEMEL_OK);
    assert_refused_n((struct semel_str){text, 4097}, "4097", "4096");
}

static void an_unknown_member_is_named_and_what_was_meant_is_suggested(void **state)
{
    (void)state;
    assert_refused("{\"retry_mx\":5}", "\"retry_mx\"", "did you mean retry_max");
    assert_refused("{\"leases\":\"1s\"}", "\"leases\"", "did you mean lease");
    assert_refused("{\"Order\":\"none\"}", "\"Order\"", "did you mean order");
    assert_refused("{\"retry_max\":5,\"colour\":\"red\"}", "\"colour\"", "docs/settings-consumer.md");
    assert_refused("{\"\":1}", "\"\"", "docs/settings-consumer.md");
    assert_refused("{\"consumer\":\"x\"}", "\"consumer\"", "docs/settings-consumer.md");
}

/* P71: an error is safe to show, whatever was given. */
static void only_a_little_of_what_was_given_is_shown(void **state)
{
    static char text[3000];
    struct semel_policy policy;
    struct semel_error err;

    (void)state;
    for (int member = 0; member < 2; member++) {
        int n = snprintf(text, sizeof text, member ? "{\"" : "{\"lease\":\"");
        for (int i = 0; i < 600; i++)
            n += snprintf(text + n, sizeof text - (size_t)n, "\\nA%s", i % 2 ? "\xc3\xa9" : "");
        snprintf(text + n, sizeof text - (size_t)n, member ? "\":1}" : "\"}");
        assert_int_equal(semel__policy_read(BILLING, semel__str(text), &policy, NULL, &err), SEMEL_INVALID);
        assert_non_null(strstr(err.text, "\"?A?A\xc3\xa9?A"));
        assert_non_null(strstr(err.text, "...\""));
        assert_true(strlen(err.text) < 200);
        assert_true(semel__utf8_valid(semel__str(err.text)));
    }
}

static void a_bad_name_of_a_consumer_is_refused(void **state)
{
    static char long_name[256];
    const struct semel_str names[] = {{0}, SEMEL_STR(""), SEMEL_STR("a\0b"), SEMEL_STR("\xff"), {long_name, 256}};
    struct semel_policy policy;

    (void)state;
    memset(long_name, 'c', sizeof long_name);
    for (size_t i = 0; i < COUNT(names); i++) {
        struct semel_error err = {0};
        assert_int_equal(semel__policy_read(names[i], SEMEL_STR("{}"), &policy, NULL, &err), SEMEL_INVALID);
        assert_non_null(strstr(err.text, "consumer "));
    }
}

static void members_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    assert_refused("{\"retry_first\":\"20m\"}", "retry_ceiling is 10m", "retry_first, which is 20m");
    assert_refused("{\"retry_ceiling\":\"900ms\"}", "retry_ceiling is 900ms", "retry_first, which is 1s");
    assert_refused("{\"keep_payload\":\"never\",\"order\":\"arrival\"}", "keep_payload is never", "order");
    assert_refused("{\"keep_payload\":\"never\",\"order\":\"version\"}", "keep_payload is never", "order");
    assert_refused("{\"keep_payload\":\"never\",\"effect\":\"outside\"}", "keep_payload is never", "atomic");
    assert_refused("{\"keep_payload\":\"never\",\"effect\":\"keyed\"}", "keep_payload is never", "atomic");
}

/* ---- durations ------------------------------------------------------------------------------------------ */

static void a_duration_is_a_whole_number_and_a_unit(void **state)
{
    static const struct {
        const char *text;
        int64_t us;
        const char *shortest;
    } good[] = {
        {"0s", 0, "0s"},
        {"0us", 0, "0s"},
        {"1us", 1, "1us"},
        {"1500ms", 1500000, "1500ms"},
        {"90s", 90 * SECOND, "90s"},
        {"60s", 60 * SECOND, "1m"},
        {"24h", DAY, "1d"},
        {"36h", 36 * HOUR, "36h"},
        {"45d", 45 * DAY, "45d"},
        {"007m", 420 * SECOND, "7m"},
        {"1000us", 1000, "1ms"},
        {"106751991d", 106751991 * DAY, "106751991d"},
        {"9223372036854775807us", INT64_MAX, "9223372036854775807us"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(good); i++) {
        char text[32];
        int64_t us = -1;
        assert_true(semel__duration_parse(semel__str(good[i].text), &us));
        assert_true(us == good[i].us);
        semel__duration_format(us, text, sizeof text);
        assert_string_equal(text, good[i].shortest);
        us = -1;
        assert_true(semel__duration_parse(semel__str(text), &us) && us == good[i].us);
    }
}

static void what_is_no_duration_is_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "s",
                                      "5",
                                      "5w",
                                      "5 s",
                                      " 5s",
                                      "5s ",
                                      "-5s",
                                      "+5s",
                                      "-0s",
                                      "1.5s",
                                      "1e3s",
                                      "5S",
                                      "5mm",
                                      "5ss",
                                      "1h30m",
                                      "0x5s",
                                      "106751992d",
                                      "9223372036854775808us",
                                      "99999999999999999999999s"};

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        int64_t us = 4711;
        assert_false(semel__duration_parse(semel__str(bad[i]), &us));
        assert_int_equal(us, 4711);
    }
    int64_t us = 4711;
    assert_false(semel__duration_parse((struct semel_str){0}, &us));
    assert_false(semel__duration_parse(SEMEL_STR("5s\0"), &us));
}

/* ---- the page ------------------------------------------------------------------------------------------- */

static void table_row(void *ctx, const char *name, const char *kind, const char *value, const char *help)
{
    struct semel_buf *buf = ctx;

    semel__buf_addf(buf, "| `%s` | ", name);
    for (; *kind != '\0'; kind++)
        semel__buf_addf(buf, "%s%c", *kind == '|' ? "\\" : "", *kind);
    semel__buf_addf(buf, " | `%s` | %s |\n", value, help);
}

static void table(struct semel_buf *buf)
{
    semel__buf_init(buf, 1 << 16);
    semel__buf_addz(buf, "| member | value | default | what it says |\n|---|---|---|---|\n");
    semel__policy_members(table_row, buf);
    semel__buf_add(buf, "", 1);
}

static void the_page_has_the_table_of_the_members(void **state)
{
    static char page[1 << 16];
    FILE *file = fopen(SETTINGS_PAGE, "re");
    struct semel_buf buf;

    (void)state;
    assert_non_null(file);
    assert_in_range(fread(page, 1, sizeof page - 1, file), 1, sizeof page - 2);
    fclose(file);
    table(&buf);
    assert_false(buf.failed);
    if (strstr(page, buf.p) == NULL)
        fail_msg("docs/settings-consumer.md does not have this table:\n%s", buf.p);
    /* And no row besides. */
    const char *behind = strstr(page, buf.p) + strlen(buf.p);
    assert_null(strstr(behind, "| `"));
    semel__buf_done(&buf);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_of_a_member_is_read_and_written_back),
        cmocka_unit_test(a_wrong_kind_and_a_value_out_of_range_are_refused_by_name),
        cmocka_unit_test(every_member_is_tried_here),
        cmocka_unit_test(the_bounds_of_the_table_are_those_of_the_check),
        cmocka_unit_test(what_is_not_said_has_the_default),
        cmocka_unit_test(the_defaults_are_written_as_people_would),
        cmocka_unit_test(what_is_no_object_is_refused),
        cmocka_unit_test(a_duplicate_member_is_refused),
        cmocka_unit_test(settings_of_more_than_4096_bytes_are_refused),
        cmocka_unit_test(an_unknown_member_is_named_and_what_was_meant_is_suggested),
        cmocka_unit_test(only_a_little_of_what_was_given_is_shown),
        cmocka_unit_test(a_bad_name_of_a_consumer_is_refused),
        cmocka_unit_test(members_that_contradict_each_other_are_refused),
        cmocka_unit_test(a_duration_is_a_whole_number_and_a_unit),
        cmocka_unit_test(what_is_no_duration_is_refused),
        cmocka_unit_test(the_page_has_the_table_of_the_members),
    };

    if (argc > 1 && strcmp(argv[1], "--print") == 0) {
        struct semel_buf buf;
        table(&buf);
        fputs(buf.failed ? "" : buf.p, stdout);
        semel__buf_done(&buf);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
