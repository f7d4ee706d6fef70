/* SPDX-License-Identifier: MIT
 *
 * growth.c: `semel bench growth`: options and output.
 *
 * It needs a server: the store must be named and have an empty inbox, and keeps the rows of the run.
 */
#include "bench/growth.h"

#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/cli.h"

#define ROWS 1000000
#define ROWS_MAX INT64_C(1000000000)
#define STEPS 5
#define BATCH 500
#define CHUNK 1000
#define CHUNK_MAX 100000
#define JSON_MAX 131072
#define MB 1e6

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static double row_bytes(const struct growth_step *step)
{
    return share(step->table_bytes + step->index_bytes, (double)step->rows);
}

/* ---- for programs -------------------------------------------------------------------------------- */

static void write_step(struct semel_buf *buf, const struct growth_result *result, int64_t i, enum bench_ids ids)
{
    const struct growth_step *step = &result->steps[i][ids], *first = &result->steps[0][ids];
    semel__buf_addf(buf, "%s\n{\"name\":\"sets\",\"ids\":\"%s\",\"connections\":1,\"step\":%lld,\"rows\":%lld,",
                    i > 0 || ids > 0 ? "," : "", bench_ids_names[ids], (long long)i + 1, (long long)step->rows);
    semel__buf_addf(buf, "\"per_s\":%.1f,\"ratio\":%.3f,\"duplicates_per_s\":%.1f,", step->per_s,
                    share(step->per_s, first->per_s), step->duplicates_per_s);
    semel__buf_addf(buf, "\"table_bytes\":%.0f,\"index_bytes\":%.0f,\"row_bytes\":%.1f,\"wal_bytes\":%.1f}",
                    step->table_bytes, step->index_bytes, row_bytes(step), step->wal_bytes);
}

static void write_purge(struct semel_buf *buf, const struct growth_result *result, enum bench_ids ids)
{
    const struct growth_purge *purge = &result->purges[ids];
    semel__buf_addf(buf, "%s\n{\"ids\":\"%s\",\"rows\":%lld,\"chunks\":%lld,\"per_s\":%.1f,\"longest_ms\":%.3f,",
                    ids > 0 ? "," : "", bench_ids_names[ids], (long long)purge->rows, (long long)purge->chunks,
                    purge->per_s, purge->longest_ms);
    semel__buf_addf(buf, "\"calm_per_s\":%.1f,\"meanwhile_per_s\":%.1f,\"ratio\":%.3f}", purge->calm_per_s,
                    purge->meanwhile_per_s, share(purge->meanwhile_per_s, purge->calm_per_s));
}

static void write_json(struct semel_buf *buf, const struct growth_options *options, const struct growth_result *result)
{
    semel__buf_addf(buf, "{\"bench\":\"growth-postgres\",\"commit_us\":%.0f,\"rows\":%lld,\"steps\":%lld,",
                    result->commit_us, (long long)options->rows, (long long)options->steps);
    semel__buf_addf(buf, "\"batch\":%lld,\"chunk\":%lld,\"payload_bytes\":%d,", (long long)options->batch,
                    (long long)options->chunk, BENCH_PAYLOAD);
    semel__buf_addf(buf, "\"rss_start_mb\":%.1f,\"rss_end_mb\":%.1f,\"cases\":[", result->rss_start_mb,
                    result->rss_end_mb);
    for (int64_t i = 0; i < result->n_steps; i++)
        for (enum bench_ids ids = BENCH_ORDERED; ids < BENCH_IDS; ids++)
            write_step(buf, result, i, ids);
    semel__buf_addz(buf, "\n],\"purge\":[");
    for (enum bench_ids ids = BENCH_ORDERED; ids < BENCH_IDS; ids++)
        write_purge(buf, result, ids);
    semel__buf_addz(buf, "\n]}\n");
}

/* ---- for people ---------------------------------------------------------------------------------- */

