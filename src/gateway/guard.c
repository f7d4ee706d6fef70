/* SPDX-License-Identifier: MIT
 *
 * guard.c: one guarded request as a state machine; see guard.h.
 *
 * Who waits for whom: the first request of this loop with a key is its leader, in the table; later ones with the same
 * fingerprint wait behind it and are answered from its memory when its answer is stored. What another loop or process
 * has the leader finds out by claiming again. The store alone decides who runs: the table saves work.
 *
 * Invariants: a guard is in the list of all from its start to its end; it is timed only while it is WAITING, POLLING or
 * RETRYING; the keeper has its job only while it is CLAIMING, RESOLVING or ENDING.
 */
#include "gateway/guard.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "base/point.h"
#include "base/wait.h"
#include "gateway/ask.h"
#include "gateway/keeper.h"
#include "gateway/refusal.h"
#include "net/side.h"

#define BUCKETS 4096u
#define HEAD_BYTES ((size_t)512 << 10) /* of copies of both heads */
#define ASIDE_ABOVE 32768              /* bytes of a body whose fingerprint would block the loop (P104) */
#define SLICE 65536
#define TICK_MS 10
#define POLL_US INT64_C(20000) /* doubled up to */
#define POLL_MAX_US INT64_C(250000)
#define RETRY_US INT64_C(100000) /* doubled up to */
#define RETRY_MAX_US INT64_C(1000000)
#define ROUNDS_MAX 3 /* of reconciles for one request */

enum guard_state {
    GUARD_BODY,
    GUARD_DIGESTING,
    GUARD_WAITING,
    GUARD_CLAIMING,
    GUARD_POLLING,
    GUARD_ASKING,
    GUARD_RESOLVING,
    GUARD_CHECKING,
    GUARD_CALLING,
    GUARD_ENDING,
    GUARD_RETRYING,
    GUARD_STREAMING,
    GUARD_SENDING
};

struct guard {
    struct semel_party party;
    struct semel_guards *guards;
    struct semel_guard_rule *rule;
    enum guard_state state;
    struct semel_http_exchange *x;    /* NULL: the client was answered, or has left */
    struct semel_upstream_call *call; /* NULL: there is none, or it has ended */
    struct semel_arena arena;         /* of the heads */
    size_t held;                      /* bytes that the rule's bound counts */

    /* The request. */
    enum semel_http_method method;
    struct semel_str target, lines, key, scope, origin, traceparent;
    struct semel_http_pair *headers;
    size_t n_headers;
    struct semel_buf body;
    size_t given;               /* bytes of the body that the upstream's call has */
    struct semel_fp fp;         /* from here on: of the thread that digests, while it does */
    enum semel_key_found found; /* of a key in the body */
    struct semel_error err;
    bool keyless; /* passed on without a key, or without a store */
    bool is_time; /* the key is a time and nothing else */

    /* The key. */
    struct semel_keeper_job job;
    int64_t token;
    bool holds; /* the token is its key's */
    bool busy;  /* the store said last that the key runs elsewhere */
    unsigned rounds;

    /* The answer. */
    int status;
    struct semel_http_pair *answer;
    size_t n_answer;
    int64_t length;
    bool bodiless;
    struct semel_str said;
    struct semel_buf spool, kept; /* its body; its headers as they are stored */
    struct semel_str rest;        /* of a body that is in memory: what the client has not got yet */
    bool streams;                 /* its body is not stored, and passed on when its end is */
    bool begun;                   /* its head went to the client */
    bool broken;                  /* no whole answer came */
    struct semel_upstream_end fate;
    enum semel_key_end end;
    enum semel_gateway_unknown cause;
    bool unstored; /* storing it has failed */

    /* Time, by the steady clock; but for give_up_us, by the one of leases. */
    int64_t due_us, deadline_us, pause_us, give_up_us;
    bool timed, waited;
    struct guard *prev_timed, *next_timed;

    struct guard *prev, *next;      /* of all */
    struct guard *beside;           /* in its bucket */
    bool leads;                     /* it is in the table */
    struct guard *leader;           /* behind which it waits */
    struct guard *waiters, *behind; /* those behind it; the next one in that list */
    size_t n_waiters;
};

struct semel_guards {
    struct semel_guard_rules rules;
    struct semel_upstream *upstream;
    struct semel_side *side;
    struct semel_keeper_desk desk;
    struct semel_gateway_counts *counts;
    struct semel_asker *check;
    bool finishes, gave_up;
    size_t n, max;
    struct guard *all, *timed;
    struct guard *next_due; /* of `timed`, that the tick looks at next */
    bool ticking;
    struct guard *table[BUCKETS];
};

static void enter(struct guard *g);
static void claim(struct guard *g);
struct replay;
static void settle_waiters(struct guard *g, const struct replay *replay);

/* ==== refusals =================================================================================== */

static void add(_Atomic uint64_t *count)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}

/* Two requests of one moment would share it. */
static void warn(const struct guard *g, struct semel_http_exchange *x)
{
    if (g->is_time)
        semel__http_set_header(x, "Semel-Warning",
                               SEMEL_STR("the key is a time; make one per request, such as a UUID"));
}

static void answer_problem(struct guard *g, const struct semel_refusal *refusal)
{
    struct semel_http_exchange *x = g->x;
    g->x = NULL;
    semel__refusal_answer(&g->guards->rules, x, g->origin, refusal);
}

/* Nothing is sent to a client that has left. */
__attribute__((format(printf, 4, 5))) static void refuse(struct guard *g, enum semel_gateway_refusal why,
                                                         int64_t retry_s, const char *fmt, ...)
{
    char detail[512];
    va_list args;
    if (g->x == NULL)
        return;
    va_start(args, fmt);
    vsnprintf(detail, sizeof detail, fmt, args);
    va_end(args);
    add(&g->guards->counts->guarded_refused[why]);
    answer_problem(g, &(const struct semel_refusal){.why = why, .retry_s = retry_s, .detail = detail});
}

static void refuse_store(struct guard *g)
{
    refuse(g, SEMEL_GATEWAY_REFUSED_NOT_STORED, 1, "the store of the keys is not available; nothing was sent on");
}

static const char too_late[] = "the lease of the key ended before the request was sent on";
static const char too_many_answers[] = "too many bytes of answers like this one are in memory";

/* ==== memory and time ============================================================================ */

static bool hold(struct guard *g, size_t n)
{
    size_t held = atomic_load_explicit(g->rule->held, memory_order_relaxed);
    do {
        if (n > g->rule->set.held_max - held)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(g->rule->held, &held, held + n, memory_order_relaxed,
                                                    memory_order_relaxed));
    g->held += n;
    atomic_fetch_add_explicit(&g->guards->counts->held_bytes, (int64_t)n, memory_order_relaxed);
    return true;
}

static void let_go(struct guard *g, size_t n)
{
    atomic_fetch_sub_explicit(g->rule->held, n, memory_order_relaxed);
    g->held -= n;
    atomic_fetch_sub_explicit(&g->guards->counts->held_bytes, (int64_t)n, memory_order_relaxed);
}

