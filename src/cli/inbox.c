/* SPDX-License-Identifier: MIT
 *
 * inbox.c: the command `semel inbox`: ls, show, export, retry, discard, resolve; a skin on ops: it reads options, asks
 * for confirmation, keeps signals until a bulk command may stop, and prints.
 *
 * Invariants: nothing of a message reaches a terminal as it is, but with --payload, and then only text. A text that was
 * cut says so. Signals are kept, not handled: a command stops between two messages and never within one.
 */
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "cli/cli.h"
#include "ops/ops.h"
#include "base/json.h"

#define LINES_MAX ((size_t)120 << 20) /* of the whole file */
#define GROUPS_SHOWN 20
#define REPORTED_MAX 100 /* messages of a bulk command that were not done, by name */

/* ---- options ------------------------------------------------------------------------------------- */

#define WHOSE_OPTIONS                                                           \
    {"consumer", 'c', "NAME", "only of this consumer"},                         \
    {                                                                           \
        "source", 0, "NAME", "only of this source (\"\" for those without one)" \
    }
#define FILTER_OPTIONS                                                                                             \
    WHOSE_OPTIONS, {"status", 's', "STATUS...", "only in these: a name, or several with commas between"},          \
        {"dead", 0, NULL, "the same as --status dead"}, {"type", 0, "TYPE", "only of this type"},                  \
        {"key", 'k', "KEY", "only of this order key"}, {"error", 0, "TEXT", "only if the last error contains it"}, \
        {"class", 0, "CLASS", "only if the last error is of this class"},                                          \
        {"older", 0, "DURATION", "received longer ago than this, e.g. 2h"},                                        \
    {                                                                                                              \
        "newer", 0, "DURATION", "received within this time, e.g. 15m"                                              \
    }

static const char *const whose[] = {"consumer", "source", NULL};
static const char *const text_filters[] = {"status", "type", "key", "error", "class", "older", "newer", NULL};
static const char *const flag_filters[] = {"dead", NULL};
static const struct cli_filter filters = {whose, text_filters, flag_filters};

static struct semel_str value(const struct cli_args *args, const char *name)
{
    return semel__str(cli_value(args, name));
}

/* 0, or an exit code. */
static int read_query(const struct cli_args *args, bool pages, struct semel_query *ret)
{
    struct semel_option options[CLI_FILTER_MAX];
    struct semel_error err = {0};
    size_t n;
    int code = cli_filter_read(args, &filters, pages, options, &n);
    if (code == CLI_OK && semel__ops_query(options, n, semel__now(&semel__clock_real), ret, &err) != SEMEL_OK)
        code = cli_fail(CLI_USAGE, "--%s", err.text);
    return code;
}

/* ---- finding one --------------------------------------------------------------------------------- */

static int report_homonyms(const char *id, const struct semel_row *rows, size_t n)
{
    struct semel_buf line;
    int code = cli_fail(CLI_USAGE, "'%s' is the id of %s%zu messages; say which one:", id,
                        n == SEMEL_HOMONYMS_MAX ? "at least " : "", n);
    for (size_t i = 0; i < n; i++) {
        semel__buf_init(&line, 4096);
        semel__buf_addz(&line, "--consumer ");
        semel__put_word(&line, rows[i].consumer);
        semel__buf_addz(&line, " --source ");
        semel__put_word(&line, rows[i].source);
        cli_fail(code, "    %.*s   (%s)", (int)line.n, line.p != NULL ? line.p : "",
                 semel__row_status_name(rows[i].progress.state));
        semel__buf_done(&line);
    }
    return code;
}

static int report_none(const struct cli_args *args, struct semel_ops *ops, const char *id)
{
    struct semel_str consumer = value(args, "consumer"), source = value(args, "source");
    struct semel_buf text;
    int code = cli_fail(CLI_NOTHING, "there is no message '%s'%s", id,
                        semel__str_given(consumer) || semel__str_given(source) ? " of that consumer and source" : "");
    semel__buf_init(&text, SEMEL_EXPLAIN_MAX);
    if (semel__ops_purged(ops, consumer, source, semel__str(id), &text))
        cli_fail(code, "%.*s", (int)text.n, text.p);
    semel__buf_done(&text);
    return code;
}

/* The one message of that id, --consumer and --source; NULL and 0: its row cannot be read. Else an exit code. */
static int find(const struct cli_args *args, struct semel_ops *ops, const char *id, bool with_payload,
                struct semel_row **ret_row)
{
    struct semel_error err = {0};
    struct semel_find find;
    *ret_row = NULL;
    semel_status status = semel__ops_find(ops, value(args, "consumer"), value(args, "source"), semel__str(id),
                                          with_payload, &find, &err);
    if (status != SEMEL_OK)
        return cli_fail_name(status, &err, "looking for the message");
    switch (find.found) {
    case SEMEL_FOUND_NONE:
        return report_none(args, ops, id);
    case SEMEL_FOUND_SEVERAL:
        return report_homonyms(id, find.rows, find.n);
    case SEMEL_FOUND:
        *ret_row = find.rows;
        break;
    case SEMEL_FOUND_DAMAGED:
        break;
    }
    return CLI_OK;
}

/* ---- ls: a page ---------------------------------------------------------------------------------- */

enum column { ID, CONSUMER, SOURCE, TYPE, STATUS, ATTEMPTS, CLASS, ERROR, KEY, VERSION, RECEIVED, DUE, COLUMNS };

static const struct cli_column columns[COLUMNS] = {
    [ID] = {"id", CLI_TEXT, false},
    [CONSUMER] = {"consumer", CLI_TEXT, false},
    [SOURCE] = {"source", CLI_TEXT, false},
    [TYPE] = {"type", CLI_TEXT, true},
    [STATUS] = {"status", CLI_STATUS, false},
    [ATTEMPTS] = {"attempts", CLI_NUMBER, false},
    [CLASS] = {"class", CLI_TEXT, false},
    [ERROR] = {"error", CLI_TEXT, true},
    [KEY] = {"key", CLI_TEXT, false},
    [VERSION] = {"version", CLI_NUMBER, false},
    [RECEIVED] = {"received", CLI_TIME, false},
    [DUE] = {"due", CLI_TIME, false},
};

static struct semel_str cell(size_t column, const void *ctx, size_t i, int64_t *ret_number)
{
    const struct semel_row *row = &((const struct semel_list *)ctx)->rows[i];
    const char *cls = row->progress.error_class != SEMEL_CLASS_NONE ? semel__class_name(row->progress.error_class)
                                                                    : NULL;
    const struct semel_str texts[COLUMNS] = {
        [ID] = row->id,
        [CONSUMER] = row->consumer,
        [SOURCE] = row->source,
        [TYPE] = row->type,
        [STATUS] = semel__str(semel__row_status_name(row->progress.state)),
        [KEY] = row->order_key,
        [CLASS] = semel__str(cls),
        [ERROR] = row->progress.error_text,
    };
    const int64_t numbers[COLUMNS] = {
        [ATTEMPTS] = row->progress.attempts,
        [VERSION] = row->version,
        [RECEIVED] = row->received_us,
        [DUE] = row->progress.due_us,
    };
    *ret_number = numbers[column];
    return texts[column];
}

