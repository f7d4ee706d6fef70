/* SPDX-License-Identifier: MIT
 *
 * hostile.c: an HTTP server of the test's own. See hostile.h.
 */
#include "sqs/hostile.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

struct connection {
    struct hostile *hostile;
    int fd;
};

static _Noreturn void fail_hostile(const char *what)
{
    fprintf(stderr, "the test's own server: %s\n", what);
    exit(1);
}

bool hostile_send(int fd, const char *text, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        text += sent;
        n -= (size_t)sent;
    }
    return true;
}

bool hostile_reply(int fd, int status, const char *body)
{
    char head[256];

    snprintf(head, sizeof head,
             "HTTP/1.1 %d Whatever\r\nContent-Type: application/x-amz-json-1.0\r\n"
             "Content-Length: %zu\r\n\r\n",
             status, strlen(body));
    return hostile_send(fd, head, strlen(head)) && hostile_send(fd, body, strlen(body));
}

bool hostile_hold(struct hostile *hostile, int fd)
{
    char byte;

    while (!hostile->stop) {
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        if (poll(&waiting, 1, 20) > 0 && recv(fd, &byte, 1, MSG_PEEK) <= 0)
            break;
    }
    return false;
}

const char *hostile_header(const struct hostile_request *request, const char *name, char *out, size_t size)
{
    const size_t n = strlen(name);

    out[0] = '\0';
    for (const char *line = strstr(request->head, "\r\n"); line != NULL; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':') {
            const char *value = line + 2 + n + 1 + strspn(line + 2 + n + 1, " ");
            snprintf(out, size, "%.*s", (int)strcspn(value, "\r"), value);
            break;
        }
    return out;
}

/* What has been read of a connection and belongs to the next request. */
struct stream {
    char text[HOSTILE_REQUEST + 1];
    size_t n;
};

static bool read_more(int fd, struct stream *stream)
{
    const ssize_t n = recv(fd, stream->text + stream->n, HOSTILE_REQUEST - stream->n, 0);

    if (n <= 0)
        return false;
    stream->n += (size_t)n;
    stream->text[stream->n] = '\0';
    return true;
}

/* One whole request; false: there is none any more. */
static bool read_request(int fd, struct stream *stream, struct hostile_request *request)
{
    char text[128];
    const char *end;
    size_t n_head;

    while ((end = strstr(stream->text, "\r\n\r\n")) == NULL)
        if (!read_more(fd, stream))
            return false;
    n_head = (size_t)(end - stream->text) + 4;
    if (n_head >= sizeof request->head)
        fail_hostile("a head that is too long");
    memcpy(request->head, stream->text, n_head);
    request->head[n_head] = '\0';
    hostile_header(request, "X-Amz-Target", text, sizeof text);
    snprintf(request->action, sizeof request->action, "%s", strchr(text, '.') != NULL ? strchr(text, '.') + 1 : text);
    request->n_body = strtoul(hostile_header(request, "Content-Length", text, sizeof text), NULL, 10);
    while (stream->n < n_head + request->n_body)
        if (!read_more(fd, stream))
            return false;
    request->body = strndup(stream->text + n_head, request->n_body);
    stream->n -= n_head + request->n_body;
    memmove(stream->text, stream->text + n_head + request->n_body, stream->n + 1);
    request->nth++;
    return true;
}

static void count(struct hostile *hostile, const char *action)
{
    hostile->requests++;
    hostile->receives += strcmp(action, "ReceiveMessage") == 0;
    hostile->deletes += strcmp(action, "DeleteMessageBatch") == 0;
    hostile->changes += strcmp(action, "ChangeMessageVisibilityBatch") == 0;
    hostile->sends += strcmp(action, "SendMessageBatch") == 0;
}

static void *serve(void *ctx)
{
    struct connection *connection = ctx;
    struct hostile *hostile = connection->hostile;
    struct hostile_request *request = calloc(1, sizeof *request);
    struct stream *stream = calloc(1, sizeof *stream);
    const int fd = connection->fd;
    bool go_on = true;

    free(connection);
    while (go_on && read_request(fd, stream, request)) {
        count(hostile, request->action);
        go_on = hostile->answer(hostile, request, fd);
        free(request->body);
    }
    shutdown(fd, SHUT_RDWR); /* closed by hostile_stop: the number must not be another's */
    free(stream);
    free(request);
    return NULL;
}

static void *take_connections(void *ctx)
{
    struct hostile *hostile = ctx;

    for (;;) {
        struct connection *connection;
        const int fd = accept(hostile->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        connection = malloc(sizeof *connection);
        *connection = (struct connection){hostile, fd};
        if (hostile->n_threads == HOSTILE_CONNECTIONS)
            fail_hostile("too many connections");
        hostile->fds[hostile->n_threads] = fd;
        if (pthread_create(&hostile->threads[hostile->n_threads++], NULL, serve, connection) != 0)
            fail_hostile("no thread");
    }
}

void hostile_start(struct hostile *hostile,
                   bool (*answer)(struct hostile *hostile, const struct hostile_request *request, int fd), void *ctx)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;

    memset(hostile, 0, sizeof *hostile);
    hostile->answer = answer;
    hostile->ctx = ctx;
    hostile->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (hostile->fd < 0 || bind(hostile->fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(hostile->fd, 16) != 0 || getsockname(hostile->fd, (struct sockaddr *)&address, &n) != 0)
        fail_hostile("no socket");
    hostile->port = ntohs(address.sin_port);
    if (pthread_create(&hostile->thread, NULL, take_connections, hostile) != 0)
        fail_hostile("no thread");
}

void hostile_stop(struct hostile *hostile)
{
    hostile->stop = true;
    shutdown(hostile->fd, SHUT_RDWR);
    pthread_join(hostile->thread, NULL);
    close(hostile->fd);
    for (size_t i = 0; i < hostile->n_threads; i++) {
        shutdown(hostile->fds[i], SHUT_RDWR);
        pthread_join(hostile->threads[i], NULL);
        close(hostile->fds[i]);
    }
}
