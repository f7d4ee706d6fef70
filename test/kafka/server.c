/* SPDX-License-Identifier: MIT
 *
 * server.c: a private Apache Kafka for tests. See server.h.
 *
 * Invariants: a server that this process started is a child of it, and known by its pid; the folder has a leash before
 * the server starts, so that nothing is left behind whenever the test dies.
 */
#define _GNU_SOURCE /* pipe2 */
#include "kafka/server.h"

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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kafka/client.h"

#define READY_MS 120000
#define STEP_MS 50
#define PORT_TRIES 5
#define CLASSPATH 16384

/* ---- the end ------------------------------------------------------------------------------------------ */

static _Noreturn void skip_test(const char *why)
{
    printf("skipped: %s\n", why);
    fflush(stdout);
    _exit(77);
}

static _Noreturn void fail_server(const struct kafka_server *server, const char *what)
{
    char text[4096];
    int fd = open(server->log, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof text, end < (off_t)sizeof text ? 0 : end - (off_t)sizeof text);

    fprintf(stderr, "Kafka server of this test: %s\n", what);
    if (n > 0)
        fprintf(stderr, "--- the end of its log\n%.*s---\n", (int)n, text);
    exit(1);
}

static void put_on_leash(struct kafka_server *server)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        fail_server(server, "no pipe");
    server->leash = ends[1];
    server->leash_pid = fork();
    if (server->leash_pid == 0) {
        setsid(); /* what is sent to the test's group does not concern it */
        if (dup2(ends[0], 0) == 0)
            execl("/bin/sh", "sh", KAFKA_LEASH, server->dir, (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    if (server->leash_pid < 0)
        fail_server(server, "no process for its leash");
}

static bool has_ended(struct kafka_server *server)
{
    int status;

    if (waitpid(server->pid, &status, WNOHANG) != server->pid)
        return false;
    server->pid = 0;
    return true;
}

void kafka_server_stop(struct kafka_server *server, enum kafka_stop how)
{
    char made[128];

    if (server->pid == 0)
        return;
    kill(server->pid, SIGCONT);
    kill(server->pid, how == KAFKA_STOP ? SIGTERM : SIGKILL);
    for (int waited_ms = 0; !has_ended(server); waited_ms += STEP_MS) {
        if (waited_ms > READY_MS)
            kill(server->pid, SIGKILL);
        poll(NULL, 0, STEP_MS);
    }
    snprintf(made, sizeof made, "%s/classes.jsa", server->dir);
    if (how == KAFKA_STOP && server->archives && access(made, R_OK) == 0) {
        char target[] = KAFKA_BUILD "/classes.XXXXXX";
        const int fd = mkstemp(target);
        const pid_t pid = fd < 0 ? -1 : fork();
        int status = 1;
        if (pid == 0) {
            execlp("cp", "cp", made, target, (char *)NULL);
            _exit(127);
        }
        if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0)
            rename(target, KAFKA_BUILD "/classes.jsa");
        else if (fd >= 0)
            unlink(target);
        if (fd >= 0)
            close(fd);
    }
}

void kafka_server_done(struct kafka_server *server)
{
    int status;

    if (server->dir[0] == '\0')
        return;
    kafka_server_stop(server, server->archives ? KAFKA_STOP : KAFKA_STOP_KILL);
    close(server->leash);
    while (waitpid(server->leash_pid, &status, 0) < 0 && errno == EINTR)
        ;
    *server = (struct kafka_server){0};
}

/* ---- what it needs ------------------------------------------------------------------------------------ */

/* The archives as a class path; skips the test when one is missing. */
static void make_classpath(char out[CLASSPATH])
{
    const char *given = getenv("SEMEL_JARS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[512], line[512], path[1024];
    FILE *list = fopen(KAFKA_LIST, "re");
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
            skip_test("Apache Kafka's archives are not here (tools/jars kafka; or SEMEL_JARS=FOLDER)");
        n += (size_t)snprintf(out + n, CLASSPATH - n, "%s%s", n > 0 ? ":" : "", path);
    }
    if (list == NULL || n == 0)
        skip_test("tools/kafka.list cannot be read");
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

static void write_file(const struct kafka_server *server, const char *name, const char *text)
{
    char path[160];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", server->dir, name);
    f = fopen(path, "we");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        fail_server(server, "a file of its folder cannot be written");
}

static void write_settings(const struct kafka_server *server)
{
    char text[2048];

    snprintf(text, sizeof text,
             "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:%d\n"
             "listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d\n"
             "advertised.listeners=PLAINTEXT://127.0.0.1:%d\ncontroller.listener.names=CONTROLLER\n"
             "log.dirs=%s/data\nauto.create.topics.enable=false\ngroup.initial.rebalance.delay.ms=0\n"
             "group.min.session.timeout.ms=1000\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=2\n"
             "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
             "transaction.state.log.num.partitions=2\nnum.network.threads=2\nnum.io.threads=2\n"
             "broker.session.timeout.ms=4000\nbroker.heartbeat.interval.ms=500\n" /* not 9 s after a kill */
             "background.threads=1\nlog.cleaner.threads=1\nlog.cleaner.dedupe.buffer.size=2097152\n"
             "message.max.bytes=10485760\nlog.retention.check.interval.ms=1000\n",
             server->controller_port, server->port, server->controller_port, server->port, server->dir);
    write_file(server, "server.properties", text);
}

static void make_folder(struct kafka_server *server)
{
    const char *tmp = getenv("TMPDIR");
    char data[128];

    *server = (struct kafka_server){0};
    snprintf(server->dir, sizeof server->dir, "%s/semel-kafka-XXXXXX", tmp != NULL && strlen(tmp) < 32 ? tmp : "/tmp");
    if (mkdtemp(server->dir) == NULL) {
        server->dir[0] = '\0';
        fail_server(server, "no folder for it");
    }
    snprintf(server->log, sizeof server->log, "%s/log", server->dir);
    snprintf(data, sizeof data, "%s/data", server->dir);
    if (mkdir(data, 0755) != 0)
        fail_server(server, "no folder for its data");
    put_on_leash(server);
    /* All that formatting a folder comes to, without another start of Java. */
    write_file(server, "data/meta.properties", "version=1\ncluster.id=c2VtZWwtdGVzdHMtMDAwMQ\nnode.id=1\n");
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static _Noreturn void become_server(const struct kafka_server *server, pid_t parent, const char *java)
{
    static char classpath[CLASSPATH];
    char archive[256];
    int fd = open(server->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644),
        null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    make_classpath(classpath);
    if (server->archives)
        snprintf(archive, sizeof archive, "-XX:ArchiveClassesAtExit=%s/classes.jsa", server->dir);
    else
        snprintf(archive, sizeof archive, "-XX:SharedArchiveFile=%s/classes.jsa", KAFKA_BUILD);
    const char *const argv[] = {java,
                                "-Xmx256m",
                                "-XX:+UseSerialGC",
                                "-XX:TieredStopAtLevel=1",
                                "-XX:-UsePerfData",
                                "-Xlog:disable",
                                "-Xlog:all=error:stderr",
                                archive,
                                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                                "-cp",
                                classpath,
                                "kafka.Kafka",
                                "server.properties",
                                NULL};
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

static void launch(struct kafka_server *server)
{
    static char classpath[CLASSPATH];
    const char *java = find_java();
    const pid_t parent = getpid();
    char text[32];

    make_classpath(classpath); /* skips here, where it can be seen */
    server->archives = access(KAFKA_BUILD "/classes.jsa", R_OK) != 0;
    server->pid = fork();
    if (server->pid == 0)
        become_server(server, parent, java);
    if (server->pid < 0)
        fail_server(server, "no process for it");
    snprintf(text, sizeof text, "%ld\n", (long)server->pid);
    write_file(server, "pid", text);
}

/* False: it has ended. */
static bool wait_ready(struct kafka_server *server)
{
    char address[KAFKA_SERVER_TEXT];
    struct kafka_client client;
    bool ready = false;

    kafka_client_open(&client, kafka_server_address(server, address));
    for (int waited_ms = 0; !ready; waited_ms += STEP_MS) {
        if (has_ended(server))
            break;
        if (waited_ms > READY_MS)
            fail_server(server, "it does not become ready");
        ready = kafka_client_answers(&client, 1000);
        poll(NULL, 0, ready ? 0 : STEP_MS);
    }
    kafka_client_close(&client);
    return ready;
}

void kafka_server_again(struct kafka_server *server)
{
    launch(server);
    if (!wait_ready(server))
        fail_server(server, "it does not start again");
}

void kafka_server_start(struct kafka_server *server)
{
    make_folder(server);
    for (int tries = 0; tries < PORT_TRIES; tries++) {
        server->port = free_port(); /* somebody else may take it before we do */
        server->controller_port = free_port();
        write_settings(server);
        launch(server);
        if (wait_ready(server))
            return;
    }
    fail_server(server, "it does not start");
}

void kafka_server_freeze(struct kafka_server *server)
{
    kill(server->pid, SIGSTOP);
}

void kafka_server_thaw(struct kafka_server *server)
{
    kill(server->pid, SIGCONT);
}

const char *kafka_server_address(const struct kafka_server *server, char out[KAFKA_SERVER_TEXT])
{
    snprintf(out, KAFKA_SERVER_TEXT, "127.0.0.1:%d", server->port);
    return out;
}
