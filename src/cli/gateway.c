/* SPDX-License-Identifier: MIT
 *
 * gateway.c: `semel gateway`: a gateway in front of one upstream, by options alone.
 *
 * Invariants: it serves until SIGTERM or SIGINT; then it accepts nothing new and lets requests end. The threads of the
 * keeper end after the loop, when everything that it was given is stored.
 */
#include "gateway/gateway.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/error.h"
#include "base/point.h"
#include "base/random.h"
#include "cli/cli.h"
#include "gateway/keeper.h"

#define STOP_MS 30000
#define STORE_STOP_MS 5000
#define STEP_MS 1000
#define LIST_MAX 64
#define GUARD_TEXT 2048
#define THREADS_MAX 64
#define ADDRESS_TEXT 300

/* What the options say. */
struct options {
    struct semel_gateway_settings settings;
    const char *trusted[LIST_MAX], *callers_from[LIST_MAX], *cors[LIST_MAX];
    struct semel_gateway_rule rules[LIST_MAX + 1];
    _Atomic size_t held[LIST_MAX + 2]; /* bytes per rule, of all loops */
    const char *store;
    int64_t lease_us, threads;
};

/* ==== rules ====================================================================================== */

/* One word of a rule, "NAME=VALUE". false: cli_fail has spoken. */
static bool read_word(struct semel_gateway_rule *rule, const char *name, const char *value)
{
    static const char *const keys[] = {"optional", "required", "off"};
    static const char *const policies[] = {"refuse", "reconcile", "retry"};
    int64_t us = 0;
    bool is_time = semel__duration_parse(semel__str(value), &us);
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(name, "key") == 0 && strcmp(value, keys[i]) == 0)
            return rule->key = (enum semel_gateway_key)i, true;
        if (strcmp(name, "on_unknown") == 0 && strcmp(value, policies[i]) == 0)
            return rule->on_unknown = (enum semel_on_unknown)i, true;
    }
    if (strcmp(name, "header") == 0)
        return rule->key_header = value, true;
    if (strcmp(name, "pointer") == 0)
        return rule->key_pointer = value, true;
    if (strcmp(name, "reconcile") == 0)
        return rule->reconcile = value, rule->on_unknown = SEMEL_ON_UNKNOWN_RECONCILE, true;
    if (strcmp(name, "settle") == 0 && is_time)
        return rule->settle_ms = us / 1000, true;
    if (strcmp(name, "wait") == 0 && is_time)
        return rule->wait_ms = us / 1000, true;
    if (strcmp(name, "store_body") == 0 && strcmp(value, "false") == 0)
        return rule->store_body = false, true;
    if (strcmp(name, "when_down") == 0 && strcmp(value, "pass") == 0)
        return rule->pass_when_down = true, true;
    cli_fail(CLI_USAGE,
             "--guard: \"%s=%s\" is not one of key=required|optional|off, header=NAME, pointer=/JSON, "
             "on_unknown=refuse|reconcile|retry, reconcile=URL, settle=TIME, wait=TIME, store_body=false, "
             "when_down=pass",
             name, value);
    return false;
}

/* "POST /v1/charges key=required ...". The text is cut in place and lives as long as the program. */
static bool read_rule(struct cli *cli, const char *text, struct semel_gateway_rule *rule)
{
    struct semel_str copy;
    semel__gateway_rule_init(rule);
    if (strlen(text) > GUARD_TEXT || !semel__arena_copy(&cli->arena, semel__str(text), &copy)) {
        cli_fail(CLI_USAGE, "--guard: a rule must have at most %d bytes", GUARD_TEXT);
        return false;
    }
    char *at = (char *)copy.p, *path = strchr(at, ' ');
    rule->match = at;
    char *words = path != NULL ? strchr(path + 1, ' ') : NULL;
    if (words != NULL)
        *words++ = '\0';
    while (words != NULL && *words != '\0') {
        char *next = strchr(words, ' ');
        if (next != NULL)
            *next++ = '\0';
        char *value = strchr(words, '=');
        if (value != NULL)
            *value++ = '\0';
        if (*words != '\0' && !read_word(rule, words, value != NULL ? value : ""))
            return false;
        words = next;
    }
    return true;
}

