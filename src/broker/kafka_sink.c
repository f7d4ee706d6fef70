/* SPDX-License-Identifier: MIT
 *
 * kafka_sink.c: Kafka as a sink: an idempotent producer that waits for all replicas in sync.
 *
 * A server takes a record batch whole or not at all. It decides on each batch by itself, so
 * that e2 may be there although e1 was refused, and no setting of the library prevents that (P69). So a call works in
 * rounds. A round queues items until the next one might not fit into the batch of its partition, while nothing leaves
 * (linger.ms is longer than any call); then it flushes, which makes one batch per partition; then it waits until each
 * item has its report. Our own partitioner, which calls the library's, tells which partition an item goes to. The next
 * round has no item of a key of which an item was not confirmed: it stays RETRY, and the caller brings it again. Topics
 * are looked up before anything is queued: records that wait for their topic's partitions would be handed to a
 * partition one by one while the flush goes on, and make two batches of it.
 *
 * A refused batch blames nobody (P110). Its items go again, half as many at a time, until the batch is taken or one
 * item has travelled alone: that one is INVALID, and what is behind it under its key stays RETRY.
 *
 * A topic that is unknown or denied is a destination that is down (P111): it costs one question, and nothing of it is
 * queued (P112).
 *
 * The producer's own memory of what it sent ends with it (P28): whoever sends again relies on the id that each message
 * carries. A producer that has turned fatal, or that still had messages when the time was over, is closed, and the next
 * publish opens a new one: else messages that time out one by one would leave gaps. message.timeout.ms lies above every
 * deadline: a call's time is cut to what is below it.
 *
 * Invariants: there is at most one unconfirmed batch per partition. publish returns when each item has its report, so
 * that no report can point to an item that is gone. INVALID is said of an item that travelled alone, or that never
 * travelled because it can never be sent.
 */
#include "broker/kafka_private.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>

#define STEP_MS 50
#define TEND_MS 2                /* the same, where somebody wants to be called meanwhile */
#define ASK_MS 1000              /* for a topic, when there are others in the call */
#define ROUND_MAX 10000          /* batch.num.messages */
#define ITEM_REST ((size_t)96)   /* what a record has besides key, payload and headers, at most */
#define HEADER_REST ((size_t)16) /* the same of a header */
#define ROUND_BYTES ((size_t)4 << 20)
#define DESTINATIONS_MAX ((size_t)1024)

struct kafka_destination {
    char name[KAFKA_TOPIC_MAX + 1];
    rd_kafka_topic_t *topic;
    bool known;               /* its partitions are */
    uint64_t call;            /* in which it was asked for the last time */
    rd_kafka_resp_err_t code; /* and the answer */
    size_t *queued;           /* bytes of this round, by partition */
    size_t n_queued;
};

enum stage { WAITING, AGAIN, ON_THE_WAY, ENDED };

/* Beside an item. */
struct ticket {
    struct sending *sending;
    enum stage stage;
    uint32_t lane; /* the first item of the call with this key and destination */
    bool stopped;  /* of a lane's first item: nothing more of it is sent in this call */
    size_t to;     /* its destination */
    /* The last report. */
    rd_kafka_resp_err_t code;
    rd_kafka_msg_status_t persisted;
    int32_t partition;
    _Atomic int32_t chosen; /* by our partitioner, which the library may call again; -1: not yet */
};

/* A partition that refused a batch. */
struct narrow {
    size_t to;
    int32_t partition;
    size_t limit; /* items of a batch */
    size_t n;     /* in this round */
    bool refused;
};

struct sending {
    struct kafka *kafka;
    struct semel_publish *items;
    struct ticket *tickets;
    size_t n, first; /* everything before `first` has ended */
    uint32_t *round; /* items of this round */
    size_t n_round, left;
    size_t bytes, fullest; /* of the round, and of its fullest partition */
    struct narrow *narrow;
    size_t n_narrow, cap_narrow;
    bool again; /* some items wait to be sent again */
    int64_t from_us;
    int timeout_ms;
};

static int left_ms(const struct sending *s)
{
    return kafka_left_ms(s->from_us, s->timeout_ms);
}

/* ---- the producer -------------------------------------------------------------------------------------- */

