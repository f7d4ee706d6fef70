/* SPDX-License-Identifier: MIT
 *
 * test_http_wire.c: what is sent, that it is sent once, and many calls at a time.
 */
#define _GNU_SOURCE /* strcasestr */
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/trace.h"
#include "handler/upstream.h"

static struct rig rig;

static int set_up(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof rig);
    rig_start(&rig);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_stop(&rig);
    return 0;
}

static bool keep_alive(struct link *link)
{
    return link_sendz(link, OK_EMPTY);
}

/* ---- the request --------------------------------------------------------------------------------- */

/* E1 */
static void a_call_posts_the_payload_under_its_key(void **state)
{
    char key[SEMEL_STEP_KEY_TEXT], line[128];
    (void)state;
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    semel__step_key(SEMEL_STR("billing"), rig.msg.source, rig.msg.id, SEMEL_STR("effect"), key);
    snprintf(line, sizeof line, "Idempotency-Key: %s", key);
    assert_memory_equal(rig.up.head, "POST /effect HTTP/1.1\r\n", 23);
    assert_true(rig_saw(&rig, line));
    assert_true(rig_saw(&rig, "Semel-Consumer: billing"));
    assert_true(rig_saw(&rig, "Semel-Message-Id: m-1"));
    assert_true(rig_saw(&rig, "Semel-Attempt: 1"));
    assert_true(rig_saw(&rig, "Content-Type: application/json"));
    assert_true(rig_saw(&rig, "Content-Length: 11"));
    assert_null(strcasestr(rig.up.head, "\r\nExpect:"));
    assert_null(strcasestr(rig.up.head, "\r\nCookie:"));
    assert_string_equal(rig.up.body, "{\"cents\":1}");
}

static void a_large_payload_arrives_whole_and_an_empty_one_as_empty(void **state)
{
    static char large[3 << 20];
    (void)state;
    memset(large, 'a', sizeof large);
    rig.msg.payload = (struct semel_str){large, sizeof large};
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_int_equal(rig.up.n_body, sizeof large);
    assert_true(rig_saw(&rig, "Content-Type: application/octet-stream"));
    rig.msg.payload = (struct semel_str){NULL, 0};
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_true(rig_saw(&rig, "Content-Length: 0"));
    assert_int_equal(rig.up.n_body, 0);
}

static void a_trace_is_continued_or_begun(void **state)
{
    static const char parent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    struct semel_trace trace;
    (void)state;
    for (int given = 0; given < 2; given++) {
        rig.msg.traceparent = given == 1 ? semel__str(parent) : (struct semel_str){0};
        assert_result(rig_ask(&rig, false), SEMEL_DONE);
        const char *at = strstr(rig.up.head, "\r\ntraceparent: ");
        assert_non_null(at);
        assert_true(semel__trace_parse((struct semel_str){at + 15, SEMEL_TRACE_TEXT - 1}, &trace));
        assert_int_equal(memcmp(at + 15, parent, 35) == 0, given == 1);
        assert_null(strstr(rig.up.head, "b7ad6b7169203331"));
    }
}

static void attributes_of_cloudevents_become_headers(void **state)
{
    (void)state;
    rig.msg.headers = SEMEL_STR("{\"ce_id\":\"7\",\"ce_subject\":\"a b\\\"%\\u00e9\",\"ce_specversion\":\"1.0\","
                                "\"ce_datacontenttype\":\"text/plain\",\"content-type\":\"text/html\","
                                "\"ce-source\":\"/x%20y\",\"ce_twice\":[\"1\",\"2\"],\"ce_BAD\":\"1\",\"other\":\"1\","
                                "\"ce_hex\":{\"hex\":\"ff\"}}");
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_true(rig_saw(&rig, "ce-id: 7"));
    assert_true(rig_saw(&rig, "ce-subject: a%20b%22%25%C3%A9"));
    assert_true(rig_saw(&rig, "ce-specversion: 1.0"));
    assert_true(rig_saw(&rig, "ce-source: /x%20y"));
    assert_true(rig_saw(&rig, "ce-twice: 1"));
    assert_true(rig_saw(&rig, "Content-Type: text/plain"));
    assert_null(strcasestr(rig.up.head, "datacontenttype"));
    assert_null(strcasestr(rig.up.head, "text/html"));
    assert_null(strcasestr(rig.up.head, "ce-bad"));
    assert_null(strcasestr(rig.up.head, "other"));
    assert_null(strcasestr(rig.up.head, "ce-hex"));
}

