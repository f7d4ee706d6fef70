/* SPDX-License-Identifier: MIT
 *
 * test_extract.c: from a delivery, which is hostile, to a message: each rule, the defaults, and every defect.
 */
#include "unit/unit.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "core/extract.h"
#include "core/headers.h"
#include "core/row.h"

#define PAYLOAD_MAX (1 << 20)
#define PAIR(name, value)                 \
    {                                     \
        SEMEL_STR(name), SEMEL_STR(value) \
    }

struct fixture {
    struct semel_rules rules;
    struct semel_delivery delivery;
    struct semel_arena arena;
    struct semel__msg msg;
};

static int setup(void **state)
{
    static struct fixture f;

    f = (struct fixture){.delivery = {.source = SEMEL_STR("orders"), .payload = SEMEL_STR("{}"), .delivery = 1}};
    semel__arena_init(&f.arena, 64 << 20);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    semel__arena_done(&f->arena);
    return 0;
}

static struct semel_rule rule(const char *text)
{
    struct semel_rule ret;
    struct semel_error err;

    assert_int_equal(semel__rule_parse(semel__str(text), &ret, &err), SEMEL_OK);
    return ret;
}

static void extract(struct fixture *f)
{
    struct semel_error err;

    assert_int_equal(semel__extract(&f->rules, &f->delivery, PAYLOAD_MAX, &f->arena, &f->msg, &err), SEMEL_OK);
    assert_int_equal(f->msg.defect == SEMEL_DEFECT_NONE, !semel__str_given(f->msg.defect_text));
}

static void headers(struct fixture *f, const struct semel_pair *pairs, size_t n)
{
    f->delivery.headers = pairs;
    f->delivery.n_headers = n;
}

static void with_id(struct fixture *f)
{
    static const struct semel_pair id[] = {PAIR("id", "m")};

    headers(f, id, 1);
}

static void assert_defect(const struct fixture *f, enum semel_defect defect, const char *words)
{
    char text[400];

    assert_int_equal(f->msg.defect, defect);
    assert_true(f->msg.defect_text.n < sizeof text);
    memcpy(text, f->msg.defect_text.p, f->msg.defect_text.n);
    text[f->msg.defect_text.n] = '\0';
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", text, words);
}

/* ---- rules -------------------------------------------------------------------------------------------- */

static void a_rule_is_read(void **state)
{
    static const struct {
        const char *text;
        enum semel_rule_kind kind;
        const char *name;
    } rules[] = {
        {"header:ce_id", SEMEL_RULE_HEADER, "ce_id"}, {"property:message_id", SEMEL_RULE_PROPERTY, "message_id"},
        {"json:/a/b", SEMEL_RULE_JSON, "/a/b"},       {"json:", SEMEL_RULE_JSON, ""},
        {"header:x:y", SEMEL_RULE_HEADER, "x:y"},     {"json:/a~1b/~0", SEMEL_RULE_JSON, "/a~1b/~0"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rules); i++) {
        struct semel_rule r = rule(rules[i].text);
        assert_int_equal(r.kind, rules[i].kind);
        assert_str(r.name, rules[i].name);
    }
    assert_int_equal(rule("position").kind, SEMEL_RULE_POSITION);
    assert_int_equal(rule("digest").kind, SEMEL_RULE_DIGEST);
}

static void what_is_no_rule_is_refused_with_the_forms_there_are(void **state)
{
    static const char *const texts[] = {"",       "ce_id",    "Header:x",   "header",  "header:",    "property:",
                                        "json:a", "json:/~2", "json:/\xff", "digest ", "position:1", "header:\xff"};
    struct semel_error err;
    struct semel_rule r = {SEMEL_RULE_DIGEST, {0}};

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        assert_int_equal(semel__rule_parse(semel__str(texts[i]), &r, &err), SEMEL_INVALID);
        assert_int_equal(err.cls, SEMEL_CLASS_BROKEN);
        assert_int_equal(r.kind, SEMEL_RULE_DIGEST); /* untouched */
    }
    assert_int_equal(semel__rule_parse(SEMEL_STR("nonsense"), &r, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "header:NAME"));
    assert_int_equal(semel__rule_parse(SEMEL_STR("header:a\0b"), &r, &err), SEMEL_INVALID);
}

/* ---- the id ------------------------------------------------------------------------------------------- */

