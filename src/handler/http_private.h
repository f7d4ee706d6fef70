/* SPDX-License-Identifier: MIT
 *
 * http_private.h: the parts of the caller `http`: http.c the calls and curl's multi handle, http_request.c what is
 * sent, http_answer.c what came back and what it means.
 */
#ifndef SEMEL_HANDLER_HTTP_PRIVATE_H
#define SEMEL_HANDLER_HTTP_PRIVATE_H

#include <curl/curl.h>

#include "handler/caller_private.h"

#define HTTP_HEADS_MAX ((size_t)256 * 1024) /* bytes of all header lines of an answer */
#define HTTP_WORD_TEXT 32
#define HTTP_ADDRESS_TEXT 48
#define HTTP_IDLE_US INT64_C(1000000) /* for which a connection is used again whose server says nothing */

/* A connection, by its two ends, and until when a request may be sent on it again. */
struct http_line {
    char address[HTTP_ADDRESS_TEXT];
    int port, our_port; /* our_port 0: none */
    int64_t fresh_until_us;
};

struct http_call {
    enum call_state state;
    struct semel_call call;
    struct http_caller *http;
    CURL *easy;
    struct curl_slist *lines;
    bool begun;            /* the first byte may have been sent */
    bool stale, fresh;     /* its connection was idle for too long: it gets a new one */
    struct http_line line; /* on which it was sent */
    size_t given;          /* bytes of the payload that curl has taken */

    /* What came back. */
    size_t heads;                /* bytes of header lines */
    int64_t idle_us;             /* how long its connection may be idle before it is used again */
    char word[HTTP_WORD_TEXT];   /* Semel-Outcome, in lower case */
    char said[CALL_REASON_TEXT]; /* Semel-Reason */
    bool problem;                /* application/problem+json */
    bool headed;                 /* all headers came; curl is content with some when the connection ends */
    bool in_body, cut, lost;     /* cut: by us, for its length; lost: no memory for it */
    struct semel_buf body;
    char error[CURL_ERROR_SIZE];

    struct semel_call_end end;
    char reason[CALL_REASON_TEXT];
    struct semel_buf outcome; /* of a reconcile, where it is a part of the body */
};

struct http_caller {
    struct semel_caller base;
    CURLM *multi;
    char *url, *reconcile_url;
    char *ca_file, *cert_file, *key_file, *key_password;
    char **fixed; /* "Name: value", which may be secret */
    size_t n_fixed;
    long timeout_ms;
    int *transient; /* 5xx that are believed to have done nothing */
    size_t n_transient;
    bool idempotent, verify, initialized;
    int timer;
    struct semel_random rng;
    struct http_call *calls; /* twice base.concurrency */
    struct http_line *lines; /* as many */
};

/* ---- http_request.c ---- */

/* Checks a URL. INVALID: not one that we can call. */
semel_status semel__http_check_url(const char *what, const char *url, struct semel_error *err);
/* "Name: value" for curl, checked. */
semel_status semel__http_fixed(const struct semel_pair *pair, char **ret_line, struct semel_error *err);
/* Everything that curl needs to know of the call, except where its answer goes. RETRY: no memory. INVALID: there is no
 * URL for this id, err says why (only of a reconcile). */
semel_status semel__http_prepare(struct http_call *c, struct semel_error *err);
/* The call ended on its connection, which may be used again for as long as its answer allows. */
void semel__http_keep_line(const struct http_call *c);

/* ---- http_answer.c ---- */

size_t semel__http_take_head(char *p, size_t size, size_t n, void *ctx);
size_t semel__http_take_body(char *p, size_t size, size_t n, void *ctx);
/* What the end of the transfer means. */
void semel__http_judge(struct http_call *c, CURLcode code);
void semel__http_give_up(struct http_call *c);
/* A reconcile that was not made; end.err says why. */
void semel__http_not_asked(struct http_call *c);

#endif
