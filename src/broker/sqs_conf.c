/* SPDX-License-Identifier: MIT
 *
 * sqs_conf.c: the options of an SQS handle, and the URL that conformance tests use, checked and copied.
 *
 * Invariants: what goes into a header or a URL holds no byte that could end it; no secret is part of an error's text,
 * and each is wiped.
 */
#include "broker/sqs_private.h"

#define QUEUE_MAX 80
#define SECRET_MAX 8192
#define IN_FLIGHT 1000

static semel_status wrong(struct semel_error *err, const char *what)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "sqs: %s", what);
}

/* Visible ASCII, and not too long. */
static bool is_plain(const char *text, size_t max)
{
    const size_t n = strlen(text);

    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return n > 0 && n <= max;
}

static bool ends_with(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

/* ---- the queue ------------------------------------------------------------------------------------------ */

static bool queue_is_valid(const char *queue)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const size_t n = strlen(queue), good = strspn(queue, letters);

    return n > 0 && n <= QUEUE_MAX && good > 0 && (good == n || strcmp(queue + good, ".fifo") == 0);
}

static semel_status take_url(struct sqs_conf *conf, const char *url, struct semel_error *err)
{
    const char *host = url != NULL ? strstr(url, "://") : NULL, *path, *queue;

    if (host == NULL || (strncmp(url, "https://", 8) != 0 && strncmp(url, "http://", 7) != 0))
        return wrong(err, "the queue's URL must look like https://HOST/ACCOUNT/QUEUE");
    if (!is_plain(url, SQS_URL_MAX - 1) || strpbrk(url, "?#\\\"") != NULL)
        return wrong(err, "the queue's URL has a byte that does not belong there, or more than 1023 of them");
    host += 3;
    path = strchr(host, '/');
    queue = strrchr(host, '/');
    if (path == NULL || path == host || !queue_is_valid(queue + 1))
        return wrong(err, "the queue's URL must end with its name: letters, digits, '_' and '-', at most 80");
    if (memchr(host, '@', (size_t)(path - host)) != NULL)
        return wrong(err, "the queue's URL has credentials in it; they belong into access_key and secret_key");
    memcpy(conf->url, url, strlen(url) + 1);
    memcpy(conf->queue, queue + 1, strlen(queue + 1) + 1);
    memcpy(conf->endpoint, url, (size_t)(path - url) + 1);
    conf->endpoint[path - url + 1] = '\0';
    conf->fifo = ends_with(conf->queue, ".fifo");
    return SEMEL_OK;
}

/* ---- the rest ------------------------------------------------------------------------------------------- */

static bool keep(char **ret, const char *text)
{
    const size_t size = text != NULL ? strlen(text) + 1 : 0;

    *ret = size > 0 ? semel__alloc(size) : NULL;
    if (*ret != NULL)
        memcpy(*ret, text, size);
    return size == 0 || *ret != NULL;
}

static void wipe(char **text)
{
    if (*text != NULL)
        explicit_bzero(*text, strlen(*text));
    semel__free(*text);
    *text = NULL;
}

static semel_status check(const struct semel_sqs_options *o, struct semel_error *err)
{
    if (o->region == NULL || !is_plain(o->region, 64) || strpbrk(o->region, ":/") != NULL)
        return wrong(err, "region is missing, or not a name like eu-central-1");
    if (o->access_key == NULL || !is_plain(o->access_key, 255) || strchr(o->access_key, '/') != NULL)
        return wrong(err, "access_key is missing, or not one");
    if (o->secret_key == NULL || !is_plain(o->secret_key, 1024))
        return wrong(err, "secret_key is missing, or not one");
    if (o->session_token != NULL && !is_plain(o->session_token, SECRET_MAX))
        return wrong(err, "session_token is not one");
    if (o->visibility_us < 0 || o->visibility_us > SQS_LONGEST_S * SQS_SECOND_US ||
        o->visibility_us % SQS_SECOND_US != 0)
        return wrong(err, "visibility must be whole seconds, from 1 s to 12 h");
    if (o->wait_us < 0 || o->wait_us > 20 * SQS_SECOND_US)
        return wrong(err, "wait must be from 0 to 20 s");
    if (o->in_flight_max > SQS_IN_FLIGHT_MAX)
        return wrong(err, "more than 100000 deliveries in flight");
    return SEMEL_OK;
}

