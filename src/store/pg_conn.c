/* SPDX-License-Identifier: MIT
 *
 * pg_conn.c: connecting, and whether the server will do.
 *
 * A connection is made without blocking, so that the wait has an end and the SQLSTATE of a refusal can be had. What the
 * URL does not say gets values under which a dead peer is noticed (P64): keepalives, TCP_USER_TIMEOUT.
 *
 * Invariants: nothing that would outlive a transaction is set in the session (P17); after fork() the child's copy of
 * the socket is let go of without a byte being sent through it.
 */
#define _GNU_SOURCE /* dup3 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "store/pg.h"

#define CONNECT_S 10
#define CONNECT_S_MAX 600
#define SLICE_MS 100
#define SERVER_NEEDED 130000

/* ---- notices ------------------------------------------------------------------------------------- */

/* A COMMIT that did not wait for its standby says so in a warning only (P16). A RAISE WARNING in a deferred trigger has
 * the same SQLSTATE, but also a context. */
static void on_notice(void *ctx, const PGresult *result)
{
    struct pg_store *d = ctx;
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char *function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);
    bool plain = PQresultErrorField(result, PG_DIAG_CONTEXT) == NULL;
    if (severity == NULL || strcmp(severity, "WARNING") != 0 || code == NULL)
        return;
    if ((function != NULL && strcmp(function, "SyncRepWaitForLSN") == 0) ||
        (plain && (strcmp(code, "01000") == 0 || strcmp(code, "57P01") == 0)))
        d->lost_wait = true;
}

/* ---- connecting ---------------------------------------------------------------------------------- */

static int count_hosts(const char *list)
{
    int n = 1;
    for (; list != NULL && *list != '\0'; list++)
        n += *list == ',';
    return n;
}

/* How long the URL lets us wait, for all of its hosts together. */
static int patience_ms(const char *conninfo)
{
    int64_t seconds = CONNECT_S;
    int hosts = 1;
    PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
    for (const PQconninfoOption *o = options; o != NULL && o->keyword != NULL; o++) {
        if (o->val == NULL)
            continue;
        if (strcmp(o->keyword, "host") == 0 || strcmp(o->keyword, "hostaddr") == 0)
            hosts = count_hosts(o->val) > hosts ? count_hosts(o->val) : hosts;
        if (strcmp(o->keyword, "connect_timeout") == 0 && !semel__str_int64(semel__str(o->val), &seconds))
            seconds = CONNECT_S;
    }
    PQconninfoFree(options);
    if (seconds < 1 || seconds > CONNECT_S_MAX)
        seconds = seconds < 1 ? CONNECT_S : CONNECT_S_MAX;
    return (int)seconds * 1000 * (hosts < 16 ? hosts : 16);
}

/* "... FATAL:  28P01: password ...", as PQERRORS_VERBOSE writes it: the five characters, or NULL. */
static const char *code_in(const char *message, char out[6])
{
    for (const char *p = strstr(message, ":  "); p != NULL; p = strstr(p + 1, ":  ")) {
        if (strlen(p) < 10 || p[8] != ':')
            continue;
        memcpy(out, p + 3, 5);
        out[5] = '\0';
        if (semel__pg_code(out) != 0)
            return out;
    }
    return NULL;
}

/* What to do about it; `code` may be NULL. */
static const char *advice(PGconn *conn, const char *code)
{
    static const struct {
        const char *code, *text;
    } known[] = {
        {"3D000", "create the database, or name another"},
        {"28000", "create the role, name another, or let it in by pg_hba.conf"},
        {"28P01", "give the right password: in PGPASSWORD, ~/.pgpass or the URL"},
        {"42501", "GRANT CONNECT ON DATABASE to this role"},
        {"53300", "raise max_connections, or use a pooler"},
        {"57P03", "wait until it has started"},
    };
    for (size_t i = 0; code != NULL && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].code, code) == 0)
            return known[i].text;
    if (PQconnectionNeedsPassword(conn))
        return "give one: in PGPASSWORD, ~/.pgpass or the URL";
    return code != NULL ? "see the server's log" : "is the server up, and the URL right?";
}

