/* SPDX-License-Identifier: MIT
 *
 * server.c: a private RabbitMQ for tests. See server.h.
 *
 * Invariants: the server and the epmd that this process started are children of it, and known by their pids; the folder
 * has a leash before they start, so that nothing is left behind whenever the test dies.
 */
#define _GNU_SOURCE /* pipe2, setgroups */
#include "rabbit/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rabbit/client.h"

#define READY_MS 120000
#define STEP_MS 50
#define PORT_TRIES 5
#define PROGRAM "/usr/lib/rabbitmq/bin/rabbitmq-server"
#define CONTROL "/usr/lib/rabbitmq/bin/rabbitmqctl"

static uid_t server_uid;
static gid_t server_gid;

/* ---- the end ------------------------------------------------------------------------------------------ */

static _Noreturn void skip_test(const char *why)
{
    printf("skipped: %s\n", why);
    fflush(stdout);
    _exit(77);
}

static _Noreturn void fail_server(const struct rabbit_server *server, const char *what)
{
    char text[4096];
    int fd = open(server->log, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof text, end < (off_t)sizeof text ? 0 : end - (off_t)sizeof text);

    fprintf(stderr, "RabbitMQ server of this test: %s\n", what);
    if (n > 0)
        fprintf(stderr, "--- the end of its log\n%.*s---\n", (int)n, text);
    exit(1);
}

static void put_on_leash(struct rabbit_server *server)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        fail_server(server, "no pipe");
    server->leash = ends[1];
    server->leash_pid = fork();
    if (server->leash_pid == 0) {
        setsid(); /* what is sent to the test's group does not concern it */
        if (dup2(ends[0], 0) == 0)
            execl("/bin/sh", "sh", RABBIT_LEASH, server->dir, (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    if (server->leash_pid < 0)
        fail_server(server, "no process for its leash");
}

static bool has_ended(pid_t *pid)
{
    int status;

    if (waitpid(*pid, &status, WNOHANG) != *pid)
        return false;
    *pid = 0;
    return true;
}

static void end(pid_t *pid, int signal)
{
    if (*pid == 0)
        return;
    kill(*pid, SIGCONT);
    kill(*pid, signal);
    for (int waited_ms = 0; !has_ended(pid); waited_ms += STEP_MS) {
        if (waited_ms > READY_MS)
            kill(*pid, SIGKILL);
        poll(NULL, 0, STEP_MS);
    }
}

void rabbit_server_stop(struct rabbit_server *server, enum rabbit_stop how)
{
    end(&server->pid, how == RABBIT_STOP ? SIGTERM : SIGKILL);
}

void rabbit_server_done(struct rabbit_server *server)
{
    int status;

    if (server->dir[0] == '\0')
        return;
    end(&server->pid, SIGKILL);
    end(&server->epmd_pid, SIGKILL);
    close(server->leash);
    while (waitpid(server->leash_pid, &status, 0) < 0 && errno == EINTR)
        ;
    *server = (struct rabbit_server){0};
}

/* ---- its folder --------------------------------------------------------------------------------------- */

static void find_user(void)
{
    server_uid = geteuid();
    server_gid = getegid();
    if (access(PROGRAM, X_OK) != 0)
        skip_test("RabbitMQ is not installed (apt-get install rabbitmq-server)");
    if (server_uid == 0) {
        const struct passwd *user = getpwnam("rabbitmq");
        if (user == NULL)
            skip_test("RabbitMQ does not run as root, and there is no user rabbitmq");
        server_uid = user->pw_uid;
        server_gid = user->pw_gid;
    }
}

static int free_port(void)
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

static void own(const struct rabbit_server *server, const char *path)
{
    if (chown(path, server_uid, server_gid) != 0)
        fail_server(server, "its folder cannot be given to its user");
}

static void write_file(const struct rabbit_server *server, const char *name, const char *text)
{
    char path[160];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", server->dir, name);
    f = fopen(path, "we");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        fail_server(server, "a file of its folder cannot be written");
    own(server, path);
}

static void copy_file(const struct rabbit_server *server, const char *folder, const char *name)
{
    char path[320], text[16384];
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "re");
    n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f == NULL || fclose(f) != 0 || n == 0)
        fail_server(server, "a file for its TLS cannot be read");
    text[n] = '\0';
    write_file(server, name, text);
}

static void write_settings(const struct rabbit_server *server)
{
    char text[1024], tls[512] = "";

    if (server->tls_port != 0)
        snprintf(tls, sizeof tls,
                 "listeners.ssl.1 = 127.0.0.1:%d\nssl_options.cacertfile = %s/ca.pem\n"
                 "ssl_options.certfile = %s/server.pem\nssl_options.keyfile = %s/server.key\n"
                 "ssl_options.verify = verify_none\n",
                 server->tls_port, server->dir, server->dir, server->dir);
    snprintf(text, sizeof text,
             "listeners.tcp.1 = 127.0.0.1:%d\nlog.console = true\nlog.console.level = warning\nlog.file = false\n"
             "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.absolute = 1GB\n"
             "num_acceptors.tcp = 2\nqueue_index_embed_msgs_below = 4096\n%s",
             server->port, tls);
    write_file(server, "rabbitmq.conf", text);
    write_file(server, "enabled_plugins", "[].\n");
}

