/* SPDX-License-Identifier: MIT
 *
 * httpd_each.h: a server for each test of a program, for cmocka: initialised (its settings may still be changed), or
 * running.
 */
#ifndef SEMEL_TEST_HTTPD_EACH_H
#define SEMEL_TEST_HTTPD_EACH_H

#include "unit/httpd.h"

static struct httpd httpd;

static int httpd_up(void **state)
{
    (void)state;
    httpd_init(&httpd);
    return 0;
}

static int httpd_up_running(void **state)
{
    httpd_up(state);
    httpd_start(&httpd);
    return 0;
}

static int httpd_down(void **state)
{
    (void)state;
    httpd_done(&httpd);
    return 0;
}

#endif
