/* SPDX-License-Identifier: MIT
 *
 * relay_rig.c: see relay_rig.h.
 */
#include "relay_rig.h"

#include <stdlib.h>

#include "core/headers.h"

struct rig rig;
bool on_postgres;

/* ---- the sink ------------------------------------------------------------------------------------ */

static void copy(char *out, size_t size, struct semel_str s)
{
    snprintf(out, size, "%.*s", (int)s.n, s.n > 0 ? s.p : "");
}

static void take(struct sink *sink, const struct semel_publish *item)
{
    struct got *got = &sink->got[sink->n++];
    assert_true(sink->n < GOT_MAX);
    *got = (struct got){.tombstone = !semel__str_given(item->payload)};
    copy(got->id, sizeof got->id, item->id);
    copy(got->key, sizeof got->key, item->key);
    copy(got->destination, sizeof got->destination, item->destination);
    copy(got->payload, sizeof got->payload, item->payload);
    copy(got->type, sizeof got->type, semel__pair_find(item->headers, item->n_headers, SEMEL_STR("ce_type")));
    got->has_user_header = semel__str_given(semel__pair_find(item->headers, item->n_headers, SEMEL_STR("shop")));
    got->has_foreign_id = semel__str_given(semel__pair_find(item->headers, item->n_headers, SEMEL_STR("id")));
    copy(got->ce_id, sizeof got->ce_id, semel__pair_find(item->headers, item->n_headers, SEMEL_STR("ce_id")));
    copy(got->ce_time, sizeof got->ce_time, semel__pair_find(item->headers, item->n_headers, SEMEL_STR("ce_time")));
    copy(got->traceparent, sizeof got->traceparent,
         semel__pair_find(item->headers, item->n_headers, SEMEL_STR("traceparent")));
    got->headers = item->n_headers;
    for (size_t i = 0; i < item->n_headers; i++)
        got->own += semel__header_is_ours(item->headers[i].name);
}

static semel_status sink_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                 struct semel_error *err)
{
    struct sink *sink = (struct sink *)broker;
    bool hung = false;
    (void)err;
    assert_true(timeout_ms > 0);
    sink->calls++;
    if (sink->during != NULL)
        sink->during();
    sink->most = n > sink->most ? n : sink->most;
    for (size_t i = 0; i < n; i++) {
        char type[24];
        bool behind = false;
        copy(type, sizeof type, semel__pair_find(items[i].headers, items[i].n_headers, SEMEL_STR("ce_type")));
        for (size_t k = 0; k < i; k++)
            behind |= semel__str_eq(items[k].key, items[i].key) && items[k].status != SEMEL_OK;
        if (sink->all_down || (sink->down != NULL && semel__str_eqz(items[i].destination, sink->down)))
            semel__publish_end(&items[i], SEMEL_RETRY, true, "no such topic");
        else if (sink->hangs != NULL && semel__begins_with(items[i].destination, sink->hangs)) {
            semel__publish_end(&items[i], SEMEL_UNKNOWN, true, "no answer in time");
            hung = true;
        } else if (behind)
            continue;
        else if (sink->refuse != NULL && strcmp(type, sink->refuse) == 0)
            semel__publish_end(&items[i], SEMEL_INVALID, false, "too large");
        else if (sink->breaks != NULL && strcmp(type, sink->breaks) == 0) {
            semel__publish_end(&items[i], SEMEL_UNKNOWN, false, "HTTP 500");
            sink->broken++;
        } else {
            take(sink, &items[i]);
            items[i].status = SEMEL_OK;
            if (sink->unknown)
                semel__publish_end(&items[i], SEMEL_UNKNOWN, false, "no answer");
        }
    }
    if (hung) {
        pass((int64_t)timeout_ms * 1000);
        sink->hung_us += (int64_t)timeout_ms * 1000;
    }
    return SEMEL_OK;
}

static void sink_init(struct sink *sink, bool runs)
{
    *sink = (struct sink){.ops = {.name = "test",
                                  .capabilities = SEMEL_BROKER_SINK | (runs ? SEMEL_BROKER_RUNS : 0),
                                  .publish = sink_publish},
                          .got = calloc(GOT_MAX, sizeof(struct got))};
    sink->base.ops = &sink->ops;
    assert_non_null(sink->got);
}

/* ---- the rig ------------------------------------------------------------------------------------- */

static int64_t steady_now(void *ctx)
{
    (void)ctx;
    return rig.steady_us;
}

