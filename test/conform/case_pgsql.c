/* SPDX-License-Identifier: MIT
 *
 * case_pgsql.c: a case through the SQL functions of PostgreSQL. Facts are planted and read back as for the postgres
 * store; the event happens through SQL alone, on a connection of its own.
 *
 * A delivery is begin, and then done or fail; where it runs behind a claim, it is claim, and then finish or release.
 * The world's failure is a rollback, or a release. Every second case has its fail in a transaction of its own, after
 * the one that began was rolled back; every third passes its payload as jsonb where no byte of it is compared, else as
 * bytes. A stale token is one that was claimed through SQL before.
 *
 * The functions take the time from semel._now(), which for the time of a case says what the case says.
 *
 * What the SQL surface has no words for is left out, and `absences` says what and how many. Alerts are not compared:
 * SQL raises none.
 */
#include "conform/cases.h"

#ifdef SEMEL_WITH_POSTGRES
#include <libpq-fe.h>
#include <stdlib.h>

#include "base/digest.h"
#include "core/consumer.h"

#define STALE_TOKEN "1000000000"

/* ---- what is left out ----------------------------------------------------------------------------- */

enum absence {
    ABSENT_OPERATOR,
    ABSENT_BATCH,
    ABSENT_DEFECT,
    ABSENT_POSITION,
    ABSENT_OUTCOME,
    ABSENT_TOGETHER, /* not the case, but a part of what it becomes */
    ABSENT_COUNT
};

static struct {
    const char *reason;
    int expected, found;
} absences[] = {
    [ABSENT_OPERATOR] = {"replay, discard and resolve are an operator's words: see the command line", 55, 0},
    [ABSENT_BATCH] = {"a batch of two: SQL delivers one at a time", 3, 0},
    [ABSENT_DEFECT] = {"a field that the rules of a route did not find: SQL is given fields", 4, 0},
    [ABSENT_POSITION] = {"a position in place of an id: SQL has no such argument", 4, 0},
    [ABSENT_OUTCOME] = {"an outcome of a failure: semel.inbox_fail has no such argument", 1, 0},
    [ABSENT_TOGETHER] = {"(only `alone`) messages that are claimed together: SQL claims each by itself", 2, 0},
};
_Static_assert(COUNT(absences) == ABSENT_COUNT, "one line each");

static enum absence absence_of(const struct kase *kase)
{
    const struct case_when *when = &kase->when;

    if (when->op == OP_REPLAY || when->op == OP_DISCARD || when->op == OP_RESOLVE)
        return ABSENT_OPERATOR;
    if (when->with != UNSAID)
        return ABSENT_BATCH;
    if (when->no_field == 1)
        return ABSENT_DEFECT;
    if (when->no_id == 1)
        return ABSENT_POSITION;
    if (when->outcome == 1 && when->handler != UNSAID && when->handler != SEMEL_DONE)
        return ABSENT_OUTCOME;
    return ABSENT_COUNT;
}

/* What a door cannot tell is not compared. */
static void pare(struct kase *kase)
{
    bool claims = kase->when.op == OP_CLAIM || kase->when.op == OP_TAKE;

    if (claims && kase->becomes.row.alone == 0) {
        kase->becomes.row.alone = UNSAID;
        absences[ABSENT_TOGETHER].found++;
    }
}

bool case_pgsql_account(void)
{
    bool right = true;

    for (int i = 0; i < ABSENT_COUNT; i++) {
        printf("left out, %d cases: %s\n", absences[i].found, absences[i].reason);
        if (absences[i].found != absences[i].expected) {
            printf("    expected %d\n", absences[i].expected);
            right = false;
        }
    }
    return right;
}

/* ---- SQL ------------------------------------------------------------------------------------------ */

#define ARGS_MAX 16

struct door {
    struct engine *engine;
    PGconn *conn;
    char outcome[64];
};

/* Arguments as text; `texts` lie in the case's arena. */
struct args {
    const char *values[ARGS_MAX];
    int n;
};

static void sql_failed(struct door *door, const char *sql)
{
    differ(door->engine->finding, "%.60s...: %s", sql, PQerrorMessage(door->conn));
}

/* Never NULL; what failed is told, and has no rows. */
static PGresult *query(struct door *door, const char *sql, const struct args *args)
{
    PGresult *result = PQexecParams(door->conn, sql, args != NULL ? args->n : 0, NULL,
                                    args != NULL ? args->values : NULL, NULL, NULL, 0);

    if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
        sql_failed(door, sql);
    return result;
}