static void untime(struct guard *g)
{
    if (!g->timed)
        return;
    g->timed = false;
    if (g->guards->next_due == g)
        g->guards->next_due = g->next_timed;
    if (g->prev_timed != NULL)
        g->prev_timed->next_timed = g->next_timed;
    else
        g->guards->timed = g->next_timed;
    if (g->next_timed != NULL)
        g->next_timed->prev_timed = g->prev_timed;
}

static void tick(struct semel_guards *guards)
{
    guards->ticking = guards->timed != NULL && !guards->gave_up;
    if (guards->ticking)
        semel__side_start_timer(guards->side, TICK_MS);
}

static void set_due(struct guard *g, int64_t due_us)
{
    struct semel_guards *guards = g->guards;
    g->due_us = due_us;
    if (g->timed)
        return;
    g->timed = true;
    g->prev_timed = NULL;
    g->next_timed = guards->timed;
    if (guards->timed != NULL)
        guards->timed->prev_timed = g;
    guards->timed = g;
    if (!guards->ticking)
        tick(guards);
}

static unsigned bucket_of(struct semel_str scope, struct semel_str key)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < scope.n; i++)
        h = (h ^ (unsigned char)scope.p[i]) * 16777619u;
    h = (h ^ 0xFFu) * 16777619u;
    for (size_t i = 0; i < key.n; i++)
        h = (h ^ (unsigned char)key.p[i]) * 16777619u;
    return h % BUCKETS;
}

static struct guard *find_leader(const struct guard *g)
{
    struct guard *at = g->guards->table[bucket_of(g->scope, g->key)];
    while (at != NULL && (!semel__str_eq(at->key, g->key) || !semel__str_eq(at->scope, g->scope)))
        at = at->beside;
    return at;
}

static void lead(struct guard *g)
{
    struct guard **bucket = &g->guards->table[bucket_of(g->scope, g->key)];
    g->beside = *bucket;
    *bucket = g;
    g->leads = true;
}

static void leave_table(struct guard *g)
{
    struct guard **at = &g->guards->table[bucket_of(g->scope, g->key)];
    while (*at != g)
        at = &(*at)->beside;
    *at = g->beside;
    g->leads = false;
}

static void stop_waiting(struct guard *g)
{
    struct guard **at = &g->leader->waiters;
    while (*at != g)
        at = &(*at)->behind;
    *at = g->behind;
    g->leader->n_waiters--;
    g->leader = NULL;
}

static void guard_free(struct guard *g)
{
    semel__buf_done(&g->body);
    semel__buf_done(&g->spool);
    semel__buf_done(&g->kept);
    semel__arena_done(&g->job.arena);
    semel__arena_done(&g->arena);
    semel__free(g);
}

/* It is over: the client was answered, or is gone, and nobody has anything of it. */
static void finish(struct guard *g)
{
    struct semel_guards *guards = g->guards;
    assert(g->x == NULL && g->call == NULL);
    untime(g);
    if (g->leader != NULL)
        stop_waiting(g);
    if (g->leads)
        settle_waiters(g, NULL);
    let_go(g, g->held);
    if (g->prev != NULL)
        g->prev->next = g->next;
    else
        guards->all = g->next;
    if (g->next != NULL)
        g->next->prev = g->prev;
    atomic_fetch_sub_explicit(&guards->counts->running, 1, memory_order_relaxed);
    guard_free(g);
    if (--guards->n == 0)
        semel__side_settled(guards->side);
}

/* With the others of this turn; when the loop gives up there may be no next one. */
static void submit(struct guard *g)
{
    semel__keeper_submit(&g->guards->desk, &g->job);
    if (g->guards->gave_up)
        semel__keeper_flush(&g->guards->desk);
}

/* ==== replays ==================================================================================== */

/* An answer that is replayed: of a row, or of a leader. */
struct replay {
    int code;
    struct semel_str headers, body, origin;
    bool bodiless; /* the body was not stored */
};

/* Gives the client as much of `rest` as it takes; what follows waits until it is drained. true: there is no more. */
static bool send_rest(struct guard *g)
{
    bool room = true;
    while (g->rest.n > 0 && room) {
        size_t n = g->rest.n < SLICE ? g->rest.n : SLICE;
        room = semel__http_send(g->x, (struct semel_str){g->rest.p, n});
        g->rest = (struct semel_str){g->rest.p + n, g->rest.n - n};
    }
    return g->rest.n == 0;
}

/* The answer is complete, or never will be. If it is complete, the client gets the rest of it first. */
static void end_client(struct guard *g)
{
    struct semel_http_exchange *x = g->x;
    bool whole = g->fate.fate == SEMEL_UPSTREAM_ANSWERED && !g->broken;
    if (x == NULL || (whole && !send_rest(g)))
        return;
    g->x = NULL;
    if (whole)
        semel__http_end(x);
    else
        semel__http_cut(x);
}

/* Nothing is left to be done but to let the client have its answer; nobody else waits for that. */
static void finish_sent(struct guard *g)
{
    g->state = GUARD_SENDING;
    if (g->x == NULL) {
        finish(g);
        return;
    }
    let_go(g, g->body.n); /* the request was answered */
    semel__buf_done(&g->body);
    if (g->leads)
        settle_waiters(g, NULL);
}

/* The answer of another request: a copy that counts for the rule's bound, unless it goes out at once. */
static bool copy_body(struct guard *g, struct semel_str *body)
{
    if (body->n <= SLICE)
        return true;
    if (!hold(g, body->n) || !semel__buf_add(&g->spool, body->p, body->n))
        return false;
    *body = semel__buf_str(&g->spool);
    return true;
}

/* The body stays as it is until the client has it. */
static void send_replay(struct guard *g, const struct replay *replay)
{
    struct semel_http_exchange *x = g->x;
    struct semel_http_pair *pairs;
    size_t n;
    if (x == NULL)
        return;
    bool same_origin = g->origin.n > 0 && semel__str_eq(g->origin, replay->origin);
    if (!semel__heads_read(replay->headers, &g->arena, &pairs, &n)) {
        refuse(g, SEMEL_GATEWAY_REFUSED_NOT_STORED, 1, "the stored answer cannot be read");
        return;
    }
    for (size_t i = 0; i < n; i++)
        if ((same_origin || !semel__head_is_cors(pairs[i].name)) &&
            !(replay->bodiless && semel__same_word(pairs[i].name, "content-encoding"))) /* nothing is no gzip */
            semel__http_set_pair(x, &pairs[i]);
    if (!same_origin)
        semel__refusal_put_cors(&g->guards->rules, x, g->origin);
    semel__http_set_header(x, "Idempotent-Replayed", SEMEL_STR("true"));
    warn(g, x);
    add(&g->guards->counts->replayed);
    g->rest = replay->body;
    g->fate.fate = SEMEL_UPSTREAM_ANSWERED;
    g->broken = false;
    g->begun = true;
    semel__http_begin(x, replay->code, (int64_t)replay->body.n);
    end_client(g);
}

