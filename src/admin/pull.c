/* SPDX-License-Identifier: MIT
 *
 * pull.c: the endpoint of a `pull` route: workers take messages by HTTP, and renew, settle or release them by token.
 *
 * The loop's thread reads a request into a call and puts it into the endpoint's list. The thread that owns the inbox
 * steps: it removes calls from the list, does them and answers them. A take that finds nothing is held until its wait
 * is over: the step tries it again when the daemon reports that something is due, and every LOOK_MS besides, because
 * other processes store messages too.
 *
 * A token is all that a worker has, and another process may have given it: the step finds the row by its token in the
 * store. A token of another consumer opens nothing here.
 *
 * In JSON, numbers that JavaScript would round are strings: a token is digits in quotes. A payload that is JSON is
 * written as it came, any other as payload_base64; headers are the object that the inbox keeps.
 *
 * Invariants:
 *  - A call belongs to the endpoint's list, or to the step that removed it; its owner answers it, once.
 *  - Calls that end something go before takes: they free the order keys that takes wait for. Ends of one kind are
 *    committed together, each token once per transaction.
 *  - The list is in order of arrival; takes are tried oldest first, and when one finds nothing none of the others is
 *    tried.
 *  - A lease is sent only after its commit; a lease that cannot be sent is released at once.
 *  - An unknown member or parameter is refused by its name, so that a misspelt `outcome` is not lost. Leases and waits
 *    above the maximum are cut to it.
 *  - Every answer is well-formed JSON, whatever is stored.
 */
#include <inttypes.h>

#include "admin/serve_private.h"
#include "admin/text.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "core/consumer.h"
#include "core/inbox.h"
#include "lib/handle.h"
#include "store/query.h"

#define BODY_MAX ((size_t)256 << 10) /* an outcome of 64 KiB, escaped */
#define TAKE_BODY_MAX 4096           /* its body is ignored */
#define TAKE_OVERDUE_MS 1            /* the server checks waiting takes at every tick: each has a wait of its own */
#define CALLS_MAX 4096               /* that wait at a time */
#define GROUP_MAX 256                /* ends in one transaction */
#define TAKE_MAX 1000                /* messages per take */
#define WAIT_MAX_US (INT64_C(60) * 1000000)
#define LOOK_MS 500 /* how often held takes look for messages of other processes */
#define LEASE_MIN_US INT64_C(1000000)
#define AROUND 4096 /* bytes of a message besides its payload and headers */

enum pull_op { PULL_TAKE, PULL_RENEW, PULL_SETTLE, PULL_RELEASE };

struct pull_call {
    struct pull_call *next;
    struct semel_http_exchange *x;
    struct semel_arena arena;
    enum pull_op op;
    bool held;               /* a take that found nothing and waits */
    int64_t deadline_ms;     /* of a take: when it is answered, empty if it is held, else with 503 */
    int64_t wait_ms;         /* of a take */
    int64_t token, lease_us; /* lease_us 0: the lease of the consumer */
    size_t max;
    struct semel_ending ending;
    struct semel_lease lease;
    bool lost;
    enum semel_row_status state; /* of the row: after settle, and where a lost lease has a known row */
};

struct semel_pull {
    struct semel_serve *serve;
    const struct semel_route *route;
    struct semel_pull *next;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct pull_call *first, **last;
    size_t n;
    bool open, fresh, woken; /* fresh: there are calls that no step has seen */
    int64_t looked_ms;       /* when held takes were tried last */
    /* only the thread that steps uses these */
    bool full, unknown; /* unknown_max is reached; an end of the last step left an unknown outcome */
    struct semel_arena arena;
    struct held_list claims; /* the last leases given out here, so that a late end leaves evidence */
};

static void call_free(struct pull_call *call)
{
    semel__arena_done(&call->arena);
    semel__free(call);
}

/* ---- a request becomes a call ---------------------------------------------------------------------- */

struct reading {
    struct semel_pull *pull;
    struct pull_call *call;
    struct semel_error *err;
};

static bool wrong(const struct reading *r, const char *text)
{
    semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s", text);
    return false;
}

static bool unknown(const struct reading *r, const char *what, struct semel_str name, const char *allowed)
{
    char shown[64];
    semel__str_show(shown, sizeof(shown), name);
    semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "there is no %s \"%s\"; there are %s", what, shown,
                allowed);
    return false;
}

