/* SPDX-License-Identifier: MIT
 *
 * side.c: a guest in the event loop; see side.h.
 */
#include "net/side.h"

#include <pthread.h>

#include "base/error.h"
#include "base/mem.h"
#include "net/loop.h"

struct semel_side {
    struct semel_http *http;
    struct semel_guest guest;
    const struct semel_side_events *events;
    void *ctx;
    uv_timer_t timer;
    uv_async_t async;
    pthread_mutex_t lock; /* of `open` */
    bool open;            /* the handle `async` may be used */
};

struct aside {
    uv_work_t work;
    void (*run)(void *arg);
    void (*done)(void *arg);
    void *arg;
};

static void on_async(uv_async_t *async)
{
    struct semel_side *side = async->data;
    side->events->woken(side->ctx);
}

static void on_timer(uv_timer_t *timer)
{
    struct semel_side *side = timer->data;
    side->events->timer(side->ctx);
}

static bool is_busy(void *ctx)
{
    struct semel_side *side = ctx;
    return side->events->busy(side->ctx);
}

static void give_up(void *ctx)
{
    struct semel_side *side = ctx;
    side->events->give_up(side->ctx);
}

static void flush(void *ctx)
{
    struct semel_side *side = ctx;
    side->events->flush(side->ctx);
}

static void close_all(void *ctx)
{
    struct semel_side *side = ctx;
    pthread_mutex_lock(&side->lock);
    side->open = false;
    pthread_mutex_unlock(&side->lock);
    uv_close((uv_handle_t *)&side->async, NULL);
    uv_close((uv_handle_t *)&side->timer, NULL);
}

semel_status semel__side_new(struct semel_side **ret, struct semel_http *http, const struct semel_side_events *events,
                             void *ctx, struct semel_error *err)
{
    struct semel_side *side = semel__calloc(1, sizeof(*side));
    uv_loop_t *loop = semel__http_loop(http);
    if (side == NULL)
        return semel__fail_memory(err);
    if (uv_async_init(loop, &side->async, on_async) != 0) {
        semel__free(side);
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the event loop takes no wake-up");
    }
    uv_timer_init(loop, &side->timer);
    side->async.data = side->timer.data = side;
    side->http = http;
    side->events = events;
    side->ctx = ctx;
    side->open = true;
    pthread_mutex_init(&side->lock, NULL);
    side->guest =
        (struct semel_guest){.busy = is_busy, .give_up = give_up, .close = close_all, .flush = flush, .ctx = side};
    semel__http_join(http, &side->guest);
    *ret = side;
    return SEMEL_OK;
}

void semel__side_free(struct semel_side *side)
{
    if (side == NULL)
        return;
    pthread_mutex_destroy(&side->lock);
    semel__free(side);
}

void semel__side_wake(struct semel_side *side)
{
    pthread_mutex_lock(&side->lock);
    if (side->open)
        uv_async_send(&side->async);
    pthread_mutex_unlock(&side->lock);
}

void semel__side_start_timer(struct semel_side *side, uint64_t ms)
{
    if (side->open)
        uv_timer_start(&side->timer, on_timer, ms, 0);
}

void semel__side_settled(struct semel_side *side)
{
    semel__http_settled(side->http);
}

static void aside_work(uv_work_t *work)
{
    const struct aside *aside = work->data;
    aside->run(aside->arg);
}

static void aside_done(uv_work_t *work, int status)
{
    struct aside *aside = work->data;
    (void)status; /* nobody cancels it */
    aside->done(aside->arg);
    semel__free(aside);
}

bool semel__side_run(struct semel_side *side, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
    struct aside *aside = semel__calloc(1, sizeof(*aside));
    if (aside == NULL)
        return false;
    *aside = (struct aside){.run = work, .done = done, .arg = arg};
    aside->work.data = aside;
    if (side->open && uv_queue_work(semel__http_loop(side->http), &aside->work, aside_work, aside_done) == 0)
        return true;
    semel__free(aside);
    return false;
}
