/* SPDX-License-Identifier: MIT
 *
 * tool.c: client.h for tests that are not written in C: rabbit_tool PORT COMMAND ...
 *   answers                    exit code 0 when the server lets guest in
 *   queue NAME TYPE [single]   makes a queue, quorum or classic, perhaps with a single active consumer
 *   delete NAME                deletes a queue
 *   send QUEUE                 a message a line of standard input: ID PAYLOAD [NAME=VALUE]..., where each is "-" for
 *                              none, or "x" and hexadecimal digits
 *   take QUEUE                 takes every message that is ready, and prints it: ID PAYLOAD, as above
 *   length QUEUE               prints how many messages are ready, -1: no such queue
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rabbit/client.h"
#include "server/lines.h"

struct sending {
    struct rabbit_client *client;
    const char *queue;
};

static void send_line(void *ctx, char *line)
{
    const struct sending *to = ctx;
    struct semel_pair headers[LINES_HEADERS];
    struct rabbit_message message = {.queue = to->queue, .headers = headers};
    char *id = lines_word(&line), *payload = lines_word(&line);

    if (payload == NULL)
        lines_fail("a line must be ID PAYLOAD [NAME=VALUE]...");
    message.id = lines_bytes(id).p;
    message.payload = lines_bytes(payload);
    message.n_headers = lines_headers(&line, headers);
    rabbit_client_send_soon(to->client, &message);
}

static void send_all(struct rabbit_client *client, const char *queue)
{
    lines_each(send_line, &(struct sending){client, queue});
    rabbit_client_sent_all(client);
}

static void print_bytes(amqp_bytes_t bytes)
{
    putchar('x');
    for (size_t i = 0; i < bytes.len; i++)
        printf("%02x", ((const unsigned char *)bytes.bytes)[i]);
}

static void take_all(struct rabbit_client *client, const char *queue)
{
    for (;;) {
        amqp_message_t message;
        const amqp_rpc_reply_t got = amqp_basic_get(client->conn, 1, amqp_cstring_bytes(queue), 1);
        if (got.reply_type != AMQP_RESPONSE_NORMAL)
            lines_fail("the queue cannot be read");
        if (got.reply.id == AMQP_BASIC_GET_EMPTY_METHOD)
            return;
        if (amqp_read_message(client->conn, 1, &message, 0).reply_type != AMQP_RESPONSE_NORMAL)
            lines_fail("a message cannot be read");
        print_bytes(message.properties.message_id);
        putchar(' ');
        print_bytes(message.body);
        putchar('\n');
        amqp_destroy_message(&message);
        amqp_maybe_release_buffers(client->conn);
    }
}

static void run(struct rabbit_client *client, int argc, char **argv)
{
    if ((argc == 3 || (argc == 4 && strcmp(argv[3], "single") == 0)) && strcmp(argv[0], "queue") == 0)
        rabbit_client_queue(client, argv[1], argv[2], argc == 4);
    else if (argc == 2 && strcmp(argv[0], "delete") == 0)
        rabbit_client_delete(client, argv[1]);
    else if (argc == 2 && strcmp(argv[0], "send") == 0)
        send_all(client, argv[1]);
    else if (argc == 2 && strcmp(argv[0], "take") == 0)
        take_all(client, argv[1]);
    else if (argc == 2 && strcmp(argv[0], "length") == 0)
        printf("%lld\n", (long long)rabbit_client_length(client, argv[1]));
    else
        lines_fail("PORT answers | queue NAME TYPE [single] | delete NAME | send QUEUE | take QUEUE | length QUEUE");
}

int main(int argc, char **argv)
{
    struct rabbit_client client;
    char *end = NULL;
    const long number = argc > 2 ? strtol(argv[1], &end, 10) : 0;
    const int port = (int)number;

    if (number <= 0 || number > 65535 || *end != '\0')
        lines_fail("PORT COMMAND ...");
    if (argc == 3 && strcmp(argv[2], "answers") == 0)
        return rabbit_client_answers(port) ? 0 : 1;
    rabbit_client_open(&client, port);
    run(&client, argc - 2, argv + 2);
    rabbit_client_close(&client);
    return 0;
}
