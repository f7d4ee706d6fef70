/* SPDX-License-Identifier: MIT
 *
 * process.c: a private server of a test. See process.h.
 */
#define _GNU_SOURCE /* pipe2, setgroups, getrandom */
#include "server/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 120000
#define STEP_MS 5
#define PORT_TRIES 5

/* ---- giving up ------------------------------------------------------------------------------------------- */

void server_skip(const char *why, ...)
{
    va_list args;

    va_start(args, why);
    printf("skipped: ");
    vprintf(why, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
    _exit(77);
}

void server_fail(const struct server_process *process, const char *what)
{
    char text[4096];
    const int fd = open(process->log, O_RDONLY | O_CLOEXEC);
    const off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END),
                from = end < (off_t)sizeof text ? 0 : end - (off_t)sizeof text;
    const ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof text, from);

    fprintf(stderr, "%s of this test: %s\n", process->kind->name, what);
    if (n > 0)
        fprintf(stderr, "--- the end of its log\n%.*s---\n", (int)n, text);
    exit(1);
}

/* ---- the folder ------------------------------------------------------------------------------------------ */

static void find_user(struct server_process *process)
{
    const char *name = process->kind->user;

    process->uid = geteuid();
    process->gid = getegid();
    if (process->uid == 0 && name != NULL) {
        const struct passwd *user = getpwnam(name);
        if (user == NULL)
            server_skip("%s does not run as root, and there is no user %s", process->kind->name, name);
        process->uid = user->pw_uid;
        process->gid = user->pw_gid;
    }
}

