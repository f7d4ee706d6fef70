/* SPDX-License-Identifier: MIT
 *
 * records_settle.c: settle: what rows and keys become, and the evidence.
 *
 * Invariants: a change applies only to a row that still is what core saw (status and, where given, fencing token); one
 * that does not apply logs no attempt and releases no business key. Rows that wait for a business key become due before
 * it is released. Keys are woken after all rows have changed. A role that only reads the tables makes one change, by a
 * function of the owner, and without a reason none.
 */
#include <stdio.h>
#include <string.h>

#include "core/state.h"
#include "core/version.h"
#include "store/records.h"

struct args {
    struct semel_str consumer, worker;
    int64_t now_us, limit;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, consumer, consumer),
    SQL_FIELD(struct args, worker, worker),
    SQL_FIELD(struct args, now_us, now),
    SQL_FIELD(struct args, limit, limit),
};

/* ---- changes ------------------------------------------------------------------------------------- */

static const void *wanted_token(const void *item)
{
#ifdef SEMEL_MUTANT_NO_TOKEN
    (void)item;
    return NULL;
#else
    return &((const struct semel_change *)item)->token;
#endif
}

static const void *touch(const void *item)
{
    static const bool yes = true, no = false;
    return ((const struct semel_change *)item)->payload != SEMEL_PAYLOAD_AS_IS ? &yes : &no;
}

/* The message whose payload is put; NULL: none is. */
static const struct semel__msg *put(const void *item)
{
    const struct semel_change *change = item;
    return change->payload == SEMEL_PAYLOAD_PUT ? change->put : NULL;
}

static const void *put_headers(const void *item)
{
    return put(item) != NULL ? &put(item)->headers : NULL;
}

static const void *put_payload(const void *item)
{
    static const struct semel_str empty = {"", 0};
    if (put(item) == NULL)
        return NULL;
    return semel__str_given(put(item)->payload) ? &put(item)->payload : &empty;
}

static const void *put_fingerprint(const void *item)
{
    return put(item) != NULL ? &put(item)->fp : NULL;
}

#define CHANGE struct semel_change
static const struct sql_field change_fields[] = {
    SQL_FIELD(CHANGE, source, source),
    SQL_FIELD(CHANGE, id, message_id),
    SQL_FIELD(CHANGE, id, record_key),
    SQL_FIELD(CHANGE, from, was),
    SQL_AT(token, wanted_token),
    SQL_FIELD(CHANGE, remove, remove),
    SQL_PROGRESS(CHANGE, progress),
    SQL_FIELD(CHANGE, updated_us, updated_at),
    SQL_AT(touch, touch),
    SQL_AT(headers, put_headers),
    SQL_AT(payload, put_payload),
    SQL_AT(fingerprint, put_fingerprint),
    SQL_FIELD(CHANGE, log_attempt, log),
    SQL_FIELD(CHANGE, release_business, release),
    SQL_FIELD(CHANGE, wish_business, wish),
    SQL_FIELD(CHANGE, applied, done),
};

#define APPLIED(batch)                                                    \
    {                                                                     \
        (batch)->changes, sizeof(CHANGE), offsetof(CHANGE, applied), true \
    }

/* What at least one change or key of the batch asks for. */
struct asked {
    bool update, remove, log, release, wish, skip, wake, wake_version;
};

static struct asked asked_for(const struct semel_settle_batch *batch)
{
    struct asked a = {0};
    for (size_t i = 0; i < batch->n_changes; i++) {
        const struct semel_change *change = &batch->changes[i];
        a.update |= !change->remove;
        a.remove |= change->remove;
        a.log |= change->log_attempt;
        a.release |= change->release_business;
        a.wish |= change->release_business && change->wish_business;
    }
    for (size_t i = 0; i < batch->n_keys; i++) {
        const struct semel_key_change *key = &batch->keys[i];
        a.skip |= key->skips;
        a.wake |= key->wake && !key->by_version;
        a.wake_version |= key->wake && key->by_version;
    }
    return a;
}

static void run_changes(struct sql *db, const struct semel_settle_batch *batch, const struct sql_set *once,
                        const struct asked *a, struct sql_noted *applied)
{
    const struct sql_set *each = SQL_EACH(change_fields, batch->changes, batch->n_changes);
    if (a->release && batch->impatient)
        semel__db_run(db, SQL_locks_impatient, NULL, NULL, NULL, NULL);
    if (a->release && !batch->wakes_none)
        semel__db_run(db, SQL_settle_waiters, once, each, NULL, NULL);
    if (a->wish)
        semel__db_run(db, SQL_settle_wish, once, each, NULL, NULL);
    if (a->update)
        semel__db_run(db, SQL_settle_update, once, each, semel__db_read_noted, applied);
    if (a->remove)
        semel__db_run(db, SQL_settle_remove, once, each, semel__db_read_noted, applied);
    if (a->release && batch->impatient)
        semel__db_run(db, SQL_locks_patient, NULL, NULL, NULL, NULL);
}

