/* SPDX-License-Identifier: MIT
 *
 * program.h: PostgreSQL's programs: where they are, and running them as somebody whom they accept. For server.c and
 * pooler.c; a test does not need it.
 */
#ifndef SEMEL_TEST_PG_PROGRAM_H
#define SEMEL_TEST_PG_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum pg_as {
    PG_AS_OURSELVES,
    PG_AS_SERVER /* user postgres when we are root; a name without a path is one of the server's programs */
};

void pg_program_need(void); /* leaves with 77, and says why, when there is no server here */
_Noreturn void pg_program_skip(const char *why);
void pg_program_template(char *out, size_t size); /* where the initialised data directory of this server is kept */
void pg_program_own(const char *path);            /* gives it to the user of the server */
/* A file system of its own for the server, in memory, with options such as "size=40m"; false: that is not allowed
 * here. */
bool pg_program_folder(const char *dir, const char *options);
/* Its output is appended to `log`. The child is killed when we die: start from the main thread. */
pid_t pg_program_start(enum pg_as as, const char *log, const char *const *argv);
bool pg_program_run(enum pg_as as, const char *log, const char *const *argv); /* to its end; true: exit code 0 */
int pg_program_port(void);                /* a free one of loopback; somebody else may take it before we do */
void pg_program_kill_children(pid_t pid); /* stops it, then SIGKILL to all whose parent it is */

#endif
