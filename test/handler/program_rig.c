/* SPDX-License-Identifier: MIT
 *
 * program_rig.c: a caller `exec` for tests, whose program is a script of the shell.
 */
#include "handler/program_rig.h"

#include <dirent.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

void program_rig_start(struct program_rig *rig)
{
    memset(rig, 0, sizeof *rig);
    snprintf(rig->dir, sizeof rig->dir, "/tmp/semel-exec-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    rig->argv[0] = rig->reconcile[0] = "sh";
    rig->argv[1] = rig->reconcile[1] = "-c";
    rig->argv[2] = rig->reconcile[2] = "exit 1";
    rig->env[0] = (struct semel_pair){SEMEL_STR("DIR"), semel__str(rig->dir)};
    rig->settings = (struct semel_exec_caller_settings){
        .argv = rig->argv,
        .program = "/bin/sh",
        .reconcile_argv = rig->reconcile,
        .reconcile_program = "/bin/sh",
        .timeout_us = INT64_C(1000) * WAIT_MS,
        .concurrency = 2,
        .env = rig->env,
        .n_env = 1,
    };
    semel__msg_init(&rig->msg);
    rig->msg.source = SEMEL_STR("orders");
    rig->msg.id = SEMEL_STR("m-1");
    rig->msg.type = SEMEL_STR("paid");
    rig->msg.payload = SEMEL_STR("{\"cents\":1}");
}

void program_rig_drop(struct program_rig *rig)
{
    struct semel_call_end ends[8];
    if (rig->caller == NULL)
        return;
    semel__caller_cancel(rig->caller);
    while (rig->open > 0)
        assert_true(program_look(rig, WAIT_MS, -1, ends, COUNT(ends)) > 0);
    semel__caller_free(rig->caller);
    rig->caller = NULL;
}

void program_rig_stop(struct program_rig *rig)
{
    program_rig_drop(rig);
    DIR *dir = opendir(rig->dir);
    for (struct dirent *each; dir != NULL && (each = readdir(dir)) != NULL;)
        unlink(program_path(rig, each->d_name));
    closedir(dir);
    rmdir(rig->dir);
}

void program_start(struct program_rig *rig, const struct semel__msg *msg, bool ask)
{
    struct semel_call call = {
        .tag = (void *)msg, .consumer = SEMEL_STR("billing"), .msg = msg, .attempt = 3, .ask = ask};
    if (rig->caller == NULL && semel__exec_caller_new(&rig->caller, &rig->settings, &rig->err) != SEMEL_OK)
        fail_msg("%s", rig->err.text);
    assert_true(semel__step_key(call.consumer, msg->source, msg->id, SEMEL_STR("effect"), call.key));
    semel__caller_start(rig->caller, &call);
    rig->open++;
}

size_t program_look(struct program_rig *rig, int wait_ms, int wake_fd, struct semel_call_end *ret_ends, size_t max)
{
    size_t n = semel__caller_wait(rig->caller, wait_ms, wake_fd, ret_ends, max);
    assert_true(n <= rig->open);
    rig->open -= n;
    return n;
}

struct semel_call_end *program_wait(struct program_rig *rig)
{
    assert_int_equal(program_look(rig, 2 * WAIT_MS, -1, &rig->end, 1), 1);
    return &rig->end;
}

struct semel_call_end *program_run(struct program_rig *rig, const char *script)
{
    program_rig_drop(rig);
    rig->argv[2] = script;
    program_start(rig, &rig->msg, false);
    return program_wait(rig);
}

struct semel_call_end *program_ask(struct program_rig *rig, const char *script)
{
    program_rig_drop(rig);
    rig->reconcile[2] = script;
    program_start(rig, &rig->msg, true);
    return program_wait(rig);
}

/* ---- files and processes ------------------------------------------------------------------------- */

const char *program_path(const struct program_rig *rig, const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", rig->dir, name);
    return path;
}

const char *program_text(const struct program_rig *rig, const char *name)
{
    static char text[8192];
    for (int tries = 0; tries < WAIT_MS / 10; tries++) {
        FILE *file = fopen(program_path(rig, name), "re");
        size_t n = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file != NULL)
            fclose(file);
        text[n] = '\0';
        if (strchr(text, '\n') != NULL)
            return text;
        poll(NULL, 0, 10);
    }
    fail_msg("%s did not come", name);
    return NULL;
}

bool program_alive(long pid)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *state = strrchr(text, ')');
    return state != NULL && state[2] != 'Z' && state[2] != 'X';
}

void program_wait_gone(long pid)
{
    assert_true(pid > 1);
    for (int tries = 0; program_alive(pid); tries++) {
        if (tries == WAIT_MS / 10)
            fail_msg("process %ld still runs", pid);
        poll(NULL, 0, 10);
    }
}

void assert_result(const struct semel_call_end *end, enum semel_result result)
{
    if (end->status != SEMEL_OK)
        fail_msg("%s: %s", semel__status_name(end->status), end->err.text);
    if (end->result != result)
        fail_msg("%s, not %s: %.*s", semel__result_name(end->result), semel__result_name(result), (int)end->reason.n,
                 end->reason.p);
}

void assert_not_run(const struct semel_call_end *end, semel_status status, enum semel_class cls)
{
    assert_string_equal(semel__status_name(end->status), semel__status_name(status));
    assert_string_equal(semel__class_name(end->err.cls), semel__class_name(cls));
    assert_true(end->err.text[0] != '\0');
}
