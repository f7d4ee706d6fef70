/* SPDX-License-Identifier: MIT
 *
 * sql.c: `semel bench sql`: what PostgreSQL's SQL functions cost beside an inbox that is written by hand.
 *
 * The handwritten inbox is what most people write: INSERT ... ON CONFLICT DO NOTHING into a table of three columns, and
 * the effect, in one transaction. One process drives all connections with prepared statements, one statement at a
 * time on each, as pgbench does. In each round every case runs once, so that a checkpoint or a busy machine hits all
 * of them alike; a ratio is the median of the ratios of the rounds.
 *
 * Invariants: every answer is the one that the case expects, and in the end the ledger has every message once, or there
 * is no result.
 */
#include "bench/bench.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/cli.h"

#define MESSAGES 2000
#define ROUNDS 5
#define ROUNDS_MAX 99
#define BATCH 100
#define CONNECTIONS 8
#define JSON_MAX 65536

#ifdef SEMEL_WITH_POSTGRES
#include <errno.h>
#include <libpq-fe.h>
#include <poll.h>

#include "bench/pg.h"

#define STEPS 5
#define ID_BYTES 33
#define ANSWER_MS 60000

enum statement { S_BEGIN, S_HAND, S_EFFECT, S_ASK, S_DONE, S_ASK_MANY, S_EFFECT_MANY, S_DONE_MANY, S_COMMIT, S_COUNT };

/* $1 is the id of a message, or the messages of a batch as JSON. */
static const char *const statements[S_COUNT] = {
    [S_BEGIN] = "BEGIN",
    [S_HAND] = "INSERT INTO bench_sql_inbox (consumer, message_id) VALUES ('bench-sql', $1::text) "
               "ON CONFLICT DO NOTHING RETURNING 'run'",
    [S_EFFECT] = "INSERT INTO bench_sql_ledger (message_id, amount) VALUES ($1::text, 7)",
    [S_ASK] = "SELECT act FROM semel.inbox_begin('bench-sql', $1::text)",
    [S_DONE] = "SELECT semel.inbox_done('bench-sql', $1::text)",
    [S_ASK_MANY] = "SELECT act FROM semel.inbox_begin_many('bench-sql', $1::jsonb)",
    [S_EFFECT_MANY] = "INSERT INTO bench_sql_ledger (message_id, amount) "
                      "SELECT m.message_id, 7 FROM jsonb_to_recordset($1::jsonb) AS m (message_id text)",
    [S_DONE_MANY] = "SELECT semel.inbox_done_many('bench-sql', $1::jsonb)",
    [S_COMMIT] = "COMMIT",
};

struct kind {
    const char *name, *base; /* base: NULL, or what it is compared with */
    enum statement steps[STEPS];
    const char *answer; /* of the statement that asks; NULL: it has no row */
    bool again, many;   /* messages that are done already; a batch each time */
};

static const struct kind kinds[] = {
    {"handwritten", NULL, {S_BEGIN, S_HAND, S_EFFECT, S_COMMIT}, "run", false, false},
    {"begin", "handwritten", {S_BEGIN, S_ASK, S_EFFECT, S_DONE, S_COMMIT}, "run", false, false},
    {"handwritten-duplicate", NULL, {S_BEGIN, S_HAND, S_COMMIT}, NULL, true, false},
    {"duplicate", "handwritten-duplicate", {S_BEGIN, S_ASK, S_COMMIT}, "ack", true, false},
    {"begin-many", "handwritten", {S_BEGIN, S_ASK_MANY, S_EFFECT_MANY, S_DONE_MANY, S_COMMIT}, "run", false, true},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static const int widths[] = {1, CONNECTIONS};
#define WIDTHS (sizeof widths / sizeof widths[0])

struct lane {
    struct semel *s;
    PGconn *conn;
    int step;
    bool idle;
    struct semel_buf given; /* $1 of this transaction */
};

struct sql_bench {
    const struct bench_options *options;
    struct lane lanes[CONNECTIONS];
    struct semel_random rng;
    int64_t effects; /* that the ledger must have */
    char old[ID_BYTES];
    double per_s[WIDTHS][KINDS][ROUNDS_MAX];
    double commit_us;
};

/* ---- a transaction ------------------------------------------------------------------------------- */

static semel_status sql_failed(PGconn *conn, struct semel_error *err)
{
    return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN, "%.300s", PQerrorMessage(conn));
}

