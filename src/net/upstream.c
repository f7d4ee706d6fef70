/* SPDX-License-Identifier: MIT
 *
 * upstream.c: the upstreams of upstream.h: calls, and the links (connections) that carry them.
 *
 * A link has at most one call; a call has one link at a time, and more than one only while it connects to the
 * addresses of a name, one after the other. A link without a call is idle, in the pool, and reads only to notice its
 * end. What is queued on an open link goes out before the loop waits again, so that the head of a request and a body
 * that is there already are one write. A timer that runs is not set anew for a later time-out.
 *
 * Invariants: `handed` is set before the first write that could hand a byte of the request to the kernel, and only when
 * it did or may have done so; end_call is the only place where `done` is called, and only a callback of libuv leads
 * there; a failure within a function of upstream.h is noted in `fault` and reported by the timer; a link's memory is
 * freed when both of its handles are closed.
 */
#include "net/upstream.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/wait.h"
#include "net/conn.h"
#include "net/loop.h"
#include "net/parse.h"
#include "net/tls.h"

#define SPACE 65536
#define QUEUE_BOUND 65536
#define QUEUE_MAX ((size_t)64 << 20)
#define FLUSH_ABOVE 16384 /* more does not wait for the end of the loop's turn */
#define HOST_MAX 256
#define KEEP_ALIVE_MAX_S 100000
#define NEVER UINT64_MAX

struct link {
    struct semel_upstream *up;
    struct semel_upstream_call *call; /* NULL: idle */
    struct link *prev, *next;         /* in the pool */
    struct link *next_unsent;
    bool unsent; /* it is in that list */
    union semel_stream u;
    uv_timer_t timer;
    uv_connect_t connect;
    uv_getaddrinfo_t resolve;
    uv_write_t write;
    struct semel_tls *tls;
    char *cipher;          /* the ciphertext that is being written */
    struct semel_buf wire; /* the plaintext that is being written */
    struct semel_gate gate;
    struct semel_parse parse;
    struct semel_buf head; /* of the answer */
    struct semel_http_pair *fields;
    int waits; /* for what its timer runs: enum wait */
    int handles;
    uint64_t due;   /* of that, in the loop's time; NEVER: there is none */
    uint64_t fires; /* the timer, not later than that; NEVER: it does not run */
    uint64_t idle_at, keep_ms;
    bool resolving, open, writing, reading, closing, pooled;
    bool progress; /* since the timer was started */
    bool tls_ended;
    bool reused;  /* its call is not its first */
    bool resumes; /* it was asked to go on: the timer is for that */
};

struct semel_upstream_call {
    struct semel_upstream *up;
    struct link *link;
    struct semel_upstream_call *prev, *next;
    const struct semel_upstream_events *events;
    void *ctx;
    struct semel_buf queue; /* of the request, not written yet */
    uint64_t started;       /* in the loop's time */
    int64_t until_us;       /* as in its request */
    struct addrinfo *addresses, *address;
    enum semel_upstream_cause fault; /* to be reported by the timer */
    const char *detail;
    unsigned interims;
    bool chunked, head_only;
    bool handed;   /* a byte may be with the kernel */
    bool finished; /* the body is complete */
    bool headed;   /* the final head has come */
    bool paused, blocked;
};

struct semel_upstream {
    struct semel_http *http;
    uv_loop_t *loop;
    struct semel_guest guest;
    struct semel_upstream_settings settings;
    char host[HOST_MAX], port[8];
    struct sockaddr_storage address; /* of a literal or a unix socket; AF_UNSPEC: a name */
    SSL_CTX *tls;                    /* NULL: plain */
    struct semel_upstream_call *calls;
    struct link *pool;   /* the one used last is the first */
    struct link *unsent; /* their calls have queued something */
    size_t n_idle;
    bool closed;
    char space[SPACE], plain[SPACE];
};

enum wait { WAIT_NONE, WAIT_CONNECT, WAIT_SEND, WAIT_ANSWER, WAIT_BODY, WAIT_IDLE };

static void link_pump(struct link *link);

const char *semel__upstream_cause_name(enum semel_upstream_cause cause)
{
    static const char *const names[] = {
#define X(id, name, text) name,
        SEMEL_UPSTREAM_CAUSE_MAP(X)
#undef X
    };
    return names[cause];
}

const char *semel__upstream_cause_text(enum semel_upstream_cause cause)
{
    static const char *const texts[] = {
#define X(id, name, text) text,
        SEMEL_UPSTREAM_CAUSE_MAP(X)
#undef X
    };
    return texts[cause];
}

/* ==== links ====================================================================================== */

static void pool_remove(struct link *link)
{
    if (!link->pooled)
        return;
    link->pooled = false;
    link->up->n_idle--;
    *(link->prev != NULL ? &link->prev->next : &link->up->pool) = link->next;
    if (link->next != NULL)
        link->next->prev = link->prev;
    link->prev = link->next = NULL;
}

