/* SPDX-License-Identifier: MIT
 *
 * handwritten.c: what Semel is measured against: the consumer that everybody writes, with librdkafka and libpq.
 *   handwritten BROKERS TOPIC GROUP DATABASE MESSAGES
 *
 * Two threads, each a member of the group with a connection of its own. A transaction a message: BEGIN; an insert into
 * the inbox that does nothing on a conflict; the effect, if the insert did something; COMMIT. Only then is the offset
 * stored, which librdkafka commits in the background. It is written to be fast: statements are prepared, numbers are
 * bound in binary, nothing is allocated or copied by us, and the consumer's queues are as large as the library makes
 * them. It ends when MESSAGES were handled, prints how many had an effect, and knows no retries: a failure ends it.
 *
 * The tables are those of run_kafka.py: handwritten_inbox and ledger.
 */
#define _GNU_SOURCE /* memmem */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>
#include <librdkafka/rdkafka.h>

#define THREADS 2
#define POLL_MS 100

struct work {
    const char *brokers, *topic, *group, *database;
    long messages;
    atomic_long handled, effects;
};

struct consumer {
    struct work *work;
    rd_kafka_t *rk;
    PGconn *conn;
};

static _Noreturn void fail(const char *doing, const char *why)
{
    fprintf(stderr, "handwritten: %s: %s\n", doing, why);
    exit(1);
}

/* ---- the database ------------------------------------------------------------------------------------- */

/* The number of rows. */
static int must(PGconn *conn, const char *doing, PGresult *res)
{
    if (PQresultStatus(res) != PGRES_COMMAND_OK)
        fail(doing, PQerrorMessage(conn));
    const int rows = (int)strtol(PQcmdTuples(res), NULL, 10);
    PQclear(res);
    return rows;
}

static void prepare(PGconn *conn, const char *name, const char *statement)
{
    must(conn, name, PQprepare(conn, name, statement, 0, NULL));
}

static PGconn *connect_database(const char *url)
{
    PGconn *conn = PQconnectdb(url);
    if (PQstatus(conn) != CONNECTION_OK)
        fail("connect", PQerrorMessage(conn));
    prepare(conn, "begin", "BEGIN");
    prepare(conn, "take",
            "INSERT INTO handwritten_inbox (message_id, processed_at) VALUES ($1::text, clock_timestamp()) "
            "ON CONFLICT DO NOTHING");
    prepare(conn, "effect",
            "INSERT INTO ledger (message_id, account, amount) VALUES ($1::text, $2::integer, $3::integer)");
    prepare(conn, "commit", "COMMIT");
    return conn;
}

struct params {
    const char *values[3];
    int lengths[3], formats[3];
    uint32_t account, amount;
};

static int execute(PGconn *conn, const char *name, int n, const struct params *p)
{
    return must(conn, name, PQexecPrepared(conn, name, n, p->values, p->lengths, p->formats, 1));
}

/* true: it had its effect; false: it is a duplicate. */
static bool handle(PGconn *conn, const struct params *p)
{
    execute(conn, "begin", 0, p);
    const bool first = execute(conn, "take", 1, p) == 1;
    if (first)
        execute(conn, "effect", 3, p);
    execute(conn, "commit", 0, p);
    return first;
}

/* ---- the broker --------------------------------------------------------------------------------------- */

static void set(rd_kafka_conf_t *conf, const char *name, const char *value)
{
    char text[512];
    if (rd_kafka_conf_set(conf, name, value, text, sizeof text) != RD_KAFKA_CONF_OK)
        fail(name, text);
}

static rd_kafka_t *join_group(const struct work *work)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
    char text[512];

    set(conf, "bootstrap.servers", work->brokers);
    set(conf, "group.id", work->group);
    set(conf, "auto.offset.reset", "earliest");
    set(conf, "enable.auto.offset.store", "false");
    set(conf, "partition.assignment.strategy", "cooperative-sticky");
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof text);
    if (rk == NULL)
        fail("open", text);
    rd_kafka_poll_set_consumer(rk);
    rd_kafka_topic_partition_list_add(topics, work->topic, RD_KAFKA_PARTITION_UA);
    const rd_kafka_resp_err_t code = rd_kafka_subscribe(rk, topics);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        fail("subscribe", rd_kafka_err2str(code));
    rd_kafka_topic_partition_list_destroy(topics);
    return rk;
}

/* The number behind this text, in the byte order of the wire. */
static uint32_t number_behind(const rd_kafka_message_t *message, const char *text)
{
    const char *end = (const char *)message->payload + message->len;
    const char *at = memmem(message->payload, message->len, text, strlen(text));
    uint32_t number = 0;

    if (at == NULL)
        fail("payload", text);
    for (at += strlen(text); at < end && *at >= '0' && *at <= '9'; at++)
        number = number * 10 + (uint32_t)(*at - '0');
    return htonl(number);
}

static void read_message(const rd_kafka_message_t *message, struct params *p)
{
    rd_kafka_headers_t *headers;
    const void *id;
    size_t n;

    if (rd_kafka_message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR ||
        rd_kafka_header_get_last(headers, "id", &id, &n) != RD_KAFKA_RESP_ERR_NO_ERROR)
        fail("message", "there is no header id");
    p->account = number_behind(message, "\"account\":");
    p->amount = number_behind(message, "\"amount\":");
    p->values[0] = id;
    p->values[1] = (const char *)&p->account;
    p->values[2] = (const char *)&p->amount;
    p->lengths[0] = (int)n;
    p->lengths[1] = p->lengths[2] = sizeof(uint32_t);
    p->formats[0] = p->formats[1] = p->formats[2] = 1;
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

static void *consume(void *arg)
{
    struct consumer *self = arg;
    struct work *work = self->work;

    while (atomic_load(&work->handled) < work->messages) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(self->rk, POLL_MS);
        struct params p;
        if (message == NULL)
            continue;
        if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR)
            fail("poll", rd_kafka_message_errstr(message));
        read_message(message, &p);
        atomic_fetch_add(&work->effects, handle(self->conn, &p));
        atomic_fetch_add(&work->handled, 1);
        /* It fails for a partition that has gone to the other one meanwhile, which is none of our business. */
        (void)rd_kafka_offset_store(message->rkt, message->partition, message->offset);
        rd_kafka_message_destroy(message);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct work work = {0};
    struct consumer consumers[THREADS];
    pthread_t threads[THREADS];
    char *end;

    if (argc != 6 || (work.messages = strtol(argv[5], &end, 10)) < 1 || *end != '\0') {
        fprintf(stderr, "usage: handwritten BROKERS TOPIC GROUP DATABASE MESSAGES\n");
        return 2;
    }
    work.brokers = argv[1];
    work.topic = argv[2];
    work.group = argv[3];
    work.database = argv[4];
    for (int i = 0; i < THREADS; i++)
        consumers[i] = (struct consumer){&work, join_group(&work), connect_database(work.database)};
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, consume, &consumers[i]) != 0)
            fail("threads", "there is none to be had");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        rd_kafka_consumer_close(consumers[i].rk);
        rd_kafka_destroy(consumers[i].rk);
        PQfinish(consumers[i].conn);
    }
    printf("%ld\n", atomic_load(&work.effects));
    return 0;
}
