/* SPDX-License-Identifier: MIT
 *
 * http_request.c: what is sent: the URL, the headers, the payload, and the rules that curl has to keep.
 *
 * Invariants: no byte of a message gets into a header line unless it is visible ASCII (else it is written as %XX, or
 * the header is left out), so no message can add a header or a request. What the route's fixed headers name is not
 * said a second time by a message. No error text holds the value of a header or a part of a URL. A message's id is one
 * segment of the path, or a part of one, whatever bytes it has: what a server could take for another path is not asked
 * (P84).
 */
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "base/wait.h"
#include "core/headers.h"
#include "core/row.h"
#include "handler/http_private.h"

#define LINE_MAX_BYTES ((size_t)16 * 1024)
#define URL_MAX_BYTES 2048                /* as it is configured */
#define ASKED_MAX_BYTES ((size_t)1 << 20) /* with key and id in it, as often as it names them */
#define VALUE_MAX 1024                    /* bytes of a message's header that is sent on */
#define CONNECT_MS 10000

/* ---- settings ------------------------------------------------------------------------------------ */

static bool put_url(struct semel_buf *buf, const char *url, struct semel_str key, struct semel_str id)
{
    while (*url != '\0') {
        if (strncmp(url, "{key}", 5) == 0) {
            semel__call_encode(buf, key, true);
            url += 5;
        } else if (strncmp(url, "{id}", 4) == 0) {
            semel__call_encode(buf, id, true);
            url += 4;
        } else {
            semel__buf_add(buf, url++, 1);
        }
    }
    return semel__buf_add(buf, "", 1);
}

/* Where the path begins, behind scheme and host; where it ends; and where host and port end. */
static const char *path_of(const char *url, const char **ret_end)
{
    const char *host = strstr(url, "://");
    host = host != NULL ? host + 3 : url;
    const char *path = host + strcspn(host, "/?#");
    *ret_end = path + strcspn(path, "?#");
    return path;
}

/* The byte that stands at *p in a URL or in an id, however often its % was encoded; *p moves behind it. */
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

/* How many dots it is; -1: something else is in it. */
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

/* How many dots a segment of the path is with the id in it; -1: it is not all dots, or has no id. */
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

/* What servers, and proxies before them, would make another path of: a segment of dots, a slash within the id. NULL:
 * the id can be asked for. */
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

semel_status semel__http_check_url(const char *what, const char *url, struct semel_error *err)
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
                              "%s is none that can be called; it must be http://HOST/PATH or https://HOST/PATH, of at "
                              "most %d bytes",
                              what, URL_MAX_BYTES);
}

static bool is_token(struct semel_str s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!fine && (c == '\0' || strchr("!#$%&'*+-.^_`|~", c) == NULL))
            return false;
    }
    return s.n > 0 && s.n <= 100;
}

/* Visible ASCII and blanks between. */
static bool is_clean(struct semel_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20 || (unsigned char)s.p[i] > 0x7e)
            return false;
    return s.n > 0 && s.n <= VALUE_MAX && s.p[0] != ' ' && s.p[s.n - 1] != ' ';
}

static bool is_named(struct semel_str s, const char *name)
{
    return s.n == strlen(name) && strncasecmp(s.p, name, s.n) == 0;
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
        if (is_named(name, ours[i]))
            return true;
    return false;
}

semel_status semel__http_fixed(const struct semel_pair *pair, char **ret_line, struct semel_error *err)
{
    char shown[64];
    struct semel_buf buf;
    semel__str_show(shown, sizeof shown, pair->name);
    if (!is_token(pair->name) || is_ours(pair->name))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "\"%s\" cannot be among the headers: it is %s",
                           shown, is_ours(pair->name) ? "one that Semel sets itself" : "no name of a header");
    for (size_t i = 0; i < pair->value.n; i++)
        if ((unsigned char)pair->value.p[i] < 0x20 || pair->value.p[i] == 0x7f)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "the value of the header %s has a control character; leave it out", shown);
    semel__buf_init(&buf, LINE_MAX_BYTES);
    semel__buf_add(&buf, pair->name.p, pair->name.n);
    semel__buf_addz(&buf, pair->value.n > 0 ? ": " : ";"); /* curl's way to say: with no value */
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
        if (strncasecmp(http->fixed[i], name.p, name.n) == 0 && strcspn(http->fixed[i], ":;") == name.n)
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
        semel__call_encode(&buf, value, false);
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
        if (is_named(each->key, name))
            return text_of(each);
    return (struct semel_str){0};
}

/* The attribute of CloudEvents that the header is, "ce_time" or "ce-time"; not given: none. */
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

/* CloudEvents' binary mode. What came as "ce-" is in the form of HTTP already; "ce_" is another binding's, whose values
 * are plain text. Of both the latter counts. */
