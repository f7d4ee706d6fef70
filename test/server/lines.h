/* SPDX-License-Identifier: MIT
 *
 * lines.h: what kafka_tool and rabbit_tool are told by tests that are not written in C: words with a blank in between,
 * where bytes are "-" for none, or "x" and hexadecimal digits. Whatever is written otherwise ends the program with exit
 * code 2 and a word about it.
 */
#ifndef SEMEL_TEST_SERVER_LINES_H
#define SEMEL_TEST_SERVER_LINES_H

#include "core/broker.h"

#define LINES_HEADERS 10240

/* Names the tool, by how it was called. */
_Noreturn void lines_fail(const char *what);
/* Each line of standard input, without its end, to be taken apart. */
void lines_each(void (*take)(void *ctx, char *line), void *ctx);
/* The next word of the line, which is cut off; NULL: there is none. */
char *lines_word(char **rest);
/* Decodes in place, and ends it with a NUL. */
struct semel_str lines_bytes(char *text);
/* The words NAME=VALUE to the end of the line; how many. */
size_t lines_headers(char **rest, struct semel_pair headers[LINES_HEADERS]);

#endif
