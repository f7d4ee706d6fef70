/* SPDX-License-Identifier: MIT
 *
 * program.c: running PostgreSQL's programs. See program.h.
 */
#define _GNU_SOURCE /* setgroups */
#include "pg/program.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEWEST 30
#define OLDEST 13
#define ARGS_MAX 64

static char folder[256]; /* of the programs */
static uid_t server_uid;
static gid_t server_gid;

_Noreturn void pg_program_skip(const char *why)
{
    printf("skipped: %s\n", why);
    fflush(stdout);
    _exit(77);
}

static bool has_server(const char *dir)
{
    char path[300];

    snprintf(path, sizeof path, "%s/postgres", dir);
    if (access(path, X_OK) != 0)
        return false;
    snprintf(folder, sizeof folder, "%s", dir);
    return true;
}

static bool find_server(void)
{
    const char *given = getenv("SEMEL_PG_BIN");
    char dir[64];

    if (given != NULL)
        return has_server(given);
    for (int version = NEWEST; version >= OLDEST; version--) {
        snprintf(dir, sizeof dir, "/usr/lib/postgresql/%d/bin", version);
        if (has_server(dir))
            return true;
    }
    return has_server("/usr/bin");
}

void pg_program_need(void)
{
    if (folder[0] == '\0' && !find_server())
        pg_program_skip("there is no PostgreSQL server here (apt-get install postgresql; or SEMEL_PG_BIN=FOLDER)");
    server_uid = geteuid();
    server_gid = getegid();
    if (server_uid == 0) {
        const struct passwd *user = getpwnam("postgres");
        if (user == NULL)
            pg_program_skip("PostgreSQL refuses to run as root, and there is no user postgres");
        server_uid = user->pw_uid;
        server_gid = user->pw_gid;
    }
}

void pg_program_template(char *out, size_t size)
{
    int n = snprintf(out, size, "%s/pg-template", PG_TEMPLATES);

    snprintf(out + n, size - (size_t)n, "%s", folder);
    for (char *p = out + n; *p != '\0'; p++)
        if (*p == '/')
            *p = '-';
}

void pg_program_own(const char *path)
{
    if (chmod(path, 0755) != 0 || chown(path, server_uid, server_gid) != 0)
        pg_program_skip("a folder cannot be given to the user of the server");
}

bool pg_program_folder(const char *dir, const char *options)
{
    if (mkdir(dir, 0700) != 0)
        return false;
    if (mount("tmpfs", dir, "tmpfs", MS_NOSUID | MS_NODEV, options) != 0 || chmod(dir, 0700) != 0 ||
        chown(dir, server_uid, server_gid) != 0) {
        rmdir(dir);
        return false;
    }
    return true;
}

static _Noreturn void become(enum pg_as as, pid_t parent, const char *log, const char *const *argv)
{
    char path[512];
    const char *words[ARGS_MAX] = {path}; /* PostgreSQL's programs look for each other beside their own first word */
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (as == PG_AS_SERVER && argv[0][0] != '/')
        snprintf(path, sizeof path, "%s/%s", folder, argv[0]);
    else
        snprintf(path, sizeof path, "%s", argv[0]);
    for (size_t i = 1; argv[i - 1] != NULL && argv[i] != NULL; i++) {
        if (i + 1 == ARGS_MAX)
            _exit(126);
        words[i] = argv[i];
    }
    if (fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        _exit(126);
    if (as == PG_AS_SERVER && server_uid != geteuid() &&
        (setgroups(0, NULL) != 0 || setgid(server_gid) != 0 || setuid(server_uid) != 0))
        _exit(126);
    /* After the change of the user, which would clear it. The leash does the rest when this is missed. */
    prctl(PR_SET_PDEATHSIG, SIGQUIT);
    if (getppid() != parent || chdir("/") != 0)
        _exit(126);
    unsetenv("LD_PRELOAD");
    setenv("LC_ALL", "C", 1);
    setenv("TZ", "UTC", 1);
    execvp(path, (char *const *)words);
    _exit(127);
}

pid_t pg_program_start(enum pg_as as, const char *log, const char *const *argv)
{
    const pid_t parent = getpid(), pid = fork();

    if (pid == 0)
        become(as, parent, log, argv);
    return pid;
}

bool pg_program_run(enum pg_as as, const char *log, const char *const *argv)
{
    const pid_t pid = pg_program_start(as, log, argv);
    int status = 0;

    if (pid < 0)
        return false;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int pg_program_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &n) == 0)
        port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static pid_t parent_of(long pid)
{
    char path[64], text[512];
    const char *after;
    long parent = 0;
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    after = strrchr(text, ')'); /* the name may hold anything */
    if (after != NULL && strlen(after) > 4)
        parent = strtol(after + 4, NULL, 10);
    return (pid_t)parent;
}

void pg_program_kill_children(pid_t pid)
{
    DIR *d;

    kill(pid, SIGSTOP); /* it must not see them die */
    d = opendir("/proc");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        const long child = strtol(e->d_name, NULL, 10);
        if (child > 0 && parent_of(child) == pid)
            kill((pid_t)child, SIGKILL);
    }
    if (d != NULL)
        closedir(d);
}
