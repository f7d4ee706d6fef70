/* SPDX-License-Identifier: MIT
 *
 * demo.c: `semel demo`: a storm of payments over workers that are killed, and the books at the end. See demo.h.
 *
 * The command sends as much as the workers can process, for the given time, and kills one of them now and then; then
 * it lets them finish, stops them, and makes the books. `demo worker ...` is a worker; it is for the command itself.
 *
 * The producer sends a third of the payments twice under the same id: half of these copies right behind the original,
 * so that two workers may have both at once, half of them long after it. Everything passes a window in which it is
 * shuffled. A few payments are poison: no consumer can book them.
 *
 * The books are plain SQL on plain connections, without Semel. The demo records what it sends in a database of its own.
 * Afterwards one query compares that with the ledger, line by line; it is printed and saved in a file, so that anybody
 * can run it with the sqlite3 shell. Of Semel's tables it reads only the dead letters. Without Semel the query uses the
 * poison that was sent instead: no consumer could have booked it.
 *
 * Invariants: however run_storm ends, no worker is left. The producer never gets further ahead of the workers than
 * they can catch up with in about a second. Kills have a random generator of their own, so they follow from the seed.
 * Between fork and exec only async-signal-safe functions are called. Every started process is waited for. A worker
 * that ends by itself is a failure of the demo. The cursor always rests at the beginning of the line below the view
 * and is never hidden, so that the terminal is in order at whatever moment the program ends. No line of the view is
 * longer than the terminal is wide.
 *
 * Of the producer: a payment is recorded in the demo's own database before the broker has it. Every choice comes from
 * one generator that is asked in a fixed order, so the stream depends on the seed and not on the speed of the machine.
 * The two windows limit how much is held back.
 *
 * Of the books: a payment is lost when it is neither in the ledger nor accounted for as dead; doubled when it has more
 * than one line. The accounts must be the sums of their lines, every line must belong to a payment; and only poison
 * may be dead, otherwise everything could count as accounted for.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <sqlite3.h>

#include "demo/demo.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "demo/spool.h"

#define BUSY_MS 5000
#define DEMO_ACCOUNTS 100
#define DEMO_SEND_MAX 64 /* payments per call */
#define DEMO_NEAR 64     /* how far messages are shuffled */
#define DEMO_FAR 512     /* how many copies are held back for much later */
#define ID_TEXT 32
#define ACCOUNT_TEXT 32
#define COPIES_PER_MILLE 333
#define PAYLOAD_TEXT 160
#define POISON_EVERY 1000
#define PUSH_TRIES 5
#define SECOND_US INT64_C(1000000)
#define PAYMENTS_PER_S 2000
#define BACKLOG_MIN 128
#define BACKLOG_MAX 2000
#define TICK_MS 10
#define LOOK_US 200000
#define SETTLE_US (40 * SECOND_US)
#define KILL_FIRST_US 200000
#define KILL_SPREAD_US 500000
#define URL_BYTES 8192 /* a path has at most 4096 */
#define SEED_MAX INT64_C(9007199254740991)
#define WORKERS_MAX 16
#define LOG_FILE "workers.log"
#define NUMBER_TEXT 32
#define MARKER ".semel-demo"
#define NAME_BYTES 64
#define STOP_MS 10000
#define LOOK_AGAIN_MS 5
#define EXEC_FAILED 127
#define REDRAW_US 200000
#define LINE_US 1000000
#define COLUMNS 80
#define LINE_BYTES 256

const struct demo_files demo_files_with = {"demo.db", "broker.db", "sent.db", "books.sql"};
const struct demo_files demo_files_without = {"without.db", "without-broker.db", "without-sent.db",
                                              "without-books.sql"};

/* What makes a payment impossible to book. */
#define DEMO_POISON_MAP(X)           \
    X(NONE, "")                      \
    X(ACCOUNT, "an unknown account") \
    X(AMOUNT, "an amount of zero")   \
    X(TEXT, "a payload that is not JSON")

enum demo_poison {
#define X(name, text) DEMO_POISON_##name,
    DEMO_POISON_MAP(X)
#undef X
};

struct demo_payment {
    int64_t n, made_us, cents;
    int account;
    enum demo_poison poison;
};

struct demo_storm {
    struct sqlite3 *sent;
    struct sqlite3_stmt *note;
    struct semel_broker *broker;
    struct semel_random rng;
    int64_t n, pushed; /* payments, and messages with their copies */
    struct demo_payment near[DEMO_NEAR], far[DEMO_FAR], out[2 * DEMO_SEND_MAX];
    size_t n_near, n_far, n_out;
};

struct demo_figures {
    int64_t sent, delivered, effects, suppressed, retried, dead, in_broker, unsettled;
    int64_t alive, killed, per_s; /* per_s: deliveries */
};

struct demo_watch {
    struct sqlite3 *store, *broker;
    bool without;
    int64_t floor, below_floor; /* messages up to `floor` are acknowledged, and how often they were delivered in all */
};

struct demo_books {
    int64_t sent, poison, delivered, effects, suppressed, retried, dead, given_up, killed;
    int64_t lost, doubled;
    int64_t wrong;      /* in the ledger, but with another amount or account, or although it is a dead letter */
    int64_t needless;   /* dead letters that are not poison */
    int64_t strays;     /* ledger lines without a payment */
    int64_t unbalanced; /* accounts that are not the sum of their lines */
    char dead_id[64];   /* one of the dead letters, for trying commands; empty: none */
};

/* ---- plain SQL -------------------------------------------------------------------------------------------- */

bool demo_db_failed(sqlite3 *db, const char *doing, struct semel_error *err)
{
    semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s: %s", doing,
                db != NULL ? sqlite3_errmsg(db) : "out of memory");
    return false;
}

static int open_flags(enum demo_mode mode)
{
    switch (mode) {
    case DEMO_CREATE:
        return SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    case DEMO_WATCH:
        return SQLITE_OPEN_READONLY;
    case DEMO_READ:
        return SQLITE_OPEN_READWRITE;
    }
    return SQLITE_OPEN_READONLY;
}

bool demo_db_open(const char *path, enum demo_mode mode, sqlite3 **ret, struct semel_error *err)
{
    sqlite3 *db = NULL;

    if (mode == DEMO_CREATE)
        semel__file_make_private(path);
    if (sqlite3_open_v2(path, &db, open_flags(mode) | SQLITE_OPEN_NOFOLLOW, NULL) != SQLITE_OK ||
        sqlite3_busy_timeout(db, BUSY_MS) != SQLITE_OK ||
        (mode == DEMO_READ && sqlite3_exec(db, "PRAGMA query_only = ON", NULL, NULL, NULL) != SQLITE_OK)) {
        demo_db_failed(db, path, err);
        sqlite3_close(db);
        return false;
    }
    *ret = db;
    return true;
}

void demo_db_close(sqlite3 *db)
{
    sqlite3_close(db);
}

bool demo_db_exec(sqlite3 *db, const char *sql, struct semel_error *err)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK || demo_db_failed(db, "the demo's tables", err);
}

/* The first column of the first row; no row or NULL: 0. */
static bool db_number(sqlite3 *db, const char *sql, int64_t *ret, struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &stmt, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        *ret = sqlite3_column_int64(stmt, 0);
    else if (rc == SQLITE_DONE)
        *ret = 0;
    else
        demo_db_failed(db, "counting", err);
    sqlite3_finalize(stmt);
    return rc == SQLITE_ROW || rc == SQLITE_DONE;
}

