/* SPDX-License-Identifier: MIT
 *
 * tls.h: TLS by OpenSSL over memory: ciphertext in and out, plaintext out and in.
 *
 * A context is what a listener has (certificate, key, CAs); a session is what a connection has. A
 * session keeps its context, so a new one can take its place at any time.
 *
 * Invariants: TLS 1.2 at least, AEAD suites with forward secrecy only below 1.3; no renegotiation, no compression, no
 * session tickets or cache (a client certificate is seen in every handshake); the only protocol that is
 * negotiated is http/1.1; a key with a passphrase is refused instead of asking the terminal.
 */
#ifndef SEMEL_NET_TLS_H
#define SEMEL_NET_TLS_H

#include "base/str.h"

struct semel_tls_context;
struct semel_tls;

/* INVALID: a file that cannot be read or used; err names it. client_ca may be NULL. */
semel_status semel__tls_context_new(struct semel_tls_context **ret, const char *cert_file, const char *key_file,
                                    const char *client_ca_file, struct semel_error *err);
struct semel_tls_context *semel__tls_context_ref(struct semel_tls_context *context);
void semel__tls_context_unref(struct semel_tls_context *context);

struct semel_tls *semel__tls_new(struct semel_tls_context *context); /* NULL: no memory */
void semel__tls_free(struct semel_tls *tls);

enum semel_tls_state {
    SEMEL_TLS_OPEN,   /* goes on */
    SEMEL_TLS_ENDED,  /* the client has closed its side properly */
    SEMEL_TLS_PLAIN,  /* the client speaks HTTP without TLS */
    SEMEL_TLS_BROKEN, /* nothing more can be said, except what is waiting to be sent (an alert) */
};

/* Ciphertext that has arrived. false: no memory. */
bool semel__tls_feed(struct semel_tls *tls, const char *p, size_t n);
/* Bytes that were fed and not looked at yet. */
size_t semel__tls_waiting(const struct semel_tls *tls);
/* Plaintext, up to size bytes; *ret_n = 0: none now. Drives the handshake too. */
enum semel_tls_state semel__tls_read(struct semel_tls *tls, char *out, size_t size, size_t *ret_n);
/* Encrypts p whole. false: not now (handshake), or broken. */
bool semel__tls_write(struct semel_tls *tls, const char *p, size_t n);
void semel__tls_shutdown(struct semel_tls *tls); /* close_notify */
/* Ciphertext to be sent: up to size bytes are moved to out. */
size_t semel__tls_take(struct semel_tls *tls, char *out, size_t size);

#endif
