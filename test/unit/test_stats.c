/* SPDX-License-Identifier: MIT
 *
 * test_stats.c: what is counted of routes, as it is shown to Prometheus; that the page of the metrics has them all; and
 * that threads lose nothing.
 */
#include "unit/unit.h"

#include <pthread.h>
#include <stdlib.h>

#include "admin/stats.h"
#include "admin/stats_table.h"
#include "base/clock.h"

static struct semel_stats *stats;
static struct semel_route_stats *route;
static struct semel_worker_stats *worker;
static struct semel_buf text;

static int up(void **state)
{
    struct semel_error err;
    (void)state;
    assert_int_equal(semel__stats_new(&stats, &err), SEMEL_OK);
    route = semel__stats_route(stats, SEMEL_STR("billing"), "atomic");
    assert_non_null(route);
    worker = semel__stats_worker(route);
    assert_non_null(worker);
    semel__buf_init(&text, (size_t)16 << 20);
    return 0;
}

static int down(void **state)
{
    (void)state;
    semel__stats_free(stats);
    semel__buf_done(&text);
    return 0;
}

static const char *shown(void)
{
    text.n = 0;
    assert_true(semel__metrics_render(semel__stats_metrics(stats), &text));
    assert_true(semel__buf_add(&text, "", 1));
    return text.p;
}

static void assert_line(const char *line)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "\n%s\n", line);
    if (strstr(shown(), whole) == NULL)
        fail_msg("%s is not among\n%s", line, text.p);
}

static struct semel__msg msg(const char *source, const char *type)
{
    struct semel__msg m;
    semel__msg_init(&m);
    m.source = semel__str(source);
    m.type = semel__str(type);
    return m;
}

static struct semel_settled settled(enum semel_why why, enum semel_row_status state, enum semel_class cls)
{
    return (struct semel_settled){.act = SEMEL_ACK, .why = why, .state = state, .cls = cls};
}

/* ---- deliveries --------------------------------------------------------------------------------------- */

static void deliveries_are_counted_by_source_type_and_why(void **state)
{
    (void)state;
    struct semel__msg msgs[6];
    struct semel_settled ends[6];
    for (size_t i = 0; i < 6; i++) {
        msgs[i] = msg("shop", i < 4 ? "order" : NULL);
        ends[i] = settled(i == 3 ? SEMEL_WHY_DUPLICATE : SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, SEMEL_CLASS_NONE);
    }
    semel__stats_report(worker, msgs, ends, 6, 20000);
    semel__stats_report(worker, msgs, ends, 6, 20000);
    assert_line("semel_messages_total{consumer=\"billing\",source=\"shop\",type=\"order\",why=\"new\"} 6");
    assert_line("semel_messages_total{consumer=\"billing\",source=\"shop\",type=\"order\",why=\"duplicate\"} 2");
    assert_line("semel_messages_total{consumer=\"billing\",source=\"shop\",type=\"\",why=\"new\"} 4");
    assert_line("semel_batch_seconds_count{consumer=\"billing\"} 2");
    assert_line("semel_batch_seconds_bucket{consumer=\"billing\",le=\"0.01\"} 0");
    assert_line("semel_batch_seconds_bucket{consumer=\"billing\",le=\"0.025\"} 2");
    assert_line("semel_handling_seconds_count{consumer=\"billing\"} 12");
}

static void failures_are_counted_by_class_and_add_up_to_the_attempts(void **state)
{
    (void)state;
    struct semel_counts counts = {.done = 1, .failed = 3, .rejected = 1};
    counts.classes[SEMEL_CLASS_TRANSIENT] = 2;
    counts.classes[SEMEL_CLASS_UNKNOWN] = 1;
    counts.classes[SEMEL_CLASS_REJECTED] = 1;
    semel__stats_counts(worker, &counts);
    counts.failed++;
    counts.classes[SEMEL_CLASS_TRANSIENT]++;
    semel__stats_counts(worker, &counts);
    assert_line("semel_failures_total{consumer=\"billing\",class=\"transient\"} 3");
    assert_line("semel_failures_total{consumer=\"billing\",class=\"unknown\"} 1");
    assert_line("semel_failures_total{consumer=\"billing\",class=\"rejected\"} 1");
    assert_line("semel_attempts_total{consumer=\"billing\",result=\"failed\"} 4");
    assert_null(strstr(shown(), "class=\"none\""));
}

