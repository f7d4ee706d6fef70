/* SPDX-License-Identifier: MIT
 *
 * amqp_link.c: one connection to the server: connecting, TLS, sending, receiving, and the meaning of its errors; and
 * the sink, which has a connection of its own: publishing, persistent, mandatory and confirmed (P32).
 *
 * librabbitmq sends without a time-out. So we send only when the socket has room for all of it: the send buffer is
 * large enough that a writable socket accepts a whole frame at once. If that fails nevertheless, TCP_USER_TIMEOUT
 * ends the wait (P31).
 *
 * TLS is 1.2 at least, and the server must have the host of the URL. librabbitmq checks the certificate after the
 * handshake and knows only names, no addresses. Here OpenSSL itself checks both, within the handshake, so that
 * nothing is sent to the wrong server.
 *
 * The server counts what is published on a channel from 1 on and confirms by number. A message that no queue accepts
 * is returned before its confirmation, in the order of sending, without its number: it is the next one to the same
 * place with the same id. A message that makes the server close the channel (a missing exchange, a body that is too
 * large) also loses everything on its way; so the first message to an exchange, and large ones, are sent alone. The
 * sink's connection is opened by the first publish, has no heartbeats, and is closed when an answer is missing: a
 * late answer must not count for another message.
 *
 * Invariants: no error text contains a password. An error has the reason and what to do; the caller decides whether
 * to close the link. The server's texts are escaped. An item is RETRY until its first byte is sent, and UNKNOWN from
 * then on until the server answers.
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

#ifdef SEMEL_AMQP_NEW_HEADERS
#include <rabbitmq-c/ssl_socket.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#endif

#include "broker/tls_why.h"

#define CLOSE_MS 3000
#define SEND_BUFFER (256 << 10)
#define FRAME_MAX_BYTES AMQP_DEFAULT_FRAME_SIZE
#define KEEP_IDLE_S 30
#define KEEP_STEP_S 10
#define KEEP_TRIES 3
#define ALONE_BYTES ((size_t)1 << 20)
#define FRAME_REST 2048 /* of a frame: everything but the table of headers */
#define FRAME_ENDS 8    /* of a frame: the bytes around its payload */
#define LOOK_EVERY 16

/* ---- bytes and times ----------------------------------------------------------------------------------- */

static struct timeval timeval_of(int64_t us)
{
    us = us > 0 ? us : 0;
    return (struct timeval){.tv_sec = us / 1000000, .tv_usec = us % 1000000};
}

/* How long one step may take: timeout_ms, or what remains of a publish. */
static int64_t patience_us(const struct amqp_link *link)
{
    const int64_t step_us = (int64_t)link->timeout_ms * 1000;
    const int64_t left_us = link->until_us != SEMEL_NONE ? link->until_us - semel__steady_us() : step_us;

    return left_us < 0 ? 0 : left_us < step_us ? left_us : step_us;
}

/* ---- errors -------------------------------------------------------------------------------------------- */

/* Why the last handshake failed, or "". */
static const char *tls_reason(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());

    ERR_clear_error();
    return reason != NULL ? reason : "";
}

/* Codes with which the server refuses our request for good. */
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

static semel_status fail_close(const amqp_method_t *method, const char *what, struct semel_error *err)
{
    struct semel_str text = SEMEL_STR("the server closed the connection");
    int code = 0;
    char shown[160];
    bool refused;

    if (method->id == AMQP_CONNECTION_CLOSE_METHOD) {
        const amqp_connection_close_t *close = method->decoded;
        code = close->reply_code;
        text = amqp_str(close->reply_text);
    } else if (method->id == AMQP_CHANNEL_CLOSE_METHOD) {
        const amqp_channel_close_t *close = method->decoded;
        code = close->reply_code;
        text = amqp_str(close->reply_text);
    }
    refused = is_refusal(code, text);
    semel__str_show(shown, sizeof shown, text);
    (void)semel__fail(err, refused ? SEMEL_INVALID : SEMEL_RETRY,
                      refused ? SEMEL_CLASS_BROKEN : SEMEL_CLASS_ENVIRONMENT, "amqp: %s: %s", what, shown);
    if (err != NULL)
        err->code = code;
    return refused ? SEMEL_INVALID : SEMEL_RETRY;
}

