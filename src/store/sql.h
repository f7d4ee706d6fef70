/* SPDX-License-Identifier: MIT
 *
 * sql.h: the SQL port. The records (records_*.c) call it, one driver per database implements it.
 *
 * A statement is known by its id; its text is compiled from sql/statements (tools/compile_sql.py). Parameters and
 * result columns have names, and a name has one kind everywhere (sql/statements/names). A struct's members are bound to
 * names in a table of struct sql_field, which serves as parameters and as places for results.
 *
 * Rules
 *  - A record is: start, some runs, flush. run() means: for each item, run this statement. It may return before the
 *    statement has run; flush() waits for everything. Results are valid after flush. PostgreSQL folds the items into
 *    arrays and sends all runs of a flush in one round trip; SQLite steps once per item, inside run().
 *  - The first failure sticks: later runs are skipped, and flush reports it.
 *  - A dialect may mark a statement "none": it is not run and gives no rows, because that database needs no such step.
 *  - A reader only stores what it is given; it must not call the port.
 *  - Every value is bound. Items are borrowed until run returns, what readers write to until flush returns.
 *  - A driver that steps once per item binds `once` again for each item, so that a reader may narrow the results of
 *    later items; a driver that sends all items together does not see such a change.
 *  - Stored data is hostile: semel__db_fill checks type, length and range before it copies anything.
 */
#ifndef SEMEL_STORE_SQL_H
#define SEMEL_STORE_SQL_H

#include "base/error.h"
#include "base/random.h"
#include "base/str.h"
#include "core/store.h"
#include "store/sql_statements.h"

/* ---- statements, as they are compiled ------------------------------------------------------------ */

enum sql_kind {
    SQL_TEXT,
    SQL_KEY,
    SQL_BYTES,
    SQL_INT,
    SQL_TIME,
    SQL_BOOL,
    SQL_STATUS,
    SQL_CLASS,
    SQL_FINGERPRINT,
    SQL_ID
};

enum sql_name {
#define X(name, kind) SQL_NAME_##name,
    SQL_NAME_MAP(X)
#undef X
        SQL_NAME_COUNT
};

enum sql_id {
#define X(name) SQL_##name,
    SQL_STATEMENT_MAP(X)
#undef X
        SQL_COUNT
};

/* Where a parameter comes from: the values for all items, or those of the items: as an array, or as a single value
 * (then the array is NULL) where it is the same in all items. */
enum sql_source { SQL_ONCE, SQL_ARRAY, SQL_SINGLE };

struct sql_param {
    uint16_t source, name;
};

struct sql_text {
    const char *name; /* of the prepared statement; NULL: it is never kept prepared */
    const char *text;
};

struct sql_statement {
    struct sql_text sql; /* text NULL: none, this database needs no such step */
    const char *table;   /* the first that it names: for people */
    const struct sql_param *params;
    size_t n_params;
    const uint16_t *gives; /* names of the result columns */
    size_t n_gives;
    /* PostgreSQL, rows: shaped. The columns of the items, the first n_always of which are always arrays; `alias` is
     * what the text calls them. */
    const uint16_t *shaped;
    size_t n_shaped, n_always;
    const char *alias;
    bool alone;           /* SQLite: it is run once, whatever the items are */
    struct sql_text many; /* SQLite: the same for n_many items at once; 0: there is none */
    size_t n_many;
    enum sql_id which;                       /* ... gives a row for each item that was applied, where not all were */
    bool maps;                               /* a template: run as the handle's mapping has made it */
    const struct sql_statement *by_operator; /* PostgreSQL: for a role that only reads the tables; NULL: the same */
};

extern const struct sql_statement semel__pg_statements[SQL_COUNT], semel__sqlite_statements[SQL_COUNT];

/* ---- values -------------------------------------------------------------------------------------- */

/* A member of a struct: a parameter, or the place of a result column. */
struct sql_field {
    uint16_t name, size; /* of the member: 4 or 8 for a number */
    uint32_t offset;
    const void *(*at)(const void *item); /* a parameter that is no member: where its value lies; NULL: it is NULL */
    int64_t low, high;                   /* what is read must lie between them (text: its bytes); both 0: any */
    bool required;                       /* NULL is damage */
    bool lenient; /* nothing is damage: text is cut at `high`, what is of another kind is as NULL */
};

