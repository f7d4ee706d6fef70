/* SPDX-License-Identifier: MIT
 *
 * tls.c: contexts and sessions of tls.h.
 */
#include "net/tls.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "base/error.h"
#include "base/mem.h"

#define CIPHERS_1_2 "ECDHE+AESGCM:ECDHE+CHACHA20"

static const unsigned char protocols[] = "\x08http/1.1";

static int no_passphrase(char *buf, int size, int writing, void *ctx)
{
    (void)writing;
    (void)ctx;
    if (size > 0)
        buf[0] = '\0';
    return -1;
}

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in,
                           unsigned in_n, void *ctx)
{
    (void)ssl;
    (void)ctx;
    int found = SSL_select_next_proto((unsigned char **)out, out_n, protocols, sizeof(protocols) - 1, in, in_n);
    return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static semel_status tls_fail(struct semel_error *err, const char *what, const char *file)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = ERR_reason_error_string(code);
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s %s: %s", what, file,
                reason != NULL ? reason : "cannot be used");
    ERR_clear_error();
    return SEMEL_INVALID;
}

static semel_status tls_load(SSL_CTX *ctx, const char *cert_file, const char *key_file, const char *client_ca_file,
                             struct semel_error *err)
{
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_file) != 1)
        return tls_fail(err, "certificate", cert_file);
    if (SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) != 1)
        return tls_fail(err, "private key (PEM, without a passphrase)", key_file);
    if (SSL_CTX_check_private_key(ctx) != 1)
        return tls_fail(err, "private key does not belong to the certificate:", key_file);
    if (client_ca_file == NULL)
        return SEMEL_OK;
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(client_ca_file);
    if (names == NULL || SSL_CTX_load_verify_locations(ctx, client_ca_file, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return tls_fail(err, "client CA", client_ca_file);
    }
    SSL_CTX_set_client_CA_list(ctx, names);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return SEMEL_OK;
}

/* A context with the settings that client and server share. */
static semel_status context_new(SSL_CTX **ret, const SSL_METHOD *method, struct semel_error *err)
{
    SSL_CTX *ctx = SSL_CTX_new(method);
    if (ctx == NULL)
        return semel__fail_memory(err);
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 || SSL_CTX_set_cipher_list(ctx, CIPHERS_1_2) != 1) {
        SSL_CTX_free(ctx);
        return tls_fail(err, "TLS", "1.2");
    }
    *ret = ctx;
    return SEMEL_OK;
}

semel_status semel__tls_server_context(SSL_CTX **ret, const char *cert_file, const char *key_file,
                                       const char *client_ca_file, struct semel_error *err)
{
    SSL_CTX *ctx;
    semel_status status = context_new(&ctx, TLS_server_method(), err);
    if (status != SEMEL_OK)
        return status;
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
    status = tls_load(ctx, cert_file, key_file, client_ca_file, err);
    if (status == SEMEL_OK)
        *ret = ctx;
    else
        SSL_CTX_free(ctx);
    return status;
}

semel_status semel__tls_client_context(SSL_CTX **ret, const char *ca_file, struct semel_error *err)
{
    SSL_CTX *ctx;
    semel_status status = context_new(&ctx, TLS_client_method(), err);
    if (status != SEMEL_OK)
        return status;
    ERR_clear_error();
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    bool loaded = ca_file != NULL ? SSL_CTX_load_verify_locations(ctx, ca_file, NULL) == 1
                                  : SSL_CTX_set_default_verify_paths(ctx) == 1;
    if (!loaded)
        status = tls_fail(err, "CA", ca_file != NULL ? ca_file : "of the system");
    else if (SSL_CTX_set_alpn_protos(ctx, protocols, sizeof(protocols) - 1) != 0)
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        *ret = ctx;
    else
        SSL_CTX_free(ctx);
    return status;
}

SSL_CTX *semel__tls_context_ref(SSL_CTX *context)
{
    if (context != NULL)
        SSL_CTX_up_ref(context);
    return context;
}

/* The certificate must be for this name or address. */
static bool expect_host(SSL *ssl, const char *host)
{
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1)
        return true;
    ERR_clear_error();
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

