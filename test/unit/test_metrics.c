/* SPDX-License-Identifier: MIT
 *
 * test_metrics.c: what is counted is shown, in the text that Prometheus reads, and nothing grows without bound.
 */
#include "base/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "unit.h"

#define TEXT_MAX 65536
#define THREADS 4
#define ROUNDS 5000

struct shelf {
    struct semel_metrics *metrics;
    struct semel_buf buf;
};

static int set_up(void **state)
{
    static struct shelf shelf;
    struct semel_error err;
    assert_int_equal(semel__metrics_new(&shelf.metrics, &err), SEMEL_OK);
    semel__buf_init(&shelf.buf, TEXT_MAX);
    *state = &shelf;
    return 0;
}

static int tear_down(void **state)
{
    struct shelf *shelf = *state;
    semel__metrics_free(shelf->metrics);
    semel__buf_done(&shelf->buf);
    return 0;
}

static struct semel_metric *add(struct shelf *shelf, struct semel_metric_spec spec)
{
    struct semel_metric *metric = NULL;
    struct semel_error err;
    assert_int_equal(semel__metric_add(shelf->metrics, &spec, &metric, &err), SEMEL_OK);
    return metric;
}

static void assert_text(struct shelf *shelf, const char *expected)
{
    shelf->buf.n = 0;
    assert_true(semel__metrics_render(shelf->metrics, &shelf->buf));
    assert_true(semel__buf_add(&shelf->buf, "", 1));
    assert_string_equal(shelf->buf.p, expected);
}

static const char *const route_and_why[] = {"route", "why"};
static const char *const route_only[] = {"route"};

static void counters_of_several_series_stand_together(void **state)
{
    struct shelf *shelf = *state;
    struct semel_metric *m = add(shelf, (struct semel_metric_spec){.kind = SEMEL_COUNTER,
                                                                   .name = "semel_messages_total",
                                                                   .help = "Messages by verdict.",
                                                                   .labels = route_and_why,
                                                                   .n_labels = 2});
    struct semel_metric *up = add(shelf, (struct semel_metric_spec){.kind = SEMEL_GAUGE, .name = "up", .help = "Up?"});
    struct semel_str one[] = {SEMEL_STR("billing"), SEMEL_STR("new")}, two[] = {SEMEL_STR("mail"), SEMEL_STR("dead")};
    semel__count(semel__metric_at(m, one), 3);
    semel__gauge_set(semel__metric_at(up, NULL), 0.5);
    semel__count(semel__metric_at(m, two), UINT64_MAX);
    semel__count(semel__metric_at(m, one), 2);
    assert_ptr_equal(semel__metric_at(m, one), semel__metric_at(m, one));
    assert_text(shelf, "# HELP semel_messages_total Messages by verdict.\n"
                       "# TYPE semel_messages_total counter\n"
                       "semel_messages_total{route=\"billing\",why=\"new\"} 5\n"
                       "semel_messages_total{route=\"mail\",why=\"dead\"} 18446744073709551615\n"
                       "# HELP up Up?\n# TYPE up gauge\nup 0.5\n");
}

static void a_family_without_labels_is_shown_before_it_counted(void **state)
{
    struct shelf *shelf = *state;
    add(shelf, (struct semel_metric_spec){.kind = SEMEL_COUNTER, .name = "a_total", .help = "A."});
    add(shelf, (struct semel_metric_spec){
                   .kind = SEMEL_COUNTER, .name = "b_total", .help = "B.", .labels = route_only, .n_labels = 1});
    assert_text(shelf, "# HELP a_total A.\n# TYPE a_total counter\na_total 0\n");
}

static void values_and_help_are_escaped(void **state)
{
    struct shelf *shelf = *state;
    struct semel_metric *m = add(shelf, (struct semel_metric_spec){.kind = SEMEL_GAUGE,
                                                                   .name = "g",
                                                                   .help = "a \\ b\nc \"d\"",
                                                                   .labels = route_only,
                                                                   .n_labels = 1});
    struct semel_str odd[] = {SEMEL_STR("a\\b\"c\nd}\xC3\xA9"), SEMEL_STR("\xFFz\x80"), SEMEL_STR("n\0l"), {NULL, 0}};
    for (size_t i = 0; i < COUNT(odd); i++)
        semel__gauge_set(semel__metric_at(m, &odd[i]), 1);
    assert_text(shelf, "# HELP g a \\\\ b\\nc \"d\"\n# TYPE g gauge\n"
                       "g{route=\"a\\\\b\\\"c\\nd}\xC3\xA9\"} 1\n"
                       "g{route=\"?z?\"} 1\ng{route=\"n?l\"} 1\ng{route=\"\"} 1\n");
}