static semel_status destination(void *ctx, const struct semel_relay_event *event, struct semel_arena *arena,
                                struct semel_str *ret, struct semel_error *err)
{
    (void)ctx;
    if (semel__str_eqz(event->destination, "nowhere"))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the destination is not on the list");
    if (!semel__arena_copy(arena, semel__str_given(event->destination) ? event->destination : SEMEL_STR("orders"), ret))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

static void report(void *ctx, int level, const char *text, const struct semel_relay_event *event, const char *why)
{
    size_t n = strlen(rig.reported);
    (void)ctx, (void)level, (void)event;
    snprintf(rig.reported + n, sizeof rig.reported - n, "%s: %s\n", text, why != NULL ? why : "");
}

struct semel_relay *relay_on(struct semel_store *store, struct sink *sink, const char *owner)
{
    struct semel_relay *relay;
    rig.options.owner = semel__str(owner);
    assert_ok(rig.world,
              semel__relay_new(&relay, store, &sink->base, &rig.options, &rig.rng, &rig.steady, &rig.world->err));
    return relay;
}

int up(void **state)
{
    void *world;
    rig = (struct rig){.steady = {steady_now, NULL}, .steady_us = SECOND};
    world_driver = world_driver_named(on_postgres ? "postgres" : "sqlite");
    world_setup(&world);
    rig.world = world;
    semel__random_seed(&rig.rng, 42);
    sink_init(&rig.sink, true);
    sink_init(&rig.other_sink, true);
    rig.options = (struct semel_relay_options){.destinations = SEMEL_STR("d1"),
                                               .lease_us = 15 * SECOND,
                                               .timeout_us = 5 * SECOND,
                                               .first_us = SECOND,
                                               .ceiling_us = 60 * SECOND,
                                               .attempts_max = 3,
                                               .rows = 2000,
                                               .bytes = 8 << 20,
                                               .destination = destination,
                                               .report = report};
    rig.relay = relay_on(rig.world->store, &rig.sink, "first");
    *state = &rig;
    return 0;
}

int down(void **state)
{
    void *world = rig.world;
    (void)state;
    semel__relay_free(rig.relay);
    semel__relay_free(rig.other);
    free(rig.sink.got);
    free(rig.other_sink.got);
    return world_teardown(&world);
}

void pass(int64_t us)
{
    rig.steady_us += us;
    rig.world->now_us += us;
}

void put(const char *aggregate, const char *type, const char *to)
{
    struct semel__event event = {.aggregatetype = SEMEL_STR("order"),
                                 .aggregateid = semel__str(aggregate),
                                 .type = semel__str(type),
                                 .payload = semel__str(type),
                                 .headers = SEMEL_STR("{\"shop\": \"x\"}"),
                                 .destination = to != NULL ? semel__str(to) : (struct semel_str){0}};
    int64_t now_us;
    assert_ok(rig.world, semel_store_begin(rig.world->store, SEMEL_TX_OWN, &now_us, &rig.world->err));
    assert_ok(rig.world, semel_store_outbox_put(rig.world->store, &event, now_us, NULL, &rig.world->err));
    assert_ok(rig.world, semel_store_commit(rig.world->store, &rig.world->err));
}

void step_of(struct semel_relay *relay)
{
    int wait_ms;
    assert_ok(rig.world, semel__relay_step(relay, &wait_ms, &rig.world->err));
}

void steps(int n)
{
    for (int i = 0; i < n; i++) {
        step_of(rig.relay);
        pass(SECOND / 100);
    }
}

int64_t count_in(const char *table, const char *where)
{
    char text[256];
    snprintf(text, sizeof text, "SELECT count(*) FROM semel%coutbox%s WHERE %s", on_postgres ? '.' : '_', table, where);
    return world_ask(rig.world, text);
}

/* What came of an aggregate, first occurrences only, as "a1 a2 a3". */
const char *got_of(const struct sink *sink, const char *key)
{
    static char text[8192];
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sink->n; i++) {
        bool first = strcmp(sink->got[i].key, key) == 0;
        for (size_t k = 0; first && k < i; k++)
            first = strcmp(sink->got[k].id, sink->got[i].id) != 0;
        if (first)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n > 0 ? " " : "", sink->got[i].type);
    }
    return text;
}

void again_with(struct semel_relay_options options)
{
    rig.options = options;
    semel__relay_free(rig.relay);
    rig.relay = relay_on(rig.world->store, &rig.sink, "first");
}

#ifdef SEMEL_WITH_POSTGRES
PGconn *session(void)
{
    PGconn *conn = PQconnectdb(rig.world->conninfo);
    assert_int_equal(PQstatus(conn), CONNECTION_OK);
    return conn;
}

void sql(PGconn *conn, const char *text)
{
    PGresult *result = PQexec(conn, text);
    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    PQclear(result);
}

void put_by(PGconn *conn, const char *aggregate, const char *type)
{
    char text[256];
    snprintf(text, sizeof text, "SELECT semel.outbox_put('order', '%s', '%s', '1')", aggregate, type);
    sql(conn, text);
}
#endif
