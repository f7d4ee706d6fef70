/* SPDX-License-Identifier: MIT
 *
 * sqs_http.c: the options of an SQS handle, one signed request to SQS by curl, and what becomes of it; and what a queue
 * says of itself, in one request.
 *
 * curl signs it (SigV4). Of its version 7.88, on which this was tried against a verifier: a body that comes by a read
 * callback is signed as if it were empty, unless the header X-Amz-Content-Sha256 says what it is; and a header that is
 * switched off ("Expect:") is signed although it is not sent. So we give that header, and switch off none. The callback
 * is there because curl cannot go back in it: a POST whose reused connection dies is not sent again behind our back
 * (P54).
 *
 * Invariants: what goes into a header or a URL holds no byte that could end it; each secret is wiped. Every request
 * ends by itself (CONNECT_MS, its time-out); an answer longer than SQS_ANSWER_MAX is not read to its end; no text of an
 * error holds a key: what SQS says is left out when one is in it, and when it is about signatures, because it quotes
 * the signed headers then.
 */
#include "broker/sqs_private.h"

#include <stdio.h>

#include "base/digest.h"

#define QUEUE_MAX 80
#define SECRET_MAX 8192
#define IN_FLIGHT 1000
#define CONNECT_MS 5000L
#define IDLE_S 20L /* a connection that was idle for longer is not used again */
#define SAID 128
#define BEGIN 12 /* so much of a secret is known for it */
#define ASK_MS 15000
#define REQUEST_MAX 4096

/* ---- options ------------------------------------------------------------------------------------------- */

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
    if (o->visibility_us < 0 || o->visibility_us > SQS_LONGEST_S * SQS_SECOND_US)
        return wrong(err, "visibility must be from 1 s to 12 h");
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
    conf->visibility_s = o->visibility_us > 0 ? (int)((o->visibility_us + SQS_SECOND_US - 1) / SQS_SECOND_US) : 60;
    conf->wait_s = (int)(o->wait_us / SQS_SECOND_US);
    conf->in_flight_max = o->in_flight_max > 0 ? o->in_flight_max : IN_FLIGHT;
    conf->no_verify = o->tls.no_verify;
    if (keep(&conf->access_key, o->access_key) && keep(&conf->secret_key, o->secret_key) &&
        keep(&conf->session_token, o->session_token) && keep(&conf->ca_file, o->tls.ca_file) &&
        keep(&conf->cert_file, o->tls.cert_file) && keep(&conf->key_file, o->tls.key_file) &&
        keep(&conf->key_password, o->tls.key_password))
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

/* ---- beginning a request ------------------------------------------------------------------------------- */

static size_t give(char *out, size_t size, size_t count, void *ctx)
{
    struct sqs_call *call = ctx;
    const size_t left = call->request.n - call->sent, n = left < size * count ? left : size * count;

    if (n > 0)
        memcpy(out, call->request.p + call->sent, n);
    call->sent += n;
    return n;
}

static size_t take(char *in, size_t size, size_t count, void *ctx)
{
    struct sqs_call *call = ctx;

    return semel__buf_add(&call->answer, in, size * count) ? size * count : 0;
}

static bool add_header(struct sqs_call *call, const char *name, const char *value)
{
    struct semel_buf line;
    struct curl_slist *list = NULL;

    semel__buf_init(&line, 16384);
    if (semel__buf_addf(&line, "%s: %s", name, value) && semel__buf_add(&line, "", 1))
        list = curl_slist_append(call->headers, line.p);
    if (line.p != NULL)
        explicit_bzero(line.p, line.n);
    semel__buf_done(&line);
    if (list == NULL)
        return false;
    call->headers = list;
    return true;
}

static bool make_headers(struct sqs_call *call, const struct sqs_conf *conf, const char *action)
{
    const struct semel_str body = semel__buf_str(&call->request);
    unsigned char digest[SEMEL_SHA256];
    char hex[2 * SEMEL_SHA256 + 1], target[64];

    curl_slist_free_all(call->headers);
    call->headers = NULL;
    snprintf(target, sizeof target, "AmazonSQS.%s", action);
    if (!semel__sha256(&body, 1, digest))
        return false;
    semel__hex(digest, sizeof digest, hex);
    return add_header(call, "Content-Type", "application/x-amz-json-1.0") && add_header(call, "X-Amz-Target", target) &&
           add_header(call, "X-Amz-Content-Sha256", hex) &&
           (conf->session_token == NULL || add_header(call, "X-Amz-Security-Token", conf->session_token));
}

