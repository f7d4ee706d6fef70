/* SPDX-License-Identifier: MIT
 *
 * test_http_conn.c: the state machine of a connection without a socket: phases, time-outs, lack of memory.
 */
#include <stdlib.h>

#include "net/conn.h"
#include "unit/unit.h"

#define HOST "Host: localhost\r\n"
#define GET "GET /a/x?q=1 HTTP/1.1\r\n" HOST "\r\n"
#define POST "POST /b HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello"

struct wire {
    struct semel_conn_env env;
    struct semel_http_route routes[3];
    struct semel_conn *conn;
    struct semel_http_exchange *x; /* with the handler, or answered and on its way back */
    unsigned alive, handled, overdue;
    struct semel_buf out;
};

static void keep(void *ctx, struct semel_http_exchange *x)
{
    struct wire *wire = ctx;
    wire->handled++;
    wire->x = x;
}

static void came_back(void *ctx, struct semel_http_exchange *x)
{
    struct wire *wire = ctx;
    assert_ptr_equal(wire->x, x);
}

static void took(void *ctx)
{
    ((struct wire *)ctx)->alive++;
}

static void gone(void *ctx)
{
    ((struct wire *)ctx)->alive--;
}

static int64_t standing(void *ctx)
{
    (void)ctx;
    return INT64_C(784111777000000);
}

static const struct semel_clock clock_1994 = {.now_us = standing};

static void nothing(struct semel_http_exchange *x)
{
    (void)x;
}

static void no_body(struct semel_http_exchange *x, struct semel_str piece)
{
    (void)x;
    (void)piece;
}

static const struct semel_http_stream stream = {no_body, nothing, nothing, nothing, nothing};

static void wire_init(struct wire *wire)
{
    struct semel_http_settings settings;
    *wire = (struct wire){.alive = 0};
    semel__http_settings_init(&settings);
    wire->routes[0] =
        (struct semel_http_route){.methods = SEMEL_HTTP_BIT(GET), .path = "/a/{id}", .handle = keep, .ctx = wire};
    wire->routes[1] = (struct semel_http_route){
        .methods = SEMEL_HTTP_BIT(POST), .path = "/b", .body_max = 64, .handle = keep, .ctx = wire};
    wire->routes[2] = (struct semel_http_route){
        .methods = SEMEL_HTTP_BIT(DELETE), .path = "/s", .handle = keep, .ctx = wire, .stream = &stream};
    settings.routes = wire->routes;
    settings.n_routes = 3;
    assert_int_equal(semel__conn_env_init(&wire->env, &settings, false, NULL), SEMEL_OK);
    wire->env.clock = &clock_1994;
    wire->env.back = came_back;
    wire->env.take = took;
    wire->env.gone = gone;
    wire->env.back_ctx = wire;
    wire->conn = semel__conn_new(&wire->env, "127.0.0.1:1", NULL);
    semel__buf_init(&wire->out, 1 << 20);
}

static void wire_done(struct wire *wire)
{
    semel__conn_free(wire->conn);
    assert_int_equal(wire->alive, 0);
    assert_int_equal(wire->env.held, 0);
    semel__conn_env_done(&wire->env);
    semel__buf_done(&wire->out);
}

static void put(struct wire *wire, const char *text)
{
    semel__conn_input(wire->conn, text, strlen(text));
}

/* The handler's answer, and its way back to the connection. */
static void answer(struct wire *wire)
{
    struct semel_http_exchange *x = wire->x;
    if (x == NULL)
        return;
    semel__buf_addz(semel__http_body(x), "{}");
    semel__http_answer(x, 200);
    wire->x = NULL;
    if (x->conn != NULL)
        semel__conn_answered(x->conn, x);
    else
        semel__conn_retire(x->env, x);
}

static void flush(struct wire *wire)
{
    struct semel_str pieces[2];
    for (size_t n; (n = semel__conn_output(wire->conn, pieces)) > 0;) {
        struct semel_str piece = pieces[0].n > 0 ? pieces[0] : pieces[1];
        semel__buf_add(&wire->out, piece.p, piece.n);
        semel__conn_sent(wire->conn, piece.n);
    }
    assert_true(semel__buf_add(&wire->out, "", 1)); /* a NUL that is not counted */
    wire->out.n--;
}

static void assert_out(struct wire *wire, const char *begins)
{
    assert_true(wire->out.n >= strlen(begins));
    assert_memory_equal(wire->out.p, begins, strlen(begins));
    wire->out.n = 0;
}

