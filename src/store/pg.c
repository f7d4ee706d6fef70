/* SPDX-License-Identifier: MIT
 *
 * pg.c: the PostgreSQL driver: URLs, connecting, checks of the server and notes about it, opening and closing.
 *
 * A URL has one of libpq's two forms: //user@host/database?name=value&... (without its scheme), or name = 'value' ...
 * with blanks between. Our own parameters (semel_...) are taken out; the rest is libpq's, as it is.
 *
 * A connection is made without blocking, so that the wait has an end and the SQLSTATE of a refusal can be had. What the
 * URL does not say gets values under which a dead peer is noticed (P64): keepalives, TCP_USER_TIMEOUT.
 *
 * A standby that is promoted, and a server that is restored to an earlier moment, begin a new timeline. What their
 * predecessor had committed and they did not get is gone, effect and record alike (P16). That cannot be repaired here.
 * The driver notices and reports it three times: the first handle that sees it writes to the audit and to the table
 * semel.timeline (sql/postgres/013_ground.sql); a handle that has seen another timeline before returns one RETRY; and
 * `about` mentions it for a week. A server that does not show its write-ahead log has no timeline, and nothing is
 * noticed.
 *
 * A database that was restored from a dump of its data, or that took over by logical replication, has the rows and not
 * the sequences (P79): arrivals and the numbers of attempts would repeat. A trigger of semel.restart looks at every
 * opening and moves them past the stored numbers. Nothing is lost by it: only `about` mentions it.
 *
 * Invariants: no error text quotes the URL, which may hold a password; the copy that is kept is wiped when it is freed.
 * Nothing that would outlive a transaction is set in the session (P17). After fork() the child's copy of the socket is
 * let go of without a byte being sent through it. A handle reports each new timeline once; asking for it fails only if
 * the connection does, and happens only outside of transactions. Open leaves nothing behind when it fails; a caller's
 * connection is never closed, and its session has the same settings and the same prepared statements when the store is
 * closed as it had before.
 */
#define _GNU_SOURCE /* dup3 */
#include "store/pg.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#define TIMEOUT_MS 5000
#define URL_MAX 4096
#define CONNECT_S 10
#define CONNECT_S_MAX 600
#define SLICE_MS 100
#define SERVER_NEEDED 130000

/* ---- the URL ------------------------------------------------------------------------------------- */

static const char looks_like[] = "it must look like postgres://user@host:5432/database";

static semel_status own_parameter(struct pg_store *d, struct semel_str name, struct semel_str value,
                                  struct semel_error *err)
{
    char shown[72];
    if (semel__str_eqz(name, "semel_pooler") && (semel__str_eqz(value, "0") || semel__str_eqz(value, "1"))) {
        d->pooler = value.p[0] == '1';
        return SEMEL_OK;
    }
    if (semel__str_eqz(name, "semel_pooler"))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the store's URL: semel_pooler must be 0 or 1");
    semel__str_show(shown, sizeof(shown), name);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "the store's URL has a parameter %s; of its own Semel knows only semel_pooler", shown);
}

static bool is_ours(struct semel_str s)
{
    return s.n >= 6 && memcmp(s.p, "semel_", 6) == 0;
}

/* //host/database?a=b&c=d */

static bool libpq_knows(struct semel_str name)
{
    PQconninfoOption *options = PQconndefaults();
    bool known = options == NULL || semel__str_eqz(name, "ssl"); /* which is for sslmode, in a URL */
    for (const PQconninfoOption *o = options; !known && o->keyword != NULL; o++)
        known = semel__str_eqz(name, o->keyword);
    PQconninfoFree(options);
    return known;
}

