/* SPDX-License-Identifier: MIT
 *
 * str.c: borrowed strings, UTF-8 and bounded buffers.
 *
 * Invariants: no function reads past n bytes or looks for a NUL; nothing depends on the locale;
 * semel__str_show writes well-formed UTF-8 without control or format characters, whatever it is given.
 */
#include "base/str.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <strings.h>

#include "base/mem.h"

#define NEAREST_MAX 64 /* a longer word is not compared */
#define NEAREST_EDITS 2
#define NEAREST_SHORT 5 /* between two words that are no longer two edits leave too little */
#define BUF_FIRST 256   /* bytes of a buffer's first memory */

int semel__str_cmp(struct semel_str a, struct semel_str b)
{
    if (a.p == NULL || b.p == NULL)
        return (a.p != NULL) - (b.p != NULL);
    if (a.p == b.p && a.n == b.n) /* the sources of a batch often are the same pointer */
        return 0;
    int order = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return order != 0 ? order : (a.n > b.n) - (a.n < b.n);
}

bool semel__str_eq(struct semel_str a, struct semel_str b)
{
    return a.n == b.n && semel__str_cmp(a, b) == 0;
}

bool semel__begins_with(struct semel_str s, const char *prefix)
{
    size_t i = 0;
    while (i < s.n && prefix[i] != '\0' && semel__lower(s.p[i]) == semel__lower(prefix[i]))
        i++;
    return prefix[i] == '\0';
}

bool semel__same_word_rest(struct semel_str a, const char *z)
{
    size_t i = 0;
    while (i < a.n && z[i] != '\0' && semel__lower(a.p[i]) == semel__lower(z[i]))
        i++;
    return i == a.n && z[i] == '\0';
}

int64_t semel__named_number(struct semel_str list, const char *name, int64_t max)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i + n < list.n; i++) {
        int64_t number = 0;
        if (!semel__begins_with((struct semel_str){list.p + i, list.n - i}, name))
            continue;
        for (size_t k = i + n; k < list.n && semel__is_digit(list.p[k]); k++)
            number = number < max ? 10 * number + (list.p[k] - '0') : max;
        return number < max ? number : max;
    }
    return -1;
}

bool semel__str_eqz(struct semel_str a, const char *z)
{
    return semel__str_eq(a, semel__str(z));
}

uint64_t semel__str_hash(uint64_t before, struct semel_str s)
{
    uint64_t hash = before != 0 ? before : UINT64_C(14695981039346656037);
    for (size_t i = 0; i < s.n; i++)
        hash = (hash ^ (unsigned char)s.p[i]) * UINT64_C(1099511628211);
    hash = (hash ^ s.n) * UINT64_C(1099511628211);
    return hash ^ hash >> 29;
}

int semel__hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool semel__unescape(char *text)
{
    char *out = text;
    for (; *text != '\0'; text++, out++) {
        *out = *text;
        if (*text != '%')
            continue;
        int high = semel__hex_value(text[1]), low = high >= 0 ? semel__hex_value(text[2]) : -1;
        if (low < 0 || (high | low) == 0)
            return false;
        *out = (char)(high << 4 | low);
        text += 2;
    }
    *out = '\0';
    return true;
}

bool semel__str_int64(struct semel_str s, int64_t *ret)
{
    bool negative = s.n > 0 && s.p[0] == '-';
    size_t i = negative ? 1 : 0;
    if (i == s.n)
        return false;

    int64_t value = 0;
    for (; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        int digit = s.p[i] - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, negative ? -digit : digit, &value))
            return false;
    }
    *ret = value;
    return true;
}

/* The length by a first byte, and the bits of the character in it. */
static size_t utf8_first(unsigned char first, uint32_t *ret_bits)
{
    if (first < 0x80) {
        *ret_bits = first;
        return 1;
    }
    if (first >= 0xC2 && first <= 0xDF) {
        *ret_bits = first & 0x1Fu;
        return 2;
    }
    if (first >= 0xE0 && first <= 0xEF) {
        *ret_bits = first & 0x0Fu;
        return 3;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        *ret_bits = first & 0x07u;
        return 4;
    }
    return 0;
}

