/* SPDX-License-Identifier: MIT
 *
 * amqp.h: RabbitMQ as a source (one queue) and as a sink (confirmed publishing), with librabbitmq.
 *
 * What is promised
 *  - A delivery's source is the queue. AMQP has no positions. The properties are those that the message has:
 *    `message_id`, `type`, `correlation_id`, `timestamp` (RFC 3339), `content_type`, `app_id`; and always
 *    `routing_key` and `exchange`. Headers are text (amqp_message.c); those of CloudEvents' binding are called
 *    `ce_NAME`. `delivery` is 1, or for a redelivered message 2, or the count of a quorum queue.
 *  - A tag belongs to one channel (P30). When the channel or its connection is closed, by either side, all of its
 *    tags are fenced and nothing is sent for them; no delivery is answered twice.
 *  - The server sends at most `prefetch` deliveries that are unanswered, or given back and held.
 *  - On a queue without a single active consumer, a message that is given back is requeued when its delay is over,
 *    after LATER_MS at most, because the server closes a channel that holds a message for too long. Order is not
 *    kept.
 *  - With `single_active` the message and all behind it are given back, in order, by closing the channel as soon as
 *    everything before it has its answer; the next channel is opened when the delay is over. Meanwhile another consumer
 *    of the queue may become the active one.
 *  - The first poll connects; it may take timeout_ms. After that a poll keeps to its wait. Nothing waits for ever:
 *    each call gives up after timeout_ms, and the connection to a silent server is closed after two heartbeats, as
 *    long as the caller polls (P31). Resolving a host name takes as long as the system's resolver does.
 *  - CLOSED until reopened: a lost connection, a channel that the server closed, a queue that was deleted. INVALID with
 *    class BROKEN: the user, the vhost, the queue or its settings are not what the server has; reopen tries again.
 *  - publish goes over a connection of its own, so that a server that takes no more (connection.blocked) does not stop
 *    the source. A destination is a queue, or "exchange:NAME" with `key` as the routing key; with the option `exchange`
 *    it is the routing key. Messages are persistent, mandatory and confirmed (P32), and several are on their way at a
 *    time: OK is confirmed by the server; INVALID cannot be sent at all, or was alone when the server closed the
 *    channel over it; RETRY was certainly not taken; UNKNOWN was sent and not confirmed in time, or the server did not
 *    take it (nack; one of several queues may have), and may have arrived. What comes back because no queue takes it,
 *    an exchange that is not there or is denied to us, and a server that takes nothing are RETRY and `down`. The source
 *    is not served meanwhile.
 */
#ifndef SEMEL_BROKER_AMQP_H
#define SEMEL_BROKER_AMQP_H

#include "base/setting.h"
#include "core/broker.h"

/* Create the queue if it is missing, durable and of this type. */
enum semel_amqp_declare { SEMEL_AMQP_DECLARE_NEVER, SEMEL_AMQP_DECLARE_QUORUM, SEMEL_AMQP_DECLARE_CLASSIC };

/* Everything is borrowed until the call returns. Unset: NULL, 0. */
struct semel_amqp_options {
    const char *url;             /* amqp://HOST:PORT/VHOST or amqps:// */
    const char *queue;           /* what is read; NULL: a sink only */
    const char *exchange;        /* of a sink: where everything goes; NULL: the destination says it */
    const char *user, *password; /* instead of the URL's; neither has any: the certificate's (EXTERNAL), else guest */
    int prefetch;                /* 1 to 65535; 0: 1000 */
    bool single_active;          /* the queue has a single active consumer: capability ORDERED */
    enum semel_amqp_declare declare;
    int64_t heartbeat_us;         /* rounded up to seconds, 1 to 600; 0: 30 s */
    int timeout_ms;               /* per call, also for connecting; 0: 10,000 */
    struct semel_setting_tls tls; /* for amqps; the URL turns it on */
};

/* INVALID: err names the wrong setting. Does not connect yet. */
semel_status semel__broker_amqp_open(struct semel_broker **ret, const struct semel_amqp_options *options,
                                     struct semel_error *err);

struct semel_amqp_view {
    bool connected;
    size_t in_flight; /* deliveries without an answer, including held ones */
    size_t held;      /* given back, with a delay that is not over */
};
void semel__amqp_view(struct semel_broker *broker, struct semel_amqp_view *ret);
/* Messages that the queue has ready, and ours without an answer; -1: not known. From the first call on poll asks the
 * server every 15 s, over a channel of its own: an answer that is a refusal, or does not come, harms nothing. A server
 * that allows one channel is not asked, or ends the connection once per five minutes. */
int64_t semel__amqp_behind(struct semel_broker *broker);

struct semel_amqp_answer {
    bool exists;
    uint32_t messages;  /* ready; without those that consumers have */
    uint32_t consumers; /* of a queue with a single active consumer only the active one counts */
};
/* The server's facts about the queue, or, where none is named, about the exchange, over a connection of its own,
 * without changes. OK also when there is none; RETRY: the server cannot be asked now; INVALID: wrong settings, or the
 * server refuses us. */
semel_status semel__amqp_ask(const struct semel_amqp_options *options, struct semel_amqp_answer *ret,
                             struct semel_error *err);

#endif
