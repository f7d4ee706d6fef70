/* SPDX-License-Identifier: MIT
 *
 * log.c: builds a line in a preallocated buffer and writes it.
 *
 * Escaping. Characters that semel__utf8_shown hides, and bytes that are not UTF-8, never reach the line:
 *
 *     human   a value that is empty or has a blank, a quote, a backslash, '=' or something to escape stands in quotes;
 *             inside, \" \\ \n \r \t, \u{202e} for a character that is not shown, \xff for a byte that is not UTF-8
 *     json    \" \\ \n \r \t and \u202e, as JSON has them; a byte that is not UTF-8 reads \xff after decoding, and
 *             NUL \x00
 *
 * Bursts. A text has a slot with a window of one second. The first SEMEL_LOG_BURST lines of a window are written, the
 * others counted. The next line of any text, semel__log_tick, or the end of the log closes a window that is over:
 * "lines were left out" with the text and their number.
 *
 * Invariants: one lock is held from the first byte of a line to the last, so lines of one log never mix; nothing is
 * allocated after semel__log_new; the buffer holds the longest line there can be, as LINE_MAX adds it up. When the
 * descriptor takes only a part of a line (a full disk), the next line begins with a line break, and lines that were
 * not written are counted and reported when writing works again. errno stays as it was.
 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"

#define NAME_MAX_BYTES 64
#define ESCAPED_MAX (SEMEL_LOG_VALUE_MAX * 6 + 16) /* every byte as \u00xx, the quotes, the mark of a cut */
#define LINE_MAX_BYTES (128 + ESCAPED_MAX + SEMEL_LOG_FIELDS_MAX * (ESCAPED_MAX + NAME_MAX_BYTES + 8))
#define SLOTS 64
#define SECOND_US INT64_C(1000000)
#define CUT_MARK "..."

/* A text that was logged; text == NULL: the slot is free. */
struct slot {
    const char *text;
    enum semel_log_level level;
    int64_t since_us;
    int64_t lines, left_out;
};

struct semel_log {
    pthread_mutex_t lock;
    int fd;
    enum semel_log_format format;
    enum semel_log_level least;
    const struct semel_clock *clock;
    struct slot slots[SLOTS];
    int64_t lost; /* lines that the descriptor did not accept */
    bool torn;    /* it accepted only a part of the last line */
    size_t n;
    char line[LINE_MAX_BYTES];
};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

semel_status semel__log_new(struct semel_log **ret, int fd, enum semel_log_format format, enum semel_log_level least,
                            const struct semel_clock *clock, struct semel_error *err)
{
    struct semel_log *log = semel__calloc(1, sizeof(*log));
    if (log == NULL)
        return semel__fail_memory(err);
    pthread_mutex_init(&log->lock, NULL);
    log->fd = fd;
    log->format = format;
    log->least = least;
    log->clock = clock != NULL ? clock : &semel__clock_real;
    *ret = log;
    return SEMEL_OK;
}

static void put(struct semel_log *log, const char *bytes, size_t n)
{
    size_t room = sizeof(log->line) - log->n;
    n = n < room ? n : room;
    memcpy(log->line + log->n, bytes, n);
    log->n += n;
}

static void put_z(struct semel_log *log, const char *z)
{
    put(log, z, strlen(z));
}

static void put_int(struct semel_log *log, int64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%lld", (long long)value);
    put_z(log, text);
}

/* The escapes that both forms share. NULL: there is none. */
static const char *short_escape(uint32_t c)
{
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        return NULL;
    }
}

static void put_byte(struct semel_log *log, unsigned char byte)
{
    char text[8];
    snprintf(text, sizeof(text), "%s\\x%02x", log->format == SEMEL_LOG_JSON ? "\\" : "", byte);
    put_z(log, text);
}

