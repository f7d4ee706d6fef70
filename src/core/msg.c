/* SPDX-License-Identifier: MIT
 *
 * msg.c: fingerprints with their kind, and step keys.
 *
 * Equal fingerprints mean equal payloads. JSON is compared in its canonical form, so that white space and member
 * order do not make a conflict; a payload without a canonical form is compared by its bytes. The kind is part of the
 * value: a producer that changes from one to the other causes no false conflict.
 */
#include "core/msg.h"

#include <string.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "core/row.h"

void semel__msg_init(struct semel__msg *msg)
{
    *msg = (struct semel__msg){.version = SEMEL_NONE,
                               .message_time_us = SEMEL_NONE,
                               .envelope_time_us = SEMEL_NONE,
                               .not_before_us = SEMEL_NONE};
}

bool semel__msg_copy(struct semel_arena *arena, const struct semel__msg *msg, struct semel__msg *ret)
{
    struct semel__msg copy = *msg;
    struct semel_str *strings[] = {&copy.source,   &copy.id,         &copy.type,        &copy.payload,
                                   &copy.headers,  &copy.position,   &copy.traceparent, &copy.order_key,
                                   &copy.lock_key, &copy.defect_text};
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++)
        if (!semel__arena_copy(arena, *strings[i], strings[i]))
            return false;
    for (size_t i = 0; i < copy.n_business; i++)
        if (!semel__arena_copy(arena, copy.business[i], &copy.business[i]))
            return false;
    *ret = copy;
    return true;
}

static bool looks_like_json(struct semel_str payload)
{
    for (size_t i = 0; i < payload.n; i++) {
        char c = payload.p[i];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return c == '{' || c == '[' || c == '"' || c == '-' || (c >= '0' && c <= '9') || c == 't' || c == 'f' ||
                   c == 'n';
    }
    return false;
}

/* Most payloads need no tree for it. fp->kind stays NONE when this one does. */
static semel_status short_digest(struct semel_str payload, struct semel_fp *fp, struct semel_error *err)
{
    char form[SEMEL_JSON_SHORT];
    const struct semel_str text = {form, semel__json_short(payload, form)};
    if (text.n == 0)
        return SEMEL_OK;
    fp->kind = SEMEL_FP_JSON;
    return semel__sha256(&text, 1, fp->bytes) ? SEMEL_OK : semel__fail_memory(err);
}

/* fp->kind stays NONE when the document has no canonical form. */
static semel_status json_digest(struct semel_str payload, const struct semel_json *json, struct semel_fp *fp,
                                struct semel_error *err)
{
    struct semel_buf buf;
    bool exact = false;
    /* Canonical text can be longer than the source: an escape grows by six at most, a number by less. */
    semel__buf_init(&buf, payload.n * 6 + 64);
    semel__buf_add(&buf, payload.p, payload.n); /* most often it has the same length: that much room at once */
    buf.n = 0;
    semel_status status = semel__json_canonical(json, &buf, &exact, err);
    if (status == SEMEL_OK && exact) {
        struct semel_str text = semel__buf_str(&buf);
        fp->kind = SEMEL_FP_JSON;
        if (!semel__sha256(&text, 1, fp->bytes))
            status = semel__fail_memory(err);
    } else if (status == SEMEL_INVALID) {
        status = SEMEL_OK; /* longer than that: compared by its bytes */
    }
    semel__buf_done(&buf);
    return status;
}

/* The digest of the tree, which is made here if nobody has made one. */
static semel_status tree_digest(struct semel_str payload, const struct semel_json *json, struct semel_fp *fp,
                                struct semel_error *err)
{
    struct semel_json *own = NULL;
    if (json == NULL) {
        semel_status status = semel__json_parse(&own, payload, SEMEL_PAYLOAD_HARD_MAX, err);
        if (status != SEMEL_OK)
            return status == SEMEL_INVALID ? SEMEL_OK : status;
    }
    semel_status status = json_digest(payload, json != NULL ? json : own, fp, err);
    semel__json_free(own);
    return status;
}

semel_status semel__fp_compute_json(struct semel_str payload, const struct semel_json *json, bool parsed, bool cut,
                                    struct semel_fp *ret, struct semel_error *err)
{
    struct semel_fp fp = {.n = SEMEL_FP_DIGEST};
    const bool maybe = looks_like_json(payload) && (json != NULL || !parsed);
    semel_status status = maybe && !cut ? short_digest(payload, &fp, err) : SEMEL_OK;
    if (status == SEMEL_OK && maybe && fp.kind == SEMEL_FP_NONE)
        status = tree_digest(payload, json, &fp, err);
    if (status == SEMEL_OK && fp.kind == SEMEL_FP_NONE) {
        fp.kind = SEMEL_FP_RAW;
        if (!semel__sha256(&payload, 1, fp.bytes))
            status = semel__fail_memory(err);
    }
    if (status == SEMEL_OK)
        *ret = fp;
    return status;
}

semel_status semel__fp_compute(struct semel_str payload, struct semel_fp *ret, struct semel_error *err)
{
    return semel__fp_compute_json(payload, NULL, false, false, ret, err);
}

bool semel__fp_differs(const struct semel_fp *a, const struct semel_fp *b)
{
    if (a->kind == SEMEL_FP_NONE || a->kind != b->kind)
        return false;
    return a->n != b->n || memcmp(a->bytes, b->bytes, a->n) != 0;
}

size_t semel__fp_encode(const struct semel_fp *fp, unsigned char out[1 + SEMEL_FP_MAX])
{
    if (fp->kind == SEMEL_FP_NONE)
        return 0;
    out[0] = fp->kind;
    memcpy(out + 1, fp->bytes, fp->n);
    return 1u + fp->n;
}

bool semel__fp_decode(struct semel_str stored, struct semel_fp *ret)
{
    *ret = (struct semel_fp){0};
    if (stored.p == NULL)
        return true;
    if (stored.n < 2 || stored.n > 1 + SEMEL_FP_MAX)
        return false;
    unsigned char kind = (unsigned char)stored.p[0];
    if (kind != SEMEL_FP_RAW && kind != SEMEL_FP_JSON && kind != SEMEL_FP_CALLER && kind != SEMEL_FP_HTTP)
        return false;
    ret->kind = kind;
    ret->n = (unsigned char)(stored.n - 1);
    memcpy(ret->bytes, stored.p + 1, stored.n - 1);
    return true;
}

bool semel__step_key(struct semel_str consumer, struct semel_str source, struct semel_str id, struct semel_str step,
                     char out[SEMEL_STEP_KEY_TEXT])
{
    const struct semel_str fields[] = {consumer, source, id, step};
    char lengths[4][8];
    struct semel_str parts[8];
    unsigned char digest[SEMEL_SHA256];
    for (size_t i = 0; i < 4; i++) {
        for (size_t b = 0; b < 8; b++)
            lengths[i][b] = (char)(fields[i].n >> (56 - 8 * b) & 0xff);
        parts[2 * i] = (struct semel_str){lengths[i], 8};
        parts[2 * i + 1] = fields[i];
    }
    if (!semel__sha256(parts, 8, digest))
        return false;
    semel__hex(digest, sizeof digest, out);
    return true;
}
