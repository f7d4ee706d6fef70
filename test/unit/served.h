/* SPDX-License-Identifier: MIT
 *
 * served.h: a server of admin, ingest and pull on loopback, by settings that a test gives; the client is httpd.h's.
 */
#ifndef SEMEL_TEST_SERVED_H
#define SEMEL_TEST_SERVED_H

#include <pthread.h>
#include <unistd.h>

#include "admin/serve_private.h"
#include "unit/conf.h"
#include "unit/httpd.h"

#define IN_TOKEN "0123456789abcdef-in"
#define OUT_TOKEN "0123456789abcdef-out"
#define READ_TOKEN "0123456789abcdef-read"

/* `in` listens for a statement, `out` is taken from, `both` listens and is taken from; all at one address. */
#define SERVED_ROUTES                                                                           \
    "store: sqlite:x.db\n"                                                                      \
    "admin: {listen: 127.0.0.2:0}\n"                                                            \
    "routes:\n"                                                                                 \
    "  in:\n"                                                                                   \
    "    from: {listen: 127.0.0.1:0, token: \"${IN_TOKEN}\", source: shop, body_max: 200000}\n" \
    "    do: {sql: SELECT 1}\n"                                                                 \
    "  both:\n"                                                                                 \
    "    from: {listen: 127.0.0.1:0, token: \"${IN_TOKEN}\", path: /both/in, source: s}\n"      \
    "    do: {pull: 127.0.0.1:0, token: \"${OUT_TOKEN}\", path: /both/out, lease_max: 2m}\n"

struct served {
    struct reading reading;
    struct semel_stats *stats;
    struct semel_serve_view view;
    struct semel_serve *serve;
    struct semel_error err;
    struct httpd client, admin; /* only their ports are used */
    pthread_t thread;
    bool running;
};

static inline void *served_run(void *arg)
{
    struct served *s = arg;
    struct semel_error err;
    return semel__serve_run(s->serve, &err) == SEMEL_OK ? NULL : arg;
}

static inline semel_status served_open(struct served *s, const char *text)
{
    static const char *const env[] = {"IN_TOKEN", IN_TOKEN, "OUT_TOKEN", OUT_TOKEN, "READ_TOKEN", READ_TOKEN, NULL};
    s->reading.env = env;
    reading_ok(&s->reading, text);
    assert_int_equal(semel__stats_new(&s->stats, &s->err), SEMEL_OK);
    return semel__serve_new(&s->serve, s->reading.conf, s->stats, &s->view, NULL, &s->err);
}

/* Requests of all paths wait at most so long. */
static inline void served_patience(struct served *s, int64_t ms)
{
    s->serve->answer_ms = ms;
    for (size_t i = 0; i < s->serve->n_listeners; i++)
        for (size_t k = 0; k < s->serve->listeners[i].n_routes; k++)
            if (s->serve->listeners[i].routes[k].timeout_ms == SEMEL_ANSWER_MS)
                s->serve->listeners[i].routes[k].timeout_ms = (uint64_t)ms;
}

static inline void served_start(struct served *s)
{
    s->client.port = semel__serve_port(s->serve, SEMEL_STR("127.0.0.1:0"));
    s->admin.port = semel__serve_port(s->serve, SEMEL_STR("127.0.0.2:0"));
    assert_int_equal(pthread_create(&s->thread, NULL, served_run, s), 0);
    s->running = true;
}

static inline void served_stop(struct served *s)
{
    void *failed = NULL;
    if (!s->running)
        return;
    semel__serve_stop(s->serve, 5000);
    pthread_join(s->thread, &failed);
    s->running = false;
    assert_null(failed);
}

static inline void served_done(struct served *s)
{
    served_stop(s);
    semel__serve_free(s->serve);
    semel__stats_free(s->stats);
    reading_done(&s->reading);
}

static inline const struct semel_route *served_route(const struct served *s, const char *name)
{
    for (size_t i = 0; i < s->reading.conf->n_routes; i++)
        if (semel__str_eqz(s->reading.conf->routes[i].name, name))
            return &s->reading.conf->routes[i];
    fail_msg("no route %s", name);
    return NULL;
}

/* Sends a request on a connection of its own, which is returned. `more`: header lines, each with its end. */
static inline int served_post(const struct served *s, const char *path, const char *token, const char *more,
                              const void *body, size_t n)
{
    char head[4096];
    int fd = client_open(&s->client);
    snprintf(head, sizeof(head),
             "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %zu\r\n%s\r\n", path,
             token, n, more);
    client_sendz(fd, head);
    client_send(fd, body, n);
    return fd;
}

static inline struct reply served_reply(int fd)
{
    struct reply reply;
    assert_true(client_reply(fd, &reply, false));
    close(fd);
    return reply;
}

/* Its status, and that its body contains the text. */
static inline void assert_reply(struct reply reply, int status, const char *part)
{
    if (reply.status != status || strstr(reply.body, part) == NULL)
        fail_msg("%d %s, and not %d with %s", reply.status, reply.body, status, part);
    reply_done(&reply);
}

#endif
