/* SPDX-License-Identifier: MIT
 *
 * records_consumers.c: the settings of consumers, and which consumers there are.
 *
 * Invariants: settings longer than their bound are damage and are never copied; the names are found by steps into two
 * indexes, two per name, however many rows a consumer has.
 */
#include "store/records.h"

#define SETTINGS_BYTES 4096 /* the CHECK of the table */

struct args {
    struct semel_str consumer, settings, after;
    struct semel_set_by by;
    int64_t now_us, limit, version;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, consumer, consumer),    SQL_FIELD(struct args, settings, settings),
    SQL_FIELD(struct args, after, after_consumer), SQL_FIELD(struct args, by.host, set_by_host),
    SQL_FIELD(struct args, by.file, set_by_file),  SQL_FIELD(struct args, by.at_us, set_by_at),
    SQL_FIELD(struct args, now_us, now),           SQL_FIELD(struct args, limit, limit),
    SQL_FIELD(struct args, version, version),
};

/* ---- settings ------------------------------------------------------------------------------------ */

#define STORED struct semel_consumer
static const struct sql_field stored_fields[] = {
    SQL_MUST(STORED, settings, settings, 0, SETTINGS_BYTES),
    SQL_FIELD(STORED, by.host, set_by_host),
    SQL_FIELD(STORED, by.file, set_by_file),
    SQL_FIELD(STORED, by.at_us, set_by_at),
};

static semel_status read_stored(struct sql *db, enum sql_id id, bool lock, struct semel_str consumer,
                                struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err)
{
    const struct args args = {.consumer = consumer};
    struct semel_consumer stored = {.by.at_us = SEMEL_NONE};
    struct sql_into into = {SQL_FIELDS(stored_fields), .arena = arena, .items = &stored, .size = sizeof stored};
    semel__db_start(db, "reading a consumer's settings");
    if (lock) {
        semel__db_run(db, SQL_consumer_make, SQL_ONE(args_fields, &args), NULL, NULL, NULL);
        semel__db_run(db, SQL_consumer_lock, SQL_ONE(args_fields, &args), NULL, NULL, NULL);
    }
    semel__db_run(db, id, SQL_ONE(args_fields, &args), NULL, semel__db_read_item, &into);
    semel_status status = semel__db_flush(db, err);
    if (status == SEMEL_OK)
        *ret = stored;
    return status;
}

semel_status semel__record_consumer_get(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                        struct semel_str *ret_settings, struct semel_error *err)
{
    struct semel_consumer stored;
    semel_status status = read_stored(semel__db_of(store), SQL_consumer_get, false, consumer, arena, &stored, err);
    if (status == SEMEL_OK)
        *ret_settings = stored.settings;
    return status;
}

/* Nobody locks for an operator: the function that makes the change locks and judges itself. */
semel_status semel__record_consumer_read(struct semel_store *store, struct semel_str consumer, bool lock,
                                         struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    return read_stored(db, SQL_consumer_read, lock && !db->by_operator, consumer, arena, ret, err);
}

semel_status semel__record_consumer_put(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                        int64_t now_us, struct semel_error *err)
{
    const struct args args = {.consumer = consumer, .settings = settings, .now_us = now_us};
    return semel__db_do(semel__db_of(store), "storing a consumer's settings", SQL_consumer_put,
                        SQL_ONE(args_fields, &args), NULL, NULL, NULL, err);
}

semel_status semel__record_consumer_mark(struct semel_store *store, struct semel_str consumer,
                                         const struct semel_set_by *by, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    const struct args args = {.consumer = consumer, .by = *by};
    if (db->by_operator && semel__str_given(by->file))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "this role may change settings by hand, and run no routes");
    return semel__db_do(db, "marking a consumer", SQL_consumer_mark, SQL_ONE(args_fields, &args), NULL, NULL, NULL,
                        err);
}

semel_status semel__record_affected(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                                    int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err)
{
    static const enum sql_id ids[SEMEL_AFFECTED_COUNT] = {
        [SEMEL_AFFECTED_ORDERED] = SQL_affected_ordered,
        [SEMEL_AFFECTED_VERSIONED] = SQL_affected_versioned,
        [SEMEL_AFFECTED_BELOW] = SQL_affected_below,
        [SEMEL_AFFECTED_DOUBTED] = SQL_affected_doubted,
        [SEMEL_AFFECTED_SOURCED] = SQL_affected_sourced,
        [SEMEL_AFFECTED_SOURCELESS] = SQL_affected_sourceless,
        [SEMEL_AFFECTED_ANY] = SQL_affected_any,
        [SEMEL_AFFECTED_KEYS] = SQL_affected_keys,
        [SEMEL_AFFECTED_WATERMARKS] = SQL_affected_watermarks,
    };
    const struct args args = {.consumer = consumer, .version = version, .limit = max};
    return semel__db_count(semel__db_of(store), ids[what], "counting what a change would touch",
                           SQL_ONE(args_fields, &args), ret_n, err);
}

/* ---- names --------------------------------------------------------------------------------------- */

struct names {
    struct sql_list list;
    size_t max, met;
};

/* A name that is none of ours has no rows that we could read: it is left out. */
static semel_status read_name(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field field[] = {
        {.name = SQL_NAME_consumer, .size = sizeof(struct semel_str), .low = 1, .high = SEMEL_ID_MAX, .required = true},
    };
    struct names *names = ctx;
    struct semel_str name;
    (void)item;
    names->met++;
    semel_status status = semel__db_fill(row, field, 1, NULL, &name, err);
    if (status == SEMEL_INVALID || names->list.n == names->max ||
        (status == SEMEL_OK && semel__id_check("consumer", name, 1, NULL) != SEMEL_OK))
        return SEMEL_OK;
    return status == SEMEL_OK ? semel__db_list_text(&names->list, name, err) : status;
}

/* Names that are left out must hide nobody: as long as they used up the limit, more are asked for. */
semel_status semel__record_consumers(struct semel_store *store, struct semel_str after, size_t max,
                                     struct semel_arena *arena, struct semel_str **ret, size_t *ret_n,
                                     struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct args args = {.after = after, .limit = semel__db_limit(max)};
    struct names names = {.list = {.arena = arena, .size = sizeof(**ret)}, .max = max};
    semel_status status = SEMEL_OK;
    for (bool more = true; status == SEMEL_OK && more; args.limit *= 2) {
        names.list.n = names.met = 0;
        status = semel__db_do(db, "listing consumers", SQL_consumer_list, SQL_ONE(args_fields, &args), NULL, read_name,
                              &names, err);
        more = names.list.n < max && names.met >= (size_t)args.limit;
    }
    status = semel__db_list_end(&names.list, status, err);
    if (status == SEMEL_OK) {
        *ret = names.list.items;
        *ret_n = names.list.n;
    }
    return status;
}
