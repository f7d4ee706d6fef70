/* SPDX-License-Identifier: MIT
 *
 * gateway.c: a gateway as a unit of the daemon: a task per loop, and a task per lane of its keeper (gateway/keeper.h),
 * which keeps its keys in the store.
 *
 * Invariants: it listens before anything starts, so that a port in use ends the start. A stop lets requests that run be
 * answered; only when the last loop has ended are the lanes told to end, so that every answer can be stored. While the
 * store is away the loops serve: what is guarded is refused by its rule.
 */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/error.h"
#include "daemon/internal.h"
#include "gateway/gateway.h"
#include "gateway/keeper.h"

#define LANE_MS 1000
#define LAST_MS 5000 /* of the lanes, when the loops have ended */
#define LOOPS_MAX 64

struct daemon_loop {
    struct daemon_gateway *of;
    struct semel_task task;
    struct semel_http *http;
    struct semel_gateway *gateway;
};

struct daemon_lane {
    struct daemon_gateway *of;
    struct semel_task task;
    size_t n;
};

struct daemon_gateway {
    struct semel_unit unit;
    const struct semel_conf_gateway *conf;
    struct semel_log *log;
    struct semel_gateway_stats *stats;
    struct semel_keeper *keeper;
    _Atomic size_t *held; /* bytes per rule, of all loops */
    struct daemon_loop loops[LOOPS_MAX];
    size_t n_loops;
    struct daemon_lane lanes[SEMEL_KEEPER_LANES_MAX];
    size_t n_lanes;
    _Atomic size_t running; /* loops */
    char owner[160];
};

static struct daemon_gateway *gateway_of(struct semel_unit *unit)
{
    return (struct daemon_gateway *)unit; /* the first member */
}

/* ---- settings ------------------------------------------------------------------------------------ */

static const char *const *texts_of(struct semel_arena *arena, const struct semel_setting_list *list)
{
    const char **texts = semel__arena_alloc(arena, list->n + 1, sizeof *texts);
    for (size_t i = 0; texts != NULL && i < list->n; i++)
        texts[i] = list->at[i].p; /* they end with a NUL */
    return texts;
}

static bool put_rule(const struct semel_conf_guard *guard, struct semel_arena *arena, struct semel_gateway_rule *ret)
{
    semel__gateway_rule_init(ret);
    ret->match = guard->match.p;
    ret->key = (enum semel_gateway_key)guard->key;
    ret->key_header = guard->key_header.p;
    ret->key_pointer = guard->key_pointer.p;
    ret->by_endpoint = guard->key_scope == SEMEL_CONF_SCOPE_ENDPOINT;
    ret->anonymous = guard->anonymous;
    ret->pass_when_down = guard->when_down == SEMEL_CONF_DOWN_PASS;
    ret->store_body = guard->store_body;
    ret->ignore = texts_of(arena, &guard->ignore);
    ret->n_ignore = guard->ignore.n;
    ret->headers = texts_of(arena, &guard->headers);
    ret->n_headers = guard->headers.n;
    ret->outcomes = guard->outcomes;
    ret->n_outcomes = guard->n_outcomes;
    ret->on_unknown = guard->on_unknown;
    ret->reconcile = guard->reconcile.p;
    ret->settle_ms = guard->settle_us / 1000;
    ret->wait_ms = guard->wait_us / 1000;
    ret->waiters = (size_t)guard->waiters;
    ret->body_max = (size_t)guard->body_max;
    ret->answer_max = (size_t)guard->answer_max;
    ret->held_max = (size_t)guard->held_max;
    ret->answer_ms = guard->answer_us / 1000;
    ret->keep_ms = guard->keep_us / 1000;
    return ret->ignore != NULL && ret->headers != NULL;
}

static void put_caller(const struct semel_conf_caller *conf, struct semel_gateway_caller *ret)
{
    if (semel__str_given(conf->header)) {
        ret->kind = SEMEL_GATEWAY_CALLER_HEADER;
        ret->header = conf->header.p;
    } else if (semel__str_given(conf->api_key)) {
        ret->kind = SEMEL_GATEWAY_CALLER_API_KEY;
        ret->header = conf->api_key.p;
    } else if (conf->certificate) {
        ret->kind = SEMEL_GATEWAY_CALLER_CERTIFICATE;
    }
    ret->check = conf->check.p;
}

