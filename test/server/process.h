/* SPDX-License-Identifier: MIT
 *
 * process.h: a private server of a test: a fresh folder, a process that lives in it, and their end. What is particular
 * to a server (its settings, its command line, how it answers) is in a struct server_kind; kafka/, pg/, rabbit/ and
 * sqs/ have one each, and their structs begin with the one that is here.
 *
 * Invariants:
 * - A process that was started here is a child of the test, and ended by its pid, never by its name. Whenever the test
 *   dies, its processes get kind->death from the kernel; the leash (leash.sh, a child that waits for the end of a pipe
 *   whose other end is ours alone) ends those that are left, and removes the folder. The leash is there before the
 *   first process is.
 * - pid is 0 exactly while the server is stopped; DIR/pid names the process while it runs.
 * - Nothing waits for ever: what does not happen within two minutes fails the test. A failure prints the end of the
 *   log, where everything that was started here has written, and leaves with exit code 1. A machine that lacks what a
 *   server needs leaves with exit code 77, skipped, and says what is missing.
 * - Functions that start a process are called from the main thread: the process dies with the thread that started it.
 */
#ifndef SEMEL_TEST_SERVER_PROCESS_H
#define SEMEL_TEST_SERVER_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

/* `server` is always the struct whose first member is the struct server_process. */
struct server_kind {
    const char *name;   /* in messages: "RabbitMQ" */
    const char *folder; /* in the name of the folder: "rabbit" */
    const char *user;   /* who runs it when we are root; NULL: root may */
    const char *leash;  /* the script, if it is not leash.sh */
    int death;          /* the signal for its processes when the test dies */
    /* For a start on fresh ports: chooses them, and writes the settings. */
    void (*prepare)(void *server);
    /* Starts it, as it was prepared, by server_launch. */
    void (*launch)(void *server);
    /* Is it ready? May take a second to find out. */
    bool (*answers)(void *server);
    /* In each child, before it becomes a program. It has ours without LD_PRELOAD, LC_ALL=C and TZ=UTC. NULL: as is. */
    void (*environment)(const void *server);
};

struct server_process {
    const struct server_kind *kind;
    char dir[64], log[80];
    pid_t pid; /* 0: it is stopped */
    uid_t uid; /* who runs it, and owns the folder */
    gid_t gid;
    int leash;
    pid_t leash_pid;
};

/* ---- the folder ------------------------------------------------------------------------------------------ */

/* `process` is filled in anew: an empty folder on its leash, and nothing runs. */
void server_make(struct server_process *process, const struct server_kind *kind);
void server_write(const struct server_process *process, const char *name, const char *text); /* DIR/NAME */
/* The end: stopped by `signal`, and the folder removed. Nothing, when it was never made. */
void server_done(struct server_process *process, int signal);

/* ---- the server ------------------------------------------------------------------------------------------ */

/* Prepares, launches and waits until it answers, on other ports when it ends instead, a few times. */
void server_start(struct server_process *process);
/* A stopped one, as it was prepared; `up` is false when it ended before it answered. */
bool server_up(struct server_process *process);
void server_again(struct server_process *process);

void server_stop(struct server_process *process, int signal); /* returns when it has ended */
/* SIGSTOP, returns when it has stopped, and SIGCONT: it is there, and does not answer. */
void server_freeze(const struct server_process *process);
void server_thaw(const struct server_process *process);

/* ---- what a kind is made of ------------------------------------------------------------------------------ */

enum server_as {
    SERVER_AS_OURSELVES,
    SERVER_AS_ITSELF /* kind->user when we are root */
};

/* In the folder, with the log as its output and no input. argv[0] is looked up in PATH. */
pid_t server_spawn(const struct server_process *process, enum server_as as, const char *const *argv);
void server_launch(struct server_process *process, const char *const *argv); /* spawned as itself: process->pid */
bool server_run(const struct server_process *process, enum server_as as,
                const char *const *argv); /* true: ended by 0 */
/* Until `ready`; false: the process has ended before, and *pid is 0. */
bool server_wait(const struct server_process *process, pid_t *pid, bool (*ready)(void *ctx), void *ctx);
/* `signal` to one of its processes, frozen or not; returns when it has ended. Nothing, when *pid is 0. */
void server_end(const struct server_process *process, pid_t *pid, int signal);

/* A free port of loopback, which no other test on this machine is given before this process ends; 0: there is none. It
 * is below the ports of outgoing connections, so none of those takes it while nobody listens there. */
int server_port(void);
bool server_listens(int port);

_Noreturn void server_skip(const char *why, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void server_fail(const struct server_process *process, const char *what);

#endif