static void the_id_is_looked_for_in_order(void **state)
{
    static const struct semel_pair all[] = {PAIR("webhook-id", "4"), PAIR("id", "2"), PAIR("CE_ID", "1")};
    static const struct semel_pair property[] = {PAIR("message_id", "3")};
    struct fixture *f = *state;

    headers(f, all, 3);
    f->delivery.properties = property;
    f->delivery.n_properties = 1;
    extract(f);
    assert_str(f->msg.id, "1");
    headers(f, all, 2);
    extract(f);
    assert_str(f->msg.id, "2");
    headers(f, all, 1);
    extract(f);
    assert_str(f->msg.id, "3");
    f->delivery.n_properties = 0;
    extract(f);
    assert_str(f->msg.id, "4");
    headers(f, NULL, 0);
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "ce_id, id, webhook-id");
}

static void the_id_is_where_the_rule_says_and_nowhere_else(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("id", "wrong"), PAIR("X-Event", "h")};
    static const struct semel_pair property[] = {PAIR("correlation", "p")};
    struct fixture *f = *state;

    headers(f, pairs, 2);
    f->delivery.properties = property;
    f->delivery.n_properties = 1;
    f->delivery.position = SEMEL_STR("0/17");
    f->delivery.payload = SEMEL_STR("{\"a\":{\"id\":\"j\",\"n\":42}}");
    f->rules.id = rule("header:x-event");
    extract(f);
    assert_str(f->msg.id, "h");
    f->rules.id = rule("property:correlation");
    extract(f);
    assert_str(f->msg.id, "p");
    f->rules.id = rule("json:/a/id");
    extract(f);
    assert_str(f->msg.id, "j");
    f->rules.id = rule("json:/a/n");
    extract(f);
    assert_str(f->msg.id, "42");
    f->rules.id = rule("position");
    extract(f);
    assert_str(f->msg.id, "0/17");
    f->rules.id = rule("digest");
    extract(f);
    assert_int_equal(f->msg.id.n, 64);
    f->rules.id = rule("header:missing");
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "there is no header \"missing\"");
    f->rules.id = rule("property:missing");
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "there is no property");
}

static void the_digest_of_a_payload_is_that_of_its_bytes(void **state)
{
    struct fixture *f = *state;

    f->rules.id = rule("digest");
    f->delivery.payload = SEMEL_STR("hello");
    extract(f);
    assert_str(f->msg.id, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    f->delivery.payload = SEMEL_STR("");
    extract(f);
    assert_int_equal(f->msg.defect, SEMEL_DEFECT_NONE);
}

static void a_bad_id_is_no_id(void **state)
{
    static char long_id[256];
    struct semel_pair pairs[] = {PAIR("id", "")};
    struct fixture *f = *state;

    memset(long_id, 'x', sizeof long_id);
    headers(f, pairs, 1);
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "empty");
    pairs[0].value = (struct semel_str){NULL, 0};
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "empty");
    pairs[0].value = (struct semel_str){long_id, 256};
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "256");
    pairs[0].value = SEMEL_STR("a\0b");
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "UTF-8");
    pairs[0].value = SEMEL_STR("\xff\xfe");
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "UTF-8");
    pairs[0].value = (struct semel_str){long_id, 255};
    extract(f);
    assert_int_equal(f->msg.defect, SEMEL_DEFECT_NONE);
    f->rules.id = rule("position"); /* a source without positions */
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "position");
}

static void an_id_in_json_must_be_a_string_or_a_whole_number(void **state)
{
    static const struct {
        const char *payload, *words;
    } bad[] = {
        {"{\"id\":null}", "is null"},
        {"{\"id\":1.5}", "neither a string nor"},
        {"{\"id\":1e3}", "neither a string nor"},
        {"{\"id\":true}", "neither a string nor"},
        {"{\"id\":{}}", "neither a string nor"},
        {"{\"id\":[1]}", "neither a string nor"},
        {"{\"ID\":1}", "is missing"},
        {"{\"id\":\"\"}", "empty"},
        {"[]", "is missing"},
        {"", "not JSON"},
        {"{\"id\":1", "not JSON"},
        {"{\"id\":1,\"id\":2}", "not JSON"}, /* which of them? */
        {"{\"id\":\"\\u0000\"}", "not JSON"},
        {"{\"id\":\"\xff\"}", "not JSON"},
        {"\xef\xbb\xbf{\"id\":1}", "not JSON"},
    };
    struct fixture *f = *state;

    f->rules.id = rule("json:/id");
    for (size_t i = 0; i < COUNT(bad); i++) {
        f->delivery.payload = semel__str(bad[i].payload);
        extract(f);
        assert_defect(f, SEMEL_DEFECT_NO_ID, bad[i].words);
    }
    f->delivery.payload = SEMEL_STR("{\"id\":123456789012345678901234567890}");
    extract(f);
    assert_str(f->msg.id, "123456789012345678901234567890"); /* not rounded: P56 */
}

