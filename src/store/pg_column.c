/* SPDX-License-Identifier: MIT
 *
 * pg_column.c: the fields of many items as parameters of one statement, a column at a time.
 *
 * A column that is the same in all items is sent once, as a single value, and its array is NULL; else the array has it
 * and the single value is NULL. The statement says coalesce(array's, single). In most batches nearly every column is
 * the same in all rows, or NULL in all.
 *
 * Invariants: a column is always two parameters, the single value first; an array has one place for every item.
 */
#include "store/pg.h"

struct value {
    bool text; /* else a number */
    struct semel_str s;
    int64_t v;
};

static const void *at(const void *item, const struct pg_column *column)
{
    return (const char *)item + column->offset;
}

static struct value text_value(struct semel_str s)
{
    return (struct value){.text = true, .s = s};
}

static struct value number_value(int64_t v)
{
    return (struct value){.v = v};
}

static struct value get(const struct pg_column *column, const void *item)
{
    const void *field = at(item, column);
    switch (column->kind) {
    case PG_FIELD_TEXT:
        return text_value(*(const struct semel_str *)field);
    case PG_FIELD_KEY: {
        struct semel_str key = *(const struct semel_str *)field;
        return text_value(semel__str_given(key) ? key : SEMEL_STR(""));
    }
    case PG_FIELD_TEXT_OF:
    case PG_FIELD_BYTES_OF:
        return text_value(column->get(item));
    case PG_FIELD_STATE:
        return text_value(semel__str(semel__state_name(*(const enum semel_state *)field)));
    case PG_FIELD_CLASS: {
        enum semel_class cls = *(const enum semel_class *)field;
        return text_value(cls != SEMEL_CLASS_NONE ? semel__str(semel__class_name(cls)) : (struct semel_str){0});
    }
    case PG_FIELD_INT64:
    case PG_FIELD_TIME:
        return number_value(*(const int64_t *)field);
    case PG_FIELD_INT:
        return number_value(*(const int *)field);
    case PG_FIELD_BOOL:
        return number_value(*(const bool *)field);
    }
    return number_value(SEMEL_NONE);
}

static bool same(struct value a, struct value b)
{
    if (!a.text)
        return a.v == b.v;
    return semel__str_given(a.s) == semel__str_given(b.s) && semel__str_eq(a.s, b.s); /* empty is not NULL */
}

static enum pg_kind array_kind(const struct pg_column *column)
{
    switch (column->kind) {
    case PG_FIELD_TEXT:
    case PG_FIELD_KEY:
    case PG_FIELD_TEXT_OF:
    case PG_FIELD_STATE:
    case PG_FIELD_CLASS:
        return PG_TEXTS;
    case PG_FIELD_BYTES_OF:
        return PG_BYTES;
    case PG_FIELD_INT64:
    case PG_FIELD_INT:
        return PG_INTS;
    case PG_FIELD_TIME:
        return PG_TIMES;
    case PG_FIELD_BOOL:
        return PG_BOOLS;
    }
    return PG_TEXTS;
}

static void put_item(struct pg_trip *trip, const struct pg_column *column, struct value value)
{
    if (value.text)
        semel__pg_item_text(trip, value.s);
    else if (column->kind == PG_FIELD_TIME)
        semel__pg_item_time(trip, value.v);
    else if (column->kind == PG_FIELD_BOOL)
        semel__pg_item_bool(trip, value.v != 0);
    else
        semel__pg_item_int(trip, value.v);
}

static void put_single(struct pg_trip *trip, const struct pg_column *column, struct value value)
{
    if (value.text)
        semel__pg_text(trip, value.s);
    else if (column->kind == PG_FIELD_TIME)
        semel__pg_time(trip, value.v);
    else if (column->kind == PG_FIELD_BOOL)
        semel__pg_bool(trip, value.v != 0);
    else
        semel__pg_int(trip, value.v);
}

void semel__pg_array_of(struct pg_trip *trip, const struct pg_column *column, const void *const *items, size_t n)
{
    semel__pg_array(trip, array_kind(column), n);
    for (size_t i = 0; i < n; i++)
        put_item(trip, column, get(column, items[i]));
    semel__pg_array_end(trip);
}

static bool uniform(const struct pg_column *column, const void *const *items, size_t n)
{
    struct value first = get(column, items[0]);
    for (size_t i = 1; i < n; i++)
        if (!same(first, get(column, items[i])))
            return false;
    return true;
}

bool semel__pg_same(const struct pg_column *column, const void *a, const void *b)
{
    return same(get(column, a), get(column, b));
}

bool semel__pg_given(const struct pg_column *column, const void *item)
{
    struct value value = get(column, item);
    return value.text ? semel__str_given(value.s) : value.v != SEMEL_NONE;
}

void semel__pg_single_of(struct pg_trip *trip, const struct pg_column *column, const void *item)
{
    put_single(trip, column, get(column, item));
}

static void put_column(struct pg_trip *trip, const struct pg_column *column, const void *const *items, size_t n)
{
    if (uniform(column, items, n)) {
        semel__pg_single_of(trip, column, items[0]);
        semel__pg_null(trip);
    } else {
        semel__pg_null(trip);
        semel__pg_array_of(trip, column, items, n);
    }
}

void semel__pg_columns(struct pg_trip *trip, const struct pg_column *columns, size_t n_columns,
                       const void *const *items, size_t n)
{
    for (size_t i = 0; i < n_columns; i++)
        put_column(trip, &columns[i], items, n);
}

void semel__pg_fingerprints(struct pg_trip *trip, const struct semel_fp *(*get_fp)(const void *item),
                            const void *const *items, size_t n)
{
    unsigned char bytes[1 + SEMEL_FP_MAX];
    semel__pg_array(trip, PG_BYTES, n);
    for (size_t i = 0; i < n; i++) {
        size_t used = semel__fp_encode(get_fp(items[i]), bytes);
        semel__pg_item_text(trip, (struct semel_str){used > 0 ? (const char *)bytes : NULL, used});
    }
    semel__pg_array_end(trip);
}
