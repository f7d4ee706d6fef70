/* SPDX-License-Identifier: MIT
 *
 * test_http.c: what each answer to a call means, and each way of not getting one.
 */
#define _GNU_SOURCE /* memmem */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

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

static const char *status_answer(int status, const char *more)
{
    static char text[512];
    snprintf(text, sizeof text, "HTTP/1.1 %d Word\r\nContent-Length: 0\r\n%s\r\n", status, more);
    return text;
}

/* ---- statuses ------------------------------------------------------------------------------------ */

/* I14, P47, A10: P81, P92 */
static void each_status_has_its_result(void **state)
{
    static const struct {
        int status;
        enum semel_result result, idempotent;
    } rows[] = {
        {200, SEMEL_DONE, SEMEL_DONE},           {201, SEMEL_DONE, SEMEL_DONE},
        {204, SEMEL_DONE, SEMEL_DONE},           {299, SEMEL_DONE, SEMEL_DONE},
        {408, SEMEL_TRANSIENT, SEMEL_TRANSIENT}, {409, SEMEL_TRANSIENT, SEMEL_TRANSIENT},
        {425, SEMEL_TRANSIENT, SEMEL_TRANSIENT}, {429, SEMEL_TRANSIENT, SEMEL_TRANSIENT},
        {500, SEMEL_MAYBE, SEMEL_TRANSIENT},     {503, SEMEL_MAYBE, SEMEL_TRANSIENT},
        {400, SEMEL_PERMANENT, SEMEL_PERMANENT}, {401, SEMEL_PERMANENT, SEMEL_PERMANENT},
        {404, SEMEL_PERMANENT, SEMEL_PERMANENT}, {410, SEMEL_PERMANENT, SEMEL_PERMANENT},
        {422, SEMEL_PERMANENT, SEMEL_PERMANENT}, {301, SEMEL_PERMANENT, SEMEL_PERMANENT},
        {502, SEMEL_MAYBE, SEMEL_TRANSIENT},     {504, SEMEL_MAYBE, SEMEL_TRANSIENT},
        {501, SEMEL_MAYBE, SEMEL_TRANSIENT},     {520, SEMEL_MAYBE, SEMEL_TRANSIENT},
    };
    (void)state;
    for (int idempotent = 0; idempotent < 2; idempotent++) {
        rig.settings.idempotent = idempotent == 1;
        for (size_t i = 0; i < COUNT(rows); i++) {
            struct semel_call_end *end = rig_answer(&rig, status_answer(rows[i].status, ""));
            char reason[32];
            assert_result(end, idempotent == 1 ? rows[i].idempotent : rows[i].result);
            assert_ptr_equal(end->tag, &rig.msg);
            assert_false(end->refused_key);
            assert_false(semel__str_given(end->outcome));
            snprintf(reason, sizeof reason, "HTTP %d", rows[i].status);
            if (rows[i].result == SEMEL_DONE)
                assert_false(semel__str_given(end->reason));
            else
                assert_memory_equal(end->reason.p, reason, strlen(reason));
        }
        rig_drop(&rig);
    }
    assert_int_equal(rig.up.requests, 2 * COUNT(rows));
}

/* A10 */
static void a_route_may_call_some_5xx_transient_and_no_other_is(void **state)
{
    static const int transient[] = {503, 529};
    static const struct {
        int status;
        const char *more;
        enum semel_result result;
    } rows[] = {
        {503, "", SEMEL_TRANSIENT}, {529, "", SEMEL_TRANSIENT}, {500, "", SEMEL_MAYBE},
        {502, "", SEMEL_MAYBE},     {504, "", SEMEL_MAYBE},     {503, "Semel-Outcome: unknown\r\n", SEMEL_MAYBE},
    };
    (void)state;
    rig.settings.transient = transient;
    rig.settings.n_transient = COUNT(transient);
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_result(rig_answer(&rig, status_answer(rows[i].status, rows[i].more)), rows[i].result);
}