void semel__kafka_sink_close(struct kafka *kafka)
{
    struct kafka_sink *sink = &kafka->sink;

    for (size_t i = 0; i < sink->n; i++) {
        rd_kafka_topic_destroy(sink->at[i].topic);
        semel__free(sink->at[i].queued);
    }
    semel__free(sink->at);
    sink->at = NULL;
    sink->n = sink->cap = 0;
    if (sink->rk != NULL)
        rd_kafka_destroy(sink->rk);
    sink->rk = NULL;
}

/* The one that the settings name. NULL: a newer one, which only the library can call. */
static kafka_partitioner *find_partitioner(const rd_kafka_conf_t *conf)
{
#define BY(word)                               \
    {                                          \
#word, rd_kafka_msg_partitioner_##word \
    }
    static const struct {
        const char *name;
        kafka_partitioner *call;
    } known[] = {BY(consistent_random), BY(random), BY(consistent),  BY(murmur2),
                 BY(murmur2_random),    BY(fnv1a),  BY(fnv1a_random)};
#undef BY

    char name[32] = "consistent_random";
    size_t n = sizeof name;

    (void)rd_kafka_conf_get(conf, "partitioner", name, &n);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].call;
    return NULL;
}

static semel_status open_sink(struct kafka *kafka, struct semel_error *err)
{
    char text[sizeof err->text];
    rd_kafka_conf_t *conf;

    if (kafka->sink.n >= DESTINATIONS_MAX)
        semel__kafka_sink_close(kafka);
    if (kafka->sink.rk != NULL)
        return SEMEL_OK;
    conf = rd_kafka_conf_dup(kafka->writer);
    kafka->sink.partitioner = find_partitioner(conf);
    kafka->sink.rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof text);
    if (kafka->sink.rk != NULL) {
        if (kafka->hooks.log != NULL)
            rd_kafka_set_log_queue(kafka->sink.rk, NULL);
        return SEMEL_OK;
    }
    rd_kafka_conf_destroy(conf);
    return semel__kafka_refused(text, err);
}

/* ---- partitions ---------------------------------------------------------------------------------------- */

/* Called by produce(), as the topic's partitions are known. */
static int32_t choose_partition(const rd_kafka_topic_t *topic, const void *key, size_t n, int32_t partitions,
                                void *opaque, void *message)
{
    struct kafka *kafka = opaque;
    const int32_t partition = kafka->sink.partitioner(topic, key, n, partitions, NULL, NULL);

    if (message != NULL)
        atomic_store_explicit(&((struct ticket *)message)->chosen, partition, memory_order_relaxed);
    return partition;
}

/* NULL: no memory. */
static rd_kafka_topic_t *open_topic(struct kafka *kafka, const char *name)
{
    rd_kafka_topic_conf_t *conf = NULL;
    rd_kafka_topic_t *topic;

    if (kafka->sink.partitioner != NULL) {
        conf = rd_kafka_default_topic_conf_dup(kafka->sink.rk);
        rd_kafka_topic_conf_set_opaque(conf, kafka);
        rd_kafka_topic_conf_set_partitioner_cb(conf, choose_partition);
    }
    topic = rd_kafka_topic_new(kafka->sink.rk, name, conf);
    if (topic == NULL && conf != NULL)
        rd_kafka_topic_conf_destroy(conf);
    return topic;
}

/* The bytes of this round in the item's partition; NULL: it is not known, or there is no memory. */
static size_t *queued_of(struct kafka_destination *to, int32_t partition)
{
    if (partition < 0)
        return NULL;
    if ((size_t)partition >= to->n_queued) {
        const size_t n = (size_t)partition + 16;
        size_t *queued = semel__realloc(to->queued, n, sizeof *queued);
        if (queued == NULL)
            return NULL;
        memset(queued + to->n_queued, 0, (n - to->n_queued) * sizeof *queued);
        to->queued = queued;
        to->n_queued = n;
    }
    return &to->queued[partition];
}

/* An item was queued. One whose partition is not known may be in any. */
static void count_queued(struct sending *s, const struct ticket *ticket, size_t more)
{
    size_t *queued = queued_of(&s->kafka->sink.at[ticket->to],
                               atomic_load_explicit(&ticket->chosen, memory_order_relaxed));

    s->bytes += more;
    if (queued == NULL) {
        s->fullest += more;
        return;
    }
    *queued += more;
    if (*queued > s->fullest)
        s->fullest = *queued;
}

