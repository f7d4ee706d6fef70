/* SPDX-License-Identifier: MIT
 *
 * mapped.h: a table of the user's in place of the outbox. The settings name the table and its columns (struct
 * semel_relay_table, core/relay.h); the statements are templates in sql/statements/<database>/mapped.sql, in which
 * words that begin with @ stand for those names.
 *
 * Invariants
 *  - A name reaches SQL only if the catalog has it: the table is found by parameters, a column is one of those that the
 *    catalog lists. It is written quoted, and what was put into a template is not looked at again. So no name, however
 *    it is spelt, can be anything but a name. Values of a mark are ASCII letters, digits, blanks and _ - . : (the
 *    settings are refused otherwise); other texts are written in hexadecimal.
 *  - A row is known by the values of its id and of the column that orders, which together are unique: an index says so,
 *    or the table is refused. Confirming an event never touches another row.
 *  - The table is only read, and rows of it are deleted, or marked in one column. Nothing else of it is changed.
 *  - A mapped table has one shard, a multiple of 64, registered in outbox_mapped under the name that the catalog gives.
 *    However an outbox is called in the settings, and wherever its relays run, there is one lease per table.
 *  - Events aside are numbered in the order of (place, id) within their aggregate; the numbers are never given again.
 */
#ifndef SEMEL_STORE_MAPPED_H
#define SEMEL_STORE_MAPPED_H

#include "core/relay.h"
#include "store/sql.h"

/* The templates as statements of one table. */
struct sql_mapping {
    int64_t shard;
    struct sql_statement made[SQL_COUNT]; /* text NULL: the statement is no template */
};

/* `inspect` and `map` of struct semel_relay_ops. */
semel_status semel__mapped_inspect(struct semel_store *store, const struct semel_relay_table *table,
                                   struct semel_relay_inspection *ret, struct semel_error *err);
semel_status semel__mapped_map(struct semel_store *store, const struct semel_relay_table *table,
                               struct semel_arena *arena, int64_t *ret_shard, struct semel_error *err);

#endif
