/* SPDX-License-Identifier: MIT
 *
 * tool.c: client.h for tests that are not written in C: kafka_tool BROKERS COMMAND ...
 *   answers                           exit code 0 when the server answers within a second
 *   topic NAME PARTITIONS [NAME VALUE]...   makes a topic, with these settings
 *   send TOPIC                        a record a line of standard input: PARTITION KEY PAYLOAD [NAME=VALUE]..., where
 *                                     each but the first is "-" for null, or "x" and hexadecimal digits; a partition
 *                                     below 0 is chosen by the key
 *   committed GROUP TOPIC PARTITIONS  prints for each partition the offset that the server keeps, -1: none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kafka/client.h"

#define HEADERS_MAX 64

static _Noreturn void fail_usage(const char *what)
{
    fprintf(stderr, "kafka_tool: %s\n", what);
    exit(2);
}

static int number(const char *text)
{
    char *end;
    const long n = strtol(text, &end, 10);

    if (*text == '\0' || *end != '\0' || n < -1 || n > 100000)
        fail_usage("a number is expected");
    return (int)n;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes in place. */
static struct semel_str bytes_of(char *text)
{
    size_t n = 0;

    if (strcmp(text, "-") == 0)
        return (struct semel_str){NULL, 0};
    if (text[0] != 'x')
        fail_usage("\"-\" or \"x\" and hexadecimal digits are expected");
    for (const char *p = text + 1; *p != '\0'; p += 2) {
        const int high = digit(p[0]), low = high < 0 ? -1 : digit(p[1]);
        if (low < 0)
            fail_usage("\"-\" or \"x\" and hexadecimal digits are expected");
        text[n++] = (char)(high * 16 + low);
    }
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

static void send_line(struct kafka_client *client, const char *topic, char *line)
{
    struct kafka_record record = {.topic = topic};
    struct semel_pair headers[HEADERS_MAX];
    char *partition = next_word(&line), *key = next_word(&line), *payload = next_word(&line), *header;

    if (payload == NULL)
        fail_usage("a line must be PARTITION KEY PAYLOAD [NAME=VALUE]...");
    record.partition = number(partition);
    record.key = bytes_of(key);
    record.payload = bytes_of(payload);
    while ((header = next_word(&line)) != NULL) {
        char *value = strchr(header, '=');
        if (value == NULL || record.n_headers == HEADERS_MAX)
            fail_usage("a header must be NAME=VALUE, and there are 64 at most");
        *value++ = '\0';
        headers[record.n_headers++] = (struct semel_pair){bytes_of(header), bytes_of(value)};
    }
    record.headers = headers;
    kafka_client_send_soon(client, &record);
}

static void send_all(struct kafka_client *client, const char *topic)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0) {
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        send_line(client, topic, line);
    }
    free(line);
    kafka_client_sent_all(client);
}

static void print_committed(struct kafka_client *client, const char *group, const char *topic, int partitions)
{
    for (int i = 0; i < partitions; i++)
        printf("%lld\n", (long long)kafka_client_committed(client, group, topic, i));
}

static int run(struct kafka_client *client, int argc, char **argv)
{
    if (argc == 1 && strcmp(argv[0], "answers") == 0)
        return kafka_client_answers(client, 1000) ? 0 : 1;
    if (argc >= 3 && argc % 2 != 0 && strcmp(argv[0], "topic") == 0)
        kafka_client_topic(client, argv[1], number(argv[2]), (const char *const *)argv + 3);
    else if (argc == 2 && strcmp(argv[0], "send") == 0)
        send_all(client, argv[1]);
    else if (argc == 4 && strcmp(argv[0], "committed") == 0)
        print_committed(client, argv[1], argv[2], number(argv[3]));
    else
        fail_usage("BROKERS answers | topic NAME PARTITIONS [NAME VALUE]... | send TOPIC | "
                   "committed GROUP TOPIC PARTITIONS");
    return 0;
}

int main(int argc, char **argv)
{
    struct kafka_client client;
    int code;

    if (argc < 3)
        fail_usage("BROKERS COMMAND ...");
    kafka_client_open(&client, argv[1]);
    code = run(&client, argc - 2, argv + 2);
    kafka_client_close(&client);
    return code;
}