#define SQL_MEMBER(type, member, name_, ...)                                                                         \
    {                                                                                                                \
        .name = SQL_NAME_##name_, .size = sizeof(((type *)0)->member), .offset = offsetof(type, member), __VA_ARGS__ \
    }
#define SQL_FIELD(type, member, name_) SQL_MEMBER(type, member, name_, .low = 0)
#define SQL_AT(name_, at_)                  \
    {                                       \
        .name = SQL_NAME_##name_, .at = at_ \
    }
/* A result that may be NULL, one that must be there, and one that is only shown to people: at most max bytes of a text;
 * 0 for the others. */
#define SQL_MAYBE(type, member, name_, low_, high_) SQL_MEMBER(type, member, name_, .low = low_, .high = high_)
#define SQL_MUST(type, member, name_, low_, high_) \
    SQL_MEMBER(type, member, name_, .low = low_, .high = high_, .required = true)
#define SQL_SHOWN(type, member, name_, max) SQL_MEMBER(type, member, name_, .high = max, .lenient = true)

/* The values of one run: members of n structs. */
struct sql_set {
    const struct sql_field *fields;
    size_t n_fields;
    const void *items;
    size_t size; /* of an item; 0: `items` is an array of pointers to them */
    size_t n;
};

#define SQL_FIELDS(table) (table), sizeof(table) / sizeof((table)[0])
#define SQL_ONE(table, item) (&(const struct sql_set){SQL_FIELDS(table), (item), sizeof(*(item)), 1})
#define SQL_EACH(table, items_, n_) (&(const struct sql_set){SQL_FIELDS(table), (items_), sizeof(*(items_)), (n_)})
#define SQL_EACH_OF(table, pointers, n_) (&(const struct sql_set){SQL_FIELDS(table), (pointers), 0, (n_)})

/* A time that says "none" where NULL has another meaning: -infinity on PostgreSQL. */
#define SQL_NO_TIME (SEMEL_NONE + 1)

/* A value on its way to or from the database: text and bytes in `text`, everything else in `number`. */
struct sql_value {
    bool null;
    struct semel_str text;
    int64_t number;
};

/* ---- the driver's part --------------------------------------------------------------------------- */

struct sql;
struct sql_mapping;
struct semel_migration;

/* The row that a reader stands on. */
struct sql_row {
    const struct sql *db;
    const struct sql_statement *statement;
    void *result; /* the driver's */
    int row;
    int64_t changes; /* for a statement that gives `changes`, or `applied` */
    const struct semel_row
        *key; /* whose row it is, for errors: set by a reader whose statement does not give the key */
};

/* Called once per row that comes back, in order; `item` is the number of the item that it belongs to, from 0. */
typedef semel_status (*sql_reader)(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err);

enum sql_cell { SQL_CELL_OK, SQL_CELL_OTHER_KIND, SQL_CELL_NO_MEMORY };

struct sql_driver {
    const struct sql_statement *statements; /* by id */
    void (*start)(struct sql *db);
    void (*run)(struct sql *db, const struct sql_statement *statement, const struct sql_set *once,
                const struct sql_set *each, sql_reader read, void *ctx);
    /* NULL: run() has done it. See semel__db_part, semel__db_send and semel__db_tend. */
    void (*part)(struct sql *db);
    void (*send)(struct sql *db);
    void (*tend)(struct sql *db);
    semel_status (*flush)(struct sql *db, struct semel_error *err);
    /* NULL, or: called before old rows are deleted. RETRY: the server is another one than before (a standby that was
     * promoted), and the last commits may be lost. */
    semel_status (*server_same)(struct sql *db, struct semel_error *err);
    /* Begins a snapshot for several flushes of a reader; does nothing inside a transaction. The end gets *ret_begun. */
    semel_status (*snapshot)(struct sql *db, bool *ret_begun, struct semel_error *err);
    void (*snapshot_end)(struct sql *db, bool begun);
    /* Several statements in one text: a migration. */
    semel_status (*script)(struct sql *db, const char *text, struct semel_error *err);
    const char *folder; /* of sql/: where its migrations are */
    const struct semel_migration *migrations;
    const size_t *n_migrations;
    /* A column of the row; text is borrowed until the reader returns. A row of `changes` has no columns to be read. */
    enum sql_cell (*cell)(const struct sql_row *row, int column, enum sql_kind kind, struct sql_value *ret);
};

