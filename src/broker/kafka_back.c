/* SPDX-License-Identifier: MIT
 *
 * kafka_back.c: going back in a partition, at once or after a while, for deliveries that are given back.
 *
 * Invariants: a lane that goes back is paused before it seeks: the other way round the pause would overwrite the place.
 * What comes first after a seek is what was sought, or it is sought again.
 */
#include "broker/kafka_private.h"

#include "base/clock.h"

#define SEEK_MS 5000
#define EXPECT_TRIES 3

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

/* Before 2.1 the library waits for a thousandth of the time that it is given, which a busy machine exceeds. Who seeks
 * the same place twice is there. */
static semel_status seek(struct kafka *kafka, rd_kafka_topic_partition_list_t *list, struct semel_error *err)
{
    const int64_t from_us = semel__kafka_now_us();
    rd_kafka_resp_err_t code;

    do
        code = try_to_seek(kafka->rk, list);
    while (code == RD_KAFKA_RESP_ERR__TIMED_OUT && semel__kafka_left_ms(from_us, SEEK_MS) > 0);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return SEMEL_OK;
    semel__kafka_kill_because(kafka, code, SEMEL_CLASS_ENVIRONMENT, "going back failed: %s", rd_kafka_err2str(code));
    if (err != NULL)
        *err = kafka->error;
    return SEMEL_CLOSED;
}

static void hold(struct kafka_lane *lane, int delay_ms)
{
    const int64_t now_us = semel__kafka_now_us(), until_us = semel__time_add(now_us, (int64_t)delay_ms * 1000);

    if (lane->held_until_us != SEMEL_NONE && lane->held_until_us >= until_us)
        return;
    lane->held_until_us = until_us;
    lane->held_us = (int64_t)delay_ms * 1000;
}

semel_status semel__kafka_go_back(struct kafka *kafka, int delay_ms, struct semel_error *err)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)kafka->lanes.n);
    semel_status status = SEMEL_OK;

    for (size_t i = 0; i < kafka->lanes.n; i++) {
        struct kafka_lane *lane = &kafka->lanes.at[i];
        if (lane->topic == NULL || !lane->back)
            continue;
        rd_kafka_topic_partition_list_add(list, lane->topic, lane->partition)->offset =
            semel__kafka_lane_rewind(&kafka->lanes, lane);
        semel__kafka_forget(kafka, lane);
        lane->stopped = false; /* what is given back is read again; if it is gone, that is told again */
        if (delay_ms > 0)
            hold(lane, delay_ms);
    }
    if (delay_ms > 0 && list->cnt > 0)
        rd_kafka_pause_partitions(kafka->rk, list);
    if (list->cnt > 0)
        status = seek(kafka, list, err);
    if (delay_ms == 0 && list->cnt > 0 && status == SEMEL_OK)
        semel__kafka_wake(kafka);
    rd_kafka_topic_partition_list_destroy(list);
    return status;
}

void semel__kafka_seek_again(struct kafka *kafka, struct kafka_lane *lane)
{
    rd_kafka_topic_partition_list_t *list;

    if (lane->expect_tries++ >= EXPECT_TRIES) { /* compacted or expired since: there is nothing to wait for */
        lane->expect = -1;
        return;
    }
    list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, lane->topic, lane->partition)->offset = lane->expect;
    semel__kafka_forget(kafka, lane);
    seek(kafka, list, NULL);
    rd_kafka_topic_partition_list_destroy(list);
}

void semel__kafka_end_pauses(struct kafka *kafka)
{
    const int64_t now_us = semel__kafka_now_us();
    rd_kafka_topic_partition_list_t *list = NULL;

    for (size_t i = 0; i < kafka->lanes.n; i++) {
        struct kafka_lane *lane = &kafka->lanes.at[i];
        if (lane->topic == NULL || lane->held_until_us == SEMEL_NONE)
            continue;
        if (now_us < lane->held_until_us && lane->held_until_us - now_us <= lane->held_us)
            continue;
        lane->held_until_us = SEMEL_NONE;
        list = list != NULL ? list : rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(list, lane->topic, lane->partition);
    }
    if (list == NULL)
        return;
    rd_kafka_resume_partitions(kafka->rk, list);
    semel__kafka_wake(kafka); /* whoever fetches may sleep, because there was nothing to fetch for */
    rd_kafka_topic_partition_list_destroy(list);
}