static bool read_lease(const struct reading *r, struct semel_str text)
{
    int64_t most_us = r->pull->route->handler.u.pull.lease_max_us, us;
    if (!semel__duration_parse(text, &us) || us < LEASE_MIN_US)
        return wrong(r, "lease must be a duration from 1s on, such as 90s or 10m");
    r->call->lease_us = us < most_us ? us : most_us;
    return true;
}

/* ---- take ------------------------------------------------------------------------------------------ */

static bool read_parameter(const struct reading *r, const struct semel_http_pair *pair)
{
    int64_t number;
    if (semel__str_eqz(pair->name, "max")) {
        if (!semel__str_int64(pair->value, &number) || number < 1 || number > TAKE_MAX)
            return wrong(r, "max must be a whole number from 1 to 1000");
        r->call->max = (size_t)number;
        return true;
    }
    if (semel__str_eqz(pair->name, "lease"))
        return read_lease(r, pair->value);
    if (!semel__str_eqz(pair->name, "wait"))
        return unknown(r, "parameter", pair->name, "max, lease and wait");
    if (!semel__duration_parse(pair->value, &number))
        return wrong(r, "wait must be a duration, such as 20s; the longest wait is 60s");
    r->call->wait_ms = (number < WAIT_MAX_US ? number : WAIT_MAX_US) / 1000;
    return true;
}

static bool read_query(const struct reading *r, const struct semel_http_request *req)
{
    r->call->max = 1;
    for (size_t i = 0; i < req->n_query; i++)
        if (!read_parameter(r, &req->query[i]))
            return false;
    return true;
}

/* ---- ends ------------------------------------------------------------------------------------------ */

static bool read_token(const struct reading *r, const struct semel_json_node *node)
{
    if (node->tag != SEMEL_JSON_TAG_STRING || !semel__str_int64(node->u.text, &r->call->token) || r->call->token < 1)
        return wrong(r, "token must be the one that take returned, a string of digits: clients round such numbers");
    return semel__token_check(r->call->token, r->err) == SEMEL_OK;
}

static bool read_result(const struct reading *r, const struct semel_json_node *node)
{
    struct semel_str text = node->tag == SEMEL_JSON_TAG_STRING ? node->u.text : SEMEL_STR("");
    if (semel__str_eqz(text, "unknown"))
        r->call->ending.result = SEMEL_MAYBE;
    else if (!semel__result_parse(text, &r->call->ending.result))
        return wrong(r, "result must be done, transient, permanent, rejected or unknown");
    return true;
}

static bool read_reason(const struct reading *r, const struct semel_json_node *node)
{
    if (node->tag != SEMEL_JSON_TAG_STRING)
        return wrong(r, "reason must be a string");
    return semel__clean_text(&r->call->arena, node->u.text, &r->call->ending.text) || wrong(r, "out of memory");
}

/* Any JSON, kept byte for byte. */
static bool read_outcome(const struct reading *r, struct semel_str body)
{
    struct semel_str raw;
    if (!semel__json_member(body, "outcome", &raw))
        return wrong(r, "the name \"outcome\" must be written without escapes");
    if (raw.n > SEMEL_OUTCOME_MAX)
        return wrong(r, "outcome has at most 65536 bytes");
    return semel__arena_copy(&r->call->arena, raw, &r->call->ending.outcome) || wrong(r, "out of memory");
}

static bool read_member(const struct reading *r, const struct semel_json_node *node, struct semel_str body,
                        bool *ret_result)
{
    bool settle = r->call->op == PULL_SETTLE;
    if (semel__str_eqz(node->key, "token"))
        return read_token(r, node);
    if (r->call->op == PULL_RENEW && semel__str_eqz(node->key, "lease"))
        return node->tag == SEMEL_JSON_TAG_STRING ? read_lease(r, node->u.text) : read_lease(r, SEMEL_STR("?"));
    if (settle && semel__str_eqz(node->key, "result")) {
        *ret_result = true;
        return read_result(r, node);
    }
    if (settle && semel__str_eqz(node->key, "reason"))
        return node->tag == SEMEL_JSON_TAG_NULL || read_reason(r, node);
    if (settle && semel__str_eqz(node->key, "outcome"))
        return node->tag == SEMEL_JSON_TAG_NULL || read_outcome(r, body);
    return unknown(r, "member", node->key,
                   settle                      ? "token, result, outcome and reason"
                   : r->call->op == PULL_RENEW ? "token and lease"
                                               : "token");
}