static void redirects_are_not_followed(void **state)
{
    (void)state;
    struct semel_call_end *end = rig_answer(&rig, status_answer(307, "Location: /elsewhere\r\n"));
    assert_result(end, SEMEL_PERMANENT);
    assert_non_null(memmem(end->reason.p, end->reason.n, "redirect", 8));
    assert_int_equal(rig.up.requests, 1);
}

static void the_header_semel_outcome_is_believed_before_the_status(void **state)
{
    static const struct {
        int status;
        const char *word;
        enum semel_result result;
        bool refused_key;
    } rows[] = {
        {200, "rejected", SEMEL_REJECTED, false},
        {200, "Transient", SEMEL_TRANSIENT, false},
        {500, "permanent", SEMEL_PERMANENT, false},
        {200, "unknown", SEMEL_MAYBE, false},
        {400, "rejected  ", SEMEL_REJECTED, false},
        {409, "key-mismatch", SEMEL_PERMANENT, true},
        {200, "no such word", SEMEL_DONE, false},
        {503, "", SEMEL_MAYBE, false},
        {503, "transient", SEMEL_TRANSIENT, false},
        {500, "rejected", SEMEL_REJECTED, false},
        {500, "unknown", SEMEL_MAYBE, false},
        {200, "0123456789012345678901234567890123456789", SEMEL_DONE, false},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char line[96];
        snprintf(line, sizeof line, "semel-outcome: %s\r\n", rows[i].word);
        struct semel_call_end *end = rig_answer(&rig, status_answer(rows[i].status, line));
        assert_result(end, rows[i].result);
        assert_int_equal(end->refused_key, rows[i].refused_key);
    }
}

static void a_problem_about_the_key_is_a_mismatch(void **state)
{
    static const char about[] = "HTTP/1.1 422 X\r\nContent-Type: application/problem+json; charset=utf-8\r\n"
                                "Content-Length: 95\r\n\r\n"
                                "{\"type\":\"https://example.com/Idempotency-Key-Reused\",\"title\":\"used for "
                                "something else\",\"a\":[1]}";
    static const char other[] = "HTTP/1.1 422 X\r\nContent-Type: application/problem+json\r\nContent-Length: 38\r\n\r\n"
                                "{\"type\":\"/cents\",\"title\":\"bad\\u0007 cents\"}";
    (void)state;
    struct semel_call_end *end = rig_answer(&rig, about);
    assert_result(end, SEMEL_PERMANENT);
    assert_true(end->refused_key);
    assert_str(end->reason, "HTTP 422: used for something else");
    end = rig_answer(&rig, other);
    assert_result(end, SEMEL_PERMANENT);
    assert_false(end->refused_key);
}

/* ---- what is kept of an answer ------------------------------------------------------------------- */

