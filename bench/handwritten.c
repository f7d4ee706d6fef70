/* SPDX-License-Identifier: MIT
 *
 * handwritten.c: what Semel is measured against: consumers that people write, with librdkafka and libpq.
 *   handwritten each|sets BROKERS TOPIC GROUP DATABASE MESSAGES
 *
 * Two threads, each a member of the group with a connection of its own.
 *   each  the consumer that everybody writes, one transaction per message: BEGIN; an insert into the inbox that does
 *         nothing on a conflict; the effect, if the insert did something; COMMIT.
 *   sets  what a good team writes in a day, one transaction per poll of up to 500 messages: BEGIN; one insert of the
 *         ids that does nothing on a conflict and returns the new ones; one insert of the effects of these; COMMIT.
 * Only then the offsets are stored, which librdkafka commits in the background. The program is written to be fast:
 * statements are prepared, values are bound in binary, `each` copies nothing, and the consumer's queues are as large as
 * the library makes them. The program ends when MESSAGES were handled, prints how many had an effect, and knows no
 * retries, no payloads and no fingerprints: a failure ends it.
 *
 * run_kafka.py makes the tables: handwritten_inbox and ledger.
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

#define PROGRAM "handwritten"
#include "program.h"

#define THREADS 2
#define POLL_MS 100
#define BATCH 500
#define ID_MAX 64

struct work {
    bool sets;
    const char *brokers, *topic, *group, *database;
    long messages;
    atomic_long handled, effects;
};

struct consumer {
    struct work *work;
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue; /* what rk polls */
    PGconn *conn;
};

/* ---- the database ------------------------------------------------------------------------------------- */

static PGresult *must(PGconn *conn, const char *doing, PGresult *res)
{
    if (PQresultStatus(res) != PGRES_COMMAND_OK && PQresultStatus(res) != PGRES_TUPLES_OK)
        fail(doing, PQerrorMessage(conn));
    return res;
}

static void prepare(PGconn *conn, const char *name, const char *statement)
{
    PQclear(must(conn, name, PQprepare(conn, name, statement, 0, NULL)));
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
    prepare(
        conn, "take_set",
        "INSERT INTO handwritten_inbox (message_id, processed_at) SELECT id, now() FROM unnest($1::text[]) AS b (id) "
        "ON CONFLICT DO NOTHING RETURNING message_id");
    prepare(conn, "effect_set",
            "INSERT INTO ledger (message_id, account, amount) "
            "SELECT * FROM unnest($1::text[], $2::integer[], $3::integer[])");
    prepare(conn, "commit", "COMMIT");
    return conn;
}

struct params {
    const char *values[3];
    int lengths[3];
};

static PGresult *query(PGconn *conn, const char *name, int n, const struct params *p)
{
    static const int binary[3] = {1, 1, 1};
    return must(conn, name,
                PQexecPrepared(conn, name, n, p != NULL ? p->values : NULL, p != NULL ? p->lengths : NULL, binary, 1));
}

/* The number of rows. */
static int execute(PGconn *conn, const char *name, int n, const struct params *p)
{
    PGresult *res = query(conn, name, n, p);
    const int rows = (int)strtol(PQcmdTuples(res), NULL, 10);
    PQclear(res);
    return rows;
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

/* Account and amount are in the byte order of the wire. */
struct message {
    const void *id;
    size_t id_bytes;
    uint32_t account, amount;
};

static struct message read_message(const rd_kafka_message_t *message)
{
    struct message m;
    rd_kafka_headers_t *headers;

    if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR)
        fail("poll", rd_kafka_message_errstr(message));
    if (rd_kafka_message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR ||
        rd_kafka_header_get_last(headers, "id", &m.id, &m.id_bytes) != RD_KAFKA_RESP_ERR_NO_ERROR ||
        m.id_bytes > ID_MAX)
        fail("message", "no header id of at most 64 bytes");
    m.account = number_behind(message, "\"account\":");
    m.amount = number_behind(message, "\"amount\":");
    return m;
}

/* After the commit. It fails for a partition that has gone to the other thread meanwhile, which is none of our
 * business. */
static void store_offset(rd_kafka_message_t *message)
{
    (void)rd_kafka_offset_store(message->rkt, message->partition, message->offset);
    rd_kafka_message_destroy(message);
}

/* ---- one message ---------------------------------------------------------------------------------------- */

/* The number of effects: 0 for a duplicate. */
static int handle(PGconn *conn, const struct message *m)
{
    const struct params p = {{m->id, (const char *)&m->account, (const char *)&m->amount},
                             {(int)m->id_bytes, sizeof m->account, sizeof m->amount}};

    execute(conn, "begin", 0, NULL);
    const int first = execute(conn, "take", 1, &p);
    if (first == 1)
        execute(conn, "effect", 3, &p);
    execute(conn, "commit", 0, NULL);
    return first;
}

static void consume_each(struct consumer *self)
{
    rd_kafka_message_t *message = rd_kafka_consumer_poll(self->rk, POLL_MS);
    if (message == NULL)
        return;
    const struct message m = read_message(message);
    atomic_fetch_add(&self->work->effects, handle(self->conn, &m));
    atomic_fetch_add(&self->work->handled, 1);
    store_offset(message);
}

/* ---- one set of messages --------------------------------------------------------------------------------- */

enum { OID_INT4 = 23, OID_TEXT = 25 };

/* An array of PostgreSQL in binary. */
struct array {
    size_t n;
    char p[20 + BATCH * (4 + ID_MAX)];
};