static bool add_events(struct http_call *c, const struct semel_json *headers)
{
    for (const struct semel_json_node *each = members(headers); each != NULL; each = each->next) {
        struct semel_str attr = attribute(each->key), value = text_of(each);
        char name[72] = "ce-", plain[72] = "ce_";
        bool form = attr.n > 0 && each->key.p[2] == '-';
        if (attr.n == 0 || value.n == 0 || value.n > VALUE_MAX || (form && !is_clean(value)))
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
        if (is_clean(value))
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
    if (!continued || !is_clean(state) || is_fixed(c->http, SEMEL_STR("tracestate")))
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

static size_t give_payload(char *p, size_t size, size_t n, void *ctx)
{
    struct http_call *c = ctx;
    struct semel_str payload = c->call.msg->payload;
    size_t left = payload.n - c->given, take = size * n < left ? size * n : left;
    if (take > 0)
        memcpy(p, payload.p + c->given, take);
    c->given += take;
    return take;
}

static struct http_line *find_line(const struct http_caller *http, const struct http_line *line)
{
    for (size_t i = 0; i < 2 * http->base.concurrency; i++) {
        struct http_line *each = &http->lines[i];
        if (each->our_port == line->our_port && each->port == line->port && strcmp(each->address, line->address) == 0)
            return each;
    }
    return NULL;
}

void semel__http_keep_line(const struct http_call *c)
{
    struct http_caller *http = c->http;
    struct http_line *line = c->line.our_port != 0 ? find_line(http, &c->line) : NULL;
    if (c->line.our_port == 0)
        return;
    for (size_t i = 0; line == NULL && i < 2 * http->base.concurrency; i++)
        if (http->lines[i].our_port == 0)
            line = &http->lines[i];
    if (line == NULL) { /* the oldest goes: curl keeps fewer than there is room for */
        line = &http->lines[0];
        for (size_t i = 1; i < 2 * http->base.concurrency; i++)
            if (http->lines[i].fresh_until_us < line->fresh_until_us)
                line = &http->lines[i];
    }
    *line = c->line;
    line->fresh_until_us = semel__steady_us() + c->idle_us;
}

/* Called when a connection stands and nothing was sent: once. A second time is curl sending it again. A connection that
 * was idle for too long may be closed by its server while the request is on its way (P94): nothing is sent on it. */
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

static CURLcode set_tls(struct http_call *c)
{
    const struct http_caller *http = c->http;
    CURLcode code = CURLE_OK;
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_SSL_VERIFYPEER, http->verify ? 1L : 0L);
    SET(CURLOPT_SSL_VERIFYHOST, http->verify ? 2L : 0L);
    if (http->ca_file != NULL) { /* and nobody else: a folder of the system's is compiled into curl */
        SET(CURLOPT_CAINFO, http->ca_file);
        SET(CURLOPT_CAPATH, NULL);
    }
    if (http->cert_file != NULL)
        SET(CURLOPT_SSLCERT, http->cert_file);
    if (http->key_file != NULL)
        SET(CURLOPT_SSLKEY, http->key_file);
    if (http->key_password != NULL)
        SET(CURLOPT_KEYPASSWD, http->key_password);
    return code;
}

static CURLcode set_rules(struct http_call *c)
{
    CURLcode code = set_tls(c);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_TIMEOUT_MS, c->http->timeout_ms);
    SET(CURLOPT_CONNECTTIMEOUT_MS, c->http->timeout_ms < CONNECT_MS ? c->http->timeout_ms : (long)CONNECT_MS);
    SET(CURLOPT_PATH_AS_IS, 1L); /* dots in a path are not folded (P84) */
#if LIBCURL_VERSION_NUM >= 0x075700
    SET(CURLOPT_QUICK_EXIT, 1L); /* do not wait for a name server that does not answer */
#endif
    SET(CURLOPT_USERAGENT, "semel");
    SET(CURLOPT_PRIVATE, c);
    SET(CURLOPT_ERRORBUFFER, c->error);
    SET(CURLOPT_HTTPHEADER, c->lines);
    SET(CURLOPT_HEADERFUNCTION, semel__http_take_head);
    SET(CURLOPT_HEADERDATA, c);
    SET(CURLOPT_WRITEFUNCTION, semel__http_take_body);
    SET(CURLOPT_WRITEDATA, c);
    SET(CURLOPT_PREREQFUNCTION, before_request);
    SET(CURLOPT_PREREQDATA, c);
    return code;
}

static CURLcode set_payload(struct http_call *c)
{
    CURLcode code = CURLE_OK;
    SET(CURLOPT_POST, 1L);
    SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->call.msg->payload.n);
    if (c->call.msg->payload.n == 0) {
        SET(CURLOPT_POSTFIELDS, "");
        SET(CURLOPT_FRESH_CONNECT, 1L);
    } else {
        SET(CURLOPT_READFUNCTION, give_payload);
        SET(CURLOPT_READDATA, c);
    }
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

semel_status semel__http_prepare(struct http_call *c, struct semel_error *err)
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
    if (!c->call.ask && set_payload(c) != CURLE_OK)
        return semel__fail_memory(err);
    return SEMEL_OK;
}
