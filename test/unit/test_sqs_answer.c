/* SPDX-License-Identifier: MIT
 *
 * test_sqs_answer.c: what SQS, or somebody in its place, answers: read as it is meant, or refused.
 */
#include "base/error.h"
#include "broker/sqs_private.h"
#include "unit/unit.h"

#define MESSAGE "{\"MessageId\":\"m-1\",\"ReceiptHandle\":\"r-1\",\"Body\":\"hello\""

static struct sqs_batch *read_batch(const char *text)
{
    struct sqs_batch *batch = NULL;

    assert_int_equal(semel__sqs_read_messages(semel__str(text), &batch, NULL), SEMEL_OK);
    return batch;
}

static void message_is_read_with_its_headers_and_properties(void **state)
{
    struct sqs_batch *batch = read_batch(
        "{\"Messages\":[" MESSAGE ",\"MD5OfBody\":\"5d41402abc4b2a76b9719d911017c592\",\"Attributes\":{"
        "\"ApproximateReceiveCount\":\"3\",\"SentTimestamp\":\"1794806216613\",\"MessageGroupId\":\"g\","
        "\"MessageDeduplicationId\":\"d\",\"SequenceNumber\":\"18849496460467696128\"},\"MessageAttributes\":{"
        "\"id\":{\"DataType\":\"String\",\"StringValue\":\"x\"},\"raw\":{\"DataType\":\"Binary\",\"BinaryValue\":"
        "\"AAE=\"},\"n\":{\"DataType\":\"Number.int\",\"StringValue\":\"17\"}}}],\"new\":[1,{}]}");
    const struct sqs_message *m = &batch->messages[0];

    (void)state;
    assert_int_equal(batch->n, 1);
    assert_str(m->id, "m-1");
    assert_str(m->handle, "r-1");
    assert_str(m->body, "hello");
    assert_false(m->damaged);
    assert_int_equal(m->delivery, 3);
    assert_str(m->group, "g");
    assert_str(m->deduplication, "d");
    assert_str(m->sequence, "18849496460467696128");
    assert_str(m->sent, "1794806216613");
    assert_int_equal(m->n_headers, 2); /* what is binary is left out */
    assert_str(m->headers[0].name, "id");
    assert_str(m->headers[1].name, "n");
    assert_str(m->headers[1].value, "17");
    semel__sqs_batch_free(batch);
}

static void no_messages_is_said_in_several_ways(void **state)
{
    static const char *const texts[] = {"{}", "{\"Messages\":[]}", "{\"Messages\":null}"};

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct sqs_batch *batch = read_batch(texts[i]);
        assert_int_equal(batch->n, 0);
        semel__sqs_batch_free(batch);
    }
}

static void body_that_is_not_what_its_md5_says_is_marked(void **state)
{
    struct sqs_batch *batch = read_batch("{\"Messages\":[" MESSAGE
                                         ",\"MD5OfBody\":\"5d41402abc4b2a76b9719d911017c593\"}]}");

    (void)state;
    assert_true(batch->messages[0].damaged);
    semel__sqs_batch_free(batch);
}

static void what_is_odd_but_not_needed_is_passed_over(void **state)
{
    struct sqs_batch *batch = read_batch(
        "{\"Messages\":[" MESSAGE ",\"Attributes\":{\"ApproximateReceiveCount\":\"-1\",\"MessageGroupId\":7,"
        "\"SentTimestamp\":[]},\"MessageAttributes\":{\"a\":7,\"b\":{},\"c\":{\"DataType\":\"String\"},"
        "\"d\":{\"DataType\":7,\"StringValue\":\"x\"},\"e\":{\"DataType\":\"Str\",\"StringValue\":\"x\"}}}]}");

    (void)state;
    assert_int_equal(batch->messages[0].delivery, 0);
    assert_int_equal(batch->messages[0].n_headers, 0);
    assert_false(semel__str_given(batch->messages[0].group));
    semel__sqs_batch_free(batch);
}