static bool read_members(const struct reading *r, const struct semel_json_node *root, struct semel_str body)
{
    bool result = false;
    if (root->tag != SEMEL_JSON_TAG_OBJECT)
        return wrong(r, "the body must be a JSON object with a token");
    for (const struct semel_json_node *node = root->u.first; node != NULL; node = node->next)
        if (!read_member(r, node, body, &result))
            return false;
    if (r->call->token < 1)
        return wrong(r, "token is missing");
    if (r->call->op == PULL_SETTLE && !result)
        return wrong(r, "result is missing: done, transient, permanent, rejected or unknown");
    return true;
}

static bool read_body(const struct reading *r, struct semel_str body)
{
    struct semel_json *json;
    semel_status status = semel__json_parse(&json, body, body.n, r->err);
    if (status != SEMEL_OK)
        return false;
    bool ok = read_members(r, json->root, body);
    semel__json_free(json);
    return ok;
}

static struct pull_call *read_call(struct semel_pull *pull, enum pull_op op, struct semel_http_exchange *x)
{
    struct semel_error err;
    struct pull_call *call = semel__calloc(1, sizeof(*call));
    if (call == NULL) {
        semel__endpoint_later(x, 1, "out of memory");
        return NULL;
    }
    const struct semel_http_request *req = semel__http_request(x);
    struct reading r = {pull, call, &err};
    call->x = x;
    call->op = op;
    semel__arena_init(&call->arena, (size_t)1 << 20);
    bool ok = op == PULL_TAKE ? read_query(&r, req) : read_body(&r, req->body);
    if (ok)
        return call;
    if (err.status == SEMEL_RETRY)
        semel__endpoint_later(x, 1, err.text);
    else
        semel__http_refuse(x, 400, "%s", err.text);
    call_free(call);
    return NULL;
}

/* ---- answers; each frees its call ------------------------------------------------------------------ */

static const char *const op_names[] = {
    [PULL_TAKE] = "take", [PULL_RENEW] = "renew", [PULL_SETTLE] = "settle", [PULL_RELEASE] = "release"};

static void count(struct semel_pull *pull, enum pull_op op, const char *result, uint64_t n)
{
    semel__endpoint_count(pull->serve, SEMEL_FAMILY_PULL, pull->route->name, op_names[op], result, n);
}

static size_t count_fitting(const struct semel_lease *leases, size_t n)
{
    size_t bytes = 0, fit = 0;
    for (; fit < n; fit++) {
        const struct semel__msg *msg = &leases[fit].msg;
        bytes += AROUND + msg->headers.n + msg->payload.n / 3 * 4;
        if (fit > 0 && bytes > SEMEL_PULL_BYTES)
            break;
    }
    return fit;
}

static void put_payload(struct semel_buf *buf, struct semel_str payload)
{
    size_t before = buf->n;
    semel__buf_addz(buf, ",\"payload\":");
    if (semel__json_put_raw(buf, payload, SEMEL_PAYLOAD_HARD_MAX))
        return;
    buf->n = before;
    semel__buf_addz(buf, ",\"payload_base64\":\"");
    semel__base64_put(buf, payload);
    semel__buf_addz(buf, "\"");
}

static void put_headers(struct semel_buf *buf, struct semel_str headers)
{
    semel__buf_addz(buf, ",\"headers\":");
    if (!semel__json_put_raw(buf, headers, SEMEL_HEADERS_MAX))
        semel__buf_addz(buf, "{}");
}

static void put_lease(struct semel_buf *buf, struct semel_str consumer, const struct semel_lease *lease)
{
    const struct semel__msg *msg = &lease->msg;
    char key[SEMEL_STEP_KEY_TEXT], until[SEMEL_TIME_TEXT];
    semel__time_format(lease->progress.lease_until_us, until);
    semel__buf_addf(buf, "{\"token\":\"%" PRId64 "\"", lease->progress.lease_token);
    semel__json_put_pair(buf, "id", msg->id);
    semel__json_put_pair(buf, "source", msg->source);
    semel__json_put_pair(buf, "type", msg->type);
    semel__buf_addf(buf, ",\"attempt\":%d", lease->progress.attempts);
    if (semel__step_key(consumer, msg->source, msg->id, SEMEL_STR("effect"), key))
        semel__json_put_pair(buf, "idempotency_key", semel__str(key));
    semel__json_put_pair(buf, "lease_until", semel__str(until));
    semel__json_put_pair(buf, "order_key", msg->order_key);
    if (msg->version != SEMEL_NONE)
        semel__buf_addf(buf, ",\"version\":\"%" PRId64 "\"", msg->version);
    semel__json_put_pair(buf, "position", msg->position);
    semel__json_put_pair(buf, "traceparent", msg->traceparent);
    put_headers(buf, msg->headers);
    put_payload(buf, msg->payload);
    semel__buf_addz(buf, "}");
}

