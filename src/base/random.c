/* SPDX-License-Identifier: MIT
 *
 * random.c: xoshiro256** (Blackman and Vigna), its state filled by splitmix64.
 *
 *     result = rotl(s1 * 5, 7) * 9
 *     t = s1 << 17;  s2 ^= s0;  s3 ^= s1;  s1 ^= s2;  s0 ^= s3;  s2 ^= t;  s3 = rotl(s3, 45)
 *
 * Invariants: the state is never all zero (it would stay there); the same seed gives the same
 * numbers on every machine; nothing here has a state of its own.
 */
#include "base/random.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/types.h>

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* splitmix64 is a permutation of its counter, so at most one of the four words can be zero. */
void semel__random_seed(struct semel_random *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->s[i] = splitmix64(&seed);
}

bool semel__random_seed_os(struct semel_random *rng)
{
    struct semel_random fresh;
    ssize_t n;
    do
        n = getrandom(&fresh, sizeof(fresh), 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(fresh))
        return false;
    if ((fresh.s[0] | fresh.s[1] | fresh.s[2] | fresh.s[3]) == 0)
        return false;
    *rng = fresh;
    return true;
}

uint64_t semel__random_next(struct semel_random *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

/* The lowest 2^64 mod bound numbers are drawn again; the rest divide evenly. */
uint64_t semel__random_below(struct semel_random *rng, uint64_t bound)
{
    if (bound == 0)
        return 0;
    uint64_t surplus = (UINT64_MAX - bound + 1) % bound;
    uint64_t draw;
    do
        draw = semel__random_next(rng);
    while (draw < surplus);
    return draw % bound;
}

bool semel__random_chance(struct semel_random *rng, unsigned per_mille)
{
    return semel__random_below(rng, 1000) < per_mille;
}