static semel_status refused(struct pg_store *d, struct semel_error *err)
{
    char code[6], shown[180];
    const char *message = PQerrorMessage(d->conn);
    const char *found = code_in(message, code);
    semel__str_show(shown, sizeof(shown), (struct semel_str){message, strcspn(message, "\n")});
    semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s; %s", shown[0] != '\0' ? shown : "no connection",
                advice(d->conn, found));
    if (err != NULL && found != NULL)
        err->code = semel__pg_code(found);
    return SEMEL_RETRY;
}

static semel_status establish(struct pg_store *d, struct semel_error *err)
{
    int left_ms = patience_ms(d->conninfo);
    PostgresPollingStatusType next = PGRES_POLLING_WRITING;
    while (next != PGRES_POLLING_OK && next != PGRES_POLLING_FAILED) {
        struct pollfd fd = {.fd = PQsocket(d->conn), .events = next == PGRES_POLLING_WRITING ? POLLOUT : POLLIN};
        int n = fd.fd >= 0 ? poll(&fd, 1, SLICE_MS) : -1;
        if (n < 0 && errno != EINTR)
            return refused(d, err);
        left_ms -= n == 0 ? SLICE_MS : 0;
        if (left_ms <= 0)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                               "the server did not answer in time (connect_timeout)");
        if (n > 0)
            next = PQconnectPoll(d->conn);
    }
    return next == PGRES_POLLING_OK ? SEMEL_OK : refused(d, err);
}

static semel_status connect_new(struct pg_store *d, struct semel_error *err)
{
    /* What stands before dbname is overridden by what is in it. */
    const char *const names[] = {"keepalives_idle",           "keepalives_interval",
                                 "keepalives_count",          "tcp_user_timeout",
                                 "fallback_application_name", "dbname",
                                 "client_encoding",           NULL};
    const char *const values[] = {"10", "5", "3", "30000", "semel", d->conninfo, "UTF8", NULL};
    d->conn = PQconnectStartParams(names, values, 1);
    if (d->conn == NULL)
        return semel__fail_memory(err);
    if (PQstatus(d->conn) == CONNECTION_BAD)
        return refused(d, err);
    PQsetNoticeReceiver(d->conn, on_notice, d);
    PQsetErrorVerbosity(d->conn, PQERRORS_VERBOSE);
    semel_status status = establish(d, err);
    PQsetErrorVerbosity(d->conn, PQERRORS_DEFAULT); /* what handlers see */
    if (status == SEMEL_OK && PQsetnonblocking(d->conn, 1) != 0)
        status = refused(d, err);
    return status;
}

/* ---- will it do? --------------------------------------------------------------------------------- */

static semel_status parameter_is_utf8(PGconn *conn, const char *name, const char *right, struct semel_error *err)
{
    const char *value = PQparameterStatus(conn, name);
    char shown[40];
    if (value != NULL && strcmp(value, "UTF8") == 0)
        return SEMEL_OK;
    semel__str_show(shown, sizeof(shown), semel__str(value != NULL ? value : "not known"));
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s is %s; %s", name, shown, right);
}

/* Our statements name what they call, and give it the types of pg_catalog, so that its operators are found first (P85);
 * not where another schema is searched before it. `path` is the schemas in their order, after that of the session's
 * temporary tables, which has no operators. */
static semel_status catalog_first(struct semel_str path, struct semel_error *err)
{
    static const char temp[] = "pg_temp_", catalog[] = "pg_catalog";
    const char *comma = path.n > 0 ? memchr(path.p, ',', path.n) : NULL;
    char shown[120];
    semel__str_show(shown, sizeof(shown), path);
    if (comma != NULL && strncmp(path.p, temp, sizeof(temp) - 1) == 0)
        path = (struct semel_str){comma + 1, path.n - (size_t)(comma + 1 - path.p)};
    if (path.n >= sizeof(catalog) - 1 && memcmp(path.p, catalog, sizeof(catalog) - 1) == 0 &&
        (path.n == sizeof(catalog) - 1 || path.p[sizeof(catalog) - 1] == ','))
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "search_path has pg_catalog behind another schema (%s), whose functions and operators would be "
                       "called instead: leave pg_catalog out of search_path, or name it first",
                       shown);
}

