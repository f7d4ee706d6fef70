/* SPDX-License-Identifier: MIT
 *
 * notify.h: reports to the service manager how the process fares (sd_notify(3)), without its library.
 *
 * What it is: datagrams of lines KEY=VALUE to the socket that $NOTIFY_SOCKET names, a path or, after '@', a name in the
 * abstract space. Without that variable nothing is sent, and every function is free to be called all the same.
 *
 * Invariants: sending never blocks and never fails the caller: what the manager cannot take now is dropped, and the
 * watchdog's sign is tried again at the next call. Times are of CLOCK_MONOTONIC, in microseconds: a wall clock that is
 * set back must not let the watchdog bite. A handle belongs to one thread.
 */
#ifndef SEMEL_DAEMON_NOTIFY_H
#define SEMEL_DAEMON_NOTIFY_H

#include <sys/socket.h>
#include <sys/un.h>

#include "semel/types.h"

#define SEMEL_NOTIFY_STATUS_MAX 256 /* bytes of a status that are sent */

struct semel_notify {
    int fd; /* -1: nobody listens */
    struct sockaddr_un to;
    socklen_t to_n;
    int64_t every_us; /* the watchdog wants a sign this often: half of $WATCHDOG_USEC; 0: it does not */
    int64_t sent_us;  /* the last sign; SEMEL_NONE: none yet */
    bool ready;       /* the manager knows */
};

/* Reads the environment, and takes the variables out of it, so that no child answers for this process: before any
 * thread starts. INVALID: a variable makes no sense, and notify is as if it were not there (the watchdog's alone leaves
 * the rest usable). RETRY: no socket. notify can be used whatever is returned. */
semel_status semel__notify_init(struct semel_notify *notify, struct semel_error *err);
void semel__notify_done(struct semel_notify *notify);

void semel__notify_ready(struct semel_notify *notify); /* started, or a reload is over */
void semel__notify_reloading(const struct semel_notify *notify, int64_t steady_us);
void semel__notify_stopping(const struct semel_notify *notify);
/* One line for people. Line breaks and what is not shown become '?'. */
void semel__notify_status(const struct semel_notify *notify, struct semel_str text);
/* The stop takes until then, from now: the manager waits as long, instead of its own limit. */
void semel__notify_extend(const struct semel_notify *notify, int64_t for_us);
/* The process is alive; to be called often, sends only when it is time. Before it is ready, when the watchdog is not
 * awake yet, the manager's patience is prolonged instead: waiting for a broker is no failure to start, hanging is. */
void semel__notify_beat(struct semel_notify *notify, int64_t steady_us);

#endif
