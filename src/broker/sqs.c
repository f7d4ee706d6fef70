/* SPDX-License-Identifier: MIT
 *
 * sqs.c: SQS as a source and as a sink: options, unanswered messages, background requests while a handle is polled,
 * poll, the answers, publish, and questions about a queue. See sqs.h.
 *
 * One receive runs as long as there is room. While receives bring messages there are more of them at a time, up to
 * SQS_RECEIVES; after an empty answer it is one again. Chores (deleting acknowledged messages, extending running ones
 * at half of their time, making visible those that are given back) have requests of their own, so that a long poll
 * delays none.
 *
 * `held` has a slot for each received message without an answer; only it knows which tag is still valid. A tag is a
 * number that no other delivery of this process has had, and the place of its slot. Slots are looked up by tag
 * directly, by message and group one after the other: there are a thousand, and a request brings ten.
 *
 * publish sends batches of ten, up to SQS_SENDS at a time, each of which is sent once. What the answer says of an entry
 * becomes the item's status. Was the request handed to the network, and no answer read, then nobody knows. To a FIFO
 * queue a batch takes one item of a group, and none of a group of which an earlier item has not been confirmed: what
 * comes behind it is certainly not sent, and stays in order (P69). A request that is refused for what is in it is sent
 * again item by item, so that nobody is blamed for a neighbour (P110); one that is refused for any other reason (there
 * is no such queue, we are not let in) is a destination that is down (P111).
 *
 * Invariants: what goes into a header or a URL holds no byte that could end it; each secret is wiped. A message has at
 * most one slot, that of its last receipt (the older receipt is worth nothing, P37); a slot about which a request is
 * under way is in no second request; what is acknowledged or given back leaves by success, by being refused, or when
 * SQS makes it visible by itself. A message is delivered under the tag that its slot got when it came, and only while
 * that slot still waits; what poll returns lies in the arena. No more messages are asked for than there is room for;
 * receives and chores may be sent again, and nobody but this file does so; a receive that failed is tried again after a
 * pause that grows. An item to be published is in at most one request that may have been taken; a text that SQS would
 * refuse, or that would not come out as it went in, is not sent.
 */
#include "broker/sqs_private.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/digest.h"

#define CLOSE_MS 3000
#define GRACE_MS 300 /* for a long poll to return messages that were just given back */
#define POLL_MAX 1000
#define POLL_BYTES ((size_t)4 << 20) /* a batch of this size ends early */
#define LOOK_MS 1000
#define PROPERTIES 5
#define CHORE_MS 10000
#define SLACK_MS 10000 /* how much longer than its wait a long poll may take */
#define REQUEST_MAX ((size_t)8 << 20)
#define PAUSE_US INT64_C(200000)
#define PAUSE_DOUBLES 5
#define EMPTY_US INT64_C(250000) /* between receives that find nothing, if the server does not wait */
#define DAMAGED_S 5
#define QUEUE_MAX 80
#define SECRET_MAX 8192
#define IN_FLIGHT 1000
#define ASK_MS 15000
#define ASK_US INT64_C(30000000)
#define PLACE_BITS 20
#define SEND_MS 20000
#define LEAST_US 20000 /* a request that has less time left is not begun: it would be given up as soon as it is sent */
#define ATTRIBUTES_MAX 10
#define ITEM_BYTES ((size_t)1 << 20)
#define BATCH_BYTES ((size_t)256 << 10)
#define TOKEN 129 /* of a group or a deduplication id, with its NUL */

/* ---- options ------------------------------------------------------------------------------------------- */

static semel_status wrong(struct semel_error *err, const char *what)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "sqs: %s", what);
}

/* Visible ASCII, and not too long. */
static bool is_plain(const char *text, size_t max)
{
    const size_t n = strlen(text);

    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return n > 0 && n <= max;
}

static bool ends_with(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

static bool queue_is_valid(const char *queue)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const size_t n = strlen(queue), good = strspn(queue, letters);

    return n > 0 && n <= QUEUE_MAX && good > 0 && (good == n || strcmp(queue + good, ".fifo") == 0);
}

static semel_status parse_url(struct sqs_conf *conf, const char *url, struct semel_error *err)
{
    const char *host = url != NULL ? strstr(url, "://") : NULL, *path, *queue;

    if (host == NULL || (strncmp(url, "https://", 8) != 0 && strncmp(url, "http://", 7) != 0))
        return wrong(err, "the queue's URL must look like https://HOST/ACCOUNT/QUEUE");
    if (!is_plain(url, SQS_URL_MAX - 1) || strpbrk(url, "?#\\\"") != NULL)
        return wrong(err, "the queue's URL has a byte that does not belong there, or more than 1023 of them");
    host += 3;
    path = strchr(host, '/');
    queue = strrchr(host, '/');
    if (path == NULL || path == host || !queue_is_valid(queue + 1))
        return wrong(err, "the queue's URL must end with its name: letters, digits, '_' and '-', at most 80");
    if (memchr(host, '@', (size_t)(path - host)) != NULL)
        return wrong(err, "the queue's URL has credentials in it; they belong into access_key and secret_key");
    memcpy(conf->url, url, strlen(url) + 1);
    memcpy(conf->queue, queue + 1, strlen(queue + 1) + 1);
    memcpy(conf->endpoint, url, (size_t)(path - url) + 1);
    conf->endpoint[path - url + 1] = '\0';
    conf->fifo = ends_with(conf->queue, ".fifo");
    return SEMEL_OK;
}

static void wipe(char **text)
{
    if (*text != NULL)
        explicit_bzero(*text, strlen(*text));
    semel__free(*text);
    *text = NULL;
}

static semel_status check(const struct semel_sqs_options *o, struct semel_error *err)
{
    if (o->region == NULL || !is_plain(o->region, 64) || strpbrk(o->region, ":/") != NULL)
        return wrong(err, "region is missing, or not a name like eu-central-1");
    if (o->access_key == NULL || !is_plain(o->access_key, 255) || strchr(o->access_key, '/') != NULL)
        return wrong(err, "access_key is missing, or not one");
    if (o->secret_key == NULL || !is_plain(o->secret_key, 1024))
        return wrong(err, "secret_key is missing, or not one");
    if (o->session_token != NULL && !is_plain(o->session_token, SECRET_MAX))
        return wrong(err, "session_token is not one");
    if (o->visibility_us < 0 || o->visibility_us > SQS_LONGEST_S * SQS_SECOND_US)
        return wrong(err, "visibility must be from 1 s to 12 h");
    if (o->wait_us < 0 || o->wait_us > 20 * SQS_SECOND_US)
        return wrong(err, "wait must be from 0 to 20 s");
    if (o->in_flight_max > SQS_IN_FLIGHT_MAX)
        return wrong(err, "more than 100000 deliveries in flight");
    return SEMEL_OK;
}

