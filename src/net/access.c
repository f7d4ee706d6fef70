/* SPDX-License-Identifier: MIT
 *
 * access.c: who may ask: the host names and tokens of a listener. See conn.h.
 */
#include <openssl/crypto.h>

#include "base/error.h"
#include "net/conn.h"

#define PORT_DIGITS 5

static const char *const loopback_names[] = {"localhost", "127.0.0.1", "[::1]"};

static bool token_valid(struct semel_str text)
{
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] <= ' ' || text.p[i] > '~')
            return false;
    return text.n > 0 && text.n <= SEMEL_ACCESS_TOKEN_MAX;
}

semel_status semel__access_set_tokens(struct semel_access *access, const struct semel_http_token *tokens, size_t n,
                                      struct semel_error *err)
{
    unsigned char digests[SEMEL_ACCESS_TOKENS][SEMEL_SHA256];
    if (n > SEMEL_ACCESS_TOKENS)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%zu tokens; at most %d", n, SEMEL_ACCESS_TOKENS);
    for (size_t i = 0; i < n; i++) {
        if (!token_valid(tokens[i].text))
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                               "token %zu: must be 1 to %d visible ASCII characters", i + 1, SEMEL_ACCESS_TOKEN_MAX);
        if (!semel__sha256(&tokens[i].text, 1, digests[i]))
            return semel__fail_memory(err);
    }
    pthread_mutex_lock(&access->lock);
    for (size_t i = 0; i < n; i++) {
        memcpy(access->digests[i], digests[i], sizeof(digests[i]));
        access->scopes[i] = tokens[i].scopes;
    }
    access->n_tokens = n;
    pthread_mutex_unlock(&access->lock);
    return SEMEL_OK;
}

static bool host_valid(struct semel_str s)
{
    bool bracketed = s.n > 2 && s.p[0] == '[' && s.p[s.n - 1] == ']';
    size_t from = bracketed ? 1 : 0, to = bracketed ? s.n - 1 : s.n;
    for (size_t i = from; i < to; i++) {
        char c = s.p[i];
        bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!digit && c != '.' && (bracketed ? c != ':' : c != '-' && c != '_'))
            return false;
    }
    return to > from && s.n <= 255;
}

static semel_status add_host(struct semel_access *access, const char *name, struct semel_error *err)
{
    size_t n = strlen(name) + 1;
    if (!host_valid(semel__str(name)))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "host %s: must be a name or an address, IPv6 in brackets, without a port", name);
    char *copy = semel__alloc(n);
    if (copy == NULL)
        return semel__fail_memory(err);
    memcpy(copy, name, n);
    access->hosts[access->n_hosts++] = copy;
    return SEMEL_OK;
}

semel_status semel__access_init(struct semel_access *access, const struct semel_http_settings *settings, bool trusted,
                                struct semel_error *err)
{
    *access = (struct semel_access){.trusted = trusted, .any_host = settings->any_host};
    pthread_mutex_init(&access->lock, NULL);
    access->hosts = semel__calloc(settings->n_hosts + 1, sizeof(*access->hosts));
    if (access->hosts == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < settings->n_hosts; i++) {
        semel_status status = add_host(access, settings->hosts[i], err);
        if (status != SEMEL_OK)
            return status;
    }
    return semel__access_set_tokens(access, settings->tokens, settings->n_tokens, err);
}

void semel__access_done(struct semel_access *access)
{
    for (size_t i = 0; i < access->n_hosts; i++)
        semel__free(access->hosts[i]);
    semel__free(access->hosts);
    pthread_mutex_destroy(&access->lock);
    OPENSSL_cleanse(access->digests, sizeof(access->digests));
}

/* Cuts the port off. false: not digits. */
static bool cut_port(struct semel_str *host)
{
    size_t digits = 0;
    while (digits < host->n && host->p[host->n - 1 - digits] >= '0' && host->p[host->n - 1 - digits] <= '9')
        digits++;
    if (digits == host->n || host->p[host->n - 1 - digits] != ':')
        return memchr(host->p, ':', host->n) == NULL || host->p[host->n - 1] == ']';
    host->n -= digits + 1;
    return digits > 0 && digits <= PORT_DIGITS;
}

