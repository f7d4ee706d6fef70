/* SPDX-License-Identifier: MIT
 *
 * rules.h: which requests are guarded, by which rule, whose they are and what their key is.
 *
 * What it is: the settings of the guard, checked and copied; pure functions of a request's head and body. Not the guard
 * (guard.h), and not the rules about rows (core/keys.h).
 *
 * Invariants: a rule matches every spelling of its path, and all of them are one endpoint (P91); a caller is known, or
 * the rule allows that nobody is (P46); scopes that begin with "semel:" are made here alone, so that no caller can have
 * the name of another one.
 */
#ifndef SEMEL_GATEWAY_RULES_H
#define SEMEL_GATEWAY_RULES_H

#include "core/fingerprint.h"
#include "gateway/gateway.h"
#include "gateway/heads.h"

#define SEMEL_SCOPE_OURS "semel:"
#define SEMEL_GUARD_RULE_MAX 255 /* bytes of a rule's name that are stored with its keys */

struct semel_asker;

struct semel_guard_rule {
    struct semel_gateway_rule set; /* its strings are copies */
    unsigned methods;
    struct semel_str path;
    struct semel_request_rule counts; /* in a fingerprint */
    struct semel_asker *reconcile;    /* or NULL; the guard's */
    int64_t settle_us;
    _Atomic size_t *held; /* bytes of bodies and answers in memory; of all loops */
};

struct semel_guard_rules {
    struct semel_arena arena;
    struct semel_guard_rule *list; /* the last one is for what no other matches */
    size_t n;
    _Atomic size_t *held; /* per rule, where no other loop has them */
    struct semel_gateway_caller caller;
    struct semel_networks callers_from;
    struct semel_str *cors;
    size_t n_cors;
    size_t key_min;
};

/* INVALID: err names the setting and what would be right. _done also after a failure. */
semel_status semel__rules_init(struct semel_guard_rules *rules, const struct semel_gateway_settings *settings,
                               struct semel_error *err);
void semel__rules_done(struct semel_guard_rules *rules);

/* The rule that guards such requests; NULL: none, or one that is off. `target` has passed the gateway's checks. */
struct semel_guard_rule *semel__rules_match(const struct semel_guard_rules *rules, enum semel_http_method method,
                                            struct semel_str target);

/* The key in the headers, quoted or bare. MISSING: there is none, *ret is not given. Otherwise what is wrong. */
enum semel_key_found { SEMEL_KEY_FOUND, SEMEL_KEY_MISSING, SEMEL_KEY_MALFORMED, SEMEL_KEY_MEMORY };
enum semel_key_found semel__rule_key(const struct semel_guard_rules *rules, const struct semel_guard_rule *rule,
                                     const struct semel_http_pair *headers, size_t n, struct semel_arena *arena,
                                     struct semel_str *ret, struct semel_error *err);
/* The same for a key in the body. MALFORMED, too: a server may read the body as JSON, and we cannot (nested deeper
 * than ours, repeated members, gzip, another charset), so nobody knows whether it contains a key. */
enum semel_key_found semel__rule_key_in(const struct semel_guard_rules *rules, const struct semel_guard_rule *rule,
                                        const struct semel_request *request, struct semel_arena *arena,
                                        struct semel_str *ret, struct semel_error *err);

/* What is known of who asks. */
struct semel_guard_peer {
    struct semel_str remote, subject; /* as in http.h */
};
/* May this header of a peer's go upstream, and name a caller? */
bool semel__rules_believe(const struct semel_guard_rules *rules, const struct semel_guard_peer *peer,
                          struct semel_str name);
/* Does this header show who asks? The check before a replay gets it. */
bool semel__rules_credential(const struct semel_guard_rules *rules, struct semel_str name);
/* The scope of a key: the caller, and with key_scope `endpoint` method and path. false: nobody is known, or err: there
 * is no memory, or the caller is malformed. */
bool semel__rule_scope(const struct semel_guard_rules *rules, const struct semel_guard_rule *rule,
                       const struct semel_http_request *req, struct semel_arena *arena, struct semel_str *ret,
                       struct semel_error *err);
bool semel__rules_cors(const struct semel_guard_rules *rules, struct semel_str origin);

#endif
