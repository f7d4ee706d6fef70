/* SPDX-License-Identifier: MIT
 *
 * test_select.c: frozen selections, and what else is known of one message.
 */
#include "unit/look.h"

#include "core/consumer.h"

/* ---- selections --------------------------------------------------------------------------------------- */

static struct semel_selection wish(const char *command)
{
    return (struct semel_selection){.command = semel__str(command),
                                    .who = SEMEL_STR("ops@example.com"),
                                    .reason = SEMEL_STR("ticket 7: it's fixed\n"),
                                    .force = true};
}

static semel_status try_select(struct engine *e, struct semel_filter filter, size_t max, struct semel_selection *s)
{
    begin(e);
    semel_status status = semel_query_select(e->store, &filter, max, e->now_us, s, &e->err);
    if (status == SEMEL_OK)
        commit(e);
    else
        semel_store_rollback(e->store);
    return status;
}

static struct semel_selection selected_dead(struct engine *e, const char *command)
{
    struct semel_filter filter = ANY;
    struct semel_selection s = wish(command);
    filter.states = BIT(DEAD);
    assert_ok(e, try_select(e, filter, 100, &s));
    return s;
}

static struct semel_selection selection(struct engine *e, int64_t number)
{
    struct semel_selection s;
    assert_ok(e, semel_query_selection(e->store, number, &e->arena, &s, &e->err));
    return s;
}

static void mark(struct engine *e, int64_t number, int64_t place, const char *result)
{
    begin(e);
    assert_ok(e, semel_query_mark(e->store, number, &(struct semel_mark){place, semel__str(result)}, 1, &e->err));
    commit(e);
}

/* The consumer, source and id of what is left, as "c/s/id", with blanks between. */
static void assert_left(struct engine *e, int64_t number, size_t max, const char *expected)
{
    struct semel_selected *items = NULL;
    char got[1000] = "";
    size_t n = 0;
    assert_ok(e, semel_query_selected(e->store, number, max, &e->arena, &items, &n, &e->err));
    for (size_t i = 0; i < n; i++) {
        assert_true(i == 0 || items[i].place > items[i - 1].place);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s/%.*s/%.*s", i > 0 ? " " : "",
                 (int)items[i].consumer.n, items[i].consumer.p, (int)items[i].source.n, items[i].source.p,
                 (int)items[i].id.n, items[i].id.p);
    }
    assert_string_equal(got, expected);
}

/* P43: what comes later, and what becomes of the chosen, changes nothing about what was chosen. */
static void selection_is_frozen_while_rows_come_and_change(void **state)
{
    struct engine *e = *state;
    struct semel_selected *items = NULL;
    size_t n = 0;
    process_one(e, msg("d1", "bad"));
    process_one(e, msg("ok", "ok"));
    process_one(e, msg("d2", "bad@1"));
    int64_t updated_us = row_of(e, "d2").updated_us;
    e->now_us += SECOND_US;
    struct semel_selection s = selected_dead(e, "retry");
    assert_true(s.number > 0);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.left, 2);
    assert_int_equal(s.made_us, e->now_us);

    process_one(e, msg("d3", "bad"));
    struct semel_command retry = {.kind = SEMEL_COMMAND_RETRY, .who = SEMEL_STR("another"), .reason = SEMEL_STR("x")};
    struct semel_command_result result;
    assert_ok(e, command_row(e, "d2", retry, &result));
    assert_true(result.done);
    assert_int_not_equal(row_of(e, "d2").updated_us, updated_us);

    assert_left(e, s.number, 10, "c/s/d1 c/s/d2");
    assert_ok(e, semel_query_selected(e->store, s.number, 10, &e->arena, &items, &n, &e->err));
    assert_int_equal(items[0].place, 1);
    assert_int_equal(items[1].place, 2);
    assert_int_equal(items[1].updated_us, updated_us);
    struct semel_selection read = selection(e, s.number);
    assert_str(read.command, "retry");
    assert_str(read.who, "ops@example.com");
    assert_str(read.reason, "ticket 7: it's fixed\n");
    assert_true(read.force);
    assert_int_equal(read.made_us, s.made_us);
    assert_int_equal(read.n, 2);
}

