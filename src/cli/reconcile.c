/* SPDX-License-Identifier: MIT
 *
 * reconcile.c: `semel inbox reconcile`: asks now what became of unknown outcomes, by the reconcile of a file's routes.
 */
#include "cli/cli.h"
#include "conf/conf.h"
#include "daemon/daemon.h"

#define IDS_MAX 10000

struct report {
    const struct cli *cli;
    struct semel_buf json;
};

static void report_one(void *ctx, struct semel_str consumer, struct semel_str id, const char *result,
                       struct semel_str why)
{
    struct report *report = ctx;
    struct semel_object object;
    char name[256], shown[256], text[500];
    if (report->cli->json) {
        semel__object_init(&object);
        semel__object_text(&object, "consumer", consumer);
        semel__object_text(&object, "id", id);
        semel__object_text(&object, "result", semel__str(result));
        semel__object_text(&object, "why", why);
        struct semel_str one = semel__object_end(&object);
        semel__buf_addz(&report->json, report->json.n > 0 ? "," : "");
        semel__buf_add(&report->json, one.p, one.n);
        report->json.failed |= object.buf.failed;
        semel__object_done(&object);
    }
    semel__str_show(name, sizeof(name), id);
    semel__str_show(shown, sizeof(shown), consumer);
    semel__str_show(text, sizeof(text), why);
    cli_say(report->cli, "%s (%s) %s%s%s", name, shown, result, text[0] != '\0' ? ": " : "", text);
}

static int print_sum(struct report *report, const struct semel_reconcile_sum *sum)
{
    struct semel_object object;
    struct semel_buf list;
    if (!report->cli->json) {
        cli_say(report->cli, "%zu asked for: %zu known, %zu unknown", sum->found, sum->known, sum->unknown);
        return CLI_OK;
    }
    semel__buf_init(&list, CLI_JSON_MAX);
    semel__buf_addz(&list, "[");
    semel__buf_add(&list, report->json.p, report->json.n);
    semel__buf_addz(&list, "]");
    semel__object_init(&object);
    semel__object_number(&object, "found", (int64_t)sum->found);
    semel__object_number(&object, "known", (int64_t)sum->known);
    semel__object_number(&object, "unknown", (int64_t)sum->unknown);
    semel__object_raw(&object, "messages", semel__buf_str(&list));
    object.buf.failed |= list.failed || report->json.failed;
    semel__buf_done(&list);
    return cli_object_print(&object);
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
    const struct semel_daemon_options options = {.stores = cli_store_drivers(), .file = cli_operand(args, 0)};
    struct report report = {.cli = cli};
    struct semel_reconcile what = {.consumer = cli_value(args, "consumer"), .report = report_one, .ctx = &report};
    struct semel_reconcile_sum sum;
    struct semel_error err = {0};
    const char **ids = semel__arena_alloc(&cli->arena, cli_n(args), sizeof(*ids));
    if (ids == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 1; i < cli_n(args); i++)
        ids[what.n_ids++] = cli_operand(args, i);
    what.ids = ids;
    semel__buf_init(&report.json, CLI_JSON_MAX);
    semel_status status = semel__daemon_reconcile(conf, &options, &what, &sum, &err);
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
