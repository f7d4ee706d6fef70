/* SPDX-License-Identifier: MIT
 *
 * gate.h: the strict gate before llhttp: which bytes may be the head of a request at all.
 *
 *     head    = line *field CRLF
 *     line    = method SP target SP "HTTP/1." ("1" / "0") CRLF
 *     method  = 1*tchar              target = ("/" *VCHAR) / "*"; no "#"
 *     field   = 1*tchar ":" *(HTAB / SP / VCHAR / obs-text) CRLF
 *
 * What it is: an automaton that is fed bytes as they come and refuses at the first one that does not
 * fit, so a client that speaks something else is answered at once. It admits less than llhttp does:
 * no bare CR or LF, no obs-fold, no blank before the colon, one blank between the parts of the
 * line. One CRLF before the request line is skipped (RFC 9112, 2.2).
 *
 * Invariants: the end of a head is found only at CRLF CRLF; no byte behind the end is looked at; a refusal is
 * final, with a status and a static text.
 */
#ifndef SEMEL_NET_GATE_H
#define SEMEL_NET_GATE_H

#include "semel/types.h"

struct semel_gate {
    int state;
    size_t seen;    /* bytes of this head */
    size_t skipped; /* of these, before the request line */
    size_t fields;  /* header lines */
    size_t max_bytes, max_fields;
    const char *version; /* what of it has still to come */
    int status;          /* of the refusal */
    const char *reason;
};

enum semel_gate_verdict { SEMEL_GATE_MORE, SEMEL_GATE_END, SEMEL_GATE_REFUSED };

void semel__gate_init(struct semel_gate *gate, size_t max_bytes, size_t max_fields);
/* Reads on. *ret_used says how many of the n bytes belong to the head. */
enum semel_gate_verdict semel__gate_feed(struct semel_gate *gate, const char *p, size_t n, size_t *ret_used);

bool semel__http_tchar(char c); /* of a token, RFC 9110 */

#endif
