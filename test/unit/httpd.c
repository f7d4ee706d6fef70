/* SPDX-License-Identifier: MIT
 *
 * httpd.c: the server and the client of httpd.h.
 */
#include "unit/httpd.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static void handle_hello(void *ctx, struct semel_http_exchange *x)
{
    struct httpd *httpd = ctx;
    atomic_fetch_add(&httpd->handled, 1);
    semel__buf_addz(semel__http_body(x), "{\"hello\":true}\n");
    semel__http_answer(x, 200);
}

static void handle_echo(void *ctx, struct semel_http_exchange *x)
{
    struct httpd *httpd = ctx;
    const struct semel_http_request *req = semel__http_request(x);
    atomic_fetch_add(&httpd->handled, 1);
    semel__http_set_type(x, "application/octet-stream");
    semel__buf_add(semel__http_body(x), req->body.p, req->body.n);
    semel__http_answer(x, 200);
}

static void put_str(struct semel_buf *buf, struct semel_str s)
{
    semel__buf_add(buf, s.p, s.n);
    semel__buf_addz(buf, "|");
}

static void handle_params(void *ctx, struct semel_http_exchange *x)
{
    (void)ctx;
    const struct semel_http_request *req = semel__http_request(x);
    put_str(semel__http_body(x), semel__http_param(req, "a"));
    put_str(semel__http_body(x), semel__http_param(req, "b"));
    put_str(semel__http_body(x), semel__http_param(req, "rest"));
    semel__http_answer(x, 200);
}

static void handle_query(void *ctx, struct semel_http_exchange *x)
{
    (void)ctx;
    const struct semel_http_request *req = semel__http_request(x);
    for (size_t i = 0; i < req->n_query; i++) {
        put_str(semel__http_body(x), req->query[i].name);
        put_str(semel__http_body(x), req->query[i].value);
    }
    put_str(semel__http_body(x), semel__http_query(req, "a"));
    semel__http_answer(x, 200);
}

static void handle_thing(void *ctx, struct semel_http_exchange *x)
{
    (void)ctx;
    semel__http_set_header(x, "X-Thing", SEMEL_STR("one\r\nX-Forged: two"));
    semel__http_answer(x, 204);
}

static void handle_who(void *ctx, struct semel_http_exchange *x)
{
    (void)ctx;
    const struct semel_http_request *req = semel__http_request(x);
    for (size_t i = 0; i < req->n_headers; i++) {
        put_str(semel__http_body(x), req->headers[i].name);
        put_str(semel__http_body(x), req->headers[i].value);
    }
    semel__buf_addf(semel__http_body(x), "scopes=%u|", req->scopes);
    put_str(semel__http_body(x), req->remote);
    semel__http_answer(x, 200);
}

static void handle_later(void *ctx, struct semel_http_exchange *x)
{
    struct httpd *httpd = ctx;
    pthread_mutex_lock(&httpd->lock);
    assert_true(httpd->n_queue < COUNT(httpd->queue));
    httpd->queue[httpd->n_queue++] = x;
    pthread_cond_broadcast(&httpd->changed);
    pthread_mutex_unlock(&httpd->lock);
}

static void handle_hold(void *ctx, struct semel_http_exchange *x)
{
    struct httpd *httpd = ctx;
    pthread_mutex_lock(&httpd->lock);
    assert_true(httpd->n_held < COUNT(httpd->held));
    httpd->held[httpd->n_held++] = x;
    pthread_cond_broadcast(&httpd->changed);
    pthread_mutex_unlock(&httpd->lock);
}

static void handle_big(void *ctx, struct semel_http_exchange *x)
{
    (void)ctx;
    char block[4096];
    for (size_t i = 0; i < BIG_BYTES; i += sizeof(block)) {
        memset(block, (int)('a' + i / sizeof(block) % 26), sizeof(block));
        semel__buf_add(semel__http_body(x), block, sizeof(block));
    }
    semel__http_answer(x, 200);
}

static void handle_endless(void *ctx, struct semel_http_exchange *x)
{
    (void)ctx;
    while (semel__buf_addz(semel__http_body(x), "and so on, and on "))
        continue;
    semel__http_answer(x, 200);
}

static void handle_smuggled(void *ctx, struct semel_http_exchange *x)
{
    struct httpd *httpd = ctx;
    atomic_fetch_add(&httpd->smuggled, 1);
    semel__http_answer(x, 200);
}

static void observe(void *ctx, const struct semel_http_request *req, int status, int64_t took_us)
{
    struct httpd *httpd = ctx;
    (void)req;
    if (status >= 200 && status < 600 && took_us >= 0)
        atomic_fetch_add(&httpd->observed, 1);
}

