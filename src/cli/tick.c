/* SPDX-License-Identifier: MIT
 *
 * tick.c: `semel tick`: housekeeping (core/house.h) for those who have no settings file: programs that use SQL or the
 * library alone.
 *
 * Once, or with --every until SIGTERM or SIGINT. No handler runs here: a message that is due is left for whoever takes
 * it.
 *
 * Invariants: rounds are bounded and wait for no lock, so that any number of these processes, of daemons and of calls
 * of semel.tick() go side by side. Between rounds no transaction is open. With --every a store that cannot be reached
 * is no reason to end: the next round tries again. What must be changed by a person (no schema, an old one, no rights)
 * ends the command when it starts, and is logged once when it happens later.
 */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "cli/cli.h"
#include "core/house.h"

#define EVERY_MIN_US INT64_C(10000)
#define EVERY_MAX_US (INT64_C(3600) * 1000000)
#define RETRY_MAX_US (INT64_C(5) * 1000000)
#define CONSUMERS_MAX 1000

struct ticks {
    const struct cli *cli;
    const struct cli_args *args;
    const char *url;
    struct semel_store *store;
    struct semel_random rng;
    struct semel_house house;
    struct semel_log *log; /* of --every */
    int64_t every_us, max; /* every_us is 0: once */
    size_t done[SEMEL_HOUSE_STEPS], keys, consumers;
    struct semel_error damage; /* of the last round */
    bool down;                 /* the connection is to be made anew */
    int failures;              /* in a row */
    char said[256];            /* what was logged of them */
};

/* ---- a round ------------------------------------------------------------------------------------- */

static bool wants(void *ctx, struct semel_str consumer)
{
    const struct cli_args *args = ((const struct ticks *)ctx)->args;
    const char *name;
    for (size_t i = 0; (name = cli_values(args, "consumer", i)) != NULL; i++)
        if (semel__str_eqz(consumer, name))
            return true;
    return cli_values(args, "consumer", 0) == NULL;
}

static semel_status connect(struct ticks *t, struct semel_error *err)
{
    semel_status status;
    if (t->store != NULL)
        return t->down ? semel_store_reopen(t->store, err) : SEMEL_OK;
    status = cli_store_try(t->url, false, &t->store, err);
    if (status == SEMEL_OK)
        semel__house_init(&t->house, t->store, &t->rng, SEMEL_STR("semel tick"));
    return status;
}

/* *ret_full: as many rows were touched as a round may, and there may be more. Idempotency keys have no consumer. */
static semel_status run_round(struct ticks *t, bool *ret_full, struct semel_error *err)
{
    struct semel_house_round round = {.wants = wants, .ctx = t, .max = (size_t)t->max};
    size_t keys = 0;
    semel_status status = connect(t, err);
    *ret_full = false;
    t->down = status != SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    status = semel__house_round(&t->house, &round, err);
    if (status == SEMEL_OK && cli_values(t->args, "consumer", 0) == NULL)
        status = semel__house_keys(&t->house, (size_t)t->max, &keys, err);
    t->down = status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    for (size_t i = 0; i < SEMEL_HOUSE_STEPS; i++)
        t->done[i] += round.done[i];
    t->keys += keys;
    t->consumers = round.consumers;
    t->damage = round.damage;
    *ret_full = round.n >= (size_t)t->max || keys >= (size_t)t->max;
    return status;
}

/* ---- reports ------------------------------------------------------------------------------------- */

static int print_json(const struct ticks *t)
{
    struct semel_object object;
    semel__object_init(&object);
    semel__object_number(&object, "consumers", (int64_t)t->consumers);
    for (size_t i = 0; i < SEMEL_HOUSE_STEPS; i++)
        semel__object_number(&object, semel__house_step_name((enum semel_house_step)i), (int64_t)t->done[i]);
    semel__object_number(&object, "keys", (int64_t)t->keys);
    int code = cli_object_print(&object);
    return code != CLI_OK || fflush(stdout) == 0 ? code : CLI_FAILED;
}

static int print_sum(const struct ticks *t)
{
    if (t->cli->json)
        return print_json(t);
    cli_say(t->cli, "%zu consumer%s: recovered %zu, decided %zu, woken %zu, purged %zu; keys %zu", t->consumers,
            CLI_S(t->consumers), t->done[SEMEL_HOUSE_RECOVERED], t->done[SEMEL_HOUSE_DECIDED],
            t->done[SEMEL_HOUSE_WOKEN], t->done[SEMEL_HOUSE_PURGED], t->keys);
    return CLI_OK;
}

