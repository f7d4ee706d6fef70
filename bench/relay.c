/* SPDX-License-Identifier: MIT
 *
 * relay.c: what the relay is measured against, and by: a relay that people write, with librdkafka and libpq, and a look
 * at a topic.
 *   relay topic BROKERS TOPIC PARTITIONS            makes the topic
 *   relay update|delete LIMIT BROKERS TOPIC DATABASE EVENTS
 *   relay watch BROKERS TOPIC PARTITIONS EVENTS     waits until so many records are there; prints how many came per
 *                                                   second
 *   relay latency BROKERS TOPIC PARTITIONS DATABASE SECONDS   puts 1,000 events per second by semel.outbox_put, one
 *                                                   per transaction, on four connections; prints how many per second
 *                                                   it really put, then the median and the 99th percentile of the time
 *                                                   from the answer to the commit to the consumer, in milliseconds, and
 *                                                   the same two from before the put; of the last nine tenths
 *
 * The relay is the one that everybody writes: in one transaction SELECT ... FOR UPDATE SKIP LOCKED LIMIT n, produce
 * (idempotent), rd_kafka_flush, then UPDATE ... SET published_at (update) or DELETE (delete), COMMIT. It is written to
 * be fast: statements are prepared, values are bound in binary, a set of rows is updated by one statement. It ends when
 * EVENTS were published. It keeps no order when an event is refused, and a failure ends it.
 *
 * `watch` looks at the ends of the partitions: the rate is that of the last nine tenths, so that connecting and warming
 * up count for nobody.
 *
 * run_relay.py makes the table: plain_outbox.
 */
#include <arpa/inet.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>
#include <librdkafka/rdkafka.h>

#include "kafka/client.h"
#define PROGRAM "relay"
#include "program.h"

#define BATCH_MAX 10000
#define ASK_MS 10000
#define PER_SECOND 1000
#define PUTTERS 4
#define LOOK_MS 10
#define SECONDS_MAX 600

static PGresult *must(PGconn *conn, const char *doing, PGresult *res)
{
    if (PQresultStatus(res) != PGRES_COMMAND_OK && PQresultStatus(res) != PGRES_TUPLES_OK)
        fail(doing, PQerrorMessage(conn));
    return res;
}

static PGconn *connect_database(const char *url)
{
    PGconn *conn = PQconnectdb(url);
    if (PQstatus(conn) != CONNECTION_OK)
        fail("connect", PQerrorMessage(conn));
    return conn;
}

/* ---- the relay that people write ---------------------------------------------------------------------- */

static rd_kafka_t *open_producer(const char *brokers)
{
    static const char *const settings[][2] = {{"enable.idempotence", "true"},
                                              {"queue.buffering.max.messages", "1000000"}};
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[512];
    if (rd_kafka_conf_set(conf, "bootstrap.servers", brokers, text, sizeof text) != RD_KAFKA_CONF_OK)
        fail("brokers", text);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], text, sizeof text) != RD_KAFKA_CONF_OK)
            fail(settings[i][0], text);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof text);
    if (rk == NULL)
        fail("open", text);
    return rk;
}

