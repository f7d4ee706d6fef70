/* SPDX-License-Identifier: MIT
 *
 * command.c: one command to one message: retry, discard, resolve, correct.
 *
 * Invariants: a command is about the row that was read: one that has been touched since is left alone (P43). The row
 * keeps its id (P41) and is changed by one transaction, together with its audit line (P42); core sees to that, and core
 * decides: what is said here follows from its code.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "core/consumer.h"
#include "ops/ops.h"

#define TRIES 3 /* each waits for the store's own time-out */

const char *semel__answer_name(enum semel_answer_kind kind)
{
    static const char *const names[] = {"done", "skipped", "refused", "would", "would not"};
    return names[kind];
}

semel_status semel__ops_check(const struct semel_instruction *given, bool dry_run, struct semel_error *err)
{
    struct semel_json *json = NULL;
    if (!dry_run && !semel__str_given(given->reason))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_REJECTED, "a reason is required (goes to the audit log)");
    if (semel__str_given(given->reason) &&
        (given->reason.n == 0 || given->reason.n > SEMEL_ERROR_TEXT_MAX || !semel__utf8_valid(given->reason)))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "reason must be UTF-8 text of 1 to %d bytes",
                           SEMEL_ERROR_TEXT_MAX);
    if (!semel__str_given(given->outcome))
        return SEMEL_OK;
    struct semel_error why = {0};
    semel_status status = semel__json_parse(&json, given->outcome, SEMEL_OUTCOME_MAX, &why);
    semel__json_free(json);
    return status == SEMEL_OK ? SEMEL_OK
                              : semel__fail(err, status, SEMEL_CLASS_PERMANENT, "outcome must be JSON: %s", why.text);
}

/* The inbox of that consumer, under its own policy; it stays until another one is asked for. */
static semel_status be_ready(struct semel_ops *ops, struct semel_str consumer, struct semel_error *err)
{
    static const struct semel__handler nobody = {0}; /* a command runs nothing */
    struct semel_str name;
    bool said;
    if (ops->ready && semel__str_eq(ops->policy.consumer, consumer))
        return SEMEL_OK;
    if (ops->ready)
        semel__inbox_done(&ops->inbox);
    ops->ready = false;
    semel__arena_reset(&ops->kept);
    if (!semel__arena_copy(&ops->kept, consumer, &name))
        return semel__fail_memory(err);
    semel_status status = semel__consumer_load(ops->store, name, &ops->kept, &ops->policy, &said, err);
    if (status != SEMEL_OK)
        return status;
    ops->policy.consumer = name;
    semel__inbox_init(&ops->inbox, ops->store, &ops->policy, &nobody, &ops->rng, ops->who);
    ops->ready = true;
    return SEMEL_OK;
}

static void show(struct semel_buf *from, char *to, size_t size)
{
    semel__str_show(to, size, semel__buf_str(from));
    semel__buf_done(from);
}

/* Why it was not done; and of one that is too old, how old it is and what would be young enough. */
static void put_why(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                    const struct semel_error *err, struct semel_answer *ret)
{
    struct semel_buf text;
    bool nothing = ret->judged == SEMEL_JUDGED_WRONG_STATUS || ret->judged == SEMEL_JUDGED_ALREADY_DUE;
    semel__buf_init(&text, sizeof ret->cause);
    semel__put_refusal(&text, ret->judged, given->kind, ret->state, err);
    show(&text, ret->cause, sizeof ret->cause);
    semel__buf_init(&text, sizeof ret->figure);
    if (ret->judged == SEMEL_JUDGED_TOO_OLD)
        semel__put_age(&text, row, &ops->policy, semel__now(&semel__clock_real));
    show(&text, ret->figure, sizeof ret->figure);
    snprintf(ret->text, sizeof ret->text, "%s%s%s%s", nothing ? "" : "was not touched: ", ret->cause,
             ret->figure[0] != '\0' ? "; " : "", ret->figure);
}

/* The places of a selection, marked with what came of their rows. */
struct marking {
    struct semel_store *store;
    const struct semel_places_marked *places;
    const struct semel_command_result *results;
    size_t n;
};