static int print_steps(struct cli *cli, const struct growth_result *result)
{
    static const struct cli_column columns[] = {
        {"step", CLI_NUMBER, false},      {"ids", CLI_TEXT, false},        {"rows", CLI_NUMBER, false},
        {"per_s", CLI_NUMBER, false},     {"ratio", CLI_NUMBER, false},    {"duplicates_per_s", CLI_NUMBER, false},
        {"table_mb", CLI_NUMBER, false},  {"index_mb", CLI_NUMBER, false}, {"row_bytes", CLI_NUMBER, false},
        {"wal_bytes", CLI_NUMBER, false},
    };
    struct cli_table *table = cli_table_new(cli, columns, sizeof columns / sizeof columns[0]);
    if (table == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (int64_t i = 0; i < result->n_steps; i++)
        for (enum bench_ids ids = BENCH_ORDERED; ids < BENCH_IDS; ids++) {
            const struct growth_step *step = &result->steps[i][ids];
            cli_table_number(table, i + 1);
            cli_table_text(table, semel__str(bench_ids_names[ids]));
            cli_table_number(table, step->rows);
            cli_table_fixed(table, step->per_s, 0);
            cli_table_fixed(table, share(step->per_s, result->steps[0][ids].per_s), 2);
            cli_table_fixed(table, step->duplicates_per_s, 0);
            cli_table_fixed(table, step->table_bytes / MB, 1);
            cli_table_fixed(table, step->index_bytes / MB, 1);
            cli_table_fixed(table, row_bytes(step), 0);
            cli_table_fixed(table, step->wal_bytes, 0);
        }
    return cli_table_print(table);
}

static void say_ends(const struct cli *cli, const struct growth_result *result)
{
    const struct growth_step *last = result->steps[result->n_steps - 1];
    const struct growth_step *ordered = &last[BENCH_ORDERED], *random = &last[BENCH_RANDOM];
    cli_say(cli, "%s", "");
    cli_say(cli,
            "random / ordered at the last step: speed %.2f, duplicates %.2f, bytes per row %.2f, WAL per message %.2f",
            share(random->per_s, ordered->per_s), share(random->duplicates_per_s, ordered->duplicates_per_s),
            share(row_bytes(random), row_bytes(ordered)), share(random->wal_bytes, ordered->wal_bytes));
}

static void say_purge(const struct cli *cli, const struct growth_purge *purge, const char *ids)
{
    cli_say(cli,
            "purge, %s ids: %lld rows, %.0f per second in %lld chunks, the longest %.0f ms; new messages meanwhile "
            "%.0f per second, %.2f of the %.0f before",
            ids, (long long)purge->rows, purge->per_s, (long long)purge->chunks, purge->longest_ms,
            purge->meanwhile_per_s, share(purge->meanwhile_per_s, purge->calm_per_s), purge->calm_per_s);
}

static int print(struct cli *cli, const struct growth_options *options, const struct growth_result *result)
{
    int code = print_steps(cli, result);
    say_ends(cli, result);
    for (enum bench_ids ids = BENCH_ORDERED; ids < BENCH_IDS; ids++)
        say_purge(cli, &result->purges[ids], bench_ids_names[ids]);
    cli_say(cli, "a commit takes %.0f us here (median); memory: %.1f MB at the start, %.1f MB at the end",
            result->commit_us, result->rss_start_mb, result->rss_end_mb);
    cli_say(cli, "%lld rows of each kind, batches of %lld, chunks of %lld, one connection", (long long)options->rows,
            (long long)options->batch, (long long)options->chunk);
    return code;
}

static int show(struct cli *cli, const struct cli_args *args, const struct growth_options *options,
                const struct growth_result *result)
{
    const char *out = cli_value(args, "out");
    struct semel_buf buf;
    int code = CLI_OK;
    semel__buf_init(&buf, JSON_MAX);
    write_json(&buf, options, result);
    if (buf.failed)
        code = cli_fail(CLI_FAILED, "out of memory");
    else if (cli->json)
        fwrite(buf.p, 1, buf.n, stdout);
    else
        code = print(cli, options, result);
    if (code == CLI_OK && out != NULL)
        code = bench_save(out, semel__buf_str(&buf));
    semel__buf_done(&buf);
    return cli_finish(code);
}

/* ---- the command --------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_POSTGRES
static void progress(void *ctx, int64_t step, const char *doing)
{
    const struct growth_options *options = ctx;
    fprintf(stderr, "\r\033[Kstep %lld of %lld: %s", (long long)step, (long long)options->steps, doing);
}

static int measure(struct cli *cli, const struct cli_args *args, struct growth_options *options, const char *url)
{
    static struct growth_result result; /* it has many steps */
    struct semel_error err = {0};
    bool used = false, opened = false, watched = isatty(STDERR_FILENO) == 1;
    options->ctx = options;
    options->progress = watched ? progress : NULL;
    semel_status status = bench_growth_pg(url, options, &result, &opened, &used, &err);
    if (watched)
        fputs("\r\033[K", stderr);
    if (status != SEMEL_OK && !opened)
        return cli_store_fail(url, status, &err);
    if (used)
        return cli_fail(CLI_REFUSED, BENCH_IN_USE);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "bench");
    if (result.stopped)
        return cli_fail(CLI_INTERRUPTED, "interrupted: a part of the steps is no result");
    return show(cli, args, options, &result);
}
#endif

