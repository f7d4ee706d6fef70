/* SPDX-License-Identifier: MIT
 *
 * kafka.c: Kafka as a source: joining and leaving the group, assigned and revoked partitions, their deliveries and
 * acknowledgements, commits, poll, answers, and going back. See kafka.h.
 *
 * librdkafka's threads fetch into one queue of ours, `messages`, to which every partition is forwarded. Group
 * membership, errors and answers come through the consumer's own queue. So a handle that is full can stay a member
 * without taking records, and the fetchers stop by themselves when `messages` is full.
 *
 * A partition starts at the hook's offset, else at the group's, else, when `first` allows it, at its beginning. The
 * driver asks for the group's offsets itself, because the library has one setting for "there is none" and "it is out
 * of range", and must never jump in the second case.
 *
 * A lane keeps the unanswered deliveries of one partition in a ring, in the order of their offsets. An acknowledged one
 * leaves when everything before it has left; `done` is behind the last that left. A tag is the place of the lane, its
 * serial and the delivery's sequence number, 14, 22 and 28 bits; the last two wrap around, which matters only to a tag
 * as old as four million assignments or 268 million deliveries.
 *
 * Invariants of lanes: slots are ascending in offset and in seq; the first slot, if any, is not acknowledged; done
 * never decreases, and every delivery below it was acknowledged; in_flight counts the slots that are not acknowledged.
 *
 * Invariants: callbacks run in the thread that owns the handle, inside poll, close or reopen. A lane exists for
 * exactly the partitions that are assigned. Only lane->done of an assigned lane is committed; one commit is on its
 * way at a time, except for the last one of a revoked partition, which the library sends before it leaves. A record
 * leaves `pending` when it is delivered, or stale. A lane that goes back is paused before it seeks: the other way
 * round the pause would overwrite the position. The first record after a seek is the sought one, or the driver seeks
 * again. Deliveries point into the arena. The library's threads touch `messages` only until it is destroyed; a reader
 * that cannot be destroyed without aborting the process is left behind, and every poll of this process serves it until
 * it has left its group.
 */
#define _GNU_SOURCE /* memrchr */
#include "broker/kafka_private.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#define POLL_MAX ((size_t)4096)
#define POLL_BYTES ((size_t)1 << 20) /* a batch of this size ends early */
#define LOOK_AGAIN_MS 100
#define LOOK_IDLY_MS 1000
#define WAKE_FROM 64 /* records in the queue, or bytes taken from it, after which a fetcher may sleep */
#define WAKE_BYTES ((size_t)64 << 10)
#define ASK_EVERY_US 1000000 /* while no server can be reached */
#define ASK_MS 100
#define ASK_MAX_MS 3200
#define COMMIT_MS 100
#define REBALANCE_MS 5000
#define SERVE_MAX 1000
#define SEEK_MS 5000
#define EXPECT_TRIES 3
#define CLOSE_MS 5000
#define SERVE_MS 20
#define SLACK_NS 2000000ul
#define LONG_SLACK_NS 50000000ul
#define NUMBER_MAX 20 /* -9223372036854775808 */
#define WARN_LEVEL 3  /* as syslog counts */
#define SEQ_BITS 28
#define SEQ_MASK ((UINT32_C(1) << SEQ_BITS) - 1)
#define SERIAL_BITS 22
#define SERIAL_MASK ((UINT32_C(1) << SERIAL_BITS) - 1)
#define SLOTS_FIRST 64

static_assert(KAFKA_IN_FLIGHT_MAX < SEQ_MASK / 2, "a ring is shorter than half the round of its numbers");

static uint32_t new_serial(void)
{
    static _Atomic uint32_t last;
    uint32_t serial;

    do
        serial = (atomic_fetch_add(&last, 1) + 1) & SERIAL_MASK;
    while (serial == 0);
    return serial;
}

/* ---- lanes -------------------------------------------------------------------------------------------- */

static struct kafka_lane *free_place(struct kafka_lanes *lanes)
{
    for (size_t i = 0; i < lanes->n; i++)
        if (lanes->at[i].topic == NULL)
            return &lanes->at[i];
    if (lanes->n == lanes->cap) {
        const size_t cap = lanes->cap == 0 ? 16 : 2 * lanes->cap;
        struct kafka_lane *at = lanes->n < KAFKA_LANES_MAX ? semel__realloc(lanes->at, cap, sizeof *at) : NULL;
        if (at == NULL)
            return NULL;
        lanes->at = at;
        lanes->cap = cap;
    }
    lanes->at[lanes->n] = (struct kafka_lane){0};
    return &lanes->at[lanes->n++];
}

struct kafka_lane *semel__kafka_lane_add(struct kafka_lanes *lanes, const char *topic, int32_t partition)
{
    struct kafka_lane *lane = free_place(lanes);
    const size_t n = strlen(topic) + 1;
    char *copy = lane != NULL ? semel__alloc(n) : NULL;

    if (copy == NULL)
        return NULL;
    memcpy(copy, topic, n);
    *lane = (struct kafka_lane){.topic = copy,
                                .partition = partition,
                                .serial = new_serial(),
                                .expect = -1,
                                .highest = -1,
                                .done = -1,
                                .sent = -1,
                                .held_until_us = SEMEL_NONE};
    return lane;
}

static bool is_lane(const struct kafka_lane *lane, const char *topic, int32_t partition)
{
    return lane->topic != NULL && lane->partition == partition && strcmp(lane->topic, topic) == 0;
}

static struct kafka_lane *lane_find(struct kafka_lanes *lanes, const char *topic, int32_t partition)
{
    if (lanes->last < lanes->n && is_lane(&lanes->at[lanes->last], topic, partition))
        return &lanes->at[lanes->last];
    for (size_t i = 0; i < lanes->n; i++)
        if (is_lane(&lanes->at[i], topic, partition)) {
            lanes->last = i;
            return &lanes->at[i];
        }
    return NULL;
}

static struct kafka_slot *slot_at(const struct kafka_lane *lane, size_t i)
{
    assert(lane->cap > 0);
    return &lane->slots[(lane->first + i) % lane->cap];
}

/* Forgets the slots from the i-th on. */
static void cut(struct kafka_lanes *lanes, struct kafka_lane *lane, size_t i)
{
    while (lane->n > i)
        if (!slot_at(lane, --lane->n)->acked)
            lanes->in_flight--;
}

void semel__kafka_lane_drop(struct kafka_lanes *lanes, struct kafka_lane *lane)
{
    cut(lanes, lane, 0);
    semel__free(lane->slots);
    semel__free(lane->topic);
    *lane = (struct kafka_lane){0};
}

void semel__kafka_lanes_done(struct kafka_lanes *lanes)
{
    for (size_t i = 0; i < lanes->n; i++)
        if (lanes->at[i].topic != NULL)
            semel__kafka_lane_drop(lanes, &lanes->at[i]);
    assert(lanes->in_flight == 0);
    semel__free(lanes->at);
    *lanes = (struct kafka_lanes){0};
}

/* ---- deliveries --------------------------------------------------------------------------------------- */

enum kafka_offer semel__kafka_lane_offer(const struct kafka_lane *lane, int64_t offset)
{
    if (lane->held_until_us != SEMEL_NONE || offset < lane->next)
        return KAFKA_STALE;
    return lane->expect >= 0 && offset > lane->expect ? KAFKA_MISSING : KAFKA_TAKE;
}

