/* SPDX-License-Identifier: MIT
 *
 * token.c: making and reading fencing tokens. See token.h for the layout.
 */
#include "core/token.h"

#include "base/error.h"

#define EPOCH_US INT64_C(1577836800000000) /* 2020-01-01 UTC */
#define UNIT_BITS 10                       /* microseconds in a unit */
#define CLOCK_SHIFT 22
#define CLOCK_MAX ((INT64_C(1) << 41) - 2)
#define COUNTER_SHIFT 12
#define COUNTS 1024u
#define EFFECT_SHIFT 10
#define OLD_MAX (INT64_C(1) << 40)
#define CLOCK_MIN (OLD_MAX >> CLOCK_SHIFT)
#define DOUBLE_MAX (INT64_C(1) << 53)
#define LOW_BITS 127 /* bits that a double of this size cannot hold */

static int64_t clock_of(int64_t us)
{
    if (us < EPOCH_US + (CLOCK_MIN << UNIT_BITS))
        return CLOCK_MIN;
    int64_t clock = (us - EPOCH_US) >> UNIT_BITS;
    return clock < CLOCK_MAX ? clock : CLOCK_MAX;
}

/* The unit of the next token, which still has a free counter. */
static int64_t place(struct semel_tokens *tokens, struct semel_random *rng, int64_t clock)
{
    if (clock < tokens->first || clock > tokens->clock) {
        tokens->first = tokens->clock = clock;
        tokens->start = (unsigned)semel__random_below(rng, COUNTS);
        tokens->used = 0;
    } else if (tokens->used == COUNTS && tokens->clock < CLOCK_MAX) {
        tokens->clock++;
        tokens->used = 0;
    }
    return tokens->clock;
}

int64_t semel__token_new(struct semel_tokens *tokens, struct semel_random *rng, enum semel_effect effect,
                         int64_t now_us, int64_t updated_us)
{
    int64_t clock = clock_of(now_us), after = updated_us != SEMEL_NONE ? clock_of(updated_us) + 1 : 0;
    clock = place(tokens, rng, clock > after ? clock : after);
    int64_t counter = (tokens->start + tokens->used++) % COUNTS;
    int64_t random = (int64_t)(semel__random_below(rng, 8) * (LOW_BITS + 1) + 1 + semel__random_below(rng, LOW_BITS));
    return clock << CLOCK_SHIFT | counter << COUNTER_SHIFT | ((int64_t)effect + 1) << EFFECT_SHIFT | random;
}

int64_t semel__token_us(int64_t token)
{
    return EPOCH_US + ((token >> CLOCK_SHIFT) << UNIT_BITS);
}

bool semel__token_effect(int64_t token, enum semel_effect *ret)
{
    int64_t effect = token >> EFFECT_SHIFT & 3;
    if (token < OLD_MAX || effect == 0)
        return false;
    *ret = (enum semel_effect)(effect - 1);
    return true;
}

enum semel_effect semel__effect_of(const struct semel_policy *policy, int64_t token)
{
    enum semel_effect effect = policy->effect;
    (void)semel__token_effect(token, &effect);
    return effect;
}

semel_status semel__token_check(int64_t token, struct semel_error *err)
{
    if (token < 1)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "token is %lld; tokens are numbers from 1",
                           (long long)token);
    if (token > DOUBLE_MAX && (token & LOW_BITS) == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "token is %lld, which the client has rounded: a double holds 53 bits, so keep tokens in "
                           "64-bit integers or in strings",
                           (long long)token);
    return SEMEL_OK;
}
