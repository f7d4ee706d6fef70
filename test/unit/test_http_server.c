/* SPDX-License-Identifier: MIT
 *
 * test_http_server.c: listening, answering from other threads, hanging up, stopping.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/address.h"
#include "unit/httpd_each.h"

#define HOST "Host: localhost\r\n"
#define CLIENTS 4

/* Polls the condition; fails after WAIT_S. */
#define WAIT_FOR(condition)                             \
    for (unsigned rounds = 0; !(condition); rounds++) { \
        assert_true(rounds < WAIT_S * 200);             \
        poll(NULL, 0, 5);                               \
    }

static bool refused(void)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)httpd.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bool no = connect(fd, (const struct sockaddr *)&in, sizeof(in)) != 0 && errno == ECONNREFUSED;
    close(fd);
    return no;
}

static void an_answer_may_come_later_from_another_thread(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    struct reply reply;
    client_sendz(fd, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    httpd_wait_held(&httpd, 1);
    struct reply other = client_ask(&httpd, "GET /hello HTTP/1.1\r\n" HOST "\r\n"); /* nobody else waits for it */
    assert_int_equal(other.status, 200);
    assert_false(httpd_hung_up(&httpd));
    httpd_release(&httpd);
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 409);
    assert_string_equal(reply.body, "{\"type\":\"about:blank\",\"title\":\"Conflict\",\"status\":409,"
                                    "\"detail\":\"released \\\"now\\\"\"}\n");
    reply_done(&other);
    reply_done(&reply);
    close(fd);
}

static void an_exchange_learns_that_its_client_has_hung_up(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    client_sendz(fd, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    httpd_wait_held(&httpd, 1);
    close(fd);
    WAIT_FOR(httpd_hung_up(&httpd));
    httpd_release(&httpd);

    fd = client_open(&httpd); /* by a reset */
    client_sendz(fd, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    httpd_wait_held(&httpd, 1);
    struct linger hard = {.l_onoff = 1};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), 0);
    close(fd);
    WAIT_FOR(httpd_hung_up(&httpd));
    httpd_release(&httpd);
    struct reply reply = client_ask(&httpd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.status, 200);
    reply_done(&reply);
}

static int open_unix(const char *path)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct timeval wait = {.tv_sec = WAIT_S};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&un, sizeof(un)), 0);
    return fd;
}

/* SIGPIPE has its default disposition here: it would kill this program. A unix socket tells at once that nobody reads,
 * where TCP would first say that the connection was reset. */
