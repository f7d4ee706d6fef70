/* SPDX-License-Identifier: MIT
 *
 * options.c: how an option that operators choose by is read: --older 15m and ?older=15m are the same; see private.h.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "ops/private.h"

semel_status semel__option_wrong(struct semel_error *err, const struct semel_option *o, const char *fmt, ...)
{
    char name[32], value[64], right[200];
    va_list list;
    va_start(list, fmt);
    vsnprintf(right, sizeof right, fmt, list);
    va_end(list);
    semel__str_show(name, sizeof name, o->name);
    semel__str_show(value, sizeof value, o->value);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s is '%s'; %s", name, value, right);
}

semel_status semel__option_repeats(const struct semel_option *options, size_t n, struct semel_error *err)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i && !semel__str_eqz(options[i].name, "status"); k++)
            if (semel__str_eq(options[i].name, options[k].name))
                return semel__option_wrong(err, &options[i], "it is given twice");
    return SEMEL_OK;
}

bool semel__option_piece(struct semel_str list, size_t *from, struct semel_str *ret)
{
    if (*from > list.n)
        return false;
    const char *comma = *from < list.n ? memchr(list.p + *from, ',', list.n - *from) : NULL;
    const size_t end = comma != NULL ? (size_t)(comma - list.p) : list.n;
    *ret = end > *from ? (struct semel_str){list.p + *from, end - *from} : SEMEL_STR("");
    *from = end + 1;
    return true;
}

semel_status semel__option_number(const struct semel_option *o, int64_t low, int64_t high, int64_t *ret,
                                  struct semel_error *err)
{
    if (!semel__str_int64(o->value, ret) || *ret < low || *ret > high)
        return semel__option_wrong(err, o, "it must be a whole number from %lld to %lld", (long long)low,
                                   (long long)high);
    return SEMEL_OK;
}

semel_status semel__option_limit(const struct semel_option *o, size_t *ret, struct semel_error *err)
{
    int64_t number = 0;
    semel_status status = semel__option_number(o, 1, SEMEL_LIST_MAX, &number, err);
    *ret = (size_t)number;
    return status;
}

semel_status semel__option_flag(const struct semel_option *o, bool *ret, struct semel_error *err)
{
    *ret = semel__str_eqz(o->value, "true");
    return *ret || semel__str_eqz(o->value, "false") ? SEMEL_OK
                                                     : semel__option_wrong(err, o, "it must be true or false");
}

semel_status semel__option_text(const struct semel_option *o, struct semel_str *ret, struct semel_error *err)
{
    *ret = o->value;
    return semel__utf8_valid(o->value) && (o->value.n == 0 || memchr(o->value.p, '\0', o->value.n) == NULL)
               ? SEMEL_OK
               : semel__option_wrong(err, o, "it must be text in UTF-8");
}

semel_status semel__option_ago(const struct semel_option *o, int64_t now_us, int64_t *ret_us, struct semel_error *err)
{
    int64_t span_us;
    if (!semel__duration_parse(o->value, &span_us))
        return semel__option_wrong(err, o, "it must be a duration such as 90s, 15m, 12h or 45d");
    *ret_us = semel__time_add(now_us, -span_us);
    return SEMEL_OK;
}
