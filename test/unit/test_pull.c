/* SPDX-License-Identifier: MIT
 *
 * test_pull.c: workers that take messages by HTTP and settle them by their token. The test is the thread that steps,
 * so it decides when a call is served.
 */
#include "unit/engine.h"

#include <poll.h>

#include "admin/serve_private.h"
#include "admin/text.h"
#include "base/json.h"
#include "unit/served.h"

static struct served served;
static struct semel_pull *pull;
static struct engine *e;

static int up(void **state, int (*engine_up)(void **state))
{
    int rc = engine_up(state);
    e = *state;
    e->policy.consumer = SEMEL_STR("both");
    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    served = (struct served){0};
    assert_int_equal(served_open(&served, SERVED_ROUTES), SEMEL_OK);
    pull = semel__serve_pull(served.serve, served_route(&served, "both"));
    assert_non_null(pull);
    served_start(&served);
    return rc;
}

static int on_mem(void **state)
{
    return up(state, engine_on_mem);
}

static int on_sqlite(void **state)
{
    return up(state, engine_on_sqlite);
}

static int down(void **state)
{
    semel__pull_close(pull);
    served_done(&served);
    return engine_down(state);
}

static void put(const char *id, const char *payload)
{
    struct semel__msg m = msg(id, payload);
    m.headers = SEMEL_STR("{\"h\":\"v\"}");
    assert_ok(e, semel__inbox_put(&e->inbox, &m, &e->settled[0], &e->err));
    assert_int_equal(e->settled[0].act, SEMEL_ACK);
}

static int ask(const char *call, const char *body)
{
    char path[128];
    snprintf(path, sizeof(path), "/both/out/%s", call);
    return served_post(&served, path, OUT_TOKEN, "", body, strlen(body));
}

/* One call, served. */
static struct reply call(const char *path, const char *body)
{
    size_t n = 0;
    int fd = ask(path, body);
    assert_ok(e, semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err));
    return served_reply(fd);
}

static struct reply end(const char *path, const char *token, const char *more)
{
    char body[512];
    snprintf(body, sizeof(body), "{\"token\":\"%s\"%s}", token, more);
    return call(path, body);
}

/* The text of a member of the first message. */
static void member_of(const struct reply *reply, const char *name, char *out, size_t size)
{
    struct semel_str text = {reply->body, reply->n}, first, value;
    size_t at = 0;
    assert_true(semel__json_next(text, &at, NULL, &first));
    assert_true(semel__json_member(first, name, &value));
    if (value.p[0] == '"')
        value = (struct semel_str){value.p + 1, value.n - 2};
    assert_true(value.n < size);
    memcpy(out, value.p, value.n);
    out[value.n] = '\0';
}

static void take_token(const char *path, char token[32])
{
    struct reply reply = call(path, "");
    assert_int_equal(reply.status, 200);
    member_of(&reply, "token", token, 32);
    reply_done(&reply);
}

/* What is said of a token that names nothing any more: with the row's state where the store can be looked into. */
static const char *lost(const char *state)
{
    static char text[96];
    snprintf(text, sizeof(text), "{\"result\":\"lost\"%s%s%s}", e->db == NULL ? ",\"status\":\"" : "",
             e->db == NULL ? state : "", e->db == NULL ? "\"" : "");
    return text;
}

/* ---- take and settle ---------------------------------------------------------------------------------- */

