/* SPDX-License-Identifier: MIT
 *
 * options.c: from settings to the options of drivers, as options.h says. Nothing is checked: conf has done that.
 */
#include "daemon/options.h"

#define SECOND_US INT64_C(1000000)

static const char *text_of(struct semel_str s)
{
    return s.n > 0 ? s.p : NULL;
}

void run_kafka_options(const struct semel_conf_kafka *conf, struct run_kafka_options *ret)
{
    ret->options = (struct semel_kafka_options){
        .brokers = text_of(conf->brokers),
        .topics = ret->topics,
        .n_topics = conf->topics.n,
        .group = text_of(conf->group),
        .first = conf->first,
        .in_flight_max = (size_t)conf->in_flight,
        .tls = conf->tls.on,
        .tls_ca_file = text_of(conf->tls.ca_file),
        .tls_cert_file = text_of(conf->tls.cert_file),
        .tls_key_file = text_of(conf->tls.key_file),
        .tls_key_password = text_of(conf->tls.key_password),
        .properties = ret->properties,
        .n_properties = conf->properties.n,
    };
    for (size_t i = 0; i < conf->topics.n; i++)
        ret->topics[i] = conf->topics.at[i].p;
    for (size_t i = 0; i < conf->properties.n; i++)
        ret->properties[i] = (struct semel_kafka_property){conf->properties.at[i].name.p,
                                                           conf->properties.at[i].value.p};
    if (conf->sasl.on) {
        ret->options.sasl_mechanism = semel__conf_mechanism_name(conf->sasl.mechanism);
        ret->options.sasl_user = text_of(conf->sasl.user);
        ret->options.sasl_password = text_of(conf->sasl.password);
    }
}

void run_amqp_options(const struct semel_conf_amqp *conf, struct semel_amqp_options *ret)
{
    static const enum semel_amqp_declare declares[] = {
        [SEMEL_CONF_DECLARE_NEVER] = SEMEL_AMQP_DECLARE_NEVER,
        [SEMEL_CONF_DECLARE_QUORUM] = SEMEL_AMQP_DECLARE_QUORUM,
        [SEMEL_CONF_DECLARE_CLASSIC] = SEMEL_AMQP_DECLARE_CLASSIC,
    };
    *ret = (struct semel_amqp_options){
        .url = conf->url.p,
        .queue = text_of(conf->queue),
        .user = text_of(conf->user),
        .password = text_of(conf->password),
        .prefetch = (int)conf->prefetch,
        .single_active = conf->single_active,
        .declare = declares[conf->declare],
        .heartbeat_s = (int)((conf->heartbeat_us + SECOND_US - 1) / SECOND_US),
        .tls_ca_file = text_of(conf->tls.ca_file),
        .tls_cert_file = text_of(conf->tls.cert_file),
        .tls_key_file = text_of(conf->tls.key_file),
        .tls_key_password = text_of(conf->tls.key_password),
        .tls_no_verify = conf->tls.on && !conf->tls.verify,
    };
}

void run_sqs_options(const struct semel_conf_sqs *conf, struct semel_sqs_options *ret)
{
    *ret = (struct semel_sqs_options){
        .url = conf->url.p,
        .region = text_of(conf->region),
        .access_key = text_of(conf->access_key),
        .secret_key = text_of(conf->secret_key),
        .session_token = text_of(conf->session_token),
        .visibility_us = (conf->visibility_us + SECOND_US - 1) / SECOND_US * SECOND_US,
        .wait_us = conf->wait_us,
        .tls_ca_file = text_of(conf->tls.ca_file),
        .tls_cert_file = text_of(conf->tls.cert_file),
        .tls_key_file = text_of(conf->tls.key_file),
        .tls_key_password = text_of(conf->tls.key_password),
        .tls_no_verify = conf->tls.on && !conf->tls.verify,
    };
}
