/* SPDX-License-Identifier: MIT
 *
 * check.c: `semel check`: finds the mistakes in a settings file, or prints what each of its routes and outboxes
 * promises.
 *
 * conf knows what is right; this file prints it. With --online it also asks the store, the brokers, the servers of
 * handlers and those behind gateways. A process of its own asks each group of questions, and reports its answers one by
 * one through a pipe. The command kills a process that reports nothing for too long: whatever a resolver or a client
 * library does, the command ends.
 *
 * Invariants: a file with a mistake has no answers: the command prints either the mistakes or the promises. Asking
 * changes nothing (but PostgreSQL's timeline is noted, as always, and an outbox loses a number), reads no message,
 * publishes no event and sends no request to a handler.
 * No answer contains a secret. One process asks at a time; it is gone before the next one starts, and it never returns
 * from start(). An answer that is cut short ends its group as a failure.
 */
#define _GNU_SOURCE /* pipe2 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/wait.h"
#include "cli/cli.h"
#include "conf/conf.h"
#include "core/consumer.h"
#include "core/relay.h"
#include "handler/sql.h"
#include "store/migrations.h"
#include "store/query.h"
#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

#define TEXT_MAX_BYTES ((size_t)1 << 20)
#define ASK_MS 5000 /* for each question */
/* Questions end by themselves after ASK_MS; this is for what does not keep to that. */
#define PATIENCE_MS (ASK_MS + 2000)
#define ANSWERS_MAX 50000
#define LOCK_MS 3000
#define URL_MAX 8192
#define HOUR_US (INT64_C(3600) * 1000000)
#define SPAN 32
#define THE_STORE SIZE_MAX
#define ORDER_OWN                                                                                                      \
    "the number of an event, within an aggregate; it is the order of commits only where writers hold the aggregate's " \
    "lock before they insert"

enum result { OK, WARNING, FAILED, ASKING };

/* An answer, or (ASKING) the question that is asked now. It fits into a pipe in one piece. */
struct answer {
    enum result result;
    size_t about; /* a place in the file: the routes, the outboxes, then the gateways; THE_STORE: the store */
    char question[96];
    char text[900];
};
_Static_assert(sizeof(struct answer) <= 4096, "a pipe takes it in one piece");

struct answers {
    const struct semel_conf *conf;
    struct answer **at; /* the store's first, then by their place */
    size_t n, warnings, failures;
};

static const char *const result_names[] = {"ok", "warning", "failed", "failed"};

/* ---- inside the process that asks ---------------------------------------------------------------- */

struct asker {
    const struct semel_conf *conf;
    size_t about; /* who is asked for */
    int fd;
};

static const struct semel_route *route_of(const struct asker *asker)
{
    return &asker->conf->routes[asker->about];
}

/* NULL: it is something else. */
static const struct semel_conf_outbox *outbox_at(const struct semel_conf *conf, size_t about)
{
    return about >= conf->n_routes && about - conf->n_routes < conf->n_outboxes
               ? &conf->outboxes[about - conf->n_routes]
               : NULL;
}

static const struct semel_conf_gateway *gateway_at(const struct semel_conf *conf, size_t about)
{
    const size_t before = conf->n_routes + conf->n_outboxes;
    return about >= before && about - before < conf->n_gateways ? &conf->gateways[about - before] : NULL;
}

static size_t places(const struct semel_conf *conf)
{
    return conf->n_routes + conf->n_outboxes + conf->n_gateways;
}

static void put(const struct asker *asker, const struct answer *answer)
{
    ssize_t n;
    do
        n = write(asker->fd, answer, sizeof(*answer));
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(*answer))
        _exit(CLI_FAILED); /* nobody listens any more */
}

static void ask(const struct asker *asker, const char *question)
{
    struct answer answer = {.result = ASKING, .about = asker->about};
    semel__str_show(answer.question, sizeof(answer.question), semel__str(question));
    put(asker, &answer);
}

__attribute__((format(printf, 4, 5))) static void report(const struct asker *asker, enum result result,
                                                         const char *question, const char *fmt, ...)
{
    struct answer answer = {.result = result, .about = asker->about};
    char text[sizeof(answer.text)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    semel__str_show(answer.question, sizeof(answer.question), semel__str(question));
    semel__str_show(answer.text, sizeof(answer.text), semel__str(text));
    put(asker, &answer);
}

/* ---- the store ----------------------------------------------------------------------------------- */

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
        snprintf(url + length, URL_MAX - (size_t)length, "%s%d", with, ASK_MS / 1000);
}

static bool is_refused(const struct semel_error *err, enum semel_store_refusal why)
{
    return err->status == SEMEL_INVALID && err->code == (int)why;
}

static void report_closed(const struct asker *asker, semel_status status, const struct semel_error *err)
{
#ifdef SEMEL_WITH_POSTGRES
    if (asker->conf->store_kind == SEMEL_CONF_STORE_POSTGRES && err->code == SEMEL_PG_DENIED) {
        report(asker, FAILED, "rights", "%s; sql/postgres/roles.sql grants a worker what it needs", err->text);
        return;
    }
#endif
    if (is_refused(err, SEMEL_STORE_NO_SCHEMA) || is_refused(err, SEMEL_STORE_OLD_SCHEMA)) {
        report(asker, OK, "reach", "it answers");
        report(asker, FAILED, "schema", "%s; `semel migrate` does that", err->text);
    } else if (is_refused(err, SEMEL_STORE_NEW_SCHEMA)) {
        report(asker, OK, "reach", "it answers");
        report(asker, FAILED, "schema", "%s", err->text);
    } else {
        report(asker, FAILED, "reach", "%s%s%s", status == SEMEL_RETRY ? "cannot be reached: " : "", err->text,
               is_refused(err, SEMEL_STORE_NO_DATABASE) ? "; `semel migrate` makes one" : "");
    }
}

static void ask_sqlite(const struct asker *asker)
{
    char about[256];
    semel__sqlite_about(semel__sqlite_version(), about, sizeof(about));
    /* A colon behind the version: there is something to say of it (P26). */
    report(asker, strchr(about, ':') != NULL ? WARNING : OK, "version", "%s", about);
}

#ifdef SEMEL_WITH_POSTGRES
static bool needs_positions(const struct semel_conf *conf)
{
    for (size_t i = 0; i < conf->n_routes; i++)
        if (semel__source_stores_positions(&conf->routes[i].from))
            return true;
    return false;
}

