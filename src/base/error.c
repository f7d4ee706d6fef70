/* SPDX-License-Identifier: MIT
 *
 * error.c: filling a semel_error, and the texts of the public enumerations.
 *
 * Invariants: a name and its value come from the same X-macro as the enumeration, so that none
 * can be forgotten; a value from outside the enumeration has the name "?", never a crash; "unset"
 * can be shown but not parsed.
 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/str.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define X(name, text) #name,
static const char *const status_names[] = {SEMEL_STATUS_MAP(X)};
#undef X

#define X(name, text) text,
static const char *const status_texts[] = {SEMEL_STATUS_MAP(X)};
static const char *const class_names[] = {SEMEL_CLASS_MAP(X)};
static const char *const act_names[] = {"unset", SEMEL_ACT_MAP(X)};
static const char *const why_names[] = {"unset", SEMEL_WHY_MAP(X)};
static const char *const result_names[] = {SEMEL_RESULT_MAP(X)};
static const char *const row_status_names[] = {SEMEL_ROW_MAP(X)};
#undef X

semel_status semel__fail(struct semel_error *err, semel_status status, enum semel_class cls, const char *fmt, ...)
{
    if (err == NULL)
        return status;

    /* Formatted into a copy first: an argument may be err's own old text. */
    char raw[2 * sizeof(err->text)];
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(raw, sizeof(raw), fmt, args) < 0)
        raw[0] = '\0';
    va_end(args);

    *err = (struct semel_error){.status = status, .cls = cls};
    semel__str_show(err->text, sizeof(err->text), semel__str(raw));
    return status;
}

void semel__error_memory(struct semel_error *err)
{
    (void)semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "out of memory");
}

void semel__error_clear(struct semel_error *err)
{
    if (err != NULL)
        *err = (struct semel_error){.status = SEMEL_OK};
}

static const char *name_of(const char *const *names, size_t count, size_t value)
{
    return value < count ? names[value] : "?";
}

/* The value named s, from `first` on; `count` when there is none. */
static size_t value_of(const char *const *names, size_t first, size_t count, struct semel_str s)
{
    for (size_t value = first; value < count; value++)
        if (semel__str_eqz(s, names[value]))
            return value;
    return count;
}

const char *semel__status_name(semel_status status)
{
    return name_of(status_names, COUNT(status_names), (size_t)status);
}

const char *semel__status_text(semel_status status)
{
    return name_of(status_texts, COUNT(status_texts), (size_t)status);
}

/* semel__<noun>_name and semel__<noun>_parse; `first` is the least value that has a name of its own. */
#define NAME_AND_PARSE(noun, first)                                           \
    const char *semel__##noun##_name(enum semel_##noun noun)                  \
    {                                                                         \
        return name_of(noun##_names, COUNT(noun##_names), (size_t)noun);      \
    }                                                                         \
    bool semel__##noun##_parse(struct semel_str s, enum semel_##noun *ret)    \
    {                                                                         \
        size_t value = value_of(noun##_names, first, COUNT(noun##_names), s); \
        if (value == COUNT(noun##_names))                                     \
            return false;                                                     \
        *ret = (enum semel_##noun)value;                                      \
        return true;                                                          \
    }

NAME_AND_PARSE(class, SEMEL_CLASS_NONE)
NAME_AND_PARSE(act, SEMEL_ACT_UNSET + 1)
NAME_AND_PARSE(why, SEMEL_WHY_UNSET + 1)
NAME_AND_PARSE(result, SEMEL_DONE)
NAME_AND_PARSE(row_status, SEMEL_ROW_ABSENT)
