/* SPDX-License-Identifier: MIT
 *
 * tls.h: OpenSSL over memory, for both sides: ciphertext in and out, plaintext out and in.
 *
 * A context is what a listener or an upstream has (certificate, key, CAs); a session is what a connection has. A
 * session keeps its context, so a new one can take its place at any time.
 *
 * Invariants: TLS 1.2 at least, AEAD suites with forward secrecy only below 1.3; no renegotiation, no compression, no
 * session tickets or cache (a client certificate is seen in every handshake); the only protocol that is negotiated is
 * http/1.1; a key with a passphrase is refused instead of asking the terminal; a client checks the certificate and its
 * name. The thread's error queue is emptied before each call whose error is asked for; the memory BIOs never block;
 * OpenSSL counts the references to a context, so a session outlives the listener's.
 */
#ifndef SEMEL_NET_TLS_H
#define SEMEL_NET_TLS_H

#include <openssl/ssl.h>

#include "semel/types.h"

#define SEMEL_TLS_CIPHER 20480 /* a record of TLS and some more */
#define SEMEL_TLS_PLAIN_MAX 16384

enum semel_tls_state {
    SEMEL_TLS_OPEN,   /* goes on */
    SEMEL_TLS_ENDED,  /* the other side has closed its half properly */
    SEMEL_TLS_PLAIN,  /* the client speaks HTTP without TLS */
    SEMEL_TLS_BROKEN, /* nothing more can be sent, except the pending output (an alert) */
};

struct semel_tls {
    SSL *ssl;
    BIO *in, *out; /* the session's own */
    bool broken;
};

/* INVALID: a file that cannot be read or used; err names it. client_ca_file may be NULL. */
semel_status semel__tls_server_context(SSL_CTX **ret, const char *cert_file, const char *key_file,
                                       const char *client_ca_file, struct semel_error *err);
/* ca_file NULL: the CAs of the system. */
semel_status semel__tls_client_context(SSL_CTX **ret, const char *ca_file, struct semel_error *err);
SSL_CTX *semel__tls_context_ref(SSL_CTX *context); /* NULL stays NULL */

/* host: of the server that a client expects; NULL: a server's session. NULL: no memory. */
struct semel_tls *semel__tls_new(SSL_CTX *context, const char *host);
void semel__tls_free(struct semel_tls *tls);
bool semel__tls_feed(struct semel_tls *tls, const char *p, size_t n); /* ciphertext that arrived; false: no memory */
size_t semel__tls_waiting(const struct semel_tls *tls);               /* bytes that were fed and not processed yet */
/* Plaintext, up to size bytes; *ret_n = 0: none now. Drives the handshake too. */
enum semel_tls_state semel__tls_read(struct semel_tls *tls, char *out, size_t size, size_t *ret_n);
bool semel__tls_write(struct semel_tls *tls, const char *p, size_t n);  /* all; false: not now (handshake), or broken */
void semel__tls_shutdown(struct semel_tls *tls);                        /* close_notify */
size_t semel__tls_drain(struct semel_tls *tls, char *out, size_t size); /* moves ciphertext to be sent to out */
size_t semel__tls_unsent(const struct semel_tls *tls);                  /* bytes that _take would move */
bool semel__tls_ready(const struct semel_tls *tls);                     /* the handshake is done */
/* The subject of the other side's certificate, which was verified, in the form of RFC 2253; to be freed. NULL: it has
 * none, or there is no memory. */
char *semel__tls_subject(const struct semel_tls *tls);
const char *semel__tls_fault(const struct semel_tls *tls); /* why it failed */

#endif
