/* SPDX-License-Identifier: MIT
 *
 * sql.c: the part of the SQL port that is the same for every database: members of structs as values, and values that
 * were read as members of structs.
 *
 * Invariants: nothing is stored of a column that is NULL where it must not be, of another kind than its name says, or
 * out of range; the error names the table, the row's key and the column, and never shows another value.
 */
#include "store/sql.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/ids.h"
#include "store/mapped.h"

#define FIRST_ROOM 16

const uint8_t semel__db_kinds[SQL_NAME_COUNT] = {
#define X(name, kind) [SQL_NAME_##name] = SQL_##kind,
    SQL_NAME_MAP(X)
#undef X
};
static const char *const names[SQL_NAME_COUNT] = {
#define X(name, kind) [SQL_NAME_##name] = #name,
    SQL_NAME_MAP(X)
#undef X
};

const char *semel__db_name(uint16_t name)
{
    return names[name];
}

int64_t semel__db_limit(size_t max)
{
    return max < INT32_MAX ? (int64_t)max : INT32_MAX;
}

struct sql *semel__db_query(struct semel_store *store, struct semel_error *err)
{
    if ((store->ops->capabilities & SEMEL_STORE_SQL) != 0)
        return semel__db_of(store);
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "this store (%s) answers no queries of operators",
                store->ops->name);
    return NULL;
}

/* ---- running ------------------------------------------------------------------------------------- */

bool semel__db_needs(const struct sql *db, enum sql_id id)
{
    return db->driver->statements[id].sql.text != NULL;
}

void semel__db_start(struct sql *db, const char *doing)
{
    assert(db->doing == NULL);
    db->doing = doing;
    db->status = SEMEL_OK;
    db->driver->start(db);
}

void semel__db_run(struct sql *db, enum sql_id id, const struct sql_set *once, const struct sql_set *each,
                   sql_reader read, void *ctx)
{
    const struct sql_statement *statement = &db->driver->statements[id];
    assert(db->doing != NULL);
    if (db->by_operator && statement->by_operator != NULL)
        statement = statement->by_operator;
    assert(!statement->maps || db->mapping != NULL);
    if (statement->maps)
        statement = &db->mapping->made[id];
    if (statement->sql.text != NULL && db->status == SEMEL_OK && (each == NULL || each->n > 0))
        db->driver->run(db, statement, once, each, read, ctx);
}

void semel__db_part(struct sql *db)
{
    if (db->driver->part != NULL)
        db->driver->part(db);
}

void semel__db_send(struct sql *db)
{
    if (db->driver->send != NULL)
        db->driver->send(db);
}

void semel__db_tend(struct sql *db)
{
    if (db->driver->tend != NULL)
        db->driver->tend(db);
}

semel_status semel__db_flush(struct sql *db, struct semel_error *err)
{
    assert(db->doing != NULL);
    semel_status status = db->driver->flush(db, err);
    db->doing = NULL;
    return status;
}

semel_status semel__db_do(struct sql *db, const char *doing, enum sql_id id, const struct sql_set *once,
                          const struct sql_set *each, sql_reader read, void *ctx, struct semel_error *err)
{
    semel__db_start(db, doing);
    semel__db_run(db, id, once, each, read, ctx);
    return semel__db_flush(db, err);
}

semel_status semel__db_count(struct sql *db, enum sql_id id, const char *doing, const struct sql_set *once,
                             int64_t *ret_n, struct semel_error *err)
{
    static const struct sql_field count[] = {{.name = SQL_NAME_count, .size = sizeof(*ret_n), .required = true}};
    struct sql_into into = {SQL_FIELDS(count), .items = ret_n, .size = sizeof(*ret_n)};
    return semel__db_do(db, doing, id, once, NULL, semel__db_read_item, &into, err);
}

/* ---- parameters ---------------------------------------------------------------------------------- */

const struct sql_field *semel__db_find(const struct sql_set *set, uint16_t name)
{
    for (size_t i = 0; set != NULL && i < set->n_fields; i++)
        if (set->fields[i].name == name)
            return &set->fields[i];
    return NULL;
}

const void *semel__db_item(const struct sql_set *set, size_t i)
{
    return set->size > 0 ? (const char *)set->items + i * set->size : ((const void *const *)set->items)[i];
}

semel_status semel__db_no_value(const struct sql_statement *statement, uint16_t name, struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: there is no value for :%s", statement->sql.name,
                       names[name]);
}

struct semel_str semel__db_coded(enum sql_kind kind, const void *at, unsigned char bytes[1 + SEMEL_FP_MAX])
{
    if (kind == SQL_STATUS)
        return semel__str(semel__row_status_name(*(const enum semel_row_status *)at));
    if (kind == SQL_CLASS) {
        enum semel_class cls = *(const enum semel_class *)at;
        return cls != SEMEL_CLASS_NONE ? semel__str(semel__class_name(cls)) : (struct semel_str){0};
    }
    if (kind == SQL_ID)
        return semel__id_key(*(const struct semel_str *)at, bytes);
    size_t n = semel__fp_encode(at, bytes);
    return (struct semel_str){n > 0 ? (const char *)bytes : NULL, n};
}