static semel_status writable(struct pg_store *d, struct semel_error *err)
{
    /* Also safe under the search_path that is to be refused. */
    static const struct sql_text sql = {
        "semel_writable", "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only') "
                          "OPERATOR(pg_catalog.=) 'on'::pg_catalog.text, "
                          "pg_catalog.array_to_string(pg_catalog.current_schemas(true), ',')"};
    struct pg_trip trip;
    semel__pg_start(&trip, d, "looking at the server");
    size_t at = semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK && semel__pg_get_bool(trip.results[at], 0, 0))
        status = semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                             "the server is a standby in recovery and takes no writes: connect to the primary, or name "
                             "all hosts and add target_session_attrs=read-write");
    else if (status == SEMEL_OK && semel__pg_get_bool(trip.results[at], 0, 1))
        status = semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                             "transactions here are read-only: set default_transaction_read_only to off for this role "
                             "and database");
    else if (status == SEMEL_OK)
        status = catalog_first(semel__pg_get_text(trip.results[at], 0, 2), err);
    semel__pg_end(&trip);
    return status;
}

/* A role that reads the tables and may call what operators do. */
static semel_status look_at_role(struct pg_store *d, struct semel_error *err)
{
    static const struct sql_text sql = {
        "semel_operator",
        "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
        "ON n.oid = c.relnamespace WHERE n.nspname = 'semel' AND c.relname = 'inbox' "
        "AND NOT pg_catalog.has_table_privilege(c.oid, 'UPDATE')) AND EXISTS (SELECT 1 FROM pg_catalog.pg_proc AS p "
        "JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'semel' "
        "AND p.proname = '_operate' AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))"};
    struct pg_trip trip;
    d->sql.by_operator = false;
    semel__pg_start(&trip, d, "looking at the role");
    size_t at = semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        d->sql.by_operator = semel__pg_get_bool(trip.results[at], 0, 0);
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_suitable(struct pg_store *d, struct semel_error *err)
{
    if (PQserverVersion(d->conn) < SERVER_NEEDED) {
        const char *version = PQparameterStatus(d->conn, "server_version");
        char shown[40];
        semel__str_show(shown, sizeof(shown), semel__str(version != NULL ? version : "of unknown version"));
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the server is PostgreSQL %s; 13 or newer is needed: upgrade it, or use another one", shown);
    }
    semel_status status = parameter_is_utf8(d->conn, "server_encoding",
                                            "make the database with ENCODING 'UTF8': keys are compared by their bytes",
                                            err);
    if (status == SEMEL_OK)
        status = parameter_is_utf8(d->conn, "client_encoding", "set it to UTF8 on this connection", err);
    if (status == SEMEL_OK)
        status = writable(d, err);
    if (status == SEMEL_OK)
        status = look_at_role(d, err);
    if (status == SEMEL_OK)
        status = semel__record_schema_check(&d->sql, err);
    if (status == SEMEL_OK && d->sql.store.options.migrate)
        status = semel__record_migrate(&d->sql.store, NULL, NULL, err);
    if (status == SEMEL_OK)
        status = semel__pg_sequences(d, err);
    return status == SEMEL_OK ? semel__pg_timeline(d, err) : status;
}

/* ---- the two ------------------------------------------------------------------------------------- */

semel_status semel__pg_connect(struct pg_store *d, struct semel_error *err)
{
    d->pid = getpid();
    d->broken = d->lost_wait = false;
    semel_status status = connect_new(d, err);
    if (status == SEMEL_OK)
        status = semel__pg_suitable(d, err);
    if (status != SEMEL_OK)
        semel__pg_disconnect(d);
    return status;
}

/* The socket is shared with the parent: what libpq says in parting must not reach the server. */
static void mute(PGconn *conn)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0 && PQsocket(conn) >= 0)
        (void)dup3(null, PQsocket(conn), O_CLOEXEC);
    if (null >= 0)
        close(null);
}

void semel__pg_disconnect(struct pg_store *d)
{
    if (semel__pg_ahead_is(d)) { /* whatever it would be answered */
        d->broken = true;
        semel__pg_ahead_end(d);
    }
    if (d->conn != NULL && d->wrapped && d->pid == getpid())
        semel__pg_rollback(&d->sql.store);
    if (d->conn != NULL && !d->wrapped) {
        if (d->pid != getpid())
            mute(d->conn);
        PQfinish(d->conn);
    }
    d->conn = NULL;
    d->n_prepared = 0;
    d->begun = d->joined = d->cursor = false;
    d->saved = 0;
    semel__pg_queue_forget(d);
}