struct semel_tls *semel__tls_new(SSL_CTX *context, const char *host)
{
    struct semel_tls *tls = semel__calloc(1, sizeof(*tls));
    if (tls == NULL)
        return NULL;
    tls->ssl = SSL_new(context);
    tls->in = BIO_new(BIO_s_mem());
    tls->out = BIO_new(BIO_s_mem());
    bool ready = tls->ssl != NULL && tls->in != NULL && tls->out != NULL;
    if (!ready || (host != NULL && !expect_host(tls->ssl, host))) {
        BIO_free(tls->in);
        BIO_free(tls->out);
        SSL_free(tls->ssl);
        semel__free(tls);
        return NULL;
    }
    SSL_set_bio(tls->ssl, tls->in, tls->out);
    if (host != NULL)
        SSL_set_connect_state(tls->ssl);
    else
        SSL_set_accept_state(tls->ssl);
    return tls;
}

void semel__tls_free(struct semel_tls *tls)
{
    if (tls == NULL)
        return;
    SSL_free(tls->ssl);
    semel__free(tls);
}

bool semel__tls_feed(struct semel_tls *tls, const char *p, size_t n)
{
    return n <= INT32_MAX && BIO_write(tls->in, p, (int)n) == (int)n;
}

size_t semel__tls_waiting(const struct semel_tls *tls)
{
    return BIO_ctrl_pending(tls->in);
}

enum semel_tls_state semel__tls_read(struct semel_tls *tls, char *out, size_t size, size_t *ret_n)
{
    *ret_n = 0;
    if (tls->broken)
        return SEMEL_TLS_BROKEN;
    ERR_clear_error();
    if (SSL_read_ex(tls->ssl, out, size, ret_n) == 1)
        return SEMEL_TLS_OPEN;
    int error = SSL_get_error(tls->ssl, 0);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return SEMEL_TLS_OPEN;
    if (error == SSL_ERROR_ZERO_RETURN)
        return SEMEL_TLS_ENDED;
    tls->broken = true;
    unsigned long code = ERR_peek_error();
    ERR_clear_error();
    return ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == SSL_R_HTTP_REQUEST ? SEMEL_TLS_PLAIN
                                                                                          : SEMEL_TLS_BROKEN;
}

bool semel__tls_write(struct semel_tls *tls, const char *p, size_t n)
{
    size_t done = 0;
    if (tls->broken || !SSL_is_init_finished(tls->ssl))
        return false;
    ERR_clear_error();
    if (SSL_write_ex(tls->ssl, p, n, &done) == 1 && done == n)
        return true;
    tls->broken = true;
    ERR_clear_error();
    return false;
}

void semel__tls_shutdown(struct semel_tls *tls)
{
    if (tls->broken || !SSL_is_init_finished(tls->ssl))
        return;
    SSL_shutdown(tls->ssl);
    ERR_clear_error();
}

size_t semel__tls_drain(struct semel_tls *tls, char *out, size_t size)
{
    int n = BIO_read(tls->out, out, size <= INT32_MAX ? (int)size : INT32_MAX);
    return n > 0 ? (size_t)n : 0;
}

size_t semel__tls_unsent(const struct semel_tls *tls)
{
    return BIO_ctrl_pending(tls->out);
}

bool semel__tls_ready(const struct semel_tls *tls)
{
    return !tls->broken && SSL_is_init_finished(tls->ssl);
}

#define SUBJECT_MAX 4096

char *semel__tls_subject(const struct semel_tls *tls)
{
    X509 *cert = SSL_get_verify_result(tls->ssl) == X509_V_OK ? SSL_get1_peer_certificate(tls->ssl) : NULL;
    BIO *bio = cert != NULL ? BIO_new(BIO_s_mem()) : NULL;
    char *text = NULL, *p = NULL;
    if (bio != NULL && X509_NAME_print_ex(bio, X509_get_subject_name(cert), 0, XN_FLAG_RFC2253) >= 0) {
        long n = BIO_get_mem_data(bio, &p);
        text = n > 0 && n <= SUBJECT_MAX ? semel__alloc((size_t)n + 1) : NULL;
        if (text != NULL) {
            memcpy(text, p, (size_t)n);
            text[n] = '\0';
        }
    }
    BIO_free(bio);
    X509_free(cert);
    ERR_clear_error();
    return text;
}

const char *semel__tls_fault(const struct semel_tls *tls)
{
    long result = SSL_get_verify_result(tls->ssl);
    return result != X509_V_OK ? X509_verify_cert_error_string(result) : "the handshake failed";
}
