/* SPDX-License-Identifier: MIT
 *
 * case_pgsql.c: a case through the SQL functions of PostgreSQL. Facts are planted and read back as for the postgres
 * store; the event happens through SQL alone (case_sql.c), on a connection of its own.
 *
 * Every third case passes its payload as jsonb where no byte of it is compared, else as bytes. A stale token is one
 * that was claimed through SQL before.
 *
 * By the client `pgsql-many` every begin, done and fail is a batch of one message, which must give the same answers.
 *
 * The functions take the time from semel._now(), which for the time of a case says what the case says.
 */
#include "conform/case_sql.h"

#ifdef SEMEL_WITH_POSTGRES
#include <libpq-fe.h>
#include <stdlib.h>

#include "base/digest.h"
#include "core/consumer.h"

/* ---- SQL ------------------------------------------------------------------------------------------ */

#define ARGS_MAX 16

/* Arguments as text; `texts` lie in the case's arena. */
struct args {
    const char *values[ARGS_MAX];
    int n;
};

static void sql_failed(struct sql_client *client, const char *sql)
{
    differ(client->engine->finding, "%.60s...: %s", sql, PQerrorMessage(client->conn));
}

/* Never NULL; what failed is told, and has no rows. */
static PGresult *query(struct sql_client *client, const char *sql, const struct args *args)
{
    PGresult *result = PQexecParams(client->conn, sql, args != NULL ? args->n : 0, NULL,
                                    args != NULL ? args->values : NULL, NULL, NULL, 0);

    if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
        sql_failed(client, sql);
    return result;
}

static void exec(struct sql_client *client, const char *sql)
{
    PQclear(query(client, sql, NULL));
}

static struct semel_str column(const PGresult *result, int row, int i)
{
    if (PQntuples(result) <= row || PQgetisnull(result, row, i))
        return (struct semel_str){0};
    return (struct semel_str){PQgetvalue(result, row, i), (size_t)PQgetlength(result, row, i)};
}

static int64_t number(const PGresult *result, int row, int i)
{
    int64_t n = 0;

    (void)semel__str_int64(column(result, row, i), &n);
    return n;
}

static char *room(struct sql_client *client, size_t n)
{
    char *text = semel__arena_alloc(&client->engine->world->arena, n, 1);

    assert_non_null(text);
    return text;
}

static void add_str(struct sql_client *client, struct args *args, struct semel_str s)
{
    char *copy = NULL;

    if (s.p != NULL) {
        copy = room(client, s.n + 1);
        memcpy(copy, s.p, s.n);
    }
    args->values[args->n++] = copy;
}

static void add_bytes(struct sql_client *client, struct args *args, struct semel_str s)
{
    char *hex = NULL;

    if (s.p != NULL) {
        hex = room(client, 2 * s.n + 3);
        memcpy(hex, "\\x", 2);
        semel__hex((const unsigned char *)s.p, s.n, hex + 2);
    }
    args->values[args->n++] = hex;
}

static void add_int(struct sql_client *client, struct args *args, int64_t n)
{
    char *text = NULL;

    if (n != SEMEL_NONE) {
        text = room(client, 32);
        snprintf(text, 32, "%lld", (long long)n);
    }
    args->values[args->n++] = text;
}

/* The arguments of begin, in their order. Without a payload there is no fingerprint. */
static void add_msg(struct sql_client *client, struct args *args)
{
    const struct kase *kase = client->engine->kase;
    const struct case_when *when = &kase->when;
    struct semel__msg msg;
    struct semel_str none = {0};
    bool given = when->body != BODY_NONE;
    bool json = when->body != UNSAID && when->body != BODY_RAW && when->tombstone != 1 && kase->line % 3 == 0;

    case_msg_of(kase, &client->engine->policy, &msg);
    add_str(client, args, SEMEL_STR("c"));
    add_str(client, args, msg.id);
    add_str(client, args, msg.source);
    add_str(client, args, msg.type);
    add_str(client, args, given && json ? msg.payload : none);
    add_bytes(client, args, given && !json ? msg.payload : none);
    add_str(client, args, msg.n_business > 0 ? msg.business[0] : none);
    add_str(client, args, msg.order_key);
    add_int(client, args, msg.version);
    add_int(client, args, msg.message_time_us);
    add_int(client, args, when->alone == 1 ? 2 : msg.delivery);
    add_str(client, args, msg.headers);
}

#define MSG_ARGS                                                                                          \
    "consumer => $1, message_id => $2::text, source => $3, type => $4, payload => $5::jsonb, "            \
    "raw => $6::bytea, business_key => $7, order_key => $8, version => $9::bigint, message_time => "      \
    "'epoch'::timestamptz + $10::double precision * interval '1 microsecond', delivery => $11::integer, " \
    "headers => $12::jsonb"

/* The same as a batch of one; pg_catalog, because hostile functions may stand in `public` (plant.sql). */
#define MSG_MANY                                                                                                   \
    "$1, pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('message_id', $2::text, 'source', $3::text, "  \
    "'type', $4::text, 'payload', $5::jsonb, 'raw', $6::bytea::text, 'business_key', $7::text, 'order_key', "      \
    "$8::text, 'version', $9::bigint, 'message_time', 'epoch'::timestamptz + $10::double precision * interval '1 " \
    "microsecond', 'delivery', $11::integer, 'headers', $12::jsonb"