/* ---- type, trace, source ------------------------------------------------------------------------------ */

static void what_describes_the_message_is_taken_along(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("id", "m"), PAIR("ce_type", "Placed"),
                                              PAIR("TraceParent", "00-a-b-01")};
    static const struct semel_pair property[] = {PAIR("type", "Shipped")};
    struct fixture *f = *state;

    headers(f, pairs, 3);
    f->delivery.properties = property;
    f->delivery.n_properties = 1;
    f->delivery.position = SEMEL_STR("0/1");
    f->delivery.delivery = 4;
    extract(f);
    assert_str(f->msg.type, "Placed");
    assert_str(f->msg.traceparent, "00-a-b-01");
    assert_str(f->msg.source, "orders");
    assert_str(f->msg.position, "0/1");
    assert_str(f->msg.payload, "{}");
    assert_str(f->msg.headers, "{\"id\":\"m\",\"ce_type\":\"Placed\",\"TraceParent\":\"00-a-b-01\"}");
    assert_int_equal(f->msg.delivery, 4);
    headers(f, pairs, 1);
    extract(f);
    assert_str(f->msg.type, "Shipped");
    f->rules.type = rule("json:/type");
    f->delivery.payload = SEMEL_STR("{\"type\":\"Paid\"}");
    extract(f);
    assert_str(f->msg.type, "Paid");
    f->delivery.payload = SEMEL_STR("{}");
    extract(f); /* it is for people: its want is no defect */
    assert_false(semel__str_given(f->msg.type));
    assert_int_equal(f->msg.defect, SEMEL_DEFECT_NONE);
}

/* ---- keys --------------------------------------------------------------------------------------------- */

static void keys_are_taken_by_their_rules(void **state)
{
    struct fixture *f = *state;

    with_id(f);
    f->delivery.payload = SEMEL_STR("{\"order\":\"o-1\",\"account\":7,\"settlement\":\"s-1\"}");
    f->rules.order = rule("json:/order");
    f->rules.lock = rule("json:/account");
    f->rules.business[0] = rule("json:/settlement");
    f->rules.n_business = 1;
    extract(f);
    assert_int_equal(f->msg.defect, SEMEL_DEFECT_NONE);
    assert_str(f->msg.order_key, "o-1");
    assert_str(f->msg.lock_key, "7");
    assert_int_equal(f->msg.n_business, 1);
    assert_str(f->msg.business[0], "s-1");
}

static void a_key_that_cannot_be_had_is_a_defect(void **state)
{
    static const char *const payloads[] = {"{}",         "{\"k\":\"\"}", "{\"k\":null}",
                                           "{\"k\":[]}", "no json",      "{\"k\":1.25}"};
    struct fixture *f = *state;

    with_id(f);
    for (size_t i = 0; i < COUNT(payloads); i++) {
        f->delivery.payload = semel__str(payloads[i]);
        f->rules = (struct semel_rules){.order = rule("json:/k")};
        extract(f);
        assert_defect(f, SEMEL_DEFECT_FIELD, "order key");
        assert_false(semel__str_given(f->msg.order_key));
        f->rules = (struct semel_rules){.lock = rule("json:/k")};
        extract(f);
        assert_defect(f, SEMEL_DEFECT_FIELD, "lock key");
        f->rules = (struct semel_rules){.business = {rule("json:/k")}, .n_business = 1};
        extract(f);
        assert_defect(f, SEMEL_DEFECT_FIELD, "business key");
        assert_false(semel__str_given(f->msg.business[0]));
    }
}

