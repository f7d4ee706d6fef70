/* SPDX-License-Identifier: MIT
 *
 * test_http_tls.c: the server behind TLS: handshakes, certificates that change, clients that are strangers.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "unit/httpd.h"

#define HOST "Host: localhost\r\n"
#define DIR_TEXT 64

static struct httpd httpd;
static char dir[DIR_TEXT], cert_file[DIR_TEXT + 16], key_file[DIR_TEXT + 16];

/* A certificate that signs itself, and its key, in PEM. */
static void make_pair(const char *cert_path, const char *key_path, long serial, const char *passphrase)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_true(key != NULL && cert != NULL);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
    X509_set_pubkey(cert, key);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(cert, name);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    FILE *file = fopen(cert_path, "we");
    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, cert), 1);
    fclose(file);
    file = fopen(key_path, "we");
    assert_non_null(file);
    const EVP_CIPHER *cipher = passphrase != NULL ? EVP_aes_128_cbc() : NULL;
    assert_int_equal(PEM_write_PrivateKey(file, key, cipher, NULL, 0, NULL, (void *)passphrase), 1);
    fclose(file);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void in_dir(char *out, const char *name)
{
    snprintf(out, DIR_TEXT + 16, "%s/%s", dir, name);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/semel-tls-XXXXXX");
    assert_non_null(mkdtemp(dir));
    in_dir(cert_file, "cert.pem");
    in_dir(key_file, "key.pem");
    make_pair(cert_file, key_file, 1, NULL);
    httpd_init(&httpd);
    httpd.settings.cert_file = cert_file;
    httpd.settings.key_file = key_file;
    return 0;
}

static int set_up_running(void **state)
{
    set_up(state);
    httpd_start(&httpd);
    return 0;
}

static int tear_down(void **state)
{
    static const char *const names[] = {"cert.pem", "key.pem", "other.pem", "otherkey.pem"};
    (void)state;
    httpd_done(&httpd);
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[DIR_TEXT + 16];
        in_dir(path, names[i]);
        unlink(path);
    }
    rmdir(dir);
    return 0;
}

struct tls_client {
    SSL_CTX *ctx;
    SSL *ssl;
    int fd;
};

static void tls_prepare(struct tls_client *client)
{
    client->ctx = SSL_CTX_new(TLS_client_method());
    assert_non_null(client->ctx);
    SSL_CTX_set_options(client->ctx, SSL_OP_IGNORE_UNEXPECTED_EOF);
}

static bool tls_connect(struct tls_client *client)
{
    client->ssl = SSL_new(client->ctx);
    client->fd = client_open(&httpd);
    assert_non_null(client->ssl);
    SSL_set_fd(client->ssl, client->fd);
    return SSL_connect(client->ssl) == 1;
}

static void tls_open(struct tls_client *client)
{
    tls_prepare(client);
    assert_true(tls_connect(client));
}

static void tls_close(struct tls_client *client)
{
    SSL_free(client->ssl);
    SSL_CTX_free(client->ctx);
    close(client->fd);
    ERR_clear_error();
}

/* Sends, and reads up to the end of the reply, as its Content-Length says, or to the end of the connection. */
static size_t tls_ask(struct tls_client *client, const char *text, char *reply, size_t size)
{
    size_t n = 0, need = size;
    assert_true(SSL_write(client->ssl, text, (int)strlen(text)) > 0);
    while (n < need) {
        int got = SSL_read(client->ssl, reply + n, (int)(size - 1 - n));
        if (got <= 0)
            return n;
        n += (size_t)got;
        reply[n] = '\0';
        const char *body = need == size ? strstr(reply, "\r\n\r\n") : NULL;
        if (body != NULL)
            need = (size_t)(body + 4 - reply) + strtoul(strstr(reply, "\r\nContent-Length: ") + 18, NULL, 10);
    }
    return n;
}

