/* SPDX-License-Identifier: MIT
 *
 * pg_insert.c: the statement that inserts a batch of rows.
 *
 * Its text depends on the shape of the batch. A column that is NULL in all rows is left out, one that is the same in
 * all rows is a single parameter, and only what differs from row to row is an array: most batches have four or five.
 * Each shape is prepared under its own name, the first PG_SHAPES_MAX that a connection meets; the others have no name.
 *
 * What is there already is refused (ON CONFLICT DO NOTHING). A plain insert would cost the server about half of that,
 * and would leave an error in its log for every duplicate (I3).
 *
 * Invariants: the text is made of our own words only, every value is bound. Rows are inserted in the order of the
 * arrays: nothing in the statement could give them another one (no join, no sort), and if it did the worst would be a
 * deadlock, which is retried.
 */
#include <inttypes.h>
#include <stdio.h>

#include "store/pg.h"

#define TEXT_MAX 8192
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct pg_shape {
    uint64_t key;
    char name[32];
    char *text;
    struct sql_text sql;
};

struct inserted_column {
    const char *name, *type;
    struct pg_column field;
};

static struct semel_str kept_headers(const void *item)
{
    const struct semel_row *row = item;
    return row->kept ? row->headers : (struct semel_str){0};
}

static struct semel_str kept_payload(const void *item)
{
    const struct semel_row *row = item;
    if (!row->kept)
        return (struct semel_str){0};
    return semel__str_given(row->payload) ? row->payload : SEMEL_STR("");
}

static const struct semel_fp *fingerprint(const void *item)
{
    return &((const struct semel_row *)item)->fp;
}

#define FIELD(kind_, member)                                                   \
    {                                                                          \
        .kind = PG_FIELD_##kind_, .offset = offsetof(struct semel_row, member) \
    }
/* All but arrival, consumer, message_id and fingerprint, which are always treated alike. */
static const struct inserted_column columns[] = {
    {"source", "text", FIELD(KEY, source)},
    {"type", "text", FIELD(TEXT, type)},
    {"status", "text", FIELD(STATE, live.state)},
    {"attempts", "bigint", FIELD(INT, live.attempts)},
    {"attempts_before", "bigint", FIELD(INT, live.attempts_before)},
    {"retries", "bigint", FIELD(INT, live.retries)},
    {"alone", "boolean", FIELD(BOOL, live.alone)},
    {"order_key", "text", FIELD(TEXT, order_key)},
    {"version", "bigint", FIELD(INT64, version)},
    {"message_time", "timestamptz", FIELD(TIME, message_time_us)},
    {"received_at", "timestamptz", FIELD(TIME, received_us)},
    {"updated_at", "timestamptz", FIELD(TIME, updated_us)},
    {"processed_at", "timestamptz", FIELD(TIME, live.processed_us)},
    {"due_at", "timestamptz", FIELD(TIME, live.due_us)},
    {"lease_owner", "text", FIELD(TEXT, live.lease_owner)},
    {"lease_until", "timestamptz", FIELD(TIME, live.lease_until_us)},
    {"lease_token", "bigint", FIELD(INT64, live.lease_token)},
    {"error_class", "text", FIELD(CLASS, live.error_class)},
    {"error_text", "text", FIELD(TEXT, live.error_text)},
    {"outcome", "text", FIELD(TEXT, live.outcome)},
    {"position", "text", FIELD(TEXT, position)},
    {"headers", "text", {.kind = PG_FIELD_TEXT_OF, .get = kept_headers}},
    {"payload", "bytea", {.kind = PG_FIELD_BYTES_OF, .get = kept_payload}},
    {"traceparent", "text", FIELD(TEXT, traceparent)},
};
static const struct pg_column id_column = FIELD(TEXT, id);

/* How a column lies over the rows: NULL in all, the same in all, or different. */
enum spread { SPREAD_NONE, SPREAD_SAME, SPREAD_EACH };

struct shape {
    enum spread spread[COUNT(columns)];
};

/* ---- the shape ----------------------------------------------------------------------------------- */

/* Row by row, so that each is looked at once: they are large. */
static void measure(struct shape *shape, const void *const *rows, size_t n)
{
    *shape = (struct shape){0};
    for (size_t i = 0; i < COUNT(columns); i++)
        shape->spread[i] = semel__pg_given(&columns[i].field, rows[0]) ? SPREAD_SAME : SPREAD_NONE;
    for (size_t row = 0; row < n; row++) {
        for (size_t i = 0; i < COUNT(columns); i++)
            if (shape->spread[i] != SPREAD_EACH && !semel__pg_same(&columns[i].field, rows[0], rows[row]))
                shape->spread[i] = SPREAD_EACH;
    }
}

static uint64_t shape_key(const struct shape *shape)
{
    uint64_t key = 0;
    for (size_t i = 0; i < COUNT(columns); i++)
        key = key << 2 | (uint64_t)shape->spread[i];
    return key;
}

/* ---- its text ------------------------------------------------------------------------------------ */

#define FIRST_OF_COLUMNS 5 /* $1 consumer, $2 places, $3 ids, $4 fingerprints */

static void put_names(struct semel_buf *out, const struct shape *shape)
{
    semel__buf_addz(out,
                    "WITH drawn AS MATERIALIZED (SELECT pg_catalog.nextval('semel.arrival'::pg_catalog.regclass) AS v) "
                    "INSERT INTO semel.inbox (consumer, arrival, message_id, fingerprint");
    for (size_t i = 0; i < COUNT(columns); i++)
        if (shape->spread[i] != SPREAD_NONE)
            semel__buf_addf(out, ", %s", columns[i].name);
    semel__buf_addz(out, ")");
}

