/* SPDX-License-Identifier: MIT
 *
 * run.c: `semel run`: reads the settings and gives them to the daemon.
 *
 * Invariants: a file with a mistake starts nothing. What the daemon says goes to stderr, in the format that the
 * settings ask for.
 */
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/point.h"
#include "cli/frame.h"
#include "cli/cli.h"
#include "conf/conf.h"
#include "daemon/daemon.h"

static int fail_to_start(const struct semel_conf *conf, semel_status status, const struct semel_error *err)
{
    if (err->code <= SEMEL_STORE_NO_SCHEMA && err->code >= SEMEL_STORE_NO_DATABASE && status == SEMEL_INVALID)
        return cli_store_fail(conf->store.p, status, err);
    return cli_fail_error(status, err, "semel cannot start");
}

/* Reads the settings again, for SIGHUP. Reports mistakes, which change nothing. */
static struct semel_conf *reread(void *ctx)
{
    struct semel_conf *conf = NULL;
    if (strcmp(ctx, "-") != 0) /* stdin was read already */
        (void)cli_conf_load(ctx, &conf);
    return conf;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): it becomes a void * */
static int run_daemon(char *file, const struct semel_conf *conf)
{
    char path[PATH_MAX] = "stdin";
    struct semel_daemon_options options = {.stores = cli_store_drivers(), .file = path, .reread = reread, .ctx = file};
    struct semel_error err = {0};
    struct semel_daemon *daemon = NULL;
    bool clean = true;
    if (strcmp(file, "-") != 0 && realpath(file, path) == NULL)
        snprintf(path, sizeof path, "%s", file);
    semel_status status = semel__log_new(&options.log, STDERR_FILENO, conf->log.format, conf->log.level, NULL, &err);
    if (status == SEMEL_OK)
        status = semel__daemon_new(&daemon, conf, &options, &err);
    int code = status == SEMEL_OK ? CLI_OK : fail_to_start(conf, status, &err);
    if (status == SEMEL_OK) {
        status = semel__daemon_run(daemon, &clean, &err);
        if (status != SEMEL_OK)
            code = cli_fail_error(status, &err, "semel stopped");
    }
    semel__daemon_free(daemon);
    semel__log_free(options.log);
    return code;
}

/* Every thread of a route and of its client library would get an arena of its own, each of which keeps what it once
 * needed. */
static void bound_arenas(void)
{
#ifdef M_ARENA_MAX
    (void)mallopt(M_ARENA_MAX, 2); /* NOLINT(concurrency-mt-unsafe): there are no threads yet */
#endif
}

void cli_keep_to_ourselves(void)
{
    struct rlimit cores;
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (getrlimit(RLIMIT_CORE, &cores) == 0) {
        cores.rlim_cur = 0;
        (void)setrlimit(RLIMIT_CORE, &cores);
    }
}

static int relay_once(char *file, const struct semel_conf *conf)
{
    struct semel_daemon_options options = {.stores = cli_store_drivers(), .file = file};
    struct semel_relay_once done = {0};
    struct semel_error err = {0};
    semel_status status = semel__log_new(&options.log, STDERR_FILENO, conf->log.format, conf->log.level, NULL, &err);
    if (status == SEMEL_OK)
        status = semel__daemon_relay_once(conf, &options, &done, &err);
    semel__log_free(options.log);
    if (status != SEMEL_OK)
        return fail_to_start(conf, status, &err);
    printf("published %" PRIu64 ", left %" PRId64 ", aside %" PRId64 "\n", done.published, done.left, done.aside);
    if (done.left + done.aside == 0)
        return CLI_OK;
    return cli_fail(CLI_FAILED, "events are left: %s",
                    done.why[0] != '\0' ? done.why
                    : done.left > 0     ? "they came after the start"
                                        : "they stand aside: semel outbox ls --aside");
}

/* `semel run` and `semel relay` with a file of settings. */
static int run_file(const struct cli_args *args, bool relay)
{
    char *file = (char *)(uintptr_t)cli_operand(args, 0);
    struct semel_conf *conf = NULL;
#ifdef SEMEL_POINTS
    if (!semel__point_from_env())
        return CLI_USAGE;
#endif
    bound_arenas();
    semel__descriptors_raise();
    cli_keep_to_ourselves();
    int code = cli_conf_load(file, &conf);
    if (code == CLI_OK && relay) {
        conf->n_routes = conf->n_gateways = 0;
        conf->schedule.others = false; /* it publishes, and does nothing else */
        if (conf->n_outboxes == 0)
            code = cli_fail(CLI_USAGE, "%s has no outboxes: there is nothing to relay", file);
        else
            code = cli_flag(args, "once") ? relay_once(file, conf) : run_daemon(file, conf);
    } else if (code == CLI_OK) {
        code = run_daemon(file, conf);
    }
    semel__conf_free(conf);
    return code;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    (void)cli;
    return run_file(args, false);
}

static int relay(struct cli *cli, const struct cli_args *args)
{
    (void)cli;
    return run_file(args, true);
}

static const struct cli_option relay_options[] = {
    {"once", 0, NULL, "publish what is committed now and can go, then end"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_relay = {
    .name = "relay",
    .summary = "publish the events of the outbox, and nothing else",
    .operands = "FILE",
    .operands_min = 1,
    .operands_max = 1,
    .no_json = true,
    .options = relay_options,
    .help = "Runs the outboxes of a file of settings, and none of its routes; `semel run FILE` runs both. Any number\n"
            "of relays on any number of machines share the work. An event is deleted after the broker confirmed it;\n"
            "a relay that is killed in between publishes it again, under the same id.\n"
            "\n"
            "With --once, for cron, it publishes what was committed when it began and can go, and ends. Shards that\n"
            "another relay has are waited for until its lease would be over if it had been killed.\n"
            "\n"
            "Exit codes with --once: 0 no event is left; 1 some are, and stderr says why: which relay has their\n"
            "shards, which destination is down, that they stand aside, or that they came after the start; 2 the\n"
            "settings have no outbox; 5 the database cannot be used. Without it as of semel run.\n"
            "\n"
            "Example\n"
            "  semel relay semel.yaml --once",
    .run = relay,
};

const struct cli_command cli_run = {
    .name = "run",
    .summary = "consume, handle, retry, recover and purge, as a file of settings says",
    .operands = "FILE",
    .operands_min = 1,
    .operands_max = 1,
    .no_json = true,
    .help = "Each route reads its source, admits every message through the inbox of the store, and runs its handler.\n"
            "Retries, recovery of stuck work, missing versions and purging happen by themselves, in every process;\n"
            "any number of processes on any number of machines may run the same routes. `semel check FILE` says\n"
            "beforehand what is wrong with the settings and what each route promises. The store must have been\n"
            "made by `semel migrate`. FILE may be - for stdin.\n"
            "\n"
            "Signals\n"
            "  TERM, INT   take nothing new, finish what runs or give it back, within stop_within; the second one,\n"
            "              or the end of that time, stops at once: what ran is rolled back and comes again\n"
            "  HUP         read certificates, tokens and secrets of signatures again\n"
            "The process can be killed at any moment: nothing is lost, and nothing takes effect twice.\n"
            "\n"
            "Exit code 0: stopped, and everything was finished or given back. 128 + the signal: stopped at once.\n"
            "\n"
            "Example\n"
            "  semel run semel.yaml",
    .run = run,
};
