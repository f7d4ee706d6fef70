/* SPDX-License-Identifier: MIT
 *
 * test_amqp.c: the AMQP driver on a real server that dies, stalls, closes channels, takes no messages and refuses us:
 * nothing is lost, nothing is answered twice, nothing hangs, and publishing never claims what it does not know.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/amqp_private.h"
#include "pg/proxy.h"
#include "rabbit/side.h"

static struct rabbit_server server;
static struct rabbit_client client;
static struct pg_proxy proxy;
static char queue[32], folder[] = "/tmp/semel-amqp-XXXXXX", ca_file[64];

/* A certificate for loopback that signs itself. */
static void make_certificate(void)
{
    char cert[64], key[64];
    int status = 1;
    pid_t pid;

    assert_non_null(mkdtemp(folder));
    snprintf(cert, sizeof cert, "%s/server.pem", folder);
    snprintf(key, sizeof key, "%s/server.key", folder);
    snprintf(ca_file, sizeof ca_file, "%s/ca.pem", folder);
    pid = fork();
    if (pid == 0) {
        fclose(stderr);
        execlp("openssl", "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
               "-nodes", "-days", "2", "-subj", "/CN=somebody", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
               key, "-out", cert, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(symlink("server.pem", ca_file), 0);
}

static int group_setup(void **state)
{
    (void)state;
    make_certificate();
    rabbit_server_start_tls(&server, folder);
    rabbit_client_open(&client, server.port);
    pg_proxy_start(&proxy, server.port);
    return 0;
}

static int group_teardown(void **state)
{
    static const char *const names[] = {"ca.pem", "server.pem", "server.key"};
    char path[64];

    (void)state;
    pg_proxy_done(&proxy);
    rabbit_client_close(&client);
    rabbit_server_done(&server);
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    return 0;
}

static void make_queue(const char *type, bool single_active)
{
    static int count;

    snprintf(queue, sizeof queue, "fault-%d", ++count);
    rabbit_client_queue(&client, queue, type, single_active);
}

static const char *url_of(int port)
{
    static char url[64];

    snprintf(url, sizeof url, "amqp://127.0.0.1:%d", port);
    return url;
}

/* ---- the server goes ---------------------------------------------------------------------------------- */

static void mark(bool *seen, const struct rabbit_side *side, size_t from)
{
    for (size_t i = from; i < side->n_got; i++)
        seen[strtol(side->got[i].text + 1, NULL, 10)] = true;
}

/* Some acknowledged, some in flight, some not fetched when the server dies. */
static void death_of_the_server_loses_nothing_and_fences_every_tag(void **state) /* P30 */
{
    struct rabbit_side side;
    bool acked[300] = {false};
    size_t done = 0, before;

    (void)state;
    make_queue("classic", false);
    rabbit_client_send_many(&client, queue, "m", 300);
    rabbit_side_open(&side, server.port, queue, "&prefetch=100&timeout_ms=3000");
    rabbit_side_wait(&side, 80);
    assert_int_equal(rabbit_side_ack(&side, 0, 50), SEMEL_OK);
    mark(acked, &side, 0);
    memset(acked + 50, 0, sizeof acked - 50);
    rabbit_client_close(&client);
    server_stop(&server.process, SIGKILL);
    rabbit_side_wait_status(&side, SEMEL_CLOSED);
    assert_int_equal(side.err.cls, SEMEL_CLASS_ENVIRONMENT);
    before = side.n_got;
    assert_int_equal(rabbit_side_ack(&side, 50, 30), SEMEL_FENCED);
    assert_int_equal(rabbit_side_later(&side, 50, 30, 0), SEMEL_FENCED);
    assert_int_equal(semel_broker_reopen(side.broker, &side.err), SEMEL_RETRY);
    assert_int_equal(rabbit_side_poll(&side, 1, 0), SEMEL_CLOSED);
    server_again(&server.process);
    rabbit_client_open(&client, server.port);
    rabbit_side_reopen(&side);
    assert_int_equal(rabbit_side_ack(&side, 50, 30), SEMEL_FENCED);
    for (int i = 0; done < 300; i++) {
        const size_t at = side.n_got;
        assert_true(i < RABBIT_SIDE_TRIES);
        assert_int_equal(rabbit_side_poll(&side, 64, RABBIT_SIDE_STEP_MS), SEMEL_OK);
        assert_int_equal(rabbit_side_ack(&side, at, side.n_got - at), SEMEL_OK);
        mark(acked, &side, at);
        done = 0;
        for (size_t k = 0; k < 300; k++)
            done += acked[k];
    }
    for (size_t i = before; i < side.n_got; i++)
        for (size_t k = 50; k < 80; k++) /* those that were with us have been delivered before */
            if (strcmp(side.got[i].text, side.got[k].text) == 0)
                assert_true(side.got[i].delivery > 1);
    rabbit_side_close(&side);
    assert_int_equal(rabbit_client_length(&client, queue), 0);
}

static void channel_closed_by_the_server_fences_its_tags(void **state) /* P30 */
{
    amqp_basic_ack_t unknown = {.delivery_tag = 4711};
    struct rabbit_side side;

    (void)state;
    make_queue("classic", false);
    rabbit_client_send_many(&client, queue, "m", 3);
    rabbit_side_open(&side, server.port, queue, "");
    rabbit_side_wait(&side, 3);
    /* An acknowledgement of what the server does not know, as a second one would be. */
    assert_int_equal(semel__amqp_send(&((struct amqp *)side.broker)->reader, AMQP_CHANNEL, AMQP_BASIC_ACK_METHOD,
                                      &unknown, &side.err),
                     SEMEL_OK);
    rabbit_side_wait_status(&side, SEMEL_CLOSED);
    assert_non_null(strstr(side.err.text, "PRECONDITION_FAILED"));
    assert_int_equal(rabbit_side_ack(&side, 0, 3), SEMEL_FENCED);
    rabbit_side_reopen(&side);
    assert_int_equal(rabbit_side_ack(&side, 0, 3), SEMEL_FENCED);
    rabbit_side_wait(&side, 6);
    assert_string_equal(rabbit_side_texts(&side, 3), "m0 m1 m2");
    assert_int_equal(side.got[3].delivery, 2);
    assert_int_equal(rabbit_side_ack(&side, 3, 3), SEMEL_OK);
    assert_int_equal(rabbit_side_ack(&side, 3, 3), SEMEL_FENCED); /* and nothing is sent: the channel lives on */
    rabbit_client_send_many(&client, queue, "n", 1);
    rabbit_side_wait(&side, 7);
    rabbit_side_close(&side);
    assert_int_equal(rabbit_client_length(&client, queue), 1);
}

static void deleted_queue_closes_the_handle_and_nobodys_queue_is_named(void **state)
{
    struct rabbit_side side;

    (void)state;
    make_queue("classic", false);
    rabbit_client_send_many(&client, queue, "m", 1);
    rabbit_side_open(&side, server.port, queue, "");
    rabbit_side_wait(&side, 1);
    rabbit_client_delete(&client, queue);
    rabbit_side_wait_status(&side, SEMEL_CLOSED);
    assert_int_equal(rabbit_side_ack(&side, 0, 1), SEMEL_FENCED);
    assert_int_equal(semel_broker_reopen(side.broker, &side.err), SEMEL_INVALID);
    assert_int_equal(side.err.cls, SEMEL_CLASS_BROKEN);
    assert_non_null(strstr(side.err.text, queue));
    assert_int_equal(rabbit_side_poll(&side, 1, 0), SEMEL_INVALID);
    rabbit_side_close(&side);
}

/* ---- being refused ------------------------------------------------------------------------------------ */

static void assert_refused(const struct semel_amqp_options *options, const char *says)
{
    struct rabbit_side side;

    rabbit_side_open_with(&side, options);
    assert_int_equal(rabbit_side_poll(&side, 1, 0), SEMEL_INVALID);
    assert_int_equal(side.err.cls, SEMEL_CLASS_BROKEN);
    if (strstr(side.err.text, says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", side.err.text, says);
    assert_null(strstr(side.err.text, "secret"));
    rabbit_side_close(&side);
}

static void who_is_refused_is_told_why(void **state)
{
    char vhost[80];
    struct semel_amqp_options options = {.url = url_of(server.port),
                                         .queue = "q",
                                         .user = "guest",
                                         .password = "secret"};

    (void)state;
    assert_refused(&options, "logging in as guest");
    options = (struct semel_amqp_options){.url = url_of(server.port), .queue = "no-such-queue"};
    assert_refused(&options, "no-such-queue");
    snprintf(vhost, sizeof vhost, "%s/nowhere", url_of(server.port));
    options.url = vhost;
    assert_refused(&options, "nowhere");
    make_queue("classic", false);
    options = (struct semel_amqp_options){.url = url_of(server.port),
                                          .queue = queue,
                                          .declare = SEMEL_AMQP_DECLARE_CLASSIC,
                                          .single_active = true};
    assert_refused(&options, "x-single-active-consumer");
}

static void queue_is_made_when_that_is_wanted(void **state)
{
    struct semel_amqp_options options = {.url = url_of(server.port), .queue = "made", .single_active = true};
    struct rabbit_side side;

    (void)state;
    options.declare = SEMEL_AMQP_DECLARE_QUORUM;
    rabbit_side_open_with(&side, &options);
    assert_int_equal(rabbit_side_poll(&side, 1, 0), SEMEL_OK);
    rabbit_client_queue(&client, "made", "quorum", true); /* it would be refused if it were another */
    rabbit_side_close(&side);
}

static void queue_can_be_asked_for(void **state)
{
    struct semel_amqp_options options = {.url = url_of(server.port), .queue = queue};
    struct semel_amqp_answer answer = {0};
    struct semel_error err = {0};
    struct rabbit_side side;

    (void)state;
    make_queue("classic", false);
    rabbit_client_send_many(&client, queue, "m", 3);
    assert_int_equal(semel__amqp_ask(&options, &answer, &err), SEMEL_OK);
    assert_true(answer.exists);
    assert_int_equal(answer.messages, 3);
    assert_int_equal(answer.consumers, 0);
    rabbit_side_open(&side, server.port, queue, "");
    rabbit_side_wait(&side, 3);
    assert_int_equal(semel__amqp_ask(&options, &answer, &err), SEMEL_OK);
    assert_int_equal(answer.consumers, 1);
    rabbit_side_close(&side);
    options.queue = "no-such-queue";
    assert_int_equal(semel__amqp_ask(&options, &answer, &err), SEMEL_OK);
    assert_false(answer.exists);
    options.user = "nobody";
    assert_int_equal(semel__amqp_ask(&options, &answer, &err), SEMEL_INVALID);
    options = (struct semel_amqp_options){.url = "amqp://127.0.0.1:1", .queue = queue};
    assert_int_equal(semel__amqp_ask(&options, &answer, &err), SEMEL_RETRY);
}

/* ---- tls ---------------------------------------------------------------------------------------------- */

static void stranger_is_not_trusted_and_a_trusted_server_is(void **state)
{
    char url[64], name[64];
    struct semel_amqp_options options = {.url = url, .queue = queue, .timeout_ms = 5000};
    struct rabbit_side side;

    (void)state;
    make_queue("classic", false);
    rabbit_client_send_many(&client, queue, "m", 1);
    snprintf(url, sizeof url, "amqps://127.0.0.1:%d", server.tls_port);
    snprintf(name, sizeof name, "amqps://localhost:%d", server.tls_port);
    assert_refused(&options, "certificate"); /* signed by nobody whom the system knows */
    options.tls.ca_file = ca_file;
    options.url = name;
    assert_refused(&options, "certificate"); /* of another name */
    options.url = url;
    options.tls.ca_file = "/nowhere.pem";
    assert_refused(&options, "/nowhere.pem");
    options.tls.ca_file = ca_file;
    rabbit_side_open_with(&side, &options);
    rabbit_side_wait(&side, 1);
    assert_int_equal(rabbit_side_ack(&side, 0, 1), SEMEL_OK);
    rabbit_side_close(&side);
    options = (struct semel_amqp_options){.url = name, .queue = queue, .tls.no_verify = true};
    rabbit_side_open_with(&side, &options);
    assert_int_equal(rabbit_side_poll(&side, 1, 0), SEMEL_OK);
    rabbit_side_close(&side);
}

/* ---- the wire stalls ---------------------------------------------------------------------------------- */

static void silent_server_is_given_up_after_two_heartbeats(void **state) /* P31 */
{
    struct rabbit_side side;

    (void)state;
    make_queue("classic", false);
    rabbit_client_send_many(&client, queue, "m", 2);
    rabbit_side_open(&side, proxy.port, queue, "&heartbeat_s=2&timeout_ms=2000");
    rabbit_side_wait(&side, 2);
    for (int i = 0; i < 50; i++) /* it lives by heartbeats alone for longer than it would without */
        assert_int_equal(rabbit_side_poll(&side, 1, 100), SEMEL_OK);
    pg_proxy_order(&proxy, PG_PROXY_STALL, 0);
    rabbit_side_wait_status(&side, SEMEL_CLOSED);
    assert_int_equal(rabbit_side_ack(&side, 0, 2), SEMEL_FENCED);
    /* Connections are taken by the kernel, and nobody greets. */
    assert_int_equal(semel_broker_reopen(side.broker, &side.err), SEMEL_RETRY);
    pg_proxy_order(&proxy, PG_PROXY_PASS, 0);
    rabbit_side_reopen(&side);
    rabbit_side_wait(&side, 4);
    assert_string_equal(rabbit_side_texts(&side, 2), "m0 m1");
    rabbit_side_close(&side);
}

/* ---- prefetch and later ------------------------------------------------------------------------------- */

static void no_more_than_prefetch_is_with_us(void **state)
{
    struct semel_amqp_view view;
    struct rabbit_side side;

    (void)state;
    make_queue("classic", false);
    rabbit_client_send_many(&client, queue, "m", 10);
    rabbit_side_open(&side, server.port, queue, "&prefetch=3");
    rabbit_side_wait(&side, 3);
    assert_int_equal(rabbit_side_later(&side, 0, 2, 600000), SEMEL_OK); /* held is with us */
    assert_int_equal(rabbit_side_poll(&side, 10, 300), SEMEL_OK);
    assert_int_equal(side.n, 0);
    semel__amqp_view(side.broker, &view);
    assert_true(view.connected && view.in_flight == 3 && view.held == 2);
    assert_int_equal(rabbit_client_length(&client, queue), 7);
    assert_int_equal(rabbit_side_ack(&side, 2, 1), SEMEL_OK);
    rabbit_side_wait(&side, 4);
    assert_int_equal(rabbit_side_poll(&side, 10, 300), SEMEL_OK);
    assert_int_equal(side.n, 0);
    rabbit_side_close(&side);
    for (int i = 0; rabbit_client_length(&client, queue) != 9; i++) { /* what was not acknowledged is back */
        assert_true(i < RABBIT_SIDE_TRIES);
        poll(NULL, 0, RABBIT_SIDE_STEP_MS);
    }
}

/* It stays connected, whatever comes, until there is room again. */
static void poll_that_wants_nothing_leaves_all_that_comes_where_it_is(void **state)
{
    struct rabbit_side side;

    (void)state;
    make_queue("classic", false);
    rabbit_client_send_many(&client, queue, "m", 5);
    rabbit_side_open(&side, server.port, queue, "&heartbeat_s=1");
    rabbit_side_wait(&side, 1);
    for (int i = 0; i < 50; i++) /* the server gives up who is silent for two heartbeats */
        assert_int_equal(rabbit_side_poll(&side, 0, i < 10 ? 0 : RABBIT_SIDE_STEP_MS), SEMEL_OK);
    assert_int_equal(rabbit_side_ack(&side, 0, 1), SEMEL_OK);
    rabbit_side_wait(&side, 5);
    assert_string_equal(rabbit_side_texts(&side, 0), "m0 m1 m2 m3 m4");
    assert_int_equal(rabbit_side_ack(&side, 1, 4), SEMEL_OK);
    rabbit_side_close(&side);
    assert_int_equal(rabbit_client_length(&client, queue), 0);
}

static void given_back_the_next_consumer_goes_on_in_order(void **state)
{
    struct rabbit_side a, b;

    (void)state;
    make_queue("classic", true);
    rabbit_side_open(&a, server.port, queue, "&single_active=true");
    assert_int_equal(rabbit_side_poll(&a, 1, 0), SEMEL_OK);
    rabbit_side_open(&b, server.port, queue, "&single_active=true");
    assert_int_equal(rabbit_side_poll(&b, 1, 0), SEMEL_OK);
    rabbit_client_send_many(&client, queue, "m", 6);
    rabbit_side_wait(&a, 5);
    assert_int_equal(rabbit_side_later(&a, 3, 1, 60000), SEMEL_OK); /* before m1 and m2 have their answers */
    assert_int_equal(rabbit_side_ack(&a, 4, 1), SEMEL_FENCED);
    assert_int_equal(rabbit_side_ack(&a, 0, 2), SEMEL_OK);
    assert_int_equal(rabbit_side_poll(&b, 1, 100), SEMEL_OK);
    assert_int_equal(b.n_got, 0); /* m2 is still with a */
    assert_int_equal(rabbit_side_ack(&a, 2, 1), SEMEL_OK);
    rabbit_side_wait(&b, 3);
    assert_string_equal(rabbit_side_texts(&b, 0), "m3 m4 m5");
    assert_int_equal(b.got[0].delivery, 2);
    assert_int_equal(rabbit_side_poll(&a, 8, 100), SEMEL_OK);
    assert_int_equal(a.n_got, 5);
    assert_int_equal(rabbit_side_ack(&b, 0, 3), SEMEL_OK);
    rabbit_side_close(&b);
    rabbit_side_close(&a);
    assert_int_equal(rabbit_client_length(&client, queue), 0);
}

/* ---- hostile messages --------------------------------------------------------------------------------- */

/* Tables in tables, as deep as a frame is long. */
static void headers_nested_without_end_harm_nobody(void **state)
{
    const size_t depth = 21000, size = 2 + 4 + 6 * depth;
    unsigned char *bytes = semel__calloc(1, size), *p = bytes + 6;
    struct rabbit_side side;

    (void)state;
    make_queue("classic", false);
    bytes[0] = AMQP_BASIC_HEADERS_FLAG >> 8;
    for (size_t i = 0; i <= depth; i++) {
        const size_t rest = 6 * (depth - i);
        unsigned char *length = i == 0 ? bytes + 2 : p + 2;
        if (i > 0) {
            p[0] = 0; /* no name */
            p[1] = 'F';
            p += 6;
        }
        for (int k = 0; k < 4; k++)
            length[k] = (unsigned char)(rest >> (24 - 8 * k));
    }
    rabbit_client_send_raw(&client, queue, (struct semel_str){(const char *)bytes, size}, SEMEL_STR("deep"));
    semel__free(bytes);
    rabbit_client_send_many(&client, queue, "m", 1);
    rabbit_side_open(&side, server.port, queue, "");
    rabbit_side_wait(&side, 2);
    assert_string_equal(rabbit_side_texts(&side, 0), "deep m0");
    assert_int_equal(rabbit_side_ack(&side, 0, 2), SEMEL_OK);
    rabbit_side_close(&side);
}

/* ---- publishing --------------------------------------------------------------------------------------- */

static struct semel_publish item_to(const char *destination, struct semel_str payload)
{
    return (struct semel_publish){.destination = semel__str(destination),
                                  .key = SEMEL_STR("k"),
                                  .id = SEMEL_STR("e"),
                                  .payload = payload};
}

static void each_published_item_has_its_own_status(void **state) /* P32 */
{
    const size_t large = (size_t)3 << 20;
    char *bytes = semel__calloc(1, large);
    struct rabbit_side side;
    struct semel_publish items[8];

    (void)state;
    make_queue("quorum", false);
    rabbit_side_open(&side, server.port, queue, "");
    items[0] = item_to(queue, SEMEL_STR("one"));
    items[1] = item_to("no-such-queue", SEMEL_STR("lost"));
    items[2] = item_to(queue, SEMEL_STR("two"));
    items[3] = item_to("exchange:no-such-exchange", SEMEL_STR("lost"));
    items[4] = item_to("", SEMEL_STR("lost"));
    items[5] = item_to("exchange:amq.fanout", SEMEL_STR("to nobody"));
    items[6] = item_to(queue, (struct semel_str){bytes, large});
    items[7] = item_to(queue, SEMEL_STR("three"));
    for (int round = 0; round < 2; round++) {
        static const semel_status expected[] = {SEMEL_OK,      SEMEL_RETRY, SEMEL_OK, SEMEL_RETRY,
                                                SEMEL_INVALID, SEMEL_RETRY, SEMEL_OK, SEMEL_OK};
        assert_int_equal(semel_broker_publish(side.broker, items, COUNT(items), 60000, &side.err), SEMEL_OK);
        for (size_t i = 0; i < COUNT(items); i++) {
            assert_int_equal(items[i].status, expected[i]);
            assert_int_equal(items[i].down, expected[i] == SEMEL_RETRY); /* nowhere to go: no fault of the item */
            assert_int_equal(items[i].why[0] == '\0', expected[i] == SEMEL_OK);
        }
    }
    rabbit_side_wait(&side, 8);
    assert_string_equal(side.got[0].text, "one");
    assert_string_equal(side.got[7].text, "three");
    rabbit_side_close(&side);
    semel__free(bytes);
}

static void exchange_of_the_settings_gets_everything_by_routing_key(void **state)
{
    struct semel_publish items[3];
    struct rabbit_side reader, sink;
    char url[64];
    const struct semel_amqp_options options = {.url = url, .exchange = "amq.topic"};

    (void)state;
    make_queue("classic", false);
    rabbit_client_bind(&client, queue, "amq.topic", "order.*");
    rabbit_side_open(&reader, server.port, queue, "");
    snprintf(url, sizeof url, "amqp://127.0.0.1:%d", server.port);
    rabbit_side_open_with(&sink, &options);
    items[0] = item_to("order.Placed", SEMEL_STR("one"));
    items[1] = item_to(queue, SEMEL_STR("lost")); /* a routing key, not a queue */
    items[2] = item_to("order.Paid", SEMEL_STR("two"));
    assert_int_equal(semel_broker_publish(sink.broker, items, COUNT(items), 60000, &sink.err), SEMEL_OK);
    assert_int_equal(items[0].status, SEMEL_OK);
    assert_int_equal(items[1].status, SEMEL_RETRY);
    assert_true(items[1].down);
    assert_int_equal(items[2].status, SEMEL_OK);
    rabbit_side_wait(&reader, 2);
    assert_string_equal(reader.got[1].text, "two");
    rabbit_side_close(&sink);
    rabbit_side_close(&reader);
}

/* The first message to an exchange travels alone. It must not wait in our own socket for company that does not come:
 * the kernel gives that up after 200 ms, which makes more than the time of this call. */
static void message_that_travels_alone_leaves_at_once(void **state)
{
    enum { N = 100 };
    static const char *const places[] = {"exchange:amq.fanout", "exchange:amq.direct"};
    struct semel_publish items[N];
    struct rabbit_side side;
    size_t confirmed = 0;

    (void)state;
    make_queue("classic", false);
    rabbit_client_bind(&client, queue, "amq.fanout", "k");
    rabbit_client_bind(&client, queue, "amq.direct", "k");
    rabbit_side_open(&side, server.port, queue, "");
    for (size_t i = 0; i < N; i++)
        items[i] = item_to(places[i % 2], SEMEL_STR("m"));
    assert_int_equal(semel_broker_publish(side.broker, items, N, N * 100, &side.err), SEMEL_OK);
    for (size_t i = 0; i < N; i++)
        confirmed += items[i].status == SEMEL_OK;
    assert_int_equal(confirmed, N);
    rabbit_side_wait(&side, N);
    rabbit_side_close(&side);
}

static void large_message_is_cut_into_frames_as_short_as_the_server_wants_them(void **state)
{
    static const char *const tight[] = {"eval", "application:set_env(rabbit, frame_max, 4096).", NULL};
    static const char *const wide[] = {"eval", "application:set_env(rabbit, frame_max, 131072).", NULL};
    const size_t size = 100000;
    char *bytes = semel__alloc(size);
    struct semel_publish item;
    struct rabbit_side side;

    (void)state;
    make_queue("classic", false);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)('a' + i % 23);
    item = item_to(queue, (struct semel_str){bytes, size});
    assert_true(rabbit_server_ctl(&server, tight));
    rabbit_side_open(&side, server.port, queue, "");
    assert_int_equal(semel_broker_publish(side.broker, &item, 1, 60000, &side.err), SEMEL_OK);
    assert_int_equal(item.status, SEMEL_OK);
    rabbit_side_wait(&side, 1);
    assert_int_equal(side.d[0].payload.n, size);
    assert_memory_equal(side.d[0].payload.p, bytes, size);
    rabbit_side_close(&side);
    assert_true(rabbit_server_ctl(&server, wide));
    semel__free(bytes);
}

static void publishing_to_a_server_that_does_not_answer_claims_nothing(void **state) /* P31, P32 */
{
    struct rabbit_side side;
    struct semel_publish items[2];

    (void)state;
    make_queue("classic", false);
    rabbit_side_open(&side, server.port, queue, "&timeout_ms=2500");
    items[0] = items[1] = item_to(queue, SEMEL_STR("m"));
    assert_int_equal(semel_broker_publish(side.broker, items, 1, 60000, &side.err), SEMEL_OK);
    assert_int_equal(items[0].status, SEMEL_OK);
    server_freeze(&server.process);
    assert_int_equal(semel_broker_publish(side.broker, items, 2, 60000, &side.err), SEMEL_OK);
    assert_int_equal(items[0].status, SEMEL_UNKNOWN);
    assert_int_equal(items[1].status, SEMEL_UNKNOWN);
    assert_int_equal(semel_broker_publish(side.broker, items, 2, 60000, &side.err),
                     SEMEL_RETRY); /* it does not connect */
    assert_int_equal(items[0].status, SEMEL_RETRY);
    server_thaw(&server.process);
    for (int i = 0; items[0].status != SEMEL_OK; i++) {
        assert_true(i < RABBIT_SIDE_TRIES);
        (void)semel_broker_publish(side.broker, items, 1, 60000, &side.err);
    }
    rabbit_side_close(&side);
}

static void publish_ends_when_its_time_is_over(void **state)
{
    const int64_t from_us = semel__steady_us();
    struct rabbit_side side;
    struct semel_publish item;

    (void)state;
    make_queue("classic", false);
    rabbit_side_open(&side, server.port, queue, "&timeout_ms=120000");
    item = item_to(queue, SEMEL_STR("m"));
    assert_int_equal(semel_broker_publish(side.broker, &item, 1, 60000, &side.err), SEMEL_OK);
    server_freeze(&server.process);
    assert_int_equal(semel_broker_publish(side.broker, &item, 1, 500, &side.err), SEMEL_OK);
    assert_int_equal(item.status, SEMEL_UNKNOWN);
    assert_int_equal(semel_broker_publish(side.broker, &item, 1, 500, &side.err),
                     SEMEL_RETRY); /* it does not connect */
    assert_int_equal(item.status, SEMEL_RETRY);
    server_thaw(&server.process);
    assert_true(semel__steady_us() - from_us < 60000000);
    assert_int_equal(semel_broker_publish(side.broker, &item, 1, 60000, &side.err), SEMEL_OK);
    assert_int_equal(item.status, SEMEL_OK);
    rabbit_side_close(&side);
}

/* The alarm stops whoever publishes, and nobody who reads. */
static void server_that_takes_no_messages_does_not_hang_us(void **state)
{
    static const char *const alarm[] = {"set_vm_memory_high_watermark", "absolute", "1MB", NULL},
                             *const calm[] = {"set_vm_memory_high_watermark", "absolute", "1GB", NULL};
    char *bytes = semel__calloc(1, (size_t)8 << 20);
    struct rabbit_side side;
    struct semel_publish items[3];
    size_t confirmed = 0;

    (void)state;
    make_queue("classic", false);
    rabbit_client_send_many(&client, queue, "m", 2);
    rabbit_side_open(&side, server.port, queue, "&timeout_ms=2500");
    rabbit_side_wait(&side, 1);
    assert_true(rabbit_server_ctl(&server, alarm));
    items[0] = item_to(queue, SEMEL_STR("n"));
    items[1] = item_to(queue, (struct semel_str){bytes, (size_t)8 << 20}); /* more than any buffer on the way */
    items[2] = item_to(queue, SEMEL_STR("n"));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(semel_broker_publish(side.broker, items, COUNT(items), 60000, &side.err), SEMEL_OK);
        for (size_t k = 0; k < COUNT(items); k++)
            confirmed += items[k].status == SEMEL_OK;
        assert_true(items[2].status == SEMEL_RETRY || items[2].status == SEMEL_UNKNOWN);
    }
    assert_true(confirmed < 2);
    rabbit_side_wait(&side, 2); /* reading goes on */
    assert_int_equal(rabbit_side_ack(&side, 0, 2), SEMEL_OK);
    assert_true(rabbit_server_ctl(&server, calm));
    for (int i = 0; items[0].status != SEMEL_OK; i++) {
        assert_true(i < RABBIT_SIDE_TRIES);
        (void)semel_broker_publish(side.broker, items, 1, 60000, &side.err);
    }
    rabbit_side_close(&side);
    semel__free(bytes);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(channel_closed_by_the_server_fences_its_tags),
        cmocka_unit_test(deleted_queue_closes_the_handle_and_nobodys_queue_is_named),
        cmocka_unit_test(who_is_refused_is_told_why),
        cmocka_unit_test(queue_is_made_when_that_is_wanted),
        cmocka_unit_test(queue_can_be_asked_for),
        cmocka_unit_test(stranger_is_not_trusted_and_a_trusted_server_is),
        cmocka_unit_test(silent_server_is_given_up_after_two_heartbeats),
        cmocka_unit_test(no_more_than_prefetch_is_with_us),
        cmocka_unit_test(poll_that_wants_nothing_leaves_all_that_comes_where_it_is),
        cmocka_unit_test(given_back_the_next_consumer_goes_on_in_order),
        cmocka_unit_test(headers_nested_without_end_harm_nobody),
        cmocka_unit_test(each_published_item_has_its_own_status),
        cmocka_unit_test(exchange_of_the_settings_gets_everything_by_routing_key),
        cmocka_unit_test(message_that_travels_alone_leaves_at_once),
        cmocka_unit_test(large_message_is_cut_into_frames_as_short_as_the_server_wants_them),
        cmocka_unit_test(publishing_to_a_server_that_does_not_answer_claims_nothing),
        cmocka_unit_test(publish_ends_when_its_time_is_over),
        cmocka_unit_test(server_that_takes_no_messages_does_not_hang_us),
        cmocka_unit_test(death_of_the_server_loses_nothing_and_fences_every_tag),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
