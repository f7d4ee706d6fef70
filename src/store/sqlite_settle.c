/* SPDX-License-Identifier: MIT
 *
 * sqlite_settle.c: settle: what rows and keys become, and the evidence.
 *
 * Invariants: a change applies only to a row that still is what core saw (status and, where given, fencing token);
 * one that does not apply has no side effects. Keys are woken after all rows have changed.
 */
#include "core/version.h"
#include "store/sqlite.h"

static struct semel_str source_of(struct semel_str source)
{
    return semel__str_given(source) ? source : SEMEL_STR("");
}

static void bind_key(struct sqlite_run *run, struct semel_str consumer, struct semel_str source, struct semel_str id)
{
    semel__sqlite_text(run, 1, consumer);
    semel__sqlite_text(run, 2, source_of(source));
    semel__sqlite_text(run, 3, id);
}

static void bind_class(struct sqlite_run *run, int i, enum semel_class cls)
{
    if (cls != SEMEL_CLASS_NONE)
        semel__sqlite_text(run, i, semel__str(semel__class_name(cls)));
}

static semel_status update(struct sqlite_store *d, const struct semel_settle_batch *batch, struct semel_change *change,
                           struct semel_error *err)
{
    const struct semel_live *live = &change->live;
    int64_t token = change->token;
#ifdef SEMEL_MUTANT_NO_TOKEN
    token = SEMEL_NONE;
#endif
    unsigned char fp[1 + SEMEL_FP_MAX];
    size_t changes = 0, fp_n = 0;
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_UPDATE, "updating the inbox");
    bind_key(&run, batch->consumer, change->source, change->id);
    semel__sqlite_text(&run, 4, semel__str(semel__state_name(change->from)));
    semel__sqlite_text(&run, 5, semel__str(semel__state_name(live->state)));
    semel__sqlite_int(&run, 6, live->attempts);
    semel__sqlite_int(&run, 7, live->attempts_before);
    semel__sqlite_int(&run, 8, live->retries);
    semel__sqlite_int(&run, 9, live->alone);
    semel__sqlite_int(&run, 10, live->due_us);
    semel__sqlite_int(&run, 11, live->processed_us);
    semel__sqlite_text(&run, 12, live->lease_owner);
    semel__sqlite_int(&run, 13, live->lease_until_us);
    semel__sqlite_int(&run, 14, live->lease_token);
    bind_class(&run, 15, live->error_class);
    semel__sqlite_text(&run, 16, live->error_text);
    semel__sqlite_text(&run, 17, live->outcome);
    semel__sqlite_int(&run, 18, change->updated_us);
    semel__sqlite_int(&run, 19, change->payload != SEMEL_PAYLOAD_AS_IS);
    if (change->payload == SEMEL_PAYLOAD_PUT) {
        semel__sqlite_text(&run, 20, change->put->headers);
        semel__sqlite_blob(&run, 21, semel__str_given(change->put->payload) ? change->put->payload : SEMEL_STR(""));
        fp_n = semel__fp_encode(&change->put->fp, fp);
    }
    semel__sqlite_int(&run, 22, token);
    semel__sqlite_blob(&run, 23, (struct semel_str){fp_n > 0 ? (const char *)fp : NULL, fp_n});
    semel_status status = semel__sqlite_exec(&run, &changes, err);
    change->applied = status == SEMEL_OK && changes > 0;
    return status;
}

static semel_status take_away(struct sqlite_store *d, const struct semel_settle_batch *batch,
                              struct semel_change *change, struct semel_error *err)
{
    size_t changes = 0;
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_REMOVE, "removing from the inbox");
    bind_key(&run, batch->consumer, change->source, change->id);
    semel__sqlite_text(&run, 4, semel__str(semel__state_name(change->from)));
    semel_status status = semel__sqlite_exec(&run, &changes, err);
    change->applied = status == SEMEL_OK && changes > 0;
    return status;
}

static semel_status attempt(struct sqlite_store *d, const struct semel_settle_batch *batch,
                            const struct semel_note *note, struct semel_error *err)
{
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_ATTEMPT, "recording an attempt");
    bind_key(&run, batch->consumer, note->source, note->id);
    semel__sqlite_int(&run, 4, note->attempt);
    semel__sqlite_int(&run, 5, batch->now_us);
    semel__sqlite_text(&run, 6, batch->worker);
    bind_class(&run, 7, note->cls);
    semel__sqlite_text(&run, 8, note->text);
    return semel__sqlite_exec(&run, NULL, err);
}

/* Those that wait for one of its keys look at once. */
static semel_status release(struct sqlite_store *d, const struct semel_settle_batch *batch,
                            const struct semel_change *change, struct semel_error *err)
{
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_WAITERS_DUE, "waking who waits for a business key");
    bind_key(&run, batch->consumer, change->source, change->id);
    semel__sqlite_int(&run, 4, batch->now_us);
    semel_status status = semel__sqlite_exec(&run, NULL, err);
    if (status == SEMEL_OK && change->wish_business) {
        semel__sqlite_start(&run, d, Q_WANT_HELD, "remembering business keys");
        bind_key(&run, batch->consumer, change->source, change->id);
        status = semel__sqlite_exec(&run, NULL, err);
    }
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_BUSINESS_RELEASE, "releasing business keys");
    bind_key(&run, batch->consumer, change->source, change->id);
    return semel__sqlite_exec(&run, NULL, err);
}

/* key not given: its wishes are over. */
static semel_status want(struct sqlite_store *d, const struct semel_settle_batch *batch, const struct semel_want *want,
                         struct semel_error *err)
{
    bool put = semel__str_given(want->key);
    struct sqlite_run run;
    semel__sqlite_start(&run, d, put ? Q_WANT_PUT : Q_WANT_GRANT, "remembering a business key");
    bind_key(&run, batch->consumer, want->source, want->id);
    if (put)
        semel__sqlite_text(&run, 4, want->key);
    return semel__sqlite_exec(&run, NULL, err);
}

