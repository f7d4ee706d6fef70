/* SPDX-License-Identifier: MIT
 *
 * bench.c: `semel bench` and `semel bench inbox`: options, the store, and the output.
 *
 * A store with rows in its inbox is refused: a benchmark would add a million rows to them. Without --store the run
 * makes a folder of its own and removes it again; a named store is left as it is, for inspection.
 */
#define _GNU_SOURCE /* mkostemp */
#include "bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/cli.h"

#define MESSAGES 20000
#define ROUNDS 5
#define BATCH 500
#define PATH_BYTES 4096
#define CONNECTIONS 8
#define JSON_MAX 65536
#define FSYNC_TRIES 101
#define FSYNC_BLOCK 512

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

const volatile sig_atomic_t *bench_watch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &stop;
}

static const char *why(void)
{
    return strerror(errno); /* NOLINT(concurrency-mt-unsafe): there are no threads */
}

/* The rate of a case; 0: it was not measured. */
static double rate_of(const struct bench_result *result, const char *name, enum bench_ids ids, int connections)
{
    for (size_t i = 0; i < result->n; i++) {
        const struct bench_case *c = &result->cases[i];
        if (c->connections == connections && strcmp(c->name, name) == 0 && strcmp(c->ids, bench_ids_names[ids]) == 0)
            return c->per_s;
    }
    return 0;
}

/* ---- figures of the machine ---------------------------------------------------------------------- */

/* Without the cost of an fsync on this disk, rates of durable stores on two machines cannot be compared. */

static int cmp_double(const void *va, const void *vb)
{
    double a = *(const double *)va, b = *(const double *)vb;
    return (a > b) - (a < b);
}

double bench_percentile(double *values, size_t n, double share)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, cmp_double);
    size_t at = (size_t)(share * (double)(n - 1) + 0.5);
    return values[at < n ? at : n - 1];
}

static double measure_fsync(int fd)
{
    char block[FSYNC_BLOCK] = {0};
    double took_us[FSYNC_TRIES];
    for (size_t i = 0; i < FSYNC_TRIES; i++) {
        block[0] = (char)i;
        if (pwrite(fd, block, sizeof block, (off_t)(i * sizeof block)) != (ssize_t)sizeof block)
            return -1;
        int64_t start_us = semel__now(&semel__clock_real);
        if (fsync(fd) != 0)
            return -1;
        took_us[i] = (double)(semel__now(&semel__clock_real) - start_us);
    }
    return bench_percentile(took_us, FSYNC_TRIES, 0.5);
}

/* The median of fsyncs of a small file in the folder, in microseconds; negative: it cannot be written there. */
static double bench_fsync_us(const char *folder)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/semel-fsync-XXXXXX", folder);
    if (n < 0 || (size_t)n >= sizeof path)
        return -1;
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return -1;
    double us = measure_fsync(fd);
    close(fd);
    unlink(path);
    return us;
}

double bench_rss_mb(void)
{
    char line[256] = "";
    int64_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return 0;
    const char *first = fgets(line, sizeof line, file); /* size, resident, ... in pages */
    fclose(file);
    const char *blank = first != NULL ? strchr(first, ' ') : NULL;
    if (blank == NULL || !semel__str_int64((struct semel_str){blank + 1, strcspn(blank + 1, " ")}, &pages))
        return 0;
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

/* ---- the store ----------------------------------------------------------------------------------- */

struct place {
    char folder[PATH_BYTES]; /* of our own; "": none */
    char url[PATH_BYTES + 32];
    struct semel *s;
};

/* /tmp may be in memory, where an fsync is free and every rate is wrong. */
static int make_folder(struct place *place)
{
    const char *home = getenv("TMPDIR"); /* NOLINT(concurrency-mt-unsafe): there are no threads */
    int n = snprintf(place->folder, sizeof place->folder, "%s/semel-bench-XXXXXX",
                     home != NULL && home[0] != '\0' ? home : "/var/tmp");
    if (n < 0 || (size_t)n >= sizeof place->folder || mkdtemp(place->folder) == NULL) {
        place->folder[0] = '\0';
        return cli_fail(CLI_STORE, "no folder can be made for the store: %s; name one with --store", why());
    }
    snprintf(place->url, sizeof place->url, "sqlite:%s/bench.db", place->folder);
    return CLI_OK;
}

static void close_place(struct place *place)
{
    static const char *const endings[] = {"", "-wal", "-shm"};
    char path[PATH_BYTES + 32];
    semel_close(place->s);
    if (place->folder[0] == '\0')
        return;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        snprintf(path, sizeof path, "%s/bench.db%s", place->folder, endings[i]);
        unlink(path);
    }
    rmdir(place->folder);
}

