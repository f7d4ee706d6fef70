/* SPDX-License-Identifier: MIT
 *
 * broker_bench.h: what broker_contract.c needs of a driver to hold it to core/broker.h, and what a test works with.
 */
#ifndef SEMEL_TEST_CONFORM_BROKER_BENCH_H
#define SEMEL_TEST_CONFORM_BROKER_BENCH_H

#include "base/clock.h"
#include "support/mem_broker.h"
#include "unit/unit.h"

struct broker_driver;

struct broker_bench {
    const struct broker_driver *driver;
    int64_t now_us;
    struct semel_clock clock;
    struct semel_mem_queue *queue;
    char dir[64];
    char source[64];            /* where everything is sent to */
    struct semel_broker *a, *b; /* `b` is opened by the tests that need it */
    struct semel_arena arena;
    struct semel_error err;
};

struct broker_driver {
    const char *name;
    void (*setup)(struct broker_bench *bench); /* fills in `source` */
    struct semel_broker *(*open)(struct broker_bench *bench);
    void (*teardown)(struct broker_bench *bench);
    /* To bench->source, under a key of one digit, '0' to '3', with broker_headers. */
    void (*push)(struct broker_bench *bench, char key, const char *payload, size_t n);
    void (*pass_ms)(struct broker_bench *bench, int ms); /* NULL: time passes by itself */
    const struct semel_pair *properties;                 /* the first that a delivery under key '0' must have */
    size_t n_properties;
    bool no_count; /* it cannot tell how often it has delivered something */
    bool repeats;  /* when a partition goes to another handle, the last acknowledgements may be lost */
    /* What a message may hold besides: NULL: broker_headers. Texts only: UTF-8, without NUL, not empty. */
    const struct semel_pair *headers;
    size_t n_headers;
    bool text_only;
    const char *nowhere; /* a destination that is not there; NULL: the broker has any that it is told */
    bool one_lane;       /* all keys are in one partition */
    bool spreads;        /* what is published under several keys lies in several partitions */
    bool any_order;      /* not even what was sent by one and received by one comes in order */
    /* A server at the other end of a wire: deliveries take a while, and what does not come in this time does not come.
     * 0: what there is comes at once. */
    int quiet_ms;
    /* Before the first test and after the last; NULL: nothing. */
    void (*begin)(void);
    void (*end)(void);
};

#define BROKER_HEADERS 3
extern const struct semel_pair broker_headers[BROKER_HEADERS];

#ifdef SEMEL_WITH_AMQP
extern const struct broker_driver broker_driver_amqp, broker_driver_amqp_unordered;
#endif
#ifdef SEMEL_WITH_SQS
extern const struct broker_driver broker_driver_sqs, broker_driver_sqs_fifo;
#endif
#ifdef SEMEL_WITH_KAFKA
extern const struct broker_driver broker_driver_kafka;
#endif

#endif
