/* SPDX-License-Identifier: MIT
 *
 * outbox.c: what operators do with the events of the outbox: list, explain, retry, discard; and the same as JSON.
 *
 * Invariants: a command locks the event's shard as the relay does, reads the event again, and only then judges: so it
 * is safe beside a working relay. An event that a relay is publishing is left alone. The event keeps its id and is
 * changed in one transaction with its audit line.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/transaction.h"
#include "ops/private.h"

#define ACTS_MAX 100
#define BEHIND_MAX 1000
#define PAYLOAD_MAX 1000000 /* bytes of a payload that is text */
#define ALL_STATUSES ((1u << (SEMEL_EVENT_PUBLISHED + 1)) - 1)
#define UNPUBLISHED (ALL_STATUSES & ~(1u << SEMEL_EVENT_PUBLISHED))
#define ASIDE (UNPUBLISHED & ~(1u << SEMEL_EVENT_CREATED))

/* ---- options ------------------------------------------------------------------------------------- */

static semel_status add_statuses(const struct semel_option *o, unsigned *statuses, struct semel_error *err)
{
    struct semel_str name;
    for (size_t from = 0; semel__option_piece(o->value, &from, &name);) {
        unsigned s = SEMEL_EVENT_CREATED;
        while (s <= SEMEL_EVENT_PUBLISHED &&
               !semel__str_eqz(name, semel__event_status_name((enum semel_event_status)s)))
            s++;
        if (s > SEMEL_EVENT_PUBLISHED)
            return semel__option_wrong(err, &(struct semel_option){o->name, name},
                                       "it must be one of created, waiting, publishing, failed, dead, published, or "
                                       "several with commas between");
        *statuses |= 1u << s;
    }
    return SEMEL_OK;
}

static semel_status add_flag(const struct semel_option *o, unsigned which, unsigned *statuses, struct semel_error *err)
{
    bool flag = false;
    semel_status status = semel__option_flag(o, &flag, err);
    *statuses |= flag ? which : 0;
    return status;
}