/* Named by its place, because it may be a part of a password that has a `?` in it. */
static semel_status libpq_parameter(struct semel_str pair, int place, struct semel_error *err)
{
    const char *equals = memchr(pair.p, '=', pair.n);
    struct semel_str name = {pair.p, equals != NULL ? (size_t)(equals - pair.p) : pair.n};
    size_t left = equals != NULL ? pair.n - name.n - 1 : 0;
    if (equals == NULL || (left > 0 && memchr(equals + 1, '=', left) != NULL))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL: parameter %d behind the ? must be NAME=VALUE, and a = in its value %%3D; "
                           "a / or ? in a password is %%2F, %%3F",
                           place);
    if (memchr(name.p, '%', name.n) == NULL && !libpq_knows(name))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL: parameter %d behind the ? is none that libpq knows, such as sslmode, or "
                           "Semel, such as semel_pooler; a / or ? in a password is %%2F, %%3F",
                           place);
    return SEMEL_OK;
}

/* Where the parameters begin, or NULL. What stands before an `@` is the user and the password, as libpq reads it. */
static const char *question_mark(struct semel_str url)
{
    const char *p = url.p + 2, *end = url.p + url.n;
    while (p < end && *p != '@' && *p != '/')
        p++;
    if (p == end || *p != '@')
        p = url.p;
    return memchr(p, '?', (size_t)(end - p));
}

/* libpq would take a part of the password for a part of the host or for the database, and name it. */
static semel_status one_at(struct semel_str url, struct semel_error *err)
{
    const char *p = url.p + 2, *end = url.p + url.n;
    int n = 0;
    for (; p < end && *p != '/' && (n == 0 || *p != '?'); p++)
        n += *p == '@';
    for (; p < end && *p != '?'; p++)
        if (*p == '@')
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "the store's URL has an @ behind a /; a / in a password is %%2F, an @ in the name of a "
                               "database %%40");
    return n < 2 ? SEMEL_OK
                 : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "the store's URL has more than one @ before its host; an @ in a password is %%40");
}

static semel_status from_url(struct pg_store *d, struct semel_str url, struct semel_buf *out, struct semel_error *err)
{
    const char *mark = question_mark(url), *end = url.p + url.n;
    bool first = true;
    int place = 0;
    semel_status status = one_at(url, err);
    semel__buf_addz(out, "postgresql:");
    semel__buf_add(out, url.p, (size_t)((mark != NULL ? mark : end) - url.p));
    for (const char *p = mark != NULL ? mark + 1 : end; status == SEMEL_OK && p < end;) {
        const char *next = memchr(p, '&', (size_t)(end - p));
        struct semel_str pair = {p, (size_t)((next != NULL ? next : end) - p)};
        const char *equals = memchr(pair.p, '=', pair.n);
        p = next != NULL ? next + 1 : end;
        place++;
        if (is_ours(pair)) {
            size_t n = equals != NULL ? (size_t)(equals - pair.p) : pair.n;
            struct semel_str value = {pair.p + n + (equals != NULL), pair.n - n - (equals != NULL)};
            status = own_parameter(d, (struct semel_str){pair.p, n}, value, err);
            continue;
        }
        status = libpq_parameter(pair, place, err);
        semel__buf_add(out, first ? "?" : "&", 1);
        semel__buf_add(out, pair.p, pair.n);
        first = false;
    }
    return status;
}

/* a=b c='d' */

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && blank(*p))
        p++;
    return p;
}

/* Behind a value that begins at p: quoted, or up to a blank; a backslash hides what follows it. */
static const char *skip_value(const char *p, const char *end)
{
    bool quoted = p < end && *p == '\'';
    if (quoted)
        p++;
    while (p < end && (quoted ? *p != '\'' : !blank(*p)))
        p += *p == '\\' && p + 1 < end ? 2 : 1;
    return quoted && p < end ? p + 1 : p;
}

static semel_status from_keywords(struct pg_store *d, struct semel_str text, struct semel_buf *out,
                                  struct semel_error *err)
{
    const char *end = text.p + text.n;
    for (const char *p = skip_blanks(text.p, end); p < end; p = skip_blanks(p, end)) {
        const char *start = p;
        while (p < end && *p != '=' && !blank(*p))
            p++;
        struct semel_str name = {start, (size_t)(p - start)};
        p = skip_blanks(p, end);
        if (p < end && *p == '=')
            p = skip_blanks(p + 1, end);
        const char *value = p;
        p = skip_value(p, end);
        if (is_ours(name)) {
            semel_status status = own_parameter(d, name, (struct semel_str){value, (size_t)(p - value)}, err);
            if (status != SEMEL_OK)
                return status;
            continue;
        }
        semel__buf_add(out, start, (size_t)(p - start));
        semel__buf_add(out, " ", 1);
        if (p == start)
            p++;
    }
    return SEMEL_OK;
}

