/* SPDX-License-Identifier: MIT
 *
 * share.h: one connection for all threads of a process, for a store that has one writer at a time (SQLite, P26).
 *
 * Each thread has a handle of its own, which is a store like any other. From begin to the end of the transaction the
 * handle has the connection to itself, and the others wait; what needs no transaction has it from the first statement
 * to the last. Nothing waits for anything else while it has it (P22).
 */
#ifndef SEMEL_STORE_SHARE_H
#define SEMEL_STORE_SHARE_H

#include "core/store.h"

struct sql_share;

semel_status semel__share_open(struct sql_share **ret, const struct semel_store_ops *const *drivers, const char *url,
                               const struct semel_store_options *options, struct semel_error *err);
void semel__share_close(struct sql_share *share); /* after the last handle */
/* A handle for one thread; semel_store_close frees it. NULL: no memory. */
struct semel_store *semel__share_handle(struct sql_share *share);
/* For work on the native connection outside a transaction. NULL: nothing is shared, nothing is done. */
void semel__share_lock(struct sql_share *share);
void semel__share_unlock(struct sql_share *share);

#endif
