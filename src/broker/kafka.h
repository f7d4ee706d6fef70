/* SPDX-License-Identifier: MIT
 *
 * kafka.h: Apache Kafka as a source (a consumer group) and as a sink (an idempotent producer), by librdkafka.
 *
 * What is promised
 *  - A delivery's source is the topic, its position "TOPIC/PARTITION/OFFSET". Headers are the record's; the
 *    properties are `key` (when the record has one), `partition`, `offset` and `timestamp` (milliseconds since 1970,
 *    when there is one). A null payload (tombstone) is a payload that is not given; an empty one is empty. Kafka does
 *    not count deliveries: `delivery` is 0, except for the first SEMEL_KAFKA_DOUBT of an assignment, which have 2:
 *    one of them may have killed the process that had the partition before us. Records that come again have 2 as
 *    well. Only committed records are read (read_committed).
 *  - The driver commits for each partition the offset behind the longest run of acknowledged deliveries, and never
 *    more. It commits COMMIT_MS after an acknowledgement at the latest, as long as the caller polls, and when a
 *    partition is revoked or the handle is closed.
 *  - When a partition is revoked its tags are fenced at once (P27). A handle that has lost its assignment, because it
 *    did not poll for max.poll.interval.ms or its heartbeats did not arrive, fences all of its tags; if it did not
 *    poll, its next poll also returns CLOSED. In any case the server accepts no commit from a member that has left
 *    the group.
 *  - Giving back seeks back: the delivery and those behind it in its partition come again, in order. During the delay
 *    only this partition is paused.
 *  - While no server can be reached, a poll without deliveries returns RETRY.
 *  - A poll that finds `in_flight_max` deliveries unanswered delivers nothing, but keeps the membership: poll on.
 *  - Reading never jumps. A partition whose offset is out of range, or that has none while `first` does not say
 *    `earliest`, is stopped; a poll says so once, with class BROKEN, the view counts it, the other partitions go on.
 *  - poll keeps to its wait but for a rebalance, which may take REBALANCE_MS more; close and reopen take CLOSE_MS at
 *    most. A handle that could not give something back, or does not know where to start, answers CLOSED until it is
 *    reopened.
 *  - publish waits until each item is confirmed by all replicas in sync, refused, or given up when the call's time is
 *    over; a call takes at most nine tenths of message.timeout.ms. It works through the items in rounds, each of which
 *    makes at most one record batch per partition (P69) and waits for all of its answers. An item is sent only when
 *    all items before it with its key and topic are confirmed, or are in the same batch (capability RUNS); behind one
 *    that is not taken they stay RETRY. INVALID is one that the server refused while it was alone in its batch, that is
 *    larger than message.max.bytes, or whose destination cannot be a topic; a batch that was refused is sent again in
 *    smaller parts (P110). A topic that is unknown or denied is RETRY and `down` (P111), at once (P112).
 */
#ifndef SEMEL_BROKER_KAFKA_H
#define SEMEL_BROKER_KAFKA_H

#include "broker/kind.h"

#define SEMEL_KAFKA_DOUBT 64

/* What to do in a partition for which the group has no offset. Never start at the latest: records that came meanwhile
 * would be lost. */
enum semel_kafka_first { SEMEL_KAFKA_FIRST_ERROR, SEMEL_KAFKA_FIRST_EARLIEST };

/* Who stores the offsets: the group, or the caller (hooks.assigned). */
enum semel_kafka_offsets { SEMEL_KAFKA_OFFSETS_BROKER, SEMEL_KAFKA_OFFSETS_STORE };

enum semel_kafka_mechanism { SEMEL_KAFKA_PLAIN, SEMEL_KAFKA_SCRAM_SHA_256, SEMEL_KAFKA_SCRAM_SHA_512 };

struct semel_kafka_sasl {
    bool on;
    enum semel_kafka_mechanism mechanism;
    const char *user, *password;
};

/* Everything is borrowed until the call returns. Unset: NULL, 0. */
struct semel_kafka_options {
    const char *brokers;              /* "HOST:PORT,HOST:PORT" */
    struct semel_setting_list topics; /* the topics to read; none: a sink only */
    const char *group;                /* needed with topics */
    enum semel_kafka_first first;
    enum semel_kafka_offsets offsets;      /* for the caller, who passes the hooks */
    size_t in_flight_max;                  /* unanswered deliveries; 0: 10,000 */
    struct semel_setting_pairs properties; /* of librdkafka, from the list in kafka_conf.c */
    struct semel_kafka_sasl sasl;
    struct semel_setting_tls tls; /* always verified */
};

/* The options are a struct semel_kafka_options. INVALID: err names the wrong setting. Does not connect yet: poll
 * reports a server that cannot be reached. */
semel_status semel__broker_kafka_open(struct semel_broker **ret, const void *kafka_options,
                                      const struct semel_source_hooks *hooks, struct semel_error *err);

/* The servers' facts about a topic. */
struct semel_kafka_topic {
    const char *topic; /* of the options, NUL-terminated */
    bool exists;
    int partitions;
    bool visible;                          /* the servers let us see its settings; if not, those below are unknown */
    bool deletes;                          /* cleanup.policy: old or excess records are deleted ... */
    bool compacts;                         /* ... or only the last record of each key is kept, or both */
    int64_t retention_ms, retention_bytes; /* per partition; -1: no limit; SEMEL_NONE: unknown */
};
/* Asks for each topic of the options; `ret` has room for as many. Joins no group and makes no topic. Returns within
 * timeout_ms, or half a second more. RETRY: no server answered, or it refused us; err has the reason (class BROKEN:
 * waiting does not fix it); INVALID: a setting is wrong. */
semel_status semel__kafka_ask(const struct semel_kafka_options *options, int timeout_ms, struct semel_kafka_topic *ret,
                              struct semel_error *err);

/* The names that `properties` may use, for the settings' reference. */
size_t semel__kafka_properties(const char *const **ret_names);
/* Does librdkafka accept this value for the property? err has its own text, which may quote the value. RETRY: no
 * memory. */
semel_status semel__kafka_property(const char *name, const char *value, struct semel_error *err);

const char *semel__kafka_mechanism_name(enum semel_kafka_mechanism mechanism); /* its name in the protocol */

struct semel_kafka_view {
    size_t assigned;  /* partitions that are ours */
    size_t stopped;   /* of these: stopped, see the error that poll returned */
    size_t delayed;   /* of these: paused after going back */
    size_t in_flight; /* deliveries without an answer */
    int64_t behind;   /* records not yet acknowledged, as of the last fetches */
};
void semel__kafka_view(struct semel_broker *broker, struct semel_kafka_view *ret);

/* Parses the position of a delivery. The topic is borrowed from the text. false: malformed. */
bool semel__kafka_position(struct semel_str position, struct semel_source_start *ret);

#endif