/* The value of a parameter, or its default; "": it has none. */
static const char *option(const PQconninfoOption *said, const PQconninfoOption *defaults, const char *name)
{
    for (const PQconninfoOption *o = said; o != NULL && o->keyword != NULL; o++)
        if (strcmp(o->keyword, name) == 0 && o->val != NULL && o->val[0] != '\0')
            return o->val;
    return defaults != NULL ? option(defaults, NULL, name) : "";
}

/* Does libpq understand it? Its own message may quote what it did not understand, so that is not shown. */
static semel_status understood(const char *conninfo, struct semel_error *err)
{
    char *message = NULL;
    PQconninfoOption *options = PQconninfoParse(conninfo, &message);
    bool ok = options != NULL, memory = !ok && message == NULL;
    const char *port = option(options, NULL, "port");
    bool ports = port[strspn(port, "0123456789, ")] == '\0';
    PQconninfoFree(options);
    PQfreemem(message);
    if (memory)
        return semel__fail_memory(err);
    if (!ports) /* with a / in it, the beginning of a password looks like one */
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL: port must be a number; a / in a password is %%2F");
    return ok ? SEMEL_OK
              : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "libpq does not understand the store's URL; %s",
                            looks_like);
}

semel_status semel__pg_url(struct pg_store *d, struct semel_str location, struct semel_error *err)
{
    struct semel_buf out;
    if (location.n > URL_MAX || memchr(location.p, '\0', location.n) != NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL is longer than %d bytes or has a NUL in it; %s", URL_MAX, looks_like);
    semel__buf_init(&out, (size_t)2 * URL_MAX + 64);
    bool url = location.n >= 2 && memcmp(location.p, "//", 2) == 0;
    semel_status status = url ? from_url(d, location, &out, err) : from_keywords(d, location, &out, err);
    semel__buf_add(&out, "", 1);
    if (status == SEMEL_OK && out.failed)
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        status = understood(out.p, err);
    if (status == SEMEL_OK) {
        d->conninfo = out.p; /* freed by semel__pg_forget_url */
        return SEMEL_OK;
    }
    if (out.p != NULL)
        explicit_bzero(out.p, out.n);
    semel__buf_done(&out);
    return status;
}

/* ---- who may answer ------------------------------------------------------------------------------ */

/* The next of "a,b"; *list is behind it, NULL after the last. */
static struct semel_str next_of(const char **list)
{
    size_t n = *list != NULL ? strcspn(*list, ",") : 0;
    struct semel_str s = {*list, n};
    if (*list != NULL)
        *list = (*list)[n] == ',' ? *list + n + 1 : NULL;
    return s;
}

/* Sockets have a path for a host, or none at all. */
static bool all_local(const char *hosts, const char *addresses)
{
    bool local = true;
    while (hosts != NULL || addresses != NULL) {
        struct semel_str host = next_of(&hosts), address = next_of(&addresses);
        if (address.n > 0)
            local &= semel__host_is_local(address);
        else
            local &= host.n == 0 || host.p[0] == '/' || host.p[0] == '@' || semel__host_is_local(host);
    }
    return local;
}

bool semel__pg_exposed(const char *url, bool as_asked)
{
    struct pg_store *d = semel__calloc(1, sizeof *d);
    struct semel_error ignored;
    const char *colon = strchr(url, ':');
    bool exposed = false;
    if (d != NULL && colon != NULL && semel__pg_url(d, semel__str(colon + 1), &ignored) == SEMEL_OK) {
        PQconninfoOption *said = PQconninfoParse(d->conninfo, NULL), *defaults = PQconndefaults();
        const char *mode = option(said, defaults, "sslmode");
        bool checked = strcmp(mode, "verify-full") == 0 || strcmp(mode, "verify-ca") == 0 ||
                       (as_asked && option(said, NULL, "sslmode")[0] != '\0');
        bool elsewhere = option(said, NULL, "service")[0] != '\0'; /* its file may say anything */
        exposed = !checked &&
                  (elsewhere || !all_local(option(said, defaults, "host"), option(said, defaults, "hostaddr")));
        PQconninfoFree(said);
        PQconninfoFree(defaults);
    }
    if (d != NULL)
        semel__pg_forget_url(d);
    semel__free(d);
    return exposed;
}

void semel__pg_forget_url(struct pg_store *d)
{
    if (d->conninfo != NULL)
        explicit_bzero(d->conninfo, strlen(d->conninfo));
    semel__free(d->conninfo);
    d->conninfo = NULL;
}
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
    for (; *list != '\0'; list++)
        n += *list == ',';
    return n;
}