static struct replay replay_of_row(const struct guard *g)
{
    const struct semel_idempotency *row = &g->job.row;
    bool whole = semel__str_given(row->body) && !semel__str_eqz(g->job.claim.why, "no_body");
    return (struct replay){.code = row->code >= 200 && row->code <= 599 ? (int)row->code : 200,
                           .headers = row->headers,
                           .body = whole ? row->body : SEMEL_STR(""),
                           .origin = row->origin,
                           .bodiless = !whole};
}

static void checked(void *ctx, int status, struct semel_str body)
{
    struct guard *g = ctx;
    (void)body;
    struct replay replay = replay_of_row(g);
    if (status >= 200 && status <= 299) {
        send_replay(g, &replay);
    } else if (g->x != NULL && (status == 401 || status == 403)) {
        add(&g->guards->counts->guarded_refused[SEMEL_GATEWAY_REFUSED_FORBIDDEN]);
        answer_problem(g, &(const struct semel_refusal){.why = SEMEL_GATEWAY_REFUSED_FORBIDDEN,
                                                        .status = status,
                                                        .detail = "the caller may not see this answer any more"});
    } else {
        refuse(g, SEMEL_GATEWAY_REFUSED_UNCHECKED, 1, "it is not known whether the caller may see this answer");
    }
    finish_sent(g);
}

/* A stored answer: first the caller is checked again, if a rule wants that (P46). */
static void replay_row(struct guard *g)
{
    struct semel_buf lines;
    const char *why = NULL;
    struct replay replay = replay_of_row(g);
    if (!hold(g, replay.body.n)) {
        refuse(g, SEMEL_GATEWAY_REFUSED_OVERLOADED, 1, too_many_answers);
        finish(g);
        return;
    }
    if (g->guards->check == NULL || g->x == NULL) {
        if (g->leads)
            settle_waiters(g, g->guards->check == NULL ? &replay : NULL);
        send_replay(g, &replay);
        finish_sent(g);
        return;
    }
    semel__buf_init(&lines, HEAD_BYTES);
    for (size_t i = 0; i < g->n_headers; i++)
        if (semel__rules_credential(&g->guards->rules, g->headers[i].name))
            semel__head_put(&lines, g->headers[i].name, g->headers[i].value);
    semel__head_put(&lines, SEMEL_STR("Semel-Target"), g->target);
    g->state = GUARD_CHECKING;
    if (lines.failed || !semel__ask(g->guards->check, g->key, g->scope, semel__buf_str(&lines), checked, g, &why))
        checked(g, 0, SEMEL_STR(""));
    semel__buf_done(&lines);
}

/* ==== waiting ==================================================================================== */

static void replay_copy(struct guard *g, const struct replay *replay)
{
    struct replay copy = *replay;
    if (copy_body(g, &copy.body))
        send_replay(g, &copy);
    else
        refuse(g, SEMEL_GATEWAY_REFUSED_OVERLOADED, 1, too_many_answers);
    finish_sent(g);
}

/* The leader has left the table, or is about to: those behind it get this answer; NULL: one of them takes its place. */
static void settle_waiters(struct guard *g, const struct replay *replay)
{
    struct guard *at = g->waiters, *first = NULL;
    g->waiters = NULL;
    g->n_waiters = 0;
    if (g->leads)
        leave_table(g);
    while (at != NULL) {
        struct guard *next = at->behind;
        at->leader = NULL;
        at->behind = NULL;
        untime(at);
        if (replay != NULL) {
            replay_copy(at, replay);
        } else if (first == NULL) {
            first = at;
        } else {
            at->leader = first;
            at->behind = first->waiters;
            first->waiters = at;
            first->n_waiters++;
            set_due(at, at->deadline_us);
        }
        at = next;
    }
    if (first != NULL) {
        lead(first);
        enter(first);
    }
}

/* Now that the leader holds the key, its fingerprint is the key's: 422 before 409. */
static void refuse_others(struct guard *g)
{
    struct guard *at = g->waiters;
    while (at != NULL) {
        struct guard *next = at->behind;
        if (semel__fp_differs(&at->fp, &g->fp)) {
            refuse(at, SEMEL_GATEWAY_REFUSED_MISMATCH, 0, "the key was used with another request");
            finish(at);
        }
        at = next;
    }
}

static void refuse_running(struct guard *g)
{
    refuse(g, SEMEL_GATEWAY_REFUSED_RUNNING, 1, "a request with this key is running");
    finish(g);
}

static void count_waiting(struct guard *g)
{
    if (!g->waited)
        add(&g->guards->counts->waited);
    g->waited = true;
}

/* A leader that waits for another process is one of those who may wait. */
static void wait_behind(struct guard *g, struct guard *leader)
{
    size_t waiting = leader->n_waiters + (leader->busy ? 1 : 0);
    if (g->rule->set.wait_ms == 0 || waiting >= g->rule->set.waiters) {
        if (leader->holds || leader->busy || g->busy)
            refuse_running(g);
        else
            claim(g); /* the leader does not know yet whether the key is running: the store does */
        return;
    }
    count_waiting(g);
    g->state = GUARD_WAITING;
    g->leader = leader;
    g->behind = leader->waiters;
    leader->waiters = g;
    leader->n_waiters++;
    set_due(g, g->deadline_us);
}

/* ==== the call =================================================================================== */

static void end_key(struct guard *g);
static void answer_client(struct guard *g);

static void feed(struct guard *g)
{
    while (g->given < g->body.n) {
        size_t n = g->body.n - g->given < SLICE ? g->body.n - g->given : SLICE;
        bool more = semel__upstream_send(g->call, (struct semel_str){g->body.p + g->given, n});
        g->given += n;
        if (!more && g->given < g->body.n)
            return;
    }
    semel__upstream_finish(g->call);
}

static void on_upstream_drained(void *ctx)
{
    struct guard *g = ctx;
    if (g->given < g->body.n)
        feed(g);
}

static bool copy_pairs(struct semel_arena *arena, const struct semel_http_pair *from, size_t n,
                       struct semel_http_pair **ret)
{
    *ret = semel__arena_alloc(arena, n + 1, sizeof **ret);
    for (size_t i = 0; *ret != NULL && i < n; i++)
        if (!semel__arena_copy(arena, from[i].name, &(*ret)[i].name) ||
            !semel__arena_copy(arena, from[i].value, &(*ret)[i].value))
            return false;
    return *ret != NULL;
}

/* Decides how the key ends, as far as the answer is known. */
static void judge(struct guard *g, bool sent, bool whole)
{
    const struct semel_key_answer answer = {.sent = sent, .whole = whole, .code = g->status, .said = g->said};
    g->end = semel__key_outcome(&answer, g->rule->set.outcomes, g->rule->set.n_outcomes);
    if (g->end == SEMEL_KEY_END_UNKNOWN)
        g->cause = !whole                      ? (enum semel_gateway_unknown)g->fate.cause
                   : semel__str_given(g->said) ? SEMEL_GATEWAY_UNKNOWN_SAID
                                               : SEMEL_GATEWAY_UNKNOWN_STATUS;
}

