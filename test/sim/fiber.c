/* SPDX-License-Identifier: MIT
 *
 * fiber.c: fibers by ucontext. A context is made by makecontext; after the first entry the switches are _setjmp and
 * _longjmp, because swapcontext asks the kernel for the signal mask each time. Under AddressSanitizer the switches
 * are swapcontext, and it is told of each, so that it knows which stack it looks at.
 */
#undef _FORTIFY_SOURCE /* its longjmp takes a jump to another stack for an attack */
#include "fiber.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif
#ifndef FIBER_ASAN
#define FIBER_ASAN 0
#endif

#if FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#define STACK_SIZE ((size_t)1 << 20)
#else
#define STACK_SIZE ((size_t)256 << 10)
#endif

struct fiber {
    ucontext_t inside, outside;
#if FIBER_ASAN
    void *fake_inside, *fake_outside;
    const void *outside_stack;
    size_t outside_size;
#else
    jmp_buf jump_inside, jump_outside;
#endif
    void (*call)(void *arg);
    void *arg;
    bool entered, done;
    char *stack;
};

static struct fiber *current;

struct fiber *fiber_new(void)
{
    struct fiber *fiber = calloc(1, sizeof *fiber);

    if (fiber == NULL || (fiber->stack = malloc(STACK_SIZE)) == NULL) {
        fputs("sim: out of memory\n", stderr);
        exit(2);
    }
    fiber->done = true;
    return fiber;
}

void fiber_free(struct fiber *fiber)
{
    if (fiber == NULL)
        return;
    free(fiber->stack);
    free(fiber);
}

#if FIBER_ASAN

static void leave(struct fiber *fiber)
{
    __sanitizer_start_switch_fiber(&fiber->fake_inside, fiber->outside_stack, fiber->outside_size);
    swapcontext(&fiber->inside, &fiber->outside);
    __sanitizer_finish_switch_fiber(fiber->fake_inside, &fiber->outside_stack, &fiber->outside_size);
}

static void entered(struct fiber *fiber)
{
    __sanitizer_finish_switch_fiber(NULL, &fiber->outside_stack, &fiber->outside_size);
}

static void enter(struct fiber *fiber)
{
    __sanitizer_start_switch_fiber(&fiber->fake_outside, fiber->stack, STACK_SIZE);
    swapcontext(&fiber->outside, &fiber->inside);
    __sanitizer_finish_switch_fiber(fiber->fake_outside, NULL, NULL);
}

#else

static void leave(struct fiber *fiber)
{
    if (_setjmp(fiber->jump_inside) == 0)
        _longjmp(fiber->jump_outside, 1);
}

static void entered(struct fiber *fiber)
{
    (void)fiber;
}

static void enter(struct fiber *fiber)
{
    if (_setjmp(fiber->jump_outside) != 0)
        return;
    if (fiber->entered)
        _longjmp(fiber->jump_inside, 1);
    swapcontext(&fiber->outside, &fiber->inside);
}

#endif

/* makecontext passes ints only: a pointer goes through in two halves. */
static void trampoline(unsigned high, unsigned low)
{
    struct fiber *fiber = (struct fiber *)((uintptr_t)high << 16 << 16 | (uintptr_t)low);

    entered(fiber);
    for (;;) { /* the context is used again by the next start */
        fiber->call(fiber->arg);
        fiber->done = true;
        leave(fiber);
    }
}

void fiber_start(struct fiber *fiber, void (*call)(void *arg), void *arg)
{
    const uintptr_t p = (uintptr_t)fiber;

    fiber->call = call;
    fiber->arg = arg;
    fiber->done = false;
    if (fiber->entered)
        return;
    getcontext(&fiber->inside);
    fiber->inside.uc_stack.ss_sp = fiber->stack;
    fiber->inside.uc_stack.ss_size = STACK_SIZE;
    fiber->inside.uc_link = NULL;
    makecontext(&fiber->inside, (void (*)(void))trampoline, 2, (unsigned)(p >> 16 >> 16), (unsigned)p);
}

void fiber_resume(struct fiber *fiber)
{
    current = fiber;
    enter(fiber);
    fiber->entered = true;
    current = NULL;
}

bool fiber_done(const struct fiber *fiber)
{
    return fiber->done;
}

void fiber_yield(void)
{
    leave(current);
}
