/* SPDX-License-Identifier: MIT
 *
 * amqp_link.c: one connection to the server: its settings, connecting, TLS, sending, receiving, and what its errors
 * mean; and what the server says of a queue, for who only wants to know.
 *
 * librabbitmq sends without a time-out. So nothing is sent before the socket has room for all of it: the send buffer is
 * made large enough that a socket which can be written to takes a whole piece at once. Should that fail nevertheless,
 * TCP_USER_TIMEOUT ends the wait (P31).
 *
 * TLS is 1.2 at least, and the server must be who the URL says. librabbitmq looks at the certificate after the
 * handshake and knows names only, no addresses. Here OpenSSL itself checks both, within the handshake, so that nothing
 * is sent to a stranger.
 *
 * Invariants: all strings of a conf lie in one piece of memory that is wiped before it is freed; no text of an error
 * holds a password. A call that fails has said why and what to do; who calls decides whether the link is closed. The
 * server's texts are shown as text, whatever they hold.
 */
#define _GNU_SOURCE /* memmem */
#include "broker/amqp_private.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

#ifdef SEMEL_AMQP_NEW_HEADERS
#include <rabbitmq-c/ssl_socket.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#endif

#include "broker/tls_why.h"

#define URL_MAX 4096
#define TEXT_MAX ((size_t)32 << 10)
#define SECRET_MAX 4096
#define PORT 5672
#define PORT_TLS 5671
#define PREFETCH 1000
#define HEARTBEAT_S 30
#define HEARTBEAT_MAX_S 600
#define SECOND_US INT64_C(1000000)
#define TIMEOUT_MS 10000
#define TIMEOUT_MAX_MS 600000
#define CLOSE_MS 3000
#define SEND_BUFFER (256 << 10)
#define FRAME_MAX_BYTES AMQP_DEFAULT_FRAME_SIZE
#define KEEP_IDLE_S 30
#define KEEP_STEP_S 10
#define KEEP_TRIES 3

/* ---- settings ------------------------------------------------------------------------------------------ */

static semel_status wrong(struct semel_error *err, const char *what)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: %s", what);
}

static semel_status wrong_url(struct semel_error *err)
{
    return wrong(err, "the URL must look like amqp://USER:PASSWORD@HOST:PORT/VHOST, with %XX for odd bytes");
}

/* Cuts the text at `found`; what is behind it, or NULL. */
static char *cut(char *found)
{
    if (found != NULL)
        *found++ = '\0';
    return found;
}

static bool number_in(const char *text, int64_t low, int64_t high, int *ret)
{
    int64_t number;

    if (!semel__str_int64(semel__str(text), &number) || number < low || number > high)
        return false;
    *ret = (int)number;
    return true;
}

