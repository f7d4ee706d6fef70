/* SPDX-License-Identifier: MIT
 *
 * curl.c: the rules of curl.h as options of curl.
 */
#include "net/curl.h"

#include <string.h>

#include "base/mem.h"

bool semel__curl_tls_copy(struct semel_curl_tls *ret, const struct semel_setting_tls *tls)
{
    *ret = (struct semel_curl_tls){.no_verify = tls->no_verify};
    return semel__text_copy(&ret->ca_file, tls->ca_file) && semel__text_copy(&ret->cert_file, tls->cert_file) &&
           semel__text_copy(&ret->key_file, tls->key_file) && semel__text_copy(&ret->key_password, tls->key_password);
}

void semel__curl_tls_done(struct semel_curl_tls *tls)
{
    if (tls->key_password != NULL)
        explicit_bzero(tls->key_password, strlen(tls->key_password));
    semel__free(tls->ca_file);
    semel__free(tls->cert_file);
    semel__free(tls->key_file);
    semel__free(tls->key_password);
    *tls = (struct semel_curl_tls){0};
}

CURLM *semel__curl_open(size_t connections)
{
    CURLM *multi = NULL;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return NULL;
    multi = curl_multi_init();
    if (multi == NULL) {
        curl_global_cleanup();
        return NULL;
    }
    (void)curl_multi_setopt(multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
    (void)curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)connections);
    return multi;
}

void semel__curl_close(CURLM *multi)
{
    if (multi == NULL)
        return;
    curl_multi_cleanup(multi);
    curl_global_cleanup();
}

#define SET(option, value) (code = code == CURLE_OK ? curl_easy_setopt(easy, option, value) : code)

static CURLcode set_tls(CURL *easy, const struct semel_curl_tls *tls)
{
    CURLcode code = CURLE_OK;

    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_SSL_VERIFYPEER, tls->no_verify ? 0L : 1L);
    SET(CURLOPT_SSL_VERIFYHOST, tls->no_verify ? 0L : 2L);
    if (tls->ca_file != NULL) {
        SET(CURLOPT_CAINFO, tls->ca_file);
        SET(CURLOPT_CAPATH, NULL); /* a folder is compiled into curl */
    }
    SET(CURLOPT_SSLCERT, tls->cert_file);
    SET(CURLOPT_SSLKEY, tls->key_file);
    SET(CURLOPT_KEYPASSWD, tls->key_password);
    return code;
}

CURLcode semel__curl_rules(CURL *easy, const struct semel_curl_tls *tls, long timeout_ms, long connect_ms)
{
    CURLcode code = set_tls(easy, tls);

    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_TIMEOUT_MS, timeout_ms);
    SET(CURLOPT_CONNECTTIMEOUT_MS, timeout_ms < connect_ms ? timeout_ms : connect_ms);
    SET(CURLOPT_PATH_AS_IS, 1L); /* dots in a path are not folded (P84) */
#if LIBCURL_VERSION_NUM >= 0x075700
    SET(CURLOPT_QUICK_EXIT, 1L); /* do not wait for a name server that does not answer */
#endif
    SET(CURLOPT_USERAGENT, "semel");
    return code;
}

static size_t give(char *out, size_t size, size_t n, void *ctx)
{
    struct semel_curl_body *body = ctx;
    const size_t left = body->all.n - body->given, taken = size * n < left ? size * n : left;

    if (taken > 0)
        memcpy(out, body->all.p + body->given, taken);
    body->given += taken;
    return taken;
}

CURLcode semel__curl_post(CURL *easy, struct semel_curl_body *body)
{
    CURLcode code = CURLE_OK;

    body->given = 0;
    SET(CURLOPT_POST, 1L);
    SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->all.n);
    if (body->all.n == 0) {
        SET(CURLOPT_POSTFIELDS, "");
        SET(CURLOPT_FRESH_CONNECT, 1L);
    } else {
        SET(CURLOPT_READFUNCTION, give);
        SET(CURLOPT_READDATA, body);
    }
    return code;
}
