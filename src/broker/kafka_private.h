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
    uint32_t serial;          /* unique among all assignments of this process */
    uint64_t number;          /* of the topic and the partition, the same in every assignment of a handle */
    uint32_t next_seq;        /* never reused, not even when an offset comes again */
    struct kafka_slot *slots; /* a ring of the deliveries without an answer, and of those acknowledged behind them */
    size_t first, n, cap;
    int64_t next;          /* offsets below it are not delivered */
    int64_t highest;       /* highest delivered offset; -1: none */
    int64_t expect;        /* after going back: the offset that must come first; -1 */
    int expect_tries;      /* how often another offset came */
    int64_t done;          /* the offset to commit; -1: nothing was acknowledged */
    int64_t sent;          /* the last offset handed over for a commit */
    int64_t held_until_us; /* paused until then; SEMEL_NONE: not paused */
    bool stopped;
    bool unsure;         /* it starts where the library found, because we could not ask the servers */
    bool from_beginning; /* it starts at the beginning of the partition */
    bool back;           /* it goes back to back_to, and pauses for back_ms */
    size_t back_to;
    int back_ms;
    struct semel_str source; /* the topic, in the arena of this poll: */
    uint64_t batch;
};

struct kafka_lanes {
    struct kafka_lane *at;
    size_t n, cap;    /* places, free ones too */
    size_t in_flight; /* slots that are not acknowledged, of all */
    size_t last;      /* where the last lookup ended */
};

enum kafka_offer {
    KAFKA_TAKE,
    KAFKA_STALE,  /* delivered already, or given back */
    KAFKA_MISSING /* an earlier offset that exists has not come */
};

/* NULL: no memory, or too many. */
struct kafka_lane *semel__kafka_lane_add(struct kafka_lanes *lanes, const char *topic, int32_t partition);
void semel__kafka_lane_drop(struct kafka_lanes *lanes, struct kafka_lane *lane); /* its tags are fenced */
void semel__kafka_lanes_done(struct kafka_lanes *lanes);
enum kafka_offer semel__kafka_lane_offer(const struct kafka_lane *lane, int64_t offset);
/* false: no memory, and nothing has changed. */
bool semel__kafka_lane_enter(struct kafka_lanes *lanes, struct kafka_lane *lane, int64_t offset, uint64_t *ret_tag);
bool semel__kafka_lane_ack(struct kafka_lanes *lanes, uint64_t tag); /* false: fenced */
/* Marks the lane to go back and to pause for at least delay_ms; false: fenced. No acknowledgement comes before the
 * rewind. */
bool semel__kafka_lane_back(struct kafka_lanes *lanes, uint64_t tag, int delay_ms);
/* Forgets everything from back_to on; returns the offset to continue from. */
int64_t semel__kafka_lane_rewind(struct kafka_lanes *lanes, struct kafka_lane *lane);

/* ---- the handle --------------------------------------------------------------------------------------- */

/* Context of the library's callbacks. A consumer that was left behind (kafka.c: leave_behind) takes it along. */
struct kafka_callback_context {
    struct kafka *kafka; /* for callbacks in our own thread; NULL: left behind */
    atomic_int x509;     /* why the last certificate was refused; any thread sets it */
    rd_kafka_t *rk;      /* left behind */
    struct kafka_callback_context *next;
};

struct kafka_destination;

typedef int32_t kafka_partitioner(const rd_kafka_topic_t *topic, const void *key, size_t n, int32_t partitions,
                                  void *opaque, void *message);

struct kafka_sink {
    rd_kafka_t *rk;               /* opened by the first publish; NULL: not open */
    struct kafka_destination *at; /* topics that it was asked for */
    size_t n, cap;
    uint64_t calls;
    int longest_ms;                 /* of a call: below message.timeout.ms */
    size_t batch_bytes;             /* of records in one batch */
    kafka_partitioner *partitioner; /* which partition a key has; NULL: not known here */
};

struct kafka {
    struct semel_broker base;
    rd_kafka_conf_t *reader, *writer; /* for every new connection; reader NULL: no source */
    rd_kafka_topic_partition_list_t *topics;
    enum semel_kafka_first first;
    size_t in_flight_max;
    struct semel_source_hooks hooks;
    int64_t patience_us; /* max.poll.interval.ms: without a poll for longer we leave the group */
    bool must_wake;      /* the library does not notice by itself that the queue has room again */

    rd_kafka_t *rk; /* NULL: not connected */
    rd_kafka_queue_t *messages, *commits;
    rd_kafka_message_t *pending[KAFKA_PENDING]; /* taken from the queue, not delivered yet */
    size_t n_pending, at_pending;
    uint64_t batch;          /* the number of polls */
    size_t high, high_bytes; /* since the fetchers were woken: the longest queue, and how much was taken */
    struct kafka_lanes lanes;
    int64_t polled_us; /* the last time; SEMEL_NONE */
    bool lost;         /* we did not poll, and the group continues without us; until reopen nothing of ours counts */
    bool joined;       /* the group has assigned partitions, perhaps none */
    bool committing;   /* one commit is on its way */
    int64_t next_commit_us;
    bool dead;                              /* CLOSED until reopen, with this error */
    bool away;                              /* no server was reached, and none has answered since */
    int ask_ms;                             /* and how long the last wait for an answer was */
    int64_t ask_us;                         /* then: when to ask a server again */
    rd_kafka_resp_err_t refused;            /* why the last commit was refused */
    bool noted;                             /* the next poll must report an error */
    struct semel_error error;               /* of `dead` or `noted` */
    struct semel_error why;                 /* the last report about a connection; status OK: none */
    struct kafka_callback_context *context; /* of the reader */
    struct kafka_callback_context writer_context;

    struct kafka_sink sink;
};

/* What remains of wait_ms since from_us, by the steady clock. */
static inline int kafka_left_ms(int64_t from_us, int wait_ms)
{
    const int64_t past_us = semel__steady_us() - from_us;

    return past_us >= (int64_t)wait_ms * 1000 ? 0 : wait_ms - (int)(past_us / 1000);
}

/* kafka.c */
void semel__kafka_error(rd_kafka_t *rk, int code, const char *reason, void *opaque);

/* kafka_conf.c: fills reader, writer, topics and the other options. */
semel_status semel__kafka_configure(struct kafka *kafka, const struct semel_kafka_options *options,
                                    struct semel_error *err);
void semel__kafka_unconfigure(struct kafka *kafka); /* closes the sink too */
/* What the library says of a connection becomes kafka->why, with the class `cls` unless more is known. */
void semel__kafka_explain(struct kafka *kafka, int code, enum semel_class cls, const char *reason);
/* INVALID: the library refuses its settings. */
semel_status semel__kafka_refused(const char *text, struct semel_error *err);
/* Accepts and refuses certificates as OpenSSL does, and remembers why. */
int semel__kafka_certificate(rd_kafka_t *rk, const char *broker, int32_t id, int *x509_error, int depth,
                             const char *buf, size_t size, char *text, size_t n_text, void *opaque);

bool semel__kafka_topic_is_valid(struct semel_str topic);

/* kafka_sink.c */
void semel__kafka_sink_close(struct kafka *kafka);
void semel__kafka_delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque);
semel_status semel__kafka_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                  struct semel_error *err);

#endif
