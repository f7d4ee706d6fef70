/* SPDX-License-Identifier: MIT
 *
 * descriptors.c: RLIMIT_NOFILE. See descriptors.h.
 */
#include "base/descriptors.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

static struct rlimit given;
static bool raised;

void semel__descriptors_raise(void)
{
    if (raised || getrlimit(RLIMIT_NOFILE, &given) != 0 || given.rlim_cur == given.rlim_max)
        return;
    struct rlimit more = {.rlim_cur = given.rlim_max, .rlim_max = given.rlim_max};
    raised = setrlimit(RLIMIT_NOFILE, &more) == 0;
}

void semel__descriptors_restore(void)
{
    if (raised)
        (void)setrlimit(RLIMIT_NOFILE, &given);
}

size_t semel__descriptors_max(void)
{
    struct rlimit now;
    if (getrlimit(RLIMIT_NOFILE, &now) != 0 || now.rlim_cur == RLIM_INFINITY)
        return SIZE_MAX;
    return (size_t)now.rlim_cur;
}
