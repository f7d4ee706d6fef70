/* SPDX-License-Identifier: MIT
 *
 * program.h: PostgreSQL's programs: where they are, and the processes that one of them becomes. For server.c; a test
 * does not need it.
 */
#ifndef SEMEL_TEST_PG_PROGRAM_H
#define SEMEL_TEST_PG_PROGRAM_H

#include <stddef.h>
#include <sys/types.h>

#define PG_PROGRAM_TEXT 300

void pg_program_need(void); /* leaves with 77, and says why, when there is no server here */
/* The whole path, because they look for each other beside their own first word; the text lies in `out`. */
const char *pg_program(const char *name, char out[PG_PROGRAM_TEXT]);
void pg_program_template(char *out, size_t size); /* where the initialised data directory of this server is kept */
void pg_program_kill_children(pid_t pid);         /* stops it, then SIGKILL to all whose parent it is */

#endif