static void a_client_that_goes_in_the_middle_of_its_answer_harms_nobody(void **state)
{
    (void)state;
    struct sigaction action;
    char address[64];
    struct reply reply;
    assert_int_equal(sigaction(SIGPIPE, NULL, &action), 0);
    assert_true(action.sa_handler == SIG_DFL);
    snprintf(address, sizeof(address), "unix:/tmp/semel-http-%d", (int)getpid());
    httpd.settings.address = address;
    httpd_start(&httpd);
    for (int i = 0; i < 20; i++) {
        int fd = open_unix(address + 5); /* the second request keeps the server from seeing the end */
        client_sendz(fd, "GET /big HTTP/1.1\r\n" HOST "\r\nGET /big HTTP/1.1\r\n" HOST "\r\n");
        char some[1000];
        assert_true(recv(fd, some, sizeof(some), 0) > 0);
        close(fd);
    }
    int fd = open_unix(address + 5);
    client_sendz(fd, "GET /big HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.n, BIG_BYTES);
    reply_done(&reply);
    close(fd);
}

static void every_descriptor_is_closed_on_exec(void **state)
{
    (void)state;
    bool before[1024] = {false};
    for (int fd = 0; fd < (int)COUNT(before); fd++)
        before[fd] = fcntl(fd, F_GETFD) >= 0;
    httpd_start(&httpd);
    int client = client_open(&httpd);
    client_sendz(client, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    httpd_wait_held(&httpd, 1); /* so its socket has been accepted */
    unsigned fresh = 0;
    for (int fd = 0; fd < (int)COUNT(before); fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0 || before[fd])
            continue;
        fresh++;
        assert_true(flags & FD_CLOEXEC);
    }
    assert_true(fresh >= 4); /* loop, listener, both ends */
    close(client);
}

static void a_stop_lets_what_is_in_work_be_answered(void **state)
{
    (void)state;
    int busy = client_open(&httpd), idle = client_open(&httpd), half = client_open(&httpd);
    struct reply reply;
    client_sendz(idle, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_reply(idle, &reply, false));
    reply_done(&reply);
    client_sendz(half, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nab");
    client_sendz(busy, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    httpd_wait_held(&httpd, 1);
    semel__http_stop(httpd.http, 60000);
    assert_true(client_closed(idle));
    WAIT_FOR(refused());
    client_sendz(half, "cd");
    assert_true(client_reply(half, &reply, false));
    assert_string_equal(reply.body, "abcd");
    assert_true(reply_has(&reply, "Connection: close"));
    reply_done(&reply);
    httpd_release(&httpd);
    assert_true(client_reply(busy, &reply, false));
    assert_int_equal(reply.status, 409);
    assert_true(reply_has(&reply, "Connection: close"));
    reply_done(&reply);
    close(busy);
    close(half);
    close(idle);
    httpd_join(&httpd);
}

/* The handler never answers in time: run ends all the same, and the late answer goes nowhere. */
static void a_stop_ends_at_its_deadline(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    client_sendz(fd, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    httpd_wait_held(&httpd, 1);
    semel__http_stop(httpd.http, 60000);
    semel__http_stop(httpd.http, 20); /* the earlier one counts */
    httpd_join(&httpd);
    assert_true(client_closed(fd));
    close(fd);
    assert_true(httpd_hung_up(&httpd));
}

struct load {
    atomic_uint answered;
    atomic_bool broken;
};

/* Whole answers until the end, and never half of one. */
static void *hammer(void *arg)
{
    struct load *load = arg;
    while (!refused()) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)httpd.port)};
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (const struct sockaddr *)&in, sizeof(in)) == 0) {
            static const char text[] = "POST /later HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello";
            char reply[512];
            ssize_t n = 1;
            for (int i = 0; i < 50 && n > 0; i++) {
                if (send(fd, text, sizeof(text) - 1, MSG_NOSIGNAL) < 0)
                    break;
                size_t got = 0;
                while (n > 0 && (got < 5 || memcmp(reply + got - 5, "hello", 5) != 0)) {
                    n = recv(fd, reply + got, sizeof(reply) - got, 0);
                    got += n > 0 ? (size_t)n : 0;
                }
                if (n > 0)
                    atomic_fetch_add(&load->answered, 1);
                else if (got > 0)
                    atomic_store(&load->broken, true);
            }
        }
        close(fd);
    }
    return NULL;
}

static void a_stop_under_load_leaves_no_answer_half_sent(void **state)
{
    (void)state;
    struct load load = {.answered = 0};
    pthread_t clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, hammer, &load), 0);
    WAIT_FOR(atomic_load(&load.answered) > 500);
    httpd_stop(&httpd, 60000);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i], NULL);
    assert_false(atomic_load(&load.broken));
    assert_int_equal(atomic_load(&httpd.handled), atomic_load(&httpd.observed));
}

static void a_stop_before_the_run_ends_it_at_once(void **state)
{
    (void)state;
    struct semel_http *http;
    struct semel_error err;
    assert_int_equal(semel__http_new(&http, NULL, &err), SEMEL_OK);
    assert_int_equal(semel__http_listen(http, &httpd.settings, NULL, &err), SEMEL_OK);
    semel__http_stop(http, 0);
    assert_int_equal(semel__http_run(http, &err), SEMEL_OK);
    semel__http_free(http);
    assert_int_equal(semel__http_new(&http, NULL, &err), SEMEL_OK);
    assert_int_equal(semel__http_listen(http, &httpd.settings, NULL, &err), SEMEL_OK);
    semel__http_free(http); /* never ran */
}

