/* SPDX-License-Identifier: MIT
 *
 * route.h: from a target to a route: the table, percent-escapes, the query.
 *
 * The target is cut before it is decoded: at the first '?', then at each '/' of the path, and at '&' and '=' of the
 * query. So an escaped separator is data ("%2F" in an id), and no decoded byte can change the route. Nothing is
 * normalised: "//" and "/./" are segments like others.
 *
 * Invariants: what is decoded lives in the exchange's arena; params has as many values as the route has braces.
 */
#ifndef SEMEL_NET_ROUTE_H
#define SEMEL_NET_ROUTE_H

#include "net/exchange.h"

#define SEMEL_ROUTE_SEGMENTS 32 /* of a target, and of a pattern */

/* INVALID: a route that cannot work; err names it. */
semel_status semel__routes_check(const struct semel_http_route *routes, size_t n, struct semel_error *err);

/* Fills route, params and query of x->req. 0, or a status: 400 a bad escape, 404, 405 with the methods that would do
 * in *ret_allow, 431 too many pairs, 503 no memory. */
int semel__route_find(const struct semel_http_route *routes, size_t n, struct semel_http_exchange *x, size_t max_pairs,
                      unsigned *ret_allow, const char **ret_reason);

#endif
