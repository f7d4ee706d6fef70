/* SPDX-License-Identifier: MIT
 *
 * json.c: what operators see, as JSON: the same for --json and for HTTP.
 */
#include <stdio.h>

#include "base/error.h"
#include "ops/private.h"

#define PAYLOAD_MAX 1000000 /* bytes of a payload that is text */
#define GROUPS_SHOWN 20     /* of a dry run */

static struct semel_str class_text(enum semel_class cls)
{
    return cls != SEMEL_CLASS_NONE ? semel__str(semel__class_name(cls)) : (struct semel_str){0};
}

static struct semel_str state_text(enum semel_row_status state)
{
    return semel__str(semel__row_status_name(state));
}

/* ---- lists --------------------------------------------------------------------------------------- */

static void fill_row(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_row *row = &((const struct semel_list *)ctx)->rows[i];
    semel__object_number(one, "arrival", row->arrival);
    semel__object_text(one, "id", row->id);
    semel__object_text(one, "consumer", row->consumer);
    semel__object_text(one, "source", row->source);
    semel__object_text(one, "type", row->type);
    semel__object_text(one, "status", state_text(row->progress.state));
    semel__object_number(one, "attempts", row->progress.attempts);
    semel__object_text(one, "order_key", row->order_key);
    semel__object_number(one, "version", row->version);
    semel__object_time(one, "received_at", row->received_us);
    semel__object_time(one, "updated_at", row->updated_us);
    semel__object_time(one, "due_at", row->progress.due_us);
    semel__object_text(one, "error_class", class_text(row->progress.error_class));
    semel__object_text(one, "error_text", row->progress.error_text);
}

void semel__ops_json_list(struct semel_buf *buf, const struct semel_list *list)
{
    semel__json_put_list(buf, list->n, fill_row, list);
}

static void fill_group_head(struct semel_object *one, const struct semel_group *group)
{
    semel__object_number(one, "count", group->n);
    semel__object_text(one, "consumer", group->consumer);
    semel__object_text(one, "status", state_text(group->state));
    semel__object_text(one, "error_class", group->error_class);
    semel__object_text(one, "error_text", group->error_text);
}

static void fill_group(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_group *group = &((const struct semel_groups *)ctx)->groups[i];
    fill_group_head(one, group);
    semel__object_time(one, "oldest", group->first_us);
    semel__object_time(one, "newest", group->last_us);
    semel__object_text(one, "example", group->id);
}

void semel__ops_json_groups(struct semel_buf *buf, const struct semel_groups *groups)
{
    semel__json_put_list(buf, groups->n, fill_group, groups);
}

/* ---- one message --------------------------------------------------------------------------------- */

static void fill_try(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_try *try = &((const struct semel_history *)ctx)->tries[i];
    semel__object_number(one, "attempt", try->attempt);
    semel__object_time(one, "at", try->at_us);
    semel__object_text(one, "worker", try->worker);
    semel__object_text(one, "error_class", try->cls);
    semel__object_text(one, "error_text", try->text);
}

void semel__json_act(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_act_line *act = &((const struct semel_act_line *)ctx)[i];
    semel__object_time(one, "at", act->at_us);
    semel__object_text(one, "who", act->who);
    semel__object_text(one, "what", act->what);
    semel__object_text(one, "reason", act->reason);
}

static void fill_conflict(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_conflict_line *conflict = &((const struct semel_history *)ctx)->conflicts[i];
    struct semel_str fp = conflict->fingerprint;
    char hex[2 * (SEMEL_FP_MAX + 1) + 1] = "";
    for (size_t k = 1; k < fp.n && k <= SEMEL_FP_MAX; k++) /* the first byte is the kind */
        snprintf(hex + 2 * (k - 1), 3, "%02x", (unsigned char)fp.p[k]);
    semel__object_text(one, "fingerprint", semel__str(hex));
    semel__object_number(one, "count", conflict->n);
    semel__object_time(one, "first", conflict->first_us);
    semel__object_time(one, "last", conflict->last_us);
}

