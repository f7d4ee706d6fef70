/* SPDX-License-Identifier: MIT
 *
 * msg.c: the messages of `semel bench inbox`, the same on every store: payloads of one length, ids that are ordered
 * by time or random, and the effect of a payload.
 *
 * Invariants: the same seed gives the same messages; account and amount stand at fixed places of the payload.
 */
#include "bench/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

#define ID_DISTANCE_US 50 /* between two time-ordered ids */
#define POISON_PER_MILLE 10

const char *const bench_ids_names[BENCH_IDS] = {"ordered", "random"};

static void random_uuid(struct semel_random *rng, char out[SEMEL_UUID_TEXT])
{
    uint64_t high = semel__random_next(rng), low = semel__random_next(rng);
    high = (high & ~UINT64_C(0xF000)) | 0x4000;
    low = (low & UINT64_C(0x3FFFFFFFFFFFFFFF)) | UINT64_C(0x8000000000000000);
    snprintf(out, SEMEL_UUID_TEXT, "%08" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%012" PRIx64, high >> 32,
             high >> 16 & 0xFFFF, high & 0xFFFF, low >> 48, low & UINT64_C(0xFFFFFFFFFFFF));
}

/* bench_effect reads account and amount at these places. */
static void write_payload(struct bench_msg *msg, int account, int amount)
{
    int n = snprintf(msg->payload, sizeof msg->payload,
                     "{\"id\":\"%s\",\"account\":%05d,\"amount\":%06d,\"currency\":\"EUR\",\"note\":\"", msg->id,
                     account, amount);
    static const char words[] = "paid at the counter, thank you; ";
    for (size_t i = (size_t)n; i < BENCH_PAYLOAD - 2; i++)
        msg->payload[i] = words[i % (sizeof words - 1)];
    memcpy(msg->payload + BENCH_PAYLOAD - 2, "\"}", 3);
}

void bench_name(char *out, size_t size, const char *name, enum bench_ids ids)
{
    snprintf(out, size, "%s_%s", name, bench_ids_names[ids]);
    for (char *c = out; *c != '\0'; c++)
        if (*c == '-')
            *c = '_';
}

void bench_stream_from(struct bench_stream *stream, size_t messages)
{
    stream->first_us = semel__now(&semel__clock_real) - (int64_t)messages * ID_DISTANCE_US;
}

semel_status bench_msg_make(struct bench_stream *stream, size_t i, size_t place, struct bench_msg *msg,
                            struct semel_error *err)
{
    struct semel_random *rng = &stream->rng;
    int account = BENCH_FIRST_ACCOUNT + (int)semel__random_below(rng, BENCH_ACCOUNTS);
    int amount = BENCH_POISON_AMOUNT + 1 + (int)semel__random_below(rng, 800000);
    if (stream->poison && semel__random_chance(rng, POISON_PER_MILLE))
        amount = BENCH_POISON_AMOUNT;
    msg->time_us = SEMEL_NONE;
    msg->place = place;
    if (stream->ids == BENCH_ORDERED)
        semel__uuid7_new(stream->first_us + (int64_t)i * ID_DISTANCE_US, rng, msg->id);
    else
        random_uuid(rng, msg->id);
    semel__id_time(semel__str(msg->id), false, INT64_MAX, &msg->time_us);
    write_payload(msg, account, amount);
    return semel__fp_compute((struct semel_str){msg->payload, BENCH_PAYLOAD}, &msg->fp, err);
}

static int cmp_id(const void *va, const void *vb)
{
    const struct bench_msg *a = va, *b = vb;
    return memcmp(a->id, b->id, sizeof a->id);
}

void bench_msgs_sort(struct bench_msg *msgs, size_t n)
{
    qsort(msgs, n, sizeof *msgs, cmp_id);
}

struct bench_effect bench_effect(struct semel_str payload)
{
    enum { ACCOUNT_AT = 55, ACCOUNT_DIGITS = 5, AMOUNT_AT = 70, AMOUNT_DIGITS = 6 };
    struct bench_effect effect = {0};
    if (payload.n < AMOUNT_AT + AMOUNT_DIGITS)
        return effect;
    for (size_t i = 0; i < ACCOUNT_DIGITS; i++)
        effect.account = effect.account * 10 + (payload.p[ACCOUNT_AT + i] - '0');
    for (size_t i = 0; i < AMOUNT_DIGITS; i++)
        effect.amount = effect.amount * 10 + (payload.p[AMOUNT_AT + i] - '0');
    effect.poison = effect.amount == BENCH_POISON_AMOUNT;
    return effect;
}
