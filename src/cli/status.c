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
#include "core/look.h"
#include "core/state.h"
#include "store/migrations.h"
#include "ops/ops.h"

#define CAP 100000
#define CONSUMERS_MAX 1000
#define DAMAGE_LOOK 1000

/* Everything that is told, read before anything is printed. */
struct view {
    const char *url;   /* as it may be shown */
    const char *given; /* by the option, so that a command to be pasted must have it too */
    const struct cli_store_kind *kind;
    int64_t now_us;
    struct semel_str *names;
    size_t n_names;
    const char **guarantees; /* of each name */
    struct semel_count *counts;
    size_t n_counts;
    int64_t events, events_since_us;
    size_t damaged;
    int64_t dead, unknown;
    int64_t wal_bytes;
    char about[256]; /* the database */
};

/* ---- reading ------------------------------------------------------------------------------------- */

/* The consumers' names: all of them, or the one that was asked for. */
static semel_status read_names(struct semel_store *store, struct semel_str only, struct semel_arena *arena,
                               struct view *view, struct semel_error *err)
{
    struct semel_str *one = semel__arena_alloc(arena, 1, sizeof(*one));
    if (!semel__str_given(only))
        return semel_store_consumers(store, only, CONSUMERS_MAX, arena, &view->names, &view->n_names, err);
    if (one == NULL)
        return semel__fail_memory(err);
    *one = only;
    view->names = one;
    view->n_names = 1;
    return SEMEL_OK;
}

static semel_status read_guarantees(struct semel_store *store, struct semel_arena *arena, struct view *view,
                                    struct semel_error *err)
{
    view->guarantees = semel__arena_alloc(arena, view->n_names + 1, sizeof(*view->guarantees));
    if (view->guarantees == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < view->n_names; i++) {
        struct semel_policy policy;
        struct semel_str settings = {0};
        semel_status status = semel_store_consumer_get(store, view->names[i], arena, &settings, err);
        if (status != SEMEL_OK)
            return status;
        bool readable = semel__policy_read(view->names[i], settings, &policy, NULL, err) == SEMEL_OK;
        view->guarantees[i] = readable ? semel__ops_guarantee(&policy) : "DAMAGED";
    }
    return SEMEL_OK;
}

/* Among the rows that may still change, which somebody waits for. */
static semel_status read_damage(struct semel_store *store, struct semel_str only, struct semel_arena *arena,
                                struct view *view, struct semel_error *err)
{
    struct semel_filter filter = {.consumer = only, .received_before_us = SEMEL_NONE, .received_after_us = SEMEL_NONE};
    struct semel_row *rows = NULL;
    size_t n = 0;
    for (int state = SEMEL_STATE_PROCESSING; state < SEMEL_STATE_COUNT; state++)
        if (!semel__state_final((enum semel_state)state))
            filter.states |= 1u << state;
    return semel_look_list(store, &filter, SEMEL_NONE, DAMAGE_LOOK, false, arena, &rows, &n, &view->damaged, err);
}

