/* SPDX-License-Identifier: MIT
 *
 * kafka_private.h: the inside of the Kafka driver:
 *   kafka.c       the source: the group, lanes, commits, poll and the answers
 *   kafka_conf.c  the options as librdkafka's settings, why there is no connection, questions to the servers
 *   kafka_sink.c  the sink: rounds of one batch per partition, what a report means
 */
#ifndef SEMEL_BROKER_KAFKA_PRIVATE_H
#define SEMEL_BROKER_KAFKA_PRIVATE_H

#include <librdkafka/rdkafka.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/str.h"
#include "base/wait.h"
#include "broker/kafka.h"

#define KAFKA_LANES_MAX ((size_t)1 << 14)
#define KAFKA_IN_FLIGHT_MAX ((size_t)1 << 20)
#define KAFKA_PENDING 256
#define KAFKA_TOPIC_MAX 249

/* ---- lanes -------------------------------------------------------------------------------------------- */

struct kafka_slot {
    int64_t offset;
    uint32_t seq;
    bool acked;
};

struct kafka_lane {
    char *topic; /* owned; NULL: this place is free */
    int32_t partition;
    uint32_t serial;          /* no other assignment of this process has it */
    uint64_t number;          /* of the topic and the partition, the same in every assignment of a handle */
    uint32_t next_seq;        /* never used twice, also not for an offset that comes again */
    struct kafka_slot *slots; /* a ring of the deliveries without an answer, and of those acknowledged behind them */
    size_t first, n, cap;
    int64_t next;          /* nothing below it is delivered */
    int64_t highest;       /* that was delivered; -1: nothing */
    int64_t expect;        /* after going back: what must come first; -1 */
    int expect_tries;      /* how often something else came */
    int64_t done;          /* the offset to be committed; -1: nothing was acknowledged */
    int64_t sent;          /* the last one that was handed over for it */
    int64_t held_until_us; /* paused until then; SEMEL_NONE: not paused */
    bool stopped;
    bool unsure;         /* it starts where the library found, because we could not ask */
    bool from_beginning; /* it starts at what is then the beginning */
    bool back;           /* it goes back, to back_to, and rests for back_ms */
    size_t back_to;
    int back_ms;
    struct semel_str source; /* the topic, in the arena of this poll: */
    uint64_t batch;
};

struct kafka_lanes {
    struct kafka_lane *at;
    size_t n, cap;    /* places, free ones too */
    size_t in_flight; /* slots that are not acknowledged, of all */
    size_t last;      /* where the last look-up ended */
};

enum kafka_offer {
    KAFKA_TAKE,
    KAFKA_STALE,  /* delivered already, or given back */
    KAFKA_MISSING /* something before it, that was there, has not come */
};

/* NULL: no memory, or too many. */
struct kafka_lane *semel__kafka_lane_add(struct kafka_lanes *lanes, const char *topic, int32_t partition);
void semel__kafka_lane_drop(struct kafka_lanes *lanes, struct kafka_lane *lane); /* its tags are fenced */
void semel__kafka_lanes_done(struct kafka_lanes *lanes);
enum kafka_offer semel__kafka_lane_offer(const struct kafka_lane *lane, int64_t offset);
/* false: no memory, and nothing has changed. */
bool semel__kafka_lane_take(struct kafka_lanes *lanes, struct kafka_lane *lane, int64_t offset, uint64_t *ret_tag);
bool semel__kafka_lane_ack(struct kafka_lanes *lanes, uint64_t tag); /* false: fenced */
/* Chooses it for going back, to rest for delay_ms at least; false: fenced. No acknowledgement precedes the rewind. */
bool semel__kafka_lane_back(struct kafka_lanes *lanes, uint64_t tag, int delay_ms);
/* Forgets everything from back_to on; the offset to go on from. */
int64_t semel__kafka_lane_rewind(struct kafka_lanes *lanes, struct kafka_lane *lane);

/* ---- the handle --------------------------------------------------------------------------------------- */

