/* SPDX-License-Identifier: MIT
 *
 * server.c: a private ElasticMQ for tests. See server.h.
 */
#include "sqs/server.h"

#include <signal.h>
#include <stdio.h>

#include "server/java.h"

static void prepare(void *at)
{
    struct sqs_server *server = at;
    char text[1024];

    server->port = server_port();
    snprintf(text, sizeof text,
             "node-address { protocol = http, host = \"127.0.0.1\", port = %d, context-path = \"\" }\n"
             "rest-sqs { enabled = true, bind-port = %d, bind-hostname = \"127.0.0.1\", sqs-limits = strict }\n"
             "rest-stats { enabled = false }\ngenerate-node-address = false\n"
             "queues-storage { enabled = false }\nmessages-storage { enabled = false }\n",
             server->port, server->port);
    server_write(&server->process, "sqs.conf", text);
    server_write(&server->process, "logback.xml",
                 "<configuration><appender name=\"A\" class=\"ch.qos.logback.core.ConsoleAppender\"><encoder>"
                 "<pattern>%d %level %logger - %msg%n</pattern></encoder></appender>"
                 "<root level=\"warn\"><appender-ref ref=\"A\"/></root></configuration>\n");
}

static void launch(void *at)
{
    struct sqs_server *server = at;

    server_java_launch(&server->process, "sqs",
                       (const char *const[]){"-Xmx128m", "-Dconfig.file=sqs.conf",
                                             "-Dlogback.configurationFile=logback.xml", "org.elasticmq.server.Main",
                                             NULL});
}

/* It listens last of all, when it can answer. */
static bool answers(void *at)
{
    const struct sqs_server *server = at;

    return server_listens(server->port);
}

static const struct server_kind kind = {
    .name = "ElasticMQ", .folder = "sqs", .death = SIGKILL, .prepare = prepare, .launch = launch, .answers = answers};

void sqs_server_start(struct sqs_server *server)
{
    *server = (struct sqs_server){0};
    server_make(&server->process, &kind);
    server_start(&server->process);
}

void sqs_server_done(struct sqs_server *server)
{
    server_done(&server->process, SIGKILL);
    *server = (struct sqs_server){0};
}

const char *sqs_server_url(const struct sqs_server *server, const char *queue, char out[SQS_SERVER_TEXT])
{
    snprintf(out, SQS_SERVER_TEXT, "http://127.0.0.1:%d/000000000000/%s", server->port, queue);
    return out;
}
