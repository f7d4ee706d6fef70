/* SPDX-License-Identifier: MIT
 *
 * inbox_ls.c: `semel inbox ls`: a page of messages, or groups of them by what went wrong.
 *
 * Invariants: at most --limit rows are printed and one more is read, to know whether there is a next page; a page is
 * named by the arrival of its last row, so that paging skips nothing and repeats nothing while new messages come.
 */
#include "base/error.h"
#include "cli/inbox.h"

#define LIMIT 50
#define LIMIT_MAX 10000
#define GROUPED_MAX 100000 /* rows that are looked at for groups */

/* ---- a page -------------------------------------------------------------------------------------- */

/* For programs all of them, for people those that say something on this page. */
enum column {
    ARRIVAL,
    ID,
    CONSUMER,
    SOURCE,
    TYPE,
    STATUS,
    ATTEMPTS,
    KEY,
    VERSION,
    RECEIVED,
    UPDATED,
    DUE,
    CLASS,
    ERROR
};
#define COLUMNS (ERROR + 1)

static const struct cli_column columns[COLUMNS] = {
    [ARRIVAL] = {"arrival", CLI_NUMBER, false},
    [ID] = {"id", CLI_TEXT, false},
    [CONSUMER] = {"consumer", CLI_TEXT, false},
    [SOURCE] = {"source", CLI_TEXT, false},
    [TYPE] = {"type", CLI_TEXT, true},
    [STATUS] = {"status", CLI_TEXT, false},
    [ATTEMPTS] = {"attempts", CLI_NUMBER, false},
    [KEY] = {"key", CLI_TEXT, false},
    [VERSION] = {"version", CLI_NUMBER, false},
    [RECEIVED] = {"received", CLI_TIME, false},
    [UPDATED] = {"updated", CLI_TIME, false},
    [DUE] = {"due", CLI_TIME, false},
    [CLASS] = {"class", CLI_TEXT, false},
    [ERROR] = {"error", CLI_TEXT, true},
};

static bool says_something(enum column column, const struct semel_row *rows, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n && !any; i++)
        switch (column) {
        case SOURCE:
            any = rows[i].source.n > 0;
            break;
        case TYPE:
            any = rows[i].type.n > 0;
            break;
        case KEY:
            any = semel__str_given(rows[i].order_key);
            break;
        case VERSION:
            any = rows[i].version != SEMEL_NONE;
            break;
        case DUE:
            any = rows[i].live.due_us != SEMEL_NONE;
            break;
        case CLASS:
        case ERROR:
            any = rows[i].live.error_class != SEMEL_CLASS_NONE;
            break;
        case ARRIVAL:
        case UPDATED:
            return false;
        case ID:
        case CONSUMER:
        case STATUS:
        case ATTEMPTS:
        case RECEIVED:
            return true;
        }
    return any;
}

static struct semel_str class_text(enum semel_class cls)
{
    return cls != SEMEL_CLASS_NONE ? semel__str(semel__class_name(cls)) : (struct semel_str){0};
}

static void put_cell(struct cli_table *table, enum column column, const struct semel_row *row)
{
    const struct semel_str texts[COLUMNS] = {
        [ID] = row->id,
        [CONSUMER] = row->consumer,
        [SOURCE] = row->source,
        [TYPE] = row->type,
        [STATUS] = semel__str(semel__state_name(row->live.state)),
        [KEY] = row->order_key,
        [CLASS] = class_text(row->live.error_class),
        [ERROR] = row->live.error_text,
    };
    const int64_t numbers[COLUMNS] = {
        [ARRIVAL] = row->arrival,      [ATTEMPTS] = row->live.attempts, [VERSION] = row->version,
        [RECEIVED] = row->received_us, [UPDATED] = row->updated_us,     [DUE] = row->live.due_us,
    };
    if (columns[column].type == CLI_TEXT)
        cli_table_text(table, texts[column]);
    else
        cli_table_number(table, numbers[column]);
}

static int print_rows(const struct cli *cli, const struct semel_row *rows, size_t n)
{
    struct cli_column chosen[COLUMNS];
    enum column which[COLUMNS];
    size_t k = 0;
    for (enum column c = ARRIVAL; c < COLUMNS; c++)
        if (cli->json || says_something(c, rows, n)) {
            chosen[k] = columns[c];
            which[k++] = c;
        }
    struct cli_table *table = cli_table_new(cli, chosen, k);
    for (size_t i = 0; i < n && table != NULL; i++)
        for (size_t c = 0; c < k; c++)
            put_cell(table, which[c], &rows[i]);
    return cli_table_print(table, NULL);
}

static void tell_next(const struct cli_args *args, int64_t limit, int64_t after)
{
    struct semel_buf buf;
    semel__buf_init(&buf, CLI_EXPLAIN_MAX);
    semel__buf_addz(&buf, "semel inbox ls");
    inbox_put_filters(&buf, args);
    if (limit != LIMIT)
        semel__buf_addf(&buf, " --limit %lld", (long long)limit);
    semel__buf_addf(&buf, " --after %lld", (long long)after);
    fflush(stdout);
    if (!buf.failed)
        fprintf(stderr, "there are more: %.*s\n", (int)buf.n, buf.p);
    semel__buf_done(&buf);
}

