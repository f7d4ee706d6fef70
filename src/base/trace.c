/* SPDX-License-Identifier: MIT
 *
 * trace.c: reading and writing `traceparent`.
 *
 * Invariants: the text is read by its positions, which version 00 fixes and every later version
 * keeps; a random id is drawn again while it is zero.
 */
#include "base/trace.h"

#include <string.h>

#include "base/digest.h"

#define AT_TRACE 3
#define AT_SPAN 36
#define AT_FLAGS 53
#define LENGTH 55

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex_read(const char *p, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int high = hex_value(p[2 * i]), low = hex_value(p[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

static bool any_set(const unsigned char *bytes, size_t n)
{
    unsigned char seen = 0;
    for (size_t i = 0; i < n; i++)
        seen |= bytes[i];
    return seen != 0;
}

bool semel__trace_parse(struct semel_str s, struct semel_trace *ret)
{
    struct semel_trace trace = {.flags = 0};
    unsigned char version, flags;
    if (s.n < LENGTH || s.n > SEMEL_TRACE_MAX || !hex_read(s.p, &version, 1) || version == 0xFF)
        return false;
    if (s.n > LENGTH && (version == 0 || s.p[LENGTH] != '-'))
        return false;
    if (s.p[AT_TRACE - 1] != '-' || s.p[AT_SPAN - 1] != '-' || s.p[AT_FLAGS - 1] != '-')
        return false;
    if (!hex_read(s.p + AT_TRACE, trace.trace_id, sizeof(trace.trace_id)) ||
        !hex_read(s.p + AT_SPAN, trace.span_id, sizeof(trace.span_id)) || !hex_read(s.p + AT_FLAGS, &flags, 1))
        return false;
    if (!any_set(trace.trace_id, sizeof(trace.trace_id)) || !any_set(trace.span_id, sizeof(trace.span_id)))
        return false;
    trace.flags = flags & SEMEL_TRACE_SAMPLED;
    *ret = trace;
    return true;
}

void semel__trace_format(const struct semel_trace *trace, char out[SEMEL_TRACE_TEXT])
{
    const unsigned char version = 0, flags = trace->flags & SEMEL_TRACE_SAMPLED;
    semel__hex(&version, 1, out);
    semel__hex(trace->trace_id, sizeof(trace->trace_id), out + AT_TRACE);
    semel__hex(trace->span_id, sizeof(trace->span_id), out + AT_SPAN);
    semel__hex(&flags, 1, out + AT_FLAGS);
    out[AT_TRACE - 1] = out[AT_SPAN - 1] = out[AT_FLAGS - 1] = '-'; /* overwrites the NULs of the parts */
}

static void draw(unsigned char *out, size_t n, struct semel_random *rng)
{
    do {
        for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
            uint64_t word = semel__random_next(rng);
            memcpy(out + i, &word, sizeof(word));
        }
    } while (!any_set(out, n));
}

struct semel_trace semel__trace_child(const struct semel_trace *parent, struct semel_random *rng)
{
    struct semel_trace child = *parent;
    draw(child.span_id, sizeof(child.span_id), rng);
    return child;
}

struct semel_trace semel__trace_new(struct semel_random *rng, unsigned flags)
{
    struct semel_trace trace = {.flags = flags & SEMEL_TRACE_SAMPLED};
    draw(trace.trace_id, sizeof(trace.trace_id), rng);
    draw(trace.span_id, sizeof(trace.span_id), rng);
    return trace;
}