static bool read_rules(struct cli *cli, const struct cli_args *args, struct options *options)
{
    bool anonymous = cli_flag(args, "anonymous");
    struct semel_gateway_settings *settings = &options->settings;
    const char *text;
    while ((text = cli_values(args, "guard", settings->n_rules)) != NULL) {
        if (settings->n_rules == LIST_MAX) {
            cli_fail(CLI_USAGE, "--guard: at most %d rules", LIST_MAX);
            return false;
        }
        if (!read_rule(cli, text, &options->rules[settings->n_rules]))
            return false;
        options->rules[settings->n_rules++].anonymous = anonymous;
    }
    if (anonymous) { /* in place of the rule for everything else */
        struct semel_gateway_rule *rest = &options->rules[settings->n_rules++];
        semel__gateway_rule_init(rest);
        rest->match = "POST|PATCH /{rest*}";
        rest->anonymous = true;
    }
    settings->rules = options->rules;
    settings->held = options->held;
    return true;
}

/* "header:X-User-Id", "certificate", "key:X-Api-Key" */
static bool read_caller(const struct cli_args *args, struct options *options)
{
    struct semel_gateway_caller *caller = &options->settings.caller;
    const char *text = cli_value(args, "caller");
    caller->check = cli_value(args, "check");
    caller->trusted_from = options->callers_from;
    while (caller->n_trusted_from < LIST_MAX &&
           (options->callers_from[caller->n_trusted_from] = cli_values(args, "caller-from", caller->n_trusted_from)) !=
               NULL)
        caller->n_trusted_from++;
    if (text == NULL)
        return true;
    if (strcmp(text, "certificate") == 0) {
        caller->kind = SEMEL_GATEWAY_CALLER_CERTIFICATE;
    } else if (strncmp(text, "header:", 7) == 0) {
        caller->kind = SEMEL_GATEWAY_CALLER_HEADER;
        caller->header = text + 7;
    } else if (strncmp(text, "key:", 4) == 0) {
        caller->kind = SEMEL_GATEWAY_CALLER_API_KEY;
        caller->header = text + 4;
    } else {
        cli_fail(CLI_USAGE, "--caller must be header:NAME (with --caller-from), certificate, or key:NAME");
        return false;
    }
    return true;
}

/* ==== the keeper ================================================================================= */

struct keeping {
    struct semel_keeper *keeper;
    struct lane {
        struct semel_keeper *keeper;
        size_t n;
        pthread_t thread;
    } lanes[SEMEL_KEEPER_LANES_MAX];
    size_t n;
};

static void *keep(void *arg)
{
    const struct lane *lane = arg;
    while (semel__keeper_step(lane->keeper, lane->n, STEP_MS))
        ;
    return NULL;
}

static void keeping_stop(struct keeping *keeping)
{
    if (keeping->keeper == NULL)
        return;
    semel__keeper_stop(keeping->keeper, STORE_STOP_MS);
    for (size_t i = 0; i < keeping->n; i++)
        pthread_join(keeping->lanes[i].thread, NULL);
    keeping->n = 0;
}

/* Opens the store as it is, and starts its threads. 0, or an exit code. */
static int keeping_start(const struct cli_args *args, const struct options *options, struct keeping *keeping)
{
    struct semel_keeper_settings settings;
    struct semel_error err = {0};
    struct semel_random rng;
    char host[128] = "", owner[192];
    (void)gethostname(host, sizeof host - 1);
    if (!semel__random_seed_os(&rng))
        return cli_fail(CLI_FAILED, "the system gives no random numbers");
    snprintf(owner, sizeof owner, "%s/%ld/%08x", host, (long)getpid(), (unsigned)semel__random_next(&rng));
    semel__keeper_settings_init(&settings);
    settings.drivers = cli_store_drivers();
    settings.url = options->store;
    settings.lease_ms = options->lease_us / 1000;
    settings.owner = owner;
    semel_status status = semel__keeper_new(&keeping->keeper, &settings, &err);
    if (status != SEMEL_OK)
        return cli_fail(CLI_USAGE, "%s", err.text);
    status = cli_store_judge(options->store, &err);
    for (size_t i = 0; i < semel__keeper_lanes(keeping->keeper) && status == SEMEL_OK; i++)
        status = semel__keeper_open(keeping->keeper, i, &err);
    if (status != SEMEL_OK)
        return cli_store_refused(args, options->store, status, &err);
    for (; keeping->n < semel__keeper_lanes(keeping->keeper); keeping->n++) {
        struct lane *lane = &keeping->lanes[keeping->n];
        *lane = (struct lane){.keeper = keeping->keeper, .n = keeping->n};
        if (pthread_create(&lane->thread, NULL, keep, lane) != 0)
            return cli_fail(CLI_FAILED, "cannot start a thread");
    }
    return CLI_OK;
}