static void forget_queued(struct sending *s)
{
    for (size_t i = 0; i < s->kafka->sink.n; i++) {
        struct kafka_destination *to = &s->kafka->sink.at[i];
        if (to->n_queued > 0)
            memset(to->queued, 0, to->n_queued * sizeof *to->queued);
    }
    s->bytes = s->fullest = 0;
}

/* ---- destinations -------------------------------------------------------------------------------------- */

/* NULL: no memory. */
static struct kafka_destination *destination_of(struct kafka *kafka, struct semel_str name)
{
    struct kafka_sink *sink = &kafka->sink;
    struct kafka_destination *to;

    for (size_t i = 0; i < sink->n; i++)
        if (semel__str_eqz(name, sink->at[i].name))
            return &sink->at[i];
    if (sink->n == sink->cap) {
        const size_t cap = sink->cap == 0 ? 8 : 2 * sink->cap;
        struct kafka_destination *at = semel__realloc(sink->at, cap, sizeof *at);
        if (at == NULL)
            return NULL;
        sink->at = at;
        sink->cap = cap;
    }
    to = &sink->at[sink->n];
    *to = (struct kafka_destination){0};
    memcpy(to->name, name.p, name.n);
    to->topic = open_topic(kafka, to->name);
    if (to->topic == NULL)
        return NULL;
    sink->n++;
    return to;
}

/* Asks for the partitions, which the library then has before anything is queued for them. */
static void look_up(struct sending *s, struct kafka_destination *to, bool others)
{
    const int left = left_ms(s), wait_ms = others && left > ASK_MS ? ASK_MS : left;
    const struct rd_kafka_metadata *found = NULL;

    to->call = s->kafka->sink.calls;
    to->code = wait_ms > 0 ? rd_kafka_metadata(s->kafka->sink.rk, 0, to->topic, &found, wait_ms)
                           : RD_KAFKA_RESP_ERR__TIMED_OUT;
    if (found == NULL)
        return;
    to->code = found->topic_cnt == 1 ? found->topics[0].err : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    to->known = to->code == RD_KAFKA_RESP_ERR_NO_ERROR && found->topics[0].partition_cnt > 0;
    if (!to->known && to->code == RD_KAFKA_RESP_ERR_NO_ERROR)
        to->code = RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE;
    rd_kafka_metadata_destroy(found);
}

static void end_item(struct sending *s, size_t i, semel_status status, bool down, const char *why)
{
    s->tickets[i].stage = ENDED;
    s->tickets[s->tickets[i].lane].stopped = true;
    semel__publish_end(&s->items[i], status, down, "kafka: %s", why);
}

/* Each item's destination, and whether it can be sent to. */
static void find_destinations(struct sending *s)
{
    struct kafka_sink *sink = &s->kafka->sink;
    bool others = false, away = false;

    sink->calls++;
    for (size_t i = 0; i < s->n; i++) {
        const struct semel_str name = s->items[i].destination;
        struct kafka_destination *to = NULL;
        if (!semel__kafka_topic_is_valid(name)) {
            end_item(s, i, SEMEL_INVALID, false, "its destination is no topic's name");
            continue;
        }
        if (sink->n < DESTINATIONS_MAX)
            to = destination_of(s->kafka, name);
        if (to == NULL) {
            end_item(s, i, SEMEL_RETRY, false, "no memory, or too many topics in one call");
            continue;
        }
        if (!to->known && to->call != sink->calls && away) {
            to->call = sink->calls;
            to->code = RD_KAFKA_RESP_ERR__TRANSPORT;
        } else if (!to->known && to->call != sink->calls) {
            look_up(s, to, others);
            away = to->code == RD_KAFKA_RESP_ERR__TRANSPORT || to->code == RD_KAFKA_RESP_ERR__TIMED_OUT;
        }
        others |= to->known;
        s->tickets[i].to = (size_t)(to - sink->at);
        if (!to->known)
            end_item(s, i, SEMEL_RETRY, true, rd_kafka_err2str(to->code));
    }
}

/* ---- lanes --------------------------------------------------------------------------------------------- */

