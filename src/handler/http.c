/* SPDX-License-Identifier: MIT
 *
 * http.c: effects by HTTP: many calls of one thread on one curl multi handle.
 *
 * One call is one request. curl would send a POST again by itself when a connection that it reuses dies before the
 * first byte of the answer (P54), so two things stand in its way, of which each is enough where both apply. The body
 * comes from a callback that cannot be rewound, and an empty one, which has nothing to rewind, gets a connection of its
 * own; and the callback before a request refuses to let a second one go, also when nothing but the headers of the first
 * had left. A connection is used again only while its server will not close it yet: when it was idle for at most half
 * of the server's `Keep-Alive: timeout`, or for 1 s (P94), so that the case stays rare.
 *
 * Invariants: a call ends once; what was certainly not sent ends as ENVIRONMENT or BROKEN, what may have been sent by
 * what the answer says, or as unknown (P47).
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "handler/http_private.h"

#define POLL_MS 60000
#define POOR_POLL_MS 50 /* when curl cannot wait for want of memory */

static struct http_caller *http_of(struct semel_caller *caller)
{
    return (struct http_caller *)caller;
}

static size_t n_calls(const struct http_caller *http)
{
    return 2 * http->base.concurrency;
}

static void wipe_lines(struct curl_slist *lines)
{
    for (struct curl_slist *each = lines; each != NULL; each = each->next)
        explicit_bzero(each->data, strlen(each->data));
    curl_slist_free_all(lines);
}

/* Lets go of the transfer, and keeps what came back. */
static void drop_transfer(struct http_call *c)
{
    if (c->easy != NULL) {
        curl_multi_remove_handle(c->http->multi, c->easy);
        curl_easy_cleanup(c->easy);
    }
    wipe_lines(c->lines);
    c->easy = NULL;
    c->lines = NULL;
}

static void forget(struct http_call *c)
{
    struct http_caller *http = c->http;
    drop_transfer(c);
    semel__buf_done(&c->body);
    semel__buf_done(&c->outcome);
    *c = (struct http_call){.http = http};
}

/* ---- starting and ending ------------------------------------------------------------------------- */

static void http_start(struct semel_caller *caller, const struct semel_call *call)
{
    struct http_caller *http = http_of(caller);
    struct http_call *c = http->calls;
    while (c < http->calls + n_calls(http) && c->state != CALL_FREE)
        c++;
    assert(c < http->calls + n_calls(http)); /* else more calls run than were agreed upon */

    *c = (struct http_call){.state = CALL_RUNS, .http = http, .call = *call};
    c->end = (struct semel_call_end){.tag = call->tag, .ask = call->ask};
    semel__buf_init(&c->body, SEMEL_CALL_ANSWER_MAX);
    semel__buf_init(&c->outcome, SEMEL_CALL_ANSWER_MAX);
    semel_status status = semel__http_prepare(c, &c->end.err);
    if (status == SEMEL_INVALID && call->ask) {
        semel__http_not_asked(c);
        c->state = CALL_ENDED;
        return;
    }
    if (status == SEMEL_OK && curl_multi_add_handle(http->multi, c->easy) != CURLM_OK)
        status = semel__fail_memory(&c->end.err);
    if (status == SEMEL_OK)
        return;
    c->end.status = status;
    c->state = CALL_ENDED;
}

/* Nothing was sent on the connection that curl had chosen: once more, on a new one. */
static bool on_another_line(struct http_call *c)
{
    if (!c->stale)
        return false;
    c->stale = false;
    c->fresh = true;
    curl_multi_remove_handle(c->http->multi, c->easy);
    return curl_easy_setopt(c->easy, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK &&
           curl_multi_add_handle(c->http->multi, c->easy) == CURLM_OK;
}

/* Takes from curl whatever has ended. */
static void collect(struct http_caller *http)
{
    int left;
    for (CURLMsg *said; (said = curl_multi_info_read(http->multi, &left)) != NULL;) {
        struct http_call *c = NULL;
        CURLcode code = said->data.result;
        curl_easy_getinfo(said->easy_handle, CURLINFO_PRIVATE, &c);
        if (on_another_line(c))
            continue;
        semel__http_judge(c, code);
        semel__http_keep_line(c);
        c->state = CALL_ENDED;
        drop_transfer(c);
    }
}

static size_t tell(struct http_caller *http, struct semel_call_end *ret_ends, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < n_calls(http) && n < max; i++) {
        struct http_call *c = &http->calls[i];
        if (c->state != CALL_ENDED)
            continue;
        ret_ends[n++] = c->end;
        c->state = CALL_TOLD;
    }
    return n;
}

