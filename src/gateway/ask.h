/* SPDX-License-Identifier: MIT
 *
 * ask.h: questions by GET beside a request: what has become of a key, and whether its caller may still see an answer.
 *
 * What it is: a URL with {key} and {caller} in it, and an upstream of its own. A question that has no whole answer is
 * not repeated.
 *
 * Invariants: a key or caller is one segment of the path, or a part of one, whatever characters it has: one that a
 * server could take for another path is not asked about (P84). An answer has at most SEMEL_ASK_ANSWER_MAX bytes.
 */
#ifndef SEMEL_GATEWAY_ASK_H
#define SEMEL_GATEWAY_ASK_H

#include "base/mem.h"
#include "net/upstream.h"

#define SEMEL_ASK_ANSWER_MAX 65536

struct semel_asker;

/* Timeouts and CAs are those of `settings`. INVALID: the URL cannot be used; `what` names its setting. */
semel_status semel__asker_new(struct semel_asker **ret, struct semel_http *http, const char *what, const char *url,
                              const struct semel_upstream_settings *settings, struct semel_error *err);
void semel__asker_free(struct semel_asker *asker); /* after semel__http_free; accepts NULL */

/* status 0: there was no whole answer. The body is borrowed. */
typedef void (*semel_asked)(void *ctx, int status, struct semel_str body);
/* Asks, with these header lines besides Host. false: no URL can contain the names, or there is no memory; *ret_why. */
bool semel__ask(struct semel_asker *asker, struct semel_str key, struct semel_str caller, struct semel_str lines,
                semel_asked asked, void *ctx, const char **ret_why);

/* What a reconcile has answered. For DONE the status that it names, else 200, and the text of `outcome`, canonical, in
 * the buffer; not there: empty. */
enum semel_ask_state { SEMEL_ASK_DONE, SEMEL_ASK_NOT_DONE, SEMEL_ASK_UNKNOWN };
enum semel_ask_state semel__ask_state(int status, struct semel_str body, int64_t *ret_code, struct semel_buf *outcome);

#endif
