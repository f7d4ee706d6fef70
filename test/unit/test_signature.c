/* SPDX-License-Identifier: MIT
 *
 * test_signature.c: signatures of webhooks, by what their makers have published: the examples of Standard Webhooks'
 * libraries, of stripe-dotnet's EventUtilityTest, of GitHub's "Validating webhook deliveries", of shopify-api-php's
 * RegistryTest, and of Slack's "Verifying requests from Slack" for the generic HMAC; and what strangers may send.
 */
#include "base/signature.h"
#include "unit.h"

#define SECOND_US INT64_C(1000000)

static const char standard_secret[] = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
static const char standard_body[] = "{\"test\": 2432232314}";
static const char standard_signature[] = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
#define STANDARD_ID "msg_p5jXN8AQM9LWM0D4loKWxJek"
#define STANDARD_TIME "1614265330"

static const char stripe_body[] = "{\n"
                                  "  \"id\": \"evt_123\",\n"
                                  "  \"object\": \"event\",\n"
                                  "  \"account\": \"acct_123\",\n"
                                  "  \"api_version\": \"2017-05-25\",\n"
                                  "  \"created\": 1533204620,\n"
                                  "  \"data\": {\n"
                                  "    \"object\": {\n"
                                  "      \"id\": \"cus_123\",\n"
                                  "      \"object\": \"customer\",\n"
                                  "      \"created\": 123456789,\n"
                                  "      \"email\": \"test@stripe.com\",\n"
                                  "      \"livemode\": false,\n"
                                  "      \"metadata\": {}\n"
                                  "    }\n"
                                  "  },\n"
                                  "  \"livemode\": false,\n"
                                  "  \"pending_webhooks\": 1,\n"
                                  "  \"request\": {\n"
                                  "    \"id\": \"req_123\",\n"
                                  "    \"idempotency_key\": \"idempotency-key-123\"\n"
                                  "  },\n"
                                  "  \"type\": \"customer.created\"\n"
                                  "}\n";
#define STRIPE_V1 "2220f87ef101a04665f11cdf770523143f875572008577fa0f20882ddb9cc3c7"
#define STRIPE_V0 "63f3a72374a733066c4be69ed7f8e5ac85c22c9f0a6a612ab9a025a9e4ee7eef"
#define STRIPE_TIME INT64_C(1533204620)

static const char github_signature[] = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

static const char slack_body[] =
    "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    "&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack."
    "com"
    "%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121."
    "803a0bc887a14d10d2c447fce8b6703c";
static const char slack_signature[] = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";

/* ---- a rig ---------------------------------------------------------------------------------------------- */

struct rig {
    struct semel_signature_options options;
    struct semel_str secrets[SEMEL_SIGNATURE_SECRETS];
    struct semel_signed taken;
    struct semel_str body;
    int64_t now_s;
    char why[SEMEL_SIGNATURE_WHY];
};

static struct rig rig_of(enum semel_signature_scheme scheme, const char *secret, const char *body, int64_t now_s)
{
    struct rig rig = {.options = {.on = true, .scheme = scheme, .tolerance_us = 300 * SECOND_US},
                      .secrets = {semel__str(secret)},
                      .body = semel__str(body),
                      .now_s = now_s};
    rig.options.secrets.n = 1;
    return rig;
}

static struct rig slack_rig(void)
{
    struct rig rig = rig_of(SEMEL_SIGNATURE_HMAC, "8f742231b10e8888abcd99yyyzzz85a5", slack_body, 1531420618);
    rig.options.header = SEMEL_STR("X-Slack-Signature");
    rig.options.prefix = SEMEL_STR("v0=");
    rig.options.timestamp_header = SEMEL_STR("X-Slack-Request-Timestamp");
    rig.options.content = SEMEL_STR("v0:{timestamp}:{body}");
    return rig;
}

