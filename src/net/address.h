/* SPDX-License-Identifier: MIT
 *
 * address.h: the address of a listener, as text and as a socket address.
 *
 *     PORT   localhost:PORT   A.B.C.D:PORT   [IPv6]:PORT   unix:/absolute/path
 *
 * Names other than localhost are not resolved: a listening address should not depend on a resolver. Port 0 is any
 * free one. Loopback is 127.0.0.0/8, ::1 and every unix socket.
 */
#ifndef SEMEL_NET_ADDRESS_H
#define SEMEL_NET_ADDRESS_H

#include <sys/socket.h>
#include <sys/un.h>

#include "base/str.h"

struct semel_address {
    struct sockaddr_storage storage; /* AF_INET, AF_INET6 or AF_UNIX */
    bool loopback;
};

semel_status semel__address_parse(struct semel_address *ret, const char *text, struct semel_error *err);

#define SEMEL_ADDRESS_TEXT 64
/* "127.0.0.1:80", "[::1]:80" or "unix"; without its port if with_port is false. */
void semel__address_show(const struct sockaddr_storage *storage, bool with_port, char out[SEMEL_ADDRESS_TEXT]);
unsigned semel__address_port(const struct sockaddr_storage *storage);

#endif
