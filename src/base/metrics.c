/* SPDX-License-Identifier: MIT
 *
 * metrics.c: the registry: families, series and counting; and its Prometheus text.
 *
 * The series of a family are a list to which only the family's lock appends; the first is "_other". A lookup walks
 * the heads, then the siblings of one: callers keep the series, and both lists are bounded.
 *
 * Invariants: families are linked before threads start; `first` of a family is its "_other", or its only series when
 * it has no labels, and the first of the heads: a head is the first series of its first label's value; `next` and
 * `used` of a series are read and written under the family's lock. The memory of a series is one block and is never
 * moved; counts are relaxed atomics, for they order nothing.
 */
#include "base/metrics.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/number.h"

struct semel_series {
    const struct semel_metric *metric;
    struct semel_series *next;
    struct semel_series *sibling, *head;          /* the next of the same first label; of a head, the next head */
    size_t in_group;                              /* of a head: how many have its first label */
    struct semel_str values[SEMEL_METRIC_LABELS]; /* their bytes stand behind the counts */
    bool used;                                    /* "_other" is shown only after it was used */
    _Atomic double value;                         /* a gauge, or the sum of a histogram */
    _Atomic uint64_t counts[];                    /* a counter, or the buckets of a histogram, not cumulated */
};

struct semel_metric {
    struct semel_metric_spec spec;
    struct semel_metric *next;
    pthread_mutex_t lock;
    struct semel_series *first, *last;
    size_t count, max; /* without "_other" */
};

struct semel_metrics {
    struct semel_metric *first, **last;
};

#define SERIES_DEFAULT 100
#define OTHER "_other"

semel_status semel__metrics_new(struct semel_metrics **ret, struct semel_error *err)
{
    struct semel_metrics *metrics = semel__calloc(1, sizeof(*metrics));
    if (metrics == NULL)
        return semel__fail_memory(err);
    metrics->last = &metrics->first;
    *ret = metrics;
    return SEMEL_OK;
}

static void metric_free(struct semel_metric *metric)
{
    struct semel_series *series = metric->first;
    while (series != NULL) {
        struct semel_series *next = series->next;
        semel__free(series);
        series = next;
    }
    pthread_mutex_destroy(&metric->lock);
    semel__free(metric);
}

void semel__metrics_free(struct semel_metrics *metrics)
{
    if (metrics == NULL)
        return;
    struct semel_metric *metric = metrics->first;
    while (metric != NULL) {
        struct semel_metric *next = metric->next;
        metric_free(metric);
        metric = next;
    }
    semel__free(metrics);
}

static bool name_valid(const char *name, bool colons)
{
    for (const char *p = name; *p != '\0'; p++) {
        bool letter = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p == '_' || (colons && *p == ':');
        if (!letter && (p == name || *p < '0' || *p > '9'))
            return false;
    }
    return name[0] != '\0';
}

static bool labels_valid(const struct semel_metric_spec *spec)
{
    for (size_t i = 0; i < spec->n_labels; i++) {
        const char *label = spec->labels[i];
        if (!name_valid(label, false) || strncmp(label, "__", 2) == 0)
            return false;
        if (spec->kind == SEMEL_HISTOGRAM && strcmp(label, "le") == 0)
            return false;
        for (size_t j = 0; j < i; j++)
            if (strcmp(label, spec->labels[j]) == 0)
                return false;
    }
    return spec->n_labels <= SEMEL_METRIC_LABELS;
}

static bool buckets_valid(const struct semel_metric_spec *spec)
{
    if (spec->kind != SEMEL_HISTOGRAM)
        return spec->n_buckets == 0;
    for (size_t i = 0; i < spec->n_buckets; i++)
        if (!isfinite(spec->buckets[i]) || (i > 0 && spec->buckets[i] <= spec->buckets[i - 1]))
            return false;
    return spec->n_buckets > 0 && spec->n_buckets <= SEMEL_METRIC_BUCKETS;
}

