/* SPDX-License-Identifier: MIT
 *
 * wait.h: the steady clock, and condition variables that wait by it.
 *
 * The steady clock never jumps and has no relation to the time of day: it is for waits and ages, never for stored
 * times.
 */
#ifndef SEMEL_BASE_WAIT_H
#define SEMEL_BASE_WAIT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

int64_t semel__steady_us(void);
/* The same, and it goes on while the machine sleeps: for leases that others give. */
int64_t semel__boot_us(void);
/* For who has nothing to wait for but the time. */
void semel__rest(int ms);

bool semel__cond_init(pthread_cond_t *cond); /* false: no memory */
/* Call with the lock held. false: until_us of the steady clock is over. May wake without a reason. */
bool semel__cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_us);

#endif
