/* SPDX-License-Identifier: MIT
 *
 * natural.c: effects that are harmless when repeated (I22), and the versions of a key (I12). Pure; see semel/semel.h;
 * the inbox compares versions by the same function.
 */
#include "semel/semel.h"

enum semel_version_order semel_version_compare(int64_t last, int64_t version)
{
    if (version < last)
        return SEMEL_VERSION_OLDER;
    if (version == last)
        return SEMEL_VERSION_SAME;
    return version - 1 == last ? SEMEL_VERSION_NEXT : SEMEL_VERSION_AHEAD;
}

/* Every state that can be reached from `from` in one or more moves. */
static uint64_t reachable(const struct semel_machine *machine, unsigned from)
{
    uint64_t seen = 0, todo = machine->next[from];
    while (todo != 0) {
        unsigned s = (unsigned)__builtin_ctzll(todo);
        todo &= todo - 1;
        if (s >= machine->n || (seen >> s & 1) != 0)
            continue;
        seen |= UINT64_C(1) << s;
        todo |= machine->next[s] & ~seen;
    }
    return seen;
}

enum semel_forward semel_machine_move(const struct semel_machine *machine, unsigned current, unsigned target)
{
    if (machine->n > 64 || current >= machine->n || target >= machine->n)
        return SEMEL_FORWARD_REFUSE;
    if (current == target)
        return SEMEL_FORWARD_REPEAT;
    if ((machine->next[current] >> target & 1) != 0)
        return SEMEL_FORWARD_APPLY;
    bool ahead = (reachable(machine, current) >> target & 1) != 0;
    bool passed = (reachable(machine, target) >> current & 1) != 0;
    return passed && !ahead ? SEMEL_FORWARD_REPEAT : SEMEL_FORWARD_REFUSE;
}