/* I10 */
static void several_business_keys_are_told_apart_by_their_rules(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("id", "m"), PAIR("ref", "7")};
    static const struct semel_pair property[] = {PAIR("ref", "7")};
    struct fixture *f = *state;

    headers(f, pairs, 2);
    f->delivery.properties = property;
    f->delivery.n_properties = 1;
    f->delivery.position = SEMEL_STR("0/7");
    f->delivery.payload = SEMEL_STR("{\"ref\":7}");
    f->rules.business[0] = rule("header:ref");
    f->rules.business[1] = rule("property:ref");
    f->rules.business[2] = rule("json:/ref");
    f->rules.business[3] = rule("position");
    f->rules.n_business = 4;
    extract(f);
    assert_int_equal(f->msg.defect, SEMEL_DEFECT_NONE);
    assert_int_equal(f->msg.n_business, 4);
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < i; k++)
            assert_false(semel__str_eq(f->msg.business[i], f->msg.business[k]));
    assert_str(f->msg.business[0], "header:ref=7");
    assert_str(f->msg.business[3], "position=0/7");
}

/* ---- versions: I12 ------------------------------------------------------------------------------------ */

static void a_version_is_a_whole_number(void **state)
{
    static const struct {
        const char *payload;
        int64_t version;
    } good[] = {{"{\"v\":0}", 0},
                {"{\"v\":17}", 17},
                {"{\"v\":\"17\"}", 17},
                {"{\"v\":9223372036854775806}", INT64_MAX - 1},
                {"{\"v\":-0}", 0}};
    static const char *const bad[] = {"{\"v\":-1}",
                                      "{\"v\":1.0}",
                                      "{\"v\":\"1.0\"}",
                                      "{\"v\":\"+1\"}",
                                      "{\"v\":null}",
                                      "{\"v\":\" 1\"}",
                                      "{\"v\":\"\"}",
                                      "{\"v\":9223372036854775807}",
                                      "{}",
                                      "{\"v\":\"0x1\"}",
                                      "{\"v\":99999999999999999999}"};
    struct fixture *f = *state;

    with_id(f);
    f->rules.version = rule("json:/v");
    for (size_t i = 0; i < COUNT(good); i++) {
        f->delivery.payload = semel__str(good[i].payload);
        extract(f);
        assert_int_equal(f->msg.defect, SEMEL_DEFECT_NONE);
        assert_int_equal(f->msg.version, good[i].version);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        f->delivery.payload = semel__str(bad[i]);
        extract(f);
        assert_defect(f, SEMEL_DEFECT_FIELD, "version");
        assert_int_equal(f->msg.version, SEMEL_NONE);
    }
}

/* ---- the age of a message: I18 ------------------------------------------------------------------------ */

static int64_t time_of(const char *text)
{
    int64_t us = SEMEL_NONE;

    assert_true(semel__time_parse(semel__str(text), &us));
    return us;
}

/* The inbox takes it from the id first: A11, cases_*. */
static void what_the_envelope_says_of_the_time_is_kept_apart(void **state)
{
    struct semel_pair pairs[] = {PAIR("ce_id", "01890a5d-ac96-774b-bcce-b302099a8057"),
                                 PAIR("ce_time", "2026-11-15T19:38:00Z")};
    struct fixture *f = *state;

    headers(f, pairs, 2);
    extract(f);
    assert_int_equal(f->msg.message_time_us, SEMEL_NONE);
    assert_int_equal(f->msg.envelope_time_us, time_of("2026-11-15T19:38:00Z"));
    assert_false(f->msg.timed);
    headers(f, pairs, 1);
    f->rules.timed = true; /* I18: the route counts on it */
    extract(f);
    assert_int_equal(f->msg.envelope_time_us, SEMEL_NONE);
    assert_int_equal(f->msg.defect, SEMEL_DEFECT_NONE);
    assert_true(f->msg.timed);
    f->rules.timed = false;
}

static void a_rule_for_the_time_outranks_the_id(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("id", "01890a5d-ac96-774b-bcce-b302099a8057")};
    struct fixture *f = *state;

    headers(f, pairs, 1);
    f->rules.time = rule("json:/at");
    f->delivery.payload = SEMEL_STR("{\"at\":\"2026-11-15T20:38:00.5+01:00\"}");
    extract(f);
    assert_int_equal(f->msg.message_time_us, time_of("2026-11-15T19:38:00.500Z"));
}

