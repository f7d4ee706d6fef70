/* SPDX-License-Identifier: MIT
 *
 * upstream.c: an HTTP server for tests that says whatever bytes it is told to.
 */
#define _GNU_SOURCE /* accept4, strcasestr */
#include "handler/upstream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- bytes --------------------------------------------------------------------------------------- */

bool link_send(struct link *link, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t sent = link->ssl != NULL ? SSL_write(link->ssl, p, (int)n) : send(link->fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        p += sent;
        n -= (size_t)sent;
    }
    return true;
}

bool link_sendz(struct link *link, const char *text)
{
    return link_send(link, text, strlen(text));
}

static ssize_t link_read(struct link *link, char *p, size_t n)
{
    return link->ssl != NULL ? SSL_read(link->ssl, p, (int)n) : recv(link->fd, p, n, 0);
}

/* ---- requests ------------------------------------------------------------------------------------ */

static size_t length_of(const char *head)
{
    const char *at = strcasestr(head, "\r\nContent-Length:");
    return at != NULL ? strtoul(at + 17, NULL, 10) : 0;
}

/* Byte by byte, so that nothing of the body is taken with it. */
static bool read_head(struct link *link, char *head, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && (n < 4 || memcmp(head + n - 4, "\r\n\r\n", 4) != 0)) {
        if (link_read(link, head + n, 1) != 1)
            return false;
        n++;
    }
    head[n] = '\0';
    return true;
}

static bool read_body(struct link *link, char *body, size_t size, size_t length)
{
    char bytes[4096];
    for (size_t n = 0; n < length;) {
        ssize_t got = link_read(link, bytes, length - n < sizeof bytes ? length - n : sizeof bytes);
        if (got <= 0)
            return false;
        for (ssize_t i = 0; i < got && n + (size_t)i < size; i++)
            body[n + (size_t)i] = bytes[i];
        n += (size_t)got;
    }
    return true;
}

static bool serve_one(struct link *link)
{
    struct upstream *up = link->up;
    static _Thread_local char head[sizeof up->head], body[sizeof up->body];
    if (!read_head(link, head, sizeof head))
        return false;
    link->nth++;
    pthread_mutex_lock(&up->lock);
    up->heads++;
    up->most = link->nth > up->most ? link->nth : up->most;
    upstream_script early = up->early;
    pthread_mutex_unlock(&up->lock);
    if (early != NULL && !early(link))
        return false;
    size_t length = length_of(head);
    memset(body, 0, sizeof body);
    if (!read_body(link, body, sizeof body - 1, length))
        return false;
    pthread_mutex_lock(&up->lock);
    memcpy(up->head, head, sizeof head);
    memcpy(up->body, body, sizeof body);
    up->n_body = length;
    up->requests++;
    const char *answer = up->answer;
    upstream_script script = up->script;
    pthread_cond_broadcast(&up->changed);
    pthread_mutex_unlock(&up->lock);
    return script != NULL ? script(link) : link_sendz(link, answer);
}

static void *serve(void *ctx)
{
    struct link *link = ctx;
    sigset_t pipe; /* OpenSSL's writes raise it; on the side of the caller nobody blocks it */
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    int idle_ms = link->up->idle_ms > 0 ? link->up->idle_ms : WAIT_MS;
    struct timeval limit = {.tv_sec = idle_ms / 1000, .tv_usec = (long)(idle_ms % 1000) * 1000};
    setsockopt(link->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(link->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    bool ready = true;
    if (link->up->tls != NULL) {
        link->ssl = SSL_new(link->up->tls);
        SSL_set_fd(link->ssl, link->fd);
        ready = SSL_accept(link->ssl) == 1;
    }
    while (ready && serve_one(link))
        continue;
    if (link->ssl != NULL)
        SSL_free(link->ssl);
    pthread_mutex_lock(&link->up->lock);
    shutdown(link->fd, SHUT_RDWR);
    close(link->fd);
    link->fd = -1;
    pthread_mutex_unlock(&link->up->lock);
    return NULL;
}

static void *listen_on(void *ctx)
{
    struct upstream *up = ctx;
    for (;;) {
        int fd = accept4(up->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return NULL;
        pthread_mutex_lock(&up->lock);
        bool take = !up->stop && up->n_links < UPSTREAM_CONNECTIONS;
        struct link *link = &up->links[take ? up->n_links++ : 0];
        if (take) {
            *link = (struct link){.up = up, .fd = fd};
            pthread_create(&link->thread, NULL, serve, link);
        }
        pthread_mutex_unlock(&up->lock);
        if (!take)
            close(fd);
    }
}

void upstream_start(struct upstream *up)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    pthread_mutex_init(&up->lock, NULL);
    pthread_cond_init(&up->changed, NULL);
    up->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(up->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(up->listener, UPSTREAM_CONNECTIONS), 0);
    assert_int_equal(getsockname(up->listener, (struct sockaddr *)&address, &n), 0);
    up->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&up->thread, NULL, listen_on, up), 0);
}

void upstream_stop(struct upstream *up)
{
    pthread_mutex_lock(&up->lock);
    up->stop = up->released = true;
    for (size_t i = 0; i < up->n_links; i++)
        if (up->links[i].fd >= 0)
            shutdown(up->links[i].fd, SHUT_RDWR);
    pthread_cond_broadcast(&up->changed);
    pthread_mutex_unlock(&up->lock);
    shutdown(up->listener, SHUT_RDWR);
    pthread_join(up->thread, NULL);
    close(up->listener);
    for (size_t i = 0; i < up->n_links; i++)
        pthread_join(up->links[i].thread, NULL);
    pthread_mutex_destroy(&up->lock);
    pthread_cond_destroy(&up->changed);
}

/* ---- waiting ------------------------------------------------------------------------------------- */