static void gauges_show_every_double(void **state)
{
    struct shelf *shelf = *state;
    struct semel_metric *m = add(
        shelf,
        (struct semel_metric_spec){.kind = SEMEL_GAUGE, .name = "g", .help = "", .labels = route_only, .n_labels = 1});
    static const double values[] = {0, -1.5, 1e21, 1e-7, 0.1, NAN, INFINITY, -INFINITY, 1700000000};
    for (size_t i = 0; i < COUNT(values); i++) {
        char name[2] = {(char)('a' + i), '\0'};
        struct semel_str label = semel__str(name);
        semel__gauge_set(semel__metric_at(m, &label), values[i]);
    }
    assert_text(shelf, "# HELP g \n# TYPE g gauge\n"
                       "g{route=\"a\"} 0\ng{route=\"b\"} -1.5\ng{route=\"c\"} 1e+21\ng{route=\"d\"} 1e-7\n"
                       "g{route=\"e\"} 0.1\ng{route=\"f\"} NaN\ng{route=\"g\"} +Inf\ng{route=\"h\"} -Inf\n"
                       "g{route=\"i\"} 1700000000\n");
}

static void a_histogram_cumulates_its_buckets(void **state)
{
    struct shelf *shelf = *state;
    static const double buckets[] = {0.01, 0.1, 1};
    struct semel_metric *m = add(shelf, (struct semel_metric_spec){.kind = SEMEL_HISTOGRAM,
                                                                   .name = "took_seconds",
                                                                   .help = "How long.",
                                                                   .labels = route_only,
                                                                   .n_labels = 1,
                                                                   .buckets = buckets,
                                                                   .n_buckets = 3});
    struct semel_str label = SEMEL_STR("x");
    struct semel_series *series = semel__metric_at(m, &label);
    static const double values[] = {0.01, 0.0625, 0.5, 1.0, 32};
    for (size_t i = 0; i < COUNT(values); i++)
        semel__observe(series, values[i]);
    assert_text(shelf, "# HELP took_seconds How long.\n# TYPE took_seconds histogram\n"
                       "took_seconds_bucket{route=\"x\",le=\"0.01\"} 1\n"
                       "took_seconds_bucket{route=\"x\",le=\"0.1\"} 2\n"
                       "took_seconds_bucket{route=\"x\",le=\"1\"} 4\n"
                       "took_seconds_bucket{route=\"x\",le=\"+Inf\"} 5\n"
                       "took_seconds_sum{route=\"x\"} 33.5725\n"
                       "took_seconds_count{route=\"x\"} 5\n");
    semel__observe(series, NAN);
    shelf->buf.n = 0;
    assert_true(semel__metrics_render(shelf->metrics, &shelf->buf));
    assert_true(semel__buf_add(&shelf->buf, "", 1));
    assert_non_null(strstr(shelf->buf.p, "le=\"1\"} 4\ntook_seconds_bucket{route=\"x\",le=\"+Inf\"} 6\n"));
}

static void labels_past_the_bound_are_counted_as_other(void **state)
{
    struct shelf *shelf = *state;
    struct semel_metric *m = add(shelf, (struct semel_metric_spec){.kind = SEMEL_COUNTER,
                                                                   .name = "c_total",
                                                                   .help = "C.",
                                                                   .labels = route_only,
                                                                   .n_labels = 1,
                                                                   .max_series = 2});
    static const char *const names[] = {"a", "b", "c", "d", "a"};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct semel_str label = semel__str(names[i]);
        semel__count(semel__metric_at(m, &label), 1);
    }
    assert_text(shelf, "# HELP c_total C.\n# TYPE c_total counter\n"
                       "c_total{route=\"_other\"} 2\nc_total{route=\"a\"} 2\nc_total{route=\"b\"} 1\n");
}