static semel_status exec_sql(PGconn *conn, const char *sql, struct semel_error *err)
{
    PGresult *result = PQexec(conn, sql);
    bool ok = PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_TUPLES_OK;
    semel_status status = ok ? SEMEL_OK : sql_failed(conn, err);
    PQclear(result);
    return status;
}

static void new_id(struct sql_bench *b, char id[ID_BYTES])
{
    snprintf(id, ID_BYTES, "%016llx%016llx", (unsigned long long)semel__random_next(&b->rng),
             (unsigned long long)semel__random_next(&b->rng));
}

/* The messages of the next transaction; gives how many. */
static int64_t prepare(struct sql_bench *b, const struct kind *kind, struct lane *lane)
{
    char id[ID_BYTES];
    int64_t n = kind->many ? b->options->batch : 1;
    lane->given.n = 0;
    for (int64_t i = 0; i < n && kind->many; i++) {
        new_id(b, id);
        semel__buf_addf(&lane->given, "%s{\"message_id\":\"%s\"}", i > 0 ? "," : "[", id);
    }
    if (!kind->many) {
        new_id(b, id);
        semel__buf_addz(&lane->given, kind->again ? b->old : id);
    }
    semel__buf_add(&lane->given, kind->many ? "]" : "", kind->many ? 2 : 1); /* with its end */
    b->effects += kind->again ? 0 : n;
    lane->step = 0;
    lane->idle = false;
    return n;
}

static semel_status send_step(const struct kind *kind, struct lane *lane, struct semel_error *err)
{
    enum statement which = kind->steps[lane->step];
    const char *value = lane->given.p;
    char name[16];
    bool bare = which == S_BEGIN || which == S_COMMIT;
    snprintf(name, sizeof name, "sql_%d", (int)which);
    if (lane->given.failed)
        return semel__fail_memory(err);
    if (PQsendQueryPrepared(lane->conn, name, bare ? 0 : 1, &value, NULL, NULL, 0) != 1)
        return sql_failed(lane->conn, err);
    return SEMEL_OK;
}

static semel_status check(const struct sql_bench *b, const struct kind *kind, enum statement which,
                          const PGresult *result, struct semel_error *err)
{
    int rows = which == S_ASK_MANY ? (int)b->options->batch : 1;
    if (which == S_COMMIT && strcmp(PQcmdStatus((PGresult *)(uintptr_t)result), "COMMIT") != 0)
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN, "%s: a COMMIT was refused", kind->name);
    if (which != S_HAND && which != S_ASK && which != S_ASK_MANY)
        return SEMEL_OK;
    if (PQntuples(result) != (kind->answer != NULL ? rows : 0))
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN, "%s: %d answers", kind->name, PQntuples(result));
    for (int i = 0; kind->answer != NULL && i < PQntuples(result); i++)
        if (strcmp(PQgetvalue(result, i, 0), kind->answer) != 0)
            return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN, "%s: the answer is %.20s", kind->name,
                               PQgetvalue(result, i, 0));
    return SEMEL_OK;
}

/* Reads what has come; where the answer of a statement is whole, the next one is sent, or the lane is idle. */
static semel_status advance(const struct sql_bench *b, const struct kind *kind, struct lane *lane,
                            struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (PQconsumeInput(lane->conn) != 1)
        return sql_failed(lane->conn, err);
    while (status == SEMEL_OK && !lane->idle && PQisBusy(lane->conn) == 0) {
        PGresult *result = PQgetResult(lane->conn);
        enum statement which = kind->steps[lane->step];
        if (result == NULL) {
            lane->idle = which == S_COMMIT;
            lane->step++;
            if (!lane->idle)
                status = send_step(kind, lane, err);
            continue;
        }
        if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
            status = sql_failed(lane->conn, err);
        else
            status = check(b, kind, which, result, err);
        PQclear(result);
    }
    return status;
}

/* ---- a round ------------------------------------------------------------------------------------- */

static semel_status wait_for_any(struct lane *lanes, int n, struct semel_error *err)
{
    struct pollfd fds[CONNECTIONS];
    for (int i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = lanes[i].idle ? -1 : PQsocket(lanes[i].conn), .events = POLLIN};
    int got = poll(fds, (nfds_t)n, ANSWER_MS);
    if (got == 0)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the server has not answered for a minute");
    return got > 0 || errno == EINTR ? SEMEL_OK : semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "poll failed");
}