static void a_message_is_taken_settled_and_done_once(void **state)
{
    /* E1 */
    (void)state;
    char token[32], key[80], value[64], wanted[SEMEL_STEP_KEY_TEXT];
    put("a", "{\"n\": 1}");
    struct reply reply = call("take?lease=90s", "");
    assert_int_equal(reply.status, 200);
    member_of(&reply, "token", token, sizeof(token));
    member_of(&reply, "id", value, sizeof(value));
    assert_string_equal(value, "a");
    member_of(&reply, "payload", value, sizeof(value));
    assert_string_equal(value, "{\"n\": 1}");
    member_of(&reply, "headers", value, sizeof(value));
    assert_string_equal(value, "{\"h\":\"v\"}");
    member_of(&reply, "attempt", value, sizeof(value));
    assert_string_equal(value, "1");
    member_of(&reply, "idempotency_key", key, sizeof(key));
    assert_true(semel__step_key(SEMEL_STR("both"), SEMEL_STR("s"), SEMEL_STR("a"), SEMEL_STR("effect"), wanted));
    assert_string_equal(key, wanted);
    reply_done(&reply);
    assert_int_equal(row_of(e, "a").progress.lease_until_us, e->now_us + 90 * SECOND_US);

    assert_reply(call("take", ""), 200, "[]");
    assert_reply(end("settle", token, ",\"result\":\"done\",\"outcome\":{\"x\" : 1},\"reason\":\"fine\""), 200,
                 "{\"result\":\"settled\",\"status\":\"completed\"}");
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_str(row_of(e, "a").progress.outcome, "{\"x\" : 1}");
    assert_reply(end("settle", token, ",\"result\":\"done\""), 409, lost("completed"));
    assert_reply(call("take", ""), 200, "[]");
}

static void a_process_that_did_not_give_the_lease_settles_it_by_its_token(void **state)
{
    (void)state;
    char token[32], body[128];
    put("a", "x");
    take_token("take", token);
    semel__pull_close(pull); /* forgets what was taken here */
    pull = semel__serve_pull(served.serve, served_route(&served, "both"));
    snprintf(body, sizeof(body), "{\"token\":\"%s\",\"result\":\"done\"}", token);
    assert_reply(call("settle", body), 200, "settled");
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_reply(call("settle", body), 409, "{\"result\":\"lost\"}");
}

static void every_result_has_its_end(void **state)
{
    /* I14 */
    (void)state;
    static const struct {
        const char *result;
        enum semel_row_status state;
    } cases[] = {{"done", SEMEL_ROW_COMPLETED},    {"transient", SEMEL_ROW_FAILED}, {"permanent", SEMEL_ROW_DEAD},
                 {"rejected", SEMEL_ROW_REJECTED}, {"unknown", SEMEL_ROW_UNKNOWN},  {"maybe", SEMEL_ROW_UNKNOWN}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char token[32], more[96], id[8];
        snprintf(id, sizeof(id), "m%zu", i);
        put(id, "x");
        take_token("take", token);
        snprintf(more, sizeof(more), ",\"result\":\"%s\",\"reason\":\"so\\u0007 it is\",\"outcome\":null",
                 cases[i].result);
        assert_reply(end("settle", token, more), 200, semel__row_status_name(cases[i].state));
        assert_int_equal(state_of(e, id), cases[i].state);
        if (i > 0 && cases[i].state != SEMEL_ROW_REJECTED)
            assert_str(row_of(e, id).progress.error_text, "so? it is");
    }
}

static void a_late_worker_is_refused_and_its_word_is_kept(void **state)
{
    /* I7 */
    (void)state;
    char token[32];
    size_t n;
    put("a", "x");
    take_token("take?lease=10s", token);
    e->now_us += 11 * SECOND_US;
    assert_ok(e, semel__inbox_recover(&e->inbox, 10, &n, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_UNKNOWN);
    int64_t before = attempts_of(e, "a");
    assert_reply(end("settle", token, ",\"result\":\"done\""), 409, lost("unknown"));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_UNKNOWN);
    assert_int_equal(attempts_of(e, "a"), before + 1);
    assert_reply(end("renew", token, ""), 409, "lost");
    assert_reply(end("release", token, ""), 409, "lost");
}

static void a_lease_is_renewed_and_never_beyond_the_longest(void **state)
{
    (void)state;
    char token[32];
    put("a", "x");
    take_token("take?lease=10s", token);
    e->now_us += 5 * SECOND_US;
    assert_reply(end("renew", token, ",\"lease\":\"60s\""), 200, "\"lease_until\":\"2023-");
    assert_int_equal(row_of(e, "a").progress.lease_until_us, e->now_us + 60 * SECOND_US);
    assert_reply(end("renew", token, ",\"lease\":\"1d\""), 200, "renewed");
    assert_int_equal(row_of(e, "a").progress.lease_until_us, e->now_us + 120 * SECOND_US);
    assert_reply(end("settle", token, ",\"result\":\"done\""), 200, "completed");
}

