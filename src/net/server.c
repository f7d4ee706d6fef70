/* SPDX-License-Identifier: MIT
 *
 * server.c: the HTTP server of http.h: one libuv loop with its listeners, the sockets of their clients, and TLS.
 *
 * Threads: other threads touch only the mail: answered exchanges and the request to stop, under its lock. It is
 * reference-counted: the server and every exchange have a reference, so an answer finds it even when the server is
 * gone. `wake` is NULL then, and the answer is dropped.
 *
 * Stopping: the listeners close, idle connections with them; the others close after their reply; at the deadline all
 * remaining ones are closed. After the last one the mail is closed, and the loop ends because nothing keeps it.
 *
 * Invariants: only its own thread touches libuv's loop, except for uv_async_send, which is called under the mail's
 * lock and only while the handle is open. Everything else belongs to the loop's thread while it runs, except a
 * listener's TLS context and tokens, which have locks of their own.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/error.h"
#include "base/mem.h"
#include "net/address.h"
#include "net/conn.h"
#include "net/loop.h"
#include "net/tls.h"

/* ==== what there is ============================================================================== */

struct mail {
    pthread_mutex_t lock;
    size_t refs;
    uv_async_t *wake;
    struct semel_http_exchange *first, **last;
    bool stop;
    uint64_t stop_ms;
};

struct semel_http_listener {
    struct semel_http *http;
    struct semel_http_listener *next;
    union semel_stream u;
    uv_timer_t retry; /* to accept again after a lack of memory */
    struct semel_conn_env env;
    struct semel_address address; /* as it was bound */
    bool share_port;
    dev_t dev; /* of the unix socket's file */
    ino_t ino;
    size_t n_peers; /* without those that are being refused for lack of room */
    semel_http_crowded crowded;
    pthread_mutex_t tls_lock;
    SSL_CTX *tls;   /* NULL: plain */
    SSL_CTX *fresh; /* between _reload and _reloaded, of who calls these */
    char *cert_file, *key_file, *client_ca_file;
};

/* One client's socket. */
struct peer {
    struct semel_http *http;
    struct semel_http_listener *listener;
    struct peer *prev, *next;
    union semel_stream u;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct semel_conn *conn;
    struct semel_tls *tls;
    char *cipher;     /* the ciphertext that is being written */
    size_t in_flight; /* bytes of the connection's output in the write */
    unsigned serial;  /* of the phase whose time-out `due` is */
    uint64_t due;     /* in the loop's time; NEVER: there is none */
    uint64_t fires;   /* the timer, not later than that; NEVER: it does not run */
    int handles;      /* that are not closed yet */
    bool reading, writing, shut, closing;
    bool named; /* its certificate was read */
    bool kicked;
    struct peer *next_kicked;
    bool refused; /* because there is no room for it */
};

struct semel_http {
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t deadline, tick;
    uv_prepare_t prepare; /* works off `kicked` */
    uv_idle_t hurry;      /* runs while some are left, so that the loop does not wait */
    struct peer *kicked, **last_kicked;
    size_t n_kicked;
    uint64_t ticked_at; /* in the loop's time */
    void (*on_tick)(void *ctx);
    void *tick_ctx;
    struct mail *mail;
    const struct semel_clock *clock;
    struct semel_http_listener *listeners;
    struct semel_guest *guests;
    struct peer *peers, *oldest; /* linked from the newest to the oldest */
    size_t n_peers, max_peers;   /* as a listener's */
    size_t n_refused;
    bool ran, stopping, finished;
    uint64_t stop_at; /* in the loop's time */
    char read_space[SEMEL_CONN_READ], plain_space[SEMEL_CONN_READ];
};

static void peer_pump(struct peer *peer);
static void peer_accept(uv_stream_t *stream, int status);
static void peer_gone(struct semel_http *http);

/* ==== the mail =================================================================================== */

static void mail_take(void *ctx)
{
    struct mail *mail = ctx;
    pthread_mutex_lock(&mail->lock);
    mail->refs++;
    pthread_mutex_unlock(&mail->lock);
}

static void mail_gone(void *ctx)
{
    struct mail *mail = ctx;
    pthread_mutex_lock(&mail->lock);
    bool last = --mail->refs == 0;
    pthread_mutex_unlock(&mail->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&mail->lock);
    semel__free(mail);
}

