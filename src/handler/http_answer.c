/* SPDX-License-Identifier: MIT
 *
 * http_answer.c: what came back, and what it means.
 *
 *     2xx                                  done; the body is the outcome where it is JSON and was kept whole
 *     408 409 425 429                      transient
 *     other 4xx, 3xx                       permanent: nothing was done, and the same again would fare no better
 *     5xx that the route calls transient   transient
 *     any other 5xx, any other             unknown: a 500 may come after the effect, and middleware answers 503 while
 *                                          the handler runs on (P81, P92)
 *     no answer, or not the whole of it    unknown, once the first byte may have been sent (P47)
 * The header Semel-Outcome (rejected, transient, permanent, unknown, key-mismatch) is believed before the status; a
 * word that is none of these is not. An answer that is too long is cut off by us, and its status counts. Where the
 * other side honours the key, unknown is transient.
 *
 * Invariants: at most SEMEL_CALL_ANSWER_MAX bytes of a body and HTTP_HEADS_MAX of headers are taken; a reason holds the
 * status and what the other side meant for people (Semel-Reason, or the title of a problem), never the body (P71).
 */
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "handler/http_private.h"

#define SECOND_US INT64_C(1000000)
#define IDLE_MAX_S INT64_C(120)

/* ---- taking -------------------------------------------------------------------------------------- */

static struct semel_str trim(struct semel_str s)
{
    while (s.n > 0 && strchr(" \t\r\n", s.p[s.n - 1]) != NULL && s.p[s.n - 1] != '\0')
        s.n--;
    while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t'))
        s.p++, s.n--;
    return s;
}

static bool named(struct semel_str line, const char *name, struct semel_str *ret_value)
{
    size_t n = strlen(name);
    if (line.n <= n || line.p[n] != ':' || strncasecmp(line.p, name, n) != 0)
        return false;
    *ret_value = trim((struct semel_str){line.p + n + 1, line.n - n - 1});
    return true;
}

static void keep_word(struct http_call *c, struct semel_str value)
{
    if (value.n >= sizeof c->word || c->word[0] != '\0')
        return;
    for (size_t i = 0; i < value.n; i++)
        c->word[i] = (char)(value.p[i] >= 'A' && value.p[i] <= 'Z' ? value.p[i] + ('a' - 'A') : value.p[i]);
    c->word[value.n] = '\0';
}