static int open_place(struct place *place, const char *url)
{
    struct semel_error err;
    bool used = true;
    int code = url == NULL ? make_folder(place) : CLI_OK;
    if (code != CLI_OK)
        return code;
    url = url != NULL ? url : place->url;
    semel_status status = semel_open(&place->s, url, SEMEL_CREATE | SEMEL_MIGRATE, &err);
    if (status != SEMEL_OK)
        return cli_store_fail(url, status, &err);
    int rc = bench_sql_used(place->s, &used);
    if (rc != 0)
        return cli_store_fail(url, semel_fail_sqlite(place->s, rc, &err), &err);
    if (used)
        return cli_fail(CLI_REFUSED, BENCH_IN_USE);
    return CLI_OK;
}

/* ---- for programs -------------------------------------------------------------------------------- */

static void write_json(struct semel_buf *buf, const struct bench_options *options, const struct bench_result *result,
                       double fsync_us)
{
    semel__buf_addf(buf, "{\"bench\":\"%s\",\"%s\":%.0f,", result->name, result->server ? "commit_us" : "fsync_us",
                    result->server ? result->commit_us : fsync_us);
    semel__buf_addf(buf, "\"messages\":%lld,\"rounds\":%lld,\"batch\":%lld,\"payload_bytes\":%d,",
                    (long long)options->messages, (long long)options->rounds, (long long)options->batch, BENCH_PAYLOAD);
    semel__buf_addf(buf, "\"rss_start_mb\":%.1f,\"rss_end_mb\":%.1f,\"cases\":[", result->rss_start_mb,
                    result->rss_end_mb);
    for (size_t i = 0; i < result->n; i++) {
        const struct bench_case *c = &result->cases[i];
        semel__buf_addf(buf, "%s\n{\"name\":\"%s\",\"ids\":\"%s\",\"connections\":%d,\"per_s\":%.1f,", i > 0 ? "," : "",
                        c->name, c->ids, c->connections, c->per_s);
        semel__buf_addf(buf, "\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"rss_mb\":%.1f", c->p50_ms, c->p99_ms, c->rss_mb);
        if (result->server)
            semel__buf_addf(buf, ",\"round_trips\":%.4f,\"wal_bytes\":%.1f", c->trips, c->wal_bytes);
        semel__buf_add(buf, "}", 1);
    }
    semel__buf_addz(buf, "\n]}\n");
}

int bench_save(const char *path, struct semel_str text)
{
    FILE *file = fopen(path, "we");
    bool ok = file != NULL && fwrite(text.p, 1, text.n, file) == text.n;
    if (file != NULL && fclose(file) != 0)
        ok = false;
    return ok ? CLI_OK : cli_fail(CLI_FAILED, "%s cannot be written: %s", path, why());
}

/* ---- for people ---------------------------------------------------------------------------------- */

