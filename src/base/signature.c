/* SPDX-License-Identifier: MIT
 *
 * signature.c: signatures of webhooks. See signature.h.
 *
 *   scheme     header                  it holds                          what is signed
 *   standard   webhook-signature       "v1,BASE64", a blank between      webhook-id . webhook-timestamp . body
 *   stripe     Stripe-Signature        "t=SECONDS,v1=HEX", more v1=      t . body
 *   github     X-Hub-Signature-256     "sha256=HEX"                      body
 *   shopify    X-Shopify-Hmac-SHA256   "BASE64"                          body
 *   hmac       `header`                `prefix` and hex or base64        `content`
 *
 * The algorithm is SHA-256 everywhere but for `hmac`, which may set another one.
 */
#include "base/signature.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <strings.h>

#include "base/clock.h"

#define SECOND_US INT64_C(1000000)
#define TIME_DIGITS 12 /* of a time in seconds, at most */
#define SECRET_MIN 8
#define TOLERANCE_MAX_US (INT64_C(24) * 3600 * SECOND_US)

/* ---- the schemes ---------------------------------------------------------------------------------------- */

struct scheme {
    const char *whose, *header, *prefix, *timestamp, *id, *content;
    const char *id_rule, *type_rule, *count;
    bool base64, inner_time;
    char separator;
};

static const struct scheme schemes[] = {
    [SEMEL_SIGNATURE_STANDARD] = {.whose = "Standard Webhooks",
                                  .header = "webhook-signature",
                                  .prefix = "v1,",
                                  .timestamp = "webhook-timestamp",
                                  .id = "webhook-id",
                                  .content = "{id}.{timestamp}.{body}",
                                  .id_rule = "header:webhook-id",
                                  .base64 = true,
                                  .separator = ' '},
    [SEMEL_SIGNATURE_STRIPE] = {.whose = "Stripe",
                                .header = "Stripe-Signature",
                                .prefix = "v1=",
                                .content = "{timestamp}.{body}",
                                .id_rule = "json:/id",
                                .type_rule = "json:/type",
                                .count = "/pending_webhooks",
                                .inner_time = true,
                                .separator = ','},
    [SEMEL_SIGNATURE_GITHUB] = {.whose = "GitHub",
                                .header = "X-Hub-Signature-256",
                                .prefix = "sha256=",
                                .content = "{body}",
                                .id_rule = "header:X-GitHub-Delivery",
                                .type_rule = "header:X-GitHub-Event"},
    [SEMEL_SIGNATURE_SHOPIFY] = {.whose = "Shopify",
                                 .header = "X-Shopify-Hmac-SHA256",
                                 .content = "{body}",
                                 .id_rule = "header:X-Shopify-Webhook-Id",
                                 .type_rule = "header:X-Shopify-Topic",
                                 .base64 = true},
    [SEMEL_SIGNATURE_HMAC] = {.whose = "the settings"},
};

static const char *const scheme_words[] = {
    [SEMEL_SIGNATURE_STANDARD] = "standard", [SEMEL_SIGNATURE_STRIPE] = "stripe", [SEMEL_SIGNATURE_GITHUB] = "github",
    [SEMEL_SIGNATURE_SHOPIFY] = "shopify",   [SEMEL_SIGNATURE_HMAC] = "hmac",     NULL};
static const char *const hash_words[] = {
    [SEMEL_HASH_SHA256] = "sha256", [SEMEL_HASH_SHA512] = "sha512", [SEMEL_HASH_SHA1] = "sha1", NULL};
static const char *const encoding_words[] = {"hex", "base64", NULL};

/* ---- settings ------------------------------------------------------------------------------------------- */

#define IN(field) SEMEL_SETTING_IN(semel_signature_options, field)

