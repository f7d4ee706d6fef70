/* SPDX-License-Identifier: MIT
 *
 * row.h: an inbox row as it is stored, and the check of rows that a database returns.
 *
 * Core and the store drivers exchange rows in this form. `struct semel_progress` is the part that changes; all other
 * members are written once, at arrival. Core computes every value of `progress`; a driver writes it unchanged.
 *
 * Invariants (semel__row_check): a stored row is hostile until checked. Ids are valid, numbers are in range, and a
 * row has exactly what its status needs: `processing` has owner, token and lease, and no other status has a token;
 * only `failed` and `waiting` may have a due time; final rows have a time of processing.
 */
#ifndef SEMEL_CORE_ROW_H
#define SEMEL_CORE_ROW_H

#include "core/msg.h"

struct semel_progress {
    enum semel_row_status state;
    int attempts;        /* committed starts in all */
    int attempts_before; /* of these, before the last retry: the retry cap counts the difference */
    int retries;
    bool alone;                   /* must be claimed and run alone, so that a failure or crash is certainly its own */
    int64_t due_us;               /* when the scheduler reads it again; SEMEL_NONE: only its key wakes it, or nothing */
    int64_t processed_us;         /* when it became final */
    struct semel_str lease_owner; /* not given unless processing */
    int64_t lease_until_us, lease_token;
    enum semel_class error_class;
    struct semel_str error_text, outcome;
};

struct semel_row {
    struct semel_str consumer; /* filled by scan alone, which may read rows of all consumers */
    struct semel_str source, id, type;
    int64_t arrival;
    struct semel_fp fp;
    struct semel_str order_key;
    int64_t version, message_time_us, received_us, updated_us;
    struct semel_str position, headers, payload, traceparent;
    bool kept; /* the payload is stored: the row can be run without its broker */
    /* Business keys that it waits for, ascending: it has not started yet. Not read for final rows. */
    struct semel_str wants[SEMEL_BUSINESS_MAX];
    size_t n_wants;
    struct semel_progress progress;
};

/* It waits for a business key that another, unfinished message holds. Such a row has no place in the order of its key:
 * it is never the head and blocks nobody. */
bool semel__progress_waits_for_intent(const struct semel_progress *progress);
/* It was put for a later time, and that has not come: it has no class, and nothing else is due later without one. It
 * keeps its place in the order of its key. */
bool semel__progress_postponed(const struct semel_progress *progress, int64_t now_us);
/* Does a row in this state have a place in the order of its key? */
bool semel__progress_in_order(const struct semel_progress *progress);

#define SEMEL_ERROR_TEXT_MAX 1000
#define SEMEL_OUTCOME_MAX 65536
#define SEMEL_PAYLOAD_HARD_MAX (64 << 20) /* no row ever keeps more; a larger delivery stays with its broker */
#define SEMEL_HEADERS_MAX (1 << 20)
#define SEMEL_POSITION_MAX 1000

/* INVALID, with the column and what would be right, when Semel cannot have written this row. */
semel_status semel__row_check(const struct semel_row *row, struct semel_error *err);
/* Is this text valid as an id, a key, a source or a consumer's name? INVALID names `what`. `min` is 0 or 1. */
semel_status semel__id_check(const char *what, struct semel_str id, size_t min, struct semel_error *err);
/* Reads `wants` from one column of a query: each key after its length in three digits, ascending. false: malformed. */
bool semel__wants_read(struct semel_str text, struct semel_row *row);
/* The message of a stored row, so that it can run without its broker; strings are borrowed from the row. */
void semel__row_msg(const struct semel_row *row, struct semel__msg *ret_msg);

#endif
