/* SPDX-License-Identifier: MIT
 *
 * side.h: one handle of the SQS driver in a test, and everything that it was ever given.
 */
#ifndef SEMEL_TEST_SQS_SIDE_H
#define SEMEL_TEST_SQS_SIDE_H

#include "broker/sqs.h"
#include "sqs/server.h"
#include "unit/unit.h"

struct sqs_got {
    char body[32];
    uint64_t tag, lane;
    int delivery;
};

#define SQS_SIDE_GOT 4096

struct sqs_side {
    struct semel_broker *broker;
    struct semel_arena arena;
    struct semel_error err;
    struct semel_delivery *d; /* of the last poll */
    size_t n;
    struct sqs_got got[SQS_SIDE_GOT]; /* of all polls */
    size_t n_got;
    int reported; /* polls that told of an error, the last of which is in `err` */
};

/* `more` is added to the URL: "?visibility_ms=2000". */
void sqs_side_open(struct sqs_side *side, const char *queue_url, const char *more);
/* The handle alone. */
struct semel_broker *sqs_side_broker(const char *url, const char *more);
void sqs_side_open_with(struct sqs_side *side, const struct semel_sqs_options *options);
void sqs_side_close(struct sqs_side *side);

/* One poll, which may tell of trouble; its status. */
semel_status sqs_side_poll(struct sqs_side *side, size_t max, int wait_ms);
/* Polls until so many have come in all; fails the test when it takes a minute. */
void sqs_side_wait(struct sqs_side *side, size_t n);
/* Polls until a poll tells of an error, with nothing delivered; its status. */
semel_status sqs_side_wait_error(struct sqs_side *side);
/* Polls until SQS has answered all that was acknowledged and given back. */
void sqs_side_settle(struct sqs_side *side);

semel_status sqs_side_ack(struct sqs_side *side, size_t i); /* of `got` */
semel_status sqs_side_later(struct sqs_side *side, size_t i, int delay_ms);

#define SQS_SIDE_TRIES 600
#define SQS_SIDE_STEP_MS 100

#endif