#define SQL_DRAWS_MAX 64 /* admits per transaction */
#define SQL_PLACES 16384 /* per batch. PostgreSQL: an arrival is a drawn number times this, plus the item's place */

/* State of admit (records_admit.c), which recognises the rows that this transaction has inserted by the numbers that it
 * drew for them. A driver's begin sets first_arrival to INT64_MAX and n_draws to 0. */
struct sql_admitted {
    int64_t first_arrival; /* where draw_arrival draws arrivals: the lowest */
    int64_t draws[SQL_DRAWS_MAX];
    size_t n_draws;  /* where the insert draws a number per batch */
    bool mostly_old; /* most of the last batch was there already */
    int doubtful;    /* so many batches more are expected to have a message that was there already */
};

/* A store on a SQL database, as the records see it. A driver's struct begins with it. */
struct sql {
    struct semel_store store;
    const struct sql_driver *driver;
    const struct semel_clock *clock; /* NULL: the database's own */
    struct semel_random *rng;
    bool strict;  /* the open transaction is above READ COMMITTED */
    bool standby; /* commits wait for a standby server */
    struct sql_admitted admitted;
    int schema_found;            /* when it was opened, before a migration */
    struct sql_mapping *mapping; /* a table of the user's in place of the outbox (mapped.h); NULL: the own one */
    bool by_operator;            /* the role only reads the tables: a change is a call of the owner's functions */
    const char *doing;           /* what the runs since the start are for */
    semel_status status;         /* the first failure since the start, of a driver that runs at once */
    struct semel_error err;
};

static inline struct sql *semel__db_of(struct semel_store *store)
{
    return (struct sql *)store; /* the first member */
}

/* The same for what operators ask, of any store. NULL: it is on no SQL database, which err says. */
struct sql *semel__db_query(struct semel_store *store, struct semel_error *err);

/* The field of that name; NULL: the set has none, or there is no set. */
const struct sql_field *semel__db_find(const struct sql_set *set, uint16_t name);
const void *semel__db_item(const struct sql_set *set, size_t i);
const char *semel__db_name(uint16_t name);
extern const uint8_t semel__db_kinds[SQL_NAME_COUNT];

static inline enum sql_kind semel__db_kind(uint16_t name)
{
    return (enum sql_kind)semel__db_kinds[name];
}

static inline bool semel__db_is_number(enum sql_kind kind)
{
    return kind == SQL_INT || kind == SQL_TIME || kind == SQL_BOOL;
}

/* A status, a class, a fingerprint or an id as the database has it. */
struct semel_str semel__db_coded(enum sql_kind kind, const void *at, unsigned char bytes[1 + SEMEL_FP_MAX]);

/* A parameter's value; inline, as this is done for every value that is written. A fingerprint or a UUID is written into
 * `bytes`, and lasts until the next value. */
static inline struct sql_value semel__db_value(const struct sql_field *field, const void *item,
                                               unsigned char bytes[1 + SEMEL_FP_MAX])
{
    const void *at = field->at != NULL ? field->at(item) : (const char *)item + field->offset;
    enum sql_kind kind = semel__db_kind(field->name);
    struct sql_value value = {.null = true};
    if (at == NULL)
        return value;
    if (semel__db_is_number(kind)) {
        value.number = kind == SQL_BOOL                 ? *(const bool *)at
                       : field->size == sizeof(int32_t) ? *(const int32_t *)at
                                                        : *(const int64_t *)at;
        value.null = value.number == SEMEL_NONE;
        return value;
    }
    if (kind == SQL_TEXT || kind == SQL_KEY || kind == SQL_BYTES)
        value.text = *(const struct semel_str *)at;
    else
        value.text = semel__db_coded(kind, at, bytes);
    if (kind == SQL_KEY && !semel__str_given(value.text))
        value.text = SEMEL_STR("");
    value.null = !semel__str_given(value.text);
    return value;
}
/* A mistake of Semel itself: no field has the parameter. INVALID, BROKEN. */
semel_status semel__db_no_value(const struct sql_statement *statement, uint16_t name, struct semel_error *err);