static void a_time_without_a_zone_or_form_is_a_defect(void **state)
{
    static const char *const bad[] = {
        "2026-11-15T19:38:00",          "2026-11-15", "1700000000", "", "yesterday", "2026-02-30T00:00:00Z",
        "2026-11-15T19:38:00Z trailing"};
    struct semel_pair pairs[] = {PAIR("id", "m"), PAIR("ce_time", "")};
    struct fixture *f = *state;

    headers(f, pairs, 2);
    for (size_t i = 0; i < COUNT(bad); i++) {
        pairs[1].value = semel__str(bad[i]);
        f->rules.time = (struct semel_rule){0};
        extract(f);
        assert_defect(f, SEMEL_DEFECT_FIELD, "time");
        f->rules.time = rule("header:ce_time");
        extract(f);
        assert_defect(f, SEMEL_DEFECT_FIELD, "RFC 3339");
        assert_int_equal(f->msg.message_time_us, SEMEL_NONE);
    }
    headers(f, pairs, 1);
    extract(f);
    assert_defect(f, SEMEL_DEFECT_FIELD, "time"); /* the rule asks for it, and it is not there */
}

/* ---- fingerprints ------------------------------------------------------------------------------------- */

static void the_fingerprint_is_that_of_the_payload_parsed_or_not(void **state)
{
    struct fixture *f = *state;

    with_id(f);
    f->delivery.payload = SEMEL_STR("{ \"a\": 1 }");
    extract(f);
    assert_int_equal(f->msg.fp.kind, SEMEL_FP_JSON);
    struct semel_fp unparsed = f->msg.fp;
    f->rules.type = rule("json:/a"); /* the payload has been parsed when the fingerprint is taken */
    extract(f);
    assert_memory_equal(&f->msg.fp, &unparsed, sizeof unparsed);
    f->delivery.payload = SEMEL_STR("[1,");
    extract(f);
    assert_int_equal(f->msg.fp.kind, SEMEL_FP_RAW);
}

static void the_fingerprint_leaves_out_what_a_sender_counts(void **state)
{
    struct fixture *f = *state;

    with_id(f);
    f->rules.count = SEMEL_STR("/pending");
    f->delivery.payload = SEMEL_STR("{\"a\": 1, \"pending\": 2}");
    extract(f);
    assert_int_equal(f->msg.fp.kind, SEMEL_FP_JSON);
    struct semel_fp two = f->msg.fp;
    f->delivery.payload = SEMEL_STR("{\"pending\": 1, \"a\": 1}");
    extract(f);
    assert_memory_equal(&f->msg.fp, &two, sizeof two);
    f->delivery.payload = SEMEL_STR("{\"a\": 2, \"pending\": 2}");
    extract(f);
    assert_true(semel__fp_differs(&f->msg.fp, &two));
    f->delivery.payload = SEMEL_STR("[1,"); /* and where there is none, all of it counts */
    extract(f);
    assert_int_equal(f->msg.fp.kind, SEMEL_FP_RAW);
}

static void a_payload_beyond_the_limit_is_neither_parsed_nor_fingerprinted(void **state)
{
    struct fixture *f = *state;
    char *payload = semel__alloc(PAYLOAD_MAX + 1);

    assert_non_null(payload);
    memset(payload, ' ', PAYLOAD_MAX + 1);
    memcpy(payload, "{\"id\":\"m\"}", 10);
    f->delivery.payload = (struct semel_str){payload, PAYLOAD_MAX + 1};
    f->rules.id = rule("json:/id");
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "not JSON");
    assert_int_equal(f->msg.fp.kind, SEMEL_FP_NONE);
    f->delivery.payload.n--;
    extract(f);
    assert_str(f->msg.id, "m");
    semel__free(payload);
}

/* ---- hostile ------------------------------------------------------------------------------------------ */

static void a_record_without_a_value_is_a_tombstone_and_nobody_else_can_say_so(void **state)
{
    /* A4 P76 */
    struct fixture *f = *state;
    const struct semel_pair pairs[] = {PAIR("id", "m"), PAIR("Semel_Tombstone", "forged"), PAIR("h", "1")};

    headers(f, pairs, 3);
    f->delivery.payload = SEMEL_STR("");
    extract(f);
    assert_str(f->msg.headers, "{\"id\":\"m\",\"h\":\"1\"}");
    assert_true(semel__str_given(f->msg.payload) && f->msg.payload.n == 0);
    assert_false(semel__is_tombstone(&f->msg));
    f->delivery.payload = (struct semel_str){0};
    extract(f);
    assert_int_equal(f->msg.defect, SEMEL_DEFECT_NONE);
    assert_str(f->msg.headers, "{\"id\":\"m\",\"h\":\"1\",\"semel_tombstone\":\"true\"}");
    assert_true(semel__str_given(f->msg.payload) && f->msg.payload.n == 0);
    assert_true(semel__is_tombstone(&f->msg));
    assert_int_equal(f->msg.fp.kind, SEMEL_FP_RAW);
    f->msg.headers = SEMEL_STR("{\"x\":\"\\\"semel_tombstone\\\":\",\"y\":\"semel_tombstone\"}");
    assert_false(semel__is_tombstone(&f->msg));
}