static const struct semel_setting_spec settings[] = {
    {"scheme", SEMEL_SETTING_WORD, SEMEL_SETTING_REQUIRED, IN(scheme), .words = scheme_words,
     .help = "whose signatures; standard: Standard Webhooks, hmac: as the other settings describe them"},
    {"secret", SEMEL_SETTING_TEXTS, SEMEL_SETTING_REQUIRED | SEMEL_SETTING_SECRET, IN(secrets),
     SEMEL_SETTING_RANGE(SECRET_MIN, SEMEL_SIGNATURE_SECRET_MAX),
     .help = "what the sender signs with; a list of at most 8 while it changes"},
    {"tolerance", SEMEL_SETTING_TIME, 0, IN(tolerance_us), SEMEL_SETTING_RANGE(SECOND_US, TOLERANCE_MAX_US),
     .default_text = "5m",
     .help = "how old a signature may be, or how far ahead of our clock, where its time is signed"},
    {"header", SEMEL_SETTING_TEXT, SEMEL_SETTING_VISIBLE, IN(header), SEMEL_SETTING_RANGE(1, SEMEL_SIGNATURE_TEXT_MAX),
     .help = "of hmac: the header with the signature"},
    {"algorithm", SEMEL_SETTING_WORD, 0, IN(algorithm), .words = hash_words, .default_text = "sha256",
     .help = "of hmac: the hash; sha1 only for senders that have nothing else"},
    {"encoding", SEMEL_SETTING_WORD, 0, IN(encoding), .words = encoding_words, .default_text = "hex",
     .help = "of hmac: how the signature is written"},
    {"prefix", SEMEL_SETTING_TEXT, 0, IN(prefix), SEMEL_SETTING_RANGE(1, SEMEL_SIGNATURE_TEXT_MAX),
     .help = "of hmac: what stands before the signature in its header, such as sha256="},
    {"timestamp_header", SEMEL_SETTING_TEXT, SEMEL_SETTING_VISIBLE, IN(timestamp_header),
     SEMEL_SETTING_RANGE(1, SEMEL_SIGNATURE_TEXT_MAX),
     .help = "of hmac: the header with the time, in seconds since 1970, that is signed with the body"},
    {"content", SEMEL_SETTING_TEXT, 0, IN(content), SEMEL_SETTING_RANGE(1, SEMEL_SIGNATURE_TEXT_MAX),
     .default_note = "{body}; with timestamp_header {timestamp}.{body}", .help = "of hmac: what is signed"},
};
const struct semel_setting_group semel__setting_signature = SEMEL_SETTING_GROUP_OF(NULL, settings);

static const char whsec[] = "whsec_";

const char *semel__signature_standard_key(const char *secret, unsigned char ret[SEMEL_SIGNATURE_KEY_MAX], size_t *ret_n)
{
    const size_t n = sizeof whsec - 1;
    struct semel_arena arena;
    struct semel_str key = {NULL, 0};
    const char *mistake = NULL;

    if (secret == NULL || strncmp(secret, whsec, n) != 0)
        return "must begin with whsec_";
    semel__arena_init(&arena, 8192);
    if (semel__base64_read(semel__str(secret + n), &arena, &key) != SEMEL_BASE64_OK)
        mistake = "is no base64 behind whsec_";
    else if (key.n < 24 || key.n > SEMEL_SIGNATURE_KEY_MAX)
        mistake = "must stand for 24 to 64 bytes";
    if (mistake == NULL) {
        memcpy(ret, key.p, key.n);
        *ret_n = key.n;
    }
    if (key.n > 0)
        explicit_bzero((void *)(uintptr_t)key.p, key.n);
    semel__arena_done(&arena);
    return mistake;
}

static bool is_name(struct semel_str name)
{
    for (size_t i = 0; i < name.n; i++)
        if (!semel__is_letter(name.p[i]) && !semel__is_digit(name.p[i]) && strchr("-_.", name.p[i]) == NULL)
            return false;
    return true;
}