static void ask_rights(const struct asker *asker, struct semel_store *store)
{
    const struct semel_conf *conf = asker->conf;
    static const char *const who[] = {"routes", "routes and relays", "routes and gateways",
                                      "routes, relays and gateways"};
    const struct semel_pg_needs needs = {.positions = needs_positions(conf),
                                         .relays = conf->n_outboxes > 0,
                                         .gateways = conf->n_gateways > 0};
    struct semel_pg_rights rights = {0};
    struct semel_error err;
    ask(asker, "rights");
    if (semel__pg_rights(store, &needs, &rights, &err) != SEMEL_OK) {
        report(asker, FAILED, "rights", "cannot be asked: %s", err.text);
        return;
    }
    if (rights.missing[0] != '\0')
        report(asker, FAILED, "rights", "role %s lacks %s; sql/postgres/roles.sql grants a worker what it needs",
               rights.role, rights.missing);
    else
        report(asker, OK, "rights", "role %s may do what %s need", rights.role,
               who[(needs.relays ? 1 : 0) + (needs.gateways ? 2 : 0)]);
    if (rights.public_writable)
        report(asker, WARNING, "public",
               "everybody may create functions in the schema public, which your statements may call unawares: "
               "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    if (rights.unsafe)
        report(asker, FAILED, "durability",
               "synchronous_commit is off for role %s: what was answered as committed could be lost; set it to on "
               "for this role and database",
               rights.role);
    else if (rights.fsync_off)
        report(asker, WARNING, "durability", "fsync is off: a power failure can lose or damage everything");
    else
        report(asker, OK, "durability", "what is committed lasts");
}
#endif

/* Can we write at all? Nothing is. */
static bool ask_begin(const struct asker *asker, struct semel_store *store)
{
    struct semel_error err = {0};
    int64_t now_us;
    ask(asker, "transaction");
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, &err);
    if (status == SEMEL_OK) {
        semel_store_rollback(store);
        report(asker, OK, "transaction", "one can be begun");
        return true;
    }
    bool busy = status == SEMEL_RETRY && err.cls == SEMEL_CLASS_TRANSIENT; /* somebody else writes */
    report(asker, busy ? WARNING : FAILED, "transaction", "%s", err.text);
    return false;
}

static void ask_database(const struct asker *asker, struct semel_store *store)
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

/* A statement that was prepared: may the role run it? */
static void ask_may_run(const struct asker *asker, struct semel_store *store)
{
#ifdef SEMEL_WITH_POSTGRES
    const struct semel_route *route = route_of(asker);
    struct semel_error err = {0};
    if (asker->conf->store_kind == SEMEL_CONF_STORE_POSTGRES) {
        semel_status status = semel__pg_may_run(store, route->handler.u.sql.statement, route->values.n, &err);
        if (status == SEMEL_OK)
            report(asker, OK, "statement", "it can be prepared, and the role may run it");
        else if (err.code == SEMEL_PG_DENIED)
            report(asker, FAILED, "statement", "%s; GRANT it to the role", err.text);
        else
            report(asker, OK, "statement", "it can be prepared; whether the role may run it shows only when it does");
        return;
    }
#endif
    (void)store;
    report(asker, OK, "statement", "it can be prepared");
}

static void ask_statement(const struct asker *asker, struct semel_store *store)
{
    const struct semel_route *route = route_of(asker);
    const struct semel_sql_desc desc = {
        .statement = route->handler.u.sql.statement,
        .mode = route->handler.u.sql.set ? SEMEL_SQL_SET : SEMEL_SQL_EACH,
        .values = route->values.at,
        .n_values = route->values.n,
        .ordered = route->policy.order != SEMEL_ORDER_NONE,
    };
    struct semel_error err = {0};
    struct semel_sql *sql = NULL;
    ask(asker, "statement");
    if (semel__sql_handler_new(&sql, &desc, store, &err) != SEMEL_OK)
        report(asker, FAILED, "statement", "%s", err.text);
    else
        ask_may_run(asker, store);
    semel__sql_handler_free(sql);
}

/* ---- what the store says of an outbox ------------------------------------------------------------ */

#ifdef SEMEL_WITH_POSTGRES
/* P1: the order and the relay's starting points rest on the sequence. */
static void judge_numbers(const struct asker *asker, const struct semel_pg_outbox *o)
{
    static const char sequence[] = "semel.outbox_seq_seq";
    if (o->last < o->highest)
        report(asker, FAILED, "numbers",
               "the sequence stands at %lld, and the table has number %lld: a new event would go before older ones. "
               "The next start of a relay moves it; by hand: SELECT setval('%s', %lld)",
               (long long)o->last, (long long)o->highest, sequence, (long long)o->highest);
    else if (o->cache > 1)
        report(asker, FAILED, "numbers",
               "sessions draw %lld numbers ahead, so that a later event of an aggregate may get a lower number: "
               "ALTER SEQUENCE %s CACHE 1",
               (long long)o->cache, sequence);
    else if (o->descends)
        report(asker, FAILED, "numbers",
               "the sequence counts down or starts anew at its end: ALTER SEQUENCE %s INCREMENT 1 NO CYCLE", sequence);
    else
        report(asker, OK, "numbers", "the sequence is at %lld, and nothing above that is stored", (long long)o->last);
}

/* In a transaction that is rolled back; the number that it draws is lost. */
static void ask_locks(const struct asker *asker, struct semel_store *store)
{
    struct semel_error err = {0};
    bool visible = false;
    int64_t now_us;
    ask(asker, "locks");
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, &err);
    if (status == SEMEL_OK) {
        status = store->ops->relay->visible(store, &visible, &err);
        semel_store_rollback(store);
    }
    if (status != SEMEL_OK)
        report(asker, FAILED, "locks", "%s; the relay needs SELECT on pg_catalog.pg_locks", err.text);
    else if (visible)
        report(asker, OK, "locks", "pg_locks shows who has drawn numbers: scans skip what was published");
    else
        report(asker, WARNING, "locks",
               "pg_locks does not show who has drawn numbers: every scan starts at the bottom of the table. Nothing is "
               "lost; the relay gets slow while a long transaction keeps published rows from being vacuumed");
}