size_t semel__utf8_next(struct semel_str s, uint32_t *ret_char)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* less would be overlong */
    uint32_t c = 0;
    size_t n = s.n > 0 ? utf8_first((unsigned char)s.p[0], &c) : 0;
    if (n == 0 || n > s.n)
        return 0;
    for (size_t i = 1; i < n; i++) {
        unsigned char byte = (unsigned char)s.p[i];
        if ((byte & 0xC0u) != 0x80)
            return 0;
        c = c << 6 | (byte & 0x3Fu);
    }
    if (c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    *ret_char = c;
    return n;
}

size_t semel__utf8_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80u | (c & 0x3Fu));
        c >>= 6;
    }
    static const unsigned char mark[] = {0, 0, 0xC0, 0xE0, 0xF0};
    out[0] = (char)(mark[n] | c);
    return n;
}

/* Are the eight bytes ASCII without NUL? Less one, only a NUL borrows and gets a high bit. */
static bool plain8(const char *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof(word));
    return ((word | (word - UINT64_C(0x0101010101010101))) & UINT64_C(0x8080808080808080)) == 0;
}

bool semel__utf8_valid(struct semel_str s)
{
    const char *last8 = s.n >= 8 ? s.p + s.n - 8 : NULL;
    while (s.n > 0) {
        if (s.n < 8 && last8 != NULL && plain8(last8)) /* what is left is among them */
            return true;
        uint32_t c = (unsigned char)s.p[0];
        size_t n = s.n >= 8 && plain8(s.p) ? 8 : c < 0x80 ? 1 : semel__utf8_next(s, &c);
        if (n == 0 || c == 0)
            return false;
        s.p += n;
        s.n -= n;
    }
    return true;
}

/* C0, DEL and C1, which a terminal might obey; then Unicode's format characters, line separators and the like, which
 * hide, reorder or join the text beside them. */
bool semel__utf8_shown(uint32_t c)
{
    static const uint32_t hidden[][2] = {
        {0x0000, 0x001F},   {0x007F, 0x009F},   {0x00AD, 0x00AD},   {0x061C, 0x061C}, {0x180E, 0x180E},
        {0x200B, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x206F},   {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB},
        {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF},
    };
    for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++)
        if (c >= hidden[i][0] && c <= hidden[i][1])
            return false;
    return true;
}

void semel__str_show(char *out, size_t size, struct semel_str s)
{
    if (size == 0)
        return;
    size_t room = size - 1;
    while (s.n > 0) {
        uint32_t c = 0;
        size_t n = semel__utf8_next(s, &c);
        bool show = n > 0 && semel__utf8_shown(c);
        size_t width = show ? n : 1;
        if (width > room)
            break;
        if (show)
            memcpy(out, s.p, n);
        else
            *out = '?';
        out += width;
        room -= width;
        s.p += n > 0 ? n : 1;
        s.n -= n > 0 ? n : 1;
    }
    *out = '\0';
}