static void hostile_answers_are_refused_and_not_quoted(void **state)
{
    static const char *const texts[] = {
        "",
        "\x16\x03\x01",
        "<html>busy</html>",
        "{",
        "[]",
        "7",
        "{\"Messages\":{}}",
        "{\"Messages\":\"many\"}",
        "{\"Messages\":[7]}",
        "{\"Messages\":[{}]}",
        "{\"Messages\":[{\"MessageId\":\"m\",\"Body\":\"b\"}]}",
        "{\"Messages\":[{\"MessageId\":\"m\",\"ReceiptHandle\":\"r\"}]}",
        "{\"Messages\":[{\"MessageId\":7,\"ReceiptHandle\":\"r\",\"Body\":\"b\"}]}",
        "{\"Messages\":[{\"MessageId\":\"\",\"ReceiptHandle\":\"r\",\"Body\":\"b\"}]}",
        "{\"Messages\":[{\"MessageId\":\"m\",\"ReceiptHandle\":\"r\",\"Body\":null}]}",
        "{\"Messages\":[],\"Messages\":[]}",
        "{\"Messages\":[" MESSAGE "}]} and more",
    };
    struct semel_buf buf;

    (void)state;
    semel__buf_init(&buf, 1 << 20);
    semel__buf_addz(&buf, "{\"Messages\":[" MESSAGE "}");
    for (int i = 0; i < 10; i++)
        semel__buf_addz(&buf, "," MESSAGE "}");
    semel__buf_add(&buf, "]}", 3);
    for (size_t i = 0; i <= COUNT(texts); i++) {
        struct sqs_batch *batch = NULL;
        struct semel_error err;
        const char *text = i < COUNT(texts) ? texts[i] : buf.p;
        assert_int_equal(semel__sqs_read_messages(semel__str(text), &batch, &err), SEMEL_INVALID);
        assert_null(batch);
        assert_int_equal(err.cls, SEMEL_CLASS_ENVIRONMENT);
        assert_null(strstr(err.text, "busy"));
        assert_null(strstr(err.text, "hello"));
    }
    semel__buf_done(&buf);
}

static void more_attributes_than_there_is_room_for_are_cut_off(void **state)
{
    struct sqs_batch *batch = NULL;
    struct semel_buf buf;

    (void)state;
    semel__buf_init(&buf, 1 << 20);
    semel__buf_addz(&buf, "{\"Messages\":[" MESSAGE ",\"MessageAttributes\":{\"a\":7");
    for (int i = 0; i < 1000; i++)
        semel__buf_addf(&buf, ",\"h%d\":{\"DataType\":\"String\",\"StringValue\":\"v\"}", i);
    semel__buf_addz(&buf, "}}]}");
    assert_int_equal(semel__sqs_read_messages(semel__buf_str(&buf), &batch, NULL), SEMEL_OK);
    assert_int_equal(batch->messages[0].n_headers, SQS_HEADERS_MAX);
    semel__sqs_batch_free(batch);
    semel__buf_done(&buf);
}

static void each_entry_of_a_batch_has_its_own_verdict(void **state)
{
    struct sqs_verdicts v;

    (void)state;
    assert_int_equal(
        semel__sqs_read_verdicts(SEMEL_STR("{\"Successful\":[{\"Id\":\"0\"}],\"Failed\":["
                                           "{\"Id\":\"1\",\"Code\":\"ReceiptHandleIsInvalid\",\"SenderFault\":true},"
                                           "{\"Id\":\"2\",\"Code\":\"InternalError\",\"SenderFault\":false},"
                                           "{\"Id\":\"4\",\"Code\":\"AccessDenied\",\"SenderFault\":true},"
                                           "{\"Id\":\"5\",\"Code\":\"Odd\",\"SenderFault\":false}]}"),
                                 6, &v, NULL),
        SEMEL_OK);
    assert_int_equal(v.at[0], SQS_DONE);
    assert_int_equal(v.at[1], SQS_GONE);
    assert_int_equal(v.at[2], SQS_AGAIN);
    assert_int_equal(v.at[3], SQS_UNSAID);
    assert_int_equal(v.at[4], SQS_REFUSED);
    assert_int_equal(v.at[5], SQS_AGAIN);
    assert_string_equal(v.code, "AccessDenied");
}