static void answer_taken(struct semel_pull *pull, struct pull_call *call, const struct semel_lease *leases, size_t n)
{
    struct semel_buf *buf = semel__http_body(call->x);
    semel__buf_addz(buf, "[");
    for (size_t i = 0; i < n; i++) {
        semel__buf_addz(buf, i > 0 ? ",\n" : "");
        put_lease(buf, pull->route->name, &leases[i]);
    }
    semel__buf_addz(buf, "]\n");
    count(pull, PULL_TAKE, "ok", n);
    semel__http_answer(call->x, 200);
    call_free(call);
}

static void answer_none(struct pull_call *call)
{
    semel__buf_addz(semel__http_body(call->x), "[]\n");
    semel__http_answer(call->x, 200);
    call_free(call);
}

static void answer_later(struct pull_call *call, const char *why)
{
    semel__endpoint_later(call->x, 1, why);
    call_free(call);
}

static void answer_end(struct semel_pull *pull, struct pull_call *call)
{
    static const char *const words[] = {
        [PULL_TAKE] = "taken", [PULL_RENEW] = "renewed", [PULL_SETTLE] = "settled", [PULL_RELEASE] = "released"};
    struct semel_buf *buf = semel__http_body(call->x);
    char time[SEMEL_TIME_TEXT];
    semel__buf_addf(buf, "{\"result\":\"%s\"", call->lost ? "lost" : words[call->op]);
    bool known = (call->lost || call->op == PULL_SETTLE) && call->state != SEMEL_ROW_ABSENT;
    if (known)
        semel__json_put_pair(buf, "status", semel__str(semel__row_status_name(call->state)));
    if (!call->lost && call->op == PULL_RENEW) {
        semel__time_format(call->lease.progress.lease_until_us, time);
        semel__json_put_pair(buf, "lease_until", semel__str(time));
    }
    semel__buf_addz(buf, "}\n");
    count(pull, call->op, call->lost ? "lost" : "ok", 1);
    semel__http_answer(call->x, call->lost ? 409 : 200);
    call_free(call);
}

/* ---- what was taken here --------------------------------------------------------------------------- */

static void forget(struct semel_pull *pull, int64_t token)
{
    struct held *held = semel__held_by_token(&pull->claims, token);
    if (held != NULL)
        semel__held_drop(&pull->claims, held);
}

/* Best effort: without memory a late end leaves no evidence; nothing else is lost. */
static void remember(struct semel_pull *pull, const struct semel_lease *lease)
{
    forget(pull, lease->progress.lease_token);
    if (pull->claims.n == SEMEL_CLAIMS_MAX)
        semel__held_drop(&pull->claims, pull->claims.items[0]);
    struct held *held = semel__held_room(&pull->claims) ? semel__held_new(pull->route->name, &lease->msg) : NULL;
    if (held == NULL)
        return;
    held->token = lease->progress.lease_token;
    held->attempt = lease->progress.attempts;
    semel__held_add(&pull->claims, held);
}

/* Gives the inbox the lease of this call, and one message per key, until restore_policy. */
struct saved_policy {
    struct semel_policy policy;
    const struct semel_policy *real;
};

static void set_policy(struct saved_policy *saved, struct semel_inbox *inbox, int64_t lease_us, int64_t lease_max_us)
{
    saved->real = inbox->policy;
    saved->policy = *inbox->policy;
    saved->policy.one_by_one = true;
    if (lease_us > 0)
        saved->policy.lease_us = lease_us;
    if (saved->policy.lease_us > lease_max_us)
        saved->policy.lease_us = lease_max_us;
    inbox->policy = &saved->policy;
}

static void restore_policy(const struct saved_policy *saved, struct semel_inbox *inbox)
{
    inbox->policy = saved->real;
}

/* ---- takes ----------------------------------------------------------------------------------------- */