/* The rest of the answer waits until its end is stored without its body. */
static void stream_later(struct guard *g)
{
    g->streams = true;
    semel__upstream_pull(g->call, false);
    judge(g, true, true);
    end_key(g);
}

static bool is_event_stream(const struct guard *g)
{
    return semel__begins_with(semel__head_find(g->answer, g->n_answer, "content-type", NULL), "text/event-stream");
}

static void on_answer_head(void *ctx, const struct semel_upstream_answer *answer)
{
    struct guard *g = ctx;
    g->status = answer->status;
    g->length = answer->length;
    g->bodiless = answer->no_body;
    g->broken = !copy_pairs(&g->arena, answer->headers, answer->n_headers, &g->answer);
    g->n_answer = g->broken ? 0 : answer->n_headers;
    g->said = semel__head_find(g->answer, g->n_answer, "semel-outcome", NULL);
    if (g->keyless) {
        answer_client(g);
        return;
    }
    semel__heads_write(g->answer, g->n_answer, &g->kept);
    bool large = answer->length > 0 && (uint64_t)answer->length > g->rule->set.answer_max;
    if (!g->bodiless && (large || !g->rule->set.store_body || is_event_stream(g)))
        stream_later(g);
}

/* To the client, or nowhere if it has left. */
static void pass_piece(struct guard *g, struct semel_str piece)
{
    if (g->x != NULL && !semel__http_send(g->x, piece) && g->call != NULL)
        semel__upstream_pull(g->call, false);
}

static void on_answer_body(void *ctx, struct semel_str piece)
{
    struct guard *g = ctx;
    if (g->begun || (g->x == NULL && (g->streams || g->keyless))) {
        pass_piece(g, piece);
        return;
    }
    bool fits = hold(g, piece.n) && g->spool.n + piece.n <= g->rule->set.answer_max;
    if (!semel__buf_add(&g->spool, piece.p, piece.n))
        g->broken = true; /* no memory: the client gets no half of it */
    if (!fits && !g->streams)
        stream_later(g);
}

static void on_call_done(void *ctx, const struct semel_upstream_end *end)
{
    struct guard *g = ctx;
    struct semel_gateway_counts *counts = g->guards->counts;
    bool answered = end->fate == SEMEL_UPSTREAM_ANSWERED;
    g->call = NULL;
    g->fate = *end;
    g->fate.detail = NULL;
    add(answered ? &counts->answered : &counts->failed);
    if (!answered)
        add(&counts->causes[end->cause]);
    if (g->begun)
        end_client(g);
    if (g->keyless || g->state == GUARD_STREAMING) {
        answer_client(g);
        finish_sent(g);
    } else if (!g->streams) { /* otherwise the keeper has its end already */
        judge(g, end->fate != SEMEL_UPSTREAM_NOTHING_SENT, answered && !g->broken);
        end_key(g);
    }
}

static const struct semel_upstream_events upstream_events = {on_answer_head, on_answer_body, on_upstream_drained,
                                                             on_call_done};

static void call(struct guard *g)
{
    struct semel_buf lines;
    semel__buf_init(&lines, HEAD_BYTES);
    semel__buf_add(&lines, g->lines.p, g->lines.n);
    if (!g->keyless) {
        if (g->rule->set.key_pointer != NULL)
            semel__head_put(&lines, SEMEL_STR("Idempotency-Key"), g->key);
        semel__buf_addf(&lines, "Accept-Encoding: identity\r\nSemel-Token: %lld\r\n", (long long)g->token);
    }
    const struct semel_upstream_request request = {.method = g->method,
                                                   .target = g->target,
                                                   .lines = semel__buf_str(&lines),
                                                   .length = (int64_t)g->body.n,
                                                   .fresh = true,
                                                   .until_us = g->keyless ? 0 : g->job.leased_until_us};
    g->state = GUARD_CALLING;
    g->fate = (struct semel_upstream_end){.fate = SEMEL_UPSTREAM_NOTHING_SENT, .cause = SEMEL_UPSTREAM_MEMORY};
    bool started = !lines.failed && semel__upstream_start(g->guards->upstream, &request, &upstream_events, g, &g->call,
                                                          NULL) == SEMEL_OK;
    semel__buf_done(&lines);
    if (started) {
        SEMEL_POINT(GUARD_CALLED);
        if (g->body.n > 0)
            feed(g);
        return;
    }
    g->call = NULL;
    if (g->keyless) {
        answer_client(g);
        finish(g);
    } else {
        judge(g, false, false);
        end_key(g);
    }
}

/* ==== the client's answer ======================================================================== */

static void refuse_failed(struct guard *g)
{
    static const bool late[SEMEL_UPSTREAM_CAUSES] = {
        [SEMEL_UPSTREAM_CONNECT_TIMEOUT] = true, [SEMEL_UPSTREAM_SEND_TIMEOUT] = true, [SEMEL_UPSTREAM_TIMEOUT] = true};
    struct semel_http_exchange *x = g->x;
    char detail[256];
    int status = late[g->fate.cause] ? 504 : 502;
    bool stopped = g->fate.fate == SEMEL_UPSTREAM_NOTHING_SENT && g->fate.cause == SEMEL_UPSTREAM_STOPPED;
    if (stopped && !g->guards->gave_up) {
        refuse(g, SEMEL_GATEWAY_REFUSED_NOT_STORED, 1, too_late);
        return;
    }
    snprintf(detail, sizeof detail, "no answer from the server behind the gateway: %s (%s)",
             semel__upstream_cause_text(g->fate.cause), semel__upstream_cause_name(g->fate.cause));
    if (!g->keyless && g->end == SEMEL_KEY_END_UNKNOWN) {
        answer_problem(g, &(const struct semel_refusal){.why = SEMEL_GATEWAY_REFUSED_UNKNOWN,
                                                        .status = status,
                                                        .detail = detail});
        return;
    }
    g->x = NULL;
    semel__refusal_put_cors(&g->guards->rules, x, g->origin);
    semel__http_refuse(x, status, "%s", detail);
}

/* The upstream's own answer, or why there is none. */
static void answer_client(struct guard *g)
{
    struct semel_http_exchange *x = g->x;
    bool whole = g->call == NULL;
    if (x == NULL || g->begun)
        return;
    if (g->status == 0 || g->broken ||
        (whole && !g->streams && !g->keyless && g->fate.fate != SEMEL_UPSTREAM_ANSWERED)) {
        refuse_failed(g);
        return;
    }
    for (size_t i = 0; i < g->n_answer; i++)
        if (semel__head_answers(g->answer, g->n_answer, g->answer[i].name))
            semel__http_set_pair(x, &g->answer[i]);
    warn(g, x);
    bool spooled = whole && !g->streams && !g->bodiless;
    semel__http_begin(x, g->status, spooled ? (int64_t)g->spool.n : g->length);
    g->begun = true;
    g->rest = semel__buf_str(&g->spool);
    if (whole)
        end_client(g);
    else
        (void)send_rest(g);
}

