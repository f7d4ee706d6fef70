/* SPDX-License-Identifier: MIT
 *
 * mistake.c: what is wrong with a file, where, and the line itself with a caret.
 *
 * Lines and columns are counted here and nowhere else: a line ends with \n, a column is a character.
 *
 * Invariants: a line is shown without control characters and without what may be a secret, which must be recognised
 * from the line alone, because a file that is no YAML has no tree: a password in a URL, and whatever stands behind a
 * key that is, or is nearly, the name of a secret. Hiding too much is no harm.
 */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "conf/private.h"

#define TEXT_BYTES 1024
#define SHOWN_MAX 96 /* characters of a line */
#define BEFORE 48    /* of these, before the caret, where the line is longer */
#define HIDDEN_MAX 16

static const char *const secret_keys[] = {"password",     "token",  "read_token",    "secret_key", "session_token",
                                          "key_password", "secret", "authorization", "cookie",     "x-api-key"};

/* ---- places -------------------------------------------------------------------------------------- */

static size_t line_start(struct semel_str text, size_t at)
{
    while (at > 0 && text.p[at - 1] != '\n')
        at--;
    return at;
}

static size_t line_end(struct semel_str text, size_t at)
{
    while (at < text.n && text.p[at] != '\n')
        at++;
    return at > 0 && at > line_start(text, at) && text.p[at - 1] == '\r' ? at - 1 : at;
}

static bool starts_character(char c)
{
    return ((unsigned char)c & 0xC0) != 0x80;
}

static int characters(struct semel_str text, size_t from, size_t to)
{
    int n = 0;
    for (size_t i = from; i < to && i < text.n; i++)
        n += starts_character(text.p[i]);
    return n;
}

size_t semel__conf_offset(struct semel_str text, int line, int column)
{
    size_t at = 0;
    while (line > 1 && at < text.n)
        line -= text.p[at++] == '\n';
    while (column > 1 && at < text.n && text.p[at] != '\n') {
        at++;
        while (at < text.n && !starts_character(text.p[at]))
            at++;
        column--;
    }
    return at;
}

struct conf_place semel__conf_place(const struct conf_reader *r, const struct conf_node *node)
{
    struct semel_str text = r->input->text;
    if (node->key.p == NULL)
        return node->place;
    bool elsewhere = line_start(text, node->place.at) != line_start(text, node->key_place.at);
    return node->place.n == 0 || elsewhere ? node->key_place : node->place;
}

/* ---- what is hidden ------------------------------------------------------------------------------ */

struct hidden {
    struct conf_place at[HIDDEN_MAX];
    size_t n;
};

static void hide(struct hidden *hidden, size_t from, size_t to)
{
    if (hidden->n < HIDDEN_MAX)
        hidden->at[hidden->n++] = (struct conf_place){from, to - from};
    if (hidden->n == HIDDEN_MAX) /* too many to look for all of them: the whole line */
        hidden->at[0] = (struct conf_place){0, SIZE_MAX};
}

/* A port and an `@` in a path look like a password, too: a file is not refused for them, and they are not shown. */
static bool surely_password(struct semel_str url)
{
    struct semel_str secret;
    if (!semel__url_secret(url, &secret))
        return false;
    size_t digits = 0;
    while (digits < secret.n && secret.p[digits] >= '0' && secret.p[digits] <= '9')
        digits++;
    return digits == secret.n || strchr("/?#", secret.p[digits]) == NULL;
}

static bool in_key(char c)
{
    return semel__is_letter(c) || semel__is_digit(c) || c == '_' || c == '-';
}

static bool is_secret(struct semel_str key)
{
    char word[32];
    if (key.n == 0 || key.n >= sizeof(word))
        return false;
    for (size_t i = 0; i < key.n; i++)
        word[i] = semel__lower(key.p[i]);
    word[key.n] = '\0';
    return semel__resembles(word, secret_keys, CONF_COUNT(secret_keys));
}

/* However it is written: `passwrd` was meant for a password. in_doubt: so may a name with %70 in it be. */
static bool is_secret_parameter(struct semel_str name, bool in_doubt)
{
    static const char *const parts[] = {"pass", "pwd", "secret", "scram"};
    for (size_t i = 0; i < CONF_COUNT(parts); i++)
        for (size_t k = 0; k < name.n; k++)
            if (semel__begins_with((struct semel_str){name.p + k, name.n - k}, parts[i]))
                return !semel__str_eqz(name, "passfile");
    return is_secret(name) || (in_doubt && name.n > 0 && memchr(name.p, '%', name.n) != NULL);
}

