/* SPDX-License-Identifier: MIT
 *
 * case_ext.c: a case through the loadable extension. Facts are planted and read back as for the SQLite store; the event
 * happens through SQL alone (case_sql.c), on a connection of its own into which the extension was loaded.
 *
 * The clock of the extension is the machine's, so for the time of a case the machine's clock stands still: this program
 * has its own clock_gettime().
 */
#include "conform/case_sql.h"

#ifdef SEMEL_WITH_SQLITE
#include <sqlite3.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/consumer.h"

static bool clock_stands;

/* Also for what is loaded: the program is linked so that its symbols come first. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ret)
{
    if (id != CLOCK_REALTIME || !clock_stands)
        return (int)syscall(SYS_clock_gettime, id, ret);
    *ret = (struct timespec){CASE_NOW / 1000000, CASE_NOW % 1000000 * 1000};
    return 0;
}

/* ---- SQL ------------------------------------------------------------------------------------------ */

static const char *extension;

static void sql_failed(struct sql_client *client, const char *sql)
{
    differ(client->engine->finding, "%.60s...: %s", sql, sqlite3_errmsg(client->conn));
}

static void exec(struct sql_client *client, const char *sql)
{
    if (sqlite3_exec(client->conn, sql, NULL, NULL, NULL) != SQLITE_OK)
        sql_failed(client, sql);
}

static sqlite3_stmt *prepare(struct sql_client *client, const char *sql)
{
    sqlite3_stmt *stmt = NULL;

    if (sqlite3_prepare_v2(client->conn, sql, -1, &stmt, NULL) != SQLITE_OK) {
        sql_failed(client, sql);
        fail_msg("%s: %s", sql, sqlite3_errmsg(client->conn));
    }
    return stmt;
}