/* HOST, HOST:PORT, [ADDRESS], [ADDRESS]:PORT */
static bool take_host(struct amqp_conf *conf, char *text)
{
    char *port;

    if (text[0] == '[') {
        char *end = strchr(text, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return false;
        port = end[1] == ':' ? end + 2 : NULL;
        *end = '\0';
        text++;
    } else {
        port = cut(strchr(text, ':'));
    }
    if (port != NULL && !number_in(port, 1, 65535, &conf->port))
        return false;
    conf->host = text[0] != '\0' ? text : "localhost";
    return semel__unescape(text);
}

/* USER:PASSWORD@HOST:PORT/VHOST; `text` is ours and stays. */
static bool take_place(struct amqp_conf *conf, char *text)
{
    char *vhost = cut(strchr(text, '/'));
    char *host = cut(strrchr(text, '@'));

    if (host != NULL) {
        char *password = cut(strchr(text, ':'));
        if (!semel__unescape(text) || (password != NULL && !semel__unescape(password)))
            return false;
        conf->user = text;
        conf->password = password;
    }
    if (vhost != NULL && (strchr(vhost, '/') != NULL || !semel__unescape(vhost)))
        return false;
    conf->vhost = vhost != NULL && vhost[0] != '\0' ? vhost : "/";
    return take_host(conf, host != NULL ? host : text);
}

static semel_status check(const struct semel_amqp_options *o, struct semel_error *err)
{
    if (o->url == NULL || strlen(o->url) >= URL_MAX)
        return wrong_url(err);
    if (o->queue != NULL && (o->queue[0] == '\0' || strlen(o->queue) > AMQP_SHORT_MAX))
        return wrong(err, "the queue's name must have 1 to 255 bytes");
    if (o->prefetch < 0 || o->prefetch > AMQP_PREFETCH_MAX)
        return wrong(err, "prefetch must be 1 to 65535");
    if (o->heartbeat_us < 0 || o->heartbeat_us > HEARTBEAT_MAX_S * SECOND_US)
        return wrong(err, "the heartbeat must be 1 to 600 seconds");
    if (o->timeout_ms < 0 || o->timeout_ms > TIMEOUT_MAX_MS)
        return wrong(err, "the time-out must be 1 to 600000 milliseconds");
    if ((o->tls.cert_file != NULL) != (o->tls.key_file != NULL))
        return wrong(err, "a certificate and its key belong together; one of them is missing");
    if (o->password != NULL && o->user == NULL)
        return wrong(err, "there is a password, and no user to whom it belongs");
    return SEMEL_OK;
}

/* Copies a string into the conf's text; NULL stays NULL. */
static const char *keep(struct amqp_conf *conf, const char *text)
{
    const size_t n = text != NULL ? strlen(text) + 1 : 0;
    char *copy = conf->text + conf->n_text;

    if (text == NULL)
        return NULL;
    memcpy(copy, text, n);
    conf->n_text += n;
    return copy;
}

static size_t length(const struct semel_amqp_options *o)
{
    const char *const texts[] = {o->url,         o->queue,         o->user,         o->password,
                                 o->tls.ca_file, o->tls.cert_file, o->tls.key_file, o->tls.key_password};
    size_t n = 0;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        n += texts[i] != NULL ? strlen(texts[i]) + 1 : 0;
    return n;
}

static semel_status take_url(struct amqp_conf *conf, const char *url, struct semel_error *err)
{
    char *text = (char *)(uintptr_t)keep(conf, url); /* in our own memory */

    if (strncmp(text, "amqps://", 8) == 0)
        conf->tls = true;
    else if (strncmp(text, "amqp://", 7) != 0)
        return wrong_url(err);
    conf->port = conf->tls ? PORT_TLS : PORT;
    if (strpbrk(text, " \t\r\n?#") != NULL || !take_place(conf, text + (conf->tls ? 8 : 7)))
        return wrong_url(err);
    return SEMEL_OK;
}

static void take_rest(struct amqp_conf *conf, const struct semel_amqp_options *o)
{
    if (o->user != NULL) {
        conf->user = keep(conf, o->user);
        conf->password = keep(conf, o->password);
    }
    conf->external = conf->tls && conf->user == NULL && o->tls.cert_file != NULL;
    conf->user = conf->user != NULL ? conf->user : "guest";
    conf->password = conf->password != NULL ? conf->password : "guest";
    conf->queue = keep(conf, o->queue);
    conf->ca_file = keep(conf, o->tls.ca_file);
    conf->cert_file = keep(conf, o->tls.cert_file);
    conf->key_file = keep(conf, o->tls.key_file);
    conf->key_password = keep(conf, o->tls.key_password);
    conf->prefetch = o->prefetch > 0 ? o->prefetch : PREFETCH;
    conf->heartbeat_s = o->heartbeat_us > 0 ? (int)((o->heartbeat_us + SECOND_US - 1) / SECOND_US) : HEARTBEAT_S;
    conf->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : TIMEOUT_MS;
    conf->declare = o->declare;
    conf->single_active = o->single_active;
    conf->no_verify = o->tls.no_verify;
}

semel_status semel__amqp_configure(struct amqp_conf *conf, const struct semel_amqp_options *o, struct semel_error *err)
{
    semel_status status = check(o, err);
    size_t n;

    *conf = (struct amqp_conf){0};
    if (status != SEMEL_OK)
        return status;
    n = length(o);
    if (n > TEXT_MAX)
        return wrong(err, "the settings are longer than 32 KiB");
    conf->text = semel__alloc(n);
    if (conf->text == NULL)
        return semel__fail_memory(err);
    status = take_url(conf, o->url, err);
    if (status == SEMEL_OK)
        take_rest(conf, o);
    if (status == SEMEL_OK && (strlen(conf->user) > AMQP_SHORT_MAX || strlen(conf->password) > SECRET_MAX ||
                               strlen(conf->vhost) > AMQP_SHORT_MAX))
        status = wrong(err, "the user or the vhost is longer than 255 bytes, or the password than 4096");
    if (status != SEMEL_OK)
        semel__amqp_conf_done(conf);
    return status;
}

void semel__amqp_conf_done(struct amqp_conf *conf)
{
    if (conf->text != NULL)
        explicit_bzero(conf->text, conf->n_text);
    semel__free(conf->text);
    *conf = (struct amqp_conf){0};
}

/* ---- bytes and times ----------------------------------------------------------------------------------- */

int64_t semel__amqp_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static struct timeval timeval_of(int64_t us)
{
    us = us > 0 ? us : 0;
    return (struct timeval){.tv_sec = us / 1000000, .tv_usec = us % 1000000};
}

struct semel_str semel__amqp_str(amqp_bytes_t bytes)
{
    return (struct semel_str){bytes.len > 0 ? bytes.bytes : "", bytes.len};
}

/* ---- errors -------------------------------------------------------------------------------------------- */

/* Why the last handshake failed, or "". */
static const char *tls_reason(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());

    ERR_clear_error();
    return reason != NULL ? reason : "";
}