static void one_loop_serves_several_addresses(void **state)
{
    (void)state;
    struct semel_error err;
    struct httpd other;
    httpd_init(&other);
    other.settings.address = "[::1]:0";
    httpd_init(&httpd);
    assert_int_equal(semel__http_new(&httpd.http, NULL, &err), SEMEL_OK);
    assert_int_equal(semel__http_listen(httpd.http, &httpd.settings, &httpd.listener, &err), SEMEL_OK);
    httpd.port = semel__http_port(httpd.listener);
    semel_status status = semel__http_listen(httpd.http, &other.settings, &other.listener, &err);
    if (status != SEMEL_OK)
        print_message("no IPv6 here: %s\n", err.text);
    struct semel_http_settings again = httpd.settings;
    char taken[32];
    snprintf(taken, sizeof(taken), "127.0.0.1:%u", httpd.port);
    again.address = taken;
    assert_int_equal(semel__http_listen(httpd.http, &again, NULL, &err), SEMEL_RETRY);
    assert_non_null(strstr(err.text, "address already in use"));
    if (status == SEMEL_OK)
        assert_true(semel__http_port(other.listener) != httpd.port);
}

static void never(void *ctx, struct semel_http_exchange *x)
{
    (void)ctx;
    semel__http_answer(x, 500);
}

static void settings_that_would_be_unsafe_are_refused(void **state)
{
    (void)state;
    static const char *const bad_hosts[] = {"a b"};
    static const struct semel_http_token bad_tokens[] = {{{"", 0}, 1}};
    static const struct semel_http_route bad_routes[][1] = {
        {{.methods = SEMEL_HTTP_BIT(GET), .path = "hello", .handle = never}},
        {{.methods = SEMEL_HTTP_BIT(GET), .path = "/a{b}", .handle = never}},
        {{.methods = SEMEL_HTTP_BIT(GET), .path = "/{a*}/b", .handle = never}},
        {{.methods = 0, .path = "/a", .handle = never}},
        {{.methods = SEMEL_HTTP_BIT(GET), .path = "/a"}},
        {{.methods = SEMEL_HTTP_BIT(TRACE), .path = "/a", .handle = never}},
    };
    struct semel_http_settings cases[15];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(cases); i++)
        cases[i] = httpd.settings;
    cases[n++].address = "0.0.0.0:0";
    cases[n++].address = "[::]:0";
    cases[n++].address = "192.0.2.1:80";
    cases[n++].cert_file = "only";
    cases[n++].key_file = "only";
    cases[n++].client_ca_file = "only";
    cases[n].hosts = bad_hosts;
    cases[n++].n_hosts = 1;
    cases[n].tokens = bad_tokens;
    cases[n++].n_tokens = 1;
    cases[n++].limits.head_ms = 0;
    for (size_t i = 0; i < COUNT(bad_routes); i++) {
        cases[n].routes = bad_routes[i];
        cases[n++].n_routes = 1;
    }
    assert_int_equal(n, COUNT(cases));
    assert_int_equal(semel__http_new(&httpd.http, NULL, &(struct semel_error){0}), SEMEL_OK);
    for (size_t i = 0; i < n; i++) {
        struct semel_error err;
        if (semel__http_listen(httpd.http, &cases[i], NULL, &err) != SEMEL_INVALID)
            fail_msg("case %zu is taken", i);
        assert_true(strlen(err.text) > 10);
    }
    struct semel_error err;
    cases[0].plain = true; /* whoever says so may */
    assert_int_equal(semel__http_listen(httpd.http, &cases[0], NULL, &err), SEMEL_OK);
}

