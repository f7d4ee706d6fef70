/* SPDX-License-Identifier: MIT
 *
 * handle_pg.h: the handles of handle.h on PostgreSQL: one private server per program, a fresh database per test. The
 * time of a handle with its own connection is that of its clock; on a connection of the caller's the leases of keys
 * move instead.
 */
#ifndef SEMEL_TEST_HANDLE_PG_H
#define SEMEL_TEST_HANDLE_PG_H

#include "unit/handle.h"

extern const struct handle_db handle_pg;

#endif
