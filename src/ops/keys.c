/* SPDX-License-Identifier: MIT
 *
 * keys.c: what operators do with idempotency keys: list, explain, resolve, discard; and the same as JSON.
 *
 * Invariants: a command locks the key's row, reads it again, and only then judges. A request that is running is left
 * alone, unless force is given; an answer that is stored never changes. The end names the key's token, so that whoever
 * ran the request can not end it a second time, and is written in one transaction with its line of the audit. Answers
 * are shown only on request.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/transaction.h"
#include "ops/private.h"

#define ACTS_MAX 100
#define OPEN (1u << SEMEL_ROW_PROCESSING | 1u << SEMEL_ROW_UNKNOWN)
#define COMPLETED (1u << SEMEL_ROW_COMPLETED)

/* ---- options ------------------------------------------------------------------------------------- */

static semel_status add_statuses(const struct semel_option *o, unsigned *statuses, struct semel_error *err)
{
    struct semel_str name;
    for (size_t from = 0; semel__option_piece(o->value, &from, &name);) {
        enum semel_row_status state;
        if (!semel__row_status_parse(name, &state) || ((1u << state) & (OPEN | COMPLETED)) == 0)
            return semel__option_wrong(err, &(struct semel_option){o->name, name},
                                       "it must be processing, unknown, both with a comma between, or completed");
        *statuses |= 1u << state;
    }
    return SEMEL_OK;
}

static semel_status read_option(const struct semel_option *o, int64_t now_us, struct semel_key_query *q,
                                struct semel_error *err)
{
    bool flag = false;
    semel_status status = SEMEL_OK;
    if (semel__str_eqz(o->name, "scope"))
        return semel__option_text(o, &q->filter.scope, err);
    if (semel__str_eqz(o->name, "status"))
        return add_statuses(o, &q->filter.statuses, err);
    if (semel__str_eqz(o->name, "unknown")) {
        status = semel__option_flag(o, &flag, err);
        q->filter.statuses |= flag ? 1u << SEMEL_ROW_UNKNOWN : 0;
        return status;
    }
    if (semel__str_eqz(o->name, "stuck")) {
        status = semel__option_flag(o, &flag, err);
        q->filter.expired_us = flag ? now_us : SEMEL_NONE;
        return status;
    }
    if (semel__str_eqz(o->name, "older"))
        return semel__option_ago(o, now_us, &q->filter.before_us, err);
    if (semel__str_eqz(o->name, "limit"))
        return semel__option_limit(o, &q->limit, err);
    if (semel__str_eqz(o->name, "after"))
        return semel__option_text(o, &q->after_key, err);
    return semel__option_wrong(err, o, "there is no such option here");
}

/* Keys without an answer are few, and read by an index of theirs. The others are read in the order of their names, so
 * their caller must be given. */
static semel_status check_query(struct semel_key_query *q, struct semel_error *err)
{
    const struct semel_option status = {SEMEL_STR("status"), SEMEL_STR("completed")};
    struct semel_key_filter *f = &q->filter;
    if ((f->statuses & COMPLETED) != 0) {
        if (f->statuses != COMPLETED || f->before_us != SEMEL_NONE || f->expired_us != SEMEL_NONE)
            return semel__option_wrong(err, &status,
                                       "it stands alone: other statuses, older and stuck are for keys "
                                       "without an answer");
        if (f->scope.n == 0)
            return semel__option_wrong(err, &status, "the caller whose keys are meant must be given as scope");
        return SEMEL_OK;
    }
    if (f->expired_us != SEMEL_NONE)
        f->statuses = 1u << SEMEL_ROW_PROCESSING;
    else if (f->statuses == 0)
        f->statuses = OPEN;
    if (semel__str_given(q->after_key) && (!semel__str_int64(q->after_key, &q->after_token) || q->after_token < 0))
        return semel__option_wrong(err, &(struct semel_option){SEMEL_STR("after"), q->after_key},
                                   "it must be the token of a key, as the page before has named it");
    return SEMEL_OK;
}