static void a_released_message_counts_no_attempt(void **state)
{
    (void)state;
    char token[32], value[16];
    put("a", "x");
    take_token("take", token);
    assert_reply(end("release", token, ""), 200, "released");
    assert_int_equal(row_of(e, "a").progress.attempts, 0);
    struct reply reply = call("take", "");
    member_of(&reply, "attempt", value, sizeof(value));
    assert_string_equal(value, "1");
    reply_done(&reply);
}

static void bytes_that_are_no_json_come_as_base64(void **state)
{
    (void)state;
    static const struct {
        const char *payload, *wanted;
    } cases[] = {{"\xff\x01", "/wE="}, {"", ""}, {"{\"a\":1,\"a\":2}", "eyJhIjoxLCJhIjoyfQ=="}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char id[8], value[64];
        snprintf(id, sizeof(id), "m%zu", i);
        put(id, cases[i].payload);
        struct reply reply = call("take", "");
        member_of(&reply, "payload_base64", value, sizeof(value));
        assert_string_equal(value, cases[i].wanted);
        reply_done(&reply);
    }
}

static void messages_of_a_key_are_taken_one_at_a_time(void **state)
{
    /* I13 */
    (void)state;
    char token[32], value[16];
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    const struct semel__msg msgs[] = {keyed("a", "x", "k", SEMEL_NONE), keyed("b", "x", "k", SEMEL_NONE),
                                      keyed("c", "x", "l", SEMEL_NONE)};
    assert_ok(e, semel__inbox_put_all(&e->inbox, msgs, COUNT(msgs), e->settled, &e->err));
    struct reply reply = call("take?max=10", "");
    member_of(&reply, "token", token, sizeof(token));
    member_of(&reply, "id", value, sizeof(value));
    assert_string_equal(value, "a");
    assert_null(strstr(reply.body, "\"id\":\"b\""));
    assert_non_null(strstr(reply.body, "\"id\":\"c\""));
    reply_done(&reply);
    assert_reply(end("settle", token, ",\"result\":\"done\""), 200, "completed");
    assert_reply(call("take?max=10", ""), 200, "\"id\":\"b\"");
}

/* ---- many --------------------------------------------------------------------------------------------- */

static void ends_that_come_together_are_committed_together(void **state)
{
    (void)state;
    int fds[20];
    char id[8];
    for (size_t i = 0; i < COUNT(fds) - 1; i++) {
        snprintf(id, sizeof(id), "m%zu", i);
        put(id, "x");
    }
    struct reply reply = call("take?max=100", "");
    struct semel_str text = {reply.body, reply.n}, one, token;
    size_t at = 0, n_fds = 0, served_n = 0, n;
    while (semel__json_next(text, &at, NULL, &one)) {
        char body[128];
        assert_true(semel__json_member(one, "token", &token));
        snprintf(body, sizeof(body), "{\"token\":%.*s,\"result\":\"done\"}", (int)token.n, token.p);
        assert_true(n_fds < COUNT(fds));
        fds[n_fds++] = ask("settle", body);
        if (n_fds == 1)
            fds[n_fds++] = ask("settle", body); /* twice: one of them is lost */
    }
    reply_done(&reply);
    while (served_n < n_fds) {
        assert_ok(e, semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err));
        served_n += n;
    }
    unsigned settled = 0, lost = 0;
    for (size_t i = 0; i < n_fds; i++) {
        reply = served_reply(fds[i]);
        settled += reply.status == 200;
        lost += reply.status == 409;
        reply_done(&reply);
    }
    assert_int_equal(settled, COUNT(fds) - 1);
    assert_int_equal(lost, 1);
}