/* How long the URL lets us wait, for all of its hosts together. */
static int patience_ms(const char *conninfo)
{
    int64_t seconds;
    PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
    const int names = count_hosts(option(options, NULL, "host")),
              addresses = count_hosts(option(options, NULL, "hostaddr")), hosts = names > addresses ? names : addresses;
    if (!semel__str_int64(semel__str(option(options, NULL, "connect_timeout")), &seconds))
        seconds = CONNECT_S;
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

/* What the reader should do about a failed connection; `code` may be NULL. */
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

static semel_status not_connected(struct pg_store *d, struct semel_error *err)
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
            return not_connected(d, err);
        left_ms -= n == 0 ? SLICE_MS : 0;
        if (left_ms <= 0)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                               "the server did not answer in time (connect_timeout)");
        if (n > 0)
            next = PQconnectPoll(d->conn);
    }
    return next == PGRES_POLLING_OK ? SEMEL_OK : not_connected(d, err);
}

static semel_status connect_new(struct pg_store *d, struct semel_error *err)
{
    /* A parameter inside dbname overrides the same one before it. */
    const char *const names[] = {"keepalives_idle",           "keepalives_interval",
                                 "keepalives_count",          "tcp_user_timeout",
                                 "fallback_application_name", "dbname",
                                 "client_encoding",           NULL};
    const char *const values[] = {"10", "5", "3", "30000", "semel", d->conninfo, "UTF8", NULL};
    d->conn = PQconnectStartParams(names, values, 1);
    if (d->conn == NULL)
        return semel__fail_memory(err);
    if (PQstatus(d->conn) == CONNECTION_BAD)
        return not_connected(d, err);
    PQsetNoticeReceiver(d->conn, on_notice, d);
    PQsetErrorVerbosity(d->conn, PQERRORS_VERBOSE);
    semel_status status = establish(d, err);
    PQsetErrorVerbosity(d->conn, PQERRORS_DEFAULT); /* what handlers see */
    if (status == SEMEL_OK && PQsetnonblocking(d->conn, 1) != 0)
        status = not_connected(d, err);
    return status;
}

/* ---- checks of the server ------------------------------------------------------------------------ */

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

struct server {
    bool recovering, read_only;
    struct semel_str schemas;
};

static semel_status read_server(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field fields[] = {SQL_SHOWN(struct server, recovering, recovering, 0),
                                              SQL_SHOWN(struct server, read_only, read_only, 0),
                                              SQL_SHOWN(struct server, schemas, schemas, 0)};
    struct server server = {0};
    (void)ctx;
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(fields), NULL, &server, err);
    if (status == SEMEL_OK && server.recovering)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                           "the server is a standby in recovery and takes no writes: connect to the primary, or name "
                           "all hosts and add target_session_attrs=read-write");
    if (status == SEMEL_OK && server.read_only)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                           "transactions here are read-only: set default_transaction_read_only to off for this role "
                           "and database");
    return status == SEMEL_OK ? catalog_first(server.schemas, err) : status;
}

static semel_status check_server(struct pg_store *d, struct semel_error *err)
{
    return semel__db_do(&d->sql, "looking at the server", SQL_server_check, NULL, NULL, read_server, NULL, err);
}

