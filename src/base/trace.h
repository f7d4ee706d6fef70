/* SPDX-License-Identifier: MIT
 *
 * trace.h: W3C trace context, the header `traceparent`.
 *
 *     version "-" trace-id "-" parent-id "-" flags         00-<32 hex>-<16 hex>-<2 hex>
 *
 * What it is: one value, parsed from hostile text, and written again. `tracestate` is opaque to us and not handled.
 *
 * Invariants: only lower-case digits are read and written; neither id is all zero; version ff is refused, version 00
 * has exactly its four fields, and of a later version the first four are read and whatever follows them is dropped,
 * as the recommendation demands. We always write version 00, so only flags that version 00 knows survive.
 */
#ifndef SEMEL_BASE_TRACE_H
#define SEMEL_BASE_TRACE_H

#include "base/random.h"
#include "semel/types.h"

#define SEMEL_TRACE_TEXT 56 /* 55 characters and a NUL */
#define SEMEL_TRACE_MAX 512 /* a longer header is refused, of whatever version */
#define SEMEL_TRACE_SAMPLED 1u

struct semel_trace {
    unsigned char trace_id[16];
    unsigned char span_id[8]; /* of the caller: the parent-id of the header */
    unsigned flags;           /* of version 00: SEMEL_TRACE_SAMPLED or 0 */
};

/* false: not a valid traceparent; *ret untouched. The caller then begins a new trace. */
bool semel__trace_parse(struct semel_str s, struct semel_trace *ret);
void semel__trace_format(const struct semel_trace *trace, char out[SEMEL_TRACE_TEXT]);
/* The same trace and flags under a new span id. */
struct semel_trace semel__trace_child(const struct semel_trace *parent, struct semel_random *rng);
/* A new trace. */
struct semel_trace semel__trace_new(struct semel_random *rng, unsigned flags);

#endif
