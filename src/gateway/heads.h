/* SPDX-License-Identifier: MIT
 *
 * heads.h: what the gateway knows of heads: which targets all servers read alike, which headers are for one connection
 * only, which are kept with an answer, and whose word about its client counts.
 *
 * Invariants: a stored answer has no header that concerns one connection, one moment or one client: hop-by-hop headers,
 * Set-Cookie, Date, Age, rate limits, traces (P52, P101). Headers are pairs in their order, never a map.
 */
#ifndef SEMEL_GATEWAY_HEADS_H
#define SEMEL_GATEWAY_HEADS_H

#include "base/mem.h"
#include "net/http.h"

/* What is wrong with a target (gateway.h); NULL: nothing. */
const char *semel__target_fault(struct semel_str target);

bool semel__head_is_one_of(struct semel_str name, const char *const *names); /* ended by NULL */
/* Framing and what concerns one connection only. */
bool semel__head_hop_by_hop(struct semel_str name);
bool semel__head_ours(struct semel_str name); /* Semel-... */
/* Does a Connection header among these name this header? */
bool semel__head_in_connection(const struct semel_http_pair *headers, size_t n, struct semel_str name);
/* May it go from an upstream's answer to the client? */
bool semel__head_answers(const struct semel_http_pair *headers, size_t n, struct semel_str name);
/* The first header of that name; {NULL, 0}: there is none. *ret_n (may be NULL): how many there are. */
struct semel_str semel__head_find(const struct semel_http_pair *headers, size_t n, const char *name, size_t *ret_n);
void semel__head_put(struct semel_buf *lines, struct semel_str name, struct semel_str value); /* "Name: value" CR LF */

/* ---- kept with an answer ---- */

/* The text of a JSON array of pairs; headers that are not kept, or are not UTF-8, are left out. */
void semel__heads_write(const struct semel_http_pair *headers, size_t n, struct semel_buf *text);
/* Reads it back, into the arena. false: no memory, or the text is none of ours. */
bool semel__heads_read(struct semel_str text, struct semel_arena *arena, struct semel_http_pair **ret, size_t *ret_n);
bool semel__head_is_cors(struct semel_str name); /* Access-Control-...: for the same Origin only */

/* ---- whose word counts ---- */

#define SEMEL_NETWORKS_MAX 64
struct semel_networks {
    struct semel_network {
        unsigned char address[16]; /* IPv4 as ::ffff:a.b.c.d */
        unsigned base, bits;       /* base: 96 for IPv4, whose peers no network of IPv6 contains */
    } list[SEMEL_NETWORKS_MAX];
    size_t n;
    bool unix_sockets;
};
/* "10.0.0.0/8", "::1/128", "10.1.2.3" or "unix". */
semel_status semel__networks_add(struct semel_networks *networks, const char *text, struct semel_error *err);
#define SEMEL_PEER_TEXT 46 /* an IPv6 address */
/* The address of the peer without its port, and whether it is in one of the networks. `remote` as in http.h. */
bool semel__networks_have(const struct semel_networks *networks, struct semel_str remote, char out[SEMEL_PEER_TEXT]);

#endif