static void no_message_can_add_a_header(void **state)
{
    (void)state;
    rig.msg.id = SEMEL_STR("1\r\nEvil: id");
    rig.msg.headers = SEMEL_STR(
        "{\"ce_subject\":\"x\\r\\nEvil: 1\",\"content-type\":\"a/b\\r\\nEvil: 2\",\"ce-source\":\"\\nEvil: 3\","
        "\"ce_a\\r\\nEvil\":\"4\",\"tracestate\":\"a=b\\nEvil: 5\"}");
    rig.msg.traceparent = SEMEL_STR("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nEvil: 6");
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_null(strcasestr(rig.up.head, "\nEvil"));
    assert_true(rig_saw(&rig, "ce-subject: x%0D%0AEvil:%201"));
    assert_true(rig_saw(&rig, "Semel-Message-Id: 1%0D%0AEvil:%20id"));
    assert_true(rig_saw(&rig, "Content-Type: application/json"));
    assert_int_equal(rig.up.requests, 1);
}

static void fixed_headers_are_sent_and_stand_above_the_messages(void **state)
{
    const struct semel_pair pairs[] = {
        {SEMEL_STR("Authorization"), SEMEL_STR("Bearer s3cret")},
        {SEMEL_STR("content-type"), SEMEL_STR("application/x-fixed")},
        {SEMEL_STR("ce-source"), SEMEL_STR("/fixed")},
        {SEMEL_STR("X-Empty"), SEMEL_STR("")},
    };
    (void)state;
    rig.settings.headers = pairs;
    rig.settings.n_headers = COUNT(pairs);
    rig.msg.headers = SEMEL_STR("{\"ce_source\":\"/other\",\"content-type\":\"text/html\"}");
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_true(rig_saw(&rig, "Authorization: Bearer s3cret"));
    assert_true(rig_saw(&rig, "content-type: application/x-fixed"));
    assert_true(rig_saw(&rig, "ce-source: /fixed"));
    assert_true(rig_saw(&rig, "X-Empty:"));
    assert_null(strstr(rig.up.head, "/other"));
    assert_null(strstr(rig.up.head, "text/html"));
}

static void bad_settings_are_refused_without_telling_secrets(void **state)
{
    static const struct {
        const char *url;
        struct semel_pair pair;
    } rows[] = {
        {"ftp://example.com/s3cret", {SEMEL_STR("X-Fine"), SEMEL_STR("1")}},
        {"no URL, but a s3cret", {SEMEL_STR("X-Fine"), SEMEL_STR("1")}},
        {"http://example.com/", {SEMEL_STR("Authorization"), SEMEL_STR("s3cret\r\nEvil: 1")}},
        {"http://example.com/", {SEMEL_STR("Idempotency-Key"), SEMEL_STR("s3cret")}},
        {"http://example.com/", {SEMEL_STR("semel-attempt"), SEMEL_STR("s3cret")}},
        {"http://example.com/", {SEMEL_STR("bad name"), SEMEL_STR("s3cret")}},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct semel_caller *caller = NULL;
        struct semel_error err;
        rig.settings.url = rows[i].url;
        rig.settings.headers = &rows[i].pair;
        rig.settings.n_headers = 1;
        assert_int_equal(semel__http_caller_new(&caller, &rig.settings, &err), SEMEL_INVALID);
        assert_int_equal(err.cls, SEMEL_CLASS_BROKEN);
        assert_null(caller);
        assert_null(strstr(err.text, "s3cret"));
    }
}

/* B1: the id would choose the server. */
static void a_reconcile_has_no_part_of_a_message_in_its_host(void **state)
{
    static const char *const urls[] = {"http://{id}/", "http://{key}.example.com/x", "https://example.com:{id}/x",
                                       "http://{id}@example.com/x"};
    (void)state;
    for (size_t i = 0; i < COUNT(urls); i++) {
        struct semel_caller *caller = NULL;
        struct semel_error err;
        rig.settings.reconcile_url = urls[i];
        assert_int_equal(semel__http_caller_new(&caller, &rig.settings, &err), SEMEL_INVALID);
        assert_non_null(strstr(err.text, "in its host"));
    }
}