static void list_json(struct semel_buf *buf, const void *list)
{
    semel__ops_json_list(buf, list);
}

static int list(struct cli *cli, const struct cli_args *args, struct semel_ops *ops, const struct semel_query *query)
{
    struct semel_error err = {0};
    struct semel_list list;
    semel_status status = semel__ops_list(ops, query, &list, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "listing the inbox");
    int code = cli_rows_print(cli, &(struct cli_rows){columns, COLUMNS, cell, &list, list.n, "no messages", list_json});
    if (list.damaged > 0)
        cli_fail(code, "%zu row%s cannot be read as Semel's and %s not listed", list.damaged, CLI_S(list.damaged),
                 list.damaged == 1 ? "is" : "are");
    if (list.more)
        cli_filter_next_number(args, &filters, "inbox ls", query->limit, list.rows[list.n - 1].arrival);
    return code;
}

/* ---- ls: groups ---------------------------------------------------------------------------------- */

static struct semel_str group_cell(size_t column, const void *ctx, size_t i, int64_t *ret_number)
{
    const struct semel_group *group = &((const struct semel_groups *)ctx)->groups[i];
    const struct semel_str texts[] = {{0},
                                      group->consumer,
                                      semel__str(semel__row_status_name(group->state)),
                                      group->error_class,
                                      group->error_text,
                                      {0},
                                      {0},
                                      group->id};
    *ret_number = column == 0 ? group->n : column == 5 ? group->first_us : group->last_us;
    return texts[column];
}

static void groups_json(struct semel_buf *buf, const void *groups)
{
    semel__ops_json_groups(buf, groups);
}

/* The first `n` of them. */
static int print_groups(const struct cli *cli, const struct semel_groups *groups, size_t n)
{
    static const struct cli_column heads[] = {
        {"count", CLI_NUMBER, false}, {"consumer", CLI_TEXT, false}, {"status", CLI_STATUS, false},
        {"class", CLI_TEXT, false},   {"error", CLI_TEXT, true},     {"oldest", CLI_TIME, false},
        {"newest", CLI_TIME, false},  {"example", CLI_TEXT, false},
    };
    return cli_rows_print(cli, &(struct cli_rows){heads, sizeof heads / sizeof heads[0], group_cell, groups, n,
                                                  "no messages", groups_json});
}

static int group(struct cli *cli, struct semel_ops *ops, const struct semel_query *query)
{
    struct semel_error err = {0};
    struct semel_groups groups;
    semel_status status = semel__ops_groups(ops, query, &groups, &err);
    if (status == SEMEL_INVALID && query->after != SEMEL_NONE)
        return cli_fail(CLI_USAGE, "--%s", err.text);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "grouping the inbox");
    int code = print_groups(cli, &groups, groups.n);
    if (groups.capped)
        cli_fail(code, "only the first %d messages that match were read", SEMEL_GROUPED_MAX);
    return code;
}

static int run_ls(struct cli *cli, const struct cli_args *args)
{
    struct semel_query query;
    struct semel_ops ops;
    const char *by = cli_value(args, "group-by");
    if (by != NULL && strcmp(by, "error") != 0)
        return cli_fail(CLI_USAGE, "--group-by is '%s'; it must be error", by);
    int code = read_query(args, true, &query);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    code = by != NULL ? group(cli, &ops, &query) : list(cli, args, &ops, &query);
    cli_ops_close(&ops);
    return code;
}

static const struct cli_option ls_options[] = {
    FILTER_OPTIONS,
    {"group-by", 0, "error", "count by consumer, status, class and text of the last error"},
    {"limit", 'n', "N", "at most N lines (default 50, at most 10000)"},
    {"after", 0, "ARRIVAL", "the next page: only what arrived after this"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

static const struct cli_command ls = {
    .name = "ls",
    .summary = "list messages, oldest first",
    .operands = "",
    .options = ls_options,
    .help = "Examples:\n"
            "  semel inbox ls --dead\n"
            "  semel inbox ls --consumer billing --status failed,unknown --older 1h\n"
            "  semel inbox ls --dead --group-by error",
    .run = run_ls,
};

/* ---- export -------------------------------------------------------------------------------------- */

#define EXPORT_NAMES 100000
#define EXPORT_PAGE 50
#define EXPORT_PAGE_MOST 1000 /* where messages are small */
#define EXPORT_SMALL ((size_t)4 << 20)

/* As text, unless it is none, or its escapes make more of it than `semel send` takes in a line. */
static void put_payload(struct semel_object *object, struct semel_str payload)
{
    struct semel_buf text;
    const size_t before = object->buf.n;
    if (semel__utf8_valid(payload)) {
        semel__object_text(object, "payload", payload);
        if (object->buf.n - before <= CLI_PAYLOAD_TEXT_MAX)
            return;
        object->buf.n = before;
    }
    semel__buf_init(&text, CLI_JSON_MAX);
    semel__base64_put(&text, payload);
    semel__object_text(object, "payload_base64", semel__buf_str(&text));
    object->buf.failed |= text.failed;
    semel__buf_done(&text);
}

/* A line that `semel send --lines` takes. The payload is a string, so that it comes back byte for byte. */
static void put_line(struct semel_object *object, const struct semel_row *row)
{
    const struct {
        const char *name;
        struct semel_str value;
    } texts[] = {{"id", row->id}, {"source", row->source}, {"type", row->type}, {"order_key", row->order_key}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].value.n > 0)
            semel__object_text(object, texts[i].name, texts[i].value);
    if (row->version != SEMEL_NONE)
        semel__object_number(object, "version", row->version);
    if (row->message_time_us != SEMEL_NONE)
        semel__object_time(object, "time", row->message_time_us);
    if (semel__str_given(row->headers))
        semel__object_raw(object, "headers", row->headers);
    put_payload(object, row->payload);
}

/* Exit code of one row: it is printed, or why it is not. */
static int export_row(const struct semel_row *row)
{
    struct semel_object object;
    char id[80];
    semel__str_show(id, sizeof id, row->id);
    if (!semel__str_given(row->payload))
        return cli_fail(CLI_FAILED, "%s: its payload is not kept; it is left out", id);
    if (!semel__utf8_valid(row->id))
        return cli_fail(CLI_FAILED, "%s: its id is not text; it is left out: semel inbox show --payload has it", id);
    semel__object_init(&object);
    put_line(&object, row);
    return cli_object_print(&object);
}

/* After a page whose payloads have so many bytes. */
static size_t next_page(size_t page, size_t bytes)
{
    const size_t most = bytes < EXPORT_SMALL ? EXPORT_PAGE_MOST : EXPORT_PAGE;
    return 2 * page < most ? 2 * page : most;
}

/* What was exported so far. */
struct exported {
    size_t n, damaged, bytes; /* bytes: of the last page's payloads */
    int code;
};

static semel_status export_page(struct semel_ops *ops, struct semel_walk *walk, size_t page, struct exported *sum,
                                struct semel_error *err)
{
    struct semel_arena arena;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    semel__arena_init(&arena, CLI_JSON_MAX);
    semel_status status = semel_query_walk(ops->store, walk, page, &arena, &rows, &n, &damaged, err);
    sum->bytes = 0;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        int one = export_row(&rows[i]);
        sum->code = sum->code != CLI_OK ? sum->code : one;
        sum->bytes += rows[i].payload.n;
    }
    if (status == SEMEL_OK) {
        sum->n += n;
        sum->damaged += damaged;
    }
    semel__arena_done(&arena);
    return status;
}

