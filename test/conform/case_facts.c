/* SPDX-License-Identifier: MIT
 *
 * case_facts.c: what the words of a case mean: policy, rows and messages; and the comparison of rows.
 *
 * What a case leaves unsaid has the default that the head of spec/cases.txt names.
 */
#include "conform/cases.h"

#include "core/consumer.h"
#include "core/retry.h"

void differ(struct finding *finding, const char *fmt, ...)
{
    va_list args;
    int n;

    finding->differences++;
    if (finding->n + 4 >= sizeof finding->text)
        return;
    va_start(args, fmt);
    n = snprintf(finding->text + finding->n, sizeof finding->text - finding->n, "    ");
    finding->n += (size_t)n;
    n = vsnprintf(finding->text + finding->n, sizeof finding->text - finding->n, fmt, args);
    finding->n += n > 0 ? (size_t)n : 0;
    va_end(args);
    if (finding->n >= sizeof finding->text - 1)
        finding->n = sizeof finding->text - 2;
    finding->text[finding->n++] = '\n';
    finding->text[finding->n] = '\0';
}

static int64_t or_else(int64_t said, int64_t otherwise)
{
    return said != UNSAID ? said : otherwise;
}

int64_t case_at(int64_t relative)
{
    return relative == NEVER ? SEMEL_NONE : CASE_NOW + relative;
}

bool case_has_row(const struct kase *kase)
{
    return kase->given.row.state != UNSAID;
}

static void say_policy(const struct case_policy *said, struct semel_policy *ret)
{
    ret->order = (enum semel_order)or_else(said->order, ret->order);
    ret->first_version = or_else(said->first, ret->first_version);
    ret->on_gap = (enum semel_gap)or_else(said->gap, ret->on_gap);
    ret->effect = (enum semel_effect)or_else(said->effect, ret->effect);
    ret->keep = (enum semel_keep)or_else(said->keep, ret->keep);
    ret->retry_max = (int)or_else(said->retry, ret->retry_max);
    ret->permanent_max = (int)or_else(said->permanent, ret->permanent_max);
    ret->parked_key_max = or_else(said->parked_key, ret->parked_key_max);
    ret->parked_consumer_max = or_else(said->parked_route, ret->parked_consumer_max);
    ret->retry_ceiling_us = or_else(said->ceiling, ret->retry_ceiling_us);
    ret->retention_us = or_else(said->retention, ret->retention_us);
    ret->timed_ids = (enum semel_timed)or_else(said->timed_ids, ret->timed_ids);
    ret->one_source = or_else(said->one_source, ret->one_source) != 0;
}

void case_policy_of(const struct kase *kase, struct semel_policy *ret)
{
    semel__policy_init(ret, SEMEL_STR("c"));
    say_policy(&kase->policy, ret);
    if (kase->when.too_large == 1)
        ret->payload_max = 3;
}

struct semel_str case_settings(const struct semel_policy *policy, struct semel_arena *arena)
{
    struct semel_str copy = {0};
    struct semel_buf buf;

    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    semel__policy_write(policy, &buf);
    semel__buf_add(&buf, "", 1);
    if (buf.failed || !semel__arena_copy(arena, semel__buf_str(&buf), &copy))
        fail_msg("no memory");
    semel__buf_done(&buf);
    copy.n--;
    return copy;
}

struct semel_str case_change(const struct kase *kase, const struct semel_policy *policy, struct semel_arena *arena)
{
    struct semel_policy to = *policy;

    say_policy(&kase->when.set, &to);
    return case_settings(&to, arena);
}

struct semel_str case_payload(int64_t body)
{
    static const char *const texts[] = {"{\"n\":1}", "{\"n\":1}", "{\"n\":2}", "n is 1"};

    return semel__str(texts[body]);
}

struct semel_fp case_fp(int64_t body)
{
    struct semel_fp fp = {0};

    if (body != BODY_NONE && semel__fp_compute(case_payload(body), &fp, NULL) != SEMEL_OK)
        fail_msg("no fingerprint");
    return fp;
}

/* ---- rows --------------------------------------------------------------------------------------------- */