/* ---- damage -------------------------------------------------------------------------------------- */

static void show_text(uint16_t name, struct semel_str value, char *out, size_t size, size_t *used)
{
    char shown[72];
    semel__str_show(shown, sizeof shown, value);
    int n = snprintf(out + *used, size - *used, "%s%s \"%s\"", *used > 0 ? ", " : " (", names[name], shown);
    *used = n > 0 && (size_t)n < size - *used ? *used + (size_t)n : *used;
}

/* What a person finds the row by. */
static void show_key(const struct sql_row *row, char *out, size_t size)
{
    static const uint16_t keys[] = {SQL_NAME_consumer, SQL_NAME_source, SQL_NAME_message_id};
    size_t used = 0;
    out[0] = '\0';
    if (row->key != NULL) {
        show_text(SQL_NAME_source, row->key->source, out, size, &used);
        show_text(SQL_NAME_message_id, row->key->id, out, size, &used);
    }
    for (size_t c = 0; c < row->statement->n_gives; c++)
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            struct sql_value value = {.null = true};
            if (row->statement->gives[c] != keys[i] ||
                row->db->driver->cell(row, (int)c, semel__db_kind(keys[i]), &value) != SQL_CELL_OK || value.null)
                continue;
            show_text(keys[i], value.text, out, size, &used);
        }
    if (used > 0)
        snprintf(out + used, size - used, ")");
}

static void show_right(const struct sql_field *field, char *out, size_t size)
{
    static const char *const words[] = {[SQL_TEXT] = "text",
                                        [SQL_KEY] = "text",
                                        [SQL_BYTES] = "bytes",
                                        [SQL_INT] = "an integer",
                                        [SQL_TIME] = "a time",
                                        [SQL_BOOL] = "true or false",
                                        [SQL_STATUS] = "a status",
                                        [SQL_CLASS] = "a class of errors",
                                        [SQL_FINGERPRINT] = "a kind and a digest",
                                        [SQL_ID] = "bytes"};
    enum sql_kind kind = semel__db_kind(field->name);
    bool number = semel__db_is_number(kind);
    size_t n = (size_t)snprintf(out, size, "%s", words[kind]);
    if (!number && field->high > 0)
        n += (size_t)snprintf(out + n, size - n, " of at most %" PRId64 " bytes", field->high);
    else if (number && field->high == INT64_MAX)
        n += (size_t)snprintf(out + n, size - n, " of at least %" PRId64, field->low);
    else if (number && field->high > 0)
        n += (size_t)snprintf(out + n, size - n, " from %" PRId64 " to %" PRId64, field->low, field->high);
    if (!field->required)
        snprintf(out + n, size - n, ", or NULL");
}

semel_status semel__db_damage(const struct sql_row *row, const char *what, struct semel_error *err)
{
    char key[256];
    show_key(row, key, sizeof key);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "damaged row in %s%s: %s", row->statement->table, key,
                       what);
}

static semel_status damaged(const struct sql_row *row, const struct sql_field *field, struct semel_error *err)
{
    char right[96], what[160];
    show_right(field, right, sizeof right);
    snprintf(what, sizeof what, "%s must be %s", names[field->name], right);
    return semel__db_damage(row, what, err);
}

/* ---- results ------------------------------------------------------------------------------------- */

static bool in_range(const struct sql_field *field, enum sql_kind kind, const struct sql_value *value)
{
    if (value->null)
        return !field->required;
    if (semel__db_is_number(kind) && value->number == SEMEL_NONE) /* the one number that means none */
        return false;
    if (kind == SQL_KEY && !semel__utf8_valid(value->text))
        return false;
    int64_t v = semel__db_is_number(kind) ? value->number : (int64_t)value->text.n;
    return (field->low == 0 && field->high == 0) || (v >= field->low && v <= field->high);
}

/* false: it is none of the words, or digests, that the kind has. */
static bool put_coded(enum sql_kind kind, const struct sql_value *value, void *at)
{
    if (kind == SQL_STATUS) {
        *(enum semel_row_status *)at = SEMEL_ROW_ABSENT;
        return semel__row_status_parse(value->text, at);
    }
    if (kind == SQL_CLASS) {
        *(enum semel_class *)at = SEMEL_CLASS_NONE;
        return value->null || semel__class_parse(value->text, at);
    }
    *(struct semel_fp *)at = (struct semel_fp){0};
    return value->null || semel__fp_decode(value->text, at);
}

