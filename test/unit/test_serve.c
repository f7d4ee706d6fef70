/* SPDX-License-Identifier: MIT
 *
 * test_serve.c: the pages of admin, whose token opens what, settings that cannot be served, stopping; and messages
 * that go by HTTP through the inbox, with nothing between that is not real.
 */
#include "unit/engine.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "admin/api.h"
#include "admin/serve_private.h"
#include "admin/text.h"
#include "core/pump.h"
#include "unit/served.h"

static struct served served;

static bool say_no(void *ctx, struct semel_buf *why)
{
    semel__buf_addz(why, "the store is \"not\" there\n");
    return *(const bool *)ctx;
}

static void say_routes(void *ctx, struct semel_buf *json)
{
    (void)ctx;
    semel__buf_addz(json, "{\"name\":\"in\"},{\"name\":\"both\"}");
}

static bool fine;

static int up(void **state)
{
    (void)state;
    fine = true;
    served = (struct served){.view = {.ctx = &fine, .alive = say_no, .ready = say_no, .routes = say_routes}};
    assert_int_equal(served_open(&served, SERVED_ROUTES), SEMEL_OK);
    served_start(&served);
    return 0;
}

static int down(void **state)
{
    (void)state;
    served_done(&served);
    return 0;
}

static int open_admin(const struct served *s)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->admin.port)};
    struct timeval wait = {.tv_sec = WAIT_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1); /* 127.0.0.2 */
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&in, sizeof(in)), 0);
    return fd;
}

static struct reply get(const char *path)
{
    char text[256];
    int fd = open_admin(&served);
    snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    client_sendz(fd, text);
    return served_reply(fd);
}

/* ---- admin -------------------------------------------------------------------------------------------- */

static void metrics_are_open_and_in_the_format_of_prometheus(void **state)
{
    (void)state;
    assert_reply(get("/healthz"), 200, "alive");
    struct reply reply = get("/metrics");
    assert_true(reply_has(&reply, "Content-Type: " SEMEL_METRICS_TYPE));
    assert_non_null(strstr(reply.body, "\n# TYPE semel_ingest_waiting gauge\n"));
    assert_non_null(strstr(reply.body, "\nsemel_build_info{version=\""));
    assert_non_null(strstr(reply.body, "\nsemel_http_requests_total{path=\"/healthz\",code=\"200\"} 1\n"));
    assert_reply(reply, 200, "");
    assert_reply(get("/elsewhere"), 404, "");
}

static void readiness_tells_its_reason(void **state)
{
    (void)state;
    assert_reply(get("/readyz"), 200, "ready");
    fine = false;
    struct reply reply = get("/readyz");
    assert_true(reply_has(&reply, "Content-Type: application/problem+json"));
    assert_reply(reply, 503, "the store is \\\"not\\\" there?");
    assert_reply(get("/healthz"), 503, "not");
}

static void routes_are_listed(void **state)
{
    (void)state;
    assert_reply(get("/v1/routes"), 200, "{\"routes\":[{\"name\":\"in\"},{\"name\":\"both\"}]}");
}

