/* SPDX-License-Identifier: MIT
 *
 * books.c: how far the demo has come, and its books: plain SQL on plain connections, without Semel.
 *
 * The demo records what it sends in a database of its own. Afterwards one query compares that with the ledger, line
 * by line; it is printed and saved in a file, so that anybody can run it with the sqlite3 shell. Of Semel's tables it
 * reads only the dead letters. Without Semel the query uses the poison that was sent instead: no consumer could have
 * booked it.
 *
 * Invariants: a payment is lost when it is neither in the ledger nor accounted for as dead; doubled when it has more
 * than one line. The accounts must be the sums of their lines, every line must belong to a payment; and only poison
 * may be dead, otherwise everything could count as accounted for.
 */
#include "demo/demo.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <sqlite3.h>

#include "base/error.h"
#include "base/file.h"

#define BUSY_MS 5000

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

bool demo_watch_open(struct demo_watch *watch, const struct demo_settings *set, struct semel_error *err)
{
    *watch = (struct demo_watch){.without = set->without};
    return demo_db_open(set->files->store, DEMO_WATCH, &watch->store, err) &&
           demo_db_open(set->files->broker, DEMO_WATCH, &watch->broker, err);
}

void demo_watch_close(struct demo_watch *watch)
{
    demo_db_close(watch->store);
    demo_db_close(watch->broker);
    *watch = (struct demo_watch){0};
}

bool demo_watch_backlog(struct demo_watch *watch, int64_t *ret, struct semel_error *err)
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

bool demo_watch_look(struct demo_watch *watch, struct demo_figures *figures, struct semel_error *err)
{
    int64_t in_hand;

    if (!demo_watch_backlog(watch, &figures->in_broker, err) ||
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

const char *demo_books_query(bool without)
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
                    fprintf(f, "ATTACH '%s' AS sent;\n%s", set->files->sent, demo_books_query(set->without)) > 0;

    if ((f != NULL && fclose(f) != 0) || !ok) {
        semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the file %s cannot be written", set->files->books);
        return false;
    }
    return true;
}

bool demo_books_make(const struct demo_settings *set, struct demo_books *books, struct semel_error *err)
{
    sqlite3 *db = NULL;
    const bool ok = demo_db_open(set->files->store, DEMO_READ, &db, err) && attach(db, set->files->sent, err) &&
                    ask(db, demo_books_query(set->without), books, err) && count_rest(db, set, books, err) &&
                    keep_query(set, err);

    demo_db_close(db);
    return ok;
}

bool demo_books_balance(const struct demo_books *books)
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
    semel__object_bool(&object, "balanced", demo_books_balance(books));
    semel__object_text(&object, "dir", semel__str(set->dir));
    semel__object_text(&object, "dead_id",
                       books->dead_id[0] != '\0' ? semel__str(books->dead_id) : (struct semel_str){NULL, 0});
    return cli_object_print(&object);
}

int demo_books_print(struct cli *cli, const struct demo_settings *set, const struct demo_books *books)
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