static semel_status put(const struct sql_row *row, const struct sql_field *field, const struct sql_value *value,
                        struct semel_arena *arena, void *item, struct semel_error *err)
{
    void *at = (char *)item + field->offset;
    enum sql_kind kind = semel__db_kind(field->name);
    struct semel_str text = value->null ? semel__str(NULL) : value->text;
    int64_t number = value->null ? SEMEL_NONE : value->number;
    switch (kind) {
    case SQL_TEXT:
    case SQL_KEY:
    case SQL_BYTES:
    case SQL_ID:
        if (arena != NULL)
            return semel__arena_copy(arena, text, at) ? SEMEL_OK : semel__fail_memory(err);
        *(struct semel_str *)at = text;
        return SEMEL_OK;
    case SQL_STATUS:
    case SQL_CLASS:
    case SQL_FINGERPRINT:
        return put_coded(kind, value, at) || field->lenient ? SEMEL_OK : damaged(row, field, err);
    case SQL_BOOL:
        *(bool *)at = !value->null && number != 0;
        return SEMEL_OK;
    case SQL_INT:
    case SQL_TIME:
        if (field->size == sizeof(int32_t))
            *(int32_t *)at = value->null ? 0 : (int32_t)number;
        else
            *(int64_t *)at = number;
        return SEMEL_OK;
    }
    return SEMEL_OK;
}

static semel_status fill_column(const struct sql_row *row, int column, const struct sql_field *field,
                                struct semel_arena *arena, void *item, struct semel_error *err)
{
    enum sql_kind kind = semel__db_kind(field->name);
    struct sql_value value = {.number = row->changes};
    enum sql_cell cell = SQL_CELL_OK;
    if (field->name != SQL_NAME_changes)
        cell = row->db->driver->cell(row, column, kind, &value);
    if (cell == SQL_CELL_NO_MEMORY)
        return semel__fail_memory(err);
    if (field->lenient) {
        value.null = value.null || cell != SQL_CELL_OK;
        if (field->high > 0 && value.text.n > (size_t)field->high)
            value.text.n = (size_t)field->high;
    } else if (cell != SQL_CELL_OK || !in_range(field, kind, &value)) {
        return damaged(row, field, err);
    }
    return put(row, field, &value, arena, item, err);
}

/* Fields mostly stand in the order of the columns: each is looked for behind the one before. */
semel_status semel__db_fill(const struct sql_row *row, const struct sql_field *fields, size_t n,
                            struct semel_arena *arena, void *item, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    size_t next = 0;
    for (size_t c = 0; status == SEMEL_OK && c < row->statement->n_gives; c++)
        for (size_t tried = 0; tried < n; tried++) {
            const struct sql_field *field = &fields[(next + tried) % n];
            if (field->name != row->statement->gives[c])
                continue;
            status = fill_column(row, (int)c, field, arena, item, err);
            next = (next + tried + 1) % n;
            break;
        }
    return status;
}

semel_status semel__db_read_item(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct sql_into *into = ctx;
    into->filled++;
    return semel__db_fill(row, into->fields, into->n_fields, into->arena, (char *)into->items + item * into->size, err);
}

semel_status semel__db_read_noted(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    const struct sql_noted *noted = ctx;
    (void)row;
    (void)err;
    *(bool *)((char *)noted->items + item * noted->size + noted->offset) = noted->value;
    return SEMEL_OK;
}

void *semel__db_list_add(struct sql_list *list)
{
    if (list->n == list->room) {
        size_t room = list->room > 0 ? 2 * list->room : FIRST_ROOM;
        void *items = semel__realloc(list->items, room, list->size);
        if (items == NULL)
            return NULL;
        list->items = items;
        list->room = room;
    }
    return memset((char *)list->items + list->n++ * list->size, 0, list->size);
}

semel_status semel__db_list_put(struct sql_list *list, const void *item, struct semel_error *err)
{
    void *place = semel__db_list_add(list);
    if (place == NULL)
        return semel__fail_memory(err);
    memcpy(place, item, list->size);
    return SEMEL_OK;
}

semel_status semel__db_list_text(struct sql_list *list, struct semel_str text, struct semel_error *err)
{
    struct semel_str *place = semel__db_list_add(list);
    return place != NULL && semel__arena_copy(list->arena, text, place) ? SEMEL_OK : semel__fail_memory(err);
}

semel_status semel__db_read_list(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct sql_list *list = ctx;
    void *place = semel__db_list_add(list);
    (void)item;
    if (place == NULL)
        return semel__fail_memory(err);
    return semel__db_fill(row, list->fields, list->n_fields, list->arena, place, err);
}

semel_status semel__db_list_end(struct sql_list *list, semel_status status, struct semel_error *err)
{
    void *copy = status == SEMEL_OK ? semel__arena_alloc(list->arena, list->n, list->size) : NULL;
    if (status == SEMEL_OK && copy == NULL && list->n > 0)
        status = semel__fail_memory(err);
    if (copy != NULL && list->n > 0)
        memcpy(copy, list->items, list->n * list->size);
    semel__free(list->items);
    list->items = copy;
    return status;
}