static void pool_add(struct link *link)
{
    struct semel_upstream *up = link->up;
    link->pooled = true;
    link->prev = NULL;
    link->next = up->pool;
    if (up->pool != NULL)
        up->pool->prev = link;
    up->pool = link;
    up->n_idle++;
}

static void link_free(struct link *link)
{
    semel__tls_free(link->tls);
    semel__free(link->cipher);
    semel__free(link->fields);
    semel__buf_done(&link->wire);
    semel__buf_done(&link->head);
    semel__free(link);
}

static void link_closed(uv_handle_t *handle)
{
    struct link *link = handle->data;
    if (--link->handles == 0 && !link->resolving)
        link_free(link);
}

/* It may still be resolving: then its memory stays until that has ended. */
static void link_close(struct link *link)
{
    if (link->closing)
        return;
    link->closing = true;
    link->call = NULL;
    pool_remove(link);
    for (struct link **at = &link->up->unsent; link->unsent; at = &(*at)->next_unsent)
        if (*at == link) {
            *at = link->next_unsent;
            link->unsent = false;
            break;
        }
    if (link->resolving)
        uv_cancel((uv_req_t *)&link->resolve);
    uv_close(&link->u.handle, link_closed);
    uv_close((uv_handle_t *)&link->timer, link_closed);
}

/* ==== the end of a call ========================================================================== */

static void call_free(struct semel_upstream_call *call)
{
    struct semel_upstream *up = call->up;
    *(call->prev != NULL ? &call->prev->next : &up->calls) = call->next;
    if (call->next != NULL)
        call->next->prev = call->prev;
    uv_freeaddrinfo(call->addresses);
    semel__buf_done(&call->queue);
    semel__free(call);
    if (up->calls == NULL)
        semel__http_settled(up->http);
}

/* Only from libuv's callbacks. The link is closed, unless it is in the pool. The answer's headers are in the link's
 * memory, which stays as it is until the link is read again. */
static void end_call(struct semel_upstream_call *call, enum semel_upstream_cause cause)
{
    bool answered = cause == SEMEL_UPSTREAM_NONE;
    struct semel_upstream_end end = {.cause = cause, .detail = call->detail};
    end.fate = answered ? SEMEL_UPSTREAM_ANSWERED : call->handed ? SEMEL_UPSTREAM_UNKNOWN : SEMEL_UPSTREAM_NOTHING_SENT;
    struct link *link = call->link;
    end.early = answered && (!call->finished || call->queue.n > 0 || link->writing);
    if (link->call == call)
        link_close(link);
    call->events->done(call->ctx, &end);
    call_free(call);
}

static void fail_soon(struct semel_upstream_call *call, enum semel_upstream_cause cause);

/* ==== time-outs ================================================================================== */

static enum wait wait_of(const struct link *link)
{
    const struct semel_upstream_call *call = link->call;
    if (call == NULL)
        return WAIT_IDLE;
    if (!link->open)
        return WAIT_CONNECT;
    if (link->writing)
        return WAIT_SEND;
    if (call->headed)
        return call->paused ? WAIT_NONE : WAIT_BODY;
    return call->finished ? WAIT_ANSWER : WAIT_NONE; /* the client's time-outs cover its body */
}

static uint64_t wait_ms(const struct link *link, enum wait wait)
{
    const struct semel_upstream_settings *settings = &link->up->settings;
    uint64_t spent;
    switch (wait) {
    case WAIT_CONNECT:
        spent = uv_now(link->up->loop) - link->call->started;
        return spent < settings->connect_ms ? settings->connect_ms - spent : 1;
    case WAIT_SEND:
        return settings->send_ms;
    case WAIT_ANSWER:
        return settings->answer_ms;
    case WAIT_BODY:
        return settings->idle_ms;
    case WAIT_IDLE:
        return link->keep_ms;
    case WAIT_NONE:
        break;
    }
    return 0;
}

static void on_timer(uv_timer_t *timer);

static void run_timer(struct link *link, uint64_t at)
{
    uint64_t now = uv_now(link->up->loop);
    if (at >= link->fires)
        return;
    link->fires = at;
    uv_timer_start(&link->timer, on_timer, at > now ? at - now : 0, 0);
}

static void on_timer(uv_timer_t *timer)
{
    static const enum semel_upstream_cause causes[] = {
        [WAIT_CONNECT] = SEMEL_UPSTREAM_CONNECT_TIMEOUT,
        [WAIT_SEND] = SEMEL_UPSTREAM_SEND_TIMEOUT,
        [WAIT_ANSWER] = SEMEL_UPSTREAM_TIMEOUT,
        [WAIT_BODY] = SEMEL_UPSTREAM_IDLE_TIMEOUT,
    };
    struct link *link = timer->data;
    struct semel_upstream_call *call = link->call;
    link->fires = NEVER;
    if (call != NULL && call->fault != SEMEL_UPSTREAM_NONE) {
        end_call(call, call->fault);
    } else if (link->resumes) {
        link->resumes = false;
        link->progress = true; /* the time-outs begin anew */
        link_pump(link);
    } else if (uv_now(link->up->loop) < link->due) {
        run_timer(link, link->due);
    } else if (call == NULL) {
        link_close(link);
    } else {
        end_call(call, causes[link->waits]);
    }
}