/* true: there is a row to be read. */
static bool step(struct sql_client *client, sqlite3_stmt *stmt)
{
    int rc = sqlite3_step(stmt);

    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        sql_failed(client, sqlite3_sql(stmt));
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
static void bind_msg(struct sql_client *client, sqlite3_stmt *stmt)
{
    const struct case_when *when = &client->engine->kase->when;
    struct semel__msg msg;
    struct semel_str none = {0};
    bool raw = when->body == BODY_RAW || when->tombstone == 1, given = when->body != BODY_NONE;

    case_msg_of(client->engine->kase, &client->engine->policy, &msg);
    bind_str(stmt, 1, SEMEL_STR("c"), false);
    bind_str(stmt, 2, msg.id, false);
    bind_str(stmt, 3, msg.source, false);
    bind_str(stmt, 4, msg.type, false);
    bind_str(stmt, 5, given && !raw ? msg.payload : none, false);
    bind_str(stmt, 6, given && raw ? msg.payload : none, true);
    bind_str(stmt, 7, msg.headers, false);
    bind_str(stmt, 8, msg.n_business > 0 ? msg.business[0] : none, false);
    bind_str(stmt, 9, msg.order_key, false);
    bind_int(stmt, 10, msg.version);
    bind_int(stmt, 12, msg.message_time_us);
    bind_int(stmt, 13, when->alone == 1 ? 2 : msg.delivery);
}

/* ---- the words ------------------------------------------------------------------------------------ */

#define MSG_ARGS                                                                                         \
    "consumer = ?1 AND message_id = ?2 AND source = ?3 AND type = ?4 AND payload = ?5 AND raw = ?6 "     \
    "AND headers = ?7 AND business_key = ?8 AND order_key = ?9 AND version = ?10 AND fingerprint = ?11 " \
    "AND message_time = ?12 AND delivery = ?13"

static struct sql_answer ext_ask(struct sql_client *client, bool claim)
{
    struct sql_answer answer = {.token = 0};
    sqlite3_stmt *stmt =
        prepare(client, claim ? "SELECT act, why, attempt, outcome, token FROM semel_inbox_claim WHERE " MSG_ARGS
                              : "SELECT act, why, attempt, outcome "
                                "FROM semel_inbox_begin(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)");

    bind_msg(client, stmt);
    if (step(client, stmt)) {
        struct semel_str outcome = column(stmt, 3);
        if (!semel__act_parse(column(stmt, 0), &answer.act) || !semel__why_parse(column(stmt, 1), &answer.why))
            differ(client->engine->finding, "the answer is not an act and a why");
        answer.attempt = sqlite3_column_int64(stmt, 2);
        snprintf(client->outcome, sizeof client->outcome, "%s", outcome.p != NULL ? outcome.p : "");
        if (claim)
            answer.token = sqlite3_column_int64(stmt, 4);
    }
    sqlite3_finalize(stmt);
    return answer;
}

static void ext_done(struct sql_client *client, const char *outcome)
{
    sqlite3_stmt *stmt = prepare(client, "SELECT semel_inbox_done('c', ?2, 's', ?1)");

    sqlite3_bind_text(stmt, 1, outcome, -1, SQLITE_STATIC);
    bind_str(stmt, 2, semel__str(client->engine->kase->id), false);
    step(client, stmt);
    sqlite3_finalize(stmt);
}

static bool ext_fail(struct sql_client *client, const char *cls, enum semel_act *ret_act,
                     enum semel_row_status *ret_state)
{
    sqlite3_stmt *stmt = prepare(client, "SELECT act, status FROM semel_inbox_fail WHERE " MSG_ARGS
                                         " AND class = ?14 AND reason = 'because'");
    bool answer;

    bind_msg(client, stmt);
    sqlite3_bind_text(stmt, 14, cls, -1, SQLITE_STATIC);
    answer = step(client, stmt) && semel__act_parse(column(stmt, 0), ret_act) &&
             semel__row_status_parse(column(stmt, 1), ret_state);
    sqlite3_finalize(stmt);
    return answer;
}

static int64_t ext_end(struct sql_client *client, enum case_op op, int64_t token, const char *result,
                       const char *outcome)
{
    static const char *const sqls[] = {[OP_FINISH] = "SELECT semel_inbox_finish(?1, ?2, ?3, 'because')",
                                       [OP_RENEW] = "SELECT semel_inbox_renew(?1)",
                                       [OP_RELEASE] = "SELECT semel_inbox_release(?1)"};
    sqlite3_stmt *stmt = prepare(client, sqls[op]);
    int64_t says;
    int rc;

    exec(client, "BEGIN IMMEDIATE");
    sqlite3_bind_int64(stmt, 1, token);
    if (op == OP_FINISH) {
        sqlite3_bind_text(stmt, 2, result, -1, SQLITE_STATIC);
        sqlite3_bind_text(stmt, 3, outcome, -1, SQLITE_STATIC);
    }
    rc = sqlite3_step(stmt);
    if (rc != SQLITE_ROW && strstr(sqlite3_errmsg(client->conn), "must not be committed") == NULL)
        sql_failed(client, sqls[op]);
    says = rc != SQLITE_ROW ? SAYS_REFUSED : sqlite3_column_int(stmt, 0) == 1 ? SAYS_DONE : SAYS_FENCED;
    sqlite3_finalize(stmt);
    if (says != SAYS_REFUSED)
        exec(client, "COMMIT");
    else if (sqlite3_exec(client->conn, "COMMIT", NULL, NULL, NULL) == SQLITE_OK)
        differ(client->engine->finding, "the transaction of a refused end was committed");
    return says;
}

static int ext_take(struct sql_client *client, struct sql_taken taken[SQL_TAKEN])
{
    sqlite3_stmt *stmt = prepare(client, "SELECT token, message_id, attempt FROM semel_inbox_take('c', 8)");
    int n = 0;

    exec(client, "BEGIN IMMEDIATE");
    for (; n < SQL_TAKEN && step(client, stmt); n++)
        taken[n] = (struct sql_taken){sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 2),
                                      semel__str_eqz(column(stmt, 1), CASE_ID)};
    sqlite3_finalize(stmt);
    exec(client, "COMMIT");
    return n;
}