/* What the library's callbacks are given. A consumer that is never destroyed (kafka.c: leave) has threads that
 * outlive the handle, and they may still look at a certificate: then it is never freed. */
struct kafka_callback_context {
    struct kafka *kafka; /* for callbacks that our own thread serves */
    atomic_int x509;     /* the last certificate that was not believed, and why; told by any thread */
    bool outlives;
};

struct kafka_destination;

struct kafka_sink {
    rd_kafka_t *rk;               /* opened by the first publish; NULL: not open */
    struct kafka_destination *at; /* topics that it was asked for */
    size_t n, cap;
    uint64_t calls;
    int longest_ms;     /* of a call: below message.timeout.ms */
    size_t batch_bytes; /* of records in one batch */
};

struct kafka {
    struct semel_broker base;
    rd_kafka_conf_t *reader, *writer; /* for every connection anew; reader NULL: no source */
    rd_kafka_topic_partition_list_t *topics;
    enum semel_kafka_first first;
    size_t in_flight_max;
    struct semel_source_hooks hooks;
    int64_t patience_us; /* max.poll.interval.ms: who does not poll for longer is no member any more */
    bool must_wake;      /* the library does not notice by itself that the queue has room again */

    rd_kafka_t *rk; /* NULL: not connected */
    rd_kafka_queue_t *messages, *commits;
    rd_kafka_message_t *pending[KAFKA_PENDING]; /* taken off the queue, not delivered yet */
    size_t n_pending, at_pending;
    uint64_t batch;          /* the number of polls */
    size_t high, high_bytes; /* since the fetchers were woken: the longest queue, and what was taken */
    struct kafka_lanes lanes;
    int64_t polled_us; /* the last time; SEMEL_NONE */
    bool lost;         /* we did not poll, and the group goes on without us; until reopen nothing of ours counts */
    bool joined;       /* the group has assigned something, be it nothing */
    bool committing;   /* one commit is on its way */
    int64_t next_commit_us;
    bool dead;                   /* CLOSED until reopen, with this error */
    bool away;                   /* no server was reached, and none has answered since */
    int ask_ms;                  /* and how long was waited for an answer the last time */
    int64_t ask_us;              /* then: when one is asked again */
    rd_kafka_resp_err_t refused; /* what the last commit was refused for */
    bool noted;                  /* an error to be told by the next poll */
    struct semel_error error;    /* of `dead` or `noted` */
    struct semel_error why;      /* what was said last of a connection; status OK: nothing */
    struct kafka_callback_context *context;

    struct kafka_sink sink;
};

/* What is left of wait_ms that began at from_us, by the steady clock. */
static inline int kafka_left_ms(int64_t from_us, int wait_ms)
{
    const int64_t past_us = semel__steady_us() - from_us;

    return past_us >= (int64_t)wait_ms * 1000 ? 0 : wait_ms - (int)(past_us / 1000);
}

/* kafka.c */
void semel__kafka_error(rd_kafka_t *rk, int code, const char *reason, void *opaque);

/* kafka_conf.c: fills reader, writer, topics and what else the options say. */
semel_status semel__kafka_configure(struct kafka *kafka, const struct semel_kafka_options *options,
                                    struct semel_error *err);
void semel__kafka_unconfigure(struct kafka *kafka); /* closes the sink too */
/* What the library says of a connection becomes kafka->why, with the class `cls` unless more is known. */
void semel__kafka_explain(struct kafka *kafka, int code, enum semel_class cls, const char *reason);
/* INVALID: the library does not take its settings. */
semel_status semel__kafka_refused(const char *text, struct semel_error *err);
/* Believes what OpenSSL believes, and remembers why it does not. */
int semel__kafka_certificate(rd_kafka_t *rk, const char *broker, int32_t id, int *x509_error, int depth,
                             const char *buf, size_t size, char *text, size_t n_text, void *opaque);

bool semel__kafka_topic_is_valid(struct semel_str topic);

/* kafka_sink.c */
void semel__kafka_sink_close(struct kafka *kafka);
void semel__kafka_delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque);
semel_status semel__kafka_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                  struct semel_error *err);

#endif
