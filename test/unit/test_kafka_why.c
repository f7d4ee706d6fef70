/* SPDX-License-Identifier: MIT
 *
 * test_kafka_why.c: what librdkafka says of a connection, in words that name our settings; without a server.
 */
#include <openssl/x509_vfy.h>

#include "broker/kafka_private.h"
#include "unit/unit.h"

#define HANDSHAKE "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate"

static struct kafka_callback_context context;
static struct kafka kafka = {.context = &context};

static void assert_reported(const char *reason, const char *text, enum semel_class cls)
{
    semel__kafka_explain(&kafka, 7, SEMEL_CLASS_ENVIRONMENT, reason);
    assert_string_equal(kafka.why.text, text);
    assert_int_equal(kafka.why.cls, cls);
    assert_int_equal(kafka.why.status, SEMEL_RETRY);
    assert_int_equal(kafka.why.code, 7);
}

/* As OpenSSL tells it by a thread of the library. */
static void meet_certificate(int code)
{
    char text[128] = "";

    assert_int_equal(semel__kafka_certificate(NULL, "h:1", 1, &code, 0, "", 0, text, sizeof text, &context), code == 0);
    assert_int_equal(text[0] == '\0', code == 0);
}

static void reason_says_where_what_and_which_setting_would_help(void **state)
{
    (void)state;
    assert_reported("sasl_ssl://h:9093/bootstrap: SASL authentication error: No (after 3ms in state AUTH_REQ)",
                    "kafka: sasl_ssl://h:9093: SASL authentication error: No; see sasl.user, sasl.password and "
                    "sasl.mechanism",
                    SEMEL_CLASS_BROKEN);
    assert_reported("ssl://h:9093/2: Receive failed: sslv3 alert bad certificate: SSL alert number 42 (after 1ms)",
                    "kafka: ssl://h:9093: Receive failed: sslv3 alert bad certificate: SSL alert number 42; it "
                    "requires a certificate that it trusts: set tls.cert_file and tls.key_file",
                    SEMEL_CLASS_BROKEN);
    assert_reported(
        "h:9092/bootstrap: Disconnected while requesting ApiVersion: might be caused by incorrect "
        "security.protocol configuration (connecting to a SSL listener?) or broker version is < 0.10",
        "kafka: h:9092: the server closed the connection at the first request; does that port want tls, or no sasl?",
        SEMEL_CLASS_ENVIRONMENT);
    assert_reported(
        "h:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms in state X)",
        "kafka: h:9092: Connect to ipv4#127.0.0.1:9092 failed: Connection refused", SEMEL_CLASS_ENVIRONMENT);
    assert_reported("ssl://[::1]:9: see ssl.ca.location", "kafka: ssl://[::1]:9: see tls.ca_file",
                    SEMEL_CLASS_ENVIRONMENT);
}

static void certificate_that_openssl_does_not_believe_is_refused_and_why(void **state)
{
    (void)state;
    meet_certificate(X509_V_OK);
    meet_certificate(X509_V_ERR_HOSTNAME_MISMATCH);
    assert_reported("ssl://h:9093/1: " HANDSHAKE,
                    "kafka: ssl://h:9093: certificate refused: it is for another host name; connect by a name that the "
                    "certificate contains",
                    SEMEL_CLASS_BROKEN);
    meet_certificate(X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN);
    assert_reported(
        "ssl://h:9093/1: " HANDSHAKE,
        "kafka: ssl://h:9093: certificate refused: signed by an unknown authority; tls.ca_file must contain it",
        SEMEL_CLASS_BROKEN);
    meet_certificate(X509_V_ERR_CERT_HAS_EXPIRED);
    assert_reported("ssl://h:9093/1: " HANDSHAKE, "kafka: ssl://h:9093: certificate refused: certificate has expired",
                    SEMEL_CLASS_BROKEN);
}

static void what_a_server_said_cannot_break_a_line_or_a_bound(void **state)
{
    static const char *const odd[] = {"", ":", ": ", "/: ", "//: x", "ssl.ca.location", " (after ", "://: (after "};
    char long_one[4096];

    (void)state;
    assert_reported("h:1/1: SASL authentication error: a\nb\x1b[2J",
                    "kafka: h:1: SASL authentication error: a?b?[2J; see sasl.user, sasl.password and sasl.mechanism",
                    SEMEL_CLASS_BROKEN);
    memset(long_one, 'x', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = '\0';
    semel__kafka_explain(&kafka, 0, SEMEL_CLASS_ENVIRONMENT, long_one);
    memcpy(long_one + 200, ": ssl.ca.location ssl.key.location", 34);
    semel__kafka_explain(&kafka, 0, SEMEL_CLASS_ENVIRONMENT, long_one);
    for (size_t i = 150; i < 165; i++) { /* a name that does not fit any more */
        snprintf(long_one, sizeof long_one, "%*sssl.key.location", (int)i, "");
        assert_int_equal(semel__kafka_refused(long_one, &kafka.why), SEMEL_INVALID);
    }
    for (size_t i = 0; i < COUNT(odd); i++) {
        semel__kafka_explain(&kafka, 0, SEMEL_CLASS_ENVIRONMENT, odd[i]);
        assert_true(strncmp(kafka.why.text, "kafka: ", 7) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reason_says_where_what_and_which_setting_would_help),
        cmocka_unit_test(certificate_that_openssl_does_not_believe_is_refused_and_why),
        cmocka_unit_test(what_a_server_said_cannot_break_a_line_or_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