/* ==== serving ==================================================================================== */

/* One event loop; all of them listen on one port. */
struct loop {
    struct semel_http *http;
    struct semel_gateway *gateway;
    pthread_t thread;
    semel_status status;
    struct semel_error err;
};

struct loops {
    struct loop list[THREADS_MAX];
    size_t n;
};

static void stop_all(const struct loops *loops)
{
    for (size_t i = 0; i < loops->n; i++)
        semel__http_stop(loops->list[i].http, STOP_MS);
}

/* Waits for the signal, in a thread of its own. */
static void *wait_for_signal(void *arg)
{
    sigset_t signals;
    int which;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1); /* the loops have ended by themselves */
    if (sigwait(&signals, &which) == 0 && which != SIGUSR1)
        stop_all(arg);
    return NULL;
}

static void *run_loop(void *arg)
{
    struct loop *loop = arg;
    loop->status = semel__http_run(loop->http, &loop->err);
    return NULL;
}

static int serve(const struct cli *cli, struct loops *loops, const struct semel_gateway_settings *settings)
{
    pthread_t thread;
    size_t started = 1;
    if (pthread_create(&thread, NULL, wait_for_signal, loops) != 0)
        return cli_fail(CLI_FAILED, "cannot start a thread");
    unsigned port = semel__gateway_port(loops->list[0].gateway);
    while (started < loops->n &&
           pthread_create(&loops->list[started].thread, NULL, run_loop, &loops->list[started]) == 0)
        started++;
    if (port > 0)
        cli_say(cli, "the gateway listens on port %u in front of %s", port, settings->upstream.url);
    else
        cli_say(cli, "the gateway listens on %s in front of %s", settings->listen, settings->upstream.url);
    (void)fflush(stdout);
    run_loop(&loops->list[0]);
    stop_all(loops); /* if it was not a signal */
    for (size_t i = 1; i < started; i++)
        pthread_join(loops->list[i].thread, NULL);
    (void)pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < started; i++)
        if (loops->list[i].status != SEMEL_OK)
            return cli_fail_error(loops->list[i].status, &loops->list[i].err, "the gateway stopped");
    return CLI_OK;
}

/* What a settings file must not say, either. */
static bool check_options(const struct options *options)
{
    struct semel_error err = {0};
    if (options->store == NULL ||
        semel__gateway_settings_check(&options->settings, options->lease_us / 1000, &err) == SEMEL_OK)
        return true;
    cli_fail(CLI_USAGE, "%s", err.text);
    return false;
}

