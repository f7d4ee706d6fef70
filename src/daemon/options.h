/* SPDX-License-Identifier: MIT
 *
 * options.h: a source as the settings say it, as its driver wants it. For who opens one (open.c) and for who only asks
 * (`semel check --online`).
 *
 * Everything is borrowed from the settings. Kafka's options point into the struct itself: it is filled where it is
 * used, and not copied.
 */
#ifndef SEMEL_DAEMON_OPTIONS_H
#define SEMEL_DAEMON_OPTIONS_H

#include "broker/amqp.h"
#include "broker/kafka.h"
#include "broker/sqs.h"
#include "conf/conf.h"

struct run_kafka_options {
    struct semel_kafka_options options;
    const char *topics[SEMEL_CONF_LIST_MAX];
    struct semel_kafka_property properties[SEMEL_CONF_LIST_MAX];
};

/* Without hooks and log. */
void run_kafka_options(const struct semel_conf_kafka *conf, struct run_kafka_options *ret);
void run_amqp_options(const struct semel_conf_amqp *conf, struct semel_amqp_options *ret);
void run_sqs_options(const struct semel_conf_sqs *conf, struct semel_sqs_options *ret);

#endif