static void an_error_does_not_tell_secrets(void **state)
{
    const struct semel_pair pair = {SEMEL_STR("Authorization"), SEMEL_STR("Bearer s3cret")};
    (void)state;
    rig.settings.url = "http://user:s3cret@127.0.0.1:1/s3cret?token=s3cret";
    rig.settings.headers = &pair;
    rig.settings.n_headers = 1;
    struct semel_call_end *end = rig_ask(&rig, false);
    assert_not_sent(end, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
    assert_null(strstr(end->err.text, "s3cret"));
}

static void proxies_of_the_environment_are_not_used(void **state)
{
    (void)state;
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    unsetenv("http_proxy");
    unsetenv("ALL_PROXY");
}

/* ---- once ---------------------------------------------------------------------------------------- */

static bool first_only(struct link *link)
{
    return link->nth == 1 && keep_alive(link);
}

static bool first_early(struct link *link)
{
    return link->nth == 1;
}

/* The first call leaves a connection behind; the second is read from it, and the connection closed. */
static void assert_second_is_sent_once(void)
{
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_result(rig_ask(&rig, false), SEMEL_MAYBE);
    rig_drop(&rig);
    assert_int_equal(rig.up.heads, 2);
    assert_int_equal(rig.up.most, 2); /* it was one connection, or nothing was tried here */
}

/* P54 */
static void curl_does_not_send_a_post_again_when_a_reused_connection_dies(void **state)
{
    (void)state;
    rig.up.script = first_only;
    assert_second_is_sent_once();
}

/* P54, P47 */
static void a_body_that_breaks_off_on_a_reused_connection_is_not_sent_again(void **state)
{
    static char large[8 << 20];
    (void)state;
    rig.up.early = first_early;
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    rig.msg.payload = (struct semel_str){large, sizeof large};
    assert_result(rig_ask(&rig, false), SEMEL_MAYBE);
    rig_drop(&rig);
    assert_int_equal(rig.up.heads, 2);
    assert_int_equal(rig.up.most, 2);
}

/* P54 */
static void an_empty_body_gets_a_connection_of_its_own(void **state)
{
    (void)state;
    rig.msg.payload = SEMEL_STR("");
    rig.up.script = first_only;
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    assert_result(rig_ask(&rig, false), SEMEL_DONE);
    rig_drop(&rig);
    assert_int_equal(rig.up.most, 1);
    assert_int_equal(rig.up.heads, 2);
}

/* A10 P94 */
static void a_connection_is_used_again_only_while_its_server_will_keep_it(void **state)
{
    static const struct {
        const char *hint;
        int idle_ms;
        bool again;
    } rows[] = {
        {"", 200, true},
        {"", 1100, false},
        {"Keep-Alive: max=5\r\n", 1100, false},
        {"Keep-Alive: timeout=4, max=100\r\n", 1300, true},
        {"keep-alive: TIMEOUT=2\r\n", 1100, false},
        {"Keep-Alive: timeout=1\r\n", 600, false},
        {"Keep-Alive: timeout=1\r\n", 200, true},
        {"Keep-Alive: timeout=0\r\n", 10, false},
        {"Keep-Alive: timeout=99999999999999999999\r\n", 1300, true},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        static char answer[160]; /* the server may look at it after it was sent */
        snprintf(answer, sizeof answer, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n%s\r\n", rows[i].hint);
        rig.up.most = 0;
        assert_result(rig_answer(&rig, answer), SEMEL_DONE);
        poll(NULL, 0, rows[i].idle_ms);
        assert_result(rig_answer(&rig, answer), SEMEL_DONE);
        rig_drop(&rig);
        assert_int_equal(rig.up.most, rows[i].again ? 2 : 1);
    }
    assert_int_equal(rig.up.requests, 2 * COUNT(rows)); /* what found its connection too old was sent once, too */
}

/* A10 P94: what was sent into a connection that is being closed would be unknown. */
static void a_server_that_closes_idle_connections_after_two_seconds_loses_no_call(void **state)
{
    enum { CALLS = 8 };
    static const int idle_ms[] = {1985, 1995, 2000, 2005};
    (void)state;
    rig.settings.concurrency = CALLS;
    rig.up.idle_ms = 2000;
    for (size_t i = 0; i <= COUNT(idle_ms); i++) {
        for (size_t k = 0; k < CALLS; k++)
            rig_call(&rig, &rig.msg, false);
        for (size_t k = 0; k < CALLS; k++)
            assert_result(rig_wait(&rig), SEMEL_DONE);
        if (i < COUNT(idle_ms))
            poll(NULL, 0, idle_ms[i]);
    }
    assert_int_equal(rig.up.requests, CALLS * (COUNT(idle_ms) + 1));
}

/* A process whose SIGPIPE is not ignored is not killed by it. */
static void a_server_that_does_not_read_is_unknown_and_kills_nobody(void **state)
{
    static char large[8 << 20];
    (void)state;
    rig.up.early = script_close;
    rig.msg.payload = (struct semel_str){large, sizeof large};
    for (int i = 0; i < 5; i++)
        assert_result(rig_ask(&rig, false), SEMEL_MAYBE);
    assert_int_equal(rig.up.heads, 5);
}

/* ---- many, woken, given up ----------------------------------------------------------------------- */

static void fifty_calls_run_at_a_time(void **state)
{
    static struct semel__msg msgs[50];
    static char ids[50][8];
    bool ended[50] = {false};
    struct semel_call_end ends[7];
    (void)state;
    rig.settings.concurrency = COUNT(msgs);
    rig.up.script = script_hold;
    for (size_t i = 0; i < COUNT(msgs); i++) {
        snprintf(ids[i], sizeof ids[i], "m-%zu", i);
        msgs[i] = rig.msg;
        msgs[i].id = semel__str(ids[i]);
        rig_call(&rig, &msgs[i], false);
    }
    for (unsigned came = 0; came < COUNT(msgs);) {
        assert_int_equal(semel__caller_wait(rig.caller, 10, -1, ends, COUNT(ends)), 0);
        pthread_mutex_lock(&rig.up.lock);
        came = rig.up.requests;
        pthread_mutex_unlock(&rig.up.lock);
    }
    upstream_release(&rig.up);
    for (size_t left = COUNT(msgs); left > 0;) {
        size_t n = semel__caller_wait(rig.caller, WAIT_MS, -1, ends, COUNT(ends));
        assert_true(n > 0 && n <= left);
        left -= n;
        for (size_t i = 0; i < n; i++) {
            size_t at = (size_t)((struct semel__msg *)ends[i].tag - msgs);
            assert_result(&ends[i], SEMEL_DONE);
            assert_false(ended[at]);
            ended[at] = true;
        }
    }
    assert_int_equal(rig.up.requests, COUNT(msgs));
}

static void a_wait_ends_when_it_is_woken_or_its_time_is_over(void **state)
{
    struct semel_call_end ends[2];
    uint64_t one = 1;
    int wake = eventfd(0, EFD_CLOEXEC);
    (void)state;
    rig.up.script = script_hold;
    rig_call(&rig, &rig.msg, false);
    assert_int_equal(semel__caller_wait(rig.caller, 20, wake, ends, COUNT(ends)), 0);
    assert_int_equal(semel__caller_wait(rig.caller, 0, -1, ends, COUNT(ends)), 0);
    assert_int_equal(write(wake, &one, sizeof one), sizeof one);
    assert_int_equal(semel__caller_wait(rig.caller, -1, wake, ends, COUNT(ends)), 0); /* or for ever */
    upstream_wait_requests(&rig.up, 1);
    upstream_release(&rig.up);
    assert_result(rig_wait(&rig), SEMEL_DONE);
    close(wake);
}

static void a_call_that_is_given_up_ends_by_what_was_sent(void **state)
{
    struct semel_call_end ends[4];
    (void)state;
    rig.up.script = script_hold;
    rig_call(&rig, &rig.msg, false);
    for (unsigned came = 0; came == 0;) {
        assert_int_equal(semel__caller_wait(rig.caller, 10, -1, ends, COUNT(ends)), 0);
        pthread_mutex_lock(&rig.up.lock);
        came = rig.up.requests;
        pthread_mutex_unlock(&rig.up.lock);
    }
    struct semel__msg later = rig.msg;
    rig_call(&rig, &later, false);
    semel__caller_cancel(rig.caller);
    assert_int_equal(semel__caller_wait(rig.caller, WAIT_MS, -1, ends, COUNT(ends)), 2);
    for (size_t i = 0; i < 2; i++)
        if (ends[i].tag == &rig.msg)
            assert_result(&ends[i], SEMEL_MAYBE);
        else
            assert_not_sent(&ends[i], SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
    semel__caller_cancel(rig.caller);
    assert_int_equal(semel__caller_wait(rig.caller, 0, -1, ends, COUNT(ends)), 0);
    assert_int_equal(rig.up.heads, 1);
}

static void strings_of_an_end_live_until_the_next_wait(void **state)
{
    struct semel_call_end first;
    (void)state;
    rig.settings.concurrency = 1;
    for (int i = 0; i < 20; i++) {
        first = *rig_answer(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]");
        rig_call(&rig, &rig.msg, false); /* started before the next wait */
        assert_str(first.outcome, "[1]");
        assert_result(rig_wait(&rig), SEMEL_DONE);
    }
}

/* ---- memory -------------------------------------------------------------------------------------- */

static void each_failed_allocation_is_an_end_and_no_crash(void **state)
{
    unsigned ran = 0;
    (void)state;
    rig.up.answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]";
    rig.msg.headers = SEMEL_STR("{\"ce_id\":\"7\"}");
    for (unsigned at = 1;; at++) {
        struct fail_nth fail;
        struct semel_error err;
        bool sent = false;
        fail_nth_begin(&fail, at);
        semel_status status = semel__http_caller_new(&rig.caller, &rig.settings, &err);
        if (status == SEMEL_OK) {
            rig_call(&rig, &rig.msg, false);
            struct semel_call_end *end = rig_wait(&rig);
            sent = end->status == SEMEL_OK;
            ran += sent;
            if (sent)
                assert_result(end, SEMEL_DONE);
            else
                assert_not_sent(end, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
        } else {
            assert_int_equal(status, SEMEL_RETRY);
            rig.caller = NULL;
        }
        bool reached = fail_nth_end(&fail);
        rig_drop(&rig);
        if (!reached)
            break;
        assert_int_equal(rig.up.requests, ran);
    }
    assert_true(ran > 1);
}

#define ON_RIG(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_RIG(a_call_posts_the_payload_under_its_key),
        ON_RIG(a_large_payload_arrives_whole_and_an_empty_one_as_empty),
        ON_RIG(a_trace_is_continued_or_begun),
        ON_RIG(attributes_of_cloudevents_become_headers),
        ON_RIG(no_message_can_add_a_header),
        ON_RIG(fixed_headers_are_sent_and_stand_above_the_messages),
        ON_RIG(bad_settings_are_refused_without_telling_secrets),
        ON_RIG(a_reconcile_has_no_part_of_a_message_in_its_host),
        ON_RIG(an_error_does_not_tell_secrets),
        ON_RIG(proxies_of_the_environment_are_not_used),
        ON_RIG(curl_does_not_send_a_post_again_when_a_reused_connection_dies),
        ON_RIG(a_body_that_breaks_off_on_a_reused_connection_is_not_sent_again),
        ON_RIG(an_empty_body_gets_a_connection_of_its_own),
        ON_RIG(a_connection_is_used_again_only_while_its_server_will_keep_it),
        ON_RIG(a_server_that_closes_idle_connections_after_two_seconds_loses_no_call),
        ON_RIG(a_server_that_does_not_read_is_unknown_and_kills_nobody),
        ON_RIG(fifty_calls_run_at_a_time),
        ON_RIG(a_wait_ends_when_it_is_woken_or_its_time_is_over),
        ON_RIG(a_call_that_is_given_up_ends_by_what_was_sent),
        ON_RIG(strings_of_an_end_live_until_the_next_wait),
        ON_RIG(each_failed_allocation_is_an_end_and_no_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