static void give_back(struct semel_inbox *inbox, struct semel_lease *leases, size_t n)
{
    struct semel_error ignored;
    (void)semel__lease_release(inbox, leases, n, &ignored); /* on failure the leases expire */
}

static semel_status serve_take(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *call,
                               size_t *ret_n, struct semel_error *err)
{
    struct saved_policy saved;
    size_t n = 0;
    *ret_n = 0;
    semel__arena_reset(&pull->arena);
    struct semel_lease *leases = semel__arena_alloc(&pull->arena, call->max, sizeof(*leases));
    if (leases == NULL) {
        answer_later(call, "out of memory");
        return semel__fail_memory(err);
    }
    set_policy(&saved, inbox, call->lease_us, pull->route->handler.u.pull.lease_max_us);
    semel_status status = semel__lease_take(inbox, call->max, &pull->arena, leases, &n, err);
    size_t fit = status == SEMEL_OK && !semel__http_hung_up(call->x) ? count_fitting(leases, n) : 0;
    if (fit < n)
        give_back(inbox, leases + fit, n - fit); /* they cannot be sent */
    restore_policy(&saved, inbox);
    if (status != SEMEL_OK) {
        answer_later(call, "the store did not answer");
        return status;
    }
    if (n > 0 && fit == 0)
        answer_later(call, "the messages could not be sent");
    for (size_t i = 0; i < fit; i++)
        remember(pull, &leases[i]);
    if (fit > 0)
        answer_taken(pull, call, leases, fit);
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- ends ------------------------------------------------------------------------------------------ */

/* The status of a message, for a worker that comes too late. */
static void look_up(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *call, struct semel_str source,
                    struct semel_str id)
{
    struct semel_filter filter = {.consumer = inbox->policy->consumer,
                                  .source = source,
                                  .id = id,
                                  .received_before_us = SEMEL_NONE,
                                  .received_after_us = SEMEL_NONE};
    struct semel_row *rows;
    size_t n = 0, damaged;
    struct semel_error ignored;
    if (semel_query_list(inbox->store, &filter, SEMEL_NONE, 1, false, &pull->arena, &rows, &n, &damaged, &ignored) ==
            SEMEL_OK &&
        n == 1)
        call->state = rows[0].progress.state;
}

/* Refuses an end whose lease is gone, and keeps what the worker reported as evidence if the message is known. */
static void refuse(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *call)
{
    const struct held *held = semel__held_by_token(&pull->claims, call->token);
    struct semel_error ignored;
    call->lost = true;
    if (held == NULL)
        return;
    look_up(pull, inbox, call, held->source, held->id);
    if (call->op != PULL_SETTLE || (call->state == SEMEL_ROW_COMPLETED && call->ending.result == SEMEL_DONE))
        return; /* the same end twice is no evidence of a problem */
    semel__msg_init(&call->lease.msg);
    call->lease.msg.source = held->source;
    call->lease.msg.id = held->id;
    call->lease.progress = (struct semel_progress){.state = SEMEL_ROW_PROCESSING,
                                                   .attempts = held->attempt,
                                                   .lease_token = call->token};
    (void)semel__lease_finish(inbox, &call->lease, &call->ending, 1, &ignored);
}

/* Reads the lease of the call's token; *ret_found is false if there is none. */
static semel_status find(struct semel_inbox *inbox, struct pull_call *call, bool *ret_found, struct semel_error *err)
{
    struct semel_row *rows;
    size_t n, damaged;
    struct semel_scan scan = {.kind = SEMEL_SCAN_TOKEN, .token = call->token, .max = 1};
    semel_status status = semel_store_scan(inbox->store, &scan, &call->arena, &rows, &n, &damaged, err);
    *ret_found = status == SEMEL_OK && n == 1 && semel__str_eq(rows[0].consumer, inbox->policy->consumer);
    if (!*ret_found)
        return status;
    semel__row_msg(&rows[0], &call->lease.msg);
    call->lease.progress = rows[0].progress;
    call->lease.arrival = rows[0].arrival;
    return SEMEL_OK;
}

static semel_status commit(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *const *group, size_t n,
                           struct semel_error *err)
{
    struct semel_lease leases[GROUP_MAX];
    struct semel_ending endings[GROUP_MAX];
    struct saved_policy saved;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < n; i++) {
        leases[i] = group[i]->lease;
        endings[i] = group[i]->ending;
    }
    set_policy(&saved, inbox, group[0]->lease_us, pull->route->handler.u.pull.lease_max_us);
    if (group[0]->op == PULL_RENEW)
        status = semel__lease_renew(inbox, leases, n, err);
    else if (group[0]->op == PULL_RELEASE)
        status = semel__lease_release(inbox, leases, n, err);
    else
        status = semel__lease_finish(inbox, leases, endings, n, err);
    restore_policy(&saved, inbox);
    for (size_t i = 0; i < n; i++) {
        group[i]->lease.progress = leases[i].progress;
        group[i]->lost = leases[i].lost;
        group[i]->state = leases[i].lost ? SEMEL_ROW_ABSENT : leases[i].progress.state;
        if (status == SEMEL_OK && leases[i].lost)
            look_up(pull, inbox, group[i], group[i]->lease.msg.source, group[i]->lease.msg.id);
    }
    return status;
}

