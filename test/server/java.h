/* SPDX-License-Identifier: MIT
 *
 * java.h: servers that run on the machine's Java (SEMEL_JAVA, else an installed one), from the archives that tools/jars
 * has fetched (into SEMEL_JARS, else the user's cache).
 */
#ifndef SEMEL_TEST_SERVER_JAVA_H
#define SEMEL_TEST_SERVER_JAVA_H

#include "server/process.h"

/* server_launch: Java with the archives of tools/LIST.list as its class path, and these words, ended by NULL: options,
 * the class, its arguments. Skips the test when Java or an archive is missing. */
void server_java_launch(struct server_process *process, const char *list, const char *const *words);

#endif
