/* SPDX-License-Identifier: MIT
 *
 * sqs_send.c: publishing to SQS, in batches of ten, each of which is sent once.
 *
 * What the answer says of an entry becomes the item's status. Was the request handed to the network, and no answer
 * read, then nobody knows. To a FIFO queue a batch takes one item of a group, and none of a group of which an earlier
 * item has not been confirmed: what comes behind it is certainly not sent, and stays in order (P69).
 *
 * Invariants: an item is in at most one request; a text that SQS would refuse, or that would not come out as it went
 * in, is not sent.
 */
#include "broker/sqs_private.h"

#include <stdio.h>

#include "base/digest.h"

#define SEND_MS 20000
#define QUEUE_MAX 80
#define ATTRIBUTES_MAX 10
#define ITEM_BYTES ((size_t)1 << 20)
#define BATCH_BYTES ((size_t)256 << 10)
#define REQUEST_MAX ((size_t)8 << 20)
#define TOKEN 129 /* of a group or a deduplication id, with its NUL */

/* What an item still needs; beside `items`. */
enum stage { TO_SEND, SENT };

struct sending {
    struct sqs *sqs;
    struct semel_publish *items;
    enum stage *stages;
    size_t n;
    size_t batch[SQS_BATCH]; /* items of the request */
    size_t n_batch, bytes;
};

/* ---- is it one that SQS can carry? ---------------------------------------------------------------------- */

static bool is_text(struct semel_str s)
{
    size_t n;
    uint32_t c;

    for (; s.n > 0; s.p += n, s.n -= n) {
        n = semel__utf8_next(s, &c);
        if (n == 0 || (c < ' ' && c != '\t' && c != '\n' && c != '\r') || c == 0xFFFE || c == 0xFFFF)
            return false;
    }
    return true;
}

static bool is_name(struct semel_str s)
{
    for (size_t i = 0; i < s.n; i++) {
        const char c = s.p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
              c == '.'))
            return false;
    }
    return s.n > 0 && s.n <= 256;
}

static bool is_fifo(struct semel_str queue)
{
    return queue.n > 5 && memcmp(queue.p + queue.n - 5, ".fifo", 5) == 0;
}

static bool id_is_header(const struct semel_publish *item)
{
    for (size_t i = 0; i < item->n_headers; i++)
        if (semel__str_eqz(item->headers[i].name, "id"))
            return true;
    return !semel__str_given(item->id);
}

static bool headers_are_valid(const struct semel_publish *item)
{
    for (size_t i = 0; i < item->n_headers; i++) {
        const struct semel_pair *pair = &item->headers[i];
        if (!is_name(pair->name) || pair->value.n == 0 || !is_text(pair->value))
            return false;
        for (size_t j = 0; j < i; j++)
            if (semel__str_eq(item->headers[j].name, pair->name))
                return false;
    }
    return item->n_headers + !id_is_header(item) <= ATTRIBUTES_MAX;
}

static size_t bytes_of(const struct semel_publish *item)
{
    size_t n = item->payload.n + item->id.n + 16;

    for (size_t i = 0; i < item->n_headers; i++)
        n += item->headers[i].name.n + item->headers[i].value.n + 16;
    return n;
}

static bool is_valid(const struct semel_publish *item)
{
    const struct semel_str queue = item->destination;
    struct semel_str stem = queue;

    stem.n -= is_fifo(queue) ? 5 : 0;
    return queue.n > 0 && queue.n <= QUEUE_MAX && is_name(stem) && memchr(stem.p, '.', stem.n) == NULL &&
           item->payload.n > 0 && is_text(item->payload) && is_text(item->id) &&
           (!semel__str_given(item->id) || item->id.n > 0) && headers_are_valid(item) && bytes_of(item) <= ITEM_BYTES;
}

/* ---- one request ---------------------------------------------------------------------------------------- */

