/* SPDX-License-Identifier: MIT
 *
 * fingerprint.h: what makes an HTTP request the same as another one, in 32 bytes.
 *
 * A retry of a client must give the same fingerprint, although member order, white space, form order and the boundary
 * of a multipart body may differ; any other request must give another one. Python and Node compute the same bytes:
 * spec/fingerprints.json holds all of them to it, and docs/idempotency.md describes the format, which is
 *
 *   SHA-256 of  field("semel-http-1") field(method) field(path) field(query) field(media type)
 *               count(listed headers) { field(name) count(values) { field(value) } }
 *               field(form) and the payload in that form
 *     count(n)  n as 8 bytes, most significant first        field(s)  count(bytes of s) and its bytes
 *
 *   json        field(RFC 8785 form without what is ignored). For application/json and +json.
 *   form        count(pairs) { field(name) field(value) }, decoded, sorted by name, those of one name in their order.
 *               For application/x-www-form-urlencoded.
 *   multipart   count(parts) { count(headers) { field(name) field(value) } field(body) }; headers sorted by name; the
 *               parts of multipart/form-data sorted by their Content-Disposition. For multipart/...
 *   raw         field(body). For everything else, for what is encoded (Content-Encoding), and for a body that is not
 *               what its media type says: no JSON, repeated members, a number that is not exact as a double (P56).
 *
 * Invariants: the same request and rule give the same bytes for ever; another format gets another kind of fingerprint.
 */
#ifndef SEMEL_CORE_FINGERPRINT_H
#define SEMEL_CORE_FINGERPRINT_H

#include "core/msg.h"

struct semel_request {
    struct semel_str method, path, query; /* as they were sent; the query without its question mark, "": none */
    const struct semel_pair *headers;
    size_t n_headers;
    struct semel_str body;
};

/* What a rule says of it. */
struct semel_request_rule {
    const struct semel_str *headers; /* names of headers that count, in any case and order */
    size_t n_headers;
    const struct semel_str *ignore; /* valid JSON pointers */
    size_t n_ignore;
};

/* RETRY: no memory. */
semel_status semel__request_fingerprint(const struct semel_request *request, const struct semel_request_rule *rule,
                                        struct semel_fp *ret, struct semel_error *err);

/* May a server read the payload as JSON: does it have a media type of JSON, or none? */
bool semel__request_may_be_json(const struct semel_request *request);
/* Do all servers read the same characters: is the payload neither encoded (Content-Encoding) nor in a charset that is
 * not UTF-8? */
bool semel__request_is_plain(const struct semel_request *request);

#endif
