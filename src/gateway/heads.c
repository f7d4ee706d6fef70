/* SPDX-License-Identifier: MIT
 *
 * heads.c: targets, headers and peers; see heads.h.
 */
#include "gateway/heads.h"

#include <arpa/inet.h>
#include <assert.h>
#include <stdio.h>

#include "base/error.h"
#include "base/json_tree.h"

static_assert(SEMEL_PEER_TEXT == INET6_ADDRSTRLEN, "an address fits");

/* ==== headers ==================================================================================== */

bool semel__head_is_one_of(struct semel_str name, const char *const *names)
{
    for (; *names != NULL; names++)
        if (semel__same_word(name, *names))
            return true;
    return false;
}

bool semel__head_hop_by_hop(struct semel_str name)
{
    static const char *const names[] = {"connection",
                                        "keep-alive",
                                        "proxy-connection",
                                        "proxy-authenticate",
                                        "te",
                                        "trailer",
                                        "proxy-authorization",
                                        "upgrade",
                                        "transfer-encoding",
                                        "http2-settings",
                                        "content-length",
                                        NULL};
    return semel__head_is_one_of(name, names);
}

bool semel__head_ours(struct semel_str name)
{
    return semel__begins_with(name, "semel-");
}

/* The next word of a list with commas, without the blanks around it; false: there is none. */
static bool next_word(struct semel_str *list, struct semel_str *ret)
{
    if (list->n == 0)
        return false;
    const char *comma = memchr(list->p, ',', list->n);
    struct semel_str word = {list->p, comma != NULL ? (size_t)(comma - list->p) : list->n};
    size_t used = word.n + (comma != NULL ? 1 : 0);
    *list = (struct semel_str){list->p + used, list->n - used};
    while (word.n > 0 && (word.p[0] == ' ' || word.p[0] == '\t'))
        word = (struct semel_str){word.p + 1, word.n - 1};
    while (word.n > 0 && (word.p[word.n - 1] == ' ' || word.p[word.n - 1] == '\t'))
        word.n--;
    *ret = word;
    return true;
}

static bool same_name(struct semel_str a, struct semel_str b)
{
    if (a.n != b.n)
        return false;
    for (size_t i = 0; i < a.n; i++)
        if (semel__lower(a.p[i]) != semel__lower(b.p[i]))
            return false;
    return true;
}

bool semel__head_in_connection(const struct semel_http_pair *headers, size_t n, struct semel_str name)
{
    struct semel_str word;
    for (size_t i = 0; i < n; i++) {
        struct semel_str list = headers[i].value;
        if (!semel__same_word(headers[i].name, "connection"))
            continue;
        while (next_word(&list, &word))
            if (same_name(word, name))
                return true;
    }
    return false;
}

bool semel__head_answers(const struct semel_http_pair *headers, size_t n, struct semel_str name)
{
    return !semel__head_hop_by_hop(name) && !semel__head_ours(name) && !semel__head_in_connection(headers, n, name);
}

struct semel_str semel__head_find(const struct semel_http_pair *headers, size_t n, const char *name, size_t *ret_n)
{
    struct semel_str first = {NULL, 0};
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (semel__same_word(headers[i].name, name) && found++ == 0)
            first = headers[i].value;
    if (ret_n != NULL)
        *ret_n = found;
    return first;
}

void semel__head_put(struct semel_buf *lines, struct semel_str name, struct semel_str value)
{
    semel__buf_add(lines, name.p, name.n);
    semel__buf_addz(lines, ": ");
    semel__buf_add(lines, value.p, value.n);
    semel__buf_addz(lines, "\r\n");
}

/* ==== the target ================================================================================= */

/* The byte that an escape at p stands for; -1: malformed. */
static int unescape(const char *p, size_t n)
{
    int high = n > 2 ? semel__hex_value(p[1]) : -1;
    int low = high >= 0 ? semel__hex_value(p[2]) : -1;
    return low < 0 ? -1 : high << 4 | low;
}

/* A segment of the path. Fills *ret_dots with the number of its dots if there is nothing else in it. Servlet containers
 * cut parameters off, from a `;` on, before they look for dots: /..;a/ is /../ for them. */
