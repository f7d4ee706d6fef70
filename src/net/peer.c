/* SPDX-License-Identifier: MIT
 *
 * peer.c: a client's socket: it moves bytes between libuv, TLS and the connection's state machine.
 *
 * Every callback of libuv tells the connection what happened and then calls pump, which brings the
 * socket in line with the connection's phase: decrypt, write, shut down, read or not, the timer.
 *
 * Idle connections cost descriptors, which handlers and stores need too (P88): there is a bound over all listeners, and
 * when it is reached whoever has sent nothing yet gives way to who comes.
 *
 * Invariants: one write at a time, from memory that stays as it is until it ended; ciphertext is read
 * only while none is waiting to be decrypted, so a peer holds at most one read of it; after close
 * nothing is started, and the memory goes when both handles are closed.
 */
#include "net/server.h"

#include <assert.h>

#define REFUSING 32 /* connections past the bound that are told so; more are just closed */
#define PLAIN_SLICE 16384
#define RETRY_MS 100

static bool lingers(const struct semel_peer *peer)
{
    return peer->conn->phase == SEMEL_CONN_LINGER;
}

static void drop_tls(struct semel_peer *peer)
{
    semel__tls_free(peer->tls);
    peer->tls = NULL;
}

static void handle_closed(uv_handle_t *handle)
{
    struct semel_peer *peer = handle->data;
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
    semel__server_peer_gone(http);
}

/* Its descriptor is closed at once, though its memory goes later. */
static void uncount(const struct semel_peer *peer)
{
    if (peer->told) {
        peer->http->n_told--;
        return;
    }
    peer->http->n_peers--;
    peer->listener->n_peers--;
}

void semel__peer_close(struct semel_peer *peer)
{
    if (peer->closing)
        return;
    peer->closing = true;
    uncount(peer);
    uv_close(&peer->u.handle, handle_closed);
    uv_close((uv_handle_t *)&peer->timer, handle_closed);
}