static bool ends_in_total(const char *name)
{
    size_t n = strlen(name);
    return n > 6 && strcmp(name + n - 6, "_total") == 0;
}

static semel_status spec_check(const struct semel_metrics *metrics, const struct semel_metric_spec *spec,
                               struct semel_error *err)
{
    const char *fault = NULL;
    if (!name_valid(spec->name, true))
        fault = "its name has a character that is not allowed";
    else if (spec->kind == SEMEL_COUNTER && !ends_in_total(spec->name))
        fault = "a counter's name ends in _total";
    else if (!labels_valid(spec))
        fault = "a label is repeated, reserved, one too many or has a character that is not allowed";
    else if (!buckets_valid(spec))
        fault = "buckets are finite, rise, and belong to a histogram, which has some";
    for (const struct semel_metric *m = metrics->first; fault == NULL && m != NULL; m = m->next)
        if (strcmp(m->spec.name, spec->name) == 0)
            fault = "there is one of that name";
    if (fault == NULL)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "metric %s: %s", spec->name, fault);
}

/* The bytes of a value that are kept: at most SEMEL_LABEL_MAX, only whole characters. */
static size_t kept(struct semel_str value)
{
    size_t n = 0;
    while (n < value.n) {
        uint32_t c;
        size_t step = semel__utf8_next((struct semel_str){value.p + n, value.n - n}, &c);
        if (step == 0)
            step = 1; /* a bad byte, shown as '?' */
        if (n + step > SEMEL_LABEL_MAX)
            break;
        n += step;
    }
    return n;
}

static struct semel_series *series_new(const struct semel_metric *metric, const struct semel_str *values)
{
    const struct semel_metric_spec *spec = &metric->spec;
    size_t n_counts = spec->kind == SEMEL_HISTOGRAM ? spec->n_buckets + 1 : 1;
    size_t bytes = sizeof(struct semel_series) + n_counts * sizeof(_Atomic uint64_t);
    size_t at = bytes;
    for (size_t i = 0; i < spec->n_labels; i++)
        bytes += values[i].n;
    struct semel_series *series = semel__calloc(1, bytes);
    if (series == NULL)
        return NULL;
    series->metric = metric;
    for (size_t i = 0; i < spec->n_labels; i++) {
        char *p = (char *)series + at;
        if (values[i].n > 0)
            memcpy(p, values[i].p, values[i].n);
        series->values[i] = (struct semel_str){p, values[i].n};
        at += values[i].n;
    }
    return series;
}

semel_status semel__metric_add(struct semel_metrics *metrics, const struct semel_metric_spec *spec,
                               struct semel_metric **ret, struct semel_error *err)
{
    semel_status status = spec_check(metrics, spec, err);
    if (status != SEMEL_OK)
        return status;
    struct semel_metric *metric = semel__calloc(1, sizeof(*metric));
    if (metric == NULL)
        return semel__fail_memory(err);
    metric->spec = *spec;
    metric->max = spec->max_series > 0 ? spec->max_series : SERIES_DEFAULT;

    struct semel_str other[SEMEL_METRIC_LABELS] = {{NULL, 0}};
    for (size_t i = 0; i < spec->n_labels; i++)
        other[i] = SEMEL_STR(OTHER);
    metric->first = series_new(metric, other);
    if (metric->first == NULL) {
        semel__free(metric);
        return semel__fail_memory(err);
    }
    pthread_mutex_init(&metric->lock, NULL);
    metric->last = metric->first;
    metric->first->used = spec->n_labels == 0;
    *metrics->last = metric;
    metrics->last = &metric->next;
    *ret = metric;
    return SEMEL_OK;
}

static bool same(const struct semel_series *series, const struct semel_str *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!semel__str_eq(series->values[i], values[i]))
            return false;
    return true;
}