/* Items without a key have a lane of their own. false: no memory. */
static bool find_lanes(struct sending *s)
{
    size_t size = 16;
    uint32_t *table;

    while (size < 2 * s->n)
        size *= 2;
    table = semel__calloc(size, sizeof *table); /* 0: free; else the item's number, plus one */
    if (table == NULL)
        return false;
    for (size_t i = 0; i < s->n; i++) {
        const struct semel_publish *item = &s->items[i];
        size_t at = (size_t)semel__str_hash(semel__str_hash(0, item->key), item->destination) % size;
        s->tickets[i].lane = (uint32_t)i;
        if (!semel__str_given(item->key))
            continue;
        while (table[at] != 0 && (!semel__str_eq(s->items[table[at] - 1].key, item->key) ||
                                  !semel__str_eq(s->items[table[at] - 1].destination, item->destination)))
            at = (at + 1) % size;
        if (table[at] == 0)
            table[at] = (uint32_t)i + 1;
        s->tickets[i].lane = table[at] - 1;
    }
    semel__free(table);
    return true;
}

/* ---- one item ------------------------------------------------------------------------------------------ */

/* NULL: no memory. */
static rd_kafka_headers_t *headers_of(const struct semel_publish *item)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(item->n_headers + 1);
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;

    for (size_t i = 0; code == RD_KAFKA_RESP_ERR_NO_ERROR && i <= item->n_headers; i++) {
        struct semel_pair pair;
        if (semel__publish_header(item, i, &pair))
            code = rd_kafka_header_add(headers, pair.name.p, (ssize_t)pair.name.n, pair.value.p, (ssize_t)pair.value.n);
    }
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return headers;
    rd_kafka_headers_destroy(headers);
    return NULL;
}

static size_t bytes_of(const struct semel_publish *item)
{
    size_t n = ITEM_REST + item->key.n + item->payload.n + item->id.n;

    for (size_t i = 0; i < item->n_headers; i++)
        n += HEADER_REST + item->headers[i].name.n + item->headers[i].value.n;
    return n;
}

static void *copied(struct semel_str s)
{
    return (void *)(uintptr_t)s.p;
}

/* OK: there will be a report. An item that was refused goes to the same partition again. */
static rd_kafka_resp_err_t produce(struct sending *s, size_t i)
{
    const struct semel_publish *item = &s->items[i];
    struct ticket *ticket = &s->tickets[i];
    rd_kafka_headers_t *headers = headers_of(item);
    rd_kafka_resp_err_t code;
    rd_kafka_error_t *error;

    if (headers == NULL)
        return RD_KAFKA_RESP_ERR__QUEUE_FULL;
    const rd_kafka_vu_t vus[] = {
        {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = s->kafka->sink.at[ticket->to].topic},
        {.vtype = RD_KAFKA_VTYPE_PARTITION,
         .u.i32 = ticket->stage == AGAIN ? ticket->partition : RD_KAFKA_PARTITION_UA},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_KEY, .u.mem = {copied(item->key), item->key.n}},
        {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {copied(item->payload), item->payload.n}},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = ticket},
    };
    error = rd_kafka_produceva(s->kafka->sink.rk, vus, sizeof vus / sizeof vus[0]);
    if (error == NULL)
        return RD_KAFKA_RESP_ERR_NO_ERROR; /* the headers are the library's now */
    code = rd_kafka_error_code(error);
    rd_kafka_error_destroy(error);
    rd_kafka_headers_destroy(headers);
    return code;
}

void semel__kafka_delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct ticket *ticket = message->_private;

    (void)rk, (void)opaque;
    ticket->sending->left--;
    ticket->code = message->err;
    ticket->persisted = rd_kafka_message_status(message);
    ticket->partition = message->partition;
}

/* ---- what a report means ------------------------------------------------------------------------------- */

/* The server takes no such record, or not so many at once. */
static bool is_refusal(rd_kafka_resp_err_t code)
{
    switch ((int)code) {
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_INVALID_MSG:
    case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
    case RD_KAFKA_RESP_ERR_INVALID_RECORD:
    case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
    case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
    case RD_KAFKA_RESP_ERR__INVALID_ARG:
        return true;
    default:
        return false;
    }
}

