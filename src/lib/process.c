/* SPDX-License-Identifier: MIT
 *
 * process.c: the batch path and stored work, in transactions of our own, with the caller's handler called inside them.
 *
 * Invariants: while a handler runs the handle refuses everything but semel_outbox_put and semel_native; anything that
 * a handler returns becomes a status with a class, and nothing that it returns can crash us.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/str.h"
#include "lib/handle.h"

struct semel_reply {
    struct semel__reply *inner;
};

struct semel_named {
    struct semel_set *set;
};

struct run {
    struct semel *s;
    semel_handler each;
    semel_set_handler set;
    void *ctx;
};

/* ---- the result of a handler --------------------------------------------------------------------- */

semel_status semel_reply_set(struct semel_reply *reply, enum semel_result result, struct semel_str reason,
                             struct semel_str outcome)
{
    struct semel_str text;
    if (reply == NULL || semel__check_result(result, true, NULL) != SEMEL_OK ||
        semel__check_str("reason", reason, NULL) != SEMEL_OK)
        return SEMEL_INVALID;
    semel_status status = semel__check_json("outcome", outcome, SEMEL_OUTCOME_MAX, false, NULL);
    if (status != SEMEL_OK)
        return status;
    if (!semel__clean_text(reply->inner->arena, reason, &text) ||
        !semel__reply_set(reply->inner, result, text, outcome))
        return SEMEL_RETRY;
    return SEMEL_OK;
}

void semel_named_add(struct semel_named *named, struct semel_str source, struct semel_str id)
{
    if (named != NULL)
        semel__set_add(named->set, semel__str_given(source) ? source : SEMEL_STR(""), id);
}

/* A status without a class: environment failures do not count for the message, INVALID does. */
static semel_status judged(semel_status status, struct semel_error *err)
{
    enum semel_class cls = SEMEL_CLASS_ENVIRONMENT;
    switch (status) {
    case SEMEL_OK:
        return SEMEL_OK;
    case SEMEL_INVALID:
        cls = SEMEL_CLASS_TRANSIENT;
        break;
    case SEMEL_RETRY:
    case SEMEL_FENCED:
    case SEMEL_UNKNOWN:
    case SEMEL_CLOSED:
        break;
    default:
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the handler returned %d, which is no status",
                           (int)status);
    }
    err->status = status;
    err->text[sizeof err->text - 1] = '\0';
    if (err->cls == SEMEL_CLASS_NONE)
        err->cls = cls;
    if (err->text[0] == '\0')
        snprintf(err->text, sizeof err->text, "the handler failed without an error text");
    return status;
}

/* ---- between core and the handler ---------------------------------------------------------------- */

static semel_status run_each(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                             struct semel__reply *reply, struct semel_error *err)
{
    struct run *run = ctx;
    struct semel_reply outer = {reply};
    struct semel_msg shown;
    (void)store;
    semel__show_msg(run->s, msg, &shown);
    semel__error_clear(err);
    run->s->inside = true;
    semel_status status = run->each(run->ctx, run->s, &shown, attempt, &outer, err);
    run->s->inside = false;
    return judged(status, err);
}

static semel_status run_set(void *ctx, struct semel_store *store, const struct semel__msg *const *msgs, size_t n,
                            struct semel_set *set, struct semel_error *err)
{
    struct run *run = ctx;
    struct semel_named named = {set};
    (void)store;
    semel__arena_reset(&run->s->sheet);
    struct semel_msg *shown = semel__arena_room(&run->s->sheet, n, sizeof *shown);
    if (shown == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        semel__show_msg(run->s, msgs[i], &shown[i]);
    semel__error_clear(err);
    run->s->inside = true;
    semel_status status = run->set(run->ctx, run->s, shown, n, &named, err);
    run->s->inside = false;
    return judged(status, err);
}

static void use_handler(struct semel *s, struct run *run)
{
    s->handler = (struct semel__handler){.ctx = run, .each = run_each, .set = run->set != NULL ? run_set : NULL};
}

/* ---- a batch ------------------------------------------------------------------------------------- */

/* The caller may have been compiled with a later, longer struct: the size in the first one is the stride. */
static const struct semel_msg *msg_at(const struct semel_msg *msgs, size_t i)
{
    return (const struct semel_msg *)(const void *)((const char *)msgs + i * msgs[0].size);
}

static semel_status at_place(size_t i, semel_status status, struct semel_error *err)
{
    char text[sizeof err->text];
    if (status == SEMEL_OK || err == NULL)
        return status;
    snprintf(text, sizeof text, "%s", err->text);
    return semel__fail(err, status, err->cls, "msgs[%zu]: %s", i, text);
}

static semel_status check_same(const struct semel_msg *first, const struct semel_msg *msg, struct semel_error *err)
{
    if (msg->size != first->size)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "size is %zu, that of the first is %zu", msg->size,
                           first->size);
    if (msg != first && msg->consumer.p == first->consumer.p && msg->consumer.n == first->consumer.n)
        return SEMEL_OK; /* the first was checked */
    semel_status status = semel__check_consumer(msg, err);
    if (status == SEMEL_OK && !semel__str_eq(msg->consumer, first->consumer))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "another consumer than the first one's: a batch has one consumer");
    return status;
}

