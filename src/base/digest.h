/* SPDX-License-Identifier: MIT
 *
 * digest.h: SHA-256 (OpenSSL EVP) and its hexadecimal form; MD5 for who must compare one.
 */
#ifndef SEMEL_BASE_DIGEST_H
#define SEMEL_BASE_DIGEST_H

#include "semel/types.h"

#define SEMEL_SHA256 32

/* The digest of the parts, one after the other. false: the library failed (memory). */
bool semel__sha256(const struct semel_str *parts, size_t n_parts, unsigned char out[SEMEL_SHA256]);
/* MD5 (RFC 1321) as 32 lower-case digits and a NUL. It finds damage on the way and is of no use against anybody. false:
 * the library does not have it any more, or failed. */
bool semel__md5_hex(struct semel_str text, char out[33]);
/* 2*n lower-case digits and a NUL. */
void semel__hex(const unsigned char *bytes, size_t n, char *out);

#endif