static void fill_rival(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_rival *rival = &((const struct semel_rival *)ctx)[i];
    semel__object_text(one, "id", rival->id);
    semel__object_text(one, "source", rival->source);
    semel__object_text(one, "business_key", rival->key);
    semel__object_text(one, "status",
                       rival->state != SEMEL_ROW_ABSENT ? state_text(rival->state) : (struct semel_str){0});
}

static void put_row(struct semel_object *o, const struct semel_row *row)
{
    const struct semel_progress *progress = &row->progress;
    bool text = row->kept && row->payload.n <= PAYLOAD_MAX && semel__utf8_valid(row->payload);
    semel__object_text(o, "id", row->id);
    semel__object_text(o, "consumer", row->consumer);
    semel__object_text(o, "source", row->source);
    semel__object_text(o, "type", row->type);
    semel__object_text(o, "status", state_text(progress->state));
    semel__object_text(o, "error_class", class_text(progress->error_class));
    semel__object_text(o, "error_text", progress->error_text);
    semel__object_number(o, "attempts", progress->attempts);
    semel__object_number(o, "attempts_before", progress->attempts_before);
    semel__object_number(o, "retries", progress->retries);
    semel__object_bool(o, "alone", progress->alone);
    semel__object_text(o, "order_key", row->order_key);
    semel__object_number(o, "version", row->version);
    semel__object_time(o, "message_time", row->message_time_us);
    semel__object_time(o, "received_at", row->received_us);
    semel__object_time(o, "updated_at", row->updated_us);
    semel__object_time(o, "processed_at", progress->processed_us);
    semel__object_time(o, "due_at", progress->due_us);
    semel__object_text(o, "lease_owner", progress->lease_owner);
    semel__object_time(o, "lease_until", progress->lease_until_us);
    semel__object_raw(o, "outcome", progress->outcome);
    semel__object_text(o, "position", row->position);
    semel__object_text(o, "traceparent", row->traceparent);
    semel__object_number(o, "arrival", row->arrival);
    semel__object_raw(o, "headers", row->headers);
    semel__object_bool(o, "payload_kept", row->kept);
    semel__object_number(o, "payload_bytes", row->kept ? (int64_t)row->payload.n : SEMEL_NONE);
    semel__object_text(o, "payload", text ? row->payload : (struct semel_str){0});
}

/* The objects of the document, one after the other; then what stands around them is freed. */
void semel__json_end(struct semel_buf *buf, struct semel_object *o)
{
    struct semel_str text = semel__object_end(o);
    semel__buf_add(buf, text.p, text.n);
    semel__buf_addz(buf, "\n");
    buf->failed |= o->buf.failed;
    semel__object_done(o);
}

void semel__json_end_why(struct semel_buf *buf, struct semel_object *o, struct semel_buf *why, struct semel_buf *next)
{
    semel__object_text(o, "why", semel__buf_str(why));
    semel__object_text(o, "next", semel__buf_str(next));
    o->buf.failed |= why->failed || next->failed;
    semel__json_end(buf, o);
    semel__buf_done(why);
    semel__buf_done(next);
}