static bool make_room(struct kafka_lane *lane)
{
    const size_t cap = lane->cap == 0 ? SLOTS_FIRST : 2 * lane->cap;
    struct kafka_slot *slots;

    if (lane->n < lane->cap)
        return true;
    if (cap > 2 * KAFKA_IN_FLIGHT_MAX)
        return false;
    slots = semel__calloc(cap, sizeof *slots);
    if (slots == NULL)
        return false;
    for (size_t i = 0; i < lane->n; i++)
        slots[i] = *slot_at(lane, i);
    semel__free(lane->slots);
    lane->slots = slots;
    lane->first = 0;
    lane->cap = cap;
    return true;
}

bool semel__kafka_lane_enter(struct kafka_lanes *lanes, struct kafka_lane *lane, int64_t offset, uint64_t *ret_tag)
{
    const uint64_t place = (uint64_t)(lane - lanes->at);

    assert(offset >= lane->next);
    if (!make_room(lane))
        return false;
    *slot_at(lane, lane->n++) = (struct kafka_slot){.offset = offset, .seq = lane->next_seq};
    *ret_tag = place << (SERIAL_BITS + SEQ_BITS) | (uint64_t)lane->serial << SEQ_BITS | lane->next_seq;
    lane->next_seq = (lane->next_seq + 1) & SEQ_MASK;
    lane->next = offset + 1;
    lane->expect = -1;
    lane->expect_tries = 0;
    lanes->in_flight++;
    return true;
}

/* The slot of a tag that is still unanswered, and its place in the ring; NULL: fenced. */
static struct kafka_slot *find_slot(struct kafka_lanes *lanes, uint64_t tag, struct kafka_lane **ret_lane,
                                    size_t *ret_i)
{
    const uint64_t place = tag >> (SERIAL_BITS + SEQ_BITS);
    const uint32_t serial = (uint32_t)(tag >> SEQ_BITS) & SERIAL_MASK, seq = (uint32_t)tag & SEQ_MASK;
    struct kafka_lane *lane = place < lanes->n ? &lanes->at[place] : NULL;
    size_t low = 0, high = lane != NULL && lane->topic != NULL && lane->serial == serial ? lane->n : 0;
    const uint32_t base = high > 0 ? slot_at(lane, 0)->seq : 0;

    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        struct kafka_slot *slot = slot_at(lane, mid);
        if (slot->seq == seq) {
            *ret_lane = lane;
            *ret_i = mid;
            return slot->acked ? NULL : slot;
        }
        if (((slot->seq - base) & SEQ_MASK) < ((seq - base) & SEQ_MASK))
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

bool semel__kafka_lane_ack(struct kafka_lanes *lanes, uint64_t tag)
{
    struct kafka_lane *lane;
    size_t i;
    struct kafka_slot *slot = find_slot(lanes, tag, &lane, &i);

    if (slot == NULL)
        return false;
    slot->acked = true;
    lanes->in_flight--;
    while (lane->n > 0 && slot_at(lane, 0)->acked) {
        lane->done = slot_at(lane, 0)->offset + 1;
        lane->first = (lane->first + 1) % lane->cap;
        lane->n--;
    }
    return true;
}

bool semel__kafka_lane_back(struct kafka_lanes *lanes, uint64_t tag, int delay_ms)
{
    struct kafka_lane *lane;
    size_t i;

    if (find_slot(lanes, tag, &lane, &i) == NULL)
        return false;
    lane->back_to = lane->back && lane->back_to < i ? lane->back_to : i;
    lane->back_ms = lane->back && lane->back_ms > delay_ms ? lane->back_ms : delay_ms;
    lane->back = true;
    return true;
}

int64_t semel__kafka_lane_rewind(struct kafka_lanes *lanes, struct kafka_lane *lane)
{
    assert(lane->back && lane->back_to < lane->n);
    lane->next = slot_at(lane, lane->back_to)->offset;
    lane->expect = lane->next;
    lane->expect_tries = 0;
    lane->back = false;
    cut(lanes, lane, lane->back_to);
    return lane->next;
}

/* ---- the handle ----------------------------------------------------------------------------------------- */

static const struct semel_broker_ops kafka_ops;

static struct kafka *self(struct semel_broker *broker)
{
    return (struct kafka *)broker;
}

/* The library reports it, but not while it waits for a rebalance to be served; so we check the time ourselves. */
static bool is_lost(const struct kafka *kafka)
{
    return kafka->lost || rd_kafka_assignment_lost(kafka->rk) != 0 ||
           (kafka->polled_us != SEMEL_NONE && semel__steady_us() - kafka->polled_us > kafka->patience_us);
}

static void die(struct kafka *kafka, const struct semel_error *why)
{
    if (kafka->dead)
        return;
    kafka->dead = true;
    kafka->error = *why;
    kafka->error.status = SEMEL_CLOSED;
}

__attribute__((format(printf, 4, 5))) static void die_because(struct kafka *kafka, int code, enum semel_class cls,
                                                              const char *fmt, ...)
{
    struct semel_error why = {0};
    char text[sizeof why.text];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    semel__fail(&why, SEMEL_CLOSED, cls, "kafka: %s", text);
    why.code = code;
    die(kafka, &why);
}

/* The next poll reports the first of several; but an error that somebody must fix comes before one that goes away by
 * itself. */
static void note_error(struct kafka *kafka, const struct semel_error *error)
{
    const bool worse = error->cls == SEMEL_CLASS_BROKEN && kafka->error.cls != SEMEL_CLASS_BROKEN;

    if (kafka->dead || (kafka->noted && !worse))
        return;
    kafka->noted = true;
    kafka->error = *error;
}

static void note(struct kafka *kafka, int code, enum semel_class cls, const char *text)
{
    struct semel_error error = {0};

    semel__fail(&error, SEMEL_RETRY, cls, "kafka: %s", text);
    error.code = code;
    note_error(kafka, &error);
}

/* ---- errors -------------------------------------------------------------------------------------------- */

/* The cause: the environment, which recovers, or wrong settings, here or on the server. */
static enum semel_class class_of(rd_kafka_resp_err_t code)
{
    switch ((int)code) {
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
    case RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM:
    case RD_KAFKA_RESP_ERR_INCONSISTENT_GROUP_PROTOCOL:
    case RD_KAFKA_RESP_ERR_INVALID_SESSION_TIMEOUT:
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR__SSL:
        return SEMEL_CLASS_BROKEN;
    default:
        return SEMEL_CLASS_ENVIRONMENT;
    }
}

void semel__kafka_error(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
    struct kafka *kafka = ((const struct kafka_callback_context *)opaque)->kafka;

    (void)rk;
    if (kafka == NULL)
        return;
    if (code == RD_KAFKA_RESP_ERR__FATAL) {
        die_because(kafka, code, SEMEL_CLASS_BROKEN, "fatal client error: %s", reason);
        return;
    }
    kafka->away |= code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN;
    if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
        semel__kafka_explain(kafka, code, class_of(code), reason);
    if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && kafka->why.cls != SEMEL_CLASS_BROKEN)
        return; /* one broker of several being down is not worth a report */
    if (kafka->why.status != SEMEL_OK)
        note_error(kafka, &kafka->why);
    else
        note(kafka, code, class_of(code), reason);
}

static void is_there(struct kafka *kafka)
{
    kafka->away = false;
    kafka->ask_ms = 0;
    kafka->why = (struct semel_error){0};
}