static long serial_of(struct tls_client *client)
{
    X509 *cert = SSL_get1_peer_certificate(client->ssl);
    assert_non_null(cert);
    long serial = ASN1_INTEGER_get(X509_get0_serialNumber(cert));
    X509_free(cert);
    return serial;
}

static void assert_hello(struct tls_client *client)
{
    char reply[2048];
    assert_true(tls_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", reply, sizeof(reply)) > 0);
    assert_non_null(strstr(reply, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(reply, "{\"hello\":true}\n"));
}

static void requests_are_answered_through_tls(void **state)
{
    (void)state;
    struct tls_client client;
    tls_open(&client);
    assert_hello(&client);
    assert_hello(&client);
    char reply[2048];
    tls_ask(&client, "POST /later HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nback", reply, sizeof(reply));
    assert_non_null(strstr(reply, "\r\n\r\nback"));
    size_t n = tls_ask(&client, "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", reply, sizeof(reply));
    assert_non_null(strstr(reply, "Connection: close\r\n"));
    assert_true(n > 0);
    assert_int_equal(SSL_read(client.ssl, reply, sizeof(reply)), 0); /* closed as TLS wants it */
    assert_int_equal(SSL_get_error(client.ssl, 0), SSL_ERROR_ZERO_RETURN);
    tls_close(&client);
}

static void a_large_answer_comes_whole_through_tls(void **state)
{
    (void)state;
    struct tls_client client;
    char *reply = malloc(BIG_BYTES + 4096);
    assert_non_null(reply);
    tls_open(&client);
    size_t n = tls_ask(&client, "GET /big HTTP/1.1\r\n" HOST "\r\n", reply, BIG_BYTES + 4096);
    const char *body = strstr(reply, "\r\n\r\n");
    assert_non_null(body);
    body += 4;
    assert_int_equal(n - (size_t)(body - reply), BIG_BYTES);
    for (size_t i = 0; i < BIG_BYTES; i++)
        if (body[i] != (char)('a' + i / 4096 % 26))
            fail_msg("byte %zu is %d", i, body[i]);
    assert_hello(&client);
    tls_close(&client);
    free(reply);
}

/* Many requests in one record: what the server does not want yet waits inside. */
static void pipelined_requests_wait_inside_tls(void **state)
{
    (void)state;
    struct tls_client client;
    struct semel_buf all;
    tls_open(&client);
    semel__buf_init(&all, 1 << 20);
    for (int i = 0; i < 100; i++)
        semel__buf_addf(&all, "POST /later HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\n%03d", i);
    assert_true(SSL_write(client.ssl, all.p, (int)all.n) == (int)all.n);
    all.n = 0;
    for (int found = 0; found < 100;) {
        char some[4096];
        int got = SSL_read(client.ssl, some, sizeof(some));
        assert_true(got > 0);
        assert_true(semel__buf_add(&all, some, (size_t)got) && semel__buf_add(&all, "", 1));
        all.n--;
        found = 0;
        for (const char *p = all.p; (p = strstr(p, "\r\n\r\n")) != NULL; p += 4, found++) {
            char expected[16];
            snprintf(expected, sizeof(expected), "%03d", found);
            if ((size_t)(p + 7 - all.p) > all.n)
                break;
            assert_memory_equal(p + 4, expected, 3);
        }
    }
    semel__buf_done(&all);
    tls_close(&client);
}

static void what_is_older_than_tls_1_2_is_refused(void **state)
{
    (void)state;
    struct tls_client client;
    tls_prepare(&client);
    SSL_CTX_set_security_level(client.ctx, 0);
    SSL_CTX_set_min_proto_version(client.ctx, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(client.ctx, TLS1_1_VERSION);
    assert_false(tls_connect(&client));
    tls_close(&client);
    tls_prepare(&client);
    SSL_CTX_set_max_proto_version(client.ctx, TLS1_2_VERSION);
    assert_true(tls_connect(&client));
    assert_hello(&client);
    tls_close(&client);
}

static void only_http_1_1_is_negotiated(void **state)
{
    (void)state;
    static const unsigned char both[] = "\x02h2\x08http/1.1", h2[] = "\x02h2";
    struct tls_client client;
    const unsigned char *chosen;
    unsigned n;
    tls_prepare(&client);
    SSL_CTX_set_alpn_protos(client.ctx, both, sizeof(both) - 1);
    assert_true(tls_connect(&client));
    SSL_get0_alpn_selected(client.ssl, &chosen, &n);
    assert_int_equal(n, 8);
    assert_memory_equal(chosen, "http/1.1", 8);
    tls_close(&client);
    tls_prepare(&client);
    SSL_CTX_set_alpn_protos(client.ctx, h2, sizeof(h2) - 1);
    assert_false(tls_connect(&client));
    tls_close(&client);
}

static void plain_http_on_a_tls_port_is_told_so(void **state)
{
    (void)state;
    struct reply reply = client_ask(&httpd, "GET /smuggled HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.status, 400);
    assert_non_null(strstr(reply.body, "this port speaks TLS"));
    reply_done(&reply);
    assert_int_equal(atomic_load(&httpd.smuggled), 0);
}

static void garbage_on_a_tls_port_ends_the_connection(void **state)
{
    (void)state;
    static const char *const garbage[] = {"\x16\x03\x01\x40\x00zzzzzzzz", "\xff\xff\xff\xff\xff\xff\xff",
                                          "SSH-2.0-x\r\n"};
    for (size_t i = 0; i < COUNT(garbage); i++) {
        int fd = client_open(&httpd);
        client_sendz(fd, garbage[i]);
        shutdown(fd, SHUT_WR);
        char *rest = client_rest(fd, NULL); /* an alert at most */
        assert_null(strstr(rest, "HTTP/"));
        free(rest);
        close(fd);
    }
    struct tls_client client;
    tls_open(&client);
    assert_hello(&client);
    tls_close(&client);
}

static void a_handshake_that_never_ends_is_cut_off(void **state)
{
    (void)state;
    httpd.settings.limits.head_ms = 100;
    httpd_start(&httpd);
    int fd = client_open(&httpd);
    client_send(fd, "\x16\x03\x01", 3);
    assert_true(client_closed(fd));
    close(fd);
}

/* The serial number that a new client sees. */
static long serial_now(void)
{
    struct tls_client client;
    tls_open(&client);
    long serial = serial_of(&client);
    tls_close(&client);
    return serial;
}

static void a_reload_changes_the_certificate_and_keeps_the_connections(void **state)
{
    (void)state;
    struct tls_client old, fresh;
    struct semel_error err;
    tls_open(&old);
    assert_hello(&old);
    make_pair(cert_file, key_file, 2, NULL);
    assert_int_equal(semel__http_reload(httpd.http, &err), SEMEL_OK);
    assert_int_equal(serial_now(), 1); /* not yet */
    semel__http_reloaded(httpd.http, false);
    assert_int_equal(serial_now(), 1);
    assert_int_equal(semel__http_reload(httpd.http, &err), SEMEL_OK);
    semel__http_reloaded(httpd.http, true);
    tls_open(&fresh);
    assert_int_equal(serial_of(&old), 1);
    assert_int_equal(serial_of(&fresh), 2);
    assert_hello(&old);
    assert_hello(&fresh);
    tls_close(&fresh);

    assert_int_equal(truncate(cert_file, 10), 0); /* what cannot be used changes nothing */
    assert_int_equal(semel__http_reload(httpd.http, &err), SEMEL_INVALID);
    semel__http_reloaded(httpd.http, false);
    assert_non_null(strstr(err.text, "cert.pem"));
    tls_open(&fresh);
    assert_int_equal(serial_of(&fresh), 2);
    assert_hello(&fresh);
    assert_hello(&old);
    tls_close(&fresh);
    tls_close(&old);
}

static void a_client_needs_a_certificate_of_the_ca_if_there_is_one(void **state)
{
    (void)state;
    char ca[DIR_TEXT + 16], ca_key[DIR_TEXT + 16];
    in_dir(ca, "other.pem");
    in_dir(ca_key, "otherkey.pem");
    make_pair(ca, ca_key, 7, NULL);
    httpd.settings.client_ca_file = ca;
    httpd_start(&httpd);
    struct tls_client client;
    char reply[2048] = "";
    tls_prepare(&client); /* nobody; TLS 1.3 tells it with the first read */
    bool connected = tls_connect(&client);
    assert_true(!connected || SSL_read(client.ssl, reply, sizeof(reply)) <= 0);
    tls_close(&client);
    tls_prepare(&client); /* a stranger */
    assert_int_equal(SSL_CTX_use_certificate_file(client.ctx, cert_file, SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(client.ctx, key_file, SSL_FILETYPE_PEM), 1);
    connected = tls_connect(&client);
    assert_true(!connected || SSL_read(client.ssl, reply, sizeof(reply)) <= 0);
    tls_close(&client);
    assert_int_equal(atomic_load(&httpd.handled), 0);
    tls_prepare(&client); /* one of ours */
    assert_int_equal(SSL_CTX_use_certificate_file(client.ctx, ca, SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(client.ctx, ca_key, SSL_FILETYPE_PEM), 1);
    assert_true(tls_connect(&client));
    assert_hello(&client);
    tls_close(&client);
}

/* ---- a client that only renegotiates ---- */

#define RENEGOTIATION 33 /* bytes of a record with the head of a ClientHello: TLS 1.2, AES-128-GCM */
#define FLOOD ((size_t)8 << 20)
#define KEY_BLOCK 40 /* both keys, and the fixed parts of both nonces */

static void derive_keys(SSL *ssl, unsigned char out[KEY_BLOCK])
{
    unsigned char master[48], randoms[64];
    char digest[] = "SHA256", label[] = "key expansion";
    assert_int_equal(SSL_SESSION_get_master_key(SSL_get_session(ssl), master, sizeof master), sizeof master);
    SSL_get_server_random(ssl, randoms, 32);
    SSL_get_client_random(ssl, randoms + 32, 32);
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SECRET, master, sizeof master),
                           OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SEED, label, sizeof label - 1),
                           OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SEED, randoms, sizeof randoms),
                           OSSL_PARAM_construct_end()};
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, OSSL_KDF_NAME_TLS1_PRF, NULL);
    EVP_KDF_CTX *ctx = EVP_KDF_CTX_new(kdf);
    assert_int_equal(EVP_KDF_derive(ctx, out, KEY_BLOCK, params), 1);
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
}

/* The record with this number. OpenSSL's own client would wait for an answer to each. */
static void renegotiate(EVP_CIPHER_CTX *ctx, const unsigned char keys[KEY_BLOCK], uint64_t number, unsigned char *out)
{
    static const unsigned char hello[] = {1, 0, 0, 0}, begin[] = {22, 3, 3, 0, 28};
    unsigned char nonce[12], head[] = {0, 0, 0, 0, 0, 0, 0, 0, 22, 3, 3, 0, sizeof hello};
    int n;
    for (int i = 0; i < 8; i++)
        head[i] = (unsigned char)(number >> (56 - 8 * i));
    memcpy(nonce, keys + 32, 4);
    memcpy(nonce + 4, head, 8);
    memcpy(out, begin, sizeof begin);
    memcpy(out + 5, head, 8);
    assert_true(EVP_EncryptInit_ex(ctx, EVP_aes_128_gcm(), NULL, keys, nonce) == 1 &&
                EVP_EncryptUpdate(ctx, NULL, &n, head, sizeof head) == 1 &&
                EVP_EncryptUpdate(ctx, out + 13, &n, hello, sizeof hello) == 1 &&
                EVP_EncryptFinal_ex(ctx, out + 17, &n) == 1 &&
                EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, 16, out + 17) == 1);
}