semel_status semel__ops_key_query(const struct semel_option *options, size_t n, int64_t now_us,
                                  struct semel_key_query *ret, struct semel_error *err)
{
    *ret = (struct semel_key_query){.filter = {.before_us = SEMEL_NONE, .expired_us = SEMEL_NONE},
                                    .limit = SEMEL_LIST_LIMIT,
                                    .after_token = SEMEL_NONE};
    semel_status status = semel__option_repeats(options, n, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = read_option(&options[i], now_us, ret, err);
    return status == SEMEL_OK ? check_query(ret, err) : status;
}

/* ---- reading ------------------------------------------------------------------------------------- */

semel_status semel__ops_keys(struct semel_ops *ops, const struct semel_key_query *query, struct semel_key_list *ret,
                             struct semel_error *err)
{
    *ret = (struct semel_key_list){0};
    semel_status status = semel_query_keys(ops->store, &query->filter, query->after_token, query->after_key,
                                           query->limit + 1, ops->arena, &ret->rows, &ret->n, err);
    if (status != SEMEL_OK || ret->n <= query->limit)
        return status;
    ret->n = query->limit;
    ret->more = true;
    const struct semel_idempotency *last = &ret->rows[ret->n - 1].row;
    if (last->status == SEMEL_ROW_COMPLETED)
        snprintf(ret->after, sizeof ret->after, "%.*s", (int)last->key.n, last->key.p);
    else
        snprintf(ret->after, sizeof ret->after, "%lld", (long long)last->token);
    return SEMEL_OK;
}

/* What could be the name of a row; older keys may be shorter than new ones have to be. */
static semel_status check_name(struct semel_str scope, struct semel_str key, struct semel_error *err)
{
    bool is_time;
    semel_status status = semel__key_check(scope, key, 1, &is_time, err);
    if (status == SEMEL_INVALID)
        err->cls = SEMEL_CLASS_PERMANENT;
    return status;
}

semel_status semel__ops_key(struct semel_ops *ops, struct semel_str scope, struct semel_str key, bool with_answer,
                            struct semel_key_facts *ret, struct semel_error *err)
{
    *ret = (struct semel_key_facts){.scope = scope,
                                    .key = key,
                                    .now_us = semel__now(&semel__clock_real),
                                    .store = ops->store_option};
    semel_status status = check_name(scope, key, err);
    if (status == SEMEL_OK)
        status = semel_query_key(ops->store, scope, key, with_answer, ops->arena, &ret->row, err);
    if (status == SEMEL_OK)
        status = semel_query_key_acts(ops->store, scope, key, ACTS_MAX, ops->arena, &ret->acts, &ret->n_acts, err);
    return status;
}

/* Its lease is alive, or it ends in a transaction that is open. */
static bool running(const struct semel_idempotency *row, int64_t now_us)
{
    return row->status == SEMEL_ROW_PROCESSING && (row->lease_until_us == SEMEL_NONE || row->lease_until_us >= now_us);
}

/* ---- in words ------------------------------------------------------------------------------------ */

static void put_command(const struct semel_key_facts *f, const char *command, const char *options,
                        struct semel_buf *buf)
{
    semel__buf_addf(buf, "  semel keys %s ", command);
    semel__put_word(buf, f->scope);
    semel__buf_addz(buf, " ");
    semel__put_word(buf, f->key);
    semel__buf_addf(buf, "%s --reason '...'", options);
    if (f->store != NULL) {
        semel__buf_addz(buf, " --store ");
        semel__put_word(buf, semel__str(f->store));
    }
    semel__buf_addz(buf, "\n");
}

static void put_ends(const struct semel_key_facts *f, struct semel_buf *next)
{
    semel__buf_addz(next, "Look at the application's own records. If the work was done, give its answer:\n");
    put_command(f, "resolve", " --code 201 --body @FILE", next);
    semel__buf_addz(next, "If it was not done, free the key, and the next request runs:\n");
    put_command(f, "resolve", " --not-done", next);
}

static void explain_processing(const struct semel_key_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_idempotency *row = &f->row->row;
    enum semel_effect effect = SEMEL_EFFECT_OUTSIDE;
    (void)semel__token_effect(row->token, &effect);
    if (running(row, f->now_us)) {
        semel__buf_addz(why, "Its request has been running since ");
        semel__put_when(why, row->updated_us, f->now_us);
        if (semel__str_given(row->lease_owner)) {
            semel__buf_addz(why, " at ");
            semel__put_shown(why, row->lease_owner);
        }
        semel__buf_addz(why, ". Another one under this key waits, and is then refused with 409.\n");
        semel__buf_addz(next, "There is nothing to do: it ends, or its lease does.\n");
        return;
    }
    semel__buf_addz(why, "Its lease ran out ");
    semel__put_when(why, row->lease_until_us, f->now_us);
    semel__buf_addz(why, ": whoever ran the request died or hangs. ");
    if (effect == SEMEL_EFFECT_ATOMIC) {
        semel__buf_addz(why, "Its work can not be committed any more: the next request runs.\n");
        semel__buf_addz(next, "There is nothing to do.\n");
    } else if (effect == SEMEL_EFFECT_KEYED) {
        semel__buf_addz(why, "Its work is safe to repeat under the key: the next request runs.\n");
        semel__buf_addz(next, "There is nothing to do.\n");
    } else {
        semel__buf_addz(why, "Nobody knows whether its work was done: requests under this key are refused with 409.\n");
        put_ends(f, next);
    }
}

static void explain_unknown(const struct semel_key_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_idempotency *row = &f->row->row;
    semel__buf_addz(why, "Its outcome has been unknown since ");
    semel__put_when(why, row->updated_us, f->now_us);
    semel__buf_addz(why, ", because of ");
    semel__put_shown(why, semel__str_given(row->cause) ? row->cause : SEMEL_STR("unknown"));
    semel__buf_addz(why, ": the request was sent, and nobody knows whether its work was done.\n"
                         "Requests under this key are refused with 409 and run nothing. A late answer under its token "
                         "still ends it.\n");
    put_ends(f, next);
}

void semel__explain_key(const struct semel_key_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_idempotency *row = &f->row->row;
    if (row->status == SEMEL_ROW_PROCESSING) {
        explain_processing(f, why, next);
        return;
    }
    if (row->status == SEMEL_ROW_UNKNOWN) {
        explain_unknown(f, why, next);
        return;
    }
    semel__buf_addf(why, "It was answered with %lld ", (long long)row->code);
    semel__put_when(why, row->completed_us, f->now_us);
    if (row->key_until_us <= f->now_us) {
        semel__buf_addz(why, ". Its lifetime is over: the next request runs as a new one.\n");
    } else {
        const bool body = f->row->bytes != SEMEL_NONE && row->answer_until_us > f->now_us;
        semel__buf_addf(why, ". The same request gets that answer again, %s, until ",
                        body ? "with its body" : "without its body");
        semel__put_when(why, body ? row->answer_until_us : row->key_until_us, f->now_us);
        semel__buf_addz(why, ".\n");
    }
    semel__buf_addz(next, "There is nothing to do.\n");
}

/* ---- commands ------------------------------------------------------------------------------------ */

static semel_status check_answer(const struct semel_key_instruction *given, struct semel_error *err)
{
    if (given->code < 200 || given->code > 599)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "code is the status of the answer, from 200 to 599; or give not-done");
    if (given->body.n > SEMEL_ANSWER_BODY_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "body has %zu bytes; at most %d are allowed",
                           given->body.n, SEMEL_ANSWER_BODY_MAX);
    semel_status status = semel__str_given(given->headers) ? semel__key_check_headers(given->headers, err) : SEMEL_OK;
    if (status == SEMEL_INVALID)
        err->cls = SEMEL_CLASS_PERMANENT;
    return status;
}