/* How often the name in braces stands in the content; *ret_at: where it stands first. */
static size_t count_braces(struct semel_str content, const char *name, size_t *ret_at)
{
    const size_t length = strlen(name);
    size_t n = 0;
    for (size_t i = 0; i + length <= content.n; i++)
        if (memcmp(content.p + i, name, length) == 0 && n++ == 0)
            *ret_at = i;
    return n;
}

static bool cuts(struct semel_str content, size_t at)
{
    return at >= content.n || (!semel__is_digit(content.p[at]) && strchr("{}", content.p[at]) == NULL);
}

/* NULL: the content is sound, and nobody can cut it into another time and another body. */
static const char *content_mistake(struct semel_str content, bool timed)
{
    static const char time[] = "{timestamp}";
    size_t at = 0, braces = 0;
    const size_t bodies = count_braces(content, "{body}", &at), times = count_braces(content, time, &at);

    for (size_t i = 0; i < content.n; i++)
        braces += content.p[i] == '{' || content.p[i] == '}';
    if (bodies != 1 || times > 1 || braces != 2 * (bodies + times))
        return "must have {body} once and {timestamp} at most once, and no other brace";
    if (timed != (times == 1))
        return timed ? "must have {timestamp} in it, else anybody could change the time"
                     : "has {timestamp} in it, which needs timestamp_header";
    if (times == 1 && (!cuts(content, at + sizeof time - 1) || (at > 0 && !cuts(content, at - 1))))
        return "must have something between {timestamp} and {body}, and no digit beside {timestamp}";
    return NULL;
}

static void check_hmac(const struct semel_setting_check *check, const struct semel_signature_options *o)
{
    const bool timed = semel__str_given(o->timestamp_header);
    const char *mistake = semel__str_given(o->content) ? content_mistake(o->content, timed) : NULL;

    if (!semel__str_given(o->header))
        semel__setting_wrong(check, "signature", "%s.signature lacks header: scheme hmac needs the header's name",
                             check->path);
    else if (!is_name(o->header) || (timed && !is_name(o->timestamp_header)))
        semel__setting_wrong(check, "signature", "%s.signature: a header's name is letters, digits and -", check->path);
    else if (timed && o->header.n == o->timestamp_header.n &&
             strncasecmp(o->header.p, o->timestamp_header.p, o->header.n) == 0)
        semel__setting_wrong(check, "signature.timestamp_header", "%s.signature has one header for two things",
                             check->path);
    if (mistake != NULL)
        semel__setting_wrong(check, "signature.content", "%s.signature.content %s", check->path, mistake);
    if (!timed && check->given(check, "signature.tolerance"))
        semel__setting_wrong(check, "signature.tolerance",
                             "%s.signature.tolerance has no meaning without timestamp_header: no time is signed",
                             check->path);
}

static void check_own(const struct semel_setting_check *check, const struct semel_signature_options *o)
{
    static const char *const of_hmac[] = {"header", "algorithm", "encoding", "prefix", "timestamp_header", "content"};
    const struct scheme *scheme = &schemes[o->scheme];
    unsigned char key[SEMEL_SIGNATURE_KEY_MAX];
    char setting[48];
    size_t n;

    for (size_t i = 0; i < sizeof of_hmac / sizeof of_hmac[0]; i++) {
        snprintf(setting, sizeof setting, "signature.%s", of_hmac[i]);
        if (check->given(check, setting))
            semel__setting_wrong(check, setting, "%s.%s is for scheme hmac; %s has its own: remove it", check->path,
                                 setting, scheme->whose);
    }
    if (check->given(check, "signature.tolerance") && scheme->timestamp == NULL && !scheme->inner_time)
        semel__setting_wrong(check, "signature.tolerance", "%s.signature.tolerance has no meaning: %s signs no time",
                             check->path, scheme->whose);
    for (size_t i = 0; o->scheme == SEMEL_SIGNATURE_STANDARD && i < o->secrets.n; i++) {
        const char *mistake = semel__signature_standard_key(o->secrets.at[i].p, key, &n);
        if (mistake != NULL)
            semel__setting_wrong(check, "signature.secret", "%s.signature.secret %s", check->path, mistake);
    }
    explicit_bzero(key, sizeof key);
}

