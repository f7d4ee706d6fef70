/* SPDX-License-Identifier: MIT
 *
 * case_sql.c: a case through SQL functions. The contract stands in case_sql.h.
 */
#include "conform/case_sql.h"

/* ---- what is left out ----------------------------------------------------------------------------- */

static const char *const reasons[] = {
    [ABSENT_OPERATOR] = "retry, discard and resolve are an operator's words: see the command line",
    [ABSENT_BATCH] = "a batch of two: SQL delivers one at a time",
    [ABSENT_DEFECT] = "a field that the rules of a route did not find: SQL is given fields",
    [ABSENT_POSITION] = "a position in place of an id: SQL has no such argument",
    [ABSENT_OUTCOME] = "an outcome of a failure: inbox_fail has no such argument",
    [ABSENT_EVIDENCE] = "(only the evidence) a stale token that this connection never held names no message",
    [ABSENT_TOGETHER] = "(only `alone`) messages that are claimed together: SQL claims each by itself",
};
_Static_assert(COUNT(reasons) == ABSENT_COUNT, "one line each");

static enum sql_absence absence_of(const struct kase *kase)
{
    const struct case_when *when = &kase->when;

    if (when->op == OP_RETRY || when->op == OP_DISCARD || when->op == OP_RESOLVE)
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

bool case_sql_pare(const struct kase *kase, struct sql_account *account, struct kase *ret_pared)
{
    enum sql_absence absence = absence_of(kase);
    bool claims = kase->when.op == OP_CLAIM || kase->when.op == OP_TAKE;

    if (absence != ABSENT_COUNT) {
        account->found[absence]++;
        return false;
    }
    *ret_pared = *kase;
    if (account->expected[ABSENT_EVIDENCE] > 0 && kase->when.token == TOKEN_STALE &&
        kase->becomes.attempt_rows != UNSAID) {
        ret_pared->becomes.attempt_rows = UNSAID;
        account->found[ABSENT_EVIDENCE]++;
    }
    if (claims && kase->becomes.row.alone == 0) {
        ret_pared->becomes.row.alone = UNSAID;
        account->found[ABSENT_TOGETHER]++;
    }
    return true;
}

bool case_sql_account(const struct sql_account *account)
{
    bool right = true;

    for (int i = 0; i < ABSENT_COUNT; i++) {
        if (account->found[i] > 0 || account->expected[i] > 0)
            printf("left out, %d cases: %s\n", account->found[i], reasons[i]);
        if (account->found[i] != account->expected[i]) {
            printf("    expected %d\n", account->expected[i]);
            right = false;
        }
    }
    return right;
}

/* ---- what is told --------------------------------------------------------------------------------- */

static void exec(struct sql_client *client, const char *sql)
{
    client->words->exec(client, sql);
}

static const char *handler_outcome(const struct sql_client *client)
{
    return client->engine->kase->when.outcome == 1 ? "{\"o\":2}" : NULL;
}

static struct sql_answer ask(struct sql_client *client, bool claim)
{
    struct engine *engine = client->engine;
    int before = engine->there ? engine->before.progress.attempts : 0;
    struct sql_answer answer;

    exec(client, client->words->begin);
    answer = client->words->ask(client, claim);
    engine->settled.outcome = semel__str(client->outcome);
    expect_verdict(engine,
                   answer.act == SEMEL_RUN   ? SAYS_RUN
                   : answer.act == SEMEL_ACK ? SAYS_ACK
                                             : SAYS_LATER,
                   answer.why);
    if (answer.act == SEMEL_RUN && answer.attempt != before + 1)
        differ(engine->finding, "attempt: the handler was told %lld", (long long)answer.attempt);
    return answer;
}

static void expect_then(struct sql_client *client, enum semel_act act)
{
    int64_t said = client->engine->kase->verdict.then;

    if (said != UNSAID && said != (int64_t)act)
        differ(client->engine->finding, "in the end: expected %s, found %s", semel__act_name((enum semel_act)said),
               semel__act_name(act));
}

/* Nothing runs. To roll back what is told `later` is allowed, and to commit it, which keeps its place in the order. */
static void end_unrun(struct sql_client *client, enum semel_act act)
{
    const struct kase *kase = client->engine->kase;
    bool commit = act == SEMEL_ACK || kase->when.no_payload == 1 || kase->line % 2 == 0;

    exec(client, commit ? "COMMIT" : "ROLLBACK");
}

/* ---- in a transaction ----------------------------------------------------------------------------- */

static void say_done(struct sql_client *client)
{
    client->words->done(client, handler_outcome(client));
    exec(client, "COMMIT");
    expect_then(client, SEMEL_ACK);
}

static void say_failed(struct sql_client *client)
{
    struct engine *engine = client->engine;
    enum semel_act act = SEMEL_ACT_UNSET;

    if (engine->kase->line % 2 == 0) {
        exec(client, "ROLLBACK");
        exec(client, client->words->begin);
    }
    engine->state_reported = client->words->failed(client,
                                                   engine->says == SEMEL_MAYBE
                                                       ? "unknown"
                                                       : semel__result_name((enum semel_result)engine->says),
                                                   &act, &engine->settled.state);
    if (!engine->state_reported)
        differ(engine->finding, "the answer of fail is not an act and a status");
    exec(client, "COMMIT");
    expect_then(client, act);
}

static void deliver(struct sql_client *client)
{
    struct sql_answer answer = ask(client, false);

    if (answer.act != SEMEL_RUN) {
        end_unrun(client, answer.act);
    } else if (client->engine->says == SEMEL_DONE) {
        say_done(client);
    } else if (client->engine->says < HANDLER_ENVIRONMENT) {
        say_failed(client);
    } else {
        exec(client, "ROLLBACK");
        expect_then(client, SEMEL_LATER);
    }
}

/* ---- under a lease -------------------------------------------------------------------------------- */

static struct sql_answer claim(struct sql_client *client)
{
    struct sql_answer answer = ask(client, true);

