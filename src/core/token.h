/* SPDX-License-Identifier: MIT
 *
 * token.h: fencing tokens. A claim gets a token, and its end counts only with the same token.
 *
 *   bits 62-22  the store's clock, in units of 1.024 ms since 2020-01-01 UTC: the later of now and one unit past the
 *               row's updated_at, so that tokens rise per message even if the clock steps back
 *        21-12  a counter
 *        11-10  the effect that the message was claimed under: 1 atomic, 2 outside, 3 keyed
 *         9-0   random; bits 6-0 are never all 0
 *
 * sql/postgres/013_ground.sql makes the same (semel._token). Tokens do not come from a counter in the database, which
 * would repeat them after a restore (P79). Tokens exceed 2^53: JSON carries them as strings, and a token that a
 * client has rounded to a double ends in seven zeros. Tokens below 2^40 come from databases that counted them; they
 * do not contain the effect.
 *
 * Invariants: no two tokens of an inbox are equal; the token of a claim is above every earlier one of its message,
 * because updated_at never falls and is never before the clock of an issued token.
 */
#ifndef SEMEL_CORE_TOKEN_H
#define SEMEL_CORE_TOKEN_H

#include "base/random.h"
#include "core/policy.h"

/* Issues tokens; starts zeroed. */
struct semel_tokens {
    int64_t first, clock; /* the unit for which the last token was made, and the unit in it */
    unsigned start, used; /* of the counter, within `clock` */
};

/* `updated_us` is the row's; SEMEL_NONE: it has none yet. */
int64_t semel__token_new(struct semel_tokens *tokens, struct semel_random *rng, enum semel_effect effect,
                         int64_t now_us, int64_t updated_us);
/* The time in a token. */
int64_t semel__token_us(int64_t token);
/* The effect under which a message was claimed. false: the token does not contain it. */
bool semel__token_effect(int64_t token, enum semel_effect *ret);
/* The same; where the token does not contain it, the consumer's effect. */
enum semel_effect semel__effect_of(const struct semel_policy *policy, int64_t token);
/* INVALID: not a valid token; the text tells when a client has rounded it. */
semel_status semel__token_check(int64_t token, struct semel_error *err);

#endif
