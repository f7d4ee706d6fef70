/* SPDX-License-Identifier: MIT
 *
 * http.c: effects by HTTP: many calls of one thread on one curl multi handle.
 *
 * One call is one request. curl would send a POST again by itself when a connection that it reuses dies before the
 * first byte of the answer (P54), so two measures prevent that, each of which is enough where both apply. The body
 * comes from a callback that cannot be rewound, and a call with an empty body, which needs no rewind, gets a
 * connection of its own; and the callback before a request refuses a second one, even when only the headers of the
 * first were sent. A connection is reused only while its server will not close it yet: after at most half of the
 * server's `Keep-Alive: timeout`, or 1 s (P94), so that the case stays rare.
 *
 * Invariants: a call ends once; a request that was certainly not sent ends as ENVIRONMENT or BROKEN, one that may
 * have been sent ends by its answer, or as unknown (P47).
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "base/wait.h"
#include "core/headers.h"
#include "core/row.h"
#include "handler/caller_private.h"
#include "net/curl.h"

#define HTTP_HEADS_MAX ((size_t)256 * 1024) /* bytes of all header lines of an answer */
#define HTTP_WORD_TEXT 32
#define HTTP_ADDRESS_TEXT 48
#define HTTP_IDLE_US INT64_C(1000000) /* how long an idle connection is reused when its server sets no time */

/* A connection, by its two ends, and until when it may be reused. */
struct http_line {
    char address[HTTP_ADDRESS_TEXT];
    int port, our_port; /* our_port 0: none */
    int64_t fresh_until_us;
};

struct http_call {
    enum call_state state;
    struct semel_call call;
    struct http_caller *http;
    CURL *easy;
    struct curl_slist *lines;
    bool begun;            /* the first byte may have been sent */
    bool stale, fresh;     /* its connection was idle for too long: it gets a new one */
    struct http_line line; /* the connection it was sent on */
    struct semel_curl_body payload;

    /* The answer. */
    size_t heads;                /* bytes of header lines */
    int64_t idle_us;             /* how long its connection may be idle before it is reused */
    char word[HTTP_WORD_TEXT];   /* Semel-Outcome, in lower case */
    char said[CALL_REASON_TEXT]; /* Semel-Reason */
    bool problem;                /* application/problem+json */
    bool headed;                 /* all headers came; curl accepts some of them when the connection ends */
    bool in_body, cut, lost;     /* cut: by us, for its length; lost: no memory for it */
    struct semel_buf body;
    char error[CURL_ERROR_SIZE];

    struct semel_call_end end;
    char reason[CALL_REASON_TEXT];
    struct semel_buf outcome; /* of a reconcile, if it is a part of the body */
};

struct http_caller {
    struct semel_caller base;
    CURLM *multi;
    char *url, *reconcile_url;
    struct semel_curl_tls tls;
    char **fixed; /* "Name: value", which may be secret */
    size_t n_fixed;
    long timeout_ms;
    int *transient; /* 5xx after which certainly nothing was done */
    size_t n_transient;
    bool idempotent;
    int timer;
    struct semel_random rng;
    struct http_call *calls; /* twice base.concurrency */
    struct http_line *lines; /* as many */
};

/* ==== the answer ====================================================================================
 *
 * The answer, and what it means.
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
 * Invariants: at most SEMEL_CALL_ANSWER_MAX bytes of a body and HTTP_HEADS_MAX of headers are read; a reason has the
 * status and the other side's text for people (Semel-Reason, or the title of a problem), never the body (P71).
 */

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
    if (line.n <= n || line.p[n] != ':' || !semel__begins_with(line, name))
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

/* "timeout=5, max=100": half of it. A server without a time may close after two seconds (gunicorn does). */
static int64_t idle_of(struct semel_str value)
{
    const int64_t seconds = semel__named_number(value, "timeout=", IDLE_MAX_S);
    return seconds < 0 ? HTTP_IDLE_US : seconds * SECOND_US / 2;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the type is curl's */
static size_t on_head(char *p, size_t size, size_t n, void *ctx)
{
    struct http_call *c = ctx;
    struct semel_str line = {p, size * n}, value;
    c->heads += line.n;
    if (c->heads > HTTP_HEADS_MAX)
        return 0;
    if (c->in_body)
        return line.n;                                    /* trailers are ignored */
    if (line.n >= 5 && memcmp(line.p, "HTTP/", 5) == 0) { /* everything before it was 1xx */
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
        c->problem = semel__begins_with(value, "application/problem+json");
    } else if (named(line, "Keep-Alive", &value)) {
        c->idle_us = idle_of(value);
    }
    return line.n;
}

static size_t on_body(char *p, size_t size, size_t n, void *ctx)
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

/* true: the answer has a Semel-Outcome. */
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

static const struct semel_json_node *json_member(const struct semel_json *json, const char *name)
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
    const struct semel_json_node *node = json_member(json, name);
    return node != NULL && node->tag == SEMEL_JSON_TAG_STRING ? node->u.text : (struct semel_str){0};
}