/* ---- evidence, business keys --------------------------------------------------------------------- */

static const struct sql_field drop_fields[] = {
    SQL_FIELD(struct semel_business, key, business_key),
    SQL_FIELD(struct semel_business, source, source),
    SQL_FIELD(struct semel_business, id, message_id),
};
static const struct sql_field want_fields[] = {
    SQL_FIELD(struct semel_want, key, business_key),
    SQL_FIELD(struct semel_want, source, source),
    SQL_FIELD(struct semel_want, id, message_id),
};
static const struct sql_field hold_fields[] = {
    SQL_FIELD(struct semel_hold, source, source),
    SQL_FIELD(struct semel_hold, id, message_id),
    SQL_FIELD(struct semel_hold, until_us, expires_at),
};
static const struct sql_field msg_fields[] = {
    SQL_FIELD(struct semel__msg, source, source),     SQL_FIELD(struct semel__msg, id, message_id),
    SQL_FIELD(struct semel__msg, fp, fingerprint),    SQL_FIELD(struct semel__msg, type, type),
    SQL_FIELD(struct semel__msg, position, position), SQL_FIELD(struct semel__msg, headers, headers),
    SQL_FIELD(struct semel__msg, payload, payload),   SQL_FIELD(struct semel__msg, traceparent, traceparent),
};
static const struct sql_field note_fields[] = {
    SQL_FIELD(struct semel_note, source, source),   SQL_FIELD(struct semel_note, id, message_id),
    SQL_FIELD(struct semel_note, attempt, attempt), SQL_FIELD(struct semel_note, cls, error_class),
    SQL_FIELD(struct semel_note, text, error_text),
};

static void run_evidence(struct sql *db, const struct semel_settle_batch *batch, const struct sql_set *once)
{
    const struct sql_set *granted = SQL_EACH(want_fields, batch->granted, batch->n_granted);
    const struct sql_set *conflicts = SQL_EACH_OF(msg_fields, batch->conflicts, batch->n_conflicts);
    semel__db_run(db, SQL_settle_drop, once, SQL_EACH(drop_fields, batch->drop, batch->n_drop), NULL, NULL);
    semel__db_run(db, SQL_settle_grant, once, granted, NULL, NULL);
    semel__db_run(db, SQL_settle_want, once, SQL_EACH(want_fields, batch->wants, batch->n_wants), NULL, NULL);
    semel__db_run(db, SQL_settle_hold, once, SQL_EACH(hold_fields, batch->holds, batch->n_holds), NULL, NULL);
    semel__db_run(db, SQL_settle_conflict, once, conflicts, NULL, NULL);
    semel__db_run(db, SQL_settle_conflict_bound, once, conflicts, NULL, NULL);
    semel__db_run(db, SQL_settle_note, once, SQL_EACH(note_fields, batch->notes, batch->n_notes), NULL, NULL);
}

/* ---- order keys ---------------------------------------------------------------------------------- */

static const struct sql_field key_fields[] = {
    SQL_FIELD(struct semel_key_change, key, order_key),
    SQL_FIELD(struct semel_key_change, last_version, last_version),
    SQL_FIELD(struct semel_key_change, wake, wake),
    SQL_FIELD(struct semel_key_change, by_version, by_version),
};

/* A key's list of skipped versions, as it is stored. */
struct skip {
    struct semel_str key, skipped;
};
static const struct sql_field skip_fields[] = {
    SQL_FIELD(struct skip, key, order_key),
    SQL_FIELD(struct skip, skipped, skipped),
};

static semel_status write_skip(const struct semel_key_change *key, struct semel_arena *arena, struct skip *ret,
                               struct semel_error *err)
{
    struct semel_buf text;
    semel__buf_init(&text, SEMEL_SKIPPED_TEXT_MAX);
    semel__version_write(key->skipped, key->n_skipped, &text);
    ret->key = key->key;
    bool ok = !text.failed && (key->n_skipped == 0 || semel__arena_copy(arena, semel__buf_str(&text), &ret->skipped));
    semel__buf_done(&text);
    return ok ? SEMEL_OK : semel__fail_memory(err);
}

static semel_status list_skips(const struct semel_settle_batch *batch, struct semel_arena *arena, struct skip **ret,
                               size_t *ret_n, struct semel_error *err)
{
    struct skip *skips = semel__arena_alloc(arena, batch->n_keys, sizeof *skips);
    semel_status status = skips != NULL ? SEMEL_OK : semel__fail_memory(err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_keys; i++)
        if (batch->keys[i].skips)
            status = write_skip(&batch->keys[i], arena, &skips[(*ret_n)++], err);
    *ret = skips;
    return status;
}