static void a_request_goes_through_its_phases(void **state)
{
    (void)state;
    struct wire wire;
    wire_init(&wire);
    const struct semel_http_limits *limits = &wire.env.limits;
    assert_int_equal(wire.conn->phase, SEMEL_CONN_HEAD);
    assert_int_equal(semel__conn_timeout_ms(wire.conn), limits->head_ms);
    put(&wire, "POST /b HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhe");
    assert_int_equal(wire.conn->phase, SEMEL_CONN_BODY);
    assert_int_equal(semel__conn_timeout_ms(wire.conn), limits->body_ms);
    assert_int_equal(wire.env.held, 2); /* B6 P87: what has come, not what was announced */
    put(&wire, "llo");
    assert_int_equal(wire.env.held, 5);
    assert_int_equal(wire.conn->phase, SEMEL_CONN_HANDLING);
    assert_int_equal(semel__conn_timeout_ms(wire.conn), 0);
    assert_str(semel__http_request(wire.x)->body, "hello");
    answer(&wire);
    assert_int_equal(wire.conn->phase, SEMEL_CONN_WRITING);
    assert_int_equal(semel__conn_timeout_ms(wire.conn), limits->write_ms);
    flush(&wire);
    assert_out(&wire, "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 2\r\n"
                      "Content-Type: application/json\r\nCache-Control: no-store\r\n"
                      "X-Content-Type-Options: nosniff\r\n\r\n{}");
    assert_int_equal(wire.conn->phase, SEMEL_CONN_IDLE);
    assert_int_equal(semel__conn_timeout_ms(wire.conn), limits->idle_ms);
    put(&wire, "G");
    assert_int_equal(wire.conn->phase, SEMEL_CONN_HEAD);
    wire_done(&wire);
}

static void what_waits_behind_a_request_is_not_read_further(void **state)
{
    (void)state;
    struct wire wire;
    wire_init(&wire);
    put(&wire, GET);
    assert_true(semel__conn_wants(wire.conn)); /* to see the client go */
    put(&wire, GET GET);
    assert_false(semel__conn_wants(wire.conn));
    for (unsigned i = 1; i <= 3; i++) {
        assert_int_equal(wire.handled, i);
        answer(&wire);
        flush(&wire);
    }
    assert_true(semel__conn_wants(wire.conn));
    wire_done(&wire);
}