/* ---- how far the storm has come ------------------------------------------------------------------------------- */

/* For the view, for the pace of the producer and to know when everything is settled; runs while the workers write.
 * Frequent queries read only open messages: an acknowledged message never changes again, so everything below the first
 * open one is counted once. */

/* The same list as in the partial index semel_inbox_open, so that the index is used. */
#define OPEN_ROWS                                        \
    " FROM semel_inbox WHERE consumer = '" DEMO_CONSUMER \
    "' AND status IN ('processing', 'failed', 'waiting', 'unknown', 'dead', 'quarantined')"

static bool watch_open(struct demo_watch *watch, const struct demo_settings *set, struct semel_error *err)
{
    *watch = (struct demo_watch){.without = set->without};
    return demo_db_open(set->files->store, DEMO_WATCH, &watch->store, err) &&
           demo_db_open(set->files->broker, DEMO_WATCH, &watch->broker, err);
}

static void watch_close(struct demo_watch *watch)
{
    demo_db_close(watch->store);
    demo_db_close(watch->broker);
    *watch = (struct demo_watch){0};
}

static bool watch_backlog(struct demo_watch *watch, int64_t *ret, struct semel_error *err)
{
    return db_number(watch->broker, "SELECT count(*) FROM message WHERE state < 2", ret, err);
}

/* ?1 is the floor. First the messages from the floor to before the first open one, then those from there. */
static const char closed_part[] =
    "SELECT coalesce(max(seq), ?1), coalesce(sum(deliveries), 0) FROM message WHERE seq > ?1 AND seq <"
    " coalesce((SELECT min(seq) FROM message WHERE state < 2), (SELECT coalesce(max(seq), 0) + 1 FROM message))";
static const char open_part[] =
    "SELECT count(*) FILTER (WHERE state = 1), coalesce(sum(deliveries), 0) FROM message WHERE seq > ?1";

static bool two_numbers(struct demo_watch *watch, const char *sql, int64_t *ret_a, int64_t *ret_b,
                        struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool ok = sqlite3_prepare_v2(watch->broker, sql, -1, &stmt, NULL) == SQLITE_OK &&
              sqlite3_bind_int64(stmt, 1, watch->floor) == SQLITE_OK && sqlite3_step(stmt) == SQLITE_ROW;

    if (ok) {
        *ret_a = sqlite3_column_int64(stmt, 0);
        *ret_b = sqlite3_column_int64(stmt, 1);
    } else {
        demo_db_failed(watch->broker, "counting deliveries", err);
    }
    sqlite3_finalize(stmt);
    return ok;
}

static bool count_deliveries(struct demo_watch *watch, int64_t *ret_delivered, int64_t *ret_in_hand,
                             struct semel_error *err)
{
    int64_t floor, more, open;

    if (!two_numbers(watch, closed_part, &floor, &more, err))
        return false;
    watch->floor = floor;
    watch->below_floor += more;
    if (!two_numbers(watch, open_part, ret_in_hand, &open, err))
        return false;
    *ret_delivered = watch->below_floor + open;
    return true;
}

static bool look_with(struct demo_watch *watch, struct demo_figures *figures, struct semel_error *err)
{
    const bool ok = db_number(watch->store, "SELECT count(*)" OPEN_ROWS " AND status = 'dead'", &figures->dead, err) &&
                    db_number(watch->store,
                              "SELECT count(*)" OPEN_ROWS " AND status IN ('processing', 'failed', 'waiting')",
                              &figures->unsettled, err) &&
                    db_number(watch->store, "SELECT count(*) FROM semel_attempt", &figures->retried, err);

    /* Every failed attempt is followed by another one, except the last of a dead letter. */
    if (ok)
        figures->retried -= figures->dead < figures->retried ? figures->dead : figures->retried;
    return ok;
}

static bool look_without(struct demo_watch *watch, struct demo_figures *figures, struct semel_error *err)
{
    figures->dead = 0;
    figures->unsettled = 0;
    return db_number(watch->store, "SELECT count(*) FROM error_log WHERE try < 3", &figures->retried, err);
}

/* Reads the figures from the databases. */
static bool watch_look(struct demo_watch *watch, struct demo_figures *figures, struct semel_error *err)
{
    int64_t in_hand;

    if (!watch_backlog(watch, &figures->in_broker, err) ||
        !count_deliveries(watch, &figures->delivered, &in_hand, err) ||
        !db_number(watch->store, "SELECT max(line) FROM ledger", &figures->effects, err) ||
        !(watch->without ? look_without(watch, figures, err) : look_with(watch, figures, err)))
        return false;
    /* Deliveries that no worker has and that left nothing new. */
    figures->suppressed = figures->delivered - in_hand - figures->effects - figures->dead - figures->unsettled;
    if (figures->suppressed < 0)
        figures->suppressed = 0;
    return true;
}

/* ---- the query -------------------------------------------------------------------------------------------- */

#define QUERY(dead)                                                                                        \
    "WITH line AS (SELECT payment_id AS id, count(*) AS n, min(account) AS account, min(cents) AS cents\n" \
    "                FROM ledger GROUP BY payment_id),\n"                                                  \
    "     dead AS (" dead "),\n"                                                                           \
    "     total AS (SELECT account AS id, sum(cents) AS cents FROM ledger GROUP BY account)\n"             \
    "SELECT count(*)                                                        AS sent,\n"                    \
    "       count(p.poison)                                                 AS poison,\n"                  \
    "       (SELECT count(*) FROM ledger)                                   AS effects,\n"                 \
    "       count(dead.id)                                                  AS dead,\n"                    \
    "       count(*) FILTER (WHERE line.n IS NULL AND dead.id IS NULL)      AS lost,\n"                    \
    "       count(*) FILTER (WHERE line.n > 1)                              AS doubled,\n"                 \
    "       count(*) FILTER (WHERE line.n = 1 AND (line.account <> p.account\n"                            \
    "                        OR line.cents <> p.cents OR dead.id NOT NULL)) AS wrong,\n"                   \
    "       count(*) FILTER (WHERE dead.id NOT NULL AND p.poison IS NULL)   AS needless,\n"                \
    "       (SELECT count(*) FROM ledger\n"                                                                \
    "         WHERE payment_id NOT IN (SELECT id FROM sent.payment))        AS strays,\n"                  \
    "       (SELECT count(*) FROM account LEFT JOIN total USING (id)\n"                                    \
    "         WHERE account.cents <> coalesce(total.cents, 0))              AS unbalanced\n"               \
    "  FROM sent.payment AS p LEFT JOIN line USING (id) LEFT JOIN dead USING (id);\n"

static const char query_with[] = QUERY("SELECT message_id AS id FROM semel_inbox WHERE status = 'dead'");
static const char query_without[] = QUERY("SELECT id FROM sent.payment WHERE poison NOT NULL");

static const char *books_query(bool without)
{
    return without ? query_without : query_with;
}

static bool attach(sqlite3 *db, const char *sent, struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool ok = sqlite3_prepare_v2(db, "ATTACH ?1 AS sent", -1, &stmt, NULL) == SQLITE_OK &&
              sqlite3_bind_text(stmt, 1, sent, -1, SQLITE_STATIC) == SQLITE_OK && sqlite3_step(stmt) == SQLITE_DONE;

    if (!ok)
        demo_db_failed(db, "attaching what was sent", err);
    sqlite3_finalize(stmt);
    return ok;
}

