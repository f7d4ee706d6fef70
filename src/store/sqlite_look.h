/* SPDX-License-Identifier: MIT
 *
 * sqlite_look.h: private to the files that answer operators.
 *
 *   sqlite_choose.c   which rows match a filter, by which index; columns and lists for all of them
 *   sqlite_look.c     list, groups; the table of functions
 *   sqlite_select.c   writes down a frozen selection
 *
 * Everything is done in two steps: the arrivals of the rows that match are chosen, then these rows are read. Both see
 * the same snapshot because a statement is kept open across them (the pin), or because the caller has a transaction.
 */
#ifndef SEMEL_STORE_SQLITE_LOOK_H
#define SEMEL_STORE_SQLITE_LOOK_H

#include "core/look.h"
#include "store/sqlite.h"

/* ---- choosing ----------------------------------------------------------------------------------- */

struct sqlite_choice {
    const struct semel_filter *filter;
    int64_t after;  /* in: only later arrivals */
    size_t max;     /* in: the earliest so many; 0: as many as the budget allows, in the order of no matter what */
    int64_t budget; /* in: how many rows may be looked at; with max that is a walk along one index, without it in all */
    /* out */
    int64_t *arrivals; /* ascending when there is a max; freed by the caller, on failure too */
    size_t n, room;
    bool more;       /* not everything was looked at */
    int64_t reached; /* up to this arrival it was, with max */
};
semel_status semel__sqlite_choose(struct sqlite_store *d, struct sqlite_choice *choice, struct semel_error *err);

/* The consumers that there are, or only `given`. INVALID: there are too many to go through. */
struct sqlite_consumers {
    struct sqlite_run run;
    struct semel_str given;
    size_t n;
};
void semel__sqlite_consumers_start(struct sqlite_consumers *all, struct sqlite_store *d, struct semel_str given);
/* *ret lives until the next call. */
semel_status semel__sqlite_consumers_next(struct sqlite_consumers *all, struct semel_str *ret, bool *ret_row,
                                          struct semel_error *err);
void semel__sqlite_consumers_end(struct sqlite_consumers *all);

/* ---- reading ------------------------------------------------------------------------------------ */

/* A column of text or bytes that nothing has checked, borrowed until the next step: what is neither is not given, what
 * is longer than max is cut there. */
semel_status semel__sqlite_peek(sqlite3_stmt *stmt, int col, size_t max, struct semel_str *ret,
                                struct semel_error *err);
/* The same, copied to the arena. */
semel_status semel__sqlite_copy(sqlite3_stmt *stmt, int col, size_t max, struct semel_arena *arena,
                                struct semel_str *ret, struct semel_error *err);
int64_t semel__sqlite_number(sqlite3_stmt *stmt, int col); /* SEMEL_NONE: it is no integer */

/* A growing array outside the arena, so that the arena holds only what is returned. */
struct sqlite_list {
    char *items;
    size_t n, cap;
};
void *semel__sqlite_list_add(struct sqlite_list *list, size_t size); /* NULL: no memory */
/* Moves the items to the arena when status is OK, and frees the list. Returns the status. */
semel_status semel__sqlite_list_give(struct sqlite_list *list, size_t size, semel_status status,
                                     struct semel_arena *arena, void **ret, struct semel_error *err);

/* ---- the other files ---------------------------------------------------------------------------- */

semel_status semel__sqlite_select(struct semel_store *store, const struct semel_filter *filter, size_t max,
                                  int64_t now_us, struct semel_selection *selection, struct semel_error *err);

#endif
