/* SPDX-License-Identifier: MIT
 *
 * kafka_group.c: membership in the group: partitions come and go, offsets are committed, and errors are sorted.
 *
 * A partition begins where the hook says, else where the group left off, else, when `first` allows it, at its
 * beginning. We ask for the group's offsets ourselves, because the library has one setting for "there is none" and "it
 * is out of range", and the second must never be answered by a jump.
 *
 * Invariants: what is committed is lane->done of a lane that is ours. One commit is on its way at a time, but for the
 * last one of a partition that is given up; the library sends that before it tells the group.
 */
#include "broker/kafka_private.h"

#include "base/clock.h"

#define ASK_EVERY_US 1000000 /* while no server can be reached */
#define ASK_MS 100
#define ASK_MAX_MS 3200
#define COMMIT_MS 100
#define REBALANCE_MS 5000
#define SERVE_MAX 1000

int64_t semel__kafka_now_us(void)
{
    return semel__now(&semel__clock_real);
}

int semel__kafka_left_ms(int64_t from_us, int wait_ms)
{
    const int64_t past_us = semel__kafka_now_us() - from_us;

    return past_us < 0 || past_us >= (int64_t)wait_ms * 1000 ? 0 : wait_ms - (int)(past_us / 1000);
}

/* The library says so, but not while it waits for a rebalance to be served; so we look at the time ourselves. */
bool semel__kafka_is_lost(const struct kafka *kafka)
{
    return kafka->lost || rd_kafka_assignment_lost(kafka->rk) != 0 ||
           (kafka->polled_us != SEMEL_NONE && semel__kafka_now_us() - kafka->polled_us > kafka->patience_us);
}

void semel__kafka_kill(struct kafka *kafka, const struct semel_error *why)
{
    if (kafka->dead)
        return;
    kafka->dead = true;
    kafka->error = *why;
    kafka->error.status = SEMEL_CLOSED;
}

void semel__kafka_kill_because(struct kafka *kafka, int code, enum semel_class cls, const char *fmt, ...)
{
    struct semel_error why = {0};
    char text[sizeof why.text];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    semel__fail(&why, SEMEL_CLOSED, cls, "kafka: %s", text);
    why.code = code;
    semel__kafka_kill(kafka, &why);
}

/* Told by the next poll; the first of several, but what somebody must mend comes before what mends itself. */
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

/* ---- errors ------------------------------------------------------------------------------------------- */

/* Whom to blame: the world, which mends itself, or somebody's settings, here or on the server. */
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
    struct kafka *kafka = ((const struct kafka_ear *)opaque)->kafka;

    (void)rk;
    if (code == RD_KAFKA_RESP_ERR__FATAL) {
        semel__kafka_kill_because(kafka, code, SEMEL_CLASS_BROKEN, "the client cannot go on: %s", reason);
        return;
    }
    kafka->away |= code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN;
    if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
        semel__kafka_explain(kafka, code, class_of(code), reason);
    if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && kafka->why.cls != SEMEL_CLASS_BROKEN)
        return; /* one broker of several that is down is no news */
    if (kafka->why.status != SEMEL_OK)
        note_error(kafka, &kafka->why);
    else
        note(kafka, code, class_of(code), reason);
}

void semel__kafka_is_there(struct kafka *kafka)
{
    kafka->away = false;
    kafka->ask_ms = 0;
    kafka->why = (struct semel_error){0};
}

