/* SPDX-License-Identifier: MIT
 *
 * test_sqs_hostile.c: the SQS driver against a server that lies, stops in the middle, never stops, or refuses: nothing
 * is lost or sent twice, no secret is told, and every request is signed as AWS would verify it.
 */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/digest.h"
#include "base/wait.h"
#include "sqs/hostile.h"
#include "sqs/side.h"
#include "support/answer.h"

#define KEY "AKIDEXAMPLE"
#define SECRET "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define SESSION_BEGIN "FwoGZXIvYXdz"
#define SESSION SESSION_BEGIN "EXAMPLE/token+with=signs"
#define DOTS "........................" /* an error's text has room for some of these */
#define MESSAGE "{\"MessageId\":\"m-1\",\"ReceiptHandle\":\"r-1\",\"Body\":\"hello\""

static struct sqs_side side;
static struct hostile hostile;

static struct semel_sqs_options options_of(int port)
{
    static char url[64];

    snprintf(url, sizeof url, "http://127.0.0.1:%d/1/queue", port);
    return (struct semel_sqs_options){.url = url,
                                      .region = "eu-central-1",
                                      .access_key = KEY,
                                      .secret_key = SECRET,
                                      .session_token = SESSION,
                                      .visibility_us = 10000000,
                                      .wait_us = 1000000};
}

static void begin(bool (*answer)(struct hostile *h, const struct hostile_request *request, int fd), void *ctx)
{
    struct semel_sqs_options options;

    hostile_start(&hostile, answer, ctx);
    options = options_of(hostile.port);
    sqs_side_open_with(&side, &options);
}

static void end(void)
{
    sqs_side_close(&side);
    hostile_stop(&hostile);
}

/* ---- the signature ------------------------------------------------------------------------------------- */

static struct semel_str sign(struct semel_str key, struct semel_str text, unsigned char out[SEMEL_SHA256])
{
    unsigned n = 0;

    assert_non_null(HMAC(EVP_sha256(), key.p, (int)key.n, (const unsigned char *)text.p, text.n, out, &n));
    return (struct semel_str){(const char *)out, n};
}

static void digest_of(struct semel_str text, char out[65])
{
    unsigned char digest[SEMEL_SHA256];

    assert_true(semel__sha256(&text, 1, digest));
    semel__hex(digest, sizeof digest, out);
}

/* The part of the Authorization header behind NAME=, up to a comma. */
static void part_of(const char *authorization, const char *name, char *out, size_t size)
{
    const char *at = strstr(authorization, name);

    assert_non_null(at);
    at += strlen(name);
    snprintf(out, size, "%.*s", (int)strcspn(at, ","), at);
}

/* Signature Version 4, from what arrived: https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
 * */
