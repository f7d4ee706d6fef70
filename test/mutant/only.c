/* SPDX-License-Identifier: MIT
 *
 * only.c: linked with a test program, makes it run the one test that SEMEL_TEST_ONLY names. For mutants, each of which
 * has one test that must notice it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void choose(void)
{
    const char *only = getenv("SEMEL_TEST_ONLY");

    if (only != NULL)
        cmocka_set_test_filter(only);
}