static void admin_changes_nothing_and_is_on_no_other_address(void **state)
{
    (void)state;
    int fd = open_admin(&served);
    client_sendz(fd, "POST /v1/routes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    assert_reply(served_reply(fd), 405, "");
    assert_reply(client_ask(&served.client, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"), 404, "");
}

/* ---- tokens ------------------------------------------------------------------------------------------- */

static void each_route_needs_its_own_token(void **state)
{
    (void)state;
    static const char *const paths[] = {
        "/in", "/both/in", "/both/out/take", "/both/out/settle", "/both/out/renew", "/both/out/release"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        const char *right = i < 2 ? IN_TOKEN : OUT_TOKEN, *wrong = i < 2 ? OUT_TOKEN : IN_TOKEN;
        assert_reply(served_reply(served_post(&served, paths[i], wrong, "", "", 0)), 403, "");
        assert_reply(served_reply(served_post(&served, paths[i], "nobody-0123456789", "", "", 0)), 401, "");
        struct reply reply = served_reply(served_post(&served, paths[i], right, "", "", 0));
        assert_true(reply.status == 503 || reply.status == 400); /* no route runs, or there is no token */
        reply_done(&reply);
    }
}

static void tokens_are_replaced_while_it_runs(void **state)
{
    (void)state;
    static const char *const env[] = {"IN_TOKEN", "another-0123456789", "OUT_TOKEN", OUT_TOKEN, NULL};
    struct reading fresh = {.env = env};
    reading_ok(&fresh, SERVED_ROUTES);
    assert_int_equal(semel__serve_tokens(served.serve, fresh.conf, &served.err), SEMEL_OK);
    assert_reply(served_reply(served_post(&served, "/in", IN_TOKEN, "", "", 0)), 401, "");
    assert_reply(served_reply(served_post(&served, "/in", "another-0123456789", "", "", 0)), 503, "not running");
    assert_reply(served_reply(served_post(&served, "/both/out/take", OUT_TOKEN, "", "", 0)), 503, "not running");
    assert_int_equal(semel__serve_reload(served.serve, &served.err), SEMEL_OK);
    semel__serve_reloaded(served.serve, true);
    reading_done(&fresh);
}

/* ---- operators ---------------------------------------------------------------------------------------- */

#define OPERATORS                                                                    \
    "store: sqlite:x.db\n"                                                           \
    "admin: {listen: 127.0.0.2:0, token: \"${OUT_TOKEN}\", read_token: \"${%s}\"}\n" \
    "routes:\n"                                                                      \
    "  in: {from: {listen: 127.0.0.1:0, token: \"${IN_TOKEN}\", path: /in, source: s}, do: {sql: SELECT 1}}\n"

static semel_status open_operators(struct served *s, const char *read_token)
{
    char text[1024];
    snprintf(text, sizeof(text), OPERATORS, read_token);
    return served_open(s, text);
}

static void the_token_for_reading_is_another_one(void **state)
{
    (void)state;
    struct served other = {0};
    assert_int_equal(open_operators(&other, "OUT_TOKEN"), SEMEL_INVALID);
    assert_non_null(strstr(other.err.text, "admin.read_token is the same as admin.token"));
    served_done(&other);
}

static int ask(const struct served *s, const char *token)
{
    char head[256];
    int fd = open_admin(s);
    snprintf(head, sizeof(head), "GET /v1/inbox HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n",
             token);
    client_sendz(fd, head);
    return fd;
}

/* Whoever does not serve the queue cannot make it grow, and nobody waits for ever. */
static void requests_of_operators_are_bounded_and_answered_in_time(void **state)
{
    (void)state;
    struct served other = {0};
    int fds[SEMEL_API_CALLS];
    assert_int_equal(open_operators(&other, "READ_TOKEN"), SEMEL_OK);
    served_patience(&other, 2000);
    served_start(&other);
    assert_reply(served_reply(ask(&other, IN_TOKEN)), 401, "");
    assert_reply(served_reply(ask(&other, OUT_TOKEN)), 503, "the API is not available");
    assert_non_null(semel__serve_api(other.serve));
    for (size_t i = 0; i < COUNT(fds); i++)
        fds[i] = ask(&other, i % 2 == 0 ? OUT_TOKEN : READ_TOKEN);
    struct reply late = {0};
    size_t refused = 0;
    for (int i = 0; i < 1000 && refused == 0; i++) { /* they come in any order: one more than fits is refused */
        late = served_reply(ask(&other, OUT_TOKEN));
        assert_int_equal(late.status, 503);
        refused += strstr(late.body, "too many requests wait") != NULL;
        reply_done(&late);
    }
    assert_int_equal(refused, 1);
    for (size_t i = 0; i < COUNT(fds); i++) {
        struct reply reply = served_reply(fds[i]);
        assert_non_null(strstr(reply.head, "\r\nRetry-After: "));
        assert_reply(reply, 503, "");
    }
    semel__api_close(other.serve->api);
    assert_reply(served_reply(ask(&other, OUT_TOKEN)), 503, "the API is not available");
    served_done(&other);
}

/* ---- settings ----------------------------------------------------------------------------------------- */

/* Every path needs a scope of its own token, and a server knows 16. */
static void more_tokens_than_an_address_can_tell_apart_are_refused(void **state)
{
    (void)state;
    struct served other = {0};
    char text[4096];
    int n = snprintf(text, sizeof(text), "store: sqlite:x.db\nroutes:\n");
    for (int i = 0; i < 17; i++)
        n += snprintf(text + n, sizeof(text) - (size_t)n,
                      "  r%d: {from: {listen: 127.0.0.1:0, token: \"${IN_TOKEN}%d\"}, do: {sql: SELECT 1}}\n", i, i);
    assert_int_equal(served_open(&other, text), SEMEL_INVALID);
    assert_non_null(strstr(other.err.text, "routes.r16: its address has more than 16 different tokens"));
    assert_null(other.serve);
    served_done(&other);
}

static void without_a_listener_there_is_no_server(void **state)
{
    (void)state;
    struct served other = {0};
    assert_int_equal(served_open(&other, ROUTE_OF("admin: false\n")), SEMEL_OK);
    assert_null(other.serve);
    served_done(&other);
}

static void an_address_that_is_taken_is_told(void **state)
{
    (void)state;
    struct served other = {0};
    char text[256];
    snprintf(text, sizeof(text), ROUTE_OF("admin: {listen: \"127.0.0.2:%u\"}\n"), served.admin.port);
    assert_int_equal(served_open(&other, text), SEMEL_RETRY);
    assert_null(other.serve);
    served_done(&other);
}

/* ---- all the way -------------------------------------------------------------------------------------- */

struct way {
    struct engine *e;
    struct semel_broker *broker;
    struct semel_pump pump;
    struct semel_rules rules;
};

static struct way way;

static int way_up(void **state)
{
    int rc = engine_on_sqlite(state);
    struct engine *e = *state;
    void *none = NULL;
    up(&none);
    way = (struct way){.e = e};
    way.broker = semel__serve_ingest(served.serve, served_route(&served, "in"));
    assert_non_null(way.broker);
    semel__ingest_serve(way.broker, true);
    semel__pump_init(&way.pump, &e->inbox, way.broker, &way.rules);
    way.pump.wait_ms = WAIT_S * 1000;
    return rc;
}

static int way_down(void **state)
{
    void *none = NULL;
    semel__pump_done(&way.pump);
    semel_broker_close(way.broker);
    down(&none);
    return engine_down(state);
}

static struct reply send_in(const char *more, const char *body)
{
    size_t n = 0;
    int fd = served_post(&served, "/in", IN_TOKEN, more, body, strlen(body));
    while (n == 0)
        assert_ok(way.e, semel__pump_step(&way.pump, way.e->now_us, &n, &way.e->err));
    return served_reply(fd);
}

static void a_message_by_http_has_its_effect_once(void **state)
{
    /* I5, I9, I11 */
    (void)state;
    assert_reply(send_in("ce-id: a\r\n", "out"), 202, "\"status\":\"completed\"");
    struct reply reply = send_in("ce-id: a\r\n", "out");
    assert_non_null(strstr(reply.body, "\"outcome\":"));
    assert_reply(reply, 200, "\"result\":\"duplicate\"");
    assert_reply(send_in("ce-id: a\r\n", "ok"), 409, "\"result\":\"conflict\"");
    assert_reply(send_in("", "ok"), 422, "\"why\":\"no_id\"");
    assert_reply(send_in("Idempotency-Key: b\r\n", "fail@1"), 202, "\"status\":\"failed\"");
    assert_reply(send_in("Idempotency-Key: b\r\n", "fail@1"), 200, "\"why\":\"backoff\"");
    assert_int_equal(effects_of(way.e, "a"), 1);
}

static void what_the_store_could_not_take_is_sent_again(void **state)
{
    (void)state;
    size_t n = 0;
    fail_at(way.e, "begin", 1, FAULT_WORLD);
    int fd = served_post(&served, "/in", IN_TOKEN, "ce-id: a\r\n", "ok", 2);
    semel_status status = SEMEL_OK;
    for (int i = 0; i < 100 && status == SEMEL_OK; i++)
        status = semel__pump_step(&way.pump, way.e->now_us, &n, &way.e->err);
    assert_int_not_equal(status, SEMEL_OK);
    struct reply reply = served_reply(fd);
    assert_non_null(strstr(reply.head, "\r\nRetry-After: "));
    assert_reply(reply, 503, "later");
    assert_int_equal(effects_of(way.e, "a"), 0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, up, down)
    const struct CMUnitTest tests[] = {
        CASE(metrics_are_open_and_in_the_format_of_prometheus),
        CASE(readiness_tells_its_reason),
        CASE(routes_are_listed),
        CASE(admin_changes_nothing_and_is_on_no_other_address),
        CASE(each_route_needs_its_own_token),
        CASE(tokens_are_replaced_while_it_runs),
        CASE(the_token_for_reading_is_another_one),
        CASE(requests_of_operators_are_bounded_and_answered_in_time),
        CASE(more_tokens_than_an_address_can_tell_apart_are_refused),
        CASE(without_a_listener_there_is_no_server),
        CASE(an_address_that_is_taken_is_told),
        cmocka_unit_test_setup_teardown(a_message_by_http_has_its_effect_once, way_up, way_down),
        cmocka_unit_test_setup_teardown(what_the_store_could_not_take_is_sent_again, way_up, way_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