/* A notification has to come to a connection that is idle: behind a transaction pooler it does not. */
static bool hears(struct semel_store *store, struct semel_store *listener, struct semel_error *err)
{
    bool heard = false;
    semel_status status = semel__pg_listen(listener, err);
    if (status == SEMEL_OK)
        status = semel__pg_hear(listener, 1, &heard, err); /* what others send does not count */
    if (status == SEMEL_OK)
        status = semel__pg_ring(store, err);
    if (status == SEMEL_OK)
        status = semel__pg_hear(listener, LOCK_MS, &heard, err);
    if (status == SEMEL_OK && !heard)
        snprintf(err->text, sizeof(err->text), "no notification came in %d s", LOCK_MS / 1000);
    return status == SEMEL_OK && heard;
}

static void ask_notify(const struct asker *asker, struct semel_store *store, bool sends, const char *url)
{
    const struct semel_store_options options = {.lock_timeout_ms = LOCK_MS, .inspect = true};
    struct semel_store *listener = NULL;
    struct semel_error err = {0};
    if (!outbox_at(asker->conf, asker->about)->notify) {
        if (sends)
            report(asker, WARNING, "notify",
                   "the trigger outbox_notify makes commits stand in line, and no relay listens: set notify: true, or "
                   "DROP TRIGGER outbox_notify ON semel.outbox");
        return;
    }
    ask(asker, "notify");
    bool ok = semel_store_open(&listener, cli_store_drivers(), url, &options, &err) == SEMEL_OK &&
              hears(store, listener, &err);
    if (!ok)
        report(asker, FAILED, "notify",
               "%s; LISTEN needs the server itself, and no transaction pooler. Without it the relay polls", err.text);
    else if (!sends)
        report(asker, WARNING, "notify",
               "nobody sends notifications, and the relay polls: psql -f sql/postgres/notify.sql makes the trigger");
    else
        report(asker, OK, "notify", "notifications are sent, and come");
    semel_store_close(listener);
}

static void ask_outbox(const struct asker *asker, struct semel_store *store, const char *url)
{
    struct semel_pg_outbox outbox;
    struct semel_error err = {0};
    ask(asker, "numbers");
    if (semel__pg_outbox(store, &outbox, &err) != SEMEL_OK) {
        report(asker, FAILED, "numbers", "%s; sql/postgres/roles.sql grants a worker what it needs", err.text);
        return;
    }
    judge_numbers(asker, &outbox);
    ask_locks(asker, store);
    ask_notify(asker, store, outbox.notifies, url);
}
#endif

/* Can the table be relayed, and is there an index for it? */
static void ask_table(const struct asker *asker, struct semel_store *store, const struct semel_conf_outbox *outbox)
{
    const struct semel_relay_ops *relay = store->ops->relay;
    struct semel_relay_inspection found;
    struct semel_error err = {0};
    ask(asker, "table");
    if (relay->inspect(store, &outbox->table, &found, &err) != SEMEL_OK) {
        report(asker, FAILED, "table", "%s", err.text);
        return;
    }
    report(asker, OK, "table", "%s has the columns; its order rests on %s (%s)", found.relation, outbox->table.order.p,
           found.order_type);
    if (found.indexed)
        report(asker, OK, "index", "an index gives the rows that were not published, in their order");
    else
        report(asker, WARNING, "index",
               "no index gives only the rows that were not published, in their order, so that "
               "each poll reads more: %s",
               found.index);
}

static void ask_outboxes(struct asker *asker, struct semel_store *store, const char *url)
{
    const struct semel_conf *conf = asker->conf;
    (void)url;
    for (asker->about = conf->n_routes; asker->about < conf->n_routes + conf->n_outboxes; asker->about++) {
        const struct semel_conf_outbox *outbox = outbox_at(conf, asker->about);
        if (semel__str_given(outbox->table.name))
            ask_table(asker, store, outbox);
#ifdef SEMEL_WITH_POSTGRES
        else if (conf->store_kind == SEMEL_CONF_STORE_POSTGRES)
            ask_outbox(asker, store, url);
#endif
    }
}

static void ask_store(struct asker *asker)
{
    const struct semel_store_options options = {.lock_timeout_ms = LOCK_MS, .inspect = true};
    const struct semel_conf *conf = asker->conf;
    struct semel_store *store = NULL;
    struct semel_error err = {0};
    char url[URL_MAX], about[400];
    if (cli_store_left_out(conf->store.p)) {
        report(asker, FAILED, "reach", "this program was built without PostgreSQL");
        return;
    }
    ask(asker, "reach");
    hurry(conf, url);
    semel_status status = semel_store_open(&store, cli_store_drivers(), url, &options, &err);
    if (status != SEMEL_OK) {
        err.status = status;
        report_closed(asker, status, &err);
        return;
    }
    cli_store_about(store, about, sizeof(about));
    about[strcspn(about, ":;")] = '\0'; /* what else there is to say has lines of its own */
    report(asker, OK, "reach", "%s", about);
    report(asker, OK, "schema", "version %d, which is current", semel_query_schema_found(store));
    ask_database(asker, store);
    bool writes = ask_begin(asker, store);
    for (asker->about = 0; writes && asker->about < conf->n_routes; asker->about++)
        if (route_of(asker)->handler.kind == SEMEL_DO_SQL)
            ask_statement(asker, store);
    if (writes)
        ask_outboxes(asker, store, url);
    semel_store_close(store);
}

/* ---- the brokers, and what they keep against the horizon (I18) ------------------------------------ */

/* A broker that keeps longer than `horizon.broker` makes the horizon longer, and `keep.completed` must cover it. No
 * retention covers a broker that keeps for ever: then something else must know a copy. */

static void span(int64_t us, char out[SPAN])
{
    if (us == SEMEL_NONE)
        snprintf(out, SPAN, "for ever");
    else
        semel__duration_format(us, out, SPAN);
}

/* Without odd microseconds. */
static int64_t whole_hours(int64_t us)
{
    return us % HOUR_US == 0 || us > INT64_MAX - HOUR_US ? us : (us / HOUR_US + 1) * HOUR_US;
}