static bool is_about_key(struct semel_str type)
{
    for (size_t i = 0; i < type.n; i++)
        if (semel__begins_with((struct semel_str){type.p + i, type.n - i}, "idempoten"))
            return true;
    return false;
}

/* A problem (RFC 9457) has a title for people, and a type that may report that the key was used for something else. */
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
    const struct semel_json_node *outcome = json_member(json, "outcome");
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

/* Repeating cannot help until somebody fixes the route. */
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

/* Certainly nothing was sent. curl's text about connections has host and port, and nothing else of the URL. */
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

/* Judges the end of the transfer. */
static void judge(struct http_call *c, CURLcode code)
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

/* The reconcile was not sent; end.err has the reason. */
static void not_asked(struct http_call *c)
{
    c->end.status = SEMEL_OK;
    c->end.not_asked = true;
    semel__call_says(&c->end, c->reason, SEMEL_MAYBE, "not asked", semel__str(c->end.err.text));
}

static void give_up(struct http_call *c)
{
    if (c->begun)
        semel__call_says(&c->end, c->reason, semel__call_unknown(&c->call, c->http->idempotent),
                         "cancelled before the answer came", (struct semel_str){0});
    else
        c->end.status = semel__fail(&c->end.err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                                    "cancelled before anything was sent");
}

/* ==== the request ===================================================================================
 *
 * The request: the URL, the headers, the payload, and the options for curl.
 *
 * Invariants: no byte of a message gets into a header line unless it is visible ASCII (else it is written as %XX, or
 * the header is left out), so no message can add a header or a request. A header that the route sets is not sent a
 * second time from a message. No error text contains the value of a header or a part of a URL. A message's id is one
 * segment of the path, or a part of one, whatever bytes it has: an id that a server could take for another path is
 * not used (P84).
 */

#define LINE_MAX_BYTES ((size_t)16 * 1024)
#define URL_MAX_BYTES 2048                /* as configured */
#define ASKED_MAX_BYTES ((size_t)1 << 20) /* with key and id inserted, as often as it names them */
#define VALUE_MAX 1024                    /* bytes of a message's header that is sent on */
#define CONNECT_MS 10000

/* ---- settings ------------------------------------------------------------------------------------ */

static bool kept_as_is(unsigned char c, bool url)
{
    if (!url)
        return c > 0x20 && c < 0x7f && c != '"' && c != '%';
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_' || c == '~';
}

/* Appends the text with %XX for characters that are not allowed in a header (CloudEvents: visible ASCII except " and
 * %), or in a part of a URL (all but RFC 3986's unreserved characters). */
static void put_encoded(struct semel_buf *buf, struct semel_str s, bool url)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (kept_as_is(c, url))
            semel__buf_add(buf, &s.p[i], 1);
        else
            semel__buf_addf(buf, "%%%02X", (unsigned)c);
    }
}

static bool put_url(struct semel_buf *buf, const char *url, struct semel_str key, struct semel_str id)
{
    while (*url != '\0') {
        if (strncmp(url, "{key}", 5) == 0) {
            put_encoded(buf, key, true);
            url += 5;
        } else if (strncmp(url, "{id}", 4) == 0) {
            put_encoded(buf, id, true);
            url += 4;
        } else {
            semel__buf_add(buf, url++, 1);
        }
    }
    return semel__buf_add(buf, "", 1);
}

/* The start of the path, after scheme and host; where it ends; and where host and port end. */
static const char *path_of(const char *url, const char **ret_end)
{
    const char *host = strstr(url, "://");
    host = host != NULL ? host + 3 : url;
    const char *path = host + strcspn(host, "/?#");
    *ret_end = path + strcspn(path, "?#");
    return path;
}

