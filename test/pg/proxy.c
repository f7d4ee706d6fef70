/* SPDX-License-Identifier: MIT
 *
 * proxy.c: a proxy that cuts connections around COMMIT. See proxy.h.
 *
 * Each direction of a connection is a stream of messages: a type, a length, a body. Of each only the first bytes of the
 * body are kept, long enough for a name and a keyword. What a client says before its startup packet has no type, and
 * the answer to it is one byte.
 *
 * Invariants: a chunk is looked at before it is passed on, and thrown away whole when it is to be cut; so no complete
 * request, and no complete answer, gets past a cut.
 */
#define _GNU_SOURCE /* accept4 */
#include "pg/proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAIRS 64
#define HEAD 96
#define NAME 32
#define PROTOCOL_3 196608u

struct pg_proxy_shared {
    atomic_int order, skip, cuts, commits;
};

/* One direction. */
struct stream {
    int from, to;
    bool client;  /* from the client */
    bool untyped; /* before the startup packet */
    unsigned char head[HEAD];
    size_t n_head;     /* how much of the message is in `head` */
    uint64_t passed;   /* how much of the message has gone by */
    char commit[NAME]; /* the name under which COMMIT was prepared; "" with `prepared`: the unnamed one */
    bool prepared;
};

struct pair {
    bool used;
    struct stream out, in; /* out: to the server */
};

/* ---- messages ----------------------------------------------------------------------------------------- */

static uint32_t number_at(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool is_commit(const char *text)
{
    return strncasecmp(text, "commit", 6) == 0 || strncasecmp(text, "end", 4) == 0;
}

/* The request of a commit? `head` is whole or cut, and ends with a NUL that we put there. */
static bool asks_to_commit(struct stream *s)
{
    const char *body = (const char *)s->head + 5;
    const size_t name = strnlen(body, HEAD - 6);
    const char *second = body + name + 1;

    switch (s->head[0]) {
    case 'Q':
        return is_commit(body);
    case 'P': /* name, query */
        if (is_commit(second)) {
            snprintf(s->commit, sizeof s->commit, "%.31s", body);
            s->prepared = true;
        } else if (s->prepared && strcmp(s->commit, body) == 0) {
            s->prepared = false;
        }
        return false;
    case 'B': /* portal, name */
        return s->prepared && strcmp(s->commit, second) == 0;
    default:
        return false;
    }
}

static bool hit(struct stream *s, struct pg_proxy_shared *shared)
{
    const bool commit = s->client ? asks_to_commit(s) : s->head[0] == 'C' && strcmp((char *)s->head + 5, "COMMIT") == 0;
    const int order = s->client ? PG_PROXY_CUT_REQUEST : PG_PROXY_CUT_ANSWER;

    if (!commit)
        return false;
    if (!s->client)
        atomic_fetch_add(&shared->commits, 1);
    if (atomic_load(&shared->order) != order || atomic_fetch_sub(&shared->skip, 1) > 0)
        return false;
    atomic_store(&shared->order, PG_PROXY_PASS);
    atomic_fetch_add(&shared->cuts, 1);
    return true;
}

/* How long the message in `head` is, type and all; 0: not known yet. */
static uint64_t whole_length(const struct stream *s)
{
    const size_t type = s->untyped ? 0 : 1;

    return s->n_head < type + 4 ? 0 : (uint64_t)number_at(s->head + type) + type;
}

static void message_ended(struct stream *s)
{
    if (s->untyped && s->client && s->n_head >= 8 && number_at(s->head + 4) == PROTOCOL_3)
        s->untyped = false;
    s->n_head = 0;
    s->passed = 0;
}

/* Looks at what is about to be passed on. True: cut. */
static bool look(struct stream *s, const unsigned char *p, size_t n, struct pg_proxy_shared *shared)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t whole;
        if (s->n_head < HEAD - 1) {
            s->head[s->n_head++] = p[i];
            s->head[s->n_head] = '\0';
        }
        s->passed++;
        whole = whole_length(s);
        if (whole == 0)
            continue;
        if (!s->untyped && s->passed == (whole < HEAD - 1 ? whole : HEAD - 1) && hit(s, shared))
            return true;
        if (s->passed >= whole)
            message_ended(s);
        else if (s->n_head == HEAD - 1 && n - i - 1 > 0) { /* the rest of a long body needs no look */
            const uint64_t left = whole - s->passed, here = n - i - 1;
            const uint64_t skip = left - 1 < here ? left - 1 : here;
            s->passed += skip;
            i += skip;
        }
    }
    return false;
}

/* ---- connections -------------------------------------------------------------------------------------- */

static void drop(struct pair *pair)
{
    close(pair->out.from);
    close(pair->out.to);
    pair->used = false;
}

