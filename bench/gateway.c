/* SPDX-License-Identifier: MIT
 *
 * gateway.c: what the gateway is measured by: a server behind it and clients in front of it, one thread each.
 *   gateway serve      an HTTP server on a free port of loopback, which it prints. It answers every POST with 201 and
 *                      100 bytes of JSON. GET /calls answers with the number of POSTs since the last /calls, and of
 *                      those whose Idempotency-Key ended in a number that had come before.
 *   gateway load PORT CLIENTS MS PATH KEY REPLAYED
 *                      POSTs 200 bytes of JSON by so many keep-alive connections, each of which sends the next request
 *                      when it has its answer. A KEY that ends in "-" gets the number of the request, one that ends in
 *                      "." that of the client. Every answer must be 201, and have Idempotent-Replayed or not as
 *                      REPLAYED wants it: yes, no, or any. A fifth of MS warms up, then MS are measured. Prints answers
 *                      per second, the median and the 99th percentile of their time in microseconds, and how many
 *                      requests were sent in all.
 *
 * Anything unexpected ends it with code 1: there is no result then.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "gateway"
#include "program.h"

#define BUF_MAX 8192
#define CLIENTS_MAX 1024
#define EVENTS_MAX 64
#define REQUESTS_MAX (1 << 22)
#define MS_MAX 600000
#define PATIENCE_MS 30000

struct conn {
    int fd;
    size_t len;
    int64_t sent_us;
    char buf[BUF_MAX + 1];
};

static void watch(int epoll, struct conn *conn)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = conn};
    const int on = 1;
    (void)setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, conn->fd, &event) != 0)
        fail("epoll_ctl", strerror(errno));
}

/* ---- messages: a head, and a body whose length it tells ----------------------------------------------- */

/* The value of a header of the head that ends at `end`; NULL: it is not there. */
static const char *header(const char *head, const char *end, const char *name)
{
    const size_t len = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line != NULL && line < end; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, len) == 0 && line[len] == ':')
            return line + len + 1 + strspn(line + len + 1, " ");
    }
    return NULL;
}

/* The length of the first message in the buffer, 0 if it is not complete. *end is where its head ends. */
static ssize_t message(const struct conn *conn, const char **end)
{
    *end = strstr(conn->buf, "\r\n\r\n");
    if (*end == NULL)
        return 0;
    const char *length = header(conn->buf, *end, "content-length");
    const size_t whole = (size_t)(*end + 4 - conn->buf) + (length != NULL ? strtoul(length, NULL, 10) : 0);
    if (whole > BUF_MAX)
        fail("a message", "too long");
    return whole <= conn->len ? (ssize_t)whole : 0;
}

static bool receive(struct conn *conn)
{
    if (conn->len == BUF_MAX)
        fail("a message", "too long");
    const ssize_t got = recv(conn->fd, conn->buf + conn->len, BUF_MAX - conn->len, 0);
    if (got <= 0)
        return false;
    conn->len += (size_t)got;
    conn->buf[conn->len] = '\0';
    return true;
}

static void consume(struct conn *conn, size_t len)
{
    memmove(conn->buf, conn->buf + len, conn->len - len + 1);
    conn->len -= len;
}

static void put(const struct conn *conn, const char *text, int len)
{
    if (send(conn->fd, text, (size_t)len, MSG_NOSIGNAL) != len)
        fail("send", strerror(errno));
}

/* ---- the server --------------------------------------------------------------------------------------- */

static bool seen[REQUESTS_MAX];
static uint64_t calls, doubled;

static void count(const char *key)
{
    calls++;
    const size_t len = key != NULL ? strcspn(key, "\r") : 0;
    size_t at = len;
    while (at > 0 && key[at - 1] >= '0' && key[at - 1] <= '9')
        at--;
    if (at == len)
        return;
    const unsigned long n = strtoul(key + at, NULL, 10);
    if (n >= REQUESTS_MAX || seen[n])
        doubled++;
    else
        seen[n] = true;
}

static void answer(struct conn *conn, const char *end)
{
    char text[512], body[128];
    int len;
    if (strncmp(conn->buf, "GET /calls ", 11) == 0) {
        len = snprintf(body, sizeof body, "%" PRIu64 " %" PRIu64 "\n", calls, doubled);
        calls = doubled = 0;
        memset(seen, 0, sizeof seen);
        len = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len, body);
    } else {
        count(header(conn->buf, end, "idempotency-key"));
        len = snprintf(text, sizeof text,
                       "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
                       "{\"charge\": \"%086d\"}",
                       1);
    }
    put(conn, text, len);
}