static bool ask(sqlite3 *db, const char *query, struct demo_books *books, struct semel_error *err)
{
    int64_t *const into[] = {&books->sent,    &books->poison, &books->effects,  &books->dead,   &books->lost,
                             &books->doubled, &books->wrong,  &books->needless, &books->strays, &books->unbalanced};
    sqlite3_stmt *stmt = NULL;
    bool ok = sqlite3_prepare_v2(db, query, -1, &stmt, NULL) == SQLITE_OK && sqlite3_step(stmt) == SQLITE_ROW;

    for (int i = 0; ok && i < (int)(sizeof into / sizeof into[0]); i++)
        *into[i] = sqlite3_column_int64(stmt, i);
    if (!ok)
        demo_db_failed(db, "the books", err);
    sqlite3_finalize(stmt);
    return ok;
}

/* ---- the rest of the books -------------------------------------------------------------------------------- */

static void find_dead(sqlite3 *db, struct demo_books *books)
{
    sqlite3_stmt *stmt = NULL;

    if (sqlite3_prepare_v2(db, "SELECT message_id FROM semel_inbox WHERE status = 'dead' ORDER BY arrival LIMIT 1", -1,
                           &stmt, NULL) == SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW) {
        const char *id = (const char *)sqlite3_column_text(stmt, 0);
        semel__str_show(books->dead_id, sizeof books->dead_id, semel__str(id));
    }
    sqlite3_finalize(stmt);
}

static bool count_rest(sqlite3 *db, const struct demo_settings *set, struct demo_books *books, struct semel_error *err)
{
    sqlite3 *broker = NULL;
    int64_t booked;
    bool ok = demo_db_open(set->files->broker, DEMO_READ, &broker, err) &&
              db_number(broker, "SELECT sum(deliveries) FROM message", &books->delivered, err) &&
              db_number(db, "SELECT count(DISTINCT payment_id) FROM ledger", &booked, err);

    if (ok && set->without) {
        books->dead = 0; /* it has no dead letters: it only logs what it gives up */
        ok = db_number(db, "SELECT count(*) FROM error_log WHERE try < 3", &books->retried, err) &&
             db_number(db, "SELECT count(DISTINCT payment_id) FROM error_log WHERE try = 3", &books->given_up, err);
    } else if (ok) {
        ok = db_number(db, "SELECT sum(attempts - 1) FROM semel_inbox WHERE attempts > 1", &books->retried, err);
        find_dead(db, books);
    }
    demo_db_close(broker);
    /* Every delivery after a payment's first could have made a second effect. */
    if (ok)
        books->suppressed = books->delivered - books->sent - (books->effects - booked);
    return ok;
}