/* false: cli_fail has spoken. */
static bool read_options(struct cli *cli, const struct cli_args *args, struct options *options)
{
    struct semel_gateway_settings *settings = &options->settings;
    int64_t timeout_us, connect_us;
    semel__gateway_settings_init(settings);
    settings->listen = cli_value(args, "listen");
    settings->upstream.url = cli_value(args, "upstream");
    if (settings->listen == NULL || settings->upstream.url == NULL) {
        cli_fail(CLI_USAGE, "--listen and --upstream are required: semel gateway --listen 127.0.0.1:8081 --upstream "
                            "http://127.0.0.1:8000");
        return false;
    }
    if (!cli_duration(args, "timeout", INT64_C(30000000), &timeout_us) ||
        !cli_duration(args, "connect", INT64_C(5000000), &connect_us) ||
        !cli_duration(args, "lease", SEMEL_KEEPER_LEASE_MS * INT64_C(1000), &options->lease_us) ||
        !cli_int(args, "threads", 1, THREADS_MAX, 1, &options->threads))
        return false;
    if (options->threads > 1 && strncmp(settings->listen, "unix:", 5) == 0) {
        cli_fail(CLI_USAGE, "--threads: several threads cannot share a unix socket; listen on a port");
        return false;
    }
    settings->upstream.answer_ms = timeout_us > 1000 ? (uint64_t)timeout_us / 1000 : 1;
    settings->upstream.connect_ms = connect_us > 1000 ? (uint64_t)connect_us / 1000 : 1;
    settings->upstream.ca_file = cli_value(args, "upstream-ca");
    settings->cert_file = cli_value(args, "cert");
    settings->key_file = cli_value(args, "key");
    settings->client_ca_file = cli_value(args, "client-ca");
    settings->plain = settings->upstream_plain = cli_flag(args, "plain");
    settings->finishes = cli_flag(args, "finishes");
    settings->trusted = options->trusted;
    while (settings->n_trusted < LIST_MAX &&
           (options->trusted[settings->n_trusted] = cli_values(args, "trusted", settings->n_trusted)) != NULL)
        settings->n_trusted++;
    settings->cors = options->cors;
    while (settings->n_cors < LIST_MAX &&
           (options->cors[settings->n_cors] = cli_values(args, "cors", settings->n_cors)) != NULL)
        settings->n_cors++;
    options->store = cli_value(args, "store");
    if (options->store == NULL && (cli_values(args, "guard", 0) != NULL || cli_value(args, "caller") != NULL)) {
        cli_fail(CLI_USAGE, "--guard and --caller need --store: keys and answers are kept there");
        return false;
    }
    return read_rules(cli, args, options) && read_caller(args, options) && check_options(options);
}

/* Those after the first one take the port that it was given. */
static semel_status open_loop(struct loops *loops, struct semel_gateway_settings *settings, char *address, size_t size,
                              struct semel_error *err)
{
    struct loop *loop = &loops->list[loops->n++];
    semel_status status = semel__http_new(&loop->http, NULL, err);
    if (status == SEMEL_OK)
        status = semel__gateway_open(&loop->gateway, loop->http, settings, err);
    const char *colon = strrchr(settings->listen, ':');
    if (status != SEMEL_OK || loops->n > 1 || semel__gateway_port(loop->gateway) == 0)
        return status;
    snprintf(address, size, "%.*s%u", colon != NULL ? (int)(colon + 1 - settings->listen) : 0, settings->listen,
             semel__gateway_port(loop->gateway));
    settings->listen = address;
    return SEMEL_OK;
}

static int open_and_serve(const struct cli *cli, struct options *options, struct keeping *keeping)
{
    static struct loops loops; /* for the threads, too */
    static char address[ADDRESS_TEXT];
    struct semel_gateway_settings *settings = &options->settings;
    struct semel_error err = {0};
    semel_status status = SEMEL_OK;
    settings->share_port = options->threads > 1;
    semel__gateway_settings_bound(settings, semel__descriptors_max() / 4 * 3 / (size_t)options->threads);
    while (loops.n < (size_t)options->threads && status == SEMEL_OK)
        status = open_loop(&loops, settings, address, sizeof address, &err);
    int code = status == SEMEL_OK        ? serve(cli, &loops, settings)
               : status == SEMEL_INVALID ? cli_fail(CLI_USAGE, "%s", err.text)
                                         : cli_fail(CLI_FAILED, "%s", err.text);
    for (size_t i = 0; i < loops.n; i++)
        semel__http_free(loops.list[i].http);
    keeping_stop(keeping);
    for (size_t i = 0; i < loops.n; i++)
        semel__gateway_close(loops.list[i].gateway);
    return code;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    static struct options options; /* for the threads, too */
    struct keeping keeping = {0};
    int code = CLI_OK;
    sigset_t signals;
#ifdef SEMEL_POINTS
    if (!semel__point_from_env())
        return CLI_USAGE;
#endif
    if (!read_options(cli, args, &options))
        return CLI_USAGE;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1);
    if (pthread_sigmask(SIG_BLOCK, &signals, NULL) != 0)
        return cli_fail(CLI_FAILED, "cannot block signals");
    semel__descriptors_raise();
    cli_keep_to_ourselves();
    if (options.store != NULL)
        code = keeping_start(args, &options, &keeping);
    options.settings.keeper = keeping.keeper;
    if (code == CLI_OK)
        code = open_and_serve(cli, &options, &keeping);
    keeping_stop(&keeping);
    semel__keeper_free(keeping.keeper);
    return code;
}

