/* SPDX-License-Identifier: MIT
 *
 * consumer.c: `semel consumer ls|show|set`: what consumers promise and allow. The settings themselves, their checks and
 * their texts are core/consumer.h's; nothing here knows one by its name but `effect`, of which the guarantee follows.
 */
#include "cli/cli.h"
#include "core/consumer_set.h"
#include "core/look.h"

#define PAGE 500

/* The same JSON on one line, in place: inside of its strings there are no blanks but the blank itself. */
static struct semel_str one_line(struct semel_str json, char *copy)
{
    size_t n = json.n;
    for (size_t i = 0; i < n; i++)
        copy[i] = json.p[i] == '\n' || json.p[i] == '\r' || json.p[i] == '\t' ? ' ' : json.p[i];
    while (n > 0 && copy[n - 1] == ' ')
        n--;
    copy[n] = '\0';
    size_t first = strspn(copy, " ");
    return (struct semel_str){copy + first, n - first};
}

/* ---- ls ------------------------------------------------------------------------------------------ */

static const struct cli_column ls_columns[] = {
    {"consumer", CLI_TEXT, true},
    {"guarantee", CLI_TEXT, false},
    {"settings", CLI_RAW, true},
};

/* One consumer; what is stored, not the defaults: those are the same for all. */
static semel_status ls_one(struct cli_table *table, struct semel_store *store, struct semel_str name,
                           struct semel_arena *arena, struct semel_error *err)
{
    struct semel_policy policy;
    struct semel_str settings = {0};
    char line[SEMEL_SETTINGS_MAX + 1];
    semel_status status = semel_store_consumer_get(store, name, arena, &settings, err);
    if (status != SEMEL_OK)
        return status;
    bool readable = semel__policy_read(name, settings, &policy, NULL, err) == SEMEL_OK;
    cli_table_text(table, name);
    cli_table_text(table, semel__str(readable ? cli_guarantee(&policy) : "DAMAGED"));
    if (!semel__str_given(settings))
        settings = SEMEL_STR("{}");
    cli_table_text(table, settings.n <= SEMEL_SETTINGS_MAX ? one_line(settings, line) : settings);
    return SEMEL_OK;
}

static semel_status ls_all(struct cli_table *table, struct semel_store *store, struct semel_arena *arena, size_t *ret_n,
                           struct semel_error *err)
{
    struct semel_str after = {0}, *names = NULL;
    size_t n = PAGE;
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && n == PAGE) {
        status = semel_store_consumers(store, after, PAGE, arena, &names, &n, err);
        for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
            after = names[i];
            status = ls_one(table, store, names[i], arena, err);
        }
        *ret_n += status == SEMEL_OK ? n : 0;
    }
    return status;
}