static void mail_back(void *ctx, struct semel_http_exchange *x)
{
    struct mail *mail = ctx;
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

/* One request in a thread of libuv's pool. The loop does not end before it is done. */
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

static bool mail_aside(void *ctx, struct semel_http_exchange *x)
{
    struct mail *mail = ctx;
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

static struct semel_http_exchange *mail_empty(struct mail *mail)
{
    struct semel_http_exchange *first = mail->first;
    mail->first = NULL;
    mail->last = &mail->first;
    return first;
}

/* ==== a client's socket =============================================================================
 *
 * A client's socket: it moves bytes between libuv, TLS and the connection's state machine.
 *
 * Every callback of libuv reports the event to the connection and then calls pump, which adjusts the socket to the
 * connection's phase: decrypt, write, shut down, read or not, the timer.
 *
 * Idle connections cost descriptors, which handlers and stores need too (P88): there is a bound over all listeners,
 * and when it is reached, a connection that has sent nothing yet is closed for a new one.
 *
 * Plaintext is written at once, as far as the socket takes it; a timer that runs is not set anew for a later time-out.
 *
 * Invariants: one write at a time, from memory that stays as it is until it ended; ciphertext is read only while none
 * is waiting to be decrypted, so a peer has at most one read of it, and of the session's own output what two reads
 * make; after close nothing is started, and the memory is freed when both handles are closed.
 */

#define NEVER UINT64_MAX
#define REFUSING 32 /* connections past the limit that get an answer; more are just closed */
#define PLAIN_SLICE 16384
#define PARTS_MAX 4
#define RETRY_MS 100
#define SEND_BUFFER 65536 /* in the kernel, per connection: a client that does not read its replies uses no more */

static bool lingers(const struct peer *peer)
{
    return peer->conn->phase == SEMEL_CONN_LINGER;
}

static void drop_tls(struct peer *peer)
{
    semel__tls_free(peer->tls);
    peer->tls = NULL;
}

static void handle_closed(uv_handle_t *handle)
{
    struct peer *peer = handle->data;
    if (--peer->handles > 0)
        return;
    struct semel_http *http = peer->http;
    if (peer->prev != NULL)
        peer->prev->next = peer->next;
    else
        http->peers = peer->next;
    if (peer->next != NULL)
        peer->next->prev = peer->prev;
    else
        http->oldest = peer->prev;
    semel__conn_free(peer->conn);
    semel__tls_free(peer->tls);
    semel__free(peer->cipher);
    semel__free(peer);
    peer_gone(http);
}

/* Its descriptor is closed at once, its memory is freed later. */
static void uncount(const struct peer *peer)
{
    if (peer->refused) {
        peer->http->n_refused--;
        return;
    }
    peer->http->n_peers--;
    peer->listener->n_peers--;
}

/* Takes it out of the list, in which *at is it. */
static void unkick(struct peer *peer, struct peer **at)
{
    *at = peer->next_kicked;
    if (*at == NULL)
        peer->http->last_kicked = at;
    peer->http->n_kicked--;
    peer->kicked = false;
}

static void peer_close(struct peer *peer)
{
    if (peer->closing)
        return;
    peer->closing = true;
    uncount(peer);
    if (peer->kicked) {
        struct peer **at = &peer->http->kicked;
        while (*at != peer)
            at = &(*at)->next_kicked;
        unkick(peer, at);
    }
    bool tcp = peer->u.handle.type == UV_TCP;
    if (peer->conn == NULL || !peer->conn->reset || !tcp || uv_tcp_close_reset(&peer->u.tcp, handle_closed) < 0)
        uv_close(&peer->u.handle, handle_closed);
    uv_close((uv_handle_t *)&peer->timer, handle_closed);
}

/* Gives plaintext to the connection, as long as it wants some. Not while the client leaves the session's own output
 * unread: it could make ever more of it, by attempts to renegotiate and by updates of keys (P53). */
static void decrypt(struct peer *peer)
{
    size_t n = 1;
    while (n > 0 && peer->tls != NULL && !lingers(peer) && semel__conn_wants(peer->conn) &&
           semel__tls_unsent(peer->tls) <= SEMEL_TLS_CIPHER) {
        char *space = peer->http->plain_space;
        switch (semel__tls_read(peer->tls, space, SEMEL_CONN_READ, &n)) {
        case SEMEL_TLS_OPEN:
            if (n > 0 && !peer->named) {
                peer->conn->subject = semel__tls_subject(peer->tls);
                peer->named = true;
            }
            if (n > 0)
                semel__conn_input(peer->conn, space, n);
            break;
        case SEMEL_TLS_ENDED:
            semel__conn_ended(peer->conn);
            break;
        case SEMEL_TLS_PLAIN:
            drop_tls(peer);
            semel__conn_refuse(peer->conn, 400, "this port speaks TLS: use https");
            break;
        case SEMEL_TLS_BROKEN:
            semel__conn_abandon(peer->conn);
            break;
        }
    }
}

static void on_written(uv_write_t *write, int status)
{
    struct peer *peer = write->data;
    peer->writing = false;
    if (peer->closing)
        return;
    if (status < 0)
        semel__conn_lost(peer->conn);
    else
        semel__conn_sent(peer->conn, peer->in_flight);
    peer_pump(peer);
}

static void write_bufs(struct peer *peer, const uv_buf_t *bufs, unsigned n, size_t in_flight)
{
    peer->write.data = peer;
    peer->in_flight = in_flight;
    peer->writing = uv_write(&peer->write, &peer->u.stream, bufs, n, on_written) == 0;
    if (!peer->writing)
        semel__conn_lost(peer->conn);
}

/* Writes a part of the output, at once or in the background. true: the socket took some of it at once. */
static bool write_part(struct peer *peer, bool at_once)
{
    struct semel_str pieces[2];
    size_t n = semel__conn_output(peer->conn, pieces);
    uv_buf_t bufs[2];
    unsigned used = 0;
    if (n == 0)
        return false;
    for (int i = 0; i < 2; i++)
        if (pieces[i].n > 0) /* an empty one would cost a system call of its own */
            bufs[used++] = (uv_buf_t){.base = (char *)pieces[i].p, .len = pieces[i].n};
    int taken = at_once ? uv_try_write(&peer->u.stream, bufs, used) : UV_EAGAIN;
    if (taken > 0)
        semel__conn_sent(peer->conn, (size_t)taken);
    else
        write_bufs(peer, bufs, used, n);
    return taken > 0;
}

/* A client that takes everything does not keep the loop for itself. */
static void write_plain(struct peer *peer)
{
    for (int parts = 0; write_part(peer, parts < PARTS_MAX); parts++)
        continue;
}

/* Output of the session itself goes first; otherwise encrypts a part of the output. */
static void write_tls(struct peer *peer)
{
    struct semel_str pieces[2];
    size_t slice = 0, n = semel__tls_drain(peer->tls, peer->cipher, SEMEL_TLS_CIPHER);
    if (n == 0 && semel__conn_output(peer->conn, pieces) > 0) {
        struct semel_str piece = pieces[0].n > 0 ? pieces[0] : pieces[1];
        slice = piece.n < PLAIN_SLICE ? piece.n : PLAIN_SLICE;
        if (!semel__tls_write(peer->tls, piece.p, slice)) {
            semel__conn_abandon(peer->conn);
            slice = 0;
        }
        n = semel__tls_drain(peer->tls, peer->cipher, SEMEL_TLS_CIPHER);
    }
    uv_buf_t buf = {.base = peer->cipher, .len = n};
    if (n > 0)
        write_bufs(peer, &buf, 1, slice);
}

static void on_shut(uv_shutdown_t *shutdown, int status)
{
    (void)shutdown;
    (void)status; /* the time-out of lingering covers failures too */
}

/* Our side is done: ends TLS, then our half of the connection. */
static void shut(struct peer *peer)
{
    if (peer->shut)
        return;
    peer->shut = true;
    if (peer->tls != NULL) {
        semel__tls_shutdown(peer->tls);
        size_t n = semel__tls_drain(peer->tls, peer->cipher, SEMEL_TLS_CIPHER);
        uv_buf_t buf = {.base = peer->cipher, .len = n};
        if (n > 0)
            write_bufs(peer, &buf, 1, 0);
    }
    if (uv_shutdown(&peer->shutdown, &peer->u.stream, on_shut) < 0) /* after the write */
        semel__conn_lost(peer->conn);
}

static void give_space(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct peer *peer = handle->data;
    (void)suggested;
    *buf = uv_buf_init(peer->http->read_space, sizeof(peer->http->read_space));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct peer *peer = stream->data;
    if (n == 0 || peer->closing)
        return;
    if (n == UV_EOF)
        semel__conn_ended(peer->conn);
    else if (n < 0)
        semel__conn_lost(peer->conn);
    else if (peer->tls == NULL || lingers(peer))
        semel__conn_input(peer->conn, buf->base, (size_t)n);
    else if (!semel__tls_feed(peer->tls, buf->base, (size_t)n))
        semel__conn_lost(peer->conn);
    peer_pump(peer);
}

static void on_timer(uv_timer_t *timer);

static void run_timer(struct peer *peer, uint64_t now)
{
    if (peer->due >= peer->fires)
        return;
    peer->fires = peer->due;
    uv_timer_start(&peer->timer, on_timer, peer->due > now ? peer->due - now : 0, 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct peer *peer = timer->data;
    uint64_t now = uv_now(&peer->http->loop);
    peer->fires = NEVER;
    if (now < peer->due) {
        run_timer(peer, now);
        return;
    }
    semel__conn_expired(peer->conn);
    peer_pump(peer);
}

static void set_timer(struct peer *peer)
{
    uint64_t ms = semel__conn_timeout_ms(peer->conn), now = uv_now(&peer->http->loop);
    if (peer->serial == peer->conn->serial)
        return;
    peer->serial = peer->conn->serial;
    peer->due = ms > 0 && ms < NEVER - now ? now + ms : NEVER;
    run_timer(peer, now);
}

static void set_reading(struct peer *peer)
{
    bool want = semel__conn_wants(peer->conn) &&
                (peer->tls == NULL || lingers(peer) || semel__tls_waiting(peer->tls) == 0);
    if (want && !peer->reading && uv_read_start(&peer->u.stream, give_space, on_read) < 0)
        semel__conn_lost(peer->conn);
    if (!want && peer->reading)
        uv_read_stop(&peer->u.stream);
    peer->reading = want;
}

/* Does everything that can be done now. */
static void peer_pump(struct peer *peer)
{
    if (peer->closing)
        return;
    semel__conn_turn(peer->conn);
    decrypt(peer);
    if (!peer->writing && peer->tls != NULL && !peer->shut)
        write_tls(peer);
    else if (!peer->writing && peer->tls == NULL)
        write_plain(peer);
    if (lingers(peer) && !peer->writing)
        shut(peer);
    set_reading(peer);
    set_timer(peer);
    if (peer->conn->phase == SEMEL_CONN_CLOSED)
        peer_close(peer);
}

/* A handler that streams has asked for something. Not at once: no callback is made from within its call. */
static void kick(void *owner)
{
    struct peer *peer = owner;
    if (peer->kicked || peer->closing)
        return;
    peer->kicked = true;
    peer->next_kicked = NULL;
    *peer->http->last_kicked = peer;
    peer->http->last_kicked = &peer->next_kicked;
    peer->http->n_kicked++;
}

static void on_hurry(uv_idle_t *hurry)
{
    (void)hurry;
}

/* Before the loop waits for the next event. Who is kicked meanwhile has its turn after the other events, or a client
 * that pipelines, or that takes whatever it gets, would have the loop for itself. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct semel_http *http = prepare->data;
    for (size_t n = http->n_kicked; n > 0 && http->kicked != NULL; n--) {
        struct peer *peer = http->kicked;
        unkick(peer, &http->kicked);
        peer_pump(peer);
    }
    for (struct semel_guest *guest = http->guests; guest != NULL; guest = guest->next)
        if (guest->flush != NULL)
            guest->flush(guest->ctx);
    if (http->finished)
        return;
    if (http->kicked != NULL)
        uv_idle_start(&http->hurry, on_hurry);
    else
        uv_idle_stop(&http->hurry);
}

/* NULL: no memory. Its handles are initialised: it must be closed, not freed. */
static struct peer *peer_new(struct semel_http_listener *listener)
{
    struct semel_http *http = listener->http;
    struct peer *peer = semel__calloc(1, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    *peer = (struct peer){
        .http = http, .listener = listener, .next = http->peers, .handles = 2, .due = NEVER, .fires = NEVER};
    if (listener->address.storage.ss_family == AF_UNIX)
        uv_pipe_init(&http->loop, &peer->u.pipe, 0);
    else
        uv_tcp_init(&http->loop, &peer->u.tcp);
    uv_timer_init(&http->loop, &peer->timer);
    peer->u.handle.data = peer->timer.data = peer;
    if (http->peers != NULL)
        http->peers->prev = peer;
    else
        http->oldest = peer;
    http->peers = peer;
    http->n_peers++;
    listener->n_peers++;
    return peer;
}

static bool peer_connect(struct peer *peer)
{
    struct semel_http_listener *listener = peer->listener;
    struct sockaddr_storage remote = {.ss_family = AF_UNIX}, local = {.ss_family = AF_UNIX};
    char remote_text[SEMEL_ADDRESS_TEXT], local_text[SEMEL_ADDRESS_TEXT];
    bool tcp = listener->address.storage.ss_family != AF_UNIX;
    int n = sizeof(remote), m = sizeof(local), most = SEND_BUFFER;
    (void)uv_send_buffer_size(&peer->u.handle, &most); /* otherwise the kernel lets it grow to megabytes */
    if (tcp) {
        uv_tcp_nodelay(&peer->u.tcp, 1);
        if (uv_tcp_getpeername(&peer->u.tcp, (struct sockaddr *)&remote, &n) < 0 ||
            uv_tcp_getsockname(&peer->u.tcp, (struct sockaddr *)&local, &m) < 0)
            return false; /* it is gone already */
    }
    semel__address_show(&remote, true, remote_text);
    semel__address_show(&local, false, local_text);
    peer->conn = semel__conn_new(&listener->env, remote_text, tcp ? local_text : NULL);
    if (peer->conn != NULL) {
        peer->conn->owner = peer;
        peer->conn->secure = listener->cert_file != NULL;
    }
    pthread_mutex_lock(&listener->tls_lock);
    SSL_CTX *context = semel__tls_context_ref(listener->tls);
    pthread_mutex_unlock(&listener->tls_lock);
    if (context != NULL) {
        peer->tls = semel__tls_new(context, NULL);
        peer->cipher = semel__alloc(SEMEL_TLS_CIPHER);
        SSL_CTX_free(context);
    }
    return peer->conn != NULL && (context == NULL || (peer->tls != NULL && peer->cipher != NULL));
}

static void retry_accept(uv_timer_t *timer)
{
    struct semel_http_listener *listener = timer->data;
    peer_accept(&listener->u.stream, 0);
}

/* ---- too many connections -------------------------------------------------------------------------- */

/* Connections that are reserved for other listeners and not in use. */
static size_t set_aside(const struct semel_http_listener *listener)
{
    size_t n = 0;
    for (const struct semel_http_listener *l = listener->http->listeners; l != NULL; l = l->next)
        if (l != listener && l->n_peers < l->env.limits.reserve)
            n += l->env.limits.reserve - l->n_peers;
    return n;
}

static bool full_itself(const struct semel_http_listener *listener)
{
    return listener->n_peers > listener->env.limits.connections;
}

static bool crowded(const struct semel_http_listener *listener)
{
    size_t aside = set_aside(listener), max = listener->http->max_peers;
    return full_itself(listener) || aside > max || listener->http->n_peers > max - aside;
}

/* May this connection be closed for the listener? Not if it is part of another listener's reserve. */
static bool may_go(const struct peer *peer, const struct semel_http_listener *listener)
{
    const struct semel_http_listener *own = peer->listener;
    if (peer->closing || peer->refused || peer->conn == NULL)
        return false;
    return own == listener || (!full_itself(listener) && own->n_peers > own->env.limits.reserve);
}

/* Can it be closed without harm to clients with a token? True between two requests, after the last one, or during a
 * reply that anybody gets, such as a refusal, which may be stuck because its client does not read. */
static bool is_free(const struct semel_conn *conn)
{
    switch (conn->phase) {
    case SEMEL_CONN_HEAD:
    case SEMEL_CONN_IDLE:
    case SEMEL_CONN_LINGER:
        return true;
    case SEMEL_CONN_WRITING:
        return conn->x == NULL || conn->x->req.route->needs == 0;
    case SEMEL_CONN_BODY:
    case SEMEL_CONN_HANDLING:
    case SEMEL_CONN_STREAMING:
    case SEMEL_CONN_CLOSED:
        return false;
    }
    return false;
}

/* The oldest that has not sent a whole head; otherwise the oldest that is free. */
static struct peer *oldest_without_work(const struct semel_http_listener *listener)
{
    struct peer *idle = NULL;
    for (struct peer *peer = listener->http->oldest; peer != NULL; peer = peer->prev) {
        if (!may_go(peer, listener))
            continue;
        if (peer->conn->phase == SEMEL_CONN_HEAD && peer->conn->requests == 0)
            return peer;
        if (idle == NULL && is_free(peer->conn))
            idle = peer;
    }
    return idle;
}

static void report(const struct semel_http_listener *listener, bool gave_way, const struct peer *peer)
{
    if (listener->crowded != NULL)
        listener->crowded(listener->env.observe_ctx, gave_way, peer->conn->remote);
}

/* false: all are busy, and there is no room. */
static bool make_room(struct semel_http_listener *listener)
{
    while (crowded(listener)) {
        struct peer *peer = oldest_without_work(listener);
        if (peer == NULL)
            return false;
        report(listener, true, peer);
        peer_close(peer);
    }
    return true;
}

static void refuse_peer(struct peer *peer)
{
    report(peer->listener, false, peer);
    if (peer->tls != NULL || peer->http->n_refused == REFUSING) {
        peer_close(peer);
        return;
    }
    uncount(peer);
    peer->refused = true;
    peer->http->n_refused++;
    semel__conn_refuse(peer->conn, 503, "too many connections");
    peer_pump(peer);
}

/* libuv's connection callback. */
static void peer_accept(uv_stream_t *stream, int status)
{
    struct semel_http_listener *listener = stream->data;
    if (status < 0)
        return; /* libuv continues to listen */
    struct peer *peer = peer_new(listener);
    if (peer == NULL) { /* libuv waits until this one is accepted */
        uv_timer_start(&listener->retry, retry_accept, RETRY_MS, 0);
        return;
    }
    bool room = make_room(listener); /* before it has its conn, so that it is not chosen itself */
    if (uv_accept(stream, &peer->u.stream) < 0 || !peer_connect(peer))
        peer_close(peer);
    else if (!room)
        refuse_peer(peer);
    else
        peer_pump(peer);
}

/* ==== a listener ====================================================================================
 *
 * A listener: the checks of its settings, its socket, its TLS context.
 *
 * A unix socket's file has mode 0600 from its first moment: Linux makes it with the mode of the socket, which is set
 * before the bind. A file that a dead server left behind is replaced; that of a running server is not, nor is any
 * other kind of file.
 *
 * Invariants: an address that is not loopback has TLS, or `plain` is set.
 */

#define BACKLOG 128

void semel__http_settings_init(struct semel_http_settings *settings)
{
    *settings = (struct semel_http_settings){
        .limits = {.connections = 256,
                   .requests = 10000,
                   .head_bytes = 16384,
                   .head_fields = 100,
                   .held_bytes = (size_t)16 << 20,
                   .reply_max = (size_t)16 << 20,
                   .idle_ms = 60000,
                   .head_ms = 10000,
                   .body_ms = 30000,
                   .write_ms = 30000,
                   .linger_ms = 2000},
    };
}

static semel_status invalid(struct semel_error *err, const char *address, const char *why)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "listener %s: %s", address, why);
}

static semel_status settings_check(const struct semel_http_settings *s, const struct semel_address *address,
                                   struct semel_error *err)
{
    const struct semel_http_limits *l = &s->limits;
    if ((s->cert_file == NULL) != (s->key_file == NULL))
        return invalid(err, s->address, "a certificate and its key belong together");
    if (s->client_ca_file != NULL && s->cert_file == NULL)
        return invalid(err, s->address, "a client CA needs TLS: give a certificate and a key");
    if (address->storage.ss_family == AF_UNIX && s->cert_file != NULL)
        return invalid(err, s->address, "a unix socket has no TLS");
    if (!address->loopback && s->cert_file == NULL && !s->plain)
        return invalid(err, s->address, "not loopback: give a certificate and a key, or set plain: true");
    if (l->connections == 0 || l->requests == 0 || l->head_bytes < 256 || l->head_fields == 0 || l->idle_ms == 0 ||
        l->head_ms == 0 || l->body_ms == 0 || l->write_ms == 0 || l->linger_ms == 0)
        return invalid(err, s->address, "every limit must be above 0, and a head have room for 256 bytes");
    return SEMEL_OK;
}

static semel_status tls_init(struct semel_http_listener *listener, const struct semel_http_settings *settings,
                             struct semel_error *err)
{
    if (settings->cert_file == NULL)
        return SEMEL_OK;
    if (!semel__text_copy(&listener->cert_file, settings->cert_file) ||
        !semel__text_copy(&listener->key_file, settings->key_file) ||
        !semel__text_copy(&listener->client_ca_file, settings->client_ca_file))
        return semel__fail_memory(err);
    return semel__tls_server_context(&listener->tls, listener->cert_file, listener->key_file, listener->client_ca_file,
                                     err);
}

/* The kernel's error: in use, not allowed, no such directory. RETRY where waiting may help. */
static semel_status bind_fault(struct semel_error *err, const char *address, int error)
{
    semel_status status = error == EADDRINUSE || error == EADDRNOTAVAIL || error == EMFILE || error == ENOMEM
                              ? SEMEL_RETRY
                              : SEMEL_INVALID;
    enum semel_class cls = status == SEMEL_RETRY ? SEMEL_CLASS_ENVIRONMENT : SEMEL_CLASS_PERMANENT;
    semel__fail(err, status, cls, "listener %s: %s", address, uv_strerror(-error));
    if (err != NULL)
        err->code = error;
    return status;
}

/* Does a server answer there? Removes a dead socket. */
static int clear_path(const struct sockaddr_un *un)
{
    struct stat st;
    if (lstat(un->sun_path, &st) != 0)
        return errno == ENOENT ? 0 : errno;
    if (!S_ISSOCK(st.st_mode))
        return EEXIST;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    bool dead = connect(fd, (const struct sockaddr *)un, sizeof(*un)) != 0 && errno == ECONNREFUSED;
    close(fd);
    if (!dead)
        return EADDRINUSE;
    return unlink(un->sun_path) == 0 || errno == ENOENT ? 0 : errno;
}

static int bind_unix(struct semel_http_listener *listener)
{
    const struct sockaddr_un *un = (const struct sockaddr_un *)&listener->address.storage;
    struct stat st;
    int error = clear_path(un);
    if (error != 0)
        return error;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    bool bound = fchmod(fd, S_IRUSR | S_IWUSR) == 0 && bind(fd, (const struct sockaddr *)un, sizeof(*un)) == 0;
    if (bound && lstat(un->sun_path, &st) == 0 && (st.st_mode & (S_IRWXG | S_IRWXO)) == 0) {
        listener->dev = st.st_dev;
        listener->ino = st.st_ino;
        error = -uv_pipe_open(&listener->u.pipe, fd);
    } else {
        error = bound ? EPERM : errno;
    }
    if (error != 0)
        close(fd);
    return error;
}

static int bind_tcp(struct semel_http_listener *listener)
{
    struct sockaddr_storage *storage = &listener->address.storage;
    int n = sizeof(*storage), on = 1, error = 0;
    if (listener->share_port) { /* before the bind, for which libuv would make a socket of its own */
        int fd = socket(storage->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return errno;
        if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) != 0)
            error = errno;
        else
            error = -uv_tcp_open(&listener->u.tcp, fd);
        if (error != 0) {
            close(fd);
            return error;
        }
    }
    error = uv_tcp_bind(&listener->u.tcp, (const struct sockaddr *)storage,
                        storage->ss_family == AF_INET6 ? UV_TCP_IPV6ONLY : 0);
    return -error != 0 ? -error : -uv_tcp_getsockname(&listener->u.tcp, (struct sockaddr *)storage, &n);
}

static semel_status open_socket(struct semel_http_listener *listener, const char *text, struct semel_error *err)
{
    bool is_unix = listener->address.storage.ss_family == AF_UNIX;
    int error = is_unix ? bind_unix(listener) : bind_tcp(listener);
    if (error == 0)
        error = -uv_listen(&listener->u.stream, BACKLOG, peer_accept);
    if (error == 0 && !is_unix) { /* the bind chose the port */
        int n = sizeof(listener->address.storage);
        error = -uv_tcp_getsockname(&listener->u.tcp, (struct sockaddr *)&listener->address.storage, &n);
    }
    return error == 0 ? SEMEL_OK : bind_fault(err, text, error);
}

static semel_status env_init(struct semel_http_listener *listener, const struct semel_http_settings *settings,
                             struct semel_error *err)
{
    struct semel_conn_env *env = &listener->env;
    env->clock = listener->http->clock;
    env->back = mail_back;
    env->take = mail_take;
    env->gone = mail_gone;
    env->aside = mail_aside;
    env->kick = kick;
    env->back_ctx = listener->http->mail;
    listener->crowded = settings->crowded;
    return semel__conn_env_init(env, settings, listener->address.storage.ss_family == AF_UNIX, err);
}

/* Its handles are initialised and it is in the list: it must be closed in the loop. */
static struct semel_http_listener *listener_new(struct semel_http *http, const struct semel_address *address)
{
    struct semel_http_listener *listener = semel__calloc(1, sizeof(*listener));
    if (listener == NULL)
        return NULL;
    listener->http = http;
    listener->address = *address;
    pthread_mutex_init(&listener->tls_lock, NULL);
    if (address->storage.ss_family == AF_UNIX)
        uv_pipe_init(&http->loop, &listener->u.pipe, 0);
    else
        uv_tcp_init(&http->loop, &listener->u.tcp);
    uv_timer_init(&http->loop, &listener->retry);
    listener->u.handle.data = listener->retry.data = listener;
    listener->next = http->listeners;
    http->listeners = listener;
    return listener;
}

/* Removes the file only if it is still ours: a successor may have taken the path. */
static void remove_path(struct semel_http_listener *listener)
{
    const struct sockaddr_un *un = (const struct sockaddr_un *)&listener->address.storage;
    struct stat st;
    if (listener->ino != 0 && lstat(un->sun_path, &st) == 0 && st.st_dev == listener->dev && st.st_ino == listener->ino)
        unlink(un->sun_path);
    listener->ino = 0;
}

/* Accepts no new connections; the handle closes in the loop. */
static void listener_close(struct semel_http_listener *listener)
{
    if (uv_is_closing(&listener->u.handle))
        return;
    if (listener->address.storage.ss_family == AF_UNIX)
        remove_path(listener);
    uv_close(&listener->u.handle, NULL);
    uv_close((uv_handle_t *)&listener->retry, NULL);
}

semel_status semel__http_listen(struct semel_http *http, const struct semel_http_settings *settings,
                                struct semel_http_listener **ret_listener, struct semel_error *err)
{
    struct semel_address address;
    assert(!http->ran);
    semel_status status = semel__address_parse(&address, settings->address, err);
    if (status == SEMEL_OK)
        status = settings_check(settings, &address, err);
    if (status != SEMEL_OK)
        return status;
    struct semel_http_listener *listener = listener_new(http, &address);
    if (listener == NULL)
        return semel__fail_memory(err);
    listener->share_port = settings->share_port;
    status = env_init(listener, settings, err);
    if (status == SEMEL_OK)
        status = tls_init(listener, settings, err);
    if (status == SEMEL_OK)
        status = open_socket(listener, settings->address, err);
    if (status != SEMEL_OK) {
        listener_close(listener);
        return status;
    }
    if (ret_listener != NULL)
        *ret_listener = listener;
    return SEMEL_OK;
}

unsigned semel__http_port(const struct semel_http_listener *listener)
{
    return semel__address_port(&listener->address.storage);
}

semel_status semel__http_set_tokens(struct semel_http_listener *listener, const struct semel_http_token *tokens,
                                    size_t n_tokens, struct semel_error *err)
{
    return semel__access_set_tokens(&listener->env.access, tokens, n_tokens, err);
}

static void listener_free(struct semel_http_listener *listener)
{
    semel__conn_env_done(&listener->env);
    SSL_CTX_free(listener->tls);
    pthread_mutex_destroy(&listener->tls_lock);
    semel__free(listener->cert_file);
    semel__free(listener->key_file);
    semel__free(listener->client_ca_file);
    semel__free(listener);
}

/* ==== the loop =================================================================================== */

static void answer_all(struct semel_http_exchange *x)
{
    while (x != NULL) {
        struct semel_http_exchange *next = x->next;
        struct semel_conn *conn = x->conn;
        if (conn == NULL) {
            semel__conn_retire(x->env, x);
        } else {
            semel__conn_answered(conn, x);
            peer_pump(conn->owner);
        }
        x = next;
    }
}

/* Closes the mail: later answers are dropped. */
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
    for (struct semel_guest *guest = http->guests; guest != NULL; guest = guest->next)
        guest->close(guest->ctx);
    uv_close((uv_handle_t *)&http->wake, NULL);
    uv_close((uv_handle_t *)&http->deadline, NULL);
    uv_close((uv_handle_t *)&http->tick, NULL);
    uv_close((uv_handle_t *)&http->prepare, NULL);
    uv_close((uv_handle_t *)&http->hurry, NULL);
}

