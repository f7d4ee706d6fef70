/* SPDX-License-Identifier: MIT
 *
 * log.h: the daemon's log: one line per event, for people or as JSON.
 *
 * What it is: a level, a time, a text that is the same for every such event, and fields: ids, names, counts, an
 * error's text. Never a payload and never a secret. Not for libraries: libsemel does not log, it returns.
 *
 *     human   2026-11-16T05:10:11.123Z warn  the route pauses consumer=billing failures=10
 *     json    {"time":"2026-11-16T05:10:11.123Z","level":"warn","text":"the route pauses","consumer":"billing",...}
 *
 * Invariants: a line is written by one write(2), whole, or not at all; control characters, line breaks and bad UTF-8
 * in values are escaped, so that input cannot forge a line; a value is cut at SEMEL_LOG_VALUE_MAX bytes. A text that
 * repeats more than `burst` times per second is counted and logged once, so that a failing route cannot fill a disk.
 * Any thread may log. Logging never fails and never waits for anything but the descriptor.
 */
#ifndef SEMEL_BASE_LOG_H
#define SEMEL_BASE_LOG_H

#include "base/clock.h"
#include "base/str.h"

#define SEMEL_LOG_VALUE_MAX 1024
#define SEMEL_LOG_FIELDS_MAX 16
#define SEMEL_LOG_BURST 20 /* lines of one text at one level per second; more are counted */

enum semel_log_format { SEMEL_LOG_HUMAN, SEMEL_LOG_JSON };
enum semel_log_level { SEMEL_LOG_DEBUG, SEMEL_LOG_INFO, SEMEL_LOG_WARN, SEMEL_LOG_ERROR };

enum semel_log_kind { SEMEL_LOG_TEXT, SEMEL_LOG_INT };
struct semel_log_field {
    const char *name; /* a literal: [a-z_]+, at most 64 bytes; not time, level or text; no name twice in a line */
    enum semel_log_kind kind;
    struct semel_str text;
    int64_t number;
};
#define SEMEL_F_STR(name, value) ((struct semel_log_field){(name), SEMEL_LOG_TEXT, (value), 0})
#define SEMEL_F_Z(name, value) SEMEL_F_STR(name, semel__str(value))
#define SEMEL_F_INT(name, value) ((struct semel_log_field){(name), SEMEL_LOG_INT, {NULL, 0}, (int64_t)(value)})

struct semel_log;

/* `fd` is borrowed. The clock is borrowed; NULL: the machine's. */
semel_status semel__log_new(struct semel_log **ret, int fd, enum semel_log_format format, enum semel_log_level least,
                            const struct semel_clock *clock, struct semel_error *err);
void semel__log_free(struct semel_log *log); /* logs what was counted and not reported yet */

/* `text` is a literal. A field whose text is not given, or whose number is SEMEL_NONE, is left out. log == NULL:
 * nothing. */
void semel__log_write(struct semel_log *log, enum semel_log_level level, const char *text,
                      const struct semel_log_field *fields, size_t n);
#define SEMEL__LOG(log, level, text, ...)                                                   \
    semel__log_write((log), (level), (text), (const struct semel_log_field[]){__VA_ARGS__}, \
                     sizeof((const struct semel_log_field[]){__VA_ARGS__}) / sizeof(struct semel_log_field))

/* Logs what was counted in seconds that are over. Every line does so too; a caller that may be silent for long calls
 * it. */
void semel__log_tick(struct semel_log *log);

#endif
