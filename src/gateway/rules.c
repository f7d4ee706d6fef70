/* SPDX-License-Identifier: MIT
 *
 * rules.c: rules, keys and callers; see rules.h.
 */
#include "gateway/rules.h"

#include <stdio.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "core/broker.h"

#define RULES_BYTES ((size_t)4 << 20)
#define CHANGING (SEMEL_HTTP_BIT(POST) | SEMEL_HTTP_BIT(PUT) | SEMEL_HTTP_BIT(PATCH) | SEMEL_HTTP_BIT(DELETE))

/* ==== settings =================================================================================== */

void semel__gateway_rule_init(struct semel_gateway_rule *rule)
{
    *rule = (struct semel_gateway_rule){.key_header = "Idempotency-Key",
                                        .store_body = true,
                                        .wait_ms = 5000,
                                        .waiters = 8,
                                        .body_max = (size_t)1 << 20,
                                        .answer_max = (size_t)1 << 20,
                                        .held_max = (size_t)256 << 20,
                                        .answer_ms = SEMEL_ANSWER_US / 1000,
                                        .keep_ms = SEMEL_KEEP_US / 1000};
}

static semel_status wrong(struct semel_error *err, const struct semel_gateway_rule *rule, const char *what)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "guard \"%s\": %s",
                       rule->match != NULL ? rule->match : "*", what);
}

/* NULL stays NULL. */
static bool copyz(struct semel_arena *arena, const char **text)
{
    struct semel_str copy;
    if (*text == NULL)
        return true;
    bool copied = semel__arena_copy(arena, semel__str(*text), &copy);
    *text = copied ? copy.p : NULL;
    return copied;
}

static bool copy_list(struct semel_arena *arena, const char *const *texts, size_t n, struct semel_str **ret)
{
    *ret = semel__arena_alloc(arena, n + 1, sizeof **ret);
    for (size_t i = 0; *ret != NULL && i < n; i++)
        if (!semel__arena_copy(arena, semel__str(texts[i]), &(*ret)[i]))
            return false;
    return *ret != NULL;
}

static bool method_of(struct semel_str word, unsigned *methods)
{
    static const char *const names[] = {
#define X(name) [SEMEL_HTTP_##name] = #name,
        SEMEL_HTTP_METHOD_MAP(X)
#undef X
    };
    for (size_t i = 0; i < SEMEL_HTTP_METHODS; i++)
        if (semel__same_word(word, names[i])) {
            *methods |= 1u << i;
            return true;
        }
    return false;
}

/* "PUT|DELETE /v1/{id}" */
static semel_status read_match(struct semel_guard_rule *rule, struct semel_error *err)
{
    static const char form[] = "match must be methods and a path: POST /v1/charges, PUT|DELETE /v1/{id}, * /v1/{rest*}";
    const char *at = rule->set.match;
    size_t n = strcspn(at, " ");
    rule->methods = n == 1 && at[0] == '*' ? CHANGING : 0;
    for (size_t from = rule->methods != 0 ? n : 0; from < n;) {
        size_t end = from + strcspn(at + from, "| ");
        if (!method_of((struct semel_str){at + from, end - from}, &rule->methods))
            return wrong(err, &rule->set, form);
        from = end + 1;
    }
    at += n + strspn(at + n, " ");
    rule->path = semel__str(at);
    if (rule->methods == 0 || at[0] != '/' || strpbrk(at, " ?#%\\") != NULL || strstr(at, "//") != NULL)
        return wrong(err, &rule->set, form);
    const char *rest = strstr(at, "*}");
    return rest == NULL || rest[2] == '\0' ? SEMEL_OK : wrong(err, &rule->set, form);
}

static bool is_token(const char *name)
{
    return semel__header_name_fits(semel__str(name), SIZE_MAX) && strchr(name, '_') == NULL;
}