static int print_table(struct cli *cli, const struct bench_result *result)
{
    static const struct cli_column columns[] = {
        {"case", CLI_TEXT, false},        {"ids", CLI_TEXT, false},           {"per_s", CLI_NUMBER, false},
        {"ratio", CLI_NUMBER, false},     {"p50_ms", CLI_NUMBER, false},      {"p99_ms", CLI_NUMBER, false},
        {"rss_mb", CLI_NUMBER, false},    {"connections", CLI_NUMBER, false}, {"trips", CLI_NUMBER, false},
        {"wal_bytes", CLI_NUMBER, false},
    };
    enum { SERVER_ONLY = 3 };
    size_t n_columns = sizeof columns / sizeof columns[0] - (result->server ? 0 : SERVER_ONLY);
    struct cli_table *table = cli_table_new(cli, columns, n_columns);
    if (table == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < result->n; i++) {
        const struct bench_case *c = &result->cases[i];
        enum bench_ids ids = strcmp(c->ids, bench_ids_names[BENCH_ORDERED]) == 0 ? BENCH_ORDERED : BENCH_RANDOM;
        double base = rate_of(result, "handwritten", ids, c->connections);
        cli_table_text(table, semel__str(c->name));
        cli_table_text(table, semel__str(c->ids));
        cli_table_fixed(table, c->per_s, 0);
        cli_table_fixed(table, base > 0 ? c->per_s / base : 0, 2);
        cli_table_fixed(table, c->p50_ms, 3);
        cli_table_fixed(table, c->p99_ms, 3);
        cli_table_fixed(table, c->rss_mb, 1);
        if (!result->server)
            continue;
        cli_table_number(table, c->connections);
        cli_table_fixed(table, c->trips, 3);
        cli_table_fixed(table, c->wal_bytes, 0);
    }
    return cli_table_print(table);
}

static void say_ratio(const struct cli *cli, const struct bench_result *result, const char *what, const char *case_a,
                      const char *case_b)
{
    double ratio[BENCH_IDS];
    for (enum bench_ids ids = BENCH_ORDERED; ids < BENCH_IDS; ids++) {
        double base = rate_of(result, case_b, ids, 1);
        ratio[ids] = base > 0 ? rate_of(result, case_a, ids, 1) / base : 0;
        if (ratio[ids] <= 0) /* one of them was not measured */
            return;
    }
    cli_say(cli, "%-60s %6.2f with ordered ids, %6.2f with random ones", what, ratio[BENCH_ORDERED],
            ratio[BENCH_RANDOM]);
}

static int print(struct cli *cli, const struct bench_options *options, const struct bench_result *result,
                 double fsync_us)
{
    int code = print_table(cli, result);
    cli_say(cli, "%s", "");
    say_ratio(cli, result, "each / handwritten: what a batch saves", "each", "handwritten");
    say_ratio(cli, result, "each / limit: what deciding leaves of what the store can write", "each", "limit");
    if (result->server) {
        say_ratio(cli, result, "sets / limit: the same with one statement per batch", "sets", "limit");
        say_ratio(cli, result, "limit / blind: what not failing on a duplicate costs", "limit", "blind");
    }
    say_ratio(cli, result, "sets / handwritten-sets: what the record costs", "sets", "handwritten-sets");
    say_ratio(cli, result, "each / handwritten-sets: the same with a statement per message", "each",
              "handwritten-sets");
    say_ratio(cli, result, "sets / each: one statement per batch instead of one per message", "sets", "each");
    say_ratio(cli, result, "duplicates / each: refusing instead of handling", "duplicates", "each");
    say_ratio(cli, result, "updates / each: an account instead of a line in the ledger", "updates", "each");
    say_ratio(cli, result, "poison / each: one in a hundred cannot be handled", "poison", "each");
    cli_say(cli, "memory: %.1f MB at the start, %.1f MB at the end", result->rss_start_mb, result->rss_end_mb);
    if (result->server)
        cli_say(cli, "a commit takes %.0f us here (median)", result->commit_us);
    else
        cli_say(cli, "an fsync takes %.0f us here (median)", fsync_us);
    cli_say(cli, "%lld messages of %d bytes per case and round, batches of %lld, median of %lld rounds",
            (long long)options->messages, BENCH_PAYLOAD, (long long)options->batch, (long long)options->rounds);
    return code;
}

