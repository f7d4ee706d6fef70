/* SPDX-License-Identifier: MIT
 *
 * metrics_text.c: the Prometheus text of a registry, format 0.0.4.
 *
 *     # HELP name text          with \\ and \n escaped
 *     # TYPE name counter
 *     name{label="value"} 1     with \\, \" and \n escaped
 *
 * Invariants: a family without a series that was used is not shown; within a histogram the buckets
 * are cumulated from one reading of the counts, so they never fall and +Inf is the count.
 */
#include <inttypes.h>
#include <math.h>

#include "base/metrics_tree.h"
#include "base/number.h"

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

/* name_suffix{labels,le="bound"}: and the blank before the value. */
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