/* A group holds ends of one kind and one lease, and each token once. */
static bool parts(struct pull_call *const *group, size_t n, const struct pull_call *call)
{
    bool other = n == GROUP_MAX;
    if (n > 0)
        other |= group[0]->op != call->op || group[0]->lease_us != call->lease_us;
    for (size_t i = 0; i < n && !other; i++)
        other = group[i]->token == call->token;
    return other;
}

static void answer_ends(struct semel_pull *pull, struct pull_call **group, size_t n, semel_status status)
{
    for (size_t i = 0; i < n; i++) {
        if (status != SEMEL_OK) {
            answer_later(group[i], "the store did not answer; ask again with the same token");
            continue;
        }
        pull->unknown |= !group[i]->lost && group[i]->state == SEMEL_ROW_UNKNOWN;
        if (!group[i]->lost && group[i]->op == PULL_RELEASE)
            forget(pull, group[i]->token);
        answer_end(pull, group[i]);
    }
}

static semel_status serve_ends(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *calls,
                               struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    while (calls != NULL) {
        struct pull_call *group[GROUP_MAX];
        size_t n = 0;
        while (calls != NULL && !parts(group, n, calls)) {
            struct pull_call *call = calls;
            bool found = false;
            calls = call->next;
            call->next = NULL;
            if (status == SEMEL_OK)
                status = find(inbox, call, &found, err);
            if (status == SEMEL_OK && found) {
                group[n++] = call;
                continue;
            }
            if (status == SEMEL_OK)
                refuse(pull, inbox, call);
            answer_ends(pull, &call, 1, status);
        }
        if (n > 0 && status == SEMEL_OK)
            status = commit(pull, inbox, group, n, err);
        answer_ends(pull, group, n, status);
    }
    return status;
}

/* ---- the endpoint ---------------------------------------------------------------------------------- */

struct semel_pull *semel__pull_new(struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_pull *pull = semel__calloc(1, sizeof(*pull));
    if (pull == NULL || !semel__cond_init(&pull->changed)) {
        semel__free(pull);
        return NULL;
    }
    pthread_mutex_init(&pull->lock, NULL);
    semel__arena_init(&pull->arena, (size_t)1 << 30);
    pull->serve = serve;
    pull->route = route;
    pull->last = &pull->first;
    pull->next = serve->pulls;
    serve->pulls = pull;
    return pull;
}

/* Removes the call at *at from the list. */
static struct pull_call *take_out(struct semel_pull *pull, struct pull_call **at)
{
    struct pull_call *call = *at;
    *at = call->next;
    if (*at == NULL)
        pull->last = at;
    call->next = NULL;
    pull->n--;
    semel__http_keep(call->x, NULL);
    return call;
}

static void answer_all(struct semel_pull *pull, const char *why)
{
    while (pull->first != NULL)
        answer_later(take_out(pull, &pull->first), why);
}

void semel__pull_close(struct semel_pull *pull)
{
    if (pull == NULL)
        return;
    pthread_mutex_lock(&pull->lock);
    pull->open = false;
    answer_all(pull, "the route is not running any more");
    pthread_mutex_unlock(&pull->lock);
    semel__held_done(&pull->claims);
    semel__arena_reset(&pull->arena);
}

void semel__pull_free_all(struct semel_pull *pull)
{
    while (pull != NULL) {
        struct semel_pull *next = pull->next;
        semel__pull_close(pull);
        semel__arena_done(&pull->arena);
        pthread_cond_destroy(&pull->changed);
        pthread_mutex_destroy(&pull->lock);
        semel__free(pull);
        pull = next;
    }
}