static const struct cli_option options[] = {
    {"listen", 0, "ADDRESS", "where clients connect: 127.0.0.1:8081, [::1]:8081 or unix:/path"},
    {"upstream", 0, "URL", "the server behind it: http://HOST:PORT, https://HOST:PORT or unix:/path"},
    {"store", 0, "URL", "guard idempotency keys, which are kept in this store: sqlite:/path or postgres://..."},
    {"guard", 0, "RULE...", "\"POST /v1/charges key=required\"; without a rule POST and PATCH with a key are guarded"},
    {"caller", 0, "HOW", "who a key belongs to: header:NAME, certificate, or key:NAME (a static API key)"},
    {"caller-from", 0, "NETWORK...", "a network whose header names the caller: 127.0.0.1/32; or unix"},
    {"anonymous", 0, NULL, "guard requests without a caller, too: they share their keys"},
    {"check", 0, "URL", "ask here, with the client's credentials, before an answer is replayed"},
    {"cors", 0, "ORIGIN...", "an origin whose pages may read refusals: https://shop.example"},
    {"finishes", 0, NULL, "the upstream finishes each key by its Semel-Token, in its own transaction"},
    {"lease", 0, "TIME", "how long a key is held without a renewal; 60s"},
    {"threads", 0, "N", "event loops that share the port; 1"},
    {"timeout", 0, "TIME", "how long the upstream may take to begin its answer; 30s"},
    {"connect", 0, "TIME", "how long a connection to the upstream may take; 5s"},
    {"trusted", 0, "NETWORK...", "a network whose X-Forwarded-* headers are believed: 10.0.0.0/8; or unix"},
    {"cert", 0, "FILE", "serve TLS with this certificate and its chain, PEM"},
    {"key", 0, "FILE", "the key of the certificate, PEM"},
    {"client-ca", 0, "FILE", "clients need a certificate of one of these CAs"},
    {"upstream-ca", 0, "FILE", "the CAs of an https upstream, instead of the system's"},
    {"plain", 0, NULL, "without TLS: listen on an address that is not loopback, reconcile and check other hosts"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_gateway = {
    .name = "gateway",
    .summary = "do HTTP requests with an idempotency key once, in front of one server",
    .operands = "",
    .help =
        "A reverse proxy for one server, behind the nginx, Envoy or load balancer that is already there. It passes\n"
        "requests and answers on in pieces, sends no request twice, and refuses what servers read in different\n"
        "ways. With --store it guards idempotency keys: the work is done once per key, and later requests get the\n"
        "first answer. SIGTERM and SIGINT stop it; requests that run may end within 30 seconds.\n"
        "\n"
        "  semel gateway --listen 127.0.0.1:8081 --upstream http://127.0.0.1:8000\n"
        "  semel gateway --listen 127.0.0.1:8081 --upstream http://127.0.0.1:8000 --store sqlite:/var/lib/keys.db \\\n"
        "    --caller header:X-User-Id --caller-from 127.0.0.1 --guard 'POST /v1/charges key=required'\n"
        "\n"
        "A rule is methods, a path, and words: key=required|optional|off, header=NAME or pointer=/JSON (where the\n"
        "key is), on_unknown=refuse|reconcile|retry, reconcile=URL, settle=TIME, wait=TIME, store_body=false,\n"
        "when_down=pass.\n",
    .options = options,
    .no_json = true,
    .run = run,
};
