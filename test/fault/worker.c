/* SPDX-License-Identifier: MIT
 *
 * worker.c: a program that is one worker of a route, to be started, stopped and killed by the process tests.
 *
 * Arguments are NAME=VALUE, `store` is a URL; every name and its default stands in the two lists below. The crash
 * points take their orders from the environment (point.h). With barrier=1 it says "ready" on stdout and goes on when
 * a byte comes on stdin. What it counted goes to the file report.NAME in `dir` when it ends in peace; alerts, and what
 * went wrong with store or broker, are appended to `alerts` as they come.
 *
 * mode=run       steps and ticks until spool and inbox have nothing left to do (until=spool: the spool alone;
 *                until=stop: until SIGTERM), or for so many `loops`
 * mode=deliver   each line of stdin, "ID PAYLOAD", is given to the inbox as a delivery; answers "WHY STATE"
 * mode=command   each line of stdin is the id of a message for the `command`; answers "done STATE" or "late STATE"
 * mode=retry    retries all that is dead
 * mode=reconcile asks the effects for each unknown message: there, then it is resolved; not there, then retried
 * mode=purge     purges `batch` rows at a time until there are none
 *
 * Exit status: 0 in peace, 2 wrong arguments, 3 not done within `deadline_ms`, 4 the world failed.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/point.h"
#include "demo/spool.h"
#include "store/query.h"
#include "core/pump.h"
#include "fault/books.h"
#include "fault/ledger.h"
#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif
#include "unit/unit.h"

#define TEXTS(X)         \
    X(store, NULL)       \
    X(spool, NULL)       \
    X(dir, NULL)         \
    X(mode, "run")       \
    X(until, "all")      \
    X(consumer, "books") \
    X(source, "orders")  \
    X(name, "worker")    \
    X(effect, "atomic")  \
    X(order, "none")     \
    X(on_gap, "dead")    \
    X(command, "retry")

#define NUMBERS(X)              \
    X(retry_max, 50)            \
    X(retry_first_ms, 5)        \
    X(retry_ceiling_ms, 20)     \
    X(lease_ms, 150)            \
    X(visibility_ms, 200)       \
    X(gap_ms, 60000)            \
    X(retention_s, 3888000)     \
    X(business, 0)              \
    X(business_retention_s, -1) \
    X(batch, 8)                 \
    X(later_ms, 10)             \
    X(breaker, 10)              \
    X(breaker_ms, 20)           \
    X(ahead_s, 0)               \
    X(purge, 0)                 \
    X(steps, 1)                 \
    X(ticks, 1)                 \
    X(loops, 0)                 \
    X(barrier, 0)               \
    X(force, 0)                 \
    X(queue, 1)                 \
    X(deadline_ms, 30000)       \
    X(seed, 1)

struct settings {
#define X(name, initial) const char *name;
    TEXTS(X)
#undef X
#define X(name, initial) long name;
    NUMBERS(X)
#undef X
};

struct worker {
    struct settings set;
    struct semel_store *store;
    struct books *books; /* of the store, for plain questions */
    struct semel_broker *broker;
    struct semel_random rng;
    struct semel_clock clock;
    struct semel_policy policy;
    struct semel_rules rules;
    struct ledger ledger;
    struct semel__handler handler;
    struct semel_inbox inbox;
    struct semel_pump pump;
    char owner[64];
    struct semel_error err;
};

static volatile sig_atomic_t told_to_stop;

static void on_term(int signal_number)
{
    (void)signal_number;
    told_to_stop = 1;
}

static _Noreturn void give_up(int code, const char *what, const struct semel_error *err)
{
    fprintf(stderr, "worker: %s: %s\n", what, err != NULL ? err->text : "");
    _exit(code);
}

/* ---- settings ----------------------------------------------------------------------------------------- */