static const char *segment_fault(struct semel_str segment, size_t *ret_dots)
{
    size_t dots = 0, others = 0;
    bool named = true; /* not behind a `;` */
    for (size_t i = 0; i < segment.n; i++) {
        int c = (unsigned char)segment.p[i];
        if (c == '%') {
            c = unescape(segment.p + i, segment.n - i);
            if (c < 0)
                return "the path has a malformed percent-escape";
            if (c == '/' || c == '\\' || c == 0)
                return "the path has an escaped slash, backslash or NUL";
            i += 2;
        } else if (c == '\\') {
            return "the path has a backslash";
        } else if (c == ';') {
            named = false;
        }
        dots += named && c == '.';
        others += named && c != '.';
    }
    *ret_dots = others == 0 ? dots : 0;
    return NULL;
}

const char *semel__target_fault(struct semel_str target)
{
    const char *query = memchr(target.p, '?', target.n);
    size_t n = query != NULL ? (size_t)(query - target.p) : target.n;
    if (n == 0 || target.p[0] != '/')
        return "the target must be a path";
    for (size_t at = 1; at <= n;) {
        const char *slash = memchr(target.p + at, '/', n - at);
        size_t end = slash != NULL ? (size_t)(slash - target.p) : n, dots = 0;
        if ((end == at || target.p[at] == ';') && end < n)
            return "the path has an empty segment";
        const char *fault = segment_fault((struct semel_str){target.p + at, end - at}, &dots);
        if (fault != NULL)
            return fault;
        if (dots == 1 || dots == 2)
            return "the path has a segment . or ..";
        at = end + 1;
    }
    return NULL;
}

/* ==== kept with an answer ======================================================================== */

/* Of one moment or one client. */
static bool is_kept(const struct semel_http_pair *headers, size_t n, const struct semel_http_pair *pair)
{
    static const char *const names[] = {"set-cookie",
                                        "set-cookie2",
                                        "date",
                                        "age",
                                        "retry-after",
                                        "idempotent-replayed",
                                        "via",
                                        "server-timing",
                                        "traceparent",
                                        "tracestate",
                                        "traceresponse",
                                        "b3",
                                        "x-request-id",
                                        "x-correlation-id",
                                        "x-trace-id",
                                        "x-amzn-trace-id",
                                        "x-cloud-trace-context",
                                        "alt-svc",
                                        NULL};
    static const char *const prefixes[] = {"ratelimit", "x-ratelimit", "x-rate-limit", "x-b3-", "x-datadog-", NULL};
    if (!semel__head_answers(headers, n, pair->name) || semel__head_is_one_of(pair->name, names))
        return false;
    for (size_t i = 0; prefixes[i] != NULL; i++)
        if (semel__begins_with(pair->name, prefixes[i]))
            return false;
    return semel__utf8_valid(pair->name) && semel__utf8_valid(pair->value);
}

void semel__heads_write(const struct semel_http_pair *headers, size_t n, struct semel_buf *text)
{
    bool first = true;
    semel__buf_addz(text, "[");
    for (size_t i = 0; i < n; i++) {
        if (!is_kept(headers, n, &headers[i]))
            continue;
        semel__buf_addz(text, first ? "[" : ",[");
        semel__json_put_string(text, headers[i].name);
        semel__buf_addz(text, ",");
        semel__json_put_string(text, headers[i].value);
        semel__buf_addz(text, "]");
        first = false;
    }
    semel__buf_addz(text, "]");
}

static bool is_text(const struct semel_json_node *node)
{
    return node != NULL && node->tag == SEMEL_JSON_TAG_STRING;
}

/* A row may have been written by others: what is no header is left out. */
static bool is_header(struct semel_str name, struct semel_str value)
{
    for (size_t i = 0; i < name.n; i++)
        if (!semel__http_tchar(name.p[i]))
            return false;
    for (size_t i = 0; i < value.n; i++)
        if (((unsigned char)value.p[i] < ' ' && value.p[i] != '\t') || value.p[i] == 0x7F)
            return false;
    return name.n > 0;
}