static semel_status hold(struct sqlite_store *d, const struct semel_settle_batch *batch, const struct semel_hold *hold,
                         struct semel_error *err)
{
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_BUSINESS_UNTIL, "keeping business keys");
    bind_key(&run, batch->consumer, hold->source, hold->id);
    semel__sqlite_int(&run, 4, hold->until_us);
    return semel__sqlite_exec(&run, NULL, err);
}

static semel_status apply(struct sqlite_store *d, const struct semel_settle_batch *batch, struct semel_change *change,
                          struct semel_error *err)
{
    semel_status status = change->remove ? take_away(d, batch, change, err) : update(d, batch, change, err);
    if (status != SEMEL_OK || !change->applied)
        return status;
    if (change->log_attempt) {
        const struct semel_note note = {.source = change->source,
                                        .id = change->id,
                                        .attempt = change->live.attempts,
                                        .cls = change->live.error_class,
                                        .text = change->live.error_text};
        status = attempt(d, batch, &note, err);
    }
    return status == SEMEL_OK && change->release_business ? release(d, batch, change, err) : status;
}

static semel_status write_skipped(struct sqlite_store *d, const struct semel_settle_batch *batch,
                                  const struct semel_key_change *key, struct semel_error *err)
{
    struct sqlite_run run;
    struct semel_buf text;
    semel__buf_init(&text, SEMEL_SKIPPED_TEXT_MAX);
    semel__version_write(key->skipped, key->n_skipped, &text);
    if (text.failed) {
        semel__buf_done(&text);
        return semel__fail_memory(err);
    }
    semel__sqlite_start(&run, d, Q_KEY_SKIP, "writing a key's skipped versions");
    semel__sqlite_text(&run, 1, batch->consumer);
    semel__sqlite_text(&run, 2, key->key);
    if (key->n_skipped > 0)
        semel__sqlite_text(&run, 3, semel__buf_str(&text));
    semel_status status = semel__sqlite_exec(&run, NULL, err);
    semel__buf_done(&text);
    return status;
}

static semel_status change_key(struct sqlite_store *d, const struct semel_settle_batch *batch,
                               const struct semel_key_change *key, struct semel_error *err)
{
    struct sqlite_run run;
    semel_status status = SEMEL_OK;
    if (key->last_version != SEMEL_NONE) {
        semel__sqlite_start(&run, d, Q_KEY_RAISE, "raising a key's version");
        semel__sqlite_text(&run, 1, batch->consumer);
        semel__sqlite_text(&run, 2, key->key);
        semel__sqlite_int(&run, 3, key->last_version);
        status = semel__sqlite_exec(&run, NULL, err);
    }
    if (status == SEMEL_OK && key->skips)
        status = write_skipped(d, batch, key, err);
    if (status != SEMEL_OK || !key->wake)
        return status;
    semel__sqlite_start(&run, d, key->by_version ? Q_WAKE_VERSION : Q_WAKE_ARRIVAL, "waking a key");
    semel__sqlite_text(&run, 1, batch->consumer);
    semel__sqlite_text(&run, 2, key->key);
    semel__sqlite_int(&run, 3, batch->now_us);
    return semel__sqlite_exec(&run, NULL, err);
}

static semel_status drop(struct sqlite_store *d, const struct semel_settle_batch *batch, const struct semel_business *b,
                         struct semel_error *err)
{
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_BUSINESS_DROP, "dropping a business key");
    bind_key(&run, batch->consumer, b->source, b->id);
    semel__sqlite_text(&run, 4, b->key);
    return semel__sqlite_exec(&run, NULL, err);
}

static semel_status conflict(struct sqlite_store *d, const struct semel_settle_batch *batch,
                             const struct semel__msg *msg, struct semel_error *err)
{
    unsigned char fp[1 + SEMEL_FP_MAX];
    size_t fp_n = semel__fp_encode(&msg->fp, fp);
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_CONFLICT, "recording a conflict");
    bind_key(&run, batch->consumer, msg->source, msg->id);
    semel__sqlite_blob(&run, 4, (struct semel_str){(const char *)fp, fp_n});
    semel__sqlite_int(&run, 5, batch->now_us);
    semel__sqlite_text(&run, 6, msg->type);
    semel__sqlite_text(&run, 7, msg->position);
    semel__sqlite_text(&run, 8, msg->headers);
    semel__sqlite_blob(&run, 9, msg->payload);
    semel__sqlite_text(&run, 10, msg->traceparent);
    semel_status status = semel__sqlite_exec(&run, NULL, err);
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_CONFLICT_BOUND, "forgetting the oldest conflict");
    bind_key(&run, batch->consumer, msg->source, msg->id);
    semel__sqlite_int(&run, 4, SEMEL_CONFLICTS_MAX);
    return semel__sqlite_exec(&run, NULL, err);
}

semel_status semel__sqlite_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_changes; i++)
        status = apply(d, batch, &batch->changes[i], err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_drop; i++)
        status = drop(d, batch, &batch->drop[i], err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_granted; i++)
        status = want(d, batch, &batch->granted[i], err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_wants; i++)
        status = want(d, batch, &batch->wants[i], err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_holds; i++)
        status = hold(d, batch, &batch->holds[i], err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_conflicts; i++)
        status = conflict(d, batch, batch->conflicts[i].msg, err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_notes; i++)
        status = attempt(d, batch, &batch->notes[i], err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_keys; i++)
        status = change_key(d, batch, &batch->keys[i], err);
    return status;
}
