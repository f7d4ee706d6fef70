/* SPDX-License-Identifier: MIT
 *
 * client.c: a client of RabbitMQ for tests. See client.h.
 */
#include "rabbit/client.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#ifdef SEMEL_AMQP_NEW_HEADERS
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp_tcp_socket.h>
#endif

#define CHANNEL 1
#define HEADERS_MAX 10240

static const struct timeval patience = {.tv_sec = 60};

static _Noreturn void fail_client(const char *what, const char *why)
{
    fprintf(stderr, "RabbitMQ client of this test: %s: %s\n", what, why);
    exit(1);
}

static void need(struct rabbit_client *client, bool done, const char *what)
{
    const amqp_rpc_reply_t reply = amqp_get_rpc_reply(client->conn);
    char text[300] = "the server refuses";

    if (done)
        return;
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
        const amqp_channel_close_t *close = reply.reply.decoded;
        snprintf(text, sizeof text, "%.*s", (int)close->reply_text.len, (const char *)close->reply_text.bytes);
    }
    fail_client(what,
                reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION ? amqp_error_string2(reply.library_error) : text);
}

/* ---- connections -------------------------------------------------------------------------------------- */

static bool connect_to(struct rabbit_client *client, int port, const struct timeval *wait)
{
    amqp_socket_t *socket;
    amqp_rpc_reply_t reply;

    *client = (struct rabbit_client){.conn = amqp_new_connection()};
    socket = client->conn != NULL ? amqp_tcp_socket_new(client->conn) : NULL;
    if (socket == NULL)
        fail_client("connecting", "no memory");
    amqp_set_handshake_timeout(client->conn, wait);
    amqp_set_rpc_timeout(client->conn, &patience);
    if (amqp_socket_open_noblock(socket, "127.0.0.1", port, wait) != AMQP_STATUS_OK)
        return false;
    reply = amqp_login(client->conn, "/", 0, AMQP_DEFAULT_FRAME_SIZE, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest");
    return reply.reply_type == AMQP_RESPONSE_NORMAL;
}

void rabbit_client_close(struct rabbit_client *client)
{
    if (client->conn != NULL)
        amqp_destroy_connection(client->conn);
    *client = (struct rabbit_client){0};
}

bool rabbit_client_answers(int port)
{
    const struct timeval wait = {.tv_sec = 5};
    struct rabbit_client client;
    const bool answers = connect_to(&client, port, &wait);

    rabbit_client_close(&client);
    return answers;
}

static void open_channel(struct rabbit_client *client)
{
    need(client, amqp_channel_open(client->conn, CHANNEL) != NULL, "opening a channel");
    need(client, amqp_confirm_select(client->conn, CHANNEL) != NULL, "asking for confirmations");
    client->sent = client->confirmed = 0;
}

void rabbit_client_open(struct rabbit_client *client, int port)
{
    if (!connect_to(client, port, &patience))
        fail_client("connecting", "the server does not let us in");
    open_channel(client);
}

/* ---- queues ------------------------------------------------------------------------------------------- */

void rabbit_client_queue(struct rabbit_client *client, const char *name, const char *type, bool single_active)
{
    amqp_table_entry_t entries[] = {
        {.key = amqp_cstring_bytes("x-queue-type"),
         .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(type)}},
        {.key = amqp_cstring_bytes("x-single-active-consumer"),
         .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}},
    };
    const amqp_table_t table = {.num_entries = single_active ? 2 : 1, .entries = entries};

    need(client, amqp_queue_declare(client->conn, CHANNEL, amqp_cstring_bytes(name), 0, 1, 0, 0, table) != NULL,
         "making a queue");
}

void rabbit_client_bind(struct rabbit_client *client, const char *name, const char *exchange, const char *routing_key)
{
    need(client,
         amqp_queue_bind(client->conn, CHANNEL, amqp_cstring_bytes(name), amqp_cstring_bytes(exchange),
                         amqp_cstring_bytes(routing_key), amqp_empty_table) != NULL,
         "binding a queue");
}

void rabbit_client_delete(struct rabbit_client *client, const char *name)
{
    need(client, amqp_queue_delete(client->conn, CHANNEL, amqp_cstring_bytes(name), 0, 0) != NULL, "deleting a queue");
}

int64_t rabbit_client_length(struct rabbit_client *client, const char *name)
{
    const amqp_queue_declare_ok_t *ok = amqp_queue_declare(client->conn, CHANNEL, amqp_cstring_bytes(name), 1, 0, 0, 0,
                                                           amqp_empty_table);
    const amqp_rpc_reply_t reply = amqp_get_rpc_reply(client->conn);
    amqp_channel_close_ok_t close = {0};

    if (ok != NULL)
        return ok->message_count;
    need(client, reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD,
         "asking for a queue");
    amqp_send_method(client->conn, CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &close);
    open_channel(client);
    return -1;
}

/* ---- sending ------------------------------------------------------------------------------------------ */

