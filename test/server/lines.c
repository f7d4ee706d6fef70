/* SPDX-License-Identifier: MIT
 *
 * lines.c: what the tools are told. See lines.h.
 */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "server/lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lines_fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    exit(2);
}

void lines_each(void (*take)(void *ctx, char *line), void *ctx)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0) {
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        take(ctx, line);
    }
    free(line);
}

char *lines_word(char **rest)
{
    char *word = *rest, *end;

    if (word == NULL || *word == '\0')
        return NULL;
    end = strchr(word, ' ');
    if (end != NULL)
        *end++ = '\0';
    *rest = end;
    return word;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

struct semel_str lines_bytes(char *text)
{
    size_t n = 0;

    if (strcmp(text, "-") == 0)
        return (struct semel_str){NULL, 0};
    if (text[0] != 'x')
        lines_fail("\"-\" or \"x\" and hexadecimal digits are expected");
    for (const char *p = text + 1; *p != '\0'; p += 2) {
        const int high = digit(p[0]), low = high < 0 ? -1 : digit(p[1]);
        if (low < 0)
            lines_fail("\"-\" or \"x\" and hexadecimal digits are expected");
        text[n++] = (char)(high * 16 + low);
    }
    text[n] = '\0';
    return (struct semel_str){text, n};
}

size_t lines_headers(char **rest, struct semel_pair headers[LINES_HEADERS])
{
    size_t n = 0;
    char *header;

    while ((header = lines_word(rest)) != NULL) {
        char *value = strchr(header, '=');
        if (value == NULL || n == LINES_HEADERS)
            lines_fail("a header must be NAME=VALUE, and there are 10,240 at most");
        *value++ = '\0';
        headers[n++] = (struct semel_pair){lines_bytes(header), lines_bytes(value)};
    }
    return n;
}
