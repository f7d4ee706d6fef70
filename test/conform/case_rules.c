/* SPDX-License-Identifier: MIT
 *
 * case_rules.c: a case by the pure rules alone: verdicts and the semel__progress_* functions, without a store.
 *
 * What belongs to a store cannot be asked here (tokens, business keys after the end, the key's last version, purge):
 * a case that is about nothing else is left out, and says so.
 */
#include "conform/cases.h"

#define ARRIVAL_AHEAD 1
#define ARRIVAL_PARKED 10
#define ARRIVAL_M 500
#define ARRIVAL_BEHIND 900

struct rules {
    const struct kase *kase;
    struct semel_policy policy;
    struct semel__msg msg;
    struct semel_row row;
    struct semel_key key;
    int64_t skipped[SEMEL_SKIPPED_MAX];
    struct semel_facts facts;
    struct semel_random rng;
    struct semel_progress progress; /* what the row becomes */
    bool there;                     /* there is a row in the end */
};

/* ---- facts -------------------------------------------------------------------------------------------- */

static void stand(struct semel_key *key, enum semel_row_status state, int64_t arrival, int64_t version)
{
    bool first = key->head_arrival == SEMEL_NONE ||
                 (key->by_version ? version < key->head_version : arrival < key->head_arrival);

    if (!semel__state_unfinished(state))
        return;
    key->open |= state == SEMEL_ROW_PROCESSING || state == SEMEL_ROW_UNKNOWN;
    if (!first)
        return;
    key->head_arrival = arrival;
    key->head_version = version;
}

static bool is_waiter(int64_t other)
{
    return other != UNSAID && other % 16 == OTHER_WAITER;
}

static void find_key(struct rules *rules)
{
    const struct case_given *given = &rules->kase->given;

    rules->key = (struct semel_key){.key = SEMEL_STR("k"),
                                    .by_version = rules->policy.order == SEMEL_ORDER_VERSION,
                                    .last_version = given->last != UNSAID ? given->last : SEMEL_NONE,
                                    .skipped = rules->skipped,
                                    .head_arrival = SEMEL_NONE,
                                    .head_version = SEMEL_NONE};
    case_skipped(given->skipped, rules->skipped, &rules->key.n_skipped);
    if (given->ahead != UNSAID)
        stand(&rules->key, is_waiter(given->ahead) ? SEMEL_ROW_STALE : OTHER_STATE(given->ahead), ARRIVAL_AHEAD,
              OTHER_VERSION(given->ahead));
    for (int64_t i = 0; given->parked != UNSAID && i < given->parked; i++, rules->key.parked++)
        stand(&rules->key, SEMEL_ROW_WAITING, ARRIVAL_PARKED + i, rules->key.by_version ? 1000 + i : SEMEL_NONE);
    if (case_has_row(rules->kase) && semel__progress_in_order(&rules->row.progress))
        stand(&rules->key, rules->row.progress.state, ARRIVAL_M, rules->row.version);
    if (given->behind != UNSAID)
        stand(&rules->key, is_waiter(given->behind) ? SEMEL_ROW_STALE : OTHER_STATE(given->behind), ARRIVAL_BEHIND,
              OTHER_VERSION(given->behind));
}

static enum semel_intent intent_of(const struct rules *rules)
{
    const struct case_given *given = &rules->kase->given;

    if (given->business == UNSAID || (rules->kase->when.business != 1 && given->wants != 1))
        return SEMEL_INTENT_FREE;
    if (given->business == HELD_OWN)
        return case_has_row(rules->kase) ? SEMEL_INTENT_FREE : SEMEL_INTENT_DONE;
    return given->business == HELD_BUSY ? SEMEL_INTENT_BUSY : SEMEL_INTENT_DONE;
}

static void find_facts(struct rules *rules)
{
    const struct case_given *given = &rules->kase->given;
    bool ordered = rules->policy.order != SEMEL_ORDER_NONE;

    if (case_has_row(rules->kase)) {
        case_row_of(rules->kase, &rules->policy, &rules->row);
        rules->row.arrival = ARRIVAL_M;
        rules->progress = rules->row.progress;
        rules->there = true;
    }
    find_key(rules);
    rules->facts = (struct semel_facts){
        .now_us = CASE_NOW,
        .row = case_has_row(rules->kase) && given->row.damaged != 1 ? &rules->row : NULL,
        .damaged = given->row.damaged == 1,
        .watermark_us = given->watermark != UNSAID ? case_at(given->watermark) : SEMEL_NONE,
        .intent = intent_of(rules),
        .intent_full = given->behind_wants == 1 && rules->policy.parked_key_max == 1,
        .key = ordered ? &rules->key : NULL,
        .large = given->large != UNSAID ? given->large : 0,
        .route_parked = rules->key.parked + (given->parked_elsewhere != UNSAID ? given->parked_elsewhere : 0) +
                        is_waiter(given->ahead) + is_waiter(given->behind),
    };
}

