/* SPDX-License-Identifier: MIT
 *
 * server.c: a private RabbitMQ for tests. See server.h.
 */
#include "rabbit/server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "rabbit/client.h"

#define PROGRAM "/usr/lib/rabbitmq/bin/rabbitmq-server"
#define CONTROL "/usr/lib/rabbitmq/bin/rabbitmqctl"

/* ---- its settings ------------------------------------------------------------------------------------- */

static void write_settings(const struct rabbit_server *server)
{
    const char *dir = server->process.dir;
    char text[1024], tls[512] = "";

    if (server->tls_port != 0)
        snprintf(tls, sizeof tls,
                 "listeners.ssl.1 = 127.0.0.1:%d\nssl_options.cacertfile = %s/ca.pem\n"
                 "ssl_options.certfile = %s/server.pem\nssl_options.keyfile = %s/server.key\n"
                 "ssl_options.verify = verify_none\n",
                 server->tls_port, dir, dir, dir);
    snprintf(text, sizeof text,
             "listeners.tcp.1 = 127.0.0.1:%d\nlog.console = true\nlog.console.level = warning\nlog.file = false\n"
             "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.absolute = 1GB\n"
             "num_acceptors.tcp = 2\nqueue_index_embed_msgs_below = 4096\n%s",
             server->port, tls);
    server_write(&server->process, "rabbitmq.conf", text);
    server_write(&server->process, "enabled_plugins", "[].\n");
}

static void prepare(void *at)
{
    struct rabbit_server *server = at;

    server_end(&server->process, &server->epmd_pid, SIGKILL);
    server->port = server_port();
    server->tls_port = server->tls ? server_port() : 0;
    server->dist_port = server_port();
    server->epmd_port = server_port();
    write_settings(server);
}

static void set_number(const char *name, int number)
{
    char text[16];

    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void set_path(const struct rabbit_server *server, const char *name, const char *path)
{
    char text[160];

    snprintf(text, sizeof text, "%s/%s", server->process.dir, path);
    setenv(name, text, 1);
}

static void set_environment(const void *at)
{
    const struct rabbit_server *server = at;
    char node[48];

    clearenv();
    snprintf(node, sizeof node, "semel%d@localhost", server->port);
    setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("HOME", server->process.dir, 1); /* where the cookie lies */
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

/* ---- starting and ending ------------------------------------------------------------------------------ */

static void launch_epmd(struct rabbit_server *server)
{
    char port[16], text[32];

    snprintf(port, sizeof port, "%d", server->epmd_port);
    server->epmd_pid = server_spawn(&server->process, SERVER_AS_ITSELF,
                                    (const char *const[]){"epmd", "-port", port, "-address", "127.0.0.1", NULL});
    snprintf(text, sizeof text, "%ld\n", (long)server->epmd_pid);
    server_write(&server->process, "epmd.pid", text);
}

static void launch(void *at)
{
    struct rabbit_server *server = at;

    if (server->epmd_pid == 0)
        launch_epmd(server);
    server_launch(&server->process, (const char *const[]){PROGRAM, NULL});
}

static bool answers(void *at)
{
    const struct rabbit_server *server = at;

    return rabbit_client_answers(server->port);
}

static const struct server_kind kind = {.name = "RabbitMQ",
                                        .folder = "rabbit",
                                        .user = "rabbitmq",
                                        .death = SIGKILL,
                                        .prepare = prepare,
                                        .launch = launch,
                                        .answers = answers,
                                        .environment = set_environment};

static void make(struct rabbit_server *server)
{
    if (access(PROGRAM, X_OK) != 0)
        server_skip("RabbitMQ is not installed (apt-get install rabbitmq-server)");
    *server = (struct rabbit_server){0};
    server_make(&server->process, &kind);
}

static void copy_file(const struct server_process *process, const char *folder, const char *name)
{
    char path[320], text[16384];
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "re");
    n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f == NULL || fclose(f) != 0 || n == 0)
        server_fail(process, "a file for its TLS cannot be read");
    text[n] = '\0';
    server_write(process, name, text);
}

void rabbit_server_start(struct rabbit_server *server)
{
    make(server);
    server_start(&server->process);
}

void rabbit_server_start_tls(struct rabbit_server *server, const char *folder)
{
    static const char *const names[] = {"ca.pem", "server.pem", "server.key"};

    make(server);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        copy_file(&server->process, folder, names[i]);
    server->tls = true;
    server_start(&server->process);
}

void rabbit_server_done(struct rabbit_server *server)
{
    server_stop(&server->process, SIGKILL);
    server_end(&server->process, &server->epmd_pid, SIGKILL);
    server_done(&server->process, SIGKILL);
    *server = (struct rabbit_server){0};
}

bool rabbit_server_ctl(struct rabbit_server *server, const char *const *words)
{
    const char *argv[16] = {CONTROL};

    for (size_t i = 0; words[i] != NULL && i < 14; i++)
        argv[i + 1] = words[i];
    return server_run(&server->process, SERVER_AS_ITSELF, argv);
}