static semel_status conf_read(struct sqs_conf *conf, const struct semel_sqs_options *o, struct semel_error *err)
{
    semel_status status = parse_url(conf, o->url, err);

    if (status == SEMEL_OK)
        status = check(o, err);
    if (status != SEMEL_OK)
        return status;
    memcpy(conf->region, o->region, strlen(o->region) + 1);
    conf->visibility_s = o->visibility_us > 0 ? (int)((o->visibility_us + SQS_SECOND_US - 1) / SQS_SECOND_US) : 60;
    conf->wait_s = (int)(o->wait_us / SQS_SECOND_US);
    conf->in_flight_max = o->in_flight_max > 0 ? o->in_flight_max : IN_FLIGHT;
    if (semel__text_copy(&conf->access_key, o->access_key) && semel__text_copy(&conf->secret_key, o->secret_key) &&
        semel__text_copy(&conf->session_token, o->session_token) && semel__curl_tls_copy(&conf->tls, &o->tls))
        return SEMEL_OK;
    return semel__fail_memory(err);
}

static void conf_done(struct sqs_conf *conf)
{
    wipe(&conf->access_key);
    wipe(&conf->secret_key);
    wipe(&conf->session_token);
    semel__curl_tls_done(&conf->tls);
}

/* ---- what is held -------------------------------------------------------------------------------------------- */

_Static_assert(SQS_IN_FLIGHT_MAX + (size_t)SQS_RECEIVES * SQS_BATCH < (size_t)1 << PLACE_BITS,
               "a place fits into a tag");

static atomic_uint_fast64_t last_number;

bool semel__sqs_held_init(struct sqs_held *held, size_t cap, int visibility_s, bool fifo)
{
    *held = (struct sqs_held){.visibility_s = visibility_s, .fifo = fifo};
    held->at = semel__calloc(cap, sizeof *held->at);
    held->cap = held->at != NULL ? cap : 0;
    return held->at != NULL;
}

static void held_drop(struct sqs_held *held, struct sqs_slot *slot)
{
    if (slot->state == SQS_FREE)
        return;
    semel__free(slot->text);
    *slot = (struct sqs_slot){0};
    held->n--;
}

void semel__sqs_held_settle(struct sqs_held *held)
{
    for (size_t i = 0; i < held->cap; i++)
        if (held->at[i].state != SQS_WAITING)
            held_drop(held, &held->at[i]);
}

void semel__sqs_held_done(struct sqs_held *held)
{
    for (size_t i = 0; i < held->cap; i++)
        held_drop(held, &held->at[i]);
    semel__free(held->at);
    *held = (struct sqs_held){0};
}

struct sqs_slot *semel__sqs_held_find(struct sqs_held *held, uint64_t tag)
{
    const size_t place = tag & (((uint64_t)1 << PLACE_BITS) - 1);

    return place < held->cap && held->at[place].state != SQS_FREE && held->at[place].tag == tag ? &held->at[place]
                                                                                                : NULL;
}

static bool is_open(const struct sqs_slot *slot)
{
    return slot->state == SQS_OUT || slot->state == SQS_WAITING;
}

/* Is the slot's message `sequence` itself, or behind it? Sequence numbers have up to 39 digits. Without them the order
 * of arrival is that of the group; `tag` belongs to the message compared with, 0: it has just come. */
static bool is_behind(const struct sqs_slot *slot, struct semel_str group, struct semel_str sequence, uint64_t tag)
{
    if (!semel__str_given(group) || !semel__str_eq(slot->group, group))
        return false;
    if (sequence.n == 0 || slot->sequence.n == 0)
        return tag != 0 && slot->tag >> PLACE_BITS >= tag >> PLACE_BITS;
    if (slot->sequence.n != sequence.n)
        return slot->sequence.n > sequence.n;
    return semel__str_cmp(slot->sequence, sequence) >= 0;
}

/* A new receipt makes every older receipt of the message void. That a group delivers it also means that nothing behind
 * it is invisible any more. */
static void fence_stale(struct sqs_held *held, const struct sqs_message *message)
{
    for (size_t i = 0; i < held->cap && held->n > 0; i++) {
        struct sqs_slot *slot = &held->at[i];
        if (slot->state != SQS_FREE &&
            (semel__str_eq(slot->id, message->id) ||
             (held->fifo && is_open(slot) && is_behind(slot, message->group, message->sequence, 0))))
            held_drop(held, slot);
    }
}

static struct semel_str put(char **at, struct semel_str s)
{
    const struct semel_str copy = {semel__str_given(s) ? *at : NULL, s.n};

    if (s.n > 0)
        memcpy(*at, s.p, s.n);
    *at += s.n;
    return copy;
}

static struct sqs_slot *free_slot(struct sqs_held *held)
{
    for (size_t i = 0; i < held->cap && held->n < held->cap; i++) {
        held->hint = (held->hint + 1) % held->cap;
        if (held->at[held->hint].state == SQS_FREE)
            return &held->at[held->hint];
    }
    return NULL;
}

static int64_t half_of(int seconds)
{
    return seconds * SQS_SECOND_US / 2;
}

uint64_t semel__sqs_held_enter(struct sqs_held *held, const struct sqs_message *message, int64_t now_us)
{
    const struct sqs_message *m = message;
    struct sqs_slot *slot;
    char *text, *end;

    fence_stale(held, m);
    slot = free_slot(held);
    text = slot != NULL ? semel__alloc(m->id.n + m->handle.n + m->group.n + m->sequence.n + 1) : NULL;
    if (text == NULL)
        return 0;
    end = text;
    *slot = (struct sqs_slot){.state = SQS_WAITING, .text = text};
    slot->id = put(&end, m->id);
    slot->handle = put(&end, m->handle);
    slot->group = put(&end, m->group);
    slot->sequence = put(&end, m->sequence);
    slot->tag = (uint64_t)(atomic_fetch_add(&last_number, 1) + 1) << PLACE_BITS | (uint64_t)(slot - held->at);
    slot->received_us = now_us;
    slot->until_us = semel__time_add(now_us, held->visibility_s * SQS_SECOND_US);
    slot->next_us = semel__time_add(now_us, half_of(held->visibility_s));
    held->n++;
    return slot->tag;
}

static void set(struct sqs_slot *slot, enum sqs_state state, int delay_s, int64_t now_us)
{
    slot->state = state;
    slot->delay_s = delay_s;
    slot->tries = 0;
    slot->next_us = now_us;
}

bool semel__sqs_held_ack(struct sqs_held *held, uint64_t tag, int64_t now_us)
{
    struct sqs_slot *slot = semel__sqs_held_find(held, tag);

    if (slot == NULL || slot->state != SQS_OUT)
        return false;
    set(slot, SQS_ACKED, 0, now_us);
    return true;
}