static void run_keys(struct sql *db, const struct semel_settle_batch *batch, const struct sql_set *once,
                     const struct asked *a, const struct sql_set *skips)
{
    const struct sql_set *each = SQL_EACH(key_fields, batch->keys, batch->n_keys);
    semel__db_run(db, SQL_settle_key, once, each, NULL, NULL);
    semel__db_run(db, SQL_settle_skip, once, skips, NULL, NULL);
    if (a->wake)
        semel__db_run(db, SQL_settle_wake, once, each, NULL, NULL);
    if (a->wake_version)
        semel__db_run(db, SQL_settle_wake_version, once, each, NULL, NULL);
}

/* ---- all of it ----------------------------------------------------------------------------------- */

/* A command about stored rows. Keys, business keys and the audit are the function's. */
static semel_status command(struct sql *db, const struct semel_settle_batch *batch, const struct sql_set *once,
                            struct semel_error *err)
{
    struct sql_noted applied = APPLIED(batch);
    bool may = batch->n_changes > 0;
    for (size_t i = 0; i < batch->n_changes; i++)
        may = may && !batch->changes[i].remove && batch->changes[i].progress.state != SEMEL_ROW_PROCESSING;
    if (!may)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "this role may give commands about stored messages, and handle none: it has no rights on "
                           "semel.inbox but to read it");
    return semel__db_do(db, "updating the inbox", SQL_settle_command, once,
                        SQL_EACH(change_fields, batch->changes, batch->n_changes), semel__db_read_noted, &applied, err);
}

/* The second flush waits for nothing where settle_update has done it all. */
static semel_status settle(struct sql *db, const struct semel_settle_batch *batch, const struct sql_set *once,
                           const struct sql_set *skips, const struct asked *a, struct semel_error *err)
{
    const struct sql_set *each = SQL_EACH(change_fields, batch->changes, batch->n_changes);
    struct sql_noted applied = APPLIED(batch);
    semel__db_start(db, "updating the inbox");
    run_changes(db, batch, once, a, &applied);
    run_evidence(db, batch, once);
    run_keys(db, batch, once, a, skips);
    semel_status status = semel__db_flush(db, err);
    if (status != SEMEL_OK || !(a->log || a->release))
        return status;
    semel__db_start(db, "recording attempts");
    if (a->log)
        semel__db_run(db, SQL_settle_attempt, once, each, NULL, NULL);
    if (a->release)
        semel__db_run(db, SQL_settle_release, once, each, NULL, NULL);
    return semel__db_flush(db, err);
}

semel_status semel__record_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    const struct args args = {batch->consumer, batch->worker, batch->now_us, SEMEL_CONFLICTS_MAX};
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    const struct asked asked = asked_for(batch);
    struct semel_arena arena;
    struct skip *skips = NULL;
    size_t n_skips = 0;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < batch->n_changes; i++)
        batch->changes[i].applied = false;
    if (db->by_operator)
        return command(db, batch, once, err);
    semel__arena_init(&arena, INT32_MAX);
    if (asked.skip)
        status = list_skips(batch, &arena, &skips, &n_skips, err);
    if (status == SEMEL_OK)
        status = settle(db, batch, once, SQL_EACH(skip_fields, skips, n_skips), &asked, err);
    semel__arena_done(&arena);
    return status;
}

/* A refusal by the owner's function (semel._refuse) is no fault of the setup: its own text says why. */
static semel_status refused(semel_status status, struct semel_error *err)
{
    static const char code[] = ": 22023: ";
    char text[sizeof err->text];
    const char *why = status == SEMEL_INVALID && err != NULL ? strstr(err->text, code) : NULL;
    if (why == NULL)
        return status;
    snprintf(text, sizeof text, "%s", why + sizeof code - 1);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s", text);
}

semel_status semel__record_correct(struct semel_store *store, const struct semel_corrected *what, bool *ret_made,
                                   struct semel_error *err)
{
    static const struct sql_field fields[] = {SQL_FIELD(struct semel_corrected, consumer, consumer),
                                              SQL_FIELD(struct semel_corrected, source, source),
                                              SQL_FIELD(struct semel_corrected, id, message_id),
                                              SQL_FIELD(struct semel_corrected, was, was),
                                              SQL_FIELD(struct semel_corrected, payload, payload),
                                              SQL_FIELD(struct semel_corrected, reason, reason),
                                              SQL_FIELD(struct semel_corrected, force, force)};
    static const struct sql_field done[] = {{.name = SQL_NAME_done}};
    struct sql *db = semel__db_of(store);
    struct semel_corrected given = *what;
    struct sql_into into = {SQL_FIELDS(done), .items = ret_made, .size = sizeof *ret_made};
    if (!db->by_operator)
        return SEMEL_OK;
    given.payload.p = given.payload.n > 0 ? given.payload.p : ""; /* empty is content */
    semel_status status = semel__db_do(db, "storing a corrected copy", SQL_settle_correct, SQL_ONE(fields, &given),
                                       NULL, semel__db_read_item, &into, err);
    return status != SEMEL_OK || *ret_made
               ? refused(status, err)
               : semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "an inbox row changed while it was held");
}