/* The upstream goes on when the client has got what came before, or is gone. */
static void resume(struct guard *g)
{
    if (g->call != NULL && (g->x == NULL || !g->begun || g->rest.n == 0))
        semel__upstream_pull(g->call, true);
}

/* The end of its key is stored, or the answer may be sent without that. */
static void pass_answer(struct guard *g)
{
    answer_client(g);
    if (g->call != NULL) { /* it streams */
        g->state = GUARD_STREAMING;
        resume(g);
        return;
    }
    finish_sent(g);
}

/* ==== the key's end ============================================================================== */

static void submit_end(struct guard *g)
{
    bool completed = g->end == SEMEL_KEY_END_COMPLETED;
    bool body = completed && !g->streams && g->rule->set.store_body;
    g->job.is_end = true;
    g->job.ending = (struct semel_key_ending){
        .token = g->token,
        .end = g->end,
        .cause = g->end == SEMEL_KEY_END_UNKNOWN ? semel__str(semel__gateway_unknown_name(g->cause))
                                                 : (struct semel_str){NULL, 0},
        .code = completed ? g->status : SEMEL_NONE,
        .headers = completed ? semel__buf_str(&g->kept) : (struct semel_str){NULL, 0},
        .body = body ? semel__buf_str(&g->spool) : (struct semel_str){NULL, 0},
        .impatient = g->unstored || (g->guards->finishes && !completed), /* its row may be locked for long */
    };
    g->state = GUARD_ENDING;
    submit(g);
}

static void end_key(struct guard *g)
{
    SEMEL_POINT(GUARD_ANSWERED);
    if (g->guards->finishes && g->end == SEMEL_KEY_END_UNKNOWN)
        g->end = SEMEL_KEY_END_RELEASED; /* whoever comes late cannot commit (A9) */
    if (g->end == SEMEL_KEY_END_COMPLETED && (g->kept.failed || g->spool.failed)) {
        g->kept.n = 0; /* no memory for its headers, or too many: without them */
        g->kept.failed = false;
        semel__buf_addz(&g->kept, "[]");
    }
    g->give_up_us = semel__boot_us() + semel__keeper_lease_us(g->guards->desk.keeper);
    submit_end(g);
}

/* Keeps the answer until the lease ends; then the key is unknown, which is tried as long as we live. */
static void end_again(struct guard *g)
{
    if (!g->unstored) {
        g->unstored = true;
        atomic_fetch_add_explicit(&g->guards->counts->unstored, 1, memory_order_relaxed);
        g->pause_us = RETRY_US;
        if (g->end == SEMEL_KEY_END_COMPLETED)
            refuse(g, SEMEL_GATEWAY_REFUSED_NOT_STORED, 2,
                   "the request was answered, and its answer could not be stored yet; send it again with the same key");
        else
            answer_client(g);
        resume(g); /* to the client, or to nobody */
    }
    if (g->end == SEMEL_KEY_END_COMPLETED && semel__boot_us() >= g->give_up_us) {
        g->end = SEMEL_KEY_END_UNKNOWN;
        g->cause = SEMEL_GATEWAY_UNKNOWN_NOT_STORED;
        semel__buf_done(&g->spool);
    }
    g->state = GUARD_RETRYING;
    set_due(g, semel__steady_us() + g->pause_us);
    g->pause_us = 2 * g->pause_us < RETRY_MAX_US ? 2 * g->pause_us : RETRY_MAX_US;
}

static void count_end(struct guard *g)
{
    struct semel_gateway_counts *counts = g->guards->counts;
    switch (g->end) {
    case SEMEL_KEY_END_COMPLETED:
        add(&counts->completed);
        break;
    case SEMEL_KEY_END_RELEASED:
        add(&counts->released);
        break;
    case SEMEL_KEY_END_UNKNOWN:
        add(&counts->unknown[g->cause]);
        break;
    }
}

/* Requests that wait behind this one get the stored answer, unless each caller must be checked. */
static void settle_stored(struct guard *g, bool stored)
{
    bool bodiless = g->streams || !g->rule->set.store_body;
    const struct replay replay = {.code = g->status,
                                  .headers = semel__buf_str(&g->kept),
                                  .body = bodiless ? SEMEL_STR("") : semel__buf_str(&g->spool),
                                  .origin = g->origin,
                                  .bodiless = bodiless};
    settle_waiters(g, stored && g->guards->check == NULL ? &replay : NULL);
}

static void on_ended(struct guard *g)
{
    bool applied = g->job.ending.applied;
    if (g->job.failed) {
        end_again(g);
        return;
    }
    SEMEL_POINT(GUARD_STORED);
    if (g->unstored)
        atomic_fetch_sub_explicit(&g->guards->counts->unstored, 1, memory_order_relaxed);
    g->unstored = false;
    g->holds = false;
    bool finished = !applied && g->job.row.status == SEMEL_ROW_COMPLETED && g->job.row.token == g->token;
    bool lost = g->end != SEMEL_KEY_END_COMPLETED && g->call == NULL && !g->begun;
    if (applied)
        count_end(g);
    if (finished && lost) { /* the upstream has finished it, and its answer was lost (A9) */
        g->job.claim.why = SEMEL_STR("completed");
        replay_row(g);
        return;
    }
    if (!applied && !finished && g->end == SEMEL_KEY_END_COMPLETED)
        refuse(g, SEMEL_GATEWAY_REFUSED_NOT_STORED, 1, "another request has taken the key over");
    if (g->leads)
        settle_stored(g, applied && g->end == SEMEL_KEY_END_COMPLETED);
    pass_answer(g);
}

/* ==== the claim ================================================================================== */

static void claim(struct guard *g)
{
    const struct semel_gateway_rule *set = &g->rule->set;
    struct semel_str rule = semel__str(set->match);
    if (rule.n > SEMEL_GUARD_RULE_MAX)
        rule.n = SEMEL_GUARD_RULE_MAX;
    g->job.is_end = false;
    g->job.claim = (struct semel_key_claim){
        .want = {.scope = g->scope,
                 .key = g->key,
                 .fp = g->fp,
                 .answer_us = set->answer_ms * 1000,
                 .keep_us = set->keep_ms * 1000,
                 .origin = g->origin,
                 .rule = rule,
                 .traceparent = g->traceparent},
        .effect = g->guards->finishes                         ? SEMEL_EFFECT_ATOMIC
                  : set->on_unknown == SEMEL_ON_UNKNOWN_RETRY ? SEMEL_EFFECT_KEYED
                                                              : SEMEL_EFFECT_OUTSIDE,
    };
    g->state = GUARD_CLAIMING;
    submit(g);
}

/* Gives the key back: nothing was sent. */
static void release(struct guard *g, int64_t token)
{
    g->token = token;
    g->fate = (struct semel_upstream_end){.fate = SEMEL_UPSTREAM_NOTHING_SENT, .cause = SEMEL_UPSTREAM_STOPPED};
    g->end = SEMEL_KEY_END_RELEASED;
    submit_end(g);
}