bool semel__sqs_held_back(struct sqs_held *held, uint64_t tag, int delay_s, int64_t now_us)
{
    struct sqs_slot *slot = semel__sqs_held_find(held, tag);

    if (slot == NULL || slot->state != SQS_OUT)
        return false;
    for (size_t i = 0; held->fifo && i < held->cap; i++)
        if (is_open(&held->at[i]) && is_behind(&held->at[i], slot->group, slot->sequence, slot->tag))
            set(&held->at[i], SQS_BACK, delay_s, now_us);
    set(slot, SQS_BACK, delay_s, now_us);
    return true;
}

static void held_back_all(struct sqs_held *held, int64_t now_us)
{
    for (size_t i = 0; i < held->cap; i++)
        if (is_open(&held->at[i]))
            set(&held->at[i], SQS_BACK, 0, now_us);
}

/* How long it may still stay invisible, in whole seconds. */
static int64_t left_s(const struct sqs_slot *slot, int64_t now_us)
{
    return SQS_LONGEST_S - (now_us - slot->received_us + SQS_SECOND_US - 1) / SQS_SECOND_US;
}

/* Fills in the entry. false: not due, or no longer needed. */
static bool wants(struct sqs_held *held, struct sqs_slot *slot, enum sqs_duty duty, int64_t now_us,
                  struct sqs_entry *entry)
{
    int64_t most_s;

    if (slot->state == SQS_FREE || slot->busy || slot->next_us > now_us ||
        (slot->state == SQS_ACKED) != (duty == SQS_DELETE))
        return false;
    if (!is_open(slot) && slot->tries > 0 && now_us >= slot->until_us) {
        held_drop(held, slot); /* it is visible again by itself */
        return false;
    }
    *entry = (struct sqs_entry){.tag = slot->tag, .seconds = slot->delay_s, .back = slot->state == SQS_BACK};
    most_s = left_s(slot, now_us);
    if (!is_open(slot)) {
        entry->seconds = entry->seconds <= most_s ? entry->seconds : most_s > 0 ? (int)most_s : 0;
        return true;
    }
    entry->seconds = most_s < held->visibility_s ? (int)most_s : held->visibility_s;
    if (entry->seconds >= 1)
        return true;
    if (now_us >= slot->until_us)
        held_drop(held, slot); /* SQS allows no more: another consumer will get it */
    else
        slot->next_us = slot->until_us;
    return false;
}

/* The last arrival first: when the head of a group becomes visible, everything behind it is visible already, and one
 * receive may get all of them. */
static void sort_backwards(struct sqs_entry *entries, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j > 0 && entries[j].tag > entries[j - 1].tag; j--) {
            const struct sqs_entry entry = entries[j];
            entries[j] = entries[j - 1];
            entries[j - 1] = entry;
        }
}

size_t semel__sqs_held_due(struct sqs_held *held, enum sqs_duty duty, int64_t now_us,
                           struct sqs_entry entries[SQS_BATCH])
{
    size_t n = 0;

    for (size_t i = 0; i < held->cap && n < SQS_BATCH && held->n > 0; i++)
        if (wants(held, &held->at[i], duty, now_us, &entries[n])) {
            held->at[i].busy = true;
            n++;
        }
    if (held->fifo)
        sort_backwards(entries, n);
    return n;
}

static void try_again(struct sqs_slot *slot, int64_t now_us)
{
    const int doubles = slot->tries < PAUSE_DOUBLES ? slot->tries : PAUSE_DOUBLES;

    slot->next_us = semel__time_add(now_us, PAUSE_US << doubles);
    slot->tries++;
}

void semel__sqs_held_ended(struct sqs_held *held, enum sqs_duty duty, const struct sqs_entry *entry,
                           enum sqs_outcome outcome, int64_t sent_us, int64_t now_us)
{
    struct sqs_slot *slot = semel__sqs_held_find(held, entry->tag);

    if (slot == NULL)
        return;
    slot->busy = false;
    if (outcome == SQS_AGAIN || outcome == SQS_UNSAID) {
        if (is_open(slot) || duty == SQS_DELETE || entry->back)
            try_again(slot, now_us);
    } else if (duty == SQS_DELETE || entry->back) {
        held_drop(held, slot); /* done; or it is no longer ours and comes again */
    } else if (outcome == SQS_DONE) {
        slot->until_us = semel__time_add(sent_us, entry->seconds * SQS_SECOND_US);
        slot->tries = 0;
        if (is_open(slot))
            slot->next_us = semel__time_add(sent_us, half_of(entry->seconds));
    } else if (is_open(slot)) {
        held_drop(held, slot);
    }
}

int64_t semel__sqs_held_next(const struct sqs_held *held)
{
    int64_t next_us = INT64_MAX;

    for (size_t i = 0; i < held->cap && held->n > 0; i++)
        if (held->at[i].state != SQS_FREE && !held->at[i].busy && held->at[i].next_us < next_us)
            next_us = held->at[i].next_us;
    return next_us;
}

static size_t held_count(const struct sqs_held *held, enum sqs_state state)
{
    size_t n = 0;

    for (size_t i = 0; i < held->cap; i++)
        n += held->at[i].state == state;
    return n;
}

/* ---- the handle ---------------------------------------------------------------------------------------------- */

struct sqs {
    struct semel_broker base;
    struct sqs_conf conf;
    CURLM *multi;
    struct sqs_call calls[SQS_CALLS]; /* SQS_RECEIVES for receiving, the others for chores */
    struct sqs_call senders[SQS_SENDS];
    struct sqs_held held;
    struct sqs_batch *first, *last; /* received, not delivered yet */
    size_t n_waiting;               /* messages in them */
    size_t wide;                    /* receives at a time: more while the queue has messages */
    bool small;                     /* the last answer was too long: ask for one message */
    bool failing;                   /* the last receive failed, with `error` */
    bool fresh;                     /* poll has not reported `error` yet */
    int chore_failures;             /* requests that failed as a whole */
    struct semel_error error;
    int failures;
    int64_t receive_us; /* not before then */
    int64_t last_us, skew_us;
    struct sqs_call question; /* how much the queue has */
    bool asks;                /* somebody wants to know */
    int64_t ask_us, behind;   /* not before then; what the last answer said, or -1 */
};

static const struct semel_broker_ops standard_ops, fifo_ops;

static struct sqs *self(struct semel_broker *broker)
{
    return (struct sqs *)broker;
}

/* Never goes back (P45). */
static int64_t now(struct sqs *sqs)
{
    int64_t now_us = semel__time_add(semel__now(&semel__clock_real), sqs->skew_us);

    if (now_us < sqs->last_us) {
        sqs->skew_us += sqs->last_us - now_us; /* the clock was set back */
        now_us = sqs->last_us;
    }
    sqs->last_us = now_us;
    return now_us;
}

static void note(struct sqs *sqs, const struct semel_error *err)
{
    sqs->error = *err;
    sqs->fresh = true;
}

static void begin_request(struct sqs *sqs, struct sqs_call *call, struct semel_str url)
{
    semel__buf_done(&call->request);
    semel__buf_init(&call->request, REQUEST_MAX);
    semel__buf_addz(&call->request, "{\"QueueUrl\":");
    semel__json_put_string(&call->request, url);
    call->begun_us = now(sqs);
}

