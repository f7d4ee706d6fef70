/* SPDX-License-Identifier: MIT
 *
 * gateway.c: `semel gateway`: a gateway in front of one upstream, by options alone.
 *
 * Invariants: it serves until SIGTERM or SIGINT; then it accepts nothing new and lets requests end.
 */
#include "gateway/gateway.h"

#include <pthread.h>
#include <signal.h>

#include "base/descriptors.h"
#include "base/error.h"
#include "cli/cli.h"

#define STOP_MS 30000
#define TRUSTED_MAX 64

/* Waits for the signal, in a thread of its own. */
static void *wait_for_signal(void *arg)
{
    sigset_t signals;
    int which;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1); /* the loop has ended by itself */
    if (sigwait(&signals, &which) == 0 && which != SIGUSR1)
        semel__http_stop(arg, STOP_MS);
    return NULL;
}

static int serve(const struct cli *cli, struct semel_http *http, const struct semel_gateway *gateway,
                 const struct semel_gateway_settings *settings)
{
    struct semel_error err = {0};
    pthread_t thread;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1);
    if (pthread_sigmask(SIG_BLOCK, &signals, NULL) != 0 || pthread_create(&thread, NULL, wait_for_signal, http) != 0)
        return cli_fail(CLI_FAILED, "cannot start a thread");
    unsigned port = semel__gateway_port(gateway);
    if (port > 0)
        cli_say(cli, "the gateway listens on port %u in front of %s", port, settings->upstream.url);
    else
        cli_say(cli, "the gateway listens on %s in front of %s", settings->listen, settings->upstream.url);
    (void)fflush(stdout);
    semel_status status = semel__http_run(http, &err);
    (void)pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
    return status == SEMEL_OK ? CLI_OK : cli_fail_error(status, &err, "the gateway stopped");
}

/* false: cli_fail has spoken. */
static bool read_options(const struct cli_args *args, struct semel_gateway_settings *settings,
                         const char *trusted[TRUSTED_MAX])
{
    int64_t timeout_us;
    semel__gateway_settings_init(settings);
    settings->listen = cli_value(args, "listen");
    settings->upstream.url = cli_value(args, "upstream");
    if (settings->listen == NULL || settings->upstream.url == NULL) {
        cli_fail(CLI_USAGE, "--listen and --upstream are required: semel gateway --listen 127.0.0.1:8081 --upstream "
                            "http://127.0.0.1:8000");
        return false;
    }
    if (!cli_duration(args, "timeout", INT64_C(30000000), &timeout_us))
        return false;
    settings->upstream.answer_ms = timeout_us > 1000 ? (uint64_t)timeout_us / 1000 : 1;
    settings->upstream.ca_file = cli_value(args, "upstream-ca");
    settings->cert_file = cli_value(args, "cert");
    settings->key_file = cli_value(args, "key");
    settings->client_ca_file = cli_value(args, "client-ca");
    settings->plain = cli_flag(args, "plain");
    settings->trusted = trusted;
    while (settings->n_trusted < TRUSTED_MAX &&
           (trusted[settings->n_trusted] = cli_values(args, "trusted", settings->n_trusted)) != NULL)
        settings->n_trusted++;
    return true;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    const char *trusted[TRUSTED_MAX];
    struct semel_gateway_settings settings;
    struct semel_gateway *gateway = NULL;
    struct semel_http *http = NULL;
    struct semel_error err = {0};
    if (!read_options(args, &settings, trusted))
        return CLI_USAGE;
    semel__descriptors_raise();
    semel_status status = semel__http_new(&http, NULL, &err);
    if (status == SEMEL_OK)
        status = semel__gateway_open(&gateway, http, &settings, &err);
    int code = status == SEMEL_OK        ? serve(cli, http, gateway, &settings)
               : status == SEMEL_INVALID ? cli_fail(CLI_USAGE, "%s", err.text)
                                         : cli_fail(CLI_FAILED, "%s", err.text);
    semel__http_free(http);
    semel__gateway_close(gateway);
    return code;
}

static const struct cli_option options[] = {
    {"listen", 0, "ADDRESS", "where clients connect: 127.0.0.1:8081, [::1]:8081 or unix:/path"},
    {"upstream", 0, "URL", "the server behind it: http://HOST:PORT, https://HOST:PORT or unix:/path"},
    {"timeout", 0, "TIME", "how long the upstream may take to begin its answer; 30s"},
    {"trusted", 0, "NETWORK...", "a network whose X-Forwarded-* headers are believed: 10.0.0.0/8; or unix"},
    {"cert", 0, "FILE", "serve TLS with this certificate and its chain, PEM"},
    {"key", 0, "FILE", "the key of the certificate, PEM"},
    {"client-ca", 0, "FILE", "clients need a certificate of one of these CAs"},
    {"upstream-ca", 0, "FILE", "the CAs of an https upstream, instead of the system's"},
    {"plain", 0, NULL, "listen without TLS on an address that is not loopback"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_gateway = {
    .name = "gateway",
    .summary = "pass HTTP requests on to one server, strictly",
    .operands = "",
    .help =
        "A reverse proxy for one server, behind the nginx, Envoy or load balancer that is already there. It passes\n"
        "requests and answers on in pieces, sends no request twice, and refuses what servers read in different\n"
        "ways. It does not guard idempotency keys yet. SIGTERM and SIGINT stop it; requests that run may end\n"
        "within 30 seconds.\n"
        "\n"
        "  semel gateway --listen 127.0.0.1:8081 --upstream http://127.0.0.1:8000\n",
    .options = options,
    .no_json = true,
    .run = run,
};
