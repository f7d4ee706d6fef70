/* SPDX-License-Identifier: MIT
 *
 * mem_table.h: the inside of the in-memory store, shared by its files:
 *   mem_table.c  the database: images, tables, the undo log, and what tests look at
 *   mem_scan.c   which rows a scan finds
 *   mem_store.c  the driver
 *
 * A record is an immutable image: one allocation that holds the struct and all its strings. A change puts a new
 * image in the place of the old one and notes the pair in the undo log. Rollback swaps them back and needs no
 * memory; commit frees the old ones. A savepoint is a length of the log.
 *
 * Invariants: a table holds one image a key; an image that is in no table is referred to by the log and nothing
 * else; everything that is counted or listed (the unfinished rows of a consumer, its waiting ones, the side index) is
 * kept by link() and unlink() alone.
 */
#ifndef SEMEL_TEST_SUPPORT_MEM_TABLE_H
#define SEMEL_TEST_SUPPORT_MEM_TABLE_H

#include "base/error.h"
#include "base/random.h"
#include "base/str.h"
#include "core/state.h"
#include "support/mem_store.h"

enum mem_kind {
    MEM_ROW,       /* (consumer, source, id); side: (consumer, order_key) while it is in its order */
    MEM_KEY,       /* (consumer, key) */
    MEM_BUSINESS,  /* (consumer, key); side: its holder (consumer, source, id) */
    MEM_WATERMARK, /* (consumer, source) */
    MEM_CONFLICT,  /* (consumer, source, id, fingerprint) */
    MEM_ATTEMPT,   /* (consumer, source, id, seq); side: (consumer, source, id) */
    MEM_EVENT,     /* (id) */
    MEM_SETTINGS,  /* (consumer) */
    MEM_POSITION,  /* (consumer, source, partition) */
    MEM_TABLES,
    MEM_EFFECT = MEM_TABLES, /* the lists: appended to, never changed */
    MEM_AUDIT,
    MEM_KINDS
};

struct mem_row;

/* A consumer's name is kept once and never forgotten, so that keys compare it by address. */
struct mem_consumer {
    struct mem_consumer *next;
    struct semel_str name;
    uint64_t hash;
    int64_t rows, waiting;
    struct mem_row *unfinished;
};

struct mem_key {
    struct mem_consumer *consumer;
    struct semel_str part[3];
};

struct mem_rec {
    struct mem_rec *next, *side_next; /* in their buckets */
    struct mem_key key, side;
    uint64_t hash, side_hash;
    bool has_side;
    uint64_t tx;   /* the transaction that wrote this image */
    uint64_t born; /* the one that inserted the record */
};

struct mem_row {
    struct mem_rec rec;
    struct semel_row row;
    struct mem_row *prev, *next; /* of the unfinished ones of the consumer */
};
struct mem_order_key {
    struct mem_rec rec;
    struct semel_str key;
    int64_t last_version;
    struct semel_str skipped; /* the bytes of n int64_t */
};
struct mem_business {
    struct mem_rec rec;
    struct semel_str key, source, id;
    int64_t expires_us;
};
struct mem_watermark {
    struct mem_rec rec;
    struct semel_str source;
    int64_t watermark_us;
};
struct mem_conflict {
    struct mem_rec rec;
    struct semel_mem_conflict conflict;
};
struct mem_attempt {
    struct mem_rec rec;
    struct semel_mem_attempt attempt;
};
struct mem_event {
    struct mem_rec rec;
    struct semel_mem_event event;
};
struct mem_settings {
    struct mem_rec rec;
    struct semel_consumer stored;
    int64_t updated_us;
};
struct mem_position {
    struct mem_rec rec;
    struct semel_position position;
};

struct mem_table {
    struct mem_rec **slots, **side; /* both of n_slots, a power of two; NULL before the first record */
    size_t n_slots, n;
};

struct mem_list {
    char *items;
    size_t n, cap;
};

