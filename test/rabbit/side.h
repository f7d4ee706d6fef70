/* SPDX-License-Identifier: MIT
 *
 * side.h: one handle of the AMQP driver in a test, and everything that it was ever given.
 */
#ifndef SEMEL_TEST_RABBIT_SIDE_H
#define SEMEL_TEST_RABBIT_SIDE_H

#include "broker/amqp.h"
#include "rabbit/client.h"
#include "rabbit/server.h"
#include "unit/unit.h"

struct rabbit_got {
    char text[32]; /* the payload */
    uint64_t tag;
    int delivery;
};

struct rabbit_side {
    struct semel_broker *broker;
    struct semel_arena arena;
    struct semel_error err;
    struct semel_delivery *d; /* of the last poll */
    size_t n;
    struct rabbit_got *got; /* of all polls */
    size_t n_got, cap_got;
};

/* `more` is added to the URL: "&prefetch=3". */
void rabbit_side_open(struct rabbit_side *side, int port, const char *queue, const char *more);
/* The handle alone. */
struct semel_broker *rabbit_side_broker(const char *url, const char *queue, const char *more);
void rabbit_side_open_with(struct rabbit_side *side, const struct semel_amqp_options *options);
void rabbit_side_close(struct rabbit_side *side);

semel_status rabbit_side_poll(struct rabbit_side *side, size_t max, int wait_ms);
/* Polls until so many have come in all; fails the test when it takes a minute, or a poll fails. */
void rabbit_side_wait(struct rabbit_side *side, size_t n);
/* Polls until one answers this. */
void rabbit_side_wait_status(struct rabbit_side *side, semel_status status);
void rabbit_side_reopen(struct rabbit_side *side); /* until it succeeds */
/* Of `got`, from i on. */
semel_status rabbit_side_ack(struct rabbit_side *side, size_t i, size_t n);
semel_status rabbit_side_later(struct rabbit_side *side, size_t i, size_t n, int delay_ms);
/* The payloads of `got` from i on, with blanks in between. */
const char *rabbit_side_texts(const struct rabbit_side *side, size_t i);

#define RABBIT_SIDE_TRIES 600
#define RABBIT_SIDE_STEP_MS 100

#endif