static void too_many_headers_are_a_defect(void **state)
{
    static struct semel_pair pairs[SEMEL_HEADER_COUNT_MAX + 1];
    struct fixture *f = *state;

    for (size_t i = 0; i < COUNT(pairs); i++)
        pairs[i] = (struct semel_pair)PAIR("id", "m");
    headers(f, pairs, SEMEL_HEADER_COUNT_MAX);
    extract(f);
    assert_int_equal(f->msg.defect, SEMEL_DEFECT_NONE);
    headers(f, pairs, SEMEL_HEADER_COUNT_MAX + 1);
    extract(f);
    assert_defect(f, SEMEL_DEFECT_SIZE, "257");
    assert_str(f->msg.id, "m"); /* it is kept under its id */
    assert_false(semel__str_given(f->msg.headers));
}

static void the_first_defect_is_the_one_that_is_told(void **state)
{
    struct fixture *f = *state;

    f->rules.order = rule("json:/missing");
    f->rules.version = rule("json:/missing");
    extract(f);
    assert_defect(f, SEMEL_DEFECT_NO_ID, "message id");
    with_id(f);
    extract(f);
    assert_defect(f, SEMEL_DEFECT_FIELD, "order key");
}

static void deep_and_huge_json_is_a_defect(void **state)
{
    struct fixture *f = *state;
    char *payload = semel__alloc(PAYLOAD_MAX);

    assert_non_null(payload);
    with_id(f);
    f->rules.order = rule("json:/k");
    memset(payload, '[', PAYLOAD_MAX);
    f->delivery.payload = (struct semel_str){payload, PAYLOAD_MAX};
    extract(f);
    assert_defect(f, SEMEL_DEFECT_FIELD, "not JSON");
    assert_int_equal(f->msg.fp.kind, SEMEL_FP_RAW);
    for (size_t i = 0; i + 6 <= PAYLOAD_MAX; i += 6) /* objects without end, and not one that closes */
        memcpy(payload + i, "{\"a\":\"", 6);
    extract(f);
    assert_defect(f, SEMEL_DEFECT_FIELD, "not JSON");
    memset(payload, '9', PAYLOAD_MAX);
    payload[0] = '[';
    payload[PAYLOAD_MAX - 1] = ']';
    extract(f);
    assert_int_equal(f->msg.defect, SEMEL_DEFECT_FIELD);
    semel__free(payload);
}

/* P71 */
static void a_defect_does_not_quote_the_payload(void **state)
{
    static const char *const payloads[] = {"{\"card\":\"4111111111111111\",}",
                                           "{\"k\":{\"card\":\"4111111111111111\"}}", "{\"k\":4111111111111111.5}",
                                           "4111111111111111 is my card"};
    struct fixture *f = *state;

    with_id(f);
    f->rules.order = rule("json:/k");
    f->rules.version = rule("json:/k");
    for (size_t i = 0; i < COUNT(payloads); i++) {
        f->delivery.payload = semel__str(payloads[i]);
        extract(f);
        assert_int_equal(f->msg.defect, SEMEL_DEFECT_FIELD);
        assert_null(strstr(f->msg.defect_text.p, "4111"));
    }
}

/* Whatever comes, the call succeeds, ids and keys are fit or there is a defect, and the reason can be stored. */
static void assert_fit(const struct semel__msg *msg)
{
    if (msg->defect != SEMEL_DEFECT_NO_ID)
        assert_int_equal(semel__id_check("id", msg->id, msg->defect == SEMEL_DEFECT_NONE, NULL), SEMEL_OK);
    assert_int_equal(semel__id_check("order", msg->order_key, 0, NULL), SEMEL_OK);
    assert_true(msg->version == SEMEL_NONE || msg->version >= 0);
    assert_true(msg->defect_text.n <= SEMEL_ERROR_TEXT_MAX && semel__utf8_valid(msg->defect_text));
    assert_true(semel__utf8_valid(msg->headers));
}

