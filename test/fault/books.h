/* SPDX-License-Identifier: MIT
 *
 * books.h: plain SQL on the database of a process test, whichever it is, without asking Semel.
 *
 * Every call has a connection of its own unless it is given one. A statement that fails, fails the test. Tests speak of
 * Semel's tables as SQLite names them (semel_inbox ...); on PostgreSQL there are views of these names.
 */
#ifndef SEMEL_TEST_BOOKS_H
#define SEMEL_TEST_BOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct books;

#define BOOKS_URL 160

bool books_on_postgres(const char *url);
/* The tables of the ledger, and what makes both databases look alike; once, on a store that has Semel's tables. */
void books_prepare(const char *url);

struct books *books_open(const char *url);
void books_close(struct books *books);
void books_run(struct books *books, const char *sql);
int64_t books_count(struct books *books, const char *sql); /* the one number it gives; true is 1 */
/* The same where the database may be down: false then, and a new connection is tried. */
bool books_ask(struct books *books, const char *sql, int64_t *ret);
/* All rows, columns with | and rows with a line's end between them; NULL is -. */
void books_text(struct books *books, const char *sql, char *out, size_t size);
/* A statement with the parameters $1 to $5, named in this order. */
void books_line(struct books *books, const char *sql, const char *a, const char *b, const char *c, long long d, int e);

#endif
