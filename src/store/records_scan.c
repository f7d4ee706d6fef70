/* SPDX-License-Identifier: MIT
 *
 * records_scan.c: bounded, unlocked looks at the inbox: what is counted before one more row is parked or kept.
 */
#include "store/records.h"

struct args {
    struct semel_str consumer;
    int64_t limit, payload_max;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, consumer, consumer),
    SQL_FIELD(struct args, limit, limit),
    SQL_FIELD(struct args, payload_max, payload_max),
};

semel_status semel__record_parked(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                                  struct semel_error *err)
{
    const struct args args = {.consumer = consumer, .limit = max};
    return semel__db_count(semel__db_of(store), SQL_parked, "counting parked messages", SQL_ONE(args_fields, &args),
                           ret_n, err);
}

semel_status semel__record_large(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                                 int64_t *ret_n, struct semel_error *err)
{
    const struct args args = {.consumer = consumer, .limit = max, .payload_max = (int64_t)bytes};
    return semel__db_count(semel__db_of(store), SQL_large, "counting messages above payload_max",
                           SQL_ONE(args_fields, &args), ret_n, err);
}