static void make_folder(struct rabbit_server *server)
{
    const char *tmp = getenv("TMPDIR");

    *server = (struct rabbit_server){0};
    find_user();
    snprintf(server->dir, sizeof server->dir, "%s/semel-rabbit-XXXXXX", tmp != NULL && strlen(tmp) < 32 ? tmp : "/tmp");
    if (mkdtemp(server->dir) == NULL) {
        server->dir[0] = '\0';
        fail_server(server, "no folder for it");
    }
    snprintf(server->log, sizeof server->log, "%s/log", server->dir);
    put_on_leash(server);
    if (chmod(server->dir, 0755) != 0)
        fail_server(server, "its folder cannot be opened to its user");
    own(server, server->dir);
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static void set_number(const char *name, int number)
{
    char text[16];

    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void set_path(const struct rabbit_server *server, const char *name, const char *path)
{
    char text[160];

    snprintf(text, sizeof text, "%s/%s", server->dir, path);
    setenv(name, text, 1);
}

static void set_environment(const struct rabbit_server *server)
{
    char node[48];

    clearenv();
    snprintf(node, sizeof node, "semel%d@localhost", server->port);
    setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("HOME", server->dir, 1); /* where the cookie lies */
    setenv("RABBITMQ_NODENAME", node, 1);
    set_path(server, "RABBITMQ_MNESIA_BASE", "data");
    set_path(server, "RABBITMQ_LOG_BASE", "logs");
    set_path(server, "RABBITMQ_CONFIG_FILE", "rabbitmq.conf");
    set_path(server, "RABBITMQ_ENABLED_PLUGINS_FILE", "enabled_plugins");
    set_path(server, "RABBITMQ_PID_FILE", "node.pid");
    setenv("RABBITMQ_CONF_ENV_FILE", "/dev/null", 1);
    setenv("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none", 1);
    setenv("RUNNING_UNDER_SYSTEMD", "true", 1); /* no shell in between: the pid is the server's own */
    set_number("RABBITMQ_DIST_PORT", server->dist_port);
    set_number("ERL_EPMD_PORT", server->epmd_port);
    setenv("ERL_EPMD_ADDRESS", "127.0.0.1", 1);
    setenv("ERL_FLAGS", "-kernel inet_dist_use_interface {127,0,0,1}", 1);
}

static _Noreturn void become(const struct rabbit_server *server, pid_t parent, const char *const *argv)
{
    int fd = open(server->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644),
        null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0 || chdir(server->dir) != 0)
        _exit(126);
    if (server_uid != geteuid() && (setgroups(0, NULL) != 0 || setgid(server_gid) != 0 || setuid(server_uid) != 0))
        _exit(126);
    /* After the change of the user, which would clear it. The leash does the rest when this is missed. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    set_environment(server);
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

static pid_t launch(const struct rabbit_server *server, const char *const *argv, const char *pid_file)
{
    const pid_t parent = getpid(), pid = fork();
    char text[32];

    if (pid == 0)
        become(server, parent, argv);
    if (pid < 0)
        fail_server(server, "no process for it");
    snprintf(text, sizeof text, "%ld\n", (long)pid);
    if (pid_file != NULL)
        write_file(server, pid_file, text);
    return pid;
}

/* False: it has ended. */
static bool wait_ready(struct rabbit_server *server)
{
    for (int waited_ms = 0; !has_ended(&server->pid); waited_ms += STEP_MS) {
        if (waited_ms > READY_MS)
            fail_server(server, "it does not become ready");
        if (rabbit_client_answers(server->port))
            return true;
        poll(NULL, 0, STEP_MS);
    }
    return false;
}

static void launch_both(struct rabbit_server *server)
{
    char port[16];
    const char *const epmd[] = {"epmd", "-port", port, "-address", "127.0.0.1", NULL};
    const char *const node[] = {PROGRAM, NULL};

    snprintf(port, sizeof port, "%d", server->epmd_port);
    if (server->epmd_pid == 0)
        server->epmd_pid = launch(server, epmd, "epmd.pid");
    server->pid = launch(server, node, "pid");
}

void rabbit_server_again(struct rabbit_server *server)
{
    launch_both(server);
    if (!wait_ready(server))
        fail_server(server, "it does not start again");
}

static void start(struct rabbit_server *server, bool tls)
{
    for (int tries = 0; tries < PORT_TRIES; tries++) {
        end(&server->epmd_pid, SIGKILL);
        server->port = free_port(); /* somebody else may take it before we do */
        server->tls_port = tls ? free_port() : 0;
        server->dist_port = free_port();
        server->epmd_port = free_port();
        write_settings(server);
        launch_both(server);
        if (wait_ready(server))
            return;
    }
    fail_server(server, "it does not start");
}

void rabbit_server_start(struct rabbit_server *server)
{
    make_folder(server);
    start(server, false);
}

void rabbit_server_start_tls(struct rabbit_server *server, const char *folder)
{
    static const char *const names[] = {"ca.pem", "server.pem", "server.key"};

    make_folder(server);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        copy_file(server, folder, names[i]);
    start(server, true);
}

/* ---- while it runs ------------------------------------------------------------------------------------ */

void rabbit_server_freeze(struct rabbit_server *server)
{
    kill(server->pid, SIGSTOP);
}

void rabbit_server_thaw(struct rabbit_server *server)
{
    kill(server->pid, SIGCONT);
}

bool rabbit_server_ctl(struct rabbit_server *server, const char *const *words)
{
    const char *argv[16] = {CONTROL};
    int status = 1;
    pid_t pid;

    for (size_t i = 0; words[i] != NULL && i < 14; i++)
        argv[i + 1] = words[i];
    pid = launch(server, argv, NULL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
