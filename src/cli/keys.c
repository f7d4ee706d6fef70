/* SPDX-License-Identifier: MIT
 *
 * keys.c: the command `semel keys`: ls, show, resolve, discard; a skin on ops/keys.c: it reads options and prints. And
 * reconcile, a face of admin/reconcile.h.
 *
 * Invariants: nothing of a key reaches a terminal as it is. The answer is printed only with --headers and
 * --body, and a body only where it is text or goes to a file.
 */
#include "base/clock.h"
#include "base/error.h"
#include "cli/cli.h"
#include "ops/ops.h"
#ifdef SEMEL_WITH_RUN
#include "admin/reconcile.h"
#endif

#define WAIT_MS UINT64_MAX /* as long as the settings let a request wait */

/* ---- ls ------------------------------------------------------------------------------------------ */

static const char *const no_names[] = {NULL};
static const char *const text_filters[] = {"status", "scope", "older", NULL};
static const char *const flag_filters[] = {"unknown", "stuck", NULL};
static const struct cli_filter filters = {no_names, text_filters, flag_filters};

enum column { SCOPE, KEY, STATUS, CAUSE, RULE, CREATED, UPDATED, LEASE, OWNER, CODE, BYTES, COLUMNS };

static const struct cli_column columns[COLUMNS] = {
    [SCOPE] = {"scope", CLI_TEXT, true},         [KEY] = {"key", CLI_TEXT, false},
    [STATUS] = {"status", CLI_STATUS, false},    [CAUSE] = {"cause", CLI_TEXT, true},
    [RULE] = {"rule", CLI_TEXT, true},           [CREATED] = {"created", CLI_TIME, false},
    [UPDATED] = {"updated", CLI_TIME, false},    [LEASE] = {"lease_until", CLI_TIME, false},
    [OWNER] = {"lease_owner", CLI_TEXT, true},   [CODE] = {"code", CLI_NUMBER, false},
    [BYTES] = {"body_bytes", CLI_NUMBER, false},
};

static struct semel_str cell(size_t column, const void *ctx, size_t i, int64_t *ret_number)
{
    const struct semel_key_row *shown = &((const struct semel_key_list *)ctx)->rows[i];
    const struct semel_idempotency *row = &shown->row;
    const struct semel_str texts[COLUMNS] = {
        [SCOPE] = row->scope, [KEY] = row->key,   [STATUS] = semel__str(semel__row_status_name(row->status)),
        [CAUSE] = row->cause, [RULE] = row->rule, [OWNER] = row->lease_owner,
    };
    const int64_t numbers[COLUMNS] = {[CREATED] = row->created_us,
                                      [UPDATED] = row->updated_us,
                                      [LEASE] = row->lease_until_us,
                                      [CODE] = row->code,
                                      [BYTES] = shown->bytes};
    *ret_number = numbers[column];
    return texts[column];
}

static void list_json(struct semel_buf *buf, const void *keys)
{
    semel__ops_json_keys(buf, keys);
}

static int list(struct cli *cli, const struct cli_args *args, struct semel_ops *ops,
                const struct semel_key_query *query)
{
    struct semel_error err = {0};
    struct semel_key_list keys;
    semel_status status = semel__ops_keys(ops, query, &keys, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "listing keys");
    int code = cli_rows_print(cli, &(struct cli_rows){columns, COLUMNS, cell, &keys, keys.n, "no keys", list_json});
    if (keys.more)
        cli_filter_next(args, &filters, "keys ls", query->limit, semel__str(keys.after));
    return code;
}

static int run_ls(struct cli *cli, const struct cli_args *args)
{
    struct semel_option options[CLI_FILTER_MAX];
    struct semel_key_query query;
    struct semel_error err = {0};
    struct semel_ops ops;
    size_t n;
    int code = cli_filter_read(args, &filters, true, options, &n);
    if (code == CLI_OK && semel__ops_key_query(options, n, semel__now(&semel__clock_real), &query, &err) != SEMEL_OK)
        code = cli_fail(CLI_USAGE, "--%s", err.text);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    code = list(cli, args, &ops, &query);
    cli_ops_close(&ops);
    return code;
}

