/* SPDX-License-Identifier: MIT
 *
 * rows.c: what `semel inbox`, `semel outbox` and `semel keys` share: filters, the next page, tables of rows, the fields
 * of one row and what is to be done about it, payloads, commands to several.
 *
 * Invariants: nothing of a row reaches a terminal as it is, but a payload that was asked for, and then only text. What
 * is cut is said to be cut.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/cli.h"
#include "ops/ops.h"

#define ACT_MAX 2048
#define SHOWN_MAX 2000 /* bytes of a value for people */
#define COLUMNS_MAX 16

/* ---- filters ------------------------------------------------------------------------------------- */

static bool add_all(const struct cli_args *args, const char *const *names, struct semel_option *options, size_t *n)
{
    const char *given;
    for (; *names != NULL; names++)
        for (size_t i = 0; (given = cli_values(args, *names, i)) != NULL; i++) {
            if (*n == CLI_FILTER_MAX)
                return false;
            options[(*n)++] = (struct semel_option){semel__str(*names), semel__str(given)};
        }
    return true;
}

int cli_filter_read(const struct cli_args *args, const struct cli_filter *filter, bool pages, struct semel_option *ret,
                    size_t *ret_n)
{
    static const char *const paging[] = {"limit", "after", NULL};
    size_t n = 0;
    bool ok = add_all(args, filter->whose, ret, &n) && add_all(args, filter->texts, ret, &n) &&
              (!pages || add_all(args, paging, ret, &n));
    for (const char *const *flag = filter->flags; ok && *flag != NULL; flag++)
        if (cli_flag(args, *flag)) {
            ok = n < CLI_FILTER_MAX;
            if (ok)
                ret[n++] = (struct semel_option){semel__str(*flag), SEMEL_STR("true")};
        }
    *ret_n = n;
    return ok ? CLI_OK : cli_fail(CLI_USAGE, "--status is given too often: several may be named with commas between");
}

const char *cli_filter_given(const struct cli_args *args, const struct cli_filter *filter)
{
    for (const char *const *flag = filter->flags; *flag != NULL; flag++)
        if (cli_flag(args, *flag))
            return *flag;
    for (const char *const *name = filter->texts; *name != NULL; name++)
        if (cli_value(args, *name) != NULL)
            return *name;
    return NULL;
}

static void put_all(struct semel_buf *buf, const struct cli_args *args, const char *const *names)
{
    const char *given;
    for (; *names != NULL; names++)
        for (size_t i = 0; (given = cli_values(args, *names, i)) != NULL; i++) {
            semel__buf_addf(buf, " --%s=", *names);
            semel__put_word(buf, semel__str(given));
        }
}

/* As they would be given again. */
static void put_filter(struct semel_buf *buf, const struct cli_args *args, const struct cli_filter *filter)
{
    put_all(buf, args, filter->whose);
    for (const char *const *flag = filter->flags; *flag != NULL; flag++)
        if (cli_flag(args, *flag))
            semel__buf_addf(buf, " --%s", *flag);
    put_all(buf, args, filter->texts);
    if (cli_value(args, "store") != NULL) {
        semel__buf_addz(buf, " --store=");
        semel__put_word(buf, semel__str(cli_store_shown(cli_value(args, "store"))));
    }
}

void cli_filter_next(const struct cli_args *args, const struct cli_filter *filter, const char *command, size_t limit,
                     struct semel_str after)
{
    struct semel_buf buf;
    semel__buf_init(&buf, SEMEL_EXPLAIN_MAX);
    semel__buf_addf(&buf, "semel %s", command);
    put_filter(&buf, args, filter);
    if (limit != SEMEL_LIST_LIMIT)
        semel__buf_addf(&buf, " --limit %zu", limit);
    semel__buf_addz(&buf, " --after ");
    semel__put_word(&buf, after);
    fflush(stdout);
    if (!buf.failed)
        fprintf(stderr, "there are more: %.*s\n", (int)buf.n, buf.p);
    semel__buf_done(&buf);
}

