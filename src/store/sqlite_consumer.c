/* SPDX-License-Identifier: MIT
 *
 * sqlite_consumer.c: the settings of consumers, and which consumers there are.
 *
 * Invariants: settings longer than their bound are damage and are never copied; the names are found by steps into two
 * indexes, two a name, however many rows a consumer has.
 */
#include "store/sqlite.h"

#define SETTINGS_BYTES 4096 /* the CHECK of semel_consumer */

static semel_status read_settings(struct sqlite_run *run, struct semel_str consumer, struct semel_arena *arena,
                                  struct semel_str *ret, struct semel_error *err)
{
    const bool text = sqlite3_column_type(run->stmt, 0) == SQLITE_TEXT;
    const char *p = text ? (const char *)sqlite3_column_text(run->stmt, 0) : NULL;
    const struct semel_str settings = {p, p != NULL ? (size_t)sqlite3_column_bytes(run->stmt, 0) : 0};
    char name[72];

    if (!text || settings.n > SETTINGS_BYTES) {
        semel__str_show(name, sizeof(name), consumer);
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "damaged row in semel_consumer (consumer \"%s\"): settings must be text of at most %d bytes",
                           name, SETTINGS_BYTES);
    }
    return p != NULL && semel__arena_copy(arena, settings, ret) ? SEMEL_OK : semel__fail_memory(err);
}

semel_status semel__sqlite_consumer_get(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                        struct semel_str *ret_settings, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct semel_str settings = {0};
    struct sqlite_run run;
    bool row = false;
    semel_status status = semel__sqlite_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_CONSUMER_GET, "reading a consumer's settings");
    semel__sqlite_text(&run, 1, consumer);
    status = semel__sqlite_step(&run, &row, err);
    if (status == SEMEL_OK && row)
        status = read_settings(&run, consumer, arena, &settings, err);
    semel__sqlite_end(&run);
    if (status == SEMEL_OK)
        *ret_settings = settings;
    return status;
}

semel_status semel__sqlite_consumer_put(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                        int64_t now_us, struct semel_error *err)
{
    struct sqlite_run run;
    semel__sqlite_start(&run, semel__sqlite_of(store), Q_CONSUMER_PUT, "storing a consumer's settings");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, settings);
    semel__sqlite_int(&run, 3, now_us);
    return semel__sqlite_exec(&run, NULL, err);
}

static bool copy_text(struct sqlite_run *run, int column, struct semel_arena *arena, struct semel_str *ret)
{
    const char *p = (const char *)sqlite3_column_text(run->stmt, column);
    return p == NULL ||
           semel__arena_copy(arena, (struct semel_str){p, (size_t)sqlite3_column_bytes(run->stmt, column)}, ret);
}

/* The transaction has the only write lock there is. */
semel_status semel__sqlite_consumer_read(struct semel_store *store, struct semel_str consumer, bool lock,
                                         struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct semel_consumer stored = {.by.at_us = SEMEL_NONE};
    struct sqlite_run run;
    bool row = false;
    semel_status status = semel__sqlite_usable(d, err);
    (void)lock;
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_CONSUMER_READ, "reading a consumer's settings");
    semel__sqlite_text(&run, 1, consumer);
    status = semel__sqlite_step(&run, &row, err);
    if (status == SEMEL_OK && row)
        status = read_settings(&run, consumer, arena, &stored.settings, err);
    if (status == SEMEL_OK && row && sqlite3_column_type(run.stmt, 3) == SQLITE_INTEGER) {
        stored.by.at_us = sqlite3_column_int64(run.stmt, 3);
        if (!copy_text(&run, 1, arena, &stored.by.host) || !copy_text(&run, 2, arena, &stored.by.file))
            status = semel__fail_memory(err);
    }
    semel__sqlite_end(&run);
    if (status == SEMEL_OK)
        *ret = stored;
    return status;
}

semel_status semel__sqlite_consumer_mark(struct semel_store *store, struct semel_str consumer,
                                         const struct semel_set_by *by, struct semel_error *err)
{
    struct sqlite_run run;
    semel__sqlite_start(&run, semel__sqlite_of(store), Q_CONSUMER_MARK, "marking a consumer");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, by->host);
    semel__sqlite_text(&run, 3, by->file);
    semel__sqlite_int(&run, 4, by->at_us);
    return semel__sqlite_exec(&run, NULL, err);
}

semel_status semel__sqlite_affected(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                                    int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, semel__sqlite_of(store), (enum sqlite_q)((int)Q_AFFECTED + (int)what),
                        "counting what a change would touch");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_int(&run, 2, max);
    if (what == SEMEL_AFFECTED_BELOW)
        semel__sqlite_int(&run, 3, version);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status == SEMEL_OK)
        *ret_n = sqlite3_column_int64(run.stmt, 0);
    semel__sqlite_end(&run);
    return status;
}

/* A name as it is found, in the arena; how many there are is known at the end. */
struct found {
    struct found *next;
    struct semel_str name;
};

/* A name that is none of ours has no rows that we could read: it is left out. */
static semel_status add_name(struct sqlite_run *run, struct semel_arena *arena, struct found ***tail, size_t *n,
                             struct semel_error *err)
{
    if (sqlite3_column_type(run->stmt, 0) != SQLITE_TEXT)
        return SEMEL_OK;
    const char *p = (const char *)sqlite3_column_text(run->stmt, 0);
    const struct semel_str name = {p, p != NULL ? (size_t)sqlite3_column_bytes(run->stmt, 0) : 0};
    if (p != NULL && semel__id_check("consumer", name, 1, NULL) != SEMEL_OK)
        return SEMEL_OK;
    struct found *found = p != NULL ? semel__arena_alloc(arena, 1, sizeof(*found)) : NULL;
    if (found == NULL || !semel__arena_copy(arena, name, &found->name))
        return semel__fail_memory(err);
    **tail = found;
    *tail = &found->next;
    ++*n;
    return SEMEL_OK;
}

semel_status semel__sqlite_consumers(struct semel_store *store, struct semel_str after, size_t max,
                                     struct semel_arena *arena, struct semel_str **ret, size_t *ret_n,
                                     struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct found *first = NULL, **tail = &first;
    struct semel_str *names = NULL;
    struct sqlite_run run;
    bool row = true;
    size_t n = 0;
    semel_status status = semel__sqlite_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_CONSUMERS, "listing consumers");
    semel__sqlite_text(&run, 1, semel__str_given(after) ? after : SEMEL_STR(""));
    while (status == SEMEL_OK && row && n < max) {
        status = semel__sqlite_step(&run, &row, err);
        if (status == SEMEL_OK && row)
            status = add_name(&run, arena, &tail, &n, err);
    }
    semel__sqlite_end(&run);
    if (status != SEMEL_OK)
        return status;
    names = semel__arena_alloc(arena, n, sizeof(*names));
    if (names == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++, first = first->next)
        names[i] = first->name;
    *ret = names;
    *ret_n = n;
    return SEMEL_OK;
}