static bool by_many;

/* ---- the words ------------------------------------------------------------------------------------ */

/* Of jsonb, whose text has blanks: the stored outcome as the case spells it. */
static void take_outcome(struct sql_client *client, struct semel_str outcome)
{
    size_t n = 0;

    for (size_t i = 0; i < outcome.n && n + 1 < sizeof client->outcome; i++)
        if (outcome.p[i] != ' ')
            client->outcome[n++] = outcome.p[i];
    client->outcome[n] = '\0';
}

static struct sql_answer pgsql_ask(struct sql_client *client, bool claim)
{
    struct sql_answer answer = {.token = 0};
    struct args args = {.n = 0};
    PGresult *result;

    add_msg(client, &args);
    result = query(client,
                   claim     ? "SELECT act, why, attempt, outcome, token FROM semel.inbox_claim(" MSG_ARGS ")"
                   : by_many ? "SELECT act, why, attempt, outcome FROM semel.inbox_begin_many(" MSG_MANY "))) AS m"
                             : "SELECT act, why, attempt, outcome FROM semel.inbox_begin(" MSG_ARGS ")",
                   &args);
    if (PQntuples(result) == 1) {
        if (!semel__act_parse(column(result, 0, 0), &answer.act) ||
            !semel__why_parse(column(result, 0, 1), &answer.why))
            differ(client->engine->finding, "the answer is not an act and a why");
        answer.attempt = number(result, 0, 2);
        take_outcome(client, column(result, 0, 3));
        if (claim)
            answer.token = number(result, 0, 4);
    }
    PQclear(result);
    return answer;
}

static void pgsql_done(struct sql_client *client, const char *outcome)
{
    const struct args args = {.values = {outcome, client->engine->kase->id}, .n = 2};

    PQclear(query(client,
                  by_many ? "SELECT semel.inbox_done_many('c', pg_catalog.jsonb_build_array(pg_catalog."
                            "jsonb_build_object('message_id', $2::text, 'source', 's', 'outcome', $1::jsonb)))"
                          : "SELECT semel.inbox_done('c', $2::text, 's', $1::jsonb)",
                  &args));
}

static bool pgsql_fail(struct sql_client *client, const char *cls, enum semel_act *ret_act,
                       enum semel_row_status *ret_state)
{
    struct args args = {.n = 0};
    PGresult *result;
    bool answer;

    add_msg(client, &args);
    add_str(client, &args, semel__str(cls));
    result = query(client,
                   by_many ? "SELECT act, status FROM semel.inbox_fail_many(" MSG_MANY
                             ", 'class', $13::text, 'reason', 'because'))) AS m"
                           : "SELECT act, status FROM semel.inbox_fail(" MSG_ARGS
                             ", class => $13::text, reason => 'because')",
                   &args);
    answer = semel__act_parse(column(result, 0, 0), ret_act) &&
             semel__row_status_parse(column(result, 0, 1), ret_state);
    PQclear(result);
    return answer;
}

static int64_t pgsql_end(struct sql_client *client, enum case_op op, int64_t token, const char *name,
                         const char *outcome)
{
    static const char *const sqls[] = {
        [OP_FINISH] = "SELECT semel.inbox_finish($1::bigint, $2::text, $3::jsonb, 'because')",
        [OP_RENEW] = "SELECT semel.inbox_renew($1::bigint)",
        [OP_RELEASE] = "SELECT semel.inbox_release($1::bigint)",
    };
    struct args args = {.n = 0};
    PGresult *answer, *commit;
    int64_t says = SAYS_REFUSED;

    add_int(client, &args, token);
    if (op == OP_FINISH) {
        add_str(client, &args, semel__str(name));
        add_str(client, &args, semel__str(outcome));
    }
    exec(client, "BEGIN");
    answer = PQexecParams(client->conn, sqls[op], args.n, NULL, args.values, NULL, NULL, 0);
    if (PQresultStatus(answer) == PGRES_TUPLES_OK)
        says = semel__str_eqz(column(answer, 0, 0), "t") ? SAYS_DONE : SAYS_FENCED;
    else if (strcmp(PQresultErrorField(answer, PG_DIAG_SQLSTATE), "55000") != 0)
        sql_failed(client, sqls[op]);
    PQclear(answer);
    commit = query(client, "COMMIT", NULL);
    if ((says == SAYS_REFUSED) != (strcmp(PQcmdStatus(commit), "ROLLBACK") == 0))
        differ(client->engine->finding, "COMMIT: %s", PQcmdStatus(commit));
    PQclear(commit);
    return says;
}

