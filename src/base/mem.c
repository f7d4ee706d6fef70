/* SPDX-License-Identifier: MIT
 *
 * mem.c: malloc behind one hook, and the bump arena.
 *
 * The arena is a list of blocks. New memory is cut from the head block; a large request gets a block of its own
 * behind the head, so that the free end of the head stays in use.
 *
 * With AddressSanitizer, what is not given out may not be touched: behind each array is a gap of one element, so that
 * a step past its end is noticed.
 *
 * Invariants: `used` is the sum of the capacities of all blocks, and never more than `max`; a
 * block's `fill` never passes its `cap`; every pointer given out is aligned to ALIGN.
 */
#include "base/mem.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WATCHED 1
#endif
#endif
#ifdef WATCHED
#include <sanitizer/asan_interface.h>
#define GAP(size) ((size) < GAP_MAX ? (size) : GAP_MAX)
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define GAP(size) ((size_t)0)
#endif

#define ALIGN 16
#define GAP_MAX ((size_t)1024)
#define BLOCK_MIN ((size_t)4096)
#define BLOCK_MAX ((size_t)262144)

struct semel_arena_block {
    struct semel_arena_block *next;
    size_t cap, fill;
    alignas(ALIGN) char bytes[];
};

static struct {
    semel_alloc_hook ask;
    void *ctx;
} alloc_hook;

void semel__alloc_set_hook(semel_alloc_hook hook, void *ctx)
{
    alloc_hook.ask = hook;
    alloc_hook.ctx = ctx;
}

bool semel__alloc_permitted(void)
{
    return alloc_hook.ask == NULL || alloc_hook.ask(alloc_hook.ctx);
}

void *semel__alloc(size_t size)
{
    return semel__alloc_permitted() ? malloc(size > 0 ? size : 1) : NULL;
}

void *semel__calloc(size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total))
        return NULL;
    void *p = semel__alloc(total);
    if (p != NULL)
        memset(p, 0, total);
    return p;
}

/* On failure p is still valid, as with realloc. */
void *semel__realloc(void *p, size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total) || !semel__alloc_permitted())
        return NULL;
    return realloc(p, total > 0 ? total : 1);
}

void semel__free(void *p)
{
    free(p);
}

bool semel__text_copy(char **ret, const char *text)
{
    const size_t size = text != NULL ? strlen(text) + 1 : 0;
    *ret = text != NULL ? semel__alloc(size) : NULL;
    if (*ret != NULL)
        memcpy(*ret, text, size);
    return text == NULL || *ret != NULL;
}

void semel__arena_init(struct semel_arena *arena, size_t max)
{
    *arena = (struct semel_arena){.max = max};
}

static void free_blocks(struct semel_arena_block *block)
{
    while (block != NULL) {
        struct semel_arena_block *next = block->next;
        semel__free(block);
        block = next;
    }
}

void semel__arena_reset(struct semel_arena *arena)
{
    struct semel_arena_block *head = arena->head;
    if (head == NULL)
        return;
    free_blocks(head->next);
    head->next = NULL;
    head->fill = 0;
    ASAN_POISON_MEMORY_REGION(head->bytes, head->cap);
    arena->used = head->cap;
}

void semel__arena_done(struct semel_arena *arena)
{
    free_blocks(arena->head);
    *arena = (struct semel_arena){.max = arena->max};
}

static struct semel_arena_block *block_new(struct semel_arena *arena, size_t cap)
{
    size_t total;
    if (cap > arena->max - arena->used || __builtin_add_overflow(cap, sizeof(struct semel_arena_block), &total))
        return NULL;
    struct semel_arena_block *block = semel__alloc(total);
    if (block == NULL)
        return NULL;
    *block = (struct semel_arena_block){.cap = cap};
    ASAN_POISON_MEMORY_REGION(block->bytes, cap);
    arena->used += cap;
    return block;
}

/* The capacity of the next ordinary block: twice the last one, within the limit. */
static size_t next_cap(const struct semel_arena *arena)
{
    size_t cap = BLOCK_MIN;
    if (arena->head != NULL && arena->head->cap >= BLOCK_MIN)
        cap = arena->head->cap < BLOCK_MAX / 2 ? arena->head->cap * 2 : BLOCK_MAX;
    size_t left = arena->max - arena->used;
    return cap < left ? cap : left;
}

/* A block with room for `need` bytes, which the caller takes. NULL: no memory, or the limit. */
static struct semel_arena_block *block_for(struct semel_arena *arena, size_t need)
{
    struct semel_arena_block *head = arena->head;
    if (head != NULL && need <= head->cap - head->fill)
        return head;

    size_t cap = next_cap(arena);
    bool own = need > cap / 4;
    struct semel_arena_block *block = block_new(arena, own ? need : cap);
    if (block == NULL)
        return NULL;
    if (own && head != NULL) {
        block->next = head->next;
        head->next = block;
    } else {
        block->next = head;
        arena->head = block;
    }
    return block;
}

/* Sizes are rounded up to ALIGN, so that the next allocation is aligned too. */
static void *arena_take(struct semel_arena *arena, size_t size, size_t gap)
{
    size_t need;
    if (size == 0)
        size = 1;
    if (__builtin_add_overflow(size, (size_t)(ALIGN - 1) + gap, &need))
        return NULL;
    need &= ~(size_t)(ALIGN - 1);

    struct semel_arena_block *block = block_for(arena, need);
    if (block == NULL)
        return NULL;
    char *p = block->bytes + block->fill;
    block->fill += need;
    ASAN_UNPOISON_MEMORY_REGION(p, size);
    return p;
}

void *semel__arena_room(struct semel_arena *arena, size_t count, size_t size)
{
    size_t total;
    return __builtin_mul_overflow(count, size, &total) ? NULL : arena_take(arena, total, GAP(size));
}

void *semel__arena_alloc(struct semel_arena *arena, size_t count, size_t size)
{
    void *p = semel__arena_room(arena, count, size);
    if (p != NULL)
        memset(p, 0, count * size);
    return p;
}

bool semel__arena_copy(struct semel_arena *arena, struct semel_str s, struct semel_str *ret_copy)
{
    if (s.p == NULL) {
        *ret_copy = (struct semel_str){NULL, 0};
        return true;
    }
    size_t total;
    if (__builtin_add_overflow(s.n, (size_t)1, &total))
        return false;
    char *p = arena_take(arena, total, GAP(1));
    if (p == NULL)
        return false;
    memcpy(p, s.p, s.n);
    p[s.n] = '\0';
    *ret_copy = (struct semel_str){p, s.n};
    return true;
}