/* ---- events ------------------------------------------------------------------------------------------- */

static struct semel_progress unborn(void)
{
    return (struct semel_progress){.due_us = SEMEL_NONE,
                                   .processed_us = SEMEL_NONE,
                                   .lease_until_us = SEMEL_NONE,
                                   .lease_token = SEMEL_NONE};
}

static void claim(struct rules *rules, bool alone)
{
    struct semel_progress before = rules->there ? rules->progress : unborn();

    semel__progress_claim(&rules->policy, &before, SEMEL_STR("worker-1"), alone,
                          case_token("again", rules->policy.effect), CASE_NOW, &rules->progress);
    rules->there = true;
}

static void end(struct rules *rules, int64_t result)
{
    struct semel_progress before = rules->progress;
    struct semel_ending ending = {.result = (enum semel_result)result, .text = SEMEL_STR("because")};

    if (rules->kase->when.outcome == 1)
        ending.outcome = SEMEL_STR("{\"o\":2}");
    semel__progress_finish(&rules->policy, &before, &ending, CASE_NOW, &rules->rng, &rules->progress);
}

static void run(struct rules *rules, bool leased)
{
    int64_t handler = rules->kase->when.handler != UNSAID ? rules->kase->when.handler : SEMEL_DONE;
    struct semel_progress before = rules->there ? rules->progress : unborn();
    bool worldly = handler >= HANDLER_ENVIRONMENT;

    if (leased)
        claim(rules, true);
    else if (!worldly) {
        semel__progress_complete(&before, CASE_NOW, &rules->progress);
        rules->there = true;
    }
    before = rules->progress;
    if (leased && worldly)
        semel__progress_release(&before, CASE_NOW, &rules->progress);
    else if (!worldly)
        end(rules, handler);
}

static void compare_verdict(const struct rules *rules, const struct semel__verdict *v, struct finding *finding)
{
    static const enum semel_act acts[] = {[SAYS_RUN] = SEMEL_RUN, [SAYS_ACK] = SEMEL_ACK, [SAYS_LATER] = SEMEL_LATER};
    const struct case_verdict *said = &rules->kase->verdict;

    if (said->says > SAYS_LATER) {
        if (v->act == SEMEL_RUN)
            differ(finding, "verdict: expected that it does not run, found run %s", semel__why_name(v->why));
        return;
    }
    if (v->act != acts[said->says] || v->why != (enum semel_why)said->why)
        differ(finding, "verdict: expected %s %s, found %s %s", semel__act_name(acts[said->says]),
               semel__why_name((enum semel_why)said->why), semel__act_name(v->act), semel__why_name(v->why));
}

static void follow(struct rules *rules, const struct semel__verdict *v)
{
    struct semel_progress before = rules->there ? rules->progress : unborn();

    if (v->changes && v->becomes == SEMEL_ROW_ABSENT) {
        rules->there = false;
    } else if (v->changes) {
        semel__progress_verdict(v, &before, rules->msg.defect_text, CASE_NOW, &rules->progress);
        rules->there = true;
    }
}

static bool deliver(struct rules *rules, struct finding *finding)
{
    const struct case_when *when = &rules->kase->when;
    struct semel__verdict verdict;

    case_msg_of(rules->kase, &rules->policy, &rules->msg);
    rules->msg.message_time_us = semel__msg_time(&rules->policy, &rules->msg, CASE_NOW);
    if (rules->kase->becomes.row.time != UNSAID && case_at(rules->kase->becomes.row.time) != rules->msg.message_time_us)
        differ(finding, "time: expected %lld, found %lld", (long long)case_at(rules->kase->becomes.row.time),
               (long long)rules->msg.message_time_us);
    semel__verdict_deliver(&rules->policy, &rules->msg, &rules->facts, &verdict);
    compare_verdict(rules, &verdict, finding);
    if (verdict.act != SEMEL_RUN)
        follow(rules, &verdict);
    else if (when->op == OP_CLAIM)
        claim(rules, when->alone == 1);
    else
        run(rules, rules->policy.effect != SEMEL_EFFECT_ATOMIC || (when->delivery != UNSAID && when->delivery > 1) ||
                       (rules->there && rules->progress.alone));
    return true;
}