/* "timeout=5, max=100": half of it. A server that names no time may close after two seconds (gunicorn does). */
static int64_t idle_of(struct semel_str value)
{
    static const char word[] = "timeout=";
    int64_t seconds = 0;
    for (size_t i = 0; i + sizeof word - 1 < value.n; i++) {
        if (strncasecmp(value.p + i, word, sizeof word - 1) != 0)
            continue;
        for (size_t k = i + sizeof word - 1; k < value.n && value.p[k] >= '0' && value.p[k] <= '9'; k++)
            seconds = seconds < IDLE_MAX_S ? 10 * seconds + (value.p[k] - '0') : IDLE_MAX_S;
        return (seconds < IDLE_MAX_S ? seconds : IDLE_MAX_S) * SECOND_US / 2;
    }
    return HTTP_IDLE_US;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the type is curl's */
size_t semel__http_take_head(char *p, size_t size, size_t n, void *ctx)
{
    static const char problem[] = "application/problem+json";
    struct http_call *c = ctx;
    struct semel_str line = {p, size * n}, value;
    c->heads += line.n;
    if (c->heads > HTTP_HEADS_MAX)
        return 0;
    if (c->in_body)
        return line.n;                                    /* trailers say nothing to us */
    if (line.n >= 5 && memcmp(line.p, "HTTP/", 5) == 0) { /* whatever came before was 1xx */
        c->word[0] = c->said[0] = '\0';
        c->problem = c->headed = false;
        c->idle_us = HTTP_IDLE_US;
    } else if (line.n <= 2) {
        c->headed = true;
    } else if (named(line, "Semel-Outcome", &value)) {
        keep_word(c, value);
    } else if (named(line, "Semel-Reason", &value)) {
        semel__str_show(c->said, sizeof c->said, value);
    } else if (named(line, "Content-Type", &value)) {
        c->problem = value.n >= sizeof problem - 1 && strncasecmp(value.p, problem, sizeof problem - 1) == 0;
    } else if (named(line, "Keep-Alive", &value)) {
        c->idle_us = idle_of(value);
    }
    return line.n;
}

size_t semel__http_take_body(char *p, size_t size, size_t n, void *ctx)
{
    struct http_call *c = ctx;
    c->in_body = true;
    if (c->body.n + size * n > SEMEL_CALL_ANSWER_MAX) {
        c->cut = true;
        return 0;
    }
    c->lost |= !semel__buf_add(&c->body, p, size * n);
    return size * n;
}

/* ---- judging ------------------------------------------------------------------------------------- */

static enum semel_result by_status(const struct http_call *c, long status)
{
    static const long transient[] = {408, 409, 425, 429};
    for (size_t i = 0; i < sizeof transient / sizeof transient[0]; i++)
        if (status == transient[i])
            return SEMEL_TRANSIENT;
    for (size_t i = 0; i < c->http->n_transient; i++)
        if (status == c->http->transient[i])
            return SEMEL_TRANSIENT;
    if (status >= 200 && status < 300)
        return SEMEL_DONE;
    if (status >= 300 && status < 500)
        return SEMEL_PERMANENT;
    return semel__call_unknown(&c->call, c->http->idempotent);
}

/* true: the answer has a word of its own. */
static bool by_word(struct http_call *c, enum semel_result *ret)
{
    const struct {
        const char *word;
        enum semel_result result;
    } words[] = {
        {"rejected", SEMEL_REJECTED},
        {"transient", SEMEL_TRANSIENT},
        {"permanent", SEMEL_PERMANENT},
        {"key-mismatch", SEMEL_PERMANENT},
        {"unknown", semel__call_unknown(&c->call, c->http->idempotent)},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(c->word, words[i].word) == 0) {
            c->end.refused_key = strcmp(c->word, "key-mismatch") == 0;
            *ret = words[i].result;
            return true;
        }
    return false;
}

static struct semel_json *parse_body(const struct http_call *c)
{
    struct semel_json *json = NULL;
    if (c->cut || c->lost ||
        semel__json_parse(&json, semel__buf_str(&c->body), SEMEL_CALL_ANSWER_MAX, NULL) != SEMEL_OK)
        return NULL;
    return json;
}

static const struct semel_json_node *member(const struct semel_json *json, const char *name)
{
    if (json == NULL || json->root->tag != SEMEL_JSON_TAG_OBJECT)
        return NULL;
    for (const struct semel_json_node *each = json->root->u.first; each != NULL; each = each->next)
        if (semel__str_eqz(each->key, name))
            return each;
    return NULL;
}

static struct semel_str string_member(const struct semel_json *json, const char *name)
{
    const struct semel_json_node *node = member(json, name);
    return node != NULL && node->tag == SEMEL_JSON_TAG_STRING ? node->u.text : (struct semel_str){0};
}

static bool is_about_key(struct semel_str type)
{
    static const char word[] = "idempoten";
    for (size_t i = 0; i + sizeof word - 1 <= type.n; i++)
        if (strncasecmp(type.p + i, word, sizeof word - 1) == 0)
            return true;
    return false;
}

/* A problem (RFC 9457) has a title for people, and a type which may say that the key was used for something else. */
static void read_problem(struct http_call *c, long status)
{
    struct semel_json *json = c->problem ? parse_body(c) : NULL;
    if (c->said[0] == '\0')
        semel__str_show(c->said, sizeof c->said, string_member(json, "title"));
    c->end.refused_key = status == 422 && is_about_key(string_member(json, "type"));
    semel__json_free(json);
}

static void judge_call(struct http_call *c, long status)
{
    enum semel_result result;
    char what[32];
    read_problem(c, status);
    if (!by_word(c, &result))
        result = by_status(c, status);
    snprintf(what, sizeof what, "HTTP %ld", status);
    struct semel_str said = semel__str(c->said);
    if (said.n == 0 && status >= 300 && status < 400)
        said = SEMEL_STR("redirects are not followed; the route must name the last URL");
    semel__call_says(&c->end, c->reason, result, what, said);
    struct semel_str body = semel__buf_str(&c->body);
    if (result == SEMEL_DONE && !c->cut && !c->lost && semel__call_outcome(body))
        c->end.outcome = body;
}

/* {"state": "done", "outcome": ...} */
static enum semel_result by_state(struct http_call *c)
{
    struct semel_json *json = parse_body(c);
    struct semel_str state = string_member(json, "state");
    const struct semel_json_node *outcome = member(json, "outcome");
    enum semel_result result = semel__str_eqz(state, "done")       ? SEMEL_DONE
                               : semel__str_eqz(state, "not_done") ? SEMEL_TRANSIENT
                               : semel__str_eqz(state, "rejected") ? SEMEL_REJECTED
                                                                   : SEMEL_MAYBE;
    if (result == SEMEL_DONE && outcome != NULL && outcome->tag != SEMEL_JSON_TAG_NULL) {
        struct semel_json part = {.exact = json->exact};
        struct semel_json_node root = *outcome;
        bool exact = false;
        part.root = &root;
        if (semel__json_canonical(&part, &c->outcome, &exact, NULL) == SEMEL_OK && exact)
            c->end.outcome = semel__buf_str(&c->outcome);
    }
    semel__json_free(json);
    return result;
}

static void judge_ask(struct http_call *c, long status)
{
    char what[48];
    enum semel_result result = status == 200 ? by_state(c) : status == 404 ? SEMEL_TRANSIENT : SEMEL_MAYBE;
    read_problem(c, status);
    c->end.refused_key = false;
    c->end.heard = status < 500;
    snprintf(what, sizeof what, "the reconcile answered HTTP %ld", status);
    semel__call_says(&c->end, c->reason, result, what, semel__str(c->said));
}

/* ---- no answer ----------------------------------------------------------------------------------- */

/* Repeating cannot help until somebody mends the route. */
static bool is_broken(CURLcode code)
{
    static const CURLcode broken[] = {
        CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CERTPROBLEM,     CURLE_SSL_CACERT_BADFILE,
        CURLE_SSL_ISSUER_ERROR,         CURLE_SSL_CIPHER,          CURLE_URL_MALFORMAT,
        CURLE_UNSUPPORTED_PROTOCOL,     CURLE_SSL_ENGINE_NOTFOUND, CURLE_NOT_BUILT_IN};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        if (code == broken[i])
            return true;
    return false;
}

/* Certainly nothing was sent. What curl says of connections names host and port, and nothing else of the URL. */
static void not_sent(struct http_call *c, CURLcode code)
{
    const char *text = code != CURLE_URL_MALFORMAT && c->error[0] != '\0' ? c->error : curl_easy_strerror(code);
    if (code == CURLE_OUT_OF_MEMORY)
        c->end.status = semel__fail_memory(&c->end.err);
    else if (is_broken(code))
        c->end.status = semel__fail(&c->end.err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "nothing was sent: %s", text);
    else
        c->end.status = semel__fail(&c->end.err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "nothing was sent: %s", text);
    c->end.err.code = (int)code;
}

void semel__http_judge(struct http_call *c, CURLcode code)
{
    long status = 0;
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (!c->begun && code != CURLE_OK) {
        not_sent(c, code);
        return;
    }
    if ((code != CURLE_OK && !c->cut) || !c->headed) {
        const char *what = code == CURLE_OPERATION_TIMEDOUT ? "no whole answer within the time-out"
                                                            : "the connection broke before the whole answer came";
        semel__call_says(&c->end, c->reason, semel__call_unknown(&c->call, c->http->idempotent), what,
                         (struct semel_str){0});
    } else if (c->call.ask) {
        judge_ask(c, status);
    } else {
        judge_call(c, status);
    }
}

void semel__http_not_asked(struct http_call *c)
{
    c->end.status = SEMEL_OK;
    c->end.not_asked = true;
    semel__call_says(&c->end, c->reason, SEMEL_MAYBE, "not asked", semel__str(c->end.err.text));
}

void semel__http_give_up(struct http_call *c)
{
    if (c->begun)
        semel__call_says(&c->end, c->reason, semel__call_unknown(&c->call, c->http->idempotent),
                         "given up before the answer came", (struct semel_str){0});
    else
        c->end.status = semel__fail(&c->end.err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                                    "given up before anything was sent");
}
