/* SPDX-License-Identifier: MIT
 *
 * parse.h: llhttp behind the gate: the parts of a head, and the framing of a body.
 *
 * What it is: one parser a request, thrown away with it, so that nothing of one request can colour
 * the next. The head comes in one piece that has passed the gate; the body in any pieces.
 *
 * Invariants: a body has a Content-Length or is chunked or is not there, never two of these; neither
 * header is repeated; no other transfer coding, no chunk extensions, no trailers pass; the CR LF
 * behind the last chunk is one; no byte behind the message is used; a chunked body's framing is
 * bounded by the body's own bound.
 */
#ifndef SEMEL_NET_PARSE_H
#define SEMEL_NET_PARSE_H

#include <llhttp.h>

#include "net/exchange.h"

struct semel_parse {
    llhttp_t llhttp;
    struct semel_http_exchange *x;
    struct semel_http_pair *fields; /* those of x, as they are filled */
    size_t n_fields, max_fields;
    struct semel_str target;
    bool headed;   /* the head is whole */
    bool complete; /* the message is */
    bool chunked;
    bool keep_alive; /* what the client's version and Connection header say */
    bool http_1_0;
    bool expects;     /* 100-continue, and is waiting for it */
    size_t length;    /* Content-Length; 0 when there is none */
    size_t wire_left; /* bytes that a chunked body may still take with its framing */
    size_t body_left; /* bytes that the body may still have */
    char last;        /* the last byte of the body's framing that was read */
    int status;       /* of a refusal; 0: none */
    const char *reason;
};

/* Reads the head, which the gate passed and x's arena holds, into x->req: method, target, headers. 0, or the status of
 * a refusal with its reason in parse->reason. */
int semel__parse_head(struct semel_parse *parse, struct semel_http_exchange *x, struct semel_str head,
                      size_t max_fields);
/* From here on the body has at most body_max bytes. */
void semel__parse_bound(struct semel_parse *parse, size_t body_max);
/* Reads on in the body, appending to x->body, until parse->complete. *ret_used: bytes that belong to this message.
 * 0, or the status of a refusal. */
int semel__parse_body(struct semel_parse *parse, const char *p, size_t n, size_t *ret_used);

#endif
