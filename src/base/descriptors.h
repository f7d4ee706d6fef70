/* SPDX-License-Identifier: MIT
 *
 * descriptors.h: how many files and sockets the process may have open.
 *
 * The soft limit is often 1024, for programs that use select(2), which we do not. We raise it to the hard limit; a
 * program that we start gets the original limit back.
 */
#ifndef SEMEL_BASE_DESCRIPTORS_H
#define SEMEL_BASE_DESCRIPTORS_H

#include <stddef.h>

void semel__descriptors_raise(void);   /* call once, before there are threads */
void semel__descriptors_restore(void); /* call in a child, before exec; only one system call */
size_t semel__descriptors_max(void);   /* the current limit; SIZE_MAX: none */

#endif
