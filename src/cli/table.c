/* SPDX-License-Identifier: MIT
 *
 * table.c: rows for people, or for programs, as JSON.
 *
 * Invariants: every cell has passed semel__str_show. A table is cut to a width only on a terminal, first in its narrow
 * columns, then in texts that are longer than an id should be, and an ellipsis stands where a cell was cut. Colours are
 * the only escape sequences, and only where cli->color is set. Times are relative for people and absolute for programs.
 */
#define _GNU_SOURCE /* wcwidth */
#include <assert.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "cli/cli.h"

#define TABLE_MAX ((size_t)512 << 20)
#define COLUMNS_MAX 24
#define NAME_BYTES 40
#define SHORT_CELL 512
#define NARROWEST 10   /* a narrow column is cut no further */
#define NARROW_TEXT 40 /* nor another text: a UUID is whole, and can be given to another command */

struct cli_table {
    const struct cli *cli;
    const struct cli_column *columns;
    size_t n, at, rows;
    bool failed; /* no memory */
    int64_t now_us;
    struct semel_buf json;
    const char **cells; /* of all rows, one after the other */
    size_t n_cells, room;
    struct semel_arena arena; /* for the cells */
};

/* ---- making -------------------------------------------------------------------------------------- */

static void table_free(struct cli_table *table)
{
    if (table == NULL)
        return;
    semel__arena_done(&table->arena);
    semel__free(table->cells);
    semel__buf_done(&table->json);
    semel__free(table);
}

