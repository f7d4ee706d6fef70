/* SPDX-License-Identifier: MIT
 *
 * signature.h: signatures of webhooks: their settings, and whether a request has one.
 *
 * A scheme says in which header the signature is, how it is written, and what is signed. `standard` is Standard
 * Webhooks; `stripe`, `github` and `shopify` are those of the providers; `hmac` is any other HMAC, described by
 * settings. What is signed is the body as it came, byte for byte, and what the scheme puts around it. Nothing here
 * allocates, reads a clock or knows HTTP: the caller takes the headers of a request one by one, and passes the time.
 *
 * Invariants
 *  - A signature is good if one of the secrets gives one of the signatures in the header. All of them are computed and
 *    compared in full, so that the time reveals nothing about a secret or a signature.
 *  - A header that the scheme reads comes once; else the request has a wrong signature. An id in the signed content has
 *    no full stop and a time has digits only, so that the parts of the content cannot be cut in another way.
 *  - A time that was signed lies within the tolerance, before and after now. It is looked at after the signature.
 *  - No text contains a secret, or anything of the request.
 */
#ifndef SEMEL_BASE_SIGNATURE_H
#define SEMEL_BASE_SIGNATURE_H

#include "base/digest.h"
#include "base/setting.h"

enum semel_signature_scheme {
    SEMEL_SIGNATURE_STANDARD,
    SEMEL_SIGNATURE_STRIPE,
    SEMEL_SIGNATURE_GITHUB,
    SEMEL_SIGNATURE_SHOPIFY,
    SEMEL_SIGNATURE_HMAC
};

#define SEMEL_SIGNATURE_SECRETS 8 /* at a time */
#define SEMEL_SIGNATURE_SECRET_MAX 255
#define SEMEL_SIGNATURE_LIST_MAX 16  /* signatures in one header */
#define SEMEL_SIGNATURE_TEXT_MAX 100 /* of a setting */
#define SEMEL_SIGNATURE_WHY 160      /* of a reason, with its NUL */

/* The settings. */
struct semel_signature_options {
    bool on;
    enum semel_signature_scheme scheme;
    struct semel_setting_list secrets; /* the new one and the old ones */
    /* Of `hmac`: the header; what stands before the signature in it; the header of the time in seconds since 1970, if
     * one is signed; what is signed, with {timestamp} and {body} in it. */
    struct semel_str header, prefix, timestamp_header, content;
    enum semel_hash algorithm;
    int encoding; /* 0: hex, 1: base64 */
    int64_t tolerance_us;
};

extern const struct semel_setting_group semel__setting_signature; /* of a struct semel_signature_options */
/* Settings that contradict each other, below "signature"; secrets that the scheme cannot have. */
void semel__signature_settings(const struct semel_setting_check *check, const struct semel_signature_options *options);
/* Where the id and the type of a message are unless the route sets it, as rules; what changes in the body when it is
 * sent again, as a JSON pointer. NULL: no place of its own, nothing. */
void semel__signature_rules(const struct semel_signature_options *options, const char **ret_id, const char **ret_type,
                            const char **ret_count);
/* Is this header signed? Nobody but the sender can change it then; the body is always signed. */
bool semel__signature_signs(const struct semel_signature_options *options, struct semel_str header);
/* What is checked, as a clause: "signatures of Stripe by 2 secrets, at most 5m old". */
void semel__signature_describe(const struct semel_signature_options *options, struct semel_buf *buf);

#define SEMEL_SIGNATURE_KEY_MAX 64
/* The key of a secret of Standard Webhooks: "whsec_" and 24 to 64 bytes in base64. The result: what is wrong with the
 * secret, to go behind its name in a sentence; NULL: nothing. */
const char *semel__signature_standard_key(const char *secret, unsigned char ret[SEMEL_SIGNATURE_KEY_MAX],
                                          size_t *ret_n);

/* ---- checking ---- */

struct semel_signature_key {
    unsigned char bytes[SEMEL_SIGNATURE_SECRET_MAX];
    size_t n;
};

/* Ready to check; holds no pointer to the settings. */
struct semel_signature {
    enum semel_signature_scheme scheme;
    enum semel_hash hash;
    bool base64;
    char separator;  /* between signatures of one header; 0: there is one */
    bool inner_time; /* the time is an item t=... of the header */
    char header[SEMEL_SIGNATURE_TEXT_MAX + 1], prefix[SEMEL_SIGNATURE_TEXT_MAX + 1];
    char timestamp[SEMEL_SIGNATURE_TEXT_MAX + 1], id[SEMEL_SIGNATURE_TEXT_MAX + 1]; /* headers; empty: none */
    char content[SEMEL_SIGNATURE_TEXT_MAX + 1];
    int64_t tolerance_us;
    struct semel_signature_key keys[SEMEL_SIGNATURE_SECRETS];
    size_t n_keys;
};

/* The settings were checked by semel__signature_settings. false: no memory. */
bool semel__signature_init(struct semel_signature *signature, const struct semel_signature_options *options);
void semel__signature_done(struct semel_signature *signature); /* wipes the keys */

/* What a request has of it. */
struct semel_signed {
    struct semel_str signature, timestamp, id; /* not given: there is no such header */
    bool repeated;                             /* one of them came again */
};

/* One header of the request. */
void semel__signature_take(const struct semel_signature *signature, struct semel_signed *taken, struct semel_str name,
                           struct semel_str value);

#define SEMEL_SIGNATURE_RESULT_MAP(X) \
    X(GOOD, "good")                   \
    X(NONE, "no_signature")           \
    X(WRONG, "wrong_signature")       \
    X(OLD, "too_old")                 \
    X(NEW, "too_new")                 \
    X(FAILED, "failed") /* no memory, or the library does not have the algorithm */

enum semel_signature_result {
#define X(name, text) SEMEL_SIGNATURE_##name,
    SEMEL_SIGNATURE_RESULT_MAP(X)
#undef X
};
const char *semel__signature_word(enum semel_signature_result result);

/* `why` says what is wrong, for the sender; empty if nothing is. */
enum semel_signature_result semel__signature_check(const struct semel_signature *signature,
                                                   const struct semel_signed *taken, struct semel_str body,
                                                   int64_t now_us, char why[SEMEL_SIGNATURE_WHY]);

#endif