/* A server that is far away or busy needs longer to answer; so each question waits longer than the last. */
static semel_status away(struct kafka *kafka, struct semel_error *err)
{
    const struct rd_kafka_metadata *found;
    const int64_t now_us = semel__steady_us();

    if (!kafka->away)
        return SEMEL_OK;
    if (now_us >= kafka->ask_us) {
        kafka->ask_us = now_us + ASK_EVERY_US;
        kafka->ask_ms = kafka->ask_ms < ASK_MS ? ASK_MS : kafka->ask_ms < ASK_MAX_MS ? 2 * kafka->ask_ms : ASK_MAX_MS;
        if (rd_kafka_metadata(kafka->rk, 0, NULL, &found, kafka->ask_ms) == RD_KAFKA_RESP_ERR_NO_ERROR) {
            rd_kafka_metadata_destroy(found);
            is_there(kafka);
            return SEMEL_OK;
        }
    }
    if (kafka->why.status != SEMEL_OK) {
        if (err != NULL)
            *err = kafka->why;
        return SEMEL_RETRY;
    }
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "kafka: no server can be reached");
}

static void stop(struct kafka *kafka, struct kafka_lane *lane, const char *why)
{
    char text[sizeof kafka->error.text];

    /* There may be no offset yet, and then it must start at the beginning; or the beginning could not be asked for. */
    if (lane->unsure || (lane->from_beginning && lane->next == 0)) {
        die_because(kafka, RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET, SEMEL_CLASS_ENVIRONMENT,
                    "%s/%d: cannot read the start offset", lane->topic, (int)lane->partition);
        return;
    }
    lane->stopped = true;
    snprintf(text, sizeof text, "partition %s/%d stopped: %s", lane->topic, (int)lane->partition, why);
    note(kafka, RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET, SEMEL_CLASS_BROKEN, text);
}

static void note_message(struct kafka *kafka, const rd_kafka_message_t *message)
{
    const char *text = rd_kafka_message_errstr(message);
    struct kafka_lane *lane = NULL;

    kafka->lost |= message->err == RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED;
    if (message->rkt != NULL)
        lane = lane_find(&kafka->lanes, rd_kafka_topic_name(message->rkt), message->partition);
    if (message->err == RD_KAFKA_RESP_ERR__FATAL)
        die_because(kafka, message->err, SEMEL_CLASS_BROKEN, "fatal client error: %s", text);
    else if (message->err == RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED)
        die_because(kafka, message->err, SEMEL_CLASS_ENVIRONMENT, "%s", text);
    else if (message->err != RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET)
        note(kafka, message->err, class_of(message->err), text);
    else if (lane != NULL)
        stop(kafka, lane, text);
}

/* ---- commits ------------------------------------------------------------------------------------------- */

/* Reading continues, and uncommitted records come again after a restart. A group that is rebalancing refuses commits as
 * well; that is not worth a report. */
static void report_commit(struct kafka *kafka, rd_kafka_resp_err_t code)
{
    char text[160];
    const bool news = code != kafka->refused;

    kafka->refused = code;
    if (!news || kafka->hooks.log == NULL || code == RD_KAFKA_RESP_ERR_NO_ERROR ||
        code == RD_KAFKA_RESP_ERR__NO_OFFSET || code == RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS ||
        code == RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION || code == RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID ||
        code == RD_KAFKA_RESP_ERR__ASSIGNMENT_LOST)
        return;
    snprintf(text, sizeof text, "the group's offsets cannot be committed: %s", rd_kafka_err2str(code));
    kafka->hooks.log(kafka->hooks.log_ctx, WARN_LEVEL, "COMMIT", text);
}

static void committed(rd_kafka_t *rk, rd_kafka_resp_err_t code, rd_kafka_topic_partition_list_t *list, void *opaque)
{
    struct kafka *kafka = opaque;
    rd_kafka_resp_err_t refused = code;

    (void)rk;
    kafka->committing = false;
    for (int i = 0; list != NULL && i < list->cnt && refused == RD_KAFKA_RESP_ERR_NO_ERROR; i++)
        refused = list->elems[i].err;
    report_commit(kafka, refused);
    for (int i = 0; list != NULL && i < list->cnt; i++) {
        const rd_kafka_topic_partition_t *at = &list->elems[i];
        struct kafka_lane *lane = lane_find(&kafka->lanes, at->topic, at->partition);
        if (lane != NULL && (code != RD_KAFKA_RESP_ERR_NO_ERROR || at->err != RD_KAFKA_RESP_ERR_NO_ERROR))
            lane->sent = -1; /* try again, if it is still ours then */
    }
}

static void send_commit(struct kafka *kafka, const rd_kafka_topic_partition_list_t *list)
{
    kafka->committing = rd_kafka_commit_queue(kafka->rk, list, kafka->commits, committed, kafka) ==
                        RD_KAFKA_RESP_ERR_NO_ERROR;
    kafka->next_commit_us = semel__steady_us() + COMMIT_MS * 1000;
}

static bool add_commit(rd_kafka_topic_partition_list_t *list, struct kafka_lane *lane)
{
    if (lane->topic == NULL || lane->done < 0 || lane->done <= lane->sent)
        return false;
    rd_kafka_topic_partition_list_add(list, lane->topic, lane->partition)->offset = lane->done;
    lane->sent = lane->done;
    return true;
}

static bool wants_commit(const struct kafka *kafka)
{
    for (size_t i = 0; i < kafka->lanes.n; i++)
        if (kafka->lanes.at[i].topic != NULL && kafka->lanes.at[i].done > kafka->lanes.at[i].sent)
            return true;
    return false;
}

static bool is_idle(const struct kafka *kafka)
{
    for (size_t i = 0; i < kafka->lanes.n; i++)
        if (kafka->lanes.at[i].topic != NULL && kafka->lanes.at[i].held_until_us != SEMEL_NONE)
            return false;
    return kafka->joined && kafka->lanes.in_flight == 0 && !kafka->committing && !wants_commit(kafka);
}

static void commit_offsets(struct kafka *kafka, bool now)
{
    rd_kafka_topic_partition_list_t *list;

    if (kafka->committing || (!now && semel__steady_us() < kafka->next_commit_us) || !wants_commit(kafka))
        return;
    list = rd_kafka_topic_partition_list_new((int)kafka->lanes.n);
    for (size_t i = 0; i < kafka->lanes.n; i++)
        add_commit(list, &kafka->lanes.at[i]);
    send_commit(kafka, list);
    rd_kafka_topic_partition_list_destroy(list);
}

static void flush_commits(struct kafka *kafka, int wait_ms)
{
    const int64_t from_us = semel__steady_us();
    bool again = false;

    while (!is_lost(kafka)) {
        const int left_ms = kafka_left_ms(from_us, wait_ms);
        if (!kafka->committing) {
            commit_offsets(kafka, !again); /* do not repeat a refused commit at once */
            again = true;
        }
        if ((!kafka->committing && !wants_commit(kafka)) || left_ms == 0)
            return;
        rd_kafka_queue_poll_callback(kafka->commits, left_ms < 50 ? left_ms : 50);
    }
}

/* ---- going back ---------------------------------------------------------------------------------------- */

static void forget_pending(struct kafka *kafka, const struct kafka_lane *lane)
{
    size_t kept = 0;

    for (size_t i = kafka->at_pending; i < kafka->n_pending; i++) {
        rd_kafka_message_t *message = kafka->pending[i];
        if (lane == NULL || (message->rkt != NULL && message->partition == lane->partition &&
                             strcmp(rd_kafka_topic_name(message->rkt), lane->topic) == 0))
            rd_kafka_message_destroy(message);
        else
            kafka->pending[kept++] = message;
    }
    kafka->at_pending = 0;
    kafka->n_pending = kept;
}

