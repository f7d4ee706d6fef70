/* SPDX-License-Identifier: MIT
 *
 * pg_timeline.c: is this still the server that it was?
 *
 * A standby that is promoted, and a server that is restored to an earlier moment, begin a new timeline. What their
 * predecessor had committed and they did not get is gone, effect and record alike (P16). That cannot be mended here. It
 * is noticed, and told three times: to the audit and the table semel.timeline, by whoever sees it first
 * (sql/postgres/013_ground.sql); to whoever uses a handle that has seen another timeline before, by one RETRY; to
 * whoever asks for the status, for a while.
 *
 * A server that keeps its log to itself has no timeline, and nothing is noticed.
 *
 * A database that was restored from a dump of its data, or that took over by logical replication, has the rows and not
 * the sequences (P79): arrivals and the numbers of attempts would repeat. A trigger of semel.restart looks at every
 * opening and moves them past what is stored. Nothing is lost by it: it is told to who asks for the status alone.
 *
 * Invariants: a handle tells of each change once; looking fails only when the connection does; nothing is done inside a
 * transaction, and the note waits for no standby.
 */
#include <stdio.h>

#include "store/pg.h"

#define TOLD_FOR "interval '7 days'"

#define NOW_ON \
    "('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::bigint"

static const struct sql_text sql_look = {
    "semel_timeline_look",
    "SELECT now_on, last.timeline, last.note, pg_catalog.has_table_privilege('semel.timeline', 'INSERT'), "
    "last.noticed_at > pg_catalog.clock_timestamp() - " TOLD_FOR " FROM (SELECT " NOW_ON " AS now_on) AS n LEFT JOIN "
    "(SELECT * FROM semel.timeline ORDER BY number DESC LIMIT 1) AS last ON true"};
static const struct sql_text sql_hurry = {"semel_timeline_hurry",
                                          "SELECT pg_catalog.set_config('synchronous_commit', 'local', true)"};
static const struct sql_text sql_note = {"semel_timeline_note", "INSERT INTO semel.timeline (timeline) SELECT " NOW_ON};

static const struct sql_text sql_may_move = {
    "semel_may_move", "SELECT pg_catalog.has_table_privilege('semel.restart'::text, 'INSERT'::text)"};
static const struct sql_text sql_sequences = {"semel_sequences", "INSERT INTO semel.restart (note) VALUES ('')"};
static const struct sql_text sql_restart = {
    "semel_restart",
    "SELECT r.note FROM semel.restart AS r WHERE r.noticed_at > pg_catalog.clock_timestamp() - " TOLD_FOR
    " ORDER BY r.noticed_at DESC LIMIT 1"};

struct timeline {
    int64_t now_on, last; /* SEMEL_NONE: none */
    bool may_note, recent;
    char note[200]; /* of the last; empty: there is nothing to tell */
};

static void take(const struct pg_trip *trip, size_t at, struct timeline *t)
{
    const PGresult *result = trip->results[at];
    t->now_on = semel__pg_get_int(result, 0, 0);
    t->last = semel__pg_get_int(result, 0, 1);
    semel__str_show(t->note, sizeof(t->note), semel__pg_get_text(result, 0, 2));
    t->may_note = semel__pg_get_bool(result, 0, 3);
    t->recent = semel__pg_get_bool(result, 0, 4);
}

static semel_status look(struct pg_store *d, bool note, struct timeline *t, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, "looking at the timeline");
    if (note) {
        semel__pg_add(&trip, &sql_hurry);
        semel__pg_add(&trip, &sql_note);
    }
    size_t at = semel__pg_add(&trip, &sql_look);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        take(&trip, at, t);
    semel__pg_end(&trip);
    return status;
}

/* Not known: *t says so, unless the connection is gone. */
static semel_status learn(struct pg_store *d, struct timeline *t, struct semel_error *err)
{
    struct timeline noted;
    *t = (struct timeline){.now_on = SEMEL_NONE, .last = SEMEL_NONE};
    if (semel__pg_in_tx(d))
        return SEMEL_OK;
    semel_status status = look(d, false, t, err);
    if (status == SEMEL_OK && t->may_note && t->now_on != t->last) {
        status = look(d, true, &noted, err);
        if (status == SEMEL_OK)
            *t = noted;
    }
    return status == SEMEL_CLOSED ? status : SEMEL_OK;
}

semel_status semel__pg_timeline(struct pg_store *d, struct semel_error *err)
{
    struct timeline t;
    int64_t before = d->timeline;
    semel_status status = learn(d, &t, err);
    if (status != SEMEL_OK || t.now_on == SEMEL_NONE)
        return status;
    d->timeline = t.now_on;
    if (before == 0 || before == t.now_on)
        return SEMEL_OK;
    if (t.now_on != t.last || t.note[0] == '\0')
        snprintf(t.note, sizeof(t.note),
                 "the server was promoted or restored (timeline %lld to %lld): anything committed shortly before may "
                 "be lost",
                 (long long)before, (long long)t.now_on);
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s%s", t.note,
                       d->sql.standby ? "; commits waited for a standby" : "");
}

semel_status semel__pg_sequences(struct pg_store *d, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    bool may = !semel__pg_in_tx(d);
    for (int step = 0; step < 2 && may && status == SEMEL_OK; step++) {
        struct pg_trip trip;
        semel__pg_start(&trip, d, "looking at the sequences");
        size_t at = semel__pg_add(&trip, step == 0 ? &sql_may_move : &sql_sequences);
        status = semel__pg_run(&trip, err);
        may = step == 0 && status == SEMEL_OK && semel__pg_get_bool(trip.results[at], 0, 0);
        semel__pg_end(&trip);
    }
    return status == SEMEL_CLOSED ? status : SEMEL_OK;
}

/* What was noticed lately, behind what is in `out`. */
static void restart_about(struct pg_store *d, char *out, size_t size)
{
    struct pg_trip trip;
    char note[200];
    semel__pg_start(&trip, d, "looking at the sequences");
    size_t at = semel__pg_add(&trip, &sql_restart);
    if (semel__pg_run(&trip, NULL) == SEMEL_OK && PQntuples(trip.results[at]) == 1) {
        semel__str_show(note, sizeof(note), semel__pg_get_text(trip.results[at], 0, 0));
        snprintf(out + strlen(out), size - strlen(out), "; %s", note);
    }
    semel__pg_end(&trip);
}

void semel__pg_timeline_about(struct pg_store *d, char *out, size_t size)
{
    struct timeline t;
    struct semel_error ignored;
    if (size > 0)
        out[0] = '\0';
    if (learn(d, &t, &ignored) == SEMEL_OK && t.recent && t.note[0] != '\0')
        snprintf(out, size, "; %s", t.note);
    if (size > 0)
        restart_about(d, out, size);
}