/* Does the role only read the tables, and call what operators do? */
static semel_status read_role(struct pg_store *d, struct semel_error *err)
{
    static const struct sql_field operates[] = {{.name = SQL_NAME_operates, .lenient = true}};
    bool by_operator = false;
    struct sql_into into = {SQL_FIELDS(operates), .items = &by_operator, .size = sizeof(by_operator)};
    d->sql.by_operator = false;
    semel_status status = semel__db_do(&d->sql, "looking at the role", SQL_server_role, NULL, NULL, semel__db_read_item,
                                       &into, err);
    d->sql.by_operator = status == SEMEL_OK && by_operator;
    return status;
}

/* ---- is this still the server that it was? ------------------------------------------------------- */

struct timeline {
    int64_t now_on, last; /* SEMEL_NONE: none */
    bool may_note, recent;
    struct semel_str note; /* borrowed, while it is read */
    char shown[200];       /* the note of the last one; empty: there is none */
};

static semel_status read_timeline(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field fields[] = {SQL_SHOWN(struct timeline, now_on, timeline, 0),
                                              SQL_SHOWN(struct timeline, last, last_timeline, 0),
                                              SQL_SHOWN(struct timeline, note, note, 0),
                                              SQL_SHOWN(struct timeline, may_note, may_note, 0),
                                              SQL_SHOWN(struct timeline, recent, recent, 0)};
    struct timeline *t = ctx;
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(fields), NULL, t, err);
    semel__str_show(t->shown, sizeof(t->shown), t->note);
    return status;
}

static semel_status query_timeline(struct pg_store *d, bool note, struct timeline *t, struct semel_error *err)
{
    semel__db_start(&d->sql, "looking at the timeline");
    if (note) {
        semel__db_run(&d->sql, SQL_timeline_hurry, NULL, NULL, NULL, NULL);
        semel__db_run(&d->sql, SQL_timeline_note, NULL, NULL, NULL, NULL);
    }
    semel__db_run(&d->sql, SQL_timeline_read, NULL, NULL, read_timeline, t);
    return semel__db_flush(&d->sql, err);
}

/* If it cannot be learned *t says so. CLOSED: the connection is gone. */
static semel_status learn(struct pg_store *d, struct timeline *t, struct semel_error *err)
{
    *t = (struct timeline){.now_on = SEMEL_NONE, .last = SEMEL_NONE};
    if (semel__pg_in_tx(d))
        return SEMEL_OK;
    semel_status status = query_timeline(d, false, t, err);
    if (status == SEMEL_OK && t->may_note && t->now_on != t->last) {
        struct timeline noted = *t;
        status = query_timeline(d, true, &noted, err);
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
    if (t.now_on != t.last || t.shown[0] == '\0')
        snprintf(t.shown, sizeof(t.shown),
                 "the server was promoted or restored (timeline %lld to %lld): anything committed shortly before may "
                 "be lost",
                 (long long)before, (long long)t.now_on);
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s%s", t.shown,
                       d->sql.standby ? "; commits waited for a standby" : "");
}

/* Moves sequences that began anew past what is stored. CLOSED: the connection is gone. */
static semel_status move_sequences(struct pg_store *d, struct semel_error *err)
{
    static const char doing[] = "looking at the sequences";
    struct timeline t = {0};
    if (semel__pg_in_tx(d))
        return SEMEL_OK;
    semel_status status = semel__db_do(&d->sql, doing, SQL_restart_may, NULL, NULL, read_timeline, &t, err);
    if (status == SEMEL_OK && t.may_note)
        status = semel__db_do(&d->sql, doing, SQL_restart_put, NULL, NULL, NULL, NULL, err);
    return status == SEMEL_CLOSED ? status : SEMEL_OK;
}

