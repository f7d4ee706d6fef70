/* SPDX-License-Identifier: MIT
 *
 * find.c: the options that operators choose by, lists and groups of messages, and everything that is known of one.
 *
 * Invariants: every query is bounded. An option that would match nothing by mistake (a status or a class that is none)
 * is refused, and the refusal says what would be right. A page is named by the arrival of its last row, so that paging
 * skips nothing and repeats nothing while new messages come.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/consumer.h"
#include "core/verdict.h"
#include "ops/private.h"

#define HISTORY_MAX 100
#define PLACES_MAX 100 /* consumers, and sources of each, whose watermark is asked for */

/* ---- the handle ---------------------------------------------------------------------------------- */

semel_status semel__ops_init(struct semel_ops *ops, struct semel_store *store, struct semel_arena *arena,
                             struct semel_str who, struct semel_error *err)
{
    *ops = (struct semel_ops){.store = store, .arena = arena, .who = who};
    semel__arena_init(&ops->kept, (size_t)64 << 20);
    return semel__random_seed_os(&ops->rng)
               ? SEMEL_OK
               : semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the system gives no random numbers");
}

void semel__ops_done(struct semel_ops *ops)
{
    if (ops->ready)
        semel__inbox_done(&ops->inbox);
    semel__arena_done(&ops->kept);
}

/* ---- options ------------------------------------------------------------------------------------- */

static semel_status add_states(const struct semel_option *o, unsigned *states, struct semel_error *err)
{
    struct semel_str name;
    for (size_t from = 0; semel__option_piece(o->value, &from, &name);) {
        enum semel_row_status state;
        if (!semel__row_status_parse(name, &state) || state == SEMEL_ROW_ABSENT)
            return semel__option_wrong(
                err, &(struct semel_option){o->name, name},
                "it must be one of processing, completed, failed, waiting, rejected, unknown, dead, stale, "
                "prevented, quarantined, or several with commas between");
        *states |= 1u << (unsigned)state;
    }
    return SEMEL_OK;
}

static semel_status read_class(const struct semel_option *o, struct semel_str *ret, struct semel_error *err)
{
    enum semel_class cls;
    struct semel_buf names;
    *ret = o->value;
    if (semel__class_parse(o->value, &cls))
        return SEMEL_OK;
    semel__buf_init(&names, 1000);
    for (cls = SEMEL_CLASS_TRANSIENT; cls <= SEMEL_CLASS_DISCARDED; cls++)
        semel__buf_addf(&names, "%s%s", names.n > 0 ? ", " : "", semel__class_name(cls));
    semel_status status = semel__option_wrong(err, o, "it must be one of %.*s", (int)names.n,
                                              names.p != NULL ? names.p : "");
    semel__buf_done(&names);
    return status;
}

/* The place of a text; NULL: the option is none. */
static struct semel_str *text_of(struct semel_filter *filter, struct semel_str name)
{
    const struct {
        const char *name;
        struct semel_str *at;
    } texts[] = {{"consumer", &filter->consumer},
                 {"source", &filter->source},
                 {"type", &filter->type},
                 {"key", &filter->order_key},
                 {"error", &filter->error_text}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (semel__str_eqz(name, texts[i].name))
            return texts[i].at;
    return NULL;
}

static semel_status read_option(const struct semel_option *o, int64_t now_us, bool pages, struct semel_query *q,
                                struct semel_error *err)
{
    struct semel_filter *filter = &q->filter;
    struct semel_str *text = text_of(filter, o->name);
    int64_t number = 0;
    bool dead = false;
    char name[64];
    if (text != NULL) {
        *text = o->value;
        return SEMEL_OK;
    }
    if (semel__str_eqz(o->name, "status"))
        return add_states(o, &filter->states, err);
    if (semel__str_eqz(o->name, "class"))
        return read_class(o, &filter->error_class, err);
    if (semel__str_eqz(o->name, "older"))
        return semel__option_ago(o, now_us, &filter->received_before_us, err);
    if (semel__str_eqz(o->name, "newer"))
        return semel__option_ago(o, now_us, &filter->received_after_us, err);
    if (semel__str_eqz(o->name, "dead")) {
        semel_status status = semel__option_flag(o, &dead, err);
        filter->states |= dead ? 1u << (unsigned)SEMEL_ROW_DEAD : 0;
        return status;
    }
    if (pages && semel__str_eqz(o->name, "limit"))
        return semel__option_limit(o, &q->limit, err);
    if (pages && semel__str_eqz(o->name, "after")) {
        semel_status status = semel__option_number(o, 0, INT64_MAX, &number, err);
        q->after = number > 0 ? number : SEMEL_NONE;
        return status;
    }
    semel__str_show(name, sizeof name, o->name);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                       "%s is no option here; there are consumer, source, status, dead, type, key, error, class, older "
                       "and newer%s",
                       name, pages ? ", limit and after" : "");
}

