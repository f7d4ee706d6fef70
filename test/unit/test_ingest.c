/* SPDX-License-Identifier: MIT
 *
 * test_ingest.c: messages by HTTP: how requests become deliveries, when and how they are answered, and what strangers
 * may send. The broker is polled by the test itself, so that it can see that nothing is answered before its end.
 */
#include <poll.h>

#include "admin/ingest.h"
#include "core/extract.h"
#include "support/answer.h"
#include "unit/served.h"

static struct served served;
static struct semel_broker *broker;
static struct semel_arena arena;
static struct semel_delivery *deliveries;
static size_t n_deliveries;

static struct semel_broker *worker_of(const char *route)
{
    struct semel_broker *made = semel__serve_ingest(served.serve, served_route(&served, route));
    assert_non_null(made);
    semel__ingest_serve(made, true);
    return made;
}

static int up(void **state)
{
    (void)state;
    served = (struct served){0};
    semel__arena_init(&arena, (size_t)1 << 30);
    assert_int_equal(served_open(&served, SERVED_ROUTES), SEMEL_OK);
    broker = worker_of("in");
    served_start(&served);
    return 0;
}

static int down(void **state)
{
    (void)state;
    semel_broker_close(broker);
    served_done(&served);
    semel__arena_done(&arena);
    return 0;
}

static int post(const char *more, const char *body)
{
    return served_post(&served, "/in", IN_TOKEN, more, body, strlen(body));
}

/* Polls until `n` are there. */
static void poll_for(size_t n)
{
    static struct semel_delivery all[SEMEL_INGEST_BATCH];
    n_deliveries = 0;
    while (n_deliveries < n) {
        size_t got = 0;
        struct semel_delivery *some;
        assert_int_equal(semel_broker_poll(broker, n - n_deliveries, WAIT_S * 1000, &arena, &some, &got, &served.err),
                         SEMEL_OK);
        assert_true(got > 0);
        memcpy(&all[n_deliveries], some, got * sizeof(*some));
        n_deliveries += got;
    }
    deliveries = all;
}

static void ack_with(size_t i, enum semel_why why, enum semel_row_status state, const char *outcome)
{
    struct semel_settled settled = {.act = SEMEL_ACK, .why = why, .state = state, .outcome = semel__str(outcome)};
    assert_int_equal(answer_tags(broker, &deliveries[i].tag, 1, &settled, 0, &served.err), SEMEL_OK);
}

static void assert_header(size_t i, const char *name, const char *value)
{
    for (size_t k = 0; k < deliveries[i].n_headers; k++)
        if (semel__str_eqz(deliveries[i].headers[k].name, name)) {
            assert_non_null(value);
            assert_str(deliveries[i].headers[k].value, value);
            return;
        }
    if (value != NULL)
        fail_msg("no header %s", name);
}

/* At most `most` seconds, and not much less: some may have passed meanwhile. */
static void assert_retry_after(const struct reply *reply, int most)
{
    const char *at = strstr(reply->head, "\r\nRetry-After: ");
    assert_non_null(at);
    const long after = strtol(at + strlen("\r\nRetry-After: "), NULL, 10);
    assert_in_range(after, most / 2, most);
}