/* Payloads may not fit into memory together: a page that cannot be read is begun again with one row, and the pages
 * behind it grow again. Where nobody reads any more, no more is asked for. */
static int export_all(struct semel_ops *ops, const struct semel_query *query)
{
    struct semel_error err = {0};
    struct semel_walk walk;
    struct exported sum = {.code = CLI_OK};
    semel_status status = SEMEL_OK;
    bool failed = false;
    semel_walk_init(&walk, &query->filter, EXPORT_NAMES);
    for (size_t page = EXPORT_PAGE; !failed && !semel_walk_ended(&walk) && ferror(stdout) == 0;) {
        status = export_page(ops, &walk, page, &sum, &err);
        failed = status != SEMEL_OK && page == 1;
        page = status != SEMEL_OK ? 1 : next_page(page, sum.bytes);
    }
    semel_walk_done(&walk);
    if (failed)
        return cli_fail_error(status, &err, "reading the inbox");
    if (sum.damaged > 0)
        return cli_fail(CLI_FAILED, "%zu row%s cannot be read as Semel's and %s left out", sum.damaged,
                        CLI_S(sum.damaged), sum.damaged == 1 ? "is" : "are");
    if (sum.n == 0)
        return cli_fail(CLI_NOTHING, "nothing matches: no message was exported");
    return sum.code;
}

static int run_export(struct cli *cli, const struct cli_args *args)
{
    struct semel_query query;
    struct semel_ops ops;
    if (cli_value(args, "consumer") == NULL)
        return cli_fail(CLI_USAGE, "--consumer is needed: a line does not name it");
    int code = read_query(args, false, &query);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    code = export_all(&ops, &query);
    cli_ops_close(&ops);
    return code;
}

static const struct cli_option export_options[] = {FILTER_OPTIONS, CLI_STORE_OPTION, {NULL, 0, NULL, NULL}};

static const struct cli_command export_command = {
    .name = "export",
    .summary = "print messages with their payloads, one JSON object per line",
    .operands = "",
    .options = export_options,
    .no_json = true,
    .help = "Each line is one that semel send --lines takes: id, source, type, order_key, version, time, headers and "
            "payload,\n"
            "or payload_base64 where it is not text, or is one whose escapes would make the line too long for send.\n"
            "Business keys are not in it. A message whose payload is not kept is named on stderr and left out.\n"
            "Exit code 1: one was left out. 3: nothing matches.\n"
            "\n"
            "Examples:\n"
            "  semel inbox export --consumer billing --dead > dead.jsonl\n"
            "  semel inbox export --consumer billing --status failed | semel send --consumer billing2 --lines",
    .run = run_export,
};

/* ---- show --------------------------------------------------------------------------------------- */

static void field_number(const struct cli *cli, const char *name, int64_t value)
{
    if (value != SEMEL_NONE)
        cli_say(cli, "%-14s%lld", name, (long long)value);
}

static void say_row(const struct cli *cli, const struct semel_ops_facts *f)
{
    const struct semel_row *row = f->row;
    const struct semel_progress *progress = &row->progress;
    char key[SEMEL_STEP_KEY_TEXT];
    cli_field(cli, "id", row->id);
    cli_field(cli, "consumer", row->consumer);
    cli_field(cli, "source", row->source.n > 0 ? row->source : (struct semel_str){0});
    cli_field(cli, "type", row->type);
    cli_field(cli, "status", semel__str(semel__row_status_name(progress->state)));
    if (progress->error_class != SEMEL_CLASS_NONE)
        cli_field(cli, "class", semel__str(semel__class_name(progress->error_class)));
    cli_field(cli, "error", progress->error_text);
    cli_say(cli, "%-14s%d%s", "attempts", progress->attempts, progress->alone ? ", runs alone" : "");
    if (progress->retries > 0)
        cli_say(cli, "%-14s%d, with %d attempt%s before the last one", "retries", progress->retries,
                progress->attempts_before, CLI_S(progress->attempts_before));
    cli_field(cli, "key", row->order_key);
    field_number(cli, "version", row->version);
    cli_field_when(cli, "made", row->message_time_us, f->now_us);
    cli_field_when(cli, "received", row->received_us, f->now_us);
    cli_field_when(cli, "updated", row->updated_us, f->now_us);
    cli_field_when(cli, "finished", progress->processed_us, f->now_us);
    cli_field_when(cli, "due", progress->due_us, f->now_us);
    cli_field(cli, "held by", progress->lease_owner);
    cli_field_when(cli, "held until", progress->lease_until_us, f->now_us);
    cli_field(cli, "outcome", progress->outcome);
    cli_field(cli, "position", row->position);
    cli_field(cli, "traceparent", row->traceparent);
    if (semel__facts_idempotency_key(f, key))
        cli_say(cli, "%-14s%s (Idempotency-Key%s)", "call key", key,
                f->by_file ? "" : " of the step `effect`; of a program's own steps: " SEMEL_OTHER_STEPS);
    field_number(cli, "arrival", row->arrival);
    cli_field(cli, "headers", row->headers);
    if (!row->kept)
        cli_say(cli, "%-14snot kept", "payload");
    else
        cli_field_payload(cli, row->payload);
}

/* Prints the messages that wait for a business key that this one has, or wants like them (A6). */
static void say_waiters(const struct cli *cli, const struct semel_ops_facts *f)
{
    struct semel_buf buf;
    semel__buf_init(&buf, SEMEL_EXPLAIN_MAX);
    size_t n = semel__put_waiters(f, &buf);
    if (n > 0)
        cli_say(cli, "%-14s%.*s", f->row->n_wants > 0 ? "waiters too" : "waiters", (int)buf.n, buf.p);
    semel__buf_done(&buf);
}