static void what_does_not_fit_into_an_answer_is_given_back(void **state)
{
    (void)state;
    const size_t size = SEMEL_PULL_BYTES / 2;
    char *large = malloc(size + 1);
    assert_non_null(large);
    memset(large, 'x', size);
    e->policy.payload_max = 2 * size;
    large[size] = '\0';
    put("a", large);
    put("b", large);
    put("c", "x");
    struct reply reply = call("take?max=10", "");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "\"id\":\"a\""));
    assert_null(strstr(reply.body, "\"id\":\"b\""));
    reply_done(&reply);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_WAITING);
    assert_int_equal(row_of(e, "b").progress.attempts, 0);
    free(large);
}

/* ---- long polls --------------------------------------------------------------------------------------- */

static void a_long_poll_is_held_until_something_is_there(void **state)
{
    (void)state;
    size_t n = 0;
    int first = ask("take?wait=60s", ""), second = -1;
    assert_ok(e, semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err));
    assert_int_equal(n, 0);
    second = ask("take?wait=60s", "");
    assert_ok(e, semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err));
    assert_int_equal(n, 0);
    put("a", "x");
    semel__pull_wake(pull);
    assert_ok(e, semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err));
    assert_int_equal(n, 1);
    assert_reply(served_reply(first), 200, "\"id\":\"a\"");
    put("b", "x"); /* nobody says so: it is looked for */
    for (n = 0; n == 0;)
        assert_ok(e, semel__pull_step(pull, &e->inbox, 1000, &n, &e->err));
    assert_reply(served_reply(second), 200, "\"id\":\"b\"");
}

static void a_long_poll_ends_empty_and_so_does_stopping(void **state)
{
    (void)state;
    size_t n = 0;
    int fd = ask("take?wait=100ms", "");
    assert_ok(e, semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err));
    assert_reply(served_reply(fd), 200, "[]"); /* by the server */
    fd = ask("take?wait=60s", "");
    assert_ok(e, semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err));
    served_stop(&served);
    assert_reply(served_reply(fd), 200, "[]");
}

static void a_worker_that_is_gone_gets_nothing(void **state)
{
    (void)state;
    size_t n = 0;
    int fd = ask("take?wait=60s", "");
    assert_ok(e, semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err));
    close(fd);
    size_t left = 1;
    for (int i = 0; i < WAIT_S * 1000 && left > 0; i++) { /* the server sees it */
        (void)poll(NULL, 0, 1);
        left = semel__pull_waiting(pull);
    }
    assert_int_equal(left, 0);
    put("a", "x");
    semel__pull_wake(pull);
    assert_ok(e, semel__pull_step(pull, &e->inbox, 0, &n, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_WAITING);
}

/* ---- when things fail --------------------------------------------------------------------------------- */

static void a_store_that_fails_is_503_and_the_token_stays_good(void **state)
{
    (void)state;
    char token[32], body[128];
    size_t n;
    put("a", "x");
    fail_at(e, "begin", 1, FAULT_WORLD);
    int fd = ask("take", "");
    assert_int_equal(semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err), SEMEL_RETRY);
    struct reply reply = served_reply(fd);
    assert_true(reply_has(&reply, "Retry-After: 1"));
    assert_reply(reply, 503, "store");
    take_token("take", token);
    snprintf(body, sizeof(body), "{\"token\":\"%s\",\"result\":\"done\"}", token);
    fail_at(e, "settle", 1, FAULT_WORLD);
    fd = ask("settle", body);
    assert_int_equal(semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err), SEMEL_RETRY);
    assert_reply(served_reply(fd), 503, "same token");
    assert_reply(call("settle", body), 200, "completed");
}

static void a_token_of_another_consumer_opens_nothing(void **state)
{
    (void)state;
    char token[32];
    put("a", "x");
    take_token("take", token);
    e->policy.consumer = SEMEL_STR("other");
    assert_reply(end("settle", token, ",\"result\":\"done\""), 409, "{\"result\":\"lost\"");
    e->policy.consumer = SEMEL_STR("both");
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_PROCESSING);
}

