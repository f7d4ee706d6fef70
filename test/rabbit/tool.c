/* SPDX-License-Identifier: MIT
 *
 * tool.c: client.h for tests that are not written in C: rabbit_tool PORT COMMAND ...
 *   answers                    exit code 0 when the server lets guest in
 *   queue NAME TYPE [single]   makes a queue, quorum or classic, perhaps with a single active consumer
 *   delete NAME                deletes a queue
 *   send QUEUE                 a message a line of standard input: ID PAYLOAD [NAME=VALUE]..., where each is "-" for
 *                              none, or "x" and hexadecimal digits
 *   length QUEUE               prints how many messages are ready, -1: no such queue
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rabbit/client.h"

#define HEADERS_MAX 64

static _Noreturn void fail_usage(const char *what)
{
    fprintf(stderr, "rabbit_tool: %s\n", what);
    exit(2);
}

/* Decodes in place, and ends it with a NUL. */
static struct semel_str bytes_of(char *text)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = 0;

    if (strcmp(text, "-") == 0)
        return (struct semel_str){NULL, 0};
    if (text[0] != 'x')
        fail_usage("\"-\" or \"x\" and hexadecimal digits are expected");
    for (const char *p = text + 1; *p != '\0'; p += 2) {
        const char *high = strchr(digits, p[0]), *low = p[1] != '\0' ? strchr(digits, p[1]) : NULL;
        if (high == NULL || low == NULL)
            fail_usage("\"-\" or \"x\" and hexadecimal digits are expected");
        text[n++] = (char)((high - digits) * 16 + (low - digits));
    }
    text[n] = '\0';
    return (struct semel_str){text, n};
}

/* The next word of the line, which is cut off; NULL: there is none. */
static char *next_word(char **rest)
{
    char *word = *rest, *end;

    if (word == NULL || *word == '\0')
        return NULL;
    end = strchr(word, ' ');
    if (end != NULL)
        *end++ = '\0';
    *rest = end;
    return word;
}

static void send_line(struct rabbit_client *client, const char *queue, char *line)
{
    struct semel_pair headers[HEADERS_MAX];
    struct rabbit_message message = {.queue = queue, .headers = headers};
    char *id = next_word(&line), *payload = next_word(&line), *header;

    if (payload == NULL)
        fail_usage("a line must be ID PAYLOAD [NAME=VALUE]...");
    message.id = bytes_of(id).p;
    message.payload = bytes_of(payload);
    while ((header = next_word(&line)) != NULL) {
        char *value = strchr(header, '=');
        if (value == NULL || message.n_headers == HEADERS_MAX)
            fail_usage("a header must be NAME=VALUE, and there are 64 at most");
        *value++ = '\0';
        headers[message.n_headers++] = (struct semel_pair){bytes_of(header), bytes_of(value)};
    }
    rabbit_client_send_soon(client, &message);
}

static void send_all(struct rabbit_client *client, const char *queue)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0) {
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        send_line(client, queue, line);
    }
    free(line);
    rabbit_client_sent_all(client);
}

static void run(struct rabbit_client *client, int argc, char **argv)
{
    if ((argc == 3 || (argc == 4 && strcmp(argv[3], "single") == 0)) && strcmp(argv[0], "queue") == 0)
        rabbit_client_queue(client, argv[1], argv[2], argc == 4);
    else if (argc == 2 && strcmp(argv[0], "delete") == 0)
        rabbit_client_delete(client, argv[1]);
    else if (argc == 2 && strcmp(argv[0], "send") == 0)
        send_all(client, argv[1]);
    else if (argc == 2 && strcmp(argv[0], "length") == 0)
        printf("%lld\n", (long long)rabbit_client_length(client, argv[1]));
    else
        fail_usage("PORT answers | queue NAME TYPE [single] | delete NAME | send QUEUE | length QUEUE");
}

int main(int argc, char **argv)
{
    struct rabbit_client client;
    char *end = NULL;
    const long number = argc > 2 ? strtol(argv[1], &end, 10) : 0;
    const int port = (int)number;

    if (number <= 0 || number > 65535 || *end != '\0')
        fail_usage("PORT COMMAND ...");
    if (argc == 3 && strcmp(argv[2], "answers") == 0)
        return rabbit_client_answers(port) ? 0 : 1;
    rabbit_client_open(&client, port);
    run(&client, argc - 2, argv + 2);
    rabbit_client_close(&client);
    return 0;
}