void semel__signature_settings(const struct semel_setting_check *check, const struct semel_signature_options *options)
{
    if (!options->on)
        return;
    if (options->secrets.n > SEMEL_SIGNATURE_SECRETS)
        semel__setting_wrong(check, "signature.secret", "%s.signature.secret has %zu secrets; at most %d are allowed",
                             check->path, options->secrets.n, SEMEL_SIGNATURE_SECRETS);
    if (options->scheme == SEMEL_SIGNATURE_HMAC)
        check_hmac(check, options);
    else
        check_own(check, options);
}

void semel__signature_rules(const struct semel_signature_options *options, const char **ret_id, const char **ret_type,
                            const char **ret_count)
{
    const struct scheme *scheme = options->on ? &schemes[options->scheme] : NULL;
    *ret_id = scheme != NULL ? scheme->id_rule : NULL;
    *ret_type = scheme != NULL ? scheme->type_rule : NULL;
    *ret_count = scheme != NULL ? scheme->count : NULL;
}

bool semel__signature_signs(const struct semel_signature_options *options, struct semel_str header)
{
    const char *id = schemes[options->scheme].id;
    return id != NULL && semel__same_word(header, id);
}

void semel__signature_describe(const struct semel_signature_options *options, struct semel_buf *buf)
{
    const struct scheme *scheme = &schemes[options->scheme];
    const bool generic = options->scheme == SEMEL_SIGNATURE_HMAC;
    const bool timed = generic ? semel__str_given(options->timestamp_header)
                               : scheme->timestamp != NULL || scheme->inner_time;
    char tolerance[32];

    semel__duration_format(options->tolerance_us, tolerance, sizeof tolerance);
    if (generic)
        semel__buf_addf(buf, "an HMAC with %s in the header %.*s", hash_words[options->algorithm],
                        (int)options->header.n, options->header.p);
    else
        semel__buf_addf(buf, "a signature of %s", scheme->whose);
    semel__buf_addf(buf, ", by %zu secret%s", options->secrets.n, options->secrets.n == 1 ? "" : "s");
    if (timed)
        semel__buf_addf(buf, ", at most %s old", tolerance);
    else
        semel__buf_addz(buf, ", of any age");
}

/* ---- getting ready -------------------------------------------------------------------------------------- */

static void copy_text(char out[SEMEL_SIGNATURE_TEXT_MAX + 1], const char *own, struct semel_str said)
{
    if (own != NULL)
        said = semel__str(own);
    snprintf(out, SEMEL_SIGNATURE_TEXT_MAX + 1, "%.*s", (int)said.n, said.p != NULL ? said.p : "");
}

bool semel__signature_init(struct semel_signature *signature, const struct semel_signature_options *options)
{
    const struct scheme *scheme = &schemes[options->scheme];
    const bool timed = semel__str_given(options->timestamp_header);
    struct semel_str content = options->content;

    *signature = (struct semel_signature){.scheme = options->scheme,
                                          .hash = SEMEL_HASH_SHA256,
                                          .base64 = scheme->base64,
                                          .separator = scheme->separator,
                                          .inner_time = scheme->inner_time,
                                          .tolerance_us = options->tolerance_us,
                                          .n_keys = options->secrets.n};
    if (options->scheme == SEMEL_SIGNATURE_HMAC) {
        signature->hash = options->algorithm;
        signature->base64 = options->encoding == 1;
    }
    if (!semel__str_given(content))
        content = timed ? SEMEL_STR("{timestamp}.{body}") : SEMEL_STR("{body}");
    copy_text(signature->header, scheme->header, options->header);
    copy_text(signature->prefix, scheme->prefix, options->prefix);
    copy_text(signature->timestamp, scheme->timestamp, options->timestamp_header);
    copy_text(signature->id, scheme->id, (struct semel_str){NULL, 0});
    copy_text(signature->content, scheme->content, content);
    assert(options->secrets.n <= SEMEL_SIGNATURE_SECRETS);
    bool ok = true;
    for (size_t i = 0; i < options->secrets.n; i++) {
        struct semel_signature_key *key = &signature->keys[i];
        const struct semel_str secret = options->secrets.at[i];
        if (options->scheme == SEMEL_SIGNATURE_STANDARD) {
            ok = ok && semel__signature_standard_key(secret.p, key->bytes, &key->n) == NULL;
            continue;
        }
        assert(secret.n > 0 && secret.n <= sizeof key->bytes);
        memcpy(key->bytes, secret.p, secret.n);
        key->n = secret.n;
    }
    return ok;
}