/* Codes by which the server says that it knows us, and will not do what we want. */
static bool is_refusal(int code, struct semel_str text)
{
    const struct semel_str home = SEMEL_STR("home node");

    switch (code) {
    case AMQP_NOT_FOUND: /* a queue whose node is down is called not found as well */
        return memmem(text.p, text.n, home.p, home.n) == NULL;
    case AMQP_ACCESS_REFUSED:
    case AMQP_PRECONDITION_FAILED:
    case AMQP_NOT_ALLOWED:
    case AMQP_INVALID_PATH:
    case AMQP_NOT_IMPLEMENTED:
        return true;
    default:
        return false;
    }
}

semel_status semel__amqp_fail_close(const amqp_method_t *method, const char *what, struct semel_error *err)
{
    struct semel_str text = SEMEL_STR("the server closed the connection");
    int code = 0;
    char shown[160];
    bool refused;

    if (method->id == AMQP_CONNECTION_CLOSE_METHOD) {
        const amqp_connection_close_t *close = method->decoded;
        code = close->reply_code;
        text = semel__amqp_str(close->reply_text);
    } else if (method->id == AMQP_CHANNEL_CLOSE_METHOD) {
        const amqp_channel_close_t *close = method->decoded;
        code = close->reply_code;
        text = semel__amqp_str(close->reply_text);
    }
    refused = is_refusal(code, text);
    semel__str_show(shown, sizeof shown, text);
    (void)semel__fail(err, refused ? SEMEL_INVALID : SEMEL_RETRY,
                      refused ? SEMEL_CLASS_BROKEN : SEMEL_CLASS_ENVIRONMENT, "amqp: %s: %s", what, shown);
    if (err != NULL)
        err->code = code;
    return refused ? SEMEL_INVALID : SEMEL_RETRY;
}

semel_status semel__amqp_fail_library(int code, const char *what, struct semel_error *err)
{
    const bool tls = code <= AMQP_STATUS_SSL_ERROR && code > _AMQP_STATUS_SSL_NEXT_VALUE;
    const char *reason = tls ? tls_reason() : "";
    /* Not the right server, or not for us: waiting does not help. */
    const bool refused = strstr(reason, "certificate") != NULL || code == AMQP_STATUS_BROKER_UNSUPPORTED_SASL_METHOD;

    if (code == AMQP_STATUS_NO_MEMORY)
        return semel__fail_memory(err);
    (void)semel__fail(err, refused ? SEMEL_INVALID : SEMEL_RETRY,
                      refused ? SEMEL_CLASS_BROKEN : SEMEL_CLASS_ENVIRONMENT, "amqp: %s: %s%s%s", what,
                      amqp_error_string2(code), reason[0] != '\0' ? ": " : "", reason);
    if (err != NULL)
        err->code = code;
    return refused ? SEMEL_INVALID : SEMEL_RETRY;
}