bool semel__heads_read(struct semel_str text, struct semel_arena *arena, struct semel_http_pair **ret, size_t *ret_n)
{
    struct semel_json *json = NULL;
    size_t n = 0;
    *ret = NULL;
    *ret_n = 0;
    if (text.n == 0)
        return true;
    if (semel__json_parse(&json, text, text.n, NULL) != SEMEL_OK || json->root->tag != SEMEL_JSON_TAG_ARRAY) {
        semel__json_free(json);
        return false;
    }
    for (const struct semel_json_node *each = json->root->u.first; each != NULL; each = each->next)
        n++;
    struct semel_http_pair *pairs = semel__arena_alloc(arena, n + 1, sizeof *pairs);
    bool sound = pairs != NULL;
    n = 0;
    for (const struct semel_json_node *each = json->root->u.first; sound && each != NULL; each = each->next) {
        const struct semel_json_node *name = each->tag == SEMEL_JSON_TAG_ARRAY ? each->u.first : NULL;
        const struct semel_json_node *value = name != NULL ? name->next : NULL;
        if (!is_text(name) || !is_text(value) || !is_header(name->u.text, value->u.text))
            continue;
        sound = semel__arena_copy(arena, name->u.text, &pairs[n].name) &&
                semel__arena_copy(arena, value->u.text, &pairs[n].value);
        if (sound && is_kept(pairs, 0, &pairs[n]))
            n++;
    }
    semel__json_free(json);
    *ret = pairs;
    *ret_n = n;
    return sound;
}

bool semel__head_is_cors(struct semel_str name)
{
    return semel__begins_with(name, "access-control-");
}

/* ==== whom we believe ============================================================================ */

static bool parse_ip(const char *text, unsigned char out[16], unsigned *ret_bits)
{
    static const unsigned char mapped[12] = {[10] = 0xFF, [11] = 0xFF};
    memcpy(out, mapped, sizeof(mapped));
    *ret_bits = 96;
    if (inet_pton(AF_INET, text, out + 12) == 1)
        return true;
    *ret_bits = 0;
    return inet_pton(AF_INET6, text, out) == 1;
}

semel_status semel__networks_add(struct semel_networks *networks, const char *text, struct semel_error *err)
{
    char address[INET6_ADDRSTRLEN];
    unsigned base = 0;
    int64_t bits = -1;
    if (strcmp(text, "unix") == 0) {
        networks->unix_sockets = true;
        return SEMEL_OK;
    }
    const char *slash = strchr(text, '/');
    size_t n = slash != NULL ? (size_t)(slash - text) : strlen(text);
    struct semel_network *network = &networks->list[networks->n];
    bool good = networks->n < SEMEL_NETWORKS_MAX && n < sizeof(address);
    if (good) {
        memcpy(address, text, n);
        address[n] = '\0';
        good = parse_ip(address, network->address, &base);
    }
    if (good && slash == NULL)
        bits = 128 - (int64_t)base;
    else if (good)
        good = semel__str_int64(semel__str(slash + 1), &bits);
    if (!good || bits < 0 || bits > 128 - (int64_t)base)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "trusted network \"%s\": must be one of at most %d such as 10.0.0.0/8 or ::1/128, or unix",
                           text, SEMEL_NETWORKS_MAX);
    network->base = base;
    network->bits = base + (unsigned)bits;
    networks->n++;
    return SEMEL_OK;
}

static bool in_network(const struct semel_network *network, const unsigned char address[16])
{
    unsigned whole = network->bits / 8, rest = network->bits % 8;
    if (memcmp(network->address, address, whole) != 0)
        return false;
    return rest == 0 || (network->address[whole] ^ address[whole]) >> (8 - rest) == 0;
}

bool semel__networks_have(const struct semel_networks *networks, struct semel_str remote, char out[SEMEL_PEER_TEXT])
{
    unsigned char address[16];
    unsigned base;
    size_t n = remote.n;
    if (semel__str_eqz(remote, "unix")) {
        snprintf(out, SEMEL_PEER_TEXT, "unix");
        return networks->unix_sockets;
    }
    while (n > 0 && remote.p[n - 1] != ':')
        n--;
    struct semel_str host = {remote.p, n > 0 ? n - 1 : 0};
    if (host.n > 2 && host.p[0] == '[')
        host = (struct semel_str){host.p + 1, host.n - 2};
    if (host.n >= SEMEL_PEER_TEXT)
        host.n = SEMEL_PEER_TEXT - 1;
    if (host.n > 0)
        memcpy(out, host.p, host.n);
    out[host.n] = '\0';
    if (networks->n == 0 || !parse_ip(out, address, &base))
        return false;
    for (size_t i = 0; i < networks->n; i++)
        if (networks->list[i].base == base && in_network(&networks->list[i], address))
            return true;
    return false;
}
