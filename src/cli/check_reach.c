/* SPDX-License-Identifier: MIT
 *
 * check_reach.c: does anybody answer where a handler calls, and is its program there? See online.h.
 *
 * A server is reached when one of its addresses accepts a connection; it is closed again, and no byte is sent.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/wait.h"
#include "cli/online.h"

struct place {
    char host[256], port[8];
};

/* Of a URL of http or https, as conf has let it pass. */
static bool find_place(struct semel_str url, struct place *ret)
{
    const char *slashes = strstr(url.p, "://");
    const char *from = slashes != NULL ? slashes + 3 : url.p;
    const char *end = from + strcspn(from, "/?#");
    for (const char *p = from; p < end; p++)
        from = *p == '@' ? p + 1 : from;
    bool six = *from == '[';
    const char *stop = six ? memchr(from, ']', (size_t)(end - from)) : memchr(from, ':', (size_t)(end - from));
    const char *host = six ? from + 1 : from;
    if (six && stop == NULL)
        return false;
    size_t n = (size_t)((stop != NULL ? stop : end) - host);
    const char *port = stop != NULL ? stop + six : end;
    bool given = port + 1 < end && *port == ':';
    if (n == 0 || n >= sizeof(ret->host) || (given && (size_t)(end - port - 1) >= sizeof(ret->port)))
        return false;
    snprintf(ret->host, sizeof(ret->host), "%.*s", (int)n, host);
    if (given)
        snprintf(ret->port, sizeof(ret->port), "%.*s", (int)(end - port - 1), port + 1);
    else
        snprintf(ret->port, sizeof(ret->port), "%s", strncmp(url.p, "https:", 6) == 0 ? "443" : "80");
    return true;
}

static bool wait_connected(int fd, int64_t until_us)
{
    struct pollfd poller = {.fd = fd, .events = POLLOUT};
    socklen_t size = sizeof(int);
    int error = 0, n;
    do {
        int64_t left_ms = (until_us - semel__steady_us()) / 1000;
        n = poll(&poller, 1, left_ms > 0 ? (int)left_ms : 0);
    } while (n < 0 && errno == EINTR);
    if (n <= 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = n == 0 ? ETIMEDOUT : errno;
    errno = error;
    return error == 0;
}

/* false: errno says why. */
static bool connects(const struct addrinfo *at, int64_t until_us)
{
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0)
        return false;
    bool ok = connect(fd, at->ai_addr, at->ai_addrlen) == 0 || (errno == EINPROGRESS && wait_connected(fd, until_us));
    int error = errno;
    close(fd);
    errno = error;
    return ok;
}

static void ask_server(const struct online_asker *asker, const char *question, struct semel_str url)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    struct place place;
    online_ask(asker, question);
    if (!find_place(url, &place)) {
        online_tell(asker, ONLINE_FAILED, question, "the URL has no host and port that can be asked for");
        return;
    }
    int code = getaddrinfo(place.host, place.port, &hints, &found);
    if (code != 0) {
        online_tell(asker, ONLINE_FAILED, question, "cannot be reached: the name %s is not known: %s", place.host,
                    code == EAI_SYSTEM ? cli_errno() : gai_strerror(code));
        return;
    }
    const int64_t until_us = semel__steady_us() + ONLINE_ASK_MS * INT64_C(1000);
    bool ok = false;
    for (const struct addrinfo *at = found; at != NULL && !ok; at = at->ai_next)
        ok = connects(at, until_us);
    if (ok)
        online_tell(asker, ONLINE_OK, question, "%s port %s accepts connections", place.host, place.port);
    else
        online_tell(asker, ONLINE_FAILED, question, "cannot be reached: %s port %s: %s", place.host, place.port,
                    cli_errno());
    freeaddrinfo(found);
}

static void ask_program(const struct online_asker *asker, const char *question, struct semel_str program)
{
    if (access(program.p, X_OK) == 0)
        online_tell(asker, ONLINE_OK, question, "%s can be run", program.p);
    else
        online_tell(asker, ONLINE_FAILED, question, "%s cannot be run: %s", program.p, cli_errno());
}

void online_handler(struct online_asker *asker)
{
    const struct semel_do *handler = &online_route(asker)->handler;
    switch (handler->kind) {
    case SEMEL_DO_HTTP:
        ask_server(asker, "http", handler->u.http.url);
        if (semel__str_given(handler->u.http.reconcile))
            ask_server(asker, "reconcile", handler->u.http.reconcile);
        break;
    case SEMEL_DO_EXEC:
        ask_program(asker, "exec", handler->u.exec.program);
        if (semel__str_given(handler->u.exec.reconcile_program))
            ask_program(asker, "reconcile", handler->u.exec.reconcile_program);
        break;
    case SEMEL_DO_SQL:  /* asked with the store */
    case SEMEL_DO_PULL: /* workers come to us */
        break;
    }
}