static semel_status check_rule(const struct semel_gateway_rule *set, struct semel_error *err)
{
    if (set->key_pointer != NULL && !semel__json_pointer_valid(semel__str(set->key_pointer)))
        return wrong(err, set, "the key must be a header, or a JSON pointer such as /idempotency_key");
    if (set->key_pointer == NULL && (set->key_header == NULL || !is_token(set->key_header)))
        return wrong(err, set, "the key's header must be a name such as Idempotency-Key");
    for (size_t i = 0; i < set->n_ignore; i++)
        if (!semel__json_pointer_valid(semel__str(set->ignore[i])))
            return wrong(err, set, "ignore must be a list of JSON pointers such as /sent_at");
    for (size_t i = 0; i < set->n_headers; i++)
        if (!is_token(set->headers[i]))
            return wrong(err, set, "headers must be a list of names");
    for (size_t i = 0; i < set->n_outcomes; i++)
        if (set->outcomes[i].low < 100 || set->outcomes[i].high > 599 || set->outcomes[i].low > set->outcomes[i].high)
            return wrong(err, set, "outcomes are for statuses from 100 to 599");
    if ((set->on_unknown == SEMEL_ON_UNKNOWN_RECONCILE) != (set->reconcile != NULL))
        return wrong(err, set, "on_unknown: reconcile needs a URL to ask, and only it does");
    if (set->wait_ms < 0 || set->settle_ms < 0 || set->settle_ms > INT64_C(31536000000))
        return wrong(err, set, "wait and settle must be durations of at most a year");
    if (set->body_max == 0 || set->body_max > SEMEL_ANSWER_BODY_MAX || set->answer_max > SEMEL_ANSWER_BODY_MAX ||
        set->held_max < set->body_max || set->held_max < set->answer_max)
        return wrong(err, set, "bodies and answers may have up to 64 MiB each, and held_max must not be below them");
    if (set->answer_ms > INT64_MAX / 1000 || set->keep_ms > INT64_MAX / 1000)
        return wrong(err, set, "answer and keep are too long");
    return semel__key_check_lifetimes(set->answer_ms * 1000, set->keep_ms * 1000, err);
}

/* A fake server would get the keys, and its answers would be believed. */
static bool is_exposed(const struct semel_gateway_settings *settings, const char *url)
{
    struct semel_str host, port;
    if (url == NULL || settings->upstream_plain || !semel__begins_with(semel__str(url), "http:"))
        return false;
    semel__url_host(semel__str(url), &host, &port);
    return !semel__host_is_local(host);
}

static semel_status check_settled(const struct semel_gateway_settings *settings, const struct semel_gateway_rule *rule,
                                  struct semel_error *err)
{
    if (rule->settle_ms > 0 && rule->reconcile == NULL)
        return wrong(err, rule, "settle is for a reconcile; leave it out");
    if (rule->settle_ms > 0 && (uint64_t)rule->settle_ms < 2 * settings->upstream.answer_ms)
        return wrong(err, rule,
                     "settle is below twice the time-out: the first call may still be running when `not_done` is "
                     "believed, and then both are done");
    bool named = settings->caller.kind == SEMEL_GATEWAY_CALLER_HEADER ||
                 settings->caller.kind == SEMEL_GATEWAY_CALLER_CERTIFICATE;
    if (rule->reconcile != NULL && strstr(rule->reconcile, "{caller}") != NULL && (rule->by_endpoint || !named))
        return wrong(
            err, rule,
            "reconcile has {caller}, and the server cannot know it: only a caller by header or certificate has "
            "a name, and only without a scope per endpoint");
    if (is_exposed(settings, rule->reconcile))
        return wrong(err, rule, "reconcile asks another host without TLS; use https:, or allow plain calls");
    return SEMEL_OK;
}

semel_status semel__gateway_settings_check(const struct semel_gateway_settings *settings, int64_t lease_ms,
                                           struct semel_error *err)
{
    const struct semel_upstream_settings *up = &settings->upstream;
    semel_status status = SEMEL_OK;
    if (lease_ms <= 0 || (uint64_t)lease_ms <= up->answer_ms + up->connect_ms)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the lease must be longer than the time-outs of a call and of its connection together "
                           "(%.1f s): it must outlast a call",
                           (double)(up->answer_ms + up->connect_ms) / 1000);
    if (is_exposed(settings, settings->caller.check))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the check asks another host without TLS; use https:, or allow plain calls");
    for (size_t i = 0; i < settings->n_rules && status == SEMEL_OK; i++)
        status = check_settled(settings, &settings->rules[i], err);
    return status;
}

