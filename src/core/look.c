/* SPDX-License-Identifier: MIT
 *
 * look.c: the way from a program to the eyes of a store. Each wrapper answers for a store that has none, and asserts
 * what must have been done before the call and what must hold after it. One adds something: what the order of a key
 * rests on is a rule of the consumer, which a store does not know.
 */
#include "core/look.h"

#include <assert.h>
#include <stdio.h>

#include "base/error.h"
#include "base/str.h"
#include "core/consumer.h"

static semel_status blind(const struct semel_store *store, struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "this store (%s) cannot be looked at", store->ops->name);
}

semel_status semel_look_counts(struct semel_store *store, struct semel_str consumer, int64_t cap, int64_t final_cap,
                               struct semel_arena *arena, struct semel_count **ret, size_t *ret_n,
                               struct semel_error *err)
{
    assert(cap > 0 && final_cap >= 0);
    if (store->ops->look == NULL)
        return blind(store, err);
    return store->ops->look->counts(store, consumer, cap, final_cap, arena, ret, ret_n, err);
}

semel_status semel_look_list(struct semel_store *store, const struct semel_filter *filter, int64_t after_arrival,
                             size_t max, bool with_payload, struct semel_arena *arena, struct semel_row **ret,
                             size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    assert(max > 0);
    if (store->ops->look == NULL)
        return blind(store, err);
    semel_status status = store->ops->look->list(store, filter, after_arrival, max, with_payload, arena, ret, ret_n,
                                                 ret_damaged, err);
    assert(status != SEMEL_OK || *ret_n <= max);
    return status;
}

semel_status semel_look_groups(struct semel_store *store, const struct semel_filter *filter, int64_t cap, size_t max,
                               struct semel_arena *arena, struct semel_group **ret, size_t *ret_n, bool *ret_capped,
                               struct semel_error *err)
{
    assert(cap > 0 && max > 0);
    if (store->ops->look == NULL)
        return blind(store, err);
    semel_status status = store->ops->look->groups(store, filter, cap, max, arena, ret, ret_n, ret_capped, err);
    assert(status != SEMEL_OK || *ret_n <= max);
    return status;
}

/* The store has gone by the row; where the consumer's settings say otherwise the first of the key may be another. */
static semel_status mend_head(struct semel_store *store, const struct semel_row *row, struct semel_arena *arena,
                              struct semel_history *h, struct semel_error *err)
{
    struct semel_policy policy;
    struct semel_row *rows = NULL;
    bool said = false;
    size_t n = 0;
    semel_status status = semel__consumer_load(store, row->consumer, arena, &policy, &said, err);
    if (status != SEMEL_OK && status != SEMEL_INVALID)
        return status;
    semel__error_clear(err); /* settings that cannot be read say nothing */
    if (status != SEMEL_OK || !said || (policy.order == SEMEL_ORDER_VERSION) == (row->version != SEMEL_NONE))
        return SEMEL_OK;
    struct semel_scan scan = {.kind = SEMEL_SCAN_KEY,
                              .consumer = row->consumer,
                              .order_key = row->order_key,
                              .by_version = policy.order == SEMEL_ORDER_VERSION,
                              .max = 1};
    status = semel_store_scan(store, &scan, arena, &rows, &n, NULL, err);
    h->has_head = status == SEMEL_OK && n == 1;
    if (h->has_head) {
        h->head_source = rows[0].source;
        h->head_id = rows[0].id;
        h->head_state = rows[0].live.state;
        h->head_version = rows[0].version;
    }
    return status;
}

semel_status semel_look_history(struct semel_store *store, const struct semel_row *row, size_t max,
                                struct semel_arena *arena, struct semel_history *ret, struct semel_error *err)
{
    assert(max > 0);
    if (store->ops->look == NULL)
        return blind(store, err);
    semel_status status = store->ops->look->history(store, row, max, arena, ret, err);
    return status == SEMEL_OK && ret->has_head ? mend_head(store, row, arena, ret, err) : status;
}

semel_status semel_look_outbox(struct semel_store *store, int64_t cap, int64_t *ret_n, int64_t *ret_oldest_us,
                               struct semel_error *err)
{
    assert(cap > 0);
    if (store->ops->look == NULL)
        return blind(store, err);
    return store->ops->look->outbox(store, cap, ret_n, ret_oldest_us, err);
}

static bool one_of(struct semel_str s, const char *const words[3])
{
    for (size_t i = 0; i < 3; i++)
        if (semel__str_eqz(s, words[i]))
            return true;
    return false;
}

static semel_status check_selection(const struct semel_selection *s, struct semel_error *err)
{
    static const char *const words[3] = {"retry", "discard", "resolve"};
    if (!one_of(s->command, words))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "a selection is for one of these: retry, discard, resolve");
    if (s->reason.n == 0 || s->reason.n > SEMEL_ERROR_TEXT_MAX || !semel__utf8_valid(s->reason))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the reason must be UTF-8 text of 1 to %d bytes",
                           SEMEL_ERROR_TEXT_MAX);
    return semel__id_check("who", s->who, 1, err);
}

/* A person has chosen: a line, besides those of the messages (B4). */
static semel_status audit_selection(struct semel_store *store, const struct semel_selection *s, int64_t now_us,
                                    struct semel_error *err)
{
    char what[100];
    snprintf(what, sizeof what, "selection %lld: %.*s of %lld messages", (long long)s->number, (int)s->command.n,
             s->command.p, (long long)s->n);
    struct semel_audit line = {.who = s->who, .what = semel__str(what), .reason = s->reason};
    return semel_store_audit(store, &line, now_us, err);
}

semel_status semel_look_select(struct semel_store *store, const struct semel_filter *filter, size_t max, int64_t now_us,
                               struct semel_selection *selection, struct semel_error *err)
{
    assert(store->in_tx && max > 0);
    if (store->ops->look == NULL)
        return blind(store, err);
    semel_status status = check_selection(selection, err);
    if (status == SEMEL_OK)
        status = store->ops->look->select(store, filter, max, now_us, selection, err);
    if (status == SEMEL_OK && selection->n > 0)
        status = audit_selection(store, selection, now_us, err);
    assert(status != SEMEL_OK || (selection->n <= (int64_t)max && selection->left == selection->n));
    return status;
}

semel_status semel_look_selection(struct semel_store *store, int64_t number, struct semel_arena *arena,
                                  struct semel_selection *ret, struct semel_error *err)
{
    if (store->ops->look == NULL)
        return blind(store, err);
    return store->ops->look->selection(store, number, arena, ret, err);
}

semel_status semel_look_selected(struct semel_store *store, int64_t number, size_t max, struct semel_arena *arena,
                                 struct semel_selected **ret, size_t *ret_n, struct semel_error *err)
{
    assert(max > 0);
    if (store->ops->look == NULL)
        return blind(store, err);
    semel_status status = store->ops->look->selected(store, number, max, arena, ret, ret_n, err);
    assert(status != SEMEL_OK || *ret_n <= max);
    return status;
}

semel_status semel_look_mark(struct semel_store *store, int64_t number, int64_t place, struct semel_str result,
                             struct semel_error *err)
{
    static const char *const words[3] = {"done", "skipped", "refused"};
    assert(store->in_tx);
    if (store->ops->look == NULL)
        return blind(store, err);
    if (!one_of(result, words))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "what came of a selected message is one of these: done, skipped, refused");
    return store->ops->look->mark(store, number, place, result, err);
}
