/* SPDX-License-Identifier: MIT
 *
 * batch.h: private to the extension: the messages of a batch, read from a JSON array of objects.
 *
 * The members of an object have the names of semel_inbox_begin's arguments; null is "not given". All messages are read
 * before the first is used, so that a mistake in one of them leaves nothing behind.
 */
#ifndef SEMEL_EXT_BATCH_H
#define SEMEL_EXT_BATCH_H

#include "base/mem.h"
#include "base/str.h"
#include "semel/semel.h"

#define EXT_BATCH_MAX 10000

enum { EXT_FOR_BEGIN = 1, EXT_FOR_DONE = 2, EXT_FOR_FAIL = 4 };

struct ext_one {
    struct semel_msg msg;
    struct semel_str raw, outcome, result, reason;
    int64_t delivery;
};

struct ext_batch {
    const char *who; /* the function, for errors */
    unsigned call;   /* EXT_FOR_... */
    struct semel_arena *arena;
    struct ext_one *all; /* in the arena; their texts there, or in the list */
    size_t n;
};

/* `list` is JSON that has been checked, and outlives the batch. INVALID: err names the message and its mistake. */
semel_status semel__ext_batch_read(struct ext_batch *batch, struct semel_str consumer, struct semel_str list,
                                   struct semel_error *err);
/* What the message i says of its run. INVALID: it is no failure. */
semel_status semel__ext_batch_result(const struct ext_batch *batch, size_t i, enum semel_result *ret,
                                     struct semel_error *err);

#endif