static semel_status read_option(const struct semel_option *o, struct semel_event_query *q, struct semel_error *err)
{
    struct semel_event_filter *f = &q->filter;
    const struct {
        const char *name;
        struct semel_str *at;
    } texts[] = {{"aggregatetype", &f->aggregatetype},
                 {"aggregateid", &f->aggregateid},
                 {"type", &f->type},
                 {"destination", &f->destination}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (semel__str_eqz(o->name, texts[i].name))
            return semel__option_text(o, texts[i].at, err);
    if (semel__str_eqz(o->name, "status"))
        return add_statuses(o, &f->statuses, err);
    if (semel__str_eqz(o->name, "dead"))
        return add_flag(o, 1u << SEMEL_EVENT_DEAD, &f->statuses, err);
    if (semel__str_eqz(o->name, "aside"))
        return add_flag(o, ASIDE, &f->statuses, err);
    if (semel__str_eqz(o->name, "limit"))
        return semel__option_limit(o, &q->limit, err);
    if (semel__str_eqz(o->name, "after"))
        return semel__str_int64(o->value, &q->after) ? SEMEL_OK
                                                     : semel__option_wrong(err, o, "it must be the seq of an event");
    return semel__option_wrong(err, o, "there is no such option here");
}

semel_status semel__ops_event_query(const struct semel_option *options, size_t n, struct semel_event_query *ret,
                                    struct semel_error *err)
{
    semel_status status = semel__option_repeats(options, n, err);
    *ret = (struct semel_event_query){.limit = SEMEL_LIST_LIMIT, .after = SEMEL_NONE};
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = read_option(&options[i], ret, err);
    ret->statuses_given = ret->filter.statuses != 0;
    if (!ret->statuses_given)
        ret->filter.statuses = UNPUBLISHED;
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------- */

semel_status semel__ops_events(struct semel_ops *ops, const struct semel_event_query *query, struct semel_events *ret,
                               struct semel_error *err)
{
    *ret = (struct semel_events){0};
    semel_status status = semel_query_events(ops->store, &query->filter, query->after, query->limit + 1, ops->arena,
                                             &ret->rows, &ret->n, err);
    if (status == SEMEL_OK && ret->n > query->limit) {
        ret->n = query->limit;
        ret->more = true;
    }
    return status;
}

static semel_status check_id(struct semel_str given, char id[SEMEL_EVENT_ID_TEXT], struct semel_error *err)
{
    char shown[64];
    semel__str_show(shown, sizeof shown, given);
    return semel_event_id(given, id) ? SEMEL_OK
                                     : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                                                   "'%s' is no event id: that is a UUID, such as "
                                                   "01890a5d-ac96-774b-bcce-b302099a8057, or what a mapped table has "
                                                   "for one",
                                                   shown);
}

semel_status semel__ops_event(struct semel_ops *ops, struct semel_str given, struct semel_event_facts *ret,
                              struct semel_error *err)
{
    char id[SEMEL_EVENT_ID_TEXT];
    *ret = (struct semel_event_facts){.now_us = semel__now(&semel__clock_real), .store = ops->store_option};
    semel_status status = check_id(given, id, err);
    if (status == SEMEL_OK)
        status = semel_query_event(ops->store, id, true, ops->arena, &ret->row, err);
    if (status == SEMEL_OK && ret->row != NULL)
        status = semel_query_event_place(ops->store, ret->row, BEHIND_MAX, ops->arena, &ret->place, err);
    if (status == SEMEL_OK)
        status = semel_query_event_acts(ops->store, id, ACTS_MAX, ops->arena, &ret->acts, &ret->n_acts, err);
    return status;
}

/* ---- in words ------------------------------------------------------------------------------------ */

static void put_command(const struct semel_event_facts *f, const char *command, struct semel_str id,
                        struct semel_buf *buf)
{
    semel__buf_addf(buf, "  semel outbox %s %.*s%s", command, (int)id.n, id.p,
                    strcmp(command, "show") == 0 ? "" : " --reason '...'");
    if (f->store != NULL) {
        semel__buf_addz(buf, " --store ");
        semel__put_word(buf, semel__str(f->store));
    }
    semel__buf_addz(buf, "\n");
}

static void put_error(const struct semel_event_facts *f, struct semel_buf *why)
{
    if (!semel__str_given(f->row->error) || f->row->error.n == 0)
        return;
    semel__buf_addz(why, ": ");
    semel__put_shown(why, f->row->error);
}

static void put_behind(const struct semel_event_facts *f, struct semel_buf *why)
{
    if (f->place.behind > 0)
        semel__buf_addf(why, "%s%lld event%s of its aggregate wait%s behind it.\n",
                        f->place.behind >= BEHIND_MAX ? "At least " : "", (long long)f->place.behind,
                        f->place.behind == 1 ? "" : "s", f->place.behind == 1 ? "s" : "");
}

static void put_relay(const struct semel_event_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    if (semel__str_given(f->place.relay_owner) && f->place.lease_until_us != SEMEL_NONE &&
        f->place.lease_until_us > f->now_us) {
        semel__buf_addz(why, "The relay ");
        semel__put_shown(why, f->place.relay_owner);
        semel__buf_addz(why, " publishes its shard.\n");
        return;
    }
    semel__buf_addz(why, "No relay publishes its shard at the moment.\n");
    semel__buf_addz(next, "Start a relay:\n  semel relay FILE\n");
}

/* Held behind the first of its aggregate: the way goes by that one. */
static void put_held(const struct semel_event_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    semel__buf_addf(why, "It waits: an earlier event of its aggregate stands aside and is %s: %.*s\n",
                    semel__event_status_name(f->place.first_status), (int)f->place.first_id.n, f->place.first_id.p);
    semel__buf_addz(next, "Look at that one first:\n");
    put_command(f, "show", f->place.first_id, next);
}

static void put_due(const struct semel_event_facts *f, struct semel_buf *why)
{
    semel__buf_addz(why, f->row->due_us != SEMEL_NONE && f->row->due_us > f->now_us ? "The relay tries it again "
                                                                                    : "It is due since ");
    semel__put_when(why, f->row->due_us != SEMEL_NONE ? f->row->due_us : f->now_us, f->now_us);
    semel__buf_addz(why, ".\n");
}

static void put_retry(const struct semel_event_facts *f, const char *when, struct semel_buf *next)
{
    semel__buf_addf(next, "%s\n", when);
    put_command(f, "retry", f->row->id, next);
    semel__buf_addz(next, "To remove it for good:\n");
    put_command(f, "discard", f->row->id, next);
}

static void explain_aside(const struct semel_event_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_event_row *row = f->row;
    if (row->status == SEMEL_EVENT_DEAD) {
        semel__buf_addf(why, "It is dead after %lld attempt%s", (long long)row->attempts,
                        row->attempts == 1 ? "" : "s");
        put_error(f, why);
        semel__buf_addz(why, "\nThe relay does not try it again by itself.\n");
        put_behind(f, why);
        put_retry(f, "When the cause is fixed:", next);
        return;
    }
    if (row->status == SEMEL_EVENT_FAILED) {
        semel__buf_addf(why, "It was refused, after %lld attempt%s", (long long)row->attempts,
                        row->attempts == 1 ? "" : "s");
    } else {
        const bool error = semel__str_given(row->error) && row->error.n > 0;
        semel__buf_addz(why, error ? "It waits; the destination did not take it" : "It waits for its turn");
    }
    put_error(f, why);
    semel__buf_addz(why, "\n");
    put_due(f, why);
    put_behind(f, why);
    put_relay(f, why, next);
    put_retry(f, "To try it at once:", next);
}

void semel__explain_event(const struct semel_event_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    switch (f->row->status) {
    case SEMEL_EVENT_CREATED:
        if (semel__str_given(f->place.first_id)) {
            put_held(f, why, next);
            return;
        }
        semel__buf_addz(why, "It is in the outbox and goes in its turn.\n");
        put_relay(f, why, next);
        return;
    case SEMEL_EVENT_PUBLISHING:
        semel__buf_addz(why, "A relay has been publishing it since ");
        semel__put_when(why, f->row->updated_us, f->now_us);
        semel__buf_addz(why, ": it is neither retried nor discarded meanwhile.\n");
        put_behind(f, why);
        put_relay(f, why, next);
        return;
    case SEMEL_EVENT_WAITING:
    case SEMEL_EVENT_FAILED:
    case SEMEL_EVENT_DEAD:
        if (semel__str_given(f->place.first_id) && f->row->status != SEMEL_EVENT_DEAD)
            put_held(f, why, next);
        else
            explain_aside(f, why, next);
        return;
    case SEMEL_EVENT_PUBLISHED:
        semel__buf_addz(why, "It was published ");
        semel__put_when(why, f->row->sent_us, f->now_us);
        semel__buf_addz(why, ".\n");
        semel__buf_addz(next, "There is nothing to do.\n");
        return;
    }
}

/* ---- commands ------------------------------------------------------------------------------------ */

static const char *judgement_name(enum semel_event_judgement judged)
{
    static const char *const names[] = {"allowed", "no_such_event", "publishing", "published", "not_aside", "behind"};
    return names[judged];
}

static enum semel_event_judgement judge(enum semel_command_kind kind, const struct semel_event_row *row)
{
    if (row == NULL)
        return SEMEL_EVENT_NO_SUCH;
    switch (row->status) {
    case SEMEL_EVENT_PUBLISHED:
        return SEMEL_EVENT_WAS_PUBLISHED;
    case SEMEL_EVENT_PUBLISHING:
        return SEMEL_EVENT_IS_PUBLISHING;
    case SEMEL_EVENT_CREATED:
        return kind == SEMEL_COMMAND_RETRY ? SEMEL_EVENT_NOT_ASIDE : SEMEL_EVENT_ALLOWED;
    case SEMEL_EVENT_WAITING:
    case SEMEL_EVENT_FAILED:
        return kind == SEMEL_COMMAND_RETRY && row->held ? SEMEL_EVENT_BEHIND : SEMEL_EVENT_ALLOWED;
    case SEMEL_EVENT_DEAD:
        return SEMEL_EVENT_ALLOWED;
    }
    return SEMEL_EVENT_NO_SUCH;
}

static const char *text_of(enum semel_event_judgement judged, enum semel_command_kind kind, bool dry, bool held,
                           bool created)
{
    const bool retry = kind == SEMEL_COMMAND_RETRY;
    switch (judged) {
    case SEMEL_EVENT_ALLOWED:
        if (retry && held)
            return dry ? "would be retried: it goes after the earlier events of its aggregate"
                       : "will be retried: it goes after the earlier events of its aggregate";
        if (retry)
            return dry ? "would be retried: it would be due at once" : "will be retried: it is due at once";
        if (created)
            return dry ? "would be discarded; a relay that has read it already may still publish it"
                       : "is discarded; a relay that had read it already may still have published it";
        return dry ? "would be discarded: it would never be published" : "is discarded: it will not be published";
    case SEMEL_EVENT_NO_SUCH:
        return "is not there: it was published or discarded, or never was";
    case SEMEL_EVENT_IS_PUBLISHING:
        return "was not touched: a relay is publishing it at this moment; look again in a few seconds";
    case SEMEL_EVENT_WAS_PUBLISHED:
        return "was not touched: it was published";
    case SEMEL_EVENT_NOT_ASIDE:
        return "was not touched: it is in the outbox and goes in its turn";
    case SEMEL_EVENT_BEHIND:
        return "was not touched: it waits for an earlier event of its aggregate; semel outbox show names it";
    }
    return "";
}

struct acting {
    struct semel_ops *ops;
    const struct semel_instruction *given;
    const char *id;
    bool maybe; /* an earlier run of the body may have been committed */
    enum semel_event_judgement judged;
    struct semel_event_row row; /* as it was judged */
    bool found;
};

static semel_status read_event(struct acting *a, struct semel_error *err)
{
    struct semel_event_row *row = NULL;
    semel_status status = semel_query_event(a->ops->store, a->id, false, a->ops->arena, &row, err);
    a->found = status == SEMEL_OK && row != NULL;
    if (a->found)
        a->row = *row;
    return status;
}

static semel_status change(struct acting *a, int64_t now_us, bool *undo, struct semel_error *err)
{
    const bool discard = a->given->kind == SEMEL_COMMAND_DISCARD;
    const struct semel_audit line = {.who = a->ops->who,
                                     .what = discard ? SEMEL_STR("outbox discard") : SEMEL_STR("outbox retry"),
                                     .reason = a->given->reason,
                                     .id = semel__str(a->id)};
    bool done = false;
    semel_status status = semel_store_audit(a->ops->store, &line, 1, now_us, err);
    if (status == SEMEL_OK)
        status = semel_query_event_change(a->ops->store, &a->row, discard, now_us, &done, err);
    if (status == SEMEL_OK && !done) { /* a relay confirmed it in between: what is in the outbox has no other lock */
        a->judged = SEMEL_EVENT_NO_SUCH;
        *undo = true;
    }
    return status;
}

static semel_status body(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct acting *a = ctx;
    semel_status status = read_event(a, err);
    if (status == SEMEL_OK && a->found && a->row.status != SEMEL_EVENT_PUBLISHED) {
        status = semel_query_event_lock(a->ops->store, &a->row, err);
        if (status == SEMEL_OK)
            status = read_event(a, err);
    }
    if (status != SEMEL_OK)
        return status;
    a->judged = judge(a->given->kind, a->found ? &a->row : NULL);
    if (a->judged == SEMEL_EVENT_ALLOWED)
        return change(a, now_us, undo, err);
    if (a->judged == SEMEL_EVENT_NO_SUCH && a->maybe && a->given->kind == SEMEL_COMMAND_DISCARD)
        a->judged = SEMEL_EVENT_ALLOWED; /* our own commit, of which we had no answer */
    *undo = true;
    return SEMEL_OK;
}

static void note_unknown(void *ctx)
{
    ((struct acting *)ctx)->maybe = true;
}

semel_status semel__ops_event_command(struct semel_ops *ops, const struct semel_instruction *given, struct semel_str id,
                                      bool dry_run, struct semel_event_answer *ret, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = body,
                                                 .unknown = note_unknown,
                                                 .again = true,
                                                 .persistent = true};
    struct acting a = {.ops = ops, .given = given, .id = ret->id};
    *ret = (struct semel_event_answer){.kind = SEMEL_SKIPPED};
    semel_status status = check_id(id, ret->id, err);
    if (status == SEMEL_OK && dry_run) {
        status = read_event(&a, err);
        a.judged = judge(given->kind, a.found ? &a.row : NULL);
    } else if (status == SEMEL_OK) {
        status = semel__transaction_run(ops->store, &tx, &a, err);
    }
    if (status != SEMEL_OK)
        return status;
    const bool allowed = a.judged == SEMEL_EVENT_ALLOWED, created = a.found && a.row.status == SEMEL_EVENT_CREATED;
    ret->judged = a.judged;
    if (dry_run)
        ret->kind = allowed ? SEMEL_WOULD : SEMEL_WOULD_NOT;
    else
        ret->kind = allowed ? SEMEL_DID : a.judged == SEMEL_EVENT_NO_SUCH ? SEMEL_SKIPPED : SEMEL_REFUSED;
    if (a.found && a.judged != SEMEL_EVENT_NO_SUCH)
        ret->status = semel__event_status_name(a.row.status);
    if (ret->kind == SEMEL_DID)
        ret->status = given->kind == SEMEL_COMMAND_RETRY ? semel__event_status_name(SEMEL_EVENT_WAITING) : NULL;
    ret->text = text_of(a.judged, given->kind, dry_run, a.found && a.row.held, created);
    return SEMEL_OK;
}

