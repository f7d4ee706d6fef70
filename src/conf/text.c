/* SPDX-License-Identifier: MIT
 *
 * text.c: texts with a form of their own: URLs, hosts, and names of headers, variables and properties.
 *
 * Only the form is looked at; whether anything answers there is for others to find out. What is refused is what could
 * not be meant, or what would reach another place than it seems to (a blank, a control character, a redirecting name).
 */
#include <strings.h>

#include "conf/private.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* ---- URLs ---------------------------------------------------------------------------------------- */

static bool scheme_known(struct semel_str text, const char *const *schemes, size_t *ret_n)
{
    const char *colon = text.n > 0 ? memchr(text.p, ':', text.n) : NULL;
    if (colon == NULL)
        return false;
    *ret_n = (size_t)(colon - text.p);
    for (size_t i = 0; schemes[i] != NULL; i++)
        if (semel__str_eqz((struct semel_str){text.p, *ret_n}, schemes[i]))
            return true;
    return false;
}

/* `SCHEME:SOMETHING`; a scheme of the list that ends with :// in the settings' help has a host behind it. */
bool semel__conf_url(struct semel_str text, const char *const *schemes, const char **ret_why)
{
    size_t scheme = 0;
    *ret_why = "it begins with none of them";
    if (!scheme_known(text, schemes, &scheme))
        return false;
    struct semel_str rest = {text.p + scheme + 1, text.n - scheme - 1};
    *ret_why = "nothing stands behind its scheme";
    if (rest.n == 0)
        return false;
    bool slashes = rest.n >= 2 && rest.p[0] == '/' && rest.p[1] == '/';
    bool file = semel__str_eqz((struct semel_str){text.p, scheme}, "sqlite");
    bool database = scheme >= 8 && memcmp(text.p, "postgres", 8) == 0; /* also host=... dbname=... */
    *ret_why = "a host must stand behind ://";
    if (!file && !database && (!slashes || rest.n == 2 || strchr("/?#@:", rest.p[2]) != NULL))
        return false;
    *ret_why = "it has a blank in it";
    return file || (database && !slashes) || memchr(rest.p, ' ', rest.n) == NULL;
}

bool semel__conf_url_local(struct semel_str url)
{
    const char *end = url.p + url.n, *host = memchr(url.p, ':', url.n);
    host = host != NULL && end - host > 3 ? host + 3 : end; /* behind :// */
    const char *past = host;
    while (past < end && strchr("/?#", *past) == NULL)
        past++;
    for (const char *p = host; p < past; p++) /* behind the user */
        host = *p == '@' ? p + 1 : host;
    if (host < past && *host == '[') {
        const char *close = memchr(host, ']', (size_t)(past - host));
        return close != NULL && semel__host_is_local((struct semel_str){host + 1, (size_t)(close - host - 1)});
    }
    const char *port = memchr(host, ':', (size_t)(past - host));
    return semel__host_is_local((struct semel_str){host, (size_t)((port != NULL ? port : past) - host)});
}

/* ---- hosts --------------------------------------------------------------------------------------- */

static bool host_char(char c, bool brackets)
{
    return is_letter(c) || is_digit(c) || c == '.' || c == '-' || c == '_' || (brackets && c == ':');
}

/* HOST:PORT or [IPV6]:PORT. */
static bool host_ok(struct semel_str text)
{
    int64_t port;
    size_t colon = text.n;
    if (text.n == 0)
        return false; /* and perhaps not even a pointer */
    while (colon > 0 && text.p[colon - 1] != ':')
        colon--;
    struct semel_str digits = {text.p + colon, text.n - colon};
    if (colon < 2 || digits.n == 0 || !is_digit(digits.p[0]) || !semel__str_int64(digits, &port) || port < 1 ||
        port > 65535)
        return false;
    struct semel_str host = {text.p, colon - 1};
    bool brackets = host.n > 2 && host.p[0] == '[' && host.p[host.n - 1] == ']';
    for (size_t i = brackets; i < host.n - brackets; i++)
        if (!host_char(host.p[i], brackets))
            return false;
    return host.n <= SEMEL_ID_MAX;
}

bool semel__conf_hosts_ok(struct semel_str list)
{
    for (;;) {
        const char *comma = list.n > 0 ? memchr(list.p, ',', list.n) : NULL;
        size_t n = comma != NULL ? (size_t)(comma - list.p) : list.n;
        if (!host_ok((struct semel_str){list.p, n}))
            return false;
        if (comma == NULL)
            return true;
        list = (struct semel_str){comma + 1, list.n - n - 1};
    }
}

/* ---- names --------------------------------------------------------------------------------------- */

bool semel__conf_header_name(struct semel_str name, const char **ret_why)
{
    static const char *const ours[] = {
        "idempotency-key",   "semel-consumer", "semel-message-id", "semel-attempt", "content-length",
        "transfer-encoding", "host",           "connection",       "expect",        "te",
        "trailer",           "upgrade",        "keep-alive",       "traceparent",   "proxy-connection"};
    *ret_why = "letters, digits and -";
    if (name.n == 0 || name.n > 100)
        return false;
    for (size_t i = 0; i < name.n; i++)
        if (!is_letter(name.p[i]) && !is_digit(name.p[i]) && (name.p[i] == '\0' || strchr("-_.", name.p[i]) == NULL))
            return false;
    *ret_why = "another one: Semel sets this header itself";
    for (size_t i = 0; i < CONF_COUNT(ours); i++)
        if (strlen(ours[i]) == name.n && strncasecmp(ours[i], name.p, name.n) == 0)
            return false;
    return true;
}

bool semel__conf_variable_name(struct semel_str name, const char **ret_why)
{
    *ret_why = "letters, digits and _, and begin with no digit";
    if (name.n == 0 || name.n > 100 || is_digit(name.p[0]))
        return false;
    for (size_t i = 0; i < name.n; i++)
        if (!is_letter(name.p[i]) && !is_digit(name.p[i]) && name.p[i] != '_')
            return false;
    *ret_why = "another one: Semel sets this variable itself";
    return name.n < 6 || memcmp(name.p, "SEMEL_", 6) != 0;
}

size_t semel__conf_properties(const char *const **ret_names)
{
#ifdef SEMEL_WITH_KAFKA
    return semel__kafka_properties(ret_names);
#else
    *ret_names = NULL;
    return 0;
#endif
}

bool semel__conf_property_name(struct semel_str name, const char **ret_why)
{
    const char *const *names;
    size_t n = semel__conf_properties(&names);
    *ret_why = "one of those that the driver lets through; docs/settings.md lists them";
    for (size_t i = 0; i < n; i++)
        if (semel__str_eqz(name, names[i]))
            return true;
    return false;
}

bool semel__conf_property_value(struct semel_str name, struct semel_str value, struct semel_error *ret_why)
{
#ifdef SEMEL_WITH_KAFKA
    return semel__kafka_property(name.p, value.p, ret_why) == SEMEL_OK;
#else
    (void)name, (void)value, (void)ret_why;
    return true;
#endif
}
