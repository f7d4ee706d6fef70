/* SPDX-License-Identifier: MIT
 *
 * digest.c: SHA-256 and MD5 by OpenSSL's EVP interface.
 *
 * The algorithm is looked up once a process and kept until it ends: the look-up costs more than the digest of a
 * short message. Where it failed, for lack of memory, every digest looks it up by itself.
 *
 * Invariants: the parts are hashed as one string, without separators (a caller who needs the
 * borders hashes lengths too); `out` is written only on success.
 */
#include "base/digest.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static EVP_MD *fetched;

static void fetch(void)
{
    fetched = EVP_MD_fetch(NULL, "SHA256", NULL);
}

bool semel__sha256(const struct semel_str *parts, size_t n_parts, unsigned char out[SEMEL_SHA256])
{
    pthread_once(&once, fetch);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx != NULL && EVP_DigestInit_ex(ctx, fetched != NULL ? fetched : EVP_sha256(), NULL) == 1;
    for (size_t i = 0; ok && i < n_parts; i++)
        ok = parts[i].n == 0 || EVP_DigestUpdate(ctx, parts[i].p, parts[i].n) == 1;

    unsigned char digest[SEMEL_SHA256];
    unsigned n = 0;
    ok = ok && EVP_DigestFinal_ex(ctx, digest, &n) == 1 && n == SEMEL_SHA256;
    if (ok)
        memcpy(out, digest, sizeof(digest));
    EVP_MD_CTX_free(ctx);
    return ok;
}

bool semel__md5_hex(struct semel_str text, char out[33])
{
    unsigned char digest[16];
    size_t n = 0;

    if (EVP_Q_digest(NULL, "MD5", NULL, text.p != NULL ? text.p : "", text.n, digest, &n) != 1 || n != sizeof digest)
        return false;
    semel__hex(digest, sizeof digest, out);
    return true;
}

void semel__hex(const unsigned char *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 0xF];
    }
    *out = '\0';
}