static void calls_that_make_no_sense_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *call, *body, *says;
    } cases[] = {
        {"take?max=0", "", "max must be"},
        {"take?max=1001", "", "max must be"},
        {"take?max=x", "", "max must be"},
        {"take?lease=0s", "", "lease must be"},
        {"take?lease=10", "", "lease must be"},
        {"take?wait=soon", "", "wait must be"},
        {"take?most=1", "", "no parameter \\\"most\\\""},
        {"settle", "", "JSON"},
        {"settle", "[]", "JSON object"},
        {"settle", "{\"result\":\"done\"}", "token is missing"},
        {"settle", "{\"token\":\"1\"}", "result is missing"},
        {"settle", "{\"token\":\"1\",\"result\":\"good\"}", "result must be"},
        {"settle", "{\"token\":\"-1\",\"result\":\"done\"}", "token must be"},
        {"settle", "{\"token\":1.5,\"result\":\"done\"}", "token must be"},
        {"settle", "{\"token\":910584836366108801,\"result\":\"done\"}", "a string of digits"}, /* A7 P79 */
        {"settle", "{\"token\":\"910584836366108800\",\"result\":\"done\"}", "the client has rounded"},
        {"renew", "{\"token\":\"910584836366108800\"}", "the client has rounded"},
        {"settle", "{\"token\":99999999999999999999,\"result\":\"done\"}", "token must be"},
        {"settle", "{\"token\":{},\"result\":\"done\"}", "token must be"},
        {"settle", "{\"token\":\"1\",\"result\":\"done\",\"reason\":7}", "reason must be"},
        {"settle", "{\"token\":\"1\",\"result\":\"done\",\"outcom\":7}", "no member \\\"outcom\\\""},
        {"settle", "{\"token\":\"1\",\"result\":\"done\",\"o\\u0075tcome\":7}", "without escapes"},
        {"renew", "{\"token\":\"1\",\"lease\":60}", "lease must be"},
        {"release", "{\"token\":\"1\",\"lease\":\"60s\"}", "no member"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_reply(served_reply(ask(cases[i].call, cases[i].body)), 400, cases[i].says);
    assert_reply(served_reply(served_post(&served, "/both/out/take", IN_TOKEN, "", "", 0)), 403, "");
}

static void a_route_that_does_not_run_is_503(void **state)
{
    (void)state;
    int fd = ask("take?wait=60s", "");
    size_t n;
    assert_ok(e, semel__pull_step(pull, &e->inbox, WAIT_S * 1000, &n, &e->err));
    semel__pull_close(pull);
    assert_reply(served_reply(fd), 503, "not running");
    assert_reply(served_reply(ask("take", "")), 503, "not running");
    pull = semel__serve_pull(served.serve, served_route(&served, "both"));
    served_patience(&served, 100);
    assert_reply(served_reply(ask("take", "")), 503, "too busy"); /* nobody steps */
}

int main(void)
{
#define MEM(test) ON(test, "mem", on_mem, down)
#define BOTH(test) ON(test, "mem", on_mem, down), ON(test, "sqlite", on_sqlite, down)
    const struct CMUnitTest tests[] = {
        BOTH(a_message_is_taken_settled_and_done_once),
        BOTH(a_process_that_did_not_give_the_lease_settles_it_by_its_token),
        BOTH(every_result_has_its_end),
        BOTH(a_late_worker_is_refused_and_its_word_is_kept),
        BOTH(a_lease_is_renewed_and_never_beyond_the_longest),
        BOTH(a_released_message_counts_no_attempt),
        MEM(bytes_that_are_no_json_come_as_base64),
        BOTH(messages_of_a_key_are_taken_one_at_a_time),
        BOTH(ends_that_come_together_are_committed_together),
        MEM(what_does_not_fit_into_an_answer_is_given_back),
        MEM(a_long_poll_is_held_until_something_is_there),
        MEM(a_long_poll_ends_empty_and_so_does_stopping),
        MEM(a_worker_that_is_gone_gets_nothing),
        BOTH(a_store_that_fails_is_503_and_the_token_stays_good),
        MEM(a_token_of_another_consumer_opens_nothing),
        MEM(calls_that_make_no_sense_are_refused_with_the_reason),
        MEM(a_route_that_does_not_run_is_503),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