static void put_number(struct array *array, uint32_t wire)
{
    memcpy(array->p + array->n, &wire, sizeof wire);
    array->n += sizeof wire;
}

static void put_element(struct array *array, const void *p, size_t n)
{
    put_number(array, htonl((uint32_t)n));
    memcpy(array->p + array->n, p, n);
    array->n += n;
}

static void start_array(struct array *array, uint32_t type, size_t n)
{
    const uint32_t head[] = {1 /* dimensions */, 0 /* nulls */, type, (uint32_t)n, 1 /* the first index */};
    array->n = 0;
    for (size_t i = 0; i < sizeof head / sizeof head[0]; i++)
        put_number(array, htonl(head[i]));
}

static struct params array_params(const struct array arrays[3])
{
    struct params p;
    for (int i = 0; i < 3; i++) {
        p.values[i] = arrays[i].p;
        p.lengths[i] = (int)arrays[i].n;
    }
    return p;
}

static PGresult *take_set(PGconn *conn, struct array arrays[3], const struct message *m, size_t n)
{
    start_array(&arrays[0], OID_TEXT, n);
    for (size_t i = 0; i < n; i++)
        put_element(&arrays[0], m[i].id, m[i].id_bytes);
    const struct params p = array_params(arrays);
    return query(conn, "take_set", 1, &p);
}

/* The new ids come back in the order in which they were given. */
static void effect_set(PGconn *conn, struct array arrays[3], const struct message *m, size_t n, const PGresult *fresh)
{
    const size_t rows = (size_t)PQntuples(fresh);
    size_t k = 0;

    start_array(&arrays[0], OID_TEXT, rows);
    start_array(&arrays[1], OID_INT4, rows);
    start_array(&arrays[2], OID_INT4, rows);
    for (size_t i = 0; i < n && k < rows; i++) {
        if ((size_t)PQgetlength(fresh, (int)k, 0) != m[i].id_bytes ||
            memcmp(PQgetvalue(fresh, (int)k, 0), m[i].id, m[i].id_bytes) != 0)
            continue;
        put_element(&arrays[0], m[i].id, m[i].id_bytes);
        put_element(&arrays[1], &m[i].account, sizeof m[i].account);
        put_element(&arrays[2], &m[i].amount, sizeof m[i].amount);
        k++;
    }
    if (k != rows)
        fail("take_set", "the ids came back in another order");
    const struct params p = array_params(arrays);
    execute(conn, "effect_set", 3, &p);
}

/* The number of effects. */
static int handle_set(PGconn *conn, const struct message *m, size_t n)
{
    static _Thread_local struct array arrays[3];

    execute(conn, "begin", 0, NULL);
    PGresult *fresh = take_set(conn, arrays, m, n);
    const int rows = PQntuples(fresh);
    if (rows > 0)
        effect_set(conn, arrays, m, n, fresh);
    PQclear(fresh);
    execute(conn, "commit", 0, NULL);
    return rows;
}

static void consume_set(struct consumer *self)
{
    rd_kafka_message_t *messages[BATCH];
    struct message m[BATCH];
    const ssize_t n = rd_kafka_consume_batch_queue(self->queue, POLL_MS, messages, BATCH);

    if (n < 0)
        fail("poll", rd_kafka_err2str(rd_kafka_last_error()));
    if (n == 0)
        return;
    for (ssize_t i = 0; i < n; i++)
        m[i] = read_message(messages[i]);
    atomic_fetch_add(&self->work->effects, handle_set(self->conn, m, (size_t)n));
    atomic_fetch_add(&self->work->handled, n);
    for (ssize_t i = 0; i < n; i++)
        store_offset(messages[i]);
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

static void *consume(void *arg)
{
    struct consumer *self = arg;

    while (atomic_load(&self->work->handled) < self->work->messages) {
        if (self->work->sets)
            consume_set(self);
        else
            consume_each(self);
    }
    return NULL;
}

static void join(struct consumer *self, struct work *work)
{
    *self = (struct consumer){.work = work, .rk = join_group(work), .conn = connect_database(work->database)};
    self->queue = rd_kafka_queue_get_consumer(self->rk);
}

static void leave(struct consumer *self)
{
    rd_kafka_queue_destroy(self->queue);
    rd_kafka_consumer_close(self->rk);
    rd_kafka_destroy(self->rk);
    PQfinish(self->conn);
}

static bool read_arguments(int argc, char **argv, struct work *work)
{
    char *end;

    if (argc != 7 || (strcmp(argv[1], "each") != 0 && strcmp(argv[1], "sets") != 0))
        return false;
    work->sets = strcmp(argv[1], "sets") == 0;
    work->brokers = argv[2];
    work->topic = argv[3];
    work->group = argv[4];
    work->database = argv[5];
    work->messages = strtol(argv[6], &end, 10);
    return work->messages > 0 && *end == '\0';
}

int main(int argc, char **argv)
{
    struct work work = {0};
    struct consumer consumers[THREADS];
    pthread_t threads[THREADS];

    if (!read_arguments(argc, argv, &work)) {
        fprintf(stderr, "usage: handwritten each|sets BROKERS TOPIC GROUP DATABASE MESSAGES\n");
        return 2;
    }
    for (int i = 0; i < THREADS; i++)
        join(&consumers[i], &work);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, consume, &consumers[i]) != 0)
            fail("threads", "cannot start one");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        leave(&consumers[i]);
    printf("%ld\n", atomic_load(&work.effects));
    return 0;
}