static void arm(struct link *link)
{
    if (link->closing || link->resumes || (link->call != NULL && link->call->fault != SEMEL_UPSTREAM_NONE))
        return;
    enum wait wait = wait_of(link);
    if ((int)wait == link->waits && !link->progress)
        return;
    link->waits = (int)wait;
    link->progress = false;
    uint64_t ms = wait_ms(link, wait), now = uv_now(link->up->loop);
    link->due = ms > 0 && ms < NEVER - now ? now + ms : NEVER;
    run_timer(link, link->due);
}

static void fail_soon(struct semel_upstream_call *call, enum semel_upstream_cause cause)
{
    if (call->fault != SEMEL_UPSTREAM_NONE)
        return;
    call->fault = cause;
    run_timer(call->link, 0);
}

/* ==== writing ==================================================================================== */

static void on_written(uv_write_t *write, int status)
{
    struct link *link = write->data;
    link->writing = false;
    link->wire.n = 0;
    if (link->closing)
        return;
    link->progress = true;
    if (status < 0 && link->call != NULL)
        end_call(link->call, SEMEL_UPSTREAM_RESET);
    else if (status < 0)
        link_close(link);
    else
        link_pump(link);
}

/* Writes memory that stays until link->writing is false again. `request`: bytes of the request are in it. Tries at
 * once first, because only that tells exactly whether the kernel took a byte. */
static void write_out(struct link *link, const char *p, size_t n, bool request)
{
    uv_buf_t buf = {.base = (char *)p, .len = n};
    int done = uv_try_write(&link->u.stream, &buf, 1);
    if (done < 0 && done != UV_EAGAIN) {
        fail_soon(link->call, SEMEL_UPSTREAM_RESET);
        return;
    }
    link->call->handed = link->call->handed || request;
    size_t taken = done > 0 ? (size_t)done : 0;
    link->progress = link->progress || taken > 0;
    if (taken == n)
        return;
    buf = (uv_buf_t){.base = (char *)p + taken, .len = n - taken};
    link->write.data = link;
    link->writing = uv_write(&link->write, &link->u.stream, &buf, 1, on_written) == 0;
    if (!link->writing)
        fail_soon(link->call, SEMEL_UPSTREAM_RESET);
}

/* Moves the queue into `wire`, which is empty. */
static void handle_queue(struct link *link)
{
    struct semel_buf empty = link->wire;
    empty.n = 0;
    link->wire = link->call->queue;
    link->call->queue = empty;
}

static bool seal(struct link *link)
{
    for (size_t at = 0; at < link->wire.n;) {
        size_t slice = link->wire.n - at < SEMEL_TLS_PLAIN_MAX ? link->wire.n - at : SEMEL_TLS_PLAIN_MAX;
        if (!semel__tls_write(link->tls, link->wire.p + at, slice))
            return false;
        at += slice;
    }
    link->wire.n = 0;
    return true;
}

/* The session's output, and with it the request's as soon as there is a session. */
static void flush_tls(struct link *link)
{
    struct semel_upstream_call *call = link->call;
    bool request = link->open && call->queue.n > 0;
    if (request) {
        handle_queue(link);
        if (!seal(link)) {
            fail_soon(call, SEMEL_UPSTREAM_TLS);
            return;
        }
    }
    for (size_t n = 1; n > 0 && !link->writing && call->fault == SEMEL_UPSTREAM_NONE;) {
        n = semel__tls_drain(link->tls, link->cipher, SEMEL_TLS_CIPHER);
        if (n > 0)
            write_out(link, link->cipher, n, link->open);
    }
}