struct semel_pull *semel__serve_pull(struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_pull *pull = serve->pulls;
    while (pull != NULL && !semel__str_eq(pull->route->name, route->name))
        pull = pull->next;
    if (pull == NULL)
        return NULL;
    pthread_mutex_lock(&pull->lock);
    pull->open = true;
    pthread_mutex_unlock(&pull->lock);
    return pull;
}

void semel__pull_full(struct semel_pull *pull, bool full)
{
    pull->full = full;
}

bool semel__pull_unknown(const struct semel_pull *pull)
{
    return pull->unknown;
}

size_t semel__pull_waiting(struct semel_pull *pull)
{
    pthread_mutex_lock(&pull->lock);
    size_t n = pull->n;
    pthread_mutex_unlock(&pull->lock);
    return n;
}

void semel__pull_wake(struct semel_pull *pull)
{
    pthread_mutex_lock(&pull->lock);
    pull->woken = true;
    pthread_cond_signal(&pull->changed);
    pthread_mutex_unlock(&pull->lock);
}

/* ---- calls in -------------------------------------------------------------------------------------- */

static void enter(struct semel_pull *pull, enum pull_op op, struct semel_http_exchange *x)
{
    struct pull_call *call = read_call(pull, op, x);
    const char *why = NULL;
    if (call == NULL)
        return;
    call->deadline_ms = op == PULL_TAKE ? semel__steady_us() / 1000 + pull->serve->answer_ms : 0;
    pthread_mutex_lock(&pull->lock);
    if (!pull->open)
        why = "the route is not running at the moment";
    else if (pull->n >= CALLS_MAX)
        why = "too many calls wait for this route";
    if (why == NULL) {
        *pull->last = call;
        pull->last = &call->next;
        pull->n++;
        semel__http_keep(x, call);
        pull->fresh = true;
        pthread_cond_signal(&pull->changed);
    }
    pthread_mutex_unlock(&pull->lock);
    if (why != NULL)
        answer_later(call, why);
}

static void enter_take(void *pull, struct semel_http_exchange *x)
{
    enter(pull, PULL_TAKE, x);
}

static void enter_renew(void *pull, struct semel_http_exchange *x)
{
    enter(pull, PULL_RENEW, x);
}

static void enter_settle(void *pull, struct semel_http_exchange *x)
{
    enter(pull, PULL_SETTLE, x);
}

static void enter_release(void *pull, struct semel_http_exchange *x)
{
    enter(pull, PULL_RELEASE, x);
}

/* Answers a take whose time is over; a held one also when the client hung up or the process stops. */
static void pull_overdue(void *ctx, struct semel_http_exchange *x)
{
    struct semel_pull *pull = ctx;
    pthread_mutex_lock(&pull->lock);
    struct pull_call *call = semel__http_kept(x), **at = &pull->first;
    bool ends = call != NULL && (call->deadline_ms <= semel__steady_us() / 1000 ||
                                 (call->held && (semel__http_hung_up(x) || atomic_load(&pull->serve->stopping))));
    while (ends && *at != call)
        at = &(*at)->next;
    if (ends) {
        take_out(pull, at);
        if (call->held)
            answer_none(call);
        else
            answer_later(call, "the route is too busy");
    }
    pthread_mutex_unlock(&pull->lock);
}

#define ROUTE(name, max, ms, enters)                                                               \
    {                                                                                              \
        .path = name, .body_max = max, .handle = enters, .timeout_ms = ms, .overdue = pull_overdue \
    }

const struct semel_http_route semel__pull_routes[SEMEL_PULL_ROUTES] = {
    ROUTE("/take", TAKE_BODY_MAX, TAKE_OVERDUE_MS, enter_take),
    ROUTE("/renew", BODY_MAX, SEMEL_ANSWER_MS, enter_renew),
    ROUTE("/settle", BODY_MAX, SEMEL_ANSWER_MS, enter_settle),
    ROUTE("/release", BODY_MAX, SEMEL_ANSWER_MS, enter_release),
};

/* ---- the step -------------------------------------------------------------------------------------- */

/* Waits for something to do; true: it is time to try the held takes. The caller holds the lock. */
static bool wait_for_work(struct semel_pull *pull, int64_t until_ms)
{
    for (;;) {
        int64_t now_ms = semel__steady_us() / 1000;
        bool held = pull->first != NULL && !pull->fresh;
        int64_t look_ms = pull->looked_ms + LOOK_MS;
        bool look = pull->first != NULL && (pull->woken || look_ms <= now_ms);
        if (pull->fresh || look || now_ms >= until_ms)
            return look;
        (void)semel__cond_wait(&pull->changed, &pull->lock, (held && look_ms < until_ms ? look_ms : until_ms) * 1000);
    }
}