void semel__signature_done(struct semel_signature *signature)
{
    explicit_bzero(signature, sizeof *signature);
}

/* ---- a request ------------------------------------------------------------------------------------------ */

void semel__signature_take(const struct semel_signature *signature, struct semel_signed *taken, struct semel_str name,
                           struct semel_str value)
{
    struct semel_str *place = semel__same_word(name, signature->header)      ? &taken->signature
                              : semel__same_word(name, signature->timestamp) ? &taken->timestamp
                              : semel__same_word(name, signature->id)        ? &taken->id
                                                                             : NULL;
    if (place == NULL || name.n == 0)
        return;
    taken->repeated |= place->p != NULL;
    *place = value.p != NULL ? value : (struct semel_str){"", 0};
}

static const char *const words[] = {
#define X(name, text) [SEMEL_SIGNATURE_##name] = text,
    SEMEL_SIGNATURE_RESULT_MAP(X)
#undef X
};

const char *semel__signature_word(enum semel_signature_result result)
{
    return words[result];
}

struct checking {
    const struct semel_signature *signature;
    struct semel_str listed[SEMEL_SIGNATURE_LIST_MAX]; /* without their prefixes */
    size_t n_listed;
    bool too_many;
    struct semel_str id, timestamp;
    size_t n_times;
    struct semel_str body;
    int64_t time_s;
    char *why;
};

__attribute__((format(printf, 3, 4))) static enum semel_signature_result refused(const struct checking *c,
                                                                                 enum semel_signature_result result,
                                                                                 const char *fmt, ...)
{
    static const char *const begin[] = {[SEMEL_SIGNATURE_NONE] = "no signature: ",
                                        [SEMEL_SIGNATURE_WRONG] = "wrong signature: ",
                                        [SEMEL_SIGNATURE_OLD] = "too old: ",
                                        [SEMEL_SIGNATURE_NEW] = "too new: ",
                                        [SEMEL_SIGNATURE_FAILED] = ""};
    const int n = snprintf(c->why, SEMEL_SIGNATURE_WHY, "%s", begin[result]);
    va_list args;

    va_start(args, fmt);
    vsnprintf(c->why + n, SEMEL_SIGNATURE_WHY - (size_t)n, fmt, args);
    va_end(args);
    return result;
}

static void parse_item(struct checking *c, struct semel_str item)
{
    const size_t n = strlen(c->signature->prefix);

    if (c->signature->inner_time && item.n >= 2 && memcmp(item.p, "t=", 2) == 0) {
        c->timestamp = (struct semel_str){item.p + 2, item.n - 2};
        c->n_times++;
    }
    if (item.n <= n || memcmp(item.p, c->signature->prefix, n) != 0)
        return;
    c->too_many |= c->n_listed == SEMEL_SIGNATURE_LIST_MAX;
    if (!c->too_many)
        c->listed[c->n_listed++] = (struct semel_str){item.p + n, item.n - n};
}

