/* SPDX-License-Identifier: MIT
 *
 * test_breaker_threads.c: the breaker of a route among threads: as many as there are workers ask it, probe and tell it.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "base/random.h"
#include "core/breaker.h"
#include "unit/unit.h"

enum { THREADS = 4, ROUNDS = 20000 };

static struct {
    struct semel_route_breaker breaker;
    pthread_mutex_t lock;
    _Atomic int64_t now_us; /* each round is a microsecond, so that everything comes due now and then */
    atomic_int probes, wrong;
    /* Under the lock. */
    enum semel_breaker_state last;
    size_t openings, closings, out_of_order;
} route;

static char names[THREADS]; /* their addresses are who asks */

static void lock(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&route.lock);
}

static void unlock(void *ctx)
{
    (void)ctx;
    pthread_mutex_unlock(&route.lock);
}

static void changed(void *ctx, enum semel_breaker_state before, const struct semel_breaker *now)
{
    (void)ctx;
    route.out_of_order += before != route.last || now->state == before;
    route.openings += before == SEMEL_BREAKER_CLOSED;
    route.closings += now->state == SEMEL_BREAKER_CLOSED;
    route.last = now->state;
}

/* The end of a probe is counted before it is told: afterwards another may have the next one. */
static void probe(const void *who, int64_t now_us, struct semel_random *rng)
{
    atomic_fetch_add(&route.wrong, atomic_fetch_add(&route.probes, 1) != 0);
    atomic_fetch_add(&route.wrong, semel__route_breaker_failures(&route.breaker, who) != 0);
    uint64_t end = semel__random_below(rng, 3);
    atomic_fetch_sub(&route.probes, 1);
    if (end == 0)
        semel__route_breaker_success(&route.breaker);
    else if (end == 1)
        semel__route_breaker_failure(&route.breaker, who, SEMEL_CLASS_TRANSIENT, now_us, rng);
    else
        semel__route_breaker_end(&route.breaker, who, now_us);
}

static void *work(void *arg)
{
    struct semel_random rng;
    semel__random_seed(&rng, (uint64_t)((const char *)arg - names));
    for (size_t i = 0; i < ROUNDS; i++) {
        int64_t now_us = atomic_fetch_add(&route.now_us, 1);
        switch (semel__route_breaker_ask(&route.breaker, arg, now_us)) {
        case SEMEL_GATE_GO: /* nothing succeeds by itself: only a probe closes it */
            semel__route_breaker_failure(&route.breaker, arg, SEMEL_CLASS_TRANSIENT, now_us, &rng);
            break;
        case SEMEL_GATE_PROBE:
            probe(arg, now_us, &rng);
            break;
        case SEMEL_GATE_WAIT:
            (void)semel__route_breaker_read(&route.breaker);
            break;
        }
    }
    return NULL;
}

/* P63: whatever the threads do, one probe is out at a time, and every change is told once and in order. */
static void threads_have_one_probe_at_a_time(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    assert_int_equal(pthread_mutex_init(&route.lock, NULL), 0);
    /* The ceiling is longer than the test: no probe is given up. */
    semel__route_breaker_init(&route.breaker, 5, 50, INT64_C(1) << 40);
    route.breaker.lock = lock;
    route.breaker.unlock = unlock;
    route.breaker.changed = changed;
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &names[i]), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(route.wrong, 0);
    assert_int_equal(route.out_of_order, 0);
    assert_true(route.openings > 1);
    assert_true(route.closings == route.openings || route.closings + 1 == route.openings);
    pthread_mutex_destroy(&route.lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_have_one_probe_at_a_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