/* The byte at *p in a URL or in an id, however often its % was encoded; *p moves past it. */
static char plain_byte(const char **p, const char *end)
{
    const char *at = *p;
    if (*at != '%' || end - at < 3) {
        *p = at + 1;
        return *at;
    }
    const char *digits = at + 1;
    while (end - digits >= 4 && digits[0] == '2' && digits[1] == '5') /* %25 is a % */
        digits += 2;
    int high = semel__hex_value(digits[0]), low = semel__hex_value(digits[1]);
    *p = high < 0 || low < 0 ? at + 1 : digits + 2;
    return (char)(high < 0 || low < 0 ? '%' : high * 16 + low);
}

/* The number of dots; -1: it has other characters. */
static int dots_of(struct semel_str s)
{
    int n = 0;
    for (const char *p = s.p, *end = s.p + s.n; p < end; n++)
        if (plain_byte(&p, end) != '.')
            return -1;
    return n;
}

static bool has_slash(struct semel_str s)
{
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        char c = plain_byte(&p, end);
        if (c == '/' || c == '\\')
            return true;
    }
    return false;
}

/* The number of dots of a path segment with the id in it; -1: it has other characters, or no id. */
static int segment_dots(const char *p, const char *end, struct semel_str id)
{
    bool named = false;
    int dots = 0;
    while (p < end && dots >= 0) {
        int more = -1;
        if (end - p >= 4 && memcmp(p, "{id}", 4) == 0) {
            more = dots_of(id);
            named = true;
            p += 4;
        } else if (plain_byte(&p, end) == '.') {
            more = 1;
        }
        dots = more < 0 ? -1 : dots + more;
    }
    return named ? dots : -1;
}

/* Servers and proxies would turn a segment of dots, or a slash within the id, into another path. NULL: the id can be
 * used. */
static const char *path_fault(const char *url, struct semel_str id)
{
    const char *end, *p = path_of(url, &end), *place = strstr(p, "{id}");
    if (place == NULL || place >= end)
        return NULL;
    if (has_slash(id))
        return "the id has a slash or backslash in it, which a segment of a path cannot hold";
    while (p < end) {
        size_t n = strcspn(p, "/?#");
        int dots = segment_dots(p, p + n, id);
        if (dots == 1 || dots == 2)
            return "the id makes a segment . or .. of the path";
        p += n + 1;
    }
    return NULL;
}

static bool url_fits(const char *url)
{
    char *scheme = NULL;
    CURLU *parsed = curl_url();
    bool fits = parsed != NULL && curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK &&
                curl_url_get(parsed, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
                (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    curl_free(scheme);
    curl_url_cleanup(parsed);
    return fits;
}

/* Checks a URL. INVALID: not one that we can call. */
static semel_status check_url(const char *what, const char *url, struct semel_error *err)
{
    struct semel_buf buf;
    semel__buf_init(&buf, URL_MAX_BYTES);
    bool fits = put_url(&buf, url, SEMEL_STR("k"), SEMEL_STR("i")) && url_fits(buf.p);
    bool memory = buf.failed && !buf.full;
    semel__buf_done(&buf);
    if (memory)
        return semel__fail_memory(err);
    const char *end, *path = path_of(url, &end), *brace = strchr(url, '{');
    if (brace != NULL && brace < path)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "%s has a message's key or id in its host; they can stand in the path and behind it", what);
    return fits ? SEMEL_OK
                : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                              "%s cannot be called; it must be http://HOST/PATH or https://HOST/PATH, of at "
                              "most %d bytes",
                              what, URL_MAX_BYTES);
}

static bool is_ours(struct semel_str name)
{
    static const char *const ours[] = {"Idempotency-Key",
                                       "Content-Length",
                                       "Transfer-Encoding",
                                       "Connection",
                                       "Proxy-Connection",
                                       "Keep-Alive",
                                       "Expect",
                                       "TE",
                                       "Trailer",
                                       "Upgrade",
                                       "traceparent",
                                       "Semel-Consumer",
                                       "Semel-Message-Id",
                                       "Semel-Attempt",
                                       "Semel-Tombstone"};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (semel__same_word(name, ours[i]))
            return true;
    return false;
}

