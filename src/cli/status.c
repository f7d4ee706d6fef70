/* SPDX-License-Identifier: MIT
 *
 * status.c: `semel status`: what is in a store, in one page.
 *
 * Every query is bounded (P44): final rows are counted up to a cap, damage is looked for among the first rows that are
 * not finished. A count that was cut says "at least".
 */
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

/* Everything that is shown, read before anything is printed. */
struct view {
    const char *url;   /* as it may be shown */
    const char *given; /* by the option, so that a command to be pasted must have it too */
    const struct cli_store_kind *kind;
    int64_t now_us;
    struct semel_consumer_line *consumers;
    size_t n_consumers;
    struct semel_count *counts;
    size_t n_counts;
    struct semel_outbox_state outbox;
    struct semel_keys_state keys;
    size_t damaged;
    int64_t dead, unknown;
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
    for (int state = SEMEL_STATE_PROCESSING; state < SEMEL_STATE_COUNT; state++)
        if (!semel__state_final((enum semel_row_status)state))
            filter.states |= 1u << state;
    return semel_query_list(ops->store, &filter, SEMEL_NONE, DAMAGE_LOOK, false, ops->arena, &rows, &n, &view->damaged,
                            err);
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
    for (size_t i = 0; status == SEMEL_OK && i < view->n_counts; i++) {
        view->dead += view->counts[i].state == SEMEL_STATE_DEAD ? view->counts[i].n : 0;
        view->unknown += view->counts[i].state == SEMEL_STATE_UNKNOWN ? view->counts[i].n : 0;
    }
    return status;
}

/* ---- for people ---------------------------------------------------------------------------------- */

static const struct cli_column columns[] = {
    {"consumer", CLI_TEXT, true},    {"guarantee", CLI_TEXT, false}, {"status", CLI_TEXT, false},
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
    cli_table_text(table, semel__str(consumer->guarantee));
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

static void print_warnings(struct cli *cli, const struct view *view)
{
    if (view->dead > 0)
        cli_say(cli, "warning: %lld dead letters; %s", (long long)view->dead,
                cli_again(cli, "inbox ls --dead", view->given));
    if (view->unknown > 0)
        cli_say(cli, "warning: %lld messages whose effect is unknown; %s", (long long)view->unknown,
                cli_again(cli, "inbox ls --status unknown", view->given));
    if (view->outbox.n[SEMEL_EVENT_DEAD] > 0)
        cli_say(cli, "warning: %lld dead events, which no relay tries again; %s",
                (long long)view->outbox.n[SEMEL_EVENT_DEAD], cli_again(cli, "outbox ls --dead", view->given));
    if (view->keys.unknown > 0)
        cli_say(cli, "warning: %lld%s idempotency keys whose outcome is unknown; %s", (long long)view->keys.unknown,
                view->keys.unknown >= CAP ? "+" : "", cli_again(cli, "keys ls --unknown", view->given));
    if (view->damaged > 0)
        cli_say(cli, "warning: %zu damaged rows, which cannot run; %s", view->damaged,
                cli_again(cli, "inbox ls", view->given));
}

/* A writer is open for a moment all the time: only one that stays is worth a line. */
static void print_holder(struct cli *cli, const struct view *view)
{
    const struct semel_outbox_state *o = &view->outbox;
    char user[80], query[220], age[40];
    if (o->holder_pid == SEMEL_NONE ||
        (o->holder_since_us != SEMEL_NONE && view->now_us - o->holder_since_us < HOLDER_US))
        return;
    semel__str_show(user, sizeof(user), o->holder_user);
    semel__str_show(query, sizeof(query), o->holder_query);
    cli_ago(o->holder_since_us, view->now_us, age, sizeof(age));
    if (o->holder_shown)
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
    cli_say(cli, "outbox  %lld%s events%s%s", (long long)events, events >= CAP ? "+" : "",
            since[0] != '\0' ? ", the oldest " : "", since);
    if (o->longest > 0) {
        cli_say(cli, "        aside: %lld waiting, %lld publishing, %lld failed, %lld dead",
                (long long)o->n[SEMEL_EVENT_WAITING], (long long)o->n[SEMEL_EVENT_PUBLISHING],
                (long long)o->n[SEMEL_EVENT_FAILED], (long long)o->n[SEMEL_EVENT_DEAD]);
        semel__str_show(type, sizeof(type), o->longest_type);
        semel__str_show(id, sizeof(id), o->longest_id);
        cli_say(cli, "        the longest aggregate: %s %s, %lld events aside", type, id, (long long)o->longest);
    }
    if (o->down > 0) {
        semel__str_show(id, sizeof(id),
                        semel__str_given(o->down_destination) ? o->down_destination : SEMEL_STR("their destination"));
        semel__str_show(why, sizeof(why), o->down_why);
        cli_say(cli, "        %lld events wait for %s: %s", (long long)o->down, id, why);
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

static int print_view(struct cli *cli, const struct view *view)
{
    cli_say(cli, "store   %s, schema %zu", view->url, *view->kind->n);
    cli_say(cli, "        %s", view->about);
    if (view->wal_bytes > 0)
        cli_say(cli, "        write-ahead log: %lld bytes", (long long)view->wal_bytes);
    print_outbox(cli, view);
    print_keys(cli, view);
    cli_say(cli, "%s", "");
    int code = print_counts(cli, view);
    if (view->n_consumers == 0)
        cli_say(cli, "there are no consumers yet");
    if (view->n_consumers == CONSUMERS_MAX)
        cli_say(cli, "only the first %d consumers are shown; --consumer NAME shows another", CONSUMERS_MAX);
    print_warnings(cli, view);
    return code;
}

/* ---- for programs -------------------------------------------------------------------------------- */

struct consumer_counts {
    const struct semel_count *at[SEMEL_STATE_COUNT];
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
    for (size_t k = 0; k < view->n_counts && counts.n < SEMEL_STATE_COUNT; k++)
        if (semel__str_eq(view->counts[k].consumer, view->consumers[i].name))
            counts.at[counts.n++] = &view->counts[k];
    semel__object_text(one, "consumer", view->consumers[i].name);
    semel__object_text(one, "guarantee", semel__str(view->consumers[i].guarantee));
    semel__object_list(one, "statuses", counts.n, fill_count, &counts);
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
    semel__object_number(&whole, "dead", view->dead);
    semel__object_number(&whole, "unknown", view->unknown);
    semel__object_number(&whole, "damaged", (int64_t)view->damaged);
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
    return cli->json ? print_json(&view) : print_view(cli, &view);
}

static const struct cli_option options[] = {
    CLI_STORE_OPTION,
    {"consumer", 'c', "NAME", "only this consumer"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_status = {
    .name = "status",
    .summary = "show what is in a store: messages by consumer and status, the outbox, keys, what needs a person",
    .options = options,
    .help = "OLDEST is when the oldest message in that status was received; NEXT is when the first of them is due, or\n"
            "its lease ends. Counts stop at 100000 and then end with +.\n"
            "GUARANTEE is ATOMIC where the effect is written in the store's own transaction, and GUARDED where it is\n"
            "outside, under a lease, a fencing token and a stable key.\n"
            "\n"
            "Examples\n"
            "  semel status --store sqlite:shop.db\n"
            "  semel status --consumer billing --json --store sqlite:shop.db",
    .run = run,
};