/* One case on n connections, until so many messages have been processed. */
static semel_status run_kind(struct sql_bench *b, const struct kind *kind, int n, double *ret_per_s,
                             struct semel_error *err)
{
    int64_t started = 0, want = b->options->messages, start_us = semel__now(&semel__clock_real);
    semel_status status = SEMEL_OK;
    for (int busy = 1; status == SEMEL_OK && busy > 0;) {
        busy = 0;
        for (int i = 0; status == SEMEL_OK && i < n; i++) {
            struct lane *lane = &b->lanes[i];
            if (lane->idle && started < want && *b->options->stop == 0) {
                started += prepare(b, kind, lane);
                status = send_step(kind, lane, err);
            }
            busy += !lane->idle;
        }
        if (status == SEMEL_OK && busy > 0)
            status = wait_for_any(b->lanes, n, err);
        for (int i = 0; status == SEMEL_OK && i < n; i++)
            if (!b->lanes[i].idle)
                status = advance(b, kind, &b->lanes[i], err);
    }
    int64_t took_us = semel__now(&semel__clock_real) - start_us;
    *ret_per_s = (double)started * 1e6 / (double)(took_us > 0 ? took_us : 1);
    return status;
}

static semel_status run_rounds(struct sql_bench *b, struct semel_error *err)
{
    const struct bench_options *options = b->options;
    semel_status status = SEMEL_OK;
    double ignored;
    /* The first time each statement is prepared and planned. */
    for (size_t k = 0; status == SEMEL_OK && k < KINDS; k++)
        status = run_kind(b, &kinds[k], CONNECTIONS, &ignored, err);
    for (int64_t round = 0; status == SEMEL_OK && round < options->rounds && *options->stop == 0; round++)
        for (size_t w = 0; w < WIDTHS; w++)
            for (size_t k = 0; status == SEMEL_OK && k < KINDS && *options->stop == 0; k++) {
                if (options->progress != NULL)
                    options->progress(options->ctx, round + 1, kinds[k].name, widths[w] == 1 ? "1" : "8");
                status = run_kind(b, &kinds[k], widths[w], &b->per_s[w][k][round], err);
            }
    return status;
}

/* ---- the database -------------------------------------------------------------------------------- */

static semel_status open_lanes(struct sql_bench *b, const char *url, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (int i = 0; status == SEMEL_OK && i < CONNECTIONS; i++) {
        struct lane *lane = &b->lanes[i];
        lane->idle = true;
        semel__buf_init(&lane->given, SEMEL_PROCESS_MAX * (ID_BYTES + 20));
        if (lane->s == NULL)
            status = semel_open(&lane->s, url, 0, err);
        if (status == SEMEL_OK)
            lane->conn = semel_native(lane->s);
        for (int j = 0; status == SEMEL_OK && j < S_COUNT; j++) {
            char name[16];
            snprintf(name, sizeof name, "sql_%d", j);
            PGresult *result = PQprepare(lane->conn, name, statements[j], 0, NULL);
            if (PQresultStatus(result) != PGRES_COMMAND_OK)
                status = sql_failed(lane->conn, err);
            PQclear(result);
        }
    }
    return status;
}

static semel_status make_tables(struct sql_bench *b, PGconn *conn, struct semel_error *err)
{
    char sql[512];
    new_id(b, b->old);
    snprintf(sql, sizeof sql,
             "CREATE TABLE bench_sql_inbox (consumer text, message_id text, processed_at timestamptz DEFAULT now(), "
             "PRIMARY KEY (consumer, message_id)); CREATE TABLE bench_sql_ledger (message_id text, amount bigint); "
             "INSERT INTO bench_sql_inbox VALUES ('bench-sql', '%s'); SELECT * FROM semel.inbox_begin('bench-sql', "
             "'%s'); SELECT semel.inbox_done('bench-sql', '%s')",
             b->old, b->old, b->old);
    return exec_sql(conn, sql, err);
}

static semel_status check_books(struct sql_bench *b, PGconn *conn, struct semel_error *err)
{
    double found = 0;
    semel_status status = bench_pg_number(conn, "SELECT count(*) FROM bench_sql_ledger WHERE amount = 7", &found, err);
    if (status == SEMEL_OK && (int64_t)found != b->effects)
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN, "the ledger has %.0f effects of %lld", found,
                           (long long)b->effects);
    return status;
}