static bool nothing_yet(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

/* ---- one message -------------------------------------------------------------------------------------- */

static void a_request_is_answered_when_it_was_acknowledged(void **state)
{
    (void)state;
    int fd = post("X-Kind: Big\r\nCookie: c=1\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
                  "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
                  "Idempotency-Key: \"k-1\"\r\n",
                  "{\"a\":1}");
    poll_for(1);
    assert_str(deliveries[0].payload, "{\"a\":1}");
    assert_str(deliveries[0].source, "shop");
    assert_false(semel__str_given(deliveries[0].position));
    assert_int_equal(deliveries[0].lane, 0);
    assert_int_equal(deliveries[0].delivery, 0);
    assert_int_equal(deliveries[0].n_properties, 1);
    assert_str(deliveries[0].properties[0].name, "message_id");
    assert_str(deliveries[0].properties[0].value, "k-1");
    assert_header(0, "x-kind", "Big");
    assert_header(0, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    static const char *const behind[] = {"authorization", "cookie", "host", "content-length", "connection", "x-hop"};
    for (size_t i = 0; i < COUNT(behind); i++)
        assert_header(0, behind[i], NULL);
    assert_true(nothing_yet(fd));
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    struct reply reply = served_reply(fd);
    assert_int_equal(reply.status, 202);
    assert_string_equal(reply.body, "{\"result\":\"accepted\",\"why\":\"new\",\"status\":\"completed\"}\n");
    reply_done(&reply);
    assert_int_equal(answer_ack(broker, &deliveries[0].tag, 1, &served.err), SEMEL_FENCED);
}

static void every_why_has_its_answer(void **state)
{
    /* I9, I11 */
    (void)state;
    static const struct {
        enum semel_why why;
        int status;
        const char *word;
    } cases[] = {
        {SEMEL_WHY_NEW, 202, "accepted"},        {SEMEL_WHY_RETRIED, 202, "accepted"},
        {SEMEL_WHY_DUPLICATE, 200, "duplicate"}, {SEMEL_WHY_BUSY, 200, "duplicate"},
        {SEMEL_WHY_BACKOFF, 200, "duplicate"},   {SEMEL_WHY_DEAD, 422, "kept"},
        {SEMEL_WHY_CONFLICT, 409, "conflict"},   {SEMEL_WHY_STALE, 200, "duplicate"},
        {SEMEL_WHY_GAP, 202, "accepted"},        {SEMEL_WHY_BLOCKED, 202, "accepted"},
        {SEMEL_WHY_TOO_OLD, 422, "kept"},        {SEMEL_WHY_BUSINESS, 200, "duplicate"},
        {SEMEL_WHY_NO_ID, 422, "kept"},          {SEMEL_WHY_UNKNOWN, 200, "duplicate"},
        {SEMEL_WHY_DAMAGED, 503, "later"},
    };
    assert_int_equal(COUNT(cases), SEMEL_WHY_DAMAGED);
    for (size_t i = 0; i < COUNT(cases); i++) {
        int fd = post("", "x");
        poll_for(1);
        ack_with(0, cases[i].why, SEMEL_ROW_ABSENT, NULL);
        assert_reply(served_reply(fd), cases[i].status, cases[i].word);
    }
}

static void a_duplicate_brings_the_outcome_of_the_first(void **state)
{
    /* I9 */
    (void)state;
    int fd = post("id: a\r\n", "x");
    poll_for(1);
    ack_with(0, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED, "{\"order\":  7}");
    assert_reply(served_reply(fd), 200, "\"status\":\"completed\",\"outcome\":{\"order\":  7}}");
    fd = post("id: a\r\n", "x");
    poll_for(1);
    ack_with(0, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED, "{broken");
    assert_reply(served_reply(fd), 200, "\"status\":\"completed\"}\n");
}

static void what_goes_back_is_503_with_the_time_to_wait(void **state)
{
    (void)state;
    int fd = post("", "x");
    poll_for(1);
    assert_int_equal(answer_later(broker, &deliveries[0].tag, 1, 2500, &served.err), SEMEL_OK);
    struct reply reply = served_reply(fd);
    assert_true(reply_has(&reply, "Retry-After: 3"));
    assert_reply(reply, 503, "later");
}

static void a_body_of_no_bytes_is_a_message(void **state)
{
    (void)state;
    int fd = post("Idempotency-Key: bare-key\r\n", "");
    poll_for(1);
    assert_str(deliveries[0].payload, "");
    assert_str(deliveries[0].properties[0].value, "bare-key");
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_WAITING, NULL);
    assert_reply(served_reply(fd), 202, "waiting");
}

/* ---- CloudEvents -------------------------------------------------------------------------------------- */

static void binary_mode_becomes_headers_with_underscores(void **state)
{
    (void)state;
    int fd = post("Ce-Specversion: 1.0\r\nCE-ID: a%20b%\r\nce-source: /s\r\nce-type: t\r\nContent-Type: text/plain\r\n",
                  "hello");
    poll_for(1);
    assert_header(0, "ce_id", "a b%");
    assert_header(0, "ce_type", "t");
    assert_header(0, "content-type", "text/plain");
    assert_header(0, "ce-id", NULL);
    struct semel_rules rules = {0};
    struct semel__msg msg;
    assert_int_equal(semel__extract(&rules, &deliveries[0], 1 << 20, &arena, &msg, &served.err), SEMEL_OK);
    assert_str(msg.id, "a b%");
    assert_str(msg.type, "t");
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(fd), 202, "accepted");
}