/* Has nothing come, not even the end? */
static bool still_quiet(const struct link *link)
{
    uv_os_fd_t fd;
    char c;
    return uv_fileno(&link->u.handle, &fd) == 0 && recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
           (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* The last moment at which nothing has been sent: may the first byte go? */
static enum semel_upstream_cause first_byte_fault(const struct link *link)
{
    const struct semel_upstream_call *call = link->call;
    if (call->until_us != 0 && semel__boot_us() >= call->until_us)
        return SEMEL_UPSTREAM_STOPPED;
    return link->reused && !still_quiet(link) ? SEMEL_UPSTREAM_CLOSED : SEMEL_UPSTREAM_NONE;
}

static void flush(struct link *link)
{
    struct semel_upstream_call *call = link->call;
    enum semel_upstream_cause fault = SEMEL_UPSTREAM_NONE;
    if (call == NULL || link->writing || call->fault != SEMEL_UPSTREAM_NONE)
        return;
    if (call->queue.failed)
        fault = SEMEL_UPSTREAM_MEMORY;
    else if (link->open && call->queue.n > 0 && !call->handed)
        fault = first_byte_fault(link);
    if (fault != SEMEL_UPSTREAM_NONE) {
        fail_soon(call, fault);
    } else if (link->tls != NULL) {
        flush_tls(link);
    } else if (link->open && call->queue.n > 0) {
        handle_queue(link);
        write_out(link, link->wire.p, link->wire.n, true);
        if (!link->writing)
            link->wire.n = 0;
    }
}

/* ==== reading ==================================================================================== */

/* How long the connection may be idle and be used again, in ms: half of what the server's Keep-Alive allows. */
static uint64_t keep_ms(const struct semel_parse *parse)
{
    for (size_t i = 0; i < parse->n_fields; i++) {
        if (!semel__same_word(parse->fields[i].name, "keep-alive"))
            continue;
        const int64_t seconds = semel__named_number(parse->fields[i].value, "timeout=", KEEP_ALIVE_MAX_S);
        if (seconds >= 0 && seconds * 500 < SEMEL_UPSTREAM_IDLE_MS)
            return (uint64_t)seconds * 500;
    }
    return SEMEL_UPSTREAM_IDLE_MS;
}

static bool reusable(const struct link *link, bool rest)
{
    const struct semel_upstream_call *call = link->call;
    const struct semel_upstream *up = link->up;
    return link->parse.keep_alive && !link->parse.to_close && !rest && call->finished && call->queue.n == 0 &&
           !call->queue.failed && call->fault == SEMEL_UPSTREAM_NONE && !link->writing && !link->tls_ended &&
           !up->closed && up->n_idle < up->settings.idle_max;
}

/* The answer is complete. rest: there were bytes behind it. */
static void answered(struct link *link, bool rest)
{
    struct semel_upstream_call *call = link->call;
    if (reusable(link, rest)) { /* before `done`, which may start the next call with it */
        link->call = NULL;
        link->keep_ms = keep_ms(&link->parse);
        link->idle_at = uv_now(link->up->loop);
        link->progress = true;
        link->resumes = false;
        pool_add(link);
    }
    end_call(call, SEMEL_UPSTREAM_NONE);
}

static bool on_piece(void *ctx, struct semel_str piece)
{
    struct link *link = ctx;
    struct semel_upstream_call *call = link->call;
    if (call == NULL)
        return false; /* it was cancelled meanwhile */
    link->progress = true;
    call->events->body(call->ctx, piece);
    return link->call != NULL;
}

static void gate_reset(struct link *link)
{
    const struct semel_upstream_settings *settings = &link->up->settings;
    link->head.n = 0;
    semel__gate_init_answer(&link->gate, settings->head_bytes, settings->head_fields);
}

/* A head is complete. */
static enum semel_upstream_cause handle_head(struct link *link)
{
    struct semel_upstream_call *call = link->call;
    int code = link->gate.code;
    if (code == 101)
        return SEMEL_UPSTREAM_UPGRADE;
    if (semel__parse_answer(&link->parse, link->fields, link->up->settings.head_fields, semel__buf_str(&link->head),
                            code, call->head_only) != 0) {
        call->detail = link->parse.reason;
        return SEMEL_UPSTREAM_MALFORMED;
    }
    if (code < 200) {
        gate_reset(link);
        return ++call->interims > SEMEL_UPSTREAM_INTERIM_MAX ? SEMEL_UPSTREAM_INTERIM : SEMEL_UPSTREAM_NONE;
    }
    semel__parse_bound(&link->parse, SIZE_MAX, on_piece, link);
    call->headed = true;
    struct semel_upstream_answer answer = {.status = code,
                                           .headers = link->fields,
                                           .n_headers = link->parse.n_fields,
                                           .length = link->parse.sized ? (int64_t)link->parse.length : -1,
                                           .no_body = link->parse.no_body};
    call->events->head(call->ctx, &answer);
    return SEMEL_UPSTREAM_NONE;
}

/* Feeds the gate until the final head is complete. *ret_used: bytes of heads. */
static enum semel_upstream_cause read_heads(struct link *link, const char *p, size_t n, size_t *ret_used)
{
    struct semel_upstream_call *call = link->call;
    enum semel_upstream_cause cause = SEMEL_UPSTREAM_NONE;
    size_t at = 0;
    while (at < n && cause == SEMEL_UPSTREAM_NONE && link->call == call && !call->headed) {
        size_t used;
        enum semel_gate_verdict verdict = semel__gate_feed(&link->gate, p + at, n - at, &used);
        if (!semel__buf_add(&link->head, p + at, used))
            cause = SEMEL_UPSTREAM_MEMORY;
        else if (verdict == SEMEL_GATE_END)
            cause = handle_head(link);
        else if (verdict == SEMEL_GATE_REFUSED) {
            call->detail = link->gate.reason;
            cause = link->gate.seen == link->gate.max_bytes || link->gate.fields == link->gate.max_fields
                        ? SEMEL_UPSTREAM_HEAD_TOO_LARGE
                        : SEMEL_UPSTREAM_MALFORMED;
        }
        at += used;
    }
    *ret_used = at;
    return cause;
}

/* Plaintext that has arrived for the call. */
static void handle_input(struct link *link, const char *p, size_t n)
{
    struct semel_upstream_call *call = link->call;
    size_t used = 0;
    enum semel_upstream_cause cause = SEMEL_UPSTREAM_NONE;
    if (!call->handed)
        cause = SEMEL_UPSTREAM_EARLY;
    else if (!call->headed)
        cause = read_heads(link, p, n, &used);
    if (link->call != call)
        return; /* cancelled by a callback */
    if (cause == SEMEL_UPSTREAM_NONE && call->headed && !link->parse.complete && used < n) {
        size_t taken = 0;
        int status = semel__parse_body(&link->parse, p + used, n - used, &taken);
        if (link->call != call)
            return;
        used += taken;
        if (status != 0) {
            call->detail = link->parse.reason;
            cause = SEMEL_UPSTREAM_MALFORMED;
        }
    }
    if (cause != SEMEL_UPSTREAM_NONE)
        end_call(call, cause);
    else if (call->headed && link->parse.complete)
        answered(link, used < n);
}

/* The server has closed its side; `broken`: not properly. */
static void handle_end(struct link *link, bool broken)
{
    struct semel_upstream_call *call = link->call;
    bool proper = link->tls != NULL ? link->tls_ended : !broken;
    if (call == NULL)
        link_close(link);
    else if (!link->open)
        end_call(call, link->tls != NULL ? SEMEL_UPSTREAM_TLS : SEMEL_UPSTREAM_CONNECT);
    else if (call->headed && proper && semel__parse_ended(&link->parse))
        answered(link, false);
    else if (broken)
        end_call(call, SEMEL_UPSTREAM_RESET);
    else
        end_call(call, call->headed || link->head.n > 0 ? SEMEL_UPSTREAM_TRUNCATED : SEMEL_UPSTREAM_CLOSED);
}

/* Plaintext for the call, or for nobody. */
static void decrypt(struct link *link)
{
    size_t n = 1;
    while (n > 0 && !link->closing && !(link->call != NULL && link->call->paused && link->call->headed)) {
        char *space = link->up->plain;
        enum semel_tls_state state = semel__tls_read(link->tls, space, SPACE, &n);
        if (state == SEMEL_TLS_ENDED) {
            link->tls_ended = true;
            handle_end(link, false);
            return;
        }
        if (state != SEMEL_TLS_OPEN) {
            if (link->call == NULL) {
                link_close(link);
                return;
            }
            link->call->detail = link->open ? NULL : semel__tls_fault(link->tls);
            end_call(link->call, link->open ? SEMEL_UPSTREAM_RESET : SEMEL_UPSTREAM_TLS);
            return;
        }
        if (n > 0 && link->call == NULL)
            link_close(link); /* an answer that nobody asked for */
        else if (n > 0)
            handle_input(link, space, n);
    }
}

static void give_space(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct link *link = handle->data;
    (void)suggested;
    *buf = uv_buf_init(link->up->space, sizeof(link->up->space));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct link *link = stream->data;
    if (n == 0 || link->closing)
        return;
    if (n < 0)
        handle_end(link, n != UV_EOF);
    else if (link->tls != NULL) {
        if (semel__tls_feed(link->tls, buf->base, (size_t)n))
            decrypt(link);
        else if (link->call != NULL)
            end_call(link->call, SEMEL_UPSTREAM_MEMORY);
        else
            link_close(link);
    } else if (link->call == NULL)
        link_close(link); /* an answer that nobody asked for */
    else
        handle_input(link, buf->base, (size_t)n);
    link_pump(link);
}

static void set_reading(struct link *link)
{
    bool want = link->call == NULL || !link->call->paused || !link->call->headed;
    if (want && !link->reading && uv_read_start(&link->u.stream, give_space, on_read) < 0 && link->call != NULL)
        fail_soon(link->call, SEMEL_UPSTREAM_RESET);
    if (!want && link->reading)
        uv_read_stop(&link->u.stream);
    link->reading = want;
}

static void report_drained(struct link *link)
{
    struct semel_upstream_call *call = link->call;
    if (call == NULL || !call->blocked || call->queue.n > QUEUE_BOUND / 2)
        return;
    call->blocked = false;
    call->events->drained(call->ctx);
}

/* Does everything that can be done now. Only from libuv's callbacks. */
static void link_pump(struct link *link)
{
    if (link->closing)
        return;
    if (link->tls != NULL && link->open)
        decrypt(link);
    if (link->closing)
        return;
    if (link->tls != NULL && !link->open && link->call != NULL && semel__tls_ready(link->tls)) {
        link->open = true;
        link->progress = true;
    }
    flush(link);
    report_drained(link);
    if (link->closing)
        return;
    set_reading(link);
    arm(link);
}

/* Before the loop waits. */
static void send_all(void *ctx)
{
    struct semel_upstream *up = ctx;
    while (up->unsent != NULL) {
        struct link *link = up->unsent;
        up->unsent = link->next_unsent;
        link->unsent = false;
        link_pump(link);
    }
}

/* Something was queued. A link that connects sends it when it is open. */
static void send_soon(struct link *link)
{
    if (link->call->queue.n > FLUSH_ABOVE) {
        flush(link);
        arm(link);
    }
    if (!link->open || link->unsent)
        return;
    link->unsent = true;
    link->next_unsent = link->up->unsent;
    link->up->unsent = link;
}

/* ==== connecting ================================================================================= */

static struct link *link_new(struct semel_upstream *up, bool is_unix)
{
    struct link *link = semel__calloc(1, sizeof(*link));
    if (link == NULL)
        return NULL;
    link->up = up;
    link->handles = 2;
    link->due = link->fires = NEVER;
    link->fields = semel__calloc(up->settings.head_fields, sizeof(*link->fields));
    if (up->tls != NULL) {
        link->tls = semel__tls_new(up->tls, up->host);
        link->cipher = semel__alloc(SEMEL_TLS_CIPHER);
    }
    semel__buf_init(&link->head, up->settings.head_bytes);
    semel__buf_init(&link->wire, QUEUE_MAX);
    if (link->fields == NULL || (up->tls != NULL && (link->tls == NULL || link->cipher == NULL))) {
        link_free(link);
        return NULL;
    }
    gate_reset(link);
    if (is_unix)
        uv_pipe_init(up->loop, &link->u.pipe, 0);
    else
        uv_tcp_init(up->loop, &link->u.tcp);
    uv_timer_init(up->loop, &link->timer);
    link->u.handle.data = link->timer.data = link;
    return link;
}

static bool attach(struct semel_upstream_call *call, bool is_unix)
{
    struct link *link = link_new(call->up, is_unix);
    if (link == NULL)
        return false;
    link->call = call;
    call->link = link;
    return true;
}

static void connect_to(struct link *link, const struct sockaddr *address);

/* The next address of the name; false: there is none. */
static bool connect_next(struct semel_upstream_call *call)
{
    struct link *failed = call->link;
    if (call->address == NULL || call->address->ai_next == NULL || !attach(call, false))
        return false;
    link_close(failed);
    call->address = call->address->ai_next;
    connect_to(call->link, call->address->ai_addr);
    arm(call->link);
    return true;
}

static void on_connect(uv_connect_t *connect, int status)
{
    struct link *link = connect->data;
    if (link->closing)
        return;
    if (status < 0) {
        if (!connect_next(link->call))
            end_call(link->call, SEMEL_UPSTREAM_CONNECT);
        return;
    }
    if (link->u.handle.type == UV_TCP)
        uv_tcp_nodelay(&link->u.tcp, 1);
    if (link->tls != NULL) {
        decrypt(link); /* begins the handshake */
    } else {
        link->open = true;
        link->progress = true;
    }
    link_pump(link);
}

static void connect_to(struct link *link, const struct sockaddr *address)
{
    link->connect.data = link;
    if (address->sa_family == AF_UNIX)
        uv_pipe_connect(&link->connect, &link->u.pipe, ((const struct sockaddr_un *)address)->sun_path, on_connect);
    else if (uv_tcp_connect(&link->connect, &link->u.tcp, address, on_connect) < 0)
        fail_soon(link->call, SEMEL_UPSTREAM_CONNECT);
}

static void on_resolved(uv_getaddrinfo_t *resolve, int status, struct addrinfo *addresses)
{
    struct link *link = resolve->data;
    link->resolving = false;
    if (link->closing) {
        uv_freeaddrinfo(addresses);
        if (link->handles == 0)
            link_free(link);
        return;
    }
    link->call->addresses = link->call->address = addresses;
    if (status < 0 || addresses == NULL)
        end_call(link->call, SEMEL_UPSTREAM_RESOLVE);
    else
        connect_to(link, addresses->ai_addr);
}

static void resolve(struct link *link)
{
    const struct semel_upstream *up = link->up;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    link->resolve.data = link;
    link->resolving = uv_getaddrinfo(up->loop, &link->resolve, on_resolved, up->host, up->port, &hints) == 0;
    if (!link->resolving)
        fail_soon(link->call, SEMEL_UPSTREAM_RESOLVE);
}

/* An idle connection that may be used again; NULL: there is none. */
static struct link *pool_take(struct semel_upstream *up, bool fresh)
{
    while (up->pool != NULL) {
        struct link *link = up->pool;
        uint64_t idle = uv_now(up->loop) - link->idle_at;
        uint64_t most = fresh && link->keep_ms > SEMEL_UPSTREAM_FRESH_MS ? SEMEL_UPSTREAM_FRESH_MS : link->keep_ms;
        if (idle >= most && fresh && idle < link->keep_ms)
            return NULL; /* others may still use it; those behind it are older */
        pool_remove(link);
        if (idle < most && still_quiet(link))
            return link;
        link_close(link);
    }
    return NULL;
}

/* ==== calls ====================================================================================== */

static void put_request(struct semel_buf *buf, const struct semel_upstream_request *request)
{
    bool may_have_body = request->method == SEMEL_HTTP_POST || request->method == SEMEL_HTTP_PUT ||
                         request->method == SEMEL_HTTP_PATCH;
    semel__buf_addz(buf, semel__http_method_name(request->method));
    semel__buf_addz(buf, " ");
    semel__buf_add(buf, request->target.p, request->target.n);
    semel__buf_addz(buf, " HTTP/1.1\r\n");
    semel__buf_add(buf, request->lines.p, request->lines.n);
    if (request->length > 0 || (request->length == 0 && may_have_body))
        semel__buf_addf(buf, "Content-Length: %lld\r\n", (long long)request->length);
    if (request->length < 0)
        semel__buf_addz(buf, "Transfer-Encoding: chunked\r\n");
    semel__buf_add(buf, "\r\n", 2);
}

/* A pooled link, or a new one that connects. false: no memory. */
static bool find_link(struct semel_upstream_call *call, bool fresh)
{
    struct semel_upstream *up = call->up;
    struct link *link = pool_take(up, fresh);
    if (link != NULL) {
        link->reused = true;
        link->call = call;
        call->link = link;
        gate_reset(link);
        arm(link);
        send_soon(link);
        return true;
    }
    if (!attach(call, up->address.ss_family == AF_UNIX))
        return false;
    if (up->address.ss_family == AF_UNSPEC)
        resolve(call->link);
    else
        connect_to(call->link, (const struct sockaddr *)&up->address);
    arm(call->link);
    return true;
}

semel_status semel__upstream_start(struct semel_upstream *up, const struct semel_upstream_request *request,
                                   const struct semel_upstream_events *events, void *ctx,
                                   struct semel_upstream_call **ret, struct semel_error *err)
{
    struct semel_upstream_call *call = semel__calloc(1, sizeof(*call));
    if (call == NULL)
        return semel__fail_memory(err);
    call->up = up;
    call->events = events;
    call->ctx = ctx;
    call->started = uv_now(up->loop);
    call->until_us = request->until_us;
    call->chunked = request->length < 0;
    call->finished = request->length == 0;
    call->head_only = request->method == SEMEL_HTTP_HEAD;
    semel__buf_init(&call->queue, QUEUE_MAX);
    put_request(&call->queue, request);
    call->next = up->calls;
    if (up->calls != NULL)
        up->calls->prev = call;
    up->calls = call;
    if (up->closed || call->queue.failed || !find_link(call, request->fresh)) {
        call_free(call);
        return semel__fail_memory(err);
    }
    *ret = call;
    return SEMEL_OK;
}

bool semel__upstream_send(struct semel_upstream_call *call, struct semel_str piece)
{
    assert(!call->finished);
    if (piece.n > 0 && call->chunked)
        semel__buf_addf(&call->queue, "%zx\r\n", piece.n);
    semel__buf_add(&call->queue, piece.p, piece.n);
    if (piece.n > 0 && call->chunked)
        semel__buf_add(&call->queue, "\r\n", 2);
    send_soon(call->link);
    call->blocked = call->queue.n > QUEUE_BOUND;
    return !call->blocked;
}

void semel__upstream_finish(struct semel_upstream_call *call)
{
    assert(!call->finished);
    call->finished = true;
    if (call->chunked)
        semel__buf_addz(&call->queue, "0\r\n\r\n");
    send_soon(call->link);
}

void semel__upstream_pull(struct semel_upstream_call *call, bool on)
{
    if (call->paused == !on)
        return;
    call->paused = !on;
    if (on && call->headed) { /* what TLS has decrypted follows from the loop */
        call->link->resumes = true;
        run_timer(call->link, 0);
    } else if (!on) {
        arm(call->link);
    }
}

void semel__upstream_cancel(struct semel_upstream_call *call)
{
    link_close(call->link);
    call_free(call);
}

/* ==== upstreams ================================================================================== */

static bool is_busy(void *ctx)
{
    return ((struct semel_upstream *)ctx)->calls != NULL;
}

static void give_up(void *ctx)
{
    struct semel_upstream *up = ctx;
    while (up->calls != NULL)
        end_call(up->calls, SEMEL_UPSTREAM_STOPPED);
}

static void close_all(void *ctx)
{
    struct semel_upstream *up = ctx;
    up->closed = true;
    while (up->pool != NULL)
        link_close(up->pool);
}

static semel_status bad_url(struct semel_error *err, const char *url, const char *why)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "upstream %s: %s", url, why);
}