/* A call always ends by itself, in time. */
static void wait_for(struct sqs_call *call, CURLM *multi)
{
    for (semel__sqs_calls_run(multi); call->active; semel__sqs_calls_run(multi))
        (void)curl_multi_poll(multi, NULL, 0, 100, NULL);
}

/* ---- receiving ----------------------------------------------------------------------------------------- */

static void pause_receiving(struct sqs *sqs)
{
    const int doubles = sqs->failures < PAUSE_DOUBLES ? sqs->failures : PAUSE_DOUBLES;

    sqs->failures++;
    sqs->wide = 1;
    sqs->receive_us = semel__time_add(now(sqs), PAUSE_US << doubles);
}

static bool begin_receive(struct sqs *sqs, struct sqs_call *call, size_t n)
{
    struct semel_error err;

    begin_request(sqs, call, semel__str(sqs->conf.url));
    semel__buf_addf(&call->request,
                    ",\"MaxNumberOfMessages\":%zu,\"VisibilityTimeout\":%d,\"WaitTimeSeconds\":%d,"
                    "\"AttributeNames\":[\"All\"],\"MessageAttributeNames\":[\"All\"]}",
                    n, sqs->conf.visibility_s, sqs->conf.wait_s);
    call->asked = n;
    if (semel__sqs_call_begin(call, sqs->multi, &sqs->conf, "ReceiveMessage", sqs->conf.wait_s * 1000 + SLACK_MS,
                              &err) == SEMEL_OK)
        return true;
    note(sqs, &err);
    pause_receiving(sqs);
    return false;
}

/* How many messages one more receive may bring. */
static size_t room_for(const struct sqs *sqs, size_t room, size_t asked)
{
    const size_t taken = sqs->n_waiting + asked, held = sqs->held.n + asked;
    const size_t most = sqs->small ? 1 : SQS_BATCH;
    size_t n = room > taken ? room - taken : 0;

    if (held >= sqs->conf.in_flight_max)
        return 0;
    n = n < sqs->conf.in_flight_max - held ? n : sqs->conf.in_flight_max - held;
    return n < most ? n : most;
}

static void begin_receives(struct sqs *sqs, size_t room)
{
    size_t asked = 0, active = 0, n;

    if (now(sqs) < sqs->receive_us)
        return;
    for (size_t i = 0; i < SQS_RECEIVES; i++) {
        active += sqs->calls[i].active;
        asked += sqs->calls[i].active ? sqs->calls[i].asked : 0;
    }
    for (size_t i = 0; i < SQS_RECEIVES && active < sqs->wide; i++) {
        if (sqs->calls[i].active)
            continue;
        n = room_for(sqs, room, asked);
        if (n == 0 || !begin_receive(sqs, &sqs->calls[i], n))
            return;
        active++;
        asked += n;
    }
}

/* Gives back a body that was damaged on the way, and in a group those behind it. */
static void give_back_damaged(struct sqs *sqs, const struct sqs_batch *batch)
{
    for (size_t i = 0; i < batch->n; i++) {
        struct sqs_slot *slot = semel__sqs_held_find(&sqs->held, batch->messages[i].tag);
        if (!batch->messages[i].damaged || slot == NULL)
            continue;
        slot->state = SQS_OUT;
        (void)semel__sqs_held_back(&sqs->held, slot->tag, DAMAGED_S, now(sqs));
        (void)semel__fail(&sqs->error, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                          "sqs: a body arrived damaged: it does not have the MD5 that was sent with it");
        sqs->fresh = true;
    }
}

static void enter_batch(struct sqs *sqs, struct sqs_batch *batch, int64_t begun_us)
{
    const int64_t now_us = now(sqs);

    for (size_t i = 0; i < batch->n; i++)
        batch->messages[i].tag = semel__sqs_held_enter(&sqs->held, &batch->messages[i], now_us);
    give_back_damaged(sqs, batch);
    sqs->receive_us = batch->n == 0 ? semel__time_add(begun_us, EMPTY_US) : now_us;
    sqs->wide = batch->n == 0 ? 1 : 2 * batch->n < SQS_BATCH ? sqs->wide : 2 * sqs->wide;
    sqs->wide = sqs->wide < SQS_RECEIVES ? sqs->wide : SQS_RECEIVES;
    sqs->failing = sqs->small = false;
    sqs->failures = 0;
    if (batch->n == 0) {
        semel__sqs_batch_free(batch);
        return;
    }
    sqs->n_waiting += batch->n;
    if (sqs->last != NULL)
        sqs->last->next = batch;
    else
        sqs->first = batch;
    sqs->last = batch;
}

static void end_receive(struct sqs *sqs, struct sqs_call *call)
{
    struct sqs_batch *batch = NULL;
    struct semel_error err;
    semel_status status = semel__sqs_call_status(call, &sqs->conf, &err);

    if (status == SEMEL_OK) {
        status = semel__sqs_read_messages(semel__buf_str(&call->answer), &batch, &err);
        err.status = SEMEL_RETRY; /* an unreadable answer is no error of the settings */
    }
    if (status == SEMEL_OK) {
        enter_batch(sqs, batch, call->begun_us);
        return;
    }
    sqs->small |= call->answer.full;
    /* The connection had been idle for too long: nothing is wrong. */
    if (call->code == CURLE_SEND_FAIL_REWIND && sqs->failures++ == 0)
        return;
    sqs->failing = true;
    note(sqs, &err);
    pause_receiving(sqs);
}

/* ---- chores -------------------------------------------------------------------------------------------- */

static void put_entries(struct sqs *sqs, struct sqs_call *call)
{
    semel__buf_addz(&call->request, ",\"Entries\":[");
    for (size_t i = 0; i < call->n_entries; i++) {
        const struct sqs_slot *slot = semel__sqs_held_find(&sqs->held, call->entries[i].tag);
        semel__buf_addf(&call->request, "%s{\"Id\":\"%zu\",\"ReceiptHandle\":", i > 0 ? "," : "", i);
        semel__json_put_string(&call->request, slot->handle);
        if (call->duty == SQS_CHANGE)
            semel__buf_addf(&call->request, ",\"VisibilityTimeout\":%d", call->entries[i].seconds);
        semel__buf_addz(&call->request, "}");
    }
    semel__buf_addz(&call->request, "]}");
}

static void end_entries(struct sqs *sqs, const struct sqs_call *call, const struct sqs_verdicts *verdicts)
{
    const int64_t now_us = now(sqs);

    for (size_t i = 0; i < call->n_entries; i++)
        semel__sqs_held_ended(&sqs->held, call->duty, &call->entries[i], verdicts->at[i], call->begun_us, now_us);
}