static bool ext_tick(struct sql_client *client)
{
    sqlite3_stmt *stmt = prepare(client, "SELECT semel_tick(100)");
    bool touched;

    exec(client, "BEGIN IMMEDIATE");
    touched = step(client, stmt) && sqlite3_column_int64(stmt, 0) > 0;
    sqlite3_finalize(stmt);
    exec(client, "COMMIT");
    return touched;
}

static bool ext_set(struct sql_client *client, const char *settings)
{
    sqlite3_stmt *stmt = prepare(client, "SELECT semel_consumer('c', ?1)");
    bool done;

    exec(client, "BEGIN IMMEDIATE");
    sqlite3_bind_text(stmt, 1, settings, -1, SQLITE_STATIC);
    done = sqlite3_step(stmt) == SQLITE_ROW;
    if (!done && strstr(sqlite3_errmsg(client->conn), "cannot go from") == NULL)
        sql_failed(client, "semel_consumer");
    sqlite3_finalize(stmt);
    exec(client, done ? "COMMIT" : "ROLLBACK");
    return done;
}

/* A token that this connection never held. */
static void ext_plant_stale(struct sql_client *client, int64_t token)
{
    (void)client;
    (void)token;
}

static const struct sql_words words = {
    .begin = "BEGIN IMMEDIATE",
    .exec = exec,
    .ask = ext_ask,
    .done = ext_done,
    .failed = ext_fail,
    .end = ext_end,
    .take = ext_take,
    .tick = ext_tick,
    .set = ext_set,
    .plant_stale = ext_plant_stale,
};

/* ---- a case --------------------------------------------------------------------------------------- */

/* The case's rows were stored under its settings, which the client then finds as they are. */
static void set_policy(struct sql_client *client)
{
    static const char *const texts[] = {
        "INSERT INTO semel_consumer (consumer, settings, updated_at) VALUES ('c', ?1, 0) "
        "ON CONFLICT (consumer) DO UPDATE SET settings = excluded.settings",
        "SELECT semel_consumer('c', ?1)",
    };
    struct semel_buf settings;

    semel__buf_init(&settings, SEMEL_SETTINGS_MAX);
    semel__policy_write(&client->engine->policy, &settings);
    exec(client, "BEGIN IMMEDIATE");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        sqlite3_stmt *stmt = prepare(client, texts[i]);
        bind_str(stmt, 1, semel__buf_str(&settings), false);
        step(client, stmt);
        sqlite3_finalize(stmt);
    }
    exec(client, "COMMIT");
    semel__buf_done(&settings);
}

static void happen_in_sql(struct engine *engine)
{
    struct sql_client *client = semel__arena_alloc(&engine->world->arena, 1, sizeof *client);
    char *why = NULL;
    sqlite3 *db = NULL;

    assert_non_null(client);
    engine->no_alerts = true;
    assert_int_equal(sqlite3_open(engine->world->path, &db), SQLITE_OK);
    *client = (struct sql_client){.engine = engine, .words = &words, .conn = db};
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1, NULL);
    if (sqlite3_load_extension(client->conn, extension, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", extension, why);
    clock_stands = true;
    set_policy(client);
    case_sql_happen(client);
    clock_stands = false;
    if (sqlite3_close(client->conn) != SQLITE_OK)
        differ(engine->finding, "the connection cannot be closed: %s", sqlite3_errmsg(client->conn));
}

static struct sql_account account = {.expected = {[ABSENT_OPERATOR] = 80,
                                                  [ABSENT_BATCH] = 5,
                                                  [ABSENT_DEFECT] = 5,
                                                  [ABSENT_POSITION] = 7,
                                                  [ABSENT_OUTCOME] = 1,
                                                  [ABSENT_EVIDENCE] = 9,
                                                  [ABSENT_TOGETHER] = 2}};

bool case_run_ext(const struct kase *kase, const char *so, struct finding *finding, struct move *ret_move)
{
    struct kase pared;

    if (!case_sql_pare(kase, &account, &pared))
        return false;
    extension = so;
    case_run_event(&pared, world_driver_named("sqlite"), happen_in_sql, finding, ret_move);
    return true;
}

bool case_ext_account(void)
{
    return case_sql_account(&account);
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