semel_status semel__ops_key_check(const struct semel_key_instruction *given, bool dry_run, struct semel_error *err)
{
    const struct semel_instruction reason = {.kind = given->kind, .reason = given->reason};
    const bool answer = given->code != SEMEL_NONE || semel__str_given(given->headers) || semel__str_given(given->body);
    semel_status status = semel__ops_check(&reason, dry_run, err);
    if (status != SEMEL_OK || given->kind == SEMEL_COMMAND_DISCARD)
        return status;
    if (given->not_done && answer)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "not-done and an answer exclude each other: give code, headers and body, or not-done");
    return given->not_done ? SEMEL_OK : check_answer(given, err);
}

static const char *judgement_name(enum semel_key_judgement judged)
{
    static const char *const names[] = {"allowed", "no_such_key", "has_answer", "running", "changed"};
    return names[judged];
}

static const char *text_of(enum semel_key_judgement judged, const struct semel_key_instruction *given, bool dry)
{
    switch (judged) {
    case SEMEL_KEY_ALLOWED:
        if (given->kind == SEMEL_COMMAND_RESOLVE && !given->not_done)
            return dry ? "would be completed: the same request would get this answer"
                       : "is completed: the same request gets this answer";
        return dry ? "would be released: the next request would run" : "is released: the next request runs";
    case SEMEL_KEY_NO_SUCH:
        return "is not there: it was released, its lifetime is over, or it never was";
    case SEMEL_KEY_HAS_ANSWER:
        return "was not touched: it has its answer, which never changes";
    case SEMEL_KEY_IS_RUNNING:
        return "was not touched: its request is running, and its lease is alive; --force ends it all the same, and "
               "then "
               "its work may be done twice";
    case SEMEL_KEY_HAS_CHANGED:
        return "was not touched: another request has it by now; look again";
    }
    return "";
}

