/* SPDX-License-Identifier: MIT
 *
 * descriptors.h: how many files and sockets the process may have open.
 *
 * The soft limit is often 1024, for programs that use select(2), which we do not. It is raised to the hard limit; a
 * program that we start gets back what we were given.
 */
#ifndef SEMEL_BASE_DESCRIPTORS_H
#define SEMEL_BASE_DESCRIPTORS_H

#include <stddef.h>

void semel__descriptors_raise(void);   /* once, before there are threads */
void semel__descriptors_restore(void); /* in a child, before its program; only a system call */
size_t semel__descriptors_max(void);   /* the limit that holds now; SIZE_MAX: none */

#endif