/* B9 */
static void one_value_of_the_first_label_cannot_crowd_out_another(void **state)
{
    struct shelf *shelf = *state;
    static const char *const labels[] = {"consumer", "type", "why"};
    struct semel_metric *m = add(shelf, (struct semel_metric_spec){.kind = SEMEL_COUNTER,
                                                                   .name = "c_total",
                                                                   .help = "C.",
                                                                   .labels = labels,
                                                                   .n_labels = 3,
                                                                   .max_series = 100,
                                                                   .max_each = 2,
                                                                   .outside = 1u << 1});
    static const char *const said[][3] = {{"a", "t1", "new"}, {"a", "t2", "new"}, {"a", "t3", "new"},
                                          {"a", "t4", "old"}, {"a", "t5", "new"}, {"b", "t3", "new"},
                                          {"a", "t1", "new"}, {"b", "t4", "new"}};
    for (size_t i = 0; i < COUNT(said); i++) {
        struct semel_str values[] = {semel__str(said[i][0]), semel__str(said[i][1]), semel__str(said[i][2])};
        semel__count(semel__metric_at(m, values), 1);
    }
    assert_text(shelf, "# HELP c_total C.\n# TYPE c_total counter\n"
                       "c_total{consumer=\"a\",type=\"t1\",why=\"new\"} 2\n"
                       "c_total{consumer=\"a\",type=\"t2\",why=\"new\"} 1\n"
                       "c_total{consumer=\"a\",type=\"_other\",why=\"new\"} 2\n"
                       "c_total{consumer=\"a\",type=\"_other\",why=\"old\"} 1\n"
                       "c_total{consumer=\"b\",type=\"t3\",why=\"new\"} 1\n"
                       "c_total{consumer=\"b\",type=\"t4\",why=\"new\"} 1\n");
}

static void a_long_value_is_cut_between_characters(void **state)
{
    struct shelf *shelf = *state;
    struct semel_metric *m = add(
        shelf,
        (struct semel_metric_spec){.kind = SEMEL_GAUGE, .name = "g", .help = "", .labels = route_only, .n_labels = 1});
    char text[1000], shown[SEMEL_LABEL_MAX];
    memset(text, 'x', sizeof(text));
    memcpy(text + SEMEL_LABEL_MAX - 1, "\xC3\xA9", 2); /* its second byte would be one too many */
    struct semel_str label = {text, sizeof(text)};
    semel__gauge_set(semel__metric_at(m, &label), 7);
    memset(shown, 'x', sizeof(shown));
    shown[SEMEL_LABEL_MAX - 1] = '\0';
    char expected[SEMEL_LABEL_MAX + 100];
    snprintf(expected, sizeof(expected), "# HELP g \n# TYPE g gauge\ng{route=\"%s\"} 7\n", shown);
    assert_text(shelf, expected);
}

static void a_family_that_the_format_forbids_is_refused(void **state)
{
    struct shelf *shelf = *state;
    static const double falling[] = {1, 1}, endless[] = {1, INFINITY};
    static const char *const le[] = {"le"}, *const hidden[] = {"__x"}, *const twice[] = {"a", "a"},
                             *const dash[] = {"a-b"}, *const none[] = {""};
    static const char *const nine[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    const struct semel_metric_spec bad[] = {
        {.kind = SEMEL_GAUGE, .name = ""},
        {.kind = SEMEL_GAUGE, .name = "1a"},
        {.kind = SEMEL_GAUGE, .name = "a-b"},
        {.kind = SEMEL_COUNTER, .name = "a"},
        {.kind = SEMEL_COUNTER, .name = "_total"},
        {.kind = SEMEL_GAUGE, .name = "there"},
        {.kind = SEMEL_GAUGE, .name = "a", .labels = hidden, .n_labels = 1},
        {.kind = SEMEL_GAUGE, .name = "a", .labels = twice, .n_labels = 2},
        {.kind = SEMEL_GAUGE, .name = "a", .labels = dash, .n_labels = 1},
        {.kind = SEMEL_GAUGE, .name = "a", .labels = none, .n_labels = 1},
        {.kind = SEMEL_GAUGE, .name = "a", .labels = nine, .n_labels = 9},
        {.kind = SEMEL_GAUGE, .name = "a", .buckets = falling, .n_buckets = 1},
        {.kind = SEMEL_HISTOGRAM, .name = "a"},
        {.kind = SEMEL_HISTOGRAM, .name = "a", .buckets = falling, .n_buckets = 2},
        {.kind = SEMEL_HISTOGRAM, .name = "a", .buckets = endless, .n_buckets = 2},
        {.kind = SEMEL_HISTOGRAM, .name = "a", .buckets = falling, .n_buckets = 1, .labels = le, .n_labels = 1},
    };
    add(shelf, (struct semel_metric_spec){.kind = SEMEL_GAUGE, .name = "there", .help = ""});
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct semel_metric *metric = NULL;
        struct semel_error err;
        assert_int_equal(semel__metric_add(shelf->metrics, &bad[i], &metric, &err), SEMEL_INVALID);
        assert_null(metric);
    }
    assert_text(shelf, "# HELP there \n# TYPE there gauge\nthere 0\n");
}