static amqp_bytes_t bytes_of(struct semel_str s)
{
    return (amqp_bytes_t){.len = s.n, .bytes = (void *)(uintptr_t)s.p};
}

static void take_confirm(struct rabbit_client *client)
{
    const amqp_basic_ack_t *ack;
    amqp_frame_t frame;

    if (amqp_simple_wait_frame_noblock(client->conn, &frame, &patience) != AMQP_STATUS_OK)
        fail_client("sending", "no confirmation");
    if (frame.frame_type != AMQP_FRAME_METHOD)
        return;
    if (frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
        fail_client("sending", "the server refuses a message");
    ack = frame.payload.method.decoded;
    client->confirmed = ack->multiple ? ack->delivery_tag : client->confirmed + 1;
}

void rabbit_client_sent_all(struct rabbit_client *client)
{
    while (client->confirmed < client->sent) {
        take_confirm(client);
        amqp_maybe_release_buffers(client->conn);
    }
}

static void publish(struct rabbit_client *client, const char *queue, const amqp_basic_properties_t *properties,
                    struct semel_str payload)
{
    if (amqp_basic_publish(client->conn, CHANNEL, amqp_empty_bytes, amqp_cstring_bytes(queue), 0, 0, properties,
                           bytes_of(payload)) != AMQP_STATUS_OK)
        fail_client("sending", "the connection is lost");
    client->sent++;
}

void rabbit_client_send_soon(struct rabbit_client *client, const struct rabbit_message *message)
{
    amqp_table_entry_t entries[HEADERS_MAX];
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG,
                                          .delivery_mode = AMQP_DELIVERY_PERSISTENT,
                                          .headers = {.entries = entries}};

    for (size_t i = 0; i < message->n_headers && i < HEADERS_MAX; i++)
        entries[properties.headers.num_entries++] = (amqp_table_entry_t){
            .key = bytes_of(message->headers[i].name),
            .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = bytes_of(message->headers[i].value)}};
    if (message->n_headers > 0)
        properties._flags |= AMQP_BASIC_HEADERS_FLAG;
    if (message->id != NULL) {
        properties._flags |= AMQP_BASIC_MESSAGE_ID_FLAG;
        properties.message_id = amqp_cstring_bytes(message->id);
    }
    publish(client, message->queue, &properties, message->payload);
}

void rabbit_client_send(struct rabbit_client *client, const struct rabbit_message *message)
{
    rabbit_client_send_soon(client, message);
    rabbit_client_sent_all(client);
}

void rabbit_client_send_with(struct rabbit_client *client, const char *queue, const amqp_basic_properties_t *properties,
                             struct semel_str payload)
{
    publish(client, queue, properties, payload);
    rabbit_client_sent_all(client);
}

static void send_bytes(struct rabbit_client *client, const char *p, size_t n)
{
    struct pollfd fd = {.fd = amqp_get_sockfd(client->conn), .events = POLLOUT};

    while (n > 0) {
        const ssize_t sent = send(fd.fd, p, n, MSG_NOSIGNAL);
        if (sent > 0) {
            p += sent;
            n -= (size_t)sent;
        } else if (poll(&fd, 1, 60000) <= 0) {
            fail_client("sending", "the connection is lost");
        }
    }
}

void rabbit_client_send_raw(struct rabbit_client *client, const char *queue, struct semel_str properties,
                            struct semel_str payload)
{
    amqp_basic_publish_t method = {.routing_key = amqp_cstring_bytes(queue)};
    const size_t size = 12 + properties.n;
    char head[7 + 12] = {AMQP_FRAME_HEADER, 0,          CHANNEL, (char)(size >> 24), (char)(size >> 16),
                         (char)(size >> 8), (char)size, 0,       AMQP_BASIC_CLASS};
    amqp_frame_t body = {.frame_type = AMQP_FRAME_BODY, .channel = CHANNEL};
    const char end = (char)AMQP_FRAME_END;

    if (amqp_send_method(client->conn, CHANNEL, AMQP_BASIC_PUBLISH_METHOD, &method) != AMQP_STATUS_OK)
        fail_client("sending", "the connection is lost");
    for (int i = 0; i < 8; i++)
        head[11 + i] = (char)((uint64_t)payload.n >> (56 - 8 * i));
    send_bytes(client, head, sizeof head);
    send_bytes(client, properties.p, properties.n);
    send_bytes(client, &end, 1);
    body.payload.body_fragment = bytes_of(payload);
    if (payload.n > 0 && amqp_send_frame(client->conn, &body) != AMQP_STATUS_OK)
        fail_client("sending", "the connection is lost");
    client->sent++;
    rabbit_client_sent_all(client);
}

void rabbit_client_send_many(struct rabbit_client *client, const char *queue, const char *prefix, int n)
{
    for (int i = 0; i < n; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s%d", prefix, i);
        rabbit_client_send_soon(client,
                                &(struct rabbit_message){.queue = queue, .id = text, .payload = {text, strlen(text)}});
    }
    rabbit_client_sent_all(client);
}