static semel_status fail_library(int code, const char *what, struct semel_error *err)
{
    const bool tls = code <= AMQP_STATUS_SSL_ERROR && code > _AMQP_STATUS_SSL_NEXT_VALUE;
    const char *reason = tls ? tls_reason() : "";
    /* Not the right server, or it does not accept us: waiting does not help. */
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
        return fail_close(&reply.reply, what, err);
    return fail_library(reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION ? reply.library_error
                                                                            : AMQP_STATUS_CONNECTION_CLOSED,
                        what, err);
}

/* ---- sending and receiving ----------------------------------------------------------------------------- */

static bool has_room(const struct amqp_link *link)
{
    struct pollfd fd = {.fd = amqp_get_sockfd(link->conn), .events = POLLOUT};
    const int64_t until_us = semel__steady_us() + patience_us(link);

    while (fd.fd >= 0) {
        const int64_t left_us = until_us - semel__steady_us();
        const int n = poll(&fd, 1, left_us > 0 ? (int)((left_us + 999) / 1000) : 0);
        if (n > 0)
            return true; /* the sender finds the error */
        if (left_us <= 0)
            return false;
    }
    return false;
}

semel_status semel__amqp_send(struct amqp_link *link, amqp_channel_t channel, amqp_method_number_t id, void *method,
                              struct semel_error *err)
{
    const int code = has_room(link) ? amqp_send_method(link->conn, channel, id, method) : AMQP_STATUS_TIMEOUT;

    return code == AMQP_STATUS_OK ? SEMEL_OK : fail_library(code, "sending", err);
}

semel_status semel__amqp_send_frame(struct amqp_link *link, const amqp_frame_t *frame, struct semel_error *err)
{
    const int code = has_room(link) ? amqp_send_frame(link->conn, frame) : AMQP_STATUS_TIMEOUT;

    return code == AMQP_STATUS_OK ? SEMEL_OK : fail_library(code, "sending", err);
}

semel_status semel__amqp_receive(struct amqp_link *link, int64_t wait_us, amqp_frame_t *ret, bool *ret_got,
                                 struct semel_error *err)
{
    const struct timeval wait = timeval_of(wait_us);
    int code;

    amqp_maybe_release_buffers(link->conn); /* the contents of the last frame were copied */
    code = amqp_simple_wait_frame_noblock(link->conn, ret, &wait);
    *ret_got = code == AMQP_STATUS_OK;
    if (code == AMQP_STATUS_OK || code == AMQP_STATUS_TIMEOUT)
        return SEMEL_OK;
    return fail_library(code, "the connection is lost", err);
}

semel_status semel__amqp_link_method(struct amqp_link *link, const amqp_method_t *method, struct semel_error *err)
{
    amqp_connection_close_ok_t ok = {0};
    amqp_channel_close_ok_t channel_ok = {0};
    semel_status status;

    switch (method->id) {
    case AMQP_CONNECTION_BLOCKED_METHOD:
        link->blocked = true;
        return SEMEL_OK;
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        link->blocked = false;
        return SEMEL_OK;
    case AMQP_CONNECTION_CLOSE_METHOD:
        status = fail_close(method, "the server closes the connection", err);
        (void)semel__amqp_send(link, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &ok, NULL);
        return status;
    case AMQP_CHANNEL_CLOSE_METHOD:
        status = fail_close(method, "the server closes the channel", err);
        (void)semel__amqp_send(link, AMQP_CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &channel_ok, NULL);
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

/* Accepts and refuses as OpenSSL does, and remembers the reason. */
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
    /* Without it OpenSSL would ask at the terminal. */
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
    amqp_socket_t *socket = amqp_ssl_socket_new(link->conn); /* belongs to the connection from now on */
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
    (void)setsockopt(fd, level, name, &value, sizeof value); /* without it we only notice later */
}

static void set_socket(int fd, int patience_ms)
{
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, patience_ms);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_STEP_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_TRIES);
    set_option(fd, SOL_SOCKET, SO_SNDBUF, SEND_BUFFER);
}