/* false: nothing is due. */
static bool begin_chore(struct sqs *sqs, struct sqs_call *call, enum sqs_duty duty)
{
    static const char *const actions[] = {"DeleteMessageBatch", "ChangeMessageVisibilityBatch"};
    const struct sqs_verdicts unsaid = {0};
    struct semel_error err;

    call->duty = duty;
    call->n_entries = semel__sqs_held_due(&sqs->held, duty, now(sqs), call->entries);
    if (call->n_entries == 0)
        return false;
    begin_request(sqs, call, semel__str(sqs->conf.url));
    put_entries(sqs, call);
    if (semel__sqs_call_begin(call, sqs->multi, &sqs->conf, actions[duty], CHORE_MS, &err) == SEMEL_OK)
        return true;
    end_entries(sqs, call, &unsaid);
    note(sqs, &err);
    return false;
}

static void begin_chores(struct sqs *sqs)
{
    size_t i = SQS_RECEIVES;

    for (int duty = SQS_DELETE; duty <= SQS_CHANGE; duty++)
        for (; i < SQS_CALLS; i++)
            if (!sqs->calls[i].active && !begin_chore(sqs, &sqs->calls[i], (enum sqs_duty)duty))
                break;
}

static void end_chore(struct sqs *sqs, struct sqs_call *call)
{
    struct sqs_verdicts verdicts = {0};
    struct semel_error err;
    semel_status status = semel__sqs_call_status(call, &sqs->conf, &err);

    if (status == SEMEL_OK)
        (void)semel__sqs_read_verdicts(semel__buf_str(&call->answer), call->n_entries, &verdicts, &err);
    else if (status == SEMEL_INVALID)
        note(sqs, &err); /* otherwise a policy that allows receiving but not deleting would go unnoticed */
    sqs->chore_failures += status != SEMEL_OK;
    if (verdicts.code[0] != '\0') {
        (void)semel__fail(&err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "sqs: queue %s refuses to %s a message: %s",
                          sqs->conf.queue, call->duty == SQS_DELETE ? "delete" : "change", verdicts.code);
        note(sqs, &err);
    }
    end_entries(sqs, call, &verdicts);
}

/* ---- work ---------------------------------------------------------------------------------------------- */

static void forget_texts(struct sqs_call *call)
{
    call->ended = false;
    semel__buf_done(&call->request);
    semel__buf_done(&call->answer);
}

static semel_status begin_question(struct sqs *sqs, struct semel_error *err)
{
    begin_request(sqs, &sqs->question, semel__str(sqs->conf.url));
    semel__buf_addz(&sqs->question.request, ",\"AttributeNames\":[\"All\"]}");
    return semel__sqs_call_begin(&sqs->question, sqs->multi, &sqs->conf, "GetQueueAttributes", ASK_MS, err);
}

static semel_status end_question(struct sqs *sqs, struct semel_sqs_facts *ret, struct semel_error *err)
{
    semel_status status = semel__sqs_call_status(&sqs->question, &sqs->conf, err);
    if (status == SEMEL_OK)
        status = semel__sqs_read_facts(semel__buf_str(&sqs->question.answer), ret, err);
    forget_texts(&sqs->question);
    return status;
}

static void ask_queue(struct sqs *sqs)
{
    struct semel_sqs_facts facts;
    struct semel_error err;

    if (sqs->question.ended) {
        const semel_status status = end_question(sqs, &facts, &err);
        sqs->behind = status == SEMEL_OK ? semel__time_add(facts.messages, facts.in_flight) : -1; /* unknown: below 0 */
        sqs->ask_us = now(sqs) + (status == SEMEL_INVALID ? 20 * ASK_US : ASK_US);
    }
    if (!sqs->asks || sqs->question.active || now(sqs) < sqs->ask_us)
        return;
    sqs->ask_us = now(sqs) + ASK_US;
    (void)begin_question(sqs, &err);
}

int64_t semel__sqs_behind(struct semel_broker *broker)
{
    self(broker)->asks = true;
    return self(broker)->behind;
}

/* Starts requests that are due, reads answers. Asks for at most `room` messages. */
static void work(struct sqs *sqs, size_t room)
{
    semel__sqs_calls_run(sqs->multi);
    for (size_t i = 0; i < SQS_CALLS; i++)
        if (sqs->calls[i].ended) {
            if (i < SQS_RECEIVES)
                end_receive(sqs, &sqs->calls[i]);
            else
                end_chore(sqs, &sqs->calls[i]);
            forget_texts(&sqs->calls[i]);
        }
    begin_chores(sqs);
    begin_receives(sqs, room);
    ask_queue(sqs);
    semel__sqs_calls_run(sqs->multi); /* sends what was started, whoever calls next */
}

/* Until when no request needs to be started. */
static int64_t next_work(struct sqs *sqs)
{
    int64_t next_us = INT64_MAX;
    bool idle = false;

    for (size_t i = 0; i < SQS_CALLS; i++) {
        if (sqs->calls[i].ended)
            return 0;
        idle |= i >= SQS_RECEIVES && !sqs->calls[i].active;
    }
    if (idle)
        next_us = semel__sqs_held_next(&sqs->held);
    if (sqs->receive_us > now(sqs) && sqs->receive_us < next_us)
        next_us = sqs->receive_us;
    return next_us;
}

static bool is_receiving(const struct sqs *sqs)
{
    for (size_t i = 0; i < SQS_RECEIVES; i++)
        if (sqs->calls[i].active || sqs->calls[i].ended)
            return true;
    return false;
}

