/* SPDX-License-Identifier: MIT
 *
 * guard.h: guarded requests: the work is done once per key, and later requests get the first answer.
 *
 * What it is: one state machine per guarded request, in the loop's thread. Its store is the keeper (keeper.h), its
 * rules are rules.h and core/keys.h.
 *
 *     BODY        the request's body is spooled, within the rule's bounds as its bytes arrive (P87)
 *     DIGESTING   its fingerprint is computed, in another thread if it is large (P104)
 *     WAITING     another request of this loop has the key, or asks for it: its answer is awaited
 *     CLAIMING    the keeper has its claim
 *     POLLING     a request elsewhere has the key: it is claimed again in a moment
 *     ASKING      the outcome of an earlier request is unknown, and the reconcile is asked; RESOLVING: its answer is
 *                 written, then the key is claimed again
 *     CHECKING    the check URL is asked before a replay
 *     CALLING     the claim is committed: the upstream has the request, and its answer is spooled
 *     ENDING      the keeper has the key's end; RETRYING: it could not store it, and gets it again in a moment
 *     STREAMING   the end is stored, and the rest of an answer without a stored body is passed on
 *     SENDING     all is known, and the client takes its answer: what it has not taken counts for the rule's bound
 *
 * Invariants: nothing is sent upstream before the claim is committed, nor after its lease has ended; nothing of an
 * answer is sent to the client before the end of its key is stored (P48); a client that leaves ends nothing that has
 * been claimed (P99); a request is sent upstream once.
 */
#ifndef SEMEL_GATEWAY_GUARD_H
#define SEMEL_GATEWAY_GUARD_H

#include "gateway/rules.h"

/* What the gateway keeps with an exchange begins with it. */
struct semel_party {
    const struct semel_http_stream *events;
};

struct semel_guards;

/* `upstream` and `counts` are borrowed. INVALID: err names the setting. */
semel_status semel__guards_new(struct semel_guards **ret, struct semel_http *http, struct semel_upstream *upstream,
                               const struct semel_gateway_settings *settings, struct semel_gateway_counts *counts,
                               struct semel_error *err);
/* After semel__http_free, and after the keeper's lanes have ended. Accepts NULL. */
void semel__guards_free(struct semel_guards *guards);
const struct semel_guard_rules *semel__guards_rules(const struct semel_guards *guards);
/* The rule by which a request is guarded; NULL: it is not. */
struct semel_guard_rule *semel__guards_rule(const struct semel_guards *guards, const struct semel_http_request *req);
/* Takes the exchange over. `lines` go upstream, besides the key, the token and Accept-Encoding. */
void semel__guard_start(struct semel_guards *guards, struct semel_guard_rule *rule, struct semel_http_exchange *x,
                        struct semel_str lines);
/* Answers in its place: there is no room or no memory for the request. */
void semel__guard_refuse(struct semel_guards *guards, struct semel_http_exchange *x, const char *detail);

#endif
