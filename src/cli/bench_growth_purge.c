/* SPDX-License-Identifier: MIT
 *
 * bench_growth_purge.c: `semel bench growth` on PostgreSQL: the oldest quarter of a lane is purged.
 *
 * First new messages are processed alone, to know their speed; then a process of its own purges, in transactions of one
 * chunk and without a pause, as a daemon that has fallen behind would, while this one goes on processing. It calls what
 * core calls, watermark first, with the moments that this benchmark chose instead of a retention: an hour is the least
 * that a consumer may have.
 *
 * Invariants: the process that was started has been waited for.
 */
#define _GNU_SOURCE /* pipe2 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/bench_growth_pg.h"
#include "lib/handle.h"

#define CALM (4 * GROWTH_PIECE) /* batches, but no more than a step has */

struct report {
    semel_status status;
    struct semel_error err;
    int64_t rows, chunks, took_us, longest_us;
};

/* ---- the process that purges --------------------------------------------------------------------- */

static semel_status end(struct semel_store *store, semel_status status, struct semel_error *err)
{
    if (status == SEMEL_OK)
        return semel_store_commit(store, err);
    semel_store_rollback(store);
    return status;
}

static semel_status raise_watermark(struct growth *g, const struct growth_lane *lane, struct semel_store *store,
                                    struct semel_error *err)
{
    int64_t now_us;
    if (lane->ids != BENCH_ORDERED)
        return SEMEL_OK; /* these have no time */
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_watermark(store, semel__str(lane->pg.consumer), SEMEL_STR(BENCH_SOURCE),
                                   g->first_us + lane->old_rows * GROWTH_ID_US, err);
    return end(store, status, err);
}

static semel_status purge_chunk(struct growth *g, const struct growth_lane *lane, struct semel_store *store,
                                size_t *ret_n, struct semel_error *err)
{
    int64_t now_us;
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_purge(store, semel__str(lane->pg.consumer), SEMEL_STR(BENCH_SOURCE), lane->old_us,
                               (size_t)g->options->chunk, ret_n, err);
    return end(store, status, err);
}

static void purge(struct growth *g, const struct growth_lane *lane, struct report *report)
{
    struct semel *s = NULL;
    size_t n = 1;
    report->status = semel_open(&s, g->url, 0, &report->err);
    if (report->status != SEMEL_OK)
        return;
    int64_t start_us = semel__now(&semel__clock_real), before_us = start_us;
    report->status = raise_watermark(g, lane, s->store, &report->err);
    while (report->status == SEMEL_OK && n > 0 && !growth_stopped(g)) {
        report->status = purge_chunk(g, lane, s->store, &n, &report->err);
        int64_t now_us = semel__now(&semel__clock_real);
        if (now_us - before_us > report->longest_us)
            report->longest_us = now_us - before_us;
        before_us = now_us;
        report->rows += (int64_t)n;
        report->chunks += n > 0;
    }
    report->took_us = before_us - start_us;
    semel_close(s);
}

/* ---- the consumer meanwhile ---------------------------------------------------------------------- */

static bool is_over(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) > 0;
}

/* New messages, for as many batches as are said, or (0) until the process at the other end of `fd` has something to
 * say, at least one. How many a second. */
static semel_status process_new(struct growth *g, struct growth_lane *lane, int64_t most, int fd, double *ret_per_s,
                                struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    int64_t us = 0, batches = 0;
    for (bool over = false; status == SEMEL_OK && !over;) {
        size_t n = most > 0 && most - batches < GROWTH_PIECE ? (size_t)(most - batches) : GROWTH_PIECE;
        for (size_t i = 0; status == SEMEL_OK && i < n; i++)
            status = growth_make(g, lane, lane->batches + (int64_t)i, i, err);
        int64_t start_us = semel__now(&semel__clock_real);
        for (size_t i = 0; status == SEMEL_OK && i < n && !over; i++) {
            status = growth_run(g, lane, i, false, err);
            lane->batches += status == SEMEL_OK;
            batches++;
            over = growth_stopped(g) || (most > 0 ? batches == most : is_over(fd));
        }
        us += semel__now(&semel__clock_real) - start_us;
    }
    *ret_per_s = (double)(batches * g->options->batch) * 1e6 / (double)(us > 0 ? us : 1);
    return status;
}

/* ---- both ---------------------------------------------------------------------------------------- */

static semel_status start(struct growth *g, const struct growth_lane *lane, pid_t *ret_pid, int *ret_fd,
                          struct semel_error *err)
{
    int ends[2] = {-1, -1};
    pid_t pid = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
    if (pid < 0) {
        int error = errno;
        if (ends[0] >= 0) {
            close(ends[0]);
            close(ends[1]);
        }
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a process cannot be started (error %d)", error);
    }
    if (pid == 0) { /* it has nothing of ours but the memory: what it inherits stays untouched */
        struct report report = {0};
        close(ends[0]);
        purge(g, lane, &report);
        _exit(bench_pg_write(ends[1], &report, sizeof report) ? 0 : 1);
    }
    close(ends[1]);
    *ret_pid = pid;
    *ret_fd = ends[0];
    return SEMEL_OK;
}

static semel_status finish(pid_t pid, int fd, struct report *report, struct semel_error *err)
{
    bool told = bench_pg_read(fd, report, sizeof *report);
    close(fd);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    if (!told)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the process that purges has died");
    if (report->status != SEMEL_OK)
        *err = report->err;
    return report->status;
}

semel_status growth_purge(struct growth *g, struct growth_lane *lane, struct growth_purge *ret, struct semel_error *err)
{
    struct report report = {0};
    struct semel_error ignored;
    pid_t pid = -1;
    int fd = -1;
    int64_t step = (g->options->rows / g->options->steps + g->options->batch - 1) / g->options->batch;
    semel_status status = process_new(g, lane, step < CALM ? step : CALM, -1, &ret->calm_per_s, err);
    if (status == SEMEL_OK)
        status = start(g, lane, &pid, &fd, err);
    if (status != SEMEL_OK)
        return status;
    status = process_new(g, lane, 0, fd, &ret->meanwhile_per_s, err);
    if (status != SEMEL_OK)
        kill(pid, SIGTERM); /* it ends behind its chunk */
    semel_status purged = finish(pid, fd, &report, status == SEMEL_OK ? err : &ignored);
    ret->rows = report.rows;
    ret->chunks = report.chunks;
    ret->per_s = (double)report.rows * 1e6 / (double)(report.took_us > 0 ? report.took_us : 1);
    ret->longest_ms = (double)report.longest_us / 1000;
    return status == SEMEL_OK ? purged : status;
}
