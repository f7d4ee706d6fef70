/* SPDX-License-Identifier: MIT
 *
 * sqs_md5.c: MD5 (RFC 1321), with which SQS says what a body should be. It tells of damage on the way and is of no use
 * against anybody; some builds of OpenSSL do not have it any more.
 */
#include "broker/sqs_private.h"

#include "base/digest.h"

struct md5 {
    uint32_t a, b, c, d;
};

/* floor(2^32 * |sin(i + 1)|) */
static const uint32_t sines[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};
static const unsigned char turns[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

static uint32_t word(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void step(struct md5 *m, const unsigned char *block, unsigned i)
{
    const uint32_t b = m->b, c = m->c, d = m->d;
    uint32_t f;
    unsigned at;

    if (i < 16)
        f = (b & c) | (~b & d), at = i;
    else if (i < 32)
        f = (d & b) | (~d & c), at = (5 * i + 1) % 16;
    else if (i < 48)
        f = b ^ c ^ d, at = (3 * i + 5) % 16;
    else
        f = c ^ (b | ~d), at = 7 * i % 16;
    f += m->a + sines[i] + word(block + 4 * at);
    *m = (struct md5){d, b + (f << turns[i / 16][i % 4] | f >> (32 - turns[i / 16][i % 4])), b, c};
}

static void add_block(struct md5 *m, const unsigned char *block)
{
    const struct md5 before = *m;

    for (unsigned i = 0; i < 64; i++)
        step(m, block, i);
    *m = (struct md5){m->a + before.a, m->b + before.b, m->c + before.c, m->d + before.d};
}

static void put_word(unsigned char *out, uint32_t w)
{
    for (unsigned i = 0; i < 4; i++)
        out[i] = (unsigned char)(w >> (8 * i));
}

void semel__sqs_md5(struct semel_str text, char out[33])
{
    const unsigned char *p = (const unsigned char *)text.p;
    struct md5 m = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
    unsigned char end[128] = {0}, digest[16];
    const size_t rest = text.n % 64, n_end = rest < 56 ? 64 : 128;

    for (size_t i = 0; i + 64 <= text.n; i += 64)
        add_block(&m, p + i);
    if (rest > 0)
        memcpy(end, p + text.n - rest, rest);
    end[rest] = 0x80;
    put_word(end + n_end - 8, (uint32_t)((uint64_t)text.n << 3));
    put_word(end + n_end - 4, (uint32_t)((uint64_t)text.n >> 29));
    for (size_t i = 0; i < n_end; i += 64)
        add_block(&m, end + i);
    put_word(digest, m.a);
    put_word(digest + 4, m.b);
    put_word(digest + 8, m.c);
    put_word(digest + 12, m.d);
    semel__hex(digest, sizeof digest, out);
}