void semel__sqs_view(struct semel_broker *broker, struct semel_sqs_view *ret)
{
    const struct sqs_held *held = &self(broker)->held;

    *ret = (struct semel_sqs_view){.in_flight = held_count(held, SQS_OUT), .waiting = held_count(held, SQS_WAITING)};
    ret->answers = held->n - ret->in_flight - ret->waiting;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

static void forget_batches(struct sqs *sqs)
{
    while (sqs->first != NULL) {
        struct sqs_batch *batch = sqs->first;
        sqs->first = batch->next;
        semel__sqs_batch_free(batch);
    }
    sqs->last = NULL;
    sqs->n_waiting = 0;
}

static void release(struct sqs *sqs)
{
    forget_batches(sqs);
    for (size_t i = 0; i < SQS_CALLS; i++)
        semel__sqs_call_done(&sqs->calls[i], sqs->multi);
    for (size_t i = 0; i < SQS_SENDS; i++)
        semel__sqs_call_done(&sqs->senders[i], sqs->multi);
    semel__sqs_call_done(&sqs->question, sqs->multi);
    semel__curl_close(sqs->multi);
    semel__sqs_held_done(&sqs->held);
    conf_done(&sqs->conf);
}

static semel_status finish_open(struct sqs *sqs, semel_status status, struct semel_error *err)
{
    if (status == SEMEL_OK) {
        const size_t slots = sqs->conf.in_flight_max + (size_t)SQS_RECEIVES * SQS_BATCH;
        sqs->multi = semel__curl_open(0);
        sqs->wide = 1;
        sqs->behind = -1;
        if (sqs->multi == NULL || !semel__sqs_held_init(&sqs->held, slots, sqs->conf.visibility_s, sqs->conf.fifo))
            status = semel__fail_memory(err);
    }
    if (status == SEMEL_OK)
        sqs->base.ops = sqs->conf.fifo ? &fifo_ops : &standard_ops;
    else
        release(sqs);
    return status;
}

semel_status semel__broker_sqs_open(struct semel_broker **ret, const struct semel_sqs_options *options,
                                    struct semel_error *err)
{
    struct sqs *sqs = semel__calloc(1, sizeof *sqs);
    semel_status status;

    if (sqs == NULL)
        return semel__fail_memory(err);
    status = finish_open(sqs, conf_read(&sqs->conf, options, err), err);
    if (status == SEMEL_OK)
        *ret = &sqs->base;
    else
        semel__free(sqs);
    return status;
}

static void wait_for_work(struct sqs *sqs, int64_t until_us)
{
    const int64_t next_us = next_work(sqs), now_us = now(sqs);
    int64_t left_us = (next_us < until_us ? next_us : until_us) - now_us;

    left_us = left_us < 1000 ? 1000 : left_us > LOOK_MS * 1000 ? LOOK_MS * 1000 : left_us;
    (void)curl_multi_poll(sqs->multi, NULL, 0, (int)((left_us + 999) / 1000), NULL);
}

/* Sends the remaining answers, as far as there is time. false: some could not be sent. */
static bool flush(struct sqs *sqs, int64_t until_us)
{
    struct semel_sqs_view view;

    sqs->chore_failures = 0;
    for (;;) {
        work(sqs, 0);
        semel__sqs_view(&sqs->base, &view);
        if (view.answers == 0)
            return true;
        if (now(sqs) >= until_us || sqs->chore_failures > 1)
            return false;
        wait_for_work(sqs, until_us);
    }
}

/* A running long poll gets messages that were given back at once. It has a moment to return them, so that they are
 * given back as well; if we aborted it, others would wait for the whole visibility time. */
static void sqs_close(struct semel_broker *broker)
{
    struct sqs *sqs = self(broker);
    const int64_t until_us = semel__time_add(now(sqs), CLOSE_MS * 1000);
    int64_t grace_us;

    held_back_all(&sqs->held, now(sqs));
    if (sqs->held.n > 0 && flush(sqs, until_us)) {
        grace_us = semel__time_add(now(sqs), GRACE_MS * 1000);
        while (is_receiving(sqs) && sqs->held.n == 0 && now(sqs) < grace_us) {
            wait_for_work(sqs, grace_us);
            work(sqs, 0);
        }
        held_back_all(&sqs->held, now(sqs));
        (void)flush(sqs, until_us);
    }
    release(sqs);
}

/* A long poll continues: its messages were not delivered yet. */
static semel_status sqs_reopen(struct semel_broker *broker, struct semel_error *err)
{
    struct sqs *sqs = self(broker);

    (void)err;
    forget_batches(sqs);
    held_back_all(&sqs->held, now(sqs));
    (void)flush(sqs, semel__time_add(now(sqs), CLOSE_MS * 1000));
    semel__sqs_held_settle(&sqs->held);
    sqs->failing = sqs->fresh = sqs->small = false;
    sqs->failures = 0;
    sqs->receive_us = 0;
    return SEMEL_OK;
}

/* ---- a delivery ---------------------------------------------------------------------------------------- */

/* FNV-1a */
static uint64_t hash(struct semel_str s)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.p[i]) * UINT64_C(0x100000001b3);
    return h;
}

static bool copy_properties(const struct sqs_message *m, struct semel_arena *arena, struct semel_delivery *d)
{
    const struct semel_pair all[PROPERTIES] = {{SEMEL_STR("message_id"), m->id},
                                               {SEMEL_STR("sent_timestamp"), m->sent},
                                               {SEMEL_STR("group"), m->group},
                                               {SEMEL_STR("deduplication_id"), m->deduplication},
                                               {SEMEL_STR("sequence_number"), m->sequence}};
    struct semel_pair *pairs = semel__arena_alloc(arena, PROPERTIES, sizeof *pairs);

    for (size_t i = 0; pairs != NULL && i < PROPERTIES; i++) {
        if (!semel__str_given(all[i].value))
            continue;
        pairs[d->n_properties].name = all[i].name;
        if (!semel__arena_copy(arena, all[i].value, &pairs[d->n_properties++].value))
            return false;
    }
    d->properties = pairs;
    return pairs != NULL;
}

static bool copy_message(const struct sqs *sqs, const struct sqs_message *m, struct semel_arena *arena,
                         struct semel_delivery *d)
{
    *d = (struct semel_delivery){.tag = m->tag, .delivery = m->delivery, .n_headers = m->n_headers};
    d->lane = sqs->conf.fifo && semel__str_given(m->group) ? hash(m->group) : m->tag;
    return semel__arena_copy(arena, semel__str(sqs->conf.queue), &d->source) &&
           semel__arena_copy(arena, m->body, &d->payload) &&
           semel__broker_copy_pairs(arena, m->headers, m->n_headers, &d->headers) && copy_properties(m, arena, d);
}

/* ---- poll ---------------------------------------------------------------------------------------------- */

/* The next waiting message, if its slot was not fenced or given back meanwhile. */
static struct sqs_message *next_message(struct sqs *sqs, struct sqs_slot **ret_slot)
{
    while (sqs->first != NULL) {
        struct sqs_batch *batch = sqs->first;
        for (; batch->at < batch->n; batch->at++, sqs->n_waiting--) {
            struct sqs_slot *slot = semel__sqs_held_find(&sqs->held, batch->messages[batch->at].tag);
            if (slot == NULL || slot->state != SQS_WAITING)
                continue;
            *ret_slot = slot;
            return &batch->messages[batch->at];
        }
        sqs->first = batch->next;
        sqs->last = sqs->first != NULL ? sqs->last : NULL;
        semel__sqs_batch_free(batch);
    }
    return NULL;
}

/* Not OK: there is no room even for one. */
static semel_status take(struct sqs *sqs, size_t max, struct semel_arena *arena, struct semel_delivery *deliveries,
                         size_t *ret_n, struct semel_error *err)
{
    const size_t used = arena->used;
    const struct sqs_message *message;
    struct sqs_slot *slot = NULL;

    while (*ret_n < max && arena->used - used < POLL_BYTES && (message = next_message(sqs, &slot)) != NULL) {
        if (!copy_message(sqs, message, arena, &deliveries[*ret_n]))
            return *ret_n == 0 ? semel__fail_memory(err) : SEMEL_OK;
        slot->state = SQS_OUT;
        sqs->first->at++;
        sqs->n_waiting--;
        ++*ret_n;
    }
    return SEMEL_OK;
}

static semel_status report(struct sqs *sqs, struct semel_error *err)
{
    sqs->fresh = false;
    if (err != NULL)
        *err = sqs->error;
    return sqs->error.status;
}

