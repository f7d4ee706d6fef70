/* SPDX-License-Identifier: MIT
 *
 * store_contract.c: the conformance program of store drivers: `store_contract DRIVER [PATTERN]`.
 *
 * What it is: one test a sentence of core/store.h, run against whatever driver is named. Every driver passes it
 * whole; what a driver cannot do is printed as skipped. What it is not: a test of anything special to one driver.
 *
 * The tests: store_admit.c (transactions, admit, fetch), store_settle.c (settle), store_look.c (scans, purge, outbox),
 * store_consumer.c (settings and names of consumers), store_setting.c (their change under stored rows).
 */
#include <stdlib.h>

#include "conform/contract.h"

static size_t collect(struct CMUnitTest *all, size_t n, const struct CMUnitTest *tests)
{
    for (; tests->name != NULL; tests++)
        all[n++] = *tests;
    return n;
}

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s DRIVER [PATTERN]\ndrivers:", program);
    for (const struct driver *const *driver = world_drivers; *driver != NULL; driver++)
        fprintf(stderr, " %s", (*driver)->name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    static struct CMUnitTest all[200];
    size_t n = 0;
    char group[64];

    world_driver = argc > 1 ? world_driver_named(argv[1]) : NULL;
    if (world_driver == NULL)
        return usage(argv[0]);
    n = collect(all, n, admit_tests);
    n = collect(all, n, settle_tests);
    n = collect(all, n, look_tests);
    n = collect(all, n, consumer_tests);
    n = collect(all, n, position_tests);
    n = collect(all, n, setting_tests);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    snprintf(group, sizeof group, "store_contract %s", world_driver->name);
    return _cmocka_run_group_tests(group, all, n, NULL, NULL);
}