/* What the rounds since the last report did, if anything. */
static int report_done(struct ticks *t)
{
    size_t n = t->keys;
    int code = CLI_OK;
    for (size_t i = 0; i < SEMEL_HOUSE_STEPS; i++)
        n += t->done[i];
    if (n == 0)
        return code;
    if (t->cli->json)
        code = print_json(t);
    else
        SEMEL__LOG(t->log, SEMEL_LOG_INFO, "housekeeping", SEMEL_F_INT("consumers", t->consumers),
                   SEMEL_F_INT("recovered", t->done[SEMEL_HOUSE_RECOVERED]),
                   SEMEL_F_INT("decided", t->done[SEMEL_HOUSE_DECIDED]),
                   SEMEL_F_INT("woken", t->done[SEMEL_HOUSE_WOKEN]), SEMEL_F_INT("purged", t->done[SEMEL_HOUSE_PURGED]),
                   SEMEL_F_INT("keys", t->keys));
    memset(t->done, 0, sizeof(t->done));
    t->keys = 0;
    return code;
}

/* A failure, or a consumer that was passed over: logged when it is news, and when it is over. */
static void report_trouble(struct ticks *t, semel_status status, const struct semel_error *err, int64_t wait_us)
{
    const char *text = status != SEMEL_OK ? err->text : t->damage.status != SEMEL_OK ? t->damage.text : "";
    if (status == SEMEL_OK && t->failures > 0)
        SEMEL__LOG(t->log, SEMEL_LOG_INFO, "the store is back");
    if (text[0] != '\0' && strcmp(text, t->said) != 0) {
        if (status == SEMEL_OK)
            SEMEL__LOG(t->log, SEMEL_LOG_ERROR, "no housekeeping for a consumer", SEMEL_F_Z("error", text));
        else
            SEMEL__LOG(t->log, status == SEMEL_INVALID ? SEMEL_LOG_ERROR : SEMEL_LOG_WARN, "the store fails; retrying",
                       SEMEL_F_Z("error", text), SEMEL_F_INT("retry_ms", wait_us / 1000));
    }
    snprintf(t->said, sizeof(t->said), "%s", text);
    t->failures = status == SEMEL_OK ? 0 : t->failures + 1;
}

/* ---- once, and until it is stopped --------------------------------------------------------------- */

static int fail_round(struct ticks *t, semel_status status, const struct semel_error *err)
{
    if (t->store == NULL)
        return cli_store_refused(t->args, t->url, status, err);
    return cli_fail_error(status, err, "housekeeping");
}

static int check_consumers(const struct ticks *t)
{
    if (t->consumers == 0 && cli_values(t->args, "consumer", 0) != NULL)
        return cli_fail(CLI_NOTHING, "the store has no such consumer: %s", cli_values(t->args, "consumer", 0));
    return CLI_OK;
}

static int tick_once(struct ticks *t)
{
    struct semel_error err = {0};
    bool full = true;
    while (full) {
        semel_status status = run_round(t, &full, &err);
        if (status != SEMEL_OK)
            return fail_round(t, status, &err);
    }
    int code = check_consumers(t);
    if (code == CLI_OK)
        code = print_sum(t);
    if (code == CLI_OK && t->damage.status != SEMEL_OK)
        code = cli_fail(CLI_FAILED, "a consumer was passed over: %s", t->damage.text);
    return code;
}

/* The signal that came meanwhile, or 0. */
static int wait_signal(int64_t us)
{
    struct timespec span = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    int signal = sigtimedwait(&set, NULL, &span);
    return signal > 0 ? signal : 0;
}

static int64_t wait_of(struct ticks *t, semel_status status, bool full)
{
    int64_t retry_us = t->every_us << (t->failures < 8 ? t->failures : 8);
    if (status == SEMEL_OK)
        return full ? 0 : t->every_us;
    if (retry_us > RETRY_MAX_US)
        retry_us = RETRY_MAX_US > t->every_us ? RETRY_MAX_US : t->every_us;
    return retry_us / 2 + (int64_t)semel__random_below(&t->rng, (uint64_t)retry_us / 2 + 1);
}