static void the_age_of_a_message_runs_from_its_own_time(void **state)
{
    (void)state;
    struct semel__msg msgs[2] = {msg("s", "t"), msg("s", "t")};
    const struct semel_settled ends[2] = {settled(SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, SEMEL_CLASS_NONE),
                                          settled(SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, SEMEL_CLASS_NONE)};
    msgs[0].message_time_us = semel__now(&semel__clock_real) - INT64_C(7200) * 1000000;
    semel__stats_report(worker, msgs, ends, 2, 1);
    assert_line("semel_message_age_seconds_count{consumer=\"billing\"} 1");
    assert_line("semel_message_age_seconds_bucket{consumer=\"billing\",le=\"3600\"} 0");
    assert_line("semel_message_age_seconds_bucket{consumer=\"billing\",le=\"21600\"} 1");
}

static uint64_t messages(void)
{
    uint64_t sum = 0;
    static const char name[] = "\nsemel_messages_total{";
    for (const char *p = strstr(shown(), name); p != NULL; p = strstr(p + 1, name))
        sum += strtoull(strstr(p, "} ") + 2, NULL, 10);
    return sum;
}

static void strange_labels_cost_no_count_and_no_memory(void **state)
{
    (void)state;
    enum { N = 500 };
    static struct semel__msg msgs[N];
    static struct semel_settled ends[N];
    static char types[N][300];
    for (unsigned batch = 0; batch < 40; batch++) {
        for (unsigned i = 0; i < N; i++) {
            snprintf(types[i], sizeof(types[i]), "%u-%u-%0*d", batch, i, i % 2 == 0 ? 1 : 200, 7);
            msgs[i] = msg(i % 3 == 0 ? "\xff\"\n" : "s", types[i]);
            ends[i] = settled(SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED, SEMEL_CLASS_NONE);
        }
        semel__stats_report(worker, msgs, ends, N, 1);
    }
    assert_int_equal(messages(), 40 * N);
    assert_non_null(strstr(text.p, "type=\"_other\""));
    size_t lines = 0;
    for (const char *p = strstr(text.p, "\nsemel_messages_total{"); p != NULL;
         p = strstr(p + 1, "\nsemel_messages_total{"))
        lines++;
    assert_true(lines <= 201);
    assert_null(strstr(text.p, "consumer=\"_other\"")); /* B9: it is still known whose they are */

    struct semel_route_stats *quiet = semel__stats_route(stats, SEMEL_STR("quiet"), "atomic");
    msgs[0] = msg("s", "of its own");
    semel__stats_report(semel__stats_worker(quiet), msgs, ends, 1, 1); /* B9: there is room for another consumer's */
    assert_line("semel_messages_total{consumer=\"quiet\",source=\"s\",type=\"of its own\",why=\"new\"} 1");
    ends[0].why = SEMEL_WHY_DUPLICATE; /* B9: and copies are still seen to be copies */
    msgs[0] = msg("s", "never seen");
    semel__stats_report(worker, msgs, ends, 1, 1);
    assert_line("semel_messages_total{consumer=\"billing\",source=\"_other\",type=\"_other\",why=\"duplicate\"} 1");
}

/* ---- everything else ---------------------------------------------------------------------------------- */

static void what_an_inbox_counted_is_added_once(void **state)
{
    (void)state;
    struct semel_counts counts = {.done = 5, .failed = 2, .rejected = 1, .recovered = 3, .fenced = 4, .purged = 6};
    counts.transactions = 7;
    counts.cuts = 8;
    counts.contention = 9;
    counts.alerts[SEMEL_ALERT_DEAD] = 2;
    counts.why[SEMEL_WHY_CONFLICT] = 10;
    counts.why[SEMEL_WHY_BUSINESS] = 11;
    semel__stats_counts(worker, &counts);
    semel__stats_counts(worker, &counts);
    counts.done = 6;
    semel__stats_counts(worker, &counts);
    struct semel_counts anew = {.done = 1}; /* another inbox, after a reconnect */
    semel__stats_counts(worker, &anew);
    assert_line("semel_attempts_total{consumer=\"billing\",result=\"done\"} 7");
    assert_line("semel_attempts_total{consumer=\"billing\",result=\"failed\"} 2");
    assert_line("semel_attempts_total{consumer=\"billing\",result=\"rejected\"} 1");
    assert_line("semel_recovered_total{consumer=\"billing\"} 3");
    assert_line("semel_fenced_total{consumer=\"billing\"} 4");
    assert_line("semel_purged_total{consumer=\"billing\"} 6");
    assert_line("semel_transactions_total{consumer=\"billing\"} 7");
    assert_line("semel_batch_cuts_total{consumer=\"billing\"} 8");
    assert_line("semel_contention_total{consumer=\"billing\"} 9");
    assert_line("semel_dead_letters_total{consumer=\"billing\"} 2");
    assert_line("semel_conflicts_total{consumer=\"billing\"} 10");
    assert_line("semel_business_duplicates_prevented_total{consumer=\"billing\"} 11");
}