/* Of all gateways three eighths: the listeners of admin/serve.c have a half, and stores, brokers and handlers need the
 * rest (P88). */
static size_t descriptors_of_loop(const struct semel_conf *conf)
{
    size_t loops = 0;
    for (size_t i = 0; i < conf->n_gateways; i++)
        loops += (size_t)conf->gateways[i].threads;
    return semel__descriptors_max() / 8 * 3 / (loops > 0 ? loops : 1);
}

/* As the gateway wants them; lists are in the arena. false: no memory. */
static bool put_settings(const struct daemon_gateway *g, struct semel_arena *arena, struct semel_gateway_settings *ret)
{
    const struct semel_conf_gateway *conf = g->conf;
    struct semel_gateway_rule *rules = semel__arena_alloc(arena, conf->n_guard + 1, sizeof *rules);
    semel__gateway_settings_init(ret);
    ret->name = conf->name.p;
    ret->listen = conf->server.address.text.p;
    ret->plain = conf->server.plain;
    ret->share_port = conf->threads > 1;
    ret->cert_file = conf->server.tls.cert_file;
    ret->key_file = conf->server.tls.key_file;
    ret->client_ca_file = conf->server.tls.client_ca_file;
    ret->upstream.url = conf->upstream.url.p;
    ret->upstream.ca_file = conf->upstream.ca_file;
    ret->upstream.answer_ms = (uint64_t)conf->upstream.timeout_us / 1000;
    ret->upstream.connect_ms = (uint64_t)conf->upstream.connect_us / 1000;
    ret->upstream_plain = conf->upstream.plain;
    ret->trusted = texts_of(arena, &conf->trusted);
    ret->n_trusted = conf->trusted.n;
    ret->cors = texts_of(arena, &conf->cors);
    ret->n_cors = conf->cors.n;
    ret->keeper = g->keeper;
    ret->held = g->held;
    ret->finishes = conf->upstream.finishes;
    ret->key_min = (size_t)conf->key_min;
    ret->guarded_max = (size_t)conf->guarded_max;
    semel__gateway_settings_bound(ret, descriptors_of_loop(g->unit.daemon->conf));
    put_caller(&conf->caller, &ret->caller);
    ret->caller.trusted_from = texts_of(arena, &conf->caller.trusted_from);
    ret->caller.n_trusted_from = conf->caller.trusted_from.n;
    bool good = rules != NULL && ret->trusted != NULL && ret->cors != NULL && ret->caller.trusted_from != NULL;
    for (size_t i = 0; good && i < conf->n_guard; i++)
        good = put_rule(&conf->guard[i], arena, &rules[i]);
    ret->rules = rules;
    ret->n_rules = conf->n_guard;
    return good;
}

/* ---- tasks --------------------------------------------------------------------------------------- */

static void loop_turns(void *arg)
{
    semel__task_beat(&((struct daemon_loop *)arg)->task);
}

static void run_loop(void *arg)
{
    struct daemon_loop *loop = arg;
    struct daemon_gateway *g = loop->of;
    struct semel_error err = {0};
    (void)semel__task_set_up(&loop->task, true, NULL);
    semel_status status = semel__http_run(loop->http, &err);
    (void)semel__task_set_up(&loop->task, false, status == SEMEL_OK ? "stopped" : err.text);
    if (status != SEMEL_OK)
        SEMEL__LOG(g->log, SEMEL_LOG_ERROR, "a loop of the gateway ended; its connections are gone",
                   SEMEL_F_STR("gateway", g->conf->name), SEMEL_F_Z("error", err.text));
    if (atomic_fetch_sub(&g->running, 1) == 1) /* the last one */
        semel__keeper_stop(g->keeper, LAST_MS);
}

