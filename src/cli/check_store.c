/* SPDX-License-Identifier: MIT
 *
 * check_store.c: is the store there, is its schema current, would what is committed last, may the role do what the
 * routes need, and can their statements be prepared? See online.h.
 */
#include "cli/online.h"
#include "handler/sql.h"
#include "store/migrations.h"
#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_rights.h"
#endif

#define LOCK_MS 3000
#define URL_MAX 8192

/* ---- opening ------------------------------------------------------------------------------------- */

/* A server that is silent is not waited for longer than for any other, unless the URL says how long. */
static void hurry(const struct semel_conf *conf, char url[URL_MAX])
{
    const char *with = "";
    int length = snprintf(url, URL_MAX, "%s", conf->store.p);
    if (conf->store_kind == SEMEL_CONF_STORE_POSTGRES && strstr(url, "connect_timeout") == NULL) {
        bool slashes = strncmp(url + strcspn(url, ":"), "://", 3) == 0;
        with = !slashes ? " connect_timeout=" : strchr(url, '?') != NULL ? "&connect_timeout=" : "?connect_timeout=";
    }
    if (with[0] != '\0' && length > 0 && length < URL_MAX - 32)
        snprintf(url + length, URL_MAX - (size_t)length, "%s%d", with, ONLINE_ASK_MS / 1000);
}

static bool is_refused(const struct semel_error *err, enum semel_store_refusal why)
{
    return err->status == SEMEL_INVALID && err->code == (int)why;
}

static void tell_closed(const struct online_asker *asker, semel_status status, const struct semel_error *err)
{
#ifdef SEMEL_WITH_POSTGRES
    if (asker->conf->store_kind == SEMEL_CONF_STORE_POSTGRES && err->code == SEMEL_PG_DENIED) {
        online_tell(asker, ONLINE_FAILED, "rights", "%s; sql/postgres/roles.sql grants a worker what it needs",
                    err->text);
        return;
    }
#endif
    if (is_refused(err, SEMEL_STORE_NO_SCHEMA) || is_refused(err, SEMEL_STORE_OLD_SCHEMA)) {
        online_tell(asker, ONLINE_OK, "reach", "it answers");
        online_tell(asker, ONLINE_FAILED, "schema", "%s; `semel migrate` does that", err->text);
    } else if (is_refused(err, SEMEL_STORE_NEW_SCHEMA)) {
        online_tell(asker, ONLINE_OK, "reach", "it answers");
        online_tell(asker, ONLINE_FAILED, "schema", "%s", err->text);
    } else {
        online_tell(asker, ONLINE_FAILED, "reach", "%s%s%s", status == SEMEL_RETRY ? "cannot be reached: " : "",
                    err->text, is_refused(err, SEMEL_STORE_NO_DATABASE) ? "; `semel migrate` makes one" : "");
    }
}

/* ---- what the database is like ------------------------------------------------------------------- */

static void ask_sqlite(const struct online_asker *asker)
{
    char about[256];
    semel__sqlite_about(semel__sqlite_version(), about, sizeof(about));
    /* A colon behind the version: there is something to say of it (P26). */
    online_tell(asker, strchr(about, ':') != NULL ? ONLINE_WARNING : ONLINE_OK, "version", "%s", about);
}

#ifdef SEMEL_WITH_POSTGRES
static bool needs_positions(const struct semel_conf *conf)
{
    for (size_t i = 0; i < conf->n_routes; i++)
        if (semel__source_stores_positions(&conf->routes[i].from))
            return true;
    return false;
}

static void ask_rights(const struct online_asker *asker, struct semel_store *store)
{
    struct semel_pg_rights rights = {0};
    struct semel_error err;
    online_ask(asker, "rights");
    if (semel__pg_rights(store, needs_positions(asker->conf), &rights, &err) != SEMEL_OK) {
        online_tell(asker, ONLINE_FAILED, "rights", "cannot be asked: %s", err.text);
        return;
    }
    if (rights.missing[0] != '\0')
        online_tell(asker, ONLINE_FAILED, "rights",
                    "role %s lacks %s; sql/postgres/roles.sql grants a worker what it needs", rights.role,
                    rights.missing);
    else
        online_tell(asker, ONLINE_OK, "rights", "role %s may do what routes need", rights.role);
    if (rights.public_writable)
        online_tell(asker, ONLINE_WARNING, "public",
                    "everybody may create functions in the schema public, which your statements may call unawares: "
                    "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    if (rights.unsafe)
        online_tell(asker, ONLINE_FAILED, "durability",
                    "synchronous_commit is off for role %s: what was answered as committed could be lost; set it to on "
                    "for this role and database",
                    rights.role);
    else if (rights.fsync_off)
        online_tell(asker, ONLINE_WARNING, "durability", "fsync is off: a power failure can lose or damage everything");
    else
        online_tell(asker, ONLINE_OK, "durability", "what is committed lasts");
}
#endif

/* Can we write at all? Nothing is. */
static bool ask_begin(const struct online_asker *asker, struct semel_store *store)
{
    struct semel_error err = {0};
    int64_t now_us;
    online_ask(asker, "transaction");
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, &err);
    if (status == SEMEL_OK) {
        semel_store_rollback(store);
        online_tell(asker, ONLINE_OK, "transaction", "one can be begun");
        return true;
    }
    bool busy = status == SEMEL_RETRY && err.cls == SEMEL_CLASS_TRANSIENT; /* somebody else writes */
    online_tell(asker, busy ? ONLINE_WARNING : ONLINE_FAILED, "transaction", "%s", err.text);
    return false;
}

