/* SPDX-License-Identifier: MIT
 *
 * msg.h: a message as the rules see it, and its fingerprint.
 *
 * Invariants: all strings are borrowed; `id`, `source`, keys are valid UTF-8 of at most
 * SEMEL_ID_MAX bytes unless `defect` says otherwise. Two fingerprints are comparable only when
 * both are given and of the same kind; what cannot be compared is not a conflict.
 */
#ifndef SEMEL_CORE_MSG_H
#define SEMEL_CORE_MSG_H

#include "semel/types.h"

#define SEMEL_BUSINESS_MAX 4
#define SEMEL_FP_MAX 64
#define SEMEL_FP_DIGEST 16 /* of a digest, that much is kept */

/* The kind is stored as one letter before the bytes: the column reads as 'r...' or 'j...'. */
enum semel_fp_kind {
    SEMEL_FP_NONE = 0,
    SEMEL_FP_RAW = 'r',
    SEMEL_FP_JSON = 'j',
    SEMEL_FP_CALLER = 'c',
    SEMEL_FP_HTTP = 'h' /* of a request (fingerprint.h) */
};

struct semel_fp {
    unsigned char kind, n;
    unsigned char bytes[SEMEL_FP_MAX];
};

/* 16 bytes of the SHA-256 of the payload: of its canonical form when it is JSON that has one, else of the bytes. */
semel_status semel__fp_compute(struct semel_str payload, struct semel_fp *ret, struct semel_error *err);
/* The same for a payload that has been parsed already; json is NULL when it turned out not to be JSON.
 * `cut`: something was taken out of it that does not count. */
struct semel_json;
semel_status semel__fp_compute_json(struct semel_str payload, const struct semel_json *json, bool parsed, bool cut,
                                    struct semel_fp *ret, struct semel_error *err);
bool semel__fp_differs(const struct semel_fp *a, const struct semel_fp *b); /* comparable and not equal */
/* The stored form: the kind and the bytes. decode: false when it is not one of ours. */
size_t semel__fp_encode(const struct semel_fp *fp, unsigned char out[1 + SEMEL_FP_MAX]); /* 0: none, stored as NULL */
bool semel__fp_decode(struct semel_str stored, struct semel_fp *ret);

/* A defect of the message itself, found while its fields were extracted. */
enum semel_defect { SEMEL_DEFECT_NONE, SEMEL_DEFECT_NO_ID, SEMEL_DEFECT_FIELD, SEMEL_DEFECT_SIZE };

struct semel__msg {
    struct semel_str source, id, type;
    struct semel_str payload, headers; /* headers: the text of a JSON object */
    struct semel_str position, traceparent;
    struct semel_str order_key, lock_key; /* lock_key sorts a batch where there is no order key */
    struct semel_str business[SEMEL_BUSINESS_MAX];
    size_t n_business;
    struct semel_fp fp;
    int64_t version, message_time_us; /* SEMEL_NONE: not given; admit then sets the time from its id */
    int64_t envelope_time_us;         /* used where its id has no time either */
    int64_t not_before_us;            /* of a put: it does not run before; SEMEL_NONE: at once */
    bool timed;                       /* it must have a time */
    int delivery;                     /* 1: first delivery, more: redelivery, 0: the source does not know */
    enum semel_defect defect;
    struct semel_str defect_text;
};

void semel__msg_init(struct semel__msg *msg);
/* A copy of the message with its strings in the arena. false: no memory. */
struct semel_arena;
bool semel__msg_copy(struct semel_arena *arena, const struct semel__msg *msg, struct semel__msg *ret);

/* The key of an outside call (E1): the same for the same consumer, message and step, for ever and on
 * every machine. 64 hexadecimal digits of SHA-256 over the length-prefixed parts. */
#define SEMEL_STEP_KEY_TEXT 65
bool semel__step_key(struct semel_str consumer, struct semel_str source, struct semel_str id, struct semel_str step,
                     char out[SEMEL_STEP_KEY_TEXT]);

#endif