/* Appends it to the list and to its group; without a group it is the head of a new one. */
static struct semel_series *add(struct semel_metric *metric, struct semel_series *head, const struct semel_str *values)
{
    struct semel_series *series = metric->count < metric->max ? series_new(metric, values) : NULL;
    assert(metric->first != NULL); /* the series of what has no room */
    if (series == NULL)
        return metric->first;
    if (head == NULL) {
        head = series;
        series->head = metric->first->head;
        metric->first->head = series;
    } else {
        series->sibling = head->sibling;
        head->sibling = series;
    }
    head->in_group++;
    metric->last->next = series;
    metric->last = series;
    metric->count++;
    return series;
}

static struct semel_series *find(struct semel_series *head, const struct semel_str *values, size_t n)
{
    while (head != NULL && !same(head, values, n))
        head = head->sibling;
    return head;
}

static struct semel_series *find_or_add(struct semel_metric *metric, struct semel_str *values)
{
    const struct semel_metric_spec *spec = &metric->spec;
    struct semel_series *head = metric->first;
    while (head != NULL && !semel__str_eq(head->values[0], values[0]))
        head = head->head;
    struct semel_series *series = find(head, values, spec->n_labels);
    if (series == NULL && head != NULL && spec->max_each > 0 && head->in_group >= spec->max_each) {
        for (size_t i = 0; i < spec->n_labels; i++)
            if (spec->outside >> i & 1u)
                values[i] = SEMEL_STR(OTHER);
        series = find(head, values, spec->n_labels);
    }
    return series != NULL ? series : add(metric, head, values);
}

struct semel_series *semel__metric_at(struct semel_metric *metric, const struct semel_str *values)
{
    struct semel_str cut[SEMEL_METRIC_LABELS] = {{NULL, 0}};
    for (size_t i = 0; i < metric->spec.n_labels; i++)
        cut[i] = (struct semel_str){values[i].p != NULL ? values[i].p : "", kept(values[i])};
    pthread_mutex_lock(&metric->lock);
    struct semel_series *series = metric->spec.n_labels == 0 ? metric->first : find_or_add(metric, cut);
    series->used = true;
    pthread_mutex_unlock(&metric->lock);
    return series;
}

static void add_double(_Atomic double *at, double delta)
{
    double old = atomic_load_explicit(at, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(at, &old, old + delta, memory_order_relaxed, memory_order_relaxed))
        continue;
}

void semel__count(struct semel_series *series, uint64_t n)
{
    assert(series->metric->spec.kind == SEMEL_COUNTER);
    atomic_fetch_add_explicit(&series->counts[0], n, memory_order_relaxed);
}

void semel__gauge_set(struct semel_series *series, double value)
{
    assert(series->metric->spec.kind == SEMEL_GAUGE);
    atomic_store_explicit(&series->value, value, memory_order_relaxed);
}

void semel__observe(struct semel_series *series, double value)
{
    const struct semel_metric_spec *spec = &series->metric->spec;
    assert(spec->kind == SEMEL_HISTOGRAM);
    size_t i = 0;
    while (i < spec->n_buckets && !(value <= spec->buckets[i]))
        i++;
    atomic_fetch_add_explicit(&series->counts[i], 1, memory_order_relaxed);
    add_double(&series->value, value);
}

/* ==== the text ======================================================================================
 *
 * Prometheus' format 0.0.4:
 *
 *     # HELP name text          with \\ and \n escaped
 *     # TYPE name counter
 *     name{label="value"} 1     with \\, \" and \n escaped
 *
 * Invariants: a family without a series that was used is not shown; within a histogram the buckets
 * are cumulated from one reading of the counts, so they never fall and +Inf is the count.
 */

static const char *const kind_names[] = {"counter", "gauge", "histogram"};

static void put_escaped(struct semel_buf *buf, struct semel_str s, bool quotes)
{
    while (s.n > 0) {
        uint32_t c;
        size_t n = semel__utf8_next(s, &c);
        if (n == 0 || c == 0)
            semel__buf_add(buf, "?", 1);
        else if (c == '\n')
            semel__buf_addz(buf, "\\n");
        else if (c == '\\' || (quotes && c == '"'))
            semel__buf_addf(buf, "\\%c", (char)c);
        else
            semel__buf_add(buf, s.p, n);
        n = n > 0 ? n : 1;
        s = (struct semel_str){s.p + n, s.n - n};
    }
}