static bool is_signed(const struct hostile_request *r)
{
    char authorization[1024], credential[256], names[512], signature[128], date[32], value[512], hash[65], hex[65];
    char text[8192], canonical[8192], *name, *next, *scope;
    unsigned char key[2][SEMEL_SHA256];
    struct semel_str k = SEMEL_STR("AWS4" SECRET);
    size_t n;
    int turn = 0;

    hostile_header(r, "Authorization", authorization, sizeof authorization);
    hostile_header(r, "X-Amz-Date", date, sizeof date);
    part_of(authorization, "Credential=" KEY "/", credential, sizeof credential);
    part_of(authorization, "SignedHeaders=", names, sizeof names);
    part_of(authorization, "Signature=", signature, sizeof signature);
    n = (size_t)snprintf(canonical, sizeof canonical, "POST\n/\n\n");
    snprintf(text, sizeof text, "%s", names);
    for (name = text; name != NULL; name = next) {
        if ((next = strchr(name, ';')) != NULL)
            *next++ = '\0';
        n += (size_t)snprintf(canonical + n, sizeof canonical - n, "%s:%s\n", name,
                              hostile_header(r, name, value, sizeof value));
    }
    digest_of((struct semel_str){r->body, r->n_body}, hash);
    snprintf(canonical + n, sizeof canonical - n, "\n%s\n%s", names, hash);
    digest_of(semel__str(canonical), hash);
    snprintf(text, sizeof text, "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, credential, hash);
    for (scope = credential; scope != NULL; scope = next, turn ^= 1) {
        if ((next = strchr(scope, '/')) != NULL)
            *next++ = '\0';
        k = sign(k, semel__str(scope), key[turn]);
    }
    sign(k, semel__str(text), key[turn]);
    semel__hex(key[turn], SEMEL_SHA256, hex);
    return strstr(names, "host") != NULL && strstr(names, "x-amz-date") != NULL &&
           strstr(names, "x-amz-security-token") != NULL && strstr(names, "x-amz-target") != NULL &&
           strcmp(hex, signature) == 0;
}

struct seen {
    atomic_int good, bad;
};

static bool answer_signed(struct hostile *h, const struct hostile_request *r, int fd)
{
    struct seen *seen = h->ctx;
    const bool good = is_signed(r);

    seen->good += good;
    seen->bad += !good;
    if (strcmp(r->action, "ReceiveMessage") == 0)
        return hostile_reply(fd, 200, "{\"Messages\":[" MESSAGE "}]}");
    return hostile_reply(fd, 200, "{\"Successful\":[{\"Id\":\"0\"}],\"Failed\":[]}");
}

static void every_request_is_signed_with_its_body(void **state)
{
    struct semel_publish item = {.destination = SEMEL_STR("queue"),
                                 .id = SEMEL_STR("e-1"),
                                 .payload = SEMEL_STR("\xC3\xA4 body, \"quoted\"\n")};
    struct semel_sqs_options options;
    struct semel_sqs_facts facts;
    struct seen seen = {0};

    (void)state;
    begin(answer_signed, &seen);
    sqs_side_wait(&side, 2);
    (void)sqs_side_ack(&side, side.n_got - 1);
    sqs_side_settle(&side);
    assert_int_equal(semel_broker_publish(side.broker, &item, 1, 60000, &side.err), SEMEL_OK);
    assert_int_equal(item.status, SEMEL_OK);
    options = options_of(hostile.port);
    assert_int_equal(semel__sqs_ask(&options, &facts, &side.err), SEMEL_OK);
    end();
    assert_true(hostile.receives >= 2 && hostile.deletes >= 1 && hostile.sends == 1);
    assert_int_equal(seen.bad, 0);
    assert_true(seen.good >= 5);
}

/* ---- answers that are none ------------------------------------------------------------------------------ */

static bool answer_text(struct hostile *h, const struct hostile_request *r, int fd)
{
    (void)r;
    return hostile_reply(fd, 200, h->ctx);
}

static void garbage_is_told_and_nothing_is_delivered(void **state)
{
    static char *texts[] = {"", "{", "[]", "<html>", "{\"Messages\":7}", "{\"Messages\":[{}]}", "{\"Messages\":[[[["};

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        begin(answer_text, texts[i]);
        assert_int_equal(sqs_side_wait_error(&side), SEMEL_RETRY);
        assert_int_equal(side.err.cls, SEMEL_CLASS_ENVIRONMENT);
        end();
    }
}

static bool answer_raw(struct hostile *h, const struct hostile_request *r, int fd)
{
    const char *text = h->ctx;

    (void)r;
    return hostile_send(fd, text, strlen(text)) && false;
}

static void connection_that_ends_in_the_middle_is_told_and_tried_again(void **state)
{
    static char *texts[] = {
        "",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"Messages\":[]}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"Mes",
        "\x16\x03\x01\x02",
        "SSH-2.0-OpenSSH\r\n",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        begin(answer_raw, texts[i]);
        assert_int_equal(sqs_side_wait_error(&side), SEMEL_RETRY);
        assert_int_equal(side.err.cls, SEMEL_CLASS_ENVIRONMENT);
        for (int tries = 0; hostile.receives < 2; tries++) {
            assert_true(tries < SQS_SIDE_TRIES);
            sqs_side_poll(&side, 10, SQS_SIDE_STEP_MS);
        }
        end();
    }
}

/* The first never ends; those that ask for one message only are answered. */
static bool answer_endless(struct hostile *h, const struct hostile_request *r, int fd)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    static char chunk[10000 + 10];

    if (strcmp(r->action, "ReceiveMessage") != 0)
        return hostile_reply(fd, 200, "{\"Successful\":[{\"Id\":\"0\"}]}");
    if (strstr(r->body, "\"MaxNumberOfMessages\":1,") != NULL)
        return hostile_reply(fd, 200, "{\"Messages\":[" MESSAGE "}]}");
    memset(chunk, ' ', sizeof chunk);
    memcpy(chunk, "2710\r\n", 6);
    memcpy(chunk + 10006, "\r\n", 2);
    if (!hostile_send(fd, head, strlen(head)))
        return false;
    while (!h->stop && hostile_send(fd, chunk, 10008))
        ;
    return false;
}