static void judge_forever(const struct asker *asker, const char *question, const char *because)
{
    const struct semel_route *route = route_of(asker);
    const char *lasting = semel__route_lasting(route);
    if (route->horizon.broker_us == SEMEL_NONE)
        report(asker, OK, question, "it keeps for ever (%s), as horizon.broker says", because);
    else if (lasting != NULL)
        report(asker, WARNING, question, "it keeps for ever (%s); say horizon.broker: forever. %s%s", because,
               "The route bears it: ", lasting);
    else
        report(asker, FAILED, question,
               "it keeps for ever (%s), and no keep.completed covers that; the route needs versions, a business "
               "key kept for ever, a `time` rule or timed_ids, and horizon.broker: forever",
               because);
}

/* I18 */
static void judge_retention(const struct asker *asker, const char *question, int64_t kept_us)
{
    const struct semel_route *route = route_of(asker);
    struct semel_horizon horizon = route->horizon;
    char kept[SPAN], said[SPAN], retention[SPAN], enough[SPAN];
    span(kept_us, kept);
    span(horizon.broker_us, said);
    span(route->policy.retention_us, retention);
    if (horizon.broker_us == SEMEL_NONE || kept_us <= horizon.broker_us) {
        report(asker, OK, question, "it keeps %s, and horizon.broker is %s", kept, said);
        return;
    }
    horizon.broker_us = kept_us;
    span(whole_hours(semel__horizon_us(&horizon)), enough);
    if (semel__retention_check(route->policy.retention_us, &horizon, NULL) == SEMEL_OK)
        report(asker, WARNING, question,
               "it keeps %s, and horizon.broker is only %s; keep.completed of %s covers that too, but say "
               "horizon.broker: %s",
               kept, said, retention, kept);
    else
        report(asker, FAILED, question,
               "it keeps %s, and horizon.broker is only %s: keep.completed of %s is shorter than the horizon, so "
               "that a duplicate could come back after its record was purged; %s would do",
               kept, said, retention, enough);
}

struct asking {
    struct semel_inspector base;
    const struct asker *asker;
};

static const struct asker *asker_of(const struct semel_inspector *inspector)
{
    return ((const struct asking *)inspector)->asker;
}

static void asking(const struct semel_inspector *inspector, const char *question)
{
    ask(asker_of(inspector), question);
}

static void found(const struct semel_inspector *inspector, enum semel_finding finding, const char *question,
                  const char *text)
{
    static const enum result results[] = {
        [SEMEL_FINDING_OK] = OK, [SEMEL_FINDING_WARNING] = WARNING, [SEMEL_FINDING_FAILED] = FAILED};
    report(asker_of(inspector), results[finding], question, "%s", text);
}

static void keeps(const struct semel_inspector *inspector, const char *question, int64_t kept_us, const char *because)
{
    if (kept_us == SEMEL_NONE)
        judge_forever(asker_of(inspector), question, because);
    else
        judge_retention(asker_of(inspector), question, kept_us);
}

static void unreached(const struct semel_inspector *inspector, const char *question, semel_status status,
                      const struct semel_error *err)
{
    bool broken = status == SEMEL_INVALID || err->cls == SEMEL_CLASS_BROKEN;
    report(asker_of(inspector), FAILED, question, "%s%s", broken ? "" : "cannot be reached: ", err->text);
}

#define INSPECTOR .timeout_ms = ASK_MS, .asking = asking, .found = found, .keeps = keeps, .unreached = unreached

static void ask_sink(struct asker *asker)
{
    const struct semel_conf_outbox *outbox = outbox_at(asker->conf, asker->about);
    const struct semel_broker_kind *kind = outbox->to.kind;
    const struct asking ask = {.base = {INSPECTOR, .one_by_one = outbox->in_flight == 1}, .asker = asker};
    if (kind->to_inspect != NULL)
        kind->to_inspect(outbox->to.options, &ask.base);
    else
        report(asker, FAILED, kind->name, "this program was built without %s", kind->name);
}

static void ask_source(struct asker *asker)
{
    const struct semel_route *route = route_of(asker);
    const struct semel_broker_kind *kind = route->from.kind;
    const struct asking ask = {
        .base = {INSPECTOR, .lease_us = route->policy.lease_us, .retry_max = route->policy.retry_max},
        .asker = asker,
    };
    if (kind->inspect != NULL)
        kind->inspect(route->from.options, &ask.base);
    else if (semel__route_listens(route) == NULL && !semel__route_stored(route)) /* else there is nobody to ask */
        report(asker, FAILED, kind->name, "this program was built without %s", kind->name);
}

/* ---- what handlers call -------------------------------------------------------------------------- */

static bool wait_connected(int fd, int64_t until_us)
{
    struct pollfd poller = {.fd = fd, .events = POLLOUT};
    socklen_t size = sizeof(int);
    int error = 0, n;
    do {
        int64_t left_ms = (until_us - semel__steady_us()) / 1000;
        n = poll(&poller, 1, left_ms > 0 ? (int)left_ms : 0);
    } while (n < 0 && errno == EINTR);
    if (n <= 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = n == 0 ? ETIMEDOUT : errno;
    errno = error;
    return error == 0;
}

/* false: errno says why. */
static bool connects(const struct addrinfo *at, int64_t until_us)
{
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0)
        return false;
    bool ok = connect(fd, at->ai_addr, at->ai_addrlen) == 0 || (errno == EINPROGRESS && wait_connected(fd, until_us));
    int error = errno;
    close(fd);
    errno = error;
    return ok;
}

static void ask_server(const struct asker *asker, const char *question, struct semel_str url)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    struct semel_str host_part, port_part;
    char host[256] = "", port[8];
    ask(asker, question);
    semel__url_host(url, &host_part, &port_part);
    if (host_part.n > 0 && host_part.n < sizeof(host) && port_part.n < sizeof(port))
        snprintf(host, sizeof(host), "%.*s", (int)host_part.n, host_part.p);
    if (host[0] == '\0') {
        report(asker, FAILED, question, "the URL names no host and port to connect to");
        return;
    }
    snprintf(port, sizeof(port), "%s", strncmp(url.p, "https:", 6) == 0 ? "443" : "80");
    if (port_part.n > 0)
        snprintf(port, sizeof(port), "%.*s", (int)port_part.n, port_part.p);
    int code = getaddrinfo(host, port, &hints, &found);
    if (code != 0) {
        report(asker, FAILED, question, "cannot be reached: the name %s is not known: %s", host,
               code == EAI_SYSTEM ? cli_errno() : gai_strerror(code));
        return;
    }
    const int64_t until_us = semel__steady_us() + ASK_MS * INT64_C(1000);
    bool ok = false;
    for (const struct addrinfo *at = found; at != NULL && !ok; at = at->ai_next)
        ok = connects(at, until_us);
    if (ok)
        report(asker, OK, question, "%s port %s accepts connections", host, port);
    else
        report(asker, FAILED, question, "cannot be reached: %s port %s: %s", host, port, cli_errno());
    freeaddrinfo(found);
}

