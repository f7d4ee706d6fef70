/* SPDX-License-Identifier: MIT
 *
 * world.c: folder, messages and books of the process tests. Their workers are in world_child.c. See world.h.
 */
#include "fault/world.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/ids.h"
#include "demo/spool.h"
#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include "support/world_pg.h"
#endif

#define DEADLINE_MS 30000

static const struct semel_store_ops *const stores[] = {&semel__store_sqlite, NULL};

/* ---- folder ------------------------------------------------------------------------------------------- */

static void remove_folder(const char *dir)
{
    char path[512];
    DIR *d = opendir(dir);

    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.')
            unlink(path);
    }
    if (d != NULL)
        closedir(d);
    rmdir(dir);
}

static void make_file(struct world *w)
{
    const struct semel_store_options options = {.create = true, .migrate = true};
    struct semel_store *store = NULL;
    struct semel_error err;

    snprintf(w->store, sizeof w->store, "sqlite:%s/books.db", w->dir);
    assert_int_equal(semel_store_open(&store, stores, w->store, &options, &err), SEMEL_OK);
    semel_store_close(store);
    books_prepare(w->store);
}

void world_open(struct world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    semel__random_seed(&w->rng, seed);
    snprintf(w->dir, sizeof w->dir, "/tmp/semel-fault-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->spool, sizeof w->spool, "%s/spool.db", w->dir);
#ifdef SEMEL_WITH_POSTGRES
    if (world_server.process.pid != 0) {
        char url[PG_SERVER_TEXT];
        snprintf(w->store, sizeof w->store, "%s", world_pg_database("world", url));
        return;
    }
#endif
    make_file(w);
}

int world_setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    *state = w;
    world_open(w, 1);
    return 0;
}

int world_teardown(void **state)
{
    world_close(*state);
    free(*state);
    return 0;
}

void world_close(struct world *w)
{
    world_reap(w);
    if (w->dir[0] != '\0')
        remove_folder(w->dir);
    w->dir[0] = '\0';
}

void world_touch(struct world *w, const char *file)
{
    char path[256];
    int fd;

    snprintf(path, sizeof path, "%s/%s", w->dir, file);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

bool world_has(struct world *w, const char *file)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", w->dir, file);
    return access(path, F_OK) == 0;
}

/* ---- messages ----------------------------------------------------------------------------------------- */

struct task booking(enum task_kind kind, int n, const char *account, long long cents)
{
    struct task task = {.kind = kind, .n = n, .cents = cents, .version = 1};

    snprintf(task.account, sizeof task.account, "%s", account);
    return task;
}

void id_of_age(struct world *w, int64_t age_s, char out[64])
{
    semel__uuid7_new(semel__now(&semel__clock_real) - age_s * 1000000, &w->rng, out);
}

size_t world_plan(struct world *w, const char *id, struct task task, int effects)
{
    struct sent *sent = &w->sent[w->n_sent];

    assert_true(w->n_sent < WORLD_SENT);
    snprintf(sent->id, sizeof sent->id, "%s", id);
    sent->task = task;
    if (task.intent[0] == '\0')
        snprintf(sent->task.intent, sizeof sent->task.intent, "%.47s", id);
    sent->effects = effects;
    return w->n_sent++;
}

static struct semel_broker *open_spool(struct world *w)
{
    struct semel_broker *broker = NULL;
    struct semel_error err;

    assert_int_equal(semel__spool_open(&broker, w->spool, &err), SEMEL_OK);
    return broker;
}

static int64_t partition_of(const struct task *task)
{
    return (unsigned char)task->account[strlen(task->account) - 1];
}

void world_push(struct world *w, const size_t *which, size_t n)
{
    struct semel_spool_push *pushes = calloc(n, sizeof *pushes);
    struct semel_pair *ids = calloc(n, sizeof *ids);
    char(*payloads)[TASK_TEXT] = calloc(n, sizeof *payloads);
    struct semel_broker *broker = open_spool(w);
    struct semel_error err;

    assert_true(pushes != NULL && ids != NULL && payloads != NULL);
    for (size_t i = 0; i < n; i++) {
        const struct sent *sent = &w->sent[which[i]];
        task_write(&sent->task, payloads[i]);
        ids[i] = (struct semel_pair){SEMEL_STR("id"), semel__str(sent->id)};
        pushes[i] = (struct semel_spool_push){.source = SEMEL_STR("orders"),
                                              .partition = w->partitioned ? partition_of(&sent->task) : -1,
                                              .payload = semel__str(payloads[i]),
                                              .headers = &ids[i],
                                              .n_headers = 1};
    }
    assert_int_equal(semel__spool_push(broker, pushes, n, NULL, &err), SEMEL_OK);
    semel_broker_close(broker);
    free(payloads);
    free(ids);
    free(pushes);
}

void world_send(struct world *w, const char *id, struct task task, int effects)
{
    const size_t which = world_plan(w, id, task, effects);

    world_push(w, &which, 1);
}

void world_again(struct world *w, size_t which)
{
    world_push(w, &which, 1);
}

void world_shuffle(struct world *w, size_t *which, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        const size_t j = (size_t)semel__random_below(&w->rng, i), swap = which[j];
        which[j] = which[i - 1];
        which[i - 1] = swap;
    }
}

/* ---- queries ------------------------------------------------------------------------------------------ */

void world_sql(struct world *w, const char *sql)
{
    struct books *books = books_open(w->store);

    books_run(books, sql);
    books_close(books);
}

