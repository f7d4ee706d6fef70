/* SPDX-License-Identifier: MIT
 *
 * look.h: rows to be looked at, put into a store by hand, for the tests of what operators ask.
 */
#ifndef SEMEL_TEST_LOOK_H
#define SEMEL_TEST_LOOK_H

#include "unit/engine.h"

#include "store/query.h"
#include "core/state.h"

#define ANY ((struct semel_filter){.received_before_us = SEMEL_NONE, .received_after_us = SEMEL_NONE})
#define BIT(state) (1u << SEMEL_ROW_##state)
#define UNENDED (BIT(PROCESSING) | BIT(FAILED) | BIT(WAITING) | BIT(UNKNOWN) | BIT(DEAD) | BIT(QUARANTINED))

/* What is not given is NULL; received_us and due_us count from START_US, 0: START_US and NULL. */
struct fake {
    const char *consumer, *source, *id;
    enum semel_row_status state;
    const char *type, *key, *cls, *text;
    int64_t received_us, due_us;
};

#define FAKE(consumer_, source_, id_, state_, ...) \
    ((struct fake){.consumer = (consumer_), .source = (source_), .id = (id_), .state = (state_), __VA_ARGS__})

#define FAKE_COLUMNS                                                                                          \
    "(consumer, source, message_id, status, type, order_key, error_class, error_text, lease_owner, arrival, " \
    "lease_token, received_at, updated_at, due_at, processed_at, lease_until, attempts, payload) "

static inline void put(struct engine *e, struct fake f)
{
    static const char sqlite[] = "INSERT INTO semel_inbox " FAKE_COLUMNS
                                 "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12, $13, $14, $15, 1, "
                                 "x'7061')";
#define MOMENT(n) "timestamptz 'epoch' + $" #n "::bigint * interval '1 microsecond'"
    static const char postgres[] = "INSERT INTO semel.inbox " FAKE_COLUMNS
                                   "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, " MOMENT(12) ", " MOMENT(
                                       12) ", " MOMENT(13) ", " MOMENT(14) ", " MOMENT(15) ", 1, 'pa')";
#undef MOMENT
    bool leased = f.state == SEMEL_ROW_PROCESSING;
    int64_t arrival = sql_int(e, is_postgres(e) ? "SELECT nextval('semel_arrival')"
                                                : "UPDATE semel_counter SET value = value + 1 WHERE name = 'arrival' "
                                                  "RETURNING value - 1");
    char number[24], received[24], due[24], start[24], until[24];
    const char *values[] = {f.consumer,
                            f.source,
                            f.id,
                            semel__row_status_name(f.state),
                            f.type,
                            f.key,
                            f.cls,
                            f.text,
                            leased ? "worker-1" : NULL,
                            number,
                            leased ? number : NULL,
                            received,
                            f.due_us != 0 ? due : NULL,
                            semel__state_final(f.state) ? start : NULL,
                            leased ? until : NULL};
    snprintf(number, sizeof number, "%lld", (long long)arrival);
    snprintf(received, sizeof received, "%lld", (long long)(START_US + f.received_us));
    snprintf(due, sizeof due, "%lld", (long long)(START_US + f.due_us));
    snprintf(start, sizeof start, "%lld", (long long)START_US);
    snprintf(until, sizeof until, "%lld", (long long)(START_US + arrival));
    e->tables->put(e, is_postgres(e) ? postgres : sqlite, values, (int)COUNT(values));
}

static inline size_t list(struct engine *e, struct semel_filter filter, int64_t after, size_t max,
                          struct semel_row **ret)
{
    size_t n = 0, damaged = 0;
    semel__arena_reset(&e->arena);
    assert_ok(e, semel_query_list(e->store, &filter, after, max, false, &e->arena, ret, &n, &damaged, &e->err));
    assert_int_equal(damaged, 0);
    return n;
}

/* The ids of all that match, in order, with blanks between. */
static inline void assert_lists(struct engine *e, struct semel_filter filter, const char *ids)
{
    struct semel_row *rows = NULL;
    char got[1000] = "";
    size_t n = list(e, filter, SEMEL_NONE, 1000, &rows);
    for (size_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s", i > 0 ? " " : "", (int)rows[i].id.n,
                 rows[i].id.p);
    assert_string_equal(got, ids);
}

static inline void assert_says(struct engine *e, const char *what)
{
    if (strstr(e->err.text, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", e->err.text, what);
}

static inline void begin(struct engine *e)
{
    int64_t now_us;
    assert_ok(e, semel_store_begin(e->store, SEMEL_TX_OWN, &now_us, &e->err));
}

static inline void commit(struct engine *e)
{
    assert_ok(e, semel_store_commit(e->store, &e->err));
}

#endif