static bool host_allowed(const struct semel_access *access, struct semel_str host, struct semel_str local)
{
    for (size_t i = 0; i < sizeof(loopback_names) / sizeof(loopback_names[0]); i++)
        if (semel__same_word(host, loopback_names[i]))
            return true;
    for (size_t i = 0; i < access->n_hosts; i++)
        if (semel__same_word(host, access->hosts[i]))
            return true;
    return local.n > 0 && semel__str_eq(host, local);
}

int semel__access_host(const struct semel_access *access, const struct semel_http_request *req, struct semel_str local,
                       const char **ret_reason)
{
    struct semel_str host = {NULL, 0};
    size_t n = 0;
    for (size_t i = 0; i < req->n_headers; i++)
        if (semel__same_word(req->headers[i].name, "host")) {
            host = req->headers[i].value;
            n++;
        }
    *ret_reason = "there must be one Host header";
    if (n != 1)
        return 400;
    *ret_reason = "Host must be a name or an address and perhaps a port";
    if (host.n == 0 || !cut_port(&host) || !host_valid(host))
        return 400;
    *ret_reason = "Host is not a name of this server";
    return access->any_host || host_allowed(access, host, local) ? 0 : 421;
}

/* The token of "Bearer TOKEN". {NULL, 0}: malformed. */
static struct semel_str bearer(struct semel_str value)
{
    const struct semel_str none = {NULL, 0};
    static const char scheme[] = "Bearer ";
    const size_t n = sizeof(scheme) - 1;
    if (value.n <= n || !semel__same_word((struct semel_str){value.p, n}, scheme))
        return none;
    struct semel_str token = {value.p + n, value.n - n};
    return token_valid(token) ? token : none;
}

/* Compares every digest in full, so that the time reveals nothing about any of them. */
static unsigned scopes_of(struct semel_access *access, const unsigned char digest[SEMEL_SHA256], bool *ret_known)
{
    unsigned scopes = 0, known = 0;
    pthread_mutex_lock(&access->lock);
    for (size_t i = 0; i < access->n_tokens; i++) {
        unsigned equal = CRYPTO_memcmp(access->digests[i], digest, SEMEL_SHA256) == 0;
        scopes |= access->scopes[i] & (0u - equal);
        known |= equal;
    }
    pthread_mutex_unlock(&access->lock);
    *ret_known = known != 0;
    return scopes;
}

/* Removes the header from the request, so that no handler stores the token with a message. Returns their number. */
static size_t cut_authorization(struct semel_http_request *req, struct semel_http_pair *fields, struct semel_str *ret)
{
    size_t kept = 0, n = req->n_headers;
    for (size_t i = 0; i < n; i++) {
        if (semel__same_word(fields[i].name, "authorization"))
            *ret = fields[i].value;
        else
            fields[kept++] = fields[i];
    }
    req->n_headers = kept;
    return n - kept;
}

int semel__access_token(struct semel_access *access, struct semel_http_request *req, struct semel_http_pair *fields,
                        const char **ret_reason)
{
    unsigned char digest[SEMEL_SHA256];
    struct semel_str value = {NULL, 0};
    if (access->trusted)
        req->scopes = ~0u;
    if (req->route->needs == 0)
        return 0;
    *ret_reason = "there must be one Authorization header at most";
    if (cut_authorization(req, fields, &value) > 1)
        return 400;
    if (access->trusted)
        return 0;
    struct semel_str token = bearer(value);
    *ret_reason = "this needs a token: Authorization: Bearer TOKEN";
    if (token.p == NULL)
        return 401;
    *ret_reason = "there is no memory for the request";
    if (!semel__sha256(&token, 1, digest))
        return 503;
    bool known;
    req->scopes = scopes_of(access, digest, &known);
    *ret_reason = known ? "the token is not for this" : "the token is not known";
    return !known ? 401 : req->scopes & req->route->needs ? 0 : 403;
}