/* The scheduler looks only at what is due. */
static bool take(struct rules *rules, struct finding *finding)
{
    struct semel__verdict verdict = {.act = SEMEL_LATER};

    if (!rules->there || rules->row.progress.due_us == SEMEL_NONE || rules->row.progress.due_us > CASE_NOW ||
        rules->facts.damaged)
        return false;
    semel__verdict_take(&rules->policy, &rules->facts, &verdict);
    compare_verdict(rules, &verdict, finding);
    if (verdict.act != SEMEL_RUN)
        follow(rules, &verdict);
    else if (rules->kase->when.op == OP_WORK)
        run(rules, true);
    else
        claim(rules, rules->row.progress.alone || rules->row.progress.attempts > 0 ||
                         rules->policy.effect != SEMEL_EFFECT_ATOMIC);
    return true;
}

static bool happen(struct rules *rules, struct finding *finding)
{
    const struct semel_progress before = rules->progress;

    switch ((enum case_op)rules->kase->when.op) {
    case OP_DELIVER:
    case OP_CLAIM:
        return deliver(rules, finding);
    case OP_TAKE:
    case OP_WORK:
        return take(rules, finding);
    case OP_FINISH:
        end(rules, rules->kase->when.result);
        return true;
    case OP_RELEASE:
        semel__progress_release(&before, CASE_NOW, &rules->progress);
        return true;
    case OP_RECOVER:
        semel__progress_recover(&rules->policy, &before, CASE_NOW, &rules->rng, &rules->progress);
        return true;
    case OP_RETRY:
        if (before.state == SEMEL_ROW_DEAD && before.error_class == SEMEL_CLASS_GAP && rules->kase->when.force != 1)
            semel__progress_rejudge(&before, CASE_NOW, &rules->progress);
        else
            semel__progress_retry(&before, CASE_NOW, &rules->progress);
        return true;
    case OP_DISCARD:
        semel__progress_discard(&before, SEMEL_STR("because"), CASE_NOW, &rules->progress);
        return true;
    case OP_RESOLVE:
        semel__progress_resolve(&before,
                                rules->kase->when.outcome == 1 ? SEMEL_STR("{\"o\":2}") : (struct semel_str){0},
                                CASE_NOW, &rules->progress);
        return true;
    case OP_RENEW:
    case OP_PURGE:
    case OP_TICK:
    case OP_SET:
        return false;
    }
    return false;
}

bool case_run_rules(const struct kase *kase, struct finding *finding, struct move *ret_move)
{
    struct rules rules = {.kase = kase};
    struct semel_error err;
    bool judged = kase->when.op == OP_DELIVER || kase->when.op == OP_CLAIM || kase->when.op == OP_TAKE ||
                  kase->when.op == OP_WORK;

    if (!judged && kase->verdict.says != SAYS_DONE)
        return false; /* refused by something other than a rule */
    if (kase->when.op == OP_DELIVER && kase->given.wants == 1 && kase->when.business != 1)
        return false; /* the engine compares the wishes */
    case_policy_of(kase, &rules.policy);
    semel__random_seed(&rules.rng, (uint64_t)kase->line);
    find_facts(&rules);
    if (!happen(&rules, finding))
        return false;
    compare_progress(kase, &rules.policy, case_has_row(kase) ? &rules.row.progress : NULL,
                     rules.there ? &rules.progress : NULL, finding);
    *ret_move = (struct move){case_has_row(kase) ? rules.row.progress.state : SEMEL_ROW_ABSENT,
                              rules.there ? rules.progress.state : SEMEL_ROW_ABSENT, kase->becomes.unchanged != 1};
    if (!rules.there)
        return true;
    if (ret_move->made && ret_move->from != ret_move->to && !semel__move_legal(ret_move->from, ret_move->to))
        differ(finding, "the move is not legal");
    rules.row.progress = rules.progress;
    rules.row.id = SEMEL_STR(CASE_ID);
    rules.row.arrival = ARRIVAL_M;
    if (semel__row_check(&rules.row, &err) != SEMEL_OK)
        differ(finding, "the row is not fit to be stored: %s", err.text);
    return true;
}
