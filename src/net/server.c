/* SPDX-License-Identifier: MIT
 *
 * server.c: the loop, the mail from other threads, stopping, reloading.
 *
 * Stopping: the listeners close, idle connections with them; the rest close by themselves after their reply; at
 * the deadline whatever is left is cut off. When the last one is gone the mail is closed, and the loop ends
 * because nothing keeps it.
 *
 * Invariants: libuv's loop is touched by its own thread alone, but for uv_async_send, which is called under the
 * mail's lock and only while the handle is open.
 */
#include "net/server.h"

#include <assert.h>
#include <signal.h>
#include <time.h>

#include "base/error.h"

void semel__mail_take(void *ctx)
{
    struct semel_mail *mail = ctx;
    pthread_mutex_lock(&mail->lock);
    mail->refs++;
    pthread_mutex_unlock(&mail->lock);
}

void semel__mail_gone(void *ctx)
{
    struct semel_mail *mail = ctx;
    pthread_mutex_lock(&mail->lock);
    bool last = --mail->refs == 0;
    pthread_mutex_unlock(&mail->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&mail->lock);
    semel__free(mail);
}

void semel__mail_back(void *ctx, struct semel_http_exchange *x)
{
    struct semel_mail *mail = ctx;
    pthread_mutex_lock(&mail->lock);
    bool open = mail->wake != NULL;
    if (open) {
        x->next = NULL;
        *mail->last = x;
        mail->last = &x->next;
        uv_async_send(mail->wake);
    }
    pthread_mutex_unlock(&mail->lock);
    if (!open)
        semel__exchange_free(x);
}

/* One request with one of libuv's threads. The loop does not end before it is done. */
struct aside {
    uv_work_t work;
    struct semel_http_exchange *x;
};

static void aside_work(uv_work_t *work)
{
    struct semel_http_exchange *x = ((struct aside *)work->data)->x;
    x->req.route->handle(x->req.route->ctx, x);
}

static void aside_done(uv_work_t *work, int status)
{
    (void)status;
    semel__free(work->data);
}

bool semel__mail_aside(void *ctx, struct semel_http_exchange *x)
{
    struct semel_mail *mail = ctx;
    struct aside *aside = semel__alloc(sizeof(*aside));
    if (aside == NULL)
        return false;
    aside->x = x;
    aside->work.data = aside;
    if (uv_queue_work(mail->wake->loop, &aside->work, aside_work, aside_done) == 0)
        return true;
    semel__free(aside);
    return false;
}

static struct semel_http_exchange *mail_empty(struct semel_mail *mail)
{
    struct semel_http_exchange *first = mail->first;
    mail->first = NULL;
    mail->last = &mail->first;
    return first;
}

static void answer_all(struct semel_http_exchange *x)
{
    while (x != NULL) {
        struct semel_http_exchange *next = x->next;
        struct semel_conn *conn = x->conn;
        if (conn == NULL) {
            semel__conn_retire(x->env, x);
        } else {
            semel__conn_answered(conn, x);
            semel__peer_pump(conn->owner);
        }
        x = next;
    }
}

/* No mail any more: answers that come from now on go nowhere. */
static void finish(struct semel_http *http)
{
    if (http->finished)
        return;
    http->finished = true;
    pthread_mutex_lock(&http->mail->lock);
    http->mail->wake = NULL;
    struct semel_http_exchange *late = mail_empty(http->mail);
    pthread_mutex_unlock(&http->mail->lock);
    answer_all(late); /* their connections are gone */
    uv_close((uv_handle_t *)&http->wake, NULL);
    uv_close((uv_handle_t *)&http->deadline, NULL);
}

void semel__server_peer_gone(struct semel_http *http)
{
    if (http->stopping && http->peers == NULL)
        finish(http);
}

static void on_deadline(uv_timer_t *timer)
{
    struct semel_http *http = timer->data;
    for (struct semel_peer *peer = http->peers; peer != NULL; peer = peer->next)
        semel__peer_close(peer);
}

static void stop_now(struct semel_http *http, uint64_t deadline_ms)
{
    uint64_t now = uv_now(&http->loop);
    uint64_t at = deadline_ms > UINT64_MAX - now ? UINT64_MAX : now + deadline_ms;
    if (!http->stopping || at < http->stop_at) {
        http->stop_at = at;
        uv_timer_start(&http->deadline, on_deadline, deadline_ms, 0);
    }
    http->stopping = true;
    for (struct semel_http_listener *listener = http->listeners; listener != NULL; listener = listener->next)
        semel__listener_close(listener);
    for (struct semel_peer *peer = http->peers; peer != NULL; peer = peer->next) {
        if (peer->conn != NULL)
            semel__conn_drain(peer->conn);
        semel__peer_pump(peer);
    }
    semel__server_peer_gone(http);
}

static void on_wake(uv_async_t *wake)
{
    struct semel_http *http = wake->data;
    struct semel_mail *mail = http->mail;
    pthread_mutex_lock(&mail->lock);
    struct semel_http_exchange *x = mail_empty(mail);
    bool stop = mail->stop;
    uint64_t stop_ms = mail->stop_ms;
    mail->stop = false;
    pthread_mutex_unlock(&mail->lock);
    answer_all(x);
    if (stop && !http->finished)
        stop_now(http, stop_ms);
}

