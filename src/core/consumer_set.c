/* SPDX-License-Identifier: MIT
 *
 * consumer_set.c: a change of settings under stored rows: which one is refused, and why.
 *
 * What it is: a table of the changes that would make stored rows mean something else, each with the rows that count.
 * Everything that is not in it is allowed: a claim keeps its effect, a stored payload stays until its row is final, and
 * rows without a version run by arrival.
 *
 * Invariants: counting, change and audit line are one transaction, and two changes of a consumer wait for each other.
 * Nothing is counted unless the change asks for it, and never more than COUNT_MAX.
 */
#include "core/consumer_set.h"

#include <stdio.h>

#include "base/error.h"
#include "core/transaction.h"

#define COUNT_MAX 10001
#define WHAT_MAX 512

/* A change, from what is stored to what was asked for. */
struct change {
    const struct semel_policy *from, *to;
    bool takes_over; /* a route's file, for a consumer that no file had set */
};

/* ---- what is refused ----------------------------------------------------------------------------------- */

static bool order_lost(const struct change *c)
{
    return c->from->order != SEMEL_ORDER_NONE && c->to->order < c->from->order;
}

static bool versions_lost(const struct change *c)
{
    return c->from->order == SEMEL_ORDER_VERSION && c->to->order != SEMEL_ORDER_VERSION;
}

static bool first_version_raised(const struct change *c)
{
    return c->to->order == SEMEL_ORDER_VERSION && c->to->first_version > c->from->first_version;
}

static bool key_lost(const struct change *c)
{
    return c->from->effect == SEMEL_EFFECT_KEYED && c->to->effect != SEMEL_EFFECT_KEYED;
}

static bool source_dropped(const struct change *c)
{
    return !c->from->one_source && c->to->one_source;
}

static bool source_added(const struct change *c)
{
    return c->from->one_source && !c->to->one_source;
}

/* How many kinds of ids have a time. */
static int timed_kinds(const struct semel_policy *policy)
{
    static const int kinds[] = {
        [SEMEL_TIMED_NONE] = 0, [SEMEL_TIMED_UUID7] = 1, [SEMEL_TIMED_ALL] = 2, [SEMEL_TIMED_ULID] = 2};
    return kinds[policy->timed_ids];
}

static bool time_lost(const struct change *c)
{
    return timed_kinds(c->to) < timed_kinds(c->from);
}

static bool takes_other_effect(const struct change *c)
{
    return c->takes_over && c->from->effect != c->to->effect;
}

static bool takes_other_order(const struct change *c)
{
    return c->takes_over && c->from->order != c->to->order;
}

static bool takes_other_source(const struct change *c)
{
    return c->takes_over && c->from->one_source != c->to->one_source;
}

#define NOT_ITS_OWN "messages of a consumer that no route's file had set", "give the route another name"

static const struct rule {
    const char *member;
    bool (*is)(const struct change *change);
    enum semel_affected rows;
    const char *which, *todo;
} rules[] = {
    {"order", order_lost, SEMEL_AFFECTED_ORDERED, "messages with an order key that wait, failed or run",
     "let them end first"},
    /* An operator may resolve them: under another order that would not move the last version of their key. */
    {"order", versions_lost, SEMEL_AFFECTED_VERSIONED, "messages with a version that are dead or of unknown outcome",
     "resolve, retry or discard them first"},
    {"first_version", first_version_raised, SEMEL_AFFECTED_BELOW,
     "messages below it that wait or failed, of keys without a last version", "let them end first"},
    {"effect", key_lost, SEMEL_AFFECTED_DOUBTED, "messages that may have had their effect and are to be repeated",
     "let them end first"},
    {"one_source", source_dropped, SEMEL_AFFECTED_SOURCED, "records with a source, which would be forgotten",
     "use another consumer, or stop its processes and force it"},
    {"one_source", source_added, SEMEL_AFFECTED_SOURCELESS, "records without a source, which would be forgotten",
     "use another consumer, or stop its processes and force it"},
    {"timed_ids", time_lost, SEMEL_AFFECTED_WATERMARKS,
     "sources of which records were purged, whose copies only the time in their ids tells from new messages",
     "leave it as it is"},
    {"effect", takes_other_effect, SEMEL_AFFECTED_ANY, NOT_ITS_OWN},
    {"order", takes_other_order, SEMEL_AFFECTED_ANY, NOT_ITS_OWN},
    {"one_source", takes_other_source, SEMEL_AFFECTED_ANY, NOT_ITS_OWN},
};