static void run(struct guard *g)
{
    g->token = g->job.claim.token;
    g->holds = true;
    SEMEL_POINT(GUARD_CLAIMED);
    refuse_others(g);
    if (semel__boot_us() < g->job.leased_until_us && !g->guards->gave_up) {
        call(g);
        return;
    }
    refuse(g, SEMEL_GATEWAY_REFUSED_NOT_STORED, 1, too_late);
    release(g, g->token);
}

static void poll_again(struct guard *g)
{
    int64_t now_us = semel__steady_us();
    if (now_us >= g->deadline_us) {
        refuse_running(g);
        return;
    }
    count_waiting(g);
    g->pause_us = g->pause_us == 0 ? POLL_US : 2 * g->pause_us < POLL_MAX_US ? 2 * g->pause_us : POLL_MAX_US;
    g->state = GUARD_POLLING;
    set_due(g, now_us + g->pause_us < g->deadline_us ? now_us + g->pause_us : g->deadline_us);
}

/* The key runs elsewhere. One request of this loop asks the store again, the leader, and the others wait behind it: so
 * as many wait as for a key that runs here. */
static void on_busy(struct guard *g)
{
    struct guard *leader = g->leads ? g : find_leader(g);
    if (g->x == NULL || g->rule->set.waiters == 0) {
        refuse_running(g);
        return;
    }
    if (leader == NULL) {
        lead(g);
    } else if (leader != g && !semel__fp_differs(&g->fp, &leader->fp)) {
        wait_behind(g, leader);
        return;
    }
    while (g->n_waiters >= g->rule->set.waiters)
        refuse_running(g->waiters); /* who came last, before this was known */
    poll_again(g);                  /* a leader with another fingerprint is about to be refused */
}

/* ---- unknown ---- */

static void refuse_unknown(struct guard *g, int64_t retry_s, const char *more)
{
    refuse(g, SEMEL_GATEWAY_REFUSED_UNKNOWN, retry_s,
           "an earlier request with this key was sent on, and its outcome is not known (%.*s)%s",
           (int)g->job.claim.why.n, g->job.claim.why.p, more);
    finish(g);
}

/* Writes what is known now, under the token of the earlier request; then claims again. */
static void resolve(struct guard *g, enum semel_key_end end, int64_t code)
{
    bool completed = end == SEMEL_KEY_END_COMPLETED;
    g->job.ending = (struct semel_key_ending){
        .token = g->job.row.token,
        .end = end,
        .code = completed ? code : SEMEL_NONE,
        .headers = completed ? g->spool.n > 0 ? SEMEL_STR("[[\"content-type\",\"application/json\"]]") : SEMEL_STR("[]")
                             : (struct semel_str){NULL, 0},
        .body = completed && g->spool.n > 0 ? semel__buf_str(&g->spool) : (struct semel_str){NULL, 0},
    };
    g->job.is_end = true;
    g->state = GUARD_RESOLVING;
    submit(g);
}

static void reconciled(void *ctx, int status, struct semel_str body)
{
    struct guard *g = ctx;
    struct semel_idempotency row = g->job.row;
    int64_t code, since_us;
    if (g->guards->gave_up) {
        refuse_unknown(g, 1, "");
        return;
    }
    if (row.status == SEMEL_ROW_PROCESSING && row.lease_until_us > row.updated_us)
        row.updated_us = row.lease_until_us; /* its call may have begun as late as that */
    since_us = g->job.now_us - row.updated_us;
    switch (semel__ask_state(status, body, &code, &g->spool)) {
    case SEMEL_ASK_DONE:
        resolve(g, SEMEL_KEY_END_COMPLETED, code);
        return;
    case SEMEL_ASK_NOT_DONE:
        if (semel__key_may_run(&row, SEMEL_ON_UNKNOWN_RECONCILE, SEMEL_RECONCILED_NOT_DONE, g->rule->settle_us,
                               g->job.now_us))
            resolve(g, SEMEL_KEY_END_RELEASED, 0);
        else
            refuse_unknown(g, (g->rule->settle_us - since_us) / 1000000 + 1, "; it may still be running");
        return;
    case SEMEL_ASK_UNKNOWN:
        refuse_unknown(g, 1, "");
        return;
    }
}

static void on_unknown(struct guard *g)
{
    const char *why = NULL;
    if (g->x == NULL || g->rounds++ >= ROUNDS_MAX) {
        refuse_unknown(g, 0, "");
        return;
    }
    switch (g->rule->set.on_unknown) {
    case SEMEL_ON_UNKNOWN_REFUSE:
        refuse_unknown(g, 0, "");
        return;
    case SEMEL_ON_UNKNOWN_RETRY: /* claimed when another rule was in force */
        resolve(g, SEMEL_KEY_END_RELEASED, 0);
        return;
    case SEMEL_ON_UNKNOWN_RECONCILE:
        g->state = GUARD_ASKING;
        if (!semel__ask(g->rule->reconcile, g->key, g->scope, SEMEL_STR(""), reconciled, g, &why))
            refuse_unknown(g, 0, "; it cannot be asked about");
        return;
    }
}

/* ---- what the keeper has decided ---- */

static void on_claim_failed(struct guard *g)
{
    if (g->job.in_doubt) {
        refuse_store(g);
        release(g, g->job.claim.token);
    } else if (g->rule->set.pass_when_down && !g->job.claim.seen && !g->guards->gave_up) {
        add(&g->guards->counts->passed);
        g->keyless = true;
        call(g);
    } else {
        refuse_store(g);
        finish(g);
    }
}

static void on_claimed(struct guard *g)
{
    if (g->job.failed) {
        on_claim_failed(g);
        return;
    }
    g->busy = g->job.claim.act == SEMEL_KEY_BUSY;
    switch (g->job.claim.act) {
    case SEMEL_KEY_RUN:
        run(g);
        return;
    case SEMEL_KEY_REPLAY:
        replay_row(g);
        return;
    case SEMEL_KEY_MISMATCH:
        refuse(g, SEMEL_GATEWAY_REFUSED_MISMATCH, 0, "the key was used with another request");
        finish(g);
        return;
    case SEMEL_KEY_BUSY:
        on_busy(g);
        return;
    case SEMEL_KEY_UNKNOWN:
        on_unknown(g);
        return;
    case SEMEL_KEY_UNSET:
        break;
    }
    refuse_store(g);
    finish(g);
}

static void on_resolved(struct guard *g)
{
    g->spool.n = 0;
    if (g->job.failed) {
        refuse_store(g);
        finish(g);
    } else {
        claim(g);
    }
}

/* ==== the request ================================================================================ */

static void enter(struct guard *g)
{
    struct guard *leader = g->leads ? NULL : find_leader(g);
    if (leader == NULL) {
        if (!g->leads)
            lead(g);
        claim(g);
    } else if (!semel__fp_differs(&g->fp, &leader->fp)) {
        wait_behind(g, leader);
    } else if (leader->holds) {
        refuse(g, SEMEL_GATEWAY_REFUSED_MISMATCH, 0, "the key was used with another request");
        finish(g);
    } else {
        claim(g); /* beside the leader, which may have the wrong one */
    }
}

