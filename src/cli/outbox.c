/* SPDX-License-Identifier: MIT
 *
 * outbox.c: the command `semel outbox`: ls, show, retry, discard; a skin on ops/outbox.c: it reads options, asks for
 * confirmation, and prints.
 *
 * Invariants: nothing of an event reaches a terminal as it is, but with --payload, and then only text. A text that was
 * cut says so. A command in bulk stops between two events.
 */
#include "base/clock.h"
#include "base/error.h"
#include "cli/cli.h"
#include "ops/ops.h"

/* ---- options ------------------------------------------------------------------------------------- */

#define FILTER_OPTIONS                                                                                         \
    {"status", 's', "STATUS...", "only in these: a name, or several with commas between"},                     \
        {"dead", 0, NULL, "the same as --status dead"},                                                        \
        {"aside", 0, NULL, "the same as --status waiting,publishing,failed,dead"},                             \
        {"aggregatetype", 0, "TYPE", "only of aggregates of this type"},                                       \
        {"aggregateid", 0, "ID", "only of aggregates with this id"}, {"type", 0, "TYPE", "only of this type"}, \
    {                                                                                                          \
        "destination", 0, "NAME", "only if the event itself names this destination"                            \
    }

static const char *const no_names[] = {NULL};
static const char *const text_filters[] = {"status", "aggregatetype", "aggregateid", "type", "destination", NULL};
static const char *const flag_filters[] = {"dead", "aside", NULL};
static const struct cli_filter filters = {no_names, text_filters, flag_filters};

static int read_query(const struct cli_args *args, bool pages, struct semel_event_query *ret)
{
    struct semel_option options[CLI_FILTER_MAX];
    struct semel_error err = {0};
    size_t n;
    int code = cli_filter_read(args, &filters, pages, options, &n);
    if (code == CLI_OK && semel__ops_event_query(options, n, ret, &err) != SEMEL_OK)
        code = cli_fail(CLI_USAGE, "--%s", err.text);
    return code;
}

/* ---- ls ------------------------------------------------------------------------------------------ */

enum column { ID, STATUS, AGGREGATETYPE, AGGREGATEID, TYPE, DESTINATION, ATTEMPTS, ERROR, CREATED, DUE, COLUMNS };

static const struct cli_column columns[COLUMNS] = {
    [ID] = {"id", CLI_TEXT, false},
    [STATUS] = {"status", CLI_STATUS, false},
    [AGGREGATETYPE] = {"aggregatetype", CLI_TEXT, true},
    [AGGREGATEID] = {"aggregateid", CLI_TEXT, true},
    [TYPE] = {"type", CLI_TEXT, true},
    [DESTINATION] = {"destination", CLI_TEXT, true},
    [ATTEMPTS] = {"attempts", CLI_NUMBER, false},
    [ERROR] = {"error", CLI_TEXT, true},
    [CREATED] = {"created", CLI_TIME, false},
    [DUE] = {"due", CLI_TIME, false},
};

static struct semel_str cell(size_t column, const void *ctx, size_t i, int64_t *ret_number)
{
    const struct semel_event_row *row = &((const struct semel_events *)ctx)->rows[i];
    const struct semel_str texts[COLUMNS] = {
        [ID] = row->id,
        [STATUS] = semel__str(semel__event_status_name(row->status)),
        [AGGREGATETYPE] = row->aggregatetype,
        [AGGREGATEID] = row->aggregateid,
        [TYPE] = row->type,
        [DESTINATION] = row->destination,
        [ERROR] = row->error,
    };
    const int64_t numbers[COLUMNS] = {[ATTEMPTS] = row->attempts, [CREATED] = row->created_us, [DUE] = row->due_us};
    *ret_number = numbers[column];
    return texts[column];
}

static void list_json(struct semel_buf *buf, const void *events)
{
    semel__ops_json_events(buf, events);
}

