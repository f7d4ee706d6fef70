/* SPDX-License-Identifier: MIT
 *
 * records_audit.c: what people did.
 */
#include "store/records.h"

struct line {
    struct semel_audit audit;
    int64_t now_us;
};

semel_status semel__record_audit(struct semel_store *store, const struct semel_audit *line, int64_t now_us,
                                 struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_FIELD(struct line, now_us, now),
        SQL_FIELD(struct line, audit.who, who),
        SQL_FIELD(struct line, audit.what, what),
        SQL_FIELD(struct line, audit.reason, reason),
        SQL_FIELD(struct line, audit.forced, forced),
        SQL_FIELD(struct line, audit.consumer, consumer),
        SQL_FIELD(struct line, audit.source, about_source),
        SQL_FIELD(struct line, audit.id, message_id),
    };
    struct sql *db = semel__db_of(store);
    const struct line written = {*line, now_us};
    semel__db_start(db, "writing the audit");
    semel__db_run(db, SQL_audit_put, SQL_ONE(fields, &written), NULL, NULL, NULL);
    return semel__db_flush(db, err);
}