static int64_t default_class(enum semel_row_status state)
{
    static const enum semel_class classes[SEMEL_ROW_COUNT] = {
        [SEMEL_ROW_FAILED] = SEMEL_CLASS_TRANSIENT,   [SEMEL_ROW_WAITING] = SEMEL_CLASS_BLOCKED,
        [SEMEL_ROW_REJECTED] = SEMEL_CLASS_REJECTED,  [SEMEL_ROW_UNKNOWN] = SEMEL_CLASS_UNKNOWN,
        [SEMEL_ROW_DEAD] = SEMEL_CLASS_PERMANENT,     [SEMEL_ROW_STALE] = SEMEL_CLASS_STALE,
        [SEMEL_ROW_PREVENTED] = SEMEL_CLASS_BUSINESS, [SEMEL_ROW_QUARANTINED] = SEMEL_CLASS_TOO_OLD,
    };

    return classes[state];
}

static int64_t default_attempts(enum semel_row_status state)
{
    return state == SEMEL_ROW_PROCESSING || state == SEMEL_ROW_COMPLETED || state == SEMEL_ROW_FAILED ||
           state == SEMEL_ROW_REJECTED || state == SEMEL_ROW_UNKNOWN || state == SEMEL_ROW_DEAD;
}

int64_t case_token(const char *id, int64_t claimed)
{
    struct semel_tokens tokens = {0};
    struct semel_random rng;
    uint64_t seed = 0;

    for (const char *p = id; *p != '\0'; p++)
        seed = seed * 31 + (unsigned char)*p;
    semel__random_seed(&rng, seed);
    if (claimed == CLAIMED_OLD)
        return (int64_t)(2 + seed % 1000000);
    return semel__token_new(&tokens, &rng, (enum semel_effect)claimed, CASE_NOW - 60 * SECOND, SEMEL_NONE);
}

int64_t case_stale_token(const struct kase *kase, const struct semel_policy *policy)
{
    int64_t claimed = or_else(kase->given.row.claimed, policy->effect);

    return case_token(CASE_ID, claimed) - (claimed == CLAIMED_OLD ? 1 : INT64_C(1) << 22);
}

static void fill_row(const char *id, const struct case_row *said, const struct semel_policy *policy,
                     struct semel_row *row)
{
    enum semel_row_status state = (enum semel_row_status)said->state;
    bool leased = state == SEMEL_ROW_PROCESSING;

    *row = (struct semel_row){
        .source = SEMEL_STR("s"),
        .id = text(id),
        .type = SEMEL_STR("t"),
        .fp = case_fp(or_else(said->body, BODY_A)),
        .order_key = policy->order != SEMEL_ORDER_NONE ? SEMEL_STR("k") : (struct semel_str){0},
        .version = or_else(said->version, SEMEL_NONE),
        .message_time_us = case_at(or_else(said->time, NEVER)),
        .received_us = case_at(or_else(said->received, -60 * SECOND)),
        .payload = case_payload(or_else(said->body, BODY_A)),
        .kept = or_else(said->kept, semel__payload_stays(policy, state)) != 0,
    };
    row->updated_us = row->received_us;
    row->progress = (struct semel_progress){
        .state = state,
        .attempts = (int)or_else(said->attempts, default_attempts(state)),
        .attempts_before = (int)or_else(said->before, 0),
        .retries = (int)or_else(said->retries, 0),
        .alone = said->alone == 1,
        .due_us = case_at(or_else(said->due, state == SEMEL_ROW_FAILED ? 10 * SECOND : NEVER)),
        .processed_us = semel__state_final(state) ? case_at(or_else(said->processed, -60 * SECOND)) : SEMEL_NONE,
        .lease_owner = leased ? SEMEL_STR("worker-0") : (struct semel_str){0},
        .lease_until_us = leased ? case_at(or_else(said->lease, 60 * SECOND)) : SEMEL_NONE,
        .lease_token = leased ? case_token(id, or_else(said->claimed, policy->effect)) : SEMEL_NONE,
        .error_class = (enum semel_class)or_else(said->cls, default_class(state)),
        .outcome = said->outcome == 1 ? SEMEL_STR("{\"o\":1}") : (struct semel_str){0},
    };
    if (row->progress.error_class != SEMEL_CLASS_NONE)
        row->progress.error_text = SEMEL_STR("as it was");
}