static semel_status parse_batch(struct semel *s, const struct semel_msg *msgs, size_t n, struct semel__msg *ret,
                                struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        const struct semel_msg *msg = msg_at(msgs, i);
        status = check_same(msgs, msg, err);
        if (status == SEMEL_OK)
            status = semel__parse_msg(s, msg, false, &ret[i], err);
        if (status == SEMEL_OK)
            status = semel__use_order(s, &ret[i], err);
        status = at_place(i, status, err);
    }
    return status;
}

/* The fields depend on the settings: if other settings were assumed, reads the fields again. */
static semel_status prepare(struct run *run, const struct semel_msg *msgs, size_t n, struct semel__msg *all,
                            struct semel_error *err)
{
    struct semel *s = run->s;
    bool assumed, same = false;
    semel_status status = semel__check_consumer(msgs, err);
    if (status == SEMEL_OK)
        status = semel__use_consumer_early(s, msgs[0].consumer, &assumed, err);
    if (status != SEMEL_OK)
        return at_place(0, status, err);
    status = parse_batch(s, msgs, n, all, err);
    if (assumed && (status == SEMEL_OK || status == SEMEL_INVALID)) {
        struct semel_error why;
        semel_status known = semel__consumer_same(s, &same, &why);
        if (known != SEMEL_OK) {
            *err = why;
            return known;
        }
        if (!same)
            status = parse_batch(s, msgs, n, all, err);
    }
    if (status == SEMEL_OK && run->set != NULL && s->policy.effect != SEMEL_EFFECT_ATOMIC)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "a set-based handler needs a consumer whose effect is atomic");
    return status;
}

static semel_status process(struct run *run, const struct semel_msg *msgs, size_t n, struct semel_verdict *ret,
                            struct semel_error *err)
{
    struct semel *s = run->s;
    struct semel__msg *all = semel__arena_room(&s->arena, n, sizeof *all);
    struct semel_settled *settled = semel__arena_alloc(&s->arena, n, sizeof *settled);
    if (all == NULL || settled == NULL)
        return semel__fail_memory(err);
    semel_status status = prepare(run, msgs, n, all, err);
    if (status == SEMEL_OK) {
        use_handler(s, run);
        status = semel__inbox_process(&s->inbox, all, n, settled, err);
        for (size_t i = 0; i < n; i++)
            semel__show_settled(&settled[i], &ret[i]);
    }
    semel_store_begin_early(s->store, (struct semel_str){0}); /* if it was not needed after all */
    return status;
}

static semel_status run_batch(struct run *run, const struct semel_msg *msgs, size_t n, struct semel_verdict *ret,
                              struct semel_error *err)
{
    static const struct semel_settled undecided = {.act = SEMEL_LATER, .due_us = SEMEL_NONE};
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    for (size_t i = 0; ret != NULL && n <= SEMEL_PROCESS_MAX && i < n; i++)
        semel__show_settled(&undecided, &ret[i]);
    semel_status status = semel__enter(run->s, SEMEL_WHOSE_OURS, err);
    if (status != SEMEL_OK)
        return status;
    if (n > SEMEL_PROCESS_MAX)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "n is %zu; at most %d messages are a batch", n,
                             SEMEL_PROCESS_MAX);
    else if (run->each == NULL && run->set == NULL)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "handler is NULL");
    else if (n > 0 && (msgs == NULL || ret == NULL))
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s is NULL", msgs == NULL ? "msgs" : "ret");
    else if (n > 0)
        status = process(run, msgs, n, ret, err);
    return semel__leave(run->s, status, err);
}

semel_status semel_inbox_process(struct semel *s, const struct semel_msg *msgs, size_t n, semel_handler handler,
                                 void *ctx, struct semel_verdict *ret, struct semel_error *err)
{
    struct run run = {.s = s, .each = handler, .ctx = ctx};
    return run_batch(&run, msgs, n, ret, err);
}

semel_status semel_inbox_process_set(struct semel *s, const struct semel_msg *msgs, size_t n, semel_set_handler handler,
                                     void *ctx, struct semel_verdict *ret, struct semel_error *err)
{
    struct run run = {.s = s, .set = handler, .ctx = ctx};
    return run_batch(&run, msgs, n, ret, err);
}

/* ---- stored work --------------------------------------------------------------------------------- */

semel_status semel_inbox_work(struct semel *s, const char *consumer, size_t max, semel_handler handler, void *ctx,
                              size_t *ret_n, struct semel_error *err)
{
    struct run run = {.s = s, .each = handler, .ctx = ctx};
    size_t n = 0;
    semel_status status = semel__enter(s, SEMEL_WHOSE_OURS, err);
    if (status != SEMEL_OK)
        return status;
    if (handler == NULL)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "handler is NULL");
    else if (max < 1 || max > SEMEL_PROCESS_MAX)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "max is %zu; it must be 1 to %d", max,
                             SEMEL_PROCESS_MAX);
    else
        status = semel__use_consumer(s, semel__str(consumer), err);
    if (status == SEMEL_OK) {
        use_handler(s, &run);
        status = semel__inbox_work(&s->inbox, max, &n, err);
    }
    status = semel__leave(s, status, err);
    if (status == SEMEL_OK && ret_n != NULL)
        *ret_n = n;
    return status;
}
