/* SPDX-License-Identifier: MIT
 *
 * server.c: a private ElasticMQ for tests. See server.h.
 *
 * Invariants: a server that this process started is a child of it, and known by its pid; the folder has a leash before
 * the server starts, so that nothing is left behind whenever the test dies.
 */
#define _GNU_SOURCE /* pipe2 */
#include "sqs/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_MS 120000
#define STEP_MS 20
#define PORT_TRIES 5
#define CLASSPATH 16384

/* ---- the end ------------------------------------------------------------------------------------------ */

static _Noreturn void skip_test(const char *why)
{
    printf("skipped: %s\n", why);
    fflush(stdout);
    _exit(77);
}

static _Noreturn void fail_server(const struct sqs_server *server, const char *what)
{
    char text[4096];
    int fd = open(server->log, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof text, end < (off_t)sizeof text ? 0 : end - (off_t)sizeof text);

    fprintf(stderr, "ElasticMQ of this test: %s\n", what);
    if (n > 0)
        fprintf(stderr, "--- the end of its log\n%.*s---\n", (int)n, text);
    exit(1);
}

static void put_on_leash(struct sqs_server *server)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        fail_server(server, "no pipe");
    server->leash = ends[1];
    server->leash_pid = fork();
    if (server->leash_pid == 0) {
        setsid(); /* what is sent to the test's group does not concern it */
        if (dup2(ends[0], 0) == 0)
            execl("/bin/sh", "sh", SQS_LEASH, server->dir, (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    if (server->leash_pid < 0)
        fail_server(server, "no process for its leash");
}

void sqs_server_kill(struct sqs_server *server)
{
    int status;

    if (server->pid == 0)
        return;
    kill(server->pid, SIGKILL);
    while (waitpid(server->pid, &status, 0) < 0 && errno == EINTR)
        ;
    server->pid = 0;
}

void sqs_server_done(struct sqs_server *server)
{
    int status;

    if (server->dir[0] == '\0')
        return;
    sqs_server_kill(server);
    close(server->leash);
    while (waitpid(server->leash_pid, &status, 0) < 0 && errno == EINTR)
        ;
    *server = (struct sqs_server){0};
}

/* ---- what it needs ------------------------------------------------------------------------------------ */

/* The archives as a class path; skips the test when one is missing. */
static void make_classpath(char out[CLASSPATH])
{
    const char *given = getenv("SEMEL_JARS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[512], line[512], path[1024];
    FILE *list = fopen(SQS_LIST, "re");
    size_t n = 0;

    if (given != NULL)
        snprintf(folder, sizeof folder, "%s", given);
    else if (cache != NULL)
        snprintf(folder, sizeof folder, "%s/semel/jars", cache);
    else
        snprintf(folder, sizeof folder, "%s/.cache/semel/jars", home != NULL ? home : "");
    while (list != NULL && fgets(line, sizeof line, list) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strlen(line) <= 66)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, line + 66); /* behind the sum and two blanks */
        if (access(path, R_OK) != 0 || n + strlen(path) + 2 > CLASSPATH)
            skip_test("ElasticMQ's archives are not here (tools/jars sqs; or SEMEL_JARS=FOLDER)");
        n += (size_t)snprintf(out + n, CLASSPATH - n, "%s%s", n > 0 ? ":" : "", path);
    }
    if (list == NULL || n == 0)
        skip_test("tools/sqs.list cannot be read");
    fclose(list);
}

static const char *find_java(void)
{
    static const char *const places[] = {"/usr/bin/java", "/usr/local/bin/java"};
    const char *given = getenv("SEMEL_JAVA");

    if (given != NULL)
        return given;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    skip_test("Java is not installed (apt-get install openjdk-17-jre-headless; or SEMEL_JAVA=PROGRAM)");
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

/* ---- its folder --------------------------------------------------------------------------------------- */

static void write_file(const struct sqs_server *server, const char *name, const char *text)
{
    char path[160];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", server->dir, name);
    f = fopen(path, "we");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        fail_server(server, "a file of its folder cannot be written");
}

static void write_settings(const struct sqs_server *server)
{
    char text[1024];

    snprintf(text, sizeof text,
             "node-address { protocol = http, host = \"127.0.0.1\", port = %d, context-path = \"\" }\n"
             "rest-sqs { enabled = true, bind-port = %d, bind-hostname = \"127.0.0.1\", sqs-limits = strict }\n"
             "rest-stats { enabled = false }\ngenerate-node-address = false\n"
             "queues-storage { enabled = false }\nmessages-storage { enabled = false }\n",
             server->port, server->port);
    write_file(server, "sqs.conf", text);
    write_file(server, "logback.xml",
               "<configuration><appender name=\"A\" class=\"ch.qos.logback.core.ConsoleAppender\"><encoder>"
               "<pattern>%d %level %logger - %msg%n</pattern></encoder></appender>"
               "<root level=\"warn\"><appender-ref ref=\"A\"/></root></configuration>\n");
}

static void make_folder(struct sqs_server *server)
{
    const char *tmp = getenv("TMPDIR");

    *server = (struct sqs_server){0};
    snprintf(server->dir, sizeof server->dir, "%s/semel-sqs-XXXXXX", tmp != NULL && strlen(tmp) < 32 ? tmp : "/tmp");
    if (mkdtemp(server->dir) == NULL) {
        server->dir[0] = '\0';
        fail_server(server, "no folder for it");
    }
    snprintf(server->log, sizeof server->log, "%s/log", server->dir);
    put_on_leash(server);
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static _Noreturn void become_server(const struct sqs_server *server, pid_t parent, const char *java,
                                    const char *classpath)
{
    const char *const argv[] = {java,
                                "-Xmx128m",
                                "-XX:+UseSerialGC",
                                "-XX:TieredStopAtLevel=1",
                                "-XX:-UsePerfData",
                                "-Dconfig.file=sqs.conf",
                                "-Dlogback.configurationFile=logback.xml",
                                "-cp",
                                classpath,
                                "org.elasticmq.server.Main",
                                NULL};
    int fd = open(server->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644),
        null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0 || chdir(server->dir) != 0)
        _exit(126);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    unsetenv("LD_PRELOAD");
    setenv("LC_ALL", "C", 1);
    execv(java, (char *const *)argv);
    _exit(127);
}

static void launch(struct sqs_server *server)
{
    static char classpath[CLASSPATH];
    const char *java = find_java();
    const pid_t parent = getpid();
    char text[32];

    make_classpath(classpath);
    server->pid = fork();
    if (server->pid == 0)
        become_server(server, parent, java, classpath);
    if (server->pid < 0)
        fail_server(server, "no process for it");
    snprintf(text, sizeof text, "%ld\n", (long)server->pid);
    write_file(server, "pid", text);
}

static bool is_listening(int port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                        .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool yes = fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;

    if (fd >= 0)
        close(fd);
    return yes;
}

/* False: it has ended. It listens last of all, when it can answer. */
static bool wait_ready(struct sqs_server *server)
{
    int status;

    for (int waited_ms = 0; !is_listening(server->port); waited_ms += STEP_MS) {
        if (waitpid(server->pid, &status, WNOHANG) == server->pid) {
            server->pid = 0;
            return false;
        }
        if (waited_ms > READY_MS)
            fail_server(server, "it does not become ready");
        poll(NULL, 0, STEP_MS);
    }
    return true;
}

void sqs_server_again(struct sqs_server *server)
{
    launch(server);
    if (!wait_ready(server))
        fail_server(server, "it does not start again");
}

void sqs_server_start(struct sqs_server *server)
{
    make_folder(server);
    for (int tries = 0; tries < PORT_TRIES; tries++) {
        server->port = free_port(); /* somebody else may take it before we do */
        write_settings(server);
        launch(server);
        if (wait_ready(server))
            return;
    }
    fail_server(server, "it does not start");
}

void sqs_server_freeze(struct sqs_server *server)
{
    kill(server->pid, SIGSTOP);
}

void sqs_server_thaw(struct sqs_server *server)
{
    kill(server->pid, SIGCONT);
}

const char *sqs_server_url(const struct sqs_server *server, const char *queue, char out[SQS_SERVER_TEXT])
{
    snprintf(out, SQS_SERVER_TEXT, "http://127.0.0.1:%d/000000000000/%s", server->port, queue);
    return out;
}
