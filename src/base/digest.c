/* SPDX-License-Identifier: MIT
 *
 * digest.c: digests, HMAC and base64 by OpenSSL's EVP interface.
 *
 * The process looks SHA-256 up once and keeps it: the lookup costs more than the digest of a short message. If
 * that failed for lack of memory, every digest looks it up itself.
 *
 * OpenSSL reads base64 loosely. So we encode the result again: the input was right only if both are equal.
 *
 * Invariants: the parts are hashed as one string, without separators (a caller who needs the
 * borders hashes lengths too); `out` is written only on success.
 */
#include "base/digest.h"

#include <assert.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

#define TEXT_SLICE 4096 /* characters of base64; a multiple of four */
#define BYTE_SLICE (TEXT_SLICE / 4 * 3)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static EVP_MD *fetched;

static void fetch(void)
{
    fetched = EVP_MD_fetch(NULL, "SHA256", NULL);
}

/* The digest of the parts, which has `size` bytes. */
static bool digest_parts(const EVP_MD *md, const struct semel_str *parts, size_t n_parts, unsigned char *out,
                         size_t size)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx != NULL && EVP_DigestInit_ex(ctx, md, NULL) == 1;
    for (size_t i = 0; ok && i < n_parts; i++)
        ok = parts[i].n == 0 || EVP_DigestUpdate(ctx, parts[i].p, parts[i].n) == 1;

    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    ok = ok && EVP_DigestFinal_ex(ctx, digest, &n) == 1 && n == size;
    if (ok)
        memcpy(out, digest, size);
    EVP_MD_CTX_free(ctx);
    return ok;
}

static const EVP_MD *sha256(void)
{
    pthread_once(&once, fetch);
    return fetched != NULL ? fetched : EVP_sha256();
}

bool semel__sha256(const struct semel_str *parts, size_t n_parts, unsigned char out[SEMEL_SHA256])
{
    return digest_parts(sha256(), parts, n_parts, out, SEMEL_SHA256);
}

#define BLOCK_MAX 128

static const struct {
    size_t size, block;
} hashes[] = {[SEMEL_HASH_SHA256] = {32, 64}, [SEMEL_HASH_SHA512] = {64, 128}, [SEMEL_HASH_SHA1] = {20, 64}};

size_t semel__hash_size(enum semel_hash hash)
{
    return hashes[hash].size;
}

bool semel__hmac(enum semel_hash hash, struct semel_str key, const struct semel_str *parts, size_t n_parts,
                 unsigned char out[SEMEL_HASH_MAX])
{
    const EVP_MD *md = hash == SEMEL_HASH_SHA256 ? sha256() : hash == SEMEL_HASH_SHA512 ? EVP_sha512() : EVP_sha1();
    const size_t size = hashes[hash].size, block = hashes[hash].block;
    unsigned char inner[BLOCK_MAX] = {0}, outer[BLOCK_MAX], digest[SEMEL_HASH_MAX];
    struct semel_str all[SEMEL_HMAC_PARTS + 1] = {{(const char *)inner, block}};
    const struct semel_str last[2] = {{(const char *)outer, block}, {(const char *)digest, size}};
    bool ok = true;

    assert(n_parts <= SEMEL_HMAC_PARTS);
    if (key.n > block)
        ok = digest_parts(md, &key, 1, inner, size);
    else if (key.n > 0)
        memcpy(inner, key.p, key.n);
    for (size_t i = 0; i < block; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    for (size_t i = 0; i < n_parts; i++)
        all[i + 1] = parts[i];
    ok = ok && digest_parts(md, all, n_parts + 1, digest, size) && digest_parts(md, last, 2, out, size);
    explicit_bzero(inner, sizeof inner);
    explicit_bzero(outer, sizeof outer);
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

void semel__base64_put(struct semel_buf *buf, struct semel_str bytes)
{
    unsigned char out[TEXT_SLICE + 1];
    for (size_t at = 0; at < bytes.n; at += BYTE_SLICE) {
        size_t n = bytes.n - at < BYTE_SLICE ? bytes.n - at : BYTE_SLICE;
        int length = EVP_EncodeBlock(out, (const unsigned char *)bytes.p + at, (int)n);
        semel__buf_add(buf, out, (size_t)length);
    }
}

/* Up to TEXT_SLICE characters, of which the last `pad` are padding. */
static bool read_slice(const char *p, size_t n, size_t pad, unsigned char *out)
{
    unsigned char again[TEXT_SLICE + 1];
    int bytes = (int)(n / 4 * 3);
    return EVP_DecodeBlock(out, (const unsigned char *)p, (int)n) == bytes &&
           EVP_EncodeBlock(again, out, bytes - (int)pad) == (int)n && memcmp(again, p, n) == 0;
}

enum semel_base64 semel__base64_read(struct semel_str text, struct semel_arena *arena, struct semel_str *ret)
{
    size_t pad = 0;
    if (text.n % 4 != 0)
        return SEMEL_BASE64_WRONG;
    while (pad < 2 && pad < text.n && text.p[text.n - 1 - pad] == '=')
        pad++;
    char *out = semel__arena_alloc(arena, text.n / 4 * 3 + 1, 1);
    if (out == NULL)
        return SEMEL_BASE64_MEMORY;
    for (size_t at = 0; at < text.n; at += TEXT_SLICE) {
        bool last = text.n - at <= TEXT_SLICE;
        size_t n = last ? text.n - at : TEXT_SLICE;
        if (!read_slice(text.p + at, n, last ? pad : 0, (unsigned char *)out + at / 4 * 3))
            return SEMEL_BASE64_WRONG;
    }
    *ret = (struct semel_str){out, text.n / 4 * 3 - pad};
    return SEMEL_BASE64_OK;
}