static bool take_setting(struct settings *set, const char *name, size_t n, const char *value)
{
    char *end;

#define X(field, initial)                                       \
    if (n == strlen(#field) && strncmp(name, #field, n) == 0) { \
        set->field = value;                                     \
        return true;                                            \
    }
    TEXTS(X)
#undef X
#define X(field, initial)                                       \
    if (n == strlen(#field) && strncmp(name, #field, n) == 0) { \
        set->field = strtol(value, &end, 10);                   \
        return *value != '\0' && *end == '\0';                  \
    }
    NUMBERS(X)
#undef X
    return false;
}

static void take_settings(struct settings *set, int argc, char **argv)
{
    *set = (struct settings){
#define X(name, initial) .name = initial,
        TEXTS(X) NUMBERS(X)
#undef X
    };
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        if (equals == NULL || !take_setting(set, argv[i], (size_t)(equals - argv[i]), equals + 1))
            give_up(2, argv[i], NULL);
    }
    if (set->store == NULL || set->spool == NULL || set->dir == NULL)
        give_up(2, "store=, spool= and dir= are needed", NULL);
}

static int choose(const char *value, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(value, names[i]) == 0)
            return i;
    give_up(2, value, NULL);
}

static int64_t now_ahead(void *ctx)
{
    const struct worker *w = ctx;

    return semel__now(&semel__clock_real) + w->set.ahead_s * INT64_C(1000000);
}

static void make_policy(struct worker *w)
{
    static const char *const effects[] = {"atomic", "outside", "keyed", NULL};
    static const char *const orders[] = {"none", "arrival", "version", NULL};
    static const char *const gaps[] = {"dead", "apply", "alert", NULL};
    const struct settings *set = &w->set;
    struct semel_policy *p = &w->policy;

    semel__policy_init(p, semel__str(set->consumer));
    p->effect = (enum semel_effect)choose(set->effect, effects);
    p->order = (enum semel_order)choose(set->order, orders);
    p->on_gap = (enum semel_gap)choose(set->on_gap, gaps);
    p->retry_max = (int)set->retry_max;
    p->retry_first_us = set->retry_first_ms * 1000;
    p->retry_ceiling_us = set->retry_ceiling_ms * 1000;
    if (p->retry_ceiling_us < p->retry_first_us)
        p->retry_ceiling_us = p->retry_first_us;
    p->lease_us = set->lease_ms * 1000;
    p->gap_timeout_us = set->gap_ms * 1000;
    p->retention_us = set->retention_s * INT64_C(1000000);
    if (set->business_retention_s >= 0)
        p->business_retention_us = set->business_retention_s * INT64_C(1000000);
    if (semel__policy_check(p, &w->err) != SEMEL_OK)
        give_up(2, "policy", &w->err);
    if (p->order != SEMEL_ORDER_NONE)
        w->rules.order = (struct semel_rule){SEMEL_RULE_JSON, SEMEL_STR("/account")};
    else
        w->rules.lock = (struct semel_rule){SEMEL_RULE_JSON, SEMEL_STR("/account")};
    if (p->order == SEMEL_ORDER_VERSION)
        w->rules.version = (struct semel_rule){SEMEL_RULE_JSON, SEMEL_STR("/version")};
    if (set->business != 0)
        w->rules.business[w->rules.n_business++] = (struct semel_rule){SEMEL_RULE_JSON, SEMEL_STR("/intent")};
}

/* ---- opening and reporting ---------------------------------------------------------------------------- */

static void say_to(const struct worker *w, const char *file, const char *mode, const char *text)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", w->set.dir, file);
    f = fopen(path, mode);
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        give_up(4, path, NULL);
}

static void on_alert(void *ctx, enum semel_alert alert, const struct semel__msg *msg, struct semel_str text)
{
    static const char *const names[] = {"dead", "conflict", "quarantined", "unknown", "gap", "damaged", "parked_full"};
    char line[512];

    snprintf(line, sizeof line, "%s %.*s %.*s\n", names[alert], (int)msg->id.n, msg->id.p,
             (int)(text.n > 200 ? 200 : text.n), text.p != NULL ? text.p : "");
    say_to(ctx, "alerts", "ae", line);
}

