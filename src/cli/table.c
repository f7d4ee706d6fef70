/* SPDX-License-Identifier: MIT
 *
 * table.c: rows for people, by libsmartcols, or for programs, as JSON.
 *
 * Invariants: every cell has passed semel__str_show; a table is cut to a width only on a terminal, and only in its
 * narrow columns; no escape sequence is ever written. With --json libsmartcols has no part in it.
 */
#include <libsmartcols/libsmartcols.h>

#include "cli/cli.h"

#define TABLE_MAX ((size_t)512 << 20)
#define COLUMNS_MAX 24
#define NAME_BYTES 40
#define SHORT_CELL 512

struct cli_table {
    const struct cli *cli;
    const struct cli_column *columns;
    size_t n, at, rows;
    bool failed; /* no memory */
    struct semel_buf json;
    struct libscols_table *table;
    struct libscols_line *line;
};

/* ---- making -------------------------------------------------------------------------------------- */

static bool add_column(struct cli_table *table, const struct cli_column *column)
{
    char name[NAME_BYTES];
    size_t i = 0;
    for (; i < sizeof(name) - 1 && column->name[i] != '\0'; i++) {
        char c = column->name[i];
        name[i] = c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c == '_' ? ' ' : c;
    }
    name[i] = '\0';
    int flags = (column->type == CLI_NUMBER ? SCOLS_FL_RIGHT : 0) | (column->narrow ? SCOLS_FL_TRUNC : 0);
    return scols_table_new_column(table->table, name, 0, flags) != NULL;
}

static bool set_up(struct cli_table *table)
{
    table->table = scols_new_table();
    if (table->table == NULL)
        return false;
    scols_table_set_stream(table->table, stdout);
    scols_table_set_termforce(table->table, table->cli->tty ? SCOLS_TERMFORCE_AUTO : SCOLS_TERMFORCE_NEVER);
    for (size_t i = 0; i < table->n; i++)
        if (!add_column(table, &table->columns[i]))
            return false;
    return true;
}

static void table_free(struct cli_table *table)
{
    if (table == NULL)
        return;
    scols_unref_table(table->table);
    semel__buf_done(&table->json);
    semel__free(table);
}

struct cli_table *cli_table_new(const struct cli *cli, const struct cli_column *columns, size_t n)
{
    struct cli_table *table = n <= COLUMNS_MAX ? semel__calloc(1, sizeof(*table)) : NULL;
    if (table == NULL)
        return NULL;
    *table = (struct cli_table){.cli = cli, .columns = columns, .n = n};
    semel__buf_init(&table->json, TABLE_MAX);
    if (!cli->json && !set_up(table)) {
        table_free(table);
        return NULL;
    }
    return table;
}

/* ---- filling ------------------------------------------------------------------------------------- */

/* The place of the next value. NULL: it failed, now or before. */
static const struct cli_column *next(struct cli_table *table)
{
    const struct cli_column *column = &table->columns[table->at];
    if (table->failed)
        return NULL;
    if (table->cli->json) {
        semel__buf_addz(&table->json, table->at > 0 ? "," : table->rows > 0 ? ",\n{" : "{");
        semel__json_put_shown(&table->json, semel__str(column->name));
        semel__buf_addz(&table->json, ":");
        table->failed = table->json.failed;
    } else if (table->at == 0) {
        table->line = scols_table_new_line(table->table, NULL);
        table->failed = table->line == NULL;
    }
    return table->failed ? NULL : column;
}

static void step(struct cli_table *table)
{
    if (++table->at < table->n)
        return;
    table->at = 0;
    table->rows++;
    if (table->cli->json)
        semel__buf_addz(&table->json, "}");
}

/* libsmartcols copies the text. */
static void cell(struct cli_table *table, const char *text)
{
    if (scols_line_set_data(table->line, table->at, text) != 0)
        table->failed = true;
    step(table);
}

/* A cell has at most as many bytes as its value: '?' is the shortest character. */
static void cell_shown(struct cli_table *table, struct semel_str value)
{
    char few[SHORT_CELL];
    char *text = value.n < sizeof(few) ? few : semel__alloc(value.n + 1);
    if (text == NULL) {
        table->failed = true;
        return;
    }
    semel__str_show(text, value.n < sizeof(few) ? sizeof(few) : value.n + 1, value);
    cell(table, text);
    if (text != few)
        semel__free(text);
}

static void json(struct cli_table *table, const char *text)
{
    semel__buf_addz(&table->json, text);
    step(table);
}

void cli_table_text(struct cli_table *table, struct semel_str value)
{
    if (next(table) == NULL)
        return;
    if (!table->cli->json) {
        cell_shown(table, value);
        return;
    }
    if (!semel__str_given(value))
        semel__buf_addz(&table->json, "null");
    else
        semel__json_put_shown(&table->json, value);
    step(table);
}

void cli_table_number(struct cli_table *table, int64_t value)
{
    const struct cli_column *column = next(table);
    char text[SEMEL_TIME_TEXT + 2] = "";
    if (column == NULL)
        return;
    if (value == SEMEL_NONE && table->cli->json) {
        json(table, "null");
        return;
    }
    if (column->type != CLI_TIME && value != SEMEL_NONE)
        snprintf(text, sizeof(text), "%lld", (long long)value);
    else if (!table->cli->json)
        cli_time(value, text, sizeof(text));
    else {
        char time[SEMEL_TIME_TEXT];
        semel__time_format(value, time);
        snprintf(text, sizeof(text), "\"%s\"", time);
    }
    if (table->cli->json)
        json(table, text);
    else
        cell(table, text);
}

void cli_table_fixed(struct cli_table *table, double value, int digits)
{
    char text[400]; /* the largest double has 309 digits before its point */
    if (next(table) == NULL)
        return;
    bool is_number = value - value == 0; /* neither infinite nor "not a number" */
    snprintf(text, sizeof(text), "%.*f", digits < 0 ? 0 : digits > 20 ? 20 : digits, is_number ? value : 0.0);
    if (table->cli->json)
        json(table, is_number ? text : "null");
    else
        cell(table, is_number ? text : "");
}

/* ---- printing ------------------------------------------------------------------------------------ */

static void print_json(const struct cli_table *table)
{
    struct semel_str rows = semel__buf_str(&table->json);
    fputs("[", stdout);
    fwrite(rows.p, 1, rows.n, stdout);
    fputs("]\n", stdout);
}

int cli_table_print(struct cli_table *table)
{
    if (table == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    bool failed = table->failed || table->json.failed;
    if (!failed && table->cli->json)
        print_json(table);
    else if (!failed && table->rows > 0)
        failed = scols_print_table(table->table) != 0 && ferror(stdout) == 0; /* what is not written, cli_finish sees */
    table_free(table);
    return failed ? cli_fail(CLI_FAILED, "out of memory") : CLI_OK;
}