/* SQS takes 128 characters of visible ASCII for a group and a deduplication id; what is none becomes its digest. */
static void make_token(struct semel_str s, char out[TOKEN])
{
    unsigned char digest[SEMEL_SHA256] = {0};
    bool plain = s.n > 0 && s.n < TOKEN;

    for (size_t i = 0; plain && i < s.n; i++)
        plain = s.p[i] > ' ' && s.p[i] <= '~';
    if (plain) {
        memcpy(out, s.p, s.n);
        out[s.n] = '\0';
        return;
    }
    (void)semel__sha256(&s, 1, digest);
    semel__hex(digest, sizeof digest, out);
}

static struct semel_str group_of(const struct semel_publish *item)
{
    return semel__str_given(item->key) ? item->key : item->id;
}

static bool same_group(const struct semel_publish *a, const struct semel_publish *b)
{
    return semel__str_eq(a->destination, b->destination) && is_fifo(a->destination) &&
           semel__str_eq(group_of(a), group_of(b));
}

static void put_attribute(struct semel_buf *buf, struct semel_str name, struct semel_str value, const char *before)
{
    semel__buf_addz(buf, before);
    semel__json_put_string(buf, name);
    semel__buf_addz(buf, ":{\"DataType\":\"String\",\"StringValue\":");
    semel__json_put_string(buf, value);
    semel__buf_addz(buf, "}");
}

static void put_item(struct semel_buf *buf, const struct semel_publish *item, size_t at)
{
    const char *before = ",\"MessageAttributes\":{";
    char token[TOKEN];

    semel__buf_addf(buf, "%s{\"Id\":\"%zu\",\"MessageBody\":", at > 0 ? "," : "", at);
    semel__json_put_string(buf, item->payload);
    for (size_t i = 0; i < item->n_headers; i++, before = ",")
        put_attribute(buf, item->headers[i].name, item->headers[i].value, before);
    if (!id_is_header(item)) {
        put_attribute(buf, SEMEL_STR("id"), item->id, before);
        before = ",";
    }
    if (before[1] == '\0')
        semel__buf_addz(buf, "}");
    if (is_fifo(item->destination)) {
        make_token(group_of(item), token);
        semel__buf_addz(buf, ",\"MessageGroupId\":");
        semel__json_put_string(buf, semel__str(token));
        make_token(semel__str_given(item->id) ? item->id : item->payload, token);
        semel__buf_addz(buf, ",\"MessageDeduplicationId\":");
        semel__json_put_string(buf, semel__str(token));
    }
    semel__buf_addz(buf, "}");
}

/* The queue beside ours that the item is for. */
static void put_url(struct semel_buf *buf, const struct sqs_conf *conf, struct semel_str queue)
{
    char url[SQS_URL_MAX + QUEUE_MAX + 1];
    const int n = snprintf(url, sizeof url, "%.*s%.*s", (int)(strlen(conf->url) - strlen(conf->queue)), conf->url,
                           (int)queue.n, queue.p);

    semel__json_put_string(buf, (struct semel_str){url, (size_t)n});
}

static void make_request(struct sending *s, struct sqs_call *call)
{
    semel__buf_done(&call->request);
    semel__buf_init(&call->request, REQUEST_MAX);
    semel__buf_addz(&call->request, "{\"QueueUrl\":");
    put_url(&call->request, &s->sqs->conf, s->items[s->batch[0]].destination);
    semel__buf_addz(&call->request, ",\"Entries\":[");
    for (size_t i = 0; i < s->n_batch; i++)
        put_item(&call->request, &s->items[s->batch[i]], i);
    semel__buf_addz(&call->request, "]}");
}

