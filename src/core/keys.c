/* SPDX-License-Identifier: MIT
 *
 * keys.c: the rules of idempotency keys; see keys.h.
 */
#include "core/keys.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

enum semel_key_act semel__key_judge(const struct semel_idempotency *row, const struct semel_fp *fp, int64_t now_us,
                                    struct semel_str *ret_why)
{
    enum semel_effect effect = SEMEL_EFFECT_OUTSIDE;
    bool completed = row->status == SEMEL_ROW_COMPLETED, processing = row->status == SEMEL_ROW_PROCESSING;
    *ret_why = SEMEL_STR("new");
    if (row->status == SEMEL_ROW_ABSENT || (completed && row->key_until_us <= now_us))
        return SEMEL_KEY_RUN;
    *ret_why = SEMEL_STR("fingerprint");
    if (semel__fp_differs(fp, &row->fp))
        return SEMEL_KEY_MISMATCH;
    if (completed) {
        bool kept = semel__str_given(row->body) && row->answer_until_us > now_us;
        *ret_why = kept ? SEMEL_STR("completed") : SEMEL_STR("no_body");
        return SEMEL_KEY_REPLAY;
    }
    *ret_why = SEMEL_STR("running");
    if (processing && (row->lease_until_us == SEMEL_NONE || row->lease_until_us >= now_us))
        return SEMEL_KEY_BUSY;
    (void)semel__token_effect(row->token, &effect);
    *ret_why = SEMEL_STR("retry");
    if (effect == SEMEL_EFFECT_KEYED || (effect == SEMEL_EFFECT_ATOMIC && processing))
        return SEMEL_KEY_RUN;
    *ret_why = processing ? SEMEL_STR("lease_expired") : row->cause.n > 0 ? row->cause : SEMEL_STR("unknown");
    return SEMEL_KEY_UNKNOWN;
}

/* ---- what callers pass --------------------------------------------------------------------------- */

static bool digits(struct semel_str *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (i >= s->n || !semel__is_digit(s->p[i]))
            return false;
    s->p += n;
    s->n -= n;
    return true;
}

/* Cuts one of these characters, if it is there. */
static bool one_of(struct semel_str *s, const char *chars)
{
    if (s->n == 0 || strchr(chars, s->p[0]) == NULL)
        return false;
    s->p++;
    s->n--;
    return true;
}

/* HH:MM, with or without seconds, fraction and zone, to the end. */
static bool is_clock(struct semel_str s)
{
    (void)one_of(&s, "T ");
    if (!digits(&s, 2) || ((void)one_of(&s, ":"), !digits(&s, 2)))
        return false;
    bool colon = one_of(&s, ":");
    if (digits(&s, 2)) {
        if (one_of(&s, ".,") && !digits(&s, 1))
            return false;
        while (digits(&s, 1))
            ;
    } else if (colon) {
        return false;
    }
    if (one_of(&s, "+-") && (!digits(&s, 2) || ((void)one_of(&s, ":"), !digits(&s, 2))))
        return false;
    (void)one_of(&s, "Z");
    return s.n == 0;
}

/* Seconds to nanoseconds since 1970, or a date and a time of day as ISO 8601 writes them. */
static bool is_time(struct semel_str key)
{
    struct semel_str rest = key;
    if (key.n == 0 || (key.p[0] != '1' && key.p[0] != '2'))
        return false;
    if ((key.n == 10 || key.n == 13 || key.n == 16 || key.n == 19) && digits(&rest, key.n))
        return true;
    rest = key;
    if (!digits(&rest, 4) || ((void)one_of(&rest, "-"), !digits(&rest, 2)) ||
        ((void)one_of(&rest, "-"), !digits(&rest, 2)))
        return false;
    return rest.n == 0 || is_clock(rest);
}

semel_status semel__key_check(struct semel_str scope, struct semel_str key, size_t min, bool *ret_is_time,
                              struct semel_error *err)
{
    if (scope.n < 1 || scope.n > SEMEL_ID_MAX || !semel__utf8_valid(scope))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "scope has %zu bytes; it must name the caller in 1 to %d bytes of UTF-8", scope.n,
                           SEMEL_ID_MAX);
    for (size_t i = 0; i < key.n; i++)
        if (key.p[i] < ' ' || key.p[i] > '~')
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "key has a character that is not printable ASCII");
    if (key.n < min || key.n > SEMEL_ID_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "key has %zu characters; it must have %zu to %d",
                           key.n, min, SEMEL_ID_MAX);
    *ret_is_time = is_time(key);
    return SEMEL_OK;
}