static bool keep_query(const struct demo_settings *set, struct semel_error *err)
{
    const int fd = open(set->files->books, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    const bool ok = f != NULL &&
                    fprintf(f, "ATTACH '%s' AS sent;\n%s", set->files->sent, books_query(set->without)) > 0;

    if ((f != NULL && fclose(f) != 0) || !ok) {
        semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the file %s cannot be written", set->files->books);
        return false;
    }
    return true;
}

/* Reads everything and writes the query to its file. */
static bool books_make(const struct demo_settings *set, struct demo_books *books, struct semel_error *err)
{
    sqlite3 *db = NULL;
    const bool ok = demo_db_open(set->files->store, DEMO_READ, &db, err) && attach(db, set->files->sent, err) &&
                    ask(db, books_query(set->without), books, err) && count_rest(db, set, books, err) &&
                    keep_query(set, err);

    demo_db_close(db);
    return ok;
}

static bool books_balance(const struct demo_books *books)
{
    return books->lost == 0 && books->doubled == 0 && books->wrong == 0 && books->needless == 0 && books->strays == 0 &&
           books->unbalanced == 0;
}

/* ---- printing --------------------------------------------------------------------------------------------- */

/* Optional figures are shown when they are not 0. */
#define BOOKS_MAP(X)                                                                                \
    X(sent, true, "sent", "payments, each with an id of its own")                                   \
    X(poison, true, "of them poison", "bad account, bad amount or not JSON")                        \
    X(delivered, true, "delivered", "by the broker: copies, and again after each kill")             \
    X(effects, true, "effects", "lines in the ledger")                                              \
    X(suppressed, true, "duplicates suppressed", "deliveries after the first, with no second line") \
    X(retried, true, "retried", "attempts after a failed or a killed one")                          \
    X(dead, true, "dead-lettered", "kept with payload and reason for you to look at")               \
    X(given_up, false, "given up", "logged, acknowledged after 3 tries (with poison)")              \
    X(killed, true, "worker kills", "SIGKILL at a random moment")                                   \
    X(lost, true, "lost", "neither in the ledger nor dead-lettered")                                \
    X(doubled, true, "doubled", "more than one line in the ledger")                                 \
    X(wrong, false, "wrong", "other amount or account, or booked though dead")                      \
    X(needless, false, "needless", "dead-lettered although they could be booked")                   \
    X(strays, false, "strays", "lines that nobody has sent")                                        \
    X(unbalanced, false, "unbalanced", "accounts that are not the sum of their lines")

static int print_object(const struct demo_settings *set, const struct demo_books *books)
{
    struct semel_object object;

    semel__object_init(&object);
    semel__object_text(&object, "consumer", set->without ? SEMEL_STR("hand-written") : SEMEL_STR("semel"));
    semel__object_number(&object, "seed", set->seed);
    semel__object_number(&object, "seconds", set->seconds);
    semel__object_number(&object, "workers", set->workers);
#define X(field, always, text, meaning) semel__object_number(&object, #field, books->field);
    BOOKS_MAP(X)
#undef X
    semel__object_bool(&object, "balanced", books_balance(books));
    semel__object_text(&object, "dir", semel__str(set->dir));
    semel__object_text(&object, "dead_id",
                       books->dead_id[0] != '\0' ? semel__str(books->dead_id) : (struct semel_str){NULL, 0});
    return cli_object_print(&object);
}

static int books_print(struct cli *cli, const struct demo_settings *set, const struct demo_books *books)
{
    static const struct cli_column columns[] = {{"the_books", CLI_TEXT, false},
                                                {"number", CLI_NUMBER, false},
                                                {"meaning", CLI_TEXT, true}};
    struct cli_table *table;

    if (cli->json)
        return print_object(set, books);
    table = cli_table_new(cli, columns, 3);
    if (table == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
#define X(field, always, text, meaning)            \
    if (always || books->field != 0) {             \
        cli_table_text(table, SEMEL_STR(text));    \
        cli_table_number(table, books->field);     \
        cli_table_text(table, SEMEL_STR(meaning)); \
    }
    BOOKS_MAP(X)
#undef X
    return cli_table_print(table);
}

static const char sent_schema[] =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
    "CREATE TABLE payment (id TEXT PRIMARY KEY, account TEXT NOT NULL, cents INTEGER NOT NULL, poison TEXT) STRICT;";

#define X(name, text) text,
static const char *const poison_texts[] = {DEMO_POISON_MAP(X)};
#undef X

/* ---- the producer: a payment --------------------------------------------------------------------------- */

static void payment_id(const struct demo_payment *payment, char out[ID_TEXT])
{
    snprintf(out, ID_TEXT, "pay-%08lld", (long long)payment->n);
}

static void payment_account(const struct demo_payment *payment, char out[ACCOUNT_TEXT])
{
    snprintf(out, ACCOUNT_TEXT, payment->poison == DEMO_POISON_ACCOUNT ? "nobody-%03d" : "acc-%03d", payment->account);
}

static void write_payload(const struct demo_payment *payment, char out[PAYLOAD_TEXT])
{
    char id[ID_TEXT], account[ACCOUNT_TEXT];

    payment_id(payment, id);
    payment_account(payment, account);
    snprintf(out, PAYLOAD_TEXT,
             payment->poison == DEMO_POISON_TEXT ? "payment=%s&account=%s&cents=%lld"
                                                 : "{\"payment\":\"%s\",\"account\":\"%s\",\"cents\":%lld}",
             id, account, (long long)payment->cents);
}

/* Three early ones, so that a short run has each kind, then one in a thousand. */
static enum demo_poison choose_poison(int64_t n)
{
    switch (n) {
    case 60:
        return DEMO_POISON_ACCOUNT;
    case 90:
        return DEMO_POISON_AMOUNT;
    case 120:
        return DEMO_POISON_TEXT;
    default:
        return n % POISON_EVERY == 0 ? (enum demo_poison)(1 + n / POISON_EVERY % 3) : DEMO_POISON_NONE;
    }
}

static struct demo_payment make_payment(struct demo_storm *storm)
{
    struct demo_payment payment = {.n = ++storm->n, .made_us = semel__now(&semel__clock_real)};

    payment.account = (int)semel__random_below(&storm->rng, DEMO_ACCOUNTS);
    payment.cents = 100 + (int64_t)semel__random_below(&storm->rng, 50000);
    payment.poison = choose_poison(payment.n);
    if (payment.poison == DEMO_POISON_AMOUNT)
        payment.cents = 0;
    return payment;
}

/* ---- the producer: opening --------------------------------------------------------------------------- */

static bool storm_open(struct demo_storm *storm, const struct demo_settings *set, struct semel_error *err)
{
    *storm = (struct demo_storm){0};
    semel__random_seed(&storm->rng, (uint64_t)set->seed);
    if (demo_broker_open(&storm->broker, set->files->broker, err) != SEMEL_OK ||
        !demo_db_open(set->files->sent, DEMO_CREATE, &storm->sent, err) || !demo_db_exec(storm->sent, sent_schema, err))
        return false;
    if (sqlite3_prepare_v2(storm->sent, "INSERT INTO payment (id, account, cents, poison) VALUES (?1, ?2, ?3, ?4)", -1,
                           &storm->note, NULL) != SQLITE_OK)
        return demo_db_failed(storm->sent, "preparing to write down payments", err);
    return true;
}

static void storm_close(struct demo_storm *storm)
{
    sqlite3_finalize(storm->note);
    demo_db_close(storm->sent);
    if (storm->broker != NULL)
        semel_broker_close(storm->broker);
    *storm = (struct demo_storm){0};
}

/* ---- the producer: sending --------------------------------------------------------------------------- */

static bool write_down(struct demo_storm *storm, const struct demo_payment *payment, struct semel_error *err)
{
    char id[ID_TEXT], account[ACCOUNT_TEXT];
    int rc;

    payment_id(payment, id);
    payment_account(payment, account);
    sqlite3_bind_text(storm->note, 1, id, -1, SQLITE_STATIC);
    sqlite3_bind_text(storm->note, 2, account, -1, SQLITE_STATIC);
    sqlite3_bind_int64(storm->note, 3, payment->cents);
    if (payment->poison != DEMO_POISON_NONE)
        sqlite3_bind_text(storm->note, 4, poison_texts[payment->poison], -1, SQLITE_STATIC);
    rc = sqlite3_step(storm->note);
    sqlite3_reset(storm->note);
    sqlite3_clear_bindings(storm->note);
    return rc == SQLITE_DONE || demo_db_failed(storm->sent, "writing down a payment", err);
}

/* Puts a payment into a window that is full when it has `max`; true: *io is the payment that it replaced. */
static bool shuffle(struct demo_storm *storm, struct demo_payment *window, size_t *n, size_t max,
                    struct demo_payment *io)
{
    struct demo_payment out;
    size_t i;

    if (*n < max) {
        window[(*n)++] = *io;
        return false;
    }
    i = (size_t)semel__random_below(&storm->rng, max);
    out = window[i];
    window[i] = *io;
    *io = out;
    return true;
}

static void pass_near(struct demo_storm *storm, struct demo_payment payment)
{
    if (shuffle(storm, storm->near, &storm->n_near, DEMO_NEAR, &payment))
        storm->out[storm->n_out++] = payment;
}

/* At most two messages leave for one new payment. */
static void pass(struct demo_storm *storm, const struct demo_payment *payment)
{
    struct demo_payment copy = *payment;

    pass_near(storm, *payment);
    if (!semel__random_chance(&storm->rng, COPIES_PER_MILLE))
        return;
    if (semel__random_chance(&storm->rng, 500) || shuffle(storm, storm->far, &storm->n_far, DEMO_FAR, &copy))
        pass_near(storm, copy);
}

/* One message with its strings. */
struct letter {
    char id[ID_TEXT], time[SEMEL_TIME_TEXT], payload[PAYLOAD_TEXT];
    struct semel_pair headers[3];
};

static void write_letter(const struct demo_payment *payment, struct letter *letter, struct semel_spool_push *push)
{
    payment_id(payment, letter->id);
    semel__time_format(payment->made_us, letter->time);
    write_payload(payment, letter->payload);
    letter->headers[0] = (struct semel_pair){SEMEL_STR("ce_id"), semel__str(letter->id)};
    letter->headers[1] = (struct semel_pair){SEMEL_STR("ce_type"), SEMEL_STR("payment.made")};
    letter->headers[2] = (struct semel_pair){SEMEL_STR("ce_time"), semel__str(letter->time)};
    *push = (struct semel_spool_push){.source = SEMEL_STR(DEMO_SOURCE),
                                      .partition = -1,
                                      .payload = semel__str(letter->payload),
                                      .headers = letter->headers,
                                      .n_headers = 3};
}

/* The workers may lock the broker's file for longer than one call waits. */
static semel_status push(struct demo_storm *storm, const struct semel_spool_push *pushes, size_t n,
                         struct semel_error *err)
{
    semel_status status = SEMEL_RETRY;

    for (int i = 0; i < PUSH_TRIES && status == SEMEL_RETRY; i++)
        status = semel__spool_push(storm->broker, pushes, n, NULL, err);
    return status;
}

static bool push_out(struct demo_storm *storm, struct semel_error *err)
{
    struct letter letters[2 * DEMO_SEND_MAX];
    struct semel_spool_push pushes[2 * DEMO_SEND_MAX];

    for (size_t i = 0; i < storm->n_out; i++)
        write_letter(&storm->out[i], &letters[i], &pushes[i]);
    if (storm->n_out > 0 && push(storm, pushes, storm->n_out, err) != SEMEL_OK)
        return false;
    storm->pushed += (int64_t)storm->n_out;
    storm->n_out = 0;
    return true;
}

/* Makes n payments (at most DEMO_SEND_MAX), records them, and pushes those that the shuffling releases. */
static bool storm_send(struct demo_storm *storm, size_t n, struct semel_error *err)
{
    if (n > DEMO_SEND_MAX)
        n = DEMO_SEND_MAX;
    if (n == 0)
        return true;
    if (!demo_db_exec(storm->sent, "BEGIN", err))
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct demo_payment payment = make_payment(storm);
        if (!write_down(storm, &payment, err))
            return false;
        pass(storm, &payment);
    }
    return demo_db_exec(storm->sent, "COMMIT", err) && push_out(storm, err);
}

/* Pushes those that are still held back. */
static bool storm_flush(struct demo_storm *storm, struct semel_error *err)
{
    while (storm->n_far > 0 || storm->n_near > 0) {
        while (storm->n_out < DEMO_SEND_MAX && storm->n_far > 0)
            pass_near(storm, storm->far[--storm->n_far]);
        while (storm->n_out < DEMO_SEND_MAX && storm->n_far == 0 && storm->n_near > 0)
            storm->out[storm->n_out++] = storm->near[--storm->n_near];
        if (!push_out(storm, err))
            return false;
    }
    return true;
}

/* ---- the folder ----------------------------------------------------------------------------------------------- */

/* A marker file identifies a folder of the demo; it is locked while a demo runs in it. Only files with the demo's own
 * names are removed, and only those of the kind of run that begins. No symlink is followed, neither of the folder nor
 * of a file in it, and a folder of another owner is left alone. */

/* Is the working directory a folder of the demo? */
static bool folder_here(void)
{
    struct stat st;

    return lstat(MARKER, &st) == 0 && S_ISREG(st.st_mode);
}

/* Is the working directory empty? An unreadable one counts as not empty. */
static bool is_empty(void)
{
    DIR *dir = opendir(".");
    const struct dirent *entry;
    bool empty = dir != NULL;

    /* cppcheck-suppress readdirCalled */
    while (empty && (entry = readdir(dir)) != NULL) /* NOLINT(concurrency-mt-unsafe): there are no threads */
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (dir != NULL)
        closedir(dir);
    return empty;
}

static bool remove_file(const char *name, const char *ending)
{
    char path[NAME_BYTES];

    snprintf(path, sizeof path, "%s%s", name, ending);
    return unlink(path) == 0 || errno == ENOENT;
}

static bool remove_database(const char *name)
{
    return remove_file(name, "") && remove_file(name, "-wal") && remove_file(name, "-shm") &&
           remove_file(name, "-journal");
}

static int clear_folder(const struct demo_settings *set)
{
    const struct demo_files *files = set->files;

    if (remove_database(files->store) && remove_database(files->broker) && remove_database(files->sent) &&
        remove_file(files->books, "") && remove_file(LOG_FILE, ""))
        return CLI_OK;
    return cli_fail(CLI_FAILED, "%s: what an earlier demo left cannot be removed: %s", set->dir, cli_errno());
}

static int lock_folder(const struct demo_settings *set, int *ret_fd)
{
    const int fd = open(MARKER, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd < 0)
        return cli_fail(CLI_FAILED, "%s: nothing can be written there: %s", set->dir, cli_errno());
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int code = errno == EWOULDBLOCK
                             ? cli_fail(CLI_REFUSED,
                                        "another demo is running in %s; wait for it, or give another --dir", set->dir)
                             : cli_fail(CLI_FAILED, "%s: locking: %s", set->dir, cli_errno());
        close(fd);
        return code;
    }
    *ret_fd = fd;
    return CLI_OK;
}