static void run_lane(void *arg)
{
    struct daemon_lane *lane = arg;
    struct daemon_gateway *g = lane->of;
    char why[SEMEL_KEEPER_WHY];
    bool first = true, opened = false;
    do {
        struct semel_error err = {0};
        semel__task_beat(&lane->task);
        if (!opened &&
            !semel__daemon_stopping(g->unit.daemon)) /* before there is work: it is ready, or reports why not */
            opened = semel__keeper_open(g->keeper, lane->n, &err) == SEMEL_OK;
        const bool up = semel__keeper_up(g->keeper, why), was_up = semel__task_set_up(&lane->task, up, why);
        if (lane->n == 0 && !up && (was_up || first))
            SEMEL__LOG(g->log, SEMEL_LOG_WARN, "cannot reach the store; guarded requests are refused, it tries again",
                       SEMEL_F_STR("gateway", g->conf->name), SEMEL_F_Z("error", why));
        else if (lane->n == 0 && up && !was_up && !first)
            SEMEL__LOG(g->log, SEMEL_LOG_INFO, "the store is back", SEMEL_F_STR("gateway", g->conf->name));
        first = false;
    } while (semel__keeper_step(g->keeper, lane->n, LANE_MS));
    (void)semel__task_set_up(&lane->task, false, "stopped");
}

/* ---- the unit ------------------------------------------------------------------------------------ */

static semel_status open_store(void *ctx, struct semel_store **ret, struct semel_error *err)
{
    return semel__daemon_open_store(ctx, ret, err);
}

static semel_status make_keeper(struct daemon_gateway *g, struct semel_error *err)
{
    struct semel_daemon *daemon = g->unit.daemon;
    struct semel_keeper_settings settings;
    struct semel_random rng;
    if (!semel__random_seed_os(&rng))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the system gives no random numbers");
    snprintf(g->owner, sizeof g->owner, "%s/%ld/%08x", daemon->host, (long)getpid(),
             (unsigned)semel__random_next(&rng));
    semel__keeper_settings_init(&settings);
    settings.drivers = daemon->options.stores;
    settings.url = daemon->conf->store.p;
    settings.open = open_store;
    settings.open_ctx = daemon;
    settings.lease_ms = g->conf->lease_us / 1000;
    settings.owner = g->owner;
    return semel__keeper_new(&g->keeper, &settings, err);
}

static semel_status open_loops(struct daemon_gateway *g, struct semel_error *err)
{
    struct semel_gateway_settings settings;
    struct semel_arena arena;
    semel_status status = SEMEL_OK;
    semel__arena_init(&arena, (size_t)4 << 20);
    if (!put_settings(g, &arena, &settings))
        status = semel__fail_memory(err);
    else
        status = semel__gateway_settings_check(&settings, g->conf->lease_us / 1000, err);
    for (size_t i = 0; status == SEMEL_OK && i < (size_t)g->conf->threads; i++) {
        struct daemon_loop *loop = &g->loops[g->n_loops++];
        loop->of = g;
        semel__task_add(&g->unit.daemon->tasks, &loop->task, "loop %zu of gateway %.*s", i, (int)g->conf->name.n,
                        g->conf->name.p);
        status = semel__http_new(&loop->http, NULL, err);
        if (status == SEMEL_OK)
            status = semel__gateway_open(&loop->gateway, loop->http, &settings, err);
        if (status == SEMEL_OK)
            semel__http_on_tick(loop->http, loop_turns, loop);
    }
    semel__arena_done(&arena);
    return status;
}

static semel_status build_one(struct semel_daemon *daemon, const struct semel_conf_gateway *conf,
                              struct semel_error *err)
{
    struct daemon_gateway *g = semel__calloc(1, sizeof *g);
    if (g == NULL)
        return semel__fail_memory(err);
    g->unit = (struct semel_unit){.kind = &semel__daemon_gateways, .daemon = daemon};
    g->conf = conf;
    g->log = daemon->log;
    semel__daemon_add(daemon, &g->unit);
    g->stats = semel__stats_gateway(daemon->stats, conf->name, semel__gateway_guarantee(conf));
    g->held = semel__calloc(conf->n_guard + 1, sizeof *g->held);
    semel_status status = g->stats != NULL && g->held != NULL ? make_keeper(g, err) : semel__fail_memory(err);
    for (size_t i = 0; status == SEMEL_OK && i < semel__keeper_lanes(g->keeper); i++) {
        struct daemon_lane *lane = &g->lanes[g->n_lanes++];
        lane->of = g;
        lane->n = i;
        semel__task_add(&daemon->tasks, &lane->task, "keeper %zu of gateway %.*s", i, (int)conf->name.n, conf->name.p);
    }
    return status == SEMEL_OK ? open_loops(g, err) : status;
}

