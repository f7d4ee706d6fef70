/* SPDX-License-Identifier: MIT
 *
 * prepare.c: from deliveries to the items of a batch.
 *
 * A message whose id cannot be used is kept under its position, or under the digest of its payload and of that id where
 * it has none, so that nothing is lost (the verdict is `no_id`). An id whose source cannot be used is such an id.
 * Copies of one id hang on the first of them and share its fate; a copy with another payload is a conflict. Items are
 * sorted by order key, else by lock key, in arrival order within a key (P61).
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/sort.h"
#include "base/str.h"
#include "core/work.h"

/* ---- fit messages -------------------------------------------------------------------------------- */

/* The gravest is told, of equal ones the first. What is too large is not read, so that fields are missing as well. */
static semel_status flaw(struct semel_arena *arena, struct semel__msg *msg, enum semel_defect defect,
                         const struct semel_error *why, struct semel_error *err)
{
    static const int weight[] = {
        [SEMEL_DEFECT_NONE] = 0, [SEMEL_DEFECT_FIELD] = 1, [SEMEL_DEFECT_SIZE] = 2, [SEMEL_DEFECT_NO_ID] = 3};
    if (weight[defect] <= weight[msg->defect])
        return SEMEL_OK;
    msg->defect = defect;
    if (!semel__arena_copy(arena, semel__str(why->text), &msg->defect_text))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

/* An id for what has none: its position, else the digest of its payload; both marked, so as not to meet a real id. An
 * id or a source that cannot be used still tells messages apart. */
static semel_status substitute_id(struct semel_arena *arena, struct semel__msg *msg, struct semel_error *err)
{
    char text[SEMEL_ID_MAX + 1];
    unsigned char digest[SEMEL_SHA256];
    int n = snprintf(text, sizeof text, "position:%.*s", (int)(msg->position.n < 1000 ? msg->position.n : 1000),
                     msg->position.n > 0 ? msg->position.p : "");
    bool fits = n > 0 && (size_t)n < sizeof text && semel__id_check("position", msg->position, 1, NULL) == SEMEL_OK;
    if (!fits) {
        const bool foreign = semel__id_check("source", msg->source, 0, NULL) != SEMEL_OK;
        const struct semel_str parts[] = {msg->payload, msg->id, msg->source};
        if (!semel__sha256(parts, foreign ? 3 : 2, digest))
            return semel__fail_memory(err);
        snprintf(text, sizeof text, "sha256:");
        semel__hex(digest, sizeof digest, text + strlen(text));
    }
    return semel__arena_copy(arena, semel__str(text), &msg->id) ? SEMEL_OK : semel__fail_memory(err);
}

static semel_status check_key(struct semel_arena *arena, struct semel__msg *msg, const char *what,
                              struct semel_str *key, struct semel_error *err)
{
    struct semel_error why;
    if (!semel__str_given(*key) || semel__id_check(what, *key, 0, &why) == SEMEL_OK)
        return SEMEL_OK;
    *key = (struct semel_str){0};
    return flaw(arena, msg, SEMEL_DEFECT_FIELD, &why, err);
}

static semel_status check_order(const struct semel_policy *policy, struct semel_arena *arena, struct semel__msg *msg,
                                struct semel_error *err)
{
    struct semel_error why;
    if (policy->order == SEMEL_ORDER_NONE) {
        return SEMEL_OK;
    } else if (policy->order == SEMEL_ORDER_VERSION && !semel__str_given(msg->order_key)) {
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                    "the route goes by versions, and the message has no order key");
    } else if (policy->order == SEMEL_ORDER_VERSION && (msg->version < 0 || msg->version == INT64_MAX)) {
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                    "the route goes by versions, and the message has none; it must be a whole number from 0");
        msg->version = SEMEL_NONE;
    } else {
        return SEMEL_OK;
    }
    return flaw(arena, msg, SEMEL_DEFECT_FIELD, &why, err);
}

static semel_status check_size(const struct semel_policy *policy, struct semel_arena *arena, struct semel__msg *msg,
                               struct semel_error *err)
{
    struct semel_error why;
    size_t max = policy->payload_max;
    if (msg->payload.n > max)
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the payload has %zu bytes; the route allows %zu",
                    msg->payload.n, max);
    else if (msg->headers.n > SEMEL_HEADERS_MAX)
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the headers have %zu bytes; at most %d are allowed",
                    msg->headers.n, SEMEL_HEADERS_MAX);
    else
        return SEMEL_OK;
    if (msg->headers.n > SEMEL_HEADERS_MAX)
        msg->headers = (struct semel_str){0};
    return flaw(arena, msg, SEMEL_DEFECT_SIZE, &why, err);
}

/* Texts that are kept for people only, and are not worth a dead letter. */
static void drop_unfit(struct semel__msg *msg)
{
    if (semel__id_check("type", msg->type, 0, NULL) != SEMEL_OK)
        msg->type = (struct semel_str){0};
    if (semel__id_check("traceparent", msg->traceparent, 0, NULL) != SEMEL_OK)
        msg->traceparent = (struct semel_str){0};
    if (msg->position.n > SEMEL_POSITION_MAX || !semel__utf8_valid(msg->position))
        msg->position = (struct semel_str){0};
    if (!semel__utf8_valid(msg->headers))
        msg->headers = (struct semel_str){0};
    if (msg->n_business > SEMEL_BUSINESS_MAX)
        msg->n_business = SEMEL_BUSINESS_MAX;
}

