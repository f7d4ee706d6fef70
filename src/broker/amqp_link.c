/* SPDX-License-Identifier: MIT
 *
 * amqp_link.c: one connection to the server: connecting, sending, receiving, and what its errors mean.
 *
 * librabbitmq sends without a time-out. So nothing is sent before the socket has room for all of it: the send buffer is
 * made large enough that a socket which can be written to takes a whole piece at once. Should that fail nevertheless,
 * TCP_USER_TIMEOUT ends the wait (P31).
 *
 * Invariants: a call that fails has said why and what to do; who calls decides whether the link is closed. The server's
 * texts are shown as text, whatever they hold.
 */
#define _GNU_SOURCE /* memmem */
#include "broker/amqp_private.h"
#include "broker/tls_why.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

#ifdef SEMEL_AMQP_NEW_HEADERS
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp_tcp_socket.h>
#endif

#define CLOSE_MS 3000
#define SEND_BUFFER (256 << 10)
#define FRAME_MAX_BYTES AMQP_DEFAULT_FRAME_SIZE
#define KEEP_IDLE_S 30
#define KEEP_STEP_S 10
#define KEEP_TRIES 3

int64_t semel__amqp_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

struct timeval semel__amqp_timeval(int64_t us)
{
    us = us > 0 ? us : 0;
    return (struct timeval){.tv_sec = us / 1000000, .tv_usec = us % 1000000};
}

struct semel_str semel__amqp_str(amqp_bytes_t bytes)
{
    return (struct semel_str){bytes.len > 0 ? bytes.bytes : "", bytes.len};
}

amqp_bytes_t semel__amqp_bytes(struct semel_str s)
{
    return (amqp_bytes_t){.len = s.n, .bytes = (void *)(uintptr_t)s.p}; /* they are only read */
}

/* ---- errors ------------------------------------------------------------------------------------------- */

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
    const char *reason = tls ? semel__amqp_tls_reason() : "";
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

/* ---- connecting --------------------------------------------------------------------------------------- */

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
    const struct timeval timeout = semel__amqp_timeval((int64_t)conf->timeout_ms * 1000);
    amqp_socket_t *socket = NULL;
    char what[160];
    int code;

    if (conf->tls) {
        semel_status status = semel__amqp_tls_socket(link, conf, &socket, err);
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
    const struct timeval timeout = semel__amqp_timeval((int64_t)conf->timeout_ms * 1000);
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
    const struct timeval timeout = semel__amqp_timeval(CLOSE_MS * 1000);

    if (link->conn == NULL)
        return;
    if (in_peace && semel__amqp_has_room(link)) {
        amqp_set_rpc_timeout(link->conn, &timeout);
        (void)amqp_connection_close(link->conn, AMQP_REPLY_SUCCESS);
    }
    amqp_destroy_connection(link->conn);
    *link = (struct amqp_link){0};
}

/* ---- sending and receiving ---------------------------------------------------------------------------- */

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
    const struct timeval wait = semel__amqp_timeval(wait_us);
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
