/* SPDX-License-Identifier: MIT
 *
 * kafka_link.c: joining and leaving: the reader of a Kafka broker, from its first thread to its last.
 *
 * Invariants: the library's threads touch `messages` only until it is destroyed. A reader that cannot be destroyed
 * without taking the process along is left behind, and is silent.
 */
#include "broker/kafka_private.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

#define CLOSE_MS 5000
#define SERVE_MS 20
#define SLACK_NS 2000000ul
#define LONG_SLACK_NS 50000000ul

/* The library's threads sleep for whole milliseconds and spin for the rest of the last one, three times a second. When
 * their sleep may end a little late, as what they inherit from us then says, there is no rest to spin for, and those of
 * many routes wake together. A version that looks every few milliseconds whether a full queue has room must not be
 * late by much; what comes from the server or from us wakes them at once in any case. */
static rd_kafka_t *new_reader(const struct kafka *kafka, rd_kafka_conf_t *conf, char *text, size_t n)
{
#ifdef __linux__
    const int before = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    rd_kafka_t *rk;

    (void)prctl(PR_SET_TIMERSLACK, kafka->must_wake ? LONG_SLACK_NS : SLACK_NS, 0, 0, 0);
    rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, n);
    (void)prctl(PR_SET_TIMERSLACK, before > 0 ? (unsigned long)before : 0ul, 0, 0, 0);
    return rk;
#else
    (void)kafka;
    return rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, n);
#endif
}

/* What happens to the group comes by a queue of its own, and who waits for a record does not see it: he is woken. The
 * library's own threads call this. */
static void group_has_news(rd_kafka_t *rk, void *messages)
{
    (void)rk;
    rd_kafka_queue_yield(messages);
}

static void listen_to_group(rd_kafka_t *rk, rd_kafka_queue_t *messages)
{
    rd_kafka_queue_t *group = rd_kafka_queue_get_consumer(rk);

    rd_kafka_queue_cb_event_enable(group, messages != NULL ? group_has_news : NULL, messages);
    rd_kafka_queue_destroy(group);
}

semel_status semel__kafka_connect(struct kafka *kafka, struct semel_error *err)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(kafka->reader);
    rd_kafka_resp_err_t code;
    char text[sizeof err->text];

    kafka->rk = new_reader(kafka, conf, text, sizeof text);
    if (kafka->rk == NULL) {
        rd_kafka_conf_destroy(conf);
        return semel__kafka_refused(text, err);
    }
    rd_kafka_poll_set_consumer(kafka->rk);
    if (kafka->log != NULL)
        rd_kafka_set_log_queue(kafka->rk, NULL); /* its lines come by the consumer's queue */
    kafka->messages = rd_kafka_queue_new(kafka->rk);
    kafka->commits = rd_kafka_queue_new(kafka->rk);
    listen_to_group(kafka->rk, kafka->messages);
    kafka->polled_us = SEMEL_NONE;
    code = rd_kafka_subscribe(kafka->rk, kafka->topics);
    return code == RD_KAFKA_RESP_ERR_NO_ERROR ? SEMEL_OK : semel__kafka_refused(rd_kafka_err2str(code), err);
}

static bool is_member(struct kafka *kafka)
{
    char *id = rd_kafka_memberid(kafka->rk);
    const bool member = id != NULL && id[0] != '\0';

    if (id != NULL)
        rd_kafka_mem_free(kafka->rk, id);
    return member;
}

static void serve_while(struct kafka *kafka, bool (*wanted)(struct kafka *kafka), int64_t from_us)
{
    while (wanted(kafka) && semel__kafka_left_ms(from_us, CLOSE_MS / 2) > 0) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(kafka->rk, SERVE_MS);
        if (message != NULL)
            rd_kafka_message_destroy(message);
    }
}

static bool is_joining(struct kafka *kafka)
{
    return !kafka->joined && is_member(kafka);
}

static bool has_not_left(struct kafka *kafka)
{
    struct semel_kafka_view view;

    semel__kafka_look(&kafka->base, &view);
    return view.assigned > 0 || is_member(kafka);
}

/* Leaves the group, if that can be done in time; if not, the group's patience with us will end. Not by consumer_close:
 * once begun it must be waited for, however long the server takes, or destroying hangs.
 *
 * Before 2.3 the library aborts the process when a consumer is destroyed that has joined its group and was not yet told
 * its share. So we wait for that. If it does not come, the consumer leaves but is never destroyed; false says so. */
static bool leave(struct kafka *kafka)
{
    const int64_t from_us = semel__kafka_now_us();
    bool may_destroy;

    kafka->dead = true; /* whatever is assigned from now on begins nothing */
    if (rd_kafka_version() < 0x020300ff)
        serve_while(kafka, is_joining, from_us);
    may_destroy = rd_kafka_version() >= 0x020300ff || !is_joining(kafka);
    rd_kafka_unsubscribe(kafka->rk);
    serve_while(kafka, has_not_left, from_us);
    return may_destroy;
}

void semel__kafka_disconnect(struct kafka *kafka)
{
    bool may_destroy;

    if (kafka->rk == NULL)
        return;
    semel__kafka_flush(kafka, CLOSE_MS / 2);
    semel__kafka_forget(kafka, NULL);
    may_destroy = leave(kafka);
    semel__kafka_abandon(kafka);
    listen_to_group(kafka->rk, NULL);
    rd_kafka_queue_destroy(kafka->messages);
    rd_kafka_queue_destroy(kafka->commits);
    if (may_destroy)
        rd_kafka_destroy_flags(kafka->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    else
        kafka->ear->outlives = true;
    kafka->rk = NULL;
    kafka->joined = false;
    kafka->lost = false;
    kafka->committing = false;
    kafka->noted = kafka->away = kafka->dead = false;
    kafka->why = (struct semel_error){0};
    kafka->high = 0;
    kafka->high_bytes = 0;
}
