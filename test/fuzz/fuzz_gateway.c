/* SPDX-License-Identifier: MIT
 *
 * fuzz_gateway.c: hostile requests and answers for what the gateway makes of them: the rule, the key, the caller and
 * the fingerprint of a request; what is kept of an answer, and what a reconcile says.
 *
 * The input: one byte that chooses the settings, then messages one after the other. What begins with "HTTP/" is an
 * answer, whose body is also that of a reconcile; all else is a request, as clients send it. A message ends where a
 * line "%%" begins.
 *
 * What must hold: a key that is found is 8 to 255 printable characters; a scope has 1 to 255 bytes of UTF-8 and is
 * never one of ours by a caller's own word; the same request has the same key, scope and fingerprint twice; what is
 * kept of an answer is JSON that reads back as headers without line breaks, of which none is of one connection, one
 * moment or one client, and which are kept again as the same text; and a reconcile that is done has a status.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "gateway/ask.h"
#include "gateway/heads.h"
#include "gateway/rules.h"
#include "net/conn.h"

#define MAX_BYTES 65536
#define HEAD_MAX 16384
#define FIELDS_MAX 32
#define MUST(condition) ((condition) ? (void)0 : broken(#condition, __LINE__))

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void broken(const char *condition, int line)
{
    fprintf(stderr, "fuzz_gateway.c:%d: does not hold: %s\n", line, condition);
    abort();
}

/* ---- requests ------------------------------------------------------------------------------------- */

struct run {
    struct semel_conn_env env;
    struct semel_guard_rules rules;
    enum semel_gateway_caller_kind kind;
    struct semel_buf body;
    struct semel_http_exchange *back;
};

static void check_found(const struct run *run, struct semel_str key, struct semel_str scope)
{
    static const char ours[] = "semel:";
    MUST(key.n >= SEMEL_KEY_MIN && key.n <= SEMEL_ID_MAX);
    for (size_t i = 0; i < key.n; i++)
        MUST(key.p[i] >= ' ' && key.p[i] <= '~');
    MUST(scope.n >= 1 && scope.n <= SEMEL_ID_MAX && semel__utf8_valid(scope));
    if (run->kind == SEMEL_GATEWAY_CALLER_API_KEY || semel__begins_with(scope, ours))
        MUST(semel__str_eqz(scope, "semel:anonymous") || scope.n >= 2 * SEMEL_SHA256 + sizeof ours);
}

/* The whole request, as guard.c takes it apart. false: it is not guarded, or refused. */
static bool take_apart(const struct run *run, const struct semel_http_request *req, struct semel_arena *arena,
                       struct semel_str *key, struct semel_str *scope, struct semel_fp *fp)
{
    struct semel_guard_rule *rule = semel__rules_match(&run->rules, req->method, req->target);
    const char *query = memchr(req->target.p, '?', req->target.n);
    const size_t path = query != NULL ? (size_t)(query - req->target.p) : req->target.n;
    struct semel_error err = {0};
    if (rule == NULL)
        return false;
    const struct semel_request request = {
        .method = semel__str(semel__http_method_name(req->method)),
        .path = {req->target.p, path},
        .query = query != NULL ? (struct semel_str){query + 1, req->target.n - path - 1} : SEMEL_STR(""),
        .headers = (const struct semel_pair *)(const void *)req->headers,
        .n_headers = req->n_headers,
        .body = semel__buf_str(&run->body),
    };
    enum semel_key_found found = rule->set.key_pointer != NULL
                                     ? semel__rule_key_in(&run->rules, rule, &request, arena, key, &err)
                                     : semel__rule_key(&run->rules, rule, req->headers, req->n_headers, arena, key,
                                                       &err);
    MUST(found != SEMEL_KEY_MEMORY && (found != SEMEL_KEY_MALFORMED || err.text[0] != '\0'));
    if (found != SEMEL_KEY_FOUND || !semel__rule_scope(&run->rules, rule, req, arena, scope, &err))
        return false;
    check_found(run, *key, *scope);
    MUST(semel__request_fingerprint(&request, &rule->counts, fp, &err) == SEMEL_OK);
    return true;
}

