/* SPDX-License-Identifier: MIT
 *
 * pull_read.c: from a request to a call: the query of a take, the JSON of an end.
 *
 * Invariants: a member or a parameter that is unknown is refused by its name, so that a misspelt `outcome` is not lost
 * in silence; bounds are applied here, and what is too long a lease or wait is cut to the longest allowed.
 */
#include "admin/pull.h"
#include "admin/text.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "core/consumer.h"

#define LEASE_MIN_US INT64_C(1000000)

struct reading {
    struct semel_pull *pull;
    struct pull_call *call;
    struct semel_error *err;
};

void semel__pull_call_free(struct pull_call *call)
{
    semel__arena_done(&call->arena);
    semel__free(call);
}

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
        if (!semel__str_int64(pair->value, &number) || number < 1 || number > SEMEL_PULL_MAX)
            return wrong(r, "max must be a whole number from 1 to 1000");
        r->call->max = (size_t)number;
        return true;
    }
    if (semel__str_eqz(pair->name, "lease"))
        return read_lease(r, pair->value);
    if (!semel__str_eqz(pair->name, "wait"))
        return unknown(r, "parameter", pair->name, "max, lease and wait");
    if (!semel__duration_parse(pair->value, &number))
        return wrong(r, "wait must be a duration, such as 20s; at most 60s are waited");
    r->call->wait_ms = (number < SEMEL_PULL_WAIT_US ? number : SEMEL_PULL_WAIT_US) / 1000;
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
        return wrong(r, "token must be the one that take gave, a string of digits: clients round such numbers");
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

/* Whatever JSON it is, as it was written. */
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

struct pull_call *semel__pull_read(struct semel_pull *pull, enum pull_op op, struct semel_http_exchange *x)
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
    semel__pull_call_free(call);
    return NULL;
}
