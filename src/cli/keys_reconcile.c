/* SPDX-License-Identifier: MIT
 *
 * keys_reconcile.c: `semel keys reconcile`, a face of admin/reconcile.h.
 */
#include "admin/reconcile.h"
#include "cli/cli.h"

#define WAIT_MS UINT64_MAX /* as long as the settings let a request wait */

static int load(const char *file, struct semel_conf **ret)
{
    struct semel_conf_mistakes *mistakes = semel__calloc(1, sizeof *mistakes);
    struct semel_error err = {0};
    int code = CLI_OK;
    if (mistakes == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    semel__conf_mistakes_init(mistakes);
    semel_status status = semel__conf_load(file, ret, mistakes, &err);
    if (status != SEMEL_OK)
        code = mistakes->n > 0 ? cli_conf_mistakes(file, mistakes) : cli_fail(CLI_FAILED, "%s", err.text);
    semel__conf_mistakes_done(mistakes);
    semel__free(mistakes);
    return code;
}

/* The word of the key's own, or of what was done to it. */
static int print(struct cli *cli, const char *key, const struct semel_reconcile *found)
{
    static const int codes[] = {[SEMEL_RECONCILE_NO_SUCH] = CLI_NOTHING,
                                [SEMEL_RECONCILE_REFUSED] = CLI_REFUSED,
                                [SEMEL_RECONCILE_NO_ANSWER] = CLI_FAILED};
    const struct semel_key_report *report = &found->report;
    int code = CLI_OK;
    if (found->end != SEMEL_RECONCILE_REPORTED)
        return cli_fail(codes[found->end], "%s: %s", key, found->text);
    if (report->kind == SEMEL_DID)
        cli_say(cli, "%s %s", key, report->text);
    else
        code = cli_fail(report->judged == SEMEL_KEY_NO_SUCH ? CLI_NOTHING : CLI_REFUSED, "%s %s", key, report->text);
    if (cli->json) {
        struct semel_buf json;
        semel__buf_init(&json, CLI_JSON_MAX);
        semel__ops_json_key_report(&json, report);
        const int printed = cli_json_print(&json);
        code = printed != CLI_OK ? printed : code;
    }
    return code;
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

static int run(struct cli *cli, const struct cli_args *args)
{
    const char *file = cli_value(args, "settings");
    struct semel_conf *conf = NULL;
    struct semel_str reason;
    struct semel_ops ops;
    if (file == NULL)
        return cli_fail(CLI_USAGE, "--settings FILE is required: its gateways have the URL that is asked");
    int code = cli_reason(args, true, &reason);
    if (code == CLI_OK)
        code = load(file, &conf);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, true, &ops);
    if (code == CLI_OK) {
        code = reconcile(cli, args, &ops, conf, reason);
        cli_ops_close(&ops);
    }
    semel__conf_free(conf);
    return code;
}

static const struct cli_option options[] = {
    {"settings", 'f', "FILE", "the settings of semel run, whose gateways have the URL (needed)"},
    {"reason", 'r', "TEXT", "why; goes to the audit log with your name ($SEMEL_USER, else your login)"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_keys_reconcile = {
    .name = "reconcile",
    .summary = "ask now what became of a key whose outcome is unknown, and end it by the answer",
    .operands = "CALLER KEY",
    .operands_min = 2,
    .operands_max = 2,
    .options = options,
    .help =
        "Asks the URL `reconcile` of the rule that the key was claimed under. done ends it with the answer that is\n"
        "named there, not_done releases it, once its first call can no longer be running; else it stays unknown\n"
        "(exit codes 1 and 4). The gateway does the same by itself when the request comes again.\n"
        "\n"
        "Example:\n"
        "  semel keys reconcile customer-17 7d0f1f2e-8a4b-4c55 --settings semel.yaml --reason 'ticket 811'",
    .run = run,
};