/* true: the wait is over, somebody woke us or the time has come. */
static bool rest(struct http_caller *http, int wake_fd)
{
    struct curl_waitfd extra[] = {{http->timer, CURL_WAIT_POLLIN, 0}, {wake_fd, CURL_WAIT_POLLIN, 0}};
    struct pollfd plain[] = {{.fd = http->timer, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    if (curl_multi_poll(http->multi, extra, wake_fd >= 0 ? 2 : 1, POLL_MS, NULL) != CURLM_OK) {
        poll(plain, 2, POOR_POLL_MS);
        return plain[0].revents != 0 || plain[1].revents != 0;
    }
    return extra[0].revents != 0 || (wake_fd >= 0 && extra[1].revents != 0);
}

static size_t http_wait(struct semel_caller *caller, int wait_ms, int wake_fd, struct semel_call_end *ret_ends,
                        size_t max)
{
    struct http_caller *http = http_of(caller);
    struct pipe_hold hold;
    size_t n;
    semel__pipe_hold(&hold);
    for (size_t i = 0; i < n_calls(http); i++)
        if (http->calls[i].state == CALL_TOLD)
            forget(&http->calls[i]);
    semel__timer_set(http->timer, wait_ms < 0 ? -1 : (int64_t)wait_ms * 1000);
    for (bool over = wait_ms == 0;; over = rest(http, wake_fd)) {
        int running;
        curl_multi_perform(http->multi, &running);
        collect(http);
        n = tell(http, ret_ends, max);
        if (n > 0 || over)
            break;
    }
    semel__pipe_release(&hold);
    return n;
}

static void http_cancel(struct semel_caller *caller)
{
    struct http_caller *http = http_of(caller);
    struct pipe_hold hold;
    semel__pipe_hold(&hold);
    for (size_t i = 0; i < n_calls(http); i++) {
        struct http_call *c = &http->calls[i];
        if (c->state != CALL_RUNS)
            continue;
        semel__http_give_up(c);
        c->state = CALL_ENDED;
        drop_transfer(c);
    }
    semel__pipe_release(&hold);
}

static void http_free(struct semel_caller *caller)
{
    struct http_caller *http = http_of(caller);
    struct pipe_hold hold;
    semel__pipe_hold(&hold);
    for (size_t i = 0; http->calls != NULL && i < n_calls(http); i++)
        forget(&http->calls[i]);
    if (http->multi != NULL)
        curl_multi_cleanup(http->multi);
    if (http->initialized)
        curl_global_cleanup();
    if (http->timer >= 0)
        close(http->timer);
    for (size_t i = 0; i < http->n_fixed; i++)
        semel__call_wipe(http->fixed[i]);
    semel__call_wipe(http->url);
    semel__call_wipe(http->reconcile_url);
    semel__call_wipe(http->ca_file);
    semel__call_wipe(http->cert_file);
    semel__call_wipe(http->key_file);
    semel__call_wipe(http->key_password);
    semel__free(http->fixed);
    semel__free(http->calls);
    semel__free(http->lines);
    semel__free(http->transient);
    semel__free(http);
    semel__pipe_release(&hold);
}

static const struct semel_caller_ops http_ops = {
    .name = "http",
    .start = http_start,
    .wait = http_wait,
    .cancel = http_cancel,
    .free = http_free,
};

/* ---- making one ---------------------------------------------------------------------------------- */

static bool copy_text(char **ret, const char *z)
{
    if (z == NULL)
        return true;
    *ret = semel__call_copy(semel__str(z));
    return *ret != NULL;
}

static semel_status copy_settings(struct http_caller *http, const struct semel_http_caller_settings *settings,
                                  struct semel_error *err)
{
    bool copied = copy_text(&http->url, settings->url) && copy_text(&http->reconcile_url, settings->reconcile_url) &&
                  copy_text(&http->ca_file, settings->ca_file) && copy_text(&http->cert_file, settings->cert_file) &&
                  copy_text(&http->key_file, settings->key_file) &&
                  copy_text(&http->key_password, settings->key_password);
    http->fixed = semel__calloc(settings->n_headers, sizeof *http->fixed);
    http->calls = semel__calloc(n_calls(http), sizeof *http->calls);
    http->lines = semel__calloc(n_calls(http), sizeof *http->lines);
    http->transient = semel__calloc(settings->n_transient + 1, sizeof *http->transient);
    if (!copied || http->fixed == NULL || http->calls == NULL || http->lines == NULL || http->transient == NULL)
        return semel__fail_memory(err);
    for (; http->n_transient < settings->n_transient; http->n_transient++)
        http->transient[http->n_transient] = settings->transient[http->n_transient];
    for (size_t i = 0; i < n_calls(http); i++)
        http->calls[i].http = http;
    semel_status status = semel__http_check_url("the URL", http->url, err);
    if (status == SEMEL_OK && http->reconcile_url != NULL)
        status = semel__http_check_url("the URL of the reconcile", http->reconcile_url, err);
    for (size_t i = 0; i < settings->n_headers && status == SEMEL_OK; i++) {
        status = semel__http_fixed(&settings->headers[i], &http->fixed[i], err);
        http->n_fixed += status == SEMEL_OK;
    }
    return status;
}

static semel_status begin(struct http_caller *http, struct semel_error *err)
{
    char why[CALL_ERRNO_TEXT];
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return semel__fail_memory(err);
    http->initialized = true;
    http->timer = semel__timer_new();
    if (http->timer < 0)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no timer: %s", semel__call_errno(errno, why));
    http->multi = curl_multi_init();
    if (http->multi == NULL || !semel__random_seed_os(&http->rng))
        return semel__fail_memory(err);
    curl_multi_setopt(http->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
    curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, (long)http->base.concurrency);
    return SEMEL_OK;
}

semel_status semel__http_caller_new(struct semel_caller **ret, const struct semel_http_caller_settings *settings,
                                    struct semel_error *err)
{
    struct http_caller *http = semel__calloc(1, sizeof *http);
    if (http == NULL)
        return semel__fail_memory(err);
    http->base.ops = &http_ops;
    http->base.concurrency = settings->concurrency > 0 ? settings->concurrency : 1;
    http->base.can_ask = settings->reconcile_url != NULL;
    http->timeout_ms = settings->timeout_us < 1000 ? 1 : (long)(settings->timeout_us / 1000);
    http->idempotent = settings->idempotent;
    http->verify = settings->verify;
    http->timer = -1;
    semel_status status = begin(http, err);
    if (status == SEMEL_OK)
        status = copy_settings(http, settings, err);
    if (status != SEMEL_OK) {
        http_free(&http->base);
        return status;
    }
    *ret = &http->base;
    return SEMEL_OK;
}