static void verdicts_on_what_was_not_asked_are_refused(void **state)
{
    static const char *const texts[] = {
        "{\"Successful\":[{\"Id\":\"2\"}]}",
        "{\"Successful\":[{\"Id\":\"-1\"}]}",
        "{\"Failed\":[{\"Id\":\"99999999999\"}]}",
        "{\"Successful\":[{\"Id\":7}]}",
        "{\"Failed\":[{}]}",
        "{\"Failed\":[[]]}",
        "{\"Successful\":[\"0\"]}",
        "nonsense",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct sqs_verdicts v;
        assert_int_equal(semel__sqs_read_verdicts(semel__str(texts[i]), 2, &v, NULL), SEMEL_INVALID);
        assert_int_equal(v.at[0], SQS_UNSAID);
        assert_int_equal(v.at[1], SQS_UNSAID);
    }
}

static void refusal_has_a_code_without_its_prefix_and_a_message(void **state)
{
    static const char *const texts[][3] = {
        {"{\"__type\":\"com.amazonaws.sqs#QueueDoesNotExist\",\"message\":\"no\"}", "QueueDoesNotExist", "no"},
        {"{\"__type\":\"AWS.SimpleQueueService.NonExistentQueue\",\"Message\":\"no\"}", "NonExistentQueue", "no"},
        {"{\"__type\":\"AccessDenied\"}", "AccessDenied", ""},
        {"{\"__type\":7,\"message\":[]}", "", ""},
        {"{\"__type\":\"a\\u001b[31m\",\"message\":\"x\\ny\"}", "a?[31m", "x?y"},
        {"<html>", "", ""},
        {"", "", ""},
    };
    char code[64], message[64];

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        semel__sqs_read_error(semel__str(texts[i][0]), code, sizeof code, message, sizeof message);
        assert_string_equal(code, texts[i][1]);
        assert_string_equal(message, texts[i][2]);
    }
}

static void facts_are_read_and_what_is_not_said_is_none(void **state)
{
    struct semel_sqs_facts facts;

    (void)state;
    assert_int_equal(
        semel__sqs_read_facts(
            SEMEL_STR(
                "{\"Attributes\":{\"FifoQueue\":\"true\",\"MessageRetentionPeriod\":\"345600\",\"VisibilityTimeout\":"
                "\"30\",\"ApproximateNumberOfMessages\":\"7\",\"RedrivePolicy\":"
                "\"{\\\"deadLetterTargetArn\\\":\\\"arn:aws:sqs:e:1:dead\\\",\\\"maxReceiveCount\\\":5}\"}}"),
            &facts, NULL),
        SEMEL_OK);
    assert_true(facts.fifo);
    assert_int_equal(facts.retention_us, 345600 * SQS_SECOND_US);
    assert_int_equal(facts.visibility_us, 30 * SQS_SECOND_US);
    assert_int_equal(facts.messages, 7);
    assert_int_equal(facts.max_receives, 5);
    assert_string_equal(facts.dead_letters, "arn:aws:sqs:e:1:dead");
    assert_int_equal(semel__sqs_read_facts(SEMEL_STR("{\"Attributes\":{\"RedrivePolicy\":\"{\","
                                                     "\"VisibilityTimeout\":\"9223372036854775807\"}}"),
                                           &facts, NULL),
                     SEMEL_OK);
    assert_false(facts.fifo);
    assert_int_equal(facts.visibility_us, SEMEL_NONE);
    assert_int_equal(facts.retention_us, SEMEL_NONE);
    assert_int_equal(facts.max_receives, SEMEL_NONE);
    assert_string_equal(facts.dead_letters, "");
}