/* ---- as JSON ------------------------------------------------------------------------------------- */

static void put_row(struct semel_object *o, const struct semel_event_row *row)
{
    semel__object_number(o, "seq", row->seq);
    semel__object_text(o, "id", row->id);
    semel__object_text(o, "status", semel__str(semel__event_status_name(row->status)));
    semel__object_text(o, "aggregatetype", row->aggregatetype);
    semel__object_text(o, "aggregateid", row->aggregateid);
    semel__object_text(o, "type", row->type);
    semel__object_text(o, "destination", row->destination);
    semel__object_number(o, "shard", row->shard);
    semel__object_number(o, "attempts", row->attempts);
    semel__object_time(o, "created_at", row->created_us);
    semel__object_time(o, "updated_at", row->updated_us);
    semel__object_time(o, "due_at", row->due_us);
    semel__object_time(o, "sent_at", row->sent_us);
    semel__object_text(o, "error_text", row->error);
    semel__object_bool(o, "held", row->held);
}

static void fill_row(struct semel_object *one, const void *ctx, size_t i)
{
    put_row(one, &((const struct semel_events *)ctx)->rows[i]);
}

void semel__ops_json_events(struct semel_buf *buf, const struct semel_events *events)
{
    semel__json_put_list(buf, events->n, fill_row, events);
}

