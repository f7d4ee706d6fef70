/* SPDX-License-Identifier: MIT
 *
 * records_outbox.c: events, added in the transaction that makes them true.
 */
#include <ctype.h>

#include "base/ids.h"
#include "store/records.h"

struct written {
    struct semel__event event;
    struct semel_str id;
    int64_t now_us;
};

static const struct sql_field written_fields[] = {
    SQL_FIELD(struct written, id, event_id),
    SQL_FIELD(struct written, event.aggregatetype, aggregatetype),
    SQL_FIELD(struct written, event.aggregateid, aggregateid),
    SQL_FIELD(struct written, event.type, type),
    SQL_FIELD(struct written, event.payload, payload),
    SQL_FIELD(struct written, event.headers, headers),
    SQL_FIELD(struct written, event.destination, destination),
    SQL_FIELD(struct written, now_us, now),
    SQL_FIELD(struct written, event.traceparent, traceparent),
};

static const struct sql_field changes[] = {{.name = SQL_NAME_changes, .size = sizeof(int64_t)}};

/* Counts with the locks that the SQL function takes in the same transaction: both have one bound. */
static semel_status lock_aggregate(struct sql *db, const struct semel__event *event, struct semel_error *err)
{
    static const struct sql_field names[] = {
        SQL_FIELD(struct semel__event, aggregatetype, aggregatetype),
        SQL_FIELD(struct semel__event, aggregateid, aggregateid),
    };
    int64_t locked = 0;
    struct sql_into into = {SQL_FIELDS(changes), .items = &locked, .size = sizeof locked};
    if (!semel__db_needs(db, SQL_outbox_lock))
        return SEMEL_OK;
    semel_status status = semel__db_do(db, "locking an aggregate", SQL_outbox_lock, SQL_ONE(names, event), NULL,
                                       semel__db_read_item, &into, err);
    if (status == SEMEL_OK && locked == 0)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "outbox: lock for more than 1000 aggregates in one transaction; commit more often, or "
                             "lock the rows of the aggregates yourself");
    return status;
}

semel_status semel__record_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                      char ret_id[37], struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    char id[SEMEL_UUID_TEXT] = "";
    int64_t added = 0;
    struct sql_into into = {SQL_FIELDS(changes), .items = &added, .size = sizeof added};
    if (!semel__str_given(event->id))
        semel__uuid7_new(now_us, db->rng, id);
    for (size_t i = 0; i < event->id.n && i < sizeof(id) - 1; i++) /* one spelling per UUID */
        id[i] = (char)tolower((unsigned char)event->id.p[i]);

    const struct written written = {*event, semel__str(id), now_us};
    semel_status status = event->lock ? lock_aggregate(db, event, err) : SEMEL_OK;
    if (status == SEMEL_OK)
        status = semel__db_do(db, "adding to the outbox", SQL_outbox_put, SQL_ONE(written_fields, &written), NULL,
                              semel__db_read_item, &into, err);
    if (status == SEMEL_OK && added == 0)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "outbox: an event with the id %s is there already", id);
    if (status == SEMEL_OK && ret_id != NULL)
        memcpy(ret_id, id, sizeof(id));
    return status;
}