static void alerts_calls_and_the_breaker_are_shown(void **state)
{
    (void)state;
    assert_line("semel_alerts_total{consumer=\"billing\",kind=\"parked_full\"} 0");
    assert_line("semel_breaker_state{consumer=\"billing\",state=\"closed\"} 1");
    semel__stats_alert(route, SEMEL_ALERT_CONFLICT);
    assert_line("semel_alerts_total{consumer=\"billing\",kind=\"conflict\"} 1");
    semel__stats_call(route, SEMEL_DONE, false, false, 1000);
    semel__stats_call(route, SEMEL_PERMANENT, false, true, 1000);
    semel__stats_call(route, SEMEL_MAYBE, true, false, 1000);
    assert_line("semel_outside_calls_total{consumer=\"billing\",result=\"done\"} 1");
    assert_line("semel_outside_calls_total{consumer=\"billing\",result=\"permanent\"} 1");
    assert_line("semel_reconcile_calls_total{consumer=\"billing\",result=\"maybe\"} 1");
    assert_line("semel_outside_keys_refused_total{consumer=\"billing\"} 1");
    assert_line("semel_outside_call_seconds_count{consumer=\"billing\"} 3");
    semel__stats_breaker(route, SEMEL_BREAKER_OPEN);
    semel__stats_breaker(route, SEMEL_BREAKER_OPEN);
    semel__stats_breaker(route, SEMEL_BREAKER_PROBING);
    semel__stats_breaker(route, SEMEL_BREAKER_OPEN);
    assert_line("semel_breaker_state{consumer=\"billing\",state=\"open\"} 1");
    assert_line("semel_breaker_state{consumer=\"billing\",state=\"closed\"} 0");
    assert_line("semel_breaker_openings_total{consumer=\"billing\"} 1"); /* a probe that fails is no opening */
    semel__stats_breaker(route, SEMEL_BREAKER_CLOSED);
    semel__stats_breaker(route, SEMEL_BREAKER_OPEN);
    assert_line("semel_breaker_openings_total{consumer=\"billing\"} 2");
}

static void the_world_is_up_or_was_lost(void **state)
{
    (void)state;
    semel__stats_store_up(route, false); /* it never was up */
    assert_line("semel_store_lost_total{consumer=\"billing\"} 0");
    semel__stats_store_up(route, true);
    semel__stats_store_up(route, false);
    semel__stats_store_up(route, false);
    assert_line("semel_store_up{consumer=\"billing\"} 0");
    assert_line("semel_store_lost_total{consumer=\"billing\"} 1");
    semel__stats_source_up(route, true);
    assert_line("semel_source_up{consumer=\"billing\"} 1");
    semel__stats_source(route, 12, 345, -1, -1);
    assert_line("semel_in_flight{consumer=\"billing\"} 12");
    assert_line("semel_source_lag_messages{consumer=\"billing\"} 345");
    assert_line("semel_source_partitions{consumer=\"billing\"} NaN");
    assert_line("semel_source_partitions_stopped{consumer=\"billing\"} NaN");
    semel__stats_source(route, 12, 345, 8, 2);
    assert_line("semel_source_partitions{consumer=\"billing\"} 8");
    assert_line("semel_source_partitions_stopped{consumer=\"billing\"} 2");
    assert_line("semel_route_info{consumer=\"billing\",guarantee=\"atomic\"} 1");
    assert_line("semel_build_info{version=\"0.1.0\"} 1");
}