static void crowded(void *ctx, bool gave_way, struct semel_str remote)
{
    struct httpd *httpd = ctx;
    assert_true(remote.n > 0);
    atomic_fetch_add(gave_way ? &httpd->gave_way : &httpd->refused, 1);
}

static const struct semel_http_token tokens[] = {{{TOKEN, sizeof(TOKEN) - 1}, 1},
                                                 {{NEXT_TOKEN, sizeof(NEXT_TOKEN) - 1}, 1},
                                                 {{ADMIN_TOKEN, sizeof(ADMIN_TOKEN) - 1}, 3}};

#define GET SEMEL_HTTP_BIT(GET)
#define POST SEMEL_HTTP_BIT(POST)
static struct semel_http_route routes[] = {
    {.methods = GET, .path = "/hello", .handle = handle_hello},
    {.methods = POST | SEMEL_HTTP_BIT(PUT), .path = "/echo", .body_max = 1024, .handle = handle_echo},
    {.methods = GET, .path = "/v1/{a}/x/{b}", .handle = handle_params},
    {.methods = GET, .path = "/files/{rest*}", .handle = handle_params},
    {.methods = GET, .path = "/query", .handle = handle_query},
    {.methods = SEMEL_HTTP_BIT(DELETE), .path = "/thing", .handle = handle_thing},
    {.methods = GET, .path = "/who", .handle = handle_who},
    {.methods = GET | POST, .path = "/secret", .needs = 1, .body_max = 100000, .handle = handle_who},
    {.methods = GET, .path = "/admin", .needs = 2, .handle = handle_who},
    {.methods = POST, .path = "/later", .body_max = 100000, .handle = handle_later},
    {.methods = GET, .path = "/hold", .handle = handle_hold},
    {.methods = GET, .path = "/big", .handle = handle_big},
    {.methods = GET, .path = "/endless", .handle = handle_endless},
    {.methods = GET, .path = "/smuggled", .handle = handle_smuggled},
};

void httpd_init(struct httpd *httpd)
{
    *httpd = (struct httpd){.running = false};
    pthread_mutex_init(&httpd->lock, NULL);
    pthread_cond_init(&httpd->changed, NULL);
    semel__http_settings_init(&httpd->settings);
    for (size_t i = 0; i < COUNT(routes); i++)
        routes[i].ctx = httpd;
    httpd->settings.address = "127.0.0.1:0";
    httpd->settings.routes = routes;
    httpd->settings.n_routes = COUNT(routes);
    httpd->settings.tokens = tokens;
    httpd->settings.n_tokens = COUNT(tokens);
    httpd->settings.observe = observe;
    httpd->settings.crowded = crowded;
    httpd->settings.observe_ctx = httpd;
}

static void *work(void *arg)
{
    struct httpd *httpd = arg;
    pthread_mutex_lock(&httpd->lock);
    while (!httpd->workers_stop || httpd->n_queue > 0) {
        if (httpd->n_queue == 0) {
            pthread_cond_wait(&httpd->changed, &httpd->lock);
            continue;
        }
        struct semel_http_exchange *x = httpd->queue[--httpd->n_queue];
        pthread_mutex_unlock(&httpd->lock);
        handle_echo(httpd, x);
        pthread_mutex_lock(&httpd->lock);
    }
    pthread_mutex_unlock(&httpd->lock);
    return NULL;
}

static void *run(void *arg)
{
    struct httpd *httpd = arg;
    struct semel_error err;
    return semel__http_run(httpd->http, &err) == SEMEL_OK ? NULL : arg;
}

void httpd_start(struct httpd *httpd)
{
    struct semel_error err;
    assert_int_equal(semel__http_new(&httpd->http, NULL, &err), SEMEL_OK);
    semel_status status = semel__http_listen(httpd->http, &httpd->settings, &httpd->listener, &err);
    if (status != SEMEL_OK)
        fail_msg("%s", err.text);
    httpd->port = semel__http_port(httpd->listener);
    if (httpd->bound > 0)
        semel__http_bound(httpd->http, httpd->bound);
    if (httpd->second.address != NULL) {
        struct semel_http_listener *second;
        assert_int_equal(semel__http_listen(httpd->http, &httpd->second, &second, &err), SEMEL_OK);
        httpd->second_port = semel__http_port(second);
    }
    for (size_t i = 0; i < COUNT(httpd->workers); i++)
        assert_int_equal(pthread_create(&httpd->workers[i], NULL, work, httpd), 0);
    assert_int_equal(pthread_create(&httpd->thread, NULL, run, httpd), 0);
    httpd->running = true;
}

void httpd_join(struct httpd *httpd)
{
    void *failed;
    pthread_join(httpd->thread, &failed);
    assert_null(failed);
    pthread_mutex_lock(&httpd->lock);
    httpd->workers_stop = true;
    pthread_cond_broadcast(&httpd->changed);
    pthread_mutex_unlock(&httpd->lock);
    for (size_t i = 0; i < COUNT(httpd->workers); i++)
        pthread_join(httpd->workers[i], NULL);
    httpd->running = false;
}