#define STRUCTURED "Content-Type: application/cloudevents+json; charset=utf-8\r\n"

static void structured_mode_gives_attributes_and_data_as_it_was_written(void **state)
{
    (void)state;
    int fd = post(STRUCTURED "X-Kind: y\r\nce-id: of the envelope\r\n",
                  "{\"specversion\":\"1.0\",\"id\":\"e1\",\"type\":\"t\",\"n\":5,\"flag\":true,\"nothing\":null,"
                  "\"traceparent\":\"tp\",\"data\": {\"b\" : 1.0, \"a\":[\"}\"] } ,\"source\":\"/x\"}");
    poll_for(1);
    assert_str(deliveries[0].payload, "{\"b\" : 1.0, \"a\":[\"}\"] }");
    assert_header(0, "ce_id", "e1");
    assert_header(0, "ce_n", "5");
    assert_header(0, "ce_flag", "true");
    assert_header(0, "ce_nothing", NULL);
    assert_header(0, "traceparent", "tp");
    assert_header(0, "x-kind", "y");
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(fd), 202, "accepted");
}

static void data_may_be_text_or_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *event, *payload;
    } cases[] = {
        {"{\"specversion\":\"1.0\",\"datacontenttype\":\"text/plain\",\"data\":\"h\\u00e9\"}", "h\xc3\xa9"},
        {"{\"specversion\":\"1.0\",\"datacontenttype\":\"application/json\",\"data\":\"h\"}", "\"h\""},
        {"{\"specversion\":\"1.0\",\"data\":\"h\"}", "\"h\""},
        {"{\"specversion\":\"1.0\",\"data\":null}", "null"},
        {"{\"specversion\":\"1.0\",\"data_base64\":\"AQID/w==\"}", "\x01\x02\x03\xff"},
        {"{\"specversion\":\"1.0\"}", ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        int fd = post(STRUCTURED, cases[i].event);
        poll_for(1);
        assert_str(deliveries[0].payload, cases[i].payload);
        ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
        assert_reply(served_reply(fd), 202, "accepted");
    }
}

static void a_batch_is_answered_together_and_in_order(void **state)
{
    (void)state;
    static const char *const types[] = {"application/cloudevents-batch+json", "application/x-ndjson"};
    static const char *const bodies[] = {
        " [ {\"specversion\":\"1.0\",\"id\":\"a\",\"data\":1} , {\"specversion\":\"1.0\",\"id\":\"b\",\"data\":[2]},"
        "{\"specversion\":\"1.0\",\"id\":\"c\",\"data\":\"]\"}] ",
        "{\"specversion\":\"1.0\",\"id\":\"a\",\"data\":1}\r\n\n{\"specversion\":\"1.0\",\"id\":\"b\",\"data\":[2]}\n"
        "{\"specversion\":\"1.0\",\"id\":\"c\",\"data\":\"]\"}"};
    for (size_t i = 0; i < COUNT(types); i++) {
        char more[128];
        snprintf(more, sizeof(more), "Content-Type: %s\r\nIdempotency-Key: nobody's\r\n", types[i]);
        int fd = post(more, bodies[i]);
        poll_for(3);
        assert_header(1, "ce_id", "b");
        assert_str(deliveries[1].payload, "[2]");
        assert_str(deliveries[2].payload, "\"]\"");
        assert_int_equal(deliveries[0].n_properties, 0);
        ack_with(2, SEMEL_WHY_CONFLICT, SEMEL_ROW_COMPLETED, NULL);
        assert_int_equal(answer_later(broker, &deliveries[0].tag, 1, 0, &served.err), SEMEL_OK);
        assert_true(nothing_yet(fd));
        ack_with(1, SEMEL_WHY_NEW, SEMEL_ROW_WAITING, NULL);
        struct reply reply = served_reply(fd);
        assert_int_equal(reply.status, 200);
        assert_string_equal(reply.body,
                            "[{\"result\":\"later\",\"code\":503},\n"
                            "{\"result\":\"accepted\",\"code\":202,\"why\":\"new\",\"status\":\"waiting\"},\n"
                            "{\"result\":\"conflict\",\"code\":409,\"why\":\"conflict\",\"status\":\"completed\"}]\n");
        reply_done(&reply);
    }
    assert_reply(served_reply(post("Content-Type: application/cloudevents-batch+json\r\n", "[]")), 200, "[]");
}

