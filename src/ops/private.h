/* SPDX-License-Identifier: MIT
 *
 * private.h: what the files of ops share: how options are read (options.c), and pieces of JSON (json.c).
 *
 * Invariants: a refusal begins with the option's name and says what would be right.
 */
#ifndef SEMEL_OPS_PRIVATE_H
#define SEMEL_OPS_PRIVATE_H

#include "ops/ops.h"

/* "NAME is 'VALUE'; it must be ...": INVALID, PERMANENT. */
__attribute__((format(printf, 3, 4))) semel_status semel__option_wrong(struct semel_error *err,
                                                                       const struct semel_option *o, const char *fmt,
                                                                       ...);
/* Each at most once, but for `status`. */
semel_status semel__option_repeats(const struct semel_option *options, size_t n, struct semel_error *err);
/* "processing,dead" piece by piece, of which there is one at least; *from begins at 0. false: there is no more. */
bool semel__option_piece(struct semel_str list, size_t *from, struct semel_str *ret);
semel_status semel__option_number(const struct semel_option *o, int64_t low, int64_t high, int64_t *ret,
                                  struct semel_error *err);
semel_status semel__option_limit(const struct semel_option *o, size_t *ret, struct semel_error *err);
semel_status semel__option_flag(const struct semel_option *o, bool *ret, struct semel_error *err);
semel_status semel__option_text(const struct semel_option *o, struct semel_str *ret, struct semel_error *err);
/* So long ago. */
semel_status semel__option_ago(const struct semel_option *o, int64_t now_us, int64_t *ret_us, struct semel_error *err);

/* A line of the audit; ctx is an array of struct semel_act_line. */
void semel__json_act(struct semel_object *one, const void *ctx, size_t i);
/* Closes the object, appends it with a newline, and frees it. */
void semel__json_end(struct semel_buf *buf, struct semel_object *o);
/* The same with why it is as it is and what to do about it, which are freed, too. */
void semel__json_end_why(struct semel_buf *buf, struct semel_object *o, struct semel_buf *why, struct semel_buf *next);

#endif