/* I16: whoever knows the number goes on where it stopped, after a crash too; the first mark of a place stays. */
static void selection_is_resumed_where_it_stopped(void **state)
{
    struct engine *e = *state;
    for (int i = 0; i < 5; i++) {
        char id[8];
        snprintf(id, sizeof id, "d%d", i);
        put(e, FAKE("c", "s", id, SEMEL_ROW_DEAD));
    }
    struct semel_selection s = selected_dead(e, "discard");
    assert_left(e, s.number, 2, "c/s/d0 c/s/d1");
    mark(e, s.number, 1, "done");
    mark(e, s.number, 3, "skipped");
    mark(e, s.number, 3, "done");
    begin(e);
    assert_ok(e, semel_query_mark(e->store, s.number, &(struct semel_mark){2, SEMEL_STR("done")}, 1, &e->err));
    assert_ok(e, semel_store_reopen(e->store, &e->err)); /* the mark goes with the transaction that it belongs to */

    assert_left(e, s.number, 100, "c/s/d1 c/s/d3 c/s/d4");
    mark(e, s.number, 2, "refused");
    struct semel_selection read = selection(e, s.number);
    assert_int_equal(read.n, 5);
    assert_int_equal(read.left, 2);
    assert_int_equal(read.done, 1);
    assert_int_equal(read.skipped, 1);
    assert_int_equal(read.refused, 1);
    mark(e, s.number, 4, "done");
    mark(e, s.number, 5, "done");
    assert_left(e, s.number, 100, "");
    assert_int_equal(selection(e, s.number).left, 0);
}

static void two_selections_of_the_same_rows_are_apart(void **state)
{
    struct engine *e = *state;
    put(e, FAKE("c", "s", "d1", SEMEL_ROW_DEAD));
    struct semel_selection one = selected_dead(e, "retry");
    put(e, FAKE("c", "s", "d2", SEMEL_ROW_DEAD));
    struct semel_selection two = selected_dead(e, "resolve");
    assert_true(two.number > one.number);
    mark(e, one.number, 1, "done");
    assert_left(e, one.number, 10, "");
    assert_left(e, two.number, 10, "c/s/d1 c/s/d2");
    assert_str(selection(e, two.number).command, "resolve");
}

static void selection_is_in_order_of_arrival_across_consumers_and_states(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_selection s = wish("retry");
    put(e, FAKE("z", "s", "1", SEMEL_ROW_FAILED));
    put(e, FAKE("a", "t", "2", SEMEL_ROW_DEAD));
    put(e, FAKE("z", "s", "3", SEMEL_ROW_DEAD));
    put(e, FAKE("a", "s", "4", SEMEL_ROW_COMPLETED));
    put(e, FAKE("it's \"m\"\n", "", "5", SEMEL_ROW_FAILED));
    filter.states = BIT(FAILED) | BIT(DEAD);
    assert_ok(e, try_select(e, filter, 4, &s));
    assert_left(e, s.number, 10, "z/s/1 a/t/2 z/s/3 it's \"m\"\n//5");
}

/* I16, P43: too many are refused rather than cut, and nothing is written down, nor when nothing matches. */
static void selection_of_too_many_or_of_nothing_is_not_written_down(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_selection s = wish("retry");
    for (int i = 0; i < 3; i++) {
        char id[8];
        snprintf(id, sizeof id, "d%d", i);
        put(e, FAKE("c", "s", id, SEMEL_ROW_DEAD));
    }
    filter.states = BIT(DEAD);
    assert_int_equal(try_select(e, filter, 2, &s), SEMEL_INVALID);
    assert_says(e, "more than 2 messages match; narrow the filter");
    assert_ok(e, try_select(e, filter, 3, &s));
    assert_int_equal(s.n, 3);
    filter.type = SEMEL_STR("none");
    assert_ok(e, try_select(e, filter, 2, &s));
    assert_int_equal(s.n, 0);
    assert_int_equal(sql_int(e, "SELECT count(*) FROM semel_selection"), 1);
    assert_int_equal(sql_int(e, "SELECT count(*) FROM semel_selected"), 3);
}

static void selection_without_word_who_or_reason_is_refused(void **state)
{
    struct engine *e = *state;
    static char long_text[SEMEL_ERROR_TEXT_MAX + 2];
    struct semel_selection s = wish("delete");
    put(e, FAKE("c", "s", "d", SEMEL_ROW_DEAD));
    assert_int_equal(try_select(e, ANY, 2, &s), SEMEL_INVALID);
    assert_says(e, "retry, discard, resolve");
    s = wish("retry");
    s.who = SEMEL_STR("");
    assert_int_equal(try_select(e, ANY, 2, &s), SEMEL_INVALID);
    assert_says(e, "who is empty");
    s = wish("retry");
    s.reason = (struct semel_str){0};
    assert_int_equal(try_select(e, ANY, 2, &s), SEMEL_INVALID);
    assert_says(e, "the reason must be");
    memset(long_text, 'x', sizeof long_text - 1);
    s.reason = semel__str(long_text);
    assert_int_equal(try_select(e, ANY, 2, &s), SEMEL_INVALID);
}