void cli_filter_next_number(const struct cli_args *args, const struct cli_filter *filter, const char *command,
                            size_t limit, int64_t after)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)after);
    cli_filter_next(args, filter, command, limit, semel__str(text));
}

/* ---- a table of them ----------------------------------------------------------------------------- */

static bool is_text(const struct cli_column *column)
{
    return column->type == CLI_TEXT || column->type == CLI_STATUS;
}

/* Is there anything in this column? */
static bool says_something(const struct cli_rows *rows, size_t column)
{
    bool any = false;
    for (size_t i = 0; i < rows->n && !any; i++) {
        int64_t number = SEMEL_NONE;
        struct semel_str text = rows->cell(column, rows->ctx, i, &number);
        any = is_text(&rows->columns[column]) ? text.n > 0 : number != SEMEL_NONE;
    }
    return any;
}

int cli_rows_print(const struct cli *cli, const struct cli_rows *rows)
{
    struct cli_column chosen[COLUMNS_MAX];
    size_t which[COLUMNS_MAX], k = 0;
    if (cli->json && rows->json != NULL)
        return cli_json_of(rows->json, rows->ctx);
    if (rows->n == 0 && rows->none != NULL)
        cli_say(cli, "%s", rows->none);
    if (rows->n == 0)
        return CLI_OK;
    for (size_t c = 0; c < rows->n_columns && k < COLUMNS_MAX; c++)
        if (says_something(rows, c)) {
            chosen[k] = rows->columns[c];
            which[k++] = c;
        }
    struct cli_table *table = cli_table_new(cli, chosen, k);
    for (size_t i = 0; i < rows->n && table != NULL; i++)
        for (size_t c = 0; c < k; c++) {
            int64_t number = SEMEL_NONE;
            struct semel_str text = rows->cell(which[c], rows->ctx, i, &number);
            if (is_text(&chosen[c]))
                cli_table_text(table, text);
            else
                cli_table_number(table, number);
        }
    return cli_table_print(table);
}

/* ---- one of them --------------------------------------------------------------------------------- */

void cli_field(const struct cli *cli, const char *name, struct semel_str value)
{
    char text[SHOWN_MAX + 1];
    if (!semel__str_given(value))
        return;
    semel__str_show(text, sizeof text, value);
    cli_say(cli, "%-14s%s%s", name, text, value.n > SHOWN_MAX ? " ..." : "");
}

void cli_field_when(const struct cli *cli, const char *name, int64_t us, int64_t now_us)
{
    struct semel_buf buf;
    if (us == SEMEL_NONE)
        return;
    semel__buf_init(&buf, 200);
    semel__put_when(&buf, us, now_us);
    cli_field(cli, name, semel__buf_str(&buf));
    semel__buf_done(&buf);
}

void cli_field_payload(const struct cli *cli, struct semel_str payload)
{
    if (semel__utf8_valid(payload))
        cli_field(cli, "payload", payload);
    else
        cli_say(cli, "%-14s%zu bytes that are not text; --payload writes them", "payload", payload.n);
}

/* What an operator did, in one line. */
static void show_act(const struct semel_act_line *act, char out[ACT_MAX])
{
    char at[40], who[SEMEL_ID_MAX + 1], why[SEMEL_ERROR_TEXT_MAX + 1], what[64];
    cli_time(act->at_us, at, sizeof at);
    semel__str_show(who, sizeof who, act->who);
    semel__str_show(what, sizeof what, act->what);
    semel__str_show(why, sizeof why, act->reason);
    snprintf(out, ACT_MAX, "%s  %s  %s: %s", at, who, what, why);
}

void cli_acts_fail(const struct semel_act_line *acts, size_t n)
{
    char act[ACT_MAX];
    if (n == 0)
        return;
    show_act(&acts[0], act);
    cli_fail(CLI_NOTHING, "the audit has, last: %s", act);
}

void cli_field_acts(const struct cli *cli, const struct semel_act_line *acts, size_t n, bool newest_first)
{
    char act[ACT_MAX];
    for (size_t i = 0; i < n; i++) {
        show_act(&acts[newest_first ? n - 1 - i : i], act);
        cli_say(cli, "%-14s%s", i == 0 ? "audit" : "", act);
    }
}