static int show(struct cli *cli, const struct cli_args *args, const struct bench_options *options,
                const struct bench_result *result, double fsync_us)
{
    const char *out = cli_value(args, "out");
    struct semel_buf buf;
    int code = CLI_OK;
    semel__buf_init(&buf, JSON_MAX);
    write_json(&buf, options, result, fsync_us);
    if (buf.failed)
        code = cli_fail(CLI_FAILED, "out of memory");
    else if (cli->json)
        fwrite(buf.p, 1, buf.n, stdout);
    else
        code = print(cli, options, result, fsync_us);
    if (code == CLI_OK && out != NULL)
        code = bench_save(out, semel__buf_str(&buf));
    semel__buf_done(&buf);
    return cli_finish(code);
}

/* ---- the command --------------------------------------------------------------------------------- */

static void progress(void *ctx, int64_t round, const char *name, const char *ids)
{
    const struct bench_options *options = ctx;
    fprintf(stderr, "\r\033[Kround %lld of %lld: %s, %s ids", (long long)round, (long long)options->rounds, name, ids);
}

static bool start(struct bench_options *options)
{
    bool watched = isatty(STDERR_FILENO) == 1;
    options->ctx = options;
    options->progress = watched ? progress : NULL;
    return watched;
}

static int finish(struct cli *cli, const struct cli_args *args, const struct bench_options *options,
                  const struct bench_result *result, double fsync_us)
{
    if (result->stopped)
        return cli_fail(CLI_INTERRUPTED, "interrupted: a part of the rounds is no result");
    return show(cli, args, options, result, fsync_us);
}

/* The folder of the database; "": it has none. */
static void folder_of(struct semel *s, char *out, size_t size)
{
    const char *path = sqlite3_db_filename(semel_native(s), "main");
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    int n = slash == NULL ? 0 : snprintf(out, size, "%.*s", (int)(slash - path > 0 ? slash - path : 1), path);
    if (n <= 0 || (size_t)n >= size)
        out[0] = '\0';
}

static int measure(struct cli *cli, const struct cli_args *args, struct bench_options *options, struct place *place)
{
    char folder[PATH_BYTES];
    struct bench_result result;
    struct semel_error err = {0};
    folder_of(place->s, folder, sizeof folder);
    double fsync_us = folder[0] != '\0' ? bench_fsync_us(folder) : -1;
    if (fsync_us < 0)
        return cli_fail(CLI_STORE, "the store must be a file in a folder that can be written");
    bool watched = start(options);
    semel_status status = bench_inbox(place->s, options, &result, &err);
    if (watched)
        fputs("\r\033[K", stderr);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "bench");
    return finish(cli, args, options, &result, fsync_us);
}

#ifdef SEMEL_WITH_POSTGRES
static int measure_server(struct cli *cli, const struct cli_args *args, struct bench_options *options, const char *url)
{
    struct bench_result result;
    struct semel_error err = {0};
    bool used = false, opened = false;
    bool watched = start(options);
    semel_status status = bench_pg(url, options, &result, &opened, &used, &err);
    if (watched)
        fputs("\r\033[K", stderr);
    if (status != SEMEL_OK && !opened)
        return cli_store_fail(url, status, &err);
    if (used)
        return cli_fail(CLI_REFUSED, BENCH_IN_USE);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "bench");
    return finish(cli, args, options, &result, 0);
}
#endif

static const char *const case_names[] = {"handwritten", "handwritten-sets", "each",  "sets", "duplicates", "limit",
                                         "blind",       "updates",          "poison"};

/* The first of the names, up to a comma. */
static size_t name_bytes(const char *names)
{
    return strcspn(names, ",");
}

bool bench_wanted(const struct bench_options *options, const char *name)
{
    for (const char *p = options->cases; p != NULL; p = strchr(p, ',') != NULL ? strchr(p, ',') + 1 : NULL)
        if (name_bytes(p) == strlen(name) && strncmp(p, name, strlen(name)) == 0)
            return true;
    return options->cases == NULL;
}

