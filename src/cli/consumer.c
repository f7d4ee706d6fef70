/* SPDX-License-Identifier: MIT
 *
 * consumer.c: `semel consumer ls|show|set`: what consumers promise and allow; a skin on ops/consumer.c.
 */
#include "base/clock.h"
#include "base/error.h"
#include "cli/cli.h"
#include "ops/ops.h"

/* ---- ls ------------------------------------------------------------------------------------------ */

static int print_lines(const struct cli *cli, const struct semel_consumer_line *lines, size_t n)
{
    static const struct cli_column columns[] = {
        {"consumer", CLI_TEXT, true},
        {"guarantee", CLI_TEXT, false},
        {"settings", CLI_TEXT, true},
    };
    struct cli_table *table = cli_table_new(cli, columns, 3);
    for (size_t i = 0; i < n && table != NULL; i++) {
        cli_table_text(table, lines[i].name);
        cli_table_text(table, semel__str(lines[i].guarantee.text));
        cli_table_text(table, lines[i].settings);
    }
    return cli_table_print(table);
}

static int run_ls(struct cli *cli, const struct cli_args *args)
{
    struct semel_error err = {0};
    struct semel_consumer_line *lines = NULL;
    struct semel_buf json;
    struct semel_ops ops;
    size_t n = 0;
    int code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    semel_status status = semel__ops_consumers(&ops, (struct semel_str){0}, SIZE_MAX, &lines, &n, &err);
    cli_ops_close(&ops);
    if (cli->json) {
        semel__buf_init(&json, CLI_JSON_MAX);
        semel__ops_json_consumers(&json, lines, n);
        code = cli_json_print(&json);
    } else {
        code = print_lines(cli, lines, n);
    }
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "listing the consumers");
    if (code == CLI_OK && n == 0)
        cli_say(cli, "there are no consumers yet");
    return code;
}

/* ---- show ---------------------------------------------------------------------------------------- */

struct shown {
    struct cli_table *table;
    const char *values; /* as semel__policy_write wrote them: no value has a comma or a quote in it */
};

static struct semel_str value_of(const char *values, const char *name)
{
    char key[64];
    int n = snprintf(key, sizeof(key), "\"%s\":", name);
    const char *at = strstr(values, key);
    if (at == NULL)
        return (struct semel_str){0};
    at += n;
    size_t quote = *at == '"' ? 1 : 0;
    return (struct semel_str){at + quote, strcspn(at + quote, quote > 0 ? "\"" : ",}")};
}

static void show_member(void *ctx, const char *name, const char *kind, const char *value, const char *help)
{
    struct shown *shown = ctx;
    cli_table_text(shown->table, semel__str(name));
    cli_table_text(shown->table, value_of(shown->values, name));
    cli_table_text(shown->table, semel__str(value));
    cli_table_text(shown->table, semel__str(kind));
    cli_table_text(shown->table, semel__str(help));
}

static int print_json(const struct semel_policy *policy, const struct semel_set_by *by, const char *note)
{
    struct semel_buf json;
    semel__buf_init(&json, CLI_JSON_MAX);
    semel__ops_json_consumer(&json, policy, by, note);
    return cli_json_print(&json);
}

static int print_table(struct cli *cli, const struct semel_policy *policy, const struct semel_set_by *by)
{
    static const struct cli_column columns[] = {
        {"setting", CLI_TEXT, false}, {"value", CLI_TEXT, false},  {"default", CLI_TEXT, false},
        {"allowed", CLI_TEXT, true},  {"meaning", CLI_TEXT, true},
    };
    struct semel_buf buf;
    char at[SEMEL_TIME_TEXT];
    int code = CLI_OK;
    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    semel__policy_write(policy, &buf);
    semel__buf_add(&buf, "", 1);
    if (buf.failed) {
        code = cli_fail(CLI_FAILED, "out of memory");
    } else {
        struct shown shown = {cli_table_new(cli, columns, 5), buf.p};
        cli_say(cli, "%.*s: %s", (int)policy->consumer.n, policy->consumer.p, semel__ops_guarantee(policy).text);
        if (semel__str_given(by->file)) { /* which file sets it, and since when */
            semel__time_format(by->at_us, at);
            cli_say(cli, "set by %.*s on %.*s, %s", (int)by->file.n, by->file.p, (int)by->host.n, by->host.p, at);
        }
        if (shown.table != NULL)
            semel__policy_members(show_member, &shown);
        code = cli_table_print(shown.table);
    }
    semel__buf_done(&buf);
    return code;
}

static int run_show(struct cli *cli, const struct cli_args *args)
{
    struct semel_str name = semel__str(cli_operand(args, 0));
    struct semel_consumer_shown shown = {0};
    struct semel_error err = {0};
    struct semel_ops ops;
    bool known = false;
    int code = cli_ops_open(cli, args, false, &ops);
    if (code != CLI_OK)
        return code;
    semel_status status = semel__ops_consumer(&ops, name, &shown, &known, &err);
    cli_ops_close(&ops);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reading the settings");
    if (!known)
        return cli_fail(CLI_NOTHING, "there is no consumer '%s': it has neither messages nor settings", name.p);
    return cli->json ? print_json(&shown.policy, &shown.by, NULL) : print_table(cli, &shown.policy, &shown.by);
}