/* "Name: value" for curl, checked. */
static semel_status fixed_line(const struct semel_pair *pair, char **ret_line, struct semel_error *err)
{
    char shown[64];
    struct semel_buf buf;
    semel__str_show(shown, sizeof shown, pair->name);
    if (!semel__header_name_fits(pair->name, SEMEL_HEADER_NAME_MAX) || is_ours(pair->name))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "\"%s\" cannot be among the headers: it is %s",
                           shown, is_ours(pair->name) ? "one that Semel sets itself" : "no name of a header");
    for (size_t i = 0; i < pair->value.n; i++)
        if ((unsigned char)pair->value.p[i] < 0x20 || pair->value.p[i] == 0x7f)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "the value of the header %s has a control character; leave it out", shown);
    semel__buf_init(&buf, LINE_MAX_BYTES);
    semel__buf_add(&buf, pair->name.p, pair->name.n);
    semel__buf_addz(&buf, pair->value.n > 0 ? ": " : ";"); /* curl's syntax for an empty value */
    semel__buf_add(&buf, pair->value.p, pair->value.n);
    *ret_line = buf.failed ? NULL : semel__call_copy(semel__buf_str(&buf));
    bool full = buf.full;
    if (buf.p != NULL)
        explicit_bzero(buf.p, buf.n);
    semel__buf_done(&buf);
    if (full)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the header %s is too long", shown);
    return *ret_line != NULL ? SEMEL_OK : semel__fail_memory(err);
}

/* ---- header lines -------------------------------------------------------------------------------- */

static bool is_fixed(const struct http_caller *http, struct semel_str name)
{
    for (size_t i = 0; i < http->n_fixed; i++)
        if (strcspn(http->fixed[i], ":;") == name.n && strncasecmp(http->fixed[i], name.p, name.n) == 0)
            return true;
    return false;
}

static bool add_text(struct http_call *c, const char *line)
{
    struct curl_slist *lines = curl_slist_append(c->lines, line);
    if (lines == NULL)
        return false;
    c->lines = lines;
    return true;
}

static bool add_line(struct http_call *c, struct semel_str name, struct semel_str value, bool encode)
{
    struct semel_buf buf;
    semel__buf_init(&buf, LINE_MAX_BYTES);
    semel__buf_add(&buf, name.p, name.n);
    semel__buf_addz(&buf, value.n > 0 ? ": " : ";");
    if (encode)
        put_encoded(&buf, value, false);
    else
        semel__buf_add(&buf, value.p, value.n);
    bool added = semel__buf_add(&buf, "", 1) && add_text(c, buf.p);
    semel__buf_done(&buf);
    return added;
}

/* A kept header has a string, or an array of which the first counts. */
static struct semel_str text_of(const struct semel_json_node *node)
{
    if (node->tag == SEMEL_JSON_TAG_ARRAY && node->u.first != NULL)
        node = node->u.first;
    return node->tag == SEMEL_JSON_TAG_STRING ? node->u.text : (struct semel_str){0};
}

static const struct semel_json_node *members(const struct semel_json *headers)
{
    return headers != NULL && headers->root->tag == SEMEL_JSON_TAG_OBJECT ? headers->root->u.first : NULL;
}

static struct semel_str find(const struct semel_json *headers, const char *name)
{
    for (const struct semel_json_node *each = members(headers); each != NULL; each = each->next)
        if (semel__same_word(each->key, name))
            return text_of(each);
    return (struct semel_str){0};
}

/* The CloudEvents attribute of a header, "ce_time" or "ce-time"; not given: none. */
static struct semel_str attribute(struct semel_str name)
{
    if (name.n < 4 || name.n > 64 || memcmp(name.p, "ce", 2) != 0 || (name.p[2] != '_' && name.p[2] != '-'))
        return (struct semel_str){0};
    for (size_t i = 3; i < name.n; i++)
        if (!((name.p[i] >= 'a' && name.p[i] <= 'z') || (name.p[i] >= '0' && name.p[i] <= '9')))
            return (struct semel_str){0};
    struct semel_str rest = {name.p + 3, name.n - 3};
    return !semel__str_eqz(rest, "datacontenttype") ? rest : (struct semel_str){0};
}

/* CloudEvents' binary mode. A header that came as "ce-" is in the form of HTTP already; "ce_" is another binding's,
 * whose values are plain text. Of both the latter counts. */
static bool add_events(struct http_call *c, const struct semel_json *headers)
{
    for (const struct semel_json_node *each = members(headers); each != NULL; each = each->next) {
        struct semel_str attr = attribute(each->key), value = text_of(each);
        char name[72] = "ce-", plain[72] = "ce_";
        bool form = attr.n > 0 && each->key.p[2] == '-';
        if (attr.n == 0 || value.n == 0 || value.n > VALUE_MAX || (form && !semel__header_value_fits(value, VALUE_MAX)))
            continue;
        memcpy(name + 3, attr.p, attr.n);
        memcpy(plain + 3, attr.p, attr.n);
        if (is_fixed(c->http, semel__str(name)) || (form && semel__str_given(find(headers, plain))))
            continue;
        if (!add_line(c, semel__str(name), value, !form))
            return false;
    }
    return true;
}

