/* SPDX-License-Identifier: MIT
 *
 * random.h: randomness as an argument. xoshiro256** seeded by splitmix64: fast, repeatable from
 * one 64-bit seed, and not for secrets.
 */
#ifndef SEMEL_BASE_RANDOM_H
#define SEMEL_BASE_RANDOM_H

#include "semel/types.h"

struct semel_random {
    uint64_t s[4];
};

void semel__random_seed(struct semel_random *rng, uint64_t seed);
bool semel__random_seed_os(struct semel_random *rng); /* from getrandom(2) */
uint64_t semel__random_next(struct semel_random *rng);
/* Uniform in [0, bound), without modulo bias; bound 0 gives 0. */
uint64_t semel__random_below(struct semel_random *rng, uint64_t bound);
bool semel__random_chance(struct semel_random *rng, unsigned per_mille);

#endif