static semel_status refuse(const struct rule *rule, const struct change *change, int64_t n, struct semel_error *err)
{
    char name[41], from[32], to[32];

    semel__str_show(name, sizeof name, change->to->consumer);
    semel__setting_show(change->from, rule->member, from, sizeof from);
    semel__setting_show(change->to, rule->member, to, sizeof to);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "consumer \"%s\": %s cannot go from %s to %s; %s: %s%lld; %s", name, rule->member, from, to,
                       rule->which, n >= COUNT_MAX ? "more than " : "", (long long)(n >= COUNT_MAX ? n - 1 : n),
                       rule->todo);
}

/* The first line of the table that has rows; *ret_n is how many. */
static semel_status judge(struct semel_store *store, const struct change *change, const struct rule **ret,
                          int64_t *ret_n, struct semel_error *err)
{
    semel_status status = SEMEL_OK;

    *ret = NULL;
    for (size_t i = 0; status == SEMEL_OK && *ret == NULL && i < sizeof rules / sizeof rules[0]; i++) {
        int64_t n = 0;
        if (!rules[i].is(change))
            continue;
        status = semel_store_affected(store, change->to->consumer, rules[i].rows, change->to->first_version, COUNT_MAX,
                                      &n, err);
        if (status == SEMEL_OK && n > 0) {
            *ret = &rules[i];
            *ret_n = n;
        }
    }
    return status;
}

static semel_status refuse_marked(struct semel_str consumer, const struct semel_set_by *by, struct semel_error *err)
{
    char name[41], file[97], host[65];

    semel__str_show(name, sizeof name, consumer);
    semel__str_show(file, sizeof file, by->file);
    semel__str_show(host, sizeof host, by->host);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "consumer \"%s\" is set by the file %s on %s: change it there", name, file, host);
}

bool semel__policy_same(const struct semel_policy *a, const struct semel_policy *b)
{
    return a->order == b->order && a->effect == b->effect && a->one_source == b->one_source &&
           a->first_version == b->first_version;
}

/* ---- the change ---------------------------------------------------------------------------------------- */

/* One change on its way. */
struct setting {
    struct semel_store *store;
    const struct semel_setter *by;
    struct semel_consumer stored;
    struct semel_said from, to;
    int64_t now_us;
    int64_t past; /* rows that force went past */
    bool damaged; /* what was stored could not be read: it is mended */
    struct semel_setting *ret;
};

static bool is_file(const struct setting *s)
{
    return semel__str_given(s->by->file);
}

static semel_status read_both(struct setting *s, struct semel_str consumer, struct semel_str settings,
                              struct semel_error *err)
{
    semel_status status = semel__said_read(consumer, s->stored.settings, &s->from, err);
    s->damaged = status == SEMEL_INVALID;
    if (s->damaged)
        semel__said_known(consumer, s->stored.settings, &s->from);
    else if (status != SEMEL_OK)
        return status;
    if (is_file(s))
        return semel__said_read(consumer, settings, &s->to, err);
    return semel__said_merge(consumer, s->stored.settings, settings, &s->to, err);
}

static semel_status allow(struct setting *s, struct semel_error *err)
{
    const struct change change = {&s->from.policy, &s->to.policy, is_file(s) && !semel__str_given(s->stored.by.file)};
    const struct rule *rule;
    int64_t n = 0;

    if (semel__str_given(s->stored.by.file) && !is_file(s) && !s->by->force) {
        s->ret->refused = true;
        return refuse_marked(s->to.policy.consumer, &s->stored.by, err);
    }
    semel_status status = judge(s->store, &change, &rule, &n, err);
    if (status != SEMEL_OK || rule == NULL)
        return status;
    s->past = n;
    s->ret->refused = !s->by->force;
    return s->by->force ? SEMEL_OK : refuse(rule, &change, n, err);
}

static semel_status hint(struct setting *s, struct semel_error *err)
{
    const struct semel_policy *from = &s->from.policy, *to = &s->to.policy;
    int64_t n = 0;

    if (to->order != SEMEL_ORDER_VERSION || to->first_version == SEMEL_FIRST_VERSION_ANY ||
        (from->order == SEMEL_ORDER_VERSION && from->first_version == to->first_version))
        return SEMEL_OK;
    semel_status status = semel_store_affected(s->store, to->consumer, SEMEL_AFFECTED_KEYS, SEMEL_NONE, 1, &n, err);
    if (status == SEMEL_OK && n > 0)
        s->ret->hint = "order keys exist already: is first_version \"any\" right for them?";
    return status;
}