static void put_hidden(struct semel_log *log, uint32_t c)
{
    char text[16];
    if (log->format == SEMEL_LOG_HUMAN)
        snprintf(text, sizeof(text), "\\u{%x}", (unsigned)c);
    else if (c < 0x10000)
        snprintf(text, sizeof(text), "\\u%04x", (unsigned)c);
    else
        snprintf(text, sizeof(text), "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                 (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
    put_z(log, text);
}

/* Whole characters of the value, SEMEL_LOG_VALUE_MAX bytes of them at most, without quotes. */
static void put_escaped(struct semel_log *log, struct semel_str s)
{
    size_t at = 0;
    while (at < s.n) {
        uint32_t c = 0;
        size_t n = semel__utf8_next((struct semel_str){s.p + at, s.n - at}, &c);
        size_t width = n > 0 ? n : 1;
        if (at + width > SEMEL_LOG_VALUE_MAX) {
            put_z(log, CUT_MARK);
            return;
        }
        const char *escape = n > 0 ? short_escape(c) : NULL;
        if (n == 0 || c == 0) /* NUL too: readers of JSON fail on it */
            put_byte(log, (unsigned char)s.p[at]);
        else if (escape != NULL)
            put_z(log, escape);
        else if (semel__utf8_shown(c))
            put(log, s.p + at, n);
        else
            put_hidden(log, c);
        at += width;
    }
}

/* Could a reader of the human form take the bare value for something else? */
static bool wants_quotes(struct semel_str s)
{
    for (size_t at = 0; at < s.n && at < SEMEL_LOG_VALUE_MAX;) {
        uint32_t c = 0;
        size_t n = semel__utf8_next((struct semel_str){s.p + at, s.n - at}, &c);
        if (n == 0 || c == ' ' || c == '=' || short_escape(c) != NULL || !semel__utf8_shown(c))
            return true;
        at += n;
    }
    return s.n == 0;
}

static void put_value(struct semel_log *log, struct semel_str s)
{
    bool quotes = log->format == SEMEL_LOG_JSON || wants_quotes(s);
    if (quotes)
        put(log, "\"", 1);
    put_escaped(log, s);
    if (quotes)
        put(log, "\"", 1);
}

static void put_field(struct semel_log *log, const struct semel_log_field *field)
{
    bool given = field->kind == SEMEL_LOG_TEXT ? semel__str_given(field->text) : field->number != SEMEL_NONE;
    if (!given)
        return;
    put_z(log, log->format == SEMEL_LOG_JSON ? ",\"" : " ");
    put(log, field->name, strnlen(field->name, NAME_MAX_BYTES));
    put_z(log, log->format == SEMEL_LOG_JSON ? "\":" : "=");
    if (field->kind == SEMEL_LOG_TEXT)
        put_value(log, field->text);
    else
        put_int(log, field->number);
}

/* 2026-11-16T05:10:11.123Z: the microseconds are cut off, unless the year is beyond all reason. */
static void put_time(struct semel_log *log, int64_t now_us)
{
    char text[SEMEL_TIME_TEXT];
    semel__time_format(now_us, text);
    if (strlen(text) == sizeof("2026-11-16T05:10:11.123456Z") - 1)
        memcpy(text + sizeof("2026-11-16T05:10:11.123") - 1, "Z", 2);
    put_z(log, text);
}

static void put_head(struct semel_log *log, int64_t now_us, enum semel_log_level level, const char *text)
{
    bool json = log->format == SEMEL_LOG_JSON;
    put_z(log, json ? "{\"time\":\"" : "");
    put_time(log, now_us);
    put_z(log, json ? "\",\"level\":\"" : " ");
    put_z(log, level_names[level]);
    put_z(log, json ? "\",\"text\":\"" : strlen(level_names[level]) < 5 ? "  " : " ");
    put_escaped(log, semel__str(text));
    put_z(log, json ? "\"" : "");
}

/* Returns how many bytes the descriptor accepted. Retries only after a signal. */
static size_t write_out(const struct semel_log *log)
{
    size_t done = 0;
    while (done < log->n) {
        ssize_t n = write(log->fd, log->line + done, log->n - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return done;
}

/* true: the whole line was written. */
static bool say(struct semel_log *log, int64_t now_us, enum semel_log_level level, const char *text,
                const struct semel_log_field *fields, size_t n)
{
    log->n = 0;
    if (log->torn)
        put(log, "\n", 1);
    put_head(log, now_us, level, text);
    for (size_t i = 0; i < n && i < SEMEL_LOG_FIELDS_MAX; i++)
        put_field(log, &fields[i]);
    put_z(log, log->format == SEMEL_LOG_JSON ? "}\n" : "\n");
    size_t done = write_out(log);
    if (done == log->n) {
        log->torn = false;
        return true;
    }
    /* A line break ends the line that was cut before. */
    if (done > 0)
        log->torn = !(log->torn && done == 1);
    return false;
}

static void say_or_count(struct semel_log *log, int64_t now_us, enum semel_log_level level, const char *text,
                         const struct semel_log_field *fields, size_t n)
{
    if (!say(log, now_us, level, text, fields, n)) {
        log->lost++;
        return;
    }
    if (log->lost == 0)
        return;
    const struct semel_log_field lost = SEMEL_F_INT("lines", log->lost);
    if (say(log, now_us, SEMEL_LOG_WARN, "lines could not be written", &lost, 1))
        log->lost = 0;
}

static void settle(struct semel_log *log, struct slot *slot, int64_t now_us)
{
    if (slot->left_out > 0) {
        const struct semel_log_field fields[] = {SEMEL_F_Z("sentence", slot->text),
                                                 SEMEL_F_INT("lines", slot->left_out)};
        say_or_count(log, now_us, slot->level, "lines were left out", fields, 2);
    }
    *slot = (struct slot){0};
}

/* A clock that was set back ends a window too. */
static bool is_over(const struct slot *slot, int64_t now_us)
{
    return now_us < slot->since_us || now_us - slot->since_us >= SECOND_US;
}

static void settle_over(struct semel_log *log, int64_t now_us)
{
    for (size_t i = 0; i < SLOTS; i++)
        if (log->slots[i].text != NULL && is_over(&log->slots[i], now_us))
            settle(log, &log->slots[i], now_us);
}

/* Finds the slot of the text, or uses a free one, else the oldest. */
static struct slot *slot_of(struct semel_log *log, int64_t now_us, enum semel_log_level level, const char *text)
{
    struct slot *best = &log->slots[0];
    for (size_t i = 0; i < SLOTS; i++) {
        struct slot *slot = &log->slots[i];
        if (slot->text != NULL && slot->level == level && (slot->text == text || strcmp(slot->text, text) == 0))
            return slot;
        if (best->text != NULL && (slot->text == NULL || slot->since_us < best->since_us))
            best = slot;
    }
    settle(log, best, now_us);
    *best = (struct slot){.text = text, .level = level, .since_us = now_us};
    return best;
}

void semel__log_write(struct semel_log *log, enum semel_log_level level, const char *text,
                      const struct semel_log_field *fields, size_t n)
{
    if (log == NULL || level < log->least)
        return;
    int kept_errno = errno;
    pthread_mutex_lock(&log->lock);
    int64_t now_us = semel__now(log->clock);
    settle_over(log, now_us);
    struct slot *slot = slot_of(log, now_us, level, text);
    if (slot->lines < SEMEL_LOG_BURST) {
        slot->lines++;
        say_or_count(log, now_us, level, text, fields, n);
    } else {
        slot->left_out++;
    }
    pthread_mutex_unlock(&log->lock);
    errno = kept_errno;
}

void semel__log_tick(struct semel_log *log)
{
    if (log == NULL)
        return;
    int kept_errno = errno;
    pthread_mutex_lock(&log->lock);
    settle_over(log, semel__now(log->clock));
    pthread_mutex_unlock(&log->lock);
    errno = kept_errno;
}

void semel__log_free(struct semel_log *log)
{
    if (log == NULL)
        return;
    int64_t now_us = semel__now(log->clock);
    for (size_t i = 0; i < SLOTS; i++)
        settle(log, &log->slots[i], now_us);
    pthread_mutex_destroy(&log->lock);
    semel__free(log);
}