/* "; fsync is off ...; the server was promoted ...": what people should know of it, and what was noticed lately. */
static void put_notes(struct pg_store *d, char *out, size_t size)
{
    static const char doing[] = "reading the server's notes";
    struct timeline notes[3] = {0};
    (void)semel__db_do(&d->sql, doing, SQL_server_durability, NULL, NULL, read_timeline, &notes[0], NULL);
    if (learn(d, &notes[1], NULL) != SEMEL_OK || !notes[1].recent)
        notes[1].shown[0] = '\0';
    (void)semel__db_do(&d->sql, doing, SQL_restart_read, NULL, NULL, read_timeline, &notes[2], NULL);
    for (size_t i = 0; i < sizeof notes / sizeof notes[0]; i++)
        if (notes[i].shown[0] != '\0')
            snprintf(out + strlen(out), size - strlen(out), "; %s", notes[i].shown);
}

/* ---- what the caller's transaction holds --------------------------------------------------------- */

struct held {
    int64_t token;
    struct semel_str consumer, source, id;
    int attempt;
};

static const struct sql_field held_fields[] = {
    SQL_FIELD(struct held, token, token),     SQL_FIELD(struct held, consumer, consumer),
    SQL_FIELD(struct held, source, source),   SQL_FIELD(struct held, id, message_id),
    SQL_FIELD(struct held, attempt, attempt),
};

semel_status semel__pg_hold(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                            struct semel_str id, int64_t token, int attempt, struct semel_error *err)
{
    const struct held held = {token, consumer, source, id, attempt};
    return semel__db_do(semel__db_of(store), "holding a message", SQL_held_put, SQL_ONE(held_fields, &held), NULL, NULL,
                        NULL, err);
}

semel_status semel__pg_unhold(struct semel_store *store, int64_t token, struct semel_error *err)
{
    const struct held held = {.token = token};
    return semel__db_do(semel__db_of(store), "letting go of a message", SQL_held_drop, SQL_ONE(held_fields, &held),
                        NULL, NULL, NULL, err);
}

semel_status semel__pg_hold_back(struct semel_store *store, int64_t token, struct semel_error *err)
{
    const struct held held = {.token = token};
    semel__db_start(semel__db_of(store), "refusing an end");
    semel__db_run(semel__db_of(store), SQL_held_forget, SQL_ONE(held_fields, &held), NULL, NULL, NULL);
    semel__db_run(semel__db_of(store), SQL_held_refuse, SQL_ONE(held_fields, &held), NULL, NULL, NULL);
    return semel__db_flush(semel__db_of(store), err);
}

/* ---- notes about it ------------------------------------------------------------------------------ */

struct said {
    struct semel_str role, missing, synchronous_commit;
    bool fsync_off, public_writable;
};

static const struct sql_field said_fields[] = {
    SQL_SHOWN(struct said, role, role, 0),
    SQL_SHOWN(struct said, missing, missing, 0),
    SQL_SHOWN(struct said, synchronous_commit, synchronous_commit, 0),
    SQL_SHOWN(struct said, fsync_off, fsync_off, 0),
    SQL_SHOWN(struct said, public_writable, public_writable, 0),
};

void semel__pg_about(struct semel_store *store, char *out, size_t size)
{
    struct pg_store *d = semel__pg_of(store);
    const char *version = d->conn != NULL ? PQparameterStatus(d->conn, "server_version") : NULL;
    char shown[64];
    semel__str_show(shown, sizeof(shown), semel__str(version != NULL ? version : "of unknown version"));
    snprintf(out, size, "PostgreSQL %s", shown);
    put_notes(d, out, size);
}

void semel__pg_client(char *out, size_t size)
{
    int version = PQlibVersion();
    snprintf(out, size, "libpq %d.%d", version / 10000, version % 10000);
}

static semel_status read_rights(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct semel_pg_rights *ret = ctx;
    struct said said = {0};
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(said_fields), NULL, &said, err);
    semel__str_show(ret->role, sizeof(ret->role), said.role);
    semel__str_show(ret->missing, sizeof(ret->missing), said.missing);
    ret->unsafe = semel__str_eqz(said.synchronous_commit, "off");
    ret->fsync_off = said.fsync_off;
    ret->public_writable = said.public_writable;
    return status;
}