struct mem_undo {
    enum mem_kind kind;
    struct mem_rec *was, *is; /* both NULL: the last item of a list */
};

struct mem_store;

struct semel_mem_db {
    const struct semel_clock *clock;
    struct mem_table tables[MEM_TABLES];
    struct mem_list effects, audits;
    struct mem_consumer *consumers;
    struct mem_undo *undo;
    size_t n_undo, cap_undo;
    struct mem_store *writer; /* whose transaction is open */
    uint64_t tx;              /* the number of the open or last transaction */
    int64_t last_arrival, last_seq;
    size_t handles;
};

struct mem_store {
    struct semel_store base;
    struct semel_mem_db *db;
    bool owns_db, dead, has_savepoint;
    size_t savepoint; /* a length of the undo log */
    semel_mem_hook hook;
    void *hook_ctx;
    struct semel_random rng; /* when the options have none */
    bool rng_ready;
};

/* ---- mem_table.c -------------------------------------------------------------------------------------- */

struct mem_consumer *semel__mem_consumer(struct semel_mem_db *db, struct semel_str name);      /* NULL: not known */
struct mem_consumer *semel__mem_consumer_make(struct semel_mem_db *db, struct semel_str name); /* NULL: no memory */

/* NULL `consumer` finds nothing but in MEM_EVENT. Unused parts are {NULL, 0}. */
void *semel__mem_find(struct semel_mem_db *db, enum mem_kind kind, struct mem_consumer *consumer, struct semel_str a,
                      struct semel_str b, struct semel_str c);
/* The records under a side key, one after the other. */
struct mem_rec *semel__mem_side_first(struct semel_mem_db *db, enum mem_kind kind, struct mem_consumer *consumer,
                                      struct semel_str a, struct semel_str b);
struct mem_rec *semel__mem_side_next(const struct mem_rec *rec);
/* All records of a table, bucket by bucket; `rec` NULL starts. Removing `rec` is allowed after asking for the next. */
struct mem_rec *semel__mem_next(const struct semel_mem_db *db, enum mem_kind kind, const struct mem_rec *rec);

/* Puts `is` (taken; freed on failure) in the place of `was`; either may be NULL. false: no memory, nothing changed. */
bool semel__mem_put(struct semel_mem_db *db, enum mem_kind kind, void *was, void *is);
/* Puts a copy of `proto` (a struct of that kind, its key's consumer set) there, with strings of its own. */
bool semel__mem_write(struct semel_mem_db *db, enum mem_kind kind, void *was, const void *proto);
/* Appends a copy of the item `proto` to its list. */
bool semel__mem_append(struct semel_mem_db *db, enum mem_kind kind, const void *proto);
void semel__mem_undo_to(struct semel_mem_db *db, size_t mark);
void semel__mem_keep(struct semel_mem_db *db); /* the log is final: frees what was replaced */
void semel__mem_clear(struct semel_mem_db *db);
/* Adds all that is in `from`. false: no memory. */
bool semel__mem_add_all(struct semel_mem_db *db, struct semel_mem_db *from);

/* Another handle's transaction is open. */
bool semel__mem_foreign(const struct mem_store *store);
/* What the handle may see of a record: itself, or what it was before another's transaction; NULL: nothing. */
const struct mem_rec *semel__mem_visible(const struct mem_store *store, enum mem_kind kind, const struct mem_rec *rec);

/* ---- mem_scan.c --------------------------------------------------------------------------------------- */

/* The rows that the scan finds, in its order, all of them whatever its `max` is. *ret (freed by the caller) is an array
 * of *ret_n rows of the tables, or NULL. false: no memory. */
bool semel__mem_select(const struct mem_store *store, const struct semel_scan *scan, const struct mem_row ***ret,
                       size_t *ret_n);

#define MEM_NO_STR ((struct semel_str){NULL, 0})

#endif