/* In any thread. */
static void digest(void *arg)
{
    struct guard *g = arg;
    const char *query = memchr(g->target.p, '?', g->target.n);
    size_t path = query != NULL ? (size_t)(query - g->target.p) : g->target.n;
    static const char *const names[] = {
#define X(name) [SEMEL_HTTP_##name] = #name,
        SEMEL_HTTP_METHOD_MAP(X)
#undef X
    };
    const struct semel_request request = {
        .method = semel__str(names[g->method]),
        .path = {g->target.p, path},
        .query = query != NULL ? (struct semel_str){query + 1, g->target.n - path - 1} : SEMEL_STR(""),
        .headers = (const struct semel_pair *)(const void *)g->headers,
        .n_headers = g->n_headers,
        .body = semel__buf_str(&g->body),
    };
    static_assert(sizeof(struct semel_pair) == sizeof(struct semel_http_pair), "the same two strings");
    if (g->rule->set.key_pointer != NULL)
        g->found = semel__rule_key_in(&g->guards->rules, g->rule, &request, &g->arena, &g->key, &g->err);
    if (g->found == SEMEL_KEY_FOUND &&
        semel__request_fingerprint(&request, &g->rule->counts, &g->fp, &g->err) != SEMEL_OK)
        g->found = SEMEL_KEY_MEMORY;
}

static void refuse_key(struct guard *g)
{
    const struct semel_gateway_rule *set = &g->rule->set;
    if (g->found == SEMEL_KEY_MISSING)
        refuse(g, SEMEL_GATEWAY_REFUSED_MISSING, 0, "this request needs a key: %s %s",
               set->key_pointer != NULL ? "in its JSON body, at" : "a header",
               set->key_pointer != NULL ? set->key_pointer : set->key_header);
    else if (g->found == SEMEL_KEY_MALFORMED)
        refuse(g, SEMEL_GATEWAY_REFUSED_MALFORMED, 0, "%s", g->err.text);
    else
        refuse(g, SEMEL_GATEWAY_REFUSED_OVERLOADED, 1, "there is no memory for the request");
    finish(g);
}

static void digested(void *arg)
{
    struct guard *g = arg;
    int64_t wait_us = g->rule->set.wait_ms * 1000;
    if (g->guards->gave_up) {
        refuse_store(g);
        finish(g);
    } else if (g->found == SEMEL_KEY_FOUND) {
        g->deadline_us = semel__steady_us() + wait_us;
        (void)semel__key_check(g->scope, g->key, 1, &g->is_time, NULL);
        if (g->is_time)
            add(&g->guards->counts->times);
        enter(g);
    } else if (g->found == SEMEL_KEY_MISSING && g->rule->set.key == SEMEL_GATEWAY_KEY_OPTIONAL) {
        g->keyless = true;
        call(g);
    } else {
        refuse_key(g);
    }
}

static void body_is_whole(struct guard *g)
{
    g->state = GUARD_DIGESTING;
    if (g->body.n > ASIDE_ABOVE && semel__side_run(g->guards->side, digest, digested, g)) {
        add(&g->guards->counts->aside);
        return;
    }
    digest(g);
    digested(g);
}

static void on_body(struct semel_http_exchange *x, struct semel_str piece)
{
    struct guard *g = semel__http_kept(x);
    if (g->body.n + piece.n > g->rule->set.body_max)
        refuse(g, SEMEL_GATEWAY_REFUSED_TOO_LARGE, 0, "the body is larger than %zu bytes", g->rule->set.body_max);
    else if (!hold(g, piece.n))
        refuse(g, SEMEL_GATEWAY_REFUSED_OVERLOADED, 1, "too many bytes of requests like this one are in memory");
    else if (!semel__buf_add(&g->body, piece.p, piece.n))
        refuse(g, SEMEL_GATEWAY_REFUSED_OVERLOADED, 1, "there is no memory for the request");
    if (g->x == NULL)
        finish(g);
}

static void on_whole(struct semel_http_exchange *x)
{
    body_is_whole(semel__http_kept(x));
}

static void on_client_drained(struct semel_http_exchange *x)
{
    struct guard *g = semel__http_kept(x);
    if (!g->begun)
        return;
    if (g->call != NULL)
        (void)send_rest(g);
    else
        end_client(g);
    resume(g);
    if (g->x == NULL && g->state == GUARD_SENDING)
        finish(g);
}

/* It may still read. */
static void on_hung_up(struct semel_http_exchange *x)
{
    (void)x;
}

/* P99: what was claimed goes on. */
static void on_gone(struct semel_http_exchange *x)
{
    struct guard *g = semel__http_kept(x);
    g->x = NULL;
    add(&g->guards->counts->left);
    if (g->state == GUARD_BODY || g->state == GUARD_WAITING || g->state == GUARD_POLLING || g->state == GUARD_SENDING)
        finish(g);
    else if (g->begun)
        resume(g); /* reads the rest, which nobody gets */
}

static const struct semel_http_stream client_events = {on_body, on_whole, on_client_drained, on_hung_up, on_gone};

/* The exchange may outlive its client, so everything is copied. */
static bool copy_request(struct guard *g, const struct semel_http_request *req, struct semel_str lines)
{
    g->method = req->method;
    g->n_headers = req->n_headers;
    return copy_pairs(&g->arena, req->headers, req->n_headers, &g->headers) &&
           semel__arena_copy(&g->arena, req->target, &g->target) && semel__arena_copy(&g->arena, lines, &g->lines) &&
           semel__arena_copy(&g->arena, semel__http_header(req, "origin"), &g->origin) &&
           semel__arena_copy(&g->arena, semel__http_header(req, "traceparent"), &g->traceparent);
}

/* Is the head against the rules? Then it was answered. */
static bool refuse_head(struct guard *g, const struct semel_http_request *req)
{
    struct semel_guards *guards = g->guards;
    if (req->length > 0 && (uint64_t)req->length > g->rule->set.body_max) {
        refuse(g, SEMEL_GATEWAY_REFUSED_TOO_LARGE, 0, "the body is larger than %zu bytes", g->rule->set.body_max);
        return true;
    }
    g->found = SEMEL_KEY_FOUND;
    if (g->rule->set.key_pointer == NULL)
        g->found = semel__rule_key(&guards->rules, g->rule, g->headers, g->n_headers, &g->arena, &g->key, &g->err);
    if (g->found != SEMEL_KEY_FOUND)
        return true;
    if (semel__rule_scope(&guards->rules, g->rule, req, &g->arena, &g->scope, &g->err))
        return false;
    if (g->err.text[0] == '\0')
        refuse(g, SEMEL_GATEWAY_REFUSED_ANONYMOUS, 0, "a key belongs to a caller, and this request has none");
    else if (g->err.status == SEMEL_INVALID)
        refuse(g, SEMEL_GATEWAY_REFUSED_ANONYMOUS, 0, "%s", g->err.text);
    else
        refuse(g, SEMEL_GATEWAY_REFUSED_OVERLOADED, 1, "there is no memory for the request");
    return true;
}