/* Whoever is far away, or busy, needs longer than a moment to answer; so each question waits longer than the last. */
semel_status semel__kafka_away(struct kafka *kafka, struct semel_error *err)
{
    const struct rd_kafka_metadata *found;
    const int64_t now_us = semel__kafka_now_us();

    if (!kafka->away)
        return SEMEL_OK;
    if (now_us >= kafka->ask_us || kafka->ask_us - now_us > ASK_EVERY_US) { /* the clock may have been set back */
        kafka->ask_us = now_us + ASK_EVERY_US;
        kafka->ask_ms = kafka->ask_ms < ASK_MS ? ASK_MS : kafka->ask_ms < ASK_MAX_MS ? 2 * kafka->ask_ms : ASK_MAX_MS;
        if (rd_kafka_metadata(kafka->rk, 0, NULL, &found, kafka->ask_ms) == RD_KAFKA_RESP_ERR_NO_ERROR) {
            rd_kafka_metadata_destroy(found);
            semel__kafka_is_there(kafka);
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

    /* There may be no offset yet, and then it must start at the beginning; or where that is could not be asked. */
    if (lane->unsure || (lane->from_beginning && lane->next == 0)) {
        semel__kafka_kill_because(kafka, RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET, SEMEL_CLASS_ENVIRONMENT,
                                  "%s/%d: where to start could not be asked", lane->topic, (int)lane->partition);
        return;
    }
    lane->stopped = true;
    snprintf(text, sizeof text, "%s/%d is not read on: %s", lane->topic, (int)lane->partition, why);
    note(kafka, RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET, SEMEL_CLASS_BROKEN, text);
}

void semel__kafka_note(struct kafka *kafka, const rd_kafka_message_t *message)
{
    const char *text = rd_kafka_message_errstr(message);
    struct kafka_lane *lane = NULL;

    kafka->lost |= message->err == RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED;
    if (message->rkt != NULL)
        lane = semel__kafka_lane_find(&kafka->lanes, rd_kafka_topic_name(message->rkt), message->partition);
    if (message->err == RD_KAFKA_RESP_ERR__FATAL)
        semel__kafka_kill_because(kafka, message->err, SEMEL_CLASS_BROKEN, "the client cannot go on: %s", text);
    else if (message->err == RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED)
        semel__kafka_kill_because(kafka, message->err, SEMEL_CLASS_ENVIRONMENT, "%s", text);
    else if (message->err != RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET)
        note(kafka, message->err, class_of(message->err), text);
    else if (lane != NULL)
        stop(kafka, lane, text);
}

/* ---- commits ------------------------------------------------------------------------------------------ */

static void committed(rd_kafka_t *rk, rd_kafka_resp_err_t code, rd_kafka_topic_partition_list_t *list, void *opaque)
{
    struct kafka *kafka = opaque;
    rd_kafka_resp_err_t refused = code;

    (void)rk;
    kafka->committing = false;
    for (int i = 0; list != NULL && i < list->cnt && refused == RD_KAFKA_RESP_ERR_NO_ERROR; i++)
        refused = list->elems[i].err;
    semel__kafka_tell_commit(kafka, refused);
    for (int i = 0; list != NULL && i < list->cnt; i++) {
        const rd_kafka_topic_partition_t *at = &list->elems[i];
        struct kafka_lane *lane = semel__kafka_lane_find(&kafka->lanes, at->topic, at->partition);
        if (lane != NULL && (code != RD_KAFKA_RESP_ERR_NO_ERROR || at->err != RD_KAFKA_RESP_ERR_NO_ERROR))
            lane->sent = -1; /* once more, if it is still ours then */
    }
}

static void send_commit(struct kafka *kafka, const rd_kafka_topic_partition_list_t *list)
{
    kafka->committing = rd_kafka_commit_queue(kafka->rk, list, kafka->commits, committed, kafka) ==
                        RD_KAFKA_RESP_ERR_NO_ERROR;
    kafka->next_commit_us = semel__time_add(semel__kafka_now_us(), COMMIT_MS * 1000);
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

bool semel__kafka_is_idle(const struct kafka *kafka)
{
    for (size_t i = 0; i < kafka->lanes.n; i++)
        if (kafka->lanes.at[i].topic != NULL && kafka->lanes.at[i].held_until_us != SEMEL_NONE)
            return false;
    return kafka->joined && kafka->lanes.in_flight == 0 && !kafka->committing && !wants_commit(kafka);
}

void semel__kafka_commit(struct kafka *kafka, bool now)
{
    const int64_t wait_us = kafka->next_commit_us - semel__kafka_now_us();
    rd_kafka_topic_partition_list_t *list;

    /* A clock that was set back must not hold it up. */
    if (kafka->committing || (!now && wait_us > 0 && wait_us <= COMMIT_MS * 1000) || !wants_commit(kafka))
        return;
    list = rd_kafka_topic_partition_list_new((int)kafka->lanes.n);
    for (size_t i = 0; i < kafka->lanes.n; i++)
        add_commit(list, &kafka->lanes.at[i]);
    send_commit(kafka, list);
    rd_kafka_topic_partition_list_destroy(list);
}

void semel__kafka_flush(struct kafka *kafka, int wait_ms)
{
    const int64_t from_us = semel__kafka_now_us();
    bool again = false;

    while (!semel__kafka_is_lost(kafka)) {
        const int left_ms = semel__kafka_left_ms(from_us, wait_ms);
        if (!kafka->committing) {
            semel__kafka_commit(kafka, !again); /* one that was refused is not sent again at once */
            again = true;
        }
        if ((!kafka->committing && !wants_commit(kafka)) || left_ms == 0)
            return;
        rd_kafka_queue_poll_callback(kafka->commits, left_ms < 50 ? left_ms : 50);
    }
}

/* ---- partitions come ---------------------------------------------------------------------------------- */

/* Our own queue instead of the consumer's, before the fetching starts. */
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
    struct semel_kafka_start *starts;
    semel_status status;

    if (kafka->hooks.assigned == NULL || list->cnt == 0)
        return SEMEL_OK;
    starts = semel__calloc((size_t)list->cnt, sizeof *starts);
    for (int i = 0; starts != NULL && i < list->cnt; i++) {
        const rd_kafka_topic_partition_t *at = &list->elems[i];
        starts[i] = (struct semel_kafka_start){semel__str(at->topic), at->partition,
                                               at->offset >= 0 ? at->offset : SEMEL_NONE};
    }
    status = starts == NULL ? semel__fail_memory(&why)
                            : kafka->hooks.assigned(kafka->hooks.ctx, starts, (size_t)list->cnt, &why);
    for (int i = 0; status == SEMEL_OK && i < list->cnt; i++)
        list->elems[i].offset = starts[i].offset >= 0 ? starts[i].offset : RD_KAFKA_OFFSET_INVALID;
    semel__free(starts);
    if (status != SEMEL_OK)
        semel__kafka_kill(kafka, &why);
    return status;
}

/* Fills in where to start; it may kill the handle. */
static void find_starts(struct kafka *kafka, rd_kafka_topic_partition_list_t *list)
{
    bool unsure = rd_kafka_committed(kafka->rk, list, REBALANCE_MS) != RD_KAFKA_RESP_ERR_NO_ERROR;

    for (int i = 0; i < list->cnt; i++)
        unsure |= list->elems[i].err != RD_KAFKA_RESP_ERR_NO_ERROR;
    if (unsure && kafka->hooks.assigned != NULL)
        semel__kafka_kill_because(kafka, 0, SEMEL_CLASS_ENVIRONMENT, "where the group left off could not be asked");
    else if (ask_hook(kafka, list) != SEMEL_OK)
        return;
    for (int i = 0; i < list->cnt; i++) {
        rd_kafka_topic_partition_t *at = &list->elems[i];
        struct kafka_lane *lane = semel__kafka_lane_find(&kafka->lanes, at->topic, at->partition);
        at->err = RD_KAFKA_RESP_ERR_NO_ERROR;
        if (unsure)
            at->offset = RD_KAFKA_OFFSET_STORED; /* the library goes on asking */
        else if (at->offset < 0)
            at->offset = kafka->first == SEMEL_KAFKA_FIRST_EARLIEST ? RD_KAFKA_OFFSET_BEGINNING
                                                                    : RD_KAFKA_OFFSET_INVALID; /* which is an error */
        if (lane != NULL)
            lane->unsure = unsure;
        if (lane != NULL)
            lane->from_beginning = at->offset == RD_KAFKA_OFFSET_BEGINNING;
        if (lane != NULL && at->offset > 0)
            lane->next = at->offset;
    }
}

/* The topic's place in the subscription, which stays, and the partition. */
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
        if (semel__kafka_lane_find(&kafka->lanes, topic, partition) != NULL)
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

/* The group waits for this, whatever has become of the handle. */
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
        semel__kafka_kill_because(kafka, 0, SEMEL_CLASS_ENVIRONMENT,
                                  "no memory for %d partitions, or they are too many", list->cnt);
    if (!kafka->dead)
        find_starts(kafka, list);
    code = apply(kafka->rk, list, true);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        semel__kafka_kill_because(kafka, code, SEMEL_CLASS_ENVIRONMENT, "the assignment failed: %s",
                                  rd_kafka_err2str(code));
}

/* ---- partitions go ------------------------------------------------------------------------------------ */

static void drop(struct kafka *kafka, struct kafka_lane *lane, bool lost)
{
    const struct semel_kafka_start start = {semel__str(lane->topic), lane->partition, SEMEL_NONE};

    semel__kafka_forget(kafka, lane);
    if (kafka->hooks.revoked != NULL)
        kafka->hooks.revoked(kafka->hooks.ctx, &start, 1, lost);
    semel__kafka_lane_drop(&kafka->lanes, lane);
}

void semel__kafka_abandon(struct kafka *kafka)
{
    for (size_t i = 0; i < kafka->lanes.n; i++)
        if (kafka->lanes.at[i].topic != NULL)
            drop(kafka, &kafka->lanes.at[i], true);
    semel__kafka_lanes_done(&kafka->lanes);
}

static void revoke(struct kafka *kafka, rd_kafka_topic_partition_list_t *list)
{
    const bool lost = semel__kafka_is_lost(kafka);
    rd_kafka_topic_partition_list_t *last = rd_kafka_topic_partition_list_new(list->cnt);

    rd_kafka_queue_poll_callback(kafka->commits, 0);
    for (int i = 0; i < list->cnt; i++) {
        struct kafka_lane *lane = semel__kafka_lane_find(&kafka->lanes, list->elems[i].topic, list->elems[i].partition);
        if (lane == NULL)
            continue;
        if (kafka->committing) /* the group may refuse that one, as it does in the middle of a rebalance */
            lane->sent = -1;
        if (!lost)
            add_commit(last, lane);
        drop(kafka, lane, lost);
    }
    if (last->cnt > 0)
        send_commit(kafka, last);
    rd_kafka_topic_partition_list_destroy(last);
    rd_kafka_resume_partitions(kafka->rk, list); /* whoever gets it next, perhaps we, does not get the pause */
    (void)apply(kafka->rk, list, false);         /* it fails only for what is not assigned anyway */
}

void semel__kafka_rebalance(rd_kafka_t *rk, rd_kafka_resp_err_t code, rd_kafka_topic_partition_list_t *list,
                            void *opaque)
{
    struct kafka *kafka = ((const struct kafka_ear *)opaque)->kafka;

    if (code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
        kafka->joined = true;
        assign(kafka, list);
    } else if (code == RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS) {
        revoke(kafka, list);
    } else {
        rd_kafka_assign(rk, NULL);
        note(kafka, code, class_of(code), rd_kafka_err2str(code));
    }
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

void semel__kafka_serve(struct kafka *kafka, int wait_ms)
{
    rd_kafka_message_t *message;

    if (semel__kafka_is_lost(kafka) && !rd_kafka_assignment_lost(kafka->rk)) {
        kafka->lost = true;
        semel__kafka_kill_because(
            kafka, RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED, SEMEL_CLASS_ENVIRONMENT,
            "nobody polled for longer than max.poll.interval.ms; the group has gone on without this member");
    }
    kafka->polled_us = semel__kafka_now_us();
    for (int i = 0; i < SERVE_MAX && !kafka->dead; i++, wait_ms = 0) {
        message = rd_kafka_consumer_poll(kafka->rk, wait_ms);
        if (message == NULL)
            break;
        /* A record here would be one of a partition that is not forwarded, which does not happen. Were it to, the lane
         * would miss it, and so it is as good as an assignment that failed. */
        if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR)
            semel__kafka_kill_because(kafka, 0, SEMEL_CLASS_ENVIRONMENT, "a record came by the wrong queue");
        else
            semel__kafka_note(kafka, message);
        rd_kafka_message_destroy(message);
    }
    rd_kafka_queue_poll_callback(kafka->commits, 0);
    if (kafka->dead)
        return;
    semel__kafka_end_pauses(kafka);
    semel__kafka_commit(kafka, false);
}
