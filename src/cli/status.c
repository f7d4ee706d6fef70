/* SPDX-License-Identifier: MIT
 *
 * status.c: `semel status`: what is in a store, in one page.
 *
 * Every query is bounded (P44): final rows are counted up to a cap, damage is looked for among the first rows that are
 * not finished. A count that was cut says "at least".
 */
#include <netdb.h>
#include <stdarg.h>
#include <unistd.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/error.h"
#include "cli/cli.h"
#include "core/consumer.h"
#include "store/query.h"
#include "core/state.h"
#include "store/migrations.h"
#include "ops/ops.h"

#define CAP 100000
#define CONSUMERS_MAX 1000
#define DAMAGE_LOOK 1000
#define HOLDER_US INT64_C(5000000)
#define WARNINGS_MAX 64
#define ASK_S 5
#define METRICS_MAX ((size_t)64 << 20)
#define LATE_US (INT64_C(30) * 1000000)
#define SOURCES_MAX 4096 /* of all daemons that are asked */

/* What a daemon knows of a route. */
struct source {
    struct semel_str route;
    const char *daemon; /* its admin address */
    int64_t lag;        /* messages that the source still has; SEMEL_NONE: it cannot tell */
};

/* Everything that is shown, read before anything is printed. */
struct view {
    const char *url; /* as it may be shown */
    const struct cli_args *args;
    struct semel_str only; /* the consumer that was asked for; not given: all */
    const char *given;     /* by the option, so that a command to be pasted must have it too */
    const struct cli_store_kind *kind;
    int64_t now_us;
    struct semel_consumer_line *consumers;
    size_t n_consumers;
    struct semel_count *counts;
    size_t n_counts;
    struct semel_outbox_state outbox;
    struct semel_keys_state keys;
    size_t damaged;
    int64_t n[SEMEL_ROW_COUNT];          /* messages by status */
    const struct semel_count *overdue;   /* what is due for long and nobody takes: the oldest of them; NULL: none */
    const struct semel_count *abandoned; /* leases that ran out and nobody ended; the oldest; NULL: none */
    struct semel_str warnings[WARNINGS_MAX];
    size_t n_warnings;
    struct source *sources, *breakers; /* routes of the daemons that answer; those whose circuit breaker is open */
    size_t n_sources, n_breakers;
    const char *silent[WARNINGS_MAX]; /* addresses at which no daemon answers */
    size_t n_silent;
    int64_t wal_bytes;
    char about[256]; /* the database */
};

/* ---- reading ------------------------------------------------------------------------------------- */

/* All consumers, or the one that was asked for. */
static semel_status read_consumers(struct semel_ops *ops, struct semel_str only, struct view *view,
                                   struct semel_error *err)
{
    if (!semel__str_given(only))
        return semel__ops_consumers(ops, only, CONSUMERS_MAX, &view->consumers, &view->n_consumers, err);
    view->n_consumers = 1;
    view->consumers = semel__arena_alloc(ops->arena, 1, sizeof(*view->consumers));
    return view->consumers != NULL ? semel__ops_consumer_line(ops, only, view->consumers, err)
                                   : semel__fail_memory(err);
}

/* Among the rows that may still change, which somebody waits for. */
static semel_status read_damage(struct semel_ops *ops, struct semel_str only, struct view *view,
                                struct semel_error *err)
{
    struct semel_filter filter = {.consumer = only, .received_before_us = SEMEL_NONE, .received_after_us = SEMEL_NONE};
    struct semel_row *rows = NULL;
    size_t n = 0;
    for (int state = SEMEL_ROW_PROCESSING; state < SEMEL_ROW_COUNT; state++)
        if (!semel__state_final((enum semel_row_status)state))
            filter.states |= 1u << state;
    return semel_query_list(ops->store, &filter, SEMEL_NONE, DAMAGE_LOOK, false, ops->arena, &rows, &n, &view->damaged,
                            err);
}

/* A worker looks every few seconds at most: what is due for longer, or held beyond its lease, has none. */
static void judge(struct view *view, const struct semel_count *count)
{
    const struct semel_count **late = count->state == SEMEL_ROW_PROCESSING ? &view->abandoned
                                      : count->state == SEMEL_ROW_WAITING || count->state == SEMEL_ROW_FAILED
                                          ? &view->overdue
                                          : NULL;
    view->n[count->state] += count->n;
    if (late != NULL && count->next_us != SEMEL_NONE && count->next_us < view->now_us - LATE_US &&
        (*late == NULL || count->next_us < (*late)->next_us))
        *late = count;
}

