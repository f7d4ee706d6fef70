/* SPDX-License-Identifier: MIT
 *
 * extract.h: from a delivery to a message, by the rules of a route.
 *
 * A rule names the place of a field: `header:NAME`, `property:NAME`, `json:/POINTER`, `position`, `digest`; or
 * `stored`, of a route that gets no deliveries: its messages are in the inbox already, with their fields. Names of
 * headers are compared without regard to case (ASCII), as HTTP does. Without a rule the id is looked for in the
 * header `ce_id`, the header `id`, the property `message_id` and the header `webhook-id`; the type in `ce_type` and
 * the property `type`; the trace in `traceparent`. Unless a rule names the time, the inbox takes it from the id, else
 * from CloudEvents' `ce_time`: both stay the same when an event is sent again, a broker's own time does not.
 *
 * Invariants: the delivery is hostile. Anything wrong with it becomes a defect of the message, with a text that has
 * what is wrong, where, and what would be right; the message is kept with that reason and never runs. The call itself
 * fails only for lack of memory. The payload is parsed at most once, and only when a rule or the fingerprint needs
 * it.
 */
#ifndef SEMEL_CORE_EXTRACT_H
#define SEMEL_CORE_EXTRACT_H

#include "core/broker.h"
#include "core/msg.h"

enum semel_rule_kind {
    SEMEL_RULE_DEFAULT,
    SEMEL_RULE_HEADER,
    SEMEL_RULE_PROPERTY,
    SEMEL_RULE_JSON,
    SEMEL_RULE_POSITION,
    SEMEL_RULE_DIGEST,
    SEMEL_RULE_STORED
};

struct semel_rule {
    enum semel_rule_kind kind;
    struct semel_str name; /* header, property, pointer; borrowed from the text that was parsed */
};

struct semel_rules {
    struct semel_rule id, type, order, lock, version, time;
    struct semel_rule business[SEMEL_BUSINESS_MAX];
    size_t n_business;
    struct semel_str count; /* a JSON pointer to what the fingerprint leaves out; not given: nothing */
    bool timed;             /* a message must have a time; one without it is kept and does not run */
};

#define SEMEL_HEADER_COUNT_MAX 256

/* INVALID: err has what is wrong with the text, and the allowed forms. */
semel_status semel__rule_parse(struct semel_str text, struct semel_rule *ret, struct semel_error *err);

/* Strings of the message are borrowed from the delivery or live in the arena. `payload_max` bounds what is parsed. */
semel_status semel__extract(const struct semel_rules *rules, const struct semel_delivery *delivery, size_t payload_max,
                            struct semel_arena *arena, struct semel__msg *ret_msg, struct semel_error *err);

#endif
