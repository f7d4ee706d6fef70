/* SPDX-License-Identifier: MIT
 *
 * test_sqs_tls.c: the SQS driver through TLS: whom it believes, and that nobody else ever sees a request.
 */
#define _GNU_SOURCE /* unshare */
#include <signal.h>
#include <arpa/inet.h>
#include <curl/curl.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sqs/side.h"

#define ANSWER                                                                              \
    "{\"Messages\":[{\"MessageId\":\"m-1\",\"ReceiptHandle\":\"r-1\",\"Body\":\"hello\"}]," \
    "\"Successful\":[{\"Id\":\"0\"}]}"

/* One connection at a time, one request a connection. */
static struct {
    SSL_CTX *tls;
    char ca_file[32];
    int fd, port;
    pthread_t thread;
    atomic_int requests;
} server;
static struct sqs_side side;

static void answer(SSL *ssl)
{
    static const char reply[] = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n" ANSWER;
    char text[8192], whole[1024];
    size_t n = 0;
    int got;

    do { /* the body ends with a brace */
        got = SSL_read(ssl, text + n, (int)(sizeof text - 1 - n));
        n += got > 0 ? (size_t)got : 0;
        text[n] = '\0';
    } while (got > 0 && (strstr(text, "\r\n\r\n") == NULL || text[n - 1] != '}'));
    if (got <= 0)
        return;
    server.requests++;
    snprintf(whole, sizeof whole, reply, strlen(ANSWER));
    SSL_write(ssl, whole, (int)strlen(whole));
    SSL_shutdown(ssl);
}

static void *serve(void *ctx)
{
    int fd;

    (void)ctx;
    while ((fd = accept(server.fd, NULL, NULL)) >= 0) {
        SSL *ssl = SSL_new(server.tls);
        SSL_set_fd(ssl, fd);
        if (SSL_accept(ssl) == 1)
            answer(ssl);
        SSL_free(ssl);
        close(fd);
    }
    return NULL;
}

/* Signed by itself, for `name` ("IP:127.0.0.1"), written to a new file; the server shows it, unless `tls` is NULL. */
static void make_certificate(SSL_CTX *tls, const char *name, char ret_file[32])
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    X509_EXTENSION *names = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, name);
    FILE *file;
    int fd;

    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    X509_add_ext(cert, names, -1);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    if (tls != NULL) {
        assert_int_equal(SSL_CTX_use_certificate(tls, cert), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey(tls, key), 1);
    }
    snprintf(ret_file, 32, "/tmp/semel-ca-XXXXXX");
    fd = mkstemp(ret_file);
    file = fd >= 0 ? fdopen(fd, "w") : NULL;
    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, cert), 1);
    fclose(file);
    X509_EXTENSION_free(names);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void start(const char *name, int newest)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;

    server.requests = 0;
    server.tls = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_security_level(server.tls, 0); /* else it would not offer TLS 1.1 at all */
    SSL_CTX_set_min_proto_version(server.tls, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(server.tls, newest);
    make_certificate(server.tls, name, server.ca_file);
    server.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(server.fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(server.fd, 8), 0);
    assert_int_equal(getsockname(server.fd, (struct sockaddr *)&address, &n), 0);
    server.port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&server.thread, NULL, serve, NULL), 0);
}

static void open_side(bool trusted, bool no_verify)
{
    char url[64];
    const struct semel_sqs_options options = {.url = url,
                                              .region = "e",
                                              .access_key = "AKID",
                                              .secret_key = "secret-secret",
                                              .tls.ca_file = trusted ? server.ca_file : NULL,
                                              .tls.no_verify = no_verify};

    snprintf(url, sizeof url, "https://127.0.0.1:%d/1/queue", server.port);
    sqs_side_open_with(&side, &options);
}

static void stop(void)
{
    sqs_side_close(&side);
    shutdown(server.fd, SHUT_RDWR);
    pthread_join(server.thread, NULL);
    close(server.fd);
    SSL_CTX_free(server.tls);
    unlink(server.ca_file);
}

static void server_whose_certificate_is_trusted_is_asked(void **state)
{
    (void)state;
    start("IP:127.0.0.1", TLS1_3_VERSION);
    open_side(true, false);
    sqs_side_wait(&side, 1);
    assert_string_equal(side.got[0].body, "hello");
    assert_true(server.requests > 0);
    stop();
}

static void server_that_nobody_vouches_for_is_told_nothing(void **state)
{
    (void)state;
    start("IP:127.0.0.1", TLS1_3_VERSION);
    open_side(false, false);
    assert_int_equal(sqs_side_wait_error(&side), SEMEL_INVALID);
    assert_int_equal(side.err.cls, SEMEL_CLASS_BROKEN);
    assert_int_equal(server.requests, 0);
    stop();
}

static void server_of_another_name_is_told_nothing(void **state)
{
    (void)state;
    start("DNS:sqs.example.org,IP:127.0.0.2", TLS1_3_VERSION);
    open_side(true, false);
    assert_int_equal(sqs_side_wait_error(&side), SEMEL_INVALID);
    assert_int_equal(server.requests, 0);
    stop();
}

static void what_is_older_than_tls_1_2_is_refused(void **state)
{
    (void)state;
    start("IP:127.0.0.1", TLS1_1_VERSION);
    open_side(true, false);
    assert_int_equal(sqs_side_wait_error(&side), SEMEL_RETRY);
    assert_int_equal(server.requests, 0);
    stop();
}

/* The folder of the system's CAs that is compiled into curl has the server's certificate; only this process sees it. */
static void trust_by_folder(const char *folder)
{
    FILE *file = fopen(server.ca_file, "r");
    X509 *cert = PEM_read_X509(file, NULL, NULL, NULL);
    char path[256];

    fclose(file);
    assert_int_equal(mount("tmpfs", folder, "tmpfs", 0, "size=1m"), 0);
    snprintf(path, sizeof path, "%s/%08lx.0", folder, X509_subject_name_hash(cert));
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, cert), 1);
    fclose(file);
    X509_free(cert);
}

static void whom_only_the_system_trusts_does_not_count_beside_ca_file(void **state)
{
    const char *folder = curl_version_info(CURLVERSION_NOW)->capath;
    char of_the_server[32];

    (void)state;
    if (folder == NULL || access(folder, F_OK) != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        print_message("curl has no folder of CAs, or this user may not mount\n");
        skip();
    }
    start("IP:127.0.0.1", TLS1_3_VERSION);
    trust_by_folder(folder);
    memcpy(of_the_server, server.ca_file, sizeof of_the_server);
    make_certificate(NULL, "DNS:stranger", server.ca_file);
    open_side(true, false);
    assert_int_equal(sqs_side_wait_error(&side), SEMEL_INVALID);
    assert_int_equal(server.requests, 0);
    assert_int_equal(umount(folder), 0);
    unlink(of_the_server);
    stop();
}

static void verification_can_be_switched_off(void **state)
{
    (void)state;
    start("DNS:sqs.example.org", TLS1_2_VERSION);
    open_side(false, true);
    sqs_side_wait(&side, 1);
    stop();
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* a client that refuses the server's certificate goes away */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(server_whose_certificate_is_trusted_is_asked),
        cmocka_unit_test(server_that_nobody_vouches_for_is_told_nothing),
        cmocka_unit_test(server_of_another_name_is_told_nothing),
        cmocka_unit_test(what_is_older_than_tls_1_2_is_refused),
        cmocka_unit_test(whom_only_the_system_trusts_does_not_count_beside_ca_file),
        cmocka_unit_test(verification_can_be_switched_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