static void random_deliveries_give_defects_and_never_a_crash(void **state)
{
    static const char alphabet[] = "{}[]\":,01e-.\\u \xff\xc3\x28nulltrue\0k";
    struct fixture *f = *state;
    struct semel_random rng;
    char bytes[64], name[8], value[300];
    struct semel_pair pairs[2];

    semel__random_seed(&rng, 99);
    f->rules = (struct semel_rules){.order = rule("json:/k"), .version = rule("json:/0"), .time = rule("header:id")};
    for (int i = 0; i < 20000; i++) {
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = alphabet[semel__random_below(&rng, sizeof alphabet)];
        for (size_t k = 0; k < sizeof value; k++)
            value[k] = i % 3 == 0 ? 'v' : (char)semel__random_below(&rng, 256);
        for (size_t k = 0; k < sizeof name; k++)
            name[k] = (char)semel__random_below(&rng, 256);
        f->delivery.payload = (struct semel_str){bytes, semel__random_below(&rng, sizeof bytes + 1)};
        pairs[0] = (struct semel_pair){SEMEL_STR("id"), {value, semel__random_below(&rng, sizeof value + 1)}};
        pairs[1] = (struct semel_pair){{name, semel__random_below(&rng, sizeof name + 1)}, {value, 3}};
        headers(f, pairs, semel__random_below(&rng, 3));
        extract(f);
        assert_fit(&f->msg);
        semel__arena_reset(&f->arena);
    }
}

static void no_memory_is_the_only_failure(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("id", "m"), PAIR("a", "b")};
    struct fixture *f = *state;
    struct fail_nth fail;
    struct semel_error err;
    unsigned at = 1;

    headers(f, pairs, 2);
    f->delivery.payload = SEMEL_STR("{\"k\":\"order\",\"b\":[1,2,3],\"v\":\"text\"}");
    f->rules = (struct semel_rules){.order = rule("json:/k"),
                                    .version = rule("json:/v"),
                                    .business = {rule("digest"), rule("json:/k")},
                                    .n_business = 2};
    for (bool reached = true; reached; at++) {
        semel__arena_done(&f->arena);
        semel__arena_init(&f->arena, 1 << 20);
        fail_nth_begin(&fail, at);
        semel_status status = semel__extract(&f->rules, &f->delivery, PAYLOAD_MAX, &f->arena, &f->msg, &err);
        reached = fail_nth_end(&fail);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        if (reached)
            assert_int_equal(err.cls, SEMEL_CLASS_ENVIRONMENT);
    }
    assert_defect(f, SEMEL_DEFECT_FIELD, "version");
    assert_true(at > 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_rule_is_read),
        TEST(what_is_no_rule_is_refused_with_the_forms_there_are),
        TEST(the_id_is_looked_for_in_order),
        TEST(the_id_is_where_the_rule_says_and_nowhere_else),
        TEST(the_digest_of_a_payload_is_that_of_its_bytes),
        TEST(a_bad_id_is_no_id),
        TEST(an_id_in_json_must_be_a_string_or_a_whole_number),
        TEST(what_describes_the_message_is_taken_along),
        TEST(keys_are_taken_by_their_rules),
        TEST(a_key_that_cannot_be_had_is_a_defect),
        TEST(several_business_keys_are_told_apart_by_their_rules),
        TEST(a_version_is_a_whole_number),
        TEST(what_the_envelope_says_of_the_time_is_kept_apart),
        TEST(a_rule_for_the_time_outranks_the_id),
        TEST(a_time_without_a_zone_or_form_is_a_defect),
        TEST(the_fingerprint_is_that_of_the_payload_parsed_or_not),
        TEST(the_fingerprint_leaves_out_what_a_sender_counts),
        TEST(a_payload_beyond_the_limit_is_neither_parsed_nor_fingerprinted),
        TEST(a_record_without_a_value_is_a_tombstone_and_nobody_else_can_say_so),
        TEST(too_many_headers_are_a_defect),
        TEST(the_first_defect_is_the_one_that_is_told),
        TEST(deep_and_huge_json_is_a_defect),
        TEST(a_defect_does_not_quote_the_payload),
        TEST(random_deliveries_give_defects_and_never_a_crash),
        TEST(no_memory_is_the_only_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