semel_status semel__key_check_lifetimes(int64_t answer_us, int64_t keep_us, struct semel_error *err)
{
    if (answer_us < SEMEL_ANSWER_US || keep_us > SEMEL_KEEP_MAX_US)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "answer must be at least 24 hours, and keep at most 3650 days");
    if (keep_us < answer_us)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "keep must be at least as long as answer: a key outlives its answer");
    return SEMEL_OK;
}

/* Is the text of this element an array of two strings? */
static bool is_pair(struct semel_str text)
{
    struct semel_str name, value;
    size_t from = 0, n = 0;
    if (text.n == 0 || text.p[0] != '[')
        return false;
    while (semel__json_next(text, &from, &name, &value)) {
        if (value.n == 0 || value.p[0] != '"')
            return false;
        n++;
    }
    return n == 2;
}

semel_status semel__key_check_headers(struct semel_str headers, struct semel_error *err)
{
    struct semel_json *json;
    struct semel_str name, pair;
    size_t from = 0;
    if (headers.n > SEMEL_ANSWER_HEADERS_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "headers have %zu bytes; at most %d are allowed",
                           headers.n, SEMEL_ANSWER_HEADERS_MAX);
    semel_status status = semel__json_parse(&json, headers, SEMEL_ANSWER_HEADERS_MAX, err);
    if (status == SEMEL_RETRY)
        return status;
    bool sound = status == SEMEL_OK;
    if (sound)
        semel__json_free(json);
    while (headers.n > 0 && strchr(" \t\r\n", headers.p[0]) != NULL)
        headers.p++, headers.n--;
    sound = sound && headers.p[0] == '[';
    while (sound && semel__json_next(headers, &from, &name, &pair))
        sound = is_pair(pair);
    return sound ? SEMEL_OK
                 : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "headers must be a JSON array of pairs such as [[\"content-type\", "
                               "\"application/json\"]]");
}

semel_status semel__key_fingerprint(struct semel_str given, struct semel_fp *ret, struct semel_error *err)
{
    *ret = (struct semel_fp){.kind = SEMEL_FP_NONE};
    if (!semel__str_given(given))
        return SEMEL_OK;
    if (given.n < 1 || given.n >= SEMEL_FP_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "fingerprint has %zu bytes; it must have 1 to %d",
                           given.n, SEMEL_FP_MAX - 1);
    bool http = given.n == 33 && given.p[0] == SEMEL_FP_HTTP;
    ret->kind = http ? SEMEL_FP_HTTP : SEMEL_FP_CALLER;
    ret->n = (unsigned char)(given.n - http);
    memcpy(ret->bytes, given.p + http, ret->n);
    return SEMEL_OK;
}

/* ---- ends ---------------------------------------------------------------------------------------- */

static const char *end_name(enum semel_key_end end)
{
    static const char *const names[] = {
#define X(name, text) text,
        SEMEL_KEY_END_MAP(X)
#undef X
    };
    return names[end];
}

const char *semel__key_act_name(enum semel_key_act act)
{
    static const char *const names[] = {"unset",
#define X(name, text) text,
                                        SEMEL_KEY_ACT_MAP(X)
#undef X
    };
    return names[act];
}

static bool end_said(struct semel_str said, enum semel_key_end *ret)
{
    for (unsigned end = SEMEL_KEY_END_COMPLETED; end <= SEMEL_KEY_END_UNKNOWN; end++)
        if (semel__same_word(said, end_name((enum semel_key_end)end))) {
            *ret = (enum semel_key_end)end;
            return true;
        }
    return false;
}

enum semel_key_end semel__key_outcome(const struct semel_key_answer *answer, const struct semel_key_rule *rules,
                                      size_t n_rules)
{
    enum semel_key_end end;
    int code = answer->code;
    if (!answer->sent)
        return SEMEL_KEY_END_RELEASED;
    if (!answer->whole)
        return SEMEL_KEY_END_UNKNOWN;
    if (end_said(answer->said, &end))
        return end;
    for (size_t i = 0; i < n_rules; i++)
        if (code >= rules[i].low && code <= rules[i].high)
            return rules[i].end;
    if ((code >= 200 && code <= 399) || code == 402 || code == 410)
        return SEMEL_KEY_END_COMPLETED;
    return code >= 400 && code <= 499 ? SEMEL_KEY_END_RELEASED : SEMEL_KEY_END_UNKNOWN;
}

bool semel__key_may_run(const struct semel_idempotency *row, enum semel_on_unknown policy, enum semel_reconciled said,
                        int64_t settle_us, int64_t now_us)
{
    if (policy == SEMEL_ON_UNKNOWN_RETRY)
        return true;
    return policy == SEMEL_ON_UNKNOWN_RECONCILE && said == SEMEL_RECONCILED_NOT_DONE &&
           now_us - row->updated_us >= settle_us;
}