static void every_wait_ends(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {{"", ""},
                 {"GET /a/x HT", "HTTP/1.1 408 Request Timeout\r\n"},
                 {"POST /b HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhe", "HTTP/1.1 408 Request Timeout\r\n"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct wire wire;
        wire_init(&wire);
        put(&wire, cases[i].in);
        unsigned serial = wire.conn->serial;
        semel__conn_expired(wire.conn);
        assert_int_not_equal(wire.conn->serial, serial);
        flush(&wire);
        if (cases[i].out[0] != '\0') {
            assert_out(&wire, cases[i].out);
            assert_int_equal(wire.conn->phase, SEMEL_CONN_LINGER);
            put(&wire, GET); /* heard, and dropped */
            semel__conn_expired(wire.conn);
        }
        assert_int_equal(wire.conn->phase, SEMEL_CONN_CLOSED);
        assert_int_equal(wire.handled, 0);
        wire_done(&wire);
    }
}

static void an_exchange_outlives_its_connection(void **state)
{
    (void)state;
    struct wire wire;
    wire_init(&wire);
    put(&wire, POST);
    assert_false(semel__http_hung_up(wire.x));
    semel__conn_lost(wire.conn);
    assert_true(semel__http_hung_up(wire.x));
    semel__conn_free(wire.conn);
    wire.conn = NULL;
    assert_str(semel__http_request(wire.x)->body, "hello");
    assert_str(semel__http_request(wire.x)->remote, "127.0.0.1:1");
    assert_int_equal(wire.env.held, 5);
    answer(&wire);
    wire_done(&wire);
}

static void is_overdue(void *ctx, struct semel_http_exchange *x)
{
    struct wire *wire = ctx;
    wire->overdue++;
    assert_ptr_equal(semel__http_kept(x), wire);
}

static void a_handler_hears_of_an_answer_that_is_overdue_until_it_is_given(void **state)
{
    (void)state;
    for (int gone = 0; gone < 2; gone++) { /* also of one whose client has gone */
        struct wire wire;
        wire_init(&wire);
        wire.routes[1].timeout_ms = 1000;
        wire.routes[1].overdue = is_overdue;
        put(&wire, POST);
        semel__http_keep(wire.x, &wire);
        if (gone) {
            semel__conn_free(wire.conn);
            wire.conn = NULL;
        }
        semel__conn_tick(&wire.env, 999);
        assert_int_equal(wire.overdue, 0);
        semel__conn_tick(&wire.env, 1);
        semel__conn_tick(&wire.env, 1);
        assert_int_equal(wire.overdue, 2);
        answer(&wire);
        semel__conn_tick(&wire.env, 1000);
        assert_int_equal(wire.overdue, 2);
        if (!gone)
            flush(&wire);
        wire_done(&wire);
    }
}

static void a_stopping_server_closes_what_is_idle_and_finishes_the_rest(void **state)
{
    (void)state;
    static const char *const cut[] = {"", "GET /a/x HTTP/1.1\r\n",
                                      "POST /b HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhe", POST};
    static const char *const rest[] = {NULL, HOST "\r\n", "llo", ""};
    for (size_t i = 0; i < COUNT(cut); i++) {
        struct wire wire;
        wire_init(&wire);
        put(&wire, cut[i]);
        semel__conn_drain(wire.conn);
        if (rest[i] == NULL) {
            assert_int_equal(wire.conn->phase, SEMEL_CONN_CLOSED);
        } else {
            put(&wire, rest[i]);
            assert_int_equal(wire.conn->phase, SEMEL_CONN_HANDLING);
            answer(&wire);
            flush(&wire);
            assert_non_null(strstr(wire.out.p, "Connection: close\r\n"));
            assert_int_equal(wire.conn->phase, SEMEL_CONN_LINGER);
        }
        wire_done(&wire);
    }
}

/* Each allocation fails in turn: there is an answer or the connection ends, and nothing is lost or kept. */
static void without_memory_a_request_is_put_off_or_the_connection_ends(void **state)
{
    (void)state;
    static const char *const requests[] = {GET, POST,
                                           "POST /b HTTP/1.1\r\n" HOST
                                           "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                                           "GET /none HTTP/1.1\r\n" HOST "\r\n"};
    for (size_t i = 0; i < COUNT(requests); i++) {
        bool reached = true;
        for (unsigned at = 1; reached; at++) {
            struct wire wire;
            struct fail_nth fail;
            wire_init(&wire);
            fail_nth_begin(&fail, at);
            put(&wire, requests[i]);
            answer(&wire);
            reached = fail_nth_end(&fail);
            flush(&wire);
            assert_true(wire.conn->phase == SEMEL_CONN_CLOSED || wire.out.n > 0);
            int status = 0;
            if (wire.out.n > 0)
                assert_int_equal(sscanf(wire.out.p, "HTTP/1.1 %d ", &status), 1);
            assert_true(status == 0 || status == 500 || status == 503 || !reached || i == 3);
            if (!reached)
                assert_int_equal(status, i == 3 ? 404 : 200);
            wire_done(&wire);
            assert_true(at < 100);
        }
    }
}

static int64_t standing_at(void *ctx)
{
    return *(const int64_t *)ctx;
}

static bool refuse_memory(void *ctx)
{
    (void)ctx;
    return false;
}

/* What was queued before it goes out before the connection has its turn. */
static void a_reply_that_lost_a_piece_ends_its_connection(void **state)
{
    (void)state;
    static char piece[65536];
    struct wire wire;
    wire_init(&wire);
    put(&wire, "DELETE /s HTTP/1.1\r\n" HOST "\r\n");
    semel__http_begin(wire.x, 200, (int64_t)sizeof(piece) + 2);
    semel__conn_turn(wire.conn);
    semel__http_send(wire.x, SEMEL_STR("a"));
    semel__alloc_set_hook(refuse_memory, NULL);
    semel__http_send(wire.x, (struct semel_str){piece, sizeof(piece)});
    semel__alloc_set_hook(NULL, NULL);
    flush(&wire);
    semel__http_send(wire.x, SEMEL_STR("z"));
    semel__http_end(wire.x);
    semel__conn_turn(wire.conn);
    flush(&wire);
    assert_int_equal(wire.conn->phase, SEMEL_CONN_CLOSED);
    assert_true(wire.conn->reset);
    wire_done(&wire);
}

static void dates_are_those_of_the_protocol(void **state)
{
    (void)state;
    static const struct {
        int64_t us;
        const char *text;
    } cases[] = {{0, "Thu, 01 Jan 1970 00:00:00 GMT"},
                 {INT64_C(784111777000000), "Sun, 06 Nov 1994 08:49:37 GMT"},
                 {INT64_C(951782400999999), "Tue, 29 Feb 2000 00:00:00 GMT"},
                 {INT64_C(1798761599000000), "Thu, 31 Dec 2026 23:59:59 GMT"},
                 {-1, "Thu, 01 Jan 1970 00:00:00 GMT"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct wire wire;
        wire_init(&wire);
        wire.env.clock = &(const struct semel_clock){.now_us = standing_at, .ctx = (void *)&cases[i].us};
        put(&wire, GET);
        answer(&wire);
        flush(&wire);
        char line[64];
        snprintf(line, sizeof(line), "\r\nDate: %s\r\n", cases[i].text);
        assert_non_null(strstr(wire.out.p, line));
        wire_done(&wire);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_goes_through_its_phases),
        cmocka_unit_test(what_waits_behind_a_request_is_not_read_further),
        cmocka_unit_test(every_wait_ends),
        cmocka_unit_test(an_exchange_outlives_its_connection),
        cmocka_unit_test(a_handler_hears_of_an_answer_that_is_overdue_until_it_is_given),
        cmocka_unit_test(a_stopping_server_closes_what_is_idle_and_finishes_the_rest),
        cmocka_unit_test(without_memory_a_request_is_put_off_or_the_connection_ends),
        cmocka_unit_test(a_reply_that_lost_a_piece_ends_its_connection),
        cmocka_unit_test(dates_are_those_of_the_protocol),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
