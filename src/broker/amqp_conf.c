/* SPDX-License-Identifier: MIT
 *
 * amqp_conf.c: the URL and the options of the AMQP driver. See amqp.h.
 *
 * Invariants: all strings of a conf lie in one piece of memory that is wiped before it is freed; no text of an error
 * holds a password.
 */
#include "broker/amqp_private.h"

#include <stdio.h>

#define URL_MAX 4096
#define TEXT_MAX ((size_t)32 << 10)
#define SECRET_MAX 4096
#define PORT 5672
#define PORT_TLS 5671
#define PREFETCH 1000
#define HEARTBEAT_S 30
#define HEARTBEAT_MAX_S 600
#define TIMEOUT_MS 10000
#define TIMEOUT_MAX_MS 600000

static semel_status wrong(struct semel_error *err, const char *what)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: %s", what);
}

static semel_status wrong_url(struct semel_error *err)
{
    return wrong(err, "the URL must look like amqp://USER:PASSWORD@HOST:PORT/VHOST, with %XX for odd bytes");
}

/* ---- taking a URL apart ------------------------------------------------------------------------------- */

/* Cuts the text at `found`; what is behind it, or NULL. */
static char *cut(char *found)
{
    if (found != NULL)
        *found++ = '\0';
    return found;
}

static bool number_in(const char *text, int64_t low, int64_t high, int *ret)
{
    int64_t number;

    if (!semel__str_int64(semel__str(text), &number) || number < low || number > high)
        return false;
    *ret = (int)number;
    return true;
}

