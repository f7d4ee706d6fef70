/* SPDX-License-Identifier: MIT
 *
 * kafka.h: Apache Kafka as a source (a consumer group) and as a sink (an idempotent producer), by librdkafka.
 *
 * "kafka://HOST:PORT,HOST:PORT/TOPIC,TOPIC?group=NAME&first=earliest", and librdkafka's own properties behind it where
 * they are safe to set: "&session.timeout.ms=6000". Values may be percent-encoded. Without topics it is a sink only.
 * Credentials do not belong into a URL: semel__broker_kafka_open takes them, and everything else, as a struct.
 *
 * What is promised
 *  - A delivery's source is the topic, its position "TOPIC/PARTITION/OFFSET". Headers are the record's; the properties
 *    are `key` (when the record has one), `partition`, `offset` and `timestamp` (milliseconds since 1970, when there is
 *    one). A null payload (tombstone) is a payload that is not given; an empty one is empty. Kafka does not count
 *    deliveries: `delivery` is 0, but for the first SEMEL_KAFKA_DOUBT of an assignment, which are 2: whoever had the
 * partition before us may have died of one of them. What comes again is 2 as well. Only what was committed is read
 * (read_committed).
 *  - What is committed for the group is, for each partition, the offset behind the longest run of acknowledged
 *    deliveries, and never more. It is sent COMMIT_MS after an acknowledgement at the latest, as long as there is
 *    polling, and when a partition or the handle is given up.
 *  - When a partition is taken away its tags are fenced at once (P27). A handle whose assignment was lost, because it
 *    did not poll for max.poll.interval.ms or could not be heard, fences all of its tags; one that did not poll also
 *    answers CLOSED to the next poll. Whatever it believes, the server takes no commit from a member it has given up.
 *  - Giving back seeks back: the delivery and what is behind it in its partition come again, in order. While the delay
 *    lasts the partition alone is paused.
 *  - While no server can be reached a poll that has nothing to deliver answers RETRY.
 *  - A poll that finds `in_flight_max` deliveries unanswered delivers nothing, but keeps the membership: poll on.
 *  - Reading never jumps. A partition whose offset is out of range, or that has none while `first` does not say
 *    `earliest`, is stopped; a poll says so once, with class BROKEN, the view counts it, the other partitions go on.
 *  - poll keeps to its wait but for a rebalance, which may take REBALANCE_MS more; close and reopen take CLOSE_MS at
 *    most. A handle that could not give something back, or was not told where to start, answers CLOSED until it is
 *    reopened.
 *  - publish waits until each item is confirmed by all replicas in sync, refused, or given up (message.timeout.ms).
 */
#ifndef SEMEL_BROKER_KAFKA_H
#define SEMEL_BROKER_KAFKA_H

#include "core/broker.h"

#define SEMEL_KAFKA_DOUBT 64

extern const struct semel_broker_ops semel__broker_kafka;

/* What to do in a partition for which the group has no offset. Never the latest: what came meanwhile would be lost. */
enum semel_kafka_first { SEMEL_KAFKA_FIRST_ERROR, SEMEL_KAFKA_FIRST_EARLIEST };

/* One partition of an assignment, and where to start. */
struct semel_kafka_start {
    struct semel_str topic;
    int32_t partition;
    /* In: what Kafka keeps for the group. Out: the first offset to be delivered. SEMEL_NONE: there is none, and `first`
     * decides. */
    int64_t offset;
};

/* For routes that keep their positions with the effects (I23): the database says where to start, whatever Kafka has.
 * Both are called by the thread that polls, inside poll (revoked also inside close and reopen). */
struct semel_kafka_hooks {
    void *ctx;
    /* These partitions are ours from now on, and nothing of them has been delivered. Raise their epochs in the
     * database, read the positions, fill in the offsets. Any status but OK closes the handle: poll answers CLOSED with
     * this error, and after a reopen the hook is asked again. */
    semel_status (*assigned)(void *ctx, struct semel_kafka_start *starts, size_t n, struct semel_error *err);
    /* These are not ours any more, and their tags are fenced. `lost`: somebody else may have them already. May be
     * NULL. */
    void (*revoked)(void *ctx, const struct semel_kafka_start *starts, size_t n, bool lost);
};

struct semel_kafka_property {
    const char *name, *value;
};

/* Everything is borrowed until the call returns, but for hooks.ctx and log_ctx. Unset: NULL, 0. */
struct semel_kafka_options {
    const char *brokers;       /* "HOST:PORT,HOST:PORT" */
    const char *const *topics; /* what is read; none: a sink only */
    size_t n_topics;
    const char *group; /* needed with topics */
    enum semel_kafka_first first;
    size_t in_flight_max; /* unanswered deliveries; 0: 10,000 */
    bool tls;             /* implied by any of the four files and texts below */
    const char *tls_ca_file, *tls_cert_file, *tls_key_file, *tls_key_password;
    const char *sasl_mechanism, *sasl_user, *sasl_password; /* mechanism NULL with a user: SCRAM-SHA-512 */
    const struct semel_kafka_property *properties;          /* librdkafka's, of the list in kafka_conf.c */
    size_t n_properties;
    struct semel_kafka_hooks hooks;
    /* What librdkafka logs, told by the thread that uses the handle; `level` is syslog's. NULL: nothing is logged. */
    void (*log)(void *ctx, int level, const char *facility, const char *text);
    void *log_ctx;
};

/* INVALID says which setting is wrong. Nothing is connected yet: that a server cannot be reached is poll's to say. */
semel_status semel__broker_kafka_open(struct semel_broker **ret, const struct semel_kafka_options *options,
                                      struct semel_error *err);

/* What the servers say of a topic. */
struct semel_kafka_topic {
    const char *topic; /* of the options */
    bool exists;
    int partitions;
    bool told;                             /* they let us see its settings; if not, those below are not known */
    bool deletes;                          /* cleanup.policy: what is old or too much is deleted ... */
    bool compacts;                         /* ... or only the last record of each key is kept, or both */
    int64_t retention_ms, retention_bytes; /* a partition's; -1: no bound; SEMEL_NONE: not told */
};
/* Asks for each topic of the options; `ret` has room for n_topics. Joins no group and makes no topic. Returns within
 * timeout_ms, or half a second more. RETRY: no server answered, or it refused us, and err says why (class BROKEN:
 * waiting does not mend it); INVALID: a setting is wrong. */
semel_status semel__kafka_ask(const struct semel_kafka_options *options, int timeout_ms, struct semel_kafka_topic *ret,
                              struct semel_error *err);

/* The names that `properties` and the URL may use, for the settings' reference. */
size_t semel__kafka_properties(const char *const **ret_names);
/* Whether librdkafka takes the value for the property, by itself; err is its word, which may quote the value. RETRY: no
 * memory. */
semel_status semel__kafka_property(const char *name, const char *value, struct semel_error *err);

struct semel_kafka_view {
    size_t assigned;  /* partitions that are ours */
    size_t stopped;   /* of these: not read, see the error that poll gave */
    size_t delayed;   /* of these: paused after going back */
    size_t in_flight; /* deliveries without an answer */
    int64_t behind;   /* records that are there and not acknowledged, as far as the last fetches told */
};
void semel__kafka_look(struct semel_broker *broker, struct semel_kafka_view *ret);

/* The parts of a delivery's position. The topic is borrowed from the text. false: not a position of ours. */
bool semel__kafka_position(struct semel_str position, struct semel_kafka_start *ret);

#endif
