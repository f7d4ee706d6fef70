/* SPDX-License-Identifier: MIT
 *
 * mem.h: every allocation of Semel, and an arena for the strings of one batch.
 *
 * What it is: malloc with overflow-checked sizes and one hook, so that a test can make any
 * single allocation fail; and a bump arena with a hard bound. Not a pool, not thread-aware:
 * the hook is set once, before any thread starts.
 *
 * Invariants: a failed allocation returns NULL and changes nothing; frees accept NULL; an arena never holds more than
 * its `max` bytes, and frees all its allocations together.
 */
#ifndef SEMEL_BASE_MEM_H
#define SEMEL_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "semel/types.h"

void *semel__alloc(size_t size);                /* uninitialised; size 0 gives a unique pointer */
void *semel__calloc(size_t count, size_t size); /* zeroed; NULL when count * size overflows */
void *semel__realloc(void *p, size_t count, size_t size);
void semel__free(void *p);
bool semel__text_copy(char **ret, const char *text); /* NULL stays NULL; false: no memory */

/* Every allocation calls `hook` first, and fails if it returns false. NULL removes it. */
typedef bool (*semel_alloc_hook)(void *ctx);
void semel__alloc_set_hook(semel_alloc_hook hook, void *ctx);
/* Calls the hook; for client libraries that allocate by themselves (a test routes them here). */
bool semel__alloc_permitted(void);

struct semel_arena_block;
struct semel_arena {
    struct semel_arena_block *head;
    size_t used, max;
};

void semel__arena_init(struct semel_arena *arena, size_t max);
void semel__arena_reset(struct semel_arena *arena); /* frees everything but one block, which it keeps for reuse */
void semel__arena_done(struct semel_arena *arena);
void *semel__arena_alloc(struct semel_arena *arena, size_t count, size_t size); /* zeroed, aligned */
void *semel__arena_room(struct semel_arena *arena, size_t count, size_t size);  /* not zeroed */
/* Copies bytes and adds a NUL that is not counted. {NULL, 0} stays {NULL, 0}. false: no memory. */
bool semel__arena_copy(struct semel_arena *arena, struct semel_str s, struct semel_str *ret_copy);

#endif