void semel__ops_json_event(struct semel_buf *buf, const struct semel_event_facts *f)
{
    const struct semel_event_row *row = f->row;
    const bool text = semel__str_given(row->payload) && row->payload.n <= PAYLOAD_MAX &&
                      semel__utf8_valid(row->payload);
    struct semel_buf why, next;
    struct semel_object o;
    semel__buf_init(&why, SEMEL_EXPLAIN_MAX);
    semel__buf_init(&next, SEMEL_EXPLAIN_MAX);
    semel__explain_event(f, &why, &next);
    semel__object_init(&o);
    put_row(&o, row);
    semel__object_bool(&o, "alone", row->alone);
    semel__object_text(&o, "traceparent", row->traceparent);
    semel__object_raw(&o, "headers", row->headers);
    semel__object_number(&o, "payload_bytes", row->bytes);
    semel__object_text(&o, "payload", text ? row->payload : (struct semel_str){0});
    semel__object_text(&o, "behind_id", f->place.first_id);
    semel__object_text(&o, "behind_status",
                       semel__str_given(f->place.first_id) ? semel__str(semel__event_status_name(f->place.first_status))
                                                           : (struct semel_str){0});
    semel__object_number(&o, "waiters_count", f->place.behind);
    semel__object_text(&o, "relay", f->place.relay_owner);
    semel__object_time(&o, "lease_until", f->place.lease_until_us);
    semel__object_list(&o, "audit", f->n_acts, semel__json_act, f->acts);
    semel__json_end_why(buf, &o, &why, &next);
}

static void fill_answer(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_event_answer *answer = &((const struct semel_event_answer *)ctx)[i];
    semel__object_text(one, "id", semel__str(answer->id));
    semel__object_text(one, "result", semel__str(semel__answer_name(answer->kind)));
    semel__object_text(one, "code", semel__str(judgement_name(answer->judged)));
    semel__object_text(one, "status", semel__str(answer->status));
    semel__object_text(one, "text", semel__str(answer->text));
}

void semel__ops_json_event_answers(struct semel_buf *buf, const struct semel_event_answer *answers, size_t n)
{
    semel__json_put_list(buf, n, fill_answer, answers);
}

void semel__ops_json_event_answer(struct semel_buf *buf, const struct semel_event_answer *answer)
{
    struct semel_object o;
    semel__object_init(&o);
    fill_answer(&o, answer, 0);
    semel__json_end(buf, &o);
}
