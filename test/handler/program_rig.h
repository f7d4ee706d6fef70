/* SPDX-License-Identifier: MIT
 *
 * program_rig.h: a caller `exec` for tests, whose program is a script of the shell.
 *
 * A script finds a folder of its own in $DIR, where it may leave files.
 */
#ifndef SEMEL_TEST_PROGRAM_RIG_H
#define SEMEL_TEST_PROGRAM_RIG_H

#include "base/error.h"
#include "handler/caller.h"
#include "unit/unit.h"

#define WAIT_MS 20000 /* for what must come; a test that waits longer fails */

struct program_rig {
    struct semel_exec_caller_settings settings;
    const char *argv[4], *reconcile[4];
    struct semel_pair env[1];
    char dir[64];
    struct semel_caller *caller;
    size_t open; /* calls whose end was not told */
    struct semel__msg msg;
    struct semel_call_end end;
    struct semel_error err;
};

void program_rig_start(struct program_rig *rig);
void program_rig_stop(struct program_rig *rig);
void program_rig_drop(struct program_rig *rig); /* the caller; every program has ended then */
void program_start(struct program_rig *rig, const struct semel__msg *msg, bool ask);
/* As semel__caller_wait. */
size_t program_look(struct program_rig *rig, int wait_ms, int wake_fd, struct semel_call_end *ret_ends, size_t max);
struct semel_call_end *program_wait(struct program_rig *rig); /* for the next end, which must come */
/* One call of the script from start to end, by a caller of its own. */
struct semel_call_end *program_run(struct program_rig *rig, const char *script);
struct semel_call_end *program_ask(struct program_rig *rig, const char *script);

/* A file in the folder: its path; its text, waited for until it has a whole line. */
const char *program_path(const struct program_rig *rig, const char *name);
const char *program_text(const struct program_rig *rig, const char *name);
bool program_alive(long pid);     /* and no zombie */
void program_wait_gone(long pid); /* until it is not */

void assert_result(const struct semel_call_end *end, enum semel_result result);
void assert_not_run(const struct semel_call_end *end, semel_status status, enum semel_class cls);

#endif