void semel__http_stop(struct semel_http *http, uint64_t deadline_ms)
{
    struct semel_mail *mail = http->mail;
    pthread_mutex_lock(&mail->lock);
    if (!mail->stop || deadline_ms < mail->stop_ms)
        mail->stop_ms = deadline_ms;
    mail->stop = true;
    if (mail->wake != NULL)
        uv_async_send(mail->wake);
    pthread_mutex_unlock(&mail->lock);
}

static semel_status uv_fault(struct semel_error *err, const char *what, int error)
{
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s: %s", what, uv_strerror(error));
}

static struct semel_mail *mail_new(uv_async_t *wake)
{
    struct semel_mail *mail = semel__calloc(1, sizeof(*mail));
    if (mail == NULL)
        return NULL;
    *mail = (struct semel_mail){.refs = 1, .wake = wake, .last = &mail->first};
    pthread_mutex_init(&mail->lock, NULL);
    return mail;
}

semel_status semel__http_new(struct semel_http **ret, const struct semel_clock *clock, struct semel_error *err)
{
    struct semel_http *http = semel__calloc(1, sizeof(*http));
    if (http == NULL)
        return semel__fail_memory(err);
    http->mail = mail_new(&http->wake);
    if (http->mail == NULL) {
        semel__free(http);
        return semel__fail_memory(err);
    }
    int error = uv_loop_init(&http->loop);
    bool looped = error == 0;
    if (looped)
        error = uv_async_init(&http->loop, &http->wake, on_wake);
    if (error < 0) {
        if (looped)
            uv_loop_close(&http->loop);
        semel__mail_gone(http->mail);
        semel__free(http);
        return uv_fault(err, "event loop", error);
    }
    uv_timer_init(&http->loop, &http->deadline);
    http->wake.data = http->deadline.data = http;
    http->max_peers = SIZE_MAX;
    http->clock = clock != NULL ? clock : &semel__clock_real;
    *ret = http;
    return SEMEL_OK;
}

void semel__http_bound(struct semel_http *http, size_t connections)
{
    assert(!http->ran);
    http->max_peers = connections;
}

/* libuv writes with write(2), which raises SIGPIPE in the thread that calls it: it is blocked meanwhile, and one that
 * is pending at the end is taken away before it is let through again. */
semel_status semel__http_run(struct semel_http *http, struct semel_error *err)
{
    sigset_t pipe, old, pending;
    const struct timespec at_once = {0, 0};
    assert(!http->ran);
    http->ran = true;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    int error = -pthread_sigmask(SIG_BLOCK, &pipe, &old);
    if (error < 0)
        return uv_fault(err, "SIGPIPE", error);
    uv_run(&http->loop, UV_RUN_DEFAULT);
    if (!sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return SEMEL_OK;
}

semel_status semel__http_reload(struct semel_http *http, struct semel_error *err)
{
    struct semel_tls_context **fresh;
    size_t n = 0, done = 0;
    for (const struct semel_http_listener *l = http->listeners; l != NULL; l = l->next)
        n++;
    fresh = semel__calloc(n + 1, sizeof(struct semel_tls_context *));
    if (fresh == NULL)
        return semel__fail_memory(err);
    semel_status status = SEMEL_OK;
    for (const struct semel_http_listener *l = http->listeners; l != NULL && status == SEMEL_OK; l = l->next, done++)
        if (l->cert_file != NULL)
            status = semel__tls_context_new(&fresh[done], l->cert_file, l->key_file, l->client_ca_file, err);
    size_t i = 0;
    for (struct semel_http_listener *l = http->listeners; l != NULL; l = l->next, i++) {
        struct semel_tls_context *old = fresh[i];
        if (status == SEMEL_OK && fresh[i] != NULL) {
            pthread_mutex_lock(&l->tls_lock);
            old = l->tls;
            l->tls = fresh[i];
            pthread_mutex_unlock(&l->tls_lock);
        }
        semel__tls_context_unref(old);
    }
    semel__free(fresh);
    return status;
}

void semel__http_free(struct semel_http *http)
{
    if (http == NULL)
        return;
    if (!http->finished) { /* it never ran, or was never stopped */
        http->stopping = true;
        for (struct semel_http_listener *l = http->listeners; l != NULL; l = l->next)
            semel__listener_close(l);
        for (struct semel_peer *peer = http->peers; peer != NULL; peer = peer->next)
            semel__peer_close(peer);
        semel__server_peer_gone(http);
        uv_run(&http->loop, UV_RUN_DEFAULT);
    }
    int error = uv_loop_close(&http->loop);
    assert(error == 0);
    (void)error;
    struct semel_http_listener *listener = http->listeners;
    while (listener != NULL) {
        struct semel_http_listener *next = listener->next;
        semel__listener_free(listener);
        listener = next;
    }
    semel__mail_gone(http->mail);
    semel__free(http);
}
