/* SPDX-License-Identifier: MIT
 *
 * head.h: the head of a reply.
 *
 * Invariants: it always says how long the body is, or that there can be none; a date is UTC in the one form that RFC
 * 9110 wants; a status without a body (204, 304) has neither length nor type.
 */
#ifndef SEMEL_NET_HEAD_H
#define SEMEL_NET_HEAD_H

#include "base/clock.h"
#include "base/str.h"

struct semel_reply_head {
    int status;
    const char *type;       /* of the body */
    size_t length;          /* of the body, even if it is not sent (HEAD) */
    struct semel_str lines; /* more headers, each with its CR LF */
    bool close;
};

void semel__reply_head_put(struct semel_buf *buf, const struct semel_reply_head *head, int64_t now_us);
bool semel__reply_bodiless(int status); /* a reply with this status has no body */

#define SEMEL_HTTP_DATE 30
void semel__http_date(int64_t now_us, char out[SEMEL_HTTP_DATE]); /* Sun, 06 Nov 1994 08:49:37 GMT */

#endif