/* ---- hostile ------------------------------------------------------------------------------------------ */

static void what_is_no_event_is_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *type, *body;
        int status;
        const char *says;
    } cases[] = {
        {"application/cloudevents+json", "", 400, "not JSON"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\"", 400, "not JSON"},
        {"application/cloudevents+json", "[]", 400, "JSON object"},
        {"application/cloudevents+json", "{\"id\":\"a\"}", 400, "specversion must be"},
        {"application/cloudevents+json", "{\"specversion\":1.0}", 400, "specversion must be"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"x\":{}}", 400, "attribute \\\"x\\\" must be"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"data\":1,\"data_base64\":\"\"}", 400, "both"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"data_base64\":\"AQI\"}", 400, "base64"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"data_base64\":\"A===\"}", 400, "base64"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"data_base64\":\"AR==\"}", 400, "base64"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"data_base64\":7}", 400, "base64"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"d\\u0061ta\":1}", 400, "without escapes"},
        /* B9: one spelling of a name */
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"id\":\"a\",\"ID\":\"b\"}", 400, "lower case"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"Type\":null}", 400, "lower case"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"a_b\":1}", 400, "lower case"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"\":1}", 400, "lower case"},
        {"application/cloudevents+json", "{\"specversion\":\"1.0\",\"Data\":1}", 400, "lower case"},
        {"application/cloudevents-batch+json", "[{\"specversion\":\"1.0\",\"Id\":1}]", 400, "event 1: its attribute"},
        {"application/cloudevents-batch+json", "{}", 400, "JSON array"},
        {"application/cloudevents-batch+json", "[{\"specversion\":\"1.0\"},7]", 400, "event 2: a CloudEvent is"},
        {"application/x-ndjson", "{\"specversion\":\"1.0\"}\nx", 400, "event 2: it is not JSON"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char more[128];
        snprintf(more, sizeof(more), "Content-Type: %s\r\n", cases[i].type);
        assert_reply(served_reply(post(more, cases[i].body)), cases[i].status, cases[i].says);
    }
    size_t got;
    assert_int_equal(semel_broker_poll(broker, 10, 0, &arena, &deliveries, &got, &served.err), SEMEL_OK);
    assert_int_equal(got, 0);
}