/* What libpq takes for a blank. */
static bool blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool in_parameter(char c)
{
    return in_key(c) || c == '%';
}

static bool begins_parameter(struct semel_str text, size_t at)
{
    while (at < text.n && in_parameter(text.p[at]))
        at++;
    return at < text.n && text.p[at] == '=';
}

/* Where the value that begins at `from` ends at the latest: in a URL before the next parameter; in libpq's other form
 * behind its last quote (a YAML string may have escapes on top of libpq's), or before a blank. */
static size_t password_end(struct semel_str text, size_t from, bool in_url)
{
    size_t end = text.n;
    if (!in_url && from < text.n && text.p[from] == '\'') {
        while (end > from + 1 && text.p[end - 1] != '\'')
            end--;
        return end > from + 1 ? end : text.n;
    }
    for (end = from; end < text.n; end++)
        if (in_url ? text.p[end] == '&' && begins_parameter(text, end + 1)
                   : blank(text.p[end]) && text.p[end - 1] != '\\')
            break;
    return end;
}

/* Behind `from`, of ?password=SECRET&, and of libpq's other form: password = 'SECRET'. */
static bool parameter_password(struct semel_str text, size_t from, bool in_doubt, struct semel_str *ret)
{
    bool in_url = false;
    for (size_t i = 0; i < text.n; i++) {
        size_t first = i, at;
        in_url = in_url || (i > 0 && text.p[i] == '/' && text.p[i - 1] == '/');
        while (i < text.n && in_parameter(text.p[i]))
            i++;
        struct semel_str name = {text.p + first, i - first};
        for (at = i; at < text.n && blank(text.p[at]); at++)
            continue;
        if (first < from || at == text.n || text.p[at++] != '=' || !is_secret_parameter(name, in_doubt))
            continue;
        while (at < text.n && blank(text.p[at]))
            at++;
        *ret = (struct semel_str){text.p + at, password_end(text, at, in_url) - at};
        return true;
    }
    return false;
}

bool semel__conf_password(struct semel_str url)
{
    struct semel_str ignored;
    return surely_password(url) || parameter_password(url, 0, false, &ignored);
}

bool semel__conf_secret(struct semel_str text, size_t from, struct semel_str *ret)
{
    struct semel_str a = {0}, b;
    bool has = semel__url_secret((struct semel_str){text.p + from, text.n - from}, &a);
    if (!parameter_password(text, from, true, &b)) {
        *ret = a;
        return has;
    }
    const bool url_first = has && (a.p < b.p || (a.p == b.p && a.n <= b.n));
    const struct semel_str first = url_first ? a : b, next = url_first ? b : a;
    *ret = first;
    if (has && next.p < first.p + first.n && next.p + next.n > first.p + first.n) /* one goes on in the other */
        ret->n = (size_t)(next.p + next.n - first.p);
    return true;
}

/* Where the value that begins at `from` ends on this line: behind its quote, before what ends a flow or a comment. */
static size_t value_end(struct semel_str text, size_t from, size_t end)
{
    char quote = from < end && (text.p[from] == '"' || text.p[from] == '\'') ? text.p[from] : '\0';
    size_t i = from + (quote != '\0');
    if (i + 1 < end && text.p[i] == '$' && text.p[i + 1] == '{')
        while (i < end && text.p[i++] != '}') /* the brace of a variable ends no flow */
            continue;
    while (i < end && (quote != '\0' ? text.p[i] != quote : strchr(",}]", text.p[i]) == NULL))
        i++;
    return quote != '\0' && i == end ? end : i;
}

static bool from_environment(struct semel_str text, size_t from, size_t to)
{
    if (from < to && (text.p[from] == '"' || text.p[from] == '\''))
        from++;
    while (to > from && text.p[to - 1] == ' ')
        to--;
    return to > from + 2 && text.p[from] == '$' && text.p[from + 1] == '{' && memchr(text.p + from, '}', to - from);
}

/* A secret's value on the line [from, end). A value of several lines begins behind the key with | or >, or not at all:
 * *ret_open says so. */
