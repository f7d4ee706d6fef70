/* SPDX-License-Identifier: MIT
 *
 * demo_watch.c: how far the demo has come, asked of its databases while the workers write to them.
 *
 * For the view, for the pace of the producer and for knowing when everything is settled; the books are made elsewhere,
 * afterwards. Reads only, on connections of its own. What is asked often walks only what is open: a message that was
 * acknowledged never changes again, so everything below the first open one is counted once.
 */
#include "cli/demo.h"

#include <sqlite3.h>

#include "base/error.h"

/* The same list as the partial index semel_inbox_open has, so that the index answers. */
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
    return demo_db_number(watch->broker, "SELECT count(*) FROM message WHERE state < 2", ret, err);
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
    const bool ok = demo_db_number(watch->store, "SELECT count(*)" OPEN_ROWS " AND status = 'dead'", &figures->dead,
                                   err) &&
                    demo_db_number(watch->store,
                                   "SELECT count(*)" OPEN_ROWS " AND status IN ('processing', 'failed', 'waiting')",
                                   &figures->unsettled, err) &&
                    demo_db_number(watch->store, "SELECT count(*) FROM semel_attempt", &figures->retried, err);

    /* Every failed attempt is followed by another one, but for the last of a dead letter. */
    if (ok)
        figures->retried -= figures->dead < figures->retried ? figures->dead : figures->retried;
    return ok;
}

static bool look_without(struct demo_watch *watch, struct demo_figures *figures, struct semel_error *err)
{
    figures->dead = 0;
    figures->unsettled = 0;
    return demo_db_number(watch->store, "SELECT count(*) FROM error_log WHERE try < 3", &figures->retried, err);
}

bool demo_watch_look(struct demo_watch *watch, struct demo_figures *figures, struct semel_error *err)
{
    int64_t in_hand;

    if (!demo_watch_backlog(watch, &figures->in_broker, err) ||
        !count_deliveries(watch, &figures->delivered, &in_hand, err) ||
        !demo_db_number(watch->store, "SELECT max(line) FROM ledger", &figures->effects, err) ||
        !(watch->without ? look_without(watch, figures, err) : look_with(watch, figures, err)))
        return false;
    /* What was delivered, is out of every worker's hands and has left nothing new. */
    figures->suppressed = figures->delivered - in_hand - figures->effects - figures->dead - figures->unsettled;
    if (figures->suppressed < 0)
        figures->suppressed = 0;
    return true;
}