/* TLS or not is often the mistake, so the text has it. */
static void show_place(char *out, size_t n, const char *doing, const struct amqp_conf *conf)
{
    char host[80];

    semel__str_show(host, sizeof host, semel__str(conf->host));
    snprintf(out, n, "%s %s, port %d, %s TLS", doing, host, conf->port, conf->tls ? "by" : "without");
}

static semel_status open_socket(struct amqp_link *link, const struct amqp_conf *conf, struct semel_error *err)
{
    const struct timeval timeout = timeval_of(patience_us(link));
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
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: %s: certificate refused: %s", what,
                           semel__tls_why(link->x509));
    return fail_library(code, what, err);
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
                                           /* the library cannot send an empty response */
                                           AMQP_SASL_METHOD_EXTERNAL, " ");
    else
        reply = amqp_login_with_properties(link->conn, conf->vhost, 0, FRAME_MAX_BYTES, heartbeat_s, &table,
                                           AMQP_SASL_METHOD_PLAIN, conf->user, conf->password);
    return reply.reply_type == AMQP_RESPONSE_NORMAL ? SEMEL_OK : fail_login(conf, reply, err);
}

semel_status semel__amqp_open_channel(struct amqp_link *link, struct semel_error *err)
{
    const struct timeval timeout = timeval_of(patience_us(link));

    amqp_set_rpc_timeout(link->conn, &timeout);
    if (!has_room(link))
        return fail_library(AMQP_STATUS_TIMEOUT, "opening a channel", err);
    if (amqp_channel_open(link->conn, AMQP_CHANNEL) == NULL)
        return semel__amqp_fail_reply(amqp_get_rpc_reply(link->conn), "opening a channel", err);
    return SEMEL_OK;
}

semel_status semel__amqp_close_channel(struct amqp_link *link, struct semel_error *err)
{
    amqp_rpc_reply_t reply;

    if (!has_room(link))
        return fail_library(AMQP_STATUS_TIMEOUT, "closing the channel", err);
    reply = amqp_channel_close(link->conn, AMQP_CHANNEL, AMQP_REPLY_SUCCESS);
    return reply.reply_type == AMQP_RESPONSE_NORMAL ? SEMEL_OK
                                                    : semel__amqp_fail_reply(reply, "closing the channel", err);
}

semel_status semel__amqp_link_open(struct amqp_link *link, const struct amqp_conf *conf, int heartbeat_s,
                                   int64_t until_us, struct semel_error *err)
{
    struct timeval timeout;
    semel_status status;

    *link = (struct amqp_link){.conn = amqp_new_connection(), .timeout_ms = conf->timeout_ms, .until_us = until_us};
    if (link->conn == NULL)
        return semel__fail_memory(err);
    status = open_socket(link, conf, err);
    timeout = timeval_of(patience_us(link));
    amqp_set_handshake_timeout(link->conn, &timeout);
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
    if (in_peace && has_room(link)) {
        amqp_set_rpc_timeout(link->conn, &timeout);
        (void)amqp_connection_close(link->conn, AMQP_REPLY_SUCCESS);
    }
    amqp_destroy_connection(link->conn);
    *link = (struct amqp_link){0};
}

static amqp_bytes_t bytes_of(struct semel_str s)
{
    return (amqp_bytes_t){.len = s.n, .bytes = (void *)(uintptr_t)s.p}; /* they are only read */
}

struct ticket {
    size_t item;
    bool answered;
};