static int enter_folder(const struct demo_settings *set)
{
    struct stat st;
    const int fd = open(set->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int code = CLI_OK;

    if (fd < 0)
        return errno == ENOTDIR || errno == ELOOP
                   ? cli_fail(CLI_REFUSED, "%s is not a folder; give another --dir", set->dir)
                   : cli_fail(CLI_FAILED, "%s cannot be entered: %s", set->dir, cli_errno());
    if (fstat(fd, &st) != 0 || fchdir(fd) != 0)
        code = cli_fail(CLI_FAILED, "%s cannot be entered: %s", set->dir, cli_errno());
    else if (st.st_uid != geteuid())
        code = cli_fail(CLI_REFUSED, "the folder %s is somebody else's; give another --dir", set->dir);
    close(fd);
    return code;
}

/* Creates or reuses the folder, enters it, locks it and removes the files that this kind of run will write. An exit
 * code. */
static int folder_enter(const struct demo_settings *set, int *ret_lock_fd)
{
    int code;

    if (mkdir(set->dir, 0700) != 0 && errno != EEXIST)
        return cli_fail(CLI_FAILED, "the folder %s cannot be made: %s", set->dir, cli_errno());
    code = enter_folder(set);
    if (code != CLI_OK)
        return code;
    if (!folder_here() && !is_empty())
        return cli_fail(CLI_REFUSED, "the folder %s is there already and no demo has made it; give another --dir",
                        set->dir);
    code = lock_folder(set, ret_lock_fd);
    if (code != CLI_OK)
        return code;
    code = clear_folder(set);
    if (code != CLI_OK)
        close(*ret_lock_fd);
    return code;
}

/* ---- the workers ---------------------------------------------------------------------------------------------- */

/* A worker is a fork and an exec of /proc/self/exe with `demo worker ...`. The kernel kills it when the demo dies in
 * any way (PR_SET_PDEATHSIG), so none is left behind. It ignores the terminal's Ctrl-C: the demo ends it. Its output
 * goes to a file in the folder. */

struct fleet {
    const struct demo_settings *set;
    pid_t pids[WORKERS_MAX]; /* 0: none */
    int n, log_fd;
    int64_t started, killed;
};

static bool fleet_open(struct fleet *fleet, const struct demo_settings *set, struct semel_error *err)
{
    *fleet = (struct fleet){.set = set, .n = (int)set->workers};
    fleet->log_fd = open(LOG_FILE, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fleet->log_fd < 0)
        semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the file " LOG_FILE " cannot be made: error %d", errno);
    return fleet->log_fd >= 0;
}

/* In the child. */
static _Noreturn void become_worker(char *const argv[], int log_fd, pid_t parent)
{
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, usual = {.sa_handler = SIG_DFL};

    sigaction(SIGINT, &ignore, NULL);
    sigaction(SIGTERM, &usual, NULL);
    sigaction(SIGHUP, &usual, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || nothing < 0 || dup2(nothing, 0) < 0 ||
        dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0)
        _exit(EXEC_FAILED);
    execv("/proc/self/exe", argv);
    _exit(EXEC_FAILED);
}

static bool start_one(struct fleet *fleet, int i, struct semel_error *err)
{
    char program[] = "semel", demo[] = "demo", worker[] = "worker", with[] = "with", without[] = "without";
    char seed[24], number[24];
    char *const argv[] = {program, demo, worker, fleet->set->without ? without : with, seed, number, NULL};
    const pid_t parent = getpid();
    pid_t pid;

    snprintf(seed, sizeof seed, "%lld", (long long)fleet->set->seed);
    snprintf(number, sizeof number, "%lld", (long long)++fleet->started);
    pid = fork();
    if (pid == 0)
        become_worker(argv, fleet->log_fd, parent);
    if (pid < 0) {
        semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a worker cannot be started: error %d of fork(2)",
                    errno);
        return false;
    }
    fleet->pids[i] = pid;
    return true;
}