static bool takes_more(int fd, int wait_ms)
{
    struct pollfd poller = {.fd = fd, .events = POLLOUT};
    return poll(&poller, 1, wait_ms) == 1;
}

/* P53: each attempt to renegotiate is answered by an alert. A client that does not read them is not read either, so
 * that they do not fill the memory; when it reads them it is read again. */
static void a_client_that_leaves_alerts_unread_is_not_read(void **state)
{
    (void)state;
    struct tls_client client;
    unsigned char keys[KEY_BLOCK], record[RENEGOTIATION];
    char drop[4096];
    int small = 4096;
    size_t sent = 0;
    httpd.settings.limits.head_ms = 600000;
    httpd_start(&httpd);
    tls_prepare(&client);
    SSL_CTX_set_max_proto_version(client.ctx, TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(client.ctx, "ECDHE-ECDSA-AES128-GCM-SHA256");
    assert_true(tls_connect(&client));
    setsockopt(client.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    setsockopt(client.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    derive_keys(client.ssl, keys);
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    for (uint64_t number = 1; sent < FLOOD && takes_more(client.fd, 2000); number++) {
        renegotiate(ctx, keys, number, record);
        assert_int_equal(send(client.fd, record, sizeof record, MSG_NOSIGNAL), sizeof record);
        sent += sizeof record;
    }
    assert_true(sent < FLOOD);
    while (!takes_more(client.fd, 0))
        assert_true(recv(client.fd, drop, sizeof drop, 0) > 0);
    EVP_CIPHER_CTX_free(ctx);
    tls_close(&client);
}

static void files_that_cannot_be_used_are_named(void **state)
{
    (void)state;
    char other[DIR_TEXT + 16], other_key[DIR_TEXT + 16];
    struct semel_error err;
    in_dir(other, "other.pem");
    in_dir(other_key, "otherkey.pem");
    make_pair(other, other_key, 3, "secret");
    assert_int_equal(semel__http_new(&httpd.http, NULL, &err), SEMEL_OK);
    struct semel_http_settings settings = httpd.settings;
    settings.key_file = other_key; /* with a passphrase: nobody is asked for it */
    assert_int_equal(semel__http_listen(httpd.http, &settings, NULL, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "otherkey.pem"));
    make_pair(other, other_key, 3, NULL);
    assert_int_equal(semel__http_listen(httpd.http, &settings, NULL, &err), SEMEL_INVALID); /* not this one's key */
    assert_non_null(strstr(err.text, "otherkey.pem"));
    settings = httpd.settings;
    settings.cert_file = "/nowhere/cert.pem";
    assert_int_equal(semel__http_listen(httpd.http, &settings, NULL, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "/nowhere/cert.pem"));
    settings = httpd.settings;
    settings.client_ca_file = key_file;
    assert_int_equal(semel__http_listen(httpd.http, &settings, NULL, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "client CA"));
    settings = httpd.settings;
    settings.address = "0.0.0.0:0"; /* with TLS it may be anywhere */
    assert_int_equal(semel__http_listen(httpd.http, &settings, NULL, &err), SEMEL_OK);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up_running, tear_down)
#define OWN(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(requests_are_answered_through_tls),
        CASE(a_large_answer_comes_whole_through_tls),
        CASE(pipelined_requests_wait_inside_tls),
        CASE(what_is_older_than_tls_1_2_is_refused),
        CASE(only_http_1_1_is_negotiated),
        CASE(plain_http_on_a_tls_port_is_told_so),
        CASE(garbage_on_a_tls_port_ends_the_connection),
        OWN(a_handshake_that_never_ends_is_cut_off),
        OWN(a_client_that_leaves_alerts_unread_is_not_read),
        CASE(a_reload_changes_the_certificate_and_keeps_the_connections),
        OWN(a_client_needs_a_certificate_of_the_ca_if_there_is_one),
        OWN(files_that_cannot_be_used_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