struct sending {
    struct amqp *amqp;
    struct semel_publish *items;
    size_t n;
    int64_t until_us;
    struct ticket *tickets; /* the items on their way, in the order of their numbers */
    uint64_t base;          /* the number before that of the first ticket */
    size_t sent, first;     /* tickets; the first without an answer */
    bool corked;
    /* A returned message. */
    char exchange[AMQP_SHORT_MAX], routing_key[AMQP_SHORT_MAX];
    size_t n_exchange, n_routing_key;
    size_t next_return;
};

/* ---- publishing ---------------------------------------------------------------------------------------- */

struct place {
    struct semel_str exchange, routing_key;
};

static bool find_place(const struct amqp *amqp, const struct semel_publish *item, struct place *ret)
{
    const struct semel_str prefix = SEMEL_STR("exchange:");
    const struct semel_str to = item->destination;

    if (amqp->conf.exchange != NULL)
        *ret = (struct place){semel__str(amqp->conf.exchange), to};
    else if (to.n > prefix.n && memcmp(to.p, prefix.p, prefix.n) == 0)
        *ret = (struct place){{to.p + prefix.n, to.n - prefix.n}, {item->key.n > 0 ? item->key.p : "", item->key.n}};
    else
        *ret = (struct place){SEMEL_STR(""), to};
    return to.n > 0 && ret->exchange.n <= AMQP_SHORT_MAX && ret->routing_key.n <= AMQP_SHORT_MAX;
}

static amqp_table_entry_t entry_of(struct semel_str name, struct semel_str value)
{
    return (amqp_table_entry_t){.key = bytes_of(name),
                                .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = bytes_of(value)}};
}

/* false: it can never be sent. */
static bool fits(const struct semel_publish *item, size_t frame_max)
{
    size_t bytes = item->id.n + 16;

    for (size_t i = 0; i < item->n_headers; i++) {
        if (item->headers[i].name.n > AMQP_SHORT_MAX || item->headers[i].value.n > frame_max)
            return false;
        bytes += item->headers[i].name.n + item->headers[i].value.n + 8;
    }
    return item->id.n <= frame_max && bytes + FRAME_REST <= frame_max && item->payload.n <= AMQP_BODY_MAX;
}

/* NULL: no memory. */
static amqp_table_entry_t *entries_of(const struct semel_publish *item, int *ret_n)
{
    amqp_table_entry_t *entries = semel__calloc(item->n_headers + 1, sizeof *entries);
    struct semel_pair pair;
    int n = 0;

    for (size_t i = 0; entries != NULL && i <= item->n_headers; i++)
        if (semel__publish_header(item, i, &pair))
            entries[n++] = entry_of(pair.name, pair.value);
    *ret_n = n;
    return entries;
}

static semel_status send_header(struct amqp_link *link, const struct semel_publish *item, struct semel_error *err)
{
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_HEADERS_FLAG,
                                          .delivery_mode = AMQP_DELIVERY_PERSISTENT};
    amqp_frame_t frame = {.frame_type = AMQP_FRAME_HEADER, .channel = AMQP_CHANNEL};
    semel_status status;

    properties.headers.entries = entries_of(item, &properties.headers.num_entries);
    if (properties.headers.entries == NULL)
        return semel__fail_memory(err);
    if (semel__str_given(item->id) && item->id.n <= AMQP_SHORT_MAX) {
        properties._flags |= AMQP_BASIC_MESSAGE_ID_FLAG;
        properties.message_id = bytes_of(item->id);
    }
    frame.payload.properties.class_id = AMQP_BASIC_CLASS;
    frame.payload.properties.body_size = item->payload.n;
    frame.payload.properties.decoded = &properties;
    status = semel__amqp_send_frame(link, &frame, err);
    semel__free(properties.headers.entries);
    return status;
}

/* How much of a body fits into a frame. The server sets the frame's length, and librabbitmq's buffer is not longer.
 * Items are checked by fits(), so there is room for more than the frame's ends. */