static void exec(struct door *door, const char *sql)
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

static char *room(struct door *door, size_t n)
{
    char *text = semel__arena_alloc(&door->engine->world->arena, n, 1);

    assert_non_null(text);
    return text;
}

static void add_str(struct door *door, struct args *args, struct semel_str s)
{
    char *copy = NULL;

    if (s.p != NULL) {
        copy = room(door, s.n + 1);
        memcpy(copy, s.p, s.n);
    }
    args->values[args->n++] = copy;
}

static void add_bytes(struct door *door, struct args *args, struct semel_str s)
{
    char *hex = NULL;

    if (s.p != NULL) {
        hex = room(door, 2 * s.n + 3);
        memcpy(hex, "\\x", 2);
        semel__hex((const unsigned char *)s.p, s.n, hex + 2);
    }
    args->values[args->n++] = hex;
}

static void add_int(struct door *door, struct args *args, int64_t n)
{
    char *text = NULL;

    if (n != SEMEL_NONE) {
        text = room(door, 32);
        snprintf(text, 32, "%lld", (long long)n);
    }
    args->values[args->n++] = text;
}

/* The arguments of begin, in their order. Without a payload there is no fingerprint. */
static void add_msg(struct door *door, struct args *args)
{
    const struct kase *kase = door->engine->kase;
    const struct case_when *when = &kase->when;
    struct semel__msg msg;
    struct semel_str none = {0};
    bool given = when->body != BODY_NONE;
    bool json = when->body != UNSAID && when->body != BODY_RAW && kase->line % 3 == 0;

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
}

#define MSG_ARGS                                                                                     \
    "consumer => $1, message_id => $2::text, source => $3, type => $4, payload => $5::jsonb, "       \
    "raw => $6::bytea, business_key => $7, order_key => $8, version => $9::bigint, message_time => " \
    "'epoch'::timestamptz + $10::bigint * interval '1 microsecond', delivery => $11::integer"

static struct semel_str handler_outcome(const struct door *door)
{
    return door->engine->kase->when.outcome == 1 ? SEMEL_STR("{\"o\":2}") : (struct semel_str){0};
}

/* ---- what happens --------------------------------------------------------------------------------- */

struct told {
    enum semel_act act;
    enum semel_why why;
    int64_t attempt, token;
};

/* Of jsonb, whose text has blanks: the stored outcome as the case spells it. */
static void take_outcome(struct door *door, struct semel_str outcome)
{
    size_t n = 0;

    for (size_t i = 0; i < outcome.n && n + 1 < sizeof door->outcome; i++)
        if (outcome.p[i] != ' ')
            door->outcome[n++] = outcome.p[i];
    door->outcome[n] = '\0';
    door->engine->settled.outcome = semel__str(door->outcome);
}

static struct told ask(struct door *door, const char *sql)
{
    struct told told = {.token = 0};
    struct args args = {.n = 0};
    PGresult *result;

    add_msg(door, &args);
    result = query(door, sql, &args);
    if (PQntuples(result) == 1) {
        if (!semel__act_parse(column(result, 0, 0), &told.act) || !semel__why_parse(column(result, 0, 1), &told.why))
            differ(door->engine->finding, "the answer is not an act and a why");
        told.attempt = number(result, 0, 2);
        take_outcome(door, column(result, 0, 3));
        if (PQnfields(result) > 4)
            told.token = number(result, 0, 4);
    }
    PQclear(result);
    return told;
}

static void expect_told(struct door *door, const struct told *told)
{
    struct engine *engine = door->engine;
    int before = engine->there ? engine->before.live.attempts : 0;

    expect_verdict(engine,
                   told->act == SEMEL_RUN   ? SAYS_RUN
                   : told->act == SEMEL_ACK ? SAYS_ACK
                                            : SAYS_LATER,
                   told->why);
    if (told->act == SEMEL_RUN && told->attempt != before + 1)
        differ(engine->finding, "attempt: the handler was told %lld", (long long)told->attempt);
}

static void expect_then(struct door *door, enum semel_act act)
{
    int64_t said = door->engine->kase->verdict.then;

    if (said != UNSAID && said != (int64_t)act)
        differ(door->engine->finding, "in the end: expected %s, found %s", semel__act_name((enum semel_act)said),
               semel__act_name(act));
}

