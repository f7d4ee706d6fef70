/* SPDX-License-Identifier: MIT
 *
 * route.c: a route with the handler `sql` on a real database. The contract stands in route.h.
 */
#define _GNU_SOURCE /* memmem */
#include "handler/route.h"

#include <stdlib.h>

int route_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n)
{
    static const struct semel_store_options options = {.lock_timeout_ms = 500, .create = true, .migrate = true};
    const char *store = argc > 1 ? argv[1] : "sqlite";

    world_driver = world_driver_named(store);
    world_options = &options;
    return _cmocka_run_group_tests(store, tests, n, NULL, NULL);
}

/* ---- up and down --------------------------------------------------------------------------------- */

int route_setup(void **state)
{
    struct route *w = calloc(1, sizeof *w);
    void *world = NULL;
    assert_non_null(w);
    world_alone(&world);
    w->world = world;
    w->store = w->world->store;
    w->pg = strcmp(w->world->driver->name, "postgres") == 0;
    semel__random_seed(&w->rng, 11);
    semel__policy_init(&w->policy, SEMEL_STR("c"));
    semel__arena_init(&w->keep, (size_t)1 << 26);
    *state = w;
    return 0;
}

static void unmake(struct route *w)
{
    if (w->sql != NULL)
        semel__inbox_done(&w->inbox);
    semel__sql_handler_free(w->sql);
    w->sql = NULL;
}

void route_reopen(struct route *w, const char *parameter)
{
    size_t n = strlen(w->world->url);
    unmake(w);
    semel_store_close(w->store);
    snprintf(w->world->url + n, sizeof w->world->url - n, "?%s", parameter);
    assert_ok(w->world, world_open(w->world));
    w->store = w->world->store;
}

int route_teardown(void **state)
{
    struct route *w = *state;
    void *world = w->world;
    unmake(w);
    world_teardown(&world);
    semel__arena_done(&w->keep);
    free(w);
    return 0;
}

/* ---- the database -------------------------------------------------------------------------------- */

void sql(struct route *w, const char *text)
{
    world_sql(w->world, text);
}

int64_t ask(struct route *w, const char *text)
{
    return world_ask(w->world, text);
}

/* ---- the handler --------------------------------------------------------------------------------- */

semel_status try_make(struct route *w, enum semel_sql_mode mode, const char *statement, const char *rules)
{
    struct semel_str values[SEMEL_SQL_VALUES_MAX + 8];
    struct semel_sql_desc desc = {.statement = semel__str(statement),
                                  .mode = mode,
                                  .values = values,
                                  .ordered = w->policy.order != SEMEL_ORDER_NONE};
    for (const char *p = rules; *p != '\0';) {
        size_t n = strcspn(p, " ");
        assert_true(desc.n_values < COUNT(values));
        values[desc.n_values++] = (struct semel_str){p, n};
        p += n + strspn(p + n, " ");
    }
    unmake(w);
    return semel__sql_handler_new(&w->sql, &desc, w->store, &w->err);
}

void make(struct route *w, enum semel_sql_mode mode, const char *statement, const char *rules)
{
    assert_ok(w, try_make(w, mode, statement, rules));
    semel__inbox_init(&w->inbox, w->store, &w->policy, semel__sql_handler(w->sql), &w->rng, SEMEL_STR("worker-1"));
}

void assert_refused(struct route *w, enum semel_sql_mode mode, const char *statement, const char *rules,
                    const char *text)
{
    assert_int_equal(try_make(w, mode, statement, rules), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_null(w->sql);
    if (strstr(w->err.text, text) == NULL)
        fail_msg("%s\nsays: %s\ninstead of: %s", statement, w->err.text, text);
}

/* ---- messages ------------------------------------------------------------------------------------ */

struct semel__msg message(const char *id, const char *payload)
{
    struct semel__msg msg;
    semel__msg_init(&msg);
    msg.source = SEMEL_STR("s");
    msg.id = semel__str(id);
    msg.payload = semel__str(payload);
    msg.delivery = 1;
    assert_int_equal(semel__fp_compute(msg.payload, &msg.fp, NULL), SEMEL_OK);
    return msg;
}

struct semel__msg booking(struct route *w, int n, int account, int amount)
{
    char id[24], payload[80];
    struct semel_str kept_id, kept_payload;
    snprintf(id, sizeof id, "m-%d", n);
    snprintf(payload, sizeof payload, "{\"account\":%d,\"amount\":%d}", account, amount);
    assert_true(semel__arena_copy(&w->keep, semel__str(id), &kept_id));
    assert_true(semel__arena_copy(&w->keep, semel__str(payload), &kept_payload));
    return message(kept_id.p, kept_payload.p);
}

semel_status try_process(struct route *w, const struct semel__msg *msgs, size_t n)
{
    assert_true(n <= ROUTE_BATCH);
    return semel__inbox_process(&w->inbox, msgs, n, w->settled, &w->err);
}

void process(struct route *w, const struct semel__msg *msgs, size_t n)
{
    assert_ok(w, try_process(w, msgs, n));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(w->settled[i].act, SEMEL_ACK);
}

#define TABLE(w) ((w)->pg ? "semel.inbox" : "semel_inbox")

int64_t rows(struct route *w, const char *status)
{
    char text[128];
    snprintf(text, sizeof text, "SELECT count(*) FROM %s WHERE status = '%s' OR %d = 1", TABLE(w),
             status != NULL ? status : "", status == NULL);
    return ask(w, text);
}

void assert_error_of(struct route *w, const char *id, const char *text)
{
    struct semel_scan scan = {.kind = SEMEL_SCAN_ALL, .consumer = SEMEL_STR("c"), .after_arrival = -1, .max = 10000};
    struct semel_row *found = NULL;
    size_t n = 0, damaged = 0;
    assert_ok(w, semel_store_scan(w->store, &scan, &w->keep, &found, &n, &damaged, &w->err));
    for (size_t i = 0; i < n; i++) {
        struct semel_str said = found[i].progress.error_text;
        if (!semel__str_eqz(found[i].id, id))
            continue;
        if (!semel__str_given(said) || memmem(said.p, said.n, text, strlen(text)) == NULL)
            fail_msg("%s: \"%.*s\" instead of \"%s\"", id, (int)said.n, said.p, text);
        return;
    }
    fail_msg("there is no row of %s", id);
}