static size_t part_of(const struct amqp_link *link)
{
    const size_t room = (size_t)amqp_get_frame_max(link->conn) - FRAME_ENDS;

    return room < AMQP_FRAME_PART ? room : AMQP_FRAME_PART;
}

/* While it is on, short frames wait in the socket for others. Whoever waits for an answer turns it off first: else the
 * kernel sends the last of them 200 ms later. */
static void cork(struct sending *s, bool on)
{
    const int value = on;

    if (s->corked != on)
        (void)setsockopt(amqp_get_sockfd(s->amqp->sender.conn), IPPROTO_TCP, TCP_CORK, &value, sizeof value);
    s->corked = on;
}

/* Not OK: part of it may have been sent, and the connection is unusable. */
static semel_status send_item(struct sending *s, size_t at, const struct place *place, struct semel_error *err)
{
    struct amqp_link *link = &s->amqp->sender;
    struct semel_publish *item = &s->items[at];
    const size_t part = part_of(link);
    amqp_basic_publish_t publish = {.exchange = bytes_of(place->exchange),
                                    .routing_key = bytes_of(place->routing_key),
                                    .mandatory = 1};
    semel_status status = semel__amqp_send(link, AMQP_CHANNEL, AMQP_BASIC_PUBLISH_METHOD, &publish, err);

    if (status == SEMEL_OK)
        status = send_header(link, item, err);
    item->status = SEMEL_UNKNOWN;
    s->tickets[s->sent++] = (struct ticket){.item = at};
    s->amqp->published++;
    for (size_t i = 0; status == SEMEL_OK && i < item->payload.n;) {
        const size_t n = item->payload.n - i < part ? item->payload.n - i : part;
        amqp_frame_t frame = {.frame_type = AMQP_FRAME_BODY, .channel = AMQP_CHANNEL};
        frame.payload.body_fragment = bytes_of((struct semel_str){item->payload.p + i, n});
        status = semel__amqp_send_frame(link, &frame, err);
        i += n;
    }
    return status;
}

static void answer(struct sending *s, uint64_t number, bool multiple, bool confirmed)
{
    const size_t end = number == 0 && multiple ? s->sent : number > s->base ? (size_t)(number - s->base) : 0;

    if (end > s->sent || end == 0)
        return;
    for (size_t i = multiple ? s->first : end - 1; i < end; i++) {
        struct semel_publish *item = &s->items[s->tickets[i].item];
        if (!s->tickets[i].answered && confirmed && item->status == SEMEL_UNKNOWN)
            item->status = SEMEL_OK; /* one that came back is RETRY, and stays so */
        else if (!s->tickets[i].answered && !confirmed && item->status == SEMEL_UNKNOWN)
            semel__publish_end(item, SEMEL_UNKNOWN, true, "amqp: the server did not take it (basic.nack)");
        s->tickets[i].answered = true;
    }
    while (s->first < s->sent && s->tickets[s->first].answered)
        s->first++;
}

static void note_return(struct sending *s, const amqp_basic_return_t *back)
{
    s->n_exchange = back->exchange.len <= AMQP_SHORT_MAX ? back->exchange.len : 0;
    s->n_routing_key = back->routing_key.len <= AMQP_SHORT_MAX ? back->routing_key.len : 0;
    memcpy(s->exchange, amqp_str(back->exchange).p, s->n_exchange);
    memcpy(s->routing_key, amqp_str(back->routing_key).p, s->n_routing_key);
}

static void handle_return(struct sending *s, const amqp_basic_properties_t *properties)
{
    const bool has_id = (properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG) != 0;
    const struct semel_str id = has_id ? amqp_str(properties->message_id) : (struct semel_str){NULL, 0};

    for (size_t i = s->next_return; i < s->sent; i++) {
        struct semel_publish *item = &s->items[s->tickets[i].item];
        struct place place;
        if (!find_place(s->amqp, item, &place) ||
            !semel__str_eq(place.exchange, (struct semel_str){s->exchange, s->n_exchange}) ||
            !semel__str_eq(place.routing_key, (struct semel_str){s->routing_key, s->n_routing_key}) ||
            (item->id.n <= AMQP_SHORT_MAX && !semel__str_eq(item->id, id)))
            continue;
        semel__publish_end(item, SEMEL_RETRY, true, "amqp: it came back: no queue takes it");
        s->next_return = i + 1;
        return;
    }
}