semel_status semel__pg_rights(struct semel_store *store, const struct semel_pg_needs *needs,
                              struct semel_pg_rights *ret, struct semel_error *err)
{
    static const struct sql_field fields[] = {SQL_FIELD(struct semel_pg_needs, positions, positions),
                                              SQL_FIELD(struct semel_pg_needs, relays, relays),
                                              SQL_FIELD(struct semel_pg_needs, gateways, gateways)};
    struct sql *db = semel__db_of(store);
    return semel__db_do(db, "looking at the rights", SQL_server_rights, SQL_ONE(fields, needs), NULL, read_rights, ret,
                        err);
}

semel_status semel__pg_outbox(struct semel_store *store, struct semel_pg_outbox *ret, struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_FIELD(struct semel_pg_outbox, last, seq),          SQL_FIELD(struct semel_pg_outbox, highest, highest),
        SQL_FIELD(struct semel_pg_outbox, cache, cache),       SQL_FIELD(struct semel_pg_outbox, descends, descends),
        SQL_FIELD(struct semel_pg_outbox, notifies, notifies),
    };
    struct sql_into into = {SQL_FIELDS(fields), .items = ret, .size = sizeof *ret};
    *ret = (struct semel_pg_outbox){0};
    return semel__db_do(semel__db_of(store), "looking at the outbox", SQL_server_outbox, NULL, NULL,
                        semel__db_read_item, &into, err);
}

/* ---- notifications ------------------------------------------------------------------------------- */

semel_status semel__pg_listen(struct semel_store *store, struct semel_error *err)
{
    if (semel__pg_of(store)->pooler)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "behind a transaction pooler LISTEN hears nothing");
    return semel__db_do(semel__db_of(store), "listening", SQL_outbox_listen, NULL, NULL, NULL, NULL, err);
}

semel_status semel__pg_ring(struct semel_store *store, struct semel_error *err)
{
    return semel__db_do(semel__db_of(store), "notifying", SQL_outbox_ring, NULL, NULL, NULL, NULL, err);
}

semel_status semel__pg_hear(struct semel_store *store, int wait_ms, bool *ret, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct pollfd poller = {.fd = PQsocket(d->conn), .events = POLLIN};
    *ret = false;
    for (bool waited = false;; waited = true) {
        for (PGnotify *heard; (heard = PQnotifies(d->conn)) != NULL; *ret = true)
            PQfreemem(heard);
        if (*ret || waited || poll(&poller, 1, wait_ms) <= 0)
            return SEMEL_OK;
        if (PQconsumeInput(d->conn) == 0 || PQstatus(d->conn) != CONNECTION_OK)
            return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "the connection that listens is gone");
    }
}

/* ---- connecting and disconnecting ---------------------------------------------------------------- */

/* Version, encodings, whether it takes writes, schema. */
static semel_status suitable(struct pg_store *d, struct semel_error *err)
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
        status = check_server(d, err);
    if (status == SEMEL_OK)
        status = read_role(d, err);
    if (status == SEMEL_OK)
        status = semel__record_schema_check(&d->sql, err);
    if (status == SEMEL_OK && d->sql.store.options.migrate)
        status = semel__record_migrate(&d->sql.store, NULL, NULL, err);
    if (status == SEMEL_OK && !d->sql.store.options.inspect)
        status = move_sequences(d, err);
    return status == SEMEL_OK ? semel__pg_timeline(d, err) : status;
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

static void disconnect_server(struct pg_store *d)
{
    bool ours = d->pid == getpid();
    semel__pg_tx_abandon(d, ours);
    if (d->conn != NULL && !d->wrapped) {
        if (!ours)
            mute(d->conn);
        PQfinish(d->conn);
    }
    d->conn = NULL;
    d->n_prepared = 0;
}

static semel_status connect_to_server(struct pg_store *d, struct semel_error *err)
{
    d->pid = getpid();
    d->broken = d->lost_wait = false;
    semel_status status = connect_new(d, err);
    if (status == SEMEL_OK)
        status = suitable(d, err);
    if (status != SEMEL_OK)
        disconnect_server(d);
    return status;
}

/* ---- opening and closing ------------------------------------------------------------------------- */