/* The version that is meant where none is said. */
static int64_t default_version(const struct kase *kase, const struct semel_policy *policy)
{
    return policy->order == SEMEL_ORDER_VERSION ? or_else(kase->given.row.version, 5) : SEMEL_NONE;
}

void case_row_of(const struct kase *kase, const struct semel_policy *policy, struct semel_row *ret)
{
    struct case_row said = kase->given.row;

    said.version = or_else(said.version, or_else(kase->when.version, default_version(kase, policy)));
    fill_row(CASE_ID, &said, policy, ret);
}

void case_other_row(const char *id, int64_t other, const struct semel_policy *policy, struct semel_row *ret)
{
    struct case_row said;

    for (size_t i = 0; i < sizeof said / sizeof(int64_t); i++)
        ((int64_t *)&said)[i] = UNSAID;
    said.state = OTHER_STATE(other);
    if (other % 16 == OTHER_WAITER) {
        said.cls = SEMEL_CLASS_BUSINESS;
        said.due = 30 * SECOND;
    }
    said.version = OTHER_VERSION(other);
    fill_row(id, &said, policy, ret);
}

void case_skipped(int64_t said, int64_t ret[SEMEL_SKIPPED_MAX], size_t *ret_n)
{
    *ret_n = said != UNSAID && said != NO_VERSION ? (size_t)SKIPPED_N(said) : 0;
    for (size_t i = 0; i < *ret_n; i++)
        ret[i] = SKIPPED_FROM(said) + (int64_t)i;
}

void case_msg_of(const struct kase *kase, const struct semel_policy *policy, struct semel__msg *ret)
{
    const struct case_when *when = &kase->when;

    semel__msg_init(ret);
    ret->source = SEMEL_STR("s");
    ret->id = semel__str(kase->id);
    ret->type = SEMEL_STR("t");
    ret->payload = case_payload(or_else(when->body, BODY_A));
    ret->fp = case_fp(or_else(when->body, BODY_A));
    ret->version = or_else(when->version, default_version(kase, policy));
    ret->message_time_us = when->id == UNSAID ? case_at(or_else(when->time, NEVER)) : SEMEL_NONE;
    ret->delivery = (int)or_else(when->delivery, 1);
    if (policy->order != SEMEL_ORDER_NONE)
        ret->order_key = SEMEL_STR("k");
    if (when->business == 1)
        ret->business[ret->n_business++] = SEMEL_STR("intent");
    if (when->no_payload == 1) {
        ret->payload = (struct semel_str){0};
        ret->fp = (struct semel_fp){0};
    } else if (when->tombstone == 1) {
        ret->payload = SEMEL_STR("");
        ret->headers = SEMEL_STR("{\"semel_tombstone\":\"true\"}");
        if (semel__fp_compute(ret->payload, &ret->fp, NULL) != SEMEL_OK)
            fail_msg("no fingerprint");
    }
    if (when->version == NO_VERSION) {
        ret->defect = SEMEL_DEFECT_FIELD;
        ret->defect_text = SEMEL_STR("version: it is missing");
    }
    if (when->no_id == 1) {
        ret->id = (struct semel_str){0};
        ret->position = SEMEL_STR("m"); /* under which it is kept */
        ret->defect = SEMEL_DEFECT_NO_ID;
        ret->defect_text = SEMEL_STR("message id: it is missing");
    } else if (when->no_field == 1 || when->too_large == 1) {
        ret->defect = when->no_field == 1 ? SEMEL_DEFECT_FIELD : SEMEL_DEFECT_SIZE;
        ret->defect_text = SEMEL_STR("version: it is missing");
    }
}

/* ---- comparison --------------------------------------------------------------------------------------- */

static void expect_int(struct finding *finding, const char *what, int64_t said, int64_t found)
{
    if (said != UNSAID && said != found)
        differ(finding, "%s: expected %lld, found %lld", what, (long long)said, (long long)found);
}

