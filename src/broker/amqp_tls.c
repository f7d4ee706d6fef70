/* SPDX-License-Identifier: MIT
 *
 * amqp_tls.c: the TLS of a connection: TLS 1.2 at least, and the server must be who the URL says.
 *
 * librabbitmq looks at the certificate after the handshake and knows names only, no addresses. Here OpenSSL itself
 * checks both, within the handshake, so that nothing is sent to a stranger.
 */
#include "broker/amqp_private.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#ifdef SEMEL_AMQP_NEW_HEADERS
#include <rabbitmq-c/ssl_socket.h>
#else
#include <amqp_ssl_socket.h>
#endif

const char *semel__amqp_tls_reason(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());

    ERR_clear_error();
    return reason != NULL ? reason : "";
}

static semel_status wrong_file(const char *what, const char *file, const char *hint, struct semel_error *err)
{
    char shown[120];

    semel__str_show(shown, sizeof shown, semel__str(file));
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: %s %s cannot be used: %s%s", what, shown,
                       semel__amqp_tls_reason(), hint);
}

/* Believes what OpenSSL believes, and remembers why it does not. */
static int remember(int ok, X509_STORE_CTX *chain)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct amqp_link *link = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));

    if (!ok)
        link->x509 = X509_STORE_CTX_get_error(chain);
    return ok;
}

static bool is_address(const char *host)
{
    unsigned char address[16];

    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

static semel_status verify(SSL_CTX *tls, const struct amqp_conf *conf, struct semel_error *err)
{
    X509_VERIFY_PARAM *param = SSL_CTX_get0_param(tls);
    bool set;

    if (conf->no_verify) {
        SSL_CTX_set_verify(tls, SSL_VERIFY_NONE, NULL);
        return SEMEL_OK;
    }
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, remember);
    if (conf->ca_file != NULL && SSL_CTX_load_verify_locations(tls, conf->ca_file, NULL) != 1)
        return wrong_file("the authorities' file", conf->ca_file, "", err);
    if (conf->ca_file == NULL && SSL_CTX_set_default_verify_paths(tls) != 1)
        return semel__fail_memory(err);
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    set = is_address(conf->host) ? X509_VERIFY_PARAM_set1_ip_asc(param, conf->host) == 1
                                 : X509_VERIFY_PARAM_set1_host(param, conf->host, 0) == 1;
    return set ? SEMEL_OK : semel__fail_memory(err);
}

static semel_status identify(SSL_CTX *tls, amqp_socket_t *socket, const struct amqp_conf *conf, struct semel_error *err)
{
    if (conf->cert_file == NULL)
        return SEMEL_OK;
    /* Without one OpenSSL would ask at the terminal. */
    amqp_ssl_socket_set_key_passwd(socket, conf->key_password != NULL ? conf->key_password : "");
    if (SSL_CTX_use_certificate_chain_file(tls, conf->cert_file) != 1)
        return wrong_file("the certificate", conf->cert_file, "", err);
    if (SSL_CTX_use_PrivateKey_file(tls, conf->key_file, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(tls) != 1)
        return wrong_file("the key", conf->key_file, "; is it PEM, the certificate's, and opened by key_password?",
                          err);
    return SEMEL_OK;
}

semel_status semel__amqp_tls_socket(struct amqp_link *link, const struct amqp_conf *conf, amqp_socket_t **ret,
                                    struct semel_error *err)
{
    amqp_socket_t *socket = amqp_ssl_socket_new(link->conn); /* the connection's from now on */
    SSL_CTX *tls = socket != NULL ? amqp_ssl_socket_get_context(socket) : NULL;
    semel_status status;

    ERR_clear_error();
    if (tls == NULL || SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION) != 1)
        return semel__fail_memory(err);
    SSL_CTX_set_app_data(tls, link);
    amqp_ssl_socket_set_verify_peer(socket, !conf->no_verify);
    amqp_ssl_socket_set_verify_hostname(socket, 0);
    status = verify(tls, conf, err);
    if (status == SEMEL_OK)
        status = identify(tls, socket, conf, err);
    if (status == SEMEL_OK)
        *ret = socket;
    return status;
}