/* Plaintext for the connection, as long as it wants some. */
static void decrypt(struct semel_peer *peer)
{
    size_t n = 1;
    while (n > 0 && peer->tls != NULL && !lingers(peer) && semel__conn_wants(peer->conn)) {
        char *space = peer->http->plain_space;
        switch (semel__tls_read(peer->tls, space, SEMEL_CONN_READ, &n)) {
        case SEMEL_TLS_OPEN:
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
    struct semel_peer *peer = write->data;
    peer->writing = false;
    if (peer->closing)
        return;
    if (status < 0)
        semel__conn_lost(peer->conn);
    else
        semel__conn_sent(peer->conn, peer->in_flight);
    semel__peer_pump(peer);
}

static void write_bufs(struct semel_peer *peer, const uv_buf_t *bufs, unsigned n, size_t in_flight)
{
    peer->write.data = peer;
    peer->in_flight = in_flight;
    peer->writing = uv_write(&peer->write, &peer->u.stream, bufs, n, on_written) == 0;
    if (!peer->writing)
        semel__conn_lost(peer->conn);
}

static void write_plain(struct semel_peer *peer)
{
    struct semel_str pieces[2];
    size_t n = semel__conn_output(peer->conn, pieces);
    if (n == 0)
        return;
    uv_buf_t bufs[2];
    unsigned used = 0;
    for (int i = 0; i < 2; i++)
        if (pieces[i].n > 0) /* an empty one would cost a system call of its own */
            bufs[used++] = (uv_buf_t){.base = (char *)pieces[i].p, .len = pieces[i].n};
    write_bufs(peer, bufs, used, n);
}

/* What the session has to say by itself goes first; else a slice of the output is encrypted. */
static void write_tls(struct semel_peer *peer)
{
    struct semel_str pieces[2];
    size_t slice = 0, n = semel__tls_take(peer->tls, peer->cipher, SEMEL_PEER_CIPHER);
    if (n == 0 && semel__conn_output(peer->conn, pieces) > 0) {
        struct semel_str piece = pieces[0].n > 0 ? pieces[0] : pieces[1];
        slice = piece.n < PLAIN_SLICE ? piece.n : PLAIN_SLICE;
        if (!semel__tls_write(peer->tls, piece.p, slice)) {
            semel__conn_abandon(peer->conn);
            slice = 0;
        }
        n = semel__tls_take(peer->tls, peer->cipher, SEMEL_PEER_CIPHER);
    }
    uv_buf_t buf = {.base = peer->cipher, .len = n};
    if (n > 0)
        write_bufs(peer, &buf, 1, slice);
}

static void on_shut(uv_shutdown_t *shutdown, int status)
{
    (void)shutdown;
    (void)status; /* the time-out of lingering does what a failure would */
}

/* Our side is done: the last words of TLS, then the end of our half. */
static void shut(struct semel_peer *peer)
{
    if (peer->shut)
        return;
    peer->shut = true;
    if (peer->tls != NULL) {
        semel__tls_shutdown(peer->tls);
        size_t n = semel__tls_take(peer->tls, peer->cipher, SEMEL_PEER_CIPHER);
        uv_buf_t buf = {.base = peer->cipher, .len = n};
        if (n > 0)
            write_bufs(peer, &buf, 1, 0);
    }
    if (uv_shutdown(&peer->shutdown, &peer->u.stream, on_shut) < 0) /* behind the write */
        semel__conn_lost(peer->conn);
}

static void give_space(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct semel_peer *peer = handle->data;
    (void)suggested;
    *buf = uv_buf_init(peer->http->read_space, sizeof(peer->http->read_space));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct semel_peer *peer = stream->data;
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
    semel__peer_pump(peer);
}

static void on_timer(uv_timer_t *timer)
{
    struct semel_peer *peer = timer->data;
    semel__conn_expired(peer->conn);
    semel__peer_pump(peer);
}

static void set_timer(struct semel_peer *peer)
{
    uint64_t ms = semel__conn_timeout_ms(peer->conn);
    if (peer->serial == peer->conn->serial)
        return;
    peer->serial = peer->conn->serial;
    if (ms > 0)
        uv_timer_start(&peer->timer, on_timer, ms, 0);
    else
        uv_timer_stop(&peer->timer);
}

static void set_reading(struct semel_peer *peer)
{
    bool want = semel__conn_wants(peer->conn) &&
                (peer->tls == NULL || lingers(peer) || semel__tls_waiting(peer->tls) == 0);
    if (want && !peer->reading && uv_read_start(&peer->u.stream, give_space, on_read) < 0)
        semel__conn_lost(peer->conn);
    if (!want && peer->reading)
        uv_read_stop(&peer->u.stream);
    peer->reading = want;
}

void semel__peer_pump(struct semel_peer *peer)
{
    if (peer->closing)
        return;
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
        semel__peer_close(peer);
}

/* NULL: no memory. Its handles are initialised: it must be closed, not freed. */
static struct semel_peer *peer_new(struct semel_http_listener *listener)
{
    struct semel_http *http = listener->http;
    struct semel_peer *peer = semel__calloc(1, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    *peer = (struct semel_peer){.http = http, .listener = listener, .next = http->peers, .handles = 2};
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

static bool peer_connect(struct semel_peer *peer)
{
    struct semel_http_listener *listener = peer->listener;
    struct sockaddr_storage remote = {.ss_family = AF_UNIX}, local = {.ss_family = AF_UNIX};
    char remote_text[SEMEL_ADDRESS_TEXT], local_text[SEMEL_ADDRESS_TEXT];
    bool tcp = listener->address.storage.ss_family != AF_UNIX;
    int n = sizeof(remote), m = sizeof(local);
    if (tcp) {
        uv_tcp_nodelay(&peer->u.tcp, 1);
        if (uv_tcp_getpeername(&peer->u.tcp, (struct sockaddr *)&remote, &n) < 0 ||
            uv_tcp_getsockname(&peer->u.tcp, (struct sockaddr *)&local, &m) < 0)
            return false; /* it is gone already */
    }
    semel__address_show(&remote, true, remote_text);
    semel__address_show(&local, false, local_text);
    peer->conn = semel__conn_new(&listener->env, remote_text, tcp ? local_text : NULL);
    if (peer->conn != NULL)
        peer->conn->owner = peer;
    pthread_mutex_lock(&listener->tls_lock);
    struct semel_tls_context *context = semel__tls_context_ref(listener->tls);
    pthread_mutex_unlock(&listener->tls_lock);
    if (context != NULL) {
        peer->tls = semel__tls_new(context);
        peer->cipher = semel__alloc(SEMEL_PEER_CIPHER);
        semel__tls_context_unref(context);
    }
    return peer->conn != NULL && (context == NULL || (peer->tls != NULL && peer->cipher != NULL));
}

static void retry_accept(uv_timer_t *timer)
{
    struct semel_http_listener *listener = timer->data;
    semel__peer_accept(&listener->u.stream, 0);
}

/* ---- too many connections -------------------------------------------------------------------------- */

/* Connections that the other listeners may still want of their reserves. */
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

/* Who may have to go so that the listener gets a connection: not what another one has of its reserve. */
static bool may_go(const struct semel_peer *peer, const struct semel_http_listener *listener)
{
    const struct semel_http_listener *own = peer->listener;
    if (peer->closing || peer->told || peer->conn == NULL)
        return false;
    return own == listener || (!full_itself(listener) && own->n_peers > own->env.limits.reserve);
}

/* Does nobody with a token lose anything by its end? Between two requests, after the last, or in a reply that anybody
 * gets, such as a refusal, which may be stuck because its client does not read. */
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
    case SEMEL_CONN_CLOSED:
        return false;
    }
    return false;
}

/* The oldest that has not sent a whole head; else the oldest that is free. */
static struct semel_peer *oldest_without_work(const struct semel_http_listener *listener)
{
    struct semel_peer *idle = NULL;
    for (struct semel_peer *peer = listener->http->oldest; peer != NULL; peer = peer->prev) {
        if (!may_go(peer, listener))
            continue;
        if (peer->conn->phase == SEMEL_CONN_HEAD && peer->conn->requests == 0)
            return peer;
        if (idle == NULL && is_free(peer->conn))
            idle = peer;
    }
    return idle;
}

static void report(const struct semel_http_listener *listener, bool gave_way, const struct semel_peer *peer)
{
    if (listener->crowded != NULL)
        listener->crowded(listener->env.observe_ctx, gave_way, peer->conn->remote);
}

/* false: everybody is at work, and there is no room. */
static bool make_room(struct semel_http_listener *listener)
{
    while (crowded(listener)) {
        struct semel_peer *peer = oldest_without_work(listener);
        if (peer == NULL)
            return false;
        report(listener, true, peer);
        semel__peer_close(peer);
    }
    return true;
}

static void tell_full(struct semel_peer *peer)
{
    report(peer->listener, false, peer);
    if (peer->tls != NULL || peer->http->n_told == REFUSING) {
        semel__peer_close(peer);
        return;
    }
    uncount(peer);
    peer->told = true;
    peer->http->n_told++;
    semel__conn_refuse(peer->conn, 503, "too many connections");
    semel__peer_pump(peer);
}

void semel__peer_accept(uv_stream_t *stream, int status)
{
    struct semel_http_listener *listener = stream->data;
    if (status < 0)
        return; /* libuv goes on listening */
    struct semel_peer *peer = peer_new(listener);
    if (peer == NULL) { /* libuv waits until this one is accepted */
        uv_timer_start(&listener->retry, retry_accept, RETRY_MS, 0);
        return;
    }
    bool room = make_room(listener); /* before it has its conn, so that it does not go itself */
    if (uv_accept(stream, &peer->u.stream) < 0 || !peer_connect(peer))
        semel__peer_close(peer);
    else if (!room)
        tell_full(peer);
    else
        semel__peer_pump(peer);
}
