/* SPDX-License-Identifier: MIT
 *
 * consumer.h: what a consumer promises and allows, kept in the store as the text of a JSON object.
 *
 * The one truth for every door: the C library, the SQL functions, the command line and the daemon read the same row, so
 * a retry's retention and a take's order are the same wherever they are asked for. One table (consumer.c) describes
 * each member: its name, type, range, default and help; it reads, writes and documents them.
 *
 * Members: effect (atomic|outside|keyed), order (none|arrival|version), first_version (N|"any"), on_gap
 * (dead|apply|alert), gap_timeout, retry_max, permanent_max, retry_first, retry_ceiling, lease, parked_key_max,
 * parked_consumer_max, keep_payload (unfinished|always|never), payload_max, retention, business_retention
 * (duration or "forever"), timed_ids ("uuidv7"|false|true|"ulid"), one_source (true|false). Durations are text: a whole
 * number and us, ms, s, m, h or d.
 *
 * Invariants: an unknown member, a wrong type and a value out of range are refused with the member's name, and what
 * is stored is checked again when it is read. What is not said has the default of semel__policy_init, and is not
 * stored. Where `order` is not said, the first message with an order key decides it (`version` if it has one, else
 * `arrival`), and that is stored beside what was said.
 *
 * Settings change while messages of the consumer are stored (I24). There are two ways to say it. A person, by the
 * command line, SQL or C, says what is to change: the rest stays, null takes one away. A route's file says everything,
 * replaces what is stored, and marks the consumer: from then on people change the file.
 *
 * Rows are stored under the settings of their time. A change that would make them mean something else is refused, with
 * their number: see the table in consumer.c. Force takes it all the same, and takes the mark away: the consumer is
 * set by a person then, until a file sets it again. Deliveries are not locked out: rows by the old settings may be
 * committed later, which no refused change but that of one_source could be hurt by.
 */
#ifndef SEMEL_CORE_CONSUMER_H
#define SEMEL_CORE_CONSUMER_H

#include "base/str.h"
#include "core/store.h"

#define SEMEL_SETTINGS_MAX 4096

/* From text to a policy; not given or {}: the defaults. *ret_order_said (may be NULL): `order` was among the members.
 * INVALID, BROKEN: names the consumer, the member, what it is and what would be right. RETRY: no memory. */
semel_status semel__policy_read(struct semel_str consumer, struct semel_str settings, struct semel_policy *ret,
                                bool *ret_order_said, struct semel_error *err);
/* What is wrong with settings, for who calls the members by other names. */
struct semel_setting_fault {
    struct semel_error err;     /* all of it, in the members' names */
    const char *member, *other; /* whose value is wrong, and which one it contradicts; NULL: none */
    char right[160];            /* what the value must be */
};
/* The same as semel__policy_read. */
semel_status semel__policy_try(struct semel_str consumer, struct semel_str settings, struct semel_policy *ret,
                               struct semel_setting_fault *fault);
/* All members, defaults included, as one JSON object; read back, it says every member, `order` too. */
void semel__policy_write(const struct semel_policy *policy, struct semel_buf *buf);
/* The members for people: calls `each` with name, kind ("duration, 1ms to 1d", "1 to 1000", "atomic|outside|keyed"),
 * default and help. The strings live until `each` returns. */
void semel__policy_members(void (*each)(void *ctx, const char *name, const char *kind, const char *value,
                                        const char *help),
                           void *ctx);

/* One value, for a person. */
void semel__setting_show(const struct semel_policy *policy, const char *name, char *out, size_t size);

/* What stored settings say, as semel__consumer_load reads them. */
semel_status semel__consumer_use(struct semel_str consumer, struct semel_str settings, struct semel_policy *ret,
                                 bool *ret_order_said, struct semel_error *err);
/* The stored policy of the consumer; the consumer's name is borrowed, nothing else. Needs no transaction. */
semel_status semel__consumer_load(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                  struct semel_policy *ret, bool *ret_order_said, struct semel_error *err);
/* For one message: settles `order` by what it gives where the consumer has not said it, and stores that;
 * inside a transaction, with whose rollback it is undone. What others stored since `policy` was read is taken over.
 * INVALID: the message contradicts the order that was settled: a version where it is `arrival`. A message that lacks
 * what `version` needs is no contradiction but a bad message, which the inbox keeps; `none` takes every message.
 * After OK of a message with an order key, the order is settled. */
semel_status semel__consumer_order(struct semel_store *store, const struct semel__msg *msg, bool order_said,
                                   struct semel_policy *policy, int64_t now_us, struct semel_error *err);

/* ---- changes ------------------------------------------------------------------------------------------- */

/* Who changes settings, how and why. */
struct semel_setter {
    struct semel_str who;        /* for the audit */
    struct semel_str reason;     /* for the audit; not given: none, which force must not be */
    struct semel_str host, file; /* given: a route's file */
    bool force;
};

struct semel_setting {
    struct semel_policy policy; /* as it holds from now on; refused: as it would */
    struct semel_str change;    /* JSON, in the arena: what was to change; {}: nothing */
    struct semel_set_by by;     /* whose file had set it before; in the arena */
    bool changed;               /* and an audit line was written */
    bool refused;               /* by what is stored: force would do it */
    const char *hint;           /* or NULL: what to think of */
};

/* Reads, judges, stores and writes the audit line, under the lock of the consumer's row: inside a transaction, which
 * must be rolled back unless it answers OK. INVALID: the settings are wrong, or (ret->refused) stored rows or a file
 * speak against it; err names the number and what to do. */
semel_status semel__consumer_set(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                 const struct semel_setter *by, int64_t now_us, struct semel_arena *arena,
                                 struct semel_setting *ret, struct semel_error *err);
/* The same in a transaction of its own. */
semel_status semel__consumer_change(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                    const struct semel_setter *by, struct semel_arena *arena, struct semel_setting *ret,
                                    struct semel_error *err);
/* Whether stored rows mean the same under both. */
bool semel__policy_same(const struct semel_policy *a, const struct semel_policy *b);

#endif