static void say_history(const struct cli *cli, const struct semel_ops_facts *f)
{
    const struct semel_history *h = f->history;
    char at[40], who[SEMEL_ID_MAX + 1], text[SEMEL_ERROR_TEXT_MAX + 1], what[64];
    for (size_t i = 0; i < h->n_business; i++)
        cli_field(cli, "business key", h->business[i]);
    for (size_t i = 0; i < f->row->n_wants; i++)
        cli_field(cli, "wanted key", f->row->wants[i]);
    say_waiters(cli, f);
    for (size_t i = 0; i < h->n_tries; i++) {
        cli_time(h->tries[i].at_us, at, sizeof at);
        semel__str_show(who, sizeof who, h->tries[i].worker);
        semel__str_show(what, sizeof what, h->tries[i].cls);
        semel__str_show(text, sizeof text, h->tries[i].text);
        cli_say(cli, "%-14s%d  %s  %s  %s%s%s", i == 0 ? "failed" : "", h->tries[i].attempt, at, who, what,
                text[0] != '\0' ? ": " : "", text);
    }
    cli_field_acts(cli, h->acts, h->n_acts, false);
    for (size_t i = 0; i < h->n_conflicts; i++) {
        cli_time(h->conflicts[i].last_us, at, sizeof at);
        cli_say(cli, "%-14s%lld time%s with another payload, last %s", i == 0 ? "conflicts" : "",
                (long long)h->conflicts[i].n, CLI_S(h->conflicts[i].n), at);
    }
    if (h->more)
        cli_say(cli, "%-14sthere is more than is shown", "");
}

static int print_payload(const struct semel_row *row)
{
    if (!row->kept)
        return cli_fail(CLI_REFUSED, "the payload of this message was not kept");
    return cli_payload_print(row->payload);
}

static void say_all(const struct cli *cli, const void *facts)
{
    say_row(cli, facts);
    say_history(cli, facts);
}

static void row_json(struct semel_buf *buf, const void *facts)
{
    semel__ops_json_message(buf, facts);
}

static void explain(const void *facts, struct semel_buf *why, struct semel_buf *next)
{
    semel__explain(facts, why, next);
}

static int report_damaged(const struct cli_args *args, struct semel_ops *ops, const char *id)
{
    struct semel_buf why, next;
    if (cli_value(args, "consumer") == NULL)
        return cli_fail(CLI_FAILED, "the row of '%s' cannot be read; add its --consumer and --source to see why", id);
    semel__buf_init(&why, SEMEL_EXPLAIN_MAX);
    semel__buf_init(&next, SEMEL_EXPLAIN_MAX);
    semel__ops_damage(ops, value(args, "consumer"), value(args, "source"), semel__str(id), &why, &next);
    struct semel_str lines[] = {semel__buf_str(&why), semel__buf_str(&next)};
    for (size_t i = 0; i < 2; i++)
        cli_fail(CLI_FAILED, "%.*s", (int)lines[i].n, lines[i].p);
    semel__buf_done(&why);
    semel__buf_done(&next);
    return CLI_FAILED;
}

static int show(struct cli *cli, const struct cli_args *args, struct semel_ops *ops)
{
    const char *id = cli_operand(args, 0);
    struct semel_row *row = NULL;
    struct semel_ops_facts facts;
    struct semel_error err = {0};
    int code = find(args, ops, id, true, &row);
    if (code != CLI_OK)
        return code;
    if (row == NULL)
        return report_damaged(args, ops, id);
    if (cli_flag(args, "payload"))
        return print_payload(row);
    semel_status status = semel__ops_facts(ops, row, &facts, &err);
    return status == SEMEL_OK ? cli_shown_print(cli, &(struct cli_shown){&facts, row_json, say_all, explain})
                              : cli_fail_error(status, &err, "reading what is known of the message");
}

static int run_show(struct cli *cli, const struct cli_args *args)
{
    struct semel_ops ops;
    if (cli_flag(args, "payload") && cli->json)
        return cli_fail(CLI_USAGE, "--payload writes the bytes as they are, and --json cannot; give one of them");
    int code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    code = show(cli, args, &ops);
    cli_ops_close(&ops);
    return code;
}