static void rows_by_state_fall_back_to_nothing(void **state)
{
    (void)state;
    const int64_t now_us = INT64_C(1700000000000000);
    const struct semel_count counts[] = {
        {SEMEL_STR("billing"), SEMEL_ROW_FAILED, 7, true, now_us - 90 * INT64_C(1000000), SEMEL_NONE},
        {SEMEL_STR("billing"), SEMEL_ROW_COMPLETED, 1000, true, SEMEL_NONE, SEMEL_NONE},
        {SEMEL_STR("another"), SEMEL_ROW_DEAD, 99, false, 1, SEMEL_NONE},
    };
    semel__stats_rows(route, counts, COUNT(counts), now_us);
    assert_line("semel_rows{consumer=\"billing\",status=\"failed\"} 7");
    assert_line("semel_rows{consumer=\"billing\",status=\"dead\"} 0");
    assert_line("semel_rows_capped{consumer=\"billing\",status=\"failed\"} 1");
    assert_null(strstr(shown(), "semel_rows{consumer=\"billing\",status=\"completed\"}")); /* they have counters */
    assert_line("semel_oldest_row_age_seconds{consumer=\"billing\",status=\"failed\"} 90");
    assert_line("semel_rows_read_timestamp_seconds{consumer=\"billing\"} 1700000000");
    semel__stats_rows(route, NULL, 0, now_us);
    assert_line("semel_rows{consumer=\"billing\",status=\"failed\"} 0");
    assert_line("semel_oldest_row_age_seconds{consumer=\"billing\",status=\"failed\"} 0");
}

static void causes_of_unknown_keys_fall_back_to_zero_and_rare_ones_are_others(void **state) /* M A7 */
{
    (void)state;
    const int64_t now_us = INT64_C(1700000000) * 1000000;
    struct semel_keys_state keys = {.processing = 3,
                                    .stuck = 1,
                                    .unknown = 5,
                                    .stuck_us = now_us,
                                    .unknown_us = now_us - INT64_C(60000000),
                                    .causes = {{SEMEL_STR("timeout"), 4}, {{NULL, 0}, 1}},
                                    .n_causes = 2};
    semel__stats_keys_rows(stats, &keys, now_us);
    assert_line("semel_idempotency_keys{status=\"processing\"} 3");
    assert_line("semel_idempotency_keys{status=\"unknown\"} 5");
    assert_line("semel_idempotency_stuck_keys 1");
    assert_line("semel_idempotency_unknown_keys{cause=\"timeout\"} 4");
    assert_line("semel_idempotency_unknown_keys{cause=\"_other\"} 1");
    assert_line("semel_idempotency_oldest_unknown_age_seconds 60");
    char many[100][16];
    for (int round = 0; round < 100; round++) { /* causes are an application's own words: series are bounded */
        snprintf(many[round], sizeof(many[round]), "cause-%d", round);
        keys.causes[0].cause = semel__str(many[round]);
        keys.n_causes = 1;
        semel__stats_keys_rows(stats, &keys, now_us);
    }
    assert_line("semel_idempotency_unknown_keys{cause=\"timeout\"} 0");
    assert_line("semel_idempotency_unknown_keys{cause=\"cause-0\"} 0");
    assert_line("semel_idempotency_unknown_keys{cause=\"_other\"} 4");
    assert_null(strstr(shown(), "cause-99"));
}

static void requests_of_a_gateway_are_counted_once_by_difference(void **state) /* M A1 */
{
    (void)state;
    struct semel_gateway_stats *gateway = semel__stats_gateway(stats, SEMEL_STR("payments"), "GUARDED");
    assert_non_null(gateway);
    semel__stats_gateway_result(gateway, "replayed", 5);
    semel__stats_gateway_result(gateway, "replayed", 7);
    semel__stats_gateway_unknown(gateway, "timeout", 2);
    semel__stats_gateway_now(gateway, &(struct semel_gateway_now){.up = true, .running = 4, .held_bytes = 100});
    assert_line("semel_gateway_info{gateway=\"payments\",guarantee=\"GUARDED\"} 1");
    assert_line("semel_gateway_requests_total{gateway=\"payments\",result=\"replayed\"} 7");
    assert_line("semel_gateway_unknown_total{gateway=\"payments\",cause=\"timeout\"} 2");
    assert_line("semel_gateway_up{gateway=\"payments\"} 1");
    assert_line("semel_gateway_running{gateway=\"payments\"} 4");
}

/* ---- the page ----------------------------------------------------------------------------------------- */