/* Headers in pairs, ended by NULL. */
static enum semel_signature_result check(struct rig *rig, const char *const *headers)
{
    struct semel_signature signature;
    rig->options.secrets.at = rig->secrets;
    rig->taken = (struct semel_signed){0};
    assert_true(semel__signature_init(&signature, &rig->options));
    for (; *headers != NULL; headers += 2)
        semel__signature_take(&signature, &rig->taken, semel__str(headers[0]), semel__str(headers[1]));
    enum semel_signature_result result = semel__signature_check(&signature, &rig->taken, rig->body,
                                                                rig->now_s * SECOND_US, rig->why);
    assert_true((result == SEMEL_SIGNATURE_GOOD) == (rig->why[0] == '\0'));
    for (size_t i = 0; i < rig->options.secrets.n; i++)
        assert_null(strstr(rig->why, rig->secrets[i].p));
    semel__signature_done(&signature);
    return result;
}

#define CHECK(rig, ...) check((rig), (const char *const[]){__VA_ARGS__, NULL})

static enum semel_signature_result check_standard(const char *id, const char *time, const char *signature)
{
    struct rig rig = rig_of(SEMEL_SIGNATURE_STANDARD, standard_secret, standard_body, 1614265330);
    return CHECK(&rig, "Webhook-Id", id, "webhook-timestamp", time, "WEBHOOK-SIGNATURE", signature);
}

static enum semel_signature_result check_stripe(const char *header, int64_t now_s)
{
    struct rig rig = rig_of(SEMEL_SIGNATURE_STRIPE, "webhook_secret", stripe_body, now_s);
    return CHECK(&rig, "Stripe-Signature", header);
}

/* ---- the published examples ----------------------------------------------------------------------------- */

static void published_examples_are_good(void **state)
{
    (void)state;
    assert_int_equal(check_standard(STANDARD_ID, STANDARD_TIME, standard_signature), SEMEL_SIGNATURE_GOOD);
    assert_int_equal(check_stripe("t=1533204620,v1=" STRIPE_V1 ",v0=" STRIPE_V0, STRIPE_TIME + 100),
                     SEMEL_SIGNATURE_GOOD);
    struct rig github = rig_of(SEMEL_SIGNATURE_GITHUB, "It's a Secret to Everybody", "Hello, World!", 0);
    assert_int_equal(CHECK(&github, "X-Hub-Signature-256", github_signature), SEMEL_SIGNATURE_GOOD);
    struct rig shopify = rig_of(SEMEL_SIGNATURE_SHOPIFY, "steffi", "{\"foo\":\"bar\"}", 0);
    assert_int_equal(CHECK(&shopify, "X-Shopify-Hmac-Sha256", "/Redz4YXHLnSmmSN8grr5/Jl/Ua3d7yX3iWbjb8R8wo="),
                     SEMEL_SIGNATURE_GOOD);
    struct rig slack = slack_rig();
    assert_int_equal(CHECK(&slack, "x-slack-signature", slack_signature, "x-slack-request-timestamp", "1531420618"),
                     SEMEL_SIGNATURE_GOOD);
}