static semel_status build(struct semel_daemon *daemon, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < daemon->conf->n_gateways; i++)
        status = build_one(daemon, &daemon->conf->gateways[i], err);
    return status;
}

static semel_status start(struct semel_unit *unit, struct semel_error *err)
{
    struct daemon_gateway *g = gateway_of(unit);
    semel_status status = SEMEL_OK;
    SEMEL__LOG(g->log, SEMEL_LOG_INFO, "gateway starts", SEMEL_F_STR("gateway", g->conf->name),
               SEMEL_F_STR("listen", g->conf->server.address.text),
               SEMEL_F_Z("guarantee", semel__gateway_guarantee(g->conf)));
    for (size_t i = 0; status == SEMEL_OK && i < g->n_lanes; i++)
        status = semel__task_start(&g->lanes[i].task, "keeper", run_lane, &g->lanes[i], err);
    atomic_store(&g->running, g->n_loops);
    for (size_t i = 0; status == SEMEL_OK && i < g->n_loops; i++)
        status = semel__task_start(&g->loops[i].task, "gateway", run_loop, &g->loops[i], err);
    if (status != SEMEL_OK) /* no loop may be there to do it */
        semel__keeper_stop(g->keeper, LAST_MS);
    return status;
}

static void stop(struct semel_unit *unit)
{
    struct daemon_gateway *g = gateway_of(unit);
    const int64_t within_ms = unit->daemon->conf->stop_within_us / 1000;
    const int64_t last_ms = LAST_MS < within_ms / 2 ? LAST_MS : within_ms / 2; /* for what is not stored yet */
    for (size_t i = 0; i < g->n_loops; i++)
        if (atomic_load(&g->loops[i].task.started))
            semel__http_stop(g->loops[i].http, (uint64_t)(within_ms - last_ms));
    if (atomic_load(&g->running) == 0)
        semel__keeper_stop(g->keeper, LAST_MS);
}

static bool loops_up(const struct daemon_gateway *g)
{
    bool up = g->n_loops > 0;
    for (size_t i = 0; i < g->n_loops; i++)
        up = up && atomic_load(&g->loops[i].task.up);
    return up;
}

static enum semel_unit_ready ready(struct semel_unit *unit, struct semel_buf *why)
{
    struct daemon_gateway *g = gateway_of(unit);
    char down[SEMEL_KEEPER_WHY];
    const bool kept = semel__keeper_up(g->keeper, down);
    if (kept && loops_up(g))
        return SEMEL_UNIT_READY;
    semel__buf_addf(why, "%sgateway %.*s: %s%s", why->n > 0 ? "; " : "", (int)g->conf->name.n, g->conf->name.p,
                    kept ? "it does not serve: a loop does not run" : "it has no store: ", down);
    return SEMEL_UNIT_STARTING;
}

/* The sum of a counter over all loops. */
#define SUM(g, ret, member)                                                                  \
    do {                                                                                     \
        (ret) = 0;                                                                           \
        for (size_t loop_ = 0; loop_ < (g)->n_loops; loop_++)                                \
            (ret) += atomic_load(&semel__gateway_counts((g)->loops[loop_].gateway)->member); \
    } while (0)

static void json(struct semel_unit *unit, struct semel_buf *buf)
{
    struct daemon_gateway *g = gateway_of(unit);
    char why[SEMEL_KEEPER_WHY];
    const struct semel_keeper_counts *kept = semel__keeper_counts(g->keeper);
    uint64_t completed, released, replayed, unknown = 0, one;
    int64_t running;
    SUM(g, completed, completed);
    SUM(g, released, released);
    SUM(g, replayed, replayed);
    SUM(g, running, running);
    for (size_t i = 0; i < SEMEL_GATEWAY_UNKNOWNS; i++) {
        SUM(g, one, unknown[i]);
        unknown += one;
    }
    semel__buf_addf(buf,
                    "{\"name\":\"%.*s\",\"guarantee\":\"%s\",\"up\":%s,\"port\":%u,\"running\":%" PRId64
                    ",\"completed\":%" PRIu64 ",\"released\":%" PRIu64 ",\"replayed\":%" PRIu64 ",\"unknown\":%" PRIu64
                    ",\"commits\":%" PRIu64 ",\"commits_in_doubt\":%" PRIu64 "}",
                    (int)g->conf->name.n, g->conf->name.p, semel__gateway_guarantee(g->conf),
                    semel__keeper_up(g->keeper, why) && loops_up(g) ? "true" : "false",
                    semel__gateway_port(g->loops[0].gateway), running, completed, released, replayed, unknown,
                    atomic_load(&kept->groups), atomic_load(&kept->in_doubt));
}