/* B9: who reads another spelling, or the other one of two, sees another event. */
static void headers_of_an_event_have_one_spelling_and_come_once(void **state)
{
    (void)state;
    static const struct {
        const char *more, *says;
    } cases[] = {
        {"ce_id: a\r\n", "begins with ce-"},
        {"CE_Source: a\r\nce-source: b\r\n", "begins with ce-"},
        {"Content-Type: application/cloudevents+json\r\nce_id: a\r\n", "begins with ce-"},
        {"ce-id: a\r\nce-id: b\r\n", "ce-id is repeated"},
        {"ce-id: a\r\nX: y\r\nCE-Id: a\r\n", "CE-Id is repeated"},
        {"ce-: a\r\n", "letters and digits"},
        {"ce-a-b: a\r\n", "letters and digits"},
        {"ce-a_b: a\r\n", "letters and digits"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_reply(served_reply(post(cases[i].more, "{\"specversion\":\"1.0\"}")), 400, cases[i].says);
    size_t got;
    assert_int_equal(semel_broker_poll(broker, 10, 0, &arena, &deliveries, &got, &served.err), SEMEL_OK);
    assert_int_equal(got, 0);
}

/* B9 P104: a large batch is read by another thread, which the test holds up at the endpoint's lock behind the reading;
 * the loop goes on meanwhile. */
static void large_events_are_read_off_the_loop(void **state)
{
    (void)state;
    struct semel_ingest *ingest = served.serve->ingests;
    while (!semel__str_eqz(ingest->route->name, "in"))
        ingest = ingest->next;
    char *text = malloc(100001);
    assert_non_null(text);
    memset(text, ' ', 100000);
    snprintf(text + 99000, 1001,
             "{\"specversion\":\"1.0\",\"id\":\"a\",\"data\":1}\n"
             "{\"specversion\":\"1.0\",\"id\":\"b\",\"data\":2}");
    pthread_mutex_lock(&ingest->lock);
    int fd = post("Content-Type: application/x-ndjson\r\n", text);
    for (int i = 0; i < 3; i++)
        assert_reply(client_ask(&served.client, "GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n"), 404, "Not Found");
    pthread_mutex_unlock(&ingest->lock);
    poll_for(2);
    assert_header(0, "ce_id", "a");
    assert_header(1, "ce_id", "b");
    for (size_t i = 0; i < 2; i++)
        ack_with(i, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(fd), 200, "accepted");
    memcpy(text + 99000, "[", 1); /* refusals too */
    assert_reply(served_reply(post("Content-Type: application/x-ndjson\r\n", text)), 400, "event 1: it is not JSON");
    free(text);
}

static char *events(size_t n)
{
    static const char one[] = "{\"specversion\":\"1.0\",\"id\":\"a\"}\n";
    char *text = malloc(n * (sizeof(one) - 1) + 1);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * (sizeof(one) - 1), one, sizeof(one));
    return text;
}

static void bounds_are_told(void **state)
{
    (void)state;
    char *text = events(SEMEL_INGEST_BATCH + 1);
    assert_reply(served_reply(post("Content-Type: application/x-ndjson\r\n", text)), 413, "at most 1000 events");
    free(text);

    text = calloc(1, 200002);
    assert_non_null(text);
    memset(text, 'x', 200001);
    assert_reply(served_reply(served_post(&served, "/in", IN_TOKEN, "", text, 200001)), 413, "");
    int fd = served_post(&served, "/in", IN_TOKEN, "", text, 200000);
    poll_for(1);
    assert_int_equal(deliveries[0].payload.n, 200000);
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(fd), 202, "accepted");
    free(text);

    fd = client_open(&served.client);
    client_sendz(fd, "POST /in HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " IN_TOKEN "\r\n");
    for (int i = 0; i < 10000; i++)
        client_sendz(fd, "a: b\r\n");
    client_sendz(fd, "Content-Length: 0\r\n\r\n");
    assert_reply(served_reply(fd), 431, "");
}

static void strangers_are_not_heard(void **state)
{
    (void)state;
    assert_reply(served_reply(served_post(&served, "/in", "0123456789abcdef-wrong", "", "x", 1)), 401, "");
    assert_reply(served_reply(served_post(&served, "/in", OUT_TOKEN, "", "x", 1)), 403, "");
    assert_reply(client_ask(&served.client,
                            "GET /in HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " IN_TOKEN "\r\n\r\n"),
                 405, "");
}

/* ---- when it takes too long --------------------------------------------------------------------------- */

static void a_request_that_waits_too_long_is_503_and_its_late_verdict_is_dropped(void **state)
{
    (void)state;
    served_patience(&served, 1500); /* enough for the poll below */
    int fd = post("", "polled");
    poll_for(1);
    struct reply reply = served_reply(fd);
    assert_true(strstr(reply.head, "\r\nRetry-After: ") != NULL);
    assert_reply(reply, 503, "later");
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);

    fd = post("", "never polled");
    assert_reply(served_reply(fd), 503, "later");
    size_t got;
    assert_int_equal(semel_broker_poll(broker, 10, 0, &arena, &deliveries, &got, &served.err), SEMEL_OK);
    assert_int_equal(got, 0);
}

