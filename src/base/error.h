/* SPDX-License-Identifier: MIT
 *
 * error.h: filling a semel_error, and the texts of the public enumerations.
 *
 * Invariants: `err` may be NULL everywhere; the functions return the status they were given, so
 * that `return semel__fail(err, ...)` reads as one step; no text holds control characters.
 */
#ifndef SEMEL_BASE_ERROR_H
#define SEMEL_BASE_ERROR_H

#include "semel/types.h"

__attribute__((format(printf, 4, 5))) semel_status semel__fail(struct semel_error *err, semel_status status,
                                                               enum semel_class cls, const char *fmt, ...);
void semel__error_memory(struct semel_error *err);
/* RETRY, ENVIRONMENT, "out of memory". Inline, so that an analyser sees that it is not OK. */
static inline semel_status semel__fail_memory(struct semel_error *err)
{
    semel__error_memory(err);
    return SEMEL_RETRY;
}
void semel__error_clear(struct semel_error *err);

const char *semel__status_name(semel_status status);
const char *semel__status_text(semel_status status);
const char *semel__class_name(enum semel_class cls);
const char *semel__act_name(enum semel_act act);
const char *semel__why_name(enum semel_why why);
const char *semel__result_name(enum semel_result result);
const char *semel__row_status_name(enum semel_row_status state);
/* The inverse of the names. false: no such name, *ret untouched. */
bool semel__class_parse(struct semel_str s, enum semel_class *ret);
bool semel__act_parse(struct semel_str s, enum semel_act *ret);
bool semel__why_parse(struct semel_str s, enum semel_why *ret);
bool semel__result_parse(struct semel_str s, enum semel_result *ret);
bool semel__row_status_parse(struct semel_str s, enum semel_row_status *ret);

#endif