static void ask_database(const struct online_asker *asker, struct semel_store *store)
{
#ifdef SEMEL_WITH_POSTGRES
    if (asker->conf->store_kind == SEMEL_CONF_STORE_POSTGRES) {
        ask_rights(asker, store);
        return;
    }
#endif
    (void)store;
    ask_sqlite(asker);
}

/* ---- statements ---------------------------------------------------------------------------------- */

/* A statement that was prepared: may the role run it? */
static void ask_may_run(const struct online_asker *asker, struct semel_store *store)
{
#ifdef SEMEL_WITH_POSTGRES
    const struct semel_route *route = online_route(asker);
    struct semel_error err = {0};
    if (asker->conf->store_kind == SEMEL_CONF_STORE_POSTGRES) {
        semel_status status = semel__pg_may_run(store, route->handler.u.sql.statement, route->values.n, &err);
        if (status == SEMEL_OK)
            online_tell(asker, ONLINE_OK, "statement", "it can be prepared, and the role may run it");
        else if (err.code == SEMEL_PG_DENIED)
            online_tell(asker, ONLINE_FAILED, "statement", "%s; GRANT it to the role", err.text);
        else
            online_tell(asker, ONLINE_OK, "statement",
                        "it can be prepared; whether the role may run it shows only when it does");
        return;
    }
#endif
    (void)store;
    online_tell(asker, ONLINE_OK, "statement", "it can be prepared");
}

static void ask_statement(const struct online_asker *asker, struct semel_store *store)
{
    const struct semel_route *route = online_route(asker);
    const struct semel_sql_desc desc = {
        .statement = route->handler.u.sql.statement,
        .mode = route->handler.u.sql.set ? SEMEL_SQL_SET : SEMEL_SQL_EACH,
        .values = route->values.at,
        .n_values = route->values.n,
        .ordered = route->policy.order != SEMEL_ORDER_NONE,
    };
    struct semel_error err = {0};
    struct semel_sql *sql = NULL;
    online_ask(asker, "statement");
    if (semel__sql_handler_new(&sql, &desc, store, &err) != SEMEL_OK)
        online_tell(asker, ONLINE_FAILED, "statement", "%s", err.text);
    else
        ask_may_run(asker, store);
    semel__sql_handler_free(sql);
}

void online_store(struct online_asker *asker)
{
    const struct semel_store_options options = {.lock_timeout_ms = LOCK_MS};
    const struct semel_conf *conf = asker->conf;
    struct semel_store *store = NULL;
    struct semel_error err = {0};
    char url[URL_MAX], about[400];
    if (cli_store_left_out(conf->store.p)) {
        online_tell(asker, ONLINE_FAILED, "reach", "this program was built without PostgreSQL");
        return;
    }
    online_ask(asker, "reach");
    hurry(conf, url);
    semel_status status = semel_store_open(&store, cli_store_drivers(), url, &options, &err);
    if (status != SEMEL_OK) {
        err.status = status;
        tell_closed(asker, status, &err);
        return;
    }
    cli_store_about(store, about, sizeof(about));
    about[strcspn(about, ":;")] = '\0'; /* what else there is to say has lines of its own */
    online_tell(asker, ONLINE_OK, "reach", "%s", about);
    online_tell(asker, ONLINE_OK, "schema", "version %d, which is current", cli_store_schema_found(store));
    ask_database(asker, store);
    bool writes = ask_begin(asker, store);
    for (asker->route = 0; writes && asker->route < conf->n_routes; asker->route++)
        if (online_route(asker)->handler.kind == SEMEL_DO_SQL)
            ask_statement(asker, store);
    semel_store_close(store);
}