void httpd_stop(struct httpd *httpd, uint64_t deadline_ms)
{
    semel__http_stop(httpd->http, deadline_ms);
    httpd_join(httpd);
}

void httpd_done(struct httpd *httpd)
{
    if (httpd->running)
        httpd_stop(httpd, 0);
    semel__http_free(httpd->http);
    httpd->http = NULL;
    httpd_release(httpd); /* what is answered now goes nowhere */
    pthread_mutex_destroy(&httpd->lock);
    pthread_cond_destroy(&httpd->changed);
}

static void wait_changed(struct httpd *httpd)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    assert_int_equal(pthread_cond_timedwait(&httpd->changed, &httpd->lock, &until), 0);
}

void httpd_wait_held(struct httpd *httpd, size_t n)
{
    pthread_mutex_lock(&httpd->lock);
    while (httpd->n_held < n)
        wait_changed(httpd);
    pthread_mutex_unlock(&httpd->lock);
}

void httpd_release(struct httpd *httpd)
{
    pthread_mutex_lock(&httpd->lock);
    while (httpd->n_held > 0) {
        struct semel_http_exchange *x = httpd->held[--httpd->n_held];
        semel__http_refuse(x, 409, "released \"%s\"", "now");
    }
    pthread_mutex_unlock(&httpd->lock);
}

bool httpd_hung_up(struct httpd *httpd)
{
    pthread_mutex_lock(&httpd->lock);
    bool hung_up = httpd->n_held > 0 && semel__http_hung_up(httpd->held[0]);
    pthread_mutex_unlock(&httpd->lock);
    return hung_up;
}

int client_open(const struct httpd *httpd)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)httpd->port)};
    struct timeval wait = {.tv_sec = WAIT_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&in, sizeof(in)), 0);
    return fd;
}

/* A server that has refused may close before it has read everything: that is its right. */
void client_send(int fd, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            return;
        assert_true(sent > 0);
        p += sent;
        n -= (size_t)sent;
    }
}

void client_sendz(int fd, const char *text)
{
    client_send(fd, text, strlen(text));
}

static bool read_head(int fd, struct reply *reply)
{
    size_t n = 0;
    while (n < 4 || memcmp(reply->head + n - 4, "\r\n\r\n", 4) != 0) {
        assert_true(n < sizeof(reply->head) - 1);
        ssize_t got = recv(fd, reply->head + n, 1, 0);
        if (got == 0 && n == 0)
            return false;
        assert_int_equal(got, 1);
        n++;
    }
    reply->head[n] = '\0';
    assert_int_equal(sscanf(reply->head, "HTTP/1.1 %d ", &reply->status), 1);
    return true;
}

bool client_reply(int fd, struct reply *reply, bool head_only)
{
    *reply = (struct reply){.status = 0};
    if (!read_head(fd, reply))
        return false;
    const char *length = strstr(reply->head, "\r\nContent-Length: ");
    reply->n = length != NULL && !head_only ? strtoul(length + 18, NULL, 10) : 0;
    reply->body = calloc(1, reply->n + 1);
    assert_non_null(reply->body);
    for (size_t n = 0; n < reply->n;) {
        ssize_t got = recv(fd, reply->body + n, reply->n - n, 0);
        assert_true(got > 0);
        n += (size_t)got;
    }
    return true;
}

struct reply client_ask(const struct httpd *httpd, const char *text)
{
    struct reply reply;
    int fd = client_open(httpd);
    client_sendz(fd, text);
    assert_true(client_reply(fd, &reply, strncmp(text, "HEAD ", 5) == 0));
    close(fd);
    return reply;
}

void reply_done(struct reply *reply)
{
    free(reply->body);
    reply->body = NULL;
}

char *client_rest(int fd, size_t *ret_n)
{
    size_t n = 0, cap = 65536;
    char *text = malloc(cap);
    for (;;) {
        assert_non_null(text);
        ssize_t got = recv(fd, text + n, cap - 1 - n, 0);
        if (got < 0 && errno == ECONNRESET)
            break;
        assert_true(got >= 0);
        if (got == 0)
            break;
        n += (size_t)got;
        if (n == cap - 1)
            text = realloc(text, cap *= 2);
    }
    text[n] = '\0';
    if (ret_n != NULL)
        *ret_n = n;
    return text;
}

bool client_closed(int fd)
{
    char c;
    ssize_t got = recv(fd, &c, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

bool reply_has(const struct reply *reply, const char *line)
{
    char wanted[512];
    snprintf(wanted, sizeof(wanted), "\r\n%s\r\n", line);
    return strstr(reply->head, wanted) != NULL;
}