static void unknown_selections_places_and_results_are_refused(void **state)
{
    struct engine *e = *state;
    struct semel_selection s;
    assert_int_equal(semel_query_selection(e->store, 7, &e->arena, &s, &e->err), SEMEL_INVALID);
    assert_says(e, "there is no selection with the number 7");
    assert_left(e, 7, 10, "");
    put(e, FAKE("c", "s", "d", SEMEL_ROW_DEAD));
    s = selected_dead(e, "retry");
    begin(e);
    assert_int_equal(semel_query_mark(e->store, s.number, &(struct semel_mark){2, SEMEL_STR("done")}, 1, &e->err),
                     SEMEL_INVALID);
    assert_says(e, "has no place 2");
    assert_int_equal(semel_query_mark(e->store, s.number, &(struct semel_mark){1, SEMEL_STR("lost")}, 1, &e->err),
                     SEMEL_INVALID);
    assert_says(e, "done, skipped, refused");
    commit(e);
    assert_left(e, s.number, 10, "c/s/d");
}

/* ---- history ------------------------------------------------------------------------------------------ */

static struct semel_history history_by(struct engine *e, const char *id, bool by_version, size_t max)
{
    struct semel_filter filter = ANY;
    struct semel_history h;
    struct semel_row *rows = NULL;
    filter.id = semel__str(id);
    assert_int_equal(list(e, filter, SEMEL_NONE, 2, &rows), 1);
    assert_ok(e, semel_query_history(e->store, &rows[0], by_version, max, &e->arena, &h, &e->err));
    return h;
}

static struct semel_history history(struct engine *e, const char *id, size_t max)
{
    return history_by(e, id, e->policy.order == SEMEL_ORDER_VERSION, max);
}

/* I11, I16 */
static void history_tells_attempts_acts_conflicts_and_keys(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("m", "bad");
    struct semel_command retry = {.kind = SEMEL_COMMAND_RETRY,
                                  .who = SEMEL_STR("ops"),
                                  .reason = SEMEL_STR("it's\nfixed")};
    struct semel_command_result result;
    size_t n = 0;
    m.business[0] = SEMEL_STR("pay/2");
    m.business[1] = SEMEL_STR("pay/1");
    m.n_business = 2;
    e->policy.permanent_max = 1;
    process_one(e, m);
    assert_int_equal(state_of(e, "m"), SEMEL_ROW_DEAD);
    e->now_us += SECOND_US;
    process_one(e, msg("m", "another"));
    process_one(e, msg("m", "another"));
    process_one(e, msg("m", "a third"));
    assert_ok(e, command_row(e, "m", retry, &result));
    assert_true(result.done);
    e->now_us += SECOND_US;
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
    process_one(e, msg("other", "bad"));

    struct semel_history h = history(e, "m", 10);
    assert_int_equal(h.n_tries, 2);
    assert_int_equal(h.tries[0].attempt, 1);
    assert_int_equal(h.tries[0].at_us, START_US);
    assert_str(h.tries[0].worker, "worker-1");
    assert_str(h.tries[0].cls, "permanent");
    assert_str(h.tries[0].text, "cannot be done");
    assert_int_equal(h.tries[1].attempt, 2);
    assert_int_equal(h.n_acts, 1);
    assert_int_equal(h.acts[0].at_us, START_US + SECOND_US);
    assert_str(h.acts[0].who, "ops");
    assert_str(h.acts[0].what, "retry");
    assert_str(h.acts[0].reason, "it's\nfixed");
    assert_int_equal(h.n_conflicts, 2);
    assert_int_equal(h.conflicts[0].n + h.conflicts[1].n, 3);
    assert_int_equal(h.conflicts[0].first_us, START_US + SECOND_US);
    assert_true(h.conflicts[0].fingerprint.n > 1);
    assert_int_equal(h.n_business, 2);
    assert_str(h.business[0], "pay/1");
    assert_str(h.business[1], "pay/2");
    assert_false(h.more || h.has_head);
    assert_int_equal(h.watermark_us, SEMEL_NONE);
    assert_int_equal(history(e, "other", 10).n_acts, 0);
}