static void parse_items(struct checking *c, struct semel_str header)
{
    const char separator = c->signature->separator;

    while (header.n > 0) {
        const char *end = separator != '\0' ? memchr(header.p, separator, header.n) : NULL;
        const size_t n = end != NULL ? (size_t)(end - header.p) : header.n;
        size_t from = 0, to = n;
        while (from < to && header.p[from] == ' ') /* a proxy may have joined two headers into one */
            from++;
        while (to > from && header.p[to - 1] == ' ')
            to--;
        parse_item(c, (struct semel_str){header.p + from, to - from});
        header = (struct semel_str){header.p + n + (end != NULL), header.n - n - (end != NULL)};
    }
}

/* Digits only: whatever else a parser might take for the same time would be another text that is signed. */
static bool read_time(struct semel_str text, int64_t *ret)
{
    int64_t seconds = 0;
    for (size_t i = 0; i < text.n; i++) {
        if (!semel__is_digit(text.p[i]) || i == TIME_DIGITS)
            return false;
        seconds = seconds * 10 + (text.p[i] - '0');
    }
    *ret = seconds;
    return text.n > 0;
}

/* The parts of the content, in their order. */
static size_t cut_content(const struct checking *c, struct semel_str parts[SEMEL_HMAC_PARTS])
{
    const struct {
        struct semel_str name, value;
    } named[] = {{SEMEL_STR("{id}"), c->id}, {SEMEL_STR("{timestamp}"), c->timestamp}, {SEMEL_STR("{body}"), c->body}};
    struct semel_str rest = semel__str(c->signature->content);
    size_t n = 0;

    while (rest.n > 0) {
        size_t k = 0, length = 0;
        while (length < rest.n && rest.p[length] != '{')
            length++;
        if (length > 0) {
            parts[n++] = (struct semel_str){rest.p, length};
        } else {
            while (k < 3 && (rest.n < named[k].name.n || memcmp(rest.p, named[k].name.p, named[k].name.n) != 0))
                k++;
            assert(k < 3); /* the settings have no other brace */
            length = named[k].name.n;
            parts[n++] = named[k].value;
        }
        rest = (struct semel_str){rest.p + length, rest.n - length};
    }
    return n;
}

/* What the header would have to hold, of which the length is returned. */
static size_t write_text(const struct semel_signature *s, const unsigned char *mac, char out[2 * SEMEL_HASH_MAX + 1])
{
    const size_t size = semel__hash_size(s->hash);
    struct semel_buf buf;

    if (!s->base64) {
        semel__hex(mac, size, out);
        return 2 * size;
    }
    semel__buf_init(&buf, 2 * SEMEL_HASH_MAX);
    semel__base64_put(&buf, (struct semel_str){(const char *)mac, size});
    const size_t n = buf.failed ? 0 : buf.n;
    if (n > 0)
        memcpy(out, buf.p, n);
    if (buf.p != NULL)
        explicit_bzero(buf.p, buf.n);
    semel__buf_done(&buf);
    return n;
}

/* Digits of hex count in either case. */
static unsigned is_equal(const struct semel_signature *s, struct semel_str given, const char *text, size_t n)
{
    char lower[2 * SEMEL_HASH_MAX];

    if (given.n != n)
        return 0;
    for (size_t i = 0; i < n; i++)
        lower[i] = s->base64 ? given.p[i] : semel__lower(given.p[i]);
    return CRYPTO_memcmp(lower, text, n) == 0;
}

/* Every key against every signature, without an early end. */
static bool compare(const struct checking *c, bool *ret_good)
{
    const struct semel_signature *s = c->signature;
    struct semel_str parts[SEMEL_HMAC_PARTS];
    const size_t n_parts = cut_content(c, parts);
    unsigned good = 0;
    bool ok = true;

    for (size_t i = 0; ok && i < s->n_keys; i++) {
        unsigned char mac[SEMEL_HASH_MAX];
        char text[2 * SEMEL_HASH_MAX + 1];
        const struct semel_str key = {(const char *)s->keys[i].bytes, s->keys[i].n};
        size_t n = 0;
        ok = semel__hmac(s->hash, key, parts, n_parts, mac) && (n = write_text(s, mac, text)) > 0;
        for (size_t k = 0; ok && k < c->n_listed; k++)
            good |= is_equal(s, c->listed[k], text, n);
        explicit_bzero(mac, sizeof mac);
        explicit_bzero(text, sizeof text);
    }
    *ret_good = good != 0;
    return ok;
}

