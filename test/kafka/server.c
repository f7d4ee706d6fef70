/* SPDX-License-Identifier: MIT
 *
 * server.c: a private Apache Kafka for tests. See server.h.
 */
#include "kafka/server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kafka/client.h"
#include "server/java.h"

#define KEPT KAFKA_BUILD "/classes.jsa" /* what Java has made of the classes */

static void prepare(void *at)
{
    struct kafka_server *server = at;
    char text[2048];
    const int controller_port = server_port();

    server->port = server_port();
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
             controller_port, server->port, controller_port, server->port, server->process.dir);
    server_write(&server->process, "server.properties", text);
}

static void launch(void *at)
{
    struct kafka_server *server = at;
    char archive[256];
    const char *const words[] = {"-Xmx256m",
                                 "-Xlog:disable",
                                 "-Xlog:all=error:stderr",
                                 archive,
                                 "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                                 "kafka.Kafka",
                                 "server.properties",
                                 NULL};

    server->archives = access(KEPT, R_OK) != 0;
    if (server->archives)
        snprintf(archive, sizeof archive, "-XX:ArchiveClassesAtExit=%s/classes.jsa", server->process.dir);
    else
        snprintf(archive, sizeof archive, "-XX:SharedArchiveFile=" KEPT);
    server_java_launch(&server->process, "kafka", words);
}

static bool answers(void *at)
{
    const struct kafka_server *server = at;
    char address[KAFKA_SERVER_TEXT];
    struct kafka_client client;
    bool yes;

    if (!server_listens(server->port))
        return false;
    kafka_client_open(&client, kafka_server_address(server, address));
    yes = kafka_client_answers(&client, 1000);
    kafka_client_close(&client);
    return yes;
}

static const struct server_kind kind = {.name = "Apache Kafka",
                                        .folder = "kafka",
                                        .death = SIGKILL,
                                        .prepare = prepare,
                                        .launch = launch,
                                        .answers = answers};

void kafka_server_start(struct kafka_server *server)
{
    char data[128];

    *server = (struct kafka_server){0};
    server_make(&server->process, &kind);
    snprintf(data, sizeof data, "%s/data", server->process.dir);
    if (mkdir(data, 0755) != 0)
        server_fail(&server->process, "no folder for its data");
    /* All that formatting a folder comes to, without another start of Java. */
    server_write(&server->process, "data/meta.properties", "version=1\ncluster.id=c2VtZWwtdGVzdHMtMDAwMQ\nnode.id=1\n");
    server_start(&server->process);
}

/* For the servers to come, which may look at any moment: whole, or not there. */
static void keep_archive(const struct server_process *process)
{
    char made[128], target[] = KEPT ".XXXXXX";
    const int fd = mkstemp(target);

    if (fd < 0)
        return;
    close(fd);
    snprintf(made, sizeof made, "%s/classes.jsa", process->dir);
    if (!server_run(process, SERVER_AS_OURSELVES, (const char *const[]){"cp", made, target, NULL}) ||
        rename(target, KEPT) != 0)
        unlink(target);
}

void kafka_server_done(struct kafka_server *server)
{
    if (server->archives && server->process.pid != 0) {
        server_stop(&server->process, SIGTERM);
        keep_archive(&server->process);
    }
    server_done(&server->process, SIGKILL);
    *server = (struct kafka_server){0};
}

const char *kafka_server_address(const struct kafka_server *server, char out[KAFKA_SERVER_TEXT])
{
    snprintf(out, KAFKA_SERVER_TEXT, "127.0.0.1:%d", server->port);
    return out;
}
