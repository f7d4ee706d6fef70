/* SPDX-License-Identifier: MIT
 *
 * state.c: the table of moves. One row per status, one bit per status that it may become.
 */
#include "core/state.h"

#define TO(name) (1u << SEMEL_ROW_##name)

static const unsigned moves[SEMEL_ROW_COUNT] = {
    [SEMEL_ROW_ABSENT] = TO(PROCESSING) | TO(COMPLETED) | TO(FAILED) | TO(WAITING) | TO(REJECTED) | TO(UNKNOWN) |
                         TO(DEAD) | TO(STALE) | TO(PREVENTED) | TO(QUARANTINED),
    [SEMEL_ROW_WAITING] = TO(PROCESSING) | TO(COMPLETED) | TO(FAILED) | TO(DEAD) | TO(REJECTED) | TO(UNKNOWN) |
                          TO(STALE) | TO(WAITING) | TO(PREVENTED),
    [SEMEL_ROW_PROCESSING] = TO(COMPLETED) | TO(FAILED) | TO(WAITING) | TO(DEAD) | TO(REJECTED) | TO(UNKNOWN) |
                             TO(PROCESSING),
    [SEMEL_ROW_FAILED] = TO(PROCESSING) | TO(COMPLETED) | TO(FAILED) | TO(DEAD) | TO(REJECTED) | TO(UNKNOWN) |
                         TO(STALE) | TO(WAITING) | TO(PREVENTED),
    [SEMEL_ROW_UNKNOWN] = TO(COMPLETED) | TO(FAILED) | TO(REJECTED) | TO(UNKNOWN),
    [SEMEL_ROW_DEAD] = TO(FAILED) | TO(COMPLETED) | TO(REJECTED) | TO(WAITING) | TO(DEAD),
    [SEMEL_ROW_QUARANTINED] = TO(FAILED) | TO(COMPLETED) | TO(REJECTED) | TO(QUARANTINED),
    [SEMEL_ROW_COMPLETED] = TO(ABSENT),
    [SEMEL_ROW_REJECTED] = TO(ABSENT),
    [SEMEL_ROW_STALE] = TO(ABSENT),
    [SEMEL_ROW_PREVENTED] = TO(ABSENT),
};

static const unsigned final_states = TO(COMPLETED) | TO(REJECTED) | TO(STALE) | TO(PREVENTED);
static const unsigned unfinished_states = TO(PROCESSING) | TO(FAILED) | TO(WAITING) | TO(UNKNOWN) | TO(DEAD);

static bool in(unsigned set, enum semel_row_status state)
{
    return (unsigned)state < SEMEL_ROW_COUNT && (set >> (unsigned)state & 1u) != 0;
}

bool semel__state_final(enum semel_row_status state)
{
    return in(final_states, state);
}

bool semel__state_unfinished(enum semel_row_status state)
{
    return in(unfinished_states, state);
}

bool semel__move_legal(enum semel_row_status from, enum semel_row_status to)
{
    return (unsigned)from < SEMEL_ROW_COUNT && in(moves[from], to);
}