static const struct cli_option show_options[] = {
    WHOSE_OPTIONS,
    {"payload", 0, NULL, "write the payload alone, byte for byte"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

static const struct cli_command show_command = {
    .name = "show",
    .summary = "show one message, and say why it is not running",
    .operands = "ID",
    .operands_min = 1,
    .operands_max = 1,
    .options = show_options,
    .help = "Shows the row, its failed attempts, what operators did to it, and then in words why it is not running and "
            "what\n"
            "would make it run.\n"
            "\n"
            "Examples:\n"
            "  semel inbox show pay-17\n"
            "  semel inbox show pay-17 --consumer billing --payload > pay-17.json",
    .run = run_show,
};

/* ---- retry --payloads: corrected copies, by lines ------------------------------------------------
 *
 * Dead letters whose payloads are corrected, by lines as `semel inbox export` writes them. Of a line only id, source
 * and payload, or payload_base64, are read. Each line is a transaction of its own. A line that is bad, or whose
 * message is not one to be corrected, is named and left alone: the same lines may be given again after an
 * interruption. */

struct lines {
    struct cli *cli;
    const struct cli_args *args;
    struct semel_ops *ops;
    struct semel_instruction given;
    struct cli_progress progress;
    int64_t n, done, refused, bad;
};

/* A string is the payload itself; anything else is kept as the JSON that it is. */
static semel_status read_line(struct lines *run, struct semel_str line, struct semel_str *ret_id,
                              struct semel_str *ret_source, struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_str raw = semel__json_find(line, SEMEL_STR("/payload"));
    enum semel_json_kind kind[3] = {SEMEL_JSON_MISSING, SEMEL_JSON_MISSING, SEMEL_JSON_MISSING};
    semel_status status = semel__json_parse(&json, line, LINES_MAX, err);
    if (status == SEMEL_OK)
        status = semel__json_get(json, SEMEL_STR("/id"), run->ops->arena, &kind[0], ret_id, err);
    if (status == SEMEL_OK)
        status = semel__json_get(json, SEMEL_STR("/source"), run->ops->arena, &kind[1], ret_source, err);
    if (status == SEMEL_OK)
        status = semel__json_get(json, SEMEL_STR("/payload"), run->ops->arena, &kind[2], &run->given.payload, err);
    if (status == SEMEL_OK && semel__str_given(semel__json_find(line, SEMEL_STR("/payload_base64")))) {
        if (kind[2] != SEMEL_JSON_MISSING)
            status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                                 "payload and payload_base64 are both there; give one of them");
        else
            status = cli_payload_decode(json, run->ops->arena, &run->given.payload, err);
        kind[2] = SEMEL_JSON_STRING;
    }
    semel__json_free(json);
    if (status != SEMEL_OK)
        return status;
    if (kind[2] != SEMEL_JSON_STRING)
        run->given.payload = raw;
    if (kind[0] != SEMEL_JSON_STRING || kind[2] == SEMEL_JSON_MISSING || kind[2] == SEMEL_JSON_NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "it must be an object with id, a string, and payload, which is not null");
    if (kind[1] != SEMEL_JSON_STRING)
        *ret_source = semel__str(cli_value(run->args, "source"));
    return SEMEL_OK;
}

static int bad_line(struct lines *run, const char *text)
{
    run->bad++;
    return cli_fail(CLI_FAILED, "line %lld: %s", (long long)run->n, text);
}

static int correct_line(struct lines *run, struct semel_str line)
{
    struct semel_str id, source = {0};
    struct semel_find found;
    struct semel_answer answer;
    struct semel_error err = {0};
    char shown[80];
    if (read_line(run, line, &id, &source, &err) != SEMEL_OK)
        return bad_line(run, err.text);
    semel__str_show(shown, sizeof shown, id);
    semel_status status = semel__ops_find(run->ops, semel__str(cli_value(run->args, "consumer")), source, id, true,
                                          &found, &err);
    if (status == SEMEL_INVALID && err.cls == SEMEL_CLASS_PERMANENT)
        return bad_line(run, err.text);
    if (status == SEMEL_OK && found.found != SEMEL_FOUND)
        return bad_line(run, found.found == SEMEL_FOUND_SEVERAL ? "it is the id of several messages: name the source"
                                                                : "there is no such message that can be read");
    if (status == SEMEL_OK)
        status = semel__ops_command(run->ops, &run->given, found.rows, cli_flag(run->args, "dry-run"), &answer, &err);
    if (status != SEMEL_OK) {
        run->n--; /* it is to be given again */
        return cli_fail_error(status, &err, "correcting the messages") == CLI_STORE ? CLI_STORE : CLI_FAILED;
    }
    const bool done = answer.kind == SEMEL_DID || answer.kind == SEMEL_WOULD;
    run->done += done;
    run->refused += !done;
    return done ? CLI_OK : cli_fail(CLI_REFUSED, "line %lld: %s %s", (long long)run->n, shown, answer.text);
}

/* Until the end, a signal, or a store that fails. */
static int correct_all(struct lines *run, struct semel_str text)
{
    struct semel_arena arena, *before = run->ops->arena;
    const double size = (double)text.n;
    int code = CLI_OK, first = CLI_OK;
    semel__arena_init(&arena, CLI_JSON_MAX);
    run->ops->arena = &arena;
    while (code != CLI_STORE && text.n > 0 && !cli_interrupted(0)) {
        const char *end = memchr(text.p, '\n', text.n);
        const struct semel_str line = {text.p, end != NULL ? (size_t)(end - text.p) : text.n};
        const size_t taken = line.n + (end != NULL);
        run->n++;
        semel__arena_reset(&arena);
        code = cli_is_blank(line) ? CLI_OK : correct_line(run, line);
        first = first == CLI_OK ? code : first;
        text = (struct semel_str){text.p + taken, text.n - taken};
        cli_progress_show(&run->progress, run->n, "lines", 1 - (double)text.n / size);
    }
    cli_progress_end(&run->progress, run->n, run->n == 1 ? "line" : "lines");
    run->ops->arena = before;
    semel__arena_done(&arena);
    return cli_interrupted(0) ? CLI_INTERRUPTED : first;
}

static int print_sum(const struct lines *run)
{
    struct semel_object object;
    if (!run->cli->json) {
        cli_say(run->cli, "%lld line%s: %lld corrected, %lld refused, %lld bad", (long long)run->n, CLI_S(run->n),
                (long long)run->done, (long long)run->refused, (long long)run->bad);
        return CLI_OK;
    }
    semel__object_init(&object);
    semel__object_number(&object, "lines", run->n);
    semel__object_number(&object, "corrected", run->done);
    semel__object_number(&object, "refused", run->refused);
    semel__object_number(&object, "bad", run->bad);
    return cli_object_print(&object);
}

static int correct_lines(struct cli *cli, const struct cli_args *args, struct semel_ops *ops,
                         const struct semel_instruction *given)
{
    const char *what = cli_value(args, "payloads");
    struct lines run = {.cli = cli, .args = args, .ops = ops, .given = *given};
    struct semel_str text;
    if (strcmp(what, "-") != 0 && what[0] != '@')
        return cli_fail(CLI_USAGE, "--payloads is '%s'; it must be @FILE, or - for stdin", what);
    if (cli_value(args, "consumer") == NULL)
        return cli_fail(CLI_USAGE, "--consumer is needed: a line does not name it");
    int code = cli_input(cli, what, "what --payloads names", LINES_MAX, &text);
    if (code != CLI_OK)
        return code;
    cli_signals_catch();
    cli_progress_begin(&run.progress, args);
    code = correct_all(&run, text);
    int printed = print_sum(&run);
    if (printed != CLI_OK)
        return printed;
    return code != CLI_OK && code != CLI_INTERRUPTED && code != CLI_STORE && run.done > 0 ? CLI_FAILED : code;
}

/* ---- retry, discard, resolve: one by one --------------------------------------------------------- */

/* What --reason, --outcome, --payload and --force say. 0, or an exit code. */
static int read_given(struct cli *cli, const struct cli_args *args, enum semel_command_kind kind,
                      struct semel_instruction *ret)
{
    const bool retry = kind == SEMEL_COMMAND_RETRY;
    const char *payload = retry ? cli_value(args, "payload") : NULL;
    int code = CLI_OK;
    *ret = (struct semel_instruction){.kind = kind, .force = retry && cli_flag(args, "force")};
    if (kind == SEMEL_COMMAND_RESOLVE)
        ret->outcome = value(args, "outcome");
    if (retry && (payload != NULL || cli_value(args, "payloads") != NULL))
        ret->kind = SEMEL_COMMAND_CORRECT;
    if (payload != NULL)
        code = cli_input(cli, payload, "the payload", SEMEL_PAYLOAD_HARD_MAX, &ret->payload);
    return code == CLI_OK ? cli_instruction_read(args, ret) : code;
}

struct acting {
    struct cli *cli;
    const struct cli_args *args;
    struct semel_ops ops;
    struct semel_instruction given;
    struct semel_report *reports;
    size_t answered;
};

static int one(void *ctx, size_t i)
{
    struct acting *a = ctx;
    const char *id = cli_operand(a->args, i);
    struct semel_report *report = &a->reports[a->answered];
    struct semel_row *row = NULL;
    struct semel_error err = {0};
    int code = find(a->args, &a->ops, id, a->given.kind == SEMEL_COMMAND_CORRECT, &row);
    if (code == CLI_OK && row == NULL)
        code = cli_fail(CLI_FAILED, "the row of '%s' cannot be read, and is left alone; semel inbox show says more",
                        id);
    if (code != CLI_OK)
        return code;
    semel_status status = semel__ops_command(&a->ops, &a->given, row, cli_flag(a->args, "dry-run"), &report->answer,
                                             &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, semel__command_name(a->given.kind));
    report->row = row;
    a->answered++;
    const bool done = report->answer.kind == SEMEL_DID || report->answer.kind == SEMEL_WOULD;
    return cli_answer(a->cli, done, false, id, report->answer.text);
}

static void reports_json(struct semel_buf *json, const void *ctx)
{
    const struct acting *a = ctx;
    semel__ops_json_answers(json, a->reports, a->answered);
}

static int each(struct acting *a)
{
    const size_t n = cli_n(a->args);
    a->reports = semel__arena_alloc(&a->cli->arena, n, sizeof *a->reports);
    return a->reports != NULL ? cli_each(a->cli, n, one, reports_json, a) : cli_fail(CLI_FAILED, "out of memory");
}

/* By their ids; or, without any, by the lines of --payloads. */
static int one_by_one(struct cli *cli, const struct cli_args *args, enum semel_command_kind kind)
{
    struct acting a = {.cli = cli, .args = args};
    int code = read_given(cli, args, kind, &a.given);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, true, &a.ops);
    if (code != CLI_OK)
        return code;
    code = cli_n(args) > 0 ? each(&a) : correct_lines(cli, args, &a.ops, &a.given);
    cli_ops_close(&a.ops);
    return code;
}