static void a_batch_of_which_a_part_waits_too_long_tells_the_rest(void **state)
{
    (void)state;
    served_patience(&served, 1500);
    char *text = events(3);
    int fd = post("Content-Type: application/x-ndjson\r\n", text);
    free(text);
    poll_for(2);
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    struct reply reply = served_reply(fd);
    assert_non_null(strstr(reply.body, "[{\"result\":\"accepted\",\"code\":202"));
    assert_non_null(strstr(reply.body, "{\"result\":\"later\",\"code\":503},\n{\"result\":\"later\",\"code\":503}]"));
    assert_reply(reply, 200, "");
    ack_with(1, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
}

static struct semel_ingest *endpoint(void)
{
    struct semel_ingest *ingest = served.serve->ingests;
    while (!semel__str_eqz(ingest->route->name, "in"))
        ingest = ingest->next;
    return ingest;
}

static void wait_until_waiting(size_t n)
{
    struct semel_ingest *ingest = endpoint();
    size_t waiting = 0;
    for (int i = 0; i < WAIT_S * 1000 && waiting != n; i++) {
        (void)poll(NULL, 0, 1);
        pthread_mutex_lock(&ingest->lock);
        waiting = ingest->waiting;
        pthread_mutex_unlock(&ingest->lock);
    }
    assert_int_equal(waiting, n);
}

static void closing_answers_what_waits_and_what_flies(void **state)
{
    (void)state;
    int flies = post("", "a");
    poll_for(1);
    int waits = post("", "b");
    wait_until_waiting(2);
    semel_broker_close(broker);
    broker = NULL;
    assert_reply(served_reply(flies), 503, "later");
    assert_reply(served_reply(waits), 503, "later");
    assert_reply(served_reply(post("", "c")), 503, "not running");
    broker = worker_of("in");
    int fd = post("", "d");
    poll_for(1);
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(fd), 202, "accepted");
}

/* ---- several workers ---------------------------------------------------------------------------------- */

static size_t poll_as(struct semel_broker *worker, size_t max, struct semel_delivery **ret)
{
    size_t n;
    assert_int_equal(semel_broker_poll(worker, max, 0, &arena, ret, &n, &served.err), SEMEL_OK);
    return n;
}

/* A request with n parts waits. */
static int post_events(size_t n)
{
    char *text = events(n);
    int fd = post("Content-Type: application/x-ndjson\r\n", text);
    free(text);
    wait_until_waiting(n);
    return fd;
}

static void workers_share_what_comes_and_each_answers_its_own(void **state)
{
    (void)state;
    struct semel_broker *other = worker_of("in");
    struct semel_delivery *first, *second;
    int fd = post_events(3);
    assert_int_equal(poll_as(broker, 2, &first), 2);
    assert_int_equal(poll_as(other, 2, &second), 1);
    assert_int_equal(semel_broker_reopen(other, &served.err), SEMEL_OK); /* the third goes back; the others stay */
    assert_int_equal(answer_ack(broker, &first[0].tag, 1, &served.err), SEMEL_OK);
    assert_int_equal(answer_ack(broker, &first[1].tag, 1, &served.err), SEMEL_OK);
    struct reply reply = served_reply(fd);
    assert_non_null(strstr(reply.body, "{\"result\":\"later\",\"code\":503}]"));
    assert_null(strstr(reply.body, "[{\"result\":\"later\""));
    reply_done(&reply);
    semel_broker_close(broker); /* the route runs as long as one of them serves */
    broker = other;
    fd = post("", "x");
    poll_for(1);
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(fd), 202, "accepted");
}

static void with_an_order_one_worker_gets_all_parts_and_none_behind_one_that_went_back(void **state)
{
    /* I13 */
    (void)state;
    endpoint()->ordered = true;
    struct semel_broker *other = worker_of("in");
    struct semel_delivery *some;
    int fd = post_events(4);
    assert_int_equal(poll_as(broker, 1, &some), 1);
    uint64_t first = some[0].tag;
    assert_int_equal(poll_as(other, 10, &some), 0);
    assert_int_equal(answer_ack(broker, &first, 1, &served.err), SEMEL_OK);
    assert_int_equal(poll_as(other, 10, &some), 0);
    assert_int_equal(poll_as(broker, 2, &some), 2);
    const struct semel_settled done = {.act = SEMEL_ACK, .why = SEMEL_WHY_NEW};
    const struct semel_reply replies[] = {{some[0].tag, &done, 0}, {some[1].tag, NULL, 2000}};
    assert_int_equal(semel_broker_answer(broker, replies, 2, &served.err), SEMEL_OK);
    struct reply reply = served_reply(fd);
    assert_true(reply_has(&reply, "Retry-After: 2"));
    assert_non_null(strstr(reply.body, "{\"result\":\"later\",\"code\":503},\n{\"result\":\"later\",\"code\":503}]"));
    reply_done(&reply);
    assert_int_equal(poll_as(broker, 10, &some), 0);
    fd = post("", "x");
    wait_until_waiting(1);
    assert_int_equal(poll_as(other, 10, &some), 1);
    assert_int_equal(answer_tags(other, &some[0].tag, 1, &done, 0, &served.err), SEMEL_OK);
    assert_reply(served_reply(fd), 202, "accepted");
    semel_broker_close(other);
}

