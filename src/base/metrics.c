/* SPDX-License-Identifier: MIT
 *
 * metrics.c: the registry: families, series and counting. The text is metrics_text.c.
 *
 * The series of a family are a list to which only the family's lock appends; the first is "_other".
 * A look-up walks the heads, then the siblings of one: callers keep what they found, and both lists are bounded.
 *
 * Invariants: the memory of a series is one block and is never moved; counts are relaxed atomics,
 * for they order nothing.
 */
#include "base/metrics.h"

#include <assert.h>
#include <math.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/metrics_tree.h"

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

/* The bytes of a value that are kept: at most SEMEL_LABEL_MAX, and whole characters. */
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

/* Adds it behind the last, and to its group; no group: it is the head of a new one. */
static struct semel_series *add(struct semel_metric *metric, struct semel_series *head, const struct semel_str *values)
{
    struct semel_series *series = metric->count < metric->max ? series_new(metric, values) : NULL;
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

void semel__gauge_add(struct semel_series *series, double delta)
{
    assert(series->metric->spec.kind == SEMEL_GAUGE);
    add_double(&series->value, delta);
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