static semel_status read_options(const struct semel_option *options, size_t n, int64_t now_us, bool pages,
                                 struct semel_query *ret, struct semel_error *err)
{
    *ret = (struct semel_query){
        .filter = {.received_before_us = SEMEL_NONE, .received_after_us = SEMEL_NONE},
        .limit = SEMEL_LIST_LIMIT,
        .after = SEMEL_NONE,
    };
    semel_status status = semel__option_repeats(options, n, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = read_option(&options[i], now_us, pages, ret, err);
    return status;
}

semel_status semel__ops_filter(const struct semel_option *options, size_t n, int64_t now_us, struct semel_filter *ret,
                               struct semel_error *err)
{
    struct semel_query query;
    semel_status status = read_options(options, n, now_us, false, &query, err);
    *ret = query.filter;
    return status;
}

semel_status semel__ops_query(const struct semel_option *options, size_t n, int64_t now_us, struct semel_query *ret,
                              struct semel_error *err)
{
    return read_options(options, n, now_us, true, ret, err);
}

/* ---- many messages ------------------------------------------------------------------------------- */

semel_status semel__ops_list(struct semel_ops *ops, const struct semel_query *query, struct semel_list *ret,
                             struct semel_error *err)
{
    *ret = (struct semel_list){0};
    semel_status status = semel_query_list(ops->store, &query->filter, query->after, query->limit + 1, false,
                                           ops->arena, &ret->rows, &ret->n, &ret->damaged, err);
    ret->more = ret->n > query->limit;
    ret->n = ret->more ? query->limit : ret->n;
    return status;
}

semel_status semel__ops_groups(struct semel_ops *ops, const struct semel_query *query, struct semel_groups *ret,
                               struct semel_error *err)
{
    *ret = (struct semel_groups){0};
    if (query->after != SEMEL_NONE)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "after is for lists: groups have no pages; take a larger limit");
    return semel_query_groups(ops->store, &query->filter, SEMEL_GROUPED_MAX, query->limit, ops->arena, &ret->groups,
                              &ret->n, &ret->capped, err);
}

/* ---- one message --------------------------------------------------------------------------------- */

semel_status semel__ops_find(struct semel_ops *ops, struct semel_str consumer, struct semel_str source,
                             struct semel_str id, bool with_payload, struct semel_find *ret, struct semel_error *err)
{
    struct semel_filter filter = {.consumer = consumer,
                                  .source = source,
                                  .id = id,
                                  .received_before_us = SEMEL_NONE,
                                  .received_after_us = SEMEL_NONE};
    size_t damaged = 0;
    *ret = (struct semel_find){.found = SEMEL_FOUND_NONE};
    semel_status status = semel__id_check("the message id", id, 1, err);
    if (status == SEMEL_OK)
        status = semel_query_list(ops->store, &filter, SEMEL_NONE, SEMEL_HOMONYMS_MAX, with_payload, ops->arena,
                                  &ret->rows, &ret->n, &damaged, err);
    if (status == SEMEL_OK && ret->n > 0)
        ret->found = ret->n > 1 ? SEMEL_FOUND_SEVERAL : SEMEL_FOUND;
    else if (damaged > 0)
        ret->found = SEMEL_FOUND_DAMAGED;
    return status;
}

/* Does the id carry a time before the watermark of this place? Then it may have been here, and was purged. */
static bool report_purged(struct semel_ops *ops, struct semel_str id, struct semel_str consumer,
                          struct semel_str source, int64_t made_us, struct semel_buf *text)
{
    struct semel_row row = {.consumer = consumer, .source = source, .id = id, .version = SEMEL_NONE};
    struct semel_history history;
    char made[SEMEL_TIME_TEXT], mark[SEMEL_TIME_TEXT];
    if (semel_query_history(ops->store, &row, false, 1, ops->arena, &history, NULL) != SEMEL_OK ||
        history.watermark_us == SEMEL_NONE || made_us >= history.watermark_us)
        return false;
    semel__time_format(made_us, made);
    semel__time_format(history.watermark_us, mark);
    made[strcspn(made, ".")] = mark[strcspn(mark, ".")] = '\0';
    semel__buf_addf(text, "its id was made at %sZ; what consumer ", made);
    semel__put_shown(text, consumer);
    semel__buf_addz(text, " had finished of source '");
    semel__put_shown(text, source);
    semel__buf_addf(text, "' from before %sZ has been purged, so it may have been there", mark);
    return true;
}