static semel_status status_of(const struct semel_publish *item, const struct sqs_verdicts *verdicts, size_t at)
{
    char sum[33];

    switch (verdicts->at[at]) {
    case SQS_DONE:
        return verdicts->md5[at][0] == '\0' || !semel__md5_hex(item->payload, sum) ||
                       strcmp(verdicts->md5[at], sum) == 0
                   ? SEMEL_OK
                   : SEMEL_UNKNOWN;
    case SQS_AGAIN:
        return SEMEL_RETRY;
    case SQS_GONE:
    case SQS_REFUSED:
        return SEMEL_INVALID;
    case SQS_UNSAID:
    default:
        return SEMEL_UNKNOWN;
    }
}

/* The statuses of the batch's items; err is of the request. */
static void send_batch(struct sending *s, struct semel_error *err)
{
    struct sqs_call *call = &s->sqs->sender;
    struct sqs_verdicts verdicts = {0};
    semel_status whole;
    long http = 0;

    make_request(s, call);
    whole = semel__sqs_call_begin(call, s->sqs->multi, &s->sqs->conf, "SendMessageBatch", SEND_MS, err);
    if (whole == SEMEL_OK) {
        semel__sqs_call_wait(call, s->sqs->multi);
        whole = semel__sqs_call_status(call, &s->sqs->conf, err);
        (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &http);
        if (whole == SEMEL_OK)
            (void)semel__sqs_read_verdicts(semel__buf_str(&call->answer), s->n_batch, &verdicts, err);
        else if (call->code != CURLE_OK || http >= 500)
            whole = call->sent > 0 ? SEMEL_UNKNOWN : SEMEL_RETRY;
    }
    for (size_t i = 0; i < s->n_batch; i++) {
        struct semel_publish *item = &s->items[s->batch[i]];
        item->status = whole == SEMEL_OK ? status_of(item, &verdicts, i) : whole;
    }
    call->ended = false;
    semel__buf_done(&call->request);
    semel__buf_done(&call->answer);
}

/* ---- all of them ---------------------------------------------------------------------------------------- */

/* Does an earlier item of its group stand in the way? If that one is lost, so is this one: true and SENT. */
static bool is_held_up(struct sending *s, size_t at)
{
    for (size_t i = 0; i < at; i++) {
        if (!same_group(&s->items[i], &s->items[at]))
            continue;
        if (s->stages[i] == TO_SEND)
            return true; /* it waits, or is in this batch */
        if (s->items[i].status != SEMEL_OK && s->items[i].status != SEMEL_INVALID) {
            s->stages[at] = SENT; /* RETRY: certainly not sent */
            return true;
        }
    }
    return false;
}

static void choose(struct sending *s)
{
    s->n_batch = s->bytes = 0;
    for (size_t i = 0; i < s->n && s->n_batch < SQS_BATCH; i++) {
        const size_t bytes = s->stages[i] == TO_SEND ? bytes_of(&s->items[i]) : 0;
        if (s->stages[i] != TO_SEND ||
            (s->n_batch > 0 && (!semel__str_eq(s->items[i].destination, s->items[s->batch[0]].destination) ||
                                s->bytes + bytes > BATCH_BYTES)) ||
            is_held_up(s, i))
            continue;
        s->batch[s->n_batch++] = i;
        s->bytes += bytes;
    }
}

semel_status semel__sqs_publish(struct semel_broker *broker, struct semel_publish *items, size_t n,
                                struct semel_error *err)
{
    struct sending s = {.sqs = (struct sqs *)broker, .items = items, .n = n};

    for (size_t i = 0; i < n; i++)
        items[i].status = SEMEL_RETRY; /* certainly not sent, until it is handed over */
    s.stages = semel__calloc(n, sizeof *s.stages);
    if (s.stages == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        if (!is_valid(&items[i])) {
            items[i].status = SEMEL_INVALID;
            s.stages[i] = SENT;
        }
    for (choose(&s); s.n_batch > 0; choose(&s)) {
        send_batch(&s, err);
        for (size_t i = 0; i < s.n_batch; i++)
            s.stages[s.batch[i]] = SENT;
    }
    semel__free(s.stages);
    return SEMEL_OK;
}