semel_status semel__amqp_fail_reply(amqp_rpc_reply_t reply, const char *what, struct semel_error *err)
{
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION)
        return semel__amqp_fail_close(&reply.reply, what, err);
    return semel__amqp_fail_library(reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION ? reply.library_error
                                                                                        : AMQP_STATUS_CONNECTION_CLOSED,
                                    what, err);
}

/* ---- sending and receiving ----------------------------------------------------------------------------- */

bool semel__amqp_has_room(const struct amqp_link *link)
{
    struct pollfd fd = {.fd = amqp_get_sockfd(link->conn), .events = POLLOUT};
    const int64_t until_us = semel__amqp_now_us() + (int64_t)link->timeout_ms * 1000;

    while (fd.fd >= 0) {
        const int64_t left_us = until_us - semel__amqp_now_us();
        const int n = poll(&fd, 1, left_us > 0 ? (int)((left_us + 999) / 1000) : 0);
        if (n > 0)
            return true; /* an error is found by who sends */
        if (left_us <= 0)
            return false;
    }
    return false;
}

semel_status semel__amqp_send(struct amqp_link *link, amqp_channel_t channel, amqp_method_number_t id, void *method,
                              struct semel_error *err)
{
    int code = AMQP_STATUS_TIMEOUT;

    if (semel__amqp_has_room(link))
        code = amqp_send_method(link->conn, channel, id, method);
    return code == AMQP_STATUS_OK ? SEMEL_OK : semel__amqp_fail_library(code, "sending", err);
}

semel_status semel__amqp_receive(struct amqp_link *link, int64_t wait_us, amqp_frame_t *ret, bool *ret_got,
                                 struct semel_error *err)
{
    const struct timeval wait = timeval_of(wait_us);
    int code;

    amqp_maybe_release_buffers(link->conn); /* what the last frame held has been copied */
    code = amqp_simple_wait_frame_noblock(link->conn, ret, &wait);
    *ret_got = code == AMQP_STATUS_OK;
    if (code == AMQP_STATUS_OK || code == AMQP_STATUS_TIMEOUT)
        return SEMEL_OK;
    return semel__amqp_fail_library(code, "the connection is lost", err);
}

semel_status semel__amqp_link_method(struct amqp_link *link, const amqp_method_t *method, struct semel_error *err)
{
    amqp_connection_close_ok_t ok = {0};
    semel_status status;

    switch (method->id) {
    case AMQP_CONNECTION_BLOCKED_METHOD:
        link->blocked = true;
        return SEMEL_OK;
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        link->blocked = false;
        return SEMEL_OK;
    case AMQP_CONNECTION_CLOSE_METHOD:
        status = semel__amqp_fail_close(method, "the server closes the connection", err);
        (void)semel__amqp_send(link, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &ok, NULL);
        return status;
    default:
        return SEMEL_OK;
    }
}

/* ---- TLS ----------------------------------------------------------------------------------------------- */

static semel_status wrong_file(const char *what, const char *file, const char *hint, struct semel_error *err)
{
    char shown[120];

    semel__str_show(shown, sizeof shown, semel__str(file));
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: %s %s cannot be used: %s%s", what, shown,
                       tls_reason(), hint);
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
/* A socket for the link, which is deleted with it. */
static semel_status tls_socket(struct amqp_link *link, const struct amqp_conf *conf, amqp_socket_t **ret,
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

/* ---- connecting ---------------------------------------------------------------------------------------- */

static void set_option(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof value); /* without it we are only slower to notice */
}

