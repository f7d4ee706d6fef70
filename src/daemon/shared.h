/* SPDX-License-Identifier: MIT
 *
 * shared.h: one connection for all threads of a process, for a store that has one writer at a time (SQLite, P26).
 *
 * Each thread has a handle of its own, which is a store like any other. From begin to the end of the transaction the
 * handle has the connection to itself, the others wait; what needs no transaction has it for one call. Nothing waits
 * for anything else while it has it (P22), as everywhere.
 */
#ifndef SEMEL_DAEMON_SHARED_H
#define SEMEL_DAEMON_SHARED_H

#include "core/store.h"

struct semel_shared;

semel_status semel__shared_open(struct semel_shared **ret, const struct semel_store_ops *const *drivers,
                                const char *url, const struct semel_store_options *options, struct semel_error *err);
void semel__shared_close(struct semel_shared *shared); /* after the last handle */
/* A handle for one thread; semel_store_close frees it. NULL: no memory. */
struct semel_store *semel__shared_handle(struct semel_shared *shared);
/* For what works on the native connection outside a transaction. */
void semel__shared_lock(struct semel_shared *shared);
void semel__shared_unlock(struct semel_shared *shared);

#endif
