/* SPDX-License-Identifier: MIT
 *
 * case_ext.c: a case through the loadable extension. Facts are planted and read back as for the SQLite store; the event
 * happens through SQL alone, on a connection of its own into which the extension was loaded.
 *
 * A delivery is begin, and then done or fail; where it runs behind a claim, it is claim, and then finish or release.
 * The world's failure is a rollback, or a release. Every second case has its fail in a transaction of its own, after
 * the one that began was rolled back.
 *
 * The clock of the extension is the machine's, so for the time of a case the machine's clock stands still: this program
 * has its own clock_gettime().
 *
 * What the SQL surface has no words for is left out, and `absences` says what and how many. Alerts are not compared:
 * SQL raises none.
 */
#include "conform/cases.h"

#ifdef SEMEL_WITH_SQLITE
#include <sqlite3.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/consumer.h"

#define STALE_TOKEN 1000000000

static bool clock_stands;

/* Also for what is loaded: the program is linked so that its symbols come first. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ret)
{
    if (id != CLOCK_REALTIME || !clock_stands)
        return (int)syscall(SYS_clock_gettime, id, ret);
    *ret = (struct timespec){CASE_NOW / 1000000, CASE_NOW % 1000000 * 1000};
    return 0;
}

/* ---- what is left out ----------------------------------------------------------------------------- */

enum absence {
    ABSENT_OPERATOR,
    ABSENT_BATCH,
    ABSENT_DEFECT,
    ABSENT_POSITION,
    ABSENT_OUTCOME,
    ABSENT_EVIDENCE, /* from here on: not the case, but a part of what it becomes */
    ABSENT_TOGETHER,
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
    [ABSENT_OUTCOME] = {"an outcome of a failure: semel_inbox_fail has no such argument", 1, 0},
    [ABSENT_EVIDENCE] = {"(only the evidence) a stale token that this connection never held names no message", 3, 0},
    [ABSENT_TOGETHER] = {"(only `alone`) messages that are claimed together: SQL claims each by itself", 2, 0},
};
_Static_assert(COUNT(absences) == ABSENT_COUNT, "one line each");

static enum absence absence_of(const struct kase *kase)
{
    const struct case_when *when = &kase->when;

    switch ((enum case_op)when->op) {
    case OP_REPLAY:
    case OP_DISCARD:
    case OP_RESOLVE:
        return ABSENT_OPERATOR;
    case OP_DELIVER:
    case OP_CLAIM:
    case OP_FINISH:
    case OP_RENEW:
    case OP_RELEASE:
    case OP_RECOVER:
    case OP_TAKE:
    case OP_WORK:
    case OP_PURGE:
        break;
    }
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

    if (kase->when.token == TOKEN_STALE && kase->becomes.attempt_rows != UNSAID) {
        kase->becomes.attempt_rows = UNSAID;
        absences[ABSENT_EVIDENCE].found++;
    }
    if (claims && kase->becomes.row.alone == 0) {
        kase->becomes.row.alone = UNSAID;
        absences[ABSENT_TOGETHER].found++;
    }
}

bool case_ext_account(void)
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

struct door {
    struct engine *engine;
    sqlite3 *db;
    char outcome[64];
};

static const char *extension;

static void sql_failed(struct door *door, const char *sql)
{
    differ(door->engine->finding, "%.60s...: %s", sql, sqlite3_errmsg(door->db));
}