static semel_status read_view(struct semel_store *store, struct semel_str only, struct semel_arena *arena,
                              struct view *view, struct semel_error *err)
{
    semel_status status = read_names(store, only, arena, view, err);
    if (status == SEMEL_OK)
        status = read_guarantees(store, arena, view, err);
    if (status == SEMEL_OK)
        status = semel_look_counts(store, only, CAP, CAP, arena, &view->counts, &view->n_counts, err);
    if (status == SEMEL_OK)
        status = semel_look_outbox(store, CAP, &view->events, &view->events_since_us, err);
    if (status == SEMEL_OK)
        status = read_damage(store, only, arena, view, err);
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

static void add_count(struct cli_table *table, const struct view *view, size_t name, const struct semel_count *count)
{
    char number[32] = "0";
    if (count != NULL)
        snprintf(number, sizeof(number), "%lld%s", (long long)count->n, count->capped ? "+" : "");
    cli_table_text(table, view->names[name]);
    cli_table_text(table, semel__str(view->guarantees[name]));
    cli_table_text(table, semel__str(count != NULL ? semel__state_name(count->state) : ""));
    cli_table_text(table, semel__str(number));
    add_ago(table, count != NULL ? count->oldest_us : SEMEL_NONE, view->now_us);
    add_ago(table, count != NULL ? count->next_us : SEMEL_NONE, view->now_us);
}

static int print_counts(const struct cli *cli, const struct view *view)
{
    struct cli_table *table = cli_table_new(cli, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; table != NULL && i < view->n_names; i++) {
        bool any = false;
        for (size_t k = 0; k < view->n_counts; k++)
            if (semel__str_eq(view->counts[k].consumer, view->names[i])) {
                add_count(table, view, i, &view->counts[k]);
                any = true;
            }
        if (!any)
            add_count(table, view, i, NULL);
    }
    return cli_table_print(table, NULL);
}

static void print_warnings(struct cli *cli, const struct view *view)
{
    if (view->dead > 0)
        cli_say(cli, "warning: %lld dead letters; %s", (long long)view->dead,
                cli_again(cli, "inbox ls --dead", view->given));
    if (view->unknown > 0)
        cli_say(cli, "warning: %lld messages whose effect is unknown; %s", (long long)view->unknown,
                cli_again(cli, "inbox ls --status unknown", view->given));
    if (view->damaged > 0)
        cli_say(cli, "warning: %zu damaged rows, which cannot run; %s", view->damaged,
                cli_again(cli, "inbox ls", view->given));
}

static int print_view(struct cli *cli, const struct view *view)
{
    char since[40];
    cli_say(cli, "store   %s, schema %zu", view->url, *view->kind->n);
    cli_say(cli, "        %s", view->about);
    if (view->wal_bytes > 0)
        cli_say(cli, "        write-ahead log: %lld bytes", (long long)view->wal_bytes);
    cli_ago(view->events_since_us, view->now_us, since, sizeof(since));
    cli_say(cli, "outbox  %lld%s events%s%s", (long long)view->events, view->events >= CAP ? "+" : "",
            since[0] != '\0' ? ", the oldest " : "", since);
    cli_say(cli, "%s", "");
    int code = print_counts(cli, view);
    if (view->n_names == 0)
        cli_say(cli, "there are no consumers yet");
    if (view->n_names == CONSUMERS_MAX)
        cli_say(cli, "only the first %d consumers are shown; --consumer NAME shows another", CONSUMERS_MAX);
    print_warnings(cli, view);
    return code;
}

/* ---- for programs -------------------------------------------------------------------------------- */

static void append(struct semel_buf *array, struct semel_object *element)
{
    struct semel_str text = semel__object_end(element);
    semel__buf_addz(array, array->n > 1 ? ",\n" : "");
    semel__buf_add(array, text.p, text.n);
    array->failed |= element->buf.failed;
    semel__object_done(element);
}

static void json_states(struct semel_object *consumer, const struct view *view, struct semel_str name)
{
    struct semel_buf array;
    semel__buf_init(&array, 1 << 20);
    semel__buf_addz(&array, "[");
    for (size_t i = 0; i < view->n_counts; i++) {
        const struct semel_count *count = &view->counts[i];
        struct semel_object state;
        if (!semel__str_eq(count->consumer, name))
            continue;
        semel__object_init(&state);
        semel__object_text(&state, "status", semel__str(semel__state_name(count->state)));
        semel__object_number(&state, "messages", count->n);
        semel__object_bool(&state, "at_least", count->capped);
        semel__object_time(&state, "oldest", count->oldest_us);
        semel__object_time(&state, "next", count->next_us);
        append(&array, &state);
    }
    semel__buf_addz(&array, "]");
    consumer->buf.failed |= array.failed;
    semel__object_raw(consumer, "statuses", semel__buf_str(&array));
    semel__buf_done(&array);
}

static void json_consumers(struct semel_object *whole, const struct view *view)
{
    struct semel_buf array;
    semel__buf_init(&array, (size_t)64 << 20);
    semel__buf_addz(&array, "[");
    for (size_t i = 0; i < view->n_names; i++) {
        struct semel_object consumer;
        semel__object_init(&consumer);
        semel__object_text(&consumer, "consumer", view->names[i]);
        semel__object_text(&consumer, "guarantee", semel__str(view->guarantees[i]));
        json_states(&consumer, view, view->names[i]);
        append(&array, &consumer);
    }
    semel__buf_addz(&array, "]");
    whole->buf.failed |= array.failed;
    semel__object_raw(whole, "consumers", semel__buf_str(&array));
    semel__buf_done(&array);
}

static int print_json(const struct view *view)
{
    struct semel_object whole, outbox;
    semel__object_init(&whole);
    semel__object_init(&outbox);
    semel__object_text(&whole, "store", semel__str(view->url));
    semel__object_number(&whole, "schema", (int64_t)*view->kind->n);
    semel__object_text(&whole, view->kind->name, semel__str(view->about));
    semel__object_number(&whole, "wal_bytes", view->wal_bytes);
    semel__object_time(&whole, "now", view->now_us);
    semel__object_number(&outbox, "events", view->events);
    semel__object_bool(&outbox, "at_least", view->events >= CAP);
    semel__object_time(&outbox, "oldest", view->events_since_us);
    semel__object_raw(&whole, "outbox", semel__object_end(&outbox));
    whole.buf.failed |= outbox.buf.failed;
    semel__object_done(&outbox);
    json_consumers(&whole, view);
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
    struct semel_store *store = url != NULL ? cli_store_open(args, false, &code) : NULL;
    if (store == NULL)
        return code;
    struct view view = {.url = cli_store_shown(url),
                        .given = cli_value(args, "store"),
                        .kind = cli_store_kind_of(url),
                        .now_us = semel__now(&semel__clock_real)};
    semel_status status = read_view(store, only, &cli->arena, &view, &err);
    view.wal_bytes = cli_store_wal_bytes(store);
    cli_store_about(store, view.about, sizeof(view.about));
    semel_store_close(store);
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
    .summary = "show what is in a store: messages by consumer and status, the outbox, what needs a person",
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