semel_status semel__sqs_conf_read(struct sqs_conf *conf, const struct semel_sqs_options *o, struct semel_error *err)
{
    semel_status status = take_url(conf, o->url, err);

    if (status == SEMEL_OK)
        status = check(o, err);
    if (status != SEMEL_OK)
        return status;
    memcpy(conf->region, o->region, strlen(o->region) + 1);
    conf->visibility_s = o->visibility_us > 0 ? (int)(o->visibility_us / SQS_SECOND_US) : 60;
    conf->wait_s = (int)(o->wait_us / SQS_SECOND_US);
    conf->in_flight_max = o->in_flight_max > 0 ? o->in_flight_max : IN_FLIGHT;
    conf->no_verify = o->tls_no_verify;
    if (keep(&conf->access_key, o->access_key) && keep(&conf->secret_key, o->secret_key) &&
        keep(&conf->session_token, o->session_token) && keep(&conf->ca_file, o->tls_ca_file) &&
        keep(&conf->cert_file, o->tls_cert_file) && keep(&conf->key_file, o->tls_key_file) &&
        keep(&conf->key_password, o->tls_key_password))
        return SEMEL_OK;
    return semel__fail_memory(err);
}

void semel__sqs_conf_done(struct sqs_conf *conf)
{
    wipe(&conf->access_key);
    wipe(&conf->secret_key);
    wipe(&conf->session_token);
    wipe(&conf->ca_file);
    wipe(&conf->cert_file);
    wipe(&conf->key_file);
    wipe(&conf->key_password);
}

/* ---- the URL -------------------------------------------------------------------------------------------- */

static semel_status take_setting(struct semel_sqs_options *o, const char *name, const char *value,
                                 struct semel_error *err)
{
    int64_t number;
    char shown[64];

    if (strcmp(name, "region") == 0) {
        o->region = value;
        return SEMEL_OK;
    }
    if (!semel__str_int64(semel__str(value), &number) || number < 0 || number > INT32_MAX)
        return wrong(err, "a number of the URL is not one");
    if (strcmp(name, "visibility_ms") == 0)
        o->visibility_us = number * 1000;
    else if (strcmp(name, "wait_ms") == 0)
        o->wait_us = number * 1000;
    else if (strcmp(name, "in_flight") == 0)
        o->in_flight_max = (size_t)number;
    else {
        semel__str_show(shown, sizeof shown, semel__str(name));
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "sqs: the URL's setting \"%s\" is unknown; there are region, visibility_ms, wait_ms and "
                           "in_flight",
                           shown);
    }
    return SEMEL_OK;
}

/* Cuts the text at the first `at`; what is behind it, or NULL. */
static char *split(char *text, char at)
{
    char *found = strchr(text, at);

    if (found != NULL)
        *found++ = '\0';
    return found;
}

semel_status semel__sqs_conf_read_url(struct sqs_conf *conf, struct semel_str location, struct semel_error *err)
{
    struct semel_sqs_options options = {.region = "none",
                                        .access_key = "none",
                                        .secret_key = "none",
                                        .wait_us = 20 * SQS_SECOND_US};
    char text[2 * SQS_URL_MAX], *setting, *next, *value;
    semel_status status = SEMEL_OK;

    if (location.n >= sizeof text)
        return wrong(err, "the URL is too long");
    memcpy(text, location.p, location.n);
    text[location.n] = '\0';
    options.url = text;
    for (setting = split(text, '?'); setting != NULL && status == SEMEL_OK; setting = next) {
        next = split(setting, '&');
        value = split(setting, '=');
        status = value != NULL ? take_setting(&options, setting, value, err)
                               : wrong(err, "a setting of the URL must look like NAME=VALUE");
    }
    return status == SEMEL_OK ? semel__sqs_conf_read(conf, &options, err) : status;
}