struct acting {
    struct semel_ops *ops;
    const struct semel_key_instruction *given;
    struct semel_key_report *report;
    bool maybe; /* an earlier run of the body may have been committed */
    struct semel_key_row *row;
};

static bool releases(const struct semel_key_instruction *given)
{
    return given->kind == SEMEL_COMMAND_DISCARD || given->not_done;
}

static semel_status read_key(struct acting *a, struct semel_error *err)
{
    return semel_query_key(a->ops->store, a->report->scope, a->report->key, false, a->ops->arena, &a->row, err);
}

static enum semel_key_judgement judge(const struct acting *a, int64_t now_us)
{
    if (a->row == NULL)
        return SEMEL_KEY_NO_SUCH;
    if (a->row->row.status == SEMEL_ROW_COMPLETED)
        return SEMEL_KEY_HAS_ANSWER;
    if (a->given->token != SEMEL_NONE && a->given->token != a->row->row.token)
        return SEMEL_KEY_HAS_CHANGED;
    return running(&a->row->row, now_us) && !a->given->force ? SEMEL_KEY_IS_RUNNING : SEMEL_KEY_ALLOWED;
}

static semel_status change(struct acting *a, int64_t now_us, bool *undo, struct semel_error *err)
{
    const struct semel_audit line = {.who = a->ops->who,
                                     .what = a->given->kind == SEMEL_COMMAND_DISCARD ? SEMEL_STR("keys discard")
                                                                                     : SEMEL_STR("keys resolve"),
                                     .reason = a->given->reason,
                                     .source = a->report->scope,
                                     .id = a->report->key,
                                     .forced = a->given->force};
    struct semel_key_ending ending = {.token = a->row->row.token,
                                      .end = releases(a->given) ? SEMEL_KEY_END_RELEASED : SEMEL_KEY_END_COMPLETED,
                                      .code = a->given->code,
                                      .headers = a->given->headers,
                                      .body = a->given->body};
    const struct semel_key_batch batch = {.ends = &ending, .n_ends = 1};
    if (!semel__str_given(ending.headers))
        ending.headers = SEMEL_STR("[]");
    semel_status status = semel_store_audit(a->ops->store, &line, 1, now_us, err);
    if (status == SEMEL_OK)
        status = a->ops->store->ops->keys->write(a->ops->store, &batch, now_us, err);
    if (status == SEMEL_OK && !ending.applied) {
        a->report->judged = SEMEL_KEY_NO_SUCH;
        *undo = true;
    }
    return status;
}

/* Is this what an earlier run of ours, of whose commit we had no answer, has left? */
static bool ours(const struct acting *a)
{
    if (!a->maybe)
        return false;
    return releases(a->given)
               ? a->row == NULL
               : a->row != NULL && a->row->row.status == SEMEL_ROW_COMPLETED && a->row->row.code == a->given->code;
}

static semel_status body(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct acting *a = ctx;
    semel_status status = semel_query_key_lock(a->ops->store, a->report->scope, a->report->key, err);
    if (status == SEMEL_OK)
        status = read_key(a, err);
    if (status != SEMEL_OK)
        return status;
    a->report->judged = judge(a, now_us);
    if (a->report->judged == SEMEL_KEY_ALLOWED)
        return change(a, now_us, undo, err);
    if (ours(a))
        a->report->judged = SEMEL_KEY_ALLOWED;
    *undo = true;
    return SEMEL_OK;
}

static void note_unknown(void *ctx)
{
    ((struct acting *)ctx)->maybe = true;
}