static semel_status handle_method(struct sending *s, const amqp_method_t *method, struct semel_error *err)
{
    if (method->id == AMQP_BASIC_ACK_METHOD) {
        const amqp_basic_ack_t *ack = method->decoded;
        answer(s, ack->delivery_tag, ack->multiple != 0, true);
    } else if (method->id == AMQP_BASIC_NACK_METHOD) {
        const amqp_basic_nack_t *nack = method->decoded;
        answer(s, nack->delivery_tag, nack->multiple != 0, false);
    } else if (method->id == AMQP_BASIC_RETURN_METHOD) {
        note_return(s, method->decoded);
    } else {
        return semel__amqp_link_method(&s->amqp->sender, method, err);
    }
    return SEMEL_OK;
}

/* Receives one frame, if one comes in time. */
static semel_status receive_one(struct sending *s, int64_t wait_us, bool *ret_got, struct semel_error *err)
{
    struct amqp_link *link = &s->amqp->sender;
    amqp_frame_t frame;
    semel_status status = semel__amqp_receive(link, wait_us, &frame, ret_got, err);

    if (status != SEMEL_OK || !*ret_got)
        return status;
    if (frame.frame_type == AMQP_FRAME_METHOD)
        return handle_method(s, &frame.payload.method, err);
    if (frame.frame_type == AMQP_FRAME_HEADER && frame.payload.properties.class_id == AMQP_BASIC_CLASS)
        handle_return(s, frame.payload.properties.decoded);
    return SEMEL_OK;
}

static semel_status receive_all(struct sending *s, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    bool got = true;

    while (status == SEMEL_OK && got)
        status = receive_one(s, 0, &got, err);
    return status;
}

/* Waits until everything on its way is answered. */
static semel_status settle(struct sending *s, struct semel_error *err)
{
    const int64_t until_us = semel__steady_us() + patience_us(&s->amqp->sender);
    semel_status status = SEMEL_OK;
    bool got;

    cork(s, false);
    while (status == SEMEL_OK && s->first < s->sent) {
        const int64_t left_us = until_us - semel__steady_us();
        if (left_us <= 0)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "amqp: the server does not confirm%s",
                               s->amqp->sender.blocked ? ": it takes no messages at the moment" : "");
        status = receive_one(s, left_us, &got, err);
    }
    return status;
}

/* Connects if necessary, and starts counting. */
static semel_status open_sender(struct sending *s, struct semel_error *err)
{
    struct amqp *amqp = s->amqp;
    semel_status status = SEMEL_OK;

    s->sent = s->first = s->next_return = 0;
    s->corked = false;
    amqp->sender.until_us = s->until_us;
    if (amqp->sender.conn != NULL && receive_all(s, NULL) != SEMEL_OK)
        semel__amqp_link_close(&amqp->sender, false); /* it closed while we did not look */
    if (amqp->sender.conn == NULL) {
        amqp->published = 0;
        amqp->n_known = 0;
        status = semel__amqp_link_open(&amqp->sender, &amqp->conf, 0, s->until_us, err);
        if (status == SEMEL_OK && amqp_confirm_select(amqp->sender.conn, AMQP_CHANNEL) == NULL) {
            status = semel__amqp_fail_reply(amqp_get_rpc_reply(amqp->sender.conn), "asking for confirmations", err);
            semel__amqp_link_close(&amqp->sender, false);
        }
    }
    s->base = amqp->published;
    return status;
}

static bool is_known(const struct amqp *amqp, struct semel_str exchange)
{
    return exchange.n == 0 || semel__str_eq(exchange, (struct semel_str){amqp->known, amqp->n_known});
}

