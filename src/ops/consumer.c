/* SPDX-License-Identifier: MIT
 *
 * consumer.c: what consumers promise and allow. The settings themselves, their checks and their texts are
 * core/consumer.h's; nothing here knows one by its name.
 */
#include "base/error.h"
#include "ops/ops.h"

#define PAGE 500

struct semel_guarantee_text semel__ops_guarantee(const struct semel_policy *policy)
{
    return semel__policy_guarantee(policy, semel__policy_lasting(policy));
}

/* The same JSON on one line: inside of its strings there are no blanks but the blank itself. */
static bool one_line(struct semel_arena *arena, struct semel_str json, struct semel_str *ret)
{
    char *copy = semel__arena_alloc(arena, json.n + 1, 1);
    size_t n = json.n, first = 0;
    if (copy == NULL)
        return false;
    for (size_t i = 0; i < n; i++)
        copy[i] = json.p[i] == '\n' || json.p[i] == '\r' || json.p[i] == '\t' ? ' ' : json.p[i];
    while (n > 0 && copy[n - 1] == ' ')
        n--;
    while (first < n && copy[first] == ' ')
        first++;
    *ret = (struct semel_str){copy + first, n - first};
    return true;
}

/* The stored settings, without the defaults, which are the same for all consumers. */
semel_status semel__ops_consumer_line(struct semel_ops *ops, struct semel_str name, struct semel_consumer_line *ret,
                                      struct semel_error *err)
{
    struct semel_policy policy;
    struct semel_str settings = {0};
    semel_status status = semel_store_consumer_get(ops->store, name, ops->arena, &settings, err);
    if (status != SEMEL_OK)
        return status;
    bool readable = semel__policy_read(name, settings, &policy, NULL, err) == SEMEL_OK;
    *ret = (struct semel_consumer_line){.name = name,
                                        .guarantee = readable ? semel__ops_guarantee(&policy)
                                                              : (struct semel_guarantee_text){"DAMAGED"},
                                        .settings = semel__str_given(settings) ? settings : SEMEL_STR("{}")};
    return one_line(ops->arena, ret->settings, &ret->settings) ? SEMEL_OK : semel__fail_memory(err);
}

/* At most PAGE names a call of the store. */
static semel_status read_page(struct semel_ops *ops, struct semel_str after, size_t max,
                              struct semel_consumer_line *ret, size_t *ret_n, struct semel_error *err)
{
    struct semel_str *names = NULL;
    semel_status status = semel_store_consumers(ops->store, after, max, ops->arena, &names, ret_n, err);
    for (size_t i = 0; status == SEMEL_OK && i < *ret_n; i++)
        status = semel__ops_consumer_line(ops, names[i], &ret[i], err);
    return status;
}

semel_status semel__ops_consumers(struct semel_ops *ops, struct semel_str after, size_t max,
                                  struct semel_consumer_line **ret, size_t *ret_n, struct semel_error *err)
{
    size_t room = 0, n = PAGE;
    struct semel_consumer_line *lines = NULL;
    semel_status status = SEMEL_OK;
    *ret_n = 0;
    while (status == SEMEL_OK && n == PAGE && *ret_n < max) {
        size_t wanted = max - *ret_n < PAGE ? max - *ret_n : PAGE;
        if (*ret_n + wanted > room) {
            struct semel_consumer_line *more = semel__arena_alloc(ops->arena, room = 2 * (*ret_n + wanted),
                                                                  sizeof *more);
            if (more == NULL)
                return semel__fail_memory(err);
            if (*ret_n > 0)
                memcpy(more, lines, *ret_n * sizeof *more);
            lines = more;
        }
        status = read_page(ops, after, wanted, lines + *ret_n, &n, err);
        if (status == SEMEL_OK && n > 0)
            after = lines[*ret_n + n - 1].name;
        *ret_n += status == SEMEL_OK ? n : 0;
    }
    *ret = lines;
    return status;
}

/* A consumer is known by its settings or by its messages. */
semel_status semel__ops_consumer(struct semel_ops *ops, struct semel_str name, struct semel_consumer_shown *ret,
                                 bool *ret_known, struct semel_error *err)
{
    struct semel_consumer stored = {0};
    struct semel_count *counts = NULL;
    size_t n = 0;
    semel_status status = semel_store_consumer_read(ops->store, name, false, ops->arena, &stored, err);
    if (status == SEMEL_OK && !semel__str_given(stored.settings))
        status = semel_query_counts(ops->store, name, 1, 1, ops->arena, &counts, &n, err);
    *ret_known = semel__str_given(stored.settings) || n > 0;
    if (status == SEMEL_OK && *ret_known)
        status = semel__consumer_use(name, stored.settings, &ret->policy, NULL, err);
    ret->by = stored.by;
    return status;
}

semel_status semel__ops_consumer_set(struct semel_ops *ops, struct semel_str name, struct semel_str settings,
                                     struct semel_str reason, bool force, struct semel_setting *ret,
                                     struct semel_error *err)
{
    const struct semel_setter by = {.who = ops->who, .reason = reason, .force = force};
    *ret = (struct semel_setting){0};
    if (force && reason.n == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_REJECTED, "a reason is required (goes to the audit log)");
    semel_status status = semel__ops_check(&(struct semel_instruction){.reason = reason.n > 0 ? reason
                                                                                              : (struct semel_str){0}},
                                           true, err);
    if (status != SEMEL_OK)
        return status;
    return semel__consumer_change(ops->store, name, settings, &by, ops->arena, ret, err);
}