/* RFC 4231 and RFC 2202, case 2. */
static void generic_hmac_has_its_algorithm_and_encoding(void **state)
{
    (void)state;
    struct rig rig = rig_of(SEMEL_SIGNATURE_HMAC, "Jefe", "what do ya want for nothing?", 0);
    rig.options.header = SEMEL_STR("X-Sign");
    rig.options.algorithm = SEMEL_HASH_SHA512;
    static const char sha512[] = "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554"
                                 "9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737";
    assert_int_equal(CHECK(&rig, "x-sign", sha512), SEMEL_SIGNATURE_GOOD);
    rig.options.algorithm = SEMEL_HASH_SHA1;
    assert_int_equal(CHECK(&rig, "x-sign", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"), SEMEL_SIGNATURE_GOOD);
    assert_int_equal(CHECK(&rig, "x-sign", "EFFCDF6AE5EB2FA2D27416D5F184DF9C259A7C79"), SEMEL_SIGNATURE_GOOD);
    assert_int_equal(CHECK(&rig, "x-sign", sha512), SEMEL_SIGNATURE_WRONG);
    rig.options.encoding = 1;
    assert_int_equal(CHECK(&rig, "x-sign", "7/zfauXrL6LSdBbV8YTfnCWafHk="), SEMEL_SIGNATURE_GOOD);
    assert_int_equal(CHECK(&rig, "x-sign", "7/zfauXrL6LSdBbV8YTfnCWafHk"), SEMEL_SIGNATURE_WRONG);
    assert_int_equal(CHECK(&rig, "x-sign", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"), SEMEL_SIGNATURE_WRONG);
    rig.options.algorithm = SEMEL_HASH_SHA256; /* a SHA-1 is not taken for it */
    assert_int_equal(CHECK(&rig, "x-sign", "7/zfauXrL6LSdBbV8YTfnCWafHk="), SEMEL_SIGNATURE_WRONG);
}

/* ---- bad input ------------------------------------------------------------------------------------------ */

static void every_changed_byte_makes_it_wrong(void **state)
{
    (void)state;
    char body[sizeof stripe_body];
    for (size_t i = 0; i < sizeof body - 1; i++) {
        struct rig rig = rig_of(SEMEL_SIGNATURE_STRIPE, "webhook_secret", stripe_body, STRIPE_TIME);
        memcpy(body, stripe_body, sizeof body);
        body[i] ^= 1;
        rig.body.p = body;
        assert_int_equal(CHECK(&rig, "Stripe-Signature", "t=1533204620,v1=" STRIPE_V1), SEMEL_SIGNATURE_WRONG);
    }
    char signature[sizeof github_signature];
    for (size_t i = strlen("sha256="); i < sizeof signature - 1; i++) {
        struct rig rig = rig_of(SEMEL_SIGNATURE_GITHUB, "It's a Secret to Everybody", "Hello, World!", 0);
        memcpy(signature, github_signature, sizeof signature);
        signature[i] = signature[i] == '0' ? '1' : '0';
        assert_int_equal(CHECK(&rig, "X-Hub-Signature-256", signature), SEMEL_SIGNATURE_WRONG);
    }
    assert_int_equal(check_standard(STANDARD_ID "x", STANDARD_TIME, standard_signature), SEMEL_SIGNATURE_WRONG);
    assert_int_equal(check_standard(STANDARD_ID, "1614265331", standard_signature), SEMEL_SIGNATURE_WRONG);
    assert_int_equal(check_standard(STANDARD_ID, "01614265330", standard_signature), SEMEL_SIGNATURE_WRONG);
}

static void missing_signature_is_told_from_a_wrong_one(void **state)
{
    (void)state;
    struct rig standard = rig_of(SEMEL_SIGNATURE_STANDARD, standard_secret, standard_body, 1614265330);
    assert_int_equal(CHECK(&standard, "webhook-id", STANDARD_ID), SEMEL_SIGNATURE_NONE);
    assert_string_equal(standard.why, "no signature: there is no header webhook-signature");
    assert_int_equal(CHECK(&standard, "webhook-id", STANDARD_ID, "webhook-signature", standard_signature),
                     SEMEL_SIGNATURE_NONE);
    assert_string_equal(standard.why, "no signature: there is no header webhook-timestamp");
    assert_int_equal(CHECK(&standard, "webhook-timestamp", STANDARD_TIME, "webhook-signature", standard_signature),
                     SEMEL_SIGNATURE_NONE);
    static const char *const none[] = {
        "", ",,", "t", "t=", "v1=", "t=1533204620", "t=1533204620,v0=" STRIPE_V1, "t=1533204620,xv1=" STRIPE_V1};
    for (size_t i = 0; i < COUNT(none); i++)
        assert_int_equal(check_stripe(none[i], STRIPE_TIME), SEMEL_SIGNATURE_NONE);
    static const char *const wrong[] = {"v1=" STRIPE_V1,
                                        "t=,v1=" STRIPE_V1,
                                        "t=1533204620,t=1533204620,v1=" STRIPE_V1,
                                        "t=1533204620,v1=" STRIPE_V1 ", t=1533204620,v1=" STRIPE_V1,
                                        "t=+1533204620,v1=" STRIPE_V1,
                                        "t=1533204620.0,v1=" STRIPE_V1,
                                        "t=15332046200000,v1=" STRIPE_V1,
                                        "t=1533204620,v1=" STRIPE_V0,
                                        "t=1533204620,v1=" STRIPE_V1 "00",
                                        "t=1533204620,v1=2220f87e"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_int_equal(check_stripe(wrong[i], STRIPE_TIME), SEMEL_SIGNATURE_WRONG);
    struct rig github = rig_of(SEMEL_SIGNATURE_GITHUB, "It's a Secret to Everybody", "Hello, World!", 0);
    assert_int_equal(CHECK(&github, "X-Hub-Signature", "sha1=00"), SEMEL_SIGNATURE_NONE);
    assert_int_equal(CHECK(&github, "X-Hub-Signature-256", github_signature + strlen("sha256=")), SEMEL_SIGNATURE_NONE);
}

static void header_that_comes_twice_is_refused(void **state)
{
    (void)state;
    struct rig rig = rig_of(SEMEL_SIGNATURE_STRIPE, "webhook_secret", stripe_body, STRIPE_TIME);
    static const char good[] = "t=1533204620,v1=" STRIPE_V1;
    assert_int_equal(CHECK(&rig, "Stripe-Signature", good, "stripe-signature", good), SEMEL_SIGNATURE_WRONG);
    assert_string_equal(rig.why, "wrong signature: one of its headers came twice");
    assert_int_equal(CHECK(&rig, "Stripe-Signature", "", "stripe-signature", good), SEMEL_SIGNATURE_WRONG);
    struct rig standard = rig_of(SEMEL_SIGNATURE_STANDARD, standard_secret, standard_body, 1614265330);
    assert_int_equal(CHECK(&standard, "webhook-id", STANDARD_ID, "webhook-id", "other", "webhook-timestamp",
                           STANDARD_TIME, "webhook-signature", standard_signature),
                     SEMEL_SIGNATURE_WRONG);
}

static void time_must_be_near_in_both_directions(void **state)
{
    (void)state;
    static const char header[] = "t=1533204620,v1=" STRIPE_V1;
    assert_int_equal(check_stripe(header, STRIPE_TIME + 300), SEMEL_SIGNATURE_GOOD);
    assert_int_equal(check_stripe(header, STRIPE_TIME + 301), SEMEL_SIGNATURE_OLD);
    assert_int_equal(check_stripe(header, STRIPE_TIME - 300), SEMEL_SIGNATURE_GOOD);
    assert_int_equal(check_stripe(header, STRIPE_TIME - 301), SEMEL_SIGNATURE_NEW);
    /* Who has no good signature is not told about the time. */
    assert_int_equal(check_stripe("t=1533204620,v1=" STRIPE_V0, STRIPE_TIME + 301), SEMEL_SIGNATURE_WRONG);
    struct rig slack = slack_rig();
    slack.now_s += 301;
    assert_int_equal(CHECK(&slack, "x-slack-signature", slack_signature, "x-slack-request-timestamp", "1531420618"),
                     SEMEL_SIGNATURE_OLD);
    assert_string_equal(slack.why, "too old: it was signed 301s ago, and at most 5m are allowed");
}

/* The id and the time stand before the body: whoever has a signed request could move the full stops between them. */
static void content_cannot_be_cut_in_another_way(void **state)
{
    (void)state;
    struct rig rig = rig_of(SEMEL_SIGNATURE_STANDARD, standard_secret, "1614265330.x", 1614265330);
    unsigned char key[SEMEL_SIGNATURE_KEY_MAX], mac[SEMEL_HASH_MAX];
    struct semel_str parts[] = {SEMEL_STR("a.1614265330.1614265330.x")};
    struct semel_buf buf;
    size_t n = 0;
    assert_null(semel__signature_standard_key(standard_secret, key, &n));
    assert_true(semel__hmac(SEMEL_HASH_SHA256, (struct semel_str){(char *)key, n}, parts, 1, mac));
    semel__buf_init(&buf, 100);
    semel__buf_addz(&buf, "v1,");
    semel__base64_put(&buf, (struct semel_str){(char *)mac, SEMEL_SHA256});
    semel__buf_add(&buf, "", 1);
    assert_int_equal(CHECK(&rig, "webhook-id", "a", "webhook-timestamp", STANDARD_TIME, "webhook-signature", buf.p),
                     SEMEL_SIGNATURE_GOOD);
    rig.body = SEMEL_STR("x");
    assert_int_equal(CHECK(&rig, "webhook-id", "a.1614265330", "webhook-timestamp", STANDARD_TIME, "webhook-signature",
                           buf.p),
                     SEMEL_SIGNATURE_WRONG);
    semel__buf_done(&buf);
}

/* ---- several ------------------------------------------------------------------------------------------- */

static void any_secret_and_any_signature_of_the_list_will_do(void **state)
{
    (void)state;
    struct rig rig = rig_of(SEMEL_SIGNATURE_STRIPE, "another secret", stripe_body, STRIPE_TIME);
    rig.options.secrets.n = SEMEL_SIGNATURE_SECRETS;
    for (size_t i = 1; i < SEMEL_SIGNATURE_SECRETS; i++)
        rig.secrets[i] = SEMEL_STR("one more");
    static const char header[] = "t=1533204620,v1=" STRIPE_V0 ",v1=" STRIPE_V1;
    assert_int_equal(CHECK(&rig, "Stripe-Signature", header), SEMEL_SIGNATURE_WRONG);
    rig.secrets[SEMEL_SIGNATURE_SECRETS - 1] = SEMEL_STR("webhook_secret");
    assert_int_equal(CHECK(&rig, "Stripe-Signature", header), SEMEL_SIGNATURE_GOOD);
    char list[4096];
    for (size_t n = SEMEL_SIGNATURE_LIST_MAX - 1; n <= SEMEL_SIGNATURE_LIST_MAX; n++) {
        int at = snprintf(list, sizeof list, "v1a,x %s", standard_signature);
        for (size_t i = 0; i < n; i++)
            at += snprintf(list + at, sizeof list - (size_t)at, " v1,%040zu", i);
        assert_int_equal(check_standard(STANDARD_ID, STANDARD_TIME, list),
                         n < SEMEL_SIGNATURE_LIST_MAX ? SEMEL_SIGNATURE_GOOD : SEMEL_SIGNATURE_WRONG);
    }
}

static void lack_of_memory_is_no_wrong_signature(void **state)
{
    (void)state;
    struct rig rig = rig_of(SEMEL_SIGNATURE_SHOPIFY, "steffi", "{\"foo\":\"bar\"}", 0);
    struct semel_signature signature;
    struct fail_nth fail;
    rig.options.secrets.at = rig.secrets;
    assert_true(semel__signature_init(&signature, &rig.options));
    semel__signature_take(&signature, &rig.taken, SEMEL_STR("X-Shopify-Hmac-SHA256"),
                          SEMEL_STR("/Redz4YXHLnSmmSN8grr5/Jl/Ua3d7yX3iWbjb8R8wo="));
    fail_nth_begin(&fail, 1);
    enum semel_signature_result result = semel__signature_check(&signature, &rig.taken, rig.body, 0, rig.why);
    assert_true(fail_nth_end(&fail));
    assert_int_equal(result, SEMEL_SIGNATURE_FAILED);
    semel__signature_done(&signature);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_examples_are_good),
        cmocka_unit_test(generic_hmac_has_its_algorithm_and_encoding),
        cmocka_unit_test(every_changed_byte_makes_it_wrong),
        cmocka_unit_test(missing_signature_is_told_from_a_wrong_one),
        cmocka_unit_test(header_that_comes_twice_is_refused),
        cmocka_unit_test(time_must_be_near_in_both_directions),
        cmocka_unit_test(content_cannot_be_cut_in_another_way),
        cmocka_unit_test(any_secret_and_any_signature_of_the_list_will_do),
        cmocka_unit_test(lack_of_memory_is_no_wrong_signature),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
