/* SPDX-License-Identifier: MIT
 *
 * pg_rights.h: may this role do what a consumer needs, and would its commits last? Asked before it is tried, for who
 * checks settings. Neither function changes anything.
 */
#ifndef SEMEL_STORE_PG_RIGHTS_H
#define SEMEL_STORE_PG_RIGHTS_H

#include "store/pg_store.h"

struct semel_pg_rights {
    char role[128];       /* as which we are connected */
    char missing[512];    /* "DELETE on semel.inbox, USAGE on semel.arrival", possibly cut; "": nothing is */
    bool unsafe;          /* synchronous_commit is off: no transaction will begin (P72) */
    bool fsync_off;       /* a power failure can lose or damage everything */
    bool public_writable; /* everybody may create in the schema public (P85) */
};

/* On an open store of PostgreSQL, outside of a transaction. `positions`: the place in the source is kept there, too. */
semel_status semel__pg_rights(struct semel_store *store, bool positions, struct semel_pg_rights *ret,
                              struct semel_error *err);

/* The same for a statement of a handler with n parameters: it is planned, which looks at the rights, and not run. An
 * error whose code is SEMEL_PG_DENIED names what the role may not touch; any other says only that it cannot be known (a
 * CALL is not planned). */
semel_status semel__pg_may_run(struct semel_store *store, struct semel_str statement, size_t n,
                               struct semel_error *err);

#define SEMEL_PG_DENIED SEMEL_SQLSTATE('4', '2', '5', '0', '1')

#endif