static int list(struct cli *cli, const struct cli_args *args, struct semel_store *store,
                const struct semel_filter *filter)
{
    struct semel_error err = {0};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    int64_t limit, after;
    if (!cli_int(args, "limit", 1, LIMIT_MAX, LIMIT, &limit) || !cli_int(args, "after", 0, INT64_MAX, 0, &after))
        return CLI_USAGE;
    semel_status status = semel_look_list(store, filter, after > 0 ? after : SEMEL_NONE, (size_t)limit + 1, false,
                                          &cli->arena, &rows, &n, &damaged, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "listing the inbox");
    bool more = n > (size_t)limit;
    n = more ? (size_t)limit : n;
    if (n == 0)
        cli_say(cli, "no messages");
    int code = n > 0 || cli->json ? print_rows(cli, rows, n) : CLI_OK;
    if (damaged > 0)
        cli_fail(code, "%zu rows cannot be read as Semel's and are not listed", damaged);
    if (more)
        tell_next(args, limit, rows[n - 1].arrival);
    return code;
}

/* ---- groups -------------------------------------------------------------------------------------- */

static int print_groups(const struct cli *cli, const struct semel_group *groups, size_t n)
{
    static const struct cli_column heads[] = {
        {"count", CLI_NUMBER, false}, {"consumer", CLI_TEXT, false}, {"status", CLI_TEXT, false},
        {"class", CLI_TEXT, false},   {"error", CLI_TEXT, true},     {"oldest", CLI_TIME, false},
        {"newest", CLI_TIME, false},  {"example", CLI_TEXT, false},
    };
    struct cli_table *table = cli_table_new(cli, heads, sizeof heads / sizeof heads[0]);
    for (size_t i = 0; i < n && table != NULL; i++) {
        cli_table_number(table, groups[i].n);
        cli_table_text(table, groups[i].consumer);
        cli_table_text(table, semel__str(semel__state_name(groups[i].state)));
        cli_table_text(table, groups[i].error_class);
        cli_table_text(table, groups[i].error_text);
        cli_table_number(table, groups[i].first_us);
        cli_table_number(table, groups[i].last_us);
        cli_table_text(table, groups[i].id);
    }
    return cli_table_print(table, NULL);
}

static int group(struct cli *cli, const struct cli_args *args, struct semel_store *store,
                 const struct semel_filter *filter)
{
    struct semel_error err = {0};
    struct semel_group *groups = NULL;
    size_t n = 0;
    bool capped = false;
    int64_t limit;
    if (!cli_int(args, "limit", 1, LIMIT_MAX, LIMIT, &limit))
        return CLI_USAGE;
    if (cli_value(args, "after") != NULL)
        return cli_fail(CLI_USAGE, "--after is for lists: groups have no pages; take a larger --limit");
    semel_status status = semel_look_groups(store, filter, GROUPED_MAX, (size_t)limit, &cli->arena, &groups, &n,
                                            &capped, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "grouping the inbox");
    if (n == 0)
        cli_say(cli, "no messages");
    int code = n > 0 || cli->json ? print_groups(cli, groups, n) : CLI_OK;
    if (capped)
        cli_fail(code, "only the first %d messages that match were looked at", GROUPED_MAX);
    return code;
}

/* ---- the command --------------------------------------------------------------------------------- */

static int run(struct cli *cli, const struct cli_args *args)
{
    struct semel_filter filter;
    const char *by = cli_value(args, "group-by");
    int code = CLI_OK;
    if (by != NULL && strcmp(by, "error") != 0)
        return cli_fail(CLI_USAGE, "--group-by is '%s'; it must be error", by);
    if (!inbox_filter(args, semel__now(&semel__clock_real), &filter))
        return CLI_USAGE;
    struct semel_store *store = cli_store_open(args, false, &code);
    if (store == NULL)
        return code;
    code = by != NULL ? group(cli, args, store, &filter) : list(cli, args, store, &filter);
    semel_store_close(store);
    return code;
}

static const struct cli_option options[] = {
    INBOX_FILTER_OPTIONS,
    {"group-by", 0, "error", "count by consumer, status, class and text of the last error"},
    {"limit", 'n', "N", "at most N lines (default 50, at most 10000)"},
    {"after", 0, "ARRIVAL", "the next page: only what arrived after this"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

const struct cli_command inbox_ls = {
    .name = "ls",
    .summary = "list messages, oldest first",
    .operands = "",
    .options = options,
    .help = "Examples:\n"
            "  semel inbox ls --dead\n"
            "  semel inbox ls --consumer billing --status failed,unknown --older 1h\n"
            "  semel inbox ls --dead --group-by error",
    .run = run,
};
