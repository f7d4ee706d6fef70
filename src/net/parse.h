/* SPDX-License-Identifier: MIT
 *
 * parse.h: parses requests, and the answers of upstreams: a strict gate, then llhttp.
 *
 * The gate decides which bytes may be the head of a request at all:
 *
 *     head    = line *field CRLF
 *     line    = method SP target SP "HTTP/1." ("1" / "0") CRLF
 *     method  = 1*tchar              target = ("/" *VCHAR) / "*"; no "#"
 *     field   = 1*tchar ":" *(HTAB / SP / VCHAR / obs-text) CRLF
 *
 * and of an answer:
 *
 *     line    = "HTTP/1." ("1" / "0") SP 3DIGIT [SP *(HTAB / SP / VCHAR / obs-text)] CRLF
 *
 * It is an automaton that reads bytes as they come and refuses the first one that does not fit, so a client with
 * another protocol gets its answer at once. It accepts less than llhttp does: no bare CR or LF, no obs-fold, no blank
 * before the colon, one blank between the parts of the line. One CRLF before the request line is skipped (RFC 9112,
 * 2.2). The end of a head is found only at CRLF CRLF; it reads no byte behind the end; a refusal is final, with a
 * status and a static text.
 *
 * llhttp finds the parts of a head, and the framing of a body. There is one parser per request, so that no request
 * can influence the next. The head comes in one piece that has passed the gate; the body in any pieces.
 *
 * Invariants: a body has a Content-Length, or is chunked, or there is none (that of an answer may end with its
 * connection), never two of these; neither header is
 * repeated; no other transfer coding, no chunk extensions, no trailers pass; the CR LF behind the last chunk is one;
 * no byte behind the message is used; a chunked body's framing is bounded by the body's own bound.
 */
#ifndef SEMEL_NET_PARSE_H
#define SEMEL_NET_PARSE_H

#include <llhttp.h>

#include "net/http.h"

struct semel_http_exchange;

/* ---- the gate ---- */

struct semel_gate {
    int state;
    size_t seen;    /* bytes of this head */
    size_t skipped; /* of these, before the request line */
    size_t fields;  /* header lines */
    size_t max_bytes, max_fields;
    const char *version; /* the rest of the version that is expected */
    bool answer;         /* of an upstream */
    int code;            /* its status; 0: not there yet */
    int status;          /* of the refusal */
    const char *reason;
};

enum semel_gate_verdict { SEMEL_GATE_MORE, SEMEL_GATE_END, SEMEL_GATE_REFUSED };

void semel__gate_init(struct semel_gate *gate, size_t max_bytes, size_t max_fields);
/* The gate of an answer. A refusal has the status 502. */
void semel__gate_init_answer(struct semel_gate *gate, size_t max_bytes, size_t max_fields);
/* Continues. *ret_used: how many of the n bytes belong to the head. */
enum semel_gate_verdict semel__gate_feed(struct semel_gate *gate, const char *p, size_t n, size_t *ret_used);

/* ---- llhttp ---- */

struct semel_parse {
    llhttp_t llhttp;
    struct semel_http_exchange *x;
    /* Takes a piece of the body; false: no memory. */
    bool (*sink)(void *ctx, struct semel_str piece);
    void *sink_ctx;
    struct semel_http_pair *fields; /* those of x, while they are filled */
    size_t n_fields, max_fields;
    struct semel_str target;
    bool headed;   /* the head is complete */
    bool complete; /* the message is complete */
    bool sized;    /* there is a Content-Length */
    bool chunked;
    bool answer;     /* of an upstream */
    bool no_body;    /* an answer that has none: to a HEAD, or by its status */
    bool to_close;   /* the body of an answer ends with its connection */
    bool keep_alive; /* by the client's version and Connection header */
    bool http_1_0;
    bool expects;     /* 100-continue: the client waits for it */
    size_t length;    /* Content-Length; 0 when there is none */
    size_t wire_left; /* bytes that a chunked body may still have, framing included */
    size_t body_left; /* bytes that the body may still have */
    char last;        /* the last byte of the body's framing that was read */
    int status;       /* of a refusal; 0: none */
    const char *reason;
};

/* Parses the head, which has passed the gate and is in x's arena, into x->req: method, target, headers. 0, or the
 * status of a refusal with its reason in parse->reason. */
int semel__parse_head(struct semel_parse *parse, struct semel_http_exchange *x, struct semel_str head,
                      size_t max_fields);
/* Parses the head of an answer with this status, which has passed its gate, into the fields; they point into it.
 * head_only: it answers a HEAD. 0, or 502. */
int semel__parse_answer(struct semel_parse *parse, struct semel_http_pair *fields, size_t max_fields,
                        struct semel_str head, int code, bool head_only);
/* The connection of an answer has ended. true: its body ends so, and is complete. */
bool semel__parse_ended(struct semel_parse *parse);
/* Sets the limit of the body and who takes it, for the bytes that follow. */
void semel__parse_bound(struct semel_parse *parse, size_t body_max, bool (*sink)(void *ctx, struct semel_str piece),
                        void *sink_ctx);
/* Continues with the body, giving it to the sink, until parse->complete. *ret_used: bytes that belong to this message.
 * 0, or the status of a refusal. */
int semel__parse_body(struct semel_parse *parse, const char *p, size_t n, size_t *ret_used);

#endif