static bool send_all(int fd, const unsigned char *p, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        p += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* The answer to what has no type is one byte, 'N'. */
static bool is_refusal(const struct pair *pair, const struct stream *s)
{
    return !s->client && pair->out.untyped;
}

static void move_bytes(struct pair *pair, struct stream *s, struct pg_proxy_shared *shared)
{
    unsigned char chunk[65536];
    const ssize_t n = recv(s->from, chunk, sizeof chunk, 0);

    if (n < 0 && errno == EINTR)
        return;
    if (n <= 0 || (!is_refusal(pair, s) && look(s, chunk, (size_t)n, shared)) || !send_all(s->to, chunk, (size_t)n))
        drop(pair);
}

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void take_client(struct pair *pairs, int listener, int server_port)
{
    const int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC), server = client < 0 ? -1 : connect_to(server_port);

    for (int i = 0; server >= 0 && i < PAIRS; i++)
        if (!pairs[i].used) {
            pairs[i] = (struct pair){.used = true,
                                     .out = {.from = client, .to = server, .client = true, .untyped = true},
                                     .in = {.from = server, .to = client}};
            return;
        }
    if (client >= 0)
        close(client);
    if (server >= 0)
        close(server);
}

static _Noreturn void serve(int listener, int server_port, struct pg_proxy_shared *shared)
{
    static struct pair pairs[PAIRS];

    for (;;) {
        struct pollfd fds[1 + 2 * PAIRS];
        nfds_t n = 0;
        const bool stalled = atomic_load(&shared->order) == PG_PROXY_STALL;
        if (stalled) {
            poll(NULL, 0, 5);
            continue;
        }
        fds[n++] = (struct pollfd){.fd = listener, .events = POLLIN};
        for (int i = 0; i < PAIRS; i++) {
            fds[n++] = (struct pollfd){.fd = pairs[i].used ? pairs[i].out.from : -1, .events = POLLIN};
            fds[n++] = (struct pollfd){.fd = pairs[i].used ? pairs[i].in.from : -1, .events = POLLIN};
        }
        if (poll(fds, n, 5) <= 0 || atomic_load(&shared->order) == PG_PROXY_STALL)
            continue;
        for (int i = 0; i < PAIRS; i++) {
            if (pairs[i].used && fds[1 + 2 * i].fd == pairs[i].out.from && fds[1 + 2 * i].revents != 0)
                move_bytes(&pairs[i], &pairs[i].out, shared);
            if (pairs[i].used && fds[2 + 2 * i].fd == pairs[i].in.from && fds[2 + 2 * i].revents != 0)
                move_bytes(&pairs[i], &pairs[i].in, shared);
        }
        if (fds[0].revents != 0)
            take_client(pairs, listener, server_port);
    }
}

/* ---- starting ----------------------------------------------------------------------------------------- */

/* A copy of the leash of a server would keep that server alive, and whoever waits for its end would wait for us. */
static void let_go_of_all_but(int listener)
{
    const long most = sysconf(_SC_OPEN_MAX);

    for (int fd = 3; fd < (most > 0 && most < 4096 ? most : 4096); fd++)
        if (fd != listener)
            close(fd);
}

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "proxy of this test: %s: %s\n", what, strerror(errno));
    exit(1);
}

void pg_proxy_start(struct pg_proxy *proxy, int server_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    const pid_t parent = getpid();
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *proxy = (struct pg_proxy){0};
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &n) != 0)
        give_up("no port");
    proxy->port = ntohs(address.sin_port);
    proxy->shared = mmap(NULL, sizeof *proxy->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (proxy->shared == MAP_FAILED)
        give_up("no memory");
    proxy->pid = fork();
    if (proxy->pid < 0)
        give_up("no process");
    if (proxy->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        let_go_of_all_but(listener);
        serve(listener, server_port, proxy->shared);
    }
    close(listener);
}

void pg_proxy_done(struct pg_proxy *proxy)
{
    int status;

    if (proxy->pid == 0)
        return;
    kill(proxy->pid, SIGKILL);
    while (waitpid(proxy->pid, &status, 0) < 0 && errno == EINTR)
        ;
    munmap(proxy->shared, sizeof *proxy->shared);
    *proxy = (struct pg_proxy){0};
}

void pg_proxy_order(struct pg_proxy *proxy, enum pg_proxy_order order, int skip)
{
    atomic_store(&proxy->shared->skip, skip);
    atomic_store(&proxy->shared->order, (int)order);
}

int pg_proxy_cuts(const struct pg_proxy *proxy)
{
    return atomic_load(&proxy->shared->cuts);
}

int pg_proxy_commits(const struct pg_proxy *proxy)
{
    return atomic_load(&proxy->shared->commits);
}