static semel_status add_rule(struct semel_guard_rules *rules, const struct semel_gateway_rule *from,
                             const struct semel_gateway_settings *settings, struct semel_error *err)
{
    struct semel_guard_rule *rule = &rules->list[rules->n];
    struct semel_arena *arena = &rules->arena;
    _Atomic size_t *held = settings->held != NULL ? settings->held : rules->held;
    struct semel_str *headers, *ignore;
    struct semel_key_rule *outcomes = semel__arena_alloc(arena, from->n_outcomes + 1, sizeof *outcomes);
    semel_status status = check_rule(from, err);
    if (status != SEMEL_OK)
        return status;
    rule->set = *from;
    rule->held = &held[rules->n];
    rule->settle_us = (from->settle_ms > 0 ? from->settle_ms : 2 * (int64_t)settings->upstream.answer_ms) * 1000;
    if (!copyz(arena, &rule->set.match) || !copyz(arena, &rule->set.key_header) ||
        !copyz(arena, &rule->set.key_pointer) || !copyz(arena, &rule->set.reconcile) ||
        !copy_list(arena, from->headers, from->n_headers, &headers) ||
        !copy_list(arena, from->ignore, from->n_ignore, &ignore) || outcomes == NULL)
        return semel__fail_memory(err);
    if (from->n_outcomes > 0)
        memcpy(outcomes, from->outcomes, from->n_outcomes * sizeof *outcomes);
    rule->set.outcomes = outcomes;
    rule->set.headers = rule->set.ignore = NULL; /* in `counts` */
    rule->counts = (struct semel_request_rule){headers, from->n_headers, ignore, from->n_ignore};
    rules->n++;
    if (rule->set.match != NULL)
        return read_match(rule, err);
    rule->methods = SEMEL_HTTP_BIT(POST) | SEMEL_HTTP_BIT(PATCH);
    rule->path = SEMEL_STR("/{rest*}");
    rule->set.match = "POST|PATCH /{rest*}";
    return SEMEL_OK;
}

static semel_status read_caller(struct semel_guard_rules *rules, const struct semel_gateway_settings *settings,
                                struct semel_error *err)
{
    const struct semel_gateway_caller *caller = &settings->caller;
    bool by_header = caller->kind == SEMEL_GATEWAY_CALLER_HEADER || caller->kind == SEMEL_GATEWAY_CALLER_API_KEY;
    semel_status status = SEMEL_OK;
    rules->caller = *caller;
    if (by_header && (caller->header == NULL || !is_token(caller->header)))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "caller: needs the name of a header");
    if (caller->kind == SEMEL_GATEWAY_CALLER_HEADER && caller->n_trusted_from == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "caller: a header is believed only from trusted peers: name their networks, such as "
                           "127.0.0.1/32");
    if (caller->kind == SEMEL_GATEWAY_CALLER_CERTIFICATE && settings->client_ca_file == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "caller: client certificates need the CAs that sign them");
    for (size_t i = 0; i < caller->n_trusted_from && status == SEMEL_OK; i++)
        status = semel__networks_add(&rules->callers_from, caller->trusted_from[i], err);
    if (status != SEMEL_OK)
        return status;
    if (!copyz(&rules->arena, &rules->caller.header) || !copyz(&rules->arena, &rules->caller.check) ||
        !copy_list(&rules->arena, settings->cors, settings->n_cors, &rules->cors))
        return semel__fail_memory(err);
    rules->n_cors = settings->n_cors;
    rules->caller.trusted_from = NULL;
    return SEMEL_OK;
}

semel_status semel__rules_init(struct semel_guard_rules *rules, const struct semel_gateway_settings *settings,
                               struct semel_error *err)
{
    struct semel_gateway_rule rest;
    *rules = (struct semel_guard_rules){.key_min = settings->key_min};
    semel__arena_init(&rules->arena, RULES_BYTES);
    if (settings->key_min < 1 || settings->key_min > SEMEL_ID_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "key_min must be from 1 to %d", SEMEL_ID_MAX);
    rules->list = semel__arena_alloc(&rules->arena, settings->n_rules + 1, sizeof *rules->list);
    rules->held = semel__arena_alloc(&rules->arena, settings->n_rules + 1, sizeof *rules->held);
    if (rules->list == NULL || rules->held == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i <= settings->n_rules; i++)
        atomic_init(&rules->held[i], 0);
    semel_status status = read_caller(rules, settings, err);
    for (size_t i = 0; i < settings->n_rules && status == SEMEL_OK; i++) {
        status = add_rule(rules, &settings->rules[i], settings, err);
        if (status == SEMEL_OK && settings->rules[i].match == NULL)
            status = wrong(err, &settings->rules[i], "it needs a match");
    }
    semel__gateway_rule_init(&rest);
    return status == SEMEL_OK ? add_rule(rules, &rest, settings, err) : status;
}