/* Removes at most one group of ends from the list, in order of arrival. */
static struct pull_call *take_ends(struct semel_pull *pull)
{
    struct pull_call *ends = NULL, **last = &ends;
    size_t n = 0;
    for (struct pull_call **at = &pull->first; *at != NULL && n < GROUP_MAX;) {
        if ((*at)->op == PULL_TAKE) {
            at = &(*at)->next;
            continue;
        }
        *last = take_out(pull, at);
        last = &(*last)->next;
        n++;
    }
    return ends;
}

static struct pull_call *next_take(struct semel_pull *pull)
{
    struct pull_call **at = &pull->first;
    pthread_mutex_lock(&pull->lock);
    while (*at != NULL && (*at)->op != PULL_TAKE)
        at = &(*at)->next;
    struct pull_call *call = *at != NULL ? take_out(pull, at) : NULL;
    pthread_mutex_unlock(&pull->lock);
    return call;
}

/* Holds a take that found nothing. true: the caller, who has the lock, must answer it empty now. */
static bool hold(const struct semel_pull *pull, struct pull_call *call)
{
    int64_t now_ms = semel__steady_us() / 1000;
    if (!call->held)
        call->deadline_ms = now_ms + call->wait_ms;
    call->held = true;
    return !pull->open || call->deadline_ms <= now_ms || atomic_load(&pull->serve->stopping);
}

/* The oldest take found nothing, so the others would not either: puts it back to the front and holds all of them. */
static void hold_all(struct semel_pull *pull, struct pull_call *oldest)
{
    pthread_mutex_lock(&pull->lock);
    semel__http_keep(oldest->x, oldest);
    oldest->next = pull->first;
    pull->first = oldest;
    if (oldest->next == NULL)
        pull->last = &oldest->next;
    pull->n++;
    for (struct pull_call **at = &pull->first; *at != NULL;) {
        if ((*at)->op == PULL_TAKE && hold(pull, *at))
            answer_none(take_out(pull, at));
        else
            at = &(*at)->next;
    }
    pthread_mutex_unlock(&pull->lock);
}

static semel_status serve_takes(struct semel_pull *pull, struct semel_inbox *inbox, size_t *ret_n,
                                struct semel_error *err)
{
    struct pull_call *call;
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && (call = next_take(pull)) != NULL) {
        size_t n = 0;
        if (semel__http_hung_up(call->x)) {
            answer_none(call);
            continue;
        }
        if (pull->full) {
            answer_later(call, "unknown_max is reached: resolve unknown outcomes first");
            continue;
        }
        status = serve_take(pull, inbox, call, &n, err);
        *ret_n += status == SEMEL_OK && n > 0;
        if (status == SEMEL_OK && n == 0) {
            hold_all(pull, call);
            break;
        }
    }
    return status;
}

semel_status semel__pull_step(struct semel_pull *pull, struct semel_inbox *inbox, int wait_ms, size_t *ret_n,
                              struct semel_error *err)
{
    *ret_n = 0;
    pull->unknown = false;
    pthread_mutex_lock(&pull->lock);
    bool look = wait_for_work(pull, semel__steady_us() / 1000 + wait_ms);
    struct pull_call *ends = take_ends(pull);
    pull->fresh = false;
    for (const struct pull_call *call = pull->first; call != NULL; call = call->next) {
        pull->fresh |= call->op != PULL_TAKE; /* the next step does the remaining ends */
        look |= call->op == PULL_TAKE && !call->held;
    }
    if (look) {
        pull->woken = false;
        pull->looked_ms = semel__steady_us() / 1000;
    }
    pthread_mutex_unlock(&pull->lock);
    semel__arena_reset(&pull->arena);
    for (const struct pull_call *call = ends; call != NULL; call = call->next)
        ++*ret_n;
    semel_status status = serve_ends(pull, inbox, ends, err);
    if (pull->unknown) { /* takes wait for the next step: by then unknown_max is checked again */
        semel__pull_wake(pull);
        return status;
    }
    return status == SEMEL_OK && look ? serve_takes(pull, inbox, ret_n, err) : status;
}