static void produce(rd_kafka_t *rk, const char *topic, const PGresult *rows, int i)
{
    const rd_kafka_resp_err_t code = rd_kafka_producev(
        rk, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_KEY(PQgetvalue(rows, i, 2), (size_t)PQgetlength(rows, i, 2)),
        RD_KAFKA_V_VALUE(PQgetvalue(rows, i, 4), (size_t)PQgetlength(rows, i, 4)),
        RD_KAFKA_V_HEADER("id", PQgetvalue(rows, i, 1), PQgetlength(rows, i, 1)),
        RD_KAFKA_V_HEADER("type", PQgetvalue(rows, i, 3), PQgetlength(rows, i, 3)),
        RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        fail("produce", rd_kafka_err2str(code));
}

/* The numbers of the rows, as an array of PostgreSQL in binary. */
static void mark(PGconn *conn, const PGresult *rows, int n)
{
    static char array[20 + BATCH_MAX * 12];
    const uint32_t head[] = {htonl(1), 0, htonl(20), htonl((uint32_t)n), htonl(1)}, size = htonl(8);
    const char *values[1] = {array};
    const int formats[1] = {1}, lengths[1] = {(int)sizeof head + 12 * n};
    memcpy(array, head, sizeof head);
    for (int i = 0; i < n; i++) {
        memcpy(array + sizeof head + 12 * (size_t)i, &size, 4);
        memcpy(array + sizeof head + 12 * (size_t)i + 4, PQgetvalue(rows, i, 0), 8);
    }
    PQclear(must(conn, "mark", PQexecPrepared(conn, "mark", 1, values, lengths, formats, 1)));
}

static int publish(bool delete, long limit, const char *brokers, const char *topic, const char *database, long events)
{
    PGconn *conn = connect_database(database);
    rd_kafka_t *rk = open_producer(brokers);
    char text[512];
    snprintf(text, sizeof text,
             "SELECT seq, id::text, aggregateid, type, payload FROM plain_outbox%s ORDER BY seq LIMIT %ld "
             "FOR UPDATE SKIP LOCKED",
             delete ? "" : " WHERE published_at IS NULL", limit);
    PQclear(must(conn, "select", PQprepare(conn, "select", text, 0, NULL)));
    PQclear(
        must(conn, "mark",
             PQprepare(conn, "mark",
                       delete
                           ? "DELETE FROM plain_outbox WHERE seq = ANY ($1::bigint[])"
                           : "UPDATE plain_outbox SET published_at = clock_timestamp() WHERE seq = ANY ($1::bigint[])",
                       0, NULL)));
    for (long done = 0; done < events;) {
        PQclear(must(conn, "begin", PQexec(conn, "BEGIN")));
        PGresult *rows = must(conn, "select", PQexecPrepared(conn, "select", 0, NULL, NULL, NULL, 1));
        const int n = PQntuples(rows);
        for (int i = 0; i < n; i++)
            produce(rk, topic, rows, i);
        if (rd_kafka_flush(rk, ASK_MS) != RD_KAFKA_RESP_ERR_NO_ERROR)
            fail("flush", "timed out");
        if (n > 0)
            mark(conn, rows, n);
        PQclear(rows);
        PQclear(must(conn, "commit", PQexec(conn, "COMMIT")));
        done += n;
    }
    rd_kafka_destroy(rk);
    PQfinish(conn);
    return 0;
}

/* ---- a look at the topic ------------------------------------------------------------------------------ */

static int64_t stored(struct kafka_client *client, const char *topic, int partitions)
{
    int64_t n = 0;
    for (int i = 0; i < partitions; i++) {
        int64_t low, high;
        rd_kafka_resp_err_t code = rd_kafka_query_watermark_offsets(client->rk, topic, i, &low, &high, ASK_MS);
        if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
            fail("the end of a partition", rd_kafka_err2str(code));
        n += high - low;
    }
    return n;
}

static int watch(struct kafka_client *client, const char *topic, int partitions, int64_t events)
{
    int64_t began_us = 0, first = 0, n = 0;
    while (n < events) {
        n = stored(client, topic, partitions);
        (void)poll(NULL, 0, LOOK_MS); /* whoever asks without a pause takes a core from those who are measured */
        if (began_us == 0 && n * 10 >= events) {
            began_us = now_us();
            first = n;
        }
    }
    const int64_t took_us = now_us() - began_us;
    if (first >= events || took_us <= 0)
        fail("watch", "all of them were there at once");
    printf("%.1f\n", (double)(n - first) * 1e6 / (double)took_us);
    return 0;
}

/* ---- latency ------------------------------------------------------------------------------------------ */

struct latency {
    rd_kafka_t *rk;
    const char *database;
    int64_t n, began_us, ended_us;
    /* Of each event. */
    int64_t *put_us, *committed_us, *delivered_us;
};

struct putter {
    struct latency *of;
    int64_t first;
    pthread_t thread;
};

/* The payload is the event's number. */
static void *consume(void *arg)
{
    struct latency *l = arg;
    for (int64_t i = 0; i < l->n;) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(l->rk, 1000);
        char text[24] = "";
        if (message == NULL)
            continue;
        if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR)
            fail("consume", rd_kafka_message_errstr(message));
        memcpy(text, message->payload, message->len < sizeof text ? message->len : sizeof text - 1);
        const long long at = strtoll(text, NULL, 10);
        if (at < 0 || at >= l->n)
            fail("consume", "an event that nobody put");
        if (l->delivered_us[at] == 0) {
            l->delivered_us[at] = now_us();
            i++;
        }
        rd_kafka_message_destroy(message);
    }
    return NULL;
}

static void *put(void *arg)
{
    const struct putter *putter = arg;
    struct latency *l = putter->of;
    PGconn *conn = connect_database(l->database);
    for (int64_t i = putter->first; i < l->n; i += PUTTERS) {
        char text[256];
        const int64_t wait_us = l->began_us + i * 1000000 / PER_SECOND - now_us();
        if (wait_us > 0)
            (void)poll(NULL, 0, (int)(wait_us / 1000) + 1);
        snprintf(text, sizeof text, "SELECT semel.outbox_put('order', '%" PRId64 "', 'e', raw => '%" PRId64 "'::bytea)",
                 i % 10000, i);
        l->put_us[i] = now_us();
        PQclear(must(conn, "put", PQexec(conn, text)));
        l->committed_us[i] = now_us();
    }
    PQfinish(conn);
    return NULL;
}