/* Whatever allocation fails, the answer is RETRY or the whole message. */
static void want_of_memory_is_a_status(void **state)
{
    struct fail_nth fail;
    bool reached = true;

    (void)state;
    for (unsigned at = 1; reached; at++) {
        struct sqs_batch *batch = NULL;
        semel_status status;
        fail_nth_begin(&fail, at);
        status = semel__sqs_read_messages(SEMEL_STR("{\"Messages\":[" MESSAGE "}]}"), &batch, NULL);
        reached = fail_nth_end(&fail);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        semel__sqs_batch_free(batch);
    }
}

static void settings_that_cannot_be_right_are_refused(void **state)
{
    static const struct semel_sqs_options good = {.url = "https://sqs.e.amazonaws.com/1/q",
                                                  .region = "e",
                                                  .access_key = "AKID",
                                                  .secret_key = "secret-secret"};
    static const char *const urls[] = {NULL,
                                       "",
                                       "sqs.e/1/q",
                                       "ftp://h/1/q",
                                       "https://h",
                                       "https:///q",
                                       "https://h/",
                                       "https://u:p@h/1/q",
                                       "https://h/1/a b",
                                       "https://h/q?x",
                                       "https://h/1/.fifo",
                                       "https://h/1/a.b"};
    struct semel_sqs_options o;
    struct semel_broker *broker = NULL;
    struct semel_error err;

    (void)state;
    for (size_t i = 0; i < COUNT(urls); i++) {
        o = good, o.url = urls[i];
        assert_int_equal(semel__broker_sqs_open(&broker, &o, &err), SEMEL_INVALID);
        assert_int_equal(err.cls, SEMEL_CLASS_BROKEN);
    }
    o = good, o.region = "e\r\nX: y";
    assert_int_equal(semel__broker_sqs_open(&broker, &o, &err), SEMEL_INVALID);
    o = good, o.secret_key = NULL;
    assert_int_equal(semel__broker_sqs_open(&broker, &o, &err), SEMEL_INVALID);
    o = good, o.session_token = "token\nwith: header";
    assert_int_equal(semel__broker_sqs_open(&broker, &o, &err), SEMEL_INVALID);
    assert_null(strstr(err.text, "header"));
    o = good, o.visibility_us = INT64_C(43200000001); /* more than 12 hours */
    assert_int_equal(semel__broker_sqs_open(&broker, &o, &err), SEMEL_INVALID);
    o = good, o.wait_us = 21000000;
    assert_int_equal(semel__broker_sqs_open(&broker, &o, &err), SEMEL_INVALID);
    assert_null(broker);
    assert_int_equal(semel__broker_sqs_open(&broker, &good, &err), SEMEL_OK);
    assert_int_equal(broker->ops->capabilities & SEMEL_BROKER_ORDERED, 0);
    semel_broker_close(broker);
    o = good, o.url = "https://h/1/q.fifo";
    assert_int_equal(semel__broker_sqs_open(&broker, &o, &err), SEMEL_OK);
    assert_int_not_equal(broker->ops->capabilities & SEMEL_BROKER_ORDERED, 0);
    semel_broker_close(broker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(message_is_read_with_its_headers_and_properties),
        cmocka_unit_test(no_messages_is_said_in_several_ways),
        cmocka_unit_test(body_that_is_not_what_its_md5_says_is_marked),
        cmocka_unit_test(what_is_odd_but_not_needed_is_passed_over),
        cmocka_unit_test(hostile_answers_are_refused_and_not_quoted),
        cmocka_unit_test(more_attributes_than_there_is_room_for_are_cut_off),
        cmocka_unit_test(each_entry_of_a_batch_has_its_own_verdict),
        cmocka_unit_test(verdicts_on_what_was_not_asked_are_refused),
        cmocka_unit_test(refusal_has_a_code_without_its_prefix_and_a_message),
        cmocka_unit_test(facts_are_read_and_what_is_not_said_is_none),
        cmocka_unit_test(want_of_memory_is_a_status),
        cmocka_unit_test(settings_that_cannot_be_right_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