static void show_time(char out[48], int64_t us)
{
    if (us == SEMEL_NONE)
        snprintf(out, 48, "none");
    else
        snprintf(out, 48, "now%+.6fs", (double)(us - CASE_NOW) / 1e6);
}

static void expect_time(struct finding *finding, const char *what, int64_t said, int64_t found)
{
    char a[48], b[48];

    if (said == UNSAID || case_at(said) == found)
        return;
    show_time(a, case_at(said));
    show_time(b, found);
    differ(finding, "%s: expected %s, found %s", what, a, b);
}

/* Soon: within the backoff of the attempt that has just ended (I6). */
static void expect_soon(struct finding *finding, const struct semel_policy *policy, const struct semel_progress *after)
{
    int64_t limit = policy->retry_first_us;
    char found[48];

    for (int i = 1; i < after->attempts - after->attempts_before && limit < policy->retry_ceiling_us; i++)
        limit *= 2;
    if (limit > policy->retry_ceiling_us)
        limit = policy->retry_ceiling_us;
    show_time(found, after->due_us);
    if (after->due_us == SEMEL_NONE || after->due_us < CASE_NOW + 1000 || after->due_us > CASE_NOW + limit)
        differ(finding, "due: expected within %.3fs, found %s", (double)limit / 1e6, found);
}

static void compare_unchanged(const struct semel_progress *before, const struct semel_progress *after,
                              struct finding *finding)
{
    expect_int(finding, "attempts", before->attempts, after->attempts);
    expect_int(finding, "attempts before", before->attempts_before, after->attempts_before);
    expect_int(finding, "retries", before->retries, after->retries);
    expect_int(finding, "alone", before->alone, after->alone);
    expect_int(finding, "due", before->due_us, after->due_us);
    expect_int(finding, "processed", before->processed_us, after->processed_us);
    expect_int(finding, "lease", before->lease_until_us, after->lease_until_us);
    expect_int(finding, "token", before->lease_token, after->lease_token);
    expect_int(finding, "class", before->error_class, after->error_class);
    if (!semel__str_eq(before->error_text, after->error_text) || !semel__str_eq(before->outcome, after->outcome))
        differ(finding, "error text or outcome have changed");
}

void compare_progress(const struct kase *kase, const struct semel_policy *policy, const struct semel_progress *before,
                      const struct semel_progress *after, struct finding *finding)
{
    const struct case_row *said = &kase->becomes.row;
    enum semel_row_status expected = kase->becomes.absent == 1      ? SEMEL_ROW_ABSENT
                                     : kase->becomes.unchanged != 1 ? (enum semel_row_status)said->state
                                     : before != NULL               ? before->state
                                                                    : SEMEL_ROW_ABSENT;
    enum semel_row_status found = after != NULL ? after->state : SEMEL_ROW_ABSENT;

    if (expected != found) {
        differ(finding, "status: expected %s, found %s", semel__row_status_name(expected),
               semel__row_status_name(found));
        return;
    }
    if (after == NULL)
        return;
    if (kase->becomes.unchanged == 1 && before != NULL)
        compare_unchanged(before, after, finding);
    expect_int(finding, "attempts", said->attempts, after->attempts);
    expect_int(finding, "before", said->before, after->attempts_before);
    expect_int(finding, "retries", said->retries, after->retries);
    expect_int(finding, "alone", said->alone, after->alone);
    expect_int(finding, "outcome", said->outcome, after->outcome.n > 0);
    if (said->due == SOON)
        expect_soon(finding, policy, after);
    else
        expect_time(finding, "due", said->due, after->due_us);
    expect_time(finding, "lease", said->lease, after->lease_until_us);
    if (said->cls != UNSAID && said->cls != (int64_t)after->error_class)
        differ(finding, "class: expected %s, found %s", semel__class_name((enum semel_class)said->cls),
               semel__class_name(after->error_class));
    if (semel__state_final(after->state) && (after->due_us != SEMEL_NONE || after->processed_us == SEMEL_NONE))
        differ(finding, "a final row has a time of processing and no due time");
}
