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