/* The topic is asked for again by the next call. */
static bool is_about_topic(rd_kafka_resp_err_t code)
{
    switch ((int)code) {
    case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
        return true;
    default:
        return false;
    }
}

static bool is_purged(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR__PURGE_QUEUE || code == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT ||
           code == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT;
}

/* How many of the round went to that partition. */
static size_t company_of(const struct sending *s, const struct ticket *ticket)
{
    size_t n = 0;

    for (size_t k = 0; k < s->n_round; k++) {
        const struct ticket *each = &s->tickets[s->round[k]];
        n += each->to == ticket->to && each->partition == ticket->partition;
    }
    return n;
}

static struct narrow *narrow_of(const struct sending *s, const struct ticket *ticket)
{
    for (size_t i = 0; i < s->n_narrow; i++)
        if (s->narrow[i].to == ticket->to && s->narrow[i].partition == ticket->partition)
            return &s->narrow[i];
    return NULL;
}

/* NULL: no memory. */
static struct narrow *make_narrow(struct sending *s, const struct ticket *ticket)
{
    struct narrow *narrow = narrow_of(s, ticket);

    if (narrow == NULL && s->n_narrow == s->cap_narrow) {
        const size_t cap = s->cap_narrow == 0 ? 16 : 2 * s->cap_narrow;
        struct narrow *at = semel__realloc(s->narrow, cap, sizeof *at);
        if (at == NULL)
            return NULL;
        s->narrow = at;
        s->cap_narrow = cap;
    }
    if (narrow == NULL) {
        narrow = &s->narrow[s->n_narrow++];
        *narrow = (struct narrow){.to = ticket->to, .partition = ticket->partition};
    }
    if (!narrow->refused)
        narrow->n = company_of(s, ticket);
    narrow->refused = true;
    return narrow;
}

static void judge_item(struct sending *s, size_t i)
{
    struct ticket *ticket = &s->tickets[i];
    struct semel_publish *item = &s->items[i];
    const struct narrow *narrow = NULL;
    const bool maybe = ticket->persisted != RD_KAFKA_MSG_STATUS_NOT_PERSISTED;
    const bool refused = !maybe && is_refusal(ticket->code);

    if (ticket->code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        item->status = SEMEL_OK;
        ticket->stage = ENDED;
        return;
    }
    if (refused && (narrow = make_narrow(s, ticket)) != NULL && narrow->n > 1) {
        ticket->stage = AGAIN;
        s->again = true;
        return;
    }
    if (is_about_topic(ticket->code))
        s->kafka->sink.at[ticket->to].known = false;
    if (refused && narrow != NULL)
        end_item(s, i, SEMEL_INVALID, false, rd_kafka_err2str(ticket->code));
    else
        end_item(s, i, maybe ? SEMEL_UNKNOWN : SEMEL_RETRY, !refused,
                 is_purged(ticket->code) ? "not confirmed in time" : rd_kafka_err2str(ticket->code));
}

static void judge_round(struct sending *s)
{
    s->again = false;
    for (size_t i = 0; i < s->n_narrow; i++)
        s->narrow[i].refused = false;
    for (size_t k = 0; k < s->n_round; k++)
        judge_item(s, s->round[k]);
    for (size_t i = 0; i < s->n_narrow; i++) {
        struct narrow *narrow = &s->narrow[i];
        if (narrow->refused)
            narrow->limit = narrow->n > 1 ? narrow->n / 2 : 1;
        else if (narrow->n > 0)
            narrow->limit = 2 * narrow->n;
        narrow->n = 0;
    }
    for (size_t i = s->first; !s->again && i < s->n; i++)
        s->again = s->tickets[i].stage == AGAIN;
}

/* ---- a round ------------------------------------------------------------------------------------------- */