static void hide_values(struct semel_str text, size_t from, size_t end, struct hidden *hidden, bool *ret_open)
{
    *ret_open = false;
    for (size_t i = from; i < end; i++) {
        size_t first = i;
        while (i < end && in_key(text.p[i]))
            i++;
        size_t past = i + (i < end && (text.p[i] == '"' || text.p[i] == '\''));
        if (i == first || past >= end || text.p[past] != ':' ||
            !is_secret((struct semel_str){text.p + first, i - first}))
            continue;
        size_t value = past + 1;
        while (value < end && text.p[value] == ' ')
            value++;
        bool list = value < end && text.p[value] == '['; /* to be safe, all that follows */
        size_t to = list ? end : value_end(text, value, end);
        *ret_open = value == end || text.p[value] == '|' || text.p[value] == '>' || text.p[value] == '#';
        if ((list || !from_environment(text, value, to)) && !*ret_open)
            hide(hidden, value, to);
        i = to > i ? to - 1 : i;
    }
}

/* Is it an item of a list, "- VALUE"? */
static bool is_item(struct semel_str text, size_t from)
{
    while (from < text.n && text.p[from] == ' ')
        from++;
    return from < text.n && text.p[from] == '-';
}

static void find_hidden(struct semel_str text, size_t start, size_t end, struct hidden *hidden)
{
    bool open = false;
    size_t above = start;
    const struct semel_str line = {text.p + start, end - start};
    struct semel_str secret;
    for (size_t from = 0; hidden->n < HIDDEN_MAX && semel__conf_secret(line, from, &secret);
         from = (size_t)(secret.p - line.p) + secret.n)
        hide(hidden, (size_t)(secret.p - text.p), (size_t)(secret.p - text.p) + secret.n);
    if (start > 0) { /* the line above may have opened a secret of several lines, or the items above a list of them */
        struct hidden ignored = {.n = 0};
        do
            above = line_start(text, above - 1);
        while (above > 0 && is_item(text, start) && is_item(text, above));
        hide_values(text, above, line_end(text, above), &ignored, &open);
    }
    if (open) {
        size_t from = start;
        while (from < end && text.p[from] == ' ')
            from++;
        hide(hidden, from, end);
        return;
    }
    hide_values(text, start, end, hidden, &open);
}

static const struct conf_place *hidden_at(const struct hidden *hidden, size_t at)
{
    for (size_t i = 0; i < hidden->n; i++)
        if (at >= hidden->at[i].at && at < hidden->at[i].at + hidden->at[i].n)
            return &hidden->at[i];
    return NULL;
}

/* ---- the line ------------------------------------------------------------------------------------ */

/* The whole line with *** for what is hidden, however long that is; where the place begins and ends in it, in
 * characters. */
static void draw(struct semel_str text, struct conf_place place, struct semel_buf *out, int *ret_caret, int *ret_past)
{
    size_t start = line_start(text, place.at), end = line_end(text, place.at);
    struct hidden hidden = {.n = 0};
    int column = 0;
    *ret_caret = *ret_past = -1;
    find_hidden(text, start, end, &hidden);
    for (size_t i = start; i < end;) {
        const struct conf_place *span = hidden_at(&hidden, i);
        size_t n = 1;
        if (*ret_caret < 0 && (i >= place.at || (span != NULL && place.at < span->at + span->n)))
            *ret_caret = column;
        if (*ret_past < 0 && i >= place.at + place.n)
            *ret_past = column;
        while (i + n < end && !starts_character(text.p[i + n]))
            n++;
        if (span != NULL) {
            n = span->at + span->n - i;
            semel__buf_addz(out, "***");
            column += 2;
        } else if (text.p[i] == '\t')
            semel__buf_addz(out, " ");
        else
            semel__buf_add(out, text.p + i, n);
        column++;
        i += n;
    }
    if (*ret_caret < 0)
        *ret_caret = column;
    if (*ret_past < 0)
        *ret_past = column;
}

/* Cuts a long line to a piece around the caret. */
static struct semel_str cut(struct semel_str line, int *caret)
{
    int skip = characters(line, 0, line.n) > SHOWN_MAX && *caret > BEFORE ? *caret - BEFORE : 0;
    size_t from = semel__conf_offset(line, 1, skip + 1), to = semel__conf_offset(line, 1, skip + SHOWN_MAX + 1);
    *caret -= skip;
    return (struct semel_str){line.p + from, to - from};
}