static int list(struct cli *cli, const struct cli_args *args, struct semel_ops *ops,
                const struct semel_event_query *query)
{
    struct semel_error err = {0};
    struct semel_events events;
    semel_status status = semel__ops_events(ops, query, &events, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "listing the outbox");
    int code = cli_rows_print(cli,
                              &(struct cli_rows){columns, COLUMNS, cell, &events, events.n, "no events", list_json});
    if (events.more)
        cli_filter_next_number(args, &filters, "outbox ls", query->limit, events.rows[events.n - 1].seq);
    return code;
}

static int run_ls(struct cli *cli, const struct cli_args *args)
{
    struct semel_event_query query;
    struct semel_ops ops;
    int code = read_query(args, true, &query);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    code = list(cli, args, &ops, &query);
    cli_ops_close(&ops);
    return code;
}

static const struct cli_option ls_options[] = {
    FILTER_OPTIONS,
    {"limit", 'n', "N", "at most N lines (default 50, at most 10000)"},
    {"after", 0, "SEQ", "the next page: only events with a higher number"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

static const struct cli_command ls = {
    .name = "ls",
    .summary = "list events that are not published yet, by their numbers",
    .operands = "",
    .options = ls_options,
    .help =
        "Events are created until a relay publishes them. Those that cannot go now stand aside: waiting (behind an\n"
        "earlier event of their aggregate, or for a destination), publishing, failed (tried again later) or dead\n"
        "(not tried again by itself). Published events are listed with --status published where the relay keeps\n"
        "them.\n"
        "\n"
        "Examples:\n"
        "  semel outbox ls --dead\n"
        "  semel outbox ls --aside --aggregatetype order --aggregateid 17",
    .run = run_ls,
};

/* ---- show ---------------------------------------------------------------------------------------- */

static void say_row(const struct cli *cli, const void *facts)
{
    const struct semel_event_facts *f = facts;
    const struct semel_event_row *row = f->row;
    cli_field(cli, "id", row->id);
    cli_field(cli, "status", semel__str(semel__event_status_name(row->status)));
    cli_field(cli, "aggregatetype", row->aggregatetype);
    cli_field(cli, "aggregateid", row->aggregateid);
    cli_field(cli, "type", row->type);
    cli_field(cli, "destination", row->destination);
    cli_say(cli, "%-14s%lld (shard %lld)", "seq", (long long)row->seq, (long long)row->shard);
    cli_say(cli, "%-14s%lld%s", "attempts", (long long)row->attempts, row->alone ? ", is sent alone" : "");
    cli_field(cli, "error", row->error);
    cli_field_when(cli, "created", row->created_us, f->now_us);
    cli_field_when(cli, "updated", row->updated_us, f->now_us);
    cli_field_when(cli, "due", row->due_us, f->now_us);
    cli_field_when(cli, "published", row->sent_us, f->now_us);
    cli_field(cli, "relay", f->place.relay_owner);
    cli_field_when(cli, "lease until", f->place.lease_until_us, f->now_us);
    cli_field(cli, "traceparent", row->traceparent);
    cli_field(cli, "headers", row->headers);
    if (row->bytes == SEMEL_NONE)
        cli_say(cli, "%-14snone: a tombstone", "payload");
    else
        cli_field_payload(cli, row->payload);
    cli_field_acts(cli, f->acts, f->n_acts, true);
}

static void row_json(struct semel_buf *buf, const void *facts)
{
    semel__ops_json_event(buf, facts);
}

static void explain(const void *facts, struct semel_buf *why, struct semel_buf *next)
{
    semel__explain_event(facts, why, next);
}

static int print_payload(const struct semel_event_row *row)
{
    if (row->bytes == SEMEL_NONE)
        return cli_fail(CLI_REFUSED, "this event has no payload: it is a tombstone");
    return cli_payload_print(row->payload);
}

static int run_show(struct cli *cli, const struct cli_args *args)
{
    const char *id = cli_operand(args, 0);
    struct semel_event_facts facts;
    struct semel_error err = {0};
    struct semel_ops ops;
    if (cli_flag(args, "payload") && cli->json)
        return cli_fail(CLI_USAGE, "--payload writes the bytes as they are, and --json cannot; give one of them");
    int code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    semel_status status = semel__ops_event(&ops, semel__str(id), &facts, &err);
    if (status != SEMEL_OK) {
        code = cli_fail_name(status, &err, "looking for the event");
    } else if (facts.row == NULL) {
        code = cli_fail(CLI_NOTHING, "there is no event '%s': it was published or discarded, or never was", id);
        cli_acts_fail(facts.acts, facts.n_acts);
    } else {
        code = cli_flag(args, "payload")
                   ? print_payload(facts.row)
                   : cli_shown_print(cli, &(struct cli_shown){&facts, row_json, say_row, explain});
    }
    cli_ops_close(&ops);
    return code;
}

static const struct cli_option show_options[] = {
    {"payload", 0, NULL, "write the payload alone, byte for byte"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

static const struct cli_command show_command = {
    .name = "show",
    .summary = "show one event, and say why it is not going",
    .operands = "ID",
    .operands_min = 1,
    .operands_max = 1,
    .options = show_options,
    .help = "Shows the row, what operators did to it, and then in words why it is not published yet and what would\n"
            "publish it.\n"
            "\n"
            "Example:\n"
            "  semel outbox show 01890a5d-ac96-774b-bcce-b302099a8057",
    .run = run_show,
};

/* ---- retry, discard ------------------------------------------------------------------------------ */

struct acting {
    struct cli *cli;
    const struct cli_args *args;
    struct semel_ops ops;
    struct semel_instruction given;
    const struct semel_str *ids;
    struct semel_event_answer *answers;
    size_t answered;
};

static int one(void *ctx, size_t i)
{
    struct acting *a = ctx;
    struct semel_error err = {0};
    struct semel_event_answer *ret = &a->answers[a->answered];
    semel_status status = semel__ops_event_command(&a->ops, &a->given, a->ids[i], cli_flag(a->args, "dry-run"), ret,
                                                   &err);
    if (status != SEMEL_OK)
        return cli_fail_name(status, &err, semel__command_name(a->given.kind));
    a->answered++;
    const bool done = ret->kind == SEMEL_DID || ret->kind == SEMEL_WOULD;
    return cli_answer(a->cli, done, ret->judged == SEMEL_EVENT_NO_SUCH, ret->id, ret->text);
}

static void answers_json(struct semel_buf *json, const void *ctx)
{
    const struct acting *a = ctx;
    semel__ops_json_event_answers(json, a->answers, a->answered);
}

static int each(struct acting *a, const struct semel_str *ids, size_t n)
{
    a->ids = ids;
    a->answers = semel__arena_alloc(&a->cli->arena, n, sizeof *a->answers);
    return a->answers != NULL ? cli_each(a->cli, n, one, answers_json, a) : cli_fail(CLI_FAILED, "out of memory");
}

static int act_on_operands(struct acting *a)
{
    const size_t n = cli_n(a->args);
    struct semel_str *ids = semel__arena_alloc(&a->cli->arena, n, sizeof *ids);
    if (ids == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++)
        ids[i] = semel__str(cli_operand(a->args, i));
    return each(a, ids, n);
}

/* Counts and shows the events that match now, and asks for confirmation; then commands each by itself. An event that
 * comes later, or has changed so that the command does not fit it any more, is left alone. */
static int act_on_filter(struct acting *a)
{
    struct semel_event_query query;
    struct semel_events events;
    struct semel_error err = {0};
    int code = read_query(a->args, false, &query);
    if (code == CLI_OK && !query.statuses_given)
        code = cli_fail(CLI_USAGE, "name events, or say which: --dead, or --status with a list; see semel outbox %s -h",
                        semel__command_name(a->given.kind));
    if (code != CLI_OK)
        return code;
    query.limit = SEMEL_LIST_MAX;
    semel_status status = semel__ops_events(&a->ops, &query, &events, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "counting what matches");
    if (events.n == 0)
        return cli_fail(CLI_NOTHING, "no event matches");
    struct semel_str *ids = semel__arena_alloc(&a->cli->arena, events.n, sizeof *ids);
    if (ids == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < events.n; i++)
        ids[i] = events.rows[i].id;
    cli_say(a->cli, "%zu event%s match%s; the first: %.*s", events.n, CLI_S(events.n), events.n == 1 ? "es" : "",
            (int)ids[0].n, ids[0].p);
    if (!cli_flag(a->args, "dry-run"))
        code = cli_confirm(a->args, "%s %zu event%s?", semel__command_name(a->given.kind), events.n, CLI_S(events.n));
    if (code == CLI_OK)
        code = each(a, ids, events.n);
    if (events.more)
        cli_fail(0, "more events match than the %d that are taken at a time: give the command again", SEMEL_LIST_MAX);
    return code;
}

static int run(struct cli *cli, const struct cli_args *args, enum semel_command_kind kind)
{
    struct acting a = {.cli = cli, .args = args, .given.kind = kind};
    const char *chooses = cli_filter_given(args, &filters);
    if (cli_n(args) > 0 && chooses != NULL)
        return cli_fail(CLI_USAGE, "--%s chooses by itself: give ids or filters, not both", chooses);
    int code = cli_instruction_read(args, &a.given);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, true, &a.ops);
    if (code != CLI_OK)
        return code;
    code = cli_n(args) > 0 ? act_on_operands(&a) : act_on_filter(&a);
    cli_ops_close(&a.ops);
    return code;
}

static int run_retry(struct cli *cli, const struct cli_args *args)
{
    return run(cli, args, SEMEL_COMMAND_RETRY);
}

static int run_discard(struct cli *cli, const struct cli_args *args)
{
    return run(cli, args, SEMEL_COMMAND_DISCARD);
}

static const struct cli_option act_options[] = {
    CLI_REASON_OPTIONS, FILTER_OPTIONS,        {"yes", 'y', NULL, "in bulk: do not ask"},
    CLI_STORE_OPTION,   {NULL, 0, NULL, NULL},
};

static const struct cli_command retry = {
    .name = "retry",
    .summary = "have events published at once, under their own ids",
    .operands = "[ID]...",
    .operands_max = 10000,
    .options = act_options,
    .help = "An event that is dead, failed or waiting is made due now, with a new budget of attempts. One that waits\n"
            "behind an earlier event of its aggregate is refused, as only that one can be sent next. With filters\n"
            "instead of ids, what matches is counted first, at most 10000 events at a time.\n"
            "\n"
            "Examples:\n"
            "  semel outbox retry 01890a5d-ac96-774b-bcce-b302099a8057 --reason 'the topic is there now'\n"
            "  semel outbox retry --dead --type OrderPaid --reason 'ticket 811' --yes",
    .run = run_retry,
};

static const struct cli_command discard = {
    .name = "discard",
    .summary = "remove events for good, before they are published",
    .operands = "[ID]...",
    .operands_max = 10000,
    .options = act_options,
    .help = "The event is deleted and will not be published; the next event of its aggregate goes on. An event that a\n"
            "relay is publishing is refused. One that is still created may have been read by a relay already, which\n"
            "then publishes it all the same. The payload is gone: semel outbox show ID --payload writes it to a file\n"
            "before. With filters instead of ids, what matches is counted first, at most 10000 events at a time.\n"
            "\n"
            "Examples:\n"
            "  semel outbox discard 01890a5d-ac96-774b-bcce-b302099a8057 --reason 'test data'\n"
            "  semel outbox discard --dead --aggregatetype cart --reason 'nobody reads them' --yes",
    .run = run_discard,
};

static const struct cli_command *const children[] = {
    &ls, &show_command, &retry, &discard, NULL,
};

const struct cli_command cli_outbox = {
    .name = "outbox",
    .summary = "list, explain, retry and discard events that are to be published",
    .operands = "COMMAND",
    .help = "semel outbox ls --dead lists events that no relay tries any more, and semel outbox show ID says in words\n"
            "why one is not going.",
    .children = children,
};