static semel_status audit(const struct setting *s, struct semel_error *err)
{
    char what[WHAT_MAX], past[64] = "";
    struct semel_audit line = {.consumer = s->to.policy.consumer,
                               .who = s->by->who,
                               .forced = s->by->force,
                               .reason = semel__str_given(s->by->reason) ? s->by->reason : SEMEL_STR("")};

    if (s->past > 0)
        snprintf(past, sizeof past, ", forced past %lld", (long long)s->past);
    else if (s->by->force)
        snprintf(past, sizeof past, ", forced");
    snprintf(what, sizeof what, "set %.*s%s", WHAT_MAX - 80, s->ret->change.p, past);
    line.what = semel__str(what);
    return semel_store_audit(s->store, &line, s->now_us, err);
}

static semel_status put(const struct setting *s, struct semel_error *err)
{
    struct semel_buf buf;

    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    semel__said_write(&s->to, &buf);
    semel_status status = buf.failed ? semel__fail_memory(err)
                                     : semel_store_consumer_put(s->store, s->to.policy.consumer, semel__buf_str(&buf),
                                                                s->now_us, err);
    semel__buf_done(&buf);
    return status;
}

static semel_status store_all(const struct setting *s, struct semel_error *err)
{
    const struct semel_set_by none = {.at_us = SEMEL_NONE}, mark = {s->by->host, s->by->file, s->now_us};
    const bool unmark = s->by->force && semel__str_given(s->stored.by.file);
    semel_status status = SEMEL_OK;

    if (s->ret->changed || unmark) /* first: a store may write both at once */
        status = audit(s, err);
    if (status == SEMEL_OK && (s->ret->changed || !semel__str_given(s->stored.settings)))
        status = put(s, err);
    if (status == SEMEL_OK && (is_file(s) || unmark))
        status = semel_store_consumer_mark(s->store, s->to.policy.consumer, is_file(s) ? &mark : &none, err);
    return status;
}

static semel_status write_change(struct setting *s, struct semel_arena *arena, struct semel_error *err)
{
    struct semel_buf buf;

    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    s->ret->changed = semel__said_diff(&s->from, &s->to, &buf) || s->damaged;
    semel__buf_add(&buf, "", 1);
    bool ok = !buf.failed && semel__arena_copy(arena, semel__buf_str(&buf), &s->ret->change);
    semel__buf_done(&buf);
    if (ok)
        s->ret->change.n--;
    return ok ? SEMEL_OK : semel__fail_memory(err);
}

semel_status semel__consumer_set(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                 const struct semel_setter *by, int64_t now_us, struct semel_arena *arena,
                                 struct semel_setting *ret, struct semel_error *err)
{
    struct setting s = {.store = store, .by = by, .now_us = now_us, .ret = ret};

    *ret = (struct semel_setting){.change = SEMEL_STR("{}"), .by.at_us = SEMEL_NONE};
    semel_status status = semel_store_consumer_read(store, consumer, true, arena, &s.stored, err);
    if (status == SEMEL_OK) {
        ret->by = s.stored.by;
        status = read_both(&s, consumer, settings, err);
    }
    if (status == SEMEL_OK)
        status = write_change(&s, arena, err);
    if (status == SEMEL_OK) {
        ret->policy = s.to.policy;
        status = ret->changed ? allow(&s, err) : SEMEL_OK;
    }
    if (status == SEMEL_OK && ret->changed)
        status = hint(&s, err);
    return status == SEMEL_OK ? store_all(&s, err) : status;
}

/* A change in a transaction of its own. */
struct changing {
    struct semel_store *store;
    struct semel_str consumer, settings;
    const struct semel_setter *by;
    struct semel_arena *arena;
    struct semel_setting *ret;
};

static semel_status change_settings(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    const struct changing *c = ctx;
    (void)undo;
    return semel__consumer_set(c->store, c->consumer, c->settings, c->by, now_us, c->arena, c->ret, err);
}

semel_status semel__consumer_change(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                    const struct semel_setter *by, struct semel_arena *arena, struct semel_setting *ret,
                                    struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = change_settings};
    struct changing changing = {store, consumer, settings, by, arena, ret};

    *ret = (struct semel_setting){0};
    return semel__transaction_run(store, &tx, &changing, err);
}
