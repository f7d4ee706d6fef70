/* SPDX-License-Identifier: MIT
 *
 * test_http_tls.c: calls by HTTPS: whom they trust, and that nobody else gets a byte of a message.
 */
#include <stdlib.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "handler/upstream.h"

#define PASSWORD "s3cret"

static struct rig rig;
static char dir[64], cert_file[96], key_file[96], other_file[96], client_cert[96], client_key[96];

/* ---- certificates -------------------------------------------------------------------------------- */

static void write_pem(const char *path, X509 *cert, EVP_PKEY *key, const char *password)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    if (cert != NULL)
        assert_int_equal(PEM_write_X509(file, cert), 1);
    else
        assert_int_equal(PEM_write_PrivateKey(file, key, password != NULL ? EVP_aes_128_cbc() : NULL, NULL, 0, NULL,
                                              (void *)password),
                         1);
    fclose(file);
}

static void add_extension(X509 *cert, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    assert_non_null(extension);
    X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
}

/* A certificate for these names that signs itself. */
static void make_pair(const char *cert_path, const char *key_path, const char *names, const char *password)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_true(key != NULL && cert != NULL);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
    X509_set_pubkey(cert, key);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)names, -1, -1, 0);
    X509_set_issuer_name(cert, name);
    add_extension(cert, NID_subject_alt_name, names);
    add_extension(cert, NID_basic_constraints, "critical,CA:TRUE");
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    write_pem(cert_path, cert, NULL, NULL);
    if (key_path != NULL)
        write_pem(key_path, NULL, key, password);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void in_dir(char out[96], const char *name)
{
    snprintf(out, 96, "%s/%s", dir, name);
}

/* ---- the rig ------------------------------------------------------------------------------------- */

static void serve_with(const char *names)
{
    make_pair(cert_file, key_file, names, NULL);
    rig.up.tls = SSL_CTX_new(TLS_server_method());
    assert_non_null(rig.up.tls);
    assert_int_equal(SSL_CTX_use_certificate_file(rig.up.tls, cert_file, SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(rig.up.tls, key_file, SSL_FILETYPE_PEM), 1);
}

static int set_up(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof rig);
    snprintf(dir, sizeof dir, "/tmp/semel-call-XXXXXX");
    assert_non_null(mkdtemp(dir));
    in_dir(cert_file, "cert.pem");
    in_dir(key_file, "key.pem");
    in_dir(other_file, "other.pem");
    in_dir(client_cert, "client.pem");
    in_dir(client_key, "clientkey.pem");
    serve_with("IP:127.0.0.1");
    rig_start(&rig);
    snprintf(rig.url, sizeof rig.url, "https://127.0.0.1:%u/effect", rig.up.port);
    rig.settings.tls.ca_file = cert_file;
    return 0;
}

static int tear_down(void **state)
{
    const char *const files[] = {cert_file, key_file, other_file, client_cert, client_key};
    (void)state;
    rig_stop(&rig);
    SSL_CTX_free(rig.up.tls);
    for (size_t i = 0; i < COUNT(files); i++)
        unlink(files[i]);
    rmdir(dir);
    ERR_clear_error();
    return 0;
}

/* ---- the tests ----------------------------------------------------------------------------------- */

static void a_certificate_of_the_given_authority_is_trusted(void **state)
{
    (void)state;
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_int_equal(rig.up.requests, 2);
    assert_int_equal(rig.up.most, 2); /* the connection was kept */
}

static void a_certificate_that_is_not_trusted_breaks_the_route_and_nothing_is_sent(void **state)
{
    const char *const authorities[] = {NULL, other_file, "/nowhere/ca.pem"};
    (void)state;
    make_pair(other_file, NULL, "IP:127.0.0.1", NULL);
    for (size_t i = 0; i < COUNT(authorities); i++) {
        rig.settings.tls.ca_file = authorities[i];
        assert_not_sent(rig_ask(&rig, false), SEMEL_INVALID, SEMEL_CLASS_BROKEN);
        rig_drop(&rig);
    }
    assert_int_equal(rig.up.heads, 0);
}

static void a_certificate_for_another_name_breaks_the_route(void **state)
{
    (void)state;
    SSL_CTX_free(rig.up.tls);
    serve_with("DNS:elsewhere.example");
    assert_not_sent(rig_ask(&rig, false), SEMEL_INVALID, SEMEL_CLASS_BROKEN);
    assert_int_equal(rig.up.heads, 0);
}

static void any_certificate_will_do_where_that_is_meant(void **state)
{
    (void)state;
    rig.settings.tls.ca_file = NULL;
    rig.settings.tls.no_verify = true;
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
}

static void an_old_protocol_and_none_at_all_are_the_worlds_fault(void **state)
{
    (void)state;
    SSL_CTX_set_security_level(rig.up.tls, 0);
    SSL_CTX_set_min_proto_version(rig.up.tls, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(rig.up.tls, TLS1_1_VERSION);
    assert_not_sent(rig_ask(&rig, false), SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
    rig_drop(&rig);
    SSL_CTX *tls = rig.up.tls;
    rig.up.tls = NULL; /* it waits for the end of a head that does not come */
    rig.settings.timeout_us = 300000;
    assert_not_sent(rig_ask(&rig, false), SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
    assert_int_equal(rig.up.heads, 0);
    rig_drop(&rig);
    rig.up.tls = tls;
}

static void a_client_certificate_is_shown(void **state)
{
    (void)state;
    make_pair(client_cert, client_key, "DNS:semel.example", PASSWORD);
    SSL_CTX_set_max_proto_version(rig.up.tls, TLS1_2_VERSION); /* so that a refusal comes in the handshake */
    SSL_CTX_set_verify(rig.up.tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    assert_int_equal(SSL_CTX_load_verify_locations(rig.up.tls, client_cert, NULL), 1);
    assert_not_sent(rig_ask(&rig, false), SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
    rig_drop(&rig);
    rig.settings.tls.cert_file = client_cert;
    rig.settings.tls.key_file = client_key;
    rig.settings.tls.key_password = "wrong " PASSWORD;
    struct semel_call_end *end = rig_ask(&rig, false);
    assert_not_sent(end, SEMEL_INVALID, SEMEL_CLASS_BROKEN);
    assert_null(strstr(end->err.text, PASSWORD));
    rig_drop(&rig);
    rig.settings.tls.key_password = PASSWORD;
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_int_equal(rig.up.requests, 1);
}

#define ON_RIG(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_RIG(a_certificate_of_the_given_authority_is_trusted),
        ON_RIG(a_certificate_that_is_not_trusted_breaks_the_route_and_nothing_is_sent),
        ON_RIG(a_certificate_for_another_name_breaks_the_route),
        ON_RIG(any_certificate_will_do_where_that_is_meant),
        ON_RIG(an_old_protocol_and_none_at_all_are_the_worlds_fault),
        ON_RIG(a_client_certificate_is_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
