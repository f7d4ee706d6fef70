/* SPDX-License-Identifier: MIT
 *
 * tool.c: client.h for tests that are not written in C: kafka_tool BROKERS COMMAND ...
 *   answers                           exit code 0 when the server answers within a second
 *   topic NAME PARTITIONS [NAME VALUE]...   makes a topic, with these settings
 *   send TOPIC                        a record a line of standard input: PARTITION KEY PAYLOAD [NAME=VALUE]..., where
 *                                     each but the first is "-" for null, or "x" and hexadecimal digits; a partition
 *                                     below 0 is chosen by the key
 *   read TOPIC PARTITIONS             prints each record: PARTITION OFFSET KEY PAYLOAD [NAME=VALUE]..., as above
 *   committed GROUP TOPIC PARTITIONS  prints for each partition the offset that the server keeps, -1: none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kafka/client.h"
#include "server/lines.h"

static int number(const char *text)
{
    char *end;
    const long n = strtol(text, &end, 10);

    if (*text == '\0' || *end != '\0' || n < -1 || n > 100000)
        lines_fail("a number is expected");
    return (int)n;
}

struct sending {
    struct kafka_client *client;
    const char *topic;
};

static void send_line(void *ctx, char *line)
{
    const struct sending *to = ctx;
    struct semel_pair headers[LINES_HEADERS];
    struct kafka_record record = {.topic = to->topic, .headers = headers};
    char *partition = lines_word(&line), *key = lines_word(&line), *payload = lines_word(&line);

    if (payload == NULL)
        lines_fail("a line must be PARTITION KEY PAYLOAD [NAME=VALUE]...");
    record.partition = number(partition);
    record.key = lines_bytes(key);
    record.payload = lines_bytes(payload);
    record.n_headers = lines_headers(&line, headers);
    kafka_client_send_soon(to->client, &record);
}

static void send_all(struct kafka_client *client, const char *topic)
{
    lines_each(send_line, &(struct sending){client, topic});
    kafka_client_sent_all(client);
}

static void print_committed(struct kafka_client *client, const char *group, const char *topic, int partitions)
{
    for (int i = 0; i < partitions; i++)
        printf("%lld\n", (long long)kafka_client_committed(client, group, topic, i));
}

static void print_bytes(struct semel_str bytes)
{
    if (bytes.p == NULL) {
        putchar('-');
        return;
    }
    putchar('x');
    for (size_t i = 0; i < bytes.n; i++)
        printf("%02x", (unsigned char)bytes.p[i]);
}

static void print_record(void *ctx, const struct kafka_record *record, int64_t offset)
{
    (void)ctx;
    printf("%d %lld ", record->partition, (long long)offset);
    print_bytes(record->key);
    putchar(' ');
    print_bytes(record->payload);
    for (size_t i = 0; i < record->n_headers; i++) {
        putchar(' ');
        print_bytes(record->headers[i].name);
        putchar('=');
        print_bytes(record->headers[i].value);
    }
    putchar('\n');
}

static int run(struct kafka_client *client, int argc, char **argv)
{
    if (argc == 1 && strcmp(argv[0], "answers") == 0)
        return kafka_client_answers(client, 1000) ? 0 : 1;
    if (argc >= 3 && argc % 2 != 0 && strcmp(argv[0], "topic") == 0)
        kafka_client_topic(client, argv[1], number(argv[2]), (const char *const *)argv + 3);
    else if (argc == 2 && strcmp(argv[0], "send") == 0)
        send_all(client, argv[1]);
    else if (argc == 3 && strcmp(argv[0], "read") == 0)
        kafka_client_read(client, argv[1], number(argv[2]), print_record, NULL);
    else if (argc == 4 && strcmp(argv[0], "committed") == 0)
        print_committed(client, argv[1], argv[2], number(argv[3]));
    else
        lines_fail("BROKERS answers | topic NAME PARTITIONS [NAME VALUE]... | send TOPIC | read TOPIC PARTITIONS | "
                   "committed GROUP TOPIC PARTITIONS");
    return 0;
}

int main(int argc, char **argv)
{
    struct kafka_client client;
    int code;

    if (argc < 3)
        lines_fail("BROKERS COMMAND ...");
    kafka_client_open(&client, argv[1]);
    code = run(&client, argc - 2, argv + 2);
    kafka_client_close(&client);
    return code;
}