static void ask_program(const struct asker *asker, const char *question, struct semel_str program)
{
    if (access(program.p, X_OK) == 0)
        report(asker, OK, question, "%s can be run", program.p);
    else
        report(asker, FAILED, question, "%s cannot be run: %s", program.p, cli_errno());
}

static void ask_handler(struct asker *asker)
{
    const struct semel_do *handler = &route_of(asker)->handler;
    switch (handler->kind) {
    case SEMEL_DO_HTTP:
        ask_server(asker, "http", handler->u.http.url);
        if (semel__str_given(handler->u.http.reconcile))
            ask_server(asker, "reconcile", handler->u.http.reconcile);
        break;
    case SEMEL_DO_EXEC:
        ask_program(asker, "exec", handler->u.exec.program);
        if (semel__str_given(handler->u.exec.reconcile_program))
            ask_program(asker, "reconcile", handler->u.exec.reconcile_program);
        break;
    case SEMEL_DO_SQL:  /* asked with the store */
    case SEMEL_DO_PULL: /* workers come to us */
        break;
    }
}

/* ---- what is behind gateways ---------------------------------------------------------------------- */

static void ask_socket(const struct asker *asker, const char *question, const char *path)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct addrinfo at = {.ai_family = AF_UNIX,
                          .ai_socktype = SOCK_STREAM,
                          .ai_addr = (struct sockaddr *)&un,
                          .ai_addrlen = sizeof un};
    ask(asker, question);
    snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    if (connects(&at, semel__steady_us() + ASK_MS * INT64_C(1000)))
        report(asker, OK, question, "%s accepts connections", path);
    else
        report(asker, FAILED, question, "cannot be reached: %s: %s", path, cli_errno());
}

static void ask_gateway(struct asker *asker)
{
    const struct semel_conf_gateway *g = gateway_at(asker->conf, asker->about);
    if (strncmp(g->upstream.url.p, "unix:", 5) == 0)
        ask_socket(asker, "upstream", g->upstream.url.p + 5);
    else
        ask_server(asker, "upstream", g->upstream.url);
    if (semel__str_given(g->caller.check))
        ask_server(asker, "check", g->caller.check);
    for (size_t i = 0; i < g->n_guard; i++)
        if (semel__str_given(g->guard[i].reconcile))
            ask_server(asker, "reconcile", g->guard[i].reconcile);
}

/* ---- asking, and what came of it ----------------------------------------------------------------- */

typedef void (*group_fn)(struct asker *asker);

struct child {
    pid_t pid;
    int fd;
};

static bool start(struct asker *asker, group_fn group, struct child *ret)
{
    const pid_t parent = getpid();
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
            _exit(CLI_FAILED);
        close(ends[0]);
        asker->fd = ends[1];
        group(asker);
        _exit(CLI_OK);
    }
    close(ends[1]);
    if (pid < 0)
        close(ends[0]);
    *ret = (struct child){pid, ends[0]};
    return pid > 0;
}

static bool keep(struct cli *cli, const struct answer *answer, struct answers *all)
{
    struct answer *copy = semel__arena_alloc(&cli->arena, 1, sizeof(*copy));
    if (copy == NULL || all->n == ANSWERS_MAX)
        return false;
    *copy = *answer;
    all->at[all->n++] = copy;
    all->warnings += answer->result == WARNING;
    all->failures += answer->result == FAILED;
    return true;
}

/* The next answer. 0: there are no more; -1: none came in time, or it is none. */
static int receive(int fd, struct answer *ret)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    int n;
    do
        n = poll(&poller, 1, PATIENCE_MS);
    while (n < 0 && errno == EINTR);
    ssize_t got = n > 0 ? read(fd, ret, sizeof(*ret)) : -1;
    ret->question[sizeof(ret->question) - 1] = ret->text[sizeof(ret->text) - 1] = '\0';
    return got == 0 ? 0 : got == (ssize_t)sizeof(*ret) ? 1 : -1;
}