/* ---- set ----------------------------------------------------------------------------------------- */

/* What is stored speaks against it; the command that would do it all the same. */
static int fail_refused(struct cli *cli, const struct cli_args *args, const struct semel_setting *now,
                        const struct semel_error *err)
{
    struct semel_buf words;
    semel__buf_init(&words, (size_t)2 * SEMEL_SETTINGS_MAX);
    semel__buf_addf(&words, "consumer set %s ", cli_word(cli, cli_operand(args, 0)));
    semel__buf_addf(&words, "%s --force --reason '...'", cli_word(cli, now->change.p));
    semel__buf_add(&words, "", 1);
    int code = words.failed ? cli_fail(CLI_REFUSED, "%s", err->text)
                            : cli_fail(CLI_REFUSED, "%s; to do it all the same: %s", err->text,
                                       cli_again(cli, words.p, cli_value(args, "store")));
    semel__buf_done(&words);
    return code;
}

static int set_by_person(struct cli *cli, const struct cli_args *args, struct semel_str settings,
                         struct semel_setting *ret)
{
    struct semel_str reason;
    bool force = cli_flag(args, "force");
    struct semel_error err = {0};
    struct semel_ops ops;
    int code = cli_reason(args, force, &reason);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, true, &ops);
    if (code != CLI_OK)
        return code;
    semel_status status = semel__ops_consumer_set(&ops, semel__str(cli_operand(args, 0)), settings, reason, force, ret,
                                                  &err);
    cli_ops_close(&ops);
    if (ret->refused)
        return fail_refused(cli, args, ret, &err);
    if (status == SEMEL_INVALID && err.code == 0)
        return cli_fail(CLI_USAGE, "%s", err.text);
    return status == SEMEL_OK ? CLI_OK : cli_fail_error(status, &err, "storing the settings");
}

static int run_set(struct cli *cli, const struct cli_args *args)
{
    struct semel_str settings;
    struct semel_setting now;
    int code = cli_input(cli, cli_operand(args, 1), "the settings", SEMEL_SETTINGS_MAX, &settings);
    if (code == CLI_OK)
        code = set_by_person(cli, args, settings, &now);
    if (code != CLI_OK)
        return code;
    cli_say(cli, "%s: %s, %s", cli_operand(args, 0), semel__ops_guarantee(&now.policy).text,
            now.changed ? now.change.p : "nothing changed");
    if (now.hint != NULL)
        cli_say(cli, "note: %s", now.hint);
    return cli->json ? print_json(&now.policy, NULL, now.hint) : CLI_OK;
}

/* ---- the commands -------------------------------------------------------------------------------- */

static const struct cli_option options[] = {
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

static const struct cli_command ls = {
    .name = "ls",
    .summary = "list the consumers, their guarantees and what was set for them",
    .options = options,
    .help = "Examples\n"
            "  semel consumer ls --store sqlite:shop.db",
    .run = run_ls,
};

static const struct cli_command show_command = {
    .name = "show",
    .summary = "show all settings that hold for a consumer",
    .operands = "CONSUMER",
    .operands_min = 1,
    .operands_max = 1,
    .options = options,
    .help = "Exit code 3: the consumer has neither messages nor settings.\n"
            "\n"
            "Examples\n"
            "  semel consumer show billing --store sqlite:shop.db",
    .run = run_show,
};

static const struct cli_option set_options[] = {
    {"force", 0, NULL, "also what stored messages or a route's file speak against; needs --reason"},
    {"reason", 'r', "TEXT", "why; goes to the audit log with your name ($SEMEL_USER, else your login)"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

static const struct cli_command set = {
    .name = "set",
    .summary = "change settings of a consumer",
    .operands = "CONSUMER JSON|@FILE|-",
    .operands_min = 2,
    .operands_max = 2,
    .options = set_options,
    .help =
        "JSON is an object with the settings that are to change; semel consumer show lists all of them. The others\n"
        "stay as they are; null takes one back to its default, {} changes nothing. What is unknown or out of range\n"
        "is refused with exit code 2, and nothing is changed.\n"
        "\n"
        "Exit code 4: stored messages would mean something else under the new settings, and the error has their\n"
        "number; or a route's file sets the consumer, and must be changed instead. --force does it all the same,\n"
        "and the consumer is no longer the file's until a route sets it again. Every change goes to the audit log.\n"
        "docs/settings-consumer.md lists which changes are refused.\n"
        "\n"
        "Examples\n"
        "  semel consumer set billing '{\"retry_max\": 12, \"retention\": \"90d\"}' --store sqlite:shop.db\n"
        "  semel consumer set billing '{\"retry_max\": null}' --store sqlite:shop.db\n"
        "  semel consumer set orders '{\"order\": \"none\"}' --force --reason 'ticket 811' --store sqlite:shop.db",
    .run = run_set,
};

static const struct cli_command *const children[] = {&ls, &show_command, &set, NULL};

const struct cli_command cli_consumer = {
    .name = "consumer",
    .summary = "list, show and change what consumers promise and allow",
    .children = children,
};
