/* SPDX-License-Identifier: MIT
 *
 * records.h: the operations of the store contract that are written once, over the SQL port (sql.h). Queries
 * of operators are in query.h.
 *
 *   records_admit.c       order keys, business keys and rows: locked, inserted, read
 *   records_consumers.c   settings and names of consumers
 *   records_counts.c      how many rows, how many events
 *   records_events.c      operators' queries of the outbox, and their changes of its events
 *   records_history.c     the audit log; attempts, conflicts and business keys of one message
 *   records_idempotency.c  idempotency keys, and what operators ask of them
 *   records_keep.c        watermark, purge
 *   records_list.c        lists and groups of the inbox; frozen selections
 *   records_mapped.c      a table of the user's in place of the outbox
 *   records_outbox.c      events
 *   records_positions.c   positions of sources
 *   records_relay.c       the relay's scans, shards and lease
 *   records_scan.c        reading a row of the inbox; scans with a limit
 *   records_schema.c      the version of the schema; migrations
 *   records_settle.c      changes of rows and keys at the end of a batch
 */
#ifndef SEMEL_STORE_RECORDS_H
#define SEMEL_STORE_RECORDS_H

#include "store/query.h"
#include "store/sql.h"

/* The operations of the contract that are records: semel__record_admit is `admit` of struct semel_store_ops. */
/* clang-format off */
#define SEMEL_RECORD_MAP(X)                                                                                            \
    X(admit) X(fetch) X(settle) X(correct) X(audit) X(scan) X(parked) X(large)                                         \
    X(consumer_get) X(consumer_put) X(consumer_read) X(consumer_mark) X(affected) X(consumers)                         \
    X(sources) X(watermark) X(aged) X(purge) X(purge_business) X(purge_keys) X(outbox_put)                             \
    X(positions_acquire) X(positions_move) X(positions_set) X(positions_list) X(migrate)
/* clang-format on */

#define X(op) extern __typeof__(*((const struct semel_store_ops *)0)->op) semel__record_##op;
SEMEL_RECORD_MAP(X)
#undef X

/* Their places in the table of a driver. */
#define SEMEL_RECORD_PLACE(op) .op = semel__record_##op,
#define SEMEL_RECORDS SEMEL_RECORD_MAP(SEMEL_RECORD_PLACE)

/* For the relay (core/relay.h): an outbox in shards, whose numbers may commit late; and one where they cannot. */
extern const struct semel_relay_ops semel__record_relay_sharded, semel__record_relay_single;
/* For idempotency keys (core/keys.h). */
extern const struct semel_key_ops semel__record_keys;

/* The members of the struct semel_progress that is `at` of the type, as parameters. */
#define SQL_PROGRESS(type, at)                                                                         \
    SQL_FIELD(type, at.state, status), SQL_FIELD(type, at.attempts, attempts),                         \
        SQL_FIELD(type, at.attempts_before, attempts_before), SQL_FIELD(type, at.retries, retries),    \
        SQL_FIELD(type, at.alone, alone), SQL_FIELD(type, at.due_us, due_at),                          \
        SQL_FIELD(type, at.processed_us, processed_at), SQL_FIELD(type, at.lease_owner, lease_owner),  \
        SQL_FIELD(type, at.lease_until_us, lease_until), SQL_FIELD(type, at.lease_token, lease_token), \
        SQL_FIELD(type, at.error_class, error_class), SQL_FIELD(type, at.error_text, error_text),      \
        SQL_FIELD(type, at.outcome, outcome)

/* The columns of the fragment `row`, copied to the arena. INVALID, BROKEN: the row is damaged. RETRY: no memory. */
semel_status semel__record_row(const struct sql_row *row, struct semel_arena *arena, struct semel_row *ret,
                               struct semel_error *err);
/* The columns of the fragment `final_row`. The key is that of `key`. */
semel_status semel__record_final(const struct sql_row *row, const struct semel_row *key, struct semel_arena *arena,
                                 struct semel_row *ret, struct semel_error *err);
/* Lines of the audit, by a statement that gives them newest first. */
semel_status semel__record_acts(struct sql *db, enum sql_id id, const struct sql_set *once, struct semel_arena *arena,
                                struct semel_act_line **ret, size_t *ret_n, struct semel_error *err);
#define RECORD_STATUSES 256
/* "|dead|failed|"; not given: any. */
struct semel_str semel__record_statuses(unsigned states, char out[RECORD_STATUSES]);
/* INVALID: a newer schema than this program knows; none or an old one, unless the options say to migrate. */
semel_status semel__record_schema_check(struct sql *db, struct semel_error *err);

#endif