/* Fills the free places. */
static bool fleet_start(struct fleet *fleet, struct semel_error *err)
{
    for (int i = 0; i < fleet->n; i++)
        if (fleet->pids[i] == 0 && !start_one(fleet, i, err))
            return false;
    return true;
}

static int fleet_alive(const struct fleet *fleet)
{
    int alive = 0;

    for (int i = 0; i < fleet->n; i++)
        alive += fleet->pids[i] != 0;
    return alive;
}

static bool ended_by_itself(pid_t pid, int how, struct semel_error *err)
{
    semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_BROKEN,
                WIFSIGNALED(how) ? "worker %ld died by itself, of signal %d; see " LOG_FILE
                                 : "worker %ld ended by itself, with status %d; see " LOG_FILE,
                (long)pid, WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    return false;
}

/* Waits for the worker if `wait`; *ret_gone: it is gone, and *ret_how is how. */
static void reap(struct fleet *fleet, int i, bool wait, bool *ret_gone, int *ret_how)
{
    pid_t got;

    do
        got = waitpid(fleet->pids[i], ret_how, wait ? 0 : WNOHANG);
    while (got < 0 && errno == EINTR);
    *ret_gone = got == fleet->pids[i];
    if (*ret_gone)
        fleet->pids[i] = 0;
}

/* SIGKILL; its slot is free then. false: it had ended by itself before. */
static bool fleet_kill(struct fleet *fleet, int i, struct semel_error *err)
{
    const pid_t pid = fleet->pids[i];
    bool gone;
    int how = 0;

    if (pid == 0)
        return true;
    kill(pid, SIGKILL);
    reap(fleet, i, true, &gone, &how);
    fleet->pids[i] = 0;
    if (gone && !(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL))
        return ended_by_itself(pid, how, err); /* it was faster */
    fleet->killed++;
    return true;
}

/* false: one has ended by itself. */
static bool fleet_check(struct fleet *fleet, struct semel_error *err)
{
    for (int i = 0; i < fleet->n; i++) {
        const pid_t pid = fleet->pids[i];
        bool gone = false;
        int how = 0;
        if (pid == 0)
            continue;
        reap(fleet, i, false, &gone, &how);
        if (gone)
            return ended_by_itself(pid, how, err);
    }
    return true;
}

/* Ended on SIGTERM. A worker that has just started may not have its signal handler yet. */
static bool ended_well(int how)
{
    return (WIFEXITED(how) && WEXITSTATUS(how) == 0) || (WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
}

/* SIGTERM; false: one did not end well. */
static bool fleet_stop(struct fleet *fleet, struct semel_error *err)
{
    const int64_t until_us = semel__time_add(semel__now(&semel__clock_real), STOP_MS * 1000);
    bool well = true;

    for (int i = 0; i < fleet->n; i++)
        if (fleet->pids[i] != 0)
            kill(fleet->pids[i], SIGTERM);
    while (fleet_alive(fleet) > 0 && semel__now(&semel__clock_real) < until_us) {
        for (int i = 0; i < fleet->n; i++) {
            const pid_t pid = fleet->pids[i];
            bool gone = false;
            int how = 0;
            if (pid != 0)
                reap(fleet, i, false, &gone, &how);
            if (gone && !ended_well(how))
                well = ended_by_itself(pid, how, err);
        }
        poll(NULL, 0, LOOK_AGAIN_MS);
    }
    if (fleet_alive(fleet) == 0)
        return well;
    semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_BROKEN, "%d workers did not stop within %d s", fleet_alive(fleet),
                STOP_MS / 1000);
    return false;
}

/* Kills the remaining workers and waits for them. */
static void fleet_close(struct fleet *fleet)
{
    const int64_t killed = fleet->killed;

    for (int i = 0; i < fleet->n; i++)
        fleet_kill(fleet, i, NULL);
    fleet->killed = killed;
    if (fleet->log_fd > 0)
        close(fleet->log_fd);
    fleet->log_fd = 0;
}

/* ---- the view ------------------------------------------------------------------------------------------------- */

/* A few lines that are redrawn on a terminal, one line per second elsewhere, nothing with --json. */

struct view {
    bool silent, redraw;
    int lines; /* drawn before, to be redrawn */
    int64_t next_us;
};

