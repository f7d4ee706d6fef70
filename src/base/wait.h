/* SPDX-License-Identifier: MIT
 *
 * wait.h: the steady clock, and condition variables that wait by it.
 *
 * The steady clock never jumps and says nothing of the time of day: it is for waits and ages, never for what is stored.
 */
#ifndef SEMEL_BASE_WAIT_H
#define SEMEL_BASE_WAIT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

int64_t semel__steady_us(void);

bool semel__cond_init(pthread_cond_t *cond); /* false: no memory */
/* Under the lock. false: it is later than until_us, by the steady clock. Wakes without a reason, too. */
bool semel__cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_us);

#endif
