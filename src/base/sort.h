/* SPDX-License-Identifier: MIT
 *
 * sort.h: qsort for arrays that are mostly in order already, as ids with a time are.
 */
#ifndef SEMEL_BASE_SORT_H
#define SEMEL_BASE_SORT_H

#include <stdlib.h>

static inline void semel__sort(void *items, size_t n, size_t size, int (*cmp)(const void *, const void *))
{
    const char *at = items;
    for (size_t i = 1; i < n; i++, at += size)
        if (cmp(at, at + size) > 0) {
            qsort(items, n, size, cmp);
            return;
        }
}

#endif