static void exec(struct door *door, const char *sql)
{
    if (sqlite3_exec(door->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        sql_failed(door, sql);
}

static sqlite3_stmt *prepare(struct door *door, const char *sql)
{
    sqlite3_stmt *stmt = NULL;

    if (sqlite3_prepare_v2(door->db, sql, -1, &stmt, NULL) != SQLITE_OK) {
        sql_failed(door, sql);
        fail_msg("%s: %s", sql, sqlite3_errmsg(door->db));
    }
    return stmt;
}

/* true: there is a row to be read. */
static bool step(struct door *door, sqlite3_stmt *stmt)
{
    int rc = sqlite3_step(stmt);

    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        sql_failed(door, sqlite3_sql(stmt));
    return rc == SQLITE_ROW;
}

static struct semel_str column(sqlite3_stmt *stmt, int i)
{
    return semel__str((const char *)sqlite3_column_text(stmt, i));
}

static void bind_str(sqlite3_stmt *stmt, int i, struct semel_str s, bool blob)
{
    if (s.p == NULL)
        sqlite3_bind_null(stmt, i);
    else if (blob)
        sqlite3_bind_blob(stmt, i, s.p, (int)s.n, SQLITE_TRANSIENT);
    else
        sqlite3_bind_text(stmt, i, s.p, (int)s.n, SQLITE_TRANSIENT);
}

static void bind_int(sqlite3_stmt *stmt, int i, int64_t n)
{
    if (n == SEMEL_NONE)
        sqlite3_bind_null(stmt, i);
    else
        sqlite3_bind_int64(stmt, i, n);
}

/* The arguments of begin, in their order. Without a payload there is no fingerprint. */
static void bind_msg(struct door *door, sqlite3_stmt *stmt)
{
    const struct case_when *when = &door->engine->kase->when;
    struct semel__msg msg;
    struct semel_str none = {0};
    bool raw = when->body == BODY_RAW, given = when->body != BODY_NONE;

    case_msg_of(door->engine->kase, &door->engine->policy, &msg);
    bind_str(stmt, 1, SEMEL_STR("c"), false);
    bind_str(stmt, 2, msg.id, false);
    bind_str(stmt, 3, msg.source, false);
    bind_str(stmt, 4, msg.type, false);
    bind_str(stmt, 5, given && !raw ? msg.payload : none, false);
    bind_str(stmt, 6, given && raw ? msg.payload : none, true);
    bind_str(stmt, 8, msg.n_business > 0 ? msg.business[0] : none, false);
    bind_str(stmt, 9, msg.order_key, false);
    bind_int(stmt, 10, msg.version);
    bind_int(stmt, 12, msg.message_time_us);
    bind_int(stmt, 13, when->alone == 1 ? 2 : msg.delivery);
}

static const char *handler_outcome(const struct door *door)
{
    return door->engine->kase->when.outcome == 1 ? "{\"o\":2}" : NULL;
}

/* ---- what happens --------------------------------------------------------------------------------- */

struct told {
    enum semel_act act;
    enum semel_why why;
    int attempt;
    int64_t token;
};

static struct told ask(struct door *door, const char *sql)
{
    struct told told = {.token = 0};
    sqlite3_stmt *stmt = prepare(door, sql);

    bind_msg(door, stmt);
    if (step(door, stmt)) {
        struct semel_str outcome = column(stmt, 3);
        if (!semel__act_parse(column(stmt, 0), &told.act) || !semel__why_parse(column(stmt, 1), &told.why))
            differ(door->engine->finding, "the answer is not an act and a why");
        told.attempt = sqlite3_column_int(stmt, 2);
        snprintf(door->outcome, sizeof door->outcome, "%s", outcome.p != NULL ? outcome.p : "");
        if (sqlite3_column_count(stmt) > 4)
            told.token = sqlite3_column_int64(stmt, 4);
    }
    sqlite3_finalize(stmt);
    door->engine->settled.outcome = semel__str(door->outcome);
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
        differ(engine->finding, "attempt: the handler was told %d", told->attempt);
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
    sqlite3_stmt *stmt = prepare(door, "SELECT semel_inbox_done('c', '" CASE_ID "', 's', ?1)");

    sqlite3_bind_text(stmt, 1, handler_outcome(door), -1, SQLITE_STATIC);
    step(door, stmt);
    sqlite3_finalize(stmt);
    exec(door, "COMMIT");
    expect_then(door, SEMEL_ACK);
}

static void say_failed(struct door *door)
{
    struct engine *engine = door->engine;
    enum semel_act act = SEMEL_ACT_UNSET;
    sqlite3_stmt *stmt;

    if (engine->kase->line % 2 == 0) {
        exec(door, "ROLLBACK");
        exec(door, "BEGIN IMMEDIATE");
    }
    stmt = prepare(door, "SELECT act, due_at, why, state FROM semel_inbox_fail "
                         "WHERE consumer = ?1 AND message_id = ?2 AND source = ?3 AND type = ?4 AND payload = ?5 "
                         "AND raw = ?6 AND headers = ?7 AND business_key = ?8 AND order_key = ?9 AND version = ?10 "
                         "AND fingerprint = ?11 AND message_time = ?12 AND delivery = ?13 AND class = ?14 "
                         "AND reason = 'because'");
    bind_msg(door, stmt);
    sqlite3_bind_text(stmt, 14,
                      engine->says == SEMEL_MAYBE ? "unknown" : semel__result_name((enum semel_result)engine->says), -1,
                      SQLITE_STATIC);
    if (step(door, stmt)) {
        engine->state_told = semel__act_parse(column(stmt, 0), &act) &&
                             semel__state_parse(column(stmt, 3), &engine->settled.state);
        if (!engine->state_told)
            differ(engine->finding, "the answer of fail is not an act and a state");
    }
    sqlite3_finalize(stmt);
    exec(door, "COMMIT");
    expect_then(door, act);
}

static void deliver(struct door *door)
{
    struct told told;

    exec(door, "BEGIN IMMEDIATE");
    told = ask(door, "SELECT act, why, attempt, outcome "
                     "FROM semel_inbox_begin(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)");
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

    exec(door, "BEGIN IMMEDIATE");
    told = ask(door, "SELECT act, why, attempt, outcome, token FROM semel_inbox_claim "
                     "WHERE consumer = ?1 AND message_id = ?2 AND source = ?3 AND type = ?4 AND payload = ?5 "
                     "AND raw = ?6 AND headers = ?7 AND business_key = ?8 AND order_key = ?9 AND version = ?10 "
                     "AND fingerprint = ?11 AND message_time = ?12 AND delivery = ?13");
    expect_told(door, &told);
    exec(door, told.act == SEMEL_LATER ? "ROLLBACK" : "COMMIT");
    return told;
}

/* finish, renew or release under the token; false: fenced. */
static bool end(struct door *door, enum case_op op, int64_t token, int64_t result)
{
    static const char *const sqls[] = {[OP_FINISH] = "SELECT semel_inbox_finish(?1, ?2, ?3, 'because')",
                                       [OP_RENEW] = "SELECT semel_inbox_renew(?1)",
                                       [OP_RELEASE] = "SELECT semel_inbox_release(?1)"};
    sqlite3_stmt *stmt = prepare(door, sqls[op]);
    bool held;

    exec(door, "BEGIN IMMEDIATE");
    sqlite3_bind_int64(stmt, 1, token);
    if (op == OP_FINISH) {
        sqlite3_bind_text(stmt, 2, semel__result_name((enum semel_result)result), -1, SQLITE_STATIC);
        sqlite3_bind_text(stmt, 3, handler_outcome(door), -1, SQLITE_STATIC);
    }
    held = step(door, stmt) && sqlite3_column_int(stmt, 0) == 1;
    sqlite3_finalize(stmt);
    exec(door, "COMMIT");
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
    int64_t token = when->token == TOKEN_OWN ? door->engine->before.live.lease_token : STALE_TOKEN;
    bool held = end(door, (enum case_op)when->op, token, when->result);

    expect_verdict(door->engine, held ? SAYS_DONE : SAYS_FENCED, SEMEL_WHY_UNSET);
}

struct taken {
    int64_t token;
    int attempt;
    bool ours;
};

static int take(struct door *door, struct taken taken[8])
{
    sqlite3_stmt *stmt = prepare(door, "SELECT token, message_id, attempt FROM semel_inbox_take('c', 8)");
    int n = 0;

    exec(door, "BEGIN IMMEDIATE");
    for (; n < 8 && step(door, stmt); n++)
        taken[n] = (struct taken){sqlite3_column_int64(stmt, 0), sqlite3_column_int(stmt, 2),
                                  semel__str_eqz(column(stmt, 1), CASE_ID)};
    sqlite3_finalize(stmt);
    exec(door, "COMMIT");
    return n;
}

/* All that is due is taken once, or, `run`, until there is no more. */
static void scheduler(struct door *door, bool run)
{
    struct taken taken[8];
    enum semel_why why = SEMEL_WHY_UNSET;
    bool given_back = false;
    int n;

    do {
        n = take(door, taken);
        for (int i = 0; i < n; i++) {
            int64_t says = taken[i].ours ? door->engine->says : SEMEL_DONE;
            if (taken[i].ours)
                why = taken[i].attempt > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW;
            if (run)
                end_as_said(door, taken[i].token, says);
            given_back = given_back || says >= HANDLER_ENVIRONMENT;
        }
    } while (run && n > 0 && !given_back);
    expect_verdict(door->engine, why != SEMEL_WHY_UNSET ? SAYS_RUN : SAYS_NOTHING, why);
}

static void tick(struct door *door)
{
    sqlite3_stmt *stmt = prepare(door, "SELECT semel_tick(100)");
    bool touched;

    exec(door, "BEGIN IMMEDIATE");
    touched = step(door, stmt) && sqlite3_column_int64(stmt, 0) > 0;
    sqlite3_finalize(stmt);
    exec(door, "COMMIT");
    expect_verdict(door->engine, touched ? SAYS_DONE : SAYS_NOTHING, SEMEL_WHY_UNSET);
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

static void set_policy(struct door *door)
{
    struct semel_buf settings;
    sqlite3_stmt *stmt = prepare(door, "SELECT semel_consumer('c', ?1)");

    semel__buf_init(&settings, SEMEL_SETTINGS_MAX);
    semel__policy_write(&door->engine->policy, &settings);
    exec(door, "BEGIN IMMEDIATE");
    bind_str(stmt, 1, semel__buf_str(&settings), false);
    step(door, stmt);
    sqlite3_finalize(stmt);
    exec(door, "COMMIT");
    semel__buf_done(&settings);
}

static void happen_in_sql(struct engine *engine)
{
    struct door *door = semel__arena_alloc(&engine->world->arena, 1, sizeof *door);
    char path[128], *why = NULL;

    assert_non_null(door);
    door->engine = engine;
    engine->no_alerts = true;
    snprintf(path, sizeof path, "%s/store.db", engine->world->dir);
    assert_int_equal(sqlite3_open(path, &door->db), SQLITE_OK);
    sqlite3_db_config(door->db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1, NULL);
    if (sqlite3_load_extension(door->db, extension, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", extension, why);
    clock_stands = true;
    set_policy(door);
    happen(door);
    clock_stands = false;
    if (sqlite3_close(door->db) != SQLITE_OK)
        differ(engine->finding, "the connection cannot be closed: %s", sqlite3_errmsg(door->db));
}

bool case_run_ext(const struct kase *kase, const char *so, struct finding *finding, struct move *ret_move)
{
    enum absence absence = absence_of(kase);
    struct kase pared = *kase;

    if (absence != ABSENT_COUNT) {
        absences[absence].found++;
        return false;
    }
    extension = so;
    pare(&pared);
    for (const struct driver *const *driver = drivers; *driver != NULL; driver++)
        if (strcmp((*driver)->name, "sqlite") == 0)
            case_run_event(&pared, *driver, happen_in_sql, finding, ret_move);
    return true;
}

#else

bool case_run_ext(const struct kase *kase, const char *so, struct finding *finding, struct move *ret_move)
{
    (void)kase;
    (void)so;
    (void)ret_move;
    differ(finding, "this build has no SQLite");
    return false;
}

bool case_ext_account(void)
{
    return false;
}
#endif
