/* SPDX-License-Identifier: MIT
 *
 * consumer.h: the settings of a consumer, stored as a JSON object.
 *
 * The C library, the SQL functions, the command line and the daemon read the same row, so retention, order and
 * retries are the same for all of them. One table (consumer.c) describes each member: its name, type, range, default
 * and help; it reads, writes and documents them.
 *
 * Members: effect (atomic|outside|keyed), order (none|arrival|version), first_version (N|"any"), on_gap
 * (dead|apply|alert), gap_timeout, retry_max, permanent_max, retry_first, retry_ceiling, lease, parked_key_max,
 * parked_consumer_max, keep_payload (unfinished|always|never), payload_max, retention, business_retention
 * (duration or "forever"), timed_ids ("uuidv7"|false|true|"ulid"), one_source (true|false). Durations are text: a whole
 * number and us, ms, s, m, h or d.
 *
 * Invariants: an unknown member, a wrong type and a value out of range are refused with the member's name, and stored
 * settings are checked again when they are read. A member that is not set has the default of semel__policy_init and
 * is not stored. Where `order` is not set, the first message with an order key decides it (`version` if it has one,
 * else `arrival`), and the decision is stored with the settings.
 *
 * Settings change while messages of the consumer are stored (I24). There are two ways to change them. A person, by
 * the command line, SQL or C, sets some members: the others stay, null removes one. A route's file sets all members,
 * replaces the stored ones, and marks the consumer: from then on people change the file.
 *
 * Rows are stored under the settings of their time. A change that would make them mean something else is refused,
 * with their number: see the table in consumer.c. Force applies it anyway and removes the mark: a person has set the
 * consumer then, until a file sets it again. A change does not lock out deliveries: rows by the old settings may be
 * committed later; of the refused changes that can hurt only one_source.
 */
#ifndef SEMEL_CORE_CONSUMER_H
#define SEMEL_CORE_CONSUMER_H

#include "base/str.h"
#include "core/store.h"

#define SEMEL_SETTINGS_MAX 4096

/* From text to a policy; not given or {}: the defaults. *ret_order_said (may be NULL): `order` was set. INVALID,
 * BROKEN: names the consumer, the member, its value and what would be right. RETRY: no memory. */
semel_status semel__policy_read(struct semel_str consumer, struct semel_str settings, struct semel_policy *ret,
                                bool *ret_order_said, struct semel_error *err);
/* What is wrong with settings, for callers that use other names for the members. */
struct semel_setting_fault {
    struct semel_error err;     /* the whole message, with the members' names */
    const char *member, *other; /* the member whose value is wrong, and the one that it contradicts; NULL: none */
    char right[160];            /* what the value must be */
};
/* The same as semel__policy_read. */
semel_status semel__policy_try(struct semel_str consumer, struct semel_str settings, struct semel_policy *ret,
                               struct semel_setting_fault *fault);
/* All members, defaults included, as one JSON object; reading it sets every member, `order` too. */
void semel__policy_write(const struct semel_policy *policy, struct semel_buf *buf);
/* Describes the members to people: calls `each` with name, kind ("duration, 1ms to 1d", "1 to 1000",
 * "atomic|outside|keyed"), default and help. The strings live until `each` returns. */
void semel__policy_members(void (*each)(void *ctx, const char *name, const char *kind, const char *value,
                                        const char *help),
                           void *ctx);

/* One value as text for people. */
void semel__setting_show(const struct semel_policy *policy, const char *name, char *out, size_t size);

/* The policy of stored settings, as semel__consumer_load reads them. */
semel_status semel__consumer_use(struct semel_str consumer, struct semel_str settings, struct semel_policy *ret,
                                 bool *ret_order_said, struct semel_error *err);
/* The stored policy of the consumer; only the consumer's name is borrowed. Needs no transaction. */
semel_status semel__consumer_load(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                  struct semel_policy *ret, bool *ret_order_said, struct semel_error *err);
/* For one message: if the consumer has not set `order`, decides it from the message and stores it, inside a transaction
 * whose rollback undoes it. Takes over what others stored since `policy` was read. INVALID: the message contradicts the
 * order: a version where it is `arrival`. A message that lacks what `version` needs is no contradiction but a bad
 * message, which the inbox keeps; `none` accepts every message. After OK of a message with an order key, the order is
 * decided. */
semel_status semel__consumer_order(struct semel_store *store, const struct semel__msg *msg, bool order_said,
                                   struct semel_policy *policy, int64_t now_us, struct semel_error *err);

/* ---- changes ------------------------------------------------------------------------------------------- */

/* Who changes settings, how and why. */
struct semel_setter {
    struct semel_str who;        /* for the audit log */
    struct semel_str reason;     /* for the audit log; not given: none, but force needs one */
    struct semel_str host, file; /* given when a route's file sets it */
    bool adopts; /* with a file: messages of a consumer that no file had set are the route's own (`from: inbox`) */
    bool force;
};

struct semel_setting {
    struct semel_policy policy; /* as it is from now on; refused: as it would be */
    struct semel_str change;    /* JSON, in the arena: the members to change; {}: none */
    struct semel_set_by by;     /* the file that had set it before; in the arena */
    bool changed;               /* stored, and an audit line was written */
    bool refused;               /* because of stored rows or a file: force would apply it */
    const char *hint;           /* or NULL: what the reader should consider */
};

/* Reads, checks, stores and writes the audit line under the lock of the consumer's row, inside a transaction that must
 * be rolled back unless this returns OK. INVALID: the settings are wrong, or (ret->refused) stored rows or a file speak
 * against them; err has their number and what to do. */
semel_status semel__consumer_set(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                 const struct semel_setter *by, int64_t now_us, struct semel_arena *arena,
                                 struct semel_setting *ret, struct semel_error *err);
/* The same in a transaction of its own. */
semel_status semel__consumer_change(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                    const struct semel_setter *by, struct semel_arena *arena, struct semel_setting *ret,
                                    struct semel_error *err);
/* Do stored rows mean the same under both? */
bool semel__policy_same(const struct semel_policy *a, const struct semel_policy *b);

#endif
