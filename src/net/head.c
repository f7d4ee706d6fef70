/* SPDX-License-Identifier: MIT
 *
 * head.c: the head of a reply, as head.h says.
 */
#include "net/head.h"

#include <stdio.h>

#include "net/exchange.h"

#define US_PER_DAY (INT64_C(86400) * 1000000)

/* The parts are cut from the text of base/clock.h: 2026-11-15T19:38:00.000000Z. */
void semel__http_date(int64_t now_us, char out[SEMEL_HTTP_DATE])
{
    static const char days[] = "ThuFriSatSunMonTueWed"; /* 1970-01-01 was a Thursday */
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char text[SEMEL_TIME_TEXT];
    if (now_us < 0)
        now_us = 0;
    semel__time_format(now_us, text);
    int64_t day = now_us / US_PER_DAY % 7;
    int month = (text[5] - '0') * 10 + (text[6] - '0') - 1;
    snprintf(out, SEMEL_HTTP_DATE, "%.3s, %.2s %.3s %.4s %.8s GMT", days + 3 * day, text + 8, months + 3 * month, text,
             text + 11);
}

bool semel__reply_bodiless(int status)
{
    return status < 200 || status == 204 || status == 304;
}

void semel__reply_head_put(struct semel_buf *buf, const struct semel_reply_head *head, int64_t now_us)
{
    char date[SEMEL_HTTP_DATE];
    semel__http_date(now_us, date);
    semel__buf_addf(buf, "HTTP/1.1 %d %s\r\nDate: %s\r\n", head->status, semel__http_reason(head->status), date);
    if (!semel__reply_bodiless(head->status)) {
        semel__buf_addf(buf, "Content-Length: %zu\r\n", head->length);
        if (head->length > 0)
            semel__buf_addf(buf, "Content-Type: %s\r\n", head->type);
    }
    semel__buf_addz(buf, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n");
    semel__buf_add(buf, head->lines.p, head->lines.n);
    semel__buf_addz(buf, head->close ? "Connection: close\r\n\r\n" : "\r\n");
}
