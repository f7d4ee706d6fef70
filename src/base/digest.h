/* SPDX-License-Identifier: MIT
 *
 * digest.h: SHA-256, HMAC with it and with what other programs sign by, MD5 for who must compare one, and bytes as
 * text: hexadecimal and base64 (OpenSSL EVP).
 */
#ifndef SEMEL_BASE_DIGEST_H
#define SEMEL_BASE_DIGEST_H

#include "base/mem.h"
#include "base/str.h"

#define SEMEL_SHA256 32

/* The digest of the concatenated parts. false: the library failed (memory). */
bool semel__sha256(const struct semel_str *parts, size_t n_parts, unsigned char out[SEMEL_SHA256]);
enum semel_hash { SEMEL_HASH_SHA256, SEMEL_HASH_SHA512, SEMEL_HASH_SHA1 };
#define SEMEL_HASH_MAX 64 /* bytes of the longest */
size_t semel__hash_size(enum semel_hash hash);
/* HMAC (RFC 2104) over the parts, one after the other; semel__hash_size bytes. false: as above, or the library does not
 * have the algorithm any more. */
bool semel__hmac(enum semel_hash hash, struct semel_str key, const struct semel_str *parts, size_t n_parts,
                 unsigned char out[SEMEL_HASH_MAX]);
#define SEMEL_HMAC_PARTS 8 /* at most */
/* MD5 (RFC 1321) as 32 lower-case digits and a NUL. It finds damage on the way and is of no use against anybody. false:
 * the library does not have it any more, or failed. */
bool semel__md5_hex(struct semel_str text, char out[33]);
/* 2*n lower-case digits and a NUL. */
void semel__hex(const unsigned char *bytes, size_t n, char *out);

/* Base64 is RFC 4648's, with padding. */
void semel__base64_put(struct semel_buf *buf, struct semel_str bytes);
enum semel_base64 { SEMEL_BASE64_OK, SEMEL_BASE64_WRONG, SEMEL_BASE64_MEMORY };
/* Strict: only the alphabet, whole groups of four, padding where it belongs and no stray bits. */
enum semel_base64 semel__base64_read(struct semel_str text, struct semel_arena *arena, struct semel_str *ret);

#endif