static bool ended_well(pid_t pid)
{
    int how = 0;
    pid_t got;
    do
        got = waitpid(pid, &how, 0);
    while (got < 0 && errno == EINTR);
    return got == pid && WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

static bool ask_group(struct cli *cli, struct asker *asker, group_fn group, struct answers *all)
{
    struct answer last = {.result = FAILED, .about = asker->about, .question = "asking"};
    struct answer answer;
    struct child child;
    bool ok = true;
    int got = 1;
    snprintf(last.text, sizeof(last.text), "no process can be started for it");
    if (!start(asker, group, &child))
        return keep(cli, &last, all);
    while (ok && (got = receive(child.fd, &answer)) > 0) {
        if (answer.result == ASKING)
            last = answer;
        else
            ok = keep(cli, &answer, all);
    }
    if (got < 0)
        kill(child.pid, SIGKILL);
    close(child.fd);
    bool well = ended_well(child.pid);
    if (!ok || (got == 0 && well))
        return ok;
    last.result = FAILED;
    snprintf(last.text, sizeof(last.text), "%s",
             got < 0 ? "cannot be reached: there was no answer in time" : "the process that asked has died");
    return keep(cli, &last, all);
}

static bool ask_all(struct cli *cli, const struct semel_conf *conf, struct answers *all)
{
    struct asker asker = {.conf = conf, .about = THE_STORE, .fd = -1};
    bool ok = ask_group(cli, &asker, ask_store, all);
    for (asker.about = 0; ok && asker.about < conf->n_routes; asker.about++)
        ok = ask_group(cli, &asker, ask_source, all) && ask_group(cli, &asker, ask_handler, all);
    for (; ok && asker.about < conf->n_routes + conf->n_outboxes; asker.about++)
        ok = ask_group(cli, &asker, ask_sink, all);
    for (; ok && asker.about < places(conf); asker.about++)
        ok = ask_group(cli, &asker, ask_gateway, all);
    return ok;
}

/* What the store says of a route's statement stands with the route. */
static bool sort_by_place(struct cli *cli, const struct semel_conf *conf, struct answers *all)
{
    struct answer **sorted = semel__arena_alloc(&cli->arena, all->n + 1, sizeof(struct answer *));
    size_t n = 0;
    if (sorted == NULL)
        return false;
    for (size_t i = 0; i <= places(conf); i++)
        for (size_t k = 0; k < all->n; k++)
            if (all->at[k]->about == (i == 0 ? THE_STORE : i - 1))
                sorted[n++] = all->at[k];
    all->at = sorted;
    all->n = n;
    return true;
}

static bool ask_everything(struct cli *cli, const struct semel_conf *conf, struct answers *ret)
{
    *ret = (struct answers){.conf = conf, .at = semel__arena_alloc(&cli->arena, ANSWERS_MAX, sizeof(struct answer *))};
    return ret->at != NULL && ask_all(cli, conf, ret) && sort_by_place(cli, conf, ret);
}

/* ---- for people ---------------------------------------------------------------------------------- */

static void say_route(const struct cli *cli, const struct semel_route *route)
{
    const struct semel_promise *promise = &route->promise;
    cli_say(cli, "%s: %s (from %s, do %s)", route->name.p, promise->label.text, route->from.kind->name,
            semel__do_name(route->handler.kind));
    cli_say(cli, "  %s", promise->why.p);
    for (int i = 0; i < SEMEL_CHECKLIST_COUNT; i++)
        cli_say(cli, "  %-14s %s", semel__checklist_name((enum semel_checklist)i), promise->answers[i].p);
    cli_say(cli, "%s", "");
}

static void say_outbox(const struct cli *cli, const struct semel_conf_outbox *outbox)
{
    const struct semel_relay_table *t = &outbox->table;
    cli_say(cli, "%s: outbox, to %s", outbox->name.p, outbox->to.kind->name);
    cli_say(cli, "  %-14s %s", semel__checklist_name(SEMEL_CHECKLIST_CONNECTION), outbox->connection.p);
    if (!semel__str_given(t->name)) {
        cli_say(cli, "  %-14s %s", "order", ORDER_OWN);
    } else if (!semel__str_given(t->aggregateid)) {
        cli_say(cli,
                "  %-14s none: %s has no column for the aggregate's id, so that each event is an aggregate of its own",
                "order", t->name.p);
    } else {
        cli_say(cli,
                "  %-14s the column %s of %s, then %s, within an aggregate; it is the order of commits only where "
                "writers hold the aggregate's lock before the value is drawn",
                "order", t->order.p, t->name.p, t->id.p);
    }
    if (semel__str_given(t->name))
        cli_say(cli, "  %-14s %s%s", "published", semel__str_given(t->mark) ? "marked in the column " : "deleted",
                semel__str_given(t->mark) ? t->mark.p : "");
    cli_say(cli, "%s", "");
}

static const char *why_gateway(const struct semel_conf_gateway *g)
{
    return g->guarantee == SEMEL_GUARANTEE_ATOMIC
               ? "the server behind finishes each key in its own transaction: a late or doubled run cannot commit"
               : "a request is sent once, and its answer stored before it is sent back; one without an answer is "
                 "unknown, "
                 "and never run again on a guess";
}

static void show_caller(const struct semel_conf_gateway *g, char *out, size_t size)
{
    const struct semel_conf_caller *c = &g->caller;
    if (semel__str_given(c->header))
        snprintf(out, size, "the header %s, from %zu trusted network%s", c->header.p, c->trusted_from.n,
                 c->trusted_from.n == 1 ? "" : "s");
    else if (semel__str_given(c->api_key))
        snprintf(out, size, "the digest of the API key in the header %s", c->api_key.p);
    else if (c->certificate)
        snprintf(out, size, "the subject of the client's certificate");
    else
        snprintf(out, size, "nobody is known: the keys of all clients are one heap");
}

static void show_guard(const struct semel_conf_gateway *g, size_t i, char *out, size_t size)
{
    static const char *const keys[] = {"guarded if it has a key", "a key is required", "never guarded"};
    static const char *const unknown[] = {"refused until somebody finds out", "reconciled", "run again"};
    const struct semel_conf_guard *rule = &g->guard[i];
    char answer[32], keep[32], settle[64] = "", span[32];
    semel__duration_format(rule->answer_us, answer, sizeof(answer));
    semel__duration_format(rule->keep_us, keep, sizeof(keep));
    semel__duration_format(rule->settle_us > 0 ? rule->settle_us : 2 * g->upstream.timeout_us, span, sizeof(span));
    if (rule->on_unknown == SEMEL_ON_UNKNOWN_RECONCILE)
        snprintf(settle, sizeof(settle), " (not_done counts after %s)", span);
    if (rule->key == SEMEL_CONF_KEY_OFF)
        snprintf(out, size, "%s: %s", rule->match.p, keys[rule->key]);
    else
        snprintf(out, size, "%s: %s; unknown: %s%s; answers are kept for %s, keys for %s%s%s", rule->match.p,
                 keys[rule->key], unknown[rule->on_unknown], settle, answer, keep,
                 rule->anonymous ? "; callers may be anonymous" : "",
                 rule->when_down == SEMEL_CONF_DOWN_PASS ? "; passes unguarded while the store is away" : "");
}

static void say_gateway(const struct cli *cli, const struct semel_conf_gateway *g)
{
    char text[2048];
    cli_say(cli, "%s: gateway, %s (in front of %s)", g->name.p, semel__gateway_guarantee(g), g->upstream.url.p);
    cli_say(cli, "  %s", why_gateway(g));
    cli_say(cli, "  %-14s %s%s", semel__checklist_name(SEMEL_CHECKLIST_CONNECTION), g->server.address.text.p,
            g->server.tls.on          ? ", TLS"
            : g->server.address.local ? ", from this machine only"
                                      : ", plain: a proxy terminates TLS");
    show_caller(g, text, sizeof(text));
    cli_say(cli, "  %-14s %s", "caller", text);
    for (size_t i = 0; i < g->n_guard; i++) {
        show_guard(g, i, text, sizeof(text));
        cli_say(cli, "  %-14s %s", i == 0 ? "guard" : "", text);
    }
    cli_say(cli, "  %-14s %s", g->n_guard == 0 ? "guard" : "", "everything else: POST and PATCH if they have a key");
    cli_say(cli, "%s", "");
}

/* The name of what an answer is about. */
static struct semel_str name_at(const struct semel_conf *conf, size_t about)
{
    const struct semel_conf_outbox *outbox = outbox_at(conf, about);
    const struct semel_conf_gateway *gateway = gateway_at(conf, about);
    if (about == THE_STORE)
        return (struct semel_str){0};
    return outbox != NULL ? outbox->name : gateway != NULL ? gateway->name : conf->routes[about].name;
}

static void say_answers(const struct cli *cli, const struct answers *online)
{
    for (size_t i = 0; i < online->n; i++) {
        const struct answer *a = online->at[i];
        bool store = a->about == THE_STORE;
        cli_say(cli, "%-8s %s%s: %s: %s", result_names[a->result],
                store                                        ? "store"
                : outbox_at(online->conf, a->about) != NULL  ? "outbox "
                : gateway_at(online->conf, a->about) != NULL ? "gateway "
                                                             : "route ",
                store ? "" : name_at(online->conf, a->about).p, a->question, a->text);
    }
}

static int print_mistakes(const char *file, const struct semel_conf_mistakes *mistakes)
{
    struct semel_buf buf;
    size_t n = mistakes->n + mistakes->more;
    semel__buf_init(&buf, TEXT_MAX_BYTES);
    semel__conf_mistakes_print(mistakes, &buf);
    fflush(stdout);
    fwrite(semel__buf_str(&buf).p, 1, semel__buf_str(&buf).n, stderr);
    bool failed = buf.failed;
    semel__buf_done(&buf);
    if (failed)
        return cli_fail(CLI_FAILED, "out of memory");
    return cli_fail(CLI_FAILED, "%s: %zu mistake%s", file, n, n == 1 ? "" : "s");
}

int cli_conf_load(const char *file, struct semel_conf **ret)
{
    struct semel_conf_mistakes *mistakes = semel__calloc(1, sizeof *mistakes);
    struct semel_error err = {0};
    int code = CLI_OK;
    if (mistakes == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    semel__conf_mistakes_init(mistakes);
    if (semel__conf_load(file, ret, mistakes, &err) != SEMEL_OK)
        code = mistakes->n > 0 ? print_mistakes(file, mistakes) : cli_fail(CLI_FAILED, "%s", err.text);
    semel__conf_mistakes_done(mistakes);
    semel__free(mistakes);
    return code;
}

/* ---- for programs -------------------------------------------------------------------------------- */

static void fill_route(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_route *route = &((const struct semel_conf *)ctx)->routes[i];
    const struct semel_promise *promise = &route->promise;
    struct semel_object answers;
    semel__object_text(one, "route", route->name);
    semel__object_text(one, "source", semel__str(route->from.kind->name));
    semel__object_text(one, "handler", semel__str(semel__do_name(route->handler.kind)));
    semel__object_text(one, "guarantee", semel__str(promise->label.text));
    semel__object_text(one, "why", promise->why);
    semel__object_text(one, "order", semel__str(semel__order_rests_name(promise->order)));
    semel__object_number(one, "retention_us", route->policy.retention_us);
    semel__object_number(one, "horizon_us", promise->horizon_us);
    semel__object_raw(one, "settings", route->settings);
    semel__object_init(&answers);
    for (int k = 0; k < SEMEL_CHECKLIST_COUNT; k++)
        semel__object_text(&answers, semel__checklist_name((enum semel_checklist)k), promise->answers[k]);
    semel__object_raw(one, "checklist", semel__object_end(&answers));
    one->buf.failed |= answers.buf.failed;
    semel__object_done(&answers);
}

static void fill_outbox(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_conf_outbox *outbox = &((const struct semel_conf *)ctx)->outboxes[i];
    const struct semel_relay_table *t = &outbox->table;
    const bool mapped = semel__str_given(t->name);
    semel__object_text(one, "outbox", outbox->name);
    semel__object_text(one, "sink", semel__str(outbox->to.kind->name));
    semel__object_text(one, "connection", outbox->connection);
    semel__object_text(one, "table", t->name);
    semel__object_text(one, "order",
                       !mapped                            ? SEMEL_STR("seq")
                       : semel__str_given(t->aggregateid) ? t->order
                                                          : semel__str(NULL));
    semel__object_text(one, "mark", t->mark);
}

static void fill_guard(struct semel_object *one, const void *ctx, size_t i)
{
    static const char *const keys[] = {"optional", "required", "off"}, *const unknown[] = {"refuse", "reconcile",
                                                                                           "retry"};
    const struct semel_conf_guard *rule = &((const struct semel_conf_gateway *)ctx)->guard[i];
    semel__object_text(one, "match", rule->match);
    semel__object_text(one, "key", semel__str(keys[rule->key]));
    semel__object_text(one, "on_unknown", semel__str(unknown[rule->on_unknown]));
    semel__object_bool(one, "anonymous", rule->anonymous);
    semel__object_number(one, "wait_us", rule->wait_us);
    semel__object_number(one, "answer_us", rule->answer_us);
    semel__object_number(one, "keep_us", rule->keep_us);
}

static void fill_gateway(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_conf_gateway *g = &((const struct semel_conf *)ctx)->gateways[i];
    char caller[256];
    show_caller(g, caller, sizeof(caller));
    semel__object_text(one, "gateway", g->name);
    semel__object_text(one, "guarantee", semel__str(semel__gateway_guarantee(g)));
    semel__object_text(one, "why", semel__str(why_gateway(g)));
    semel__object_text(one, "listen", g->server.address.text);
    semel__object_text(one, "upstream", g->upstream.url);
    semel__object_text(one, "caller", semel__str(caller));
    semel__object_list(one, "guard", g->n_guard, fill_guard, g);
}

static void fill_mistake(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_conf_mistake *m = &((const struct semel_conf_mistakes *)ctx)->at[i];
    semel__object_number(one, "line", m->line);
    semel__object_number(one, "column", m->column);
    semel__object_text(one, "path", m->path);
    semel__object_text(one, "text", m->text);
}

static void fill_answer(struct semel_object *one, const void *ctx, size_t i)
{
    const struct answers *online = ctx;
    const struct answer *a = online->at[i];
    const bool outbox = outbox_at(online->conf, a->about) != NULL, gateway = gateway_at(online->conf, a->about) != NULL;
    const struct semel_str name = name_at(online->conf, a->about), none = {0};
    semel__object_text(one, "route", outbox || gateway ? none : name);
    semel__object_text(one, "outbox", outbox ? name : none);
    semel__object_text(one, "gateway", gateway ? name : none);
    semel__object_text(one, "question", semel__str(a->question));
    semel__object_text(one, "result", semel__str(result_names[a->result]));
    semel__object_text(one, "text", semel__str(a->text));
}

static int print_json(const char *file, const struct semel_conf *conf, const struct semel_conf_mistakes *mistakes,
                      const struct answers *online)
{
    bool ok = conf != NULL && (online == NULL || online->failures == 0);
    struct semel_object object;
    semel__object_init(&object);
    semel__object_text(&object, "file", semel__str(file));
    semel__object_bool(&object, "ok", ok);
    semel__object_list(&object, "routes", conf != NULL ? conf->n_routes : 0, fill_route, conf);
    semel__object_list(&object, "outboxes", conf != NULL ? conf->n_outboxes : 0, fill_outbox, conf);
    semel__object_list(&object, "gateways", conf != NULL ? conf->n_gateways : 0, fill_gateway, conf);
    semel__object_list(&object, "mistakes", mistakes->n, fill_mistake, mistakes);
    semel__object_number(&object, "not_shown", (int64_t)mistakes->more);
    if (online != NULL)
        semel__object_list(&object, "online", online->n, fill_answer, online);
    int code = cli_object_print(&object);
    return code != CLI_OK || ok ? code : CLI_FAILED;
}

/* ---- the command --------------------------------------------------------------------------------- */

static int say(const struct cli *cli, const char *file, const struct semel_conf *conf, const struct answers *online)
{
    char what[120];
    int n = snprintf(what, sizeof(what), "%zu route%s", conf->n_routes, conf->n_routes == 1 ? "" : "s");
    if (conf->n_outboxes > 0)
        n += snprintf(what + n, sizeof(what) - (size_t)n, ", %zu outbox%s", conf->n_outboxes,
                      conf->n_outboxes == 1 ? "" : "es");
    if (conf->n_gateways > 0)
        snprintf(what + n, sizeof(what) - (size_t)n, ", %zu gateway%s", conf->n_gateways,
                 conf->n_gateways == 1 ? "" : "s");
    for (size_t i = 0; i < conf->n_routes; i++)
        say_route(cli, &conf->routes[i]);
    for (size_t i = 0; i < conf->n_outboxes; i++)
        say_outbox(cli, &conf->outboxes[i]);
    for (size_t i = 0; i < conf->n_gateways; i++)
        say_gateway(cli, &conf->gateways[i]);
    if (online == NULL) {
        cli_say(cli, "%s: %s, no mistakes", file, what);
        return CLI_OK;
    }
    say_answers(cli, online);
    cli_say(cli, "%s: %s, no mistakes; %zu answer%s, %zu warning%s, %zu failed", file, what, online->n,
            CLI_S(online->n), online->warnings, CLI_S(online->warnings), online->failures);
    return online->failures == 0 ? CLI_OK : CLI_FAILED;
}

static int print(struct cli *cli, const char *file, const struct semel_conf *conf,
                 const struct semel_conf_mistakes *mistakes, bool online)
{
    struct answers answers;
    online = online && conf != NULL; /* a file with a mistake asks nobody */
    if (online && !ask_everything(cli, conf, &answers))
        return cli_fail(CLI_FAILED, "out of memory");
    if (cli->json)
        return print_json(file, conf, mistakes, online ? &answers : NULL);
    if (conf == NULL)
        return print_mistakes(file, mistakes);
    return say(cli, file, conf, online ? &answers : NULL);
}

static int run(struct cli *cli, const struct cli_args *args)
{
    const char *file = cli_operand(args, 0);
    struct semel_conf_mistakes *mistakes = semel__arena_alloc(&cli->arena, 1, sizeof(*mistakes));
    struct semel_conf *conf = NULL;
    struct semel_error err = {0};
    if (mistakes == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    semel__conf_mistakes_init(mistakes);
    semel_status status = semel__conf_load(file, &conf, mistakes, &err);
    int code;
    if (status == SEMEL_OK || mistakes->n > 0)
        code = print(cli, file, conf, mistakes, cli_flag(args, "online"));
    else
        code = cli_fail(CLI_FAILED, "%s", err.text);
    semel__conf_free(conf);
    semel__conf_mistakes_done(mistakes);
    return code;
}

static const struct cli_option options[] = {
    {"online", 0, NULL, "also ask the store, the brokers and the servers that the settings name"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_check = {
    .name = "check",
    .summary = "find the mistakes in a file of settings, and say what its routes promise",
    .operands = "FILE",
    .operands_min = 1,
    .operands_max = 1,
    .options = options,
    .help =
        "Each mistake is shown with its place, the line and a caret. A file without any gets an answer for each\n"
        "route: its guarantee, what its order rests on, and the checklist: the key, whether others can read what is\n"
        "on the way, the store, whether the effect is in the same transaction, the retention against the horizon,\n"
        "calls to the outside and their keys; for each outbox what its order rests on; and for each gateway its\n"
        "guarantee, who its callers are, and what is guarded.\n"
        "Environment variables and secret files that the settings name must be there; no secret is shown. FILE may\n"
        "be - for stdin.\n"
        "\n"
        "No server is asked, unless --online is given. Then there is a line for each answer, with ok, warning or\n"
        "failed: whether the store can be reached, its schema is current, what is committed lasts, the role may do\n"
        "what routes need, and statements can be prepared; whether the table of an outbox has its columns, of the "
        "right\n"
        "types, and an index that fits; whether topics and queues are there, and the broker\n"
        "keeps messages no longer than the settings say (if it does, keep.completed must cover that); whether\n"
        "servers of handlers and those behind gateways accept connections (nothing is sent), and programs can be\n"
        "run; for an outbox, whether its destinations are there, its numbers keep the order, and the relay can see\n"
        "who has drawn one. Nothing is changed, no message is read, and no event is sent. No question waits much\n"
        "longer than 5 seconds.\n"
        "Exit code 1: there are mistakes, the file cannot be read, or an answer is `failed`.\n"
        "\n"
        "Examples\n"
        "  semel check semel.yaml\n"
        "  semel check semel.yaml --online\n"
        "  semel check semel.yaml --json",
    .run = run,
};