static void open_all(struct worker *w)
{
    static const struct semel_store_ops *const stores[] = {
        &semel__store_sqlite,
#ifdef SEMEL_WITH_POSTGRES
        &semel__store_postgres,
#endif
        NULL,
    };
    const struct semel_store_options options = {.clock = &w->clock, .create = true, .migrate = true};
    char spool[512];

    w->clock = (struct semel_clock){now_ahead, w};
    semel__random_seed(&w->rng, (uint64_t)w->set.seed);
    if (semel_store_open(&w->store, stores, w->set.store, &options, &w->err) != SEMEL_OK)
        give_up(4, "store", &w->err);
    w->books = books_open(w->set.store);
    snprintf(spool, sizeof spool, "%s?visibility_ms=%ld", w->set.spool, w->set.visibility_ms);
    if (semel__spool_open(&w->broker, spool, &w->err) != SEMEL_OK)
        give_up(4, "spool", &w->err);
    snprintf(w->owner, sizeof w->owner, "%s-%ld", w->set.name, (long)getpid());
    w->ledger = (struct ledger){.dir = w->set.dir,
                                .worker = w->set.name,
                                .consumer = w->policy.consumer,
                                .outside = w->policy.effect != SEMEL_EFFECT_ATOMIC,
                                .queued = w->set.queue != 0};
    w->handler = (struct semel__handler){.ctx = &w->ledger, .each = ledger_handle};
    semel__inbox_init(&w->inbox, w->store, &w->policy, &w->handler, &w->rng, semel__str(w->owner));
    w->inbox.observer = (struct semel_observer){.ctx = w, .alert = on_alert};
    semel__pump_init(&w->pump, &w->inbox, w->broker, &w->rules);
    semel__route_breaker_init(&w->pump.own, (int)w->set.breaker, w->set.breaker_ms * 1000, w->set.breaker_ms * 2000);
    w->pump.batch_max = (size_t)w->set.batch;
    w->pump.wait_ms = 5;
    w->pump.later_ms = (int)w->set.later_ms;
    if (w->set.purge == 0)
        w->pump.next_purge_us = now_ahead(w) + w->pump.purge_every_us;
}

static void report(struct worker *w)
{
    const struct semel_counts *c = &w->inbox.counts;
    char text[4096], file[128];
    int n = snprintf(text, sizeof text, "done %llu\nfailed %llu\nrecovered %llu\nfenced %llu\npurged %llu\ncuts %llu\n",
                     (unsigned long long)c->done, (unsigned long long)c->failed, (unsigned long long)c->recovered,
                     (unsigned long long)c->fenced, (unsigned long long)c->purged, (unsigned long long)c->cuts);

    for (int why = SEMEL_WHY_NEW; why <= SEMEL_WHY_DAMAGED; why++)
        n += snprintf(text + n, sizeof text - (size_t)n, "why.%s %llu\n", semel__why_name((enum semel_why)why),
                      (unsigned long long)c->why[why]);
    for (int i = 0; i < SEMEL_POINT_COUNT; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "at.%s %lu\n", semel__point_name((enum semel_point)i),
                      semel__point_visits((enum semel_point)i));
    snprintf(file, sizeof file, "report.%s", w->set.name);
    say_to(w, file, "we", text);
}

/* ---- run ---------------------------------------------------------------------------------------------- */

static bool at_rest(struct worker *w)
{
    size_t ready, taken, acked;
    int64_t open = 1;

    if (strcmp(w->set.until, "stop") == 0 || w->pump.store_down || w->pump.broker_down ||
        semel__spool_stats(w->broker, &ready, &taken, &acked, &w->err) != SEMEL_OK || ready + taken > 0)
        return false;
    if (strcmp(w->set.until, "spool") == 0)
        return true;
    return books_ask(w->books,
                     "SELECT count(*) FROM (SELECT 1 FROM semel_inbox WHERE status = 'processing' OR due_at IS NOT NULL"
                     " LIMIT 1) AS open",
                     &open) &&
           open == 0;
}