static bool purged_from(struct semel_ops *ops, struct semel_str id, struct semel_str consumer, struct semel_str only,
                        struct semel_buf *text)
{
    struct semel__msg msg;
    struct semel_policy policy;
    struct semel_str *sources;
    size_t n;
    semel__msg_init(&msg);
    msg.id = id;
    if (semel__consumer_load(ops->store, consumer, ops->arena, &policy, NULL, NULL) != SEMEL_OK)
        return false;
    const int64_t made_us = semel__msg_time(&policy, &msg, semel__now(&semel__clock_real));
    if (made_us == SEMEL_NONE || semel_store_sources(ops->store, consumer, ops->arena, &sources, &n, NULL) != SEMEL_OK)
        return false;
    for (size_t i = 0; i < n && i < PLACES_MAX; i++)
        if ((!semel__str_given(only) || semel__str_eq(only, sources[i])) &&
            report_purged(ops, id, consumer, sources[i], made_us, text))
            return true;
    return false;
}

bool semel__ops_purged(struct semel_ops *ops, struct semel_str consumer, struct semel_str source, struct semel_str id,
                       struct semel_buf *text)
{
    struct semel_str *consumers = &consumer;
    size_t n = 1;
    if (!semel__str_given(consumer) && semel_store_consumers(ops->store, (struct semel_str){0}, PLACES_MAX, ops->arena,
                                                             &consumers, &n, NULL) != SEMEL_OK)
        return false;
    for (size_t i = 0; i < n; i++)
        if (purged_from(ops, id, consumers[i], source, text))
            return true;
    return false;
}

/* Reads the row under its whole name, and reports the damage that this finds. */
void semel__ops_damage(struct semel_ops *ops, struct semel_str consumer, struct semel_str source, struct semel_str id,
                       struct semel_buf *why, struct semel_buf *next)
{
    struct semel_fetched found = {.source = semel__str_given(source) ? source : SEMEL_STR(""), .id = id};
    struct semel_fetch_batch batch = {.consumer = consumer, .items = &found, .n_items = 1};
    int64_t now_us;
    if (semel_store_begin(ops->store, SEMEL_TX_OWN, &now_us, NULL) == SEMEL_OK) {
        (void)semel_store_fetch(ops->store, &batch, ops->arena, NULL);
        semel_store_rollback(ops->store);
    }
    semel__explain_damaged(semel__str(found.damaged ? found.damage.text : "add its --source to see why"), why, next);
}

/* The unfinished messages of its order key. */
static semel_status read_key(struct semel_ops *ops, const struct semel_row *row, struct semel_ops_facts *facts,
                             struct semel_error *err)
{
    struct semel_scan scan = {.kind = SEMEL_SCAN_KEY,
                              .consumer = row->consumer,
                              .now_us = facts->now_us,
                              .token = SEMEL_NONE,
                              .after_arrival = SEMEL_NONE,
                              .order_key = row->order_key,
                              .by_version = facts->policy->order == SEMEL_ORDER_VERSION,
                              .max = SEMEL_EXPLAIN_KEY_MAX};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged;
    semel_status status = semel_store_scan(ops->store, &scan, ops->arena, &rows, &n, &damaged, err);
    semel__facts_key(facts, rows, n, n == SEMEL_EXPLAIN_KEY_MAX);
    return status;
}

semel_status semel__ops_facts(struct semel_ops *ops, const struct semel_row *row, struct semel_ops_facts *ret,
                              struct semel_error *err)
{
    struct semel_history *history = semel__arena_alloc(ops->arena, 1, sizeof *history);
    struct semel_policy *policy = semel__arena_alloc(ops->arena, 1, sizeof *policy);
    struct semel_consumer stored = {0};
    bool said = false;
    if (history == NULL || policy == NULL)
        return semel__fail_memory(err);
    semel_status status = semel_store_consumer_read(ops->store, row->consumer, false, ops->arena, &stored, err);
    if (status == SEMEL_OK)
        status = semel__consumer_use(row->consumer, stored.settings, policy, &said, err);
    if (status == SEMEL_OK && !said && semel__str_given(row->order_key)) /* as the first message of a key settles it */
        policy->order = row->version != SEMEL_NONE ? SEMEL_ORDER_VERSION : SEMEL_ORDER_ARRIVAL;
    if (status == SEMEL_OK)
        status = semel_query_history(ops->store, row, policy->order == SEMEL_ORDER_VERSION, HISTORY_MAX, ops->arena,
                                     history, err);
    *ret = (struct semel_ops_facts){.row = row,
                                    .policy = policy,
                                    .history = history,
                                    .now_us = semel__now(&semel__clock_real),
                                    .by_file = semel__str_given(stored.by.file),
                                    .store = ops->store_option};
    if (status == SEMEL_OK && semel__str_given(row->order_key) && policy->order != SEMEL_ORDER_NONE)
        status = read_key(ops, row, ret, err);
    return status;
}