static semel_status sqs_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                             struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct sqs *sqs = self(broker);
    const int64_t until_us = semel__time_add(now(sqs), (int64_t)wait_ms * 1000);
    struct semel_delivery *deliveries;
    semel_status status;
    size_t n = 0;

    max = max < POLL_MAX ? max : POLL_MAX;
    deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    if (deliveries == NULL)
        return semel__fail_memory(err);
    for (;;) {
        bool over;
        work(sqs, max);
        status = take(sqs, max, arena, deliveries, &n, err);
        over = now(sqs) >= until_us;
        if (status == SEMEL_OK && n == 0 && (sqs->fresh || (over && sqs->failing)))
            status = report(sqs, err);
        if (status != SEMEL_OK || n > 0 || over)
            break;
        wait_for_work(sqs, until_us);
    }
    *ret_deliveries = deliveries;
    *ret_n = n;
    return status;
}

/* ---- answers ------------------------------------------------------------------------------------------- */

static semel_status sqs_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                               struct semel_error *err)
{
    struct sqs *sqs = self(broker);
    const int64_t now_us = now(sqs);
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++) {
        const struct sqs_slot *slot = semel__sqs_held_find(&sqs->held, replies[i].tag);
        if (semel__reply_acks(&replies[i]))
            n_fenced += !semel__sqs_held_ack(&sqs->held, replies[i].tag, now_us);
        else
            n_fenced += slot == NULL || slot->state != SQS_OUT;
    }
    for (size_t i = 0; i < n; i++) /* one may give back another */
        if (!semel__reply_acks(&replies[i]))
            (void)semel__sqs_held_back(&sqs->held, replies[i].tag,
                                       replies[i].delay_ms / 1000 + (replies[i].delay_ms % 1000 > 0), now_us);
    work(sqs, 0);
    return semel__broker_fenced("sqs", n_fenced, n, err);
}

/* What an item still needs; beside `items`. */
enum stage { TO_SEND, ON_THE_WAY, SENT };

#define NOBODY SIZE_MAX

struct ticket {
    enum stage stage;
    size_t before; /* the item before it in its group; NOBODY */
    bool alone;    /* SQS refused a request that had others in it, too */
};

/* One request and its items. */
struct flight {
    struct sqs_call *call;
    size_t batch[SQS_BATCH];
    size_t n_batch, bytes; /* n_batch 0: there is no request */
};

struct sending {
    struct sqs *sqs;
    struct semel_publish *items;
    struct ticket *tickets;
    size_t n, first; /* everything before `first` is SENT */
    struct flight flights[SQS_SENDS];
};

/* ---- publishing ---------------------------------------------------------------------------------------------- */

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

