/* SPDX-License-Identifier: MIT
 *
 * sqs_ask.c: what a queue says of itself, in one request.
 */
#include "broker/sqs_private.h"

#define ASK_MS 15000
#define REQUEST_MAX 4096

static semel_status ask(const struct sqs_conf *conf, CURLM *multi, struct semel_sqs_facts *ret, struct semel_error *err)
{
    struct sqs_call call = {0};
    semel_status status;

    semel__buf_init(&call.request, REQUEST_MAX);
    semel__buf_addz(&call.request, "{\"QueueUrl\":");
    semel__json_put_string(&call.request, semel__str(conf->url));
    semel__buf_addz(&call.request, ",\"AttributeNames\":[\"All\"]}");
    status = semel__sqs_call_begin(&call, multi, conf, "GetQueueAttributes", ASK_MS, err);
    if (status == SEMEL_OK) {
        semel__sqs_call_wait(&call, multi);
        status = semel__sqs_call_status(&call, conf, err);
    }
    if (status == SEMEL_OK)
        status = semel__sqs_read_facts(semel__buf_str(&call.answer), ret, err);
    semel__sqs_call_done(&call);
    return status;
}

semel_status semel__sqs_ask(const struct semel_sqs_options *options, struct semel_sqs_facts *ret,
                            struct semel_error *err)
{
    struct sqs_conf conf = {0};
    semel_status status = semel__sqs_conf_read(&conf, options, err);
    CURLM *multi;

    if (status == SEMEL_OK && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        multi = curl_multi_init();
        status = multi != NULL ? ask(&conf, multi, ret, err) : semel__fail_memory(err);
        curl_multi_cleanup(multi);
        curl_global_cleanup();
    } else if (status == SEMEL_OK) {
        status = semel__fail_memory(err);
    }
    semel__sqs_conf_done(&conf);
    return status;
}
