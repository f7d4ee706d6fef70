/* SPDX-License-Identifier: MIT
 *
 * consumer_set.h: changing what a consumer promises and allows while messages of it are stored (I24).
 *
 * Two ways to say it. A person, by the command line, SQL or C, says what is to change: the rest stays, null takes one
 * away. A route's file says everything, replaces what is stored, and marks the consumer: from then on people change the
 * file.
 *
 * Rows are stored under the settings of their time. A change that would make them mean something else is refused, with
 * their number: see the table in consumer_set.c. Force takes it all the same, and takes the mark away: the consumer is
 * set by a person then, until a file sets it again. Deliveries are not locked out: rows by the old settings may be
 * committed later, which no refused change but that of one_source could be hurt by.
 */
#ifndef SEMEL_CORE_CONSUMER_SET_H
#define SEMEL_CORE_CONSUMER_SET_H

#include "core/consumer.h"

/* Who changes settings, how and why. */
struct semel_setter {
    struct semel_str who;        /* for the audit */
    struct semel_str reason;     /* for the audit; not given: none, which force must not be */
    struct semel_str host, file; /* given: a route's file */
    bool force;
};

struct semel_setting {
    struct semel_policy policy; /* as it holds from now on; refused: as it would */
    struct semel_str change;    /* JSON, in the arena: what was to change; {}: nothing */
    struct semel_set_by by;     /* whose file had set it before; in the arena */
    bool changed;               /* and an audit line was written */
    bool refused;               /* by what is stored: force would do it */
    const char *hint;           /* or NULL: what to think of */
};

/* Reads, judges, stores and writes the audit line, under the lock of the consumer's row: inside a transaction, which
 * must be rolled back unless it answers OK. INVALID: the settings are wrong, or (ret->refused) stored rows or a file
 * speak against it; err names the number and what to do. */
semel_status semel__consumer_set(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                 const struct semel_setter *by, int64_t now_us, struct semel_arena *arena,
                                 struct semel_setting *ret, struct semel_error *err);
/* The same in a transaction of its own. */
semel_status semel__consumer_change(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                    const struct semel_setter *by, struct semel_arena *arena, struct semel_setting *ret,
                                    struct semel_error *err);
/* Whether stored rows mean the same under both. */
bool semel__policy_same(const struct semel_policy *a, const struct semel_policy *b);

#endif