static int run_growth(struct cli *cli, const struct cli_args *args)
{
    struct growth_options options = {0};
    const char *url = cli_value(args, "store");
    if (!cli_int(args, "rows", 1, ROWS_MAX, ROWS, &options.rows) ||
        !cli_int(args, "steps", 1, GROWTH_STEPS_MAX, STEPS, &options.steps) ||
        !cli_int(args, "batch", 1, SEMEL_PROCESS_MAX, BATCH, &options.batch) ||
        !cli_int(args, "chunk", 1, CHUNK_MAX, CHUNK, &options.chunk))
        return CLI_USAGE;
    if (options.rows < options.steps)
        return cli_fail(CLI_USAGE, "--rows must not be below --steps");
    if (url == NULL)
        return cli_fail(CLI_USAGE, "name an empty database with --store, e.g. postgres://postgres@localhost/bench");
#ifdef SEMEL_WITH_POSTGRES
    if (bench_pg_url(url)) {
        options.stop = bench_watch_signals();
        return measure(cli, args, &options, url);
    }
#endif
    (void)cli;
    (void)show;
    return cli_fail(CLI_USAGE, "growth is measured on PostgreSQL only, and %.200s is none that this program can reach",
                    cli_store_shown(url));
}

static const struct cli_option growth_options[] = {
    {"store", 0, "URL", "a PostgreSQL database to fill, with an empty inbox"},
    {"rows", 0, "N", "rows of each kind of ids (default: 1000000)"},
    {"steps", 0, "N", "in how many steps (default: 5)"},
    {"batch", 0, "N", "messages per call (default: 500)"},
    {"chunk", 0, "N", "rows that a transaction purges (default: 1000)"},
    {"out", 0, "FILE", "also write the result as JSON"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command bench_growth_command = {
    .name = "growth",
    .summary = "fill the inbox step by step, with time-ordered and with random ids, and purge a quarter of it",
    .operands = "",
    .options = growth_options,
    .run = run_growth,
    .help =
        "Messages go through the batch path with one handler statement per batch, on one connection. At each\n"
        "step, for time-ordered ids (UUIDv7) and for random ones (UUIDv4) side by side: how many messages per second,\n"
        "and their ratio to the first step; how many duplicates of messages from all over the past; by how much\n"
        "table and indexes of the inbox have grown, and how much that is per row; bytes of WAL per message.\n"
        "\n"
        "At the end the oldest quarter of each is purged in chunks by another connection: rows per second, the\n"
        "longest chunk, and how many new messages per second were processed meanwhile, against before.\n"
        "\n"
        "The default takes some minutes. $SEMEL_STORE is not used: a benchmark fills what it runs on.\n"
        "Example: semel bench growth --store postgres://postgres@localhost/bench --rows 5000000 --steps 10",
};
