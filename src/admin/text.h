/* SPDX-License-Identifier: MIT
 *
 * text.h: small things about text that ingest and pull share.
 */
#ifndef SEMEL_ADMIN_TEXT_H
#define SEMEL_ADMIN_TEXT_H

#include "base/str.h"

/* Appends the text if it is JSON, else not: false. */
bool semel__json_put_raw(struct semel_buf *buf, struct semel_str text, size_t max);
/* Appends ,"name":"value"; nothing when the value is not given or not UTF-8. */
void semel__json_put_pair(struct semel_buf *buf, const char *name, struct semel_str value);

#endif