static CURLcode set_tls(CURL *easy, const struct sqs_conf *conf)
{
    CURLcode code = curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);

    if (conf->no_verify) {
        (void)curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
        (void)curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    if (code == CURLE_OK && conf->ca_file != NULL)
        code = curl_easy_setopt(easy, CURLOPT_CAINFO, conf->ca_file);
    if (code == CURLE_OK && conf->cert_file != NULL)
        code = curl_easy_setopt(easy, CURLOPT_SSLCERT, conf->cert_file);
    if (code == CURLE_OK && conf->key_file != NULL)
        code = curl_easy_setopt(easy, CURLOPT_SSLKEY, conf->key_file);
    if (code == CURLE_OK && conf->key_password != NULL)
        code = curl_easy_setopt(easy, CURLOPT_KEYPASSWD, conf->key_password);
    return code;
}

/* What is the same for every request of a handle. */
static bool prepare(struct sqs_call *call, const struct sqs_conf *conf)
{
    const bool tls = strncmp(conf->endpoint, "https:", 6) == 0;
    char provider[96];
    CURL *easy = curl_easy_init();

    snprintf(provider, sizeof provider, "aws:amz:%s:sqs", conf->region);
    call->easy = easy;
    return easy != NULL && curl_easy_setopt(easy, CURLOPT_URL, conf->endpoint) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, tls ? "https" : "http") == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_USERAGENT, "semel") == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, IDLE_S) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, provider) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_USERNAME, conf->access_key) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_PASSWORD, conf->secret_key) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_POST, 1L) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_READFUNCTION, give) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_READDATA, call) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_WRITEDATA, call) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_PRIVATE, call) == CURLE_OK && set_tls(easy, conf) == CURLE_OK;
}

semel_status semel__sqs_call_begin(struct sqs_call *call, CURLM *multi, const struct sqs_conf *conf, const char *action,
                                   int timeout_ms, struct semel_error *err)
{
    call->sent = 0;
    call->ended = false;
    call->code = CURLE_OK;
    semel__buf_done(&call->answer);
    semel__buf_init(&call->answer, SQS_ANSWER_MAX);
    if (call->request.failed || (call->easy == NULL && !prepare(call, conf)) || !make_headers(call, conf, action) ||
        curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, call->headers) != CURLE_OK ||
        curl_easy_setopt(call->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->request.n) != CURLE_OK ||
        curl_easy_setopt(call->easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms) != CURLE_OK ||
        curl_multi_add_handle(multi, call->easy) != CURLM_OK) {
        curl_easy_cleanup(call->easy); /* a handle that is half prepared is none */
        call->easy = NULL;
        return semel__fail_memory(err);
    }
    call->active = true;
    return SEMEL_OK;
}

/* ---- going on ------------------------------------------------------------------------------------------ */

void semel__sqs_calls_run(CURLM *multi)
{
    const CURLMsg *message;
    int running, left;

    (void)curl_multi_perform(multi, &running);
    while ((message = curl_multi_info_read(multi, &left)) != NULL) {
        CURL *easy = message->easy_handle;
        const CURLcode code = message->data.result;
        char *private = NULL;
        struct sqs_call *call;
        if (message->msg != CURLMSG_DONE || curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private) != CURLE_OK)
            continue;
        call = (struct sqs_call *)(void *)private;
        (void)curl_multi_remove_handle(multi, easy);
        call->code = code;
        call->active = false;
        call->ended = true;
    }
}

void semel__sqs_call_wait(struct sqs_call *call, CURLM *multi)
{
    for (semel__sqs_calls_run(multi); call->active; semel__sqs_calls_run(multi))
        (void)curl_multi_poll(multi, NULL, 0, 100, NULL);
}

void semel__sqs_call_stop(struct sqs_call *call, CURLM *multi)
{
    if (call->active)
        (void)curl_multi_remove_handle(multi, call->easy);
    call->active = call->ended = false;
}

void semel__sqs_call_done(struct sqs_call *call)
{
    curl_easy_cleanup(call->easy);
    curl_slist_free_all(call->headers);
    semel__buf_done(&call->request);
    semel__buf_done(&call->answer);
    *call = (struct sqs_call){0};
}

/* ---- what it means ------------------------------------------------------------------------------------- */

static bool is_one_of(const char *code, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strcmp(code, *names) == 0)
            return true;
    return false;
}