static void show_line(struct conf_reader *r, struct conf_place place, struct semel_conf_mistake *m)
{
    struct semel_str text = r->input->text;
    struct semel_buf line;
    char shown[4 * SHOWN_MAX + 1];
    int past = 0;
    if (line_start(text, place.at) == line_end(text, place.at))
        return; /* an empty line, or an empty file */
    semel__buf_init(&line, SEMEL_CONF_TEXT_MAX * 3);
    draw(text, place, &line, &m->caret, &past);
    m->width = past - m->caret;
    struct semel_str piece = cut(semel__buf_str(&line), &m->caret);
    semel__str_show(shown, sizeof(shown), piece);
    int room = characters(semel__str(shown), 0, strlen(shown)) - m->caret;
    if (m->width > room)
        m->width = room;
    if (m->width < 1)
        m->width = 1;
    r->failed |= line.failed || !semel__arena_copy(&r->mistakes->arena, semel__str(shown), &m->shown);
    semel__buf_done(&line);
}

/* ---- telling ------------------------------------------------------------------------------------- */

/* The last one to its place among the others: by line and column, and of one place in the order in which they were
 * found. There are few of them. */
static void sort_last(struct semel_conf_mistakes *mistakes)
{
    size_t k = mistakes->n - 1;
    struct semel_conf_mistake m = mistakes->at[k];
    for (; k > 0; k--) {
        const struct semel_conf_mistake *before = &mistakes->at[k - 1];
        if (before->line < m.line || (before->line == m.line && before->column <= m.column))
            break;
        mistakes->at[k] = *before;
    }
    mistakes->at[k] = m;
}

__attribute__((format(printf, 4, 0))) static void add(struct conf_reader *r, struct conf_place place, const char *below,
                                                      const char *fmt, va_list args)
{
    struct semel_conf_mistakes *mistakes = r->mistakes;
    char raw[TEXT_BYTES], shown[TEXT_BYTES], path[CONF_PATH_MAX + 100];
    if (mistakes->n == SEMEL_CONF_MISTAKES) {
        mistakes->more++;
        return;
    }
    struct semel_conf_mistake *m = &mistakes->at[mistakes->n];
    struct semel_str text = r->input->text;
    if (place.at > text.n)
        place.at = text.n;
    *m = (struct semel_conf_mistake){.line = 1};
    for (size_t i = 0; i < place.at; i++)
        m->line += text.p[i] == '\n';
    m->column = characters(text, line_start(text, place.at), place.at) + 1;
    if (vsnprintf(raw, sizeof(raw), fmt, args) < 0)
        raw[0] = '\0';
    semel__str_show(shown, sizeof(shown), semel__str(raw));
    r->failed |= !semel__arena_copy(&mistakes->arena, semel__str(shown), &m->text);
    snprintf(raw, sizeof(raw), "%s%s%s", r->path, r->path[0] != '\0' && below[0] != '\0' ? "." : "", below);
    semel__str_show(path, sizeof(path), semel__str(raw));
    if (path[0] != '\0')
        r->failed |= !semel__arena_copy(&mistakes->arena, semel__str(path), &m->path);
    show_line(r, place, m);
    mistakes->n++;
    sort_last(mistakes);
}

void semel__conf_wrong(struct conf_reader *r, struct conf_place place, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add(r, place, "", fmt, args);
    va_end(args);
}

void semel__conf_wrong_at(struct conf_reader *r, struct conf_place place, const char *below, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add(r, place, below, fmt, args);
    va_end(args);
}

/* ---- all of them --------------------------------------------------------------------------------- */

void semel__conf_mistakes_init(struct semel_conf_mistakes *mistakes)
{
    *mistakes = (struct semel_conf_mistakes){.file = "settings"};
    semel__arena_init(&mistakes->arena, (size_t)1 << 20);
}

void semel__conf_mistakes_done(struct semel_conf_mistakes *mistakes)
{
    semel__arena_done(&mistakes->arena);
    mistakes->n = mistakes->more = 0;
}

void semel__conf_mistakes_print(const struct semel_conf_mistakes *mistakes, struct semel_buf *buf)
{
    char file[256];
    semel__str_show(file, sizeof(file), semel__str(mistakes->file));
    for (size_t i = 0; i < mistakes->n; i++) {
        const struct semel_conf_mistake *m = &mistakes->at[i];
        semel__buf_addf(buf, "%s:%d:%d: %s\n", file, m->line, m->column, m->text.p);
        if (!semel__str_given(m->shown))
            continue;
        semel__buf_addf(buf, "%5d | %s\n      | %*s^", m->line, m->shown.p, m->caret, "");
        for (int k = 1; k < m->width; k++)
            semel__buf_addz(buf, "~");
        semel__buf_addz(buf, "\n");
    }
    if (mistakes->more > 0)
        semel__buf_addf(buf, "%s: %zu more %s not shown\n", file, mistakes->more,
                        mistakes->more == 1 ? "mistake is" : "mistakes are");
}