static void the_descriptor_is_readable_while_something_waits(void **state)
{
    (void)state;
    int ready = semel_broker_fd(broker);
    assert_true(nothing_yet(ready));
    int fd = post("", "x");
    wait_until_waiting(1);
    assert_false(nothing_yet(ready));
    assert_false(nothing_yet(ready));
    poll_for(1);
    assert_true(nothing_yet(ready));
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(fd), 202, "accepted");
}

static void who_is_woken_polls_nothing_and_leaves_what_waits(void **state)
{
    (void)state;
    struct semel_delivery *some;
    size_t n;
    int fd = post("", "x");
    wait_until_waiting(1);
    semel_broker_wake(broker);
    assert_int_equal(semel_broker_poll(broker, 10, 3600 * 1000, &arena, &some, &n, &served.err), SEMEL_OK);
    assert_int_equal(n, 0);
    poll_for(1);
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(fd), 202, "accepted");
}

/* ---- a route that pauses ------------------------------------------------------------------------------ */

static void pause_route(enum semel_breaker_state state, int64_t left_us)
{
    const struct semel_breaker breaker = {.state = state,
                                          .ceiling_us = INT64_C(3600) * 1000000,
                                          .next_us = semel__now(&semel__clock_real) + left_us};
    semel__serve_paused(served.serve, served_route(&served, "in"), &breaker);
}

static void poll_nothing(void)
{
    assert_int_equal(semel_broker_poll(broker, 10, 0, &arena, &deliveries, &n_deliveries, &served.err), SEMEL_OK);
    assert_int_equal(n_deliveries, 0);
}

/* P63: nobody waits for a handler that is known to fail, and nothing of it is taken. */
static void while_the_route_pauses_requests_are_503_at_once(void **state)
{
    (void)state;
    pause_route(SEMEL_BREAKER_OPEN, INT64_C(1800) * 1000000);
    struct reply reply = served_reply(post("", "x"));
    assert_retry_after(&reply, 1800);
    assert_reply(reply, 503, "the route pauses");
    reply = served_reply(post("Content-Type: application/cloudevents-batch+json\r\n",
                              "[{\"specversion\":\"1.0\",\"id\":\"a\",\"source\":\"s\",\"type\":\"t\"},"
                              "{\"specversion\":\"1.0\",\"id\":\"b\",\"source\":\"s\",\"type\":\"t\"}]"));
    assert_retry_after(&reply, 1800);
    assert_reply(reply, 200, "[{\"result\":\"later\",\"code\":503},\n{\"result\":\"later\",\"code\":503}]\n");
    assert_reply(served_reply(post("Content-Type: application/cloudevents+json\r\n", "{")), 400, "");
    pause_route(SEMEL_BREAKER_PROBING, INT64_C(1800) * 1000000);
    reply = served_reply(post("", "x"));
    assert_true(reply_has(&reply, "Retry-After: 1"));
    assert_reply(reply, 503, "the route pauses");
    poll_nothing();
}

static void when_a_probe_is_due_one_request_comes_in(void **state)
{
    (void)state;
    pause_route(SEMEL_BREAKER_OPEN, -1);
    int fd = post("", "the probe");
    poll_for(1);
    assert_reply(served_reply(post("", "another")), 503, "the route pauses");
    poll_nothing();
    pause_route(SEMEL_BREAKER_CLOSED, 0);
    int next = post("", "next");
    poll_for(1);
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(next), 202, "accepted");
    close(fd);
}