semel_status semel__ops_key_command(struct semel_ops *ops, const struct semel_key_instruction *given,
                                    struct semel_str scope, struct semel_str key, bool dry_run,
                                    struct semel_key_report *ret, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = body,
                                                 .unknown = note_unknown,
                                                 .again = true,
                                                 .persistent = true};
    struct acting a = {.ops = ops, .given = given, .report = ret};
    *ret = (struct semel_key_report){.scope = scope, .key = key, .kind = SEMEL_SKIPPED};
    if (ops->store->ops->keys == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "this store has no idempotency keys");
    semel_status status = check_name(scope, key, err);
    if (status == SEMEL_OK && dry_run) {
        status = read_key(&a, err);
        ret->judged = judge(&a, semel__now(&semel__clock_real));
    } else if (status == SEMEL_OK) {
        status = semel__transaction_run(ops->store, &tx, &a, err);
    }
    if (status != SEMEL_OK)
        return status;
    const bool allowed = ret->judged == SEMEL_KEY_ALLOWED;
    if (dry_run)
        ret->kind = allowed ? SEMEL_WOULD : SEMEL_WOULD_NOT;
    else
        ret->kind = allowed ? SEMEL_DID : ret->judged == SEMEL_KEY_NO_SUCH ? SEMEL_SKIPPED : SEMEL_REFUSED;
    if (ret->kind == SEMEL_DID)
        ret->status = releases(given) ? NULL : semel__row_status_name(SEMEL_ROW_COMPLETED);
    else if (a.row != NULL && ret->judged != SEMEL_KEY_NO_SUCH)
        ret->status = semel__row_status_name(a.row->row.status);
    ret->text = text_of(ret->judged, given, dry_run);
    return SEMEL_OK;
}

/* ---- as JSON ------------------------------------------------------------------------------------- */

static void put_row(struct semel_object *o, const struct semel_key_row *shown)
{
    static const char *const effects[] = {
        [SEMEL_EFFECT_ATOMIC] = "atomic", [SEMEL_EFFECT_OUTSIDE] = "outside", [SEMEL_EFFECT_KEYED] = "keyed"};
    const struct semel_idempotency *row = &shown->row;
    enum semel_effect effect = SEMEL_EFFECT_OUTSIDE;
    char token[24];
    snprintf(token, sizeof token, "%lld", (long long)row->token);
    (void)semel__token_effect(row->token, &effect);
    semel__object_text(o, "scope", row->scope);
    semel__object_text(o, "key", row->key);
    semel__object_text(o, "status", semel__str(semel__row_status_name(row->status)));
    semel__object_text(o, "cause", row->cause);
    semel__object_text(o, "token", semel__str(token)); /* a number that many readers of JSON would round */
    semel__object_text(o, "effect", semel__str(effects[effect]));
    semel__object_text(o, "rule", row->rule);
    semel__object_time(o, "created_at", row->created_us);
    semel__object_time(o, "updated_at", row->updated_us);
    semel__object_text(o, "lease_owner", row->lease_owner);
    semel__object_time(o, "lease_until", row->lease_until_us);
    semel__object_number(o, "code", row->code);
    semel__object_number(o, "body_bytes", shown->bytes);
    semel__object_time(o, "completed_at", row->completed_us);
    semel__object_time(o, "answer_until", row->answer_until_us);
    semel__object_time(o, "key_until", row->key_until_us);
}

static void fill_row(struct semel_object *one, const void *ctx, size_t i)
{
    put_row(one, &((const struct semel_key_list *)ctx)->rows[i]);
}

void semel__ops_json_keys(struct semel_buf *buf, const struct semel_key_list *list)
{
    semel__json_put_list(buf, list->n, fill_row, list);
}

void semel__ops_json_key(struct semel_buf *buf, const struct semel_key_facts *f)
{
    struct semel_buf why, next;
    struct semel_object o;
    semel__buf_init(&why, SEMEL_EXPLAIN_MAX);
    semel__buf_init(&next, SEMEL_EXPLAIN_MAX);
    semel__explain_key(f, &why, &next);
    semel__object_init(&o);
    put_row(&o, f->row);
    semel__object_text(&o, "traceparent", f->row->row.traceparent);
    if (semel__str_given(f->row->row.headers))
        semel__object_raw(&o, "headers", f->row->row.headers);
    semel__object_list(&o, "audit", f->n_acts, semel__json_act, f->acts);
    semel__json_end_why(buf, &o, &why, &next);
}

void semel__ops_json_key_report(struct semel_buf *buf, const struct semel_key_report *report)
{
    struct semel_object o;
    semel__object_init(&o);
    semel__object_text(&o, "scope", report->scope);
    semel__object_text(&o, "key", report->key);
    semel__object_text(&o, "result", semel__str(semel__answer_name(report->kind)));
    semel__object_text(&o, "code", semel__str(judgement_name(report->judged)));
    semel__object_text(&o, "status", semel__str(report->status));
    semel__object_text(&o, "text", semel__str(report->text));
    semel__json_end(buf, &o);
}