static int run_ls(struct cli *cli, const struct cli_args *args)
{
    struct semel_error err = {0};
    size_t n = 0;
    int code = CLI_OK;
    struct semel_store *store = cli_store_open(args, false, &code);
    if (store == NULL)
        return code;
    struct cli_table *table = cli_table_new(cli, ls_columns, 3);
    semel_status status = table != NULL ? ls_all(table, store, &cli->arena, &n, &err) : SEMEL_OK;
    semel_store_close(store);
    code = cli_table_print(table, NULL);
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

/* Which file sets it, and since when. */
static void show_by(struct cli *cli, const struct semel_set_by *by, struct cli_object *object)
{
    char at[40];
    if (by == NULL || !semel__str_given(by->file))
        return;
    semel__time_format(by->at_us, at);
    if (object == NULL) {
        cli_say(cli, "set by %.*s on %.*s, %s", (int)by->file.n, by->file.p, (int)by->host.n, by->host.p, at);
        return;
    }
    cli_object_text(object, "set_by_host", by->host);
    cli_object_text(object, "set_by_file", by->file);
    cli_object_text(object, "set_by_at", semel__str(at));
}

static int show(struct cli *cli, const struct semel_policy *policy, const struct semel_set_by *by)
{
    static const struct cli_column columns[] = {
        {"setting", CLI_TEXT, false}, {"value", CLI_TEXT, false},  {"default", CLI_TEXT, false},
        {"allowed", CLI_TEXT, true},  {"meaning", CLI_TEXT, true},
    };
    struct semel_buf buf;
    int code = CLI_OK;
    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    semel__policy_write(policy, &buf);
    semel__buf_add(&buf, "", 1);
    if (buf.failed) {
        code = cli_fail(CLI_FAILED, "out of memory");
    } else if (cli->json) {
        struct cli_object object;
        cli_object_init(&object);
        cli_object_text(&object, "consumer", policy->consumer);
        cli_object_text(&object, "guarantee", semel__str(cli_guarantee(policy)));
        cli_object_raw(&object, "settings", semel__str(buf.p));
        show_by(cli, by, &object);
        code = cli_object_print(&object);
    } else {
        struct shown shown = {cli_table_new(cli, columns, 5), buf.p};
        cli_say(cli, "%.*s: %s", (int)policy->consumer.n, policy->consumer.p, cli_guarantee(policy));
        show_by(cli, by, NULL);
        if (shown.table != NULL)
            semel__policy_members(show_member, &shown);
        code = cli_table_print(shown.table, NULL);
    }
    semel__buf_done(&buf);
    return code;
}

/* A consumer is known by its settings or by its messages. */
static semel_status known(struct semel_store *store, struct semel_str name, struct semel_arena *arena, bool *ret_known,
                          struct semel_consumer *ret, struct semel_error *err)
{
    struct semel_count *counts = NULL;
    size_t n = 0;
    semel_status status = semel_store_consumer_read(store, name, false, arena, ret, err);
    if (status == SEMEL_OK && !semel__str_given(ret->settings))
        status = semel_look_counts(store, name, 1, 1, arena, &counts, &n, err);
    *ret_known = semel__str_given(ret->settings) || n > 0;
    return status;
}

static int run_show(struct cli *cli, const struct cli_args *args)
{
    struct semel_str name = semel__str(cli_operand(args, 0));
    struct semel_policy policy;
    struct semel_consumer stored = {0};
    struct semel_error err = {0};
    bool is_known = false;
    int code = CLI_OK;
    struct semel_store *store = cli_store_open(args, false, &code);
    if (store == NULL)
        return code;
    semel_status status = known(store, name, &cli->arena, &is_known, &stored, &err);
    if (status == SEMEL_OK && is_known)
        status = semel__consumer_use(name, stored.settings, &policy, NULL, &err);
    semel_store_close(store);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reading the settings");
    if (!is_known)
        return cli_fail(CLI_NOTHING, "there is no consumer '%s': it has neither messages nor settings", name.p);
    return show(cli, &policy, &stored.by);
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
    struct semel_setter by = {.reason = semel__str(cli_value(args, "reason")), .force = cli_flag(args, "force")};
    struct semel_error err = {0};
    int code = cli_who(cli, &by.who);
    if (code != CLI_OK)
        return code;
    if (by.force && by.reason.n == 0)
        return cli_fail(CLI_REFUSED, "say why: --reason TEXT goes into the audit");
    struct semel_store *store = cli_store_open(args, false, &code);
    if (store == NULL)
        return code;
    semel_status status = semel__consumer_change(store, semel__str(cli_operand(args, 0)), settings, &by, &cli->arena,
                                                 ret, &err);
    semel_store_close(store);
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
    cli_say(cli, "%s: %s, %s", cli_operand(args, 0), cli_guarantee(&now.policy),
            now.changed ? now.change.p : "nothing changed");
    if (now.hint != NULL)
        cli_say(cli, "note: %s", now.hint);
    return cli->json ? show(cli, &now.policy, NULL) : CLI_OK;
}

/* ---- the commands -------------------------------------------------------------------------------- */

const char *cli_guarantee(const struct semel_policy *policy)
{
    return policy->effect == SEMEL_EFFECT_ATOMIC ? "ATOMIC" : "GUARDED";
}

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
    {"reason", 'r', "TEXT", "why; goes into the audit with your name ($SEMEL_USER, else your login)"},
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
        "Exit code 4: messages that are stored would mean something else under the new settings, and their number\n"
        "is told; or a route's file sets the consumer, and must be changed instead. --force does it all the same,\n"
        "and the consumer is no longer the file's until a route sets it again. Every change goes into the audit.\n"
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
