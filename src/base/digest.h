/* SPDX-License-Identifier: MIT
 *
 * digest.h: SHA-256 (OpenSSL EVP) and its hexadecimal form.
 */
#ifndef SEMEL_BASE_DIGEST_H
#define SEMEL_BASE_DIGEST_H

#include "semel/types.h"

#define SEMEL_SHA256 32

/* The digest of the parts, one after the other. false: the library failed (memory). */
bool semel__sha256(const struct semel_str *parts, size_t n_parts, unsigned char out[SEMEL_SHA256]);
/* 2*n lower-case digits and a NUL. */
void semel__hex(const unsigned char *bytes, size_t n, char *out);

#endif
