/* SPDX-License-Identifier: MIT
 *
 * query.h: "?a=1&b=2" taken apart, for tests that say options of a driver in one line.
 */
#ifndef SEMEL_TEST_SUPPORT_QUERY_H
#define SEMEL_TEST_SUPPORT_QUERY_H

#include <stdbool.h>
#include <string.h>

/* The next NAME=VALUE of *rest, which is cut in pieces. false: there is no more. */
static inline bool query_next(char **rest, char **ret_name, char **ret_value)
{
    char *at = *rest != NULL ? *rest + strspn(*rest, "?&") : NULL;

    if (at == NULL || *at == '\0')
        return false;
    *ret_name = strsep(&at, "=");
    *ret_value = strsep(&at, "&");
    *rest = at;
    return true;
}

#endif