static semel_status read_view(struct semel_ops *ops, struct semel_str only, struct view *view, struct semel_error *err)
{
    semel_status status = read_consumers(ops, only, view, err);
    if (status == SEMEL_OK)
        status = semel_query_counts(ops->store, only, CAP, CAP, ops->arena, &view->counts, &view->n_counts, err);
    if (status == SEMEL_OK)
        status = semel_query_outbox_state(ops->store, NULL, true, CAP, ops->arena, &view->outbox, err);
    if (status == SEMEL_OK)
        status = semel_query_keys_state(ops->store, CAP, ops->arena, &view->keys, err);
    if (status == SEMEL_OK)
        status = read_damage(ops, only, view, err);
    for (size_t i = 0; status == SEMEL_OK && i < view->n_counts; i++)
        judge(view, &view->counts[i]);
    return status;
}

/* ---- for people ---------------------------------------------------------------------------------- */

static const struct cli_column columns[] = {
    {"consumer", CLI_TEXT, true},    {"guarantee", CLI_TEXT, false}, {"status", CLI_STATUS, false},
    {"messages", CLI_NUMBER, false}, {"oldest", CLI_TEXT, false},    {"next", CLI_TEXT, false},
};

static void add_ago(struct cli_table *table, int64_t us, int64_t now_us)
{
    char text[40];
    cli_ago(us, now_us, text, sizeof(text));
    cli_table_text(table, semel__str(text));
}

static void add_count(struct cli_table *table, const struct view *view, const struct semel_consumer_line *consumer,
                      const struct semel_count *count)
{
    char number[32] = "0";
    if (count != NULL)
        snprintf(number, sizeof(number), "%lld%s", (long long)count->n, count->capped ? "+" : "");
    cli_table_text(table, consumer->name);
    cli_table_text(table, semel__str(consumer->guarantee.text));
    cli_table_text(table, semel__str(count != NULL ? semel__row_status_name(count->state) : ""));
    cli_table_text(table, semel__str(number));
    add_ago(table, count != NULL ? count->oldest_us : SEMEL_NONE, view->now_us);
    add_ago(table, count != NULL ? count->next_us : SEMEL_NONE, view->now_us);
}

static int print_counts(const struct cli *cli, const struct view *view)
{
    struct cli_table *table = cli_table_new(cli, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; table != NULL && i < view->n_consumers; i++) {
        const struct semel_consumer_line *consumer = &view->consumers[i];
        bool any = false;
        for (size_t k = 0; k < view->n_counts; k++)
            if (semel__str_eq(view->counts[k].consumer, consumer->name)) {
                add_count(table, view, consumer, &view->counts[k]);
                any = true;
            }
        if (!any)
            add_count(table, view, consumer, NULL);
    }
    return cli_table_print(table);
}