static void on_tick(uv_timer_t *timer)
{
    struct semel_http *http = timer->data;
    uint64_t now = uv_now(&http->loop);
    for (struct semel_http_listener *listener = http->listeners; listener != NULL; listener = listener->next)
        semel__conn_tick(&listener->env, now - http->ticked_at);
    http->ticked_at = now;
    if (http->on_tick != NULL)
        http->on_tick(http->tick_ctx);
}

/* Perhaps it was the last. */
static void peer_gone(struct semel_http *http)
{
    if (!http->stopping || http->peers != NULL)
        return;
    for (struct semel_guest *guest = http->guests; guest != NULL; guest = guest->next)
        if (guest->busy(guest->ctx))
            return;
    finish(http);
}

uv_loop_t *semel__http_loop(struct semel_http *http)
{
    return &http->loop;
}

void semel__http_join(struct semel_http *http, struct semel_guest *guest)
{
    assert(!http->ran);
    guest->next = http->guests;
    http->guests = guest;
}

void semel__http_settled(struct semel_http *http)
{
    peer_gone(http);
}

static void give_up(struct semel_http *http)
{
    for (struct peer *peer = http->peers; peer != NULL; peer = peer->next)
        peer_close(peer);
    for (struct semel_guest *guest = http->guests; guest != NULL; guest = guest->next)
        guest->give_up(guest->ctx);
}