/* HOST, HOST:PORT, [ADDRESS], [ADDRESS]:PORT */
static bool take_host(struct amqp_conf *conf, char *text)
{
    char *port;

    if (text[0] == '[') {
        char *end = strchr(text, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return false;
        port = end[1] == ':' ? end + 2 : NULL;
        *end = '\0';
        text++;
    } else {
        port = cut(strchr(text, ':'));
    }
    if (port != NULL && !number_in(port, 1, 65535, &conf->port))
        return false;
    conf->host = text[0] != '\0' ? text : "localhost";
    return semel__unescape(text);
}

/* USER:PASSWORD@HOST:PORT/VHOST; `text` is ours and stays. */
static bool take_place(struct amqp_conf *conf, char *text)
{
    char *vhost = cut(strchr(text, '/'));
    char *host = cut(strrchr(text, '@'));

    if (host != NULL) {
        char *password = cut(strchr(text, ':'));
        if (!semel__unescape(text) || (password != NULL && !semel__unescape(password)))
            return false;
        conf->user = text;
        conf->password = password;
    }
    if (vhost != NULL && (strchr(vhost, '/') != NULL || !semel__unescape(vhost)))
        return false;
    conf->vhost = vhost != NULL && vhost[0] != '\0' ? vhost : "/";
    return take_host(conf, host != NULL ? host : text);
}

/* ---- options ------------------------------------------------------------------------------------------ */

static semel_status check(const struct semel_amqp_options *o, struct semel_error *err)
{
    if (o->url == NULL || strlen(o->url) >= URL_MAX)
        return wrong_url(err);
    if (o->queue != NULL && (o->queue[0] == '\0' || strlen(o->queue) > AMQP_SHORT_MAX))
        return wrong(err, "the queue's name must have 1 to 255 bytes");
    if (o->prefetch < 0 || o->prefetch > AMQP_PREFETCH_MAX)
        return wrong(err, "prefetch must be 1 to 65535");
    if (o->heartbeat_s < 0 || o->heartbeat_s > HEARTBEAT_MAX_S)
        return wrong(err, "the heartbeat must be 1 to 600 seconds");
    if (o->timeout_ms < 0 || o->timeout_ms > TIMEOUT_MAX_MS)
        return wrong(err, "the time-out must be 1 to 600000 milliseconds");
    if ((o->tls_cert_file != NULL) != (o->tls_key_file != NULL))
        return wrong(err, "a certificate and its key belong together; one of them is missing");
    if (o->password != NULL && o->user == NULL)
        return wrong(err, "there is a password, and no user to whom it belongs");
    return SEMEL_OK;
}

/* Copies a string into the conf's text; NULL stays NULL. */
static const char *keep(struct amqp_conf *conf, const char *text)
{
    const size_t n = text != NULL ? strlen(text) + 1 : 0;
    char *copy = conf->text + conf->n_text;

    if (text == NULL)
        return NULL;
    memcpy(copy, text, n);
    conf->n_text += n;
    return copy;
}

static size_t length(const struct semel_amqp_options *o)
{
    const char *const texts[] = {o->url,         o->queue,         o->user,         o->password,
                                 o->tls_ca_file, o->tls_cert_file, o->tls_key_file, o->tls_key_password};
    size_t n = 0;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        n += texts[i] != NULL ? strlen(texts[i]) + 1 : 0;
    return n;
}

static semel_status take_url(struct amqp_conf *conf, const char *url, struct semel_error *err)
{
    char *text = (char *)(uintptr_t)keep(conf, url); /* in our own memory */

    if (strncmp(text, "amqps://", 8) == 0)
        conf->tls = true;
    else if (strncmp(text, "amqp://", 7) != 0)
        return wrong_url(err);
    conf->port = conf->tls ? PORT_TLS : PORT;
    if (strpbrk(text, " \t\r\n?#") != NULL || !take_place(conf, text + (conf->tls ? 8 : 7)))
        return wrong_url(err);
    return SEMEL_OK;
}

static void take_rest(struct amqp_conf *conf, const struct semel_amqp_options *o)
{
    if (o->user != NULL) {
        conf->user = keep(conf, o->user);
        conf->password = keep(conf, o->password);
    }
    conf->external = conf->tls && conf->user == NULL && o->tls_cert_file != NULL;
    conf->user = conf->user != NULL ? conf->user : "guest";
    conf->password = conf->password != NULL ? conf->password : "guest";
    conf->queue = keep(conf, o->queue);
    conf->ca_file = keep(conf, o->tls_ca_file);
    conf->cert_file = keep(conf, o->tls_cert_file);
    conf->key_file = keep(conf, o->tls_key_file);
    conf->key_password = keep(conf, o->tls_key_password);
    conf->prefetch = o->prefetch > 0 ? o->prefetch : PREFETCH;
    conf->heartbeat_s = o->heartbeat_s > 0 ? o->heartbeat_s : HEARTBEAT_S;
    conf->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : TIMEOUT_MS;
    conf->declare = o->declare;
    conf->single_active = o->single_active;
    conf->no_verify = o->tls_no_verify;
}

semel_status semel__amqp_configure(struct amqp_conf *conf, const struct semel_amqp_options *o, struct semel_error *err)
{
    semel_status status = check(o, err);
    size_t n;

    *conf = (struct amqp_conf){0};
    if (status != SEMEL_OK)
        return status;
    n = length(o);
    if (n > TEXT_MAX)
        return wrong(err, "the settings are longer than 32 KiB");
    conf->text = semel__alloc(n);
    if (conf->text == NULL)
        return semel__fail_memory(err);
    status = take_url(conf, o->url, err);
    if (status == SEMEL_OK)
        take_rest(conf, o);
    if (status == SEMEL_OK && (strlen(conf->user) > AMQP_SHORT_MAX || strlen(conf->password) > SECRET_MAX ||
                               strlen(conf->vhost) > AMQP_SHORT_MAX))
        status = wrong(err, "the user or the vhost is longer than 255 bytes, or the password than 4096");
    if (status != SEMEL_OK)
        semel__amqp_conf_done(conf);
    return status;
}

void semel__amqp_conf_done(struct amqp_conf *conf)
{
    if (conf->text != NULL)
        explicit_bzero(conf->text, conf->n_text);
    semel__free(conf->text);
    *conf = (struct amqp_conf){0};
}

/* ---- the URL form ------------------------------------------------------------------------------------- */

static semel_status take_setting(struct semel_amqp_options *o, char *name, struct semel_error *err)
{
    static const char *const names[] = {"queue", "prefetch", "single_active", "declare", "heartbeat_s", "timeout_ms"};
    char *value = cut(strchr(name, '='));
    bool right = value != NULL && semel__unescape(value);
    size_t i = 0;

    while (i < sizeof names / sizeof names[0] && strcmp(name, names[i]) != 0)
        i++;
    switch (right ? i : SIZE_MAX) {
    case 0:
        o->queue = value;
        break;
    case 1:
        right = number_in(value, 1, AMQP_PREFETCH_MAX, &o->prefetch);
        break;
    case 2:
        o->single_active = strcmp(value, "true") == 0;
        right = o->single_active || strcmp(value, "false") == 0;
        break;
    case 3:
        o->declare = strcmp(value, "quorum") == 0    ? SEMEL_AMQP_DECLARE_QUORUM
                     : strcmp(value, "classic") == 0 ? SEMEL_AMQP_DECLARE_CLASSIC
                                                     : SEMEL_AMQP_DECLARE_NEVER;
        right = o->declare != SEMEL_AMQP_DECLARE_NEVER || strcmp(value, "never") == 0;
        break;
    case 4:
        right = number_in(value, 1, HEARTBEAT_MAX_S, &o->heartbeat_s);
        break;
    case 5:
        right = number_in(value, 1, TIMEOUT_MAX_MS, &o->timeout_ms);
        break;
    default:
        right = false;
    }
    return right ? SEMEL_OK
                 : wrong(err, "behind the URL's ? may be queue=NAME, prefetch=N, single_active=true|false, "
                              "declare=never|quorum|classic, heartbeat_s=N and timeout_ms=N, with & in between");
}

semel_status semel__amqp_configure_url(struct amqp_conf *conf, bool tls, struct semel_str location,
                                       struct semel_error *err)
{
    char url[URL_MAX];
    struct semel_amqp_options options = {.url = url};
    const int n = snprintf(url, sizeof url, "%s:", tls ? "amqps" : "amqp");
    semel_status status = SEMEL_OK;
    char *settings;

    *conf = (struct amqp_conf){0};
    if (location.n + (size_t)n >= sizeof url || memchr(location.p, '\0', location.n) != NULL)
        return wrong_url(err);
    memcpy(url + n, location.p, location.n);
    url[(size_t)n + location.n] = '\0';
    settings = cut(strchr(url, '?'));
    while (status == SEMEL_OK && settings != NULL && *settings != '\0') {
        char *next = cut(strchr(settings, '&'));
        status = take_setting(&options, settings, err);
        settings = next;
    }
    if (status == SEMEL_OK)
        status = semel__amqp_configure(conf, &options, err);
    explicit_bzero(url, sizeof url);
    return status;
}