void semel__rules_done(struct semel_guard_rules *rules)
{
    semel__arena_done(&rules->arena);
}

/* ==== matching =================================================================================== */

/* Cuts the first segment, which begins with a slash; false: there is none. */
static bool next_segment(struct semel_str *path, struct semel_str *ret)
{
    if (path->n == 0 || (path->n == 1 && path->p[0] == '/'))
        return false;
    const char *slash = memchr(path->p + 1, '/', path->n - 1);
    size_t n = slash != NULL ? (size_t)(slash - path->p) : path->n;
    *ret = (struct semel_str){path->p + 1, n - 1};
    *path = (struct semel_str){path->p + n, path->n - n};
    return true;
}

/* Cuts the first character, in lower case. Escapes are well-formed here. */
static char next_char(struct semel_str *raw)
{
    char c = raw->p[0];
    size_t n = 1;
    if (c == '%' && raw->n > 2) {
        c = (char)(semel__hex_value(raw->p[1]) << 4 | semel__hex_value(raw->p[2]));
        n = 3;
    }
    *raw = (struct semel_str){raw->p + n, raw->n - n};
    return semel__lower(c);
}

static bool same_text(struct semel_str pattern, struct semel_str raw)
{
    size_t k = 0;
    for (; raw.n > 0; k++)
        if (k >= pattern.n || next_char(&raw) != semel__lower(pattern.p[k]))
            return false;
    return k == pattern.n;
}

/* Servlet containers cut parameters off: /v1/charges;a=b is /v1/charges for them. */
static struct semel_str without_parameters(struct semel_str segment)
{
    const char *parameters = segment.n > 0 ? memchr(segment.p, ';', segment.n) : NULL;
    return (struct semel_str){segment.p, parameters != NULL ? (size_t)(parameters - segment.p) : segment.n};
}

static bool same_segment(struct semel_str pattern, struct semel_str raw)
{
    return same_text(pattern, raw) || same_text(pattern, without_parameters(raw));
}

static bool same_path(struct semel_str pattern, struct semel_str path)
{
    struct semel_str want, have;
    while (next_segment(&pattern, &want)) {
        bool named = want.n > 2 && want.p[0] == '{' && want.p[want.n - 1] == '}';
        if (named && want.p[want.n - 2] == '*')
            return true;
        if (!next_segment(&path, &have) || (!named && !same_segment(want, have)))
            return false;
    }
    return !next_segment(&path, &have);
}

static struct semel_str path_of(struct semel_str target)
{
    const char *query = memchr(target.p, '?', target.n);
    return (struct semel_str){target.p, query != NULL ? (size_t)(query - target.p) : target.n};
}

/* One text for all spellings of a path. false: no memory. */
static bool normal_path(struct semel_str path, struct semel_arena *arena, struct semel_str *ret)
{
    struct semel_str segment;
    char *text = semel__arena_alloc(arena, path.n + 1, 1);
    size_t n = 0;
    if (text == NULL)
        return false;
    while (next_segment(&path, &segment)) {
        segment = without_parameters(segment);
        if (segment.n > 0)
            text[n++] = '/';
        while (segment.n > 0)
            text[n++] = next_char(&segment);
    }
    if (n == 0)
        text[n++] = '/';
    *ret = (struct semel_str){text, n};
    return true;
}

struct semel_guard_rule *semel__rules_match(const struct semel_guard_rules *rules, enum semel_http_method method,
                                            struct semel_str target)
{
    struct semel_str path = path_of(target);
    for (size_t i = 0; i < rules->n; i++) {
        struct semel_guard_rule *rule = &rules->list[i];
        if ((rule->methods >> method & 1) != 0 && same_path(rule->path, path))
            return rule->set.key != SEMEL_GATEWAY_KEY_OFF ? rule : NULL;
    }
    return NULL;
}

/* ==== keys ======================================================================================= */

/* "a\"b" without its quotes. false: malformed. */
static bool unquote(struct semel_str raw, char *out, size_t *ret_n)
{
    size_t n = 0;
    if (raw.n < 2 || raw.p[raw.n - 1] != '"')
        return false;
    for (size_t i = 1; i + 1 < raw.n; i++) {
        char c = raw.p[i];
        if (c == '"')
            return false;
        if (c == '\\') {
            c = raw.p[++i];
            if (i + 1 >= raw.n || (c != '"' && c != '\\'))
                return false;
        }
        out[n++] = c;
    }
    *ret_n = n;
    return true;
}