static const struct cli_option ls_options[] = {
    {"status", 's', "STATUS...", "only in these: processing, unknown, both with a comma between, or completed"},
    {"unknown", 'u', NULL, "the same as --status unknown"},
    {"stuck", 0, NULL, "only processing ones whose lease ran out"},
    {"scope", 0, "CALLER", "only of this caller; needed for completed ones"},
    {"older", 0, "DURATION", "only if the status was set longer ago, e.g. 15m"},
    {"limit", 'n', "N", "at most N lines (default 50, at most 10000)"},
    {"after", 0, "PLACE", "the next page, as the page before names it"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

static const struct cli_command ls = {
    .name = "ls",
    .summary = "list keys that have no answer yet, in the order of their claims; or answered ones of a caller",
    .operands = "",
    .options = ls_options,
    .help = "A key is processing while its request runs, unknown when nobody knows whether its work was done, and\n"
            "completed when it has its answer. Answers are not shown.\n"
            "\n"
            "Examples:\n"
            "  semel keys ls --unknown --older 15m\n"
            "  semel keys ls --status completed --scope customer-17",
    .run = run_ls,
};

/* ---- show ---------------------------------------------------------------------------------------- */

static void say_row(const struct cli *cli, const void *facts)
{
    const struct semel_key_facts *f = facts;
    const struct semel_idempotency *row = &f->row->row;
    cli_field(cli, "scope", row->scope);
    cli_field(cli, "key", row->key);
    cli_field(cli, "status", semel__str(semel__row_status_name(row->status)));
    cli_field(cli, "cause", row->cause);
    cli_field(cli, "rule", row->rule);
    cli_field_when(cli, "created", row->created_us, f->now_us);
    cli_field_when(cli, "updated", row->updated_us, f->now_us);
    cli_field(cli, "lease owner", row->lease_owner);
    cli_field_when(cli, "lease until", row->lease_until_us, f->now_us);
    cli_field(cli, "traceparent", row->traceparent);
    if (row->code != SEMEL_NONE)
        cli_say(cli, "%-14s%lld", "code", (long long)row->code);
    cli_field(cli, "headers", row->headers);
    if (f->row->bytes != SEMEL_NONE)
        cli_say(cli, "%-14s%lld bytes; --body writes them", "body", (long long)f->row->bytes);
    cli_field_when(cli, "answer until", row->answer_until_us, f->now_us);
    cli_field_when(cli, "key until", row->key_until_us, f->now_us);
    cli_field_acts(cli, f->acts, f->n_acts, true);
}

static void row_json(struct semel_buf *buf, const void *facts)
{
    semel__ops_json_key(buf, facts);
}

static void explain(const void *facts, struct semel_buf *why, struct semel_buf *next)
{
    semel__explain_key(facts, why, next);
}

static int tell_none(const struct semel_key_facts *f)
{
    char scope[SEMEL_ID_MAX + 1], key[SEMEL_ID_MAX + 1];
    semel__str_show(scope, sizeof scope, f->scope);
    semel__str_show(key, sizeof key, f->key);
    int code = cli_fail(CLI_NOTHING,
                        "caller '%s' has no key '%s': it was released, its lifetime is over, or it never was", scope,
                        key);
    cli_acts_fail(f->acts, f->n_acts);
    return code;
}

static int print_body(const struct semel_key_row *row)
{
    if (row->row.status != SEMEL_ROW_COMPLETED)
        return cli_fail(CLI_REFUSED, "this key has no answer yet");
    if (row->bytes == SEMEL_NONE)
        return cli_fail(CLI_REFUSED, "the body of this answer is not kept");
    return cli_payload_print(row->row.body);
}

static int run_show(struct cli *cli, const struct cli_args *args)
{
    const bool body = cli_flag(args, "body"), headers = cli_flag(args, "headers");
    struct semel_key_facts facts;
    struct semel_error err = {0};
    struct semel_ops ops;
    if (body && (cli->json || headers))
        return cli_fail(CLI_USAGE, "--body writes the bytes as they are, and nothing else; give it alone");
    int code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    semel_status status = semel__ops_key(&ops, semel__str(cli_operand(args, 0)), semel__str(cli_operand(args, 1)),
                                         body || headers, &facts, &err);
    if (status != SEMEL_OK)
        code = cli_fail_name(status, &err, "looking for the key");
    else if (facts.row == NULL)
        code = tell_none(&facts);
    else
        code = body ? print_body(facts.row)
                    : cli_shown_print(cli, &(struct cli_shown){&facts, row_json, say_row, explain});
    cli_ops_close(&ops);
    return code;
}

static const struct cli_option show_options[] = {
    {"headers", 0, NULL, "also the headers of the stored answer"},
    {"body", 0, NULL, "write the body of the stored answer alone, byte for byte"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

static const struct cli_command show_command = {
    .name = "show",
    .summary = "show one key, and say what a request under it gets and what would end it",
    .operands = "CALLER KEY",
    .operands_min = 2,
    .operands_max = 2,
    .options = show_options,
    .help = "Shows the row, what operators did to it, and then in words what it waits for. A stored answer may be\n"
            "private: its headers and body are left out unless they are asked for.\n"
            "\n"
            "Example:\n"
            "  semel keys show customer-17 7d0f1f2e-8a4b-4c55",
    .run = run_show,
};

/* ---- resolve, discard ---------------------------------------------------------------------------- */

static void report_json(struct semel_buf *json, const void *report)
{
    semel__ops_json_key_report(json, report);
}

static int print_report(const struct cli *cli, const char *key, const struct semel_key_report *report)
{
    const bool done = report->kind == SEMEL_DID || report->kind == SEMEL_WOULD;
    const int code = cli_answer(cli, done, report->judged == SEMEL_KEY_NO_SUCH, key, report->text);
    const int printed = cli->json ? cli_json_of(report_json, report) : CLI_OK;
    return printed != CLI_OK ? printed : code;
}

static int act(struct cli *cli, const struct cli_args *args, const struct semel_key_instruction *given)
{
    const char *key = cli_operand(args, 1);
    char shown[SEMEL_ID_MAX + 1];
    struct semel_key_report report;
    struct semel_error err = {0};
    struct semel_ops ops;
    int code = cli_ops_open(cli, args, true, &ops);
    if (code != CLI_OK)
        return code;
    semel_status status = semel__ops_key_command(&ops, given, semel__str(cli_operand(args, 0)), semel__str(key),
                                                 cli_flag(args, "dry-run"), &report, &err);
    cli_ops_close(&ops);
    if (status != SEMEL_OK)
        return cli_fail_name(status, &err, semel__command_name(given->kind));
    semel__str_show(shown, sizeof shown, semel__str(key));
    return print_report(cli, shown, &report);
}

static int run(struct cli *cli, const struct cli_args *args, struct semel_key_instruction *given)
{
    struct semel_error err = {0};
    const bool dry = cli_flag(args, "dry-run");
    given->force = cli_flag(args, "force");
    int code = cli_reason(args, !dry, &given->reason);
    if (code == CLI_OK && semel__ops_key_check(given, dry, &err) != SEMEL_OK)
        code = cli_fail(CLI_USAGE, "--%s", err.text);
    return code == CLI_OK ? act(cli, args, given) : code;
}

static int run_resolve(struct cli *cli, const struct cli_args *args)
{
    const char *body = cli_value(args, "body");
    struct semel_key_instruction given = {.kind = SEMEL_COMMAND_RESOLVE,
                                          .not_done = cli_flag(args, "not-done"),
                                          .token = SEMEL_NONE,
                                          .headers = semel__str(cli_value(args, "headers"))};
    if (!cli_int(args, "code", 200, 599, SEMEL_NONE, &given.code))
        return CLI_USAGE;
    int code = body != NULL ? cli_input(cli, body, "the body", SEMEL_ANSWER_BODY_MAX, &given.body) : CLI_OK;
    return code == CLI_OK ? run(cli, args, &given) : code;
}

static int run_discard(struct cli *cli, const struct cli_args *args)
{
    return run(cli, args,
               &(struct semel_key_instruction){.kind = SEMEL_COMMAND_DISCARD, .code = SEMEL_NONE, .token = SEMEL_NONE});
}

#define ACT_OPTIONS                                                                               \
    CLI_REASON_OPTIONS, CLI_STORE_OPTION,                                                         \
        {"force", 0, NULL, "also while its request is running: then its work may be done twice"}, \
    {                                                                                             \
        NULL, 0, NULL, NULL                                                                       \
    }

static const struct cli_option resolve_options[] = {
    {"code", 0, "STATUS", "the work was done: the status of its answer, 200 to 599"},
    {"headers", 0, "JSON", "the headers of that answer, as an array of pairs"},
    {"body", 0, "TEXT|@FILE|-", "the body of that answer (default: not kept)"},
    {"not-done", 0, NULL, "the work was not done: release the key"},
    ACT_OPTIONS,
};

static const struct cli_option discard_options[] = {ACT_OPTIONS};

static const struct cli_command resolve = {
    .name = "resolve",
    .summary = "end a key whose outcome is unknown, by what you found out",
    .operands = "CALLER KEY",
    .operands_min = 2,
    .operands_max = 2,
    .options = resolve_options,
    .help = "With --code the key is completed, and the same request gets this answer from now on. With --not-done it\n"
            "is released, and the next request runs. Find out first which of them is true.\n"
            "\n"
            "Examples:\n"
            "  semel keys resolve customer-17 7d0f1f2e-8a4b-4c55 --code 201 --body @charge.json --reason 'ticket 811'\n"
            "  semel keys resolve customer-17 7d0f1f2e-8a4b-4c55 --not-done --reason 'no charge at the bank'",
    .run = run_resolve,
};

static const struct cli_command discard = {
    .name = "discard",
    .summary = "release a key without an answer, although its work may have been done",
    .operands = "CALLER KEY",
    .operands_min = 2,
    .operands_max = 2,
    .options = discard_options,
    .help =
        "The row is removed, and the next request under the key runs. If the work was done, it is done again: where\n"
        "that matters, find out first, and use semel keys resolve. A key that has its answer is refused.\n"
        "\n"
        "Example:\n"
        "  semel keys discard customer-17 7d0f1f2e-8a4b-4c55 --reason 'test data'",
    .run = run_discard,
};

/* ---- reconcile ----------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_RUN

static int print(struct cli *cli, const char *key, const struct semel_reconcile *found)
{
    static const int codes[] = {[SEMEL_RECONCILE_NO_SUCH] = CLI_NOTHING,
                                [SEMEL_RECONCILE_REFUSED] = CLI_REFUSED,
                                [SEMEL_RECONCILE_NO_ANSWER] = CLI_FAILED};
    if (found->end != SEMEL_RECONCILE_REPORTED)
        return cli_fail(codes[found->end], "%s: %s", key, found->text);
    return print_report(cli, key, &found->report);
}

static int reconcile(struct cli *cli, const struct cli_args *args, struct semel_ops *ops, const struct semel_conf *conf,
                     struct semel_str reason)
{
    struct semel_reconcile found;
    struct semel_error err = {0};
    char key[SEMEL_ID_MAX + 1];
    const struct semel_str name = semel__str(cli_operand(args, 1));
    semel_status status = semel__reconcile_key(ops, conf, semel__str(cli_operand(args, 0)), name, reason, WAIT_MS,
                                               &found, &err);
    if (status == SEMEL_INVALID && err.cls == SEMEL_CLASS_PERMANENT)
        return cli_fail(CLI_USAGE, "%s", err.text);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reconcile");
    semel__str_show(key, sizeof key, name);
    return print(cli, key, &found);
}

static int run_reconcile(struct cli *cli, const struct cli_args *args)
{
    const char *file = cli_value(args, "settings");
    struct semel_conf *conf = NULL;
    struct semel_str reason;
    struct semel_ops ops;
    if (file == NULL)
        return cli_fail(CLI_USAGE, "--settings FILE is required: its gateways have the URL that is asked");
    int code = cli_reason(args, true, &reason);
    if (code == CLI_OK)
        code = cli_conf_load(file, &conf);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, true, &ops);
    if (code == CLI_OK) {
        code = reconcile(cli, args, &ops, conf, reason);
        cli_ops_close(&ops);
    }
    semel__conf_free(conf);
    return code;
}

static const struct cli_option reconcile_options[] = {
    {"settings", 'f', "FILE", "the settings of semel run, whose gateways have the URL (needed)"},
    {"reason", 'r', "TEXT", "why; goes to the audit log with your name ($SEMEL_USER, else your login)"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

static const struct cli_command reconcile_command = {
    .name = "reconcile",
    .summary = "ask now what became of a key whose outcome is unknown, and end it by the answer",
    .operands = "CALLER KEY",
    .operands_min = 2,
    .operands_max = 2,
    .options = reconcile_options,
    .help =
        "Asks the URL `reconcile` of the rule that the key was claimed under. done ends it with the answer that is\n"
        "named there, not_done releases it, once its first call can no longer be running; else it stays unknown\n"
        "(exit codes 1 and 4). The gateway does the same by itself when the request comes again.\n"
        "\n"
        "Example:\n"
        "  semel keys reconcile customer-17 7d0f1f2e-8a4b-4c55 --settings semel.yaml --reason 'ticket 811'",
    .run = run_reconcile,
};

#endif

static const struct cli_command *const children[] = {
    &ls,
    &show_command,
    &resolve,
    &discard,
#ifdef SEMEL_WITH_RUN
    &reconcile_command,
#endif
    NULL,
};

const struct cli_command cli_keys = {
    .name = "keys",
    .summary = "list, explain, resolve, discard and reconcile idempotency keys",
    .operands = "COMMAND",
    .help =
        "semel keys ls --unknown lists keys whose outcome nobody knows, and semel keys show CALLER KEY says in words\n"
        "what would end one.",
    .children = children,
};