/* One warning, and the command that shows more. */
__attribute__((format(printf, 4, 5))) static void warn(struct cli *cli, struct view *view, const char *command,
                                                       const char *fmt, ...)
{
    char text[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (view->n_warnings < WARNINGS_MAX &&
        semel__arena_copy(&cli->arena, semel__str(text), &view->warnings[view->n_warnings]))
        view->n_warnings++;
    cli_say(cli, "warning: %s%s%s", text, command != NULL ? "; " : "",
            command != NULL ? cli_again(cli, command, view->given) : "");
}

/* "WHAT of CONSUMER WHEN 3 min ago THEN" */
static void warn_late(struct cli *cli, struct view *view, const struct semel_count *late, const char *command,
                      const char *what, const char *when, const char *then)
{
    char consumer[81], since[40];
    if (late == NULL)
        return;
    semel__str_show(consumer, sizeof(consumer), late->consumer);
    cli_ago(late->next_us, view->now_us, since, sizeof(since));
    warn(cli, view, command, "%s of %s %s %s %s", what, consumer, when, since, then);
}

/* ---- what a daemon knows ---- */

static int connect_to(const char *host, const char *port)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const struct timeval patience = {.tv_sec = ASK_S};
    struct addrinfo *list = NULL;
    int fd = -1;
    if (getaddrinfo(host, port, &hints, &list) != 0)
        return -1;
    for (const struct addrinfo *at = list; at != NULL && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
        if (connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* The answer to GET /metrics, ended by NUL. false: nobody answers there. */
static bool get_metrics(const char *address, struct semel_buf *ret)
{
    char host[256], request[400], chunk[4096];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || (size_t)(colon - address) >= sizeof(host))
        return false;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    int n = snprintf(request, sizeof(request), "GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                     address);
    int fd = connect_to(host, colon + 1);
    if (fd < 0)
        return false;
    ssize_t got = send(fd, request, (size_t)n, MSG_NOSIGNAL) == n ? 1 : -1;
    while (got > 0 && (got = recv(fd, chunk, sizeof(chunk), 0)) > 0)
        semel__buf_add(ret, chunk, (size_t)got);
    close(fd);
    semel__buf_add(ret, "", 1);
    return got == 0 && !ret->failed && strncmp(ret->p, "HTTP/1.1 200", 12) == 0;
}

/* What stands behind `mark` in the next line `family` NAME `mark` of the metrics; NULL: there is no more. */
static const char *next_line(const char *text, const char *family, const char *mark, struct semel_str *ret_name)
{
    const char *name = strstr(text, family);
    const char *end = name != NULL ? strstr(name + strlen(family), mark) : NULL;
    if (end == NULL)
        return NULL;
    name += strlen(family);
    *ret_name = (struct semel_str){name, (size_t)(end - name)};
    return end + strlen(mark);
}

/* Lines such as semel_source_lag_messages{consumer="billing"} 345, or NaN. false: no memory. */
static bool read_lags(struct cli *cli, struct view *view, const char *address, const char *text)
{
    struct semel_str name;
    while (view->n_sources < SOURCES_MAX &&
           (text = next_line(text, "\nsemel_source_lag_messages{consumer=\"", "\"} ", &name)) != NULL) {
        struct source *source = &view->sources[view->n_sources];
        if (semel__str_given(view->only) && !semel__str_eq(view->only, name))
            continue;
        source->daemon = address;
        if (!semel__str_int64((struct semel_str){text, strcspn(text, "\n")}, &source->lag))
            source->lag = SEMEL_NONE;
        if (!semel__arena_copy(&cli->arena, name, &source->route))
            return false;
        view->n_sources++;
    }
    return true;
}

/* Lines such as semel_breaker_state{consumer="billing",state="open"} 1. false: no memory. */
static bool read_breakers(struct cli *cli, struct view *view, const char *address, const char *text)
{
    struct semel_str name;
    while (view->n_breakers < SOURCES_MAX &&
           (text = next_line(text, "\nsemel_breaker_state{consumer=\"", "\",state=\"", &name)) != NULL) {
        const char *value = strstr(text, "\"} ");
        struct source *breaker = &view->breakers[view->n_breakers];
        if (value == NULL || value[3] != '1' || strncmp(text, "closed", 6) == 0)
            continue;
        breaker->daemon = address;
        if (!semel__arena_copy(&cli->arena, name, &breaker->route))
            return false;
        view->n_breakers++;
    }
    return true;
}

/* Asks each daemon that was named. A daemon that does not answer is a warning. */
static int read_daemons(struct cli *cli, struct view *view)
{
    const char *address;
    bool fits = true;
    view->sources = semel__arena_alloc(&cli->arena, SOURCES_MAX, sizeof *view->sources);
    view->breakers = semel__arena_alloc(&cli->arena, SOURCES_MAX, sizeof *view->breakers);
    if (view->sources == NULL || view->breakers == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; fits && (address = cli_values(view->args, "admin", i)) != NULL; i++) {
        struct semel_buf answer;
        semel__buf_init(&answer, METRICS_MAX);
        if (get_metrics(address, &answer))
            fits = read_lags(cli, view, address, answer.p) && read_breakers(cli, view, address, answer.p);
        else if (view->n_silent < WARNINGS_MAX)
            view->silent[view->n_silent++] = address;
        semel__buf_done(&answer);
    }
    return fits ? CLI_OK : cli_fail(CLI_FAILED, "out of memory");
}

static const struct cli_column source_columns[] = {
    {"route", CLI_TEXT, true},
    {"lag", CLI_NUMBER, false},
    {"daemon", CLI_TEXT, false},
};

/* Prints how many messages each source still has, where it reports that. */
static int print_sources(const struct cli *cli, const struct view *view)
{
    struct cli_table *table = NULL;
    for (size_t i = 0; i < view->n_sources; i++) {
        char number[32];
        const struct source *source = &view->sources[i];
        if (source->lag == SEMEL_NONE)
            continue;
        if (table == NULL) {
            cli_say(cli, "%s", "");
            table = cli_table_new(cli, source_columns, sizeof(source_columns) / sizeof(source_columns[0]));
        }
        if (table == NULL)
            break;
        snprintf(number, sizeof(number), "%lld", (long long)source->lag);
        cli_table_text(table, source->route);
        cli_table_text(table, semel__str(number));
        cli_table_text(table, semel__str(source->daemon));
    }
    return table != NULL ? cli_table_print(table) : CLI_OK;
}

static void warn_daemons(struct cli *cli, struct view *view)
{
    char name[81];
    for (size_t i = 0; i < view->n_silent; i++)
        warn(cli, view, NULL, "no daemon answers at %s", view->silent[i]);
    for (size_t i = 0; i < view->n_breakers; i++) {
        semel__str_show(name, sizeof(name), view->breakers[i].route);
        warn(cli, view, NULL, "the circuit breaker of route %s is open at %s; its log tells why", name,
             view->breakers[i].daemon);
    }
}

/* Says each, and keeps it for programs. */
static void find_warnings(struct cli *cli, struct view *view)
{
    static const struct {
        enum semel_row_status state;
        const char *one, *many, *command;
    } states[] = {
        {SEMEL_ROW_DEAD, "dead letter", "dead letters", "inbox ls --dead"},
        {SEMEL_ROW_UNKNOWN, "message whose effect is unknown", "messages whose effect is unknown",
         "inbox ls --status unknown"},
        {SEMEL_ROW_QUARANTINED, "message in quarantine, which does not run", "messages in quarantine, which do not run",
         "inbox ls --status quarantined"},
    };
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        int64_t n = view->n[states[i].state];
        if (n > 0)
            warn(cli, view, states[i].command, "%lld %s", (long long)n, n == 1 ? states[i].one : states[i].many);
    }
    warn_late(cli, view, view->overdue, "inbox ls --status waiting,failed", "messages", "were due",
              "and nobody takes them: no worker runs for this consumer, or its circuit breaker is open");
    warn_late(cli, view, view->abandoned, "tick", "leases", "ran out",
              "and nobody ends them: neither semel run nor semel tick runs");
    if (view->outbox.n[SEMEL_EVENT_DEAD] > 0)
        warn(cli, view, "outbox ls --dead", "%lld dead event%s, which no relay tries again",
             (long long)view->outbox.n[SEMEL_EVENT_DEAD], view->outbox.n[SEMEL_EVENT_DEAD] == 1 ? "" : "s");
    if (view->keys.unknown > 0)
        warn(cli, view, "keys ls --unknown", "%lld%s idempotency key%s whose outcome is unknown",
             (long long)view->keys.unknown, view->keys.unknown >= CAP ? "+" : "", view->keys.unknown == 1 ? "" : "s");
    warn_daemons(cli, view);
    if (view->damaged > 0)
        warn(cli, view, "inbox ls", "%zu damaged row%s, which cannot run", view->damaged,
             view->damaged == 1 ? "" : "s");
}

/* A writer is open for a moment all the time: only one that stays is worth a line. */
static void print_holder(struct cli *cli, const struct view *view)
{
    const struct semel_outbox_state *o = &view->outbox;
    const bool prepared = semel__str_given(o->holder_gid);
    char user[80], query[220], age[40];
    if ((o->holder_pid == SEMEL_NONE && !prepared) ||
        (o->holder_since_us != SEMEL_NONE && view->now_us - o->holder_since_us < HOLDER_US))
        return;
    semel__str_show(user, sizeof(user), o->holder_user);
    semel__str_show(query, sizeof(query), prepared ? o->holder_gid : o->holder_query);
    cli_ago(o->holder_since_us, view->now_us, age, sizeof(age));
    if (prepared)
        cli_say(cli,
                "        prepared transaction '%s' of %s, prepared %s, has put events and holds the relay up: "
                "COMMIT PREPARED or ROLLBACK PREPARED it",
                query, user, age);
    else if (o->holder_shown)
        cli_say(cli,
                "        an open transaction has put events and holds the relay up: pid %lld, user %s, begun %s, %s",
                (long long)o->holder_pid, user, age[0] != '\0' ? age : "at an unknown time", query);
    else
        cli_say(cli,
                "        an open transaction has put events: pid %lld, user %s; to see its age and query: "
                "GRANT pg_read_all_stats TO this role",
                (long long)o->holder_pid, user);
}

static void print_outbox(struct cli *cli, const struct view *view)
{
    const struct semel_outbox_state *o = &view->outbox;
    const int64_t events = o->n[SEMEL_EVENT_CREATED];
    char since[40], type[80], id[80], why[200];
    cli_ago(o->oldest_us[SEMEL_EVENT_CREATED], view->now_us, since, sizeof(since));
    cli_say(cli, "outbox  %lld%s event%s%s%s", (long long)events, events >= CAP ? "+" : "", CLI_S(events),
            since[0] != '\0' ? ", the oldest " : "", since);
    if (o->longest > 0) {
        cli_say(cli, "        aside: %lld waiting, %lld publishing, %lld failed, %lld dead",
                (long long)o->n[SEMEL_EVENT_WAITING], (long long)o->n[SEMEL_EVENT_PUBLISHING],
                (long long)o->n[SEMEL_EVENT_FAILED], (long long)o->n[SEMEL_EVENT_DEAD]);
        semel__str_show(type, sizeof(type), o->longest_type);
        semel__str_show(id, sizeof(id), o->longest_id);
        cli_say(cli, "        the longest aggregate: %s %s, %lld event%s aside", type, id, (long long)o->longest,
                CLI_S(o->longest));
    }
    if (o->down > 0) {
        semel__str_show(id, sizeof(id),
                        semel__str_given(o->down_destination) ? o->down_destination : SEMEL_STR("their destination"));
        semel__str_show(why, sizeof(why), o->down_why);
        cli_say(cli, "        %lld event%s for %s: %s", (long long)o->down, o->down == 1 ? " waits" : "s wait", id,
                why);
    }
    if (semel__str_given(o->relay_down)) {
        semel__str_show(id, sizeof(id), o->relay_owner);
        semel__str_show(why, sizeof(why), o->relay_down);
        cli_say(cli, "        relay %s cannot publish to %s", id, why);
    }
    print_holder(cli, view);
}

/* Nothing where there are no keys without an answer. */
static void print_keys(struct cli *cli, const struct view *view)
{
    const struct semel_keys_state *k = &view->keys;
    char since[40], cause[80];
    if (k->processing == 0 && k->unknown == 0)
        return;
    cli_ago(k->unknown_us, view->now_us, since, sizeof(since));
    cli_say(cli, "keys    %lld%s running, %lld of them stuck; %lld%s unknown%s%s", (long long)k->processing,
            k->processing >= CAP ? "+" : "", (long long)k->stuck, (long long)k->unknown, k->unknown >= CAP ? "+" : "",
            since[0] != '\0' ? ", the oldest " : "", since);
    for (size_t i = 0; i < k->n_causes; i++) {
        semel__str_show(cause, sizeof(cause),
                        semel__str_given(k->causes[i].cause) ? k->causes[i].cause : SEMEL_STR("other causes"));
        cli_say(cli, "        %lld because of %s", (long long)k->causes[i].n, cause);
    }
}

static int print_view(struct cli *cli, struct view *view)
{
    cli_say(cli, "store   %s, schema %zu", view->url, *view->kind->n);
    cli_say(cli, "        %s", view->about);
    if (view->wal_bytes > 0)
        cli_say(cli, "        write-ahead log: %lld bytes", (long long)view->wal_bytes);
    print_outbox(cli, view);
    print_keys(cli, view);
    cli_say(cli, "%s", "");
    int code = print_counts(cli, view);
    if (code == CLI_OK)
        code = print_sources(cli, view);
    if (view->n_consumers == 0)
        cli_say(cli, "there are no consumers yet");
    if (view->n_consumers == CONSUMERS_MAX)
        cli_say(cli, "only the first %d consumers are shown; --consumer NAME shows another", CONSUMERS_MAX);
    find_warnings(cli, view);
    return code;
}

/* ---- for programs -------------------------------------------------------------------------------- */

struct consumer_counts {
    const struct semel_count *at[SEMEL_ROW_COUNT];
    size_t n;
};

static void fill_count(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_count *count = ((const struct consumer_counts *)ctx)->at[i];
    semel__object_text(one, "status", semel__str(semel__row_status_name(count->state)));
    semel__object_number(one, "messages", count->n);
    semel__object_bool(one, "at_least", count->capped);
    semel__object_time(one, "oldest", count->oldest_us);
    semel__object_time(one, "next", count->next_us);
}

static void fill_consumer(struct semel_object *one, const void *ctx, size_t i)
{
    const struct view *view = ctx;
    struct consumer_counts counts = {.n = 0};
    for (size_t k = 0; k < view->n_counts && counts.n < SEMEL_ROW_COUNT; k++)
        if (semel__str_eq(view->counts[k].consumer, view->consumers[i].name))
            counts.at[counts.n++] = &view->counts[k];
    semel__object_text(one, "consumer", view->consumers[i].name);
    semel__object_text(one, "guarantee", semel__str(view->consumers[i].guarantee.text));
    semel__object_list(one, "statuses", counts.n, fill_count, &counts);
}

static void fill_source(struct semel_object *one, const void *ctx, size_t i)
{
    const struct source *source = &((const struct view *)ctx)->sources[i];
    semel__object_text(one, "consumer", source->route);
    semel__object_text(one, "daemon", semel__str(source->daemon));
    semel__object_number(one, "lag", source->lag);
}

static void fill_outbox(struct semel_object *outbox, const struct semel_outbox_state *o)
{
    semel__object_number(outbox, "events", o->n[SEMEL_EVENT_CREATED]);
    semel__object_bool(outbox, "at_least", o->n[SEMEL_EVENT_CREATED] >= CAP);
    semel__object_time(outbox, "oldest", o->oldest_us[SEMEL_EVENT_CREATED]);
    semel__object_number(outbox, "waiting", o->n[SEMEL_EVENT_WAITING]);
    semel__object_number(outbox, "publishing", o->n[SEMEL_EVENT_PUBLISHING]);
    semel__object_number(outbox, "failed", o->n[SEMEL_EVENT_FAILED]);
    semel__object_number(outbox, "dead", o->n[SEMEL_EVENT_DEAD]);
    semel__object_text(outbox, "longest_aggregatetype", o->longest_type);
    semel__object_text(outbox, "longest_aggregateid", o->longest_id);
    semel__object_number(outbox, "longest_events", o->longest);
    semel__object_number(outbox, "destination_waiters", o->down);
    semel__object_text(outbox, "destination", o->down_destination);
    semel__object_text(outbox, "destination_error", o->down_why);
    semel__object_text(outbox, "relay", o->relay_owner);
    semel__object_text(outbox, "relay_down", o->relay_down);
    semel__object_number(outbox, "holder_pid", o->holder_pid);
    semel__object_text(outbox, "holder_gid", o->holder_gid);
    semel__object_text(outbox, "holder_user", o->holder_user);
    semel__object_time(outbox, "holder_since", o->holder_since_us);
    semel__object_text(outbox, "holder_query", o->holder_shown ? o->holder_query : (struct semel_str){0});
    semel__object_text(outbox, "holder_missing_grant",
                       o->holder_pid != SEMEL_NONE && !o->holder_shown ? SEMEL_STR("pg_read_all_stats")
                                                                       : (struct semel_str){0});
}

static void fill_key_cause(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_keys_state *k = ctx;
    semel__object_text(one, "cause", k->causes[i].cause);
    semel__object_number(one, "keys", k->causes[i].n);
}

static void fill_keys(struct semel_object *keys, const struct semel_keys_state *k)
{
    semel__object_number(keys, "processing", k->processing);
    semel__object_number(keys, "stuck", k->stuck);
    semel__object_number(keys, "unknown", k->unknown);
    semel__object_bool(keys, "at_least", k->processing >= CAP || k->unknown >= CAP);
    semel__object_time(keys, "oldest_unknown", k->unknown_us);
    semel__object_list(keys, "causes", k->n_causes, fill_key_cause, k);
}

static int print_json(const struct view *view)
{
    struct semel_object whole, outbox, keys;
    semel__object_init(&whole);
    semel__object_init(&outbox);
    semel__object_text(&whole, "store", semel__str(view->url));
    semel__object_number(&whole, "schema", (int64_t)*view->kind->n);
    semel__object_text(&whole, view->kind->name, semel__str(view->about));
    semel__object_number(&whole, "wal_bytes", view->wal_bytes);
    semel__object_time(&whole, "now", view->now_us);
    fill_outbox(&outbox, &view->outbox);
    semel__object_raw(&whole, "outbox", semel__object_end(&outbox));
    whole.buf.failed |= outbox.buf.failed;
    semel__object_done(&outbox);
    semel__object_init(&keys);
    fill_keys(&keys, &view->keys);
    semel__object_raw(&whole, "keys", semel__object_end(&keys));
    whole.buf.failed |= keys.buf.failed;
    semel__object_done(&keys);
    semel__object_list(&whole, "consumers", view->n_consumers, fill_consumer, view);
    semel__object_list(&whole, "sources", view->n_sources, fill_source, view);
    semel__object_number(&whole, "dead", view->n[SEMEL_ROW_DEAD]);
    semel__object_number(&whole, "unknown", view->n[SEMEL_ROW_UNKNOWN]);
    semel__object_number(&whole, "quarantined", view->n[SEMEL_ROW_QUARANTINED]);
    semel__object_time(&whole, "overdue_since", view->overdue != NULL ? view->overdue->next_us : SEMEL_NONE);
    semel__object_time(&whole, "leases_expired_since", view->abandoned != NULL ? view->abandoned->next_us : SEMEL_NONE);
    semel__object_number(&whole, "damaged", (int64_t)view->damaged);
    semel__object_texts(&whole, "warnings", view->warnings, view->n_warnings);
    return cli_object_print(&whole);
}

/* ---- the command --------------------------------------------------------------------------------- */

static int run(struct cli *cli, const struct cli_args *args)
{
    struct semel_error err = {0};
    int code = CLI_OK;
    struct semel_str only = semel__str(cli_value(args, "consumer"));
    const char *url = cli_store_url(args, &code);
    struct semel_ops ops;
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    struct view view = {.url = cli_store_shown(url),
                        .args = args,
                        .only = only,
                        .given = cli_value(args, "store"),
                        .kind = cli_store_kind_of(url),
                        .now_us = semel__now(&semel__clock_real)};
    semel_status status = read_view(&ops, only, &view, &err);
    view.wal_bytes = cli_store_wal_bytes(ops.store);
    cli_store_about(ops.store, view.about, sizeof(view.about));
    cli_ops_close(&ops);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reading the store");
    if (semel__str_given(only) && view.n_counts == 0)
        return cli_fail(CLI_NOTHING, "consumer '%s' has no messages; for all of them: %s", only.p,
                        cli_again(cli, "consumer ls", view.given));
    code = read_daemons(cli, &view);
    if (code == CLI_OK && cli->json) {
        find_warnings(cli, &view);
        code = print_json(&view);
    } else if (code == CLI_OK)
        code = print_view(cli, &view);
    return code == CLI_OK && cli_flag(args, "check") && view.n_warnings > 0 ? CLI_FAILED : code;
}

static const struct cli_option options[] = {
    CLI_STORE_OPTION,
    {"consumer", 'c', "NAME", "only this consumer"},
    {"check", 0, NULL, "exit with 1 if there is a warning, for a monitor or a script"},
    {"admin", 0, "HOST:PORT...",
     "ask a daemon at its admin address for the lag of its routes and open circuit breakers; may be given several "
     "times"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_status = {
    .name = "status",
    .summary = "show what is in a store: messages by consumer and status, the outbox, keys, what needs a person",
    .options = options,
    .help =
        "OLDEST is when the oldest message in that status was received; NEXT is when the first of them is due, or\n"
        "its lease ends. Counts stop at 100000 and then end with +.\n"
        "GUARANTEE is ATOMIC where the effect is written in the store's own transaction, and GUARDED where it is\n"
        "outside, under a lease, a fencing token and a stable key; 'for 45 days' where a copy that comes after its\n"
        "record was purged would run again.\n"
        "LAG, with --admin, is how many messages the source of a route still has, as of its last answer to that\n"
        "daemon: of partitions those of the daemon's own, of a queue those of the whole queue.\n"
        "Warnings: dead letters, unknown outcomes, messages in quarantine, due work that no worker takes,\n"
        "leases that ran out, dead events, damaged rows; with --admin, circuit breakers that are open.\n"
        "Exit code 1 with --check: there is a warning.\n"
        "\n"
        "Examples\n"
        "  semel status --store sqlite:shop.db\n"
        "  semel status --consumer billing --json --store sqlite:shop.db\n"
        "  semel status --check --admin 127.0.0.1:9464 --store sqlite:shop.db",
    .run = run,
};