static enum semel_key_found check_key(const struct semel_guard_rules *rules, struct semel_str key,
                                      struct semel_arena *arena, struct semel_str *ret, struct semel_error *err)
{
    bool is_time;
    if (semel__key_check(SEMEL_STR("caller"), key, rules->key_min, &is_time, err) != SEMEL_OK)
        return SEMEL_KEY_MALFORMED;
    return semel__arena_copy(arena, key, ret) ? SEMEL_KEY_FOUND : SEMEL_KEY_MEMORY;
}

enum semel_key_found semel__rule_key(const struct semel_guard_rules *rules, const struct semel_guard_rule *rule,
                                     const struct semel_http_pair *headers, size_t n, struct semel_arena *arena,
                                     struct semel_str *ret, struct semel_error *err)
{
    char plain[SEMEL_ID_MAX + 1];
    size_t found;
    struct semel_str raw = semel__head_find(headers, n, rule->set.key_header, &found);
    *ret = (struct semel_str){NULL, 0};
    if (found == 0)
        return SEMEL_KEY_MISSING;
    if (found > 1) {
        (void)semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the request has %zu headers %s; it must have one",
                          found, rule->set.key_header);
        return SEMEL_KEY_MALFORMED;
    }
    if (raw.n > 0 && raw.p[0] == '"' && raw.n <= sizeof plain + 1) {
        size_t length;
        if (!unquote(raw, plain, &length)) {
            (void)semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                              "the key begins with a quote, and is not a quoted string");
            return SEMEL_KEY_MALFORMED;
        }
        raw = (struct semel_str){plain, length};
    }
    return check_key(rules, raw, arena, ret, err);
}

/* The value at the rule's pointer. INVALID: the body cannot be read. RETRY: no memory. */
static semel_status read_member(const struct semel_guard_rule *rule, const struct semel_request *request,
                                struct semel_arena *arena, enum semel_json_kind *ret_kind, struct semel_str *ret,
                                struct semel_error *err)
{
    struct semel_json *json = NULL;
    if (!semel__request_is_plain(request))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "it is compressed, or its charset is not UTF-8");
    semel_status status = semel__json_parse(&json, request->body, request->body.n, err);
    if (status == SEMEL_OK)
        status = semel__json_get(json, semel__str(rule->set.key_pointer), arena, ret_kind, ret, err);
    semel__json_free(json);
    return status;
}

static enum semel_key_found check_member(const struct semel_guard_rules *rules, const struct semel_guard_rule *rule,
                                         const struct semel_request *request, struct semel_arena *whole,
                                         struct semel_arena *arena, struct semel_str *ret, struct semel_error *err)
{
    enum semel_json_kind kind = SEMEL_JSON_MISSING;
    struct semel_str text = {NULL, 0};
    struct semel_error why;
    semel_status status = read_member(rule, request, whole, &kind, &text, &why);
    if (status == SEMEL_INVALID && semel__request_may_be_json(request)) {
        (void)semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                          "the key of this request is in its body, and the body cannot be read: %s", why.text);
        return SEMEL_KEY_MALFORMED;
    }
    if (status == SEMEL_RETRY)
        return SEMEL_KEY_MEMORY;
    if (status != SEMEL_OK)
        return SEMEL_KEY_MISSING;
    if (kind == SEMEL_JSON_MISSING || kind == SEMEL_JSON_NULL)
        return SEMEL_KEY_MISSING;
    if (kind == SEMEL_JSON_STRING)
        return check_key(rules, text, arena, ret, err);
    (void)semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the key at %s must be a string", rule->set.key_pointer);
    return SEMEL_KEY_MALFORMED;
}

enum semel_key_found semel__rule_key_in(const struct semel_guard_rules *rules, const struct semel_guard_rule *rule,
                                        const struct semel_request *request, struct semel_arena *arena,
                                        struct semel_str *ret, struct semel_error *err)
{
    struct semel_arena whole; /* what is no key may be as long as the body */
    *ret = (struct semel_str){NULL, 0};
    if (request->body.n == 0)
        return SEMEL_KEY_MISSING;
    semel__arena_init(&whole, 2 * request->body.n + RULES_BYTES);
    enum semel_key_found found = check_member(rules, rule, request, &whole, arena, ret, err);
    semel__arena_done(&whole);
    return found;
}

/* ==== callers ==================================================================================== */

