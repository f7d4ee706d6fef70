/* SPDX-License-Identifier: MIT
 *
 * webhook.h: HTTP receivers as a sink: one POST per item, signed as Standard Webhooks say, by libcurl.
 *
 * What is promised
 *  - A destination is a URL, http or https. Each request has webhook-id and Idempotency-Key (the item's id),
 *    webhook-timestamp, webhook-signature ("v1," and the HMAC-SHA256 of id, timestamp and payload), Content-Type, and
 *    those of the item's headers that HTTP can carry: CloudEvents' `ce_NAME` as `ce-NAME`, the others as they are,
 *    except those that we write and those of the connection. A value with control characters is left out.
 *  - Up to `concurrency` requests are on their way at a time, of one destination half as many while there are others.
 *    When a destination is found to be down, the other items for it are not sent in this call.
 *  - OK: a status of 2xx. INVALID: 400, 413, 415, 422, 431; also an id or a URL that cannot be sent. RETRY: 408, 409,
 *    425; RETRY and `down`: 429, 401, 403, 404, 410, other 4xx, 3xx (redirects are not followed), and whatever failed
 *    before the first byte was sent. UNKNOWN: 5xx (502, 503 and 504 are `down`, too) and no whole answer in time: a
 *    receiver may have done it nevertheless, and deduplicates by the id.
 *  - No request is sent twice by itself (P54). TLS is 1.2 or later and always verified; proxies are not used.
 *  - Addresses are checked after the name was resolved, for each connection: loopback, private, link-local and other
 *    special ones are refused, unless a network of `allow` has them.
 */
#ifndef SEMEL_BROKER_WEBHOOK_H
#define SEMEL_BROKER_WEBHOOK_H

#include <sys/socket.h>

#include "base/setting.h"
#include "core/broker.h"

#define SEMEL_WEBHOOK_CONCURRENCY_MAX 64

/* Everything is borrowed until the call returns. Unset: NULL, 0. */
struct semel_webhook_options {
    const char *secret;              /* "whsec_" and 24 to 64 bytes in base64 */
    struct semel_setting_list allow; /* networks as 10.1.0.0/16, fd00::/8, or an address alone */
    int64_t concurrency;             /* 0: 16 */
    int64_t timeout_us;              /* of one request; 0: 15 s */
    struct semel_setting_tls tls;    /* its files; no_verify is refused */
};

/* INVALID says which setting is wrong. */
semel_status semel__broker_webhook_open(struct semel_broker **ret, const struct semel_webhook_options *options,
                                        struct semel_error *err);

/* One connection to the receiver, with its addresses checked and, for https, its certificate; nothing is sent. For
 * `semel check --online`. RETRY, class BROKEN: its address is refused. */
semel_status semel__webhook_ask(const struct semel_webhook_options *options, struct semel_str url, int timeout_ms,
                                struct semel_error *err);

/* What is wrong with a network, to go behind its name in a sentence; NULL: nothing. */
const char *semel__webhook_network_mistake(struct semel_str network);

#define SEMEL_WEBHOOK_SIGNATURE 48
/* "v1," and base64. `key` is what the secret's base64 stands for. false: no memory. */
bool semel__webhook_sign(struct semel_str key, struct semel_str id, int64_t timestamp_s, struct semel_str payload,
                         char out[SEMEL_WEBHOOK_SIGNATURE]);

/* May it be connected to? */
bool semel__webhook_reaches(const struct sockaddr *address, const struct semel_str *allow, size_t n);

#endif