static semel_status not_answered(const struct sqs_call *call, struct semel_error *err)
{
    switch ((int)call->code) {
    case CURLE_WRITE_ERROR:
        if (call->answer.full)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "sqs: the answer is longer than %zu bytes",
                               SQS_ANSWER_MAX);
        return semel__fail_memory(err);
    case CURLE_OUT_OF_MEMORY:
        return semel__fail_memory(err);
    case CURLE_UNSUPPORTED_PROTOCOL:
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "sqs: what answers there does not speak HTTP");
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_URL_MALFORMAT:
    case CURLE_NOT_BUILT_IN:
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "sqs: %s", curl_easy_strerror(call->code));
    default:
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "sqs: no answer: %s",
                           curl_easy_strerror(call->code));
    }
}

/* The text may end in the middle of it. */
static bool holds(const char *text, const char *secret)
{
    char begin[BEGIN + 1] = "";

    if (secret == NULL || strlen(secret) < 4)
        return false;
    snprintf(begin, sizeof begin, "%s", secret);
    return strstr(text, begin) != NULL;
}

static semel_status refused(const struct sqs_call *call, const struct sqs_conf *conf, long http,
                            struct semel_error *err)
{
    static const char *const passing[] = {
        "ThrottlingException",      "Throttling",         "RequestThrottled", "RequestThrottledException",
        "TooManyRequestsException", "KmsThrottled",       "OverLimit",        "InternalError",
        "InternalFailure",          "ServiceUnavailable", "RequestTimeout",   NULL};
    static const char *const quoting[] = {"SignatureDoesNotMatch", "InvalidSignatureException", "InvalidSignature",
                                          "IncompleteSignature", NULL};
    char code[64], said[SAID];

    semel__sqs_read_error(semel__buf_str(&call->answer), code, sizeof code, said, sizeof said);
    if (is_one_of(code, quoting))
        snprintf(said, sizeof said, "secret_key, region or this machine's clock is wrong");
    else if (holds(said, conf->secret_key) || holds(said, conf->session_token) || holds(said, conf->access_key))
        said[0] = '\0';
    if (http >= 500 || http == 429 || http == 408 || is_one_of(code, passing))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "sqs: HTTP %ld %s%s%s", http, code,
                           said[0] != '\0' ? ": " : "", said);
    if (http >= 300 && http < 400)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "sqs: HTTP %ld: it sends us elsewhere, which is not followed; is the URL right?", http);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "sqs: queue %s: HTTP %ld %s%s%s", conf->queue, http,
                       code[0] != '\0' ? code : "without a reason", said[0] != '\0' ? ": " : "", said);
}

semel_status semel__sqs_call_status(struct sqs_call *call, const struct sqs_conf *conf, struct semel_error *err)
{
    long http = 0;

    if (call->code != CURLE_OK)
        return not_answered(call, err);
    (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &http);
    return http == 200 ? SEMEL_OK : refused(call, conf, http, err);
}

/* ---- a question ---------------------------------------------------------------------------------------- */

static semel_status ask(const struct sqs_conf *conf, CURLM *multi, struct semel_sqs_facts *ret, struct semel_error *err)
{
    struct sqs_call call = {0};
    semel_status status;

    semel__buf_init(&call.request, REQUEST_MAX);
    semel__buf_addz(&call.request, "{\"QueueUrl\":");
    semel__json_put_string(&call.request, semel__str(conf->url));
    semel__buf_addz(&call.request, ",\"AttributeNames\":[\"All\"]}");
    status = semel__sqs_call_begin(&call, multi, conf, "GetQueueAttributes", ASK_MS, err);
    if (status == SEMEL_OK) {
        semel__sqs_call_wait(&call, multi);
        status = semel__sqs_call_status(&call, conf, err);
    }
    if (status == SEMEL_OK)
        status = semel__sqs_read_facts(semel__buf_str(&call.answer), ret, err);
    semel__sqs_call_done(&call);
    return status;
}

semel_status semel__sqs_ask(const struct semel_sqs_options *options, struct semel_sqs_facts *ret,
                            struct semel_error *err)
{
    struct sqs_conf conf = {0};
    semel_status status = semel__sqs_conf_read(&conf, options, err);
    CURLM *multi;

    if (status == SEMEL_OK && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        multi = curl_multi_init();
        status = multi != NULL ? ask(&conf, multi, ret, err) : semel__fail_memory(err);
        curl_multi_cleanup(multi);
        curl_global_cleanup();
    } else if (status == SEMEL_OK) {
        status = semel__fail_memory(err);
    }
    semel__sqs_conf_done(&conf);
    return status;
}