static bool add_content_type(struct http_call *c, const struct semel_json *headers)
{
    static const char *const names[] = {"ce_datacontenttype", "ce-datacontenttype", "content-type", "content_type"};
    const struct semel__msg *msg = c->call.msg;
    if (is_fixed(c->http, SEMEL_STR("Content-Type")))
        return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct semel_str value = find(headers, names[i]);
        if (semel__header_value_fits(value, VALUE_MAX))
            return add_line(c, SEMEL_STR("Content-Type"), value, false);
    }
    struct semel_json *json = NULL;
    semel_status status = semel__json_parse(&json, msg->payload, msg->payload.n, NULL);
    semel__json_free(json);
    if (status == SEMEL_RETRY)
        return false;
    return add_text(c,
                    status == SEMEL_OK ? "Content-Type: application/json" : "Content-Type: application/octet-stream");
}

static bool add_trace(struct http_call *c, const struct semel_json *headers)
{
    char trace[SEMEL_TRACE_TEXT];
    struct semel_str state = find(headers, "tracestate");
    semel__call_trace(c->call.msg, &c->http->rng, trace);
    if (!add_line(c, SEMEL_STR("traceparent"), semel__str(trace), false))
        return false;
    struct semel_trace parent;
    bool continued = semel__str_given(c->call.msg->traceparent) &&
                     semel__trace_parse(c->call.msg->traceparent, &parent);
    if (!continued || !semel__header_value_fits(state, VALUE_MAX) || is_fixed(c->http, SEMEL_STR("tracestate")))
        return true;
    return add_line(c, SEMEL_STR("tracestate"), state, false);
}

static bool add_lines(struct http_call *c, const struct semel_json *headers)
{
    const struct semel_call *call = &c->call;
    char attempt[16];
    snprintf(attempt, sizeof attempt, "%d", call->attempt);
    bool ok = add_line(c, SEMEL_STR("Idempotency-Key"), semel__str(call->key), false) &&
              add_line(c, SEMEL_STR("Semel-Consumer"), call->consumer, true) &&
              add_line(c, SEMEL_STR("Semel-Message-Id"), call->msg->id, true) &&
              add_line(c, SEMEL_STR("Semel-Attempt"), semel__str(attempt), false) && add_trace(c, headers);
    for (size_t i = 0; i < c->http->n_fixed && ok; i++)
        ok = add_text(c, c->http->fixed[i]);
    if (call->ask)
        return ok;
    if (ok && semel__is_tombstone(call->msg))
        ok = add_text(c, "Semel-Tombstone: true");
    return ok && add_text(c, "Expect:") && add_content_type(c, headers) && add_events(c, headers);
}

/* ---- the request --------------------------------------------------------------------------------- */

static struct http_line *find_line(const struct http_caller *http, const struct http_line *line)
{
    for (size_t i = 0; i < 2 * http->base.concurrency; i++) {
        struct http_line *each = &http->lines[i];
        if (each->our_port == line->our_port && each->port == line->port && strcmp(each->address, line->address) == 0)
            return each;
    }
    return NULL;
}

/* The call ended, and its connection may be reused for as long as its answer allows. */
static void keep_line(const struct http_call *c)
{
    struct http_caller *http = c->http;
    struct http_line *line = c->line.our_port != 0 ? find_line(http, &c->line) : NULL;
    if (c->line.our_port == 0)
        return;
    for (size_t i = 0; line == NULL && i < 2 * http->base.concurrency; i++)
        if (http->lines[i].our_port == 0)
            line = &http->lines[i];
    if (line == NULL) { /* replaces the oldest: curl keeps fewer than there is room for */
        line = &http->lines[0];
        for (size_t i = 1; i < 2 * http->base.concurrency; i++)
            if (http->lines[i].fresh_until_us < line->fresh_until_us)
                line = &http->lines[i];
    }
    *line = c->line;
    line->fresh_until_us = semel__steady_us() + c->idle_us;
}

/* curl calls this when it is connected and has sent nothing: once. A second call means that curl sends the request
 * again. A server may close a connection that was idle for too long while the request is on its way (P94): nothing is
 * sent on it. */
