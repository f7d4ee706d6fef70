/* SPDX-License-Identifier: MIT
 *
 * records.h: the operations of the store contract that are written once, over the SQL port (sql.h). What
 * operators ask is in query.h.
 *
 *   records_admit.c       order keys, business keys and rows: locked, inserted, read
 *   records_audit.c       what people did
 *   records_consumers.c   settings and names of consumers
 *   records_counts.c      how many rows, how many events
 *   records_events.c      what operators ask of the outbox and do to its events
 *   records_history.c     what else is known of one message
 *   records_keep.c        watermark, purge
 *   records_list.c        lists and groups of the inbox; making a selection
 *   records_outbox.c      events
 *   records_positions.c   positions of sources
 *   records_relay.c       what the relay reads and writes
 *   records_row.c         a row of the inbox as it is read
 *   records_scan.c        bounded looks at the inbox
 *   records_selections.c  frozen selections
 *   records_settle.c      what rows and keys become
 */
#ifndef SEMEL_STORE_RECORDS_H
#define SEMEL_STORE_RECORDS_H

#include "store/query.h"
#include "store/sql.h"

semel_status semel__record_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                                 struct semel_error *err);
semel_status semel__record_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                                 struct semel_error *err);

semel_status semel__record_audit(struct semel_store *store, const struct semel_audit *line, int64_t now_us,
                                 struct semel_error *err);

semel_status semel__record_consumer_get(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                        struct semel_str *ret_settings, struct semel_error *err);
semel_status semel__record_consumer_put(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                        int64_t now_us, struct semel_error *err);
semel_status semel__record_consumer_read(struct semel_store *store, struct semel_str consumer, bool lock,
                                         struct semel_arena *arena, struct semel_consumer *ret,
                                         struct semel_error *err);
semel_status semel__record_consumer_mark(struct semel_store *store, struct semel_str consumer,
                                         const struct semel_set_by *by, struct semel_error *err);
semel_status semel__record_affected(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                                    int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err);
semel_status semel__record_consumers(struct semel_store *store, struct semel_str after, size_t max,
                                     struct semel_arena *arena, struct semel_str **ret, size_t *ret_n,
                                     struct semel_error *err);

semel_status semel__record_sources(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                   struct semel_str **ret_sources, size_t *ret_n, struct semel_error *err);
semel_status semel__record_watermark(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                     int64_t watermark_us, struct semel_error *err);
semel_status semel__record_aged(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                int64_t before_us, size_t max, size_t looks, struct semel_aged *ret,
                                struct semel_error *err);
semel_status semel__record_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                 int64_t before_us, size_t max, size_t looks, size_t *ret_deleted,
                                 struct semel_error *err);
semel_status semel__record_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us,
                                          size_t max, size_t *ret_deleted, struct semel_error *err);
semel_status semel__record_purge_side(struct semel_store *store, struct semel_str consumer, int64_t before_us,
                                      size_t max, char place[SEMEL_ID_MAX + 1], struct semel_error *err);

semel_status semel__record_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                      char ret_id[37], struct semel_error *err);

semel_status semel__record_positions_take(struct semel_store *store, struct semel_str consumer,
                                          struct semel_position *items, size_t n, int64_t now_us,
                                          struct semel_error *err);
semel_status semel__record_positions_move(struct semel_store *store, struct semel_str consumer,
                                          struct semel_position *items, size_t n, int64_t now_us,
                                          struct semel_error *err);
semel_status semel__record_positions_set(struct semel_store *store, struct semel_str consumer,
                                         struct semel_position *items, size_t n, int64_t now_us,
                                         struct semel_error *err);
semel_status semel__record_positions_list(struct semel_store *store, struct semel_str consumer, size_t max,
                                          struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                          struct semel_error *err);

/* The columns of the fragment `row`, copied to the arena. INVALID, BROKEN: the row is damaged. RETRY: no memory. */
semel_status semel__record_row(const struct sql_row *row, struct semel_arena *arena, struct semel_row *ret,
                               struct semel_error *err);
/* The columns of the fragment `final_row`. The key is that of `key`. */
semel_status semel__record_final(const struct sql_row *row, const struct semel_row *key, struct semel_arena *arena,
                                 struct semel_row *ret, struct semel_error *err);
#define RECORD_STATUSES 256
/* "|dead|failed|"; not given: any. */
struct semel_str semel__record_statuses(unsigned states, char out[RECORD_STATUSES]);
semel_status semel__record_scan(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                                struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged,
                                struct semel_error *err);
semel_status semel__record_parked(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                                  struct semel_error *err);
semel_status semel__record_large(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                                 int64_t *ret_n, struct semel_error *err);

semel_status semel__record_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err);

/* For the relay (core/relay.h): an outbox in shards, whose numbers may commit late; and one where they cannot. */
extern const struct semel_relay_ops semel__record_relay_sharded, semel__record_relay_single;

/* Their places in a driver's struct semel_store_ops. */
#define SEMEL_RECORDS                                                                                           \
    .admit = semel__record_admit, .fetch = semel__record_fetch, .audit = semel__record_audit,                   \
    .consumer_get = semel__record_consumer_get, .consumer_put = semel__record_consumer_put,                     \
    .consumer_read = semel__record_consumer_read, .consumer_mark = semel__record_consumer_mark,                 \
    .affected = semel__record_affected, .consumers = semel__record_consumers,                                   \
    .positions_take = semel__record_positions_take, .positions_move = semel__record_positions_move,             \
    .positions_set = semel__record_positions_set, .positions_list = semel__record_positions_list,               \
    .sources = semel__record_sources, .watermark = semel__record_watermark, .aged = semel__record_aged,         \
    .purge = semel__record_purge, .purge_business = semel__record_purge_business,                               \
    .purge_side = semel__record_purge_side, .outbox_put = semel__record_outbox_put, .scan = semel__record_scan, \
    .parked = semel__record_parked, .large = semel__record_large, .settle = semel__record_settle

#endif
