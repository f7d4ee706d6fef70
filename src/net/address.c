/* SPDX-License-Identifier: MIT
 *
 * address.c: parsing and showing addresses. See address.h.
 */
#include "net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

#include "base/error.h"

#define UNIX_PREFIX "unix:"

static semel_status fail(struct semel_error *err, const char *text, const char *why)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "address \"%s\": %s", text, why);
}

static semel_status parse_unix(struct semel_address *address, const char *text, struct semel_error *err)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&address->storage;
    const char *path = text + strlen(UNIX_PREFIX);
    size_t n = strlen(path);
    if (path[0] != '/')
        return fail(err, text, "the path of a unix socket must be absolute: unix:/run/semel/semel.sock");
    if (n >= sizeof(un->sun_path))
        return fail(err, text, "the path of a unix socket may have 107 bytes at most");
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, n + 1);
    address->loopback = true;
    return SEMEL_OK;
}

static bool parse_port(struct semel_str text, in_port_t *ret)
{
    int64_t port;
    if (!semel__str_int64(text, &port) || port < 0 || port > UINT16_MAX || text.p[0] == '-')
        return false;
    *ret = htons((uint16_t)port);
    return true;
}

static bool parse_v4(struct semel_address *address, const char *host, in_port_t port)
{
    struct sockaddr_in *in = (struct sockaddr_in *)&address->storage;
    if (inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &in->sin_addr) != 1)
        return false;
    in->sin_family = AF_INET;
    in->sin_port = port;
    address->loopback = ntohl(in->sin_addr.s_addr) >> 24 == 127;
    return true;
}

static bool parse_v6(struct semel_address *address, const char *host, in_port_t port)
{
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address->storage;
    if (inet_pton(AF_INET6, host, &in6->sin6_addr) != 1)
        return false;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = port;
    address->loopback = IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
    return true;
}

semel_status semel__address_parse(struct semel_address *ret, const char *text, struct semel_error *err)
{
    struct semel_address address = {.loopback = false};
    const char *colon = strrchr(text, ':');
    char host[INET6_ADDRSTRLEN] = "localhost";
    in_port_t port;
    if (strncmp(text, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0) {
        semel_status status = parse_unix(&address, text, err);
        if (status == SEMEL_OK)
            *ret = address;
        return status;
    }
    if (!parse_port(semel__str(colon != NULL ? colon + 1 : text), &port))
        return fail(err, text, "must end in a port from 0 to 65535: 127.0.0.1:8080, [::1]:8080, or unix:/path");
    size_t n = colon != NULL ? (size_t)(colon - text) : 0;
    bool six = n > 2 && text[0] == '[' && text[n - 1] == ']';
    const char *from = six ? text + 1 : text;
    n = six ? n - 2 : n;
    if (n >= sizeof(host) || (colon != NULL && n == 0))
        return fail(err, text, "the host must be localhost or an address: 127.0.0.1, [::1], 0.0.0.0");
    if (colon != NULL) {
        memcpy(host, from, n);
        host[n] = '\0';
    }
    if (!(six ? parse_v6(&address, host, port) : parse_v4(&address, host, port)))
        return fail(err, text, "the host must be localhost or an address: 127.0.0.1, [::1], 0.0.0.0");
    *ret = address;
    return SEMEL_OK;
}

unsigned semel__address_port(const struct sockaddr_storage *storage)
{
    if (storage->ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)storage)->sin_port);
    return storage->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)storage)->sin6_port) : 0;
}

void semel__address_show(const struct sockaddr_storage *storage, bool with_port, char out[SEMEL_ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool six = storage->ss_family == AF_INET6;
    if (storage->ss_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)storage)->sin_addr, host, sizeof(host));
    else if (six)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)storage)->sin6_addr, host, sizeof(host));
    else {
        snprintf(out, SEMEL_ADDRESS_TEXT, "unix");
        return;
    }
    int n = snprintf(out, SEMEL_ADDRESS_TEXT, "%s%s%s", six ? "[" : "", host, six ? "]" : "");
    if (with_port && n > 0 && n < SEMEL_ADDRESS_TEXT)
        snprintf(out + n, SEMEL_ADDRESS_TEXT - (size_t)n, ":%u", semel__address_port(storage));
}