/* Text, each line by its own cli_say, which lets no newline pass. */
static void say_lines(const struct cli *cli, const struct semel_buf *buf)
{
    struct semel_str text = semel__buf_str(buf);
    while (text.n > 0) {
        const char *end = memchr(text.p, '\n', text.n);
        size_t n = end != NULL ? (size_t)(end - text.p) : text.n;
        cli_say(cli, "%.*s", (int)n, text.p);
        n += end != NULL;
        text.p += n;
        text.n -= n;
    }
}

int cli_shown_print(const struct cli *cli, const struct cli_shown *shown)
{
    struct semel_buf why, next;
    int code = CLI_OK;
    if (cli->json)
        return cli_json_of(shown->json, shown->facts);
    semel__buf_init(&why, SEMEL_EXPLAIN_MAX);
    semel__buf_init(&next, SEMEL_EXPLAIN_MAX);
    shown->explain(shown->facts, &why, &next);
    if (why.failed || next.failed) {
        code = cli_fail(CLI_FAILED, "out of memory");
    } else {
        shown->say(cli, shown->facts);
        cli_say(cli, "%s", "");
        say_lines(cli, &why);
        say_lines(cli, &next);
    }
    semel__buf_done(&why);
    semel__buf_done(&next);
    return code;
}

int cli_payload_print(struct semel_str payload)
{
    if (isatty(STDOUT_FILENO) == 1) {
        struct semel_str rest = payload;
        while (rest.n > 0) {
            uint32_t c = 0;
            size_t n = semel__utf8_next(rest, &c);
            if (n == 0 || (c != '\n' && c != '\t' && !semel__utf8_shown(c)))
                return cli_fail(CLI_REFUSED, "the payload has control characters or is not text: send it to a file");
            rest.p += n;
            rest.n -= n;
        }
    }
    if (payload.n > 0)
        fwrite(payload.p, 1, payload.n, stdout);
    return CLI_OK;
}

semel_status cli_payload_decode(const struct semel_json *line, struct semel_arena *arena, struct semel_str *ret,
                                struct semel_error *err)
{
    struct semel_str text = {0};
    enum semel_json_kind kind = SEMEL_JSON_MISSING;
    semel_status status = semel__json_get(line, SEMEL_STR("/payload_base64"), arena, &kind, &text, err);
    if (status != SEMEL_OK)
        return status;
    if (kind != SEMEL_JSON_STRING || semel__base64_read(text, arena, ret) != SEMEL_BASE64_OK)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "payload_base64 must be a string of base64, with its padding");
    return SEMEL_OK;
}

/* ---- commands to them ---------------------------------------------------------------------------- */

int cli_each(const struct cli *cli, size_t n, int (*one)(void *ctx, size_t i),
             void (*json)(struct semel_buf *buf, const void *ctx), void *ctx)
{
    size_t done = 0;
    int first = CLI_OK;
    for (size_t i = 0; i < n; i++) {
        int code = one(ctx, i);
        done += code == CLI_OK;
        first = first == CLI_OK ? code : first;
        if (code == CLI_STORE)
            break;
    }
    const int printed = cli->json ? cli_json_of(json, ctx) : CLI_OK;
    if (printed != CLI_OK)
        return printed;
    return first != CLI_OK && done > 0 ? CLI_FAILED : first;
}

int cli_answer(const struct cli *cli, bool done, bool none, const char *name, const char *text)
{
    if (!done)
        return cli_fail(none ? CLI_NOTHING : CLI_REFUSED, "%s %s", name, text);
    cli_say(cli, "%s %s", name, text);
    return CLI_OK;
}

int cli_instruction_read(const struct cli_args *args, struct semel_instruction *given)
{
    struct semel_error err = {0};
    const bool dry = cli_flag(args, "dry-run");
    int code = cli_reason(args, !dry, &given->reason);
    if (code != CLI_OK)
        return code;
    return semel__ops_check(given, dry, &err) == SEMEL_OK ? CLI_OK : cli_fail(CLI_USAGE, "--%s", err.text);
}