static void history_that_is_cut_has_the_latest(void **state)
{
    struct engine *e = *state;
    put(e, FAKE("c", "s", "m", SEMEL_ROW_DEAD));
    sql_either(
        e,
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) INSERT INTO semel_attempt "
        "(consumer, source, message_id, attempt, at, worker, error_text) SELECT 'c', 's', 'm', i, i, 'w', "
        "printf('%.*c', 5000, 'x') FROM n; INSERT INTO semel_watermark VALUES ('c', 's', 77, 1)",
        "INSERT INTO semel.attempt (consumer, source, message_id, attempt, at, worker, error_text) SELECT 'c', 's', "
        "'m', i, to_timestamp(i), 'w', repeat('x', 5000) FROM generate_series(1, 9) AS i; "
        "INSERT INTO semel.watermark VALUES ('c', 's', timestamptz 'epoch' + interval '77 us', now())");
    struct semel_history h = history(e, "m", 3);
    assert_true(h.more);
    assert_int_equal(h.n_tries, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(h.tries[i].attempt, 7 + i);
    assert_int_equal(h.tries[0].text.n, SEMEL_ERROR_TEXT_MAX);
    assert_int_equal(h.watermark_us, 77);
    h = history(e, "m", 9);
    assert_false(h.more);
    assert_int_equal(h.n_tries, 9);
}

/* I13: whom it waits for. */
static void history_names_the_first_of_the_key(void **state)
{
    struct engine *e = *state;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, keyed("first", "fail", "k", 9)); /* the versions count for nothing here */
    process_one(e, keyed("second", "ok", "k", 3));
    process_one(e, keyed("elsewhere", "ok", "l", 1));
    struct semel_history h = history(e, "second", 10);
    assert_true(h.has_head);
    assert_str(h.head_source, "s");
    assert_str(h.head_id, "first");
    assert_int_equal(h.head_state, SEMEL_ROW_FAILED);
    assert_int_equal(h.head_version, 9);
    assert_int_equal(h.last_version, SEMEL_NONE);
    assert_str(history(e, "first", 10).head_id, "first");
    assert_false(history(e, "elsewhere", 10).has_head); /* completed: it waits for nobody */
    assert_str(history_by(e, "second", true, 10).head_id, "second");
}

/* I12: which version is missing. */
static void history_knows_the_last_version_and_the_lowest_that_waits(void **state)
{
    struct engine *e = *state;
    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v1", "ok", "k", 1));
    process_one(e, keyed("v5", "ok", "k", 5));
    process_one(e, keyed("v4", "ok", "k", 4));
    struct semel_history h = history(e, "v5", 10);
    assert_true(h.has_head);
    assert_str(h.head_id, "v4");
    assert_int_equal(h.head_state, SEMEL_ROW_WAITING);
    assert_int_equal(h.head_version, 4);
    assert_int_equal(h.last_version, 1);
}

/* ---- the world ---------------------------------------------------------------------------------------- */

static void lack_of_memory_is_told_and_nothing_is_written(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    struct fail_nth fail;
    struct semel_selection s = wish("retry");
    struct semel_history h;
    struct semel_arena arena;
    semel_status status;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, keyed("d1", "bad", "k", SEMEL_NONE));
    filter.states = BIT(DEAD);
    unsigned at = 0;
    do {
        begin(e);
        fail_nth_begin(&fail, ++at);
        status = semel_query_select(e->store, &filter, 9, e->now_us, &s, &e->err);
        if (fail_nth_end(&fail))
            assert_int_equal(status, SEMEL_RETRY);
        semel_store_rollback(e->store);
    } while (status != SEMEL_OK);
    assert_true(at > 1);
    assert_int_equal(list(e, filter, SEMEL_NONE, 9, &rows), 1);
    at = 0;
    do {
        semel__arena_init(&arena, 1 << 20);
        fail_nth_begin(&fail, ++at);
        status = semel_query_history(e->store, &rows[0], false, 9, &arena, &h, &e->err);
        if (fail_nth_end(&fail))
            assert_int_equal(status, SEMEL_RETRY);
        semel__arena_done(&arena);
    } while (status != SEMEL_OK);
    assert_true(at > 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_TABLES(selection_is_frozen_while_rows_come_and_change),
        ON_TABLES(selection_is_resumed_where_it_stopped),
        ON_TABLES(two_selections_of_the_same_rows_are_apart),
        ON_TABLES(selection_is_in_order_of_arrival_across_consumers_and_states),
        ON_TABLES(selection_of_too_many_or_of_nothing_is_not_written_down),
        ON_TABLES(selection_without_word_who_or_reason_is_refused),
        ON_TABLES(unknown_selections_places_and_results_are_refused),
        ON_TABLES(history_tells_attempts_acts_conflicts_and_keys),
        ON_TABLES(history_that_is_cut_has_the_latest),
        ON_TABLES(history_names_the_first_of_the_key),
        ON_TABLES(history_knows_the_last_version_and_the_lowest_that_waits),
        ON_SQLITE(lack_of_memory_is_told_and_nothing_is_written),
        ON_POSTGRES(lack_of_memory_is_told_and_nothing_is_written),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