/* NOLINTNEXTLINE(readability-non-const-parameter): the type is curl's */
static int before_request(void *ctx, char *their_address, char *our_address, int their_port, int our_port)
{
    struct http_call *c = ctx;
    (void)our_address;
    bool again = c->begun && !c->call.ask;
    c->line = (struct http_line){.port = their_port, .our_port = our_port};
    snprintf(c->line.address, sizeof c->line.address, "%s", their_address);
    struct http_line *used = c->fresh ? NULL : find_line(c->http, &c->line);
    c->stale = !again && used != NULL && semel__steady_us() > used->fresh_until_us;
    if (again || c->stale)
        return CURL_PREREQFUNC_ABORT;
    c->begun = true;
    return CURL_PREREQFUNC_OK;
}

#define SET(option, value) (code = code == CURLE_OK ? curl_easy_setopt(c->easy, option, value) : code)

static CURLcode set_rules(struct http_call *c)
{
    CURLcode code = semel__curl_rules(c->easy, &c->http->tls, c->http->timeout_ms, CONNECT_MS);
    SET(CURLOPT_PRIVATE, c);
    SET(CURLOPT_ERRORBUFFER, c->error);
    SET(CURLOPT_HTTPHEADER, c->lines);
    SET(CURLOPT_HEADERFUNCTION, on_head);
    SET(CURLOPT_HEADERDATA, c);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, c);
    SET(CURLOPT_PREREQFUNCTION, before_request);
    SET(CURLOPT_PREREQDATA, c);
    return code;
}