static bool cases_known(const char *names)
{
    for (const char *p = names; p != NULL; p = strchr(p, ',') != NULL ? strchr(p, ',') + 1 : NULL) {
        bool known = false;
        for (size_t i = 0; !known && i < sizeof case_names / sizeof case_names[0]; i++)
            known = name_bytes(p) == strlen(case_names[i]) && strncmp(p, case_names[i], name_bytes(p)) == 0;
        if (!known)
            return cli_fail(CLI_USAGE, "--cases: '%.*s' is none of the cases that `semel help bench inbox` lists",
                            (int)(name_bytes(p) < 40 ? name_bytes(p) : 40), p) == CLI_OK;
    }
    return true;
}

static int run_inbox(struct cli *cli, const struct cli_args *args)
{
    struct bench_options options = {0};
    static struct place place; /* its paths are long */
    if (!cli_int(args, "messages", 1, 1000000, MESSAGES, &options.messages) ||
        !cli_int(args, "rounds", 1, 99, ROUNDS, &options.rounds) ||
        !cli_int(args, "batch", 1, SEMEL_PROCESS_MAX, BATCH, &options.batch) ||
        !cli_int(args, "connections", 1, CONNECTIONS, CONNECTIONS, &options.connections))
        return CLI_USAGE;
    options.cases = cli_value(args, "cases");
    if (!cases_known(options.cases))
        return CLI_USAGE;
    const char *url = cli_value(args, "store");
    options.stop = bench_watch_signals(); /* from here on there is a folder to be removed */
#ifdef SEMEL_WITH_POSTGRES
    if (url != NULL && bench_pg_url(url))
        return measure_server(cli, args, &options, url);
#endif
    int code = open_place(&place, url);
    if (code == CLI_OK)
        code = measure(cli, args, &options, &place);
    close_place(&place);
    return code;
}

static const struct cli_option inbox_options[] = {
    {"store", 0, "URL",
     "a file of SQLite to fill, new or with an empty inbox (default: one that is removed at the end)"},
    {"messages", 0, "N", "messages per case and round (default: 20000)"},
    {"rounds", 0, "N", "rounds, of which the median counts (default: 5)"},
    {"batch", 0, "N", "messages per call (default: 500)"},
    {"connections", 0, "N", "PostgreSQL: measures 1, 2, 4 and 8 connections, up to this many (default: 8)"},
    {"cases", 0, "NAME,...", "only these cases (default: all)"},
    {"out", 0, "FILE", "also write the result as JSON"},
    {NULL, 0, NULL, NULL},
};

static const struct cli_command bench_inbox_command = {
    .name = "inbox",
    .summary = "measure the inbox against a handwritten one, and against what the store can do",
    .operands = "",
    .options = inbox_options,
    .run = run_inbox,
    .help =
        "The cases, each with time-ordered (UUIDv7) and with random ids (UUIDv4):\n"
        "  handwritten  the usual inbox: one transaction per message\n"
        "  handwritten-sets  the same over batches: one statement for the ids of a batch, one for the effects\n"
        "  each         the batch path, with one handler statement per message\n"
        "  sets         the batch path, with one handler statement per batch\n"
        "  duplicates   the batch path, with messages only that were completed before\n"
        "  limit        the same rows in the same batches, with nothing asked or decided\n"
        "  blind        PostgreSQL: the limit, if it could fail on a duplicate\n"
        "  updates      as each, but a message updates one of 10000 accounts\n"
        "  poison       as each, but one message in a hundred fails permanently\n"
        "\n"
        "On PostgreSQL every connection has a process of its own, and handlers of one statement per message queue it\n"
        "without waiting for the answer. Round trips and bytes of WAL are per message.\n"
        "\n"
        "A run takes about a minute on SQLite, and some ten on PostgreSQL. $SEMEL_STORE is not used: a benchmark\n"
        "fills what it runs on.\n"
        "Example: semel bench inbox --store sqlite:/srv/data/bench.db --out inbox.json\n"
        "         semel bench inbox --store postgres://postgres@localhost/bench",
};

static const struct cli_command *const children[] = {&bench_inbox_command, &bench_growth_command, &bench_sql_command,
                                                     NULL};

const struct cli_command cli_bench = {
    .name = "bench",
    .summary = "measure what this machine and its store can do",
    .operands = "",
    .children = children,
};