static void set_socket(int fd, int patience_ms)
{
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, patience_ms);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_STEP_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_TRIES);
    set_option(fd, SOL_SOCKET, SO_SNDBUF, SEND_BUFFER);
}

/* Whether by TLS is often the mistake. */
static void show_place(char *out, size_t n, const char *doing, const struct amqp_conf *conf)
{
    char host[80];

    semel__str_show(host, sizeof host, semel__str(conf->host));
    snprintf(out, n, "%s %s, port %d, %s TLS", doing, host, conf->port, conf->tls ? "by" : "without");
}

static semel_status open_socket(struct amqp_link *link, const struct amqp_conf *conf, struct semel_error *err)
{
    const struct timeval timeout = timeval_of((int64_t)conf->timeout_ms * 1000);
    amqp_socket_t *socket = NULL;
    char what[160];
    int code;

    if (conf->tls) {
        semel_status status = tls_socket(link, conf, &socket, err);
        if (status != SEMEL_OK)
            return status;
    } else {
        socket = amqp_tcp_socket_new(link->conn);
    }
    if (socket == NULL)
        return semel__fail_memory(err);
    code = amqp_socket_open_noblock(socket, conf->host, conf->port, &timeout);
    if (code == AMQP_STATUS_OK) {
        set_socket(amqp_get_sockfd(link->conn), conf->timeout_ms);
        return SEMEL_OK;
    }
    show_place(what, sizeof what, "connecting to", conf);
    if (link->x509 != 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: %s: its certificate is not believed: %s",
                           what, semel__tls_why(link->x509));
    return semel__amqp_fail_library(code, what, err);
}

static amqp_table_entry_t flag_entry(const char *name)
{
    return (amqp_table_entry_t){.key = amqp_cstring_bytes(name),
                                .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}};
}

static semel_status fail_login(const struct amqp_conf *conf, amqp_rpc_reply_t reply, struct semel_error *err)
{
    char what[256], place[200], doing[80], user[48], vhost[48];

    semel__str_show(user, sizeof user, conf->external ? SEMEL_STR("the certificate says") : semel__str(conf->user));
    semel__str_show(vhost, sizeof vhost, semel__str(conf->vhost));
    snprintf(doing, sizeof doing, "logging in as %s at", user);
    show_place(place, sizeof place, doing, conf);
    snprintf(what, sizeof what, "%s, vhost %s", place, vhost);
    return semel__amqp_fail_reply(reply, what, err);
}

static semel_status log_in(struct amqp_link *link, const struct amqp_conf *conf, int heartbeat_s,
                           struct semel_error *err)
{
    amqp_table_entry_t can[] = {flag_entry("consumer_cancel_notify"), flag_entry("connection.blocked"),
                                flag_entry("basic.nack"), flag_entry("publisher_confirms")};
    amqp_table_entry_t about[] = {
        {.key = amqp_cstring_bytes("connection_name"),
         .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes("semel")}},
        {.key = amqp_cstring_bytes("capabilities"),
         .value = {.kind = AMQP_FIELD_KIND_TABLE, .value.table = {.num_entries = 4, .entries = can}}},
    };
    const amqp_table_t table = {.num_entries = 2, .entries = about};
    amqp_rpc_reply_t reply;

    if (conf->external)
        reply = amqp_login_with_properties(link->conn, conf->vhost, 0, FRAME_MAX_BYTES, heartbeat_s, &table,
                                           AMQP_SASL_METHOD_EXTERNAL, " "); /* the library cannot send nothing */
    else
        reply = amqp_login_with_properties(link->conn, conf->vhost, 0, FRAME_MAX_BYTES, heartbeat_s, &table,
                                           AMQP_SASL_METHOD_PLAIN, conf->user, conf->password);
    return reply.reply_type == AMQP_RESPONSE_NORMAL ? SEMEL_OK : fail_login(conf, reply, err);
}