static semel_status set_target(struct http_call *c, struct semel_error *err)
{
    struct semel_buf url;
    const char *fault = NULL;
    CURLcode code = CURLE_OUT_OF_MEMORY;
    if (!c->call.ask) {
        code = curl_easy_setopt(c->easy, CURLOPT_URL, c->http->url);
        return code == CURLE_OK ? SEMEL_OK : semel__fail_memory(err);
    }
    semel__buf_init(&url, ASKED_MAX_BYTES);
    if (put_url(&url, c->http->reconcile_url, semel__str(c->call.key), c->call.msg->id)) {
        fault = path_fault(c->http->reconcile_url, c->call.msg->id);
        code = curl_easy_setopt(c->easy, CURLOPT_URL, url.p);
    }
    semel__buf_done(&url);
    if (fault != NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s", fault);
    return code == CURLE_OK ? SEMEL_OK : semel__fail_memory(err);
}

/* Everything that curl needs for the call, except where its answer goes. RETRY: no memory. INVALID: there is no URL for
 * this id, with the reason in err (only for a reconcile). */
static semel_status prepare(struct http_call *c, struct semel_error *err)
{
    struct semel_json *headers = NULL;
    struct semel_str kept = c->call.msg->headers;
    if (kept.n > 0 && semel__json_parse(&headers, kept, SEMEL_HEADERS_MAX, NULL) == SEMEL_RETRY)
        return semel__fail_memory(err);
    bool ok = add_lines(c, headers);
    semel__json_free(headers);
    if (!ok)
        return semel__fail_memory(err);
    c->easy = curl_easy_init();
    c->idle_us = HTTP_IDLE_US;
    if (c->easy == NULL || set_rules(c) != CURLE_OK)
        return semel__fail_memory(err);
    semel_status status = set_target(c, err);
    if (status != SEMEL_OK)
        return status;
    c->payload = (struct semel_curl_body){.all = c->call.msg->payload};
    if (!c->call.ask && semel__curl_post(c->easy, &c->payload) != CURLE_OK)
        return semel__fail_memory(err);
    return SEMEL_OK;
}

/* ==== the calls ================================================================================== */

#define POLL_MS 60000
#define POOR_POLL_MS 50 /* when curl cannot wait for lack of memory */

static struct http_caller *http_of(struct semel_caller *caller)
{
    return (struct http_caller *)caller;
}

static size_t n_calls(const struct http_caller *http)
{
    return 2 * http->base.concurrency;
}

static void wipe_lines(struct curl_slist *lines)
{
    for (struct curl_slist *each = lines; each != NULL; each = each->next)
        explicit_bzero(each->data, strlen(each->data));
    curl_slist_free_all(lines);
}

/* Frees the transfer and keeps the answer. */
static void drop_transfer(struct http_call *c)
{
    if (c->easy != NULL) {
        curl_multi_remove_handle(c->http->multi, c->easy);
        curl_easy_cleanup(c->easy);
    }
    wipe_lines(c->lines);
    c->easy = NULL;
    c->lines = NULL;
}

static void forget(struct http_call *c)
{
    struct http_caller *http = c->http;
    drop_transfer(c);
    semel__buf_done(&c->body);
    semel__buf_done(&c->outcome);
    *c = (struct http_call){.http = http};
}

/* ---- starting and ending ------------------------------------------------------------------------- */

static void http_start(struct semel_caller *caller, const struct semel_call *call)
{
    struct http_caller *http = http_of(caller);
    struct http_call *c = http->calls;
    while (c < http->calls + n_calls(http) && c->state != CALL_FREE)
        c++;
    assert(c < http->calls + n_calls(http)); /* otherwise more calls run than were agreed */

    *c = (struct http_call){.state = CALL_RUNS, .http = http, .call = *call};
    c->end = (struct semel_call_end){.tag = call->tag, .ask = call->ask};
    semel__buf_init(&c->body, SEMEL_CALL_ANSWER_MAX);
    semel__buf_init(&c->outcome, SEMEL_CALL_ANSWER_MAX);
    semel_status status = prepare(c, &c->end.err);
    if (status == SEMEL_INVALID && call->ask) {
        not_asked(c);
        c->state = CALL_ENDED;
        return;
    }
    if (status == SEMEL_OK && curl_multi_add_handle(http->multi, c->easy) != CURLM_OK)
        status = semel__fail_memory(&c->end.err);
    if (status == SEMEL_OK)
        return;
    c->end.status = status;
    c->state = CALL_ENDED;
}

/* Nothing was sent on the connection that curl had chosen: tries again on a new one. */
static bool on_another_line(struct http_call *c)
{
    if (!c->stale)
        return false;
    c->stale = false;
    c->fresh = true;
    curl_multi_remove_handle(c->http->multi, c->easy);
    return curl_easy_setopt(c->easy, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK &&
           curl_multi_add_handle(c->http->multi, c->easy) == CURLM_OK;
}

/* Takes ended transfers from curl. */
static void collect(struct http_caller *http)
{
    int left;
    for (CURLMsg *said; (said = curl_multi_info_read(http->multi, &left)) != NULL;) {
        struct http_call *c = NULL;
        CURLcode code = said->data.result;
        curl_easy_getinfo(said->easy_handle, CURLINFO_PRIVATE, &c);
        if (on_another_line(c))
            continue;
        judge(c, code);
        keep_line(c);
        c->state = CALL_ENDED;
        drop_transfer(c);
    }
}

static size_t report(struct http_caller *http, struct semel_call_end *ret_ends, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < n_calls(http) && n < max; i++) {
        struct http_call *c = &http->calls[i];
        if (c->state != CALL_ENDED)
            continue;
        ret_ends[n++] = c->end;
        c->state = CALL_REPORTED;
    }
    return n;
}

/* true: the wait is over: woken up, or the time has come. */
static bool rest(struct http_caller *http, int wake_fd)
{
    struct curl_waitfd extra[] = {{http->timer, CURL_WAIT_POLLIN, 0}, {wake_fd, CURL_WAIT_POLLIN, 0}};
    struct pollfd plain[] = {{.fd = http->timer, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    if (curl_multi_poll(http->multi, extra, wake_fd >= 0 ? 2 : 1, POLL_MS, NULL) != CURLM_OK) {
        poll(plain, 2, POOR_POLL_MS);
        return plain[0].revents != 0 || plain[1].revents != 0;
    }
    return extra[0].revents != 0 || (wake_fd >= 0 && extra[1].revents != 0);
}

static size_t http_wait(struct semel_caller *caller, int wait_ms, int wake_fd, struct semel_call_end *ret_ends,
                        size_t max)
{
    struct http_caller *http = http_of(caller);
    struct pipe_hold hold;
    size_t n;
    semel__pipe_hold(&hold);
    for (size_t i = 0; i < n_calls(http); i++)
        if (http->calls[i].state == CALL_REPORTED)
            forget(&http->calls[i]);
    semel__timer_set(http->timer, wait_ms < 0 ? -1 : (int64_t)wait_ms * 1000);
    for (bool over = wait_ms == 0;; over = rest(http, wake_fd)) {
        int running;
        curl_multi_perform(http->multi, &running);
        collect(http);
        n = report(http, ret_ends, max);
        if (n > 0 || over)
            break;
    }
    semel__pipe_release(&hold);
    return n;
}

static void http_cancel(struct semel_caller *caller)
{
    struct http_caller *http = http_of(caller);
    struct pipe_hold hold;
    semel__pipe_hold(&hold);
    for (size_t i = 0; i < n_calls(http); i++) {
        struct http_call *c = &http->calls[i];
        if (c->state != CALL_RUNS)
            continue;
        give_up(c);
        c->state = CALL_ENDED;
        drop_transfer(c);
    }
    semel__pipe_release(&hold);
}

static void http_free(struct semel_caller *caller)
{
    struct http_caller *http = http_of(caller);
    struct pipe_hold hold;
    semel__pipe_hold(&hold);
    for (size_t i = 0; http->calls != NULL && i < n_calls(http); i++)
        forget(&http->calls[i]);
    semel__curl_close(http->multi);
    if (http->timer >= 0)
        close(http->timer);
    for (size_t i = 0; i < http->n_fixed; i++)
        semel__call_wipe(http->fixed[i]);
    semel__call_wipe(http->url);
    semel__call_wipe(http->reconcile_url);
    semel__curl_tls_done(&http->tls);
    semel__free(http->fixed);
    semel__free(http->calls);
    semel__free(http->lines);
    semel__free(http->transient);
    semel__free(http);
    semel__pipe_release(&hold);
}

static const struct semel_caller_ops http_ops = {
    .name = "http",
    .start = http_start,
    .wait = http_wait,
    .cancel = http_cancel,
    .free = http_free,
};

/* ---- making one ---------------------------------------------------------------------------------- */

static bool copy_text(char **ret, const char *z)
{
    if (z == NULL)
        return true;
    *ret = semel__call_copy(semel__str(z));
    return *ret != NULL;
}

static semel_status copy_settings(struct http_caller *http, const struct semel_http_caller_settings *settings,
                                  struct semel_error *err)
{
    bool copied = copy_text(&http->url, settings->url) && copy_text(&http->reconcile_url, settings->reconcile_url) &&
                  semel__curl_tls_copy(&http->tls, &settings->tls);
    http->fixed = semel__calloc(settings->n_headers, sizeof *http->fixed);
    http->calls = semel__calloc(n_calls(http), sizeof *http->calls);
    http->lines = semel__calloc(n_calls(http), sizeof *http->lines);
    http->transient = semel__calloc(settings->n_transient + 1, sizeof *http->transient);
    if (!copied || http->fixed == NULL || http->calls == NULL || http->lines == NULL || http->transient == NULL)
        return semel__fail_memory(err);
    for (; http->n_transient < settings->n_transient; http->n_transient++)
        http->transient[http->n_transient] = settings->transient[http->n_transient];
    for (size_t i = 0; i < n_calls(http); i++)
        http->calls[i].http = http;
    semel_status status = check_url("the URL", http->url, err);
    if (status == SEMEL_OK && http->reconcile_url != NULL)
        status = check_url("the URL of the reconcile", http->reconcile_url, err);
    for (size_t i = 0; i < settings->n_headers && status == SEMEL_OK; i++) {
        status = fixed_line(&settings->headers[i], &http->fixed[i], err);
        http->n_fixed += status == SEMEL_OK;
    }
    return status;
}

static semel_status begin(struct http_caller *http, struct semel_error *err)
{
    char why[CALL_ERRNO_TEXT];
    http->timer = semel__timer_new();
    if (http->timer < 0)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no timer: %s", semel__call_errno(errno, why));
    http->multi = semel__curl_open(http->base.concurrency);
    if (http->multi == NULL || !semel__random_seed_os(&http->rng))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

semel_status semel__http_caller_new(struct semel_caller **ret, const struct semel_http_caller_settings *settings,
                                    struct semel_error *err)
{
    struct http_caller *http = semel__calloc(1, sizeof *http);
    if (http == NULL)
        return semel__fail_memory(err);
    http->base.ops = &http_ops;
    http->base.concurrency = settings->concurrency > 0 ? settings->concurrency : 1;
    http->base.can_ask = settings->reconcile_url != NULL;
    http->timeout_ms = settings->timeout_us < 1000 ? 1 : (long)(settings->timeout_us / 1000);
    http->idempotent = settings->idempotent;
    http->timer = -1;
    semel_status status = begin(http, err);
    if (status == SEMEL_OK)
        status = copy_settings(http, settings, err);
    if (status != SEMEL_OK) {
        http_free(&http->base);
        return status;
    }
    *ret = &http->base;
    return SEMEL_OK;
}