static void on_deadline(uv_timer_t *timer)
{
    give_up(timer->data);
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
        listener_close(listener);
    for (struct peer *peer = http->peers; peer != NULL; peer = peer->next) {
        if (peer->conn != NULL)
            semel__conn_drain(peer->conn);
        peer_pump(peer);
    }
    peer_gone(http);
}

static void on_wake(uv_async_t *wake)
{
    struct semel_http *http = wake->data;
    struct mail *mail = http->mail;
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
    struct mail *mail = http->mail;
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

static struct mail *mail_new(uv_async_t *wake)
{
    struct mail *mail = semel__calloc(1, sizeof(*mail));
    if (mail == NULL)
        return NULL;
    *mail = (struct mail){.refs = 1, .wake = wake, .last = &mail->first};
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
        mail_gone(http->mail);
        semel__free(http);
        return uv_fault(err, "event loop", error);
    }
    uv_timer_init(&http->loop, &http->deadline);
    uv_timer_init(&http->loop, &http->tick);
    uv_prepare_init(&http->loop, &http->prepare);
    uv_idle_init(&http->loop, &http->hurry);
    http->last_kicked = &http->kicked;
    http->wake.data = http->deadline.data = http->tick.data = http->prepare.data = http;
    uv_prepare_start(&http->prepare, on_prepare);
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

void semel__http_on_tick(struct semel_http *http, void (*tick)(void *ctx), void *ctx)
{
    assert(!http->ran);
    http->on_tick = tick;
    http->tick_ctx = ctx;
}

/* libuv writes with write(2), which raises SIGPIPE in the calling thread: so it is blocked meanwhile, and a pending one
 * is consumed before it is unblocked. */
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
    http->ticked_at = uv_now(&http->loop);
    uv_timer_start(&http->tick, on_tick, SEMEL_HTTP_TICK_MS, SEMEL_HTTP_TICK_MS);
    uv_run(&http->loop, UV_RUN_DEFAULT);
    if (!sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return SEMEL_OK;
}

semel_status semel__http_reload(struct semel_http *http, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (struct semel_http_listener *l = http->listeners; l != NULL && status == SEMEL_OK; l = l->next)
        if (l->cert_file != NULL)
            status = semel__tls_server_context(&l->fresh, l->cert_file, l->key_file, l->client_ca_file, err);
    return status;
}

void semel__http_reloaded(struct semel_http *http, bool use)
{
    for (struct semel_http_listener *l = http->listeners; l != NULL; l = l->next) {
        SSL_CTX *old = l->fresh;
        if (use && l->fresh != NULL) {
            pthread_mutex_lock(&l->tls_lock);
            old = l->tls;
            l->tls = l->fresh;
            pthread_mutex_unlock(&l->tls_lock);
        }
        l->fresh = NULL;
        SSL_CTX_free(old);
    }
}

void semel__http_free(struct semel_http *http)
{
    if (http == NULL)
        return;
    if (!http->finished) { /* it never ran, or was not stopped */
        http->stopping = true;
        for (struct semel_http_listener *l = http->listeners; l != NULL; l = l->next)
            listener_close(l);
        give_up(http);
        peer_gone(http);
        uv_run(&http->loop, UV_RUN_DEFAULT);
    }
    int error = uv_loop_close(&http->loop);
    assert(error == 0);
    (void)error;
    struct semel_http_listener *listener = http->listeners;
    while (listener != NULL) {
        struct semel_http_listener *next = listener->next;
        listener_free(listener);
        listener = next;
    }
    mail_gone(http->mail);
    semel__free(http);
}
