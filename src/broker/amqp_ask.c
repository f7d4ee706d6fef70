/* SPDX-License-Identifier: MIT
 *
 * amqp_ask.c: what a server says of a queue, for who only wants to know. See amqp.h.
 */
#include "broker/amqp_private.h"

static semel_status ask_queue(struct amqp_link *link, const char *queue, struct semel_amqp_answer *ret,
                              struct semel_error *err)
{
    const amqp_queue_declare_ok_t *ok = amqp_queue_declare(link->conn, AMQP_CHANNEL, amqp_cstring_bytes(queue), 1, 0, 0,
                                                           0, amqp_empty_table);
    struct semel_error why;
    semel_status status;

    if (ok != NULL) {
        *ret = (struct semel_amqp_answer){true, ok->message_count, ok->consumer_count};
        return SEMEL_OK;
    }
    status = semel__amqp_fail_reply(amqp_get_rpc_reply(link->conn), "asking for the queue", &why);
    if (status == SEMEL_INVALID && why.code == AMQP_NOT_FOUND) {
        *ret = (struct semel_amqp_answer){0};
        return SEMEL_OK;
    }
    if (err != NULL)
        *err = why;
    return status;
}

semel_status semel__amqp_ask(const struct semel_amqp_options *options, struct semel_amqp_answer *ret,
                             struct semel_error *err)
{
    struct amqp_conf conf;
    struct amqp_link link;
    semel_status status = semel__amqp_configure(&conf, options, err);

    if (status != SEMEL_OK)
        return status;
    if (conf.queue == NULL)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: there is no queue to ask for; set queue");
    if (status == SEMEL_OK)
        status = semel__amqp_link_open(&link, &conf, 0, err);
    if (status == SEMEL_OK) {
        status = ask_queue(&link, conf.queue, ret, err);
        semel__amqp_link_close(&link, true);
    }
    semel__amqp_conf_done(&conf);
    return status;
}