/* A change of the breaker is worth a line among the alerts. */
static void watch_breaker(struct worker *w, enum semel_breaker_state *state)
{
    char line[64];

    if (w->pump.own.now.state == *state)
        return;
    *state = w->pump.own.now.state;
    snprintf(line, sizeof line, "breaker %d %s\n", (int)*state, semel__class_name(w->pump.own.now.cause));
    say_to(w, "alerts", "ae", line);
}

/* So is what goes wrong, when it is something else than before. */
static void watch_errors(struct worker *w, semel_status status, struct semel_error *last)
{
    char line[300];

    if (status == SEMEL_OK || strcmp(w->err.text, last->text) == 0)
        return;
    *last = w->err;
    snprintf(line, sizeof line, "error %s\n", w->err.text);
    say_to(w, "alerts", "ae", line);
}

static void run(struct worker *w)
{
    struct semel_error last = {0};
    const int64_t give_up_us = semel__now(&semel__clock_real) + w->set.deadline_ms * 1000;
    enum semel_breaker_state state = SEMEL_BREAKER_CLOSED;

    for (long loop = 1; told_to_stop == 0; loop++) {
        size_t stepped = 0, ticked = 0;
        semel_status step = SEMEL_OK, tick = SEMEL_OK;
        if (w->set.steps != 0)
            step = semel__pump_step(&w->pump, now_ahead(w), &stepped, &w->err);
        watch_breaker(w, &state);
        watch_errors(w, step, &last);
        if (w->set.ticks != 0)
            tick = semel__pump_tick(&w->pump, now_ahead(w), &ticked, &w->err);
        watch_breaker(w, &state);
        watch_errors(w, tick, &last);
        if (loop == w->set.loops || (stepped + ticked == 0 && step == SEMEL_OK && tick == SEMEL_OK && at_rest(w)))
            return;
        if (semel__now(&semel__clock_real) > give_up_us)
            give_up(3, "not done in time", &w->err);
        if (stepped + ticked == 0)
            poll(NULL, 0, 2);
    }
}

/* ---- the other modes ---------------------------------------------------------------------------------- */

static void deliver(struct worker *w, const char *id, const char *payload)
{
    const struct semel_pair header = {SEMEL_STR("id"), semel__str(id)};
    const struct semel_delivery delivery = {.source = semel__str(w->set.source),
                                            .payload = semel__str(payload),
                                            .headers = &header,
                                            .n_headers = 1,
                                            .delivery = 1};
    struct semel_settled settled;
    struct semel_arena arena;
    struct semel__msg msg;

    semel__arena_init(&arena, 1 << 20);
    if (semel__extract(&w->rules, &delivery, w->policy.payload_max, &arena, &msg, &w->err) != SEMEL_OK ||
        semel__inbox_process(&w->inbox, &msg, 1, &settled, &w->err) != SEMEL_OK)
        printf("error %s\n", w->err.text);
    else
        printf("%s %s\n", semel__why_name(settled.why), semel__row_status_name(settled.state));
    semel__arena_done(&arena);
}

/* As an operator does it: the row is read, then the command is given, whatever the row has become meanwhile. */
static void command(struct worker *w, enum semel_command_kind kind, const char *id, const char *reason)
{
    const struct semel_filter filter = {.consumer = w->policy.consumer,
                                        .source = semel__str(w->set.source),
                                        .id = semel__str(id),
                                        .received_before_us = SEMEL_NONE,
                                        .received_after_us = SEMEL_NONE};
    struct semel_row row = {.source = filter.source, .id = filter.id, .version = SEMEL_NONE}, *rows = NULL;
    struct semel_command order = {.kind = kind,
                                  .row = &row,
                                  .who = semel__str(w->set.name),
                                  .reason = semel__str(reason),
                                  .force = w->set.force != 0};
    struct semel_command_result result;
    struct semel_arena arena;
    size_t n = 0, damaged;

    semel__arena_init(&arena, 1 << 20);
    semel_status status = semel_query_list(w->inbox.store, &filter, SEMEL_NONE, 1, false, &arena, &rows, &n, &damaged,
                                           &w->err);
    if (n == 1)
        row = rows[0];
    row.updated_us = 0;
    if (status == SEMEL_OK)
        status = semel__inbox_command(&w->inbox, &order, &result, &w->err);
    if (status != SEMEL_OK)
        printf("refused %s\n", w->err.text);
    else
        printf("%s %s\n", result.done ? "done" : "late", semel__row_status_name(result.state));
    semel__arena_done(&arena);
}