static semel_status measure(struct sql_bench *b, const char *url, bool *ret_opened, bool *ret_used,
                            struct semel_error *err)
{
    semel_status status = semel_open(&b->lanes[0].s, url, SEMEL_CREATE | SEMEL_MIGRATE, err);
    *ret_opened = status == SEMEL_OK;
    PGconn *conn = status == SEMEL_OK ? semel_native(b->lanes[0].s) : NULL;
    semel__random_seed(&b->rng, (uint64_t)semel__now(&semel__clock_real));
    if (status == SEMEL_OK)
        status = bench_pg_measure(conn, ret_used, &b->commit_us, err);
    if (status == SEMEL_OK && !*ret_used)
        status = make_tables(b, conn, err);
    if (status == SEMEL_OK && !*ret_used)
        status = open_lanes(b, url, err);
    if (status == SEMEL_OK && !*ret_used)
        status = run_rounds(b, err);
    if (status == SEMEL_OK && !*ret_used)
        status = check_books(b, conn, err);
    for (int i = 0; i < CONNECTIONS; i++) {
        semel__buf_done(&b->lanes[i].given);
        semel_close(b->lanes[i].s);
    }
    return status;
}

/* ---- the result ---------------------------------------------------------------------------------- */

static size_t base_of(size_t k)
{
    for (size_t i = 0; kinds[k].base != NULL && i < KINDS; i++)
        if (strcmp(kinds[i].name, kinds[k].base) == 0)
            return i;
    return k;
}

static double median(const double *values, size_t n)
{
    double copy[ROUNDS_MAX];
    memcpy(copy, values, n * sizeof *values);
    return bench_percentile(copy, n, 0.5);
}

static double ratio(const struct sql_bench *b, size_t w, size_t k)
{
    double ratios[ROUNDS_MAX];
    size_t n = (size_t)b->options->rounds, base = base_of(k);
    for (size_t i = 0; i < n; i++)
        ratios[i] = b->per_s[w][base][i] > 0 ? b->per_s[w][k][i] / b->per_s[w][base][i] : 0;
    return bench_percentile(ratios, n, 0.5);
}

static void write_json(struct semel_buf *buf, const struct sql_bench *b)
{
    const struct bench_options *options = b->options;
    semel__buf_addf(buf, "{\"bench\":\"sql-postgres\",\"commit_us\":%.0f,\"messages\":%lld,\"rounds\":%lld,",
                    b->commit_us, (long long)options->messages, (long long)options->rounds);
    semel__buf_addf(buf, "\"batch\":%lld,\"cases\":[", (long long)options->batch);
    for (size_t w = 0; w < WIDTHS; w++)
        for (size_t k = 0; k < KINDS; k++) {
            semel__buf_addf(buf, "%s\n{\"name\":\"%s\",\"connections\":%d,\"per_s\":%.1f", w + k > 0 ? "," : "",
                            kinds[k].name, widths[w], median(b->per_s[w][k], (size_t)options->rounds));
            if (kinds[k].base != NULL)
                semel__buf_addf(buf, ",\"base\":\"%s\",\"ratio\":%.3f", kinds[k].base, ratio(b, w, k));
            semel__buf_add(buf, "}", 1);
        }
    semel__buf_addz(buf, "\n]}\n");
}

static int print(struct cli *cli, const struct sql_bench *b)
{
    static const struct cli_column columns[] = {
        {"case", CLI_TEXT, false},    {"connections", CLI_NUMBER, false},
        {"per_s", CLI_NUMBER, false}, {"ratio", CLI_NUMBER, false},
        {"to", CLI_TEXT, false},
    };
    struct cli_table *table = cli_table_new(cli, columns, sizeof columns / sizeof columns[0]);
    if (table == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t w = 0; w < WIDTHS; w++)
        for (size_t k = 0; k < KINDS; k++) {
            cli_table_text(table, semel__str(kinds[k].name));
            cli_table_number(table, widths[w]);
            cli_table_fixed(table, median(b->per_s[w][k], (size_t)b->options->rounds), 0);
            cli_table_fixed(table, ratio(b, w, k), 2);
            cli_table_text(table, semel__str(kinds[base_of(k)].name));
        }
    int code = cli_table_print(table);
    cli_say(cli, "a commit takes %.0f us here (median)", b->commit_us);
    cli_say(cli, "%lld messages per case and round, batches of %lld, median of %lld rounds",
            (long long)b->options->messages, (long long)b->options->batch, (long long)b->options->rounds);
    return code;
}