void semel__ops_json_message(struct semel_buf *buf, const struct semel_ops_facts *f)
{
    const struct semel_history *h = f->history;
    size_t holders = semel__facts_waiters(f), waiters = h->n_rivals - holders;
    struct semel_buf why, next;
    struct semel_object o;
    char key[SEMEL_STEP_KEY_TEXT];
    semel__buf_init(&why, SEMEL_EXPLAIN_MAX);
    semel__buf_init(&next, SEMEL_EXPLAIN_MAX);
    semel__explain(f, &why, &next);
    semel__object_init(&o);
    put_row(&o, f->row);
    semel__object_text(&o, "idempotency_key",
                       semel__facts_idempotency_key(f, key) ? semel__str(key) : (struct semel_str){0});
    semel__object_texts(&o, "business_keys", h->business, h->n_business);
    semel__object_texts(&o, "wanted_keys", f->row->wants, f->row->n_wants);
    /* Those that have a business key that it wants; those who wait for one, the first of them and how many there are.
     */
    semel__object_list(&o, "holders", holders, fill_rival, h->rivals);
    semel__object_list(&o, "waiters", waiters < SEMEL_WAITERS_MAX ? waiters : SEMEL_WAITERS_MAX, fill_rival,
                       waiters > 0 ? h->rivals + holders : NULL);
    semel__object_number(&o, "waiters_count", (int64_t)waiters);
    semel__object_list(&o, "failures", h->n_tries, fill_try, h);
    semel__object_list(&o, "audit", h->n_acts, semel__json_act, h->acts);
    semel__object_list(&o, "conflicts", h->n_conflicts, fill_conflict, h);
    semel__object_bool(&o, "more", h->more);
    semel__json_end_why(buf, &o, &why, &next);
}

/* ---- commands ------------------------------------------------------------------------------------ */

static void fill_answer(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_report *report = &((const struct semel_report *)ctx)[i];
    semel__object_text(one, "id", report->row->id);
    semel__object_text(one, "consumer", report->row->consumer);
    semel__object_text(one, "source", report->row->source);
    semel__object_text(one, "result", semel__str(semel__answer_name(report->answer.kind)));
    semel__object_text(one, "code", semel__str(semel__judgement_name(report->answer.judged)));
    semel__object_text(one, "status", state_text(report->answer.state));
    if (report->answer.copy[0] != '\0')
        semel__object_text(one, "copy", semel__str(report->answer.copy));
    semel__object_text(one, "text", semel__str(report->answer.text));
}

void semel__ops_json_answers(struct semel_buf *buf, const struct semel_report *report, size_t n)
{
    semel__json_put_list(buf, n, fill_answer, report);
}

void semel__ops_json_answer(struct semel_buf *buf, const struct semel_report *report)
{
    struct semel_object o;
    semel__object_init(&o);
    fill_answer(&o, report, 0);
    semel__json_end(buf, &o);
}

void semel__ops_json_asked(struct semel_buf *buf, const struct semel_asked *one)
{
    struct semel_object o;
    semel__object_init(&o);
    semel__object_text(&o, "consumer", one->consumer);
    semel__object_text(&o, "id", one->id);
    semel__object_text(&o, "result", one->known ? SEMEL_STR("known") : SEMEL_STR("unknown"));
    semel__object_text(&o, "why", one->why);
    semel__buf_addz(buf, buf->n > 0 ? "," : "");
    struct semel_str text = semel__object_end(&o);
    semel__buf_add(buf, text.p, text.n);
    buf->failed |= o.buf.failed;
    semel__object_done(&o);
}

void semel__ops_json_reconcile(struct semel_buf *buf, const struct semel_reconcile_sum *sum, struct semel_str messages)
{
    semel__buf_addf(buf, "{\"found\":%zu,\"known\":%zu,\"unknown\":%zu,\"messages\":[", sum->found, sum->known,
                    sum->unknown);
    semel__buf_add(buf, messages.p, messages.n);
    semel__buf_addz(buf, "]}\n");
}

static void fill_dry(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_group *group = &((const struct semel_groups *)ctx)->groups[i];
    fill_group_head(one, group);
    semel__object_text(one, "example", group->id);
}

void semel__ops_json_dry_run(struct semel_buf *buf, enum semel_command_kind kind, int64_t total,
                             const struct semel_groups *groups)
{
    struct semel_object o;
    semel__object_init(&o);
    semel__object_bool(&o, "dry_run", true);
    semel__object_text(&o, "command", semel__str(semel__command_name(kind)));
    semel__object_number(&o, "messages", total);
    semel__object_list(&o, "groups", groups->n < GROUPS_SHOWN ? groups->n : GROUPS_SHOWN, fill_dry, groups);
    semel__json_end(buf, &o);
}