static bool headers_are_valid(const struct semel_publish *item)
{
    struct semel_pair pair, other;

    for (size_t i = 0; i < item->n_headers; i++) {
        if (!semel__publish_header(item, i, &pair))
            continue;
        if (!is_name(pair.name) || pair.value.n == 0 || !is_text(pair.value))
            return false;
        for (size_t j = 0; j < i; j++)
            if (semel__publish_header(item, j, &other) && semel__str_eq(other.name, pair.name))
                return false;
    }
    return semel__publish_header_count(item) <= ATTRIBUTES_MAX;
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

/* SQS accepts 128 characters of visible ASCII for a group and a deduplication id; other texts are replaced by their
 * digest. */
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
    struct semel_pair pair;
    char token[TOKEN];

    semel__buf_addf(buf, "%s{\"Id\":\"%zu\",\"MessageBody\":", at > 0 ? "," : "", at);
    semel__json_put_string(buf, item->payload);
    for (size_t i = 0; i <= item->n_headers; i++) {
        if (!semel__publish_header(item, i, &pair))
            continue;
        put_attribute(buf, pair.name, pair.value, before);
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

/* To the queue beside ours that the items are for. */
static void make_request(const struct sending *s, const struct flight *flight)
{
    const struct sqs_conf *conf = &s->sqs->conf;
    const struct semel_str queue = s->items[flight->batch[0]].destination;
    char url[SQS_URL_MAX + QUEUE_MAX + 1];

    snprintf(url, sizeof url, "%.*s%.*s", (int)(strlen(conf->url) - strlen(conf->queue)), conf->url, (int)queue.n,
             queue.p);
    begin_request(s->sqs, flight->call, semel__str(url));
    semel__buf_addz(&flight->call->request, ",\"Entries\":[");
    for (size_t i = 0; i < flight->n_batch; i++)
        put_item(&flight->call->request, &s->items[flight->batch[i]], i);
    semel__buf_addz(&flight->call->request, "]}");
}

/* ---- what an answer means ------------------------------------------------------------------------------ */

static void end_entry(struct semel_publish *item, const struct sqs_verdicts *verdicts, size_t at)
{
    char sum[33];

    switch (verdicts->at[at]) {
    case SQS_DONE:
        if (verdicts->md5[at][0] == '\0' || !semel__md5_hex(item->payload, sum) || strcmp(verdicts->md5[at], sum) == 0)
            item->status = SEMEL_OK;
        else
            semel__publish_end(item, SEMEL_UNKNOWN, false, "sqs: it arrived damaged");
        break;
    case SQS_AGAIN:
        semel__publish_end(item, SEMEL_RETRY, false, "sqs: it could not be taken at the moment");
        break;
    case SQS_GONE:
    case SQS_REFUSED:
        semel__publish_end(item, SEMEL_INVALID, false, "sqs: %s",
                           verdicts->code[0] != '\0' ? verdicts->code : "it was refused");
        break;
    case SQS_UNSAID:
    default:
        semel__publish_end(item, SEMEL_UNKNOWN, false, "sqs: the answer does not speak of it");
    }
}

/* May an item be the reason why the request was refused? All other reasons are those of the queue, or ours. */
static bool is_about_items(const struct sqs_call *call, long http)
{
    static const char *const codes[] = {"BatchRequestTooLong", "InvalidMessageContents", "InvalidParameterValue",
                                        "InvalidAttributeValue"};
    char code[64], said[8];

    semel__sqs_read_error(semel__buf_str(&call->answer), code, sizeof code, said, sizeof said);
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (strcmp(code, codes[i]) == 0)
            return true;
    return http == 413;
}

/* The request failed as a whole: they all have its status, unless each must go alone to be blamed (P110). */
static void end_together(struct sending *s, const struct flight *flight, semel_status whole,
                         const struct semel_error *why)
{
    for (size_t i = 0; i < flight->n_batch; i++) {
        struct ticket *ticket = &s->tickets[flight->batch[i]];
        struct semel_publish *item = &s->items[flight->batch[i]];
        if (whole != SEMEL_INVALID || flight->n_batch == 1) {
            semel__publish_end(item, whole, whole != SEMEL_INVALID, "%s", why->text);
            continue;
        }
        ticket->alone = true;
        ticket->stage = TO_SEND;
        s->first = flight->batch[i] < s->first ? flight->batch[i] : s->first;
    }
}

static void end_flight(struct sending *s, struct flight *flight, semel_status whole, struct semel_error *why)
{
    struct sqs_call *call = flight->call;
    struct sqs_verdicts verdicts = {0};
    long http = 0;

    if (whole == SEMEL_OK) {
        whole = semel__sqs_call_status(call, &s->sqs->conf, why);
        (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &http);
        if (whole != SEMEL_OK && (call->code != CURLE_OK || http >= 500))
            whole = call->body.given > 0 ? SEMEL_UNKNOWN : SEMEL_RETRY;
        else if (whole != SEMEL_OK)
            whole = is_about_items(call, http) ? SEMEL_INVALID : SEMEL_RETRY;
    }
    for (size_t i = 0; i < flight->n_batch; i++)
        s->tickets[flight->batch[i]].stage = SENT;
    if (whole == SEMEL_OK) {
        (void)semel__sqs_read_verdicts(semel__buf_str(&call->answer), flight->n_batch, &verdicts, why);
        for (size_t i = 0; i < flight->n_batch; i++)
            end_entry(&s->items[flight->batch[i]], &verdicts, i);
    } else {
        end_together(s, flight, whole, why);
    }
    flight->n_batch = 0;
    forget_texts(call);
}

/* ---- requests side by side ----------------------------------------------------------------------------- */

/* Does the item before it in its group stand in the way? If that one is lost, so is this one: true and SENT. */
static bool is_held_up(struct sending *s, size_t at)
{
    const size_t before = s->tickets[at].before;

    if (before == NOBODY)
        return false;
    if (s->tickets[before].stage != SENT)
        return true; /* it waits, or is on its way */
    if (s->items[before].status == SEMEL_OK || s->items[before].status == SEMEL_INVALID)
        return false;
    s->tickets[at].stage = SENT;
    semel__publish_end(&s->items[at], SEMEL_RETRY, s->items[before].down,
                       "sqs: an earlier one of its group was not taken");
    return true;
}

static void choose(struct sending *s, struct flight *flight)
{
    flight->n_batch = flight->bytes = 0;
    while (s->first < s->n && s->tickets[s->first].stage == SENT)
        s->first++;
    for (size_t i = s->first; i < s->n && flight->n_batch < SQS_BATCH; i++) {
        const struct ticket *ticket = &s->tickets[i];
        const size_t bytes = ticket->stage == TO_SEND ? bytes_of(&s->items[i]) : 0;
        if (ticket->stage != TO_SEND ||
            (flight->n_batch > 0 &&
             (ticket->alone || !semel__str_eq(s->items[i].destination, s->items[flight->batch[0]].destination) ||
              flight->bytes + bytes > BATCH_BYTES)) ||
            is_held_up(s, i))
            continue;
        flight->batch[flight->n_batch++] = i;
        flight->bytes += bytes;
        if (ticket->alone)
            break;
    }
    for (size_t i = 0; i < flight->n_batch; i++)
        s->tickets[flight->batch[i]].stage = ON_THE_WAY;
}

/* Begins as many requests as there may be; false: nothing is on its way. */
static bool begin_flights(struct sending *s, int64_t until_us, struct semel_error *why)
{
    bool busy = false;

    for (size_t i = 0; i < SQS_SENDS; i++) {
        struct flight *flight = &s->flights[i];
        const int64_t left_us = until_us - now(s->sqs);
        semel_status status;
        if (flight->n_batch == 0 && left_us > LEAST_US) {
            choose(s, flight);
            if (flight->n_batch > 0) {
                make_request(s, flight);
                status = semel__sqs_call_begin(flight->call, s->sqs->multi, &s->sqs->conf, "SendMessageBatch",
                                               left_us < SEND_MS * 1000 ? (int)((left_us + 999) / 1000) : SEND_MS, why);
                if (status != SEMEL_OK)
                    end_flight(s, flight, status, why);
            }
        }
        busy |= flight->n_batch > 0;
    }
    return busy;
}

/* Waits until a request has ended; each does so in time, by itself. */
static void wait_for_flights(struct sending *s, struct semel_error *why)
{
    for (bool ended = false; !ended;) {
        semel__sqs_calls_run(s->sqs->multi);
        for (size_t i = 0; i < SQS_SENDS; i++)
            if (s->flights[i].n_batch > 0 && s->flights[i].call->ended) {
                end_flight(s, &s->flights[i], SEMEL_OK, why);
                ended = true;
            }
        if (!ended)
            (void)curl_multi_poll(s->sqs->multi, NULL, 0, 100, NULL);
    }
}

static void find_groups(struct sending *s)
{
    for (size_t i = 0; i < s->n; i++) {
        s->tickets[i].before = NOBODY;
        for (size_t j = is_fifo(s->items[i].destination) ? i : 0; j > 0 && s->tickets[i].before == NOBODY; j--)
            if (same_group(&s->items[j - 1], &s->items[i]))
                s->tickets[i].before = j - 1;
    }
}

static semel_status sqs_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                struct semel_error *err)
{
    struct sqs *sqs = self(broker);
    const int64_t until_us = semel__time_add(now(sqs), (int64_t)timeout_ms * 1000);
    struct sending s = {.sqs = sqs, .items = items, .n = n, .tickets = semel__calloc(n, sizeof *s.tickets)};
    struct semel_error why = {0};

    if (s.tickets == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < SQS_SENDS; i++)
        s.flights[i].call = &sqs->senders[i];
    find_groups(&s);
    for (size_t i = 0; i < n; i++)
        if (!is_valid(&items[i])) {
            semel__publish_end(&items[i], SEMEL_INVALID, false, "sqs: its queue, text, id or headers are none for SQS");
            s.tickets[i].stage = SENT;
        }
    while (begin_flights(&s, until_us, &why))
        wait_for_flights(&s, &why);
    semel__free(s.tickets);
    return SEMEL_OK;
}

/* ---- questions ----------------------------------------------------------------------------------------- */

semel_status semel__sqs_ask(const struct semel_sqs_options *options, struct semel_sqs_facts *ret,
                            struct semel_error *err)
{
    struct semel_broker *broker = NULL;
    semel_status status = semel__broker_sqs_open(&broker, options, err);
    if (status != SEMEL_OK)
        return status;
    status = begin_question(self(broker), err);
    if (status == SEMEL_OK) {
        wait_for(&self(broker)->question, self(broker)->multi);
        status = end_question(self(broker), ret, err);
    }
    release(self(broker));
    semel__free(broker);
    return status;
}

#define OPS(more)                                                                                            \
    {                                                                                                        \
        .name = "sqs", .capabilities = SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | (more), .close = sqs_close, \
        .reopen = sqs_reopen, .poll = sqs_poll, .answer = sqs_answer, .publish = sqs_publish,                \
    }

static const struct semel_broker_ops standard_ops = OPS(0);
static const struct semel_broker_ops fifo_ops = OPS(SEMEL_BROKER_ORDERED);