/* P63 */
static void who_waits_when_the_breaker_opens_is_answered_at_once(void **state)
{
    (void)state;
    int polled = post("", "polled");
    poll_for(1);
    int waits = post("", "waits");
    wait_until_waiting(2);
    pause_route(SEMEL_BREAKER_OPEN, INT64_C(1800) * 1000000);
    struct reply reply = served_reply(waits);
    assert_retry_after(&reply, 1800);
    assert_reply(reply, 503, "later");
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(polled), 202, "accepted");
}

static void who_waits_for_a_route_that_is_full_is_answered_at_once(void **state)
{
    (void)state;
    int waits = post("", "waits");
    wait_until_waiting(1);
    semel__ingest_full(broker, semel__now(&semel__clock_real) + INT64_C(20) * 1000000);
    assert_reply(served_reply(waits), 503, "later");
    struct reply reply = served_reply(post("", "x"));
    assert_retry_after(&reply, 20);
    assert_reply(reply, 503, "too much waits");
    semel__ingest_full(broker, semel__now(&semel__clock_real) - 1);
    int fd = post("", "x");
    poll_for(1);
    ack_with(0, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
    assert_reply(served_reply(fd), 202, "accepted");
}

static void a_full_endpoint_says_so_and_opens_again(void **state)
{
    (void)state;
    int fds[SEMEL_INGEST_PARTS / SEMEL_INGEST_BATCH];
    char *text = events(SEMEL_INGEST_BATCH);
    for (size_t i = 0; i < COUNT(fds); i++)
        fds[i] = post("Content-Type: application/x-ndjson\r\n", text);
    for (size_t i = 0; i < COUNT(fds); i++) { /* polled, they still count */
        poll_for(SEMEL_INGEST_BATCH);
        for (size_t k = 0; i == 0 && k < n_deliveries; k++)
            ack_with(k, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, NULL);
        if (i == 0) {
            assert_reply(served_reply(fds[0]), 200, "accepted");
            fds[0] = post("Content-Type: application/x-ndjson\r\n", text);
        }
    }
    poll_for(SEMEL_INGEST_BATCH);
    struct reply reply = served_reply(post("Content-Type: application/x-ndjson\r\n", text));
    free(text);
    assert_true(reply_has(&reply, "Retry-After: 1"));
    assert_reply(reply, 503, "too many messages wait");
    semel_broker_close(broker);
    broker = NULL;
    for (size_t i = 0; i < COUNT(fds); i++)
        close(fds[i]);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, up, down)
    const struct CMUnitTest tests[] = {
        CASE(a_request_is_answered_when_it_was_acknowledged),
        CASE(every_why_has_its_answer),
        CASE(a_duplicate_brings_the_outcome_of_the_first),
        CASE(what_goes_back_is_503_with_the_time_to_wait),
        CASE(a_body_of_no_bytes_is_a_message),
        CASE(binary_mode_becomes_headers_with_underscores),
        CASE(structured_mode_gives_attributes_and_data_as_it_was_written),
        CASE(data_may_be_text_or_bytes),
        CASE(a_batch_is_answered_together_and_in_order),
        CASE(what_is_no_event_is_refused_with_the_reason),
        CASE(headers_of_an_event_have_one_spelling_and_come_once),
        CASE(large_events_are_read_off_the_loop),
        CASE(bounds_are_told),
        CASE(strangers_are_not_heard),
        CASE(a_request_that_waits_too_long_is_503_and_its_late_verdict_is_dropped),
        CASE(a_batch_of_which_a_part_waits_too_long_tells_the_rest),
        CASE(closing_answers_what_waits_and_what_flies),
        CASE(workers_share_what_comes_and_each_answers_its_own),
        CASE(with_an_order_one_worker_gets_all_parts_and_none_behind_one_that_went_back),
        CASE(the_descriptor_is_readable_while_something_waits),
        CASE(who_is_woken_polls_nothing_and_leaves_what_waits),
        CASE(while_the_route_pauses_requests_are_503_at_once),
        CASE(when_a_probe_is_due_one_request_comes_in),
        CASE(who_waits_when_the_breaker_opens_is_answered_at_once),
        CASE(who_waits_for_a_route_that_is_full_is_answered_at_once),
        CASE(a_full_endpoint_says_so_and_opens_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
