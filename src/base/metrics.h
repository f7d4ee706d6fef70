/* SPDX-License-Identifier: MIT
 *
 * metrics.h: counters, gauges and histograms, and their Prometheus text (format 0.0.4).
 *
 * What it is: a registry of families; a family has a name, a help text, names of labels, and a series for each
 * combination of label values that was seen. Code that counts asks for a series once and keeps it: counting is then
 * an atomic operation without a lock. Nothing is pushed: the HTTP server renders the text on request.
 *
 * Invariants:
 * - Any thread may ask for a series, count and render at any time. Families are added before threads start.
 * - A series is never removed, so its pointer stays valid until the registry is freed.
 * - A family has at most `max_series` series and one more, in which every label is "_other": series past the bound
 *   are counted there, so that sums stay true and hostile labels cannot eat the memory (label values are cut to
 *   SEMEL_LABEL_MAX bytes besides).
 * - Series that share the first label are at most `max_each`, where that is set. Further series keep their labels
 *   except those that come from outside (`outside`), which become "_other": one consumer's series cannot crowd out
 *   another's.
 * - The rendered text is well-formed: names were checked when the family was added, values are escaped, bad UTF-8
 *   becomes '?', each family is in one place under its HELP and TYPE, and a histogram's +Inf bucket equals its count.
 */
#ifndef SEMEL_BASE_METRICS_H
#define SEMEL_BASE_METRICS_H

#include "base/str.h"

#define SEMEL_METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8" /* the Content-Type of the rendered text */
#define SEMEL_METRIC_LABELS 8
#define SEMEL_METRIC_BUCKETS 32
#define SEMEL_LABEL_MAX 128

enum semel_metric_kind { SEMEL_COUNTER, SEMEL_GAUGE, SEMEL_HISTOGRAM };

struct semel_metrics; /* the registry */
struct semel_metric;  /* a family */
struct semel_series;

/* Everything is borrowed until the registry is freed. */
struct semel_metric_spec {
    enum semel_metric_kind kind;
    const char *name; /* [a-zA-Z_:][a-zA-Z0-9_:]* ; a counter's ends in _total */
    const char *help;
    const char *const *labels; /* [a-zA-Z_][a-zA-Z0-9_]*, not __ in front, not "le" in a histogram */
    size_t n_labels;
    const double *buckets; /* upper bounds of a histogram, finite and rising; +Inf is added */
    size_t n_buckets;
    size_t max_series; /* 0: 100 */
    size_t max_each;   /* per value of the first label; 0: only max_series limits them */
    unsigned outside;  /* bit i: the values of label i come from outside */
};

semel_status semel__metrics_new(struct semel_metrics **ret, struct semel_error *err);
void semel__metrics_free(struct semel_metrics *metrics);

/* INVALID: a name, label or bucket that the format does not allow, or a name that exists already. RETRY: no memory. A
 * family without labels has its only series at once, with the value 0. */
semel_status semel__metric_add(struct semel_metrics *metrics, const struct semel_metric_spec *spec,
                               struct semel_metric **ret, struct semel_error *err);

/* The series of these label values, as many as the family has labels. Takes a lock. Never NULL: without memory, and
 * past the bound, it is the family's "_other" series. */
struct semel_series *semel__metric_at(struct semel_metric *metric, const struct semel_str *values);

void semel__count(struct semel_series *series, uint64_t n); /* of a counter */
void semel__gauge_set(struct semel_series *series, double value);
void semel__observe(struct semel_series *series, double value); /* of a histogram; NaN counts in +Inf only */

/* Appends the text. false: no memory, or buf is full. */
bool semel__metrics_render(struct semel_metrics *metrics, struct semel_buf *buf);

#endif
