/* SPDX-License-Identifier: MIT
 *
 * sql_text.c: scans a statement without a database: finds its words, its parameters and its end.
 *
 * Not a parser. It knows what may hide a `;` or a `$1`: comments, which nest in PostgreSQL, strings, with backslashes
 * after E, names in quotes, and PostgreSQL's $tag$ ... $tag$. The database decides whether the rest is SQL.
 *
 * Invariants: every byte is read once, except those that a dollar quote compares; nothing outside the text is read;
 * an accepted statement begins with one of the allowed words (P58).
 */
#include <stdarg.h>
#include <stdio.h>
#include <strings.h>

#include "handler/sql_private.h"

struct scan {
    const char *base, *p, *end;
    bool lite;
    struct sql_shape shape;
    size_t words;
    bool over; /* a semicolon was found */
    struct semel_error *err;
};

static const char *const words[SQL_WORDS] = {
    [SQL_SELECT] = "SELECT", [SQL_INSERT] = "INSERT", [SQL_UPDATE] = "UPDATE", [SQL_DELETE] = "DELETE",
    [SQL_MERGE] = "MERGE",   [SQL_WITH] = "WITH",     [SQL_CALL] = "CALL",
};
#define WORDS "SELECT, INSERT, UPDATE, DELETE, MERGE, WITH or CALL"