bool semel__pg_is(const struct semel_store *store)
{
    return strcmp(store->ops->name, "postgres") == 0 || strcmp(store->ops->name, "postgresql") == 0;
}

static semel_status prepare(struct pg_store *d, struct semel_error *err)
{
    const struct semel_store_options *o = &d->sql.store.options;
    d->sql.driver = &semel__pg_driver;
    snprintf(d->lock_timeout, sizeof(d->lock_timeout), "%d", o->lock_timeout_ms > 0 ? o->lock_timeout_ms : TIMEOUT_MS);
    d->sql.clock = o->clock;
    d->sql.rng = o->rng != NULL ? o->rng : &d->own_rng;
    d->pid = getpid();
    if (o->rng == NULL && !semel__random_seed_os(&d->own_rng))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the system gives no random bytes");
    return SEMEL_OK;
}

static void release(struct pg_store *d)
{
    disconnect_server(d);
    semel__pg_tx_free(d);
    semel__pg_shapes_free(d);
    semel__pg_forget_url(d);
}

static semel_status pg_open(struct semel_store *store, struct semel_str location, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    semel_status status = prepare(d, err);
    if (status == SEMEL_OK)
        status = semel__pg_url(d, location, err);
    if (status == SEMEL_OK)
        status = connect_to_server(d, err);
    if (status != SEMEL_OK)
        release(d);
    return status;
}

static void pg_close(struct semel_store *store)
{
    release(semel__pg_of(store));
}

/* A caller's connection is the connection itself: there only what we began is rolled back. */
static semel_status pg_reopen(struct semel_store *store, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    if (!d->wrapped) {
        disconnect_server(d);
        return connect_to_server(d, err);
    }
    if (d->pid == getpid())
        semel__pg_rollback(store);
    d->joined = false;
    if (d->conn == NULL || d->pid != getpid() || d->broken || PQstatus(d->conn) != CONNECTION_OK)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "this connection is the caller's and cannot be opened again from here");
    return SEMEL_OK;
}

static semel_status wrap(struct pg_store *d, struct semel_error *err)
{
    semel_status status = prepare(d, err);
    if (status != SEMEL_OK)
        return status;
    if (d->conn == NULL || PQstatus(d->conn) != CONNECTION_OK)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "the connection is not open");
    if (PQtransactionStatus(d->conn) == PQTRANS_INERROR)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the open transaction has failed already: roll it back first");
    return suitable(d, err);
}

semel_status semel__store_pg_wrap(struct semel_store **ret, struct pg_conn *conn,
                                  const struct semel_store_options *options, struct semel_error *err)
{
    struct pg_store *d = semel__calloc(1, sizeof(*d));
    if (d == NULL)
        return semel__fail_memory(err);
    d->sql.store.ops = &semel__store_postgres;
    if (options != NULL)
        d->sql.store.options = *options;
    d->conn = conn;
    d->wrapped = true;
    semel_status status = wrap(d, err);
    if (status != SEMEL_OK) {
        release(d);
        semel__free(d);
        return status;
    }
    *ret = &d->sql.store;
    return SEMEL_OK;
}

static void *pg_native(struct semel_store *store)
{
    return semel__pg_of(store)->conn;
}

int64_t semel__pg_trips(struct semel_store *store)
{
    return semel__pg_of(store)->trips;
}

/* The one table, under each of its names. */
#define OPS(scheme)                                                                                                    \
    {                                                                                                                  \
        .name = scheme,                                                                                                \
        .capabilities = SEMEL_STORE_ATOMIC | SEMEL_STORE_CONCURRENT | SEMEL_STORE_DURABLE | SEMEL_STORE_SQL,           \
        .size = sizeof(struct pg_store), .open = pg_open, .close = pg_close, .reopen = pg_reopen, .native = pg_native, \
        .relay = &semel__record_relay_sharded, .keys = &semel__record_keys, PG_TRANSACTIONS, SEMEL_RECORDS             \
    }

const struct semel_store_ops semel__store_postgres = OPS("postgres");
const struct semel_store_ops semel__store_postgresql = OPS("postgresql");
