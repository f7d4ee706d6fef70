/* SPDX-License-Identifier: MIT
 *
 * case_pgsql.c: a case through the SQL functions of PostgreSQL. Facts are planted and read back as for the postgres
 * store; the event happens through SQL alone (case_sql.c), on a connection of its own.
 *
 * Every third case passes its payload as jsonb where no byte of it is compared, else as bytes. A stale token is one
 * that was claimed through SQL before.
 *
 * By the door `pgsql-many` every begin, done and fail is a batch of one message, which must give the same answers.
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

static void sql_failed(struct sql_door *door, const char *sql)
{
    differ(door->engine->finding, "%.60s...: %s", sql, PQerrorMessage(door->conn));
}

/* Never NULL; what failed is told, and has no rows. */
static PGresult *query(struct sql_door *door, const char *sql, const struct args *args)
{
    PGresult *result = PQexecParams(door->conn, sql, args != NULL ? args->n : 0, NULL,
                                    args != NULL ? args->values : NULL, NULL, NULL, 0);

    if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
        sql_failed(door, sql);
    return result;
}

static void exec(struct sql_door *door, const char *sql)
{
    PQclear(query(door, sql, NULL));
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

static char *room(struct sql_door *door, size_t n)
{
    char *text = semel__arena_alloc(&door->engine->world->arena, n, 1);

    assert_non_null(text);
    return text;
}

static void add_str(struct sql_door *door, struct args *args, struct semel_str s)
{
    char *copy = NULL;

    if (s.p != NULL) {
        copy = room(door, s.n + 1);
        memcpy(copy, s.p, s.n);
    }
    args->values[args->n++] = copy;
}

static void add_bytes(struct sql_door *door, struct args *args, struct semel_str s)
{
    char *hex = NULL;

    if (s.p != NULL) {
        hex = room(door, 2 * s.n + 3);
        memcpy(hex, "\\x", 2);
        semel__hex((const unsigned char *)s.p, s.n, hex + 2);
    }
    args->values[args->n++] = hex;
}

static void add_int(struct sql_door *door, struct args *args, int64_t n)
{
    char *text = NULL;

    if (n != SEMEL_NONE) {
        text = room(door, 32);
        snprintf(text, 32, "%lld", (long long)n);
    }
    args->values[args->n++] = text;
}

/* The arguments of begin, in their order. Without a payload there is no fingerprint. */
static void add_msg(struct sql_door *door, struct args *args)
{
    const struct kase *kase = door->engine->kase;
    const struct case_when *when = &kase->when;
    struct semel__msg msg;
    struct semel_str none = {0};
    bool given = when->body != BODY_NONE;
    bool json = when->body != UNSAID && when->body != BODY_RAW && when->tombstone != 1 && kase->line % 3 == 0;

    case_msg_of(kase, &door->engine->policy, &msg);
    add_str(door, args, SEMEL_STR("c"));
    add_str(door, args, msg.id);
    add_str(door, args, msg.source);
    add_str(door, args, msg.type);
    add_str(door, args, given && json ? msg.payload : none);
    add_bytes(door, args, given && !json ? msg.payload : none);
    add_str(door, args, msg.n_business > 0 ? msg.business[0] : none);
    add_str(door, args, msg.order_key);
    add_int(door, args, msg.version);
    add_int(door, args, msg.message_time_us);
    add_int(door, args, when->alone == 1 ? 2 : msg.delivery);
    add_str(door, args, msg.headers);
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
static void take_outcome(struct sql_door *door, struct semel_str outcome)
{
    size_t n = 0;

    for (size_t i = 0; i < outcome.n && n + 1 < sizeof door->outcome; i++)
        if (outcome.p[i] != ' ')
            door->outcome[n++] = outcome.p[i];
    door->outcome[n] = '\0';
}

static struct sql_told pgsql_ask(struct sql_door *door, bool claim)
{
    struct sql_told told = {.token = 0};
    struct args args = {.n = 0};
    PGresult *result;

    add_msg(door, &args);
    result = query(door,
                   claim     ? "SELECT act, why, attempt, outcome, token FROM semel.inbox_claim(" MSG_ARGS ")"
                   : by_many ? "SELECT act, why, attempt, outcome FROM semel.inbox_begin_many(" MSG_MANY "))) AS m"
                             : "SELECT act, why, attempt, outcome FROM semel.inbox_begin(" MSG_ARGS ")",
                   &args);
    if (PQntuples(result) == 1) {
        if (!semel__act_parse(column(result, 0, 0), &told.act) || !semel__why_parse(column(result, 0, 1), &told.why))
            differ(door->engine->finding, "the answer is not an act and a why");
        told.attempt = number(result, 0, 2);
        take_outcome(door, column(result, 0, 3));
        if (claim)
            told.token = number(result, 0, 4);
    }
    PQclear(result);
    return told;
}

static void pgsql_done(struct sql_door *door, const char *outcome)
{
    const struct args args = {.values = {outcome, door->engine->kase->id}, .n = 2};

    PQclear(query(door,
                  by_many ? "SELECT semel.inbox_done_many('c', pg_catalog.jsonb_build_array(pg_catalog."
                            "jsonb_build_object('message_id', $2::text, 'source', 's', 'outcome', $1::jsonb)))"
                          : "SELECT semel.inbox_done('c', $2::text, 's', $1::jsonb)",
                  &args));
}

static bool pgsql_fail(struct sql_door *door, const char *cls, enum semel_act *ret_act, enum semel_state *ret_state)
{
    struct args args = {.n = 0};
    PGresult *result;
    bool told;

    add_msg(door, &args);
    add_str(door, &args, semel__str(cls));
    result = query(door,
                   by_many ? "SELECT act, status FROM semel.inbox_fail_many(" MSG_MANY
                             ", 'class', $13::text, 'reason', 'because'))) AS m"
                           : "SELECT act, status FROM semel.inbox_fail(" MSG_ARGS
                             ", class => $13::text, reason => 'because')",
                   &args);
    told = semel__act_parse(column(result, 0, 0), ret_act) && semel__state_parse(column(result, 0, 1), ret_state);
    PQclear(result);
    return told;
}

static int64_t pgsql_end(struct sql_door *door, enum case_op op, int64_t token, const char *name, const char *outcome)
{
    static const char *const sqls[] = {
        [OP_FINISH] = "SELECT semel.inbox_finish($1::bigint, $2::text, $3::jsonb, 'because')",
        [OP_RENEW] = "SELECT semel.inbox_renew($1::bigint)",
        [OP_RELEASE] = "SELECT semel.inbox_release($1::bigint)",
    };
    struct args args = {.n = 0};
    PGresult *answer, *commit;
    int64_t says = SAYS_REFUSED;

    add_int(door, &args, token);
    if (op == OP_FINISH) {
        add_str(door, &args, semel__str(name));
        add_str(door, &args, semel__str(outcome));
    }
    exec(door, "BEGIN");
    answer = PQexecParams(door->conn, sqls[op], args.n, NULL, args.values, NULL, NULL, 0);
    if (PQresultStatus(answer) == PGRES_TUPLES_OK)
        says = semel__str_eqz(column(answer, 0, 0), "t") ? SAYS_DONE : SAYS_FENCED;
    else if (strcmp(PQresultErrorField(answer, PG_DIAG_SQLSTATE), "55000") != 0)
        sql_failed(door, sqls[op]);
    PQclear(answer);
    commit = query(door, "COMMIT", NULL);
    if ((says == SAYS_REFUSED) != (strcmp(PQcmdStatus(commit), "ROLLBACK") == 0))
        differ(door->engine->finding, "COMMIT: %s", PQcmdStatus(commit));
    PQclear(commit);
    return says;
}

static int pgsql_take(struct sql_door *door, struct sql_taken taken[SQL_TAKEN])
{
    PGresult *result = query(door, "SELECT token, message_id, attempt FROM semel.inbox_take('c', 8)", NULL);
    int n = PQntuples(result) < SQL_TAKEN ? PQntuples(result) : SQL_TAKEN;

    for (int i = 0; i < n; i++)
        taken[i] = (struct sql_taken){number(result, i, 0), number(result, i, 2),
                                      semel__str_eqz(column(result, i, 1), CASE_ID)};
    PQclear(result);
    return n;
}

static bool pgsql_tick(struct sql_door *door)
{
    PGresult *result = query(door, "SELECT semel.tick(100)", NULL);
    bool touched = number(result, 0, 0) > 0;

    PQclear(result);
    return touched;
}

static bool pgsql_set(struct sql_door *door, const char *settings)
{
    PGresult *answer = PQexecParams(door->conn, "SELECT semel.consumer('c', $1::jsonb)", 1, NULL, &settings, NULL, NULL,
                                    0);
    bool done = PQresultStatus(answer) == PGRES_TUPLES_OK;

    if (!done && strcmp(PQresultErrorField(answer, PG_DIAG_SQLSTATE), "55000") != 0)
        sql_failed(door, "semel.consumer");
    PQclear(answer);
    return done;
}

static void pgsql_plant_stale(struct sql_door *door, int64_t token)
{
    struct args args = {.n = 0};

    add_int(door, &args, token);
    PQclear(query(door, "INSERT INTO semel.held VALUES ($1, 'claimed', 'c', 's', '" CASE_ID "', 1, now())", &args));
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

static void stop_clock(struct sql_door *door)
{
    char sql[256];

    snprintf(sql, sizeof sql,
             "CREATE OR REPLACE FUNCTION semel._now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
             "$$ SELECT 'epoch'::timestamptz + %lld::double precision * interval '1 microsecond' $$",
             (long long)CASE_NOW);
    exec(door, sql);
}

/* The case's rows were stored under its settings, which the door then finds as they are. */
static void set_policy(struct sql_door *door)
{
    struct semel_buf settings;
    struct args args = {.n = 0};

    semel__buf_init(&settings, SEMEL_SETTINGS_MAX);
    semel__policy_write(&door->engine->policy, &settings);
    add_str(door, &args, semel__buf_str(&settings));
    PQclear(query(door,
                  "INSERT INTO semel.consumer (consumer, settings, updated_at) VALUES ('c', $1::jsonb, 'epoch') "
                  "ON CONFLICT (consumer) DO UPDATE SET settings = excluded.settings",
                  &args));
    PQclear(query(door, "SELECT semel.consumer('c', $1::jsonb)", &args));
    semel__buf_done(&settings);
}

static void happen_in_sql(struct engine *engine)
{
    struct sql_door *door = semel__arena_alloc(&engine->world->arena, 1, sizeof *door);

    assert_non_null(door);
    engine->no_alerts = true;
    *door = (struct sql_door){.engine = engine,
                              .words = &words,
                              .conn = connect_as(semel_store_native(engine->world->store))};
    if (PQstatus(door->conn) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(door->conn));
    stop_clock(door);
    set_policy(door);
    case_sql_happen(door);
    PQfinish(door->conn);
}

static struct sql_account account = {.expected = {[ABSENT_OPERATOR] = 76,
                                                  [ABSENT_BATCH] = 5,
                                                  [ABSENT_DEFECT] = 5,
                                                  [ABSENT_POSITION] = 5,
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