static semel_status fit(const struct semel_policy *policy, struct semel_arena *arena, const struct semel__msg *given,
                        struct semel__msg *msg, struct semel_error *err)
{
    struct semel_error why;
    *msg = *given;
    drop_unfit(msg);
    if (policy->one_source || !semel__str_given(msg->source))
        msg->source = (struct semel_str){"", 0};
    semel_status status = SEMEL_OK;
    if (semel__id_check("message id", msg->id, 1, &why) != SEMEL_OK ||
        semel__id_check("source", msg->source, 0, &why) != SEMEL_OK) /* an id is one of its source */
        status = flaw(arena, msg, SEMEL_DEFECT_NO_ID, &why, err);
    if (status == SEMEL_OK && msg->defect == SEMEL_DEFECT_NO_ID)
        status = substitute_id(arena, msg, err);
    if (semel__id_check("source", msg->source, 0, NULL) != SEMEL_OK)
        msg->source = (struct semel_str){"", 0};
    if (status == SEMEL_OK)
        status = check_key(arena, msg, "order key", &msg->order_key, err);
    for (size_t i = 0; status == SEMEL_OK && i < msg->n_business; i++)
        status = check_key(arena, msg, "business key", &msg->business[i], err);
    if (status == SEMEL_OK)
        status = check_order(policy, arena, msg, err);
    if (status == SEMEL_OK)
        status = check_size(policy, arena, msg, err);
    return status;
}

/* ---- merge and sort ------------------------------------------------------------------------------ */

static int cmp_size(size_t a, size_t b)
{
    return (a > b) - (a < b);
}

static int cmp_id(const void *va, const void *vb)
{
    const struct item *a = *(struct item *const *)va, *b = *(struct item *const *)vb;
    int c = semel__str_cmp(a->msg->source, b->msg->source);
    if (c == 0)
        c = semel__str_cmp(a->msg->id, b->msg->id);
    return c != 0 ? c : cmp_size(a->place, b->place);
}

/* Those without an order key come first: a lock key that equals an order key must not part the messages of that key. */
static int cmp_items(const struct item *a, const struct item *b)
{
    assert(a != NULL && b != NULL);
    int c = semel__str_cmp(a->msg->order_key, b->msg->order_key);
    if (c == 0 && !semel__str_given(a->msg->order_key))
        c = semel__str_cmp(a->msg->lock_key, b->msg->lock_key);
    return c != 0 ? c : cmp_size(a->place, b->place);
}

static int cmp_run(const void *va, const void *vb)
{
    return cmp_items(*(struct item *const *)va, *(struct item *const *)vb);
}

static bool same_id(const struct item *a, const struct item *b)
{
    return semel__str_eq(a->msg->source, b->msg->source) && semel__str_eq(a->msg->id, b->msg->id);
}

static semel_status merge(struct semel_arena *arena, struct item **items, size_t *n, struct semel_error *err)
{
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        struct item *first = kept > 0 ? items[kept - 1] : NULL;
        if (first == NULL || !same_id(first, items[i])) {
            items[kept++] = items[i];
            continue;
        }
        struct copy *copy = semel__arena_alloc(arena, 1, sizeof *copy);
        if (copy == NULL)
            return semel__fail_memory(err);
        *copy = (struct copy){items[i]->msg, items[i]->out, semel__fp_differs(&first->msg->fp, &items[i]->msg->fp),
                              first->copies};
        if (!semel__str_given(first->msg->payload) && semel__str_given(copy->msg->payload)) {
            copy->msg = first->msg; /* the one that brings the payload stands for all */
            first->msg = items[i]->msg;
        }
        first->copies = copy;
        first->suspect |= items[i]->suspect;
    }
    *n = kept;
    return SEMEL_OK;
}

/* On an ordered route suspicion spreads over the key: its messages must keep their order among each other. */
static void spread_suspicion(const struct semel_policy *policy, struct item **items, size_t n)
{
    for (size_t i = 0, j; policy->order != SEMEL_ORDER_NONE && i < n; i = j) {
        bool suspect = false;
        for (j = i; j < n && semel__str_eq(items[j]->msg->order_key, items[i]->msg->order_key); j++)
            suspect |= items[j]->suspect;
        for (size_t k = i; suspect && semel__str_given(items[i]->msg->order_key) && k < j; k++)
            items[k]->suspect = true;
    }
}

semel_status semel__items_prepare(struct semel_inbox *inbox, struct semel_arena *arena, const struct semel__msg *msgs,
                                  size_t n, struct semel_settled *out, struct item ***ret_items, size_t *ret_n,
                                  struct semel_error *err)
{
    const struct semel_policy *policy = inbox->policy;
    struct item *all = semel__arena_alloc(arena, n, sizeof *all);
    struct semel__msg *fitted = semel__arena_alloc(arena, n, sizeof *fitted);
    struct item **items = semel__arena_alloc(arena, n, sizeof *items);
    if (all == NULL || fitted == NULL || items == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++) {
        semel_status status = fit(policy, arena, &msgs[i], &fitted[i], err);
        if (status != SEMEL_OK)
            return status;
        if (policy->order == SEMEL_ORDER_NONE) {
            if (!semel__str_given(fitted[i].lock_key))
                fitted[i].lock_key = fitted[i].order_key;
            fitted[i].order_key = (struct semel_str){0};
        }
        all[i] = (struct item){.msg = &fitted[i],
                               .place = i,
                               .out = &out[i],
                               .suspect = msgs[i].delivery > 1,
                               .adopt_until_us = SEMEL_NONE};
        items[i] = &all[i];
    }
    semel__sort(items, n, sizeof *items, cmp_id);
    semel_status status = merge(arena, items, &n, err);
    if (status != SEMEL_OK)
        return status;
#ifndef SEMEL_MUTANT_NO_SORT
    semel__sort(items, n, sizeof *items, cmp_run);
#endif
    spread_suspicion(policy, items, n);
    *ret_items = items;
    *ret_n = n;
    return SEMEL_OK;
}
