/* SPDX-License-Identifier: MIT
 *
 * curl.h: what all our requests by curl have in common: whom they trust, and that curl sends each once, to nobody but
 * the server of its URL.
 *
 * Invariants: TLS is 1.2 or newer; curl checks the certificate and its name unless no_verify. With a ca_file no other
 * authority counts, neither of curl's file nor of its folder. curl follows no redirect, and uses no proxy of the
 * environment. It sends a POST again when a reused connection dies (P54) only if it can rewind the body: ours comes
 * from a callback, which it cannot rewind, and a POST without a body gets a new connection.
 */
#ifndef SEMEL_NET_CURL_H
#define SEMEL_NET_CURL_H

#include <curl/curl.h>

#include "base/setting.h"
#include "base/str.h"

struct semel_curl_tls {
    char *ca_file, *cert_file, *key_file, *key_password; /* NULL: none; our copies */
    bool no_verify;
};

struct semel_curl_body {
    struct semel_str all; /* borrowed until the request has ended */
    size_t given;         /* bytes that curl has taken: 0 means that nobody has seen it */
};

/* false: no memory; `ret` is to be done all the same. */
bool semel__curl_tls_copy(struct semel_curl_tls *ret, const struct semel_setting_tls *tls);
void semel__curl_tls_done(struct semel_curl_tls *tls); /* wipes the password */

/* Initialises curl, too. NULL: no memory. At most `connections` stay open; 0: as many as curl likes. */
CURLM *semel__curl_open(size_t connections);
void semel__curl_close(CURLM *multi); /* NULL: nothing; its requests have been removed */

/* Everything above but the body. The URL's scheme is http or https. */
CURLcode semel__curl_rules(CURL *easy, const struct semel_curl_tls *tls, long timeout_ms, long connect_ms);
CURLcode semel__curl_post(CURL *easy, struct semel_curl_body *body);

#endif