/* The only call that wakes the fetchers without a change is to set the credentials to their present values. */
static void wake_fetchers(struct kafka *kafka)
{
    char user[512] = "", password[512] = "";
    size_t n_user = sizeof user, n_password = sizeof password;
    rd_kafka_error_t *error;

    /* Not set: they stay empty, and nothing uses them. */
    (void)rd_kafka_conf_get(kafka->reader, "sasl.username", user, &n_user);
    (void)rd_kafka_conf_get(kafka->reader, "sasl.password", password, &n_password);
    error = n_user <= sizeof user && n_password <= sizeof password
                ? rd_kafka_sasl_set_credentials(kafka->rk, user, password)
                : NULL;
    explicit_bzero(password, sizeof password);
    if (error != NULL)
        rd_kafka_error_destroy(error);
}

static rd_kafka_resp_err_t try_to_seek(rd_kafka_t *rk, rd_kafka_topic_partition_list_t *list)
{
    rd_kafka_error_t *error = rd_kafka_seek_partitions(rk, list, SEEK_MS);
    rd_kafka_resp_err_t code = error != NULL ? rd_kafka_error_code(error) : RD_KAFKA_RESP_ERR_NO_ERROR;

    for (int i = 0; code == RD_KAFKA_RESP_ERR_NO_ERROR && i < list->cnt; i++)
        code = list->elems[i].err;
    if (error != NULL)
        rd_kafka_error_destroy(error);
    return code;
}

/* Before 2.1 the library waits for a thousandth of the given time, which a busy machine exceeds. Seeking the same place
 * twice is harmless. */
static semel_status seek(struct kafka *kafka, rd_kafka_topic_partition_list_t *list, struct semel_error *err)
{
    const int64_t from_us = semel__steady_us();
    rd_kafka_resp_err_t code;

    do
        code = try_to_seek(kafka->rk, list);
    while (code == RD_KAFKA_RESP_ERR__TIMED_OUT && kafka_left_ms(from_us, SEEK_MS) > 0);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return SEMEL_OK;
    die_because(kafka, code, SEMEL_CLASS_ENVIRONMENT, "going back failed: %s", rd_kafka_err2str(code));
    if (err != NULL)
        *err = kafka->error;
    return SEMEL_CLOSED;
}

static void hold(struct kafka_lane *lane, int delay_ms)
{
    const int64_t until_us = semel__steady_us() + (int64_t)delay_ms * 1000;

    if (lane->held_until_us < until_us) /* SEMEL_NONE is below all times */
        lane->held_until_us = until_us;
}

/* Goes back in every marked lane. Not OK: the handle is dead. */
static semel_status go_back(struct kafka *kafka, struct semel_error *err)
{
    rd_kafka_topic_partition_list_t *list = NULL, *held = NULL;
    semel_status status;

    for (size_t i = 0; i < kafka->lanes.n; i++) {
        struct kafka_lane *lane = &kafka->lanes.at[i];
        if (lane->topic == NULL || !lane->back)
            continue;
        list = list != NULL ? list : rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(list, lane->topic, lane->partition)->offset =
            semel__kafka_lane_rewind(&kafka->lanes, lane);
        forget_pending(kafka, lane);
        lane->stopped = false; /* the records are read again; if they are gone, that is reported again */
        if (lane->back_ms == 0)
            continue;
        hold(lane, lane->back_ms);
        held = held != NULL ? held : rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(held, lane->topic, lane->partition);
    }
    if (list == NULL)
        return SEMEL_OK;
    if (held != NULL)
        rd_kafka_pause_partitions(kafka->rk, held);
    status = seek(kafka, list, err);
    if (status == SEMEL_OK && (held == NULL || held->cnt < list->cnt))
        wake_fetchers(kafka);
    if (held != NULL)
        rd_kafka_topic_partition_list_destroy(held);
    rd_kafka_topic_partition_list_destroy(list);
    return status;
}

static void seek_again(struct kafka *kafka, struct kafka_lane *lane)
{
    rd_kafka_topic_partition_list_t *list;

    if (lane->expect_tries++ >= EXPECT_TRIES) { /* compacted or expired since: it will not come */
        lane->expect = -1;
        return;
    }
    list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, lane->topic, lane->partition)->offset = lane->expect;
    forget_pending(kafka, lane);
    seek(kafka, list, NULL);
    rd_kafka_topic_partition_list_destroy(list);
}

static void end_pauses(struct kafka *kafka)
{
    const int64_t now_us = semel__steady_us();
    rd_kafka_topic_partition_list_t *list = NULL;

    for (size_t i = 0; i < kafka->lanes.n; i++) {
        struct kafka_lane *lane = &kafka->lanes.at[i];
        if (lane->topic == NULL || lane->held_until_us == SEMEL_NONE || now_us < lane->held_until_us)
            continue;
        lane->held_until_us = SEMEL_NONE;
        list = list != NULL ? list : rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(list, lane->topic, lane->partition);
    }
    if (list == NULL)
        return;
    rd_kafka_resume_partitions(kafka->rk, list);
    wake_fetchers(kafka); /* the fetchers may sleep, because there was nothing to fetch for */
    rd_kafka_topic_partition_list_destroy(list);
}

/* ---- assigned partitions ------------------------------------------------------------------------------- */

/* Forwards to our own queue instead of the consumer's, before fetching starts. */
static bool forward(struct kafka *kafka, const char *topic, int32_t partition)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_get_partition(kafka->rk, topic, partition);

    if (queue == NULL)
        return false;
    rd_kafka_queue_forward(queue, kafka->messages);
    rd_kafka_queue_destroy(queue);
    return true;
}

static semel_status ask_hook(struct kafka *kafka, rd_kafka_topic_partition_list_t *list)
{
    struct semel_error why = {.cls = SEMEL_CLASS_ENVIRONMENT};
    struct semel_source_start *starts;
    semel_status status;

    if (kafka->hooks.assigned == NULL || list->cnt == 0)
        return SEMEL_OK;
    starts = semel__calloc((size_t)list->cnt, sizeof *starts);
    for (int i = 0; starts != NULL && i < list->cnt; i++) {
        const rd_kafka_topic_partition_t *at = &list->elems[i];
        starts[i] = (struct semel_source_start){semel__str(at->topic), at->partition,
                                                at->offset >= 0 ? at->offset : SEMEL_NONE};
    }
    status = starts == NULL ? semel__fail_memory(&why)
                            : kafka->hooks.assigned(kafka->hooks.ctx, starts, (size_t)list->cnt, &why);
    for (int i = 0; status == SEMEL_OK && i < list->cnt; i++)
        list->elems[i].offset = starts[i].offset >= 0 ? starts[i].offset : RD_KAFKA_OFFSET_INVALID;
    semel__free(starts);
    if (status != SEMEL_OK)
        die(kafka, &why);
    return status;
}