static void whole(struct semel_http_exchange *x)
{
    const struct run *run = semel__http_request(x)->route->ctx;
    const struct semel_http_request *req = semel__http_request(x);
    struct semel_arena arena;
    struct semel_str keys[2], scopes[2];
    struct semel_fp prints[2];
    semel__arena_init(&arena, (size_t)1 << 22);
    if (semel__target_fault(req->target) == NULL) {
        bool guarded = take_apart(run, req, &arena, &keys[0], &scopes[0], &prints[0]);
        MUST(take_apart(run, req, &arena, &keys[1], &scopes[1], &prints[1]) == guarded);
        MUST(!guarded || (semel__str_eq(keys[0], keys[1]) && semel__str_eq(scopes[0], scopes[1]) &&
                          !semel__fp_differs(&prints[0], &prints[1])));
    }
    semel__arena_done(&arena);
    semel__http_refuse(x, 503, "seen");
}

static void handle(void *ctx, struct semel_http_exchange *x)
{
    struct run *run = ctx;
    run->body.n = 0;
    if (semel__http_request(x)->length == 0)
        whole(x);
    else
        semel__http_pull(x, true);
}

static void take_body(struct semel_http_exchange *x, struct semel_str piece)
{
    struct run *run = semel__http_request(x)->route->ctx;
    MUST(semel__buf_add(&run->body, piece.p, piece.n));
}

static void nothing(struct semel_http_exchange *x)
{
    (void)x;
}

static void came_back(void *ctx, struct semel_http_exchange *x)
{
    ((struct run *)ctx)->back = x;
}

static void ask(struct run *run, struct semel_str in)
{
    struct semel_conn *conn = semel__conn_new(&run->env, "10.0.0.1:1", "127.0.0.1");
    struct semel_str pieces[2];
    MUST(conn != NULL);
    conn->subject = NULL;
    while (in.n > 0 && semel__conn_wants(conn)) {
        size_t n = in.n < SEMEL_CONN_READ ? in.n : SEMEL_CONN_READ, sent;
        semel__conn_input(conn, in.p, n);
        in = (struct semel_str){in.p + n, in.n - n};
        do {
            semel__conn_turn(conn);
            sent = semel__conn_output(conn, pieces);
            semel__conn_sent(conn, sent);
        } while (sent > 0);
    }
    MUST(run->back == NULL); /* all of them stream */
    semel__conn_free(conn);
}

/* ---- answers -------------------------------------------------------------------------------------- */

static bool is_kept_for(struct semel_str name)
{
    static const char *const never[] = {
        "set-cookie",        "date", "age", "connection", "keep-alive", "retry-after", "content-length",
        "transfer-encoding", NULL};
    return !semel__head_is_one_of(name, never) && !semel__head_ours(name) && !semel__begins_with(name, "x-ratelimit");
}

static void check_kept(const struct semel_http_pair *headers, size_t n)
{
    struct semel_buf first, again;
    struct semel_arena arena;
    struct semel_http_pair *pairs;
    size_t n_pairs;
    semel__buf_init(&first, SEMEL_ANSWER_HEADERS_MAX);
    semel__buf_init(&again, SEMEL_ANSWER_HEADERS_MAX);
    semel__arena_init(&arena, (size_t)1 << 22);
    semel__heads_write(headers, n, &first);
    if (!first.failed) {
        MUST(semel__heads_read(semel__buf_str(&first), &arena, &pairs, &n_pairs) && n_pairs <= n);
        for (size_t i = 0; i < n_pairs; i++) {
            MUST(is_kept_for(pairs[i].name));
            for (size_t k = 0; k < pairs[i].name.n; k++)
                MUST(semel__http_tchar(pairs[i].name.p[k]));
            for (size_t k = 0; k < pairs[i].value.n; k++)
                MUST(pairs[i].value.p[k] != '\r' && pairs[i].value.p[k] != '\n' && pairs[i].value.p[k] != '\0');
        }
        semel__heads_write(pairs, n_pairs, &again);
        MUST(semel__str_eq(semel__buf_str(&first), semel__buf_str(&again)));
    }
    semel__arena_done(&arena);
    semel__buf_done(&first);
    semel__buf_done(&again);
}

/* What somebody else wrote into the row. */
static bool is_token(struct semel_str name)
{
    for (size_t i = 0; i < name.n; i++)
        if (!semel__http_tchar(name.p[i]))
            return false;
    return name.n > 0;
}

static void check_foreign(struct semel_str text)
{
    struct semel_arena arena;
    struct semel_http_pair *pairs;
    size_t n;
    semel__arena_init(&arena, (size_t)1 << 22);
    if (semel__heads_read(text, &arena, &pairs, &n))
        for (size_t i = 0; i < n; i++)
            MUST(is_token(pairs[i].name) && memchr(pairs[i].value.p, '\n', pairs[i].value.n) == NULL);
    semel__arena_done(&arena);
}