/* ---- what the records call ----------------------------------------------------------------------- */

/* Does this database need the statement? false: it is "none". */
bool semel__db_needs(const struct sql *db, enum sql_id id);
void semel__db_start(struct sql *db, const char *doing);
/* once: values for all items; NULL: none. each: the items; NULL: the statement is run once. read: NULL: no results. */
void semel__db_run(struct sql *db, enum sql_id id, const struct sql_set *once, const struct sql_set *each,
                   sql_reader read, void *ctx);
/* Outside a transaction: the runs before it are one of their own, which commits whatever becomes of the runs behind it.
 * Once between start and flush. */
void semel__db_part(struct sql *db);
/* Sends everything without waiting. Until flush() call only tend(), which receives what has come, and never waits. */
void semel__db_send(struct sql *db);
void semel__db_tend(struct sql *db);
semel_status semel__db_flush(struct sql *db, struct semel_error *err);

/* start, run and flush of one statement. */
semel_status semel__db_do(struct sql *db, const char *doing, enum sql_id id, const struct sql_set *once,
                          const struct sql_set *each, sql_reader read, void *ctx, struct semel_error *err);

/* The same of one that gives one row with `count`. */
semel_status semel__db_count(struct sql *db, enum sql_id id, const char *doing, const struct sql_set *once,
                             int64_t *ret_n, struct semel_error *err);

/* The columns that the fields name, into a struct. Text is copied to the arena; without an arena it is borrowed until
 * the reader returns. INVALID, BROKEN: damage; the text says which row and column. */
semel_status semel__db_fill(const struct sql_row *row, const struct sql_field *fields, size_t n,
                            struct semel_arena *arena, void *item, struct semel_error *err);

/* The same failure, where more than one column is wrong. */
semel_status semel__db_damage(const struct sql_row *row, const char *what, struct semel_error *err);

/* A reader that fills the item itself; an item without a row stays as it is. */
struct sql_into {
    const struct sql_field *fields;
    size_t n_fields;
    struct semel_arena *arena; /* may be NULL when no text is read */
    void *items;
    size_t size;
    size_t filled; /* out: how many rows came back */
};
semel_status semel__db_read_item(void *into, size_t item, const struct sql_row *row, struct semel_error *err);

/* A reader that only notes that a row came back: a bool of the item, at this offset, gets the value. */
struct sql_noted {
    void *items;
    size_t size, offset;
    bool value;
};
semel_status semel__db_read_noted(void *noted, size_t item, const struct sql_row *row, struct semel_error *err);

/* A reader that makes a list of the rows, outside the arena until its end is known. */
struct sql_list {
    const struct sql_field *fields;
    size_t n_fields;
    struct semel_arena *arena;
    size_t size; /* of an item */
    void *items; /* freed by the end */
    size_t n, room;
};
semel_status semel__db_read_list(void *list, size_t item, const struct sql_row *row, struct semel_error *err);
void *semel__db_list_add(struct sql_list *list); /* room for one more, zeroed; NULL: no memory */
/* Adds a copy of the item. */
semel_status semel__db_list_put(struct sql_list *list, const void *item, struct semel_error *err);
/* One more of a list of texts, copied to its arena. */
semel_status semel__db_list_text(struct sql_list *list, struct semel_str text, struct semel_error *err);
/* Moves the items to the arena when status is OK, else frees them. Returns the status. */
semel_status semel__db_list_end(struct sql_list *list, semel_status status, struct semel_error *err);

/* A number of rows for LIMIT; a larger one becomes the largest that fits. */
int64_t semel__db_limit(size_t max);

#endif