static void put_value(struct semel_buf *out, const struct shape *shape, size_t column, int parameter)
{
    if (shape->spread[column] == SPREAD_EACH)
        semel__buf_addf(out, "b.%s", columns[column].name);
    else
        semel__buf_addf(out, "$%d::%s", parameter, columns[column].type);
}

static void put_values(struct semel_buf *out, const struct shape *shape)
{
    int parameter = FIRST_OF_COLUMNS;
    semel__buf_addz(out, " SELECT $1::text, (SELECT v FROM drawn) * 16384 + b.place, b.message_id, b.fingerprint");
    for (size_t i = 0; i < COUNT(columns); i++) {
        if (shape->spread[i] == SPREAD_NONE)
            continue;
        semel__buf_addz(out, ", ");
        put_value(out, shape, i, parameter++);
    }
}

static void put_rows(struct semel_buf *out, const struct shape *shape)
{
    int parameter = FIRST_OF_COLUMNS;
    semel__buf_addz(out, " FROM unnest($2::bigint[], $3::text[], $4::bytea[]");
    for (size_t i = 0; i < COUNT(columns); i++) {
        if (shape->spread[i] == SPREAD_EACH)
            semel__buf_addf(out, ", $%d::%s[]", parameter, columns[i].type);
        parameter += shape->spread[i] != SPREAD_NONE;
    }
    semel__buf_addz(out, ") AS b (place, message_id, fingerprint");
    for (size_t i = 0; i < COUNT(columns); i++)
        if (shape->spread[i] == SPREAD_EACH)
            semel__buf_addf(out, ", %s", columns[i].name);
    semel__buf_addz(out, ") ON CONFLICT (consumer, source, message_id) DO NOTHING RETURNING arrival");
}

/* NULL: no memory. */
static char *write_text(const struct shape *shape)
{
    struct semel_buf out;
    semel__buf_init(&out, TEXT_MAX);
    put_names(&out, shape);
    put_values(&out, shape);
    put_rows(&out, shape);
    semel__buf_add(&out, "", 1);
    if (!out.failed)
        return out.p;
    semel__buf_done(&out);
    return NULL;
}

/* ---- kept statements ----------------------------------------------------------------------------- */

static struct pg_shape *find(const struct pg_store *d, uint64_t key)
{
    for (size_t i = 0; i < d->n_shapes; i++)
        if (d->shapes[i].key == key)
            return &d->shapes[i];
    return NULL;
}

/* NULL: no room, or no memory. */
static struct pg_shape *keep(struct pg_store *d, uint64_t key, char *text)
{
    if (d->shapes == NULL)
        d->shapes = semel__calloc(PG_SHAPES_MAX, sizeof(*d->shapes));
    if (d->shapes == NULL || d->n_shapes == PG_SHAPES_MAX)
        return NULL;
    struct pg_shape *shape = &d->shapes[d->n_shapes++];
    shape->key = key;
    snprintf(shape->name, sizeof(shape->name), "semel_insert_%" PRIx64, key);
    shape->text = text;
    shape->sql = (struct sql_text){shape->name, text};
    return shape;
}

void semel__pg_shapes_free(struct pg_store *d)
{
    for (size_t i = 0; i < d->n_shapes; i++)
        semel__free(d->shapes[i].text);
    semel__free(d->shapes);
    d->shapes = NULL;
    d->n_shapes = 0;
}

/* ---- adding it to a trip ------------------------------------------------------------------------- */

static void put_parameters(struct pg_trip *trip, struct semel_str consumer, const struct shape *shape,
                           struct semel_admit *const *items, const void *const *rows, size_t n)
{
    semel__pg_text(trip, consumer);
    semel__pg_array(trip, PG_INTS, n);
    for (size_t i = 0; i < n; i++)
        semel__pg_item_int(trip, (int64_t)items[i]->place);
    semel__pg_array_end(trip);
    semel__pg_array_of(trip, &id_column, rows, n);
    semel__pg_fingerprints(trip, fingerprint, rows, n);
    for (size_t i = 0; i < COUNT(columns); i++)
        if (shape->spread[i] == SPREAD_EACH)
            semel__pg_array_of(trip, &columns[i].field, rows, n);
        else if (shape->spread[i] == SPREAD_SAME)
            semel__pg_single_of(trip, &columns[i].field, rows[0]);
}

size_t semel__pg_insert(struct pg_trip *trip, struct semel_str consumer, struct semel_admit *const *items,
                        const void *const *rows, size_t n)
{
    struct shape shape;
    measure(&shape, rows, n);
    const uint64_t key = shape_key(&shape);
    struct pg_shape *kept = find(trip->d, key);
    char *text = kept == NULL ? write_text(&shape) : NULL;
    if (kept == NULL && text == NULL) {
        trip->status = semel__fail_memory(&trip->err);
        return 0;
    }
    put_parameters(trip, consumer, &shape, items, rows, n);
    if (kept == NULL)
        kept = keep(trip->d, key, text);
    if (kept != NULL)
        return semel__pg_add(trip, &kept->sql);
    const struct sql_text nameless = {NULL, text};
    size_t index = semel__pg_add(trip, &nameless);
    semel__free(text);
    return index;
}