static enum semel_answer_kind kind_of(const struct semel_command_result *result)
{
    return result->done ? SEMEL_DID : result->why.status == SEMEL_OK ? SEMEL_SKIPPED : SEMEL_REFUSED;
}

static semel_status mark(void *ctx, struct semel_error *err)
{
    const struct marking *m = ctx;
    struct semel_mark *marks = semel__calloc(m->n, sizeof *marks);
    if (marks == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < m->n; i++)
        marks[i] = (struct semel_mark){m->places->at[i], semel__str(semel__answer_name(kind_of(&m->results[i])))};
    semel_status status = semel_query_mark(m->store, m->places->selection, marks, m->n, err);
    semel__free(marks);
    return status;
}

/* The store has refused one row by itself: that is its answer, and its place is marked apart. */
static semel_status mark_refused(struct marking *m, struct semel_command_result *result, struct semel_error *err)
{
    int64_t now_us;
    *result = (struct semel_command_result){.judged = SEMEL_JUDGED_ALLOWED, .why = *err};
    if (m->places == NULL)
        return SEMEL_OK;
    semel_status status = semel_store_begin(m->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = mark(m, err);
    if (status == SEMEL_OK)
        return semel_store_commit(m->store, err);
    semel_store_rollback(m->store);
    return status;
}

semel_status semel__ops_act(struct semel_ops *ops, const struct semel_instruction *given,
                            const struct semel_row *const *rows, size_t n, const struct semel_places_marked *places,
                            struct semel_answer *ret, struct semel_error *err)
{
    const struct semel_command command = {.kind = given->kind,
                                          .who = ops->who,
                                          .reason = given->reason,
                                          .outcome = given->outcome,
                                          .force = given->force};
    struct semel_command_result *results = semel__calloc(n, sizeof *results);
    struct marking m = {ops->store, places, results, n};
    semel_status status = results != NULL ? be_ready(ops, rows[0]->consumer, err) : semel__fail_memory(err);
    if (status == SEMEL_OK) {
        status = semel__inbox_commands(&ops->inbox, &command, rows, n, places != NULL ? mark : NULL, &m, results, err);
        if (status == SEMEL_INVALID && n == 1 && err->cls != SEMEL_CLASS_BROKEN)
            status = mark_refused(&m, results, err);
    }
    for (size_t i = 0; (status == SEMEL_OK || status == SEMEL_UNKNOWN) && i < n; i++) {
        ret[i] = (struct semel_answer){.kind = kind_of(&results[i]),
                                       .judged = results[i].judged,
                                       .state = results[i].state};
        if (!results[i].done)
            put_why(ops, given, rows[i], &results[i].why, &ret[i]);
    }
    semel__free(results);
    return status;
}

/* Contention is waited out for a while; after a commit of unknown outcome the row is looked at again. */
static semel_status act_one(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                            struct semel_answer *ret, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (int i = 0; i < TRIES; i++) {
        semel__error_clear(err);
        status = semel__ops_act(ops, given, &row, 1, NULL, ret, err);
        bool lost = status == SEMEL_UNKNOWN || status == SEMEL_CLOSED;
        if (lost && semel_store_reopen(ops->store, NULL) != SEMEL_OK)
            return status;
        if (!lost && status != SEMEL_RETRY)
            break;
    }
    return status;
}

/* What a command does to others: a forced retry leaves versions behind that are missing, a discard frees business keys
 * that others wait for (A6). */
static semel_status besides(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                            struct semel_buf *text, struct semel_error *err)
{
    struct semel_ops_facts facts;
    bool discard = given->kind == SEMEL_COMMAND_DISCARD;
    if (!discard && (!given->force || row->progress.error_class != SEMEL_CLASS_GAP))
        return SEMEL_OK;
    semel_status status = semel__ops_facts(ops, row, &facts, err);
    if (status == SEMEL_OK && discard)
        semel__put_freed(&facts, text);
    else if (status == SEMEL_OK)
        semel__put_stale(&facts, text);
    return status;
}

/* A corrected copy. After a commit of unknown outcome core looks again. */
static semel_status correct(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                            struct semel_answer *ret, struct semel_error *err)
{
    struct semel_ops_facts facts;
    struct semel_command_result result;
    struct semel_correction correction = {.command = {.kind = SEMEL_COMMAND_CORRECT,
                                                      .row = row,
                                                      .who = ops->who,
                                                      .reason = given->reason,
                                                      .force = given->force},
                                          .payload = given->payload};
    semel_status status = semel__ops_facts(ops, row, &facts, err);
    if (status == SEMEL_OK)
        status = be_ready(ops, row->consumer, err);
    if (status != SEMEL_OK)
        return status;
    const enum semel_order order = ops->policy.order;
    ops->policy.order = facts.policy->order; /* also where only the messages of the key have settled it */
    correction.business = facts.history->business;
    correction.n_business = facts.history->n_business;
    for (int i = 0; i < TRIES; i++) {
        semel__error_clear(err);
        status = semel__inbox_correct(&ops->inbox, &correction, &result, err);
        if (status != SEMEL_CLOSED && status != SEMEL_RETRY)
            break;
        if (status == SEMEL_CLOSED && semel_store_reopen(ops->store, NULL) != SEMEL_OK)
            break;
    }
    ops->policy.order = order;
    if (status != SEMEL_OK && (status != SEMEL_INVALID || err->cls == SEMEL_CLASS_BROKEN))
        return status; /* such as a role without the right: no message is to blame */
    *ret = (struct semel_answer){.kind = status == SEMEL_INVALID ? SEMEL_REFUSED
                                         : result.done           ? SEMEL_DID
                                                                 : SEMEL_SKIPPED,
                                 .judged = result.judged,
                                 .state = result.state};
    if (ret->kind != SEMEL_DID) {
        put_why(ops, given, row, err, ret);
        return SEMEL_OK;
    }
    semel__str_show(ret->copy, sizeof ret->copy, semel__str(correction.id));
    snprintf(ret->text, sizeof ret->text,
             "is corrected: %s has the new payload and is to run; the message itself is "
             "rejected, and keeps its payload",
             ret->copy);
    return SEMEL_OK;
}

static semel_status would(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                          struct semel_buf *text, struct semel_answer *ret, struct semel_error *err)
{
    struct semel_ops_facts facts;
    *ret = (struct semel_answer){.state = row->progress.state};
    semel_status status = semel__ops_facts(ops, row, &facts, err);
    if (status != SEMEL_OK)
        return status;
    ret->judged = semel__explain_would(&facts, given->kind, given->force, text);
    ret->kind = ret->judged == SEMEL_JUDGED_ALLOWED ? SEMEL_WOULD : SEMEL_WOULD_NOT;
    semel__str_show(ret->text, sizeof ret->text, semel__buf_str(text));
    return SEMEL_OK;
}

static semel_status act(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                        struct semel_buf *more, struct semel_answer *ret, struct semel_error *err)
{
    static const char *const done[] = {"will be retried: it is due at once", "is discarded: it will never run",
                                       "is resolved: it is completed"};
    semel_status status = besides(ops, given, row, more, err);
    if (status == SEMEL_OK)
        status = act_one(ops, given, row, ret, err);
    if (status != SEMEL_OK || ret->kind != SEMEL_DID)
        return status;
    if (given->kind == SEMEL_COMMAND_RETRY && ret->state == SEMEL_STATE_WAITING)
        snprintf(
            ret->text, sizeof ret->text,
            "is judged again: it runs if nothing is missing any more, else it waits anew; --force runs it without");
    else
        snprintf(ret->text, sizeof ret->text, "%s%.*s", done[given->kind], (int)more->n,
                 more->p != NULL ? more->p : "");
    return SEMEL_OK;
}

semel_status semel__ops_command(struct semel_ops *ops, const struct semel_instruction *given,
                                const struct semel_row *row, bool dry_run, struct semel_answer *ret,
                                struct semel_error *err)
{
    struct semel_buf text;
    semel__buf_init(&text, sizeof ret->text);
    semel_status status = dry_run                                ? would(ops, given, row, &text, ret, err)
                          : given->kind == SEMEL_COMMAND_CORRECT ? correct(ops, given, row, ret, err)
                                                                 : act(ops, given, row, &text, ret, err);
    semel__buf_done(&text);
    return status;
}