struct cli_table *cli_table_new(const struct cli *cli, const struct cli_column *columns, size_t n)
{
    struct cli_table *table = n <= COLUMNS_MAX ? semel__calloc(1, sizeof(*table)) : NULL;
    if (table == NULL)
        return NULL;
    *table = (struct cli_table){.cli = cli, .columns = columns, .n = n, .now_us = semel__now(&semel__clock_real)};
    semel__buf_init(&table->json, TABLE_MAX);
    semel__arena_init(&table->arena, TABLE_MAX);
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

static void cell(struct cli_table *table, const char *text)
{
    struct semel_str copy;
    if (table->n_cells == table->room) {
        size_t room = table->room > 0 ? 2 * table->room : 64;
        const char **cells = semel__realloc(table->cells, room, sizeof *cells);
        table->failed |= cells == NULL;
        if (cells == NULL)
            return;
        table->cells = cells;
        table->room = room;
    }
    table->failed |= !semel__arena_copy(&table->arena, (struct semel_str){text, strlen(text) + 1}, &copy);
    if (table->failed)
        return;
    table->cells[table->n_cells++] = copy.p;
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
    char text[64] = "";
    if (column == NULL)
        return;
    if (value == SEMEL_NONE && table->cli->json) {
        json(table, "null");
        return;
    }
    if (column->type != CLI_TIME && value != SEMEL_NONE)
        snprintf(text, sizeof(text), "%lld", (long long)value);
    else if (!table->cli->json)
        cli_ago(value, table->now_us, text, sizeof(text));
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

/* The next character of a text without control characters: its bytes, and the places that it takes. */
static size_t next_char(const char *text, size_t *ret_width)
{
    wchar_t c;
    mbstate_t state = {0};
    size_t n = mbrtowc(&c, text, strlen(text), &state); /* NOLINT(concurrency-mt-unsafe): the state is our own */
    bool odd = n == 0 || n > strlen(text);
    int width = odd ? 1 : wcwidth(c);
    *ret_width = width < 0 ? 1 : (size_t)width;
    return odd ? 1 : n;
}

static size_t width_of(const char *text)
{
    size_t sum = 0, width;
    for (; *text != '\0'; sum += width)
        text += next_char(text, &width);
    return sum;
}

/* As many bytes as fit into `places`, and the places that they take: a wide character may leave one over. */
static size_t fitting(const char *text, size_t places, size_t *ret_width)
{
    size_t at = 0, width;
    *ret_width = 0;
    while (text[at] != '\0') {
        size_t n = next_char(text + at, &width);
        if (*ret_width + width > places)
            break;
        *ret_width += width;
        at += n;
    }
    return at;
}

static size_t terminal_width(void)
{
    struct winsize size = {0};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* The widest column that may be cut further; n: none. */
static size_t widest(const struct cli_table *table, const size_t *widths, bool narrow)
{
    const size_t least = narrow ? NARROWEST : NARROW_TEXT;
    size_t ret = table->n;
    for (size_t c = 0; c < table->n; c++)
        if ((narrow ? table->columns[c].narrow : table->columns[c].type == CLI_TEXT) && widths[c] > least &&
            (ret == table->n || widths[c] > widths[ret]))
            ret = c;
    return ret;
}

/* Takes from the widest of the narrow columns until all fit, or none can give more; then from the widest text. */
static void fit(const struct cli_table *table, size_t *widths)
{
    size_t total = table->n - 1, room = terminal_width();
    for (size_t c = 0; c < table->n; c++)
        total += widths[c];
    for (bool narrow = true; total > room;) {
        const size_t c = widest(table, widths, narrow);
        if (c == table->n && !narrow)
            return;
        narrow = narrow && c < table->n;
        if (c == table->n)
            continue;
        widths[c]--;
        total--;
    }
}

static void heading(const struct cli_column *column, char out[NAME_BYTES])
{
    size_t i = 0;
    for (; i < NAME_BYTES - 1 && column->name[i] != '\0'; i++) {
        char c = column->name[i];
        out[i] = c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c == '_' ? ' ' : c;
    }
    out[i] = '\0';
}

/* What a status looks like; "": as everything else. */
static const char *color_of(const char *status)
{
    static const struct {
        const char *status, *color;
    } colors[] = {{"dead", "31"},      {"quarantined", "31"}, {"failed", "33"},     {"unknown", "33"},
                  {"completed", "32"}, {"published", "32"},   {"processing", "36"}, {"publishing", "36"}};
    for (size_t i = 0; i < sizeof colors / sizeof colors[0]; i++)
        if (strcmp(status, colors[i].status) == 0)
            return colors[i].color;
    return "";
}

/* A cell and the blanks around it; those behind the last cell of a line are left out. */
static void put_cell(const struct cli_table *table, size_t column, const char *text, const char *color, size_t places,
                     bool last)
{
    size_t width = width_of(text), n = strlen(text);
    bool right = table->columns[column].type == CLI_NUMBER, cut = width > places;
    if (cut) {
        n = fitting(text, places - 1, &width);
        width++; /* of the ellipsis */
    }
    if (!table->cli->color)
        color = "";
    printf("%s%*s%s%s%s%.*s%s%s%*s", column > 0 ? " " : "", right ? (int)(places - width) : 0, "",
           color[0] != '\0' ? "\033[" : "", color, color[0] != '\0' ? "m" : "", (int)n, text, cut ? "\u2026" : "",
           color[0] != '\0' ? "\033[0m" : "", right || last ? 0 : (int)(places - width), "");
}

static void put_line(const struct cli_table *table, const char *const *cells, const size_t *widths, bool head)
{
    size_t last = table->n - 1;
    while (last > 0 && cells[last][0] == '\0')
        last--;
    for (size_t c = 0; c <= last; c++)
        put_cell(table, c, cells[c],
                 head                                   ? "1"
                 : table->columns[c].type == CLI_STATUS ? color_of(cells[c])
                                                        : "",
                 widths[c], c == last);
    putchar('\n');
}

static void print_text(const struct cli_table *table)
{
    char names[COLUMNS_MAX][NAME_BYTES];
    const char *heads[COLUMNS_MAX];
    size_t widths[COLUMNS_MAX];
    assert(table->n > 0 && table->n <= COLUMNS_MAX);
    for (size_t c = 0; c < table->n; c++) {
        heading(&table->columns[c], names[c]);
        heads[c] = names[c];
        widths[c] = width_of(names[c]);
    }
    for (size_t i = 0; i < table->n_cells; i++) {
        size_t width = width_of(table->cells[i]);
        if (width > widths[i % table->n])
            widths[i % table->n] = width;
    }
    if (table->cli->tty)
        fit(table, widths);
    put_line(table, heads, widths, true);
    for (size_t row = 0; row < table->rows; row++)
        put_line(table, table->cells + row * table->n, widths, false);
}

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
        print_text(table);
    table_free(table);
    return failed ? cli_fail(CLI_FAILED, "out of memory") : CLI_OK;
}