/* The names of results in the metrics; "unknown" is what came of a call, so its refusal has another. */
static const char *refusal_name(enum semel_gateway_refusal refusal, char out[32])
{
    snprintf(out, 32, "%s",
             refusal == SEMEL_GATEWAY_REFUSED_UNKNOWN ? "unknown_outcome" : semel__gateway_refusal_word(refusal));
    for (char *p = out; *p != '\0'; p++)
        *p = *p == '-' ? '_' : *p;
    return out;
}

static void report_unknown(struct daemon_gateway *g)
{
    uint64_t all = 0, n;
    for (size_t i = 0; i < SEMEL_GATEWAY_UNKNOWNS; i++) {
        SUM(g, n, unknown[i]);
        all += n;
        if (n > 0)
            semel__stats_gateway_unknown(g->stats, semel__gateway_unknown_name((enum semel_gateway_unknown)i), n);
    }
    semel__stats_gateway_result(g->stats, "unknown", all);
}

static void report_results(struct daemon_gateway *g)
{
    char name[32];
    uint64_t n;
#define RESULT(member, word)                              \
    do {                                                  \
        SUM(g, n, member);                                \
        semel__stats_gateway_result(g->stats, (word), n); \
    } while (0)
    RESULT(answered, "answered");
    RESULT(refused, "refused");
    RESULT(left, "left");
    RESULT(failed, "failed");
    RESULT(completed, "completed");
    RESULT(released, "released");
    RESULT(replayed, "replayed");
    RESULT(passed, "passed");
    for (size_t i = 0; i < SEMEL_GATEWAY_REFUSALS; i++)
        RESULT(guarded_refused[i], refusal_name((enum semel_gateway_refusal)i, name));
#undef RESULT
}

static semel_status count(struct semel_unit *unit, struct semel_store *store, struct semel_arena *arena,
                          struct semel_error *err)
{
    struct daemon_gateway *g = gateway_of(unit);
    struct semel_gateway_now now = {0};
    char why[SEMEL_KEEPER_WHY];
    (void)store, (void)arena, (void)err;
    report_results(g);
    report_unknown(g);
    SUM(g, now.running, running);
    SUM(g, now.unstored, unstored);
    SUM(g, now.held_bytes, held_bytes);
    now.up = semel__keeper_up(g->keeper, why) && loops_up(g);
    semel__stats_gateway_now(g->stats, &now);
    return SEMEL_OK;
}

static void free_gateway(struct semel_unit *unit)
{
    struct daemon_gateway *g = gateway_of(unit);
    for (size_t i = 0; i < g->n_loops; i++) {
        semel__http_free(g->loops[i].http);
        semel__gateway_close(g->loops[i].gateway);
    }
    semel__keeper_free(g->keeper);
    semel__free(g->held);
    semel__free(g);
}

static semel_status reload(struct semel_unit *unit, struct semel_error *err)
{
    struct daemon_gateway *g = gateway_of(unit);
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < g->n_loops && status == SEMEL_OK; i++)
        status = semel__http_reload(g->loops[i].http, err);
    return status;
}

static void reloaded(struct semel_unit *unit, bool use)
{
    struct daemon_gateway *g = gateway_of(unit);
    for (size_t i = 0; i < g->n_loops; i++)
        semel__http_reloaded(g->loops[i].http, use);
}

const struct semel_unit_kind semel__daemon_gateways = {
    .section = "gateways",
    .build = build,
    .start = start,
    .stop = stop,
    .ready = ready,
    .json = json,
    .count = count,
    .reload = reload,
    .reloaded = reloaded,
    .free = free_gateway,
};