void upstream_wait_requests(struct upstream *up, unsigned n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&up->lock);
    while (up->requests < n)
        if (pthread_cond_timedwait(&up->changed, &up->lock, &until) == ETIMEDOUT)
            fail_msg("%u of %u requests came", up->requests, n);
    pthread_mutex_unlock(&up->lock);
}

void upstream_release(struct upstream *up)
{
    pthread_mutex_lock(&up->lock);
    up->released = true;
    pthread_cond_broadcast(&up->changed);
    pthread_mutex_unlock(&up->lock);
}

void upstream_answer(struct upstream *up, const char *answer)
{
    pthread_mutex_lock(&up->lock);
    up->answer = answer;
    pthread_mutex_unlock(&up->lock);
}

void upstream_play(struct upstream *up, upstream_script script)
{
    pthread_mutex_lock(&up->lock);
    up->script = script;
    pthread_mutex_unlock(&up->lock);
}

void upstream_play_early(struct upstream *up, upstream_script early)
{
    pthread_mutex_lock(&up->lock);
    up->early = early;
    pthread_mutex_unlock(&up->lock);
}

const struct upstream_seen *upstream_seen(struct upstream *up)
{
    struct upstream_seen *seen = &up->seen;
    pthread_mutex_lock(&up->lock);
    seen->requests = up->requests;
    seen->heads = up->heads;
    seen->most = up->most;
    seen->n_links = up->n_links;
    seen->n_body = up->n_body;
    memcpy(seen->head, up->head, sizeof seen->head);
    memcpy(seen->body, up->body, sizeof seen->body);
    pthread_mutex_unlock(&up->lock);
    return seen;
}

bool link_wait_release(struct link *link)
{
    struct upstream *up = link->up;
    pthread_mutex_lock(&up->lock);
    while (!up->released)
        pthread_cond_wait(&up->changed, &up->lock);
    bool go = !up->stop;
    pthread_mutex_unlock(&up->lock);
    return go;
}

bool script_hold(struct link *link)
{
    if (!link_wait_release(link))
        return false;
    pthread_mutex_lock(&link->up->lock);
    const char *answer = link->up->answer;
    pthread_mutex_unlock(&link->up->lock);
    return link_sendz(link, answer);
}

bool script_close(struct link *link)
{
    (void)link;
    return false;
}

/* ---- a caller in front of it --------------------------------------------------------------------- */

void rig_start(struct rig *rig)
{
    upstream_start(&rig->up);
    rig->up.answer = OK_EMPTY;
    snprintf(rig->url, sizeof rig->url, "http://127.0.0.1:%u/effect", rig->up.port);
    snprintf(rig->reconcile, sizeof rig->reconcile, "http://127.0.0.1:%u/ask/{key}?id={id}", rig->up.port);
    rig->settings = (struct semel_http_caller_settings){
        .url = rig->url,
        .reconcile_url = rig->reconcile,
        .timeout_us = INT64_C(1000) * WAIT_MS,
        .concurrency = 4,
    };
    semel__msg_init(&rig->msg);
    rig->msg.source = SEMEL_STR("orders");
    rig->msg.id = SEMEL_STR("m-1");
    rig->msg.payload = SEMEL_STR("{\"cents\":1}");
}

void rig_drop(struct rig *rig)
{
    if (rig->caller != NULL) {
        struct semel_call_end ends[8];
        semel__caller_cancel(rig->caller);
        while (semel__caller_wait(rig->caller, 0, -1, ends, COUNT(ends)) > 0)
            continue;
    }
    semel__caller_free(rig->caller);
    rig->caller = NULL;
}

void rig_stop(struct rig *rig)
{
    rig_drop(rig);
    upstream_stop(&rig->up);
}

void rig_call(struct rig *rig, const struct semel__msg *msg, bool ask)
{
    struct semel_call call = {
        .tag = (void *)msg, .consumer = SEMEL_STR("billing"), .msg = msg, .attempt = 1, .ask = ask};
    if (rig->caller == NULL && semel__http_caller_new(&rig->caller, &rig->settings, &rig->err) != SEMEL_OK)
        fail_msg("%s", rig->err.text);
    assert_true(semel__step_key(call.consumer, msg->source, msg->id, SEMEL_STR("effect"), call.key));
    semel__caller_start(rig->caller, &call);
}

struct semel_call_end *rig_wait(struct rig *rig)
{
    assert_int_equal(semel__caller_wait(rig->caller, 2 * WAIT_MS, -1, &rig->end, 1), 1);
    return &rig->end;
}

struct semel_call_end *rig_ask(struct rig *rig, bool ask)
{
    rig_call(rig, &rig->msg, ask);
    return rig_wait(rig);
}

struct semel_call_end *rig_answer(struct rig *rig, const char *answer)
{
    pthread_mutex_lock(&rig->up.lock);
    rig->up.answer = answer;
    pthread_mutex_unlock(&rig->up.lock);
    return rig_ask(rig, false);
}

bool rig_saw(const struct rig *rig, const char *line)
{
    char whole[512];
    snprintf(whole, sizeof whole, "\r\n%s\r\n", line);
    return strstr(rig->up.head, whole) != NULL;
}

void assert_result(const struct semel_call_end *end, enum semel_result result)
{
    if (end->status != SEMEL_OK)
        fail_msg("%s: %s", semel__status_name(end->status), end->err.text);
    assert_string_equal(semel__result_name(end->result), semel__result_name(result));
}

void assert_not_sent(const struct semel_call_end *end, semel_status status, enum semel_class cls)
{
    assert_string_equal(semel__status_name(end->status), semel__status_name(status));
    assert_string_equal(semel__class_name(end->err.cls), semel__class_name(cls));
    assert_true(end->err.text[0] != '\0');
}
