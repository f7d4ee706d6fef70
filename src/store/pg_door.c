/* SPDX-License-Identifier: MIT
 *
 * pg_door.c: holding what was begun; what is said of a server. See pg_door.h.
 */
#include "store/pg_door.h"

#include <stdio.h>

#include "store/pg.h"

bool semel__pg_is(const struct semel_store *store)
{
    return strcmp(store->ops->name, "postgres") == 0 || strcmp(store->ops->name, "postgresql") == 0;
}

/* ---- what is held -------------------------------------------------------------------------------- */

static const struct sql_text hold = {
    "semel_hold",
    "INSERT INTO semel.held (token, kind, consumer, source, message_id, attempt, at) "
    "VALUES ($1::bigint, 'begun', $2::text, $3::text, $4::text, $5::bigint, pg_catalog.clock_timestamp())"};
static const struct sql_text unhold = {"semel_unhold",
                                       "DELETE FROM semel.held WHERE token = $1::bigint AND kind <> 'claimed'"};

semel_status semel__pg_hold(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                            struct semel_str id, int64_t token, int attempt, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "holding a message");
    semel__pg_int(&trip, token);
    semel__pg_text(&trip, consumer);
    semel__pg_key(&trip, source);
    semel__pg_text(&trip, id);
    semel__pg_int(&trip, attempt);
    semel__pg_add(&trip, &hold);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_unhold(struct semel_store *store, int64_t token, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "letting go of a message");
    semel__pg_int(&trip, token);
    semel__pg_add(&trip, &unhold);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

static const struct sql_text forget_claim = {"semel_forget_claim", "DELETE FROM semel.held WHERE token = $1::bigint"};
static const struct sql_text hold_back = {
    "semel_hold_back", "INSERT INTO semel.held (token, kind, consumer, source, message_id, attempt, at) "
                       "VALUES ($1::bigint, 'refused', '', '', '', 0, pg_catalog.clock_timestamp())"};

semel_status semel__pg_hold_back(struct semel_store *store, int64_t token, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "refusing an end");
    semel__pg_int(&trip, token);
    semel__pg_add(&trip, &forget_claim);
    semel__pg_int(&trip, token);
    semel__pg_add(&trip, &hold_back);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

/* ---- what is said -------------------------------------------------------------------------------- */

static const struct sql_text about = {
    "semel_about", "SELECT pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('fsync'), "
                   "pg_catalog.current_setting('synchronous_standby_names')"};

void semel__pg_about(struct semel_store *store, char *out, size_t size)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    const char *version = d->conn != NULL ? PQparameterStatus(d->conn, "server_version") : NULL;
    char shown[64], promoted[440];
    semel__str_show(shown, sizeof(shown), semel__str(version != NULL ? version : "of unknown version"));
    snprintf(out, size, "PostgreSQL %s", shown);
    semel__pg_start(&trip, d, "looking at the server");
    size_t at = semel__pg_add(&trip, &about);
    if (semel__pg_run(&trip, NULL) == SEMEL_OK) {
        struct semel_str commit = semel__pg_get_text(trip.results[at], 0, 0);
        const char *lost = semel__str_eqz(semel__pg_get_text(trip.results[at], 0, 1), "off")
                               ? "; fsync is off: a power failure can lose or damage everything"
                           : semel__str_eqz(commit, "off")
                               ? "; synchronous_commit is off: acknowledged work can be lost"
                           : semel__pg_get_text(trip.results[at], 0, 2).n > 0 ? "; commits wait for a standby"
                                                                              : "";
        snprintf(out, size, "PostgreSQL %s%s", shown, lost);
    }
    semel__pg_end(&trip);
    semel__pg_timeline_about(d, promoted, sizeof(promoted));
    snprintf(out + strlen(out), size - strlen(out), "%s", promoted);
}

void semel__pg_client(char *out, size_t size)
{
    int version = PQlibVersion();
    snprintf(out, size, "libpq %d.%d", version / 10000, version % 10000);
}