static int cmp_double(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static rd_kafka_t *open_consumer(const char *brokers, const char *topic, int partitions)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(partitions);
    char text[512];
    if (rd_kafka_conf_set(conf, "bootstrap.servers", brokers, text, sizeof text) != RD_KAFKA_CONF_OK ||
        rd_kafka_conf_set(conf, "group.id", topic, text, sizeof text) != RD_KAFKA_CONF_OK)
        fail("consumer", text);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof text);
    if (rk == NULL)
        fail("consumer", text);
    rd_kafka_poll_set_consumer(rk);
    for (int i = 0; i < partitions; i++)
        rd_kafka_topic_partition_list_add(list, topic, i)->offset = RD_KAFKA_OFFSET_BEGINNING;
    if (rd_kafka_assign(rk, list) != RD_KAFKA_RESP_ERR_NO_ERROR)
        fail("consumer", "cannot be assigned");
    rd_kafka_topic_partition_list_destroy(list);
    return rk;
}

/* The part of the last nine tenths that took at most so long, in milliseconds: the consumer connects during the first
 * one. What was there before its commit was answered took no time. */
static double percentile(const struct latency *l, const int64_t *since_us, int64_t percent)
{
    const int64_t first = l->n / 10, n = l->n - first;
    double *ms = calloc((size_t)n, sizeof *ms);
    if (ms == NULL)
        fail("latency", "no memory");
    for (int64_t i = 0; i < n; i++) {
        const int64_t us = l->delivered_us[first + i] - since_us[first + i];
        ms[i] = us > 0 ? (double)us / 1000 : 0;
    }
    qsort(ms, (size_t)n, sizeof *ms, cmp_double);
    const double found = ms[n * percent / 100];
    free(ms);
    return found;
}

static int latency(const char *brokers, const char *topic, int partitions, const char *database, int64_t seconds)
{
    const int64_t n = seconds * PER_SECOND;
    struct latency l = {.rk = open_consumer(brokers, topic, partitions), .database = database, .n = n};
    struct putter putters[PUTTERS];
    pthread_t consumer;
    l.put_us = calloc((size_t)n, sizeof *l.put_us);
    l.committed_us = calloc((size_t)n, sizeof *l.committed_us);
    l.delivered_us = calloc((size_t)n, sizeof *l.delivered_us);
    if (l.put_us == NULL || l.committed_us == NULL || l.delivered_us == NULL ||
        pthread_create(&consumer, NULL, consume, &l) != 0)
        fail("latency", "no memory, or no thread");
    l.began_us = now_us();
    for (int i = 0; i < PUTTERS; i++) {
        putters[i] = (struct putter){.of = &l, .first = i};
        if (pthread_create(&putters[i].thread, NULL, put, &putters[i]) != 0)
            fail("latency", "no thread");
    }
    for (int i = 0; i < PUTTERS; i++)
        pthread_join(putters[i].thread, NULL);
    l.ended_us = now_us();
    pthread_join(consumer, NULL);
    printf("%.1f %.2f %.2f %.2f %.2f\n", (double)n * 1e6 / (double)(l.ended_us - l.began_us),
           percentile(&l, l.committed_us, 50), percentile(&l, l.committed_us, 99), percentile(&l, l.put_us, 50),
           percentile(&l, l.put_us, 99));
    free(l.put_us);
    free(l.committed_us);
    free(l.delivered_us);
    rd_kafka_destroy(l.rk);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    struct kafka_client client;
    int code = 0;
    if (argc == 7 && (strcmp(what, "update") == 0 || strcmp(what, "delete") == 0))
        return publish(strcmp(what, "delete") == 0, number(argv[2], BATCH_MAX), argv[3], argv[4], argv[5],
                       number(argv[6], 100000000));
    if (argc == 7 && strcmp(what, "latency") == 0)
        return latency(argv[2], argv[3], (int)number(argv[4], 1000), argv[5], number(argv[6], SECONDS_MAX));
    if (argc != (strcmp(what, "watch") == 0 ? 6 : strcmp(what, "topic") == 0 ? 5 : 0)) {
        fprintf(stderr, "usage: see relay.c\n");
        return 2;
    }
    kafka_client_open(&client, argv[2]);
    if (strcmp(what, "topic") == 0)
        kafka_client_topic(&client, argv[3], (int)number(argv[4], 1000), NULL);
    else
        code = watch(&client, argv[3], (int)number(argv[4], 1000), number(argv[5], 100000000));
    kafka_client_close(&client);
    return code;
}