static int tick_every(struct ticks *t)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL); /* NOLINT(concurrency-mt-unsafe): there are no threads */
    SEMEL__LOG(t->log, SEMEL_LOG_INFO, "housekeeping starts", SEMEL_F_Z("store", cli_store_shown(t->url)),
               SEMEL_F_INT("every_ms", t->every_us / 1000));
    for (bool first = true;; first = false) {
        struct semel_error err = {0};
        bool full = false;
        semel_status status = run_round(t, &full, &err);
        if (first && status == SEMEL_INVALID)
            return fail_round(t, status, &err);
        int64_t wait_us = wait_of(t, status, full);
        report_trouble(t, status, &err, wait_us);
        int code = report_done(t);
        if (code != CLI_OK)
            return code;
        semel__log_tick(t->log);
        int signal = wait_signal(wait_us);
        if (signal != 0) {
            SEMEL__LOG(t->log, SEMEL_LOG_INFO, "stopped", SEMEL_F_INT("signal", signal));
            return CLI_OK;
        }
    }
}

/* ---- the command --------------------------------------------------------------------------------- */

static int read_options(struct ticks *t)
{
    int code = CLI_OK;
    struct semel_error err = {0};
    size_t n = 0;
    if (!cli_int(t->args, "max", 1, 1000000, 1000, &t->max) || !cli_duration(t->args, "every", 0, &t->every_us))
        return CLI_USAGE;
    if (cli_value(t->args, "every") != NULL && (t->every_us < EVERY_MIN_US || t->every_us > EVERY_MAX_US))
        return cli_fail(CLI_USAGE, "--every is '%s'; it must be 10ms to 1h", cli_value(t->args, "every"));
    for (const char *name; (name = cli_values(t->args, "consumer", n)) != NULL; n++)
        if (semel__id_check("--consumer", semel__str(name), 1, &err) != SEMEL_OK)
            return cli_fail(CLI_USAGE, "%s", err.text);
    if (n > CONSUMERS_MAX)
        return cli_fail(CLI_USAGE, "--consumer is given %zu times; at most %d are allowed", n, CONSUMERS_MAX);
    t->url = cli_store_url(t->args, &code);
    return code;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    struct ticks t = {.cli = cli, .args = args};
    struct semel_error err = {0};
    int code = read_options(&t);
    if (code != CLI_OK)
        return code;
    semel__random_seed_os(&t.rng);
    if (t.every_us > 0 && semel__log_new(&t.log, STDERR_FILENO, cli->json ? SEMEL_LOG_JSON : SEMEL_LOG_HUMAN,
                                         SEMEL_LOG_INFO, NULL, &err) != SEMEL_OK)
        return cli_fail(CLI_FAILED, "%s", err.text);
    code = t.every_us > 0 ? tick_every(&t) : tick_once(&t);
    if (t.store != NULL) {
        semel__house_done(&t.house);
        semel_store_close(t.store);
    }
    semel__log_free(t.log);
    return code;
}

static const struct cli_option options[] = {
    CLI_STORE_OPTION,
    {"every", 'e', "TIME", "repeat after this time, such as 1s, until SIGTERM (default: once)"},
    {"consumer", 'c', "NAME...", "only this consumer; may be given several times (default: all, and idempotency keys)"},
    {"max", 0, "N", "rows per round (default: 1000)"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_tick = {
    .name = "tick",
    .summary = "end expired leases, decide gaps and purge, for consumers without a settings file",
    .options = options,
    .help =
        "What time does to stored messages by itself: leases that ran out end, missing versions are decided when\n"
        "their time is over, rows that are first in their key are woken, old records are purged; the same for\n"
        "idempotency keys. Each consumer has its stored settings (semel consumer). No handler runs: your program\n"
        "takes what is due (inbox_take), or a route with `from: inbox` runs it. A running `semel run` does all of\n"
        "this, too. On PostgreSQL `SELECT semel.tick()`, called by pg_cron, is the same.\n"
        "\n"
        "Any number of these processes go side by side; they wait for no lock. Without --every the command ends\n"
        "when nothing is left to do, for cron. With --every it logs to stderr what it did, outlives restarts of\n"
        "the server, and ends on SIGTERM or SIGINT; with --json it prints an object per round that did something.\n"
        "The role needs the rights of a worker (sql/postgres/roles.sql).\n"
        "\n"
        "Exit codes: 0 done, or stopped by a signal; 1 the settings of a consumer cannot be read, the others were\n"
        "served; 2 the command line is wrong; 3 there is no such consumer; 5 the store is down, has no schema or an\n"
        "old one, or the role has no rights.\n"
        "\n"
        "Examples\n"
        "  semel tick --store postgres://worker@db/shop --every 1s\n"
        "  semel tick --store sqlite:shop.db --consumer billing --json",
    .run = run,
};