/* 12,031 */
static void number_text(int64_t value, char out[NUMBER_TEXT])
{
    char digits[24];
    const int n = snprintf(digits, sizeof digits, "%lld", (long long)(value < 0 ? 0 : value));
    size_t at = 0;

    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

static void view_init(struct view *view, const struct cli *cli, int64_t now_us)
{
    const char *term = getenv("TERM"); /* NOLINT(concurrency-mt-unsafe): there are no threads */

    *view = (struct view){.silent = cli->json,
                          .redraw = cli->tty && term != NULL && *term != '\0' && strcmp(term, "dumb") != 0};
    view->next_us = view->redraw ? now_us : now_us + LINE_US;
}

static bool view_due(const struct view *view, int64_t now_us)
{
    return now_us >= view->next_us || view->next_us - now_us > LINE_US;
}

static int columns(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : COLUMNS;
}

/* The figures as text. */
struct texts {
    char sent[NUMBER_TEXT], delivered[NUMBER_TEXT], effects[NUMBER_TEXT], suppressed[NUMBER_TEXT], retried[NUMBER_TEXT],
        dead[NUMBER_TEXT], in_broker[NUMBER_TEXT], unsettled[NUMBER_TEXT], per_s[NUMBER_TEXT], killed[NUMBER_TEXT];
};

static void write_texts(const struct demo_figures *figures, struct texts *t)
{
    number_text(figures->sent, t->sent);
    number_text(figures->delivered, t->delivered);
    number_text(figures->effects, t->effects);
    number_text(figures->suppressed, t->suppressed);
    number_text(figures->retried, t->retried);
    number_text(figures->dead, t->dead);
    number_text(figures->in_broker, t->in_broker);
    number_text(figures->unsettled, t->unsettled);
    number_text(figures->per_s, t->per_s);
    number_text(figures->killed, t->killed);
}

static void show_line(const struct demo_figures *figures, const struct texts *t, const char *clock)
{
    printf(
        "%s: sent %s, delivered %s (%s/s), effects %s, duplicates %s, retried %s, dead %s, workers %lld (%s killed)\n",
        clock, t->sent, t->delivered, t->per_s, t->effects, t->suppressed, t->retried, t->dead,
        (long long)figures->alive, t->killed);
}

__attribute__((format(printf, 2, 3))) static void draw(int width, const char *fmt, ...)
{
    char line[LINE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    printf("\r\x1b[2K%.*s\n", width - 1, line);
}

static int draw_all(const struct demo_figures *figures, const struct texts *t, const char *clock)
{
    const int width = columns();

    draw(width, "%s", clock);
    draw(width, "  payments sent          %10s", t->sent);
    draw(width, "  deliveries             %10s   %s/s, %s waiting in the broker", t->delivered, t->per_s, t->in_broker);
    draw(width, "  effects in the ledger  %10s", t->effects);
    draw(width, "  duplicates suppressed  %10s", t->suppressed);
    draw(width, "  retried after failure  %10s   %s of them not through yet", t->retried, t->unsettled);
    draw(width, "  dead-lettered          %10s", t->dead);
    draw(width, "  workers                %10lld   %s killed with SIGKILL", (long long)figures->alive, t->killed);
    return 8;
}

/* `phase` is the current phase, `part_s` how long of `whole_s` (0: open end). */
static void view_show(struct view *view, const struct demo_figures *figures, const char *phase, int64_t part_s,
                      int64_t whole_s, int64_t now_us)
{
    struct texts t;
    char clock[64];

    view->next_us = now_us + (view->redraw ? REDRAW_US : LINE_US);
    if (view->silent)
        return;
    if (whole_s > 0)
        snprintf(clock, sizeof clock, "%s, %lld of %lld s", phase, (long long)part_s, (long long)whole_s);
    else
        snprintf(clock, sizeof clock, "%s, %lld s", phase, (long long)part_s);
    write_texts(figures, &t);
    if (view->redraw) {
        if (view->lines > 0)
            printf("\x1b[%dA", view->lines);
        view->lines = draw_all(figures, &t, clock);
    } else {
        show_line(figures, &t, clock);
    }
    fflush(stdout);
}

/* ---- the storm ------------------------------------------------------------------------------------------ */

struct demo {
    struct cli *cli;
    const struct demo_settings *set;
    struct demo_storm storm;
    struct fleet fleet;
    struct demo_watch watch;
    struct view view;
    struct demo_figures figures;
    struct semel_random kills;
    int64_t paced_us, kill_us, look_us; /* sent up to; when the next kill is due; when the databases were read last */
    int64_t backlog_max;
    bool late; /* not everything was settled in time */
};

static volatile sig_atomic_t interrupted;

static void on_signal(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static int64_t now(void)
{
    return semel__now(&semel__clock_real);
}

static int64_t seconds(int64_t us)
{
    return (us + SECOND_US / 2) / SECOND_US;
}

/* Reads the databases; the pace follows from it. */
static bool look(struct demo *d, struct semel_error *err)
{
    const int64_t before = d->figures.delivered, since_us = d->look_us, now_us = now();

    if (!watch_look(&d->watch, &d->figures, err))
        return false;
    d->look_us = now_us;
    d->figures.sent = d->storm.n;
    d->figures.alive = fleet_alive(&d->fleet);
    d->figures.killed = d->fleet.killed;
    if (since_us != 0 && now_us > since_us) {
        const int64_t per_s = (d->figures.delivered - before) * SECOND_US / (now_us - since_us);
        d->figures.per_s = (3 * d->figures.per_s + per_s) / 4;
    }
    d->backlog_max = d->figures.per_s / 2;
    if (d->backlog_max < BACKLOG_MIN)
        d->backlog_max = BACKLOG_MIN;
    if (d->backlog_max > BACKLOG_MAX)
        d->backlog_max = BACKLOG_MAX;
    return true;
}

static bool send_some(struct demo *d, struct semel_error *err)
{
    const int64_t now_us = now();
    int64_t due = (now_us - d->paced_us) * PAYMENTS_PER_S / SECOND_US, backlog;

    if (due < 0 || due > DEMO_SEND_MAX)
        due = DEMO_SEND_MAX;
    if (due == 0)
        return true;
    d->paced_us = now_us;
    if (!watch_backlog(&d->watch, &backlog, err))
        return false;
    return backlog >= d->backlog_max || storm_send(&d->storm, (size_t)due, err);
}

static bool kill_one(struct demo *d, struct semel_error *err)
{
    if (now() < d->kill_us)
        return true;
    if (!fleet_kill(&d->fleet, (int)semel__random_below(&d->kills, (uint64_t)d->set->workers), err))
        return false;
    d->kill_us = now() + KILL_FIRST_US + (int64_t)semel__random_below(&d->kills, KILL_SPREAD_US);
    return fleet_start(&d->fleet, err);
}

static bool show(struct demo *d, const char *phase, int64_t start_us, int64_t whole_s, struct semel_error *err)
{
    const int64_t now_us = now();

    if (now_us - d->look_us >= LOOK_US && !look(d, err))
        return false;
    if (view_due(&d->view, now_us))
        view_show(&d->view, &d->figures, phase, seconds(now_us - start_us), whole_s, now_us);
    return fleet_check(&d->fleet, err);
}

static bool storm_phase(struct demo *d, struct semel_error *err)
{
    const int64_t start_us = now(), end_us = start_us + d->set->seconds * SECOND_US;

    d->paced_us = start_us;
    d->kill_us = start_us + KILL_FIRST_US + (int64_t)semel__random_below(&d->kills, KILL_SPREAD_US);
    while (interrupted == 0 && now() < end_us) {
        if (!kill_one(d, err) || !send_some(d, err) || !show(d, "storm", start_us, d->set->seconds, err))
            return false;
        poll(NULL, 0, TICK_MS);
    }
    return true;
}

static bool settled(const struct demo *d)
{
    return d->figures.in_broker == 0 && d->figures.unsettled == 0;
}

static bool settle_phase(struct demo *d, struct semel_error *err)
{
    const int64_t start_us = now();

    if (!storm_flush(&d->storm, err) || !look(d, err))
        return false;
    while (interrupted == 0 && !settled(d)) {
        if (!show(d, "settling", start_us, 0, err))
            return false;
        if (now() - start_us > SETTLE_US) {
            d->late = true;
            return true;
        }
        poll(NULL, 0, TICK_MS);
    }
    view_show(&d->view, &d->figures, "settled", seconds(now() - start_us), 0, now());
    return true;
}

static bool prepare(struct demo *d, struct semel_error *err)
{
    struct sigaction on = {.sa_handler = on_signal};

    sigaction(SIGINT, &on, NULL);
    sigaction(SIGTERM, &on, NULL);
    sigaction(SIGHUP, &on, NULL);
    semel__random_seed(&d->kills, ~(uint64_t)d->set->seed);
    view_init(&d->view, d->cli, now());
    return (d->set->without ? demo_naive_prepare(err) : demo_worker_prepare(err)) &&
           storm_open(&d->storm, d->set, err) && watch_open(&d->watch, d->set, err) &&
           fleet_open(&d->fleet, d->set, err) && fleet_start(&d->fleet, err);
}

static bool run_storm(struct demo *d, struct semel_error *err)
{
    bool ok = prepare(d, err) && storm_phase(d, err) && (interrupted != 0 || settle_phase(d, err));

    watch_close(&d->watch); /* before the workers, so that the last of them checkpoints its database */
    if (ok && interrupted == 0)
        ok = fleet_stop(&d->fleet, err);
    fleet_close(&d->fleet);
    storm_close(&d->storm);
    return ok;
}

/* ---- output ----------------------------------------------------------------------------------------------- */

static void say_before(struct cli *cli, const struct demo_settings *set)
{
    cli_say(cli, "%lld s of payments into the ledger %s/%s, by %lld workers %s; seed %lld", (long long)set->seconds,
            set->dir, set->files->store, (long long)set->workers,
            set->without ? "with a hand-written consumer" : "with Semel", (long long)set->seed);
    cli_say(cli,
            "A third of the payments is delivered twice, all are shuffled, one in 25 meets a fault, a few are poison,");
    cli_say(cli, "and every half second a worker is killed with SIGKILL.");
    cli_say(cli, "%s", "");
}

static void say_query(struct cli *cli, const struct demo_settings *set, const char *dir)
{
    const char *at = books_query(set->without);

    cli_say(cli, "%s", "");
    cli_say(cli, "The books were made with SQLite alone, from the ledger and from what the demo wrote down as sent:");
    while (*at != '\0') {
        const size_t n = strcspn(at, "\n");
        cli_say(cli, "    %.*s", (int)n, at);
        at += n + (at[n] == '\n');
    }
    cli_say(cli, "To run it yourself: cd %s && sqlite3 -line %s <%s", dir, set->files->store, set->files->books);
    cli_say(cli, "%s", "");
}

static void say_hints(struct cli *cli, const struct demo_settings *set, const struct demo_books *books, const char *dir)
{
    char url[URL_BYTES], words[URL_BYTES];

    snprintf(url, sizeof url, "sqlite:%s/%s", set->dir, demo_files_with.store);
    cli_say(cli, "The database is left for you to try things on:");
    cli_say(cli, "    %s", cli_again(cli, "status", url));
    cli_say(cli, "    %s", cli_again(cli, "inbox ls --dead", url));
    if (books->dead_id[0] != '\0') {
        snprintf(words, sizeof words, "inbox show %s", books->dead_id);
        cli_say(cli, "    %s", cli_again(cli, words, url));
    }
    cli_say(cli, "The same storm without Semel:");
    snprintf(words, sizeof words, "demo --without --seed %lld --dir %s", (long long)set->seed, dir);
    cli_say(cli, "    %s", cli_again(cli, words, NULL));
    cli_say(cli, "%s", "");
}

static void say_why(struct cli *cli, const struct demo_books *books)
{
    if (books->doubled > 0)
        cli_say(cli, "Doubled: a worker was killed after it had written the effect and before it marked the id, or two"
                     " workers had checked the same id before either marked it.");
    if (books->lost > 0)
        cli_say(cli, "Lost: the third try failed too, so the error was logged and the message acknowledged.");
    if (books->unbalanced > 0)
        cli_say(cli, "Unbalanced: a worker was killed between the line in the ledger and the change of the account.");
    cli_say(cli, "Each payment was checked against a table of processed ids before it was booked.");
    cli_say(cli, "%s", "");
}

static int make_books(struct cli *cli, const struct demo *d)
{
    const struct demo_settings *set = d->set;
    const char *dir = cli_word(cli, set->dir);
    struct demo_books books = {.killed = d->fleet.killed};
    struct semel_error err = {0};
    int code;

    if (!books_make(set, &books, &err))
        return cli_fail(CLI_FAILED, "%s: %s", set->dir, err.text);
    cli_say(cli, "%s", "");
    code = books_print(cli, set, &books);
    say_query(cli, set, dir);
    if (set->without)
        say_why(cli, &books);
    else
        say_hints(cli, set, &books, dir);
    cli_say(cli, "lost %lld, doubled %lld", (long long)books.lost, (long long)books.doubled);
    if (d->late)
        return cli_fail(CLI_FAILED,
                        "not everything was settled within %lld s: %lld messages are with the broker, %lld"
                        " in the inbox",
                        (long long)(SETTLE_US / SECOND_US), (long long)d->figures.in_broker,
                        (long long)d->figures.unsettled);
    return code != CLI_OK || set->without || books_balance(&books) ? code : CLI_FAILED;
}

/* ---- the command ------------------------------------------------------------------------------------------ */

static int run_worker(const struct cli_args *args)
{
    const char *kind = cli_operand(args, 1);
    int64_t seed, number;

    if (cli_n(args) != 4 || strcmp(cli_operand(args, 0), "worker") != 0 ||
        (strcmp(kind, "with") != 0 && strcmp(kind, "without") != 0) ||
        !semel__str_int64(semel__str(cli_operand(args, 2)), &seed) || seed < 0 || seed > SEED_MAX ||
        !semel__str_int64(semel__str(cli_operand(args, 3)), &number))
        return cli_fail(CLI_USAGE, "semel demo: '%s' is an unexpected argument; see semel demo --help",
                        cli_operand(args, 0));
    if (!folder_here())
        return cli_fail(CLI_REFUSED, "a worker of the demo is started by the demo, in its folder");
    return strcmp(kind, "with") == 0 ? demo_worker_run(seed, number) : demo_naive_run(seed, number);
}

static bool read_settings(const struct cli_args *args, struct demo_settings *set)
{
    struct semel_random rng;
    const bool random = semel__random_seed_os(&rng);

    *set = (struct demo_settings){.without = cli_flag(args, "without"), .dir = cli_value(args, "dir")};
    set->files = set->without ? &demo_files_without : &demo_files_with;
    if (set->dir == NULL)
        set->dir = "semel-demo";
    if (set->dir[0] == '\0') {
        cli_fail(CLI_USAGE, "--dir is ''; it must be a folder, new or an earlier demo's");
        return false;
    }
    return cli_int(args, "seconds", 2, 600, 12, &set->seconds) &&
           cli_int(args, "workers", 1, WORKERS_MAX, 3, &set->workers) &&
           cli_int(args, "seed", 0, SEED_MAX, random ? (int64_t)semel__random_below(&rng, 1000000) : 1, &set->seed);
}

static int run(struct cli *cli, const struct cli_args *args)
{
    struct demo_settings set;
    struct demo *d;
    struct semel_error err = {0};
    int code, lock_fd = -1;

    if (cli_n(args) > 0)
        return run_worker(args);
    if (!read_settings(args, &set))
        return CLI_USAGE;
    d = semel__arena_alloc(&cli->arena, 1, sizeof *d);
    if (d == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    code = folder_enter(&set, &lock_fd);
    if (code != CLI_OK)
        return code;
    *d = (struct demo){.cli = cli, .set = &set, .backlog_max = BACKLOG_MIN};
    say_before(cli, &set);
    if (!run_storm(d, &err))
        code = cli_fail(CLI_FAILED, "%s: %s", set.dir, err.text);
    else if (interrupted != 0)
        code = cli_fail(CLI_INTERRUPTED, "interrupted: the workers were killed, and there are no books");
    else
        code = make_books(cli, d);
    close(lock_fd);
    return code;
}

static const struct cli_option options[] = {
    {"seconds", 0, "N", "how long payments are sent and workers killed, 2 to 600 (default: 12)"},
    {"workers", 0, "N", "how many processes, 1 to 16 (default: 3)"},
    {"dir", 0, "PATH", "the folder for its databases (default: semel-demo)"},
    {"seed", 0, "N", "the same payments, copies and kills again (default: a random one, which is shown)"},
    {"without", 0, NULL, "the same storm against a hand-written consumer, without Semel"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_demo = {
    .name = "demo",
    .summary = "a storm of duplicates, crashes and poison messages, and books that balance",
    .operands = "",
    .operands_max = 4, /* how the command starts its workers; of no use to others */
    .options = options,
    .help =
        "Workers book a stream of payments into a ledger, while a third of the messages is delivered twice, all are\n"
        "shuffled, some fail for a while, a few can never be booked, and workers are killed with SIGKILL. At the end\n"
        "the ledger is compared with what was sent. Closes with `lost 0, doubled 0`, or exits 1.\n"
        "The folder is replaced if an earlier demo made it, and left for you to try `semel status` and `semel inbox` "
        "on.\n"
        "With --without the exit code says whether the demonstration ran, not whether its books balance.",
    .run = run,
};