/* Fills in where to start; may kill the handle. */
static void find_starts(struct kafka *kafka, rd_kafka_topic_partition_list_t *list)
{
    bool unsure = rd_kafka_committed(kafka->rk, list, REBALANCE_MS) != RD_KAFKA_RESP_ERR_NO_ERROR;

    for (int i = 0; i < list->cnt; i++)
        unsure |= list->elems[i].err != RD_KAFKA_RESP_ERR_NO_ERROR;
    if (unsure && kafka->hooks.assigned != NULL)
        die_because(kafka, 0, SEMEL_CLASS_ENVIRONMENT, "cannot read the group's committed offsets");
    else if (ask_hook(kafka, list) != SEMEL_OK)
        return;
    for (int i = 0; i < list->cnt; i++) {
        rd_kafka_topic_partition_t *at = &list->elems[i];
        struct kafka_lane *lane = lane_find(&kafka->lanes, at->topic, at->partition);
        at->err = RD_KAFKA_RESP_ERR_NO_ERROR;
        if (unsure)
            at->offset = RD_KAFKA_OFFSET_STORED; /* the library continues to ask */
        else if (at->offset < 0)
            at->offset = kafka->first == SEMEL_KAFKA_FIRST_EARLIEST ? RD_KAFKA_OFFSET_BEGINNING
                                                                    : RD_KAFKA_OFFSET_INVALID; /* that is an error */
        if (lane != NULL)
            lane->unsure = unsure;
        if (lane != NULL)
            lane->from_beginning = at->offset == RD_KAFKA_OFFSET_BEGINNING;
        if (lane != NULL && at->offset > 0)
            lane->next = at->offset;
    }
}

/* The topic's index in the subscription, which does not change, and the partition. */
static uint64_t lane_number(const struct kafka *kafka, const char *topic, int32_t partition)
{
    int at = 0;

    while (at < kafka->topics->cnt && strcmp(kafka->topics->elems[at].topic, topic) != 0)
        at++;
    return (uint64_t)at << 32 | (uint32_t)partition;
}

static bool add_lanes(struct kafka *kafka, const rd_kafka_topic_partition_list_t *list)
{
    for (int i = 0; i < list->cnt; i++) {
        const char *topic = list->elems[i].topic;
        const int32_t partition = list->elems[i].partition;
        struct kafka_lane *lane;
        if (lane_find(&kafka->lanes, topic, partition) != NULL)
            continue;
        lane = semel__kafka_lane_add(&kafka->lanes, topic, partition);
        if (lane == NULL || !forward(kafka, topic, partition))
            return false;
        lane->number = lane_number(kafka, topic, partition);
    }
    return true;
}

static bool cooperative(rd_kafka_t *rk)
{
    const char *protocol = rd_kafka_rebalance_protocol(rk);

    return protocol != NULL && strcmp(protocol, "COOPERATIVE") == 0;
}

/* The group waits for this, whatever state the handle is in. */
static rd_kafka_resp_err_t apply(rd_kafka_t *rk, const rd_kafka_topic_partition_list_t *list, bool ours)
{
    rd_kafka_resp_err_t code;
    rd_kafka_error_t *error;

    if (!cooperative(rk))
        return rd_kafka_assign(rk, ours ? list : NULL);
    error = ours ? rd_kafka_incremental_assign(rk, list) : rd_kafka_incremental_unassign(rk, list);
    code = error != NULL ? rd_kafka_error_code(error) : RD_KAFKA_RESP_ERR_NO_ERROR;
    if (error != NULL)
        rd_kafka_error_destroy(error);
    return code;
}

static void assign(struct kafka *kafka, rd_kafka_topic_partition_list_t *list)
{
    rd_kafka_resp_err_t code;

    if (!kafka->dead && !add_lanes(kafka, list))
        die_because(kafka, 0, SEMEL_CLASS_ENVIRONMENT, "no memory for %d partitions, or they are too many", list->cnt);
    if (!kafka->dead)
        find_starts(kafka, list);
    code = apply(kafka->rk, list, true);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        die_because(kafka, code, SEMEL_CLASS_ENVIRONMENT, "the assignment failed: %s", rd_kafka_err2str(code));
}

/* ---- revoked partitions -------------------------------------------------------------------------------- */

static void drop(struct kafka *kafka, struct kafka_lane *lane, bool lost)
{
    const struct semel_source_start start = {semel__str(lane->topic), lane->partition, SEMEL_NONE};

    forget_pending(kafka, lane);
    if (kafka->hooks.revoked != NULL)
        kafka->hooks.revoked(kafka->hooks.ctx, &start, 1, lost);
    semel__kafka_lane_drop(&kafka->lanes, lane);
}

static void abandon_lanes(struct kafka *kafka)
{
    for (size_t i = 0; i < kafka->lanes.n; i++)
        if (kafka->lanes.at[i].topic != NULL)
            drop(kafka, &kafka->lanes.at[i], true);
    semel__kafka_lanes_done(&kafka->lanes);
}

static void revoke(struct kafka *kafka, rd_kafka_topic_partition_list_t *list)
{
    const bool lost = is_lost(kafka);
    rd_kafka_topic_partition_list_t *last = rd_kafka_topic_partition_list_new(list->cnt);

    rd_kafka_queue_poll_callback(kafka->commits, 0);
    for (int i = 0; i < list->cnt; i++) {
        struct kafka_lane *lane = lane_find(&kafka->lanes, list->elems[i].topic, list->elems[i].partition);
        if (lane == NULL)
            continue;
        if (kafka->committing) /* the group may refuse that one, as it does during a rebalance */
            lane->sent = -1;
        if (!lost)
            add_commit(last, lane);
        drop(kafka, lane, lost);
    }
    if (last->cnt > 0)
        send_commit(kafka, last);
    rd_kafka_topic_partition_list_destroy(last);
    rd_kafka_resume_partitions(kafka->rk, list); /* the next owner, perhaps we, must not inherit the pause */
    (void)apply(kafka->rk, list, false);         /* fails only for partitions that are not assigned anyway */
}

static void rebalance(rd_kafka_t *rk, rd_kafka_resp_err_t code, rd_kafka_topic_partition_list_t *list, void *opaque)
{
    struct kafka *kafka = ((const struct kafka_callback_context *)opaque)->kafka;

    if (kafka == NULL) {
        (void)apply(rk, list, code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS);
    } else if (code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
        kafka->joined = true;
        assign(kafka, list);
    } else if (code == RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS) {
        revoke(kafka, list);
    } else {
        rd_kafka_assign(rk, NULL);
        note(kafka, code, class_of(code), rd_kafka_err2str(code));
    }
}

/* ---- the group ----------------------------------------------------------------------------------------- */

static void serve(struct kafka *kafka, int wait_ms)
{
    rd_kafka_message_t *message;

    if (is_lost(kafka) && !rd_kafka_assignment_lost(kafka->rk)) {
        kafka->lost = true;
        die_because(kafka, RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED, SEMEL_CLASS_ENVIRONMENT,
                    "no poll for longer than max.poll.interval.ms: this member has left the group");
    }
    kafka->polled_us = semel__steady_us();
    for (int i = 0; i < SERVE_MAX && !kafka->dead; i++, wait_ms = 0) {
        message = rd_kafka_consumer_poll(kafka->rk, wait_ms);
        if (message == NULL)
            break;
        /* A record here would belong to a partition that is not forwarded, which does not happen. If it did, the lane
         * would miss it, so it is treated as a failed assignment. */
        if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR)
            die_because(kafka, 0, SEMEL_CLASS_ENVIRONMENT, "a record came by the wrong queue");
        else
            note_message(kafka, message);
        rd_kafka_message_destroy(message);
    }
    rd_kafka_queue_poll_callback(kafka->commits, 0);
    if (kafka->dead)
        return;
    end_pauses(kafka);
    commit_offsets(kafka, false);
}

/* ---- lag ----------------------------------------------------------------------------------------------- */