/* false: the round is full. */
static bool add_item(struct sending *s, size_t i)
{
    struct ticket *ticket = &s->tickets[i];
    struct narrow *narrow = s->again ? narrow_of(s, ticket) : NULL;
    const size_t more = bytes_of(&s->items[i]);
    rd_kafka_resp_err_t code;

    if (s->tickets[ticket->lane].stopped) {
        ticket->stage = ENDED;
        semel__publish_end(&s->items[i], SEMEL_RETRY, false, "kafka: an earlier one of its key was not taken");
        return true;
    }
    if (narrow != NULL && narrow->n >= narrow->limit)
        return true;
    if (s->n_round == ROUND_MAX ||
        (s->n_round > 0 && (s->fullest + more > s->kafka->sink.batch_bytes || s->bytes + more > ROUND_BYTES)))
        return false;
    atomic_store_explicit(&ticket->chosen, ticket->stage == AGAIN ? ticket->partition : -1, memory_order_relaxed);
    code = produce(s, i);
    if (code == RD_KAFKA_RESP_ERR__QUEUE_FULL && s->n_round > 0)
        return false;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        end_item(s, i, is_refusal(code) ? SEMEL_INVALID : SEMEL_RETRY, is_about_topic(code), rd_kafka_err2str(code));
        return true;
    }
    ticket->stage = ON_THE_WAY;
    s->round[s->n_round++] = (uint32_t)i;
    s->left++;
    count_queued(s, ticket, more);
    if (narrow != NULL)
        narrow->n++;
    return true;
}

/* Queues what goes next; false: there is nothing left. */
static bool begin_round(struct sending *s)
{
    s->n_round = 0;
    forget_queued(s);
    while (s->first < s->n && s->tickets[s->first].stage == ENDED)
        s->first++;
    for (size_t i = s->first; s->again && i < s->n; i++)
        if (s->tickets[i].stage == AGAIN && !add_item(s, i))
            break;
    s->again = s->n_round > 0;
    for (size_t i = s->first; !s->again && i < s->n; i++)
        if (s->tickets[i].stage == WAITING && !add_item(s, i))
            break;
    return s->n_round > 0;
}

/* When the time is over, what waits is dropped and what is on its way is given up: the reports of both come at once.
 * Such a producer has gaps in its numbers, so it is replaced. */
static bool end_round(struct sending *s)
{
    rd_kafka_t *rk = s->kafka->sink.rk;
    const struct semel_broker *base = &s->kafka->base;
    const int step_ms = base->tend != NULL ? TEND_MS : STEP_MS;
    bool purged = false;

    while (s->left > 0) {
        const int left = left_ms(s);
        if (base->tend != NULL)
            base->tend(base->tend_ctx);
        if (left == 0 && !purged)
            purged = rd_kafka_purge(rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT) ==
                     RD_KAFKA_RESP_ERR_NO_ERROR;
        if (purged)
            rd_kafka_poll(rk, STEP_MS);
        else
            (void)rd_kafka_flush(rk, left < step_ms ? left : step_ms);
    }
    judge_round(s);
    return !purged && rd_kafka_fatal_error(rk, NULL, 0) == RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* Ends the items that were refused together with others, and had no time to travel alone. */
static void end_rest(struct sending *s)
{
    for (size_t i = s->first; i < s->n; i++)
        if (s->tickets[i].stage == AGAIN)
            end_item(s, i, SEMEL_RETRY, false, "refused together with others, and there was no time to send it alone");
}

semel_status semel__kafka_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                  struct semel_error *err)
{
    struct kafka *kafka = (struct kafka *)broker;
    const int longest_ms = kafka->sink.longest_ms;
    struct sending s = {.kafka = kafka,
                        .items = items,
                        .n = n,
                        .tickets = semel__calloc(n, sizeof *s.tickets),
                        .round = semel__calloc(n < ROUND_MAX ? n : ROUND_MAX, sizeof *s.round),
                        .from_us = semel__steady_us(),
                        .timeout_ms = timeout_ms < longest_ms ? timeout_ms : longest_ms};
    semel_status status = SEMEL_OK;
    bool usable = true;

    assert(n < UINT32_MAX);
    if (s.tickets == NULL || s.round == NULL || !find_lanes(&s))
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        status = open_sink(kafka, err);
    if (status == SEMEL_OK) {
        for (size_t i = 0; i < n; i++)
            s.tickets[i].sending = &s;
        find_destinations(&s);
        while (usable && left_ms(&s) > 0 && begin_round(&s))
            usable = end_round(&s);
        end_rest(&s);
        rd_kafka_poll(kafka->sink.rk, 0); /* lines of the log */
    }
    if (!usable)
        semel__kafka_sink_close(kafka);
    semel__free(s.narrow);
    semel__free(s.round);
    semel__free(s.tickets);
    return status;
}