/* The server's refusal is about this item, because no other is on its way. */
static semel_status send_alone(struct sending *s, size_t at, const struct place *place, struct semel_error *err)
{
    struct amqp *amqp = s->amqp;
    semel_status status = settle(s, err);

    if (status != SEMEL_OK)
        return status;
    status = send_item(s, at, place, err);
    if (status == SEMEL_OK)
        status = settle(s, err);
    if (status == SEMEL_OK && place->exchange.n > 0) {
        memcpy(amqp->known, place->exchange.p, place->exchange.n);
        amqp->n_known = place->exchange.n;
    }
    if (status != SEMEL_INVALID)
        return status;
    if (err->code == AMQP_NOT_FOUND || err->code == AMQP_ACCESS_REFUSED)
        semel__publish_end(&s->items[at], SEMEL_RETRY, true, "%s", err->text);
    else
        semel__publish_end(&s->items[at], SEMEL_INVALID, false, "%s", err->text);
    semel__amqp_link_close(&amqp->sender, false);
    return open_sender(s, err);
}

static semel_status send_all(struct sending *s, struct semel_error *err)
{
    semel_status status = SEMEL_OK;

    for (size_t i = 0; status == SEMEL_OK && i < s->n && !s->amqp->sender.blocked && semel__steady_us() < s->until_us;
         i++) {
        const struct semel_publish *item = &s->items[i];
        struct place place;
        if (!find_place(s->amqp, item, &place))
            semel__publish_end(&s->items[i], SEMEL_INVALID, false, "amqp: its destination is empty or too long");
        else if (!fits(item, (size_t)amqp_get_frame_max(s->amqp->sender.conn)))
            semel__publish_end(&s->items[i], SEMEL_INVALID, false, "amqp: its headers or its payload are too long");
        else if (!is_known(s->amqp, place.exchange) || item->payload.n > ALONE_BYTES)
            status = send_alone(s, i, &place, err);
        else {
            cork(s, s->n > 1);
            status = send_item(s, i, &place, err);
        }
        if (status == SEMEL_OK && i % LOOK_EVERY == 0)
            status = receive_all(s, err);
    }
    return status;
}

/* Ends the items that have no answer, and those that the server did not accept. */
static void end_rest(struct sending *s, semel_status status, const struct semel_error *why)
{
    const bool failed = status != SEMEL_OK, blocked = s->amqp->sender.blocked;

    for (size_t i = 0; i < s->n; i++) {
        struct semel_publish *item = &s->items[i];
        if (item->status == SEMEL_UNKNOWN && item->why[0] == '\0')
            semel__publish_end(item, SEMEL_UNKNOWN, true, "%s", failed ? why->text : "amqp: not confirmed");
        else if (item->status == SEMEL_RETRY && item->why[0] == '\0' && (failed || blocked))
            semel__publish_end(item, SEMEL_RETRY, true, "%s",
                               blocked ? "amqp: the server takes no messages at the moment" : why->text);
    }
}

semel_status semel__amqp_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                 struct semel_error *err)
{
    struct amqp *amqp = (struct amqp *)broker;
    struct semel_error why = {0};
    struct sending s = {.amqp = amqp,
                        .items = items,
                        .n = n,
                        .until_us = semel__steady_us() + (int64_t)timeout_ms * 1000,
                        .tickets = semel__calloc(n, sizeof *s.tickets)};
    semel_status status = s.tickets != NULL ? open_sender(&s, &why) : semel__fail_memory(&why);

    if (status == SEMEL_OK) {
        status = send_all(&s, &why);
        if (status == SEMEL_OK)
            status = settle(&s, &why);
        end_rest(&s, status, &why);
        if (status != SEMEL_OK)
            semel__amqp_link_close(&amqp->sender, false);
        status = SEMEL_OK; /* each item has its own status */
    }
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    semel__free(s.tickets);
    return status;
}