void semel__guard_refuse(struct semel_guards *guards, struct semel_http_exchange *x, const char *detail)
{
    const struct semel_refusal refusal = {.why = SEMEL_GATEWAY_REFUSED_OVERLOADED, .retry_s = 1, .detail = detail};
    add(&guards->counts->guarded_refused[refusal.why]);
    semel__refusal_answer(&guards->rules, x, semel__http_header(semel__http_request(x), "origin"), &refusal);
}

void semel__guard_start(struct semel_guards *guards, struct semel_guard_rule *rule, struct semel_http_exchange *x,
                        struct semel_str lines)
{
    const struct semel_http_request *req = semel__http_request(x);
    struct guard *g = guards->n < guards->max ? semel__alloc(sizeof *g) : NULL;
    if (g == NULL) {
        semel__guard_refuse(guards, x, "too many guarded requests are running");
        return;
    }
    *g = (struct guard){.party = {&client_events}, .guards = guards, .rule = rule, .x = x, .next = guards->all};
    if (guards->all != NULL)
        guards->all->prev = g;
    guards->all = g;
    guards->n++;
    atomic_fetch_add_explicit(&guards->counts->running, 1, memory_order_relaxed);
    semel__arena_init(&g->arena, HEAD_BYTES);
    semel__arena_init(&g->job.arena, (size_t)SEMEL_ANSWER_BODY_MAX + 16 * SEMEL_ANSWER_HEADERS_MAX);
    semel__buf_init(&g->body, rule->set.body_max);
    semel__buf_init(&g->spool, SIZE_MAX);
    semel__buf_init(&g->kept, SEMEL_ANSWER_HEADERS_MAX);
    g->job.owner = g;
    g->found = SEMEL_KEY_MEMORY;
    bool copied = copy_request(g, req, lines);
    semel__http_keep(x, g);
    if (!copied || refuse_head(g, req)) {
        if (g->x != NULL)
            refuse_key(g);
        else
            finish(g);
        return;
    }
    if (req->length != 0)
        semel__http_pull(x, true);
    else
        body_is_whole(g);
}

/* ==== the loop =================================================================================== */

static void on_woken(void *ctx)
{
    struct semel_guards *guards = ctx;
    struct semel_keeper_job *job = semel__keeper_collect(&guards->desk);
    while (job != NULL) {
        struct semel_keeper_job *next = job->next;
        struct guard *g = job->owner;
        if (g->state == GUARD_CLAIMING)
            on_claimed(g);
        else if (g->state == GUARD_RESOLVING)
            on_resolved(g);
        else
            on_ended(g);
        job = next;
    }
}

static void on_due(struct guard *g)
{
    untime(g);
    if (g->state == GUARD_WAITING)
        refuse_running(g);
    else if (g->state == GUARD_POLLING)
        claim(g);
    else
        submit_end(g);
}

static void on_timer(void *ctx)
{
    struct semel_guards *guards = ctx;
    int64_t now_us = semel__steady_us();
    guards->next_due = guards->timed;
    while (guards->next_due != NULL) { /* others leave the list meanwhile, and come to its head */
        struct guard *g = guards->next_due;
        guards->next_due = g->next_timed;
        add(&guards->counts->looked_at);
        if (now_us >= g->due_us)
            on_due(g);
    }
    tick(guards);
}

static bool is_busy(void *ctx)
{
    const struct semel_guards *guards = ctx;
    return guards->n > 0 && !guards->gave_up;
}

/* The keeper still has jobs, and goes on for a while; the calls end by themselves. */
static void on_give_up(void *ctx)
{
    struct semel_guards *guards = ctx;
    if (guards->gave_up)
        return;
    guards->gave_up = true;
    for (struct guard *g = guards->all; g != NULL; g = g->next) {
        bool retries = g->state == GUARD_RETRYING;
        untime(g);
        if (retries)
            submit_end(g);
    }
    semel__keeper_flush(&guards->desk);
    semel__side_settled(guards->side);
}

static void on_flush(void *ctx)
{
    semel__keeper_flush(&((struct semel_guards *)ctx)->desk);
}

static const struct semel_side_events side_events = {on_woken, on_timer, is_busy, on_give_up, on_flush};

static void wake(void *ctx)
{
    semel__side_wake(((struct semel_guards *)ctx)->side);
}

/* ==== opening ==================================================================================== */

static semel_status open_askers(struct semel_guards *guards, struct semel_http *http,
                                const struct semel_gateway_settings *settings, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (guards->rules.caller.check != NULL)
        status = semel__asker_new(&guards->check, http, "caller: check", guards->rules.caller.check,
                                  &settings->upstream, err);
    for (size_t i = 0; i < guards->rules.n && status == SEMEL_OK; i++)
        if (guards->rules.list[i].set.reconcile != NULL)
            status = semel__asker_new(&guards->rules.list[i].reconcile, http, "guard: reconcile",
                                      guards->rules.list[i].set.reconcile, &settings->upstream, err);
    return status;
}

semel_status semel__guards_new(struct semel_guards **ret, struct semel_http *http, struct semel_upstream *upstream,
                               const struct semel_gateway_settings *settings, struct semel_gateway_counts *counts,
                               struct semel_error *err)
{
    struct semel_guards *guards = semel__calloc(1, sizeof *guards);
    if (guards == NULL)
        return semel__fail_memory(err);
    guards->upstream = upstream;
    guards->counts = counts;
    guards->finishes = settings->finishes;
    guards->max = settings->guarded_max;
    semel__keeper_desk_init(&guards->desk, settings->keeper, wake, guards);
    *ret = guards; /* also after a failure: the loop may know its askers */
    semel_status status = semel__rules_init(&guards->rules, settings, err);
    if (status == SEMEL_OK)
        status = open_askers(guards, http, settings, err);
    if (status == SEMEL_OK)
        status = semel__side_new(&guards->side, http, &side_events, guards, err);
    return status;
}

void semel__guards_free(struct semel_guards *guards)
{
    if (guards == NULL)
        return;
    while (guards->all != NULL) {
        struct guard *g = guards->all;
        guards->all = g->next;
        guard_free(g);
    }
    for (size_t i = 0; i < guards->rules.n; i++)
        semel__asker_free(guards->rules.list[i].reconcile);
    semel__asker_free(guards->check);
    semel__side_free(guards->side);
    semel__rules_done(&guards->rules);
    semel__free(guards);
}

const struct semel_guard_rules *semel__guards_rules(const struct semel_guards *guards)
{
    return &guards->rules;
}

struct semel_guard_rule *semel__guards_rule(const struct semel_guards *guards, const struct semel_http_request *req)
{
    struct semel_guard_rule *rule = semel__rules_match(&guards->rules, req->method, req->target);
    if (rule == NULL || rule->set.key_pointer != NULL || rule->set.key == SEMEL_GATEWAY_KEY_REQUIRED)
        return rule;
    return semel__str_given(semel__http_header(req, rule->set.key_header)) ? rule : NULL;
}
