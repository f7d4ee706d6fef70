/* SPDX-License-Identifier: MIT
 *
 * fiber.h: a call that can be left in the middle and gone on with later, on a stack of its own.
 *
 * What it is: just enough for the simulator, in which one thread plays several workers. What it is not: safe between
 * threads, or able to be left from a signal handler.
 *
 * Invariants: at most one fiber runs; a fiber is resumed only from outside of all fibers; its stack lives until
 * fiber_free and is used again by the next fiber_start.
 */
#ifndef SEMEL_SIM_FIBER_H
#define SEMEL_SIM_FIBER_H

#include <stdbool.h>

struct fiber;

struct fiber *fiber_new(void); /* ends the process when there is no memory */
void fiber_free(struct fiber *fiber);
/* `call(arg)` will run at the next resume. The fiber must be done, or never started. */
void fiber_start(struct fiber *fiber, void (*call)(void *arg), void *arg);
/* Runs it until it yields or returns. */
void fiber_resume(struct fiber *fiber);
bool fiber_done(const struct fiber *fiber);
/* Inside a fiber: back to who resumed it. */
void fiber_yield(void);

#endif