void world_age(struct world *w, int seconds)
{
    char sql[160];

    if (books_on_postgres(w->store))
        snprintf(sql, sizeof sql, "UPDATE semel.inbox SET processed_at = processed_at - interval '%d seconds'",
                 seconds);
    else
        snprintf(sql, sizeof sql, "UPDATE semel_inbox SET processed_at = processed_at - %d * 1000000", seconds);
    world_sql(w, sql);
}

int64_t world_count(struct world *w, const char *sql)
{
    struct books *books = books_open(w->store);
    const int64_t n = books_count(books, sql);

    books_close(books);
    return n;
}

void world_text(struct world *w, const char *sql, char *out, size_t size)
{
    struct books *books = books_open(w->store);

    books_text(books, sql, out, size);
    books_close(books);
}

void world_until(struct world *w, const char *sql)
{
    const int64_t give_up_us = semel__now(&semel__clock_real) + DEADLINE_MS * INT64_C(1000);

    while (world_count(w, sql) == 0) {
        if (semel__now(&semel__clock_real) > give_up_us)
            fail_msg("never came true: %s", sql);
        poll(NULL, 0, 3);
    }
}

int64_t world_spool(struct world *w, const char *sql)
{
    char url[BOOKS_URL];
    struct books *books;
    int64_t n;

    snprintf(url, sizeof url, "sqlite:%s", w->spool);
    books = books_open(url);
    n = books_count(books, sql);
    books_close(books);
    return n;
}

int64_t world_unacked(struct world *w)
{
    return world_spool(w, "SELECT count(*) FROM message WHERE state < 2");
}

void world_requeue(struct world *w)
{
    const int64_t last = world_spool(w, "SELECT max(seq) FROM message");
    struct semel_broker *broker = open_spool(w);
    struct semel_error err;

    for (int64_t seq = 1; seq <= last; seq++)
        assert_int_equal(semel__spool_requeue(broker, seq, &err), SEMEL_OK);
    semel_broker_close(broker);
}

/* ---- books -------------------------------------------------------------------------------------------- */

static void list_sent(struct world *w, struct books *books)
{
    if (!books_on_postgres(w->store))
        books_run(books, "PRAGMA temp_store = MEMORY");
    books_run(books, "CREATE TEMP TABLE sent (a TEXT, id TEXT, account TEXT, cents BIGINT, effects INTEGER);"
                     "CREATE TEMP TABLE calls (key TEXT, message_id TEXT, account TEXT, cents BIGINT, a INTEGER)");
    for (size_t i = 0; i < w->n_sent; i++)
        books_line(books, "INSERT INTO sent VALUES ($1, $2, $3, $4, $5)", "", w->sent[i].id, w->sent[i].task.account,
                   w->sent[i].task.cents, w->sent[i].effects);
}

/* `effect` is a view with message_id, account and cents. Says what is wrong before it fails. */
static void check_effects(struct books *books)
{
    static const char *const faults[][2] = {
        {"lost",
         "SELECT count(*) FROM sent WHERE effects > (SELECT count(*) FROM effect AS e WHERE e.message_id = sent.id)"},
        {"doubled",
         "SELECT count(*) FROM sent WHERE effects < (SELECT count(*) FROM effect AS e WHERE e.message_id = sent.id)"},
        {"never sent, or with another account or amount",
         "SELECT count(*) FROM effect AS e WHERE NOT EXISTS (SELECT 1 FROM sent WHERE id = e.message_id"
         " AND account = e.account AND cents = e.cents)"},
    };
    bool right = true;

    for (size_t i = 0; i < COUNT(faults); i++) {
        const int64_t n = books_count(books, faults[i][1]);
        if (n > 0)
            print_error("effects %s: %lld\n", faults[i][0], (long long)n);
        right = right && n == 0;
    }
    assert_true(right);
}

void world_balances(struct world *w)
{
    struct books *books = books_open(w->store);

    list_sent(w, books);
    books_run(books, "CREATE TEMP VIEW effect AS SELECT message_id, account, cents FROM ledger");
    check_effects(books);
    assert_int_equal(
        books_count(books,
                    "SELECT count(*) FROM (SELECT account, sum(cents * effects) AS due FROM sent WHERE effects > 0"
                    " GROUP BY account) AS s LEFT JOIN accounts AS a USING (account)"
                    " WHERE coalesce(a.balance, -1) <> s.due"),
        0);
    assert_int_equal(books_count(books, "SELECT count(*) FROM accounts WHERE account NOT IN"
                                        " (SELECT account FROM sent WHERE effects > 0)"),
                     0);
    books_close(books);
    assert_int_equal(world_unacked(w), 0);
}

void world_balances_outside(struct world *w, int64_t *ret_calls)
{
    char path[256], line[512], key[80], id[64], account[32];
    struct books *books = books_open(w->store);
    long long cents;
    FILE *f;

    list_sent(w, books);
    snprintf(path, sizeof path, "%s/effects", w->dir);
    f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        assert_int_equal(sscanf(line, "%79s %63s %31s %lld", key, id, account, &cents), 4);
        books_line(books, "INSERT INTO calls VALUES ($1, $2, $3, $4, $5)", key, id, account, cents, 0);
    }
    if (f != NULL)
        fclose(f);
    if (ret_calls != NULL)
        *ret_calls = books_count(books, "SELECT count(*) FROM calls");
    books_run(books, "CREATE TEMP VIEW effect AS SELECT DISTINCT key, message_id, account, cents FROM calls");
    check_effects(books);
    assert_int_equal(books_count(books, "SELECT count(*) FROM ledger"), 0);
    books_close(books);
    assert_int_equal(world_unacked(w), 0);
}