void semel__ops_put_resume(struct semel_buf *buf, const struct semel_selection *selection, const char *store_option)
{
    semel__buf_addf(buf, "semel inbox %.*s --resume %lld", (int)selection->command.n, selection->command.p,
                    (long long)selection->number);
    if (store_option == NULL)
        return;
    semel__buf_addz(buf, " --store ");
    semel__put_word(buf, semel__str(store_option));
}

static void fill_cause(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_cause *cause = &((const struct semel_cause *)ctx)[i];
    semel__object_text(one, "result", semel__str(semel__answer_name(cause->kind)));
    semel__object_text(one, "reason", cause->text[0] != '\0' ? semel__str(cause->text) : (struct semel_str){0});
    semel__object_number(one, "count", cause->n);
    semel__object_text(one, "example", semel__str(cause->example));
}

void semel__ops_json_selection(struct semel_buf *buf, const struct semel_selection *now, const struct semel_bulk *bulk,
                               const char *store_option)
{
    const char *cause = NULL, *stopped = bulk != NULL ? semel__bulk_stopped(bulk, &cause) : NULL;
    struct semel_buf resume;
    struct semel_object o;
    size_t n = 0;
    const struct semel_cause *causes = bulk != NULL ? semel__bulk_causes(bulk, &n) : NULL;
    semel__buf_init(&resume, SEMEL_EXPLAIN_MAX);
    semel__ops_put_resume(&resume, now, store_option);
    semel__object_init(&o);
    semel__object_number(&o, "selection", now->number);
    semel__object_text(&o, "command", now->command);
    semel__object_number(&o, "messages", now->n);
    semel__object_number(&o, "done", now->done);
    semel__object_number(&o, "skipped", now->skipped);
    semel__object_number(&o, "refused", now->refused);
    semel__object_number(&o, "left", now->left);
    semel__object_bool(&o, "running", bulk != NULL && !semel__bulk_over(bulk));
    semel__object_text(&o, "stopped", semel__str(stopped));
    semel__object_text(&o, "cause", semel__str(stopped != NULL ? cause : NULL));
    semel__object_text(&o, "resume", now->left > 0 ? semel__buf_str(&resume) : (struct semel_str){0});
    semel__object_list(&o, "results", n, fill_cause, causes);
    semel__json_end(buf, &o);
    semel__buf_done(&resume);
}

/* ---- consumers ----------------------------------------------------------------------------------- */

static void fill_consumer(struct semel_object *one, const void *ctx, size_t i)
{
    const struct semel_consumer_line *line = &((const struct semel_consumer_line *)ctx)[i];
    semel__object_text(one, "consumer", line->name);
    semel__object_text(one, "guarantee", semel__str(line->guarantee.text));
    semel__object_raw(one, "settings", line->settings);
}

void semel__ops_json_consumers(struct semel_buf *buf, const struct semel_consumer_line *lines, size_t n)
{
    semel__json_put_list(buf, n, fill_consumer, lines);
}

void semel__ops_json_consumer(struct semel_buf *buf, const struct semel_policy *policy, const struct semel_set_by *by,
                              const char *note)
{
    struct semel_buf settings;
    struct semel_object o;
    semel__buf_init(&settings, SEMEL_SETTINGS_MAX);
    semel__policy_write(policy, &settings);
    semel__object_init(&o);
    semel__object_text(&o, "consumer", policy->consumer);
    semel__object_text(&o, "guarantee", semel__str(semel__ops_guarantee(policy).text));
    semel__object_raw(&o, "settings", semel__buf_str(&settings));
    if (by != NULL && semel__str_given(by->file)) {
        semel__object_text(&o, "set_by_host", by->host);
        semel__object_text(&o, "set_by_file", by->file);
        semel__object_time(&o, "set_by_at", by->at_us);
    }
    if (note != NULL)
        semel__object_text(&o, "note", semel__str(note));
    o.buf.failed |= settings.failed;
    semel__json_end(buf, &o);
    semel__buf_done(&settings);
}
