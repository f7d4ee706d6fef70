/* SPDX-License-Identifier: MIT
 *
 * reconcile.c: `semel inbox reconcile`: asks now what became of unknown outcomes, by the reconcile of a file's routes.
 */
#include "admin/reconcile.h"
#include "cli/cli.h"

#define IDS_MAX 10000

struct report {
    const struct cli *cli;
    struct semel_buf json;
};

static void report_one(void *ctx, const struct semel_asked *one)
{
    struct report *report = ctx;
    char name[256], shown[256], text[500];
    if (report->cli->json)
        semel__ops_json_asked(&report->json, one);
    semel__str_show(name, sizeof(name), one->id);
    semel__str_show(shown, sizeof(shown), one->consumer);
    semel__str_show(text, sizeof(text), one->why);
    cli_say(report->cli, "%s (%s) %s%s%s", name, shown, one->known ? "known" : "unknown", text[0] != '\0' ? ": " : "",
            text);
}

static int print_sum(struct report *report, const struct semel_reconcile_sum *sum)
{
    struct semel_buf whole;
    if (!report->cli->json) {
        cli_say(report->cli, "%zu asked for: %zu known, %zu unknown", sum->found, sum->known, sum->unknown);
        return CLI_OK;
    }
    semel__buf_init(&whole, CLI_JSON_MAX);
    semel__ops_json_reconcile(&whole, sum, semel__buf_str(&report->json));
    whole.failed |= report->json.failed;
    return cli_json_print(&whole);
}

static int end(struct report *report, const struct cli_args *args, const struct semel_reconcile_sum *sum)
{
    if (sum->routes == 0)
        return cli_fail(CLI_USAGE, "%s has no route%s%s with `reconcile`: nobody can be asked", cli_operand(args, 0),
                        cli_value(args, "consumer") != NULL ? " " : "",
                        cli_value(args, "consumer") != NULL ? cli_value(args, "consumer") : "");
    int code = print_sum(report, sum);
    if (code == CLI_OK && sum->found == 0 && cli_n(args) > 1)
        code = cli_fail(CLI_NOTHING, "no such message is unknown");
    return code == CLI_OK && sum->unknown > 0 ? CLI_FAILED : code;
}

static int ask(struct cli *cli, const struct cli_args *args, const struct semel_conf *conf)
{
    struct report report = {.cli = cli};
    struct semel_reconcile_messages what = {.consumer = cli_value(args, "consumer"),
                                            .report = report_one,
                                            .ctx = &report};
    struct semel_reconcile_sum sum;
    struct semel_error err = {0};
    const char **ids = semel__arena_alloc(&cli->arena, cli_n(args), sizeof(*ids));
    if (ids == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 1; i < cli_n(args); i++)
        ids[what.n_ids++] = cli_operand(args, i);
    what.ids = ids;
    semel__buf_init(&report.json, CLI_JSON_MAX);
    semel_status status = semel__reconcile_messages(conf, cli_store_drivers(), &what, &sum, &err);
    int code = status != SEMEL_OK ? cli_fail_error(status, &err, "asking") : end(&report, args, &sum);
    semel__buf_done(&report.json);
    return code;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    struct semel_conf *conf = NULL;
    int code = cli_conf_load(cli_operand(args, 0), &conf);
    if (code == CLI_OK)
        code = ask(cli, args, conf);
    semel__conf_free(conf);
    return code;
}

static const struct cli_option options[] = {
    {"consumer", 'c', "NAME", "only this route"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_reconcile = {
    .name = "reconcile",
    .summary = "ask now what became of messages whose outcome is unknown",
    .operands = "FILE [ID]...",
    .operands_min = 1,
    .operands_max = IDS_MAX,
    .options = options,
    .help =
        "Asks the other side by the `reconcile` of the file's routes, with the Idempotency-Key of each message, and\n"
        "records the answer: done, refused, or not done, so that it is tried again. A running daemon asks, too, less\n"
        "and less often; this asks at once and needs no daemon. Nothing is ever repeated on a guess. Where nobody can\n"
        "be asked, decide by semel inbox resolve, retry or discard.\n"
        "\n"
        "Exit codes: 0 nothing is unknown any more; 1 something still is; 2 no route has a reconcile; 3 no such\n"
        "message is unknown; 5 the store fails.\n"
        "\n"
        "Examples:\n"
        "  semel inbox reconcile semel.yaml\n"
        "  semel inbox reconcile semel.yaml pay-17 --consumer billing --json",
    .run = run,
};