static void addresses_are_understood_or_refused(void **state)
{
    (void)state;
    static const char *const good[] = {"8080",        "localhost:0", "127.0.0.1:65535",
                                       "127.1.2.3:1", "[::1]:80",    "unix:/run/semel.sock"};
    static const char *const far[] = {"0.0.0.0:80", "10.0.0.1:80", "[::]:80", "[::ffff:127.0.0.1]:80"};
    static const char *const bad[] = {"",
                                      ":80",
                                      "localhost",
                                      "localhost:",
                                      "127.0.0.1:65536",
                                      "127.0.0.1:-1",
                                      "127.0.0.1:0x50",
                                      "127.0.0.1:80 ",
                                      "::1:80",
                                      "[::1]",
                                      "[]:80",
                                      "[127.0.0.1]:80",
                                      "127.0.0:80",
                                      "example.com:80",
                                      "unix:",
                                      "unix:relative",
                                      "127.0.0.1:+80"};
    struct semel_error err;
    struct semel_address address;
    for (size_t i = 0; i < COUNT(good); i++) {
        address.loopback = false;
        assert_int_equal(semel__address_parse(&address, good[i], &err), SEMEL_OK);
        assert_true(address.loopback);
    }
    for (size_t i = 0; i < COUNT(far); i++) {
        address.loopback = true;
        assert_int_equal(semel__address_parse(&address, far[i], &err), SEMEL_OK);
        assert_false(address.loopback);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        if (semel__address_parse(&address, bad[i], &err) != SEMEL_INVALID)
            fail_msg("taken: %s", bad[i]);
    char path[200] = "unix:/";
    memset(path + 6, 'x', 150);
    assert_int_equal(semel__address_parse(&address, path, &err), SEMEL_INVALID);
}

static void a_unix_socket_is_its_owners_and_needs_no_token(void **state)
{
    (void)state;
    char dir[] = "/tmp/semel-http-XXXXXX", address[64];
    assert_non_null(mkdtemp(dir));
    snprintf(address, sizeof(address), "unix:%s/s", dir);
    const char *path = address + 5;
    httpd.settings.address = address;
    int dead = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); /* what a killed server leaves */
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
    assert_int_equal(bind(dead, (const struct sockaddr *)&un, sizeof(un)), 0);
    close(dead);

    mode_t mask = umask(0);
    httpd_start(&httpd);
    umask(mask);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    int fd = open_unix(path);
    struct reply reply;
    client_sendz(fd, "GET /admin HTTP/1.1\r\n" HOST "Authorization: Bearer x\r\n\r\n");
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "|unix|"));
    assert_null(strstr(reply.body, "Bearer"));
    reply_done(&reply);
    client_sendz(fd, "GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 421);
    reply_done(&reply);

    struct semel_http *second; /* a living server keeps its path */
    struct semel_error err;
    assert_int_equal(semel__http_new(&second, NULL, &err), SEMEL_OK);
    assert_int_equal(semel__http_listen(second, &httpd.settings, NULL, &err), SEMEL_RETRY);
    semel__http_free(second);
    assert_int_equal(stat(path, &st), 0);
    close(fd);
    httpd_stop(&httpd, 60000);
    assert_int_not_equal(stat(path, &st), 0);

    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600); /* not a socket: not ours to remove */
    close(file);
    assert_int_equal(semel__http_new(&second, NULL, &err), SEMEL_OK);
    assert_int_equal(semel__http_listen(second, &httpd.settings, NULL, &err), SEMEL_INVALID);
    semel__http_free(second);
    assert_int_equal(unlink(path), 0);
    rmdir(dir);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, httpd_up_running, httpd_down)
#define OWN(name) cmocka_unit_test_setup_teardown(name, httpd_up, httpd_down)
    const struct CMUnitTest tests[] = {
        CASE(an_answer_may_come_later_from_another_thread),
        CASE(an_exchange_learns_that_its_client_has_hung_up),
        OWN(a_client_that_goes_in_the_middle_of_its_answer_harms_nobody),
        OWN(every_descriptor_is_closed_on_exec),
        CASE(a_stop_lets_what_is_in_work_be_answered),
        CASE(a_stop_ends_at_its_deadline),
        CASE(a_stop_under_load_leaves_no_answer_half_sent),
        OWN(a_stop_before_the_run_ends_it_at_once),
        OWN(one_loop_serves_several_addresses),
        OWN(settings_that_would_be_unsafe_are_refused),
        OWN(addresses_are_understood_or_refused),
        OWN(a_unix_socket_is_its_owners_and_needs_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