/* ---- in bulk: before it begins ------------------------------------------------------------------- */

struct bulk {
    struct cli *cli;
    const struct cli_args *args;
    struct semel_ops ops;
    enum semel_command_kind kind;
    struct semel_bulk_options options;
    struct semel_selection selection;
    int64_t reported; /* messages that were not done, by name */
    struct cli_progress progress;
};

static void say_left(const struct bulk *b, const struct semel_selection *now)
{
    cli_say(b->cli, "selection %lld: %lld of %lld message%s %s left", (long long)now->number, (long long)now->left,
            (long long)now->n, CLI_S(now->n), now->left == 1 ? "is" : "are");
}

static int confirm(const struct bulk *b)
{
    if (b->kind == SEMEL_COMMAND_RETRY) {
        char rate[64];
        snprintf(rate, sizeof rate, b->options.rate > 0 ? "%lld messages per second" : "messages at full speed",
                 (long long)b->options.rate);
        cli_fail(
            0,
            "before a retry in bulk: is the cause fixed, do the payloads fit the handler of today, and can systems "
            "downstream take %s?",
            rate);
    }
    return cli_confirm(b->args, "continue?");
}

/* What would be met: how many messages, and of which causes. */
static int print_count(const struct cli *cli, int64_t total, const struct semel_groups *list)
{
    size_t shown = list->n < GROUPS_SHOWN ? list->n : GROUPS_SHOWN;
    const char *least = list->n == SEMEL_CAUSES_COUNTED ? "at least " : "";
    if (cli->json)
        return CLI_OK;
    int code = print_groups(cli, list, shown);
    if (list->n > shown)
        cli_say(cli, "and %s%zu more cause%s", least, list->n - shown, CLI_S(list->n - shown));
    cli_say(cli, "%s%lld message%s, %s%zu cause%s", least, (long long)total, CLI_S(total), least, list->n,
            CLI_S(list->n));
    return code;
}

/* What a dry run says at its end. */
static int print_dry(const struct bulk *b, int64_t total, const struct semel_groups *groups)
{
    struct semel_buf json;
    if (!b->cli->json) {
        cli_say(b->cli, "would %s up to %lld message%s; nothing was changed", semel__command_name(b->kind),
                (long long)total, CLI_S(total));
        return CLI_OK;
    }
    semel__buf_init(&json, CLI_JSON_MAX);
    semel__ops_json_dry_run(&json, b->kind, total, groups);
    return cli_json_print(&json);
}

static int count(struct bulk *b, const struct semel_filter *filter, bool dry)
{
    struct semel_arena arena, *before = b->ops.arena;
    struct semel_groups groups;
    struct semel_error err = {0};
    int64_t total = 0;
    int code;
    semel__arena_init(&arena, (size_t)512 << 20);
    b->ops.arena = &arena;
    semel_status status = semel__bulk_count(&b->ops, filter, &groups, &total, &err);
    b->ops.arena = before;
    if (status == SEMEL_INVALID && err.cls == SEMEL_CLASS_REJECTED)
        code = cli_fail(CLI_REFUSED, "%s", err.text);
    else if (status != SEMEL_OK)
        code = cli_fail_error(status, &err, "counting what matches");
    else if (total == 0)
        code = cli_fail(CLI_NOTHING, "no message matches");
    else
        code = print_count(b->cli, total, &groups);
    if (code == CLI_OK && dry)
        code = print_dry(b, total, &groups);
    semel__arena_done(&arena);
    return code;
}

static int freeze(struct bulk *b, const struct semel_filter *filter, const struct semel_instruction *given)
{
    struct semel_error err = {0};
    semel_status status = semel__bulk_select(&b->ops, filter, given, &b->selection, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "writing the selection down");
    if (b->selection.n == 0)
        return cli_fail(CLI_NOTHING, "no message matches any more");
    /* Said before anything is done to it, so that it can be resumed whatever happens. */
    fprintf(b->cli->json ? stderr : stdout, "selection %lld: %lld message%s\n", (long long)b->selection.number,
            (long long)b->selection.n, CLI_S(b->selection.n));
    fflush(stdout);
    return CLI_OK;
}

static int choose(struct bulk *b, bool *ret_dry)
{
    struct semel_instruction given;
    struct semel_query query;
    struct semel_error err = {0};
    *ret_dry = cli_flag(b->args, "dry-run");
    int code = read_query(b->args, false, &query);
    if (code == CLI_OK && query.filter.states == 0)
        code = cli_fail(CLI_USAGE,
                        "name messages, or say which: --dead, or --status with a list; see semel inbox %s -h",
                        semel__command_name(b->kind));
    if (code == CLI_OK && semel__bulk_check(&query.filter, b->kind, &err) != SEMEL_OK)
        code = cli_fail(CLI_USAGE, "--%s", err.text);
    if (code == CLI_OK)
        code = read_given(b->cli, b->args, b->kind, &given);
    if (code == CLI_OK)
        code = count(b, &query.filter, *ret_dry);
    if (code == CLI_OK && !*ret_dry)
        code = confirm(b);
    if (code != CLI_OK || *ret_dry)
        return code;
    cli_signals_catch();
    return freeze(b, &query.filter, &given);
}

static int no_filters(const struct bulk *b)
{
    const char *given = cli_filter_given(b->args, &filters);
    if (given == NULL && cli_value(b->args, "consumer") != NULL)
        given = "consumer";
    if (given == NULL && cli_value(b->args, "source") != NULL)
        given = "source";
    if (given == NULL && cli_value(b->args, "reason") != NULL)
        given = "reason";
    if (given == NULL && b->kind == SEMEL_COMMAND_RETRY && cli_flag(b->args, "force"))
        given = "force";
    return given == NULL ? CLI_OK
                         : cli_fail(CLI_USAGE, "--%s and --resume: a selection keeps what it was made with", given);
}