static bool host_char(char c)
{
    return semel__is_letter(c) || semel__is_digit(c) || c == '-' || c == '.' || c == '_' || c == ':';
}

/* HOST:PORT behind the scheme. */
static semel_status parse_authority(struct semel_upstream *up, const char *text, bool tls, struct semel_error *err)
{
    const char *url = up->settings.url;
    size_t n = strcspn(text, "/");
    if (text[n] == '/' && text[n + 1] != '\0')
        return bad_url(err, url, "it must have no path: the client's is used");
    bool six = text[0] == '[';
    size_t host = six ? strcspn(text, "]") : strcspn(text, ":/");
    struct semel_str name = {text + (six ? 1 : 0), six ? host - 1 : host};
    const char *rest = text + host + (six && text[host] == ']' ? 1 : 0);
    int64_t port = tls ? 443 : 80;
    if (name.n == 0 || name.n >= sizeof(up->host) || (six && text[host] != ']') || rest > text + n)
        return bad_url(err, url, "it must be http://HOST:PORT, https://HOST:PORT or unix:/path");
    for (size_t i = 0; i < name.n; i++)
        if (!host_char(name.p[i]) || (name.p[i] == ':' && !six))
            return bad_url(err, url, "its host must be a name or an address, IPv6 in brackets, without a user");
    if (*rest == ':' && (!semel__str_int64((struct semel_str){rest + 1, (size_t)(text + n - rest - 1)}, &port) ||
                         port < 1 || port > UINT16_MAX))
        return bad_url(err, url, "its port must be a number from 1 to 65535");
    if (*rest != ':' && rest != text + n)
        return bad_url(err, url, "it must be http://HOST:PORT, https://HOST:PORT or unix:/path");
    snprintf(up->host, sizeof(up->host), "%.*s", (int)name.n, name.p);
    snprintf(up->port, sizeof(up->port), "%d", (int)port);
    if (uv_ip4_addr(up->host, (int)port, (struct sockaddr_in *)&up->address) != 0 &&
        uv_ip6_addr(up->host, (int)port, (struct sockaddr_in6 *)&up->address) != 0)
        up->address.ss_family = AF_UNSPEC;
    return SEMEL_OK;
}

