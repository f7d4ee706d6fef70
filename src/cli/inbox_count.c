/* SPDX-License-Identifier: MIT
 *
 * inbox_count.c: what a bulk command would meet: how many messages match, and of which causes. Shown before anything is
 * chosen; with --dry-run it is all that is done.
 */
#include "base/error.h"
#include "cli/inbox.h"

#define GROUPS_SHOWN 20
#define LOOKED_AT_MAX 5000000 /* rows that may be walked to find what matches */

static void groups_json(const struct semel_group *groups, size_t n, struct cli_object *object)
{
    struct semel_buf list;
    struct cli_object one;
    semel__buf_init(&list, 16 << 20);
    semel__buf_addz(&list, "[");
    for (size_t i = 0; i < n; i++) {
        cli_object_init(&one);
        cli_object_number(&one, "count", groups[i].n);
        cli_object_text(&one, "consumer", groups[i].consumer);
        cli_object_text(&one, "status", semel__str(semel__state_name(groups[i].state)));
        cli_object_text(&one, "class", groups[i].error_class);
        cli_object_text(&one, "error", groups[i].error_text);
        cli_object_text(&one, "example", groups[i].id);
        struct semel_str text = cli_object_end(&one);
        semel__buf_addz(&list, i > 0 ? "," : "");
        semel__buf_add(&list, text.p, text.n);
        cli_object_done(&one);
    }
    semel__buf_addz(&list, "]");
    cli_object_raw(object, "groups", semel__buf_str(&list));
    semel__buf_done(&list);
}

static int print_count(const struct cli *cli, int64_t total, const struct semel_group *groups, size_t n)
{
    static const struct cli_column columns[] = {
        {"messages", CLI_NUMBER, false}, {"consumer", CLI_TEXT, false}, {"status", CLI_TEXT, false},
        {"class", CLI_TEXT, false},      {"error", CLI_TEXT, true},     {"example", CLI_TEXT, false},
    };
    size_t shown = n < GROUPS_SHOWN ? n : GROUPS_SHOWN;
    if (cli->json)
        return CLI_OK;
    struct cli_table *table = cli_table_new(cli, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < shown && table != NULL; i++) {
        cli_table_number(table, groups[i].n);
        cli_table_text(table, groups[i].consumer);
        cli_table_text(table, semel__str(semel__state_name(groups[i].state)));
        cli_table_text(table, groups[i].error_class);
        cli_table_text(table, groups[i].error_text);
        cli_table_text(table, groups[i].id);
    }
    int code = cli_table_print(table, NULL);
    if (n > shown)
        cli_say(cli, "and %zu more causes", n - shown);
    cli_say(cli, "%lld message%s, %zu cause%s", (long long)total, total == 1 ? "" : "s", n, n == 1 ? "" : "s");
    return code;
}

int inbox_count_dry(const struct cli *cli, enum semel_order_word word, int64_t total, const struct semel_group *groups,
                    size_t n)
{
    struct cli_object o;
    const char *name = inbox_word_names[word];
    if (!cli->json) {
        cli_say(cli, "would %s up to %lld messages; nothing was changed", name, (long long)total);
        return CLI_OK;
    }
    cli_object_init(&o);
    cli_object_bool(&o, "dry_run", true);
    cli_object_text(&o, "word", semel__str(name));
    cli_object_number(&o, "messages", total);
    groups_json(groups, n < GROUPS_SHOWN ? n : GROUPS_SHOWN, &o);
    return cli_object_print(&o);
}

int inbox_count(const struct cli *cli, const struct cli_args *args, struct semel_store *store,
                const struct semel_filter *filter, enum semel_order_word word, bool *ret_dry)
{
    struct semel_arena arena;
    struct semel_error err = {0};
    struct semel_group *groups = NULL;
    size_t n = 0;
    bool capped = false;
    int64_t total = 0;
    int code;
    semel__arena_init(&arena, (size_t)512 << 20);
    semel_status status = semel_look_groups(store, filter, LOOKED_AT_MAX, INBOX_SELECTION_MAX + 1, &arena, &groups, &n,
                                            &capped, &err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        total += groups[i].n;
    *ret_dry = cli_flag(args, "dry-run");
    if (status != SEMEL_OK)
        code = cli_fail_error(status, &err, "counting what matches");
    else if (capped)
        code = cli_fail(CLI_REFUSED,
                        "more than %d messages would have to be looked at: say more, e.g. --consumer or --key",
                        LOOKED_AT_MAX);
    else if (total == 0)
        code = cli_fail(CLI_NOTHING, "no message matches");
    else if (total > INBOX_SELECTION_MAX)
        code = cli_fail(CLI_REFUSED, "more than %d messages match: choose fewer, e.g. with --newer or --error",
                        INBOX_SELECTION_MAX);
    else
        code = print_count(cli, total, groups, n);
    if (code == CLI_OK && *ret_dry)
        code = inbox_count_dry(cli, word, total, groups, n);
    semel__arena_done(&arena);
    return code;
}
