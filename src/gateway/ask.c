/* SPDX-License-Identifier: MIT
 *
 * ask.c: questions beside a request; see ask.h.
 */
#include "gateway/ask.h"

#include <stdio.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "gateway/rules.h"

#define URL_MAX 2048
#define TARGET_MAX 8192
#define LINES_MAX ((size_t)64 << 10)

struct semel_asker {
    struct semel_upstream *upstream;
    char origin[URL_MAX], authority[URL_MAX], target[URL_MAX]; /* target: with {key} and {caller} in it */
};

struct ask {
    semel_asked asked;
    void *ctx;
    int status;
    bool too_long;
    struct semel_buf body;
};

/* ==== the URL ==================================================================================== */

semel_status semel__asker_new(struct semel_asker **ret, struct semel_http *http, const char *what, const char *url,
                              const struct semel_upstream_settings *settings, struct semel_error *err)
{
    struct semel_upstream_settings own = *settings;
    struct semel_asker *asker = semel__calloc(1, sizeof *asker);
    const char *host = strstr(url, "://");
    if (asker == NULL)
        return semel__fail_memory(err);
    size_t n = host != NULL ? strcspn(host + 3, "/?#") : 0;
    const char *rest = host != NULL ? host + 3 + n : url;
    semel_status status = SEMEL_OK;
    if (host == NULL || n == 0 || strlen(url) >= URL_MAX - 1 || strpbrk(url, " \t\r\n\\\"<>#") != NULL ||
        rest[0] == '?')
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                             "%s must be a URL with a path, such as http://127.0.0.1:8000/by-key/{key}", what);
    if (status == SEMEL_OK) {
        snprintf(asker->origin, URL_MAX, "%.*s", (int)(rest - url), url);
        snprintf(asker->authority, URL_MAX, "%.*s", (int)n, host + 3);
        snprintf(asker->target, URL_MAX, "%s", rest[0] != '\0' ? rest : "/");
        own.url = asker->origin;
        status = semel__upstream_new(&asker->upstream, http, &own, err);
    }
    if (status != SEMEL_OK)
        semel__free(asker);
    else
        *ret = asker;
    return status;
}

void semel__asker_free(struct semel_asker *asker)
{
    if (asker == NULL)
        return;
    semel__upstream_free(asker->upstream);
    semel__free(asker);
}

/* Servers and proxies would turn it into another path. */
static bool is_odd(struct semel_str name)
{
    size_t dots = 0;
    for (size_t i = 0; i < name.n; i++) {
        if (name.p[i] == '/' || name.p[i] == '\\' || name.p[i] == '%')
            return true;
        dots += name.p[i] == '.';
    }
    return dots == name.n;
}

static void put_escaped(struct semel_buf *buf, struct semel_str name)
{
    for (size_t i = 0; i < name.n; i++) {
        char c = name.p[i];
        if (semel__is_letter(c) || semel__is_digit(c) || c == '-' || c == '.' || c == '_' || c == '~')
            semel__buf_add(buf, &c, 1);
        else
            semel__buf_addf(buf, "%%%02X", (unsigned char)c);
    }
}

/* NULL: the target is in the buffer. */
static const char *put_target(const struct semel_asker *asker, struct semel_str key, struct semel_str caller,
                              struct semel_buf *buf)
{
    for (const char *at = asker->target; *at != '\0';) {
        bool is_key = strncmp(at, "{key}", 5) == 0, is_caller = strncmp(at, "{caller}", 8) == 0;
        if (!is_key && !is_caller) {
            semel__buf_add(buf, at++, 1);
            continue;
        }
        if (is_odd(is_key ? key : caller))
            return is_key ? "the key has characters that no URL can contain" : "no URL can contain the caller";
        if (is_caller && semel__begins_with(caller, SEMEL_SCOPE_OURS)) /* its 404 would mean `not_done` */
            return "the caller is a digest, or nobody: no server knows that name";
        put_escaped(buf, is_key ? key : caller);
        at += is_key ? 5 : 8;
    }
    return buf->failed ? "the URL is too long" : NULL;
}

/* ==== the call =================================================================================== */

static void on_head(void *ctx, const struct semel_upstream_answer *answer)
{
    ((struct ask *)ctx)->status = answer->status;
}