static void serve(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof to;
    struct conn listener = {.fd = socket(AF_INET, SOCK_STREAM, 0)};
    if (bind(listener.fd, (struct sockaddr *)&to, size) != 0 || listen(listener.fd, SOMAXCONN) != 0 ||
        getsockname(listener.fd, (struct sockaddr *)&to, &size) != 0)
        fail("listen", strerror(errno));
    printf("%d\n", ntohs(to.sin_port));
    fflush(stdout);
    const int epoll = epoll_create1(0);
    watch(epoll, &listener);
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        const int n = epoll_wait(epoll, events, EVENTS_MAX, -1);
        for (int i = 0; i < n; i++) {
            struct conn *conn = events[i].data.ptr;
            const char *end;
            ssize_t len;
            if (conn == &listener) {
                conn = calloc(1, sizeof *conn);
                if (conn == NULL || (conn->fd = accept(listener.fd, NULL, NULL)) < 0)
                    fail("accept", strerror(errno));
                watch(epoll, conn);
            } else if (!receive(conn)) {
                close(conn->fd);
                free(conn);
            } else {
                while ((len = message(conn, &end)) > 0) {
                    answer(conn, end);
                    consume(conn, (size_t)len);
                }
            }
        }
    }
}

/* ---- the clients -------------------------------------------------------------------------------------- */

struct load {
    const char *path, *key, *replayed;
    uint16_t port;
    int epoll;
    struct conn *conns;
    int64_t measure_us, stop_us;
    uint32_t *took_us; /* those that were answered while it was measured */
    size_t answered, sent, running;
};

static void request(struct load *load, struct conn *conn)
{
    char text[1024], key[64] = "";
    if (load->sent == REQUESTS_MAX)
        fail("load", "too many requests for one round");
    const char last = load->key[strlen(load->key) - 1];
    if (last == '-' || last == '.')
        snprintf(key, sizeof key, "%010zu", last == '-' ? load->sent : (size_t)(conn - load->conns));
    const int len = snprintf(text, sizeof text,
                             "POST %s HTTP/1.1\r\nHost: bench\r\nX-User-Id: bench\r\nIdempotency-Key: %s%s\r\n"
                             "Content-Type: application/json\r\nContent-Length: 200\r\n\r\n{\"charge\": \"%0186d\"}",
                             load->path, load->key, key, 1);
    load->sent++;
    load->running++;
    conn->sent_us = now_us();
    put(conn, text, len);
}

static void connect_client(const struct load *load, struct conn *conn)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons(load->port);
    conn->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(conn->fd, (struct sockaddr *)&to, sizeof to) != 0)
        fail("connect", strerror(errno));
    watch(load->epoll, conn);
}

static void check(const struct load *load, const struct conn *conn, const char *end)
{
    const bool replayed = header(conn->buf, end, "idempotent-replayed") != NULL;
    if (strncmp(conn->buf, "HTTP/1.1 201 ", 13) != 0 || (strcmp(load->replayed, "yes") == 0 && !replayed) ||
        (strcmp(load->replayed, "no") == 0 && replayed))
        fail("not the answer that was expected", conn->buf);
}

static void answered(struct load *load, struct conn *conn)
{
    const char *end;
    if (!receive(conn))
        fail("load", "a connection was closed");
    const ssize_t len = message(conn, &end);
    if (len == 0)
        return;
    check(load, conn, end);
    if ((size_t)len != conn->len)
        fail("more than one answer to one request", conn->buf);
    const char *connection = header(conn->buf, end, "connection");
    if (connection != NULL && strncasecmp(connection, "close", 5) == 0) { /* servers bound a connection's requests */
        close(conn->fd);
        connect_client(load, conn);
    }
    conn->len = 0;
    load->running--;
    const int64_t now = now_us();
    if (now >= load->measure_us && now < load->stop_us)
        load->took_us[load->answered++] = (uint32_t)(now - conn->sent_us);
    if (now < load->stop_us)
        request(load, conn);
}

static int by_time(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void run(struct load *load, long clients, long ms)
{
    load->conns = calloc((size_t)clients, sizeof *load->conns);
    load->epoll = epoll_create1(0);
    load->took_us = calloc(REQUESTS_MAX, sizeof *load->took_us);
    if (load->conns == NULL || load->took_us == NULL)
        fail("load", "no memory");
    load->measure_us = now_us() + ms * 200;
    load->stop_us = load->measure_us + ms * 1000;
    for (long i = 0; i < clients; i++) {
        connect_client(load, &load->conns[i]);
        request(load, &load->conns[i]);
    }
    while (load->running > 0) {
        struct epoll_event events[EVENTS_MAX];
        const int n = epoll_wait(load->epoll, events, EVENTS_MAX, PATIENCE_MS);
        if (n == 0)
            fail("load", "no answer for 30 s");
        for (int i = 0; i < n; i++)
            answered(load, events[i].data.ptr);
    }
    qsort(load->took_us, load->answered, sizeof *load->took_us, by_time);
    printf("%.1f %" PRIu32 " %" PRIu32 " %zu\n", (double)load->answered * 1e3 / (double)ms,
           load->took_us[load->answered / 2], load->took_us[load->answered * 99 / 100], load->sent);
    free(load->took_us);
    free(load->conns);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "serve") == 0) {
        serve();
    } else if (argc == 8 && strcmp(argv[1], "load") == 0 && argv[6][0] != '\0') {
        struct load load = {.path = argv[5], .key = argv[6], .replayed = argv[7]};
        load.port = (uint16_t)number(argv[2], UINT16_MAX);
        run(&load, number(argv[3], CLIENTS_MAX), number(argv[4], MS_MAX));
    } else {
        fail("usage", "gateway serve | gateway load PORT CLIENTS MS PATH KEY yes|no|any");
    }
    return 0;
}