/* Is everything there that is signed? GOOD: yes. */
static enum semel_signature_result read_headers(struct checking *c, const struct semel_signed *taken)
{
    const struct semel_signature *s = c->signature;

    if (taken->repeated)
        return refused(c, SEMEL_SIGNATURE_WRONG, "one of its headers came twice");
    if (!semel__str_given(taken->signature))
        return refused(c, SEMEL_SIGNATURE_NONE, "there is no header %s", s->header);
    if (s->timestamp[0] != '\0' && !semel__str_given(taken->timestamp))
        return refused(c, SEMEL_SIGNATURE_NONE, "there is no header %s", s->timestamp);
    if (s->id[0] != '\0' && taken->id.n == 0)
        return refused(c, SEMEL_SIGNATURE_NONE, "there is no header %s", s->id);
    c->id = taken->id;
    c->timestamp = taken->timestamp;
    parse_items(c, taken->signature);
    if (c->n_listed == 0)
        return refused(c, SEMEL_SIGNATURE_NONE, "the header %s has none%s%s", s->header,
                       s->prefix[0] != '\0' ? " that begins with " : "", s->prefix);
    if (c->too_many)
        return refused(c, SEMEL_SIGNATURE_WRONG, "there are more than %d", SEMEL_SIGNATURE_LIST_MAX);
    if (c->id.n > 0 && memchr(c->id.p, '.', c->id.n) != NULL)
        return refused(c, SEMEL_SIGNATURE_WRONG, "the header %s must not have a full stop in it", s->id);
    if (s->inner_time ? c->n_times != 1 || !read_time(c->timestamp, &c->time_s)
                      : s->timestamp[0] != '\0' && !read_time(c->timestamp, &c->time_s))
        return refused(c, SEMEL_SIGNATURE_WRONG, "its time must be one number of seconds since 1970");
    return SEMEL_SIGNATURE_GOOD;
}

static enum semel_signature_result check_time(const struct checking *c, int64_t now_us)
{
    const int64_t age_us = now_us - c->time_s * SECOND_US, most_us = c->signature->tolerance_us;
    char most[32];

    if (age_us <= most_us && -age_us <= most_us)
        return SEMEL_SIGNATURE_GOOD;
    semel__duration_format(most_us, most, sizeof most);
    if (age_us > 0)
        return refused(c, SEMEL_SIGNATURE_OLD, "it was signed %llds ago, and at most %s are allowed",
                       (long long)(age_us / SECOND_US), most);
    return refused(c, SEMEL_SIGNATURE_NEW, "it was signed %llds ahead of this clock, and at most %s are allowed",
                   (long long)(-age_us / SECOND_US), most);
}

enum semel_signature_result semel__signature_check(const struct semel_signature *signature,
                                                   const struct semel_signed *taken, struct semel_str body,
                                                   int64_t now_us, char why[SEMEL_SIGNATURE_WHY])
{
    struct checking c = {.signature = signature, .body = body, .why = why};
    const enum semel_signature_result there = read_headers(&c, taken);
    bool good = false;

    why[0] = there == SEMEL_SIGNATURE_GOOD ? '\0' : why[0];
    if (there != SEMEL_SIGNATURE_GOOD)
        return there;
    if (!compare(&c, &good))
        return refused(&c, SEMEL_SIGNATURE_FAILED, "the signature could not be computed");
    if (!good)
        return refused(&c, SEMEL_SIGNATURE_WRONG, "no secret of this route gives it for this body");
    if (!signature->inner_time && signature->timestamp[0] == '\0')
        return SEMEL_SIGNATURE_GOOD;
    return check_time(&c, now_us);
}