static void check_asked(int status, struct semel_str body)
{
    struct semel_buf outcome;
    int64_t code = 0;
    semel__buf_init(&outcome, SEMEL_ASK_ANSWER_MAX);
    if (semel__ask_state(status, body, &code, &outcome) == SEMEL_ASK_DONE) {
        MUST(status == 200 && code >= 200 && code <= 599);
        MUST(outcome.n == 0 || semel__utf8_valid(semel__buf_str(&outcome)));
    }
    semel__buf_done(&outcome);
}

static void answer(struct semel_str in)
{
    struct semel_http_pair fields[FIELDS_MAX];
    struct semel_gate gate;
    struct semel_parse parse;
    size_t used = 0;
    semel__gate_init_answer(&gate, HEAD_MAX, FIELDS_MAX);
    if (semel__gate_feed(&gate, in.p, in.n, &used) != SEMEL_GATE_END)
        return;
    const struct semel_str rest = {in.p + used, in.n - used};
    if (semel__parse_answer(&parse, fields, FIELDS_MAX, (struct semel_str){in.p, used}, gate.code, false) == 0)
        check_kept(fields, parse.n_fields);
    check_asked(gate.code, rest);
    check_foreign(rest);
}

/* ---- the input ------------------------------------------------------------------------------------ */

static void open_run(struct run *run, unsigned char choice, struct semel_http_route *route,
                     const struct semel_http_stream *stream)
{
    static const char *const from[] = {"10.0.0.0/8"}, *const cors[] = {"https://shop.example"};
    static const char *const ignore[] = {"/at"}, *const listed[] = {"X-Listed"};
    static struct semel_gateway_rule rules[3];
    struct semel_gateway_settings settings;
    struct semel_http_settings http;
    struct semel_error err;
    semel__gateway_settings_init(&settings);
    for (size_t i = 0; i < 3; i++)
        semel__gateway_rule_init(&rules[i]);
    rules[0].match = "* /v1/charges/{id}";
    rules[0].by_endpoint = true;
    rules[1].match = "POST /square";
    rules[1].key_pointer = "/idempotency_key";
    rules[2].match = "POST|PUT /{rest*}";
    rules[2].anonymous = true;
    rules[2].ignore = ignore;
    rules[2].headers = listed;
    rules[2].n_ignore = rules[2].n_headers = 1;
    run->kind = choice % 2 == 0 ? SEMEL_GATEWAY_CALLER_HEADER : SEMEL_GATEWAY_CALLER_API_KEY;
    settings.rules = rules;
    settings.n_rules = 3;
    settings.cors = cors;
    settings.n_cors = 1;
    settings.caller =
        (struct semel_gateway_caller){.kind = run->kind, .header = "X-User", .trusted_from = from, .n_trusted_from = 1};
    MUST(semel__rules_init(&run->rules, &settings, &err) == SEMEL_OK);
    *route = (struct semel_http_route){.methods = SEMEL_HTTP_BIT(POST) | SEMEL_HTTP_BIT(PUT) | SEMEL_HTTP_BIT(GET),
                                       .path = "/{rest*}",
                                       .body_max = MAX_BYTES,
                                       .handle = handle,
                                       .ctx = run,
                                       .stream = stream};
    semel__http_settings_init(&http);
    http.any_host = true;
    http.routes = route;
    http.n_routes = 1;
    MUST(semel__conn_env_init(&run->env, &http, false, &err) == SEMEL_OK);
    run->env.clock = &semel__clock_real;
    run->env.back = came_back;
    run->env.back_ctx = run;
    semel__buf_init(&run->body, MAX_BYTES);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static const struct semel_http_stream stream = {take_body, whole, nothing, nothing, nothing};
    struct semel_http_route route;
    struct run run = {.back = NULL};
    if (size < 2 || size > MAX_BYTES)
        return 0;
    open_run(&run, data[0], &route, &stream);
    const char *p = (const char *)data + 1, *end = (const char *)data + size;
    while (p < end) {
        const char *next = p;
        while (next < end && !(end - next >= 3 && memcmp(next, "%%\n", 3) == 0))
            next++;
        const struct semel_str message = {p, (size_t)(next - p)};
        if (semel__begins_with(message, "HTTP/"))
            answer(message);
        else
            ask(&run, message);
        p = next < end ? next + 3 : end;
    }
    semel__buf_done(&run.body);
    semel__conn_env_done(&run.env);
    semel__rules_done(&run.rules);
    return 0;
}