static void without_memory_nothing_is_lost_but_the_label(void **state)
{
    struct shelf *shelf = *state;
    struct semel_metric *m = add(shelf, (struct semel_metric_spec){.kind = SEMEL_COUNTER,
                                                                   .name = "c_total",
                                                                   .help = "C.",
                                                                   .labels = route_only,
                                                                   .n_labels = 1});
    struct semel_str label = SEMEL_STR("a");
    struct fail_nth fail;
    fail_nth_begin(&fail, 1);
    semel__count(semel__metric_at(m, &label), 1);
    assert_true(fail_nth_end(&fail));
    semel__count(semel__metric_at(m, &label), 1);
    assert_text(shelf, "# HELP c_total C.\n# TYPE c_total counter\n"
                       "c_total{route=\"_other\"} 1\nc_total{route=\"a\"} 1\n");
}

static void a_text_past_the_bound_of_its_buffer_is_told(void **state)
{
    struct shelf *shelf = *state;
    struct semel_buf small;
    semel__buf_init(&small, 10);
    add(shelf, (struct semel_metric_spec){.kind = SEMEL_GAUGE, .name = "there", .help = ""});
    assert_false(semel__metrics_render(shelf->metrics, &small));
    semel__buf_done(&small);
}

struct work {
    struct shelf *shelf;
    struct semel_metric *counter, *histogram;
};

static void *count_up(void *arg)
{
    struct work *work = arg;
    for (int i = 0; i < ROUNDS; i++) {
        char name[2] = {(char)('a' + i % 20), '\0'};
        struct semel_str label = semel__str(name);
        semel__count(semel__metric_at(work->counter, &label), 1);
        semel__observe(semel__metric_at(work->histogram, NULL), 1);
    }
    return NULL;
}

static void threads_lose_no_count(void **state)
{
    struct shelf *shelf = *state;
    static const double buckets[] = {2};
    struct work work = {.shelf = shelf};
    work.histogram = add(shelf,
                         (struct semel_metric_spec){
                             .kind = SEMEL_HISTOGRAM, .name = "h", .help = "", .buckets = buckets, .n_buckets = 1});
    work.counter = add(shelf, (struct semel_metric_spec){.kind = SEMEL_COUNTER,
                                                         .name = "c_total",
                                                         .help = "",
                                                         .labels = route_only,
                                                         .n_labels = 1,
                                                         .max_series = 10});
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_up, &work), 0);
    assert_true(semel__metrics_render(shelf->metrics, &shelf->buf));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);

    shelf->buf.n = 0;
    assert_true(semel__metrics_render(shelf->metrics, &shelf->buf));
    assert_true(semel__buf_add(&shelf->buf, "", 1));
    assert_non_null(strstr(shelf->buf.p, "h_bucket{le=\"+Inf\"} 20000\nh_sum 20000\nh_count 20000\n"));
    unsigned long sum = 0;
    for (const char *p = strstr(shelf->buf.p, "c_total{"); p != NULL; p = strstr(p + 1, "c_total{"))
        sum += strtoul(strchr(p, '}') + 1, NULL, 10);
    assert_int_equal(sum, THREADS * ROUNDS);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(counters_of_several_series_stand_together),
        CASE(a_family_without_labels_is_shown_before_it_counted),
        CASE(values_and_help_are_escaped),
        CASE(gauges_show_every_double),
        CASE(a_histogram_cumulates_its_buckets),
        CASE(labels_past_the_bound_are_counted_as_other),
        CASE(one_value_of_the_first_label_cannot_crowd_out_another),
        CASE(a_long_value_is_cut_between_characters),
        CASE(a_family_that_the_format_forbids_is_refused),
        CASE(without_memory_nothing_is_lost_but_the_label),
        CASE(a_text_past_the_bound_of_its_buffer_is_told),
        CASE(threads_lose_no_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