bool semel__rules_believe(const struct semel_guard_rules *rules, const struct semel_guard_peer *peer,
                          struct semel_str name)
{
    char address[SEMEL_PEER_TEXT];
    if (rules->caller.kind != SEMEL_GATEWAY_CALLER_HEADER || !semel__same_word(name, rules->caller.header))
        return true;
    return semel__networks_have(&rules->callers_from, peer->remote, address);
}

bool semel__rules_credential(const struct semel_guard_rules *rules, struct semel_str name)
{
    return semel__same_word(name, "authorization") || semel__same_word(name, "cookie") ||
           (rules->caller.kind == SEMEL_GATEWAY_CALLER_API_KEY && semel__same_word(name, rules->caller.header));
}

/* "semel:WORD:" and the digest of the parts, each with its length. */
static bool digest_scope(struct semel_arena *arena, const char *word, const struct semel_str *parts, size_t n,
                         struct semel_str *ret)
{
    struct semel_str all[8];
    char lengths[4][24], text[16 + 2 * SEMEL_SHA256 + 24];
    unsigned char digest[SEMEL_SHA256];
    for (size_t i = 0; i < n; i++) {
        snprintf(lengths[i], sizeof lengths[i], "%zu:", parts[i].n);
        all[2 * i] = semel__str(lengths[i]);
        all[2 * i + 1] = parts[i];
    }
    if (!semel__sha256(all, 2 * n, digest))
        return false;
    int used = snprintf(text, sizeof text, SEMEL_SCOPE_OURS "%s:", word);
    semel__hex(digest, sizeof digest, text + used);
    return semel__arena_copy(arena, semel__str(text), ret);
}

/* Not given: nobody is known. */
static bool find_caller(const struct semel_guard_rules *rules, const struct semel_http_request *req,
                        struct semel_arena *arena, struct semel_str *ret, struct semel_error *err)
{
    const struct semel_gateway_caller *caller = &rules->caller;
    struct semel_guard_peer peer = {req->remote, req->subject};
    struct semel_str name = {NULL, 0};
    size_t found = 0;
    *ret = (struct semel_str){NULL, 0};
    if (caller->kind == SEMEL_GATEWAY_CALLER_CERTIFICATE)
        name = req->subject;
    else if (caller->kind != SEMEL_GATEWAY_CALLER_NONE)
        name = semel__head_find(req->headers, req->n_headers, caller->header, &found);
    if (found > 1) {
        (void)semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the request has %zu headers %s; it must have one",
                          found, caller->header);
        return false;
    }
    if (name.n == 0 || (found > 0 && !semel__rules_believe(rules, &peer, semel__str(caller->header))))
        return true;
    if (caller->kind == SEMEL_GATEWAY_CALLER_API_KEY)
        return digest_scope(arena, "key", &name, 1, ret);
    if (name.n > SEMEL_ID_MAX || !semel__utf8_valid(name) || semel__begins_with(name, SEMEL_SCOPE_OURS))
        return digest_scope(arena, "long", &name, 1, ret);
    return semel__arena_copy(arena, name, ret);
}

bool semel__rule_scope(const struct semel_guard_rules *rules, const struct semel_guard_rule *rule,
                       const struct semel_http_request *req, struct semel_arena *arena, struct semel_str *ret,
                       struct semel_error *err)
{
    static const char *const names[] = {
#define X(name) [SEMEL_HTTP_##name] = #name,
        SEMEL_HTTP_METHOD_MAP(X)
#undef X
    };
    semel__error_clear(err);
    if (!find_caller(rules, req, arena, ret, err)) {
        if (err->text[0] == '\0')
            (void)semel__fail_memory(err);
        return false;
    }
    if (ret->n == 0) {
        if (!rule->set.anonymous)
            return false;
        *ret = SEMEL_STR(SEMEL_SCOPE_OURS "anonymous");
    }
    if (!rule->set.by_endpoint)
        return true;
    struct semel_str parts[] = {*ret, semel__str(names[req->method]), {NULL, 0}};
    if (normal_path(path_of(req->target), arena, &parts[2]) && digest_scope(arena, "endpoint", parts, 3, ret))
        return true;
    (void)semel__fail_memory(err);
    return false;
}

bool semel__rules_cors(const struct semel_guard_rules *rules, struct semel_str origin)
{
    for (size_t i = 0; i < rules->n_cors; i++)
        if (semel__str_eq(rules->cors[i], origin))
            return true;
    return false;
}