static void the_page_has_every_family_with_its_kind_and_labels(void **state)
{
    (void)state;
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    static char page[65536];
    FILE *file = fopen(METRICS_PAGE, "r");
    assert_non_null(file);
    page[0] = '\n';
    page[1 + fread(page + 1, 1, sizeof(page) - 2, file)] = '\0';
    fclose(file);
    for (size_t i = 0; i < SEMEL_FAMILY_COUNT; i++) {
        const struct semel_metric_spec *spec = &semel__families[i];
        char row[1024];
        int n = snprintf(row, sizeof(row), "\n| `%s` | %s | ", spec->name, kinds[spec->kind]);
        for (size_t k = 0; k < spec->n_labels; k++)
            n += snprintf(row + n, sizeof(row) - (size_t)n, "%s%s", k > 0 ? ", " : "", spec->labels[k]);
        snprintf(row + n, sizeof(row) - (size_t)n, " | %s |\n", spec->help);
        if (strstr(page, row) == NULL)
            fail_msg("%s lacks%s", METRICS_PAGE, row);
    }
    size_t rows = 0;
    for (const char *p = strstr(page, "\n| `"); p != NULL; p = strstr(p + 1, "\n| `"))
        rows++;
    assert_int_equal(rows, SEMEL_FAMILY_COUNT);
}

/* ---- threads ------------------------------------------------------------------------------------------ */

enum { THREADS = 4, ROUNDS = 300, EACH = 20 };

static void *count_up(void *arg)
{
    struct semel__msg msgs[EACH];
    struct semel_settled ends[EACH];
    static const char *const types[] = {"a", "b", "c", "d", "e", "f", "g"};
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < EACH; i++) {
            msgs[i] = msg("s", types[(round + i) % COUNT(types)]);
            ends[i] = settled(SEMEL_WHY_NEW, SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
        }
        semel__stats_report(arg, msgs, ends, EACH, 100);
        struct semel_counts counts = {.done = round + 1};
        counts.classes[SEMEL_CLASS_TRANSIENT] = (round + 1) * EACH;
        semel__stats_counts(arg, &counts);
        semel__stats_store_up(route, round % 2 == 0);
        semel__stats_breaker(route, round % 2 == 0 ? SEMEL_BREAKER_OPEN : SEMEL_BREAKER_CLOSED);
        semel__stats_source(route, round, (int64_t)round, 1, 0);
        semel__stats_alert(route, SEMEL_ALERT_DEAD);
    }
    return NULL;
}

static void threads_lose_no_count(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        struct semel_worker_stats *own = semel__stats_worker(route);
        assert_non_null(own);
        assert_int_equal(pthread_create(&threads[i], NULL, count_up, own), 0);
    }
    shown();
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(messages(), THREADS * ROUNDS * EACH);
    assert_line("semel_attempts_total{consumer=\"billing\",result=\"done\"} 1200");
    assert_line("semel_alerts_total{consumer=\"billing\",kind=\"dead\"} 1200");
    assert_line("semel_failures_total{consumer=\"billing\",class=\"transient\"} 24000");
}

static void without_memory_there_are_no_stats_and_no_leak(void **state)
{
    (void)state;
    struct fail_nth fail;
    bool reached = true;
    for (unsigned at = 1; reached; at++) {
        struct semel_error err;
        struct semel_stats *other = NULL;
        fail_nth_begin(&fail, at);
        semel_status status = semel__stats_new(&other, &err);
        struct semel_route_stats *r = status == SEMEL_OK ? semel__stats_route(other, SEMEL_STR("c"), "atomic") : NULL;
        struct semel_worker_stats *w = r != NULL ? semel__stats_worker(r) : NULL;
        if (w != NULL) {
            struct semel__msg m = msg("s", "t");
            struct semel_settled end = settled(SEMEL_WHY_NEW, SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
            semel__stats_report(w, &m, &end, 1, 1);
        }
        reached = fail_nth_end(&fail);
        assert_true(status == SEMEL_OK || status == SEMEL_RETRY);
        if (status == SEMEL_OK)
            semel__stats_free(other);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, up, down)
    const struct CMUnitTest tests[] = {
        CASE(deliveries_are_counted_by_source_type_and_why),
        CASE(failures_are_counted_by_class_and_add_up_to_the_attempts),
        CASE(the_age_of_a_message_runs_from_its_own_time),
        CASE(strange_labels_cost_no_count_and_no_memory),
        CASE(what_an_inbox_counted_is_added_once),
        CASE(alerts_calls_and_the_breaker_are_shown),
        CASE(the_world_is_up_or_was_lost),
        CASE(rows_by_state_fall_back_to_nothing),
        CASE(causes_of_unknown_keys_fall_back_to_zero_and_rare_ones_are_others),
        CASE(requests_of_a_gateway_are_counted_once_by_difference),
        CASE(the_page_has_every_family_with_its_kind_and_labels),
        CASE(threads_lose_no_count),
        CASE(without_memory_there_are_no_stats_and_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