static int64_t behind(struct kafka *kafka, const struct kafka_lane *lane)
{
    int64_t low = 0, high = 0;

    if (rd_kafka_get_watermark_offsets(kafka->rk, lane->topic, lane->partition, &low, &high) !=
            RD_KAFKA_RESP_ERR_NO_ERROR ||
        high < 0)
        return 0;
    low = lane->next > low ? lane->next : low;
    return (high > low ? high - low : 0) + (int64_t)lane->n;
}

void semel__kafka_view(struct semel_broker *broker, struct semel_kafka_view *ret)
{
    const struct kafka_lanes *lanes = &self(broker)->lanes;

    *ret = (struct semel_kafka_view){.in_flight = lanes->in_flight};
    for (size_t i = 0; i < lanes->n; i++) {
        const struct kafka_lane *lane = &lanes->at[i];
        if (lane->topic == NULL)
            continue;
        ret->assigned++;
        ret->stopped += lane->stopped;
        ret->delayed += lane->held_until_us != SEMEL_NONE;
        ret->behind += behind(self(broker), lane);
    }
}

/* ---- joining and leaving ------------------------------------------------------------------------------- */

/* The library's threads sleep for whole milliseconds and spin for the rest of the last one, three times per second.
 * With the timer slack that they inherit from us their sleep may end a little late, so there is no rest to spin for,
 * and those of many routes wake together. A version that polls every few milliseconds for room in a full queue must not
 * be late by much; input from the server or from us wakes them at once in any case. */
static rd_kafka_t *new_reader(const struct kafka *kafka, rd_kafka_conf_t *conf, char *text, size_t n)
{
#ifdef __linux__
    const int before = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    rd_kafka_t *rk;

    (void)prctl(PR_SET_TIMERSLACK, kafka->must_wake ? LONG_SLACK_NS : SLACK_NS, 0, 0, 0);
    rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, n);
    (void)prctl(PR_SET_TIMERSLACK, before > 0 ? (unsigned long)before : 0ul, 0, 0, 0);
    return rk;
#else
    (void)kafka;
    return rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, n);
#endif
}

/* Events of the group come through a queue of their own, which a thread that waits for a record does not see: this
 * wakes it. Called by the library's threads. */
static void group_has_news(rd_kafka_t *rk, void *messages)
{
    (void)rk;
    rd_kafka_queue_yield(messages);
}

static void listen_to_group(rd_kafka_t *rk, rd_kafka_queue_t *messages)
{
    rd_kafka_queue_t *group = rd_kafka_queue_get_consumer(rk);

    rd_kafka_queue_cb_event_enable(group, messages != NULL ? group_has_news : NULL, messages);
    rd_kafka_queue_destroy(group);
}

static semel_status join_group(struct kafka *kafka, struct semel_error *err)
{
    rd_kafka_conf_t *conf;
    rd_kafka_resp_err_t code;
    char text[sizeof err->text];

    if (kafka->context == NULL && /* the reader before took it along */
        (kafka->context = semel__calloc(1, sizeof *kafka->context)) == NULL)
        return semel__fail_memory(err);
    kafka->context->kafka = kafka;
    conf = rd_kafka_conf_dup(kafka->reader);
    rd_kafka_conf_set_opaque(conf, kafka->context);
    rd_kafka_conf_set_rebalance_cb(conf, rebalance);
    kafka->rk = new_reader(kafka, conf, text, sizeof text);
    if (kafka->rk == NULL) {
        rd_kafka_conf_destroy(conf);
        return semel__kafka_refused(text, err);
    }
    rd_kafka_poll_set_consumer(kafka->rk);
    if (kafka->hooks.log != NULL)
        rd_kafka_set_log_queue(kafka->rk, NULL); /* its log lines come through the consumer's queue */
    kafka->messages = rd_kafka_queue_new(kafka->rk);
    kafka->commits = rd_kafka_queue_new(kafka->rk);
    listen_to_group(kafka->rk, kafka->messages);
    kafka->polled_us = SEMEL_NONE;
    code = rd_kafka_subscribe(kafka->rk, kafka->topics);
    return code == RD_KAFKA_RESP_ERR_NO_ERROR ? SEMEL_OK : semel__kafka_refused(rd_kafka_err2str(code), err);
}

static bool is_member(rd_kafka_t *rk)
{
    char *id = rd_kafka_memberid(rk);
    const bool member = id != NULL && id[0] != '\0';

    if (id != NULL)
        rd_kafka_mem_free(rk, id);
    return member;
}

static void serve_while(struct kafka *kafka, bool (*wanted)(struct kafka *kafka), int64_t from_us)
{
    while (wanted(kafka) && kafka_left_ms(from_us, CLOSE_MS / 2) > 0) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(kafka->rk, SERVE_MS);
        if (message != NULL)
            rd_kafka_message_destroy(message);
    }
}

static bool is_joining(struct kafka *kafka)
{
    return !kafka->joined && is_member(kafka->rk);
}

static bool has_not_left(struct kafka *kafka)
{
    struct semel_kafka_view view;

    semel__kafka_view(&kafka->base, &view);
    return view.assigned > 0 || is_member(kafka->rk);
}

/* Leaves the group, if that can be done in time; if not, the group removes us after its time-out. Not by
 * consumer_close: once started we would have to wait for it, however long the server takes, or destroying hangs.
 *
 * Before 2.3 the library aborts the process when a consumer is destroyed that has joined its group and has no
 * assignment yet. So we wait for that. If it does not come, the consumer must be left behind: false. */
static bool leave(struct kafka *kafka)
{
    const int64_t from_us = semel__steady_us();
    bool may_destroy = rd_kafka_version() >= 0x020300ff;

    kafka->dead = true; /* later assignments start nothing */
    if (!may_destroy)
        serve_while(kafka, is_joining, from_us);
    may_destroy = may_destroy || !is_joining(kafka);
    rd_kafka_unsubscribe(kafka->rk);
    serve_while(kafka, has_not_left, from_us);
    return may_destroy;
}

static pthread_mutex_t behind_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kafka_callback_context *left_behind;
static atomic_size_t n_left_behind;

/* The library postpones our leaving until the new assignment was accepted. If nobody did that, its threads would send
 * heartbeats for ever, and this member would keep partitions that nobody reads. */
static void leave_behind(struct kafka *kafka)
{
    kafka->context->kafka = NULL;
    kafka->context->rk = kafka->rk;
    pthread_mutex_lock(&behind_lock);
    kafka->context->next = left_behind;
    left_behind = kafka->context;
    atomic_fetch_add(&n_left_behind, 1);
    pthread_mutex_unlock(&behind_lock);
    kafka->context = NULL;
}

/* Whichever handle polls serves the readers that were left behind, and destroys those that have left their group. */
static void serve_left_behind(void)
{
    if (atomic_load(&n_left_behind) == 0 || pthread_mutex_trylock(&behind_lock) != 0)
        return;
    for (struct kafka_callback_context **at = &left_behind, *context; (context = *at) != NULL;) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(context->rk, 0);
        if (message != NULL)
            rd_kafka_message_destroy(message);
        if (is_member(context->rk)) {
            at = &context->next;
            continue;
        }
        *at = context->next;
        atomic_fetch_sub(&n_left_behind, 1);
        rd_kafka_destroy_flags(context->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
        semel__free(context);
    }
    pthread_mutex_unlock(&behind_lock);
}