static void put_double(struct semel_buf *buf, double value)
{
    if (!isfinite(value)) {
        semel__buf_addz(buf, isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
        return;
    }
    char text[SEMEL_NUMBER_TEXT];
    struct semel_decimal decimal = semel__decimal_of_double(value);
    semel__buf_add(buf, text, semel__decimal_write(&decimal, text));
}

/* name_suffix{labels,le="bound"} and the blank before the value. */
static void put_name(struct semel_buf *buf, const struct semel_series *series, const char *suffix, const double *le)
{
    const struct semel_metric_spec *spec = &series->metric->spec;
    const char *before = "{";
    semel__buf_addf(buf, "%s%s", spec->name, suffix);
    for (size_t i = 0; i < spec->n_labels; i++) {
        semel__buf_addf(buf, "%s%s=\"", before, spec->labels[i]);
        put_escaped(buf, series->values[i], true);
        semel__buf_addz(buf, "\"");
        before = ",";
    }
    if (le != NULL) {
        semel__buf_addf(buf, "%sle=\"", before);
        put_double(buf, *le);
        semel__buf_addz(buf, "\"");
    }
    semel__buf_addz(buf, spec->n_labels > 0 || le != NULL ? "} " : " ");
}

static void put_histogram(struct semel_buf *buf, const struct semel_series *series)
{
    const struct semel_metric_spec *spec = &series->metric->spec;
    uint64_t count = 0;
    for (size_t i = 0; i <= spec->n_buckets; i++) {
        const double bound = i < spec->n_buckets ? spec->buckets[i] : (double)INFINITY;
        count += atomic_load_explicit(&series->counts[i], memory_order_relaxed);
        put_name(buf, series, "_bucket", &bound);
        semel__buf_addf(buf, "%" PRIu64 "\n", count);
    }
    put_name(buf, series, "_sum", NULL);
    put_double(buf, atomic_load_explicit(&series->value, memory_order_relaxed));
    semel__buf_addz(buf, "\n");
    put_name(buf, series, "_count", NULL);
    semel__buf_addf(buf, "%" PRIu64 "\n", count);
}

static void put_series(struct semel_buf *buf, const struct semel_series *series)
{
    switch (series->metric->spec.kind) {
    case SEMEL_COUNTER:
        put_name(buf, series, "", NULL);
        semel__buf_addf(buf, "%" PRIu64 "\n", atomic_load_explicit(&series->counts[0], memory_order_relaxed));
        return;
    case SEMEL_GAUGE:
        put_name(buf, series, "", NULL);
        put_double(buf, atomic_load_explicit(&series->value, memory_order_relaxed));
        semel__buf_addz(buf, "\n");
        return;
    case SEMEL_HISTOGRAM:
        put_histogram(buf, series);
        return;
    }
}

static void put_metric(struct semel_buf *buf, struct semel_metric *metric)
{
    bool headed = false;
    pthread_mutex_lock(&metric->lock);
    for (const struct semel_series *series = metric->first; series != NULL; series = series->next) {
        if (!series->used)
            continue;
        if (!headed) {
            semel__buf_addf(buf, "# HELP %s ", metric->spec.name);
            put_escaped(buf, semel__str(metric->spec.help), false);
            semel__buf_addf(buf, "\n# TYPE %s %s\n", metric->spec.name, kind_names[metric->spec.kind]);
            headed = true;
        }
        put_series(buf, series);
    }
    pthread_mutex_unlock(&metric->lock);
}

bool semel__metrics_render(struct semel_metrics *metrics, struct semel_buf *buf)
{
    for (struct semel_metric *metric = metrics->first; metric != NULL; metric = metric->next)
        put_metric(buf, metric);
    return !buf->failed;
}