__attribute__((format(printf, 3, 4))) static bool refuse(struct scan *s, const char *at, const char *fmt, ...)
{
    char what[200];
    size_t line = 1, column = 1;
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    for (const char *p = s->base; p < at; p++) {
        bool broken = *p == '\n';
        line += broken;
        column = broken ? 1 : column + (((unsigned char)*p & 0xC0) != 0x80); /* characters, not bytes */
    }
    semel__fail(s->err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "statement, line %zu, column %zu: %s", line, column, what);
    return false;
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool starts_word(char c)
{
    return semel__is_letter(c) || c == '_' || (unsigned char)c >= 0x80;
}

static bool in_word(char c)
{
    return starts_word(c) || semel__is_digit(c) || c == '$';
}

static bool sees(const struct scan *s, char a, char b)
{
    return s->end - s->p >= 2 && s->p[0] == a && s->p[1] == b;
}

/* ---- strings, names and comments ----------------------------------------------------------------- */

static bool skip_comment(struct scan *s)
{
    const char *start = s->p;
    int depth = 0;
    if (sees(s, '-', '-')) {
        while (s->p < s->end && *s->p != '\n')
            s->p++;
        return true;
    }
    while (s->p < s->end) {
        if (sees(s, '/', '*') && (depth == 0 || !s->lite)) {
            depth++;
            s->p += 2;
        } else if (sees(s, '*', '/')) {
            s->p += 2;
            if (--depth == 0)
                return true;
        } else {
            s->p++;
        }
    }
    return refuse(s, start, "this comment has no end");
}

/* From a quotation mark past the closing one. A doubled one is part of the text. */
static bool skip_quoted(struct scan *s, char mark, bool escapes)
{
    const char *start = s->p++;
    while (s->p < s->end) {
        char c = *s->p++;
        if (c == '\\' && escapes && s->p < s->end)
            s->p++;
        else if (c == mark && (mark == ']' || s->p == s->end || *s->p != mark))
            return true;
        else if (c == mark)
            s->p++;
    }
    return refuse(s, start, "the text that begins with %c here has no end", *start);
}

/* E'...', and its continuation after a line break. */
static bool skip_escaped(struct scan *s)
{
    for (;;) {
        if (!skip_quoted(s, '\'', true))
            return false;
        const char *p = s->p;
        bool broken = false;
        while (p < s->end && is_blank(*p))
            broken = *p++ == '\n' || broken;
        if (!broken || p == s->end || *p != '\'')
            return true;
        s->p = p;
    }
}

static bool skip_word(struct scan *s)
{
    const char *start = s->p;
    while (s->p < s->end && in_word(*s->p))
        s->p++;
    size_t n = (size_t)(s->p - start);
    if (s->words++ == 0) {
        s->shape.word = SQL_WORDS;
        for (enum sql_word w = 0; w < SQL_WORDS; w++)
            if (semel__same_word((struct semel_str){start, n}, words[w]))
                s->shape.word = w;
        if (s->shape.word == SQL_WORDS)
            return refuse(s, start, "a handler's statement begins with " WORDS);
    }
    if (!s->lite && n == 1 && (*start == 'e' || *start == 'E') && s->p < s->end && *s->p == '\'')
        return skip_escaped(s);
    return true;
}

/* ---- parameters ---------------------------------------------------------------------------------- */

static bool note_param(struct scan *s, const char *at)
{
    int n = 0;
    for (; s->p < s->end && semel__is_digit(*s->p); s->p++)
        n = n > SEMEL_SQL_VALUES_MAX ? n : 10 * n + (*s->p - '0');
    if (n < 1 || n > SEMEL_SQL_VALUES_MAX)
        return refuse(s, at, "parameters are $1 to $%d", SEMEL_SQL_VALUES_MAX);
    if (s->p < s->end && in_word(*s->p))
        return refuse(s, at, "$%d is followed by a letter; parameters are $1, $2 ...", n);
    if (s->lite && sees(s, ':', ':'))
        return refuse(s, at, "SQLite has no ::type; write CAST($%d AS type)", n);
    s->shape.n_params = n > s->shape.n_params ? n : s->shape.n_params;
    s->shape.used |= UINT64_C(1) << (n - 1);
    return true;
}

/* $tag$ ... $tag$: the tag may be empty. */
static bool skip_dollar_quote(struct scan *s, const char *start)
{
    const char *p = s->p;
    while (p < s->end && *p != '$' && in_word(*p))
        p++;
    if (p == s->end || *p != '$')
        return refuse(s, start, "a $ that is neither a parameter nor a quotation mark");
    size_t n = (size_t)(++p - start);
    for (; (size_t)(s->end - p) >= n; p++)
        if (memcmp(p, start, n) == 0) {
            s->p = p + n;
            return true;
        }
    return refuse(s, start, "the text that begins with %.*s here has no end", n < 40 ? (int)n : 40, start);
}

static bool skip_dollar(struct scan *s)
{
    const char *start = s->p++;
    if (s->p < s->end && semel__is_digit(*s->p))
        return note_param(s, start);
    if (s->lite)
        return refuse(s, start, "parameters are $1, $2 ...");
    return skip_dollar_quote(s, start);
}

/* ---- the statement ------------------------------------------------------------------------------- */

static bool skip_other(struct scan *s)
{
    char c = *s->p;
    switch (c) {
    case '\'':
    case '"':
        return skip_quoted(s, c, false);
    case '`':
    case '[':
        if (s->lite)
            return skip_quoted(s, c == '[' ? ']' : c, false);
        break;
    case '?':
    case ':':
    case '@':
        if (s->lite)
            return refuse(s, s->p, "parameters are $1, $2 ...; this one begins with %c", c);
        break;
    case '$':
        return skip_dollar(s);
    case ';':
        s->over = true;
        break;
    default:
        break;
    }
    s->p++;
    return true;
}

static bool skip_token(struct scan *s)
{
    if (is_blank(*s->p)) {
        s->p++;
        return true;
    }
    if (sees(s, '-', '-') || sees(s, '/', '*'))
        return skip_comment(s);
    if (s->over)
        return refuse(s, s->p, "a handler is one statement; there is more after the semicolon");
    if (s->words == 0 && !starts_word(*s->p))
        return refuse(s, s->p, "a handler's statement begins with " WORDS);
    if (starts_word(*s->p))
        return skip_word(s);
    if (semel__is_digit(*s->p)) {
        while (s->p < s->end && in_word(*s->p))
            s->p++;
        return true;
    }
    return skip_other(s);
}

semel_status semel__sql_scan(struct semel_str text, enum semel_sql_dialect dialect, struct sql_shape *ret,
                             struct semel_error *err)
{
    struct scan s = {.base = text.p,
                     .p = text.p,
                     .end = text.p != NULL ? text.p + text.n : NULL,
                     .lite = dialect == SEMEL_SQL_SQLITE,
                     .err = err};
    if (text.n > SEMEL_SQL_TEXT_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "statement: it has %zu bytes; at most %d are allowed", text.n, SEMEL_SQL_TEXT_MAX);
    if (!semel__utf8_valid(text))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "statement: it must be UTF-8 text without NUL");
    while (s.p < s.end)
        if (!skip_token(&s))
            return SEMEL_INVALID;
    if (s.words == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "statement: there is none; it begins with " WORDS);
    *ret = s.shape;
    return SEMEL_OK;
}