static size_t least_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The number of edits from a to b, of at most NEAREST_MAX bytes each: the usual table, of which three rows are kept. */
static size_t edits(struct semel_str a, struct semel_str b)
{
    size_t rows[3][NEAREST_MAX + 1];
    for (size_t j = 0; j <= b.n; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a.n; i++) {
        const size_t *above = rows[(i - 1) % 3], *before = rows[(i + 1) % 3];
        size_t *row = rows[i % 3];
        row[0] = i;
        for (size_t j = 1; j <= b.n; j++) {
            row[j] = least_of(above[j - 1] + (a.p[i - 1] != b.p[j - 1]), least_of(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a.p[i - 1] == b.p[j - 2] && a.p[i - 2] == b.p[j - 1])
                row[j] = least_of(row[j], before[j - 2] + 1);
        }
    }
    return rows[a.n % 3][b.n];
}

bool semel__host_is_local(struct semel_str host)
{
    char name[INET6_ADDRSTRLEN];
    struct in_addr four;
    struct in6_addr six;
    if (host.n == 0 || host.n >= sizeof name)
        return false;
    memcpy(name, host.p, host.n);
    name[host.n] = '\0';
    if (strcasecmp(name, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, name, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, name, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

/* In fewer than `bound` edits, and between short words in at most one if they are to be `alike`. */
static const char *nearest(struct semel_str a, const char *const *names, size_t n, bool alike)
{
    const char *ret = NULL;
    size_t bound = least_of(a.n, NEAREST_EDITS + 1);
    for (size_t i = 0; a.n <= NEAREST_MAX && i < n; i++) {
        const struct semel_str b = semel__str(names[i]);
        const bool brief = alike && a.n <= NEAREST_SHORT && b.n <= NEAREST_SHORT;
        size_t count = b.n <= NEAREST_MAX ? edits(a, b) : bound;
        if (count < bound && (count <= 1 || !brief)) {
            ret = names[i];
            bound = count;
        }
    }
    return ret;
}

const char *semel__nearest(const char *word, const char *const *names, size_t n)
{
    return nearest(semel__str(word), names, n, true);
}

bool semel__resembles(const char *word, const char *const *names, size_t n)
{
    return nearest(semel__str(word), names, n, false) != NULL;
}

void semel__buf_init(struct semel_buf *buf, size_t max)
{
    *buf = (struct semel_buf){.max = max};
}

void semel__buf_done(struct semel_buf *buf)
{
    semel__free(buf->p);
    *buf = (struct semel_buf){.max = buf->max};
}

/* Room for n more bytes and a NUL that vsnprintf may write behind them. */
static bool buf_reserve(struct semel_buf *buf, size_t n)
{
    if (buf->failed)
        return false;
    if (n > buf->max - buf->n) {
        buf->failed = buf->full = true;
        return false;
    }
    size_t need = buf->n + n;
    if (need < buf->cap)
        return true;

    size_t cap = buf->cap > 0 ? buf->cap : BUF_FIRST;
    while (cap <= need && !__builtin_mul_overflow(cap, (size_t)2, &cap))
        continue;
    if (cap > buf->max)
        cap = buf->max + 1; /* wraps to 0 only where no allocation could succeed */
    char *p = cap > need ? semel__realloc(buf->p, cap, 1) : NULL;
    if (p == NULL) {
        buf->failed = true;
        return false;
    }
    buf->p = p;
    buf->cap = cap;
    return true;
}

bool semel__buf_add(struct semel_buf *buf, const void *bytes, size_t n)
{
    if (!buf_reserve(buf, n))
        return false;
    if (n > 0)
        memcpy(buf->p + buf->n, bytes, n);
    buf->n += n;
    return true;
}

bool semel__buf_addz(struct semel_buf *buf, const char *z)
{
    return semel__buf_add(buf, z, strlen(z));
}

bool semel__buf_addf(struct semel_buf *buf, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    size_t room = buf->failed || buf->cap == 0 ? 0 : buf->cap - buf->n; /* most texts fit at once */
    int n = vsnprintf(room > 0 ? buf->p + buf->n : NULL, room, fmt, args);
    va_end(args);

    bool ok = n >= 0 && buf_reserve(buf, (size_t)n);
    if (ok) {
        if ((size_t)n >= room)
            vsnprintf(buf->p + buf->n, (size_t)n + 1, fmt, again);
        buf->n += (size_t)n;
    } else {
        buf->failed = true;
    }
    va_end(again);
    return ok;
}

bool semel__url_secret(struct semel_str url, struct semel_str *ret)
{
    const char *end = url.p + url.n, *from = NULL, *colon = NULL, *at = NULL;
    for (const char *p = url.p; p + 1 < end && from == NULL; p++)
        if (p[0] == '/' && p[1] == '/')
            from = p + 2;
    for (const char *p = from; p != NULL && p < end; p++) {
        colon = colon == NULL && *p == ':' ? p : colon;
        at = *p == '@' ? p : at;
    }
    if (colon == NULL || at == NULL || colon > at)
        return false;
    *ret = (struct semel_str){colon + 1, (size_t)(at - colon - 1)};
    return true;
}

void semel__url_host(struct semel_str url, struct semel_str *ret_host, struct semel_str *ret_port)
{
    const char *end = url.p + url.n, *host = memchr(url.p, ':', url.n);
    host = host != NULL && end - host > 3 ? host + 3 : end; /* behind :// */
    const char *past = host;
    while (past < end && strchr("/?#", *past) == NULL)
        past++;
    for (const char *p = host; p < past; p++) /* behind the user */
        host = *p == '@' ? p + 1 : host;
    bool six = host < past && *host == '[';
    const char *stop = memchr(host, six ? ']' : ':', (size_t)(past - host));
    host += six;
    stop = stop != NULL ? stop : six ? host : past; /* no address without its ] */
    const char *port = stop + six;
    port = port < past && *port == ':' ? port + 1 : past;
    *ret_host = (struct semel_str){host, (size_t)(stop - host)};
    *ret_port = (struct semel_str){port, (size_t)(past - port)};
}
