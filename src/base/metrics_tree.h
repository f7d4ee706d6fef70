/* SPDX-License-Identifier: MIT
 *
 * metrics_tree.h: the registry from the inside, for metrics.c and metrics_text.c alone.
 *
 * Invariants: families are linked before threads start; `first` of a family is its "_other", or its only series when
 * it has no labels, and the first of the heads: a head is the first series of its first label's value; `next` and
 * `used` of a series are read and written under the family's lock.
 */
#ifndef SEMEL_BASE_METRICS_TREE_H
#define SEMEL_BASE_METRICS_TREE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/metrics.h"

struct semel_series {
    const struct semel_metric *metric;
    struct semel_series *next;
    struct semel_series *sibling, *head;          /* the next of the same first label; of a head, the next head */
    size_t in_group;                              /* of a head: how many have its first label */
    struct semel_str values[SEMEL_METRIC_LABELS]; /* their bytes stand behind the counts */
    bool used;                                    /* "_other" is not shown before it was asked for */
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

#endif
