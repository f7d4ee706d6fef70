/* SPDX-License-Identifier: MIT
 *
 * str.h: borrowed strings and bounded buffers.
 *
 * Invariants: comparison is by unsigned bytes, never by locale; a buffer never grows past its
 * `max`, and once an append failed every later one fails too (check once, at the end).
 */
#ifndef SEMEL_BASE_STR_H
#define SEMEL_BASE_STR_H

#include <stdarg.h>
#include <string.h>

#include "semel/types.h"

#define SEMEL_STR(literal) ((struct semel_str){(literal), sizeof(literal) - 1})

struct semel_pair {
    struct semel_str name, value;
};

static inline struct semel_str semel__str(const char *z)
{
    return (struct semel_str){z, z != NULL ? strlen(z) : 0};
}
static inline bool semel__str_given(struct semel_str s)
{
    return s.p != NULL;
}
/* ASCII only, whatever the locale is. */
static inline bool semel__is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static inline bool semel__is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
static inline char semel__lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}
bool semel__begins_with(struct semel_str s, const char *prefix); /* either case */
bool semel__same_word_rest(struct semel_str a, const char *z);   /* of semel__same_word alone */
/* Equal, ignoring case. Most of what is compared differs in its first character. */
static inline bool semel__same_word(struct semel_str a, const char *z)
{
    return (a.n == 0 || semel__lower(a.p[0]) == semel__lower(z[0])) && semel__same_word_rest(a, z);
}
/* <0, 0, >0 by bytes; a shorter prefix comes first. "Not given" sorts before everything. */
int semel__str_cmp(struct semel_str a, struct semel_str b);
bool semel__str_eq(struct semel_str a, struct semel_str b); /* not given equals only not given */
bool semel__str_eqz(struct semel_str a, const char *z);
/* FNV-1a over the bytes and their number, for tables in memory; `before`: of what stands before them, or 0. */
uint64_t semel__str_hash(uint64_t before, struct semel_str s);
/* A whole decimal int64, no blanks, no plus sign; false when it is anything else. */
bool semel__str_int64(struct semel_str s, int64_t *ret);
/* The number behind `name`, in either case, in a list like "timeout=5, max=100"; at most `max`. -1: it is not there. */
int64_t semel__named_number(struct semel_str list, const char *name, int64_t max);
/* The value of a hexadecimal digit in either case; -1: it is none. */
int semel__hex_value(char c);
/* Certainly this machine: localhost, 127.0.0.0/8, ::1. */
bool semel__host_is_local(struct semel_str host);
/* %41 becomes A, in place. false: no such escape, or a NUL. */
bool semel__unescape(char *text);
/* Well-formed UTF-8 without NUL, overlongs and surrogates. */
bool semel__utf8_valid(struct semel_str s);
/* The length of the well-formed character at the start of s, and the character; 0: there is none. NUL is one. */
size_t semel__utf8_next(struct semel_str s, uint32_t *ret_char);
/* 1 to 4 bytes; the character must not be a surrogate, nor lie past U+10FFFF. */
size_t semel__utf8_put(uint32_t c, char out[4]);
/* false: a control character, or one that is invisible or changes the direction of text (U+202E): terminals would obey
 * it, readers would be deceived. */
bool semel__utf8_shown(uint32_t c);
/* Copies at most size-1 bytes for people: characters that must not be shown, and bad UTF-8, become '?'. */
void semel__str_show(char *out, size_t size, struct semel_str s);
/* The name that was probably meant: the one with the fewest edits (insert, delete or replace a byte, or swap it with
 * its neighbour), at most two and fewer than the word has bytes, between short words one; the first of several. NULL:
 * none is near. */
const char *semel__nearest(const char *word, const char *const *names, size_t n);
/* Is one of the names at most two edits away, however short it is? */
bool semel__resembles(const char *word, const char *const *names, size_t n);

struct semel_buf {
    char *p;
    size_t n, cap, max;
    bool failed;
    bool full; /* the bound was reached, not memory: trying again cannot help */
};
void semel__buf_init(struct semel_buf *buf, size_t max);
void semel__buf_done(struct semel_buf *buf);
bool semel__buf_add(struct semel_buf *buf, const void *bytes, size_t n);
bool semel__buf_addz(struct semel_buf *buf, const char *z);
__attribute__((format(printf, 2, 3))) bool semel__buf_addf(struct semel_buf *buf, const char *fmt, ...);
static inline struct semel_str semel__buf_str(const struct semel_buf *buf)
{
    return (struct semel_str){buf->p != NULL ? buf->p : "", buf->n};
}

/* The secret of //user:SECRET@host in a URL or a line with one. In doubt everything from the first colon to the last
 * `@`: it includes characters that should have been escaped. false: there is none. */
bool semel__url_secret(struct semel_str url, struct semel_str *ret);
/* Host (an IPv6 address without its brackets) and port of SCHEME://USER@HOST:PORT/...; missing parts are empty. */
void semel__url_host(struct semel_str url, struct semel_str *ret_host, struct semel_str *ret_port);

#endif
