/* SPDX-License-Identifier: MIT
 *
 * point.h: labelled places at which a test may kill, stop or watch the process.
 *
 * What it is: one X-macro of labels, one call per label in the code. In a build without -Dpoints=true the call
 * compiles to nothing. A label names the moment just *before* or *after* something durable happens; the list is
 * complete, so a test can visit all of them.
 *
 * Use: SEMEL_POINT(BATCH_SETTLED). SEMEL_CRASH_AT=label:N in the environment of a test
 * program (see semel__point_from_env) sends SIGKILL to the process at the N-th visit;
 * SEMEL_STOP_AT=label:N sends SIGSTOP, so that another process can overtake this one.
 */
#ifndef SEMEL_BASE_POINT_H
#define SEMEL_BASE_POINT_H

#define SEMEL_POINT_MAP(X)                    \
    X(BATCH_BEGUN, "batch.begun")             \
    X(BATCH_ADMITTED, "batch.admitted")       \
    X(BATCH_HANDLED, "batch.handled")         \
    X(BATCH_SETTLED, "batch.settled")         \
    X(BATCH_COMMITTED, "batch.committed")     \
    X(BATCH_HALVED, "batch.halved")           \
    X(BATCH_BLAMED, "batch.blamed")           \
    X(SINGLE_FAILED, "single.failed")         \
    X(SINGLE_RECORDED, "single.recorded")     \
    X(CLAIM_ADMITTED, "claim.admitted")       \
    X(CLAIM_COMMITTED, "claim.committed")     \
    X(LEASE_RUN, "lease.run")                 \
    X(FINISH_BEGUN, "finish.begun")           \
    X(FINISH_SETTLED, "finish.settled")       \
    X(FINISH_COMMITTED, "finish.committed")   \
    X(RECOVER_SETTLED, "recover.settled")     \
    X(RECOVER_COMMITTED, "recover.committed") \
    X(TAKE_SETTLED, "take.settled")           \
    X(TAKE_COMMITTED, "take.committed")       \
    X(PURGE_WATERMARKED, "purge.watermarked") \
    X(PURGE_DELETED, "purge.deleted")         \
    X(RETRY_SETTLED, "retry.settled")         \
    X(RETRY_COMMITTED, "retry.committed")     \
    X(PUMP_POLLED, "pump.polled")             \
    X(PUMP_BEFORE_ACK, "pump.before_ack")     \
    X(PUMP_ACKED, "pump.acked")               \
    X(RELAY_READ, "relay.read")               \
    X(RELAY_STARTED, "relay.started")         \
    X(RELAY_PUBLISHED, "relay.published")     \
    X(RELAY_CONFIRMED, "relay.confirmed")     \
    X(RELAY_AHEAD, "relay.ahead")             \
    X(KEYS_WRITTEN, "keys.written")           \
    X(KEYS_COMMITTED, "keys.committed")       \
    X(GUARD_CLAIMED, "guard.claimed")         \
    X(GUARD_CALLED, "guard.called")           \
    X(GUARD_ANSWERED, "guard.answered")       \
    X(GUARD_STORED, "guard.stored")

enum semel_point {
#define X(name, text) SEMEL_AT_##name,
    SEMEL_POINT_MAP(X)
#undef X
        SEMEL_POINT_COUNT
};

typedef void (*semel_point_hook)(void *ctx, enum semel_point point);

void semel__point_set_hook(semel_point_hook hook, void *ctx); /* NULL removes it */
void semel__point_visit(enum semel_point point);
const char *semel__point_name(enum semel_point point);
/* How often this process passed the point, so that a test can show that it passed all of them. */
unsigned long semel__point_visits(enum semel_point point);
/* Reads SEMEL_CRASH_AT=label:N and SEMEL_STOP_AT=label:N; false and a line on stderr when the label or the number is
 * wrong. Visits count from 1, including those before this call. */
int semel__point_from_env(void);

#ifdef SEMEL_POINTS
#define SEMEL_POINT(name) semel__point_visit(SEMEL_AT_##name)
#else
#define SEMEL_POINT(name) ((void)0)
#endif

#endif