static void leave_group(struct kafka *kafka)
{
    bool may_destroy;

    if (kafka->rk == NULL)
        return;
    flush_commits(kafka, CLOSE_MS / 2);
    forget_pending(kafka, NULL);
    may_destroy = leave(kafka);
    abandon_lanes(kafka);
    listen_to_group(kafka->rk, NULL);
    rd_kafka_queue_destroy(kafka->messages);
    rd_kafka_queue_destroy(kafka->commits);
    if (may_destroy)
        rd_kafka_destroy_flags(kafka->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    else
        leave_behind(kafka);
    kafka->rk = NULL;
    kafka->joined = false;
    kafka->lost = false;
    kafka->committing = false;
    kafka->noted = kafka->away = kafka->dead = false;
    kafka->why = (struct semel_error){0};
    kafka->high = 0;
    kafka->high_bytes = 0;
}

/* ---- from a record to a delivery ----------------------------------------------------------------------- */

/* Writes the digits and returns their end; printf would be most of the cost of a small record. */
static char *put_number(char *out, int64_t number)
{
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    char digits[NUMBER_MAX];
    size_t n = 0;

    do
        digits[n++] = (char)('0' + left % 10);
    while ((left /= 10) != 0);
    if (number < 0)
        *out++ = '-';
    while (n > 0)
        *out++ = digits[--n];
    return out;
}

static bool copy_headers(const rd_kafka_message_t *message, struct semel_arena *arena, struct semel_delivery *d)
{
    rd_kafka_headers_t *headers = NULL;
    struct semel_pair *pairs;
    size_t n;

    /* Unreadable headers count as none: the message is then stored as one without an id. */
    if (rd_kafka_message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return true;
    n = rd_kafka_header_cnt(headers);
    pairs = semel__arena_alloc(arena, n, sizeof *pairs);
    for (size_t i = 0; pairs != NULL && i < n; i++) {
        const char *name;
        const void *value;
        size_t size;
        if (rd_kafka_header_get_all(headers, i, &name, &value, &size) != RD_KAFKA_RESP_ERR_NO_ERROR)
            break;
        if (!semel__arena_copy(arena, semel__str(name), &pairs[i].name) ||
            !semel__arena_copy(arena, (struct semel_str){value, size}, &pairs[i].value))
            return false;
        d->n_headers = i + 1;
    }
    d->headers = pairs;
    return pairs != NULL;
}

/* Sets the position and the numeric properties. `pairs` has room for three. */
static bool copy_numbers(const rd_kafka_message_t *message, struct semel_arena *arena, struct semel_delivery *d,
                         struct semel_pair *pairs, size_t *ret_n)
{
    char text[KAFKA_TOPIC_MAX + 2 * NUMBER_MAX + 3], *partition, *offset, *end;
    rd_kafka_timestamp_type_t type;
    const int64_t time_ms = rd_kafka_message_timestamp(message, &type);

    memcpy(text, d->source.p, d->source.n);
    text[d->source.n] = '/';
    partition = text + d->source.n + 1;
    offset = put_number(partition, message->partition);
    *offset++ = '/';
    end = put_number(offset, message->offset);
    if (!semel__arena_copy(arena, (struct semel_str){text, (size_t)(end - text)}, &d->position))
        return false;
    pairs[0] = (struct semel_pair){SEMEL_STR("partition"),
                                   {d->position.p + (partition - text), (size_t)(offset - partition - 1)}};
    pairs[1] = (struct semel_pair){SEMEL_STR("offset"), {d->position.p + (offset - text), (size_t)(end - offset)}};
    *ret_n = 2;
    if (type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE)
        return true;
    pairs[(*ret_n)++].name = SEMEL_STR("timestamp");
    end = put_number(text, time_ms);
    return semel__arena_copy(arena, (struct semel_str){text, (size_t)(end - text)}, &pairs[2].value);
}

static bool make_delivery(const rd_kafka_message_t *message, struct semel_str source, struct semel_arena *arena,
                          struct semel_delivery *d)
{
    const bool keyed = message->key != NULL;
    struct semel_pair *pairs = semel__arena_alloc(arena, 4, sizeof *pairs);
    size_t n = 0;

    *d = (struct semel_delivery){.source = source,
                                 .properties = pairs,
                                 .partition = message->partition,
                                 .offset = message->offset};
    if (pairs == NULL || source.n > KAFKA_TOPIC_MAX || !copy_numbers(message, arena, d, pairs + keyed, &n))
        return false;
    d->n_properties = n + keyed;
    pairs[0].name = keyed ? SEMEL_STR("key") : pairs[0].name;
    return (!keyed || semel__arena_copy(arena, (struct semel_str){message->key, message->key_len}, &pairs[0].value)) &&
           semel__arena_copy(arena, (struct semel_str){message->payload, message->len}, &d->payload) &&
           copy_headers(message, arena, d);
}

bool semel__kafka_position(struct semel_str position, struct semel_source_start *ret)
{
    const char *second = position.n > 0 ? memrchr(position.p, '/', position.n) : NULL;
    const char *first = second != NULL ? memrchr(position.p, '/', (size_t)(second - position.p)) : NULL;
    int64_t partition, offset;

    if (first == NULL || first == position.p ||
        !semel__str_int64((struct semel_str){first + 1, (size_t)(second - first) - 1}, &partition) ||
        !semel__str_int64((struct semel_str){second + 1, position.n - (size_t)(second - position.p) - 1}, &offset) ||
        partition < 0 || partition > INT32_MAX || offset < 0)
        return false;
    *ret = (struct semel_source_start){{position.p, (size_t)(first - position.p)}, (int32_t)partition, offset};
    return true;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static semel_status refuse(const char *text, struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "kafka: %s", text);
}

static void release(struct kafka *kafka)
{
    leave_group(kafka);
    semel__kafka_unconfigure(kafka);
}

semel_status semel__broker_kafka_open(struct semel_broker **ret, const void *kafka_options,
                                      const struct semel_source_hooks *hooks, struct semel_error *err)
{
    struct kafka *kafka = semel__calloc(1, sizeof *kafka);
    semel_status status;

    if (kafka == NULL)
        return semel__fail_memory(err);
    kafka->base.ops = &kafka_ops;
    if (hooks != NULL)
        kafka->hooks = *hooks;
    status = semel__kafka_configure(kafka, kafka_options, err);
    if (status == SEMEL_OK && kafka->reader != NULL)
        status = join_group(kafka, err);
    if (status == SEMEL_OK) {
        *ret = &kafka->base;
        return SEMEL_OK;
    }
    release(kafka);
    semel__free(kafka);
    return status;
}

static void kafka_close(struct semel_broker *broker)
{
    release(self(broker));
}

static semel_status kafka_reopen(struct semel_broker *broker, struct semel_error *err)
{
    leave_group(self(broker));
    return self(broker)->reader != NULL ? join_group(self(broker), err) : SEMEL_OK;
}

static semel_status ready(const struct kafka *kafka, struct semel_error *err)
{
    if (kafka->reader == NULL)
        return refuse("there is no topic to read from; set topics and group", err);
    if (kafka->rk == NULL)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "kafka: not connected");
    if (!kafka->dead)
        return SEMEL_OK;
    if (err != NULL)
        *err = kafka->error;
    return SEMEL_CLOSED;
}

/* ---- poll ---------------------------------------------------------------------------------------------- */

/* Up to 2.1 a fetcher that met a full queue sleeps for a second, unless it is woken. */
static void make_fetch(struct kafka *kafka)
{
    const size_t length = rd_kafka_queue_length(kafka->messages);

    kafka->high = length > kafka->high ? length : kafka->high;
    for (size_t i = 0; i < kafka->n_pending; i++)
        kafka->high_bytes += kafka->pending[i]->len;
    if (!kafka->must_wake || 2 * length > kafka->high || (kafka->high < WAKE_FROM && kafka->high_bytes < WAKE_BYTES))
        return;
    kafka->high = length;
    kafka->high_bytes = 0;
    wake_fetchers(kafka);
}

static bool refill(struct kafka *kafka, size_t max, int wait_ms)
{
    const size_t room = max < KAFKA_PENDING ? max : KAFKA_PENDING;
    ssize_t n;

    if (kafka->at_pending < kafka->n_pending)
        return true;
    n = rd_kafka_consume_batch_queue(kafka->messages, wait_ms, kafka->pending, wait_ms > 0 ? 1 : room);
    kafka->at_pending = 0;
    kafka->n_pending = n > 0 ? (size_t)n : 0;
    if (kafka->n_pending > 0)
        make_fetch(kafka);
    return kafka->n_pending > 0;
}

enum taken { TAKEN, PASSED_OVER, NO_ROOM };

static bool deliver(struct kafka *kafka, struct kafka_lane *lane, const rd_kafka_message_t *message,
                    struct semel_arena *arena, struct semel_delivery *ret)
{
    if (lane->batch != kafka->batch && !semel__arena_copy(arena, semel__str(lane->topic), &lane->source))
        return false;
    lane->batch = kafka->batch;
    const bool doubt = lane->next_seq < SEMEL_KAFKA_DOUBT || message->offset <= lane->highest;
    if (!make_delivery(message, lane->source, arena, ret) ||
        !semel__kafka_lane_enter(&kafka->lanes, lane, message->offset, &ret->tag))
        return false;
    ret->lane = lane->number;
    ret->delivery = doubt ? 2 : 0;
    lane->highest = message->offset > lane->highest ? message->offset : lane->highest;
    return true;
}

/* Handles the first pending record. */
static enum taken take_one(struct kafka *kafka, struct semel_arena *arena, struct semel_delivery *ret)
{
    rd_kafka_message_t *message = kafka->pending[kafka->at_pending];
    enum taken taken = PASSED_OVER;
    struct kafka_lane *lane;

    if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
        note_message(kafka, message);
    } else if ((lane = lane_find(&kafka->lanes, rd_kafka_topic_name(message->rkt), message->partition)) != NULL) {
        const enum kafka_offer offer = semel__kafka_lane_offer(lane, message->offset);
        if (offer == KAFKA_MISSING) {
            seek_again(kafka, lane);
            return PASSED_OVER; /* it was forgotten, or comes again */
        }
        if (offer == KAFKA_TAKE) {
            if (!deliver(kafka, lane, message, arena, ret))
                return NO_ROOM;
            taken = TAKEN;
        }
    }
    kafka->at_pending++;
    rd_kafka_message_destroy(message);
    return taken;
}