    if (answer.act == SEMEL_RUN)
        exec(client, "COMMIT");
    else
        end_unrun(client, answer.act);
    return answer;
}

static int64_t end(struct sql_client *client, enum case_op op, int64_t token, int64_t result)
{
    return client->words->end(client, op, token, op == OP_FINISH ? semel__result_name((enum semel_result)result) : NULL,
                              handler_outcome(client));
}

/* What the handler says, under the lease of a message that is not necessarily ours. */
static void end_as_said(struct sql_client *client, int64_t token, int64_t says)
{
    enum case_op op = says < HANDLER_ENVIRONMENT ? OP_FINISH : OP_RELEASE;

    if (end(client, op, token, says) != SAYS_DONE)
        differ(client->engine->finding, "the end was refused");
}

static void deliver_leased(struct sql_client *client)
{
    struct sql_answer answer = claim(client);

    if (answer.act != SEMEL_RUN)
        return;
    end_as_said(client, answer.token, client->engine->says);
    /* Without a payload only what is done may be acknowledged, which whoever claimed it knows. */
    expect_then(client, client->engine->kase->when.no_payload == 1 && client->engine->says != SEMEL_DONE ? SEMEL_LATER
                                                                                                         : SEMEL_ACK);
}

static void end_lease(struct sql_client *client)
{
    const struct case_when *when = &client->engine->kase->when;
    int64_t token = client->engine->before.progress.lease_token;

    if (when->token == TOKEN_STALE) {
        token = case_stale_token(client->engine->kase, &client->engine->policy);
        client->words->plant_stale(client, token);
    }
    expect_verdict(client->engine, end(client, (enum case_op)when->op, token, when->result), SEMEL_WHY_UNSET);
}

/* All that is due is taken once, or, `run`, until there is no more. */
static void scheduler(struct sql_client *client, bool run)
{
    struct sql_taken taken[SQL_TAKEN];
    enum semel_why why = SEMEL_WHY_UNSET;
    bool given_back = false;
    int n;

    do {
        n = client->words->take(client, taken);
        for (int i = 0; i < n; i++) {
            int64_t says = taken[i].ours ? client->engine->says : SEMEL_DONE;
            if (taken[i].ours)
                why = taken[i].attempt > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW;
            if (run)
                end_as_said(client, taken[i].token, says);
            given_back = given_back || says >= HANDLER_ENVIRONMENT;
        }
    } while (run && n > 0 && !given_back);
    expect_verdict(client->engine, why != SEMEL_WHY_UNSET ? SAYS_RUN : SAYS_NOTHING, why);
}

/* ---- the event ------------------------------------------------------------------------------------ */

void case_sql_happen(struct sql_client *client)
{
    const struct engine *engine = client->engine;
    const struct case_when *when = &engine->kase->when;
    bool leased = engine->policy.effect != SEMEL_EFFECT_ATOMIC || (when->delivery != UNSAID && when->delivery > 1) ||
                  (engine->there && engine->before.progress.alone);
    struct semel_str change;

    switch ((enum case_op)when->op) {
    case OP_DELIVER:
        if (leased)
            deliver_leased(client);
        else
            deliver(client);
        return;
    case OP_CLAIM:
        claim(client);
        return;
    case OP_FINISH:
    case OP_RENEW:
    case OP_RELEASE:
        end_lease(client);
        return;
    case OP_TAKE:
    case OP_WORK:
        scheduler(client, when->op == OP_WORK);
        return;
    case OP_RECOVER:
    case OP_PURGE:
    case OP_TICK:
        expect_verdict(client->engine, client->words->tick(client) ? SAYS_DONE : SAYS_NOTHING, SEMEL_WHY_UNSET);
        return;
    case OP_SET:
        change = case_change(engine->kase, &engine->policy, &engine->world->arena);
        expect_verdict(client->engine, client->words->set(client, change.p) ? SAYS_DONE : SAYS_REFUSED,
                       SEMEL_WHY_UNSET);
        return;
    case OP_RETRY:
    case OP_DISCARD:
    case OP_RESOLVE:
        return; /* left out */
    }
}
