/* SPDX-License-Identifier: MIT
 *
 * notify.c: the datagrams to the service manager.
 *
 * The protocol is that of sd_notify(3): one datagram a message, assignments separated by line breaks. A name in the
 * abstract space is given with '@' in front, which is a NUL on the wire, and ends with its last byte.
 */
#include "daemon/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/str.h"

static bool path_usable(const char *path)
{
    size_t n = strlen(path);
    return (path[0] == '/' || path[0] == '@') && n > 1 && n < sizeof(((struct sockaddr_un *)NULL)->sun_path);
}

static semel_status listen_at(struct semel_notify *notify, const char *path, struct semel_error *err)
{
    if (!path_usable(path))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_ENVIRONMENT,
                           "NOTIFY_SOCKET is neither an absolute path nor @NAME of a Unix socket; nothing is sent");
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no socket for NOTIFY_SOCKET: error %d", errno);
        return SEMEL_RETRY;
    }
    size_t n = strlen(path);
    notify->fd = fd;
    notify->to.sun_family = AF_UNIX;
    memcpy(notify->to.sun_path, path, n);
    if (path[0] == '@')
        notify->to.sun_path[0] = '\0';
    else
        n++; /* a path ends with its NUL */
    notify->to_n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    return SEMEL_OK;
}

/* The watchdog of another process is none of ours. */
static semel_status read_watchdog(struct semel_notify *notify, const char *interval, const char *pid,
                                  struct semel_error *err)
{
    int64_t us = 0, owner = getpid();
    if (interval == NULL)
        return SEMEL_OK;
    if ((pid != NULL && !semel__str_int64(semel__str(pid), &owner)) || !semel__str_int64(semel__str(interval), &us) ||
        us <= 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_ENVIRONMENT,
                           "WATCHDOG_USEC or WATCHDOG_PID is not a number above 0; the watchdog gets no sign");
    if (owner == getpid())
        notify->every_us = us > 1 ? us / 2 : 1;
    return SEMEL_OK;
}

semel_status semel__notify_init(struct semel_notify *notify, struct semel_error *err)
{
    *notify = (struct semel_notify){.fd = -1, .sent_us = SEMEL_NONE};
    /* NOLINTBEGIN(concurrency-mt-unsafe): there are no threads yet */
    const char *path = getenv("NOTIFY_SOCKET");
    semel_status status = SEMEL_OK;
    if (path != NULL && path[0] != '\0') {
        status = listen_at(notify, path, err);
        if (status == SEMEL_OK)
            status = read_watchdog(notify, getenv("WATCHDOG_USEC"), getenv("WATCHDOG_PID"), err);
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    /* NOLINTEND(concurrency-mt-unsafe) */
    return status;
}

void semel__notify_done(struct semel_notify *notify)
{
    if (notify->fd >= 0)
        close(notify->fd);
    *notify = (struct semel_notify){.fd = -1, .sent_us = SEMEL_NONE};
}

/* false: it was not taken. */
static bool notify_send(const struct semel_notify *notify, const char *text)
{
    if (notify->fd < 0)
        return true;
    int kept_errno = errno;
    size_t n = strlen(text);
    ssize_t sent;
    do {
        sent = sendto(notify->fd, text, n, MSG_NOSIGNAL, (const struct sockaddr *)&notify->to, notify->to_n);
    } while (sent < 0 && errno == EINTR);
    errno = kept_errno;
    return sent == (ssize_t)n;
}

void semel__notify_ready(struct semel_notify *notify)
{
    notify->ready = notify_send(notify, "READY=1") || notify->ready;
}

void semel__notify_reloading(const struct semel_notify *notify, int64_t steady_us)
{
    char text[64];
    snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)steady_us);
    notify_send(notify, text);
}

void semel__notify_stopping(const struct semel_notify *notify)
{
    notify_send(notify, "STOPPING=1");
}

void semel__notify_status(const struct semel_notify *notify, struct semel_str text)
{
    static const char head[] = "STATUS=";
    char line[sizeof(head) + SEMEL_NOTIFY_STATUS_MAX];
    memcpy(line, head, sizeof(head));
    semel__str_show(line + sizeof(head) - 1, SEMEL_NOTIFY_STATUS_MAX + 1, text);
    notify_send(notify, line);
}

void semel__notify_extend(const struct semel_notify *notify, int64_t for_us)
{
    char text[64];
    snprintf(text, sizeof(text), "EXTEND_TIMEOUT_USEC=%lld", (long long)for_us);
    notify_send(notify, text);
}

void semel__notify_beat(struct semel_notify *notify, int64_t steady_us)
{
    if (notify->every_us == 0 || (notify->sent_us != SEMEL_NONE && steady_us - notify->sent_us < notify->every_us))
        return;
    char text[64];
    snprintf(text, sizeof(text), "EXTEND_TIMEOUT_USEC=%lld", 2 * (long long)notify->every_us);
    if (notify_send(notify, notify->ready ? "WATCHDOG=1" : text))
        notify->sent_us = steady_us;
}
