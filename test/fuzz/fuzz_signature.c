/* SPDX-License-Identifier: MIT
 *
 * fuzz_signature.c: requests with hostile signatures, under every scheme.
 *
 * The input: a byte whose low bits choose the scheme, and for `hmac` the hash and the encoding; then lines
 * NAME:VALUE, each a header; an empty line begins the body, which is the rest.
 *
 * What must hold: nothing is good, since the key is not known; the reason is printable and quotes no key. The body with
 * a signature that is made here is good, and without its last byte it is not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/signature.h"

#define MUST(condition) ((condition) ? (void)0 : broken(#condition, __LINE__))
#define NOW_S INT64_C(1700000000)

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void broken(const char *condition, int line)
{
    fprintf(stderr, "fuzz_signature.c:%d: does not hold: %s\n", line, condition);
    abort();
}

static const char secret[] = "whsec_Zm9ydHktdHdvIGJ5dGVzIHRoYXQgbm9ib2R5IGtub3dz";

static void open_signature(struct semel_signature *signature, unsigned how)
{
    static const struct semel_str secrets[] = {SEMEL_STR("whsec_Zm9ydHktdHdvIGJ5dGVzIHRoYXQgbm9ib2R5IGtub3dz")};
    struct semel_signature_options options = {.on = true,
                                              .scheme = (enum semel_signature_scheme)(how % 5),
                                              .secrets = {secrets, 1},
                                              .tolerance_us = INT64_C(300000000)};
    if (options.scheme == SEMEL_SIGNATURE_HMAC) {
        options.header = SEMEL_STR("s");
        options.prefix = how & 8 ? SEMEL_STR("v=") : (struct semel_str){NULL, 0};
        options.timestamp_header = how & 16 ? SEMEL_STR("t") : (struct semel_str){NULL, 0};
        options.algorithm = (enum semel_hash)(how / 32 % 3);
        options.encoding = how >= 128;
    }
    MUST(semel__signature_init(signature, &options));
}

static void check(const struct semel_signature *signature, const struct semel_signed *taken, struct semel_str body)
{
    char why[SEMEL_SIGNATURE_WHY];
    enum semel_signature_result result = semel__signature_check(signature, taken, body, NOW_S * INT64_C(1000000), why);
    MUST(result != SEMEL_SIGNATURE_GOOD && result != SEMEL_SIGNATURE_FAILED);
    MUST(result != SEMEL_SIGNATURE_OLD && result != SEMEL_SIGNATURE_NEW); /* only a good signature has a time */
    MUST(why[0] != '\0' && strstr(why, secret) == NULL);
    for (const char *p = why; *p != '\0'; p++)
        MUST((unsigned char)*p >= 0x20 && *p != 0x7f);
}

/* The body is GitHub's: its signature is good, and that of another body is not. */
static void check_body(struct semel_str body)
{
    struct semel_signature signature;
    unsigned char mac[SEMEL_HASH_MAX];
    char text[7 + 2 * SEMEL_SHA256 + 1] = "sha256=", why[SEMEL_SIGNATURE_WHY];
    open_signature(&signature, SEMEL_SIGNATURE_GITHUB);
    MUST(semel__hmac(SEMEL_HASH_SHA256, semel__str(secret), &body, 1, mac));
    semel__hex(mac, SEMEL_SHA256, text + 7);
    const struct semel_signed taken = {.signature = semel__str(text)};
    MUST(semel__signature_check(&signature, &taken, body, 0, why) == SEMEL_SIGNATURE_GOOD);
    if (body.n > 0)
        MUST(semel__signature_check(&signature, &taken, (struct semel_str){body.p, body.n - 1}, 0, why) ==
             SEMEL_SIGNATURE_WRONG);
    semel__signature_done(&signature);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct semel_signature signature;
    struct semel_signed taken = {0};
    struct semel_str text = {(const char *)data, size};
    if (size == 0)
        return 0;
    open_signature(&signature, data[0]);
    text = (struct semel_str){text.p + 1, text.n - 1};
    while (text.n > 0) {
        const char *end = memchr(text.p, '\n', text.n);
        const size_t n = end != NULL ? (size_t)(end - text.p) : text.n;
        const char *colon = memchr(text.p, ':', n);
        const struct semel_str line = text;
        text = (struct semel_str){text.p + n + (end != NULL), text.n - n - (end != NULL)};
        if (colon == NULL)
            break;
        const size_t name = (size_t)(colon - line.p);
        semel__signature_take(&signature, &taken, (struct semel_str){line.p, name},
                              (struct semel_str){colon + 1, n - name - 1});
    }
    check(&signature, &taken, text);
    check_body(text);
    semel__signature_done(&signature);
    return 0;
}