static int show(struct cli *cli, const struct cli_args *args, const struct sql_bench *b)
{
    const char *out = cli_value(args, "out");
    struct semel_buf buf;
    int code = CLI_OK;
    semel__buf_init(&buf, JSON_MAX);
    write_json(&buf, b);
    if (buf.failed)
        code = cli_fail(CLI_FAILED, "out of memory");
    else if (cli->json)
        fwrite(buf.p, 1, buf.n, stdout);
    else
        code = print(cli, b);
    if (code == CLI_OK && out != NULL)
        code = bench_save(out, semel__buf_str(&buf));
    semel__buf_done(&buf);
    return cli_finish(code);
}

/* ---- the command --------------------------------------------------------------------------------- */

static void progress(void *ctx, int64_t round, const char *name, const char *connections)
{
    const struct bench_options *options = ctx;
    fprintf(stderr, "\r\033[Kround %lld of %lld: %s, %s connections", (long long)round, (long long)options->rounds,
            name, connections);
}

static int run_server(struct cli *cli, const struct cli_args *args, struct bench_options *options, const char *url)
{
    static struct sql_bench b; /* it has many rounds */
    struct semel_error err = {0};
    bool used = false, opened = false, watched = isatty(STDERR_FILENO) == 1;
    b = (struct sql_bench){.options = options};
    options->ctx = options;
    options->progress = watched ? progress : NULL;
    semel_status status = measure(&b, url, &opened, &used, &err);
    if (watched)
        fputs("\r\033[K", stderr);
    if (status != SEMEL_OK && !opened)
        return cli_store_fail(url, status, &err);
    if (used)
        return cli_fail(CLI_REFUSED, BENCH_IN_USE);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "bench");
    if (*options->stop != 0)
        return cli_fail(CLI_INTERRUPTED, "interrupted: a part of the rounds is no result");
    return show(cli, args, &b);
}
#endif

static int run_sql(struct cli *cli, const struct cli_args *args)
{
    struct bench_options options = {0};
    const char *url = cli_value(args, "store");
    if (!cli_int(args, "messages", 1, 1000000, MESSAGES, &options.messages) ||
        !cli_int(args, "rounds", 1, ROUNDS_MAX, ROUNDS, &options.rounds) ||
        !cli_int(args, "batch", 1, SEMEL_PROCESS_MAX, BATCH, &options.batch))
        return CLI_USAGE;
    if (url == NULL)
        return cli_fail(CLI_USAGE, "name an empty database with --store, e.g. postgres://postgres@localhost/bench");
#ifdef SEMEL_WITH_POSTGRES
    if (bench_pg_url(url)) {
        options.stop = bench_watch_signals();
        return run_server(cli, args, &options, url);
    }
#endif
    (void)cli;
    return cli_fail(CLI_USAGE, "sql is measured on PostgreSQL only, and %.200s is none that this program can reach",
                    cli_store_shown(url));
}

static const struct cli_option sql_options[] = {
    {"store", 0, "URL", "a PostgreSQL database to fill, with an empty inbox"},
    {"messages", 0, "N", "messages per case and round (default: 2000)"},
    {"rounds", 0, "N", "rounds, of which the median counts (default: 5)"},
    {"batch", 0, "N", "messages per call of begin-many (default: 100)"},
    {"out", 0, "FILE", "writes the result as JSON, too"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command bench_sql_command = {
    .name = "sql",
    .summary = "measure PostgreSQL's SQL functions against an inbox that is written by hand",
    .operands = "",
    .options = sql_options,
    .run = run_sql,
    .help =
        "The cases, each on one and on eight connections, with prepared statements:\n"
        "  handwritten  INSERT ... ON CONFLICT DO NOTHING into a table of three columns, and the effect\n"
        "  begin        semel.inbox_begin, the effect, semel.inbox_done\n"
        "  handwritten-duplicate  the same insert, of a message that is there\n"
        "  duplicate    semel.inbox_begin of a message that is done\n"
        "  begin-many   semel.inbox_begin_many, the effects by one statement, semel.inbox_done_many\n"
        "\n"
        "Every case is one transaction per message, begin-many one per batch. A ratio is the median of the ratios of\n"
        "the rounds: of begin and begin-many to handwritten, of duplicate to handwritten-duplicate.\n"
        "\n"
        "$SEMEL_STORE is not used: a benchmark fills what it runs on.\n"
        "Example: semel bench sql --store postgres://postgres@localhost/bench --out sql.json",
};