/* How many of the records here could be delivered now. */
static size_t deliverable(const struct kafka *kafka, size_t max)
{
    const size_t room = kafka->in_flight_max > kafka->lanes.in_flight ? kafka->in_flight_max - kafka->lanes.in_flight
                                                                      : 0;
    const size_t here = kafka->n_pending - kafka->at_pending + rd_kafka_queue_length(kafka->messages);

    max = max < room ? max : room;
    return max < here ? max : here;
}

/* Not OK: there is no room even for one. */
static semel_status take(struct kafka *kafka, size_t max, struct semel_arena *arena, struct semel_delivery **ret,
                         size_t *ret_n, struct semel_error *err)
{
    const size_t used = arena->used;
    enum taken taken = PASSED_OVER;
    struct semel_delivery *deliveries;

    max = deliverable(kafka, max);
    if (max == 0)
        return SEMEL_OK;
    deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    if (deliveries == NULL)
        return semel__fail_memory(err);
    *ret = deliveries;
    /* An error ends the batch, so that the next error does not replace it before it is reported. */
    while (*ret_n < max && arena->used - used < POLL_BYTES && !kafka->dead && !kafka->noted &&
           refill(kafka, max - *ret_n, 0)) {
        taken = take_one(kafka, arena, &deliveries[*ret_n]);
        if (taken == NO_ROOM)
            break;
        *ret_n += taken == TAKEN;
    }
    return taken == NO_ROOM && *ret_n == 0 ? semel__fail_memory(err) : SEMEL_OK;
}

/* Returns the error of a dead handle, or one that was not reported yet. */
static semel_status report(struct kafka *kafka, struct semel_error *err)
{
    if (kafka->dead || !kafka->noted)
        return ready(kafka, err);
    kafka->noted = false;
    if (err != NULL)
        *err = kafka->error;
    return SEMEL_RETRY;
}

/* Waits for a record if there is room for one; meanwhile serves commits, pauses and the group. */
static void wait_a_while(struct kafka *kafka, int wait_ms)
{
    const int look_ms = is_idle(kafka) ? LOOK_IDLY_MS : LOOK_AGAIN_MS;

    wait_ms = wait_ms < look_ms ? wait_ms : look_ms;
    if (kafka->lanes.in_flight < kafka->in_flight_max) {
        (void)refill(kafka, 1, wait_ms);
        wait_ms = 0;
    }
    serve(kafka, wait_ms);
}

static semel_status kafka_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                               struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct kafka *kafka = self(broker);
    const int64_t from_us = semel__steady_us();
    semel_status status = ready(kafka, err);
    struct semel_delivery *deliveries = NULL;
    size_t n = 0;

    if (status != SEMEL_OK)
        return status;
    kafka->batch++;
    serve_left_behind();
    serve(kafka, 0);
    for (;;) {
        int left_ms;
        status = report(kafka, err);
        if (status == SEMEL_OK)
            status = take(kafka, max < POLL_MAX ? max : POLL_MAX, arena, &deliveries, &n, err);
        left_ms = kafka_left_ms(from_us, wait_ms);
        if (status != SEMEL_OK || n > 0 || left_ms == 0)
            break;
        wait_a_while(kafka, left_ms);
    }
    *ret_deliveries = deliveries;
    *ret_n = n;
    if (n > 0 && kafka->away)
        is_there(kafka);
    return status == SEMEL_OK && n == 0 ? away(kafka, err) : status;
}

/* ---- answers ------------------------------------------------------------------------------------------- */

static semel_status kafka_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                 struct semel_error *err)
{
    struct kafka *kafka = self(broker);
    semel_status status = ready(kafka, err);
    size_t n_fenced = 0;

    if (status != SEMEL_OK)
        return status;
    if (is_lost(kafka)) /* the next poll reports it */
        return semel__broker_fenced("kafka", n, n, err);
    for (size_t i = 0; i < n; i++)
        if (semel__reply_acks(&replies[i]))
            n_fenced += !semel__kafka_lane_ack(&kafka->lanes, replies[i].tag);
    commit_offsets(kafka, false);
    for (size_t i = 0; i < n; i++)
        if (!semel__reply_acks(&replies[i]))
            n_fenced += !semel__kafka_lane_back(&kafka->lanes, replies[i].tag, replies[i].delay_ms);
    status = go_back(kafka, err);
    return status == SEMEL_OK ? semel__broker_fenced("kafka", n_fenced, n, err) : status;
}

static const struct semel_broker_ops kafka_ops = {
    .name = "kafka",
    .capabilities = SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | SEMEL_BROKER_ORDERED | SEMEL_BROKER_RUNS,
    .close = kafka_close,
    .reopen = kafka_reopen,
    .poll = kafka_poll,
    .answer = kafka_answer,
    .publish = semel__kafka_publish,
};