static void put_on_leash(struct server_process *process)
{
    const char *script = process->kind->leash != NULL ? process->kind->leash : SERVER_LEASH;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        server_fail(process, "no pipe");
    process->leash = ends[1];
    process->leash_pid = fork();
    if (process->leash_pid == 0) {
        setsid(); /* what is sent to the test's group does not concern it */
        if (dup2(ends[0], 0) == 0)
            execl("/bin/sh", "sh", script, process->dir, (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    if (process->leash_pid < 0)
        server_fail(process, "no process for its leash");
}

void server_make(struct server_process *process, const struct server_kind *kind)
{
    const char *tmp = getenv("TMPDIR");

    *process = (struct server_process){.kind = kind};
    find_user(process);
    /* The path of a unix socket has no room for a long one. */
    snprintf(process->dir, sizeof process->dir, "%s/semel-%s-XXXXXX", tmp != NULL && strlen(tmp) < 32 ? tmp : "/tmp",
             kind->folder);
    if (mkdtemp(process->dir) == NULL) {
        process->dir[0] = '\0';
        server_fail(process, "no folder for it");
    }
    snprintf(process->log, sizeof process->log, "%s/log", process->dir);
    put_on_leash(process);
    if (chmod(process->dir, 0755) != 0 || chown(process->dir, process->uid, process->gid) != 0)
        server_fail(process, "its folder cannot be given to its user");
}

void server_write(const struct server_process *process, const char *name, const char *text)
{
    char path[160];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", process->dir, name);
    f = fopen(path, "we");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0 || chown(path, process->uid, process->gid) != 0)
        server_fail(process, "a file of its folder cannot be written");
}

void server_done(struct server_process *process, int signal)
{
    int status;

    if (process->dir[0] == '\0')
        return;
    server_stop(process, signal);
    close(process->leash);
    while (waitpid(process->leash_pid, &status, 0) < 0 && errno == EINTR)
        ;
    *process = (struct server_process){0};
}

/* ---- starting -------------------------------------------------------------------------------------------- */

static _Noreturn void become(const struct server_process *process, enum server_as as, pid_t parent,
                             const char *const *argv)
{
    const int fd = open(process->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644),
              null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0 || chdir(process->dir) != 0)
        _exit(126);
    if (as == SERVER_AS_ITSELF && process->uid != geteuid() &&
        (setgroups(0, NULL) != 0 || setgid(process->gid) != 0 || setuid(process->uid) != 0))
        _exit(126);
    /* After the change of the user, which would clear it. The leash does the rest when this is missed. */
    prctl(PR_SET_PDEATHSIG, process->kind->death);
    if (getppid() != parent)
        _exit(126);
    unsetenv("LD_PRELOAD");
    setenv("LC_ALL", "C", 1);
    setenv("TZ", "UTC", 1);
    if (process->kind->environment != NULL)
        process->kind->environment(process);
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

pid_t server_spawn(const struct server_process *process, enum server_as as, const char *const *argv)
{
    const pid_t parent = getpid(), pid = fork();

    if (pid == 0)
        become(process, as, parent, argv);
    if (pid < 0)
        server_fail(process, "no process for it");
    return pid;
}

void server_launch(struct server_process *process, const char *const *argv)
{
    char text[32];

    process->pid = server_spawn(process, SERVER_AS_ITSELF, argv);
    snprintf(text, sizeof text, "%ld\n", (long)process->pid);
    server_write(process, "pid", text);
}

bool server_run(const struct server_process *process, enum server_as as, const char *const *argv)
{
    const pid_t pid = server_spawn(process, as, argv);
    int status = 1;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool server_up(struct server_process *process)
{
    process->kind->launch(process);
    return server_wait(process, &process->pid, process->kind->answers, process);
}

void server_start(struct server_process *process)
{
    for (int tries = 0; tries < PORT_TRIES; tries++) {
        process->kind->prepare(process);
        if (server_up(process))
            return;
    }
    server_fail(process, "it does not start");
}

void server_again(struct server_process *process)
{
    if (!server_up(process))
        server_fail(process, "it does not start again");
}

/* ---- waiting and stopping -------------------------------------------------------------------------------- */

static long long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static bool has_ended(pid_t *pid)
{
    int status;

    if (waitpid(*pid, &status, WNOHANG) != *pid)
        return false;
    *pid = 0;
    return true;
}

bool server_wait(const struct server_process *process, pid_t *pid, bool (*ready)(void *ctx), void *ctx)
{
    for (const long long deadline_ms = now_ms() + WAIT_MS; !has_ended(pid); poll(NULL, 0, STEP_MS)) {
        if (ready(ctx))
            return true;
        if (now_ms() > deadline_ms)
            server_fail(process, "it does not become ready");
    }
    return false;
}

void server_end(const struct server_process *process, pid_t *pid, int signal)
{
    const long long deadline_ms = now_ms() + WAIT_MS;

    if (*pid == 0)
        return;
    kill(*pid, signal);
    if (signal != SIGKILL) /* which alone reaches a frozen one */
        kill(*pid, SIGCONT);
    while (!has_ended(pid)) {
        if (now_ms() > deadline_ms)
            server_fail(process, "it does not stop");
        poll(NULL, 0, STEP_MS);
    }
}

void server_stop(struct server_process *process, int signal)
{
    server_end(process, &process->pid, signal);
}

void server_freeze(const struct server_process *process)
{
    siginfo_t info = {0};

    /* On a busy machine a thread of it runs on for a while. */
    if (kill(process->pid, SIGSTOP) == 0)
        waitid(P_PID, (id_t)process->pid, &info, WSTOPPED | WEXITED | WNOWAIT);
}

void server_thaw(const struct server_process *process)
{
    kill(process->pid, SIGCONT);
}

/* ---- ports ----------------------------------------------------------------------------------------------- */

#define PORTS_FOLDER "/tmp/semel-test-ports"
#define PORT_LOW 10240 /* to the lowest port of outgoing connections */
#define PORTS 22528
#define PORT_DRAWS 1000

static bool port_is_free(uint16_t port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                        .sin_port = htons(port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool free = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;

    if (fd >= 0)
        close(fd);
    return free;
}

int server_port(void)
{
    if (mkdir(PORTS_FOLDER, 0777) == 0)
        (void)chmod(PORTS_FOLDER, 01777);
    for (int i = 0; i < PORT_DRAWS; i++) {
        char path[sizeof(PORTS_FOLDER) + 8];
        uint16_t drawn = 0;

        if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
            return 0;
        const uint16_t port = (uint16_t)(PORT_LOW + drawn % PORTS);

        snprintf(path, sizeof path, PORTS_FOLDER "/%d", port);
        const int lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);

        if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0 && port_is_free(port))
            return port; /* the lock is held until this process ends */
        if (lock >= 0)
            close(lock);
    }
    return 0;
}

bool server_listens(int port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                        .sin_port = htons((uint16_t)port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool yes = fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;

    if (fd >= 0)
        close(fd);
    return yes;
}