static int pgsql_take(struct sql_client *client, struct sql_taken taken[SQL_TAKEN])
{
    PGresult *result = query(client, "SELECT token, message_id, attempt FROM semel.inbox_take('c', 8)", NULL);
    int n = PQntuples(result) < SQL_TAKEN ? PQntuples(result) : SQL_TAKEN;

    for (int i = 0; i < n; i++)
        taken[i] = (struct sql_taken){number(result, i, 0), number(result, i, 2),
                                      semel__str_eqz(column(result, i, 1), CASE_ID)};
    PQclear(result);
    return n;
}

static bool pgsql_tick(struct sql_client *client)
{
    PGresult *result = query(client, "SELECT semel.tick(100)", NULL);
    bool touched = number(result, 0, 0) > 0;

    PQclear(result);
    return touched;
}

static bool pgsql_set(struct sql_client *client, const char *settings)
{
    PGresult *answer = PQexecParams(client->conn, "SELECT semel.consumer('c', $1::jsonb)", 1, NULL, &settings, NULL,
                                    NULL, 0);
    bool done = PQresultStatus(answer) == PGRES_TUPLES_OK;

    if (!done && strcmp(PQresultErrorField(answer, PG_DIAG_SQLSTATE), "55000") != 0)
        sql_failed(client, "semel.consumer");
    PQclear(answer);
    return done;
}

static void pgsql_plant_stale(struct sql_client *client, int64_t token)
{
    struct args args = {.n = 0};

    add_int(client, &args, token);
    PQclear(query(client, "INSERT INTO semel.held VALUES ($1, 'claimed', 'c', 's', '" CASE_ID "', 1, now())", &args));
}

static const struct sql_words words = {
    .begin = "BEGIN",
    .exec = exec,
    .ask = pgsql_ask,
    .done = pgsql_done,
    .failed = pgsql_fail,
    .end = pgsql_end,
    .take = pgsql_take,
    .tick = pgsql_tick,
    .set = pgsql_set,
    .plant_stale = pgsql_plant_stale,
};

/* ---- a case --------------------------------------------------------------------------------------- */

/* Where the store is connected to. */
static PGconn *connect_as(PGconn *store)
{
    const char *const names[] = {"host", "port", "dbname", "user", NULL};
    const char *const values[] = {PQhost(store), PQport(store), PQdb(store), PQuser(store), NULL};

    return PQconnectdbParams(names, values, 0);
}

static void stop_clock(struct sql_client *client)
{
    char sql[256];

    snprintf(sql, sizeof sql,
             "CREATE OR REPLACE FUNCTION semel._now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
             "$$ SELECT 'epoch'::timestamptz + %lld::double precision * interval '1 microsecond' $$",
             (long long)CASE_NOW);
    exec(client, sql);
}

/* The case's rows were stored under its settings, which the client then finds as they are. */
static void set_policy(struct sql_client *client)
{
    struct semel_buf settings;
    struct args args = {.n = 0};

    semel__buf_init(&settings, SEMEL_SETTINGS_MAX);
    semel__policy_write(&client->engine->policy, &settings);
    add_str(client, &args, semel__buf_str(&settings));
    PQclear(query(client,
                  "INSERT INTO semel.consumer (consumer, settings, updated_at) VALUES ('c', $1::jsonb, 'epoch') "
                  "ON CONFLICT (consumer) DO UPDATE SET settings = excluded.settings",
                  &args));
    PQclear(query(client, "SELECT semel.consumer('c', $1::jsonb)", &args));
    semel__buf_done(&settings);
}

static void happen_in_sql(struct engine *engine)
{
    struct sql_client *client = semel__arena_alloc(&engine->world->arena, 1, sizeof *client);

    assert_non_null(client);
    engine->no_alerts = true;
    *client = (struct sql_client){.engine = engine,
                                  .words = &words,
                                  .conn = connect_as(semel_store_native(engine->world->store))};
    if (PQstatus(client->conn) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(client->conn));
    stop_clock(client);
    set_policy(client);
    case_sql_happen(client);
    PQfinish(client->conn);
}

static struct sql_account account = {.expected = {[ABSENT_OPERATOR] = 80,
                                                  [ABSENT_BATCH] = 5,
                                                  [ABSENT_DEFECT] = 5,
                                                  [ABSENT_POSITION] = 7,
                                                  [ABSENT_OUTCOME] = 1,
                                                  [ABSENT_TOGETHER] = 2}};

bool case_run_pgsql(const struct kase *kase, struct finding *finding, struct move *ret_move)
{
    const struct driver *driver = world_driver_named("postgres");
    struct kase pared;

    if (!case_sql_pare(kase, &account, &pared))
        return false;
    if (driver != NULL)
        case_run_event(&pared, driver, happen_in_sql, finding, ret_move);
    else
        differ(finding, "this build has no driver for PostgreSQL");
    return driver != NULL;
}

bool case_pgsql_account(void)
{
    return case_sql_account(&account);
}

void case_pgsql_by_many(void)
{
    by_many = true;
}

#else

bool case_run_pgsql(const struct kase *kase, struct finding *finding, struct move *ret_move)
{
    (void)kase;
    (void)ret_move;
    differ(finding, "this build has no PostgreSQL");
    return false;
}

bool case_pgsql_account(void)
{
    return false;
}

void case_pgsql_by_many(void)
{
}
#endif