static void say_done(struct door *door)
{
    struct args args = {.n = 0};

    add_str(door, &args, handler_outcome(door));
    PQclear(query(door, "SELECT semel.inbox_done('c', '" CASE_ID "', 's', $1::jsonb)", &args));
    exec(door, "COMMIT");
    expect_then(door, SEMEL_ACK);
}

static void say_failed(struct door *door)
{
    struct engine *engine = door->engine;
    enum semel_act act = SEMEL_ACT_UNSET;
    struct args args = {.n = 0};
    PGresult *result;

    if (engine->kase->line % 2 == 0) {
        exec(door, "ROLLBACK");
        exec(door, "BEGIN");
    }
    add_msg(door, &args);
    add_str(door, &args,
            semel__str(engine->says == SEMEL_MAYBE ? "unknown" : semel__result_name((enum semel_result)engine->says)));
    result = query(door,
                   "SELECT act, state FROM semel.inbox_fail(" MSG_ARGS ", class => $12::text, reason => 'because')",
                   &args);
    engine->state_told = semel__act_parse(column(result, 0, 0), &act) &&
                         semel__state_parse(column(result, 0, 1), &engine->settled.state);
    if (!engine->state_told)
        differ(engine->finding, "the answer of fail is not an act and a state");
    PQclear(result);
    exec(door, "COMMIT");
    expect_then(door, act);
}

static void deliver(struct door *door)
{
    struct told told;

    exec(door, "BEGIN");
    told = ask(door, "SELECT act, why, attempt, outcome FROM semel.inbox_begin(" MSG_ARGS ")");
    expect_told(door, &told);
    if (told.act != SEMEL_RUN) {
        exec(door, told.act == SEMEL_ACK ? "COMMIT" : "ROLLBACK");
    } else if (door->engine->says == SEMEL_DONE) {
        say_done(door);
    } else if (door->engine->says < HANDLER_ENVIRONMENT) {
        say_failed(door);
    } else {
        exec(door, "ROLLBACK");
        expect_then(door, SEMEL_LATER);
    }
}

static struct told claim(struct door *door)
{
    struct told told;

    exec(door, "BEGIN");
    told = ask(door, "SELECT act, why, attempt, outcome, token FROM semel.inbox_claim(" MSG_ARGS ")");
    expect_told(door, &told);
    exec(door, told.act == SEMEL_LATER ? "ROLLBACK" : "COMMIT");
    return told;
}

/* finish, renew or release under the token; false: fenced. */
static bool end(struct door *door, enum case_op op, int64_t token, int64_t result)
{
    static const char *const sqls[] = {
        [OP_FINISH] = "SELECT semel.inbox_finish($1::bigint, $2::text, $3::jsonb, 'because')",
        [OP_RENEW] = "SELECT semel.inbox_renew($1::bigint)",
        [OP_RELEASE] = "SELECT semel.inbox_release($1::bigint)",
    };
    struct args args = {.n = 0};
    PGresult *answer;
    bool held;

    add_int(door, &args, token);
    if (op == OP_FINISH) {
        add_str(door, &args, semel__str(semel__result_name((enum semel_result)result)));
        add_str(door, &args, handler_outcome(door));
    }
    answer = query(door, sqls[op], &args);
    held = semel__str_eqz(column(answer, 0, 0), "t");
    PQclear(answer);
    return held;
}

/* What the handler says, under the lease of a message that is not necessarily ours. */
static void end_as_said(struct door *door, int64_t token, int64_t says)
{
    enum case_op op = says < HANDLER_ENVIRONMENT ? OP_FINISH : OP_RELEASE;

    if (!end(door, op, token, says))
        differ(door->engine->finding, "the end was refused");
}

static void deliver_leased(struct door *door)
{
    struct told told = claim(door);

    if (told.act != SEMEL_RUN)
        return;
    end_as_said(door, told.token, door->engine->says);
    expect_then(door, SEMEL_ACK);
}

static void end_lease(struct door *door)
{
    const struct case_when *when = &door->engine->kase->when;
    int64_t token = door->engine->before.live.lease_token;

    if (when->token == TOKEN_STALE) {
        token = strtoll(STALE_TOKEN, NULL, 10);
        exec(door, "INSERT INTO semel.held VALUES (" STALE_TOKEN ", 'claimed', 'c', 's', '" CASE_ID "', 1, now())");
    }
    expect_verdict(door->engine, end(door, (enum case_op)when->op, token, when->result) ? SAYS_DONE : SAYS_FENCED,
                   SEMEL_WHY_UNSET);
}

