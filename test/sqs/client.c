/* SPDX-License-Identifier: MIT
 *
 * client.c: asking the ElasticMQ of a test, without the driver: one request, one connection. See server.h.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "sqs/server.h"

#define ANSWER_MAX ((size_t)1 << 20)
#define TIMEOUT_MS 30000L

static _Noreturn void give_up(const char *action, struct semel_str answer)
{
    fprintf(stderr, "ElasticMQ refuses %s: %.*s\n", action, (int)answer.n, answer.p);
    exit(1);
}

static size_t take(char *in, size_t size, size_t count, void *ctx)
{
    return semel__buf_add(ctx, in, size * count) ? size * count : 0;
}

/* Returns the answer, to be given up with semel__buf_done. */
static struct semel_buf ask(const struct sqs_server *server, const char *action, const struct semel_buf *request)
{
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/x-amz-json-1.0");
    CURL *easy = curl_easy_init();
    struct semel_buf answer;
    char text[128];
    long http = 0;

    semel__buf_init(&answer, ANSWER_MAX);
    snprintf(text, sizeof text, "X-Amz-Target: AmazonSQS.%s", action);
    headers = curl_slist_append(headers, text);
    snprintf(text, sizeof text, "http://127.0.0.1:%d/", server->port);
    curl_easy_setopt(easy, CURLOPT_URL, text);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)request->n);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->p);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, TIMEOUT_MS);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer);
    if (request->failed || curl_easy_perform(easy) != CURLE_OK ||
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &http) != CURLE_OK || http != 200)
        give_up(action, semel__buf_str(&answer));
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    return answer;
}

static void begin(struct semel_buf *request, const struct sqs_server *server, const char *queue)
{
    char url[SQS_SERVER_TEXT];

    semel__buf_init(request, ANSWER_MAX);
    semel__buf_addz(request, "{\"QueueUrl\":");
    semel__json_put_string(request, semel__str(sqs_server_url(server, queue, url)));
}

static void tell(const struct sqs_server *server, const char *action, struct semel_buf *request)
{
    struct semel_buf answer;
    struct semel_json *json;
    struct semel_arena arena;
    enum semel_json_kind kind = SEMEL_JSON_OTHER;
    struct semel_str text;

    answer = ask(server, action, request);
    semel__arena_init(&arena, ANSWER_MAX);
    if (semel__json_parse(&json, semel__buf_str(&answer), ANSWER_MAX, NULL) != SEMEL_OK ||
        semel__json_get(json, SEMEL_STR("/Failed/0"), &arena, &kind, &text, NULL) != SEMEL_OK ||
        kind != SEMEL_JSON_MISSING)
        give_up(action, semel__buf_str(&answer));
    semel__json_free(json);
    semel__arena_done(&arena);
    semel__buf_done(&answer);
    semel__buf_done(request);
}

void sqs_server_queue(const struct sqs_server *server, const char *queue)
{
    struct semel_buf request;
    const char *fifo = strstr(queue, ".fifo");

    semel__buf_init(&request, ANSWER_MAX);
    semel__buf_addf(&request, "{\"QueueName\":\"%s\"%s}", queue,
                    fifo != NULL ? ",\"Attributes\":{\"FifoQueue\":\"true\"}" : "");
    tell(server, "CreateQueue", &request);
}

static void put_group(struct semel_buf *request, const char *group)
{
    static int count; /* nothing is the same message twice */

    if (group != NULL)
        semel__buf_addf(request, ",\"MessageGroupId\":\"%s\",\"MessageDeduplicationId\":\"d-%d\"", group, ++count);
}

void sqs_server_send(const struct sqs_server *server, const struct sqs_send *send)
{
    struct semel_buf request;

    begin(&request, server, send->queue);
    semel__buf_addz(&request, ",\"MessageBody\":");
    semel__json_put_string(&request, send->body);
    for (size_t i = 0; i < send->n_headers; i++) {
        semel__buf_addz(&request, i == 0 ? ",\"MessageAttributes\":{" : ",");
        semel__json_put_string(&request, send->headers[i].name);
        semel__buf_addz(&request, ":{\"DataType\":\"String\",\"StringValue\":");
        semel__json_put_string(&request, send->headers[i].value);
        semel__buf_addz(&request, i + 1 == send->n_headers ? "}}" : "}");
    }
    put_group(&request, send->group);
    semel__buf_addz(&request, "}");
    tell(server, "SendMessage", &request);
}

void sqs_server_send_many(const struct sqs_server *server, const char *queue, const char *group, const char *prefix,
                          int n)
{
    for (int from = 0; from < n; from += 10) {
        struct semel_buf request;
        begin(&request, server, queue);
        semel__buf_addz(&request, ",\"Entries\":[");
        for (int i = from; i < n && i < from + 10; i++) {
            semel__buf_addf(&request, "%s{\"Id\":\"%d\",\"MessageBody\":\"%s-%d\"", i > from ? "," : "", i, prefix, i);
            put_group(&request, group);
            semel__buf_addz(&request, "}");
        }
        semel__buf_addz(&request, "]}");
        tell(server, "SendMessageBatch", &request);
    }
}

int sqs_server_count(const struct sqs_server *server, const char *queue)
{
    static const char *const kinds[] = {"/Attributes/ApproximateNumberOfMessages",
                                        "/Attributes/ApproximateNumberOfMessagesNotVisible",
                                        "/Attributes/ApproximateNumberOfMessagesDelayed"};
    struct semel_buf request, answer;
    struct semel_json *json = NULL;
    struct semel_arena arena;
    int64_t sum = 0;

    begin(&request, server, queue);
    semel__buf_addz(&request, ",\"AttributeNames\":[\"All\"]}");
    answer = ask(server, "GetQueueAttributes", &request);
    semel__arena_init(&arena, ANSWER_MAX);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        enum semel_json_kind kind;
        struct semel_str text;
        int64_t number = 0;
        if ((json == NULL && semel__json_parse(&json, semel__buf_str(&answer), ANSWER_MAX, NULL) != SEMEL_OK) ||
            semel__json_get(json, semel__str(kinds[i]), &arena, &kind, &text, NULL) != SEMEL_OK ||
            !semel__str_int64(text, &number))
            give_up("GetQueueAttributes", semel__buf_str(&answer));
        sum += number;
    }
    semel__json_free(json);
    semel__arena_done(&arena);
    semel__buf_done(&answer);
    semel__buf_done(&request);
    return (int)sum;
}