/* Takes up a selection that somebody has made: its command, reason and force are those written down. */
static int resume_bulk(struct bulk *b, bool *ret_dry)
{
    const char *command = semel__command_name(b->kind);
    struct semel_selection *selection = &b->selection;
    struct semel_error err = {0};
    int64_t number;
    bool found;
    int code = no_filters(b);
    if (code != CLI_OK || !cli_int(b->args, "resume", 1, INT64_MAX, 0, &number))
        return CLI_USAGE;
    semel_status status = semel__bulk_find(&b->ops, number, selection, &found, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reading the selection");
    if (!found)
        return cli_fail(CLI_NOTHING, "there is no selection %lld", (long long)number);
    if (!semel__str_eqz(selection->command, command))
        return cli_fail(CLI_USAGE, "selection %lld is not for %s: semel inbox %.*s --resume %lld", (long long)number,
                        command, (int)selection->command.n, selection->command.p, (long long)number);
    *ret_dry = cli_flag(b->args, "dry-run");
    say_left(b, selection);
    if (*ret_dry)
        return print_dry(b, selection->left, &(struct semel_groups){0});
    if (selection->left > 0)
        code = confirm(b);
    if (code == CLI_OK)
        cli_signals_catch();
    return code;
}

/* ---- in bulk: working through it ----------------------------------------------------------------- */

static int64_t answered(const struct semel_bulk *run)
{
    int64_t n = 0;
    for (enum semel_answer_kind kind = SEMEL_DID; kind <= SEMEL_REFUSED; kind++)
        n += semel__bulk_n(run, kind);
    return n;
}

static void show_progress(struct bulk *b, const struct semel_bulk *run)
{
    const int64_t done = answered(run);
    cli_progress_show(&b->progress, done, done == 1 ? "message" : "messages",
                      b->selection.left > 0 ? (double)done / (double)b->selection.left : -1);
}

/* Reports messages that were not done at once, up to a limit. */
static void report_step(struct bulk *b, const struct semel_bulk *run)
{
    struct semel_str id, consumer;
    const struct semel_answer *answer;
    size_t i = 0;
    for (; (answer = semel__bulk_answer(run, i, &id, &consumer)) != NULL; i++) {
        const char *figure = answer->figure[0] != '\0' ? "; " : "";
        if (answer->kind == SEMEL_DID || b->reported++ > REPORTED_MAX)
            continue;
        if (b->reported > REPORTED_MAX)
            cli_fail(0, "and more, which are only counted");
        else
            cli_fail(0, "%.*s (%.*s) %s: %s%s%s", (int)id.n, id.p, (int)consumer.n, consumer.p,
                     semel__answer_name(answer->kind), answer->cause, figure, answer->figure);
    }
    if (i > 0)
        show_progress(b, run);
}

static void work(struct bulk *b, struct semel_bulk *run)
{
    int64_t wait_us = 0;
    while (wait_us >= 0) {
        if (cli_interrupted(wait_us))
            semel__bulk_stop(run, "interrupted", "interrupted");
        wait_us = semel__bulk_step(run);
        report_step(b, run);
    }
}

/* ---- in bulk: the end ---------------------------------------------------------------------------- */

static int end_code(const struct semel_bulk *run)
{
    const char *cause, *stopped = semel__bulk_stopped(run, &cause);
    if (stopped != NULL) {
        if (strcmp(stopped, "interrupted") == 0)
            return CLI_INTERRUPTED;
        return strcmp(stopped, "store") == 0 ? CLI_STORE : CLI_STOPPED;
    }
    if (semel__bulk_n(run, SEMEL_REFUSED) == 0)
        return CLI_OK;
    return semel__bulk_n(run, SEMEL_DID) > 0 ? CLI_FAILED : CLI_REFUSED;
}

static struct semel_str cause_cell(size_t column, const void *ctx, size_t i, int64_t *ret_number)
{
    const struct semel_cause *cause = &((const struct semel_cause *)ctx)[i];
    const char *const texts[] = {semel__answer_name(cause->kind), NULL, cause->example, cause->text};
    *ret_number = cause->n;
    return semel__str(texts[column]);
}

static int print_causes(const struct cli *cli, const struct semel_bulk *run)
{
    static const struct cli_column heads[] = {
        {"result", CLI_TEXT, false},
        {"messages", CLI_NUMBER, false},
        {"example", CLI_TEXT, false},
        {"reason", CLI_TEXT, true},
    };
    size_t n;
    const struct semel_cause *causes = semel__bulk_causes(run, &n);
    return cli_rows_print(cli,
                          &(struct cli_rows){heads, sizeof heads / sizeof heads[0], cause_cell, causes, n, NULL, NULL});
}

static int report(struct bulk *b, const struct semel_bulk *run)
{
    const char *cause, *stopped = semel__bulk_stopped(run, &cause);
    struct semel_selection now = b->selection;
    struct semel_buf text;
    bool found;
    int printed, code = end_code(run);
    if (semel__bulk_find(&b->ops, now.number, &now, &found, &(struct semel_error){0}) != SEMEL_OK || !found)
        now = b->selection;
    now.done = semel__bulk_n(run, SEMEL_DID); /* of this run: another may work at the same selection */
    now.skipped = semel__bulk_n(run, SEMEL_SKIPPED);
    now.refused = semel__bulk_n(run, SEMEL_REFUSED);
    if (b->cli->json) {
        semel__buf_init(&text, CLI_JSON_MAX);
        semel__ops_json_selection(&text, &now, run, b->ops.store_option);
        printed = cli_json_print(&text);
    } else {
        printed = print_causes(b->cli, run);
        say_left(b, &now);
    }
    if (stopped != NULL)
        cli_fail(code, "%s", cause);
    if (now.left > 0 || (stopped != NULL && b->kind == SEMEL_COMMAND_RETRY)) { /* what failed again is taken up, too */
        semel__buf_init(&text, SEMEL_EXPLAIN_MAX);
        semel__ops_put_resume(&text, &now, b->ops.store_option);
        cli_fail(code, "to go on: %.*s", (int)text.n, text.p != NULL ? text.p : "");
        semel__buf_done(&text);
    }
    return printed != CLI_OK ? printed : code;
}

static int run_bulk(struct bulk *b)
{
    struct semel_bulk *run = NULL;
    struct semel_error err = {0};
    bool dry = false;
    int code = cli_value(b->args, "resume") != NULL ? resume_bulk(b, &dry) : choose(b, &dry);
    if (code != CLI_OK || dry)
        return code;
    semel_status status = semel__bulk_open(&run, &b->ops, &b->selection, &b->options, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "working through the selection");
    cli_progress_begin(&b->progress, b->args);
    work(b, run);
    cli_progress_end(&b->progress, answered(run), answered(run) == 1 ? "message" : "messages");
    code = report(b, run);
    semel__bulk_close(run);
    return code;
}

static int in_bulk(struct cli *cli, const struct cli_args *args, enum semel_command_kind kind)
{
    struct bulk b = {.cli = cli, .args = args, .kind = kind, .options.wait_us = SEMEL_BULK_WAIT_US};
    bool retry = kind == SEMEL_COMMAND_RETRY;
    if (!cli_int(args, "rate", 0, SEMEL_BULK_RATE_MAX, retry ? SEMEL_BULK_RATE : 0, &b.options.rate) ||
        (retry && !cli_duration(args, "wait", SEMEL_BULK_WAIT_US, &b.options.wait_us)))
        return CLI_USAGE;
    if (kind == SEMEL_COMMAND_RESOLVE && cli_value(args, "outcome") != NULL)
        return cli_fail(CLI_USAGE, "--outcome belongs to one message: name it by its id");
    if (retry && cli_value(args, "payload") != NULL)
        return cli_fail(CLI_USAGE,
                        "--payload belongs to one message: name it by its id, or give a group's by --payloads");
    b.options.probe = retry && !cli_flag(args, "no-probe");
    int code = cli_ops_open(cli, args, true, &b.ops);
    if (code != CLI_OK)
        return code;
    code = run_bulk(&b);
    cli_ops_close(&b.ops);
    return code;
}

/* ---- the commands -------------------------------------------------------------------------------- */

static int run(struct cli *cli, const struct cli_args *args, enum semel_command_kind kind)
{
    static const char *const bulk_only[] = {"resume", "rate", "wait"};
    bool retry = kind == SEMEL_COMMAND_RETRY;
    bool lines = retry && cli_value(args, "payloads") != NULL;
    if (cli_n(args) == 0 && !lines)
        return in_bulk(cli, args, kind);
    if (cli_n(args) > 0 && lines)
        return cli_fail(CLI_USAGE, "--payloads has the ids in its lines: give ids or --payloads, not both");
    if (retry && cli_n(args) > 1 && cli_value(args, "payload") != NULL)
        return cli_fail(CLI_USAGE, "--payload belongs to one message: give a group's by --payloads");
    const char *filter = cli_filter_given(args, &filters);
    for (size_t i = 0; filter == NULL && i < (retry ? 3 : 2); i++)
        filter = cli_value(args, bulk_only[i]) != NULL ? bulk_only[i] : NULL;
    if (filter != NULL)
        return cli_fail(CLI_USAGE, "--%s chooses by itself: give ids or filters, not both", filter);
    return one_by_one(cli, args, kind);
}

static int run_retry(struct cli *cli, const struct cli_args *args)
{
    return run(cli, args, SEMEL_COMMAND_RETRY);
}

static int run_discard(struct cli *cli, const struct cli_args *args)
{
    return run(cli, args, SEMEL_COMMAND_DISCARD);
}

static int run_resolve(struct cli *cli, const struct cli_args *args)
{
    return run(cli, args, SEMEL_COMMAND_RESOLVE);
}

#define ACT_OPTIONS                                                                                     \
    CLI_REASON_OPTIONS, FILTER_OPTIONS, {"resume", 0, "N", "resume selection N, whoever made it"},      \
        {"rate", 0, "N",                                                                                \
         "in bulk: at most N messages per second (default: 50 for retry, else no limit; 0: no limit)"}, \
        {"yes", 'y', NULL, "in bulk: do not ask"},                                                      \
        {"progress", 0, NULL, "in bulk: show the progress also where stderr is no terminal"}, CLI_STORE_OPTION

static const struct cli_option retry_options[] = {
    ACT_OPTIONS,
    {"force", 0, NULL,
     "also what is older than the retention, has no usable id or field, or waits for a missing version"},
    {"payload", 0, "TEXT|@FILE|-",
     "run a copy of the message with this payload instead; the message itself is rejected"},
    {"payloads", 0, "@FILE|-",
     "the same for each line {\"id\",\"source\",\"payload\"}, as semel inbox export writes them"},
    {"wait", 0, "DURATION", "in bulk: how long to watch the first one (default 10s)"},
    {"no-probe", 0, NULL, "in bulk: do not try the first one alone"},
    {NULL, 0, NULL, NULL},
};

static const struct cli_option discard_options[] = {ACT_OPTIONS, {NULL, 0, NULL, NULL}};

static const struct cli_option resolve_options[] = {
    ACT_OPTIONS,
    {"outcome", 0, "JSON", "what came of it, for duplicates that ask"},
    {NULL, 0, NULL, NULL},
};

static const struct cli_command retry = {
    .name = "retry",
    .summary = "have messages run again, under their own ids",
    .operands = "[ID]...",
    .operands_max = 10000,
    .options = retry_options,
    .help =
        "With ids, each message is made due at once, with a new budget of attempts; one that died of missing "
        "versions waits\n"
        "for them anew, and only --force runs it without, which leaves them stale. With filters instead of ids, "
        "what matches\n"
        "is counted, written down as a numbered selection, and worked through: the first message alone, and the "
        "rest only\n"
        "when that one did not fail again. A selection that was stopped can be resumed by its number, by anybody.\n"
        "\n"
        "--payload corrects a dead letter: a copy, whose id ends with ~1, has the new payload and runs; the message\n"
        "itself is rejected and keeps its payload, and the audit of each names the other. --payloads does that for\n"
        "a group, line by line; a line whose message is corrected already is refused (exit code 4), and changes "
        "nothing.\n"
        "\n"
        "Examples:\n"
        "  semel inbox retry pay-17 --reason 'bank is back'\n"
        "  semel inbox retry pay-17 --payload @fixed.json --reason 'wrong currency'\n"
        "  semel inbox export --consumer billing --dead > dead.jsonl   # correct the payloads, then:\n"
        "  semel inbox retry --consumer billing --payloads @dead.jsonl --reason 'wrong currency'\n"
        "  semel inbox retry --dead --consumer billing --error timeout --dry-run\n"
        "  semel inbox retry --dead --consumer billing --error timeout --reason 'ticket 811' --yes\n"
        "  semel inbox retry --resume 7 --yes",
    .run = run_retry,
};

static const struct cli_command discard = {
    .name = "discard",
    .summary = "skip messages for good",
    .operands = "[ID]...",
    .operands_max = 10000,
    .options = discard_options,
    .help = "A discarded message is rejected: it never runs, its business keys are free again, and what waited behind "
            "it in\n"
            "its key goes on. On a route by versions earlier ones that are missing are still waited for. With filters\n"
            "instead of ids a numbered selection is made, as for retry.\n"
            "\n"
            "Examples:\n"
            "  semel inbox discard pay-17 --reason 'test data'\n"
            "  semel inbox discard --dead --consumer billing --type Ping --reason 'nobody needs them' --yes",
    .run = run_discard,
};

static const struct cli_command resolve = {
    .name = "resolve",
    .summary = "say that messages have had their effect",
    .operands = "[ID]...",
    .operands_max = 10000,
    .options = resolve_options,
    .help = "A resolved message is completed without being run: for those of status unknown whose effect turned out to "
            "have\n"
            "happened, or was made by hand. With filters instead of ids a numbered selection is made, as for retry.\n"
            "\n"
            "Example:\n"
            "  semel inbox resolve pay-17 --reason 'the bank has it, ref 4711' --outcome '{\"ref\":4711}'",
    .run = run_resolve,
};

static const struct cli_command *const children[] = {
    &ls,
    &show_command,
    &export_command,
    &retry,
    &discard,
    &resolve,
#ifdef SEMEL_WITH_RUN
    &cli_reconcile,
#endif
    NULL,
};

const struct cli_command cli_inbox = {
    .name = "inbox",
    .summary = "list, explain, export, retry, discard, resolve and reconcile messages",
    .operands = "COMMAND",
    .help =
        "Dead letters are messages like all others: semel inbox ls --dead lists them, semel inbox ls --group-by error\n"
        "shows why there are so many, and semel inbox show ID says in words why one is not running.",
    .children = children,
};