static semel_status parse_url(struct semel_upstream *up, bool *ret_tls, struct semel_error *err)
{
    const char *url = up->settings.url;
    *ret_tls = strncmp(url, "https://", 8) == 0;
    if (strncmp(url, "unix:", 5) == 0) {
        struct sockaddr_un *un = (struct sockaddr_un *)&up->address;
        if (url[5] != '/' || strlen(url + 5) >= sizeof(un->sun_path))
            return bad_url(err, url, "a unix socket is unix:/absolute/path of at most 107 bytes");
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, url + 5, strlen(url + 5) + 1);
        return SEMEL_OK;
    }
    if (!*ret_tls && strncmp(url, "http://", 7) != 0)
        return bad_url(err, url, "it must be http://HOST:PORT, https://HOST:PORT or unix:/path");
    return parse_authority(up, url + (*ret_tls ? 8 : 7), *ret_tls, err);
}

void semel__upstream_settings_init(struct semel_upstream_settings *settings)
{
    *settings = (struct semel_upstream_settings){.connect_ms = 5000,
                                                 .send_ms = 30000,
                                                 .answer_ms = 30000,
                                                 .idle_ms = 30000,
                                                 .head_bytes = 32768,
                                                 .head_fields = 100,
                                                 .idle_max = 64};
}

semel_status semel__upstream_new(struct semel_upstream **ret, struct semel_http *http,
                                 const struct semel_upstream_settings *settings, struct semel_error *err)
{
    struct semel_upstream *up = semel__calloc(1, sizeof(*up));
    bool tls = false;
    if (up == NULL)
        return semel__fail_memory(err);
    up->http = http;
    up->loop = semel__http_loop(http);
    up->settings = *settings;
    semel_status status = parse_url(up, &tls, err);
    if (status == SEMEL_OK && tls)
        status = semel__tls_client_context(&up->tls, settings->ca_file, err);
    up->settings.url = up->settings.ca_file = NULL;
    if (status != SEMEL_OK) {
        semel__free(up);
        return status;
    }
    up->guest =
        (struct semel_guest){.busy = is_busy, .give_up = give_up, .close = close_all, .flush = send_all, .ctx = up};
    semel__http_join(http, &up->guest);
    *ret = up;
    return SEMEL_OK;
}

void semel__upstream_free(struct semel_upstream *up)
{
    if (up == NULL)
        return;
    assert(up->calls == NULL && up->pool == NULL);
    SSL_CTX_free(up->tls);
    semel__free(up);
}