semel_status semel__amqp_open_channel(struct amqp_link *link, struct semel_error *err)
{
    if (!semel__amqp_has_room(link))
        return semel__amqp_fail_library(AMQP_STATUS_TIMEOUT, "opening a channel", err);
    if (amqp_channel_open(link->conn, AMQP_CHANNEL) == NULL)
        return semel__amqp_fail_reply(amqp_get_rpc_reply(link->conn), "opening a channel", err);
    return SEMEL_OK;
}

semel_status semel__amqp_close_channel(struct amqp_link *link, struct semel_error *err)
{
    amqp_rpc_reply_t reply;

    if (!semel__amqp_has_room(link))
        return semel__amqp_fail_library(AMQP_STATUS_TIMEOUT, "closing the channel", err);
    reply = amqp_channel_close(link->conn, AMQP_CHANNEL, AMQP_REPLY_SUCCESS);
    return reply.reply_type == AMQP_RESPONSE_NORMAL ? SEMEL_OK
                                                    : semel__amqp_fail_reply(reply, "closing the channel", err);
}

semel_status semel__amqp_link_open(struct amqp_link *link, const struct amqp_conf *conf, int heartbeat_s,
                                   struct semel_error *err)
{
    const struct timeval timeout = timeval_of((int64_t)conf->timeout_ms * 1000);
    semel_status status;

    *link = (struct amqp_link){.conn = amqp_new_connection(), .timeout_ms = conf->timeout_ms};
    if (link->conn == NULL)
        return semel__fail_memory(err);
    amqp_set_handshake_timeout(link->conn, &timeout);
    amqp_set_rpc_timeout(link->conn, &timeout);
    status = open_socket(link, conf, err);
    if (status == SEMEL_OK)
        status = log_in(link, conf, heartbeat_s, err);
    if (status == SEMEL_OK)
        status = semel__amqp_open_channel(link, err);
    if (status != SEMEL_OK)
        semel__amqp_link_close(link, false);
    return status;
}

void semel__amqp_link_close(struct amqp_link *link, bool in_peace)
{
    const struct timeval timeout = timeval_of(CLOSE_MS * 1000);

    if (link->conn == NULL)
        return;
    if (in_peace && semel__amqp_has_room(link)) {
        amqp_set_rpc_timeout(link->conn, &timeout);
        (void)amqp_connection_close(link->conn, AMQP_REPLY_SUCCESS);
    }
    amqp_destroy_connection(link->conn);
    *link = (struct amqp_link){0};
}

/* ---- questions ----------------------------------------------------------------------------------------- */

static semel_status ask_queue(struct amqp_link *link, const char *queue, struct semel_amqp_answer *ret,
                              struct semel_error *err)
{
    const amqp_queue_declare_ok_t *ok = amqp_queue_declare(link->conn, AMQP_CHANNEL, amqp_cstring_bytes(queue), 1, 0, 0,
                                                           0, amqp_empty_table);
    struct semel_error why;
    semel_status status;

    if (ok != NULL) {
        *ret = (struct semel_amqp_answer){true, ok->message_count, ok->consumer_count};
        return SEMEL_OK;
    }
    status = semel__amqp_fail_reply(amqp_get_rpc_reply(link->conn), "asking for the queue", &why);
    if (status == SEMEL_INVALID && why.code == AMQP_NOT_FOUND) {
        *ret = (struct semel_amqp_answer){0};
        return SEMEL_OK;
    }
    if (err != NULL)
        *err = why;
    return status;
}

semel_status semel__amqp_ask(const struct semel_amqp_options *options, struct semel_amqp_answer *ret,
                             struct semel_error *err)
{
    struct amqp_conf conf;
    struct amqp_link link;
    semel_status status = semel__amqp_configure(&conf, options, err);

    if (status != SEMEL_OK)
        return status;
    if (conf.queue == NULL)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: there is no queue to ask for; set queue");
    if (status == SEMEL_OK)
        status = semel__amqp_link_open(&link, &conf, 0, err);
    if (status == SEMEL_OK) {
        status = ask_queue(&link, conf.queue, ret, err);
        semel__amqp_link_close(&link, true);
    }
    semel__amqp_conf_done(&conf);
    return status;
}