static void a_body_of_json_is_the_outcome_and_no_other(void **state)
{
    (void)state;
    struct semel_call_end *end = rig_answer(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\": 1}");
    assert_result(end, SEMEL_DONE);
    assert_str(end->outcome, "{\"a\": 1}");
    end = rig_answer(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<p>fine!\n");
    assert_result(end, SEMEL_DONE);
    assert_false(semel__str_given(end->outcome));
    end = rig_answer(&rig, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n");
    assert_str(end->outcome, "[1,2]");
    end = rig_answer(&rig, "HTTP/1.1 409 X\r\nContent-Length: 2\r\n\r\n{}");
    assert_false(semel__str_given(end->outcome));
}

/* P71 */
static void a_reason_is_short_and_printable_and_never_the_body(void **state)
{
    static char answer[1024], many[400];
    (void)state;
    memset(many, 'x', sizeof many - 1);
    struct semel_call_end *end = rig_answer(
        &rig, "HTTP/1.1 500 X\r\nSemel-Reason: out of \x1b[31mstock\r\nContent-Length: 16\r\n\r\ncard 41111111111");
    assert_result(end, SEMEL_MAYBE);
    assert_str(end->reason, "HTTP 500: out of ?[31mstock");
    snprintf(answer, sizeof answer, "HTTP/1.1 400 X\r\nSemel-Reason: %s\r\nContent-Length: 0\r\n\r\n", many);
    end = rig_answer(&rig, answer);
    assert_true(end->reason.n <= 200);
    end = rig_answer(&rig, "HTTP/1.1 400 card-4111\r\nContent-Length: 10\r\n\r\ncard: 4111");
    assert_str(end->reason, "HTTP 400");
}

static bool script_endless(struct link *link)
{
    static char zeros[65536];
    if (!link_sendz(link, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
        return false;
    while (link_sendz(link, "10000\r\n") && link_send(link, zeros, sizeof zeros) && link_sendz(link, "\r\n"))
        continue;
    return false;
}

static bool script_gigabyte(struct link *link)
{
    static char zeros[65536];
    if (!link_sendz(link, "HTTP/1.1 429 X\r\nContent-Length: 1073741824\r\n\r\n"))
        return false;
    for (int i = 0; i < 16384 && link_send(link, zeros, sizeof zeros); i++)
        continue;
    return false;
}

static void an_endless_answer_is_cut_off_and_its_status_counts(void **state)
{
    (void)state;
    rig.up.script = script_endless;
    struct semel_call_end *end = rig_ask(&rig, false);
    assert_result(end, SEMEL_DONE);
    assert_false(semel__str_given(end->outcome));
    rig.up.script = script_gigabyte;
    assert_result(rig_ask(&rig, false), SEMEL_TRANSIENT);
    assert_int_equal(rig.up.requests, 2);
}

static bool script_heads(struct link *link)
{
    if (!link_sendz(link, "HTTP/1.1 200 OK\r\n"))
        return false;
    while (link_sendz(link, "X-More: and more of it, and then some, and after that some more of the same\r\n"))
        continue;
    return false;
}

static void endless_headers_are_cut_off_and_say_nothing(void **state)
{
    (void)state;
    rig.up.script = script_heads;
    assert_result(rig_ask(&rig, false), SEMEL_MAYBE);
}

static void answers_of_1xx_are_passed_over(void **state)
{
    (void)state;
    struct semel_call_end *end =
        rig_answer(&rig, "HTTP/1.1 103 Early Hints\r\nSemel-Outcome: permanent\r\nSemel-Reason: no\r\n\r\n"
                         "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    assert_result(end, SEMEL_DONE);
    assert_str(end->outcome, "{}");
}

/* ---- no answer ----------------------------------------------------------------------------------- */

/* T11, P47 */
static void a_time_out_after_sending_is_unknown(void **state)
{
    (void)state;
    rig.settings.timeout_us = 300000;
    rig.up.script = script_hold;
    struct semel_call_end *end = rig_ask(&rig, false);
    assert_result(end, SEMEL_MAYBE);
    assert_non_null(memmem(end->reason.p, end->reason.n, "time-out", 8));
    rig_drop(&rig);
    rig.settings.idempotent = true;
    assert_result(rig_ask(&rig, false), SEMEL_TRANSIENT);
    assert_int_equal(rig.up.requests, 2);
}

static bool script_slow(struct link *link)
{
    return link_sendz(link, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\"") && link_wait_release(link);
}

/* P47 */
static void an_answer_that_does_not_come_whole_is_unknown(void **state)
{
    (void)state;
    rig.settings.timeout_us = 300000;
    rig.up.script = script_slow;
    assert_result(rig_ask(&rig, false), SEMEL_MAYBE); /* its end does not come */
    rig_drop(&rig);
    rig.settings.timeout_us = INT64_C(1000) * WAIT_MS;
    upstream_release(&rig.up);
    rig.up.script = script_close;
    assert_result(rig_ask(&rig, false), SEMEL_MAYBE); /* nothing comes */
    rig.up.script = NULL;
    assert_result(rig_answer(&rig, "not HTTP at all\r\n\r\n"), SEMEL_MAYBE);
    rig_drop(&rig);
    assert_int_equal(rig.up.requests, 3);
}

static bool script_half(struct link *link)
{
    link_sendz(link, link->up->answer);
    return false;
}

static void a_cut_answer_is_unknown_whatever_its_status(void **state)
{
    static const char *const halves[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\"",
        "HTTP/1.1 404 OK\r\nContent-Length: 10\r\n\r\n{\"a\"",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "HTTP/1.1 2",
    };
    (void)state;
    rig.up.script = script_half;
    for (size_t i = 0; i < COUNT(halves); i++)
        assert_result(rig_answer(&rig, halves[i]), SEMEL_MAYBE);
    assert_int_equal(rig.up.requests, COUNT(halves));
}

static void a_refused_connection_and_a_missing_name_are_the_worlds_fault(void **state)
{
    static const char *const urls[] = {"http://127.0.0.1:1/x", "http://no-such-host.invalid/x"};
    (void)state;
    for (size_t i = 0; i < COUNT(urls); i++) {
        rig.settings.url = urls[i];
        rig.settings.timeout_us = 5000000;
        assert_not_sent(rig_ask(&rig, false), SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
        rig_drop(&rig);
    }
}

/* ---- reconcile ----------------------------------------------------------------------------------- */

static struct semel_call_end *ask_state(int status, const char *body)
{
    static char text[512];
    snprintf(text, sizeof text, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n\r\n%s", status, strlen(body), body);
    rig.up.answer = text;
    return rig_ask(&rig, true);
}

/* E2 */
static void a_reconcile_asks_by_the_key_and_tells_what_has_become(void **state)
{
    static const struct {
        int status;
        const char *body;
        enum semel_result result;
    } rows[] = {
        {200, "{\"state\":\"done\"}", SEMEL_DONE},
        {200, "{\"state\":\"not_done\"}", SEMEL_TRANSIENT},
        {200, "{\"state\":\"rejected\"}", SEMEL_REJECTED},
        {200, "{\"state\":\"unknown\"}", SEMEL_MAYBE},
        {200, "{\"state\":\"perhaps\"}", SEMEL_MAYBE},
        {200, "{\"state\":1}", SEMEL_MAYBE},
        {200, "[]", SEMEL_MAYBE},
        {200, "", SEMEL_MAYBE},
        {204, "", SEMEL_MAYBE},
        {404, "", SEMEL_TRANSIENT},
        {410, "{\"state\":\"done\"}", SEMEL_MAYBE},
        {302, "", SEMEL_MAYBE},
        {500, "{\"state\":\"not_done\"}", SEMEL_MAYBE},
    };
    (void)state;
    rig.settings.idempotent = true; /* of the effect; what is asked is not changed by it */
    rig.msg.id = SEMEL_STR("a/b c?\xc3\xa9\r\n");
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct semel_call_end *end = ask_state(rows[i].status, rows[i].body);
        assert_true(end->ask);
        assert_result(end, rows[i].result);
        assert_false(semel__str_given(end->outcome));
    }
    char key[SEMEL_STEP_KEY_TEXT], line[256];
    semel__step_key(SEMEL_STR("billing"), rig.msg.source, rig.msg.id, SEMEL_STR("effect"), key);
    snprintf(line, sizeof line, "GET /ask/%s?id=a%%2Fb%%20c%%3F%%C3%%A9%%0D%%0A HTTP/1.1\r\n", key);
    assert_memory_equal(rig.up.head, line, strlen(line));
    snprintf(line, sizeof line, "Idempotency-Key: %s", key);
    assert_true(rig_saw(&rig, line));
}

/* B1 P84 */
static void an_id_that_makes_another_path_is_not_asked_for(void **state)
{
    static const struct {
        const char *path, *id, *line; /* line NULL: not asked */
    } rows[] = {
        {"/ask/{id}", "..", NULL},
        {"/ask/{id}", ".", NULL},
        {"/ask/{id}/state", "..", NULL},
        {"/ask/.{id}", ".", NULL},
        {"/ask/%2E{id}", ".", NULL},
        {"/ask/{id}{id}", ".", NULL},
        {"/ask/{id}", "%2e%2E", NULL},
        {"/ask/{id}", "%252e.", NULL},
        {"/ask/{id}", "a/b", NULL},
        {"/ask/{id}", "a\\b", NULL},
        {"/ask/{id}", "../../other", NULL},
        {"/ask/{id}", "a%2fb", NULL},
        {"/ask/{id}", "a%255Cb", NULL},
        {"/ask/x-{id}", "a/b", NULL},
        {"/ask/{id}?at=1", "..", NULL},
        {"/ask/{id}", "...", "GET /ask/... HTTP/1.1\r\n"},
        {"/ask/{id}", "%", "GET /ask/%25 HTTP/1.1\r\n"},
        {"/ask/{id}", "%zz", "GET /ask/%25zz HTTP/1.1\r\n"},
        {"/ask/x{id}", "..", "GET /ask/x.. HTTP/1.1\r\n"},
        {"/ask?id={id}", "../a", "GET /ask?id=..%2Fa HTTP/1.1\r\n"},
        {"/a%2Fb/../{id}", "m", "GET /a%2Fb/../m HTTP/1.1\r\n"}, /* as the route says; curl folds nothing */
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        unsigned before = rig.up.requests;
        snprintf(rig.reconcile, sizeof rig.reconcile, "http://127.0.0.1:%u%s", rig.up.port, rows[i].path);
        rig.msg.id = semel__str(rows[i].id);
        struct semel_call_end *end = ask_state(404, "");
        assert_int_equal(end->not_asked, rows[i].line == NULL);
        assert_result(end, rows[i].line == NULL ? SEMEL_MAYBE : SEMEL_TRANSIENT);
        assert_int_equal(rig.up.requests - before, rows[i].line != NULL);
        if (rows[i].line == NULL)
            assert_non_null(memmem(end->reason.p, end->reason.n, "not asked: the id ", 18));
        else
            assert_memory_equal(rig.up.head, rows[i].line, strlen(rows[i].line));
        rig_drop(&rig);
    }
}

static void a_reconcile_may_tell_the_outcome(void **state)
{
    (void)state;
    struct semel_call_end *end = ask_state(200, "{\"state\":\"done\",\"outcome\":{\"b\":[1,\"x\"],\"a\":null}}");
    assert_result(end, SEMEL_DONE);
    assert_str(end->outcome, "{\"a\":null,\"b\":[1,\"x\"]}");
    end = ask_state(200, "{\"state\":\"done\",\"outcome\":null}");
    assert_false(semel__str_given(end->outcome));
}

static void a_reconcile_that_reaches_nobody_says_nothing(void **state)
{
    (void)state;
    rig.settings.reconcile_url = "http://127.0.0.1:1/{key}";
    assert_not_sent(rig_ask(&rig, true), SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
    rig_drop(&rig);
    rig.settings.reconcile_url = rig.reconcile;
    rig.up.script = script_close;
    assert_result(rig_ask(&rig, true), SEMEL_MAYBE);
}

#define ON_RIG(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_RIG(each_status_has_its_result),
        ON_RIG(a_route_may_call_some_5xx_transient_and_no_other_is),
        ON_RIG(redirects_are_not_followed),
        ON_RIG(the_header_semel_outcome_is_believed_before_the_status),
        ON_RIG(a_problem_about_the_key_is_a_mismatch),
        ON_RIG(a_body_of_json_is_the_outcome_and_no_other),
        ON_RIG(a_reason_is_short_and_printable_and_never_the_body),
        ON_RIG(an_endless_answer_is_cut_off_and_its_status_counts),
        ON_RIG(endless_headers_are_cut_off_and_say_nothing),
        ON_RIG(answers_of_1xx_are_passed_over),
        ON_RIG(a_time_out_after_sending_is_unknown),
        ON_RIG(an_answer_that_does_not_come_whole_is_unknown),
        ON_RIG(a_cut_answer_is_unknown_whatever_its_status),
        ON_RIG(a_refused_connection_and_a_missing_name_are_the_worlds_fault),
        ON_RIG(a_reconcile_asks_by_the_key_and_tells_what_has_become),
        ON_RIG(an_id_that_makes_another_path_is_not_asked_for),
        ON_RIG(a_reconcile_may_tell_the_outcome),
        ON_RIG(a_reconcile_that_reaches_nobody_says_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