/* All that is due is taken once, or, `run`, until there is no more. */
static void scheduler(struct door *door, bool run)
{
    enum semel_why why = SEMEL_WHY_UNSET;
    bool given_back = false;
    int n;

    do {
        PGresult *taken = query(door, "SELECT token, message_id, attempt FROM semel.inbox_take('c', 8)", NULL);
        n = PQntuples(taken);
        for (int i = 0; i < n; i++) {
            bool ours = semel__str_eqz(column(taken, i, 1), CASE_ID);
            int64_t says = ours ? door->engine->says : SEMEL_DONE;
            if (ours)
                why = number(taken, i, 2) > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW;
            if (run)
                end_as_said(door, number(taken, i, 0), says);
            given_back = given_back || says >= HANDLER_ENVIRONMENT;
        }
        PQclear(taken);
    } while (run && n > 0 && !given_back);
    expect_verdict(door->engine, why != SEMEL_WHY_UNSET ? SAYS_RUN : SAYS_NOTHING, why);
}

static void tick(struct door *door)
{
    PGresult *result = query(door, "SELECT semel.tick(100)", NULL);

    expect_verdict(door->engine, number(result, 0, 0) > 0 ? SAYS_DONE : SAYS_NOTHING, SEMEL_WHY_UNSET);
    PQclear(result);
}

static void happen(struct door *door)
{
    const struct engine *engine = door->engine;
    const struct case_when *when = &engine->kase->when;
    bool leased = engine->policy.effect != SEMEL_EFFECT_ATOMIC || (when->delivery != UNSAID && when->delivery > 1) ||
                  (engine->there && engine->before.live.alone);

    switch ((enum case_op)when->op) {
    case OP_DELIVER:
        if (leased)
            deliver_leased(door);
        else
            deliver(door);
        return;
    case OP_CLAIM:
        claim(door);
        return;
    case OP_FINISH:
    case OP_RENEW:
    case OP_RELEASE:
        end_lease(door);
        return;
    case OP_TAKE:
    case OP_WORK:
        scheduler(door, when->op == OP_WORK);
        return;
    case OP_RECOVER:
    case OP_PURGE:
        tick(door);
        return;
    case OP_REPLAY:
    case OP_DISCARD:
    case OP_RESOLVE:
        return; /* left out */
    }
}

/* ---- a case --------------------------------------------------------------------------------------- */

/* Where the store is connected to. */
static PGconn *connect_as(PGconn *store)
{
    const char *const names[] = {"host", "port", "dbname", "user", NULL};
    const char *const values[] = {PQhost(store), PQport(store), PQdb(store), PQuser(store), NULL};

    return PQconnectdbParams(names, values, 0);
}

static void stop_clock(struct door *door)
{
    char sql[256];

    snprintf(sql, sizeof sql,
             "CREATE OR REPLACE FUNCTION semel._now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
             "$$ SELECT 'epoch'::timestamptz + %lld * interval '1 microsecond' $$",
             (long long)CASE_NOW);
    exec(door, sql);
}

static void set_policy(struct door *door)
{
    struct semel_buf settings;
    struct args args = {.n = 0};

    semel__buf_init(&settings, SEMEL_SETTINGS_MAX);
    semel__policy_write(&door->engine->policy, &settings);
    add_str(door, &args, semel__buf_str(&settings));
    PQclear(query(door, "SELECT semel.consumer('c', $1::jsonb)", &args));
    semel__buf_done(&settings);
}

static void happen_in_sql(struct engine *engine)
{
    struct door *door = semel__arena_alloc(&engine->world->arena, 1, sizeof *door);

    assert_non_null(door);
    door->engine = engine;
    engine->no_alerts = true;
    door->conn = connect_as(semel_store_native(engine->world->store));
    if (PQstatus(door->conn) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(door->conn));
    stop_clock(door);
    set_policy(door);
    happen(door);
    PQfinish(door->conn);
}

bool case_run_pgsql(const struct kase *kase, struct finding *finding, struct move *ret_move)
{
    enum absence absence = absence_of(kase);
    struct kase pared = *kase;
    bool found = false;

    if (absence != ABSENT_COUNT) {
        absences[absence].found++;
        return false;
    }
    pare(&pared);
    for (const struct driver *const *driver = drivers; *driver != NULL; driver++)
        if (strcmp((*driver)->name, "postgres") == 0) {
            found = true;
            case_run_event(&pared, *driver, happen_in_sql, finding, ret_move);
        }
    if (!found)
        differ(finding, "this build has no driver for PostgreSQL");
    return found;
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
#endif