static void endless_answer_is_cut_off_and_less_is_asked_for(void **state)
{
    (void)state;
    begin(answer_endless, NULL);
    assert_int_equal(sqs_side_wait_error(&side), SEMEL_RETRY);
    assert_non_null(strstr(side.err.text, "longer than"));
    for (int tries = 0; side.n_got == 0; tries++) {
        assert_true(tries < SQS_SIDE_TRIES);
        sqs_side_poll(&side, 10, SQS_SIDE_STEP_MS);
    }
    assert_string_equal(side.got[0].body, "hello");
    end();
}

static bool answer_never(struct hostile *h, const struct hostile_request *r, int fd)
{
    (void)r;
    return hostile_hold(h, fd);
}

/* A server that does not wait is not asked without a pause. */
static void server_that_does_not_wait_is_not_asked_in_a_circle(void **state)
{
    (void)state;
    begin(answer_text, "{\"Messages\":[]}");
    for (int i = 0; i < 20; i++) {
        const int before = hostile.receives;
        assert_int_equal(sqs_side_poll(&side, 10, 50), SEMEL_OK);
        assert_true(hostile.receives <= before + 2);
    }
    end();
}

static void server_that_does_not_answer_holds_up_neither_poll_nor_close(void **state)
{
    (void)state;
    begin(answer_never, NULL);
    for (int i = 0; hostile.receives == 0; i++) {
        assert_true(i < SQS_SIDE_TRIES);
        assert_int_equal(sqs_side_poll(&side, 10, 10), SEMEL_OK);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(sqs_side_poll(&side, 10, 1), SEMEL_OK);
    assert_int_equal(hostile.receives, 1); /* one goes on across all polls */
    end();
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

struct refusal {
    int http;
    const char *body;
    semel_status status;
    const char *text; /* in the error's */
};

static bool answer_refusal(struct hostile *h, const struct hostile_request *r, int fd)
{
    const struct refusal *refusal = h->ctx;

    (void)r;
    return hostile_reply(fd, refusal->http, refusal->body);
}

static void refusals_are_told_by_code_and_without_secrets(void **state)
{
    static struct refusal refusals[] = {
        {400, "{\"__type\":\"com.amazonaws.sqs#QueueDoesNotExist\",\"message\":\"no such\"}", SEMEL_INVALID,
         "queue queue: HTTP 400 QueueDoesNotExist: no such"},
        {403, "{\"__type\":\"AccessDeniedException\",\"message\":\"not allowed\"}", SEMEL_INVALID, "AccessDenied"},
        {403, "{\"__type\":\"InvalidClientTokenId\",\"message\":\"" KEY " is unknown\"}", SEMEL_INVALID,
         "InvalidClient"},
        {403,
         "{\"__type\":\"SignatureDoesNotMatch\",\"message\":\"should have been 'POST x-amz-security-token:" SESSION
         "'\"}",
         SEMEL_INVALID, "secret_key, region or this machine's clock"},
        {400, "{\"__type\":\"Odd\",\"message\":\"the key " SECRET " is odd\"}", SEMEL_INVALID, "HTTP 400 Odd"},
        {400, "{\"__type\":\"Cut\",\"message\":\"" DOTS DOTS DOTS DOTS "token " SESSION "\"}", SEMEL_INVALID,
         "HTTP 400 Cut"},
        {404, "<html>", SEMEL_INVALID, "HTTP 404 without a reason"},
        {400, "{\"__type\":\"ThrottlingException\",\"message\":\"slow\"}", SEMEL_RETRY, "ThrottlingException"},
        {400, "{\"__type\":\"com.amazonaws.sqs#OverLimit\"}", SEMEL_RETRY, "OverLimit"},
        {429, "", SEMEL_RETRY, "HTTP 429"},
        {500, "{\"__type\":\"InternalFailure\"}", SEMEL_RETRY, "InternalFailure"},
        {503, "", SEMEL_RETRY, "HTTP 503"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        struct semel_sqs_options options;
        struct semel_sqs_facts facts;
        begin(answer_refusal, &refusals[i]);
        assert_int_equal(sqs_side_wait_error(&side), refusals[i].status);
        assert_int_equal(side.err.cls,
                         refusals[i].status == SEMEL_RETRY ? SEMEL_CLASS_ENVIRONMENT : SEMEL_CLASS_BROKEN);
        assert_non_null(strstr(side.err.text, refusals[i].text));
        assert_null(strstr(side.err.text, SECRET));
        assert_null(strstr(side.err.text, SESSION_BEGIN));
        assert_null(strstr(side.err.text, KEY));
        assert_int_equal(sqs_side_poll(&side, 10, 0), refusals[i].status); /* until it is otherwise */
        options = options_of(hostile.port);
        assert_int_equal(semel__sqs_ask(&options, &facts, &side.err), refusals[i].status);
        end();
    }
}

static bool answer_redirect(struct hostile *h, const struct hostile_request *r, int fd)
{
    char text[256];

    (void)r;
    snprintf(text, sizeof text,
             "HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:%d/other\r\nContent-Length: 0\r\n\r\n", h->port);
    return hostile_send(fd, text, strlen(text));
}

static void redirect_is_not_followed(void **state)
{
    (void)state;
    begin(answer_redirect, NULL);
    assert_int_equal(sqs_side_wait_error(&side), SEMEL_INVALID);
    assert_non_null(strstr(side.err.text, "307"));
    assert_int_equal(hostile.requests, 1);
    end();
}

static bool answer_no_delete(struct hostile *h, const struct hostile_request *r, int fd)
{
    (void)h;
    if (strcmp(r->action, "DeleteMessageBatch") == 0)
        return hostile_reply(fd, 403, "{\"__type\":\"AccessDenied\",\"message\":\"sqs:DeleteMessage\"}");
    if (strcmp(r->action, "ReceiveMessage") == 0 && h->receives == 1)
        return hostile_reply(fd, 200, "{\"Messages\":[" MESSAGE "}]}");
    return hostile_hold(h, fd);
}

static void policy_that_forbids_deleting_is_told(void **state)
{
    (void)state;
    begin(answer_no_delete, NULL);
    sqs_side_wait(&side, 1);
    assert_int_equal(sqs_side_ack(&side, 0), SEMEL_OK); /* handed over */
    assert_int_equal(sqs_side_wait_error(&side), SEMEL_INVALID);
    assert_non_null(strstr(side.err.text, "AccessDenied"));
    end();
}

static bool answer_damaged(struct hostile *h, const struct hostile_request *r, int fd)
{
    if (strcmp(r->action, "ReceiveMessage") != 0)
        return hostile_reply(fd, 200, "{\"Successful\":[{\"Id\":\"0\"}]}");
    if (h->receives == 1)
        return hostile_reply(fd, 200,
                             "{\"Messages\":[" MESSAGE ",\"MD5OfBody\":\"00000000000000000000000000000000\"}]}");
    return hostile_hold(h, fd);
}

static void damaged_body_is_not_delivered_and_given_back(void **state)
{
    (void)state;
    begin(answer_damaged, NULL);
    assert_int_equal(sqs_side_wait_error(&side), SEMEL_RETRY);
    assert_non_null(strstr(side.err.text, "MD5"));
    sqs_side_settle(&side);
    assert_int_equal(hostile.changes, 1);
    assert_int_equal(side.n_got, 0);
    end();
}

/* ---- publishing ---------------------------------------------------------------------------------------- */

static void publish_three(struct semel_publish items[3])
{
    static const char *const ids[] = {"e-1", "e-2", "e-3"};

    for (size_t i = 0; i < 3; i++)
        items[i] = (struct semel_publish){.destination = SEMEL_STR("queue"),
                                          .key = SEMEL_STR("k"),
                                          .id = semel__str(ids[i]),
                                          .payload = SEMEL_STR("body"),
                                          .status = SEMEL_OK};
    assert_int_equal(semel_broker_publish(side.broker, items, 3, 60000, &side.err), SEMEL_OK);
}

#define MANY 1000
#define ANSWERED 20
#define AT_A_TIME 8 /* requests */

static bool answer_two_batches(struct hostile *h, const struct hostile_request *r, int fd)
{
    static const char all[] =
        "{\"Successful\":[{\"Id\":\"0\"},{\"Id\":\"1\"},{\"Id\":\"2\"},{\"Id\":\"3\"},{\"Id\":\"4\"},"
        "{\"Id\":\"5\"},{\"Id\":\"6\"},{\"Id\":\"7\"},{\"Id\":\"8\"},{\"Id\":\"9\"}]}";

    static atomic_int sends; /* they come at the same time */

    if (strcmp(r->action, "SendMessageBatch") != 0 || atomic_fetch_add(&sends, 1) >= 2)
        return hostile_hold(h, fd);
    return hostile_reply(fd, 200, all);
}

/* A request alone may take 20 seconds, and there are a hundred of them. */
static void publish_of_a_thousand_ends_when_its_time_is_over(void **state)
{
    static struct semel_publish items[MANY];
    size_t n_ok = 0, n_unknown = 0, n_retry = 0;
    int64_t from_us;

    (void)state;
    begin(answer_two_batches, NULL);
    for (size_t i = 0; i < MANY; i++)
        items[i] = (struct semel_publish){.destination = SEMEL_STR("queue"), .payload = SEMEL_STR("body")};
    from_us = semel__steady_us();
    assert_int_equal(semel_broker_publish(side.broker, items, MANY, 3000, &side.err), SEMEL_OK);
    assert_true(semel__steady_us() - from_us < 15000000);
    for (size_t i = 0; i < MANY; i++) {
        n_ok += items[i].status == SEMEL_OK;
        n_unknown += items[i].status == SEMEL_UNKNOWN;
        n_retry += items[i].status == SEMEL_RETRY;
    }
    assert_int_equal(n_ok, ANSWERED);
    assert_int_equal(n_unknown, 10 * AT_A_TIME);
    assert_int_equal(n_retry, MANY - ANSWERED - 10 * AT_A_TIME);
    assert_int_equal(hostile.sends, 2 + AT_A_TIME); /* the answer to a request lets the next one go */
    end();
}

/* The second request of a connection is read, and then the connection ends without a byte. */
static bool answer_first_only(struct hostile *h, const struct hostile_request *r, int fd)
{
    (void)h;
    return r->nth == 1 && hostile_reply(fd, 200, "{\"Successful\":[{\"Id\":\"0\"},{\"Id\":\"1\"},{\"Id\":\"2\"}]}");
}

/* P54 */
static void publish_is_not_sent_again_when_a_reused_connection_dies(void **state)
{
    struct semel_publish items[3];

    (void)state;
    begin(answer_first_only, NULL);
    publish_three(items);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(items[i].status, SEMEL_OK);
    publish_three(items);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(items[i].status, SEMEL_UNKNOWN);
    assert_int_equal(hostile.sends, 2);
    end();
}

static void lost_or_broken_answer_to_publish_is_unknown(void **state)
{
    static char *raw[] = {"", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"Succ"};
    static char *texts[] = {"{", "{}", "{\"Successful\":[{\"Id\":\"7\"}]}"};
    static struct refusal internal = {500, "{\"__type\":\"InternalError\"}", 0, NULL};
    struct semel_publish items[3];

    (void)state;
    for (size_t i = 0; i < COUNT(raw) + COUNT(texts) + 1; i++) {
        if (i < COUNT(raw))
            begin(answer_raw, raw[i]);
        else if (i < COUNT(raw) + COUNT(texts))
            begin(answer_text, texts[i - COUNT(raw)]);
        else
            begin(answer_refusal, &internal);
        publish_three(items);
        for (size_t j = 0; j < 3; j++)
            assert_int_equal(items[j].status, SEMEL_UNKNOWN);
        assert_int_equal(hostile.sends, 1);
        end();
    }
}

static void each_item_has_the_status_of_its_entry(void **state)
{
    struct semel_publish items[3];

    (void)state;
    begin(answer_text, "{\"Successful\":[{\"Id\":\"1\",\"MD5OfMessageBody\":\"841a2d689ad86bd1611447453c22c6fc\"}],"
                       "\"Failed\":[{\"Id\":\"0\",\"Code\":\"InvalidMessageContents\",\"SenderFault\":true},"
                       "{\"Id\":\"2\",\"Code\":\"InternalError\",\"SenderFault\":false}]}");
    publish_three(items);
    assert_int_equal(items[0].status, SEMEL_INVALID);
    assert_int_equal(items[1].status, SEMEL_OK);
    assert_int_equal(items[2].status, SEMEL_RETRY);
    end();
}

static void refused_or_unreachable_publish_was_certainly_not_sent(void **state)
{
    static struct refusal busy = {400, "{\"__type\":\"RequestThrottled\"}", 0, NULL};
    static struct refusal denied = {403, "{\"__type\":\"AccessDenied\"}", 0, NULL};
    struct semel_publish items[3];

    (void)state;
    begin(answer_refusal, &busy);
    publish_three(items);
    assert_int_equal(items[0].status, SEMEL_RETRY);
    hostile_stop(&hostile); /* nobody listens any more */
    publish_three(items);
    assert_int_equal(items[2].status, SEMEL_RETRY);
    sqs_side_close(&side);
    begin(answer_refusal, &denied);
    publish_three(items);
    assert_int_equal(items[1].status, SEMEL_RETRY); /* P111: it is no fault of theirs */
    assert_true(items[1].down);
    assert_non_null(strstr(items[1].why, "AccessDenied"));
    end();
}

static bool refuse_the_second(struct hostile *h, const struct hostile_request *r, int fd)
{
    (void)h;
    if (strcmp(r->action, "SendMessageBatch") != 0)
        return hostile_hold(h, fd);
    return strstr(r->body, "e-2") != NULL
               ? hostile_reply(fd, 400, "{\"__type\":\"com.amazonaws.sqs#InvalidMessageContents\"}")
               : hostile_reply(fd, 200, "{\"Successful\":[{\"Id\":\"0\"}]}");
}

/* P110 */
static void only_who_travelled_alone_is_blamed(void **state)
{
    struct semel_publish items[3];

    (void)state;
    begin(refuse_the_second, NULL);
    publish_three(items);
    assert_int_equal(items[0].status, SEMEL_OK);
    assert_int_equal(items[1].status, SEMEL_INVALID);
    assert_false(items[1].down);
    assert_int_equal(items[2].status, SEMEL_OK);
    assert_int_equal(hostile.sends, 4);
    end();
}

static void what_sqs_cannot_carry_is_refused_before_it_is_sent(void **state)
{
    const struct semel_pair odd = {SEMEL_STR("a b"), SEMEL_STR("v")}, empty = {SEMEL_STR("a"), SEMEL_STR("")};
    const struct semel_pair twice[] = {{SEMEL_STR("a"), SEMEL_STR("v")}, {SEMEL_STR("a"), SEMEL_STR("w")}};
    struct semel_pair many[10];
    struct semel_publish items[] = {
        {.destination = SEMEL_STR("queue"), .id = SEMEL_STR("e"), .payload = SEMEL_STR("")},
        {.destination = SEMEL_STR("queue"), .id = SEMEL_STR("e"), .payload = SEMEL_STR("a\0b")},
        {.destination = SEMEL_STR("queue"), .id = SEMEL_STR("e"), .payload = SEMEL_STR("\xFF")},
        {.destination = SEMEL_STR("queue"), .id = SEMEL_STR("e"), .payload = SEMEL_STR("\xEF\xBF\xBF")},
        {.destination = SEMEL_STR("../1/x"), .id = SEMEL_STR("e"), .payload = SEMEL_STR("b")},
        {.destination = SEMEL_STR(""), .id = SEMEL_STR("e"), .payload = SEMEL_STR("b")},
        {.destination = SEMEL_STR("a.b"), .id = SEMEL_STR("e"), .payload = SEMEL_STR("b")},
        {.destination = SEMEL_STR("queue"), .id = SEMEL_STR("\xFF"), .payload = SEMEL_STR("b")},
        {.destination = SEMEL_STR("queue"), .payload = SEMEL_STR("b"), .headers = &odd, .n_headers = 1},
        {.destination = SEMEL_STR("queue"), .payload = SEMEL_STR("b"), .headers = &empty, .n_headers = 1},
        {.destination = SEMEL_STR("queue"), .payload = SEMEL_STR("b"), .headers = twice, .n_headers = 2},
        {.destination = SEMEL_STR("queue"),
         .id = SEMEL_STR("e"),
         .payload = SEMEL_STR("b"),
         .headers = many,
         .n_headers = COUNT(many)},
    };
    char names[COUNT(many)][4];

    (void)state;
    for (size_t i = 0; i < COUNT(many); i++) {
        snprintf(names[i], sizeof names[i], "h%zu", i);
        many[i] = (struct semel_pair){semel__str(names[i]), SEMEL_STR("v")};
    }
    begin(answer_never, NULL);
    assert_int_equal(semel_broker_publish(side.broker, items, COUNT(items), 60000, &side.err), SEMEL_OK);
    for (size_t i = 0; i < COUNT(items); i++)
        assert_int_equal(items[i].status, SEMEL_INVALID);
    assert_int_equal(hostile.requests, 0);
    end();
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/* One round of a handle's life, in which an allocation may fail anywhere. */
static void live_once(void)
{
    struct semel_publish item = {.destination = SEMEL_STR("queue"), .id = SEMEL_STR("e"), .payload = SEMEL_STR("b")};
    const struct semel_sqs_options options = options_of(hostile.port);
    struct semel_sqs_facts facts;
    struct semel_delivery *d;
    struct semel_error err;
    semel_status status = semel__broker_sqs_open(&side.broker, &options, &err);
    size_t n = 0;

    assert_true(status == SEMEL_OK || status == SEMEL_RETRY);
    if (status != SEMEL_OK)
        return;
    semel__arena_init(&side.arena, 1 << 20);
    for (int tries = 0; n == 0; tries++) {
        assert_true(tries < SQS_SIDE_TRIES);
        status = semel_broker_poll(side.broker, 10, SQS_SIDE_STEP_MS, &side.arena, &d, &n, &err);
        assert_true(status == SEMEL_OK || (status == SEMEL_RETRY && n == 0));
    }
    (void)answer_ack(side.broker, &d[0].tag, 1, &err);
    status = semel_broker_publish(side.broker, &item, 1, 60000, &err);
    assert_true(status == SEMEL_OK || status == SEMEL_RETRY);
    assert_true(item.status == SEMEL_OK || item.status == SEMEL_RETRY || item.status == SEMEL_UNKNOWN);
    status = semel__sqs_ask(&options, &facts, &err);
    assert_true(status == SEMEL_OK || status == SEMEL_RETRY);
    semel_broker_close(side.broker);
    semel__arena_done(&side.arena);
}

static void want_of_memory_anywhere_is_a_status_and_passes(void **state)
{
    const unsigned step = getenv("SEMEL_LONG") != NULL ? 1 : 4;
    struct seen seen = {0};
    struct fail_nth fail;

    (void)state;
    hostile_start(&hostile, answer_signed, &seen);
    for (unsigned at = 1; at == 1 || fail.seen >= fail.at; at += step) {
        fail_nth_begin(&fail, at);
        live_once();
        (void)fail_nth_end(&fail);
    }
    hostile_stop(&hostile);
    assert_int_equal(seen.bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_is_signed_with_its_body),
        cmocka_unit_test(garbage_is_told_and_nothing_is_delivered),
        cmocka_unit_test(connection_that_ends_in_the_middle_is_told_and_tried_again),
        cmocka_unit_test(endless_answer_is_cut_off_and_less_is_asked_for),
        cmocka_unit_test(server_that_does_not_wait_is_not_asked_in_a_circle),
        cmocka_unit_test(server_that_does_not_answer_holds_up_neither_poll_nor_close),
        cmocka_unit_test(refusals_are_told_by_code_and_without_secrets),
        cmocka_unit_test(redirect_is_not_followed),
        cmocka_unit_test(policy_that_forbids_deleting_is_told),
        cmocka_unit_test(damaged_body_is_not_delivered_and_given_back),
        cmocka_unit_test(publish_of_a_thousand_ends_when_its_time_is_over),
        cmocka_unit_test(publish_is_not_sent_again_when_a_reused_connection_dies),
        cmocka_unit_test(lost_or_broken_answer_to_publish_is_unknown),
        cmocka_unit_test(each_item_has_the_status_of_its_entry),
        cmocka_unit_test(refused_or_unreachable_publish_was_certainly_not_sent),
        cmocka_unit_test(only_who_travelled_alone_is_blamed),
        cmocka_unit_test(what_sqs_cannot_carry_is_refused_before_it_is_sent),
        cmocka_unit_test(want_of_memory_anywhere_is_a_status_and_passes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