static void on_body(void *ctx, struct semel_str piece)
{
    struct ask *ask = ctx;
    ask->too_long = ask->too_long || !semel__buf_add(&ask->body, piece.p, piece.n);
}

static void on_drained(void *ctx)
{
    (void)ctx; /* nothing is sent in pieces */
}

static void on_done(void *ctx, const struct semel_upstream_end *end)
{
    struct ask *ask = ctx;
    bool whole = end->fate == SEMEL_UPSTREAM_ANSWERED && !ask->too_long;
    ask->asked(ask->ctx, whole ? ask->status : 0, semel__buf_str(&ask->body));
    semel__buf_done(&ask->body);
    semel__free(ask);
}

static const struct semel_upstream_events events = {on_head, on_body, on_drained, on_done};

bool semel__ask(struct semel_asker *asker, struct semel_str key, struct semel_str caller, struct semel_str lines,
                semel_asked asked, void *ctx, const char **ret_why)
{
    struct ask *ask = semel__calloc(1, sizeof *ask);
    struct semel_upstream_call *call;
    struct semel_buf target, all;
    semel__buf_init(&target, TARGET_MAX);
    semel__buf_init(&all, LINES_MAX);
    semel__buf_addf(&all, "Host: %s\r\n", asker->authority);
    semel__buf_add(&all, lines.p, lines.n);
    *ret_why = put_target(asker, key, caller, &target);
    if (*ret_why == NULL && (ask == NULL || all.failed))
        *ret_why = "there is no memory to ask";
    if (*ret_why == NULL) {
        *ask = (struct ask){.asked = asked, .ctx = ctx};
        semel__buf_init(&ask->body, SEMEL_ASK_ANSWER_MAX);
        const struct semel_upstream_request request = {.method = SEMEL_HTTP_GET,
                                                       .target = semel__buf_str(&target),
                                                       .lines = semel__buf_str(&all)};
        if (semel__upstream_start(asker->upstream, &request, &events, ask, &call, NULL) != SEMEL_OK)
            *ret_why = "there is no memory to ask";
    }
    if (*ret_why != NULL)
        semel__free(ask);
    semel__buf_done(&target);
    semel__buf_done(&all);
    return *ret_why == NULL;
}

/* ==== what a reconcile has answered ============================================================== */

static const struct semel_json_node *member(const struct semel_json *json, const char *name)
{
    if (json->root->tag != SEMEL_JSON_TAG_OBJECT)
        return NULL;
    for (const struct semel_json_node *each = json->root->u.first; each != NULL; each = each->next)
        if (semel__str_eqz(each->key, name))
            return each;
    return NULL;
}

static void read_done(const struct semel_json *json, int64_t *ret_code, struct semel_buf *outcome)
{
    const struct semel_json_node *code = member(json, "status"), *made = member(json, "outcome");
    bool exact = false;
    if (code != NULL && code->tag == SEMEL_JSON_TAG_INTEGER &&
        (!semel__str_int64(code->u.text, ret_code) || *ret_code < 200 || *ret_code > 599))
        *ret_code = 200;
    if (made == NULL || made->tag == SEMEL_JSON_TAG_NULL)
        return;
    struct semel_json_node root = *made;
    const struct semel_json part = {.exact = json->exact, .root = &root};
    if (semel__json_canonical(&part, outcome, &exact, NULL) != SEMEL_OK || !exact)
        outcome->n = 0;
}

enum semel_ask_state semel__ask_state(int status, struct semel_str body, int64_t *ret_code, struct semel_buf *outcome)
{
    enum semel_ask_state state = SEMEL_ASK_UNKNOWN;
    struct semel_json *json = NULL;
    *ret_code = 200;
    if (status == 404)
        return SEMEL_ASK_NOT_DONE;
    if (status != 200 || semel__json_parse(&json, body, SEMEL_ASK_ANSWER_MAX, NULL) != SEMEL_OK)
        return SEMEL_ASK_UNKNOWN;
    const struct semel_json_node *word = member(json, "state");
    if (word != NULL && word->tag == SEMEL_JSON_TAG_STRING) {
        if (semel__str_eqz(word->u.text, "not_done"))
            state = SEMEL_ASK_NOT_DONE;
        if (semel__str_eqz(word->u.text, "done")) {
            state = SEMEL_ASK_DONE;
            read_done(json, ret_code, outcome);
        }
    }
    semel__json_free(json);
    return state;
}