static void each_line(struct worker *w)
{
    static const char *const words[] = {"retry", "discard", "resolve", NULL};
    const enum semel_command_kind kind = (enum semel_command_kind)choose(w->set.command, words);
    char line[1024];

    while (fgets(line, sizeof line, stdin) != NULL) {
        char *blank;
        line[strcspn(line, "\n")] = '\0';
        blank = strchr(line, ' ');
        if (strcmp(w->set.mode, "command") == 0) {
            command(w, kind, line, "asked by a test");
        } else if (blank != NULL) {
            *blank = '\0';
            deliver(w, line, blank + 1);
        }
        fflush(stdout);
    }
}

/* The other side's answer: does it know the key of this message? */
static bool effect_is_there(const struct worker *w, const char *id)
{
    char key[SEMEL_STEP_KEY_TEXT], path[256], line[512];
    bool found = false;
    FILE *f;

    semel__step_key(w->policy.consumer, semel__str(w->set.source), semel__str(id), SEMEL_STR("book"), key);
    snprintf(path, sizeof path, "%s/effects", w->set.dir);
    f = fopen(path, "re");
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL)
        found = strncmp(line, key, strlen(key)) == 0;
    if (f != NULL)
        fclose(f);
    return found;
}

static void each_row(struct worker *w, const char *sql, bool ask)
{
    static char text[512 * 64], id[64];
    size_t length = 0;

    books_text(w->books, sql, text, sizeof text);
    for (const char *p = text; *p != '\0'; p += length + (p[length] != '\0')) {
        length = strcspn(p, "\n");
        snprintf(id, sizeof id, "%.*s", (int)length, p);
        command(w, ask && effect_is_there(w, id) ? SEMEL_COMMAND_RESOLVE : SEMEL_COMMAND_RETRY, id, "reconciled");
    }
}

static void purge(struct worker *w)
{
    size_t n = 1;

    while (n > 0)
        if (semel__inbox_purge(&w->inbox, (size_t)w->set.batch, &n, &w->err) != SEMEL_OK)
            give_up(4, "purge", &w->err);
}

int main(int argc, char **argv)
{
    static const char *const modes[] = {"run", "deliver", "command", "retry", "reconcile", "purge", NULL};
    static struct worker w;
    char byte;

    take_settings(&w.set, argc, argv);
    if (!semel__point_from_env())
        return 2;
    signal(SIGTERM, on_term);
    make_policy(&w);
    open_all(&w);
    if (w.set.barrier != 0 && (write(1, "ready\n", 6) != 6 || read(0, &byte, 1) != 1))
        return 2;
    switch (choose(w.set.mode, modes)) {
    case 0:
        run(&w);
        break;
    case 3:
        each_row(&w, "SELECT message_id FROM semel_inbox WHERE status = 'dead' ORDER BY arrival", false);
        break;
    case 4:
        each_row(&w, "SELECT message_id FROM semel_inbox WHERE status = 'unknown' ORDER BY arrival", true);
        break;
    case 5:
        purge(&w);
        break;
    default:
        each_line(&w);
    }
    report(&w);
    semel__pump_done(&w.pump);
    semel__inbox_done(&w.inbox);
    semel_broker_close(w.broker);
    semel_store_close(w.store);
    books_close(w.books);
    return 0;
}
